/* Attention backward in 8-bit blocks on Hopper's matrix units (README.md is the definition), causal or, without ALiBi,
 * of every pair, without window, sequence ids, softcap and dropout: attention8_backward_kv_hopper for dk and dv,
 * attention8_backward_q_hopper for dq.
 *
 * A work-group owns 64 * WGS rows of a head: keys and their values, or queries and their gradients of the output. Its
 * consumer warpgroups have 64 of them each, and walk the blocks of 64 rows of the other kind, which a producer loads
 * through the copy engine with the blocks' scales and statistics: two products over the head, weights and ds in
 * registers, rounded per owned row, and their exact sums over the block. For dq the sums of a block are in flight
 * during the softmax of the next one; the registers do not hold as much for dk and dv.
 *
 * What lies beyond row T is 0 (numbers) or undefined (scales, statistics), and belongs to pairs that do not exist.
 *
 * The rows of v, and the owned ones of k, hold numbers times their scales.
 *
 * Requires: wgmma, tensor maps of whole numbers as {PITCH8, T, heads * B} with boxes {64, 64 * WGS, 1} of the owned
 * and {64, 64, 1} of the other rows, swizzle 128.
 * Launch: local {128 * (WGS + 1)}, global {a work-group per tile of each head (kv: key/value head)}. Work-groups start
 * in the order of their numbers: of `section` heads at a time the longest tiles first, so that few tiles end together.
 * Options: HEAD_DIM (up to 128), WGS (2, 3), STAGES, TYPE, ALIBI. */
#include "attention8_hopper.clh"

#ifndef STAGES
#define STAGES 4
#endif
#if DROPOUT || WINDOW || SEQ_IDS || SOFTCAP || (!CAUSAL && ALIBI)
#error "without window, sequence ids, softcap and dropout, and without ALiBi where every pair exists"
#endif
#ifndef WGS
#define WGS 2
#endif
#define BM (64 * WGS)
#define ITEMS (128 * (WGS + 1))
#define OWN_BYTES (BM * 128 * PARTS)
#define TILE_BYTES (64 * 128 * PARTS)
#define VECTORS 4 /* of 64 floats with each block: queries' scales, lse, scales of dout, D; or keys' and values' scales */
#define STAGE_BYTES (2 * TILE_BYTES + VECTORS * 256)
#if WGS == 3
#define REGISTERS_CONSUMER 152
#define REGISTERS_PRODUCER 56
#else
#define REGISTERS_CONSUMER 240
#define REGISTERS_PRODUCER 24
#endif

#define STEP(stage, parity)                                                                                  \
    if (++stage == STAGES) {                                                                                 \
        stage = 0;                                                                                           \
        parity ^= 1;                                                                                         \
    }
#define TURN_WAIT(w) CLT_GROUP_SYNC(4 + (w), 256)
#define TURN_PASS(w) CLT_GROUP_ARRIVE(4 + ((w) + 1 == WGS ? 0 : (w) + 1), 256)

/* Places of per-row numbers in one buffer, each [B, heads or key/value heads, ROWS8(T)]. */
typedef struct {
    __global const float *data;
    ulong qs, ks, outs, lse, delta;
} vectors;

/* Addresses in local memory, and what a work-group computes. `own`, `other`: number of the head among those of all
 * samples, of the owned rows and of the first head of the others; heads: how many of the others. */
typedef struct {
    uint own_at, stages, own_bar, bars;
    uint row, own, other, heads, first, end, seq;
} work;

#define EACH_BLOCK(t, h, i)                                                                                  \
    for (uint h = (t)->other; h < (t)->other + (t)->heads; h++)                                              \
        for (uint i = (t)->first; i < (t)->end; i++)

INLINE void produce(const bool kv, const work *t, const vectors *x, ulong own1, ulong own2, ulong map1, ulong map2) {
    uint stage = 0, parity = 1;
    CLT_MAP_ACQUIRE(own1);
    CLT_MAP_ACQUIRE(own2);
    CLT_MAP_ACQUIRE(map1);
    CLT_MAP_ACQUIRE(map2);
    CLT_BAR_EXPECT(t->own_bar, 2 * OWN_BYTES);
#pragma unroll
    for (int d = 0; d < PARTS; d++) {
        CLT_TMA_LOAD3(t->own_at + d * BM * 128, own1, d * 64, t->row, t->own, t->own_bar);
        CLT_TMA_LOAD3(t->own_at + OWN_BYTES + d * BM * 128, own2, d * 64, t->row, t->own, t->own_bar);
    }
    EACH_BLOCK(t, h, i) {
        const uint to = t->stages + stage * STAGE_BYTES, bar = t->bars + stage * 16, at = to + 2 * TILE_BYTES;
        const ulong row = h * ROWS8(t->seq) + i * 64;
        CLT_BAR_WAIT(bar + 8, parity);
        CLT_BAR_EXPECT(bar, 2 * TILE_BYTES + (kv ? 4 : 1) * 256);
#pragma unroll
        for (int d = 0; d < PARTS; d++) {
            CLT_TMA_LOAD3(to + d * 8192, map1, d * 64, i * 64, h, bar);
            CLT_TMA_LOAD3(to + TILE_BYTES + d * 8192, map2, d * 64, i * 64, h, bar);
        }
        CLT_BULK_LOAD(at, (ulong)(x->data + (kv ? x->qs : x->ks) + row), 256, bar);
        if (kv) {
            CLT_BULK_LOAD(at + 256, (ulong)(x->data + x->lse + row), 256, bar);
            CLT_BULK_LOAD(at + 512, (ulong)(x->data + x->outs + row), 256, bar);
            CLT_BULK_LOAD(at + 768, (ulong)(x->data + x->delta + row), 256, bar);
        }
        STEP(stage, parity);
    }
}

/* Of the item's two owned rows; queries: what weigh_q needs of them. */
typedef struct {
    float2 factor, out, lse, delta;
    float slope, start; /* start: (key - query) of element 0 and block 0 */
} own_rows;

/* Products to weights of keys. at: address of the block's vectors, of the item's first column; i0: first row of the
 * block. */
INLINE void weigh_kv(float *u, const own_rows *own, uint at, float block_start, float scale) {
    const float start = own->start - block_start; /* distances are exact in fp32 */
    float2 above = (float2)(start + 8.0f, start + 7.0f); /* of the second row */
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        float s[2], lse[2], t;
        CLT_LOAD_FLOAT2(s[0], s[1], at + x * 8);
        CLT_LOAD_FLOAT2(lse[0], lse[1], at + 256 + x * 8);
        const float2 d = (float2)(start - (float)(2 * x), start - (float)(2 * x + 1));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = e & 1;
            const float distance = e & 2 ? (c ? above.y : above.x) : (c ? d.y : d.x);
            const float factor = score_factor(s[c], scale);
            u[x + e] = exp2_8(scored8(u[x + e], factor, 0.0f, own->slope, distance, &t) - lse[c]);
        }
        above = d;
    }
}
/* Weights and products of keys to the numbers that are rounded: g becomes ds times the scale of the block's row, u the
 * weights times the scale of its gradient. */
INLINE void differentiate_kv(float *u, float *g, uint at) {
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        float s[2], out[2], delta[2];
        CLT_LOAD_FLOAT2(s[0], s[1], at + x * 8);
        CLT_LOAD_FLOAT2(out[0], out[1], at + 512 + x * 8);
        CLT_LOAD_FLOAT2(delta[0], delta[1], at + 768 + x * 8);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = e & 1;
            g[x + e] = u[x + e] * fma(g[x + e], out[c], -delta[c]) * s[c];
            u[x + e] = u[x + e] * out[c];
        }
    }
}
/* Products to ds times the scale of the key, in g, of queries. */
INLINE void weigh_q(float *u, float *g, const own_rows *own, uint at, float block_start) {
    const float start = own->start + block_start;
    float2 below = (float2)(start - 8.0f, start - 7.0f); /* distances of the second row */
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        float key[2], t;
        CLT_LOAD_FLOAT2(key[0], key[1], at + x * 8);
        const float2 d = (float2)(start + (float)(2 * x), start + (float)(2 * x + 1));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = e & 1;
            const float distance = e & 2 ? (c ? below.y : below.x) : (c ? d.y : d.x);
            const float factor = e & 2 ? own->factor.y : own->factor.x, lse = e & 2 ? own->lse.y : own->lse.x;
            const float out = e & 2 ? own->out.y : own->out.x, delta = e & 2 ? own->delta.y : own->delta.x;
            const float p = exp2_8(scored8(u[x + e] * key[c], factor, 0.0f, own->slope, distance, &t) - lse);
            g[x + e] = p * fma(g[x + e], out, -delta) * key[c];
        }
        below = d;
    }
}
/* 0 for pairs that do not exist. row, column: of element 0; kv: rows are keys. */
INLINE void clear_missing(const bool kv, float *x, int row, int column, int seq) {
    int ahead = column - row, left = seq - column;
    __asm__ volatile("" : "+r"(ahead), "+r"(left)); /* so that no block without such pairs compares anything */
#pragma unroll
    for (int e = 0; e < 32; e++) {
        const int c = e / 4 * 8 + (e & 1), d = c - (e & 2 ? 8 : 0);
        const bool exists = !CAUSAL ? left > c : kv ? ahead >= -d && left > c : ahead <= -d;
        x[e] = exists ? x[e] : 0.0f;
    }
}

/* acc += sum */
#define ADD_SUMS(acc) _Pragma("unroll") for (int e_ = 0; e_ < WIDTH / 2; e_++) acc[e_] = acc[e_] + sum[e_];

/* The item's elements of one owned row to a row of the tensor: acc[0], acc[1] of each 4. */
INLINE void store_row(__global ELEM *to, const float *acc, int column, float factor, bool add) {
#pragma unroll
    for (int e = 0; e < (HEAD_DIM + 7) / 8; e++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int at = 8 * e + column + c;
            if (HEAD_DIM % 8 == 0 || at < HEAD_DIM) {
                const float x = acc[4 * e + c] * factor;
                to[at] = PUT(add ? GET(to[at]) + x : x);
            }
        }
}

/* The item's first row, made where it is needed, too. */
INLINE uint own_row(uint first_row) {
    const uint item = own_item();
    return first_row + item / 32 * 16 + item % 32 / 4;
}
INLINE own_rows rows_of(const bool kv, const work *t, const vectors *x, uint i, uint c, float scale) {
    const ulong first = t->own * ROWS8(t->seq), a = first + min(i, t->seq - 1), b = first + min(i + 8, t->seq - 1);
    own_rows own;
    own.slope = 0.0f;
    if (kv) {
        own.start = (float)i - (float)c;
    } else {
        own.factor = (float2)(score_factor(x->data[x->qs + a], scale), score_factor(x->data[x->qs + b], scale));
        own.out = (float2)(x->data[x->outs + a], x->data[x->outs + b]);
        own.lse = (float2)(x->data[x->lse + a], x->data[x->lse + b]);
        own.delta = (float2)(x->data[x->delta + a], x->data[x->delta + b]);
        own.start = (float)c - (float)i;
    }
    return own;
}

/* Whether block i0 may have pairs that do not exist. */
#if CAUSAL
#define MAY_MISS(kv, i0, first_row) (kv ? i0 < first_row + 63 || i0 + 64 > seq : i0 + 63 > first_row)
#else
#define MAY_MISS(kv, i0, first_row) (i0 + 64 > seq)
#endif

/* --- the steps of the consumers of warpgroup w, in the kernels' names --- */

#define BEGIN_CONSUMER(kv)                                                                                    \
    const uint first_row = t.row + 64 * w, in_group = get_local_id(0) % 128, c = in_group % 4 * 2;            \
    const uint mine = t.own_at + w * 8192;                                                                    \
    uint stage = 0, parity = 0;                                                                               \
    float u[32], g[32];                                                                                       \
    uint pg[16];                                                                                              \
    own_rows own = rows_of(kv, &t, &x, own_row(first_row), c, scale);                                         \
    if (w == WGS - 1) TURN_PASS(w);                                                                           \
    CLT_BAR_WAIT(t.own_bar, 0);
#define STAGE_AT(stage) (t.stages + (stage)*STAGE_BYTES)
#define AWAIT_STAGE CLT_BAR_WAIT(t.bars + stage * 16, parity);
#define RELEASE(stage)                                                                                        \
    CLT_WARP_SYNC();                                                                                          \
    if (in_group % 32 == 0) CLT_BAR_ARRIVE(t.bars + (stage)*16 + 8);
/* The address of a block's vectors, of the item's first column: one for all columns. */
#define VECTORS_AT(name, at)                                                                                  \
    uint name = at + 2 * TILE_BYTES + 4 * c;                                                                  \
    __asm__ volatile("" : "+r"(name));
/* u and g of the block in this stage, step by step in turn. */
#define PRODUCTS(at)                                                                                          \
    {                                                                                                         \
        uint own_ = mine; /* so that its descriptors do not occupy registers during the loop */               \
        __asm__ volatile("" : "+r"(own_));                                                                    \
        CLT_MMA_FENCE();                                                                                      \
        _Pragma("unroll") for (int x_ = 0; x_ < DEPTH; x_++) {                                                \
            PRODUCT_STEP(x_, u, own_, BM, at, 64)                                                             \
            PRODUCT_STEP(x_, g, own_ + OWN_BYTES, BM, at + TILE_BYTES, 64)                                    \
        }                                                                                                     \
        CLT_MMA_COMMIT();                                                                                     \
    }

/* acc += w b, both sums of a block in the same registers, of which there are no more. */
#define SUM_ROWS_KV(acc, w, b)                                                                                \
    COMPLETE(16, "+r", w);                                                                                    \
    CLT_MMA_FENCE();                                                                                          \
    ROW_SUMS(sum, w, b, 64, none)                                                                             \
    CLT_MMA_COMMIT();                                                                                         \
    CLT_MMA_WAIT(WIDTH, 0, sum);                                                                              \
    ADD_SUMS(acc)
#define CONSUME_KV(acc_k, acc_v)                                                                              \
    BEGIN_CONSUMER(true)                                                                                      \
    float sum[WIDTH / 2];                                                                                     \
    uint pw[16], none = 0;                                                                                    \
    EACH_BLOCK(&t, h, i) {                                                                                    \
        const uint at = STAGE_AT(stage), i0 = i * 64;                                                         \
        AWAIT_STAGE                                                                                           \
        TURN_WAIT(w);                                                                                         \
        if (CAUSAL && i0 + 63 < first_row) {                                                                  \
            TURN_PASS(w);                                                                                     \
        } else {                                                                                              \
            own.slope = SLOPE8(h);                                                                            \
            PRODUCTS(at)                                                                                      \
            TURN_PASS(w);                                                                                     \
            CLT_MMA_WAIT(64, 0, u);                                                                           \
            COMPLETE(32, "+f", g);                                                                            \
            VECTORS_AT(vectors_at, at)                                                                        \
            weigh_kv(u, &own, vectors_at, (float)i0, scale);                                                  \
            differentiate_kv(u, g, vectors_at);                                                               \
            if (MAY_MISS(true, i0, first_row)) {                                                              \
                clear_missing(true, u, (int)own_row(first_row), (int)(i0 + c), (int)seq);                     \
                clear_missing(true, g, (int)own_row(first_row), (int)(i0 + c), (int)seq);                     \
            }                                                                                                 \
            pack_rows(true, pw, u);                                                                           \
            pack_rows(false, pg, g);                                                                          \
            SUM_ROWS_KV(acc_v, pw, at + TILE_BYTES)                                                           \
            SUM_ROWS_KV(acc_k, pg, at)                                                                        \
        }                                                                                                     \
        RELEASE(stage)                                                                                        \
        STEP(stage, parity);                                                                                  \
    }

/* Products to ds, not rounded yet. */
#define SOFTEN_Q(at)                                                                                          \
    {                                                                                                         \
        VECTORS_AT(vectors_at, at)                                                                            \
        weigh_q(u, g, &own, vectors_at, (float)(i * 64));                                                     \
        if (MAY_MISS(false, i * 64, first_row))                                                               \
            clear_missing(false, g, (int)own_row(first_row), (int)(i * 64 + c), (int)seq);                    \
    }
#define SUMS_Q(at)                                                                                            \
    CLT_MMA_FENCE();                                                                                          \
    ROW_SUMS(sum, pg, at, 64, 0)                                                                              \
    CLT_MMA_COMMIT();
#define JOIN_Q                                                                                                \
    CLT_MMA_WAIT(WIDTH, 0, sum);                                                                              \
    ADD_SUMS(acc)
/* The blocks that the warpgroup has no pairs of are the last ones. */
#define CONSUME_Q(acc)                                                                                        \
    BEGIN_CONSUMER(false)                                                                                     \
    float sum[WIDTH / 2];                                                                                     \
    const uint own_end = CAUSAL ? min(first_row / 64 + 1, t.end) : t.end;                                     \
    uint i = t.first, at = STAGE_AT(0);                                                                       \
    own.slope = SLOPE8(t.other);                                                                              \
    AWAIT_STAGE                                                                                               \
    PRODUCTS(at)                                                                                              \
    CLT_MMA_WAIT(64, 0, u);                                                                                   \
    COMPLETE(32, "+f", g);                                                                                    \
    SOFTEN_Q(at)                                                                                              \
    pack_rows(false, pg, g);                                                                                  \
    for (i++; i < own_end; i++) {                                                                             \
        const uint at_before = at, before = stage;                                                            \
        STEP(stage, parity);                                                                                  \
        at = STAGE_AT(stage);                                                                                 \
        AWAIT_STAGE                                                                                           \
        TURN_WAIT(w);                                                                                         \
        COMPLETE(16, "+r", pg);                                                                               \
        PRODUCTS(at)                                                                                          \
        SUMS_Q(at_before)                                                                                     \
        TURN_PASS(w);                                                                                         \
        CLT_MMA_WAIT(64, 1, u);                                                                               \
        COMPLETE(32, "+f", g);                                                                                \
        SOFTEN_Q(at)                                                                                          \
        JOIN_Q                                                                                                \
        RELEASE(before)                                                                                       \
        pack_rows(false, pg, g);                                                                              \
    }                                                                                                         \
    COMPLETE(16, "+r", pg);                                                                                   \
    SUMS_Q(at)                                                                                                \
    JOIN_Q                                                                                                    \
    RELEASE(stage)                                                                                            \
    for (; i < t.end; i++) {                                                                                  \
        STEP(stage, parity);                                                                                  \
        AWAIT_STAGE                                                                                           \
        TURN_WAIT(w);                                                                                         \
        TURN_PASS(w);                                                                                         \
        RELEASE(stage)                                                                                        \
    }

#if ALIBI
#define SLOPE8(h) slopes[slopes_off + (kv_pass ? (h) : t.own) % heads]
#else
#define SLOPE8(h) 0.0f
#endif

#define BACKWARD8_ARGS                                                                                       \
    __global const ulong *maps, ulong own1_at, ulong own2_at, ulong map1_at, ulong map2_at,                  \
        __global const float *data, ulong qs, ulong ks, ulong outs, ulong lse, ulong delta,                  \
        __global const float *slopes, ulong slopes_off, uint seq, uint heads, uint group, uint own_heads,      \
        uint all_heads, uint section, float scale

/* The start of the kernels: local memory, barriers, and the producer's part. kv: a constant. own_heads: heads of a sample
 * that own rows; all_heads: of all samples. */
#define BEGIN_BACKWARD(kv)                                                                                    \
    __local uchar memory[2 * OWN_BYTES + STAGES * STAGE_BYTES] __attribute__((aligned(1024)));                \
    __local ulong bar_words[2 + 2 * STAGES] __attribute__((aligned(8)));                                      \
    const bool kv_pass = kv;                                                                                  \
    const vectors x = {data, qs, ks, outs, lse, delta};                                                       \
    work t;                                                                                                   \
    t.own_at = CLT_LOCAL_ADDRESS(memory), t.stages = t.own_at + 2 * OWN_BYTES;                                \
    t.own_bar = CLT_LOCAL_ADDRESS(bar_words), t.bars = t.own_bar + 16;                                        \
    const uint tiles = (seq + BM - 1) / BM, first_head = get_group_id(0) / (tiles * section) * section;       \
    const uint in_section = get_group_id(0) - first_head * tiles, now = min(section, all_heads - first_head); \
    const uint level = in_section / now;                                                                      \
    t.seq = seq, t.own = first_head + in_section - level * now;                                               \
    t.row = (kv ? level : tiles - 1 - level) * BM;                                                            \
    t.other = kv ? t.own * group : t.own / group, t.heads = kv ? group : 1;                                   \
    t.first = kv && CAUSAL ? t.row / 64 : 0;                                                                  \
    t.end = ((kv || !CAUSAL ? seq : min(t.row + BM, seq)) + 63) / 64;                                         \
    uint w = get_local_id(0) / 128;                                                                           \
    if (get_local_id(0) == 0) {                                                                               \
        CLT_BAR_INIT(t.own_bar, 1);                                                                           \
        for (uint b = 0; b < STAGES; b++) {                                                                   \
            CLT_BAR_INIT(t.bars + b * 16, 1);                                                                 \
            CLT_BAR_INIT(t.bars + b * 16 + 8, 4 * WGS);                                                       \
        }                                                                                                     \
        CLT_BAR_READY();                                                                                      \
    }                                                                                                         \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                             \
    CLT_SHARED_BY(1);                                                                                         \
    CLT_LESS_FIRST();                                                                                         \
    if (w == 0) {                                                                                             \
        CLT_REGISTERS_LESS(REGISTERS_PRODUCER);                                                               \
        if (get_local_id(0) == 0)                                                                             \
            produce(kv, &t, &x, (ulong)(maps + own1_at), (ulong)(maps + own2_at), (ulong)(maps + map1_at),    \
                    (ulong)(maps + map2_at));                                                                 \
        return;                                                                                               \
    }                                                                                                         \
    CLT_REGISTERS_MORE(REGISTERS_CONSUMER);                                                                   \
    w--;

#define CLEAR_SUMS(acc) _Pragma("unroll") for (int e = 0; e < WIDTH / 2; e++) acc[e] = 0.0f;

/* Stores the owned rows of a tensor, through the place of owned rows at `area` that no product reads any more. */
#define STORE_ROWS(to, off, ld, acc, area, factor, add)                                                       \
    {                                                                                                         \
        const ulong b_ = t.own / own_heads, h_ = t.own % own_heads;                                           \
        if (LEAVES_IN_PIECES(off, ld) && !(add)) {                                                            \
            const uint item_ = own_item(), warp_ = item_ / 32, first_ = first_row + warp_ * 16;               \
            clt_store_rows16(TYPE, HEAD_DIM, acc, (float2)(factor, factor), area + warp_ * 2048, BM * 128,       \
                             (__global ushort *)(to + off + (b_ * seq + first_) * ld + h_ * HEAD_DIM), ld,    \
                             seq - min(seq, first_), item_ % 32);                                             \
        } else {                                                                                              \
            const uint r = own_row(first_row);                                                                \
            __global ELEM *row_ = to + off + (b_ * seq + r) * ld + h_ * HEAD_DIM;                             \
            if (r < seq) store_row(row_, acc, (int)c, factor, add);                                           \
            if (r + 8 < seq) store_row(row_ + 8 * (ulong)ld, acc + 2, (int)c, factor, add);                   \
        }                                                                                                     \
    }
/* Before rows are stored: all warps of the warpgroup have their sums. */
#define END_CONSUMER CLT_GROUP_SYNC(1 + w, 128);

#define KERNEL __kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void

KERNEL attention8_backward_kv_hopper(BACKWARD8_ARGS, __global ELEM *dk, ulong dk_off, uint lddk, __global ELEM *dv,
                                    ulong dv_off, uint lddv, uint add) {
    BEGIN_BACKWARD(true)
    float acc_k[WIDTH / 2], acc_v[WIDTH / 2];
    CLEAR_SUMS(acc_k)
    CLEAR_SUMS(acc_v)
    CONSUME_KV(acc_k, acc_v)
    END_CONSUMER
    STORE_ROWS(dk, dk_off, lddk, acc_k, mine, scale, add)
    STORE_ROWS(dv, dv_off, lddv, acc_v, mine + OWN_BYTES, 1.0f, add)
}
KERNEL attention8_backward_q_hopper(BACKWARD8_ARGS, __global ELEM *dq, ulong dq_off, uint lddq) {
    BEGIN_BACKWARD(false)
    float acc[WIDTH / 2];
    CLEAR_SUMS(acc)
    CONSUME_Q(acc)
    END_CONSUMER
    STORE_ROWS(dq, dq_off, lddq, acc, mine, scale, false)
}
