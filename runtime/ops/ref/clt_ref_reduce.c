/* The oracle of the reductions: the row rule and the sums built on it. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>

#include "runtime/device/clt_slab.h"

static float tree64(float lane[64]) {
    for (int d = 32; d > 0; d >>= 1)
        for (int l = 0; l < d; l++) lane[l] += lane[l + d];
    return lane[0];
}

float clt_ref_row_sum(const float *x, int64_t n) {
    float lane[64] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % 64] += x[i];
    return tree64(lane);
}

float clt_ref_row_sumsq(const float *x, int64_t n) {
    float lane[64] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % 64] = fmaf(x[i], x[i], lane[i % 64]);
    return tree64(lane);
}

float clt_ref_chunk_sumsq(const float *x) {
    return clt_ref_row_sumsq(x, CLT_CHUNK);
}

void clt_ref_norm_status(const float *chunk_sums, uint64_t n, float threshold, float inv_scale,
                         float status[3]) {
    float norm = inv_scale * sqrtf(clt_ref_row_sum(chunk_sums, (int64_t)n)), c = 1.0f;
    if (threshold > 0.0f && threshold / (norm + 1e-6f) < 1.0f) c = threshold / (norm + 1e-6f);
    status[0] = norm;
    status[1] = inv_scale * c;
    status[2] = isfinite(norm) ? 1.0f : 0.0f;
}

void clt_ref_sum_parts(const clt_sum_parts *s, const float *const *in, float *out) {
    for (uint64_t i = 0; i < s->count; i++) {
        float stack[CLT_PARTS_MOST];
        int top = 0;
        for (int p = 0; p < s->n; p++) {
            stack[top++] = s->round ? clt_ref_rounded(CLT_BF16, in[p][i]) : in[p][i];
            for (int j = 0; j < s->part[p].joins; j++, top--) stack[top - 2] += stack[top - 1];
        }
        out[i] = s->round ? clt_ref_rounded(CLT_BF16, stack[0]) : stack[0];
    }
}

void clt_ref_guard(uint64_t n, const float *x, float flag, float *g) {
    bool bad = flag != 1.0f;
    for (uint64_t i = 0; i < n; i++) bad |= !isfinite(x[i]);
    if (bad) g[0] = NAN;
}

int32_t clt_ref_greedy(const float *x, int64_t n) {
    float most = -INFINITY;
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > most) most = x[i], best = i;
    return (int32_t)best;
}
