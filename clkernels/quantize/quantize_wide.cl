/* quantize_wide: 8-bit blocks of x [rows, cols], or of what quantize_value.clh makes of it, for devices with
 * many registers: each element is read once.
 *
 * A group handles a patch of BLOCK x BLOCK elements that lies inside one sample, an item eight rows of eight
 * columns. They stay in its registers, as they are stored, between the largest magnitudes and the rounding.
 * The largest magnitudes of items meet in local memory; the transposed numbers pass through the same place,
 * as words of four rows. Elements outside of x are +0, which also writes the padding.
 *
 *   -DBLOCK=64|128   elements of a block
 *   -DX_TYPE         type of x (../include/clt_store.clh)
 *   -DACT, -DGRAD_ACT, -DKEEP_Y  what is quantised (quantize_value.clh)
 *   -DHALF_PTX       1: bytes are packed, and 16-bit elements converted, by NVIDIA's instructions
 *   -DSHARED=3       NVIDIA: the assembler limits registers, so that so many groups of 256 share a unit
 *                    (of 16-bit x and most activations)
 *
 * cols and the offsets and row distances of x, grad_pre and y are multiples of 8. flags: 1 along, 2 across, 4 one scale per patch. sample: rows
 * per sample.
 *
 * Launch: WG = (BLOCK / 8)^2; global {ceil(cols / BLOCK) * WG, samples * ceil(sample / BLOCK)}, local
 * {WG, 1}.
 * Requires: local memory of BLOCK * (BLOCK + 10) bytes. */
#include "quantize.clh"
#include "quantize_value.clh"

#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef SHARED
#define SHARED 0
#endif
#if BLOCK != 64 && BLOCK != 128
#error "BLOCK must be 64 or 128"
#endif
#define SIDE (BLOCK / 8) /* items along an edge of a patch */
#define WG (SIDE * SIDE)
#define LINE (BLOCK / 4)    /* words of a column, 16 bytes of a line of keys */
#define LD_ROWS (BLOCK + 4) /* keys; shifts the banks of neighbouring items */
#define PARTS 16            /* items that search a tile's largest magnitude */
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

/* What needs more registers: elements of fp32, and the longest function. */
#define MANY (X_TYPE == 0 || ACT == 12 || GRAD_ACT == 12)
#if BLOCK == 128 && MANY
#define GROUPS 2
#elif BLOCK == 128
#define GROUPS SHARED
#elif MANY
#define GROUPS 8
#else
#define GROUPS 12
#endif
#define SHARED_BY(groups) SHARED_BY_(groups)
#define SHARED_BY_(groups) __asm__ volatile("//@entry .minnctapersm " #groups)

/* Into the kernel: PoCL's local memory of a kernel has another address in functions. */
#define INLINE static inline __attribute__((always_inline))

#define ALONG 1u
#define ACROSS 2u
#define TILE 4u

typedef CLT_T8(X_TYPE) stored8; /* eight elements as they are stored */

/* --- elements --- */

/* Keys of eight elements: they compare like the magnitudes. Of 16-bit elements the sign is shifted out; what
 * lies below the upper one of a word decides only between equal ones. */
#if X_TYPE == 0
static inline uint8 keys_of(stored8 v) {
    return as_uint8(v) & 0x7fffffffu;
}
static inline uint bits_of(uint key) {
    return key;
}
static inline stored8 nothing(void) {
    return (float8)(0.0f);
}
#else
static inline uint8 keys_of(stored8 u) {
    return (uint8)(u.x << 17, u.x << 1, u.y << 17, u.y << 1, u.z << 17, u.z << 1, u.w << 17, u.w << 1);
}
static inline uint bits_of(uint key) {
    return as_uint(CLT_WIDEN(X_TYPE, (ushort)(key >> 17)));
}
static inline stored8 nothing(void) {
    return (uint4)(0u);
}
#endif

static inline uint largest8(uint8 u) {
    const uint4 a = max(u.lo, u.hi);
    return max(max(a.x, a.y), max(a.z, a.w));
}

/* Rounded elements as words of which the lowest bytes count. */
static inline uint4 words_of(float4 x, float4 inverse) {
    return as_uint4(fma(x, inverse, (float4)(12582912.0f)));
}
/* A block whose numbers become 0 may have infinite elements: its words are cleared. */
static inline uint keep(float inverse) {
    return inverse == 0.0f ? 0u : 0xffffffffu;
}
#if HALF_PTX
static inline uint permuted(uint a, uint b, uint order) {
    uint r;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(order));
    return r;
}
static inline uint four(uint a, uint b, uint c, uint d, uint mask) {
    return permuted(permuted(a, b, 0x40), permuted(c, d, 0x40), 0x5410) & mask;
}
#else
static inline uint four(uint a, uint b, uint c, uint d, uint mask) {
    return ((a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | d << 24) & mask;
}
#endif

/* --- a patch --- */

/* The patch that a group handles, and an item's place in it. */
typedef struct {
    uint height, width; /* elements that exist */
    uint chunk, group;  /* eights of columns and of rows */
} place;

/* --- what is quantised --- */

#if VALUES
#if X_TYPE == 0
static inline stored8 stored(float8 v) {
    return v;
}
static inline void store8(stored8 v, __global in_type *p) {
    clt_store8_0(v, p);
}
#else
static inline stored8 stored(float8 v) {
    return CLT_ROUND8(CLT_PASTE(clt_round2_, X_TYPE), CLT_PASTE(clt_round4_, X_TYPE), v);
}
static inline void store8(stored8 v, __global in_type *p) {
    *(__global uint4 *)p = v;
}
#endif

static inline stored8 value_of(stored8 x, stored8 g) {
    const float8 a = CLT_WIDEN8(X_TYPE, x), b = CLT_WIDEN8(X_TYPE, g);
    return stored((float8)(VALUE(a.s0, b.s0), VALUE(a.s1, b.s1), VALUE(a.s2, b.s2), VALUE(a.s3, b.s3),
                           VALUE(a.s4, b.s4), VALUE(a.s5, b.s5), VALUE(a.s6, b.s6), VALUE(a.s7, b.s7)));
}

INLINE stored8 grad_row(const value_place *to, uint row, uint rows) {
#if GRAD_ACT
    if (row < rows) return CLT_FETCH8(X_TYPE, to->g + row * to->ldg);
#endif
    return nothing();
}

#include "quantize_table.clh"

#if TABLE
#define VALUE_OF(x, g) (in_table(ACT ? x : g) ? table_values(x, g, table) : value_of(x, g))
#else
#define VALUE_OF(x, g) value_of(x, g)
#endif

/* Replaces an item's elements by their values; all items of the group take part. Activations are long: the
 * loop has one copy of eight, and the rows move past it, since registers have no index. */
INLINE void make_values(const place *p, stored8 *x, const value_place *to, __local uint *table, uint lid) {
    const uint rows = p->chunk * 8 < p->width ? min((uint)clt_above(p->height, p->group * 8), 8u) : 0u;
#if TABLE
    fill_table(table, lid);
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    stored8 next = grad_row(to, 0, rows);
    _Pragma("nounroll") for (uint row = 0; row < 8; row++) {
        const stored8 g = next;
        stored8 y = x[0];
        next = grad_row(to, row + 1, rows);
        EACH(i, 7) x[i] = x[i + 1];
        if (row < rows) {
            y = VALUE_OF(y, g);
#if KEEP_Y
            store8(y, to->y + row * to->ldy);
#endif
        }
        x[7] = y;
    }
#if TABLE
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}
#endif

/* --- the largest magnitudes --- */

/* Leaves an item's largest keys in local memory: of its rows at [chunk][row], of its columns behind them at
 * [group][column], and of all in `items`. */
INLINE void leave_keys(const place *p, const stored8 *x, __local uint4 *pool, __local uint *items) {
    __local uint4 *rows = pool + p->chunk * (LD_ROWS / 4) + p->group * 2;
    __local uint4 *cols = pool + SIDE * (LD_ROWS / 4) + p->group * LINE + p->chunk * 2;
    uint8 down = (uint8)(0u);
    EACH(h, 2) {
        uint row[4];
        EACH(i, 4) {
            const uint8 k = keys_of(x[4 * h + i]);
            down = max(down, k);
            row[i] = largest8(k);
        }
        rows[h] = (uint4)(row[0], row[1], row[2], row[3]);
    }
    cols[0] = down.lo, cols[1] = down.hi;
    items[p->group * SIDE + p->chunk] = largest8(down);
}

/* The largest key of line i: rows first, then columns. */
INLINE uint key_of_line(__local const uint *pool, uint i) {
    __local const uint *at = pool + (i < BLOCK ? i : SIDE * LD_ROWS + i - BLOCK);
    const uint step = i < BLOCK ? LD_ROWS : BLOCK;
    uint k = 0;
    EACH(c, SIDE) k = max(k, at[c * step]);
    return k;
}

/* The largest key of a tile from those of its items. */
INLINE uint key_of_part(__local const uint *items, uint part) {
    uint k = 0;
    EACH(i, WG / PARTS) k = max(k, items[i * PARTS + part]);
    return k;
}

INLINE uint key_of_tile(__local const uint4 *parts) {
    uint4 k = (uint4)(0u);
    EACH(i, PARTS / 4) k = max(k, parts[i]);
    return max(max(k.x, k.y), max(k.z, k.w));
}

/* --- rounding --- */

/* Words of a column lie in local memory in an order that changes from eight columns to the next, so that
 * neither storing words of four rows nor reading 16 bytes of a column meets a bank twice. */
#define ORDER(chunk) (((chunk)&1) | (chunk) >> 1 << 2)

/* Columns 4 side ... 4 side + 3 of an item's rows 4 h ... 4 h + 3: returns words of the rows and leaves words
 * of the columns. */
INLINE uint4 round_four(const place *p, bool along, bool across, const stored8 *x, int h, int side,
                        float4 inverse, float4 down, __local uint *turned) {
    float4 v[4];
    uint4 w[4], word = (uint4)(0u);
    EACH(i, 4) v[i] = side ? CLT_WIDEN8(X_TYPE, x[4 * h + i]).hi : CLT_WIDEN8(X_TYPE, x[4 * h + i]).lo;
    if (across) {
        turned += (p->chunk * 8 + 4 * side) * LINE + ((p->group * 2 + h) ^ ORDER(p->chunk));
        EACH(i, 4) w[i] = words_of(v[i], down);
        turned[0] = four(w[0].x, w[1].x, w[2].x, w[3].x, keep(down.x));
        turned[LINE] = four(w[0].y, w[1].y, w[2].y, w[3].y, keep(down.y));
        turned[2 * LINE] = four(w[0].z, w[1].z, w[2].z, w[3].z, keep(down.z));
        turned[3 * LINE] = four(w[0].w, w[1].w, w[2].w, w[3].w, keep(down.w));
    }
    if (along) {
        w[0] = words_of(v[0], inverse.xxxx), w[1] = words_of(v[1], inverse.yyyy);
        w[2] = words_of(v[2], inverse.zzzz), w[3] = words_of(v[3], inverse.wwww);
        word = (uint4)(four(w[0].x, w[0].y, w[0].z, w[0].w, keep(inverse.x)),
                       four(w[1].x, w[1].y, w[1].z, w[1].w, keep(inverse.y)),
                       four(w[2].x, w[2].y, w[2].z, w[2].w, keep(inverse.z)),
                       four(w[3].x, w[3].y, w[3].z, w[3].w, keep(inverse.w)));
    }
    return word;
}

/* lines: inverses of the patch's rows, unless it is one tile; down: of the item's columns; q: its first
 * number. */
INLINE void round_item(const place *p, bool along, bool across, bool tile, const stored8 *x,
                       __local const float4 *lines, const float4 *down, __local uint *turned,
                       __global char *q, size_t ldq) {
    EACH(h, 2) {
        const float4 inverse = tile ? down[0] : lines[p->group * 2 + h];
        const uint4 lo = round_four(p, along, across, x, h, 0, inverse, down[0], turned),
                    hi = round_four(p, along, across, x, h, 1, inverse, down[1], turned);
        const uint row = p->group * 8 + 4 * h;
        if (!along) continue;
        if (row < p->height) *(__global uint2 *)q = (uint2)(lo.x, hi.x);
        if (row + 1 < p->height) *(__global uint2 *)(q + ldq) = (uint2)(lo.y, hi.y);
        if (row + 2 < p->height) *(__global uint2 *)(q + 2 * ldq) = (uint2)(lo.z, hi.z);
        if (row + 3 < p->height) *(__global uint2 *)(q + 3 * ldq) = (uint2)(lo.w, hi.w);
        q += 4 * ldq;
    }
}

INLINE void store_turned(const place *p, __local const uint4 *pool, uint lid, __global char *t, size_t ldt) {
    for (uint i = lid; i < p->width * (LINE / 4); i += WG) {
        const uint column = i / (LINE / 4), piece = i % (LINE / 4), order = ORDER(column / 8);
        const uint4 w = pool[column * (LINE / 4) + (piece ^ order / 4)];
        *(__global uint4 *)(t + column * ldt + 16 * piece) = order & 1 ? w.yxwz : w;
    }
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
quantize(uint rows, uint cols, uint sample, uint flags, __global const in_type *x, ulong x_off, ulong ldx,
         __global char *q, ulong q_off, ulong ldq, __global float *s, ulong s_off, ulong lds,
         __global char *t, ulong t_off, ulong ldt, __global float *ts, ulong ts_off, ulong ldts VALUE_ARGS) {
    __local uint4 pool[SIDE * (LD_ROWS + BLOCK) / 4]; /* keys, then turned words */
    __local float4 lines[2 * LINE];                   /* keys of items; inverses of rows, then of columns */
    const uint lid = (uint)get_local_id(0), per_sample = (sample + BLOCK - 1) / BLOCK;
    const uint patch = (uint)get_global_id(1), col0 = (uint)get_group_id(0) * BLOCK;
    const uint in_sample = patch % per_sample * BLOCK, row0 = patch / per_sample * sample + in_sample;
    const place p = {min(sample - in_sample, (uint)BLOCK), min(cols - col0, (uint)BLOCK), lid % SIDE,
                     lid / SIDE};
    stored8 v[8];
#if SHARED
    SHARED_BY(GROUPS);
#endif
    x += x_off + (row0 + p.group * 8) * ldx + col0 + p.chunk * 8;
    if (p.height == BLOCK && p.width == BLOCK) {
        EACH(i, 8) v[i] = CLT_FETCH8(X_TYPE, x + i * ldx);
    } else {
        const uint left = p.chunk * 8 < p.width ? p.height : 0;
        EACH(i, 8) v[i] = p.group * 8 + i < left ? CLT_FETCH8(X_TYPE, x + i * ldx) : nothing();
    }
#if VALUES
    const value_place to = VALUE_AT(row0 + p.group * 8, col0 + p.chunk * 8);
    make_values(&p, v, &to, (__local uint *)pool, lid);
#endif

    leave_keys(&p, v, pool, (__local uint *)lines);
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool tile = flags & TILE;
    if (tile && lid < PARTS) ((__local uint *)lines)[lid] = key_of_part((__local const uint *)lines, lid);
    for (uint i = tile ? 2 * BLOCK : lid; i < 2 * BLOCK; i += WG) {
        const uint scale = clt_block8_scale(bits_of(key_of_line((__local const uint *)pool, i)));
        ((__local float *)lines)[i] = clt_block8_inverse(scale);
        if (i < BLOCK) {
            if ((flags & ALONG) && i < p.height) s[s_off + col0 / BLOCK * lds + row0 + i] = as_float(scale);
        } else if ((flags & ACROSS) && i - BLOCK < p.width)
            ts[ts_off + patch * ldts + col0 + i - BLOCK] = as_float(scale);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 down[2];
    if (tile) {
        const uint scale = clt_block8_scale(bits_of(key_of_tile((__local const uint4 *)lines)));
        down[0] = down[1] = (float4)(clt_block8_inverse(scale));
        if (lid == 0 && (flags & ALONG)) s[s_off + col0 / BLOCK * lds + row0 / BLOCK] = as_float(scale);
        if (lid == 0 && (flags & ACROSS)) ts[ts_off + patch * ldts + col0 / BLOCK] = as_float(scale);
    } else
        EACH(i, 2) down[i] = lines[LINE + p.chunk * 2 + i];
    q += q_off + (row0 + p.group * 8) * ldq + col0 + p.chunk * 8;
    if (!(flags & ACROSS))
        round_item(&p, true, false, tile, v, lines, down, (__local uint *)pool, q, ldq);
    else if (flags & ALONG)
        round_item(&p, true, true, tile, v, lines, down, (__local uint *)pool, q, ldq);
    else
        round_item(&p, false, true, tile, v, lines, down, (__local uint *)pool, q, ldq);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (flags & ACROSS) store_turned(&p, pool, lid, t + t_off + col0 * ldt + (size_t)patch * BLOCK, ldt);
}
