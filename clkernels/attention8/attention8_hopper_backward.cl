/* Attention backward in 8-bit blocks on Hopper's matrix units (README.md is the definition), causal or, without ALiBi,
 * of every pair, without window, sequence ids, softcap and dropout: attention8_backward_kv_hopper for dk and dv,
 * attention8_backward_q_hopper for dq. The registers do not hold both sums of heads of more than 64 elements: attention8_backward_k_hopper and
 * attention8_backward_v_hopper compute dk and dv of those.
 *
 * A work-group owns 64 * WGS rows of a head: keys and their values, or queries and their gradients of the output. Its
 * consumer warpgroups have 64 of them each, and walk the blocks of 64 rows of the other kind, which a producer loads
 * through the copy engine with the blocks' scales and statistics: two products over the head, weights and ds in
 * registers, rounded per owned row, and their exact sums over the block, 64 columns of the head at a time.
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
#if WGS == 2
#define REGISTERS_CONSUMER 232
#define REGISTERS_PRODUCER 40
#else
#define REGISTERS_CONSUMER 152
#define REGISTERS_PRODUCER 56
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

/* Of the item's two owned rows; queries: what PAIR8 needs of them. */
typedef struct {
    float2 factor, out, lse, delta;
    float slope, start; /* start: (key - query) of element 0 and block 0 */
} own_rows;

/* From the products u and g of a pair to its weight and ds. */
#define PAIR8(u, g, key, factor, distance, lse, out, delta, weight, ds)                                       \
    {                                                                                                        \
        float t_;                                                                                            \
        const float p_ = exp2_8(scored8(u, key, factor, 0.0f, own->slope, distance, &t_) - (lse));           \
        weight = p_ * (out);                                                                                 \
        ds = p_ * fma(g, out, -(delta));                                                                     \
    }

/* Products to the numbers that are rounded: u becomes the weights (kv), g becomes ds times the scale of the block's
 * row. at: address of the block's vectors, of the item's first column; i0: first row of the block. */
INLINE void weigh_kv(const bool want_ds, float *u, float *g, const own_rows *own, uint at, float block_start, float scale) {
    const float start = own->start - block_start; /* distances are exact in fp32 */
    float2 above = (float2)(start + 8.0f, start + 7.0f); /* of the second row */
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        float s[2], lse[2], out[2], delta[2];
        CLT_LOAD_FLOAT2(s[0], s[1], at + x * 8);
        CLT_LOAD_FLOAT2(lse[0], lse[1], at + 256 + x * 8);
        CLT_LOAD_FLOAT2(out[0], out[1], at + 512 + x * 8);
        CLT_LOAD_FLOAT2(delta[0], delta[1], at + 768 + x * 8);
        const float2 d = (float2)(start - (float)(2 * x), start - (float)(2 * x + 1));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = e & 1;
            const float distance = e & 2 ? (c ? above.y : above.x) : (c ? d.y : d.x);
            const float factor = score_factor(s[c], scale);
            float ds;
            PAIR8(u[x + e], want_ds ? g[x + e] : 0.0f, 1.0f, factor, distance, lse[c], out[c], delta[c], u[x + e], ds)
            if (want_ds) g[x + e] = ds * s[c];
        }
        above = d;
    }
}
INLINE void weigh_q(float *u, float *g, const own_rows *own, uint at, float block_start) {
    const float start = own->start + block_start;
    float2 below = (float2)(start - 8.0f, start - 7.0f); /* distances of the second row */
#pragma unroll
    for (int x = 0; x < 32; x += 4) {
        float key[2];
        CLT_LOAD_FLOAT2(key[0], key[1], at + x * 8);
        const float2 d = (float2)(start + (float)(2 * x), start + (float)(2 * x + 1));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = e & 1;
            const float distance = e & 2 ? (c ? below.y : below.x) : (c ? d.y : d.x);
            float weight, ds;
            PAIR8(u[x + e], g[x + e], key[c], e & 2 ? own->factor.y : own->factor.x, distance,
                  e & 2 ? own->lse.y : own->lse.x, e & 2 ? own->out.y : own->out.x,
                  e & 2 ? own->delta.y : own->delta.x, weight, ds)
            g[x + e] = ds * key[c];
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

/* acc += w b for 64 columns of each part of the head; b: 64 rows. sum: 32 floats. */
#define ADD_SUMS(acc, w, b)                                                                                  \
    _Pragma("unroll") for (int d_ = 0; d_ < PARTS; d_++) {                                                   \
        const ulong b_ = CLT_TILE_MN((b) + d_ * 8192, 8192);                                                 \
        COMPLETE(16, "+r", w);                                                                               \
        CLT_MMA_FENCE();                                                                                     \
        CLT_MMA_RS(64, sum, w, b_, 0, 1);                                                                    \
        _Pragma("unroll") for (int x_ = 1; x_ < 4; x_++) CLT_MMA_RS(64, sum, (w) + 4 * x_, b_ + 128 * x_, 1, 1); \
        CLT_MMA_COMMIT();                                                                                    \
        CLT_MMA_WAIT(64, 0, sum);                                                                            \
        _Pragma("unroll") for (int e_ = 0; e_ < 32; e_++) acc[32 * d_ + e_] = acc[32 * d_ + e_] + sum[e_];   \
    }

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

/* d = own b^T of owned rows from own_at on. */
#define OWN_PRODUCT(d, own_at, b_at)                                                                         \
    {                                                                                                        \
        uint own_now = own_at; /* so that its descriptors do not occupy registers during the loop */         \
        __asm__ volatile("" : "+r"(own_now));                                                                \
        PRODUCT(d, own_now, BM, b_at, 64)                                                                    \
    }
/* Whether block i0 may have pairs that do not exist. */
#if CAUSAL
#define MAY_MISS(kv, i0, first_row) (kv ? i0 < first_row + 63 || i0 + 64 > seq : i0 + 63 > first_row)
#else
#define MAY_MISS(kv, i0, first_row) (i0 + 64 > seq)
#endif
/* What the consumers of warpgroup w do. kv: rows are keys. want_1, acc_1: dk or dq; want_2, acc_2: dv. All but the
 * sums are constants. */
#define CONSUME(kv, want_1, acc_1, want_2, acc_2)                                                             \
    const uint first_row = t.row + 64 * w, in_group = get_local_id(0) % 128, c = in_group % 4 * 2;            \
    const uint r = first_row + in_group / 32 * 16 + in_group % 32 / 4, mine = t.own_at + w * 8192;            \
    uint stage = 0, parity = 0;                                                                               \
    float u[32], g[32], sum[32];                                                                              \
    uint pw[16], pg[16];                                                                                      \
    own_rows own = rows_of(kv, &t, &x, r, c, scale);                                                          \
    if (w == WGS - 1) TURN_PASS(w);                                                                           \
    CLT_BAR_WAIT(t.own_bar, 0);                                                                               \
    EACH_BLOCK(&t, h, i) {                                                                                    \
        const uint at = t.stages + stage * STAGE_BYTES, i0 = i * 64;                                          \
        CLT_BAR_WAIT(t.bars + stage * 16, parity);                                                            \
        TURN_WAIT(w);                                                                                         \
        if (CAUSAL && (kv ? i0 + 63 < first_row : i0 > first_row + 63)) {                                     \
            TURN_PASS(w);                                                                                     \
        } else {                                                                                              \
            own.slope = SLOPE8(h);                                                                            \
            CLT_MMA_FENCE();                                                                                  \
            OWN_PRODUCT(u, mine, at)                                                                          \
            if (want_1) OWN_PRODUCT(g, mine + OWN_BYTES, at + TILE_BYTES)                                     \
            CLT_MMA_COMMIT();                                                                                 \
            TURN_PASS(w);                                                                                     \
            CLT_MMA_WAIT(64, 0, u);                                                                           \
            if (want_1) COMPLETE(32, "+f", g);                                                                \
            uint vectors_at = at + 2 * TILE_BYTES + 4 * c;                                                    \
            __asm__ volatile("" : "+r"(vectors_at)); /* one address for all columns */                        \
            if (kv)                                                                                           \
                weigh_kv(want_1, u, g, &own, vectors_at, (float)i0, scale);                                   \
            else                                                                                              \
                weigh_q(u, g, &own, vectors_at, (float)i0);                                                   \
            if (MAY_MISS(kv, i0, first_row)) {                                                                \
                if (want_2) clear_missing(kv, u, (int)r, (int)(i0 + c), (int)seq);                            \
                if (want_1) clear_missing(kv, g, (int)r, (int)(i0 + c), (int)seq);                            \
            }                                                                                                 \
            if (want_2) pack_rows(true, pw, u);                                                               \
            if (want_1) pack_rows(false, pg, g);                                                              \
            if (want_2) ADD_SUMS(acc_2, pw, at + TILE_BYTES)                                                  \
            if (want_1) ADD_SUMS(acc_1, pg, at)                                                               \
        }                                                                                                     \
        CLT_WARP_SYNC();                                                                                      \
        if (in_group % 32 == 0) CLT_BAR_ARRIVE(t.bars + stage * 16 + 8);                                      \
        STEP(stage, parity);                                                                                  \
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

/* own_heads: heads of a sample that own rows; all_heads: of all samples. The start of the kernels: local memory, barriers, and the producer's part. kv: a constant. */
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

#define CLEAR_SUMS(acc) _Pragma("unroll") for (int e = 0; e < 32 * PARTS; e++) acc[e] = 0.0f;

/* Stores two owned rows of a tensor. */
#define STORE_ROWS(to, off, ld, acc, factor, add)                                                             \
    {                                                                                                         \
        const ulong b_ = t.own / own_heads, h_ = t.own % own_heads;                                           \
        __global ELEM *row_ = to + off + (b_ * seq + r) * ld + h_ * HEAD_DIM;                                 \
        if (r < seq) store_row(row_, acc, (int)c, factor, add);                                               \
        if (r + 8 < seq) store_row(row_ + 8 * (ulong)ld, acc + 2, (int)c, factor, add);                       \
    }

#define KERNEL __kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void

#if PARTS == 1
KERNEL attention8_backward_kv_hopper(BACKWARD8_ARGS, __global ELEM *dk, ulong dk_off, uint lddk, __global ELEM *dv,
                                    ulong dv_off, uint lddv, uint add) {
    BEGIN_BACKWARD(true)
    float acc_k[32], acc_v[32];
    CLEAR_SUMS(acc_k)
    CLEAR_SUMS(acc_v)
    CONSUME(true, true, acc_k, true, acc_v)
    STORE_ROWS(dk, dk_off, lddk, acc_k, scale, add)
    STORE_ROWS(dv, dv_off, lddv, acc_v, 1.0f, add)
}
#else
KERNEL attention8_backward_k_hopper(BACKWARD8_ARGS, __global ELEM *dk, ulong dk_off, uint lddk, uint add) {
    BEGIN_BACKWARD(true)
    float acc[32 * PARTS];
    CLEAR_SUMS(acc)
    CONSUME(true, true, acc, false, acc)
    STORE_ROWS(dk, dk_off, lddk, acc, scale, add)
}
KERNEL attention8_backward_v_hopper(BACKWARD8_ARGS, __global ELEM *dv, ulong dv_off, uint lddv, uint add) {
    BEGIN_BACKWARD(true)
    float acc[32 * PARTS];
    CLEAR_SUMS(acc)
    CONSUME(true, false, acc, true, acc)
    STORE_ROWS(dv, dv_off, lddv, acc, 1.0f, add)
}
#endif

KERNEL attention8_backward_q_hopper(BACKWARD8_ARGS, __global ELEM *dq, ulong dq_off, uint lddq) {
    BEGIN_BACKWARD(false)
    float acc[32 * PARTS];
    CLEAR_SUMS(acc)
    CONSUME(false, true, acc, false, acc)
    STORE_ROWS(dq, dq_off, lddq, acc, scale, false)
}
