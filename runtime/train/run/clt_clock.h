/* clt_clock: the distance between the clocks (clt_now) of the hosts of a group, for timelines with several
 * hosts. The ranks of one host read the same clock.
 *
 * It is measured with barriers. No rank leaves a barrier before every rank has entered it, so each barrier
 * bounds the distance of two clocks from both sides; the bounds of several barriers are intersected. The
 * result is the middle of the bounds, and its error is at most half their distance, whatever the network
 * does. */
#ifndef CLT_CLOCK_H
#define CLT_CLOCK_H

#include "collectives/clt_group.h"

/* When a rank entered and left a barrier, in seconds on its own clock. */
typedef struct {
    double enter, leave;
} clt_clock_barrier;

/* The distance of two clocks is in [low, high], in seconds. */
typedef struct {
    double low, high;
} clt_clock_bounds;

/* Bounds for (other's clock - own clock) from the n barriers that both ranks took part in; n >= 1. */
clt_clock_bounds clt_clock_bounds_of(const clt_clock_barrier *own, const clt_clock_barrier *other, int n);

/* Sets *shift, which converts times of this rank's clock to rank 0's: time + *shift; it is the same on all
 * ranks of a host, and 0 on rank 0's. *error: the largest possible error of any rank's shift, the same on all
 * ranks; 0 if all ranks are on one host. Collective. */
clt_status clt_clock_align(clt_group *g, double *shift, double *error);

#endif
