/* Attention by the formula in double, one query row at a time, with a bound for bodies on matrix units. */
#include "clt_ref.h"

#include <math.h>

#include "../clt_dropout.h"

typedef clt_ref_attention_params params;
typedef clt_ref_attention_at place;

static bool visible(const params *p, place a, int64_t j) {
    if (p->window >= 0 && j < a.row - p->window) return false;
    return !p->seq_ids || p->seq_ids[a.sample * p->seq + a.row] == p->seq_ids[a.sample * p->seq + j];
}

/* The score of a pair; *size: the sum of the sizes of what is added up in it. */
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
    if (!p->slopes) return s;
    double bias = (double)p->slopes[a.head] * (double)(j - a.row);
    *size += fabs(bias);
    return s + bias;
}

static double factor(const params *p, place a, int64_t j) {
    if (!(p->dropout > 0.0f)) return 1.0;
    return (double)clt_ref_dropout_factor(p->dropout, p->seed, p->step, p->first_sample + a.sample, p->layer,
                                          CLT_SITE_ATTENTION,
                                          (uint64_t)((a.head * p->seq + a.row) * p->seq + j));
}

/* The bound. A score adds head_dim + 2 terms in fp32, in any order and with truncation inside a matrix unit:
 * e_s = (head_dim + 8) * 2^-23 * size. Its exponential is then wrong by the factor 1 + e_s (first order), and
 * so is the sum; a weight is rounded to `type` (unit roundoff u) and so is the output; sums in fp32 add
 * 2^-21 per 64 keys. fp16 has an absolute step besides, 2^-25 for a weight and for the output. So
 *     |o - o'| <= (2 u + 2 e_s + 2^-21 (1 + keys / 64)) * sum w |v| + 2^-25 (1 + sum |v|)
 *     |lse - lse'| <= 2 e_s + 2^-21 (1 + keys / 64) + 2^-22 |lse|
 * with e_s at its largest over the row's keys, and a factor 1.01 for terms of second order. */
clt_ref_attention_bound clt_ref_attention_row(const clt_ref_attention_params *p, clt_dtype type,
                                              clt_ref_attention_at at, double *o, double *bound) {
    int64_t n = p->head_dim, keys = at.row + 1;
    double *s = clt_malloc((size_t)keys * sizeof *s), *far = clt_calloc((size_t)n, sizeof *far);
    double max = -INFINITY, sum = 0, largest = 0, size;
    for (int64_t j = 0; j < keys; j++) {
        s[j] = visible(p, at, j) ? score(p, at, j, &size) : -INFINITY;
        if (s[j] == -INFINITY) continue;
        max = fmax(max, s[j]);
        largest = fmax(largest, size);
    }
    for (int64_t j = 0; j < keys; j++) sum += exp(s[j] - max);
    const double lse = max + log(sum), u = type == CLT_BF16 ? 0x1p-8 : type == CLT_F16 ? 0x1p-11 : 0x1p-24;
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
        bound[d] =
            1.01 * (2 * u + 2 * e + adding) * bound[d] + (type == CLT_F16 ? 0x1p-25 * (1 + far[d]) : 0);
    clt_free(far);
    clt_free(s);
    return (clt_ref_attention_bound){lse, 1.01 * (2 * e + adding) + 0x1p-22 * fabs(lse)};
}
