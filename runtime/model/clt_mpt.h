/* clt_mpt: the MPT transformer of LLM Foundry: its parameter table, its initial weights, its memory plan, and
 * its forward and backward passes written as plain calls to operations, in order.
 *
 * The model owns activations and workspaces; weights and gradients live in slabs of the caller. Everything is
 * allocated by clt_mpt_create for a largest microbatch; a step afterwards allocates nothing. Places: rows are
 * tokens, sample after sample; C d_model, H query heads, KV key/value heads, D head size, F hidden width of
 * the MLP, V vocabulary, T sequence.
 *
 * Formulas: docs/numerics.md (orders), LLM Foundry's MPT (structure). */
#ifndef CLT_MPT_H
#define CLT_MPT_H

#include "runtime/device/clt_slab.h"
#include "runtime/ops/clt_ops.h"
#include "runtime/model/clt_mpt_config.h"

typedef struct clt_mpt clt_mpt;

/* --- parameters --- */

/* Fills `table` (start from {0}) with the model's tensors under Foundry's names, in the order of its state
 * dict. */
clt_status clt_mpt_table(const clt_mpt_config *cfg, clt_slab_table *table);
/* Number of trained parameters (tied embeddings counted once). */
uint64_t clt_mpt_param_count(const clt_mpt_config *cfg);
/* FLOP of one training step per token by MosaicML's formula 6 N + 12 L C T (published-throughput tables). */
double clt_mpt_train_flops_per_token(const clt_mpt_config *cfg, int64_t seq);

/* Initial value of every tensor as init_config says (kaiming_normal_ by default), from counter-based random
 * numbers keyed by the seed: the same on every device and rank count. */
clt_status clt_mpt_init_weights(const clt_mpt_config *cfg, const clt_slab_table *table, uint64_t seed,
                                clt_slab *weights);
/* The same for elements [first, first + count) of tensor `entry`, into host memory. */
void clt_mpt_init_range(const clt_mpt_config *cfg, const clt_slab_table *table, int entry, uint64_t seed,
                        uint64_t first, uint64_t count, float *out);

/* --- memory --- */

/* What the backward pass computes again instead of keeping it. */
typedef enum {
    CLT_RECOMPUTE_NONE,
    CLT_RECOMPUTE_NORMS, /* outputs of norms and activations, from what they were made of: about 2 % of a step
                            for a third of the activations' memory */
    CLT_RECOMPUTE_BLOCKS /* whole blocks from their inputs: another forward pass */
} clt_recompute;

typedef struct {
    int64_t microbatch; /* samples at most */
    int64_t seq;        /* tokens of a sample */
    bool training;      /* false: forward only */
    bool cache; /* clt_mpt_logits keeps keys and values (microbatch 1, forward only): 2 * KV * D elements per
                   position and block that makes its own */
    clt_recompute recompute; /* training only */
    clt_numerics numerics;   /* CLT_FAST: a tied wte has one accumulator for head and lookups */
    clt_dtype type; /* of the branches' activations and their gradients, and of the weights that GEMMs read;
                       residuals, statistics, losses and weight gradients are fp32 in any case */
    uint64_t logits_bytes; /* largest logits buffer; samples are taken in groups that fit. 0: 256 MiB for
                              fp32, 512 MiB for 16-bit logits, but up to 2 GiB for training with CLT_FAST
                              and d_model below 2048 (times (2048 / d_model)^2) */
} clt_mpt_shape;
/* The smallest of these defaults for 16-bit logits. */
#define CLT_MPT_LOGITS_LEAST (512ull << 20)

typedef struct {
    uint64_t activations, logits, workspace, other; /* device bytes, without slabs */
    uint64_t total;
    uint64_t largest; /* the largest single buffer */
} clt_mpt_memory;

/* What clt_mpt_create will allocate, without a device. */
clt_status clt_mpt_plan(const clt_mpt_config *cfg, const clt_mpt_shape *shape, clt_device_type type,
                        clt_mpt_memory *out);

/* --- the model on a device --- */

/* `weights` (fp32) and `narrow` (NULL with type CLT_F32; else the weights as shape->type, a narrow slab that
 * the caller keeps equal to the rounded weights) are borrowed and must use the table of clt_mpt_table. Norms,
 * biases and embeddings read `weights`, GEMMs read `narrow`. */
clt_status clt_mpt_create(const clt_mpt_config *cfg, const clt_mpt_shape *shape, clt_ops *ops,
                          clt_slab *weights, clt_slab *narrow, clt_mpt **out);
void clt_mpt_destroy(clt_mpt *m);

/* One microbatch. Arrays are on the host, [samples * seq], and are copied before the call returns. */
typedef struct {
    int64_t samples;
    const int32_t *tokens;
    const int32_t *targets;  /* negative: ignored */
    const int32_t *seq_ids;  /* NULL unless attn_uses_sequence_id */
    float weight;            /* 1/N, N targets of the global batch, rounded once; times the loss scale */
    const float *row_weight; /* [samples * seq] instead of weight, or NULL (per-sample means) */
    int64_t first_sample;    /* place of sample 0 in the global batch (dropout) */
    uint64_t step;           /* dropout */
    uint64_t seed;           /* dropout */
    bool dropout;            /* false in evaluation */
    bool lane_first;         /* first microbatch of its lane: gradients start from +0 */
    bool lane_last;          /* last one: the two accumulators of a tied wte are joined */
    const clt_slab *grads;   /* the lane's accumulator */
    clt_ref sample_loss;     /* [samples] on the device: sum of each sample's token losses */
} clt_mpt_batch;

/* Forward and backward of one microbatch; queues work, does not wait. */
clt_status clt_mpt_train(clt_mpt *m, const clt_mpt_batch *b);

/* Forward only. correct (device, int32 [samples * seq], optional): 1 where the target is the argmax. */
clt_status clt_mpt_eval(clt_mpt *m, const clt_mpt_batch *b, clt_ref correct);

/* Forward over `len` <= seq tokens of one text (model.shape.microbatch may be 1), and the logits of positions
 * [first, first + rows), after logit_scale and softcap, into host memory [rows, V]. Waits. With shape.cache
 * what the last call's text and this one begin with in common is not computed again, but for the rows that
 * are asked for; in exact numerics the logits are the same words. The weights must not change between such
 * calls. */
clt_status clt_mpt_logits(clt_mpt *m, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                          float *logits);

/* Activations of the last forward for tests: "emb", "block<i>", "norm_f", [samples * seq, C]. */
clt_status clt_mpt_activation(clt_mpt *m, const char *name, float *out, size_t count);

/* Called after every operation with what it made; used to name the first operation of a step that made a NaN
 * or an infinity. Return other than CLT_OK stops the pass. */
typedef clt_status (*clt_mpt_watch)(void *ctx, const char *what, clt_dtype type, clt_ref made,
                                    uint64_t count);
void clt_mpt_set_watch(clt_mpt *m, clt_mpt_watch watch, void *ctx);

#endif
