/* From the total gradient to new weights: norm, clipping, optimizer, each over what this rank owns. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/train/engine/clt_engine_internal.h"

/* The weights, and what the model reads of them in 16 bits. */
enum { BOTH_WEIGHTS = 1 << CLT_STATE_WEIGHTS | 1 << CLT_STATE_COPY };
enum { GRADIENT = 1 << CLT_STATE_GRADIENT };
enum { BUT_THE_COPY = CLT_STATE_ALL & ~(1 << CLT_STATE_COPY) };
enum { BUT_THE_GRADIENT = CLT_STATE_ALL & ~GRADIENT };

float clt_engine_loss_scale_now(const clt_engine *e) {
    return e->cfg->precision == CLT_F16 ? (float)e->scale.scale : 1.0f;
}

/* Adam's corrections of the moments in step t. DeepSpeed's LAMB has both in the step's length; Adagrad sums
 * squares, which is AdamW's rule with decay rates of 0 and 1. */
typedef struct {
    double first, second, beta1, beta2, one_minus_beta2;
} corrections;

static corrections correct(const clt_optimizer_config *o, const clt_param_group *g,
                           const clt_engine_step_params *at) {
    corrections k = {1, 1, g->beta1, g->beta2, 1.0 - g->beta2};
    if (at->betas && o->kind != CLT_OPTIMIZER_SGD) {
        k.beta1 = at->betas[0];
        k.beta2 = at->betas[1];
        k.one_minus_beta2 = 1.0 - k.beta2;
    }
    if (o->kind == CLT_OPTIMIZER_ADAGRAD) return (corrections){1, 1, 0, 1, 1};
    if (o->uncorrected) return k;
    k.first = 1.0 - clt_dpowi(k.beta1, (long)at->step);
    k.second = clt_dsqrt(1.0 - clt_dpowi(k.beta2, (long)at->step));
    return k;
}

static clt_optimizer_group group_of(const clt_optimizer_config *o, const clt_scaled_group *of,
                                    const clt_engine_step_params *at) {
    const clt_param_group *g = &o->groups[of->group];
    const bool lamb = o->kind == CLT_OPTIMIZER_LAMB, limited = lamb && o->max_coeff > 0,
               own = o->kind == CLT_OPTIMIZER_ADAMW || o->kind == CLT_OPTIMIZER_LIONW,
               adam = own || o->kind == CLT_OPTIMIZER_TORCH_ADAMW, decays = adam && !o->l2;
    const double lr = g->lr * of->scale * at->alpha, composers = g->lr != 0 ? at->alpha : 1.0,
                 ratio = own ? composers : lr;
    const corrections k = correct(o, g, at);
    return (clt_optimizer_group){
        .lr = (float)(limited ? lr * k.second / k.first : lr),
        .decay = decays && g->weight_decay != 0 ? (float)(1.0 - ratio * g->weight_decay) : 1.0f,
        .step_size = (float)(limited ? 1 : (lamb ? 1 : lr) / k.first),
        .bias_correction = (float)(limited ? 1 : k.second),
        .beta1 = (float)k.beta1,
        .beta2 = (float)k.beta2,
        .one_minus_beta1 = (float)(1.0 - k.beta1),
        .one_minus_beta2 = (float)k.one_minus_beta2,
        .eps = (float)g->eps,
        .l2 = decays ? 0.0f : (float)g->weight_decay,
        .nesterov = o->nesterov ? 1.0f : 0.0f,
        .least_ratio = (float)(limited ? o->min_coeff : 0),
        .most_ratio = (float)(limited ? o->max_coeff : 0),
    };
}

static void host_groups(clt_engine *e, const clt_engine_step_params *at) {
    memset(e->host_groups, 0, sizeof e->host_groups);
    for (int i = 0; i < e->n_scaled; i++) e->host_groups[i] = group_of(&e->cfg->optimizer, &e->scaled[i], at);
    e->host_groups[e->n_scaled].frozen = 1.0f;
}

bool clt_engine_needs_norm(const clt_config *c) {
    return c->guards.gradient_norm || c->clip_type == CLT_CLIP_NORM || c->precision == CLT_F16 ||
           c->guards.loss_spike != CLT_SPIKE_OFF;
}

/* --- own ranges, stretch by stretch --- */

/* Handles a stretch: whole chunks of this rank's own elements that lie in one piece of each slab. */
typedef clt_status (*stretch_fn)(clt_engine *e, clt_slab *total, clt_slab_range x);

clt_engine_stretches clt_engine_own_stretches(const clt_engine *e, const clt_slab *total, uint64_t most) {
    return (clt_engine_stretches){.e = e,
                                  .shards = e->stage == 0 ? NULL : &e->shards,
                                  .used = {total, e->master, e->copy, e->m, e->v},
                                  .most = most};
}

static clt_status each_stretch(clt_engine *e, clt_slab *total, uint64_t most, stretch_fn fn) {
    clt_engine_stretches all = clt_engine_own_stretches(e, total, most);
    clt_slab_range x;
    while (clt_engine_next_stretch(&all, &x)) CLT_TRY(fn(e, total, x));
    return CLT_OK;
}

/* The same where a stretch needs the states in the mask `states`, which may have to come from the host's
 * memory or a file. */
static clt_status each_stretch_of_state(clt_engine *e, clt_slab *total, unsigned states, stretch_fn fn) {
    const uint64_t most = clt_offload_most(e->offload, CLT_STATE_ALL);
    clt_engine_stretches ahead = clt_engine_own_stretches(e, total, most);
    CLT_TRY(clt_offload_begin(e->offload, states, clt_engine_next_stretch, &ahead));
    CLT_TRY(each_stretch(e, total, most, fn));
    return clt_offload_end(e->offload);
}

/* --- the gradient's norm --- */

/* Where the total gradient of a stretch is. */
static clt_ref gradient_at(const clt_engine *e, clt_slab *total, clt_slab_range x) {
    return clt_offload_at(e->offload, CLT_STATE_GRADIENT, total, x.first);
}

/* fn for each stretch of the total, which may have to come from the host's memory; fn brings it. */
static clt_status each_stretch_of_gradient(clt_engine *e, clt_slab *total, stretch_fn fn) {
    return clt_offload_has(e->offload, CLT_STATE_GRADIENT) ? each_stretch_of_state(e, total, GRADIENT, fn)
                                                           : each_stretch(e, total, UINT64_MAX, fn);
}

/* Frozen tensors do not contribute to the norm. */
static clt_status clear_frozen(clt_engine *e, clt_slab *total, clt_slab_range x) {
    CLT_TRY(clt_offload_bring(e->offload, GRADIENT, x));
    for (int i = 0; i < e->table.n; i++) {
        const clt_slab_entry *t = &e->table.entry[i];
        const uint64_t first = CLT_MAX(t->offset, x.first),
                       end = CLT_MIN(t->offset + t->count, x.first + x.count);
        if (!e->frozen[i] || end <= first) continue;
        const clt_ref r = clt_ref_at(gradient_at(e, total, x), first - x.first);
        CLT_TRY(clt_buffer_fill32(r.buf, r.off * 4, 0, (end - first) * 4));
    }
    return clt_offload_leave(e->offload, GRADIENT, x);
}

static clt_status sum_squares(clt_engine *e, clt_slab *total, clt_slab_range x) {
    CLT_TRY(clt_offload_bring(e->offload, GRADIENT, x));
    CLT_TRY(clt_op_chunk_sumsq(e->ops, gradient_at(e, total, x), x.count / CLT_CHUNK,
                               (clt_ref){e->chunk_sums, x.first / CLT_CHUNK}));
    return clt_offload_leave(e->offload, 0, x);
}

/* Of the chunks that units share; the others have theirs (clt_engine_host_sums_close). */
static clt_status sum_shared_chunks(clt_engine *e, clt_slab *total) {
    uint64_t before = UINT64_MAX;
    CLT_TRY(clt_offload_begin(e->offload, GRADIENT, NULL, NULL));
    for (int u = 1; u < e->units.n; u++) {
        const uint64_t chunk = e->units.start[u] / CLT_CHUNK;
        if (e->units.start[u] % CLT_CHUNK == 0 || chunk == before) continue;
        CLT_TRY(sum_squares(e, total, (clt_slab_range){chunk * CLT_CHUNK, CLT_CHUNK}));
        before = chunk;
    }
    return clt_offload_end(e->offload);
}

/* Of the whole slab, where it is there: one kernel for each piece instead of one for each bucket, which is
 * too small to fill a device. What is not this rank's is replaced by the sums of its owner. */
static clt_status sum_all_squares(clt_engine *e, clt_slab *total, bool frozen) {
    if (e->host_sums && !frozen) return sum_shared_chunks(e, total);
    if (e->sharded_gradients) return each_stretch_of_gradient(e, total, sum_squares);
    for (uint64_t at = 0, n; at < e->table.total; at += n) {
        clt_slab_at(total, at, &n);
        n = CLT_MIN(n, e->table.total - at);
        CLT_TRY(sum_squares(e, total, (clt_slab_range){at, n}));
    }
    return CLT_OK;
}

/* If the norm is not needed: only of the first elements of the guarded tensor, where the guard puts its NaN,
 * for the chunk in which they lie. */
static clt_status look_at_guard(clt_engine *e, clt_slab *total, clt_slab_range x) {
    enum { FIRST = 64 }; /* tensors start at multiples of 64 elements */
    const uint64_t at = e->table.entry[CLT_MAX(e->guarded, 0)].offset;
    if (at < x.first || at >= x.first + x.count) return CLT_OK;
    CLT_TRY(clt_offload_bring(e->offload, GRADIENT, x));
    CLT_TRY(clt_op_sumsq(e->ops, clt_ref_at(gradient_at(e, total, x), at - x.first), FIRST,
                         (clt_ref){e->chunk_sums, at / CLT_CHUNK}));
    return clt_offload_leave(e->offload, 0, x);
}

static clt_status clip_values(clt_engine *e, clt_slab *total, clt_slab_range x) {
    CLT_TRY(clt_offload_bring(e->offload, GRADIENT, x));
    CLT_TRY(clt_op_clip_values(e->ops, gradient_at(e, total, x), x.count,
                               (float)e->cfg->clip_threshold * clt_engine_loss_scale_now(e)));
    return clt_offload_leave(e->offload, GRADIENT, x);
}

clt_status clt_engine_judge_gradient(clt_engine *e, clt_slab *total) {
    const clt_config *c = e->cfg;
    bool frozen = false;
    for (int i = 0; i < e->table.n; i++) frozen |= e->frozen[i];
    if (frozen) CLT_TRY(each_stretch_of_gradient(e, total, clear_frozen));
    CLT_TRY(clt_engine_needs_norm(c) ? sum_all_squares(e, total, frozen)
                                     : each_stretch_of_gradient(e, total, look_at_guard));
    CLT_TRY(clt_engine_gather_sums(e));
    const clt_norm_status_params p = {.chunk_sums = {e->chunk_sums, 0},
                                      .chunks = e->table.total / CLT_CHUNK,
                                      .threshold =
                                          c->clip_type == CLT_CLIP_NORM ? (float)c->clip_threshold : 0.0f,
                                      .inv_scale = 1.0f / clt_engine_loss_scale_now(e),
                                      .status = {e->results, 0}};
    CLT_TRY(clt_op_norm_status(e->ops, &p));
    return c->clip_type == CLT_CLIP_VALUE ? each_stretch_of_gradient(e, total, clip_values) : CLT_OK;
}

/* --- what the model reads --- */

bool clt_engine_next_wide(const clt_engine *e, clt_slab_range x, uint64_t *at, clt_slab_range *part,
                          clt_ref *to) {
    for (int i = 0; i < e->n_wide; i++) {
        const clt_slab_range *w = &e->wide_range[i];
        const uint64_t first = CLT_MAX(w->first, *at), end = CLT_MIN(w->first + w->count, x.first + x.count);
        uint64_t run;
        if (first >= end) continue;
        *to = clt_slab_at(e->wide, first, &run);
        *part = (clt_slab_range){first, CLT_MIN(run, end - first)};
        *at = first + part->count;
        return true;
    }
    return false;
}

/* The parts of stretch x of the fp32 weights, which is at `from`, that the model reads in fp32. */
static clt_status copy_wide(clt_engine *e, clt_ref from, clt_slab_range x) {
    clt_slab_range part;
    clt_ref to;
    for (uint64_t at = x.first; clt_engine_next_wide(e, x, &at, &part, &to);)
        CLT_TRY(clt_buffer_copy(to.buf, to.off * 4, from.buf, (from.off + part.first - x.first) * 4,
                                part.count * 4));
    return CLT_OK;
}

/* Without offload fp32 tensors are read where they are, or come from their owners (clt_engine_publish); one
 * rank gets nothing from others. */
static clt_status hand_out_wide(clt_engine *e, clt_ref from, clt_slab_range x) {
    const bool here = clt_offload_has(e->offload, CLT_STATE_WEIGHTS) || clt_group_size(e->group) == 1;
    return here ? copy_wide(e, from, x) : CLT_OK;
}

static clt_tensor copy_of(const clt_engine *e, clt_slab_range x) {
    return clt_tensor_vector(clt_offload_at(e->offload, CLT_STATE_COPY, e->copy, x.first), e->cfg->precision);
}

static clt_status copy_stretch(clt_engine *e, clt_slab *total, clt_slab_range x) {
    (void)total;
    CLT_TRY(clt_offload_bring(e->offload, BOTH_WEIGHTS, x));
    const clt_ref from = clt_offload_at(e->offload, CLT_STATE_WEIGHTS, e->master, x.first);
    CLT_TRY(clt_op_cast(e->ops, clt_tensor_vector(from, CLT_F32), copy_of(e, x), x.count));
    CLT_TRY(hand_out_wide(e, from, x));
    return clt_offload_leave(e->offload, 1u << CLT_STATE_COPY, x);
}

clt_status clt_engine_copy_weights(clt_engine *e) {
    clt_model_weights_changed(e->model);
    return e->copy ? each_stretch_of_state(e, NULL, BOTH_WEIGHTS, copy_stretch) : CLT_OK;
}

/* --- the optimizer --- */

clt_status clt_engine_optimizer_step(clt_ops *ops, clt_optimizer_kind kind, const clt_optimizer_params *p) {
    switch (kind) {
    case CLT_OPTIMIZER_LIONW:
        return clt_op_lion(ops, p);
    case CLT_OPTIMIZER_SGD:
        return clt_op_sgd(ops, p);
    default:
        return clt_op_adamw(ops, p);
    }
}

static clt_optimizer_params params_of(clt_engine *e, clt_slab *total, clt_slab_range x) {
    return (clt_optimizer_params){.chunks = x.count / CLT_CHUNK,
                                  .p = clt_offload_at(e->offload, CLT_STATE_WEIGHTS, e->master, x.first),
                                  .g = gradient_at(e, total, x),
                                  .m = clt_offload_at(e->offload, CLT_STATE_FIRST, e->m, x.first),
                                  .v = clt_offload_at(e->offload, CLT_STATE_SECOND, e->v, x.first),
                                  .groups = {e->groups, 0},
                                  .group_of_block = {e->block_group, x.first / 64},
                                  .status = {e->results, 0},
                                  .copy = copy_of(e, x)};
}

static clt_status update_stretch(clt_engine *e, clt_slab *total, clt_slab_range x) {
    if (clt_engine_host_updates(e, x.first)) return CLT_OK;
    CLT_TRY(clt_offload_bring(e->offload, CLT_STATE_ALL, x));
    const clt_optimizer_params p = params_of(e, total, x);
    CLT_TRY(clt_engine_optimizer_step(e->ops, e->cfg->optimizer.kind, &p));
    CLT_TRY(hand_out_wide(e, p.p, x));
    return clt_offload_leave(e->offload, BUT_THE_GRADIENT, x);
}

/* LAMB's moments and directions, which take the gradients' place. */
static clt_status direct_stretch(clt_engine *e, clt_slab *total, clt_slab_range x) {
    CLT_TRY(clt_offload_bring(e->offload, BUT_THE_COPY, x));
    const clt_optimizer_params p = params_of(e, total, x);
    CLT_TRY(clt_op_lamb_direction(e->ops, &p));
    CLT_TRY(clt_engine_lamb_sums(e, &p, x));
    return clt_offload_leave(e->offload, BUT_THE_COPY, x);
}

static clt_status apply_stretch(clt_engine *e, clt_slab *total, clt_slab_range x) {
    const clt_engine_lamb *l = &e->lamb;
    CLT_TRY(clt_offload_bring(e->offload, BOTH_WEIGHTS | GRADIENT, x));
    const clt_optimizer_params p = params_of(e, total, x);
    CLT_TRY(
        clt_op_lamb_apply(e->ops, &p, (clt_ref){l->tensor_of_block, x.first / 64}, (clt_ref){l->ratio, 0}));
    CLT_TRY(hand_out_wide(e, p.p, x));
    return clt_offload_leave(e->offload, BOTH_WEIGHTS, x);
}

static clt_status update_lamb(clt_engine *e, clt_slab *total) {
    CLT_TRY(each_stretch_of_state(e, total, BUT_THE_COPY, direct_stretch));
    CLT_TRY(clt_engine_lamb_ratios(e));
    return each_stretch_of_state(e, total, BOTH_WEIGHTS | GRADIENT, apply_stretch);
}

clt_status clt_engine_update(clt_engine *e, clt_slab *total, const clt_engine_step_params *at) {
    host_groups(e, at);
    CLT_TRY(
        clt_buffer_write(e->groups, 0, e->host_groups, (size_t)(e->n_scaled + 1) * sizeof *e->host_groups));
    const bool lamb = e->cfg->optimizer.kind == CLT_OPTIMIZER_LAMB;
    if (e->host_update) CLT_TRY(clt_engine_host_update_begin(e));
    CLT_TRY(lamb ? update_lamb(e, total) : each_stretch_of_state(e, total, CLT_STATE_ALL, update_stretch));
    if (e->host_update) CLT_TRY(clt_engine_host_update_run(e, total));
    clt_model_weights_changed(e->model);
    return clt_engine_publish(e);
}
