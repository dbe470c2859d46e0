#include "runtime/train/config/clt_config.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_config_internal.h"

static char *place_of(void *ctx, const char *path) {
    const clt_config *c = ctx;
    return clt_yaml_place(c->yaml, path);
}

static char *key_place_of(void *ctx, const char *path) {
    const clt_config *c = ctx;
    return clt_yaml_key_place(c->yaml, path);
}

/* --- rules that go across keys --- */

static clt_status check_guards(clt_schema_reader *r, const clt_guard_config *g) {
    double most = sqrt((double)g->spike_window - 1);
    if (!(g->spike_threshold > 0 && g->spike_threshold < most))
        return clt_schema_fail(r, "cltrain.guards.spike_threshold",
                               "is %g: it must be above 0 and below %.3g, which is as far as one of "
                               "spike_window %lld values can be from their mean",
                               g->spike_threshold, most, (long long)g->spike_window);
    if (!(g->straggler_ratio == 0 || g->straggler_ratio > 1))
        return clt_schema_fail(r, "cltrain.guards.straggler_ratio", "is %g: it must be above 1, or 0",
                               g->straggler_ratio);
    return CLT_OK;
}

static clt_status check_counts(clt_schema_reader *r, const clt_config *c) {
    const struct {
        const char *key;
        int64_t v, least, most;
    } counts[] = {{"max_seq_len", c->max_seq_len, 2, 1 << 24},
                  {"global_train_batch_size", c->global_train_batch_size, 1, 1 << 30},
                  {"device_eval_batch_size", c->device_eval_batch_size, 1, 1 << 30},
                  {"train_subset_num_batches", c->train_subset_num_batches, -1, INT64_MAX},
                  {"eval_subset_num_batches", c->eval_subset_num_batches, -1, INT64_MAX},
                  {"save_num_checkpoints_to_keep", c->save_num_checkpoints_to_keep, -1, INT64_MAX},
                  {"cltrain.exact_lanes", c->exact_lanes, 1, CLT_MOST_LANES},
                  {"callbacks.speed_monitor.window_size", c->callbacks.speed_window, 1, 1 << 20},
                  {"cltrain.guards.nonfinite_in_a_row", c->guards.nonfinite_in_a_row, 0, INT64_MAX},
                  {"cltrain.guards.max_rollbacks", c->guards.max_rollbacks, 0, INT64_MAX},
                  {"cltrain.guards.spike_window", c->guards.spike_window, 3, CLT_SPIKE_MAX},
                  {"cltrain.guards.replica_hash_interval", c->guards.replica_hash_interval, 0, INT64_MAX}};
    for (size_t i = 0; i < CLT_COUNT_OF(counts); i++) {
        if (counts[i].v < counts[i].least)
            return clt_schema_fail(r, counts[i].key, "is %lld: it must be at least %lld",
                                   (long long)counts[i].v, (long long)counts[i].least);
        if (counts[i].v > counts[i].most)
            return clt_schema_fail(r, counts[i].key, "is %lld: it must be at most %lld",
                                   (long long)counts[i].v, (long long)counts[i].most);
    }
    if (c->eval_subset_num_batches == 0)
        return clt_schema_fail(r, "eval_subset_num_batches",
                               "is 0: an evaluation has at least one batch; eval_interval: 0 turns it off");
    if (c->exact_lanes & (c->exact_lanes - 1))
        return clt_schema_fail(r, "cltrain.exact_lanes", "is %lld: it must be a power of two",
                               (long long)c->exact_lanes);
    if (!(c->stop_before >= 0))
        return clt_schema_fail(r, "cltrain.stop_before", "is %g: it must be above 0", c->stop_before);
    CLT_TRY(check_guards(r, &c->guards));
    if (c->check_batches > 8)
        return clt_schema_fail(r, "cltrain.resume_check.batches", "is %lld: it must be at most 8",
                               (long long)c->check_batches);
    if (c->check_limit < 0) return clt_schema_fail(r, "cltrain.resume_check.limit", "must not be negative");
    if (!(c->dist_timeout > 0)) return clt_schema_fail(r, "dist_timeout", "must be above 0 seconds");
    if (c->seed < 0) return clt_schema_fail(r, "seed", "must not be negative");
    return CLT_OK;
}

static clt_status check_times(clt_schema_reader *r, const clt_config *c) {
    clt_time_unit u = c->max_duration.unit;
    if (u == CLT_TIME_DURATION || u == CLT_TIME_ITERATION || u == CLT_TIME_SECOND)
        return clt_schema_fail(r, "max_duration",
                               "must be in epochs (ep), batches (ba), samples (sp) or tokens (tok)");
    if (c->max_duration.value < 1) return clt_schema_fail(r, "max_duration", "must be above 0");
    const struct {
        const char *key;
        clt_time t;
    } times[] = {{"eval_interval", c->eval_interval},
                 {"save_interval", c->save_interval},
                 {"console_log_interval", c->console_log_interval}};
    for (size_t i = 0; i < CLT_COUNT_OF(times); i++)
        if (times[i].t.unit == CLT_TIME_ITERATION)
            return clt_schema_fail(r, times[i].key, "cannot be in iterations: use ba, ep, sp, tok or dur");
    u = c->console_log_interval.unit;
    if (u != CLT_TIME_EPOCH && u != CLT_TIME_BATCH)
        return clt_schema_fail(r, "console_log_interval", "must be in epochs (ep) or batches (ba)");
    return CLT_OK;
}

/* Precision, and the defaults that follow from it. */
static clt_status resolve_precision(clt_schema_reader *r, clt_config_builder *b) {
    static const clt_dtype types[] = {CLT_F32, CLT_F16, CLT_BF16}; /* in the order of the key's choices */
    clt_config *c = &b->c;
    if (b->precision >= (int)CLT_COUNT_OF(types))
        return clt_schema_fail(r, "precision",
                               "is amp_fp8, which is not supported: use amp_bf16, amp_fp16 or fp32");
    c->precision = types[b->precision];
    bool narrow = c->precision != CLT_F32;
    c->numerics = b->numerics >= 0 ? (clt_numerics)b->numerics : narrow ? CLT_FAST : CLT_EXACT;
    c->recompute = b->recompute >= 0 ? (clt_recompute)b->recompute
                   : narrow          ? CLT_RECOMPUTE_NORMS
                                     : CLT_RECOMPUTE_NONE;
    if (b->activation_checkpointing) c->recompute = CLT_RECOMPUTE_BLOCKS;
    c->reduce_bf16 = c->reduce_bf16 && c->precision == CLT_BF16 && c->numerics == CLT_FAST;
    c->recompute_open = b->recompute < 0 && !b->activation_checkpointing && narrow && c->numerics == CLT_FAST;
    c->tune = (clt_tune_mode)b->tune;
    c->check_action = (clt_check_action)b->check_action;
    return CLT_OK;
}

static clt_status check_paths(clt_schema_reader *r, const clt_config *c) {
    const struct {
        const char *key, *path;
    } paths[] = {{"save_folder", c->save_folder}, {"load_path", c->load_path}};
    for (size_t i = 0; i < CLT_COUNT_OF(paths); i++) {
        char *why = paths[i].path ? clt_io_unsupported(paths[i].path) : NULL;
        if (!why) continue;
        clt_status st = clt_schema_fail(r, paths[i].key, "is '%.80s': %s", paths[i].path, why);
        clt_free(why);
        return st;
    }
    const struct {
        const char *key, *name;
    } names[] = {{"save_filename", c->save_filename}, {"save_latest_filename", c->save_latest_filename}};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        if (!*names[i].name || strchr(names[i].name, '/') || names[i].name[0] == '.')
            return clt_schema_fail(r, names[i].key, "is '%.80s': it must be a plain name inside save_folder",
                                   names[i].name);
    return CLT_OK;
}

/* Names that repeat would end a run's checkpoints with the second one: nothing is overwritten. */
static clt_status check_filename(clt_schema_reader *r, const clt_config *c) {
    const char *s = c->save_filename;
    bool counts =
        strstr(s, "{batch}") || strstr(s, "{sample}") || strstr(s, "{token}") || strstr(s, "{total_wct}");
    bool epoch = strstr(s, "{epoch}") != NULL;
    if (!c->save_folder || c->save_overwrite || counts ||
        (epoch && (c->save_interval.unit == CLT_TIME_EPOCH || strstr(s, "_in_epoch}"))))
        return CLT_OK;
    return clt_schema_fail(
        r, "save_filename",
        "is '%.80s', the same for several checkpoints: add {batch}, or set save_overwrite: true", s);
}

/* --- names --- */

static const char *own(clt_config *c, char *s) {
    clt_strv_add_owned(&c->strings, s);
    return s;
}

/* {rank} and {local_rank} are 0 and a trailing .pt is gone: checkpoints belong to no rank. */
static const char *checkpoint_name(clt_config *c, const char *s) {
    clt_str out = {0};
    clt_str_add(&out, "");
    while (*s) {
        size_t n = !strncmp(s, "{rank}", 6) ? 6 : !strncmp(s, "{local_rank}", 12) ? 12 : 0;
        clt_str_addn(&out, n ? "0" : s, 1);
        s += n ? n : 1;
    }
    if (out.len > 3 && strcmp(out.s + out.len - 3, ".pt") == 0) out.s[out.len - 3] = 0;
    return own(c, out.s);
}

static const char *with_run_name(clt_config *c, const char *s) {
    clt_str out = {0};
    clt_str_add(&out, "");
    while (*s) {
        bool here = !strncmp(s, "{run_name}", 10);
        if (here)
            clt_str_add(&out, c->run_name);
        else
            clt_str_addn(&out, s, 1);
        s += here ? 10 : 1;
    }
    return own(c, out.s);
}

static clt_status finish_names(clt_schema_reader *r, clt_config_builder *b) {
    clt_config *c = &b->c;
    if (!c->run_name || !*c->run_name) {
        const char *env = clt_env(CLT_ENV_RUN_NAME);
        c->run_name = own(c, clt_strdup(env ? env : "llm"));
    }
    if (strchr(c->run_name, '/') || c->run_name[0] == '.')
        return clt_schema_fail(
            r, "run_name", "is '%.80s': it names a folder, so it has no '/' and no leading dot", c->run_name);
    if (c->save_folder) c->save_folder = with_run_name(c, c->save_folder);
    if (c->load_path) c->load_path = checkpoint_name(c, with_run_name(c, c->load_path));
    c->save_filename = checkpoint_name(c, with_run_name(c, c->save_filename));
    c->save_latest_filename = checkpoint_name(c, with_run_name(c, c->save_latest_filename));
    bool resume = c->save_folder && !c->save_overwrite && !c->save_weights_only;
    c->autoresume = b->autoresume < 0 ? resume : b->autoresume;
    if (b->autoresume == 1 && !c->save_folder) return clt_schema_fail(r, "autoresume", "needs a save_folder");
    return CLT_OK;
}

static void finish_devices(clt_config *c) {
    const char *env = clt_env(CLT_ENV_DEVICE);
    if (c->devices.n > 0 || !env) return;
    while (*env) {
        size_t n = strcspn(env, ",");
        if (n) clt_strv_add_owned(&c->devices, clt_strndup(env, n));
        env += n + (env[n] == ',');
    }
}

/* --- reading --- */

/* A callback or logger named without arguments ("lr_monitor:") is on, with the defaults. */
static void fill_empty_children(json_t *section) {
    const char *key;
    json_t *v;
    json_object_foreach(section, key, v) {
        if (json_is_null(v)) json_object_set_new(section, key, json_object());
    }
}

/* text NULL: the file `path`. */
static clt_status read_document(clt_config_builder *b, const char *text, const char *path,
                                const char *const *overrides, size_t n) {
    CLT_TRY(text ? clt_yaml_parse_map(text, strlen(text), path, &b->c.yaml)
                 : clt_yaml_load(path, &b->c.yaml));
    for (size_t i = 0; i < n; i++) CLT_TRY(clt_yaml_override(b->c.yaml, overrides[i]));
    CLT_TRY(clt_yaml_interpolate(b->c.yaml));
    return clt_yaml_to_json(b->c.yaml, &b->c.merged);
}

static void preset(clt_config_builder *b) {
    b->autoresume = b->numerics = b->recompute = -1;
    b->tune = CLT_TUNE_CACHE;
    clt_config_optimizer_raw *o = &b->optimizer;
    o->lr = o->beta1 = o->beta2 = o->eps = o->weight_decay = NAN;
    clt_config_scheduler_raw *s = &b->scheduler;
    s->alpha = s->alpha_i = s->alpha_f = s->alpha_f_decay = s->alpha_f_cooldown = NAN;
    s->t_scale.value = s->t_cooldown.value = -1;
    b->c.check_batches = -1;
    b->c.check_limit = NAN;
    b->c.train.eos_token_id = b->c.train.bos_token_id = -1;
}

static clt_status read_all(clt_config_builder *b, const char *text, const char *path,
                           const char *const *overrides, size_t n) {
    clt_config *c = &b->c;
    CLT_TRY(read_document(b, text, path, overrides, n));
    preset(b);
    fill_empty_children(json_object_get(c->merged, "callbacks"));
    fill_empty_children(json_object_get(c->merged, "loggers"));
    clt_schema_reader r = {.what = c->path,
                           .place = place_of,
                           .key_place = key_place_of,
                           .ctx = c,
                           .status = CLT_BAD_CONFIG,
                           .strings = &c->strings,
                           .notices = &c->notices};
    CLT_TRY(clt_schema_read(&r, &clt_config_top_schema, "", c->merged, b));
    if (!json_is_object(b->model)) return clt_schema_fail(&r, "model", "must be a map");
    CLT_TRY(clt_model_config_read(&r, "model", b->model, &c->model));
    CLT_TRY(resolve_precision(&r, b));
    CLT_TRY(check_counts(&r, c));
    CLT_TRY(check_times(&r, c));
    CLT_TRY(clt_config_resolve_loaders(&r, b));
    CLT_TRY(clt_config_resolve_optimizer(&r, b));
    CLT_TRY(clt_config_resolve_scheduler(&r, b));
    CLT_TRY(finish_names(&r, b));
    CLT_TRY(check_paths(&r, c));
    CLT_TRY(check_filename(&r, c));
    finish_devices(c);
    return CLT_OK;
}

static clt_status read_config(const char *text, const char *path, const char *const *overrides, size_t n,
                              clt_config **out) {
    clt_config_builder *b = clt_calloc(1, sizeof *b);
    b->c.path = own(&b->c, clt_strdup(path));
    /* As a speed_monitor without window_size has it: the progress bar has one always. */
    b->c.callbacks.speed_window = 100;
    clt_status st = read_all(b, text, path, overrides, n);
    if (st == CLT_OK)
        *out = &b->c; /* the first member: freeing the configuration frees the builder */
    else
        clt_config_free(&b->c);
    return st;
}

clt_status clt_config_load(const char *path, const char *const *overrides, size_t n, clt_config **out) {
    return read_config(NULL, path, overrides, n, out);
}

clt_status clt_config_parse(const char *text, const char *what, const char *const *overrides, size_t n,
                            clt_config **out) {
    return read_config(text, what, overrides, n, out);
}

void clt_config_free(clt_config *c) {
    if (!c) return;
    clt_model_config_free(c->model);
    clt_free(c->evals);
    clt_strv_free(&c->optimizer.disable_grad);
    clt_strv_free(&c->load_ignore_keys);
    clt_strv_free(&c->devices);
    clt_free(c->lanes_per_rank);
    clt_strv_free(&c->strings);
    clt_strv_free(&c->notices);
    clt_strv_free(&c->warnings);
    clt_yaml_free(c->yaml);
    json_decref(c->merged);
    clt_free(c);
}

static clt_status check_lanes_per_rank(clt_schema_reader *r, const clt_config *c, int64_t exact_lanes,
                                       int ranks) {
    static const char key[] = "cltrain.lanes_per_rank";
    int64_t sum = 0;
    if (c->n_lanes_per_rank == 0) return CLT_OK;
    for (int i = 0; i < c->n_lanes_per_rank; i++) sum += c->lanes_per_rank[i];
    if (c->n_lanes_per_rank != ranks)
        return clt_schema_fail(r, key,
                               "has %d numbers, but there %s %d rank%s: leave it out, or give one a rank",
                               c->n_lanes_per_rank, ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s");
    if (c->numerics == CLT_EXACT && sum != exact_lanes)
        return clt_schema_fail(r, key, "adds up to %lld, but the run has %lld lanes (cltrain.exact_lanes)",
                               (long long)sum, (long long)exact_lanes);
    if (sum & (sum - 1))
        return clt_schema_fail(r, key, "adds up to %lld: it must be a power of two", (long long)sum);
    return CLT_OK;
}

clt_status clt_config_check_ranks(const clt_config *c, int64_t exact_lanes, int ranks) {
    clt_schema_reader r = {.what = c->path, .place = place_of, .ctx = (void *)c, .status = CLT_BAD_CONFIG};
    CLT_TRY(check_lanes_per_rank(&r, c, exact_lanes, ranks));
    if (c->numerics == CLT_EXACT && ranks > exact_lanes)
        return clt_schema_fail(
            &r, "cltrain.exact_lanes",
            "is %lld, fewer than the %d ranks: a rank owns at least one lane, so use at most %lld ranks "
            "or start a new run with more lanes",
            (long long)exact_lanes, ranks, (long long)exact_lanes);
    if (c->numerics == CLT_FAST && c->global_train_batch_size % ranks != 0)
        return clt_schema_fail(&r, "global_train_batch_size", "is %lld, which %d ranks do not divide",
                               (long long)c->global_train_batch_size, ranks);
    return CLT_OK;
}

clt_status clt_config_check_run(const clt_config *c, int ranks) {
    clt_schema_reader r = {.what = c->path, .place = place_of, .ctx = (void *)c, .status = CLT_BAD_CONFIG};
    CLT_TRY(clt_config_check_ranks(c, c->exact_lanes, ranks));
    if (!c->train.local)
        return clt_schema_fail(&r, "train_loader.dataset.local",
                               "is not given: name the folder of the MDS shards");
    return CLT_OK;
}
