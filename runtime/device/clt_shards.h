/* clt_shards: which rank owns which part of a slab, so that each rank keeps, updates and saves its part only.
 *
 * The slab's elements are cut into buckets; in each bucket every rank owns one contiguous range, in the order
 * of the ranks, possibly an empty one. A bucket is what ranks exchange at once: each has work for all ranks.
 * Ownership is a function of the table, the number of ranks and optional weights. It changes no bit of a run.
 *
 * All borders are chunk borders (multiples of CLT_CHUNK elements) that cut neither a chunk of a checkpoint
 * nor a tensor that is smaller than such a chunk, so that an owner can write its own chunks of a checkpoint;
 * the last border is the end of the table, in a table that is not finished, too. The stretches between
 * neighbouring borders of this kind are atoms: they have 1 to about 16 chunks.
 *
 *     clt_shards s;
 *     CLT_TRY(clt_shards_create(&table, ranks, NULL, &s));
 *     for (int b = 0; b < s.buckets; b++) {
 *         clt_slab_range own = clt_shards_range(&s, b, rank);
 *         ...
 *     }
 *     clt_shards_free(&s); */
#ifndef CLT_SHARDS_H
#define CLT_SHARDS_H

#include "runtime/device/clt_slab.h"

enum {
    CLT_CKPT_CHUNK = 16 * CLT_CHUNK, /* elements of a tensor that a checkpoint stores as one chunk, counted
                                      * from the tensor's start; the last chunk of a tensor has fewer */
    CLT_BUCKET_MIN_CHUNKS = 64,      /* 16 MiB of fp32 */
    CLT_BUCKET_MAX_CHUNKS = 256      /* 64 MiB of fp32; more only where ranks need atoms */
};

typedef struct clt_shards {
    int ranks, buckets;
    uint64_t *border; /* [buckets * ranks + 1] elements, ascending, from 0 to the table's total: rank r owns
                       * [border[b * ranks + r], border[b * ranks + r + 1]) of bucket b */
} clt_shards;

/* Deals out the slab of a finished table. weight[ranks]: shares in any unit, at least 0 and not all 0; NULL:
 * equal shares. No rank owns more than its share of the table and one atom. The caller frees *out. CLT_FAIL:
 * an empty table, no rank, or invalid weights. */
clt_status clt_shards_create(const clt_slab_table *t, int ranks, const double *weight, clt_shards *out);
void clt_shards_free(clt_shards *s); /* *s is {0} after it; {0} is allowed */
/* The same elements for groups of `group` neighbouring ranks, which divides s->ranks: rank k of every group
 * has what ranks k, k + group, k + 2 group, ... of s own. There are s->ranks / group buckets for each of s.
 * Borrows the borders of s; not to be freed. */
clt_shards clt_shards_of_group(const clt_shards *s, int group);
/* What `rank` owns of a bucket. */
clt_slab_range clt_shards_range(const clt_shards *s, int bucket, int rank);
/* All elements of a bucket. */
clt_slab_range clt_shards_bucket(const clt_shards *s, int bucket);
/* The rank that owns an element, which must be below the table's total. */
int clt_shards_owner(const clt_shards *s, uint64_t element);
/* The number of elements that `rank` owns in all buckets. */
uint64_t clt_shards_owned(const clt_shards *s, int rank);
/* Whether `rank` owns all of [first, first + count), which must be inside the slab. */
bool clt_shards_has(const clt_shards *s, int rank, uint64_t first, uint64_t count);

#endif
