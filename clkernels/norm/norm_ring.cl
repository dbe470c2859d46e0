/* norm_ring: normalisation on NVIDIA's Hopper. The copy engine loads whole rows to local memory and stays
 * some rows ahead, so that the number of loads in flight depends neither on registers nor on the work-items'
 * progress. README.md defines the bits.
 *
 *   forward    each warp works alone: it reads its row into registers, starts the load of its next row and
 *              computes. Item i of 32 has lanes 2 i and 2 i + 1 of the row rule.
 *   backward   a work-group per block of 64 rows inside a sample. One item loads rows (x, dy, residual) to
 *              STAGES places, SUM_WARPS warps compute c1 and c2 of alternate rows, the others own OWN times
 *              four columns per item: dx, its copy, the recomputed output of the forward pass, and the column
 *              sums. Barriers in local memory say which places are full, have their sums, or are empty again;
 *              there is no barrier of the whole group.
 *
 * Macros: those of norm_wide.cl except V, ROWS and ITEMS_B, which follow from COLS here; HEADS is 1, and
 * there is a dx.
 * Local size: forward 32 * WARPS, one row per warp, and RESIDENT work-groups per unit for any number of rows;
 * backward GROUP. runtime/ops/clt_op_norm.c has the same numbers. */
#define LANES 1
#include "norm_columns.clh"
#include "../include/clt_hopper.clh"
#include "../include/clt_ptx.clh"

#ifndef COLS
#define COLS 768
#endif
#ifndef HAS_COPY
#define HAS_COPY 1
#endif
#ifndef HAS_Y
#define HAS_Y 1
#endif
#ifndef HAS_SUM
#define HAS_SUM 1
#endif
#if COLS % 64 != 0
#error "COLS is a multiple of 64"
#endif

#define STEPS (COLS / 64)
#define PAIR(type, p) CLT_PASTE(pair_, type)((__local const VECTOR(type, 2) *)(p))
static inline float2 pair_0(__local const float2 *p) {
    return *p;
}
static inline float2 pair_1(__local const ushort2 *p) {
    const uint u = *(__local const uint *)p;
    return (float2)(as_float(u << 16), as_float(u & 0xffff0000u));
}
static inline float2 pair_2(__local const ushort2 *p) {
    return clt_widen2_2(*(__local const uint *)p);
}

/* The tree of the row rule over 32 items with two lanes each; all of them get the result. */
static inline float tree_of(float2 v) {
#pragma unroll
    for (uint d = 16; d; d /= 2) v += (float2)(clt_ptx_swap(v.x, d), clt_ptx_swap(v.y, d));
    return v.x + v.y;
}

#if PART == 0 || PART == 1
/* Warps of a work-group, and work-groups of a unit: as many as have registers for one row each. */
#if COLS <= 1024
#define WARPS (COLS <= 768 ? 16 : 12)
#define RESIDENT 2
#elif COLS <= 2048
#define WARPS 16
#define RESIDENT 1
#else
#define WARPS 8
#define RESIDENT 1
#endif
#define PUT_PAIR(type, v, p) CLT_PASTE(put_, type)(v, p)
static inline void put_0(float2 v, __global float *p) {
    *(__global float2 *)p = v;
}
static inline void put_1(float2 v, __global ushort *p) {
    *(__global uint *)p = clt_round2_1(v.x, v.y);
}
static inline void put_2(float2 v, __global ushort *p) {
    *(__global uint *)p = clt_round2_2(v.x, v.y);
}

/* By one item: starts to load a row to its warp's place. */
static inline void bring_row(uint place, __global const x_elem *row, uint bar) {
    CLT_BAR_EXPECT(bar, COLS * sizeof(x_elem));
    CLT_BULK_LOAD(place, row, COLS * sizeof(x_elem), bar);
}
/* By one item: starts to load the weights and biases that exist. */
static inline void bring_weights(__local float *ws, __global const float *w, __local float *bs,
                                 __global const float *b, uint bar) {
    CLT_BAR_EXPECT(bar, 4 * COLS * (HAS_W + HAS_B));
#if HAS_W
    CLT_BULK_LOAD(CLT_LOCAL_ADDRESS(ws), w, 4 * COLS, bar);
#endif
#if HAS_B
    CLT_BULK_LOAD(CLT_LOCAL_ADDRESS(bs), b, 4 * COLS, bar);
#endif
}

/* Mean and rstd of a row. v: an item's elements of it, in registers. */
static inline float mean_of(const float2 *v) {
    float2 acc = (float2)(0.0f);
#pragma unroll
    for (int k = 0; k < STEPS; k++) acc = acc + v[k];
    return tree_of(acc) / (float)COLS;
}
static inline float rstd_of(const float2 *v, float mean, float eps) {
    float2 acc = (float2)(0.0f);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const float2 d = RMS ? v[k] : v[k] - mean;
        acc = fma(d, d, acc);
    }
    return 1.0f / sqrt(tree_of(acc) / (float)COLS + eps);
}
/* Normalises an item's elements v of a row; the first has column c. y: its place in the result. */
static inline void put_row(const float2 *v, float mean, float rstd, __local const float *ws,
                           __local const float *bs, uint c, __global y_elem *y) {
#pragma unroll
    for (int k = 0; k < STEPS; k++, c += 64) {
        float2 o = (RMS ? v[k] : v[k] - mean) * rstd;
#if HAS_W && HAS_B
        o = fma(o, PAIR(0, ws + c), PAIR(0, bs + c));
#elif HAS_W
        o = o * PAIR(0, ws + c);
#elif HAS_B
        o = o + PAIR(0, bs + c);
#endif
        PUT_PAIR(Y_TYPE, o, y + 64 * k);
    }
}

__kernel __attribute__((reqd_work_group_size(32 * WARPS, 1, 1))) void
norm_forward(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off,
             __global const float *b, ulong b_off, __global y_elem *y, ulong y_off, __global float *mean,
             ulong mean_off, __global float *rstd, ulong rstd_off, ulong rows, ulong heads, ulong ldx,
             ulong ldy, float eps) {
    (void)heads;
    __local x_elem places[WARPS][COLS] __attribute__((aligned(128)));
    __local float ws[HAS_W ? COLS : 4] __attribute__((aligned(128)));
    __local float bs[HAS_B ? COLS : 4] __attribute__((aligned(128)));
    __local ulong bars[WARPS + 1] __attribute__((aligned(8)));
    CLT_SHARED_BY(RESIDENT);
    const uint warp = (uint)get_local_id(0) / 32, lane = (uint)get_local_id(0) % 32;
    const uint bar = CLT_LOCAL_ADDRESS(&bars[warp]), weights = CLT_LOCAL_ADDRESS(&bars[WARPS]);
    const uint place = CLT_LOCAL_ADDRESS(places[warp]);
    const size_t step = get_num_groups(0) * WARPS;
    size_t row = get_group_id(0) * WARPS + warp;
    x += x_off;
    y += y_off + 2 * lane;
    if (lane == 0) {
        CLT_BAR_INIT(bar, 1);
        if (warp == 0) CLT_BAR_INIT(weights, 1);
        CLT_BAR_READY();
        if (row < rows) bring_row(place, x + row * ldx, bar);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp == 0 && lane == 0) bring_weights(ws, w + w_off, bs, b + b_off, weights);
    for (uint phase = 0; row < rows; row += step, phase ^= 1) {
        float2 v[STEPS];
        float m = 0.0f;
        CLT_BAR_WAIT(bar, phase);
#pragma unroll
        for (int k = 0; k < STEPS; k++) v[k] = PAIR(X_TYPE, places[warp] + 2 * lane + 64 * k);
        CLT_WARP_SYNC(); /* the place is free */
        if (lane == 0 && row + step < rows) bring_row(place, x + (row + step) * ldx, bar);
#if !RMS
        m = mean_of(v);
        if (lane == 0 && mean) mean[mean_off + row] = m;
#endif
        const float r = rstd_of(v, m, eps);
        if (lane == 0 && rstd) rstd[rstd_off + row] = r;
        CLT_BAR_WAIT(weights, 0);
        put_row(v, m, r, ws, bs, 2 * lane, y + row * ldy);
    }
}
#endif

#if PART == 0 || PART == 2
#define OWN (COLS <= 1024 ? 1 : 2)
#define OWNERS ((COLS / (4 * OWN) + 31) / 32 * 32) /* items that own columns */
/* Warps that compute the sums of rows, and places for rows; runtime/ops/clt_op_norm.c counts these warps,
 * too. With one warp a block waits for it at each row, which dominates if there are fewer blocks than units
 * (TRIED.md). */
#define SUM_WARPS (COLS <= 1024 || COLS > 2048 ? 2 : 3)
#define STAGES (COLS <= 1024 || COLS > 2048 ? 4 : 6)
#define GROUP (OWNERS + 32 * SUM_WARPS + 32)
#define BYTES(type) (COLS * (type ? 2 : 4))
#define ROW_BYTES (BYTES(X_TYPE) + BYTES(DY_TYPE) + HAS_RES * BYTES(DX_TYPE))
/* Barriers at `bars`: a place is full; its row's sums are known; it is empty; the weights are loaded. */
#define FULL(s) (bars + 8 * (s))
#define KNOWN(s) (bars + 8 * (STAGES + (s)))
#define EMPTY(s) (bars + 8 * (2 * STAGES + (s)))
#define WEIGHTS (bars + 8 * 3 * STAGES)
#define NEXT_PLACE()                                                                                         \
    if (++s == STAGES) s = 0, phase ^= 1;
/* By one item, before a barrier of the group. */
static inline void init_barriers(uint bars) {
    for (uint s = 0; s < STAGES; s++) {
        CLT_BAR_INIT(FULL(s), 1);
        CLT_BAR_INIT(KNOWN(s), 1);
        CLT_BAR_INIT(EMPTY(s), OWNERS / 32);
    }
    CLT_BAR_INIT(WEIGHTS, 1);
    CLT_BAR_READY();
}

/* Rows in local memory. */
typedef x_elem x_row[COLS];
typedef dy_elem dy_row[COLS];
typedef dx_elem res_row[HAS_RES ? COLS : 8];

/* By one item: loads rows to empty places. */
static inline void bring_rows(__global const x_elem *x, ulong ldx, __global const dy_elem *dy, ulong lddy,
                              __global const dx_elem *res, ulong ldres, __global const float *w, uint count,
                              __local x_row *xs, __local dy_row *ds, __local res_row *rs, __local float *ws,
                              uint bars) {
    uint s = 0, phase = 0;
#if HAS_W
    CLT_BAR_EXPECT(WEIGHTS, 4 * COLS);
    CLT_BULK_LOAD(CLT_LOCAL_ADDRESS(ws), w, 4 * COLS, WEIGHTS);
#endif
#pragma unroll 1
    for (uint k = 0; k < count; k++) {
        CLT_BAR_WAIT(EMPTY(s), phase ^ 1);
        CLT_BAR_EXPECT(FULL(s), ROW_BYTES);
        CLT_BULK_LOAD(CLT_LOCAL_ADDRESS(xs[s]), x + k * ldx, BYTES(X_TYPE), FULL(s));
        CLT_BULK_LOAD(CLT_LOCAL_ADDRESS(ds[s]), dy + k * lddy, BYTES(DY_TYPE), FULL(s));
#if HAS_RES
        CLT_BULK_LOAD(CLT_LOCAL_ADDRESS(rs[s]), res + k * ldres, BYTES(DX_TYPE), FULL(s));
#endif
        NEXT_PLACE()
    }
}

/* By one warp: mean, rstd, c1 and c2 of rows `first`, `first` + SUM_WARPS and so on. The weights are in local
 * memory because loading a row of them from global memory takes longer than everything else. */
static inline void sum_rows(__global const float *mean, __global const float *rstd, uint first, uint count,
                            uint lane, __local x_row *xs, __local dy_row *ds, __local const float *ws,
                            __local float2 *statistics, __local float4 *of_row, uint bars) {
    for (uint k = first + SUM_WARPS * lane; k < count; k += 32 * SUM_WARPS)
        statistics[k] = (float2)(RMS ? 0.0f : mean[k], rstd[k]);
    CLT_WARP_SYNC();
#if HAS_W
    CLT_BAR_WAIT(WEIGHTS, 0);
#endif
#pragma unroll 1
    for (uint k = first; k < count; k += SUM_WARPS) {
        const uint s = k % STAGES;
        CLT_BAR_WAIT(FULL(s), k / STAGES % 2);
        const float2 of = statistics[k];
        float2 a1 = (float2)(0.0f), a2 = a1;
#pragma unroll 8
        for (uint n = 0; n < STEPS; n++) {
            const uint c = 2 * lane + 64 * n;
            float2 g = PAIR(DY_TYPE, ds[s] + c);
            const float2 u = PAIR(X_TYPE, xs[s] + c);
#if HAS_W
            g = g * PAIR(0, ws + c);
#endif
            a1 = a1 + g;
            a2 = fma(g, RMS ? u * of.y : (u - of.x) * of.y, a2);
        }
        const float c1 = tree_of(a1) / (float)COLS, c2 = tree_of(a2) / (float)COLS;
        if (lane == 0) {
            of_row[s] = (float4)(of, c1, c2);
            CLT_BAR_ARRIVE(KNOWN(s));
        }
    }
}

/* Four columns of an item: their weights and biases, and their sums over the block's rows. */
typedef struct {
    float4 w, b, sum_w, sum_b, sum_dx;
} owned;

static inline owned begin_columns(__global const float *w, __global const float *b) {
    owned own = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
#if HAS_W
    own.w = *(__global const float4 *)w;
#endif
#if HAS_B
    own.b = *(__global const float4 *)b;
#endif
    return own;
}
/* Four columns of a row: everything that the backward pass stores for them, and their part of the sums.
 * of: the row's mean, rstd, c1, c2; res: the residual, if there is one. */
static inline void finish_columns(owned *own, float4 x, float4 dy, float4 res, float4 of,
                                  __global dx_elem *dx, __global copy_elem *copy, __global y_elem *y) {
    const float4 xhat = norm_xhat(x, of);
    float4 v = norm_dx(dy, own->w, xhat, of);
#if HAS_RES
    v = res + v;
#endif
    STORE_VECTOR4(DX_TYPE, v, dx);
#if HAS_COPY
    STORE_VECTOR4(COPY_TYPE, v, copy);
#define SUM_TYPE COPY_TYPE
#else
#define SUM_TYPE DX_TYPE
#endif
#if HAS_Y
    STORE_VECTOR4(Y_TYPE, norm_again(xhat, own->w, own->b), y);
#endif
#if HAS_SUM
    own->sum_dx = own->sum_dx + CLT_WIDEN4(SUM_TYPE, CLT_ROUND4(SUM_TYPE, v));
#endif
#if HAS_DW
    own->sum_w = fma(dy, xhat, own->sum_w);
#endif
#if HAS_DB
    own->sum_b = own->sum_b + dy;
#endif
}

/* By the items that own columns, for all rows of the block. dx, copy and y: the block's first row. part: the
 * block's sums. */
static inline void own_columns(__global const float *w, __global const float *b, __global dx_elem *dx,
                               __global copy_elem *copy, ulong lddx, __global y_elem *y, ulong ldx,
                               __global float *part, ulong part_w, ulong part_b, ulong part_sum, uint item,
                               uint count, __local x_row *xs, __local dy_row *ds, __local res_row *rs,
                               __local const float4 *of_row, uint bars) {
    owned own[OWN];
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        const uint c = (item + OWNERS * o) * 4;
        if (c < COLS) own[o] = begin_columns(w + c, b + c);
    }
    dx += item * 4;
    copy += item * 4;
    y += item * 4;
    part += item * 4;
    uint s = 0, phase = 0;
#pragma unroll 1
    for (uint k = 0; k < count; k++, dx += lddx, copy += lddx, y += ldx) {
        CLT_BAR_WAIT(FULL(s), phase);
        CLT_BAR_WAIT(KNOWN(s), phase);
        const float4 of = of_row[s];
        float4 u[OWN], d[OWN], res[OWN];
#pragma unroll
        for (int o = 0; o < OWN; o++) {
            const uint c = (item + OWNERS * o) * 4;
            if (c >= COLS) continue;
            u[o] = LOCAL4(X_TYPE, xs[s] + c);
            d[o] = LOCAL4(DY_TYPE, ds[s] + c);
            res[o] = HAS_RES ? LOCAL4(DX_TYPE, rs[s] + c) : (float4)(0.0f);
        }
        CLT_WARP_SYNC();
        if (item % 32 == 0) CLT_BAR_ARRIVE(EMPTY(s));
        NEXT_PLACE()
#pragma unroll
        for (int o = 0; o < OWN; o++) {
            const uint c = OWNERS * o * 4;
            if (item * 4 + c < COLS) finish_columns(&own[o], u[o], d[o], res[o], of, dx + c, copy + c, y + c);
        }
    }
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        const uint c = OWNERS * o * 4;
        if (item * 4 + c >= COLS) continue;
        LEAVE_SUMS(c, own[o].sum_w, own[o].sum_b, own[o].sum_dx)
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
norm_backward(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off,
              __global const float *mean, ulong mean_off, __global const float *rstd, ulong rstd_off,
              __global const dy_elem *dy, ulong dy_off, __global const dx_elem *res, ulong res_off,
              __global dx_elem *dx, ulong dx_off, __global copy_elem *copy, ulong copy_off,
              __global y_elem *y, ulong y_off, __global const float *b, ulong b_off, __global float *part,
              ulong part_w, ulong part_b, ulong part_sum, ulong rows_per_sample, ulong blocks, ulong ldx,
              ulong lddy, ulong ldres, ulong lddx) {
    __local x_row xs[STAGES] __attribute__((aligned(128)));
    __local dy_row ds[STAGES] __attribute__((aligned(128)));
    __local res_row rs[HAS_RES ? STAGES : 1] __attribute__((aligned(128)));
    __local float ws[HAS_W ? COLS : 4] __attribute__((aligned(128)));
    __local float4 of_row[STAGES]; /* mean, rstd, c1, c2 */
    __local float2 statistics[64];
    __local ulong barriers[3 * STAGES + 1] __attribute__((aligned(8)));
    const uint item = (uint)get_local_id(0), bars = CLT_LOCAL_ADDRESS(barriers);
    const size_t block = get_group_id(0), sample = block / blocks;
    const size_t begin = (block % blocks) * 64, start = sample * rows_per_sample + begin;
    const uint count = rows_per_sample - begin < 64 ? (uint)(rows_per_sample - begin) : 64;
    if (item == 0) init_barriers(bars);
    barrier(CLK_LOCAL_MEM_FENCE);
    /* From here on the warps take different paths. */
    if (item >= OWNERS + 32 * SUM_WARPS) {
        if (item == OWNERS + 32 * SUM_WARPS)
            bring_rows(x + x_off + start * ldx, ldx, dy + dy_off + start * lddy, lddy,
                       res + res_off + start * ldres, ldres, w + w_off, count, xs, ds, rs, ws, bars);
    } else if (item >= OWNERS) {
        sum_rows(mean + mean_off + start, rstd + rstd_off + start, (item - OWNERS) / 32, count, item % 32, xs,
                 ds, ws, statistics, of_row, bars);
    } else {
        own_columns(w + w_off, b + b_off, dx + dx_off + start * lddx, copy + copy_off + start * lddx, lddx,
                    y + y_off + start * ldx, ldx, part + block * COLS, part_w, part_b, part_sum, item, count,
                    xs, ds, rs, of_row, bars);
    }
}
#endif
