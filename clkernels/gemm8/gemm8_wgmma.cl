/* gemm8_wgmma: products of 8-bit blocks on the matrix units of NVIDIA's sm_90a.
 *
 * A work-group computes tiles of 256 x 128 outputs, many tiles one after the other. One item of its first
 * warpgroup copies the operands' boxes, 128 elements along k, into a ring of STAGES buffers in local memory,
 * as far ahead as the ring allows, also across the end of a tile. Each of the other two warpgroups owns 128 x
 * 128 outputs as two blocks of 64 rows: 128 fp32 chains for each item, and one set of 64 integer sums, which
 * the two blocks of rows use in turn. While one warpgroup converts its sums, the other one multiplies.
 *
 *   -DSTAGES=4      buffers of 48 KiB
 *   -DIN_PLACE=1    a sum's float is written back to the sum's register, so that the conversions do not wait
 *                   for a few temporary registers
 *   -DBOXED=1       16-bit results, of an epilogue without steps other than the bias, leave through tensor maps
 *   other macros, order   gemm8_blocks.clh; A_TILE=1 is not supported
 *
 * Operands beyond an edge are zeros. The scales of rows of a beyond an edge are those of the last row.
 *
 * Launch: global {groups * 384}, local {384}. There are no more work-groups than tiles.
 * Requires: wgmma, tensor maps, 231,000 bytes of local memory; rows of b's scales as a tensor map needs them
 * (without B_TILE); BOXED: rows of c at multiples of 16 bytes, and n a multiple of 8. */
#include "gemm8_blocks.clh"
#include "../include/clt_hopper8.clh"
#include "../include/clt_ptx.clh"

#ifndef STAGES
#define STAGES 4
#endif
#ifndef IN_PLACE
#define IN_PLACE 0
#endif
#ifndef BOXED
#define BOXED 0
#endif
#if A_TILE
#error "A_TILE is not supported"
#endif
#if BOXED && (FORM || !C_TYPE)
#error "BOXED is for 16-bit results of FORM 0"
#endif

#define BM 256
#define BN 128
#define ITEMS 384
#define STEP 128 /* elements along k of a buffer */
#define PER_STEP (STEP / BLOCK)
#define A_BYTES (BM * STEP)
#define B_BYTES (BN * STEP)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define HALF_BYTES (A_BYTES / 4) /* 64 rows of a */
/* Scales of a buffer's blocks for the tile's columns. */
#define SCALE_BYTES (B_TILE ? 0 : PER_STEP * BN * 4)
/* Of the results of a warp: 8 rows by 64 columns in fp32, or 16 rows by 64 columns in 16 bits. */
#define BOX_BYTES 2048
#if B_TILE
#define BOXES 2
#define BOXES_LEFT 1 /* that may still be read when the next one is filled */
#else
#define BOXES 1
#define BOXES_LEFT 0
#endif
#define TOGETHER 8 /* rows of tiles that are processed together, for the cache */

#define ROLE static inline __attribute__((always_inline))
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

typedef struct {
    uint m, n, blocks, group_blocks;
    uint tiles_m, tiles_n;
} gemm8_plan;

/* First row and column of tile t. */
static inline uint2 tile_place(const gemm8_plan *p, uint t)
{
    const uint per = TOGETHER * p->tiles_n, g = t / per, r = t % per;
    const uint rows = min((uint)TOGETHER, p->tiles_m - g * TOGETHER);
    return (uint2)((g * TOGETHER + r % rows) * BM, r / rows * BN);
}

#define EACH_TILE(p)                                                                                         \
    for (uint t = (uint)get_group_id(0); t < (p)->tiles_m * (p)->tiles_n; t += (uint)get_num_groups(0))
#define EACH_CHAIN(p) for (uint begin = 0; begin < (p)->blocks; begin += (p)->group_blocks)
#define EACH_STEP(p, block) for (uint block = begin; block < begin + (p)->group_blocks; block += PER_STEP)

#define EMPTY_AT (STAGES * 8) /* of the barriers for released buffers */
#define NEXT_STAGE                                                                                           \
    if (++stage == STAGES) {                                                                                 \
        stage = 0;                                                                                           \
        parity ^= 1;                                                                                         \
    }

/* --- copying in --- */

/* By one item: copies the operands of all tiles into the ring as soon as buffers are released. */
ROLE void load_operands(const gemm8_plan *p, uint ring_at, uint scales_at, uint bars, ulong map_a, ulong map_b,
                        ulong map_scale)
{
    uint stage = 0, parity = 1;
    EACH_TILE(p)
    {
        const uint2 place = tile_place(p, t);
        EACH_CHAIN(p) EACH_STEP(p, block)
        {
            const uint at = ring_at + stage * STAGE_BYTES, bar = bars + stage * 8, k0 = block * BLOCK;
            CLT_BAR_WAIT(bar + EMPTY_AT, parity);
            CLT_BAR_EXPECT(bar, STAGE_BYTES + SCALE_BYTES);
            CLT_TMA_LOAD2(at, map_a, k0, place.x, bar);
            CLT_TMA_LOAD2(at + A_BYTES, map_b, k0, place.y, bar);
#if !B_TILE
            CLT_TMA_LOAD2(scales_at + stage * SCALE_BYTES, map_scale, place.y, block, bar);
#endif
            NEXT_STAGE;
        }
    }
}

/* --- multiplying --- */

/* The scales of block `block` for an item's rows h * 64 + r * 8, and with B_TILE for the tile's columns. */
#define LOAD_SCALES(to, block)                                                                               \
    {                                                                                                        \
        __global const float *from = a_scale + (block) * ld_a_scale;                                         \
        EACH(h, 2) EACH(r, 2) to.row[h][r] = from[min(row0 + h * 64 + r * 8, p->m - 1)];                     \
        if (B_TILE)                                                                                          \
            EACH(c, PER_STEP) to.column[c] = b_scale[(block)*ld_b_scale + min(n0 + c * BLOCK, p->n - 1) / BLOCK]; \
    }
typedef struct {
    float row[2][2], column[PER_STEP];
} gemm8_scales;

/* d = fma(sum, scale, d) for the 64 rows h; part: the block's place in the buffer. */
#define ADD_BLOCK(d, h, part)                                                                                \
    EACH(j, 16)                                                                                              \
    {                                                                                                        \
        float column[2] = {now.column[j * 8 / BLOCK], now.column[j * 8 / BLOCK]};                            \
        if (!B_TILE) CLT_LOAD_FLOAT2(column[0], column[1], columns_at + (part)*BN * 4 + j * 32);             \
        EACH(i, 4)                                                                                           \
        {                                                                                                    \
            const float v = (float)sum[4 * j + i];                                                           \
            d[4 * j + i] = fma(v, now.row[h][i / 2] * column[i % 2], d[4 * j + i]);                          \
            if (IN_PLACE) sum[4 * j + i] = as_int(v);                                                        \
        }                                                                                                    \
    }                                                                                                        \
    CLT_MMA_DONE_WITH("+f", d);                                                                              \
    if (IN_PLACE) CLT_MMA_DONE_WITH("+r", sum)

#define RELEASE                                                                                              \
    if (lane == 0) CLT_BAR_ARRIVE(bars + EMPTY_AT + stage * 8)

/* The block at place `part` of the buffer. The next block's scales are loaded meanwhile. */
#define MULTIPLY(part)                                                                                       \
    {                                                                                                        \
        const ulong ma = CLT_TILE_K(at + half_ * (2 * HALF_BYTES)) + (part)*4, mb = CLT_TILE_K(at + A_BYTES) + (part)*4; \
        const bool last = (part) == PER_STEP - 1 || block + (part) + 1 == begin + p->group_blocks;           \
        const gemm8_scales now = next;                                                                       \
        CLT_MMA_S8(BLOCK, sum, ma, mb, zero);                                                                \
        LOAD_SCALES(next, min(block + (part) + 1, p->blocks - 1))                                            \
        CLT_MMA_S8_WAIT(sum);                                                                                \
        ADD_BLOCK(acc[0], 0, part);                                                                          \
        CLT_MMA_S8(BLOCK, sum, ma + HALF_BYTES / 16, mb, zero);                                              \
        CLT_MMA_S8_WAIT(sum);                                                                                \
        if (B_TILE && last) RELEASE;                                                                         \
        ADD_BLOCK(acc[1], 1, part);                                                                          \
        if (!B_TILE && last) {                                                                               \
            CLT_WARP_SYNC(); /* all of its items have read the columns' scales */                            \
            RELEASE;                                                                                         \
        }                                                                                                    \
    }

/* Where the chains of an item's outputs start. */
#define START                                                                                                \
    EACH(h, 2) EACH(j, 16) EACH(i, 4)                                                                        \
    {                                                                                                        \
        const uint row = row0 + h * 64 + i / 2 * 8, column = n0 + j * 8 + lane % 4 * 2 + i % 2;              \
        acc[h][4 * j + i] = FORM == 2 && row < p->m && column < p->n ? clt_gemm8_start(&ep, row, column) : 0.0f; \
    }

#include "gemm8_wgmma_results.clh"

/* By the items of a multiplying warpgroup: its rows of all tiles. zero: see CLT_MMA_S8. */
ROLE void multiply_tiles(const gemm8_plan *p, __local const clt_gemm_ep *epilogue, __global const float *a_scale,
                         ulong ld_a_scale, __global const float *b_scale, ulong ld_b_scale, uint ring_at,
                         uint scales_at, uint bars, __local char *box, ulong map_c, uint zero, uint id, uint lane)
{
    const uint half_ = id / 128 - 1, warp_row = half_ * 128 + id / 32 % 4 * 16;
    uint stage = 0, parity = 0;
    float acc[2][64];
    EACH_TILE(p)
    {
        const uint2 place = tile_place(p, t);
        const uint m0 = place.x + warp_row, n0 = place.y, row0 = m0 + lane / 4;
        EACH_CHAIN(p)
        {
            gemm8_scales next;
            int sum[64]; /* of this chain only: they need no registers while results leave */
            EACH(i, 64) sum[i] = 0;
            LOAD_SCALES(next, begin)
            {
                const clt_gemm_ep ep = *epilogue;
                START
            }
            EACH_STEP(p, block)
            {
                const uint at = ring_at + stage * STAGE_BYTES;
                const uint columns_at = scales_at + stage * SCALE_BYTES + lane % 4 * 8;
                CLT_BAR_WAIT(bars + stage * 8, parity);
                MULTIPLY(0)
#if PER_STEP == 2
                if (block + 1 < begin + p->group_blocks) MULTIPLY(1)
#endif
                NEXT_STAGE;
            }
            const uint lane_now = (uint)clt_ptx_anew(lane); /* places in a box are not kept in registers */
            clt_gemm_ep ep = *epilogue;
            ep.flags = clt_gemm8_flags(ep.flags, begin == 0);
            SEND_RESULTS
        }
    }
    END_RESULTS
}

/* --- the kernel --- */

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
gemm8_wgmma(CLT_GEMM8_KERNEL_ARGS, __global const ulong *maps_a, ulong map_a, __global const ulong *maps_b,
            ulong map_b, __global const ulong *maps_scale, ulong map_scale, __global const ulong *maps_c,
            ulong map_c)
{
    __local char ring[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
    __local char boxes[8 * BOXES * BOX_BYTES] __attribute__((aligned(1024)));
    __local char scales[STAGES * SCALE_BYTES + 128] __attribute__((aligned(128)));
    __local ulong barriers[2 * STAGES];
    /* The epilogue's pointers are read when they are needed, which leaves more registers to the products. */
    __local clt_gemm_ep epilogue;
    const uint id = (uint)get_local_id(0), lane = id & 31, bars = CLT_LOCAL_ADDRESS(barriers);
    const gemm8_plan plan = {m, n, blocks, group_blocks, (m + BM - 1) / BM, (n + BN - 1) / BN};
    const clt_gemm_ep ep = CLT_EP_INIT;
    CLT_LESS_FIRST();
    if (id == 0) {
        epilogue = ep;
        for (uint i = 0; i < STAGES; i++) {
            CLT_BAR_INIT(bars + i * 8, 1);
            CLT_BAR_INIT(bars + EMPTY_AT + i * 8, 8);
        }
        CLT_BAR_READY();
        CLT_MAP_ACQUIRE(maps_a + map_a);
        CLT_MAP_ACQUIRE(maps_b + map_b);
        if (!B_TILE) CLT_MAP_ACQUIRE(maps_scale + map_scale);
    }
    CLT_GROUP_SYNC(0, ITEMS);
    if (id < 128) {
        CLT_REGISTERS_LESS(24);
        if (id == 0)
            load_operands(&plan, CLT_LOCAL_ADDRESS(ring), CLT_LOCAL_ADDRESS(scales), bars, (ulong)(maps_a + map_a),
                          (ulong)(maps_b + map_b), (ulong)(maps_scale + map_scale));
    } else {
        CLT_REGISTERS_MORE(240);
        multiply_tiles(&plan, &epilogue, a_scale + a_scale_off, ld_a_scale, b_scale + b_scale_off, ld_b_scale,
                       CLT_LOCAL_ADDRESS(ring), CLT_LOCAL_ADDRESS(scales), bars,
                       boxes + (id / 32 - 4) * (BOXES * BOX_BYTES), (ulong)(maps_c + map_c), (uint)lda & 15, id,
                       lane);
    }
}
