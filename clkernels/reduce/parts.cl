/* dst[i] = the sum of up to eight parts' elements i, in the order of a tree (runtime/device/clt_sum_parts.h).
 *
 *   LANES, SEG   include/clt_lane.clh
 *
 * Part p is bf16 if bit p of `narrow` is set, otherwise fp32; 4 bits of `joins` say how often the two topmost
 * numbers are added after it. Parts from n on may be NULL. The stack is four variables that move, so that no
 * index into it is needed.
 *
 * Global size {work-items}. Requires nothing. Memory bound: the bytes of the parts and of dst. An exchange
 * runs it beside the kernels of a pass, where each kernel waits for free compute units; so it is one. */
#include "../include/clt_cast.clh"
#include "../include/clt_lane.clh"

static inline float round_part(float x) {
    return clt_bf16_to_f32(clt_f32_to_bf16(x));
}
#if LANES == 16
static inline float16 round_part16(float16 x) {
    return clt_bf16_to_f3216(clt_f32_to_bf1616(x));
}
#endif

#define PART_ARGS(p) __global const void *in##p, ulong off##p
#define PUSH(p)                                                                                              \
    if (p < n) {                                                                                             \
        d = c;                                                                                               \
        c = b;                                                                                               \
        b = a;                                                                                               \
        if (narrow >> p & 1) {                                                                               \
            a = VLOAD_AS(1, (__global const ushort *)in##p + off##p + i, end - i);                           \
        } else {                                                                                             \
            a = VLOAD_AS(0, (__global const float *)in##p + off##p + i, end - i);                            \
            if (rounded) a = VMAP(round_part, a);                                                            \
        }                                                                                                    \
        for (uint j = joins >> 4 * p & 15; j > 0; j--) {                                                     \
            a = b + a;                                                                                       \
            b = c;                                                                                           \
            c = d;                                                                                           \
        }                                                                                                    \
    }

__kernel void sum_parts(ulong count, PART_ARGS(0), PART_ARGS(1), PART_ARGS(2), PART_ARGS(3), PART_ARGS(4),
                        PART_ARGS(5), PART_ARGS(6), PART_ARGS(7), int n, uint narrow, uint joins, int rounded,
                        __global float *dst, ulong dst_off) {
    CLT_SPAN(i, end, count) {
        VEC a = (VEC)(0.0f), b = a, c = a, d = a;
        PUSH(0)
        PUSH(1)
        PUSH(2)
        PUSH(3)
        PUSH(4)
        PUSH(5)
        PUSH(6)
        PUSH(7)
        if (rounded) a = VMAP(round_part, a);
        VSTORE_AS(0, a, dst + dst_off + i, end - i);
    }
}
