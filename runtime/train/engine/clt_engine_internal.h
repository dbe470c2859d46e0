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
    clt_reduce_plan *reduce;
    bool *frozen; /* [table.n] */
    int guarded;  /* a tensor that is not frozen, in which clt_op_guard marks bad steps; -1: all are frozen */
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
/* Replaces this rank's sample losses in host_results by those of all ranks, in global order. */
clt_status clt_engine_gather(clt_engine *e, int64_t samples);

#endif
