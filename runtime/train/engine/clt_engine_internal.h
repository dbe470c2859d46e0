/* clt_engine_internal: the engine's state, for the files of this folder only. */
#ifndef CLT_ENGINE_INTERNAL_H
#define CLT_ENGINE_INTERNAL_H

#include "runtime/train/engine/clt_engine.h"

enum {
    FROZEN_GROUP = CLT_MAX_PARAM_GROUPS,
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

struct clt_engine {
    const clt_config *cfg;
    clt_group *group;
    clt_ops *ops;
    clt_model *model;
    clt_batch_layout layout;
    clt_slab_table table;
    clt_slab *weights, *narrow, *m, *v;
    clt_slab **grads;
    int n_grads;
    const clt_plan *plan;
    clt_lane_split split;
    int first_lane, last_lane;
    clt_lane_stack *stack;
    clt_shards shards;
    clt_reduce_plan *reduce;
    int stage; /* clt_plan.stage */
    /* The step that is being queued (clt_engine_exchange.c). */
    struct {
        int64_t samples;      /* of this rank */
        bool spoilt;          /* clt_engine_step_params.spoilt */
        bool early;           /* the rank's last lane is on its way, and reports its gradients */
        bool committed;       /* the ranks have agreed to finish the step */
        const clt_slab *lane; /* that lane's gradients */
        clt_slab *total;
        bool *final;     /* [table.n] tensors whose gradients are queued */
        int open;        /* tensors from this one on are final */
        int bucket;      /* buckets from this one on are on their way */
        int64_t reduced; /* the last one's operation */
    } step;
    int64_t *published; /* [buckets] the operation that brings a bucket's weights */
    bool *frozen;       /* [table.n] */
    int guarded; /* a tensor that is not frozen, in which clt_op_guard marks bad steps; -1: all are frozen */
    clt_buffer *block_group, *groups, *chunk_sums, *results, *nonfinite, *hashes;
    clt_optimizer_group host_groups[CLT_MAX_PARAM_GROUPS + 1];
    float *host_results;
    float *sample_weight; /* [microbatch] */
    clt_loss_scale scale;
    clt_engine_pending pending[MOST_PENDING]; /* oldest first */
    int n_pending;
    clt_engine_judge judge;
    void *judge_ctx;
    clt_engine_result judged; /* result given to the judge, until it is collected */
    bool has_judged;
    clt_ckpt_part parts[CLT_ENGINE_PARTS];
    int n_parts;
};

bool clt_engine_second_moment(const clt_config *c);

/* A pass over samples [at, at + n) of this rank's part of a global batch, as the microbatch *mb. */
clt_model_pass clt_engine_pass(clt_engine *e, const clt_batch *b, int64_t at, int64_t n, clt_batch *mb);
/* Forward and backward of one lane into grads. CLT_STOPPED as soon as a rank is asked to stop. */
clt_status clt_engine_run_lane(clt_engine *e, const clt_batch *b, int64_t step, int lane,
                               const clt_slab *grads);
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
/* Range i = 0, 1, ... of what this rank updates; false: there are no more. Some may be empty. */
bool clt_engine_own(const clt_engine *e, int i, clt_slab_range *x);
/* The chunk sums of all ranks, where each has its own. */
clt_status clt_engine_gather_sums(clt_engine *e);
/* Hands the weights that this rank has updated to all ranks. clt_engine_settle waits for their
 * arrival. */
clt_status clt_engine_publish(clt_engine *e);
/* --- clt_engine_update.c --- */

/* Computes the step's status (norm, clip coefficient, flag) from the total, and clips by value. */
clt_status clt_engine_judge_gradient(clt_engine *e, clt_slab *total);
clt_status clt_engine_update(clt_engine *e, clt_slab *total, int64_t step, double alpha);
bool clt_engine_needs_norm(const clt_config *c);
/* A power of two, so multiplying by it is exact. */
float clt_engine_loss_scale_now(const clt_engine *e);

/* Replaces this rank's sample losses in host_results by those of all ranks, in global order. */
clt_status clt_engine_gather(clt_engine *e, int64_t samples);

#endif
