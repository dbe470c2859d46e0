/* Small elementwise operations over rows x cols elements with row distances ld*: sums, copies, clamps, row
 * factors, a constant added to a vector, and the count of elements that are not finite.
 *
 *   TYPE         clt_dtype of all tensors except factors (include/clt_store.clh)
 *   LANES, SEG   include/clt_lane.clh
 *
 * Global size {work-items per row, rows}. Requires nothing. */
#include "../include/clt_lane.clh"

#ifndef TYPE
#define TYPE 0
#endif
typedef CLT_T(TYPE) elem;

/* dst += src */
__kernel void add(ulong cols, __global elem *dst, ulong dst_off, ulong lddst, __global const elem *src,
                  ulong src_off, ulong ldsrc) {
    dst += dst_off + get_global_id(1) * lddst;
    src += src_off + get_global_id(1) * ldsrc;
    CLT_SPAN(c, end, cols) VSTORE_AS(TYPE, VLOAD_AS(TYPE, dst + c, end - c) + VLOAD_AS(TYPE, src + c, end - c), dst + c, end - c);
}

__kernel void copy_rows(ulong cols, __global const elem *src, ulong src_off, ulong ldsrc,
                        __global elem *dst, ulong dst_off, ulong lddst) {
    src += src_off + get_global_id(1) * ldsrc;
    dst += dst_off + get_global_id(1) * lddst;
    CLT_SPAN(c, end, cols) VSTORE_AS(TYPE, VLOAD_AS(TYPE, src + c, end - c), dst + c, end - c);
}

static inline VEC clamp_to(VEC x, float limit) {
    VEC y = x > limit ? (VEC)(limit) : x;
    return y < -limit ? (VEC)(-limit) : y;
}

/* y = x limited to [-limit, limit]; NaN stays */
__kernel void clip_forward(ulong cols, __global const elem *x, ulong x_off, ulong ldx, __global elem *y,
                           ulong y_off, ulong ldy, float limit) {
    x += x_off + get_global_id(1) * ldx;
    y += y_off + get_global_id(1) * ldy;
    CLT_SPAN(c, end, cols) VSTORE_AS(TYPE, clamp_to(VLOAD_AS(TYPE, x + c, end - c), limit), y + c, end - c);
}

/* dx = dy where |x| <= limit, else +0 */
__kernel void clip_backward(ulong cols, __global const elem *x, ulong x_off, ulong ldx,
                            __global const elem *dy, ulong dy_off, ulong lddy, __global elem *dx,
                            ulong dx_off, ulong lddx, float limit) {
    x += x_off + get_global_id(1) * ldx;
    dy += dy_off + get_global_id(1) * lddy;
    dx += dx_off + get_global_id(1) * lddx;
    CLT_SPAN(c, end, cols) {
        VEC v = VLOAD_AS(TYPE, x + c, end - c), d = VLOAD_AS(TYPE, dy + c, end - c);
        VSTORE_AS(TYPE, ((v <= limit) & (v >= -limit)) ? d : (VEC)(0.0f), dx + c, end - c);
    }
}

/* x[r, :] *= factor[r % seq] */
__kernel void scale_rows(ulong cols, __global elem *x, ulong x_off, ulong ldx, __global const float *factor,
                         ulong factor_off, ulong seq) {
    x += x_off + get_global_id(1) * ldx;
    float f = factor[factor_off + get_global_id(1) % seq];
    CLT_SPAN(c, end, cols) VSTORE_AS(TYPE, VLOAD_AS(TYPE, x + c, end - c) * f, x + c, end - c);
}

/* y = x + value */
__kernel void offset(ulong cols, __global const elem *x, ulong x_off, ulong ldx, __global elem *y,
                     ulong y_off, ulong ldy, float value) {
    x += x_off + get_global_id(1) * ldx;
    y += y_off + get_global_id(1) * ldy;
    CLT_SPAN(c, end, cols) VSTORE_AS(TYPE, VLOAD_AS(TYPE, x + c, end - c) + value, y + c, end - c);
}

/* counter[0] += elements whose exponent bits are all set. An integer sum, so its order does not matter. */
__kernel void count_nonfinite(ulong cols, __global const elem *x, ulong x_off, ulong ldx,
                              __global uint *counter, ulong counter_off) {
    x += x_off + get_global_id(1) * ldx;
    uint n = 0;
    size_t begin = get_global_id(0) * SEG, end = begin + SEG < cols ? begin + SEG : cols;
    for (size_t c = begin; c < end; c++) n += (as_uint(CLT_LOAD(TYPE, x + c)) & 0x7f800000u) == 0x7f800000u;
    if (n) atomic_add(counter + counter_off, n);
}
