/* gemm_fp8_wgmma: products of matrices in 8-bit floating point on the matrix units of NVIDIA's sm_90a.
 *
 * A work-group computes tiles of MB * 128 x BN outputs, many tiles one after the other. One item of its first
 * warpgroup copies the operands' boxes, 128 elements along k, into a ring of STAGES buffers in local memory,
 * as far ahead as the ring allows, also across the end of a tile. Each of the other two warpgroups multiplies
 * MB blocks of 64 rows. Sums stay in the matrix unit's accumulators, which keep fewer bits than fp32. With
 * SPLIT they start anew at each step of 128 and are added in fp32: the two blocks of a warpgroup use one set
 * of such sums in turn, and while one warpgroup adds, the other one multiplies.
 *
 *   -DMB=1 -DBN=256   tiles of 128 x 256; or -DMB=2 -DBN=128: tiles of 256 x 128
 *   -DSTAGES=4        buffers of 48 KiB
 *   -DSPLIT=1         with MB=2
 *   -DBOXED=1         16-bit results, of an epilogue without steps other than the bias, leave through tensor maps
 *   other macros      gemm_fp8.clh; formats 0 and 1
 *
 * Operands beyond an edge are zeros.
 *
 * Launch: global {groups * 384}, local {384}. There are no more work-groups than tiles.
 * Requires: wgmma, tensor maps, 231,000 bytes of local memory; BOXED: rows of c at multiples of 16 bytes, and n
 * a multiple of 8. */
#include "gemm_fp8.clh"
#if A_FORMAT == 0
#define CLT_MMA_A8 "e4m3"
#else
#define CLT_MMA_A8 "e5m2"
#endif
#if B_FORMAT == 0
#define CLT_MMA_B8 "e4m3"
#else
#define CLT_MMA_B8 "e5m2"
#endif
#include "../include/clt_hopper_fp8.clh"
#include "../include/clt_ptx.clh"

#ifndef MB
#define MB 1
#endif
#ifndef BN
#define BN 256
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef SPLIT
#define SPLIT 0
#endif
#ifndef BOXED
#define BOXED 0
#endif
#if A_FORMAT > 1 || B_FORMAT > 1
#error "formats are e4m3 and e5m2"
#endif
#if !(MB == 1 && BN == 256) && !(MB == 2 && BN == 128)
#error "MB, BN are 1, 256 or 2, 128"
#endif
#if SPLIT && MB != 2
#error "SPLIT takes MB=2"
#endif
#if BOXED && !C_TYPE
#error "BOXED is for 16-bit results"
#endif

#define BM (MB * 128)
#define ITEMS 384
#define STEP 128 /* elements along k of a buffer */
#define A_BYTES (BM * STEP)
#define B_BYTES (BN * STEP)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define BLOCK_BYTES (64 * STEP) /* 64 rows of a */
/* Of the results of a warp: 8 rows by 64 columns in fp32, or 16 rows by 64 columns in 16 bits. */
#define BOX_BYTES 2048
#define BOXES 2
#define TOGETHER 8 /* rows of tiles that are processed together, for the cache */

#define ROLE static inline __attribute__((always_inline))
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

typedef struct {
    uint m, n, steps;
    uint tiles_m, tiles_n;
} gemm_plan;

/* First row and column of tile t. */
static inline uint2 tile_place(const gemm_plan *p, uint t)
{
    const uint per = TOGETHER * p->tiles_n, g = t / per, r = t % per;
    const uint rows = min((uint)TOGETHER, p->tiles_m - g * TOGETHER);
    return (uint2)((g * TOGETHER + r % rows) * BM, r / rows * BN);
}

#define EACH_TILE(p)                                                                                         \
    for (uint t = (uint)get_group_id(0); t < (p)->tiles_m * (p)->tiles_n; t += (uint)get_num_groups(0))

#define EMPTY_AT (STAGES * 8) /* of the barriers for released buffers */
#define NEXT_STAGE                                                                                           \
    if (++stage == STAGES) {                                                                                 \
        stage = 0;                                                                                           \
        parity ^= 1;                                                                                         \
    }

/* --- copying in --- */

/* By one item: copies the operands of all tiles into the ring as soon as buffers are released. */
ROLE void load_operands(const gemm_plan *p, uint ring_at, uint bars, ulong map_a, ulong map_b)
{
    uint stage = 0, parity = 1;
    EACH_TILE(p)
    {
        const uint2 place = tile_place(p, t);
        for (uint step = 0; step < p->steps; step++) {
            const uint at = ring_at + stage * STAGE_BYTES, bar = bars + stage * 8, k0 = step * STEP;
            CLT_BAR_WAIT(bar + EMPTY_AT, parity);
            CLT_BAR_EXPECT(bar, STAGE_BYTES);
            CLT_TMA_LOAD2(at, map_a, k0, place.x, bar);
            CLT_TMA_LOAD2(at + A_BYTES, map_b, k0, place.y, bar);
            NEXT_STAGE;
        }
    }
}

/* --- multiplying --- */

#define RELEASE(which)                                                                                       \
    if (lane == 0) CLT_BAR_ARRIVE(bars + EMPTY_AT + (which)*8)

#if SPLIT
/* acc += the step's sums, for the two blocks of rows one after the other. zero: see CLT_MMA_F8_SPLIT. */
#define ADD_SUMS(h)                                                                                          \
    EACH(i, 64) acc[h][i] = acc[h][i] + sum[i];                                                              \
    CLT_MMA_F8_DONE_WITH(acc[h])
#define MULTIPLY                                                                                             \
    float sum[64];                                                                                           \
    EACH(i, 64) sum[i] = 0.0f;                                                                               \
    EACH(h, MB) EACH(i, 64) acc[h][i] = 0.0f;                                                                \
    for (uint step = 0; step < p->steps; step++) {                                                           \
        const uint at = ring_at + stage * STAGE_BYTES;                                                       \
        const ulong ma = CLT_TILE_K(at + half_ * (MB * BLOCK_BYTES)), mb = CLT_TILE_K(at + A_BYTES);         \
        CLT_BAR_WAIT(bars + stage * 8, parity);                                                              \
        CLT_MMA_F8_SPLIT(sum, ma, mb, zero);                                                                 \
        CLT_MMA_F8_WAIT(128, sum);                                                                           \
        ADD_SUMS(0);                                                                                         \
        CLT_MMA_F8_SPLIT(sum, ma + BLOCK_BYTES / 16, mb, zero);                                              \
        CLT_MMA_F8_WAIT(128, sum);                                                                           \
        RELEASE(stage);                                                                                      \
        ADD_SUMS(1);                                                                                         \
        NEXT_STAGE;                                                                                          \
    }
#else
/* Each step also releases the previous one's buffer. */
#define MULTIPLY                                                                                             \
    uint before = 0;                                                                                         \
    for (uint step = 0; step < p->steps; step++) {                                                           \
        const uint at = ring_at + stage * STAGE_BYTES;                                                       \
        const ulong ma = CLT_TILE_K(at + half_ * (MB * BLOCK_BYTES)), mb = CLT_TILE_K(at + A_BYTES);         \
        CLT_BAR_WAIT(bars + stage * 8, parity);                                                              \
        CLT_MMA_FENCE();                                                                                     \
        EACH(i, STEP / 32)                                                                                   \
        EACH(h, MB) CLT_MMA_F8_IF(BN, acc[h], ma + h * (BLOCK_BYTES / 16) + i * 2, mb + i * 2, i > 0 || step > 0); \
        CLT_MMA_COMMIT();                                                                                    \
        CLT_MMA_WAIT_ANY(1);                                                                                 \
        if (step > 0) RELEASE(before);                                                                       \
        before = stage;                                                                                      \
        NEXT_STAGE;                                                                                          \
    }                                                                                                        \
    EACH(h, MB) CLT_MMA_F8_WAIT(BN, acc[h]);                                                                 \
    RELEASE(before)
#endif

#include "gemm_fp8_wgmma_results.clh"

/* By the items of a multiplying warpgroup: its rows of all tiles. */
ROLE void multiply_tiles(const gemm_plan *p, __local const clt_gemm_ep *epilogue, float scale, uint ring_at, uint bars,
                         __local char *box, ulong map_c, uint zero, uint id, uint lane)
{
    const uint half_ = id / 128 - 1, warp_row = half_ * (MB * 64) + id / 32 % 4 * 16;
    uint stage = 0, parity = 0;
    float acc[MB][BN / 2];
    EACH_TILE(p)
    {
        MULTIPLY;
        const uint2 place = tile_place(p, t);
        const uint m0 = place.x + warp_row, n0 = place.y;
        const uint lane_now = (uint)clt_ptx_anew(lane); /* places in a box are not kept in registers */
        const clt_gemm_ep ep = *epilogue;
        /* In place: the sums are inputs of the next tile's first product, too, so both would take registers. */
        EACH(h, MB) EACH(i, BN / 2) acc[h][i] = acc[h][i] * scale;
        SEND_RESULTS
    }
    END_RESULTS
}

/* --- the kernel --- */

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
gemm_fp8_wgmma(CLT_GEMM_FP8_ARGS, __global const ulong *maps_a, ulong map_a, __global const ulong *maps_b,
               ulong map_b, __global const ulong *maps_c, ulong map_c)
{
    __local char ring[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
    __local char boxes[8 * BOXES * BOX_BYTES] __attribute__((aligned(1024)));
    __local ulong barriers[2 * STAGES];
    /* The epilogue's pointers are read when they are needed, which leaves more registers to the products. */
    __local clt_gemm_ep epilogue;
    const uint id = (uint)get_local_id(0), lane = id & 31, bars = CLT_LOCAL_ADDRESS(barriers);
    const gemm_plan plan = {m, n, (k + STEP - 1) / STEP, (m + BM - 1) / BM, (n + BN - 1) / BN};
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
    }
    CLT_GROUP_SYNC(0, ITEMS);
    if (id < 128) {
        CLT_REGISTERS_LESS(24);
        if (id == 0)
            load_operands(&plan, CLT_LOCAL_ADDRESS(ring), bars, (ulong)(maps_a + map_a), (ulong)(maps_b + map_b));
    } else {
        CLT_REGISTERS_MORE(240);
        multiply_tiles(&plan, &epilogue, a_inverse[a_inverse_off] * b_inverse[b_inverse_off], CLT_LOCAL_ADDRESS(ring),
                       bars, boxes + (id / 32 - 4) * (BOXES * BOX_BYTES), (ulong)(maps_c + map_c), (uint)lda & 15, id,
                       lane);
    }
}
