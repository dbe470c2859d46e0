/* clt_plan: the decisions before the first step, from the configuration, the number of ranks and the device:
 * which rank owns which lanes, the microbatch that fits, what the backward pass recomputes, and how much
 * device memory the run takes. The configuration states what the user wants and is never changed; the plan
 * states what the run does. Making a plan needs no device: `cltrain plan` and a run use the same functions,
 * so their plans are equal.
 *
 * The plan also holds what a run keeps unchanged for its lifetime (seed, lanes, order of the data). A new run
 * takes it from the configuration, a resumed run from the checkpoint. */
#ifndef CLT_PLAN_H
#define CLT_PLAN_H

#include "collectives/clt_reduce.h"
#include "runtime/model/clt_model.h"
#include "runtime/train/config/clt_config.h"

/* Device memory of one rank by use, in bytes. */
typedef struct {
    uint64_t weights, copy, gradients, optimizer, reduction; /* copy: the 16-bit weights */
    clt_model_memory model;
    uint64_t total, largest;
    int gradient_slabs;
} clt_plan_memory;

typedef struct {
    /* unchanged for the lifetime of a run */
    int64_t seed, exact_lanes, shuffle_seed, canonical_nodes;

    /* lanes: the parts that a global batch is divided into (docs/numerics.md) */
    int ranks, lanes;
    int *lanes_per_rank; /* [ranks], owned by the plan; NULL: divided evenly */

    /* chosen for the device */
    int64_t microbatch;
    clt_recompute recompute;
    uint64_t logits_bytes; /* as in clt_model_shape */
    clt_plan_memory memory;
} clt_plan;

/* The memory that a rank may plan with. */
typedef struct {
    clt_device_type type;
    uint64_t capacity, max_alloc; /* bytes in total; bytes of the largest single buffer */
} clt_plan_room;
/* For a device that ranks_on_device ranks share: each has an equal part of nine tenths of its memory. */
clt_plan_room clt_plan_room_of(const clt_device_facts *device, int ranks_on_device);

/* A plan for `ranks` ranks without a microbatch. Lanes: cltrain.exact_lanes with numerics exact; with
 * numerics fast the sum of cltrain.lanes_per_rank, or the number of ranks rounded up to a power of two. */
clt_plan clt_plan_begin(const clt_config *cfg, int ranks);
void clt_plan_free(clt_plan *p);
/* Divides the lanes again after exact_lanes was read from a checkpoint. CLT_BAD_CONFIG if there are more
 * ranks than lanes. */
clt_status clt_plan_divide(const clt_config *cfg, clt_plan *p);
/* Sets `lanes` lanes with counts[r] of them for rank r; counts is copied. */
void clt_plan_take_counts(clt_plan *p, int lanes, const int *counts);
/* Divides the lanes evenly, at least one per rank. For work whose result does not depend on lanes
 * (evaluation). */
void clt_plan_divide_evenly(clt_plan *p);
/* Which rank owns which lanes; borrows from the plan. */
clt_lane_split clt_plan_split(const clt_plan *p);

/* Chooses the microbatch: the configuration's, or the largest that fits `room`; at most the samples of a
 * lane. If the configuration does not set cltrain.recompute, fast 16-bit training on a GPU keeps all
 * activations if it then takes at most a quarter of the room, and recomputes norms otherwise. Fast 16-bit
 * training that does not fit with the default logits buffer uses a smaller one. CLT_NO_MEMORY: the run does
 * not fit; the message suggests a change, and *p is the plan that does not fit. */
clt_status clt_plan_fit(const clt_config *cfg, const clt_plan_room *room, clt_plan *p);
/* clt_plan_begin and clt_plan_fit, for tools. Free the plan also after CLT_NO_MEMORY. */
clt_status clt_plan_make(const clt_config *cfg, int ranks, const clt_plan_room *room, clt_plan *out);

/* The shape with which the plan creates the model. */
clt_model_shape clt_plan_shape(const clt_config *cfg, const clt_plan *p, bool training);
/* The memory of the rank that needs most, with p's lanes, recomputation and logits and this microbatch. */
clt_status clt_plan_memory_of(const clt_config *cfg, const clt_plan *p, clt_device_type type,
                              int64_t microbatch, clt_plan_memory *out);

/* For messages: "", ", norms recomputed" or ", activations recomputed". */
const char *clt_recompute_text(clt_recompute r);

#endif
