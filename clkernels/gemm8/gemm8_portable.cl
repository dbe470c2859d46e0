/* gemm8_portable: products of 8-bit blocks for any device, by work-groups with tiles in local memory.
 *
 * A group computes BM x BN outputs in steps of BK along k. Each of its (BM / TM) * (BN / TN) work-items owns
 * TM x TN of them, rows and columns apart by the number of items, so that neighbours read neighbouring words
 * of local memory. Four numbers of a row are one word. The next step's words are loaded into registers while
 * the current ones are used. Rows beyond an edge repeat the last one and are not stored.
 *
 *   -DBM -DBN -DBK -DTM -DTN   tile; BM multiple of TM, BN of TN; BK 16, 32 or 64; BM * BK / 16 and
 *                              BN * BK / 16 multiples of WG = BM / TM * BN / TN
 *   other macros, order        gemm8_blocks.clh
 *
 * Launch: global {ceil(n / BN) * WG, ceil(m / BM)}, local {WG, 1}. Requires: work-groups of WG, local memory
 * of (BK + 4) * (BM + BN) bytes. */
#include "gemm8_blocks.clh"

#ifndef BM
#define BM 64
#define BN 64
#define BK 64
#define TM 4
#define TN 4
#endif

#define WG_X (BN / TN)
#define WG_Y (BM / TM)
#define WG (WG_Y * WG_X)
#define QUADS (BK / 16) /* loads of 16 bytes per row and step */
#define A_EACH (BM * QUADS / WG)
#define B_EACH (BN * QUADS / WG)
#define LD_TILE (BK / 4 + 1) /* words; odd, so that rows start in different banks */
#if BM % TM || BN % TN || BLOCK % BK || BK % 16 || A_EACH * WG != BM * QUADS || B_EACH * WG != BN * QUADS
#error "a block is a multiple of BK, and the tile divides evenly among the items"
#endif

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#define FETCH(reg, each, src, ld, first, limit)                                                              \
    EACH(f, each)                                                                                            \
    {                                                                                                        \
        const size_t e = lid + f * WG, row = min(first + e / QUADS, (size_t)(limit) - 1);                    \
        reg[f] = *(__global const int4 *)(src + row * ld + k0 + e % QUADS * 16);                             \
    }
#define STORE_TILE(tile, reg, each)                                                                          \
    EACH(f, each)                                                                                            \
    {                                                                                                        \
        const size_t e = lid + f * WG;                                                                       \
        vstore4(reg[f], 0, tile + e / QUADS * LD_TILE + e % QUADS * 4);                                      \
    }

/* sum += the products of four pairs of numbers */
static inline int dot4(int a, int b, int sum) {
    const int4 x = convert_int4(as_char4(a)), y = convert_int4(as_char4(b)), p = x * y;
    return sum + p.x + p.y + p.z + p.w;
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemm8(CLT_GEMM8_KERNEL_ARGS)
{
    __local int a_tile[BM * LD_TILE], b_tile[BN * LD_TILE];
    const int lid = (int)get_local_id(0), tx = lid % WG_X, ty = lid / WG_X;
    const size_t m0 = get_group_id(1) * BM, n0 = get_group_id(0) * BN, k_end = (size_t)blocks * BLOCK;
    const clt_gemm_ep ep = CLT_EP_INIT;
    int4 ra[A_EACH], rb[B_EACH];
    float acc[TM][TN];
    int sum[TM][TN];
    size_t k0 = 0, a_at[TM], b_at[TN];
    a += a_off;
    b += b_off;
    EACH(i, TM) a_at[i] = a_scale_off + A_PLACE(min(m0 + ty + i * WG_Y, (size_t)m - 1));
    EACH(j, TN) b_at[j] = b_scale_off + B_PLACE(min(n0 + tx + j * WG_X, (size_t)n - 1));
    FETCH(ra, A_EACH, a, lda, m0, m)
    FETCH(rb, B_EACH, b, ldb, n0, n)
    for (uint block = 0; block < blocks; block++) {
        if (block % group_blocks == 0)
            EACH(i, TM) EACH(j, TN)
        {
            const size_t row = m0 + ty + i * WG_Y, column = n0 + tx + j * WG_X;
            acc[i][j] = row < m && column < n ? clt_gemm8_start(&ep, row, column) : 0.0f;
        }
        EACH(i, TM) EACH(j, TN) sum[i][j] = 0;
        for (int step = 0; step < BLOCK; step += BK) {
            barrier(CLK_LOCAL_MEM_FENCE);
            STORE_TILE(a_tile, ra, A_EACH)
            STORE_TILE(b_tile, rb, B_EACH)
            barrier(CLK_LOCAL_MEM_FENCE);
            k0 += BK;
            if (k0 < k_end) {
                FETCH(ra, A_EACH, a, lda, m0, m)
                FETCH(rb, B_EACH, b, ldb, n0, n)
            }
            EACH(word, BK / 4)
            {
                int av[TM], bv[TN];
                EACH(i, TM) av[i] = a_tile[(ty + i * WG_Y) * LD_TILE + word];
                EACH(j, TN) bv[j] = b_tile[(tx + j * WG_X) * LD_TILE + word];
                EACH(i, TM) EACH(j, TN) sum[i][j] = dot4(av[i], bv[j], sum[i][j]);
            }
        }
        EACH(i, TM)
        {
            const float s = a_scale[block * ld_a_scale + a_at[i]];
            EACH(j, TN)
            acc[i][j] = fma((float)sum[i][j], s * b_scale[block * ld_b_scale + b_at[j]], acc[i][j]);
        }
        if ((block + 1) % group_blocks != 0) continue;
        EACH(i, TM) EACH(j, TN)
        {
            const size_t row = m0 + ty + i * WG_Y, column = n0 + tx + j * WG_X;
            if (row < m && column < n) clt_gemm8_finish(&ep, acc[i][j], row, column, block + 1 == group_blocks);
        }
    }
}
