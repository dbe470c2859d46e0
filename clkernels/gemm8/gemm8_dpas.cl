/* gemm8_dpas: products of 8-bit blocks on Intel's matrix units (DPAS, include/clt_dpas.clh).
 *
 * A group computes 64 x 64 outputs. Each of its sub-groups owns 16 x SG of them; an item owns a column. Operands
 * are read directly from memory, 32 elements along k at once: rows of a by block reads, which give each item its
 * share of a row; of b each item reads its own row. A block's products are summed as integers, which is exact
 * in any order, and then added to the fp32 chains. Results leave through local memory, so that the epilogue's
 * code exists once. Rows beyond an edge repeat the last one and are not stored.
 *
 *   -DSG=8|16     items of a sub-group: 8 on Xe-HPG, 16 on Xe-HPC
 *   -DPROBE=1     only the kernel `probe`
 *   other macros, order   gemm8_blocks.clh
 *
 * Launch: global {ceil(n / 64) * 256, ceil(m / 64)}, local {256, 1}. Requires: DPAS in sub-groups of SG.
 * Compiled and emulated (test/ops/emulated_dpas.sh), not run on a GPU. */
#include "gemm8_blocks.clh"

#include "../include/clt_dpas.clh"

#ifndef PROBE
#define PROBE 0
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
#define ITEMS 256
#define ROWS 16
#define ACROSS (BN / SG)   /* sub-groups side by side */
#define STEPS (BLOCK / 32) /* of a block */
#define EACH CLT_DPAS_EACH

/* 8 rows of a, part i of the sub-group's, and the item's row of b, at k0. */
#define READ_A(frag, i) EACH(r, 8) frag[r] = CLT_DPAS_ROW_AT(a + min(m0 + (i)*8 + r, m - 1) * lda + k0)
#define READ_B vload8(0, (__global const int *)(b + min(column, n - 1) * ldb + k0))

/* acc = fma(sum, scale, acc) for the item's rows i * 8 + r; sum = 0. */
#define ADD_BLOCK                                                                                            \
    const float column_scale = b_scale[block * ld_b_scale + B_PLACE(min(column, n - 1))];                    \
    EACH(i, 2)                                                                                               \
    {                                                                                                        \
        const float rows = a_scale[block * ld_a_scale + A_PLACE(min(m0 + i * 8 + lane % 8, m - 1))];         \
        EACH(r, 8)                                                                                           \
        acc[i][r] = fma((float)sum[i][r], CLT_DPAS_FROM(rows, r) * column_scale, acc[i][r]);                 \
        sum[i] = (int8)(0);                                                                                  \
    }

/* An item's number in local memory, and a loop over those of a sub-group, row by row. */
#define PLACE(i, r) mine[((i)*8 + r) * SG + lane]
#define EACH_RESULT                                                                                          \
    __attribute__((opencl_unroll_hint(1))) for (uint row = m0; row < m0 + ROWS; row++)
#define AT mine[(row - m0) * SG + lane]

CLT_DPAS_KERNEL __attribute__((reqd_work_group_size(ITEMS, 1, 1))) __kernel void gemm8(CLT_GEMM8_KERNEL_ARGS)
{
    __local float shared[BM * BN];
    CLT_DPAS_LOCAL(ITEMS)
    const uint group = CLT_DPAS_SUB_GROUP, lane = CLT_DPAS_LANE;
    const uint m0 = (uint)get_group_id(1) * BM + group / ACROSS * ROWS;
    const uint n0 = (uint)get_group_id(0) * BN + group % ACROSS * SG, column = n0 + lane;
    __local float *const mine = shared + group * (ROWS * SG);
    const clt_gemm_ep ep = CLT_EP_INIT;
    float8 acc[2];
    int8 sum[2];
    a += a_off;
    b += b_off;
    a_scale += a_scale_off;
    b_scale += b_scale_off;
    for (uint begin = 0; begin < blocks; begin += group_blocks) {
        EACH(i, 2) acc[i] = (float8)(0.0f), sum[i] = (int8)(0);
#if FORM == 2
        EACH_RESULT AT = row < m && column < n ? clt_gemm8_start(&ep, row, column) : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH(i, 2) EACH(r, 8) acc[i][r] = PLACE(i, r);
#endif
        for (uint step = begin * STEPS; step < (begin + group_blocks) * STEPS; step++) {
            const size_t k0 = (size_t)step * 32;
            const int8 b_rows = READ_B;
            EACH(i, 2)
            {
                clt_dpas_a rows;
                READ_A(rows, i);
                CLT_DPAS8(sum[i], rows, b_rows);
            }
            if (step % STEPS == STEPS - 1) {
                const uint block = step / STEPS;
                ADD_BLOCK
            }
        }
        EACH(i, 2) EACH(r, 8) PLACE(i, r) = acc[i][r];
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_RESULT if (row < m && column < n) clt_gemm8_finish(&ep, AT, row, column, begin == 0);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif
