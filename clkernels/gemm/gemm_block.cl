/* gemm_block: GEMM for GPUs whose sub-groups of 16 read consecutive elements with one message (the extension
 * cl_intel_subgroups), computed in fp32.
 *
 * A group computes BM x BN outputs. Each of its sub-groups owns 8 rows x 32 columns of them (TN: 16 x 16); an
 * item owns the outputs of all rows in two columns, 16 apart (TN: in one). Block reads load operands directly
 * from memory: along k 16 steps at once, along m or n 16 or 32 elements at once. All items need every value
 * of a: it is broadcast from a known lane, which such GPUs do as part of reading a register. Only b of form
 * NT, which is contiguous along k but needed along n, is transposed, in two stages of local memory with one
 * barrier per 16 steps.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DBM -DBN       tile: multiples of 16 and 32, BM at most 64
 *   -DTM=8 -DTN=2   outputs of an item
 *   -DACT -DGRAD_ACT -DIN_TYPE -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh
 *
 * Order (docs/numerics.md, GEMM): one chain over k ascending from +0 per output; TN: one chain per group of
 * k_group rows, its result added to the sum in c. Reads beyond an edge repeat the edge or give +0; they enter
 * no chain that is stored. k is never padded.
 *
 * Launch: global {ceil(n / BN) * WG, ceil(m / BM)}, local {WG, 1}.
 * Requires: block reads in sub-groups of 16; rows of a and b start at multiples of 4 bytes. */
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#pragma OPENCL EXTENSION cl_intel_subgroups_short : enable
#include "gemm_epilogue.clh"

#ifndef FORM
#define FORM 0
#endif
#ifndef BM
#define BM 64
#define BN 64
#define TM 8
#define TN 2
#endif
#if TM != 8 || TN != 2 || BM % 16 || BN % 32 || BM > 64
#error "gemm_block: items own 8 x 2 outputs of BM x BN, multiples of 16 and 32, BM at most 64"
#endif
#define LANES 16 /* rows of a sub-group; steps along k held in registers at once */
#if FORM == 2
#define ROWS 16 /* columns of a sub-group, and their vectors */
#define VECTORS 1
#else
#define ROWS TM
#define VECTORS TN
#endif
#define COLUMNS (VECTORS * LANES)
#define WG ((BM / TM) * (BN / TN))
#define B_ROWS (BN * LANES / WG) /* NT: rows of b that a sub-group loads */
#define LDB_TILE (BN + 4)
#define B_STAGE (LANES * LDB_TILE)

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

/* 16 consecutive elements, one per item (`lane`); if fewer are `left`, the others are +0. BLOCK2: each item
 * also gets its element of the next 16. */
#if IN_TYPE == 0
#define BLOCK(p) as_float(intel_sub_group_block_read((__global const uint *)(p)))
#define BLOCK2(p) as_float2(intel_sub_group_block_read2((__global const uint *)(p)))
#else
static inline float2 widen2(ushort2 s)
{
    return (float2)(CLT_WIDEN(IN_TYPE, s.x), CLT_WIDEN(IN_TYPE, s.y));
}
#define BLOCK(p) CLT_WIDEN(IN_TYPE, intel_sub_group_block_read_us(p))
#define BLOCK2(p) widen2(intel_sub_group_block_read_us2(p))
#endif
#define PART(p, left) (lane < (left) ? CLT_LOAD(IN_TYPE, (p) + lane) : 0.0f)

/* acc += a step along k; a_of(i): row i's element of a */
#define MULTIPLY(a_of)                                                                                       \
    EACH(i, ROWS) EACH(j, VECTORS) acc[i][j] = fma(a_of(i), bv[j], acc[i][j]);
#define A_ROW(i) (a + (size_t)min(i, last_row) * lda + k0)
#define A_ALONG(i) sub_group_broadcast(av, i)
#define A_ALONE(i) CLT_LOAD(IN_TYPE, A_ROW(i))

/* Steps k0 + kk of 16. Written out: in a loop that stays a loop, compilers select lanes at run time. */
#if FORM == 2
#define STEP(kk)                                                                                             \
    {                                                                                                        \
        const float av = BLOCK(a + (at_a + (kk) * lda)), bv[1] = {BLOCK(b + (at_b + (kk) * ldb))};           \
        MULTIPLY(A_ALONG)                                                                                    \
    }
#else
#if FORM == 1
#define TWO_VECTORS(kk) BLOCK2(b + (at_b + (kk) * ldb))
#else
#define TWO_VECTORS(kk) (float2)(mine[(kk) * LDB_TILE], mine[(kk) * LDB_TILE + LANES])
#endif
#define STEP(kk)                                                                                             \
    {                                                                                                        \
        const float2 bv = TWO_VECTORS(kk);                                                                   \
        EACH(i, ROWS)                                                                                        \
        {                                                                                                    \
            const float x = sub_group_broadcast(av[i], kk);                                                  \
            acc[i][0] = fma(x, bv.x, acc[i][0]);                                                             \
            acc[i][1] = fma(x, bv.y, acc[i][1]);                                                             \
        }                                                                                                    \
    }
#endif
#define STEPS4(kk) STEP(kk) STEP((kk) + 1) STEP((kk) + 2) STEP((kk) + 3)

/* NT: loads the sub-group's rows of b, 16 steps from k_from, if all exist; TURN transposes them into the
 * stage of step k0, `mine`. */
#define FETCH(k_from)                                                                                        \
    if ((k_from) + LANES <= k) EACH(r, B_ROWS) fetched[r] = BLOCK(b_rows + (size_t)min(r, last_b) * ldb + (k_from));
#define TURN                                                                                                 \
    mine = local_memory + k0 / LANES % 2 * B_STAGE;                                                          \
    EACH(r, B_ROWS / 4)                                                                                      \
    vstore4((float4)(fetched[4 * r], fetched[4 * r + 1], fetched[4 * r + 2], fetched[4 * r + 3]), 0,         \
            mine + lane * LDB_TILE + sub * B_ROWS + 4 * r);                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                            \
    mine += sub / (BM / ROWS) * COLUMNS + lane;

/* By form. LOAD_STEPS: the operands of the 16 steps from k0, except those that STEP loads itself. EDGE_STEP:
 * step k0 alone, with the checks of an edge. ADVANCE: the addresses of the steps after these. */
#define LOAD_A(av)                                                                                           \
    float av[ROWS];                                                                                          \
    EACH(i, ROWS) av[i] = BLOCK(A_ROW(i));
#if FORM == 0
#define LOAD_STEPS                                                                                           \
    TURN                                                                                                     \
    FETCH(k0 + LANES)                                                                                        \
    LOAD_A(av)
#define EDGE_STEP                                                                                            \
    EACH(j, VECTORS)                                                                                         \
    bv[j] = CLT_LOAD(IN_TYPE, b + (size_t)min(n0 + j * LANES + lane, n - 1) * ldb + k0);                     \
    MULTIPLY(A_ALONE)
#define ADVANCE(steps)
#elif FORM == 1
#define LOAD_STEPS LOAD_A(av)
#define EDGE_STEP                                                                                            \
    EACH(j, VECTORS) bv[j] = PART(b + (at_b + j * LANES), n_left - j * LANES);                               \
    MULTIPLY(A_ALONE)
#define ADVANCE(steps) at_b += (steps)*ldb;
#else
#define LOAD_STEPS
#define EDGE_STEP                                                                                            \
    const float av = PART(a + at_a, m_left);                                                                 \
    EACH(j, VECTORS) bv[j] = PART(b + (at_b + j * LANES), n_left - j * LANES);                               \
    MULTIPLY(A_ALONG)
#define ADVANCE(steps)                                                                                       \
    at_b += (steps)*ldb;                                                                                     \
    at_a += (steps)*lda;
#endif

/* The group's tile of sums from local memory to c. first: no sum of an earlier group of k is in c. */
static inline void store_tile(__local const float *tile, const clt_gemm_ep *ep, uint m, uint n, bool first)
{
    for (uint e = (uint)get_local_id(0); e < BM * BN; e += WG) {
        const uint row = get_group_id(1) * BM + e / BN, column = get_group_id(0) * BN + e % BN;
        if (row >= m || column >= n) continue;
#if FORM == 2
        __global clt_gemm_out *sum = ep->c + (size_t)row * ep->ldc + column;
        const float before = !first || (ep->flags & CLT_EP_ACCUMULATE) ? CLT_LOAD(C_TYPE, sum) : 0.0f;
        CLT_STORE(C_TYPE, before + tile[e], sum);
#else
        clt_ep_scalar(ep, tile[e], row, column);
#endif
    }
}

__attribute__((intel_reqd_sub_group_size(LANES))) __attribute__((reqd_work_group_size(WG, 1, 1))) __kernel void
gemm(uint m, uint n, uint k, uint k_group, __global const clt_gemm_in *a, ulong a_off, ulong lda,
     __global const clt_gemm_in *b, ulong b_off, ulong ldb, CLT_EP_ARGS)
{
    __local float local_memory[BM * BN > 2 * B_STAGE ? BM * BN : 2 * B_STAGE];
    const int lane = (int)get_sub_group_local_id(), sub = (int)get_sub_group_id();
    const uint m0 = get_group_id(1) * BM + sub % (BM / ROWS) * ROWS;
    const uint n0 = get_group_id(0) * BN + sub / (BM / ROWS) * COLUMNS;
    const int m_left = (int)min(m - min(m0, m), (uint)ROWS), n_left = (int)min(n - min(n0, n), (uint)COLUMNS);
    __local float *const own = local_memory + sub % (BM / ROWS) * ROWS * BN + sub / (BM / ROWS) * COLUMNS + lane;
    const clt_gemm_ep ep = CLT_EP_INIT;
#if FORM == 2
    const bool whole = m_left == ROWS && n_left == COLUMNS;
    size_t at_a = a_off + m0, at_b = b_off + n0; /* at step k0 */
#else
    const int last_row = max(m_left - 1, 0);
    a += a_off + (size_t)min(m0, m - 1) * lda;
#if FORM == 1
    const bool whole = n_left == COLUMNS;
    size_t at_b = b_off + n0; /* at step k0 */
#else
    __local float *mine;
    const bool whole = true;
    const uint b_row = min((uint)(get_group_id(0) * BN + sub * B_ROWS), n - 1);
    const int last_b = (int)min(n - 1 - b_row, (uint)B_ROWS);
    float fetched[B_ROWS];
    b += b_off;
    __global const clt_gemm_in *const b_rows = b + (size_t)b_row * ldb;
    FETCH(0)
#endif
#endif

    for (uint k_start = 0; k_start < k; k_start += k_group) {
        const uint k_end = k_start + k_group, k_whole = whole ? k_end - k_group % LANES : k_start;
        float acc[ROWS][VECTORS];
        uint k0 = k_start;
        EACH(i, ROWS) EACH(j, VECTORS) acc[i][j] = 0.0f;
        for (; k0 < k_whole; k0 += LANES) {
            LOAD_STEPS
            STEPS4(0) STEPS4(4) STEPS4(8) STEPS4(12)
            ADVANCE(LANES)
        }
        /* The last steps, or a tile at an edge: one step at a time. */
        _Pragma("nounroll") for (; k0 < k_end; k0++)
        {
            float bv[VECTORS];
            EDGE_STEP
            ADVANCE(1)
        }
        /* Results go through local memory, because sums and the addresses of an epilogue do not fit in
         * registers together. */
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH(i, ROWS) EACH(j, VECTORS) own[i * BN + j * LANES] = acc[i][j];
        barrier(CLK_LOCAL_MEM_FENCE);
        store_tile(local_memory, &ep, m, n, k_start == 0);
    }
}
