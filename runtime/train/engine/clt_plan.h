/* clt_plan: the decisions before the first step, from the configuration, the number of ranks and the device:
 * which rank owns which lanes, the stage of sharding, the microbatch that fits, what the backward pass
 * recomputes, and how much device memory the run takes. The configuration states what the user wants and is
 * never changed; the plan states what the run does. Making a plan needs no device: `cltrain plan` and a run
 * use the same functions, so their plans are equal.
 *
 * The plan also holds what a run keeps unchanged for its lifetime (seed, lanes, order of the data). A new run
 * takes it from the configuration, a resumed run from the checkpoint. */
#ifndef CLT_PLAN_H
#define CLT_PLAN_H

#include "collectives/clt_reduce.h"
#include "runtime/model/clt_model.h"
#include "runtime/train/config/clt_config.h"
#include "runtime/train/engine/clt_plan_memory.h"

/* Device memory of one rank by use, in bytes. */
typedef struct {
    uint64_t weights, copy, gradients, optimizer, reduction; /* copy: the 16-bit weights */
    clt_model_memory model;
    uint64_t total, largest;
    uint64_t host;           /* bytes of host memory (cltrain.offload), without those of the model */
    uint64_t host_weights;   /* the same (cltrain.offload_parameters: host) */
    uint64_t host_gradients; /* the same (cltrain.offload_gradients: host; file: what stays in memory) */
    uint64_t resident,
        resident_bytes;    /* with offload: elements that stay on the device; of all their state */
    uint64_t slots, spool; /* the same, between files and the device: of updates, of passes */
    uint64_t file, file_weights, file_gradients; /* bytes in files; those of inputs are in `model` */
    clt_plan_update_bytes update;                /* over the link in a step's update */
    clt_plan_update_bytes update_files;          /* from and to files in one */
    uint64_t update_touched;           /* bytes of host memory that its cores read and write in one */
    uint64_t elements;                 /* of the slab */
    int gradient_slabs, gradient_sums; /* as in clt_plan_sizes */
} clt_plan_memory;

typedef struct {
    /* unchanged for the lifetime of a run */
    int64_t seed, exact_lanes, shuffle_seed, canonical_nodes;

    /* lanes: the parts that a global batch is divided into (docs/numerics.md) */
    int ranks, lanes;
    int per_host;        /* ranks on this one's host; clt_plan_begin: all */
    int *lanes_per_rank; /* [ranks], owned by the plan; NULL: divided evenly */

    /* sharding: clt_plan_memory.h has the stages */
    int stage;
    int shard_ranks;      /* ranks that hold one copy of the weights together, neighbours; 1 at stage 0.
                           * Gradients and optimizer state are sharded over all ranks. */
    int replicas;         /* such groups: ranks / shard_ranks */
    bool raised;          /* cltrain.zero_stage is auto, and the run does not fit at the stages below */
    bool whole_gradients; /* stages 2 and 3: every rank keeps whole gradients, as at stage 1 */
    bool shards_by_lanes; /* ranks own parts in proportion to their lanes; false: equal parts */

    /* chosen for the device */
    clt_device_type type;
    int64_t microbatch;
    clt_recompute recompute;
    uint64_t logits_bytes; /* as in clt_model_shape */
    uint64_t host_room;    /* clt_plan_room.host */
    clt_plan_memory memory;
} clt_plan;

/* The memory that a rank may plan with. */
typedef struct {
    clt_device_type type;
    uint64_t capacity, max_alloc; /* bytes in total; bytes of the largest single buffer */
    uint64_t host;                /* bytes that the ranks of a host may have in its memory; 0: no limit */
} clt_plan_room;
/* For a device of this host that ranks_on_device ranks share: each has an equal part of nine tenths of its
 * memory. Ranks may offload to nine tenths of the host's; a CPU device, which computes in it, has no limit.
 */
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

/* Which rank owns which part of the state. With lanes_per_rank, which follows the speed of devices, parts
 * follow it, too, if a rank with the largest part then still fits with the same microbatch. */
clt_status clt_plan_shards(const clt_plan *p, const clt_slab_table *t, clt_shards *out);

/* Chooses stage, microbatch and recomputation. Stage: the configuration's, or, if it is auto, 0 on one rank
 * and on several the lowest that fits, from 0 on where replicas are compared in numerics exact, otherwise
 * from 1 on. Microbatch: the configuration's, or the largest that fits `room`; at most the samples of a lane.
 * If the configuration does not set cltrain.recompute, fast 16-bit training keeps all activations if
 * it then takes at most a quarter of the room, training in 8 bits if it takes at most three quarters, and
 * either recomputes norms otherwise. Fast 16-bit training that does not fit with the default logits buffer
 * uses a smaller one. *fits: whether the plan fits the room; no message if not. */
clt_status clt_plan_choose(const clt_config *cfg, const clt_plan_room *room, clt_plan *p, bool *fits);
/* The same at this stage, whatever the configuration says; at a stage above 0 a configuration for stage 0
 * shards over all ranks. */
clt_status clt_plan_fit_stage(const clt_config *cfg, const clt_plan_room *room, int stage, clt_plan *p,
                              bool *fits);
/* The mildest single change to the configuration that makes the run fit at p's stage, for a message ("KEY:
 * VALUE (BYTES)"); NULL: none does. The caller frees it. */
char *clt_plan_advice(const clt_config *cfg, const clt_plan *p, const clt_plan_room *room);
/* Prints how much memory is missing, with that advice; returns CLT_NO_MEMORY. */
clt_status clt_plan_refuse(const clt_config *cfg, const clt_plan *p, const clt_plan_room *room);
/* The plan of a run: clt_plan_choose. CLT_NO_MEMORY: the run does not fit; the message suggests a change, and
 * *p is the plan that does not fit. */
clt_status clt_plan_fit(const clt_config *cfg, const clt_plan_room *room, clt_plan *p);
/* After clt_plan_fit, by all ranks of g together: all take the highest stage that one of them needs, keep
 * whole gradients if one of them must, and own equal parts if one of them must. CLT_NO_MEMORY on all ranks if
 * that does not fit on one. */
clt_status clt_plan_agree(clt_group *g, const clt_config *cfg, const clt_plan_room *room, clt_plan *p);
/* Whether a lane needs several microbatches in numerics exact. Then its gradient is a chain of additions over
 * them that one rank makes alone, in whole gradients. */
bool clt_plan_lane_is_split(const clt_config *cfg, const clt_plan *p, int64_t microbatch);
/* Adds one line for each decision about sharding that differs from what the configuration asks for. */
void clt_plan_notes(const clt_config *cfg, const clt_plan *p, clt_strv *lines);
/* Prints them. */
void clt_plan_say_notes(const clt_config *cfg, const clt_plan *p);
/* clt_plan_begin and clt_plan_fit, for tools. Free the plan also after CLT_NO_MEMORY. */
clt_status clt_plan_make(const clt_config *cfg, int ranks, const clt_plan_room *room, clt_plan *out);

/* The shape with which the plan creates the model. */
clt_model_shape clt_plan_shape(const clt_config *cfg, const clt_plan *p, bool training);
/* The memory of the rank that needs most, with p's lanes, recomputation and logits and this microbatch. */
clt_status clt_plan_memory_of(const clt_config *cfg, const clt_plan *p, clt_device_type type,
                              int64_t microbatch, clt_plan_memory *out);

/* Host memory of one rank: offloaded state, or what files pass through, weights, gradients and inputs of
 * blocks. */
uint64_t clt_plan_pinned_bytes(const clt_plan_memory *m);
/* Bytes of one rank in files of the same. */
uint64_t clt_plan_files_bytes(const clt_plan_memory *m);

/* What a step moves between host memory and the device of the rank with the most microbatches, in bytes,
 * without what ranks exchange: at most, because blocks that are still there are not brought again. */
typedef struct {
    int64_t microbatches;
    uint64_t in, out; /* to the device, back */
} clt_plan_traffic;
clt_plan_traffic clt_plan_link(const clt_config *c, const clt_plan *p);
/* The same between files and host memory: in is read, out is written. */
clt_plan_traffic clt_plan_files(const clt_config *c, const clt_plan *p);

/* For messages: "" or what is recomputed, as ", norms recomputed". */
const char *clt_recompute_text(const clt_plan *p);

#endif
