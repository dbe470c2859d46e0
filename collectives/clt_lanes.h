/* clt_lanes: a global batch in lanes, and one rank's sums over its lanes (docs/numerics.md, rule 11).
 *
 * A global batch is cut into a fixed number of lanes, whatever the number of ranks. Each rank owns whole
 * neighbouring lanes and adds the gradients of neighbouring lanes as they become complete. What is left are
 * the sums of its maximal whole subtrees of the binary tree over lane numbers; clt_reduce.h adds those of all
 * ranks. No function here talks to another rank. */
#ifndef CLT_LANES_H
#define CLT_LANES_H

#include "runtime/device/clt_slab.h"

/* --- who owns which lanes and samples --- */

/* The lanes of a global batch (a power of two) divided among ranks: each owns whole neighbouring ones, at
 * least one, in the order of the ranks. Which rank owns which changes no bit. */
typedef struct {
    int lanes, ranks;
    const int *count; /* [ranks] lanes of each rank, `lanes` in all. NULL: rank r starts at
                         floor(lanes * r / ranks). Borrowed */
    bool dealt; /* lanes are dealt out in rounds instead: in each, every rank that has not got all of its
                   lanes yet takes the next one, in the order of the ranks */
    bool chain; /* with dealt: the total is the chain of additions over lane numbers, not the tree: one sum is
                   kept between rounds. Which lane comes when then changes bits */
} clt_lane_split;
/* The first lane of `rank`; for rank == ranks the number of lanes. Not for lanes that are dealt out. */
int clt_lane_begin(const clt_lane_split *s, int rank);
/* How many lanes a rank owns, and its lane i (< count); rounds: the most of any rank. */
int clt_lane_count(const clt_lane_split *s, int rank);
int clt_lane_at(const clt_lane_split *s, int rank, int i);
int clt_lane_rounds(const clt_lane_split *s);
/* Divides lanes by speed (any unit, all above 0) so that the slowest rank finishes first: the largest
 * count / speed is as small as possible. Sets count[ranks]. ranks <= lanes. */
void clt_lane_counts_by_speed(int lanes, int ranks, const double *speed, int *count);
/* Lane i of a global batch of `samples` has the samples [begin(i), begin(i + 1)):
 * begin(i) = floor(i * samples / lanes). */
int64_t clt_lane_sample_begin(int64_t samples, int lanes, int lane);

/* --- one rank's sums --- */

enum { CLT_LANE_LEVELS = 32 /* of the tree at most */ };

/* The sum over one whole subtree: lanes [first, first + width), width a power of two that divides first.
 * empty: none of its lanes has a sample; slab is NULL and there is nothing to add. */
typedef struct {
    int first, width;
    bool empty;
    clt_slab *slab; /* borrowed */
} clt_lane_sum;

/* dst += src, fp32, `count` elements, queued on the device. */
typedef clt_status (*clt_add_fn)(void *ctx, clt_ref dst, clt_ref src, uint64_t count);

/* Takes the lanes of one rank in order: hands out a slab for each lane's gradients and adds neighbouring
 * subtrees as soon as both are complete, like the carries of a binary counter, so that few slabs suffice. */
typedef struct clt_lane_stack clt_lane_stack;
/* Slabs that lanes [first, last) of global batches of at most `samples` samples need at once; at least 1. */
int clt_lane_slabs_needed(int lanes, int first, int last, int64_t samples);
/* `slabs`: n >= clt_lane_slabs_needed of them, borrowed. */
clt_lane_stack *clt_lane_stack_create(int first, int last, clt_slab **slabs, int n, clt_add_fn add,
                                      void *add_ctx);
void clt_lane_stack_destroy(clt_lane_stack *s);
/* Starts a global batch. */
void clt_lane_stack_begin(clt_lane_stack *s);
/* The slab for the next lane's gradients; its contents are undefined. NULL: none is free. */
clt_slab *clt_lane_stack_slab(clt_lane_stack *s);
/* The next lane is complete. empty: it has no sample and took no slab. */
clt_status clt_lane_stack_push(clt_lane_stack *s, bool empty);
/* The same for a lane that has samples and is the rank's last one, before its gradients are complete: then
 * the additions that complete subtrees are made range by range, by clt_lane_stack_settle, as soon as the
 * lane's gradients in that range are queued. */
clt_status clt_lane_stack_push_early(clt_lane_stack *s);
clt_status clt_lane_stack_settle(clt_lane_stack *s, clt_slab_range x);
/* After the last lane: the n maximal whole subtrees, ascending, for clt_group_reduce. Borrowed until begin.
 */
const clt_lane_sum *clt_lane_stack_sums(clt_lane_stack *s, int *n);
/* The slab that takes the total: that of the first sum that is not empty, or a free one. */
clt_slab *clt_lane_stack_total(clt_lane_stack *s);

#endif
