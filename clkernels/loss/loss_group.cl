/* loss_group: softmax cross-entropy with a work-group of WG items per row. The largest value and the gradient
 * have no order and use all items; the sum has 64 lanes. README.md defines the bits.
 *
 * Macros: WG (a power of two, at least 64, or 1), SOFTCAP 0|1, GRAD 0|1, APART 0|1 (the target's one is left
 * to the caller), TYPE (clt_dtype of the logits). With fp32 logits and a gradient, tanh and exponentials stay
 * in the row between the passes. In 16 bits they would be rounded, so they are recomputed. */
#ifndef WG
#define WG 64
#endif
#if (WG < 64 && WG != 1) || (WG & (WG - 1))
#error "WG is a power of two, at least 64, or 1"
#endif
#include "../include/clt_math.clh"
#include "../include/clt_row.clh"
#define Z float
#define Z_TANH clt_tanh
#include "loss_max.clh"
#include "loss_z.clh"

/* The tree over the sums of the lanes, to all items. Elements of the row that were read before may be written
 * after it. */
static inline float group_tree(clt_lane_sums sums, __local float *s) {
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    return clt_lane_sums_tree(sums, s);
}

/* Row sum of exp(z - m). If the gradient needs the exponentials, all items leave them in place; then the
 * lanes only add. Otherwise all items compute a part of the row's into local memory, and the lanes add them
 * while the next part is computed. parts: 2 * PART floats, with PARTED. */
#define PARTED (WG > 64 && !(KEEP && !SOFTCAP))
#define PART (8 * WG)
static inline float row_exp_sum(__global elem *x, size_t n, float m, float scale, float cap, __local float *s,
                                __local float *parts, uint item) {
    clt_lane_sums sums = clt_lane_sums_none();
#if KEEP && !SOFTCAP
    for (size_t i = item; i < n; i += WG) x[i] = clt_exp(second_z(x[i], scale, cap) - m);
    barrier(CLK_GLOBAL_MEM_FENCE);
#define TERM(i) x[i]
#else
#if KEEP
    barrier(CLK_GLOBAL_MEM_FENCE); /* other items wrote tanh in the first pass */
#endif
#define TERM(i) clt_exp(second_z(CLT_LOAD(TYPE, x + (i)), scale, cap) - m)
#endif
#if PARTED
    float acc = 0.0f;
    for (size_t first = 0; first < n; first += PART) {
        __local float *part = parts + (first / PART & 1) * PART;
        const uint count = (uint)min(n - first, (size_t)PART);
        for (uint i = item; i < count; i += WG) part[i] = TERM(first + i);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < 64)
            for (uint i = item; i < count; i += 64) acc = acc + part[i];
    }
    if (item < 64) sums = clt_lane_sums_add(sums, 0, acc);
#else
    if (item < 64)
        for (uint k = 0; k < CLT_OWN_LANES; k++) {
            float acc = 0.0f;
            for (size_t i = clt_own_lane(k); i < n; i += 64) acc = acc + TERM(i);
            sums = clt_lane_sums_add(sums, k, acc);
        }
#endif
    return group_tree(sums, s);
}

#if GRAD
/* The row's gradient in place of its logits, or of the tanh or exponentials that the passes left there. r: 1
 * over the row sum; w: the row's weight. */
static inline void row_gradient(__global elem *x, size_t n, uint target, float m, float r, float w,
                                float scale, float cap, uint item) {
    float t;
    for (size_t i = item; i < n; i += WG) {
#if !KEEP
        float d = clt_exp(first_z(CLT_LOAD(TYPE, x + i), scale, cap, &t) - m) * r;
#elif SOFTCAP
        t = x[i];
        float d = clt_exp(t * cap - m) * r;
#else
        float d = x[i] * r;
#endif
#if !APART
        if (i == (size_t)target) d = d - 1.0f;
#endif
        d = d * w;
#if SOFTCAP
        d = d * fma(-t, t, 1.0f);
#endif
        CLT_STORE(TYPE, d * scale, x + i);
    }
}
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
loss(__global elem *logits, ulong logits_off, __global const int *targets, ulong targets_off,
     __global float *token_loss, ulong token_loss_off, __global int *correct, ulong correct_off,
     __global const float *row_weight, ulong row_weight_off, ulong vocab, ulong ld, float scale, float softcap,
     float weight) {
    __local float s[WG];
    __local float target_z;
#if PARTED
    __local float parts[2 * PART];
#else
    __local float *parts = 0;
#endif
    const size_t row = get_group_id(0), n = vocab;
    const uint item = (uint)get_local_id(0);
    const int target = targets[targets_off + row];
    __global elem *x = logits + logits_off + row * ld;
    float t;
    if (target < 0 || (ulong)target >= vocab) {
        if (item == 0) token_loss[token_loss_off + row] = target < 0 ? 0.0f : NAN;
        if (item == 0 && correct) correct[correct_off + row] = 0;
#if GRAD
        for (size_t i = item; i < n; i += WG) CLT_STORE(TYPE, 0.0f, x + i);
#endif
        return;
    }
    /* Element i belongs to item i % WG in every pass, so the item with the target reads it before changing
     * it. */
    const bool owner = item == (uint)target % WG;
    if (owner) target_z = first_z(CLT_LOAD(TYPE, x + target), scale, softcap, &t);
    float m = -INFINITY;
    for (size_t i = item; i < n; i += WG) {
        const float z = first_z(CLT_LOAD(TYPE, x + i), scale, softcap, &t);
        m = z > m ? z : m;
#if SOFTCAP && KEEP
        x[i] = t;
#endif
    }
    m = group_max(m, s, item);
    const float z = target_z;
    if (correct) {
        float lower = 0.0f;
        if (z == m)
            for (size_t i = item; i < (size_t)target; i += WG)
                if (second_z(CLT_LOAD(TYPE, x + i), scale, softcap) == m) lower = 1.0f;
        lower = group_max(lower, s, item);
        if (item == 0) correct[correct_off + row] = z == m && lower == 0.0f;
    }
    const float sum = row_exp_sum(x, n, m, scale, softcap, s, parts, item);
    if (item == 0) token_loss[token_loss_off + row] = clt_log(sum) + (m - z);
#if GRAD
    const float w = row_weight ? row_weight[row_weight_off + row] : weight;
    row_gradient(x, n, (uint)target, m, 1.0f / sum, w, scale, softcap, item);
#endif
}
