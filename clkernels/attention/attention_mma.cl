/* Attention forward on NVIDIA's matrix units from sm_80 on, by mma.sync, 16-bit types (README.md has the
 * formula; sums are added in another order here).
 *
 * A warp owns MT tiles of 16 query rows of a head, a work-group ROWS rows. Queries stay in local memory; the
 * work-group processes blocks of KEYS keys. While it multiplies queries and keys, the values of the block are
 * on their way, and while it multiplies probabilities and values, the keys of the next block: each has one
 * place in local memory. The probabilities stay in registers, where they already have the layout of an operand.
 *
 * Numeric differences from the definition: p is rounded to the element type before it is multiplied by v; exp
 * is the device's exp2, and scores are scaled for it; and within one block of keys a value of v that is not
 * finite affects rows that do not see it (0 * NaN).
 *
 * Options: ROWS, ITEMS, MT (attention_mma.clh), KEYS, a multiple of 16, HEAD_DIM up to 128, a multiple of 8, TYPE (1, 2), features as in
 * attention.clh.
 * Launch: local {ITEMS}, global {tiles * ITEMS, heads, batch}.
 * Requires: PTX with mma.sync m16n8k16, ldmatrix and cp.async; all rows at multiples of 16 bytes; local memory of
 * (ROWS + 2 KEYS) * UNITS * 16 bytes. */
#ifndef TYPE
#define TYPE 1
#endif
#ifndef ROWS
#define ROWS 128
#define ITEMS 128
#define MT 2
#define KEYS 32
#endif
#include "attention_mma.clh"

#define Q_AT 0
#define K_AT (ROWS * ROW_BYTES)
#define V_AT (K_AT + KEYS * ROW_BYTES)
/* Probabilities are stored times 2^SHIFT and without the dropout's constant: fp16's denormals are then below
 * 2^-27. */
#define SHIFT (TYPE == 2 ? 13 : 0)

/* Scores times log2(e), -inf for keys that a row does not see. */
#if ALIBI || SOFTCAP
#define SCORE(s, i, j, t) (scored(s, scale, softcap, slope, (int)(j) - (int)(i), t) * LOG2E)
#else
#define SCORE(s, i, j, t) ((s)*scale2)
#endif

#if DROPOUT
#define KEEP(p, i, j, end) p = (j) < (end) && (i) < seq && FACTOR(b, h, i, j) != 0.0f ? (p) : 0.0f;
#else
#define KEEP(p, i, j, end)
#endif

#define COPY_KEYS(j)                                                                                         \
    COPY_ROWS(K_AT, KEYS, k + k_off + (base + (j)) * ldk + h / group * HEAD_DIM, ldk, seq - (j))

/* s = q k^T for the warp's rows and the block of keys. */
#define MULTIPLY_KEYS(s)                                                                                     \
    EACH(x, MT) EACH(y, KEYS / 8) EACH(e, 4) s[x][y][e] = 0.0f;                                              \
    EACH_STEP(t)                                                                                             \
    {                                                                                                        \
        uint fq[MT][4];                                                                                      \
        EACH(x, MT) LOAD_OWN(fq[x], Q_AT, 16 * x, t);                                                        \
        EACH(y, KEYS / 16)                                                                                   \
        {                                                                                                    \
            uint fk[4];                                                                                      \
            LOAD_OTHER(fk, K_AT, 16 * y, t);                                                                 \
            EACH(x, MT)                                                                                      \
            {                                                                                                \
                CLT_MMA(TYPE, s[x][2 * y], fq[x], fk[0], fk[1]);                                             \
                CLT_MMA(TYPE, s[x][2 * y + 1], fq[x], fk[2], fk[3]);                                         \
            }                                                                                                \
        }                                                                                                    \
    }
/* From s to probabilities, in place, with the largest score m, the sum l and the outputs acc of each row. */
#define SOFTMAX(s, m, l, acc)                                                                                \
    EACH(x, MT) EACH(side, 2)                                                                                \
    {                                                                                                        \
        const uint i = i0 + own + 16 * x + 8 * side + lane / 4;                                              \
        const uint from = attention_first(i, window), to = attention_end(i, seq, window);                    \
        float n = m[x][side], sum = 0.0f;                                                                    \
        EACH(y, KEYS / 8) EACH(e, 2)                                                                         \
        {                                                                                                    \
            const uint j = j0 + 8 * y + lane % 4 * 2 + e;                                                    \
            float t, z = SCORE(s[x][y][2 * side + e], i, j, &t);                                             \
            if (!all && !(j >= from && j < to && SAME_SEQUENCE(i, j))) z = -attention_inf();                 \
            n = fmax(n, z);                                                                                  \
            s[x][y][2 * side + e] = z;                                                                       \
        }                                                                                                    \
        ROW_MAX(n)                                                                                           \
        const float ref = n == -attention_inf() ? 0.0f : n, less = CLT_EXP2(m[x][side] - ref);               \
        m[x][side] = n;                                                                                      \
        EACH(y, KEYS / 8) EACH(e, 2)                                                                         \
        {                                                                                                    \
            float p = CLT_EXP2(s[x][y][2 * side + e] - (ref - (float)SHIFT));                                \
            sum = sum + p;                                                                                   \
            KEEP(p, i, j0 + 8 * y + lane % 4 * 2 + e, to)                                                    \
            s[x][y][2 * side + e] = p;                                                                       \
        }                                                                                                    \
        l[x][side] = fma(l[x][side], less, sum);                                                             \
        EACH(d, 2 * TILES) EACH(e, 2) acc[x][d][2 * side + e] = acc[x][d][2 * side + e] * less;              \
    }
/* acc += p v. */
#define MULTIPLY_VALUES(acc, p)                                                                              \
    EACH(y, KEYS / 16)                                                                                       \
    {                                                                                                        \
        uint fp[MT][4];                                                                                      \
        EACH(x, MT) OPERAND_OF(fp[x], p[x][2 * y], p[x][2 * y + 1])                                          \
        EACH(t, TILES)                                                                                       \
        {                                                                                                    \
            uint fv[4];                                                                                      \
            LOAD_TURNED(fv, V_AT, 16 * y, t);                                                                \
            EACH(x, MT)                                                                                      \
            {                                                                                                \
                CLT_MMA(TYPE, acc[x][2 * t], fp[x], fv[0], fv[1]);                                           \
                CLT_MMA(TYPE, acc[x][2 * t + 1], fp[x], fv[2], fv[3]);                                       \
            }                                                                                                \
        }                                                                                                    \
    }
/* The rows that exist, to o and lse. */
#define PUT_OUTPUTS(acc, m, l)                                                                               \
    EACH(x, MT) EACH(side, 2)                                                                                \
    {                                                                                                        \
        HEAD_PLACE                                                                                           \
        ITEM_PLACE                                                                                           \
        const uint i = i0 + own + 16 * x + 8 * side + lane / 4;                                              \
        ROW_SUM(l[x][side])                                                                                  \
        if (i < seq) {                                                                                       \
            const float inverse = (DROPOUT ? drop_scale : 1.0f) / l[x][side];                                \
            __global ELEM *to = o + o_off + (base + i) * ldo + h * HEAD_DIM + lane % 4 * 2;                  \
            EACH(d, HEAD_DIM / 8)                                                                            \
            *(__global uint *)(to + 8 * d) =                                                                 \
                CLT_PACK2(TYPE, acc[x][d][2 * side] * inverse, acc[x][d][2 * side + 1] * inverse);           \
            if (lane % 4 == 0)                                                                               \
                lse[lse_off + (b * heads + h) * seq + i] =                                                   \
                    m[x][side] * LN2 + clt_log(l[x][side] * (1.0f / (1 << SHIFT)));                          \
        }                                                                                                    \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_forward(ATTENTION_ARGS, __global ELEM *o, ulong o_off, uint ldo, __global float *lse, ulong lse_off)
{
    __local uint4 tiles[(ROWS + 2 * KEYS) * UNITS] __attribute__((aligned(128)));
    CLT_MMA_LOCAL(tiles, ITEMS)
    ITEM_PLACE
    HEAD_PLACE
    const uint i0 = (uint)(get_num_groups(0) - 1 - get_group_id(0)) * ROWS;
    const float slope = SLOPE(h), scale2 = scale * LOG2E;
    const uint end = attention_end(min(i0 + ROWS, seq) - 1, seq, window);
    seq_ids_off += base;

    float m[MT][2], l[MT][2], acc[MT][2 * TILES][4];
    EACH(x, MT)
    {
        EACH(side, 2) m[x][side] = -attention_inf(), l[x][side] = 0.0f;
        EACH(d, 2 * TILES) EACH(e, 4) acc[x][d][e] = 0.0f;
    }
    uint j0 = attention_first(i0, window) / KEYS * KEYS;
    COPY_ROWS(Q_AT, ROWS, q + q_off + (base + i0) * ldq + h * HEAD_DIM, ldq, seq - i0)
    COPY_KEYS(j0)
    CLT_COPY_COMMIT();
    for (; j0 < end; j0 += KEYS) {
        HEAD_PLACE
        ITEM_PLACE
        float s[MT][KEYS / 8][4];
        CLT_COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        COPY_ROWS(V_AT, KEYS, v + v_off + (base + j0) * ldv + h / group * HEAD_DIM, ldv, seq - j0)
        CLT_COPY_COMMIT();
        MULTIPLY_KEYS(s)
        const bool all = sees_all(i0, i0 + ROWS, j0, j0 + KEYS, seq, window);
        SOFTMAX(s, m, l, acc)
        CLT_COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (j0 + KEYS < end) COPY_KEYS(j0 + KEYS)
        CLT_COPY_COMMIT();
        MULTIPLY_VALUES(acc, s)
    }
    PUT_OUTPUTS(acc, m, l)
}
