/* gemm_vec: products of few rows on CPU devices, as each new token of a text needs them. The weights [n,k] are
 * read once, straight from memory: 16 steps of 16 rows are transposed in registers, so that a lane is an output
 * and every chain keeps its order. Packing them, as gemm_cpu.cl does, would write and read them again.
 *
 *   -DROWS=1|4   rows of a in one pass over the weights; more rows take further passes over weights that are in
 *                the cache
 *   -DACT -DGRAD_ACT -DIN_TYPE -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh
 *
 * Order (docs/numerics.md, GEMM): one chain over k ascending from +0 per output. Lanes and rows beyond an edge
 * repeat the last ones and are never stored; k is never padded.
 *
 * Bound: bytes of the weights. Per 16 x 16 weights there are 64 shuffles and 16 * ROWS fma.
 *
 * Requires: work-groups of one. */
#include "gemm_cpu.clh"

#ifndef ROWS
#define ROWS 1
#endif
#define AHEAD 256 /* elements of a row that are prefetched ahead */

/* acc[i] += row i of a times 16 transposed steps */
static inline void add_steps(float16 *acc, __global const clt_gemm_in *const *a, size_t kk, const float16 *w)
{
    EACH(j, 16) EACH(i, ROWS) acc[i] = fma((float16)(IN1(a[i] + kk + j)), w[j], acc[i]);
}

/* Outputs [0, m) x `panels_each` panels of 16 columns, from row `row_first` of a. Launch: {ceil(panels /
 * panels_each)}. */
__kernel CLT_ONE_ITEM void gemm_vec(uint m, uint n, uint k, uint panels_each, __global const clt_gemm_in *a,
                                    ulong a_off, ulong lda, __global const clt_gemm_in *b, ulong b_off, ulong ldb,
                                    CLT_EP_ARGS)
{
    const clt_gemm_ep ep = CLT_EP_INIT;
    const size_t column0 = get_global_id(0) * panels_each * 16;
    const size_t column1 = min(column0 + panels_each * 16, (size_t)n);
    a += a_off;
    b += b_off;
    for (size_t column = column0; column < column1; column += 16) {
        __global const clt_gemm_in *w[16];
        EACH(i, 16) w[i] = b + min(column + i, column1 - 1) * ldb;
        for (size_t row = 0; row < m; row += ROWS) {
            __global const clt_gemm_in *at[ROWS];
            float16 acc[ROWS], r[16];
            size_t kk = 0;
            EACH(i, ROWS) at[i] = a + min(row + i, (size_t)m - 1) * lda;
            EACH(i, ROWS) acc[i] = (float16)(0.0f);
            for (; kk + 16 <= k; kk += 16) {
                EACH(i, 16) r[i] = IN16(w[i] + kk);
                EACH(i, 16) PREFETCH(w[i] + kk + AHEAD, 2);
                transpose16(r);
                add_steps(acc, at, kk, r);
            }
            for (; kk < k; kk++) {
                float last[16];
                for (size_t i = 0; i < 16; i++) last[i] = IN1(w[i] + kk);
                EACH(i, ROWS) acc[i] = fma((float16)(IN1(at[i] + kk)), vload16(0, last), acc[i]);
            }
            EACH(i, ROWS) if (row + i < m) clt_ep_lanes16(&ep, acc[i], row + i, column, min(column1 - column, (size_t)16));
        }
    }
}
