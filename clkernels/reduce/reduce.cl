/* Sums along rows by the row rule (include/clt_reduce.clh), and the status of the gradient's norm.
 *
 *   LANES   16: one row per work-item, work-group of one (CPU); 1: 64 work-items per row, work-group of 64
 *           (portable)
 *
 * Global size: rows, or 64 * rows. Requires nothing. */
#include "../include/clt_reduce.clh"

#ifndef LANES
#define LANES 1
#endif

#if LANES == 16
#define ROW get_global_id(0)
#define FIRST_ITEM 1
#define AHEAD 2048
typedef float16 unaligned16 __attribute__((aligned(4)));
#define AT16(p) (*(__global const unaligned16 *)(p))
#define EACH_LINE(l) _Pragma("unroll") for (int l = 0; l < 4; l++)
#define STEP16(acc, v) (square ? fma(v, v, acc) : (acc) + (v))

/* Sum of x[0..n), or of its squares (one fma each). */
static inline float row_reduce(__global const float *x, size_t n, int square, __local float *unused) {
    clt_lanes s = clt_lanes_zero();
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        EACH_LINE(l) CLT_PREFETCH(x + i + AHEAD + 16 * l, 0, 3);
        s.a = STEP16(s.a, AT16(x + i));
        s.b = STEP16(s.b, AT16(x + i + 16));
        s.c = STEP16(s.c, AT16(x + i + 32));
        s.d = STEP16(s.d, AT16(x + i + 48));
    }
    if (i < n) {
        const size_t left = n - i;
        s.a = STEP16(s.a, clt_load16(x + i, left));
        s.b = STEP16(s.b, clt_load16(x + i + 16, clt_lanes_left(left, 1)));
        s.c = STEP16(s.c, clt_load16(x + i + 32, clt_lanes_left(left, 2)));
        s.d = STEP16(s.d, clt_load16(x + i + 48, clt_lanes_left(left, 3)));
    }
    return clt_lanes_tree(s);
}
#else
#define ROW get_group_id(0)
#define FIRST_ITEM (get_local_id(0) == 0)

static inline float row_reduce(__global const float *x, size_t n, int square, __local float *lane) {
    float s = 0.0f;
    for (size_t i = get_local_id(0); i < n; i += 64) s = square ? fma(x[i], x[i], s) : s + x[i];
    lane[get_local_id(0)] = s;
    return clt_tree64(lane, get_local_id(0));
}
#endif

/* out[r] = sum of row r */
__kernel void row_sum(ulong cols, __global const float *x, ulong x_off, ulong ldx, __global float *out,
                      ulong out_off) {
    __local float lane[64];
    float s = row_reduce(x + x_off + ROW * ldx, cols, 0, lane);
    if (FIRST_ITEM) out[out_off + ROW] = s;
}

/* out[r] = sum of the squares of row r */
__kernel void row_sumsq(ulong cols, __global const float *x, ulong x_off, ulong ldx, __global float *out,
                        ulong out_off) {
    __local float lane[64];
    float s = row_reduce(x + x_off + ROW * ldx, cols, 1, lane);
    if (FIRST_ITEM) out[out_off + ROW] = s;
}

/* out[places[k]] = sum of the squares of segment k = segments[k] = {its first block of 64 elements, its
 * elements}; x begins with block `first`. */
__kernel void segment_sumsq(__global const float *x, ulong x_off, __global const uint2 *segments, ulong segments_off,
                            __global const uint *places, ulong places_off, ulong first, __global float *out,
                            ulong out_off) {
    __local float lane[64];
    const uint2 segment = segments[segments_off + ROW];
    const float s = row_reduce(x + x_off + (segment.x - first) * 64, segment.y, 1, lane);
    if (FIRST_ITEM) out[out_off + places[places_off + ROW]] = s;
}

/* status = {norm, clip coefficient, 1 if the norm is finite}, for one row. The sums are of gradients that
 * carry a factor 1 / inv_scale, which norm and coefficient remove. */
__kernel void norm_status(ulong count, __global const float *sums, ulong sums_off, float threshold,
                          float inv_scale, __global float *status, ulong status_off) {
    __local float lane[64];
    float norm = inv_scale * sqrt(row_reduce(sums + sums_off, count, 0, lane));
    if (FIRST_ITEM) {
        float c = threshold / (norm + 1e-6f);
        status[status_off] = norm;
        status[status_off + 1] = inv_scale * (threshold > 0.0f && c < 1.0f ? c : 1.0f);
        status[status_off + 2] = (as_uint(norm) & 0x7f800000u) != 0x7f800000u ? 1.0f : 0.0f;
    }
}
