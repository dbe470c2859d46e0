/* clt_engine_internal: the engine's state, for the files of this folder only. */
#ifndef CLT_ENGINE_INTERNAL_H
#define CLT_ENGINE_INTERNAL_H

#include "runtime/device/clt_mark.h"
#include "runtime/device/clt_spool.h"
#include "runtime/train/engine/clt_engine.h"
#include "runtime/train/engine/clt_engine_offload.h"

enum {
    /* `results` holds 32-bit words: gradient norm, clip coefficient, flag "finite", ...; the samples' losses
     * follow from LOSSES on */
    STATUS_FINITE = 2,
    LOSSES = 64,
    MOST_PENDING = 2
};

/* A queued step whose results were not read yet. */
typedef struct {
    clt_later read;
    int64_t samples, mine; /* of the global batch; of this rank */
    int64_t count;         /* divisor of the loss: targets, or samples, of the global batch */
    int32_t *targets;      /* [mine] targets of each sample, if every sample has the same weight */
} clt_engine_pending;

/* A buffer that units take turns in. */
typedef struct {
    clt_buffer *buffer;
    int unit; /* that is there, or on its way; -1: none */
    bool in_use;
    int64_t op;      /* that brings its weights, or takes its gradients */
    clt_mark *there; /* behind copies: of its weights from the host's memory, or of its gradients to it */
} clt_unit_place;

typedef struct {
    clt_slab *slab; /* pieces are units; NULL: not in this run */
    clt_unit_place *place;
    int n;
} clt_unit_holder;

typedef struct {
    clt_model_unit *unit;
    int n;
    uint64_t *start; /* [n + 1] elements */
    clt_unit_holder weights, gradients;
    clt_slab *source;     /* what weights are gathered from: the kept ranges */
    int *forward, *train; /* the order in which passes read units */
    int forwards, trains; /* lengths */
    const int *order;     /* of the current pass */
    int reads, at;        /* its length; units that it has read so far */
    int ahead;            /* units that are gathered ahead */
    unsigned turn;        /* of the blocks' places for gradients */
} clt_engine_units;

/* The ranks that hold the weights once, each of them a part; several such groups are replicas. The owners of
 * a rank's part, one in each group, are the ranks with its number in the group: they hand each other what
 * they have updated. */
typedef struct {
    clt_shards keep; /* who keeps what, by number in the group; borrows */
    int number;
    clt_group *ranks, *replicas; /* of this group; those with this rank's number. NULL: one group of all */
    clt_reduce_plan *gather;     /* inside the group */
    clt_reduce_plan *between;    /* over the replicas; NULL: one group of all */
} clt_engine_shard_group;

typedef struct clt_engine_host_sums clt_engine_host_sums;
typedef struct clt_engine_host_parts clt_engine_host_parts;
typedef struct clt_engine_host_update clt_engine_host_update;

/* Trust ratios of tensors (clt_engine_lamb.c has the layouts). */
typedef struct {
    uint64_t *first_of; /* [chunks + 1] the first segment of each chunk */
    uint64_t slots;     /* the most segments of a chunk */
    clt_buffer *segment, *place, *tensor, *tensor_of_block;
    clt_buffer *sums[2]; /* [slots, chunks] of weights, of directions */
    clt_buffer *ratio;   /* [tensors] */
} clt_engine_lamb;

/* Of the step that is being queued, if its phases are timed. */
typedef struct {
    clt_phase_times *out;   /* NULL: they are not */
    clt_engine_phase phase; /* CLT_PHASES: none yet */
    double start;           /* of the phase, by clt_now */
} clt_engine_timed;

struct clt_engine {
    const clt_config *cfg;
    clt_group *group;
    clt_ops *ops;
    clt_model *model;
    clt_batch_layout layout;
    clt_slab_table table;
    clt_slab *weights,
        *narrow;             /* what the model reads; borrowed where they are master, copy, or a holder's */
    clt_slab *master, *copy; /* what the optimizer writes: fp32, 16 bits (NULL in fp32) */
    clt_slab *wide;          /* tensors that the model reads in fp32, where it does not read master */
    clt_slab_range *wide_range; /* [n_wide] what wide has */
    int n_wide;
    clt_slab *m, *v;
    clt_offload_ring *offload; /* of master, m, v and copy; NULL: they are on the device */
    clt_scratch *file;         /* of what is in files, in training; NULL: nothing is */
    clt_spool *spool; /* the way between it and the device of all but what `offload` brings; may be NULL */
    bool sharded_gradients, sharded_weights;
    bool offloads;                       /* cltrain.offload: host or file, in training */
    bool host_weights;                   /* units.source is pinned or in the file: offload_parameters */
    bool host_gradients;                 /* level is: cltrain.offload_gradients */
    clt_engine_host_sums *host_sums;     /* of one rank; */
    clt_engine_host_parts *host_parts;   /* of several */
    clt_engine_host_update *host_update; /* cltrain.offload_update: host. NULL: it is not */
    clt_engine_units units;
    clt_slab *level[CLT_LANE_LEVELS]; /* sums of the own ranges between rounds; the first takes the total */
    bool mute;                        /* passes exchange nothing: their results do not matter */
    clt_slab **grads;
    int n_grads;
    const clt_plan *plan;
    clt_lane_split split; /* in training */
    int *counts;          /* of split, if they are not the plan's */
    int lanes;            /* that this rank owns */
    clt_lane_stack *stack;
    clt_shards shards;
    clt_reduce_plan *reduce;
    clt_engine_shard_group weights_in; /* where weights are sharded */
    int stage;                         /* clt_plan.stage */
    /* The step that is being queued (clt_engine_exchange.c). */
    struct {
        int64_t samples;               /* of this rank */
        bool spoilt;                   /* clt_engine_step_params.spoilt */
        bool early;                    /* the rank's last lane is on its way, and reports its gradients */
        bool committed;                /* the ranks have agreed to finish the step */
        const clt_slab *lane;          /* that lane's gradients */
        int64_t lane_at, lane_samples; /* its samples in the batch of this rank, where lanes go one by one */
        clt_lane_sum sum;              /* what this rank brings to a round */
        bool has_lane;                 /* to this round */
        clt_slab *total;
        bool *final;     /* [table.n] tensors whose gradients are queued */
        int open;        /* tensors from this one on are final */
        int bucket;      /* buckets from this one on are on their way */
        int64_t reduced; /* the last one's operation */
    } step;
    int64_t *published; /* [buckets] the operation that brings a bucket's weights */
    int64_t *renewed;   /* [buckets] the operation that brings new values of a bucket's kept weights */
    bool *frozen;       /* [table.n] */
    int guarded; /* a tensor that is not frozen, in which clt_op_guard marks bad steps; -1: all are frozen */
    clt_buffer *block_group, *groups, *chunk_sums, *results, *nonfinite, *hashes;
    clt_engine_lamb lamb; /* empty with other optimizers */
    clt_scaled_group scaled[CLT_MAX_SCALED_GROUPS];
    int n_scaled; /* of frozen tensors: the group behind these */
    clt_optimizer_group host_groups[CLT_MAX_SCALED_GROUPS + 1]; /* what the device has in `groups` */
    float *host_results;
    float *sample_weight; /* [microbatch] */
    clt_loss_scale scale;
    clt_fp8_scaling fp8;                      /* empty without amp_fp8 */
    clt_engine_pending pending[MOST_PENDING]; /* oldest first */
    int n_pending;
    clt_engine_timed timed;
    clt_engine_judge judge;
    void *judge_ctx;
    clt_engine_result judged; /* result given to the judge, until it is collected */
    bool has_judged;
    clt_ckpt_part parts[CLT_ENGINE_PARTS];
    int n_parts;
};

bool clt_engine_second_moment(const clt_config *c);

/* optimizer lamb (clt_engine_lamb.c), nothing otherwise. */
clt_status clt_engine_lamb_create(clt_engine *e);
void clt_engine_lamb_destroy(clt_engine *e);
/* Between the directions and the step: the sums of squares of the segments of a stretch, which is at p; and
 * the tensors' ratios once every stretch has its sums. The second is collective. */
clt_status clt_engine_lamb_sums(clt_engine *e, const clt_optimizer_params *p, clt_slab_range x);
clt_status clt_engine_lamb_ratios(clt_engine *e);

/* amp_fp8 (clt_engine_fp8.c), nothing otherwise: begins with empty histories; and ends a step, whose results
 * are known. The second is collective. */
clt_status clt_engine_fp8_create(clt_engine *e);
clt_status clt_engine_fp8_follow(clt_engine *e);

/* If the phases of this step are timed (clt_engine_phases.c): waits, and counts what follows as `phase`. turn
 * is the model's hook (ctx: the engine); leave ends the step, with what its weights exchange. */
clt_status clt_engine_enter(clt_engine *e, clt_engine_phase phase);
clt_status clt_engine_turn(void *engine, bool backward);
clt_status clt_engine_leave_phases(clt_engine *e);

/* A pass over samples [at, at + n) of this rank's part of a global batch, as the microbatch *mb. */
clt_model_pass clt_engine_pass(clt_engine *e, const clt_batch *b, int64_t at, int64_t n, clt_batch *mb);
/* Forward and backward of this rank's lane number `lane` into grads. CLT_STOPPED as soon as a rank is asked
 * to stop. */
clt_status clt_engine_run_lane(clt_engine *e, const clt_batch *b, int64_t step, int lane,
                               const clt_slab *grads);
/* Where the samples of this rank's lane i begin in its part of a global batch of `samples` samples; i may be
 * the number of lanes: its samples. */
int64_t clt_engine_lane_begin(const clt_engine *e, int64_t samples, int i);
/* Passes over microbatches that `rank` makes in a batch. */
int64_t clt_engine_passes(const clt_engine *e, int64_t samples, int rank);
/* Queues every operation that follows the lanes' passes, for a rehearsal. */
clt_status clt_engine_step_ops(clt_engine *e, int64_t samples);
/* --- clt_engine_exchange.c --- */

/* Before the lanes of a step. */
clt_status clt_engine_open_step(clt_engine *e, const clt_engine_step_params *p);
/* The clt_model_ready of the engine's model; ctx is the engine. */
clt_status clt_engine_ready(void *engine, int first, int end);
/* After the lanes, which have ended with `lanes` on this rank: the total over all ranks into e->step.total,
 * whole at stage 0, otherwise the own ranges. Returns the first failure of any rank, the same on all;
 * CLT_STOPPED: a rank was asked to stop, and all ranks give the step up. */
clt_status clt_engine_reduce(clt_engine *e, clt_status lanes);
/* Range i = 0, 1, ... of what `shards` give to this rank, NULL: everything; false: there are no more. Some
 * may be empty. */
bool clt_engine_range(const clt_engine *e, const clt_shards *shards, int i, clt_slab_range *x);
/* The same for what this rank updates. */
bool clt_engine_own(const clt_engine *e, int i, clt_slab_range *x);
/* The chunk sums of all ranks, where each has its own. */
clt_status clt_engine_gather_sums(clt_engine *e);
/* The same for numbers [at, at + chunks) of a buffer; overwrites the chunk sums. */
clt_status clt_engine_gather_numbers(clt_engine *e, clt_buffer *numbers, uint64_t at);
/* Hands the weights that this rank has updated to the ranks that keep them. clt_engine_settle waits for their
 * arrival. */
clt_status clt_engine_publish(clt_engine *e);
/* Before weights x are gathered from those that keep them. */
clt_status clt_engine_settle_kept(clt_engine *e, clt_slab_range x);
/* The same for elements x only. */
clt_status clt_engine_settle_unit(clt_engine *e, clt_slab_range x);

/* --- clt_engine_stretches.c --- */

/* Elements of the ranges that `shards` give to this rank (NULL: of everything), in pieces that lie in one
 * piece of each slab in `used`; of slabs that are not on the device they have at most `most`. NULL slabs do
 * not matter. Starts with range and done 0. */
typedef struct {
    const clt_engine *e;
    const clt_shards *shards;
    const clt_slab *used[5];
    uint64_t most;
    int range;     /* clt_engine_range */
    uint64_t done; /* elements of it */
} clt_engine_stretches;
/* A clt_offload_next; `stretches` points to a clt_engine_stretches. */
bool clt_engine_next_stretch(void *stretches, clt_slab_range *x);

/* --- clt_engine_rounds.c --- */

/* Where lanes are dealt out: the lanes of all ranks, one of each at once, with what follows from their
 * gradients; the total is in level[0]. CLT_STOPPED on all ranks: one was asked to stop. */
clt_status clt_engine_run_rounds(clt_engine *e, const clt_batch *b, int64_t step);
/* With sharded weights: goes along with passes that other ranks make in this batch and this one does not. */
clt_status clt_engine_go_along_lanes(clt_engine *e, int64_t samples);

/* --- clt_engine_units.c --- */

clt_status clt_engine_units_create(clt_engine *e);
void clt_engine_units_destroy(clt_engine *e);
/* The model's hooks; ctx is the engine. */
clt_status clt_engine_need(void *engine, int unit);
clt_status clt_engine_done(void *engine, int unit);
clt_status clt_engine_grads_need(void *engine, int unit);
/* Before a pass over a microbatch. */
void clt_engine_begin_pass(clt_engine *e, bool training);
/* The weights have changed, or were never there: units are gathered again. */
void clt_engine_forget_units(clt_engine *e);
/* Where a unit's gradients are; NULL: nowhere. *x: its elements. */
clt_unit_place *clt_engine_gradient_place(clt_engine *e, int unit, clt_slab_range *x);
/* Elements. */
uint64_t clt_engine_largest_unit(const clt_engine *e);
/* A unit's gradients are queued, or this rank has none. */
clt_status clt_engine_reduce_unit(clt_engine *e, int unit);
/* Begins and joins what a pass of other ranks exchanges, without a pass on this one. */
clt_status clt_engine_go_along(clt_engine *e, bool training, bool gradients);
/* A NaN into the gradient of the guarded tensor if one of `samples` losses from number `at` on is not finite
 * or the previous step cleared the flag. */
clt_status clt_engine_guard(clt_engine *e, const clt_slab *grads, int64_t at, int64_t samples);

/* --- clt_engine_host_sums.c --- */

/* Needs the units; frees what it made if it fails. NULL may be destroyed. */
clt_status clt_engine_host_sums_create(clt_engine *e, clt_engine_host_sums **out);
void clt_engine_host_sums_destroy(clt_engine_host_sums *h);
/* The sums of a batch begin with round 0 of `rounds`; between open and close its lane's gradients are kept
 * unit by unit, once each, `empty` or not. After the last close, whose lane must have samples, the total is
 * in e->level[0], and the chunk sums of chunks that are one unit's alone are its squares, if the norm is
 * needed. */
clt_status clt_engine_host_sums_open(clt_engine *e, int round, int rounds, bool empty);
clt_status clt_engine_host_sums_keep(clt_engine *e, int unit);
clt_status clt_engine_host_sums_close(clt_engine *e);
/* --- clt_engine_host_parts.c --- */

/* Needs the units and the shards; frees what it made if it fails. NULL may be destroyed. */
clt_status clt_engine_host_parts_create(clt_engine *e, clt_engine_host_parts **out);
void clt_engine_host_parts_destroy(clt_engine_host_parts *h);
/* Before round `round` of a batch; nothing without parts. */
clt_status clt_engine_host_parts_open(clt_engine *e, int round);
/* Before the reductions of a unit: its sums so far are on their way to the device. *level: what the
 * reductions get. Then their last one has begun. */
clt_status clt_engine_host_parts_bring(clt_engine *e, int unit, clt_slab *const **level);
void clt_engine_host_parts_began(clt_engine *e, int unit, int64_t op);
/* After the last round: the total is on its way to e->level[0]. */
clt_status clt_engine_host_parts_close(clt_engine *e);

/* --- clt_engine_host_update.c --- */

/* Opens a CPU device; needs the slabs, the optimizer's groups and the offload ring. Frees what it made if it
 * fails. NULL may be destroyed. */
clt_status clt_engine_host_update_create(clt_engine *e, clt_engine_host_update **out);
void clt_engine_host_update_destroy(clt_engine_host_update *h);
/* Whether the host updates the elements from `first` on: their state is in its memory. */
bool clt_engine_host_updates(const clt_engine *e, uint64_t first);
/* The step's status and groups go to the CPU device; waits for the device, whose total is then complete. */
clt_status clt_engine_host_update_begin(clt_engine *e);
/* Begins the optimizer's step of everything that the host updates; with several ranks it is complete. */
clt_status clt_engine_host_update_run(clt_engine *e, clt_slab *total);
/* Waits for the step as far as elements before `end`; UINT64_MAX: all. The way of their weights to the device
 * is queued, and the compute queue waits for them. Nothing without such a step. */
clt_status clt_engine_host_update_reach(clt_engine *e, uint64_t end);
/* What updates have moved between the device and the host, and their seconds. h may be NULL. */
clt_offload_traffic clt_engine_host_update_count(const clt_engine_host_update *h);

/* --- clt_engine_group.c --- */

/* Needs the shards. */
void clt_engine_group_set(clt_engine *e);
/* The groups and the plans that gather; collective, after e->reduce. */
clt_status clt_engine_group_create(clt_engine *e);
void clt_engine_group_destroy(clt_engine *e);

/* --- clt_engine_update.c --- */

/* Computes the step's status (norm, clip coefficient, flag) from the total, and clips by value. */
clt_status clt_engine_judge_gradient(clt_engine *e, clt_slab *total);
/* The optimizer's step; of p: step, alpha and betas. */
clt_status clt_engine_update(clt_engine *e, clt_slab *total, const clt_engine_step_params *p);
/* The step of an optimizer without trust ratios. */
clt_status clt_engine_optimizer_step(clt_ops *ops, clt_optimizer_kind kind, const clt_optimizer_params *p);
/* Own stretches of what the optimizer reads and writes; most: elements of one that is not on the device. */
clt_engine_stretches clt_engine_own_stretches(const clt_engine *e, const clt_slab *total, uint64_t most);
/* The parts of stretch x of the fp32 weights that the model reads in fp32, one by one from *at on: *at is
 * moved behind the part, *to is its place in what the model reads. false: there are no more. Begin with *at
 * x.first. */
bool clt_engine_next_wide(const clt_engine *e, clt_slab_range x, uint64_t *at, clt_slab_range *part,
                          clt_ref *to);
/* What the model reads of the fp32 weights that this rank updates: the 16-bit copy, and in an offloaded run
 * the tensors that it reads in fp32. */
clt_status clt_engine_copy_weights(clt_engine *e);
bool clt_engine_needs_norm(const clt_config *c);
/* A power of two, so multiplying by it is exact. */
float clt_engine_loss_scale_now(const clt_engine *e);

/* Replaces this rank's sample losses in host_results by those of all ranks, in global order. split: how the
 * samples are divided among the ranks. */
clt_status clt_engine_gather(clt_engine *e, const clt_lane_split *split, int64_t samples);
/* How samples are divided where no lanes are dealt out: in evaluation. */
clt_lane_split clt_engine_even(const clt_engine *e);

/* --- clt_engine_slabs.c --- */

/* The slabs of weights, optimizer state and gradients, by stage. */
clt_status clt_engine_slabs_create(clt_engine *e, bool training);
void clt_engine_slabs_destroy(clt_engine *e);
/* Copies elements x of a slab that is pinned, or in the file, to `at` on the device, or, with back false, the
 * other way, in the queue in use. Those that the slab does not have are left out. With a file this waits as
 * clt_spool_fetch and clt_spool_send do. */
clt_status clt_engine_copy_away(const clt_engine *e, const clt_slab *away, clt_slab_range x, clt_ref at,
                                bool back);

#endif
