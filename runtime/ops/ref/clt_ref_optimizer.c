/* The oracle of the optimizers and the casts. */
#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

/* Values of magnitude below 2^-126 become +0. */
static float flush(float x) {
    return fabsf(x) < 0x1p-126f ? 0.0f : x;
}

void clt_ref_adamw(uint64_t n, float *p, const float *g, float *m, float *v, const clt_optimizer_group *group,
                   float clip) {
    if (group->frozen != 0.0f) return;
    for (uint64_t i = 0; i < n; i++) {
        float gi = g[i] * clip;
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

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t clt_ref_f32_to_bf16(float x) {
    uint32_t u = bits_of(x), low = u & 0xffff;
    uint16_t b = (uint16_t)(u >> 16);
    if (isnan(x)) return b | 0x40;
    if (low > 0x8000 || (low == 0x8000 && (b & 1))) b++;
    return b;
}

float clt_ref_bf16_to_f32(uint16_t b) {
    return float_of((uint32_t)b << 16);
}

/* The value in units of the last place that a half of its size has, rounded to an even integer by nearbyint.
 */
uint16_t clt_ref_f32_to_f16(float x) {
    uint32_t u = bits_of(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (isnan(x)) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    double a = fabs((double)x);
    if (a >= 65520.0) return sign | 0x7c00;
    int e = a < 0x1p-14 ? -14 : ilogb(a);
    int64_t units = (int64_t)nearbyint(ldexp(a, 10 - e)); /* 0..2048 of 2^(e-10) */
    if (a < 0x1p-14) return (uint16_t)(sign | units);     /* 1024 units are the smallest normal half */
    return (uint16_t)(sign | (((e + 14) << 10) + units));
}

float clt_ref_f16_to_f32(uint16_t h) {
    int e = h >> 10 & 31, m = h & 0x3ff;
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    if (e == 31) return float_of(sign | 0x7f800000u | (m ? 0x400000u | (uint32_t)m << 13 : 0));
    double a = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return float_of(sign | bits_of((float)a));
}

void clt_ref_narrow(clt_dtype type, const float *x, size_t n, void *out) {
    uint16_t *u = out;
    if (type == CLT_F32)
        memcpy(out, x, n * sizeof *x);
    else
        for (size_t i = 0; i < n; i++)
            u[i] = type == CLT_BF16 ? clt_ref_f32_to_bf16(x[i]) : clt_ref_f32_to_f16(x[i]);
}

void clt_ref_widen(clt_dtype type, const void *in, size_t n, float *x) {
    const uint16_t *u = in;
    if (type == CLT_F32)
        memcpy(x, in, n * sizeof *x);
    else
        for (size_t i = 0; i < n; i++)
            x[i] = type == CLT_BF16 ? clt_ref_bf16_to_f32(u[i]) : clt_ref_f16_to_f32(u[i]);
}

clt_status clt_ref_read_as(clt_ref r, clt_dtype type, float *x, size_t n) {
    const uint64_t size = clt_dtype_bytes(type);
    void *stored = clt_malloc(CLT_MAX(n, 1) * sizeof *x);
    const clt_status st = clt_buffer_read(r.buf, r.off * size, stored, n * size);
    if (st == CLT_OK) clt_ref_widen(type, stored, n, x);
    clt_free(stored);
    return st;
}

float clt_ref_rounded(clt_dtype type, float x) {
    clt_ref_round(type, &x, 1);
    return x;
}

void clt_ref_round(clt_dtype type, float *x, size_t n) {
    for (size_t i = 0; i < n && type != CLT_F32; i++)
        x[i] = type == CLT_BF16 ? clt_ref_bf16_to_f32(clt_ref_f32_to_bf16(x[i]))
                                : clt_ref_f16_to_f32(clt_ref_f32_to_f16(x[i]));
}
