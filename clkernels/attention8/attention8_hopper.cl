/* Attention forward in 8-bit blocks on Hopper's matrix units (README.md is the definition), causal or, without ALiBi
 * and window, of every pair.
 *
 * A work-group is one producer warpgroup, of which two work-items load tiles through the copy engine, and WGS
 * consumer warpgroups of 64 query rows each. It computes every get_num_groups-th tile of 64 * WGS rows. Tiles go
 * head by head, with the longest first in even heads and last in odd ones, which gives work-groups equal shares of
 * many tiles and reads a head's keys from the cache; or, with few heads, the longest of all heads first, each second
 * round of tiles in reverse order of the work-groups, which gives equal shares of few tiles. For each block of 64
 * keys, ascending: products, softmax and rounding in registers, and the exact sums of weights and values, which join
 * the output by one fma. The products of the next block and the sums of this one are in flight together. q has two
 * places, so that the next tile's q is loaded in time. Warpgroups take turns at the matrix unit, so that one's
 * softmax overlaps another's products. Rows of k hold numbers times their scales; scales of v come with the keys.
 *
 * What lies beyond row T is 0 (numbers) or undefined (scales), and belongs to pairs that do not exist.
 *
 * Requires: wgmma, tensor maps of the whole numbers of q, k and v as {PITCH8, T, heads * B} with boxes {64, 64 *
 * WGS or 64, 1}, swizzle 128.
 * Launch: local {128 * (WGS + 1)}, global {any number of groups, at most one per tile, * local}.
 * Argument longest: 1: the longest tiles of all heads first.
 * Options: HEAD_DIM (up to 128), WGS (2, 3), STAGES (of k and of v), TYPE, ALIBI, SOFTCAP, WINDOW, SEQ_IDS. */
#include "attention8_hopper.clh"

#ifndef WGS
#define WGS 2
#endif
#ifndef STAGES
#define STAGES 4
#endif
#if DROPOUT || (!CAUSAL && (ALIBI || WINDOW))
#error "without dropout, and without ALiBi and window where every pair exists"
#endif
#define BM (64 * WGS)
#define ITEMS (128 * (WGS + 1))
#define Q_BYTES (BM * 128 * PARTS)
#define KV_BYTES (64 * 128 * PARTS)
#define SCALE_BYTES 256 /* of 64 rows */
#if WGS == 3
#define REGISTERS_CONSUMER 152
#define REGISTERS_PRODUCER 56
#elif PARTS == 1
#define REGISTERS_CONSUMER 232
#define REGISTERS_PRODUCER 40
#else /* the last ones pay: exponentials then overlap */
#define REGISTERS_CONSUMER 240
#define REGISTERS_PRODUCER 24
#endif

/* Tile number t: its head (of all samples), its first row, and the blocks of keys [first, end) of its rows. */
typedef struct {
    uint head, row, first, end;
} tile;
INLINE uint end_block(uint row, uint rows, uint seq) {
    return ((CAUSAL ? min(row + rows, seq) : seq) + 63) / 64;
}
/* The number of the work-group's tile in a round of tiles; from the last round on it may be one too large. */
INLINE uint number_of(uint round, bool longest) {
    const uint g = get_group_id(0), n = get_num_groups(0);
    return round * n + (longest && (round & 1) ? n - 1 - g : g);
}
INLINE tile tile_of(uint t, uint row_tiles, uint all_heads, bool longest, uint seq, uint window) {
    tile x;
    uint level;
    if (longest) {
        level = t / all_heads;
        x.head = t - level * all_heads;
    } else {
        x.head = t / row_tiles;
        level = t - x.head * row_tiles;
        if (x.head & 1) level = row_tiles - 1 - level;
    }
    x.row = (row_tiles - 1 - level) * BM;
#if WINDOW
    x.first = (x.row - min(x.row, window)) / 64;
#else
    x.first = 0;
#endif
    x.end = end_block(x.row, BM, seq);
    return x;
}

/* Advances the place in a ring of STAGES. */
#define STEP(stage, parity)                                                                                  \
    if (++stage == STAGES) {                                                                                 \
        stage = 0;                                                                                           \
        parity ^= 1;                                                                                         \
    }

/* Addresses in local memory. A barrier has 16 bytes: full, and 8 bytes later empty. */
typedef struct {
    uint q, k, v, scales, q_bar, k_bar, v_bar;
} places;

/* The loads of a work-group, in the order in which the consumers need them: q and k with the scales of v by one
 * work-item, v by another one (values: a constant), because one has not enough registers for both. */
INLINE void produce(const bool values, const places *at, ulong q_map, ulong kv_map, __global const float *vs, uint seq,
                    uint group, uint all_heads, uint window, bool longest) {
    const uint row_tiles = (seq + BM - 1) / BM, buffers = values ? at->v : at->k, bars = values ? at->v_bar : at->k_bar;
    uint stage = 0, parity = 1;
    if (!values) CLT_MAP_ACQUIRE(q_map);
    CLT_MAP_ACQUIRE(kv_map);
    for (uint round = 0, t; (t = number_of(round, longest)) < row_tiles * all_heads; round++) {
        const tile x = tile_of(t, row_tiles, all_heads, longest, seq, window);
        const uint slot = round & 1, q_bar = at->q_bar + slot * 16, g = x.head / group;
        if (!values) {
            CLT_BAR_WAIT(q_bar + 8, (round / 2 & 1) ^ 1);
            CLT_BAR_EXPECT(q_bar, Q_BYTES);
#pragma unroll
            for (int d = 0; d < PARTS; d++)
                CLT_TMA_LOAD3(at->q + slot * Q_BYTES + d * BM * 128, q_map, d * 64, x.row, x.head, q_bar);
        }
        for (uint j = x.first; j < x.end; j++) {
            const uint to = buffers + stage * KV_BYTES, bar = bars + stage * 16;
            CLT_BAR_WAIT(bar + 8, parity);
            CLT_BAR_EXPECT(bar, KV_BYTES + (values ? 0 : SCALE_BYTES));
#pragma unroll
            for (int d = 0; d < PARTS; d++) CLT_TMA_LOAD3(to + d * 8192, kv_map, d * 64, j * 64, g, bar);
            if (!values)
                CLT_BULK_LOAD(at->scales + stage * SCALE_BYTES, (ulong)(vs + (ulong)g * ROWS8(seq) + j * 64), SCALE_BYTES,
                              bar);
            STEP(stage, parity);
        }
    }
}

#define TURN_WAIT(w) CLT_GROUP_SYNC(4 + (w), 256)
#define TURN_PASS(w) CLT_GROUP_ARRIVE(4 + ((w) + 1 == WGS ? 0 : (w) + 1), 256)

/* What the softmax of two rows uses. i: the first row (the second is 8 below); c: the item's first column. */
typedef struct {
    float factor0, factor1; /* score_factor of the rows */
    float softcap, slope;
    int i, c, window;
    __global const int *ids;
    int2 row_ids;
    uint seq;
} rows_in;
typedef struct {
    float2 m, l;
} rows_state;

/* Whether the pair of element x exists; `ahead`: column minus row of element 0; left: T minus its column. */
INLINE bool exists(int x, int ahead, int left, int window) {
    const int c = x / 4 * 8 + (x & 1), d = c - (x & 2) * 4;
#if !CAUSAL
    return left > c;
#elif WINDOW
    return ahead <= -d && ahead + d >= -window;
#else
    return ahead <= -d;
#endif
}

/* What pairs that do not exist get. */
INLINE void clear_missing(float *s, float none, const rows_in *in, int j0) {
    int ahead = j0 + in->c - in->i, left = (int)in->seq - j0 - in->c;
    __asm__ volatile("" : "+r"(ahead)); /* so that no block without such pairs compares anything */
    if (!CAUSAL) __asm__ volatile("" : "+r"(left));
#pragma unroll
    for (int x = 0; x < 32; x++) s[x] = exists(x, ahead, left, in->window) ? s[x] : none;
}

/* Products of block j0 to scores; -inf for pairs that do not exist (edge: the block may have some). */
INLINE void score(float *s, const rows_in *in, int j0, bool edge) {
    const int ahead = j0 + in->c - in->i;
    const float start = (float)ahead; /* distances are exact in fp32 */
    float2 below = (float2)(start - 8.0f, start - 7.0f); /* distances of the second row */
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        float t;
        const float2 d = (float2)(start + (float)(x * 2), start + (float)(x * 2 + 1));
        s[x] = scored8(s[x], in->factor0, in->softcap, in->slope, d.x, &t);
        s[x + 1] = scored8(s[x + 1], in->factor0, in->softcap, in->slope, d.y, &t);
        s[x + 2] = scored8(s[x + 2], in->factor1, in->softcap, in->slope, below.x, &t);
        s[x + 3] = scored8(s[x + 3], in->factor1, in->softcap, in->slope, below.y, &t);
        below = d;
    }
#if SEQ_IDS
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        const uint j = (uint)(j0 + in->c + 2 * x);
        const int a = in->ids[min(j, in->seq - 1)], b = in->ids[min(j + 1, in->seq - 1)];
        s[x] = a == in->row_ids.x ? s[x] : -attention_inf();
        s[x + 1] = b == in->row_ids.x ? s[x + 1] : -attention_inf();
        s[x + 2] = a == in->row_ids.y ? s[x + 2] : -attention_inf();
        s[x + 3] = b == in->row_ids.y ? s[x + 3] : -attention_inf();
    }
#endif
    if (edge) clear_missing(s, -attention_inf(), in, j0);
}

/* The largest one of the item's 16 scores of a row, in four chains: the latency of one would be waited for. */
INLINE float largest_of_row(const float *s) {
    float n[4];
#pragma unroll
    for (int c = 0; c < 4; c++) n[c] = larger(s[8 * c], s[8 * c + 1]);
#pragma unroll
    for (int c = 0; c < 4; c++) n[c] = larger(larger(n[c], s[8 * c + 4]), s[8 * c + 5]);
    return larger(larger(n[0], n[1]), larger(n[2], n[3]));
}

/* Scores to weights, not rounded yet; updates m and l; returns the factors of the earlier sums. */
INLINE float2 soften(float *s, const rows_in *in, rows_state *r, uint scales, int j0, bool edge) {
    scales += 4 * (uint)in->c;
    __asm__ volatile("" : "+r"(scales)); /* one address for all columns */
    score(s, in, j0, edge);
    float2 n, ref, a;
    n.x = larger(r->m.x, largest_of_row(s));
    n.y = larger(r->m.y, largest_of_row(s + 2));
    n.x = larger(n.x, swap_float(n.x, 1));
    n.y = larger(n.y, swap_float(n.y, 1));
    n.x = larger(n.x, swap_float(n.x, 2));
    n.y = larger(n.y, swap_float(n.y, 2));
    ref.x = n.x == -attention_inf() ? 0.0f : n.x;
    ref.y = n.y == -attention_inf() ? 0.0f : n.y;
    a.x = exp2_8(r->m.x - ref.x);
    a.y = exp2_8(r->m.y - ref.y);
    r->m = n;
#pragma unroll
    for (int x = 0; x < 32; x++) s[x] = exp2_8(s[x] - (x & 2 ? ref.y : ref.x));
    const float2 sum = row_sums(s);
    r->l.x = fma(r->l.x, a.x, sum.x);
    r->l.y = fma(r->l.y, a.y, sum.y);
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        float v0, v1;
        CLT_LOAD_FLOAT2(v0, v1, scales + x * 8);
        s[x] = s[x] * v0;
        s[x + 1] = s[x + 1] * v1;
        s[x + 2] = s[x + 2] * v0;
        s[x + 3] = s[x + 3] * v1;
    }
    if (edge) clear_missing(s, 0.0f, in, j0);
    return a;
}

/* o = o * a + sum */
INLINE void join(float *o, float2 a, const float *sum) {
#pragma unroll
    for (int x = 0; x < WIDTH / 2; x++) o[x] = fma(o[x], x & 2 ? a.y : a.x, sum[x]);
}

INLINE void store_pair(__global ELEM *to, int column, float x, float y) {
#if HEAD_DIM % 8
    if (column >= HEAD_DIM) return;
#endif
    to[column] = PUT(x);
#if HEAD_DIM % 2
    if (column + 1 >= HEAD_DIM) return;
#endif
    to[column + 1] = PUT(y);
}

/* The output's rows leave in pieces through the place of the warpgroup's q, or (store_row) one element at a time. */
/* Row i of the output, if it exists: the item's pairs of o, 4 floats apart. */
INLINE void store_row(__global ELEM *to, int i, uint seq, int column, const float *o, float factor) {
    if ((uint)i >= seq) return;
#pragma unroll
    for (int e = 0; e < (HEAD_DIM + 7) / 8; e++)
        store_pair(to, 8 * e + column, o[4 * e] * factor, o[4 * e + 1] * factor);
}

/* --- the steps of the kernel, in its names --- */

/* Offsets and sizes as if each tile had its own: addresses made from them stay out of registers during the
 * blocks. */
#define OWN_VALUE(type, name, value)                                                                          \
    type name = value;                                                                                        \
    __asm__ volatile("" : "+l"(name))
#define OWN_WORD(name, value)                                                                                 \
    uint name = value;                                                                                        \
    __asm__ volatile("" : "+r"(name))

/* A barrier per buffer for its data, and one for the consumers that are done with it: one item of each warp, for v one
 * of a warpgroup. */
#define INIT_BARRIERS                                                                                         \
    if (get_local_id(0) == 0) {                                                                               \
        for (uint x = 0; x < 2 + 2 * STAGES; x++) {                                                           \
            CLT_BAR_INIT(at.q_bar + x * 16, 1);                                                               \
            CLT_BAR_INIT(at.q_bar + x * 16 + 8, x < 2 + STAGES ? 4 * WGS : WGS);                    \
        }                                                                                                     \
        CLT_BAR_READY();                                                                                      \
    }
#if ALIBI
#define TAKE_SLOPE in.slope = slopes[slopes_off + x.head % heads];
#else
#define TAKE_SLOPE in.slope = 0.0f;
#endif
#if SEQ_IDS
#define TAKE_IDS                                                                                             \
    in.ids = seq_ids + seq_ids_off + (ulong)(x.head / heads) * seq;                                               \
    in.row_ids.x = in.ids[min((uint)in.i, seq - 1)];                                                         \
    in.row_ids.y = in.ids[min((uint)in.i + 8, seq - 1)];
#else
#define TAKE_IDS
#endif
#define BEGIN_ROWS                                                                                            \
    in.i = (int)(row + item / 32 * 16 + item % 32 / 4);                                                       \
    OWN_VALUE(ulong, q_row, qs_off);                                                                          \
    q_row += x.head * ROWS8(seq);                                                                             \
    in.factor0 = score_factor(qs[q_row + min((uint)in.i, seq - 1)], scale);                                   \
    in.factor1 = score_factor(qs[q_row + min((uint)in.i + 8, seq - 1)], scale);                               \
    r.m = (float2)(-attention_inf(), -attention_inf());                                                       \
    r.l = (float2)(0.0f, 0.0f);                                                                               \
    TAKE_SLOPE                                                                                                \
    TAKE_IDS

#if !CAUSAL
#define AT_EDGE (j * 64 + 64 > seq)
#elif WINDOW
#define AT_EDGE (j * 64 + 63 > row || j * 64 + window < row + 63)
#else
#define AT_EDGE (j * 64 + 63 > row)
#endif
/* All items of a warp have read the scales. */
#define DONE_WITH_KEYS                                                                                        \
    CLT_WARP_SYNC();                                                                                          \
    if (item % 32 == 0) CLT_BAR_ARRIVE(at.k_bar + stage * 16 + 8);
#define SOFTEN                                                                                                \
    next = soften(s, &in, &r, at.scales + stage * SCALE_BYTES, (int)(j * 64), AT_EDGE);                       \
    DONE_WITH_KEYS                                                                                            \
    STEP(stage, parity);
#define DONE_WITH_VALUES                                                                                      \
    if (item == 0) CLT_BAR_ARRIVE(at.v_bar + v_stage * 16 + 8);                                               \
    STEP(v_stage, v_parity);

#define FIRST_BLOCK                                                                                           \
    CLT_BAR_WAIT(at.k_bar + stage * 16, parity);                                                              \
    CLT_MMA_FENCE();                                                                                          \
    PRODUCT(s, qw, BM, at.k + stage * KV_BYTES, 64)                                                           \
    CLT_MMA_COMMIT();                                                                                         \
    CLT_MMA_WAIT(64, 0, s);                                                                                   \
    SOFTEN                                                                                                    \
    pack_rows(true, p, s);
/* Products of a block while the values of the one before are added; then its softmax. */
#define NEXT_BLOCK                                                                                            \
    CLT_BAR_WAIT(at.k_bar + stage * 16, parity);                                                              \
    TURN_WAIT(w);                                                                                             \
    COMPLETE(16, "+r", p);                                                                                    \
    CLT_MMA_FENCE();                                                                                          \
    PRODUCT(s, qw, BM, at.k + stage * KV_BYTES, 64)                                                           \
    CLT_MMA_COMMIT();                                                                                         \
    CLT_BAR_WAIT(at.v_bar + v_stage * 16, v_parity);                                                          \
    CLT_MMA_FENCE(); /* the loop above would need one, which the assembler does not add where it diverges */   \
    ROW_SUMS(sum, p, at.v + v_stage * KV_BYTES, 64, 0)                                                           \
    CLT_MMA_COMMIT();                                                                                         \
    TURN_PASS(w);                                                                                             \
    CLT_MMA_WAIT(64, 1, s);                                                                                   \
    SOFTEN                                                                                                    \
    CLT_MMA_WAIT(WIDTH, 0, sum);                                                                              \
    DONE_WITH_VALUES                                                                                          \
    join(o, a, sum);                                                                                          \
    pack_rows(true, p, s);                                                                                          \
    a = next;
#define LAST_VALUES                                                                                           \
    CLT_BAR_WAIT(at.v_bar + v_stage * 16, v_parity);                                                          \
    COMPLETE(16, "+r", p);                                                                                    \
    CLT_MMA_FENCE();                                                                                          \
    ROW_SUMS(sum, p, at.v + v_stage * KV_BYTES, 64, 0)                                                           \
    CLT_MMA_COMMIT();                                                                                         \
    CLT_MMA_WAIT(WIDTH, 0, sum);                                                                              \
    DONE_WITH_VALUES                                                                                          \
    join(o, a, sum);
/* Releases the blocks after the last row of this warpgroup. */
#define SKIP_BLOCKS                                                                                           \
    for (; j < x.end; j++) {                                                                                  \
        CLT_BAR_WAIT(at.k_bar + stage * 16, parity);                                                          \
        DONE_WITH_KEYS                                                                                        \
        STEP(stage, parity);                                                                                  \
        TURN_WAIT(w);                                                                                         \
        TURN_PASS(w);                                                                                         \
        CLT_BAR_WAIT(at.v_bar + v_stage * 16, v_parity);                                                      \
        DONE_WITH_VALUES                                                                                      \
    }
#define STORE_TILE                                                                                            \
    const float2 inverse = (float2)(1.0f / r.l.x, 1.0f / r.l.y);                                              \
    OWN_VALUE(ulong, o_row, o_off);                                                                           \
    OWN_WORD(head, x.head);                                                                                   \
    const uint b = head / heads, h = head - b * heads;                                                        \
    OWN_VALUE(ulong, lse_row, lse_off);                                                                       \
    if (item % 4 == 0) {                                                                                      \
        __global float *stat = lse + lse_row + (ulong)x.head * seq + (uint)in.i;                              \
        if ((uint)in.i < seq) stat[0] = r.m.x + clt_log(r.l.x) * LOG2E;                                       \
        if ((uint)in.i + 8 < seq) stat[8] = r.m.y + clt_log(r.l.y) * LOG2E;                                   \
    }                                                                                                         \
    if (LEAVES_IN_PIECES(o_off, ldo)) {                                                                       \
        const uint item_now = own_item(), warp = item_now / 32, first = row + warp * 16;                      \
        CLT_GROUP_SYNC(1 + w, 128);                                                                           \
        clt_store_rows16(TYPE, HEAD_DIM, o, inverse, qw + warp * 2048, BM * 128,                              \
                         (__global ushort *)(o_to + o_row + ((ulong)b * seq + first) * ldo + h * HEAD_DIM),   \
                         ldo, seq - min(seq, first), item_now % 32);                                          \
        CLT_FENCE_ASYNC();                                                                                    \
        CLT_WARP_SYNC();                                                                                      \
    } else {                                                                                                  \
        __global ELEM *to = o_to + o_row + ((ulong)b * seq + (uint)in.i) * ldo + h * HEAD_DIM;                \
        store_row(to, in.i, seq, in.c, o, inverse.x);                                                         \
        store_row(to + 8 * (ulong)ldo, in.i + 8, seq, in.c, o + 2, inverse.y);                                \
    }                                                                                                         \
    if (item % 32 == 0) CLT_BAR_ARRIVE(at.q_bar + slot * 16 + 8);

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention8_forward_hopper(__global const ulong *maps, ulong q_at, ulong k_at, ulong v_at, __global const float *qs,
                         ulong qs_off, __global const float *vs, ulong vs_off,
                         __global const float *slopes, ulong slopes_off, __global const int *seq_ids,
                         ulong seq_ids_off, __global ELEM *o_to, ulong o_off, uint ldo, __global float *lse,
                         ulong lse_off, uint seq, uint heads, uint group, uint all_heads, float scale,
                         float softcap, uint window, uint longest) {
    __local uchar memory[2 * Q_BYTES + 2 * STAGES * KV_BYTES + STAGES * SCALE_BYTES]
        __attribute__((aligned(1024)));
    __local ulong bars[4 + 4 * STAGES] __attribute__((aligned(8)));
    places at;
    at.q = CLT_LOCAL_ADDRESS(memory), at.k = at.q + 2 * Q_BYTES, at.v = at.k + STAGES * KV_BYTES;
    at.scales = at.v + STAGES * KV_BYTES;
    at.q_bar = CLT_LOCAL_ADDRESS(bars), at.k_bar = at.q_bar + 32, at.v_bar = at.k_bar + 16 * STAGES;
    uint w = get_local_id(0) / 128, item = get_local_id(0) % 128;
    CLT_SHARED_BY(1);
    INIT_BARRIERS
    barrier(CLK_LOCAL_MEM_FENCE);
    CLT_LESS_FIRST();
    if (w == 0) {
        CLT_REGISTERS_LESS(REGISTERS_PRODUCER);
        if (item == 0)
            produce(false, &at, (ulong)(maps + q_at), (ulong)(maps + k_at), vs + vs_off, seq, group, all_heads, window,
                    longest);
        else if (item == 32)
            produce(true, &at, 0, (ulong)(maps + v_at), 0, seq, group, all_heads, window, longest);
    } else {
        CLT_REGISTERS_MORE(REGISTERS_CONSUMER);
        w--;
        const uint row_tiles = (seq + BM - 1) / BM;
        uint stage = 0, parity = 0, v_stage = 0, v_parity = 0, slot = 0, q_parity = 0;
        float s[32], sum[WIDTH / 2], o[WIDTH / 2];
        uint p[16];
        rows_in in;
        in.softcap = softcap, in.c = item % 4 * 2, in.window = (int)window, in.seq = seq;
        if (w == WGS - 1) TURN_PASS(w);
        for (uint round = 0, t; (t = number_of(round, longest)) < row_tiles * all_heads; round++) {
            const tile x = tile_of(t, row_tiles, all_heads, longest, seq, window);
            const uint row = x.row + 64 * w;
            const uint own = max(end_block(row, 64, seq), x.first + 1), qw = at.q + slot * Q_BYTES + w * 8192;
            uint j = x.first;
            rows_state r;
            float2 a, next;
            BEGIN_ROWS
            CLT_BAR_WAIT(at.q_bar + slot * 16, q_parity);
            FIRST_BLOCK
            a = next;
#pragma unroll
            for (int e = 0; e < WIDTH / 2; e++) o[e] = 0.0f;
            for (j++; j < own; j++) {
                NEXT_BLOCK
            }
            LAST_VALUES
            SKIP_BLOCKS
            STORE_TILE
            slot ^= 1;
            q_parity ^= slot ^ 1;
        }
    }
}
