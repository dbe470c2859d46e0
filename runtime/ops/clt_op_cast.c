/* Casts between fp32 and the 16-bit formats. */
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static const char *kernel_name(clt_dtype from, clt_dtype to) {
    if (from == CLT_F32 && to == CLT_BF16) return "cast_f32_bf16";
    if (from == CLT_F32 && to == CLT_F16) return "cast_f32_f16";
    if (from == CLT_BF16 && to == CLT_F32) return "cast_bf16_f32";
    if (from == CLT_F16 && to == CLT_F32) return "cast_f16_f32";
    return NULL;
}

static clt_status cast(clt_ops *ops, const clt_variant *v, const char *name, clt_ref src, clt_ref dst,
                       uint64_t count) {
    return clt_vector_launch(ops, v, name, "", count, (clt_arg[]){CLT_REF(src), CLT_REF(dst)}, 4);
}

/* fp32 -> bf16 -> fp32, and fp16 the same way. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    enum { N = 80 };
    const uint64_t n = clt_variant_wide(v) ? N : 77;
    float x[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    clt_check_fill(x, N, 9);
    clt_ref from = clt_check_place(v, CLT_F32, part[0]), to = clt_check_place(v, CLT_F32, part[2]);
    CLT_TRY(clt_ref_write_f32(from, x, N));
    for (clt_dtype type = CLT_BF16; type <= CLT_F16; type++) {
        const clt_ref half = clt_check_place(v, type, part[1]);
        CLT_TRY(clt_ref_write_f32(to, x, N));
        CLT_TRY(cast(ops, v, kernel_name(CLT_F32, type), from, half, n));
        CLT_TRY(cast(ops, v, kernel_name(type, CLT_F32), half, to, n));
        memcpy(want, x, sizeof want);
        clt_ref_round(type, want, n);
        CLT_TRY(clt_variant_compare(ops, type == CLT_BF16 ? "cast by way of bf16" : "cast by way of fp16", to,
                                    want, N));
    }
    return CLT_OK;
}

clt_status clt_op_cast(clt_ops *ops, clt_dtype from, clt_dtype to, clt_ref src, clt_ref dst, uint64_t count) {
    const char *name = kernel_name(from, to);
    if (!name) return clt_error(CLT_FAIL, "there is no cast from type %d to type %d", (int)from, (int)to);
    const clt_variant *v;
    const int64_t n = (int64_t)count;
    const clt_rowwise_call call = {to, clt_rowwise_wide(n, (clt_rows[]){{src, n}, {dst, n}}, 2)};
    CLT_TRY(clt_variant_pick_for(ops, "cast", "", clt_rowwise_takes, check, &call, &v));
    return cast(ops, v, name, src, dst, count);
}
