/* The oracle of attention in 8-bit blocks: clkernels/attention8/README.md, line for line. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>

#include "runtime/base/clt_memory.h"
#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/ref/clt_clc.h"
#include "clkernels/attention8/attention8_math.clh"

enum { BLOCK = 64 };

#define LOG2E 0x1.715476p+0f

typedef clt_ref_attention_params params;

/* A tensor of heads in whole numbers: element d of row i of head h of sample b is
 * q[((b * heads + h) * T + i) * D + d] * s[(b * heads + h) * T + i]. */
typedef struct {
    float *q, *s;
} rows8;

/* All tensors of a call. */
typedef struct {
    const params *p;
    rows8 q, k, v, dout;
} problem;

/* --- 8 bits --- */

/* By comparing, while the kernels take it from the exponent's bits. */
float clt_ref_attention8_scale(float amax) {
    if (isnan(amax) || amax >= 0x1p96f) return NAN;
    float s = 0x1p-126f;
    while (amax > 255.0f * s) s = s * 2.0f;
    return s;
}

static float larger(float amax, float x) {
    x = fabsf(x);
    return isnan(amax) || isnan(x) ? NAN : x > amax ? x : amax;
}

static float rounded(float x, float s) {
    return isnan(s) ? 0.0f : (float)rint((double)x / (double)s); /* exact quotient: ties are ties */
}

static rows8 rows8_of(const params *p, const float *x, int64_t ld, int64_t heads) {
    const int64_t n = p->head_dim, rows = p->batch * heads * p->seq;
    rows8 r = {clt_malloc((size_t)(rows * n) * sizeof(float)), clt_malloc((size_t)rows * sizeof(float))};
    for (int64_t at = 0; at < rows; at++) {
        const int64_t b = at / (heads * p->seq), h = at / p->seq % heads, i = at % p->seq;
        const float *from = x + (b * p->seq + i) * ld + h * n;
        float amax = 0.0f;
        for (int64_t d = 0; d < n; d++) amax = larger(amax, from[d]);
        r.s[at] = clt_ref_attention8_scale(amax);
        for (int64_t d = 0; d < n; d++) r.q[at * n + d] = rounded(from[d], r.s[at]);
    }
    return r;
}

static void rows8_free(rows8 r) {
    clt_free(r.q);
    clt_free(r.s);
}

static problem problem_of(const params *p, bool backward) {
    problem x = {.p = p,
                 .q = rows8_of(p, p->q, p->ldq, p->heads),
                 .k = rows8_of(p, p->k, p->ldk, p->kv_heads),
                 .v = rows8_of(p, p->v, p->ldv, p->kv_heads)};
    if (backward) x.dout = rows8_of(p, p->dout, p->lddout, p->heads);
    for (int64_t i = 0; i < p->batch * p->kv_heads * p->seq; i++)
        if (isnan(x.k.s[i])) x.v.s[i] = NAN;
    return x;
}

static void problem_free(problem *x) {
    rows8_free(x->q);
    rows8_free(x->k);
    rows8_free(x->v);
    if (x->dout.q) rows8_free(x->dout);
}

/* Rounds x[BLOCK] in place to multiples of one scale. */
static void round_block(float x[BLOCK]) {
    float amax = 0.0f;
    for (int i = 0; i < BLOCK; i++) amax = larger(amax, x[i]);
    const float s = clt_ref_attention8_scale(amax);
    for (int i = 0; i < BLOCK; i++) x[i] = isnan(s) ? NAN : rounded(x[i], s) * s;
}

/* --- a pair --- */

typedef struct { /* query row and key row, as places in q and in k */
    int64_t b, h, i, j, query, key;
} place;

static place place_of(const params *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t g = h / (p->heads / p->kv_heads);
    return (place){b, h, i, j, (b * p->heads + h) * p->seq + i, (b * p->kv_heads + g) * p->seq + j};
}

static bool in_range(const params *p, int64_t i, int64_t j) {
    return clt_ref_attention_begin(p, i) <= j && j < clt_ref_attention_end(p, i);
}

/* The exact product of two rows of whole numbers, below 2^24. */
static float product(const problem *x, const float *a, const float *b) {
    int32_t sum = 0;
    for (int64_t d = 0; d < x->p->head_dim; d++) sum += (int32_t)a[d] * (int32_t)b[d];
    return (float)sum;
}

/* The score in units of log 2; *t: the tanh of the softcap. */
static float score(const problem *x, place a, float *t) {
    const params *p = x->p;
    const int64_t n = p->head_dim;
    float s = product(x, x->q.q + a.query * n, x->k.q + a.key * n) * x->k.s[a.key];
    *t = 0.0f;
    if (p->softcap > 0.0f) {
        s = s * (x->q.s[a.query] * p->scale);
        *t = clt_tanh(s / p->softcap);
        s = (p->softcap * LOG2E) * *t;
    } else {
        s = s * (x->q.s[a.query] * (p->scale * LOG2E));
    }
    if (p->slopes) s = fma(p->slopes[a.h] * LOG2E, (float)(a.j < a.i ? a.j - a.i : a.i - a.j), s);
    if (p->seq_ids && p->seq_ids[a.b * p->seq + a.i] != p->seq_ids[a.b * p->seq + a.j]) s = -INFINITY;
    return s;
}

static float factor_of(const params *p, place a) {
    if (!(p->dropout > 0.0f)) return 1.0f;
    return clt_ref_dropout_factor(p->dropout, p->seed, p->step, p->first_sample + a.b, p->layer,
                                  CLT_SITE_ATTENTION, (uint64_t)((a.h * p->seq + a.i) * p->seq + a.j));
}

/* --- forward --- */

typedef struct {
    float m, l;
    float *o;
} row_state;

/* Block `block` of the row's keys. */
static void forward_block(const problem *x, int64_t b, int64_t h, int64_t i, int64_t block, row_state *r) {
    const params *p = x->p;
    const int64_t n = p->head_dim;
    float s[BLOCK], prob[BLOCK] = {0}, w[BLOCK] = {0}, most = r->m, unused;
    for (int64_t c = 0; c < BLOCK; c++)
        if (in_range(p, i, block * BLOCK + c)) {
            s[c] = score(x, place_of(p, b, h, i, block * BLOCK + c), &unused);
            if (s[c] > most) most = s[c];
        }
    const float ref = most == -INFINITY ? 0.0f : most, a = clt_exp2_short(r->m - ref);
    for (int64_t c = 0; c < BLOCK; c++)
        if (in_range(p, i, block * BLOCK + c)) {
            const place at = place_of(p, b, h, i, block * BLOCK + c);
            prob[c] = clt_exp2_short(s[c] - ref);
            w[c] = prob[c] * x->v.s[at.key];
            if (p->dropout > 0.0f) w[c] = w[c] * factor_of(p, at);
        }
    r->l = fma(r->l, a, clt_ref_row_sum(prob, BLOCK));
    r->m = most;
    round_block(w);
    for (int64_t d = 0; d < n; d++) {
        float sum = 0.0f; /* exact: whole numbers below 2^24 times one power of two */
        for (int64_t c = 0; c < BLOCK; c++)
            if (in_range(p, i, block * BLOCK + c))
                sum += w[c] * x->v.q[place_of(p, b, h, i, block * BLOCK + c).key * n + d];
        r->o[d] = fma(r->o[d], a, sum);
    }
}

static void forward_row(const problem *x, int64_t b, int64_t h, int64_t i) {
    const params *p = x->p;
    row_state r = {-INFINITY, 0.0f, p->o + (b * p->seq + i) * p->ldo + h * p->head_dim};
    for (int64_t d = 0; d < p->head_dim; d++) r.o[d] = 0.0f;
    const int64_t first = clt_ref_attention_begin(p, i), after = clt_ref_attention_end(p, i);
    for (int64_t block = first / BLOCK; block * BLOCK < after; block++) forward_block(x, b, h, i, block, &r);
    const float inv = 1.0f / r.l;
    for (int64_t d = 0; d < p->head_dim; d++) r.o[d] = r.o[d] * inv;
    p->lse[(b * p->heads + h) * p->seq + i] = r.m + clt_log(r.l) * LOG2E;
}

void clt_ref_attention8_forward(const clt_ref_attention_params *p) {
    problem x = problem_of(p, false);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->seq; i++) forward_row(&x, b, h, i);
    problem_free(&x);
}

/* --- backward --- */

static float delta_of(const problem *x, place a) {
    const params *p = x->p;
    const float *o = p->o + (a.b * p->seq + a.i) * p->ldo + a.h * p->head_dim;
    float d = 0.0f;
    for (int64_t e = 0; e < p->head_dim; e++) d = fma(x->dout.q[a.query * p->head_dim + e], o[e], d);
    return d * x->dout.s[a.query];
}

typedef struct {
    float w, ds; /* what dv and dq, dk multiply; w has the scale of dout's row */
} pair;

static pair pair_of(const problem *x, place a) {
    const params *p = x->p;
    const int64_t n = p->head_dim;
    float t, prob = clt_exp2_short(score(x, a, &t) - p->lse[a.query]), f = x->dout.s[a.query];
    if (p->dropout > 0.0f) f = f * factor_of(p, a);
    const float dp = product(x, x->dout.q + a.query * n, x->v.q + a.key * n) * x->v.s[a.key];
    float ds = prob * fma(dp, f, -delta_of(x, a));
    if (p->softcap > 0.0f) ds = ds * fma(-t, t, 1.0f);
    return (pair){prob * f, ds};
}

/* out[d] += the exact sum of the block's products; the rows of y are n apart, `rows` of them exist. */
static void add_block(const float w[BLOCK], const float *y, int64_t rows, int64_t n, float *out) {
    for (int64_t d = 0; d < n; d++) {
        float sum = 0.0f;
        for (int64_t c = 0; c < rows; c++) sum += w[c] * y[c * n + d];
        out[d] = out[d] + sum;
    }
}

static void dq_row(const problem *x, int64_t b, int64_t h, int64_t i) {
    const params *p = x->p;
    const int64_t n = p->head_dim;
    float *dq = p->dq + (b * p->seq + i) * p->lddq + h * n;
    for (int64_t d = 0; d < n; d++) dq[d] = 0.0f;
    for (int64_t first = 0; first < p->seq; first += BLOCK) {
        float w[BLOCK] = {0};
        for (int64_t c = 0; c < BLOCK; c++)
            if (in_range(p, i, first + c)) {
                const place at = place_of(p, b, h, i, first + c);
                w[c] = pair_of(x, at).ds * x->k.s[at.key];
            }
        round_block(w);
        const place at = place_of(p, b, h, i, first);
        add_block(w, x->k.q + at.key * n, CLT_MIN(p->seq - first, BLOCK), n, dq);
    }
    for (int64_t d = 0; d < n; d++) dq[d] = dq[d] * p->scale;
}

/* Adds the query rows of one head to dk[n] and dv[n] of key j. */
static void add_head(const problem *x, int64_t b, int64_t h, int64_t j, float *dk, float *dv) {
    const params *p = x->p;
    const int64_t n = p->head_dim;
    for (int64_t first = 0; first < p->seq; first += BLOCK) {
        float w[BLOCK] = {0}, ds[BLOCK] = {0};
        for (int64_t c = 0; c < BLOCK && first + c < p->seq; c++)
            if (in_range(p, first + c, j)) {
                const place at = place_of(p, b, h, first + c, j);
                const pair y = pair_of(x, at);
                w[c] = y.w;
                ds[c] = y.ds * x->q.s[at.query];
            }
        round_block(w);
        round_block(ds);
        const place at = place_of(p, b, h, first, j);
        add_block(ds, x->q.q + at.query * n, CLT_MIN(p->seq - first, BLOCK), n, dk);
        add_block(w, x->dout.q + at.query * n, CLT_MIN(p->seq - first, BLOCK), n, dv);
    }
}

static void dkv_row(const problem *x, int64_t b, int64_t g, int64_t j) {
    const params *p = x->p;
    const int64_t n = p->head_dim, group = p->heads / p->kv_heads;
    float *dk = p->dk + (b * p->seq + j) * p->lddk + g * n, *dv = p->dv + (b * p->seq + j) * p->lddv + g * n;
    float *sums = clt_calloc((size_t)(2 * n), sizeof *sums);
    for (int64_t h = g * group; h < (g + 1) * group; h++) add_head(x, b, h, j, sums, sums + n);
    for (int64_t d = 0; d < n; d++) {
        const float k = sums[d] * p->scale, v = sums[n + d];
        dk[d] = p->accumulate_kv ? dk[d] + k : k;
        dv[d] = p->accumulate_kv ? dv[d] + v : v;
    }
    clt_free(sums);
}

void clt_ref_attention8_backward(const clt_ref_attention_params *p) {
    problem x = problem_of(p, true);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->seq; i++) {
            for (int64_t h = 0; h < p->heads; h++) dq_row(&x, b, h, i);
            for (int64_t g = 0; g < p->kv_heads; g++) dkv_row(&x, b, g, i);
        }
    problem_free(&x);
}
