/* What the files of clt_config share: the struct that the tables fill, the kinds of values with a form of
 * their own, the tables, and the steps that turn what was read into a clt_config. Not for other folders. */
#ifndef CLT_CONFIG_INTERNAL_H
#define CLT_CONFIG_INTERNAL_H

#include "runtime/train/config/clt_config.h"

/* --- values as they are written, for rules that need more than one key --- */

typedef struct { /* NaN: not given */
    double lr, betas[2], eps, weight_decay, momentum;
} clt_config_hyper;

typedef struct {
    int kind; /* clt_optimizer_kind, or one behind it: no_op */
    bool nesterov, adam_w_mode, bias_correction;
    double min_coeff, max_coeff; /* NaN: not given */
    double layer_decay;
    clt_config_hyper hyper;
    json_t *disable_grad, *param_groups; /* borrowed */
} clt_config_optimizer_raw;

typedef struct { /* one of optimizer.param_groups */
    const char *match;
    clt_config_hyper hyper;
} clt_config_group_raw;

typedef struct {
    int kind;
    clt_time t_warmup, t_max, t_scale, t_cooldown;                   /* all but t_max: value -1: not given */
    double alpha, alpha_i, alpha_f, alpha_f_decay, alpha_f_cooldown; /* NaN: not given */
    clt_deepspeed_rate deepspeed;
    int warmup_type;
} clt_config_scheduler_raw;

typedef struct { /* callbacks.kill_loss_spike */
    bool given, log_only;
    int64_t window_size;
} clt_config_kill_raw;

typedef struct { /* callbacks.global_lr_scaling */
    bool given;
    double scale, decay;
} clt_config_scale_raw;

typedef struct { /* callbacks.load_checkpoint */
    bool given, weights_only, strict;
    const char *path;
} clt_config_load_raw;

typedef struct {
    clt_config c; /* first, so that a pointer to one is a pointer to the other */
    int precision, clip_type, tune, check_action;
    int ranks;                           /* that the configuration is read for */
    int autoresume, numerics, recompute; /* -1: not given */
    int offload_activations;             /* clt_offload; -1: not given */
    bool activation_checkpointing, activation_cpu_offload;
    int sharding_strategy;
    int offload;            /* -1: not given */
    int offload_parameters; /* clt_offload */
    int offload_gradients;  /* the same */
    int offload_update;     /* clt_update_place */
    bool fsdp_config, cpu_offload, reshard_after_forward;
    clt_config_kill_raw kill_loss_spike;
    bool optimizer_monitor, freezes;
    json_t *freeze; /* borrowed */
    clt_config_scale_raw scale_lr;
    clt_config_load_raw load;
    clt_config_optimizer_raw optimizer;
    clt_config_scheduler_raw scheduler;
    json_t *icl_tasks, *eval_gauntlet; /* borrowed */
    const char *icl_tasks_str, *eval_gauntlet_str;
    json_t *model, *eval_loader, *eval_loaders, *lanes_per_rank, *mixed_precision; /* borrowed */
} clt_config_builder;

/* --- kinds --- */

extern const clt_kind clt_kind_time, /* clt_time */
    clt_kind_schedule_time,          /* clt_time, with a unit */
    clt_kind_microbatch,             /* int64_t; 0: auto */
    clt_kind_switch,                 /* int: true or false, beside "not given" */
    clt_kind_recompute,              /* int: clt_recompute */
    clt_kind_stage,                  /* int: 0 to CLT_MOST_STAGE, or CLT_STAGE_AUTO */
    clt_kind_strings,                /* clt_strv: a string or a list of strings */
    clt_kind_patterns,               /* json_t *: the same, kept */
    clt_kind_betas,                  /* double[2] */
    clt_kind_lanes,                  /* json_t *: a list of counts */
    clt_kind_loaders,                /* json_t *: a map or a list of maps */
    clt_kind_bytes,                  /* int64_t: a number, or text with a unit such as gb */
    clt_kind_samples,                /* int64_t: a number, or text with a unit */
    clt_kind_mixed_precision;        /* json_t *: FULL, DEFAULT, PURE or a map */

/* --- tables --- */

/* Reasons that several tables give: keys with the same reason share a line. */
#define CLT_CONFIG_ONE_FORM "checkpoints have one form, which any number of ranks can read"

extern const clt_schema clt_config_top_schema, clt_config_callback_schema, clt_config_logger_schema,
    clt_config_algorithm_schema, clt_config_fsdp_schema, clt_config_own_schema, clt_config_train_schema,
    clt_config_eval_schema, clt_config_train_streams_schema, clt_config_eval_streams_schema,
    clt_config_optimizer_schema, clt_config_group_schema, clt_config_scheduler_schema;

/* --- before the tables are read (clt_config_secrets.c) --- */

/* Refuses texts at `path` and below that are URLs with a password or a secret parameter. The message does not
 * show them. */
clt_status clt_config_refuse_secrets(clt_schema_reader *r, const char *path, const json_t *v);

/* --- the steps after the tables have been read --- */

/* max_seq_len, which a model of images sets itself. */
clt_status clt_config_resolve_length(clt_schema_reader *r, clt_config *c);
clt_status clt_config_resolve_precision(clt_schema_reader *r, clt_config_builder *b);
clt_status clt_config_resolve_guards(clt_schema_reader *r, clt_config_builder *b);
clt_status clt_config_resolve_sharding(clt_schema_reader *r, clt_config_builder *b);
/* cltrain.offload_update, once the optimizer is known. */
clt_status clt_config_resolve_update(clt_schema_reader *r, clt_config_builder *b);
clt_status clt_config_resolve_loaders(clt_schema_reader *r, clt_config_builder *b);
/* Reads l->streams from the map `streams` of the loader at `path`; NULL: none. The caller frees them. */
clt_status clt_config_resolve_streams(clt_schema_reader *r, const char *path, bool eval, json_t *map,
                                      clt_loader_config *l);
clt_status clt_config_resolve_optimizer(clt_schema_reader *r, clt_config_builder *b);
clt_status clt_config_resolve_scheduler(clt_schema_reader *r, clt_config_builder *b);
/* DeepSpeed's schedulers (clt_config_rate.c): defaults; keys of one kind that are given with another, by its
 * name; the schedule. */
void clt_config_preset_rate(clt_config_scheduler_raw *s);
clt_status clt_config_check_deepspeed_keys(clt_schema_reader *r, const clt_config_builder *b,
                                           const char *name);
clt_status clt_config_resolve_deepspeed_rate(clt_schema_reader *r, clt_config_builder *b);
/* {"name", parameters of the kind ...}, defaults included. The caller frees it. */
json_t *clt_config_rate_values(const clt_schedule_config *s);
clt_status clt_config_resolve_loggers(clt_schema_reader *r, clt_config_builder *b);
/* Adds the tensors of callbacks.layer_freezing to optimizer.disable_grad. */
void clt_config_freeze_layers(clt_config_builder *b);
clt_status clt_config_resolve_callbacks(clt_schema_reader *r, clt_config_builder *b);
clt_status clt_config_resolve_icl(clt_schema_reader *r, clt_config_builder *b);
void clt_config_free_icl(clt_config *c);
clt_status clt_config_resolve_names(clt_schema_reader *r, clt_config_builder *b);
/* clt_config_shard_groups with the caller's reader. */
clt_status clt_config_divide_ranks(clt_schema_reader *r, const clt_config *c, int ranks, int *degree,
                                   int *replicas);
/* Ranges of numbers and times. */
clt_status clt_config_check_ranges(clt_schema_reader *r, const clt_config *c);

/* --- evaluation YAML (clt_config_eval.c) --- */

/* Whether the document is an evaluation's: it has `models`, or a model and nothing to train with. */
bool clt_config_is_eval(const json_t *document);
size_t clt_config_eval_models(const json_t *document);
/* Replaces the document by that of one of its models, with defaults for what only training needs. */
clt_status clt_config_eval_document(clt_config *c, size_t model);
/* Where the value, or the key, was written in the evaluation YAML. */
char *clt_config_eval_place(const clt_config *c, const char *path, bool key);

/* The value at a dotted path (a number picks a list element) of the document with its overrides; NULL: none.
 */
const json_t *clt_config_value(const clt_config *c, const char *path);
/* Whether there is such a value and it is not null. */
bool clt_config_given(const clt_config *c, const char *path);
/* "keys 'A' (place) and 'B' (place) contradict each other: TEXT" with the reader's status. */
clt_status clt_config_fail_both(clt_schema_reader *r, const char *a, const char *b, const char *text);

#endif
