/* The backward pass of attention with numerics fast: every row that may differ from the oracle's bits is
 * compared with the formula in double, within the bound of clt_ref_attention_gradients; three runs must give
 * the same bits. Tensors are in a buffer of NaNs, with NaNs between and after their rows, and so is the spare
 * memory. Every row that supports a case runs it. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_attention_internal.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/attention_util.h"

typedef struct {
    int64_t batch, seq, heads, kv_heads, head_dim;
    clt_dtype type;
    int64_t window; /* 0: off; n: n - 1 */
    float softcap, amplitude, dropout;
    bool alibi, ids, accumulate;
    bool unmasked;         /* without the causal mask */
    bool one_hot;          /* queries and keys such that every row sees only one key */
    bool fused;            /* q, k and v side by side in one matrix */
    int64_t heads_at_once; /* query heads whose ds fits the spare memory; 0: no such memory */
} shape;

static const shape cases[] = {
    {2, 63, 2, 2, 64, CLT_BF16, .fused = true},
    {1, 1, 1, 1, 64, CLT_BF16},
    {2, 65, 2, 1, 64, CLT_F16},
    {1, 128, 2, 2, 64, CLT_BF16},
    {2, 200, 4, 2, 64, CLT_BF16, .fused = true, .accumulate = true, .heads_at_once = 8},
    {1, 1000, 2, 1, 64, CLT_BF16, .fused = true},
    {1, 300, 2, 2, 64, CLT_BF16, .amplitude = 16},
    {1, 300, 2, 2, 64, CLT_F16, .amplitude = 8},
    {1, 200, 1, 1, 64, CLT_BF16, .one_hot = true},
    {2, 300, 4, 2, 64, CLT_BF16, .alibi = true},
    {1, 300, 2, 1, 64, CLT_BF16, .softcap = 2.5f},
    {1, 500, 2, 1, 64, CLT_BF16, .window = 101},
    {1, 300, 2, 1, 64, CLT_BF16, .window = 1},
    {2, 300, 2, 1, 64, CLT_F16, .ids = true, .accumulate = true},
    {2, 260, 4, 2, 64, CLT_BF16, .alibi = true, .softcap = 1.5f, .window = 171, .ids = true, .fused = true},
    {1, 257, 3, 3, 80, CLT_BF16, .fused = true},
    {1, 300, 2, 1, 80, CLT_F16, .alibi = true},
    {2, 190, 2, 1, 96, CLT_BF16, .fused = true, .window = 70},
    {1, 63, 2, 2, 128, CLT_BF16},
    {1, 70, 2, 1, 128, CLT_F16},
    {2, 64, 2, 1, 128, CLT_BF16, .heads_at_once = 2},
    {2, 257, 4, 2, 128, CLT_BF16, .alibi = true, .fused = true, .heads_at_once = 5},
    {3, 600, 4, 4, 128, CLT_F16, .accumulate = true, .heads_at_once = 4},
    {1, 1000, 2, 1, 128, CLT_BF16, .fused = true},
    {1, 300, 2, 2, 128, CLT_F16, .accumulate = true},
    {2, 260, 4, 2, 128, CLT_BF16, .alibi = true, .softcap = 1.5f, .window = 171, .ids = true, .fused = true},
    {1, 1, 1, 1, 64, CLT_BF16, .unmasked = true},
    {2, 63, 2, 2, 64, CLT_BF16, .unmasked = true, .fused = true},
    {2, 257, 4, 4, 80, CLT_BF16, .unmasked = true, .fused = true},
    {3, 197, 3, 3, 80, CLT_F16, .unmasked = true, .accumulate = true},
    {2, 128, 2, 1, 96, CLT_BF16, .unmasked = true},
    {1, 1000, 4, 2, 64, CLT_F16, .unmasked = true, .fused = true},
    {2, 321, 2, 2, 128, CLT_BF16, .unmasked = true, .softcap = 2.5f},
    {2, 300, 2, 1, 64, CLT_BF16, .unmasked = true, .ids = true},
    {1, 300, 2, 2, 80, CLT_BF16, .unmasked = true, .amplitude = 16},
    {40, 65, 16, 16, 80, CLT_BF16, .unmasked = true, .fused = true},
    {1, 200, 2, 1, 64, CLT_BF16, .dropout = 0.25f},
    {1, 70, 2, 1, 64, CLT_F16, .dropout = 0.1f, .unmasked = true},
    {1, 200, 1, 1, 128, CLT_BF16, .dropout = 0.25f, .alibi = true},
    /* More items for each persistent work-group than places for their descriptions (TURNS), on up to 200
       units. */
    {90, 9, 12, 12, 64, CLT_BF16, .heads_at_once = 1080},
    {90, 12, 12, 12, 128, CLT_BF16, .heads_at_once = 1080},
    {60, 10, 18, 18, 128, CLT_F16},
};

enum { Q, K, V, O, DOUT, DQ, DK, DV, TENSORS };
static const char *const name_of[TENSORS] = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"};
enum { TINY_ELEMENTS = 36000 };
enum { GAP = 64, PAD = 8 }; /* elements of NaN between tensors and at the end of a row */

typedef struct {
    shape s;
    clt_ref_attention_params p;
    float *host; /* all tensors, as in the device's buffer */
    float *lse, *slopes;
    int32_t *ids;
    size_t at[TENSORS], total;
    int64_t ld[TENSORS];
    clt_buffer *data, *stat, *spare;
    size_t spare_bytes;
} problem;

static int64_t width(const shape *s, int t) {
    return s->head_dim * (t == K || t == V || t == DK || t == DV ? s->kv_heads : s->heads);
}

/* Places of the tensors. Fused: q, k and v (and their gradients) in the columns of one matrix. */
static void place_tensors(problem *x) {
    const shape *s = &x->s;
    int64_t rows = s->batch * s->seq, all = (s->heads + 2 * s->kv_heads) * s->head_dim + PAD;
    size_t at = GAP;
    for (int t = 0; t < TENSORS; t++) {
        bool joins = s->fused && (t == K || t == V || t == DK || t == DV);
        x->ld[t] = s->fused && t != O && t != DOUT ? all : width(s, t) + PAD;
        x->at[t] = joins ? x->at[t - 1] + (size_t)width(s, t - 1) : at;
        if (!joins) at += CLT_ROUND_UP((size_t)(rows * x->ld[t]), GAP) + GAP;
    }
    x->total = at + (size_t)(64 * all);
}

static void fill(problem *x) {
    const shape *s = &x->s;
    int64_t rows = s->batch * s->seq;
    for (size_t i = 0; i < x->total; i++) x->host[i] = NAN;
    for (int t = 0; t < TENSORS; t++) {
        int64_t n = width(s, t);
        float *from =
            tu_random((size_t)(rows * n), 40 + (uint64_t)t, s->amplitude > 0 && t != DOUT ? s->amplitude : 1);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < n; c++) {
                float v = from[r * n + c];
                if (s->one_hot && (t == Q || t == K)) v = (r * 7 % 50 + c) % 50 == 0 ? 30.0f : 0.0f;
                x->host[x->at[t] + (size_t)(r * x->ld[t] + c)] = v;
            }
        clt_free(from);
    }
    clt_ref_round(s->type, x->host, x->total);
    x->slopes = tu_random((size_t)s->heads, 50, 0.25f);
    x->ids = clt_malloc((size_t)rows * sizeof *x->ids);
    for (int64_t i = 0; i < rows; i++) x->ids[i] = (int32_t)(i / 45);
}

static void make_oracle(problem *x) {
    const shape *s = &x->s;
    float *t[TENSORS];
    for (int i = 0; i < TENSORS; i++) t[i] = x->host + x->at[i];
    x->lse = clt_malloc((size_t)(s->batch * s->heads * s->seq) * sizeof(float));
    x->p = (clt_ref_attention_params){
        .batch = s->batch, .seq = s->seq, .heads = s->heads, .kv_heads = s->kv_heads};
    clt_ref_attention_params *p = &x->p;
    p->head_dim = s->head_dim, p->scale = 1.0f / sqrtf((float)s->head_dim), p->softcap = s->softcap;
    p->mask = s->unmasked ? CLT_MASK_NONE : CLT_MASK_CAUSAL;
    p->dropout = s->dropout, p->seed = 7, p->step = 3, p->layer = 2;
    p->window = s->window - 1, p->slopes = s->alibi ? x->slopes : NULL, p->seq_ids = s->ids ? x->ids : NULL;
    p->q = t[Q], p->k = t[K], p->v = t[V], p->o = t[O], p->lse = x->lse, p->dout = t[DOUT];
    p->dq = t[DQ], p->dk = t[DK], p->dv = t[DV];
    p->ldq = x->ld[Q], p->ldk = x->ld[K], p->ldv = x->ld[V], p->ldo = x->ld[O], p->lddout = x->ld[DOUT];
    p->lddq = x->ld[DQ], p->lddk = x->ld[DK], p->lddv = x->ld[DV], p->accumulate_kv = s->accumulate;
    clt_ref_attention_forward(p);
    clt_ref_round(s->type, x->host, x->total);
}

static void upload(problem *x) {
    void *packed = clt_malloc(x->total * 2);
    clt_ref_narrow(x->s.type, x->host, x->total, packed);
    tu_assert_ok(clt_buffer_write(x->data, 0, packed, x->total * 2), "write");
    clt_free(packed);
}

static void make_buffers(problem *x, clt_device *dev, clt_attention_grad_params *g) {
    const shape *s = &x->s;
    size_t stats = (size_t)(s->batch * s->heads * s->seq), ids = (size_t)(s->batch * s->seq),
           slopes = (size_t)s->heads;
    tu_assert_ok(clt_buffer_create(dev, x->total * 2, "test", &x->data), "buffer");
    tu_assert_ok(clt_buffer_create(dev, (stats + slopes + ids) * 4, "test", &x->stat), "buffer");
    tu_assert_ok(clt_buffer_write(x->stat, 0, x->lse, stats * 4), "write");
    tu_assert_ok(clt_buffer_write(x->stat, stats * 4, x->slopes, slopes * 4), "write");
    tu_assert_ok(clt_buffer_write(x->stat, (stats + slopes) * 4, x->ids, ids * 4), "write");
    clt_attention_params *p = &g->fwd;
    clt_tensor *const to[TENSORS] = {&p->q, &p->k, &p->v, &p->o, &g->dout, &g->dq, &g->dk, &g->dv};
    *g = (clt_attention_grad_params){.accumulate_kv = s->accumulate};
    for (int t = 0; t < TENSORS; t++) *to[t] = clt_tensor_of((clt_ref){x->data, x->at[t]}, x->ld[t], s->type);
    p->mask = s->unmasked ? CLT_MASK_NONE : CLT_MASK_CAUSAL;
    p->batch = s->batch, p->seq = s->seq, p->heads = s->heads, p->kv_heads = s->kv_heads,
    p->head_dim = s->head_dim;
    p->dropout = x->p.dropout, p->seed = x->p.seed, p->step = x->p.step, p->layer = x->p.layer;
    p->lse = (clt_ref){x->stat, 0}, p->scale = x->p.scale, p->softcap = s->softcap, p->window = x->p.window;
    if (x->spare_bytes) {
        float *nan = clt_malloc(x->spare_bytes + 2 * GAP);
        for (size_t i = 0; i < (x->spare_bytes + 2 * GAP) / 4; i++) nan[i] = NAN;
        tu_assert_ok(clt_buffer_create(dev, x->spare_bytes + 2 * GAP, "test", &x->spare), "buffer");
        tu_assert_ok(clt_buffer_write(x->spare, 0, nan, x->spare_bytes + 2 * GAP), "write");
        g->spare = (clt_ref){x->spare, GAP / 2}, g->spare_elements = x->spare_bytes / 2;
        clt_free(nan);
    }
    if (s->alibi) p->slopes = (clt_ref){x->stat, stats};
    if (s->ids) p->seq_ids = (clt_ref){x->stat, stats + slopes};
}

/* Largest error as a part of its bound. */
static double worst(const problem *x, int t, const float *got, const double *want, const double *bound) {
    int64_t n = width(&x->s, t), rows = x->s.batch * x->s.seq;
    double most = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < n; c++) {
            double v = (double)got[x->at[t] + (size_t)(r * x->ld[t] + c)], w = want[r * n + c],
                   b = bound[r * n + c];
            if (!(fabs(v - w) <= b))
                fail_msg("%s[%lld, %lld]: %.9g, the formula gives %.9g, bound %.3g", name_of[t], (long long)r,
                         (long long)c, v, w, b);
            most = fmax(most, b > 0 ? fabs(v - w) / b : 0);
        }
    return most;
}

/* Everything except the gradients' elements is unchanged. */
static void untouched(const problem *x, const float *got) {
    bool *mine = clt_calloc(x->total, sizeof *mine);
    for (int t = DQ; t <= DV; t++)
        for (int64_t r = 0; r < x->s.batch * x->s.seq; r++)
            for (int64_t c = 0; c < width(&x->s, t); c++) mine[x->at[t] + (size_t)(r * x->ld[t] + c)] = true;
    for (size_t i = 0; i < x->total; i++)
        if (!mine[i] && memcmp(&got[i], &x->host[i], 4) != 0 && !(isnan(got[i]) && isnan(x->host[i])))
            fail_msg("element %zu was written, which belongs to no gradient", i);
    clt_free(mine);
}

static void compare(problem *x, const uint16_t *bits, const char *label) {
    size_t wide = (size_t)(x->s.batch * x->s.seq * width(&x->s, Q)),
           narrow = (size_t)(x->s.batch * x->s.seq * width(&x->s, K));
    float *got = clt_malloc(x->total * sizeof *got);
    clt_ref_widen(x->s.type, bits, x->total, got);
    untouched(x, got);
    double *w = clt_malloc((2 * wide + 4 * narrow) * sizeof *w), *u = w + 2 * wide;
    clt_ref_attention_gradients_out g = {w, u, u + narrow, w + wide, u + 2 * narrow, u + 3 * narrow};
    clt_ref_attention_gradients(&x->p, x->s.type, &g);
    double q = worst(x, DQ, got, g.dq, g.dq_bound), k = worst(x, DK, got, g.dk, g.dk_bound);
    print_message("%s: dq %.2f dk %.2f dv %.2f of the bound\n", label, q, k,
                  worst(x, DV, got, g.dv, g.dv_bound));
    clt_free(w);
    clt_free(got);
}

/* The bytes before and after the spare memory are unchanged. */
static void keeps_to_itself(const problem *x) {
    float edge[2][GAP / 4];
    if (!x->spare) return;
    tu_assert_ok(clt_buffer_read(x->spare, 0, edge[0], GAP), "read");
    tu_assert_ok(clt_buffer_read(x->spare, GAP + x->spare_bytes, edge[1], GAP), "read");
    for (int i = 0; i < 2 * GAP / 4; i++)
        if (!isnan(edge[i / (GAP / 4)][i % (GAP / 4)])) fail_msg("memory outside the spare was written");
}

static void compare_runs(clt_ops *ops, problem *x, const clt_attention_grad_params *g, const char *row,
                         const char *label) {
    assert_string_equal(clt_op_attention_backward_variant(ops, g), row);
    uint16_t *first = clt_malloc(x->total * 2), *again = clt_malloc(x->total * 2);
    for (int i = 0; i < 3; i++) {
        upload(x);
        tu_assert_ok(clt_op_attention_backward(ops, g), label);
        tu_assert_ok(clt_buffer_read(x->data, 0, i ? again : first, x->total * 2), label);
        if (i && memcmp(first, again, x->total * 2) != 0) fail_msg("%s: run %d has different bits", label, i);
    }
    compare(x, first, label);
    keeps_to_itself(x);
    clt_free(first);
    clt_free(again);
}

/* false: the row does not support the case. Otherwise it runs, if it is the first one or tu_left_out agrees.
 */
static bool run_case(clt_ops *ops, const shape *s, const clt_variant *v, bool first) {
    const char *row = v->id;
    char label[96];
    snprintf(label, sizeof label, "%s B%d T%d H%d/%d D%d type %d", row, (int)s->batch, (int)s->seq,
             (int)s->heads, (int)s->kv_heads, (int)s->head_dim, (int)s->type);
    const size_t tiles = (size_t)(s->seq + 63) / 64, head = tiles * (tiles + 1) / 2 * 64 * 64 * 2;
    problem x = {.s = *s, .spare_bytes = head * (size_t)s->heads_at_once};
    tu_assert_ok(clt_variant_force(ops, "attention_backward", row), row);
    clt_attention_grad_params g;
    place_tensors(&x);
    x.host = clt_malloc(x.total * sizeof *x.host);
    fill(&x);
    make_oracle(&x);
    make_buffers(&x, clt_ops_device(ops), &g);
    const bool takes = clt_attention_takes_backward(v, &g);
    if (takes) tu_say_random(label);
    if (takes && (first || !tu_left_out())) compare_runs(ops, &x, &g, row, label);
    clt_free(x.host);
    clt_free(x.lse);
    clt_free(x.slopes);
    clt_free(x.ids);
    clt_buffer_destroy(x.data);
    clt_buffer_destroy(x.stat);
    clt_buffer_destroy(x.spare);
    return takes;
}

/* --- random cases --- */

static shape drawn[10000];
static const shape *list = cases;
static size_t n_list = CLT_COUNT_OF(cases);

static shape draw(void) {
    const attention_shape a = attention_shape_draw(1600000);
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
                   .fused = a.fused,
                   .accumulate = a.accumulate,
                   .heads_at_once = tu_one_in(2) ? 1 + tu_draw(a.batch * a.heads) : 0};
}

static void draw_cases(void) {
    if (!tu_random_cases()) return;
    n_list = (size_t)CLT_MIN(tu_random_cases(), (int)CLT_COUNT_OF(drawn));
    for (size_t i = 0; i < n_list; i++) drawn[i] = draw();
    list = drawn;
}

static bool is_tiny(const shape *s) {
    return s->batch * s->heads * s->seq * s->head_dim <= TINY_ELEMENTS;
}

static int cases_without_dropout(void) {
    int n = 0;
    for (size_t c = 0; c < n_list; c++) n += list[c].dropout == 0.0f;
    return n;
}

static void backward_is_within_the_bound(void **state) {
    (void)state;
    int ran = 0;
    for (int i = 0; i < tu_device_count(); i++) {
        clt_ops *ops;
        clt_ops_params p = clt_ops_params_default();
        p.numerics = CLT_FAST, p.skip_check = true;
        tu_assert_ok(clt_ops_create(tu_device(i), &p, &ops), "ops");
        int rows;
        const clt_variant *row = clt_ops_variants(ops, "attention_backward", &rows);
        for (int r = 0; r < rows; r++) {
            if (!strstr(row[r].requires, "numerics=fast") || !tu_wants_row(row[r].id)) continue;
            const bool one = tu_only_other_tiles(row, r); /* then the first case that it supports */
            int done = 0;
            for (size_t c = 0; c < n_list && !(one && done); c++)
                if (!tu_tiny() || is_tiny(&list[c])) done += run_case(ops, &list[c], &row[r], done == 0);
            print_message("%s on %s: %d cases\n", row[r].id, tu_device_name(i), done);
            assert_true(done > 0 || tu_random_cases());
            /* The one row that all cases without dropout are made for: it must not refuse any. */
            if (!strcmp(row[r].id, "wgmma") && !tu_tiny() && !tu_random_cases())
                assert_int_equal(done, cases_without_dropout());
            ran++;
        }
        clt_ops_destroy(ops);
    }
    if (!ran)
        print_message("skipped: no device here has a row of attention_backward that needs numerics: fast\n");
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    draw_cases();
    const struct CMUnitTest tests[] = {cmocka_unit_test(backward_is_within_the_bound)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
