/* The backward pass of attention on AMD's matrix units, 16-bit types (README.md has the formula; sums are
 * added in another order here).
 *
 *   attention_delta        D of each row
 *   attention_backward_q   dq: a wave owns 16 query rows and processes blocks of keys
 *   attention_backward_kv  dk, dv: a wave owns 16 keys and processes the query heads of the group and their
 *                          rows
 *
 * The last two each recompute the scores: nothing is added across waves, so every run gives the same bits.
 * The owned rows are the columns of all tiles: scores and dp are computed as (other rows) x (own rows). So a
 * lane has one own row and, once rounded, its numbers have the layout of the operand of the sums over the
 * other rows (include/clt_tile16.clh), whose other operand is transposed in local memory.
 *
 * Numeric differences from the definition: p and ds are rounded to the element type before they are
 * multiplied; ds is multiplied by the scale, and p by the dropout's constant, at the end; exp is the device's
 * exp2; and within one block a value that is not finite affects rows that do not see it (0 * NaN). fp16's ds
 * is stored times a power of two that follows the largest of its column so far, because a matrix unit may
 * treat denormals as zero.
 *
 * Options: ROWS, ITEMS = ROWS / 16 waves, HEAD_DIM up to 128, TYPE (1, 2), features as in attention.clh.
 * Launch: local {ITEMS}, global {tiles * ITEMS, heads (backward_kv: key/value heads), batch};
 * attention_delta: attention_delta.clh.
 * Requires: mfma or wmma, numerics=fast. Compiled and run on an emulator, not timed on a GPU. */
#ifndef TYPE
#define TYPE 1
#endif
#include "attention_delta.clh"
#include "attention_pairs.clh"
#include "attention_tile16.clh"

#define SPAN (CLT_WAVE == 64 && HEAD_DIM > 64 ? 16 : 32) /* other rows of a block */
#define TURNED (SPAN + 8)   /* distance between rows of transposed tiles (CLT_AT) */
#define BLOCKS (SPAN / 4 * (DEPTH / 4)) /* of 4 x 4 numbers, in each tile */
/* Waves of 64 have the registers for the next block's numbers while the current one is used. An item has 4 x 4 numbers of one of
 * the two tensors. */
#define AHEAD (CLT_WAVE == 64 && 2 * BLOCKS <= ITEMS)
#define LOADS (2 * BLOCKS >= ITEMS || item < 2 * BLOCKS)
#define HELD (TILES * CLT_FRAG <= 32) /* own rows stay in registers */
/* The tiles of a block, in sequence if a wave of 32 would run out of registers. */
#if CLT_WAVE == 64
#define EACH_TILE CLT_EACH(x, SPAN / 16)
#else
#define EACH_TILE _Pragma("unroll 1") for (int x = 0; x < SPAN / 16; x++)
#endif

/* --- products over the head --- */

/* s += x own_x, dp += y own_y for tile t16 (16 other rows) of x and y in local memory and the lane's own rows.
 * The own rows are loaded from global memory each time if they would fill the registers. */
#if HELD
#define OWN(x, y)                                                                                            \
    clt_frag held_x[TILES], held_y[TILES];                                                                   \
    CLT_EACH(t, TILES)                                                                                       \
    {                                                                                                        \
        held_x[t] = frag_of_row(x, 16 * t + CLT_FRAG_K(lane), HEAD_DIM);                                     \
        held_y[t] = frag_of_row(y, 16 * t + CLT_FRAG_K(lane), HEAD_DIM);                                     \
    }
#define OWN_X(t) held_x[t]
#define OWN_Y(t) held_y[t]
#define EACH_DEPTH CLT_EACH(t, TILES)
#else
#define OWN(x, y) __global const ELEM *own_x = x, *own_y = y;
#define OWN_X(t) frag_of_row(own_x, 16 * t + CLT_FRAG_K(lane), HEAD_DIM)
#define OWN_Y(t) frag_of_row(own_y, 16 * t + CLT_FRAG_K(lane), HEAD_DIM)
#define EACH_DEPTH _Pragma("unroll 1") for (int t = 0; t < TILES; t++)
#endif
#define PRODUCTS(s, dp, x, y, t16)                                                                           \
    EACH_DEPTH                                                                                               \
    {                                                                                                        \
        s = CLT_TILE16(TYPE, clt_frag_at(x, PITCH, LENGTH, 0, t16, t, lane), OWN_X(t), s);                   \
        dp = CLT_TILE16(TYPE, clt_frag_at(y, PITCH, LENGTH, 0, t16, t, lane), OWN_Y(t), dp);                 \
    }

/* acc[t] += (transposed tile t16 of 16 other rows) x (16-bit numbers of the lane's column). */
#define ADD_UP(acc, turned, t16, column)                                                                     \
    CLT_EACH(t, TILES)                                                                                       \
    acc[t] = CLT_TILE16(TYPE, clt_frag_at(turned, TURNED, LENGTH_OF(SPAN), 0, t, t16, lane), column, acc[t]);

/* --- after the products --- */

static inline clt_acc_bits rounded(clt_acc x, float unit) { return clt_acc_rounded(x * unit, TYPE == 1); }

/* fp16: the power of two that multiplies ds in the products, so that the largest of the column so far is
 * below 2^15. If it has to decrease, the sums are scaled with it. */
#define UNIT_AT_FIRST 0x1p100f
static inline float unit_for(clt_acc ds, float unit, clt_acc *acc, int lane)
{
#if TYPE == 2
    float most = 0.0f;
    CLT_EACH(e, CLT_ACC) most = fmax(most, fabs(ds[e]));
    for (int mask = 16; mask < CLT_WAVE; mask *= 2) most = fmax(most, clt_lane_xor(most, lane, mask));
    /* 2^14 over the power of two below `most`; 2^-114 for an infinity. */
    const float u = as_float((127 + 14 + 127 - max(as_uint(most) >> 23, 41u)) << 23);
    if (u < unit) {
        const float ratio = u / unit;
        CLT_EACH(t, TILES) acc[t] = acc[t] * ratio;
        return u;
    }
    return unit;
#else
    return 1.0f;
#endif
}

/* --- kernels --- */

/* Block e, 4 rows at 4 places of the head, of x: from memory, zeros beyond `there` rows and the head, ... All items take one way:
 * otherwise some loads wait for others. */
static inline void fetch_block(ushort4 block[4], __global const ELEM *x, uint ldx, int there, int e)
{
    const int r = e / (DEPTH / 4) * 4, d = e % (DEPTH / 4) * 4;
    if (HEAD_DIM == DEPTH && there >= SPAN) {
        clt_block4_fetch(block, x + (size_t)r * ldx + d, ldx, 4, 4);
    } else {
        clt_block4_fetch(block, x + (size_t)r * ldx + d, ldx, there - r, HEAD_DIM - d);
        clt_block4_arrived(block);
    }
}
/* ... and into its tile, unchanged, and into the transposed tile, if `turn`. */
static inline void put_block(__local ushort *tile, __local ushort *turned, bool turn, const ushort4 block[4], int e)
{
    const int r = e / (DEPTH / 4) * 4, d = e % (DEPTH / 4) * 4;
    clt_block4_put(tile + CLT_AT(PITCH, LENGTH, r, d), PITCH, block, false);
    if (turn) clt_block4_put(turned + CLT_AT(TURNED, LENGTH_OF(SPAN), d, r), TURNED, block, true);
}

/* In a loop over blocks of other rows: BLOCK_FIRST before it, BLOCK_LOAD where the tiles are free, BLOCK_NEXT when they are
 * filled. X(at), X_LD: the rows of the first tensor from `at` on; X_TILES: the first three arguments of put_block; Y of the
 * second tensor. */
#if AHEAD
#define BLOCK_FETCH(at)                                                                                      \
    if (LOADS) fetch_block(block, mine_second ? Y(at) : X(at), mine_second ? Y_LD : X_LD, (int)min((size_t)SPAN, seq - (at)), item % BLOCKS);
#define BLOCK_FIRST(at)                                                                                      \
    const bool mine_second = item >= BLOCKS;                                                                 \
    ushort4 block[4];                                                                                        \
    BLOCK_FETCH(at)
#define BLOCK_LOAD(at)                                                                                       \
    if (LOADS) {                                                                                             \
        if (mine_second)                                                                                     \
            put_block(Y_TILES, block, item - BLOCKS);                                                        \
        else                                                                                                 \
            put_block(X_TILES, block, item);                                                                 \
    }
#define BLOCK_NEXT(at, end)                                                                                  \
    if ((at) < (end)) BLOCK_FETCH(at)
#else
#define BLOCK_FIRST(at)
#define BLOCK_LOAD(at)                                                                                       \
    _Pragma("unroll 1") for (int e = item; e < BLOCKS; e += ITEMS)                                           \
    {                                                                                                        \
        ushort4 block[4];                                                                                    \
        fetch_block(block, X(at), X_LD, (int)min((size_t)SPAN, seq - (at)), e);                              \
        put_block(X_TILES, block, e);                                                                        \
        fetch_block(block, Y(at), Y_LD, (int)min((size_t)SPAN, seq - (at)), e);                              \
        put_block(Y_TILES, block, e);                                                                        \
    }
#define BLOCK_NEXT(at, end)
#endif

/* p and ds are 0 for pairs that do not exist: the tile's numbers outside [from, to), counted from the lane's first row of it. With
 * sequence ids PAIR does that for each pair. */
#define MASK(p, ds, from, to)                                                                                \
    CLT_EACH(r, CLT_ACC)                                                                                     \
    {                                                                                                        \
        const int place = CLT_ACC_ROW(0, r);                                                                 \
        if (!(place >= (from) && place < (to))) p[r] = ds[r] = 0.0f;                                         \
    }

#define BACKWARD_ARGS                                                                                        \
    ATTENTION_ARGS, __global const float *lse, ulong lse_off, __global const float *delta,                   \
        __global const ELEM *dout, ulong dout_off, uint lddout

#define X(at) (kh + (at)*ldk)
#define X_LD ldk
#define X_TILES k_tile, k_turned, true
#define Y(at) (vh + (at)*ldv)
#define Y_LD ldv
#define Y_TILES v_tile, v_tile, false
/* dq += the 16 keys of tile x of the block. */
#define Q_TILE                                                                                               \
    {                                                                                                        \
        const size_t from = j0 + 16 * x;                                                                     \
        if (from >= attention_end(first_row + 15, seq, window) ||                                            \
            from + 15 < attention_first(first_row, window))                                                  \
            continue;                                                                                        \
        const bool all = SEQ_IDS || clt_uniform(from + 15 < attention_end(first_row, seq, window) &&         \
                                                 from >= attention_first(first_row + 15, window));           \
        clt_acc s = (clt_acc)(0.0f), dp = s;                                                                 \
        PRODUCTS(s, dp, k_tile, v_tile, x)                                                                   \
        const int first_place = (int)from + CLT_ACC_ROW(lane, 0);                                            \
        CLT_EACH(r, CLT_ACC)                                                                                 \
        {                                                                                                    \
            const size_t j = first_place + CLT_ACC_ROW(0, r);                                                \
            PAIR(s[r], dp[r], i, j, lse_i, delta_i, !SEQ_IDS, CLT_EXP2)                                      \
        }                                                                                                    \
        if (!all)                                                                                            \
            MASK(s, dp, first_j - first_place, end_j - first_place)                                          \
        unit = unit_for(dp, unit, acc, lane);                                                                \
        ADD_UP(acc, k_turned, x, clt_frag_of_acc(rounded(dp, unit), lane))                                   \
    }

__kernel CLT_TILE16_KERNEL(ITEMS) void
attention_backward_q(BACKWARD_ARGS, __global ELEM *dq, ulong dq_off, uint lddq)
{
    __local ushort k_tile[SPAN * PITCH] __attribute__((aligned(16)));
    __local ushort v_tile[SPAN * PITCH] __attribute__((aligned(16)));
    __local ushort k_turned[DEPTH * TURNED] __attribute__((aligned(16)));
    const int item = (int)get_local_id(0), lane = item % CLT_WAVE, wave = item / CLT_WAVE;
    const size_t h = get_group_id(1), b = get_group_id(2), base = b * seq;
    const size_t i0 = (get_num_groups(0) - 1 - get_group_id(0)) * ROWS, first_row = i0 + 16 * wave;
    const size_t i = first_row + lane % 16, mine = min(i, (size_t)seq - 1);
    __global const ELEM *kh = k + k_off + base * ldk + h / group * HEAD_DIM;
    __global const ELEM *vh = v + v_off + base * ldv + h / group * HEAD_DIM;
    const float slope = SLOPE(h);
    const float lse_i = lse[lse_off + (b * heads + h) * seq + mine], delta_i = delta[(b * heads + h) * seq + mine];
    seq_ids_off += base;
    OWN(q + q_off + (base + mine) * ldq + h * HEAD_DIM, dout + dout_off + (base + mine) * lddout + h * HEAD_DIM)

    clt_acc acc[TILES];
    CLT_EACH(t, TILES) acc[t] = (clt_acc)(0.0f);
    float unit = UNIT_AT_FIRST;
    const size_t end = attention_end(min(i0 + ROWS, (size_t)seq) - 1, seq, window);
    const int first_j = (int)attention_first(i, window), end_j = (int)attention_end(i, seq, window);
    size_t j0 = attention_first(i0, window) / SPAN * SPAN;
    BLOCK_FIRST(j0)
    for (; j0 < end; j0 = clt_uniform((uint)j0 + SPAN)) {
        barrier(CLK_LOCAL_MEM_FENCE);
        BLOCK_LOAD(j0)
        barrier(CLK_LOCAL_MEM_FENCE);
        BLOCK_NEXT(j0 + SPAN, end)
        EACH_TILE Q_TILE
    }
    if (i >= seq) return;
    dq += dq_off + (base + i) * lddq + h * HEAD_DIM;
    put_row(acc, 1.0f / unit, scale, false, dq, lane);
}

#undef X
#undef X_LD
#undef X_TILES
#undef Y
#undef Y_LD
#undef Y_TILES

#define X(at) (qh + (at)*ldq)
#define X_LD ldq
#define X_TILES q_tile, q_turned, true
#define Y(at) (dh + (at)*lddout)
#define Y_LD lddout
#define Y_TILES dout_tile, dout_turned, true
/* The statistics of the row at + item, into registers. */
#define FETCH_ROW(at)                                                                                        \
    if (item < SPAN) {                                                                                       \
        const size_t place = (b * heads + h) * seq + min((at) + item, (size_t)seq - 1);                      \
        next_lse = lse[lse_off + place];                                                                     \
        next_delta = delta[place];                                                                           \
    }
#define PUT_ROW                                                                                              \
    if (item < SPAN) {                                                                                       \
        lse_tile[item] = next_lse;                                                                           \
        delta_tile[item] = next_delta;                                                                       \
    }
/* dk and dv += the 16 rows of tile x of the block. */
#define KV_TILE                                                                                              \
    {                                                                                                        \
        const size_t from = i0 + 16 * x;                                                                     \
        if (from + 15 < attention_first_row(first_key, window) ||                                            \
            attention_first(from, window) > first_key + 15)                                                  \
            continue;                                                                                        \
        const bool all = SEQ_IDS || clt_uniform(from + 15 < attention_end_row(first_key, seq, window) &&     \
                                                 from >= attention_first_row(first_key + 15, window));       \
        clt_acc s = (clt_acc)(0.0f), dp = s;                                                                 \
        PRODUCTS(s, dp, q_tile, dout_tile, x)                                                                \
        const int first_place = (int)from + CLT_ACC_ROW(lane, 0);                                            \
        CLT_EACH(r, CLT_ACC)                                                                                 \
        {                                                                                                    \
            const int row = first_place - (int)i0 + CLT_ACC_ROW(0, r);                                       \
            const size_t i = first_place + CLT_ACC_ROW(0, r);                                                \
            PAIR(s[r], dp[r], i, j, lse_tile[row], delta_tile[row], !SEQ_IDS, CLT_EXP2)                      \
        }                                                                                                    \
        if (!all)                                                                                            \
            MASK(s, dp, first_i - first_place, end_i - first_place)                                          \
        ADD_UP(acc_v, dout_turned, x, clt_frag_of_acc(rounded(s, (float)(1 << SHIFT)), lane))                \
        unit = unit_for(dp, unit, acc_k, lane);                                                              \
        ADD_UP(acc_k, q_turned, x, clt_frag_of_acc(rounded(dp, unit), lane))                                 \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_backward_kv(BACKWARD_ARGS, __global ELEM *dk, ulong dk_off, uint lddk, __global ELEM *dv, ulong dv_off, uint lddv,
                      uint add)
{
    __local ushort q_tile[SPAN * PITCH] __attribute__((aligned(16)));
    __local ushort dout_tile[SPAN * PITCH] __attribute__((aligned(16)));
    __local ushort q_turned[DEPTH * TURNED] __attribute__((aligned(16)));
    __local ushort dout_turned[DEPTH * TURNED] __attribute__((aligned(16)));
    __local float lse_tile[SPAN], delta_tile[SPAN];
    const int item = (int)get_local_id(0), lane = item % CLT_WAVE, wave = item / CLT_WAVE;
    const size_t g = get_group_id(1), b = get_group_id(2), base = b * seq, j0 = get_group_id(0) * ROWS;
    const size_t first_key = j0 + 16 * wave, j = first_key + lane % 16, mine = min(j, (size_t)seq - 1);
    seq_ids_off += base;
    OWN(k + k_off + (base + mine) * ldk + g * HEAD_DIM, v + v_off + (base + mine) * ldv + g * HEAD_DIM)

    clt_acc acc_k[TILES], acc_v[TILES];
    CLT_EACH(t, TILES) acc_k[t] = acc_v[t] = (clt_acc)(0.0f);
    float unit = UNIT_AT_FIRST;
    const size_t end = attention_end_row(j0 + ROWS - 1, seq, window);
    const int first_i = (int)attention_first_row(j, window), end_i = (int)attention_end_row(j, seq, window);
    for (size_t h = g * group; h < (g + 1) * group; h++) {
        __global const ELEM *qh = q + q_off + base * ldq + h * HEAD_DIM;
        __global const ELEM *dh = dout + dout_off + base * lddout + h * HEAD_DIM;
        const float slope = SLOPE(h);
        size_t i0 = attention_first_row(j0, window) / SPAN * SPAN;
        float next_lse, next_delta;
        BLOCK_FIRST(i0)
        if (AHEAD) FETCH_ROW(i0)
        for (; i0 < end; i0 = clt_uniform((uint)i0 + SPAN)) {
            barrier(CLK_LOCAL_MEM_FENCE);
            BLOCK_LOAD(i0)
            if (!AHEAD) FETCH_ROW(i0)
            PUT_ROW
            barrier(CLK_LOCAL_MEM_FENCE);
            BLOCK_NEXT(i0 + SPAN, end)
            if (AHEAD) FETCH_ROW(i0 + SPAN)
            EACH_TILE KV_TILE
        }
    }
    if (j >= seq) return;
    dk += dk_off + (base + j) * lddk + g * HEAD_DIM;
    dv += dv_off + (base + j) * lddv + g * HEAD_DIM;
    put_row(acc_k, 1.0f / unit, scale, add, dk, lane);
    put_row(acc_v, (DROPOUT ? drop_scale : 1.0f) / (1 << SHIFT), 1.0f, add, dv, lane);
}
