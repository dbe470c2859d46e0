/* What ranks exchange in a step, bucket by bucket. Whole gradients leave from the last bucket to the first,
 * the order in which backward passes finish them, while the last lane is still on its way; weights that
 * owners have updated come from the first bucket to the last, the order in which forward passes read them.
 * What travels by unit is in clt_engine_units.c. */
#include <math.h>
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

/* Nothing is exchanged by one rank, or in a rehearsal. */
static bool alone(const clt_engine *e) {
    return clt_group_size(e->group) == 1 || clt_device_rehearses(clt_ops_device(e->ops));
}

/* --- gradients --- */

/* The reduction tells all ranks of the NaN. */
clt_status clt_engine_guard(clt_engine *e, const clt_slab *grads, int64_t at, int64_t samples) {
    static const float nan = NAN;
    if (samples == 0 || e->guarded < 0) return CLT_OK;
    if (e->step.spoilt && at == 0)
        CLT_TRY(clt_buffer_write(e->results, LOSSES * sizeof nan, &nan, sizeof nan));
    return clt_op_guard(e->ops, (clt_ref){e->results, LOSSES + (uint64_t)at}, (uint64_t)samples,
                        (clt_ref){e->results, STATUS_FINITE}, clt_slab_ref(grads, e->guarded));
}

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

/* Whole gradients: begins the buckets whose tensors are all final. */
static clt_status ready_in_order(clt_engine *e, int first, int end) {
    const clt_slab_table *t = &e->table;
    if (!e->step.early) return CLT_OK;
    if (!e->step.committed) {
        CLT_TRY(commit(e, CLT_OK));
        CLT_TRY(clt_lane_stack_push_early(e->stack));
        e->step.total = clt_lane_stack_total(e->stack);
    }
    if (e->guarded >= first && e->guarded < end)
        CLT_TRY(clt_engine_guard(e, e->step.lane, 0, e->step.samples));
    for (int i = first; i < end; i++) e->step.final[i] = true;
    while (e->step.open > 0 && e->step.final[e->step.open - 1]) e->step.open--;
    const clt_slab_entry *before = e->step.open ? &t->entry[e->step.open - 1] : NULL;
    const uint64_t border = before ? before->offset + before->count : 0;
    while (e->step.bucket > 0 && clt_shards_bucket(&e->shards, e->step.bucket - 1).first >= border)
        CLT_TRY(begin_bucket(e));
    return clt_exchange_pump(e->reduce);
}

/* Sharded gradients: the report is of one unit. */
static clt_status ready_unit(clt_engine *e, int first, int end) {
    int unit = 0;
    if (e->guarded >= first && e->guarded < end)
        CLT_TRY(clt_engine_guard(e, e->grads[0], e->step.lane_at, e->step.lane_samples));
    while (e->units.unit[unit].first != first) unit++;
    return clt_engine_reduce_unit(e, unit);
}

clt_status clt_engine_ready(void *engine, int first, int end) {
    clt_engine *e = engine;
    if (e->mute) return CLT_OK;
    return e->sharded_gradients ? ready_unit(e, first, end) : ready_in_order(e, first, end);
}

clt_status clt_engine_open_step(clt_engine *e, const clt_engine_step_params *p) {
    memset(e->step.final, 0, (size_t)e->table.n * sizeof *e->step.final);
    e->step.open = e->table.n;
    e->step.bucket = e->shards.buckets;
    e->step.samples = p->batch->samples;
    e->step.spoilt = p->spoilt;
    e->step.committed = e->step.early = false;
    e->step.reduced = 0;
    return clt_reduce_batch(e->reduce, p->batch->global_samples);
}

/* A lane without samples, or a model that reports nothing: what is left of the step's beginning. */
static clt_status begin_late(clt_engine *e, clt_status lanes) {
    if (e->step.committed) return lanes;
    clt_status st = lanes;
    if (st == CLT_OK) e->step.total = clt_lane_stack_total(e->stack);
    if (st == CLT_OK) st = clt_engine_guard(e, e->step.total, 0, e->step.samples);
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
    e->step.total = e->sharded_gradients ? e->level[0] : e->grads[0];
    if (!e->sharded_gradients) CLT_TRY(clt_engine_guard(e, e->step.total, 0, samples));
    const clt_ref first = clt_slab_part(e->grads[0], 0);
    if (first.buf && (e->n_grads > 1 || clt_group_size(e->group) > 1))
        CLT_TRY(clt_op_add(e->ops, first, first, CLT_CHUNK));
    CLT_TRY(clt_engine_judge_gradient(e, e->step.total));
    return clt_engine_update(e, e->step.total, &(clt_engine_step_params){.step = 1, .alpha = 1.0});
}

/* --- what this rank updates --- */

bool clt_engine_range(const clt_engine *e, const clt_shards *shards, int i, clt_slab_range *x) {
    if (i == (shards ? shards->buckets : 1)) return false;
    *x = shards ? clt_shards_range(shards, i, clt_group_rank(e->group)) : (clt_slab_range){0, e->table.total};
    return true;
}

bool clt_engine_own(const clt_engine *e, int i, clt_slab_range *x) {
    return clt_engine_range(e, e->stage == 0 ? NULL : &e->shards, i, x);
}

clt_status clt_engine_gather_numbers(clt_engine *e, clt_buffer *numbers, uint64_t at) {
    const size_t bytes = e->table.total / CLT_CHUNK * 4;
    if (e->stage == 0 || alone(e)) return CLT_OK;
    CLT_TRY(clt_buffer_copy(e->chunk_sums, 0, numbers, at * 4, bytes));
    CLT_TRY(clt_engine_gather_sums(e));
    return clt_buffer_copy(numbers, at * 4, e->chunk_sums, 0, bytes);
}

clt_status clt_engine_gather_sums(clt_engine *e) {
    int64_t op = 0;
    if (e->stage == 0 || alone(e)) return CLT_OK;
    CLT_TRY(clt_gather_chunks_begin(e->reduce, e->chunk_sums, &op));
    return clt_exchange_join(e->reduce, op);
}

/* --- weights --- */

/* The own ranges of the kept weights to the replicas. */
static clt_status renew(clt_engine *e) {
    clt_slab *kept = e->units.source;
    for (int b = 0; b < e->shards.buckets; b++)
        CLT_TRY(clt_gather_begin(e->weights_in.between, clt_whole_bucket(b), kept, kept, CLT_GATHER_AS_IT_IS,
                                 NULL, 0, &e->renewed[b]));
    return CLT_OK;
}

/* What the update has sent to the host's memory is there before anything that is queued from here on reads
 * it. */
static clt_status settle_host_weights(clt_engine *e) {
    if (!e->host_weights) return CLT_OK;
    CLT_TRY(clt_device_use(clt_ops_device(e->ops), CLT_QUEUE_OUT));
    return clt_device_hand_over(clt_ops_device(e->ops), CLT_QUEUE_COMPUTE);
}

clt_status clt_engine_publish(clt_engine *e) {
    if (e->stage == 0) return CLT_OK;
    clt_engine_forget_units(e);
    CLT_TRY(settle_host_weights(e));
    if (alone(e)) return CLT_OK;
    if (e->weights_in.between) CLT_TRY(renew(e));
    clt_slab *whole = e->sharded_weights ? NULL : e->narrow ? e->narrow : e->weights;
    clt_slab *own = clt_offload_has(e->offload, CLT_STATE_WEIGHTS) ? e->wide : e->master;
    for (int b = 0; b < e->shards.buckets; b++) {
        const clt_bucket_part part = clt_whole_bucket(b);
        int64_t op = 0;
        if (whole) {
            CLT_TRY(clt_gather_begin(e->reduce, part, whole, whole, CLT_GATHER_AS_IT_IS, NULL, 0, &op));
            e->published[b] = op;
        }
        if (e->wide)
            CLT_TRY(clt_gather_begin(e->reduce, part, own, e->wide, CLT_GATHER_AS_IT_IS, e->wide_range,
                                     e->n_wide, &op));
        e->published[b] = CLT_MAX(e->published[b], op);
    }
    return CLT_OK;
}

/* The last bucket that has elements of x. */
static int last_bucket(const clt_engine *e, clt_slab_range x) {
    int b = e->shards.buckets - 1;
    while (b > 0 && clt_shards_bucket(&e->shards, b).first >= x.first + x.count) b--;
    return b;
}

clt_status clt_engine_settle_unit(clt_engine *e, clt_slab_range x) {
    CLT_TRY(clt_engine_host_update_reach(e, x.first + x.count));
    return e->published ? clt_exchange_join(e->reduce, e->published[last_bucket(e, x)]) : CLT_OK;
}

clt_status clt_engine_settle_kept(clt_engine *e, clt_slab_range x) {
    clt_reduce_plan *between = e->weights_in.between;
    CLT_TRY(clt_engine_host_update_reach(e, x.first + x.count));
    return between ? clt_exchange_join(between, e->renewed[last_bucket(e, x)]) : CLT_OK;
}

clt_status clt_engine_settle(clt_engine *e) {
    const clt_slab_range all = {0, e->table.total};
    CLT_TRY(clt_engine_settle_kept(e, all));
    return clt_engine_settle_unit(e, all);
}
