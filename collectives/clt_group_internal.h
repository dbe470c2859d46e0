/* clt_group_internal: the seam between clt_group's functions and the components. Not for other folders.
 *
 * A component fills clt_group_ops. `loopback` is the example to copy: it does everything that one rank needs.
 */
#ifndef CLT_GROUP_INTERNAL_H
#define CLT_GROUP_INTERNAL_H

#include <stdatomic.h>

#include "collectives/clt_flight.h"
#include "collectives/clt_reduce.h"

typedef struct {
    const char *name;
    /* Joins; sets g->rank, size, local_rank, local_size, flight and g->state. */
    clt_status (*join)(clt_group *g);
    void (*leave)(clt_group *g);
    /* Ends the job; prints what the log holds, unless another rank has said it; must not return. */
    void (*abort)(clt_group *g, int code);
    clt_status (*barrier)(clt_group *g);
    clt_status (*broadcast)(clt_group *g, int root, void *data, size_t bytes);
    clt_status (*all_gather)(clt_group *g, const void *mine, size_t bytes, void *out);
    /* Gradient reduction; p->state is the component's. */
    clt_status (*plan)(clt_reduce_plan *p);
    void (*unplan)(clt_reduce_plan *p);
    clt_status (*reduce)(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);
} clt_group_ops;

extern const clt_group_ops clt_group_loopback;

struct clt_group {
    const clt_group_ops *ops;
    int rank, size, local_rank, local_size;
    double timeout;
    void *state;
    bool failed;            /* the last clt_group_agree was a failure, on all ranks */
    int stop;               /* as of the last clt_group_agree */
    clt_flight_log *flight; /* [local_size]; join sets it */
    char *folder;           /* for clt_flight_dump, or NULL */
    double waited;          /* seconds spent waiting for other ranks */
};

struct clt_reduce_plan {
    clt_group *group;
    clt_device *dev;
    const clt_slab_table *table;
    clt_lane_split split;
    clt_reduce_math math;
    void *state;
};

/* dst += src over all pieces. */
clt_status clt_slab_add(clt_add_fn add, void *ctx, const clt_slab *dst, const clt_slab *src);
clt_status clt_slab_copy(const clt_slab *dst, const clt_slab *src);

#endif
