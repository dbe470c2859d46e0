/* y = [residual +] x * factor, where factor is +0 or 1/(1-p) according to Philox (include/clt_philox.clh). A
 * work-item computes SEG elements of one sample, four per counter; a sample has `count` elements (seq *
 * cols).
 *
 *   SEG       elements per work-item, a multiple of 4; of 64 on CPUs, where 16 counters go together
 *   RESIDUAL  1: there is a residual
 *   WHOLE     1: all elements of a sample have the factor of its first one
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
#ifndef WHOLE
#define WHOLE 0
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

#if SEG % 64 == 0
#include "../include/clt_philox16.clh"

/* a[0], b[0], a[1], b[1], ... a[7], b[7] */
static inline float16 zip(float8 a, float8 b) {
    float16 v;
    v.even = a;
    v.odd = b;
    return v;
}

/* The factors of 64 elements from 4 * quad, which is a multiple of 64, as clt_dropout4's. */
static inline void factors64(float16 f[4], uint2 key, uint step, uint sample, uint place, ulong quad,
                             uint threshold, float scale) {
    const uint16 lane = (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint16 c[4] = {(uint16)(step), (uint16)(sample), (uint16)(place | (uint)(quad >> 32) << 16),
                   (uint)quad + lane};
    float16 w[4], even[2], odd[2];
    clt_philox4x32_16(c, key);
    for (int i = 0; i < 4; i++) w[i] = c[i] < threshold ? (float16)(0.0f) : (float16)(scale);
    even[0] = zip(w[0].lo, w[2].lo);
    even[1] = zip(w[0].hi, w[2].hi);
    odd[0] = zip(w[1].lo, w[3].lo);
    odd[1] = zip(w[1].hi, w[3].hi);
    for (int i = 0; i < 2; i++) {
        f[2 * i] = zip(even[i].lo, odd[i].lo);
        f[2 * i + 1] = zip(even[i].hi, odd[i].hi);
    }
}
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
    size_t e = begin;
#if WHOLE
    const float factor = clt_dropout4((uint2)(key0, key1), step, first_sample + (uint)sample, place, 0,
                                      threshold, scale).x;
    for (; e < end; e++) {
        const float v = CLT_LOAD(X_TYPE, x + e) * factor;
#if RESIDUAL
        CLT_STORE(Y_TYPE, CLT_LOAD(Y_TYPE, residual + e) + v, y + e);
#else
        CLT_STORE(Y_TYPE, v, y + e);
#endif
    }
#elif SEG % 64 == 0
    for (; e + 64 <= end; e += 64) {
        float16 factor[4];
        factors64(factor, (uint2)(key0, key1), step, first_sample + (uint)sample, place, e / 4, threshold,
                  scale);
        for (int i = 0; i < 4; i++) {
            float16 v = CLT_LOAD16(X_TYPE, x + e + 16 * i, 16) * factor[i];
#if RESIDUAL
            v = CLT_LOAD16(Y_TYPE, residual + e + 16 * i, 16) + v;
#endif
            CLT_STORE16(Y_TYPE, v, y + e + 16 * i, 16);
        }
    }
#endif
    for (; e < end; e += 4) {
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
