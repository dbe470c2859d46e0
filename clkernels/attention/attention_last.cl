/* The last rows of attention: few queries, with keys and values of these and all earlier positions in a cache
 * (README.md is the definition; these are its forward rows, with the same words).
 *
 * A work-group of 64 items has one query row of one head. In a block of 64 keys item x has key x: its score,
 * its part of the maximum and of the sum. For the output item x has the elements x, x + 64, ... of the head,
 * each a chain over the block's keys.
 *
 * q and o: the rows of positions `first` and later. k, v: from position 0. One sample; no sequence ids, no
 * dropout.
 * Launch: local {64, 1, 1}, global {64, heads, rows}. Options: those of attention.clh. */
#include "attention.clh"
#include "../include/clt_reduce.clh"

#if SEQ_IDS || DROPOUT
#error "no sequence ids and no dropout here"
#endif
#define OWN ((HEAD_DIM + BLOCK - 1) / BLOCK)

/* the score of the query and a key: a chain over the head */
static inline float score_of(__local const float *query, __global const ELEM *key, float scale, float softcap, float slope,
                             int distance) {
    float s = 0.0f, unused;
    for (size_t d = 0; d < HEAD_DIM; d++) s = fma(query[d], GET(key[d]), s);
    return scored(s, scale, softcap, slope, distance, &unused);
}

__kernel void attention_last(ATTENTION_ARGS, __global ELEM *o, ulong o_off, uint ldo, uint first) {
    __local float query[HEAD_DIM], weight[BLOCK], tree[BLOCK];
    const uint item = (uint)get_local_id(0);
    const size_t h = get_group_id(1), row = get_group_id(2), i = first + row, lo = attention_first(i, window);
    float m = -attention_inf(), l = 0.0f, acc[OWN];
    q += q_off + row * ldq + h * HEAD_DIM;
    k += k_off + h / group * HEAD_DIM;
    v += v_off + h / group * HEAD_DIM;
    o += o_off + row * ldo + h * HEAD_DIM;
    for (uint d = item; d < HEAD_DIM; d += BLOCK) query[d] = GET(q[d]);
#pragma unroll
    for (uint x = 0; x < OWN; x++) acc[x] = 0.0f;
    const size_t hi = attention_end(i, seq, window);
    for (size_t block = lo / BLOCK * BLOCK; block < hi; block += BLOCK) {
        const size_t begin = max(lo, block), end = min(hi, block + BLOCK), j = block + item;
        const bool exists = j >= begin && j < end;
        float s = -attention_inf();
        barrier(CLK_LOCAL_MEM_FENCE); /* the query is loaded; weight and tree are free */
        if (exists) s = score_of(query, k + j * ldk, scale, softcap, SLOPE(h), (int)j - (int)i);
        tree[item] = s == s ? s : -attention_inf(); /* a NaN is ignored */
        const float most = clt_max64(tree, item), n = m < most ? most : m, r = n == -attention_inf() ? 0.0f : n;
        const float a = clt_exp(m - r), p = exists ? clt_exp(s - r) : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE); /* all items have the maximum */
        weight[item] = tree[item] = p;
        l = fma(l, a, clt_tree64(tree, item));
        m = n;
#pragma unroll
        for (uint x = 0; x < OWN; x++) {
            const size_t d = item + x * BLOCK;
            if (d >= HEAD_DIM) continue;
            acc[x] = acc[x] * a;
            for (size_t y = begin; y < end; y++) acc[x] = fma(weight[y - block], GET(v[y * ldv + d]), acc[x]);
        }
    }
    const float inv = 1.0f / l;
#pragma unroll
    for (uint x = 0; x < OWN; x++)
        if (item + x * BLOCK < HEAD_DIM) o[item + x * BLOCK] = PUT(acc[x] * inv);
}
