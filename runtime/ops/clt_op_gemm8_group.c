/* Products of 8-bit blocks by work-groups, one launch: clkernels/gemm8/gemm8_portable.cl and other files with
 * the same kernel. */
#include "runtime/ops/clt_op_gemm8_internal.h"

static clt_status run_group(clt_ops *ops, const clt_variant *v, const clt_gemm8_params *p) {
    char options[512];
    clt_kernel *kernel;
    clt_arg args[CLT_GEMM8_ARGS];
    clt_gemm8_options(p, v, options, sizeof options);
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "gemm8", options, &kernel));
    clt_gemm8_args(p, args);
    const int64_t bm = clt_variant_param(v, "BM", 64), bn = clt_variant_param(v, "BN", 64);
    const int64_t each = clt_variant_param(v, "TM", 4) * clt_variant_param(v, "TN", 4);
    const int64_t items = clt_variant_param(v, "ITEMS", bm * bn / each);
    const size_t global[2] = {(size_t)(CLT_CEIL_DIV(p->n, bn) * items), (size_t)CLT_CEIL_DIV(p->m, bm)};
    return clt_launch(kernel, 2, global, (size_t[]){(size_t)items, 1}, args, CLT_COUNT_OF(args));
}

const clt_gemm8_body clt_gemm8_group = {"group", run_group, NULL, NULL};
