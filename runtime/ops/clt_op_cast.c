/* Casts between fp32 and the 16-bit formats. */
#include "clt_rowwise.h"
#include "ref/clt_ref.h"

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

/* fp32 -> bf16 -> fp32. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    enum { N = 77 };
    float x[N], want[N];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    clt_check_fill(x, N, 9);
    CLT_TRY(clt_ref_write_f32(part[0], x, N));
    clt_ref half = {part[1].buf, part[1].off * 2 + 1};
    CLT_TRY(cast(ops, v, kernel_name(CLT_F32, CLT_BF16), part[0], half, N));
    CLT_TRY(cast(ops, v, kernel_name(CLT_BF16, CLT_F32), half, part[2], N));
    for (int i = 0; i < N; i++) want[i] = clt_ref_bf16_to_f32(clt_ref_f32_to_bf16(x[i]));
    return clt_variant_compare(ops, "cast", part[2], want, N);
}

clt_status clt_op_cast(clt_ops *ops, clt_dtype from, clt_dtype to, clt_ref src, clt_ref dst, uint64_t count) {
    const char *name = kernel_name(from, to);
    if (!name) return clt_error(CLT_FAIL, "there is no cast from type %d to type %d", (int)from, (int)to);
    const clt_variant *v;
    CLT_TRY(clt_variant_pick(ops, "cast", check, NULL, &v));
    return cast(ops, v, name, src, dst, count);
}
