/* clt_guard: the arithmetic of what watches a run: spikes of loss and gradient norm, ranks that hold the
 * others up, replicas that are not equal any more. Plain functions over numbers that every rank has alike,
 * without devices, files or messages: the run acts on what they say (clt_run_guard.c). */
#ifndef CLT_GUARD_H
#define CLT_GUARD_H

#include "runtime/train/config/clt_config.h"

/* --- spikes --- */

/* The last values of a number that should change slowly, oldest first. */
typedef struct {
    int window, n;
    double v[CLT_SPIKE_MAX];
} clt_spike;

/* Adds x and returns its z-score among the last `window` values, itself one of them:
 *     z = (x - mean) / sqrt(mean of (v - mean)^2)
 * as llm.c's outlier detector does (window 128 there); NaN until the window is full, 0 if all values are
 * equal. It can be at most sqrt(window - 1), for one value that is far from all the others. An x that is not
 * finite is not taken: NaN. Sums run from the oldest value to the newest in double, so the same values give
 * the same bits everywhere. */
double clt_spike_add(clt_spike *s, double x);

/* --- stragglers --- */

enum {
    CLT_STRAGGLER_STEPS = 10, /* of a round */
    CLT_STRAGGLER_ROUNDS = 5  /* in which the same rank is behind before it is named */
};

typedef struct {
    int ranks, steps, last, rounds; /* last: the rank behind in the last `rounds` rounds, -1: none */
    double *sum;                    /* [ranks] */
} clt_straggler;

typedef struct {
    int rank;               /* -1: none is to be named now */
    double seconds, median; /* of a step, on average over the last round */
} clt_straggler_found;

void clt_straggler_begin(clt_straggler *s, int ranks);
void clt_straggler_end(clt_straggler *s);
/* One step: seconds[r] is the time of rank r without waiting for others. A rank is behind in a round if it
 * needed more than `ratio` times the (lower) median of all and at least `least` seconds a step more; it is
 * named when it has been behind in CLT_STRAGGLER_ROUNDS rounds on end, once until it has caught up. */
clt_straggler_found clt_straggler_add(clt_straggler *s, const double *seconds, double ratio, double least);

/* --- replicas --- */

/* hash[r * words ...]: what rank r holds. odd[r] becomes true for ranks that hold something else than more
 * than half of all; returns their number, 0 if all are equal. Without such a majority: -1, and odd is true
 * for all. */
int clt_replicas_odd(const uint64_t *hash, int ranks, int words, bool *odd);

#endif
