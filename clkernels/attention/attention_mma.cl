/* Attention forward on NVIDIA's matrix units from sm_80 on, by mma.sync, 16-bit types (README.md has the
 * formula; sums are added in another order here).
 *
 * A warp owns MT tiles of 16 query rows of a head, a work-group ROWS rows. Queries stay in local memory,
 * those of short heads in registers, too. The work-group processes blocks of KEYS keys; keys and values
 * have STAGES places in local memory. With two, the next block is on its way while this one is processed.
 * With one, the values are on their way while queries and keys are multiplied, and the next keys from then
 * on. The probabilities stay in registers, where they already have the layout of an operand.
 *
 * exp needs a reference near the row's largest score, not that score: the reference follows only when a
 * score exceeds it by LEEWAY. So nearly every block leaves sums and outputs as they are, and no lanes
 * exchange maxima. Scores are scaled by the fma that subtracts the reference. Of ALiBi's causal bias only
 * slope times key is added; the rest is the same for all keys of a row. A block is masked only where a row
 * of the warp does not see all of it.
 *
 * Numeric differences from the definition: p is rounded to the element type before it is multiplied by v;
 * exp is the device's exp2, and scores are scaled for it; and within one block of keys a value of v that
 * is not finite affects rows that do not see it (0 * NaN).
 *
 * Options: ROWS, ITEMS, MT (attention_mma.clh), KEYS, a multiple of 16, STAGES, 1 or 2, HEAD_DIM up to
 * 128, a multiple of 8, TYPE (1, 2), features as in attention.clh.
 * Launch: local {ITEMS}, global {tiles * ITEMS, heads, batch}.
 * Requires: PTX with mma.sync m16n8k16, ldmatrix and cp.async; all rows at multiples of 16 bytes; local
 * memory of (ROWS + 2 KEYS STAGES) * UNITS * 16 bytes. */
#ifndef TYPE
#define TYPE 1
#endif
#ifndef ROWS
#define ROWS 128
#define ITEMS 128
#define MT 2
#define KEYS 32
#define STAGES 1
#endif
/* Here the assembler spills with the other form, at heads of 128. */
#define NUMBERS(lane_at, t) ((lane_at) ^ (uint)(t) << 5)
#include "attention_mma.clh"

/* Beside the outputs of long heads, scores of that many keys leave no registers for these features, and with dropout
 * a second place leaves none. */
#if TILES > 4 && DROPOUT
#undef KEYS
#define KEYS 16
#undef STAGES
#define STAGES 1
#elif TILES > 4 && KEYS > 32 && (ALIBI || SOFTCAP || SEQ_IDS)
#undef KEYS
#define KEYS 32
#endif

/* The item's place, and its first row: lane / 4 of its warp's first tile. */
#define ROW_PLACE                                                                                            \
    ITEM_PLACE                                                                                               \
    const uint row = i0 + own + lane / 4;

#define Q_AT 0
#define K_AT (ROWS * ROW_BYTES)
#define V_AT (K_AT + KEYS * ROW_BYTES)
#define STAGE_BYTES (STAGES == 2 ? 2 * KEYS * ROW_BYTES : 0)
/* Probabilities are stored times 2^SHIFT and without the dropout's constant: fp16's denormals are then
 * below 2^-22. A reference lags behind the largest score by up to LEEWAY, in units of log2: 2^(SHIFT +
 * LEEWAY) is finite in TYPE, and bf16's sums of it times values up to 2^40. With ALiBi scores rise along
 * the keys. */
#define SHIFT (TYPE == 2 ? 8 : 0)
#define LEEWAY (TYPE == 2 ? 7.0f : 64.0f)

/* s * unit is a score times log2(e), and rises with s: unit is above 0. With a scale below 0 MASK
 * multiplies s; 0 is replaced by a scale without effect. */
#define GIVEN(scale) (SOFTCAP ? 1.0f : (scale) == 0.0f ? 0x1p-100f : (scale))
/* Whether queries stay in registers instead of being loaded again for each block. */
#define KEEP_QUERIES (TILES * MT <= 8 && !(SOFTCAP || SEQ_IDS || DROPOUT))

/* Draws which probabilities of the block dropout keeps: bit 2 y + e of a row is for key 8 y + e of the
 * lane. Before anything of the block is in registers, and without unrolling, so that nothing spills. */
#if DROPOUT
#define DRAW(kept)                                                                                           \
    uint kept[MT][2];                                                                                        \
    {                                                                                                        \
        HEAD_PLACE                                                                                           \
        ROW_PLACE                                                                                            \
        EACH(x, MT) EACH(side, 2)                                                                            \
        {                                                                                                    \
            kept[x][side] = 0;                                                                               \
            const ulong first = (h * seq + row + 16 * x + 8 * side) * seq + j0 + lane % 4 * 2;               \
            _Pragma("unroll 1") for (uint y = 0; y < KEYS / 8; y++)                                          \
            kept[x][side] |= kept_pair(DRAW_KEY, first + 8 * y) << 2 * y;                                    \
        }                                                                                                    \
    }
#define DRAW_KEY (uint2)(drop_key0, drop_key1), drop_step, drop_sample + (uint)b, drop_place, drop_threshold
#define KEEP(p, x, side, bit) p = kept[x][side] >> (bit)&1 ? (p) : 0.0f;
/* Bits 0 and 1: whether the elements `at` and at + 1 of the sample are kept. */
static inline uint kept_pair(uint2 key, uint step, uint sample, uint place, uint threshold, ulong at)
{
    float4 f = clt_dropout4(key, step, sample, place, at / 4, threshold, 1.0f);
    const uint first = (uint)at % 4;
    const float lo = first < 2 ? (first == 0 ? f.x : f.y) : (first == 2 ? f.z : f.w);
    float hi = first == 0 ? f.y : first == 1 ? f.z : f.w;
    if (first == 3) hi = clt_dropout4(key, step, sample, place, at / 4 + 1, threshold, 1.0f).x;
    return (lo != 0.0f) | (hi != 0.0f) << 1;
}
#else
#define DRAW(kept)
#define KEEP(p, x, side, bit)
#endif

/* Starts to copy `rows` rows (a constant), from row j on, to the tile at byte `at`. p: the item's first
 * unit of them. Each pass of the group copies ITEMS / UNITS rows. */
#define PASS (ITEMS / UNITS)
#if KEYS % PASS || ROWS % PASS || PASS % 8
#error "passes must consist of whole rows, 8 or a multiple of it, and divide KEYS and ROWS"
#endif
#define COPY_TILE(at, rows, p, ld, j)                                                                        \
    {                                                                                                        \
        const uint item_ = CLT_ANEW((uint)get_local_id(0)), unit_ = item_ % UNITS, row_ = item_ / UNITS;     \
        const uint to_ = (at) + BYTE(row_, unit_);                                                           \
        EACH(f_, (rows) / PASS)                                                                              \
        if (unit_ < 2 * TILES)                                                                               \
            CLT_COPY_UNIT(to_ + f_ * PASS * ROW_BYTES, (p) + f_ * PASS * (size_t)(ld),                       \
                          unit_ * 8 < HEAD_DIM && (j) + f_ * PASS + row_ < seq ? 16u : 0u);                  \
    }
#define COPY_KEYS(at, j) COPY_TILE((at) + K_AT, KEYS, kp, ldk, j)
#define COPY_VALUES(at, j) COPY_TILE((at) + V_AT, KEYS, vp, ldv, j)
/* kp, vp: the item's first unit of a block's keys and values. COPY_FIRST declares them and starts to copy the queries
 * and what the first block begins with, COPY_NEXT what comes next, COPY_BETWEEN what may come only once the block's
 * keys are multiplied. */
#define COPY_FIRST(j0)                                                                                       \
    const uint unit_at = item % UNITS * 8, first = item / UNITS;                                             \
    const size_t head = (uint)h / group * HEAD_DIM + unit_at, key = base + (j0) + first;                     \
    __global const ELEM *kp = k + k_off + key * ldk + head, *vp = v + v_off + key * ldv + head;              \
    COPY_TILE(Q_AT, ROWS, q + q_off + (base + i0 + first) * ldq + h * HEAD_DIM + unit_at, ldq, i0)           \
    COPY_KEYS(0, j0)                                                                                         \
    if (STAGES == 2) COPY_VALUES(0, j0)                                                                      \
    CLT_COPY_COMMIT();
#if STAGES == 2
#define COPY_NEXT(at, j0)                                                                                    \
    kp += KEYS * (size_t)ldk;                                                                                \
    vp += KEYS * (size_t)ldv;                                                                                \
    if ((j0) + KEYS < end) {                                                                                 \
        COPY_KEYS((at) ^ STAGE_BYTES, (j0) + KEYS)                                                           \
        COPY_VALUES((at) ^ STAGE_BYTES, (j0) + KEYS)                                                         \
    }                                                                                                        \
    CLT_COPY_COMMIT();
#define COPY_BETWEEN(j0)
#else
#define COPY_NEXT(at, j0)                                                                                    \
    COPY_VALUES(0, j0)                                                                                       \
    CLT_COPY_COMMIT();                                                                                       \
    kp += KEYS * (size_t)ldk;                                                                                \
    vp += KEYS * (size_t)ldv;
#define COPY_BETWEEN(j0)                                                                                     \
    CLT_COPY_WAIT(0);                                                                                        \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                            \
    if ((j0) + KEYS < end) COPY_KEYS(0, (j0) + KEYS)                                                         \
    CLT_COPY_COMMIT();
#endif

#if KEEP_QUERIES
#define QUERIES_OF(x, t) fq[x][t]
#else
#define QUERIES_OF(x, t) fq[x][0]
#endif
#if SOFTCAP || SEQ_IDS || DROPOUT || (KEYS > 32 && TILES > 4)
#define EACH_PART(t) EACH_STEP(t)
#else
#define EACH_PART(t) EACH(t, TILES)
#endif
#define LOAD_QUERIES(t) EACH(x, MT) LOAD_OWN(QUERIES_OF(x, t), Q_AT, 16 * x, t);

/* What the products are added to. With ALiBi's causal bias this is slope times the distance from the lane's first
 * row to the key: the distance of row 16 x + 8 side is larger by a constant of the row. */
#if ALIBI && CAUSAL && !SOFTCAP
#define START(s)                                                                                             \
    {                                                                                                        \
        ROW_PLACE                                                                                            \
        const float near = tilt * (float)((int)(j0 + lane % 4 * 2) - (int)row);                              \
        EACH(y, KEYS / 8) EACH(e, 2)                                                                         \
        {                                                                                                    \
            const float bias = fma(tilt, (float)(8 * y + e), near);                                          \
            EACH(x, MT) EACH(side, 2) s[x][y][2 * side + e] = bias;                                          \
        }                                                                                                    \
    }
#else
#define START(s) EACH(x, MT) EACH(y, KEYS / 8) EACH(e, 4) s[x][y][e] = 0.0f;
#endif
/* s = q k^T for the warp's rows and the block of keys. */
#define MULTIPLY_KEYS(s, at)                                                                                 \
    {                                                                                                        \
        START(s)                                                                                             \
        EACH_PART(t)                                                                                         \
        {                                                                                                    \
            if (!KEEP_QUERIES) LOAD_QUERIES(t)                                                               \
            EACH(y, KEYS / 16)                                                                               \
            {                                                                                                \
                uint fk[4];                                                                                  \
                LOAD_OTHER(fk, (at) + K_AT, 16 * y, t);                                                      \
                EACH(x, MT)                                                                                  \
                {                                                                                            \
                    CLT_MMA(TYPE, s[x][2 * y], QUERIES_OF(x, t), fk[0], fk[1]);                              \
                    CLT_MMA(TYPE, s[x][2 * y + 1], QUERIES_OF(x, t), fk[2], fk[3]);                          \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }

/* From products to scores: the softcap, and ALiBi's bias where START has not added it. */
#if SOFTCAP
#define CAP(s)                                                                                               \
    EACH(x, MT) EACH(y, KEYS / 8) EACH(e, 4) s[x][y][e] = softcap * clt_tanh(s[x][y][e] * cap_scale);
#else
#define CAP(s)
#endif
#if ALIBI && (SOFTCAP || !CAUSAL)
#define BIAS(s)                                                                                              \
    {                                                                                                        \
        ROW_PLACE                                                                                            \
        const float near = (float)((int)(j0 + lane % 4 * 2) - (int)row);                                     \
        EACH(y, KEYS / 8) EACH(e, 2)                                                                         \
        {                                                                                                    \
            const float far = near + (float)(8 * y + e);                                                     \
            EACH(x, MT) EACH(side, 2)                                                                        \
            s[x][y][2 * side + e] =                                                                          \
                CAUSAL ? fma(tilt, far, s[x][y][2 * side + e])                                               \
                       : fma(-tilt, fabs(far - (float)(16 * x + 8 * side)), s[x][y][2 * side + e]);          \
        }                                                                                                    \
    }
#else
#define BIAS(s)
#endif
/* Scores of pairs that do not exist, or are masked, become -inf. The others are multiplied by late. */
#define MASK(s)                                                                                              \
    EACH(x, MT) EACH(side, 2)                                                                                \
    {                                                                                                        \
        ROW_PLACE                                                                                            \
        const float given = GIVEN(as_float(CLT_ANEW(as_uint(scale))));                                       \
        const float late = given > 0.0f ? 1.0f : given * LOG2E;                                              \
        const uint i = row + 16 * x + 8 * side;                                                              \
        const uint from = attention_first(i, window), to = attention_end(i, seq, window);                    \
        EACH(y, KEYS / 8) EACH(e, 2)                                                                         \
        {                                                                                                    \
            const uint j = j0 + 8 * y + lane % 4 * 2 + e;                                                    \
            const bool seen = j >= from && j < to && SAME_SEQUENCE(i, j);                                    \
            s[x][y][2 * side + e] = seen ? s[x][y][2 * side + e] * late : -attention_inf();                  \
        }                                                                                                    \
    }

/* Each row's largest score among the lane's. */
#define MAXIMUM(s, most)                                                                                     \
    EACH(x, MT) EACH(side, 2)                                                                                \
    {                                                                                                        \
        most[x][side] = s[x][0][2 * side];                                                                   \
        EACH(y, KEYS / 8) EACH(e, 2) most[x][side] = fmax(most[x][side], s[x][y][2 * side + e]);             \
    }
/* Moves the references of rows whose largest score exceeds limit, and what depends on them. */
#define FOLLOW(most, limit, ref, l, acc)                                                                     \
    {                                                                                                        \
        int above = 0;                                                                                       \
        EACH(x, MT) EACH(side, 2) above |= most[x][side] > limit[x][side];                                   \
        if (CLT_ANY(above)) {                                                                                \
            const float leeway = native_recip(as_float(CLT_ANEW(as_uint(unit)))) * LEEWAY;                   \
            EACH(x, MT) EACH(side, 2)                                                                        \
            {                                                                                                \
                ROW_MAX(most[x][side])                                                                       \
                float less = 1.0f;                                                                           \
                if (most[x][side] > limit[x][side]) {                                                        \
                    const float next = fma(-most[x][side], unit, (float)SHIFT);                              \
                    less = limit[x][side] == -attention_inf() ? 0.0f : CLT_EXP2(next - ref[x][side]);        \
                    ref[x][side] = next;                                                                     \
                    limit[x][side] = most[x][side] + leeway;                                                 \
                }                                                                                            \
                l[x][side] = l[x][side] * less;                                                              \
                EACH(d, 2 * TILES) EACH(e, 2) acc[x][d][2 * side + e] = acc[x][d][2 * side + e] * less;      \
            }                                                                                                \
        }                                                                                                    \
    }
/* From scores to probabilities of the keys 16 y.., in place, and their sums. */
#define EXPONENTIALS(s, y, ref, sum)                                                                         \
    EACH(x, MT) EACH(side, 2) EACH(z, 2) EACH(e, 2)                                                          \
    {                                                                                                        \
        float p = CLT_EXP2(fma(s[x][2 * y + z][2 * side + e], unit, ref[x][side]));                          \
        sum[x][side] = sum[x][side] + p;                                                                     \
        KEEP(p, x, side, 4 * y + 2 * z + e)                                                                  \
        s[x][2 * y + z][2 * side + e] = p;                                                                   \
    }
/* acc += p v, p from the scores s. */
#define MULTIPLY_VALUES(acc, s, at, ref, l)                                                                  \
    {                                                                                                        \
        float sum[MT][2];                                                                                    \
        EACH(x, MT) EACH(side, 2) sum[x][side] = 0.0f;                                                       \
        EACH(y, KEYS / 16)                                                                                   \
        {                                                                                                    \
            uint fp[MT][4];                                                                                  \
            EXPONENTIALS(s, y, ref, sum)                                                                     \
            EACH(x, MT) OPERAND_OF(fp[x], s[x][2 * y], s[x][2 * y + 1])                                      \
            EACH(t, TILES)                                                                                   \
            {                                                                                                \
                uint fv[4];                                                                                  \
                LOAD_TURNED(fv, (at) + V_AT, 16 * y, t);                                                     \
                EACH(x, MT)                                                                                  \
                {                                                                                            \
                    CLT_MMA(TYPE, acc[x][2 * t], fp[x], fv[0], fv[1]);                                       \
                    CLT_MMA(TYPE, acc[x][2 * t + 1], fp[x], fv[2], fv[3]);                                   \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        EACH(x, MT) EACH(side, 2) l[x][side] = l[x][side] + sum[x][side];                                    \
    }
/* The rows that exist, to o and lse: o through the place of the warp's queries, so that whole rows are
 * written, lse by a lane of the row's four each. */
#if MT > 2
#error "four lanes write lse of at most four rows"
#endif
#define PUT_OUTPUTS(acc, ref, l)                                                                             \
    {                                                                                                        \
        HEAD_PLACE                                                                                           \
        ROW_PLACE                                                                                            \
        const uint of = lane % 4, word = Q_AT + BYTE(own + lane / 4, 0) + of * 4, i = row + 8 * of;          \
        float inverse[MT][2], sum = 1.0f, at = 0.0f;                                                         \
        EACH(x, MT) EACH(side, 2)                                                                            \
        {                                                                                                    \
            ROW_SUM(l[x][side])                                                                              \
            inverse[x][side] = native_recip(l[x][side]) * (DROPOUT ? drop_scale : 1.0f);                     \
            if (of == 2 * x + side) sum = l[x][side], at = ref[x][side];                                     \
        }                                                                                                    \
        EACH(d, HEAD_DIM / 8) EACH(x, MT) EACH(side, 2)                                                      \
        *(__local uint *)((__local char *)tiles + (word ^ d << 4) + (16 * x + 8 * side) * ROW_BYTES) =       \
            CLT_PACK2(TYPE, acc[x][d][2 * side] * inverse[x][side],                                          \
                      acc[x][d][2 * side + 1] * inverse[x][side]);                                           \
        if (of < 2 * MT && i < seq) {                                                                        \
            const float bias = ALIBI && CAUSAL ? SLOPE(h) * LOG2E * (float)(8 * of) : 0.0f;                  \
            lse[lse_off + (b * heads + h) * seq + i] =                                                       \
                (SHIFT - at - bias) * LN2 + clt_log(sum * (1.0f / (1 << SHIFT)));                            \
        }                                                                                                    \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        const uint unit_ = item % UNITS, row_ = item / UNITS;                                                \
        __global ELEM *to = o + o_off + (base + i0 + row_) * ldo + h * HEAD_DIM + unit_ * 8;                 \
        EACH(f, ROWS / PASS)                                                                                 \
        if (unit_ * 8 < HEAD_DIM && i0 + row_ + f * PASS < seq)                                              \
            *(__global uint4 *)(to + f * PASS * (size_t)ldo) =                                               \
                tiles[(Q_AT + BYTE(row_, unit_) + f * PASS * ROW_BYTES) / 16];                               \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_forward(ATTENTION_ARGS, __global ELEM *o, ulong o_off, uint ldo, __global float *lse, ulong lse_off)
{
    __local uint4 tiles[(ROWS + 2 * KEYS * STAGES) * UNITS] __attribute__((aligned(256)));
    CLT_MMA_LOCAL(tiles, ITEMS)
    ITEM_PLACE
    HEAD_PLACE
    const uint i0 = (uint)(get_num_groups(0) - 1 - get_group_id(0)) * ROWS, own_row = i0 + own;
    const float given = GIVEN(scale), unit = given > 0.0f ? given * LOG2E : 1.0f;
    const float tilt = SLOPE(h) / given, cap_scale = scale / softcap;
    const uint end = attention_end(min(i0 + ROWS, seq) - 1, seq, window);
    seq_ids_off += base;

    float limit[MT][2], ref[MT][2], l[MT][2], acc[MT][2 * TILES][4];
    EACH(x, MT)
    {
        EACH(side, 2) limit[x][side] = -attention_inf(), ref[x][side] = l[x][side] = 0.0f;
        EACH(d, 2 * TILES) EACH(e, 4) acc[x][d][e] = 0.0f;
    }
    uint j0 = attention_first(i0, window) / KEYS * KEYS, at = 0;
    COPY_FIRST(j0)
    uint fq[MT][KEEP_QUERIES ? TILES : 1][4];
    if (KEEP_QUERIES) {
        CLT_COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH(t, TILES) LOAD_QUERIES(t)
    }
    for (; j0 < end; j0 += KEYS) {
        float s[MT][KEYS / 8][4];
        CLT_COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        COPY_NEXT(at, j0)
        /* Near the ends of its rows' ranges a warp has blocks without any pair. */
        const bool pairs = CLT_ANY(j0 < attention_end(own_row + 16 * MT - 1, seq, window) &&
                                   j0 + KEYS > attention_first(own_row, window));
        DRAW(kept)
        float most[MT][2];
        if (pairs) {
            MULTIPLY_KEYS(s, at)
            CAP(s)
            BIAS(s)
            MAXIMUM(s, most)
        }
        COPY_BETWEEN(j0)
        if (pairs) {
            if (CLT_ANY(given < 0.0f || !sees_all(own_row, own_row + 16 * MT, j0, j0 + KEYS, seq, window))) {
                MASK(s)
                MAXIMUM(s, most)
            }
            FOLLOW(most, limit, ref, l, acc)
            MULTIPLY_VALUES(acc, s, at, ref, l)
        }
        at ^= STAGE_BYTES;
    }
    PUT_OUTPUTS(acc, ref, l)
}
