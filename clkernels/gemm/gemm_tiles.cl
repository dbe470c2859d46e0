/* gemm_tiles: GEMM for large GPUs, computed in fp32: large tiles, vector loads, two stages of local memory.
 *
 * A group computes BM x BN outputs in steps of BK along k. 32 consecutive work-items (a warp where there are
 * warps; nothing depends on it) own 4 * TM rows x 8 * TN columns, each TM x TN of them in blocks of 4 x 4. In
 * every step they read 4 consecutive float4 of a's tile and 8 of b's. Items are assigned so that neighbours
 * (lane xor 1; for a also xor 2) read the same address: NVIDIA's local memory then serves half a warp at once
 * instead of a quarter. While a stage is used, the next step's elements are loaded into registers; they are
 * then stored, transposed where k is contiguous in memory, into the other stage: one barrier per step. With
 * COPY, fp32 operands that need no transpose are copied there directly. Groups process tiles in bands of 8
 * rows of tiles, so that groups running at the same time share operands in the cache. Results go through
 * local memory, so that rows of c are written whole.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DBM -DBN -DBK -DTM -DTN   tile; BK 8 or 16, TM and TN multiples of 4, BM of 4 * TM, BN of 8 * TN,
 *                              BM * BK and BN * BK of 4 * WG, where WG = BM / TM * BN / TN
 *   -DSLICES=1                 TN: one group of k_group rows per get_group_id(2), each into separate m x n
 *                              outputs, one slice after the other in c; gemm_add adds them
 *   -DCOPY=1                   asynchronous copies (cp.async, NVIDIA's sm_80 and later)
 *   -DACT -DGRAD_ACT -DIN_TYPE -DC_TYPE -DAUX_TYPE   gemm_epilogue.clh
 *
 * Order (docs/numerics.md, GEMM): one chain over k ascending from +0 per output; TN: one chain per group of
 * k_group rows, its result added to the sum in c. Reads beyond an edge repeat the edge or give zero; they
 * enter no chain that is stored. k is never padded.
 *
 * Launch: global {ceil(n / BN) * WG, ceil(m / BM), slices}, local {WG, 1, 1}.
 * Requires: offsets and row distances of a and b are multiples of 4. */
#include "gemm_epilogue.clh"
#ifndef COPY
#define COPY 0
#endif
#if COPY
#include "../include/clt_ptx.clh"
#endif

#ifndef FORM
#define FORM 0
#endif
#ifndef BM
#define BM 128
#define BN 128
#define BK 8
#define TM 8
#define TN 8
#endif
#ifndef SLICES
#define SLICES 0
#endif

#define WG ((BM / TM) * (BN / TN))
#define LDA_TILE (BM + 4)
#define LDB_TILE (BN + 4)
#define A_STAGE (BK * LDA_TILE)
#define B_STAGE (BK * LDB_TILE)
#define STAGE (A_STAGE + B_STAGE)
#define A_EACH (BM * BK / 4 / WG) /* float4 per work-item and step */
#define B_EACH (BN * BK / 4 / WG)
#if (BK != 8 && BK != 16) || TM % 4 || TN % 4 || BM % (4 * TM) || BN % (8 * TN) || A_EACH * 4 * WG != BM * BK ||          \
    B_EACH * 4 * WG != BN * BK
#error "BK is 8 or 16, BM a multiple of 4 TM, BN of 8 TN, and each item fetches as many float4 of both tiles as any other"
#endif

#define A_ALONG_K (FORM != 2) /* consecutive elements in memory are consecutive along k */
#define B_ALONG_K (FORM == 0)

/* The place of a tile's float4 number e: along m or n, and along k. */
#define PLACE(e, along_k, width) ((along_k) ? (e) / (BK / 4) : (e) % ((width) / 4) * 4)
#define STEP(e, along_k, width) ((along_k) ? (e) % (BK / 4) * 4 : (e) / ((width) / 4))

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#define QUAD(p) CLT_EP_LOAD_QUAD(IN_TYPE, p)

/* Operands with the same layout in memory and in a tile need not pass through registers. */
#define COPY_A (COPY && IN_TYPE == 0 && !A_ALONG_K)
#define COPY_B (COPY_A && !B_ALONG_K)
#if COPY
#define COPY_TILE(tile, ldt, each, at, width)                                                                \
    EACH(f, each)                                                                                            \
    {                                                                                                        \
        const int e = lid + f * WG;                                                                          \
        CLT_COPY16(CLT_COPY_PLACE(tile + STEP(e, 0, width) * ldt + PLACE(e, 0, width)), at[f]);              \
    }
#define COPIED()                                                                                             \
    do {                                                                                                     \
        CLT_COPY_COMMIT();                                                                                   \
        CLT_COPY_WAIT(0);                                                                                    \
    } while (0)
#else
#define COPY_TILE(tile, ldt, each, at, width)
#define COPIED()
#endif

/* This item's elements of a step's tiles from a_at and b_at: FETCH loads them into registers or starts copies
 * to `stage`, PUT completes them in `stage`. */
#define FETCH(stage)                                                                                         \
    if (COPY_A) {                                                                                            \
        COPY_TILE((a_tile + (stage)), LDA_TILE, A_EACH, a_at, BM)                                            \
    } else {                                                                                                 \
        EACH(f, A_EACH) ra[f] = QUAD(a_at[f]);                                                               \
    }                                                                                                        \
    if (COPY_B) {                                                                                            \
        COPY_TILE((b_tile + (stage)), LDB_TILE, B_EACH, b_at, BN)                                            \
    } else {                                                                                                 \
        EACH(f, B_EACH) rb[f] = QUAD(b_at[f]);                                                               \
    }
#define PUT(stage)                                                                                           \
    if (!COPY_A) STORE_TILE((a_tile + (stage)), LDA_TILE, ra, A_EACH, A_ALONG_K, BM)                         \
    if (!COPY_B) STORE_TILE((b_tile + (stage)), LDB_TILE, rb, B_EACH, B_ALONG_K, BN)                         \
    if (COPY_A || COPY_B) COPIED();
#define ADVANCE(at, each, step) EACH(f, each) at[f] += step;
#define STORE_TILE(tile, ldt, reg, each, along_k, width)                                                     \
    EACH(f, each)                                                                                            \
    {                                                                                                        \
        const int e = lid + f * WG;                                                                          \
        __local float *to = tile + STEP(e, along_k, width) * ldt + PLACE(e, along_k, width);                 \
        if (along_k) {                                                                                       \
            to[0] = reg[f].x;                                                                                \
            to[ldt] = reg[f].y;                                                                              \
            to[2 * ldt] = reg[f].z;                                                                          \
            to[3 * ldt] = reg[f].w;                                                                          \
        } else {                                                                                             \
            *(__local float4 *)to = reg[f];                                                                  \
        }                                                                                                    \
    }

/* The last steps, fewer than BK: element by element. */
#define STORE_REST(tile, ldt, src, ld, along_k, width, first, limit)                                         \
    for (int e = lid; e < (width) * BK; e += WG) {                                                           \
        const int place = (along_k) ? e / BK : e % (width), step = (along_k) ? e % BK : e / (width);         \
        const uint at = min(first + (uint)place, limit - 1);                                                 \
        if (step < rest)                                                                                     \
            tile[step * ldt + place] = CLT_LOAD(                                                             \
                IN_TYPE, src + ((along_k) ? (size_t)at * ld + k0 + step : (size_t)(k0 + step) * ld + at));  \
    }

/* The operands of one step along k, from local memory; and acc += that step. */
#define TAKE(av, bv, a_now, b_now, kk)                                                                       \
    EACH(i, TM / 4) vstore4(*(__local const float4 *)(a_now + (kk) * LDA_TILE + 16 * i), i, av);             \
    EACH(j, TN / 4) vstore4(*(__local const float4 *)(b_now + (kk) * LDB_TILE + 32 * j), j, bv);
/* Every other row backwards: consecutive fma then share a register, which is read once. */
#define TURN(i, j) ((i) % 2 ? TN - 1 - (j) : (j))
#define MULTIPLY(av, bv)                                                                                     \
    EACH(i, TM) EACH(j, TN) acc[i][TURN(i, j)] = fma(av[i], bv[TURN(i, j)], acc[i][TURN(i, j)]);

/* Outputs leave in TM / 2 parts, each with two rows of every item. */
#define PART_ROWS (2 * BM / TM)
#define PART_QUADS (PART_ROWS * BN / 4 / WG)
/* Quad q of a part: its place in the tile, and its values. */
#define PART_I(q) (2 * part + (q) / (BN / 4) % 2)
#define PART_ROW(q) ((q) / (BN / 4) / 8 * (4 * TM) + PART_I(q) / 4 * 16 + (q) / (BN / 4) % 8 / 2 * 4 + PART_I(q) % 4)
#define PART_COLUMN(q) ((q) % (BN / 4) * 4)
#define PART(q) (*(__local const float4 *)(local_memory + (q) * 4))
#define SUM_AT(q) (ep.c + (size_t)(m0 + PART_ROW(q)) * ep.ldc + n0 + PART_COLUMN(q))

#define STAGES_SIZE (2 * STAGE)
#define PART_SIZE (PART_ROWS * BN)

/* --- parts of the kernel: the macros use its variables by name --- */

/* The addresses of this item's elements in the first step's tile of an operand. */
#define PLACES(at, each, src, ld, along_k, width, first, limit)                                              \
    EACH(f, each)                                                                                            \
    {                                                                                                        \
        const int e = lid + f * WG;                                                                          \
        const uint line = first + PLACE(e, along_k, width), step = STEP(e, along_k, width);                  \
        at[f] = src + (along_k ? min(line, limit - 1) * ld + step : step * ld + (line < limit ? line : 0));  \
    }

/* Fills stage 0 and takes the operands of its first step along k. */
#define BEGIN_STEPS                                                                                          \
    {                                                                                                        \
        FETCH(0)                                                                                             \
        PUT(0)                                                                                               \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        TAKE(av[0], bv[0], a_mine, b_mine, 0)                                                                \
    }

/* All steps of BK along k. The last one loads its own elements again without using them, so that no step has
 * branches or predicates. */
#if COPY_B
/* Nothing passes through registers: a round is two steps of k, and the stage changes every BK / 2 rounds. The
 * other forms are faster written out. */
#define ALL_STEPS                                                                                            \
    __local const float *a_now = a_mine, *b_now = b_mine;                                                    \
    _Pragma("nounroll") for (int round = 0; round < steps * (BK / 2); round++)                               \
    {                                                                                                        \
        const int next = STAGE - now;                                                                        \
        if (round % (BK / 2) == 0) {                                                                         \
            const bool last = round == (steps - 1) * (BK / 2);                                               \
            ADVANCE(a_at, A_EACH, (last ? 0 : a_step))                                                       \
            ADVANCE(b_at, B_EACH, (last ? 0 : b_step))                                                       \
            FETCH(next)                                                                                      \
        }                                                                                                    \
        TAKE(av[1], bv[1], a_now, b_now, 1)                                                                  \
        MULTIPLY(av[0], bv[0])                                                                               \
        a_now += 2 * LDA_TILE;                                                                               \
        b_now += 2 * LDB_TILE;                                                                               \
        if (round % (BK / 2) == BK / 2 - 1) {                                                                \
            PUT(next)                                                                                        \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                    \
            a_now = a_mine + next;                                                                           \
            b_now = b_mine + next;                                                                           \
            now = next;                                                                                      \
        }                                                                                                    \
        TAKE(av[0], bv[0], a_now, b_now, 0)                                                                  \
        MULTIPLY(av[1], bv[1])                                                                               \
    }
#else
#define ALL_STEPS                                                                                            \
    for (int s = 1; s <= steps; s++) {                                                                       \
        const int next = STAGE - now;                                                                        \
        ADVANCE(a_at, A_EACH, (s < steps ? a_step : 0))                                                      \
        ADVANCE(b_at, B_EACH, (s < steps ? b_step : 0))                                                      \
        FETCH(next)                                                                                          \
        EACH(kk, BK - 1)                                                                                     \
        {                                                                                                    \
            TAKE(av[(kk + 1) % 2], bv[(kk + 1) % 2], (a_mine + now), (b_mine + now), kk + 1)                 \
            MULTIPLY(av[kk % 2], bv[kk % 2])                                                                 \
        }                                                                                                    \
        PUT(next)                                                                                            \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        TAKE(av[0], bv[0], (a_mine + next), (b_mine + next), 0)                                              \
        MULTIPLY(av[1], bv[1])                                                                               \
        now = next;                                                                                          \
    }
#endif

/* After ALL_STEPS: the addresses of the elements that follow. */
#define END_STEPS                                                                                            \
    {                                                                                                        \
        ADVANCE(a_at, A_EACH, a_step)                                                                        \
        ADVANCE(b_at, B_EACH, b_step)                                                                        \
        barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the unused step after the last one */           \
    }

/* The last `rest` steps along k, fewer than BK. */
#define REST_STEPS                                                                                           \
    {                                                                                                        \
        const uint k0 = k_start + steps * BK;                                                                \
        STORE_REST(a_tile, LDA_TILE, a, lda, A_ALONG_K, BM, m0, m)                                           \
        STORE_REST(b_tile, LDB_TILE, b, ldb, B_ALONG_K, BN, n0, n)                                           \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        for (int kk = 0; kk < rest; kk++) {                                                                  \
            TAKE(av[0], bv[0], a_mine, b_mine, kk)                                                           \
            MULTIPLY(av[0], bv[0])                                                                           \
        }                                                                                                    \
        ADVANCE(a_at, A_EACH, (A_ALONG_K ? rest : rest * lda))                                               \
        ADVANCE(b_at, B_EACH, (B_ALONG_K ? rest : rest * ldb))                                               \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
    }

/* This item's two rows of the part, from `acc` to local memory. */
#define GATHER_PART                                                                                          \
    {                                                                                                        \
        __local float *mine = local_memory + (row_in_tile / (4 * TM) * 8 + lane_m * 2) * BN + column_in_tile;\
        EACH(i, TM)                                                                                          \
        if (i / 2 == part)                                                                                   \
            EACH(j, TN / 4) *(__local float4 *)(mine + i % 2 * BN + 32 * j) = vload4(j, acc[i]);             \
    }

/* The part from local memory to c: STORE_SUMS adds a whole one to weight gradients in fp32 and loads all old
 * sums before it uses the first; STORE_QUADS stores any part through the epilogue. */
#define STORE_SUMS                                                                                           \
    {                                                                                                        \
        float4 old[PART_QUADS];                                                                              \
        if (ep.flags & CLT_EP_ACCUMULATE)                                                                    \
            EACH(f, PART_QUADS) old[f] = CLT_EP_QUAD(0, SUM_AT(lid + f * WG));                               \
        else                                                                                                 \
            EACH(f, PART_QUADS) old[f] = (float4)(0.0f);                                                     \
        EACH(f, PART_QUADS) CLT_EP_QUAD(0, SUM_AT(lid + f * WG)) = old[f] + PART(lid + f * WG);              \
    }
#define STORE_QUADS                                                                                          \
    _Pragma("nounroll") for (int q = lid; q < PART_ROWS * BN / 4; q += WG)                                   \
    {                                                                                                        \
        const uint row = m0 + PART_ROW(q), column = n0 + PART_COLUMN(q);                                     \
        if (row >= m || column >= n) continue;                                                               \
        if (quads)                                                                                           \
            clt_ep_quad(&ep, PART(q), row, column);                                                          \
        else                                                                                                 \
            clt_ep_part(&ep, PART(q), row, column, min(n - column, 4u));                                     \
    }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
gemm(uint m, uint n, uint k, uint k_group, __global const clt_gemm_in *a, ulong a_off, ulong lda,
     __global const clt_gemm_in *b, ulong b_off, ulong ldb, CLT_EP_ARGS)
{
    __local float local_memory[STAGES_SIZE > PART_SIZE ? STAGES_SIZE : PART_SIZE] __attribute__((aligned(16)));
    __local float *const a_tile = local_memory, *const b_tile = local_memory + A_STAGE;
    const int lid = (int)get_local_id(0), warp = lid / 32, lane_m = lid % 2 + lid % 32 / 16 * 2,
              lane_n = lid % 16 / 2;
    const int row_in_tile = warp % (BM / (4 * TM)) * (4 * TM) + lane_m * 4;
    const int column_in_tile = warp / (BM / (4 * TM)) * (8 * TN) + lane_n * 4;
    __local const float *const a_mine = a_tile + row_in_tile, *const b_mine = b_tile + column_in_tile;
    const uint columns = get_num_groups(0), rows = get_num_groups(1);
    const uint number = get_group_id(1) * columns + get_group_id(0), band = number / (8 * columns) * 8;
    const uint band_rows = min(rows - band, 8u), inside = number - band * columns;
    const uint m0 = (band + inside % band_rows) * BM, n0 = inside / band_rows * BN;
    a += a_off;
    b += b_off;
#if SLICES
    a += get_group_id(2) * k_group * lda;
    b += get_group_id(2) * k_group * ldb;
    c += get_group_id(2) * (size_t)m * n;
    k = k_group;
#endif
    __global const clt_gemm_in *a_at[A_EACH], *b_at[B_EACH];
    PLACES(a_at, A_EACH, a, lda, A_ALONG_K, BM, m0, m)
    PLACES(b_at, B_EACH, b, ldb, B_ALONG_K, BN, n0, n)
    const size_t a_step = A_ALONG_K ? BK : BK * lda, b_step = B_ALONG_K ? BK : BK * ldb;
    /* A float4 that crosses the edge ends in the gap between two rows; after the last row there may be no
     * memory. */
    const uint cut = ((A_ALONG_K ? 0 : m) | (B_ALONG_K ? 0 : n)) % 4 != 0;
    const int steps = (int)((k_group - cut) / BK), rest = (int)(k_group - steps * BK);

    for (uint k_start = 0; k_start < k; k_start += k_group) {
        float acc[TM][TN];
        float4 ra[A_EACH], rb[B_EACH];
        EACH(i, TM) EACH(j, TN) acc[i][j] = 0.0f;
        float av[2][TM], bv[2][TN];
        if (steps) BEGIN_STEPS
        int now = 0; /* the stage in use */
        ALL_STEPS
        if (steps) END_STEPS
        if (rest) REST_STEPS
        clt_gemm_ep ep = CLT_EP_INIT;
#if FORM == 2
        ep.flags = k_start > 0 ? CLT_EP_ACCUMULATE : flags | CLT_EP_ZERO;
#endif
        const bool quads = clt_ep_quads(&ep, n), whole = m0 + BM <= m && n0 + BN <= n;
        /* The loop is not unrolled, so that the epilogue's code exists once. */
        _Pragma("nounroll") for (int part = 0; part < TM / 2; part++)
        {
            GATHER_PART
            barrier(CLK_LOCAL_MEM_FENCE);
            if (FORM == 2 && C_TYPE == 0 && quads && whole)
                STORE_SUMS
            else
                STORE_QUADS
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
}

#include "gemm_add.clh"
