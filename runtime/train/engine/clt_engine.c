/* Creation and destruction of an engine, rehearsal, speed measurement, evaluation. The step is in
 * clt_engine_step.c. */
#include <math.h>
#include <string.h>

#include "runtime/device/clt_tensor_map.h"
#include "runtime/train/engine/clt_engine_internal.h"

bool clt_engine_second_moment(const clt_config *c) {
    return c->optimizer.kind == CLT_OPTIMIZER_ADAMW;
}

static clt_status add_slabs(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_add(ctx, dst, src, count);
}
static clt_status to_bf16(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ctx, clt_tensor_vector(src, CLT_F32), clt_tensor_vector(dst, CLT_BF16), count);
}
static clt_status to_f32(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ctx, clt_tensor_vector(src, CLT_BF16), clt_tensor_vector(dst, CLT_F32), count);
}

/* --- creation --- */

/* One byte per 64 elements of the slab: the optimizer group of the tensor at that place. */
static clt_status create_groups(clt_engine *e) {
    const clt_slab_table *t = &e->table;
    clt_device *dev = clt_ops_device(e->ops);
    uint8_t *group = clt_calloc((size_t)t->n, 1), *block = clt_calloc((size_t)(t->total / 64), 1);
    const char **names = clt_calloc((size_t)t->n, sizeof *names);
    e->frozen = clt_calloc((size_t)t->n, sizeof *e->frozen);
    e->guarded = -1;
    for (int i = 0; i < t->n; i++) names[i] = t->entry[i].name;
    clt_status st = clt_optimizer_groups(&e->cfg->optimizer, names, (size_t)t->n, group, e->frozen);
    for (int i = 0; st == CLT_OK && i < t->n; i++) {
        uint64_t first = t->entry[i].offset / 64, n = CLT_CEIL_DIV(t->entry[i].count, 64);
        memset(block + first, e->frozen[i] ? FROZEN_GROUP : group[i], n);
        if (!e->frozen[i] && e->guarded < 0) e->guarded = i;
    }
    if (st == CLT_OK) st = clt_buffer_create(dev, t->total / 64, "optimizer groups", &e->block_group);
    if (st == CLT_OK) st = clt_buffer_write(e->block_group, 0, block, t->total / 64);
    if (st == CLT_OK) st = clt_buffer_create(dev, sizeof e->host_groups, "optimizer groups", &e->groups);
    clt_free(names);
    clt_free(group);
    clt_free(block);
    return st;
}

/* A slab of optimizer state: whole, or this rank's part. */
static clt_status create_state(clt_engine *e, const char *name, clt_slab **out) {
    clt_device *dev = clt_ops_device(e->ops);
    if (e->stage == 0) return clt_slab_create(dev, &e->table, 0, name, out);
    return clt_slab_create_shard(dev, &e->table, &e->shards, clt_group_rank(e->group), 4, name, out);
}

static clt_status create_training(clt_engine *e) {
    clt_device *dev = clt_ops_device(e->ops);
    int rank = clt_group_rank(e->group);
    int64_t G = e->cfg->global_train_batch_size;
    e->first_lane = clt_lane_begin(&e->split, rank);
    e->last_lane = clt_lane_begin(&e->split, rank + 1);
    CLT_TRY(clt_shards_create(&e->table, clt_group_size(e->group), NULL, &e->shards));
    CLT_TRY(create_state(e, "exp_avg", &e->m));
    if (clt_engine_second_moment(e->cfg)) CLT_TRY(create_state(e, "exp_avg_sq", &e->v));
    e->n_grads = clt_lane_slabs_needed(e->plan->lanes, e->first_lane, e->last_lane, G);
    e->grads = clt_calloc((size_t)e->n_grads, sizeof *e->grads);
    for (int i = 0; i < e->n_grads; i++)
        CLT_TRY(clt_slab_create(dev, &e->table, 0, "gradients", &e->grads[i]));
    e->stack = clt_lane_stack_create(e->first_lane, e->last_lane, e->grads, e->n_grads, add_slabs, e->ops);
    CLT_TRY(clt_buffer_create(dev, e->table.total / CLT_CHUNK * 4, "chunk sums", &e->chunk_sums));
    return create_groups(e);
}

/* Collective, so it comes last: first the ranks agree that each of them has everything else. */
static clt_status create_reduction(clt_engine *e, clt_status ready) {
    CLT_TRY(clt_group_agree(e->group, ready));
    clt_reduce_math math = {.add = add_slabs, .ctx = e->ops};
    if (e->cfg->reduce_bf16) math.to_bf16 = to_bf16, math.to_f32 = to_f32;
    e->step.final = clt_calloc((size_t)e->table.n, sizeof *e->step.final);
    e->published = clt_calloc((size_t)e->shards.buckets, sizeof *e->published);
    clt_model_set_ready(e->model, clt_engine_ready, e);
    return clt_reduce_plan_create(e->group, clt_ops_device(e->ops), &e->shards, &e->split, &math, &e->reduce);
}

/* Status of the last step (initially "finite") and a loss per sample. */
static clt_status create_results(clt_engine *e, int64_t most) {
    static const float good[LOSSES] = {0.0f, 1.0f, 1.0f};
    clt_device *dev = clt_ops_device(e->ops);
    CLT_TRY(clt_buffer_create(dev, (size_t)(LOSSES + most) * 4, "step results", &e->results));
    e->host_results = clt_calloc((size_t)(LOSSES + most), sizeof *e->host_results);
    return clt_buffer_write(e->results, 0, good, sizeof good);
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
    e->plan = p->plan;
    e->stage = p->training ? p->plan->stage : 0;
    e->split = clt_plan_split(p->plan);
    e->layout = clt_model_layout(c->model, c->max_seq_len);
    e->scale = clt_loss_scale_default();
    clt_device *dev = clt_ops_device(p->ops);
    clt_model_shape shape = clt_plan_shape(c, p->plan, p->training);
    int64_t most = most_samples(c) * clt_group_size(p->group);
    e->sample_weight = clt_calloc((size_t)p->plan->microbatch, sizeof *e->sample_weight);
    clt_status st = clt_model_table(c->model, &e->table);
    if (st == CLT_OK) st = clt_slab_create(dev, &e->table, 0, "weights", &e->weights);
    if (st == CLT_OK && c->precision != CLT_F32)
        st = clt_slab_create_narrow(dev, e->weights, "16-bit weights", &e->narrow);
    if (st == CLT_OK && p->training) st = create_training(e);
    if (st == CLT_OK) st = create_results(e, most);
    if (st == CLT_OK) st = clt_buffer_create(dev, 4, "non-finite count", &e->nonfinite);
    if (st == CLT_OK)
        st = clt_buffer_create(dev, (size_t)e->weights->n * CLT_HASH_SUMS * sizeof(uint64_t), "hashes",
                               &e->hashes);
    if (st == CLT_OK) st = clt_model_create(c->model, &shape, p->ops, e->weights, e->narrow, &e->model);
    if (p->training) st = create_reduction(e, st);
    if (st != CLT_OK) {
        clt_engine_destroy(e);
        return st;
    }
    const clt_shards *shards = e->stage > 0 ? &e->shards : NULL;
    e->parts[e->n_parts++] = (clt_ckpt_part){.role = "weight", .slab = e->weights};
    if (e->m) e->parts[e->n_parts++] = (clt_ckpt_part){.role = "exp_avg", .slab = e->m, .shards = shards};
    if (e->v) e->parts[e->n_parts++] = (clt_ckpt_part){.role = "exp_avg_sq", .slab = e->v, .shards = shards};
    clt_debug("allocated weights, optimizer state and activations");
    if (c->precision != CLT_F32 && c->numerics == CLT_FAST) clt_tensor_map_begin(dev);
    *out = e;
    return CLT_OK;
}

void clt_engine_destroy(clt_engine *e) {
    if (!e) return;
    clt_model_destroy(e->model);
    clt_reduce_plan_destroy(e->reduce);
    clt_lane_stack_destroy(e->stack);
    for (int i = 0; i < e->n_grads && e->grads; i++) clt_slab_destroy(e->grads[i]);
    clt_slab_destroy(e->weights);
    clt_slab_destroy(e->narrow);
    clt_slab_destroy(e->m);
    clt_slab_destroy(e->v);
    clt_buffer *buffers[] = {e->block_group, e->groups, e->chunk_sums, e->results, e->nonfinite, e->hashes};
    for (size_t i = 0; i < CLT_COUNT_OF(buffers); i++) clt_buffer_destroy(buffers[i]);
    clt_shards_free(&e->shards);
    clt_slab_table_free(&e->table);
    clt_free(e->grads);
    clt_free(e->frozen);
    clt_free(e->step.final);
    clt_free(e->published);
    clt_free(e->host_results);
    for (size_t i = 0; i < CLT_COUNT_OF(e->pending); i++) clt_free(e->pending[i].targets);
    clt_free(e->sample_weight);
    clt_free(e);
}

const clt_slab_table *clt_engine_table(const clt_engine *e) {
    return &e->table;
}

const clt_ckpt_part *clt_engine_parts(const clt_engine *e, int *n) {
    *n = e->n_parts;
    return e->parts;
}

clt_status clt_engine_weights_changed(clt_engine *e) {
    for (int i = 0; e->narrow && i < e->weights->n; i++)
        if (e->weights->piece[i])
            CLT_TRY(clt_op_cast(e->ops, clt_tensor_vector(clt_slab_part(e->weights, i), CLT_F32),
                                clt_tensor_vector(clt_slab_part(e->narrow, i), e->cfg->precision),
                                e->weights->start[i + 1] - e->weights->start[i]));
    return CLT_OK;
}

/* The sum of the first `n` hashes in the buffer of hashes is added to *hash. */
static clt_status add_hashes(clt_engine *e, size_t n, uint64_t *sums, uint64_t *hash) {
    CLT_TRY(clt_buffer_read(e->hashes, 0, sums, n * CLT_HASH_SUMS * sizeof *sums));
    *hash += clt_hash_total(sums, n * CLT_HASH_SUMS);
    return CLT_OK;
}

/* The hash of what is on this rank. Slabs may have more pieces than the buffer of hashes has places. */
static clt_status hash_slab(clt_engine *e, const clt_slab *s, uint64_t *hash) {
    const size_t places = clt_buffer_bytes(e->hashes) / (CLT_HASH_SUMS * sizeof(uint64_t));
    uint64_t *sums = clt_malloc(clt_buffer_bytes(e->hashes));
    clt_status st = CLT_OK;
    size_t used = 0;
    for (int i = 0; i < s->n && st == CLT_OK; i++) {
        if (!s->piece[i]) continue;
        st = clt_op_hash(e->ops, clt_slab_part(s, i), s->start[i + 1] - s->start[i], s->start[i],
                         (clt_ref){e->hashes, used * CLT_HASH_SUMS});
        if (st == CLT_OK && ++used == places) {
            st = add_hashes(e, used, sums, hash);
            used = 0;
        }
    }
    if (st == CLT_OK && used) st = add_hashes(e, used, sums, hash);
    clt_free(sums);
    return st;
}

/* Adds up what the owners of sharded parts have. */
static clt_status add_ranks(clt_engine *e, uint64_t hash[CLT_ENGINE_PARTS]) {
    const int ranks = clt_group_size(e->group);
    uint64_t *all = clt_malloc((size_t)ranks * CLT_ENGINE_PARTS * sizeof *all);
    const clt_status st = clt_group_all_gather(e->group, hash, CLT_ENGINE_PARTS * sizeof *hash, all);
    for (int i = 0; i < e->n_parts && st == CLT_OK; i++) {
        if (!e->parts[i].shards) continue;
        hash[i] = 0;
        for (int r = 0; r < ranks; r++) hash[i] += all[r * CLT_ENGINE_PARTS + i];
    }
    clt_free(all);
    return st;
}

clt_status clt_engine_hash(clt_engine *e, uint64_t hash[CLT_ENGINE_PARTS]) {
    bool sharded = false;
    CLT_TRY(clt_engine_settle(e));
    for (int i = 0; i < CLT_ENGINE_PARTS; i++) {
        hash[i] = 0;
        if (i >= e->n_parts) continue;
        CLT_TRY(hash_slab(e, e->parts[i].slab, &hash[i]));
        sharded |= e->parts[i].shards != NULL;
    }
    return sharded ? add_ranks(e, hash) : CLT_OK;
}

void clt_engine_set_judge(clt_engine *e, clt_engine_judge judge, void *ctx) {
    e->judge = judge;
    e->judge_ctx = ctx;
}

clt_status clt_engine_text_model(clt_engine *e, clt_model **out) {
    const clt_model_shape shape = {.microbatch = 1,
                                   .seq = clt_model_get_facts(e->cfg->model).max_seq_len,
                                   .cache = true,
                                   .numerics = e->cfg->numerics,
                                   .type = e->cfg->precision};
    CLT_TRY(clt_engine_settle(e));
    return clt_model_create(e->cfg->model, &shape, e->ops, e->weights, e->narrow, out);
}

clt_loss_scale *clt_engine_loss_scale(clt_engine *e) {
    return &e->scale;
}

const clt_batch_layout *clt_engine_layout(const clt_engine *e) {
    return &e->layout;
}

void clt_engine_share(const clt_engine *e, int64_t samples, int64_t *first, int64_t *last) {
    int rank = clt_group_rank(e->group);
    *first = clt_lane_sample_begin(samples, e->plan->lanes, clt_lane_begin(&e->split, rank));
    *last = clt_lane_sample_begin(samples, e->plan->lanes, clt_lane_begin(&e->split, rank + 1));
}

/* --- rehearsing --- */

static clt_status rehearse_step(clt_engine *e, const clt_batch *b) {
    clt_batch mb;
    clt_model_pass pass = clt_engine_pass(e, b, 0, b->samples, &mb);
    pass.step = 1;
    pass.dropout = pass.lane_first = pass.lane_last = true;
    pass.grads = e->grads[0];
    if (!e->cfg->accumulate_on_tokens) pass.sample_weight = e->sample_weight;
    CLT_TRY(clt_engine_weights_changed(e));
    CLT_TRY(clt_model_train(e->model, &pass));
    if (CLT_CEIL_DIV(e->cfg->global_train_batch_size, e->plan->lanes) > b->samples) {
        pass.lane_first = false; /* the kernels of a lane's later microbatches, which add to its gradient */
        CLT_TRY(clt_model_train(e->model, &pass));
    }
    return clt_engine_step_ops(e, b->samples);
}

/* A full microbatch of synthetic samples. */
static clt_status example(const clt_engine *e, int64_t samples, void **storage, clt_batch *out) {
    return clt_model_example(e->cfg->model, e->cfg->max_seq_len, samples, storage, out);
}

void clt_engine_rehearse(clt_engine *e, bool evaluates) {
    clt_device *dev = clt_ops_device(e->ops);
    const double start = clt_now();
    if (e->n_grads < 1 || !clt_device_rehearse(dev)) return;
    void *storage;
    clt_batch b;
    clt_status st = example(e, e->plan->microbatch, &storage, &b);
    if (st == CLT_OK) st = rehearse_step(e, &b);
    if (st == CLT_OK && evaluates) st = clt_engine_prepare_eval(e);
    clt_free(storage);
    clt_device_rehearsed(dev);
    if (st != CLT_OK) clt_debug("the rehearsal failed: %s", clt_last_error());
    clt_debug("rehearsed a step in %.3f s", clt_now() - start);
}

/* --- speed --- */

/* Forward and backward of b's samples; *seconds until the device has finished. */
static clt_status time_samples(clt_engine *e, const clt_batch *b, double *seconds) {
    clt_device *dev = clt_ops_device(e->ops);
    clt_batch mb;
    clt_model_pass pass = clt_engine_pass(e, b, 0, b->samples, &mb);
    pass.step = 1;
    pass.dropout = pass.lane_first = pass.lane_last = true;
    pass.grads = e->grads[0];
    double start = clt_now();
    CLT_TRY(clt_model_train(e->model, &pass));
    CLT_TRY(clt_device_finish(dev));
    *seconds = clt_now() - start;
    return CLT_OK;
}

clt_status clt_engine_measure(clt_engine *e, double *samples_per_second) {
    enum { TRIES = 3 };
    void *storage;
    clt_batch b;
    double seconds = 0, best = INFINITY;
    CLT_TRY(example(e, e->plan->microbatch, &storage, &b));
    clt_status st = clt_slab_zero(e->weights);
    if (st == CLT_OK) st = clt_engine_weights_changed(e);
    for (int i = 0; st == CLT_OK && i < TRIES; i++) { /* the first run compiles */
        st = time_samples(e, &b, &seconds);
        if (i > 0) best = CLT_MIN(best, seconds);
    }
    clt_free(storage);
    *samples_per_second = (double)b.samples / CLT_MAX(best, 1e-9);
    return st;
}

/* --- evaluation --- */

clt_status clt_engine_prepare_eval(clt_engine *e) {
    void *storage;
    int64_t correct = 0;
    clt_batch b;
    CLT_TRY(example(e, 1, &storage, &b));
    const clt_model_pass pass = {.batch = &b, .sample_loss = {e->results, LOSSES}};
    clt_status st = clt_model_eval(e->model, &pass, &correct);
    if (st == CLT_OK) st = clt_device_finish(clt_ops_device(e->ops));
    clt_free(storage);
    return st;
}

clt_status clt_engine_eval(clt_engine *e, const clt_batch *b, clt_engine_sums *sums) {
    int64_t correct = 0;
    CLT_TRY(clt_engine_settle(e));
    for (int64_t at = 0; at < b->samples; at += e->plan->microbatch) {
        clt_batch mb;
        const int64_t n = CLT_MIN(e->plan->microbatch, b->samples - at);
        const clt_model_pass pass = clt_engine_pass(e, b, at, n, &mb);
        CLT_TRY(clt_model_eval(e->model, &pass, &correct));
    }
    float *losses = e->host_results + LOSSES;
    if (b->samples > 0)
        CLT_TRY(clt_buffer_read(e->results, LOSSES * 4, losses, (size_t)b->samples * sizeof *losses));
    CLT_TRY(clt_engine_gather(e, b->global_samples));
    CLT_TRY(clt_group_sum_i64(e->group, &correct, 1));
    for (int64_t i = 0; i < b->global_samples; i++) sums->loss += (double)losses[i];
    sums->targets += b->global_targets;
    sums->correct += correct;
    return CLT_OK;
}
