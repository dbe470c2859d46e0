/* gemm_portable: GEMM for any device, by work-groups with tiles in local memory.
 *
 * A group computes BM x BN outputs in steps of BK along k. Each of its (BM/TM) * (BN/TN) work-items owns TM x
 * TN of them, in blocks of 4 x 4, so that local memory is read by float4 without bank conflicts. The next
 * step's elements are loaded into registers while the current ones are used. Every edge is guarded: sizes
 * need not be multiples of the tile.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DBM -DBN -DBK -DTM -DTN   tile; TM and TN multiples of 4, BM of TM, BN of TN; BK a power of two; BM * BK
 *                              and BN * BK multiples of WG = BM / TM * BN / TN
 *   -DACT -DGRAD_ACT -DIN_TYPE -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh
 *
 * Order (docs/numerics.md, GEMM): one chain over k ascending from +0 per output; TN: one chain per group of
 * k_group rows, its result added to the sum in c (a 16-bit c takes one group). k is never padded: fma(0, 0,
 * -0) would be +0.
 *
 * Launch: global {ceil(n / BN) * WG, ceil(m / BM)}, local {WG, 1}. Requires: work-groups of WG, local memory
 * of 4 * BK * (BM + BN + 8) bytes. */
#include "gemm_epilogue.clh"

#ifndef FORM
#define FORM 0
#endif
#ifndef BM
#define BM 64
#define BN 64
#define BK 16
#define TM 4
#define TN 4
#endif

#define WG_X (BN / TN)
#define WG ((BM / TM) * WG_X)
#define A_EACH (BM * BK / WG)
#define B_EACH (BN * BK / WG)
#if TM % 4 || TN % 4 || BM % TM || BN % TN || (BK & (BK - 1)) || A_EACH * WG != BM * BK || B_EACH * WG != BN * BK
#error "TM and TN are multiples of 4, BK is a power of two, and the tile divides evenly among the items"
#endif
#define LDA_TILE (BM + 4)
#define LDB_TILE (BN + 4)

#define A_ALONG_K (FORM != 2) /* consecutive elements in memory are consecutive along k */
#define B_ALONG_K (FORM == 0)

/* The place of a tile's element e: along m or n, and along k. */
#define PLACE(e, along_k, width) ((along_k) ? (e) / BK : (e) % (width))
#define STEP(e, along_k, width) ((along_k) ? (e) % BK : (e) / (width))

/* Loads this item's `each` elements of a tile: rows from `first` (below `limit`), k from k0 (below k_end).
 * Elements outside are +0 and enter no chain that is stored. */
#define FETCH(reg, each, src, ld, along_k, width, first, limit)                                              \
    _Pragma("unroll") for (int f = 0; f < each; f++)                                                         \
    {                                                                                                        \
        int e = lid + f * WG;                                                                                \
        size_t at = first + PLACE(e, along_k, width), kk = k0 + STEP(e, along_k, width);                     \
        bool inside = at < limit && kk < k_end;                                                              \
        reg[f] = inside ? CLT_LOAD(IN_TYPE, src + ((along_k) ? at * ld + kk : kk * ld + at)) : 0.0f;         \
    }
#define STORE_TILE(tile, ldt, reg, each, along_k, width)                                                     \
    _Pragma("unroll") for (int f = 0; f < each; f++)                                                         \
    {                                                                                                        \
        int e = lid + f * WG;                                                                                \
        tile[STEP(e, along_k, width) * ldt + PLACE(e, along_k, width)] = reg[f];                             \
    }

/* acc += one step along k */
#define MULTIPLY(kk)                                                                                         \
    do {                                                                                                     \
        float av[TM], bv[TN];                                                                                \
        _Pragma("unroll") for (int i = 0; i < TM; i += 4)                                                    \
            vstore4(vload4(0, a_tile + (kk) * LDA_TILE + ROW(i)), 0, av + i);                                \
        _Pragma("unroll") for (int j = 0; j < TN; j += 4)                                                    \
            vstore4(vload4(0, b_tile + (kk) * LDB_TILE + COLUMN(j)), 0, bv + j);                             \
        _Pragma("unroll") for (int i = 0; i < TM; i++)                                                       \
            _Pragma("unroll") for (int j = 0; j < TN; j++)                                                   \
                acc[i][j] = fma(av[i], bv[j], acc[i][j]);                                                    \
    } while (0)

/* Row and column inside the group's tile of output (i, j) of this item. */
#define ROW(i) (((i) / 4) * (BM / (TM / 4)) + ty * 4 + (i) % 4)
#define COLUMN(j) (((j) / 4) * (BN / (TN / 4)) + tx * 4 + (j) % 4)

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
gemm(uint m, uint n, uint k, uint k_group, __global const clt_gemm_in *a, ulong a_off, ulong lda,
     __global const clt_gemm_in *b, ulong b_off, ulong ldb, CLT_EP_ARGS)
{
    __local float a_tile[BK * LDA_TILE], b_tile[BK * LDB_TILE];
    const int lid = (int)get_local_id(0), tx = lid % WG_X, ty = lid / WG_X;
    const size_t m0 = get_group_id(1) * BM, n0 = get_group_id(0) * BN;
    const clt_gemm_ep ep = CLT_EP_INIT;
    float ra[A_EACH], rb[B_EACH];
    a += a_off;
    b += b_off;

    for (size_t k_start = 0; k_start < k; k_start += k_group) {
        const size_t k_end = k_start + k_group;
        float acc[TM][TN];
        _Pragma("unroll") for (int i = 0; i < TM; i++)
            _Pragma("unroll") for (int j = 0; j < TN; j++) acc[i][j] = 0.0f;
        size_t k0 = k_start;
        FETCH(ra, A_EACH, a, lda, A_ALONG_K, BM, m0, m)
        FETCH(rb, B_EACH, b, ldb, B_ALONG_K, BN, n0, n)
        while (k0 < k_end) {
            barrier(CLK_LOCAL_MEM_FENCE);
            STORE_TILE(a_tile, LDA_TILE, ra, A_EACH, A_ALONG_K, BM)
            STORE_TILE(b_tile, LDB_TILE, rb, B_EACH, B_ALONG_K, BN)
            barrier(CLK_LOCAL_MEM_FENCE);
            const int steps = (int)min((size_t)BK, k_end - k0);
            k0 += BK;
            if (k0 < k_end) {
                FETCH(ra, A_EACH, a, lda, A_ALONG_K, BM, m0, m)
                FETCH(rb, B_EACH, b, ldb, B_ALONG_K, BN, n0, n)
            }
            if (steps == BK) {
                _Pragma("unroll") for (int kk = 0; kk < BK; kk++) MULTIPLY(kk);
            } else {
                for (int kk = 0; kk < steps; kk++) MULTIPLY(kk);
            }
        }
        _Pragma("unroll") for (int i = 0; i < TM; i++)
            _Pragma("unroll") for (int j = 0; j < TN; j++)
        {
            const size_t row = m0 + ROW(i), column = n0 + COLUMN(j);
            if (row >= m || column >= n) continue;
#if FORM == 2
            __global clt_gemm_out *sum = ep.c + row * ep.ldc + column;
            const float before = k_start > 0 || (ep.flags & CLT_EP_ACCUMULATE) ? CLT_LOAD(C_TYPE, sum) : 0.0f;
            CLT_STORE(C_TYPE, before + acc[i][j], sum);
#else
            clt_ep_scalar(&ep, acc[i][j], row, column);
#endif
        }
    }
}
