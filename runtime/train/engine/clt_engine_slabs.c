/* The engine's slabs, by stage of sharding (clt_plan.h):
 *
 *   stage             0            1             2                 3
 *   moments           whole        own ranges    own ranges        own ranges
 *   gradients         whole        whole         units, own sums   units, own sums
 *   weights, fp32     whole        whole         whole             kept ranges; units are gathered
 *   weights, 16 bit   whole        own ranges (fp32); the 16-bit copy is whole, at stage 3 kept ranges from
 *                                  which units are gathered; what the model reads in fp32 is whole
 *
 * Kept ranges are the own ranges, or, where weights are sharded inside groups of ranks, those of the ranks
 * with this rank's number in all groups (clt_engine_group.c).
 *
 * With cltrain.offload: host or file the moments, and in 16-bit runs the fp32 weights, are the same ranges in
 * the host's memory or in a file. 16-bit runs then have the fp32 tensors that the model reads at stage 0,
 * too. With cltrain.offload_parameters: host the kept ranges from which units are gathered are in the host's
 * memory, with cltrain.offload_gradients: host the sums of gradients. */
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

static clt_status add_slabs(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_add(ctx, dst, src, count);
}

static clt_device *device_of(const clt_engine *e) {
    return clt_ops_device(e->ops);
}

static clt_status own_ranges(clt_engine *e, uint32_t bytes, const char *name, clt_slab **out) {
    return clt_slab_create_shard(device_of(e), &e->table, &e->shards, clt_group_rank(e->group), bytes, name,
                                 out);
}

static clt_status kept_ranges(clt_engine *e, uint32_t bytes, const char *name, clt_slab **out) {
    const clt_engine_shard_group *w = &e->weights_in;
    return clt_slab_create_shard(device_of(e), &e->table, &w->keep, w->number, bytes, name, out);
}

/* What units are gathered from. */
static clt_status kept_weights(clt_engine *e, uint32_t bytes, const char *name, clt_slab **out) {
    const clt_engine_shard_group *w = &e->weights_in;
    if (!e->host_weights) return kept_ranges(e, bytes, name, out);
    clt_slab_range *kept = clt_calloc((size_t)w->keep.buckets, sizeof *kept);
    for (int b = 0; b < w->keep.buckets; b++) kept[b] = clt_shards_range(&w->keep, b, w->number);
    const clt_status st =
        clt_slab_create_pinned(device_of(e), &e->table, kept, w->keep.buckets, 0, bytes, name, out);
    clt_free(kept);
    return st;
}

/* What this rank updates, in the host's memory or, with a file, there, but for its first `resident` elements.
 */
static clt_status own_on_host(clt_engine *e, uint64_t resident, clt_scratch *file, const char *name,
                              clt_slab **out) {
    clt_slab_range *own = clt_calloc((size_t)e->shards.buckets + 1, sizeof *own);
    clt_device *dev = device_of(e);
    uint64_t owned = 0;
    int n = 0;
    for (; clt_engine_own(e, n, &own[n]); n++) owned += own[n].count;
    resident = CLT_MIN(owned, resident);
    const clt_status st =
        file ? clt_slab_create_in_file(dev, &e->table, own, n, resident, file, name, out)
             : clt_slab_create_pinned(dev, &e->table, own, n, resident, sizeof(float), name, out);
    clt_free(own);
    return st;
}

/* Optimizer state. */
static clt_status create_state(clt_engine *e, const char *name, clt_slab **out) {
    if (e->offloads) return own_on_host(e, e->plan->memory.resident, e->file, name, out);
    return e->stage == 0 ? clt_slab_create(device_of(e), &e->table, 0, name, out)
                         : own_ranges(e, 4, name, out);
}

/* The way of offloaded state through the device. In fp32 the model reads the weights themselves. */
static clt_status create_offload(clt_engine *e) {
    clt_slab *state[CLT_STATES] = {0};
    clt_slab_range own;
    uint64_t owned = 0;
    for (int i = 0; clt_engine_own(e, i, &own); i++) owned += own.count;
    if (!e->offloads && !e->host_weights && !e->host_gradients) return CLT_OK;
    if (e->offloads) {
        if (e->copy) state[CLT_STATE_WEIGHTS] = e->master;
        state[CLT_STATE_FIRST] = e->m;
        state[CLT_STATE_SECOND] = e->v;
    }
    if (e->host_weights) state[e->copy ? CLT_STATE_COPY : CLT_STATE_WEIGHTS] = e->units.source;
    if (e->host_gradients) state[CLT_STATE_GRADIENT] = e->level[0];
    if (!e->host_weights && !e->host_gradients) owned -= CLT_MIN(owned, e->plan->memory.resident);
    CLT_TRY(clt_offload_create(device_of(e), state, owned, e->file, &e->offload));
    if (e->file && clt_group_rank(e->group) == 0)
        clt_info("optimizer state is in files in %s: %s", e->cfg->shard.offload_folder,
                 clt_scratch_text(e->file));
    return CLT_OK;
}

/* --- weights --- */

/* Neighbouring tensors are one range, with the padding between them. */
static void find_wide(clt_engine *e, const clt_model_shape *shape) {
    const clt_slab_table *t = &e->table;
    bool before = false;
    e->wide_range = clt_calloc((size_t)t->n, sizeof *e->wide_range);
    for (int i = 0; i < t->n; i++) {
        const bool is = clt_model_reads_wide(e->cfg->model, shape, t, i);
        const uint64_t first = t->entry[i].offset,
                       end = first + CLT_ROUND_UP(t->entry[i].count, (uint64_t)64);
        if (is && !before) e->wide_range[e->n_wide++].first = first;
        clt_slab_range *x = &e->wide_range[CLT_MAX(e->n_wide - 1, 0)];
        if (is) x->count = CLT_MIN(end, t->total) - x->first;
        before = is;
    }
}

/* A 16-bit run whose fp32 weights are not what the model reads. */
static clt_status create_narrow_parts(clt_engine *e, const clt_model_shape *shape) {
    find_wide(e, shape);
    CLT_TRY(create_state(e, "weights", &e->master));
    CLT_TRY(clt_slab_create_ranges(device_of(e), &e->table, e->wide_range, e->n_wide, 4, "weights in fp32",
                                   &e->wide));
    e->weights = e->wide;
    if (e->sharded_weights) {
        CLT_TRY(kept_weights(e, 2, "16-bit weights", &e->copy));
        e->narrow = e->units.weights.slab;
        e->units.source = e->copy;
        return CLT_OK;
    }
    const clt_slab_range all = {0, e->table.total};
    CLT_TRY(clt_slab_create_ranges(device_of(e), &e->table, &all, 1, 2, "16-bit weights", &e->copy));
    e->narrow = e->copy;
    return CLT_OK;
}

static clt_status create_weights(clt_engine *e) {
    const clt_model_shape shape = clt_plan_shape(e->cfg, e->plan, true);
    const bool narrow = e->cfg->precision != CLT_F32;
    if (narrow && (e->stage > 0 || e->offloads)) return create_narrow_parts(e, &shape);
    if (e->sharded_weights) {
        CLT_TRY(kept_weights(e, 4, "weights", &e->master));
        e->weights = e->units.weights.slab;
        e->units.source = e->master;
        return CLT_OK;
    }
    CLT_TRY(clt_slab_create(device_of(e), &e->table, 0, "weights", &e->master));
    e->weights = e->master;
    if (!narrow) return CLT_OK;
    CLT_TRY(clt_slab_create_narrow(device_of(e), e->master, "16-bit weights", &e->copy));
    e->narrow = e->copy;
    return CLT_OK;
}

/* --- gradients --- */

/* Those of units, and sums of the own ranges between rounds. */
static clt_status create_sums(clt_engine *e) {
    e->n_grads = 1;
    e->grads = clt_calloc(1, sizeof *e->grads);
    e->grads[0] = e->units.gradients.slab;
    e->host_gradients = e->plan->memory.host_gradients > 0;
    for (int i = 0; i < e->plan->memory.gradient_sums; i++)
        CLT_TRY(e->host_gradients ? own_on_host(e, 0, NULL, "gradients", &e->level[i])
                                  : own_ranges(e, 4, "gradients", &e->level[i]));
    if (!e->host_gradients) return CLT_OK;
    return clt_group_size(e->group) == 1 ? clt_engine_host_sums_create(e, &e->host_sums)
                                         : clt_engine_host_parts_create(e, &e->host_parts);
}

static clt_status create_gradients(clt_engine *e) {
    const int first = clt_lane_begin(&e->split, clt_group_rank(e->group)), last = first + e->lanes;
    e->n_grads = clt_lane_slabs_needed(e->split.lanes, first, last, e->cfg->global_train_batch_size);
    e->grads = clt_calloc((size_t)e->n_grads, sizeof *e->grads);
    for (int i = 0; i < e->n_grads; i++)
        CLT_TRY(clt_slab_create(device_of(e), &e->table, 0, "gradients", &e->grads[i]));
    e->stack = clt_lane_stack_create(first, last, e->grads, e->n_grads, add_slabs, e->ops);
    return CLT_OK;
}

/* --- all --- */

/* With lanes that are dealt out, each is one microbatch: in numerics fast there are as many as that takes on
 * the rank with the smallest microbatch. */
static clt_status divide_lanes(clt_engine *e) {
    const int64_t lane = CLT_CEIL_DIV(e->cfg->global_train_batch_size, (int64_t)e->split.lanes);
    int64_t parts = CLT_CEIL_DIV(lane, e->plan->microbatch);
    if (!e->sharded_gradients) return CLT_OK;
    e->split.dealt = true;
    if (e->cfg->numerics != CLT_FAST) return CLT_OK;
    CLT_TRY(clt_group_max_i64(e->group, &parts, 1));
    e->split.chain = true;
    e->split.lanes *= (int)parts;
    if (!e->split.count) return CLT_OK;
    e->counts = clt_memdup(e->split.count, (size_t)e->split.ranks * sizeof *e->counts);
    for (int r = 0; r < e->split.ranks; r++) e->counts[r] *= (int)parts;
    e->split.count = e->counts;
    return CLT_OK;
}

/* Each rank has its own: ranks of a host share the folder. */
static clt_status open_file(clt_engine *e) {
    char *name = clt_format("cltrain-offload-%d", clt_group_rank(e->group));
    const clt_status st = clt_scratch_open(e->cfg->shard.offload_folder, name, &e->file);
    clt_free(name);
    return st;
}

clt_status clt_engine_slabs_create(clt_engine *e, bool training) {
    e->stage = training ? e->plan->stage : 0;
    e->sharded_gradients = e->stage >= 2 && !e->plan->whole_gradients;
    e->sharded_weights = e->stage >= 3;
    e->host_weights = e->sharded_weights && e->cfg->shard.host_weights;
    e->offloads = training && e->cfg->shard.offload != CLT_OFFLOAD_NONE;
    e->split = clt_plan_split(e->plan);
    if (training) CLT_TRY(divide_lanes(e));
    e->lanes = clt_lane_count(&e->split, clt_group_rank(e->group));
    if (training) CLT_TRY(clt_plan_shards(e->plan, &e->table, &e->shards));
    if (training) clt_engine_group_set(e);
    if (e->stage > 0 || (training && e->cfg->shard.host_update)) CLT_TRY(clt_engine_units_create(e));
    if (training && e->cfg->shard.offload == CLT_OFFLOAD_FILE) CLT_TRY(open_file(e));
    CLT_TRY(create_weights(e));
    if (!training) return CLT_OK;
    CLT_TRY(create_state(e, "exp_avg", &e->m));
    if (clt_engine_second_moment(e->cfg)) CLT_TRY(create_state(e, "exp_avg_sq", &e->v));
    CLT_TRY(e->sharded_gradients ? create_sums(e) : create_gradients(e));
    return create_offload(e);
}

void clt_engine_slabs_destroy(clt_engine *e) {
    clt_lane_stack_destroy(e->stack);
    clt_offload_destroy(e->offload);
    clt_engine_host_sums_destroy(e->host_sums);
    clt_engine_host_parts_destroy(e->host_parts);
    for (int i = 0; i < e->n_grads && e->grads && !e->sharded_gradients; i++) clt_slab_destroy(e->grads[i]);
    for (int i = 0; i < CLT_LANE_LEVELS; i++) clt_slab_destroy(e->level[i]);
    clt_slab *own[] = {e->master, e->copy, e->wide, e->m, e->v};
    for (size_t i = 0; i < CLT_COUNT_OF(own); i++) clt_slab_destroy(own[i]);
    clt_scratch_close(e->file);
    clt_engine_units_destroy(e);
    clt_shards_free(&e->shards);
    clt_free(e->grads);
    clt_free(e->counts);
    clt_free(e->wide_range);
}
