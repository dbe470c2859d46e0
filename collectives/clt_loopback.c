/* loopback: a group of one rank. The smallest component, and the example to copy. */
#include "collectives/clt_group_internal.h"

#include <string.h>
#include <unistd.h>

#include "collectives/clt_launch.h"

static clt_status join(clt_group *g) {
    g->rank = g->local_rank = 0;
    g->size = g->local_size = 1;
    g->flight = clt_calloc(1, sizeof *g->flight);
    clt_flight_begin(g->flight, 0);
    return CLT_OK;
}

static void leave(clt_group *g) {
    clt_free(g->flight);
}

static void end(clt_group *g, int code) {
    (void)g;
    clt_launch_report(code);
    _exit(code);
}

static clt_status barrier(clt_group *g) {
    (void)g;
    return CLT_OK;
}

static clt_status broadcast(clt_group *g, int root, void *data, size_t bytes) {
    (void)g;
    (void)root;
    (void)data;
    (void)bytes;
    return CLT_OK;
}

static clt_status all_gather(clt_group *g, const void *mine, size_t bytes, void *out) {
    (void)g;
    if (bytes) memmove(out, mine, bytes);
    return CLT_OK;
}

static clt_status plan(clt_reduce_plan *p) {
    (void)p;
    return CLT_OK;
}

static void unplan(clt_reduce_plan *p) {
    (void)p;
}

/* One rank owns all lanes, so its lane stack has already made the one sum over all of them. */
static clt_status reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    if (n < 0) return CLT_STOPPED;
    if (n != 1 || sums[0].width != p->split.lanes)
        return clt_error(CLT_FAIL, "one rank must bring one sum over all %d lanes; this is a bug",
                         p->split.lanes);
    if (sums[0].empty) return clt_slab_zero(total);
    return sums[0].slab == total ? CLT_OK : clt_slab_copy(total, sums[0].slab);
}

const clt_group_ops clt_group_loopback = {
    "loopback", join, leave, end, barrier, broadcast, all_gather, plan, unplan, reduce,
};
