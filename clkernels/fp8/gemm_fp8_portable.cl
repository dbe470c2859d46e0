/* gemm_fp8_portable: products of matrices in 8-bit floating point for any device, by work-groups with tiles in
 * local memory, in the order of numerics exact: one chain of fma over k for each output.
 *
 * A group computes BM x BN outputs in steps of BK along k. Each of its (BM / TM) * (BN / TN) work-items owns
 * TM x TN of them, rows and columns apart by the number of items, so that neighbours read neighbouring words
 * of local memory, which has the values of the codes. The next step's codes are loaded into registers while
 * the current values are used. Rows beyond an edge repeat the last one and are not stored; codes beyond k are
 * 0, which changes no chain.
 *
 *   -DBM -DBN -DBK -DTM -DTN   tile; BM multiple of TM, BN of TN; BM * BK / 4 and BN * BK / 4 multiples of
 *                              WG = BM / TM * BN / TN
 *   other macros               gemm_fp8.clh
 *
 * Launch: global {ceil(n / BN) * WG, ceil(m / BM)}, local {WG, 1}. Requires: work-groups of WG, local memory
 * of 4 * (BK + 1) * (BM + BN) bytes. */
#include "gemm_fp8.clh"
#include "fp8.clh"

#ifndef BM
#define BM 32
#define BN 32
#define BK 32
#define TM 4
#define TN 4
#endif

#define WG_X (BN / TN)
#define WG_Y (BM / TM)
#define WG (WG_Y * WG_X)
#define QUADS (BK / 4) /* loads of four codes per row and step */
#define A_EACH (BM * QUADS / WG)
#define B_EACH (BN * QUADS / WG)
#define LD_TILE (BK + 1) /* odd, so that rows start in different banks */
#if BM % TM || BN % TN || BK % 4 || A_EACH * WG != BM * QUADS || B_EACH * WG != BN * QUADS
#error "the tile divides evenly among the items"
#endif

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#define FETCH(reg, each, src, ld, first, limit)                                                              \
    EACH(f, each)                                                                                            \
    {                                                                                                        \
        const size_t e = lid + f * WG, row = min(first + e / QUADS, (size_t)(limit) - 1), at = k0 + e % QUADS * 4; \
        reg[f] = at < k ? *(__global const uint *)(src + row * ld + at) : 0;                                 \
    }
#define STORE_TILE(format, tile, reg, each)                                                                  \
    EACH(f, each)                                                                                            \
    {                                                                                                        \
        const size_t e = lid + f * WG;                                                                       \
        vstore4(CLT_FP8_WIDEN4(format, reg[f]), 0, tile + e / QUADS * LD_TILE + e % QUADS * 4);              \
    }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemm_fp8(CLT_GEMM_FP8_ARGS)
{
    __local float a_tile[BM * LD_TILE], b_tile[BN * LD_TILE];
    const int lid = (int)get_local_id(0), tx = lid % WG_X, ty = lid / WG_X;
    const size_t m0 = get_group_id(1) * BM, n0 = get_group_id(0) * BN;
    const clt_gemm_ep ep = CLT_EP_INIT;
    const float scale = a_inverse[a_inverse_off] * b_inverse[b_inverse_off];
    uint ra[A_EACH], rb[B_EACH];
    float acc[TM][TN];
    size_t k0 = 0;
    a += a_off;
    b += b_off;
    EACH(i, TM) EACH(j, TN) acc[i][j] = 0.0f;
    FETCH(ra, A_EACH, a, lda, m0, m)
    FETCH(rb, B_EACH, b, ldb, n0, n)
    while (k0 < k) {
        barrier(CLK_LOCAL_MEM_FENCE);
        STORE_TILE(A_FORMAT, a_tile, ra, A_EACH)
        STORE_TILE(B_FORMAT, b_tile, rb, B_EACH)
        barrier(CLK_LOCAL_MEM_FENCE);
        k0 += BK;
        if (k0 < k) {
            FETCH(ra, A_EACH, a, lda, m0, m)
            FETCH(rb, B_EACH, b, ldb, n0, n)
        }
        for (int step = 0; step < BK; step++) {
            float av[TM], bv[TN];
            EACH(i, TM) av[i] = a_tile[(ty + i * WG_Y) * LD_TILE + step];
            EACH(j, TN) bv[j] = b_tile[(tx + j * WG_X) * LD_TILE + step];
            EACH(i, TM) EACH(j, TN) acc[i][j] = fma(av[i], bv[j], acc[i][j]);
        }
    }
    EACH(i, TM) EACH(j, TN)
    {
        const size_t row = m0 + ty + i * WG_Y, column = n0 + tx + j * WG_X;
        if (row < m && column < n) clt_ep_scalar(&ep, scale * acc[i][j], row, column);
    }
}
