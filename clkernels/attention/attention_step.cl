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
 *
 * q, k, v: fp32 rows [heads * D | kv_heads * D | kv_heads * D] at q, k_at and v_at of a row of ldq. cache: rows of ldc
 * elements [k | v]. o: fp32 [rows, ldo]. part: [rows, heads, groups, D + 2].
 * Launch: local {ITEMS, 1, 1}, global {ITEMS * groups, heads, rows}.
 * Numerics fast: the order of sums depends on ITEMS and `each`. Bound: the bytes of the cached keys and values. */
#include "attention_step.clh"

#define PART (HEAD_DIM + 2)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_step(__global const float *q, ulong q_off, uint ldq, uint k_at, uint v_at, __global ELEM *cache,
               ulong cache_off, uint ldc, uint room, __global const int *position, ulong position_off,
               __global const int *place, ulong place_off, __global const float *angles, ulong angles_off,
               __global const float *temperature, ulong temperature_off, __global const float *slopes, ulong slopes_off,
               uint group, float scale, float softcap, uint window, uint each, __global float *o, ulong o_off, uint ldo,
               __global float *part) {
    __local group_memory g;
    const uint item = (uint)get_local_id(0), h = (uint)get_group_id(1), r = (uint)get_group_id(2), kv = h / group;
    const uint p = (uint)position[position_off + r];
    const uint begin = (uint)attention_first(p, window) + (uint)get_group_id(0) * each;
    const span a = {p, begin, min(begin + each, p + 1), scale, softcap, SLOPE(h)};
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
