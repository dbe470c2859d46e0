/* Creation and destruction of an engine, rehearsal, speed measurement, evaluation. The step is in
 * clt_engine_step.c. */
#include <math.h>
#include <string.h>

#include "runtime/device/clt_tensor_map.h"
#include "runtime/train/engine/clt_engine_internal.h"

bool clt_engine_second_moment(const clt_config *c) {
    return clt_optimizer_of(c->optimizer.kind)->moments > 1;
}

static clt_status add_slabs(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_add(ctx, dst, src, count);
}
static clt_status sum(void *ctx, const clt_sum_parts *s) {
    return clt_op_sum_parts(ctx, s);
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
    e->frozen = clt_calloc((size_t)t->n, sizeof *e->frozen);
    e->guarded = -1;
    clt_status st = clt_optimizer_scaled_groups(e->cfg, t, e->scaled, &e->n_scaled, group, e->frozen);
    for (int i = 0; st == CLT_OK && i < t->n; i++) {
        uint64_t first = t->entry[i].offset / 64, n = CLT_CEIL_DIV(t->entry[i].count, 64);
        memset(block + first, e->frozen[i] ? e->n_scaled : group[i], n);
        if (!e->frozen[i] && e->guarded < 0) e->guarded = i;
    }
    if (st == CLT_OK) st = clt_buffer_create(dev, t->total / 64, "optimizer groups", &e->block_group);
    if (st == CLT_OK) st = clt_buffer_write(e->block_group, 0, block, t->total / 64);
    if (st == CLT_OK) st = clt_buffer_create(dev, sizeof e->host_groups, "optimizer groups", &e->groups);
    clt_free(group);
    clt_free(block);
    return st;
}

static clt_status create_training(clt_engine *e) {
    CLT_TRY(clt_buffer_create(clt_ops_device(e->ops), e->table.total / CLT_CHUNK * 4, "chunk sums",
                              &e->chunk_sums));
    CLT_TRY(clt_buffer_fill32(e->chunk_sums, 0, 0, e->table.total / CLT_CHUNK * 4));
    CLT_TRY(create_groups(e));
    if (e->cfg->shard.host_update) CLT_TRY(clt_engine_host_update_create(e, &e->host_update));
    return clt_engine_lamb_create(e);
}

/* Collective, so it comes last: first the ranks agree that each of them has everything else. */
static clt_status create_reduction(clt_engine *e, clt_status ready) {
    CLT_TRY(clt_group_agree(e->group, ready));
    clt_reduce_math math = {.add = add_slabs, .sum = sum, .ctx = e->ops};
    if (e->cfg->reduce_bf16) math.to_bf16 = to_bf16, math.to_f32 = to_f32;
    e->step.final = clt_calloc((size_t)e->table.n, sizeof *e->step.final);
    e->published = clt_calloc((size_t)e->shards.buckets, sizeof *e->published);
    clt_model_set_ready(e->model, clt_engine_ready, e);
    clt_model_set_turn(e->model, clt_engine_turn, e);
    if (e->stage > 0 || e->host_update) {
        clt_model_set_need(e->model, clt_engine_need, e);
        clt_model_set_done(e->model, clt_engine_done, e);
        clt_model_set_grads_need(e->model, clt_engine_grads_need, e);
    }
    CLT_TRY(
        clt_reduce_plan_create(e->group, clt_ops_device(e->ops), &e->shards, &e->split, &math, &e->reduce));
    return clt_engine_group_create(e);
}

/* Status of the last step (initially "finite") and a loss per sample. */
static clt_status create_results(clt_engine *e, int64_t most) {
    static const float good[LOSSES] = {0.0f, 1.0f, 1.0f};
    clt_device *dev = clt_ops_device(e->ops);
    CLT_TRY(clt_buffer_create(dev, (size_t)(LOSSES + most) * 4, "step results", &e->results));
    e->host_results = clt_calloc((size_t)(LOSSES + most), sizeof *e->host_results);
    return clt_buffer_write(e->results, 0, good, sizeof good);
}

/* Offloaded state is hashed in many stretches, and each read of the hashes is a wait. */
static clt_status create_hashes(clt_engine *e) {
    enum { STRETCHES = 64 };
    const int places = e->offload ? CLT_MAX(e->master->n, STRETCHES) : e->master->n;
    return clt_buffer_create(clt_ops_device(e->ops), (size_t)places * CLT_HASH_SUMS * sizeof(uint64_t),
                             "hashes", &e->hashes);
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
    e->layout = clt_model_layout(c->model, c->max_seq_len);
    e->scale = clt_loss_scale_start(&c->loss_scale);
    clt_device *dev = clt_ops_device(p->ops);
    clt_model_shape shape = clt_plan_shape(c, p->plan, p->training);
    int64_t most = most_samples(c) * clt_group_size(p->group);
    e->sample_weight = clt_calloc((size_t)p->plan->microbatch, sizeof *e->sample_weight);
    clt_status st = clt_model_table(c->model, &e->table);
    if (st == CLT_OK) st = clt_engine_slabs_create(e, p->training);
    if (st == CLT_OK && p->training) st = create_training(e);
    if (st == CLT_OK) st = create_results(e, most);
    if (st == CLT_OK) st = clt_buffer_create(dev, 4, "non-finite count", &e->nonfinite);
    if (st == CLT_OK) st = create_hashes(e);
    shape.spool = e->spool;
    if (st == CLT_OK) st = clt_model_create(c->model, &shape, p->ops, e->weights, e->narrow, &e->model);
    if (st == CLT_OK) st = clt_engine_fp8_create(e);
    if (p->training) st = create_reduction(e, st);
    if (st != CLT_OK) {
        clt_engine_destroy(e);
        return st;
    }
    const clt_shards *shards = e->stage > 0 ? &e->shards : NULL;
    e->parts[e->n_parts++] = (clt_ckpt_part){
        .role = "weight", .slab = e->master, .shards = e->master == e->weights ? NULL : shards};
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
    clt_engine_group_destroy(e);
    clt_reduce_plan_destroy(e->reduce);
    clt_engine_host_update_destroy(e->host_update);
    clt_engine_slabs_destroy(e);
    clt_buffer *buffers[] = {e->block_group, e->groups, e->chunk_sums, e->results, e->nonfinite, e->hashes};
    for (size_t i = 0; i < CLT_COUNT_OF(buffers); i++) clt_buffer_destroy(buffers[i]);
    clt_engine_lamb_destroy(e);
    clt_slab_table_free(&e->table);
    clt_fp8_scaling_destroy(&e->fp8);
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
    CLT_TRY(clt_engine_copy_weights(e));
    if (e->mute || (e->master == e->weights && e->narrow == e->copy)) return CLT_OK;
    CLT_TRY(clt_engine_publish(e));
    return clt_engine_settle(e);
}

/* The sum of the first `n` hashes in the buffer of hashes is added to *hash. */
static clt_status add_hashes(clt_engine *e, size_t n, uint64_t *sums, uint64_t *hash) {
    CLT_TRY(clt_buffer_read(e->hashes, 0, sums, n * CLT_HASH_SUMS * sizeof *sums));
    *hash += clt_hash_total(sums, n * CLT_HASH_SUMS);
    return CLT_OK;
}

/* Hashes of a part's elements on this rank are queued one behind the other. */
typedef struct {
    size_t places, used; /* of the buffer of hashes */
    uint64_t *sums;      /* [places * CLT_HASH_SUMS] */
    uint64_t *hash;      /* of what has been read back */
} hashing;

static clt_status flush_hashes(clt_engine *e, hashing *h) {
    const size_t used = h->used;
    h->used = 0;
    return used ? add_hashes(e, used, h->sums, h->hash) : CLT_OK;
}

static clt_status hash_stretch(clt_engine *e, clt_state state, clt_slab_range x, hashing *h) {
    CLT_TRY(clt_offload_bring(e->offload, 1u << state, x));
    CLT_TRY(clt_op_hash(e->ops, clt_offload_at(e->offload, state, e->parts[state].slab, x.first), x.count,
                        x.first, (clt_ref){e->hashes, h->used * CLT_HASH_SUMS}));
    CLT_TRY(clt_offload_leave(e->offload, 0, x));
    return ++h->used == h->places ? flush_hashes(e, h) : CLT_OK;
}

static clt_status hash_ranges(clt_engine *e, clt_state state, hashing *h) {
    const clt_ckpt_part *part = &e->parts[state];
    clt_engine_stretches all = {.e = e,
                                .shards = part->shards,
                                .used = {part->slab},
                                .most = clt_offload_most(e->offload, 1u << state)},
                         ahead = all;
    clt_slab_range x;
    CLT_TRY(clt_offload_begin(e->offload, 1u << state, clt_engine_next_stretch, &ahead));
    while (clt_engine_next_stretch(&all, &x)) CLT_TRY(hash_stretch(e, state, x, h));
    CLT_TRY(clt_offload_end(e->offload));
    return flush_hashes(e, h);
}

/* The hash of what this rank has of a part, of a sharded one what it owns. A part may need more hashes than
 * the buffer has places. */
static clt_status hash_part(clt_engine *e, clt_state state, uint64_t *hash) {
    hashing h = {.places = clt_buffer_bytes(e->hashes) / (CLT_HASH_SUMS * sizeof(uint64_t)),
                 .sums = clt_malloc(clt_buffer_bytes(e->hashes)),
                 .hash = hash};
    const clt_status st = hash_ranges(e, state, &h);
    clt_free(h.sums);
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
        CLT_TRY(hash_part(e, (clt_state)i, &hash[i]));
        sharded |= e->parts[i].shards != NULL;
    }
    return sharded ? add_ranks(e, hash) : CLT_OK;
}

clt_offload_traffic clt_engine_offload_traffic(const clt_engine *e) {
    const clt_offload_traffic ring = clt_offload_count(e->offload),
                              host = clt_engine_host_update_count(e->host_update);
    return (clt_offload_traffic){ring.read + host.read, ring.written + host.written,
                                 ring.seconds + host.seconds, ring.waited};
}

double clt_engine_file_wait(const clt_engine *e) {
    return e->spool ? clt_spool_waited(e->spool) : 0;
}

void clt_engine_time_offload(clt_engine *e, bool timed) {
    clt_offload_time(e->offload, timed);
}

void clt_engine_set_judge(clt_engine *e, clt_engine_judge judge, void *ctx) {
    e->judge = judge;
    e->judge_ctx = ctx;
}

clt_status clt_engine_text_model(clt_engine *e, int64_t texts, clt_model **out) {
    const clt_model_shape shape = {.microbatch = 1,
                                   .seq = clt_model_get_facts(e->cfg->model).max_seq_len,
                                   .texts = texts,
                                   .numerics = e->cfg->numerics,
                                   .type = e->cfg->precision,
                                   .eight_bits = e->cfg->eight_bits};
    if (e->sharded_weights)
        return clt_error(CLT_BAD_CONFIG, "text cannot be generated while the weights are sharded "
                                         "(cltrain.zero_stage: 3): use stage 2 or less");
    CLT_TRY(clt_engine_settle(e));
    return clt_model_create(e->cfg->model, &shape, e->ops, e->weights, e->narrow, out);
}

clt_loss_scale *clt_engine_loss_scale(clt_engine *e) {
    return &e->scale;
}

const clt_batch_layout *clt_engine_layout(const clt_engine *e) {
    return &e->layout;
}

clt_lane_split clt_engine_even(const clt_engine *e) {
    return clt_plan_split(e->plan);
}

void clt_engine_share(const clt_engine *e, int64_t samples, int64_t *first, int64_t *last) {
    const int rank = clt_group_rank(e->group);
    const clt_lane_split s = clt_engine_even(e);
    *first = clt_lane_sample_begin(samples, s.lanes, clt_lane_begin(&s, rank));
    *last = clt_lane_sample_begin(samples, s.lanes, clt_lane_begin(&s, rank + 1));
}

int clt_engine_parts_of_batch(const clt_engine *e, int64_t samples, clt_loader_rows *part) {
    int64_t first, last;
    if (!e->split.dealt) {
        clt_engine_share(e, samples, &first, &last);
        part[0] = (clt_loader_rows){first, last - first};
        return 1;
    }
    for (int i = 0; i < e->lanes; i++) {
        const int lane = clt_lane_at(&e->split, clt_group_rank(e->group), i);
        first = clt_lane_sample_begin(samples, e->split.lanes, lane);
        part[i] = (clt_loader_rows){first, clt_lane_sample_begin(samples, e->split.lanes, lane + 1) - first};
    }
    return e->lanes;
}

int clt_engine_most_parts(const clt_engine *e) {
    return e->split.dealt ? CLT_MAX(e->lanes, 1) : 1;
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
    clt_engine_begin_pass(e, true);
    CLT_TRY(clt_model_train(e->model, &pass));
    if (CLT_CEIL_DIV(e->cfg->global_train_batch_size, e->split.lanes) > b->samples) {
        clt_engine_begin_pass(e, true);
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
    e->mute = true;
    if (st == CLT_OK) st = rehearse_step(e, &b);
    e->mute = false;
    clt_engine_forget_units(e);
    if (st == CLT_OK && evaluates) st = clt_engine_prepare_eval(e);
    if (st == CLT_OK) st = clt_engine_fp8_changed(e);
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
    clt_engine_begin_pass(e, true);
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
    e->mute = true;
    clt_status st = clt_slab_zero(e->master);
    if (st == CLT_OK) st = clt_engine_weights_changed(e);
    for (int i = 0; st == CLT_OK && i < TRIES; i++) { /* the first run compiles */
        st = time_samples(e, &b, &seconds);
        if (i > 0) best = CLT_MIN(best, seconds);
    }
    if (st == CLT_OK) st = clt_engine_fp8_changed(e);
    e->mute = false;
    clt_engine_forget_units(e);
    clt_free(storage);
    *samples_per_second = (double)b.samples / CLT_MAX(best, 1e-9);
    return st;
}

/* --- evaluation --- */

clt_status clt_engine_prepare_eval(clt_engine *e) {
    void *storage;
    clt_model_correct correct = {0};
    clt_batch b;
    CLT_TRY(example(e, 1, &storage, &b));
    const clt_model_pass pass = {.batch = &b, .sample_loss = {e->results, LOSSES}};
    e->mute = true;
    clt_engine_begin_pass(e, false);
    clt_status st = clt_model_eval(e->model, &pass, &correct);
    if (st == CLT_OK) st = clt_device_finish(clt_ops_device(e->ops));
    e->mute = false;
    clt_engine_forget_units(e);
    clt_free(storage);
    return st;
}

/* Takes part in the passes that other ranks make and this one does not. */
static clt_status go_along_eval(clt_engine *e, const clt_batch *b) {
    const clt_lane_split s = clt_engine_even(e);
    int64_t most = 0;
    for (int r = 0; r < s.ranks && e->sharded_weights; r++) {
        const int64_t n = clt_lane_sample_begin(b->global_samples, s.lanes, clt_lane_begin(&s, r + 1)) -
                          clt_lane_sample_begin(b->global_samples, s.lanes, clt_lane_begin(&s, r));
        most = CLT_MAX(most, CLT_CEIL_DIV(n, e->plan->microbatch));
    }
    for (int64_t i = CLT_CEIL_DIV(b->samples, e->plan->microbatch); i < most; i++)
        CLT_TRY(clt_engine_go_along(e, false, false));
    return CLT_OK;
}

int64_t clt_engine_most_texts(const clt_engine *e) {
    return e->plan->microbatch;
}

bool clt_engine_shards_weights(const clt_engine *e) {
    return e->sharded_weights;
}

clt_status clt_engine_span_logits(clt_engine *e, const int32_t *tokens, int64_t samples, int64_t len,
                                  const clt_model_span *span, clt_model_logits_fn fn, void *ctx) {
    CLT_TRY(clt_engine_settle(e));
    if (samples == 0) return e->sharded_weights ? clt_engine_go_along(e, false, false) : CLT_OK;
    clt_engine_begin_pass(e, false);
    return clt_model_span_logits(e->model, tokens, samples, len, span, fn, ctx);
}

/* The passes of an evaluation; `out` NULL: no predictions. */
static clt_status eval_passes(clt_engine *e, const clt_batch *b, clt_model_correct *correct,
                              clt_model_prediction *out) {
    CLT_TRY(clt_engine_settle(e));
    for (int64_t at = 0; at < b->samples; at += e->plan->microbatch) {
        clt_batch mb;
        const int64_t n = CLT_MIN(e->plan->microbatch, b->samples - at);
        const clt_model_pass pass = clt_engine_pass(e, b, at, n, &mb);
        clt_engine_begin_pass(e, false);
        CLT_TRY(clt_model_eval(e->model, &pass, correct));
        if (out) CLT_TRY(clt_model_predictions(e->model, n, out + at));
    }
    return go_along_eval(e, b);
}

clt_status clt_engine_predict(clt_engine *e, const clt_batch *b, clt_model_prediction *out) {
    clt_model_correct correct = {0};
    return eval_passes(e, b, &correct, out);
}

clt_status clt_engine_eval(clt_engine *e, const clt_batch *b, clt_engine_sums *sums) {
    clt_model_correct correct = {0};
    CLT_TRY(eval_passes(e, b, &correct, NULL));
    float *losses = e->host_results + LOSSES;
    if (b->samples > 0)
        CLT_TRY(clt_buffer_read(e->results, LOSSES * 4, losses, (size_t)b->samples * sizeof *losses));
    const clt_lane_split split = clt_engine_even(e);
    CLT_TRY(clt_engine_gather(e, &split, b->global_samples));
    int64_t counts[] = {correct.top1, correct.top5};
    CLT_TRY(clt_group_sum_i64(e->group, counts, 2));
    for (int64_t i = 0; i < b->global_samples; i++) sums->loss += (double)losses[i];
    sums->targets += b->global_targets;
    sums->correct.top1 += counts[0];
    sums->correct.top5 += counts[1];
    return CLT_OK;
}
