/* clt_model: what a model is to everything else: a configuration, a table of parameters with their initial
 * values, a plan of its memory, and passes over microbatches on a device. Which family it is of (MPT, ...) is
 * known only in runtime/model: a family is a table of functions (clt_model_family.h), found by the name in
 * the configuration. docs/how-to-add-a-model.md says how to add one.
 *
 * A model owns activations and workspaces; weights and gradients live in slabs of the caller. Everything is
 * allocated by clt_model_create for a largest microbatch; a step afterwards allocates nothing.
 *
 * Rows are tokens, sample after sample. Dimension letters: B samples, T sequence, C width, V vocabulary. */
#ifndef CLT_MODEL_H
#define CLT_MODEL_H

#include "runtime/base/clt_batch.h"
#include "runtime/base/clt_schema.h"
#include "runtime/device/clt_slab.h"
#include "runtime/ops/clt_ops.h"

/* --- configuration --- */

typedef struct clt_model_config clt_model_config;

/* Reads the `model` section of a run's YAML, which stands at `path` of a larger document. `name` in it says
 * which family it is. */
clt_status clt_model_config_read(clt_schema_reader *r, const char *path, json_t *o, clt_model_config **out);
/* From a JSON object: one that clt_model_config_to_json made, or, with `hf`, a Hugging Face config.json,
 * whose model_type names the family and whose unknown keys are skipped. `what` stands in messages for the
 * place. */
clt_status clt_model_config_from_json(json_t *o, bool hf, const char *what, clt_model_config **out);
/* The same from the text of a JSON object. */
clt_status clt_model_config_parse(const char *text, bool hf, const char *what, clt_model_config **out);
/* The configuration with the family's keys, values resolved: what checkpoints carry. */
json_t *clt_model_config_to_json(const clt_model_config *c);
clt_model_config *clt_model_config_copy(const clt_model_config *c);
void clt_model_config_free(clt_model_config *c); /* NULL is allowed */
/* The keys below `model` for the family that the section names; NULL: the first one of the registry. */
const clt_schema *clt_model_schema(const json_t *section);
/* The keys of family i of the registry; NULL: there are no more. */
const clt_schema *clt_model_schema_at(int i);

/* What the rest of a run asks about a model. */
typedef struct {
    int64_t vocab_size;  /* token ids of a batch lie below it; 0: its batches have no tokens */
    int64_t max_seq_len; /* largest T; 0: samples have one size */
    int64_t layers;
    bool seq_ids;   /* attention stays inside sequences: batches must have CLT_TEXT_SEQ_IDS */
    bool generates; /* clt_model_logits */
} clt_model_facts;
clt_model_facts clt_model_get_facts(const clt_model_config *c);
/* One line of its sizes ("d_model 768, 12 layers, ..."); the caller frees it. */
char *clt_model_describe(const clt_model_config *c);
/* The same model with this many layers, at least 1. For advice about what would fit. */
clt_model_config *clt_model_config_with_layers(const clt_model_config *c, int64_t layers);

/* --- parameters --- */

/* Fills `table` (start from {0}) with the model's tensors, in the order of the reference's state dict. */
clt_status clt_model_table(const clt_model_config *c, clt_slab_table *table);
/* Number of trained parameters; shared ones are counted once. */
uint64_t clt_model_param_count(const clt_model_config *c);
/* FLOP of one training step per token (clt_batch.tokens) at sequence length T: 6 N + 12 L C T for
 * transformers (MosaicML's throughput tables). */
double clt_model_train_flops_per_token(const clt_model_config *c, int64_t seq);
/* Elements [first, first + count) of tensor `entry` as they are before training, into host memory. They
 * depend on the seed and the place alone, not on device or rank count. */
void clt_model_init_range(const clt_model_config *c, const clt_slab_table *table, int entry, uint64_t seed,
                          uint64_t first, uint64_t count, float *out);
/* The same for all tensors, on a device. */
clt_status clt_model_init_weights(const clt_model_config *c, const clt_slab_table *table, uint64_t seed,
                                  clt_slab *weights);

/* --- files of other programs --- */

/* The name of table entry `tensor` in Hugging Face files of this family; borrowed from `tensor` or static.
 * `config` is a clt_model_config: the function serves as clt_file_name_fn (clt_weight_source.h). */
const char *clt_model_hf_name(const void *config, const char *tensor);
/* config.json as the transformers package reads it, beside which safetensors of this type ("float32",
 * "bfloat16") lie. */
json_t *clt_model_hf_config(const clt_model_config *c, const char *torch_dtype);
/* What this model has and the transformers package's class of it lacks, although it loads the files; NULL:
 * nothing. */
const char *clt_model_hf_lacks(const clt_model_config *c);

/* --- memory --- */

/* What the backward pass computes again instead of keeping it. */
typedef enum {
    CLT_RECOMPUTE_NONE,
    CLT_RECOMPUTE_NORMS, /* outputs of norms and activations, from what they were made of: about 2 % of a step
                            for a third of the activations' memory */
    CLT_RECOMPUTE_BLOCKS /* whole blocks from their inputs: another forward pass */
} clt_recompute;

typedef struct {
    int64_t microbatch;      /* samples at most */
    int64_t seq;             /* T of every sample */
    bool training;           /* false: forward only */
    bool cache;              /* clt_model_logits keeps keys and values (microbatch 1, forward only) */
    clt_recompute recompute; /* training only */
    clt_numerics numerics;
    clt_dtype type; /* of activations, their gradients and the weights that GEMMs read; residuals, statistics,
                       losses and weight gradients are fp32 in any case */
    uint64_t logits_bytes; /* largest buffer of logits, whose samples are taken in groups that fit; 0: the
                              family's default */
} clt_model_shape;
/* The smallest default of logits_bytes for 16-bit logits. */
#define CLT_MODEL_LOGITS_LEAST (512ull << 20)

typedef struct {
    uint64_t activations, logits, workspace, other; /* device bytes, without slabs */
    uint64_t total;
    uint64_t largest; /* the largest single buffer */
} clt_model_memory;

/* What clt_model_create will allocate, without a device. */
clt_status clt_model_plan(const clt_model_config *c, const clt_model_shape *shape, clt_device_type type,
                          clt_model_memory *out);

/* --- batches --- */

/* The arrays of its batches. */
clt_batch_layout clt_model_layout(const clt_model_config *c, int64_t seq);
/* A valid batch of made-up samples: for rehearsals and for measuring speed. Free `storage` with clt_free. */
clt_batch clt_model_example(const clt_model_config *c, int64_t seq, int64_t samples, void **storage);

/* --- on a device --- */

typedef struct clt_model clt_model;

/* `weights` (fp32) and `narrow` (NULL with type CLT_F32; else the weights as shape->type, a narrow slab that
 * the caller keeps equal to the rounded weights) are borrowed and must use the table of clt_model_table.
 * Norms, biases and embeddings read `weights`, GEMMs read `narrow`. */
clt_status clt_model_create(const clt_model_config *c, const clt_model_shape *shape, clt_ops *ops,
                            clt_slab *weights, clt_slab *narrow, clt_model **out);
void clt_model_destroy(clt_model *m); /* NULL is allowed */

/* One pass over one microbatch. The batch's arrays are copied before the call returns. */
typedef struct {
    const clt_batch *batch;     /* at most shape.microbatch samples */
    float weight;               /* 1/N, N targets of the global batch, rounded once; times the loss scale */
    const float *sample_weight; /* [samples] instead of weight, or NULL (per-sample means) */
    uint64_t step, seed;        /* dropout */
    bool dropout;               /* false in evaluation */
    bool lane_first;            /* first microbatch of its lane: gradients start from +0 */
    bool lane_last;             /* last one: gradients of the lane are whole after it */
    const clt_slab *grads;      /* the lane's accumulator */
    clt_ref sample_loss;        /* [samples] on the device: sum of each sample's losses */
} clt_model_pass;

/* Forward and backward; queues work, does not wait. */
clt_status clt_model_train(clt_model *m, const clt_model_pass *p);

/* Forward only; waits. Adds to *correct how many targets are the most likely class. */
clt_status clt_model_eval(clt_model *m, const clt_model_pass *p, int64_t *correct);

/* Forward over `len` <= seq tokens of one text (shape.microbatch may be 1), and the logits of positions
 * [first, first + rows) into host memory [rows, V]. Waits. With shape.cache what the last call's text and
 * this one begin with in common is not computed again, but for the rows that are asked for; in exact numerics
 * the logits are the same bits. The weights must not change between such calls. */
clt_status clt_model_logits(clt_model *m, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                            float *logits);

/* Activations of the last training pass, for tests: "emb", "block<i>", "norm_f", [samples * seq, C]. */
clt_status clt_model_activation(clt_model *m, const char *name, float *out, size_t count);

/* Called after every operation with what it made; finds the first operation of a step that made a NaN or an
 * infinity. A status other than CLT_OK stops the pass. */
typedef clt_status (*clt_model_watch)(void *ctx, const char *what, clt_dtype type, clt_ref made,
                                      uint64_t count);
void clt_model_set_watch(clt_model *m, clt_model_watch watch, void *ctx);

/* Called during a training pass with lane_last, as soon as the gradients of tensors [first, end) of the table
 * are queued and nothing later in the pass changes them, so that they can be exchanged while the pass goes
 * on. Every tensor is named once a pass; layers come in the order of the backward pass, a tensor that is used
 * twice (a tied embedding) with its last use. */
typedef clt_status (*clt_model_ready)(void *ctx, int first, int end);
void clt_model_set_ready(clt_model *m, clt_model_ready ready, void *ctx);

#endif
