/* gemm8_mma: products of 8-bit blocks on NVIDIA's matrix units from sm_80 on, with -DTURING=1 from sm_75 on:
 * mma.sync by warps, operands loaded to local memory by copies, asynchronous from sm_80 on, in STAGES stages.
 *
 * A group of 8 warps computes 128 x 128 outputs in steps of 64 along k (../gemm/gemm_mma.clh). A warp sums a
 * block's products as integers, which is exact in any order, and then adds them to its fp32 chains.
 *
 * Copies write zeros for rows beyond an edge and read nothing there; the scales of such rows are those of the
 * last row.
 *
 *   macros, order    gemm8_blocks.clh
 *
 * Launch: global {ceil(n / 128) * 256, ceil(m / 128)}, local {256, 1}.
 * Requires: the instructions of ../include/clt_mma.clh. */
#include "../include/clt_mma.clh"
#include "gemm8_blocks.clh"
#include "../gemm/gemm_mma.clh"

#define BK 64
#define STEPS (BLOCK / BK) /* of a block */
#if TURING /* unrolled, it spills there */
#define EACH_STEP(i, n) _Pragma("nounroll") for (int i = 0; i < (n); i++)
#else
#define EACH_STEP(i, n) EACH(i, n)
#endif

/* A tile of step s: rows `first` ... ; those from `limit` on become zeros. */
#define COPY_TILE(base, src, ld, first, limit, s)                                                            \
    EACH(f, 2)                                                                                           \
    {                                                                                                        \
        const uint e = lid + f * WG, in_tile = e / 4, at = (first) + in_tile, bytes = at < (limit) ? 16u : 0u; \
        CLT_COPY_UNIT((base) + BYTE_ALONG_K(in_tile, e % 4),                                                 \
                      (src) + (bytes ? at * (ld) + (s)*BK + e % 4 * 16 : 0), bytes);                         \
    }

/* Step s of k, if the chain has it, into the stage at `to`. */
#define COPY_STEP(to, s)                                                                                     \
    {                                                                                                        \
        if ((s) < end_step) {                                                                                \
            COPY_TILE(to, a, lda, m0, m, s)                                                                  \
            COPY_TILE((to) + A_TILE_BYTES, b, ldb, n0, n, s)                                                         \
        }                                                                                                    \
        CLT_COPY_COMMIT();                                                                                   \
    }

/* sum += the products of the step in the stage at `at`. */
#define MULTIPLY_STEP(sum, at)                                                                               \
    EACH_STEP(kk, 2)                                                                                            \
    {                                                                                                        \
        uint av[4][4], bv[2][4];                                                                             \
        EACH(i, 4) CLT_LDMATRIX(av[i], (at) + BYTE_ALONG_K(a_row + i * 16, kk * 2 + lane / 16));             \
        EACH(j, 2) CLT_LDMATRIX(bv[j], (at) + A_TILE_BYTES + BYTE_ALONG_K(b_row + j * 16, kk * 2 + lane / 8 % 2));   \
        EACH(i, 4) EACH(j, 4) CLT_MMA8(sum[i][j], av[i], bv[j / 2][j % 2 * 2], bv[j / 2][j % 2 * 2 + 1]);    \
    }

/* The scales of block `block` for an item's outputs: rows i * 16 + h * 8 + lane / 4 of the warp, columns j * 8 +
 * lane % 4 * 2 + h. All rows, or columns, of a warp are in one tile of scales. */
#define A_SCALES (A_TILE ? 1 : 4)
#define B_SCALES (B_TILE ? 1 : 4)
#define LOAD_SCALES(block)                                                                                   \
    EACH(i, A_SCALES) EACH(h, 2)                                                                             \
        row[i][h] = a_scale[(block)*ld_a_scale + A_PLACE(min(row0 + i * 16 + h * 8, m - 1))];                \
    EACH(j, B_SCALES) EACH(h, 2)                                                                             \
        column[j][h] = b_scale[(block)*ld_b_scale + B_PLACE(min(column0 + j * 8 + h, n - 1))];

/* acc = fma(sum, scale, acc), and sum = 0. */
#define ADD_BLOCK(acc, sum)                                                                                  \
    EACH(i, 4) EACH(j, 4) EACH(t, 4)                                                                         \
    {                                                                                                        \
        const float scale = row[A_TILE ? 0 : i][A_TILE ? 0 : t / 2] * column[B_TILE ? 0 : j][B_TILE ? 0 : t % 2]; \
        acc[i][j][t] = fma((float)sum[i][j][t], scale, acc[i][j][t]);                                        \
        sum[i][j][t] = 0;                                                                                    \
    }

/* Where the chains of an item's outputs start. */
#define START(acc)                                                                                           \
    EACH(i, 4) EACH(j, 4) EACH(t, 4)                                                                         \
    {                                                                                                        \
        const uint at_row = row0 + i * 16 + t / 2 * 8, at_column = column0 + j * 8 + t % 2;                  \
        acc[i][j][t] = at_row < m && at_column < n ? clt_gemm8_start(&ep, at_row, at_column) : 0.0f;         \
    }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemm8(CLT_GEMM8_KERNEL_ARGS)
{
    __local float4 local_memory[STAGES * STAGE / 16] __attribute__((aligned(128)));
    CLT_MMA_LOCAL(local_memory, WG)
    const uint lid = (uint)get_local_id(0), lane = lid % 32, warp_m = lid / 128, warp_n = lid / 32 % WARPS_N;
    const uint2 first = first_output();
    const uint m0 = first.x, n0 = first.y;
    const uint row0 = m0 + warp_m * 64 + lane / 4, column0 = n0 + warp_n * 32 + lane % 4 * 2;
    /* The address of this lane's row for ldmatrix: 8 lanes for each of 4 matrices of 8 rows by 16 bytes. */
    const uint a_row = warp_m * 64 + lane % 16, b_row = warp_n * 32 + lane % 8 + lane / 16 * 8;
    clt_gemm_ep ep = CLT_EP_INIT;
    a += a_off;
    b += b_off;
    a_scale += a_scale_off;
    b_scale += b_scale_off;
    float acc[4][4][4], row[4][2], column[4][2];
    int sum[4][4][4];
    EACH(i, 4) EACH(j, 4) EACH(t, 4) sum[i][j][t] = 0;
    for (uint begin = 0; begin < blocks; begin += group_blocks) {
        const uint end_step = (begin + group_blocks) * STEPS;
        uint stage = 0, filled = STAGES - 1, s = begin * STEPS;
        START(acc)
        EACH(i, STAGES - 1) COPY_STEP(i * STAGE, s + i)
        for (uint block = begin; block < begin + group_blocks; block++) {
            LOAD_SCALES(block)
            EACH_STEP(h, STEPS)
            {
                CLT_COPY_WAIT(1);
                barrier(CLK_LOCAL_MEM_FENCE);
                const uint at = stage * STAGE;
                COPY_STEP(filled * STAGE, s + STAGES - 1)
                MULTIPLY_STEP(sum, at)
                stage = stage == STAGES - 1 ? 0 : stage + 1;
                filled = filled == STAGES - 1 ? 0 : filled + 1;
                s++;
            }
            ADD_BLOCK(acc, sum)
        }
        CLT_COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE);
        ep.flags = clt_gemm8_flags(flags, begin == 0);
        FINISH_TILE(ep, acc)
    }
}
