/* The table of the top level, and those of tokenizer and cltrain. */
#include "runtime/train/config/clt_config_internal.h"

#define AT(field) offsetof(clt_config_builder, field)
#define KEY(name, field, def, help, ...) CLT_KEY(clt_config_builder, name, field, def, help, __VA_ARGS__)
#define KEY_OF(kind, name, field, def, help, ...)                                                            \
    CLT_KEY_OF(&clt_kind_##kind, clt_config_builder, name, field, def, help, __VA_ARGS__)
#define SECTION(name, def, help, base, schema, ...)                                                          \
    CLT_KEY_SECTION(name, def, help, base, &schema, __VA_ARGS__)
#define IGNORED(kind, name, def, same, why) CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why)

/* --- tokenizer --- */

#define NO_TOKENIZER "no tokenizer takes this argument"
static const char *const padding_sides[] = {"right", "left", NULL};
static const clt_key tokenizer_kwargs_keys[] = {
    KEY_OF(
        name, "padding_side", c.padding_side, "null",
        "where rows of fine-tuning data are padded; default: the tokenizer's; models are trained with right "
        "alone",
        .choices = padding_sides, .nullable = true),
    KEY("chat_template", c.chat_template, "null",
        "text of a conversation: the name of a built-in template, or the text of one of them; default: the "
        "tokenizer's, or chatml",
        .nullable = true),
    IGNORED(int, "model_max_length", "null", NULL, "max_seq_len says how long samples are"),
    IGNORED(any, "*", NULL, NULL, NO_TOKENIZER),
};
static const clt_schema tokenizer_kwargs_schema = CLT_SCHEMA(tokenizer_kwargs_keys);
static const clt_key tokenizer_keys[] = {
    KEY("name", c.tokenizer, CLT_KEY_REQUIRED,
        "bytes is built in; a path to a tokenizer.json or to its folder; a name of a hub is not fetched, "
        "which "
        "one line says: token columns need no tokenizer"),
    SECTION("kwargs", NULL, "arguments of the tokenizer", 0, tokenizer_kwargs_schema),
};
static const clt_schema tokenizer_schema = CLT_SCHEMA(tokenizer_keys);

/* --- cltrain --- */

static const char *const numerics_names[] = {"exact", "fast", NULL};
static const char *const recompute_names[] = {"none", "norms", "blocks", NULL};
static const char *const tune_names[] = {"off", "cache", "fill", NULL};
static const char *const nonfinite_names[] = {"stop", "skip", "rollback", NULL};
static const char *const spike_names[] = {"off", "warn", "skip", "stop", NULL};
static const char *const check_actions[] = {"stop", "warn", NULL};
static const char *const update_names[] = {"device", "host", NULL}; /* clt_update_place */

static const clt_key guard_keys[] = {
    KEY("nonfinite", c.guards.nonfinite, "\"stop\"",
        "what a loss or gradient that is not finite does, beside leaving the weights unchanged; stop: the "
        "run "
        "ends and names the operation; skip: the step is skipped; rollback: as skip, and after several "
        "consecutive steps back to the newest checkpoint",
        .choices = nonfinite_names),
    KEY("nonfinite_in_a_row", c.guards.nonfinite_in_a_row, "5",
        "consecutive steps after which skip ends the run and rollback goes back; 0: no limit"),
    KEY("max_rollbacks", c.guards.max_rollbacks, "2", "roll-backs after which the run ends"),
    KEY("gradient_norm", c.guards.gradient_norm, "true",
        "false: the gradient norm is computed only where clipping by it, loss_spike or amp_fp16 needs it; "
        "elsewhere only losses are checked before the weights change"),
    KEY("loss_spike", c.guards.loss_spike, "\"warn\"",
        "what a step does whose loss or gradient norm lies far above the steps before; off; warn; skip: the "
        "step is skipped; stop: the run ends before the update",
        .choices = spike_names),
    KEY("spike_window", c.guards.spike_window, "128", "steps that a spike is compared with, itself included"),
    KEY("spike_threshold", c.guards.spike_threshold, "6.0",
        "standard deviations above the mean of the window; below sqrt(spike_window - 1)"),
    KEY("replica_hash_interval", c.guards.replica_hash_interval, "100",
        "batches between two comparisons of the ranks' weights and moments; they are also compared before "
        "every checkpoint; 0: never"),
    KEY("straggler_ratio", c.guards.straggler_ratio, "1.3",
        "a rank that takes this many times the median rank's time is named after 50 steps; 0: no warnings"),
};
static const clt_schema guard_schema = CLT_SCHEMA(guard_keys);

static const char *const scale_names[] = {"pytorch", "deepspeed", "deepspeed_0", "static",
                                          NULL}; /* clt_loss_scale_kind */
static const clt_key scale_keys[] = {
    KEY("rule", c.loss_scale.kind, "\"pytorch\"",
        "how the scale changes; pytorch: GradScaler's rule; deepspeed: that of ZeRO 1 to 3; deepspeed_0: "
        "that "
        "without ZeRO, which has no hysteresis and does not end at min; static: it stays",
        .choices = scale_names),
    KEY("initial", c.loss_scale.initial, "65536.0", "first scale"),
    KEY("window", c.loss_scale.window, "null",
        "good steps between two doublings; default: 2000, deepspeed 1000", .nullable = true),
    KEY("hysteresis", c.loss_scale.hysteresis, "2", "deepspeed: overflows until the scale is halved"),
    KEY("consecutive_hysteresis", c.loss_scale.consecutive_hysteresis, "false",
        "deepspeed: only consecutive overflows count"),
    KEY("min", c.loss_scale.min, "null", "least scale; default: 2^-16, deepspeed 1", .nullable = true),
};
static const clt_schema scale_schema = CLT_SCHEMA(scale_keys);

static const clt_key check_keys[] = {
    KEY("batches", c.check_batches, "null",
        "batches that are evaluated at every save and again at a resume, at most 8; default: 1 in numerics "
        "fast, 0 in exact",
        .nullable = true),
    KEY("limit", c.check_limit, "null",
        "largest relative difference of their losses; default: 0.002 with 16-bit types, 1e-5 in fp32, either "
        "divided by the square root of a loss below 1; 0 in numerics exact",
        .nullable = true),
    KEY("action", check_action, "\"stop\"", "what happens above the limit", .choices = check_actions),
};
static const clt_schema check_schema = CLT_SCHEMA(check_keys);

static const clt_key flops_keys[] = {
    KEY("batch", c.flops_profile.batch, "0",
        "batch, counted from 1, whose floating-point operations, phases and rates are printed; it is timed "
        "as with phase_times; 0: none"),
    KEY("file", c.flops_profile.file, "null", "file that they are written to instead", .nullable = true),
};
static const clt_schema flops_schema = CLT_SCHEMA(flops_keys);

static const clt_key own_keys[] = {
    KEY_OF(strings, "device", c.devices, "null",
           "part of a device's name, or a list with one part for each node-local rank", .nullable = true),
    KEY("numerics", numerics, "null",
        "exact: the same bits on every device; fast: sums in any order, matrix units, one lane for each "
        "rank; "
        "default: exact for fp32, fast otherwise",
        .choices = numerics_names, .nullable = true),
    KEY("exact_lanes", c.exact_lanes, "null",
        "parts of a batch that are summed in a fixed tree; at least one for each rank; default: 8, with "
        "numerics exact 16, 32 or 64 from 512, 1,024 or 2,048 samples a batch on (docs/numerics.md, rule "
        "11)",
        .nullable = true),
    KEY("attention_bits", c.attention_bits, "null",
        "with precision exact8: 8, attention in 8-bit blocks, too (the default; heads of at most 256 "
        "elements), or 16",
        .nullable = true),
    KEY("stop_before", c.stop_before, "null",
        "save and exit with 75 before this: minutes from the start, or a time in seconds since 1970; needs "
        "save_folder",
        .nullable = true),
    KEY_OF(lanes, "lanes_per_rank", lanes_per_rank, "null",
           "lanes that each rank owns, as a list; default: evenly, or by measured speed where ranks have "
           "different devices; changes no bit in numerics exact",
           .nullable = true),
    KEY_OF(recompute, "recompute", recompute, "null",
           "what the backward pass computes again: none; norms: outputs of norms and activations; blocks (or "
           "true): whole blocks, as fsdp_config.activation_checkpointing; default: none for fp32, norms "
           "otherwise, but none in numerics fast where the run then takes at most a quarter of the device's "
           "memory, and with exact8 and amp_fp8, which gain more, three quarters",
           .choices = recompute_names, .nullable = true),
    KEY("offload_activations", offload_activations, "null",
        "where the inputs of blocks wait for the backward pass, with recompute: blocks, which host and file "
        "imply: none: on the device; host: in the host's memory, but for the last three; file: in a file in "
        "offload_folder; copies pass beside the computation, with the same bits; default: none, host with "
        "fsdp_config.activation_cpu_offload: true",
        .choices = clt_offload_names, .nullable = true),
    KEY_OF(stage, "zero_stage", c.shard.zero_stage, "\"auto\"",
           "what each rank holds only its part of; 0: nothing; 1: moments, with 16-bit types the fp32 "
           "weights, too; 2: gradients, too; 3: the weights that the model reads, too; auto: as "
           "fsdp_config; without it 0 on one rank, on several the lowest stage that fits: from 1, with "
           "numerics exact from 0 unless cltrain.guards.replica_hash_interval is 0",
           .nullable = true),
    KEY("offload", offload, "null",
        "where each rank keeps the moments and, with 16-bit types, the fp32 weights that it updates: none: "
        "on the device; host: in the host's memory; file: in files in offload_folder; from there they pass "
        "through the device in every step, with the same bits; default: none, host with "
        "fsdp_config.cpu_offload: true",
        .choices = clt_offload_names, .nullable = true),
    KEY("offload_folder", c.shard.offload_folder, "null",
        "folder of the files of offload: file, offload_parameters: file and so on, which is made if it is "
        "missing: on a fast local disk of each host. The files have no names and vanish with the run; a "
        "folder serves one run at a time",
        .nullable = true),
    KEY("offload_ratio", c.shard.offload_ratio, "null",
        "part of that state which is offloaded, 0 to 1; the rest stays on the device and does not pass over "
        "the link, with the same bits; default: 1, with offload: host at most what the host's memory takes",
        .nullable = true),
    KEY("offload_parameters", offload_parameters, "\"none\"",
        "where each rank keeps its part of the weights that the model reads, with zero_stage: 3; none: on "
        "the device; host: in the host's memory, file: in a file in offload_folder, from where they come to "
        "the device block by block ahead of their use, on one rank, too, with the same bits",
        .choices = clt_offload_names),
    KEY("offload_gradients", offload_gradients, "\"none\"",
        "where each rank keeps its part of the sums of gradients over microbatches, with zero_stage: 2 or 3; "
        "none: on the device; host: in the host's memory, file: in a file in offload_folder, to where those "
        "of each block go as soon as the backward pass has made them and the ranks have added them, in "
        "numerics exact with the same bits",
        .choices = clt_offload_names),
    KEY("offload_update", offload_update, "\"device\"",
        "what computes the optimizer's step of offloaded state; device: the device, through which the state "
        "passes; host: the host's cores, where the state is, with offload: host and an OpenCL driver for "
        "the CPU; then only gradients go over the link, unless they are there, and new weights come back. "
        "Numerics exact: the same bits. Not for lamb and what is in files",
        .choices = update_names),
    KEY("tune", tune, "\"cache\"",
        "kernel variants by shape; off: the tables' order; cache: what cltrain tune measured on this device; "
        "fill: also measures what is missing, in the first step, within 5 s",
        .choices = tune_names),
    KEY("mirror", c.mirror, "null",
        "folder or s3://BUCKET/PREFIX to which each new checkpoint in save_folder, metrics.jsonl, log.txt "
        "and "
        "config.yaml are copied while training continues; needs a save_folder on a file system",
        .nullable = true),
    KEY("csv", c.loggers.csv, "null", "file to which a line is appended for each step and evaluation",
        .nullable = true),
    KEY("prometheus", c.loggers.prometheus, "null",
        "file that is replaced every second with the newest metrics in Prometheus's text format",
        .nullable = true),
    KEY("phase_times", c.phase_times, "0",
        "batches between two steps whose times of forward pass, backward pass, exchange and update are "
        "printed; such a step waits for the device after each phase, with the same bits; 0: never"),
    SECTION("flops_profile", NULL, "operations and rates of one step", 0, flops_schema),
    SECTION("resume_check", NULL, "whether a checkpoint's losses are reproduced at a resume", 0,
            check_schema),
    SECTION("loss_scale", NULL, "the loss scale of amp_fp16", 0, scale_schema),
    SECTION("guards", NULL, "what watches the run", 0, guard_schema),
};
const clt_schema clt_config_own_schema = CLT_SCHEMA(own_keys);

/* --- the top level --- */

static const char *const precisions[] = {"fp32", "amp_fp16", "amp_bf16", "exact8", "amp_fp8", NULL};

#define ONE_FORM CLT_CONFIG_ONE_FORM
#define PYTORCH CLT_KEY_OF_PYTORCH
#define REFUSE(name, def, why) CLT_KEY_REFUSE(name, def, why)

static const clt_key top_keys[] = {
    KEY_OF(map, "model", model, CLT_KEY_REQUIRED, "the model"),
    SECTION("tokenizer", CLT_KEY_REQUIRED, "the tokenizer", 0, tokenizer_schema),
    SECTION("optimizer", CLT_KEY_REQUIRED, "the optimizer", AT(optimizer), clt_config_optimizer_schema),
    SECTION("scheduler", CLT_KEY_REQUIRED, "the learning rate", AT(scheduler), clt_config_scheduler_schema),
    SECTION("train_loader", CLT_KEY_REQUIRED, "the training data", AT(c.train), clt_config_train_schema),
    KEY("max_seq_len", c.max_seq_len, NULL, "tokens of a sample; must be given, except for models of images"),
    KEY_OF(time, "max_duration", c.max_duration, CLT_KEY_REQUIRED,
           "end of the run: 100ba, 1ep, 2000000tok, 5000sp"),
    KEY("global_train_batch_size", c.global_train_batch_size, CLT_KEY_REQUIRED,
        "samples of an optimizer step, over all ranks"),
    KEY_OF(microbatch, "device_train_microbatch_size", c.device_train_microbatch_size, "\"auto\"",
           "samples computed at once; auto: the largest number whose plan fits the device"),
    KEY("device_eval_batch_size", c.device_eval_batch_size, NULL,
        "samples of an evaluation batch of one rank; default: device_train_microbatch_size, 1 with auto",
        .nullable = true),
    KEY("seed", c.seed, "17", "seed of weights and dropout"),
    KEY("precision", precision, "\"amp_bf16\"",
        "fp32; amp_bf16 and amp_fp16: 16-bit activations, fp32 weights, sums, gradients and moments; "
        "amp_fp16 "
        "with a dynamic loss scale; exact8: amp_bf16 with numerics exact and the products of all Linears in "
        "8-bit blocks; amp_fp8: amp_bf16 with the products of the blocks' Linears in 8-bit floating point "
        "and "
        "delayed scaling (HYBRID, history 16, margin 0)",
        .choices = precisions),
    KEY("deepspeed", c.deepspeed, "null",
        "a ds_config.json whose values are merged into this file (docs/deepspeed.md)", .nullable = true),
    KEY("run_name", c.run_name, "null", "default: the environment's RUN_NAME, or llm", .nullable = true),
    CLT_KEY_CHECKED(&clt_kind_map, "variables", "null", "values for ${variables.x}", .nullable = true),
    KEY("accumulate_train_batch_on_tokens", c.accumulate_on_tokens, "true",
        "weigh microbatches by their targets; false: by samples"),
    KEY("train_subset_num_batches", c.train_subset_num_batches, "-1", "batches of an epoch; -1: all"),
    KEY("dist_timeout", c.dist_timeout, "600.0",
        "seconds after which a rank that does not respond counts as lost"),

    KEY_OF(time, "eval_interval", c.eval_interval, "1", "time between evaluations; 0: none"),
    KEY_OF(loaders, "eval_loader", eval_loader, "null", "evaluation data, or a list of them with labels",
           .section = &clt_config_eval_schema, .nullable = true),
    KEY_OF(loaders, "eval_loaders", eval_loaders, "null", "a list of evaluation data with labels",
           .section = &clt_config_eval_schema, .nullable = true),
    KEY("eval_first", c.eval_first, "false", "evaluate before the first step"),
    KEY("eval_subset_num_batches", c.eval_subset_num_batches, "-1", "batches of an evaluation; -1: all"),
    KEY_OF(any, "icl_tasks", icl_tasks, "null",
           "in-context-learning tasks to evaluate (docs/evaluation.md): a list, or a YAML file with one",
           .section = &clt_icl_task_schema, .nullable = true),
    KEY("icl_tasks_str", icl_tasks_str, "null", "a YAML file with icl_tasks", .nullable = true),
    KEY_OF(any, "eval_gauntlet", eval_gauntlet, "null",
           "averages of the tasks' accuracies: a map, or a YAML file with one",
           .section = &clt_gauntlet_schema, .nullable = true),
    KEY("eval_gauntlet_str", eval_gauntlet_str, "null", "a YAML file with eval_gauntlet", .nullable = true),
    KEY("icl_subset_num_batches", c.icl_subset_num_batches, "null",
        "batches of a task at most; null or -1: all", .nullable = true),
    KEY("icl_seq_len", c.icl_seq_len, "null", "tokens of a task's row; null: max_seq_len", .nullable = true),

    SECTION("loggers", "null", "where metrics go", 0, clt_config_logger_schema),
    SECTION("callbacks", "null", "what is measured and watched", 0, clt_config_callback_schema),
    SECTION("algorithms", "null", "changes to the training step", 0, clt_config_algorithm_schema),
    KEY("progress_bar", c.progress_bar, "true",
        "a progress bar while stderr is a terminal; LLM Foundry's default is false"),
    KEY("log_to_console", c.log_to_console, "true",
        "print the metrics of steps on stderr; those of evaluations are always printed"),
    KEY_OF(time, "console_log_interval", c.console_log_interval, "\"1ba\"",
           "time between two such prints, in batches or epochs"),
    KEY("log_config", c.log_config, "true", "print the configuration at the start"),
    IGNORED(str, "python_log_level", "\"debug\"", NULL, "the options -q and -v say how much is printed"),
    IGNORED(map, "metadata", "null", NULL, "it is only kept in the run's config.yaml"),
    IGNORED(bool, "flatten_metadata", "true", NULL, "it is only kept in the run's config.yaml"),

    KEY("save_folder", c.save_folder, "null",
        "where checkpoints are written, a folder or s3://BUCKET/PREFIX; default: none are written",
        .nullable = true),
    KEY("save_filename", c.save_filename, "\"ep{epoch}-ba{batch}\"",
        "name of a checkpoint; {rank} becomes 0, .pt is dropped", .nullable = true),
    KEY("save_latest_filename", c.save_latest_filename, "\"latest-rank{rank}.pt\"",
        "name of the newest one; {rank} becomes 0, .pt is dropped", .nullable = true),
    KEY_OF(time, "save_interval", c.save_interval, "\"1000ba\"", "time between checkpoints"),
    KEY("save_num_checkpoints_to_keep", c.save_num_checkpoints_to_keep, "-1",
        "older checkpoints are removed, but the newest two always stay; -1: all stay"),
    KEY("save_overwrite", c.save_overwrite, "false", "replace checkpoints of the same name"),
    KEY("save_weights_only", c.save_weights_only, "false", "checkpoints without the optimizer's state"),
    IGNORED(any, "save_ignore_keys", "null", NULL,
            "a checkpoint is always complete: use save_weights_only, or load_ignore_keys when it is loaded"),
    KEY("load_path", c.load_path, "null",
        "a checkpoint, a folder of checkpoints, a Hugging Face folder with config.json and "
        "model.safetensors, or a universal checkpoint of DeepSpeed",
        .nullable = true),
    KEY("load_weights_only", c.load_weights_only, "false", "start a new run from these weights"),
    KEY("load_strict_model_weights", c.load_strict_model_weights, "true",
        "false: a tensor that only the checkpoint or only the model has is named and skipped; shapes must "
        "agree"),
    KEY_OF(strings, "load_ignore_keys", c.load_ignore_keys, "null",
           "patterns of tensors that keep their initial values, by name or by Composer's path "
           "(state/model/..., state/optimizers/...)",
           .nullable = true),
    IGNORED(bool, "only_hf_checkpoint", "false", "false", ONE_FORM),
    IGNORED(bool, "only_composer_checkpoint", "false", NULL, ONE_FORM),
    KEY_OF(
        switch, "autoresume", autoresume, NULL,
        "resume from the newest checkpoint in save_folder; default: true, but false with save_overwrite or "
        "save_weights_only"),

    SECTION("fsdp_config", "null", "sharding and recomputation", 0, clt_config_fsdp_schema,
            .at = CLT_KEY_AT(clt_config_builder, fsdp_config)),
    IGNORED(map, "tp_config", "null", NULL,
            "weights are divided by whole tensors: cltrain.zero_stage 3 keeps a part of them on each rank, "
            "with the "
            "same result"),
    REFUSE("code_paths", "null", "Python code cannot be loaded"),
    IGNORED(int, "max_split_size_mb", "null", NULL, PYTORCH),
    IGNORED(bool, "expandable_segments", "true", NULL, PYTORCH),
    IGNORED(bool, "cuda_load_lazy", "false", NULL, PYTORCH),
    IGNORED(bool, "spin_dataloaders", "true", NULL, "a resume computes its place in the data"),
    IGNORED(map, "compile_config", "null", NULL, "kernels are always compiled for the model"),
    IGNORED(map, "profiler", "null", NULL, "use cltrain train --profile or --trace FILE"),
    REFUSE("device_train_batch_size", NULL,
           "it is global_train_batch_size divided by the ranks and must not be set"),
    REFUSE("device_train_grad_accum", NULL, "it follows from the batch sizes and must not be set"),
    REFUSE("n_gpus", NULL, "it is the number of ranks and must not be set"),
    SECTION("cltrain", NULL, "keys of cltrain itself", 0, clt_config_own_schema),
};
const clt_schema clt_config_top_schema = CLT_SCHEMA(top_keys);
