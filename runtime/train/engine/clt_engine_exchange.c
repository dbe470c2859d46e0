/* What ranks exchange in a step, bucket by bucket. Gradients leave from the last bucket to the first, the
 * order in which backward passes finish them, while the last lane is still on its way; with sharded states
 * the weights come back from the first bucket to the last, the order in which forward passes read them. */
#include <math.h>
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

/* Nothing is exchanged by one rank, or in a rehearsal. */
static bool alone(const clt_engine *e) {
    return clt_group_size(e->group) == 1 || clt_device_rehearses(clt_ops_device(e->ops));
}

/* --- gradients --- */

/* All ranks either go through the exchange or give the step up; once gradients are on their way there is no
 * turning back. Called by every rank once a step: with the first gradients of the last lane, or after it. */
static clt_status commit(clt_engine *e, clt_status mine) {
    e->step.committed = true;
    clt_ops_let_stop(e->ops, false);
    return clt_group_agree(e->group, mine);
}

static clt_status begin_bucket(clt_engine *e) {
    int n;
    const int b = --e->step.bucket;
    const clt_lane_sum *sums = clt_lane_stack_sums(e->stack, &n);
    CLT_TRY(clt_lane_stack_settle(e->stack, clt_shards_bucket(&e->shards, b)));
    return clt_reduce_begin(e->reduce, clt_whole_bucket(b), sums, n, &e->step.total, &e->step.reduced);
}

/* Puts a NaN into the gradient if one of this rank's losses is not finite or the previous step cleared the
 * flag: the reduction then tells all ranks. */
static clt_status guard(clt_engine *e, const clt_slab *grads) {
    static const float nan = NAN;
    if (e->step.samples == 0 || e->guarded < 0) return CLT_OK;
    if (e->step.spoilt) CLT_TRY(clt_buffer_write(e->results, LOSSES * sizeof nan, &nan, sizeof nan));
    return clt_op_guard(e->ops, (clt_ref){e->results, LOSSES}, (uint64_t)e->step.samples,
                        (clt_ref){e->results, STATUS_FINITE}, clt_slab_ref(grads, e->guarded));
}

/* clt_model_ready in the last lane: begins the buckets whose tensors are all final. */
clt_status clt_engine_ready(void *engine, int first, int end) {
    clt_engine *e = engine;
    const clt_slab_table *t = &e->table;
    if (!e->step.early) return CLT_OK;
    if (!e->step.committed) {
        CLT_TRY(commit(e, CLT_OK));
        CLT_TRY(clt_lane_stack_push_early(e->stack));
        e->step.total = clt_lane_stack_total(e->stack);
    }
    if (e->guarded >= first && e->guarded < end) CLT_TRY(guard(e, e->step.lane));
    for (int i = first; i < end; i++) e->step.final[i] = true;
    while (e->step.open > 0 && e->step.final[e->step.open - 1]) e->step.open--;
    const clt_slab_entry *before = e->step.open ? &t->entry[e->step.open - 1] : NULL;
    const uint64_t border = before ? before->offset + before->count : 0;
    while (e->step.bucket > 0 && clt_shards_bucket(&e->shards, e->step.bucket - 1).first >= border)
        CLT_TRY(begin_bucket(e));
    return clt_exchange_pump(e->reduce);
}

clt_status clt_engine_open_step(clt_engine *e, const clt_engine_step_params *p) {
    memset(e->step.final, 0, (size_t)e->table.n * sizeof *e->step.final);
    e->step.open = e->table.n;
    e->step.bucket = e->shards.buckets;
    e->step.samples = p->batch->samples;
    e->step.spoilt = p->spoilt;
    e->step.committed = e->step.early = false;
    e->step.reduced = 0;
    CLT_TRY(clt_engine_settle(e));
    return clt_reduce_batch(e->reduce, p->batch->global_samples);
}

/* A lane without samples, or a model that reports nothing: what is left of the step's beginning. */
static clt_status begin_late(clt_engine *e, clt_status lanes) {
    if (e->step.committed) return lanes;
    clt_status st = lanes;
    if (st == CLT_OK) e->step.total = clt_lane_stack_total(e->stack);
    if (st == CLT_OK) st = guard(e, e->step.total);
    return commit(e, st);
}

clt_status clt_engine_reduce(clt_engine *e, clt_status lanes) {
    CLT_TRY(begin_late(e, lanes));
    while (e->step.bucket > 0) CLT_TRY(begin_bucket(e));
    CLT_TRY(clt_exchange_join(e->reduce, e->step.reduced));
    if (e->stage > 0) return CLT_OK;
    int64_t op = 0;
    for (int b = 0; b < e->shards.buckets; b++)
        CLT_TRY(clt_gather_begin(e->reduce, clt_whole_bucket(b), e->step.total, e->step.total,
                                 CLT_GATHER_TOTALS, NULL, 0, &op));
    return clt_exchange_join(e->reduce, op);
}

clt_status clt_engine_step_ops(clt_engine *e, int64_t samples) {
    e->step.total = e->grads[0];
    e->step.samples = samples;
    CLT_TRY(guard(e, e->step.total));
    const clt_ref first = clt_slab_part(e->step.total, 0);
    if (e->n_grads > 1 || clt_group_size(e->group) > 1) CLT_TRY(clt_op_add(e->ops, first, first, CLT_CHUNK));
    CLT_TRY(clt_engine_judge_gradient(e, e->step.total));
    return clt_engine_update(e, e->step.total, 1, 1.0);
}

/* --- what this rank updates --- */

bool clt_engine_own(const clt_engine *e, int i, clt_slab_range *x) {
    const bool all = e->stage == 0;
    if (i == (all ? 1 : e->shards.buckets)) return false;
    *x =
        all ? (clt_slab_range){0, e->table.total} : clt_shards_range(&e->shards, i, clt_group_rank(e->group));
    return true;
}

clt_status clt_engine_gather_sums(clt_engine *e) {
    int64_t op = 0;
    if (e->stage == 0 || alone(e)) return CLT_OK;
    CLT_TRY(clt_gather_chunks_begin(e->reduce, e->chunk_sums, &op));
    return clt_exchange_join(e->reduce, op);
}

/* --- weights --- */

clt_status clt_engine_publish(clt_engine *e) {
    if (e->stage == 0 || alone(e)) return CLT_OK;
    for (int b = 0; b < e->shards.buckets; b++) {
        if (e->narrow)
            CLT_TRY(clt_gather_begin(e->reduce, clt_whole_bucket(b), e->narrow, e->narrow,
                                     CLT_GATHER_AS_IT_IS, NULL, 0, &e->published[b]));
        CLT_TRY(clt_gather_begin(e->reduce, clt_whole_bucket(b), e->weights, e->weights, CLT_GATHER_AS_IT_IS,
                                 NULL, 0, &e->published[b]));
    }
    return CLT_OK;
}

clt_status clt_engine_settle(clt_engine *e) {
    return e->published ? clt_exchange_join(e->reduce, e->published[e->shards.buckets - 1]) : CLT_OK;
}
