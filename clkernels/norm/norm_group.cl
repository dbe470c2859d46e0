/* norm_group: normalisation with a work-group of 64 per row, or with one work-item; the dw and db block sums
 * have one work-item per (column, block of 64 rows). README.md defines the bits.
 *
 * Macros: PART 1 forward, 2 backward, 3 columns, 0 all (to shorten builds); RMS 0|1; forward HAS_B; HAS_W;
 * backward HAS_DW, HAS_DB, HAS_RES; X_TYPE, Y_TYPE, DY_TYPE, DX_TYPE (norm_columns.clh); WG 64 or 1, the
 * local size. */
#ifndef WG
#define WG 64
#endif
#if WG != 64 && WG != 1
#error "WG is 64 or 1"
#endif
#define LANES 1
#include "norm_columns.clh"
#include "../include/clt_row.clh"

/* The row sum of the items' lane sums, to all of them. */
static inline float row_sum(clt_lane_sums sums, __local float *s) {
    barrier(CLK_LOCAL_MEM_FENCE);
    return clt_lane_sums_tree(sums, s);
}

#if PART == 0 || PART == 1
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
norm_forward(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off, __global const float *b,
             ulong b_off, __global y_elem *y, ulong y_off, __global float *mean, ulong mean_off, __global float *rstd,
             ulong rstd_off, ulong cols, ulong heads, ulong ldx, ulong ldy, float eps) {
    __local float s[WG];
    const size_t row = get_group_id(0), token = row / heads, head = row % heads, n = cols;
    const uint item = (uint)get_local_id(0);
    x += x_off + token * ldx + head * n;
    y += y_off + token * ldy + head * n;
    w += w_off;
    b += b_off;
    float m = 0.0f;
    clt_lane_sums sums = clt_lane_sums_none();
#if !RMS
    for (uint k = 0; k < CLT_OWN_LANES; k++) {
        float acc = 0.0f;
        for (size_t i = clt_own_lane(k); i < n; i += 64) acc = acc + CLT_LOAD(X_TYPE, x + i);
        sums = clt_lane_sums_add(sums, k, acc);
    }
    m = row_sum(sums, s) / (float)n;
    if (item == 0 && mean) mean[mean_off + row] = m;
#endif
    for (uint k = 0; k < CLT_OWN_LANES; k++) {
        float acc = 0.0f;
        for (size_t i = clt_own_lane(k); i < n; i += 64) {
            const float d = RMS ? CLT_LOAD(X_TYPE, x + i) : CLT_LOAD(X_TYPE, x + i) - m;
            acc = fma(d, d, acc);
        }
        sums = clt_lane_sums_add(sums, k, acc);
    }
    const float r = 1.0f / sqrt(row_sum(sums, s) / (float)n + eps);
    if (item == 0 && rstd) rstd[rstd_off + row] = r;
    for (size_t i = item; i < n; i += WG) {
        float v = (RMS ? CLT_LOAD(X_TYPE, x + i) : CLT_LOAD(X_TYPE, x + i) - m) * r;
#if HAS_W && HAS_B
        v = fma(v, w[i], b[i]);
#elif HAS_W
        v = v * w[i];
#elif HAS_B
        v = v + b[i];
#endif
        CLT_STORE(Y_TYPE, v, y + i);
    }
}
#endif

#if PART == 0 || PART == 2
/* Values of one element of the backward pass. */
static inline float xhat_of(float x, float m, float r) {
    return RMS ? x * r : (x - m) * r;
}
#if HAS_W
#define G_OF(i) (CLT_LOAD(DY_TYPE, dy + (i)) * w[i])
#else
#define G_OF(i) CLT_LOAD(DY_TYPE, dy + (i))
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
norm_backward_dx(__global const x_elem *x, ulong x_off, __global const float *w, ulong w_off,
                 __global const float *mean, ulong mean_off, __global const float *rstd, ulong rstd_off,
                 __global const dy_elem *dy, ulong dy_off, __global const dx_elem *res, ulong res_off, __global dx_elem *dx,
                 ulong dx_off, ulong cols, ulong heads, ulong ldx, ulong lddy, ulong ldres, ulong lddx) {
    __local float s[WG];
    const size_t row = get_group_id(0), token = row / heads, at = row % heads * cols, n = cols;
    x += x_off + token * ldx + at;
    dy += dy_off + token * lddy + at;
    res += res_off + token * ldres + at;
    dx += dx_off + token * lddx + at;
    w += w_off;
    const float m = RMS ? 0.0f : mean[mean_off + row], r = rstd[rstd_off + row];
    float c1 = 0.0f;
    clt_lane_sums sums1 = clt_lane_sums_none(), sums2 = sums1;
    for (uint k = 0; k < CLT_OWN_LANES; k++) {
        float a1 = 0.0f, a2 = 0.0f;
        for (size_t i = clt_own_lane(k); i < n; i += 64) {
            const float g = G_OF(i);
            a1 = a1 + g;
            a2 = fma(g, xhat_of(CLT_LOAD(X_TYPE, x + i), m, r), a2);
        }
        sums1 = clt_lane_sums_add(sums1, k, a1);
        sums2 = clt_lane_sums_add(sums2, k, a2);
    }
#if !RMS
    c1 = row_sum(sums1, s) / (float)n;
#endif
    const float c2 = row_sum(sums2, s) / (float)n;
    for (size_t i = get_local_id(0); i < n; i += WG) {
        const float g = G_OF(i), xhat = xhat_of(CLT_LOAD(X_TYPE, x + i), m, r);
        float v = RMS ? g - xhat * c2 : (g - c1) - xhat * c2;
        v = v * r;
#if HAS_RES
        v = CLT_LOAD(DX_TYPE, res + i) + v;
#endif
        CLT_STORE(DX_TYPE, v, dx + i);
    }
}

/* Block sums for dw and db; global size (columns rounded up to WG, samples * blocks). */
__kernel void norm_backward_w(__global const x_elem *x, ulong x_off, __global const float *mean, ulong mean_off,
                              __global const float *rstd, ulong rstd_off, __global const dy_elem *dy, ulong dy_off,
                              __global float *part, ulong part_w, ulong part_b, ulong cols, ulong heads,
                              ulong rows_per_sample, ulong blocks, ulong ldx, ulong lddy) {
    const size_t c = get_global_id(0), block = get_global_id(1), sample = block / blocks;
    const size_t begin = (block % blocks) * 64, end = begin + 64 < rows_per_sample ? begin + 64 : rows_per_sample;
    if (c >= cols) return;
    float aw = 0.0f, ab = 0.0f;
    for (size_t k = begin; k < end; k++) {
        const size_t row = sample * rows_per_sample + k, token = row / heads, at = row % heads * cols + c;
        const float d = CLT_LOAD(DY_TYPE, dy + dy_off + token * lddy + at);
#if HAS_DW
        const float m = RMS ? 0.0f : mean[mean_off + row];
        const float v = CLT_LOAD(X_TYPE, x + x_off + token * ldx + at);
        aw = fma(d, xhat_of(v, m, rstd[rstd_off + row]), aw);
#endif
        ab = ab + d;
    }
#if HAS_DW
    part[part_w + block * cols + c] = aw;
#endif
#if HAS_DB
    part[part_b + block * cols + c] = ab;
#endif
}
#endif

#if PART == 0 || PART == 3
/* Block sums of plain columns; global size (columns rounded up to WG, samples * blocks). Only the other
 * bodies use `span`. */
__kernel void columns_blocks(__global const x_elem *x, ulong x_off, __global float *part, ulong part_off, ulong cols,
                             ulong rows_per_sample, ulong blocks, ulong ldx, ulong span) {
    const size_t c = get_global_id(0), block = get_global_id(1), sample = block / blocks;
    const size_t begin = (block % blocks) * 64, end = begin + 64 < rows_per_sample ? begin + 64 : rows_per_sample;
    if (c >= cols) return;
    x += x_off + sample * rows_per_sample * ldx + c;
    float acc = 0.0f;
    for (size_t r = begin; r < end; r++) acc = acc + CLT_LOAD(X_TYPE, x + r * ldx);
    part[part_off + block * cols + c] = acc;
}
#endif
