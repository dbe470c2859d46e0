/* The backward pass of attention on Hopper's matrix unit, for 16-bit tensors. README.md is the definition;
 * here sums are added in another order, probabilities and ds are rounded to 16 bits before they are
 * multiplied, and exp is the device's.
 *
 *   attention_prepare   delta[i] = dout . o, and the row statistics as the other kernels need them: stats[b,
 *                       h, 0 or 1, i], i < ceil128(T): lse * log2(e) (+inf beyond T), delta (+0 beyond T)
 *   attention_keys      dk, dv: a warpgroup owns 64 keys and processes the queries that see them
 *   attention_queries   dq: a warpgroup owns 64 queries and processes their keys
 *   attention_kept      dq, with KEEP_DS instead of attention_queries (attention_wgmma_kept.clh)
 *
 * attention_keys and attention_queries each recompute the scores: seven products for a pair of blocks where a
 * single pass needs five. With KEEP_DS attention_keys writes ds, and attention_kept multiplies it by k: five
 * products, but 16 bits of memory for each pair. Therefore the heads are processed in as few parts as that
 * memory allows. In both cases no sum is shared between work-groups, so every run gives the same bits in any
 * order of work-groups.
 *
 * attention_keys and attention_queries are one text (attention_wgmma_body.clh). A work-group is 384
 * work-items: one loads tiles through the copy engine, and two warpgroups have 64 rows each. Work-groups are
 * persistent and take items of 128 rows from a counter of the launch (zeroed by attention_prepare), the
 * longest first; as many are launched as the device runs at once.
 *
 * Launch: attention_prepare local {256}, global {256 * ceil128(T) / (256 / LANES), H, B}; the others local
 * {384}, global {384 * work-groups}.
 * Requires: wgmma and tensor maps (runtime/device/clt_ptx.h, clt_tensor_map.h); HEAD_DIM 64, 80, 96 or 128,
 * with KEEP_DS 64 or 128, and a dq whose start and row distance are multiples of 16 bytes.
 *
 * Options: HEAD_DIM, TYPE (1 bf16, 2 fp16), CAUSAL, SOFTCAP, SEQ_IDS, and with CAUSAL ALIBI, WINDOW,
 * KEEP_DS. For tuning: KEY_SPAN, QUERY_SPAN: rows of a block of the other side (64, 128); KEY_STAGES, QUERY_STAGES: blocks in flight;
 * KEY_REGS, QUERY_REGS: the owned rows' tiles are in registers (1) or in local memory (0); LATE_SCORES:
 * attention_keys starts the scores of the next block after the sums of this one (1: fewer registers) or
 * before them (0); TAKE_TURNS: the warpgroups issue products in turns.
 *
 * Limits: seq_ids and slopes as in the definition, no dropout. Within a block of 64 keys and queries a value
 * that is not finite affects pairs that do not exist (0 * NaN). */
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#ifndef TYPE
#define TYPE 1
#endif
#ifndef CAUSAL
#define CAUSAL 1
#endif
#ifndef ALIBI
#define ALIBI 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef KEEP_DS
#define KEEP_DS 0
#endif
#ifndef SEQ_IDS
#define SEQ_IDS 0
#endif
#ifndef KEY_SPAN
#define KEY_SPAN 64
#endif
#ifndef KEY_STAGES
#define KEY_STAGES (HEAD_DIM == 64 ? 5 : KEEP_DS ? 4 : 3)
#endif
#ifndef KEY_REGS
#define KEY_REGS (HEAD_DIM == 64)
#endif
#ifndef QUERY_SPAN
#if HEAD_DIM > 64
#define QUERY_SPAN 64
#else
#define QUERY_SPAN 128
#endif
#endif
#ifndef QUERY_STAGES
#define QUERY_STAGES (HEAD_DIM > 64 ? 3 : 4)
#endif
#ifndef QUERY_REGS
#define QUERY_REGS 0
#endif
#ifndef TAKE_TURNS
#define TAKE_TURNS (HEAD_DIM > 96)
#endif
#ifndef LATE_SCORES
#define LATE_SCORES (HEAD_DIM > 96)
#endif
#if HEAD_DIM != 64 && HEAD_DIM != 80 && HEAD_DIM != 96 && HEAD_DIM != 128
#error "HEAD_DIM is 64, 80, 96 or 128"
#endif
#if !CAUSAL && (ALIBI || WINDOW || KEEP_DS)
#error "ALiBi, windows and KEEP_DS need the causal mask"
#endif

#if TYPE == 2
#define CLT_MMA_TYPE "f16"
#define PACK "cvt.rn.f16x2.f32"
#else
#define CLT_MMA_TYPE "bf16"
#define PACK "cvt.rn.bf16x2.f32"
#endif
#include "../include/clt_hopper_rows.clh"

#define LOG2E 1.44269504088896340736f
#define ROWS 128                      /* rows of an item, 64 per warpgroup */
#define HALVES ((HEAD_DIM + 63) / 64) /* tiles of 64 columns side by side */
#define DEPTH (HEAD_DIM / 16)         /* steps along k over a head */
#define X_TILE (ROWS * 128)           /* bytes */
#define X_BYTES (HALVES * X_TILE)
#define SUMS (HEAD_DIM / 2) /* a work-item's part of 64 x HEAD_DIM sums */
#define WARPS 8             /* of both warpgroups */

#define TURNS 4             /* items whose place is known; more than the distance between warpgroups */

/* --- small parts --- */

/* Two floats to a pair of elements; the first is the lower half. */
static inline uint pack2(float lo, float hi) {
    uint r;
    __asm__(PACK " %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
static inline float2 unpack2(uint u) {
#if TYPE == 2
    float lo, hi;
    __asm__("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
            : "=f"(lo), "=f"(hi)
            : "r"(u));
    return (float2)(lo, hi);
#else
    return (float2)(as_float(u << 16), as_float(u & 0xffff0000u));
#endif
}
static inline float exp2_fast(float x) {
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* tanh to a few ulps of 1: 1 - 2 / (1 + e^2x). */
static inline float tanh_fast(float x) {
    float r, d = 1.0f + exp2_fast(x * (2.0f * LOG2E));
    __asm__("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return fma(-2.0f, r, 1.0f);
}
static inline float minus_inf(void) {
    return as_float(0xff800000u);
}
/* The left operand of 16 k from a swizzled tile, rows from 16 * warp. */
static inline void load_operand(uint *a, uint tile, uint k, uint lane) {
    uint row = (lane & 7) + (lane & 8), chunk = (2 * k + (lane >> 4)) ^ (row & 7);
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"(tile + row * 128 + chunk * 16)
                     : "memory");
}

/* An item: 128 rows of one head of one sample. The heads of a launch are divided into sections whose data
 * fits the cache; in a section the items come in descending length. */
typedef struct {
    uint b, h, row;
} item_place;
static inline item_place item_at(uint item, uint heads, uint first_unit, uint units, uint blocks, uint section,
                                 bool last_first) {
    uint s = item / (section * blocks), r = item - s * section * blocks;
    uint width = min(section, units - s * section), rank = r / width, unit = first_unit + s * section + r % width;
    item_place p;
    p.b = unit / heads;
    p.h = unit % heads;
    p.row = (last_first ? blocks - 1 - rank : rank) * ROWS;
    return p;
}

/* After the statistics: the next item of each of the following launches. */
#define LAUNCHES 8
#define COUNTERS(stats, batch, heads, padded) ((__global uint *)((stats) + (size_t)(batch) * (heads) * 2 * (padded)))

/* --- statistics of the rows --- */

#define LANES (HEAD_DIM > 64 ? 16 : 8) /* work-items of a row, 8 elements each */

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
attention_prepare(__global const ushort *dout, ulong dout_off, uint lddout, __global const ushort *o, ulong o_off,
                  uint ldo, __global const float *lse, ulong lse_off, __global float *stats, uint seq, uint heads) {
    uint t = get_local_id(0), lane = t % LANES, i = get_group_id(0) * (256 / LANES) + t / LANES;
    size_t h = get_group_id(1), b = get_group_id(2), padded = get_num_groups(0) * (256 / LANES);
    float sum = 0.0f;
    if (i < seq && lane * 8 < HEAD_DIM) {
        size_t at = h * HEAD_DIM + lane * 8;
        uint4 x = *(__global const uint4 *)(dout + dout_off + (b * seq + i) * lddout + at);
        uint4 y = *(__global const uint4 *)(o + o_off + (b * seq + i) * ldo + at);
        float2 p = unpack2(x.x) * unpack2(y.x) + unpack2(x.y) * unpack2(y.y) + unpack2(x.z) * unpack2(y.z) +
                   unpack2(x.w) * unpack2(y.w);
        sum = p.x + p.y;
    }
    for (uint step = LANES / 2; step > 0; step /= 2) {
        float other;
        __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(other) : "f"(sum), "r"(step));
        sum += other;
    }
    if (lane == 0) {
        __global float *s = stats + (b * heads + h) * 2 * padded + i;
        s[0] = i < seq ? lse[lse_off + (b * heads + h) * seq + i] * LOG2E : -minus_inf();
        s[padded] = sum;
    }
    if (t < LAUNCHES && get_group_id(0) + h + b == 0) COUNTERS(stats, get_num_groups(2), heads, padded)[t] = 0;
}

/* --- the products --- */

/* slopes: ALiBi of the query head in units of log2; seq_ids: of a sample. */
#define KERNEL_ARGS                                                                                                   \
    __global const ulong *q_map, ulong q_map_off, __global const ulong *k_map, ulong k_map_off,                       \
        __global const ulong *v_map, ulong v_map_off, __global const ulong *dout_map, ulong dout_map_off,             \
        __global float *stats, __global const float *slopes, ulong slopes_off,                                        \
        __global const int *seq_ids, ulong seq_ids_off, uint batch, uint seq, uint heads, uint group, float scale,    \
        float softcap, uint window, uint section, uint first_unit, uint units, uint launch

/* --- ds that is kept --- */

/* ds of 64 queries and 64 keys, 16 bits each. A query head has a block for each pair of blocks on and below
 * the diagonal. A block is the left operand of attention_kept's products: matrices of 8 keys x 8 queries, 16
 * bytes per key; eight of them for the first 8 keys, then those of the next keys. */
#define DS_BYTES 8192
#define DS_PART (DS_BYTES / 4) /* a warp's part: 16 keys */
#define DS_OPERAND(address) CLT_TILE_PLAIN_MN(address, 1024, 128)
#define DS_BLOCKS(tiles) ((tiles) * ((tiles) + 1) / 2)
#define DS_AT(head, query_tile, key_tile) ((head) * DS_BLOCKS((seq + 63) / 64) + DS_BLOCKS(query_tile) + (key_tile))

/* Rows row and row + 8 of a warpgroup's sums times `scale`: stored, or added to the stored values. */
static inline void store_pairs(const float *sum, float scale, __global ushort *out, uint ld, uint row, uint rows,
                              bool add) {
#pragma unroll
    for (int side = 0; side < 2; side++) {
        __global uint *to = (__global uint *)(out + (size_t)(row + 8 * side) * ld);
        if (row + 8 * side < rows)
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 8; j++) {
                float2 v = (float2)(sum[4 * j + 2 * side], sum[4 * j + 2 * side + 1]) * scale;
                if (add) v += unpack2(to[4 * j]);
                to[4 * j] = pack2(v.x, v.y);
            }
    }
}

#define KEYS 1
#include "attention_wgmma_body.clh"
#undef KEYS
#if KEEP_DS
#include "attention_wgmma_kept.clh"
#else
#define KEYS 0
#include "attention_wgmma_body.clh"
#endif
