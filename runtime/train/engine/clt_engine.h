/* clt_engine: one optimizer step on this rank's device. It owns the slabs (weights, optimizer state,
 * gradients), the model's activations and the reduction plan, and knows lanes, clipping and the optimizer,
 * but nothing of files, schedules or logs: the trainer brings samples and a learning rate, and gets loss and
 * gradient norm.
 *
 * The order of every sum is docs/numerics.md's: the result of a step does not depend on ranks, devices or the
 * microbatch. */
#ifndef CLT_ENGINE_H
#define CLT_ENGINE_H

#include "collectives/clt_reduce.h"
#include "runtime/checkpoint/clt_checkpoint.h"
#include "runtime/train/engine/clt_loss_scale.h"
#include "runtime/train/engine/clt_plan.h"

typedef struct clt_engine clt_engine;

typedef struct {
    const clt_config *cfg; /* borrowed */
    clt_group *group;      /* borrowed */
    clt_ops *ops;          /* borrowed */
    const clt_plan *plan;  /* borrowed: lanes, microbatch, recomputation, seed */
    bool training;         /* false: weights and evaluation only */
} clt_engine_params;

/* Collective if training: a rank that cannot (CLT_NO_MEMORY) is told of to all. */
clt_status clt_engine_create(const clt_engine_params *p, clt_engine **out);
void clt_engine_destroy(clt_engine *e);

const clt_slab_table *clt_engine_table(const clt_engine *e);
/* weight, exp_avg, exp_avg_sq: for checkpoints and hashes. Valid as long as the engine. */
const clt_ckpt_part *clt_engine_parts(const clt_engine *e, int *n);
/* After the weights were loaded or initialised: makes their 16-bit copy anew, where there is one. Queued. */
clt_status clt_engine_weights_changed(clt_engine *e);
/* A model for generating text with the engine's weights, as they are at each call; it keeps keys and values.
 * The caller destroys it before the engine. */
clt_status clt_engine_text_model(clt_engine *e, clt_model **out);
/* The scale of amp_fp16, to save and restore. */
clt_loss_scale *clt_engine_loss_scale(clt_engine *e);

/* The arrays of the batches that it takes. */
const clt_batch_layout *clt_engine_layout(const clt_engine *e);

/* This rank's samples [first, last) of a global batch of `samples`. */
void clt_engine_share(const clt_engine *e, int64_t samples, int64_t *first, int64_t *last);

typedef struct {
    double loss;     /* token-weighted mean over the global batch (or mean of sample means) */
    float grad_norm; /* before clipping; NaN where it was not computed (cltrain.guards.gradient_norm) */
    bool finite;     /* false: nothing was updated */
    bool skipped; /* amp_fp16: the gradient overflowed at this loss scale: nothing was updated, training goes
                     on */
    bool refused; /* the judge left it out: nothing was updated */
    double loss_scale; /* amp_fp16: of this step; else 0 */
    bool given_up; /* some rank was asked to stop in the middle of the step: nothing was updated, nothing else
                      is set */
} clt_engine_result;

/* Sums over the batches of an evaluation so far. */
typedef struct {
    double
        loss; /* of all targets: sample by sample in global order, so batches and ranks do not show in it */
    int64_t targets, correct;
} clt_engine_sums;

/* One optimizer step. */
typedef struct {
    const clt_batch
        *batch;   /* this rank's samples (clt_engine_share), with what is said of the global batch */
    int64_t step; /* from 1: Adam's count */
    double alpha; /* multiplier of the learning rates */
    bool spoilt;  /* tests: the loss of the rank's first sample becomes NaN */
} clt_engine_step_params;

/* Forward, backward, reduction, clipping, update. Collective; every rank gets the same result.
 *
 * launch queues a step and returns; collect waits for the oldest queued one. Two may be queued, with amp_fp16
 * one (its scale follows from the step before). *given_up: nothing was queued. A step that was not finite
 * keeps those queued behind it from changing anything too. Arrays of the batch are free on return.
 * clt_engine_step is one after the other. */
clt_status clt_engine_launch(clt_engine *e, const clt_engine_step_params *p, bool *given_up);
clt_status clt_engine_collect(clt_engine *e, clt_engine_result *out);
clt_status clt_engine_step(clt_engine *e, const clt_engine_step_params *p, clt_engine_result *out);

/* Asked with what a step made (loss, gradient norm) before it changes the weights; false leaves it out. Every
 * rank has to answer the same. With a judge launch waits for the step, and only one may be queued. Not asked
 * about steps that change nothing in any case. */
typedef bool (*clt_engine_judge)(void *ctx, const clt_engine_result *made);
void clt_engine_set_judge(clt_engine *e, clt_engine_judge judge, void *ctx);
/* After a step that was not finite: the next one may change the weights again. No other may be queued. */
clt_status clt_engine_forgive(clt_engine *e);

/* Runs the lanes of a bad step again, looks at what every operation made, and tells (what, a line of text on
 * every rank) the first that made a NaN or an infinity, on the rank and lane where it happened first in
 * global order. Changes nothing but gradients. Collective. */
enum { CLT_ENGINE_WHAT = 240 };
clt_status clt_engine_explain(clt_engine *e, const clt_batch *b, int64_t step, char what[CLT_ENGINE_WHAT]);

/* clt_op_hash over each of clt_engine_parts, into hash[0..2]; parts that are not there give 0. Waits. */
enum { CLT_ENGINE_PARTS = 3 };
clt_status clt_engine_hash(clt_engine *e, uint64_t hash[CLT_ENGINE_PARTS]);

/* How many samples a second this rank's device takes through forward and backward with this engine's
 * microbatch, on made-up tokens: two runs after a first one. Overwrites weights (with zeros) and gradients.
 * Not collective, but ranks that share a device should call it together. */
clt_status clt_engine_measure(clt_engine *e, double *samples_per_second);

/* Goes through a step, and an evaluation if `evaluates`, without doing anything (clt_device_rehearse): the
 * kernels that are not in the cache are then built by helper processes, while the caller loads weights. Not
 * collective. */
void clt_engine_rehearse(clt_engine *e, bool evaluates);

/* Builds what clt_engine_eval needs, by running it on one sample of zeros: an evaluation between steps then
 * compiles nothing. Not collective. */
clt_status clt_engine_prepare_eval(clt_engine *e);

/* Forward only over this rank's samples of a global batch; what the global batch gives is added to *sums.
 * Collective. */
clt_status clt_engine_eval(clt_engine *e, const clt_batch *b, clt_engine_sums *sums);

#endif
