/* gemm_wgmma: GEMM with 16-bit operands, or ones in 8-bit floating point, on the matrix units of NVIDIA's
 * sm_90a, fp32 sums.
 *
 * A work-group computes tiles of BM x BN outputs (BM = WGS * MB * 64) in steps of 64 along k (FP8: 128), many
 * tiles one after the other. Its first warpgroup copies the operands' boxes into a ring of STAGES buffers in local
 * memory, as far ahead as the ring allows, also across the end of a tile. Each of the other WGS warpgroups
 * multiplies MB * 64 rows of the tile. Results go through local memory. One warp of the first warpgroup per
 * multiplying warpgroup stores them as boxes while the next tile is computed. Boxes clip at the edges, so
 * sizes need not be multiples of the tile.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DWGS=2           warpgroups that multiply
 *   -DMB=1 -DBN=256   blocks of 64 rows of each of them, width of a tile; or -DMB=2 -DBN=128; -DWGS=3: -DMB=1
 *                     -DBN=192
 *   -DSTAGES=3        ring of buffers of (BM + BN) * 128 bytes
 *   -DBOXES=4         of 8 KiB for the results of each warpgroup that multiplies: 1, 2 or 4; -DWGS=3: 1, 2 or
 *                     3
 *   -DIN_TYPE -DC_TYPE -DAUX_TYPE    clt_dtype: 0 fp32, 1 bf16, 2 fp16; operands, c, pre and grad_pre
 *   -DEP=bits         CLT_EP_* of gemm_epilogue.clh: the epilogue's steps
 *   -DACT -DGRAD_ACT  gemm_epilogue.clh; GELU of include/clt_act_fast.clh
 *   -DAHEAD=1         the residual, if c is fp32 and not accumulated, is copied ahead of the products: for
 *                     the first half of a tile into the boxes of the results, for the other half into the
 *                     ring, after the operands
 *   -DFINISH=1        an activation, or the derivative of one, of 16-bit tensors is computed while the next
 *                     tile is multiplied: gemm_wgmma_finish.clh
 *   -DAGAIN=1         FINISH of a derivative: act(grad_pre) is also written
 *   -DOWN=1           FINISH of GELU or its derivative without AGAIN, for few steps of k: the multiplying
 *                     warpgroups finish a quarter of a tile between their products (other activations take
 *                     too many registers)
 *   -DFP8=1           NT of codes in 8-bit floating point: gemm_wgmma_fp8.clh; with MB=2 also -DSPLIT=1
 *   -DSUMS=1          TN: a_sum[i] (+)= sum over k of a[k, i], in the same launch
 *
 * Tiles `0 .. whole` are distributed one by one. The others are split along k into equal pieces, in two lots:
 * first as many tiles as give each work-group one piece, then the remaining ones, in more and shorter pieces.
 * All tiles of a lot are split at the same few places of k, so that work-groups share what they read. Pieces
 * come before whole tiles and are combined in one of two ways:
 *
 *   SLICES   only adding to c in fp32 is fused: every piece goes to `part`, and at its end a work-group adds
 *            up a slice of each tile of which it had a piece: gemm_wgmma_slices.clh
 *   else     the work-group with a tile's first piece adds the other pieces from `part` to its sums and
 *            finishes the tile
 *
 * Both add in ascending k. Splits depend only on sizes and device, so every launch gives the same bits.
 *
 * There are no more work-groups than units, so all run at once and may wait for each other. (Without SLICES
 * they wait only for those with lower numbers, and store what those wait for before they wait themselves.)
 *
 * SUMS: a's boxes are also multiplied by a box of ones. Each tile of a row of tiles does that in its share of
 * the steps, those whose number is the tile's column modulo tiles_n, so that all tiles take equally long. A
 * piece, or a whole tile, leaves its share in global memory; the last one of the row adds the shares in the
 * order of the columns, then of k.
 *
 * Launch: gemm_wgmma {groups * ITEMS}, local {ITEMS}. For each piece of a split tile `flags` has WGS elements
 * and `part` BM x BN floats. With SUMS, BM / MB / 2 flags for each row of tiles and BM floats for each piece
 * or whole tile follow. Flags are 0 before and after a launch.
 * Requires: wgmma, tensor maps, RING_BYTES + WGS * BOXES * 8 KiB + 1 KiB of local memory; a, b, c and pre
 * (AHEAD: the residual; FINISH of a derivative: grad_pre in place of pre) as a tensor map needs them, and n a
 * multiple of 16 bytes, because boxes clip at multiples of 16 bytes. */
#if defined(IN_TYPE) && IN_TYPE == 2
#define CLT_MMA_TYPE "f16"
#endif
#include "gemm_epilogue.clh"
#include "../include/clt_hopper.clh"
#ifndef FP8
#define FP8 0
#endif
#ifndef SPLIT
#define SPLIT 0
#endif
#if ACT == 1 || GRAD_ACT == 1
#define ACT_FAST_BF16 (C_TYPE == 1)
#include "../include/clt_act_fast.clh"
#endif

#ifndef FORM
#define FORM 0
#endif
#ifndef WGS
#define WGS 2
#endif
#ifndef MB
#define MB 1
#endif
#ifndef BN
#define BN 256
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef BOXES
#define BOXES 4
#endif
#ifndef EP
#define EP 0
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef FINISH
#define FINISH 0
#endif
#ifndef AGAIN
#define AGAIN 0
#endif
#ifndef OWN
#define OWN 0
#endif
#ifndef SUMS
#define SUMS 0
#endif
#if (WGS != 2 || MB != 1 || BN != 256) && (WGS != 2 || MB != 2 || BN != 128) &&                              \
    (WGS != 3 || MB != 1 || BN != 192)
#error "WGS, MB, BN are 2, 1, 256 or 2, 2, 128 or 3, 1, 192"
#endif
#if AHEAD && (!(EP & CLT_EP_RESIDUAL) || (EP & (CLT_EP_PRE | CLT_EP_GRAD | CLT_EP_ACCUMULATE)) || C_TYPE)
#error "AHEAD does not do this epilogue"
#endif
#if AHEAD && BOXES != 4
#error "AHEAD takes four boxes"
#endif
#if AGAIN && !(FINISH && (EP & CLT_EP_GRAD))
#error "AGAIN needs FINISH of a derivative"
#endif
#if OWN && (!FINISH || AGAIN)
#error "OWN needs FINISH without AGAIN"
#endif
#if SUMS && FORM != 2
#error "SUMS needs FORM 2"
#endif
#if FP8 && (FORM || FINISH || SUMS)
#error "FP8 takes FORM 0 without FINISH and SUMS"
#endif
#if SPLIT && !(FP8 && MB == 2)
#error "SPLIT needs FP8 and MB=2"
#endif
#define BM (WGS * MB * 64)
#define CHUNKS (MB * BN / 64) /* chunks of 64 x 64 results of each warpgroup */
#define SLICES (!C_TYPE && !(EP & ~CLT_EP_ACCUMULATE))
/* The multiplying warpgroups look up the next tile during a tile's last products, except where that is slower
 * (SLICES) or spills (AHEAD with a bias). */
#define LOOKS_AHEAD (!SLICES && !AHEAD)
#define BK (FP8 ? 128 : 64)
#define ITEMS (128 * (1 + WGS))
#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
/* With SLICES the ring finally holds slices of a tile's pieces: together one tile, and less than 16 bytes
 * more for each piece, of which there are at most as many as units. */
#define TILE_BYTES (BM * BN * 4 + 4096)
#define RING_BYTES (SLICES && TILE_BYTES > STAGES * STAGE_BYTES ? TILE_BYTES : STAGES * STAGE_BYTES)
#define BOX_BYTES 8192   /* of c: 64 rows of 128 bytes */
#define BLOCK_BYTES 8192 /* of an operand: 64 rows or columns by one step */
#define A_ALONG_K (FORM != 2)
#define B_ALONG_K (FORM == 0)
#if A_ALONG_K
#define TILE_A(address) CLT_TILE_K(address)
#define NEXT_A 2
#else
#define TILE_A(address) CLT_TILE_MN(address, BLOCK_BYTES)
#define NEXT_A 128
#endif
#if B_ALONG_K
#define TILE_B(address) CLT_TILE_K(address)
#define NEXT_B 2
#else
#define TILE_B(address) CLT_TILE_MN(address, BLOCK_BYTES)
#define NEXT_B 128
#endif
#define TRANS_A CLT_PASTE(TRANS_A_, FORM)
#define TRANS_B CLT_PASTE(TRANS_B_, FORM)
#define TRANS_A_0 "0"
#define TRANS_A_1 "0"
#define TRANS_A_2 "1"
#define TRANS_B_0 "0"
#define TRANS_B_1 "1"
#define TRANS_B_2 "1"

#include "gemm_wgmma_plan.clh"

/* A role of the kernel: a function that is inlined before those that it calls, so that its values stay in
 * registers. */
#define ROLE static inline __attribute__((always_inline))

#if FP8
#include "gemm_wgmma_fp8.clh"
#else
/* Part i, of 16 elements along k, of the products of a step and block b of rows. */
#define PRODUCT(b, i, old)                                                                                   \
    CLT_MMA_SS_IF(BN, d[b], ma + b * (BLOCK_BYTES / 16) + i * NEXT_A, mb + i * NEXT_B, old, TRANS_A, TRANS_B)
/* Which items of a warpgroup release a buffer after its last product, and how many they are. */
#define RELEASES (item == 0)
#define RELEASERS 1
#define ALL_DONE CLT_MMA_WAIT_ANY(0)
#define SCALED(q)
#endif

/* --- barriers --- */

/* Barriers in local memory: per buffer of the ring loaded and released; per box of a warpgroup filled, sent,
 * and with FINISH factor; with SLICES one per lot. Distances in bytes from the first: */
#define BAR_KINDS (2 + FINISH) /* of boxes */
#define KIND_BYTES (WGS * BOXES * 8)
#define EMPTY_AT (STAGES * 8)
#define FILLED_AT (2 * STAGES * 8)
#define SENT_AT (FILLED_AT + KIND_BYTES)
#define FACTOR_AT (SENT_AT + KIND_BYTES)
#define SLICES_AT (FILLED_AT + BAR_KINDS * KIND_BYTES)
#define BARS (2 * STAGES + BAR_KINDS * WGS * BOXES + SLICES * 2)

/* By one item, before a barrier of the group. */
static inline void init_barriers(uint bars)
{
    for (uint i = 0; i < STAGES; i++) {
        CLT_BAR_INIT(bars + i * 8, 1);
        CLT_BAR_INIT(bars + EMPTY_AT + i * 8, WGS * RELEASERS);
    }
    for (uint i = 0; i < WGS * BOXES; i++) {
        CLT_BAR_INIT(bars + FILLED_AT + i * 8, 4);
        for (uint kind = 1; kind < BAR_KINDS; kind++)
            CLT_BAR_INIT(bars + FILLED_AT + (kind * WGS * BOXES + i) * 8, 1);
    }
#if SLICES
    CLT_BAR_INIT(bars + SLICES_AT, 1);
    CLT_BAR_INIT(bars + SLICES_AT + 8, 1);
#endif
    CLT_BAR_READY();
}

/* --- pieces of tiles that were cut --- */

/* An item's sums of a block: of the outputs and, with SUMS, of a's columns (equal in all columns of the
 * product). */
#define SUM_AT (BN / 2)
#define HELD (SUM_AT + SUMS * 4)
#if !SLICES
/* `part` has a warpgroup's sums of the outputs in the order in which its items hold them. */
#define QUADS (MB * SUM_AT / 4) /* float4 of an item's sums */
#define QUAD(i) (d[(i) / (SUM_AT / 4)] + (i) % (SUM_AT / 4) * 4)
#define PIECE(number) (part + ((size_t)(number)*WGS + half_) * (QUADS * 128) + item)

static inline void leave_piece(float (*d)[HELD], __global float4 *part, __global uint *flags, uint number,
                               uint half_, uint item)
{
    __global float4 *to = PIECE(number);
#pragma unroll
    for (uint i = 0; i < QUADS; i++) to[i * 128] = (float4)(QUAD(i)[0], QUAD(i)[1], QUAD(i)[2], QUAD(i)[3]);
    CLT_GROUP_SYNC(1 + half_, 128);
    if (item == 0) CLT_FLAG_RAISE(flags + number * WGS + half_);
}

static inline void add_piece(float (*d)[HELD], __global const float4 *part, __global uint *flags, uint number,
                             uint half_, uint item)
{
    __global const float4 *from = PIECE(number);
    if (item == 0) CLT_FLAG_TAKE(flags + number * WGS + half_);
    CLT_GROUP_SYNC(1 + half_, 128);
#pragma unroll
    for (uint i = 0; i < QUADS; i++) {
        const float4 more = from[i * 128];
        QUAD(i)[0] += more.x;
        QUAD(i)[1] += more.y;
        QUAD(i)[2] += more.z;
        QUAD(i)[3] += more.w;
    }
}
/* The first piece of a tile along k adds the others, in ascending k. */
static inline void add_pieces(float (*d)[HELD], const gemm_plan *plan, const gemm_walk *walk,
                              __global const float4 *part, __global uint *flags, uint half_, uint item)
{
    const gemm_piece first = walk->piece;
    if (walk->k1 < plan->steps)
        for (uint i = 1; i < first.pieces; i++)
            add_piece(d, part, flags, first.number + i * first.next, half_, item);
}
#endif

#if SUMS
#include "gemm_wgmma_sums.clh"
#define LEAVE_SUMS leave_sums(d, plan, &walk, out->part, out->flags, out->a_sum, half_, item)
#else
#define LEAVE_SUMS
#endif

#include "gemm_wgmma_results.clh"

/* --- copying in --- */

#define NEXT_STAGE                                                                                           \
    if (++stage == STAGES) {                                                                                 \
        stage = 0;                                                                                           \
        parity ^= 1;                                                                                         \
    }

static inline void load_stage(uint at, uint bar, ulong map_a, ulong map_b, int k0, int m0, int n0)
{
    CLT_BAR_EXPECT(bar, STAGE_BYTES);
#if A_ALONG_K
    CLT_TMA_LOAD2(at, map_a, k0, m0, bar);
#else
#pragma unroll
    for (int i = 0; i < BM / 64; i++) CLT_TMA_LOAD2(at + i * BLOCK_BYTES, map_a, m0 + i * 64, k0, bar);
#endif
    at += A_BYTES;
#if B_ALONG_K
    CLT_TMA_LOAD2(at, map_b, k0, n0, bar);
#else
#pragma unroll
    for (int i = 0; i < BN / 64; i++) CLT_TMA_LOAD2(at + i * BLOCK_BYTES, map_b, n0 + i * 64, k0, bar);
#endif
}

/* By one item: copies the operands of all tiles into the ring as soon as buffers are released, and with AHEAD
 * the later half of each tile's residual. */
ROLE void load_operands(const gemm_plan *plan, gemm_walk walk, uint ring_at, uint bars, ulong map_a,
                        ulong map_b, ulong map_residual)
{
    const uint full = bars, empty = bars + EMPTY_AT;
    uint stage = 0, parity = 1;
#if AHEAD
    CLT_MAP_ACQUIRE(map_residual);
#endif
    while (walk_next(plan, &walk)) {
        const uint2 place = tile_place(plan, walk.tile);
        const int m0 = (int)(place.x * BM), n0 = (int)(place.y * BN);
        for (uint s = walk.k0; s < walk.k1; s++) {
            CLT_BAR_WAIT(empty + stage * 8, parity);
            load_stage(ring_at + stage * STAGE_BYTES, full + stage * 8, map_a, map_b, (int)(s * BK), m0, n0);
            NEXT_STAGE;
        }
#if AHEAD
        for (int q = 0; q < 4 && walk.k0 == 0; q++) {
            if (!LATER(q)) continue;
            CLT_BAR_WAIT(empty + stage * 8, parity);
            load_later(ring_at + stage * STAGE_BYTES, full + stage * 8, map_residual, q, m0, n0);
            NEXT_STAGE;
        }
#endif
    }
}

/* --- multiplying --- */

#if !OWN
#define OWN_TILE
#define OWN_ASK
#define OWN_PIECE
#define OWN_END
#if CHUNKS == 3
#define LAST_RESULTS
#else
#define LAST_RESULTS RESULTS(3)
#endif
#endif
#if LOOKS_AHEAD
#define EACH_TILE                                                                                            \
    bool more_tiles = walk_next(plan, &walk);                                                                \
    for (gemm_walk next = walk; more_tiles; walk = next)
#define LOOK_AHEAD more_tiles = walk_next(plan, &next)
#else
#define EACH_TILE while (walk_next(plan, &walk))
#define LOOK_AHEAD
#endif
#if !(EP & ~CLT_EP_BIAS) && C_TYPE && BOXES == 4
#define ALL_RESULTS FILL_ALL
#else
#define ALL_RESULTS                                                                                          \
    RESULTS(0);                                                                                              \
    RESULTS(1);                                                                                              \
    RESULTS(2);                                                                                              \
    LAST_RESULTS
#endif
/* Step s of the products, once its boxes are loaded; it also releases the boxes of the previous step. `also`:
 * further products of the same boxes. */
#define STEP(also)                                                                                           \
    CLT_BAR_WAIT(full + stage * 8, parity);                                                                  \
    const uint at = ring_at + stage * STAGE_BYTES;                                                           \
    const ulong ma = TILE_A(at + half_ * MB * BLOCK_BYTES);                                                  \
    const ulong mb = TILE_B(at + A_BYTES);                                                                   \
    CLT_MMA_FENCE();                                                                                         \
    _Pragma("unroll") for (int i = 0; i < 4; i++)                                                            \
    _Pragma("unroll") for (int b = 0; b < MB; b++)                                                           \
        PRODUCT(b, i, i > 0 || s > walk.k0);                                                                 \
    also;                                                                                                    \
    CLT_MMA_COMMIT();                                                                                        \
    OWN_ASK;                                                                                                 \
    CLT_MMA_WAIT_ANY(1);                                                                                     \
    if (s > walk.k0 && RELEASES) CLT_BAR_ARRIVE(empty + before * 8);                                         \
    OWN_PIECE;                                                                                               \
    before = stage;                                                                                          \
    NEXT_STAGE
#define ADD_UP                                                                                               \
    _Pragma("unroll") for (int i = 0; i < BK / 16; i++)                                                      \
    _Pragma("unroll") for (int b = 0; b < MB; b++)                                                           \
        CLT_MMA_SS8(d[b] + SUM_AT, ma + b * (BLOCK_BYTES / 16) + i * NEXT_A, ones, TRANS_A)
#define CLEAR(first)                                                                                         \
    _Pragma("unroll") for (int b = 0; b < MB; b++)                                                           \
    _Pragma("unroll") for (int i = first; i < HELD; i++) d[b][i] = 0.0f
/* d = the products of a piece of a tile; those of the last step may be unfinished. With SUMS in two loops,
 * because the assembler serialises products if some are conditional. */
#if SUMS
#define MULTIPLY                                                                                             \
    const uint share = tile_place(plan, walk.tile).y;                                                        \
    uint ones_at = walk.k0 + (share + plan->tiles_n - walk.k0 % plan->tiles_n) % plan->tiles_n;              \
    CLEAR(SUM_AT);                                                                                           \
    for (uint s = walk.k0; s < walk.k1; s++) {                                                               \
        for (const uint stop = min(ones_at, walk.k1); s < stop; s++) { STEP(); }                             \
        if (s == walk.k1) break;                                                                             \
        STEP(ADD_UP);                                                                                        \
        ones_at += plan->tiles_n;                                                                            \
    }
#elif !SPLIT
#define MULTIPLY                                                                                             \
    for (uint s = walk.k0; s < walk.k1; s++) { STEP(); }
#endif
#if SPLIT
#define LAST_DONE
#else
#define LAST_DONE                                                                                            \
    ALL_DONE;                                                                                                \
    if (RELEASES) CLT_BAR_ARRIVE(empty + before * 8)
#endif

/* By the items of a multiplying warpgroup: its rows of all tiles. ones: the operand of ones (SUMS). */
ROLE void multiply_tiles(const gemm_plan *plan, gemm_walk walk, const gemm_results *out, __local char *ring,
                         __local char *boxes, uint bars, ulong ones, uint id, uint lane)
{
    const uint half_ = (id >> 7) - 1, item = id & 127, warp = item >> 5;
    const uint ring_at = CLT_LOCAL_ADDRESS(ring), full = bars, empty = bars + EMPTY_AT;
    const uint boxes_at = CLT_LOCAL_ADDRESS(boxes) + half_ * BOXES * BOX_BYTES;
    const uint filled = bars + FILLED_AT + half_ * BOXES * 8, sent = filled + KIND_BYTES;
#if FINISH
    const uint factor = sent + KIND_BYTES;
    uint box_parity = 0;
#endif
#if OWN
    gemm_own own = {(__local uint4 *)(boxes + (half_ * BOXES + 3) * BOX_BYTES) + warp * 128 + lane,
                    out->c, out->more, 0, 0, OWN_PIECES};
#endif
    const uint put_line = warp * 16 + (lane & 15), put_row = put_line * 128, put_block = lane >> 4,
               put_swizzle = put_line & 7;
    uint stage = 0, parity = 0, sent_parity = !AHEAD;
    float d[MB][HELD];
    CLEAR(0);
    EACH_TILE {
        uint before = 0;
        OWN_TILE;
        MULTIPLY
        LOOK_AHEAD; /* during the last products */
        LAST_DONE;
#if !SLICES
        if (walk.k0 > 0) {
            LEAVE_SUMS;
            leave_piece(d, out->part, out->flags, walk.piece.number, half_, item);
            continue;
        }
        add_pieces(d, plan, &walk, out->part, out->flags, half_, item);
#endif
#if EP & ~CLT_EP_ACCUMULATE
        const uint2 place = tile_place(plan, walk.tile);
        const uint i0 = place.x * BM + warp * 16 + lane / 4, j0 = place.y * BN + (lane & 3) * 2;
#endif
        ALL_RESULTS;
        LEAVE_SUMS;
#if FINISH
        box_parity ^= 1;
#endif
    }
#if SLICES
    for (uint lot = 0; lot < 2; lot++)
        add_slice(plan, lot, out->part, out->flags, (__local const float4 *)ring, ring_at, bars + SLICES_AT,
                  out->c.at, out->c.ld, id - 128);
#endif
    OWN_END;
}

/* --- the kernel --- */

#if FP8
#define MORE_ARGS                                                                                            \
    , __global const float *a_inverse, ulong a_inverse_off, __global const float *b_inverse, ulong b_inverse_off
#define MORE_RESULTS , a_inverse[a_inverse_off] * b_inverse[b_inverse_off], (uint)ldc & 3
#else
#define MORE_ARGS
#define MORE_RESULTS
#endif

/* Registers of the warpgroup that copies and finishes, and of those that multiply. */
#if FINISH
#define FEW_REGISTERS 104
#define MANY_REGISTERS 200
#elif SPLIT
#define FEW_REGISTERS 40
#define MANY_REGISTERS 232
#elif WGS == 3
#define FEW_REGISTERS 40
#define MANY_REGISTERS 152
#else
#define FEW_REGISTERS 56
#define MANY_REGISTERS 224
#endif
#if WGS == 3
#define SENDS(id) (id == 32 || id == 64 || id == 96)
#else
#define SENDS(id) (id == 32 || id == 64)
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
gemm_wgmma(PLAN_ARGS, __global const ulong *maps, ulong map_a, __global const ulong *maps_b, ulong map_b,
           __global const ulong *maps_c, ulong map_c, __global float4 *part, __global uint *flags,
           __global const ulong *maps_pre, ulong map_pre, __global clt_gemm_out *more, ulong more_off,
           ulong ldmore, __global const float *bias, ulong bias_off, __global const clt_gemm_aux *grad_pre,
           ulong grad_off, ulong ldgrad, __global const float *residual, ulong res_off, ulong ldres,
           __global const void *a_buffer, __global const void *b_buffer, __global clt_gemm_out *c,
           ulong c_off, ulong ldc, __global float *a_sum, ulong sum_off MORE_ARGS)
{
    __local char ring[RING_BYTES] __attribute__((aligned(1024)));
    __local char boxes[WGS * BOXES * BOX_BYTES] __attribute__((aligned(1024)));
    __local ulong barriers[BARS];
    ulong ones = 0;
#if SUMS
    __local uint ones_box[64] __attribute__((aligned(16))); /* 8 columns by 16 of k, for any 16 */
    ones = CLT_TILE_PLAIN(CLT_LOCAL_ADDRESS(ones_box));
#endif
    const gemm_plan plan = PLAN_INIT;
    const gemm_walk walk = walk_begin();
    const gemm_results out = {bias + bias_off, residual + res_off, grad_pre + grad_off, ldgrad, ldres, m, n,
                              {c + c_off, ldc}, {more + more_off, ldmore}, part, flags, a_sum + sum_off MORE_RESULTS};
    const uint id = (uint)get_local_id(0), lane = id & 31, bars = CLT_LOCAL_ADDRESS(barriers);
    if (id == 0) {
        init_barriers(bars);
        CLT_MAP_ACQUIRE(maps + map_a);
        CLT_MAP_ACQUIRE(maps_b + map_b);
    }
#if SUMS
    if (id < 64) ones_box[id] = IN_TYPE == 1 ? 0x3f803f80u : 0x3c003c00u; /* two elements of 1.0 */
    CLT_FENCE_ASYNC();
#endif
    CLT_GROUP_SYNC(0, ITEMS);
    if (id < 128) {
        CLT_REGISTERS_LESS(FEW_REGISTERS);
        if (id == 0)
            load_operands(&plan, walk, CLT_LOCAL_ADDRESS(ring), bars, (ulong)(maps + map_a),
                          (ulong)(maps_b + map_b), (ulong)(maps_pre + map_pre));
#if FINISH
        if (id >= 32)
            finish_results(&plan, walk, &out, boxes, bars, (ulong)(maps_pre + map_pre),
                           (ulong)(maps_c + map_c), id, lane);
#else
        if (SENDS(id))
            send_results(&plan, walk, &out, CLT_LOCAL_ADDRESS(boxes), bars, (ulong)(maps_c + map_c),
                         (ulong)(maps_pre + map_pre), (id >> 5) - 1);
#endif
    } else {
        CLT_REGISTERS_MORE(MANY_REGISTERS);
        multiply_tiles(&plan, walk, &out, ring, boxes, bars, ones, id, lane);
    }
}
