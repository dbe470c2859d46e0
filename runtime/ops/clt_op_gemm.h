/* clt_op_gemm: what the parts of the GEMM operation share. Private to runtime/ops/clt_op_gemm*.c.
 *
 * clt_op_gemm.c checks a call and picks the variant; each kind of body has a file that turns a call into
 * launches: clt_op_gemm_group.c (work-groups with local memory), clt_op_gemm_cpu.c (packed panels),
 * clt_op_gemm_wgmma.c (16-bit operands on NVIDIA's matrix units), clt_op_gemm_clblast.c (another library's
 * product). */
#ifndef CLT_OP_GEMM_H
#define CLT_OP_GEMM_H

#include "clt_tune.h"

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
/* The variant's options with the types and activations of this call (the type of a and b is among the
 * variant's). */
void clt_gemm_options(const clt_gemm_params *p, const clt_variant *v, const char *more, char *out,
                      size_t size);

/* The bodies. The call was checked; the kernels are built here if they are not yet. */
clt_status clt_gemm_run_group(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
clt_status clt_gemm_run_cpu(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
clt_status clt_gemm_run_clblast(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
clt_status clt_gemm_run_wgmma(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
/* Makes what the call needs besides its main kernel; upper bound of that body's scratch. */
clt_status clt_gemm_wgmma_prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);
uint64_t clt_gemm_wgmma_workspace(const clt_gemm_params *p);
/* Whether c may hold unfinished chains: it is fp32 and nothing that the epilogue reads lies there. */
bool clt_gemm_c_is_free(const clt_gemm_params *p);
/* Upper bound of the CPU body's scratch, over all its variants. */
uint64_t clt_gemm_cpu_workspace(const clt_gemm_params *p);
/* The same of the work-groups' body, if no row's GROUPS (work-groups that a weight gradient is cut for) is
 * above CLT_GEMM_MOST_GROUPS and no tile above 128 x 256. */
enum { CLT_GEMM_MOST_GROUPS = 1024 };
uint64_t clt_gemm_group_workspace(const clt_gemm_params *p);
/* Builds what the call needs and allocates its scratch. */
clt_status clt_gemm_group_prepare(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);

/* Compares one variant with the oracle at small shapes that have every kind of edge (clt_op_gemm_check.c).
 * ctx: the call (clt_gemm_params); its in_type counts. */
clt_status clt_gemm_check(clt_ops *ops, const clt_variant *v, void *ctx);
/* How rows are timed at a shape, and a shape as text (clt_op_gemm_tune.c). */
extern const clt_tune_kind clt_gemm_tune;
void clt_gemm_shape(const clt_gemm_params *p, char *out, size_t size);
/* Runs a checked call with this variant. */
clt_status clt_gemm_run(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p);

#endif
