/* clt_op_gemm_internal: what the parts of the GEMM operation share. Private to runtime/ops/clt_op_gemm*.c.
 *
 * clt_op_gemm.c checks a call and picks the variant. Each kind of body has a file that turns a call into
 * launches: clt_op_gemm_group.c (work-groups with local memory), clt_op_gemm_cpu.c (packed panels),
 * clt_op_gemm_vec.c (few rows on CPUs), clt_op_gemm_wgmma.c (16-bit operands on NVIDIA's matrix units),
 * clt_op_gemm_clblast.c (another library's product). A new kind is a file that defines a clt_gemm_body, named
 * here and in clt_op_gemm.c. */
#ifndef CLT_OP_GEMM_INTERNAL_H
#define CLT_OP_GEMM_INTERNAL_H

#include "runtime/ops/clt_ops.h"
#include "runtime/ops/clt_tune.h"

/* Flags of the kernels' epilogue: clkernels/gemm/gemm_epilogue.clh. */
enum {
    CLT_EP_BIAS = 1,
    CLT_EP_PRE = 2,
    CLT_EP_ACT = 4,
    CLT_EP_GRAD = 8,
    CLT_EP_RESIDUAL = 16,
    CLT_EP_ACCUMULATE = 32
};
/* Checks c, the epilogue and overlaps of a call whose sizes are valid; messages begin with `op`. */
clt_status clt_gemm_check_outputs(const char *op, const clt_gemm_params *p);
/* The flags of a call: one for each step of the epilogue that it has. */
uint32_t clt_gemm_flags(const clt_gemm_params *p);
enum { CLT_EP_ARG_COUNT = 15 };
/* Fills args[0 ... CLT_EP_ARG_COUNT - 1] with the kernel arguments CLT_EP_ARGS (gemm_epilogue.clh); the
 * places of the tensors are those of output element (row, column). */
void clt_gemm_epilogue_args(const clt_gemm_params *p, uint32_t flags, int64_t row, int64_t column,
                            clt_arg *args);
/* Writes the build options of a kernel for this call: v's options, which include the type of a and b; `more`;
 * then the other types and the activations. `out` must have room: truncation is not detected. */
void clt_gemm_options(const clt_gemm_params *p, const clt_variant *v, const char *more, char *out,
                      size_t size);

/* A kind of body: how rows of gemm.vt with this word `body` run. All functions may assume that the call was
 * checked (clt_op_gemm) and that the row supports it. `v` is the row. */
typedef struct {
    const char *name; /* the word `body` of the table's rows */
    /* Queues the launches; builds kernels that are not built yet. p->again and p->a_sum are absent unless
     * makes_again or makes_sums says that this function computes them. */
    clt_status (*run)(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
    /* Builds and allocates what `run` needs besides its main kernel; NULL: nothing. */
    clt_status (*prepare)(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
    /* Upper bound in bytes of the scratch memory of `run` for a call with these sizes, types and form, on any
     * device; the tensors' buffers may be absent. NULL: no scratch memory. */
    uint64_t (*workspace)(const clt_variant *v, const clt_gemm_params *p);
    /* Whether row v is a good choice for a call that it supports, beyond what its params say; if not, the
     * row is used only if it is forced or measured to be the fastest. NULL: always. */
    bool (*does_well)(const clt_variant *v, const clt_gemm_params *p);
    /* Whether `run` computes p->again for this call. If false or NULL, clt_op_activation_forward does. */
    bool (*makes_again)(const clt_gemm_params *p);
    bool makes_sums; /* whether `run` computes p->a_sum; if not, clt_op_column_sum does */
} clt_gemm_body;
extern const clt_gemm_body clt_gemm_group, clt_gemm_cpu, clt_gemm_vec, clt_gemm_clblast, clt_gemm_wgmma;
/* Whether a body may store intermediate sums in c: c is fp32, is not accumulated to, and shares no memory
 * with residual and grad_pre. */
bool clt_gemm_c_is_free(const clt_gemm_params *p);

/* A clt_variant_check: compares row v with the oracle at small shapes with every kind of edge
 * (clt_op_gemm_check.c). ctx: the call (clt_gemm_params), of which the type of a and b is used. */
clt_status clt_gemm_check(clt_ops *ops, const clt_variant *v, void *ctx);
/* How variants are timed at a shape (clt_op_gemm_tune.c). */
extern const clt_tune_kind clt_gemm_tune;
/* Writes the shape as clt_tune_question.shape needs it: form, sizes, types of a and c, whether it
 * accumulates. */
void clt_gemm_shape(const clt_gemm_params *p, char *out, size_t size);
/* Whether row v's body computes p->again for some calls, and p->a_sum. */
bool clt_gemm_can_make_again(const clt_variant *v);
bool clt_gemm_can_make_sums(const clt_variant *v);
/* Runs a call with row v; the call must have been checked, and v must support it. */
clt_status clt_gemm_run(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);

#endif
