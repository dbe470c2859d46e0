/* One step of a run: this rank's samples, the exchange of every step, queueing and collecting. */
#include <math.h>
#include <string.h>

#include "runtime/device/clt_record.h"
#include "runtime/train/run/clt_run.h"

/* --- samples --- */

/* Samples of the next global batch; without drop_last the last batch of an epoch may be smaller. */
static int64_t next_samples(const clt_run *r) {
    int64_t left = clt_loader_rows_of(r->train, r->progress.now.epoch) - r->progress.now.sample_in_epoch;
    return CLT_MIN(r->cfg->global_train_batch_size, left);
}

/* This rank's part of a global batch of `samples` samples that begins at position `at` of the epoch. */
static int parts_at(clt_run *r, int64_t at, int64_t samples) {
    if (!r->parts) r->parts = clt_calloc((size_t)clt_engine_most_parts(r->engine), sizeof *r->parts);
    const int n = clt_engine_parts_of_batch(r->engine, samples, r->parts);
    for (int i = 0; i < n; i++) r->parts[i].first += at;
    return n;
}

void clt_run_prefetch(clt_run *r, int64_t epoch, int64_t at) {
    const int64_t left = clt_loader_rows_of(r->train, epoch) - at;
    const int n = parts_at(r, at, CLT_MIN(r->cfg->global_train_batch_size, left));
    clt_loader_prefetch_rows(r->train, epoch, r->parts, n);
}

/* Of the batch after this one. */
static void prefetch(clt_run *r, int64_t samples) {
    int64_t epoch = r->progress.now.epoch, next = r->progress.now.sample_in_epoch + samples;
    if (clt_run_epoch_over(r, epoch, next, r->progress.now.batch_in_epoch + 1)) {
        epoch++;
        next = 0;
    }
    clt_run_prefetch(r, epoch, next);
}

/* The exchange of every step: sums[] receives targets and tokens of the global batch; the guards receive the
 * time of every rank's last step; r->pace what all ranks fetched and how long one waited for it. */
static clt_status exchange(clt_run *r, const clt_batch *rows, int64_t sums[2]) {
    enum { TARGETS, TOKENS, TIME, STALL, FETCHED, WORDS };
    static const double micro = 1e-6;
    const clt_loader_stalls stalls = clt_loader_get_stalls(r->train);
    int ranks = clt_group_size(r->group);
    int64_t mine[WORDS] = {rows->targets, rows->tokens, clt_run_own_time(r),
                           (int64_t)(stalls.seconds / micro), (int64_t)stalls.received};
    int64_t *all = clt_calloc((size_t)ranks * WORDS, sizeof *all),
            *times = clt_calloc((size_t)ranks, sizeof *times);
    clt_status st = clt_group_all_gather(r->group, mine, sizeof mine, all);
    sums[0] = sums[1] = r->pace.fetched = 0;
    for (int k = 0; st == CLT_OK && k < ranks; k++) {
        sums[0] += all[k * WORDS + TARGETS];
        sums[1] += all[k * WORDS + TOKENS];
        times[k] = all[k * WORDS + TIME];
        r->pace.stall_seconds = CLT_MAX(r->pace.stall_seconds, micro * (double)all[k * WORDS + STALL]);
        r->pace.fetched += all[k * WORDS + FETCHED];
    }
    if (st == CLT_OK) clt_run_own_times(r, times);
    clt_free(all);
    clt_free(times);
    return st;
}

/* Loads this rank's samples of the next global batch into *b, with the sums over the global batch; *tokens:
 * the tokens of the global batch. */
static clt_status fetch(clt_run *r, clt_batch *b, int64_t *tokens) {
    int64_t sums[2];
    const int64_t samples = next_samples(r);
    const int n = parts_at(r, r->progress.now.sample_in_epoch, samples);
    const int64_t first = r->parts[0].first - r->progress.now.sample_in_epoch;
    clt_status st = clt_loader_get_rows(r->train, r->progress.now.epoch, r->parts, n, b);
    CLT_TRY(clt_run_note_data(r, clt_group_agree(r->group, st)));
    prefetch(r, samples);
    CLT_TRY(exchange(r, b, sums));
    b->first = first;
    b->global_samples = samples;
    b->global_targets = sums[0];
    *tokens = sums[1];
    return CLT_OK;
}

/* Raises the device's stored peak if several consecutive steps exceed it: then the device was busy when it
 * was measured. Single steps are too inaccurate (clt_throughput.h). Runs of several ranks, whose devices may
 * differ, and runs on units of unknown peak (matrix units, 8-bit products) are not used. */
static void look_at_peak(clt_run *r, double flops, double seconds) {
    enum { STEPS = 8 };
    const double least = 1; /* seconds */
    const bool cpu = clt_device_get_facts(r->dev)->type == CLT_DEVICE_CPU;
    const bool known =
        !r->cfg->eight_bits && !r->cfg->fp8 && (r->cfg->precision == CLT_F32 || r->pace.matrix_peak || cpu);
    if (!known || !(r->pace.peak_flops > 0) || clt_group_size(r->group) > 1) return;
    if (!clt_device_is_steady(r->dev)) return; /* the time may include compilation */
    r->pace.worked.flops += flops;
    r->pace.worked.seconds += seconds;
    if (++r->pace.worked.steps < STEPS || r->pace.worked.seconds < least) return;
    const double rate = r->pace.worked.flops / r->pace.worked.seconds;
    memset(&r->pace.worked, 0, sizeof r->pace.worked);
    if (rate <= r->pace.peak_flops) return;
    clt_debug("steps reach %.4g FLOP/s, more than the stored peak, which was measured on a busy device; "
              "storing the new peak",
              rate);
    r->pace.peak_flops = rate;
    clt_device_peak_exceeded(r->dev, r->pace.matrix_peak, rate);
}

static void report(clt_run *r, const clt_run_step *q, const clt_engine_result *res, double seconds) {
    clt_device_counters counters;
    clt_device_get_counters(r->dev, &counters);
    double rate = (double)q->tokens / seconds;
    double flops = rate * clt_model_train_flops_per_token(r->cfg->model, r->cfg->max_seq_len);
    look_at_peak(r, flops * seconds, seconds);
    clt_step_row row = {
        .before = q->before,
        .after = q->after,
        .loss = res->loss,
        .lr = q->lr,
        .grad_norm = res->grad_norm,
        .loss_scale = res->loss_scale,
        .step_seconds = seconds,
        .units_per_second = rate,
        .flops_per_second = flops,
        .mfu = r->pace.peak_flops > 0 ? flops / (r->pace.peak_flops * clt_group_size(r->group)) : 0,
        .device_memory = counters.bytes,
        .microbatch = r->plan.microbatch,
        .ranks = clt_group_size(r->group),
        .eval_seconds = r->pace.eval_seconds,
        .stall_seconds = clt_loader_fetches(r->train) ? r->pace.stall_seconds : -1};
    clt_sinks_step(r->sinks, &row);
}

/* Keeps the batch of a queued step for clt_engine_explain. With steps queued ahead it is copied, because the
 * loader reuses its arrays for the next batch. */
static clt_status keep_batch(const clt_run *r, clt_run_step *q, const clt_batch *b) {
    const clt_batch_layout *layout = clt_loader_layout(r->train);
    q->batch = *b;
    if (!r->queue.ahead) return CLT_OK;
    const size_t bytes = clt_batch_bytes(layout, b->samples);
    void *arrays = clt_try_realloc(q->arrays, bytes);
    if (!arrays) return clt_no_memory("the copy of a batch", bytes);
    q->arrays = arrays;
    clt_batch_copy(layout, b, q->arrays, &q->batch);
    return CLT_OK;
}

/* The host may have queued the next step meanwhile, and have seen the end of this one in between. */
static double step_end(const clt_run *r, const clt_engine_result *res) {
    const double least = 1e-6;
    return r->queue.ahead ? CLT_MAX(res->done, r->queue.mark + least) : clt_now();
}

/* Waits for the oldest queued step, passes its result to the guards and reports it. */
static clt_status collect(clt_run *r) {
    clt_run_step q = r->queue.step[0];
    clt_engine_result res;
    double start = clt_now();
    bool left_out;
    CLT_TRY(clt_engine_collect(r->engine, &res));
    if (!r->queue.ahead) CLT_TRY(clt_engine_settle(r->engine)); /* other steps may be far off */
    double now = step_end(r, &res), seconds = now - r->queue.mark;
    clt_trace_span(r->tracing.trace, start, clt_now(), "wait for step %lld", (long long)q.step);
    CLT_TRY(clt_run_guard_step(r, &q, &res, &left_out));
    if (res.finite) r->progress.loss = res.loss;
    if (left_out && r->progress.optimizer_step == q.step) r->progress.optimizer_step--;
    if (!left_out) clt_run_count_step(r, seconds);
    r->queue.mark = now;
    /* Intervals and legs may be in seconds: all ranks must use the same clock. */
    CLT_TRY(clt_group_broadcast(r->group, 0, &seconds, sizeof seconds));
    clt_run_time_step(r, seconds);
    r->progress.now.wall_seconds += seconds;
    r->pace.step_seconds = seconds;
    q.after.wall_seconds = r->progress.now.wall_seconds;
    report(r, &q, &res, seconds);
    r->queue.step[0] = r->queue.step[1];
    r->queue.step[1] = (clt_run_step){.arrays = q.arrays}; /* reuse the memory */
    r->queue.n--;
    return CLT_OK;
}

clt_status clt_run_collect_all(clt_run *r) {
    while (r->queue.n > 0) CLT_TRY(collect(r));
    return CLT_OK;
}

/* --- queueing --- */

/* Queues the step at progress.now and advances it, unless a rank was asked to stop. */
static clt_status queue_step(clt_run *r, const clt_batch *b, int64_t tokens) {
    const clt_config *c = r->cfg;
    int64_t s = r->progress.optimizer_step + 1;
    double alpha = clt_schedule_next_alpha(&r->progress.schedule, &r->progress.now, r->progress.last_samples,
                                           r->progress.last_tokens, r->progress.optimizer_step);
    double betas[2];
    const bool cycles = clt_schedule_betas(&r->progress.schedule, r->progress.optimizer_step, betas);
    const int64_t batch = r->progress.now.batch + 1;
    const clt_engine_step_params p = {.batch = b,
                                      .step = s,
                                      .alpha = alpha,
                                      .betas = cycles ? betas : NULL,
                                      .spoilt = batch >= r->guards.inject.nan_first &&
                                                batch <= r->guards.inject.nan_last};
    bool given_up, recording;
    CLT_TRY(clt_run_trace_begin(r, s));
    CLT_TRY(clt_run_phases_begin(r, batch));
    double start = clt_now();
    if (r->queue.n == 0) r->queue.mark = start;
    CLT_TRY(clt_run_record_begin(r, s, &recording));
    CLT_TRY(clt_engine_launch(r->engine, &p, &given_up));
    clt_trace_span(r->tracing.trace, start, clt_now(), "queue step %lld", (long long)s);
    if (recording) CLT_TRY(clt_record_stop(r->dev));
    if (given_up) return CLT_OK;
    CLT_TRY(clt_run_log_samples(r, b));
    clt_run_step *q = &r->queue.step[r->queue.n];
    CLT_TRY(keep_batch(r, q, b));
    q->before = r->progress.now;
    q->lr = c->optimizer.groups[0].lr * alpha;
    q->tokens = tokens;
    q->step = s;
    bool last =
        clt_run_epoch_over(r, r->progress.now.epoch, r->progress.now.sample_in_epoch + b->global_samples,
                           r->progress.now.batch_in_epoch + 1);
    r->progress.last_samples = b->global_samples;
    r->progress.last_tokens = tokens;
    clt_timestamp_next_batch(&r->progress.now, b->global_samples, tokens, last);
    q->after = r->progress.now;
    r->progress.optimizer_step = s;
    r->queue.n++;
    if (r->phases.on) CLT_TRY(clt_run_phases_end(r, batch, b, tokens));
    if (r->tracing.on && s >= r->tracing.last) return clt_run_trace_end(r);
    return !r->queue.ahead ? clt_run_collect_all(r) : r->queue.n == CLT_RUN_AHEAD ? collect(r) : CLT_OK;
}

clt_status clt_run_next_step(clt_run *r) {
    clt_batch b;
    int64_t tokens;
    double start = clt_now();
    clt_run_time_look(r);
    CLT_TRY(fetch(r, &b, &tokens));
    clt_trace_span(r->tracing.trace, start, clt_now(), "fetch samples");
    if (clt_group_stop(r->group)) return CLT_STOPPED;
    CLT_TRY(clt_run_save_poll(r));
    return queue_step(r, &b, tokens);
}
