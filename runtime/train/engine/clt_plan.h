/* clt_plan: what a run decides before its first step, from the configuration, the number of ranks and the
 * device: which rank owns which lanes, the microbatch that fits, what the backward pass computes again, and
 * how much device memory all of it takes. The configuration says what is wanted and is never changed; the
 * plan says what is done. No device is needed to make one, so `cltrain plan` and a run cannot differ.
 *
 * What a run keeps for life (seed, lanes, order of the data) is in the plan, too: it comes from the
 * configuration at the first start and from the checkpoint when the run resumes. */
#ifndef CLT_PLAN_H
#define CLT_PLAN_H

#include "collectives/clt_reduce.h"
#include "runtime/model/clt_model.h"
#include "runtime/train/config/clt_config.h"

/* Device bytes of one rank, by what they are for. */
typedef struct {
    uint64_t weights, copy, gradients, optimizer, reduction; /* copy: the 16-bit weights */
    clt_model_memory model;
    uint64_t total, largest;
    int gradient_slabs;
} clt_plan_memory;

typedef struct {
    /* kept for the life of a run */
    int64_t seed, exact_lanes, shuffle_seed, canonical_nodes;

    /* lanes, the parts that a global batch is cut into (docs/numerics.md) */
    int ranks, lanes;
    int *lanes_per_rank; /* [ranks] owned by the plan; NULL: evenly */

    /* chosen for the device */
    int64_t microbatch;
    clt_recompute recompute;
    uint64_t logits_bytes; /* as clt_model_shape's */
    clt_plan_memory memory;
} clt_plan;

/* What a rank's device offers. */
typedef struct {
    clt_device_type type;
    uint64_t capacity, max_alloc; /* bytes to plan with; largest single buffer */
} clt_plan_room;
/* Of a device that this many ranks share: nine tenths of its memory. */
clt_plan_room clt_plan_room_of(const clt_device_facts *device, int ranks_on_device);

/* A plan for `ranks` ranks whose microbatch is not chosen yet. Lanes: cltrain.exact_lanes in numerics exact;
 * in numerics fast as many as cltrain.lanes_per_rank has, or one a rank, up to a power of two. */
clt_plan clt_plan_begin(const clt_config *cfg, int ranks);
void clt_plan_free(clt_plan *p);
/* After exact_lanes was taken from a checkpoint: divides the lanes anew. CLT_BAD_CONFIG if so many ranks
 * cannot have a lane each. */
clt_status clt_plan_divide(const clt_config *cfg, clt_plan *p);
/* `lanes` lanes, counts[ranks] of them to each rank (copied). */
void clt_plan_take_counts(clt_plan *p, int lanes, const int *counts);
/* Every rank the same number of lanes, at least one. For work whose result does not depend on lanes
 * (evaluation). */
void clt_plan_divide_evenly(clt_plan *p);
/* Who owns which lanes; borrows from the plan. */
clt_lane_split clt_plan_split(const clt_plan *p);

/* Chooses the microbatch: the configuration's, or the largest whose plan fits the room, at most what a lane
 * holds; then what is computed again where the configuration leaves it open (16-bit types, numerics fast, no
 * cltrain.recompute: a GPU keeps what `norms` would compute again if the run then takes at most a quarter of
 * the room); and a smaller buffer of logits where fast 16-bit training would not fit with the default.
 * CLT_NO_MEMORY says what would fit; the plan is then the one that does not. */
clt_status clt_plan_fit(const clt_config *cfg, const clt_plan_room *room, clt_plan *p);
/* begin and fit, for tools that plan without a run. Free the plan also after CLT_NO_MEMORY. */
clt_status clt_plan_make(const clt_config *cfg, int ranks, const clt_plan_room *room, clt_plan *out);

/* The model as the plan runs it. */
clt_model_shape clt_plan_shape(const clt_config *cfg, const clt_plan *p, bool training);
/* What the busiest rank needs with p's lanes, recomputation and logits, and this microbatch. */
clt_status clt_plan_memory_of(const clt_config *cfg, const clt_plan *p, clt_device_type type,
                              int64_t microbatch, clt_plan_memory *out);

/* For lines about a run: ", norms recomputed" or "". */
const char *clt_recompute_text(clt_recompute r);

#endif
