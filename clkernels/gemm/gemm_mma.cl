/* gemm_mma: GEMM of 16-bit matrices on NVIDIA's matrix units from sm_80 on: mma.sync by warps, operands
 * loaded to local memory by asynchronous copies, three stages.
 *
 * A group of 8 warps computes 128 x 128 outputs in steps of 32 along k (gemm_mma.clh). A tile has the same
 * layout in local as in global memory. If memory is not contiguous along k, ldmatrix transposes the tile.
 * Results go through local memory, so that rows of c are written whole.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DIN_TYPE=1 bf16, 2 fp16; -DC_TYPE -DAUX_TYPE -DACT -DGRAD_ACT   gemm_epilogue.clh
 *   -DSLICES=1                 k_group rows per get_group_id(2), each into separate m x n outputs
 *                              (gemm_add.clh)
 *
 * Order: the unit's inside a step of 16 along k, steps ascending, fp32 sums. For numerics fast. Elements
 * beyond an edge are zero: copies write zeros there and read nothing.
 *
 * Launch: global {ceil(n / 128) * 256, ceil(m / 128), slices}, local {256, 1, 1}.
 * Requires: PTX with mma.sync m16n8k16, ldmatrix and cp.async; rows of a and b at multiples of 8 elements. */
#ifndef IN_TYPE
#define IN_TYPE 1
#endif
#include "gemm_epilogue.clh"
#include "gemm_mma.clh"

#ifndef FORM
#define FORM 0
#endif
#ifndef SLICES
#define SLICES 0
#endif

#define BK 32

#define A_ALONG_K (FORM != 2) /* consecutive elements in memory are consecutive along k */
#define B_ALONG_K (FORM == 0)

/* Unit e of a tile: its row and its place in the row, in global memory; and its byte in local memory where
 * rows of the tile run across k. */
#define UNIT_ROW(e, along_k) ((along_k) ? (e) >> 2 : (e) >> 4)
#define UNIT_AT(e, along_k) ((along_k) ? (e)&3 : (e)&15)
#define BYTE_ACROSS(row, unit) ((row) * 256 + (((unit) ^ ((row)&7)) << 4))

/* One unit of the tile at row r0 (of m or n; of k if rows of the tile run across k), place c0; elements
 * beyond the limits become zeros. */
#define COPY_UNIT(to, src, ld, row, rows, column, columns)                                                   \
    {                                                                                                        \
        const int left = (row) < (rows) ? (int)(columns) - (int)(column) : 0;                                \
        const uint bytes = left >= 8 ? 16u : left > 0 ? (uint)left * 2u : 0u;                                \
        CLT_COPY_UNIT(to, (src) + (bytes ? (row) * (ld) + (column) : 0), bytes);                             \
    }

/* Both tiles of the step at k0 (below k_end) into one stage. */
#define COPY_TILE(base, src, ld, along_k, first, limit)                                                      \
    EACH(f, UNITS)                                                                                           \
    {                                                                                                        \
        const uint e = lid + f * WG, row = UNIT_ROW(e, along_k), unit = UNIT_AT(e, along_k);                 \
        if (along_k)                                                                                         \
            COPY_UNIT(base + BYTE_ALONG_K(row, unit), src, ld, (first) + row, limit, k0 + unit * 8, k_end)   \
        else                                                                                                 \
            COPY_UNIT(base + BYTE_ACROSS(row, unit), src, ld, k0 + row, k_end, (first) + unit * 8, limit)    \
    }

/* Step s of k, if there is one, into the stage at `to`. */
#define COPY_STEP(to, s)                                                                                     \
    {                                                                                                        \
        const uint k0 = (s)*BK;                                                                              \
        if (k0 < k_end) {                                                                                    \
            COPY_TILE((to), a, lda, A_ALONG_K, m0, m)                                                        \
            COPY_TILE((to) + TILE, b, ldb, B_ALONG_K, n0, n)                                                 \
        }                                                                                                    \
        CLT_COPY_COMMIT();                                                                                   \
    }

/* A warp's fragments of half kk of the step in the stage at `at`: 64 rows of a, 32 columns of b. */
#define LOAD_FRAGMENTS(av, bv, at, kk)                                                                       \
    EACH(i, 4)                                                                                               \
    {                                                                                                        \
        if (A_ALONG_K)                                                                                       \
            CLT_LDMATRIX(av[i], (at) + BYTE_ALONG_K(a_row + i * 16, (kk)*2 + lane / 16));                    \
        else                                                                                                 \
            CLT_LDMATRIX_TURNED(av[i], (at) + BYTE_ACROSS(a_row + (kk)*16, warp_m * 8 + i * 2 + lane / 8 % 2)); \
    }                                                                                                        \
    EACH(j, 2)                                                                                               \
    {                                                                                                        \
        if (B_ALONG_K)                                                                                       \
            CLT_LDMATRIX(bv[j], (at) + TILE + BYTE_ALONG_K(b_row + j * 16, (kk)*2 + lane / 8 % 2));          \
        else                                                                                                 \
            CLT_LDMATRIX_TURNED(bv[j], (at) + TILE + BYTE_ACROSS(b_row + (kk)*16, warp_n * 4 + j * 2 + lane / 16)); \
    }
/* acc += the products of the step in the stage at `at`. */
#define MULTIPLY_STEP(acc, at)                                                                               \
    EACH(kk, 2)                                                                                              \
    {                                                                                                        \
        uint av[4][4], bv[2][4];                                                                             \
        LOAD_FRAGMENTS(av, bv, at, kk)                                                                       \
        EACH(i, 4) EACH(j, 4)                                                                                \
        CLT_MMA(IN_TYPE, acc[i][j], av[i], bv[j / 2][j % 2 * 2], bv[j / 2][j % 2 * 2 + 1]);                  \
    }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
gemm(uint m, uint n, uint k, uint k_group, __global const ushort *a, ulong a_off, ulong lda,
     __global const ushort *b, ulong b_off, ulong ldb, CLT_EP_ARGS)
{
    __local float4 local_memory[STAGES * STAGE / 16] __attribute__((aligned(128)));
    CLT_MMA_LOCAL(local_memory, WG)
    const uint lid = (uint)get_local_id(0), lane = lid % 32, warp_m = lid / 128, warp_n = lid / 32 % 4;
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
    float acc[4][4][4];
    EACH(i, 4) EACH(j, 4) EACH(t, 4) acc[i][j][t] = 0.0f;
    const uint steps = (k_end + BK - 1) / BK;
    EACH(s, STAGES - 1) COPY_STEP(s * STAGE, s)
    /* The address of this lane's row for ldmatrix: 8 lanes for each of 4 matrices of 8 x 8. */
    const uint a_row = A_ALONG_K ? warp_m * 64 + lane % 16 : lane % 8 + lane / 16 * 8;
    const uint b_row = B_ALONG_K ? warp_n * 32 + lane % 8 + lane / 16 * 8 : lane % 16;
    uint stage = 0, filled = STAGES - 1;
    for (uint s = 0; s < steps; s++) {
        CLT_COPY_WAIT(1);
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint at = stage * STAGE;
        COPY_STEP(filled * STAGE, s + STAGES - 1)
        MULTIPLY_STEP(acc, at)
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        filled = filled == STAGES - 1 ? 0 : filled + 1;
    }
    CLT_COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);

    const clt_gemm_ep ep = CLT_EP_INIT;
    const bool quads = clt_ep_quads(&ep, n);
    __local float *const out = (__local float *)local_memory;
    /* The loop is not unrolled, so that the epilogue's code exists once. */
    _Pragma("nounroll") for (int part = 0; part < PARTS; part++)
    {
        LEAVE_PART(out, acc, part)
        barrier(CLK_LOCAL_MEM_FENCE);
        finish_part(&ep, quads, out, part, lid, m0, n0, m, n);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#include "gemm_add.clh"
