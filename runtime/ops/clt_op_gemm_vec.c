/* GEMM of few rows on CPU devices: clkernels/gemm/gemm_vec.cl. Rows go in fours, then one by one, so a single
 * row, as generation has, takes the program that is fastest for it. */
#include "runtime/ops/clt_op_gemm_internal.h"

enum { TOGETHER = 4, TASKS_PER_UNIT = 4 /* work-items per compute unit, for balance */ };

/* Rows [row, row + rows) by the program for `together` rows. */
static clt_status run_part(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p, int together,
                           int64_t row, int64_t rows) {
    clt_device *dev = clt_ops_device(ops);
    char options[512], more[16];
    clt_kernel *k;
    snprintf(more, sizeof more, " -DROWS=%d", together);
    clt_gemm_options(p, v, more, options, sizeof options);
    CLT_TRY(clt_kernel_get(dev, v->file, "gemm_vec", options, &k));
    const int64_t panels = CLT_CEIL_DIV(p->n, 16);
    const int64_t tasks = CLT_MAX(clt_device_get_facts(dev)->compute_units, 1) * (int64_t)TASKS_PER_UNIT;
    const int64_t each = CLT_CEIL_DIV(panels, tasks);
    clt_arg args[10 + CLT_EP_ARG_COUNT] = {CLT_U32(rows),
                                           CLT_U32(p->n),
                                           CLT_U32(p->k),
                                           CLT_U32(each),
                                           CLT_REF(clt_tensor_at(p->a, row, 0).ref),
                                           CLT_U64(p->a.ld),
                                           CLT_REF(p->b.ref),
                                           CLT_U64(p->b.ld)};
    clt_gemm_epilogue_args(p, clt_gemm_flags(p), row, 0, args + 10);
    return clt_launch(k, 1, (size_t[]){(size_t)CLT_CEIL_DIV(panels, each)}, (size_t[]){1}, args,
                      10 + CLT_EP_ARG_COUNT);
}

static clt_status run_vec(clt_ops *ops, const clt_variant *v, const clt_gemm_params *p) {
    const int64_t single = p->m % TOGETHER == 1, rest = p->m - single;
    if (rest) CLT_TRY(run_part(ops, v, p, TOGETHER, 0, rest));
    return single ? run_part(ops, v, p, 1, rest, 1) : CLT_OK;
}

const clt_gemm_body clt_gemm_vec = {"vec", run_vec, NULL, NULL};
