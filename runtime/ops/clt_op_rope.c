/* Rotary positions. */
#include <string.h>

#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status rope(clt_ops *ops, const clt_variant *v, const clt_rope_params *p) {
    const bool cpu = !strcmp(v->body, "cpu");
    const int64_t half = p->head_dim / 2;
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, cpu ? "rope_row" : "rope", v->options, &k));
    size_t wg = (size_t)clt_variant_param(v, "WG", 1), pairs = (size_t)(p->heads * half);
    size_t global[2] = {cpu ? (size_t)p->rows : CLT_ROUND_UP(pairs, wg), (size_t)p->rows}, local[2] = {wg, 1};
    if (pairs == 0) return CLT_OK;
    clt_arg args[] = {CLT_U64(p->seq),
                      CLT_U64(p->heads),
                      CLT_U64(half),
                      CLT_REF(p->x.ref),
                      CLT_U64(p->x.ld),
                      CLT_REF(p->cos_sin),
                      CLT_F32(p->inverse ? -1.0f : 1.0f)};
    if (cpu) return clt_launch(k, 1, global, local, args, CLT_COUNT_OF(args));
    return clt_launch_rows(k, global, local, args, CLT_COUNT_OF(args));
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_dtype type = *(const clt_dtype *)ctx;
    enum { ROWS = 3, SEQ = 2, HEADS = 2, DIM = 36, LD = HEADS * DIM + 3, N = ROWS * LD, TABLE = SEQ * DIM };
    float x[N], table[TABLE];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    clt_check_fill(x, N, 5);
    clt_check_fill(table, TABLE, 6);
    const clt_tensor t = clt_tensor_of(clt_check_place(v, type, part[0]), LD, type);
    CLT_TRY(clt_check_write(type, t.ref, x, N));
    CLT_TRY(clt_ref_write_f32(part[1], table, TABLE));
    CLT_TRY(rope(ops, v, &(clt_rope_params){ROWS, SEQ, HEADS, DIM, t, part[1], true}));
    clt_ref_rope(ROWS, SEQ, HEADS, DIM, x, LD, table, true);
    return clt_variant_compare_as(ops, type, "rope", t.ref, x, N);
}

clt_status clt_op_rope(clt_ops *ops, const clt_rope_params *p) {
    const clt_tensor_named x[] = {{"x", p->x}};
    const clt_variant *v;
    char option[16];
    CLT_TRY(clt_tensor_check_types("rope", CLT_DTYPE_PLAIN, x, 1));
    const clt_variant_question q = {
        .op = "rope", .options = clt_type_option(p->x.type, option), .check = check, .call = &p->x.type};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return rope(ops, v, p);
}
