/* The tables of ds_config.json. Nothing is stored: clt_deepspeed_map.c takes the values as they are. */
#include <string.h>
#include <strings.h>

#include "runtime/train/config/clt_deepspeed_internal.h"

#define KEY(kind, name, def, help, ...)                                                                      \
    CLT_KEY_CHECKED(&clt_kind_##kind, name, def, help, .nullable = true, __VA_ARGS__)
#define SECTION(name, help, schema, ...) CLT_KEY_SECTION(name, NULL, help, 0, &schema, __VA_ARGS__)
#define IGNORED(kind, name, def, same, why) CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why)
#define REFUSE(name, def, why) CLT_KEY_REFUSE(name, def, why)
#define ANY CLT_KEY_CHECKED(&clt_kind_any, "*", NULL, "only counts while the section is enabled")

#define BUCKETS "the engine chooses sizes and order of its exchanges; the result is the same"
#define PLACEMENT "the memory plan places buffers (cltrain plan); the result is the same"
#define TRANSFERS "stretches of 8 MiB are read ahead and written behind; the result is the same"
#define PROFILE "use cltrain train --profile or --trace FILE"

/* --- sections with a switch: what is refused and what has no effect while it is on --- */

#define REFUSED_SECTION(name, why)                                                                           \
    static const clt_key name##_keys[] = {REFUSE("enabled", "false", why), ANY};                             \
    static const clt_schema name##_schema = CLT_SCHEMA(name##_keys)
#define IDLE_SECTION(name, why)                                                                              \
    static const clt_key name##_keys[] = {IGNORED(bool, "enabled", "false", "false", why), ANY};             \
    static const clt_schema name##_schema = CLT_SCHEMA(name##_keys)

REFUSED_SECTION(amp, "NVIDIA Apex is not used: set fp16 or bf16");
REFUSED_SECTION(curriculum, "sequences keep their length: remove the section");
REFUSED_SECTION(data_efficiency, "samples and tokens are not dropped or sorted: remove the section");
REFUSED_SECTION(layer_drop, "layers are not dropped: remove the section");
REFUSED_SECTION(eigenvalue, "eigenvalues are not computed: remove the section");
REFUSED_SECTION(quantize, "training with quantized weights is not supported: precision exact8 and amp_fp8 of "
                          "the YAML compute in 8 bits");
IDLE_SECTION(wandb, "write loggers.tensorboard or loggers.mlflow of the YAML, whose files wandb reads");
IDLE_SECTION(comet, "write loggers.tensorboard or loggers.mlflow of the YAML, whose files Comet reads");
IDLE_SECTION(comms, PROFILE);
IDLE_SECTION(autotuning, "the memory plan chooses the microbatch, and cltrain tune measures kernels");
IDLE_SECTION(nebula, "checkpoints are written while training continues, without a service");

static const clt_key tensorboard_keys[] = {
    KEY(bool, "enabled", "false", "true: loggers.tensorboard"),
    KEY(str, "output_path", "\"\"", "loggers.tensorboard.log_dir is OUTPUT_PATH/JOB_NAME"),
    KEY(str, "job_name", "\"DeepSpeedJobName\"", "see output_path"),
};
static const clt_schema tensorboard_schema = CLT_SCHEMA(tensorboard_keys);

static const clt_key csv_keys[] = {
    KEY(bool, "enabled", "false",
        "true: cltrain.csv, one table with a column for each metric instead of a file for each"),
    KEY(str, "output_path", "\"\"", "cltrain.csv is OUTPUT_PATH/JOB_NAME/metrics.csv"),
    KEY(str, "job_name", "\"DeepSpeedJobName\"", "see output_path"),
};
static const clt_schema csv_schema = CLT_SCHEMA(csv_keys);

#define MODULES "operations are counted for the whole model; train --profile prints the time of each kernel"
static const clt_key flops_keys[] = {
    KEY(bool, "enabled", "false", "true: cltrain.flops_profile"),
    KEY(int, "profile_step", "1", "cltrain.flops_profile.batch is this plus 1: DeepSpeed counts from 0"),
    KEY(str, "output_file", "null", "cltrain.flops_profile.file"),
    IGNORED(int, "module_depth", "-1", NULL, MODULES),
    IGNORED(int, "top_modules", "1", NULL, MODULES),
    IGNORED(bool, "detailed", "true", "false", MODULES),
    IGNORED(float, "recompute_fwd_factor", "0.0", "0", "recomputation is not counted"),
};
static const clt_schema flops_schema = CLT_SCHEMA(flops_keys);

/* --- elasticity --- */

static const clt_key elasticity_keys[] = {
    KEY(bool, "enabled", "false", "true: the section chooses the batch"),
    KEY(int, "max_train_batch_size", NULL, "largest batch; global_train_batch_size is what follows from it"),
    KEY(list, "micro_batch_sizes", NULL, "device_train_microbatch_size is one of these"),
    KEY(int, "min_gpus", "1", "least number of ranks"),
    KEY(int, "max_gpus", "10000", "largest number of ranks"),
    IGNORED(int, "min_time", "0", NULL, "a run is not restarted by a scheduler of its own"),
    KEY(float, "version", "0.2", "0.1 or 0.2"),
    KEY(bool, "prefer_larger_batch", "true", "of batches with equally many valid numbers the larger one"),
    KEY(bool, "ignore_non_elastic_batch_info", "false",
        "true: sizes of batches beside the section have no effect"),
    KEY(int, "num_gpus_per_node", "1", "version 0.2: ranks come and go in nodes of so many"),
    KEY(int, "model_parallel_size", "1", "must be 1"),
};
static const clt_schema elasticity_schema = CLT_SCHEMA(elasticity_keys);

/* --- fp16, bf16 --- */

static const clt_key fp16_keys[] = {
    KEY(bool, "enabled", "false", "true: precision amp_fp16"),
    IGNORED(bool, "auto_cast", "false", "false", "inputs are tokens, and precision decides all other types"),
    KEY(float, "loss_scale", "0", "above 0: cltrain.loss_scale.rule static, with this scale; 0: dynamic"),
    KEY(int, "initial_scale_power", "16", "cltrain.loss_scale.initial is 2 to this power"),
    KEY(int, "loss_scale_window", "1000", "cltrain.loss_scale.window"),
    KEY(int, "hysteresis", "2", "cltrain.loss_scale.hysteresis; without effect at stage 0"),
    KEY(bool, "consecutive_hysteresis", "false", "cltrain.loss_scale.consecutive_hysteresis"),
    KEY(float, "min_loss_scale", "1", "cltrain.loss_scale.min"),
    IGNORED(bool, "fp16_master_weights_and_grads", "false", "false", "weights and gradients are fp32"),
};
static const clt_schema fp16_schema = CLT_SCHEMA(fp16_keys);

static const clt_key bf16_keys[] = {
    KEY(bool, "enabled", "false", "true: precision amp_bf16"),
    IGNORED(bool, "immediate_grad_update", "true", NULL, BUCKETS),
    IGNORED(bool, "check_grad_overflow", "false", NULL,
            "cltrain.guards.nonfinite of the YAML says what a gradient does that is not finite"),
    IGNORED(bool, "bf16_master_weights_and_grads", "false", "false", "weights and gradients are fp32"),
    IGNORED(bool, "bf16_optimizer_states", "false", "false", "moments are fp32"),
};
static const clt_schema bf16_schema = CLT_SCHEMA(bf16_keys);

/* --- zero_optimization --- */

static const char *const devices[] = {"none", "cpu", "nvme", NULL};

static const clt_key offload_param_keys[] = {
    CLT_KEY_CHECKED(&clt_kind_choice, "device", "\"none\"",
                    "stage 3: cpu: cltrain.offload_parameters host; nvme: file, but host with "
                    "zero_hpz_partition_size above 1, and one line says so",
                    .choices = devices, .nullable = true),
    KEY(str, "nvme_path", "null",
        "with nvme: cltrain.offload_folder, unless offload_optimizer has a folder: then all files are there"),
    IGNORED(int, "buffer_count", "5", NULL, PLACEMENT),
    IGNORED(int, "buffer_size", "100000000", NULL, PLACEMENT),
    IGNORED(int, "max_in_cpu", "1000000000", NULL, PLACEMENT),
    IGNORED(bool, "pin_memory", "true", NULL, PLACEMENT),
};
static const clt_schema offload_param_schema = CLT_SCHEMA(offload_param_keys);

static const clt_key offload_optimizer_keys[] = {
    CLT_KEY_CHECKED(&clt_kind_choice, "device", "\"none\"",
                    "cpu: cltrain.offload host; nvme: file, which needs nvme_path; at stages 2 and 3 "
                    "cltrain.offload_gradients is the same",
                    .choices = devices, .nullable = true),
    KEY(str, "nvme_path", "null", "with nvme: cltrain.offload_folder"),
    IGNORED(int, "buffer_count", "4", NULL, PLACEMENT),
    IGNORED(bool, "pin_memory", "true", NULL, PLACEMENT),
    IGNORED(bool, "pipeline_read", "false", NULL, TRANSFERS),
    IGNORED(bool, "pipeline_write", "false", NULL, TRANSFERS),
    IGNORED(bool, "fast_init", "false", NULL, "the files are allocated at the start, not written"),
    KEY(float, "ratio", "1.0", "stage 3: cltrain.offload_ratio"),
    IGNORED(bool, "super_offload", "false", "false", PLACEMENT),
    IGNORED(float, "cpuadam_cores_perc", "0.8", NULL,
            "all of them, with cltrain.offload_update: host; otherwise the device"),
};
static const clt_schema offload_optimizer_schema = CLT_SCHEMA(offload_optimizer_keys);

#define QUANTIZED "ranks exchange weights and gradients unquantized, which is more exact"
static const clt_key zero_keys[] = {
    KEY(int, "stage", "0", "cltrain.zero_stage"),
    SECTION("offload_param", "weights that the model reads", offload_param_schema),
    SECTION("offload_optimizer", "moments and fp32 weights", offload_optimizer_schema),
    KEY(bool, "cpu_offload", "false", "the old name of offload_optimizer.device cpu"),
    IGNORED(bool, "cpu_offload_params", "false", "false", PLACEMENT),
    IGNORED(bool, "cpu_offload_use_pin_memory", "false", NULL, PLACEMENT),
    KEY(int, "zero_hpz_partition_size", "1",
        "above 1, stage 3: fsdp_config.data_parallel_shard_degree, and the rest of the ranks are replicas"),
    IGNORED(bool, "contiguous_gradients", "true", NULL, BUCKETS),
    IGNORED(bool, "reduce_scatter", "true", NULL, BUCKETS),
    IGNORED(int, "reduce_bucket_size", "500000000", NULL, BUCKETS),
    IGNORED(bool, "use_multi_rank_bucket_allreduce", "true", NULL, BUCKETS),
    IGNORED(bool, "allgather_partitions", "true", NULL, BUCKETS),
    IGNORED(int, "allgather_bucket_size", "500000000", NULL, BUCKETS),
    IGNORED(bool, "overlap_comm", "null", NULL, BUCKETS),
    IGNORED(bool, "round_robin_gradients", "false", NULL, BUCKETS),
    IGNORED(int, "sub_group_size", "1000000000", NULL, BUCKETS),
    IGNORED(int, "prefetch_bucket_size", "50000000", NULL, BUCKETS),
    IGNORED(int, "stage3_prefetch_bucket_size", "50000000", NULL, BUCKETS),
    IGNORED(int, "param_persistence_threshold", "100000", NULL, BUCKETS),
    IGNORED(int, "stage3_param_persistence_threshold", "100000", NULL, BUCKETS),
    IGNORED(int, "model_persistence_threshold", NULL, NULL, BUCKETS),
    IGNORED(int, "stage3_model_persistence_threshold", NULL, NULL, BUCKETS),
    IGNORED(int, "max_live_parameters", "1000000000", NULL, BUCKETS),
    IGNORED(int, "stage3_max_live_parameters", "1000000000", NULL, BUCKETS),
    IGNORED(int, "max_reuse_distance", "1000000000", NULL, BUCKETS),
    IGNORED(int, "stage3_max_reuse_distance", "1000000000", NULL, BUCKETS),
    IGNORED(bool, "stage3_use_all_reduce_for_fetch_params", "false", NULL, BUCKETS),
    IGNORED(int, "stage3_module_granularity_threshold", "0", NULL, BUCKETS),
    IGNORED(bool, "load_from_fp32_weights", "true", NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(bool, "elastic_checkpoint", "false", NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(bool, "gather_16bit_weights_on_model_save", "false", NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(bool, "stage3_gather_16bit_weights_on_model_save", "false", NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(bool, "stage3_gather_fp16_weights_on_model_save", "false", NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(bool, "ignore_unused_parameters", "true", NULL, "every tensor of a model is used"),
    IGNORED(bool, "legacy_stage1", "false", "false", BUCKETS),
    IGNORED(bool, "zero_quantized_weights", "false", "false", QUANTIZED),
    IGNORED(bool, "zero_quantized_nontrainable_weights", "false", "false", QUANTIZED),
    IGNORED(bool, "zero_quantized_gradients", "false", "false", QUANTIZED),
    IGNORED(map, "zeropp_loco_param", "null", NULL, QUANTIZED),
    IGNORED(int, "mics_shard_size", "-1", "-1",
            "use zero_hpz_partition_size, or fsdp_config.data_parallel_shard_degree of the YAML"),
    IGNORED(bool, "mics_hierarchical_params_gather", "false", NULL, BUCKETS),
    IGNORED(bool, "memory_efficient_linear", "true", NULL, PLACEMENT),
    IGNORED(bool, "pipeline_loading_checkpoint", "false", NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(bool, "override_module_apply", "true", NULL, CLT_KEY_OF_PYTORCH),
    IGNORED(any, "log_trace_cache_warnings", "false", NULL, BUCKETS),
};
static const clt_schema zero_schema = CLT_SCHEMA(zero_keys);

/* --- optimizer --- */

#define ADAM_ROWS                                                                                            \
    KEY(float, "lr", "0.001", "optimizer.lr"), KEY(betas, "betas", "[0.9, 0.999]", "optimizer.betas"),       \
        KEY(float, "eps", "1e-08", "optimizer.eps"),                                                         \
        KEY(float, "weight_decay", "0", "optimizer.weight_decay; default with torch_adam: 0.01"),            \
        KEY(bool, "bias_correction", "true", "optimizer.bias_correction"),                                   \
        REFUSE("amsgrad", "false", "the maximum of second moments is not kept: leave it out"),               \
        REFUSE("max_grad_norm", "0", "DeepSpeed has gradient_clipping for it"),                              \
        KEY(bool, "torch_adam", "false", "true: only the default of weight_decay differs"),                  \
        IGNORED(bool, "fp32_optimizer_states", "true", NULL, "moments are fp32"),                            \
        IGNORED(bool, "set_grad_none", "true", NULL, CLT_KEY_OF_PYTORCH),                                    \
        IGNORED(bool, "foreach", "null", NULL, CLT_KEY_OF_PYTORCH),                                          \
        IGNORED(bool, "fused", "null", NULL, CLT_KEY_OF_PYTORCH)

static const clt_key adam_keys[] = {
    ADAM_ROWS,
    KEY(bool, "adam_w_mode", "true",
        "optimizer.adam_w_mode: false adds weight_decay to the gradient; the type AdamW ignores it"),
};
static const clt_schema adam_schema = CLT_SCHEMA(adam_keys);

static const clt_key lion_keys[] = {
    KEY(float, "lr", "0.001", "optimizer.lr of decoupled_lionw"),
    KEY(betas, "betas", "[0.9, 0.99]", "optimizer.betas; default with offload_optimizer: [0.9, 0.999]"),
    KEY(float, "weight_decay", "0", "optimizer.weight_decay is lr times this"),
    REFUSE("max_grad_norm", "0", "DeepSpeed has gradient_clipping for it"),
    IGNORED(bool, "fp32_optimizer_states", "true", NULL, "moments are fp32"),
    IGNORED(bool, "set_grad_none", "true", NULL, CLT_KEY_OF_PYTORCH),
};
static const clt_schema lion_schema = CLT_SCHEMA(lion_keys);

static const clt_key lamb_keys[] = {
    KEY(float, "lr", "0.001", "optimizer.lr"),
    KEY(betas, "betas", "[0.9, 0.999]", "optimizer.betas"),
    KEY(float, "eps", "1e-08", "optimizer.eps"),
    KEY(float, "weight_decay", "0", "optimizer.weight_decay"),
    KEY(float, "max_coeff", "10", "optimizer.max_coeff"),
    KEY(float, "min_coeff", "0.01", "optimizer.min_coeff"),
    KEY(bool, "bias_correction", "true", "optimizer.bias_correction"),
    REFUSE("eps_inside_sqrt", "false", "eps is added to the root: leave it out"),
    REFUSE("amsgrad", "false", "DeepSpeed refuses it, too: leave it out"),
    REFUSE("max_grad_norm", "0", "DeepSpeed has gradient_clipping for it"),
};
static const clt_schema lamb_schema = CLT_SCHEMA(lamb_keys);

static const clt_key adagrad_keys[] = {
    KEY(float, "lr", "0.01", "optimizer.lr"),
    KEY(float, "eps", "1e-10", "optimizer.eps"),
    KEY(float, "weight_decay", "0", "optimizer.weight_decay, which is added to the gradient"),
    REFUSE("amsgrad", "false", "Adagrad has no such rule: leave it out"),
    REFUSE("lr_decay", "0", "scheduler sets the learning rate: leave it out"),
    REFUSE("initial_accumulator_value", "0", "sums of squares start at 0: leave it out"),
    REFUSE("max_grad_norm", "0", "DeepSpeed has gradient_clipping for it"),
};
static const clt_schema adagrad_schema = CLT_SCHEMA(adagrad_keys);

static const clt_key sgd_keys[] = {
    KEY(float, "lr", "0.001", "optimizer.lr"),
    KEY(float, "momentum", "0", "optimizer.momentum"),
    REFUSE("dampening", "0", "the momentum takes the whole gradient: leave it out"),
    KEY(float, "weight_decay", "0", "optimizer.weight_decay"),
    KEY(bool, "nesterov", "false", "optimizer.nesterov"),
    REFUSE("maximize", "false", "losses are minimized"),
    REFUSE("max_grad_norm", "0", "DeepSpeed has gradient_clipping for it"),
    IGNORED(bool, "foreach", "null", NULL, CLT_KEY_OF_PYTORCH),
    IGNORED(bool, "differentiable", "false", NULL, CLT_KEY_OF_PYTORCH),
    IGNORED(bool, "fused", "null", NULL, CLT_KEY_OF_PYTORCH),
};
static const clt_schema sgd_schema = CLT_SCHEMA(sgd_keys);

const clt_schema *clt_deepspeed_optimizer_params(const char *type) {
    if (!strcasecmp(type, "adam") || !strcasecmp(type, "adamw")) return &adam_schema;
    if (!strcasecmp(type, "lion")) return &lion_schema;
    if (!strcasecmp(type, "lamb")) return &lamb_schema;
    if (!strcasecmp(type, "adagrad")) return &adagrad_schema;
    return !strcmp(type, "SGD") ? &sgd_schema : NULL;
}

const char *clt_deepspeed_refused_optimizer(const char *type) {
    static const char one_bit[] = "gradients are not compressed to one bit: use AdamW or Lion";
    static const struct {
        const char *type, *why;
    } refused[] = {{"onebitadam", one_bit},
                   {"zerooneadam", one_bit},
                   {"onebitlamb", one_bit},
                   {"muon", "Muon is not computed: use AdamW, Adam, Lion or SGD"}};
    for (size_t i = 0; i < CLT_COUNT_OF(refused); i++)
        if (!strcasecmp(type, refused[i].type)) return refused[i].why;
    return NULL;
}

static const clt_key optimizer_keys[] = {
    CLT_KEY_CHECKED(&clt_kind_str, "type", NULL,
                    "Adam and AdamW: optimizer.name adamw; Lion: decoupled_lionw; Lamb: lamb with max_coeff; "
                    "Adagrad: adagrad; SGD: sgd; others are refused"),
    KEY(map, "params", NULL, "by type; an unknown one is an error"),
    IGNORED(bool, "legacy_fusion", "false", NULL, CLT_KEY_OF_PYTORCH),
};
static const clt_schema optimizer_schema = CLT_SCHEMA(optimizer_keys);

/* --- scheduler --- */

#define RAMP_ROWS                                                                                            \
    KEY(int, "warmup_num_steps", "1000", "scheduler.warmup_num_steps"),                                      \
        KEY(str, "warmup_type", "\"log\"", "scheduler.warmup_type; one that is unknown is log"),             \
        IGNORED(int, "last_batch_iteration", "-1", NULL, "a checkpoint holds the number of updates")
#define WARMUP_ROWS KEY(float, "warmup_min_lr", "0", "scheduler.warmup_min_lr"), RAMP_ROWS

static const clt_key warmup_keys[] = {
    WARMUP_ROWS,
    KEY(float, "warmup_max_lr", NULL,
        "scheduler.warmup_max_lr; default: optimizer.lr, as in DeepSpeed 0.19; 0.001 in 0.16"),
};
static const clt_schema warmup_schema = CLT_SCHEMA(warmup_keys);
static const clt_key decay_keys[] = {
    WARMUP_ROWS,
    KEY(float, "warmup_max_lr", "0.001", "scheduler.warmup_max_lr"),
    KEY(int, "total_num_steps", NULL,
        "scheduler.total_num_steps; \"auto\": those of max_duration in batches"),
};
static const clt_schema decay_schema = CLT_SCHEMA(decay_keys);
static const clt_key cosine_keys[] = {
    KEY(int, "total_num_steps", NULL,
        "scheduler.total_num_steps; \"auto\": those of max_duration in batches"),
    KEY(float, "warmup_min_ratio", "0", "scheduler.warmup_min_ratio"),
    KEY(float, "cos_min_ratio", "0.0001", "scheduler.cos_min_ratio"),
    RAMP_ROWS,
};
static const clt_schema cosine_schema = CLT_SCHEMA(cosine_keys);
static const clt_key cycle_keys[] = {
    KEY(float, "cycle_min_lr", NULL, "scheduler.cycle_min_lr"),
    KEY(float, "cycle_max_lr", NULL, "scheduler.cycle_max_lr"),
    KEY(float, "decay_lr_rate", "0", "scheduler.decay_lr_rate"),
    KEY(int, "cycle_first_step_size", "2000", "scheduler.cycle_first_step_size"),
    KEY(int, "cycle_second_step_size", "null", "scheduler.cycle_second_step_size"),
    KEY(int, "cycle_first_stair_count", "0",
        "scheduler.cycle_first_stair_count; without effect in DeepSpeed 0.16"),
    KEY(int, "cycle_second_stair_count", "null", "scheduler.cycle_second_stair_count"),
    KEY(int, "decay_step_size", "0", "scheduler.decay_step_size"),
    KEY(bool, "cycle_momentum", "true", "scheduler.cycle_momentum; without effect for SGD and Adagrad"),
    KEY(float, "cycle_min_mom", "0.8", "scheduler.cycle_min_mom"),
    KEY(float, "cycle_max_mom", "0.9", "scheduler.cycle_max_mom"),
    KEY(float, "decay_mom_rate", "0", "scheduler.decay_mom_rate; beta1 stays below 1"),
    IGNORED(int, "last_batch_iteration", "-1", NULL, "a checkpoint holds the number of updates"),
};
static const clt_schema cycle_schema = CLT_SCHEMA(cycle_keys);
static const clt_key range_keys[] = {
    KEY(float, "lr_range_test_min_lr", "0.001", "scheduler.lr_range_test_min_lr"),
    KEY(int, "lr_range_test_step_size", "2000", "scheduler.lr_range_test_step_size"),
    KEY(float, "lr_range_test_step_rate", "1.0", "scheduler.lr_range_test_step_rate"),
    KEY(bool, "lr_range_test_staircase", "false", "scheduler.lr_range_test_staircase"),
    IGNORED(int, "last_batch_iteration", "-1", NULL, "a checkpoint holds the number of updates"),
};
static const clt_schema range_schema = CLT_SCHEMA(range_keys);

static const struct {
    const char *type;
    const clt_schema *params;
    const char *name; /* of the YAML's scheduler */
} schedulers[] = {{"WarmupLR", &warmup_schema, "warmup_lr"},
                  {"WarmupDecayLR", &decay_schema, "warmup_decay_lr"},
                  {"WarmupCosineLR", &cosine_schema, "warmup_cosine_lr"},
                  {"OneCycle", &cycle_schema, "one_cycle"},
                  {"LRRangeTest", &range_schema, "lr_range_test"}};

const clt_schema *clt_deepspeed_scheduler_params(const char *type) {
    for (size_t i = 0; i < CLT_COUNT_OF(schedulers); i++)
        if (!strcmp(type, schedulers[i].type)) return schedulers[i].params;
    return NULL;
}

const char *clt_deepspeed_scheduler_name(const char *type) {
    for (size_t i = 0; i < CLT_COUNT_OF(schedulers); i++)
        if (!strcmp(type, schedulers[i].type)) return schedulers[i].name;
    return NULL;
}

static const clt_key scheduler_keys[] = {
    CLT_KEY_CHECKED(&clt_kind_str, "type", NULL,
                    "scheduler.name: warmup_lr, warmup_decay_lr, warmup_cosine_lr, one_cycle, lr_range_test"),
    KEY(map, "params", NULL, "by type; an unknown one is an error"),
};
static const clt_schema scheduler_schema = CLT_SCHEMA(scheduler_keys);

/* --- the rest --- */

#define NO_CHECKPOINTING "it says how DeepSpeed's function stores activations; see cltrain.recompute"
static const clt_key activation_keys[] = {
    IGNORED(bool, "partition_activations", "false", "false", NO_CHECKPOINTING),
    KEY(bool, "cpu_checkpointing", "false", "true: as cltrain.offload_activations: host"),
    IGNORED(bool, "contiguous_memory_optimization", "false", "false", NO_CHECKPOINTING),
    IGNORED(int, "number_checkpoints", "null", NULL, NO_CHECKPOINTING),
    IGNORED(bool, "synchronize_checkpoint_boundary", "false", "false", NO_CHECKPOINTING),
    IGNORED(bool, "profile", "false", "false", NO_CHECKPOINTING),
};
static const clt_schema activation_schema = CLT_SCHEMA(activation_keys);

static const clt_key aio_keys[] = {
    IGNORED(int, "block_size", "1048576", NULL, TRANSFERS),
    IGNORED(int, "queue_depth", "8", NULL, TRANSFERS),
    IGNORED(int, "thread_count", "1", NULL, TRANSFERS),
    IGNORED(int, "intra_op_parallelism", "1", NULL, TRANSFERS),
    IGNORED(bool, "single_submit", "false", NULL, TRANSFERS),
    IGNORED(bool, "overlap_events", "true", NULL, TRANSFERS),
    IGNORED(bool, "use_gds", "false", NULL, TRANSFERS),
};
static const clt_schema aio_schema = CLT_SCHEMA(aio_keys);

static const char *const tag_choices[] = {"Ignore", "Warn",   "Fail", "IGNORE", "WARN",
                                          "FAIL",   "ignore", "warn", "fail",   NULL};
static const clt_key checkpoint_keys[] = {
    CLT_KEY_CHECKED(&clt_kind_choice, "tag_validation", "\"Warn\"", "names of checkpoints are always equal",
                    .choices = tag_choices, .nullable = true),
    IGNORED(bool, "load_universal", "false", "false", CLT_CONFIG_ONE_FORM),
    IGNORED(bool, "use_node_local_storage", "false", "false",
            "a checkpoint lies in save_folder of the YAML, which all ranks reach"),
    IGNORED(map, "parallel_write", "null", NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(any, "writer", "null", NULL, CLT_CONFIG_ONE_FORM),
};
static const clt_schema checkpoint_schema = CLT_SCHEMA(checkpoint_keys);

static const char *const types[] = {"fp32", "bf16", NULL};
static const clt_refusal refused_types[] = {
    {"fp16", "ranks exchange gradients in fp32 or bf16: use one of them"}, {NULL, NULL}};
static const char *const grad_types[] = {"fp32", "float32", "bf16", "bfloat16", "fp16", "float16", NULL};
static const clt_key data_types_keys[] = {
    CLT_KEY_IGNORED(&clt_kind_choice, "grad_accum_dtype", "null", "\"fp32\"",
                    "gradients are accumulated in fp32", .choices = grad_types),
};
static const clt_schema data_types_schema = CLT_SCHEMA(data_types_keys);

static const char *const reductions[] = {"mean", NULL};
static const clt_refusal refused_reductions[] = {
    {"sum", "gradients are means over the batch: leave the key out"}, {NULL, NULL}};

#define MEAN "gradients are summed and divided once, in fp32"
static const clt_key top_keys[] = {
    KEY(int, "train_batch_size", NULL, "global_train_batch_size"),
    KEY(int, "train_micro_batch_size_per_gpu", NULL, "device_train_microbatch_size"),
    KEY(int, "gradient_accumulation_steps", "1",
        "follows from the other two and the number of ranks; checked"),
    SECTION("optimizer", "the optimizer", optimizer_schema),
    SECTION("scheduler", "the learning rate", scheduler_schema),
    SECTION("fp16", "16-bit floating point with a loss scale", fp16_schema),
    SECTION("bf16", "bfloat16", bf16_schema),
    SECTION("bfloat16", "the old name of bf16, read without bf16", bf16_schema),
    KEY(float, "gradient_clipping", "1.0",
        "algorithms.gradient_clipping by the norm; 0 and below: off; one line names the default, which is 0 "
        "in DeepSpeed 0.16"),
    SECTION("zero_optimization", "sharding; true is stage 1", zero_schema),
    CLT_KEY_CHECKED(&clt_kind_choice, "communication_data_type", "null",
                    "bf16: fsdp_config.mixed_precision.reduce_dtype bf16", .choices = types,
                    .refused = refused_types, .nullable = true),
    SECTION("data_types", "types of sums", data_types_schema),
    IGNORED(bool, "prescale_gradients", "false", "false", MEAN),
    IGNORED(float, "gradient_predivide_factor", "1.0", "1.0", MEAN),
    CLT_KEY_CHECKED(&clt_kind_choice, "gradient_allreduce_op", "\"mean\"", "mean", .choices = reductions,
                    .refused = refused_reductions, .nullable = true),
    IGNORED(bool, "sparse_gradients", "false", "false", "gradients of embeddings are exchanged whole"),
    KEY(int, "steps_per_print", "null", "console_log_interval"),
    SECTION("tensorboard", "metrics for TensorBoard", tensorboard_schema),
    SECTION("wandb", "metrics", wandb_schema),
    SECTION("comet", "metrics", comet_schema),
    SECTION("csv_monitor", "metrics", csv_schema),
    KEY(bool, "wall_clock_breakdown", "false",
        "true: cltrain.phase_times is steps_per_print, or 10 without it"),
    IGNORED(bool, "memory_breakdown", "false", "false", "cltrain plan prints the memory of a step"),
    IGNORED(bool, "dump_state", "false", "false", "use cltrain train --print-config"),
    IGNORED(map, "timers", "null", NULL, PROFILE),
    SECTION("flops_profiler", "operations and times of a step", flops_schema),
    SECTION("comms_logger", "times", comms_schema),
    SECTION("activation_checkpointing", "stored activations", activation_schema),
    SECTION("checkpoint", "checkpoints", checkpoint_schema),
    SECTION("aio", "reading and writing files", aio_schema),
    IGNORED(map, "pipeline", "null", NULL, "models are not cut into a pipeline; ranks share the batch"),
    IGNORED(bool, "zero_allow_untested_optimizer", "false", NULL, "every optimizer is sharded alike"),
    IGNORED(bool, "zero_force_ds_cpu_optimizer", "true", NULL, "the device updates the weights"),
    IGNORED(bool, "disable_allgather", "false", "false", BUCKETS),
    IGNORED(str, "seq_parallel_communication_data_type", "null", NULL, "samples are not cut among ranks"),
    IGNORED(bool, "use_data_before_expert_parallelism", "false", NULL, "there are no experts"),
    SECTION("autotuning", "search for settings", autotuning_schema),
    SECTION("nebula", "checkpoints of Azure", nebula_schema),
    SECTION("amp", "NVIDIA Apex", amp_schema),
    SECTION("elasticity", "batches for any number of ranks", elasticity_schema),
    SECTION("curriculum_learning", "growing sequences", curriculum_schema),
    SECTION("data_efficiency", "sampling by difficulty", data_efficiency_schema),
    SECTION("progressive_layer_drop", "dropped layers", layer_drop_schema),
    SECTION("eigenvalue", "eigenvalues", eigenvalue_schema),
    SECTION("quantize_training", "quantized weights", quantize_schema),
    REFUSE("compression_training", "null", "models are not compressed while they train: remove the section"),
    REFUSE("sparse_attention", "null",
           "attention is dense, with model.attn_config.sliding_window_size at "
           "most: remove the section"),
    IGNORED(bool, "graph_harvesting", "false", "false", CLT_KEY_OF_PYTORCH),
    REFUSE("tensor_parallel", "null", "weights are divided by whole tensors: use zero_optimization.stage 3"),
};
const clt_schema clt_deepspeed_schema = CLT_SCHEMA(top_keys);

void clt_deepspeed_list_keys(clt_str *out) {
    static const char *const optimizers[] = {"Adam", "Lion", "Lamb", "Adagrad", "SGD"};
    clt_schema_list(&clt_deepspeed_schema, "", out);
    for (size_t i = 0; i < CLT_COUNT_OF(optimizers); i++) {
        char *prefix = clt_format("%s.params", optimizers[i]);
        clt_schema_list(clt_deepspeed_optimizer_params(optimizers[i]), prefix, out);
        clt_free(prefix);
    }
    for (size_t i = 0; i < CLT_COUNT_OF(schedulers); i++) {
        char *prefix = clt_format("%s.params", schedulers[i].type);
        clt_schema_list(schedulers[i].params, prefix, out);
        clt_free(prefix);
    }
}
