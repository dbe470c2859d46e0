/* gemm8_dpas: products of 8-bit blocks on Intel's matrix units (DPAS, include/clt_dpas.clh).
 *
 * A group computes 64 x 64 outputs. Each of its sub-groups owns WM x WN of them; an item owns columns. Operands
 * are read directly from memory, 64 elements along k at once: rows of a by block reads, which give each item its
 * share of a row; of b each item reads its own rows. A block's products are summed as integers, which is exact
 * in any order, and then added to the fp32 chains. Results leave through local memory, so that the epilogue's
 * code exists once. Rows beyond an edge repeat the last one and are not stored.
 *
 *   -DSG=8|16     items of a sub-group: 8 on Xe-HPG, 16 on Xe-HPC and Xe2
 *   -DWM -DWN     tile of a sub-group: multiples of 8 and SG that divide 64. -DITEMS: 64 / WM * 64 / WN * SG
 *   -DBLOCK2D=1   with SG 16: a and b by reads of blocks of a matrix, if they start at multiples of 16 bytes
 *   -DPROBE=1     only the kernel `probe`
 *   other macros, order   gemm8_blocks.clh
 *
 * Launch: global {ceil(n / 64) * ITEMS, ceil(m / 64)}, local {ITEMS, 1}. Requires: DPAS in sub-groups of SG.
 * Compiled and emulated (test/ops/emulated_dpas.sh), not run on a GPU. */
#include "gemm8_blocks.clh"

#include "../include/clt_dpas.clh"

#ifndef BLOCK2D
#define BLOCK2D 0
#endif
#ifndef PROBE
#define PROBE 0
#endif
#ifndef WM
#define WM 16
#define WN SG
#define ITEMS 256
#endif

#if PROBE
/* a is the identity, so the sums are b's elements: k - 2 * column. */
CLT_DPAS_KERNEL __attribute__((reqd_work_group_size(64, 1, 1))) __kernel void probe(__global const uint *in,
                                                                                    __global uint *out)
{
    CLT_DPAS_LOCAL(64)
    const int l = (int)CLT_DPAS_LANE, each = 32 / SG, item = (int)get_local_id(0);
    clt_dpas_a a;
    int8 b;
    for (int r = 0; r < 8; r++) {
        a[r] = r / each == l ? 1 << r % each * 8 : 0;
        b[r] = as_int((char4)(r * 4 - 2 * l, r * 4 + 1 - 2 * l, r * 4 + 2 - 2 * l, r * 4 + 3 - 2 * l));
    }
    int8 sum = (int8)(5);
    CLT_DPAS8(sum, a, b);
    bool right = CLT_DPAS_SIZE == SG;
    for (int r = 0; r < 8; r++) right = right && sum[r] == 5 + r - 2 * l;
    out[item] = right ? in[item] : ~in[item];
}
#else

#define BM 64
#define BN 64
#define MT (WM / 8)  /* products of a sub-group side by side, along m */
#define NT (WN / SG) /* and along n */
#define ACROSS (BN / WN)   /* sub-groups side by side */
#define STEPS (BLOCK / 64) /* of a block */
#define EACH CLT_DPAS_EACH
#if WM % 8 || WN % SG || BM % WM || BN % WN || ITEMS != BM / WM * (BN / WN) * SG
#error "WM and WN are multiples of 8 and SG and divide 64, ITEMS is 64 / WM * 64 / WN * SG"
#endif

/* The item's column j of the sub-group's. */
#define COLUMN(j) (n0 + (j)*SG + lane)

/* The sub-group's rows of a, and the item's rows of b, of the 64 k from k0, in two halves. */
#define READ_ROWS(av, bv)                                                                                    \
    EACH(c, 2)                                                                                               \
    {                                                                                                        \
        EACH(i, MT)                                                                                          \
        EACH(r, 8) av[c][i][r] = CLT_DPAS_ROW_AT(a + min(m0 + i * 8 + r, m - 1) * lda + k0 + c * 32);        \
        EACH(j, NT) bv[c][j] = vload8(0, (__global const int *)(b + min(COLUMN(j), n - 1) * ldb + k0 + c * 32)); \
    }
#if BLOCK2D
/* The same by reads of blocks, of pairs of numbers. */
#define PLANE(p, ld, rows) clt_plane_of((__global const ushort *)(p), (ld) / 2, blocks * (BLOCK / 2), rows)
#define BLOCKS_FIT(p, ld) (((ulong)(p) & 15) == 0 && (ld) % 16 == 0)
#define READ_BLOCKS(av, bv)                                                                                  \
    EACH(i, MT)                                                                                              \
    {                                                                                                        \
        const short16 v = CLT_PLANE_ROWS(pa, k0 / 2, m0 + i * 8);                                            \
        av[0][i] = v.lo, av[1][i] = v.hi;                                                                    \
    }                                                                                                        \
    EACH(c, 2) EACH(j, NT) bv[c][j] = CLT_PLANE_TURNED(pb, k0 / 2 + c * 16, n0 + j * SG);
#define READ(av, bv)                                                                                         \
    if (fit) {                                                                                               \
        READ_BLOCKS(av, bv)                                                                                  \
    } else {                                                                                                 \
        READ_ROWS(av, bv)                                                                                    \
    }
#define LARGE CLT_DPAS_LARGE
#else
#define READ(av, bv) READ_ROWS(av, bv)
#define LARGE
#endif

/* acc = fma(sum, scale, acc) for the item's rows i * 8 + r; sum = 0. */
#define ADD_BLOCK                                                                                            \
    EACH(i, MT)                                                                                              \
    {                                                                                                        \
        const float rows = a_scale[block * ld_a_scale + A_PLACE(min(m0 + i * 8 + lane % 8, m - 1))];         \
        EACH(j, NT)                                                                                          \
        {                                                                                                    \
            const float column = b_scale[block * ld_b_scale + B_PLACE(min(COLUMN(j), n - 1))];               \
            EACH(r, 8)                                                                                       \
            acc[i][j][r] = fma((float)sum[i][j][r], CLT_DPAS_FROM(rows, r) * column, acc[i][j][r]);          \
            sum[i][j] = (int8)(0);                                                                           \
        }                                                                                                    \
    }

/* An item's number in local memory, and a loop over those of a sub-group, row by row. */
#define PLACE(i, j, r) mine[((i)*8 + r) * WN + (j)*SG + lane]
#define EACH_RESULT                                                                                          \
    __attribute__((opencl_unroll_hint(1))) for (uint e = lane; e < WM * WN; e += SG)
#define ROW (m0 + e / WN)
#define COLUMN_AT (n0 + e % WN)
#define INSIDE (ROW < m && COLUMN_AT < n)

CLT_DPAS_KERNEL LARGE __attribute__((reqd_work_group_size(ITEMS, 1, 1))) __kernel void gemm8(CLT_GEMM8_KERNEL_ARGS)
{
    __local float shared[BM * BN];
    CLT_DPAS_LOCAL(ITEMS)
    const uint group = CLT_DPAS_SUB_GROUP, lane = CLT_DPAS_LANE;
    const uint m0 = (uint)get_group_id(1) * BM + group / ACROSS * WM;
    const uint n0 = (uint)get_group_id(0) * BN + group % ACROSS * WN;
    __local float *const mine = shared + group * (WM * WN);
    const clt_gemm_ep ep = CLT_EP_INIT;
    float8 acc[MT][NT];
    int8 sum[MT][NT];
    a += a_off;
    b += b_off;
    a_scale += a_scale_off;
    b_scale += b_scale_off;
#if BLOCK2D
    const clt_plane pa = PLANE(a, lda, m), pb = PLANE(b, ldb, n);
    const bool fit = BLOCKS_FIT(a, lda) && BLOCKS_FIT(b, ldb) && clt_plane_fits(pa) && clt_plane_fits(pb);
#endif
    for (uint begin = 0; begin < blocks; begin += group_blocks) {
        EACH(i, MT) EACH(j, NT) acc[i][j] = (float8)(0.0f), sum[i][j] = (int8)(0);
#if FORM == 2
        EACH_RESULT mine[e] = INSIDE ? clt_gemm8_start(&ep, ROW, COLUMN_AT) : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH(i, MT) EACH(j, NT) EACH(r, 8) acc[i][j][r] = PLACE(i, j, r);
#endif
        for (uint step = begin * STEPS; step < (begin + group_blocks) * STEPS; step++) {
            const size_t k0 = (size_t)step * 64;
            clt_dpas_a av[2][MT];
            int8 bv[2][NT];
            READ(av, bv)
            EACH(c, 2) EACH(i, MT) EACH(j, NT) CLT_DPAS8(sum[i][j], av[c][i], bv[c][j]);
            if (step % STEPS == STEPS - 1) {
                const uint block = step / STEPS;
                ADD_BLOCK
            }
        }
        EACH(i, MT) EACH(j, NT) EACH(r, 8) PLACE(i, j, r) = acc[i][j][r];
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_RESULT if (INSIDE) clt_gemm8_finish(&ep, mine[e], ROW, COLUMN_AT, begin == 0);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif
