/* The table of every top-level key and of the small sections. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define NOWHERE CLT_KEY_NOWHERE
#define AT(field) offsetof(clt_config_builder, field)
#define KEY(name, type, null, def, help, field)                                                              \
    { name, type, CLT_KEY_HONOURED, null, def, help, AT(field), NULL, NULL, NULL }
#define CUSTOM(name, null, def, help, field, read)                                                           \
    { name, CLT_KEY_CUSTOM, CLT_KEY_HONOURED, null, def, help, AT(field), NULL, NULL, read }
#define SECTION(name, def, help, offset, schema)                                                             \
    { name, CLT_KEY_SECTION, CLT_KEY_HONOURED, true, def, help, offset, NULL, schema, NULL }
#define NO_EFFECT(name, def, why)                                                                            \
    { name, CLT_KEY_ANY, CLT_KEY_ACCEPTED, true, def, why, NOWHERE, NULL, NULL, NULL }
#define REFUSED(name, def, why)                                                                              \
    { name, CLT_KEY_ANY, CLT_KEY_REFUSED, true, def, why, NOWHERE, NULL, NULL, NULL }

/* --- readers --- */

clt_status clt_config_read_time(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                void *field) {
    (void)k;
    clt_time t;
    bool ok = false;
    if (json_is_string(v))
        ok = clt_time_parse(json_string_value(v), &t);
    else if (json_is_integer(v) && json_integer_value(v) >= 0) {
        t = (clt_time){.unit = CLT_TIME_EPOCH, .value = json_integer_value(v)};
        ok = t.value <= 1000000000000;
    }
    if (!ok)
        return clt_schema_fail(r, path, "must be a time such as 100ba, 1ep, 2000000tok, 5000sp or 0.1dur");
    *(clt_time *)field = t;
    return CLT_OK;
}

/* A string out of `choices`, kept as text. */
clt_status clt_config_read_name(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                void *field) {
    const char *s = json_string_value(v);
    size_t n = 0;
    while (k->choices[n]) n++;
    for (size_t i = 0; s && i < n; i++)
        if (strcmp(s, k->choices[i]) == 0) {
            *(const char **)field = k->choices[i];
            return CLT_OK;
        }
    const char *near = s ? clt_nearest(s, k->choices, n) : NULL;
    if (!s) return clt_schema_fail(r, path, "must be a name, not %s", clt_json_type_name(v));
    return clt_schema_fail(r, path, "is '%.40s', which is not known%s%s", s, near ? "; did you mean " : "",
                           near ? near : "");
}

clt_status clt_config_keep(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v, void *field) {
    (void)r;
    (void)k;
    (void)path;
    *(json_t **)field = v;
    return CLT_OK;
}

static clt_status read_microbatch(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                  void *field) {
    (void)k;
    static const double most = 1e9;
    double d = json_number_value(v);
    if (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0) {
        *(int64_t *)field = 0;
        return CLT_OK;
    }
    if (!json_is_number(v)) return clt_schema_fail(r, path, "must be a whole number of samples or auto");
    if (d < 1 || d > most || d != floor(d))
        return clt_schema_fail(r, path, "is %.17g: it must be a whole number from 1 to %.0f, or auto", d,
                               most);
    *(int64_t *)field = (int64_t)d;
    return CLT_OK;
}

static clt_status read_tristate(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                void *field) {
    (void)k;
    if (!json_is_boolean(v))
        return clt_schema_fail(r, path, "must be true or false, not %s", clt_json_type_name(v));
    *(int *)field = json_is_true(v);
    return CLT_OK;
}

/* A clt_recompute by its name; true and false are the whole blocks and nothing. */
static clt_status read_recompute(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                 void *field) {
    if (json_is_boolean(v)) {
        *(int *)field = json_is_true(v) ? CLT_RECOMPUTE_BLOCKS : CLT_RECOMPUTE_NONE;
        return CLT_OK;
    }
    const char *name;
    CLT_TRY(clt_config_read_name(r, k, path, v, &name));
    for (int i = 0; k->choices[i]; i++)
        if (strcmp(name, k->choices[i]) == 0) *(int *)field = i;
    return CLT_OK;
}

/* A string or a list of strings. */
static clt_status read_strings(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                               void *field) {
    (void)k;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
        if (!s || !*s) return clt_schema_fail(r, path, "must be a string or a list of strings");
        clt_strv_add(field, s);
    }
    return CLT_OK;
}

/* Whole numbers of at least 1. */
static clt_status read_counts(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                              void *field) {
    enum { MOST = 1024 };
    (void)k;
    clt_config *c = (clt_config *)((char *)field - offsetof(clt_config, lanes_per_rank));
    size_t n = json_array_size(v);
    if (n < 1 || n > MOST) return clt_schema_fail(r, path, "must be a list with a number for each rank");
    c->lanes_per_rank = clt_calloc(n, sizeof *c->lanes_per_rank);
    c->n_lanes_per_rank = (int)n;
    for (size_t i = 0; i < n; i++) {
        json_int_t x = json_integer_value(json_array_get(v, i));
        if (x < 1 || x > MOST)
            return clt_schema_fail(r, path, "must be a list of whole numbers from 1 on, one for each rank");
        c->lanes_per_rank[i] = (int)x;
    }
    return CLT_OK;
}

/* A callback that is on as soon as it is named; what it takes is not looked into. */
static clt_status read_present(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                               void *field) {
    (void)k;
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map such as {}");
    *(bool *)field = true;
    return CLT_OK;
}

/* --- callbacks --- */

static const clt_key speed_keys[] = {
    KEY("window_size", CLT_KEY_INT, false, "100",
        "the console's throughput and remaining time are those of so many steps; metrics.jsonl has each "
        "step's",
        c.callbacks.speed_window),
    NO_EFFECT("gpu_flops_available", "null", "the device's peak is measured"),
    NO_EFFECT("time_unit", "\"hours\"", "times are in hours"),
};
static const clt_schema speed_schema = CLT_SCHEMA(speed_keys);

static clt_status read_speed_monitor(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                     void *field) {
    (void)k;
    clt_config_builder *b = (clt_config_builder *)((char *)field - AT(c.callbacks.speed_monitor));
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map such as {window_size: 10}");
    CLT_TRY(clt_schema_read(r, &speed_schema, path, v, b));
    b->c.callbacks.speed_monitor = true;
    return CLT_OK;
}

#define MONITOR(name, help, field) CUSTOM(name, true, NULL, help, c.callbacks.field, read_present)
static const clt_key callback_keys[] = {
    {"speed_monitor", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, NULL, "throughput/... and time/...",
     AT(c.callbacks.speed_monitor), NULL, &speed_schema, read_speed_monitor},
    MONITOR("lr_monitor", "learning rates", lr_monitor),
    MONITOR("memory_monitor", "device memory", memory_monitor),
    MONITOR("runtime_estimator", "remaining time", runtime_estimator),
    NO_EFFECT("optimizer_monitor", NULL,
              "the global gradient norm is always recorded, norms of single tensors are not"),
    NO_EFFECT("memory_snapshot", NULL, "memory is planned before the run (cltrain plan)"),
    NO_EFFECT("oom_observer", NULL, "memory is planned before the run (cltrain plan)"),
    NO_EFFECT("system_metrics_monitor", NULL, "only the run's own numbers are recorded"),
    NO_EFFECT("nan_monitor", NULL, "a loss or gradient that is not finite always stops the run"),
    NO_EFFECT("scheduled_gc", NULL, "there is no garbage collector"),
    NO_EFFECT("env_logging", NULL, "the device, its driver and all versions are always recorded"),
    NO_EFFECT("generate_callback", NULL, "use cltrain generate on a checkpoint"),
    NO_EFFECT("eval_output_logging", NULL, "evaluation records loss and perplexity only"),
    NO_EFFECT("loss_perp_v_len", NULL, "evaluation records loss and perplexity only"),
    NO_EFFECT("fdiff_metrics", NULL, "differences can be computed from metrics.jsonl"),
    NO_EFFECT("mono_checkpoint_saver", NULL, "every checkpoint can be read by any number of ranks"),
    NO_EFFECT("async_eval", NULL, "evaluation runs in the training process"),
    REFUSED("hf_checkpointer", NULL, "checkpoints in Hugging Face form are not written during a run"),
    REFUSED("kill_loss_spike", NULL, "stopping at a loss spike is not supported"),
    REFUSED("early_stopper", NULL, "stopping early is not supported: use max_duration"),
    REFUSED("run_timeout", NULL, "a run is not ended by a clock: send it SIGTERM, it saves and exits 75"),
    REFUSED("load_checkpoint", NULL, "use load_path"),
    REFUSED("layer_freezing", NULL, "freezing during the run is not supported: use optimizer.disable_grad"),
    REFUSED("global_lr_scaling", NULL,
            "changing the learning rate of a resumed run is done with optimizer.lr"),
    REFUSED("curriculum_learning", NULL, "changing the data during a run is not supported"),
    REFUSED("dataset_swap", NULL, "changing the data during a run is not supported"),
    REFUSED("mbmoe_tok_per_expert", NULL, "mixture-of-experts layers are not supported"),
};
static const clt_schema callback_schema = CLT_SCHEMA(callback_keys);

/* --- loggers, algorithms, fsdp_config, tokenizer, cltrain --- */

#define LOGGER(name)                                                                                         \
    NO_EFFECT(name, NULL, "metrics go to metrics.jsonl in the run's folder and to the console")
static const clt_key logger_keys[] = {
    LOGGER("wandb"),           LOGGER("tensorboard"), LOGGER("mlflow"),       LOGGER("inmemory"),
    LOGGER("mosaicml"),        LOGGER("neptune"),     LOGGER("cometml"),      LOGGER("slack"),
    LOGGER("inmemory_logger"), LOGGER("file_logger"), LOGGER("progress_bar"), LOGGER("console"),
};
static const clt_schema logger_schema = CLT_SCHEMA(logger_keys);

static clt_status read_clip_type(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                 void *field) {
    (void)k;
    const char *s = json_string_value(v);
    if (s && strcmp(s, "adaptive") == 0)
        return clt_schema_fail(r, path, "is adaptive, which is not supported: use norm or value");
    if (!s || (strcmp(s, "norm") && strcmp(s, "value")))
        return clt_schema_fail(r, path, "must be norm or value");
    *(clt_clip_type *)field = strcmp(s, "norm") == 0 ? CLT_CLIP_NORM : CLT_CLIP_VALUE;
    return CLT_OK;
}

static const clt_key clipping_keys[] = {
    CUSTOM("clipping_type", false, CLT_KEY_REQUIRED,
           "norm: global L2 norm; value: each element; adaptive is refused", c.clip_type, read_clip_type),
    KEY("clipping_threshold", CLT_KEY_FLOAT, false, CLT_KEY_REQUIRED, "largest norm or absolute value",
        c.clip_threshold),
};
static const clt_schema clipping_schema = CLT_SCHEMA(clipping_keys);

static clt_status read_clipping(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                void *field) {
    (void)k;
    clt_config_builder *b = (clt_config_builder *)((char *)field - AT(c.clip_type));
    if (!json_is_object(v))
        return clt_schema_fail(r, path, "must be a map with clipping_type and clipping_threshold");
    CLT_TRY(clt_schema_read(r, &clipping_schema, path, v, b));
    if (!(b->c.clip_threshold > 0)) return clt_schema_fail(r, path, "needs a clipping_threshold above 0");
    return CLT_OK;
}

static const clt_key algorithm_keys[] = {
    {"gradient_clipping", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, NULL, "before the optimizer step",
     AT(c.clip_type), NULL, &clipping_schema, read_clipping},
    NO_EFFECT("low_precision_layernorm", NULL, "norms compute in fp32"),
    REFUSED("alibi", NULL, "changing a model from outside is not supported: set model.attn_config.alibi"),
    REFUSED("gated_linear_units", NULL,
            "changing a model from outside is not supported: set model.ffn_config.ffn_type mptglu"),
};
static const clt_schema algorithm_schema = CLT_SCHEMA(algorithm_keys);

static bool is_among(const char *word, const char *const *list, size_t n) {
    for (size_t i = 0; word && i < n; i++)
        if (strcmp(word, list[i]) == 0) return true;
    return false;
}
#define IS_AMONG(word, list) is_among(word, list, CLT_COUNT_OF(list))

/* Composer's FULL, DEFAULT or PURE, or a map of which reduce_dtype matters here: whether gradients may be
 * exchanged in bf16. */
static clt_status read_mixed_precision(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                       void *field) {
    static const char *const keys[] = {"param_dtype", "reduce_dtype", "buffer_dtype",
                                       "keep_low_precision_grads"};
    static const char *const wide[] = {"FULL", "DEFAULT"}, *const narrow[] = {"PURE"};
    static const char *const wide_types[] = {"fp32", "float32", "torch.float32"};
    static const char *const narrow_types[] = {"bf16", "amp_bf16", "bfloat16", "torch.bfloat16"};
    (void)k;
    if (!json_is_object(v)) {
        const char *word = json_string_value(v);
        *(bool *)field = IS_AMONG(word, narrow);
        if (*(bool *)field || IS_AMONG(word, wide)) return CLT_OK;
        return clt_schema_fail(r, path,
                               "must be FULL, DEFAULT or PURE, or a map such as {reduce_dtype: bf16}");
    }
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value) {
        if (!IS_AMONG(key, keys))
            return clt_schema_fail(r, path, "may hold param_dtype, reduce_dtype and buffer_dtype, not %s",
                                   key);
    }
    const json_t *type = json_object_get(v, "reduce_dtype");
    *(bool *)field = IS_AMONG(json_string_value(type), narrow_types);
    if (*(bool *)field || !type || json_is_null(type) || IS_AMONG(json_string_value(type), wide_types))
        return CLT_OK;
    return clt_schema_fail(r, path, "has a reduce_dtype that is neither fp32 nor bf16");
}

#define ONE_COPY "every rank holds the whole model; memory is what cltrain plan prints"
static const clt_key fsdp_keys[] = {
    KEY("activation_checkpointing", CLT_KEY_BOOL, true, "false", "recompute activations in the backward pass",
        activation_checkpointing),
    NO_EFFECT("sharding_strategy", "\"FULL_SHARD\"", ONE_COPY),
    CUSTOM("mixed_precision", true, "\"DEFAULT\"",
           "with amp_bf16 in numerics fast, PURE, or a map with reduce_dtype bf16: ranks exchange gradients "
           "in bf16; else, and "
           "with FULL or DEFAULT: in fp32. precision decides the rest",
           c.reduce_bf16, read_mixed_precision),
    NO_EFFECT("activation_checkpointing_reentrant", "false", "there is one way of recomputing"),
    NO_EFFECT("activation_checkpointing_target", "null", "whole blocks are recomputed"),
    NO_EFFECT("activation_cpu_offload", "false", "activations stay on the device"),
    NO_EFFECT("limit_all_gathers", "true", ONE_COPY),
    NO_EFFECT("backward_prefetch", "\"BACKWARD_POST\"", ONE_COPY),
    NO_EFFECT("backward_prefetch_limit", "1", ONE_COPY),
    NO_EFFECT("forward_prefetch", "false", ONE_COPY),
    NO_EFFECT("forward_prefetch_limit", "1", ONE_COPY),
    NO_EFFECT("cpu_offload", "false", ONE_COPY),
    NO_EFFECT("data_parallel_shard_degree", "-1", ONE_COPY),
    NO_EFFECT("data_parallel_replicate_degree", "null", ONE_COPY),
    NO_EFFECT("device_mesh", "null", ONE_COPY),
    NO_EFFECT("process_group", "null", ONE_COPY),
    NO_EFFECT("state_dict_type", "\"full\"", "checkpoints have one form, readable by any number of ranks"),
    NO_EFFECT("sharded_ckpt_prefix_dir", "\"ep{epoch}-ba{batch}\"",
              "checkpoints have one form, readable by any number of ranks"),
    NO_EFFECT("load_monolith_rank0_only", "false",
              "checkpoints have one form, readable by any number of ranks"),
    NO_EFFECT("load_planner", "null", "checkpoints have one form, readable by any number of ranks"),
    NO_EFFECT("save_planner", "null", "checkpoints have one form, readable by any number of ranks"),
    NO_EFFECT("sync_module_states", "false", "initial weights are the same numbers on every rank"),
    NO_EFFECT("use_orig_params", "true", ONE_COPY),
    NO_EFFECT("auto_wrap", "true", ONE_COPY),
    NO_EFFECT("flatten_parameters", "true", ONE_COPY),
    NO_EFFECT("keep_low_precision_grads", "false", "gradients are fp32"),
    NO_EFFECT("te_checkpoint_wrapper", "false", "Transformer Engine is not used"),
    NO_EFFECT("te_shard_fp8_weight", "false", "Transformer Engine is not used"),
    NO_EFFECT("verbose", "false", "use -v"),
};
static const clt_schema fsdp_schema = CLT_SCHEMA(fsdp_keys);

static const clt_key tokenizer_kwargs_keys[] = {
    {"model_max_length", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null",
     "kept in config.yaml; max_seq_len says how long samples are", NOWHERE, NULL, NULL, NULL},
    {"*", CLT_KEY_ANY, CLT_KEY_HONOURED, true, NULL, "kept in config.yaml for the tokenizer", NOWHERE, NULL,
     NULL, NULL},
};
static const clt_schema tokenizer_kwargs_schema = CLT_SCHEMA(tokenizer_kwargs_keys);
static const clt_key tokenizer_keys[] = {
    KEY("name", CLT_KEY_STR, false, CLT_KEY_REQUIRED,
        "bytes is built in; any other name is kept in config.yaml and not loaded, token columns need none",
        c.tokenizer),
    SECTION("kwargs", NULL, "arguments of the tokenizer", 0, &tokenizer_kwargs_schema),
};
static const clt_schema tokenizer_schema = CLT_SCHEMA(tokenizer_keys);

static const char *const numerics_names[] = {"exact", "fast", NULL};
static const char *const recompute_names[] = {"none", "norms", "blocks", NULL};
static const char *const tune_names[] = {"off", "cache", "fill", NULL};
static const char *const nonfinite_names[] = {"stop", "skip", "rollback", NULL};
static const char *const spike_names[] = {"off", "warn", "skip", "stop", NULL};
static const clt_key guard_keys[] = {
    {"nonfinite", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"stop\"",
     "a loss or gradient that is not finite never changes the weights; stop: the run ends and names the "
     "operation; skip: the step is left out; rollback: as skip, and after several on end back to the newest "
     "checkpoint",
     AT(c.guards.nonfinite), nonfinite_names, NULL, NULL},
    KEY("nonfinite_in_a_row", CLT_KEY_INT, false, "5",
        "steps on end after which skip ends the run and rollback goes back; 0: no limit",
        c.guards.nonfinite_in_a_row),
    KEY("max_rollbacks", CLT_KEY_INT, false, "2", "how often a run goes back; then it ends",
        c.guards.max_rollbacks),
    KEY("gradient_norm", CLT_KEY_BOOL, false, "true",
        "false: the gradient's norm is computed only where clipping by it, loss_spike or amp_fp16 needs it; "
        "elsewhere losses alone are looked at before the weights change",
        c.guards.gradient_norm),
    {"loss_spike", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"warn\"",
     "a step whose loss or gradient norm lies far above those before: off; warn; skip: the step is left out; "
     "stop: the run ends before the update",
     AT(c.guards.loss_spike), spike_names, NULL, NULL},
    KEY("spike_window", CLT_KEY_INT, false, "128", "steps that a spike is compared with",
        c.guards.spike_window),
    KEY("spike_threshold", CLT_KEY_FLOAT, false, "6.0",
        "deviations from the mean of the window; below sqrt(spike_window - 1)", c.guards.spike_threshold),
    KEY("replica_hash_interval", CLT_KEY_INT, false, "100",
        "batches after which the ranks compare hashes of weights and moments, as before every checkpoint; 0: "
        "never",
        c.guards.replica_hash_interval),
    KEY("straggler_ratio", CLT_KEY_FLOAT, false, "1.3",
        "a rank that needs this many times the median rank's time is named after 50 steps; 0: no warnings",
        c.guards.straggler_ratio),
};
static const clt_schema guard_schema = CLT_SCHEMA(guard_keys);

static const char *const check_actions[] = {"stop", "warn", NULL};
static const clt_key check_keys[] = {
    KEY("batches", CLT_KEY_INT, true, "null",
        "batches that are evaluated at every save and again at a resume, at most 8; default: 1 in numerics "
        "fast, 0 in exact",
        c.check_batches),
    KEY("limit", CLT_KEY_FLOAT, true, "null",
        "largest relative difference of their losses; default: 0.002 where 16-bit types take part, 1e-5 in "
        "fp32, either over the root of a loss below 1, 0 in numerics exact",
        c.check_limit),
    {"action", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"stop\"", "what happens above the limit",
     AT(check_action), check_actions, NULL, NULL},
};
static const clt_schema check_schema = CLT_SCHEMA(check_keys);

static const clt_key cltrain_keys[] = {
    CUSTOM("device", true, "null", "part of a device's name, or a list with one per node-local rank",
           c.devices, read_strings),
    {"numerics", CLT_KEY_CHOICE, CLT_KEY_HONOURED, true, "null",
     "exact: the same bits on every device; fast: the order of sums is free, matrix units and one lane a "
     "rank; default: exact "
     "for fp32, fast for the others",
     AT(numerics), numerics_names, NULL, NULL},
    KEY("exact_lanes", CLT_KEY_INT, false, "8",
        "parts of a batch that are summed in a fixed tree; at least the ranks", c.exact_lanes),
    KEY("stop_before", CLT_KEY_FLOAT, true, "null",
        "save and end with 75 before this: minutes from the start, or a time in seconds since 1970",
        c.stop_before),
    CUSTOM("lanes_per_rank", true, "null",
           "lanes that each rank owns, as a list; default: evenly, or by measured speed where ranks have "
           "different devices; changes "
           "no bit in numerics exact",
           c.lanes_per_rank, read_counts),
    {"recompute", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null",
     "what the backward pass computes again: none; norms: outputs of norms and activations; blocks (or "
     "true): whole blocks, as "
     "fsdp_config.activation_checkpointing; default: none for fp32, norms for the others, "
     "but none in numerics fast on a GPU of which the run then takes at most a quarter",
     AT(recompute), recompute_names, NULL, read_recompute},
    {"tune", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"cache\"",
     "kernel variants by shape: off: the tables' order; cache: what cltrain tune measured on this device; "
     "fill: "
     "also measures what is missing, in the first step, within 5 s",
     AT(tune), tune_names, NULL, NULL},
    SECTION("resume_check", NULL, "whether a checkpoint's losses come out again", 0, &check_schema),
    SECTION("guards", NULL, "what watches the run", 0, &guard_schema),
};
static const clt_schema cltrain_schema = CLT_SCHEMA(cltrain_keys);

/* --- the top level --- */

static const char *const precisions[] = {"fp32", "amp_fp16", "amp_bf16", "amp_fp8", NULL};

static const clt_key top_keys[] = {
    CUSTOM("model", false, CLT_KEY_REQUIRED, "the model", model, clt_config_keep),
    SECTION("tokenizer", CLT_KEY_REQUIRED, "the tokenizer", 0, &tokenizer_schema),
    SECTION("optimizer", CLT_KEY_REQUIRED, "the optimizer", AT(optimizer), &clt_config_optimizer_schema),
    SECTION("scheduler", CLT_KEY_REQUIRED, "the learning rate", AT(scheduler), &clt_config_scheduler_schema),
    SECTION("train_loader", CLT_KEY_REQUIRED, "the training data", AT(c.train), &clt_config_loader_schema),
    KEY("max_seq_len", CLT_KEY_INT, false, CLT_KEY_REQUIRED, "tokens of a sample", c.max_seq_len),
    CUSTOM("max_duration", false, CLT_KEY_REQUIRED, "end of the run: 100ba, 1ep, 2000000tok, 5000sp",
           c.max_duration, clt_config_read_time),
    KEY("global_train_batch_size", CLT_KEY_INT, false, CLT_KEY_REQUIRED,
        "samples of an optimizer step, over all ranks", c.global_train_batch_size),
    CUSTOM("device_train_microbatch_size", false, "\"auto\"",
           "samples computed at once; auto: the largest plan that fits", c.device_train_microbatch_size,
           read_microbatch),
    KEY("device_eval_batch_size", CLT_KEY_INT, false, CLT_KEY_REQUIRED,
        "samples of an evaluation batch of one rank", c.device_eval_batch_size),
    KEY("seed", CLT_KEY_INT, false, "17", "of weights and dropout", c.seed),
    {"precision", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"amp_bf16\"",
     "fp32; amp_bf16 and amp_fp16: 16-bit activations, fp32 weights, sums, gradients and moments, amp_fp16 "
     "with a dynamic loss "
     "scale; amp_fp8 is refused",
     AT(precision), precisions, NULL, NULL},
    KEY("run_name", CLT_KEY_STR, true, "null", "RUN_NAME of the environment, or llm, unless given",
        c.run_name),
    {"variables", CLT_KEY_MAP, CLT_KEY_HONOURED, true, "null", "values for ${variables.x}", NOWHERE, NULL,
     NULL, NULL},
    KEY("accumulate_train_batch_on_tokens", CLT_KEY_BOOL, false, "true",
        "weigh microbatches by their targets; false: by samples", c.accumulate_on_tokens),
    KEY("train_subset_num_batches", CLT_KEY_INT, false, "-1", "batches of an epoch; -1: all",
        c.train_subset_num_batches),
    KEY("dist_timeout", CLT_KEY_FLOAT, false, "600.0", "seconds after which a silent rank counts as lost",
        c.dist_timeout),

    CUSTOM("eval_interval", false, "1", "time between evaluations; 0: none", c.eval_interval,
           clt_config_read_time),
    {"eval_loader", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null",
     "evaluation data, or a list of them with labels", AT(eval_loader), NULL, &clt_config_loader_schema,
     clt_config_keep},
    {"eval_loaders", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null", "a list of evaluation data with labels",
     AT(eval_loaders), NULL, &clt_config_loader_schema, clt_config_keep},
    KEY("eval_first", CLT_KEY_BOOL, false, "false", "evaluate before the first step", c.eval_first),
    KEY("eval_subset_num_batches", CLT_KEY_INT, false, "-1", "batches of an evaluation; -1: all",
        c.eval_subset_num_batches),
    REFUSED("icl_tasks", "null", "in-context learning tasks are not supported: leave them out"),
    REFUSED("icl_tasks_str", "null", "in-context learning tasks are not supported: leave them out"),
    REFUSED("eval_gauntlet", "null", "in-context learning tasks are not supported: leave them out"),
    REFUSED("eval_gauntlet_str", "null", "in-context learning tasks are not supported: leave them out"),
    NO_EFFECT("icl_subset_num_batches", "null", "there are no in-context learning tasks"),
    NO_EFFECT("icl_seq_len", "null", "there are no in-context learning tasks"),

    SECTION("loggers", "null", "where metrics go", 0, &logger_schema),
    SECTION("callbacks", "null", "what is measured", 0, &callback_schema),
    SECTION("algorithms", "null", "changes to the training step", 0, &algorithm_schema),
    NO_EFFECT("progress_bar", "false", "a bar is drawn whenever stderr is a terminal"),
    KEY("log_to_console", CLT_KEY_BOOL, false, "true", "metrics on stderr", c.log_to_console),
    CUSTOM("console_log_interval", false, "\"1ba\"", "in batches or epochs", c.console_log_interval,
           clt_config_read_time),
    KEY("log_config", CLT_KEY_BOOL, false, "true", "print the configuration at the start", c.log_config),
    NO_EFFECT("python_log_level", "\"debug\"", "use -q and -v"),
    NO_EFFECT("metadata", "null", "it is kept in the run's config.yaml only"),
    NO_EFFECT("flatten_metadata", "true", "metadata is kept in the run's config.yaml only"),

    KEY("save_folder", CLT_KEY_STR, true, "null", "where checkpoints go; none are written without it",
        c.save_folder),
    KEY("save_filename", CLT_KEY_STR, true, "\"ep{epoch}-ba{batch}\"",
        "name of a checkpoint; {rank} becomes 0, .pt is dropped", c.save_filename),
    KEY("save_latest_filename", CLT_KEY_STR, true, "\"latest-rank{rank}.pt\"",
        "name of the newest one; {rank} becomes 0, .pt is dropped", c.save_latest_filename),
    CUSTOM("save_interval", false, "\"1000ba\"", "time between checkpoints", c.save_interval,
           clt_config_read_time),
    KEY("save_num_checkpoints_to_keep", CLT_KEY_INT, false, "-1",
        "older ones are removed, two always stay; -1: all", c.save_num_checkpoints_to_keep),
    KEY("save_overwrite", CLT_KEY_BOOL, false, "false", "replace checkpoints that are there",
        c.save_overwrite),
    KEY("save_weights_only", CLT_KEY_BOOL, false, "false", "no optimizer state", c.save_weights_only),
    REFUSED("save_ignore_keys", "null", "a checkpoint is always whole: use save_weights_only"),
    KEY("load_path", CLT_KEY_STR, true, "null",
        "a checkpoint, a folder of checkpoints, or a Hugging Face folder with config.json and "
        "model.safetensors",
        c.load_path),
    KEY("load_weights_only", CLT_KEY_BOOL, false, "false", "start anew from these weights",
        c.load_weights_only),
    KEY("load_strict_model_weights", CLT_KEY_BOOL, false, "true",
        "false: tensors that are missing there or here are only named; shapes must agree",
        c.load_strict_model_weights),
    CUSTOM(
        "load_ignore_keys", true, "null",
        "patterns of tensors that keep their initial values, by name or by Composer's path (state/model/..., "
        "state/optimizers/...)",
        c.load_ignore_keys, read_strings),
    NO_EFFECT("only_hf_checkpoint", "false", "checkpoints have one form"),
    NO_EFFECT("only_composer_checkpoint", "false", "checkpoints have one form"),
    CUSTOM("autoresume", false, NULL,
           "go on from the newest checkpoint in save_folder; on unless save_overwrite or save_weights_only "
           "is set",
           autoresume, read_tristate),

    SECTION("fsdp_config", "null", "sharding", 0, &fsdp_schema),
    REFUSED("tp_config", "null", "tensor parallelism is not supported"),
    REFUSED("code_paths", "null", "Python code cannot be loaded"),
    NO_EFFECT("max_split_size_mb", "null", "it is a setting of CUDA's allocator in PyTorch"),
    NO_EFFECT("expandable_segments", "true", "it is a setting of CUDA's allocator in PyTorch"),
    NO_EFFECT("cuda_load_lazy", "false", "it is a setting of CUDA"),
    NO_EFFECT("spin_dataloaders", "true", "the position in the data is computed, nothing is replayed"),
    NO_EFFECT("compile_config", "null", "kernels are always compiled for the model"),
    NO_EFFECT("profiler", "null", "use cltrain train --profile or --trace FILE"),
    REFUSED("device_train_batch_size", NULL,
            "it is global_train_batch_size over the ranks and must not be set"),
    REFUSED("device_train_grad_accum", NULL, "it follows from the batch sizes and must not be set"),
    REFUSED("n_gpus", NULL, "it is the number of ranks and must not be set"),
    SECTION("cltrain", NULL, "what only this program knows", 0, &cltrain_schema),
};
const clt_schema clt_config_top_schema = CLT_SCHEMA(top_keys);
