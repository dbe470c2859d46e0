/* clt_op_gemm_internal: what the parts of the GEMM operation share. Private to runtime/ops/clt_op_gemm*.c.
 *
 * clt_op_gemm.c checks a call and picks the variant. Each kind of body has a file that turns a call into
 * launches: clt_op_gemm_group.c (work-groups with local memory), clt_op_gemm_cpu.c (packed panels),
 * clt_op_gemm_wgmma.c (16-bit operands on NVIDIA's matrix units), clt_op_gemm_clblast.c (another library's
 * product). A new kind is a file that defines a clt_gemm_body, named here and in clt_op_gemm.c. */
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
uint32_t clt_gemm_flags(const clt_gemm_params *p);
enum { CLT_EP_ARG_COUNT = 15 };
/* Fills the kernel arguments of CLT_EP_ARGS, for the outputs from (row, column) on. */
void clt_gemm_epilogue_args(const clt_gemm_params *p, uint32_t flags, int64_t row, int64_t column,
                            clt_arg *args);
/* The variant's options, which include the type of a and b, followed by the other types and the activations
 * of this call. */
void clt_gemm_options(const clt_gemm_params *p, const clt_variant *v, const char *more, char *out,
                      size_t size);

/* A kind of body. The call was checked. */
typedef struct {
    const char *name; /* the word `body` of the table's rows */
    /* Queues the launches; builds kernels that are not built yet. */
    clt_status (*run)(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
    /* Builds and allocates what `run` needs besides its main kernel; NULL: nothing. */
    clt_status (*prepare)(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
    /* Bytes of scratch memory that row v may take for a call of these sizes, types and form on any device;
     * the tensors' buffers may be absent. NULL: none. */
    uint64_t (*workspace)(const clt_variant *v, const clt_gemm_params *p);
    /* Whether row v suits a call that it supports, beyond what its params say. NULL: always. */
    bool (*does_well)(const clt_variant *v, const clt_gemm_params *p);
    /* Whether `run` computes p->again too. If not, or without this function, a launch of the activation
     * computes it, and `run` gets no p->again. */
    bool (*makes_again)(const clt_gemm_params *p);
    bool makes_sums; /* the same for p->a_sum, which clt_op_column_sum computes otherwise */
} clt_gemm_body;
extern const clt_gemm_body clt_gemm_group, clt_gemm_cpu, clt_gemm_clblast, clt_gemm_wgmma;
/* Whether c may hold unfinished chains: it is fp32 and shares no memory with what the epilogue reads. */
bool clt_gemm_c_is_free(const clt_gemm_params *p);

/* Compares one variant with the oracle at small shapes with every kind of edge (clt_op_gemm_check.c).
 * ctx: the call (clt_gemm_params), for the type of a and b. */
clt_status clt_gemm_check(clt_ops *ops, const clt_variant *v, void *ctx);
/* How variants are timed at a shape, and a shape as text (clt_op_gemm_tune.c). */
extern const clt_tune_kind clt_gemm_tune;
void clt_gemm_shape(const clt_gemm_params *p, char *out, size_t size);
/* Whether this variant's body can compute p->again, or p->a_sum, itself. */
bool clt_gemm_can_make_again(const clt_variant *v);
bool clt_gemm_can_make_sums(const clt_variant *v);
/* Runs a checked call with this variant. */
clt_status clt_gemm_run(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);

#endif
