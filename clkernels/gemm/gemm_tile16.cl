/* gemm_tile16: GEMM of 16-bit tensors on AMD's matrix units (MFMA of gfx90a and gfx942, WMMA of gfx11 and
 * gfx12).
 *
 * A group of 256 items computes BM x BN outputs in steps of BK along k. Both tiles are stored in local memory
 * as rows along k for every form; operands with another layout are transposed on the way, 4 x 4 numbers at a
 * time. Each wave owns a block of 16 x 16 tiles (include/clt_tile16.clh). The next step's numbers are loaded
 * into registers while the current ones are used. At the end a wave puts one row of its tiles at a time into
 * local memory, and the epilogue processes rows of c. Every edge is guarded: sizes need not be multiples of
 * the tile; beyond an edge there are zeros, also along k.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DBM -DBN -DBK   tile of a group; BM and BN multiples of 64, BK of 16, BM * BK and BN * BK of 4096
 *   -DWAVES_M        waves of a group along m; the others are along n
 *   -DTM -DTN        outputs of an item, for the launch: BM / TM * BN / TN must be 256
 *   -DIN_TYPE=1|2, -DACT -DGRAD_ACT -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh
 *
 * Order: the matrix unit's inside 16 steps of k, ascending between them; TN takes all of k as one sum.
 *
 * Launch: as gemm_portable. Requires: mfma or wmma, numerics=fast. Compiled and run on an emulator, not timed
 * on a GPU. */
#ifndef IN_TYPE
#define IN_TYPE 1
#endif
#include "gemm_epilogue.clh"

#include "../include/clt_tile16.clh"

#ifndef FORM
#define FORM 0
#endif
#ifndef BM
#define BM 128
#define BN 128
#define BK 32
#define WAVES_M 2
#endif

#define WG 256
#define WAVES (WG / CLT_WAVE)
#define WAVES_N (WAVES / WAVES_M)
#define WM (BM / WAVES_M) /* outputs of a wave */
#define WN (BN / WAVES_N)
#define MT (WM / 16) /* and its tiles */
#define NT (WN / 16)
#define PITCH (BK + 8) /* distance between rows of a tile (CLT_AT) */
#define A_BLOCKS (BM * BK / 16 / WG) /* 4 x 4 blocks that an item loads */
#define B_BLOCKS (BN * BK / 16 / WG)

#if A_BLOCKS * 16 * WG != BM * BK || B_BLOCKS * 16 * WG != BN * BK
#error "the tile's blocks do not divide among the items"
#endif

/* Row of the tile and step along k of block e of a tile of `width` rows. Neighbouring items load neighbouring
 * memory. Of transposed blocks, items in turn take PAIR steps of k, so that their units differ. */
#define PAIR (CLT_UNIT / 4)
#define BLOCK_ROW(e, along_k, width) (((along_k) ? (e) / (BK / 4) : (e) / PAIR % ((width) / 4)) * 4)
#define BLOCK_K(e, along_k, width) (((along_k) ? (e) % (BK / 4) : (e) / ((width) / 4 * PAIR) * PAIR + (e) % PAIR) * 4)

/* Block e of a tile: rows from `first` (below `limit`), steps from k0, zeros beyond. */
#define FETCH(reg, blocks, src, ld, along_k, width, first, limit)                                            \
    CLT_EACH(f, blocks)                                                                                      \
    {                                                                                                        \
        const int e = lid + f * WG;                                                                          \
        const size_t at = first + BLOCK_ROW(e, along_k, width), kk = k0 + (size_t)BLOCK_K(e, along_k, width); \
        const long rows = (long)limit - (long)at, steps = (long)k - (long)kk;                                \
        if (along_k)                                                                                         \
            clt_block4_fetch(reg[f], src + at * ld + kk, ld, rows, steps);                                   \
        else                                                                                                 \
            clt_block4_fetch(reg[f], src + kk * ld + at, ld, steps, rows);                                   \
    }
/* The same if all of it exists. Only the distance from the tile's first number differs between items: 32 bits. */
#define FETCH_WHOLE(reg, blocks, src, ld, along_k, width, first)                                             \
    CLT_EACH(f, blocks) CLT_EACH(i, 4)                                                                       \
    {                                                                                                        \
        const uint e = lid + f * WG, row = BLOCK_ROW(e, along_k, width), kk = BLOCK_K(e, along_k, width);    \
        const uint distance = 2 * ((along_k) ? row * (uint)ld + kk : kk * (uint)ld + row);                   \
        __global const ushort *line = src + ((along_k) ? first * ld + k0 : (size_t)k0 * ld + first) + i * ld; \
        reg[f][i] = vload4(0, (__global const ushort *)((__global const char *)line + distance));            \
    }
#define FETCH_STEP                                                                                           \
    if (inside && k - k0 >= BK) {                                                                            \
        FETCH_WHOLE(ra, A_BLOCKS, a, lda, A_ALONG_K, BM, m0)                                                 \
        FETCH_WHOLE(rb, B_BLOCKS, b, ldb, B_ALONG_K, BN, n0)                                                 \
    } else {                                                                                                 \
        FETCH(ra, A_BLOCKS, a, lda, A_ALONG_K, BM, m0, m)                                                    \
        FETCH(rb, B_BLOCKS, b, ldb, B_ALONG_K, BN, n0, n)                                                    \
    }
#define PUT(tile, reg, blocks, along_k, width)                                                               \
    CLT_EACH(f, blocks)                                                                                      \
    {                                                                                                        \
        const int e = lid + f * WG, row = BLOCK_ROW(e, along_k, width), kk = BLOCK_K(e, along_k, width);     \
        clt_block4_put(tile + CLT_AT(PITCH, BK, row, kk), PITCH, reg[f], !(along_k));                        \
    }

#define A_ALONG_K (FORM != 2)
#define B_ALONG_K (FORM == 0)

__kernel CLT_TILE16_KERNEL(WG) void
gemm(uint m, uint n, uint k, uint k_group, __global const clt_gemm_in *a, ulong a_off, ulong lda,
     __global const clt_gemm_in *b, ulong b_off, ulong ldb, CLT_EP_ARGS)
{
    __local float4 shared[((BM + BN) * PITCH * 2 + 15) / 16];
    __local ushort *a_tile = (__local ushort *)shared, *b_tile = a_tile + BM * PITCH;
    const int lid = (int)get_local_id(0), lane = lid % CLT_WAVE, wave = lid / CLT_WAVE;
    const int wm = wave / WAVES_N * WM, wn = wave % WAVES_N * WN;
    const size_t m0 = get_group_id(1) * BM, n0 = get_group_id(0) * BN;
    const clt_gemm_ep ep = CLT_EP_INIT;
    ushort4 ra[A_BLOCKS][4], rb[B_BLOCKS][4];
    clt_acc acc[MT][NT];
    a += a_off;
    b += b_off;

    CLT_EACH(i, MT) CLT_EACH(j, NT) acc[i][j] = (clt_acc)(0.0f);
    uint k0 = 0;
    /* Then distances in a tile fit in 32 bits. */
    const bool inside = m0 + BM <= m && n0 + BN <= n && lda < 1 << 22 && ldb < 1 << 22;
    FETCH_STEP
    while (k0 < k) {
        barrier(CLK_LOCAL_MEM_FENCE);
        PUT(a_tile, ra, A_BLOCKS, A_ALONG_K, BM)
        PUT(b_tile, rb, B_BLOCKS, B_ALONG_K, BN)
        barrier(CLK_LOCAL_MEM_FENCE);
        k0 = clt_uniform(k0 + BK);
        if (k0 < k) {
            FETCH_STEP
        }
        CLT_EACH(s, BK / 16)
        {
            clt_frag fb[NT];
            CLT_EACH(j, NT) fb[j] = clt_frag_at(b_tile, PITCH, BK, wn, j, s, lane);
            CLT_EACH(i, MT)
            {
                const clt_frag fa = clt_frag_at(a_tile, PITCH, BK, wm, i, s, lane);
                CLT_EACH(j, NT) acc[i][j] = CLT_TILE16(IN_TYPE, fa, fb[j], acc[i][j]);
            }
        }
    }

    /* 16 rows of WN floats for each wave: less than the tiles in the same memory. */
    __local float *mine = (__local float *)shared + wave * 16 * WN;
    CLT_EACH(i, MT)
    {
        barrier(CLK_LOCAL_MEM_FENCE);
        CLT_EACH(j, NT) CLT_EACH(r, CLT_ACC) mine[CLT_ACC_ROW(lane, r) * WN + 16 * j + lane % 16] = acc[i][j][r];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int e = lane; e < 16 * WN; e += CLT_WAVE) {
            const size_t row = m0 + wm + 16 * i + e / WN, column = n0 + wn + e % WN;
            if (row < m && column < n) clt_ep_scalar(&ep, mine[e], row, column);
        }
    }
}
