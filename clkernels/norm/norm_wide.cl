/* norm_wide: normalisation for devices with high bandwidth: every tensor is read once, by loads of up to 16
 * bytes, and the weights' gradients come from the same pass as dx. README.md defines the bits.
 *
 *   forward    64 / V work-items per row, which keep the row in registers; lane l of the row rule is element
 *              l % V of item l / V
 *   backward   a work-group per block of 64 rows inside a sample, ROWS rows at a time: x and dy go to local
 *              memory; then ITEMS_B / ROWS items per row (at most 64) compute the two sums; then each item
 *              owns four columns, computes dx (and its copy, and the output of the forward pass again) and
 *              continues the column sums
 *   columns    an item per 8 columns and block of 64 rows
 *
 * Macros: PART 1 forward, 2 backward, 3 columns, 0 all (to shorten builds); COLS: elements of a row, a
 * multiple of 64; HEADS: rows of a token (a macro, because 64-bit divisions are slow); forward V (1, 2, 4);
 * backward ROWS (4, 8) and ITEMS_B (256, 512), its work-group; RMS, HAS_W, HAS_B, HAS_DX, HAS_DW, HAS_DB,
 * HAS_RES, HAS_COPY, HAS_Y, HAS_SUM (column sums of the copy, or of dx without a copy) 0|1; X_TYPE, Y_TYPE,
 * DY_TYPE, DX_TYPE, COPY_TYPE (norm_columns.clh); HALF_PTX (include/clt_store.clh). Offsets, row distances
 * and columns are multiples of 8 elements.
 * Local size: forward 128, backward ITEMS_B, columns 64. Backward needs ROWS * COLS elements of x and of dy
 * in local memory. */
#define LANES 1
#include "norm_columns.clh"

#ifndef COLS
#define COLS 768
#endif
#ifndef HEADS
#define HEADS 1
#endif
#ifndef V
#define V 4
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef ITEMS_B
#define ITEMS_B 256
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
#if COLS % 64 != 0 || (V != 1 && V != 2 && V != 4) || (ROWS != 4 && ROWS != 8)
#error "COLS is a multiple of 64, V is 1, 2 or 4, ROWS is 4 or 8"
#endif

/* The tree of the row rule over the 64 lane sums at s, by each item for itself. */
static inline float tree_of(__local const float *lanes) {
    __local const float4 *s = (__local const float4 *)lanes;
    const float4 a = (s[0] + s[8]) + (s[4] + s[12]), b = (s[1] + s[9]) + (s[5] + s[13]);
    const float4 c = (s[2] + s[10]) + (s[6] + s[14]), d = (s[3] + s[11]) + (s[7] + s[15]);
    const float4 v = (a + c) + (b + d);
    const float2 u = v.lo + v.hi;
    return u.x + u.y;
}

#if PART == 0 || PART == 1
#define ITEMS (64 / V)
#define STEPS (COLS / 64)
#if V == 4
typedef float4 vec;
#define WIDEN_V(type, u) CLT_WIDEN4(type, u)
#define ROUND_V(type, v) CLT_ROUND4(type, v)
#elif V == 2
typedef float2 vec;
#define WIDEN_V(type, u) ((float2)(CLT_WIDEN(type, (u).x), CLT_WIDEN(type, (u).y)))
#define ROUND_V(type, v) CLT_PASTE(round2_, type)(v)
#define round2_0(v) (v)
#define round2_1(v) ((ushort2)(clt_round_1((v).x), clt_round_1((v).y)))
#define round2_2(v) ((ushort2)(clt_round_2((v).x), clt_round_2((v).y)))
#else
typedef float vec;
#define WIDEN_V(type, u) CLT_WIDEN(type, u)
#define ROUND_V(type, v) CLT_ROUND(type, v)
#endif
#define STORE_V(type, v, p)                                                                                  \
    (*(__global VECTOR(type, V) *)(p) = ROUND_V(type, v))

__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void
norm_forward(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off, __global const float *b,
             ulong b_off, __global y_elem *y, ulong y_off, __global float *mean, ulong mean_off, __global float *rstd,
             ulong rstd_off, ulong rows, ulong heads, ulong ldx, ulong ldy, float eps) {
    (void)heads; /* the arguments are those of the other bodies; HEADS has its value */
    __local float sum[128 / ITEMS][64] __attribute__((aligned(16)));
    __local float square[128 / ITEMS][64] __attribute__((aligned(16)));
    const uint mine = (uint)get_local_id(0) / ITEMS, item = (uint)get_local_id(0) % ITEMS;
    const size_t own = get_group_id(0) * (128 / ITEMS) + mine;
    const bool there = own < rows; /* the others compute the last row again and store nothing */
    const size_t row = there ? own : rows - 1, token = row / HEADS, at = row % HEADS * COLS + item * V;
    x += x_off + token * ldx + at;
    y += y_off + token * ldy + at;
    vec v[STEPS];
    vec acc = (vec)(0.0f);
    float m = 0.0f;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const VECTOR(X_TYPE, V) u = AS_VECTOR(X_TYPE, V, x + 64 * k);
        v[k] = WIDEN_V(X_TYPE, u);
    }
#if !RMS
#pragma unroll
    for (int k = 0; k < STEPS; k++) acc = acc + v[k];
    *(__local vec *)&sum[mine][item * V] = acc;
    barrier(CLK_LOCAL_MEM_FENCE);
    m = tree_of(sum[mine]) / (float)COLS;
    if (there && item == 0 && mean) mean[mean_off + row] = m;
    acc = (vec)(0.0f);
#endif
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const vec d = RMS ? v[k] : v[k] - m;
        acc = fma(d, d, acc);
    }
    *(__local vec *)&square[mine][item * V] = acc;
    barrier(CLK_LOCAL_MEM_FENCE);
    const float r = 1.0f / sqrt(tree_of(square[mine]) / (float)COLS + eps);
    if (!there) return;
    if (item == 0 && rstd) rstd[rstd_off + row] = r;
    w += w_off + item * V;
    b += b_off + item * V;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        vec o = (RMS ? v[k] : v[k] - m) * r;
#if HAS_W && HAS_B
        o = fma(o, AS_VECTOR(0, V, w + 64 * k), AS_VECTOR(0, V, b + 64 * k));
#elif HAS_W
        o = o * AS_VECTOR(0, V, w + 64 * k);
#elif HAS_B
        o = o + AS_VECTOR(0, V, b + 64 * k);
#endif
        STORE_V(Y_TYPE, o, y + 64 * k);
    }
}
#endif

#if PART == 0 || PART == 2
#define PER_ROW (ITEMS_B / ROWS < 64 ? ITEMS_B / ROWS : 64) /* items that sum one row */
#define OWN ((COLS + 4 * ITEMS_B - 1) / (4 * ITEMS_B)) /* groups of four columns per item */
/* 1: an item sums two lanes of the row rule */
#define TWO_LANES (64 * ROWS > ITEMS_B)
#if TWO_LANES
typedef float2 chain;
#else
typedef float chain;
#endif
#if HAS_COPY
#define SUM_TYPE COPY_TYPE
#else
#define SUM_TYPE DX_TYPE
#endif
/* Rows whose residual is in registers; few enough for 64 registers, so that work-groups share a unit.
 * Conversions to and from fp16 by integer operations take many registers themselves. */
#define BATCH (HAS_SUM && SUM_TYPE == 2 && !HALF_PTX ? 1 : 2)

/* Eight elements to local memory, unconverted. */
static inline void stage_0(__global const float *p, __local float *s) {
    __global const float4 *q = (__global const float4 *)p;
    const float4 a = q[0], b = q[1];
    ((__local float4 *)s)[0] = a;
    ((__local float4 *)s)[1] = b;
}
static inline void stage_1(__global const ushort *p, __local ushort *s) {
    *(__local uint4 *)s = *(__global const uint4 *)p;
}
#define stage_2 stage_1

/* --- steps of norm_backward: the macros use its variables by name --- */

/* STAGE_ROWS: `rows` rows of x and of dy, from row `first`, to local memory. */
#define STAGE_ROWS()                                                                                         \
    _Pragma("unroll 2") for (uint i = 0; i < (ROWS * COLS + 8 * ITEMS_B - 1) / (8 * ITEMS_B); i++)           \
    {                                                                                                        \
        const uint e = (item + ITEMS_B * i) * 8;                                                             \
        const size_t row = first + e / COLS, token = row / HEADS, at = row % HEADS * COLS + e % COLS;        \
        if (e < ROWS * COLS && e / COLS < rows) {                                                            \
            CLT_PASTE(stage_, X_TYPE)(x + x_off + (token * ldx + at), xs + e);                               \
            CLT_PASTE(stage_, DY_TYPE)(dy + dy_off + (token * lddy + at), ds + e);                           \
        }                                                                                                    \
    }

/* SUM_LANES: one or two lanes of the row rule, of row `mine` from lane l: the sums of g and of g xhat
 * (README.md). */
#if TWO_LANES
#define PAIR(type, p) ((float2)(CLT_WIDEN(type, (p).x), CLT_WIDEN(type, (p).y)))
#define LOCAL(type, p) PAIR(type, (*(__local const VECTOR(type, 2) *)(p)))
#define WEIGHT(i) (*(__global const float2 *)(w + (i)))
#else
#define LOCAL(type, p) CLT_LOAD(type, p)
#define WEIGHT(i) w[i]
#endif
#if HAS_W
#define WEIGHTED(i) (LOCAL(DY_TYPE, ds + mine * COLS + i) * WEIGHT(i))
#else
#define WEIGHTED(i) LOCAL(DY_TYPE, ds + mine * COLS + i)
#endif
#define SUM_LANES()                                                                                          \
    {                                                                                                        \
        const float m = of_row[mine].x, s = of_row[mine].y;                                                  \
        const uint l = TWO_LANES ? 2 * lane : lane;                                                          \
        chain a1 = (chain)(0.0f), a2 = a1;                                                                   \
        _Pragma("unroll 4") for (uint n = 0; n < COLS / 64; n++)                                             \
        {                                                                                                    \
            const uint i = l + 64 * n;                                                                       \
            const chain g = WEIGHTED(i), u = LOCAL(X_TYPE, xs + mine * COLS + i);                            \
            a1 = a1 + g;                                                                                     \
            a2 = fma(g, RMS ? u * s : (u - m) * s, a2);                                                      \
        }                                                                                                    \
        *(__local chain *)&lanes1[mine][l] = a1;                                                             \
        *(__local chain *)&lanes2[mine][l] = a2;                                                             \
    }

/* SUM_ROWS: c1 and c2 of each row to of_row. */
#if HAS_DX
#define SUM_ROWS()                                                                                           \
    {                                                                                                        \
        const uint mine = item / PER_ROW, lane = item % PER_ROW;                                             \
        if (mine < ROWS) SUM_LANES()                                                                         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        if (mine < ROWS && lane < 2)                                                                         \
            ((__local float *)&of_row[mine])[2 + lane] =                                                     \
                tree_of(lane ? lanes2[mine] : lanes1[mine]) / (float)COLS;                                   \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
    }
#else
#define SUM_ROWS()
#endif

/* The weights of four columns. */
#if HAS_W && (HAS_DX || HAS_Y)
#define WEIGHTS(c) (*(__global const float4 *)(w + (c)))
#else
#define WEIGHTS(c) (float4)(0.0f)
#endif

/* LOAD_RESIDUAL: the residual of rows q .. q + BATCH - 1, before anything is stored: dx may overwrite it, so
 * no compiler reorders the load. RESIDUAL(j): that of row q + j. */
#if HAS_DX && HAS_RES
#define LOAD_RESIDUAL()                                                                                      \
    VECTOR(DX_TYPE, 4) held[BATCH];                                                                          \
    _Pragma("unroll") for (uint j = 0; j < BATCH; j++)                                                       \
    {                                                                                                        \
        const size_t row = first + q + j, at = row % HEADS * COLS + c;                                       \
        if (q + j < rows) held[j] = AS_VECTOR(DX_TYPE, 4, res + res_off + (row / HEADS * ldres + at));       \
    }
#define RESIDUAL(j) held[j]
#else
#define LOAD_RESIDUAL()
#define RESIDUAL(j) (VECTOR(DX_TYPE, 4))(0)
#endif

/* Four columns of a row: stores dx, its copy and the forward pass's output again (y), and continues the sums
 * down the columns. of: the row's mean, rstd, c1, c2. */
static inline void columns_of_row(float4 dy_row, float4 x_row, float4 of, float4 w, __global const float *b,
                                  VECTOR(DX_TYPE, 4) res, __global y_elem *y, __global dx_elem *dx,
                                  __global copy_elem *copy, float4 *sum_w, float4 *sum_b, float4 *sum_dx) {
    const float4 xhat = norm_xhat(x_row, of);
#if HAS_Y
    const float4 bias = HAS_B ? *(__global const float4 *)b : (float4)(0.0f);
    const float4 again = norm_again(xhat, w, bias);
    STORE_VECTOR4(Y_TYPE, again, y);
#endif
#if HAS_DX
    float4 v = norm_dx(dy_row, w, xhat, of);
    if (HAS_RES) v = CLT_WIDEN4(DX_TYPE, res) + v;
    STORE_VECTOR4(DX_TYPE, v, dx);
#if HAS_COPY
    STORE_VECTOR4(COPY_TYPE, v, copy);
#endif
#if HAS_SUM
    *sum_dx = *sum_dx + CLT_WIDEN4(SUM_TYPE, CLT_ROUND4(SUM_TYPE, v));
#endif
#endif
    if (HAS_DW) *sum_w = fma(dy_row, xhat, *sum_w);
    if (HAS_DB) *sum_b = *sum_b + dy_row;
}

__kernel __attribute__((reqd_work_group_size(ITEMS_B, 1, 1))) void
norm_backward(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off,
              __global const float *mean, ulong mean_off, __global const float *rstd, ulong rstd_off,
              __global const dy_elem *dy, ulong dy_off, __global const dx_elem *res, ulong res_off,
              __global dx_elem *dx, ulong dx_off, __global copy_elem *copy, ulong copy_off, __global y_elem *y,
              ulong y_off, __global const float *b, ulong b_off, __global float *part, ulong part_w, ulong part_b,
              ulong part_sum, ulong rows_per_sample, ulong blocks, ulong ldx, ulong lddy, ulong ldres, ulong lddx) {
    __local x_elem xs[ROWS * COLS] __attribute__((aligned(16)));
    __local dy_elem ds[ROWS * COLS] __attribute__((aligned(16)));
    __local float lanes1[ROWS][64] __attribute__((aligned(16)));
    __local float lanes2[ROWS][64] __attribute__((aligned(16)));
    __local float4 of_row[ROWS]; /* mean, rstd, c1, c2 */
    const uint item = (uint)get_local_id(0);
    const size_t block = get_group_id(0), sample = block / blocks;
    const size_t begin = (block % blocks) * 64, start = sample * rows_per_sample + begin;
    const uint count = rows_per_sample - begin < 64 ? (uint)(rows_per_sample - begin) : 64;
    w += w_off;
    float4 sum_w[OWN], sum_b[OWN], sum_dx[OWN];
#pragma unroll
    for (int o = 0; o < OWN; o++) sum_w[o] = sum_b[o] = sum_dx[o] = (float4)(0.0f);
    for (uint k = 0; k < count; k += ROWS) {
        const size_t first = start + k;
        const uint rows = count - k < ROWS ? count - k : ROWS;
        barrier(CLK_LOCAL_MEM_FENCE); /* the previous rows are no longer used */
        STAGE_ROWS()
        if (item < rows) {
            const float m = RMS ? 0.0f : mean[mean_off + first + item];
            of_row[item] = (float4)(m, rstd[rstd_off + first + item], 0.0f, 0.0f);
        }
        /* Global memory too: dx may overwrite x or dy, which other items have read. */
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        SUM_ROWS()
#pragma unroll
        for (int o = 0; o < OWN; o++) {
            const uint c = (item + ITEMS_B * o) * 4;
            if (c >= COLS) continue;
            const float4 wv = WEIGHTS(c);
            for (uint q = 0; q < rows; q += BATCH) {
                LOAD_RESIDUAL()
#pragma unroll
                for (uint j = 0; j < BATCH; j++) {
                    const uint r = q + j;
                    if (r >= rows) continue;
                    const float4 f = of_row[r], d = LOCAL4(DY_TYPE, ds + r * COLS + c);
                    const float4 u = LOCAL4(X_TYPE, xs + r * COLS + c);
                    const size_t token = (first + r) / HEADS, at = (first + r) % HEADS * COLS + c;
                    columns_of_row(d, u, f, wv, b + b_off + c, RESIDUAL(j), y + y_off + (token * ldx + at),
                                   dx + dx_off + (token * lddx + at), copy + copy_off + (token * lddx + at),
                                   &sum_w[o], &sum_b[o], &sum_dx[o]);
                }
            }
        }
    }
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        const uint c = (item + ITEMS_B * o) * 4;
        if (c >= COLS) continue;
        LEAVE_SUMS(block * COLS + c, sum_w[o], sum_b[o], sum_dx[o])
    }
}
#endif

#if PART == 0 || PART == 3
#define FETCHED (X_TYPE ? 16 : 8) /* rows loaded at once */
/* Block sums of plain columns; global size (columns / 8 rounded up to 64, samples * blocks). */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
columns_blocks(__global const x_elem *x, ulong x_off, __global float *part, ulong part_off, ulong cols,
               ulong rows_per_sample, ulong blocks, ulong ldx, ulong span) {
    const size_t c = get_global_id(0) * 8, block = get_global_id(1), sample = block / blocks;
    const size_t begin = (block % blocks) * 64, end = begin + 64 < rows_per_sample ? begin + 64 : rows_per_sample;
    if (c >= cols) return;
    x += x_off + sample * rows_per_sample * ldx + c;
    float8 acc = (float8)(0.0f);
    size_t r = begin;
    for (; r + FETCHED <= end; r += FETCHED) {
        CLT_T8(X_TYPE) u[FETCHED];
#pragma unroll
        for (uint j = 0; j < FETCHED; j++) u[j] = CLT_FETCH8(X_TYPE, x + (r + j) * ldx);
#pragma unroll
        for (uint j = 0; j < FETCHED; j++) acc = acc + CLT_WIDEN8(X_TYPE, u[j]);
    }
    for (; r < end; r++) acc = acc + CLT_LOAD8(X_TYPE, x + r * ldx);
    clt_store8_0(acc, part + part_off + block * cols + c);
}

/* The last pass, samples side by side: local size (32 columns, SIDE samples), global size (..,
 * SIDE * results). Block sums are loaded AT_ONCE at a time, because their latency limits this pass. Each
 * address follows from the previous one and nothing depends on the loaded values; otherwise assemblers save
 * registers and load a few at a time. */
#define SIDE 16
#define AT_ONCE 32
static inline void finish(__global const float *part, __global float *out, __local float (*sums)[32], ulong samples,
                          ulong blocks, ulong cols, int accumulate) {
    const size_t c = get_global_id(0);
    const uint x = (uint)get_local_id(0), y = (uint)get_local_id(1);
    const bool there = c < cols;
    float acc = accumulate && there && y == 0 ? out[c] : 0.0f; /* y = 0 stores it */
    for (size_t s = 0; s < samples; s += SIDE) {
        float sum = 0.0f;
        if (there && s + y < samples) {
            __global const float *p = part + (s + y) * blocks * cols + c;
            uint left = (uint)blocks;
            for (; left >= AT_ONCE; left -= AT_ONCE) {
                float v[AT_ONCE];
#pragma unroll
                for (uint j = 0; j < AT_ONCE; j++, p += cols) v[j] = *p;
#pragma unroll
                for (uint j = 0; j < AT_ONCE; j++) sum = sum + v[j];
            }
            float v[AT_ONCE];
#pragma unroll
            for (uint j = 0; j + 1 < AT_ONCE; j++, p += cols) v[j] = j < left ? *p : 0.0f;
#pragma unroll
            for (uint j = 0; j + 1 < AT_ONCE; j++) sum = j < left ? sum + v[j] : sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        sums[y][x] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = 0; i < SIDE && s + i < samples; i++) acc = acc + sums[i][x];
    }
    if (there && y == 0) out[c] = acc;
}

/* Up to three results of one call. */
__kernel __attribute__((reqd_work_group_size(32, SIDE, 1))) void
columns_finish_wide(__global const float *part, ulong part_off, __global float *out, ulong out_off, ulong part2_off,
                    __global float *out2, ulong out2_off, ulong part3_off,
                    __global float *out3, ulong out3_off, ulong samples, ulong blocks, ulong cols, int accumulate) {
    __local float sums[SIDE][32];
    const size_t result = get_group_id(1);
    part += result == 0 ? part_off : result == 1 ? part2_off : part3_off;
    out = result == 0 ? out + out_off : result == 1 ? out2 + out2_off : out3 + out3_off;
    finish(part, out, sums, samples, blocks, cols, accumulate);
}

/* Results of several calls, in one buffer; the block sums of the next call are `pitch` elements further. */
__kernel __attribute__((reqd_work_group_size(32, SIDE, 1))) void
columns_finish_later(__global const float *part, ulong pitch, __global float *out, ulong at0, ulong at1, ulong at2,
                     ulong at3, ulong at4, ulong at5, ulong samples, ulong blocks, ulong cols, int accumulate) {
    __local float sums[SIDE][32];
    const size_t r = get_group_id(1);
    out += r < 3 ? (r == 0 ? at0 : r == 1 ? at1 : at2) : (r == 3 ? at3 : r == 4 ? at4 : at5);
    finish(part + r * pitch, out, sums, samples, blocks, cols, accumulate);
}
#endif
