/* Attention for CPUs: one work item per work-group, explicit float16 (README.md is the definition).
 *
 * Queries go in blocks of 64 rows, as keys do. Everything that belongs to a query row is kept transposed: scores as
 * [key][row], operands as [element of the head][row], so that a vector holds 16 rows, a block is 4 vectors wide, and
 * softmax is plain vector arithmetic. Products run in register tiles of 4 by 64: 16 accumulators, 8 loads for 16 fma.
 * Where the causal edge or a window's edge cuts a block, lanes outside the range keep their old value.
 *
 * forward: global {blocks of 64 rows, H, B}. backward: global {KV, B}; all query heads of a key/value head are in
 * one item, which meets (query head, row block, key block) in ascending order, so that p and ds are computed once and
 * feed dq, dk and dv. Local {1, 1, 1}. Options: those of attention.clh. */
#include "attention.clh"

#define NV (BLOCK / 16)
#define DV ((HEAD_DIM + 15) / 16)
#define INLINE static inline __attribute__((always_inline))

/* How the range cuts a block of 64 rows by 64 keys: not at all; by the diagonal from its corner (row x sees keys up
 * to x); or anyhow (a window's edge). */
enum { WHOLE, DIAGONAL, EDGE };

INLINE int16 lanes(void) { return (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

/* a[x][y] and a[y][x] change places: four times the index (x, y) is rotated by one bit. */
INLINE void rotate16(float16 to[16], const float16 a[16]) {
#pragma unroll
    for (int x = 0; x < 8; x++) {
        float16 u, v;
        u.even = a[x].lo;
        u.odd = a[x + 8].lo;
        v.even = a[x].hi;
        v.odd = a[x + 8].hi;
        to[2 * x] = u;
        to[2 * x + 1] = v;
    }
}
INLINE void transpose16(float16 a[16]) {
    float16 t[16];
    rotate16(t, a);
    rotate16(a, t);
    rotate16(t, a);
    rotate16(a, t);
}

/* Elements that vector c of a head has. */
#define WIDTH(c) ((c)*16 + 16 <= HEAD_DIM ? 16 : HEAD_DIM - (c)*16)

/* rows[r][c] = the c-th vector of row r; rows from `n` on are +0. */
INLINE void load_rows(float16 rows[BLOCK][DV], __global const float *x, size_t ld, int n) {
    for (int r = 0; r < BLOCK; r++)
#pragma unroll
        for (int c = 0; c < DV; c++) rows[r][c] = r < n ? clt_load16(x + r * ld + 16 * c, WIDTH(c)) : (float16)(0.0f);
}

/* t[d][w] = element d of rows 16 w .. 16 w + 15. */
INLINE void transpose_rows(float16 t[HEAD_DIM][NV], const float16 rows[BLOCK][DV]) {
    for (int w = 0; w < NV; w++)
        for (int c = 0; c < DV; c++) {
            float16 a[16];
#pragma unroll
            for (int r = 0; r < 16; r++) a[r] = rows[16 * w + r][c];
            transpose16(a);
#pragma unroll
            for (int d = 0; d < 16; d++)
                if (16 * c + d < HEAD_DIM) t[16 * c + d][w] = a[d];
        }
}

/* The way back, to n rows in global memory. */
INLINE void store_rows(const float16 t[HEAD_DIM][NV], __global float *x, size_t ld, int n) {
    for (int w = 0; w < NV; w++)
        for (int c = 0; c < DV; c++) {
            float16 a[16];
#pragma unroll
            for (int d = 0; d < 16; d++) a[d] = t[16 * c + d < HEAD_DIM ? 16 * c + d : 0][w];
            transpose16(a);
#pragma unroll
            for (int r = 0; r < 16; r++)
                if (16 * w + r < n) clt_store16(a[r], x + (16 * w + r) * ld + 16 * c, WIDTH(c));
        }
}

/* s[r][w] = chain over the head of x[r][d] * t[d][w], for the 4 rows x[0..3] and vectors w0.. (a constant). */
INLINE void product_tile(const int w0, float16 (*s)[NV], const float16 t[HEAD_DIM][NV], __global const float *const x[4]) {
    float16 acc[4][NV];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int w = w0; w < NV; w++) acc[r][w] = (float16)(0.0f);
    for (int d = 0; d < HEAD_DIM; d++)
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int w = w0; w < NV; w++) acc[r][w] = fma((float16)(x[r][d]), t[d][w], acc[r][w]);
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int w = w0; w < NV; w++) s[r][w] = acc[r][w];
}

/* All products of a block: n keys (or values) of row length ld from x. With DIAGONAL, vectors of rows that see none of
 * a tile's keys are left as they are. */
INLINE void products(int kind, float16 s[BLOCK][NV], const float16 t[HEAD_DIM][NV], __global const float *x, size_t ld,
                     int n) {
    for (int j = 0; j < n; j += 4) {
        __global const float *row[4];
#pragma unroll
        for (int r = 0; r < 4; r++) row[r] = x + (size_t)min(j + r, n - 1) * ld;
        int w0 = kind == DIAGONAL ? j / 16 : 0;
        if (w0 == 0)
            product_tile(0, s + j, t, row);
        else if (w0 == 1)
            product_tile(1, s + j, t, row);
        else if (w0 == 2)
            product_tile(2, s + j, t, row);
        else
            product_tile(3, s + j, t, row);
    }
}

/* Keys of a block that rows 16 w .. 16 w + 15 can meet. */
INLINE int keys_of(int kind, int w, int n) { return kind == DIAGONAL ? min(n, 16 * w + 16) : n; }

/* Lanes of rows i (vector) for which key j is in the range. */
INLINE int16 in_range(int16 i, int j, uint window) {
#if WINDOW
    return i >= j && i - j <= (int)window;
#else
    return i >= j;
#endif
}

/* What one step of a chain does in vector w for key x of the block: lanes out of the range keep `old`. */
INLINE float16 keep_range(int kind, const int w, int x, int i0, int j0, uint window, float16 now, float16 old) {
    if (kind == DIAGONAL) return lanes() >= x - 16 * w ? now : old;
    if (kind == EDGE) return in_range(i0 + 16 * w + lanes(), j0 + x, window) ? now : old;
    return now;
}

/* acc[y][w] = fma(b[x][d0 + y], p[x][w], acc) for keys x from x0 to x1, vectors w0 .. 3, of which the first (DIAGONAL) or
 * all (EDGE) are cut by the range. */
INLINE void chain_keys(int kind, const int nd, const int w0, float16 acc[4][NV], const float *b, const float16 p[BLOCK][NV],
                       int x0, int x1, int i0, int j0, uint window) {
    for (int x = x0; x < x1; x++)
#pragma unroll
        for (int y = 0; y < nd; y++)
#pragma unroll
            for (int w = w0; w < NV; w++) {
                float16 now = fma((float16)(b[x * 16 * DV + y]), p[x][w], acc[y][w]);
                acc[y][w] = keep_range(w == w0 || kind == EDGE ? kind : WHOLE, w, x, i0, j0, window, now, acc[y][w]);
            }
}

/* out[d][w] = out[d][w] * factor[w] (if given), then the chain over the block's n keys of b[x][d] * p[x][w], for nd
 * (a constant) elements from out and b on. */
INLINE void accumulate_tile(int kind, const int nd, float16 (*out)[NV], const float16 *factor, const float *b,
                            const float16 p[BLOCK][NV], int n, int i0, int j0, uint window) {
    float16 acc[4][NV];
#pragma unroll
    for (int y = 0; y < nd; y++)
#pragma unroll
        for (int w = 0; w < NV; w++) acc[y][w] = factor ? out[y][w] * factor[w] : out[y][w];
    if (kind == DIAGONAL) {
        chain_keys(DIAGONAL, nd, 0, acc, b, p, 0, min(n, 16), i0, j0, window);
        chain_keys(DIAGONAL, nd, 1, acc, b, p, 16, min(n, 32), i0, j0, window);
        chain_keys(DIAGONAL, nd, 2, acc, b, p, 32, min(n, 48), i0, j0, window);
        chain_keys(DIAGONAL, nd, 3, acc, b, p, 48, n, i0, j0, window);
    } else if (WINDOW && kind == EDGE) {
        chain_keys(EDGE, nd, 0, acc, b, p, 0, n, i0, j0, window);
    } else {
        chain_keys(WHOLE, nd, 0, acc, b, p, 0, n, i0, j0, window);
    }
#pragma unroll
    for (int y = 0; y < nd; y++)
#pragma unroll
        for (int w = 0; w < NV; w++) out[y][w] = acc[y][w];
}

INLINE void accumulate(int kind, float16 out[HEAD_DIM][NV], const float16 *factor, const float16 b[BLOCK][DV],
                       const float16 p[BLOCK][NV], int n, int i0, int j0, uint window) {
    for (int d = 0; d + 4 <= HEAD_DIM; d += 4)
        accumulate_tile(kind, 4, out + d, factor, (const float *)b + d, p, n, i0, j0, window);
#if HEAD_DIM % 4
    accumulate_tile(kind, HEAD_DIM % 4, out + HEAD_DIM / 4 * 4, factor, (const float *)b + HEAD_DIM / 4 * 4, p, n, i0, j0,
                    window);
#endif
}

#if SOFTCAP
#define CAPPED(s, t) t = clt_tanh16(s / softcap), s = softcap * t
#else
#define CAPPED(s, t)
#endif
#if ALIBI
#define BIASED(s, i, j) s = fma((float16)(slope), convert_float16((j) - (i)), s)
#define SLOPE(h) slopes[slopes_off + (h)]
#else
#define BIASED(s, i, j)
#define SLOPE(h) 0.0f
#endif
#if SEQ_IDS
#define MASKED(s, row_ids, j) s = (row_ids) == (int16)(seq_ids[j]) ? s : (float16)(-attention_inf())
#else
#define MASKED(s, row_ids, j)
#endif

/* Rows' sequence ids, and dropout factors of 16 rows i and key j. Rows beyond the sequence repeat the last one. */
INLINE int16 row_ids(__global const int *ids, int i, int seq) {
    int v[16];
    for (int x = 0; x < 16; x++) v[x] = ids[min(i + x, seq - 1)];
    return vload16(0, v);
}
INLINE float16 factors(uint2 key, uint step, uint sample, uint place, ulong first, uint seq, uint threshold, float scale) {
    float v[16];
    for (int x = 0; x < 16; x++)
        v[x] = attention_factor(key, step, sample, place, first + (ulong)x * seq, threshold, scale);
    return vload16(0, v);
}
#define FACTORS(b, h, i, j)                                                                                  \
    factors((uint2)(drop_key0, drop_key1), drop_step, drop_sample + (uint)(b), drop_place,                   \
            ((ulong)(h) * seq + (ulong)(i)) * seq + (ulong)(j), seq, drop_threshold, drop_scale)

/* How the range cuts the block. */
INLINE int kind_of(size_t i0, size_t j0, uint window) {
#if WINDOW
    return i0 > j0 && j0 + window >= i0 + BLOCK - 1 ? WHOLE : EDGE;
#else
    return i0 == j0 ? DIAGONAL : WHOLE;
#endif
}

/* The row rule over the 64 keys of a block. */
INLINE float16 tree64(const float16 p[BLOCK][NV], int w) {
    float16 u[8];
#pragma unroll
    for (int x = 0; x < 8; x++)
        u[x] = ((p[x][w] + p[x + 32][w]) + (p[x + 16][w] + p[x + 48][w])) +
               ((p[x + 8][w] + p[x + 40][w]) + (p[x + 24][w] + p[x + 56][w]));
    return ((u[0] + u[4]) + (u[2] + u[6])) + ((u[1] + u[5]) + (u[3] + u[7]));
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
attention_forward(ATTENTION_ARGS, __global float *o, ulong o_off, uint ldo, __global float *lse, ulong lse_off) {
    float16 rows[BLOCK][DV], qt[HEAD_DIM][NV], ot[HEAD_DIM][NV], p[BLOCK][NV], m[NV], l[NV], a[NV];
    size_t h = get_global_id(1), b = get_global_id(2), base = b * seq;
    size_t i0 = (get_global_size(0) - 1 - get_global_id(0)) * BLOCK;
    int live = (int)min((size_t)BLOCK, seq - i0);
    __global const float *kh = k + k_off + base * ldk + h / group * HEAD_DIM;
    __global const float *vh = v + v_off + base * ldv + h / group * HEAD_DIM;
    float slope = SLOPE(h);
    seq_ids += SEQ_IDS ? seq_ids_off + base : 0;

    load_rows(rows, q + q_off + (base + i0) * ldq + h * HEAD_DIM, ldq, live);
    transpose_rows(qt, rows);
    for (int d = 0; d < HEAD_DIM; d++)
#pragma unroll
        for (int w = 0; w < NV; w++) ot[d][w] = (float16)(0.0f);
#pragma unroll
    for (int w = 0; w < NV; w++) {
        m[w] = (float16)(-attention_inf());
        l[w] = (float16)(0.0f);
    }
    for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 <= i0; j0 += BLOCK) {
        int kind = kind_of(i0, j0, window), n = (int)min((size_t)BLOCK, seq - j0);
        products(kind, p, qt, kh + j0 * ldk, ldk, n);
        for (int w = 0; w < NV; w++) {
            int count = keys_of(kind, w, n), i = (int)i0 + 16 * w;
            float16 top = m[w];
#if SEQ_IDS
            int16 ids = row_ids(seq_ids, i, seq);
#endif
            for (int x = 0; x < count; x++) {
                int j = (int)j0 + x;
                float16 s = p[x][w] * scale, t;
                CAPPED(s, t);
                BIASED(s, i + lanes(), j);
                MASKED(s, ids, j);
                if (kind != WHOLE && !(kind == DIAGONAL && x < 16 * w))
                    s = in_range(i + lanes(), j, window) ? s : (float16)(-attention_inf());
                p[x][w] = s;
                top = s > top ? s : top;
            }
            float16 ref = top == -attention_inf() ? (float16)(0.0f) : top;
            a[w] = clt_exp16(m[w] - ref);
            m[w] = top;
            for (int x = 0; x < count; x++) p[x][w] = clt_exp16(p[x][w] - ref);
            for (int x = count; x < BLOCK; x++) p[x][w] = (float16)(0.0f);
            l[w] = fma(l[w], a[w], tree64(p, w));
#if DROPOUT
            for (int x = 0; x < count; x++) p[x][w] = p[x][w] * FACTORS(b, h, i, j0 + x);
#endif
        }
        load_rows(rows, vh + j0 * ldv, ldv, n);
        accumulate(kind, ot, a, rows, p, n, (int)i0, (int)j0, window);
    }
#pragma unroll
    for (int w = 0; w < NV; w++) {
        a[w] = 1.0f / l[w];
        clt_store16(m[w] + clt_log16(l[w]), lse + lse_off + (b * heads + h) * seq + i0 + 16 * w,
                    clt_above(live, 16 * w));
    }
    for (int d = 0; d < HEAD_DIM; d++)
#pragma unroll
        for (int w = 0; w < NV; w++) ot[d][w] = ot[d][w] * a[w];
    store_rows(ot, o + o_off + (base + i0) * ldo + h * HEAD_DIM, ldo, live);
}

/* x[r] (r < nk, rows of length ld in global memory) vectors c0 .. c0 + nc - 1: from +0 if `clear`, the chain over rows i
 * of p[r][i] * b[i][c], p having BLOCK floats a row. With `triangle`, i starts at r, and p and b point at row r = 0's
 * first; the rows end at `end`. nk, nc, triangle are constants. */
INLINE void key_tile(const int nk, const int nc, const bool triangle, __global float *x, size_t ld, const int c0,
                     const float *p, const float16 (*b)[DV], int end, bool clear) {
    float16 acc[4][6];
#pragma unroll
    for (int r = 0; r < nk; r++)
#pragma unroll
        for (int c = 0; c < nc; c++)
            acc[r][c] = clear ? (float16)(0.0f) : clt_load16(x + r * ld + 16 * (c0 + c), WIDTH(c0 + c));
    int i = 0;
    if (triangle) {
#pragma unroll
        for (int y = 0; y < nk - 1; y++)
            if (y < end)
#pragma unroll
                for (int r = 0; r <= y; r++)
#pragma unroll
                    for (int c = 0; c < nc; c++)
                        acc[r][c] = fma((float16)(p[r * BLOCK + y]), b[y][c0 + c], acc[r][c]);
        i = nk - 1;
    }
    for (; i < end; i++)
#pragma unroll
        for (int r = 0; r < nk; r++)
#pragma unroll
            for (int c = 0; c < nc; c++) acc[r][c] = fma((float16)(p[r * BLOCK + i]), b[i][c0 + c], acc[r][c]);
#pragma unroll
    for (int r = 0; r < nk; r++)
#pragma unroll
        for (int c = 0; c < nc; c++) clt_store16(acc[r][c], x + r * ld + 16 * (c0 + c), WIDTH(c0 + c));
}

#define CHUNK (DV <= 6 ? DV : 4)
INLINE void key_rows(const int nk, const bool triangle, __global float *x, size_t ld, const float *p,
                     const float16 (*b)[DV], int end, bool clear) {
#pragma unroll
    for (int c0 = 0; c0 + CHUNK <= DV; c0 += CHUNK) key_tile(nk, CHUNK, triangle, x, ld, c0, p, b, end, clear);
    if (DV % CHUNK) key_tile(nk, DV % CHUNK, triangle, x, ld, DV / CHUNK * CHUNK, p, b, end, clear);
}

/* x[key] += chain over the rows of p[key][row] * b[row], for the n keys of a block at j0 and `live` rows at i0. */
INLINE void add_keys(int kind, __global float *x, size_t ld, const float16 p[BLOCK][NV], const float16 b[BLOCK][DV], int n,
                     int live, int i0, int j0, uint window, bool clear) {
    const float *s = (const float *)p;
    int j = 0;
    if (WINDOW && kind == EDGE) {
        for (; j < n; j++) {
            int from = max(j0 + j - i0, 0), to = min(j0 + j + (int)window - i0 + 1, live);
            key_rows(1, false, x + j * ld, ld, s + j * BLOCK + from, b + from, to - from, clear);
        }
    } else if (kind == DIAGONAL) {
        for (; j + 4 <= n; j += 4)
            key_rows(4, true, x + j * ld, ld, s + j * BLOCK + j, b + j, live - j, clear);
        for (; j < n; j++) key_rows(1, false, x + j * ld, ld, s + j * BLOCK + j, b + j, live - j, clear);
    } else {
        for (; j + 4 <= n; j += 4) key_rows(4, false, x + j * ld, ld, s + j * BLOCK, b, live, clear);
        for (; j < n; j++) key_rows(1, false, x + j * ld, ld, s + j * BLOCK, b, live, clear);
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
attention_backward(ATTENTION_ARGS, __global const float *o, ulong o_off, uint ldo, __global const float *lse, ulong lse_off,
                   __global const float *dout, ulong dout_off, uint lddout, __global float *dq, ulong dq_off, uint lddq,
                   __global float *dk, ulong dk_off, uint lddk, __global float *dv, ulong dv_off, uint lddv, uint add) {
    float16 qr[BLOCK][DV], dr[BLOCK][DV], kr[BLOCK][DV], qt[HEAD_DIM][NV], dt[HEAD_DIM][NV], dqt[HEAD_DIM][NV];
    float16 p[BLOCK][NV], ds[BLOCK][NV], stat[NV], delta[NV];
    size_t g = get_global_id(0), b = get_global_id(1), base = b * seq;
    __global const float *kh = k + k_off + base * ldk + g * HEAD_DIM;
    __global const float *vh = v + v_off + base * ldv + g * HEAD_DIM;
    dk += dk_off + base * lddk + g * HEAD_DIM;
    dv += dv_off + base * lddv + g * HEAD_DIM;
    seq_ids += SEQ_IDS ? seq_ids_off + base : 0;

    for (size_t h = g * group; h < (g + 1) * group; h++) {
        float slope = SLOPE(h);
        for (size_t i0 = 0; i0 < seq; i0 += BLOCK) {
            int live = (int)min((size_t)BLOCK, seq - i0);
            size_t row = base + i0, col = h * HEAD_DIM;
            load_rows(dr, dout + dout_off + row * lddout + col, lddout, live);
            transpose_rows(dt, dr);
            load_rows(qr, o + o_off + row * ldo + col, ldo, live);
            transpose_rows(qt, qr);
#pragma unroll
            for (int w = 0; w < NV; w++) {
                delta[w] = (float16)(0.0f);
                for (int d = 0; d < HEAD_DIM; d++) delta[w] = fma(dt[d][w], qt[d][w], delta[w]);
                stat[w] = clt_load16(lse + lse_off + (b * heads + h) * seq + i0 + 16 * w,
                                     clt_above(live, 16 * w));
            }
            load_rows(qr, q + q_off + row * ldq + col, ldq, live);
            transpose_rows(qt, qr);
            for (int d = 0; d < HEAD_DIM; d++)
#pragma unroll
                for (int w = 0; w < NV; w++) dqt[d][w] = (float16)(0.0f);

            for (size_t j0 = attention_first(i0, window) / BLOCK * BLOCK; j0 <= i0; j0 += BLOCK) {
                int kind = kind_of(i0, j0, window), n = (int)min((size_t)BLOCK, seq - j0);
                products(kind, p, qt, kh + j0 * ldk, ldk, n);
                products(kind, ds, dt, vh + j0 * ldv, ldv, n);
                for (int w = 0; w < NV; w++) {
                    int count = keys_of(kind, w, n), i = (int)i0 + 16 * w;
#if SEQ_IDS
                    int16 ids = row_ids(seq_ids, i, seq);
#endif
                    for (int x = 0; x < count; x++) {
                        int j = (int)j0 + x;
                        float16 s = p[x][w] * scale, t, dp = ds[x][w];
                        CAPPED(s, t);
                        BIASED(s, i + lanes(), j);
                        MASKED(s, ids, j);
                        float16 prob = clt_exp16(s - stat[w]), weight = prob;
#if DROPOUT
                        float16 f = FACTORS(b, h, i, j);
                        weight = weight * f;
                        dp = dp * f;
#endif
                        s = prob * (dp - delta[w]);
#if SOFTCAP
                        s = s * fma(-t, t, (float16)(1.0f));
#endif
                        p[x][w] = weight;
                        ds[x][w] = s * scale;
                    }
                }
                load_rows(kr, kh + j0 * ldk, ldk, n);
                accumulate(kind, dqt, 0, kr, ds, n, (int)i0, (int)j0, window);
                bool clear = !add && h == g * group && i0 == j0;
                add_keys(kind, dv + j0 * lddv, lddv, p, dr, n, live, (int)i0, (int)j0, window, clear);
                add_keys(kind, dk + j0 * lddk, lddk, ds, qr, n, live, (int)i0, (int)j0, window, clear);
            }
            store_rows(dqt, dq + dq_off + row * lddq + col, lddq, live);
        }
    }
}
