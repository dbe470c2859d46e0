/* greedy: of each row of logits the column of the largest element, which is the likeliest next token of a text. Of
 * equal elements the first counts; NaN counts as -infinity.
 *
 *   ITEMS   work-items of a group, 1 or a power of two
 *
 * greedy_part: each group looks through `each` columns of a row; part [rows, groups].
 * Launch: local {ITEMS, 1}, global {ITEMS * groups, rows}.
 * greedy_join: a row's groups together; position[r], where it is given, is increased by 1.
 * Launch: local {ITEMS}, global {ITEMS * rows}.
 * Requires nothing. Bound: the bytes of the logits. */
#include "../include/clt_types.clh"

#ifndef ITEMS
#define ITEMS 256
#endif

typedef struct {
    float value;
    uint column;
} choice;

static inline choice better(choice a, choice b) {
    const bool second = b.value > a.value || (b.value == a.value && b.column < a.column);
    return second ? b : a;
}

/* The best of the group's choices, in work-item 0. */
static inline choice best_of_group(choice mine, __local choice *all, uint item) {
    all[item] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint d = ITEMS / 2; d > 0; d /= 2) {
        if (item < d) all[item] = better(all[item], all[item + d]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    return all[0];
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
greedy_part(uint cols, uint each, __global const float *x, ulong x_off, uint ldx, __global choice *part) {
    __local choice all[ITEMS];
    const uint item = (uint)get_local_id(0), row = (uint)get_global_id(1);
    const uint first = (uint)get_group_id(0) * each, end = min(cols, first + each);
    choice mine = {-INFINITY, min(first + item, end - 1)};
    x += x_off + row * (size_t)ldx;
#pragma unroll 4
    for (uint c = first + item; c < end; c += ITEMS) {
        const float v = x[c];
        if (v > mine.value) mine = (choice){v, c};
    }
    mine = best_of_group(mine, all, item);
    if (item == 0) part[row * get_num_groups(0) + get_group_id(0)] = mine;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
greedy_join(uint groups, __global const choice *part, __global int *token, ulong token_off, __global int *position,
            ulong position_off) {
    __local choice all[ITEMS];
    const uint item = (uint)get_local_id(0), row = (uint)get_group_id(0);
    part += row * (size_t)groups;
    choice mine = part[min(item, groups - 1)];
    for (uint g = item + ITEMS; g < groups; g += ITEMS) mine = better(mine, part[g]);
    mine = best_of_group(mine, all, item);
    if (item) return;
    token[token_off + row] = (int)mine.column;
    if (position) position[position_off + row] += 1;
}
