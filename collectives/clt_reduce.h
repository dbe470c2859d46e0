/* clt_reduce: gradients and weights between the ranks of a group, bucket by bucket, while devices compute.
 *
 * A plan is made once, by all ranks together; it holds all memory that exchanges need. The slab of all
 * parameters is cut into buckets, and of each bucket every rank owns a range (clt_shards.h). An operation
 * moves one bucket: a reduction gives every owner the total over all lanes of its range, a gather hands every
 * owner's range to all ranks. Every rank begins the same operations in the same order, as soon as its device
 * has queued what they read, and joins an operation before it queues what needs its result. In between
 * nothing waits: copies and additions run in queues of their own (clt_mark.h), and whatever wait the host is
 * in moves the operations on.
 *
 * Additions run on the devices (small ones of CPU devices on the host), in the order of the tree over lane
 * numbers that docs/numerics.md fixes; what moves the bytes between ranks adds nothing. So the wire that
 * serves a plan ("shm", "hosts", "mpi") changes no bit of fp32 sums, and neither do the number of ranks, the
 * ranges, or when an operation is begun. */
#ifndef CLT_REDUCE_H
#define CLT_REDUCE_H

#include "collectives/clt_group.h"
#include "collectives/clt_lanes.h"
#include "runtime/device/clt_shards.h"
#include "runtime/device/clt_sum_parts.h"

/* --- plans --- */

/* dst = src in the other type, `count` elements, queued: to bf16 rounded to nearest even, to fp32 exactly. */
typedef clt_status (*clt_cast_fn)(void *ctx, clt_ref dst, clt_ref src, uint64_t count);
/* A sum of parts, queued. */
typedef clt_status (*clt_sum_fn)(void *ctx, const clt_sum_parts *s);
/* What the reduction computes with on the device. With both casts gradients travel as bf16: every rank rounds
 * its subtree sums, they are added in fp32, and the total is rounded once more; with "hosts" the sums of a
 * host's subtrees are rounded, too, before they travel to other hosts. Half the bytes travel, and which rank
 * owns which lanes changes bits. A single rank rounds nothing. */
typedef struct {
    clt_add_fn add;
    clt_sum_fn sum;              /* the same additions and roundings in one call; NULL: two parts at a time */
    clt_cast_fn to_bf16, to_f32; /* NULL: gradients travel as fp32 */
    void *ctx;
} clt_reduce_math;

typedef struct clt_reduce_plan clt_reduce_plan;
/* All ranks of g call it together, with equal shards (shards->ranks and split->ranks are g's size), split and
 * presence of casts; all that later calls need is allocated here. CLT_BAD_CONFIG on every rank if there are
 * more ranks than lanes, or no wire serves all ranks. g, dev, shards and split->count are borrowed until it
 * is destroyed. */
clt_status clt_reduce_plan_create(clt_group *g, clt_device *dev, const clt_shards *shards,
                                  const clt_lane_split *split, const clt_reduce_math *math,
                                  clt_reduce_plan **out);
/* A plan that only gathers slabs, over a group g of some of the ranks of `shards`: rank r of g owns what its
 * rank r * each + turn owns. The same rules hold. */
clt_status clt_gather_plan_create(clt_group *g, clt_device *dev, const clt_shards *shards, int each, int turn,
                                  clt_reduce_plan **out);
/* Waits for what this rank still has to hand to others. NULL: nothing. */
void clt_reduce_plan_destroy(clt_reduce_plan *p);
/* What moves the bytes of the plan: "shm", "hosts", "mpi"; "loopback": there is one rank. */
const char *clt_reduce_plan_wire(const clt_reduce_plan *p);
/* Bytes that this rank has sent in messages so far; with "hosts" that is what has left its host. */
uint64_t clt_reduce_plan_sent(const clt_reduce_plan *p);
/* Device bytes that a plan holds at most, with per_host ranks on this rank's host; for the memory plan, needs
 * no device and no group. shares_host: as clt_device_shares_host. */
uint64_t clt_reduce_plan_bytes(const clt_shards *shards, const clt_lane_split *split, int per_host, bool bf16,
                               bool shares_host);

/* --- operations --- */

/* The next reductions belong to a global batch of `samples` samples, which says which lanes are empty. Where
 * lanes are dealt out (clt_lane_split.dealt) they belong to its first round. */
clt_status clt_reduce_batch(clt_reduce_plan *p, int64_t samples);
/* The next reductions belong to the batch's next round; the one before it has been begun completely. */
clt_status clt_reduce_next_round(clt_reduce_plan *p);
/* Results that wait between two rounds: the complete subtrees that `rounds` rounds of a batch leave, in
 * level[0 ...]. 0: none has been made; 1 after the last one, and without rounds: the total. */
int clt_reduce_kept(const clt_lane_split *split, int rounds);
/* The most of them at once: slabs of results that a batch needs. */
int clt_reduce_levels(const clt_lane_split *split);

/* A bucket, or its elements in [within.first, within.first + within.count). The same on all ranks. */
typedef struct {
    int bucket;
    clt_slab_range within;
} clt_bucket_part;
static inline clt_bucket_part clt_whole_bucket(int bucket) {
    return (clt_bucket_part){bucket, {0, UINT64_MAX}};
}

/* Begins the reduction of (a part of) a bucket. `sums`: the n maximal whole subtrees of this rank's lanes,
 * ascending, as clt_lane_stack_sums gives them, or with rounds its lane, if it has one; what computes them
 * there is queued on the compute queue. Their contents in this part of the bucket are undefined after it.
 * level[0 ... levels - 1]: where the results for that range go, which must have it; borrowed, like the sums,
 * until the operation is joined. Without rounds, and after the last round, level[0] has the total; between
 * rounds the levels belong to the plan. A level is the slab of one of the sums, or none of them. *op: the
 * operation's number, which grows. */
clt_status clt_reduce_begin(clt_reduce_plan *p, clt_bucket_part part, const clt_lane_sum *sums, int n,
                            clt_slab *const *level, int64_t *op);

/* What a gather hands over. */
typedef enum {
    CLT_GATHER_AS_IT_IS, /* elements of any slab */
    CLT_GATHER_TOTALS    /* totals of a reduction: as bf16 where gradients travel so */
} clt_gather_kind;
/* Begins a gather of (a part of) a bucket: the own range of `from`, whose elements are queued on the compute
 * queue, and those of all other ranks, into `to`, which may be the same slab and must have all of the part.
 * only: `n` ascending ranges of elements, the same on all ranks, borrowed until the operation is joined; what
 * lies outside of them does not travel. NULL: all of it. */
clt_status clt_gather_begin(clt_reduce_plan *p, clt_bucket_part part, clt_slab *from, clt_slab *to,
                            clt_gather_kind kind, const clt_slab_range *only, int n, int64_t *op);
/* The same for numbers of 4 bytes, one for each chunk of the slab: every rank brings those of the chunks that
 * it owns. */
clt_status clt_gather_chunks_begin(clt_reduce_plan *p, clt_buffer *numbers, int64_t *op);

/* What the queue in use gets from here on sees the results of all operations up to op, and may write to what
 * these read. Waits for other ranks, with the group's deadline, until all that is left is queued. */
clt_status clt_exchange_join(clt_reduce_plan *p, int64_t op);
/* Moves operations on as far as they can go without waiting. The queue in use stays in use. */
clt_status clt_exchange_pump(clt_reduce_plan *p);

/* --- whole slabs, in one call --- */

/* The total over all lanes into `total` on every rank: reductions and gathers of all buckets. */
clt_status clt_group_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
/* The total of its own ranges on each rank, with the same bits; the rest of `total` is undefined. */
clt_status clt_group_reduce_scatter(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
/* Every rank's own ranges of s, fp32 or 16-bit, to all ranks, as they are. */
clt_status clt_group_all_gather_slab(clt_reduce_plan *p, clt_slab *s);

#endif
