/* quantize_portable: 8-bit blocks of x [rows, cols], or of what quantize_value.clh makes of it, for any device,
 * both orientations from one reading.
 *
 * A group handles a patch of BLOCK x BLOCK elements that lies inside one sample. An item reads eight
 * neighbouring columns of some rows, twice: for the largest magnitudes of rows and columns, which meet in local
 * memory, and to round. The transposed numbers go through local memory, too. Elements outside of x are +0,
 * which also writes the padding. The second time an item reads what it stored of y, or computes it again.
 *
 *   -DBLOCK=64|128   elements of a block
 *   -DX_TYPE         type of x (../include/clt_store.clh)
 *   -DACT, -DGRAD_ACT, -DKEEP_Y  what is quantised (quantize_value.clh)
 *   -DWG             work-items of a group, a multiple of 16
 *
 * flags: 1 along, 2 across, 4 one scale per patch. sample: rows per sample.
 * Launch: global {ceil(cols / BLOCK) * WG, samples * ceil(sample / BLOCK)}, local {WG, 1}.
 * Requires: local memory of BLOCK * (BLOCK + 20) + 4 bytes. */
#include "quantize.clh"
#include "quantize_value.clh"

#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef WG
#define WG 64
#endif
#define CHUNKS (BLOCK / 8) /* of eight columns */
#define STRIDE (WG / CHUNKS)
#define LD_TURN (BLOCK + 12) /* bytes; a multiple of 4, not of 64 */
#if BLOCK != 64 && BLOCK != 128
#error "BLOCK must be 64 or 128"
#endif
#if WG % CHUNKS
#error "WG must be a multiple of BLOCK / 8"
#endif

#define ALONG 1u
#define ACROSS 2u
#define TILE 4u

#include "../include/clt_eight.clh"

/* An item's eight columns of its patch. */
typedef struct {
    __global const in_type *x;
    size_t ldx;
#if VALUES
    value_place to;
#endif
} source;

#if VALUES
/* The first n of eight values; the others are +0. */
static inline float8 first8(float8 v, size_t n)
{
    const float4 none = (float4)(0.0f);
    const int4 at = (int4)(0, 1, 2, 3), end = (int4)((int)min(n, (size_t)8));
    return (float8)(at < end ? v.lo : none, at + 4 < end ? v.hi : none);
}
static inline void store_up_to8(float8 v, __global in_type *p, size_t n)
{
    if (n > 0) CLT_STORE(X_TYPE, v.s0, p);
    if (n > 1) CLT_STORE(X_TYPE, v.s1, p + 1);
    if (n > 2) CLT_STORE(X_TYPE, v.s2, p + 2);
    if (n > 3) CLT_STORE(X_TYPE, v.s3, p + 3);
    if (n > 4) CLT_STORE(X_TYPE, v.s4, p + 4);
    if (n > 5) CLT_STORE(X_TYPE, v.s5, p + 5);
    if (n > 6) CLT_STORE(X_TYPE, v.s6, p + 6);
    if (n > 7) CLT_STORE(X_TYPE, v.s7, p + 7);
}
#endif

/* The first n elements to quantise of row r; the others are +0. `again`: the second time. Always inlined: a call
 * would pass vectors through scratch memory. */
static inline __attribute__((always_inline)) float8 load_row(const source *s, size_t r, size_t n, bool again)
{
#if KEEP_Y
    if (again) return clt_load_up_to8(s->to.y + r * s->to.ldy, n);
#endif
    float8 v = clt_load_up_to8(s->x + r * s->ldx, n);
#if VALUES
    if (n == 0) return v;
#if GRAD_ACT
    v = clt_value8(v, clt_load_up_to8(s->to.g + r * s->to.ldg, n));
#else
    v = clt_value8(v, v);
#endif
    v = first8(v, n);
#if KEEP_Y
    store_up_to8(v, s->to.y + r * s->to.ldy, n);
#endif
#endif
    return v;
}

#define WORD(x, inv) clt_block8_byte(x, inv, clt_block8_keep(inv))
#define FOUR(a, b, c, d) (WORD a | WORD b << 8 | WORD c << 16 | WORD d << 24)

/* This item's part of the largest magnitudes: eight columns of every STRIDE-th row. */
static inline void add_maxima(const source *from, uint chunk, uint first, uint height, uint left, volatile __local uint *row_max, volatile __local uint *col_max,
                              volatile __local uint *patch_max)
{
    uint8 down = (uint8)(0);
    for (uint r = first; r < height; r += STRIDE) {
        const uint8 u = clt_bits8(load_row(from, r, left, false));
        down = max(down, u);
        atomic_max(&row_max[r], clt_largest8(u));
    }
    atomic_max(&col_max[chunk], down.s0);
    atomic_max(&col_max[chunk + 1], down.s1);
    atomic_max(&col_max[chunk + 2], down.s2);
    atomic_max(&col_max[chunk + 3], down.s3);
    atomic_max(&col_max[chunk + 4], down.s4);
    atomic_max(&col_max[chunk + 5], down.s5);
    atomic_max(&col_max[chunk + 6], down.s6);
    atomic_max(&col_max[chunk + 7], down.s7);
    atomic_max(patch_max, clt_largest8(down));
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
quantize(uint rows, uint cols, uint sample, uint flags, __global const in_type *x, ulong x_off, ulong ldx,
         __global char *q, ulong q_off, ulong ldq, __global float *s, ulong s_off, ulong lds, __global char *t,
         ulong t_off, ulong ldt, __global float *ts, ulong ts_off, ulong ldts VALUE_ARGS)
{
    __local uint row_max[BLOCK], col_max[BLOCK], patch_max;
    __local uchar turned[BLOCK * LD_TURN];
    const uint lid = (uint)get_local_id(0), chunk = lid % CHUNKS * 8, first = lid / CHUNKS;
    const size_t per_sample = (sample + BLOCK - 1) / BLOCK, patch = get_global_id(1);
    const size_t in_sample = patch % per_sample * BLOCK, row0 = patch / per_sample * sample + in_sample;
    const size_t col0 = get_group_id(0) * BLOCK;
    const uint height = (uint)min((size_t)sample - in_sample, (size_t)BLOCK);
    const uint width = (uint)min((size_t)cols - col0, (size_t)BLOCK), left = (uint)clt_above(width, chunk);
    const source from = {x + x_off + row0 * ldx + col0 + chunk, ldx
#if VALUES
                         , VALUE_AT(row0, col0 + chunk)
#endif
    };

    for (uint i = lid; i < BLOCK; i += WG) row_max[i] = col_max[i] = 0;
    if (lid == 0) patch_max = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    add_maxima(&from, chunk, first, height, left, row_max, col_max, &patch_max);
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool tile = flags & TILE;
    for (uint i = lid; i < BLOCK; i += WG) {
        const uint row = clt_block8_scale(tile ? patch_max : row_max[i]);
        const uint col = clt_block8_scale(tile ? patch_max : col_max[i]);
        if ((flags & ALONG) && i < (tile ? 1 : height))
            s[s_off + col0 / BLOCK * lds + (tile ? row0 / BLOCK : row0 + i)] = as_float(row);
        if ((flags & ACROSS) && i < (tile ? 1 : width))
            ts[ts_off + patch * ldts + (tile ? col0 / BLOCK : col0 + i)] = as_float(col);
        row_max[i] = as_uint(clt_block8_inverse(row)); /* from here on the inverses */
        col_max[i] = as_uint(clt_block8_inverse(col));
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    q += q_off + row0 * ldq + col0 + chunk;
    for (uint r = first; r < BLOCK; r += STRIDE) {
        const float8 v = load_row(&from, r, r < height ? left : 0, true);
        if ((flags & ALONG) && r < height) {
            const float f = as_float(row_max[r]);
            *(__global uint2 *)(q + r * ldq) = (uint2)(FOUR((v.s0, f), (v.s1, f), (v.s2, f), (v.s3, f)),
                                                       FOUR((v.s4, f), (v.s5, f), (v.s6, f), (v.s7, f)));
        }
        if (flags & ACROSS) {
#define TURN(i, e) turned[(chunk + i) * LD_TURN + r] = (uchar)WORD(e, as_float(col_max[chunk + i]));
            TURN(0, v.s0) TURN(1, v.s1) TURN(2, v.s2) TURN(3, v.s3)
            TURN(4, v.s4) TURN(5, v.s5) TURN(6, v.s6) TURN(7, v.s7)
        }
    }
    if (!(flags & ACROSS)) return;
    barrier(CLK_LOCAL_MEM_FENCE);
    t += t_off + col0 * ldt + patch * BLOCK;
    for (uint i = lid; i < width * (BLOCK / 4); i += WG) {
        const uint c = i / (BLOCK / 4), w = i % (BLOCK / 4) * 4;
        *(__global uint *)(t + c * ldt + w) = as_uint(vload4(0, turned + c * LD_TURN + w));
    }
}
