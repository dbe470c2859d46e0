/* quantize_cpu: 8-bit blocks of x [rows, cols], or of what quantize_value.clh makes of it, for CPU devices: a
 * work-group of one per patch of BLOCK x BLOCK elements inside a sample, 16 lanes.
 *
 * An item reads its patch twice, the second time from the caches: for the largest magnitudes of rows and
 * columns, and to round four rows at a time. Four numbers of a column are one int in local memory; a transpose
 * of 16 x 16 ints then gives 64 consecutive numbers of a transposed row. Values made from x are kept in local
 * memory, from where both times they are read.
 *
 *   -DBLOCK=64|128   elements of a block
 *   -DX_TYPE         type of x (../include/clt_store.clh)
 *   -DACT, -DGRAD_ACT, -DKEEP_Y  what is quantised (quantize_value.clh)
 *
 * flags: 1 along, 2 across, 4 one scale per patch. sample: rows per sample.
 * Launch: global {ceil(cols / BLOCK), samples * ceil(sample / BLOCK)}, local {1, 1}.
 * Requires: local memory of BLOCK * (BLOCK + 20) bytes, and with values of BLOCK * BLOCK elements more. */
#include "../gemm/gemm_cpu.clh"
#include "quantize.clh"
#include "quantize_value.clh"

#ifndef BLOCK
#define BLOCK 128
#endif
#if BLOCK != 64 && BLOCK != 128
#error "BLOCK must be 64 or 128"
#endif
#define V (BLOCK / 16)          /* vectors of a row */
#define LINE (X_TYPE == 0 ? 1 : 2) /* vectors of a line of 64 bytes */

#define ALONG 1u
#define ACROSS 2u
#define TILE 4u

/* A patch of x, of which height x width elements exist. */
typedef struct {
    __global const in_type *x;
    size_t ldx, height, width;
#if VALUES
    __local in_type *values; /* [height][BLOCK] */
#endif
} patch;

/* What becomes of it; local memory for BLOCK rows and columns. */
typedef struct {
    __local uint *row_scale, *col_scale; /* the largest magnitudes first, then the scales' bits */
    __local float *col_inverse;
    __local uint *turned;                /* [BLOCK / 4][BLOCK] */
} patch_state;

/* 16 elements of row r of x; those outside are +0. */
static inline float16 load_x(const patch *p, size_t r, int v, bool whole)
{
    __global const in_type *at = p->x + r * p->ldx + 16 * v;
    if (whole) return CLT_LOAD16(X_TYPE, at, 16);
    return r < p->height ? CLT_LOAD16(X_TYPE, at, clt_above(p->width, 16 * v)) : (float16)(0.0f);
}

#if VALUES
#if X_TYPE == 0
#define VALUES_AT(p) CLT_AT16(__local, float, p)
#else
#define VALUES_AT(p) CLT_AT16(__local, ushort, p)
#endif

static inline float16 load_part(const patch *p, size_t r, int v, bool whole)
{
    if (!whole && r >= p->height) return (float16)(0.0f);
    return CLT_WIDEN16(X_TYPE, VALUES_AT(p->values + r * BLOCK + 16 * v));
}

/* Fills the patch's values, with +0 outside of x, and stores them to y. */
static inline void make_values(const patch *p, value_place to, bool whole)
{
    const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (size_t r = 0; r < p->height; r++)
        for (int v = 0; v < V; v++) {
            const size_t n = whole ? 16 : clt_above(p->width, 16 * v);
            const float16 x = load_x(p, r, v, whole);
#if GRAD_ACT
            float16 y = clt_value16(x, CLT_LOAD16(X_TYPE, to.g + r * to.ldg + 16 * v, n));
            if (v % LINE == 0) PREFETCH(to.g + r * to.ldg + BLOCK + 16 * v, 2);
#else
            float16 y = clt_value16(x, x);
#endif
            if (n < 16) y = lane < (int16)((int)n) ? y : (float16)(0.0f);
            VALUES_AT(p->values + r * BLOCK + 16 * v) = CLT_ROUND16(X_TYPE, y);
#if KEEP_Y
            CLT_STORE16(X_TYPE, y, to.y + r * to.ldy + 16 * v, n);
#endif
        }
}
#else
#define load_part load_x
#endif

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
static inline uint largest(uint16 u)
{
    const uint8 a = LARGER(u.lo, u.hi);
    const uint4 b = LARGER(a.lo, a.hi);
    const uint2 c = LARGER(b.lo, b.hi);
    return LARGER(c.x, c.y);
}

/* The largest magnitude of the patch. */
static inline uint find_one(const patch *p, bool whole)
{
    uint16 all[V];
    EACH(v, V) all[v] = (uint16)(0u);
    for (size_t r = 0; r < p->height; r++)
        EACH(v, V)
        {
            const uint16 u = clt_block8_bits16(load_part(p, r, v, whole));
            all[v] = LARGER(all[v], u);
        }
    for (int v = 1; v < V; v++) all[0] = LARGER(all[0], all[v]);
    return largest(all[0]);
}

/* Fills the rows' and columns' largest magnitudes. */
static inline void find_largest(const patch *p, patch_state s, bool whole)
{
    uint16 down[V];
    EACH(v, V) down[v] = (uint16)(0u);
    for (size_t r = 0; r < p->height; r++) {
        uint16 row = (uint16)(0u);
        EACH(v, V)
        {
            const uint16 u = clt_block8_bits16(load_part(p, r, v, whole));
            down[v] = LARGER(down[v], u);
            row = LARGER(row, u);
        }
        s.row_scale[r] = largest(row);
    }
    EACH(v, V) CLT_AT16(__local, uint, s.col_scale + 16 * v) = down[v];
}

/* Scales from magnitudes. */
static inline void set_scales(patch_state s)
{
    EACH(v, V)
    {
        const uint16 row = vload16(v, s.row_scale), down = clt_block8_scale16(vload16(v, s.col_scale));
        vstore16(clt_block8_scale16(row), v, s.row_scale);
        vstore16(down, v, s.col_scale);
        vstore16(clt_block8_inverse16(down), v, s.col_inverse);
    }
}

/* Rows r ... r + 3: their numbers to q, and to s.turned as the columns' scales make them. With one scale for the patch,
 * whose inverse is `one`, these are the same numbers. */
static inline void round_rows(const patch *p, patch_state s, size_t r, uint flags, float one, __global char *q, size_t ldq,
                              bool whole)
{
    const bool tile = flags & TILE;
    float16 inv[4];
    uint16 keep[4];
    EACH(i, 4)
    {
        const float f = tile ? one : clt_block8_inverse(s.row_scale[r + i]);
        inv[i] = (float16)(f);
        keep[i] = (uint16)(clt_block8_keep(f));
    }
    EACH(v, V)
    {
        float16 x[4];
        EACH(i, 4)
        {
            x[i] = load_part(p, r + i, v, whole);
            if (v % LINE == 0) PREFETCH(p->x + (r + i) * p->ldx + BLOCK + 16 * v, 2); /* the next item's patch */
        }
        uint16 word[4];
        EACH(i, 4) word[i] = clt_block8_byte16(x[i], inv[i], keep[i]);
        if (flags & ALONG)
            EACH(i, 4)
            if (whole || r + i < p->height) *(__global uchar16 *)(q + (r + i) * ldq + 16 * v) = convert_uchar16(word[i]);
        if (flags & ACROSS) {
            if (!tile) {
                const float16 down = vload16(v, s.col_inverse);
                const uint16 some = clt_block8_keep16(down);
                EACH(i, 4) word[i] = clt_block8_byte16(x[i], down, some);
            }
            CLT_AT16(__local, uint, s.turned + r / 4 * BLOCK + 16 * v) = word[0] | word[1] << 8 | word[2] << 16 | word[3] << 24;
        }
    }
}

/* 64 rows of 16 columns from s.turned to the transposed rows. */
static inline void store_turned(const patch *p, patch_state s, __global char *t, size_t ldt, size_t row, size_t column)
{
    float16 w[16];
    EACH(i, 16) w[i] = as_float16(vload16(0, s.turned + (row / 4 + i) * BLOCK + column));
    transpose16(w);
    t += column * ldt + row;
    if (column + 16 <= p->width) { /* with a condition per row the vectors would be stored in quarters */
        EACH(i, 16) AT16(__global, (__global float *)(t + i * ldt)) = w[i];
    } else {
        EACH(i, 16)
        if (column + i < p->width) AT16(__global, (__global float *)(t + i * ldt)) = w[i];
    }
}

static inline void round_patch(const patch *p, patch_state s, uint flags, __global char *q, size_t ldq, bool whole)
{
    float one = 0.0f;
    if (flags & TILE) {
        const uint scale = clt_block8_scale(find_one(p, whole));
        one = clt_block8_inverse(scale);
        s.row_scale[0] = s.col_scale[0] = scale;
    } else {
        find_largest(p, s, whole);
        set_scales(s);
    }
    for (size_t r = 0; r < BLOCK; r += 4) round_rows(p, s, r, flags, one, q, ldq, whole);
}

__kernel CLT_ONE_ITEM void quantize(uint rows, uint cols, uint sample, uint flags, __global const in_type *x,
                                    ulong x_off, ulong ldx, __global char *q, ulong q_off, ulong ldq,
                                    __global float *s, ulong s_off, ulong lds, __global char *t, ulong t_off,
                                    ulong ldt, __global float *ts, ulong ts_off, ulong ldts VALUE_ARGS)
{
    __local uint row_scale[BLOCK], col_scale[BLOCK], turned[BLOCK / 4 * BLOCK];
    __local float col_inverse[BLOCK];
    const patch_state state = {row_scale, col_scale, col_inverse, turned};
    const size_t per_sample = (sample + BLOCK - 1) / BLOCK, place = get_global_id(1);
    const size_t in_sample = place % per_sample * BLOCK, row0 = place / per_sample * sample + in_sample;
    const size_t col0 = get_global_id(0) * BLOCK;
    patch p = {x + x_off + row0 * ldx + col0, ldx, min((size_t)sample - in_sample, (size_t)BLOCK),
               min((size_t)cols - col0, (size_t)BLOCK)};
    q += q_off + row0 * ldq + col0;
    t += t_off + col0 * ldt + place * BLOCK;
#if VALUES
    __local in_type values[BLOCK * BLOCK];
    const value_place to = VALUE_AT(row0, col0);
    p.values = values;
    if (p.height == BLOCK && p.width == BLOCK)
        make_values(&p, to, true);
    else
        make_values(&p, to, false);
#endif
    if (p.height == BLOCK && p.width == BLOCK)
        round_patch(&p, state, flags, q, ldq, true);
    else
        round_patch(&p, state, flags, q, ldq, false);
    const bool tile = flags & TILE;
    if (flags & ALONG) {
        s += s_off + col0 / BLOCK * lds + (tile ? row0 / BLOCK : row0);
        for (size_t i = 0; i < (tile ? 1 : p.height); i++) s[i] = as_float(row_scale[i]);
    }
    if (flags & ACROSS) {
        ts += ts_off + place * ldts + (tile ? col0 / BLOCK : col0);
        for (size_t i = 0; i < (tile ? 1 : p.width); i++) ts[i] = as_float(col_scale[i]);
        for (size_t column = 0; column < p.width; column += 16)
            for (size_t row = 0; row < BLOCK; row += 64) store_turned(&p, state, t, ldt, row, column);
    }
}
