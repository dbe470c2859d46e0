/* GEMM by the CLBlast library, for `numerics: fast`: the product, then the epilogue as a separate pass
 * (clkernels/gemm/gemm_finish.cl). A weight gradient is one sum over all samples here. */
#include "runtime/ops/clt_op_gemm_internal.h"

#include "runtime/device/clt_clblast.h"

enum { SLOT_PRODUCT = 1 };

static clt_status clear(clt_ops *ops, const clt_variant *v, const char *options, clt_ref c, int64_t m,
                        int64_t n, int64_t ld) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "gemm_clear", options, &k));
    const clt_arg args[] = {CLT_REF(c), CLT_U64(ld)};
    return clt_launch_rows(k, (size_t[]){(size_t)n, (size_t)m}, NULL, args, CLT_COUNT_OF(args));
}

static clt_status run_clblast(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const bool tn = p->form == CLT_GEMM_TN, adds = tn && p->accumulate;
    const uint32_t flags = tn ? 0 : clt_gemm_flags(p);
    clt_device *dev = clt_ops_device(ops);
    clt_ref product = p->c.ref;
    int64_t ld = p->c.ld;
    char options[512];
    clt_kernel *finish = NULL;
    clt_gemm_options(p, v, "", options, sizeof options);
    if (flags) CLT_TRY(clt_kernel_get(dev, v->file, "gemm_finish", options, &finish));
    if (flags && !clt_gemm_c_is_free(p)) {
        product = clt_ref_none();
        ld = p->n;
        CLT_TRY(clt_ops_scratch(ops, SLOT_PRODUCT, (uint64_t)(p->m * p->n) * sizeof(float), &product.buf));
    }
    if (!adds) CLT_TRY(clear(ops, v, options, product, p->m, p->n, ld));
    CLT_TRY(clt_clblast_sgemm(dev, tn, p->form == CLT_GEMM_NT, p->m, p->n, p->k, 1.0f, p->a.ref, p->a.ld,
                              p->b.ref, p->b.ld, adds ? 1.0f : 0.0f, product, ld));
    if (!flags) return CLT_OK;
    clt_arg args[3 + CLT_EP_ARG_COUNT] = {CLT_REF(product), CLT_U64(ld)};
    clt_gemm_epilogue_args(p, flags, 0, 0, args + 3);
    return clt_launch_rows(finish, (size_t[]){(size_t)p->n, (size_t)p->m}, NULL, args, CLT_COUNT_OF(args));
}

const clt_gemm_body clt_gemm_clblast = {"clblast", run_clblast, NULL, NULL};
