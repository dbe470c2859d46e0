/* The last rows of attention on CPUs (see attention_last.cl; README.md is the definition): a work-item has
 * one query row of one head. Blocks of 16 keys are transposed, so that a vector holds 16 scores and softmax
 * is plain vector arithmetic; the output is vectors of the head's elements.
 *
 * Launch: local {1, 1, 1}, global {1, heads, rows}. Options: those of attention.clh. */
#include "attention_cpu.clh"
#include "../include/clt_reduce.clh"

#if SEQ_IDS || DROPOUT
#error "no sequence ids and no dropout here"
#endif

/* The query's chains over the head with 16 keys, of which n exist; the others repeat the last one. */
INLINE float16 products(const float *query, __global const ELEM *key, size_t ld, int n) {
    float16 s = (float16)(0.0f);
    for (int c = 0; c < DV; c++) {
        float16 a[16];
#pragma unroll
        for (int r = 0; r < 16; r++) a[r] = CLT_LOAD16(TYPE, key + min(r, n - 1) * ld + 16 * c, WIDTH(c));
        transpose16(a);
#pragma unroll
        for (int d = 0; d < 16; d++)
            if (16 * c + d < HEAD_DIM) s = fma((float16)(query[16 * c + d]), a[d], s);
    }
    return s;
}

/* The largest lane (no NaN among them). */
INLINE float largest(float16 v) {
    const float8 v8 = v.lo > v.hi ? v.lo : v.hi;
    const float4 v4 = v8.lo > v8.hi ? v8.lo : v8.hi;
    const float2 v2 = v4.lo > v4.hi ? v4.lo : v4.hi;
    return v2.lo > v2.hi ? v2.lo : v2.hi;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
attention_last(ATTENTION_ARGS, __global ELEM *o, ulong o_off, uint ldo, uint first) {
    const size_t h = get_global_id(1), row = get_global_id(2);
    const int i = (int)(first + row), lo = (int)attention_first(i, window);
    const int hi = (int)attention_end(i, seq, window);
    const float slope = SLOPE(h);
    float16 query[DV], acc[DV];
    float m = -attention_inf(), l = 0.0f;
    q += q_off + row * ldq + h * HEAD_DIM;
    k += k_off + h / group * HEAD_DIM;
    v += v_off + h / group * HEAD_DIM;
    o += o_off + row * ldo + h * HEAD_DIM;
    for (int c = 0; c < DV; c++) {
        query[c] = CLT_LOAD16(TYPE, q + 16 * c, WIDTH(c));
        acc[c] = (float16)(0.0f);
    }
    for (int block = lo / BLOCK * BLOCK; block < hi; block += BLOCK) {
        const int begin = max(lo, block), end = min(hi, block + BLOCK);
        float16 p[NV], top = (float16)(m), unused;
        for (int w = 0; w < NV; w++) {
            const int j = block + 16 * w;
            p[w] = (float16)(-attention_inf());
            if (j >= end || j + 16 <= begin) continue;
            float16 s = products((const float *)query, k + (size_t)j * ldk, ldk, end - j);
            s = scored16(s, scale, softcap, slope, j + lanes() - i, &unused);
            p[w] = j + lanes() >= begin && j + lanes() < end ? s : p[w];
            top = p[w] > top ? p[w] : top;
        }
        const float n = largest(top), r = n == -attention_inf() ? 0.0f : n, a = clt_exp(m - r);
        for (int w = 0; w < NV; w++) p[w] = clt_exp16(p[w] - r);
        const clt_lanes sums = {p[0], p[1], p[2], p[3]};
        l = fma(l, a, clt_lanes_tree(sums));
        m = n;
#pragma unroll
        for (int c = 0; c < DV; c++) acc[c] = acc[c] * a;
        for (int j = begin; j < end; j++) {
            const float16 weight = (float16)(((const float *)p)[j - block]);
#pragma unroll
            for (int c = 0; c < DV; c++)
                acc[c] = fma(weight, CLT_LOAD16(TYPE, v + (size_t)j * ldv + 16 * c, WIDTH(c)), acc[c]);
        }
    }
    const float inv = 1.0f / l;
#pragma unroll
    for (int c = 0; c < DV; c++) CLT_STORE16(TYPE, acc[c] * inv, o + 16 * c, WIDTH(c));
}
