/* attention_step: attention of one new position for each of several texts that grow (README.md defines the scores).
 * In one launch it places q and k (temperature, rotary angles), appends k and v to the cache, and attends.
 *
 * Row r is position p = position[r] of the text whose keys and values are the cache's rows place[r] * room ... A
 * work-group has one row, one head and `each` keys, in blocks of ITEMS: an item has one key of the scores; for the
 * output it has 8 elements of the head and every SUBS-th key. With several groups a row the results are joined by
 * attention_step_join.
 *
 *   ROTATED   rotary dimensions of a head, 0 without
 *   TEMPER    1: queries are multiplied by a factor of their position
 *   APPEND    0: k and v are in the cache already (layers that share them)
 *   HEAD_DIM (a multiple of 8), TYPE of the cache, ALIBI, SOFTCAP, WINDOW: attention.clh
 *   ITEMS     work-items of a group, a multiple of 4, at least HEAD_DIM / 8
 *   FETCH_AHEAD  not 0: the launch also asks for memory that the next ones read, to be in the L2 cache then (NVIDIA,
 *             from sm_90 on): attention moves little and leaves the memory idle
 *
 * q, k, v: fp32 rows [heads * D | kv_heads * D | kv_heads * D] at q, k_at and v_at of a row of ldq. cache: rows of ldc
 * elements [k | v]. o: fp32 [rows, ldo]. part: [rows, heads, groups, D + 2].
 * Launch: local {ITEMS, 1, 1}, global {ITEMS * groups, heads, rows}.
 * Numerics fast: the order of sums depends on ITEMS and `each`. Bound: the bytes of the cached keys and values. */
#include "attention.clh"

#ifndef ROTATED
#define ROTATED 0
#endif
#ifndef TEMPER
#define TEMPER 0
#endif
#ifndef APPEND
#define APPEND 1
#endif
#ifndef ITEMS
#define ITEMS 256
#endif
#ifndef FETCH_AHEAD
#define FETCH_AHEAD 0
#endif
#include "../include/clt_team.clh"
#if !CAUSAL || SEQ_IDS || DROPOUT || HEAD_DIM % 8 || HEAD_DIM / 8 > ITEMS || ROTATED % 2 || ROTATED > HEAD_DIM
#error "causal, without sequence ids and dropout; HEAD_DIM is a multiple of 8"
#endif
#define D8 (HEAD_DIM / 8)
#define SUBS (ITEMS / D8)
#define PART (HEAD_DIM + 2)
#define AHEAD 8 /* pieces of 8 elements that a work-item requests at a time */

/* Element d of a head at x, rotated by the angles of a position: cs holds (cos, sin) of each pair. */
static inline float rotated(__global const float *x, __global const float *cs, uint d) {
#if ROTATED
    if (d < ROTATED) {
        const uint pairs = ROTATED / 2, i = d % pairs;
        const float c = cs[2 * i], s = cs[2 * i + 1], u = x[i], v = x[i + pairs];
        return d < pairs ? u * c - v * s : v * c + u * s;
    }
#endif
    return x[d];
}

static inline float8 local8(__local const float *p) {
    return (float8)(((__local const float4 *)p)[0], ((__local const float4 *)p)[1]);
}

/* All pieces of a key are requested before the first is used. */
static inline float dot_cached(__local const float *query, __global const ELEM *key) {
    float8 s = (float8)(0.0f);
#pragma unroll
    for (uint first = 0; first < D8; first += AHEAD) {
        CLT_T8(TYPE) piece[AHEAD];
#pragma unroll
        for (uint i = 0; i < AHEAD; i++)
            if (first + i < D8) piece[i] = CLT_FETCH8(TYPE, key + 8 * (first + i));
#pragma unroll
        for (uint i = 0; i < AHEAD; i++)
            if (first + i < D8) s = fma(local8(query + 8 * (first + i)), CLT_WIDEN8(TYPE, piece[i]), s);
    }
    const float4 t = s.lo + s.hi;
    return (t.x + t.y) + (t.z + t.w);
}
static inline float dot_new(__local const float *query, __local const float *key) {
    float s = 0.0f;
    for (uint d = 0; d < HEAD_DIM; d++) s = fma(query[d], key[d], s);
    return s;
}

/* A work-group's local memory. */
typedef struct {
    float query[HEAD_DIM], key[HEAD_DIM], value[HEAD_DIM]; /* of the new position */
    float weight[ITEMS], all[ITEMS];
    float8 sums[SUBS * D8];
} group_memory;

#if FETCH_AHEAD
#define PIECE 16384 /* bytes that a work-item asks for at a time */
/* This group's pieces of `bytes` bytes at p, both multiples of 16; all groups of the launch take turns. */
static inline void fetch_ahead(__global const char *p, ulong bytes, uint item) {
    const uint groups = (uint)(get_num_groups(0) * get_num_groups(1) * get_num_groups(2));
    const uint group =
        (uint)((get_group_id(2) * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0));
    for (ulong at = (item * (ulong)groups + group) * PIECE; at < bytes; at += (ulong)ITEMS * groups * PIECE) {
        const uint n = (uint)min((ulong)PIECE, bytes - at);
        __asm__ volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p + at), "r"(n));
    }
}
#endif

/* What a work-group attends to: keys begin ... end - 1 of the new position p. */
typedef struct {
    uint p, begin, end;
    float scale, softcap, slope;
} span;

/* The query and, where the span ends with the new position, its key and value; `keep` appends these to the
 * cache's row. */
static inline void place_row(__local group_memory *g, __global const float *q, __global const float *k,
                             __global const float *v, __global const float *angles, float temper, bool last, bool keep,
                             __global ELEM *to_key, __global ELEM *to_value, uint item) {
    for (uint d = item; d < HEAD_DIM; d += ITEMS) {
        g->query[d] = rotated(q, angles, d) * temper;
#if APPEND
        if (!last) continue;
        const ELEM key = PUT(rotated(k, angles, d)), value = PUT(v[d]);
        g->key[d] = GET(key);
        g->value[d] = GET(value);
        if (keep) {
            to_key[d] = key;
            to_value[d] = value;
        }
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Adds this item's share of a block's n values, with their weights. The last one may be new. */
static inline void add_values(float8 *acc, __local const group_memory *g, __global const ELEM *values, uint ldc, uint block,
                              uint n, uint p, uint sub) {
    const uint cached = APPEND && block + n == p + 1 ? n - 1 : n;
    if (sub >= SUBS) return;
    for (uint first = sub; first < cached; first += AHEAD * SUBS) {
        CLT_T8(TYPE) piece[AHEAD];
#pragma unroll
        for (uint i = 0; i < AHEAD; i++)
            piece[i] = CLT_FETCH8(TYPE, values + (block + min(first + i * SUBS, cached - 1)) * (size_t)ldc);
#pragma unroll
        for (uint i = 0; i < AHEAD; i++)
            if (first + i * SUBS < cached)
                *acc = fma((float8)(g->weight[first + i * SUBS]), CLT_WIDEN8(TYPE, piece[i]), *acc);
    }
    if (cached < n && sub == 0)
        *acc = fma((float8)(g->weight[cached]), local8(g->value + (uint)get_local_id(0) % D8 * 8), *acc);
}

/* The span's sums: `acc`, this item's 8 elements over its share of the keys; returns maximum and sum of weights. */
static inline float2 attend(__local group_memory *g, const span *a, __global const ELEM *keys, uint ldc, float8 *acc,
                            uint item) {
    const uint lane = item % D8, sub = item / D8;
    __global const ELEM *values = keys + ldc / 2 + lane * 8;
    float m = -attention_inf(), l = 0.0f;
    *acc = (float8)(0.0f);
    for (uint block = a->begin; block < a->end; block += ITEMS) {
        const uint j = block + item, n = min(a->end - block, (uint)ITEMS);
        float s = -attention_inf(), unused;
        if (j < a->end) {
            s = APPEND && j == a->p ? dot_new(g->query, g->key) : dot_cached(g->query, keys + j * (size_t)ldc);
            s = scored(s, a->scale, a->softcap, a->slope, (int)j - (int)a->p, &unused);
        }
        const float most = clt_larger(m, clt_group_max(s, g->all, item)), base = most == -attention_inf() ? 0.0f : most;
        const float again = clt_exp(m - base), w = clt_exp(s - base);
        g->weight[item] = w;
        l = fma(l, again, clt_group_sum(w, g->all, item)); /* its barriers publish the weights */
        m = most;
        *acc = *acc * again;
        add_values(acc, g, values, ldc, block, n, a->p, sub);
    }
    return (float2)(m, l);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_step(__global const float *q, ulong q_off, uint ldq, uint k_at, uint v_at, __global ELEM *cache,
               ulong cache_off, uint ldc, uint room, __global const int *position, ulong position_off,
               __global const int *place, ulong place_off, __global const float *angles, ulong angles_off,
               __global const float *temperature, ulong temperature_off, __global const float *slopes, ulong slopes_off,
               uint group, float scale, float softcap, uint window, uint each, __global float *o, ulong o_off, uint ldo,
               __global float *part, __global const char *ahead0, ulong ahead0_off, ulong bytes0,
               __global const char *ahead1, ulong ahead1_off, ulong bytes1, __global const char *ahead2,
               ulong ahead2_off, ulong bytes2) {
    __local group_memory g;
    const uint item = (uint)get_local_id(0), h = (uint)get_group_id(1), r = (uint)get_group_id(2), kv = h / group;
    const uint p = (uint)position[position_off + r];
    const uint begin = (uint)attention_first(p, window) + (uint)get_group_id(0) * each;
    const span a = {p, begin, min(begin + each, p + 1), scale, softcap, SLOPE(h)};
#if FETCH_AHEAD
    fetch_ahead(ahead0 + ahead0_off, bytes0, item);
    fetch_ahead(ahead1 + ahead1_off, bytes1, item);
    fetch_ahead(ahead2 + ahead2_off, bytes2, item);
#endif
    if (begin > p) return;
    q += q_off + r * (size_t)ldq;
    cache += cache_off + (size_t)place[place_off + r] * room * ldc + kv * HEAD_DIM;
    place_row(&g, q + h * HEAD_DIM, q + k_at + kv * HEAD_DIM, q + v_at + kv * HEAD_DIM,
              angles + angles_off + p * (size_t)ROTATED, TEMPER ? temperature[temperature_off + p] : 1.0f,
              a.end == p + 1, h % group == 0, cache + p * (size_t)ldc, cache + p * (size_t)ldc + ldc / 2, item);
    float8 acc;
    const float2 stat = attend(&g, &a, cache, ldc, &acc, item);
    if (item < SUBS * D8) g.sums[item] = acc;
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool alone = get_num_groups(0) == 1;
    part += ((r * get_num_groups(1) + h) * get_num_groups(0) + get_group_id(0)) * PART;
    o += o_off + r * (size_t)ldo + h * HEAD_DIM;
    for (uint d = item; d < HEAD_DIM; d += ITEMS) {
        float sum = 0.0f;
#pragma unroll 8
        for (uint s = 0; s < SUBS; s++) sum += ((__local const float *)g.sums)[s * HEAD_DIM + d];
        if (alone)
            o[d] = sum / stat.y;
        else
            part[d] = sum;
    }
    if (item < 2 && !alone) part[HEAD_DIM + item] = item ? stat.y : stat.x;
}

/* The groups of a row and head together. A group whose keys begin after the row's position wrote nothing.
 * Launch: {heads * D rounded up to 64, rows} in groups of 64. */
__kernel void attention_step_join(__global const float *part, uint groups, uint heads, __global const int *position,
                                  ulong position_off, uint window, uint each, __global float *o, ulong o_off, uint ldo) {
    const uint column = (uint)get_global_id(0), r = (uint)get_global_id(1), h = column / HEAD_DIM, d = column % HEAD_DIM;
    if (h >= heads) return;
    const uint p = (uint)position[position_off + r], keys = p + 1 - (uint)attention_first(p, window);
    const uint used = (keys + each - 1) / each;
    part += (r * (size_t)heads + h) * groups * PART;
    float m = -attention_inf(), l = 0.0f, sum = 0.0f;
    for (uint g = 0; g < used; g++) m = clt_larger(m, part[g * PART + HEAD_DIM]);
    for (uint g = 0; g < used; g++) {
        const float w = clt_exp(part[g * PART + HEAD_DIM] - m);
        l = fma(w, part[g * PART + HEAD_DIM + 1], l);
        sum = fma(w, part[g * PART + d], sum);
    }
    o[o_off + r * (size_t)ldo + column] = sum / l;
}
