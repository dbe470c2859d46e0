/* Rules that go across keys, and ranges of numbers. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

const json_t *clt_config_value(const clt_config *c, const char *path) {
    const json_t *v = c->merged;
    while (v && *path) {
        size_t n = strcspn(path, ".");
        char *name = clt_strndup(path, n);
        int64_t i = -1;
        if (json_is_array(v))
            v = clt_parse_i64(name, &i) && i >= 0 ? json_array_get(v, (size_t)i) : NULL;
        else
            v = json_object_get(v, name);
        clt_free(name);
        path += n + (path[n] == '.');
    }
    return v;
}

bool clt_config_given(const clt_config *c, const char *path) {
    const json_t *v = clt_config_value(c, path);
    return v && !json_is_null(v);
}

clt_status clt_config_fail_both(clt_schema_reader *r, const char *a, const char *b, const char *text) {
    char *place = r->place ? r->place(r->ctx, b) : clt_strdup(r->what);
    clt_status st = clt_schema_fail(r, a, "contradicts key '%s' (%s): %s", b, place, text);
    clt_free(place);
    return st;
}

/* --- ranges --- */

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

static clt_status check_scale(clt_schema_reader *r, const clt_loss_scale_config *s) {
    const double least = 0x1p-16, most = 0x1p127;
    if (!(s->initial >= least && s->initial <= most))
        return clt_schema_fail(r, "cltrain.loss_scale.initial", "is %g: it must be 2^-16 to 2^127",
                               s->initial);
    if (!(s->min >= least && s->min <= most))
        return clt_schema_fail(r, "cltrain.loss_scale.min", "is %g: it must be 2^-16 to 2^127", s->min);
    if (s->window < 1)
        return clt_schema_fail(r, "cltrain.loss_scale.window", "is %lld: it must be at least 1",
                               (long long)s->window);
    if (s->hysteresis < 0) return clt_schema_fail(r, "cltrain.loss_scale.hysteresis", "must not be negative");
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
                  {"cltrain.guards.replica_hash_interval", c->guards.replica_hash_interval, 0, INT64_MAX},
                  {"cltrain.phase_times", c->phase_times, 0, INT64_MAX},
                  {"cltrain.flops_profile.batch", c->flops_profile.batch, 0, INT64_MAX},
                  {"cltrain.resume_check.batches", c->check_batches, -1, 8},
                  {"seed", c->seed, 0, INT64_MAX}};
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
    if (c->train_subset_num_batches == 0)
        return clt_schema_fail(r, "train_subset_num_batches",
                               "is 0: an epoch has at least one batch; -1 takes all");
    if (c->exact_lanes & (c->exact_lanes - 1))
        return clt_schema_fail(r, "cltrain.exact_lanes", "is %lld: it must be a power of two",
                               (long long)c->exact_lanes);
    return CLT_OK;
}

static clt_status check_numbers(clt_schema_reader *r, const clt_config *c) {
    if (c->clip_type != CLT_CLIP_NONE && !(c->clip_threshold > 0))
        return clt_schema_fail(r, "algorithms.gradient_clipping.clipping_threshold",
                               "is %g: it must be above 0", c->clip_threshold);
    if (!(c->stop_before >= 0))
        return clt_schema_fail(r, "cltrain.stop_before", "is %g: it must be above 0", c->stop_before);
    if (c->check_limit < 0) return clt_schema_fail(r, "cltrain.resume_check.limit", "must not be negative");
    if (!(c->dist_timeout > 0)) return clt_schema_fail(r, "dist_timeout", "must be above 0 seconds");
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

clt_status clt_config_check_ranges(clt_schema_reader *r, const clt_config *c) {
    CLT_TRY(check_counts(r, c));
    CLT_TRY(check_numbers(r, c));
    CLT_TRY(check_guards(r, &c->guards));
    CLT_TRY(check_scale(r, &c->loss_scale));
    return check_times(r, c);
}

/* --- precision and what follows from it --- */

/* Whether fsdp_config.mixed_precision asks for bf16 where ranks exchange gradients. */
static bool asks_for_bf16(const json_t *mixed) {
    const char *word = json_string_value(mixed);
    if (word) return strcmp(word, "PURE") == 0;
    const char *type = json_string_value(json_object_get(mixed, "reduce_dtype"));
    return type && strcmp(type, "fp32") != 0 && strcmp(type, "float32") != 0 &&
           strcmp(type, "torch.float32") != 0;
}

static void resolve_mixed_precision(clt_schema_reader *r, clt_config_builder *b) {
    static const char key[] = "fsdp_config.mixed_precision";
    clt_config *c = &b->c;
    bool asked = asks_for_bf16(b->mixed_precision);
    c->reduce_bf16 = asked && c->precision == CLT_BF16 && c->numerics == CLT_FAST;
    if (asked && !c->reduce_bf16 && c->precision != CLT_F32)
        clt_notices_add(r->notices, key,
                        "ranks exchange gradients in fp32; bf16 needs precision amp_bf16 and numerics fast");
    const json_t *param = json_object_get(b->mixed_precision, "param_dtype"),
                 *buffer = json_object_get(b->mixed_precision, "buffer_dtype");
    const char *word = json_string_value(b->mixed_precision);
    if (param || buffer || (word && strcmp(word, "FULL") == 0 && c->precision != CLT_F32))
        clt_notices_add(r->notices, key, "precision decides the types of parameters and activations");
}

/* What asks for recompute: blocks besides that key, or NULL. Sets c->inputs. */
static clt_status ask_for_blocks(clt_schema_reader *r, clt_config_builder *b, const char **key) {
    static const char own[] = "cltrain.offload_activations", fsdp[] = "fsdp_config.activation_cpu_offload";
    if (b->activation_cpu_offload && b->offload_activations == CLT_OFFLOAD_NONE)
        return clt_config_fail_both(r, own, fsdp, "true asks for offload_activations: host; set one of them");
    b->c.inputs = b->offload_activations >= 0 ? (clt_offload)b->offload_activations
                  : b->activation_cpu_offload ? CLT_OFFLOAD_HOST
                                              : CLT_OFFLOAD_NONE;
    *key = b->activation_checkpointing ? "fsdp_config.activation_checkpointing"
           : b->activation_cpu_offload ? fsdp
           : b->c.inputs               ? own
                                       : NULL;
    return CLT_OK;
}

static clt_status resolve_recompute(clt_schema_reader *r, clt_config_builder *b) {
    clt_config *c = &b->c;
    const bool narrow = c->precision != CLT_F32;
    const char *asks = NULL;
    CLT_TRY(ask_for_blocks(r, b, &asks));
    if (asks && b->recompute >= 0 && b->recompute != CLT_RECOMPUTE_BLOCKS)
        return clt_config_fail_both(r, "cltrain.recompute", asks,
                                    "the latter asks for recompute: blocks; set one of them");
    c->recompute = asks                ? CLT_RECOMPUTE_BLOCKS
                   : b->recompute >= 0 ? (clt_recompute)b->recompute
                   : narrow            ? CLT_RECOMPUTE_NORMS
                                       : CLT_RECOMPUTE_NONE;
    /* In exact numerics no choice changes a bit where products have 8 bits. */
    c->recompute_open =
        b->recompute < 0 && !asks && narrow && (c->numerics == CLT_FAST || c->eight_bits || c->fp8);
    return CLT_OK;
}

clt_status clt_config_resolve_length(clt_schema_reader *r, clt_config *c) {
    static const char key[] = "max_seq_len";
    const clt_model_facts model = clt_model_get_facts(c->model);
    if (!clt_config_given(c, key) && model.vocab_size)
        return clt_error(r->status, "%s: key '%s' is missing: it must be given (tokens of a sample)", r->what,
                         key);
    if (model.vocab_size) return CLT_OK;
    if (clt_config_given(c, key) && r->notices)
        clt_notices_add(r->notices, key, "the model's sizes say how many tokens an image has");
    c->max_seq_len = model.max_seq_len;
    return CLT_OK;
}

clt_status clt_config_resolve_precision(clt_schema_reader *r, clt_config_builder *b) {
    enum { EXACT8 = 3, FP8 = 4 };
    static const clt_dtype types[] = {
        CLT_F32, CLT_F16,
        CLT_BF16, [EXACT8] = CLT_BF16, [FP8] = CLT_BF16}; /* in the order of the key's choices */
    clt_config *c = &b->c;
    c->precision = types[b->precision];
    c->eight_bits = b->precision == EXACT8;
    c->fp8 = b->precision == FP8;
    if (c->fp8 && c->max_seq_len % 16 && clt_model_get_facts(c->model).vocab_size)
        return clt_schema_fail(r, "max_seq_len", "is %lld: amp_fp8 needs a multiple of 16",
                               (long long)c->max_seq_len);
    bool fast = c->precision != CLT_F32 && !c->eight_bits;
    c->numerics = b->numerics >= 0 ? (clt_numerics)b->numerics : fast ? CLT_FAST : CLT_EXACT;
    if (c->eight_bits && c->numerics == CLT_FAST)
        return clt_config_fail_both(r, "precision", "cltrain.numerics",
                                    "exact8 has numerics exact: leave numerics out");
    if (!clt_config_given(c, "cltrain.attention_bits")) c->attention_bits = c->eight_bits ? 8 : 16;
    if (c->attention_bits != 8 && c->attention_bits != 16)
        return clt_schema_fail(r, "cltrain.attention_bits", "is %lld: it must be 8 or 16",
                               (long long)c->attention_bits);
    if (c->attention_bits == 8 && !c->eight_bits)
        return clt_config_fail_both(r, "cltrain.attention_bits", "precision",
                                    "8 needs exact8, the precision whose products have 8 bits");
    c->tune = (clt_tune_mode)b->tune;
    c->check_action = (clt_check_action)b->check_action;
    c->clip_type = clt_config_given(c, "algorithms.gradient_clipping")
                       ? (clt_clip_type)(CLT_CLIP_NORM + b->clip_type)
                       : CLT_CLIP_NONE;
    resolve_mixed_precision(r, b);
    return resolve_recompute(r, b);
}

/* --- guards --- */

static const char callback[] = "callbacks.kill_loss_spike";

/* Foundry's callback looks for losses of several times their mean. The guard takes its place, with the
 * callback's window as far as the guard allows it. */
static clt_status resolve_window(clt_schema_reader *r, clt_config_builder *b) {
    static const char key[] = "callbacks.kill_loss_spike.window_size", own[] = "cltrain.guards.spike_window";
    enum { DEFAULT = 100 };
    clt_guard_config *g = &b->c.guards;
    int64_t asked = b->kill_loss_spike.window_size;
    if (asked < 1) return clt_schema_fail(r, key, "is %lld: it must be at least 1", (long long)asked);
    if (asked == DEFAULT) return CLT_OK;
    double least = floor(g->spike_threshold * g->spike_threshold) + 2; /* or no step could be a spike */
    int64_t window = (int64_t)fmin(fmax((double)asked, least), CLT_SPIKE_MAX);
    if (clt_config_given(&b->c, own) && g->spike_window != asked && g->spike_window != window)
        return clt_config_fail_both(r, key, own, "give one of them, or the same");
    g->spike_window = window;
    return CLT_OK;
}

clt_status clt_config_resolve_guards(clt_schema_reader *r, clt_config_builder *b) {
    static const char own[] = "cltrain.guards.loss_spike";
    clt_guard_config *g = &b->c.guards;
    int asked = b->kill_loss_spike.log_only ? CLT_SPIKE_WARN : CLT_SPIKE_STOP;
    if (!b->kill_loss_spike.given) return CLT_OK;
    if (clt_config_given(&b->c, own) && g->loss_spike != asked)
        return clt_config_fail_both(
            r, callback, own, "log_only: true is loss_spike: warn, log_only: false is loss_spike: stop");
    g->loss_spike = asked;
    CLT_TRY(resolve_window(r, b));
    clt_strv_add_owned(
        &b->c.remarks,
        clt_format(
            "%s is done by %s: %s: a spike is a loss or gradient norm more than %g standard deviations "
            "above the mean of %lld steps, instead of several losses above a multiple of their mean",
            callback, own, asked == CLT_SPIKE_WARN ? "warn" : "stop", g->spike_threshold,
            (long long)g->spike_window));
    return CLT_OK;
}
