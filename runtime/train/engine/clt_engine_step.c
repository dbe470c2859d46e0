/* One optimizer step: lanes, update, results.
 *
 * clt_engine_launch only queues a step. A flag on the device, computed by the step itself, decides whether
 * the weights change. The results are read back by a queued transfer and returned by clt_engine_collect, up
 * to one step later, so that the device never waits for the host. A step that is not finite leaves the flag
 * cleared: steps queued behind it change nothing either. */
#include <math.h>
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

/* --- lanes --- */

/* With accumulate_train_batch_on_tokens: false every sample's mean has the same weight. */
static const float *sample_weights(clt_engine *e, const clt_batch *mb) {
    if (e->cfg->accumulate_on_tokens) return NULL;
    for (int64_t s = 0; s < mb->samples; s++) {
        const double n = (double)mb->sample_targets[s];
        const float w = n > 0 ? (float)(1.0 / (n * (double)mb->global_samples)) : 0.0f;
        e->sample_weight[s] = w * clt_engine_loss_scale_now(e);
    }
    return e->sample_weight;
}

clt_model_pass clt_engine_pass(clt_engine *e, const clt_batch *b, int64_t at, int64_t n, clt_batch *mb) {
    const double targets = (double)b->global_targets;
    *mb = clt_batch_slice(&e->layout, b, at, n);
    return (clt_model_pass){.batch = mb,
                            .weight =
                                targets > 0 ? (float)(1.0 / targets) * clt_engine_loss_scale_now(e) : 0.0f,
                            .seed = (uint64_t)e->plan->seed,
                            .sample_loss = {e->results, LOSSES + (uint64_t)at}};
}

clt_status clt_engine_run_lane(clt_engine *e, const clt_batch *b, int64_t step, int lane,
                               const clt_slab *grads) {
    const int64_t first = clt_engine_lane_begin(e, b->global_samples, lane);
    const int64_t last = clt_engine_lane_begin(e, b->global_samples, lane + 1);
    const int64_t place = clt_lane_sample_begin(b->global_samples, e->split.lanes,
                                                clt_lane_at(&e->split, clt_group_rank(e->group), lane));
    /* Other ranks wait for what a pass exchanges. */
    const bool may_stop = !e->sharded_gradients && !e->sharded_weights;
    for (int64_t at = first; at < last; at += e->plan->microbatch) {
        clt_batch mb;
        const int64_t n = CLT_MIN(e->plan->microbatch, last - at);
        if (may_stop && clt_group_stop_asked(e->group)) return CLT_STOPPED;
        clt_model_pass pass = clt_engine_pass(e, b, at, n, &mb);
        mb.first = place + at - first; /* dropout depends on it; lanes need not be neighbours in b */
        pass.sample_weight = sample_weights(e, &mb);
        pass.step = (uint64_t)step;
        pass.dropout = true;
        pass.lane_first = at == first;
        pass.lane_last = at + n == last;
        pass.grads = grads;
        clt_engine_begin_pass(e, true);
        CLT_TRY(clt_model_train(e->model, &pass));
    }
    return CLT_OK;
}

static clt_status run_lanes(clt_engine *e, const clt_batch *b, int64_t step) {
    clt_lane_stack_begin(e->stack);
    for (int lane = 0; lane < e->lanes; lane++) {
        const bool empty = clt_engine_lane_begin(e, b->global_samples, lane) ==
                           clt_engine_lane_begin(e, b->global_samples, lane + 1);
        clt_slab *grads = empty ? NULL : clt_lane_stack_slab(e->stack);
        e->step.lane = grads;
        /* With sharded weights the order of operations is that of passes, which not all ranks make. */
        e->step.early = !empty && lane + 1 == e->lanes && clt_group_size(e->group) > 1 && !e->sharded_weights;
        clt_status st = empty ? CLT_OK : clt_engine_run_lane(e, b, step, lane, grads);
        e->step.early = false;
        /* With its first gradients the last lane has been pushed. */
        if (st == CLT_OK && !e->step.committed) st = clt_lane_stack_push(e->stack, empty);
        if (st != CLT_OK) return st;
    }
    return CLT_OK;
}

/* --- queueing a step, reading its results --- */

/* Queues the transfer of the step's results, and records how to interpret them. */
static clt_status ask(clt_engine *e, const clt_batch *b) {
    clt_engine_pending *p = &e->pending[e->n_pending];
    p->samples = b->global_samples;
    p->mine = b->samples;
    p->count = b->global_targets;
    if (!e->cfg->accumulate_on_tokens) {
        p->count = b->global_samples;
        p->targets = clt_realloc(p->targets, (size_t)CLT_MAX(p->mine, 1) * sizeof *p->targets);
        if (p->mine) memcpy(p->targets, b->sample_targets, (size_t)p->mine * sizeof *p->targets);
    }
    CLT_TRY(clt_buffer_read_begin(e->results, 0, (size_t)(LOSSES + p->mine) * 4, &p->read));
    e->n_pending++;
    return CLT_OK;
}

/* Puts a rank's losses, one lane behind the other, where they are in the global batch. */
static void spread(const clt_lane_split *s, int rank, int64_t samples, const float *from, float *to) {
    for (int i = 0; i < clt_lane_count(s, rank); i++) {
        const int lane = clt_lane_at(s, rank, i);
        const int64_t first = clt_lane_sample_begin(samples, s->lanes, lane),
                      n = clt_lane_sample_begin(samples, s->lanes, lane + 1) - first;
        memcpy(to + first, from, (size_t)n * sizeof *to);
        from += n;
    }
}

clt_status clt_engine_gather(clt_engine *e, const clt_lane_split *split, int64_t samples) {
    const int rank = clt_group_rank(e->group), ranks = clt_group_size(e->group);
    float *losses = e->host_results + LOSSES;
    int64_t mine = 0;
    if (ranks == 1) return CLT_OK;
    for (int i = 0; i < clt_lane_count(split, rank); i++) {
        const int lane = clt_lane_at(split, rank, i);
        mine += clt_lane_sample_begin(samples, split->lanes, lane + 1) -
                clt_lane_sample_begin(samples, split->lanes, lane);
    }
    size_t lens[CLT_GROUP_MAX_RANKS];
    void *all = NULL;
    CLT_TRY(clt_group_all_gatherv(e->group, losses, (size_t)mine * sizeof *losses, lens, &all));
    const char *at = all;
    for (int r = 0; r < ranks; at += lens[r++])
        spread(split, r, samples, (const float *)(const void *)at, losses);
    clt_free(all);
    return CLT_OK;
}

clt_status clt_engine_forgive(clt_engine *e) {
    static const float good = 1.0f;
    return clt_buffer_write(e->results, STATUS_FINITE * sizeof good, &good, sizeof good);
}

/* amp_fp16: if the gradient overflowed, the step is skipped, the scale follows its rule, and the flag is set
 * again for the next step. */
static clt_status follow_scale(clt_engine *e, clt_engine_result *r) {
    r->loss_scale = e->scale.scale;
    r->skipped = !r->finite && isfinite(r->loss);
    if (!r->finite && !r->skipped) return CLT_OK;
    clt_status st = clt_loss_scale_update(&e->cfg->loss_scale, &e->scale, r->finite);
    if (st != CLT_OK) {
        r->skipped = false;
        return CLT_OK;
    }
    r->finite = true;
    return r->skipped ? clt_engine_forgive(e) : CLT_OK;
}

/* Waits for the oldest queued step and computes its result. */
static clt_status look(clt_engine *e, clt_engine_result *out) {
    clt_engine_pending p = e->pending[0];
    float *losses = e->host_results + LOSSES;
    double sum = 0;
    if (e->n_pending == 0) return clt_error(CLT_FAIL, "no step is queued; this is a bug");
    CLT_TRY(clt_buffer_read_end(&p.read, e->host_results));
    for (int i = 1; i < MOST_PENDING; i++) e->pending[i - 1] = e->pending[i];
    e->pending[MOST_PENDING - 1] = (clt_engine_pending){.targets = p.targets}; /* reuse the memory */
    e->n_pending--;
    for (int64_t s = 0; p.targets && s < p.mine; s++)
        losses[s] = p.targets[s] ? (float)((double)losses[s] / (double)p.targets[s]) : 0.0f;
    float norm = clt_engine_needs_norm(e->cfg) ? e->host_results[0] : NAN;
    bool finite = e->host_results[STATUS_FINITE] == 1.0f;
    CLT_TRY(clt_engine_gather(e, &e->split, p.samples));
    CLT_TRY(clt_engine_fp8_follow(e));
    for (int64_t i = 0; i < p.samples; i++) sum += (double)losses[i];
    *out = (clt_engine_result){.loss = p.count > 0 ? sum / (double)p.count : 0.0,
                               .grad_norm = norm,
                               .done = p.read.done,
                               .finite = finite && isfinite(sum)};
    return e->cfg->precision == CLT_F16 ? follow_scale(e, out) : CLT_OK;
}

/* With a judge: waits for the step's results and asks the judge before the update is queued. */
static clt_status judged(clt_engine *e, const clt_engine_step_params *p, clt_slab *total) {
    clt_engine_result *r = &e->judged;
    CLT_TRY(ask(e, p->batch));
    CLT_TRY(look(e, r));
    e->has_judged = true;
    if (!r->finite || r->skipped) return CLT_OK;
    r->refused = !e->judge(e->judge_ctx, r);
    return r->refused ? CLT_OK : clt_engine_update(e, total, p);
}

static clt_status agree_to_begin(clt_engine *e) {
    return clt_group_agree(e->group, clt_group_stop_asked(e->group) ? CLT_STOPPED : CLT_OK);
}

/* Runs all lanes of this rank and adds them up over all ranks. CLT_STOPPED on all ranks: one was asked to
 * stop. */
static clt_status sum_gradients(clt_engine *e, const clt_engine_step_params *p) {
    clt_group_note(e->group, p->step, "forward and backward");
    CLT_TRY(clt_engine_enter(e, CLT_PHASE_FORWARD));
    CLT_TRY(clt_engine_open_step(e, p));
    if (e->sharded_gradients) return clt_engine_run_rounds(e, p->batch, p->step);
    if (e->sharded_weights) CLT_TRY(agree_to_begin(e));
    clt_ops_let_stop(e->ops, !e->sharded_weights); /* then all ranks abandon the step */
    clt_status st = run_lanes(e, p->batch, p->step);
    clt_ops_let_stop(e->ops, false);
    if (st == CLT_OK) st = clt_engine_go_along_lanes(e, p->batch->global_samples);
    clt_group_note(e->group, p->step, "gradient reduction");
    if (st == CLT_OK) st = clt_engine_enter(e, CLT_PHASE_EXCHANGE);
    return clt_engine_reduce(e, st);
}

static clt_status launch(clt_engine *e, const clt_engine_step_params *p, bool *given_up) {
    const clt_status st = sum_gradients(e, p);
    *given_up = st == CLT_STOPPED;
    if (*given_up) return CLT_OK;
    CLT_TRY(st);
    clt_group_note(e->group, p->step, "optimizer");
    CLT_TRY(clt_engine_enter(e, CLT_PHASE_UPDATE));
    CLT_TRY(clt_engine_judge_gradient(e, e->step.total));
    if (e->judge) return judged(e, p, e->step.total);
    CLT_TRY(clt_engine_update(e, e->step.total, p));
    return ask(e, p->batch);
}

clt_status clt_engine_launch(clt_engine *e, const clt_engine_step_params *p, bool *given_up) {
    if (e->n_pending == MOST_PENDING || e->has_judged)
        return clt_error(CLT_FAIL, "step %lld: too many steps are queued already; this is a bug",
                         (long long)p->step);
    clt_status st = launch(e, p, given_up);
    if (st == CLT_OK && !*given_up) st = clt_engine_leave_phases(e);
    e->timed.out = NULL;
    return st;
}

clt_status clt_engine_collect(clt_engine *e, clt_engine_result *out) {
    if (!e->has_judged) CLT_TRY(look(e, out));
    if (e->has_judged) *out = e->judged;
    e->has_judged = false;
    if (e->n_pending > 0 || !e->host_update) return CLT_OK;
    CLT_TRY(clt_engine_host_update_reach(e, UINT64_MAX));
    out->done = clt_now();
    return CLT_OK;
}

clt_status clt_engine_step(clt_engine *e, const clt_engine_step_params *p, clt_engine_result *out) {
    bool given_up;
    CLT_TRY(clt_engine_launch(e, p, &given_up));
    *out = (clt_engine_result){.given_up = given_up};
    return given_up ? CLT_OK : clt_engine_collect(e, out);
}
