/* The backward pass of attention on NVIDIA's matrix units from sm_80 on, by mma.sync, 16-bit types (README.md has
 * the formula; sums are added in another order here).
 *
 *   attention_delta        D of each row
 *   attention_backward_q   dq: a warp owns query rows, the other rows are keys
 *   attention_backward_kv  dk, dv: a warp owns keys, the other rows are the queries of the group's heads
 *   attention_backward_kept  with KEEP_DS: dq from the ds that attention_backward_kv stores (attention_mma_kept.clh)
 *
 * attention_backward_q computes the scores again. Nothing is added across warps, so every run gives the same bits.
 * Own rows stay in local memory, or their operands in registers. Blocks of SPAN other rows come through two places,
 * one block ahead. Blocks in which a warp sees every pair take a path without masks.
 *
 * Numeric differences from the definition: p and ds are rounded to the element type before they are multiplied;
 * ds is multiplied by the scale, and p by the dropout's constant, at the end; exp is the device's exp2, and scores
 * are scaled for it; dp starts from -D; and within one block a value that is not finite affects rows that do not
 * see it (0 * NaN). fp16's ds is stored times a power of two that follows the largest of its row so far, because
 * fp16 has few exponents.
 *
 * Options: MT, tiles of 16 own rows of a warp; ROWS, a multiple of 64 with KEEP_DS; ITEMS = 2 ROWS / MT; SPAN, a
 * multiple of 16, and STEP, a divisor of it: how many of them are computed at once (SPAN if absent). OWN=1, KV_OWN=1
 * or 2: attention_backward_q, attention_backward_kv keeps operands of its own rows in registers (1: of k; 2: of k
 * and v). KEEP_DS=1: bf16, causal mask, no window. SHARE=1: blocks take the local memory of own rows; not with dropout,
 * softcap or sequence ids. HEAD_DIM up to 128, a multiple of 8, TYPE (1, 2), features as in
 * attention.clh.
 * Launch: local {ITEMS}, global {tiles * ITEMS, heads (backward_kv: key/value heads), batch}; attention_delta: local
 * {64}, global {T rounded up to 64, heads, batch}.
 * Requires: PTX with mma.sync m16n8k16, ldmatrix and cp.async; all rows at multiples of 16 bytes; local memory of
 * (2 ROWS + 4 SPAN) * UNITS * 16 + 16 SPAN bytes (SHARE: the larger term of the sum in brackets), and with KEEP_DS
 * 3 (4 ROWS + 16 UNITS) * SPAN (ROWS: ITEMS). */
#ifndef TYPE
#define TYPE 1
#endif
#ifndef ROWS
#define ROWS 128
#define ITEMS 128
#define MT 2
#define SPAN 32
#endif
#ifndef STEP
#define STEP SPAN
#endif
#ifndef KEEP_DS
#define KEEP_DS 0
#endif
/* Features that need registers get those of operands and of rows that are computed at once. */
#if DROPOUT || SEQ_IDS || WINDOW || SOFTCAP
#undef OWN
#undef KV_OWN
#undef STEP
#define STEP 16
#endif
#ifndef OWN
#define OWN 0
#endif
#ifndef KV_OWN
#define KV_OWN 0
#endif
#ifndef SHARE
#define SHARE 0
#endif
#if SHARE && (KV_OWN != 2 || !KEEP_DS)
#error "SHARE needs KEEP_DS and KV_OWN=2, which some features exclude"
#endif
#include "attention_mma.clh"
#include "attention_mma_backward.clh"

#define PAIR_SUM(x, y)                                                                                       \
    fma(GET((ushort)(x)), GET((ushort)(y)), GET((ushort)((x) >> 16)) * GET((ushort)((y) >> 16)))

#define BACKWARD_ARGS                                                                                        \
    ATTENTION_ARGS, __global const float *lse, ulong lse_off, __global const float *delta,                   \
        __global const ELEM *dout, ulong dout_off, uint lddout

/* delta[b, h, i] = sum over the head of dout * o, for 64 rows; an item adds up 8 numbers of a row. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
attention_delta(__global const ELEM *dout, ulong dout_off, uint lddout, __global const ELEM *o, ulong o_off, uint ldo,
                __global float *delta, uint seq, uint heads)
{
    __local uint4 none[1];
    CLT_MMA_LOCAL(none, 64)
    const uint item = (uint)get_local_id(0), unit = item % UNITS, i0 = (uint)get_group_id(0) * 64;
    const size_t h = get_group_id(1), b = get_group_id(2);
    EACH(f, UNITS)
    {
        const uint i = i0 + item / UNITS + f * (64 / UNITS);
        float sum = 0.0f;
        if (i < seq && unit * 8 < HEAD_DIM) {
            const size_t row = b * seq + i, at = h * HEAD_DIM + unit * 8;
            const uint4 x = *(__global const uint4 *)(dout + dout_off + row * lddout + at);
            const uint4 y = *(__global const uint4 *)(o + o_off + row * ldo + at);
            sum = PAIR_SUM(x.x, y.x) + PAIR_SUM(x.y, y.y) + (PAIR_SUM(x.z, y.z) + PAIR_SUM(x.w, y.w));
        }
        for (uint d = 1; d < UNITS; d *= 2) sum = sum + CLT_SWAP(sum, d);
        if (unit == 0 && i < seq) delta[(b * heads + h) * seq + i] = sum;
    }
}

#define LOAD_BLOCK(stage, j)                                                                                 \
    COPY_TILE(PLACE(stage), SPAN, kh + (size_t)(j)*ldk, ldk, seq - (j))                                      \
    COPY_TILE(PLACE(stage) + TILE_BYTES, SPAN, vh + (size_t)(j)*ldv, ldv, seq - (j))
#define QUERY_PAIRS(j, seen)                                                                                 \
    EACH(x, MT) EACH(y, STEP / 8) EACH(e, 4)                                                                 \
    {                                                                                                        \
        const uint i_ = i0 + own + 16 * x + 8 * (e / 2) + lane / 4, j_ = (j) + 8 * y + lane % 4 * 2 + e % 2; \
        WEIGHTS(s[x][y][e], dp[x][y][e], i_, j_, lse_i[x][e / 2], delta_i[x][e / 2], seen)                   \
    }
/* The keys from j on. */
#define QUERY_STEP(j)                                                                                        \
    {                                                                                                        \
        const uint place = PLACE(stage) + ((j)-j0) * ROW_BYTES, from = i0 + own, to = from + 16 * MT;        \
        if (!sees_any(from, to, j, (j) + STEP, seq, window)) continue;                                       \
        float s[MT][STEP / 8][4], dp[MT][STEP / 8][4];                                                       \
        EACH(x, MT) EACH(y, STEP / 8) EACH(e, 4)                                                             \
            s[x][y][e] = 0.0f, dp[x][y][e] = DP_AT_FIRST(delta_i[x][e / 2]);                                 \
        PRODUCTS(s, dp, place)                                                                               \
        if (sees_all(from, to, j, (j) + STEP, seq, window)) QUERY_PAIRS(j, true)                             \
        else QUERY_PAIRS(j, false)                                                                           \
        SCALE_ROWS(dp, unit, acc)                                                                            \
        ADD_UP(acc, dp, place, NOTHING)                                                                      \
    }
#if OWN
#define OWN_OPERANDS(t) uint (*fx)[4] = all_x[t], (*fz)[4] = all_z[t];
#else
#define OWN_OPERANDS(t) LOAD_OWN_OPERANDS(t)
#endif

#if !KEEP_DS
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_backward_q(BACKWARD_ARGS, __global ELEM *dq, ulong dq_off, uint lddq)
{
    __local uint4 tiles[PLACE(2) / 16] __attribute__((aligned(128)));
    CLT_MMA_LOCAL(tiles, ITEMS)
    ITEM_PLACE
    const size_t h = get_group_id(1), b = get_group_id(2), base = b * seq;
    const uint i0 = (uint)(get_num_groups(0) - 1 - get_group_id(0)) * ROWS;
    __global const ELEM *kh = k + k_off + base * ldk + h / group * HEAD_DIM;
    __global const ELEM *vh = v + v_off + base * ldv + h / group * HEAD_DIM;
    const float slope = SLOPE(h), factor2 = SCORE_FACTOR;
    const uint end = attention_end(min(i0 + ROWS, seq) - 1, seq, window);
    seq_ids_off += base;
    float lse_i[MT][2], delta_i[MT][2], unit[MT][2], acc[MT][2 * TILES][4];
    EACH(x, MT)
    {
        EACH(side, 2)
        {
            const uint i = i0 + own + 16 * x + 8 * side + lane / 4;
            const size_t at = (b * heads + h) * seq + min(i, seq - 1);
            lse_i[x][side] = lse[lse_off + at] * LOG2E;
            delta_i[x][side] = delta[at];
            unit[x][side] = UNIT_AT_FIRST;
        }
        EACH(d, 2 * TILES) EACH(e, 4) acc[x][d][e] = 0.0f;
    }

    uint j0 = attention_first(i0, window) / SPAN * SPAN;
    COPY_ROWS(X_AT, ROWS, q + q_off + (base + i0) * ldq + h * HEAD_DIM, ldq, seq - i0)
    COPY_ROWS(Z_AT, ROWS, dout + dout_off + (base + i0) * lddout + h * HEAD_DIM, lddout, seq - i0)
    LOAD_BLOCK(0, j0)
    CLT_COPY_COMMIT();
#if OWN
    OWN_ARRAYS(true)
#endif
    for (uint stage = 0; j0 < end; j0 += SPAN, stage ^= 1) {
        ITEM_PLACE
        CLT_COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (j0 + SPAN < end) { LOAD_BLOCK(stage ^ 1, j0 + SPAN) }
        CLT_COPY_COMMIT();
        for (uint j = j0; j < j0 + SPAN; j += STEP) QUERY_STEP(j)
    }
    EACH(x, MT) EACH(side, 2)
    {
        const uint i = i0 + own + 16 * x + 8 * side + lane / 4;
        if (i >= seq) continue;
        const float factor = (TYPE == 2 ? 1.0f / unit[x][side] : 1.0f) * scale;
        PUT_ROW(acc[x], side, factor, false, dq + dq_off + (base + i) * lddq + h * HEAD_DIM)
    }
}
#endif

#undef OWN_OPERANDS
#if KV_OWN == 2
#define OWN_OPERANDS(t) uint (*fx)[4] = all_x[t], (*fz)[4] = all_z[t];
#elif KV_OWN == 1
#define OWN_OPERANDS(t)                                                                                      \
    uint (*fx)[4] = all_x[t], fz[MT][4];                                                                     \
    EACH(x, MT) LOAD_OWN(fz[x], Z_AT, 16 * x, t);
#else
#define OWN_OPERANDS(t) LOAD_OWN_OPERANDS(t)
#endif
/* With KEEP_DS a launch is over the samples from first_sample on, and kept has their ds. */
#if KEEP_DS
#define KEPT_ARGS , __global uint *kept, ulong kept_off, uint first_sample
#else
#define KEPT_ARGS
#define first_sample 0
#endif

/* As HEAD_PLACE, for a key/value head. */
#define GROUP_PLACE                                                                                          \
    const size_t g = CLT_ANEW((uint)get_group_id(1)), b = CLT_ANEW((uint)get_group_id(2)) + first_sample,        \
                 base = b * seq;

/* The rows from i_ on of head h_. */
#define LOAD_QUERIES(stage, h_, i_)                                                                          \
    {                                                                                                        \
        COPY_TILE(PLACE(stage), SPAN, q + q_off + (base + i_) * ldq + h_ * HEAD_DIM, ldq, seq - i_)          \
        COPY_TILE(PLACE(stage) + TILE_BYTES, SPAN, dout + dout_off + (base + i_) * lddout + h_ * HEAD_DIM,   \
                  lddout, seq - i_)                                                                          \
    }
/* The item's one of the block's 2 SPAN statistics: lse times log2(e) of each row, then D of each. */
#define STATS_OF(h_, i_)                                                                                     \
    {                                                                                                        \
        const size_t at_ = (b * heads + h_) * seq + min(i_ + item % SPAN, seq - 1);                          \
        if (item < SPAN) stat = lse[lse_off + at_] * LOG2E;                                                  \
        else if (item < 2 * SPAN) stat = delta[at_];                                                         \
    }
#define PUT_STATS(stage)                                                                                     \
    if (item < 2 * SPAN) STATS(stage)[item] = stat;
#define KEY_PAIRS(i, seen)                                                                                   \
    EACH(y, STEP / 8) EACH(f, 2)                                                                             \
    {                                                                                                        \
        const uint row = 8 * y + lane % 4 * 2 + f, i_ = (i) + row;                                           \
        const float lse_i = stats[row], delta_i = stats[SPAN + row];                                         \
        EACH(x, MT) EACH(side, 2)                                                                            \
        {                                                                                                    \
            const uint j_ = j0 + own + 16 * x + 8 * side + lane / 4;                                         \
            WEIGHTS(s[x][y][2 * side + f], dp[x][y][2 * side + f], i_, j_, lse_i, delta_i, seen)             \
            s[x][y][2 * side + f] = s[x][y][2 * side + f] * (float)(1 << SHIFT);                             \
        }                                                                                                    \
    }
/* SKIPS: whether the warp skips the queries from i on. With KEEP_DS all tiles of ds on and below the diagonal are
 * written. ADD_KEYS: acc_k += ds q. */
#if KEEP_DS
#define STORED(i) (ROWS == 64 || (j0 + own) / 64 <= (i) / 64)
#define SKIPS(i) (!CLT_EMULATED && !STORED(i))
#define KEEP(r, x, y)                                                                                        \
    if (!CLT_EMULATED || stored) EACH(e, 4) kept_at[KEPT_WORD(x, y) + 32 * e] = (r)[e];
#define ADD_KEYS(i)                                                                                          \
    const bool stored = STORED(i);                                                                           \
    const size_t head = (b - first_sample) * heads + h;                                                      \
    __global uint *const kept_at = kept + kept_off + KEPT_TILE(head, i, j0 + own) + lane;                    \
    ADD_UP(acc_k, dp, place, KEEP)
#else
#define SKIPS(i) (!sees_any(i, (i) + STEP, j0 + own, j0 + own + 16 * MT, seq, window))
#define ADD_KEYS(i) ADD_UP(acc_k, dp, place, NOTHING)
#endif
/* The queries from i on. */
#define KEY_STEP(i)                                                                                          \
    {                                                                                                        \
        const uint place = PLACE(stage) + ((i)-from) * ROW_BYTES;                                            \
        __local const float *const stats = STATS(stage) + ((i)-from);                                        \
        if (SKIPS(i)) continue;                                                                              \
        float s[MT][STEP / 8][4], dp[MT][STEP / 8][4];                                                       \
        EACH(y, STEP / 8) EACH(f, 2)                                                                         \
        {                                                                                                    \
            const float delta_i = stats[SPAN + 8 * y + lane % 4 * 2 + f];                                    \
            EACH(x, MT) EACH(side, 2)                                                                        \
                s[x][y][2 * side + f] = 0.0f, dp[x][y][2 * side + f] = DP_AT_FIRST(delta_i);                 \
        }                                                                                                    \
        PRODUCTS(s, dp, place)                                                                               \
        if (sees_all(i, (i) + STEP, j0 + own, j0 + own + 16 * MT, seq, window)) KEY_PAIRS(i, true)           \
        else KEY_PAIRS(i, false)                                                                             \
        ADD_UP(acc_v, s, place + TILE_BYTES, NOTHING)                                                        \
        SCALE_ROWS(dp, unit, acc_k)                                                                          \
        ADD_KEYS(i)                                                                                          \
    }
/* The rows that exist, to dk and dv. */
#define PUT_KEYS(acc_k, acc_v, unit)                                                                         \
    EACH(x, MT) EACH(side, 2)                                                                                \
    {                                                                                                        \
        GROUP_PLACE                                                                                          \
        ITEM_PLACE                                                                                           \
        const uint j = j0 + own + 16 * x + 8 * side + lane / 4;                                              \
        if (j >= seq) continue;                                                                              \
        const float factor = (TYPE == 2 ? 1.0f / unit[x][side] : 1.0f) * scale;                              \
        PUT_ROW(acc_k[x], side, factor, add, dk + dk_off + (base + j) * lddk + g * HEAD_DIM)                 \
        PUT_ROW(acc_v[x], side, (DROPOUT ? drop_scale : 1.0f) / (1 << SHIFT), add,                           \
                dv + dv_off + (base + j) * lddv + g * HEAD_DIM)                                              \
    }

/* Starts to copy the first block. */
#define START_QUERIES                                                                                        \
    if (first < end) {                                                                                       \
        float stat = 0.0f;                                                                                   \
        LOAD_QUERIES(0, h, from)                                                                             \
        STATS_OF(h, from)                                                                                    \
        PUT_STATS(0)                                                                                         \
    }                                                                                                        \
    CLT_COPY_COMMIT();

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_backward_kv(BACKWARD_ARGS, __global ELEM *dk, ulong dk_off, uint lddk, __global ELEM *dv, ulong dv_off,
                      uint lddv, uint add KEPT_ARGS)
{
    __local uint4 tiles[(STATS_AT + STATS_BYTES) / 16] __attribute__((aligned(128)));
    CLT_MMA_LOCAL(tiles, ITEMS)
    ITEM_PLACE
    GROUP_PLACE
    const uint j0 = (uint)get_group_id(0) * ROWS, first = attention_first_row(j0, window) / SPAN * SPAN;
    const uint end = attention_end_row(min(j0 + ROWS, seq) - 1, seq, window);
    const float factor2 = SCORE_FACTOR;
    seq_ids_off += base;
    float unit[MT][2], acc_k[MT][2 * TILES][4], acc_v[MT][2 * TILES][4];
    EACH(x, MT)
    {
        EACH(side, 2) unit[x][side] = UNIT_AT_FIRST;
        EACH(d, 2 * TILES) EACH(e, 4) acc_k[x][d][e] = acc_v[x][d][e] = 0.0f;
    }

    COPY_ROWS(X_AT, ROWS, k + k_off + (base + j0) * ldk + g * HEAD_DIM, ldk, seq - j0)
    COPY_ROWS(Z_AT, ROWS, v + v_off + (base + j0) * ldv + g * HEAD_DIM, ldv, seq - j0)
    uint h = (uint)g * group, from = first;
#if SHARE
    CLT_COPY_COMMIT();
    OWN_ARRAYS(true)
    barrier(CLK_LOCAL_MEM_FENCE);
    START_QUERIES
#else
    START_QUERIES
#if KV_OWN
    OWN_ARRAYS(KV_OWN == 2)
#endif
#endif
    uint stage = 0, next_h = h;
    for (uint next = from; first < end && h < (g + 1) * group; stage ^= 1, from = next, h = next_h) {
        GROUP_PLACE
        ITEM_PLACE
        CLT_COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        const bool turns = from + SPAN >= end;
        float stat = 0.0f;
        next = turns ? first : from + SPAN;
        next_h = h + turns;
        if (next_h < (g + 1) * group) {
            LOAD_QUERIES(stage ^ 1, next_h, next)
            STATS_OF(next_h, next)
        }
        CLT_COPY_COMMIT();
        const float slope = SLOPE(h);
        for (uint i = from; i < from + SPAN; i += STEP) KEY_STEP(i)
        PUT_STATS(stage ^ 1)
    }
    PUT_KEYS(acc_k, acc_v, unit)
}

#if KEEP_DS
#include "attention_mma_kept.clh"
#endif
