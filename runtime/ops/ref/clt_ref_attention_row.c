/* Attention by the formula in double, one query row at a time, with a bound for bodies on matrix units. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_thread.h"
#include "runtime/ops/clt_dropout.h"

typedef clt_ref_attention_params params;
typedef clt_ref_attention_at place;

static bool visible(const params *p, place a, int64_t j) {
    if (j < clt_ref_attention_begin(p, a.row) || j >= clt_ref_attention_end(p, a.row)) return false;
    return !p->seq_ids || p->seq_ids[a.sample * p->seq + a.row] == p->seq_ids[a.sample * p->seq + j];
}

static double bias_of(const params *p, place a, int64_t j) {
    return p->slopes ? -(double)p->slopes[a.head] * fabs((double)(j - a.row)) : 0;
}

/* The score of a pair; *size: the sum of the magnitudes of its terms. */
static double score(const params *p, place a, int64_t j, double *size) {
    int64_t n = p->head_dim, group = p->heads / p->kv_heads;
    const float *q = p->q + (a.sample * p->seq + a.row) * p->ldq + a.head * n;
    const float *k = p->k + (a.sample * p->seq + j) * p->ldk + a.head / group * n;
    double s = 0, abs = 0;
    for (int64_t d = 0; d < n; d++) {
        s += (double)q[d] * (double)k[d];
        abs += fabs((double)q[d] * (double)k[d]);
    }
    s *= (double)p->scale;
    *size = abs * fabs((double)p->scale);
    if (p->softcap > 0.0f) {
        s = (double)p->softcap * tanh(s / (double)p->softcap);
        *size += (double)p->softcap;
    }
    *size += fabs(bias_of(p, a, j));
    return s + bias_of(p, a, j);
}

static double factor(const params *p, place a, int64_t j) {
    if (!(p->dropout > 0.0f)) return 1.0;
    return (double)clt_ref_dropout_factor(p->dropout, p->seed, p->step, p->first_sample + a.sample, p->layer,
                                          CLT_SITE_ATTENTION,
                                          (uint64_t)((a.head * p->seq + a.row) * p->seq + j));
}

/* The bound. A score adds head_dim + 2 terms in fp32, in any order and with truncation inside a matrix unit:
 * e_s = (head_dim + 8) * 2^-23 * size. Its exponential then has a relative error of e_s (first order), and so
 * has the sum. A weight is rounded to `type` (unit roundoff u), and so is the output; sums in fp32 add
 * 2^-21 per 64 keys. fp16 also has an absolute error of 2^-25 for a weight and for the output. So
 *     |o - o'| <= (2 u + 2 e_s + 2^-21 (1 + keys / 64)) * sum w |v| + 2^-25 (1 + sum |v|)
 *     |lse - lse'| <= 2 e_s + 2^-21 (1 + keys / 64) + 2^-22 |lse|
 * with the largest e_s of the row's keys, and a factor of 1.01 for terms of second order. */
clt_ref_attention_bound clt_ref_attention_row(const clt_ref_attention_params *p, clt_dtype type,
                                              clt_ref_attention_at at, double *o, double *bound) {
    int64_t n = p->head_dim, keys = clt_ref_attention_end(p, at.row);
    double *s = clt_malloc((size_t)keys * sizeof *s), *far = clt_calloc((size_t)n, sizeof *far);
    double max = -INFINITY, sum = 0, largest = 0, size;
    for (int64_t j = 0; j < keys; j++) {
        s[j] = visible(p, at, j) ? score(p, at, j, &size) : -INFINITY;
        if (s[j] == -INFINITY) continue;
        max = fmax(max, s[j]);
        largest = fmax(largest, size);
    }
    for (int64_t j = 0; j < keys; j++) sum += exp(s[j] - max);
    const double lse = max + log(sum), u = clt_dtype_table[type].unit;
    for (int64_t d = 0; d < n; d++) o[d] = bound[d] = 0;
    for (int64_t j = 0; j < keys; j++) {
        if (s[j] == -INFINITY) continue;
        const float *v = p->v + (at.sample * p->seq + j) * p->ldv + at.head / (p->heads / p->kv_heads) * n;
        double w = exp(s[j] - lse) * factor(p, at, j);
        for (int64_t d = 0; d < n; d++) {
            o[d] += w * (double)v[d];
            bound[d] += w * fabs((double)v[d]);
            far[d] += fabs((double)v[d]);
        }
    }
    double e = (double)(n + 8) * 0x1p-23 * largest, adding = 0x1p-21 * (1.0 + (double)keys / 64);
    for (int64_t d = 0; d < n; d++)
        bound[d] = 1.01 * (2 * u + 2 * e + adding) * bound[d] + clt_dtype_table[type].least * (1 + far[d]);
    clt_free(far);
    clt_free(s);
    return (clt_ref_attention_bound){lse, 1.01 * (2 * e + adding) + 0x1p-22 * fabs(lse)};
}

/* --- gradients --- */

typedef struct { /* a pair's contribution, and its error bound */
    double p, p_error, ds, ds_error;
} pair;

/* The error of rounding a small number to the type, or of a device that flushes denormals. */
static double least_step(clt_dtype type) {
    return fmax(clt_dtype_table[type].least, 0x1p-126);
}

static double dot(const float *x, const float *y, int64_t n, double *size) {
    double s = 0;
    *size = 0;
    for (int64_t d = 0; d < n; d++) {
        s += (double)x[d] * (double)y[d];
        *size += fabs((double)x[d] * (double)y[d]);
    }
    return s;
}

/* Errors to first order. exp2 of a score in units of log2 has the error of the forward pass's score, one more
 * rounding of lse, and 2^-21 of the device's exp2. Products of a head: (head_dim + 8) * 2^-23 of their sizes.
 * p and ds are rounded to `type` before they are multiplied; fp16 also has an absolute error of 2^-25, and
 * values below 2^-126 may become 0. */
static pair pair_of(const params *p, clt_dtype type, place a, int64_t j) {
    const int64_t n = p->head_dim, row = a.sample * p->seq + a.row, key = a.sample * p->seq + j;
    const double u = clt_dtype_table[type].unit, e = (double)(n + 8) * 0x1p-23;
    const double step = least_step(type),
                 lse = (double)p->lse[(a.sample * p->heads + a.head) * p->seq + a.row];
    double size, dp_size, delta_size;
    double s = score(p, a, j, &size), w = exp(s - lse), drop = factor(p, a, j);
    const float *dout = p->dout + row * p->lddout + a.head * n;
    double dp = drop * dot(dout, p->v + key * p->ldv + a.head / (p->heads / p->kv_heads) * n, n, &dp_size);
    double delta = dot(dout, p->o + row * p->ldo + a.head * n, n, &delta_size), slope = 1, slope_error = 0;
    if (p->softcap > 0.0f) {
        double t = (s - bias_of(p, a, j)) / (double)p->softcap;
        slope = 1 - t * t, slope_error = 0x1p-20;
    }
    double w_error = w * (e * size + 0x1p-21 + 0x1p-22 * fabs(lse)) + 0x1p-126, ds = w * (dp - delta) * slope;
    pair r = {.p = w * drop, .ds = ds};
    r.p_error = w_error * drop + r.p * u + step;
    r.ds_error = w_error * fabs(dp - delta) + fabs(ds) * (u + 0x1p-22) +
                 w * (e * (drop * dp_size + delta_size) + slope_error * fabs(dp - delta)) + step;
    return r;
}

/* out += x * y; its bound += the effect of x's error and of the addition's rounding. */
static void add_row(double x, double error, const float *y, int64_t n, double *out, double *bound) {
    for (int64_t d = 0; d < n; d++) {
        out[d] += x * (double)y[d];
        bound[d] += error * fabs((double)y[d]);
    }
}

/* Turns a sum's error into the bound of a stored element: scale times the sum, plus its old value. */
static void finish(clt_dtype type, double scale, int64_t rows, int64_t cols, const float *old, int64_t ld,
                   double *out, double *bound) {
    const double u = clt_dtype_table[type].unit;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double *x = out + r * cols + c, *b = bound + r * cols + c;
            *x = *x * scale + (old ? (double)old[r * ld + c] : 0);
            *b = 1.01 * (*b * fabs(scale) + u * (fabs(*x) + *b * fabs(scale))) + least_step(type);
        }
}

/* A pair's error plus the rounding of adding it in fp32. */
static pair added_pair(const params *p, clt_dtype type, place a, int64_t j) {
    const double adding = 0x1p-21 * (1.0 + (double)p->seq / 64);
    pair x = pair_of(p, type, a, j);
    x.ds_error += adding * fabs(x.ds);
    x.p_error += adding * x.p;
    return x;
}

/* What key j contributes to row a's query; `g` is the key/value head of a.head. */
static void add_dq(const params *p, pair x, place a, int64_t j, int64_t g, double *dq, double *bound) {
    const int64_t n = p->head_dim;
    add_row(x.ds, x.ds_error, p->k + (a.sample * p->seq + j) * p->ldk + g * n, n, dq, bound);
}

static void add_dkv(const params *p, pair x, place a, const clt_ref_attention_gradients_out *g, int64_t to) {
    const int64_t n = p->head_dim, row = a.sample * p->seq + a.row;
    add_row(x.ds, x.ds_error, p->q + row * p->ldq + a.head * n, n, g->dk + to, g->dk_bound + to);
    add_row(x.p, x.p_error, p->dout + row * p->lddout + a.head * n, n, g->dv + to, g->dv_bound + to);
}

static void clear(double *x, double *bound, int64_t n) {
    memset(x, 0, (size_t)n * sizeof *x);
    memset(bound, 0, (size_t)n * sizeof *bound);
}

void clt_ref_attention_gradients_dq_at(const clt_ref_attention_params *p, clt_dtype type, place at,
                                       const clt_ref_attention_gradients_out *g) {
    clear(g->dq, g->dq_bound, p->head_dim);
    for (int64_t j = 0; j < p->seq; j++)
        if (visible(p, at, j))
            add_dq(p, added_pair(p, type, at, j), at, j, at.head / (p->heads / p->kv_heads), g->dq,
                   g->dq_bound);
    finish(type, (double)p->scale, 1, p->head_dim, NULL, 0, g->dq, g->dq_bound);
}

void clt_ref_attention_gradients_dkv_at(const clt_ref_attention_params *p, clt_dtype type, place at,
                                        const clt_ref_attention_gradients_out *g) {
    const int64_t n = p->head_dim, group = p->heads / p->kv_heads;
    clear(g->dk, g->dk_bound, n);
    clear(g->dv, g->dv_bound, n);
    for (place a = {at.sample, at.head * group, 0}; a.head < (at.head + 1) * group; a.head++)
        for (a.row = 0; a.row < p->seq; a.row++)
            if (visible(p, a, at.row)) add_dkv(p, added_pair(p, type, a, at.row), a, g, 0);
    const int64_t key = at.sample * p->seq + at.row;
    finish(type, (double)p->scale, 1, n, p->accumulate_kv ? p->dk + key * p->lddk + at.head * n : NULL, 0,
           g->dk, g->dk_bound);
    finish(type, 1, 1, n, p->accumulate_kv ? p->dv + key * p->lddv + at.head * n : NULL, 0, g->dv,
           g->dv_bound);
}

typedef struct {
    const params *p;
    clt_dtype type;
    const clt_ref_attention_gradients_out *g;
} all_rows;

static void dq_of_row(void *ctx, size_t i) {
    const all_rows *all = ctx;
    const int64_t heads = all->p->heads, row = (int64_t)i / heads, to = (int64_t)i * all->p->head_dim;
    const place at = {row / all->p->seq, (int64_t)i % heads, row % all->p->seq};
    const clt_ref_attention_gradients_out g = {.dq = all->g->dq + to, .dq_bound = all->g->dq_bound + to};
    clt_ref_attention_gradients_dq_at(all->p, all->type, at, &g);
}

static void dkv_of_row(void *ctx, size_t i) {
    const all_rows *all = ctx;
    const int64_t heads = all->p->kv_heads, row = (int64_t)i / heads, to = (int64_t)i * all->p->head_dim;
    const place at = {row / all->p->seq, (int64_t)i % heads, row % all->p->seq};
    const clt_ref_attention_gradients_out g = {.dk = all->g->dk + to,
                                               .dv = all->g->dv + to,
                                               .dk_bound = all->g->dk_bound + to,
                                               .dv_bound = all->g->dv_bound + to};
    clt_ref_attention_gradients_dkv_at(all->p, all->type, at, &g);
}

void clt_ref_attention_gradients(const clt_ref_attention_params *p, clt_dtype type,
                                 const clt_ref_attention_gradients_out *g) {
    all_rows all = {p, type, g};
    clt_parallel_for((size_t)(p->batch * p->seq * p->heads), 0, dq_of_row, &all);
    clt_parallel_for((size_t)(p->batch * p->seq * p->kv_heads), 0, dkv_of_row, &all);
}
