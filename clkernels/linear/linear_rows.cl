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
 *   TOGETHER     1, 2 or 4: rows of x at most; more take further launches, which find the weights in the L2 cache
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

#ifndef ITEMS
#define ITEMS 128
#endif
#include "../include/clt_team.clh"

#ifndef TYPE
#define TYPE 0
#endif
#ifndef TOGETHER
#define TOGETHER 1
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef CHUNK
#define CHUNK (8192 / TOGETHER)
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

#include "linear_finish.clh"
#define TEAMS (ITEMS / 32)
#define OUTPUTS (GATED ? 1 : 2)
#define AT_A_TIME (TEAMS * OUTPUTS)
#define HALF (CHUNK / 8)
#define CLT_ROUND_TO_32(x) (((x) + 31) / 32 * 32)
typedef CLT_T(TYPE) elem;
typedef CLT_T8(TYPE) piece;

/* The norm's arguments; without NORM they are not read. */
typedef struct {
    __global const float *w, *b;
    float eps;
    bool has_w, has_b;
} norm_args;

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
#pragma unroll 2
    for (uint i = item * 8; i < k; i += ITEMS * 8) s += sum8(load8(x + i));
    mean = clt_group_sum(s, all, item) / (float)k;
    s = 0.0f;
#endif
#pragma unroll 2
    for (uint i = item * 8; i < k; i += ITEMS * 8) {
        const float8 d = load8(x + i) - mean;
        s += sum8(d * d);
    }
    return (float2)(mean, 1.0f / sqrt(clt_group_sum(s, all, item) / (float)k + eps));
}

static inline void row_statistics(float2 *stat, __global const float *x, uint ldx, uint rows, uint k,
                                  const norm_args *a, __local float *all, uint item) {
#if NORM
#pragma unroll
    for (uint r = 0; r < TOGETHER; r++) stat[r] = statistics(x + min(r, rows - 1) * (size_t)ldx, k, a->eps, all, item);
#endif
}

/* Columns [first, first + 8 * count) of all rows to local memory: of each 8 the first four, and HALF places further
 * the last four, so that neighbouring work-items read neighbouring places. */
static inline void stage(__local float4 *to, __global const float *x, uint ldx, uint rows, uint first, uint count,
                         const float2 *stat, const norm_args *a, uint item) {
    barrier(CLK_LOCAL_MEM_FENCE); /* the chunk before is read */
#pragma unroll
    for (uint r = 0; r < TOGETHER; r++) {
        __global const float *row = x + min(r, rows - 1) * (size_t)ldx + first;
#pragma unroll 4 /* requests of several pieces at a time */
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

/* A team's two rows of weights, of which it needs `count` pieces; NULL: there are no more. */
typedef struct {
    __global const elem *a, *b;
} pair;

/* Pieces i, i + 32, ... of both rows; those at `count` and beyond are not read. */
static inline void request(piece (*to)[UNROLL], pair w, uint i, uint count) {
#pragma unroll
    for (uint u = 0; u < UNROLL; u++) {
        const size_t at = 8 * (size_t)min(i + 32 * u, count - 1);
        to[0][u] = CLT_FETCH8(TYPE, w.a + at);
        to[1][u] = CLT_FETCH8(TYPE, w.b + at);
    }
}

/* The sums of the pair over a chunk. `ready` holds the pieces that were requested first; while some are used, the
 * next are on their way, at the end those of the pair that follows. */
static inline void add_chunk(float (*acc)[TOGETHER], piece (*ready)[UNROLL], pair w, pair next, __local const float4 *xs,
                             uint lane, uint count) {
    for (uint i = lane; i < CLT_ROUND_TO_32(count); i += 32 * UNROLL) {
        piece later[2][UNROLL];
        const bool more = i + 32 * UNROLL < CLT_ROUND_TO_32(count);
        if (more || next.a) request(later, more ? w : next, more ? i + 32 * UNROLL : lane, count);
#pragma unroll
        for (uint u = 0; u < UNROLL; u++) {
            const uint at = i + 32 * u;
            if (at < count) {
                const float8 va = CLT_WIDEN8(TYPE, ready[0][u]), vb = CLT_WIDEN8(TYPE, ready[1][u]);
#pragma unroll
                for (uint r = 0; r < TOGETHER; r++) {
                    const float4 lo = xs[r * 2 * HALF + at], hi = xs[r * 2 * HALF + HALF + at];
                    acc[0][r] = dot8(va, lo, hi, acc[0][r]);
                    acc[1][r] = dot8(vb, lo, hi, acc[1][r]);
                }
            }
        }
#pragma unroll
        for (uint u = 0; u < UNROLL; u++) ready[0][u] = later[0][u], ready[1][u] = later[1][u];
    }
}

#if HALF_PTX
/* Adds up the team's sums and stores them: outputs `first` and, without GATED, the next one. */
static inline void store(const epilogue *e, float (*acc)[TOGETHER], __local float *part, uint first, uint rows, uint n,
                         uint item) {
#pragma unroll
    for (uint r = 0; r < TOGETHER; r++) {
        const float a = clt_team_sum(acc[0][r]), b = clt_team_sum(acc[1][r]);
        if (item % 32 || r >= rows) continue;
        if (first < n) finish(e, a, b, r, first);
        if (!GATED && first + 1 < n) finish(e, b, 0.0f, r, first + 1);
    }
}
#else
/* The 32 parts of a sum. */
static inline float total(__local const float *part) {
    float4 s = (float4)(0.0f);
#pragma unroll
    for (uint i = 0; i < 8; i++) s += ((__local const float4 *)part)[i];
    return (s.x + s.y) + (s.z + s.w);
}

/* The same through local memory, by the first items of the team's own group; all teams call it together. */
static inline void store(const epilogue *e, float (*acc)[TOGETHER], __local float *part, uint first, uint rows, uint n,
                         uint item) {
    const uint lane = item % 32;
    __local float *own = part + item / 32 * 2 * TOGETHER * 32;
    barrier(CLK_LOCAL_MEM_FENCE); /* the sums before, or the statistics, are read */
#pragma unroll
    for (uint o = 0; o < 2; o++)
#pragma unroll
        for (uint r = 0; r < TOGETHER; r++) own[(o * TOGETHER + r) * 32 + lane] = acc[o][r];
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint r = lane % TOGETHER, o = lane / TOGETHER;
    if (o >= OUTPUTS || r >= rows || first + o >= n) return;
    finish(e, total(own + (o * TOGETHER + r) * 32), GATED ? total(own + (TOGETHER + r) * 32) : 0.0f, r, first + o);
}
#endif

/* The weights of outputs j and, without GATED, j + 1; none from n on. Outputs of a team beyond n repeat others. */
static inline pair rows_of(__global const elem *w, uint ldw, __global const elem *gate, uint ldgate, uint block, uint team,
                           uint n) {
    const uint j = min(block + team * OUTPUTS, n - 1);
    pair p = {0, 0};
    if (block >= n) return p;
    p.a = w + j * (size_t)ldw;
    p.b = GATED ? gate + j * (size_t)ldgate : w + min(j + 1, n - 1) * (size_t)ldw;
    return p;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
linear_rows(uint rows, uint n, uint k, uint flags, float eps, __global const float *x, ulong x_off, uint ldx,
            __global const float *norm_w, ulong norm_w_off, __global const float *norm_b, ulong norm_b_off,
            __global const elem *w, ulong w_off, uint ldw, __global const elem *gate, ulong gate_off, uint ldgate,
            __global const float *bias, ulong bias_off, __global const float *gate_bias, ulong gate_bias_off,
            __global const float *residual, ulong res_off, uint ldres, __global float *y, ulong y_off, uint ldy) {
    __local float4 xs[TOGETHER * 2 * HALF];
    __local float4 sums[TEAMS * 2 * TOGETHER * 8]; /* 32 parts of each sum; first, the statistics' */
    const uint item = (uint)get_local_id(0), lane = item % 32, team = item / 32;
    const uint stride = (uint)get_num_groups(0) * AT_A_TIME;
    const norm_args a = {norm_w + norm_w_off, norm_b + norm_b_off, eps, (flags & HAS_NORM_W) != 0,
                         (flags & HAS_NORM_B) != 0};
    const epilogue e = {flags, ldres, ldy, bias + bias_off, gate_bias + gate_bias_off, residual + res_off, y + y_off};
    float2 stat[TOGETHER];
    piece ready[2][UNROLL];
    bool staged = false;
    x += x_off;
    for (uint first = (uint)get_group_id(0) * AT_A_TIME; first < n; first += stride) {
        const pair own = rows_of(w + w_off, ldw, gate + gate_off, ldgate, first, team, n);
        pair next = rows_of(w + w_off, ldw, gate + gate_off, ldgate, first + stride, team, n);
        float acc[2][TOGETHER];
#pragma unroll
        for (uint r = 0; r < TOGETHER; r++) acc[0][r] = acc[1][r] = 0.0f;
        for (uint c = 0; c < k; c += CHUNK) {
            const uint count = min((uint)CHUNK, k - c) / 8;
            const pair here = {own.a + c, own.b + c};
            if (k > CHUNK) next.a = 0;
            if (!staged || k > CHUNK) request(ready, here, lane, count);
            if (!staged) row_statistics(stat, x, ldx, rows, k, &a, (__local float *)sums, item);
            if (!staged || k > CHUNK) stage(xs, x, ldx, rows, c, count, stat, &a, item);
            staged = true;
            add_chunk(acc, ready, here, next, xs, lane, count);
        }
        store(&e, acc, (__local float *)sums, first + team * OUTPUTS, rows, n, item);
    }
}
