/* gemm8_cpu: products of 8-bit blocks for CPU devices: work-groups of one, a register tile of MR rows x NR
 * columns of int32 sums, NR = NV * LANES.
 *
 * The tile reads packed panels, in which one int holds NARROW numbers along k: A as [step][MR] (broadcast one
 * by one), B as [step][NR]. A separate kernel packs a. The work-item that uses it packs b into local memory,
 * for all k of the launch, so it is read once from memory and never written back. Both carry the scales of
 * their rows. After each block the tile's sums are scaled and added to its chains, which lie in local memory.
 *
 * vpdpbusd multiplies unsigned by signed bytes. So A holds a + OFFSET, 128 for it and 0 for others, and sums start
 * from -OFFSET times the block's sum of b, which packing b makes with the same instruction.
 *
 *   -DDOT       gemm8_dot.clh: the instruction
 *   -DMR -DNV   register tile: MR at most 16, NR a multiple of 16
 *   -DKC        most elements of k of a launch: KC * NR numbers stay in the L2 cache
 *   -DFORM=0|1  gemm8_blocks.clh; 1 also serves chains from c, with `part` = c and CLT_CHAIN_LAST never set
 *   others      gemm8_blocks.clh; A_TILE and B_TILE are arguments here: rows per scale
 *
 * Order: gemm8_blocks.clh. A chain that a launch interrupts is stored unrounded in `part` and continued from
 * there. Rows beyond an edge repeat the last one; like columns beyond an edge they are never stored.
 *
 * Requires: local memory of KC * NR * 4 / NARROW + KC / BLOCK * NR * 8 + MR * NR * 4 bytes. */
#include "gemm8_blocks.clh"
#include "gemm8_dot.clh"

#ifndef MR
#define MR 6
#define NV 2
#define KC 4096
#endif
#define NR (LANES * NV)
#include "../gemm/gemm_cpu_chain.clh"
#define UNIT (DOT == 6) /* the matrix unit multiplies */
#if (UNIT ? MR != 32 || NR != 32 : MR > 16) || NR % 16 || 64 % NR || KC % 128
#error "MR is at most 16, NR 16, 32 or 64, KC a multiple of 128; with the matrix unit MR and NR are 32"
#endif
#if UNIT
#include "../include/clt_amx.clh"
#endif

#define STEPS (BLOCK / NARROW)    /* of a block */
#define A_BLOCK ((STEPS + 1) * MR) /* ints of a packed block of a, with the scales at its end */

/* --- packing --- */

/* 16 rows of 16 ints at ints 16 * i of a block to 16 vectors across the rows; rows start at multiples of 16 bytes only. */
#if NARROW == 4
#define TURN_INTS(r, row, k0, i) turn_words(r, row, (k0) + 64 * (i))
#else
#define SHORTS(p, i) as_int8(convert_short16(vload16(i, p)))
#define TURN_INTS(r, row, k0, i) turn_shorts(r, row, k0, i)
static inline void turn_shorts(float16 *r, __global const char **row, size_t k0, int i)
{
    EACH(h, 16) r[h] = as_float16((int16)(SHORTS(row[h] + k0, 2 * i), SHORTS(row[h] + k0, 2 * i + 1)));
    transpose16(r);
}
#endif

/* The numbers of a block of a panel of a. */
#if UNIT
#define PANEL_ROWS MR
static inline void pack_block_of_a(__global int *to, __global const char **row, size_t k0)
{
    for (int t = 0; t < STEPS / 16; t++)
        EACH(i, MR) CLT_AT16(__global, int, to + (i / 16 * STEPS + t * 16 + i % 16) * 16) =
                      CLT_AT16(__global const, int, (__global const int *)(row[i] + k0) + 16 * t);
}
#else
#define PANEL_ROWS 16
static inline void pack_block_of_a(__global int *to, __global const char **row, size_t k0)
{
    for (int i = 0; i < STEPS / 16; i++) {
        float16 r[16];
        TURN_INTS(r, row, k0, i);
        EACH(j, 16)
        {
            const int16 v = as_int16(r[j]);
            __global int *at = to + (i * 16 + j) * MR;
            const int16 x = OFFSET ? v ^ (int16)(0x80808080u) : v;
#if MR > 8
            CLT_AT16(__global, int, at) = x;
#else
            vstore8(x.lo, 0, at);
#endif
        }
    }
}
#endif

/* MR of the m rows of a from row `first` on, all `blocks` blocks, to [block][A_BLOCK]. tile: rows per scale.
 * Launch: {ceil(m / MR)}. A store of 16 lanes overwrites what follows the MR that count: later steps and the scales. */
__kernel CLT_ONE_ITEM void gemm8_pack_a(uint first, uint m, uint blocks, uint tile, __global const char *a,
                                        ulong a_off, ulong lda, __global const float *a_scale, ulong a_scale_off,
                                        ulong ld_a_scale, __global int *to)
{
    const size_t row0 = first + get_global_id(0) * MR, last = (size_t)first + m - 1;
    __global const char *row[PANEL_ROWS];
    size_t place[PANEL_ROWS]; /* of the rows' scales */
    EACH(i, PANEL_ROWS)
    {
        const size_t r = min(row0 + min(i, MR - 1), last);
        row[i] = a + a_off + r * lda;
        place[i] = r / tile;
    }
    to += get_global_id(0) * blocks * A_BLOCK;
    a_scale += a_scale_off;
    for (size_t block = 0; block < blocks; block++, to += A_BLOCK, a_scale += ld_a_scale) {
        pack_block_of_a(to, row, block * BLOCK);
        EACH(i, MR) to[STEPS * MR + i] = as_int(a_scale[place[i]]);
    }
}

/* A packed panel of b in local memory. */
typedef struct {
    __local int *q;       /* [block][step][NR] */
    __local int *start;   /* [block][NR]: what sums start from; with the matrix unit [MR][NR]: a block's sums */
    __local float *scale; /* [block][NR] */
} b_panel;

/* NR rows of b [n,k] from `column` on (only `left` exist). A tile's scale holds for the whole panel. */
static inline void pack_b(b_panel to, __global const char *b, size_t ldb, __global const float *b_scale,
                          size_t ld_b_scale, size_t tile, size_t column, size_t left, size_t blocks)
{
    for (int h = 0; h < NR; h += 16) {
        __global const char *row[16];
        EACH(i, 16) row[i] = b + (column + min((size_t)(h + i), left - 1)) * ldb;
        for (size_t block = 0; block < blocks; block++) {
            for (int i = 0; i < STEPS / 16; i++) {
                float16 r[16];
                TURN_INTS(r, row, block * BLOCK, i);
                EACH(j, 16) CLT_AT16(__local, int, to.q + (block * STEPS + i * 16 + j) * NR + h) = as_int16(r[j]);
            }
        }
    }
    for (size_t block = 0; block < blocks; block++) {
#if !UNIT
        EACH(j, NV)
        {
            clt_ints sum = (clt_ints)(0);
#if OFFSET
            for (int step = 0; step < STEPS; step++)
                sum = clt_dot(sum, (clt_ints)(0x01010101), CLT_INTS_AT(__local, to.q + (block * STEPS + step) * NR + LANES * j));
#endif
            CLT_INTS_AT(__local, to.start + block * NR + LANES * j) = sum * -OFFSET;
        }
#endif
        __global const float *from = b_scale + block * ld_b_scale;
        for (size_t j = 0; j < NR; j += 16)
            AT16(__local, to.scale + block * NR + j) =
                tile > 1 ? (float16)(from[column / tile]) : clt_load16(from + column + j, clt_above(left, j));
    }
}

/* --- the tile --- */

#define AHEAD 16 /* steps of packed panels that are requested before they are used */

#if UNIT
#define SUM(i, j) CLT_INTS_AT(__local, b.start + (i) * NR + LANES * (j))
/* A part of the next block of both panels. */
#define REQUEST_PART(part)                                                                                             \
    EACH(i, 8)                                                                                                         \
    {                                                                                                                  \
        CLT_PREFETCH(a + A_BLOCK + (t * 4 + part) * 128 + i * 16, 0, 3);                                               \
        CLT_PREFETCH(b.q + STEPS * NR + (t * 4 + part) * 128 + i * 16, 0, 3);                                          \
    }
/* A block's sums to b.start. */
static inline void multiply_block(__global const int *a, b_panel b)
{
    CLT_AMX_TILES
    CLT_AMX_CLEAR(0);
    CLT_AMX_CLEAR(1);
    CLT_AMX_CLEAR(2);
    CLT_AMX_CLEAR(3);
    EACH(t, STEPS / 16)
    {
        CLT_AMX_LOAD(4, a + t * 256, 64);
        CLT_AMX_LOAD(6, b.q + t * 16 * NR, NR * 4);
        CLT_AMX_DOT8(0, 4, 6);
        REQUEST_PART(0)
        CLT_AMX_LOAD(7, b.q + t * 16 * NR + 16, NR * 4);
        CLT_AMX_DOT8(1, 4, 7);
        REQUEST_PART(1)
        CLT_AMX_LOAD(5, a + STEPS * 16 + t * 256, 64);
        CLT_AMX_DOT8(2, 5, 6);
        REQUEST_PART(2)
        CLT_AMX_DOT8(3, 5, 7);
        REQUEST_PART(3)
    }
    CLT_AMX_STORE(0, b.start, NR * 4);
    CLT_AMX_STORE(1, b.start + 16, NR * 4);
    CLT_AMX_STORE(2, b.start + 16 * NR, NR * 4);
    CLT_AMX_STORE(3, b.start + 16 * NR + 16, NR * 4);
}
#else
#define SUM(i, j) acc[i][j]
#endif

/* chain = fma(sum, scale of a * scale of b, chain) for one block; a chain that `starts` here is +0 before. */
static inline void add_block(__local float *chain, __global const int *a, b_panel b, bool starts)
{
#if UNIT
    multiply_block(a, b);
    a += STEPS * MR;
#else
    clt_ints acc[MR][NV];
    EACH(i, MR) EACH(j, NV) acc[i][j] = CLT_INTS_AT(__local, b.start + LANES * j);
    for (int step = 0; step < STEPS; step++, a += MR, b.q += NR) {
        clt_ints bv[NV];
        EACH(j, NV)
        {
            bv[j] = CLT_INTS_AT(__local, b.q + LANES * j);
            CLT_PREFETCH(b.q + AHEAD * NR + LANES * j, 0, 3);
        }
        CLT_PREFETCH(a + AHEAD * MR, 0, 3);
        EACH(i, MR)
        {
            const clt_ints av = (clt_ints)(a[i]);
            EACH(j, NV) acc[i][j] = clt_dot(acc[i][j], av, bv[j]);
        }
    }
#endif
#define ADD_TO(OLD)                                                                                                    \
    EACH(i, MR)                                                                                                        \
    {                                                                                                                  \
        const clt_floats sa = (clt_floats)(as_float(a[i]));                                                            \
        EACH(j, NV)                                                                                                    \
        {                                                                                                              \
            __local float *to = chain + i * NR + LANES * j;                                                            \
            const clt_floats s = sa * CLT_FLOATS_AT(__local, b.scale + LANES * j);                                     \
            CLT_FLOATS_AT(__local, to) = fma(clt_to_floats(SUM(i, j)), s, OLD);                                        \
        }                                                                                                              \
    }
    if (starts) {
        ADD_TO((clt_floats)(0.0f))
    } else {
        ADD_TO(CLT_FLOATS_AT(__local, to))
    }
#undef ADD_TO
}

/* Outputs [row0, row0 + rows_each) x `panels_each` panels of NR columns over `blocks` blocks of packed a.
 * Launch: {ceil(panels / panels_each), ceil(m / rows_each)}; rows_each is a multiple of MR. */
__kernel CLT_ONE_ITEM void
gemm8_rows(uint m, uint n, uint blocks, uint group_blocks, uint panels_each, uint rows_each,
           __global const int *a_packed, __global const char *b, ulong b_off, ulong ldb, __global const float *b_scale,
           ulong b_scale_off, ulong ld_b_scale, uint b_tile, __global float *part, ulong part_off, ulong ldpart, CLT_EP_ARGS)
{
    __local int q[KC / NARROW * NR], start[UNIT ? MR * NR : KC / BLOCK * NR];
    __local float scale[KC / BLOCK * NR], chain[MR * NR];
    const clt_gemm_ep whole = CLT_EP_INIT;
    const size_t row0 = get_global_id(1) * rows_each, row1 = min(row0 + rows_each, (size_t)m);
    const size_t column0 = get_global_id(0) * panels_each * NR;
    const size_t column1 = min(column0 + panels_each * NR, (size_t)n);
    const bool continues = !(flags & CLT_CHAIN_FIRST), ends = flags & CLT_CHAIN_LAST;
#if UNIT
    CLT_AMX_BEGIN
#endif
    part += part_off;
    for (size_t column = column0; column < column1; column += NR) {
        const b_panel panel = {q, start, scale};
        tile_place at = {row0, column, 0, min(column1 - column, (size_t)NR)};
        pack_b(panel, b + b_off, ldb, b_scale + b_scale_off, ld_b_scale, b_tile, column, at.columns, blocks);
        for (at.row = row0; at.row < row1; at.row += MR) {
            __global const int *a = a_packed + at.row / MR * blocks * A_BLOCK;
            clt_gemm_ep ep = whole;
            at.rows = min(row1 - at.row, (size_t)MR);
            const size_t next = min(at.row + MR, row1), next_rows = min(row1 - next, (size_t)MR);
            for (size_t block = 0; block < blocks; block++, a += A_BLOCK) {
                const b_panel here = {q + block * STEPS * NR, start + (UNIT ? 0 : block * NR), scale + block * NR};
                const bool goes_on = block == 0 && continues;
                if (goes_on) load_chain(chain, part, ldpart, at);
                for (size_t i = next_rows * block / blocks; i < next_rows * (block + 1) / blocks; i++)
                    for (size_t j = 0; j < NR; j += 16) CLT_PREFETCH(ep.c + (next + i) * ep.ldc + column + j, 1, 3);
                add_block(chain, a, here, !goes_on && block % group_blocks == 0);
                if ((block + 1) % group_blocks != 0 || !ends) continue;
#if FORM == 0
                finish_chain(chain, &ep, at);
#else
                add_chain(chain, ep.c, ep.ldc, at, !(ep.flags & CLT_EP_ACCUMULATE)); /* with FORM 1: c holds a sum */
#endif
                ep.flags |= CLT_EP_ACCUMULATE;
            }
            if (!ends) store_chain(chain, part, ldpart, at);
        }
    }
#if UNIT
    CLT_AMX_END
#endif
}
