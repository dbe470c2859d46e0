/* The backward pass of attention on NVIDIA's matrix units from sm_80 on, by mma.sync, 16-bit types (README.md has
 * the formula; sums are added in another order here).
 *
 *   attention_delta        D of each row
 *   attention_backward_q   dq: a warp owns 16 query rows, the other rows are keys
 *   attention_backward_kv  dk, dv: a warp owns 16 keys, the other rows are the queries of the group's heads
 *
 * The last two each recompute the scores: nothing is added across warps, so every run gives the same bits. Own
 * rows stay in local memory. Blocks of SPAN other rows come through two places, one block ahead.
 *
 * Numeric differences from the definition: p and ds are rounded to the element type before they are multiplied;
 * ds is multiplied by the scale, and p by the dropout's constant, at the end; exp is the device's exp2; and
 * within one block a value that is not finite affects rows that do not see it (0 * NaN). fp16's ds is stored
 * times a power of two that follows the largest of its row so far, because fp16 has few exponents.
 *
 * Options: ROWS, ITEMS = 2 ROWS, SPAN, a multiple of 16, HEAD_DIM up to 128, a multiple of 8, TYPE (1, 2), features as in attention.clh.
 * Launch: local {ITEMS}, global {tiles * ITEMS, heads (backward_kv: key/value heads), batch}; attention_delta:
 * attention_delta.clh.
 * Requires: PTX with mma.sync m16n8k16, ldmatrix and cp.async; all rows at multiples of 16 bytes; local memory of
 * (2 ROWS + 4 SPAN) * UNITS * 16 bytes. */
#ifndef TYPE
#define TYPE 1
#endif
#ifndef ROWS
#define ROWS 64
#define ITEMS 128
#define SPAN 16
#endif
#define MT 1
#include "attention_mma.clh"
#include "attention_delta.clh"
#include "attention_pairs.clh"

#define X_AT 0 /* own rows: q or k, dout or v */
#define Z_AT (ROWS * ROW_BYTES)
#define PLACE(stage) (2 * ROWS * ROW_BYTES + (stage) * 2 * TILE_BYTES) /* other rows: two tiles */
#define TILE_BYTES (SPAN * ROW_BYTES)
/* Probabilities are stored times 2^SHIFT: fp16's denormals are then below 2^-27. */
#define SHIFT (TYPE == 2 ? 13 : 0)

/* s = x y^T and dp = z w^T for the warp's own rows (x, z) and the block's (y, w, in the place at `at`). */
#define PRODUCTS(s, dp, at)                                                                                  \
    EACH(y, SPAN / 8) EACH(e, 4) s[y][e] = dp[y][e] = 0.0f;                                                  \
    EACH_STEP(t)                                                                                             \
    {                                                                                                        \
        uint fx[4], fz[4];                                                                                   \
        LOAD_OWN(fx, X_AT, 0, t);                                                                          \
        LOAD_OWN(fz, Z_AT, 0, t);                                                                          \
        EACH(y, SPAN / 16)                                                                                   \
        {                                                                                                    \
            uint fy[4];                                                                                      \
            LOAD_OTHER(fy, at, 16 * y, t);                                                                   \
            CLT_MMA(TYPE, s[2 * y], fx, fy[0], fy[1]);                                                       \
            CLT_MMA(TYPE, s[2 * y + 1], fx, fy[2], fy[3]);                                                   \
            LOAD_OTHER(fy, (at) + TILE_BYTES, 16 * y, t);                                                    \
            CLT_MMA(TYPE, dp[2 * y], fz, fy[0], fy[1]);                                                      \
            CLT_MMA(TYPE, dp[2 * y + 1], fz, fy[2], fy[3]);                                                  \
        }                                                                                                    \
    }

/* acc += s (rounded) times the block's tile at byte `at`. */
#define ADD_UP(acc, s, at)                                                                                   \
    EACH(y, SPAN / 16)                                                                                       \
    {                                                                                                        \
        uint fs[4];                                                                                          \
        OPERAND_OF(fs, s[2 * y], s[2 * y + 1])                                                               \
        EACH(t, TILES)                                                                                       \
        {                                                                                                    \
            uint fy[4];                                                                                      \
            LOAD_TURNED(fy, at, 16 * y, t);                                                                  \
            CLT_MMA(TYPE, acc[2 * t], fs, fy[0], fy[1]);                                                     \
            CLT_MMA(TYPE, acc[2 * t + 1], fs, fy[2], fy[3]);                                                 \
        }                                                                                                    \
    }

/* fp16: the power of two that multiplies a row's ds in the products, so that the largest so far is below 2^15. If
 * it has to decrease, the row's sums are scaled with it. */
#define UNIT_AT_FIRST 0x1p100f
#if TYPE == 2
#define SCALE_ROWS(ds, unit, acc)                                                                            \
    EACH(side, 2)                                                                                            \
    {                                                                                                        \
        float most = 0.0f;                                                                                   \
        EACH(y, SPAN / 8) EACH(e, 2) most = fmax(most, fabs(ds[y][2 * side + e]));                           \
        ROW_MAX(most)                                                                                        \
        /* 2^14 over the power of two below `most`; 2^-114 for an infinity. */                               \
        const float u = fmin(unit[side], as_float((127 + 14 + 127 - max(as_uint(most) >> 23, 41u)) << 23));  \
        const float ratio = u / unit[side];                                                                  \
        EACH(d, 2 * TILES) EACH(e, 2) acc[d][2 * side + e] *= ratio;                                         \
        EACH(y, SPAN / 8) EACH(e, 2) ds[y][2 * side + e] *= u;                                               \
        unit[side] = u;                                                                                      \
    }
#else
#define SCALE_ROWS(ds, unit, acc)
#endif

/* The row `side` of the lane of acc, times factor, to x; with `add` to what x has. The accesses are volatile, because
 * the compiler would load the whole row first, and spill. */
#define PUT_ROW(acc, side, factor, add, x)                                                                   \
    EACH(d, HEAD_DIM / 8)                                                                                    \
    {                                                                                                        \
        __global volatile uint *to_ = (__global volatile uint *)((x) + 8 * d + lane % 4 * 2);                \
        float lo_ = acc[d][2 * (side)] * (factor), hi_ = acc[d][2 * (side) + 1] * (factor);                  \
        if (add) {                                                                                           \
            const uint old_ = *to_;                                                                          \
            lo_ = lo_ + GET((ushort)old_);                                                                   \
            hi_ = hi_ + GET((ushort)(old_ >> 16));                                                           \
        }                                                                                                    \
        *to_ = CLT_PACK2(TYPE, lo_, hi_);                                                                    \
    }

#define BACKWARD_ARGS                                                                                        \
    ATTENTION_ARGS, __global const float *lse, ulong lse_off, __global const float *delta,                   \
        __global const ELEM *dout, ulong dout_off, uint lddout

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
    const float slope = SLOPE(h);
    const uint end = attention_end(min(i0 + ROWS, seq) - 1, seq, window);
    seq_ids_off += base;
    uint i[2];
    float lse_i[2], delta_i[2], unit[2], acc[2 * TILES][4];
    EACH(side, 2)
    {
        i[side] = i0 + own + 8 * side + lane / 4;
        const size_t at = (b * heads + h) * seq + min(i[side], seq - 1);
        lse_i[side] = lse[lse_off + at];
        delta_i[side] = delta[at];
        unit[side] = UNIT_AT_FIRST;
    }
    EACH(d, 2 * TILES) EACH(e, 4) acc[d][e] = 0.0f;

#define LOAD_BLOCK(stage, j)                                                                                 \
    COPY_ROWS(PLACE(stage), SPAN, kh + (size_t)(j)*ldk, ldk, seq - (j))                                              \
    COPY_ROWS(PLACE(stage) + TILE_BYTES, SPAN, vh + (size_t)(j)*ldv, ldv, seq - (j))
    uint j0 = attention_first(i0, window) / SPAN * SPAN;
    COPY_ROWS(X_AT, ROWS, q + q_off + (base + i0) * ldq + h * HEAD_DIM, ldq, seq - i0)
    COPY_ROWS(Z_AT, ROWS, dout + dout_off + (base + i0) * lddout + h * HEAD_DIM, lddout, seq - i0)
    LOAD_BLOCK(0, j0)
    CLT_COPY_COMMIT();
    for (uint stage = 0; j0 < end; j0 += SPAN, stage ^= 1) {
        ITEM_PLACE
        if (j0 + SPAN < end) { LOAD_BLOCK(stage ^ 1, j0 + SPAN) }
        CLT_COPY_COMMIT();
        CLT_COPY_WAIT(1);
        barrier(CLK_LOCAL_MEM_FENCE);
        float s[SPAN / 8][4], dp[SPAN / 8][4];
        PRODUCTS(s, dp, PLACE(stage))
        const bool all = sees_all(i0, i0 + ROWS, j0, j0 + SPAN, seq, window);
        EACH(y, SPAN / 8) EACH(e, 4)
        {
            const uint j = j0 + 8 * y + lane % 4 * 2 + e % 2;
            PAIR(s[y][e], dp[y][e], i[e / 2], j, lse_i[e / 2], delta_i[e / 2], all, CLT_EXP2)
        }
        SCALE_ROWS(dp, unit, acc)
        ADD_UP(acc, dp, PLACE(stage))
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    EACH(side, 2)
    {
        if (i[side] >= seq) continue;
        const float factor = (TYPE == 2 ? 1.0f / unit[side] : 1.0f) * scale;
        PUT_ROW(acc, side, factor, false, dq + dq_off + (base + i[side]) * lddq + h * HEAD_DIM)
    }
}

/* As HEAD_PLACE, for a key/value head. */
#define GROUP_PLACE                                                                                          \
    const size_t g = CLT_ANEW((uint)get_group_id(1)), b = CLT_ANEW((uint)get_group_id(2)), base = b * seq;

/* The rows from i_ on of head h_. */
#define LOAD_QUERIES(stage, h_, i_)                                                                          \
{                                                                                                        \
    COPY_ROWS(PLACE(stage), SPAN, q + q_off + (base + i_) * ldq + h_ * HEAD_DIM, ldq, seq - i_)          \
    COPY_ROWS(PLACE(stage) + TILE_BYTES, SPAN, dout + dout_off + (base + i_) * lddout + h_ * HEAD_DIM,   \
              lddout, seq - i_)                                                                          \
}
/* The rows that exist, to dk and dv. */
#define PUT_KEYS(acc_k, acc_v, unit)                                                                         \
    EACH(side, 2)                                                                                            \
    {                                                                                                        \
        GROUP_PLACE                                                                                          \
        ITEM_PLACE                                                                                           \
        const uint j = j0 + own + 8 * side + lane / 4;                                                       \
        if (j >= seq) continue;                                                                              \
        const float factor = (TYPE == 2 ? 1.0f / unit[side] : 1.0f) * scale;                                 \
        PUT_ROW(acc_k, side, factor, add, dk + dk_off + (base + j) * lddk + g * HEAD_DIM)                    \
        PUT_ROW(acc_v, side, (DROPOUT ? drop_scale : 1.0f) / (1 << SHIFT), add,                              \
                dv + dv_off + (base + j) * lddv + g * HEAD_DIM)                                              \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_backward_kv(BACKWARD_ARGS, __global ELEM *dk, ulong dk_off, uint lddk, __global ELEM *dv, ulong dv_off,
                      uint lddv, uint add)
{
    __local uint4 tiles[PLACE(2) / 16] __attribute__((aligned(128)));
    CLT_MMA_LOCAL(tiles, ITEMS)
    ITEM_PLACE
    GROUP_PLACE
    const uint j0 = (uint)get_group_id(0) * ROWS, first = attention_first_row(j0, window) / SPAN * SPAN;
    const uint end = attention_end_row(min(j0 + ROWS, seq) - 1, seq, window);
    seq_ids_off += base;
    float unit[2] = {UNIT_AT_FIRST, UNIT_AT_FIRST}, acc_k[2 * TILES][4], acc_v[2 * TILES][4];
    EACH(d, 2 * TILES) EACH(e, 4) acc_k[d][e] = acc_v[d][e] = 0.0f;

    COPY_ROWS(X_AT, ROWS, k + k_off + (base + j0) * ldk + g * HEAD_DIM, ldk, seq - j0)
    COPY_ROWS(Z_AT, ROWS, v + v_off + (base + j0) * ldv + g * HEAD_DIM, ldv, seq - j0)
    uint h = (uint)g * group, from = first;
    if (first < end) LOAD_QUERIES(0, h, from)
    CLT_COPY_COMMIT();
    for (uint stage = 0; first < end && h < (g + 1) * group; stage ^= 1) {
        GROUP_PLACE
        ITEM_PLACE
        const uint next = from + SPAN < end ? from + SPAN : first, next_h = h + (from + SPAN >= end);
        if (next_h < (g + 1) * group) LOAD_QUERIES(stage ^ 1, next_h, next)
        CLT_COPY_COMMIT();
        CLT_COPY_WAIT(1);
        barrier(CLK_LOCAL_MEM_FENCE);
        const float slope = SLOPE(h);
        float s[SPAN / 8][4], dp[SPAN / 8][4], lse_i[SPAN / 8][2], delta_i[SPAN / 8][2];
        EACH(y, SPAN / 8) EACH(e, 2)
        {
            const size_t at = (b * heads + h) * seq + min(from + 8 * y + lane % 4 * 2 + e, seq - 1);
            lse_i[y][e] = lse[lse_off + at];
            delta_i[y][e] = delta[at];
        }
        PRODUCTS(s, dp, PLACE(stage))
        const bool all = sees_all(from, from + SPAN, j0, j0 + ROWS, seq, window);
        EACH(y, SPAN / 8) EACH(e, 4)
        {
            const uint row = 8 * y + lane % 4 * 2 + e % 2;
            const uint i = from + row, j = j0 + own + 8 * (e / 2) + lane / 4;
            PAIR(s[y][e], dp[y][e], i, j, lse_i[y][e % 2], delta_i[y][e % 2], all, CLT_EXP2)
            s[y][e] = s[y][e] * (float)(1 << SHIFT);
        }
        ADD_UP(acc_v, s, PLACE(stage) + TILE_BYTES)
        SCALE_ROWS(dp, unit, acc_k)
        ADD_UP(acc_k, dp, PLACE(stage))
        barrier(CLK_LOCAL_MEM_FENCE);
        from = next;
        h = next_h;
    }
    PUT_KEYS(acc_k, acc_v, unit)
}
