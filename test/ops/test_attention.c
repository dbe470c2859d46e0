/* Attention: the oracle against the formula in double and finite differences, and every body on every device
 * against the oracle, to the last bit. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/clt_op_attention_internal.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

typedef struct {
    int64_t batch, seq, heads, kv_heads, head_dim;
    bool alibi, ids;
    float softcap, dropout, amplitude; /* of the inputs; 0: 1 */
    int64_t window;                    /* 0: off; n: n - 1 */
    bool fused, accumulate, extreme;
    int rows; /* work-group bodies differ by their tile only: which of them gets this case; 0: the smallest
                 and, from 65 elements up, the one for long heads; -1: none */
    clt_dtype type;
} shape;

static const shape cases[] = {
    {1, 1, 1, 1, 4},
    {2, 7, 2, 2, 4},
    {1, 63, 2, 1, 16, .fused = true},
    {2, 64, 2, 2, 16},
    {1, 65, 3, 3, 24},
    {1, 66, 1, 1, 5},
    {2, 127, 4, 2, 64, .fused = true, .rows = 64},
    {1, 256, 2, 2, 64, .fused = true, .rows = 64},
    {1, 200, 4, 1, 64, .accumulate = true, .rows = 64},
    {1, 130, 2, 1, 64, .amplitude = 40.0f, .rows = 64},
    {1, 70, 2, 1, 64, .extreme = true, .rows = 64},
    {1, 129, 2, 2, 80},
    {2, 65, 2, 1, 96, .fused = true, .rows = 32},
    {1, 192, 2, 2, 128, .fused = true},
    {1, 70, 2, 1, 201, .type = CLT_BF16, .alibi = true, .ids = true, .accumulate = true},
    {2, 150, 3, 1, 16, .alibi = true, .fused = true, .rows = -1},
    {2, 150, 2, 2, 16, .softcap = 2.5f, .ids = true, .rows = -1},
    {2, 150, 2, 1, 16, .window = 34},
    {1, 200, 2, 1, 16, .window = 1},
    {1, 300, 1, 1, 16, .window = 130, .accumulate = true},
    {2, 131, 2, 1, 16, .dropout = 0.25f, .rows = -1},
    {2, 150, 4, 2, 16, .alibi = true, .softcap = 1.5f, .window = 71, .ids = true, .dropout = 0.1f,
     .fused = true, .accumulate = true},
    {2, 7, 2, 2, 4, .type = CLT_BF16},
    {1, 65, 3, 3, 24, .type = CLT_F16},
    {1, 66, 1, 1, 5, .type = CLT_BF16, .accumulate = true},
    {1, 130, 4, 1, 64, .type = CLT_BF16, .fused = true, .rows = 64},
    {1, 200, 4, 1, 64, .type = CLT_F16, .accumulate = true, .rows = 64},
    {1, 70, 2, 1, 64, .type = CLT_BF16, .extreme = true, .rows = 64},
    {1, 130, 2, 1, 64, .type = CLT_F16, .amplitude = 40.0f, .rows = 64},
    {1, 129, 2, 2, 80, .type = CLT_BF16, .fused = true, .rows = 32},
    {1, 300, 1, 1, 16, .type = CLT_F16, .window = 130, .accumulate = true},
    {2, 150, 4, 2, 16, .type = CLT_BF16, .alibi = true, .softcap = 1.5f, .window = 71, .ids = true,
     .dropout = 0.1f, .fused = true, .accumulate = true},
};
static const shape tiny_cases[] = {
    {1, 1, 1, 1, 4},
    {1, 20, 2, 1, 4, .fused = true, .accumulate = true},
    {1, 67, 1, 1, 4},
    {1, 67, 2, 1, 4, .alibi = true, .softcap = 1.5f, .window = 31, .ids = true, .dropout = 0.1f,
     .fused = true},
    {1, 67, 2, 1, 4, .type = CLT_BF16, .window = 31, .fused = true, .accumulate = true},
    {1, 9, 1, 1, 130, .accumulate = true},
};

enum { Q, K, V, O, LSE, DOUT, DQ, DK, DV, TENSORS };
static const char *const name_of[TENSORS] = {"q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv"};

/* A case with its data on the host; q, k, v (and their gradients) lie side by side in one matrix when fused.
 */
typedef struct {
    shape s;
    clt_attention_params call; /* without tensors */
    clt_ref_attention_params p;
    float *qkv[3], *dqkv[3], *o, *lse, *dout, *slopes;
    size_t n_qkv[3], n_o, n_lse;
    int32_t *ids;
} problem;

static int64_t cols(const problem *x, int t) {
    return t == Q || t == O || t == DOUT || t == DQ ? x->s.heads * x->s.head_dim
                                                    : x->s.kv_heads * x->s.head_dim;
}

static void round_all(problem *x) {
    for (int i = 0; i < (x->s.fused ? 1 : 3); i++) {
        clt_ref_round(x->s.type, x->qkv[i], x->n_qkv[i]);
        clt_ref_round(x->s.type, x->dqkv[i], x->n_qkv[i]);
    }
    clt_ref_round(x->s.type, x->o, x->n_o);
    clt_ref_round(x->s.type, x->dout, x->n_o);
}

static void fill(problem *x, uint64_t seed) {
    const shape *s = &x->s;
    int64_t tokens = s->batch * s->seq, wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim;
    float amplitude = s->amplitude > 0.0f ? s->amplitude : 1.0f;
    for (int i = 0; i < 3; i++) {
        x->n_qkv[i] = (size_t)(tokens * (s->fused ? wide + 2 * narrow : i == 0 ? wide : narrow + i));
        if (i > 0 && s->fused) {
            x->qkv[i] = x->qkv[0];
            x->dqkv[i] = x->dqkv[0];
            continue;
        }
        x->qkv[i] = s->extreme ? tu_extreme(x->n_qkv[i], seed + (uint64_t)i)
                               : tu_random(x->n_qkv[i], seed + (uint64_t)i, amplitude);
        x->dqkv[i] = tu_random(x->n_qkv[i], seed + 3 + (uint64_t)i, 1.0f);
    }
    x->n_o = (size_t)(tokens * (wide + 3));
    x->n_lse = (size_t)(s->batch * s->heads * s->seq);
    x->o = tu_random(x->n_o, seed + 6, 1.0f);
    x->lse = tu_random(x->n_lse, seed + 7, 1.0f);
    x->dout = tu_random(x->n_o, seed + 8, 1.0f);
    x->slopes = tu_random((size_t)s->heads, seed + 9, 0.25f);
    round_all(x);
    x->ids = clt_malloc((size_t)tokens * sizeof *x->ids);
    for (int64_t i = 0, id = 0; i < tokens; i++) {
        if (tu_random_below(seed + 10, (uint64_t)i, 20) == 0) id = tu_random_below(seed + 11, (uint64_t)i, 3);
        x->ids[i] = (int32_t)id;
    }
}

static problem *problem_create(const shape *s, uint64_t seed) {
    problem *x = clt_calloc(1, sizeof *x);
    x->s = *s;
    fill(x, seed);
    int64_t wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim, all = wide + 2 * narrow;
    int64_t at[3] = {0, s->fused ? wide : 0, s->fused ? wide + narrow : 0};
    int64_t ld[3] = {s->fused ? all : wide, s->fused ? all : narrow + 1, s->fused ? all : narrow + 2};
    x->call = (clt_attention_params){.batch = s->batch,
                                     .seq = s->seq,
                                     .heads = s->heads,
                                     .kv_heads = s->kv_heads,
                                     .head_dim = s->head_dim,
                                     .q = {.ld = ld[0], .type = s->type},
                                     .k = {.ld = ld[1], .type = s->type},
                                     .v = {.ld = ld[2], .type = s->type},
                                     .o = {.ld = wide + 3, .type = s->type},
                                     .scale = 1.0f / sqrtf((float)s->head_dim),
                                     .softcap = s->softcap,
                                     .window = s->window - 1,
                                     .dropout = s->dropout,
                                     .seed = 0x123456789abcull,
                                     .step = 17,
                                     .first_sample = 5,
                                     .layer = 3};
    x->p = clt_ref_attention_of(&x->call);
    clt_ref_attention_params *p = &x->p;
    p->q = x->qkv[0], p->k = x->qkv[1] + at[1], p->v = x->qkv[2] + at[2], p->o = x->o, p->lse = x->lse;
    p->slopes = s->alibi ? x->slopes : NULL, p->seq_ids = s->ids ? x->ids : NULL;
    p->dout = x->dout, p->dq = x->dqkv[0], p->dk = x->dqkv[1] + at[1], p->dv = x->dqkv[2] + at[2];
    p->lddout = wide + 3, p->lddq = ld[0], p->lddk = ld[1], p->lddv = ld[2];
    p->accumulate_kv = s->accumulate;
    return x;
}

static void problem_destroy(problem *x) {
    for (int i = 0; i < (x->s.fused ? 1 : 3); i++) {
        clt_free(x->qkv[i]);
        clt_free(x->dqkv[i]);
    }
    clt_free(x->o);
    clt_free(x->lse);
    clt_free(x->dout);
    clt_free(x->slopes);
    clt_free(x->ids);
    clt_free(x);
}

/* --- the formula in double --- */

typedef struct {
    const problem *x;
    double *q, *k, *v, *dout;       /* [B, T, heads, D], contiguous */
    double *o, *lse, *dq, *dk, *dv; /* the same */
} f64;

static double *widen(const float *m, int64_t ld, int64_t rows, int64_t n) {
    double *d = clt_malloc((size_t)(rows * n) * sizeof *d);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < n; c++) d[r * n + c] = m[r * ld + c];
    return d;
}

static f64 f64_create(const problem *x) {
    const clt_ref_attention_params *p = &x->p;
    int64_t rows = p->batch * p->seq;
    size_t wide = (size_t)(rows * cols(x, Q)), narrow = (size_t)(rows * cols(x, K));
    return (f64){.x = x,
                 .q = widen(p->q, p->ldq, rows, cols(x, Q)),
                 .k = widen(p->k, p->ldk, rows, cols(x, K)),
                 .v = widen(p->v, p->ldv, rows, cols(x, V)),
                 .dout = widen(p->dout, p->lddout, rows, cols(x, Q)),
                 .o = clt_calloc(wide, sizeof(double)),
                 .lse = clt_calloc(x->n_lse, sizeof(double)),
                 .dq = clt_calloc(wide, sizeof(double)),
                 .dk = clt_calloc(narrow, sizeof(double)),
                 .dv = clt_calloc(narrow, sizeof(double))};
}

static void f64_destroy(f64 *f) {
    double *all[] = {f->q, f->k, f->v, f->dout, f->o, f->lse, f->dq, f->dk, f->dv};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_free(all[i]);
}

static bool visible(const problem *x, int64_t b, int64_t i, int64_t j) {
    if (j > i || (x->p.window >= 0 && j < i - x->p.window)) return false;
    return !x->p.seq_ids || x->ids[b * x->s.seq + i] == x->ids[b * x->s.seq + j];
}

static double dot(const double *a, const double *b, int64_t n) {
    double s = 0;
    for (int64_t d = 0; d < n; d++) s += a[d] * b[d];
    return s;
}

typedef struct {
    double *q, *k, *v, *dout, *o, *dq, *dk, *dv;
} f64_row;

static f64_row rows_of(const f64 *f, int64_t b, int64_t h, int64_t i, int64_t j) {
    const shape *s = &f->x->s;
    int64_t g = h / (s->heads / s->kv_heads), n = s->head_dim;
    int64_t wide = (b * s->seq + i) * s->heads * n + h * n,
            narrow = (b * s->seq + j) * s->kv_heads * n + g * n;
    return (f64_row){f->q + wide, f->k + narrow, f->v + narrow,  f->dout + wide,
                     f->o + wide, f->dq + wide,  f->dk + narrow, f->dv + narrow};
}

/* The score, and in *slope its derivative by the scaled product. */
static double f64_score(const f64 *f, int64_t b, int64_t h, int64_t i, int64_t j, double *slope) {
    const clt_ref_attention_params *p = &f->x->p;
    f64_row r = rows_of(f, b, h, i, j);
    double s = dot(r.q, r.k, p->head_dim) * (double)p->scale;
    *slope = 1.0;
    if (p->softcap > 0.0f) {
        double t = tanh(s / (double)p->softcap);
        *slope = 1.0 - t * t;
        s = (double)p->softcap * t;
    }
    return p->slopes ? s + (double)p->slopes[h] * (double)(j - i) : s;
}

static double f64_factor(const f64 *f, int64_t b, int64_t h, int64_t i, int64_t j) {
    const clt_ref_attention_params *p = &f->x->p;
    if (!(p->dropout > 0.0f)) return 1.0;
    return (double)clt_ref_dropout_factor(p->dropout, p->seed, p->step, p->first_sample + b, p->layer,
                                          CLT_SITE_ATTENTION, (uint64_t)((h * p->seq + i) * p->seq + j));
}

static void f64_forward_row(f64 *f, int64_t b, int64_t h, int64_t i) {
    const shape *s = &f->x->s;
    double max = -INFINITY, sum = 0, slope, *o = rows_of(f, b, h, i, 0).o;
    for (int64_t j = 0; j <= i; j++)
        if (visible(f->x, b, i, j)) max = fmax(max, f64_score(f, b, h, i, j, &slope));
    for (int64_t j = 0; j <= i; j++)
        if (visible(f->x, b, i, j)) sum += exp(f64_score(f, b, h, i, j, &slope) - max);
    double lse = max + log(sum);
    f->lse[(b * s->heads + h) * s->seq + i] = lse;
    memset(o, 0, (size_t)s->head_dim * sizeof *o);
    for (int64_t j = 0; j <= i; j++) {
        if (!visible(f->x, b, i, j)) continue;
        double w = exp(f64_score(f, b, h, i, j, &slope) - lse) * f64_factor(f, b, h, i, j);
        for (int64_t d = 0; d < s->head_dim; d++) o[d] += w * rows_of(f, b, h, i, j).v[d];
    }
}

/* d(sum of o * dout) by the softmax rule. */
static void f64_backward_row(f64 *f, int64_t b, int64_t h, int64_t i) {
    const shape *s = &f->x->s;
    f64_row r = rows_of(f, b, h, i, 0);
    double delta = dot(r.dout, r.o, s->head_dim), lse = f->lse[(b * s->heads + h) * s->seq + i];
    for (int64_t j = 0; j <= i; j++) {
        if (!visible(f->x, b, i, j)) continue;
        r = rows_of(f, b, h, i, j);
        double slope, p = exp(f64_score(f, b, h, i, j, &slope) - lse), keep = f64_factor(f, b, h, i, j);
        double ds = p * (dot(r.dout, r.v, s->head_dim) * keep - delta) * slope * (double)f->x->p.scale;
        for (int64_t d = 0; d < s->head_dim; d++) {
            r.dq[d] += ds * r.k[d];
            r.dk[d] += ds * r.q[d];
            r.dv[d] += p * keep * r.dout[d];
        }
    }
}

static void f64_run(f64 *f, void (*row)(f64 *, int64_t, int64_t, int64_t)) {
    for (int64_t b = 0; b < f->x->s.batch; b++)
        for (int64_t h = 0; h < f->x->s.heads; h++)
            for (int64_t i = 0; i < f->x->s.seq; i++) row(f, b, h, i);
}

static double f64_loss(f64 *f) {
    f64_run(f, f64_forward_row);
    int64_t n = f->x->s.batch * f->x->s.seq * cols(f->x, Q);
    return dot(f->o, f->dout, n);
}

/* The gradient formula against central differences of the forward formula: 6 elements of each input. */
static void formula_matches_differences(f64 *f, const char *label) {
    double *in[3] = {f->q, f->k, f->v}, *grad[3] = {f->dq, f->dk, f->dv};
    const int64_t rows = f->x->s.batch * f->x->s.seq;
    for (int t = 0; t < 3; t++)
        for (uint64_t e = 0; e < 6; e++) {
            int64_t at = tu_random_below(99 + (uint64_t)t, e, rows * cols(f->x, t));
            double old = in[t][at], h = 1e-5;
            in[t][at] = old + h;
            double up = f64_loss(f);
            in[t][at] = old - h;
            double down = f64_loss(f);
            in[t][at] = old;
            double want = (up - down) / (2 * h), err = fabs(want - grad[t][at]) / fmax(1.0, fabs(want));
            if (!(err < 1e-6))
                fail_msg("%s: d%s[%lld]: formula %.12g, difference %.12g", label, name_of[t], (long long)at,
                         grad[t][at], want);
        }
    f64_loss(f);
}

static void close_to(const char *label, int t, const float *got, int64_t ld, const double *want, int64_t rows,
                     int64_t n) {
    char what[96];
    snprintf(what, sizeof what, "%s: %s", label, name_of[t]);
    for (int64_t r = 0; r < rows; r++) tu_assert_close(what, got + r * ld, want + r * n, (size_t)n, 2e-5);
}

/* clt_ref_attention_row, which checks rows for matrix units, is the formula too. */
static void rows_match_formula(const f64 *f, const char *label) {
    const shape *s = &f->x->s;
    double *o = clt_malloc((size_t)(2 * s->head_dim) * sizeof *o), *bound = o + s->head_dim;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->seq; i++) {
                clt_ref_attention_bound r =
                    clt_ref_attention_row(&f->x->p, CLT_F32, (clt_ref_attention_at){b, h, i}, o, bound);
                const double *want = rows_of(f, b, h, i, 0).o;
                double lse = f->lse[(b * s->heads + h) * s->seq + i], worst = fabs(r.lse - lse);
                for (int64_t d = 0; d < s->head_dim; d++) worst = fmax(worst, fabs(o[d] - want[d]));
                if (!(worst < 1e-12)) fail_msg("%s: row %lld is wrong by %g", label, (long long)i, worst);
            }
    clt_free(o);
}

static void oracle_matches_formula(void **state) {
    (void)state;
    static const shape some[] = {
        {2, 70, 4, 2, 8, .fused = true},
        {1, 70, 2, 1, 8, .alibi = true},
        {1, 70, 2, 2, 8, .softcap = 1.5f},
        {1, 90, 2, 2, 8, .window = 21},
        {2, 70, 2, 2, 8, .ids = true},
        {2, 66, 2, 1, 8, .dropout = 0.3f},
        {1, 80, 2, 1, 8, .alibi = true, .softcap = 2.0f, .window = 41, .ids = true, .dropout = 0.2f},
    };
    for (size_t c = 0; c < CLT_COUNT_OF(some); c++) {
        problem *x = problem_create(&some[c], 1000 + 20 * c);
        f64 f = f64_create(x);
        char label[32];
        snprintf(label, sizeof label, "formula case %zu", c);
        f64_run(&f, f64_forward_row);
        f64_run(&f, f64_backward_row);
        if (!tu_tiny()) formula_matches_differences(&f, label);
        rows_match_formula(&f, label);
        clt_ref_attention_forward(&x->p);
        clt_ref_attention_backward(&x->p);
        int64_t rows = x->s.batch * x->s.seq;
        close_to(label, O, x->p.o, x->p.ldo, f.o, rows, cols(x, O));
        close_to(label, LSE, x->p.lse, (int64_t)x->n_lse, f.lse, 1, (int64_t)x->n_lse);
        close_to(label, DQ, x->p.dq, x->p.lddq, f.dq, rows, cols(x, DQ));
        close_to(label, DK, x->p.dk, x->p.lddk, f.dk, rows, cols(x, DK));
        close_to(label, DV, x->p.dv, x->p.lddv, f.dv, rows, cols(x, DV));
        f64_destroy(&f);
        problem_destroy(x);
    }
}

/* Accumulating starts the chain from what is there: the result differs from adding afterwards by rounding
 * only, and from not adding by what was there. */
static void accumulation_adds(void **state) {
    (void)state;
    const shape s = {1, 40, 2, 1, 8};
    problem *a = problem_create(&s, 7), *b = problem_create(&s, 7), *before = problem_create(&s, 7);
    b->p.accumulate_kv = true;
    clt_ref_attention_forward(&a->p);
    clt_ref_attention_forward(&b->p);
    clt_ref_attention_backward(&a->p);
    clt_ref_attention_backward(&b->p);
    for (int64_t t = 0; t < 40; t++)
        for (int64_t d = 0; d < 8; d++) {
            int64_t at = t * a->p.lddk + d;
            assert_true(fabsf(b->p.dk[at] - (a->p.dk[at] + before->p.dk[at])) < 1e-5f);
            at = t * a->p.lddv + d;
            assert_true(fabsf(b->p.dv[at] - (a->p.dv[at] + before->p.dv[at])) < 1e-5f);
        }
    problem_destroy(a);
    problem_destroy(b);
    problem_destroy(before);
}

/* --- devices against the oracle --- */

static problem *solved[CLT_COUNT_OF(cases)]; /* start values in, and the oracle's results out */
static problem *fresh[CLT_COUNT_OF(cases)];
static size_t n_cases;

static void solve_all(void) {
    const shape *list = tu_tiny() ? tiny_cases : cases;
    n_cases = tu_tiny() ? CLT_COUNT_OF(tiny_cases) : CLT_COUNT_OF(cases);
    for (size_t c = 0; c < n_cases && !solved[c]; c++) {
        fresh[c] = problem_create(&list[c], 50 * c + 1);
        solved[c] = problem_create(&list[c], 50 * c + 1);
        clt_ref_attention_forward(&solved[c]->p);
        round_all(solved[c]); /* the output as it is stored, which backward reads */
        clt_ref_attention_backward(&solved[c]->p);
        round_all(solved[c]);
    }
}

/* The oracle of single places says what that of all does. */
static void places_are_parts_of_the_whole(void **state) {
    (void)state;
    const shape s = {2,
                     70,
                     4,
                     2,
                     8,
                     .alibi = true,
                     .softcap = 1.5f,
                     .window = 41,
                     .ids = true,
                     .dropout = 0.1f,
                     .fused = true};
    problem *x = problem_create(&s, 3), *y = problem_create(&s, 3);
    clt_ref_attention_forward(&x->p);
    clt_ref_attention_backward(&x->p);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t i = 0; i < s.seq; i++)
                clt_ref_attention_forward_at(&y->p, (clt_ref_attention_at){b, h, i});
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t i = 0; i < s.seq; i++) {
                clt_ref_attention_dq_at(&y->p, (clt_ref_attention_at){b, h, i});
                if (h < s.kv_heads) clt_ref_attention_dkv_at(&y->p, (clt_ref_attention_at){b, h, i});
            }
    tu_assert_words("o", y->o, x->o, x->n_o);
    tu_assert_words("lse", y->lse, x->lse, x->n_lse);
    tu_assert_words("gradients", y->dqkv[0], x->dqkv[0], x->n_qkv[0]);
    problem_destroy(x);
    problem_destroy(y);
}

static void near_matrix(const float *got, int64_t ld, const double *want, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const double w = want[r * cols + c];
            assert_true(fabs((double)got[r * ld + c] - w) <= 1e-4 * fabs(w) + 1e-4);
        }
}

/* The formula in double, made row by row, beside the definition in fp32, which goes through pairs in its own
 * order. */
static void gradients_of_the_formula(void **state) {
    (void)state;
    enum {
        SEQ = 70,
        HEADS = 4,
        KV_HEADS = 2,
        N = 8,
        ROWS = 2 * SEQ,
        WIDE = HEADS * N,
        NARROW = KV_HEADS * N
    };
    const shape s = {
        2, SEQ, HEADS, KV_HEADS, N, .type = CLT_BF16, .alibi = true, .window = 41, .accumulate = true};
    problem *x = problem_create(&s, 4);
    clt_ref_attention_forward(&x->p);
    static double all[ROWS * (2 * WIDE + 4 * NARROW)];
    double *bounds = all + ROWS * (WIDE + 2 * NARROW);
    const clt_ref_attention_gradients_out g = {all,    all + ROWS * WIDE,    all + ROWS * (WIDE + NARROW),
                                               bounds, bounds + ROWS * WIDE, bounds + ROWS * (WIDE + NARROW)};
    clt_ref_attention_gradients(&x->p, s.type, &g);
    clt_ref_attention_backward(&x->p);
    near_matrix(x->p.dq, x->p.lddq, g.dq, ROWS, WIDE);
    near_matrix(x->p.dk, x->p.lddk, g.dk, ROWS, NARROW);
    near_matrix(x->p.dv, x->p.lddv, g.dv, ROWS, NARROW);
    for (int i = 0; i < ROWS * (WIDE + 2 * NARROW); i++) assert_true(bounds[i] > 0);
    problem_destroy(x);
}

typedef struct {
    clt_ref qkv[3], dqkv[3], o, lse;
    clt_attention_grad_params g;
} uploaded;

static uploaded upload(int device, const problem *x) {
    uploaded u = {0};
    const clt_ref_attention_params *p = &x->p;
    for (int i = 0; i < 3; i++) {
        bool shared = x->s.fused && i > 0;
        u.qkv[i] = shared ? u.qkv[0] : tu_upload_as(device, x->s.type, x->qkv[i], x->n_qkv[i]);
        u.dqkv[i] = shared ? u.dqkv[0] : tu_upload_as(device, x->s.type, x->dqkv[i], x->n_qkv[i]);
    }
    u.o = tu_upload_as(device, x->s.type, x->o, x->n_o);
    u.lse = tu_upload(device, x->lse, x->n_lse);
    clt_ref dout = tu_upload_as(device, x->s.type, x->dout, x->n_o);
    clt_attention_params f = x->call;
    const clt_dtype type = x->s.type;
    f.q.ref = u.qkv[0], f.o.ref = u.o, f.lse = u.lse;
    f.k.ref = clt_ref_at(u.qkv[1], (uint64_t)(p->k - x->qkv[1]));
    f.v.ref = clt_ref_at(u.qkv[2], (uint64_t)(p->v - x->qkv[2]));
    if (p->slopes) f.slopes = tu_upload(device, x->slopes, (size_t)p->heads);
    if (p->seq_ids) f.seq_ids = tu_upload_i32(device, x->ids, (size_t)(p->batch * p->seq));
    u.g = (clt_attention_grad_params){.fwd = f,
                                      .dout = clt_tensor_of(dout, p->lddout, type),
                                      .dq = clt_tensor_of(u.dqkv[0], p->lddq, type),
                                      .dk = clt_tensor_of(u.dqkv[1], p->lddk, type),
                                      .dv = clt_tensor_of(u.dqkv[2], p->lddv, type),
                                      .accumulate_kv = p->accumulate_kv};
    u.g.dk = clt_tensor_at(u.g.dk, 0, p->dk - x->dqkv[1]);
    u.g.dv = clt_tensor_at(u.g.dv, 0, p->dv - x->dqkv[2]);
    return u;
}

static void run_case(int device, const char *id, size_t c) {
    const problem *x = solved[c];
    uploaded u = upload(device, fresh[c]);
    char what[96];
    tu_assert_ok(clt_op_attention_forward(tu_ops(device), &u.g.fwd), "forward");
    snprintf(what, sizeof what, "%s, case %zu: o", id, c);
    tu_assert_words(what, tu_download_as(u.o, x->s.type, x->n_o), x->o, x->n_o);
    snprintf(what, sizeof what, "%s, case %zu: lse", id, c);
    tu_assert_words(what, tu_download(u.lse, x->n_lse), x->lse, x->n_lse);
    tu_assert_ok(clt_op_attention_backward(tu_ops(device), &u.g), "backward");
    for (int i = 0; i < (x->s.fused ? 1 : 3); i++) {
        snprintf(what, sizeof what, "%s, case %zu: %s", id, c, x->s.fused ? "dqkv" : name_of[DQ + i]);
        tu_assert_words(what, tu_download_as(u.dqkv[i], x->s.type, x->n_qkv[i]), x->dqkv[i], x->n_qkv[i]);
    }
    tu_release();
}

static bool takes_head(int device, const char *id, int64_t head_dim) {
    int n = 0;
    const clt_variant *v = clt_ops_variants(tu_ops(device), "attention", &n);
    while (n > 0 && strcmp(v->id, id) != 0) v++, n--;
    assert_true(n > 0);
    return head_dim >= clt_variant_param(v, "MIN_D", 1) &&
           head_dim <= clt_variant_param(v, "MAX_D", INT32_MAX);
}

/* Every case runs on one or two of the work-group bodies and on all others: compiling takes longer than
 * running. */
static bool wanted(int device, const char *id, const shape *s) {
    if (!takes_head(device, id, s->head_dim)) return false;
    if (tu_tiny()) return true;
    if (!strcmp(id, "group_64")) return s->rows == 64;
    if (!strcmp(id, "group_32")) return s->rows == 32;
    return (strcmp(id, "portable") != 0 && strcmp(id, "long_32") != 0) || s->rows == 0;
}

static void run_variant(int device, const char *id) {
    const int step = tu_brief() && !tu_tiny() ? 3 : 1;
    int n = 0;
    tu_assert_ok(clt_variant_force(tu_ops(device), "attention_backward", id), "clt_variant_force");
    for (size_t c = 0; c < n_cases; c++)
        if (wanted(device, id, &solved[c]->s) && n++ % step == 0) run_case(device, id, c);
    tu_assert_ok(clt_variant_force(tu_ops(device), "attention_backward", NULL), "clt_variant_force");
    assert_true(n > 0);
}

static void variants_match_oracle(void **state) {
    (void)state;
    solve_all();
    tu_each_variant("attention", run_variant);
    for (size_t c = 0; c < n_cases; c++) {
        problem_destroy(fresh[c]);
        problem_destroy(solved[c]);
        fresh[c] = solved[c] = NULL;
    }
}

/* Bodies for CPUs have blocks of whole heads on a thread's stack, 8 MiB as a rule: heads that are longer than
 * it has room for go to rows in work-groups. */
static void long_heads_fit_a_stack(void **state) {
    (void)state;
    static const char *const table[] = {"attention", "attention_backward"};
    const int64_t bytes_an_element = 1792, stack = 8 << 20, longest = 1 << 16;
    for (size_t t = 0; t < CLT_COUNT_OF(table); t++) {
        clt_variant *row;
        const int n = clt_variant_rows(table[t], &row);
        for (int i = 0; i < n; i++) {
            clt_attention_grad_params g = {
                .fwd = {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = longest}};
            if (strcmp(row[i].body, "cpu") == 0) g.fwd.head_dim = stack / bytes_an_element;
            const bool takes =
                t ? clt_attention_takes_backward(&row[i], &g) : clt_attention_takes_forward(&row[i], &g.fwd);
            if (strcmp(row[i].body, "cpu") == 0) assert_false(takes);
            if (i == n - 1) assert_true(takes);
        }
        clt_free(row);
    }
}

/* A sample's results do not depend on the batch it is in: sample 1 of 2 alone, dropout counted by its global
 * place. */
static void batches_are_invisible(void **state) {
    (void)state;
    const shape s = {2, 70, 2, 1, 16, .dropout = 0.25f};
    problem *x = problem_create(&s, 4242);
    for (int d = 0; d < tu_device_count(); d++) {
        uploaded u = upload(d, x);
        tu_assert_ok(clt_op_attention_forward(tu_ops(d), &u.g.fwd), "forward");
        float *both = tu_download(u.o, x->n_o);
        uploaded w = upload(d, x);
        clt_attention_params p = w.g.fwd;
        p.batch = 1;
        p.first_sample++;
        p.q = clt_tensor_at(p.q, s.seq, 0);
        p.k = clt_tensor_at(p.k, s.seq, 0);
        p.v = clt_tensor_at(p.v, s.seq, 0);
        p.o = clt_tensor_at(p.o, s.seq, 0);
        tu_assert_ok(clt_op_attention_forward(tu_ops(d), &p), "forward");
        float *alone = tu_download(w.o, x->n_o);
        size_t half = x->n_o / 2;
        tu_assert_words("second sample", alone + half, both + half, half);
        tu_release();
    }
    problem_destroy(x);
}

static void bad_sizes_are_refused(void **state) {
    (void)state;
    clt_attention_params p = {.batch = 1, .seq = 8, .heads = 3, .kv_heads = 2, .head_dim = 4, .window = -1};
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    p.kv_heads = 3;
    p.q = clt_tensor_of(tu_blank(0, 96), 12, (clt_dtype)CLT_DTYPE_COUNT);
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    p.q.type = CLT_F32, p.k = p.q, p.k.type = CLT_BF16;
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    assert_string_equal(clt_last_error(),
                        "attention: q is of type fp32, but k of type bf16; they must have one type");
    p.k.type = CLT_F32;
    p.dropout = 1.0f;
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    tu_release();
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_matches_formula),   cmocka_unit_test(accumulation_adds),
        cmocka_unit_test(variants_match_oracle),    cmocka_unit_test(batches_are_invisible),
        cmocka_unit_test(bad_sizes_are_refused),    cmocka_unit_test(places_are_parts_of_the_whole),
        cmocka_unit_test(gradients_of_the_formula), cmocka_unit_test(long_heads_fit_a_stack),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
