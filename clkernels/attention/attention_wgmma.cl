/* Attention forward on Hopper's matrix units (README.md has the formula; sums are added in another order
 * here).
 *
 * A work-group is one producer warpgroup, of which one work-item loads tiles through the copy engine, and WGS
 * consumer warpgroups of 64 query rows each. It stays on its multiprocessor and processes tiles of 64 * WGS
 * rows until none is left. For each block of BN keys, from the diagonal down: s = q k^T, softmax in registers
 * in base 2, o += p v with p as the left operand in registers. The scores of the next block and the sums of
 * this one are in flight together, and the next softmax overlaps the sums. q has two places, so that the next
 * tile's q is loaded in time; a tile's output leaves through the place of its q. Without the causal mask every
 * row sees all blocks; a warpgroup whose rows do not exist computes one of them.
 *
 * Order of tiles: heads in sets of `set` that fit the second-level cache; in a set all heads' last rows (the
 * longest tiles) first. A work-group's first tile is its number; it takes the others with an atomic counter.
 *
 * Numeric differences from the definition: p is rounded to the element type before it is multiplied by v;
 * exp2 is the device's; and within one block of keys a value of v that is not finite affects rows that do not
 * see it (0 * NaN).
 *
 * Requires: wgmma, tensor maps of q, k, v and o as {HEAD_DIM, heads, T, B} with boxes {64, 1, 64 * WGS or BN
 * or 64, 1}, swizzle 128.
 * Launch: local {128 * (WGS + 1)}, global {any number of groups, at most one per tile, * local}.
 * Options: HEAD_DIM (multiples of 8 up to 128), WGS (2, 3), BN (96, 112, 128), STAGES (of k and of v),
 * PINGPONG (turns at the matrix unit), TYPE (1, 2), CAUSAL, SOFTCAP, SEQ_IDS, and with CAUSAL ALIBI, WINDOW. */
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
#ifndef SEQ_IDS
#define SEQ_IDS 0
#endif
#ifndef WGS
#define WGS 2
#endif
#ifndef BN
#define BN 128
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef PINGPONG
#define PINGPONG 1
#endif
#if TYPE == 2
#define CLT_MMA_TYPE "f16"
#else
#define CLT_MMA_TYPE "bf16"
#endif
#include "../include/clt_hopper.clh"

#if (BN != 96 && BN != 112 && BN != 128) || TYPE < 1 || TYPE > 2 || HEAD_DIM % 8 || HEAD_DIM > 128
#error "blocks of 96, 112 or 128 keys, 16-bit types, head sizes up to 128 in steps of 8"
#endif
#if !CAUSAL && (ALIBI || WINDOW)
#error "ALiBi and windows need the causal mask"
#endif
/* Columns of the output's products: elements beyond the head are +0 in local memory. */
#if HEAD_DIM <= 64
#define WIDTH 64
#elif HEAD_DIM <= 80
#define WIDTH 80
#elif HEAD_DIM <= 96
#define WIDTH 96
#else
#define WIDTH 128
#endif
#define BM (64 * WGS)
#define PARTS ((HEAD_DIM + 63) / 64) /* tiles of 64 elements per head in local memory */
#define ITEMS (128 * (WGS + 1))
#define Q_BYTES (BM * 128 * PARTS)
#define KV_BYTES (BN * 128 * PARTS)
#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f
#if WGS == 2
#define REGISTERS_CONSUMER 240
#define REGISTERS_PRODUCER 24
#else
#define REGISTERS_CONSUMER 160
#define REGISTERS_PRODUCER 32
#endif
#define MORE(n) CLT_REGISTERS_MORE(n)
#define LESS(n) CLT_REGISTERS_LESS(n)
#define INLINE static inline __attribute__((always_inline))

#define STORE4(map, x, y, z, w, src)                                                                         \
    __asm__ volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"( \
                         map),                                                                               \
                     "r"(x), "r"(y), "r"(z), "r"(w), "r"(src)                                                \
                     : "memory")

INLINE float exp2_fast(float x) {
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE float log2_fast(float x) {
    float y;
    __asm__("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE float inverse_fast(float x) {
    float y;
    __asm__("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Two elements as one word; the first is the lower half. */
INLINE uint pack(float first, float second) {
    uint u;
#if TYPE == 2
    __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(second), "f"(first));
#else
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(second), "f"(first));
#endif
    return u;
}
/* Reductions over the four work-items of a row. */
INLINE float swap_in_row(float x, uint distance) {
    float y;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(x), "r"(distance));
    return y;
}
INLINE float max_of_row(float x) {
    x = fmax(x, swap_in_row(x, 1));
    return fmax(x, swap_in_row(x, 2));
}
INLINE float sum_of_row(float x) {
    x += swap_in_row(x, 1);
    return x + swap_in_row(x, 2);
}

/* Tile number t: its head (of all samples), its first row, and the blocks of keys [first, end) that its rows
 * see. */
typedef struct {
    uint head, row;
} tile;
INLINE tile tile_of(uint t, uint row_tiles, uint all_heads, uint set) {
    uint in_set = t / (row_tiles * set), r = t - in_set * row_tiles * set;
    uint n = min(set, all_heads - in_set * set), level = r / n;
    tile x;
    x.head = in_set * set + (r - level * n);
    x.row = (row_tiles - 1 - level) * BM;
    return x;
}
INLINE uint first_block(uint row, uint window) {
#if WINDOW
    return (row - min(row, window)) / BN;
#else
    return 0;
#endif
}
INLINE uint end_block(uint row, uint rows, uint seq) {
#if CAUSAL
    return (min(row + rows, seq) + BN - 1) / BN;
#else
    return row < seq ? (seq + BN - 1) / BN : 0;
#endif
}

/* Advances the place in a ring of STAGES. */
#define STEP(stage, parity)                                                                                  \
    if (++stage == STAGES) {                                                                                 \
        stage = 0;                                                                                           \
        parity ^= 1;                                                                                         \
    }

/* s = q k^T of one block. */
INLINE void scores(float *s, uint q, uint k) {
    ulong a = CLT_TILE_K(q), b = CLT_TILE_K(k);
    CLT_MMA_SS(BN, s, a, b, 0, 0);
#pragma unroll
    for (int x = 1; x < (HEAD_DIM + 15) / 16; x++)
        CLT_MMA_SS(BN, s, a + (x / 4 * (BM * 8) + x % 4 * 2), b + (x / 4 * (BN * 8) + x % 4 * 2), 1, 0);
}

/* Completes values that a product is about to read before the following code (the fence): the compiler does
 * not know that products are asynchronous. */
INLINE void finish_sums(float *o) {
#pragma unroll
    for (int x = 0; x < WIDTH / 2; x++) __asm__ volatile("" : "+f"(o[x])::"memory");
}
INLINE void finish_operand(uint *p) {
#pragma unroll
    for (int x = 0; x < BN / 4; x++) __asm__ volatile("" : "+r"(p[x])::"memory");
}

/* o += p v of one block. */
INLINE void add_values(float *o, uint *p, uint v) {
    ulong b = CLT_TILE_MN(v, BN * 128);
#pragma unroll
    for (int x = 0; x < BN / 16; x++) CLT_MMA_RS(WIDTH, o, p + 4 * x, b + 128 * x, 1, 1);
}

/* The inputs of softmax. i: this work-item's first row (the second is 8 below); c: its first column. */
typedef struct {
    float scale2, softcap, slope2; /* factors for base 2 */
    int i, c, window;
    __global const int *ids;
    int2 row_ids;
    uint seq;
} softmax_in;

/* Turns raw products of block j0 into scores in base 2, if that takes more than one factor; pairs that do not
 * exist become -inf. `edge`: the block crosses an edge of the range. */
INLINE void prepare(float *s, const softmax_in *in, int j0, bool edge) {
    const float none = -INFINITY;
#if CAUSAL
    int ahead = j0 + in->c - in->i; /* column of element 0 minus the last one that the row sees */
#else
    int ahead = j0 + in->c - (int)in->seq + 1;
#endif
#if SOFTCAP || ALIBI
    /* ALiBi of the second row is too large by 8 slopes in the whole row; lse corrects for that. */
    float start = in->slope2 * (float)ahead;
#pragma unroll
    for (int x = 0; x < BN / 2; x++) {
        float bias = fma(in->slope2, (float)(x / 4 * 8 + (x & 1)), start);
#if SOFTCAP
        /* scale2 is 2 log2(e) scale / softcap here: tanh y = 1 - 2 / (1 + e^2y) */
        float t = exp2_fast(s[x] * in->scale2);
        s[x] = fma(in->softcap, fma(-2.0f, inverse_fast(1.0f + t), 1.0f), bias);
#else
        s[x] = fma(s[x], in->scale2, bias);
#endif
    }
#endif
#if SEQ_IDS
#pragma unroll
    for (int x = 0; x < BN / 8; x++) {
        uint j = (uint)(j0 + in->c + 8 * x);
        int a = in->ids[min(j, in->seq - 1)], b = in->ids[min(j + 1, in->seq - 1)];
        s[4 * x] = a == in->row_ids.x ? s[4 * x] : none;
        s[4 * x + 1] = b == in->row_ids.x ? s[4 * x + 1] : none;
        s[4 * x + 2] = a == in->row_ids.y ? s[4 * x + 2] : none;
        s[4 * x + 3] = b == in->row_ids.y ? s[4 * x + 3] : none;
    }
#endif
    if (edge) {
#pragma unroll
        for (int x = 0; x < BN / 2; x++) {
            int d = ahead + (x / 4 * 8 + (x & 1) - (CAUSAL ? (x & 2) * 4 : 0));
#if WINDOW
            s[x] = d <= 0 && d >= -in->window ? s[x] : none;
#else
            s[x] = d <= 0 ? s[x] : none;
#endif
        }
    }
}

#if SOFTCAP || ALIBI
#define FACTOR 1.0f
#else
#define FACTOR in->scale2
#endif

/* Scores to probabilities against the new maximum m; updates l; returns the factors for the earlier sums. */
INLINE float2 softmax(float *s, const softmax_in *in, float2 *m, float2 *l) {
    float2 n = *m;
#pragma unroll
    for (int x = 0; x < BN / 2; x += 4) {
        n.x = fmax(n.x, fmax(s[x], s[x + 1]));
        n.y = fmax(n.y, fmax(s[x + 2], s[x + 3]));
    }
    n.x = max_of_row(n.x);
    n.y = max_of_row(n.y);
    float2 ref, a, sum;
    ref.x = n.x == -INFINITY ? 0.0f : n.x * FACTOR;
    ref.y = n.y == -INFINITY ? 0.0f : n.y * FACTOR;
    a.x = exp2_fast(fma(m->x, FACTOR, -ref.x));
    a.y = exp2_fast(fma(m->y, FACTOR, -ref.y));
    *m = n;
#pragma unroll
    for (int x = 0; x < BN / 2; x += 4) {
        s[x] = exp2_fast(fma(s[x], FACTOR, -ref.x));
        s[x + 1] = exp2_fast(fma(s[x + 1], FACTOR, -ref.x));
        s[x + 2] = exp2_fast(fma(s[x + 2], FACTOR, -ref.y));
        s[x + 3] = exp2_fast(fma(s[x + 3], FACTOR, -ref.y));
    }
    l->x *= a.x;
    l->y *= a.y;
#pragma unroll
    for (int x = 0; x < BN / 2; x += 4) {
        l->x += s[x] + s[x + 1];
        l->y += s[x + 2] + s[x + 3];
    }
    return a;
}

INLINE void pack_all(uint *p, const float *s) {
#pragma unroll
    for (int x = 0; x < BN / 4; x++) p[x] = pack(s[2 * x], s[2 * x + 1]);
}

INLINE void rescale(float *o, float2 a) {
#pragma unroll
    for (int x = 0; x < WIDTH / 2; x += 4) {
        o[x] *= a.x;
        o[x + 1] *= a.x;
        o[x + 2] *= a.y;
        o[x + 3] *= a.y;
    }
}

/* The loads of a work-group, in the order in which the consumers need them, and its tiles: first the one with
 * its number, then the next ones in the common order (`counter`, 0 before and after a launch). */
INLINE void produce(uint q, uint k, uint v, uint q_bar, uint k_bar, uint v_bar, uint tile_at, ulong q_map, ulong k_map,
                    ulong v_map, __global uint *counter, uint seq, uint heads, uint group, uint all_heads, uint set,
                    uint window) {
    uint row_tiles = (seq + BM - 1) / BM, tiles = row_tiles * all_heads, stage = 0, parity = 1;
    uint slot = 0, q_parity = 1, t = get_group_id(0);
    CLT_MAP_ACQUIRE(q_map);
    CLT_MAP_ACQUIRE(k_map);
    CLT_MAP_ACQUIRE(v_map);
    for (;;) {
        uint bar = q_bar + slot * 16;
        CLT_BAR_WAIT(bar + 8, q_parity);
        __asm__ volatile("st.shared.u32 [%0], %1;" ::"r"(tile_at + slot * 4), "r"(t) : "memory");
        if (t >= tiles) {
            CLT_BAR_ARRIVE(bar);
            return;
        }
        uint taken = atomic_inc(counter);
        if (taken == tiles - 1) *counter = 0; /* each tile takes one number, so this is the last one */
        tile x = tile_of(t, row_tiles, all_heads, set);
        uint b = x.head / heads, h = x.head - b * heads, g = h / group;
        CLT_BAR_EXPECT(bar, Q_BYTES);
#pragma unroll
        for (int d = 0; d < PARTS; d++)
            CLT_TMA_LOAD4(q + slot * Q_BYTES + d * BM * 128, q_map, d * 64, h, x.row, b, bar);
        slot ^= 1;
        q_parity ^= slot ^ 1;
        uint first = first_block(x.row, window);
        for (uint j = end_block(x.row, BM, seq); j-- > first;) {
            uint to = stage * KV_BYTES, kb = k_bar + stage * 16, vb = v_bar + stage * 16;
            CLT_BAR_WAIT(kb + 8, parity);
            CLT_BAR_EXPECT(kb, KV_BYTES);
#pragma unroll
            for (int d = 0; d < PARTS; d++)
                CLT_TMA_LOAD4(k + to + d * BN * 128, k_map, d * 64, g, j * BN, b, kb);
            CLT_BAR_WAIT(vb + 8, parity);
            CLT_BAR_EXPECT(vb, KV_BYTES);
#pragma unroll
            for (int d = 0; d < PARTS; d++)
                CLT_TMA_LOAD4(v + to + d * BN * 128, v_map, d * 64, g, j * BN, b, vb);
            STEP(stage, parity);
        }
        t = get_num_groups(0) + taken;
    }
}

/* Warpgroups take turns at the matrix unit, so that one's softmax overlaps another's products. */
#if PINGPONG
#define TURN_WAIT(w) __asm__ volatile("bar.sync %0, 256;" ::"r"(4 + (w)) : "memory")
#define TURN_PASS(w) __asm__ volatile("bar.arrive %0, 256;" ::"r"(4 + ((w) + 1 == WGS ? 0 : (w) + 1)) : "memory")
#else
#define TURN_WAIT(w)
#define TURN_PASS(w)
#endif

/* Stores sums to the output, through the place of this warpgroup's q, by its 128 work-items. */
INLINE void store_rows(const float *o, float2 factor, uint to, ulong map, uint item, uint w, uint h, uint row, uint b) {
    uint r = item / 32 * 16 + item % 32 / 4;
#pragma unroll
    for (int x = 0; x < WIDTH / 8; x++) {
        uint at = to + x / 8 * (BM * 128) + r * 128 + (((x % 8) ^ (r & 7)) * 16) + item % 4 * 4;
        __asm__ volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pack(o[4 * x] * factor.x, o[4 * x + 1] * factor.x))
                         : "memory");
        __asm__ volatile("st.shared.b32 [%0], %1;" ::"r"(at + 1024),
                         "r"(pack(o[4 * x + 2] * factor.y, o[4 * x + 3] * factor.y))
                         : "memory");
    }
    __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __asm__ volatile("bar.sync %0, 128;" ::"r"(w + 1) : "memory");
    if (item == 0) {
#pragma unroll
        for (int d = 0; d < PARTS; d++) STORE4(map, d * 64, h, row, b, to + d * (BM * 128));
        __asm__ volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

/* --- the steps of the kernel, in its names --- */

/* A barrier per buffer for its data, and one for the consumers that are done with it. */
#define INIT_BARRIERS                                                                                         \
    if (get_local_id(0) == 0) {                                                                               \
        for (uint x = 0; x < 2 + 2 * STAGES; x++) {                                                           \
            CLT_BAR_INIT(q_bar + x * 16, 1);                                                                  \
            CLT_BAR_INIT(q_bar + x * 16 + 8, WGS);                                                            \
        }                                                                                                     \
        CLT_BAR_READY();                                                                                      \
    }

#if SOFTCAP
#define SCALE2 (2.0f * scale * LOG2E / softcap)
#else
#define SCALE2 (scale * LOG2E)
#endif
/* What the softmax of all of a warpgroup's tiles uses. */
#define BEGIN_SOFTMAX                                                                                         \
    in.scale2 = SCALE2;                                                                                       \
    in.softcap = softcap * LOG2E;                                                                             \
    in.slope2 = 0.0f;                                                                                         \
    in.c = item % 4 * 2;                                                                                      \
    in.window = (int)window;                                                                                  \
    in.seq = seq;

#if ALIBI
#define TAKE_SLOPE in.slope2 = slopes[slopes_off + h] * LOG2E;
#else
#define TAKE_SLOPE
#endif
#if SEQ_IDS
#define TAKE_IDS                                                                                             \
    in.ids = seq_ids + seq_ids_off + (ulong)b * seq;                                                         \
    in.row_ids.x = in.ids[min((uint)in.i, seq - 1)];                                                         \
    in.row_ids.y = in.ids[min((uint)in.i + 8, seq - 1)];
#else
#define TAKE_IDS
#endif
/* What the softmax of this tile's rows uses. */
#define BEGIN_ROWS                                                                                            \
    in.i = (int)(row + row0);                                                                                 \
    TAKE_SLOPE                                                                                                \
    TAKE_IDS

/* Releases the blocks after the last row of this warpgroup. */
#define SKIP_BLOCKS                                                                                           \
    for (; j > own; j--) {                                                                                    \
        CLT_BAR_WAIT(k_bar + stage * 16, parity);                                                             \
        CLT_BAR_WAIT(v_bar + stage * 16, parity);                                                             \
        if (item == 0) {                                                                                      \
            CLT_BAR_ARRIVE(k_bar + stage * 16 + 8);                                                           \
            CLT_BAR_ARRIVE(v_bar + stage * 16 + 8);                                                           \
        }                                                                                                     \
        STEP(stage, parity);                                                                                  \
        TURN_WAIT(w);                                                                                         \
        TURN_PASS(w);                                                                                         \
    }

/* Scores and softmax of the first block. Before them the last tile's output has left local memory. */
#define FIRST_BLOCK                                                                                           \
    v_stage = stage, v_parity = parity;                                                                       \
    j--;                                                                                                      \
    CLT_BAR_WAIT(k_bar + stage * 16, parity);                                                                 \
    CLT_MMA_FENCE();                                                                                          \
    scores(s, qw, k + stage * KV_BYTES);                                                                      \
    CLT_MMA_COMMIT();                                                                                         \
    if (item == 0 && stored) {                                                                                \
        __asm__ volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");                                    \
        CLT_BAR_ARRIVE(q_bar + (slot ^ 1) * 16 + 8);                                                          \
    }                                                                                                         \
    CLT_MMA_WAIT(BN, 0, s);                                                                                   \
    if (item == 0) CLT_BAR_ARRIVE(k_bar + stage * 16 + 8);                                                    \
    STEP(stage, parity);                                                                                      \
    prepare(s, &in, (int)(j * BN), true);                                                                     \
    softmax(s, &in, &m, &l);                                                                                  \
    pack_all(p, s);

#if !CAUSAL
#define AT_EDGE false /* the first block is the last one of the keys */
#elif WINDOW
#define AT_EDGE (j * BN + BN - 1 > row || j * BN + window < row + 63)
#else
#define AT_EDGE (j * BN + BN - 1 > row)
#endif
/* Scores of a block while the values of the one before are added; then its softmax. */
#define NEXT_BLOCK                                                                                            \
    CLT_BAR_WAIT(k_bar + stage * 16, parity);                                                                 \
    TURN_WAIT(w);                                                                                             \
    finish_sums(o);                                                                                           \
    finish_operand(p);                                                                                        \
    CLT_MMA_FENCE();                                                                                          \
    scores(s, qw, k + stage * KV_BYTES);                                                                      \
    CLT_MMA_COMMIT();                                                                                         \
    CLT_BAR_WAIT(v_bar + v_stage * 16, v_parity);                                                             \
    add_values(o, p, v + v_stage * KV_BYTES);                                                                 \
    CLT_MMA_COMMIT();                                                                                         \
    TURN_PASS(w);                                                                                             \
    CLT_MMA_WAIT(BN, 1, s);                                                                                   \
    if (item == 0) CLT_BAR_ARRIVE(k_bar + stage * 16 + 8);                                                    \
    STEP(stage, parity);                                                                                      \
    prepare(s, &in, (int)(j * BN), AT_EDGE);                                                                  \
    a = softmax(s, &in, &m, &l);                                                                              \
    CLT_MMA_WAIT(WIDTH, 0, o);                                                                                \
    if (item == 0) CLT_BAR_ARRIVE(v_bar + v_stage * 16 + 8);                                                  \
    STEP(v_stage, v_parity);                                                                                  \
    pack_all(p, s);                                                                                           \
    rescale(o, a);

/* Begins to add the values of the last block. */
#define LAST_VALUES                                                                                           \
    CLT_BAR_WAIT(v_bar + v_stage * 16, v_parity);                                                             \
    finish_sums(o);                                                                                           \
    finish_operand(p);                                                                                        \
    CLT_MMA_FENCE();                                                                                          \
    add_values(o, p, v + v_stage * KV_BYTES);                                                                 \
    CLT_MMA_COMMIT();

/* Stores the log-sum-exp, waits for the last values, and stores the output. */
#define STORE_TILE                                                                                             \
    l.x = sum_of_row(l.x);                                                                                     \
    l.y = sum_of_row(l.y);                                                                                     \
    if (item % 4 == 0) {                                                                                       \
        __global float *to = lse + lse_off + (ulong)x.head * seq;                                              \
        float factor = SOFTCAP || ALIBI ? 1.0f : in.scale2;                                                    \
        if ((uint)in.i < seq) to[in.i] = fma(m.x, factor, log2_fast(l.x)) * LN2;                               \
        if ((uint)in.i + 8 < seq) to[in.i + 8] = (fma(m.y, factor, log2_fast(l.y)) - 8.0f * in.slope2) * LN2;  \
    }                                                                                                          \
    CLT_MMA_WAIT(WIDTH, 0, o);                                                                                 \
    if (item == 0) CLT_BAR_ARRIVE(v_bar + v_stage * 16 + 8);                                                   \
    a.x = 1.0f / l.x;                                                                                          \
    a.y = 1.0f / l.y;                                                                                          \
    store_rows(o, a, qw, o_map, item, w, h, row, b);

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_forward_wgmma(__global const ulong *maps, ulong q_at, ulong k_at, ulong v_at, ulong o_at,
                        __global const float *slopes, ulong slopes_off, __global const int *seq_ids, ulong seq_ids_off,
                        __global float *lse, ulong lse_off, __global uint *counter, uint seq, uint heads, uint group,
                        uint all_heads, uint set, float scale, float softcap, uint window) {
    __local uchar memory[2 * Q_BYTES + 2 * STAGES * KV_BYTES] __attribute__((aligned(1024)));
    __local ulong bars[4 + 4 * STAGES] __attribute__((aligned(8)));
    __local uint tile_slot[2];
    uint q = CLT_LOCAL_ADDRESS(memory), k = q + 2 * Q_BYTES, v = k + STAGES * KV_BYTES;
    uint q_bar = CLT_LOCAL_ADDRESS(bars), k_bar = q_bar + 32, v_bar = k_bar + 16 * STAGES;
    uint tile_at = CLT_LOCAL_ADDRESS(tile_slot);
    uint item = get_local_id(0) % 128, w = get_local_id(0) / 128;
    INIT_BARRIERS
    barrier(CLK_LOCAL_MEM_FENCE);
    if (w == 0) {
        LESS(REGISTERS_PRODUCER);
        if (item == 0)
            produce(q, k, v, q_bar, k_bar, v_bar, tile_at, (ulong)(maps + q_at), (ulong)(maps + k_at),
                    (ulong)(maps + v_at), counter, seq, heads, group, all_heads, set, window);
    } else {
        MORE(REGISTERS_CONSUMER);
        w--;
        uint row_tiles = (seq + BM - 1) / BM, stage = 0, parity = 0, slot = 0, q_parity = 0;
        uint v_stage = 0, v_parity = 0, row0 = item / 32 * 16 + item % 32 / 4;
        ulong o_map = (ulong)(maps + o_at);
        float s[BN / 2], o[WIDTH / 2];
        uint p[BN / 4];
        bool stored = false;
        if (item == 0) CLT_MAP_ACQUIRE(o_map);
        softmax_in in;
        BEGIN_SOFTMAX
        if (w == WGS - 1) TURN_PASS(w);
        for (;;) {
            uint t;
            CLT_BAR_WAIT(q_bar + slot * 16, q_parity);
            __asm__ volatile("ld.shared.u32 %0, [%1];" : "=r"(t) : "r"(tile_at + slot * 4) : "memory");
            if (t >= row_tiles * all_heads) break;
            tile x = tile_of(t, row_tiles, all_heads, set);
            uint b = x.head / heads, h = x.head - b * heads;
            uint row = x.row + 64 * w, first = first_block(x.row, window);
            uint own = max(end_block(row, 64, seq), first + 1), j = end_block(x.row, BM, seq);
            uint qw = q + slot * Q_BYTES + w * 8192;
            BEGIN_ROWS
            float2 m = (float2)(-INFINITY, -INFINITY), l = (float2)(0.0f, 0.0f), a;
#pragma unroll
            for (int e = 0; e < WIDTH / 2; e++) o[e] = 0.0f;
            SKIP_BLOCKS
            FIRST_BLOCK
            while (j-- > first) {
                NEXT_BLOCK
            }
            LAST_VALUES
            STORE_TILE
            stored = true;
            slot ^= 1;
            q_parity ^= slot ^ 1;
        }
        if (item == 0) __asm__ volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
