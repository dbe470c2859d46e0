/* The reactions of a run to its guards (docs/guards.md). */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/run/clt_run.h"

bool clt_run_guard_each_step(const clt_config *c) {
    return c->guards.nonfinite != CLT_NONFINITE_STOP || c->guards.loss_spike >= CLT_SPIKE_SKIP;
}

static bool main_rank(const clt_run *r) {
    return clt_group_rank(r->group) == 0;
}

/* --- faults for tests --- */

static clt_status read_injection(clt_run *r) {
    const char *text = clt_env(CLT_ENV_INJECT);
    long long a, b, c = 0;
    r->guards.inject.flip_rank = -1;
    if (!text) return CLT_OK;
    if (sscanf(text, "flip=%lld:%lld:%lld", &a, &b, &c) == 3) {
        r->guards.inject.flip_rank = a;
        r->guards.inject.flip_batch = b;
        r->guards.inject.flip_bit = c;
        return CLT_OK;
    }
    if (sscanf(text, "nan=%lld:%lld", &a, &b) != 2)
        return clt_error(CLT_USAGE,
                         "CLTRAIN_INJECT is '%s', it must be flip=RANK:BATCH:BIT or nan=FIRST:LAST", text);
    r->guards.inject.nan_first = a;
    r->guards.inject.nan_last = b;
    return CLT_OK;
}

static clt_status inject_flip(clt_run *r, int64_t batch) {
    const clt_slab *w = clt_engine_parts(r->engine, &(int){0})[0].slab;
    uint64_t bit = (uint64_t)r->guards.inject.flip_bit;
    uint32_t word;
    float value;
    CLT_TRY(clt_engine_settle(r->engine));
    if (r->guards.inject.flip_rank != clt_group_rank(r->group) || r->guards.inject.flip_batch != batch)
        return CLT_OK;
    CLT_TRY(clt_slab_read(w, bit / 32, &value, 1));
    memcpy(&word, &value, sizeof word);
    word ^= 1u << bit % 32;
    memcpy(&value, &word, sizeof word);
    return clt_slab_write(w, bit / 32, &value, 1);
}

/* --- a step that is not finite --- */

/* Finds the operation. This may compile a kernel, so the check for steady state is off meanwhile. */
static clt_status explain(clt_run *r, const clt_run_step *q, char what[CLT_ENGINE_WHAT]) {
    bool steady = clt_device_is_steady(r->dev);
    clt_device_set_steady(r->dev, false);
    clt_status st = clt_engine_explain(r->engine, &q->batch, q->step, what);
    clt_device_set_steady(r->dev, steady);
    return st;
}

static void tell_nonfinite(clt_run *r, int64_t batch, const char *action, const char *what) {
    clt_str b = {0};
    clt_str_addf(&b, "\"action\":\"%s\",\"in_a_row\":%lld,\"what\":", action,
                 (long long)r->guards.bad_in_a_row);
    clt_json_escape(&b, what);
    clt_sinks_event(r->sinks, "nonfinite", batch, b.s);
    clt_str_free(&b);
}

static clt_status stop_at_bad_step(clt_run *r, const clt_run_step *q, const clt_engine_result *res,
                                   const char *what) {
    const char *good = r->saves.newest >= 0 ? "The last checkpoint is not affected: lower" : "Lower";
    clt_run_save_finish(r);
    tell_nonfinite(r, q->after.batch, "stop", what);
    if (main_rank(r) && *what) clt_error(CLT_FAIL, "step %lld: %s", (long long)q->step, what);
    clt_error(CLT_FAIL,
              "batch %lld: loss %g, gradient norm %g; the weights were not changed. %s the learning rate, "
              "clip the gradients or check the data",
              (long long)q->after.batch, fabs(res->loss), (double)res->grad_norm, good);
    return clt_group_agree(r->group, CLT_FAIL);
}

/* Rolls back weights and moments to the newest checkpoint. Clock, schedule and data continue, so that the
 * batches that led here are not repeated. */
static clt_status go_back(clt_run *r, int64_t batch) {
    char *path = NULL;
    clt_ckpt_reader *reader = NULL;
    bool steady = clt_device_is_steady(r->dev);
    clt_run_save_finish(r);
    if (r->guards.rollbacks == r->cfg->guards.max_rollbacks) {
        clt_error(CLT_FAIL,
                  "batch %lld: after %lld roll-backs (cltrain.guards.max_rollbacks) the steps are not finite "
                  "again: lower the learning rate, clip the gradients or check the data",
                  (long long)batch, (long long)r->guards.rollbacks);
        return clt_group_agree(r->group, CLT_FAIL);
    }
    if (r->saves.writer) CLT_TRY(clt_ckpt_find_newest(r->group, r->files.folder, &path));
    if (!path) {
        clt_error(CLT_FAIL,
                  "batch %lld: no checkpoint to roll back to: set save_folder and a shorter save_interval",
                  (long long)batch);
        return clt_group_agree(r->group, CLT_FAIL);
    }
    clt_device_set_steady(r->dev, false);
    clt_status st = clt_group_agree(r->group, clt_ckpt_open(path, &reader));
    if (st == CLT_OK) st = clt_run_load(r, path, true, true);
    if (st == CLT_OK) st = clt_engine_weights_changed(r->engine);
    if (st == CLT_OK) {
        const clt_checkpoint_state *s = clt_ckpt_state(reader);
        r->guards.rollbacks++;
        r->guards.bad_in_a_row = 0;
        r->guards.equal_at = -1; /* the weights have changed since the comparison */
        r->progress.optimizer_step = s->optimizer_step;
        r->effective.useful_seconds = clt_run_useful_of(s);
        *clt_engine_loss_scale(r->engine) = clt_run_scale_of(r->cfg, s);
        st = clt_run_fp8_take(r, s->numbers, s->number_count);
        clt_warn("batch %lld: rolled back to the weights and moments of batch %lld (roll-back %lld of at "
                 "most %lld); the data continues with the next batch",
                 (long long)batch, (long long)s->batch, (long long)r->guards.rollbacks,
                 (long long)r->cfg->guards.max_rollbacks);
        char *fields =
            clt_format("\"to\":%lld,\"rollbacks\":%lld", (long long)s->batch, (long long)r->guards.rollbacks);
        clt_sinks_event(r->sinks, "rollback", batch, fields);
        clt_free(fields);
    }
    clt_ckpt_close(reader);
    clt_free(path);
    clt_device_set_steady(r->dev, steady);
    return clt_group_agree(r->group, st);
}

static clt_status bad_step(clt_run *r, const clt_run_step *q, const clt_engine_result *res) {
    const clt_guard_config *c = &r->cfg->guards;
    char what[CLT_ENGINE_WHAT] = "", n[64] = "";
    int64_t batch = q->after.batch;
    CLT_TRY(clt_run_check_replicas(r)); /* if a bit has flipped, report that instead */
    r->guards.bad_in_a_row++;
    bool last = c->nonfinite_in_a_row > 0 && r->guards.bad_in_a_row >= c->nonfinite_in_a_row;
    if (r->guards.bad_in_a_row == 1 || c->nonfinite == CLT_NONFINITE_STOP) CLT_TRY(explain(r, q, what));
    if (c->nonfinite == CLT_NONFINITE_STOP || (last && c->nonfinite == CLT_NONFINITE_SKIP))
        return stop_at_bad_step(r, q, res, what);
    CLT_TRY(clt_engine_forgive(r->engine));
    if (c->nonfinite_in_a_row > 0)
        snprintf(n, sizeof n, " of at most %lld", (long long)c->nonfinite_in_a_row);
    clt_warn("batch %lld: loss %g, gradient norm %g: the step is skipped (%lld%s consecutive)%s%s",
             (long long)batch, fabs(res->loss), (double)res->grad_norm, (long long)r->guards.bad_in_a_row, n,
             *what ? "; " : "", what);
    tell_nonfinite(r, batch, "skip", what);
    return last ? go_back(r, batch) : CLT_OK;
}

/* --- spikes --- */

static bool is_spike(const clt_run *r) {
    double t = r->cfg->guards.spike_threshold;
    return r->guards.loss_z > t || r->guards.norm_z > t;
}

static bool judge(void *ctx, const clt_engine_result *made) {
    clt_run *r = ctx;
    r->guards.loss_z = clt_spike_add(&r->guards.loss, made->loss);
    r->guards.norm_z = clt_spike_add(&r->guards.norm, (double)made->grad_norm);
    return !is_spike(r);
}

static void tell_spike(clt_run *r, int64_t batch, const clt_engine_result *res, const char *action,
                       const char *advice) {
    const clt_run_guards *g = &r->guards;
    const double limit = r->cfg->guards.spike_threshold;
    const bool loss = g->loss_z > limit;
    clt_warn("batch %lld: the %s is %.1f standard deviations above the mean of the last %d steps (loss %.4f: "
             "%.1f, gradient norm %.4g: %.1f; cltrain.guards.spike_threshold %g): %s",
             (long long)batch, loss ? "loss" : "gradient norm", loss ? g->loss_z : g->norm_z, g->loss.window,
             res->loss, g->loss_z, (double)res->grad_norm, g->norm_z, limit, advice);
    char *fields =
        clt_format("\"action\":\"%s\",\"loss\":%.9g,\"loss_z\":%.4f,\"grad_norm\":%.9g,\"grad_norm_z\":%.4f",
                   action, res->loss, g->loss_z, (double)res->grad_norm, g->norm_z);
    clt_sinks_event(r->sinks, "spike", batch, fields);
    clt_free(fields);
}

static clt_status look_for_spike(clt_run *r, const clt_run_step *q, const clt_engine_result *res) {
    int mode = r->cfg->guards.loss_spike;
    int64_t batch = q->after.batch;
    if (mode == CLT_SPIKE_WARN) judge(r, res);
    if (mode == CLT_SPIKE_OFF || !is_spike(r)) return CLT_OK;
    if (mode == CLT_SPIKE_WARN)
        tell_spike(r, batch, res, "warn", "check its data; cltrain.guards.loss_spike=skip skips such steps");
    else if (mode == CLT_SPIKE_SKIP)
        tell_spike(r, batch, res, "skip", "the step is skipped");
    else {
        clt_run_save_finish(r);
        tell_spike(r, batch, res, "stop", "the run stops before this update");
        clt_error(CLT_FAIL,
                  "batch %lld: loss spike (cltrain.guards.loss_spike=stop): check the data of this batch, "
                  "lower the learning rate, or resume with loss_spike=skip or warn",
                  (long long)batch);
        return clt_group_agree(r->group, CLT_FAIL);
    }
    return CLT_OK;
}

clt_status clt_run_guard_step(clt_run *r, const clt_run_step *q, const clt_engine_result *res,
                              bool *left_out) {
    *left_out = !res->finite || res->skipped || res->refused;
    if (!res->finite) {
        r->guards.left_out++;
        return bad_step(r, q, res);
    }
    r->guards.bad_in_a_row = 0;
    if (res->skipped) {
        clt_info(
            "batch %lld: the gradient overflowed at loss scale %g: the step is skipped, the next scale is %g",
            (long long)q->after.batch, res->loss_scale, clt_engine_loss_scale(r->engine)->scale);
        return CLT_OK;
    }
    r->guards.left_out += res->refused;
    double start = clt_now();
    CLT_TRY(look_for_spike(r, q, res));
    r->guards.seconds += clt_now() - start;
    return inject_flip(r, q->after.batch);
}

/* --- replicas --- */

static const char *host_of(const clt_run *r, int rank) {
    return r->guards.hosts + (size_t)rank * CLT_HOST_BYTES;
}

/* "1 (host a), 3 (host b)", and the same as a JSON list. */
static void list_ranks(const clt_run *r, const bool *odd, clt_str *text, clt_str *json) {
    for (int k = 0; k < clt_group_size(r->group); k++) {
        if (!odd[k]) continue;
        clt_str_addf(text, "%s%d (host %s)", text->len ? ", " : "", k, host_of(r, k));
        clt_str_addf(json, "%s%d", json->len ? "," : "", k);
    }
}

static void list_parts(const clt_run *r, const uint64_t *hash, clt_str *text) {
    int n, ranks = clt_group_size(r->group);
    const clt_ckpt_part *parts = clt_engine_parts(r->engine, &n);
    for (int i = 0; i < n; i++) {
        bool same = true;
        for (int k = 1; k < ranks; k++) same &= hash[k * CLT_ENGINE_PARTS + i] == hash[i];
        if (!same) clt_str_addf(text, "%s%s", text->len ? ", " : "", parts[i].role);
    }
}

static clt_status tell_difference(clt_run *r, const uint64_t *hash, const bool *odd, int n_odd) {
    clt_str ranks = {0}, json = {0}, parts = {0};
    int64_t batch = r->progress.now.batch;
    list_ranks(r, odd, &ranks, &json);
    list_parts(r, hash, &parts);
    char *since = r->guards.equal_at >= 0
                      ? clt_format("they were equal at batch %lld", (long long)r->guards.equal_at)
                      : clt_strdup("they were just loaded or initialised");
    static const char next[] =
        "This state is not saved; rerun the same command to resume from the newest checkpoint. If it happens "
        "again, test that device's memory or do not use the device";
    if (n_odd > 0)
        clt_error(CLT_AGAIN,
                  "batch %lld: the values (%s) of rank %s differ from those of the other %d ranks; %s. A bit "
                  "has flipped or a device has computed a wrong result. %s",
                  (long long)batch, parts.s, ranks.s, clt_group_size(r->group) - n_odd, since, next);
    else
        clt_error(CLT_AGAIN,
                  "batch %lld: the values (%s) of ranks %s differ; %s. A bit has flipped or a device has "
                  "computed a wrong result; with %d ranks the wrong one cannot be determined. %s",
                  (long long)batch, parts.s, ranks.s, since, clt_group_size(r->group), next);
    char *fields = clt_format("\"ranks\":[%s],\"known\":%s,\"parts\":\"%s\",\"equal_at\":%lld", json.s,
                              n_odd > 0 ? "true" : "false", parts.s, (long long)r->guards.equal_at);
    clt_sinks_event(r->sinks, "replicas_differ", batch, fields);
    clt_free(fields);
    clt_free(since);
    clt_str_free(&ranks);
    clt_str_free(&json);
    clt_str_free(&parts);
    return clt_group_agree(r->group, CLT_AGAIN);
}

static bool compares(const clt_run *r) {
    return r->cfg->guards.replica_hash_interval > 0 && clt_group_size(r->group) > 1;
}

bool clt_run_replicas_due(const clt_run *r) {
    return compares(r) && r->progress.now.batch % r->cfg->guards.replica_hash_interval == 0;
}

clt_status clt_run_check_replicas(clt_run *r) {
    uint64_t mine[CLT_ENGINE_PARTS];
    int ranks = clt_group_size(r->group);
    if (!compares(r) || r->guards.equal_at == r->progress.now.batch) return CLT_OK;
    clt_group_note(r->group, r->progress.now.batch, "comparing replicas");
    double start = clt_now();
    CLT_TRY(clt_engine_hash(r->engine, mine));
    uint64_t *all = clt_calloc((size_t)ranks, sizeof mine);
    bool *odd = clt_calloc((size_t)ranks, sizeof *odd);
    clt_status st = clt_group_all_gather(r->group, mine, sizeof mine, all);
    int n = st == CLT_OK ? clt_replicas_odd(all, ranks, CLT_ENGINE_PARTS, odd) : 0;
    if (st == CLT_OK && n != 0) {
        clt_run_save_finish(r);
        st = tell_difference(r, all, odd, n);
    }
    if (st == CLT_OK) r->guards.equal_at = r->progress.now.batch;
    if (r->effective.steps_counted > 0)
        r->guards.seconds += clt_now() - start; /* the first comparison compiles */
    clt_free(all);
    clt_free(odd);
    return st;
}

/* --- stragglers --- */

int64_t clt_run_own_time(clt_run *r) {
    clt_run_guards *g = &r->guards;
    double now = clt_now(), waited = clt_group_waited(r->group);
    double own = (now - g->exchanged) - (waited - g->waited);
    bool usable = g->exchanged > 0 && !g->disturbed;
    g->disturbed = false;
    return usable ? (int64_t)(CLT_MAX(own, 0.0) * 1e6) : -1;
}

/* With an even division a rank may own one lane more than another, so times per lane are compared. Lanes
 * divided by speed or by the configuration should take all ranks the same time, so times per step are
 * compared. */
void clt_run_own_times(clt_run *r, const int64_t *microseconds) {
    enum { LEAST_MS = 2 };
    clt_run_guards *g = &r->guards;
    const int ranks = clt_group_size(r->group), lanes = r->plan.lanes;
    const clt_lane_split split = clt_plan_split(&r->plan);
    double *seconds = clt_calloc((size_t)ranks, sizeof *seconds);
    bool usable = r->cfg->guards.straggler_ratio > 0 && ranks > 1;
    g->exchanged = clt_now();
    g->waited = clt_group_waited(r->group);
    for (int k = 0; k < ranks; k++) {
        int own = split.count ? 1 : clt_lane_begin(&split, k + 1) - clt_lane_begin(&split, k);
        usable &= microseconds[k] >= 0;
        seconds[k] = (double)microseconds[k] * 1e-6 / CLT_MAX(own, 1);
    }
    clt_straggler_found f = {.rank = -1};
    double each = split.count ? 1.0 : (double)lanes / ranks;
    if (usable)
        f = clt_straggler_add(&g->straggler, seconds, r->cfg->guards.straggler_ratio, LEAST_MS * 1e-3 / each);
    clt_free(seconds);
    if (f.rank < 0) return;
    if (main_rank(r))
        clt_warn("batch %lld: rank %d (host %s) delays the others: its part of a step takes %.3g times as "
                 "long as the median rank's (%.1f ms%s, median %.1f) over the last %d steps: check that host "
                 "for other programs, overheating or a slower device (cltrain.guards.straggler_ratio)",
                 (long long)r->progress.now.batch, f.rank, host_of(r, f.rank), f.seconds / f.median,
                 f.seconds * 1e3, split.count ? "" : " per lane", f.median * 1e3,
                 CLT_STRAGGLER_STEPS * CLT_STRAGGLER_ROUNDS);
    char *fields = clt_format("\"rank\":%d,\"host\":\"%s\",\"seconds\":%.6f,\"median_seconds\":%.6f", f.rank,
                              host_of(r, f.rank), f.seconds, f.median);
    clt_sinks_event(r->sinks, "straggler", r->progress.now.batch, fields);
    clt_free(fields);
}

/* --- beginning and end --- */

clt_status clt_run_guard_create(clt_run *r) {
    clt_run_guards *g = &r->guards;
    int ranks = clt_group_size(r->group);
    g->loss.window = g->norm.window = (int)r->cfg->guards.spike_window;
    g->loss_z = g->norm_z = NAN;
    g->equal_at = -1;
    clt_straggler_begin(&g->straggler, ranks);
    g->hosts = clt_calloc((size_t)ranks, CLT_HOST_BYTES);
    char host[CLT_HOST_BYTES] = "";
    gethostname(host, sizeof host - 1);
    CLT_TRY(clt_group_all_gather(r->group, host, sizeof host, g->hosts));
    return clt_group_agree(r->group, read_injection(r));
}

clt_status clt_run_guard_begin(clt_run *r) {
    if (r->cfg->guards.loss_spike >= CLT_SPIKE_SKIP) clt_engine_set_judge(r->engine, judge, r);
    return clt_run_check_replicas(r);
}

void clt_run_guard_destroy(clt_run *r) {
    clt_straggler_end(&r->guards.straggler);
    clt_free(r->guards.hosts);
}
