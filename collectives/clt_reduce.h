/* clt_reduce: the gradient of a global batch from the lane sums of all ranks of a group, and who owns which
 * part of a slab.
 *
 * A plan is made once, by all ranks together; it holds all memory that an exchange needs. For each global
 * batch every rank brings the sums of its lanes (clt_lanes.h). Additions run on the devices, in the order of
 * the tree over lane numbers that docs/numerics.md fixes; what moves the bytes between ranks adds nothing. So
 * the exchange that serves a plan ("loopback", "shm", "mpi") changes no bit. */
#ifndef CLT_REDUCE_H
#define CLT_REDUCE_H

#include "collectives/clt_group.h"
#include "collectives/clt_lanes.h"

/* --- who owns what of a slab --- */

/* The chunks of a slab are dealt out to the ranks of a group in runs of equal length: run k belongs to rank
 * k % ranks, and only the slab's end may cut one short. Every CLT_BUCKET_CHUNKS chunks or so, each rank owns
 * one run, so that all ranks can work on a part of the slab as soon as its gradients are final. Ranges are
 * whole chunks: the optimizer, chunk sums of squares and shards of checkpoints can work on a rank's own
 * ranges alone. Ownership is a function of the slab's size and the number of ranks; it changes no bit. */
enum { CLT_BUCKET_CHUNKS = 64 /* 16 MiB of fp32 */ };
/* Elements of a run, a multiple of CLT_CHUNK. */
uint64_t clt_owned_run(const clt_slab_table *t, int ranks);
/* Range i = 0, 1, ... of those that `rank` owns, ascending; count 0: it owns no more. */
clt_slab_range clt_owned_range(const clt_slab_table *t, int ranks, int rank, uint64_t i);

/* --- plans --- */

/* dst = src in the other type, `count` elements, queued: to bf16 rounded to nearest even, to fp32 exactly. */
typedef clt_status (*clt_cast_fn)(void *ctx, clt_ref dst, clt_ref src, uint64_t count);
/* What the reduction computes with on the device. With both casts gradients travel as bf16: every rank rounds
 * its subtree sums, they are added in fp32, and the total is rounded once more. Half the bytes travel, and
 * which rank owns which lanes changes bits. A single rank rounds nothing. */
typedef struct {
    clt_add_fn add;
    clt_cast_fn to_bf16, to_f32; /* NULL: gradients travel as fp32 */
    void *ctx;
} clt_reduce_math;

typedef struct clt_reduce_plan clt_reduce_plan;
/* For slabs of table t. All ranks of g call it together, with the same table, split (split->ranks is g's
 * size) and presence of casts; all that later calls need is allocated here. CLT_BAD_CONFIG on every rank if
 * there are more ranks than lanes, or no exchange serves all ranks. g, dev, t and split->count are borrowed
 * until it is destroyed. */
clt_status clt_reduce_plan_create(clt_group *g, clt_device *dev, const clt_slab_table *t,
                                  const clt_lane_split *split, const clt_reduce_math *math,
                                  clt_reduce_plan **out);
void clt_reduce_plan_destroy(clt_reduce_plan *p);
/* The exchange that serves the plan: "loopback", "shm", "mpi". */
const char *clt_reduce_plan_exchange(const clt_reduce_plan *p);
/* Device bytes that a plan holds at most, for the memory plan; needs no device and no group. */
uint64_t clt_reduce_plan_bytes(const clt_slab_table *t, const clt_lane_split *split, bool bf16);

/* --- one global batch --- */

/* The total over all lanes into `total` on every rank. `sums`: the n maximal whole subtrees of this rank's
 * lanes, ascending; `total` may be the slab of one of them. n < 0: this rank gives the step up; then all
 * ranks return CLT_STOPPED, without a message, and the contents of `total` are undefined. */
clt_status clt_group_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
/* The same, but each rank gets the total of its own ranges only, with the bits that clt_group_reduce gives;
 * the rest of `total` is undefined. */
clt_status clt_group_reduce_scatter(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
/* Every rank's own ranges of s, fp32 or 16-bit, to all ranks, as they are. s has the plan's table. */
clt_status clt_group_all_gather_slab(clt_reduce_plan *p, clt_slab *s);

#endif
