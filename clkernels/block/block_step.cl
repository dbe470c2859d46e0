/* block_step: a whole block of a model for the next token of one text, in one launch:
 *
 *     qkv = norm_1(x) * W_qkv^T + bias               attention at the new position, with rotation and cache
 *     mid = x + attention * W_out^T + bias
 *     hidden = act(norm_2(mid) * W_up^T + bias)      or, with GATED, act(norm_2(..) * W_gate^T + bias) * (...)
 *     y = mid + hidden * W_down^T + bias
 *
 * Work-groups stay through all five steps, with a barrier over the whole launch (block_grid.clh) between two. The first
 * weights of a product are requested while the product before it ends, and are in registers when its barrier opens.
 *
 * A product's outputs are computed in pairs: two neighbours, or with GATED an output and its gate. Pair i belongs to
 * group i % groups. A unit is a pair's SEGMENT columns; the units of a group are shared by its teams of 32 items, and
 * a unit's sums by 32 items are added up in local memory when the product ends.
 *
 * Attention: (head, part of the keys) i belongs to group i % groups. A part leaves STATE floats: HEAD_DIM sums of
 * weights times values, the largest score, the sum of weights. Every group joins all of them for itself.
 *
 *   ITEMS     work-items of a group, a multiple of 128
 *   UNROLL    pieces of 16 bytes of each of two rows of the weights that an item requests at a time
 *   SPLITS    parts of a head's keys
 *   NORM      1 layer norm, 2 RMS norm; GATED 1: the second form; ACT: clt_activation
 *   COLUMNS   columns of an input that local memory holds, NORM_COLUMNS of norm_1's and norm_2's, UNITS of a group and
 *             product: at least what the call has
 *   HEAD_DIM, TYPE of weights and cache (1 or 2), ROTATED, TEMPER, APPEND, ALIBI, SOFTCAP, WINDOW: attention_step.cl
 *
 * Activations are fp32 vectors at multiples of 16 bytes, sizes multiples of 8; weights' rows and the cache's start at
 * multiples of 16 bytes. counter, limit, traps: block_grid.clh.
 * Launch: local {ITEMS}, global {ITEMS * groups}, of which all must run at the same time.
 * Numerics fast: the order of a sum depends on SPLITS, UNROLL and ITEMS. Bound: the bytes of the weights.
 * Requires wgmma: its parts need no matrix units, but more local memory than other devices have. */
#ifndef ITEMS
#define ITEMS 512
#endif
#ifndef TYPE
#define TYPE 1
#endif
#include "../attention/attention_step.clh"
#include "block_grid.clh"

#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef SPLITS
#define SPLITS 4
#endif
#ifndef NORM
#define NORM 2
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef ACT
#define ACT 0
#endif
#ifndef COLUMNS
#define COLUMNS 8192
#endif
#ifndef NORM_COLUMNS
#define NORM_COLUMNS 2048
#endif
#ifndef UNITS
#define UNITS 128
#endif
#if ACT
#include "../include/clt_act.clh"
#endif
#if ITEMS % 128 || COLUMNS % 8 || NORM_COLUMNS % 8 || !TYPE
#error "ITEMS is a multiple of 128, COLUMNS and NORM_COLUMNS of 8; TYPE is 1 or 2"
#endif
#define TEAMS (ITEMS / 32)
#define SEGMENT (32 * 8 * UNROLL)
#define HALF (COLUMNS / 8)
#define NORM_HALF (NORM_COLUMNS / 8)
#define STATE (HEAD_DIM + 8)
typedef CLT_T8(TYPE) piece;

/* One of the block's products. */
typedef struct {
    uint n, k, segments, units; /* units: of this group */
    uint ldw, ldgate;
    bool gated; /* a constant */
    __global const ELEM *w, *gate;
    __global const float *bias, *gate_bias;
} product;

/* A group's local memory. An input's pieces of 8 columns are stored as their first four, and HALF places further their
 * last four, so that neighbouring items read neighbouring places; the norm's weights in the same way. */
typedef struct {
    float4 x[2 * HALF];
    float4 norm_w[2 * NORM_HALF], norm_b[NORM == 1 ? 2 * NORM_HALF : 1];
    float sums[2 * UNITS];
    group_memory attention;
} block_memory;

static inline float sum8(float8 v) {
    const float4 s = v.lo + v.hi;
    return (s.x + s.y) + (s.z + s.w);
}

static inline float8 load8(__global const float *p) {
    return CLT_LOAD8(0, p);
}

static inline float dot8(float8 w, float4 lo, float4 hi, float sum) {
    sum = fma(w.s0, lo.x, sum);
    sum = fma(w.s1, lo.y, sum);
    sum = fma(w.s2, lo.z, sum);
    sum = fma(w.s3, lo.w, sum);
    sum = fma(w.s4, hi.x, sum);
    sum = fma(w.s5, hi.y, sum);
    sum = fma(w.s6, hi.z, sum);
    return fma(w.s7, hi.w, sum);
}

/* --- products --- */

/* x, opaque to the compiler: what is derived from it is computed again for each use. Otherwise the descriptions of all
 * products stay in registers through all steps. */
#ifndef ANEW
static inline ulong ANEW(ulong x) {
    ulong y;
    __asm__ volatile("mov.b64 %0, %1;" : "=l"(y) : "l"(x));
    return y;
}
#endif

static inline product make_product(uint n, uint k, __global const ELEM *w, uint ldw, __global const ELEM *gate,
                                   uint ldgate, __global const float *bias, __global const float *gate_bias, bool gated) {
    const uint pairs = gated ? n : (n + 1) / 2, group = (uint)get_group_id(0), groups = (uint)get_num_groups(0);
    const uint segments = (k + SEGMENT - 1) / SEGMENT;
    const uint own = group < pairs ? (pairs - group + groups - 1) / groups : 0;
    const product p = {n, k, segments, own * segments, ldw, ldgate, gated, w, gate, bias, gate_bias};
    return p;
}

/* An item's pieces of a unit; those beyond the columns repeat the last one. */
static inline void request(piece (*to)[UNROLL], const product *p, uint unit, uint lane) {
    const uint pair = unit / p->segments * (uint)get_num_groups(0) + (uint)get_group_id(0);
    const uint j = p->gated ? pair : 2 * pair, first = unit % p->segments * SEGMENT;
    __global const ELEM *a = p->w + j * (size_t)p->ldw;
    __global const ELEM *b =
        p->gated ? p->gate + j * (size_t)p->ldgate : p->w + min(j + 1, p->n - 1) * (size_t)p->ldw;
#pragma unroll
    for (uint u = 0; u < UNROLL; u++) {
        const size_t at = min(first + 8 * (lane + 32 * u), p->k - 8);
        to[0][u] = CLT_FETCH8(TYPE, a + at);
        to[1][u] = CLT_FETCH8(TYPE, b + at);
    }
}

static inline void request_first(piece (*to)[UNROLL], const product *p, uint item) {
    if (p && item / 32 < p->units) request(to, p, item / 32, item % 32);
}

/* The sums of the group's units into local memory. `ready` holds the pieces of the team's first unit, and at the end
 * those of its first unit of the next product; while a unit is computed, the next one is on its way. */
static inline void multiply(const product *p, const product *next, piece (*ready)[UNROLL], __local block_memory *m,
                            uint item) {
    const uint lane = item % 32, team = item / 32;
    if (team >= p->units) request_first(ready, next, item);
    for (uint unit = team; unit < p->units; unit += TEAMS) {
        const uint first = unit % p->segments * SEGMENT / 8;
        piece later[2][UNROLL];
        float a = 0.0f, b = 0.0f;
        if (unit + TEAMS < p->units)
            request(later, p, unit + TEAMS, lane);
        else
            request_first(later, next, item);
#pragma unroll
        for (uint u = 0; u < UNROLL; u++) {
            const uint at = first + lane + 32 * u;
            if (8 * at < p->k) {
                const float4 lo = m->x[at], hi = m->x[HALF + at];
                a = dot8(CLT_WIDEN8(TYPE, ready[0][u]), lo, hi, a);
                b = dot8(CLT_WIDEN8(TYPE, ready[1][u]), lo, hi, b);
            }
        }
        a = clt_team_sum(a);
        b = clt_team_sum(b);
        if (lane == 0) {
            m->sums[2 * unit] = a;
            m->sums[2 * unit + 1] = b;
        }
#pragma unroll
        for (uint u = 0; u < UNROLL; u++) ready[0][u] = later[0][u], ready[1][u] = later[1][u];
    }
}

/* What follows the sums. residual is optional. */
static inline void finish(const product *p, bool act, __global const float *residual, __global float *y,
                          __local const block_memory *m, uint item) {
    const uint outputs = p->gated ? 1 : 2, groups = (uint)get_num_groups(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item; i < p->units / p->segments * outputs; i += ITEMS) {
        const uint pair = i / outputs, o = i % outputs;
        const uint j = (pair * groups + (uint)get_group_id(0)) * outputs + o;
        __local const float *part = m->sums + 2 * pair * p->segments;
        float v = 0.0f, g = 0.0f;
        if (j >= p->n) continue;
        if (residual) v = residual[j];
        const float r = v;
        v = p->bias ? p->bias[j] : 0.0f;
        if (p->gated && p->gate_bias) g = p->gate_bias[j];
        for (uint s = 0; s < p->segments; s++) {
            v += part[2 * s + o];
            if (p->gated) g += part[2 * s + 1];
        }
#if ACT
        if (act && p->gated) g = CLT_ACT_FN(ACT)(g);
        if (act && !p->gated) v = CLT_ACT_FN(ACT)(v);
#endif
        if (p->gated) v = g * v;
        y[j] = residual ? r + v : v;
    }
}

/* --- inputs --- */

static inline void put_piece(__local float4 *to, uint half_places, uint i, float8 v) {
    to[i] = v.lo;
    to[half_places + i] = v.hi;
}
static inline float8 get_piece(__local const float4 *from, uint half_places, uint i) {
    return (float8)(from[i], from[half_places + i]);
}

/* A norm's weights, for the same items to use. Either may be absent. */
static inline void fetch_norm(__local block_memory *m, __global const float *w, __global const float *b, uint k,
                              uint item) {
    for (uint i = item; i < k / 8; i += ITEMS) {
        put_piece(m->norm_w, NORM_HALF, i, w ? load8(w + 8 * i) : (float8)(1.0f));
#if NORM == 1
        put_piece(m->norm_b, NORM_HALF, i, b ? load8(b + 8 * i) : (float8)(0.0f));
#endif
    }
}

static inline void stage(__local block_memory *m, __global const float *x, uint k, uint item) {
#pragma unroll 2
    for (uint i = item; i < k / 8; i += ITEMS) put_piece(m->x, HALF, i, load8(x + 8 * i));
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* The same behind the norm whose weights were fetched. */
static inline void stage_norm(__local block_memory *m, __global const float *x, uint k, float eps, uint item) {
    float s = 0.0f, mean = 0.0f;
    for (uint i = item; i < k / 8; i += ITEMS) {
        const float8 v = load8(x + 8 * i);
        put_piece(m->x, HALF, i, v);
        s += sum8(NORM == 1 ? v : v * v);
    }
    s = clt_group_sum(s, m->attention.all, item);
#if NORM == 1
    mean = s / (float)k;
    s = 0.0f;
    for (uint i = item; i < k / 8; i += ITEMS) {
        const float8 d = get_piece(m->x, HALF, i) - mean;
        s += sum8(d * d);
    }
    s = clt_group_sum(s, m->attention.all, item);
#endif
    const float scale = 1.0f / sqrt(s / (float)k + eps);
    for (uint i = item; i < k / 8; i += ITEMS) {
        float8 v = (get_piece(m->x, HALF, i) - mean) * scale * get_piece(m->norm_w, NORM_HALF, i);
#if NORM == 1
        v = v + get_piece(m->norm_b, NORM_HALF, i);
#endif
        put_piece(m->x, HALF, i, v);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* The joined results of attention. */
static inline void stage_attention(__local block_memory *m, __global const float *part, uint k, uint item) {
    for (uint i = item; i < k / 8; i += ITEMS) {
        __global const float *from = part + i / D8 * SPLITS * STATE;
        float most[SPLITS], sum[SPLITS], top = -attention_inf(), l = 0.0f;
        float8 v = (float8)(0.0f), values[SPLITS];
#pragma unroll
        for (uint s = 0; s < SPLITS; s++) {
            values[s] = load8(from + s * STATE + i % D8 * 8);
            most[s] = from[s * STATE + HEAD_DIM];
            sum[s] = from[s * STATE + HEAD_DIM + 1];
            top = clt_larger(top, most[s]);
        }
#pragma unroll
        for (uint s = 0; s < SPLITS; s++) {
            const float w = clt_exp(most[s] - top);
            l = fma(w, sum[s], l);
            v = fma((float8)(w), values[s], v);
        }
        put_piece(m->x, HALF, i, v / l);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* --- attention --- */

/* Sums and statistics of one head's part of the keys. */
static inline void put_state(__global float *to, __local group_memory *g, float8 acc, float2 stat, uint item) {
    if (item < SUBS * D8) g->sums[item] = acc;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint d = item; d < HEAD_DIM; d += ITEMS) {
        float sum = 0.0f;
#pragma unroll 16
        for (uint s = 0; s < SUBS; s++) sum += ((__local const float *)g->sums)[s * HEAD_DIM + d];
        to[d] = sum;
    }
    if (item < 2) to[HEAD_DIM + item] = item ? stat.y : stat.x;
    barrier(CLK_LOCAL_MEM_FENCE); /* the sums and the query are read */
}

/* Attention's arguments; p is the position. */
typedef struct {
    uint heads, group, p, window, ldc;
    float scale, softcap, temper;
    __global const float *q, *k, *v, *angles, *slopes;
    __global ELEM *cache;
} attention_call;

/* This group's heads and parts. */
static inline void attend_parts(const attention_call *c, __global float *part, __local group_memory *g, uint item) {
    const uint first = (uint)attention_first(c->p, c->window), each = (c->p - first + SPLITS) / SPLITS, slopes_off = 0;
    __global const float *slopes = c->slopes;
    for (uint i = (uint)get_group_id(0); i < c->heads * SPLITS; i += (uint)get_num_groups(0)) {
        const uint h = i / SPLITS, at = h / c->group * HEAD_DIM, begin = first + i % SPLITS * each;
        const span a = {c->p, begin, min(begin + each, c->p + 1), c->scale, c->softcap, SLOPE(h)};
        __global ELEM *key = c->cache + at + c->p * (size_t)c->ldc;
        float8 acc = (float8)(0.0f);
        float2 stat = (float2)(-attention_inf(), 0.0f);
        if (begin <= c->p) {
            place_row(g, c->q + h * HEAD_DIM, c->k + at, c->v + at, c->angles, c->temper, a.end == c->p + 1,
                      h % c->group == 0, key, key + c->ldc / 2, item);
            stat = attend(g, &a, c->cache + at, c->ldc, &acc, item);
        }
        put_state(part + i * STATE, g, acc, stat, item);
    }
}

#define PRODUCT_ARGS(x)                                                                                      \
    uint x##_n, uint x##_k, __global const ELEM *x##_w, ulong x##_w_off, uint x##_ldw, __global const float *x##_bias, \
        ulong x##_bias_off
#define NORM_ARGS(x)                                                                                         \
    __global const float *x##_w, ulong x##_w_off, __global const float *x##_b, ulong x##_b_off
#define PLACE(p, off) ((p) ? (p) + (off) : (p))
#define PRODUCT(x)                                                                                           \
    make_product((uint)ANEW(x##_n), (uint)ANEW(x##_k), x##_w + ANEW(x##_w_off), x##_ldw, 0, 0,               \
                 PLACE(x##_bias, x##_bias_off), 0, false)
#define WIDE_PRODUCT()                                                                                       \
    make_product((uint)ANEW(up_n), (uint)ANEW(up_k), up_w + ANEW(up_w_off), up_ldw, gate + ANEW(gate_off), ldgate, \
                 PLACE(up_bias, up_bias_off), PLACE(gate_bias, gate_bias_off), GATED)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
block_step(__global uint *counter, uint limit, uint traps, float eps, __global const float *x, ulong x_off,
           __global float *qkv, ulong qkv_off, __global float *part, __global float *mid, ulong mid_off,
           __global float *hidden, ulong hidden_off, __global float *y, ulong y_off, PRODUCT_ARGS(qkv), NORM_ARGS(norm_1),
           PRODUCT_ARGS(out), PRODUCT_ARGS(up), NORM_ARGS(norm_2), __global const ELEM *gate, ulong gate_off,
           uint ldgate, __global const float *gate_bias, ulong gate_bias_off, PRODUCT_ARGS(down), uint k_at, uint v_at,
           __global ELEM *cache, ulong cache_off, uint ldc, uint room, __global const int *position, ulong position_off,
           __global const int *place, ulong place_off, __global const float *angles, ulong angles_off,
           __global const float *temperature, ulong temperature_off, __global const float *slopes, ulong slopes_off,
           uint heads, uint group, float scale, float softcap, uint window) {
    __local block_memory m;
    piece ready[2][UNROLL];
    {
        const uint item = (uint)ANEW(get_local_id(0));
        const product now = PRODUCT(qkv), next = PRODUCT(out);
        request_first(ready, &now, item);
        fetch_norm(&m, PLACE(norm_1_w, norm_1_w_off), PLACE(norm_1_b, norm_1_b_off), now.k, item);
        stage_norm(&m, x + ANEW(x_off), now.k, eps, item);
        multiply(&now, &next, ready, &m, item);
        finish(&now, false, 0, qkv + ANEW(qkv_off), &m, item);
        grid_arrive(counter, item);
    }
    {
        const uint item = (uint)ANEW(get_local_id(0));
        const uint p = (uint)position[position_off];
        __global const float *q = qkv + ANEW(qkv_off);
        const attention_call c = {heads, group, p, window, ldc, scale, softcap, TEMPER ? temperature[temperature_off + p] : 1.0f,
                                  q, q + k_at, q + v_at, angles + angles_off + p * (size_t)ROTATED, slopes + slopes_off,
                                  cache + cache_off + (size_t)place[place_off] * room * ldc};
        grid_await(counter, 1, limit, traps, item);
        attend_parts(&c, part, &m.attention, item);
        grid_barrier(counter, 2, limit, traps, item);
    }
    {
        const uint item = (uint)ANEW(get_local_id(0));
        const product now = PRODUCT(out), next = WIDE_PRODUCT();
        stage_attention(&m, part, now.k, item);
        multiply(&now, &next, ready, &m, item);
        finish(&now, false, x + ANEW(x_off), mid + ANEW(mid_off), &m, item);
        grid_arrive(counter, item);
        fetch_norm(&m, PLACE(norm_2_w, norm_2_w_off), PLACE(norm_2_b, norm_2_b_off), next.k, item);
        grid_await(counter, 3, limit, traps, item);
    }
    {
        const uint item = (uint)ANEW(get_local_id(0));
        const product now = WIDE_PRODUCT(), next = PRODUCT(down);
        stage_norm(&m, mid + ANEW(mid_off), now.k, eps, item);
        multiply(&now, &next, ready, &m, item);
        finish(&now, true, 0, hidden + ANEW(hidden_off), &m, item);
        grid_barrier(counter, 4, limit, traps, item);
    }
    {
        const uint item = (uint)ANEW(get_local_id(0));
        const product now = PRODUCT(down);
        stage(&m, hidden + ANEW(hidden_off), now.k, item);
        multiply(&now, 0, ready, &m, item);
        finish(&now, false, mid + ANEW(mid_off), y + ANEW(y_off), &m, item);
        grid_leave(counter, item);
    }
}
