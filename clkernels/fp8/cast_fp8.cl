/* cast_fp8: 8-bit floating point from x [rows, cols] for any device, both orientations from one reading, and
 * the largest magnitude. cast_fp8.clh has the macros of what is cast.
 *
 * A group handles a patch of 128 x 128 elements. An item reads eight neighbouring columns of four rows at a
 * time. Four codes of a column are one word of local memory, from which the transposed rows are stored; the
 * place of a word in its row is turned by the column, so that items meet no bank conflicts. Elements outside
 * of x are +0, which also writes the padding.
 *
 *   -DWG        work-items of a group, a multiple of 16
 *
 * flags: 1 along, 2 across, 4 amax, 8 y (with -DACT, -DGRAD_ACT or -DWITH_Y only). y may be x or g: an item
 * reads its elements before it writes them.
 * Launch: global {ceil(cols / 128) * WG, ceil(rows / 128)}, local {WG, 1}. Requires: 16,400 bytes of local
 * memory. */
#include "cast_fp8.clh"

#ifndef WG
#define WG 64
#endif
#define PATCH 128
#define CHUNKS (PATCH / 8) /* of eight columns */
#define STRIDE (WG / CHUNKS)
#if WG % CHUNKS
#error "WG must be a multiple of 16"
#endif

/* y of eight elements of each of two rows, of which n0 and n1 exist. */
static inline void two_rows(float8 *v0, float8 *v1, __global const in_type *x, size_t ldx,
                            __global const in_type *g, size_t ldg, size_t n0, size_t n1)
{
    *v0 = clt_load_up_to8(x, n0);
    *v1 = clt_load_up_to8(x + ldx, n1);
#if MAKES_Y
    float16 with = (float16)(0.0f);
    if (GRAD_ACT) with = (float16)(clt_load_up_to8(g, n0), clt_load_up_to8(g + ldg, n1));
    with = clt_result16((float16)(*v0, *v1), with);
    *v0 = clt_first8(with.lo, n0);
    *v1 = clt_first8(with.hi, n1);
#endif
}

/* The first n of eight elements. */
static inline void store_up_to8(float8 v, __global in_type *p, size_t n)
{
    if (n >= 8) {
        CLT_STORE4(X_TYPE, v.lo, p);
        CLT_STORE4(X_TYPE, v.hi, p + 4);
        return;
    }
    if (n > 0) CLT_STORE(X_TYPE, v.s0, p);
    if (n > 1) CLT_STORE(X_TYPE, v.s1, p + 1);
    if (n > 2) CLT_STORE(X_TYPE, v.s2, p + 2);
    if (n > 3) CLT_STORE(X_TYPE, v.s3, p + 3);
    if (n > 4) CLT_STORE(X_TYPE, v.s4, p + 4);
    if (n > 5) CLT_STORE(X_TYPE, v.s5, p + 5);
    if (n > 6) CLT_STORE(X_TYPE, v.s6, p + 6);
}

static inline uint four(float4 v, bool numbers)
{
    return numbers ? four_numbers(v) : FOUR(v);
}

/* Codes of eight elements, in two words. largest: of their magnitudes' bits, or more. */
static inline uint2 eight(float8 v, float scale, uint largest)
{
    const float8 y = v * scale;
    return (uint2)(four(y.lo, largest <= 0x7f800000u), four(y.hi, largest <= 0x7f800000u));
}

/* Bytes i of four words. */
#define COLUMN(w, i)                                                                                         \
    ((w##0 >> (8 * (i)) & 0xffu) | (w##1 >> (8 * (i)) & 0xffu) << 8 | (w##2 >> (8 * (i)) & 0xffu) << 16 |    \
     (w##3 >> (8 * (i)) & 0xffu) << 24)

/* The place of the word of rows 4 q ... 4 q + 3 of column c. */
static inline uint turned_at(uint c, uint q) { return c * (PATCH / 4) + (q ^ (c / 8 * 2 & 31)); }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
cast_fp8(CLT_CAST_FP8_ARGS)
{
    __local uint turned[PATCH * PATCH / 4], patch_max;
    const uint lid = (uint)get_local_id(0), chunk = lid % CHUNKS * 8;
    const size_t row0 = get_global_id(1) * PATCH, col0 = get_group_id(0) * PATCH;
    const uint height = (uint)min((size_t)rows - row0, (size_t)PATCH);
    const uint width = (uint)min((size_t)cols - col0, (size_t)PATCH), left = (uint)max((int)width - (int)chunk, 0);
    const uint padded_width = (width + 15u) & ~15u, padded_height = (height + 15u) & ~15u;
    const float by = scale[scale_off];
    uint largest = 0;
    x += x_off + row0 * ldx + col0 + chunk;
    g += g_off + row0 * ldg + col0 + chunk;
    y += y_off + row0 * ldy + col0 + chunk;
    q += q_off + row0 * ldq + col0 + chunk;
    if (lid == 0) patch_max = 0;
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint r = lid / CHUNKS * 4; r < padded_height; r += STRIDE * 4) {
        const uint n0 = r < height ? left : 0, n1 = r + 1 < height ? left : 0, n2 = r + 2 < height ? left : 0,
                   n3 = r + 3 < height ? left : 0;
        float8 v0, v1, v2, v3;
        two_rows(&v0, &v1, x + r * ldx, ldx, g + r * ldg, ldg, n0, n1);
        two_rows(&v2, &v3, x + (r + 2) * ldx, ldx, g + (r + 2) * ldg, ldg, n2, n3);
        if (flags & STORE_Y) {
            store_up_to8(v0, y + r * ldy, n0);
            store_up_to8(v1, y + (r + 1) * ldy, n1);
            store_up_to8(v2, y + (r + 2) * ldy, n2);
            store_up_to8(v3, y + (r + 3) * ldy, n3);
        }
        const uint most = clt_largest8(max(max(clt_bits8(v0), clt_bits8(v1)), max(clt_bits8(v2), clt_bits8(v3))));
        const uint2 w0 = eight(v0, by, most), w1 = eight(v1, by, most), w2 = eight(v2, by, most),
                    w3 = eight(v3, by, most);
        largest = max(largest, most);
        if ((flags & ALONG) && chunk < padded_width) {
            if (r < height) *(__global uint2 *)(q + r * ldq) = w0;
            if (r + 1 < height) *(__global uint2 *)(q + (r + 1) * ldq) = w1;
            if (r + 2 < height) *(__global uint2 *)(q + (r + 2) * ldq) = w2;
            if (r + 3 < height) *(__global uint2 *)(q + (r + 3) * ldq) = w3;
        }
        if (flags & ACROSS) {
            const uint a0 = w0.x, a1 = w1.x, a2 = w2.x, a3 = w3.x, b0 = w0.y, b1 = w1.y, b2 = w2.y, b3 = w3.y;
#define TURN(i, w) turned[turned_at(chunk + i, r / 4)] = COLUMN(w, (i) % 4);
            TURN(0, a) TURN(1, a) TURN(2, a) TURN(3, a) TURN(4, b) TURN(5, b) TURN(6, b) TURN(7, b)
        }
    }
    if (flags & AMAX) atomic_max(&patch_max, largest);
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((flags & AMAX) && lid == 0 && patch_max) atomic_max(amax + amax_off, patch_max);
    if (!(flags & ACROSS)) return;
    t += t_off + col0 * ldt + row0;
    for (uint i = lid; i < width * (PATCH / 4); i += WG) {
        const uint c = i / (PATCH / 4), w = i % (PATCH / 4);
        if (w * 4 < padded_height) *(__global uint *)(t + c * ldt + w * 4) = turned[turned_at(c, w)];
    }
}
