/* norm_rows: normalisation for CPUs, one work-item per row (backward: per block of 64 rows), in float16: 64
 * lanes are four vectors, so the order is that of the row rule. README.md defines the bits.
 *
 * Macros: PART 1 forward, 2 backward, 3 columns, 0 all (to shorten builds); RMS 0|1; forward HAS_B; HAS_W;
 * backward HAS_DX, HAS_DW, HAS_DB, HAS_RES; X_TYPE, Y_TYPE, DY_TYPE, DX_TYPE (norm_columns.clh). */
#define LANES 16
#include "norm_columns.clh"
#include "../include/clt_reduce.clh"

/* result = row sum over i of a lane step STEP(acc, i, left), which processes 16 elements from i, of which
 * `left` exist (its loads must stay within them); lanes past the end keep their value. */
#define ROW_RULE(result, n, STEP)                                                                            \
    do {                                                                                                     \
        clt_lanes s_ = clt_lanes_zero();                                                                     \
        size_t i_ = 0;                                                                                       \
        for (; i_ + 64 <= (n); i_ += 64) {                                                                   \
            s_.a = STEP(s_.a, i_, 16);                                                                       \
            s_.b = STEP(s_.b, i_ + 16, 16);                                                                  \
            s_.c = STEP(s_.c, i_ + 32, 16);                                                                  \
            s_.d = STEP(s_.d, i_ + 48, 16);                                                                  \
        }                                                                                                    \
        if (i_ < (n)) {                                                                                      \
            const size_t left_ = (n)-i_;                                                                     \
            s_.a = keep_lanes(STEP(s_.a, i_, clt_lanes_left(left_, 0)), s_.a, clt_lanes_left(left_, 0));     \
            s_.b = keep_lanes(STEP(s_.b, i_ + 16, clt_lanes_left(left_, 1)), s_.b, clt_lanes_left(left_, 1)); \
            s_.c = keep_lanes(STEP(s_.c, i_ + 32, clt_lanes_left(left_, 2)), s_.c, clt_lanes_left(left_, 2)); \
            s_.d = keep_lanes(STEP(s_.d, i_ + 48, clt_lanes_left(left_, 3)), s_.d, clt_lanes_left(left_, 3)); \
        }                                                                                                    \
        result = clt_lanes_tree(s_);                                                                         \
    } while (0)

/* The first n (any number) elements of v, the others of old. */
static inline float16 keep_lanes(float16 v, float16 old, size_t n) {
    const int16 index = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return index < (int16)(n < 16 ? (int)n : 16) ? v : old;
}

static inline float16 square_step(float16 acc, float16 d) {
    return fma(d, d, acc);
}

#if HAS_W
#define TIMES_W(v, i, left) ((v)*clt_load16(w + (i), left))
#else
#define TIMES_W(v, i, left) (v)
#endif

#if PART == 0 || PART == 1
static inline float16 norm_out(float16 v, __global const float *w, __global const float *b, size_t i,
                               size_t left) {
#if HAS_W && HAS_B
    return fma(v, clt_load16(w + i, left), clt_load16(b + i, left));
#elif HAS_B
    return v + clt_load16(b + i, left);
#else
    return TIMES_W(v, i, left);
#endif
}

__kernel void norm_forward(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off,
                           __global const float *b, ulong b_off, __global y_elem *y, ulong y_off,
                           __global float *mean, ulong mean_off, __global float *rstd, ulong rstd_off, ulong cols,
                           ulong heads, ulong ldx, ulong ldy, float eps) {
    const size_t row = get_global_id(0), token = row / heads, head = row % heads, n = cols;
    x += x_off + token * ldx + head * n;
    y += y_off + token * ldy + head * n;
    w += w_off;
    b += b_off;
    float m = 0.0f, q;
#if RMS
#define DEVIATION(i, left) CLT_LOAD16(X_TYPE, x + (i), left)
#else
#define SUM_STEP(acc, i, left) ((acc) + CLT_LOAD16(X_TYPE, x + (i), left))
    ROW_RULE(m, n, SUM_STEP);
    m = m / (float)n;
    if (mean) mean[mean_off + row] = m;
#define DEVIATION(i, left) (CLT_LOAD16(X_TYPE, x + (i), left) - m)
#endif
#define SQUARE_STEP(acc, i, left) square_step(acc, DEVIATION(i, left))
    ROW_RULE(q, n, SQUARE_STEP);
    const float r = 1.0f / sqrt(q / (float)n + eps);
    if (rstd) rstd[rstd_off + row] = r;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) CLT_STORE16(Y_TYPE, norm_out(DEVIATION(i, 16) * r, w, b, i, 16), y + i, 16);
    if (i < n) CLT_STORE16(Y_TYPE, norm_out(DEVIATION(i, n - i) * r, w, b, i, n - i), y + i, n - i);
}
#endif

#if PART == 0 || PART == 2
/* One row of the backward pass. pw and pb: the block's sums so far. */
static inline void backward_row(__global const x_elem *x, __global const float *w, __global const dy_elem *dy,
                                __global const dx_elem *res, __global dx_elem *dx, __global float *pw,
                                __global float *pb, size_t n, float m, float r) {
#if RMS
#define XHAT(i, left) (CLT_LOAD16(X_TYPE, x + (i), left) * r)
#else
#define XHAT(i, left) ((CLT_LOAD16(X_TYPE, x + (i), left) - m) * r)
#endif
#define G(i, left) TIMES_W(CLT_LOAD16(DY_TYPE, dy + (i), left), i, left)
#define C1_STEP(acc, i, left) ((acc) + G(i, left))
#define C2_STEP(acc, i, left) fma(G(i, left), XHAT(i, left), acc)
    float c1 = 0.0f, c2 = 0.0f;
#if HAS_DX
#if !RMS
    ROW_RULE(c1, n, C1_STEP);
    c1 = c1 / (float)n;
#endif
    ROW_RULE(c2, n, C2_STEP);
    c2 = c2 / (float)n;
#endif
    for (size_t i = 0; i < n; i += 16) {
        const size_t left = n - i;
        const float16 xhat = XHAT(i, left);
#if HAS_DX
        const float16 g = G(i, left);
        /* dx may be dy: dw and db read dy first */
        const float16 dyv = CLT_LOAD16(DY_TYPE, dy + i, left);
        float16 v = RMS ? g - xhat * c2 : (g - c1) - xhat * c2;
        v = v * r;
#if HAS_RES
        v = CLT_LOAD16(DX_TYPE, res + i, left) + v;
#endif
        CLT_STORE16(DX_TYPE, v, dx + i, left);
#else
        const float16 dyv = CLT_LOAD16(DY_TYPE, dy + i, left);
#endif
#if HAS_DW
        clt_store16(fma(dyv, xhat, clt_load16(pw + i, left)), pw + i, left);
#endif
#if HAS_DB
        clt_store16(clt_load16(pb + i, left) + dyv, pb + i, left);
#endif
    }
}

/* One work-item per block of 64 rows inside a sample; part_w and part_b: [samples * blocks, cols]. */
__kernel void norm_backward(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off,
                            __global const float *mean, ulong mean_off, __global const float *rstd, ulong rstd_off,
                            __global const dy_elem *dy, ulong dy_off, __global const dx_elem *res, ulong res_off,
                            __global dx_elem *dx, ulong dx_off, __global float *part, ulong part_w, ulong part_b,
                            ulong cols, ulong heads, ulong rows_per_sample, ulong blocks, ulong ldx, ulong lddy,
                            ulong ldres, ulong lddx) {
    const size_t block = get_global_id(0), sample = block / blocks, n = cols;
    const size_t begin = (block % blocks) * 64, end = begin + 64 < rows_per_sample ? begin + 64 : rows_per_sample;
    __global float *pw = part + part_w + block * n, *pb = part + part_b + block * n;
    for (size_t i = 0; i < n; i += 16) {
#if HAS_DW
        clt_store16((float16)(0.0f), pw + i, n - i);
#endif
#if HAS_DB
        clt_store16((float16)(0.0f), pb + i, n - i);
#endif
    }
    for (size_t k = begin; k < end; k++) {
        const size_t row = sample * rows_per_sample + k, token = row / heads, at = row % heads * n;
        const float m = RMS ? 0.0f : mean[mean_off + row];
        backward_row(x + x_off + token * ldx + at, w + w_off, dy + dy_off + token * lddy + at,
                     res + res_off + token * ldres + at, dx + dx_off + token * lddx + at, pw, pb, n, m,
                     rstd[rstd_off + row]);
    }
}
#endif

#if PART == 0 || PART == 3
/* Block sums of plain columns: item (span of `span` columns, block). Rows are read in order, four at a time.
 */
__kernel void columns_blocks(__global const x_elem *x, ulong x_off, __global float *part, ulong part_off, ulong cols,
                             ulong rows_per_sample, ulong blocks, ulong ldx, ulong span) {
    const size_t block = get_global_id(1), sample = block / blocks, first = get_global_id(0) * span;
    const size_t begin = (block % blocks) * 64, end = begin + 64 < rows_per_sample ? begin + 64 : rows_per_sample;
    const size_t last = first + span < cols ? first + span : cols;
    __global float *p = part + part_off + block * cols;
    x += x_off + sample * rows_per_sample * ldx;
    for (size_t c = first; c < last; c += 16) clt_store16((float16)(0.0f), p + c, last - c);
    size_t r = begin;
    for (; r + 4 <= end; r += 4) {
        __global const x_elem *x0 = x + r * ldx, *x1 = x0 + ldx, *x2 = x1 + ldx, *x3 = x2 + ldx;
        for (size_t c = first; c < last; c += 16) {
            const size_t left = last - c;
            float16 v = clt_load16(p + c, left) + CLT_LOAD16(X_TYPE, x0 + c, left);
            v = v + CLT_LOAD16(X_TYPE, x1 + c, left);
            v = v + CLT_LOAD16(X_TYPE, x2 + c, left);
            clt_store16(v + CLT_LOAD16(X_TYPE, x3 + c, left), p + c, left);
        }
    }
    for (; r < end; r++)
        for (size_t c = first; c < last; c += 16)
            clt_store16(clt_load16(p + c, last - c) + CLT_LOAD16(X_TYPE, x + r * ldx + c, last - c), p + c,
                        last - c);
}
#endif
