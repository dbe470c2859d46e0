/* gemm_dpas: GEMM of 16-bit matrices on the matrix units of Intel's GPUs (DPAS, include/clt_dpas.clh).
 *
 * A group computes BM x BN outputs in steps of 32 along k; each of its sub-groups owns WM x WN of them. Both
 * tiles are stored in local memory as the unit takes them, for every form: of a the 16 numbers of a row side by
 * side, of b pairs along k of neighbouring columns. So an operand of the unit is one message, and the copy
 * transposes what memory holds otherwise. The next step's numbers are loaded into registers while the current
 * ones are used, and put into the second of two stages: one barrier a step. At the end each sub-group puts 8
 * rows at a time into local memory, and the epilogue processes rows of c. Every edge is guarded in the copy:
 * beyond it there are zeros, also along k.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DSG=8|16         items of a sub-group
 *   -DBM -DBN         tile of a group, multiples of WM and WN; -DITEMS its items: BM / WM * BN / WN * SG
 *   -DWM -DWN         tile of a sub-group, multiples of 8 and SG. Its sums take WM * WN / SG of 256 registers
 *   -DIN_TYPE=1 bf16, 2 fp16; -DC_TYPE -DAUX_TYPE -DACT -DGRAD_ACT   gemm_epilogue.clh
 *   -DSLICES=1        k_group rows per get_group_id(2), each into separate m x n outputs (gemm_add.clh)
 *   -DBLOCK2D=1       with SG 16: operands come from global memory by reads of blocks, which transpose, pair and
 *                     check edges; only steps that such reads cannot do use local memory. BM + BN at most 32
 *                     rows per sub-group
 *   -DPROBE=1         only the kernel `probe`
 *
 * Order: the unit's inside 16 steps of k, ascending between them, fp32 sums. For numerics fast.
 *
 * Launch: global {ceil(n / BN) * ITEMS, ceil(m / BM), slices}, local {ITEMS, 1, 1}. Requires: DPAS in sub-groups
 * of SG, block reads of local memory; rows of a and b at multiples of 8 elements; 128 * (BM + BN) bytes of
 * local memory. Compiled and emulated (test/ops/emulated_dpas.sh), not run on a GPU. */
#ifndef IN_TYPE
#define IN_TYPE 1
#endif
#include "gemm_epilogue.clh"

#include "../include/clt_dpas.clh"

#ifndef FORM
#define FORM 0
#endif
#ifndef SLICES
#define SLICES 0
#endif
#ifndef BLOCK2D
#define BLOCK2D 0
#endif
#ifndef PROBE
#define PROBE 0
#endif
#ifndef BM
#define BM 64
#define BN 64
#define WM 32
#define WN 32
#define ITEMS (4 * SG)
#endif

#if PROBE
/* Products of whole numbers, which are exact in any order; `in` holds 0, 1, 2 ... */
#define A_NUMBER(r, k) ((float)in[((r)*16 + (k)) % 61])
#define B_NUMBER(k, l) (3.0f - (float)in[((k)*3 + (l)*5) % 7])
#define PAIR(type, x, y) ((uint)CLT_ROUND(type, x) | (uint)CLT_ROUND(type, y) << 16)
#define TRY(type)                                                                                            \
    {                                                                                                        \
        float8 sum = (float8)(5.0f);                                                                         \
        a[item] = PAIR(type, A_NUMBER(item / 8, item % 8 * 2), A_NUMBER(item / 8, item % 8 * 2 + 1));        \
        for (uint w = item; w < 8 * SG; w += 64)                                                             \
            b[w] = PAIR(type, B_NUMBER(w / SG * 2, w % SG), B_NUMBER(w / SG * 2 + 1, w % SG));               \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        const clt_dpas_a av = CLT_DPAS_A_AT(a);                                                              \
        const int8 bv = CLT_DPAS_B_AT(b);                                                                    \
        CLT_DPAS(type, sum, av, bv);                                                                         \
        for (int r = 0; r < 8; r++) {                                                                        \
            float want = 5.0f;                                                                               \
            for (int k = 0; k < 16; k++) want += A_NUMBER(r, k) * B_NUMBER(k, CLT_DPAS_LANE);                \
            right = right && sum[r] == want;                                                                 \
        }                                                                                                    \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
    }
#if BLOCK2D
/* `in` as 4 rows of 32 numbers: the even ones are those of `in`, the odd ones 0. */
#define NUMBER(x, y) ((x) < 32 && (y) < 4 && (x) % 2 == 0 ? (ushort)in[(y)*16 + (x) / 2] : (ushort)0)
#define TRY_BLOCKS                                                                                           \
    {                                                                                                        \
        const clt_plane p = clt_plane_of((__global const ushort *)in, 32, 32, 4);                            \
        const ushort16 rows = as_ushort16(CLT_PLANE_ROWS(p, 2, 1));                                          \
        const ushort16 pairs = as_ushort16(CLT_PLANE_PAIRS(p, 18, 1));                                       \
        const ushort16 turned = as_ushort16(CLT_PLANE_TURNED(p, 18, 1));                                     \
        for (uint e = 0; e < 16; e++)                                                                        \
            right = right && rows[e] == NUMBER(2 + e / 8 * 16 + CLT_DPAS_LANE, 1 + e % 8) &&                 \
                    pairs[e] == NUMBER(18 + CLT_DPAS_LANE, 1 + e) &&                                         \
                    turned[e] == NUMBER(18 + e, 1 + CLT_DPAS_LANE);                                          \
    }
#else
#define TRY_BLOCKS
#endif
CLT_DPAS_KERNEL __attribute__((reqd_work_group_size(64, 1, 1))) __kernel void probe(__global const uint *in,
                                                                                    __global uint *out)
{
    __local uint a[64] __attribute__((aligned(64))), b[8 * SG] __attribute__((aligned(64)));
    CLT_DPAS_LOCAL(64)
    const uint item = (uint)get_local_id(0);
    bool right = CLT_DPAS_SIZE == SG;
    TRY(1)
    TRY(2)
    TRY_BLOCKS
    out[item] = right ? in[item] : ~in[item];
}
#else

#include "gemm_bands.clh"

#define BK 32
#define MT (WM / 8)  /* products of a sub-group side by side, along m */
#define NT (WN / SG) /* and along n */
#define A_WORDS (BM * BK / 2)
#define STAGE (A_WORDS + BN * BK / 2) /* words of local memory */
#define A_UNITS (BM * BK / 8 / ITEMS) /* of 8 numbers, that an item copies */
#define B_UNITS (BN * BK / 8 / ITEMS)
#if WM % 8 || WN % SG || BM % WM || BN % WN || ITEMS != BM / WM * (BN / WN) * SG
#error "WM and WN are multiples of 8 and SG, BM and BN of WM and WN, ITEMS is BM / WM * BN / WN * SG"
#endif
#if A_UNITS * ITEMS * 8 != BM * BK || B_UNITS * ITEMS * 8 != BN * BK || A_UNITS % 2 || B_UNITS % 2
#error "pairs of rows of the tile's 16-byte units do not divide among the items"
#endif
#if BLOCK2D && (SG != 16 || WM % 16 || (BM + BN) / 32 > ITEMS / SG)
#error "BLOCK2D needs SG 16, WM a multiple of 16, and a sub-group for each 32 of BM + BN"
#endif

#define A_ALONG_K (FORM != 2) /* consecutive elements in memory are consecutive along k */
#define B_ALONG_K (FORM == 0)
#define EACH CLT_DPAS_EACH

/* The place in the tile of unit e. Along k: row, and place in the row. Across k: a pair of rows along k,
 * and the first of 8 rows of the tile. Neighbouring items read neighbouring memory; 4 pairs of a go together,
 * because their words are side by side in local memory. */
#define UNIT_ROW(e) ((e) / 4)
#define UNIT_K(e) ((e) % 4)
#define A_PAIR(e) ((e) % 4 + (e) / (BM / 2) * 4)
#define A_FIRST(e) ((e) / 4 % (BM / 8) * 8)
#define B_PAIR(e) ((e) / (BN / 8))
#define B_FIRST(e) ((e) % (BN / 8) * 8)

/* Where an item's units are, from the start of the step. Rows beyond an edge repeat the last ones: their results
 * are not stored. */
#define PLACES_ALONG(at, units, ld, first, limit)                                                            \
    EACH(f, units)                                                                                           \
    {                                                                                                        \
        const uint e = lid + f * ITEMS;                                                                      \
        at[f] = min(first + UNIT_ROW(e), limit - 1) * (ulong)(ld) + UNIT_K(e) * 8;                           \
    }
#define PLACES_ACROSS(at, units, ld, first, limit, pair_of, first_of)                                        \
    EACH(f, units / 2)                                                                                       \
    {                                                                                                        \
        const uint e = lid + f * ITEMS;                                                                      \
        at[f] = pair_of(e) * 2 * (ulong)(ld) + min(first + first_of(e), max(limit, 8u) - 8);                 \
    }
#define UNIT(p) (*(__global const uint4 *)(p))
#define FETCH_ALONG(reg, units, src, ld, at) EACH(f, units) reg[f] = UNIT(src + at[f]);
#define FETCH_ACROSS(reg, units, src, ld, at) EACH(f, units) reg[f] = UNIT(src + at[f / 2] + f % 2 * ld);
#if A_ALONG_K
#define PLACES_A PLACES_ALONG(at_a, A_UNITS, lda, m0, m)
#define FETCH_A FETCH_ALONG(ra, A_UNITS, a + k0, lda, at_a)
#define WHOLE_A true
#else
#define PLACES_A PLACES_ACROSS(at_a, A_UNITS, lda, m0, m, A_PAIR, A_FIRST)
#define FETCH_A FETCH_ACROSS(ra, A_UNITS, a + k0 * lda, lda, at_a)
#define WHOLE_A (m % 8 == 0 || m - m0 >= BM)
#endif
#if B_ALONG_K
#define PLACES_B PLACES_ALONG(at_b, B_UNITS, ldb, n0, n)
#define FETCH_B FETCH_ALONG(rb, B_UNITS, b + k0, ldb, at_b)
#define WHOLE_B true
#else
#define PLACES_B PLACES_ACROSS(at_b, B_UNITS, ldb, n0, n, B_PAIR, B_FIRST)
#define FETCH_B FETCH_ACROSS(rb, B_UNITS, b + k0 * ldb, ldb, at_b)
#define WHOLE_B (n % 8 == 0 || n - n0 >= BN)
#endif

/* A word of the tiles: two numbers along k, `pair` of the step's 16, of a row of a or a column of b. */
#define A_WORD(row, pair) ((pair) / 8 * (BM * 8) + (row)*8 + (pair) % 8)
#define B_WORD(column, pair)                                                                                 \
    (A_WORDS + (pair) / 8 * (BN * 8) + (column) / SG * (8 * SG) + (pair) % 8 * SG + (column) % SG)
#define PAIRS(reg, f) upsample(as_ushort8(reg[2 * (f) + 1]), as_ushort8(reg[2 * (f)]))

static inline void put_a(__local uint *to, uint lid, const uint4 ra[A_UNITS])
{
#if A_ALONG_K
    EACH(f, A_UNITS)
    {
        const uint e = lid + f * ITEMS;
        *(__local uint4 *)(to + A_WORD(UNIT_ROW(e), UNIT_K(e) * 4)) = ra[f];
    }
#else
    EACH(f, A_UNITS / 2)
    {
        const uint e = lid + f * ITEMS;
        const uint8 pairs = PAIRS(ra, f);
        EACH(t, 8) to[A_WORD(A_FIRST(e) + t, A_PAIR(e))] = pairs[t];
    }
#endif
}

static inline void put_b(__local uint *to, uint lid, const uint4 rb[B_UNITS])
{
#if B_ALONG_K
    EACH(f, B_UNITS)
    {
        const uint e = lid + f * ITEMS;
        EACH(t, 4) to[B_WORD(UNIT_ROW(e), UNIT_K(e) * 4 + t)] = rb[f][t];
    }
#else
    EACH(f, B_UNITS / 2)
    {
        const uint e = lid + f * ITEMS;
        vstore8(PAIRS(rb, f), 0, to + B_WORD(B_FIRST(e), B_PAIR(e)));
    }
#endif
}

/* The tiles of the step at k0, one number at a time: for steps that the ends of k, m or n cut through. */
static inline void put_number(__local uint *word, uint k, ushort x)
{
    ((__local ushort *)word)[k % 2] = x;
}
#define COPY_SLOWLY(to, word, src, ld, along_k, rows, first, limit)                                          \
    _Pragma("nounroll") for (uint e = lid; e < (rows)*BK; e += ITEMS)                                        \
    {                                                                                                        \
        const uint row = (along_k) ? e / BK : e % (rows), kk = (along_k) ? e % BK : e / (rows);              \
        const ulong i = first + row, k_at = k0 + kk;                                                         \
        const bool inside = i < limit && k_at < k_end;                                                       \
        put_number(to + word(row, kk / 2), kk, inside ? src[(along_k) ? i * ld + k_at : k_at * ld + i] : 0); \
    }

/* acc += the products of the step in the stage at `at`. */
#define MULTIPLY_STEP(acc, at)                                                                               \
    EACH(c, BK / 16)                                                                                         \
    {                                                                                                        \
        clt_dpas_a av[MT];                                                                                   \
        EACH(i, MT) av[i] = CLT_DPAS_A_AT((at) + A_WORD(wm + i * 8, c * 8));                                 \
        EACH(j, NT)                                                                                          \
        {                                                                                                    \
            const int8 bv = CLT_DPAS_B_AT((at) + B_WORD(wn + j * SG, c * 8));                                \
            EACH(i, MT) CLT_DPAS(IN_TYPE, acc[i][j], av[i], bv);                                             \
        }                                                                                                    \
    }

#if BLOCK2D
/* The same from global memory, at k0; PA and PB are the operands' planes. */
#if A_ALONG_K
#define PLANE_A clt_plane_of(a, lda, k_end, m)
#define READ_A(av)                                                                                           \
    EACH(i, MT)                                                                                              \
    {                                                                                                        \
        const short16 v = CLT_PLANE_ROWS(pa, k0, m0 + wm + i * 8);                                           \
        av[0][i] = v.lo, av[1][i] = v.hi;                                                                    \
    }
#define AHEAD_A CLT_PLANE_AHEAD(pa, k0 + 2 * BK, m0 + sub * 32)
#else
#define PLANE_A clt_plane_of(a, lda, m, k_end)
#define READ_A(av)                                                                                           \
    EACH(i, MT)                                                                                              \
    {                                                                                                        \
        const short16 v = as_short16(CLT_PLANE_TURNED(pa, m0 + wm + i / 2 * 16, k0 + i % 2 * 16));           \
        av[i % 2][i / 2 * 2] = v.lo, av[i % 2][i / 2 * 2 + 1] = v.hi;                                        \
    }
#define AHEAD_A CLT_PLANE_AHEAD(pa, m0 + sub * 32, k0 + 2 * BK)
#endif
#if B_ALONG_K
#define PLANE_B clt_plane_of(b, ldb, k_end, n)
#define READ_B(j, c) CLT_PLANE_TURNED(pb, k0 + (c)*16, n0 + wn + (j)*SG)
#define AHEAD_B CLT_PLANE_AHEAD(pb, k0 + 2 * BK, n0 + (sub - BM / 32) * 32)
#else
#define PLANE_B clt_plane_of(b, ldb, n, k_end)
#define READ_B(j, c) CLT_PLANE_PAIRS(pb, n0 + wn + (j)*SG, k0 + (c)*16)
#define AHEAD_B CLT_PLANE_AHEAD(pb, n0 + (sub - BM / 32) * 32, k0 + 2 * BK)
#endif
#define MULTIPLY_BLOCKS(acc)                                                                                 \
    {                                                                                                        \
        clt_dpas_a av[2][MT];                                                                                \
        READ_A(av)                                                                                           \
        EACH(c, 2) EACH(j, NT)                                                                               \
        {                                                                                                    \
            const int8 bv = READ_B(j, c);                                                                    \
            EACH(i, MT) CLT_DPAS(IN_TYPE, acc[i][j], av[c][i], bv);                                          \
        }                                                                                                    \
    }
#endif

/* Results leave in MT parts: 8 rows of each sub-group. acc is indexed with constants only. */
#define LEAVE_PART(out, acc, part)                                                                           \
    EACH(i, MT)                                                                                              \
    if (i == part) EACH(j, NT) EACH(r, 8)(out)[(sub * 8 + r) * WN + j * SG + lane] = acc[i][j][r];

/* The epilogue of a part of the tile at (m0, n0), from local memory. quads: clt_ep_quads of the outputs. */
static inline void finish_part(const clt_gemm_ep *ep, bool quads, __local const float *out, uint part, uint lid,
                               uint m0, uint n0, uint m, uint n)
{
    _Pragma("nounroll") for (uint q = lid; q < ITEMS / SG * 8 * WN / 4; q += ITEMS)
    {
        const uint of = q / (2 * WN), r = q / (WN / 4) % 8;
        const uint row = m0 + of / (BN / WN) * WM + part * 8 + r;
        const uint column = n0 + of % (BN / WN) * WN + q % (WN / 4) * 4;
        if (row >= m || column >= n) continue;
        const float4 v = *(__local const float4 *)(out + q * 4);
        if (quads)
            clt_ep_quad(ep, v, row, column);
        else
            clt_ep_part(ep, v, row, column, min(n - column, 4u));
    }
}

/* acc += the products of all steps of the tile at (m0, n0). */
#if BLOCK2D
/* The first `whole` steps are read by blocks: all, but an odd k is not cut off where rows run along k. */
#define ADD_STEPS(acc, steps)                                                                                \
    const clt_plane pa = PLANE_A, pb = PLANE_B;                                                              \
    const uint whole = !clt_plane_fits(pa) || !clt_plane_fits(pb) ? 0 :                                      \
                       (A_ALONG_K || B_ALONG_K) && k_end % 2      ? k_end / BK :                             \
                                                                    steps;                                   \
    for (uint s = 0; s < steps; s++) {                                                                       \
        const uint k0 = s * BK;                                                                              \
        if (s < whole) {                                                                                     \
            if (sub < BM / 32)                                                                               \
                AHEAD_A;                                                                                     \
            else if (sub < (BM + BN) / 32)                                                                   \
                AHEAD_B;                                                                                     \
            MULTIPLY_BLOCKS(acc)                                                                             \
        } else {                                                                                             \
            COPY_SLOWLY(tiles, A_WORD, a, lda, A_ALONG_K, BM, m0, m)                                         \
            COPY_SLOWLY(tiles, B_WORD, b, ldb, B_ALONG_K, BN, n0, n)                                         \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                    \
            MULTIPLY_STEP(acc, tiles)                                                                        \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                    \
        }                                                                                                    \
    }
#else
/* The first `whole` steps need no check of an edge. Before step s its tiles are copied, during step s - 1, into
 * the other stage. */
#define ADD_STEPS(acc, steps)                                                                                \
    uint4 ra[A_UNITS], rb[B_UNITS];                                                                          \
    ulong at_a[A_UNITS], at_b[B_UNITS];                                                                      \
    PLACES_A                                                                                                 \
    PLACES_B                                                                                                 \
    const uint whole = WHOLE_A && WHOLE_B ? k_end / BK : 0;                                                  \
    for (uint s = 0; s <= steps; s++) {                                                                      \
        __local uint *const next = tiles + s % 2 * STAGE;                                                    \
        const ulong k0 = (ulong)s * BK;                                                                      \
        if (s < whole) {                                                                                     \
            FETCH_A                                                                                          \
            FETCH_B                                                                                          \
        }                                                                                                    \
        if (s > 0) MULTIPLY_STEP(acc, tiles + (s - 1) % 2 * STAGE)                                           \
        if (s < whole) {                                                                                     \
            put_a(next, lid, ra);                                                                            \
            put_b(next, lid, rb);                                                                            \
        } else if (s < steps) {                                                                              \
            COPY_SLOWLY(next, A_WORD, a, lda, A_ALONG_K, BM, m0, m)                                          \
            COPY_SLOWLY(next, B_WORD, b, ldb, B_ALONG_K, BN, n0, n)                                          \
        }                                                                                                    \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
    }
#endif

CLT_DPAS_KERNEL CLT_DPAS_LARGE __attribute__((reqd_work_group_size(ITEMS, 1, 1))) __kernel void
gemm(uint m, uint n, uint k, uint k_group, __global const ushort *a, ulong a_off, ulong lda,
     __global const ushort *b, ulong b_off, ulong ldb, CLT_EP_ARGS)
{
    __local uint tiles[2 * STAGE] __attribute__((aligned(64)));
    CLT_DPAS_LOCAL(ITEMS)
    const uint lid = (uint)get_local_id(0), lane = CLT_DPAS_LANE, sub = CLT_DPAS_SUB_GROUP;
    const uint wm = sub / (BN / WN) * WM, wn = sub % (BN / WN) * WN;
    const uint2 first = first_output();
    const uint m0 = first.x, n0 = first.y;
    uint k_end = k;
    a += a_off;
    b += b_off;
#if SLICES
    const uint slice = (uint)get_group_id(2);
    a += slice * (k_group * lda);
    b += slice * (k_group * ldb);
    c += slice * (ulong)m * n;
    k_end = min(k - slice * k_group, k_group);
#endif
    float8 acc[MT][NT];
    EACH(i, MT) EACH(j, NT) acc[i][j] = (float8)(0.0f);
    const uint steps = (k_end + BK - 1) / BK;
    ADD_STEPS(acc, steps)

    const clt_gemm_ep ep = CLT_EP_INIT;
    const bool quads = clt_ep_quads(&ep, n);
    __local float *const out = (__local float *)tiles;
    /* The loop is not unrolled, so that the epilogue's code exists once. */
    _Pragma("nounroll") for (int part = 0; part < MT; part++)
    {
        LEAVE_PART(out, acc, part)
        barrier(CLK_LOCAL_MEM_FENCE);
        finish_part(&ep, quads, out, (uint)part, lid, m0, n0, m, n);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#include "gemm_add.clh"
#endif
