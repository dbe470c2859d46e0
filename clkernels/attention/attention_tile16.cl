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

/* Keys of a block: fewer if a lane of a wave of 32 would run out of registers, or if an item of a wave of 64 would load more than
 * one block of 4 x 4 numbers of each tensor. */
#if CLT_WAVE == 64
#define KEYS (HEAD_DIM <= 64 ? 64 : 32)
#else
#define KEYS (HEAD_DIM <= 80 ? 64 : DROPOUT ? 16 : 32)
#endif
#define V_PITCH (KEYS + 8)
#define BLOCKS (KEYS / 4 * (DEPTH / 4)) /* of 4 x 4 numbers, in each tile */
#define LOADS(e) (BLOCKS >= ITEMS || (e) < BLOCKS)
/* Whether the next block's numbers are in registers while the current one is used. */
#define AHEAD (BLOCKS <= ITEMS && CLT_WAVE == 64)

/* Block e, 4 keys at 4 places of the head, of k and v: from memory, zeros beyond `keys` keys and the head, ... All items take one
 * way: otherwise the loads of v wait for those of k. */
static inline void fetch_block(ushort4 kb[4], ushort4 vb[4], __global const ushort *k, uint ldk, __global const ushort *v,
                               uint ldv, int keys, int e)
{
    const int j = e / (DEPTH / 4) * 4, d = e % (DEPTH / 4) * 4;
    if (HEAD_DIM == DEPTH && keys >= KEYS) {
        clt_block4_fetch(kb, k + (size_t)j * ldk + d, ldk, 4, 4);
        clt_block4_fetch(vb, v + (size_t)j * ldv + d, ldv, 4, 4);
    } else {
        clt_block4_fetch(kb, k + (size_t)j * ldk + d, ldk, keys - j, HEAD_DIM - d);
        clt_block4_fetch(vb, v + (size_t)j * ldv + d, ldv, keys - j, HEAD_DIM - d);
        clt_block4_arrived(kb);
        clt_block4_arrived(vb);
    }
}
/* ... and into the tiles: k unchanged, v transposed. */
static inline void put_block(__local ushort *k_tile, __local ushort *v_tile, const ushort4 kb[4], const ushort4 vb[4], int e)
{
    const int j = e / (DEPTH / 4) * 4, d = e % (DEPTH / 4) * 4;
    clt_block4_put(k_tile + CLT_AT(PITCH, LENGTH, j, d), PITCH, kb, false);
    clt_block4_put(v_tile + CLT_AT(V_PITCH, LENGTH_OF(KEYS), d, j), V_PITCH, vb, true);
}

/* The scores of the block at j0 with the lane's query, -inf for keys that it does not see (all: it sees every key), and in n the
 * largest of n and the query's scores, which several lanes have. */
#define MAKE_SCORES(s, n, all)                                                                               \
    CLT_EACH(x, KEYS / 16)                                                                                   \
    {                                                                                                        \
        s[x] = (clt_acc)(0.0f);                                                                              \
        CLT_EACH(t, TILES)                                                                                   \
        s[x] = CLT_TILE16(TYPE, clt_frag_at(k_tile, PITCH, LENGTH, 0, x, t, lane), fq[t], s[x]);             \
        CLT_EACH(r, CLT_ACC)                                                                                 \
        {                                                                                                    \
            float t;                                                                                         \
            s[x][r] = scored(s[x][r], scale, softcap, slope, (int)j0 + 16 * x + CLT_ACC_ROW(lane, r) - (int)i, &t); \
        }                                                                                                    \
    }                                                                                                        \
    if (!(all)) {                                                                                            \
        /* Relative to the lane's first key of the block, so that the keys are constants. */                 \
        const int base_j = (int)j0 + CLT_ACC_ROW(lane, 0), from = (int)first - base_j, to = (int)end - base_j; \
        CLT_EACH(x, KEYS / 16) CLT_EACH(r, CLT_ACC)                                                          \
        {                                                                                                    \
            const int j = 16 * x + CLT_ACC_ROW(0, r);                                                        \
            if (!(j >= from && j < to && SAME_SEQUENCE(i, base_j + j))) s[x][r] = -attention_inf();          \
        }                                                                                                    \
    }                                                                                                        \
    CLT_EACH(x, KEYS / 16) CLT_EACH(r, CLT_ACC) n = fmax(n, s[x][r]);                                        \
    for (int mask = 16; mask < CLT_WAVE; mask *= 2) n = fmax(n, clt_lane_xor(n, lane, mask));

/* In the loop over blocks: BLOCK_FIRST before it, BLOCK_LOAD where the tiles are free, BLOCK_NEXT when they are filled. */
#define FETCH_AT(at, e) fetch_block(kb, vb, kh + (at)*ldk, ldk, vh + (at)*ldv, ldv, (int)min((size_t)KEYS, seq - (at)), e)
#if AHEAD
#define BLOCK_FIRST(at)                                                                                      \
    ushort4 kb[4], vb[4];                                                                                    \
    if (LOADS(item)) FETCH_AT(at, item);
#define BLOCK_LOAD(at)                                                                                       \
    if (LOADS(item)) put_block(k_tile, v_tile, kb, vb, item);
#define BLOCK_NEXT(at, end)                                                                                  \
    if ((at) < (end) && LOADS(item)) FETCH_AT(at, item);
#else
#define BLOCK_FIRST(at)
#define BLOCK_LOAD(at)                                                                                       \
    _Pragma("unroll 1") for (int e = item; e < BLOCKS; e += ITEMS)                                           \
    {                                                                                                        \
        ushort4 kb[4], vb[4];                                                                                \
        FETCH_AT(at, e);                                                                                     \
        put_block(k_tile, v_tile, kb, vb, e);                                                                \
    }
#define BLOCK_NEXT(at, end)
#endif

/* The block's probabilities of 16 keys, and their sum into l. */
#if DROPOUT
#define DROP_P                                                                                               \
    const size_t j = j0 + 16 * x + CLT_ACC_ROW(lane, r);                                                     \
    w = j < end && FACTOR(b, h, i, j) != 0.0f ? w : 0.0f;
#else
#define DROP_P
#endif
#define MAKE_P(p)                                                                                            \
    CLT_EACH(r, CLT_ACC)                                                                                     \
    {                                                                                                        \
        float w = CLT_EXP2(fma(s[x][r] - ref, LOG2E, (float)SHIFT));                                         \
        l = l + w;                                                                                           \
        DROP_P                                                                                               \
        p[r] = w;                                                                                            \
    }

__kernel CLT_TILE16_KERNEL(ITEMS) void
attention_forward(ATTENTION_ARGS, __global ELEM *o, ulong o_off, uint ldo, __global float *lse, ulong lse_off)
{
    __local ushort k_tile[KEYS * PITCH] __attribute__((aligned(16)));
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

    /* Blocks that every row of the group sees whole are not masked. */
    const size_t last_first = attention_first(min(i0 + ROWS, (size_t)seq) - 1, window), first_end = attention_end(i0, seq, window);
    size_t j0 = attention_first(i0, window) / KEYS * KEYS;
    BLOCK_FIRST(j0)
    for (; j0 < last_end; j0 = clt_uniform((uint)j0 + KEYS)) {
        barrier(CLK_LOCAL_MEM_FENCE);
        BLOCK_LOAD(j0)
        barrier(CLK_LOCAL_MEM_FENCE);
        BLOCK_NEXT(j0 + KEYS, last_end)
        const bool all = !SEQ_IDS && clt_uniform(j0 >= last_first && j0 + KEYS <= first_end);
        clt_acc s[KEYS / 16];
        float n = m;
        MAKE_SCORES(s, n, all)
        const float ref = n == -attention_inf() ? 0.0f : n, a = CLT_EXP2((m - ref) * LOG2E);
        m = n;
        l = l * a;
        CLT_EACH(t, TILES) acc[t] = acc[t] * a;
        CLT_EACH(x, KEYS / 16)
        {
            clt_acc p;
            MAKE_P(p)
            const clt_frag fp = clt_frag_of_acc(clt_acc_rounded(p, TYPE == 1), lane);
            CLT_EACH(t, TILES)
            acc[t] = CLT_TILE16(TYPE, clt_frag_at(v_tile, V_PITCH, LENGTH_OF(KEYS), 0, t, x, lane), fp, acc[t]);
        }
    }

    for (int mask = 16; mask < CLT_WAVE; mask *= 2) l = l + clt_lane_xor(l, lane, mask);
    if (!there) return;
    const float inverse = (DROPOUT ? drop_scale : 1.0f) / l;
    if (lane < 16) lse[lse_off + (b * heads + h) * seq + i] = m + clt_log(l * (1.0f / (1 << SHIFT)));
    put_row(acc, inverse, 1.0f, false, o + o_off + (base + i) * ldo + h * HEAD_DIM, lane);
}
