/* clt_engine: one optimizer step on this rank's device. It owns the slabs (weights, optimizer state,
 * gradients), the model's activations and the reduction plan, and knows lanes, clipping and the optimizer,
 * but nothing of files, schedules or logs: the trainer brings samples and a learning rate, and gets loss and
 * gradient norm.
 *
 * The order of every sum is docs/numerics.md's: the result of a step does not depend on ranks, devices or the
 * microbatch. */
#ifndef CLT_ENGINE_H
#define CLT_ENGINE_H

#include "../checkpoint/clt_checkpoint.h"
#include "../model/clt_mpt.h"
#include "clt_config.h"

typedef struct clt_engine clt_engine;

/* Device bytes of a run, by what they are for. */
typedef struct {
    uint64_t weights, gradients, optimizer, reduction;
    clt_mpt_memory model;
    uint64_t total, largest;
    int gradient_slabs;
    int64_t microbatch;
} clt_run_memory;

/* What one rank of `ranks` needs; lanes are those of the busiest rank. No device is needed. */
clt_status clt_run_memory_plan(const clt_config *cfg, clt_device_type type, int ranks, int64_t microbatch,
                               clt_run_memory *out);
/* The largest microbatch whose plan fits `capacity` bytes with no buffer above `max_alloc`, at most what a
 * lane holds. CLT_NO_MEMORY says what one sample would need. */
clt_status clt_run_choose_microbatch(const clt_config *cfg, clt_device_type type, int ranks,
                                     uint64_t capacity, uint64_t max_alloc, clt_run_memory *out);
/* Bytes of `device` that one of `ranks_on_device` ranks may plan with. */
uint64_t clt_run_capacity(const clt_device_facts *device, int ranks_on_device);

typedef struct {
    const clt_config *cfg; /* borrowed */
    clt_group *group;      /* borrowed */
    clt_ops *ops;          /* borrowed */
    int64_t microbatch;
    int lanes;     /* cfg->exact_lanes, or the checkpoint's */
    bool training; /* false: weights and evaluation only */
} clt_engine_params;

clt_status clt_engine_create(const clt_engine_params *p, clt_engine **out);
void clt_engine_destroy(clt_engine *e);

const clt_slab_table *clt_engine_table(const clt_engine *e);
/* weight, exp_avg, exp_avg_sq: for checkpoints and hashes. Valid as long as the engine. */
const clt_ckpt_part *clt_engine_parts(const clt_engine *e, int *n);
clt_mpt *clt_engine_model(clt_engine *e);

/* This rank's samples [first, last) of a global batch of `samples`. */
void clt_engine_share(const clt_engine *e, int64_t samples, int64_t *first, int64_t *last);

/* Host arrays of this rank's samples, [(last - first) * T]; the same struct serves evaluation. */
typedef struct {
    int64_t samples; /* of the global batch */
    int64_t targets; /* N: of the global batch */
    const int32_t *tokens, *labels, *seq_ids;
} clt_engine_batch;

typedef struct {
    double loss;     /* token-weighted mean over the global batch (or mean of sample means) */
    float grad_norm; /* before clipping */
    bool finite;     /* false: nothing was updated */
    bool given_up; /* some rank was asked to stop in the middle of the step: nothing was updated, nothing else
                      is set */
} clt_engine_result;

/* Sums over the batches of an evaluation so far. */
typedef struct {
    double
        loss; /* of all targets: sample by sample in global order, so batches and ranks do not show in it */
    int64_t targets, correct;
} clt_engine_sums;

/* Forward, backward, reduction, clipping, update. step: from 1, Adam's count. alpha: multiplier of the
 * learning rates. Collective; every rank gets the same result. */
clt_status clt_engine_step(clt_engine *e, const clt_engine_batch *b, int64_t step, double alpha,
                           clt_engine_result *out);

/* Runs the lanes of a bad step again, looks at what every operation made, and prints the first that made a
 * NaN or an infinity, on the rank and lane where it happened first in global order. Changes nothing but
 * gradients. Collective. */
clt_status clt_engine_explain(clt_engine *e, const clt_engine_batch *b, int64_t step);

/* Builds what clt_engine_eval needs, by running it on one sample of zeros: an evaluation between steps then
 * compiles nothing. Not collective. */
clt_status clt_engine_prepare_eval(clt_engine *e);

/* Forward only over this rank's share; what the batch gives is added to *sums. Collective. */
clt_status clt_engine_eval(clt_engine *e, const clt_engine_batch *b, clt_engine_sums *sums);

#endif
