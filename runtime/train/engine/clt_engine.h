/* clt_engine: one optimizer step on this rank's device. The engine owns the slabs (weights, optimizer state,
 * gradients), the model's activations and the reduction plan. It implements lanes, clipping and the
 * optimizer. It knows no files, schedules or logs: the caller passes samples and a learning rate and receives
 * loss and gradient norm.
 *
 * The order of every sum is fixed in docs/numerics.md: with exact numerics the result of a step does not
 * depend on ranks, devices or the microbatch. */
#ifndef CLT_ENGINE_H
#define CLT_ENGINE_H

#include "collectives/clt_reduce.h"
#include "runtime/checkpoint/clt_checkpoint.h"
#include "runtime/data/clt_loader.h"
#include "runtime/train/engine/clt_loss_scale.h"
#include "runtime/train/engine/clt_engine_offload.h"
#include "runtime/train/engine/clt_plan.h"

typedef struct clt_engine clt_engine;

typedef struct {
    const clt_config *cfg; /* borrowed */
    clt_group *group;      /* borrowed */
    clt_ops *ops;          /* borrowed */
    const clt_plan *plan;  /* borrowed: lanes, microbatch, recomputation, seed; of its memory: resident */
    bool training;         /* false: weights and evaluation only */
} clt_engine_params;

/* Collective if training: if one rank fails (CLT_NO_MEMORY), all ranks return an error. */
clt_status clt_engine_create(const clt_engine_params *p, clt_engine **out);
void clt_engine_destroy(clt_engine *e);

const clt_slab_table *clt_engine_table(const clt_engine *e);
/* The tensors' roles with their slabs: weight, exp_avg, exp_avg_sq (those that exist), for checkpoints and
 * hashes. *n receives the number. Valid as long as the engine. */
const clt_ckpt_part *clt_engine_parts(const clt_engine *e, int *n);
/* Ranks hand each other updated weights while they go on. To be called before the parts are read by others
 * than the engine: what is read from here on is complete. Cheap if nothing is on its way. */
clt_status clt_engine_settle(clt_engine *e);
/* To be called after the weights were loaded or initialised: queues the update of their 16-bit copy (nothing
 * in fp32). */
clt_status clt_engine_weights_changed(clt_engine *e);
/* A model that generates text with the engine's current weights and caches keys and values of `texts` texts.
 * The caller destroys it before the engine. */
clt_status clt_engine_text_model(clt_engine *e, int64_t texts, clt_model **out);
/* The loss scale of amp_fp16, for saving and restoring. */
clt_loss_scale *clt_engine_loss_scale(clt_engine *e);
/* The delayed scaling of amp_fp8, for saving and restoring; without tensors otherwise. After it was changed,
 * and after passes that are no part of a step, call clt_engine_fp8_changed, which also forgets what those
 * passes recorded. */
clt_fp8_scaling *clt_engine_fp8(clt_engine *e);
clt_status clt_engine_fp8_changed(clt_engine *e);

/* The layout of its batches. */
const clt_batch_layout *clt_engine_layout(const clt_engine *e);

/* Sets [first, last), this rank's part of a global batch of `samples` samples in evaluation. */
void clt_engine_share(const clt_engine *e, int64_t samples, int64_t *first, int64_t *last);

/* The stretches of a global batch of `samples` samples that this rank trains on, one behind the other in its
 * batch: `part` has room for clt_engine_most_parts of them. Returns their number. */
int clt_engine_parts_of_batch(const clt_engine *e, int64_t samples, clt_loader_rows *part);
int clt_engine_most_parts(const clt_engine *e);

typedef struct {
    double loss;       /* token-weighted mean over the global batch (or the mean of the samples' means) */
    float grad_norm;   /* before clipping; NaN if not computed (cltrain.guards.gradient_norm) */
    bool finite;       /* false: loss or gradient is NaN or infinite, nothing was updated */
    bool skipped;      /* amp_fp16: the gradient overflowed at this loss scale, nothing was updated */
    bool refused;      /* the judge rejected the step, nothing was updated */
    double loss_scale; /* of this step in amp_fp16, else 0 */
    double done;       /* when the host saw that the device had computed it, by clt_now */
    bool given_up; /* a request to stop ended the step early: nothing was updated, no other member is set */
} clt_engine_result;

/* Sums over the batches of an evaluation. */
typedef struct {
    /* Of all targets, added sample by sample in global order: independent of batch size and ranks. */
    double loss;
    int64_t targets;
    clt_model_correct correct;
} clt_engine_sums;

/* One optimizer step. */
typedef struct {
    const clt_batch *batch; /* this rank's samples (clt_engine_share), with the sums over the global batch */
    int64_t step;           /* counts from 1, for Adam's bias correction */
    double alpha;           /* multiplier of the learning rates */
    const double *betas;    /* [2] instead of those of every parameter group (not SGD's momentum); or NULL */
    bool spoilt;            /* tests: the loss of the rank's first sample becomes NaN */
} clt_engine_step_params;

/* Forward, backward, reduction, clipping, update. Collective; every rank receives the same result.
 *
 * clt_engine_launch queues a step and returns; the batch's arrays may be reused then. *given_up: a rank was
 * asked to stop, nothing was queued. clt_engine_collect waits for the oldest queued step. Two steps may be
 * queued; with amp_fp16 only one, because the loss scale follows from the previous step. If a step is not
 * finite, steps queued behind it change nothing either. clt_engine_step is launch and collect in one call. */
clt_status clt_engine_launch(clt_engine *e, const clt_engine_step_params *p, bool *given_up);
clt_status clt_engine_collect(clt_engine *e, clt_engine_result *out);
clt_status clt_engine_step(clt_engine *e, const clt_engine_step_params *p, clt_engine_result *out);

/* Phases of a step, as times on this rank. What ranks exchange while a pass runs counts as the pass. */
typedef enum {
    CLT_PHASE_FORWARD, /* with the loss */
    CLT_PHASE_BACKWARD,
    CLT_PHASE_EXCHANGE, /* of gradients after the passes, of weights after the update */
    CLT_PHASE_UPDATE,   /* norm, clipping, optimizer */
    CLT_PHASES
} clt_engine_phase;
typedef struct {
    double seconds[CLT_PHASES];
} clt_phase_times;
/* Of the next step that is launched: *out, which must outlive the launch, is complete after it. The launch
 * waits for the device after each phase and for what the weights exchange; no bit changes. No step may be
 * queued, and all ranks must do the same. */
void clt_engine_time_phases(clt_engine *e, clt_phase_times *out);

/* Called with loss and gradient norm of a step before its update; false discards the step. Every rank must
 * return the same. Not called for steps that change nothing anyway. With a judge, clt_engine_launch waits for
 * the step, and only one step may be queued. */
typedef bool (*clt_engine_judge)(void *ctx, const clt_engine_result *made);
void clt_engine_set_judge(clt_engine *e, clt_engine_judge judge, void *ctx);
/* After a step that was not finite: allows the next step to change the weights. No step may be queued. */
clt_status clt_engine_forgive(clt_engine *e);

/* Repeats the lanes of a step that was not finite and checks the output of every operation. `what` receives,
 * on every rank, a line that names the first operation that made a NaN or an infinity, in the lowest rank
 * that has one, with its lane. Overwrites only gradients. Collective. */
enum { CLT_ENGINE_WHAT = 240 };
clt_status clt_engine_explain(clt_engine *e, const clt_batch *b, int64_t step, char what[CLT_ENGINE_WHAT]);

/* Hashes each of clt_engine_parts (clt_op_hash) into hash[0..2]; 0 for parts that do not exist. A sharded
 * part has the hash that it has as a whole part, the same on every rank. Waits; collective if a part is
 * sharded. */
enum { CLT_ENGINE_PARTS = 3 };
clt_status clt_engine_hash(clt_engine *e, uint64_t hash[CLT_ENGINE_PARTS]);

/* What updates have moved from and to files or host memory so far on this rank; zeros without
 * cltrain.offload. */
clt_offload_traffic clt_engine_offload_traffic(const clt_engine *e);
/* Seconds that the host has waited in passes for weights, sums of gradients and inputs of blocks in files. */
double clt_engine_file_wait(const clt_engine *e);
/* clt_offload_time of later steps. */
void clt_engine_time_offload(clt_engine *e, bool timed);

/* Measures the samples per second of forward and backward on this rank's device, with this engine's
 * microbatch and synthetic samples: the better of two runs after a warm-up. Overwrites weights (with zeros)
 * and gradients. Not collective, but ranks that share a device should call it at the same time. */
clt_status clt_engine_measure(clt_engine *e, double *samples_per_second);

/* Rehearses a step, and an evaluation if `evaluates`, without executing it (clt_device_rehearse): helper
 * processes build the kernels that are not in the cache while the caller loads weights. Not collective. */
void clt_engine_rehearse(clt_engine *e, bool evaluates);

/* Builds the kernels of clt_engine_eval by running it on one synthetic sample, so that an evaluation between
 * steps compiles nothing. Not collective. */
clt_status clt_engine_prepare_eval(clt_engine *e);

/* The most texts of clt_engine_span_logits. */
int64_t clt_engine_most_texts(const clt_engine *e);
/* clt_model_span_logits with the current weights. With sharded weights every rank makes the same number of
 * calls; one that has no texts gives samples 0. */
clt_status clt_engine_span_logits(clt_engine *e, const int32_t *tokens, int64_t samples, int64_t len,
                                  const clt_model_span *span, clt_model_logits_fn fn, void *ctx);
bool clt_engine_shards_weights(const clt_engine *e);

/* Forward only over this rank's samples of a global batch. Adds the results of the whole global batch to
 * *sums. Collective. */
clt_status clt_engine_eval(clt_engine *e, const clt_batch *b, clt_engine_sums *sums);
/* Instead the predictions for this rank's samples, out[b->samples]. Only for models that classify.
 * Collective. */
clt_status clt_engine_predict(clt_engine *e, const clt_batch *b, clt_model_prediction *out);

#endif
