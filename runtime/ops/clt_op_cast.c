/* Casts between fp32 and the 16-bit types. */
#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status cast(clt_ops *ops, const clt_variant *v, const clt_tensor *src, const clt_tensor *dst,
                       uint64_t count) {
    char name[32];
    snprintf(name, sizeof name, "cast_%s_%s", clt_dtype_table[src->type].word,
             clt_dtype_table[dst->type].word);
    return clt_vector_launch(ops, v, name, count, (clt_arg[]){CLT_REF(src->ref), CLT_REF(dst->ref)}, 4);
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
    const clt_tensor from = clt_tensor_vector(clt_check_place(v, CLT_F32, part[0]), CLT_F32),
                     to = clt_tensor_vector(clt_check_place(v, CLT_F32, part[2]), CLT_F32);
    CLT_TRY(clt_ref_write_f32(from.ref, x, N));
    for (clt_dtype type = CLT_BF16; type <= CLT_F16; type++) {
        const clt_tensor half = clt_tensor_vector(clt_check_place(v, type, part[1]), type);
        char what[32];
        snprintf(what, sizeof what, "cast through %s", clt_dtype_name(type));
        CLT_TRY(clt_ref_write_f32(to.ref, x, N));
        CLT_TRY(cast(ops, v, &from, &half, n));
        CLT_TRY(cast(ops, v, &half, &to, n));
        memcpy(want, x, sizeof want);
        clt_ref_round(type, want, n);
        CLT_TRY(clt_variant_compare(ops, what, to.ref, want, N));
    }
    return CLT_OK;
}

clt_status clt_op_cast(clt_ops *ops, clt_tensor src, clt_tensor dst, uint64_t count) {
    const uint32_t wide = clt_dtype_bit(CLT_F32), narrow = clt_dtype_bit(CLT_BF16) | clt_dtype_bit(CLT_F16);
    const clt_tensor_named from[] = {{"src", src}}, to[] = {{"dst", dst}};
    CLT_TRY(clt_tensor_check_types("cast", wide | narrow, from, 1));
    CLT_TRY(clt_tensor_check_types("cast", src.type == CLT_F32 ? narrow : wide, to, 1));
    src.ld = dst.ld = (int64_t)count;
    const clt_rowwise row = {NULL, 1, (int64_t)count, .tensors = 2, .t = {src, dst}};
    const clt_rowwise_call call = {dst.type, clt_rowwise_wide(&row)};
    const clt_variant_question q = {
        .op = "cast", .options = "", .takes = clt_rowwise_takes, .check = check, .call = &call};
    const clt_variant *v;
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return cast(ops, v, &src, &dst, count);
}
