/* What precedes attention in 8-bit blocks: rows of heads as whole numbers with a scale each, and the D of the
 * backward pass (README.md is the definition).
 *
 *   attention8_rows   LANES work-items per row. Global {T * LANES up to a multiple of WG, heads, B}, local {WG}
 *   attention8_delta  one work-item per row. Global {T, heads, B}
 *
 * Options: those of attention.clh; LANES, a power of two that divides WG, and WG. */
#include "attention8.clh"

#ifndef LANES
#define LANES 1
#endif
#ifndef WG
#define WG 64
#endif

/* x [B * T, ldx], head h from column h * HEAD_DIM on, to numbers and scales (attention8.clh).
 * A row whose scale in `other` is NaN gets the scale NaN, too; other: null, or as `scales`. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
attention8_rows(__global const ELEM *x, ulong x_off, uint ldx, __global ushort *numbers, ulong numbers_off,
                __global float *scales, ulong scales_off, __global const float *other, ulong other_off, uint use_other,
                uint seq, uint heads) {
    __local uint red[WG];
    const size_t i = get_global_id(0) / LANES, h = get_global_id(1), row = (get_global_id(2) * heads + h) * ROWS8(seq) + i;
    const int item = get_local_id(0), lane = item % LANES;
    const bool exists = i < seq;
    x += x_off + (exists ? (get_global_id(2) * seq + i) * ldx + h * HEAD_DIM : 0);
    uint amax = 0;
    if (exists)
        for (int d = lane; d < HEAD_DIM; d += LANES) amax = max(amax, magnitude(GET(x[d])));
    if (LANES > 1) {
        red[item] = amax;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int l = 0; l < LANES; l++) amax = max(amax, red[item - lane + l]);
    }
    if (!exists) return;
    const uint s = scale8_bits(amax);
    const float inverse = as_float(s == CLT_NAN_BITS ? 0u : (254u << 23) - s);
    numbers += numbers_off + row * PITCH8;
    for (int d = lane; d < PITCH8; d += LANES) {
        /* 1.5 * 2^23 rounds to the nearest integer, ties to even */
        const float whole = d < HEAD_DIM && inverse != 0.0f ? fma(GET(x[d]), inverse, 12582912.0f) - 12582912.0f : 0.0f;
        numbers[d] = (ushort)(as_uint(whole) >> 16);
    }
    if (lane == 0)
        scales[scales_off + row] =
            as_float(use_other && other[other_off + row] != other[other_off + row] ? CLT_NAN_BITS : s);
}

/* delta[b, h, i] from dout's whole numbers and scales, and o; stat becomes a copy of lse with delta's layout. */
__kernel void attention8_delta(__global const ushort *dout, ulong dout_off, __global const float *ds, ulong ds_off,
                               __global const ELEM *o, ulong o_off, uint ldo, __global float *delta,
                               ulong delta_off, __global const float *lse, ulong lse_off, __global float *stat,
                               ulong stat_off, uint seq, uint heads) {
    const size_t i = get_global_id(0), h = get_global_id(1), b = get_global_id(2), row = (b * heads + h) * ROWS8(seq) + i;
    dout += dout_off + row * PITCH8;
    o += o_off + (b * seq + i) * ldo + h * HEAD_DIM;
    float d = 0.0f;
    for (int e = 0; e < HEAD_DIM; e++) d = fma(clt_widen_1(dout[e]), GET(o[e]), d);
    stat[stat_off + row] = lse[lse_off + (b * heads + h) * seq + i];
    delta[delta_off + row] = d * ds[ds_off + row];
}
