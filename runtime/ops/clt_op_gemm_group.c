/* GEMM by work-groups: clkernels/gemm/gemm_portable.cl. One launch, no workspace. */
#include "clt_op_gemm.h"

clt_status clt_gemm_run_group(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    static const char *const form[] = {" -DFORM=0", " -DFORM=1", " -DFORM=2"};
    const int64_t bm = clt_variant_param(v, "BM", 64), bn = clt_variant_param(v, "BN", 64);
    const int64_t group = bm / clt_variant_param(v, "TM", 4) * (bn / clt_variant_param(v, "TN", 4));
    char options[512];
    clt_kernel *k;
    clt_gemm_options(p, v, form[p->form], options, sizeof options);
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "gemm", options, &k));

    clt_arg args[10 + CLT_EP_ARG_COUNT] = {
        CLT_U32(p->m), CLT_U32(p->n),   CLT_U32(p->k), CLT_U32(p->form == CLT_GEMM_TN ? p->k_group : p->k),
        CLT_REF(p->a), CLT_U64(p->lda), CLT_REF(p->b), CLT_U64(p->ldb)};
    clt_gemm_epilogue_args(p, clt_gemm_flags(p), 0, 0, args + 10);
    const size_t global[2] = {(size_t)(CLT_CEIL_DIV(p->n, bn) * group), (size_t)CLT_CEIL_DIV(p->m, bm)};
    const size_t local[2] = {(size_t)group, 1};
    return clt_launch(k, 2, global, local, args, CLT_COUNT_OF(args));
}
