/* cast_fp8_wide: the cast of cast_fp8.cl for devices with many registers and loads of 16 bytes. cast_fp8.clh
 * has the macros of what is cast.
 *
 * A group handles a patch of 128 x 128 elements, an item eight rows of eight columns. The transposed codes
 * pass through local memory as words of four rows, and leave it 16 bytes at a time. Elements outside of x are
 * +0, which also writes the padding.
 *
 *   -DHALF_PTX=1   16-bit conversions, bytes and maxima by NVIDIA's instructions, from sm_80 on
 *   -DSHARED=3     NVIDIA: the assembler limits registers, so that so many groups share a unit (of 16-bit x
 *                  without an activation of many instructions)
 *
 * Offsets and row distances of x, g and y, and cols, are multiples of 8. flags and the order of reads and
 * writes: cast_fp8.cl. Launch: global {ceil(cols / 128) * 256, ceil(rows / 128)}, local {256, 1}. Requires:
 * 16,416 bytes of local memory. */
#include "cast_fp8.clh"

#ifndef WG
#define WG 256
#endif
#ifndef SHARED
#define SHARED 0
#endif
#if WG != 256
#error "WG must be 256"
#endif
#define PATCH 128
#define SIDE (PATCH / 8) /* items along an edge of a patch */
#define LINE (PATCH / 4) /* words of a column */
#define WARP 32
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
/* Rows that an item requests at once: more would need too many registers. */
#define AT_ONCE (MAKES_Y || X_TYPE == 0 ? 4 : 8)

#if MAKES_Y && !FAST
#define GROUPS 1
#elif X_TYPE == 0
#define GROUPS 2
#else
#define GROUPS SHARED
#endif
#define SHARED_BY(groups) SHARED_BY_(groups)
#define SHARED_BY_(groups) __asm__ volatile("//@entry .minnctapersm " #groups)

/* Into the kernel: PoCL's local memory of a kernel has another address in functions. */
#define INLINE static inline __attribute__((always_inline))

typedef CLT_T8(X_TYPE) stored8; /* eight elements as they are stored */

/* The patch that a group handles, and an item's place in it. */
typedef struct {
    uint height, width; /* elements that exist */
    uint chunk, group;  /* eights of columns and of rows */
    uint last;          /* rows that exist in the item's columns */
} place;

/* n rows of an item from `first` on. */
INLINE void fetch(const place *p, uint first, int n, __global const in_type *x, size_t ld, stored8 *v)
{
    if (p->height == PATCH && p->width == PATCH) {
        EACH(i, n) v[i] = CLT_FETCH8(X_TYPE, x + (first + i) * ld);
    } else {
        EACH(i, n)
        {
            v[i] = (stored8)(0);
            if (p->group * 8 + first + i < p->last) v[i] = CLT_FETCH8(X_TYPE, x + (first + i) * ld);
        }
    }
}

#if MAKES_Y
/* y of four rows from `first` on. */
INLINE void make_y(const place *p, uint first, const stored8 *g, float8 *v)
{
    EACH(i, 2)
    {
        float16 with = (float16)(0.0f);
        if (GRAD_ACT) with = (float16)(CLT_WIDEN8(X_TYPE, g[2 * i]), CLT_WIDEN8(X_TYPE, g[2 * i + 1]));
        const float16 y = clt_result16((float16)(v[2 * i], v[2 * i + 1]), with);
        const uint row = p->group * 8 + first + 2 * i;
        v[2 * i] = row < p->last ? y.lo : (float8)(0.0f);
        v[2 * i + 1] = row + 1 < p->last ? y.hi : (float8)(0.0f);
    }
}
#endif

/* --- the largest magnitude: bits --- */

#if HALF_PTX
static inline float larger(float a, float b)
{
    float m;
    __asm__("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(fabs(b)));
    return m;
}
INLINE uint largest_of(const float8 *v)
{
    float m = 0.0f;
    EACH(i, 4)
    {
        const float a = larger(larger(larger(larger(0.0f, v[i].s0), v[i].s1), v[i].s2), v[i].s3);
        m = larger(larger(larger(larger(larger(m, a), v[i].s4), v[i].s5), v[i].s6), v[i].s7);
    }
    return as_uint(m);
}
/* Of all items of the warp, which all take part. */
static inline uint largest_of_warp(uint m)
{
    uint r;
    __asm__ volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(m));
    return r;
}
#else
INLINE uint largest_of(const float8 *v)
{
    return clt_largest8(max(max(clt_bits8(v[0]), clt_bits8(v[1])), max(clt_bits8(v[2]), clt_bits8(v[3]))));
}
#endif

/* --- codes --- */

/* Words of four rows: codes of columns 0 ... 3 and 4 ... 7. */
INLINE void narrow(const float8 *v, float by, bool numbers, uint4 *lo, uint4 *hi)
{
    const float8 a = v[0] * by, b = v[1] * by, c = v[2] * by, d = v[3] * by;
    if (numbers) {
        *lo = (uint4)(four_numbers(a.lo), four_numbers(b.lo), four_numbers(c.lo), four_numbers(d.lo));
        *hi = (uint4)(four_numbers(a.hi), four_numbers(b.hi), four_numbers(c.hi), four_numbers(d.hi));
    } else {
        *lo = (uint4)(FOUR(a.lo), FOUR(b.lo), FOUR(c.lo), FOUR(d.lo));
        *hi = (uint4)(FOUR(a.hi), FOUR(b.hi), FOUR(c.hi), FOUR(d.hi));
    }
}

/* From words of four rows to words of four columns. */
#if HALF_PTX
static inline uint permuted(uint a, uint b, uint order)
{
    uint r;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(order));
    return r;
}
static inline uint4 transposed(uint4 w)
{
    const uint a = permuted(w.x, w.y, 0x5140), b = permuted(w.z, w.w, 0x5140);
    const uint c = permuted(w.x, w.y, 0x7362), d = permuted(w.z, w.w, 0x7362);
    return (uint4)(permuted(a, b, 0x5410), permuted(a, b, 0x7632), permuted(c, d, 0x5410),
                   permuted(c, d, 0x7632));
}
#else
static inline uint4 transposed(uint4 w)
{
    const uint4 a = (uint4)(w.x & 0xffu, w.x >> 8 & 0xffu, w.x >> 16 & 0xffu, w.x >> 24);
    const uint4 b = (uint4)(w.y & 0xffu, w.y >> 8 & 0xffu, w.y >> 16 & 0xffu, w.y >> 24);
    const uint4 c = (uint4)(w.z & 0xffu, w.z >> 8 & 0xffu, w.z >> 16 & 0xffu, w.z >> 24);
    const uint4 d = (uint4)(w.w & 0xffu, w.w >> 8 & 0xffu, w.w >> 16 & 0xffu, w.w >> 24);
    return a | b << 8 | c << 16 | d << 24;
}
#endif

/* Words of a column lie in local memory in an order that changes from eight columns to the next, so that
 * neither storing words of four rows nor reading 16 bytes of a column meets a bank twice. */
#define ORDER(chunk) (((chunk)&1) | (chunk) >> 1 << 2)

/* h: which four rows of the item. */
INLINE void leave_columns(const place *p, uint h, uint4 lo, uint4 hi, __local uint *turned)
{
    const uint4 a = transposed(lo), b = transposed(hi);
    turned += p->chunk * 8 * LINE + ((p->group * 2 + h) ^ ORDER(p->chunk));
    turned[0] = a.x, turned[LINE] = a.y, turned[2 * LINE] = a.z, turned[3 * LINE] = a.w;
    turned[4 * LINE] = b.x, turned[5 * LINE] = b.y, turned[6 * LINE] = b.z, turned[7 * LINE] = b.w;
}

INLINE void store_columns(const place *p, __local const uint4 *pool, uint lid, __global uchar *t, size_t ldt)
{
    for (uint i = lid; i < p->width * (LINE / 4); i += WG) {
        const uint column = i / (LINE / 4), piece = i % (LINE / 4), order = ORDER(column / 8);
        const uint4 w = pool[column * (LINE / 4) + (piece ^ order / 4)];
        if (16 * piece < p->height) *(__global uint4 *)(t + column * ldt + 16 * piece) = order & 1 ? w.yxwz : w;
    }
}

/* Codes of four rows: row is the first one's number in the patch, q its place. */
INLINE void store_rows(const place *p, uint row, uint4 lo, uint4 hi, __global uchar *q, size_t ldq)
{
    if (p->chunk * 8 >= ((p->width + 15u) & ~15u)) return;
    if (row < p->height) *(__global uint2 *)q = (uint2)(lo.x, hi.x);
    if (row + 1 < p->height) *(__global uint2 *)(q + ldq) = (uint2)(lo.y, hi.y);
    if (row + 2 < p->height) *(__global uint2 *)(q + 2 * ldq) = (uint2)(lo.z, hi.z);
    if (row + 3 < p->height) *(__global uint2 *)(q + 3 * ldq) = (uint2)(lo.w, hi.w);
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
cast_fp8(CLT_CAST_FP8_ARGS)
{
    __local uint4 pool[PATCH * LINE / 4];
    __local uint parts[WG / WARP]; /* largest magnitudes */
    const uint lid = (uint)get_local_id(0);
    const size_t row0 = get_global_id(1) * PATCH, col0 = get_group_id(0) * PATCH;
    place p = {(uint)min((size_t)rows - row0, (size_t)PATCH), (uint)min((size_t)cols - col0, (size_t)PATCH),
               lid % SIDE, lid / SIDE, 0};
    const float by = scale[scale_off];
    uint largest = 0;
    stored8 v[AT_ONCE];
#if SHARED
    SHARED_BY(GROUPS);
#endif
    p.last = p.chunk * 8 < p.width ? p.height : 0;
    x += x_off + (row0 + p.group * 8) * ldx + col0 + p.chunk * 8;
    g += g_off + (row0 + p.group * 8) * ldg + col0 + p.chunk * 8;
    y += y_off + (row0 + p.group * 8) * ldy + col0 + p.chunk * 8;
    q += q_off + (row0 + p.group * 8) * ldq + col0 + p.chunk * 8;
#if !HALF_PTX
    if (lid < WG / WARP) parts[lid] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#endif

    if (AT_ONCE == 8) fetch(&p, 0, AT_ONCE, x, ldx, v);
    EACH(h, 2)
    {
        const uint first = 4 * h, row = p.group * 8 + first;
        float8 f[4];
        uint4 lo, hi;
        if (AT_ONCE == 4) fetch(&p, first, AT_ONCE, x, ldx, v);
        EACH(i, 4) f[i] = CLT_WIDEN8(X_TYPE, v[AT_ONCE == 8 ? first + i : i]);
#if MAKES_Y
        stored8 with[4];
        if (GRAD_ACT) fetch(&p, first, 4, g, ldg, with);
        make_y(&p, first, with, f);
#endif
        if (flags & STORE_Y)
            EACH(i, 4) if (row + i < p.last) CLT_STORE8(X_TYPE, f[i], y + (first + i) * ldy);
        const uint most = largest_of(f);
        largest = max(largest, most);
        narrow(f, by, most <= 0x7f800000u, &lo, &hi);
        if (flags & ALONG) store_rows(&p, row, lo, hi, q + first * ldq, ldq);
        if (flags & ACROSS) leave_columns(&p, (uint)h, lo, hi, (__local uint *)pool);
    }
#if HALF_PTX
    largest = largest_of_warp(largest);
    if (lid % WARP == 0) parts[lid / WARP] = largest;
#else
    atomic_max(parts + lid / WARP, largest);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((flags & AMAX) && lid == 0) {
        largest = 0;
        EACH(i, WG / WARP) largest = max(largest, parts[i]);
        if (largest) atomic_max(amax + amax_off, largest);
    }
    if (flags & ACROSS) store_columns(&p, pool, lid, t + t_off + col0 * ldt + row0, ldt);
}
