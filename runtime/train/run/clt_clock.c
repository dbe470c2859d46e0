#include "runtime/train/run/clt_clock.h"

#include <math.h>

enum { BARRIERS = 16 };

clt_clock_bounds clt_clock_bounds_of(const clt_clock_barrier *own, const clt_clock_barrier *other, int n) {
    clt_clock_bounds b = {-INFINITY, INFINITY};
    for (int i = 0; i < n; i++) {
        b.low = fmax(b.low, other[i].enter - own[i].leave);
        b.high = fmin(b.high, other[i].leave - own[i].enter);
    }
    return b;
}

static clt_status meet(clt_group *g, clt_clock_barrier *b) {
    for (int i = 0; i < BARRIERS; i++) {
        b[i].enter = clt_now();
        CLT_TRY(clt_group_barrier(g));
        b[i].leave = clt_now();
    }
    return CLT_OK;
}

/* Intersects the bounds of the ranks of each host. shift is this rank's. */
static void take_bounds(const clt_group *g, const clt_clock_bounds *bounds, const int *host, double *shift,
                        double *error) {
    const int ranks = clt_group_size(g);
    *shift = *error = 0;
    for (int r = 0; r < ranks; r++) {
        clt_clock_bounds b = bounds[r];
        if (host[r] == host[0]) continue;
        for (int q = 0; q < ranks; q++) {
            if (host[q] != host[r]) continue;
            b.low = fmax(b.low, bounds[q].low);
            b.high = fmin(b.high, bounds[q].high);
        }
        *error = fmax(*error, 0.5 * (b.high - b.low));
        if (host[r] == clt_group_host(g)) *shift = 0.5 * (b.low + b.high);
    }
}

static clt_status align(clt_group *g, clt_clock_bounds *bounds, int *host, double *shift, double *error) {
    clt_clock_barrier own[BARRIERS], first[BARRIERS];
    const int here = clt_group_host(g);
    CLT_TRY(meet(g, own));
    for (int i = 0; i < BARRIERS; i++) first[i] = own[i];
    CLT_TRY(clt_group_broadcast(g, 0, first, sizeof first));
    const clt_clock_bounds mine = clt_clock_bounds_of(own, first, BARRIERS);
    CLT_TRY(clt_group_all_gather(g, &mine, sizeof mine, bounds));
    CLT_TRY(clt_group_all_gather(g, &here, sizeof here, host));
    take_bounds(g, bounds, host, shift, error);
    return CLT_OK;
}

clt_status clt_clock_align(clt_group *g, double *shift, double *error) {
    const size_t ranks = (size_t)clt_group_size(g);
    clt_clock_bounds *bounds = clt_calloc(ranks, sizeof *bounds);
    int *host = clt_calloc(ranks, sizeof *host);
    clt_status st = align(g, bounds, host, shift, error);
    clt_free(bounds);
    clt_free(host);
    return st;
}
