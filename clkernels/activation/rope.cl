/* Rotary positions in place: the pair (i, i + D/2) of each head of row r is turned by the angle of position r % seq:
 *     a' = a cos - b sin,  b' = b cos + a sin      (inverse: -sin)
 * with every product and sum rounded. cos_sin: [seq, D/2, 2].
 *
 * Global size {heads * D/2 rounded up to the work-group, rows}: one pair a work-item. Requires nothing. */
#include "../include/clt_types.clh"

__kernel void rope(ulong seq, ulong heads, ulong half_dim, __global float *x, ulong x_off, ulong ldx,
                   __global const float *cos_sin, ulong cos_sin_off, float sign) {
    size_t r = get_global_id(1), pair = get_global_id(0);
    if (pair >= heads * half_dim) return;
    size_t i = pair % half_dim;
    __global float *a = x + x_off + r * ldx + pair / half_dim * (2 * half_dim) + i;
    __global const float *cs = cos_sin + cos_sin_off + ((r % seq) * half_dim + i) * 2;
    float c = cs[0], s = sign * cs[1], u = a[0], v = a[half_dim];
    a[0] = u * c - v * s;
    a[half_dim] = v * c + u * s;
}

/* The same with one row a work-item, for CPUs: global size {rows}. */
__kernel void rope_row(ulong seq, ulong heads, ulong half_dim, __global float *x, ulong x_off, ulong ldx,
                       __global const float *cos_sin, ulong cos_sin_off, float sign) {
    size_t r = get_global_id(0);
    __global const float *cs = cos_sin + cos_sin_off + (r % seq) * half_dim * 2;
    for (size_t h = 0; h < heads; h++) {
        __global float *a = x + x_off + r * ldx + h * 2 * half_dim, *b = a + half_dim;
        size_t i = 0;
        for (; i + 16 <= half_dim; i += 16) {
            float16 lo = vload16(0, cs + 2 * i), hi = vload16(0, cs + 2 * i + 16);
            float16 c = (float16)(lo.even, hi.even), s = sign * (float16)(lo.odd, hi.odd);
            float16 u = vload16(0, a + i), v = vload16(0, b + i);
            vstore16(u * c - v * s, 0, a + i);
            vstore16(v * c + u * s, 0, b + i);
        }
        for (; i < half_dim; i++) {
            float c = cs[2 * i], s = sign * cs[2 * i + 1], u = a[i], v = b[i];
            a[i] = u * c - v * s;
            b[i] = v * c + u * s;
        }
    }
}
