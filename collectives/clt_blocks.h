/* clt_blocks: the reduction through host memory, step by step: the algorithm that the exchanges "shm" and
 * "mpi" share. Not for other folders.
 *
 * A step takes one strip of the range that each rank owns in a bucket (clt_reduce.h). Every rank copies its
 * subtree sums of all strips to slots in host memory; each owner adds the nodes of its strip on its device,
 * in the order of the tree; then the owner keeps the strip (reduce-scatter), or hands it to all ranks
 * (reduce). Slots and totals are [ranks][strip] elements: place r holds the strip of owner r. How they get
 * from rank to rank is the wire's business. Where gradients travel as bf16, sums are rounded on the device
 * before they leave and widened where they are added, and so are totals. */
#ifndef CLT_BLOCKS_H
#define CLT_BLOCKS_H

#include "collectives/clt_exchange.h"

enum { CLT_BLOCKS_WIDEST = 4 /* bytes of an element of a slab at most */ };

typedef struct clt_blocks clt_blocks;

/* What moves bytes. All ranks call these functions in the same order; each step calls scatter, gather or
 * both, then release. */
typedef struct {
    /* Allocates what slot, total and inbox point to, for b->strip, which it may make smaller first, the same
     * on all ranks. Fails on all ranks or on none; the caller then calls close, which accepts a half-open
     * wire. */
    clt_status (*open)(clt_blocks *b);
    void (*close)(clt_blocks *b);
    /* The caller has filled this rank's slots, except those of empty sums. On return the inbox has the strips
     * that this rank owns, of all ranks. */
    clt_status (*scatter)(clt_blocks *b, uint64_t step);
    /* The caller has filled this rank's place in total, at total + rank * strip * bytes; `bytes` is the size
     * of an element. On return all places are filled. */
    clt_status (*gather)(clt_blocks *b, uint64_t bytes);
    /* This rank has read slots and totals; on return they may be filled again. */
    clt_status (*release)(clt_blocks *b);
} clt_blocks_wire;

/* A rank's sum of lanes [first, first + width), in its slot `slot`. empty: the slot is not filled. */
typedef struct {
    int32_t first, width, empty, rank, slot;
} clt_blocks_entry;

struct clt_blocks {
    clt_reduce_plan *plan;
    const clt_blocks_wire *wire;
    void *wire_state;
    uint64_t bytes;      /* of a gradient's element on its way: 4, or 2 for bf16 */
    int most;            /* subtree sums of a rank at most */
    int places;          /* ranks * most */
    uint64_t run, strip; /* most elements of a run (a rank's part of a bucket, clt_reduce.h), of a strip */
    char *slot;          /* [most][ranks][strip]: this rank's sums */
    char *total;         /* [ranks][strip], elements of gather's `bytes`; room for CLT_BLOCKS_WIDEST */
    const char *inbox;   /* slot s of rank r has this rank's strip at inbox + (r * most + s) * inbox_stride */
    uint64_t inbox_stride;   /* bytes */
    clt_buffer *scratch;     /* fp32 [places][strip] on the device */
    clt_buffer *narrow;      /* bf16 [ranks][strip] on the device: what comes or goes; NULL if fp32 travels */
    clt_blocks_entry *entry; /* [places]: the sums of all ranks in the order of their lanes */
    int n_entries;
    struct clt_subtree *stack; /* [places] */
};

/* An exchange's functions; its plan opens the wire. */
clt_status clt_blocks_plan(clt_reduce_plan *p, const clt_blocks_wire *wire);
void clt_blocks_unplan(clt_reduce_plan *p);
uint64_t clt_blocks_device_bytes(const clt_slab_table *t, const clt_lane_split *s, bool bf16);
clt_status clt_blocks_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
clt_status clt_blocks_reduce_scatter(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
clt_status clt_blocks_all_gather(clt_reduce_plan *p, clt_slab *s);

/* The part of the slab that `owner` owns in a step; count 0: none. */
clt_slab_range clt_blocks_strip(const clt_blocks *b, uint64_t step, int owner);

#endif
