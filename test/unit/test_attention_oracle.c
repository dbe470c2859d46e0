/* Compares the oracle of attention with the formula in double, whose gradients are compared with finite
 * differences; and the oracle's single rows and keys with its whole results. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ops/clt_dropout.h"
#include "test/attention_util.h"

typedef attention_shape shape;
typedef attention_problem problem;

enum { Q, K, V, O, LSE, DOUT, DQ, DK, DV, TENSORS };
static const char *const name_of[TENSORS] = {"q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv"};

static int64_t cols(const problem *x, int t) {
    return t == Q || t == O || t == DOUT || t == DQ ? x->s.heads * x->s.head_dim
                                                    : x->s.kv_heads * x->s.head_dim;
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
    if (x->p.window >= 0 && llabs(i - j) > x->p.window) return false;
    if (j > i && !x->s.unmasked) return false;
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
    return p->slopes ? s + (double)p->slopes[h] * -fabs((double)(i - j)) : s;
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
    for (int64_t j = 0; j < s->seq; j++)
        if (visible(f->x, b, i, j)) max = fmax(max, f64_score(f, b, h, i, j, &slope));
    for (int64_t j = 0; j < s->seq; j++)
        if (visible(f->x, b, i, j)) sum += exp(f64_score(f, b, h, i, j, &slope) - max);
    double lse = max + log(sum);
    f->lse[(b * s->heads + h) * s->seq + i] = lse;
    memset(o, 0, (size_t)s->head_dim * sizeof *o);
    for (int64_t j = 0; j < s->seq; j++) {
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
    for (int64_t j = 0; j < s->seq; j++) {
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

/* clt_ref_attention_row, which checks rows for matrix units, is also compared with the formula. */
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
        {2, 70, 4, 2, 8, .unmasked = true, .fused = true},
        {1, 70, 2, 1, 8, .unmasked = true, .alibi = true},
        {1, 90, 2, 2, 8, .unmasked = true, .window = 21},
        {1, 80, 2, 1, 8, .unmasked = true, .alibi = true, .softcap = 2.0f, .window = 41, .ids = true,
         .dropout = 0.2f},
    };
    for (size_t c = 0; c < CLT_COUNT_OF(some); c++) {
        problem *x = attention_problem_create(&some[c], 1000 + 20 * c);
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
        attention_problem_destroy(x);
    }
}

/* With accumulation the chain starts from the old value: the result differs from adding afterwards by
 * rounding only, and from not adding by the old value. */
static void accumulation_adds(void **state) {
    (void)state;
    const shape s = {1, 40, 2, 1, 8};
    problem *a = attention_problem_create(&s, 7), *b = attention_problem_create(&s, 7),
            *before = attention_problem_create(&s, 7);
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
    attention_problem_destroy(a);
    attention_problem_destroy(b);
    attention_problem_destroy(before);
}

/* The oracle of single rows gives the words of the whole. */
static void places_match(bool unmasked) {
    const shape s = {2,
                     70,
                     4,
                     2,
                     8,
                     .alibi = true,
                     .unmasked = unmasked,
                     .softcap = 1.5f,
                     .window = 41,
                     .ids = true,
                     .dropout = 0.1f,
                     .fused = true};
    problem *x = attention_problem_create(&s, 3), *y = attention_problem_create(&s, 3);
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
    attention_problem_destroy(x);
    attention_problem_destroy(y);
}

static void places_are_parts_of_the_whole(void **state) {
    (void)state;
    places_match(false);
    places_match(true);
}

static void near_matrix(const float *got, int64_t ld, const double *want, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const double w = want[r * cols + c];
            assert_true(fabs((double)got[r * ld + c] - w) <= 1e-4 * fabs(w) + 1e-4);
        }
}

/* The formula in double, computed row by row, compared with the definition in fp32, which has its own order
 * of pairs. */
static void gradients_are_near(bool unmasked) {
    enum {
        SEQ = 70,
        HEADS = 4,
        KV_HEADS = 2,
        N = 8,
        ROWS = 2 * SEQ,
        WIDE = HEADS * N,
        NARROW = KV_HEADS * N
    };
    const shape s = {2,
                     SEQ,
                     HEADS,
                     KV_HEADS,
                     N,
                     .type = CLT_BF16,
                     .alibi = true,
                     .unmasked = unmasked,
                     .window = 41,
                     .accumulate = true};
    problem *x = attention_problem_create(&s, 4);
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
    attention_problem_destroy(x);
}

static void gradients_of_the_formula(void **state) {
    (void)state;
    gradients_are_near(false);
    gradients_are_near(true);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_matches_formula),
        cmocka_unit_test(accumulation_adds),
        cmocka_unit_test(places_are_parts_of_the_whole),
        cmocka_unit_test(gradients_of_the_formula),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
