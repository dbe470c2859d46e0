/* A 64-bit hash of a tensor's bits, for comparing copies. Element pair j (bits 2j low, 2j + 1 high) is the
 * word w. The hash is the sum, modulo 2^64 and so in any order, of
 *
 *     z = w + (first + j + 1) * 0x9e3779b97f4a7c15
 *     z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;  z = (z ^ z >> 27) * 0x94d049bb133111eb;  z ^ z >> 31
 *
 * Every step is invertible, so tensors that differ in one word never have the same sum; other tensors have it
 * with probability 2^-64. Constants and shifts are those of SplitMix64 (Steele, Lea, Flood, "Fast splittable
 * pseudorandom number generators", 2014).
 *
 *   LANES   8: a work-item processes one contiguous part, work-groups of one (CPU); 1: neighbouring items
 *           process neighbouring pairs (work-groups of WG)
 *   WIDE    1: two pairs at once, from places that are multiples of 4 elements
 *
 * Global size: one work-group per sum, for any length of the tensor; each writes one sum. Requires nothing.
 */
#include "../include/clt_types.clh"

#ifndef LANES
#define LANES 1
#endif
#ifndef WIDE
#define WIDE 0
#endif
#ifndef WG
#define WG 64
#endif

#define GAMMA 0x9e3779b97f4a7c15UL

#if LANES == 8
typedef ulong8 word;
#elif LANES == 1
typedef ulong word;
#else
#error "LANES is 1 or 8"
#endif

static inline word mix(word z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
    return z ^ (z >> 31);
}

#if LANES == 8
static inline ulong8 pairs8(uint16 v) {
    return convert_ulong8(v.even) | convert_ulong8(v.odd) << 32;
}

__kernel void hash(ulong pairs, ulong first, __global const float *x, ulong x_off, __global ulong *sums,
                   ulong sums_off) {
    const ulong8 step = (ulong8)(1, 2, 3, 4, 5, 6, 7, 8) * GAMMA;
    size_t items = get_global_size(0), me = get_global_id(0), part = (pairs + items - 1) / items;
    part = (part + 7) / 8 * 8;
    size_t at = me * part, end = min(at + part, (size_t)pairs);
    ulong8 sum = (ulong8)(0UL);
    x += x_off;
    for (; at + 8 <= end; at += 8)
        sum += mix(pairs8(as_uint16(vload16(0, x + 2 * at))) + (first + at) * GAMMA + step);
    if (at < end) {
        ulong8 z = mix(pairs8(as_uint16(clt_load16(x + 2 * at, 2 * (end - at)))) + (first + at) * GAMMA + step);
        ulong8 lane = (ulong8)(0, 1, 2, 3, 4, 5, 6, 7);
        sum += z & as_ulong8(lane < (ulong8)(end - at));
    }
    ulong4 four = sum.lo + sum.hi;
    ulong2 two = four.lo + four.hi;
    sums[sums_off + me] = two.x + two.y;
}
#else
static inline ulong pair(uint2 v) {
    return (ulong)v.x | (ulong)v.y << 32;
}

__kernel void hash(ulong pairs, ulong first, __global const float *x, ulong x_off, __global ulong *sums,
                   ulong sums_off) {
    __local ulong part[WG];
    size_t me = get_local_id(0), all = get_global_size(0);
    ulong sum = 0;
    x += x_off;
#if WIDE
    __global const uint4 *x4 = (__global const uint4 *)x;
    for (size_t j = get_global_id(0); 2 * j + 2 <= pairs; j += all) {
        uint4 v = x4[j];
        ulong at = (first + 2 * j + 1) * GAMMA;
        sum += mix(pair(v.xy) + at) + mix(pair(v.zw) + at + GAMMA);
    }
    if (pairs % 2 == 1 && get_global_id(0) == 0)
        sum += mix(pair(as_uint2(vload2(pairs - 1, x))) + (first + pairs) * GAMMA);
#else
    for (size_t j = get_global_id(0); j < pairs; j += all)
        sum += mix(pair(as_uint2(vload2(j, x))) + (first + j + 1) * GAMMA);
#endif
    part[me] = sum;
    for (size_t d = WG / 2; d > 0; d /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < d) part[me] += part[me + d];
    }
    if (me == 0) sums[sums_off + get_group_id(0)] = part[0];
}
#endif
