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
 * too. With cltrain.offload_parameters the kept ranges from which units are gathered are there, with
 * cltrain.offload_gradients the sums of gradients. */
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

/* Elements of ranges in the host's memory, or in the file. */
static clt_status create_away(clt_engine *e, const clt_slab_range *range, int n, uint64_t resident,
                              uint32_t bytes, bool in_file, const char *name, clt_slab **out) {
    clt_device *dev = device_of(e);
    return in_file ? clt_slab_create_in_file(dev, &e->table, range, n, resident, bytes, e->file, name, out)
                   : clt_slab_create_pinned(dev, &e->table, range, n, resident, bytes, name, out);
}

/* What units are gathered from. */
static clt_status kept_weights(clt_engine *e, uint32_t bytes, const char *name, clt_slab **out) {
    const clt_engine_shard_group *w = &e->weights_in;
    if (!e->host_weights) return kept_ranges(e, bytes, name, out);
    clt_slab_range *kept = clt_calloc((size_t)w->keep.buckets, sizeof *kept);
    for (int b = 0; b < w->keep.buckets; b++) kept[b] = clt_shards_range(&w->keep, b, w->number);
    const bool in_file = e->cfg->shard.parameters == CLT_OFFLOAD_FILE;
    const clt_status st = create_away(e, kept, w->keep.buckets, 0, bytes, in_file, name, out);
    clt_free(kept);
    return st;
}

/* Ranges of what this rank updates; *n of them. The caller frees them. */
static clt_slab_range *find_own(const clt_engine *e, int *n) {
    clt_slab_range *own = clt_calloc((size_t)e->shards.buckets + 1, sizeof *own);
    for (*n = 0; clt_engine_own(e, *n, &own[*n]);) ++*n;
    return own;
}

/* What this rank updates, but for its first `resident` elements, which are on the device. */
static clt_status own_away(clt_engine *e, uint64_t resident, bool in_file, const char *name, clt_slab **out) {
    int n;
    clt_slab_range *own = find_own(e, &n);
    uint64_t owned = 0;
    for (int i = 0; i < n; i++) owned += own[i].count;
    const clt_status st = create_away(e, own, n, CLT_MIN(owned, resident), sizeof(float), in_file, name, out);
    clt_free(own);
    return st;
}

/* Optimizer state. */
static clt_status create_state(clt_engine *e, const char *name, clt_slab **out) {
    if (e->offloads)
        return own_away(e, e->plan->memory.resident, e->cfg->shard.offload == CLT_OFFLOAD_FILE, name, out);
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
    return CLT_OK;
}

/* What is in files; NULL: nothing. The caller frees it. */
static char *files_text(const clt_plan_memory *m) {
    const struct {
        uint64_t bytes;
        const char *what;
    } all[] = {{m->file, "optimizer state"},
               {m->file_weights, "weights"},
               {m->file_gradients, "sums of gradients"},
               {m->model.file, "inputs of blocks"}};
    clt_str s = {0};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (all[i].bytes) clt_str_addf(&s, "%s%s", s.s ? ", " : "", all[i].what);
    return s.s;
}

/* The way of everything else between the file and the device. */
static clt_status create_spool(clt_engine *e) {
    const uint64_t bytes = e->plan->memory.spool;
    if (!e->file) return CLT_OK;
    if (bytes) CLT_TRY(clt_spool_create(device_of(e), e->file, bytes, &e->spool));
    char *what = files_text(&e->plan->memory);
    if (what && clt_group_rank(e->group) == 0)
        clt_info("in files in %s: %s; %s", e->cfg->shard.offload_folder, what, clt_scratch_text(e->file));
    clt_free(what);
    return CLT_OK;
}

clt_status clt_engine_copy_away(const clt_engine *e, const clt_slab *away, clt_slab_range x, clt_ref at,
                                bool back) {
    const uint64_t bytes = away->element_bytes;
    for (uint64_t done = 0, n; done < x.count; done += n) {
        const size_t to = (at.off + done) * bytes;
        uint64_t offset;
        char *host;
        const bool in_file = clt_slab_file_at(away, x.first + done, &n, &offset);
        n = CLT_MIN(n, x.count - done);
        if (in_file) {
            CLT_TRY(back ? clt_spool_fetch(e->spool, at.buf, to, offset, n * bytes)
                         : clt_spool_send(e->spool, at.buf, to, offset, n * bytes));
            continue;
        }
        CLT_TRY(clt_slab_host_at(away, x.first + done, NULL, &host));
        if (host)
            CLT_TRY(back ? clt_buffer_fetch(at.buf, to, host, n * bytes)
                         : clt_buffer_send(at.buf, to, host, n * bytes));
    }
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

/* Units begin inside a chunk, and a file takes whole chunks: of a sum in a file, the chunks that two units
 * share are in the host's memory. The ranges that this rank owns are divided into those and the rest. */
static clt_status sum_in_file(clt_engine *e, clt_slab **out) {
    int n, n_file = 0, n_host = 0;
    clt_slab_range *own = find_own(e, &n);
    const size_t most = (size_t)(n + e->units.n + 1);
    clt_slab_range *file = clt_calloc(most, sizeof *file), *host = clt_calloc(most, sizeof *host);
    for (int i = 0; i < n; i++) {
        uint64_t at = own[i].first, end = at + own[i].count;
        for (int u = 1; u < e->units.n; u++) {
            const uint64_t chunk = e->units.start[u] / CLT_CHUNK * CLT_CHUNK;
            if (chunk == e->units.start[u] || chunk < at || chunk >= end) continue;
            if (chunk > at) file[n_file++] = (clt_slab_range){at, chunk - at};
            host[n_host++] = (clt_slab_range){chunk, CLT_MIN(end - chunk, (uint64_t)CLT_CHUNK)};
            at = chunk + host[n_host - 1].count;
        }
        if (end > at) file[n_file++] = (clt_slab_range){at, end - at};
    }
    clt_slab *in_file = NULL, *in_memory = NULL;
    clt_status st = create_away(e, file, n_file, 0, sizeof(float), true, "gradients", &in_file);
    if (st == CLT_OK) st = create_away(e, host, n_host, 0, sizeof(float), false, "gradients", &in_memory);
    if (st == CLT_OK)
        *out = clt_slab_join(in_file, in_memory);
    else
        clt_slab_destroy(in_file);
    clt_free(own);
    clt_free(file);
    clt_free(host);
    return st;
}

static clt_status create_sum(clt_engine *e, clt_slab **out) {
    if (!e->host_gradients) return own_ranges(e, 4, "gradients", out);
    return e->cfg->shard.gradients == CLT_OFFLOAD_FILE ? sum_in_file(e, out)
                                                       : own_away(e, 0, false, "gradients", out);
}

/* Those of units, and sums of the own ranges between rounds. */
static clt_status create_sums(clt_engine *e) {
    e->n_grads = 1;
    e->grads = clt_calloc(1, sizeof *e->grads);
    e->grads[0] = e->units.gradients.slab;
    e->host_gradients = e->cfg->shard.gradients != CLT_OFFLOAD_NONE;
    for (int i = 0; i < e->plan->memory.gradient_sums; i++) CLT_TRY(create_sum(e, &e->level[i]));
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
    e->host_weights = e->sharded_weights && e->cfg->shard.parameters;
    e->offloads = training && e->cfg->shard.offload != CLT_OFFLOAD_NONE;
    e->split = clt_plan_split(e->plan);
    if (training) CLT_TRY(divide_lanes(e));
    e->lanes = clt_lane_count(&e->split, clt_group_rank(e->group));
    if (training) CLT_TRY(clt_plan_shards(e->plan, &e->table, &e->shards));
    if (training) clt_engine_group_set(e);
    if (e->stage > 0 || (training && e->cfg->shard.host_update)) CLT_TRY(clt_engine_units_create(e));
    if (training && clt_config_has_files(e->cfg)) CLT_TRY(open_file(e));
    CLT_TRY(create_weights(e));
    if (!training) return CLT_OK;
    CLT_TRY(create_state(e, "exp_avg", &e->m));
    if (clt_engine_second_moment(e->cfg)) CLT_TRY(create_state(e, "exp_avg_sq", &e->v));
    CLT_TRY(e->sharded_gradients ? create_sums(e) : create_gradients(e));
    CLT_TRY(create_offload(e));
    return create_spool(e);
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
    clt_spool_destroy(e->spool);
    clt_scratch_close(e->file);
    clt_engine_units_destroy(e);
    clt_shards_free(&e->shards);
    clt_free(e->grads);
    clt_free(e->counts);
    clt_free(e->wide_range);
}
