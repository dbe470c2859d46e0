/* The last rows of attention with keys and values in a cache: every row of attention_last.vt on every device
 * gives the words of the oracle's forward pass over the whole sequence (which test_attention_oracle.c
 * compares with the formula in double), and invalid calls are refused. */
#include <math.h>

#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

typedef struct {
    int64_t seq, heads, kv_heads, head_dim;
    bool alibi, extreme, unmasked; /* unmasked: without the causal mask */
    float softcap;
    int64_t window; /* 0: off; n: n - 1 */
    clt_dtype type;
} shape;

/* Few programs: compiling takes longer than running. */
static const shape cases[] = {
    {1, 1, 1, 5, .type = CLT_F16},
    {66, 1, 1, 5, .type = CLT_F16},
    {200, 4, 1, 16, .alibi = true},
    {70, 2, 1, 16, .alibi = true, .extreme = true},
    {131, 4, 2, 16, .window = 34},
    {150, 2, 2, 16, .window = 1},
    {131, 2, 1, 80, .alibi = true, .softcap = 1.5f, .window = 71, .type = CLT_BF16},
    {197, 4, 2, 16, .unmasked = true},
    {131, 2, 1, 80, .unmasked = true, .alibi = true, .softcap = 1.5f, .window = 34, .type = CLT_BF16},
};
static const shape tiny_cases[] = {
    {67, 2, 1, 4, .alibi = true, .softcap = 1.5f, .window = 31},
    {9, 1, 1, 130},
    {67, 2, 1, 4, .unmasked = true, .alibi = true, .window = 31},
};

/* q, k, v of the whole sequence and the oracle's output. k and v are the two halves of rows of `ldkv`, as in
 * a cache with room for more positions. */
typedef struct {
    shape s;
    int64_t wide, ldkv, ldo;
    float *q, *kv, *o, *lse, *slopes;
    size_t n_q, n_kv, n_o;
} problem;

static problem make(const shape *s, uint64_t seed) {
    const int64_t wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim;
    problem x = {.s = *s, .wide = wide, .ldkv = 2 * narrow, .ldo = wide + 3};
    x.n_q = (size_t)(s->seq * wide), x.n_kv = (size_t)((s->seq + 5) * x.ldkv),
    x.n_o = (size_t)(s->seq * x.ldo);
    x.q = s->extreme ? tu_extreme(x.n_q, seed) : tu_random(x.n_q, seed, 2.0f);
    x.kv = s->extreme ? tu_extreme(x.n_kv, seed + 1) : tu_random(x.n_kv, seed + 1, 2.0f);
    x.o = tu_random(x.n_o, seed + 2, 1.0f);
    x.lse = clt_malloc((size_t)(s->heads * s->seq) * sizeof *x.lse);
    x.slopes = tu_random((size_t)s->heads, seed + 3, 0.25f);
    return x;
}

static void destroy(problem *x) {
    float *all[] = {x->q, x->kv, x->o, x->lse, x->slopes};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_free(all[i]);
}

/* The call for the whole sequence, without tensors. */
static clt_attention_params call_of(const problem *x) {
    const shape *s = &x->s;
    return (clt_attention_params){.batch = 1,
                                  .seq = s->seq,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .q = {.ld = x->wide, .type = s->type},
                                  .k = {.ld = x->ldkv, .type = s->type},
                                  .v = {.ld = x->ldkv, .type = s->type},
                                  .o = {.ld = x->ldo, .type = s->type},
                                  .scale = 1.0f / sqrtf((float)s->head_dim),
                                  .softcap = s->softcap,
                                  .mask = s->unmasked ? CLT_MASK_NONE : CLT_MASK_CAUSAL,
                                  .window = s->window - 1};
}

static void solve(problem *x) {
    const shape *s = &x->s;
    const clt_attention_params call = call_of(x);
    clt_ref_round(s->type, x->q, x->n_q);
    clt_ref_round(s->type, x->kv, x->n_kv);
    clt_ref_attention_params p = clt_ref_attention_of(&call);
    p.q = x->q, p.k = x->kv, p.v = x->kv + x->ldkv / 2, p.o = x->o, p.lse = x->lse;
    p.slopes = s->alibi ? x->slopes : NULL;
    clt_ref_attention_forward(&p);
    clt_ref_round(s->type, x->o, x->n_o);
}

/* The last `rows` rows; the gaps between the rows of the output must not change. */
static void run_rows(int device, const char *id, const problem *x, int64_t rows) {
    const shape *s = &x->s;
    const int64_t first = s->seq - rows;
    const size_t n = (size_t)(rows * x->ldo);
    float *start = tu_random(n, 77, 1.0f);
    const float *want = x->o + first * x->ldo;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = x->wide; c < x->ldo; c++) start[r * x->ldo + c] = want[r * x->ldo + c];
    clt_ref kv = tu_upload_as(device, s->type, x->kv, x->n_kv), o = tu_upload_as(device, s->type, start, n);
    clt_attention_params p = call_of(x);
    p.q.ref = tu_upload_as(device, s->type, x->q + first * x->wide, (size_t)(rows * x->wide));
    p.k.ref = kv, p.v.ref = clt_ref_at(kv, (uint64_t)(x->ldkv / 2)), p.o.ref = o;
    if (s->alibi) p.slopes = tu_upload(device, x->slopes, (size_t)s->heads);
    char what[96];
    snprintf(what, sizeof what, "%s, sequence %lld, last %lld rows", id, (long long)s->seq, (long long)rows);
    tu_assert_ok(clt_op_attention_last(tu_ops(device), &p, rows), what);
    tu_assert_words(what, tu_download_as(o, s->type, n), want, n);
    tu_release();
    clt_free(start);
}

static void run_variant(int device, const char *id) {
    const shape *list = tu_tiny() ? tiny_cases : cases;
    const size_t n = tu_tiny() ? CLT_COUNT_OF(tiny_cases) : CLT_COUNT_OF(cases);
    for (size_t c = 0; c < n; c++) {
        problem x = make(&list[c], 10 * c + 1);
        solve(&x);
        run_rows(device, id, &x, 1);
        if (x.s.seq > 3) run_rows(device, id, &x, 3);
        if (!tu_tiny()) run_rows(device, id, &x, x.s.seq);
        destroy(&x);
    }
}

static void variants_match_oracle(void **state) {
    (void)state;
    tu_each_variant("attention_last", run_variant);
}

static void others_are_refused(void **state) {
    (void)state;
    const clt_attention_params good = {
        .batch = 1, .seq = 8, .heads = 2, .kv_heads = 1, .head_dim = 4, .window = -1};
    clt_attention_params p[4] = {good, good, good, good};
    p[0].batch = 2;
    p[1].dropout = 0.5f;
    p[2].seq_ids = tu_upload_i32(0, (const int32_t[8]){0}, 8);
    p[3].kv_heads = 3;
    for (size_t i = 0; i < CLT_COUNT_OF(p); i++)
        assert_int_equal(clt_op_attention_last(tu_ops(0), &p[i], 1), CLT_FAIL);
    assert_int_equal(clt_op_attention_last(tu_ops(0), &good, 0), CLT_FAIL);
    assert_int_equal(clt_op_attention_last(tu_ops(0), &good, 9), CLT_FAIL);
    tu_release();
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(variants_match_oracle),
                                       cmocka_unit_test(others_are_refused)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
