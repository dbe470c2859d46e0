/* loss_rows: softmax cross-entropy, one work-item per row, in float16. Passes over the row: largest value, sum of
 * exponentials (kept in place for the gradient), gradient. README.md defines the bits.
 *
 * Macros: SOFTCAP 0|1, GRAD 0|1. */
#include "../include/clt_math.clh"
#include "../include/clt_reduce.clh"

#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef GRAD
#define GRAD 1
#endif

/* From 16 logits, resp. from what the first pass left in their place. */
static inline float16 first_z(float16 v, float scale, float cap, float16 *t) {
#if SOFTCAP
    *t = clt_tanh16(v * scale / cap);
    return *t * cap;
#else
    *t = v;
    return v * scale;
#endif
}
static inline float16 second_z(float16 v, float scale, float cap) {
#if SOFTCAP && GRAD
    return v * cap;
#else
    float16 t;
    return first_z(v, scale, cap, &t);
#endif
}

static inline float16 larger(float16 a, float16 b) {
    return a > b ? a : b;
}

/* The largest z of the row. With a softcap and a gradient to come, tanh replaces the logits. */
static inline float row_max(__global float *x, size_t n, float scale, float cap) {
    float16 m0 = (float16)(-INFINITY), m1 = m0, t0, t1;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        m0 = larger(first_z(vload16(0, x + i), scale, cap, &t0), m0);
        m1 = larger(first_z(vload16(0, x + i + 16), scale, cap, &t1), m1);
#if SOFTCAP && GRAD
        vstore16(t0, 0, x + i);
        vstore16(t1, 0, x + i + 16);
#endif
    }
    m0 = larger(m0, m1);
    float8 m8 = m0.lo > m0.hi ? m0.lo : m0.hi;
    float4 m4 = m8.lo > m8.hi ? m8.lo : m8.hi;
    float2 m2 = m4.lo > m4.hi ? m4.lo : m4.hi;
    float m = m2.x > m2.y ? m2.x : m2.y;
    for (; i < n; i++) {
#if SOFTCAP
        const float t = clt_tanh(x[i] * scale / cap), z = t * cap;
#if GRAD
        x[i] = t;
#endif
#else
        const float z = x[i] * scale;
#endif
        m = z > m ? z : m;
    }
    return m;
}

/* exp(z - m) of 16 elements, left in place where the last pass wants it. */
static inline float16 exponential(__global float *x, float m, float scale, float cap) {
    const float16 e = clt_exp16(second_z(vload16(0, x), scale, cap) - m);
#if GRAD && !SOFTCAP
    vstore16(e, 0, x);
#endif
    return e;
}
static inline float16 exponential_part(__global float *x, size_t n, float m, float scale, float cap) {
    const float16 e = clt_keep16(clt_exp16(second_z(clt_load16(x, n), scale, cap) - m), n);
#if GRAD && !SOFTCAP
    clt_store16(e, x, n);
#endif
    return e;
}

static inline float row_exp_sum(__global float *x, size_t n, float m, float scale, float cap) {
    clt_lanes s = clt_lanes_zero();
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        s.a += exponential(x + i, m, scale, cap);
        s.b += exponential(x + i + 16, m, scale, cap);
        s.c += exponential(x + i + 32, m, scale, cap);
        s.d += exponential(x + i + 48, m, scale, cap);
    }
    if (i < n) {
        s.a += exponential_part(x + i, clt_lanes_left(n - i, 0), m, scale, cap);
        s.b += exponential_part(x + i + 16, clt_lanes_left(n - i, 1), m, scale, cap);
        s.c += exponential_part(x + i + 32, clt_lanes_left(n - i, 2), m, scale, cap);
        s.d += exponential_part(x + i + 48, clt_lanes_left(n - i, 3), m, scale, cap);
    }
    return clt_lanes_tree(s);
}

/* The gradient of 16 elements that are not the target; v: what the passes before left. */
static inline float16 gradient(float16 v, float m, float r, float weight, float scale, float cap) {
#if SOFTCAP
    const float16 d = clt_exp16(v * cap - m) * r * weight;
    return d * fma(-v, v, (float16)(1.0f)) * scale;
#else
    return v * r * weight * scale;
#endif
}

__kernel void loss(__global float *logits, ulong logits_off, __global const int *targets, ulong targets_off,
                   __global float *token_loss, ulong token_loss_off, __global int *correct, ulong correct_off,
                   __global const float *row_weight, ulong row_weight_off, ulong vocab, ulong ld, float scale,
                   float softcap, float weight) {
    const size_t row = get_global_id(0), n = vocab;
    const int target = targets[targets_off + row];
    __global float *x = logits + logits_off + row * ld;
    size_t i = 0;
    if (target < 0 || (ulong)target >= vocab) {
        token_loss[token_loss_off + row] = target < 0 ? 0.0f : NAN;
        if (correct) correct[correct_off + row] = 0;
#if GRAD
        for (; i < n; i += 16) clt_store16((float16)(0.0f), x + i, n - i);
#endif
        return;
    }
#if SOFTCAP
    const float t = clt_tanh(x[target] * scale / softcap), z = t * softcap;
#else
    const float z = x[target] * scale;
#endif
    const float m = row_max(x, n, scale, softcap);
    if (correct) {
        int lower = z != m;
        for (i = 0; !lower && i < (size_t)target; i += 16) {
            const float16 v = second_z(clt_load16(x + i, (size_t)target - i), scale, softcap);
            lower = any(clt_keep16(v == m ? (float16)(1.0f) : (float16)(0.0f), (size_t)target - i) != 0.0f);
        }
        correct[correct_off + row] = !lower;
    }
    const float sum = row_exp_sum(x, n, m, scale, softcap);
    token_loss[token_loss_off + row] = clt_log(sum) + (m - z);
#if GRAD
    const float r = 1.0f / sum, w = row_weight ? row_weight[row_weight_off + row] : weight;
    for (i = 0; i + 16 <= n; i += 16)
        vstore16(gradient(vload16(0, x + i), m, r, w, scale, softcap), 0, x + i);
    if (i < n) clt_store16(gradient(clt_load16(x + i, n - i), m, r, w, scale, softcap), x + i, n - i);
    float d = (clt_exp(z - m) * r - 1.0f) * w;
#if SOFTCAP
    d = d * fma(-t, t, 1.0f);
#endif
    x[target] = d * scale;
#endif
}
