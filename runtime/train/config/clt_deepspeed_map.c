/* From DeepSpeed's keys to those of the YAML, section by section. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_deepspeed_internal.h"

static const char zero_key[] = "zero_optimization.stage", train_key[] = "train_batch_size",
                  micro_key[] = "train_micro_batch_size_per_gpu", steps_key[] = "gradient_accumulation_steps",
                  batch_key[] = "global_train_batch_size", microbatch_key[] = "device_train_microbatch_size";

static void remark(clt_deepspeed *d, char *text) {
    clt_strv_add_owned(&d->c->remarks, text);
}

/* --- batches --- */

/* A number of the triangle from the file, or from the YAML's key. */
static bool take_number(const clt_deepspeed *d, const char *from, const char *to, int64_t *out) {
    const json_t *v = clt_deepspeed_get(d, from);
    if (!v && to) v = clt_config_value(d->c, to);
    if (!json_is_number(v)) return false;
    *out = (int64_t)json_number_value(v);
    return true;
}

/* "key 'K' (place) N" for one side of the triangle. */
static void describe(const clt_deepspeed *d, const char *from, const char *to, int64_t value, clt_str *out) {
    const bool own = clt_deepspeed_get(d, from) != NULL;
    char *place = own ? clt_yaml_place(d->file, from) : clt_yaml_place(d->c->yaml, to);
    clt_str_addf(out, "%skey '%s' (%s) is %lld", out->len ? ", " : "", own ? from : to, place,
                 (long long)value);
    clt_free(place);
}

static clt_status fail_batch(clt_deepspeed *d, const clt_deepspeed_batch *given, const char *why) {
    clt_str text = {0};
    clt_str_add(&text, "");
    if (given->has_train) describe(d, train_key, batch_key, given->train, &text);
    if (given->has_micro) describe(d, micro_key, microbatch_key, given->micro, &text);
    if (given->has_accumulation) describe(d, steps_key, steps_key, given->accumulation, &text);
    clt_status st =
        clt_error(d->r.status,
                  "%s: train_batch_size %s (%lld rank%s)%s%s; give two of the three numbers that "
                  "fit the number of ranks",
                  d->path, why, (long long)d->ranks, d->ranks == 1 ? "" : "s", text.len ? ": " : "", text.s);
    clt_str_free(&text);
    return st;
}

static clt_status map_batch(clt_deepspeed *d) {
    clt_deepspeed_batch b = {0};
    if (clt_deepspeed_true(d, "elasticity.enabled")) return clt_deepspeed_map_elastic(d);
    if (!clt_deepspeed_get(d, train_key) && !clt_deepspeed_get(d, micro_key) &&
        !clt_deepspeed_get(d, steps_key) && clt_config_given(d->c, batch_key))
        return CLT_OK; /* all of it is the YAML's */
    b.has_train = take_number(d, train_key, batch_key, &b.train);
    b.has_micro = take_number(d, micro_key, microbatch_key, &b.micro);
    b.has_accumulation = take_number(d, steps_key, NULL, &b.accumulation);
    const clt_deepspeed_batch given = b;
    const char *why = clt_deepspeed_complete(&b, d->ranks);
    if (why) return fail_batch(d, &given, why);
    CLT_TRY(clt_deepspeed_put(d, clt_deepspeed_get(d, train_key) ? train_key : micro_key, batch_key,
                              json_integer(b.train)));
    return clt_deepspeed_put(d, clt_deepspeed_get(d, micro_key) ? micro_key : train_key, microbatch_key,
                             json_integer(b.micro));
}

/* --- types --- */

static clt_status map_precision(clt_deepspeed *d) {
    static const char fp16[] = "fp16.enabled", to[] = "precision";
    const char *bf16 = clt_deepspeed_get(d, "bf16") ? "bf16.enabled" : "bfloat16.enabled";
    const bool half = clt_deepspeed_true(d, fp16), brain = clt_deepspeed_true(d, bf16);
    if (half && brain)
        return clt_schema_fail(&d->r, fp16, "and key '%s' are both true: a run has one type, set one of them",
                               bf16);
    if (half) return clt_deepspeed_put(d, fp16, to, json_string("amp_fp16"));
    if (brain) return clt_deepspeed_put(d, bf16, to, json_string("amp_bf16"));
    const json_t *have = clt_config_value(d->c, to);
    const char *precision = json_is_string(have) ? json_string_value(have) : "";
    if (clt_deepspeed_get(d, fp16) && !strcmp(precision, "amp_fp16"))
        return clt_deepspeed_contradiction(d, fp16, to, "false is another precision than amp_fp16");
    if (clt_deepspeed_get(d, bf16) && !strcmp(precision, "amp_bf16"))
        return clt_deepspeed_contradiction(d, bf16, to, "false is another precision than amp_bf16");
    if (have || !(clt_deepspeed_get(d, fp16) || clt_deepspeed_get(d, bf16)))
        return clt_deepspeed_fill(d, fp16, to, json_string("fp32"));
    return clt_deepspeed_put(d, clt_deepspeed_get(d, fp16) ? fp16 : bf16, to, json_string("fp32"));
}

/* The rule of fp16 runs, with DeepSpeed's defaults. */
static clt_status map_scale(clt_deepspeed *d) {
    static const char scale[] = "fp16.loss_scale", power[] = "fp16.initial_scale_power",
                      rule[] = "cltrain.loss_scale.rule", initial[] = "cltrain.loss_scale.initial";
    static const char *const same[][2] = {
        {"fp16.loss_scale_window", "cltrain.loss_scale.window"},
        {"fp16.hysteresis", "cltrain.loss_scale.hysteresis"},
        {"fp16.consecutive_hysteresis", "cltrain.loss_scale.consecutive_hysteresis"},
        {"fp16.min_loss_scale", "cltrain.loss_scale.min"}};
    const double fixed = clt_deepspeed_number(d, scale, 0), start = clt_deepspeed_number(d, power, 16);
    if (!clt_deepspeed_true(d, "fp16.enabled")) return CLT_OK;
    if (fixed < 0) return clt_schema_fail(&d->r, scale, "is %g: it must be 0 (dynamic) or above", fixed);
    if (fixed > 0) {
        CLT_TRY(clt_deepspeed_put(d, scale, rule, json_string("static")));
        return clt_deepspeed_put(d, scale, initial, json_real(fixed));
    }
    if (!(start >= 0 && start <= 127))
        return clt_schema_fail(&d->r, power, "is %g: it must be 0 to 127", start);
    const bool zero = clt_deepspeed_number(d, zero_key, 0) > 0;
    CLT_TRY(clt_deepspeed_put(d, "fp16.enabled", rule, json_string(zero ? "deepspeed" : "deepspeed_0")));
    CLT_TRY(clt_deepspeed_put(d, power, initial, json_real(ldexp(1.0, (int)start))));
    for (size_t i = 0; i < CLT_COUNT_OF(same); i++) {
        const json_t *v = clt_deepspeed_get(d, same[i][0]);
        if (v) CLT_TRY(clt_deepspeed_put(d, same[i][0], same[i][1], json_deep_copy(v)));
    }
    return CLT_OK;
}

static clt_status map_exchange(clt_deepspeed *d) {
    static const char from[] = "communication_data_type", to[] = "fsdp_config.mixed_precision.reduce_dtype";
    if (strcmp(clt_deepspeed_text(d, from, ""), "bf16") != 0) return CLT_OK;
    const json_t *have = clt_config_value(d->c, "fsdp_config.mixed_precision");
    if (json_is_string(have) && strcmp(json_string_value(have), "PURE") != 0)
        return clt_deepspeed_contradiction(d, from, "fsdp_config.mixed_precision",
                                           "bf16 is asked for by PURE or reduce_dtype bf16");
    return json_is_string(have) ? CLT_OK : clt_deepspeed_put(d, from, to, json_string("bf16"));
}

/* --- clipping --- */

static clt_status map_clipping(clt_deepspeed *d) {
    static const char from[] = "gradient_clipping", to[] = "algorithms.gradient_clipping";
    const bool own = clt_config_given(d->c, to);
    const bool null = json_is_null(json_object_get(d->values, from));
    const json_t *v = clt_deepspeed_get(d, from);
    if (!v && (own || null)) return CLT_OK;
    const double norm = v ? json_number_value(v) : 1.0;
    if (!(norm > 0))
        return own ? clt_deepspeed_contradiction(d, from, to, "0 turns clipping off; remove one of them")
                   : CLT_OK;
    if (!v)
        remark(d, clt_format("%s has no gradient_clipping: the gradient's norm is clipped to 1, DeepSpeed "
                             "0.19's default; 0.16 does not clip: set it to 0 for that",
                             d->path));
    CLT_TRY(clt_deepspeed_put(d, from, "algorithms.gradient_clipping.clipping_type", json_string("norm")));
    return clt_deepspeed_put(d, from, "algorithms.gradient_clipping.clipping_threshold", json_real(norm));
}

/* --- sharding --- */

static clt_status map_stage(clt_deepspeed *d, int stage) {
    static const char to[] = "cltrain.zero_stage";
    if (clt_deepspeed_get(d, zero_key)) return clt_deepspeed_put(d, zero_key, to, json_integer(stage));
    return clt_config_given(d->c, "fsdp_config") ? CLT_OK
                                                 : clt_deepspeed_fill(d, zero_key, to, json_integer(0));
}

static const char optimizer_key[] = "zero_optimization.offload_optimizer.device",
                  optimizer_path[] = "zero_optimization.offload_optimizer.nvme_path",
                  group_key[] = "zero_optimization.zero_hpz_partition_size";

static bool is_file(const char *device) {
    return !strcmp(device, "nvme");
}

static bool is_offload(const char *device) {
    return !strcmp(device, "cpu") || is_file(device);
}

/* In the words of cltrain.offload. */
static const char *place_of(const char *device) {
    return is_file(device) ? "file" : is_offload(device) ? "host" : "none";
}

/* Sums of gradients, which DeepSpeed keeps beside offloaded state where it shards gradients. */
static clt_status map_gradients(clt_deepspeed *d, int stage, const char *from, const char *device) {
    return stage < 2 ? CLT_OK
                     : clt_deepspeed_put(d, from, "cltrain.offload_gradients", json_string(place_of(device)));
}

/* The folder of what `from` has in files. */
static clt_status map_folder(clt_deepspeed *d, const char *from, const char *path) {
    const char *folder = clt_deepspeed_text(d, path, NULL);
    if (!folder) return clt_schema_fail(&d->r, from, "is nvme, which needs a folder: set nvme_path");
    return clt_deepspeed_put(d, path, "cltrain.offload_folder", json_string(folder));
}

/* The folder of weights in files. There is one for all files, and state comes first. */
static clt_status map_weights_folder(clt_deepspeed *d, const char *from) {
    static const char path[] = "zero_optimization.offload_param.nvme_path";
    const char *own = clt_deepspeed_text(d, path, ""), *other = clt_deepspeed_text(d, optimizer_path, "");
    if (!is_file(clt_deepspeed_text(d, optimizer_key, "none"))) return map_folder(d, from, path);
    if (strcmp(own, other))
        clt_notices_add(d->r.notices, path, "all files are in the folder of offload_optimizer");
    return CLT_OK;
}

/* Weights that the model reads. */
static clt_status map_parameters(clt_deepspeed *d, int stage) {
    static const char device[] = "zero_optimization.offload_param.device";
    const char *name = clt_deepspeed_text(d, device, NULL);
    if (!name) return CLT_OK;
    if (stage != 3) {
        clt_notices_add(d->r.notices, device, "DeepSpeed offloads weights at stage 3 alone, too");
        return CLT_OK;
    }
    if (is_file(name) && clt_deepspeed_number(d, group_key, 1) > 1) {
        clt_notices_add(d->r.notices, device,
                        "groups of ranks (zero_hpz_partition_size) hand each other weights in memory: the "
                        "weights that the model reads are in the host's memory, not in files");
        name = "cpu";
    }
    if (is_file(name)) CLT_TRY(map_weights_folder(d, device));
    return clt_deepspeed_put(d, device, "cltrain.offload_parameters", json_string(place_of(name)));
}

static clt_status map_offload(clt_deepspeed *d, int stage) {
    static const char ratio[] = "zero_optimization.offload_optimizer.ratio",
                      old[] = "zero_optimization.cpu_offload", to[] = "cltrain.offload";
    const bool was = clt_deepspeed_true(d, old);
    if (was && clt_deepspeed_get(d, "zero_optimization.offload_optimizer"))
        return clt_schema_fail(&d->r, old,
                               "is the old name of offload_optimizer, which is given, too: remove it");
    const double part = clt_deepspeed_number(d, ratio, 1.0);
    if (part < 1.0 && stage != 3)
        return clt_schema_fail(&d->r, ratio, "is below 1, which needs stage 3: set it to 1");
    const char *from = was ? old : optimizer_key,
               *name = was ? "cpu" : clt_deepspeed_text(d, optimizer_key, NULL);
    if (!name) return CLT_OK;
    if (is_offload(name) && stage == 0) {
        clt_notices_add(d->r.notices, from, "DeepSpeed offloads from stage 1 on, too");
        return CLT_OK;
    }
    if (is_offload(name) && part < 1.0)
        CLT_TRY(clt_deepspeed_put(d, ratio, "cltrain.offload_ratio", json_real(part)));
    if (is_offload(name)) CLT_TRY(map_gradients(d, stage, from, name));
    if (is_file(name)) CLT_TRY(map_folder(d, from, optimizer_path));
    return clt_deepspeed_put(d, from, to, json_string(place_of(name)));
}

static clt_status map_sharding(clt_deepspeed *d) {
    static const char degree[] = "fsdp_config.data_parallel_shard_degree",
                      replicas[] = "fsdp_config.data_parallel_replicate_degree";
    const double stage = clt_deepspeed_number(d, zero_key, 0), group = clt_deepspeed_number(d, group_key, 1);
    if (!(stage >= 0 && stage <= CLT_MOST_STAGE))
        return clt_schema_fail(&d->r, zero_key, "is %g: it must be 0, 1, 2 or 3", stage);
    CLT_TRY(map_stage(d, (int)stage));
    CLT_TRY(map_parameters(d, (int)stage));
    CLT_TRY(map_offload(d, (int)stage));
    if (group <= 1) return CLT_OK;
    if (stage < 3) {
        clt_notices_add(d->r.notices, group_key, "it belongs to stage 3");
        return CLT_OK;
    }
    CLT_TRY(clt_deepspeed_put(d, group_key, degree, json_integer((json_int_t)group)));
    return clt_config_given(d->c, replicas) ? CLT_OK
                                            : clt_deepspeed_put(d, group_key, replicas, json_integer(-1));
}

/* --- metrics --- */

static clt_status map_steps(clt_deepspeed *d) {
    static const char steps[] = "steps_per_print";
    const double every = clt_deepspeed_number(d, steps, 0);
    if (every < 1) return CLT_OK;
    char *interval = clt_format("%lldba", (long long)every);
    clt_status st = clt_deepspeed_put(d, steps, "console_log_interval", json_string(interval));
    clt_free(interval);
    return st;
}

static clt_status map_tensorboard(clt_deepspeed *d) {
    static const char board[] = "tensorboard.enabled", output[] = "tensorboard.output_path";
    if (!clt_deepspeed_true(d, board)) return CLT_OK;
    const char *folder = clt_deepspeed_text(d, output, "");
    if (!*folder)
        return clt_config_given(d->c, "loggers.tensorboard")
                   ? CLT_OK
                   : clt_deepspeed_put(d, board, "loggers.tensorboard", json_object());
    char *path = clt_path_join(folder, clt_deepspeed_text(d, "tensorboard.job_name", "DeepSpeedJobName"));
    clt_status st = clt_deepspeed_put(d, output, "loggers.tensorboard.log_dir", json_string(path));
    clt_free(path);
    return st;
}

/* How often DeepSpeed prints is its default of steps_per_print in its documentation. */
static clt_status map_breakdown(clt_deepspeed *d) {
    static const char on[] = "wall_clock_breakdown", steps[] = "steps_per_print",
                      to[] = "cltrain.phase_times";
    enum { DEFAULT_STEPS = 10 };
    const json_t *have = clt_config_value(d->c, to);
    const double every = clt_deepspeed_number(d, steps, 0);
    if (!clt_deepspeed_true(d, on)) return CLT_OK;
    if (json_is_number(have) && json_number_value(have) == 0)
        return clt_deepspeed_contradiction(d, on, to, "0 times no batch; remove one of them");
    if (every >= 1) return clt_deepspeed_put(d, steps, to, json_integer((json_int_t)every));
    return have && !json_is_null(have) ? CLT_OK : clt_deepspeed_put(d, on, to, json_integer(DEFAULT_STEPS));
}

static clt_status map_flops(clt_deepspeed *d) {
    static const char on[] = "flops_profiler.enabled", step[] = "flops_profiler.profile_step",
                      file[] = "flops_profiler.output_file", to[] = "cltrain.flops_profile.batch";
    const json_t *have = clt_config_value(d->c, to);
    const double at = clt_deepspeed_number(d, step, 1);
    const char *path = clt_deepspeed_text(d, file, "");
    if (!clt_deepspeed_true(d, on)) return CLT_OK;
    if (at < 0) return clt_schema_fail(&d->r, step, "is %.0f: it must be at least 0", at);
    if (*path) CLT_TRY(clt_deepspeed_put(d, file, "cltrain.flops_profile.file", json_string(path)));
    if (json_is_number(have) && json_number_value(have) == 0)
        return clt_deepspeed_contradiction(d, on, to, "0 profiles no batch; remove one of them");
    if (clt_deepspeed_get(d, step)) return clt_deepspeed_put(d, step, to, json_integer((json_int_t)at + 1));
    return have && !json_is_null(have) ? CLT_OK
                                       : clt_deepspeed_put(d, on, to, json_integer((json_int_t)at + 1));
}

/* Without output_path the folder is in the current one, as in DeepSpeed, unless the YAML names the file. */
static clt_status map_csv(clt_deepspeed *d) {
    static const char on[] = "csv_monitor.enabled", output[] = "csv_monitor.output_path",
                      to[] = "cltrain.csv";
    if (!clt_deepspeed_true(d, on)) return CLT_OK;
    const char *folder = clt_deepspeed_text(d, output, "");
    if (!*folder && clt_config_given(d->c, to)) return CLT_OK;
    char *job = clt_path_join(folder, clt_deepspeed_text(d, "csv_monitor.job_name", "DeepSpeedJobName")),
         *path = clt_path_join(job, "metrics.csv");
    clt_status st = clt_deepspeed_put(d, *folder ? output : on, to, json_string(path));
    if (st == CLT_OK)
        remark(d, clt_format("csv_monitor writes one table, %s, with a column for each metric; DeepSpeed "
                             "writes a file for each",
                             path));
    clt_free(job);
    clt_free(path);
    return st;
}

/* DeepSpeed's function is called by models that recompute; here the key asks for that, too. */
static clt_status map_activations(clt_deepspeed *d) {
    static const char from[] = "activation_checkpointing.cpu_checkpointing";
    if (!clt_deepspeed_true(d, from)) return CLT_OK;
    return clt_deepspeed_put(d, from, "cltrain.offload_activations", json_string("host"));
}

clt_status clt_deepspeed_map(clt_deepspeed *d) {
    CLT_TRY(map_batch(d));
    CLT_TRY(map_precision(d));
    CLT_TRY(map_scale(d));
    CLT_TRY(map_exchange(d));
    CLT_TRY(map_clipping(d));
    CLT_TRY(map_sharding(d));
    CLT_TRY(map_activations(d));
    CLT_TRY(map_steps(d));
    CLT_TRY(map_tensorboard(d));
    CLT_TRY(map_csv(d));
    CLT_TRY(map_breakdown(d));
    CLT_TRY(map_flops(d));
    CLT_TRY(clt_deepspeed_map_optimizer(d));
    return clt_deepspeed_map_scheduler(d);
}
