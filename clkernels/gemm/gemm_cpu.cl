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
 *   -DLA                        words of local memory for A in gemm_columns: a part of the L2 cache
 *   -DPAIRS=0|1                 1: a and b are bf16 and are multiplied as such, by vdpbf16ps
 *   -DACT -DGRAD_ACT -DIN_TYPE -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh; packing widens to fp32, unless PAIRS
 *
 * A packed panel consists of words of 32 bits, which are handled as floats: numbers in fp32, or with PAIRS two
 * bf16 of neighbouring steps along k, the first one in the low half. STEPS counts along k, WORDS in panels.
 *
 * Order (docs/numerics.md, GEMM): one chain over k ascending from +0 per output. A chain that is interrupted
 * at the edge of a block is stored unrounded (in `part`) and continued from there. Lanes beyond an edge
 * repeat the values at the edge or are zero, and are never stored; k is never padded. With PAIRS an odd k is
 * padded by a zero, and the order inside a pair is the instruction's.
 *
 * Requires: local memory of (KC / (1 + PAIRS) + ROWS) * NR * PANELS and of LA floats, work-groups of one. */
#ifndef MR
#define MR 8
#define NV 2
#define KC 256
#define ROWS 512
#define LA 24576
#endif
#include "gemm_cpu_pack.clh"

#if MR != 8 && MR != 6
#error "MR must be 8 or 6"
#endif

/* --- packing --- */

/* One step of a panel of MR rows: lanes [0, MR) or [MR, 2 MR) of a float16, or MR numbers of a. */
#if MR == 8
#define PUT_FIRST(SPACE, to, x) AT8(SPACE, to) = (x).lo
#define PUT_SECOND(SPACE, to, x) AT8(SPACE, to) = (x).hi
#define PUT_INPUT(SPACE, to, a, ld, both) AT8(SPACE, to) = cells8(a, ld, both)
#else
#define PUT_FIRST(SPACE, to, x) (AT4(SPACE, to) = (x).s0123, AT2(SPACE, (to) + 4) = (x).s45)
#define PUT_SECOND(SPACE, to, x) (AT4(SPACE, to) = (x).s6789, AT2(SPACE, (to) + 4) = (x).sab)
#define PUT_INPUT(SPACE, to, a, ld, both) EACH(put, MR) (to)[put] = cell((a) + put, ld, both)
#endif

/* Rows of a [m,k] to blocks of KC steps, each [ceil(m/MR)][words][MR]. Data that is used together is
 * contiguous: equal distances would map to the same few sets of the caches. One 16 x 16 transpose gives two
 * panels. Launch: {ceil(m / (2 * MR)), ceil(k / KC)}. */
__kernel CLT_ONE_ITEM void gemm_pack_a(uint m, uint k, __global const clt_gemm_in *a, ulong a_off, ulong lda,
                                       __global float *to) {
    const size_t row0 = get_global_id(0) * 2 * MR, last = (size_t)m - 1, k0 = get_global_id(1) * KC;
    const size_t steps = min((size_t)k - k0, (size_t)KC), words = WORDS(steps);
    const bool second = row0 + MR < m;
    __global const char *row[16];
    to += k0 / PER_WORD * ROUND_UP(m, MR) + row0 * words;
    __global float *to2 = to + MR * words;
    a += a_off + k0;
    EACH(i, 16) row[i] = (__global const char *)(a + min(row0 + min(i, 2 * MR - 1), last) * lda);
    size_t w = 0;
    for (; PER_WORD * (w + 16) <= steps; w += 16) {
        float16 r[16];
        TURN16(r, row, w);
        EACH(j, 16) PUT_FIRST(__global, to + (w + j) * MR, r[j]);
        if (second) EACH(j, 16) PUT_SECOND(__global, to2 + (w + j) * MR, r[j]);
    }
    for (; w < words; w++) {
        const bool both = BOTH(w, steps);
        for (size_t i = 0; i < MR; i++) {
            to[w * MR + i] = cell(a + min(row0 + i, last) * lda + PER_WORD * w, 1, both);
            if (second) to2[w * MR + i] = cell(a + min(row0 + MR + i, last) * lda + PER_WORD * w, 1, both);
        }
    }
}

/* `width` columns of `rows` rows of a [k,m] to panels [ceil(width/MR)][words][MR]. Two words of two panels at
 * once fill whole lines; PACK_WORDS words of them come before the next two panels, because the panels are so
 * far apart that all of them together would map to one set of the L1 cache. */
static inline void copy_columns(__local float *to, __global const clt_gemm_in *a, size_t lda, size_t width,
                                size_t rows)
{
    const size_t whole = width < 16 ? 0 : (width - 16) / (2 * MR) * (2 * MR) + 2 * MR;
    const size_t words = WORDS(rows), even = words / 2 * 2;
    for (size_t w0 = 0; w0 < even; w0 += PACK_WORDS) {
        const size_t w1 = min(w0 + PACK_WORDS, even);
        for (size_t i = 0; i < whole; i += 2 * MR) {
            __local float *panel = to + i * words;
            for (size_t w = w0; w < w1; w += 2) {
                __global const clt_gemm_in *at = a + PER_WORD * w * lda + i;
                const float16 x = cells16(at, lda, true), y = cells16(at + PER_WORD * lda, lda, BOTH(w + 1, rows));
                EACH(j, 2 * PER_WORD) PREFETCH(at + (PER_WORD * PACK_WORDS + j) * lda, 3);
#if MR == 8
                AT16(__local, panel + w * MR) = (float16)(x.lo, y.lo);
                AT16(__local, panel + (words + w) * MR) = (float16)(x.hi, y.hi);
#else
                PUT_FIRST(__local, panel + w * MR, x);
                PUT_FIRST(__local, panel + (w + 1) * MR, y);
                PUT_SECOND(__local, panel + (words + w) * MR, x);
                PUT_SECOND(__local, panel + (words + w + 1) * MR, y);
#endif
            }
        }
    }
    for (size_t w = 0; w < words; w++) {
        __global const clt_gemm_in *at = a + PER_WORD * w * lda;
        const bool both = BOTH(w, rows);
        for (size_t i = w < even ? whole : 0; i < width; i += MR) {
            __local float *panel = to + i * words + w * MR;
            if (i + MR <= width)
                PUT_INPUT(__local, panel, at + i, lda, both);
            else
                for (size_t j = 0; j < MR; j++) panel[j] = i + j < width ? cell(at + i + j, lda, both) : 0.0f;
        }
    }
}

/* --- the register tile --- */

/* c + a * b; with PAIRS the sums of both products of each pair. The constraint "vr" is v: Intel's compiler
 * first checks constraints for a target that knows r alone. */
static inline float16 multiply_add(float16 a, float16 b, float16 c)
{
#if PAIRS
    __asm__("vdpbf16ps %2,%1,%0" : "+vr"(c) : "vr"(a), "vr"(b));
    return c;
#else
    return fma(a, b, c);
#endif
}

/* Continues acc[i][j] over `words` words of packed panels. */
#define DEFINE_TILE(NAME, A_SPACE, B_SPACE)                                                                  \
    static inline void NAME(float16 (*acc)[NV], A_SPACE const float *a, B_SPACE const float *b, size_t words) \
    {                                                                                                        \
        for (size_t w = 0; w < words; w++, a += MR, b += NR) {                                               \
            float16 bv[NV];                                                                                  \
            EACH(j, NV) bv[j] = vload16(j, b);                                                               \
            EACH(i, MR)                                                                                      \
            {                                                                                                \
                float16 av = (float16)(a[i]);                                                                \
                EACH(j, NV) acc[i][j] = multiply_add(av, bv[j], acc[i][j]);                                  \
            }                                                                                                \
        }                                                                                                    \
    }
DEFINE_TILE(tile_rows, __global, __local)
DEFINE_TILE(tile_columns, __local, __global)

#define IS_WHOLE(at) ((at).rows == MR && (at).columns == NR)

static inline void clear_tile(float16 (*acc)[NV]) { EACH(i, MR) EACH(j, NV) acc[i][j] = (float16)(0.0f); }

/* acc = a tile at the edge or inside of a matrix with row distance ld */
static inline void load_tile(float16 (*acc)[NV], __global const float *from, size_t ld, tile_place at)
{
    float16 t[MR * NV];
    from += at.row * ld + at.column;
    EACH(i, MR * NV) t[i] = (float16)(0.0f);
    for (size_t i = 0; i < at.rows; i++)
        for (size_t j = 0; j < at.columns; j += 16) t[i * NV + j / 16] = clt_load16(from + i * ld + j, LANES_AT(at, j));
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
        for (size_t j = 0; j < at.columns; j += 16) clt_store16(t[i * NV + j / 16], to + i * ld + j, LANES_AT(at, j));
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
            clt_ep_lanes16(ep, t[i * NV + j / 16], at.row + i, at.column + j, LANES_AT(at, j));
}

/* --- NT and NN --- */

/* `steps` steps of the next PANELS panels of b, of which `left` columns exist. */
static inline void pack_panels(__local float *to, __global const clt_gemm_in *b, size_t ldb, bool b_rows, size_t left,
                               size_t steps)
{
    if (!b_rows) {
        for (size_t p = 0; p < PANELS && p * NR < left; p++)
            turn_rows(to + p * KC_WORDS * NR, b + p * NR * ldb, ldb, min(left - p * NR, (size_t)NR), steps);
        return;
    }
#if PANELS > 1
    if (left >= PANELS * NR) {
        for (size_t w = 0; w < WORDS(steps); w++, b += PER_WORD * ldb, to += NR)
            EACH(p, PANELS)
            EACH(j, NV)
            AT16(__local, to + p * KC_WORDS * NR + 16 * j) = cells16(b + p * NR + 16 * j, ldb, BOTH(w, steps));
        return;
    }
#endif
    for (size_t p = 0; p < PANELS && p * NR < left; p++)
        copy_rows_local(to + p * KC_WORDS * NR, b + p * NR, ldb, left - p * NR, steps);
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
    __local float b_panels[PANELS * KC_WORDS * NR], chains[ROWS * NR * PANELS];
    const clt_gemm_ep ep = CLT_EP_INIT;
    const size_t row0 = get_global_id(1) * rows_each, row1 = min(row0 + rows_each, (size_t)m);
    const size_t column0 = get_global_id(0) * panels_each * NR;
    const size_t column1 = min(column0 + panels_each * NR, (size_t)n), m_up = ROUND_UP(m, MR);
    const size_t tiles = (row1 - row0 + MR - 1) / MR, lines = (BLOCK_LINES + tiles - 1) / tiles;
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
                tile_rows(acc, a_packed + k0 / PER_WORD * m_up + at.row * WORDS(steps),
                          b_panels + panel * KC_WORDS * NR, WORDS(steps));
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
            float16 old = from_zero ? (float16)(0.0f) : CLT_LOAD16(C_TYPE, sum + i * ld + j, LANES_AT(at, j));
            CLT_STORE16(C_TYPE, old + t[i * NV + j / 16], sum + i * ld + j, LANES_AT(at, j));
        }
}

/* Outputs of `m_each` panels of MR rows x `n_each` panels of NR columns. k rows of b are packed; a is [k,m].
 * `block` rows of a (a multiple of k_group) are packed at once: WORDS(block) * m_each * MR <= LA. Each k_group
 * rows (with PAIRS an even number) or what is left of them are one chain whose result is added to c (a 16-bit c takes one group, once). Without CLT_CHAIN_FIRST or
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
        const size_t rows = min((size_t)k - k0, (size_t)block), words = WORDS(rows);
        copy_columns(a_panels, a + k0 * lda + row0, lda, row1 - row0, rows);
        for (size_t column = column0; column < column1; column += NR) {
            __global const float *panel = b_packed + k0 / PER_WORD * ROUND_UP(n, NR) + column * words;
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
                    tile_columns(acc, a_panels + (row - row0) * words + g / PER_WORD * MR, panel + g / PER_WORD * NR,
                                 WORDS(min((size_t)k_group, rows - g)));
                    if (flags & CLT_CHAIN_LAST)
                        add_tile(acc, c, ldc, at, !(flags & CLT_EP_ACCUMULATE) && k0 + g == 0);
                    else
                        store_tile(acc, part, ldpart, at);
                }
            }
        }
    }
}
