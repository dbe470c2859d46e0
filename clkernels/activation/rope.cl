/* Rotary positions in place: the pair (i, i + D/2) of each head of row r is rotated by the angle of position
 * r % seq:
 *     a' = a cos - b sin,  b' = b cos + a sin      (inverse: -sin)
 * with every product and sum rounded. cos_sin: [seq, D/2, 2].
 *
 *   TYPE      clt_dtype of x (include/clt_store.clh)
 *   PARTIAL   a last argument says how far apart heads are; the first D dimensions of each rotate. Without
 *             it they are D apart.
 *
 * Global size {heads * D/2 rounded up to the work-group, rows}: one pair per work-item. Requires nothing. */
#include "../include/clt_store.clh"

#ifndef TYPE
#define TYPE 0
#endif
typedef CLT_T(TYPE) elem;
#ifdef PARTIAL
#define HEAD_ARGUMENT , ulong head
#define HEAD head
#else
#define HEAD_ARGUMENT
#define HEAD (2 * half_dim)
#endif

__kernel void rope(ulong seq, ulong heads, ulong half_dim, __global elem *x, ulong x_off, ulong ldx,
                   __global const float *cos_sin, ulong cos_sin_off, float sign HEAD_ARGUMENT) {
    size_t r = get_global_id(1), pair = get_global_id(0);
    if (pair >= heads * half_dim) return;
    size_t i = pair % half_dim;
    __global elem *a = x + x_off + r * ldx + pair / half_dim * HEAD + i;
    __global const float *cs = cos_sin + cos_sin_off + ((r % seq) * half_dim + i) * 2;
    float c = cs[0], s = sign * cs[1], u = CLT_LOAD(TYPE, a), v = CLT_LOAD(TYPE, a + half_dim);
    CLT_STORE(TYPE, u * c - v * s, a);
    CLT_STORE(TYPE, v * c + u * s, a + half_dim);
}

/* The same with one row per work-item, for CPUs: global size {rows}. */
__kernel void rope_row(ulong seq, ulong heads, ulong half_dim, __global elem *x, ulong x_off, ulong ldx,
                       __global const float *cos_sin, ulong cos_sin_off, float sign HEAD_ARGUMENT) {
    size_t r = get_global_id(0);
    __global const float *cs = cos_sin + cos_sin_off + (r % seq) * half_dim * 2;
    for (size_t h = 0; h < heads; h++) {
        __global elem *a = x + x_off + r * ldx + h * HEAD, *b = a + half_dim;
        size_t i = 0;
        for (; i + 16 <= half_dim; i += 16) {
            float16 lo = vload16(0, cs + 2 * i), hi = vload16(0, cs + 2 * i + 16);
            float16 c = (float16)(lo.even, hi.even), s = sign * (float16)(lo.odd, hi.odd);
            float16 u = CLT_LOAD16(TYPE, a + i, 16), v = CLT_LOAD16(TYPE, b + i, 16);
            CLT_STORE16(TYPE, u * c - v * s, a + i, 16);
            CLT_STORE16(TYPE, v * c + u * s, b + i, 16);
        }
        for (; i < half_dim; i++) {
            float c = cs[2 * i], s = sign * cs[2 * i + 1], u = CLT_LOAD(TYPE, a + i), v = CLT_LOAD(TYPE, b + i);
            CLT_STORE(TYPE, u * c - v * s, a + i);
            CLT_STORE(TYPE, v * c + u * s, b + i);
        }
    }
}
