/* cast_fp8: 8-bit floating point from x [rows, cols] for any device, both orientations from one reading, and
 * the largest magnitude.
 *
 * A group handles a patch of 128 x 128 elements. An item reads eight neighbouring columns of four rows at a
 * time. Four codes of a column are one word of local memory, from which the transposed rows are stored; the
 * place of a word in its row is turned by the column, so that items meet no bank conflicts. Elements outside
 * of x are +0, which also writes the padding.
 *
 *   -DFORMAT    of the codes (fp8.clh)
 *   -DX_TYPE    type of x (../include/clt_store.clh)
 *   -DWG        work-items of a group, a multiple of 16
 *   -DCVT=1     NVIDIA's conversion from sm_89 on, two elements at a time, for OCP formats
 *
 * flags: 1 along, 2 across, 4 amax.
 * Launch: global {ceil(cols / 128) * WG, ceil(rows / 128)}, local {WG, 1}. Requires: 16,400 bytes of local
 * memory. */
#include "../include/clt_store.clh"
#include "fp8.clh"

#ifndef FORMAT
#define FORMAT 0
#endif
#ifndef X_TYPE
#define X_TYPE 0
#endif
#ifndef WG
#define WG 64
#endif
#ifndef CVT
#define CVT 0
#endif
#define PATCH 128
#define CHUNKS (PATCH / 8) /* of eight columns */
#define STRIDE (WG / CHUNKS)
#if WG % CHUNKS
#error "WG must be a multiple of 16"
#endif

#define ALONG 1u
#define ACROSS 2u
#define AMAX 4u

typedef CLT_T(X_TYPE) in_type;

#include "../include/clt_eight.clh"

#define FOUR(v) (CODE(v.x) | CODE(v.y) << 8 | CODE(v.z) << 16 | CODE(v.w) << 24)
#define CODE(x) CLT_FP8_NARROW(FORMAT, x)
#if CVT
#if FORMAT == 0
#define PAIR "cvt.rn.satfinite.e4m3x2.f32 "
#elif FORMAT == 1
#define PAIR "cvt.rn.satfinite.e5m2x2.f32 "
#else
#error "CVT is for OCP formats"
#endif
/* The instruction gives another code for a NaN, so words with one are computed in C. */
static inline uint four(float4 v, bool numbers)
{
    uint w;
    if (!numbers) return FOUR(v);
    __asm__("{.reg .b16 lo, hi; " PAIR "lo, %2, %1; " PAIR "hi, %4, %3; mov.b32 %0, {lo, hi};}"
            : "=r"(w)
            : "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
    return w;
}
#else
static inline uint four(float4 v, bool numbers) { return FOUR(v); }
#endif

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
cast_fp8(uint rows, uint cols, uint flags, __global const in_type *x, ulong x_off, ulong ldx,
         __global const float *scale, ulong scale_off, volatile __global uint *amax, ulong amax_off,
         __global uchar *q, ulong q_off, ulong ldq, __global uchar *t, ulong t_off, ulong ldt)
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
    q += q_off + row0 * ldq + col0 + chunk;
    if (lid == 0) patch_max = 0;
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint r = lid / CHUNKS * 4; r < padded_height; r += STRIDE * 4) {
        const float8 v0 = clt_load_up_to8(x + r * ldx, r < height ? left : 0);
        const float8 v1 = clt_load_up_to8(x + (r + 1) * ldx, r + 1 < height ? left : 0);
        const float8 v2 = clt_load_up_to8(x + (r + 2) * ldx, r + 2 < height ? left : 0);
        const float8 v3 = clt_load_up_to8(x + (r + 3) * ldx, r + 3 < height ? left : 0);
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
