/* linear_rows: a layer's product for few rows, as each new token of a text needs it, with the norm before it:
 *
 *     y = act(norm(x) * w^T + bias) + residual                                    or, with GATED,
 *     y = act(norm(x) * gate^T + gate_bias) * (norm(x) * w^T + bias) + residual
 *
 * The weights are read once, in pieces of 16 bytes; 32 work-items share an output's chain. Every work-group
 * normalises x for itself, into local memory, while its first weights are on their way: a launch of its own
 * would cost more.
 *
 *   TYPE     clt_dtype of w and gate (include/clt_store.clh); everything else is fp32
 *   ROWS     1, 2 or 4: rows of x at most; more take further launches, which find the weights in the L2 cache
 *   ITEMS    work-items of a group, a multiple of 32
 *   UNROLL   pieces of each of two rows of the weights that a work-item requests at a time
 *   CHUNK    columns of x that local memory holds, a multiple of 256
 *   NORM     0 none, 1 layer norm, 2 RMS norm
 *   GATED    1: the second form
 *   ACT      clt_activation
 *
 * x [rows, k], w and gate [n, k], y and residual [rows, n]. Rows of w, gate and x start at multiples of 16 bytes,
 * and k is a multiple of 8.
 * Launch: local {ITEMS}, global {ITEMS * groups}; groups share the outputs, of which each takes
 * ITEMS / 32 * (GATED ? 1 : 2) at a time.
 * Numerics fast: the order of a sum depends on ITEMS and UNROLL, not on the launch.
 * Bound: the bytes of the weights. */
#include "../include/clt_store.clh"

#ifndef TYPE
#define TYPE 0
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef ITEMS
#define ITEMS 128
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef CHUNK
#define CHUNK (8192 / ROWS)
#endif
#ifndef NORM
#define NORM 0
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef ACT
#define ACT 0
#endif
#if ACT
#include "../include/clt_act.clh"
#endif
#if ITEMS % 32 || CHUNK % 256
#error "ITEMS is a multiple of 32, CHUNK of 256"
#endif

#define TEAMS (ITEMS / 32)
#define OUTPUTS (GATED ? 1 : 2)
#define AT_A_TIME (TEAMS * OUTPUTS)
#define HALF (CHUNK / 8)
typedef CLT_T(TYPE) elem;
typedef CLT_T8(TYPE) piece;

/* The norm's arguments; without NORM they are not read. */
typedef struct {
    __global const float *w, *b;
    float eps;
    bool has_w, has_b;
} norm_args;

/* The sum of v over the work-group, to every work-item. */
static inline float group_sum(float v, __local float *all, uint item) {
    barrier(CLK_LOCAL_MEM_FENCE);
    all[item] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 s = (float4)(0.0f);
#pragma unroll 8
    for (uint i = 0; i < ITEMS / 4; i++) s += ((__local const float4 *)all)[i];
    return (s.x + s.y) + (s.z + s.w);
}

static inline float sum8(float8 v) {
    const float4 s = v.lo + v.hi;
    return (s.x + s.y) + (s.z + s.w);
}

static inline float8 load8(__global const float *p) {
    return CLT_LOAD8(0, p);
}

/* Mean and reciprocal deviation of a row of x. */
static inline float2 statistics(__global const float *x, uint k, float eps, __local float *all, uint item) {
    float s = 0.0f, mean = 0.0f;
#if NORM == 1
    for (uint i = item * 8; i < k; i += ITEMS * 8) s += sum8(load8(x + i));
    mean = group_sum(s, all, item) / (float)k;
    s = 0.0f;
#endif
    for (uint i = item * 8; i < k; i += ITEMS * 8) {
        const float8 d = load8(x + i) - mean;
        s += sum8(d * d);
    }
    return (float2)(mean, 1.0f / sqrt(group_sum(s, all, item) / (float)k + eps));
}

static inline void row_statistics(float2 *stat, __global const float *x, uint ldx, uint rows, uint k,
                                  const norm_args *a, __local float *all, uint item) {
#if NORM
#pragma unroll
    for (uint r = 0; r < ROWS; r++) stat[r] = statistics(x + min(r, rows - 1) * (size_t)ldx, k, a->eps, all, item);
#endif
}

/* Columns [first, first + 8 * count) of all rows to local memory: of each 8 the first four, and HALF places further
 * the last four, so that neighbouring work-items read neighbouring places. */
static inline void stage(__local float4 *to, __global const float *x, uint ldx, uint rows, uint first, uint count,
                         const float2 *stat, const norm_args *a, uint item) {
    barrier(CLK_LOCAL_MEM_FENCE); /* the chunk before is read */
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        __global const float *row = x + min(r, rows - 1) * (size_t)ldx + first;
        for (uint i = item; i < count; i += ITEMS) {
            float8 v = load8(row + 8 * i);
#if NORM
            v = (v - stat[r].x) * stat[r].y;
            if (a->has_w) v = v * load8(a->w + first + 8 * i);
            if (a->has_b) v = v + load8(a->b + first + 8 * i);
#endif
            to[r * 2 * HALF + i] = v.lo;
            to[r * 2 * HALF + HALF + i] = v.hi;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

static inline float dot8(float8 w, float4 lo, float4 hi, float sum) {
    sum = fma(w.s0, lo.x, sum);
    sum = fma(w.s1, lo.y, sum);
    sum = fma(w.s2, lo.z, sum);
    sum = fma(w.s3, lo.w, sum);
    sum = fma(w.s4, hi.x, sum);
    sum = fma(w.s5, hi.y, sum);
    sum = fma(w.s6, hi.z, sum);
    return fma(w.s7, hi.w, sum);
}

/* Pieces i, i + 32, ... of a row of weights; those at `count` and beyond are not read. */
static inline void request(piece *to, __global const elem *row, uint i, uint count) {
#pragma unroll
    for (uint u = 0; u < UNROLL; u++) to[u] = CLT_FETCH8(TYPE, row + 8 * (size_t)min(i + 32 * u, count - 1));
}

/* The sums of a team's two rows of weights over a chunk. `a` and `b` hold the pieces that were requested first. */
static inline void add_chunk(float (*acc)[ROWS], piece *a, piece *b, __global const elem *wa, __global const elem *wb,
                             __local const float4 *xs, uint lane, uint count) {
    for (uint i = lane; i < count; i += 32 * UNROLL) {
        if (i != lane) {
            request(a, wa, i, count);
            request(b, wb, i, count);
        }
#pragma unroll
        for (uint u = 0; u < UNROLL; u++) {
            const uint at = i + 32 * u;
            if (at >= count) continue;
            const float8 va = CLT_WIDEN8(TYPE, a[u]), vb = CLT_WIDEN8(TYPE, b[u]);
#pragma unroll
            for (uint r = 0; r < ROWS; r++) {
                const float4 lo = xs[r * 2 * HALF + at], hi = xs[r * 2 * HALF + HALF + at];
                acc[0][r] = dot8(va, lo, hi, acc[0][r]);
                acc[1][r] = dot8(vb, lo, hi, acc[1][r]);
            }
        }
    }
}

/* The 32 parts of a sum. */
static inline float total(__local const float *part) {
    float4 s = (float4)(0.0f);
#pragma unroll
    for (uint i = 0; i < 8; i++) s += ((__local const float4 *)part)[i];
    return (s.x + s.y) + (s.z + s.w);
}

#define HAS_BIAS 1u
#define HAS_GATE_BIAS 2u
#define HAS_RESIDUAL 4u
#define HAS_NORM_W 8u
#define HAS_NORM_B 16u

/* The steps after the sums, at the places of the outputs. */
typedef struct {
    uint flags, ldres, ldy;
    __global const float *bias, *gate_bias, *residual;
    __global float *y;
} epilogue;

static inline void finish(const epilogue *e, float v, float g, uint r, uint out) {
    if (e->flags & HAS_BIAS) v = v + e->bias[out];
#if GATED
    if (e->flags & HAS_GATE_BIAS) g = g + e->gate_bias[out];
#if ACT
    g = CLT_ACT_FN(ACT)(g);
#endif
    v = g * v;
#elif ACT
    v = CLT_ACT_FN(ACT)(v);
#endif
    if (e->flags & HAS_RESIDUAL) v = e->residual[r * (size_t)e->ldres + out] + v;
    e->y[r * (size_t)e->ldy + out] = v;
}

/* Adds up the teams' sums of outputs first, first + 1, ... and stores them. */
static inline void store(const epilogue *e, float (*acc)[ROWS], __local float *part, uint first, uint rows, uint n,
                         uint item) {
    const uint lane = item % 32, team = item / 32;
    barrier(CLK_LOCAL_MEM_FENCE); /* the sums before, or the statistics, are read */
#pragma unroll
    for (uint o = 0; o < 2; o++)
#pragma unroll
        for (uint r = 0; r < ROWS; r++) part[((team * 2 + o) * ROWS + r) * 32 + lane] = acc[o][r];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint t = item; t < AT_A_TIME * ROWS; t += ITEMS) {
        const uint r = t % ROWS, o = t / ROWS;
        if (r >= rows || first + o >= n) continue;
        const float v = total(part + ((GATED ? 2 * o : o) * ROWS + r) * 32);
        finish(e, v, GATED ? total(part + ((2 * o + 1) * ROWS + r) * 32) : 0.0f, r, first + o);
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
linear_rows(uint rows, uint n, uint k, uint flags, float eps, __global const float *x, ulong x_off, uint ldx,
            __global const float *norm_w, ulong norm_w_off, __global const float *norm_b, ulong norm_b_off,
            __global const elem *w, ulong w_off, uint ldw, __global const elem *gate, ulong gate_off, uint ldgate,
            __global const float *bias, ulong bias_off, __global const float *gate_bias, ulong gate_bias_off,
            __global const float *residual, ulong res_off, uint ldres, __global float *y, ulong y_off, uint ldy) {
    __local float4 xs[ROWS * 2 * HALF];
    __local float4 sums[TEAMS * 2 * ROWS * 8]; /* 32 parts of each sum; first, the statistics' */
    const uint item = (uint)get_local_id(0), lane = item % 32, team = item / 32;
    const norm_args a = {norm_w + norm_w_off, norm_b + norm_b_off, eps, (flags & HAS_NORM_W) != 0,
                         (flags & HAS_NORM_B) != 0};
    const epilogue e = {flags, ldres, ldy, bias + bias_off, gate_bias + gate_bias_off, residual + res_off, y + y_off};
    __local float *part = (__local float *)sums;
    float2 stat[ROWS];
    bool staged = false;
    x += x_off;
    w += w_off;
    gate += gate_off;
    for (uint first = (uint)get_group_id(0) * AT_A_TIME; first < n; first += (uint)get_num_groups(0) * AT_A_TIME) {
        const uint j = min(first + team * OUTPUTS, n - 1);
        __global const elem *wa = w + j * (size_t)ldw;
        __global const elem *wb = GATED ? gate + j * (size_t)ldgate : w + min(j + 1, n - 1) * (size_t)ldw;
        float acc[2][ROWS];
#pragma unroll
        for (uint r = 0; r < ROWS; r++) acc[0][r] = acc[1][r] = 0.0f;
        for (uint c = 0; c < k; c += CHUNK) {
            const uint count = min((uint)CHUNK, k - c) / 8;
            piece pa[UNROLL], pb[UNROLL];
            request(pa, wa + c, lane, count);
            request(pb, wb + c, lane, count);
            if (!staged) row_statistics(stat, x, ldx, rows, k, &a, part, item);
            if (!staged || k > CHUNK) stage(xs, x, ldx, rows, c, count, stat, &a, item);
            staged = true;
            add_chunk(acc, pa, pb, wa + c, wb + c, xs, lane, count);
        }
        store(&e, acc, part, first, rows, n, item);
    }
}
