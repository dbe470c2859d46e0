/* clt_guard: the arithmetic of a run's guards: spikes of loss and gradient norm, ranks that delay the others,
 * replicas that differ. Plain functions without devices, files or messages. Every rank passes the same
 * numbers and gets the same answer; clt_run_guard.c acts on it. */
#ifndef CLT_GUARD_H
#define CLT_GUARD_H

#include "runtime/train/config/clt_config.h"

/* --- spikes --- */

/* A window of the last values of a quantity, oldest first. Start from {.window = W}, 1 <= W <= CLT_SPIKE_MAX.
 */
typedef struct {
    int window, n;
    double v[CLT_SPIKE_MAX];
} clt_spike;

/* Adds x and returns its z-score among the last `window` values including x,
 *     z = (x - mean) / sqrt(mean of (v - mean)^2)
 * as llm.c's outlier detector does (window 128 there). NaN until the window is full; 0 if all values are
 * equal. At most sqrt(window - 1), for one value far from all others. An x that is not finite is not added
 * and returns NaN. Sums are in double from the oldest to the newest value, so the same values give the same
 * bits everywhere. */
double clt_spike_add(clt_spike *s, double x);

/* --- stragglers --- */

enum {
    CLT_STRAGGLER_STEPS = 10, /* steps per round */
    CLT_STRAGGLER_ROUNDS = 5  /* consecutive rounds with the same slow rank before it is reported */
};

typedef struct {
    int ranks, steps, last, rounds; /* last: the slow rank of the last `rounds` rounds, -1: none */
    double *sum;                    /* [ranks] seconds in this round */
} clt_straggler;

typedef struct {
    int rank;               /* to be reported now, -1: none */
    double seconds, median; /* per step, averages over the round that ended: of the slowest rank, of the
                               lower median rank; 0 within a round */
} clt_straggler_found;

void clt_straggler_begin(clt_straggler *s, int ranks);
void clt_straggler_end(clt_straggler *s);
/* Adds a step; seconds[r] is the time of rank r without waiting for others. Only every CLT_STRAGGLER_STEPS-th
 * call judges. The slowest rank is slow in a
 * round if its time is more than `ratio` times the lower median and at least `least` seconds per step above
 * it. It is reported after CLT_STRAGGLER_ROUNDS consecutive such rounds, and then not again until a round in
 * which it is not slow. */
clt_straggler_found clt_straggler_add(clt_straggler *s, const double *seconds, double ratio, double least);

/* --- replicas --- */

/* hash[r * words ...] are the hashes of rank r. Sets odd[r] for the ranks whose hashes differ from those of
 * the majority (more than half of all ranks) and returns their number, 0 if all are equal. Without a
 * majority: returns -1 and sets odd for all ranks. */
int clt_replicas_odd(const uint64_t *hash, int ranks, int words, bool *odd);

#endif
