/* Rotary positions. */
#include <string.h>

#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* What a kernel is built for. */
typedef struct {
    clt_dtype type;
    bool partial; /* some dimensions of a head do not rotate */
} rope_call;

static int64_t dims_of(const clt_rope_params *p) {
    return p->dims ? p->dims : p->head_dim;
}

static rope_call call_of(const clt_rope_params *p) {
    return (rope_call){p->x.type, dims_of(p) != p->head_dim};
}

static clt_status rope(clt_ops *ops, const clt_variant *v, const clt_rope_params *p) {
    const bool cpu = !strcmp(v->body, "cpu");
    const int64_t half = dims_of(p) / 2;
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
                      CLT_F32(p->inverse ? -1.0f : 1.0f),
                      CLT_U64(p->head_dim)};
    const int n = (int)CLT_COUNT_OF(args) - !call_of(p).partial;
    if (cpu) return clt_launch(k, 1, global, local, args, n);
    return clt_launch_rows(k, global, local, args, n);
}

/* 18 pairs: the CPU body turns 16 at once and then 2 alone. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const rope_call *call = ctx;
    enum { ROWS = 3, SEQ = 2, HEADS = 2, DIMS = 36, MOST = DIMS + 7, LD = HEADS * MOST + 3, N = ROWS * LD };
    const int64_t head = call->partial ? MOST : DIMS;
    float x[N], table[SEQ * DIMS];
    clt_ref part[CLT_CHECK_PARTS];
    CLT_TRY(clt_check_parts(ops, N, part));
    clt_check_fill(x, N, 5);
    clt_check_fill(table, SEQ * DIMS, 6);
    const clt_tensor t = clt_tensor_of(clt_check_place(v, call->type, part[0]), LD, call->type);
    CLT_TRY(clt_check_write(call->type, t.ref, x, N));
    CLT_TRY(clt_ref_write_f32(part[1], table, SEQ * DIMS));
    CLT_TRY(rope(ops, v, &(clt_rope_params){ROWS, SEQ, HEADS, head, t, part[1], true, DIMS}));
    clt_ref_rope(ROWS, SEQ, HEADS, head, DIMS, x, LD, table, true);
    return clt_variant_compare_as(ops, call->type, "rope", t.ref, x, N);
}

clt_status clt_op_rope(clt_ops *ops, const clt_rope_params *p) {
    const clt_tensor_named x[] = {{"x", p->x}};
    const clt_variant *v;
    char type[16], options[32];
    rope_call call = call_of(p);
    if (p->dims < 0 || dims_of(p) > p->head_dim || dims_of(p) % 2)
        return clt_error(CLT_FAIL, "rope: %lld of %lld dimensions cannot be rotated in pairs",
                         (long long)dims_of(p), (long long)p->head_dim);
    CLT_TRY(clt_tensor_check_types("rope", CLT_DTYPE_PLAIN, x, 1));
    snprintf(options, sizeof options, "%s%s", clt_type_option(p->x.type, type),
             call.partial ? " -DPARTIAL=1" : "");
    const clt_variant_question q = {.op = "rope", .options = options, .check = check, .call = &call};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return rope(ops, v, p);
}
