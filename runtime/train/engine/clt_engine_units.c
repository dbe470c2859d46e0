/* Weights and gradients that come and go, unit by unit (clt_model.h), where each rank keeps its part only, or
 * keeps the weights in the host's memory.
 *
 * The model reads weights from, and writes gradients to, slabs whose pieces are its units. A unit is present
 * while a buffer stands in its piece. The first and the last unit (embedding, head) have buffers of their
 * own; the blocks between them take turns in a few. All ranks go through the same units in the same order, so
 * they begin the same operations; a rank that has nothing to compute goes through them without a pass. */
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

enum { GRADIENT_PLACES = CLT_PLAN_GRADIENT_RING, FIRST_BLOCK = 2 /* places before the blocks' */ };

static clt_slab_range range_of(const clt_engine *e, int unit) {
    const uint64_t *start = e->units.start;
    return (clt_slab_range){start[unit], start[unit + 1] - start[unit]};
}

static uint64_t largest_block(const clt_engine *e) {
    uint64_t most = 0;
    for (int u = 1; u + 1 < e->units.n; u++) most = CLT_MAX(most, range_of(e, u).count);
    return most;
}

/* --- creation --- */

static clt_status create_holder(clt_engine *e, uint32_t bytes, int blocks, const char *name,
                                clt_unit_holder *h) {
    clt_device *dev = clt_ops_device(e->ops);
    h->slab = clt_slab_create_holes(&e->table, e->units.start, e->units.n, bytes);
    h->n = FIRST_BLOCK + CLT_MIN(blocks, CLT_MAX(e->units.n - 2, 0));
    h->place = clt_calloc((size_t)h->n, sizeof *h->place);
    for (int i = 0; i < h->n; i++) {
        const int unit = i == 0 ? 0 : e->units.n - 1;
        const uint64_t count = i < FIRST_BLOCK ? range_of(e, unit).count : largest_block(e);
        h->place[i].unit = -1;
        if (i == 1 && e->units.n == 1) continue;
        CLT_TRY(clt_buffer_create(dev, count * bytes, name, &h->place[i].buffer));
        CLT_TRY(clt_buffer_fill32(h->place[i].buffer, 0, 0, count * bytes));
    }
    return CLT_OK;
}

static void destroy_holder(clt_unit_holder *h) {
    for (int i = 0; i < h->n; i++) {
        clt_mark_release(h->place[i].there);
        clt_buffer_destroy(h->place[i].buffer);
    }
    clt_free(h->place);
    clt_slab_destroy(h->slab);
}

clt_status clt_engine_units_create(clt_engine *e) {
    clt_engine_units *u = &e->units;
    u->n = clt_model_units(e->cfg->model, &e->table, &u->unit);
    u->start = clt_calloc((size_t)u->n + 1, sizeof *u->start);
    for (int i = 0; i < u->n; i++) u->start[i] = i ? e->table.entry[u->unit[i].first].offset : 0;
    u->start[u->n] = e->table.total;
    u->ahead = e->cfg->shard.limit_gathers ? CLT_PLAN_GATHER_AHEAD : CLT_PLAN_GATHER_FAR;
    u->forwards = clt_model_order(e->cfg->model, CLT_ORDER_FORWARD, &u->forward);
    u->trains = clt_model_order(e->cfg->model, CLT_ORDER_TRAINING, &u->train);
    if (e->sharded_weights)
        CLT_TRY(create_holder(e, e->cfg->precision == CLT_F32 ? 4 : 2, u->ahead + CLT_PLAN_GATHER_USED,
                              "gathered weights", &u->weights));
    if (e->sharded_gradients)
        CLT_TRY(create_holder(e, 4, GRADIENT_PLACES, "gradients of units", &u->gradients));
    return CLT_OK;
}

void clt_engine_units_destroy(clt_engine *e) {
    destroy_holder(&e->units.weights);
    destroy_holder(&e->units.gradients);
    clt_free(e->units.unit);
    clt_free(e->units.start);
    clt_free(e->units.forward);
    clt_free(e->units.train);
}

/* --- places --- */

static clt_unit_place *place_with(const clt_unit_holder *h, int unit) {
    for (int i = 0; i < h->n; i++)
        if (h->place[i].unit == unit) return &h->place[i];
    return NULL;
}

static void put(clt_unit_holder *h, clt_unit_place *p, int unit) {
    if (p->unit >= 0) h->slab->piece[p->unit] = NULL;
    p->unit = unit;
    if (unit >= 0) h->slab->piece[unit] = p->buffer;
}

static void forget_all(clt_unit_holder *h) {
    for (int i = 0; i < h->n; i++) put(h, &h->place[i], -1);
}

/* Whether a unit is in what the pass reads next. */
static bool is_wanted(const clt_engine_units *u, int unit) {
    for (int i = u->at; i < CLT_MIN(u->at + 1 + u->ahead, u->reads); i++)
        if (u->order[i] == unit) return true;
    return false;
}

/* NULL: all are in use, or wanted soon. */
static clt_unit_place *free_place(clt_engine_units *u, int unit) {
    clt_unit_holder *h = &u->weights;
    if (unit == 0) return &h->place[0];
    if (unit == u->n - 1) return &h->place[1];
    for (int i = FIRST_BLOCK; i < h->n; i++) {
        clt_unit_place *p = &h->place[i];
        if (p->unit < 0 || (!p->in_use && !is_wanted(u, p->unit))) return p;
    }
    return NULL;
}

/* --- weights --- */

/* Copies what this rank keeps of a unit from the host's memory or the file to its place, in the queue of
 * copies to the device, when nothing queued so far uses the place. */
static clt_status bring_kept(clt_engine *e, clt_unit_place *p, clt_slab_range x) {
    clt_device *dev = clt_ops_device(e->ops);
    CLT_TRY(clt_device_hand_over(dev, CLT_QUEUE_IN));
    CLT_TRY(clt_engine_copy_away(e, e->units.source, x, (clt_ref){p->buffer, 0}, true));
    clt_mark_release(p->there);
    CLT_TRY(clt_device_mark(dev, &p->there));
    return clt_device_use(dev, CLT_QUEUE_COMPUTE);
}

/* Begins a gather of elements x, as far as they are in bucket b. What a rank keeps in the host's memory is
 * handed on from the place of the unit, to which the queue of copies brings it. */
static clt_status gather(clt_engine *e, int b, clt_slab_range x, int64_t *op) {
    const clt_engine_shard_group *w = &e->weights_in;
    clt_slab *to = e->units.weights.slab, *from = e->host_weights ? to : e->units.source;
    clt_device *dev = clt_ops_device(e->ops);
    if (e->host_weights) CLT_TRY(clt_device_use(dev, CLT_QUEUE_IN));
    const clt_status st =
        clt_gather_begin(w->gather, (clt_bucket_part){b, x}, from, to, CLT_GATHER_AS_IT_IS, NULL, 0, op);
    CLT_TRY(clt_device_use(dev, CLT_QUEUE_COMPUTE));
    return st;
}

/* Begins to bring a unit that is absent. */
static clt_status fetch(clt_engine *e, clt_unit_place *p, int unit) {
    const clt_shards *keep = &e->weights_in.keep;
    const clt_slab_range x = range_of(e, unit);
    put(&e->units.weights, p, unit);
    p->op = 0;
    if (e->mute) return CLT_OK;
    CLT_TRY(clt_engine_settle_kept(e, x));
    if (e->host_weights) CLT_TRY(bring_kept(e, p, x));
    for (int b = 0; b < keep->buckets; b++) {
        const clt_slab_range all = clt_shards_bucket(keep, b);
        int64_t op = 0;
        if (all.first >= x.first + x.count || x.first >= all.first + all.count) continue;
        CLT_TRY(gather(e, b, x, &op));
        p->op = CLT_MAX(p->op, op);
    }
    return CLT_OK;
}

static clt_status fetch_ahead(clt_engine *e) {
    clt_engine_units *u = &e->units;
    for (int i = u->at + 1; i < CLT_MIN(u->at + 1 + u->ahead, u->reads); i++) {
        const int unit = u->order[i];
        if (place_with(&u->weights, unit)) continue;
        clt_unit_place *p = free_place(u, unit);
        if (!p) break;
        CLT_TRY(fetch(e, p, unit));
    }
    return CLT_OK;
}

/* clt_model_set_need. Weights that all ranks have may still be on their way from their owners. */
clt_status clt_engine_need(void *engine, int unit) {
    clt_engine *e = engine;
    clt_engine_units *u = &e->units;
    if (!e->sharded_weights) return clt_engine_settle_unit(e, range_of(e, unit));
    if (u->at >= u->reads || u->order[u->at] != unit)
        return clt_error(CLT_FAIL, "the model reads unit %d out of order; this is a bug", unit);
    clt_unit_place *p = place_with(&u->weights, unit);
    if (!p) {
        p = free_place(u, unit);
        if (!p) return clt_error(CLT_FAIL, "no place is left for unit %d; this is a bug", unit);
        CLT_TRY(fetch(e, p, unit));
    }
    p->in_use = true;
    CLT_TRY(fetch_ahead(e));
    u->at++;
    if (e->mute) return CLT_OK;
    CLT_TRY(clt_engine_settle_unit(e, range_of(e, unit)));
    CLT_TRY(clt_device_after(clt_ops_device(e->ops), p->there));
    clt_mark_release(p->there);
    p->there = NULL;
    return clt_exchange_join(e->weights_in.gather, p->op);
}

/* clt_model_set_done */
clt_status clt_engine_done(void *engine, int unit) {
    clt_engine *e = engine;
    clt_unit_place *p = e->sharded_weights ? place_with(&e->units.weights, unit) : NULL;
    if (p) p->in_use = false;
    return CLT_OK;
}

void clt_engine_begin_pass(clt_engine *e, bool training) {
    clt_engine_units *u = &e->units;
    u->order = training ? u->train : u->forward;
    u->reads = training ? u->trains : u->forwards;
    u->at = 0;
}

void clt_engine_forget_units(clt_engine *e) {
    if (e->sharded_weights) forget_all(&e->units.weights);
    if (e->sharded_gradients) forget_all(&e->units.gradients);
}

/* --- gradients --- */

/* Padding has to be +0, because sums go over it; where it lies differs from unit to unit. */
static clt_status clear_padding(const clt_engine *e, const clt_unit_place *p) {
    const clt_slab_range x = range_of(e, p->unit);
    const clt_model_unit *u = &e->units.unit[p->unit];
    for (int i = u->first; i < u->end; i++) {
        const clt_slab_entry *t = &e->table.entry[i];
        const uint64_t first = t->offset + t->count - x.first,
                       end = (i + 1 < u->end ? t[1].offset : x.first + x.count) - x.first;
        if (end > first) CLT_TRY(clt_buffer_fill32(p->buffer, first * 4, 0, (end - first) * 4));
    }
    return CLT_OK;
}

/* clt_model_set_grads_need: a place whose last gradients have left. */
clt_status clt_engine_grads_need(void *engine, int unit) {
    clt_engine *e = engine;
    clt_unit_holder *h = &e->units.gradients;
    if (!e->sharded_gradients) return CLT_OK;
    const int blocks = h->n - FIRST_BLOCK, last = e->units.n - 1;
    clt_unit_place *p = place_with(h, unit);
    if (!p)
        p = unit == 0      ? &h->place[0]
            : unit == last ? &h->place[1]
                           : &h->place[FIRST_BLOCK + e->units.turn++ % CLT_MAX(blocks, 1)];
    /* Operations look the unit that was there up until they are joined. */
    if (!e->mute) CLT_TRY(clt_exchange_join(e->reduce, p->op));
    CLT_TRY(clt_device_after(clt_ops_device(e->ops), p->there));
    clt_mark_release(p->there);
    p->there = NULL;
    if (p->unit == unit) return CLT_OK;
    put(h, p, unit);
    return clear_padding(e, p);
}

uint64_t clt_engine_largest_unit(const clt_engine *e) {
    uint64_t most = largest_block(e);
    for (int u = 0; u < e->units.n; u += CLT_MAX(e->units.n - 1, 1))
        most = CLT_MAX(most, range_of(e, u).count);
    return most;
}

clt_unit_place *clt_engine_gradient_place(clt_engine *e, int unit, clt_slab_range *x) {
    *x = range_of(e, unit);
    return place_with(&e->units.gradients, unit);
}

clt_status clt_engine_reduce_unit(clt_engine *e, int unit) {
    if (e->host_sums) return clt_engine_host_sums_keep(e, unit);
    const clt_slab_range x = range_of(e, unit);
    clt_unit_place *p = place_with(&e->units.gradients, unit);
    clt_slab *const *level = e->level;
    if (e->host_parts) CLT_TRY(clt_engine_host_parts_bring(e, unit, &level));
    for (int b = e->shards.buckets - 1; b >= 0; b--) {
        const clt_slab_range all = clt_shards_bucket(&e->shards, b);
        int64_t op = 0;
        if (all.first >= x.first + x.count || x.first >= all.first + all.count) continue;
        CLT_TRY(
            clt_reduce_begin(e->reduce, (clt_bucket_part){b, x}, &e->step.sum, e->step.has_lane, level, &op));
        e->step.reduced = CLT_MAX(e->step.reduced, op);
        if (p) p->op = CLT_MAX(p->op, op);
    }
    if (e->host_parts) clt_engine_host_parts_began(e, unit, e->step.reduced);
    return CLT_OK;
}

/* --- going along --- */

/* What a training pass of another rank begins: each unit's gradients follow its last use, the first unit's
 * come at the end. */
clt_status clt_engine_go_along(clt_engine *e, bool training, bool gradients) {
    clt_engine_units *u = &e->units;
    clt_engine_begin_pass(e, training);
    for (int i = 0; i < u->reads; i++) {
        const int unit = u->order[i];
        if (e->sharded_weights) {
            CLT_TRY(clt_engine_need(e, unit));
            CLT_TRY(clt_engine_done(e, unit));
        }
        if (gradients && i + 1 == u->forwards) CLT_TRY(clt_engine_reduce_unit(e, u->n - 1));
        if (gradients && i >= u->forwards) CLT_TRY(clt_engine_reduce_unit(e, unit));
    }
    return gradients ? clt_engine_reduce_unit(e, 0) : CLT_OK;
}
