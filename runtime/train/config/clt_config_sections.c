/* The tables of Composer's sections: callbacks, loggers, algorithms and fsdp_config. */
#include "runtime/train/config/clt_config_internal.h"

#define KEY(name, field, def, help, ...) CLT_KEY(clt_config_builder, name, field, def, help, __VA_ARGS__)
#define IGNORED(kind, name, def, same, why) CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why)
#define REFUSE(name, def, why) CLT_KEY_REFUSE(name, def, why)
/* A callback that is on as soon as it is named. */
#define CALLBACK(name, field, help, schema)                                                                  \
    CLT_KEY_SECTION(name, NULL, help, 0, &schema, .at = CLT_KEY_AT(clt_config_builder, field))

/* --- callbacks --- */

static const clt_key speed_keys[] = {
    KEY("window_size", c.callbacks.speed_window, "100",
        "steps over which the console's throughput and remaining time are measured; metrics.jsonl has those "
        "of each step"),
    IGNORED(float, "gpu_flops_available", "null", NULL, "the device's peak is measured"),
    IGNORED(str, "time_unit", "\"hours\"", "\"hours\"", "times are in hours"),
};
static const clt_key memory_keys[] = {
    IGNORED(map, "memory_keys", "null", NULL, "one value is recorded: the memory allocated on the device"),
    IGNORED(int, "dist_aggregate_batch_interval", "null", NULL, "the memory of rank 0 is recorded"),
};
static const clt_key estimator_keys[] = {
    IGNORED(int, "skip_batches", "1", NULL, "the estimate follows speed_monitor's window"),
    IGNORED(str, "time_unit", "\"hours\"", "\"hours\"", "times are in hours"),
};
#define BY_DEVIATION                                                                                         \
    "cltrain.guards.spike_threshold decides: a spike is measured in standard deviations, and one step is "   \
    "enough"
static const clt_key kill_keys[] = {
    KEY("log_only", kill_loss_spike.log_only, "true", "true: loss_spike warn; false: loss_spike stop"),
    KEY("window_size", kill_loss_spike.window_size, "100",
        "steps, as cltrain.guards.spike_window; the default leaves that key's value"),
    IGNORED(int, "patience", "4", NULL, BY_DEVIATION),
    IGNORED(float, "outlier_multiplier", "2", NULL, BY_DEVIATION),
    IGNORED(float, "loss_cap", "10", NULL, BY_DEVIATION),
};
static const clt_schema speed_schema = CLT_SCHEMA(speed_keys), memory_schema = CLT_SCHEMA(memory_keys),
                        estimator_schema = CLT_SCHEMA(estimator_keys), kill_schema = CLT_SCHEMA(kill_keys),
                        no_keys = {NULL, 0};

#define PLANNED "memory is planned before the run (cltrain plan)"
#define EVAL_METRICS "evaluation records loss, perplexity and accuracy"
#define OTHER_DATA "changing the data during a run is not supported"
static const clt_key callback_keys[] = {
    CALLBACK("speed_monitor", c.callbacks.speed_monitor, "print throughput", speed_schema),
    CALLBACK("lr_monitor", c.callbacks.lr_monitor, "print the learning rate; metrics.jsonl always has it",
             no_keys),
    CALLBACK("memory_monitor", c.callbacks.memory_monitor,
             "print the device's memory; metrics.jsonl always has it", memory_schema),
    CALLBACK("runtime_estimator", c.callbacks.runtime_estimator, "print the remaining time",
             estimator_schema),
    CALLBACK("kill_loss_spike", kill_loss_spike.given,
             "sets cltrain.guards.loss_spike; one line says how the two differ", kill_schema),
    IGNORED(map, "run_timeout", NULL, NULL,
            "it ends a process that hangs after the last step, and every wait here has a deadline "
            "(dist_timeout); to end a run by the clock set cltrain.stop_before"),
    IGNORED(
        map, "optimizer_monitor", NULL, NULL,
        "the global gradient norm is recorded (cltrain.guards.gradient_norm), norms of single tensors are "
        "not"),
    IGNORED(map, "memory_snapshot", NULL, NULL, PLANNED),
    IGNORED(map, "oom_observer", NULL, NULL, PLANNED),
    IGNORED(map, "system_metrics_monitor", NULL, NULL, "only the run's own numbers are recorded"),
    IGNORED(map, "nan_monitor", NULL, NULL,
            "cltrain.guards.nonfinite says what a loss that is not finite does; by default the run ends"),
    IGNORED(map, "scheduled_gc", NULL, NULL, "there is no garbage collector"),
    IGNORED(map, "env_logging", NULL, NULL, "checkpoints always name device, driver and version"),
    IGNORED(map, "generate_callback", NULL, NULL, "use cltrain generate on a checkpoint"),
    IGNORED(map, "eval_output_logging", NULL, NULL, EVAL_METRICS),
    IGNORED(map, "loss_perp_v_len", NULL, NULL, EVAL_METRICS),
    IGNORED(map, "fdiff_metrics", NULL, NULL, "compute differences from metrics.jsonl"),
    IGNORED(map, "mono_checkpoint_saver", NULL, NULL, CLT_CONFIG_ONE_FORM),
    IGNORED(map, "hf_checkpointer", NULL, NULL,
            "cltrain ckpt export makes a Hugging Face folder from a checkpoint"),
    IGNORED(map, "async_eval", NULL, NULL, "evaluation runs in the training process"),
    REFUSE("early_stopper", NULL, "stopping early is not supported: use max_duration"),
    REFUSE("load_checkpoint", NULL, "use load_path"),
    REFUSE("layer_freezing", NULL, "freezing during the run is not supported: use optimizer.disable_grad"),
    REFUSE("global_lr_scaling", NULL, "set optimizer.lr to change the learning rate of a resumed run"),
    REFUSE("curriculum_learning", NULL, OTHER_DATA),
    REFUSE("dataset_swap", NULL, OTHER_DATA),
    REFUSE("mbmoe_tok_per_expert", NULL, "mixture-of-experts layers are not supported"),
};
const clt_schema clt_config_callback_schema = CLT_SCHEMA(callback_keys);

/* --- loggers --- */

#define LOGGER(name)                                                                                         \
    IGNORED(map, name, NULL, NULL, "metrics go to metrics.jsonl in the run's folder and to the console")
static const clt_key logger_keys[] = {
    LOGGER("wandb"),           LOGGER("tensorboard"), LOGGER("mlflow"),       LOGGER("inmemory"),
    LOGGER("mosaicml"),        LOGGER("neptune"),     LOGGER("cometml"),      LOGGER("slack"),
    LOGGER("inmemory_logger"), LOGGER("file_logger"), LOGGER("progress_bar"), LOGGER("console"),
};
const clt_schema clt_config_logger_schema = CLT_SCHEMA(logger_keys);

/* --- algorithms --- */

static const char *const clip_types[] = {"norm", "value", NULL}; /* clt_clip_type, from CLT_CLIP_NORM */
static const clt_refusal refused_clip_types[] = {
    {"adaptive", "clipping by the norm of each tensor's weights is not supported: use norm or value"},
    {NULL, NULL}};
static const clt_key clipping_keys[] = {
    KEY("clipping_type", clip_type, CLT_KEY_REQUIRED, "norm: by the global L2 norm; value: each element",
        .choices = clip_types, .refused = refused_clip_types),
    KEY("clipping_threshold", c.clip_threshold, CLT_KEY_REQUIRED, "largest norm or absolute value"),
};
static const clt_schema clipping_schema = CLT_SCHEMA(clipping_keys);

#define OUTSIDE "a model cannot be changed from outside: set "
static const clt_key algorithm_keys[] = {
    CLT_KEY_SECTION("gradient_clipping", NULL, "clip gradients before the optimizer step", 0,
                    &clipping_schema),
    IGNORED(map, "low_precision_layernorm", NULL, NULL, "norms compute in fp32"),
    REFUSE("alibi", NULL, OUTSIDE "model.attn_config.alibi"),
    REFUSE("gated_linear_units", NULL, OUTSIDE "model.ffn_config.ffn_type: mptglu"),
};
const clt_schema clt_config_algorithm_schema = CLT_SCHEMA(algorithm_keys);

/* --- fsdp_config --- */

#define PYTORCH CLT_KEY_OF_PYTORCH
#define ONE_FORM CLT_CONFIG_ONE_FORM
#define NO_ENGINE "Transformer Engine is not used"

#define AHEAD "limit_all_gathers says how far ahead weights are gathered"

/* In the order of clt_config_sharding.c's table. */
static const char *const strategies[] = {"FULL_SHARD",   "SHARD_GRAD_OP",       "NO_SHARD",
                                         "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", NULL};
static const char *const state_types[] = {"full", "sharded", NULL};

static const clt_key fsdp_keys[] = {
    KEY("activation_checkpointing", activation_checkpointing, "false",
        "true: recompute whole blocks in the backward pass, as cltrain.recompute: blocks", .nullable = true),
    KEY("sharding_strategy", sharding_strategy, "\"FULL_SHARD\"",
        "what each rank holds only its part of; NO_SHARD: nothing (cltrain.zero_stage 0); SHARD_GRAD_OP: "
        "moments, fp32 weights and gradients (2); FULL_SHARD: the weights that the model reads, too (3); "
        "HYBRID_SHARD: as FULL_SHARD, weights inside groups of ranks, which are replicas; "
        "_HYBRID_SHARD_ZERO2: as SHARD_GRAD_OP",
        .choices = strategies, .nullable = true),
    CLT_KEY_OF(
        &clt_kind_mixed_precision, clt_config_builder, "mixed_precision", mixed_precision, "\"DEFAULT\"",
        "PURE, or a map with reduce_dtype bf16: ranks exchange gradients in bf16, with precision "
        "amp_bf16 and numerics fast; otherwise in fp32. precision decides the types of everything else",
        .nullable = true),
    IGNORED(bool, "activation_checkpointing_reentrant", "true", NULL, PYTORCH),
    IGNORED(any, "activation_checkpointing_target", "null", NULL, "whole blocks are recomputed"),
    REFUSE("activation_cpu_offload", "false",
           "activations cannot be moved to host memory: use activation_checkpointing or a smaller "
           "device_train_microbatch_size"),
    KEY("cpu_offload", cpu_offload, "false", "true: as cltrain.offload: host", .nullable = true),
    KEY("data_parallel_shard_degree", c.shard.degree, "-1",
        "ranks that one copy of the weights is sharded over, at stage 3; -1: as many as "
        "data_parallel_replicate_degree leaves; the two multiply to the number of ranks",
        .nullable = true),
    KEY("data_parallel_replicate_degree", c.shard.replicas, "null",
        "copies of the weights, with a HYBRID strategy or none; -1: as many as "
        "data_parallel_shard_degree leaves; default: 1, with a HYBRID strategy -1",
        .nullable = true),
    REFUSE("device_mesh", "null",
           "set data_parallel_shard_degree and data_parallel_replicate_degree, as Composer asks"),
    KEY("reshard_after_forward", reshard_after_forward, "true",
        "false: weights are kept from the forward to the backward pass, which makes stage 3 stage 2",
        .nullable = true),
    KEY("limit_all_gathers", c.shard.limit_gathers, "true",
        "stage 3: true: the weights of 2 blocks are gathered ahead of their use; false: of 4",
        .nullable = true),
    IGNORED(str, "backward_prefetch", "\"BACKWARD_POST\"", NULL, AHEAD),
    IGNORED(int, "backward_prefetch_limit", "1", NULL, AHEAD),
    IGNORED(bool, "forward_prefetch", "false", NULL, AHEAD),
    IGNORED(int, "forward_prefetch_limit", "1", NULL, AHEAD),
    IGNORED(any, "ignored_modules", "null", NULL, PYTORCH),
    IGNORED(any, "process_group", "null", NULL, PYTORCH),
    IGNORED(bool, "use_orig_params", "true", NULL, PYTORCH),
    IGNORED(bool, "auto_wrap", "true", NULL, PYTORCH),
    IGNORED(bool, "flatten_parameters", "true", NULL, PYTORCH),
    IGNORED(bool, "sync_module_states", "false", "true", "all ranks start with the same weights"),
    CLT_KEY_IGNORED(&clt_kind_choice, "state_dict_type", "\"full\"", "\"full\"", ONE_FORM,
                    .choices = state_types),
    IGNORED(str, "sharded_ckpt_prefix_dir", "\"ep{epoch}-ba{batch}\"", NULL, ONE_FORM),
    IGNORED(bool, "load_monolith_rank0_only", "false", NULL, ONE_FORM),
    IGNORED(any, "load_planner", "null", NULL, ONE_FORM),
    IGNORED(any, "save_planner", "null", NULL, ONE_FORM),
    IGNORED(bool, "keep_low_precision_grads", "false", "false", "gradients are kept in fp32"),
    IGNORED(bool, "te_checkpoint_wrapper", "false", "false", NO_ENGINE),
    IGNORED(bool, "te_shard_fp8_weight", "false", "false", NO_ENGINE),
    IGNORED(bool, "verbose", "false", "false", "the option -v prints more"),
};
const clt_schema clt_config_fsdp_schema = CLT_SCHEMA(fsdp_keys);
