/* gemm_mma: GEMM of 16-bit matrices on NVIDIA's matrix units from sm_80 on: mma.sync by warps, operands
 * loaded to local memory by asynchronous copies, STAGES steps in flight. With -DTURING=1 from sm_75 on: fp16,
 * copies that are finished at once, two stages.
 *
 * A tile is BM x BN outputs in steps of BK along k, a warp computes 64 x 64 of them (gemm_mma.clh): with less,
 * reading operands from local memory takes longer than the products (TURING: 64 x 32). A warp loads the operands of
 * the next 16 along k while it multiplies those of the last. A tile of an operand has the same layout in local as in
 * global memory. If memory is not contiguous along k, ldmatrix transposes the tile.
 *
 *   -DFORM=0 NT c = a[m,k] b[n,k]^T   1 NN c = a[m,k] b[k,n]   2 TN c = a[k,m]^T b[k,n]
 *   -DIN_TYPE=1 bf16, 2 fp16; -DC_TYPE -DAUX_TYPE -DACT -DGRAD_ACT   gemm_epilogue.clh
 *   -DSLICES=1                 k_group rows per get_group_id(2), each into separate m x n outputs
 *                              (gemm_add.clh)
 *   -DBM -DBN -DSTAGES         gemm_mma.clh; BK: 32 or 64
 *
 * Order: the unit's inside a step of 16 along k, steps ascending, fp32 sums. For numerics fast. Elements
 * beyond an edge are zero: copies write zeros there and read nothing.
 *
 * Launch: local {WG, 1, 1}, WG = BM * BN / 128 (TURING: 64); global {ceil(n / BN) * WG, ceil(m / BM), slices}.
 * Requires: the instructions of ../include/clt_mma.clh; rows of a and b at multiples of 8 elements;
 * STAGES * (BM + BN) * BK * 2 bytes of local memory. */
#ifndef IN_TYPE
#define IN_TYPE 1
#endif
#ifndef BK
#define BK 32
#endif
#ifndef TURING
#define TURING 0
#endif
#if TURING /* other registers hold operands that are on their way */
#define WARP_N 32
#else
#define WARP_N 64
#endif
#define FAST 1
#define ROW_BYTES (2 * BK)
#include "../include/clt_mma.clh"
#include "gemm_epilogue.clh"
#include "gemm_mma.clh"

#ifndef FORM
#define FORM 0
#endif
#ifndef SLICES
#define SLICES 0
#endif

#define A_ALONG_K (FORM != 2) /* consecutive elements in memory are consecutive along k */
#define B_ALONG_K (FORM == 0)
#define HALVES (BK / 16) /* parts of a step, 16 along k */
/* CLT_COPY_WAIT takes a literal. */
#if STAGES != 3 && !(TURING && STAGES == 2)
#error "the next step is complete when one younger batch is left: three stages"
#endif
#define WAIT_FOR_NEXT() CLT_COPY_WAIT(1)

/* How an item copies an operand with `width` rows of m or n: of each row of the tile, in memory, UNITS_OF
 * units are copied by as many items, so that an item always has the same unit, of every ROWS_AT_ONCE-th row. */
#define UNITS_OF(along_k, width) ((along_k) ? BK / 8 : (width) / 8)
#define ROWS_AT_ONCE(along_k, width) (WG / UNITS_OF(along_k, width))
#define COPIES(width) ((width)*BK / 8 / WG)
#define PITCH(along_k, width) ((along_k) ? ROW_BYTES : 2 * (width)) /* bytes from row to row in local memory */
typedef struct {
    __global const ushort *from; /* the item's unit in the tile of the next step */
    ulong jump, step;            /* elements to its next unit; to the next step's */
    uint to;                     /* bytes from the tile's start */
    int rows, elements;          /* that exist from the unit on: in m or n, or along k, whichever runs there */
} operand;

/* first: the tile's first row of m or n, limit: how many of them exist; k_end: the same along k. */
static inline operand operand_init(__global const ushort *x, ulong ld, bool along_k, uint width, uint first,
                                   uint limit, uint k_end, uint lid)
{
    const uint units = along_k ? BK / 8 : width / 8, unit = lid % units, row = lid / units;
    operand p;
    p.jump = WG / units * ld;
    p.step = along_k ? BK : BK * ld;
    p.from = along_k ? x + (first + row) * ld + unit * 8 : x + row * ld + first + unit * 8;
    p.to = along_k ? BYTE_ALONG_K(row, unit) : row * 2 * width + ((unit ^ (row & 7)) << 4);
    p.rows = along_k ? (int)(limit - first - row) : (int)(k_end - row);
    p.elements = along_k ? (int)(k_end - unit * 8) : (int)(limit - first - unit * 8);
    return p;
}

/* Unit f of an operand: where it is stored, from the stage's start on, and how many of its bytes exist, `all` if its row
 * does. */
#define UNIT_PLACE(p, f, along_k, width) ((p).to + (f)*ROWS_AT_ONCE(along_k, width) * PITCH(along_k, width))
#define UNIT_BYTES(p, f, along_k, width, all) ((f) * (int)ROWS_AT_ONCE(along_k, width) < (p).rows ? (all) : 0)
#define ALL_BYTES(p) ((uint)clamp((p).elements, 0, 8) * 2)
#define ADVANCE(p, along_k)                                                                                  \
    (p).from += (p).step;                                                                                    \
    if (along_k) (p).elements -= BK;                                                                         \
    else (p).rows -= BK;
/* The operand's tile of the next step into the stage at byte `at`. */
#define COPY_OPERAND(p, at, along_k, width)                                                                  \
    {                                                                                                        \
        const uint all_ = ALL_BYTES(p);                                                                      \
        EACH(f, COPIES(width))                                                                               \
        CLT_COPY_UNIT((at) + UNIT_PLACE(p, f, along_k, width), (p).from + f * (p).jump,                      \
                      UNIT_BYTES(p, f, along_k, width, all_));                                               \
        ADVANCE(p, along_k)                                                                                  \
    }
#if TURING
/* The same by way of registers: an item loads units a whole step before it stores them. Units that the compiler knows to
 * be whole are loaded without a branch, one behind the other. */
#define FETCH_OPERAND(p, held, along_k, width)                                                               \
    {                                                                                                        \
        const uint all_ = ALL_BYTES(p);                                                                      \
        if (all_ % 16 == 0)                                                                                  \
            EACH(f, COPIES(width))                                                                           \
            held[f] = clt_mma_unit((p).from + f * (p).jump, UNIT_BYTES(p, f, along_k, width, all_ & 16));    \
        else                                                                                                 \
            EACH(f, COPIES(width))                                                                           \
            held[f] = clt_mma_unit((p).from + f * (p).jump, UNIT_BYTES(p, f, along_k, width, all_));         \
        ADVANCE(p, along_k)                                                                                  \
    }
#define PUT_OPERAND(p, held, at, along_k, width)                                                             \
    EACH(f, COPIES(width)) CLT_PUT_UNIT((at) + UNIT_PLACE(p, f, along_k, width), held[f]);
#define FETCH_STEP(s)                                                                                        \
    if ((s) < steps) {                                                                                       \
        FETCH_OPERAND(from_a, held_a, A_ALONG_K, BM)                                                         \
        FETCH_OPERAND(from_b, held_b, B_ALONG_K, BN)                                                         \
    }
#define HELD                                                                                                 \
    uint4 held_a[COPIES(BM)], held_b[COPIES(BN)];                                                            \
    FETCH_STEP(STAGES - 1)
#define NEXT_STEP(s, at)                                                                                     \
    if ((s) < steps) {                                                                                       \
        PUT_OPERAND(from_a, held_a, at, A_ALONG_K, BM)                                                       \
        PUT_OPERAND(from_b, held_b, (at) + A_TILE_BYTES, B_ALONG_K, BN)                                      \
    }                                                                                                        \
    FETCH_STEP((s) + 1)
#else
#define HELD
#define NEXT_STEP(s, at) COPY_STEP(at, s)
#endif

/* Step s of k, if there is one, into the stage at `at`. */
#define COPY_STEP(at, s)                                                                                     \
    {                                                                                                        \
        if ((s) < steps) {                                                                                   \
            COPY_OPERAND(from_a, at, A_ALONG_K, BM)                                                          \
            COPY_OPERAND(from_b, (at) + A_TILE_BYTES, B_ALONG_K, BN)                                         \
        }                                                                                                    \
        CLT_COPY_COMMIT();                                                                                   \
    }
/* The item's and the tile's place, again in each stretch, so that little of it occupies registers for long. */
#define TILE_PLACE                                                                                           \
    const uint lid = CLT_ANEW((uint)get_local_id(0)), lane = lid % 32, warp_m = lid / 32 / WARPS_N,          \
               warp_n = lid / 32 % WARPS_N;                                                                  \
    const uint2 first_ = first_output();                                                                     \
    const uint m0 = first_.x, n0 = first_.y;
#define OPERANDS                                                                                             \
    operand from_a = operand_init(a, lda, A_ALONG_K, BM, m0, m, k_end, lid);                                 \
    operand from_b = operand_init(b, ldb, B_ALONG_K, BN, n0, n, k_end, lid);
/* Starts to copy the first steps, into all stages but the last one, which is next. */
#define START                                                                                                \
    {                                                                                                        \
        TILE_PLACE                                                                                           \
        OPERANDS                                                                                             \
        EACH(s, STAGES - 1) COPY_STEP(s * STAGE, s)                                                          \
    }
/* An operand behind those steps. */
#define SKIP_STARTED(p, along_k)                                                                             \
    (p).from += (STAGES - 1) * (p).step;                                                                     \
    if (along_k) (p).elements -= (STAGES - 1) * BK;                                                          \
    else (p).rows -= (STAGES - 1) * BK;

/* 16 x 16 elements, number i of the warp's along m or n, part kk of the step; place: this lane's address for
 * the first of them. Units are turned within 8 rows, so a step of whole units is an exclusive or. */
#define LOAD_ALONG_K(r, place, i, kk) CLT_LDMATRIX(r, (i)*16 * ROW_BYTES + ((place) ^ (uint)(kk) << 5))
#define LOAD_ACROSS(r, place, i, kk, width)                                                                  \
    CLT_LDMATRIX_TURNED(r, (kk)*16 * 2 * (width) + ((place) ^ (uint)(i) << 5))
/* A warp's operands of part kk of the step in the stage at `at`: 64 rows of a, 64 columns of b. */
#define LOAD_OPERANDS(av, bv, at, kk)                                                                        \
    EACH(i, 4)                                                                                               \
    {                                                                                                        \
        if (A_ALONG_K) LOAD_ALONG_K(av[i], (at) + a_place, i, kk);                                           \
        else LOAD_ACROSS(av[i], (at) + a_place, i, kk, BM);                                                  \
    }                                                                                                        \
    EACH(j, WARP_N / 16)                                                                                     \
    {                                                                                                        \
        if (B_ALONG_K) LOAD_ALONG_K(bv[j], (at) + A_TILE_BYTES + b_place, j, kk);                            \
        else LOAD_ACROSS(bv[j], (at) + A_TILE_BYTES + b_place, j, kk, BN);                                   \
    }
/* acc = the products of all steps, after START. places: this lane's row for ldmatrix, 8 lanes for each of 4
 * matrices of 8 x 8. */
#define MULTIPLY(acc)                                                                                        \
    {                                                                                                        \
        TILE_PLACE                                                                                           \
        OPERANDS                                                                                             \
        SKIP_STARTED(from_a, A_ALONG_K)                                                                      \
        SKIP_STARTED(from_b, B_ALONG_K)                                                                      \
        const uint a_row = A_ALONG_K ? warp_m * 64 + lane % 16 : lane % 8 + lane / 16 * 8;                   \
        const uint a_place = A_ALONG_K ? BYTE_ALONG_K(a_row, lane / 16)                                      \
                                       : a_row * 2 * BM + warp_m * 128 + ((lane / 8 % 2 ^ (a_row & 7)) << 4); \
        const uint b_row = B_ALONG_K ? warp_n * WARP_N + lane % 8 + lane / 16 * 8 : lane % 16;               \
        const uint b_unit = warp_n * (WARP_N / 8) + lane / 16;                                               \
        const uint b_place = B_ALONG_K ? BYTE_ALONG_K(b_row, lane / 8 % 2)                                   \
                                       : b_row * 2 * BN + ((b_unit ^ (b_row & 7)) << 4);                     \
        EACH(i, 4) EACH(j, WARP_N / 8) EACH(t, 4) acc[i][j][t] = 0.0f;                                       \
        uint av[2][4][4], bv[2][WARP_N / 16][4], at = 0, free = (STAGES - 1) * STAGE;                        \
        HELD                                                                                                 \
        WAIT_FOR_NEXT();                                                                                     \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                        \
        LOAD_OPERANDS(av[0], bv[0], at, 0)                                                                   \
        for (uint s = 0; s < steps; s++) {                                                                   \
            EACH(kk, HALVES)                                                                                 \
            {                                                                                                \
                if (kk == HALVES - 1) {                                                                      \
                    WAIT_FOR_NEXT();                                                                         \
                    barrier(CLK_LOCAL_MEM_FENCE);                                                            \
                    free = at;                                                                               \
                    at = at == (STAGES - 1) * STAGE ? 0 : at + STAGE;                                        \
                }                                                                                            \
                LOAD_OPERANDS(av[(kk + 1) % 2], bv[(kk + 1) % 2], at, (kk + 1) % HALVES)                     \
                if (kk == 0) { NEXT_STEP(s + STAGES - 1, free) }                                             \
                EACH(i, 4) EACH(j, WARP_N / 8)                                                                      \
                CLT_MMA(IN_TYPE, acc[i][j], av[kk % 2][i], bv[kk % 2][j / 2][j % 2 * 2],                     \
                        bv[kk % 2][j / 2][j % 2 * 2 + 1]);                                                   \
            }                                                                                                \
        }                                                                                                    \
    }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
gemm(uint m, uint n, uint k, uint k_group, __global const ushort *a, ulong a_off, ulong lda,
     __global const ushort *b, ulong b_off, ulong ldb, CLT_EP_ARGS)
{
    __local float4 local_memory[STAGES * STAGE / 16] __attribute__((aligned(128)));
    CLT_MMA_LOCAL(local_memory, WG)
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
    const uint steps = (k_end + BK - 1) / BK;
    float acc[4][WARP_N / 8][4];
    START
    MULTIPLY(acc)
    TILE_PLACE
    const clt_gemm_ep ep = CLT_EP_INIT;
    FINISH_TILE(ep, acc)
}

#include "gemm_add.clh"
