/* clt_reduce: the gradient of a global batch from the lane sums of all ranks of a group.
 *
 * A plan is made once, by all ranks together; it holds all memory that an exchange needs. For each global
 * batch every rank brings the sums of its lanes (clt_lanes.h). Additions run on the devices, in the order of
 * the tree over lane numbers that docs/numerics.md fixes; what moves the bytes between ranks adds nothing. */
#ifndef CLT_REDUCE_H
#define CLT_REDUCE_H

#include "collectives/clt_group.h"
#include "collectives/clt_lanes.h"

/* dst = src in the other type, queued: to bf16 rounded to nearest even, to fp32 as it is. */
typedef clt_status (*clt_cast_fn)(void *ctx, clt_ref dst, clt_ref src, uint64_t count);
/* What the reduction computes with on the device. With both casts gradients travel as bf16: every rank rounds
 * its subtree sums, which are added in fp32 as ever, and the total is rounded once more; so half the bytes
 * travel, and who owns which lanes changes bits. One rank rounds nothing. */
typedef struct {
    clt_add_fn add;
    clt_cast_fn to_bf16, to_f32; /* NULL: gradients travel as fp32 */
    void *ctx;
} clt_reduce_math;

/* Prepares what clt_group_reduce needs for slabs of this table (windows, buffers): all allocation happens
 * here. The ranks' sums are those of `split`, the same on every rank, as is whether `math` has casts. */
typedef struct clt_reduce_plan clt_reduce_plan;
clt_status clt_reduce_plan_create(clt_group *g, clt_device *dev, const clt_slab_table *t,
                                  const clt_lane_split *split, const clt_reduce_math *math,
                                  clt_reduce_plan **out);
void clt_reduce_plan_destroy(clt_reduce_plan *p);
/* Device bytes that the plan holds, for the memory plan (also before any device is there). */
uint64_t clt_reduce_plan_bytes(const clt_slab_table *t, const clt_lane_split *split, bool bf16);
/* The total over all lanes, the binary tree over lane numbers with empty subtrees skipped, into `total` on
 * every rank (which may be sums[0].slab). `sums`: this rank's maximal whole subtrees, ascending. n < 0: this
 * rank gives the step up; then no rank gets a total and all return CLT_STOPPED, without a message. */
clt_status clt_group_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);

#endif
