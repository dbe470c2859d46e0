/* linear_mma: linear_rows.cl's formula for 1 to 8 rows of x and bf16 weights on NVIDIA's matrix units, which make the
 * arithmetic of eight rows as cheap as that of one. A product of 16 x 8 x 16 has 16 rows of weights and the rows of x,
 * of which those beyond `rows` repeat the last. x is the sum of two bf16 numbers, so it keeps 16 bits.
 *
 * The order of a contraction is free, so a work-item reads 8 neighbouring weights in one piece of 16 bytes and takes
 * them as the elements of two products: 4 work-items x 8 elements are 32 columns of a row. The teams of 32 work-items
 * of a group take such steps in turn and add their sums at the end.
 *
 *   ITEMS, UNROLL, NORM, GATED, ACT   linear_rows.cl; UNROLL counts steps
 *   TILES    1 or 2 times 16 outputs at a time; with GATED 1 (the gate is the other tile)
 *
 * Arguments, alignment and launch are those of linear_rows; a group takes 16 * TILES outputs at a time.
 * Requires mma_bf16. Bound: the bytes of the weights. */
#ifndef ITEMS
#define ITEMS 256
#endif
#define HALF_PTX 1
#include "../include/clt_store.clh"
#include "../include/clt_team.clh"

#ifndef TYPE
#define TYPE 1
#endif
#ifndef UNROLL
#define UNROLL 4
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
#ifndef TILES
#define TILES 1
#endif
#if ACT
#include "../include/clt_act.clh"
#endif
#if TYPE != 1 || ITEMS % 32 || GATED && TILES != 1
#error "bf16; ITEMS is a multiple of 32; GATED has one tile of its own"
#endif
#define TEAMS (ITEMS / 32)
#define MATRICES (GATED ? 2 : TILES)
#define MOST_ROWS 8
#include "linear_finish.clh"

/* The norm of one row of x; without NORM it is not used. */
typedef struct {
    float mean, scale;
    __global const float *w, *b;
    bool has_w, has_b;
} row_norm;

/* 8 elements of a row of x, behind the norm, as sums of two bf16 numbers each. */
static inline void load_row(uint4 *high, uint4 *low, __global const float *x, uint at, const row_norm *a) {
    float8 v = CLT_LOAD8(0, x + at);
#if NORM
    v = (v - a->mean) * a->scale;
    if (a->has_w) v = v * CLT_LOAD8(0, a->w + at);
    if (a->has_b) v = v + CLT_LOAD8(0, a->b + at);
#endif
    *high = CLT_ROUND8(clt_round2_1, clt_round4_1, v);
    const float8 rest = v - CLT_WIDEN8(1, *high);
    *low = CLT_ROUND8(clt_round2_1, clt_round4_1, rest);
}

/* c += a b for 16 x 8 x 16: rows g and g + 8 of the weights in a0 and a1, where g = lane / 4. */
static inline void product(float4 *c, uint2 a0, uint2 a1, uint2 b) {
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c->x), "+f"(c->y), "+f"(c->z), "+f"(c->w)
                     : "r"(a0.x), "r"(a1.x), "r"(a0.y), "r"(a1.y), "r"(b.x), "r"(b.y));
}

/* The weights of a work-item: two rows of each matrix, at its first columns. */
typedef struct {
    __global const ushort *row[MATRICES][2];
} places;

static inline void request(uint4 (*to)[MATRICES][2], const places *p, uint step, uint steps) {
#pragma unroll
    for (uint u = 0; u < UNROLL; u++) {
        const size_t at = 32 * (size_t)min(step + u * TEAMS, steps - 1);
#pragma unroll
        for (uint m = 0; m < MATRICES; m++) {
            to[u][m][0] = *(__global const uint4 *)(p->row[m][0] + at);
            to[u][m][1] = *(__global const uint4 *)(p->row[m][1] + at);
        }
    }
}

/* This team's share of the sums; `ready`: what was requested for its first steps. */
static inline void add_steps(float4 *c, uint4 (*ready)[MATRICES][2], const places *p, __global const float *x,
                             const row_norm *a, uint team, uint steps) {
    for (uint step = team; step < steps; step += UNROLL * TEAMS) {
        uint4 later[UNROLL][MATRICES][2];
        if (step + UNROLL * TEAMS < steps) request(later, p, step + UNROLL * TEAMS, steps);
#pragma unroll
        for (uint u = 0; u < UNROLL; u++) {
            if (step + u * TEAMS >= steps) continue;
            uint4 high, low;
            load_row(&high, &low, x, 32 * (step + u * TEAMS), a);
#pragma unroll
            for (uint m = 0; m < MATRICES; m++) {
                const uint4 w0 = ready[u][m][0], w1 = ready[u][m][1];
                product(&c[m], w0.xy, w1.xy, high.xy);
                product(&c[m], w0.zw, w1.zw, high.zw);
                product(&c[m], w0.xy, w1.xy, low.xy);
                product(&c[m], w0.zw, w1.zw, low.zw);
            }
        }
#pragma unroll
        for (uint u = 0; u < UNROLL; u++)
#pragma unroll
            for (uint m = 0; m < MATRICES; m++) ready[u][m][0] = later[u][m][0], ready[u][m][1] = later[u][m][1];
    }
}

/* Mean and reciprocal deviation of a row of x. */
static inline float2 statistics(__global const float *x, uint k, float eps, __local float *all, uint item) {
    float s = 0.0f, mean = 0.0f;
#if NORM == 1
    for (uint i = item; i < k; i += ITEMS) s += x[i];
    mean = clt_group_sum(s, all, item) / (float)k;
    s = 0.0f;
#endif
    for (uint i = item; i < k; i += ITEMS) s = fma(x[i] - mean, x[i] - mean, s);
    return (float2)(mean, 1.0f / sqrt(clt_group_sum(s, all, item) / (float)k + eps));
}

/* Adds the teams' sums and finishes outputs `first` ... of all rows. Output o of a tile and row r are element (o / 8) *
 * 2 + r % 2 of lane o % 8 * 4 + r / 2. */
static inline void store(const epilogue *e, const float4 *c, __local float4 *sums, uint first, uint rows, uint n, uint item) {
    barrier(CLK_LOCAL_MEM_FENCE); /* the sums before are read */
#pragma unroll
    for (uint m = 0; m < MATRICES; m++) sums[m * ITEMS + item] = c[m];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint t = item; t < 16 * TILES * rows; t += ITEMS) {
        const uint o = t % 16, tile = t / 16 % TILES, r = t / (16 * TILES);
        const uint at = (o % 8 * 4 + r / 2) * 4 + o / 8 * 2 + r % 2;
        __local const float *s = (__local const float *)(sums + tile * ITEMS) + at;
        float v = 0.0f, g = 0.0f;
#pragma unroll
        for (uint i = 0; i < TEAMS; i++) {
            v += s[i * 128];
            if (GATED) g += s[ITEMS * 4 + i * 128];
        }
        if (first + tile * 16 + o < n) finish(e, v, g, r, first + tile * 16 + o);
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
linear_rows(uint rows, uint n, uint k, uint flags, float eps, __global const float *x, ulong x_off, uint ldx,
            __global const float *norm_w, ulong norm_w_off, __global const float *norm_b, ulong norm_b_off,
            __global const ushort *w, ulong w_off, uint ldw, __global const ushort *gate, ulong gate_off, uint ldgate,
            __global const float *bias, ulong bias_off, __global const float *gate_bias, ulong gate_bias_off,
            __global const float *residual, ulong res_off, uint ldres, __global float *y, ulong y_off, uint ldy) {
    __local float4 sums[MATRICES * ITEMS];
    __local float2 stat[MOST_ROWS];
    const uint item = (uint)get_local_id(0), lane = item % 32, team = item / 32, row = min(lane / 4, rows - 1);
    const uint steps = k / 32, column = lane % 4 * 8;
    const epilogue e = {flags, ldres, ldy, bias + bias_off, gate_bias + gate_bias_off, residual + res_off, y + y_off};
    row_norm a = {0.0f, 1.0f, norm_w + norm_w_off + column, norm_b + norm_b_off + column, (flags & HAS_NORM_W) != 0,
                  (flags & HAS_NORM_B) != 0};
    bool measured = !NORM;
    x += x_off;
    for (uint first = (uint)get_group_id(0) * 16 * TILES; first < n; first += (uint)get_num_groups(0) * 16 * TILES) {
        places p;
        float4 c[MATRICES];
        uint4 ready[UNROLL][MATRICES][2];
#pragma unroll
        for (uint m = 0; m < MATRICES; m++) {
            __global const ushort *from = GATED && m ? gate + gate_off : w + w_off;
            const size_t ld = GATED && m ? ldgate : ldw;
            const uint out = first + (GATED ? 0 : m * 16) + lane / 4;
            p.row[m][0] = from + min(out, n - 1) * ld + column;
            p.row[m][1] = from + min(out + 8, n - 1) * ld + column;
            c[m] = (float4)(0.0f);
        }
        request(ready, &p, team, steps);
        if (!measured) {
            for (uint r = 0; r < rows; r++) {
                const float2 s = statistics(x + r * (size_t)ldx, k, eps, (__local float *)sums, item);
                if (item == 0) stat[r] = s;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            a.mean = stat[row].x;
            a.scale = stat[row].y;
            measured = true;
        }
        add_steps(c, ready, &p, x + row * (size_t)ldx + column, &a, team, steps);
        store(&e, c, sums, first, rows, n, item);
    }
}
