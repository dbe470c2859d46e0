/* gemm_amx: GEMM of bf16 for CPU devices with a matrix unit (../include/clt_amx.clh): tiles of 32 x 32 outputs, which
 * are four of the unit's tiles. Launches, kernels' names and arguments are those of gemm_cpu.cl, and so are the panels
 * of b: words of two neighbouring steps along k, [words][32], padded by zeros to 16 words. Panels of a are the unit's
 * left operands: [16 words][2][16 rows][16 words].
 *
 *   NT, NN  gemm_pack_a, then gemm_rows: an item owns some panels of 32 columns, for all k
 *   TN      gemm_pack_b, then gemm_columns: an item owns some panels of 32 columns of a
 *
 *   -DKC      steps along k whose panel of b is packed at once, a multiple of 32: half of the L1 cache
 *   -DROWS    most rows of one item of gemm_rows, a multiple of 32
 *   -DGROUP   panels that an item of gemm_rows multiplies by a block of a before the next one: their unfinished sums,
 *             and the block, stay in the L2 cache
 *   -DLA      words of local memory for a in gemm_columns: a part of the L2 cache
 *   -DACT -DGRAD_ACT -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh
 *
 * Order: free, for numerics fast. Sums are fp32; denormal numbers count as 0. Rows and columns beyond an edge repeat the
 * last one or are zeros, and are never stored.
 *
 * Requires: local memory of KC / 2 * 32 + ROWS * GROUP * 32 floats and of LA + 1024, work-groups of one. */
#ifndef KC
#define KC 256
#define ROWS 512
#define GROUP 3
#define LA 49152
#endif
#define MR 32
#define NV 2
#define PAIRS 1
#define PAD 16
#ifndef IN_TYPE
#define IN_TYPE 1
#endif
#include "gemm_cpu_pack.clh"
#include "../include/clt_amx.clh"

#if KC % 32 || ROWS % MR
#error "KC and ROWS must be multiples of 32"
#endif
#define LEFT_TILE 256 /* words of one of the unit's tiles of a */

/* Rows of a [m,k] to blocks of KC steps, each [ceil(m/MR)][words of MR rows]. Launch: {ceil(m / (2 * MR)), ceil(k / KC)}. */
__kernel CLT_ONE_ITEM void gemm_pack_a(uint m, uint k, __global const clt_gemm_in *a, ulong a_off, ulong lda,
                                       __global float *to)
{
    const size_t k0 = get_global_id(1) * KC, steps = min((size_t)k - k0, (size_t)KC), words = WORDS(steps);
    const size_t first = get_global_id(0) * 2 * MR, end = min(first + 2 * MR, ROUND_UP(m, MR));
    a += a_off + k0;
    to += k0 / PER_WORD * ROUND_UP(m, MR);
    for (size_t row = first; row < end; row++) {
        __global const clt_gemm_in *from = a + min(row, (size_t)m - 1) * lda;
        __global float *at = to + row / MR * MR * words + row % MR * 16;
        for (size_t w = 0; w < words; w += 16, at += 2 * LEFT_TILE) {
            if (PER_WORD * (w + 16) <= steps)
                AT16(__global, at) = ROW16(from + PER_WORD * w);
            else
                for (size_t i = w; i < w + 16; i++)
                    at[i - w] = i < USED(steps) ? cell(from + PER_WORD * i, 1, BOTH(i, steps)) : 0.0f;
        }
    }
}

/* `width` columns of `rows` rows of a [k,m] to panels [ceil(width/MR)][words of MR columns]. */
static inline void turn_columns(__local float *to, __global const clt_gemm_in *a, size_t lda, size_t width, size_t rows)
{
    const size_t words = WORDS(rows);
    for (size_t w = 0; w < words; w += 16) {
        for (size_t i = 0; i < width; i += 16) {
            float16 r[16];
            __global const clt_gemm_in *from = a + PER_WORD * w * lda + i;
            __local float *at = to + i / MR * MR * words + (w / 16 * 2 + i / 16 % 2) * LEFT_TILE;
            if (PER_WORD * (w + 16) <= rows && i + 16 <= width) {
                EACH(j, 16) r[j] = cells16(from + PER_WORD * j * lda, lda, true);
                EACH(j, 32) PREFETCH(from + (PER_WORD * 16 + j) * lda, 3);
            } else {
                float edge[256];
                for (size_t j = 0; j < 16; j++)
                    for (size_t c = 0; c < 16; c++)
                        edge[j * 16 + c] = w + j < USED(rows) && i + c < width
                                               ? cell(from + PER_WORD * j * lda + c, lda, BOTH(w + j, rows))
                                               : 0.0f;
                EACH(j, 16) r[j] = AT16(, edge + 16 * j);
            }
            transpose16(r);
            EACH(j, 16) AT16(__local, at + 16 * j) = r[j];
        }
    }
}

/* sum [32][step bytes] = (sum, or 0) + the product of `words` words of a panel of a and one of b. */
#define MULTIPLY(sum, step, from_zero, a, b, words)                                                          \
    do {                                                                                                     \
        CLT_AMX_TILES                                                                                        \
        const size_t d_ = (size_t)(sum), step_ = (step), right_ = d_ + 64, below_ = d_ + 16 * step_;         \
        if (from_zero) {                                                                                     \
            CLT_AMX_CLEAR(0);                                                                                \
            CLT_AMX_CLEAR(1);                                                                                \
            CLT_AMX_CLEAR(2);                                                                                \
            CLT_AMX_CLEAR(3);                                                                                \
        } else {                                                                                             \
            CLT_AMX_LOAD(0, d_, step_);                                                                      \
            CLT_AMX_LOAD(1, right_, step_);                                                                  \
            CLT_AMX_LOAD(2, below_, step_);                                                                  \
            CLT_AMX_LOAD(3, below_ + 64, step_);                                                             \
        }                                                                                                    \
        for (size_t w_ = 0; w_ < (words); w_ += 16) {                                                        \
            const size_t a_ = (size_t)((a) + w_ * MR), b_ = (size_t)((b) + w_ * NR);                         \
            CLT_AMX_LOAD(4, a_, 64);                                                                         \
            CLT_AMX_LOAD(6, b_, NR * 4);                                                                     \
            CLT_AMX_DOT16(0, 4, 6);                                                                          \
            EACH(e_, 16) PREFETCH(a_ + 2048 + 64 * e_, 3);                                                   \
            CLT_AMX_LOAD(7, b_ + 64, NR * 4);                                                                \
            CLT_AMX_DOT16(1, 4, 7);                                                                          \
            CLT_AMX_LOAD(5, a_ + 1024, 64);                                                                  \
            CLT_AMX_DOT16(2, 5, 6);                                                                          \
            EACH(e_, 16) PREFETCH(a_ + 3072 + 64 * e_, 3);                                                   \
            CLT_AMX_DOT16(3, 5, 7);                                                                          \
        }                                                                                                    \
        CLT_AMX_STORE(0, d_, step_);                                                                         \
        CLT_AMX_STORE(1, right_, step_);                                                                     \
        CLT_AMX_STORE(2, below_, step_);                                                                     \
        CLT_AMX_STORE(3, below_ + 64, step_);                                                                \
    } while (0)

/* Outputs [row0, row0 + rows_each) x `panels_each` panels of NR columns over k steps from packed a. Sums continue from
 * block to block of KC steps through local memory, and from launch to launch through part [m,n] (row distance ldpart).
 * Launch: {ceil(panels / panels_each), ceil(m / rows_each)}; rows_each <= ROWS is a multiple of MR. */
__kernel CLT_ONE_ITEM void
gemm_rows(uint m, uint n, uint k, uint panels_each, uint rows_each, __global const float *a_packed,
          __global const clt_gemm_in *b, ulong b_off, ulong ldb, __global float *part, ulong part_off, ulong ldpart,
          CLT_EP_ARGS)
{
    __local float panel[KC_WORDS * NR], sums[ROWS * GROUP * NR];
    const clt_gemm_ep ep = CLT_EP_INIT;
    const size_t row0 = get_global_id(1) * rows_each, row1 = min(row0 + rows_each, (size_t)m);
    const size_t column0 = get_global_id(0) * panels_each * NR;
    const size_t column1 = min(column0 + panels_each * NR, (size_t)n), m_up = ROUND_UP(m, MR);
    const size_t tiles = (row1 - row0 + MR - 1) / MR, lines = (BLOCK_LINES + tiles - 1) / tiles;
    const bool b_rows = flags & CLT_B_ROWS;
    part += part_off;
    b += b_off;
    CLT_AMX_BEGIN
    for (size_t first = column0; first < column1; first += NR * GROUP)
        for (size_t k0 = 0; k0 < k; k0 += KC) {
            const size_t steps = min((size_t)k - k0, (size_t)KC), words = WORDS(steps);
            const size_t end = min(first + NR * GROUP, column1);
            const bool starts = k0 == 0, ends = k0 + steps == k, from_zero = starts && (flags & CLT_CHAIN_FIRST);
            __local float *sum = sums;
            for (size_t column = first; column < end; column += NR) {
                const size_t left = column1 - column;
                const bool turns = column + NR >= end; /* to the next block along k */
                if (b_rows)
                    copy_rows_local(panel, b + k0 * ldb + column, ldb, left, steps);
                else
                    turn_rows(panel, b + column * ldb + k0, ldb, left, steps);
                for (size_t tile = 0; tile < tiles; tile++, sum += MR * NR) {
                    tile_place at = {row0 + tile * MR, column, 0, min(left, (size_t)NR)};
                    at.rows = min(row1 - at.row, (size_t)MR);
                    prefetch_block(b, ldb, b_rows, !turns ? column + NR : ends ? end : first,
                                   !turns ? k0 : ends ? 0 : k0 + KC, tile * lines, lines);
                    if (starts && !from_zero) load_chain(sum, part, ldpart, at);
                    MULTIPLY(sum, NR * 4, from_zero, a_packed + k0 / PER_WORD * m_up + at.row * words, panel, words);
                    if (!ends) continue;
                    if (flags & CLT_CHAIN_LAST)
                        finish_chain(sum, &ep, at);
                    else
                        store_chain(sum, part, ldpart, at);
                }
            }
        }
    CLT_AMX_END
}

/* Outputs of `m_each` panels of MR rows x `n_each` panels of NR columns. k rows of b are packed; a is [k,m]. `block` rows
 * of a are packed at once: WORDS(block) * m_each * MR <= LA. Each k_group rows, a multiple of 32, or what is left of them
 * are one sum, which is added to c (a 16-bit c takes one group, once). Without CLT_CHAIN_FIRST or CLT_CHAIN_LAST, all k
 * rows are one part of one sum. Launch: {ceil(m / (MR * m_each)), ceil(n / (NR * n_each))}. */
__kernel CLT_ONE_ITEM void
gemm_columns(uint m, uint n, uint k, uint k_group, uint block, uint m_each, uint n_each, __global const clt_gemm_in *a,
             ulong a_off, ulong lda, __global const float *b_packed, __global float *part, ulong part_off,
             ulong ldpart, uint flags, __global clt_gemm_out *c, ulong c_off, ulong ldc)
{
    __local float a_panels[LA], sum[MR * NR];
    const size_t row0 = get_global_id(0) * m_each * MR, row1 = min(row0 + m_each * MR, (size_t)m);
    const size_t column0 = get_global_id(1) * n_each * NR, column1 = min(column0 + n_each * NR, (size_t)n);
    const bool starts = flags & CLT_CHAIN_FIRST, ends = flags & CLT_CHAIN_LAST;
    part += part_off;
    a += a_off;
    c += c_off;
    CLT_AMX_BEGIN
    for (size_t k0 = 0; k0 < k; k0 += block) {
        const size_t rows = min((size_t)k - k0, (size_t)block), words = WORDS(rows);
        turn_columns(a_panels, a + k0 * lda + row0, lda, row1 - row0, rows);
        for (size_t column = column0; column < column1; column += NR) {
            __global const float *panel = b_packed + k0 / PER_WORD * ROUND_UP(n, NR) + column * words;
            for (size_t row = row0; row < row1; row += MR) {
                const tile_place at = {row, column, min(row1 - row, (size_t)MR), min(column1 - column, (size_t)NR)};
                const size_t next = min(row + MR, row1), next_rows = min(row1 - next, (size_t)MR);
                for (size_t i = 0; i < next_rows; i++) /* of c */
                    EACH(j, NV) PREFETCH(c + (next + i) * ldc + column + 16 * j, 3);
                for (size_t g = 0; g < rows; g += k_group) {
                    const size_t count = WORDS(min((size_t)k_group, rows - g)), from = g / PER_WORD;
                    __local const float *left = a_panels + (row - row0) * words + from * MR;
                    const bool from_zero = !(flags & CLT_EP_ACCUMULATE) && k0 + g == 0;
#if C_TYPE == 0
                    if (starts && ends && at.rows == MR && at.columns == NR) {
                        MULTIPLY(c + row * ldc + column, ldc * 4, from_zero, left, panel + from * NR, count);
                        continue;
                    }
#endif
                    if (!starts) load_chain(sum, part, ldpart, at);
                    MULTIPLY(sum, NR * 4, starts, left, panel + from * NR, count);
                    if (ends)
                        add_chain(sum, c, ldc, at, from_zero);
                    else
                        store_chain(sum, part, ldpart, at);
                }
            }
        }
    }
    CLT_AMX_END
}
