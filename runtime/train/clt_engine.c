#include "clt_engine.h"

#include <math.h>
#include <string.h>

#include "../base/clt_dmath.h"
#include "clt_engine_internal.h"

static bool has_second_moment(const clt_config *c) {
    return c->optimizer.kind == CLT_OPTIMIZER_ADAMW;
}

static clt_status add_slabs(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_add(ctx, dst, src, count);
}

/* --- creation
 * ------------------------------------------------------------------------------------------------- */

/* One byte per 64 elements: the optimizer group of the tensor that lies there. */
static clt_status create_groups(clt_engine *e) {
    const clt_slab_table *t = &e->table;
    clt_device *dev = clt_ops_device(e->ops);
    uint8_t *group = clt_calloc((size_t)t->n, 1), *block = clt_calloc((size_t)(t->total / 64), 1);
    const char **names = clt_calloc((size_t)t->n, sizeof *names);
    e->frozen = clt_calloc((size_t)t->n, sizeof *e->frozen);
    for (int i = 0; i < t->n; i++) names[i] = t->entry[i].name;
    clt_status st = clt_optimizer_groups(&e->cfg->optimizer, names, (size_t)t->n, group, e->frozen);
    for (int i = 0; st == CLT_OK && i < t->n; i++) {
        uint64_t first = t->entry[i].offset / 64, n = CLT_CEIL_DIV(t->entry[i].count, 64);
        memset(block + first, e->frozen[i] ? FROZEN_GROUP : group[i], n);
    }
    if (st == CLT_OK) st = clt_buffer_create(dev, t->total / 64, "optimizer groups", &e->block_group);
    if (st == CLT_OK) st = clt_buffer_write(e->block_group, 0, block, t->total / 64);
    if (st == CLT_OK) st = clt_buffer_create(dev, sizeof e->host_groups, "optimizer groups", &e->groups);
    clt_free(names);
    clt_free(group);
    clt_free(block);
    return st;
}

static clt_status create_training(clt_engine *e) {
    clt_device *dev = clt_ops_device(e->ops);
    int rank = clt_group_rank(e->group), ranks = clt_group_size(e->group);
    int64_t G = e->cfg->global_train_batch_size;
    e->first_lane = clt_lane_begin(e->lanes, ranks, rank);
    e->last_lane = clt_lane_begin(e->lanes, ranks, rank + 1);
    CLT_TRY(clt_slab_create(dev, &e->table, 0, "exp_avg", &e->m));
    if (has_second_moment(e->cfg)) CLT_TRY(clt_slab_create(dev, &e->table, 0, "exp_avg_sq", &e->v));
    e->n_grads = clt_lane_slabs_needed(e->lanes, e->first_lane, e->last_lane, G);
    e->grads = clt_calloc((size_t)e->n_grads, sizeof *e->grads);
    for (int i = 0; i < e->n_grads; i++)
        CLT_TRY(clt_slab_create(dev, &e->table, 0, "gradients", &e->grads[i]));
    e->stack = clt_lane_stack_create(e->first_lane, e->last_lane, e->grads, e->n_grads, add_slabs, e->ops);
    CLT_TRY(clt_reduce_plan_create(e->group, dev, &e->table, e->lanes, add_slabs, e->ops, &e->reduce));
    CLT_TRY(clt_buffer_create(dev, e->table.total / CLT_CHUNK * 4, "chunk sums", &e->chunk_sums));
    CLT_TRY(clt_buffer_create(dev, 16, "step status", &e->status));
    return create_groups(e);
}

static int64_t most_samples(const clt_config *c) {
    return CLT_MAX(c->global_train_batch_size, c->device_eval_batch_size);
}

clt_status clt_engine_create(const clt_engine_params *p, clt_engine **out) {
    const clt_config *c = p->cfg;
    clt_engine *e = clt_calloc(1, sizeof *e);
    e->cfg = c;
    e->group = p->group;
    e->ops = p->ops;
    e->lanes = p->lanes;
    e->microbatch = p->microbatch;
    e->seq = c->max_seq_len;
    clt_device *dev = clt_ops_device(p->ops);
    clt_mpt_shape shape = {
        .microbatch = p->microbatch, .seq = e->seq, .training = p->training, .recompute = c->recompute};
    int64_t most = most_samples(c) * clt_group_size(p->group);
    e->host_losses = clt_calloc((size_t)most, sizeof *e->host_losses);
    e->host_correct = clt_calloc((size_t)(p->microbatch * e->seq), sizeof *e->host_correct);
    e->host_row_weight = clt_calloc((size_t)(p->microbatch * e->seq), sizeof *e->host_row_weight);
    clt_status st = clt_mpt_table(&c->model, &e->table);
    if (st == CLT_OK) st = clt_slab_create(dev, &e->table, 0, "weights", &e->weights);
    if (st == CLT_OK && p->training) st = create_training(e);
    if (st == CLT_OK) st = clt_buffer_create(dev, (size_t)most * 4, "sample losses", &e->losses);
    if (st == CLT_OK)
        st = clt_buffer_create(dev, (size_t)(p->microbatch * e->seq) * 4, "correct", &e->correct);
    if (st == CLT_OK) st = clt_buffer_create(dev, 4, "non-finite count", &e->nonfinite);
    if (st == CLT_OK) st = clt_mpt_create(&c->model, &shape, p->ops, e->weights, NULL, &e->model);
    if (st != CLT_OK) {
        clt_engine_destroy(e);
        return st;
    }
    e->parts[e->n_parts++] = (clt_ckpt_part){.role = "weight", .slab = e->weights};
    if (e->m) e->parts[e->n_parts++] = (clt_ckpt_part){.role = "exp_avg", .slab = e->m};
    if (e->v) e->parts[e->n_parts++] = (clt_ckpt_part){.role = "exp_avg_sq", .slab = e->v};
    *out = e;
    return CLT_OK;
}

void clt_engine_destroy(clt_engine *e) {
    if (!e) return;
    clt_mpt_destroy(e->model);
    clt_reduce_plan_destroy(e->reduce);
    clt_lane_stack_destroy(e->stack);
    for (int i = 0; i < e->n_grads && e->grads; i++) clt_slab_destroy(e->grads[i]);
    clt_slab_destroy(e->weights);
    clt_slab_destroy(e->m);
    clt_slab_destroy(e->v);
    clt_buffer *buffers[] = {e->block_group, e->groups,  e->chunk_sums, e->status,
                             e->losses,      e->correct, e->nonfinite};
    for (size_t i = 0; i < CLT_COUNT_OF(buffers); i++) clt_buffer_destroy(buffers[i]);
    clt_slab_table_free(&e->table);
    clt_free(e->grads);
    clt_free(e->frozen);
    clt_free(e->host_losses);
    clt_free(e->host_correct);
    clt_free(e->host_row_weight);
    clt_free(e);
}

const clt_slab_table *clt_engine_table(const clt_engine *e) {
    return &e->table;
}
clt_mpt *clt_engine_model(clt_engine *e) {
    return e->model;
}

const clt_ckpt_part *clt_engine_parts(const clt_engine *e, int *n) {
    *n = e->n_parts;
    return e->parts;
}

void clt_engine_share(const clt_engine *e, int64_t samples, int64_t *first, int64_t *last) {
    int rank = clt_group_rank(e->group), ranks = clt_group_size(e->group);
    *first = clt_lane_sample_begin(samples, e->lanes, clt_lane_begin(e->lanes, ranks, rank));
    *last = clt_lane_sample_begin(samples, e->lanes, clt_lane_begin(e->lanes, ranks, rank + 1));
}

/* --- lanes
 * ------------------------------------------------------------------------------------------------------ */

/* accumulate_train_batch_on_tokens false: every sample's mean counts the same. */
static const float *row_weights(clt_engine *e, const clt_engine_batch *b, const int32_t *labels,
                                int64_t samples) {
    if (e->cfg->accumulate_on_tokens) return NULL;
    for (int64_t s = 0; s < samples; s++) {
        int64_t n = 0;
        for (int64_t t = 0; t < e->seq; t++) n += labels[s * e->seq + t] >= 0;
        float w = n ? (float)(1.0 / ((double)n * (double)b->samples)) : 0.0f;
        for (int64_t t = 0; t < e->seq; t++) e->host_row_weight[s * e->seq + t] = w;
    }
    return e->host_row_weight;
}

/* One microbatch: samples [at, at + n) of the global batch, whose arrays start at sample `mine`. */
static clt_mpt_batch microbatch(clt_engine *e, const clt_engine_batch *b, int64_t mine, int64_t at,
                                int64_t n) {
    int64_t skip = (at - mine) * e->seq;
    return (clt_mpt_batch){.samples = n,
                           .tokens = b->tokens + skip,
                           .targets = b->labels + skip,
                           .seq_ids = b->seq_ids ? b->seq_ids + skip : NULL,
                           .weight = b->targets ? (float)(1.0 / (double)b->targets) : 0.0f,
                           .first_sample = at,
                           .seed = (uint64_t)e->cfg->seed,
                           .sample_loss = {e->losses, (uint64_t)(at - mine)}};
}

/* CLT_AGAIN, without a message, once some rank was asked to stop. */
static clt_status run_lane(clt_engine *e, const clt_engine_batch *b, int64_t step, int lane,
                           const clt_slab *grads) {
    int64_t mine, end, first = clt_lane_sample_begin(b->samples, e->lanes, lane);
    int64_t last = clt_lane_sample_begin(b->samples, e->lanes, lane + 1);
    clt_engine_share(e, b->samples, &mine, &end);
    for (int64_t at = first; at < last; at += e->microbatch) {
        int64_t n = CLT_MIN(e->microbatch, last - at);
        if (clt_group_stop_asked(e->group)) return CLT_AGAIN;
        clt_mpt_batch mb = microbatch(e, b, mine, at, n);
        mb.row_weight = row_weights(e, b, mb.targets, n);
        mb.step = (uint64_t)step;
        mb.dropout = true;
        mb.lane_first = at == first;
        mb.lane_last = at + n == last;
        mb.grads = grads;
        CLT_TRY(clt_mpt_train(e->model, &mb));
    }
    return CLT_OK;
}

static clt_status run_lanes(clt_engine *e, const clt_engine_batch *b, int64_t step) {
    clt_lane_stack_begin(e->stack);
    for (int lane = e->first_lane; lane < e->last_lane; lane++) {
        bool empty = clt_lane_sample_begin(b->samples, e->lanes, lane) ==
                     clt_lane_sample_begin(b->samples, e->lanes, lane + 1);
        if (!empty) CLT_TRY(run_lane(e, b, step, lane, clt_lane_stack_slab(e->stack)));
        CLT_TRY(clt_lane_stack_push(e->stack, empty));
    }
    return CLT_OK;
}

/* --- update
 * ------------------------------------------------------------------------------------------------------- */

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

/* A frozen tensor takes no part in the norm. */
static clt_status clear_frozen(clt_engine *e, clt_slab *total) {
    for (int i = 0; i < e->table.n; i++) {
        if (!e->frozen[i]) continue;
        clt_ref r = clt_slab_ref(total, i);
        CLT_TRY(clt_buffer_fill32(r.buf, r.off * 4, 0, e->table.entry[i].count * 4));
    }
    return CLT_OK;
}

static clt_status measure_norm(clt_engine *e, clt_slab *total) {
    const clt_config *c = e->cfg;
    for (int i = 0; i < total->n; i++)
        CLT_TRY(clt_op_chunk_sumsq(e->ops, (clt_ref){total->piece[i], 0},
                                   (total->start[i + 1] - total->start[i]) / CLT_CHUNK,
                                   (clt_ref){e->chunk_sums, total->start[i] / CLT_CHUNK}));
    float threshold = c->clip_type == CLT_CLIP_NORM ? (float)c->clip_threshold : 0.0f;
    CLT_TRY(clt_op_norm_status(e->ops, (clt_ref){e->chunk_sums, 0}, e->table.total / CLT_CHUNK, threshold, 1.0f,
                               (clt_ref){e->status, 0}));
    for (int i = 0; c->clip_type == CLT_CLIP_VALUE && i < total->n; i++)
        CLT_TRY(clt_op_clip_values(e->ops, (clt_ref){total->piece[i], 0},
                                   total->start[i + 1] - total->start[i], (float)c->clip_threshold));
    return CLT_OK;
}

static clt_status update(clt_engine *e, clt_slab *total, int64_t step, double alpha) {
    host_groups(e, step, alpha);
    CLT_TRY(clt_buffer_write(e->groups, 0, e->host_groups, sizeof e->host_groups));
    for (int i = 0; i < total->n; i++) {
        uint64_t first = total->start[i], chunks = (total->start[i + 1] - first) / CLT_CHUNK;
        clt_optimizer_params p = {.chunks = chunks,
                                  .p = {e->weights->piece[i], 0},
                                  .g = {total->piece[i], 0},
                                  .m = {e->m->piece[i], 0},
                                  .v = {e->v ? e->v->piece[i] : NULL, 0},
                                  .groups = {e->groups, 0},
                                  .group_of_block = {e->block_group, first / 64},
                                  .status = {e->status, 0}};
        CLT_TRY(has_second_moment(e->cfg) ? clt_op_adamw(e->ops, &p) : clt_op_lion(e->ops, &p));
    }
    return CLT_OK;
}

/* Every rank's sample losses, in global order. */
static clt_status gather_losses(clt_engine *e, int64_t samples) {
    int64_t first, last;
    clt_engine_share(e, samples, &first, &last);
    size_t mine = (size_t)(last - first) * sizeof(float);
    if (mine) CLT_TRY(clt_buffer_read(e->losses, 0, e->host_losses, mine));
    if (clt_group_size(e->group) == 1) return CLT_OK;
    size_t lens[CLT_GROUP_MAX_RANKS];
    void *all = NULL;
    CLT_TRY(clt_group_all_gatherv(e->group, e->host_losses, mine, lens, &all));
    memcpy(e->host_losses, all, (size_t)samples * sizeof(float));
    clt_free(all);
    return CLT_OK;
}

/* Sum in global order; with sample means each sample's sum is divided by its number of targets first. */
static double sum_losses(const clt_engine *e, int64_t samples) {
    double sum = 0;
    for (int64_t i = 0; i < samples; i++) sum += (double)e->host_losses[i];
    return sum;
}

/* Where samples count the same, the losses of this rank's samples become means before they are gathered. */
static clt_status mean_losses(clt_engine *e, const clt_engine_batch *b) {
    int64_t first, last;
    clt_engine_share(e, b->samples, &first, &last);
    if (first == last) return CLT_OK;
    CLT_TRY(clt_buffer_read(e->losses, 0, e->host_losses, (size_t)(last - first) * 4));
    for (int64_t s = 0; s < last - first; s++) {
        int64_t n = 0;
        for (int64_t t = 0; t < e->seq; t++) n += b->labels[s * e->seq + t] >= 0;
        e->host_losses[s] = n ? (float)((double)e->host_losses[s] / (double)n) : 0.0f;
    }
    return clt_buffer_write(e->losses, 0, e->host_losses, (size_t)(last - first) * 4);
}

clt_status clt_engine_step(clt_engine *e, const clt_engine_batch *b, int64_t step, double alpha,
                           clt_engine_result *out) {
    int n;
    clt_group_note(e->group, step, "forward and backward");
    clt_status st = run_lanes(e, b, step);
    if (st != CLT_OK && st != CLT_AGAIN) return st;
    const clt_lane_sum *sums = clt_lane_stack_sums(e->stack, &n);
    clt_slab *total = clt_lane_stack_total(e->stack);
    clt_group_note(e->group, step, "gradient reduction");
    st = clt_group_reduce(e->reduce, sums, st == CLT_AGAIN ? -1 : n, total);
    if (st == CLT_AGAIN) {
        *out = (clt_engine_result){.given_up = true};
        return CLT_OK;
    }
    CLT_TRY(st);
    clt_group_note(e->group, step, "optimizer");
    CLT_TRY(clear_frozen(e, total));
    CLT_TRY(measure_norm(e, total));
    CLT_TRY(update(e, total, step, alpha));
    float status[3];
    CLT_TRY(clt_ref_read_f32((clt_ref){e->status, 0}, status, 3));
    if (!e->cfg->accumulate_on_tokens) CLT_TRY(mean_losses(e, b));
    CLT_TRY(gather_losses(e, b->samples));
    double sum = sum_losses(e, b->samples),
           count = (double)(e->cfg->accumulate_on_tokens ? b->targets : b->samples);
    *out = (clt_engine_result){.loss = count > 0 ? sum / count : 0.0,
                               .grad_norm = status[0],
                               .finite = status[2] == 1.0f && isfinite(sum)};
    return CLT_OK;
}

/* --- evaluation
 * --------------------------------------------------------------------------------------------------- */

clt_status clt_engine_prepare_eval(clt_engine *e) {
    int32_t *zeros = clt_calloc((size_t)e->seq, sizeof *zeros);
    clt_mpt_batch mb = {.samples = 1,
                        .tokens = zeros,
                        .targets = zeros,
                        .seq_ids = e->cfg->model.attn_uses_sequence_id ? zeros : NULL,
                        .sample_loss = {e->losses, 0}};
    clt_status st = clt_mpt_eval(e->model, &mb, (clt_ref){e->correct, 0});
    if (st == CLT_OK) st = clt_device_finish(clt_ops_device(e->ops));
    clt_free(zeros);
    return st;
}

clt_status clt_engine_eval(clt_engine *e, const clt_engine_batch *b, clt_engine_sums *sums) {
    int64_t mine, last, correct = 0;
    clt_engine_share(e, b->samples, &mine, &last);
    for (int64_t at = mine; at < last; at += e->microbatch) {
        int64_t n = CLT_MIN(e->microbatch, last - at);
        clt_mpt_batch mb = microbatch(e, b, mine, at, n);
        CLT_TRY(clt_mpt_eval(e->model, &mb, (clt_ref){e->correct, 0}));
        CLT_TRY(clt_buffer_read(e->correct, 0, e->host_correct, (size_t)(n * e->seq) * 4));
        for (int64_t i = 0; i < n * e->seq; i++) correct += e->host_correct[i];
    }
    CLT_TRY(gather_losses(e, b->samples));
    CLT_TRY(clt_group_sum_i64(e->group, &correct, 1));
    for (int64_t i = 0; i < b->samples; i++) sums->loss += (double)e->host_losses[i];
    sums->targets += b->targets;
    sums->correct += correct;
    return CLT_OK;
}

/* --- what broke
 * ------------------------------------------------------------------------------------------------------ */

typedef struct {
    clt_engine *e;
    char what[160]; /* the first operation that made something that is not finite; "" so far */
} finder;

static clt_status look(void *ctx, const char *what, clt_dtype type, clt_ref made, uint64_t count) {
    finder *f = ctx;
    uint32_t bad = 0;
    if (f->what[0]) return CLT_OK;
    CLT_TRY(clt_buffer_fill32(f->e->nonfinite, 0, 0, 4));
    CLT_TRY(clt_op_count_nonfinite(f->e->ops, type, made, count, (clt_ref){f->e->nonfinite, 0}));
    CLT_TRY(clt_buffer_read(f->e->nonfinite, 0, &bad, 4));
    if (bad) snprintf(f->what, sizeof f->what, "%s: %u of %llu values", what, bad, (unsigned long long)count);
    return CLT_OK;
}

/* A weight that is not finite already is named before any operation. */
static clt_status look_at_weights(finder *f) {
    const clt_slab_table *t = &f->e->table;
    char what[200];
    for (int i = 0; i < t->n && !f->what[0]; i++) {
        snprintf(what, sizeof what, "weight %s", t->entry[i].name);
        CLT_TRY(look(f, what, CLT_F32, clt_slab_ref(f->e->weights, i), t->entry[i].count));
    }
    return CLT_OK;
}

clt_status clt_engine_explain(clt_engine *e, const clt_engine_batch *b, int64_t step) {
    struct {
        int32_t lane; /* -1: found nothing */
        char what[160];
    } mine = {.lane = -1}, all[CLT_GROUP_MAX_RANKS];
    finder f = {.e = e};
    CLT_TRY(look_at_weights(&f));
    if (f.what[0]) mine.lane = e->first_lane;
    clt_mpt_set_watch(e->model, look, &f);
    clt_status st = CLT_OK;
    for (int lane = e->first_lane; lane < e->last_lane && !f.what[0] && st == CLT_OK; lane++) {
        mine.lane = lane;
        st = run_lane(e, b, step, lane, e->grads[0]);
    }
    clt_mpt_set_watch(e->model, NULL, NULL);
    CLT_TRY(st);
    if (!f.what[0]) mine.lane = -1;
    memcpy(mine.what, f.what, sizeof mine.what);
    CLT_TRY(clt_group_all_gather(e->group, &mine, sizeof mine, all));
    for (int r = 0; r < clt_group_size(e->group); r++) {
        if (all[r].lane < 0) continue;
        if (clt_group_rank(e->group) == 0)
            clt_error(CLT_FAIL,
                      "step %lld: the first operation that made a NaN or an infinity: %s (rank %d, lane %d)",
                      (long long)step, all[r].what, r, all[r].lane);
        return CLT_OK;
    }
    if (clt_group_rank(e->group) == 0)
        clt_error(CLT_FAIL,
                  "step %lld: every operation of every lane is finite, their sum over the lanes is not",
                  (long long)step);
    return CLT_OK;
}
