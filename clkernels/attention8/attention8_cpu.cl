/* Attention in 8-bit blocks for CPUs: one work-item per work-group, explicit float16 (README.md is the
 * definition). Arrangement and launch are those of ../attention/attention_cpu.cl: blocks of 64 query rows, stored
 * transposed, so that a vector has 16 rows. Operands are what attention8_cpu_rows.cl makes, as fp32.
 *
 * A pair that does not exist has the weight +0. So products of a block need no masks, and their order is free.
 *
 * Local {1, 1, 1}. Options: SPLIT as there, those of ../attention/attention.clh. */
#include "attention8_cpu.clh"

#ifndef SPLIT
#define SPLIT 0
#endif

/* --- forward --- */

/* The lanes of 16 rows from i that have a pair in the block. */
INLINE int16 rows_met(place at, int i) {
    int16 row = i + lanes();
#if CAUSAL
    return row - (int)at.window < at.j0 + at.keys && row >= at.j0;
#else
    return row - (int)at.window < at.j0 + at.keys && row + (int)at.window >= at.j0;
#endif
}

/* Scores of 16 rows, vector w of the block, from their products in p; -inf for pairs that do not exist. Returns
 * the largest of them and m. */
INLINE float16 score_rows(place at, scoring by, float16 p[BLOCK][NV], int w, float16 scales,
                          __global const float *ks, float16 m) {
    const int met = keys_met(at, w, 1), seen = keys_seen(at, w), i = at.i0 + 16 * w;
    const int16 ids = row_ids(by, i);
    const float16 factor = score_factors(scales, by.scale);
    float16 unused;
    for (int x = 0; x < met; x++) {
        const int j = at.j0 + x;
        float16 s = scores8(by, p[x][w], ks[j], factor, ids, i, j, &unused);
        if (x >= seen) s = in_range(i, j, at.window) ? s : (float16)(-attention_inf());
        p[x][w] = s;
        m = s > m ? s : m;
    }
    return m;
}

/* Softmax of 16 rows, vector w of the block: their products in p become weights, rounded as a block. Continues
 * the rows' maximum m and sum l; returns the factor of their outputs so far. */
INLINE float16 softmax8(place at, scoring by, float16 p[BLOCK][NV], int w, float16 scales,
                        __global const float *ks, __global const float *vs, float16 *m, float16 *l) {
    const int met = keys_met(at, w, 1), seen = keys_seen(at, w), i = at.i0 + 16 * w;
    const float16 n = score_rows(at, by, p, w, scales, ks, *m);
    const float16 ref = n == -attention_inf() ? (float16)(0.0f) : n, a = clt_exp2_short16(*m - ref);
    *m = n;
    for (int x = 0; x < met; x++) p[x][w] = clt_exp2_short16(p[x][w] - ref);
    for (int x = met; x < BLOCK; x++) p[x][w] = (float16)(0.0f);
    *l = fma(*l, a, tree64(p, w));

    uint16 amax = (uint16)(0);
#if DROPOUT
    masks drop = masks_of(by.drop, i, at.j0);
    float16 f[4];
#endif
    for (int x = 0; x < met; x++) {
        float16 weight = p[x][w] * vs[at.j0 + x];
#if DROPOUT
        if (x % 4 == 0) next_factors(&drop, by.drop, x, f);
        weight = weight * f[x % 4];
#endif
        /* the scale of v may be NaN */
        if (x >= seen) weight = in_range(i, at.j0 + x, at.window) ? weight : (float16)(0.0f);
        amax = max(amax, magnitude16(weight));
        p[x][w] = weight;
    }
    const float16 magic = magic16(amax);
    for (int x = 0; x < met; x++) p[x][w] = round16(p[x][w], magic);
#if WINDOW
    return rows_met(at, i) ? a : (float16)(-1.0f);
#else
    return a;
#endif
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
attention8_forward(ATTENTION8_ARGS, __global ELEM *o, ulong o_off, uint ldo, __global float *lse, ulong lse_off) {
    float16 rows[BLOCK][DV], qt[HEAD_DIM][NV], ot[HEAD_DIM][NV], p[BLOCK][NV], m[NV], l[NV], a[NV], scales[NV];
    const size_t h = get_global_id(1), b = get_global_id(2), i0 = (get_global_size(0) - 1 - get_global_id(0)) * BLOCK;
    const size_t q_row = (b * heads + h) * ROWS8(seq), k_row = (b * (heads / group) + h / group) * ROWS8(seq);
    const int live = (int)min((size_t)BLOCK, seq - i0);
    const scoring by = SCORING(b, h);
    k += k_off + k_row * PITCH8, v += v_off + k_row * PITCH8, ks += ks_off + k_row, vs += vs_off + k_row;

    load_numbers(rows, q + q_off + (q_row + i0) * PITCH8, live);
    transpose_rows(qt, rows);
    clear_rows(ot);
    for (int w = 0; w < NV; w++) {
        m[w] = (float16)(-attention_inf());
        l[w] = (float16)(0.0f);
        scales[w] = clt_load16(qs + qs_off + q_row + i0 + 16 * w, clt_above(live, 16 * w));
    }
    const size_t end_key = attention_end(i0 + live - 1, seq, window);
    for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 < end_key; j0 += BLOCK) {
        const place at = place_of(i0, j0, seq, window);
        load_numbers(rows, k + j0 * PITCH8, at.keys);
        products(at, p, qt, rows);
        for (int w = 0; w < NV; w++) a[w] = softmax8(at, by, p, w, scales[w], ks, vs, &m[w], &l[w]);
        load_numbers(rows, v + j0 * PITCH8, at.keys);
        add_sums(at, ot, a, rows, p);
    }
    for (int w = 0; w < NV; w++) {
        a[w] = 1.0f / l[w];
        clt_store16(m[w] + clt_log16(l[w]) * LOG2E, lse + lse_off + (b * heads + h) * seq + i0 + 16 * w,
                    clt_above(live, 16 * w));
    }
    for (int d = 0; d < HEAD_DIM; d++)
        for (int w = 0; w < NV; w++) ot[d][w] = ot[d][w] * a[w];
    store_rows(ot, o + o_off + (b * seq + i0) * ldo + h * HEAD_DIM, ldo, live);
}

/* --- backward --- */

/* What the backward pass keeps of a block of rows. */
typedef struct {
    float16 rows[2][BLOCK][DV];    /* whole numbers of q, dout */
    float16 cols[2][HEAD_DIM][NV]; /* the same, transposed */
    float16 scales[2][NV], lse[NV], delta[NV];
    float16 dq[HEAD_DIM][NV];
} queries;

/* A block of n rows in global memory: whole numbers and scales of q and dout, o, lse. */
typedef struct {
    __global const ushort *numbers[2];
    __global const float *scales[2];
    __global const ELEM *o;
    size_t ldo;
    __global const float *lse;
} query_rows;

INLINE void load_queries(queries *x, query_rows from, int n) {
    load_rows(x->rows[0], from.o, from.ldo, n); /* q overwrites o */
    transpose_rows(x->cols[0], x->rows[0]);
#pragma unroll 1
    for (int pass = 1; pass >= 0; pass--) {
        load_numbers(x->rows[pass], from.numbers[pass], n);
        transpose_rows(x->cols[pass == 1], x->rows[pass]);
        for (int w = 0; w < NV; w++) {
            const size_t live = clt_above(n, 16 * w);
            x->scales[pass][w] = clt_load16(from.scales[pass] + 16 * w, live);
            if (pass == 0) continue;
            x->lse[w] = clt_load16(from.lse + 16 * w, live);
            float16 sum = (float16)(0.0f);
            for (int d = 0; d < HEAD_DIM; d++) sum = fma(x->cols[1][d][w], x->cols[0][d][w], sum);
            x->delta[w] = sum * x->scales[1][w];
        }
    }
    clear_rows(x->dq);
}

/* What a block's products become: operands of dk, dv and dq. */
enum { OF_K, OF_V, OF_Q };
typedef float16 block_parts[3][BLOCK][NV];

/* The lanes of 16 rows from i that have a pair with key j. */
INLINE int16 pairs(place at, int i, int j) {
    int16 on = i + lanes() < at.i0 + at.rows;
#if CAUSAL || WINDOW
    on = on && in_range(i, j, at.window);
#endif
    return on;
}

/* The products of 16 rows, vector w of the block, q * k in part[OF_K] and dout * v in part[OF_V], become what
 * multiplies q, dout and k, +0 for pairs that do not exist. That of k is rounded. */
INLINE void gradients(place at, scoring by, block_parts part, int w, const queries *q, __global const float *ks,
                      __global const float *vs) {
    const int met = keys_met(at, w, 1), seen = at.rows < BLOCK ? 0 : keys_seen(at, w), i = at.i0 + 16 * w;
    const int16 ids = row_ids(by, i);
    const float16 factor = score_factors(q->scales[0][w], by.scale), none = (float16)(0.0f);
    uint16 amax = (uint16)(0);
#if DROPOUT
    masks drop = masks_of(by.drop, i, at.j0);
    float16 keep[4];
#endif
    for (int x = 0; x < met; x++) {
        const int j = at.j0 + x;
        float16 t, f = q->scales[1][w], s = scores8(by, part[OF_K][x][w], ks[j], factor, ids, i, j, &t);
        const float16 prob = clt_exp2_short16(s - q->lse[w]);
#if DROPOUT
        if (x % 4 == 0) next_factors(&drop, by.drop, x, keep);
        f = f * keep[x % 4];
#endif
        float16 ds = prob * fma(part[OF_V][x][w] * vs[j], f, -q->delta[w]);
#if SOFTCAP
        ds = ds * fma(-t, t, (float16)(1.0f));
#endif
        float16 of_k = ds * q->scales[0][w], of_v = prob * f, of_q = ds * ks[j];
        if (x >= seen) {
            const int16 on = pairs(at, i, j);
            of_k = on ? of_k : none, of_v = on ? of_v : none, of_q = on ? of_q : none;
        }
        part[OF_K][x][w] = of_k, part[OF_V][x][w] = of_v, part[OF_Q][x][w] = of_q;
        amax = max(amax, magnitude16(of_q));
    }
    const float16 magic = magic16(amax);
    for (int x = 0; x < met; x++) part[OF_Q][x][w] = round16(part[OF_Q][x][w], magic);
    for (int x = met; x < BLOCK; x++) part[OF_K][x][w] = part[OF_V][x][w] = part[OF_Q][x][w] = none;
}

/* Rounds each of the first n keys' 64 rows as a block. */
INLINE void round_keys(float16 p[BLOCK][NV], int n) {
    for (int x = 0; x < n; x++) {
        uint16 most = (uint16)(0);
#pragma unroll
        for (int w = 0; w < NV; w++) most = max(most, magnitude16(p[x][w]));
        const float16 magic = (float16)(magic8(largest(most)));
#pragma unroll
        for (int w = 0; w < NV; w++) p[x][w] = round16(p[x][w], magic);
    }
}

/* Elements between rows of sums. */
#define PITCH_SUMS ((size_t)16 * DV)

/* Four keys from j: x[r] = x[r] (+0 if `clear`) + the exact sums over the block's rows of p[r][i] * b[i], for nc
 * (a constant) vectors from c0. */
INLINE void key_tile(place at, const int nc, __global float *x, int c0, const float *p, const float16 (*b)[DV], int j,
                     bool clear) {
    float16 acc[4][6];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < nc; c++) acc[r][c] = (float16)(0.0f);
    for (int i = CAUSAL ? max(at.j0 + j - at.i0, 0) : 0; i < at.rows; i++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < nc; c++) acc[r][c] = fma((float16)(p[r * BLOCK + i]), b[i][c], acc[r][c]);
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < nc; c++) {
            __global float *to = x + r * PITCH_SUMS + 16 * (c0 + c);
            if (j + r < at.keys) vstore16(clear ? acc[r][c] : vload16(0, to) + acc[r][c], 0, to);
        }
}

#define CHUNK (DV <= 6 ? DV : 4)
/* The sums of a block for all its keys. */
INLINE void add_keys(place at, __global float *x, const float16 p[BLOCK][NV], const float16 b[BLOCK][DV],
                     bool clear) {
    for (int j = 0; j < at.keys; j += 4) {
        const float *pj = (const float *)p[j];
        for (int c0 = 0; c0 + CHUNK <= DV; c0 += CHUNK)
            key_tile(at, CHUNK, x + j * PITCH_SUMS, c0, pj, (const float16(*)[DV]) & b[0][c0], j, clear);
        if (DV % CHUNK) {
            const int c0 = DV / CHUNK * CHUNK;
            key_tile(at, DV % CHUNK, x + j * PITCH_SUMS, c0, pj, (const float16(*)[DV]) & b[0][c0], j, clear);
        }
    }
}

/* Stores keys j .. end - 1 of one head: sum * factor, plus the old values if `add`. */
INLINE void finish_keys(__global ELEM *x, size_t ld, __global const float *sum, float factor, bool add, size_t j,
                        size_t end) {
    for (; j < end; j++)
        for (int c = 0; c < DV; c++) {
            __global ELEM *to = x + j * ld + 16 * c;
            float16 v = vload16(0, sum + j * PITCH_SUMS + 16 * c) * factor;
            if (add) v = CLT_LOAD16(TYPE, to, WIDTH(c)) + v;
            CLT_STORE16(TYPE, v, to, WIDTH(c));
        }
}

/* One key/value head. */
typedef struct {
    __global const ushort *numbers[2]; /* k, v */
    __global const float *scales[2];
    __global float *sum[2]; /* of dk, dv */
} key_head;

/* The pairs of the block of rows from i0 with the key blocks from `begin` to before `end`. clear: the sums
 * start at +0, at the first block of these rows' head that sees the keys. */
INLINE void backward_rows(const bool with_q, const bool with_kv, queries *x, key_head keys, scoring by, uint window,
                          size_t i0, size_t begin, size_t end, bool clear) {
    float16 kv[2][BLOCK][DV]; /* k, v */
    block_parts part;
    for (size_t j0 = begin; j0 < end; j0 += BLOCK) {
        const place at = place_of(i0, j0, by.seq, window);
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            load_numbers(kv[pass], keys.numbers[pass] + j0 * PITCH8, at.keys);
            products(at, part[pass], x->cols[pass], kv[pass]);
        }
        for (int w = 0; w < NV; w++) gradients(at, by, part, w, x, keys.scales[0], keys.scales[1]);
        if (with_q) add_sums(at, x->dq, 0, kv[0], part[OF_Q]);
        if (!with_kv) continue;
        const bool first = clear && i0 == attention_first_row(j0, window) / BLOCK * BLOCK;
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            round_keys(part[pass], at.keys);
            add_keys(at, keys.sum[pass] + j0 * PITCH_SUMS, part[pass], x->rows[pass], first);
        }
    }
}

/* sums: dk and dv in fp32 as [B, KV, T, PITCH_SUMS], dv sums_half after dk. */
#define BACKWARD_ARGS                                                                                        \
    ATTENTION8_ARGS, __global const ushort *out, ulong out_off, __global const float *outs, ulong outs_off,  \
        __global const float *lse, ulong lse_off, __global const ELEM *o, ulong o_off, uint ldo,             \
        __global ELEM *dq, ulong dq_off, uint lddq, __global ELEM *dk, ulong dk_off, uint lddk,              \
        __global ELEM *dv, ulong dv_off, uint lddv, uint add, __global float *sums, ulong sums_half

/* The pairs of query heads h0 .. h1 - 1 (which share key/value head g), row blocks from i_begin to before
 * i_end and, of the key blocks that rows can see, those from j_begin to before j_end; dq if with_q, dk and dv
 * if with_kv (constants). */
INLINE void backward(const bool with_q, const bool with_kv, BACKWARD_ARGS, size_t b, size_t g, size_t h0, size_t h1,
                     size_t i_begin, size_t i_end, size_t j_begin, size_t j_end) {
    queries x;
    const size_t base = b * seq, kv_head = b * (heads / group) + g, k_row = kv_head * ROWS8(seq);
    __global float *sum = sums + kv_head * seq * PITCH_SUMS;
    const key_head keys = {{k + k_off + k_row * PITCH8, v + v_off + k_row * PITCH8},
                           {ks + ks_off + k_row, vs + vs_off + k_row},
                           {sum, sum + sums_half}};
    for (size_t h = h0; h < h1; h++) {
        const scoring by = SCORING(b, h);
        for (size_t i0 = i_begin; i0 < i_end; i0 += BLOCK) {
            const size_t row = base + i0, col = h * HEAD_DIM, q_row = (b * heads + h) * ROWS8(seq) + i0;
            const query_rows from = {{q + q_off + q_row * PITCH8, out + out_off + q_row * PITCH8},
                                     {qs + qs_off + q_row, outs + outs_off + q_row},
                                     o + o_off + row * ldo + col,
                                     ldo,
                                     lse + lse_off + (b * heads + h) * seq + i0};
            const int live = (int)min((size_t)BLOCK, seq - i0);
            load_queries(&x, from, live);
            const size_t begin = max(j_begin, attention_first(i0, window) / BLOCK * BLOCK);
            const size_t end = min(j_end, attention_end(i0 + live - 1, seq, window));
            backward_rows(with_q, with_kv, &x, keys, by, window, i0, begin, end, h == g * group);
            if (!with_q) continue;
            for (int d = 0; d < HEAD_DIM; d++)
                for (int w = 0; w < NV; w++) x.dq[d][w] = x.dq[d][w] * scale;
            store_rows(x.dq, dq + dq_off + row * lddq + col, lddq, live);
        }
    }
    if (!with_kv) return;
    const size_t end = min(j_begin + (j_end - j_begin + BLOCK - 1) / BLOCK * BLOCK, (size_t)seq), col = g * HEAD_DIM;
    finish_keys(dk + dk_off + base * lddk + col, lddk, keys.sum[0], scale, add, j_begin, end);
    finish_keys(dv + dv_off + base * lddv + col, lddv, keys.sum[1], 1.0f, add, j_begin, end);
}

#define BACKWARD(with_q, with_kv, ...)                                                                       \
    backward(with_q, with_kv, q, q_off, k, k_off, v, v_off, qs, qs_off, ks, ks_off, vs, vs_off, slopes,      \
             slopes_off, seq_ids, seq_ids_off, seq, heads, group, scale, softcap, window, drop_key0,         \
             drop_key1, drop_step, drop_sample, drop_place, drop_threshold, drop_scale, out, out_off, outs,  \
             outs_off, lse, lse_off, o, o_off, ldo, dq, dq_off, lddq, dk, dk_off, lddk, dv, dv_off, lddv,    \
             add, sums, sums_half, __VA_ARGS__)

#if SPLIT
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention8_backward_q(BACKWARD_ARGS) {
    const size_t i0 = (get_global_size(0) - 1 - get_global_id(0)) * BLOCK, h = get_global_id(1), b = get_global_id(2);
    BACKWARD(true, false, b, h / group, h, h + 1, i0, i0 + 1, 0, seq);
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention8_backward_kv(BACKWARD_ARGS) {
    const size_t j0 = get_global_id(0) * BLOCK, g = get_global_id(1), b = get_global_id(2);
    const size_t begin = attention_first_row(j0, window) / BLOCK * BLOCK;
    const size_t end = attention_end_row(j0 + BLOCK - 1, seq, window);
    BACKWARD(false, true, b, g, g * group, (g + 1) * group, begin, end, j0, j0 + 1);
}
#else
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention8_backward(BACKWARD_ARGS) {
    const size_t g = get_global_id(0), b = get_global_id(1);
    BACKWARD(true, true, b, g, g * group, (g + 1) * group, 0, seq, 0, seq);
}
#endif
