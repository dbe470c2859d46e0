/* y = [residual +] x * factor, where factor is +0 or 1/(1-p) according to Philox (include/clt_philox.clh). A
 * work-item computes SEG elements of one sample, four per counter; a sample has `count` elements (seq *
 * cols).
 *
 *   SEG       elements per work-item, a multiple of 4
 *   RESIDUAL  1: there is a residual
 *   X_TYPE    clt_dtype of x;  Y_TYPE: of y and residual (include/clt_store.clh)
 *
 * Global size {work-items per sample, samples}. Requires nothing. `total`: elements of all samples. */
#include "../include/clt_philox.clh"
#include "../include/clt_store.clh"

#ifndef SEG
#define SEG 4
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#ifndef X_TYPE
#define X_TYPE 0
#endif
#ifndef Y_TYPE
#define Y_TYPE 0
#endif
#if SEG % 4 != 0
#error "SEG is a multiple of 4"
#endif

__kernel void dropout(ulong count, ulong total, __global const CLT_T(X_TYPE) *x, ulong x_off,
                      __global const CLT_T(Y_TYPE) *residual, ulong residual_off, __global CLT_T(Y_TYPE) *y, ulong y_off,
                      uint key0, uint key1, uint step, uint first_sample, uint place, uint threshold,
                      float scale) {
    size_t sample = get_global_id(1), base = sample * count;
    size_t begin = get_global_id(0) * SEG, end = begin + SEG < count ? begin + SEG : count;
    if (base + end > total) end = total - base; /* the last sample may be incomplete */
    x += x_off + base;
    y += y_off + base;
#if RESIDUAL
    residual += residual_off + base;
#endif
    for (size_t e = begin; e < end; e += 4) {
        float factor[4];
        vstore4(clt_dropout4((uint2)(key0, key1), step, first_sample + (uint)sample, place, e / 4, threshold,
                             scale),
                0, factor);
        for (size_t i = 0; i < 4 && e + i < end; i++) {
            const float v = CLT_LOAD(X_TYPE, x + e + i) * factor[i];
#if RESIDUAL
            CLT_STORE(Y_TYPE, CLT_LOAD(Y_TYPE, residual + e + i) + v, y + e + i);
#else
            CLT_STORE(Y_TYPE, v, y + e + i);
#endif
        }
    }
}
