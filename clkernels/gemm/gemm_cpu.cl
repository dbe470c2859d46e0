/* gemm_cpu: GEMM for CPU devices: work-groups of one, float16 lanes, a register tile of MR rows x NR columns.
 *
 * As in other fast CPU GEMMs the tile reads packed panels: A as [k][MR] (broadcast one by one), B as [k][NR].
 * A separate kernel packs the activations once per call. The other operand, which is the weights or may be as
 * wide as the vocabulary, is packed piece by piece into local memory by the work-item that uses it, so it is
 * read once from memory and never written back.
 *
 *   NT, NN  gemm_pack_a (rows of a), then gemm_rows: an item owns some panels of NR columns, for all k
 *   TN      gemm_pack_b (rows of b), then gemm_columns: an item owns some panels of MR columns of a
 *
 *   -DMR=8|6 -DNV=1|2|3         register tile, NR = 16 * NV; packing transposes two panels at once. 8 x 2 fills
 *                               16 of 32 registers of 512 bits, 6 x 1 fills 12 of 16 registers of 256 bits
 *   -DKC                        steps along k whose B panels (KC * NR * PANELS) are packed at once: the L1 cache
 *   -DPANELS=1|2                neighbouring panels of NR columns that gemm_rows packs at once: more than one
 *                               line of each row of b
 *   -DROWS                      most rows of one item of gemm_rows, a multiple of MR: its unfinished chains
 *                               and the packed rows of a stay in the L2 cache
 *   -DLA                        floats of local memory for A in gemm_columns: a part of the L2 cache
 *   -DACT -DGRAD_ACT -DIN_TYPE -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh; packing widens to fp32
 *
 * Order (docs/numerics.md, GEMM): one chain over k ascending from +0 per output. A chain that is interrupted
 * at the edge of a block is stored unrounded (in `part`) and continued from there. Lanes beyond an edge
 * repeat the values at the edge or are zero, and are never stored; k is never padded.
 *
 * Requires: local memory of (KC + ROWS) * NR * PANELS and of LA floats, work-groups of one. */
#include "gemm_cpu.clh"

#ifndef MR
#define MR 8
#define NV 2
#define KC 256
#define ROWS 512
#define LA 24576
#endif
#ifndef PANELS
#define PANELS 1
#endif
#define NR (16 * NV)
#if MR != 8 && MR != 6
#error "MR must be 8 or 6"
#endif

/* Flags of a launch besides CLT_EP_*: the state of the chains. */
#define CLT_CHAIN_FIRST 256u /* chains start here; else they continue from part */
#define CLT_CHAIN_LAST 512u  /* chains end here; else they are stored in part */
#define CLT_B_ROWS 1024u     /* gemm_rows: b is [k,n] (NN), else [n,k] (NT) */

/* --- packing --- */

/* One step of a panel of MR rows: lanes [0, MR) or [MR, 2 MR) of a float16, or MR numbers of a. */
#if MR == 8
#define PUT_FIRST(SPACE, to, x) AT8(SPACE, to) = (x).lo
#define PUT_SECOND(SPACE, to, x) AT8(SPACE, to) = (x).hi
#define PUT_INPUT(SPACE, to, a) AT8(SPACE, to) = IN8(a)
#else
#define PUT_FIRST(SPACE, to, x) (AT4(SPACE, to) = (x).s0123, AT2(SPACE, (to) + 4) = (x).s45)
#define PUT_SECOND(SPACE, to, x) (AT4(SPACE, to) = (x).s6789, AT2(SPACE, (to) + 4) = (x).sab)
#define PUT_INPUT(SPACE, to, a) EACH(put, MR) (to)[put] = IN1((a) + put)
#endif

#define PACK_STEPS 16
#define ROUND_UP(x, to) (((size_t)(x) + (to) - 1) / (to) * (to))

/* Rows of a [m,k] to blocks of KC steps, each [ceil(m/MR)][steps][MR]. Data that is used together is
 * contiguous: equal distances would map to the same few sets of the caches. One 16 x 16 transpose gives two
 * panels. Launch: {ceil(m / (2 * MR)), ceil(k / KC)}. */
__kernel CLT_ONE_ITEM void gemm_pack_a(uint m, uint k, __global const clt_gemm_in *a, ulong a_off, ulong lda,
                                       __global float *to) {
    const size_t row0 = get_global_id(0) * 2 * MR, last = (size_t)m - 1, k0 = get_global_id(1) * KC;
    const size_t steps = min((size_t)k - k0, (size_t)KC);
    const bool second = row0 + MR < m;
    __global const clt_gemm_in *row[2 * MR];
    to += k0 * ROUND_UP(m, MR) + row0 * steps;
    __global float *to2 = to + MR * steps;
    a += a_off + k0;
    EACH(i, 2 * MR) row[i] = a + min(row0 + i, last) * lda;
    size_t kk = 0;
    for (; kk + 16 <= steps; kk += 16) {
        float16 r[16];
        EACH(i, 16) r[i] = i < 2 * MR ? IN16(row[min(i, 2 * MR - 1)] + kk) : (float16)(0.0f);
        transpose16(r);
        EACH(j, 16) PUT_FIRST(__global, to + (kk + j) * MR, r[j]);
        if (second) EACH(j, 16) PUT_SECOND(__global, to2 + (kk + j) * MR, r[j]);
    }
    for (; kk < steps; kk++)
        for (size_t i = 0; i < MR; i++) {
            to[kk * MR + i] = IN1(a + min(row0 + i, last) * lda + kk);
            if (second) to2[kk * MR + i] = IN1(a + min(row0 + MR + i, last) * lda + kk);
        }
}

/* `steps` rows of NR floats (only `left` exist) to [steps][NR]. */
#define DEFINE_COPY_ROWS(NAME, SPACE)                                                                        \
    static inline void NAME(SPACE float *to, __global const clt_gemm_in *b, size_t ldb, size_t left,         \
                            size_t steps)                                                                    \
    {                                                                                                        \
        for (size_t kk = 0; kk < steps; kk++, b += ldb, to += NR) {                                          \
            if (left >= NR) {                                                                                \
                EACH(j, NV) AT16(SPACE, to + 16 * j) = IN16(b + 16 * j);                                     \
            } else {                                                                                         \
                for (size_t j = 0; j < NR; j++) to[j] = j < left ? IN1(b + j) : 0.0f;                         \
            }                                                                                                \
        }                                                                                                    \
    }
DEFINE_COPY_ROWS(copy_rows_local, __local)
DEFINE_COPY_ROWS(copy_rows_global, __global)

/* Rows of b [k,n] to blocks of `block` rows, each [ceil(n/NR)][rows][NR]. An item packs PACK_STEPS rows, so
 * that rows are read contiguously. Launch: {ceil(block / PACK_STEPS), ceil(k / block)}. */
__kernel CLT_ONE_ITEM void gemm_pack_b(uint n, uint k, uint block, __global const clt_gemm_in *b, ulong b_off,
                                       ulong ldb, __global float *to)
{
    const size_t k0 = get_global_id(1) * block, rows = min((size_t)k - k0, (size_t)block);
    const size_t first = get_global_id(0) * PACK_STEPS;
    if (first >= rows) return; /* the last block may be shorter */
    const size_t steps = min(rows - first, (size_t)PACK_STEPS);
    b += b_off + (k0 + first) * ldb;
    to += k0 * ROUND_UP(n, NR) + first * NR;
    for (size_t column = 0; column < n; column += NR) {
        for (size_t kk = 0; kk < steps; kk++)
            EACH(j, NV) PREFETCH(b + kk * ldb + column + 4 * NR + 16 * j, 3);
        copy_rows_global(to + column * rows, b + column, ldb, n - column, steps);
    }
}

/* NR rows of b [n,k] (only `left` exist) to [steps][NR]. */
static inline void turn_rows(__local float *to, __global const clt_gemm_in *b, size_t ldb, size_t left, size_t steps)
{
    for (size_t h = 0; h < NR; h += 16) {
        __global const clt_gemm_in *row[16];
        EACH(i, 16) row[i] = b + min(h + i, left - 1) * ldb;
        size_t kk = 0;
        for (; kk + 16 <= steps; kk += 16) {
            float16 r[16];
            EACH(i, 16) r[i] = IN16(row[i] + kk);
            transpose16(r);
            EACH(j, 16) AT16(__local, to + (kk + j) * NR + h) = r[j];
        }
        for (; kk < steps; kk++)
            for (size_t i = 0; i < 16; i++) to[kk * NR + h + i] = IN1(b + min(h + i, left - 1) * ldb + kk);
    }
}

/* `width` columns of `rows` rows of a [k,m] to panels [ceil(width/MR)][rows][MR]. Two rows of two panels at
 * once fill whole lines; PACK_STEPS rows of them come before the next two panels, because the panels are so
 * far apart that all of them together would map to one set of the L1 cache. */
static inline void copy_columns(__local float *to, __global const clt_gemm_in *a, size_t lda, size_t width,
                                size_t rows)
{
    const size_t whole = width < 16 ? 0 : (width - 16) / (2 * MR) * (2 * MR) + 2 * MR, even = rows / 2 * 2;
    for (size_t k0 = 0; k0 < even; k0 += PACK_STEPS) {
        const size_t k1 = min(k0 + PACK_STEPS, even);
        for (size_t i = 0; i < whole; i += 2 * MR) {
            __local float *panel = to + i * rows;
            for (size_t kk = k0; kk < k1; kk += 2) {
                __global const clt_gemm_in *at = a + kk * lda + i;
                const float16 x = IN16(at), y = IN16(at + lda);
                PREFETCH(at + PACK_STEPS * lda, 3);
                PREFETCH(at + (PACK_STEPS + 1) * lda, 3);
#if MR == 8
                AT16(__local, panel + kk * MR) = (float16)(x.lo, y.lo);
                AT16(__local, panel + (rows + kk) * MR) = (float16)(x.hi, y.hi);
#else
                PUT_FIRST(__local, panel + kk * MR, x);
                PUT_FIRST(__local, panel + (kk + 1) * MR, y);
                PUT_SECOND(__local, panel + (rows + kk) * MR, x);
                PUT_SECOND(__local, panel + (rows + kk + 1) * MR, y);
#endif
            }
        }
    }
    for (size_t kk = 0; kk < rows; kk++)
        for (size_t i = kk < even ? whole : 0; i < width; i += MR) {
            __local float *panel = to + i * rows + kk * MR;
            if (i + MR <= width)
                PUT_INPUT(__local, panel, a + kk * lda + i);
            else
                for (size_t j = 0; j < MR; j++) panel[j] = i + j < width ? IN1(a + kk * lda + i + j) : 0.0f;
        }
}

/* --- the register tile --- */

/* Continues acc[i][j] over `steps` steps of packed panels. */
#define DEFINE_TILE(NAME, A_SPACE, B_SPACE)                                                                  \
    static inline void NAME(float16 (*acc)[NV], A_SPACE const float *a, B_SPACE const float *b, size_t steps) \
    {                                                                                                        \
        for (size_t kk = 0; kk < steps; kk++, a += MR, b += NR) {                                            \
            float16 bv[NV];                                                                                  \
            EACH(j, NV) bv[j] = vload16(j, b);                                                               \
            EACH(i, MR)                                                                                      \
            {                                                                                                \
                float16 av = (float16)(a[i]);                                                                \
                EACH(j, NV) acc[i][j] = fma(av, bv[j], acc[i][j]);                                           \
            }                                                                                                \
        }                                                                                                    \
    }
DEFINE_TILE(tile_rows, __global, __local)
DEFINE_TILE(tile_columns, __local, __global)

/* A tile's place in the matrix, and how many of its outputs exist. */
typedef struct {
    size_t row, column, rows, columns;
} tile_place;

#define IS_WHOLE(at) ((at).rows == MR && (at).columns == NR)
#define LANES(at, j) min((at).columns - (j), (size_t)16)

static inline void clear_tile(float16 (*acc)[NV]) { EACH(i, MR) EACH(j, NV) acc[i][j] = (float16)(0.0f); }

/* acc = a tile at the edge or inside of a matrix with row distance ld */
static inline void load_tile(float16 (*acc)[NV], __global const float *from, size_t ld, tile_place at)
{
    float16 t[MR * NV];
    from += at.row * ld + at.column;
    EACH(i, MR * NV) t[i] = (float16)(0.0f);
    for (size_t i = 0; i < at.rows; i++)
        for (size_t j = 0; j < at.columns; j += 16) t[i * NV + j / 16] = clt_load16(from + i * ld + j, LANES(at, j));
    EACH(i, MR) EACH(j, NV) acc[i][j] = t[i * NV + j];
}

static inline void store_tile(float16 (*acc)[NV], __global float *to, size_t ld, tile_place at)
{
    float16 t[MR * NV];
    to += at.row * ld + at.column;
    if (IS_WHOLE(at)) {
        EACH(i, MR) EACH(j, NV) AT16(__global, to + i * ld + 16 * j) = acc[i][j];
        return;
    }
    EACH(i, MR) EACH(j, NV) t[i * NV + j] = acc[i][j];
    for (size_t i = 0; i < at.rows; i++)
        for (size_t j = 0; j < at.columns; j += 16) clt_store16(t[i * NV + j / 16], to + i * ld + j, LANES(at, j));
}

/* c = acc without an epilogue */
#if C_TYPE == 0
#define store_result(acc, ep, at) store_tile(acc, (ep)->c, (ep)->ldc, at)
#else
#define store_result(acc, ep, at) finish_tile(acc, ep, at)
#endif

static inline void finish_tile(float16 (*acc)[NV], const clt_gemm_ep *ep, tile_place at)
{
    float16 t[MR * NV];
    EACH(i, MR) EACH(j, NV) t[i * NV + j] = acc[i][j];
    for (size_t i = 0; i < at.rows; i++)
        for (size_t j = 0; j < at.columns; j += 16)
            clt_ep_lanes16(ep, t[i * NV + j / 16], at.row + i, at.column + j, LANES(at, j));
}

/* --- NT and NN --- */

/* Prefetches lines [line, line + count) of the block of b at (column, k0), which is packed next. */
static inline void prefetch_block(__global const clt_gemm_in *b, size_t ldb, bool b_rows, size_t column, size_t k0,
                                  size_t line, size_t count)
{
    for (size_t l = line; l < line + count; l++) {
        const size_t across = b_rows ? l % (NV * PANELS) * 16 : l / (KC / 16);
        const size_t along = b_rows ? l / (NV * PANELS) : l % (KC / 16) * 16;
        PREFETCH(b + (b_rows ? (k0 + along) * ldb + column + across : (column + across) * ldb + k0 + along), 2);
    }
}

/* `steps` steps of the next PANELS panels of b, of which `left` columns exist. */
static inline void pack_panels(__local float *to, __global const clt_gemm_in *b, size_t ldb, bool b_rows, size_t left,
                               size_t steps)
{
    if (!b_rows) {
        for (size_t p = 0; p < PANELS && p * NR < left; p++)
            turn_rows(to + p * KC * NR, b + p * NR * ldb, ldb, min(left - p * NR, (size_t)NR), steps);
        return;
    }
#if PANELS > 1
    if (left >= PANELS * NR) {
        for (size_t kk = 0; kk < steps; kk++, b += ldb, to += NR)
            EACH(p, PANELS) EACH(j, NV) AT16(__local, to + p * KC * NR + 16 * j) = IN16(b + p * NR + 16 * j);
        return;
    }
#endif
    for (size_t p = 0; p < PANELS && p * NR < left; p++)
        copy_rows_local(to + p * KC * NR, b + p * NR, ldb, left - p * NR, steps);
}

/* Outputs [row0, row0 + rows_each) x `panels_each` panels of NR columns over k steps from packed a. Chains
 * continue from block to block of KC steps through local memory, and from launch to launch through part [m,n]
 * (row distance ldpart). Launch: {ceil(panels / panels_each), ceil(m / rows_each)}; rows_each <= ROWS is a
 * multiple of MR. */
__kernel CLT_ONE_ITEM void
gemm_rows(uint m, uint n, uint k, uint panels_each, uint rows_each, __global const float *a_packed,
          __global const clt_gemm_in *b, ulong b_off, ulong ldb, __global float *part, ulong part_off, ulong ldpart,
          CLT_EP_ARGS)
{
    __local float b_panels[PANELS * KC * NR], chains[ROWS * NR * PANELS];
    const clt_gemm_ep ep = CLT_EP_INIT;
    const size_t row0 = get_global_id(1) * rows_each, row1 = min(row0 + rows_each, (size_t)m);
    const size_t column0 = get_global_id(0) * panels_each * NR;
    const size_t column1 = min(column0 + panels_each * NR, (size_t)n), m_up = ROUND_UP(m, MR);
    const size_t tiles = (row1 - row0 + MR - 1) / MR, lines = (KC * NV * PANELS + tiles - 1) / tiles;
    const bool b_rows = flags & CLT_B_ROWS;
    part += part_off;
    b += b_off;
    for (size_t column = column0; column < column1; column += NR * PANELS) {
        for (size_t k0 = 0; k0 < k; k0 += KC) {
            const size_t steps = min((size_t)k - k0, (size_t)KC);
            const bool ends = k0 + steps == k;
            pack_panels(b_panels, b + (b_rows ? k0 * ldb + column : column * ldb + k0), ldb, b_rows,
                        column1 - column, steps);
            for (size_t tile = 0; tile < tiles * PANELS; tile++) {
                const size_t panel = tile % PANELS;
                float16 acc[MR][NV];
                __local float *chain = chains + tile * MR * NR;
                tile_place at = {row0 + tile / PANELS * MR, column + panel * NR};
                if (at.column >= column1) continue;
                at.rows = min(row1 - at.row, (size_t)MR);
                at.columns = min(column1 - at.column, (size_t)NR);
                if (panel == 0)
                    prefetch_block(b, ldb, b_rows, ends ? column + NR * PANELS : column, ends ? 0 : k0 + KC,
                                   tile / PANELS * lines, lines);
                if (k0 > 0) {
                    EACH(i, MR) EACH(j, NV) acc[i][j] = AT16(__local, chain + 16 * (i * NV + j));
                } else if (flags & CLT_CHAIN_FIRST) {
                    clear_tile(acc);
                } else {
                    load_tile(acc, part, ldpart, at);
                }
                tile_rows(acc, a_packed + k0 * m_up + at.row * steps, b_panels + panel * KC * NR, steps);
                if (!ends) {
                    EACH(i, MR) EACH(j, NV) AT16(__local, chain + 16 * (i * NV + j)) = acc[i][j];
                } else if (!(flags & CLT_CHAIN_LAST)) {
                    store_tile(acc, part, ldpart, at);
                } else if ((flags & 255u) == 0) {
                    store_result(acc, &ep, at);
                } else {
                    finish_tile(acc, &ep, at);
                }
            }
        }
    }
}

/* --- TN --- */

/* sum = (sum or +0) + acc */
static inline void add_tile(float16 (*acc)[NV], __global clt_gemm_out *sum, size_t ld, tile_place at, bool from_zero)
{
    float16 t[MR * NV];
    sum += at.row * ld + at.column;
#if C_TYPE == 0
    if (IS_WHOLE(at) && !from_zero) {
        EACH(i, MR) EACH(j, NV) AT16(__global, sum + i * ld + 16 * j) += acc[i][j];
        return;
    }
#endif
    EACH(i, MR) EACH(j, NV) t[i * NV + j] = acc[i][j];
    for (size_t i = 0; i < at.rows; i++)
        for (size_t j = 0; j < at.columns; j += 16) {
            float16 old = from_zero ? (float16)(0.0f) : CLT_LOAD16(C_TYPE, sum + i * ld + j, LANES(at, j));
            CLT_STORE16(C_TYPE, old + t[i * NV + j / 16], sum + i * ld + j, LANES(at, j));
        }
}

/* Outputs of `m_each` panels of MR rows x `n_each` panels of NR columns. k rows of b are packed; a is [k,m].
 * `block` rows of a (a multiple of k_group) are packed at once: block * m_each * MR <= LA. Each k_group rows
 * are one chain whose result is added to c (a 16-bit c takes one group, once). Without CLT_CHAIN_FIRST or
 * CLT_CHAIN_LAST, all k rows are one part of one chain. Launch: {ceil(m / (MR * m_each)), ceil(n /
 * (NR * n_each))}. */
__kernel CLT_ONE_ITEM void
gemm_columns(uint m, uint n, uint k, uint k_group, uint block, uint m_each, uint n_each, __global const clt_gemm_in *a,
             ulong a_off, ulong lda, __global const float *b_packed, __global float *part, ulong part_off,
             ulong ldpart, uint flags, __global clt_gemm_out *c, ulong c_off, ulong ldc)
{
    __local float a_panels[LA];
    const size_t row0 = get_global_id(0) * m_each * MR, row1 = min(row0 + m_each * MR, (size_t)m);
    const size_t column0 = get_global_id(1) * n_each * NR, column1 = min(column0 + n_each * NR, (size_t)n);
    part += part_off;
    a += a_off;
    c += c_off;
    for (size_t k0 = 0; k0 < k; k0 += block) {
        const size_t rows = min((size_t)k - k0, (size_t)block);
        copy_columns(a_panels, a + k0 * lda + row0, lda, row1 - row0, rows);
        for (size_t column = column0; column < column1; column += NR) {
            __global const float *panel = b_packed + k0 * ROUND_UP(n, NR) + column * rows;
            for (size_t row = row0; row < row1; row += MR) {
                const tile_place at = {row, column, min(row1 - row, (size_t)MR), min(column1 - column, (size_t)NR)};
                EACH(i, MR) EACH(j, NV) PREFETCH(c + min(row + i, row1 - 1) * ldc + column + 16 * j, 3);
                for (size_t g = 0; g < rows; g += k_group) {
                    float16 acc[MR][NV];
                    if (flags & CLT_CHAIN_FIRST) {
                        clear_tile(acc);
                    } else {
                        load_tile(acc, part, ldpart, at);
                    }
                    tile_columns(acc, a_panels + (row - row0) * rows + g * MR,
                                 panel + g * NR, k_group);
                    if (flags & CLT_CHAIN_LAST)
                        add_tile(acc, c, ldc, at, !(flags & CLT_EP_ACCUMULATE) && k0 + g == 0);
                    else
                        store_tile(acc, part, ldpart, at);
                }
            }
        }
    }
}
