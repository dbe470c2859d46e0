/* The sum of an exchange's parts (clt_sum_parts.h). */
#include "runtime/ops/clt_op_slab.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status launch(clt_ops *ops, const clt_variant *v, const clt_sum_parts *s) {
    clt_arg args[2 * CLT_PARTS_MOST + 6];
    uint32_t narrow = 0, joins = 0;
    int n = 0;
    for (int i = 0; i < CLT_PARTS_MOST; i++) {
        /* A kernel does not read the parts from n on; some drivers refuse NULL. */
        const clt_arg at[] = {CLT_REF(i < s->n ? s->part[i].at : s->part[0].at)};
        args[n++] = at[0];
        args[n++] = at[1];
        if (i >= s->n) continue;
        narrow |= (uint32_t)s->part[i].narrow << i;
        joins |= (uint32_t)s->part[i].joins << 4 * i;
    }
    const clt_arg rest[] = {CLT_I32(s->n), CLT_U32(narrow), CLT_U32(joins), CLT_I32(s->round),
                            CLT_REF(s->dst)};
    for (size_t i = 0; i < CLT_COUNT_OF(rest); i++) args[n++] = rest[i];
    return clt_vector_launch(ops, v, "sum_parts", s->count, args, n);
}

enum { N = 80, PARTS = 4 };

/* Four parts, every other one bf16, as a tree and as a chain, rounded and not. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    const uint64_t n = clt_variant_wide(v) ? N : 77;
    static const int joins[][PARTS] = {{0, 1, 0, 2}, {0, 1, 1, 1}};
    clt_ref part[CLT_CHECK_PARTS];
    float x[PARTS][N], want[N];
    CLT_TRY(clt_check_parts(ops, N, part));
    for (int c = 0; c < 4; c++) {
        clt_sum_parts s = {.count = n, .n = PARTS, .round = c % 2};
        for (int i = 0; i < PARTS; i++) {
            const clt_dtype type = i % 2 ? CLT_BF16 : CLT_F32;
            s.part[i].at = clt_check_place(v, type, part[i]);
            s.part[i].narrow = i % 2;
            s.part[i].joins = joins[c / 2][i];
            clt_check_fill(x[i], N, 20 + (uint32_t)i);
            CLT_TRY(clt_check_write(type, s.part[i].at, x[i], N));
        }
        s.dst = clt_check_place(v, CLT_F32, part[4]);
        CLT_TRY(launch(ops, v, &s));
        clt_ref_sum_parts(&s, (const float *[]){x[0], x[1], x[2], x[3]}, want);
        CLT_TRY(clt_variant_compare(ops, "sum of parts", s.dst, want, n));
    }
    return CLT_OK;
}

static bool is_wide(const clt_sum_parts *s) {
    bool wide = s->count % 8 == 0 && s->dst.off % 8 == 0;
    for (int i = 0; i < s->n; i++) wide = wide && s->part[i].at.off % 8 == 0;
    return wide;
}

clt_status clt_op_sum_parts(clt_ops *ops, const clt_sum_parts *s) {
    const clt_rowwise_call call = {CLT_F32, is_wide(s)};
    const clt_variant_question q = {
        .op = "parts", .options = "", .takes = clt_rowwise_takes, .check = check, .call = &call};
    const clt_variant *v;
    if (s->n < 1 || s->n > CLT_PARTS_MOST)
        return clt_error(CLT_FAIL, "sum of parts: %d parts; supported: 1..%d", s->n, CLT_PARTS_MOST);
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return launch(ops, v, s);
}
