/* Attention forward on AMD's matrix units, 16-bit types (README.md has the formula; sums are added in another
 * order here).
 *
 * A wave owns 16 query rows of a head, a work-group ROWS of them. The work-group processes blocks of KEYS
 * keys, with k as rows along the head and v transposed in local memory. A wave computes transposed scores,
 * keys down and queries across (s = k q^T). So a lane has one query, its softmax needs only its own numbers
 * and those of the 1 or 3 other lanes of that query, and the probabilities already have the layout of the
 * operand of o = v^T p (include/clt_tile16.clh).
 *
 * Numeric differences from the definition: p is rounded to the element type before it is multiplied by v; exp
 * is the device's exp2; and within one block of keys a value of v that is not finite affects rows that do not
 * see it (0 * NaN).
 *
 * Options: ROWS, ITEMS = ROWS / 16 waves, HEAD_DIM up to 128, TYPE (1, 2), features as in attention.clh.
 * Launch: local {ITEMS}, global {tiles * ITEMS, heads, batch}.
 * Requires: mfma or wmma, numerics=fast. Compiled and run on an emulator, not timed on a GPU. */
#ifndef TYPE
#define TYPE 1
#endif
#include "attention_tile16.clh"

/* Keys of a block: fewer if a lane of a wave of 32 would run out of registers. */
#define KEYS (CLT_WAVE == 64 || HEAD_DIM <= 96 ? 64 : DROPOUT ? 16 : 32)
#define K_PITCH (DEPTH + 8) /* rows start 16-byte aligned and in different banks */
#define V_PITCH (KEYS + 8)

/* The block of `keys` keys: k unchanged, v transposed, zeros beyond. */
static inline void load_block(__local ushort *k_tile, __local ushort *v_tile, __global const ushort *k, uint ldk,
                              __global const ushort *v, uint ldv, int keys, int item)
{
    _Pragma("unroll 1") for (int e = item; e < KEYS / 4 * (DEPTH / 4); e += ITEMS)
    {
        const int j = e / (DEPTH / 4) * 4, d = e % (DEPTH / 4) * 4;
        ushort4 block[4];
        clt_block4_fetch(block, k + (size_t)j * ldk + d, ldk, keys - j, HEAD_DIM - d);
        clt_block4_put(k_tile + j * K_PITCH + d, K_PITCH, block, false);
        clt_block4_fetch(block, v + (size_t)j * ldv + d, ldv, keys - j, HEAD_DIM - d);
        clt_block4_put(v_tile + d * V_PITCH + j, V_PITCH, block, true);
    }
}

/* The scores of the block at j0 with the lane's query, -inf for keys that it does not see, and in n the largest of
 * n and the query's scores, which several lanes have. */
#define MAKE_SCORES(s, n)                                                                                    \
    CLT_EACH(x, KEYS / 16)                                                                                   \
    {                                                                                                        \
        s[x] = (clt_acc)(0.0f);                                                                              \
        CLT_EACH(t, TILES)                                                                                   \
        s[x] = CLT_TILE16(TYPE, clt_frag_load(k_tile + 16 * x * K_PITCH + 16 * t, K_PITCH, lane), fq[t], s[x]); \
        CLT_EACH(r, CLT_ACC)                                                                                 \
        {                                                                                                    \
            const size_t j = j0 + 16 * x + CLT_ACC_ROW(lane, r);                                             \
            float t, y = scored(s[x][r], scale, softcap, slope, (int)j - (int)i, &t);                        \
            y = j >= first && j < end && SAME_SEQUENCE(i, j) ? y : -attention_inf();                         \
            n = y > n ? y : n;                                                                               \
            s[x][r] = y;                                                                                     \
        }                                                                                                    \
    }                                                                                                        \
    for (int mask = 16; mask < CLT_WAVE; mask *= 2) {                                                        \
        const float other = clt_lane_xor(n, lane, mask);                                                     \
        n = other > n ? other : n;                                                                           \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_forward(ATTENTION_ARGS, __global ELEM *o, ulong o_off, uint ldo, __global float *lse, ulong lse_off)
{
    __local ushort k_tile[KEYS * K_PITCH] __attribute__((aligned(16)));
    __local ushort v_tile[DEPTH * V_PITCH] __attribute__((aligned(16)));
    const int item = (int)get_local_id(0), lane = item % CLT_WAVE, row = item / CLT_WAVE * 16 + lane % 16;
    const size_t h = get_group_id(1), b = get_group_id(2), base = b * seq;
    const size_t i0 = (get_num_groups(0) - 1 - get_group_id(0)) * ROWS, i = i0 + row;
    const bool there = i < seq;
    __global const ELEM *kh = k + k_off + base * ldk + h / group * HEAD_DIM;
    __global const ELEM *vh = v + v_off + base * ldv + h / group * HEAD_DIM;
    const float slope = SLOPE(h);
    const size_t first = attention_first(i, window), end = attention_end(i, seq, window);
    const size_t last_end = attention_end(min(i0 + ROWS, (size_t)seq) - 1, seq, window);
    seq_ids_off += base;

    clt_frag fq[TILES];
    CLT_EACH(t, TILES)
    fq[t] = frag_of_row(q + q_off + (base + min(i, (size_t)seq - 1)) * ldq + h * HEAD_DIM,
                        16 * t + CLT_FRAG_K(lane), there ? HEAD_DIM : 0);
    float m = -attention_inf(), l = 0.0f;
    clt_acc acc[TILES];
    CLT_EACH(t, TILES) acc[t] = (clt_acc)(0.0f);

    for (size_t j0 = attention_first(i0, window) / KEYS * KEYS; j0 < last_end; j0 += KEYS) {
        barrier(CLK_LOCAL_MEM_FENCE);
        load_block(k_tile, v_tile, kh + j0 * ldk, ldk, vh + j0 * ldv, ldv, (int)min((size_t)KEYS, seq - j0), item);
        barrier(CLK_LOCAL_MEM_FENCE);
        clt_acc s[KEYS / 16];
        float n = m;
        MAKE_SCORES(s, n)
        const float ref = n == -attention_inf() ? 0.0f : n, a = native_exp2((m - ref) * LOG2E);
        m = n;
        l = l * a;
        CLT_EACH(t, TILES) acc[t] = acc[t] * a;
        CLT_EACH(x, KEYS / 16)
        {
            CLT_PASTE(ushort, CLT_ACC) p;
            CLT_EACH(r, CLT_ACC)
            {
                float w = native_exp2(fma(s[x][r] - ref, LOG2E, (float)SHIFT));
                l = l + w;
#if DROPOUT
                const size_t j = j0 + 16 * x + CLT_ACC_ROW(lane, r);
                w = j < end && FACTOR(b, h, i, j) != 0.0f ? w : 0.0f;
#endif
                p[r] = CLT_TILE16_BITS(TYPE, w);
            }
            const clt_frag fp = clt_frag_of_acc(p, lane);
            CLT_EACH(t, TILES)
            acc[t] = CLT_TILE16(TYPE, clt_frag_load(v_tile + 16 * t * V_PITCH + 16 * x, V_PITCH, lane), fp, acc[t]);
        }
    }

    for (int mask = 16; mask < CLT_WAVE; mask *= 2) l = l + clt_lane_xor(l, lane, mask);
    if (!there) return;
    const float inverse = (DROPOUT ? drop_scale : 1.0f) / l;
    if (lane < 16) lse[lse_off + (b * heads + h) * seq + i] = m + clt_log(l * (1.0f / (1 << SHIFT)));
    put_row(acc, inverse, 1.0f, false, o + o_off + (base + i) * ldo + h * HEAD_DIM, lane);
}
