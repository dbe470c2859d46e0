#include "runtime/train/run/clt_trainer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_signal.h"
#include "runtime/device/clt_record.h"
#include "runtime/ops/clt_variant.h"
#include "runtime/train/run/clt_run.h"

/* --- start --- */

static void print_config(clt_run *r) {
    static const char stars[] = "******************************";
    if (!r->cfg->log_config) return;
    clt_str b = {0};
    clt_config_print(r->cfg, false, &b);
    clt_info("%s\nConfig:\n%s%s", stars, b.s, stars);
    clt_str_free(&b);
}

/* The run's folder with its log, its lock and the merged configuration. */
static clt_status open_folder(clt_run *r) {
    const clt_config *c = r->cfg;
    r->folder = c->save_folder ? clt_strdup(c->save_folder) : clt_path_join("runs", c->run_name);
    CLT_TRY(clt_run_lock_take(r->group, r->folder, &r->lock));
    CLT_TRY(clt_ckpt_recover(r->group, r->folder));
    if (clt_group_rank(r->group) != 0) return CLT_OK;
    char *log = clt_path_join(r->folder, "log.txt"), *config = clt_path_join(r->folder, "config.yaml");
    clt_str text = {0};
    clt_config_print(c, false, &text);
    clt_status st = clt_io_write_atomic(config, text.s, text.len);
    r->log = fopen(log, "ae"); /* not for the programs that drivers start */
    if (st == CLT_OK && !r->log) st = clt_error(CLT_IO, "cannot write %s: %s", log, strerror(errno));
    clt_log_set_file(r->log);
    clt_str_free(&text);
    clt_free(log);
    clt_free(config);
    return st;
}

static clt_status open_data(clt_run *r) {
    const clt_config *c = r->cfg;
    int64_t G = c->global_train_batch_size;
    CLT_TRY(clt_run_open_loader(r, &c->train, false, G, &r->train));
    r->evals = clt_calloc((size_t)c->n_evals, sizeof *r->evals);
    for (int i = 0; i < c->n_evals; i++)
        CLT_TRY(clt_run_open_loader(r, &c->evals[i], true,
                                    c->device_eval_batch_size * clt_group_size(r->group), &r->evals[i]));
    r->batches_per_epoch = clt_loader_batches(r->train, G, c->train.drop_last);
    if (c->train_subset_num_batches > 0)
        r->batches_per_epoch = CLT_MIN(r->batches_per_epoch, c->train_subset_num_batches);
    if (r->batches_per_epoch == 0)
        return clt_error(
            CLT_BAD_DATA,
            "%s has %lld samples, fewer than global_train_batch_size %lld: there is no full batch",
            c->train.local, (long long)clt_loader_num_samples(r->train), (long long)G);
    if (clt_run_epoch_over(r, r->now.sample_in_epoch, r->now.batch_in_epoch))
        clt_timestamp_end_epoch(&r->now);
    clt_time length = {0};
    CLT_TRY(
        clt_time_resolve(r->opt->stop_after, c->max_duration, r->batches_per_epoch, "--stop-after", &length));
    /* A part of the run that is less than a batch is one: 0 would be no end at all. */
    if (r->opt->stop_after.fraction > 0) length.value = CLT_MAX(length.value, 1);
    clt_run_leg_start(&r->leg, &r->now, length);
    return clt_schedule_resolve(&c->schedule, c->max_duration, r->batches_per_epoch, &r->schedule);
}

static clt_status choose_microbatch(clt_run *r) {
    const clt_device_facts *f = clt_device_get_facts(r->dev);
    /* Ranks of a host share a CPU's memory; on other devices each is taken to have its own. */
    int sharing = f->type == CLT_DEVICE_CPU ? clt_group_local_size(r->group) : 1;
    return clt_group_agree(r->group,
                           clt_run_choose_microbatch(r->cfg, f->type, clt_group_size(r->group),
                                                     clt_run_capacity(f, sharing), f->max_alloc, &r->memory));
}

static bool run_evaluates(const clt_run *r) {
    return r->cfg->n_evals > 0 || clt_run_checks(r->cfg) > 0;
}

static clt_status open_engine(clt_run *r) {
    const clt_config *c = r->cfg;
    const clt_device_facts *f = clt_device_get_facts(r->dev);
    int ranks = clt_group_size(r->group);
    CLT_TRY(choose_microbatch(r));
    bool given = c->n_lanes_per_rank > 0;
    CLT_TRY(clt_run_divide_lanes(r));
    if (!given && c->n_lanes_per_rank > 0) CLT_TRY(choose_microbatch(r));
    clt_engine_params p = {.cfg = c,
                           .group = r->group,
                           .ops = r->ops,
                           .microbatch = r->memory.microbatch,
                           .lanes = clt_run_lanes(c, ranks),
                           .training = true};
    CLT_TRY(clt_group_agree(r->group, clt_engine_create(&p, &r->engine)));
    clt_engine_rehearse(r->engine, run_evaluates(r));
    *clt_engine_loss_scale(r->engine) = r->scale;
    /* A CPU device works on the cores that would prepare the next step; amp_fp16, and guards that leave steps
     * out, ask after every step. All ranks do the same, since results are exchanged when they are looked at.
     */
    int64_t waits = !clt_env_long(CLT_ENV_AHEAD, f->type != CLT_DEVICE_CPU) || c->precision == CLT_F16 ||
                    clt_run_guard_each_step(c);
    CLT_TRY(clt_group_max_i64(r->group, &waits, 1));
    r->ahead = !waits;
    char total[32], params[32];
    clt_info("model: %s parameters, microbatch %lld%s, %s of device memory%s",
             clt_human_count((double)clt_mpt_param_count(&c->model), params), (long long)r->memory.microbatch,
             c->device_train_microbatch_size ? "" : " (auto)",
             clt_human_bytes((double)r->memory.total, total), clt_recompute_text(c->recompute));
    return CLT_OK;
}

/* A part of the start, unless some rank was asked to stop before it. */
static clt_status begin_phase(clt_run *r, const char *phase) {
    if (clt_group_stop(r->group)) return CLT_STOPPED;
    clt_group_note(r->group, r->now.batch, phase);
    return CLT_OK;
}

static clt_status start(clt_run *r, const clt_config *cfg, const clt_run_options *opt) {
    char *path = NULL;
    bool resume = false;
    CLT_TRY(clt_run_open(r, cfg, opt));
    clt_ops_let_stop(r->ops, true);
    CLT_TRY(clt_run_describe(r));
    CLT_TRY(begin_phase(r, "looking for checkpoints"));
    CLT_TRY(clt_group_agree(r->group, clt_run_time_open(r)));
    print_config(r);
    clt_config_notices(r->cfg);
    clt_status leg = clt_run_leg_from_env(&r->leg);
    bool stops = opt->stop_after.value > 0 || opt->stop_after.fraction > 0;
    if (leg == CLT_OK && stops && !r->cfg->save_folder)
        leg = clt_error(CLT_BAD_CONFIG, "--stop-after saves and ends: it needs save_folder");
    CLT_TRY(clt_group_agree(r->group, leg != CLT_OK ? leg : open_folder(r)));
    CLT_TRY(clt_run_guard_create(r));
    clt_group_set_folder(r->group, r->folder);
    CLT_TRY(clt_group_agree(r->group, clt_run_find_start(r, &path, &resume)));
    r->start_batch = r->now.batch;
    clt_status st = begin_phase(r, "opening data");
    if (st == CLT_OK) st = clt_group_agree(r->group, open_data(r));
    if (st == CLT_OK) st = begin_phase(r, "preparing the model");
    if (st == CLT_OK) st = open_engine(r);
    if (st == CLT_OK)
        st = clt_group_agree(r->group, clt_sinks_create(r->cfg, r->folder, clt_group_rank(r->group) == 0,
                                                        r->batches_per_epoch, &r->sinks));
    if (st == CLT_OK) st = begin_phase(r, path ? "loading" : "initial weights");
    if (st == CLT_OK && path)
        st = clt_run_load(r, path, resume, r->autoresumed);
    else if (st == CLT_OK)
        st = clt_mpt_init_weights(&r->cfg->model, clt_engine_table(r->engine), (uint64_t)r->cfg->seed,
                                  clt_engine_parts(r->engine, &(int){0})[0].slab);
    clt_free(path);
    if (st == CLT_OK) st = clt_engine_weights_changed(r->engine);
    const bool evaluates = run_evaluates(r);
    if (evaluates) clt_group_note(r->group, r->now.batch, "preparing evaluation");
    if (st == CLT_OK && evaluates) st = clt_engine_prepare_eval(r->engine);
    CLT_TRY(clt_group_agree(r->group, st));
    r->resumed = resume;
    clt_run_note_start(r);
    CLT_TRY(clt_run_guard_begin(r));
    if (resume) CLT_TRY(clt_run_check_resume(r));
    if (r->cfg->save_folder) {
        CLT_TRY(clt_ckpt_supersede(r->group, r->folder, r->now.batch, r->run_id));
        CLT_TRY(clt_run_create_writer(r));
    }
    if (clt_group_size(r->group) > 1) {
        char *lanes = clt_run_lanes_text(r);
        clt_sinks_event(r->sinks, "lanes", r->now.batch, lanes);
        clt_free(lanes);
    }
    double fma, copy;
    if (clt_device_peak(r->dev, &fma, &copy) == CLT_OK) r->peak_flops = fma;
    if (r->cfg->precision != CLT_F32 && clt_device_matrix_peak(r->dev, &fma) == CLT_OK && fma > 0) {
        r->peak_flops = fma;
        r->matrix_peak = true;
    }
    return CLT_OK;
}

/* --- one step --- */

/* Samples of the next global batch; the last one of an epoch may be short without drop_last. */
static int64_t next_samples(const clt_run *r) {
    int64_t left = clt_loader_num_samples(r->train) - r->now.sample_in_epoch;
    return CLT_MIN(r->cfg->global_train_batch_size, left);
}

/* Announces this rank's rows of the batch after this one: the loader reads them meanwhile. */
static void prefetch(clt_run *r, int64_t samples) {
    int64_t first, last, epoch = r->now.epoch, next = r->now.sample_in_epoch + samples;
    if (clt_run_epoch_over(r, next, r->now.batch_in_epoch + 1)) {
        epoch++;
        next = 0;
    }
    int64_t left = clt_loader_num_samples(r->train) - next;
    clt_engine_share(r->engine, CLT_MIN(r->cfg->global_train_batch_size, left), &first, &last);
    clt_loader_prefetch(r->train, epoch, next + first, last - first);
}

/* The exchange of every step: targets and tokens of the whole batch, and how long everybody's last step took.
 */
static clt_status exchange(clt_run *r, const clt_loader_batch *rows, int64_t sums[2]) {
    enum { TARGETS, TOKENS, TIME, WORDS };
    int ranks = clt_group_size(r->group);
    int64_t mine[WORDS] = {rows->loss_tokens, rows->num_tokens, clt_run_own_time(r)};
    int64_t *all = clt_calloc((size_t)ranks * WORDS, sizeof *all),
            *times = clt_calloc((size_t)ranks, sizeof *times);
    clt_status st = clt_group_all_gather(r->group, mine, sizeof mine, all);
    sums[0] = sums[1] = 0;
    for (int k = 0; st == CLT_OK && k < ranks; k++) {
        sums[0] += all[k * WORDS + TARGETS];
        sums[1] += all[k * WORDS + TOKENS];
        times[k] = all[k * WORDS + TIME];
    }
    if (st == CLT_OK) clt_run_own_times(r, times);
    clt_free(all);
    clt_free(times);
    return st;
}

/* This rank's rows of the batch at the current position, and the targets of the whole batch. */
static clt_status fetch(clt_run *r, clt_engine_batch *b, int64_t *tokens) {
    int64_t first, last;
    clt_loader_batch rows = {0};
    b->samples = next_samples(r);
    clt_engine_share(r->engine, b->samples, &first, &last);
    clt_status st =
        clt_loader_get(r->train, r->now.epoch, r->now.sample_in_epoch + first, last - first, &rows);
    CLT_TRY(clt_group_agree(r->group, st));
    prefetch(r, b->samples);
    int64_t sums[2];
    CLT_TRY(exchange(r, &rows, sums));
    *tokens = sums[1];
    b->targets = sums[0];
    b->spoilt =
        r->now.batch + 1 >= r->guards.inject.nan_first && r->now.batch + 1 <= r->guards.inject.nan_last;
    b->tokens = rows.tokens;
    b->labels = rows.targets;
    b->seq_ids = rows.seq_ids;
    r->sample_ids = rows.samples;
    return CLT_OK;
}

/* A peak that some steps together exceed was measured on a busy device. Single steps say nothing: one that
 * the host looked at late makes the next one look short. Nor do ranks, whose devices may differ, and matrix
 * units whose peak is not known. */
static void look_at_peak(clt_run *r, double flops, double seconds) {
    enum { STEPS = 8 };
    const double least = 1; /* second */
    const bool known = r->cfg->precision == CLT_F32 || r->matrix_peak ||
                       clt_device_get_facts(r->dev)->type == CLT_DEVICE_CPU;
    if (!known || !(r->peak_flops > 0) || clt_group_size(r->group) > 1) return;
    if (!clt_device_is_steady(r->dev)) return; /* kernels may have been compiled meanwhile */
    r->worked.flops += flops;
    r->worked.seconds += seconds;
    if (++r->worked.steps < STEPS || r->worked.seconds < least) return;
    const double rate = r->worked.flops / r->worked.seconds;
    memset(&r->worked, 0, sizeof r->worked);
    if (rate <= r->peak_flops) return;
    clt_debug("steps reach %.4g FLOP/s, above the stored peak: the device was busy when that was measured",
              rate);
    r->peak_flops = rate;
    clt_device_peak_exceeded(r->dev, r->matrix_peak, rate);
}

static void report(clt_run *r, const clt_run_step *q, const clt_engine_result *res, double seconds) {
    clt_device_counters counters;
    clt_device_get_counters(r->dev, &counters);
    double rate = (double)q->tokens / seconds;
    double flops = rate * clt_mpt_train_flops_per_token(&r->cfg->model, r->cfg->max_seq_len);
    look_at_peak(r, flops * seconds, seconds);
    clt_step_row row = {.before = q->before,
                        .after = q->after,
                        .loss = res->loss,
                        .lr = q->lr,
                        .grad_norm = res->grad_norm,
                        .loss_scale = res->loss_scale,
                        .step_seconds = seconds,
                        .tokens_per_second = rate,
                        .flops_per_second = flops,
                        .mfu = r->peak_flops > 0 ? flops / (r->peak_flops * clt_group_size(r->group)) : 0,
                        .device_memory = counters.bytes,
                        .microbatch = r->memory.microbatch,
                        .ranks = clt_group_size(r->group),
                        .eval_seconds = r->eval_seconds};
    clt_sinks_step(r->sinks, &row);
}

/* The loader's arrays serve the next batch too soon for a step that may have to be looked into later. */
static void keep_batch(const clt_run *r, clt_run_step *q, const clt_engine_batch *b) {
    int64_t first, last;
    q->batch = *b;
    if (!r->ahead) return;
    clt_engine_share(r->engine, b->samples, &first, &last);
    size_t words = (size_t)((last - first) * r->cfg->max_seq_len), bytes = words * sizeof *q->arrays;
    q->arrays = clt_realloc(q->arrays, CLT_MAX(3 * bytes, (size_t)1));
    memcpy(q->arrays, b->tokens, bytes);
    memcpy(q->arrays + words, b->labels, bytes);
    q->batch.tokens = q->arrays;
    q->batch.labels = q->arrays + words;
    if (!b->seq_ids) return;
    memcpy(q->arrays + 2 * words, b->seq_ids, bytes);
    q->batch.seq_ids = q->arrays + 2 * words;
}

/* Waits for the oldest queued step and tells what came of it. */
static clt_status collect(clt_run *r) {
    clt_run_step q = r->queued[0];
    clt_engine_result res;
    double start = clt_now();
    bool left_out;
    CLT_TRY(clt_engine_collect(r->engine, &res));
    double now = clt_now(), seconds = now - r->mark;
    clt_trace_span(r->trace, start, now, "wait for step %lld", (long long)q.step);
    CLT_TRY(clt_run_guard_step(r, &q, &res, &left_out));
    if (res.finite) r->last_loss = res.loss;
    if (left_out && r->optimizer_step == q.step) r->optimizer_step--;
    if (!left_out) clt_run_count_step(r, seconds);
    r->mark = now;
    /* What a clock decides (sec, of an interval or a leg) is decided alike on all ranks. */
    CLT_TRY(clt_group_broadcast(r->group, 0, &seconds, sizeof seconds));
    clt_run_time_step(r, seconds);
    r->now.wall_seconds += seconds;
    r->step_seconds = seconds;
    q.after.wall_seconds = r->now.wall_seconds;
    report(r, &q, &res, seconds);
    r->queued[0] = r->queued[1];
    r->queued[1] = (clt_run_step){.arrays = q.arrays}; /* its memory serves again */
    r->n_queued--;
    return CLT_OK;
}

/* Until the clock shows what the device has done: before anything that looks at the weights. */
static clt_status collect_all(clt_run *r) {
    while (r->n_queued > 0) CLT_TRY(collect(r));
    return CLT_OK;
}

/* Ranks record into folders of their own. */
static clt_status record_start(clt_run *r, int64_t s, bool *recording) {
    const clt_run_options *o = r->opt;
    int64_t first = o->record_first ? o->record_first : r->first_step;
    int64_t last = o->record_last ? o->record_last : first;
    *recording = o->record && s >= first && s <= last;
    if (!*recording) return CLT_OK;
    r->recorded = true;
    char rank[32];
    snprintf(rank, sizeof rank, "rank%d", clt_group_rank(r->group));
    char *dir = clt_path_join(o->record, clt_group_size(r->group) > 1 ? rank : "");
    clt_status st = clt_record_start(r->dev, dir, false);
    clt_free(dir);
    return st;
}

static int64_t trace_first(const clt_run *r) {
    return r->opt->trace_first ? r->opt->trace_first : r->first_step + 2;
}

static clt_status trace_start(clt_run *r, int64_t s) {
    const clt_run_options *o = r->opt;
    if (!o->trace || s != trace_first(r)) return CLT_OK;
    CLT_TRY(collect_all(r)); /* on all ranks */
    r->tracing = r->traced = true;
    r->trace_last = o->trace_last ? o->trace_last : s + 2;
    if (clt_group_rank(r->group) == 0) r->trace = clt_trace_create(o->trace, r->dev);
    return CLT_OK;
}

static clt_status trace_end(clt_run *r) {
    CLT_TRY(collect_all(r));
    clt_trace *t = r->trace;
    r->tracing = false;
    r->trace = NULL;
    return t ? clt_trace_finish(t, r->dev) : CLT_OK;
}

/* Queues the step that the clock shows next and moves the clock on, unless the step is given up. What came of
 * earlier steps is waited for only as far as the engine's queue asks for it. */
static clt_status step(clt_run *r, const clt_engine_batch *b, int64_t tokens) {
    const clt_config *c = r->cfg;
    int64_t s = r->optimizer_step + 1;
    double alpha = clt_schedule_next_alpha(&r->schedule, &r->now, r->last_samples, r->last_tokens);
    bool given_up, recording;
    CLT_TRY(trace_start(r, s));
    double start = clt_now();
    if (r->n_queued == 0) r->mark = start;
    CLT_TRY(record_start(r, s, &recording));
    CLT_TRY(clt_engine_launch(r->engine, b, s, alpha, &given_up));
    clt_trace_span(r->trace, start, clt_now(), "queue step %lld", (long long)s);
    if (recording) CLT_TRY(clt_record_stop(r->dev));
    if (given_up) return CLT_OK;
    CLT_TRY(clt_run_log_samples(r, b));
    clt_run_step *q = &r->queued[r->n_queued];
    keep_batch(r, q, b);
    q->before = r->now;
    q->lr = c->optimizer.groups[0].lr * alpha;
    q->tokens = tokens;
    q->step = s;
    bool last = clt_run_epoch_over(r, r->now.sample_in_epoch + b->samples, r->now.batch_in_epoch + 1);
    r->last_samples = b->samples;
    r->last_tokens = tokens;
    clt_timestamp_next_batch(&r->now, b->samples, tokens, last);
    q->after = r->now;
    r->optimizer_step = s;
    r->n_queued++;
    if (r->tracing && s >= r->trace_last) return trace_end(r);
    return !r->ahead ? collect_all(r) : r->n_queued == CLT_RUN_AHEAD ? collect(r) : CLT_OK;
}

/* --- the loop --- */

/* --stop-after: the state at its end is saved for whoever goes on. */
static clt_status end_leg(clt_run *r) {
    char length[40];
    clt_progress_end();
    CLT_TRY(collect_all(r));
    CLT_TRY(clt_run_save_last(r));
    clt_run_note_end(r, "stopped");
    if (r->save_failed)
        return clt_group_agree(r->group, clt_error(CLT_IO, "the state at batch %lld could not be saved in %s",
                                                   (long long)r->now.batch, r->folder));
    clt_info("stopped at batch %lld after %s, as asked, and saved; the same command goes on from there",
             (long long)r->now.batch, clt_time_text(r->leg.length, length));
    char *fields =
        clt_format("\"from_batch\":%lld,\"leg\":%lld", (long long)r->leg.begun.batch, (long long)r->leg.leg);
    if (!r->leg.hop) *strchr(fields, ',') = 0;
    clt_sinks_event(r->sinks, r->leg.hop ? "hop" : "stop", r->now.batch, fields);
    clt_free(fields);
    return clt_group_agree(r->group, CLT_AGAIN);
}

/* A cold start says where its time went; the caches make the next one quick. Drivers with a cache of their
 * own are asked for every program at every start: that is quick then. */
static void first_step_done(clt_run *r) {
    enum { WORTH_SAYING = 2 };
    char s[32];
    double took = clt_now() - r->opt->started;
    clt_device_counters c;
    clt_device_get_counters(r->dev, &c);
    clt_device_set_steady(r->dev, true);
    clt_run_compare_variants(r);
    bool cold = clt_variants_checked(r->ops) > 0 || c.build_seconds > took / 2;
    clt_info("first step done %s after the start%s", clt_human_seconds(took, s),
             took > WORTH_SAYING && cold
                 ? " (kernels were compiled and checked for this device; the next start is quick)"
                 : "");
}

static clt_status resolve_intervals(clt_run *r, clt_time *eval, clt_time *save) {
    const clt_config *c = r->cfg;
    int64_t batches = r->batches_per_epoch;
    CLT_TRY(clt_time_resolve_interval(c->eval_interval, c->max_duration, batches, "eval_interval", eval));
    return clt_time_resolve_interval(c->save_interval, c->max_duration, batches, "save_interval", save);
}

static clt_status loop(clt_run *r) {
    clt_time eval_every, save_every;
    /* What is resumed was saved; a fresh start was neither saved nor evaluated. */
    r->first_step = r->optimizer_step + 1;
    int64_t first = r->now.batch, evaluated = r->resumed ? first : -1;
    r->saved = evaluated;
    clt_ops_let_stop(r->ops, false); /* from here on ranks decide together */
    CLT_TRY(resolve_intervals(r, &eval_every, &save_every));
    bool owes;
    CLT_TRY(clt_run_owes_eval(r, eval_every, &owes));
    if (owes || (r->cfg->eval_first && r->now.batch == 0)) CLT_TRY(clt_run_eval(r, false));
    if (owes && clt_group_stop(r->group)) return clt_run_stop(r);
    while (!clt_timestamp_reached(&r->now, r->cfg->max_duration)) {
        if (clt_run_leg_over(&r->leg, &r->now)) return end_leg(r);
        clt_engine_batch b;
        int64_t tokens;
        clt_timestamp before = r->now;
        double start = clt_now();
        clt_run_time_look(r);
        CLT_TRY(fetch(r, &b, &tokens));
        clt_trace_span(r->trace, start, clt_now(), "fetch samples");
        if (clt_group_stop(r->group)) {
            CLT_TRY(collect_all(r));
            return clt_run_stop(r);
        }
        CLT_TRY(clt_run_save_poll(r));
        CLT_TRY(step(r, &b, tokens));
        if (before.batch == r->now.batch) continue; /* given up: the next exchange says why */
        bool eval = r->cfg->n_evals && clt_timestamp_crossed(&before, &r->now, eval_every);
        bool save = r->writer && clt_timestamp_crossed(&before, &r->now, save_every);
        bool compare = save || clt_run_replicas_due(r);
        if (eval || compare || before.batch == first) {
            CLT_TRY(collect_all(r));
            r->guards.disturbed = true;
        }
        if (before.batch == first) first_step_done(r);
        if (compare) CLT_TRY(clt_run_check_replicas(r));
        if (eval) {
            CLT_TRY(clt_run_eval(r, false));
            if (clt_group_stop(r->group)) return clt_run_stop(r);
            evaluated = r->now.batch;
        }
        /* Going back among steps that are not finite takes a checkpoint from before them. */
        if (save && !(r->guards.bad_in_a_row && r->cfg->guards.nonfinite == CLT_NONFINITE_ROLLBACK))
            clt_run_save_begin(r); /* written while training goes on; what came of it is told then */
    }
    CLT_TRY(collect_all(r));
    if (r->cfg->n_evals && eval_every.value > 0 && evaluated != r->now.batch) {
        CLT_TRY(clt_run_eval(r, false));
        if (clt_group_stop(r->group)) return clt_run_stop(r);
    }
    return clt_run_save_last(r);
}

/* The trace of a run that ended before the last step that was asked for; and what was asked for but not met.
 */
static clt_status end_trace(clt_run *r, clt_status st) {
    const clt_run_options *o = r->opt;
    clt_trace *t = clt_device_is_hung(r->dev) ? NULL : r->trace;
    if (t) r->trace = NULL;
    const clt_status written = t ? clt_trace_finish(t, r->dev) : CLT_OK;
    if ((st == CLT_OK || st == CLT_AGAIN) && !r->leg.hop && clt_group_rank(r->group) == 0) {
        if (o->trace && !r->traced)
            clt_warn("--trace %s is not written: this run had no step %lld, with which it begins", o->trace,
                     (long long)trace_first(r));
        if (o->record && !r->recorded)
            clt_warn("--record %s is not written: this run had no step %lld, with which it begins", o->record,
                     (long long)(o->record_first ? o->record_first : r->first_step));
    }
    return st == CLT_OK ? written : st;
}

static void print_profile(clt_run *r) {
    clt_kernel_time *rows = NULL;
    int n = 0;
    if (!r->opt->profile && !clt_env_long(CLT_ENV_PROFILE, 0)) return;
    if (clt_device_profile(r->dev, &rows, &n) != CLT_OK) return;
    double all = 0;
    for (int i = 0; i < n; i++) all += rows[i].seconds;
    clt_info("device time by kernel (%.3f s):", all);
    for (int i = 0; i < n; i++)
        clt_info("  %5.1f %%  %9.3f ms  %6llu x  %s", 100 * rows[i].seconds / all, rows[i].seconds * 1e3,
                 (unsigned long long)rows[i].launches, rows[i].name);
    clt_free(rows);
}

static void tell_done(const clt_run *r) {
    char s[40];
    if (r->resumed && r->now.batch == r->start_batch)
        clt_info("nothing to do: max_duration %s is reached by the checkpoint of batch %lld; with a larger "
                 "one the "
                 "run goes on",
                 clt_time_text(r->cfg->max_duration, s), (long long)r->now.batch);
    else
        clt_info("done: %lld batches, %lld tokens in %s of training, loss %.4f; logs in %s",
                 (long long)r->now.batch, (long long)r->now.token, clt_human_seconds(r->now.wall_seconds, s),
                 r->last_loss, r->folder);
}

clt_status clt_train(const clt_config *cfg, const clt_run_options *opt) {
    clt_run r = {.last_loss = NAN, .scale = clt_loss_scale_default()};
    clt_signal_install(clt_launch_detect().rank == 0);
    clt_status st = start(&r, cfg, opt);
    if (st == CLT_OK) st = loop(&r);
    if (st == CLT_OK) {
        clt_progress_end();
        tell_done(&r);
        clt_run_note_end(&r, "done");
        if (r.saves_failed)
            clt_warn("%lld checkpoint%s of this run could not be saved", (long long)r.saves_failed,
                     r.saves_failed == 1 ? "" : "s");
        if (r.save_failed) st = clt_error(CLT_IO, "the last checkpoint could not be saved in %s", r.folder);
        st = clt_group_agree(r.group, st);
    }
    if (st == CLT_STOPPED) st = clt_run_stop(&r);
    if (st == CLT_AGAIN && r.dev && clt_device_is_hung(r.dev)) clt_group_end_hung(r.group);
    if (st != CLT_OK && r.group) clt_group_give_up(r.group, st);
    if (r.dev) st = end_trace(&r, st);
    if (r.dev) print_profile(&r);
    clt_run_close(&r);
    return st;
}
