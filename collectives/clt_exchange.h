/* clt_exchange: the operations of clt_reduce.h on their way, and the seam to the wires, which move bytes
 * between ranks. Not for other folders.
 *
 * Operations are numbered from 1, the same on all ranks, and go through the same stations one behind the
 * other. Each rank has a ring of CLT_SLOTS slots for what it hands out; operation k uses slot k % CLT_SLOTS:
 *
 *     begun      what it reads is queued on the compute queue
 *     filling    the slot is free: copies from the device to it are queued (queue OUT)
 *     posted     the copies are complete: the wire may hand the slot over
 *     fetching   all ranks have posted: copies from their slots, and additions, are queued (queue IN)
 *     finished   the copies are complete: the other ranks may use their slots again
 *
 * A slot holds, for a reduction, [sum][rank][strip] elements: place r of sum i is for owner r; for a gather,
 * the own elements one behind the other. A bucket whose ranges are longer than a strip is several operations.
 * A device that shares the host's memory adds what the slots hold in place. For small operations the host
 * does it: then copies and additions are complete when they would be queued, and they start when the device
 * has done what the operation reads, and everything of earlier operations. */
#ifndef CLT_EXCHANGE_H
#define CLT_EXCHANGE_H

#include "collectives/clt_group_internal.h"
#include "collectives/clt_reduce.h"
#include "runtime/device/clt_mark.h"

enum { CLT_SLOTS = 4, CLT_EXCHANGE_MOST_SUMS = 64 /* of a rank: two of each size */ };

/* What moves bytes. `loopback` has no functions: there is nobody to move them to. */
typedef struct {
    const char *name; /* as in CLTRAIN_TRANSPORT */
    /* Why this rank cannot take part (static text), or NULL: it can. Does not wait for other ranks. */
    const char *(*refusal)(const clt_reduce_plan *p);
    /* Collective. Sets p->host (page aligned), p->inbox and p->wire_state for slots of p->slot_bytes; may
     * make p->strip smaller first (clt_exchange_set_strip), the same on all ranks. Fails on all ranks or on
     * none; close is called in every case. */
    clt_status (*open)(clt_reduce_plan *p);
    void (*close)(clt_reduce_plan *p);
    /* Whether this rank may fill the slot of operation `op`. */
    bool (*is_free)(clt_reduce_plan *p, int64_t op);
    /* The slot of `op` is filled. */
    clt_status (*post)(clt_reduce_plan *p, int64_t op);
    /* The inbox of `op` may be filled by others; called once for each operation, in order. May be NULL. */
    clt_status (*expect)(clt_reduce_plan *p, int64_t op);
    /* *all: whether every other rank's part of `op` is there, and this rank's is posted. */
    clt_status (*arrived)(clt_reduce_plan *p, int64_t op, bool *all);
    /* This rank has read everything of `op`. */
    clt_status (*finished)(clt_reduce_plan *p, int64_t op);
    /* *all: whether this rank's memory is not read any more. May be NULL. */
    clt_status (*flushed)(clt_reduce_plan *p, bool *all);
} clt_wire;

extern const clt_wire clt_wire_loopback, clt_wire_shm, clt_wire_hosts, clt_wire_mpi;

/* What the ranks of a plan's group stand for. Rank r brings the sums of `each` ranks of the split, from
 * first + r * each on, and owns what the shards give to their rank r * each + turn. Plans that
 * reduce have {0, ranks, 1, 0} where the caller sees them; those that only gather, and the plans of
 * clt_hosts.h, may have others. */
typedef struct {
    int first, ranks, each, turn;
} clt_exchange_view;

/* While the tree is added up: a complete subtree, and where it lies; buf NULL: it is empty. */
typedef struct {
    int first, width;
    clt_ref at;
} clt_exchange_subtree;

/* A sum of lanes [first, first + width) of a rank, its number among the rank's sums that are not empty. */
typedef struct {
    int32_t first, width, rank, slot; /* slot -1: it is empty */
} clt_exchange_entry;

/* What ranks bring to a reduction at once: the subtree sums of their lanes, or, where lanes are dealt out in
 * rounds, one lane each. */
typedef struct {
    clt_exchange_entry *entry; /* [ranks * most] the sums of all ranks in the order of their lanes */
    int n_entries;
    int *sums_of;                 /* [ranks] how many of them are not empty */
    clt_exchange_subtree *before; /* [CLT_LANE_LEVELS] complete subtrees of the rounds before; at.buf unset */
    bool *empty;                  /* [CLT_LANE_LEVELS] which of them are */
    int n_before;
    bool last;    /* what is left is the total */
    int64_t ends; /* the last operation that belongs to it */
} clt_exchange_round;

enum { CLT_EXCHANGE_ROUNDS = 3 /* that may be on their way */ };

typedef enum { CLT_OP_REDUCE, CLT_OP_GATHER, CLT_OP_CHUNKS } clt_op_kind;

typedef struct {
    clt_op_kind kind;
    int bucket, end;                 /* buckets [bucket, end); one but for CLT_OP_CHUNKS */
    clt_slab_range within;           /* what lies outside of it is left out */
    uint64_t skip;                   /* elements of every range before this operation's strip */
    clt_slab *from, *to;             /* a gather's */
    clt_slab *const *level;          /* a reduction's results, */
    int levels;                      /* so many at most */
    const clt_exchange_round *round; /* of a reduction */
    clt_slab **sum;                  /* [most]: a reduction's sums that are not empty */
    int sums;
    bool narrow;         /* elements travel as bf16 */
    clt_buffer *numbers; /* CLT_OP_CHUNKS */
    const clt_slab_range *only;
    int n_only;            /* -1: all of it */
    bool by_host;          /* the host copies and adds, not the device; see clt_exchange_host.c */
    clt_mark *made;        /* what is read is there */
    clt_mark *sent, *read; /* the copies of filling and of fetching; NULL: not queued yet */
    bool last;             /* of its bucket's strips: it owns `made` */
    int64_t hop_end[2];    /* with clt_hosts.h: the last operations of its two hops */
    int row;               /* of clt_exchange_times.h; -1: its times are not kept */
} clt_op;

struct clt_reduce_plan {
    const clt_wire *wire;
    clt_group *group;         /* borrowed */
    clt_device *dev;          /* borrowed */
    const clt_shards *shards; /* borrowed */
    clt_lane_split split;
    clt_exchange_view view;
    clt_reduce_math math;    /* add NULL: the plan only gathers */
    clt_reduce_plan *next;   /* in clt_group_run.plans */
    int per_host;            /* neighbouring ranks on every host; 0: it is not so */
    struct clt_hosts *hosts; /* clt_hosts.h; NULL: operations have one hop */

    /* what a batch adds */
    int most;   /* subtree sums of a rank at most */
    int levels; /* clt_reduce_levels */
    clt_exchange_round round[CLT_EXCHANGE_ROUNDS];
    int64_t samples;             /* of the batch */
    int number;                  /* of the current round in its batch */
    int64_t rounds;              /* so far; the current one is round[(rounds - 1) % CLT_EXCHANGE_ROUNDS] */
    clt_exchange_subtree *stack; /* [CLT_LANE_LEVELS + ranks * most] */

    /* slots and what is in them */
    uint64_t strip, bytes;         /* most elements of an operation's range; bytes of a gradient on its way */
    uint64_t slot_bytes;           /* of a slot, for any operation */
    void **host;                   /* [ranks] memory of the ring of each rank, as this rank reads it */
    uint64_t *host_bytes;          /* [ranks] */
    clt_buffer **window;           /* [ranks] the same for the device; NULL: its driver does not map it */
    struct {                       /* bytes in host[r], r another rank: where this rank's part lies */
        uint64_t slot, first, sum; /* from slot to slot; of sum 0 in its slot; from sum to sum */
    } inbox;
    clt_buffer *scratch;   /* fp32 [ranks * most][strip]; NULL: slots are read in place */
    uint64_t host_most;    /* bytes of an operation that the host moves itself; 0: it moves none */
    bool by_host;          /* such an operation is being moved */
    clt_buffer *narrow[2]; /* bf16 [strip], for queues OUT and IN; NULL: fp32 travels */

    /* operations; number k is in op[k % cap] */
    clt_op *op;
    clt_slab **sums_of_ops; /* [cap][most] */
    int64_t cap;
    int64_t begun, filled, posted, expected, fetched, finished; /* the last one that has come so far */
    bool pumps;                                                 /* the operations are being moved on */
    clt_status failed;                                          /* of a pump within another wait */
    uint64_t sent_bytes;                                        /* in messages, by this rank */
    void *wire_state;
};

/* Sets p->strip and what follows from it: p->slot_bytes. */
void clt_exchange_set_strip(clt_reduce_plan *p, uint64_t strip);
clt_op *clt_exchange_op(clt_reduce_plan *p, int64_t op);
/* The strip of `op` that `owner` owns. */
clt_slab_range clt_exchange_range(const clt_reduce_plan *p, const clt_op *op, int owner);
/* Bytes that an operation moves from a rank to an owner, in each of the rank's sums. */
uint64_t clt_exchange_bytes(const clt_reduce_plan *p, const clt_op *op, int from, int owner);
/* Whether nothing is queued on this rank to fill its slot, or (in) to take the others'. */
bool clt_exchange_is_empty(const clt_reduce_plan *p, const clt_op *op, bool in);
/* What `owner`, a rank of p's group, owns of a bucket. */
clt_slab_range clt_exchange_owned(const clt_reduce_plan *p, int bucket, int owner);
/* The current round. */
clt_exchange_round *clt_exchange_round_now(clt_reduce_plan *p);

/* Makes everything that a plan holds, with p->wire, group, dev, shards, split, view and math set; collective.
 * close undoes it, also after a failure. */
clt_status clt_exchange_open(clt_reduce_plan *p);
void clt_exchange_close(clt_reduce_plan *p);
/* Device bytes that a plan holds at most with places for so many sums, each of a strip. */
uint64_t clt_exchange_device_bytes(uint64_t places, uint64_t strip, bool bf16, bool shares_host);
/* The most elements that an owner has in any bucket. */
uint64_t clt_exchange_longest(const clt_shards *s);

/* The parts of an operation that is on its way (clt_exchange_copy.c, clt_exchange_add.c): queue what fills
 * this rank's slot, and what takes the other ranks' slots. */
clt_status clt_exchange_fill(clt_reduce_plan *p, int64_t op);
clt_status clt_exchange_fetch(clt_reduce_plan *p, int64_t op);
clt_status clt_exchange_add(clt_reduce_plan *p, int64_t op);
/* Whether clt_exchange_add sums all ranks' parts of operation op in one kernel, which reads those of other
 * ranks as they travel; out (may be NULL): the tree, with no places yet, and entry: which entry of the round
 * is which part. */
bool clt_exchange_at_once(const clt_reduce_plan *p, const clt_op *op, clt_sum_parts *out,
                          const clt_exchange_entry *entry[CLT_PARTS_MOST]);
/* Bytes from the start of a ring: in this rank's own, the place of its sum i for an owner (a gather: both 0);
 * in another rank's ring, the place of that rank's sum i for this one. */
uint64_t clt_exchange_out_place(const clt_reduce_plan *p, int64_t op, int i, int owner);
uint64_t clt_exchange_in_place(const clt_reduce_plan *p, int64_t op, int i, bool gather);
/* Whether kernels may work on rank r's ring in place. */
bool clt_exchange_shares(const clt_reduce_plan *p, int r);
/* Sets p->host_most; when rings and scratch are there. */
clt_status clt_exchange_find_host(clt_reduce_plan *p);
/* Sets op->by_host; bytes: that all ranks hand out in it, at most. After it op's memory is known to the host.
 */
clt_status clt_exchange_choose_host(clt_reduce_plan *p, clt_op *op, clt_slab *const *sum, uint64_t bytes);
/* Where byte `offset` of a buffer is for the host; of an operation that it moves. */
clt_status clt_exchange_host_bytes(clt_buffer *b, uint64_t offset, char **out);
/* A copy of bytes, dst += src, and dst = +0: by the host while p->by_host is set, otherwise queued. */
clt_status clt_exchange_copy(const clt_reduce_plan *p, clt_buffer *dst, uint64_t dst_offset, clt_buffer *src,
                             uint64_t src_offset, uint64_t bytes);
clt_status clt_exchange_sum(const clt_reduce_plan *p, clt_ref dst, clt_ref src, uint64_t count);
clt_status clt_exchange_clear(const clt_reduce_plan *p, clt_ref dst, uint64_t count);
/* Begins the operations of `op`'s bucket, which read what is behind op->made; owned: they release that mark
 * in the end. Waits only while the ring of operations is full (clt_exchange_room). */
clt_status clt_exchange_cut(clt_reduce_plan *p, clt_op *op, clt_slab *const *sum, bool owned);
/* The same for numbers of chunks, of the buckets from op->bucket up to op->end. */
clt_status clt_exchange_cut_chunks(clt_reduce_plan *p, const clt_op *op, bool owned);
/* How many operations can be begun without waiting, and how many a part of a bucket takes. */
int64_t clt_exchange_room(const clt_reduce_plan *p);
int64_t clt_exchange_strips(const clt_reduce_plan *p, clt_bucket_part part);
/* The mark that this rank's device has to reach next; NULL: other ranks are waited for. */
clt_mark *clt_exchange_own_work(clt_reduce_plan *p);
void clt_exchange_release(clt_op *op);
/* The ring of operations, for p's buckets. */
clt_status clt_exchange_make_ring(clt_reduce_plan *p);
void clt_exchange_free_ring(clt_reduce_plan *p);
/* Whether waits for the device and for other ranks move p's operations on, beside those of other plans. */
void clt_exchange_set_idle(clt_reduce_plan *p, bool on);
/* Waits until every operation is finished on this rank, and its memory is not read any more. */
clt_status clt_exchange_drain(clt_reduce_plan *p);

/* clt_exchange_times.c, without effect unless times are kept: operation k has begun; it has come to another
 * station; what the device gets from here on is part of it. _free: ends it without rows. */
void clt_exchange_times_begin(clt_reduce_plan *p, int64_t k);
void clt_exchange_times_note(clt_reduce_plan *p, int64_t k, clt_station station);
void clt_exchange_times_tag(clt_reduce_plan *p, int64_t k, clt_exchange_part part);
void clt_exchange_times_free(clt_group_run *run);

/* The most subtree sums that a rank of the view brings at once. */
int clt_exchange_most_sums(const clt_lane_split *s, const clt_exchange_view *v);
/* Fills in a round of a batch of `samples` samples; `before`: the round before it, NULL: it is the batch's
 * first. If the view has some of the ranks only, each round stands for itself. */
void clt_exchange_list(const clt_lane_split *s, const clt_exchange_view *v, int64_t samples, int number,
                       const clt_exchange_round *before, clt_exchange_round *out);

/* Ranges of fp32 slabs of equal tables, whose pieces may differ; queued: dst += src, dst = src, +0. */
clt_status clt_slab_add_range(clt_add_fn add, void *ctx, const clt_slab *dst, const clt_slab *src,
                              clt_slab_range x);
clt_status clt_slab_copy_range(const clt_slab *dst, const clt_slab *src, clt_slab_range x);
clt_status clt_slab_zero_range(const clt_slab *s, clt_slab_range x);

/* Whether CLTRAIN_TRANSPORT is unset or names a wire; otherwise CLT_BAD_CONFIG. */
clt_status clt_exchange_check_environment(void);

#endif
