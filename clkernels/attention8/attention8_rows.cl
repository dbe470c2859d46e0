/* What precedes attention in 8-bit blocks: rows of heads as whole numbers with a scale each, and the D of the
 * backward pass (README.md is the definition).
 *
 *   attention8_rows   q, k and v. Global {T * LANES up to a multiple of WG, heads + key/value heads, B}
 *   attention8_dout   dout, and D, of which a row's chain is one work-item's. Global {likewise, heads, B}
 *
 * LANES work-items have a row, each every LANES-th eight of its elements. Local {WG}.
 * Options: those of attention.clh; LANES, a power of two that divides WG, and WG; VECTOR 1: heads, pitches and
 * places of tensors are multiples of 8 elements; K_NUMBERS, K_VALUES, V_NUMBERS, V_VALUES 1: rows of k and v are
 * stored as whole numbers, and as those times their scale. */
#include "attention8.clh"

#ifndef LANES
#define LANES 1
#endif
#ifndef WG
#define WG 64
#endif
#ifndef VECTOR
#define VECTOR 0
#endif
#ifndef K_NUMBERS
#define K_NUMBERS 1
#endif
#ifndef K_VALUES
#define K_VALUES 0
#endif
#ifndef V_NUMBERS
#define V_NUMBERS 1
#endif
#ifndef V_VALUES
#define V_VALUES 0
#endif
#define CHUNKS ((PITCH8 / 8 + LANES - 1) / LANES)
#define ROWS (WG / LANES)

/* The item's eights of a row: number c of CHUNKS from column d on. */
#define EACH_EIGHT(c, d) for (int c = 0, d = lane * 8; c < CHUNKS; c++, d += LANES * 8) if (d < PITCH8)

#if VECTOR
#define TAKE8(row, d) CLT_LOAD8(TYPE, (row) + (d))
#else
#define TAKE8(row, d)                                                                                        \
    (float8)(take(row, d), take(row, d + 1), take(row, d + 2), take(row, d + 3), take(row, d + 4),           \
             take(row, d + 5), take(row, d + 6), take(row, d + 7))
#endif
static inline float take(__global const ELEM *row, int d) {
    return d < HEAD_DIM ? GET(row[d]) : 0.0f;
}

/* The largest magnitude of the item's elements, which it keeps in x. */
static inline uint take_row(float8 *x, __global const ELEM *row, int lane) {
    uint4 most = 0;
    EACH_EIGHT(c, d) {
        x[c] = TAKE8(row, d);
        const uint8 m = as_uint8(x[c]) & 0x7fffffffu;
        most = max(most, max(m.lo, m.hi));
    }
    const uint2 two = max(most.lo, most.hi);
    return max(two.x, two.y);
}
/* The largest number of a row's items; red: from its first item on. */
static inline uint row_most(__local const uint *red) {
#if LANES % 4
    uint most = 0;
    for (int l = 0; l < LANES; l++) most = max(most, red[l]);
    return most;
#else
    uint4 most = 0;
    for (int l = 0; l < LANES / 4; l++) most = max(most, ((__local const uint4 *)red)[l]);
    const uint2 two = max(most.lo, most.hi);
    return max(two.x, two.y);
#endif
}

static inline float8 whole8(float8 x, uint scale_bits) {
    /* 1.5 * 2^23 rounds to the nearest integer, ties to even */
    const float inverse = as_float((254u << 23) - scale_bits);
    return scale_bits == CLT_NAN_BITS ? (float8)(0.0f) : fma(x, (float8)(inverse), (float8)(12582912.0f)) - 12582912.0f;
}
/* Eight numbers that bf16 holds. */
static inline void store8(__global ushort *to, float8 x) {
    const uint8 u = as_uint8(x);
    *(__global uint4 *)to = u.even >> 16 | (u.odd & 0xffff0000u);
}
/* numbers, values: whether the row is stored as whole numbers, and as those times their scale. */
static inline void put_row(const bool numbers, __global ushort *to, const bool values, __global ushort *to_values,
                           const float8 *x, uint scale_bits, float scale, int lane) {
    EACH_EIGHT(c, d) {
        const float8 whole = whole8(x[c], scale_bits);
        if (numbers) store8(to + d, whole);
        if (values) store8(to_values + d, whole * scale);
    }
}

/* q, k, v: [B * T, ld], head h from column h * HEAD_DIM on. A row of v whose row of k has the scale NaN gets it,
 * too. Rows of `numbers` and `scales` as in attention8.clh. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
attention8_rows(__global const ELEM *q, ulong q_off, uint ldq, __global const ELEM *k, ulong k_off, uint ldk,
                __global const ELEM *v, ulong v_off, uint ldv, __global ushort *numbers, ulong q_to, ulong k_to,
                ulong v_to, ulong k_values, ulong v_values, __global float *scales, ulong qs_to, ulong ks_to,
                ulong vs_to, uint seq, uint heads, uint kv_heads) {
    __local uint red[2 * WG] __attribute__((aligned(16)));
    const size_t i = get_global_id(0) / LANES, b = get_global_id(2);
    const int item = get_local_id(0), lane = item % LANES;
    const bool keys = get_global_id(1) >= heads, exists = i < seq;
    const size_t h = keys ? get_global_id(1) - heads : get_global_id(1);
    const size_t from = b * seq + i, row = (b * (keys ? kv_heads : heads) + h) * ROWS8(seq) + i;
    float8 x[CHUNKS], y[CHUNKS];
    uint most = 0, most_v = 0;
    if (exists) {
        most = take_row(x, (keys ? k + k_off + from * ldk : q + q_off + from * ldq) + h * HEAD_DIM, lane);
        if (keys) most_v = take_row(y, v + v_off + from * ldv + h * HEAD_DIM, lane);
    }
    if (LANES > 1) {
        red[item] = most;
        red[WG + item] = most_v;
        barrier(CLK_LOCAL_MEM_FENCE);
        most = row_most(red + item - lane);
        if (keys) most_v = row_most(red + WG + item - lane);
    }
    if (!exists) return;
    const uint s = scale8_bits(most), own = scale8_bits(most_v), sv = s == CLT_NAN_BITS ? s : own;
    if (!keys) {
        put_row(true, numbers + q_to + row * PITCH8, false, numbers, x, s, 0.0f, lane);
        if (lane == 0) scales[qs_to + row] = as_float(s);
        return;
    }
    put_row(K_NUMBERS, numbers + k_to + row * PITCH8, K_VALUES, numbers + k_values + row * PITCH8, x, s, as_float(s),
            lane);
    put_row(V_NUMBERS, numbers + v_to + row * PITCH8, V_VALUES, numbers + v_values + row * PITCH8, y, own,
            as_float(sv), lane);
    if (lane == 0) {
        scales[ks_to + row] = as_float(s);
        scales[vs_to + row] = as_float(sv);
    }
}

/* The chain of D over eights of whole numbers and of o. */
static inline float chain8(float8 n, float8 o, float d) {
    d = fma(n.s0, o.s0, d);
    d = fma(n.s1, o.s1, d);
    d = fma(n.s2, o.s2, d);
    d = fma(n.s3, o.s3, d);
    d = fma(n.s4, o.s4, d);
    d = fma(n.s5, o.s5, d);
    d = fma(n.s6, o.s6, d);
    return fma(n.s7, o.s7, d);
}

/* dout as above; delta[b, h, i] from its whole numbers and scales, and o; stat becomes a copy of lse with delta's
 * layout. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
attention8_dout(__global const ELEM *dout, ulong dout_off, uint lddout, __global const ELEM *o, ulong o_off, uint ldo,
                __global ushort *numbers, ulong numbers_off, __global float *scales, ulong scales_off,
                ulong delta_off, ulong stat_off, __global const float *lse, ulong lse_off, uint seq, uint heads) {
    const size_t i = get_global_id(0) / LANES, h = get_global_id(1), b = get_global_id(2);
    const size_t first = (b * heads + h) * ROWS8(seq), from = b * seq + i;
    const int item = get_local_id(0), lane = item % LANES;
    const bool exists = i < seq;
    float8 x[CHUNKS], y[CHUNKS];
    uint most = 0;
    if (exists) {
        most = take_row(x, dout + dout_off + from * lddout + h * HEAD_DIM, lane);
        take_row(y, o + o_off + from * ldo + h * HEAD_DIM, lane);
    }
#if LANES > 1
    /* Rows are 16 bytes longer than their elements, so that the items of the chains read different banks. */
    __local float4 ns[ROWS * (2 * LANES + 1)], os[ROWS * (2 * LANES + 1)];
    __local uint red[WG] __attribute__((aligned(16)));
    const int at = item / LANES * (2 * LANES + 1) + 2 * lane;
    red[item] = most;
    barrier(CLK_LOCAL_MEM_FENCE);
    most = row_most(red + item - lane);
#endif
    const uint s = scale8_bits(most);
    if (exists) {
        put_row(true, numbers + numbers_off + (first + i) * PITCH8, false, numbers, x, s, 0.0f, lane);
        if (lane == 0) {
            scales[scales_off + first + i] = as_float(s);
            scales[stat_off + first + i] = lse[lse_off + (b * heads + h) * seq + i];
        }
    }
#if LANES > 1
    if (exists && lane * 8 < PITCH8) {
        const float8 n = whole8(x[0], s);
        ns[at] = n.lo;
        ns[at + 1] = n.hi;
        os[at] = y[0].lo;
        os[at + 1] = y[0].hi;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const size_t r = get_group_id(0) * ROWS + item;
    if (item >= ROWS || r >= seq) return;
    const uint s_r = scale8_bits(row_most(red + item * LANES));
    float d = 0.0f;
#pragma unroll 4
    for (int e = item * (2 * LANES + 1), end = e + PITCH8 / 4; e < end; e += 2)
        d = chain8((float8)(ns[e], ns[e + 1]), (float8)(os[e], os[e + 1]), d);
    scales[delta_off + first + r] = d * as_float(s_r);
#else
    float d = 0.0f;
    EACH_EIGHT(c, e) d = chain8(whole8(x[c], s), y[c], d);
    if (exists) scales[delta_off + first + i] = d * as_float(s);
#endif
}
