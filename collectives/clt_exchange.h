/* clt_exchange: the seam between clt_reduce.h and the exchanges, which move gradients between ranks. Not for
 * other folders.
 *
 * An exchange fills clt_exchange_ops. `loopback` is the example to copy. A plan is served by the first
 * exchange of the list in clt_reduce.c that no rank refuses. With several ranks CLTRAIN_TRANSPORT limits the
 * list to one exchange; if that is refused, the plan is CLT_BAD_CONFIG. */
#ifndef CLT_EXCHANGE_H
#define CLT_EXCHANGE_H

#include "collectives/clt_group_internal.h"
#include "collectives/clt_reduce.h"

typedef struct {
    const char *name; /* as in CLTRAIN_TRANSPORT */
    /* Why this rank cannot take part in the exchange of this plan (static text), or NULL: it can. Does not
     * wait for other ranks, and may look at all of the plan but its state. */
    const char *(*refusal)(const clt_reduce_plan *p);
    /* The most device bytes of a plan. Not called for a single rank. */
    uint64_t (*device_bytes)(const clt_slab_table *t, const clt_lane_split *s, bool bf16);
    /* All ranks of the group call these functions in the same order. plan allocates all that the others need
     * and sets p->state. It fails on all ranks or on none; then it has freed everything, and unplan is not
     * called. */
    clt_status (*plan)(clt_reduce_plan *p);
    void (*unplan)(clt_reduce_plan *p);
    /* As the functions of clt_reduce.h that have these names. What they write must be there for kernels that
     * the caller queues on p->dev after the call: an exchange may return while its own work is still queued.
     */
    clt_status (*reduce)(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
    clt_status (*reduce_scatter)(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
    clt_status (*all_gather)(clt_reduce_plan *p, clt_slab *s);
} clt_exchange_ops;

extern const clt_exchange_ops clt_exchange_loopback, clt_exchange_shm, clt_exchange_mpi;

struct clt_reduce_plan {
    const clt_exchange_ops *exchange;
    clt_group *group;            /* borrowed */
    clt_device *dev;             /* borrowed */
    const clt_slab_table *table; /* borrowed */
    clt_lane_split split;
    clt_reduce_math math;
    void *state; /* the exchange's */
};

/* Whether CLTRAIN_TRANSPORT is unset or names an exchange; otherwise CLT_BAD_CONFIG. */
clt_status clt_exchange_check_environment(void);

/* dst += src and dst = src for fp32 slabs of equal tables, whose pieces may differ. Queued. */
clt_status clt_slab_add(clt_add_fn add, void *ctx, const clt_slab *dst, const clt_slab *src);
clt_status clt_slab_copy(const clt_slab *dst, const clt_slab *src);

#endif
