/* LAMB in three parts (docs/numerics.md, rule 13): lamb_direction puts the update's direction in place of the
 * gradient, lamb_ratios makes a factor of each tensor from the sums of squares of its segments, lamb_apply
 * changes the weights. Nothing is written unless status[2] is 1.
 *
 *   p, g, m, v, groups, group_of_block, status, copy, LANES, SEG   as in optimizer.cl
 *   tensor_of_block   ushort per 64 elements
 *   tensors           uint4 each: first segment, end of its segments, its first block, 0
 *   places            where each segment's sums are; p_sums, u_sums: those of weights and directions
 *
 * Global size {work-items}; lamb_ratios: one per tensor. Requires nothing. */
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
#define INVERSE s[2]
#define BIAS_CORRECTION s[3]
#define BETA1 s[4]
#define BETA2 s[5]
#define ONE_MINUS_BETA1 s[6]
#define ONE_MINUS_BETA2 s[7]
#define EPS s[8]
#define FROZEN s[9]
#define L2 s[10]
#define LEAST_RATIO s[12]
#define MOST_RATIO s[13]

static inline VEC flush(VEC x) {
    return ((x < 0x1p-126f) & (x > -0x1p-126f)) ? (VEC)(0.0f) : x;
}

#define BLOCK (SEG < 64 ? SEG : 64)
#define FOR_BLOCKS(b, count)                                                                                 \
    for (size_t b = get_global_id(0) * SEG, b##_end = b + SEG < (count) ? b + SEG : (count); b < b##_end;    \
         b += BLOCK)
#define GROUP_OF(block)                                                                                      \
    (groups + groups_off + group_of_block[group_of_block_off + (block)] * (size_t)GROUP_FLOATS)

__kernel void lamb_direction(ulong count, __global const float *p, ulong p_off, __global float *g, ulong g_off,
                             __global float *m, ulong m_off, __global float *v, ulong v_off,
                             __global const float *groups, ulong groups_off, __global const uchar *group_of_block,
                             ulong group_of_block_off, __global const float *status, ulong status_off) {
    if (status[status_off + 2] != 1.0f) return;
    const float clip = status[status_off + 1];
    p += p_off, g += g_off, m += m_off, v += v_off;
    FOR_BLOCKS(b, count) {
        __global const float *s = GROUP_OF(b / 64);
        if (FROZEN != 0.0f) continue;
        const float inverse = INVERSE, bc = BIAS_CORRECTION, eps = EPS, l2 = L2;
        const float b1 = BETA1, b2 = BETA2, omb1 = ONE_MINUS_BETA1, omb2 = ONE_MINUS_BETA2;
        for (size_t i = b; i < b + BLOCK; i += LANES) {
            const VEC gi = VLOAD(g + i, LANES) * clip;
            const VEC mi = flush(fma((VEC)(b1), VLOAD(m + i, LANES), omb1 * gi));
            const VEC vi = flush(fma((VEC)(b2), VLOAD(v + i, LANES), omb2 * (gi * gi)));
            const VEC u = mi * inverse / (sqrt(vi) / bc + eps);
            VSTORE(fma((VEC)(l2), VLOAD(p + i, LANES), u), g + i, LANES);
            VSTORE(mi, m + i, LANES);
            VSTORE(vi, v + i, LANES);
        }
    }
}

__kernel void lamb_ratios(ulong count, __global const uint4 *tensors, ulong tensors_off, __global const uint *places,
                          ulong places_off, __global const float *p_sums, ulong p_sums_off,
                          __global const float *u_sums, ulong u_sums_off, __global const float *groups,
                          ulong groups_off, __global const uchar *group_of_block, ulong group_of_block_off,
                          __global float *ratio, ulong ratio_off) {
    const size_t i = get_global_id(0);
    if (i >= count) return;
    const uint4 t = tensors[tensors_off + i];
    __global const float *s = GROUP_OF((size_t)t.z);
    float p = 0.0f, u = 0.0f;
    for (uint k = t.x; k < t.y; k++) {
        const uint at = places[places_off + k];
        p = p + p_sums[p_sums_off + at];
        u = u + u_sums[u_sums_off + at];
    }
    const bool adapts = (L2 != 0.0f || MOST_RATIO != 0.0f) && p > 0.0f && u > 0.0f;
    float r = adapts ? sqrt(p) / sqrt(u) : 1.0f;
    if (adapts && MOST_RATIO != 0.0f) r = fmin(fmax(r, LEAST_RATIO), MOST_RATIO);
    ratio[ratio_off + i] = r;
}

__kernel void lamb_apply(ulong count, __global float *p, ulong p_off, __global const float *u, ulong u_off,
                         __global const float *groups, ulong groups_off, __global const uchar *group_of_block,
                         ulong group_of_block_off, __global const ushort *tensor_of_block, ulong tensor_of_block_off,
                         __global const float *ratio, ulong ratio_off, __global const float *status,
                         ulong status_off, __global copy_elem *copy, ulong copy_off) {
    if (status[status_off + 2] != 1.0f) return;
    p += p_off, u += u_off, copy += copy_off;
    FOR_BLOCKS(b, count) {
        __global const float *s = GROUP_OF(b / 64);
        const float rate = FROZEN != 0.0f ? 0.0f : LR * ratio[ratio_off + tensor_of_block[tensor_of_block_off + b / 64]];
        for (size_t i = b; i < b + BLOCK; i += LANES) {
            VEC v = VLOAD(p + i, LANES);
            if (FROZEN == 0.0f) {
                v = v - rate * VLOAD(u + i, LANES);
                VSTORE(v, p + i, LANES);
            }
            PUT_COPY(v, i);
        }
    }
}
