/* clt_model: the interface of all models: configuration, parameter table with initial values, memory plan,
 * and passes over microbatches on a device. Only runtime/model knows the family of a model (MPT, ...). A
 * family is a table of functions (clt_model_family.h) that is found by the name in the configuration;
 * docs/how-to-add-a-model.md shows how to add one.
 *
 * A model owns its activations and workspaces. Weights and gradients are in slabs of the caller.
 * clt_model_create allocates everything for the largest microbatch; later passes allocate nothing.
 *
 * Rows are tokens, sample after sample. Dimension letters: B samples, T sequence, C width, V vocabulary. */
#ifndef CLT_MODEL_H
#define CLT_MODEL_H

#include "runtime/base/clt_batch.h"
#include "runtime/base/clt_schema.h"
#include "runtime/base/clt_weight_map.h"
#include "runtime/device/clt_slab.h"
#include "runtime/ops/clt_fp8.h"
#include "runtime/ops/clt_ops.h"

/* --- configuration --- */

typedef struct clt_model_config clt_model_config;

/* Reads the `model` section of a run's YAML, found at `path` of the document; its key `name` selects the
 * family. */
clt_status clt_model_config_read(clt_schema_reader *r, const char *path, json_t *o, clt_model_config **out);
/* Reads a JSON object: one of clt_model_config_to_json, or, with `hf`, a Hugging Face config.json, whose
 * model_type, or what its program writes instead, selects the family, and whose unknown keys are skipped.
 * `what` names the source in messages. */
clt_status clt_model_config_from_json(json_t *o, bool hf, const char *what, clt_model_config **out);
/* The same from JSON text. */
clt_status clt_model_config_parse(const char *text, bool hf, const char *what, clt_model_config **out);
/* The configuration with the family's keys and resolved values, as checkpoints store it. */
json_t *clt_model_config_to_json(const clt_model_config *c);
clt_model_config *clt_model_config_copy(const clt_model_config *c);
void clt_model_config_free(clt_model_config *c); /* NULL is allowed */
/* The keys below `model` for the family of this section; NULL or unknown: the first family of the
 * registry. */
const clt_schema *clt_model_schema(const json_t *section);
/* The keys of family i of the registry; NULL if i is past the last one. */
const clt_schema *clt_model_schema_at(int i);

/* Properties that the rest of a run needs. */
typedef struct {
    int64_t vocab_size;  /* token ids are below it; 0: batches have no tokens */
    int64_t max_seq_len; /* largest T; with vocab_size 0 the T of every sample */
    int64_t layers;
    const char *layers_key; /* key of `model` that sets `layers` ("n_layers"); NULL: there is none */
    bool tied;              /* the head reads the table's first tensor, the token embedding */
    bool seq_ids;           /* attention is limited to sequences: batches must have CLT_TEXT_SEQ_IDS */
    bool generates;         /* clt_model_logits is supported */
    bool classifies;        /* clt_model_predictions is supported: batches are those of clt_image_layout */
} clt_model_facts;
clt_model_facts clt_model_get_facts(const clt_model_config *c);

/* What a user reads about a model's runs: what they count, and the names that Composer gives its metrics. */
typedef struct {
    const char *unit; /* what clt_batch.tokens counts and a loss is the mean of: "token", "image" */
    const char *rate; /* its short form: "tok/s" */
    bool by_sample;   /* a unit is a sample: metrics count samples and never tokens */
    const char *cross_entropy, *accuracy;
    const char *perplexity; /* NULL: not reported */
    const char *accuracy5;  /* among the five most likely classes; NULL: not reported */
} clt_model_terms;
/* Never NULL. */
const clt_model_terms *clt_model_get_terms(const clt_model_config *c);
/* Its sizes in one line ("d_model 768, 12 layers, ..."); the caller frees it. */
char *clt_model_describe(const clt_model_config *c);
/* A copy with `layers` (at least 1) layers, for advice on what would fit; only with a layers_key. */
clt_model_config *clt_model_config_with_layers(const clt_model_config *c, int64_t layers);

/* --- parameters --- */

/* Fills `table` (start from {0}) with the model's tensors, in the order of the reference implementation's
 * state dict. */
clt_status clt_model_table(const clt_model_config *c, clt_slab_table *table);
/* Number of trained parameters; shared ones are counted once. */
uint64_t clt_model_param_count(const clt_model_config *c);
/* FLOP of one training step per token (clt_batch.tokens) at sequence length T: 6 N + 12 L C T for
 * transformers (MosaicML's throughput tables). */
double clt_model_train_flops_per_token(const clt_model_config *c, int64_t seq);
/* Writes the initial values of elements [first, first + count) of tensor `entry` into host memory. They
 * depend only on the seed, the tensor and the element. */
void clt_model_init_range(const clt_model_config *c, const clt_slab_table *table, int entry, uint64_t seed,
                          uint64_t first, uint64_t count, float *out);
/* Writes the initial values of all tensors into a slab on a device; what lies in holes is not computed. */
clt_status clt_model_init_weights(const clt_model_config *c, const clt_slab_table *table, uint64_t seed,
                                  clt_slab *weights);

/* --- units --- */

/* A unit is a part of the model that a pass reads together: an embedding, a block, the head. It is the
 * smallest part whose weights or gradients a caller can fetch and drop during a pass (clt_model_set_need). */
typedef struct {
    int first, end; /* tensors first ... end - 1 of the table */
} clt_model_unit;
/* Writes the units to *units and returns their number, at least 1. They are in table order and cover the
 * table: every tensor is in one unit. `table` is that of clt_model_table. Free *units with clt_free. */
int clt_model_units(const clt_model_config *c, const clt_slab_table *table, clt_model_unit **units);

/* The order in which a pass calls a hook of units. It depends on the configuration alone. */
typedef enum {
    CLT_ORDER_FORWARD,  /* need, in clt_model_eval and clt_model_logits */
    CLT_ORDER_TRAINING, /* need, in clt_model_train: a unit is listed once per use */
    CLT_ORDER_GRADIENTS /* grads_need, in clt_model_train: every unit is listed once */
} clt_model_order_kind;
/* Writes the units in that order to *order and returns the length of the list. Free *order with clt_free. */
int clt_model_order(const clt_model_config *c, clt_model_order_kind kind, int **order);

/* The layer of tensor `entry` for learning rates that differ by layer, and their number in *layers: 0 is what
 * comes before the blocks, the last one is the head. -1: the family defines no layers. */
int clt_model_layer_of(const clt_model_config *c, const clt_slab_table *table, int entry, int *layers);

/* --- files of other programs --- */

/* How the tensors of Hugging Face folders make those of `table`; *out is NULL if names and layouts are equal.
 * Free *out with clt_weight_map_free. */
clt_status clt_model_weight_map(const clt_model_config *c, const clt_slab_table *table, clt_weight_map **out);
/* Makes tensor `entry` of a file's tensor that has another shape, with as many dimensions: positions of
 * another image size. False: it cannot be made of it. `to` NULL: only asks. */
bool clt_model_resample(const clt_model_config *c, int entry, const int64_t *shape, const float *from,
                        float *to);
/* The Hugging Face folder whose weights a new run starts from (pretrained: true); NULL: none. */
const char *clt_model_pretrained(const clt_model_config *c);
/* Notes the folder that has the model's other files (tokenizer, generation_config.json), and the torch_dtype
 * of weights that nothing has trained since (NULL: not noted). Checkpoints store both. */
void clt_model_config_note_source(clt_model_config *c, const char *folder, const char *torch_dtype);
/* The noted folder and torch_dtype; NULL: not noted. */
const char *clt_model_source_folder(const clt_model_config *c);
const char *clt_model_source_dtype(const clt_model_config *c);
/* config.json in the format of the transformers package, for safetensors of type torch_dtype ("float32",
 * "bfloat16", "float16"). A model that was read from a config.json keeps all of its keys. */
json_t *clt_model_hf_config(const clt_model_config *c, const char *torch_dtype);
/* Why the transformers package computes something else from an exported folder, as a clause for a message
 * ("its class lacks biases"); NULL: it computes the same. */
const char *clt_model_hf_differs(const clt_model_config *c);

/* --- memory --- */

/* What the backward pass recomputes instead of keeping it in memory. */
typedef enum {
    CLT_RECOMPUTE_NONE,
    CLT_RECOMPUTE_NORMS, /* outputs of norms and activations, from their inputs: saves a third of the
                            activations' memory (in 8 bits less) for 2 to 4 % of a step */
    CLT_RECOMPUTE_BLOCKS /* whole blocks from their inputs: one more forward pass */
} clt_recompute;

typedef struct {
    int64_t microbatch; /* samples at most */
    int64_t seq;        /* T of every sample */
    bool training;      /* false: forward only */
    int64_t texts;      /* places for texts that grow, whose keys and values are cached (microbatch 1, forward
                           only); 0: none */
    clt_recompute recompute; /* training only */
    /* With CLT_RECOMPUTE_BLOCKS: the inputs of blocks wait for the backward pass in pinned host memory
     * (clt_model_memory.host), or with file_inputs in a file (clt_model_memory.file) behind the spool, which
     * planning does not need. A few are on the device at a time; copies pass beside the computation. Changes
     * no bit. */
    bool host_inputs, file_inputs;
    struct clt_spool *spool; /* borrowed */
    clt_numerics numerics;
    clt_dtype type; /* of activations, their gradients and the weights that GEMMs read; residuals, statistics,
                       losses and weight gradients are always fp32 */
    /* Products of weights and activations, and their gradients, multiply 8-bit blocks (clt_op_gemm8.h), made
     * from what they would read otherwise. With numerics exact only. */
    bool eight_bits;
    /* With eight_bits or fp8: every weight keeps its place between passes, and the caller reports changes
     * (clt_model_weights_changed). The model then keeps 8-bit copies of the weights, two bytes each (one
     * without training), and casts a weight once after a change instead of at every product. */
    bool eight_weights;
    /* The same products of the blocks alone are in 8-bit floating point (clt_op_fp8.h) with the scales of
     * clt_model_fp8_set_scales, 1 at first. Fast where samples are multiples of 16 tokens. */
    bool fp8;
    /* Attention of passes over whole samples multiplies 8-bit blocks (clt_op_attention8.h); that of texts
     * that grow does not. */
    bool eight_attention;
    /* Lookups read the 16-bit weights instead of the fp32 weights, which changes bits: for runs that hold no
     * fp32 copy of an embedding. No effect with type fp32. */
    bool narrow_embeddings;
    uint64_t logits_bytes; /* size limit of the logits buffer; logits are made in groups of samples that fit.
                              0: the family's default */
} clt_model_shape;
/* The smallest logits_bytes that a family uses by default for 16-bit logits. */
#define CLT_MODEL_LOGITS_LEAST (512ull << 20)

typedef struct {
    uint64_t activations, logits, workspace, other; /* device bytes, without slabs */
    uint64_t total;
    uint64_t largest; /* the largest single buffer */
    uint64_t host;    /* pinned host memory, see clt_model_shape.host_inputs */
    uint64_t file;    /* bytes in a file, the same */
    uint64_t input;   /* of these, of one block */
} clt_model_memory;

/* The device memory that clt_model_create allocates; needs no device. */
clt_status clt_model_plan(const clt_model_config *c, const clt_model_shape *shape, clt_device_type type,
                          clt_model_memory *out);

/* Whether passes with this shape read tensor `entry` from the fp32 slab: with type fp32 every tensor, with a
 * 16-bit type norms, biases and, without narrow_embeddings, embeddings. All tensors for which it is false,
 * and an embedding that is also the head's matrix, are read from the 16-bit slab. */
bool clt_model_reads_wide(const clt_model_config *c, const clt_model_shape *shape,
                          const clt_slab_table *table, int entry);

/* --- batches --- */

/* The layout of its batches. */
clt_batch_layout clt_model_layout(const clt_model_config *c, int64_t seq);
/* A valid batch of synthetic samples, for rehearsals and speed measurements. *storage has its arrays; free it
 * with clt_free. CLT_NO_MEMORY: *storage is NULL. */
clt_status clt_model_example(const clt_model_config *c, int64_t seq, int64_t samples, void **storage,
                             clt_batch *out);

/* --- on a device --- */

typedef struct clt_model clt_model;

/* `weights` (fp32) and `narrow` are borrowed and must use the table of clt_model_table. `narrow` has the
 * weights rounded to shape->type and is updated by the caller; it is NULL with type CLT_F32. GEMMs read
 * `narrow`; clt_model_reads_wide says what is read from `weights`. */
clt_status clt_model_create(const clt_model_config *c, const clt_model_shape *shape, clt_ops *ops,
                            clt_slab *weights, clt_slab *narrow, clt_model **out);
void clt_model_destroy(clt_model *m); /* NULL is allowed */

/* The weights have been, or will be by what is queued, changed since the last pass. To be called before the
 * next pass, and only needed with shape.eight_weights. */
void clt_model_weights_changed(clt_model *m);

/* One pass over one microbatch. The batch's arrays are copied before the call returns. */
typedef struct {
    const clt_batch *batch;     /* at most shape.microbatch samples */
    float weight;               /* 1/N rounded once, N targets of the global batch; times the loss scale */
    const float *sample_weight; /* [samples] instead of weight, or NULL (per-sample means) */
    uint64_t step, seed;        /* dropout */
    bool dropout;               /* false in evaluation */
    bool lane_first;            /* first microbatch of its lane: gradients start from +0 */
    bool lane_last;             /* last microbatch of its lane: the lane's gradients are complete after it */
    const clt_slab *grads;      /* the lane's accumulator; see clt_model_set_grads_need */
    clt_ref sample_loss;        /* [samples] on the device: sum of each sample's losses */
} clt_model_pass;

/* Forward and backward. Queues the work and does not wait. */
clt_status clt_model_train(clt_model *m, const clt_model_pass *p);

/* Numbers of targets that are the most likely class, and among the five most likely ones (images alone). */
typedef struct {
    int64_t top1, top5;
} clt_model_correct;
/* Forward only; waits. Adds to *correct. */
clt_status clt_model_eval(clt_model *m, const clt_model_pass *p, clt_model_correct *correct);

/* What a classifier takes a sample for. */
typedef struct {
    int32_t label;     /* the most likely class, the first of equal ones */
    float probability; /* of that class, by the softmax of the logits */
} clt_model_prediction;
/* The predictions for the `samples` samples of the last clt_model_eval, in which nothing may have followed.
 * Waits. Only for models whose facts say `classifies`. CLT_NO_MEMORY. */
clt_status clt_model_predictions(clt_model *m, int64_t samples, clt_model_prediction *out);

/* Forward over `len` <= seq tokens of one text; writes the logits of positions [first, first + rows) into
 * host memory [rows, V]. Waits. With shape.texts the common prefix of this text and the one in place 0 is not
 * recomputed, except for the requested rows, and the text takes that place; in exact numerics the logits are
 * bit-identical to those without the cache. The weights must not change between such calls. */
clt_status clt_model_logits(clt_model *m, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                            float *logits);

/* A text that grows, in place 0 ... shape.texts - 1. */
typedef struct {
    int64_t place;
    const int32_t *tokens;
    int64_t len; /* 1 ... seq */
} clt_model_text;

/* The logits behind the last token of each of n texts in different places, into host memory [n, V]. Waits.
 * Texts that have one token more than the previous call of their place go together, so that all of them read
 * the weights once; others first take a pass of their own over their new tokens. In exact numerics the logits
 * are bit-identical to those of clt_model_logits; numerics fast on GPUs uses kernels for this
 * (clt_op_linear.h, clt_op_attention_step.h). 1 <= n <= shape.texts. */
clt_status clt_model_next(clt_model *m, const clt_model_text *text, int64_t n, float *logits);
/* The same for greedy continuation: the token of the largest logit behind each text, the first of equal ones,
 * into token[n]. logits [n, V]: memory that the call may use. Where the device chooses (numerics fast on
 * GPUs) no logits travel, and the step behind the chosen tokens is queued before the call returns: a next
 * call for the same texts with these tokens finds it under way, and for others it is wasted. */
clt_status clt_model_next_greedy(clt_model *m, const clt_model_text *text, int64_t n, float *logits,
                                 int32_t *token);

/* Positions first ... end - 1 of a text. */
typedef struct {
    int64_t first, end;
} clt_model_span;

/* Receives the logits [rows, V] of rows `first` ... first + rows - 1, valid during the call. A status other
 * than CLT_OK ends the pass. */
typedef clt_status (*clt_model_logits_fn)(void *ctx, int64_t first, int64_t rows, const float *logits);

/* Forward over `samples` <= microbatch texts of `len` <= seq tokens each, tokens [samples, len]; passes the
 * logits of each text's span, one behind the other and some rows at a time, to fn. No position depends on
 * later ones, so that a shorter text may be filled up with any token. In exact numerics the logits of a text
 * do not depend on the other texts or on len. Not with shape.texts. */
clt_status clt_model_span_logits(clt_model *m, const int32_t *tokens, int64_t samples, int64_t len,
                                 const clt_model_span *span, clt_model_logits_fn fn, void *ctx);

/* Activations of the last pass of a model with shape.training, for tests: "emb", "block<i>", "norm_f",
 * [samples
 * * seq, C], or what a family's own names stand for. */
clt_status clt_model_activation(clt_model *m, const char *name, float *out, size_t count);

/* shape.fp8: delayed scaling, of which the caller keeps the histories (clt_fp8.h). formats: sets *out to the
 * formats of the model's tensors, which belong to the model, and returns their number; 0 without shape.fp8.
 * amax: waits, and reads what training passes have recorded since the last set_scales. set_scales: the scales
 * of the tensors for the passes that follow; the largest magnitudes are 0 then. */
size_t clt_model_fp8_formats(const clt_model *m, const clt_fp8 **out);
clt_status clt_model_fp8_amax(clt_model *m, float *amax);
clt_status clt_model_fp8_set_scales(clt_model *m, const float *scale);

/* Called after every operation of a pass with its output: `count` elements of `type` at `made`; `what` names
 * the operation. Used to find the first operation that made a NaN or an infinity. A status other than CLT_OK
 * stops the pass. */
typedef clt_status (*clt_model_watch)(void *ctx, const char *what, clt_dtype type, clt_ref made,
                                      uint64_t count);
void clt_model_set_watch(clt_model *m, clt_model_watch watch, void *ctx);

/* Called during a training pass with lane_last, as soon as the final gradients of tensors [first, end) of the
 * table are queued, so that their exchange can overlap with the rest of the pass. Each call is for one unit.
 * Every unit is reported once per pass, in the order of the backward pass; one that is used twice (a tied
 * embedding) at its last use. A pass without lane_last reports nothing: a caller that wants the gradients of
 * every microbatch makes each of them a lane (lane_first and lane_last). */
typedef clt_status (*clt_model_ready)(void *ctx, int first, int end);
void clt_model_set_ready(clt_model *m, clt_model_ready ready, void *ctx);

/* Called in every training pass before operations of its forward (false) or backward pass (true) are queued;
 * the head alternates where it goes by groups of rows. May wait: used to time both. */
typedef clt_status (*clt_model_turn)(void *ctx, bool backward);
void clt_model_set_turn(clt_model *m, clt_model_turn turn, void *ctx);

/* --- weights and gradients that come and go --- */

/* Hooks for callers that hold a part of the weights or gradients only while a pass uses it. A unit that is
 * absent is a piece of the slab without a buffer. Between two uses the caller may move a unit: it changes the
 * pieces of the slabs that it gave to clt_model_create and clt_model_pass, and the model looks every tensor
 * up again. The calls come from the thread that runs the pass, in an order that clt_model_order gives ahead.
 * They should queue work and not wait. A status other than CLT_OK stops the pass; then, as after any other
 * error, the units in use get no further call. Without hooks everything must be present all the time. */
typedef clt_status (*clt_model_unit_hook)(void *ctx, int unit);

/* need: called in every pass before the first operation that reads weights of `unit` is queued. When it
 * returns, the unit's tensors must be where clt_model_reads_wide says, for operations that are queued next.
 * done: called after the last operation of this use is queued; until the next need nothing reads the unit.
 * Every need is followed by one done of the same unit before the next need of it: uses of one unit do not
 * nest, uses of two units may overlap (the head and a tied embedding). All groups of the head's rows, forward
 * and backward, are one use; so are the recomputation of a block and its backward pass. */
void clt_model_set_need(clt_model *m, clt_model_unit_hook need, void *ctx);
void clt_model_set_done(clt_model *m, clt_model_unit_hook done, void *ctx);

/* Called in every training pass before the first operation that writes gradients of `unit` is queued. From
 * then on the unit's gradients must be present in clt_model_pass.grads: with lane_last until the ready call
 * that reports them, otherwise until clt_model_train returns. With lane_first their old values are not read;
 * otherwise they must be those that the lane's previous pass left. Several units can be open: that of a tied
 * embedding is open from the head until the end of the pass, and a block can be opened before the block
 * above it is ready. */
void clt_model_set_grads_need(clt_model *m, clt_model_unit_hook grads_need, void *ctx);

#endif
