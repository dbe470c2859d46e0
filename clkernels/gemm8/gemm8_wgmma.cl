/* gemm8_wgmma: products of 8-bit blocks on the matrix units of NVIDIA's sm_90a.
 *
 * A work-group computes tiles of 256 x 128 outputs, many tiles one after the other. One item of its first
 * warpgroup copies the operands' boxes, 128 elements along k, into a ring of STAGES buffers in local memory,
 * as far ahead as the ring allows, also across the end of a tile. Each of the other two warpgroups owns 128 x
 * 128 outputs as two blocks of 64 rows: 128 fp32 chains for each item, and one set of 64 integer sums, which
 * the two blocks of rows use in turn.
 *
 *   -DSTAGES=4      buffers of 48 KiB
 *   -DHALVES=1      tiles of 128 x 128: each warpgroup owns one block of 64 rows, and buffers have 32 KiB. Not
 *                   with B_TILE. For few tiles
 *   -DBOXED=1       16-bit results, of an epilogue without steps other than the bias, leave through tensor maps
 *   -DBIAS=1        BOXED: the epilogue has a bias
 *   -DADDS=1        the epilogue of fp32 results adds a residual and at most a bias; all are accessed as float4
 *   other macros, order   gemm8_blocks.clh; A_TILE=1 is not supported
 *
 * Operands beyond an edge are zeros. So are scales that the copy engine loads; with B_TILE those of rows of a
 * beyond an edge are the last row's.
 *
 * Launch: global {groups * 384}, local {384}. There are no more work-groups than tiles.
 * Requires: wgmma, tensor maps, 231,000 bytes of local memory; without B_TILE rows of both operands' scales as
 * a tensor map needs them; BOXED: rows of c at multiples of 16 bytes, and n a multiple of 8. */
#include "gemm8_blocks.clh"
#include "../include/clt_hopper8.clh"
#include "../include/clt_ptx.clh"

#ifndef STAGES
#define STAGES 4
#endif
#ifndef HALVES
#define HALVES 2
#endif
#ifndef BOXED
#define BOXED 0
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef ADDS
#define ADDS 0
#endif
#if A_TILE
#error "A_TILE is not supported"
#endif
#if HALVES != 2 && (HALVES != 1 || B_TILE)
#error "HALVES is 2, or 1 without B_TILE"
#endif
#if BOXED && (FORM || !C_TYPE)
#error "BOXED is for 16-bit results of FORM 0"
#endif

#if ADDS && (FORM || C_TYPE)
#error "ADDS is for fp32 results of FORM 0"
#endif

#define BM (HALVES * 128)
#define BN 128
#define ITEMS 384
#define STEP 128 /* elements along k of a buffer */
#define PER_STEP (STEP / BLOCK)
#define A_BYTES (BM * STEP)
#define B_BYTES (BN * STEP)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define HALF_BYTES (64 * STEP) /* 64 rows of a */
/* Scales of a buffer's blocks: for the tile's rows, then for its columns. */
#define ROW_SCALE_BYTES (PER_STEP * BM * 4)
#define SCALE_BYTES (B_TILE ? 0 : ROW_SCALE_BYTES + PER_STEP * BN * 4)
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

/* By one item: copies the operands of all tiles into the ring as soon as buffers are released. maps: the
 * addresses of the maps of a, b, a's and b's scales. They are in local memory because this item has few
 * registers. */
ROLE void load_operands(const gemm8_plan *p, uint ring_at, uint scales_at, uint bars, __local const ulong *maps)
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
            CLT_TMA_LOAD2(at, maps[0], k0, place.x, bar);
            CLT_TMA_LOAD2(at + A_BYTES, maps[1], k0, place.y, bar);
#if !B_TILE
            CLT_TMA_LOAD2(scales_at + stage * SCALE_BYTES, maps[2], place.x, block, bar);
            CLT_TMA_LOAD2(scales_at + stage * SCALE_BYTES + ROW_SCALE_BYTES, maps[3], place.y, block, bar);
#endif
            NEXT_STAGE;
        }
    }
}

/* --- multiplying --- */

#if B_TILE
/* The scales of a block for an item's rows h * 64 + r * 8 and for the tile's columns. */
typedef struct {
    float row[2][2], column[PER_STEP];
} gemm8_scales;
/* Of block `block`, for the tile at `place`. */
#define LOAD_SCALES(place, block)                                                                            \
    {                                                                                                        \
        __global const float *from = a_scale + (block)*ld_a_scale;                                           \
        const uint row = place.x + warp_row + lane / 4;                                                      \
        EACH(h, 2) EACH(r, 2) next.row[h][r] = from[min(row + h * 64 + r * 8, p->m - 1)];                    \
        EACH(c, PER_STEP)                                                                                    \
        next.column[c] = b_scale[(block)*ld_b_scale + min(place.y + c * BLOCK, p->n - 1) / BLOCK];           \
    }
/* d = fma(sum, scale, d) for the 64 rows h; part: the block's place in the buffer. */
#define ADD_BLOCK(d, h, part)                                                                                \
    EACH(j, 16) EACH(i, 4)                                                                                   \
    {                                                                                                        \
        const float v = (float)sum[4 * j + i];                                                               \
        d[4 * j + i] = fma(v, scale[h][i / 2][j * 8 / BLOCK], d[4 * j + i]);                                  \
    }
#else
/* The columns' scales are read a group of 32 columns before they are used. */
#define LOAD_GROUP(g, part)                                                                                  \
    EACH(j, 4)                                                                                               \
    CLT_LOAD_FLOAT2(column[(g) % 2][2 * j], column[(g) % 2][2 * j + 1],                                      \
                    columns_at + (part)*BN * 4 + ((g)*4 + j) * 32);
#define ADD_GROUP(d, g)                                                                                      \
    EACH(j, 4) EACH(i, 4)                                                                                    \
    {                                                                                                        \
        const int at = (g)*16 + 4 * j + i;                                                                   \
        const float v = (float)sum[at];                                                                      \
        d[at] = fma(v, row[i / 2] * column[(g) % 2][2 * j + i % 2], d[at]);                                  \
    }
#define BEFORE_BLOCK(h, part)                                                                                \
    float row[2], column[2][8];                                                                              \
    CLT_LOAD_FLOAT(row[0], rows_at + (part)*BM * 4 + (h)*256);                                               \
    CLT_LOAD_FLOAT(row[1], rows_at + (part)*BM * 4 + (h)*256 + 32);                                          \
    LOAD_GROUP(0, part)
#define ADD_BLOCK(d, h, part)                                                                                \
    LOAD_GROUP(1, part) ADD_GROUP(d, 0)                                                                      \
    LOAD_GROUP(2, part) ADD_GROUP(d, 1)                                                                      \
    LOAD_GROUP(3, part) ADD_GROUP(d, 2)                                                                      \
    ADD_GROUP(d, 3)
#endif
/* sum = the products of a block for the 64 rows h. */
#define BEGIN_PRODUCT(h, part)                                                                               \
    CLT_MMA_S8(BLOCK, sum, ma + (part)*4 + (h) * (HALF_BYTES / 16), mb + (part)*4, zero)
#define END_PRODUCT(h, part)                                                                                 \
    CLT_MMA_S8_WAIT(sum);                                                                                    \
    ADD_BLOCK(acc[h], h, part)                                                                               \
    CLT_MMA_DONE_WITH("+f", acc[h])

/* During the last product of a buffer: waits for the next one, unless the chain ends, so that its first product
 * follows at once. released: the barrier of the buffer that is finished. */
#define AHEAD(part)                                                                                          \
    const uint released = bars + EMPTY_AT + stage * 8;                                                       \
    const bool last = (part) == PER_STEP - 1 || block + (part) + 1 == end;                                   \
    if (last) {                                                                                              \
        NEXT_STAGE;                                                                                          \
        ma = first_a + stage * (STAGE_BYTES / 16);                                                           \
        mb = first_b + stage * (STAGE_BYTES / 16);                                                           \
        if (block + (part) + 1 < end) CLT_BAR_WAIT(bars + stage * 8, parity);                                \
    }
#define RELEASE                                                                                              \
    if (lane == 0) CLT_BAR_ARRIVE(released)

#if B_TILE
#if BOXED
/* During a tile's last product: looks up the next tile, and sends what is finished. */
#define LOOK_AHEAD(part)                                                                                     \
    uint then = block + (part) + 1;                                                                          \
    if (then == p->blocks) {                                                                                 \
        then = 0;                                                                                            \
        after = tile_place(p, min(t + (uint)get_num_groups(0), p->tiles_m * p->tiles_n - 1));                \
        SEND_EARLY                                                                                           \
    }                                                                                                        \
    LOAD_SCALES(after, then)
#else
#define LOOK_AHEAD(part) LOAD_SCALES(place, min(block + (part) + 1, p->blocks - 1))
#endif
/* The scales of the next block are loaded during the second product. */
#define MULTIPLY(part)                                                                                       \
    {                                                                                                        \
        float scale[2][2][PER_STEP];                                                                         \
        BEGIN_PRODUCT(0, part);                                                                              \
        EACH(h, 2) EACH(r, 2) EACH(c, PER_STEP) scale[h][r][c] = next.row[h][r] * next.column[c];            \
        END_PRODUCT(0, part);                                                                                \
        BEGIN_PRODUCT(1, part);                                                                              \
        LOOK_AHEAD(part);                                                                                    \
        AHEAD(part)                                                                                          \
        CLT_MMA_S8_WAIT(sum);                                                                                \
        if (last) RELEASE;                                                                                   \
        ADD_BLOCK(acc[1], 1, part)                                                                           \
        CLT_MMA_DONE_WITH("+f", acc[1]);                                                                     \
    }
#else
#define MULTIPLY(part)                                                                                       \
    {                                                                                                        \
        if (HALVES == 2) {                                                                                   \
            BEGIN_PRODUCT(0, part);                                                                          \
            BEFORE_BLOCK(0, part)                                                                            \
            END_PRODUCT(0, part);                                                                            \
        }                                                                                                    \
        BEGIN_PRODUCT(HALVES - 1, part);                                                                     \
        BEFORE_BLOCK(HALVES - 1, part)                                                                       \
        AHEAD(part)                                                                                          \
        END_PRODUCT(HALVES - 1, part);                                                                       \
        if (last) {                                                                                          \
            CLT_WARP_SYNC(); /* all of its items have read the scales */                                     \
            RELEASE;                                                                                         \
        }                                                                                                    \
    }
#endif

/* Where the chains of an item's outputs start. */
#define START                                                                                                \
    EACH(h, HALVES) EACH(i, 64) acc[h][i] = 0.0f;                                                            \
    if (FORM == 2 && ep.flags & CLT_EP_ACCUMULATE) EACH(h, HALVES) EACH(j, 16) EACH(i, 4)                         \
    {                                                                                                        \
        const uint row = row0 + h * 64 + i / 2 * 8, column = n0 + j * 8 + lane % 4 * 2 + i % 2;              \
        if (row < p->m && column < p->n) acc[h][4 * j + i] = clt_gemm8_start(&ep, row, column);              \
    }

/* What is known before the first tile, and at the start of a tile. after: the next tile. */
#if B_TILE && BOXED
#define BEGIN_SCALES                                                                                         \
    gemm8_scales next;                                                                                       \
    uint2 after = tile_place(p, (uint)get_group_id(0));                                                      \
    LOAD_SCALES(after, 0)
#define FIND_TILE const uint2 place = after;
#elif B_TILE
#define BEGIN_SCALES gemm8_scales next;
#define FIND_TILE                                                                                            \
    const uint2 place = tile_place(p, t);                                                                    \
    LOAD_SCALES(place, 0)
#else
#define BEGIN_SCALES
#define FIND_TILE const uint2 place = tile_place(p, t);
#endif

#include "gemm8_wgmma_results.clh"

/* By the items of a multiplying warpgroup: its rows of all tiles. zero: see CLT_MMA_S8. */
ROLE void multiply_tiles(const gemm8_plan *p, __local const clt_gemm_ep *epilogue, __global const float *a_scale,
                         ulong ld_a_scale, __global const float *b_scale, ulong ld_b_scale, uint ring_at,
                         uint scales_at, uint bars, __local char *boxes, ulong map_c, uint zero, uint id, uint lane)
{
    const uint warp = clt_ptx_first(id / 32 - 4), half_ = warp / 4, warp_row = half_ * (HALVES * 64) + warp % 4 * 16;
    __local char *const box = boxes + warp * (BOXES * BOX_BYTES);
    const ulong first_a = CLT_TILE_K(ring_at + half_ * (HALVES * HALF_BYTES)), first_b = CLT_TILE_K(ring_at + A_BYTES);
    uint stage = 0, parity = 0;
    float acc[HALVES][64];
    BEGIN_SCALES
    EACH_TILE(p)
    {
        FIND_TILE
        const uint m0 = place.x + warp_row, n0 = place.y, row0 = m0 + lane / 4;
        EACH_CHAIN(p)
        {
            {
                const clt_gemm_ep ep = *epilogue;
                START
            }
            int sum[64]; /* of this chain only: they need no registers while results leave */
            EACH(i, 64) sum[i] = 0;
            const uint end = begin + p->group_blocks;
            ulong ma = first_a + stage * (STAGE_BYTES / 16), mb = first_b + stage * (STAGE_BYTES / 16);
            CLT_BAR_WAIT(bars + stage * 8, parity);
            EACH_STEP(p, block)
            {
#if !B_TILE
                const uint rows_at = scales_at + stage * SCALE_BYTES + (warp_row + lane / 4) * 4;
                const uint columns_at = scales_at + stage * SCALE_BYTES + ROW_SCALE_BYTES + lane % 4 * 8;
#endif
                MULTIPLY(0)
#if PER_STEP == 2
                if (block + 1 < end) MULTIPLY(1)
#endif
            }
            SEND_RESULTS
        }
    }
    END_RESULTS
}

/* --- the kernel --- */

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
gemm8_wgmma(CLT_GEMM8_KERNEL_ARGS, __global const ulong *maps_a, ulong map_a, __global const ulong *maps_b,
            ulong map_b, __global const ulong *maps_rows, ulong map_rows, __global const ulong *maps_columns,
            ulong map_columns, __global const ulong *maps_c, ulong map_c)
{
    __local char ring[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
    __local char boxes[8 * BOXES * BOX_BYTES] __attribute__((aligned(1024)));
    __local char scales[STAGES * SCALE_BYTES + 128] __attribute__((aligned(128)));
    __local ulong barriers[2 * STAGES];
    /* The epilogue's pointers are read when they are needed, which leaves more registers to the products. */
    __local clt_gemm_ep epilogue;
    __local ulong maps[4];
    const uint id = (uint)get_local_id(0), lane = id & 31, bars = CLT_LOCAL_ADDRESS(barriers);
    const gemm8_plan plan = {m, n, blocks, group_blocks, (m + BM - 1) / BM, (n + BN - 1) / BN};
    const clt_gemm_ep ep = CLT_EP_INIT;
    CLT_LESS_FIRST();
    if (id == 0) {
        epilogue = ep;
        maps[0] = (ulong)(maps_a + map_a);
        maps[1] = (ulong)(maps_b + map_b);
        maps[2] = (ulong)(maps_rows + map_rows);
        maps[3] = (ulong)(maps_columns + map_columns);
        for (uint i = 0; i < STAGES; i++) {
            CLT_BAR_INIT(bars + i * 8, 1);
            CLT_BAR_INIT(bars + EMPTY_AT + i * 8, 8);
        }
        CLT_BAR_READY();
        for (uint i = 0; i < (B_TILE ? 2 : 4); i++) CLT_MAP_ACQUIRE(maps[i]);
    }
    CLT_GROUP_SYNC(0, ITEMS);
    if (id < 128) {
        CLT_REGISTERS_LESS(24);
        if (id == 0)
            load_operands(&plan, CLT_LOCAL_ADDRESS(ring), CLT_LOCAL_ADDRESS(scales), bars, maps);
    } else {
        CLT_REGISTERS_MORE(240);
        multiply_tiles(&plan, &epilogue, a_scale + a_scale_off, ld_a_scale, b_scale + b_scale_off, ld_b_scale,
                       CLT_LOCAL_ADDRESS(ring), CLT_LOCAL_ADDRESS(scales), bars, boxes, (ulong)(maps_c + map_c),
                       (uint)lda & 15, id, lane);
    }
}
