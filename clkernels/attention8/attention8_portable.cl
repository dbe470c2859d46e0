/* Attention in 8-bit blocks for any device, in work-groups with tiles in local memory (README.md is the
 * definition). Arrangement, launch and options are those of ../attention/attention_portable.cl; the operands are
 * what attention8_rows.cl makes. Their products are sums of whole numbers, exact in fp32 in any order.
 *
 * Local memory: (2 * ROWS * 68 + the larger of 16 * (ROWS + 65) and 16 * WIDTH, + ITEMS + ROWS) floats at most. */
#define OPERAND ushort
#define GET_OPERAND(x) clt_widen_1(x)
#include "../attention/attention_tiles.clh"
#include "attention8.clh"

/* The item's part of its row `item / SHARE` of a tile: columns part + SHARE * x. */
#define EACH_OF_ROW(x, at)                                                                                   \
    _Pragma("unroll") for (int x = 0, at = item / SHARE * PITCH + item % SHARE; x < BLOCK / SHARE; x++, at += SHARE)

/* Rounds each row of w [ROWS, PITCH] to multiples of its scale. A barrier must precede it; none follows. */
static inline void round_rows(__local float *w, __local float *red, int item) {
    __local uint *bits = (__local uint *)red;
    uint amax = 0;
    EACH_OF_ROW(x, at) amax = max(amax, magnitude(w[at]));
    bits[item] = amax;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int x = 0; x < SHARE; x++) amax = max(amax, bits[item / SHARE * SHARE + x]);
    const float magic = magic8(amax);
    EACH_OF_ROW(x, at) w[at] = round8(w[at], magic);
}

/* sum[r][c] = the exact product of w's rows and b's columns. */
static inline void block_sums(float sum[4][COLS], __local float *w, __local float *tile, __global const ushort *b,
                              int width, int count, int item) {
    const int none[4] = {0, 0, 0, 0};
    clear_rows(sum);
    accumulate(sum, w, tile, b, PITCH8, width, count, false, none, none, item);
}

/* --- forward --- */

/* acc = acc * factor + sum; a row whose factor is negative keeps its sums. */
static inline void join_sums(float acc[4][COLS], __local const float *factor, float sum[4][COLS], int ty) {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const float f = factor[ty + TY * r], x = fma(acc[r][c], f, sum[r][c]);
            acc[r][c] = f < 0.0f ? acc[r][c] : x;
        }
}

/* Scores from products; -inf for pairs that do not exist. */
#define WRITE_SCORES(s)                                                                                      \
    _Pragma("unroll") for (int r = 0; r < 4; r++) {                                                          \
        const size_t i = min(i0 + ty + TY * r, (size_t)seq - 1);                                             \
        int begin, end;                                                                                      \
        range_in_block(i, j0, seq, window, &begin, &end);                                                    \
        const float factor = score_factor(qs[i], scale);                                                     \
        _Pragma("unroll") for (int c = 0; c < WIDE; c++) {                                                   \
            const int x = tx + ACROSS * c;                                                                   \
            const size_t j = min(j0 + x, (size_t)seq - 1);                                                   \
            float t, y = scored8(s[r][c] * ks[j], factor, softcap, slope, -fabs((float)j - (float)i), &t);               \
            const bool on = x >= begin && x < end && SAME_SEQUENCE(i, j);                                    \
            w[(ty + TY * r) * PITCH + x] = on ? y : -attention_inf();                                        \
        }                                                                                                    \
    }

#if DROPOUT
#define DROPPED(w, j) ((w)*FACTOR(b, h, i0 + row, j))
#else
#define DROPPED(w, j) (w)
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention8_forward(ATTENTION8_ARGS, __global ELEM *o, ulong o_off, uint ldo, __global float *lse, ulong lse_off) {
    __local float tile[TILE], w[ROWS * PITCH], red[ITEMS], factor[ROWS];
    const int item = get_local_id(0), tx = item % ACROSS, ty = item / ACROSS, row = item / SHARE, part = item % SHARE;
    const size_t h = get_group_id(1), b = get_group_id(2), i0 = (get_num_groups(0) - 1 - get_group_id(0)) * ROWS;
    const size_t q_row = (b * heads + h) * ROWS8(seq), k_row = (b * (heads / group) + h / group) * ROWS8(seq);
    const int rows = (int)min((size_t)ROWS, seq - i0);
    const float slope = SLOPE(h);
    q += q_off + (q_row + i0) * PITCH8, k += k_off + k_row * PITCH8, v += v_off + k_row * PITCH8;
    qs += qs_off + q_row, ks += ks_off + k_row, vs += vs_off + k_row;
    seq_ids_off += b * seq;

    for (int d0 = 0; d0 < HEAD_DIM; d0 += WIDTH) {
        const int width = HEAD_DIM - d0 < WIDTH ? HEAD_DIM - d0 : WIDTH;
        float m = -attention_inf(), l = 0.0f, acc[4][COLS];
        clear_rows(acc);
        const size_t last = i0 + rows - 1, end_key = attention_end(last, seq, window);
        for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 < end_key; j0 += BLOCK) {
            const int keys = (int)min((size_t)BLOCK, seq - j0);
            float s[4][WIDE], p[BLOCK / SHARE], sum[4][COLS];
            products(s, tile, q, PITCH8, rows, k + j0 * PITCH8, PITCH8, keys, item);
            WRITE_SCORES(s)
            barrier(CLK_LOCAL_MEM_FENCE);

            int begin, end;
            range_in_block(min(i0 + row, last), j0, seq, window, &begin, &end);
            EACH_OF_ROW(x, at) p[x] = w[at];
            const float n = row_largest(p, m, red, item), ref = n == -attention_inf() ? 0.0f : n;
            const float a = clt_exp2_short(m - ref);
            m = n;
            EACH_OF_ROW(x, at) {
                const int c = part + SHARE * x;
                p[x] = clt_exp2_short(p[x] - ref);
                w[at] = c >= begin && c < end ? DROPPED(p[x] * vs[j0 + c], j0 + c) : 0.0f;
            }
            /* a row without a pair here keeps its sums */
            if (part == 0) factor[row] = begin < end ? a : -1.0f;
            l = fma(l, a, row_sum(p, red, item));
            barrier(CLK_LOCAL_MEM_FENCE);
            round_rows(w, red, item);

            block_sums(sum, w, tile, v + j0 * PITCH8 + d0, width, (int)min((size_t)BLOCK, end_key - j0), item);
            join_sums(acc, factor, sum, ty);
        }

        barrier(CLK_LOCAL_MEM_FENCE);
        if (part == 0) {
            factor[row] = 1.0f / l;
            if (row < rows) lse[lse_off + (b * heads + h) * seq + i0 + row] = m + clt_log(l) * LOG2E;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        multiply_rows(acc, factor, item);
        put_rows(acc, o + o_off + (b * seq + i0) * ldo + h * HEAD_DIM + d0, ldo, rows, width, item);
    }
}

/* --- backward --- */

#if SOFTCAP
#define CAP(ds, t) ds = ds * fma(-t, t, 1.0f)
#else
#define CAP(ds, t)
#endif
#if DROPOUT
#define OUT_FACTOR(f, b, h, i, j) ((f)*FACTOR(b, h, i, j))
#else
#define OUT_FACTOR(f, b, h, i, j) (f)
#endif
/* What products with dout and with q or k multiply, from the products of whole numbers of a pair that exists. qs,
 * ks, vs, outs, lse and delta are at the head's first row. */
#define PAIR(u, out_v, h, i, j, weight, ds)                                                                  \
    {                                                                                                        \
        float t_ = 0.0f;                                                                                     \
        float s_ = scored8(u * ks[j], score_factor(qs[i], scale), softcap, slope, -fabs((float)(j) - (float)(i)), &t_);  \
        if (!SAME_SEQUENCE(i, j)) s_ = -attention_inf();                                                     \
        const float p_ = clt_exp2_short(s_ - lse[i]), f_ = OUT_FACTOR(outs[i], b, h, i, j);                  \
        weight = p_ * f_;                                                                                    \
        ds = p_ * fma((out_v)*vs[j], f_, -delta[i]);                                                         \
        CAP(ds, t_);                                                                                         \
    }

#define BACKWARD8_ARGS                                                                                       \
    __global const ushort *out, ulong out_off, __global const float *outs, ulong outs_off,                   \
        __global const float *lse, ulong lse_off, __global const float *delta, ulong delta_off

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention8_backward_q(ATTENTION8_ARGS, BACKWARD8_ARGS, __global ELEM *dq, ulong dq_off, uint lddq) {
    __local float tile[TILE], w[ROWS * PITCH], red[ITEMS];
    const int item = get_local_id(0), tx = item % ACROSS, ty = item / ACROSS;
    const size_t h = get_group_id(1), b = get_group_id(2), i0 = (get_num_groups(0) - 1 - get_group_id(0)) * ROWS;
    const size_t q_row = (b * heads + h) * ROWS8(seq), k_row = (b * (heads / group) + h / group) * ROWS8(seq);
    const int rows = (int)min((size_t)ROWS, seq - i0);
    const float slope = SLOPE(h);
    q += q_off + (q_row + i0) * PITCH8, k += k_off + k_row * PITCH8, v += v_off + k_row * PITCH8;
    out += out_off + (q_row + i0) * PITCH8;
    qs += qs_off + q_row, ks += ks_off + k_row, vs += vs_off + k_row, outs += outs_off + q_row;
    lse += lse_off + (b * heads + h) * seq, delta += delta_off + q_row, seq_ids_off += b * seq;

    for (int d0 = 0; d0 < HEAD_DIM; d0 += WIDTH) {
        const int width = HEAD_DIM - d0 < WIDTH ? HEAD_DIM - d0 : WIDTH;
        float acc[4][COLS];
        clear_rows(acc);
        const size_t last = i0 + rows - 1, end_key = attention_end(last, seq, window);
        for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 < end_key; j0 += BLOCK) {
            const int keys = (int)min((size_t)BLOCK, seq - j0);
            float s[4][WIDE], dp[4][WIDE], sum[4][COLS];
            products(s, tile, q, PITCH8, rows, k + j0 * PITCH8, PITCH8, keys, item);
            products(dp, tile, out, PITCH8, rows, v + j0 * PITCH8, PITCH8, keys, item);
#pragma unroll
            for (int c = 0; c < WIDE; c++) {
                const int x = tx + ACROSS * c;
                const uint j = min((uint)j0 + x, seq - 1);
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const uint i = min((uint)i0 + ty + TY * r, (uint)last);
                    int begin, end;
                    float weight, ds;
                    range_in_block(i, j0, seq, window, &begin, &end);
                    PAIR(s[r][c], dp[r][c], h, i, j, weight, ds)
                    w[(ty + TY * r) * PITCH + x] = x >= begin && x < end ? ds * ks[j] : 0.0f;
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            round_rows(w, red, item);
            block_sums(sum, w, tile, k + j0 * PITCH8 + d0, width, (int)min((size_t)BLOCK, end_key - j0), item);
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < COLS; c++) acc[r][c] = acc[r][c] + sum[r][c];
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < COLS; c++) acc[r][c] = acc[r][c] * scale;
        put_rows(acc, dq + dq_off + (b * seq + i0) * lddq + h * HEAD_DIM + d0, lddq, rows, width, item);
    }
}

/* acc += the exact products of the rounded rows of w and b; a barrier must precede it. */
static inline void add_rounded(float acc[4][COLS], __local float *w, __local float *tile, __local float *red,
                               __global const ushort *b, int width, int count, int item) {
    float sum[4][COLS];
    round_rows(w, red, item);
    block_sums(sum, w, tile, b, width, count, item);
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) acc[r][c] = acc[r][c] + sum[r][c];
}

/* Stores acc * factor, plus the old values where `add` is set. */
static inline void finish_rows(float acc[4][COLS], float factor, __global ELEM *x, uint ld, bool add, int valid,
                               int width, int item) {
    int tx = item % ACROSS, ty = item / ACROSS;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int y = ty + TY * r;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            __global ELEM *to = x + (size_t)y * ld + tx + ACROSS * c;
            if (y >= valid || tx + ACROSS * c >= width) continue;
            const float v = acc[r][c] * factor;
            *to = PUT(add ? GET(*to) + v : v);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention8_backward_kv(ATTENTION8_ARGS, BACKWARD8_ARGS, __global ELEM *dk, ulong dk_off, uint lddk,
                       __global ELEM *dv, ulong dv_off, uint lddv, uint add) {
    __local float tile[TILE], wp[ROWS * PITCH], wd[ROWS * PITCH], red[ITEMS];
    const int item = get_local_id(0), tx = item % ACROSS, ty = item / ACROSS;
    const size_t g = get_group_id(1), b = get_group_id(2), j0 = get_group_id(0) * ROWS;
    const size_t k_row = (b * (heads / group) + g) * ROWS8(seq);
    const int keys = (int)min((size_t)ROWS, seq - j0);
    k += k_off + (k_row + j0) * PITCH8, v += v_off + (k_row + j0) * PITCH8;
    ks += ks_off + k_row, vs += vs_off + k_row, seq_ids_off += b * seq;
    dk += dk_off + (b * seq + j0) * lddk + g * HEAD_DIM;
    dv += dv_off + (b * seq + j0) * lddv + g * HEAD_DIM;
    __global const ushort *all_q = q + q_off, *all_out = out + out_off;
    __global const float *all_qs = qs + qs_off, *all_outs = outs + outs_off, *all_lse = lse + lse_off,
                         *all_delta = delta + delta_off;

    for (int d0 = 0; d0 < HEAD_DIM; d0 += WIDTH) {
        const int width = HEAD_DIM - d0 < WIDTH ? HEAD_DIM - d0 : WIDTH;
        float acc_k[4][COLS], acc_v[4][COLS];
        clear_rows(acc_k);
        clear_rows(acc_v);
        const size_t last = j0 + keys - 1, stop = attention_end_row(last, seq, window);
        for (size_t h = g * group; h < (g + 1) * group; h++) {
            const size_t q_row = (b * heads + h) * ROWS8(seq);
            const float slope = SLOPE(h);
            q = all_q + q_row * PITCH8, out = all_out + q_row * PITCH8;
            qs = all_qs + q_row, outs = all_outs + q_row, lse = all_lse + (b * heads + h) * seq, delta = all_delta + q_row;
            for (size_t i0 = attention_first_row(j0, window) / BLOCK * BLOCK; i0 < stop; i0 += BLOCK) {
                const int rows = (int)min((size_t)BLOCK, stop - i0);
                float s[4][WIDE], dp[4][WIDE];
                products(s, tile, k, PITCH8, keys, q + i0 * PITCH8, PITCH8, rows, item);
                products(dp, tile, v, PITCH8, keys, out + i0 * PITCH8, PITCH8, rows, item);
#pragma unroll
                for (int c = 0; c < WIDE; c++) {
                    const int x = tx + ACROSS * c;
                    const uint i = min((uint)i0 + x, seq - 1);
#pragma unroll
                    for (int r = 0; r < 4; r++) {
                        const int at = (ty + TY * r) * PITCH + x;
                        const uint j = min((uint)j0 + ty + TY * r, (uint)last);
                        int begin, end;
                        float weight, ds;
                        rows_in_block(j, i0, window, rows, &begin, &end);
                        PAIR(s[r][c], dp[r][c], h, i, j, weight, ds)
                        wp[at] = x >= begin && x < end ? weight : 0.0f;
                        wd[at] = x >= begin && x < end ? ds * qs[i] : 0.0f;
                    }
                }
                barrier(CLK_LOCAL_MEM_FENCE);
                add_rounded(acc_v, wp, tile, red, out + i0 * PITCH8 + d0, width, rows, item);
                add_rounded(acc_k, wd, tile, red, q + i0 * PITCH8 + d0, width, rows, item);
            }
        }
        finish_rows(acc_k, scale, dk + d0, lddk, add, keys, width, item);
        finish_rows(acc_v, 1.0f, dv + d0, lddv, add, keys, width, item);
    }
}
