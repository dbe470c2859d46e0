/* lane_total: made-up gradients of lanes, and their total over all lanes by a plain recursion, or a plain
 * loop for the chain: the oracle of reductions (docs/numerics.md, rule 11). */
#ifndef LANE_TOTAL_H
#define LANE_TOTAL_H

#include "collectives/clt_lanes.h"

typedef struct {
    clt_lane_split split;
    int64_t samples; /* of the global batch: a lane without one is empty */
    bool bf16;       /* gradients travel as bf16 between ranks */
    int per_host;    /* they travel in two hops, with so many neighbouring ranks on each host; 0: in one */
} lt_batch;

/* Elements [first, first + count) of a lane's gradient: numbers of all sizes and both signs, some zero or
 * denormal, so that another order of sums gives other bits. */
void lt_values(int lane, uint64_t first, uint64_t count, float *out);
/* The same elements of the total; 0 if all lanes are empty. */
void lt_totals(const lt_batch *b, uint64_t first, uint64_t count, float *out);

#endif
