/* One optimizer step: lanes, update, results.
 *
 * clt_engine_launch only queues a step. A flag on the device, computed by the step itself, decides whether
 * the weights change. The results are read back by a queued transfer and returned by clt_engine_collect, up
 * to one step later, so that the device never waits for the host. A step that is not finite leaves the flag
 * cleared: steps queued behind it change nothing either. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/train/engine/clt_engine_internal.h"

/* --- lanes --- */

/* A power of two, so multiplying by it is exact. */
static float loss_scale(const clt_engine *e) {
    return e->cfg->precision == CLT_F16 ? (float)e->scale.scale : 1.0f;
}

/* With accumulate_train_batch_on_tokens: false every sample's mean has the same weight. */
static const float *sample_weights(clt_engine *e, const clt_batch *mb) {
    if (e->cfg->accumulate_on_tokens) return NULL;
    for (int64_t s = 0; s < mb->samples; s++) {
        const double n = (double)mb->sample_targets[s];
        const float w = n > 0 ? (float)(1.0 / (n * (double)mb->global_samples)) : 0.0f;
        e->sample_weight[s] = w * loss_scale(e);
    }
    return e->sample_weight;
}

clt_model_pass clt_engine_pass(clt_engine *e, const clt_batch *b, int64_t at, int64_t n, clt_batch *mb) {
    const double targets = (double)b->global_targets;
    *mb = clt_batch_slice(&e->layout, b, at, n);
    return (clt_model_pass){.batch = mb,
                            .weight = targets > 0 ? (float)(1.0 / targets) * loss_scale(e) : 0.0f,
                            .seed = (uint64_t)e->plan->seed,
                            .sample_loss = {e->results, LOSSES + (uint64_t)at}};
}

clt_status clt_engine_run_lane(clt_engine *e, const clt_batch *b, int64_t step, int lane,
                               const clt_slab *grads) {
    const int64_t first = clt_lane_sample_begin(b->global_samples, e->plan->lanes, lane) - b->first;
    const int64_t last = clt_lane_sample_begin(b->global_samples, e->plan->lanes, lane + 1) - b->first;
    for (int64_t at = first; at < last; at += e->plan->microbatch) {
        clt_batch mb;
        const int64_t n = CLT_MIN(e->plan->microbatch, last - at);
        if (clt_group_stop_asked(e->group)) return CLT_STOPPED;
        clt_model_pass pass = clt_engine_pass(e, b, at, n, &mb);
        pass.sample_weight = sample_weights(e, &mb);
        pass.step = (uint64_t)step;
        pass.dropout = true;
        pass.lane_first = at == first;
        pass.lane_last = at + n == last;
        pass.grads = grads;
        CLT_TRY(clt_model_train(e->model, &pass));
    }
    return CLT_OK;
}

static clt_status run_lanes(clt_engine *e, const clt_batch *b, int64_t step) {
    clt_lane_stack_begin(e->stack);
    for (int lane = e->first_lane; lane < e->last_lane; lane++) {
        bool empty = clt_lane_sample_begin(b->global_samples, e->plan->lanes, lane) ==
                     clt_lane_sample_begin(b->global_samples, e->plan->lanes, lane + 1);
        if (!empty) CLT_TRY(clt_engine_run_lane(e, b, step, lane, clt_lane_stack_slab(e->stack)));
        CLT_TRY(clt_lane_stack_push(e->stack, empty));
    }
    return CLT_OK;
}

/* --- update --- */

static void host_groups(clt_engine *e, int64_t step, double alpha) {
    const clt_optimizer_config *o = &e->cfg->optimizer;
    memset(e->host_groups, 0, sizeof e->host_groups);
    for (int i = 0; i < o->n_groups; i++) {
        const clt_param_group *g = &o->groups[i];
        double lr = g->lr * alpha, ratio = g->lr != 0 ? alpha : 1.0;
        e->host_groups[i] = (clt_optimizer_group){
            .lr = (float)lr,
            .decay = g->weight_decay != 0 ? (float)(1.0 - ratio * g->weight_decay) : 1.0f,
            .step_size = (float)(lr / (1.0 - clt_dpowi(g->beta1, (long)step))),
            .bias_correction = (float)clt_dsqrt(1.0 - clt_dpowi(g->beta2, (long)step)),
            .beta1 = (float)g->beta1,
            .beta2 = (float)g->beta2,
            .one_minus_beta1 = (float)(1.0 - g->beta1),
            .one_minus_beta2 = (float)(1.0 - g->beta2),
            .eps = (float)g->eps,
        };
    }
    e->host_groups[FROZEN_GROUP].frozen = 1.0f;
}

/* Frozen tensors do not contribute to the norm. */
static clt_status clear_frozen(clt_engine *e, clt_slab *total) {
    for (int i = 0; i < e->table.n; i++) {
        if (!e->frozen[i]) continue;
        clt_ref r = clt_slab_ref(total, i);
        CLT_TRY(clt_buffer_fill32(r.buf, r.off * 4, 0, e->table.entry[i].count * 4));
    }
    return CLT_OK;
}

/* Puts a NaN into the gradient if one of this rank's losses is not finite or the previous step cleared the
 * flag: the reduction then tells all ranks. */
static clt_status guard(clt_engine *e, int64_t samples, bool spoilt) {
    clt_slab *total = clt_lane_stack_total(e->stack);
    static const float nan = NAN;
    if (samples == 0 || e->guarded < 0) return CLT_OK;
    if (spoilt) CLT_TRY(clt_buffer_write(e->results, LOSSES * sizeof nan, &nan, sizeof nan));
    return clt_op_guard(e->ops, (clt_ref){e->results, LOSSES}, (uint64_t)samples,
                        (clt_ref){e->results, STATUS_FINITE}, clt_slab_ref(total, e->guarded));
}

static bool needs_norm(const clt_config *c) {
    return c->guards.gradient_norm || c->clip_type == CLT_CLIP_NORM || c->precision == CLT_F16 ||
           c->guards.loss_spike != CLT_SPIKE_OFF;
}

/* Sums of squares of all chunks. If the norm is not needed, only of the first elements of the guarded tensor,
 * where guard() puts its NaN. */
static clt_status sum_chunks(clt_engine *e, clt_slab *total, uint64_t *chunks) {
    if (!needs_norm(e->cfg)) {
        enum { FIRST = 64 }; /* tensors start at multiples of 64 elements */
        *chunks = 1;
        return clt_op_sumsq(e->ops, clt_slab_ref(total, CLT_MAX(e->guarded, 0)), FIRST,
                            (clt_ref){e->chunk_sums, 0});
    }
    *chunks = e->table.total / CLT_CHUNK;
    for (int i = 0; i < total->n; i++)
        if (total->piece[i])
            CLT_TRY(clt_op_chunk_sumsq(e->ops, clt_slab_part(total, i),
                                       (total->start[i + 1] - total->start[i]) / CLT_CHUNK,
                                       (clt_ref){e->chunk_sums, total->start[i] / CLT_CHUNK}));
    return CLT_OK;
}

/* Computes the step's status (norm, clip coefficient, flag) and clips by value. */
static clt_status judge_gradient(clt_engine *e, clt_slab *total) {
    const clt_config *c = e->cfg;
    uint64_t chunks;
    CLT_TRY(sum_chunks(e, total, &chunks));
    float threshold = c->clip_type == CLT_CLIP_NORM ? (float)c->clip_threshold : 0.0f;
    CLT_TRY(clt_op_norm_status(e->ops, &(clt_norm_status_params){.chunk_sums = {e->chunk_sums, 0},
                                                                 .chunks = chunks,
                                                                 .threshold = threshold,
                                                                 .inv_scale = 1.0f / loss_scale(e),
                                                                 .status = {e->results, 0}}));
    for (int i = 0; c->clip_type == CLT_CLIP_VALUE && i < total->n; i++)
        if (total->piece[i])
            CLT_TRY(clt_op_clip_values(e->ops, clt_slab_part(total, i), total->start[i + 1] - total->start[i],
                                       (float)c->clip_threshold * loss_scale(e)));
    return CLT_OK;
}

static clt_status update(clt_engine *e, clt_slab *total, int64_t step, double alpha) {
    const clt_config *c = e->cfg;
    host_groups(e, step, alpha);
    CLT_TRY(clt_buffer_write(e->groups, 0, e->host_groups, sizeof e->host_groups));
    for (int i = 0; i < total->n; i++) {
        uint64_t first = total->start[i], chunks = (total->start[i + 1] - first) / CLT_CHUNK;
        clt_optimizer_params p = {
            .chunks = chunks,
            .p = clt_slab_part(e->weights, i),
            .g = clt_slab_part(total, i),
            .m = clt_slab_part(e->m, i),
            .v = e->v ? clt_slab_part(e->v, i) : clt_ref_none(),
            .groups = {e->groups, 0},
            .group_of_block = {e->block_group, first / 64},
            .status = {e->results, 0},
            .copy =
                clt_tensor_vector(e->narrow ? clt_slab_part(e->narrow, i) : clt_ref_none(), c->precision)};
        if (!total->piece[i]) continue;
        CLT_TRY(clt_engine_second_moment(e->cfg) ? clt_op_adamw(e->ops, &p) : clt_op_lion(e->ops, &p));
    }
    return CLT_OK;
}

clt_status clt_engine_step_ops(clt_engine *e, int64_t samples) {
    clt_slab *total = e->grads[0];
    CLT_TRY(guard(e, samples, false));
    if (e->n_grads > 1 || clt_group_size(e->group) > 1)
        CLT_TRY(clt_op_add(e->ops, clt_slab_part(total, 0), clt_slab_part(total, 0), CLT_CHUNK));
    CLT_TRY(judge_gradient(e, total));
    return update(e, total, 1, 1.0);
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

clt_status clt_engine_gather(clt_engine *e, int64_t samples) {
    int64_t first, last;
    float *losses = e->host_results + LOSSES;
    if (clt_group_size(e->group) == 1) return CLT_OK;
    clt_engine_share(e, samples, &first, &last);
    size_t lens[CLT_GROUP_MAX_RANKS];
    void *all = NULL;
    CLT_TRY(clt_group_all_gatherv(e->group, losses, (size_t)(last - first) * sizeof *losses, lens, &all));
    memcpy(losses, all, (size_t)samples * sizeof *losses);
    clt_free(all);
    return CLT_OK;
}

clt_status clt_engine_forgive(clt_engine *e) {
    static const float good = 1.0f;
    return clt_buffer_write(e->results, STATUS_FINITE * sizeof good, &good, sizeof good);
}

/* amp_fp16: if the gradient overflowed, the step is skipped, the scale is halved, and the flag is set again
 * for the next step. */
static clt_status follow_scale(clt_engine *e, clt_engine_result *r) {
    r->loss_scale = e->scale.scale;
    r->skipped = !r->finite && isfinite(r->loss);
    if (!r->finite && !r->skipped) return CLT_OK;
    clt_status st = clt_loss_scale_update(&e->scale, r->finite);
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
    float norm = needs_norm(e->cfg) ? e->host_results[0] : NAN;
    bool finite = e->host_results[STATUS_FINITE] == 1.0f;
    CLT_TRY(clt_engine_gather(e, p.samples));
    for (int64_t i = 0; i < p.samples; i++) sum += (double)losses[i];
    *out = (clt_engine_result){.loss = p.count > 0 ? sum / (double)p.count : 0.0,
                               .grad_norm = norm,
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
    return r->refused ? CLT_OK : update(e, total, p->step, p->alpha);
}

/* Runs all lanes of this rank; *total receives their sum over all ranks. NULL: a rank was asked to stop, and
 * all ranks abandon the step. */
static clt_status sum_gradients(clt_engine *e, const clt_engine_step_params *p, clt_slab **total) {
    int n;
    *total = NULL;
    clt_group_note(e->group, p->step, "forward and backward");
    clt_ops_let_stop(e->ops, true); /* then all ranks abandon the step */
    clt_status st = run_lanes(e, p->batch, p->step);
    clt_ops_let_stop(e->ops, false);
    if (st != CLT_OK && st != CLT_STOPPED) return st;
    if (st == CLT_OK) CLT_TRY(guard(e, p->batch->samples, p->spoilt));
    const clt_lane_sum *sums = clt_lane_stack_sums(e->stack, &n);
    clt_slab *sum = clt_lane_stack_total(e->stack);
    clt_group_note(e->group, p->step, "gradient reduction");
    st = clt_group_reduce(e->reduce, sums, st == CLT_STOPPED ? -1 : n, sum);
    if (st == CLT_OK) *total = sum;
    return st == CLT_STOPPED ? CLT_OK : st;
}

clt_status clt_engine_launch(clt_engine *e, const clt_engine_step_params *p, bool *given_up) {
    clt_slab *total;
    if (e->n_pending == MOST_PENDING || e->has_judged)
        return clt_error(CLT_FAIL, "step %lld: too many steps are queued already; this is a bug",
                         (long long)p->step);
    CLT_TRY(sum_gradients(e, p, &total));
    *given_up = !total;
    if (*given_up) return CLT_OK;
    clt_group_note(e->group, p->step, "optimizer");
    CLT_TRY(clear_frozen(e, total));
    CLT_TRY(judge_gradient(e, total));
    if (e->judge) return judged(e, p, total);
    CLT_TRY(update(e, total, p->step, p->alpha));
    return ask(e, p->batch);
}

clt_status clt_engine_collect(clt_engine *e, clt_engine_result *out) {
    if (!e->has_judged) return look(e, out);
    *out = e->judged;
    e->has_judged = false;
    return CLT_OK;
}

clt_status clt_engine_step(clt_engine *e, const clt_engine_step_params *p, clt_engine_result *out) {
    bool given_up;
    CLT_TRY(clt_engine_launch(e, p, &given_up));
    *out = (clt_engine_result){.given_up = given_up};
    return given_up ? CLT_OK : clt_engine_collect(e, out);
}
