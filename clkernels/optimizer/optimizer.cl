/* AdamW, Lion and SGD over a contiguous piece of the slab, in place (docs/numerics.md has the formulas with
 * every rounding). Nothing is written unless status[2] is 1.
 *
 *   p, g, m, v        fp32, `count` elements (a multiple of 64)
 *   groups            array of clt_optimizer_group (14 floats each, see below)
 *   group_of_block    one byte per 64 elements
 *   status            {norm, clip coefficient, finite flag}
 *   copy              receives the new weights as COPY_TYPE, also those of frozen groups; an argument with
 *                     HAS_COPY 1
 *   LANES, SEG        include/clt_lane.clh; SEG is 1 or a multiple of 64
 *
 * Global size {work-items}. Requires nothing. Memory bound: AdamW 28, Lion and SGD 20 bytes per element, a
 * 16-bit copy 2 more. */
#include "../include/clt_lane.clh"

#ifndef HAS_COPY
#define HAS_COPY 0
#endif
#ifndef COPY_TYPE
#define COPY_TYPE 1
#endif
typedef CLT_T(COPY_TYPE) copy_elem;
#if HAS_COPY
#define PUT_COPY(v, at) VSTORE_AS(COPY_TYPE, v, copy + (at), LANES)
#else
#define PUT_COPY(v, at)
#endif

#define GROUP_FLOATS 14
#define LR s[0]
#define DECAY s[1]
#define STEP_SIZE s[2]
#define BIAS_CORRECTION s[3]
#define BETA1 s[4]
#define BETA2 s[5]
#define ONE_MINUS_BETA1 s[6]
#define ONE_MINUS_BETA2 s[7]
#define EPS s[8]
#define FROZEN s[9]
#define L2 s[10]
#define NESTEROV s[11]

/* Values below 2^-126 become +0: idle rows would otherwise keep denormal numbers, which slow CPUs down. */
static inline VEC flush(VEC x) {
    return ((x < 0x1p-126f) & (x > -0x1p-126f)) ? (VEC)(0.0f) : x;
}

/* All process blocks of 64 elements, so that the group's values are read once per block. */
#define BLOCK (SEG < 64 ? SEG : 64)
#define FOR_BLOCKS(b, count)                                                                                 \
    for (size_t b = get_global_id(0) * SEG, b##_end = b + SEG < (count) ? b + SEG : (count); b < b##_end;    \
         b += BLOCK)

#define COPY_BLOCK(b)                                                                                        \
    for (size_t i_ = b; HAS_COPY && i_ < b + BLOCK; i_ += LANES) PUT_COPY(VLOAD(p + i_, LANES), i_)

#define GROUP_OF(b)                                                                                          \
    (groups + groups_off + group_of_block[group_of_block_off + (b) / 64] * (size_t)GROUP_FLOATS)

/* Arguments and first statements of the optimizers without a second moment. */
#define ONE_MOMENT_ARGS                                                                                      \
    ulong count, __global float *p, ulong p_off, __global const float *g, ulong g_off, __global float *m,    \
        ulong m_off, __global const float *groups, ulong groups_off, __global const uchar *group_of_block,   \
        ulong group_of_block_off, __global const float *status, ulong status_off, __global copy_elem *copy,  \
        ulong copy_off
#define ONE_MOMENT_BEGIN                                                                                     \
    if (status[status_off + 2] != 1.0f) return;                                                              \
    const float clip = status[status_off + 1];                                                               \
    p += p_off, g += g_off, m += m_off, copy += copy_off;

__kernel void adamw(ulong count, __global float *p, ulong p_off, __global const float *g, ulong g_off,
                    __global float *m, ulong m_off, __global float *v, ulong v_off,
                    __global const float *groups, ulong groups_off, __global const uchar *group_of_block,
                    ulong group_of_block_off, __global const float *status, ulong status_off,
                    __global copy_elem *copy, ulong copy_off) {
    if (status[status_off + 2] != 1.0f) return;
    float clip = status[status_off + 1];
    p += p_off, g += g_off, m += m_off, v += v_off, copy += copy_off;
    FOR_BLOCKS(b, count) {
        __global const float *s = GROUP_OF(b);
        if (FROZEN != 0.0f) {
            COPY_BLOCK(b);
            continue;
        }
        float decay = DECAY, step_size = STEP_SIZE, bc = BIAS_CORRECTION, eps = EPS, l2 = L2;
        float b1 = BETA1, b2 = BETA2, omb1 = ONE_MINUS_BETA1, omb2 = ONE_MINUS_BETA2;
        for (size_t i = b; i < b + BLOCK; i += LANES) {
            VEC pi = VLOAD(p + i, LANES);
            VEC gi = fma((VEC)(l2), pi, VLOAD(g + i, LANES) * clip);
            VEC mi = flush(fma((VEC)(b1), VLOAD(m + i, LANES), omb1 * gi));
            VEC vi = flush(fma((VEC)(b2), VLOAD(v + i, LANES), omb2 * (gi * gi)));
            pi = pi * decay - step_size * (mi / (sqrt(vi) / bc + eps));
            VSTORE(pi, p + i, LANES);
            PUT_COPY(pi, i);
            VSTORE(mi, m + i, LANES);
            VSTORE(vi, v + i, LANES);
        }
    }
}

__kernel void lion(ONE_MOMENT_ARGS) {
    ONE_MOMENT_BEGIN
    FOR_BLOCKS(b, count) {
        __global const float *s = GROUP_OF(b);
        if (FROZEN != 0.0f) {
            COPY_BLOCK(b);
            continue;
        }
        float decay = DECAY, lr = LR, omb1 = ONE_MINUS_BETA1, omb2 = ONE_MINUS_BETA2;
        for (size_t i = b; i < b + BLOCK; i += LANES) {
            VEC mi = VLOAD(m + i, LANES);
            VEC d = VLOAD(g + i, LANES) * clip - mi;
            VEC u = fma((VEC)(omb1), d, mi);
            VEC sign = u > 0.0f ? (VEC)(1.0f) : (u < 0.0f ? (VEC)(-1.0f) : (VEC)(0.0f));
            VEC pi = VLOAD(p + i, LANES) * decay - lr * sign;
            VSTORE(pi, p + i, LANES);
            PUT_COPY(pi, i);
            VSTORE(flush(fma((VEC)(omb2), d, mi)), m + i, LANES);
        }
    }
}

/* BETA1 is the momentum. */
__kernel void sgd(ONE_MOMENT_ARGS) {
    ONE_MOMENT_BEGIN
    FOR_BLOCKS(b, count) {
        __global const float *s = GROUP_OF(b);
        if (FROZEN != 0.0f) {
            COPY_BLOCK(b);
            continue;
        }
        const float lr = LR, l2 = L2, momentum = BETA1;
        const bool nesterov = NESTEROV != 0.0f;
        for (size_t i = b; i < b + BLOCK; i += LANES) {
            VEC pi = VLOAD(p + i, LANES);
            const VEC gi = fma((VEC)(l2), pi, VLOAD(g + i, LANES) * clip);
            const VEC mi = flush(fma((VEC)(momentum), VLOAD(m + i, LANES), gi));
            pi = pi - lr * (nesterov ? fma((VEC)(momentum), mi, gi) : mi);
            VSTORE(pi, p + i, LANES);
            PUT_COPY(pi, i);
            VSTORE(mi, m + i, LANES);
        }
    }
}
