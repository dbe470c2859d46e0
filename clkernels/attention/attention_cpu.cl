/* Attention for CPUs: one work-item per work-group, explicit float16 (README.md is the definition).
 *
 * Queries are processed in blocks of 64 rows, like keys. All data of a query row is stored transposed: scores
 * as [key][row], operands as [element of the head][row]. So a vector holds 16 rows, a block is 4 vectors
 * wide, and softmax is plain vector arithmetic. Products use register tiles of 8 by 32: 16 accumulators, 10
 * loads for 16 fma. If the causal edge or a window's edge cuts a block, lanes outside the range keep their
 * old value.
 *
 * Loops that a compiler would copy are kept as loops: the text below is inlined into every kernel.
 *
 * attention_forward: global {blocks of 64 rows, H, B}.
 *
 * attention_backward: global {KV, B}; one item processes (query head, row block, key block) in ascending
 * order, so that p and ds are computed once and used for dq, dk and dv.
 *
 * With SPLIT=1, for devices with more cores than key/value heads, two kernels replace it:
 * attention_backward_q, global {blocks of 64 rows, H, B}, and attention_backward_kv, global {blocks of 64
 * keys, KV, B}.
 *
 * Private memory: up to 1,792 bytes for each element of a head, on a thread's stack; so the rows have a
 * MAX_D.
 *
 * Local {1, 1, 1}. Options: SPLIT, those of attention.clh. */
#include "attention_cpu_blocks.clh"

#ifndef SPLIT
#define SPLIT 0
#endif

/* out[y][0..1] = out * factor[0..1] (if given), then the chain over the block's keys of b[x][y] * p[x][0..1],
 * for nd (a constant) elements; vectors w and w + 1 of the block. */
INLINE void accumulate_tile(place at, const int nd, float16 (*out)[NV], const float16 *factor, const float *b,
                            const float16 (*p)[NV], int w) {
    float16 acc[8][2];
#pragma unroll
    for (int y = 0; y < nd; y++) {
        acc[y][0] = factor ? out[y][0] * factor[0] : out[y][0];
        acc[y][1] = factor ? out[y][1] * factor[1] : out[y][1];
    }
    int x = 0, seen = keys_seen(at, w), met = keys_met(at, w, 2);
    for (; x < seen; x++) {
        float16 p0 = p[x][0], p1 = p[x][1];
#pragma unroll
        for (int y = 0; y < nd; y++) {
            acc[y][0] = fma((float16)(b[x * 16 * DV + y]), p0, acc[y][0]);
            acc[y][1] = fma((float16)(b[x * 16 * DV + y]), p1, acc[y][1]);
        }
    }
    for (; x < met; x++) {
        float16 p0 = p[x][0], p1 = p[x][1];
        int16 on0 = in_range(at.i0 + 16 * w, at.j0 + x, at.window);
        int16 on1 = in_range(at.i0 + 16 * w + 16, at.j0 + x, at.window);
#pragma unroll
        for (int y = 0; y < nd; y++) {
            acc[y][0] = on0 ? fma((float16)(b[x * 16 * DV + y]), p0, acc[y][0]) : acc[y][0];
            acc[y][1] = on1 ? fma((float16)(b[x * 16 * DV + y]), p1, acc[y][1]) : acc[y][1];
        }
    }
#pragma unroll
    for (int y = 0; y < nd; y++) {
        out[y][0] = acc[y][0];
        out[y][1] = acc[y][1];
    }
}

INLINE void accumulate(place at, float16 out[HEAD_DIM][NV], const float16 *factor, const float16 b[BLOCK][DV],
                       const float16 p[BLOCK][NV]) {
    for (int w = 0; w < NV; w += 2) {
        const float16(*pw)[NV] = (const float16(*)[NV]) & p[0][w], *f = factor ? factor + w : 0;
        for (int d = 0; d + 8 <= HEAD_DIM; d += 8)
            accumulate_tile(at, 8, (float16(*)[NV]) & out[d][w], f, (const float *)b + d, pw, w);
#if HEAD_DIM % 8
        const int d = HEAD_DIM / 8 * 8;
        accumulate_tile(at, HEAD_DIM % 8, (float16(*)[NV]) & out[d][w], f, (const float *)b + d, pw, w);
#endif
    }
}

/* The scores of 16 rows from i, whose sequence ids are `ids`, with key j. *t: the softcap's tanh. */
INLINE float16 scores(scoring by, float16 product, int16 ids, int i, int j, float16 *t) {
    float16 s = scored16(product, by.scale, by.softcap, by.slope, j - (i + lanes()), t);
#if SEQ_IDS
    s = ids == (int16)(by.seq_ids[j]) ? s : (float16)(-attention_inf());
#endif
    return s;
}

/* Softmax of 16 rows, vector w of the block: their products in p become weights. Continues the rows' maximum
 * m and sum l; returns the factor of their outputs so far. */
INLINE float16 softmax(place at, scoring by, float16 p[BLOCK][NV], int w, float16 *m, float16 *l) {
    int met = keys_met(at, w, 1), seen = keys_seen(at, w), i = at.i0 + 16 * w;
    int16 ids = row_ids(by, i);
    float16 top = *m, unused;
    for (int x = 0; x < met; x++) {
        int j = at.j0 + x;
        float16 s = scores(by, p[x][w], ids, i, j, &unused);
        if (x >= seen) s = in_range(i, j, at.window) ? s : (float16)(-attention_inf());
        p[x][w] = s;
        top = s > top ? s : top;
    }
    float16 ref = top == -attention_inf() ? (float16)(0.0f) : top;
    float16 factor = clt_exp16(*m - ref);
    *m = top;
    for (int x = 0; x < met; x++) p[x][w] = clt_exp16(p[x][w] - ref);
    for (int x = met; x < BLOCK; x++) p[x][w] = (float16)(0.0f);
    *l = fma(*l, factor, tree64(p, w));
#if DROPOUT
    masks drop = masks_of(by.drop, i, at.j0);
    for (int x = 0; x < met; x += 4) {
        float16 f[4];
        next_factors(&drop, by.drop, x, f);
        for (int y = 0; y < 4; y++) p[x + y][w] = p[x + y][w] * f[y]; /* +0 from `met` on */
    }
#endif
    return factor;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_forward(ATTENTION_ARGS,
                                                                               __global ELEM *o, ulong o_off,
                                                                               uint ldo, __global float *lse,
                                                                               ulong lse_off) {
    float16 rows[BLOCK][DV], qt[HEAD_DIM][NV], ot[HEAD_DIM][NV], p[BLOCK][NV], m[NV], l[NV], a[NV];
    size_t h = get_global_id(1), b = get_global_id(2), base = b * seq;
    size_t i0 = (get_global_size(0) - 1 - get_global_id(0)) * BLOCK;
    int live = (int)min((size_t)BLOCK, seq - i0);
    k += k_off + base * ldk + h / group * HEAD_DIM;
    v += v_off + base * ldv + h / group * HEAD_DIM;
    const scoring by = SCORING(b, h);

    load_rows(rows, q + q_off + (base + i0) * ldq + h * HEAD_DIM, ldq, live);
    transpose_rows(qt, rows);
    clear_rows(ot);
    for (int w = 0; w < NV; w++) {
        m[w] = (float16)(-attention_inf());
        l[w] = (float16)(0.0f);
    }
    size_t end_key = attention_end(i0 + live - 1, seq, window);
    for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 < end_key; j0 += BLOCK) {
        place at = place_of(i0, j0, seq, window);
        load_rows(rows, k + j0 * ldk, ldk, at.keys);
        products(at, p, qt, rows);
        for (int w = 0; w < NV; w++) a[w] = softmax(at, by, p, w, &m[w], &l[w]);
        load_rows(rows, v + j0 * ldv, ldv, at.keys);
        accumulate(at, ot, a, rows, p);
    }
    for (int w = 0; w < NV; w++) {
        a[w] = 1.0f / l[w];
        clt_store16(m[w] + clt_log16(l[w]), lse + lse_off + (b * heads + h) * seq + i0 + 16 * w,
                    clt_above(live, 16 * w));
    }
    for (int d = 0; d < HEAD_DIM; d++)
        for (int w = 0; w < NV; w++) ot[d][w] = ot[d][w] * a[w];
    store_rows(ot, o + o_off + (base + i0) * ldo + h * HEAD_DIM, ldo, live);
}

/* Continues acc[r][c] over rows i of the block from `from` to `to` with p[r][i] * b[i][c]; with `partly`,
 * only if key j + r of the block is in the range of the row. */
INLINE void key_chain(const bool partly, place at, const int nc, float16 acc[4][6], const float *p,
                      const float16 (*b)[DV], int j, int from, int to) {
    for (int i = from; i < to; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float16 x = (float16)(p[r * BLOCK + i]);
            int ahead = at.i0 + i - (at.j0 + j + r);
#if CAUSAL
            bool on = !partly || ahead >= 0;
#else
            bool on = !partly || ahead >= -(int)at.window;
#endif
#if WINDOW
            on = on && (!partly || ahead <= (int)at.window);
#endif
#pragma unroll
            for (int c = 0; c < nc; c++) acc[r][c] = on ? fma(x, b[i][c], acc[r][c]) : acc[r][c];
        }
}

/* Four keys from j: x[r] (rows of length ld), nc (a constant) vectors of it from c0, from +0 if `clear`. */
INLINE void key_tile(place at, const int nc, __global float *x, size_t ld, int c0, const float *p,
                     const float16 (*b)[DV], int j, bool clear) {
    float16 acc[4][6];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < nc; c++)
            acc[r][c] = clear || j + r >= at.keys ? (float16)(0.0f)
                                                  : clt_load16(x + r * ld + 16 * (c0 + c), WIDTH(c0 + c));
            /* rows whose range contains some of the keys, and rows whose range contains all */
#if CAUSAL
    int first = max(at.j0 + j - at.i0, 0), all = min(max(at.j0 + j + 3 - at.i0, 0), at.rows);
#elif WINDOW
    int begin = at.j0 + j - (int)at.window - at.i0;
    int first = min(max(begin, 0), at.rows), all = min(max(begin + 3, 0), at.rows);
#else
    int first = 0, all = 0;
#endif
    int all_end = at.rows, end = at.rows;
#if WINDOW
    end = max(min(at.j0 + j + 3 + (int)at.window - at.i0 + 1, at.rows), first);
    all_end = max(min(at.j0 + j + (int)at.window - at.i0 + 1, end), first);
    all = min(all, all_end);
#endif
    key_chain(true, at, nc, acc, p, (const float16(*)[DV]) & b[0][c0], j, first, all);
    key_chain(false, at, nc, acc, p, (const float16(*)[DV]) & b[0][c0], j, all, all_end);
    if (WINDOW) key_chain(true, at, nc, acc, p, (const float16(*)[DV]) & b[0][c0], j, all_end, end);
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < nc; c++)
            if (j + r < at.keys) clt_store16(acc[r][c], x + r * ld + 16 * (c0 + c), WIDTH(c0 + c));
}

#define CHUNK (DV <= 6 ? DV : 4)
/* Continues x[key] with the chain over the block's rows of p[key][row] * b[row]. */
INLINE void add_keys(place at, __global float *x, size_t ld, const float16 p[BLOCK][NV],
                     const float16 b[BLOCK][DV], bool clear) {
    for (int j = 0; j < at.keys; j += 4) {
        const float *pj = (const float *)p[j];
        for (int c0 = 0; c0 + CHUNK <= DV; c0 += CHUNK)
            key_tile(at, CHUNK, x + j * ld, ld, c0, pj, b, j, clear);
        if (DV % CHUNK) key_tile(at, DV % CHUNK, x + j * ld, ld, DV / CHUNK * CHUNK, pj, b, j, clear);
    }
}

#if TYPE
/* Keys j .. end - 1 of one head: converts between gradients in memory and their sums in fp32. */
INLINE void widen_keys(__global float *sum, size_t ldsum, __global const ELEM *x, size_t ld, size_t j,
                       size_t end) {
    for (; j < end; j++)
        for (int c = 0; c < DV; c++)
            clt_store16(CLT_LOAD16(TYPE, x + j * ld + 16 * c, WIDTH(c)), sum + j * ldsum + 16 * c, WIDTH(c));
}
INLINE void narrow_keys(__global ELEM *x, size_t ld, __global const float *sum, size_t ldsum, size_t j,
                        size_t end) {
    for (; j < end; j++)
        for (int c = 0; c < DV; c++)
            CLT_STORE16(TYPE, clt_load16(sum + j * ldsum + 16 * c, WIDTH(c)), x + j * ld + 16 * c, WIDTH(c));
}
#endif

/* sums: with 16-bit elements, dk and dv in fp32 as [B * T, KV * HEAD_DIM], dv sums_half after dk. They are
 * sums over many row blocks and are rounded once, at the end. */
#define BACKWARD_ARGS                                                                                        \
    ATTENTION_ARGS, __global const ELEM *o, ulong o_off, uint ldo, __global const float *lse, ulong lse_off, \
        __global const ELEM *dout, ulong dout_off, uint lddout, __global ELEM *dq, ulong dq_off, uint lddq,  \
        __global ELEM *dk, ulong dk_off, uint lddk, __global ELEM *dv, ulong dv_off, uint lddv, uint add,    \
        __global float *sums, ulong sums_half

/* What the backward pass keeps of a block of rows. */
typedef struct {
    float16 rows[2][BLOCK][DV];    /* q, dout */
    float16 cols[2][HEAD_DIM][NV]; /* the same, transposed */
    float16 lse[NV], delta[NV];
    float16 dq[HEAD_DIM][NV];
} queries;

/* x = the block of n rows of dout, o and q, in this order in `from` and `ld`, and of lse; dq = +0. */
INLINE void load_queries(queries *x, __global const ELEM *const from[3], const size_t ld[3],
                         __global const float *lse, int n) {
#pragma unroll 1
    for (int pass = 0; pass < 3; pass++) { /* q overwrites o */
        load_rows(x->rows[pass == 0], from[pass], ld[pass], n);
        transpose_rows(x->cols[pass == 0], x->rows[pass == 0]);
        if (pass != 1) continue;
        for (int w = 0; w < NV; w++) {
            float16 sum = (float16)(0.0f);
            for (int d = 0; d < HEAD_DIM; d++) sum = fma(x->cols[1][d][w], x->cols[0][d][w], sum);
            x->delta[w] = sum;
        }
    }
    for (int w = 0; w < NV; w++) x->lse[w] = clt_load16(lse + 16 * w, clt_above(n, 16 * w));
    clear_rows(x->dq);
}

/* The gradient of softmax for 16 rows, vector w of the block: their products q * k in part[0] become ds, and
 * dout * v in part[1] become weights. */
INLINE void softmax_gradient(place at, scoring by, float16 part[2][BLOCK][NV], int w, float16 lse,
                             float16 delta) {
    int met = keys_met(at, w, 1), i = at.i0 + 16 * w;
    int16 ids = row_ids(by, i);
#if DROPOUT
    masks drop = masks_of(by.drop, i, at.j0);
    float16 f[4];
#endif
    for (int x = 0; x < met; x++) {
        float16 t, s = scores(by, part[0][x][w], ids, i, at.j0 + x, &t), dp = part[1][x][w];
        float16 prob = clt_exp16(s - lse), weight = prob;
#if DROPOUT
        if (x % 4 == 0) next_factors(&drop, by.drop, x, f);
        weight = weight * f[x % 4];
        dp = dp * f[x % 4];
#endif
        s = prob * (dp - delta);
#if SOFTCAP
        s = s * fma(-t, t, (float16)(1.0f));
#endif
        part[0][x][w] = s * by.scale;
        part[1][x][w] = weight;
    }
}

/* One key/value head. */
typedef struct {
    __global const ELEM *from[2]; /* k, v */
    __global float *sum[2];       /* of dk, dv */
    size_t ld[2], ldsum[2];
} key_head;

/* The pairs of the block of rows from i0 with the key blocks from `begin` to before `end`. clear: the sums
 * start at +0, at the first block of these rows' head that sees the keys. */
INLINE void backward_rows(const bool with_q, const bool with_kv, queries *x, key_head keys, scoring by,
                          uint window, size_t i0, size_t begin, size_t end, bool clear) {
    float16 kv[2][BLOCK][DV], part[2][BLOCK][NV]; /* k, v; ds, p */
    for (size_t j0 = begin; j0 < end; j0 += BLOCK) {
        place at = place_of(i0, j0, by.seq, window);
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            load_rows(kv[pass], keys.from[pass] + j0 * keys.ld[pass], keys.ld[pass], at.keys);
            products(at, part[pass], x->cols[pass], kv[pass]);
        }
        for (int w = 0; w < NV; w++) softmax_gradient(at, by, part, w, x->lse[w], x->delta[w]);
        if (with_q) accumulate(at, x->dq, 0, kv[0], part[0]);
        if (!with_kv) continue;
        bool first = clear && i0 == attention_first_row(j0, window) / BLOCK * BLOCK;
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++)
            add_keys(at, keys.sum[pass] + j0 * keys.ldsum[pass], keys.ldsum[pass], part[pass], x->rows[pass],
                     first);
    }
}

/* The pairs of query heads h0 .. h1 - 1 (which share key/value head g), row blocks from i_begin to before
 * i_end and, of the key blocks that rows can see, those from j_begin to before j_end; dq if with_q, dk and dv
 * if with_kv (constants). */
INLINE void backward(const bool with_q, const bool with_kv, BACKWARD_ARGS, size_t b, size_t g, size_t h0,
                     size_t h1, size_t i_begin, size_t i_end, size_t j_begin, size_t j_end) {
    queries x;
    size_t base = b * seq, key_col = g * HEAD_DIM;
    k += k_off + base * ldk + key_col;
    v += v_off + base * ldv + key_col;
    dk += dk_off + base * lddk + key_col;
    dv += dv_off + base * lddv + key_col;
#if TYPE
    size_t ldsum = (size_t)(heads / group) * HEAD_DIM;
    size_t key_end = min(j_begin + (j_end - j_begin + BLOCK - 1) / BLOCK * BLOCK, (size_t)seq);
    __global float *dk_sum = sums + base * ldsum + key_col, *dv_sum = dk_sum + sums_half;
    key_head keys = {{k, v}, {dk_sum, dv_sum}, {ldk, ldv}, {ldsum, ldsum}};
    if (with_kv && add) {
        widen_keys(dk_sum, ldsum, dk, lddk, j_begin, key_end);
        widen_keys(dv_sum, ldsum, dv, lddv, j_begin, key_end);
    }
#else
    key_head keys = {{k, v}, {dk, dv}, {ldk, ldv}, {lddk, lddv}};
#endif
    for (size_t h = h0; h < h1; h++) {
        const scoring by = SCORING(b, h);
        for (size_t i0 = i_begin; i0 < i_end; i0 += BLOCK) {
            size_t row = base + i0, col = h * HEAD_DIM, ld[3] = {lddout, ldo, ldq};
            __global const ELEM *from[3] = {dout + dout_off + row * lddout + col, o + o_off + row * ldo + col,
                                            q + q_off + row * ldq + col};
            int live = (int)min((size_t)BLOCK, seq - i0);
            load_queries(&x, from, ld, lse + lse_off + (b * heads + h) * seq + i0, live);
            size_t begin = max(j_begin, attention_first(i0, window) / BLOCK * BLOCK);
            size_t end = min(j_end, attention_end(i0 + live - 1, seq, window));
            backward_rows(with_q, with_kv, &x, keys, by, window, i0, begin, end, !add && h == g * group);
            if (with_q) store_rows(x.dq, dq + dq_off + row * lddq + col, lddq, live);
        }
    }
#if TYPE
    if (with_kv) {
        narrow_keys(dk, lddk, dk_sum, ldsum, j_begin, key_end);
        narrow_keys(dv, lddv, dv_sum, ldsum, j_begin, key_end);
    }
#endif
}

#define BACKWARD(with_q, with_kv, ...)                                                                       \
    backward(with_q, with_kv, q, q_off, ldq, k, k_off, ldk, v, v_off, ldv, slopes, slopes_off, seq_ids,      \
             seq_ids_off, seq, heads, group, scale, softcap, window, drop_key0, drop_key1, drop_step,        \
             drop_sample, drop_place, drop_threshold, drop_scale, o, o_off, ldo, lse, lse_off, dout,         \
             dout_off, lddout, dq, dq_off, lddq, dk, dk_off, lddk, dv, dv_off, lddv, add, sums, sums_half,   \
             __VA_ARGS__)

#if SPLIT
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_backward_q(BACKWARD_ARGS) {
    size_t i0 = (get_global_size(0) - 1 - get_global_id(0)) * BLOCK, h = get_global_id(1),
           b = get_global_id(2);
    BACKWARD(true, false, b, h / group, h, h + 1, i0, i0 + 1, 0, seq);
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_backward_kv(BACKWARD_ARGS) {
    size_t j0 = get_global_id(0) * BLOCK, g = get_global_id(1), b = get_global_id(2);
    size_t begin = attention_first_row(j0, window) / BLOCK * BLOCK;
    size_t end = attention_end_row(j0 + BLOCK - 1, seq, window);
    BACKWARD(false, true, b, g, g * group, (g + 1) * group, begin, end, j0, j0 + 1);
}
#else
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_backward(BACKWARD_ARGS) {
    size_t g = get_global_id(0), b = get_global_id(1);
    BACKWARD(true, true, b, g, g * group, (g + 1) * group, 0, seq, 0, seq);
}
#endif
