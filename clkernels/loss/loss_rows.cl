/* loss_rows: softmax cross-entropy for CPUs, one work-item per row, in float16. Passes over the row: largest
 * value, sum of exponentials (kept in place for the gradient), gradient. README.md defines the bits.
 *
 * Macros: SOFTCAP 0|1, GRAD 0|1, APART 0|1 (the target's one is left to the caller), TYPE (clt_dtype of the
 * logits). With 16-bit logits the exponentials are recomputed instead of kept. */
#include "../include/clt_math.clh"
#include "../include/clt_reduce.clh"
#define Z float16
#define Z_TANH clt_tanh16
#include "loss_z.clh"

static inline float16 larger(float16 a, float16 b) {
    return a > b ? a : b;
}

/* The largest z of the row. With a softcap and a gradient, tanh replaces the logits. */
static inline float row_max(__global elem *x, size_t n, float scale, float cap) {
    float16 m0 = (float16)(-INFINITY), m1 = m0, t0, t1;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        m0 = larger(first_z(CLT_LOAD16(TYPE, x + i, 16), scale, cap, &t0), m0);
        m1 = larger(first_z(CLT_LOAD16(TYPE, x + i + 16, 16), scale, cap, &t1), m1);
#if SOFTCAP && KEEP
        CLT_VSTORE16(float, t0, x + i);
        CLT_VSTORE16(float, t1, x + i + 16);
#endif
    }
    m0 = larger(m0, m1);
    float8 m8 = m0.lo > m0.hi ? m0.lo : m0.hi;
    float4 m4 = m8.lo > m8.hi ? m8.lo : m8.hi;
    float2 m2 = m4.lo > m4.hi ? m4.lo : m4.hi;
    float m = m2.x > m2.y ? m2.x : m2.y;
    for (; i < n; i++) {
#if SOFTCAP
        const float t = clt_tanh(CLT_LOAD(TYPE, x + i) * scale / cap), z = t * cap;
#if KEEP
        x[i] = t;
#endif
#else
        const float z = CLT_LOAD(TYPE, x + i) * scale;
#endif
        m = z > m ? z : m;
    }
    return m;
}

/* exp(z - m) of 16 elements, left in place if the last pass needs it. */
static inline float16 exponential(__global elem *x, float m, float scale, float cap) {
    const float16 e = clt_exp16(second_z(CLT_LOAD16(TYPE, x, 16), scale, cap) - m);
#if KEEP && !SOFTCAP
    CLT_VSTORE16(float, e, x);
#endif
    return e;
}
static inline float16 exponential_part(__global elem *x, size_t n, float m, float scale, float cap) {
    const float16 e = clt_keep16(clt_exp16(second_z(CLT_LOAD16(TYPE, x, n), scale, cap) - m), n);
#if KEEP && !SOFTCAP
    clt_store16(e, x, n);
#endif
    return e;
}

static inline float row_exp_sum(__global elem *x, size_t n, float m, float scale, float cap) {
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

/* The gradient of 16 elements that do not contain the target; v: the values left by the earlier passes. */
static inline float16 gradient(float16 v, float m, float r, float weight, float scale, float cap) {
#if SOFTCAP
    float16 t = v;
#if !KEEP
    first_z(v, scale, cap, &t);
#endif
    const float16 d = clt_exp16(t * cap - m) * r * weight;
    return d * fma(-t, t, (float16)(1.0f)) * scale;
#elif KEEP
    return v * r * weight * scale;
#else
    return clt_exp16(v * scale - m) * r * weight * scale;
#endif
}

__kernel void loss(__global elem *logits, ulong logits_off, __global const int *targets, ulong targets_off,
                   __global float *token_loss, ulong token_loss_off, __global int *correct, ulong correct_off,
                   __global const float *row_weight, ulong row_weight_off, ulong vocab, ulong ld, float scale,
                   float softcap, float weight) {
    const size_t row = get_global_id(0), n = vocab;
    const int target = targets[targets_off + row];
    __global elem *x = logits + logits_off + row * ld;
    size_t i = 0;
    if (target < 0 || (ulong)target >= vocab) {
        token_loss[token_loss_off + row] = target < 0 ? 0.0f : NAN;
        if (correct) correct[correct_off + row] = 0;
#if GRAD
        for (; i < n; i += 16) CLT_STORE16(TYPE, (float16)(0.0f), x + i, n - i);
#endif
        return;
    }
#if SOFTCAP
    const float t = clt_tanh(CLT_LOAD(TYPE, x + target) * scale / softcap), z = t * softcap;
#else
    const float z = CLT_LOAD(TYPE, x + target) * scale;
#endif
    const float m = row_max(x, n, scale, softcap);
    if (correct) {
        int lower = z != m;
        for (i = 0; !lower && i < (size_t)target; i += 16) {
            const float16 v = second_z(CLT_LOAD16(TYPE, x + i, (size_t)target - i), scale, softcap);
            lower = any(clt_keep16(v == m ? (float16)(1.0f) : (float16)(0.0f), (size_t)target - i) != 0.0f);
        }
        correct[correct_off + row] = !lower;
    }
    const float sum = row_exp_sum(x, n, m, scale, softcap);
    token_loss[token_loss_off + row] = clt_log(sum) + (m - z);
#if GRAD
    const float r = 1.0f / sum, w = row_weight ? row_weight[row_weight_off + row] : weight;
    for (i = 0; i + 16 <= n; i += 16)
        CLT_STORE16(TYPE, gradient(CLT_LOAD16(TYPE, x + i, 16), m, r, w, scale, softcap), x + i, 16);
    if (i < n)
        CLT_STORE16(TYPE, gradient(CLT_LOAD16(TYPE, x + i, n - i), m, r, w, scale, softcap), x + i, n - i);
#if !APART
    float d = (clt_exp(z - m) * r - 1.0f) * w;
#if SOFTCAP
    d = d * fma(-t, t, 1.0f);
#endif
    CLT_STORE(TYPE, d * scale, x + target);
#endif
#endif
}
