/* The weights stay unchanged if a loss is not finite or an earlier step was bad. */
#include <math.h>

#include "runtime/ops/clt_op_slab.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status guard(clt_ops *ops, const clt_variant *v, clt_ref x, uint64_t count, clt_ref flag,
                        clt_ref g) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "guard", v->options, &k));
    size_t wg = (size_t)clt_variant_param(v, "WG", 1);
    return clt_launch(k, 1, &wg, &wg, (clt_arg[]){CLT_U64(count), CLT_REF(x), CLT_REF(flag), CLT_REF(g)}, 7);
}

/* Good; one infinity; one NaN at the end; a bad flag. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    enum { N = 131, CASES = 4 };
    float x[N], want[1];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    for (int c = 0; c < CASES; c++) {
        clt_check_fill(x, N, 23);
        if (c == 1) x[7] = HUGE_VALF;
        if (c == 2) x[N - 1] = NAN;
        float flag = c == 3 ? 0.0f : 1.0f;
        want[0] = -0.0f;
        CLT_TRY(clt_ref_write_f32(part[0], x, N));
        CLT_TRY(clt_ref_write_f32(part[1], &flag, 1));
        CLT_TRY(clt_ref_write_f32(part[2], want, 1));
        CLT_TRY(guard(ops, v, part[0], N, part[1], part[2]));
        clt_ref_guard(N, x, flag, want);
        CLT_TRY(clt_variant_compare(ops, "guard", part[2], want, 1));
    }
    return CLT_OK;
}

clt_status clt_op_guard(clt_ops *ops, clt_ref x, uint64_t count, clt_ref flag, clt_ref g) {
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "guard", check, NULL, &v));
    return guard(ops, v, x, count, flag, g);
}
