/* gemm8_tile16: products of 8-bit blocks on AMD's matrix units (MFMA of gfx90a and gfx942, WMMA of gfx11 and
 * gfx12).
 *
 * A group of 256 items computes BM x BN outputs in steps of BK along k. Each wave owns a block of 16 x 16 tiles
 * (include/clt_tile16.clh). It sums a block's products as integers, which is exact in any order, and then adds
 * them to its fp32 chains. The next step's words are loaded into registers while the current ones are used. At
 * the end a wave puts one row of its tiles at a time into local memory, and the epilogue processes rows of c.
 * Rows beyond an edge repeat the last one and are not stored.
 *
 *   -DBM -DBN -DBK   tile of a group; BM and BN multiples of 64, BK 32 or 64, BM * BK and BN * BK multiples of 4096
 *   -DWAVES_M        waves of a group along m; the others are along n
 *   -DTM -DTN        outputs of an item, for the launch: BM / TM * BN / TN must be 256
 *   other macros, order   gemm8_blocks.clh
 *
 * Launch: as gemm8_portable. Requires: mfma or wmma. Compiled and run on an emulator, not timed on a GPU. */
#include "gemm8_blocks.clh"

#include "../include/clt_tile16.clh"

#ifndef BM
#define BM 128
#define BN 128
#define BK 64
#define WAVES_M 2
#endif

#define WG 256
#define WAVES (WG / CLT_WAVE)
#define WAVES_N (WAVES / WAVES_M)
#define WM (BM / WAVES_M) /* outputs of a wave */
#define WN (BN / WAVES_N)
#define MT (WM / 16) /* and its tiles */
#define NT (WN / 16)
/* Distance between rows of a tile in bytes: the 16 rows of a fragment of 4 or 8 bytes are in different banks; of 16 bytes (gfx11)
 * the 8 rows that are read together, 16-byte aligned. */
#define WIDE (CLT_WAVE == 32 && CLT_FRAG == 16)
#define PITCH (BK + (WIDE ? 16 : 8))
#define UNITS (BK / 16) /* of 16 bytes, in a row */
#define A_UNITS (BM * UNITS / WG) /* that an item loads */
#define B_UNITS (BN * UNITS / WG)

/* Bytes of local memory: both tiles, later 16 rows of results of each wave. */
#define SHARED ((BM + BN) * PITCH > WAVES * 16 * WN * 4 ? (BM + BN) * PITCH : WAVES * 16 * WN * 4)

#if A_UNITS * WG != BM * UNITS || B_UNITS * WG != BN * UNITS || BLOCK % BK || BK != 32 && BK != 64
#error "BK is 32 or 64, and the tile divides evenly among the items"
#endif

/* Row of a tile that 16-byte unit e belongs to. Neighbouring items take rows whose stores share no banks. */
#if WIDE && BK == 64
#define ROW_OF(q) (((q) & ~7u) | ((q)&1) << 2 | ((q) >> 1 & 3))
#elif WIDE
#define ROW_OF(q) (((q) & ~7u) | ((q)&3) << 1 | ((q) >> 2 & 1))
#elif BK == 64
#define ROW_OF(q) (((q) & ~15u) | ((q)&1) | ((q) >> 1 & 1) << 3 | ((q) >> 2 & 3) << 1)
#else
#define ROW_OF(q) (((q) & ~15u) | ((q)&1) | ((q) >> 1 & 3) << 2 | ((q) >> 3 & 1) << 1)
#endif

#define FETCH(reg, units, src, ld, first, limit)                                                             \
    CLT_EACH(f, units)                                                                                       \
    {                                                                                                        \
        const uint e = lid + f * WG, row = min((first) + ROW_OF(e / UNITS), (limit)-1);                      \
        reg[f] = *(__global const int4 *)(src + row * ld + k0 + e % UNITS * 16);                             \
    }
#define PUT(tile, reg, units)                                                                                \
    CLT_EACH(f, units)                                                                                       \
    {                                                                                                        \
        const uint e = lid + f * WG;                                                                         \
        *(__local unit_of_row *)(tile + ROW_OF(e / UNITS) * PITCH + e % UNITS * 16) = reg[f];                \
    }

typedef int4 unit_of_row __attribute__((aligned(WIDE ? 16 : 8)));

/* Row and column of number r of tile (i, j). */
#define ROW(i, r) (m0 + wm + 16 * (i) + CLT_ACC_ROW(lane, r))
#define COLUMN(j) (n0 + wn + 16 * (j) + lane % 16)

/* The scale that an item loads for its group: of row lid of a's tile, then of b's. */
#define FETCH_SCALE(block)                                                                                   \
    if (lid < BM)                                                                                            \
        scale = a_scale[(block)*ld_a_scale + A_PLACE(min(m0 + lid, m - 1))];                                 \
    else if (lid < BM + BN)                                                                                  \
        scale = b_scale[(block)*ld_b_scale + B_PLACE(min(n0 + lid - BM, n - 1))];

/* acc = fma(sum, scale, acc) for all numbers. */
#define ADD_BLOCK                                                                                            \
    CLT_EACH(j, NT) columns[j] = scales[BM + wn + 16 * j + lane % 16];                                       \
    CLT_EACH(i, MT) CLT_EACH(r, CLT_ACC)                                                                     \
    {                                                                                                        \
        const float row = scales[wm + 16 * i + CLT_ACC_ROW(lane, r)];                                        \
        CLT_EACH(j, NT) acc[i][j][r] = fma((float)sum[i][j][r], row * columns[j], acc[i][j][r]);             \
    }

/* Where the chains start. */
#if FORM == 2
#define START(i, j, r) (ROW(i, r) < m && COLUMN(j) < n ? clt_gemm8_start(&ep, ROW(i, r), COLUMN(j)) : 0.0f)
#else
#define START(i, j, r) 0.0f
#endif

/* sum += the products of the step in local memory. */
#define MULTIPLY_STEP                                                                                        \
    CLT_EACH(s, BK / CLT_STEP8)                                                                              \
    {                                                                                                        \
        clt_frag8 fb[NT];                                                                                    \
        CLT_EACH(j, NT) fb[j] = clt_frag8_load(b_tile + (wn + 16 * j) * PITCH + CLT_STEP8 * s, PITCH, (int)lane);\
        CLT_EACH(i, MT)                                                                                      \
        {                                                                                                    \
            const clt_frag8 fa =                                                                             \
                clt_frag8_load(a_tile + (wm + 16 * i) * PITCH + CLT_STEP8 * s, PITCH, (int)lane);            \
            CLT_EACH(j, NT) sum[i][j] = CLT_TILE16_8(fa, fb[j], sum[i][j]);                                  \
        }                                                                                                    \
    }

/* The finished chains to c; acc = +0. */
#define LEAVE                                                                                                \
    CLT_EACH(i, MT)                                                                                          \
    {                                                                                                        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        CLT_EACH(j, NT)                                                                                      \
        CLT_EACH(r, CLT_ACC) mine[CLT_ACC_ROW(lane, r) * WN + 16 * j + lane % 16] = acc[i][j][r];            \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        for (uint e = lane; e < 16 * WN; e += CLT_WAVE) {                                                    \
            const uint row = m0 + wm + 16 * i + e / WN, column = n0 + wn + e % WN;                           \
            if (row < m && column < n) clt_gemm8_finish(&ep, mine[e], row, column, begin == 0);              \
        }                                                                                                    \
        CLT_EACH(j, NT) acc[i][j] = (clt_acc)(0.0f);                                                         \
    }

__kernel CLT_TILE16_KERNEL(WG) void gemm8(CLT_GEMM8_KERNEL_ARGS)
{
    __local int4 shared[SHARED / 16];
    __local float scales[BM + BN]; /* of the current block */
    __local char *a_tile = (__local char *)shared, *b_tile = a_tile + BM * PITCH;
    const uint lid = (uint)get_local_id(0), lane = lid % CLT_WAVE, wave = lid / CLT_WAVE;
    const uint wm = wave / WAVES_N * WM, wn = wave % WAVES_N * WN;
    const uint m0 = (uint)get_group_id(1) * BM, n0 = (uint)get_group_id(0) * BN;
    /* 16 rows of WN floats for each wave */
    __local float *mine = (__local float *)shared + wave * 16 * WN;
    const clt_gemm_ep ep = CLT_EP_INIT;
    const size_t k_end = (size_t)blocks * BLOCK;
    int4 ra[A_UNITS], rb[B_UNITS];
    clt_acc acc[MT][NT];
    float scale = 0.0f, columns[NT];
    size_t k0 = 0;
    a += a_off;
    b += b_off;
    a_scale += a_scale_off;
    b_scale += b_scale_off;
    CLT_EACH(i, MT) CLT_EACH(j, NT) CLT_EACH(r, CLT_ACC) acc[i][j][r] = START(i, j, r);
    FETCH(ra, A_UNITS, a, lda, m0, m)
    FETCH(rb, B_UNITS, b, ldb, n0, n)
    FETCH_SCALE(0)
    for (uint begin = 0; begin < blocks; begin += group_blocks) {
        for (uint block = begin; block < begin + group_blocks; block++) {
            clt_acc8 sum[MT][NT];
            CLT_EACH(i, MT) CLT_EACH(j, NT) sum[i][j] = (clt_acc8)(0);
            _Pragma("nounroll") for (uint step = 0; step < BLOCK / BK; step++) {
                barrier(CLK_LOCAL_MEM_FENCE);
                PUT(a_tile, ra, A_UNITS)
                PUT(b_tile, rb, B_UNITS)
                if (step == 0 && lid < BM + BN) scales[lid] = scale;
                barrier(CLK_LOCAL_MEM_FENCE);
                k0 += BK;
                if (k0 < k_end) {
                    FETCH(ra, A_UNITS, a, lda, m0, m)
                    FETCH(rb, B_UNITS, b, ldb, n0, n)
                }
                if (step == 0 && block + 1 < blocks) {
                    FETCH_SCALE(block + 1)
                }
                MULTIPLY_STEP
            }
            ADD_BLOCK
        }
        LEAVE
    }
}
