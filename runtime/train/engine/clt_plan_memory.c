#include "runtime/train/engine/clt_plan_memory.h"

#include "runtime/train/engine/clt_plan.h"

enum { WIDE = 4, NARROW = 2 /* bytes */, GROUP = 64 /* elements with one byte */ };

/* --- the terms --- */

uint64_t clt_plan_weights_bytes(const clt_plan_sizes *s) {
    const uint64_t master = s->offload ? 0 : s->owned * WIDE;
    if (s->narrow && s->stage == 0 && !s->offload) return s->total * WIDE;
    if (s->narrow) return master + (s->stage < 3 ? s->wide * WIDE : 0);
    return s->stage < 3 ? s->total * WIDE : master + s->gathered;
}

uint64_t clt_plan_copy_bytes(const clt_plan_sizes *s) {
    if (!s->narrow) return 0;
    return s->stage < 3 ? s->total * NARROW : s->gathered;
}

uint64_t clt_plan_gradients_bytes(const clt_plan_sizes *s) {
    const uint64_t sums = s->owned * (uint64_t)s->gradient_sums;
    return (s->gradient_slabs ? s->total * (uint64_t)s->gradient_slabs : sums + s->ring + s->open) * WIDE;
}

uint64_t clt_plan_optimizer_bytes(const clt_plan_sizes *s) {
    const uint64_t moments = s->offload ? 0 : s->owned * WIDE * (uint64_t)s->moments;
    return moments + s->owned / GROUP;
}

uint64_t clt_plan_host_bytes(const clt_plan_sizes *s) {
    /* Runs in fp32 at stages below 3 read the whole weights on the device. */
    const bool master = s->narrow || s->stage == 3;
    return s->offload ? s->owned * WIDE * (uint64_t)(s->moments + master) : 0;
}

/* --- units --- */

uint64_t clt_plan_most_held(const int *order, int n, const uint64_t *size, int held) {
    uint64_t most = 0;
    for (int at = 0; at < n; at++) {
        uint64_t sum = 0;
        for (int i = at; i < CLT_MIN(at + held, n); i++) {
            bool again = false;
            for (int k = at; k < i; k++) again |= order[k] == order[i];
            if (!again) sum += size[order[i]];
        }
        most = CLT_MAX(most, sum);
    }
    return most;
}

/* The largest sum of `size`, by unit, over `held` neighbours in the order of `kind`. */
static uint64_t most_held(const clt_config *c, clt_model_order_kind kind, const uint64_t *size, int held) {
    int *order;
    const int n = clt_model_order(c->model, kind, &order);
    const uint64_t most = clt_plan_most_held(order, n, size, held);
    clt_free(order);
    return most;
}

/* The bytes of tensor i as the model reads it; a tied embedding is read twice, by lookups and as the head. */
static uint64_t read_bytes(const clt_config *c, const clt_model_shape *shape, const clt_slab_table *t,
                           int i) {
    const bool wide = clt_model_reads_wide(c->model, shape, t, i);
    const bool twice = i == 0 && clt_model_get_facts(c->model).tied;
    if (shape->type == CLT_F32) return t->entry[i].count * WIDE;
    return t->entry[i].count * (uint64_t)((wide ? WIDE : 0) + (!wide || twice ? NARROW : 0));
}

/* Sets the sizes that depend on units: wide, ring, open, gathered. */
static void find_units(const clt_config *c, const clt_model_shape *shape, const clt_slab_table *t, int held,
                       clt_plan_sizes *s) {
    clt_model_unit *unit;
    const int n = clt_model_units(c->model, t, &unit);
    uint64_t *elements = clt_calloc((size_t)n, sizeof *elements),
             *bytes = clt_calloc((size_t)n, sizeof *bytes);
    for (int u = 0; u < n; u++) {
        const uint64_t end = unit[u].end < t->n ? t->entry[unit[u].end].offset : t->total;
        elements[u] = end - t->entry[unit[u].first].offset;
        for (int i = unit[u].first; i < unit[u].end; i++) bytes[u] += read_bytes(c, shape, t, i);
    }
    for (int i = 0; i < t->n; i++)
        if (clt_model_reads_wide(c->model, shape, t, i)) s->wide += t->entry[i].count;
    if (clt_model_get_facts(c->model).tied) {
        s->open = elements[0];
        elements[0] = 0;
    }
    s->ring = most_held(c, CLT_ORDER_GRADIENTS, elements, CLT_PLAN_GRADIENT_RING);
    s->gathered = most_held(c, CLT_ORDER_TRAINING, bytes, held);
    clt_free(elements);
    clt_free(bytes);
    clt_free(unit);
}

/* --- lanes --- */

int clt_plan_live_sums(const clt_lane_split *s) {
    /* done[1] is the tree's root, done[2 n] and done[2 n + 1] are the halves of node n. */
    bool *done = clt_calloc((size_t)s->lanes * 2, sizeof *done);
    int live = 0, most = 0, left = s->lanes;
    for (int step = 0; left > 0; step++) {
        for (int r = 0; r < s->ranks; r++) {
            const int lane = clt_lane_begin(s, r) + step;
            if (lane >= clt_lane_begin(s, r + 1)) continue;
            int node = s->lanes + lane;
            done[node] = true;
            for (live++, left--; node > 1 && done[node ^ 1]; live--) done[node /= 2] = true;
        }
        most = CLT_MAX(most, live);
    }
    clt_free(done);
    return most;
}

/* --- of a configuration --- */

/* Of all ranks. */
static int most_gradient_slabs(const clt_config *c, const clt_plan *p) {
    const clt_lane_split split = clt_plan_split(p);
    int most = 1;
    for (int r = 0; r < p->ranks; r++)
        most =
            CLT_MAX(most, clt_lane_slabs_needed(p->lanes, clt_lane_begin(&split, r),
                                                clt_lane_begin(&split, r + 1), c->global_train_batch_size));
    return most;
}

/* The most elements that one of `ranks` ranks owns. */
static clt_status most_owned(const clt_slab_table *t, int ranks, uint64_t *most) {
    clt_shards s;
    CLT_TRY(clt_shards_create(t, ranks, NULL, &s));
    *most = 0;
    for (int r = 0; r < ranks; r++) *most = CLT_MAX(*most, clt_shards_owned(&s, r));
    clt_shards_free(&s);
    return CLT_OK;
}

static clt_status reduction_of(const clt_config *c, const clt_plan *p, const clt_slab_table *t,
                               clt_device_type type, uint64_t *bytes) {
    const clt_lane_split split = clt_plan_split(p);
    clt_shards s;
    CLT_TRY(clt_shards_create(t, p->ranks, NULL, &s));
    *bytes = clt_reduce_plan_bytes(&s, &split, c->reduce_bf16, type == CLT_DEVICE_CPU);
    clt_shards_free(&s);
    return CLT_OK;
}

static clt_status sizes_of(const clt_config *c, const clt_plan *p, const clt_slab_table *t,
                           int64_t microbatch, clt_plan_sizes *out) {
    const clt_lane_split split = clt_plan_split(p);
    const bool whole = p->stage < 2 || p->whole_gradients || clt_plan_lane_is_split(c, p, microbatch);
    const int ahead = c->shard.limit_gathers ? CLT_PLAN_GATHER_AHEAD : CLT_PLAN_GATHER_FAR;
    clt_plan_sizes s = {.stage = p->stage,
                        .moments = c->optimizer.kind == CLT_OPTIMIZER_ADAMW ? 2 : 1,
                        .narrow = c->precision != CLT_F32,
                        .offload = c->shard.offload == CLT_OFFLOAD_HOST,
                        .total = t->total};
    const clt_model_shape shape = clt_plan_shape(c, p, true);
    find_units(c, &shape, t, 1 + ahead, &s);
    s.gradient_slabs = whole ? most_gradient_slabs(c, p) : 0;
    /* With numerics fast every microbatch is added to one sum, in any order. */
    s.gradient_sums = whole ? 0 : c->numerics == CLT_FAST ? 1 : clt_plan_live_sums(&split);
    CLT_TRY(most_owned(t, p->shard_ranks, &s.owned));
    *out = s;
    return CLT_OK;
}

static clt_status memory_of(const clt_config *c, const clt_plan *p, const clt_slab_table *t,
                            clt_device_type type, int64_t microbatch, clt_plan_memory *m) {
    clt_plan_sizes s;
    CLT_TRY(sizes_of(c, p, t, microbatch, &s));
    CLT_TRY(reduction_of(c, p, t, type, &m->reduction));
    m->elements = t->total;
    m->gradient_slabs = s.gradient_slabs;
    m->gradient_sums = s.gradient_sums;
    m->weights = clt_plan_weights_bytes(&s);
    m->copy = clt_plan_copy_bytes(&s);
    m->gradients = clt_plan_gradients_bytes(&s);
    m->optimizer = clt_plan_optimizer_bytes(&s);
    m->host = clt_plan_host_bytes(&s);
    m->total = m->weights + m->copy + m->gradients + m->optimizer + m->reduction + m->model.total;
    m->largest = m->model.largest;
    for (int i = 0; i < t->n; i++) m->largest = CLT_MAX(m->largest, t->entry[i].count * WIDE);
    return CLT_OK;
}

clt_status clt_plan_memory_of(const clt_config *c, const clt_plan *p, clt_device_type type,
                              int64_t microbatch, clt_plan_memory *out) {
    clt_slab_table t = {0};
    clt_plan_memory m = {0};
    clt_model_shape shape = clt_plan_shape(c, p, true);
    shape.microbatch = microbatch;
    CLT_TRY(clt_model_plan(c->model, &shape, type, &m.model));
    clt_status st = clt_model_table(c->model, &t);
    if (st == CLT_OK) st = memory_of(c, p, &t, type, microbatch, &m);
    clt_slab_table_free(&t);
    if (st == CLT_OK) *out = m;
    return st;
}
