/* clt_model_family: the interface that a model family implements: a table of functions. The registry in
 * clt_model.c lists the families. Only for runtime/model. */
#ifndef CLT_MODEL_FAMILY_H
#define CLT_MODEL_FAMILY_H

#include "runtime/model/clt_model.h"

/* Member X has the contract of clt_model_X, clt_model_config_X (read: parse; to_json) or clt_model_get_X
 * (facts) in clt_model.h; comments below add to it. A member may be NULL only where its comment says
 * what NULL means. */
typedef struct {
    const char *name;              /* name of the folder and in messages: "mpt" */
    const char *const *yaml_names; /* values of model.name, ends with NULL */
    const char *const *hf_types;   /* values of model_type in config.json, ends with NULL */
    size_t config_bytes; /* size of its configuration struct, which begins with clt_model_config and owns no
                            pointers outside it */
    const clt_schema *schema;
    /* Whether `read` takes this config.json, which has no model_type. NULL: never. */
    bool (*recognises)(const json_t *o);

    /* Fills a zeroed configuration. r->ignore_unknown is set for a config.json. */
    clt_status (*read)(clt_schema_reader *r, const char *path, json_t *o, clt_model_config *out);
    json_t *(*to_json)(const clt_model_config *c); /* without model_type, which clt_model.c adds */
    /* Without generates and classifies, which clt_model.c sets. */
    clt_model_facts (*facts)(const clt_model_config *c);
    const clt_model_terms *terms; /* NULL: those of language models */
    char *(*describe)(const clt_model_config *c);
    void (*set_layers)(clt_model_config *c, int64_t layers); /* in place; NULL without facts.layers_key */

    clt_status (*table)(const clt_model_config *c, clt_slab_table *table);
    void (*init_range)(const clt_model_config *c, const clt_slab_table *table, int entry, uint64_t seed,
                       uint64_t first, uint64_t count, float *out);
    double (*train_flops_per_token)(const clt_model_config *c, int64_t seq);
    int (*units)(const clt_model_config *c, const clt_slab_table *table, clt_model_unit **units);
    int (*order)(const clt_model_config *c, clt_model_order_kind kind, int **order);
    /* Called for 16-bit types alone. */
    bool (*reads_wide)(const clt_model_config *c, const clt_model_shape *shape, const clt_slab_table *table,
                       int entry);
    /* NULL: optimizer.layer_decay is refused. */
    int (*layer_of)(const clt_model_config *c, const clt_slab_table *table, int entry, int *layers);

    /* NULL: names and layouts are equal. */
    clt_status (*weight_map)(const clt_model_config *c, const clt_slab_table *table, clt_weight_map **out);
    bool (*resample)(const clt_model_config *c, int entry, const int64_t *shape, const float *from,
                     float *to); /* NULL: never */
    json_t *(*hf_config)(
        const clt_model_config *c); /* without model_type and torch_dtype, which clt_model.c adds */
    const char *(*hf_differs)(const clt_model_config *c);

    /* NULL: text of facts.vocab_size tokens, with sequence ids if facts.seq_ids. */
    clt_batch_layout (*layout)(const clt_model_config *c, int64_t seq);
    /* Writes `samples` samples into the zeroed arrays field[i] (NULL where the layout has no bytes), and
     * their numbers of targets into sample_targets[samples]. NULL: text. */
    void (*example)(const clt_model_config *c, int64_t seq, int64_t samples, void *const field[],
                    int32_t *sample_targets);

    clt_status (*plan)(const clt_model_config *c, const clt_model_shape *shape, clt_device_type type,
                       clt_model_memory *out);
    clt_status (*create)(const clt_model_config *c, const clt_model_shape *shape, clt_ops *ops,
                         clt_slab *weights, clt_slab *narrow, clt_model **out);
    void (*destroy)(clt_model *m);
    clt_status (*train)(clt_model *m, const clt_model_pass *p);
    clt_status (*eval)(clt_model *m, const clt_model_pass *p, clt_model_correct *correct);
    /* NULL: the family does not classify. */
    clt_status (*predictions)(clt_model *m, int64_t samples, clt_model_prediction *out);
    /* NULL: the family does not generate text. */
    clt_status (*logits)(clt_model *m, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                         float *logits);
    clt_status (*next)(clt_model *m, const clt_model_text *text, int64_t n, float *logits); /* as logits */
    clt_status (*next_greedy)(clt_model *m, const clt_model_text *text, int64_t n, float *logits,
                              int32_t *token); /* as logits */
    clt_status (*span_logits)(clt_model *m, const int32_t *tokens, int64_t samples, int64_t len,
                              const clt_model_span *span, clt_model_logits_fn fn,
                              void *ctx); /* NULL: as logits */
    /* As clt_model_fp8_formats and so on. NULL: without shape.fp8. */
    size_t (*fp8_formats)(const clt_model *m, const clt_fp8 **out);
    clt_status (*fp8_amax)(clt_model *m, float *amax);
    clt_status (*fp8_set_scales)(clt_model *m, const float *scale);
    /* For tests; NULL: activations have no names. */
    clt_status (*activation)(clt_model *m, const char *name, float *out, size_t count);
} clt_model_family;

/* First member of every family's configuration and of its model. clt_model.c sets a configuration's family
 * before `read`, and a model's after `create`, which leaves this member zero. */
struct clt_model_config {
    const clt_model_family *family;
    json_t *hf;         /* owned: the config.json that it was read from, overrides applied; NULL: none */
    json_t *pretrained; /* owned: clt_model_pretrained as a string; NULL: none */
    json_t *source;     /* owned: what clt_model_config_note_source noted; NULL: nothing */
};

struct clt_model {
    const clt_model_family *family;
    clt_model_watch watch;
    void *watch_ctx;
    clt_model_ready ready;
    void *ready_ctx;
    clt_model_turn turn;
    void *turn_ctx;
    clt_model_unit_hook need, done, grads_need;
    void *need_ctx, *done_ctx, *grads_need_ctx;
    uint64_t weights_version; /* how often clt_model_weights_changed was called */
};

extern const clt_model_family clt_mpt_family, clt_hf_model_family, clt_vit_family;

/* The key of clt_model_config_to_json's object that holds clt_model_config.source. */
#define CLT_MODEL_SOURCE_KEY "_cltrain"

/* Values of model.name that LLM Foundry knows and cltrain refuses, for a family's table of keys. Ends with
 * {NULL, NULL}. */
extern const clt_refusal clt_model_refused[];

/* For passes: calls the watch, if one is set, with the output of an operation. fmt names the operation
 * (printf). */
clt_status clt_model_made(clt_model *m, clt_dtype type, clt_ref made, uint64_t count, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* For training passes, which begin as forward ones: calls the turn hook, if one is set. */
clt_status clt_model_turns(clt_model *m, bool backward);
/* For passes: call the need hook before, and the done hook after, the operations that read weights of a
 * unit. Look tensors up (clt_slab_ref) between the two calls and keep no place for the next use. */
clt_status clt_model_unit_need(clt_model *m, int unit);
clt_status clt_model_unit_done(clt_model *m, int unit);
/* For backward passes: calls the grads_need hook, before the first operation that writes gradients of a unit.
 */
clt_status clt_model_gradients_need(clt_model *m, int unit);
/* For backward passes: the gradients of tensors [first, end) of the table, one unit, are queued. Calls the
 * ready hook if one is set and p->lane_last. */
clt_status clt_model_gradients_ready(clt_model *m, const clt_model_pass *p, int first, int end);

#endif
