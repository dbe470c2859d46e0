/* clt_config: a training configuration, read from an LLM Foundry YAML with dotted overrides into plain
 * structs.
 *
 * Every key of Foundry's TrainConfig and of its sections is in a table (clt_config_*.c) and is honoured,
 * accepted with one line that says it has no effect here, or refused with the reason; anything else is an
 * error with file, line, column and the nearest known key. cltrain's own keys are below `cltrain:`. */
#ifndef CLT_CONFIG_H
#define CLT_CONFIG_H

#include "runtime/data/clt_loader.h"
#include "runtime/data/icl/clt_icl_task.h"
#include "runtime/model/clt_model.h"
#include "runtime/train/config/clt_gauntlet.h"
#include "runtime/train/config/clt_schedule.h"
#include "runtime/train/config/clt_yaml.h"

typedef enum { CLT_LOADER_TEXT, CLT_LOADER_FINETUNING, CLT_LOADER_IMAGE } clt_loader_kind;

typedef struct {                    /* keys of the loader finetuning (runtime/data/finetune/clt_finetune.h) */
    const char *hf_name, *data_dir; /* NULL: not given */
    clt_strv data_files;
    json_t *preprocessing; /* borrowed from the document: a function's name or two columns; NULL: none */
    int64_t target_prompts;
    int target_responses;
    double packing_ratio; /* 0: auto */
    int64_t max_leftover; /* -1: all */
    bool allow_pad_trimming, pad_to_longest;
} clt_finetune_config;

/* Keys of the loader image (runtime/data/image/clt_image_reader.h). Evaluation has no random choices: 0. */
typedef struct {
    int64_t size, classes, max_pixels, threads, augment, augment_level;
    double mean[3], std[3], crop_pct;
    bool random_crop;
    double scale[2], ratio[2], flip, smoothing, mixup, cutmix, mix_prob, switch_prob;
} clt_image_config;

typedef struct {
    int kind; /* clt_loader_kind */
    clt_finetune_config finetune;
    clt_image_config image;
    const char *label;          /* eval loaders: "eval" unless several are listed with their labels */
    const char *local, *remote; /* NULL: not given */
    const char *split;          /* NULL: the shards lie in `local` itself */
    json_t *streams_map;        /* borrowed from the document; `streams` is what it says */
    clt_loader_stream *streams; /* several folders instead of `local` */
    int n_streams;
    int64_t epoch_size;                            /* 0: not given */
    const char *sampling_method, *batching_method; /* NULL for evaluation, as this and the next two: 0 */
    int64_t sampling_granularity, replication;
    bool shuffle;
    const char *shuffle_algo; /* this and the next three: NULL and 0 for evaluation */
    int64_t shuffle_seed;
    int64_t shuffle_block_size;  /* 0: not given */
    int64_t num_canonical_nodes; /* 0: not given */
    const char *token_encoding_type;
    const char *validate_hash; /* NULL: not given */
    int64_t predownload;       /* this and the next: 0: not given */
    int64_t cache_limit;       /* bytes */
    int64_t download_retry;
    double download_timeout; /* seconds */
    bool keep_zip;
    int64_t max_seq_len;
    int64_t eos_token_id, bos_token_id; /* -1: not given; either turns sequence ids on */
    bool drop_last;
} clt_loader_config;

/* The first two are Composer's, then come PyTorch's, timm's (or DeepSpeed's), and PyTorch's again. */
typedef enum {
    CLT_OPTIMIZER_ADAMW,
    CLT_OPTIMIZER_LIONW,
    CLT_OPTIMIZER_TORCH_ADAMW,
    CLT_OPTIMIZER_SGD,
    CLT_OPTIMIZER_LAMB,
    CLT_OPTIMIZER_ADAGRAD
} clt_optimizer_kind;

typedef struct {
    const char *name;    /* optimizer.name */
    const char *classed; /* the class in Composer or PyTorch, as metrics name it */
    int moments;         /* tensors of state: exp_avg (SGD: the momentum), exp_avg_sq */
} clt_optimizer_traits;
const clt_optimizer_traits *clt_optimizer_of(clt_optimizer_kind kind);

typedef struct {
    const char *match; /* regular expression searched in tensor names; NULL: the default group */
    double lr, beta1, beta2, eps, weight_decay; /* SGD: beta1 is the momentum; Adagrad: no betas */
} clt_param_group;

typedef struct {
    clt_optimizer_kind kind;
    bool nesterov;               /* SGD */
    bool l2;                     /* adamw: weight_decay joins the gradient (Adam), instead of the weights */
    bool uncorrected;            /* adamw, LAMB: without the corrections of the moments in the first steps */
    double min_coeff, max_coeff; /* LAMB: DeepSpeed's rule with these limits; max_coeff 0: timm's rule */
    double layer_decay;          /* 1: all layers have the same learning rate */
    int n_groups;                /* at least 1; group 0 is the default group, the rest in listed order */
    clt_param_group groups[CLT_MAX_PARAM_GROUPS];
    clt_strv disable_grad; /* regular expressions: tensors whose name matches are frozen */
} clt_optimizer_config;

typedef enum { CLT_CLIP_NONE, CLT_CLIP_NORM, CLT_CLIP_VALUE } clt_clip_type;

typedef enum { CLT_CHECK_STOP, CLT_CHECK_WARN } clt_check_action;

enum { CLT_STAGE_AUTO = -1, CLT_MOST_STAGE = 3 };
typedef enum { CLT_OFFLOAD_NONE, CLT_OFFLOAD_HOST, CLT_OFFLOAD_FILE } clt_offload;
extern const char *const clt_offload_names[]; /* of a clt_offload: none, host, file; NULL at the end */
typedef enum { CLT_UPDATE_DEVICE, CLT_UPDATE_HOST } clt_update_place;

typedef struct {        /* which ranks hold which part of the state: cltrain.zero_stage, fsdp_config */
    int zero_stage;     /* 0 to CLT_MOST_STAGE, or CLT_STAGE_AUTO: the plan decides */
    int64_t degree;     /* ranks that one copy of the state is spread over; -1: the rest */
    int64_t replicas;   /* copies of the state; -1: the rest */
    bool limit_gathers; /* fsdp_config.limit_all_gathers */
    clt_offload offload;
    clt_offload parameters; /* cltrain.offload_parameters; with zero_stage 3 */
    clt_offload gradients;  /* cltrain.offload_gradients; with zero_stage 2 or 3 */
    bool host_update;       /* cltrain.offload_update: host; with CLT_OFFLOAD_HOST, without lamb and files */
    double offload_ratio;   /* part of the state that is offloaded; NaN: the plan decides */
    const char *offload_folder; /* where CLT_OFFLOAD_FILE is; NULL: clt_config_has_files is false */
} clt_shard_config;

typedef struct { /* callbacks.early_stopper */
    bool on;
    const char *monitor; /* one of the model's metrics (clt_model_get_terms) */
    const char *label;   /* of the evaluation data */
    double min_delta;    /* changes up to this are none */
    clt_time patience;   /* epochs or batches without a better value after which the run ends */
} clt_early_stop_config;

typedef struct { /* callbacks.hf_checkpointer */
    bool on;
    const char *save_folder, *folder_name; /* templates for clt_config_expand */
    clt_time save_interval;
    int precision; /* clt_hf_precision */
    bool overwrite;
} clt_hf_checkpointer_config;
typedef enum { CLT_HF_F32, CLT_HF_BF16, CLT_HF_F16 } clt_hf_precision;

typedef struct { /* callbacks: those that do something here */
    bool speed_monitor, lr_monitor, memory_monitor, runtime_estimator, fdiff_metrics, system_metrics_monitor;
    int64_t speed_window; /* steps */
    clt_early_stop_config early_stop;
    clt_hf_checkpointer_config hf_checkpointer;
} clt_callbacks_config;

typedef struct { /* loggers.tensorboard */
    bool on;
    const char *log_dir;
    int64_t flush_interval; /* batches */
} clt_tensorboard_config;

typedef struct { /* loggers.mlflow */
    bool on;
    const char *experiment_name, *run_name; /* run_name NULL: the run's */
    const char *tracking_uri;               /* NULL: not given */
    const char *folder;                     /* of the file store; NULL: tracking_uri is not local */
    int64_t flush_interval;                 /* batches */
    json_t *tags;                           /* an object, borrowed; NULL: none */
} clt_mlflow_config;

typedef struct { /* loggers.file_logger */
    bool on;
    const char *filename;   /* a template for clt_config_expand */
    int64_t flush_interval; /* batches */
} clt_file_logger_config;

typedef struct {
    clt_tensorboard_config tensorboard;
    clt_mlflow_config mlflow;
    clt_file_logger_config file;
    const char *csv, *prometheus; /* cltrain.csv, cltrain.prometheus: files; NULL: none */
} clt_loggers_config;

enum { CLT_NONFINITE_STOP, CLT_NONFINITE_SKIP, CLT_NONFINITE_ROLLBACK };
enum { CLT_SPIKE_OFF, CLT_SPIKE_WARN, CLT_SPIKE_SKIP, CLT_SPIKE_STOP };
enum { CLT_SPIKE_MAX = 1024 }; /* largest cltrain.guards.spike_window */

typedef struct {   /* cltrain.guards: what watches the run */
    int nonfinite; /* CLT_NONFINITE_... */
    int64_t
        nonfinite_in_a_row; /* skip and rollback: consecutive bad steps before more is done; 0: no limit */
    int64_t max_rollbacks;  /* of a whole run */
    bool gradient_norm;     /* computed although nothing but the guards and logs asks for it */
    int loss_spike;         /* CLT_SPIKE_... */
    int64_t spike_window;   /* steps */
    double spike_threshold; /* z-score */
    int64_t replica_hash_interval; /* batches; 0: never */
    double straggler_ratio;        /* of the median rank's time; 0: no warnings */
} clt_guard_config;

/* cltrain.loss_scale. The last two: without ZeRO, and a scale that never changes. */
typedef enum {
    CLT_SCALE_PYTORCH,
    CLT_SCALE_DEEPSPEED,
    CLT_SCALE_DEEPSPEED_0,
    CLT_SCALE_STATIC
} clt_loss_scale_kind;

typedef struct {
    int kind;            /* clt_loss_scale_kind */
    double initial, min; /* scales */
    int64_t window;      /* good steps between two doublings */
    int64_t hysteresis;  /* deepspeed: overflows until the scale is halved */
    bool consecutive_hysteresis;
} clt_loss_scale_config;

typedef struct {      /* cltrain.flops_profile */
    int64_t batch;    /* that is profiled, from 1; 0: none */
    const char *file; /* NULL: the console */
} clt_flops_config;

typedef struct clt_config clt_config;
struct clt_config {
    /* the run */
    const char *run_name; /* never NULL: RUN_NAME or "llm" when not given, as in Foundry */
    int64_t seed;
    clt_time max_duration;
    int64_t max_seq_len;
    double dist_timeout;
    clt_model_config *model;
    const char *tokenizer;     /* tokenizer.name */
    const char *padding_side;  /* tokenizer.kwargs: "left", "right"; NULL: the tokenizer's */
    const char *chat_template; /* tokenizer.kwargs: a name or a text; NULL: the tokenizer's */

    /* data and batches */
    clt_loader_config train;
    clt_loader_config *evals;
    int n_evals;
    int64_t global_train_batch_size;
    int64_t device_train_microbatch_size; /* 0: auto */
    int64_t device_eval_batch_size;
    bool accumulate_on_tokens;                                 /* accumulate_train_batch_on_tokens */
    int64_t train_subset_num_batches, eval_subset_num_batches; /* -1: all */

    /* optimization */
    clt_optimizer_config optimizer;
    clt_schedule_config schedule;
    clt_clip_type clip_type;
    double clip_threshold;

    /* evaluation and logging */
    clt_time eval_interval;
    bool eval_first;
    clt_icl_tasks icl;              /* icl_tasks */
    clt_gauntlet *gauntlet;         /* eval_gauntlet; NULL: none */
    json_t *icl_documents;          /* owned: files that icl_tasks and eval_gauntlet name */
    int64_t icl_subset_num_batches; /* -1: all */
    int64_t icl_seq_len;
    const char *model_name;       /* of an evaluation YAML's model; NULL: a training configuration */
    clt_yaml *eval_yaml;          /* the evaluation YAML as it was written; NULL: a training configuration */
    size_t model_index, n_models; /* in its `models`; how many it has */
    bool log_to_console, log_config, progress_bar;
    clt_time console_log_interval; /* epochs or batches */
    clt_callbacks_config callbacks;
    clt_loggers_config loggers;

    /* checkpoints; templates keep {run_name}, {epoch}, {batch} ... for clt_config_expand; {rank} is already 0
     * and a trailing .pt is gone */
    const char *save_folder; /* NULL: no checkpoints; {run_name} is already replaced */
    const char *mirror;      /* cltrain.mirror, NULL: none; likewise */
    const char *save_filename, *save_latest_filename;
    clt_time save_interval;
    int64_t save_num_checkpoints_to_keep; /* -1: all */
    bool save_overwrite, save_weights_only;
    const char *load_path; /* NULL: none */
    bool load_weights_only, load_strict_model_weights;
    clt_strv load_ignore_keys; /* as clt_load_options says */
    bool autoresume; /* on with a save_folder unless save_overwrite, save_weights_only or autoresume: false */

    /* cltrain: */
    clt_strv devices; /* patterns; empty: choose. Several: one per node-local rank */
    clt_numerics numerics;
    clt_tune_mode tune; /* which kernel variants a shape takes: as measured before, or measured now */
    int64_t exact_lanes;
    bool lanes_given; /* cltrain.exact_lanes is given; a checkpoint's lanes win in any case */
    clt_guard_config guards;
    clt_loss_scale_config loss_scale; /* of amp_fp16 */
    int64_t phase_times;              /* batches between two steps whose phases are timed; 0: never */
    clt_flops_config flops_profile;
    double stop_before;  /* minutes from the start or seconds since 1970; 0: no end */
    int *lanes_per_rank; /* [n_lanes_per_rank] lanes of each rank; n 0: by measured speed */
    int n_lanes_per_rank;
    int64_t check_batches; /* cltrain.resume_check.batches; -1: one in numerics fast */
    double check_limit;    /* NaN: by precision */
    clt_check_action check_action;
    clt_dtype precision;     /* fp32, amp_bf16 (exact8 too), amp_fp16 */
    bool eight_bits;         /* exact8: products of 8-bit blocks */
    bool fp8;                /* amp_fp8: products in 8-bit floating point */
    int64_t attention_bits;  /* 16; with exact8 8, attention in 8-bit blocks, or 16 */
    bool reduce_bf16;        /* ranks exchange gradients in bf16: fsdp_config.mixed_precision */
    clt_recompute recompute; /* cltrain.recompute or fsdp_config.activation_checkpointing */
    clt_offload inputs;      /* cltrain.offload_activations, fsdp_config.activation_cpu_offload */
    bool recompute_open;     /* it is only the default, and may follow the device's memory: clt_plan_fit */
    clt_shard_config shard;

    /* how it was read */
    const char *path;
    int64_t (*elastic)[2]; /* [n_elastic] numbers of ranks that DeepSpeed's section elasticity allows, and the
                            * microbatch of each; NULL: there is none */
    int n_elastic;
    const char *deepspeed; /* DeepSpeed's file, which was merged into the document; NULL: none */
    clt_yaml *yaml;        /* the document after overrides and references */
    json_t *merged;        /* the same as values */
    clt_strv strings;      /* owns every string above */
    clt_notices notices;   /* keys without effect */
    clt_strv remarks;      /* what else is done in another way than the file asks for */
    clt_strv warnings;
};

enum { CLT_MOST_LANES = 1024 }; /* cltrain.exact_lanes, a power of two */

/* Reads PATH, applies `n` overrides ("key.sub=value", later ones win), resolves ${...}, checks everything
 * that does not need data, devices or ranks. CLT_BAD_CONFIG after one message; CLT_USAGE for an override
 * without '='. */
clt_status clt_config_load(const char *path, const char *const *overrides, size_t n, clt_config **out);
/* The same for a run of `ranks` ranks (clt_config_load: those of this job), which a DeepSpeed configuration
 * depends on. */
clt_status clt_config_load_for(const char *path, const char *const *overrides, size_t n, int ranks,
                               clt_config **out);
/* The same of a text in memory; `what` names it in messages. */
clt_status clt_config_parse(const char *text, size_t bytes, const char *what, const char *const *overrides,
                            size_t n, clt_config **out);
/* Reads a YAML to evaluate with: a training configuration, or LLM Foundry's evaluation YAML with `models` (or
 * one model), each of which becomes a configuration with a model_name. *n receives their number; free each
 * with clt_config_free and the list with clt_free. */
clt_status clt_config_load_eval(const char *path, const char *const *overrides, size_t n_overrides,
                                clt_config ***out, size_t *n);
/* CLT_BAD_CONFIG, naming the key to set, if the configuration names no weights that can be evaluated. */
clt_status clt_config_check_weights(const clt_config *c);
void clt_config_free(clt_config *c);

/* What clt_loader_open takes for the training data of `ranks` ranks, or, if l is not &c->train, for
 * evaluation. Borrows from c. max_rows is the global batch. */
void clt_config_loader_params(const clt_config *c, const clt_loader_config *l, int ranks,
                              clt_loader_params *out);
/* CLT_BAD_DATA if the training data, with so many samples in an epoch, give no batch. */
clt_status clt_config_check_batches(const clt_config *c, int64_t samples, int64_t batches);

/* Whether the loader names data: the configuration may leave that out. */
bool clt_loader_config_has_data(const clt_loader_config *l);
/* What a run of `ranks` ranks needs beyond that: in the exact mode ranks <= exact_lanes (ranks own whole
 * lanes), in the fast mode ranks divide global_train_batch_size; the loader names a folder. */
clt_status clt_config_check_run(const clt_config *c, int ranks);
/* The part of it that is about ranks, for a run of exact_lanes lanes: the configuration's, or a checkpoint's.
 */
clt_status clt_config_check_ranks(const clt_config *c, int64_t exact_lanes, int ranks);
/* The groups that `ranks` ranks are divided into: *degree ranks share a copy of the state, of which there are
 * *replicas; at stage 0 *degree is 1. CLT_BAD_CONFIG if the configured sizes do not multiply to the number of
 * ranks; a single rank suits all sizes. */
clt_status clt_config_shard_groups(const clt_config *c, int ranks, int *degree, int *replicas);

/* Whether something is in files in shard.offload_folder. */
bool clt_config_has_files(const clt_config *c);

/* Prints one line for each reason why keys have no effect, the remarks, and the warnings. */
void clt_config_notices(const clt_config *c);

/* The merged configuration as sorted YAML, as Composer prints it. with_origin adds the defaults that apply
 * and, at each value, where it came from. */
void clt_config_print(const clt_config *c, bool with_origin, clt_str *out);

/* What `other`, a configuration as clt_config_print printed it without origins, says else: an object
 * {"a.b": [other's value, this one's]} with defaults filled in and null for what is not given. The caller
 * frees it; NULL if `other` is no configuration. */
json_t *clt_config_differences(const clt_config *c, const char *other);

/* Appends what all ranks of a run must have in common, defaults included: one line "a.b: VALUE" for each key,
 * VALUE as JSON. Equal configurations have the same lines, in any order. Without cltrain.device. */
void clt_config_lines(const clt_config *c, clt_str *out);

/* What a run of `ranks` ranks trains with, defaults included: {"train_batch_size", "micro_batch_size" (null:
 * the memory plan decides), "gradient_accumulation_steps" (null, too), "ranks", "valid_ranks" (null unless
 * DeepSpeed's elasticity names them), "optimizer": {"name", "lr",
 * ...} (of the default group), "scheduler": {"name", ...}, "precision", "loss_scale": {"rule", ...} (null
 * unless amp_fp16), "clipping": {"type", "threshold"} (null: none), "zero_stage" (or "auto"), "offload",
 * "offload_folder" (null without files), "offload_parameters", "offload_gradients", "offload_update",
 * "warnings": [lines that the run prints about its configuration]}. The caller frees it. */
json_t *clt_config_summary(const clt_config *c, int ranks);

/* Every key with type, default, status and reason as Markdown table rows: docs/configuration.md. */
void clt_config_list_keys(clt_str *out);
bool clt_config_knows(const char *dotted_key);

/* Replaces {run_name}, {epoch}, {batch}, {sample}, {token}, {batch_in_epoch}, {sample_in_epoch},
 * {token_in_epoch}, {total_wct} (seconds), {rank}, {local_rank}, {node_rank} (each 0), {world_size} and
 * {local_world_size} (each 1): rank 0 writes one file, whose name does not depend on the number of ranks.
 * Other words in braces are left as they are. The caller frees the text. */
char *clt_config_expand(const clt_config *c, const char *template_text, const clt_timestamp *t);

/* Which group each named tensor belongs to (the listed groups claim in order, the rest is group 0) and
 * whether it is frozen. CLT_BAD_CONFIG for a regular expression that cannot be compiled. */
clt_status clt_optimizer_groups(const clt_optimizer_config *o, const char *const *names, size_t n,
                                uint8_t *group, bool *frozen);

/* A parameter group, or the part of it whose layers have learning rate lr * scale (optimizer.layer_decay). */
typedef struct {
    int group;
    double scale;
} clt_scaled_group;
enum { CLT_MAX_SCALED_GROUPS = 255 };
/* The groups of all tensors of c's model: tensor i is in group[of[i]], unless it is frozen. Without
 * layer_decay they are those of the configuration. *n is at least 1. CLT_BAD_CONFIG if there would be more
 * than CLT_MAX_SCALED_GROUPS. */
clt_status clt_optimizer_scaled_groups(const clt_config *c, const clt_slab_table *t,
                                       clt_scaled_group group[CLT_MAX_SCALED_GROUPS], int *n, uint8_t *of,
                                       bool *frozen);

#endif
