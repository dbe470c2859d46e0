/* The oracle of the optimizers. */
#include <math.h>

#include "runtime/ops/ref/clt_ref.h"

/* Values with a magnitude below 2^-126 become +0. */
static float flush(float x) {
    return fabsf(x) < 0x1p-126f ? 0.0f : x;
}

void clt_ref_adamw(uint64_t n, float *p, const float *g, float *m, float *v, const clt_optimizer_group *group,
                   float clip) {
    if (group->frozen != 0.0f) return;
    for (uint64_t i = 0; i < n; i++) {
        float gi = fmaf(group->l2, p[i], g[i] * clip);
        m[i] = flush(fmaf(group->beta1, m[i], group->one_minus_beta1 * gi));
        v[i] = flush(fmaf(group->beta2, v[i], group->one_minus_beta2 * (gi * gi)));
        float denominator = sqrtf(v[i]) / group->bias_correction + group->eps;
        p[i] = p[i] * group->decay - group->step_size * (m[i] / denominator);
    }
}

void clt_ref_lion(uint64_t n, float *p, const float *g, float *m, const clt_optimizer_group *group,
                  float clip) {
    if (group->frozen != 0.0f) return;
    for (uint64_t i = 0; i < n; i++) {
        float d = g[i] * clip - m[i], u = fmaf(group->one_minus_beta1, d, m[i]);
        float sign = u > 0.0f ? 1.0f : u < 0.0f ? -1.0f : 0.0f;
        p[i] = p[i] * group->decay - group->lr * sign;
        m[i] = flush(fmaf(group->one_minus_beta2, d, m[i]));
    }
}

void clt_ref_sgd(uint64_t n, float *p, const float *g, float *m, const clt_optimizer_group *group,
                 float clip) {
    if (group->frozen != 0.0f) return;
    for (uint64_t i = 0; i < n; i++) {
        const float gi = fmaf(group->l2, p[i], g[i] * clip);
        m[i] = flush(fmaf(group->beta1, m[i], gi));
        p[i] = p[i] - group->lr * (group->nesterov != 0.0f ? fmaf(group->beta1, m[i], gi) : m[i]);
    }
}

void clt_ref_lamb_direction(uint64_t n, const float *p, float *g, float *m, float *v,
                            const clt_optimizer_group *group, float clip) {
    if (group->frozen != 0.0f) return;
    for (uint64_t i = 0; i < n; i++) {
        const float gi = g[i] * clip;
        m[i] = flush(fmaf(group->beta1, m[i], group->one_minus_beta1 * gi));
        v[i] = flush(fmaf(group->beta2, v[i], group->one_minus_beta2 * (gi * gi)));
        const float u = m[i] * group->step_size / (sqrtf(v[i]) / group->bias_correction + group->eps);
        g[i] = fmaf(group->l2, p[i], u);
    }
}

float clt_ref_lamb_ratio(uint64_t segments, const float *weights, const float *directions,
                         const clt_optimizer_group *group) {
    float p = 0.0f, u = 0.0f;
    for (uint64_t i = 0; i < segments; i++) {
        p = p + weights[i];
        u = u + directions[i];
    }
    const bool limited = group->most_ratio != 0.0f;
    if ((group->l2 == 0.0f && !limited) || !(p > 0.0f && u > 0.0f)) return 1.0f;
    const float r = sqrtf(p) / sqrtf(u);
    return limited ? fminf(fmaxf(r, group->least_ratio), group->most_ratio) : r;
}

void clt_ref_lamb_apply(uint64_t n, float *p, const float *u, const clt_optimizer_group *group, float ratio) {
    if (group->frozen != 0.0f) return;
    const float rate = group->lr * ratio;
    for (uint64_t i = 0; i < n; i++) p[i] = p[i] - rate * u[i];
}
