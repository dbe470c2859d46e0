/* Attention for any device, in work-groups with tiles in local memory (README.md is the definition).
 *
 * A work-group owns ROWS rows of one head: query rows (forward, delta, backward_q) or keys (backward_kv). It
 * has ITEMS work-items, arranged as ACROSS columns by ROWS / 4. A work-item holds 4 rows by 64 / ACROSS
 * columns of a ROWS x 64 tile of scores, and 4 rows by at most 4 columns of the result. A longer head is
 * computed in slices of 4 * ACROSS elements, each from its own scores. So no head size spills registers if a
 * work-item has 128 of them (GPUs of Intel).
 * Launch: local {ITEMS}, global {tiles * ITEMS, heads (backward_kv: key/value heads), batch}.
 *
 * Options: ROWS (a multiple of 4, 8 to 64); ITEMS, 4 * ROWS or 8 * ROWS (ACROSS 16 or 32); those of
 * attention.clh. Local memory: (2 * ROWS * 68 + the larger of 16 * (ROWS + 65) and 16 * WIDTH + ITEMS +
 * 2 * ROWS) floats at most. */
#include "attention_delta.clh"
#include "attention_tiles.clh"

/* --- forward --- */

/* Writes the scores of the raw products s to w, -inf for keys that the row does not see, and sets the ranges
 * of the item's rows. */
#define WRITE_SCORES(s, w, begin, end)                                                                       \
    _Pragma("unroll") for (int r = 0; r < 4; r++) {                                                          \
        size_t i = i0 + ty + TY * r;                                                                         \
        range_in_block(i, j0, seq, window, &begin[r], &end[r]);                                              \
        _Pragma("unroll") for (int c = 0; c < WIDE; c++) {                                                   \
            int x = tx + ACROSS * c;                                                                         \
            size_t j = j0 + x;                                                                               \
            float t, y = scored(s[r][c], scale, softcap, slope, (int)j - (int)i, &t);                        \
            bool on = x >= begin[r] && x < end[r] && SAME_SEQUENCE(i, j);                                    \
            w[(ty + TY * r) * PITCH + x] = on ? y : -attention_inf();                                        \
        }                                                                                                    \
    }

/* The probability of key j to row i0 + row as the product with v uses it. */
#if DROPOUT
#define DROPPED(p, j) ((j) < attention_end(i0 + row, seq, window) ? (p)*FACTOR(b, h, i0 + row, j) : 0.0f)
#else
#define DROPPED(p, j) (p)
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_forward(ATTENTION_ARGS, __global ELEM *o, ulong o_off, uint ldo, __global float *lse,
                  ulong lse_off) {
    __local float tile[TILE], w[ROWS * PITCH], red[ITEMS], factor[ROWS];
    int item = get_local_id(0), tx = item % ACROSS, ty = item / ACROSS, row = item / SHARE, part = item % SHARE;
    size_t h = get_group_id(1), b = get_group_id(2);
    size_t i0 = (get_num_groups(0) - 1 - get_group_id(0)) * ROWS;
    size_t base = b * seq;
    int rows = (int)min((size_t)ROWS, seq - i0);
    __global const ELEM *qt = q + q_off + (base + i0) * ldq + h * HEAD_DIM;
    __global const ELEM *kh = k + k_off + base * ldk + h / group * HEAD_DIM;
    __global const ELEM *vh = v + v_off + base * ldv + h / group * HEAD_DIM;
    float slope = SLOPE(h);
    seq_ids_off += base;

    for (int d0 = 0; d0 < HEAD_DIM; d0 += WIDTH) {
        const int width = HEAD_DIM - d0 < WIDTH ? HEAD_DIM - d0 : WIDTH;
        float m = -attention_inf(), l = 0.0f, acc[4][COLS];
        clear_rows(acc);
        const size_t last = i0 + rows - 1, end_key = attention_end(last, seq, window);
        for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 < end_key; j0 += BLOCK) {
            int keys = (int)min((size_t)BLOCK, seq - j0), begin[4], end[4];
            float s[4][WIDE], p[BLOCK / SHARE];
            products(s, tile, qt, ldq, rows, kh + j0 * ldk, ldk, keys, item);
            WRITE_SCORES(s, w, begin, end)
            barrier(CLK_LOCAL_MEM_FENCE);

#pragma unroll
            for (int x = 0; x < BLOCK / SHARE; x++) p[x] = w[row * PITCH + part + SHARE * x];
            float n = row_largest(p, m, red, item), ref = n == -attention_inf() ? 0.0f : n, a = clt_exp(m - ref);
            m = n;
#pragma unroll
            for (int x = 0; x < BLOCK / SHARE; x++) {
                p[x] = clt_exp(p[x] - ref);
                w[row * PITCH + part + SHARE * x] = DROPPED(p[x], j0 + part + SHARE * x);
            }
            if (part == 0) factor[row] = a;
            l = fma(l, a, row_sum(p, red, item));

            multiply_rows(acc, factor, item);
            bool partial = j0 + BLOCK > attention_end(i0, seq, window) || attention_first(last, window) > j0;
            int count = (int)min((size_t)BLOCK, end_key - j0);
            accumulate(acc, w, tile, vh + j0 * ldv + d0, ldv, width, count, partial, begin, end, item);
        }

        barrier(CLK_LOCAL_MEM_FENCE);
        if (part == 0) {
            factor[row] = 1.0f / l;
            if (row < rows) lse[lse_off + (b * heads + h) * seq + i0 + row] = m + clt_log(l);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        multiply_rows(acc, factor, item);
        put_rows(acc, o + o_off + (base + i0) * ldo + h * HEAD_DIM + d0, ldo, rows, width, item);
    }
}

/* --- backward --- */

/* From a raw product and dout . v to the probability (times the dropout factor) and ds. Pairs outside the
 * range get values that are never used. */
#if DROPOUT
#define DROP(p, dp, b, h, i, j)                                                                              \
    {                                                                                                        \
        float f = FACTOR(b, h, i, j);                                                                        \
        p = p * f;                                                                                           \
        dp = dp * f;                                                                                         \
    }
#else
#define DROP(p, dp, b, h, i, j)
#endif
#if SOFTCAP
#define CAP(ds, t) ds = ds * fma(-t, t, 1.0f)
#else
#define CAP(ds, t)
#endif
#define PROBABILITY(raw, dprod, i, j, lse_i, delta_i, out_p, out_ds)                                         \
    {                                                                                                        \
        float t_ = 0.0f, s_ = scored(raw, scale, softcap, slope, (int)(j) - (int)(i), &t_);                  \
        if (!SAME_SEQUENCE(i, j)) s_ = -attention_inf();                                                     \
        float prob_ = clt_exp(s_ - (lse_i)), drop_p_ = prob_, dp_ = dprod;                                   \
        DROP(drop_p_, dp_, b, h, i, j)                                                                       \
        float ds_ = prob_ * (dp_ - (delta_i));                                                               \
        CAP(ds_, t_);                                                                                        \
        out_p = drop_p_;                                                                                     \
        out_ds = ds_ * scale;                                                                                \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_backward_q(ATTENTION_ARGS, __global const float *lse, ulong lse_off, __global const float *delta,
                     __global const ELEM *dout, ulong dout_off, uint lddout, __global ELEM *dq, ulong dq_off,
                     uint lddq) {
    __local float tile[TILE], w[ROWS * PITCH];
    int item = get_local_id(0), tx = item % ACROSS, ty = item / ACROSS;
    size_t h = get_group_id(1), b = get_group_id(2);
    size_t i0 = (get_num_groups(0) - 1 - get_group_id(0)) * ROWS;
    size_t base = b * seq, stat = (b * heads + h) * seq;
    int rows = (int)min((size_t)ROWS, seq - i0);
    __global const ELEM *qt = q + q_off + (base + i0) * ldq + h * HEAD_DIM;
    __global const ELEM *dt = dout + dout_off + (base + i0) * lddout + h * HEAD_DIM;
    __global const ELEM *kh = k + k_off + base * ldk + h / group * HEAD_DIM;
    __global const ELEM *vh = v + v_off + base * ldv + h / group * HEAD_DIM;
    float slope = SLOPE(h);
    seq_ids_off += base;

    for (int d0 = 0; d0 < HEAD_DIM; d0 += WIDTH) {
        const int width = HEAD_DIM - d0 < WIDTH ? HEAD_DIM - d0 : WIDTH;
        float acc[4][COLS], lse_r[4], delta_r[4];
        clear_rows(acc);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int y = ty + TY * r;
            lse_r[r] = y < rows ? lse[lse_off + stat + i0 + y] : 0.0f;
            delta_r[r] = y < rows ? delta[stat + i0 + y] : 0.0f;
        }
        const size_t last = i0 + rows - 1, end_key = attention_end(last, seq, window);
        for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 < end_key; j0 += BLOCK) {
            int keys = (int)min((size_t)BLOCK, seq - j0), begin[4], end[4];
            float s[4][WIDE], dp[4][WIDE];
            products(s, tile, qt, ldq, rows, kh + j0 * ldk, ldk, keys, item);
            products(dp, tile, dt, lddout, rows, vh + j0 * ldv, ldv, keys, item);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                size_t i = i0 + ty + TY * r;
                range_in_block(i, j0, seq, window, &begin[r], &end[r]);
#pragma unroll
                for (int c = 0; c < WIDE; c++) {
                    int x = tx + ACROSS * c;
                    float p, ds;
                    PROBABILITY(s[r][c], dp[r][c], i, j0 + x, lse_r[r], delta_r[r], p, ds)
                    w[(ty + TY * r) * PITCH + x] = ds;
                }
            }
            bool partial = j0 + BLOCK > attention_end(i0, seq, window) || attention_first(last, window) > j0;
            int count = (int)min((size_t)BLOCK, end_key - j0);
            accumulate(acc, w, tile, kh + j0 * ldk + d0, ldk, width, count, partial, begin, end, item);
        }
        put_rows(acc, dq + dq_off + (base + i0) * lddq + h * HEAD_DIM + d0, lddq, rows, width, item);
    }
}

/* A head's statistic of the query rows i0 + tx + ACROSS * c; past the last row that of the last one. */
static inline void get_stats(float out[WIDE], __global const float *x, size_t i0, uint seq, int tx) {
#pragma unroll
    for (int c = 0; c < WIDE; c++) out[c] = x[min(i0 + tx + ACROSS * c, (size_t)seq - 1)];
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_backward_kv(ATTENTION_ARGS, __global const float *lse, ulong lse_off, __global const float *delta,
                      __global const ELEM *dout, ulong dout_off, uint lddout, __global ELEM *dk, ulong dk_off,
                      uint lddk, __global ELEM *dv, ulong dv_off, uint lddv, uint add) {
    __local float tile[TILE], wp[ROWS * PITCH], wd[ROWS * PITCH];
    int item = get_local_id(0), tx = item % ACROSS, ty = item / ACROSS;
    size_t g = get_group_id(1), b = get_group_id(2), j0 = get_group_id(0) * ROWS, base = b * seq;
    int keys = (int)min((size_t)ROWS, seq - j0);
    __global const ELEM *kt = k + k_off + (base + j0) * ldk + g * HEAD_DIM;
    __global const ELEM *vt = v + v_off + (base + j0) * ldv + g * HEAD_DIM;
    dk += dk_off + (base + j0) * lddk + g * HEAD_DIM;
    dv += dv_off + (base + j0) * lddv + g * HEAD_DIM;
    q += q_off + base * ldq;
    dout += dout_off + base * lddout;
    lse += lse_off + b * heads * seq;
    delta += b * heads * seq;
    seq_ids_off += base;

    for (int d0 = 0; d0 < HEAD_DIM; d0 += WIDTH) {
        const int width = HEAD_DIM - d0 < WIDTH ? HEAD_DIM - d0 : WIDTH;
        float acc_k[4][COLS], acc_v[4][COLS];
        get_rows(acc_k, dk + d0, lddk, add, keys, width, item);
        get_rows(acc_v, dv + d0, lddv, add, keys, width, item);
        const size_t last = j0 + keys - 1, stop = attention_end_row(last, seq, window);
        for (size_t h = g * group; h < (g + 1) * group; h++) {
            __global const ELEM *qh = q + h * HEAD_DIM, *dh = dout + h * HEAD_DIM;
            float slope = SLOPE(h);
            for (size_t i0 = attention_first_row(j0, window) / BLOCK * BLOCK; i0 < stop; i0 += BLOCK) {
                int rows = (int)min((size_t)BLOCK, stop - i0), begin[4], end[4];
                float s[4][WIDE], dp[4][WIDE];
                products(s, tile, kt, ldk, keys, qh + i0 * ldq, ldq, rows, item);
                products(dp, tile, vt, ldv, keys, dh + i0 * lddout, lddout, rows, item);
                float lse_c[WIDE], delta_c[WIDE];
                get_stats(lse_c, lse + h * seq, i0, seq, tx);
                get_stats(delta_c, delta + h * seq, i0, seq, tx);
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    size_t j = j0 + ty + TY * r;
                    rows_in_block(j, i0, window, rows, &begin[r], &end[r]);
#pragma unroll
                    for (int c = 0; c < WIDE; c++) {
                        int x = tx + ACROSS * c;
                        float p, ds;
                        PROBABILITY(s[r][c], dp[r][c], i0 + x, j, lse_c[c], delta_c[c], p, ds)
                        wp[(ty + TY * r) * PITCH + x] = p;
                        wd[(ty + TY * r) * PITCH + x] = ds;
                    }
                }
                bool partial = i0 < attention_first_row(last, window);
#if WINDOW
                partial = partial || j0 + window < i0 + rows - 1;
#endif
                accumulate(acc_v, wp, tile, dh + i0 * lddout + d0, lddout, width, rows, partial, begin, end, item);
                accumulate(acc_k, wd, tile, qh + i0 * ldq + d0, ldq, width, rows, partial, begin, end, item);
            }
        }
        put_rows(acc_k, dk + d0, lddk, keys, width, item);
        put_rows(acc_v, dv + d0, lddv, keys, width, item);
    }
}
