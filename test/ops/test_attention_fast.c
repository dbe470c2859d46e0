/* Attention with numerics fast: every row that may differ from the oracle's bits is compared with the formula
 * in double within its bound. Packed and padded layouts with NaN in everything outside the tensors, ragged
 * lengths, large scores, one-hot weights, windows of one key. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_attention_internal.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/attention_util.h"

typedef enum { PLAIN, LARGE, ONE_HOT, SAME } values;

typedef struct {
    int64_t batch, seq, heads, kv_heads, head_dim;
    clt_dtype type;
    bool packed, alibi, ids, unmasked; /* unmasked: without the causal mask */
    int64_t window;                    /* 0: off; n: n - 1 */
    float softcap, dropout, scale;     /* scale 0: the usual one */
    values values;
} shape;

static const shape cases[] = {
    {2, 63, 2, 1, 64, CLT_BF16, .packed = true},
    {2, 65, 2, 2, 128, CLT_F16, .packed = true},
    {1, 1, 1, 1, 64, CLT_BF16},
    {3, 1, 2, 2, 128, CLT_BF16},
    {1, 64, 1, 1, 64, CLT_F16},
    {1, 128, 2, 2, 128, CLT_BF16},
    {1, 192, 2, 2, 64, CLT_BF16},
    {2, 193, 4, 1, 64, CLT_F16, .packed = true},
    {1, 129, 3, 1, 80, CLT_BF16, .packed = true},
    {2, 257, 2, 2, 96, CLT_BF16},
    {2, 1000, 6, 2, 64, CLT_BF16, .packed = true},
    {3, 1000, 4, 2, 128, CLT_BF16, .packed = true},
    {8, 200, 40, 40, 64, CLT_BF16}, /* several tiles per work-group */
    {8, 130, 40, 20, 128, CLT_BF16, .packed = true},
    {1, 2048, 3, 3, 64, CLT_F16},
    {1, 2048, 3, 3, 128, CLT_F16},
    {2, 200, 2, 2, 8, CLT_BF16},
    {1, 200, 3, 3, 40, CLT_F16, .packed = true},
    {1, 200, 2, 1, 72, CLT_BF16},
    {2, 333, 2, 2, 112, CLT_BF16, .packed = true, .alibi = true},
    {2, 300, 4, 4, 64, CLT_BF16, .alibi = true, .packed = true},
    {2, 300, 4, 4, 128, CLT_F16, .alibi = true},
    {2, 300, 2, 1, 64, CLT_BF16, .softcap = 5.0f},
    {2, 300, 2, 1, 128, CLT_BF16, .softcap = 5.0f, .alibi = true},
    {1, 500, 2, 2, 64, CLT_BF16, .window = 1},
    {1, 500, 2, 2, 128, CLT_BF16, .window = 1},
    {2, 700, 2, 1, 64, CLT_BF16, .window = 101},
    {2, 700, 2, 1, 128, CLT_F16, .window = 301},
    {2, 500, 2, 2, 64, CLT_BF16, .ids = true},
    {2, 500, 2, 2, 128, CLT_BF16, .ids = true, .window = 71, .softcap = 3.0f, .alibi = true, .packed = true},
    {1, 300, 2, 2, 64, CLT_BF16, .values = LARGE},
    {1, 300, 2, 2, 128, CLT_F16, .values = LARGE},
    {1, 300, 2, 2, 64, CLT_BF16, .values = ONE_HOT},
    {1, 300, 2, 2, 128, CLT_BF16, .values = ONE_HOT, .alibi = true},
    {1, 300, 2, 2, 128, CLT_F16, .values = SAME},
    {1, 1, 1, 1, 64, CLT_BF16, .unmasked = true},
    {2, 128, 4, 2, 128, CLT_BF16, .unmasked = true, .packed = true},
    {1, 1024, 2, 2, 64, CLT_F16, .unmasked = true},
    {8, 197, 40, 40, 80, CLT_BF16, .unmasked = true, .packed = true}, /* several tiles per work-group */
    {2, 197, 3, 3, 64, CLT_BF16, .unmasked = true, .packed = true},
    {2, 257, 4, 4, 80, CLT_BF16, .unmasked = true, .packed = true},
    {1, 257, 4, 2, 128, CLT_F16, .unmasked = true, .alibi = true},
    {2, 300, 2, 1, 64, CLT_BF16, .unmasked = true, .window = 101, .softcap = 5.0f},
    {1, 500, 2, 2, 80, CLT_F16, .unmasked = true, .window = 71, .ids = true, .packed = true},
    {1, 300, 2, 2, 64, CLT_BF16, .unmasked = true, .values = LARGE},
    {1, 280, 2, 1, 64, CLT_BF16, .alibi = true}, /* from here on also where warps are emulated */
    {1, 200, 2, 2, 64, CLT_F16, .alibi = true, .window = 71},
    {1, 290, 1, 1, 128, CLT_BF16, .alibi = true, .window = 101},
    {1, 250, 2, 1, 64, CLT_BF16, .unmasked = true, .window = 31, .ids = true},
    {1, 199, 2, 1, 64, CLT_F16, .dropout = 0.25f},
    {1, 150, 2, 1, 128, CLT_BF16, .dropout = 0.1f, .window = 71, .ids = true, .alibi = true},
    {2, 66, 2, 2, 80, CLT_BF16, .unmasked = true, .dropout = 0.25f, .softcap = 5.0f},
    {1, 130, 2, 2, 64, CLT_BF16, .scale = -0.125f},
    {1, 130, 1, 1, 128, CLT_F16, .scale = -0.1f, .alibi = true, .unmasked = true},
};

/* One matrix of tokens on host and device: `ld` elements per row, of which `cols` belong to tensors. */
typedef struct {
    float *host;
    clt_ref ref;
    size_t n;
} matrix;

enum { PAD = 8, ALIGNED = 40, TINY_ELEMENTS = 40000 };

static matrix make_matrix(int device, const shape *s, int64_t cols, int64_t ld, uint64_t seed, float scale) {
    int64_t rows = s->batch * s->seq;
    matrix m = {.n = (size_t)(rows * ld)};
    m.host = tu_random(m.n, seed, scale);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = cols; c < ld; c++) m.host[r * ld + c] = NAN;
    clt_ref_round(s->type, m.host, m.n);
    uint16_t *stored = clt_calloc(m.n + 1, sizeof *stored);
    clt_ref_narrow(s->type, m.host, m.n, stored);
    clt_ref words = tu_upload_at(device, stored, (m.n + 1) / 2, ALIGNED);
    clt_free(stored);
    m.ref = (clt_ref){words.buf, 2 * words.off};
    return m;
}

static float *read_matrix(const shape *s, const matrix *m) {
    const float *words = tu_download((clt_ref){m->ref.buf, m->ref.off / 2}, (m->n + 1) / 2);
    float *x = clt_malloc(m->n * sizeof *x);
    clt_ref_widen(s->type, words, m->n, x);
    return x;
}

typedef struct {
    shape s;
    matrix m[4]; /* q (or q, k and v), k, v, o */
    float *slopes;
    int32_t *ids;
    clt_attention_params p;
    clt_ref_attention_params ref;
} problem;

/* Scores so large that only the maximum keeps them in range; one key with all the weight; equal keys. */
static float scale_of(const shape *s) {
    return s->values == LARGE ? 30.0f : s->values == ONE_HOT ? 8.0f : s->values == SAME ? 0.0f : 1.5f;
}

static void make_tensors(int device, problem *x, clt_tensor at[3], const float *host[3]) {
    const shape *s = &x->s;
    int64_t wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim, all = wide + 2 * narrow;
    float scale = scale_of(s);
    if (s->packed) {
        x->m[0] = make_matrix(device, s, all, all + PAD, 1, scale);
        const int64_t first[3] = {0, wide, wide + narrow};
        for (int i = 0; i < 3; i++) {
            at[i] = clt_tensor_at(clt_tensor_of(x->m[0].ref, all + PAD, s->type), 0, first[i]);
            host[i] = x->m[0].host + first[i];
        }
        return;
    }
    for (int i = 0; i < 3; i++) {
        int64_t cols = i ? narrow : wide;
        x->m[i] = make_matrix(device, s, cols, cols + PAD, 1 + (uint64_t)i, i == 2 ? 1.5f : scale);
        at[i] = clt_tensor_of(x->m[i].ref, cols + PAD, s->type);
        host[i] = x->m[i].host;
    }
}

static problem *make_problem(int device, const shape *s) {
    problem *x = clt_calloc(1, sizeof *x);
    x->s = *s;
    int64_t wide = s->heads * s->head_dim, tokens = s->batch * s->seq;
    clt_tensor at[3];
    const float *host[3];
    make_tensors(device, x, at, host);
    x->m[3] = make_matrix(device, s, 0, wide + PAD, 9, 1.0f); /* all NaN */
    x->slopes = tu_random((size_t)s->heads, 10, 0.25f);
    x->ids = clt_malloc((size_t)tokens * sizeof *x->ids);
    for (int64_t i = 0; i < tokens; i++) x->ids[i] = (int32_t)(i % s->seq / 150 + i % 2 * (i % s->seq > 400));
    x->p = (clt_attention_params){.batch = s->batch,
                                  .seq = s->seq,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim};
    clt_attention_params *p = &x->p;
    p->q = at[0], p->k = at[1], p->v = at[2], p->o = clt_tensor_of(x->m[3].ref, wide + PAD, s->type);
    p->lse = tu_blank(device, (size_t)(tokens * s->heads));
    p->scale = s->scale != 0.0f ? s->scale : 1.0f / sqrtf((float)s->head_dim);
    p->dropout = s->dropout, p->seed = 77, p->step = 3, p->softcap = s->softcap, p->window = s->window - 1;
    p->mask = s->unmasked ? CLT_MASK_NONE : CLT_MASK_CAUSAL;
    if (s->alibi) p->slopes = tu_upload(device, x->slopes, (size_t)s->heads);
    if (s->ids) p->seq_ids = tu_upload_i32(device, x->ids, (size_t)tokens);
    x->ref = clt_ref_attention_of(p);
    clt_ref_attention_params *r = &x->ref;
    r->q = host[0], r->k = host[1], r->v = host[2];
    r->slopes = s->alibi ? x->slopes : NULL, r->seq_ids = s->ids ? x->ids : NULL;
    return x;
}

static void free_problem(problem *x) {
    for (int i = 0; i < 4; i++) clt_free(x->m[i].host);
    clt_free(x->slopes);
    clt_free(x->ids);
    clt_free(x);
}

static void row_is_close(const problem *x, const char *what, const float *o, const float *lse,
                         clt_ref_attention_at at) {
    const shape *s = &x->s;
    double want[128], bound[128];
    clt_ref_attention_bound e = clt_ref_attention_row(&x->ref, s->type, at, want, bound);
    double got = (double)lse[(at.sample * s->heads + at.head) * s->seq + at.row];
    if (!(fabs(got - e.lse) <= e.lse_bound))
        fail_msg("%s: log-sum-exp of sample %lld, head %lld, row %lld is %.9g, not %.9g", what,
                 (long long)at.sample, (long long)at.head, (long long)at.row, got, e.lse);
    for (int64_t d = 0; d < s->head_dim; d++) {
        double y = (double)o[(at.sample * s->seq + at.row) * x->p.o.ld + at.head * s->head_dim + d];
        if (!(fabs(y - want[d]) <= bound[d]))
            fail_msg("%s: sample %lld, head %lld, row %lld, element %lld is %.9g, not %.9g (bound %.3g)",
                     what, (long long)at.sample, (long long)at.head, (long long)at.row, (long long)d, y,
                     want[d], bound[d]);
    }
}

/* Every row of short problems, every 13th of long ones, and the last. */
static void output_is_close(const problem *x, const char *what) {
    const shape *s = &x->s;
    float *o = read_matrix(s, &x->m[3]), *lse = tu_download(x->p.lse, (size_t)(s->batch * s->heads * s->seq));
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i<s->seq; i += s->seq> 200 && i < s->seq - 14 ? 13 : 1)
                row_is_close(x, what, o, lse, (clt_ref_attention_at){b, h, i});
    for (int64_t r = 0; r < s->batch * s->seq; r++)
        for (int64_t c = 0; c < x->p.o.ld; c++)
            if (isnan(o[r * x->p.o.ld + c]) != (c >= s->heads * s->head_dim))
                fail_msg("%s: row %lld, column %lld is %s", what, (long long)r, (long long)c,
                         c >= s->heads * s->head_dim ? "overwritten" : "NaN");
    clt_free(o);
}

/* --- random cases --- */

static shape drawn[10000];
static const shape *list = cases;
static size_t n_list = CLT_COUNT_OF(cases);

static shape draw(void) {
    const attention_shape a = attention_shape_draw(3200000);
    return (shape){.batch = a.batch,
                   .seq = a.seq,
                   .heads = a.heads,
                   .kv_heads = a.kv_heads,
                   .head_dim = a.head_dim,
                   .type = a.type,
                   .window = a.window,
                   .softcap = a.softcap,
                   .dropout = a.dropout,
                   .alibi = a.alibi,
                   .ids = a.ids,
                   .unmasked = a.unmasked,
                   .packed = a.fused};
}

static void draw_cases(void) {
    if (!tu_random_cases()) return;
    n_list = (size_t)CLT_MIN(tu_random_cases(), (int)CLT_COUNT_OF(drawn));
    for (size_t i = 0; i < n_list; i++) drawn[i] = draw();
    list = drawn;
}

/* Runs the cases that the row supports, or only the first of them; returns their number. */
static int run_row(int device, clt_ops *ops, const clt_variant *v, bool one) {
    int n = 0;
    for (size_t c = 0; c < n_list && !(one && n); c++) {
        const shape *s = &list[c];
        if (tu_tiny() && s->batch * s->heads * s->seq * s->head_dim > TINY_ELEMENTS) continue;
        problem *x = make_problem(device, s);
        const bool takes = clt_attention_takes_forward(v, &x->p);
        if (takes && (n == 0 || !tu_left_out())) {
            char what[160];
            snprintf(what, sizeof what, "%s, case %zu: B%d T%d H%d/%d D%d, window %d", v->id, c,
                     (int)s->batch, (int)s->seq, (int)s->heads, (int)s->kv_heads, (int)s->head_dim,
                     (int)s->window);
            tu_say_random(what);
            tu_assert_ok(clt_op_attention_forward(ops, &x->p), what);
            output_is_close(x, what);
        }
        n += takes;
        free_problem(x);
        tu_release();
    }
    return n;
}

static void fast_rows_are_close(void **state) {
    (void)state;
    int ran = 0;
    for (int d = 0; d < tu_device_count(); d++) {
        clt_ops *ops = tu_fast_ops(d);
        int n;
        const clt_variant *row = clt_ops_variants(ops, "attention", &n);
        for (int i = 0; i < n; i++) {
            if (!strstr(row[i].requires, "numerics=fast") || !tu_wants_row(row[i].id)) continue;
            tu_assert_ok(clt_variant_force(ops, "attention", row[i].id), "clt_variant_force");
            int done = run_row(d, ops, &row[i], tu_only_other_tiles(row, i));
            print_message("[          ]   attention=%s on %s: %d cases\n", row[i].id, tu_device_name(d),
                          done);
            assert_true(done > 0 || tu_random_cases());
            ran++;
        }
        clt_ops_destroy(ops);
    }
    if (!ran) print_message("[ skipped  ] no device here has a row of attention that needs numerics: fast\n");
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    draw_cases();
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_rows_are_close)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
