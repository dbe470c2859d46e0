/* Sums of gradients in the host's memory or a file (cltrain.offload_gradients), on several ranks.
 *
 * Each rank has the sums of what it owns. Between two rounds they wait in e->level. In a round
 * the reduction of a unit (clt_reduce.h) reads and writes them in a place on the device: what the rank owns
 * of the unit comes there before the reduction begins, in the queue IN, where its additions follow, and
 * leaves when the place is needed for another unit, which is a few units later. So the additions, and their
 * bits, are those of sums that stay on the device. One rank has no reductions: clt_engine_host_sums.c. */
#include "runtime/train/engine/clt_engine_internal.h"
#include "runtime/train/engine/clt_plan_memory.h"

enum { PLACES = CLT_PLAN_PART_PLACES };

typedef struct {
    clt_buffer *buffer; /* [levels][part] */
    int unit;           /* that is there, or on its way; -1: none */
    int kept;           /* levels that its last round leaves */
    int64_t op;         /* that adds to it */
} part_place;

struct clt_engine_host_parts {
    clt_slab *level[CLT_LANE_LEVELS]; /* on the device: a piece for each range that the rank owns of a unit in
                                       * a bucket, and the holes between them; present in a place */
    bool *own;                        /* [pieces] */
    int levels;
    uint64_t part; /* elements: the most that the rank owns of a unit */
    part_place place[PLACES];
    unsigned turn;
    int before, after; /* levels that are kept before this round, and after it */
    clt_mark *left;    /* behind what has left last; NULL: nothing has */
};

/* --- creation --- */

/* A piece begins at *at, unless that is where the last one begins. */
static void add_piece(uint64_t *start, bool *own, int *n, uint64_t at, bool owned) {
    if (*n > 0 && start[*n - 1] == at) --*n;
    start[*n] = at;
    own[(*n)++] = owned;
}

/* The pieces, ascending: unit by unit, and in each the ranges of the buckets. Returns how many. */
static int find_pieces(const clt_engine *e, uint64_t *start, bool *own) {
    const int rank = clt_group_rank(e->group);
    int n = 0;
    for (int u = 0; u < e->units.n; u++) {
        const clt_slab_range unit = {e->units.start[u], e->units.start[u + 1] - e->units.start[u]};
        add_piece(start, own, &n, unit.first, false);
        for (int b = 0; b < e->shards.buckets; b++) {
            const clt_slab_range x = clt_slab_range_common(clt_shards_range(&e->shards, b, rank), unit);
            if (x.count == 0) continue;
            add_piece(start, own, &n, x.first, true);
            if (x.first + x.count < unit.first + unit.count)
                add_piece(start, own, &n, x.first + x.count, false);
        }
    }
    start[n] = e->table.total;
    return n;
}

static clt_status create_places(clt_engine *e, clt_engine_host_parts *h) {
    h->part = clt_plan_largest_part(&e->shards, clt_group_rank(e->group), e->units.start, e->units.n);
    for (int i = 0; i < PLACES; i++) h->place[i].unit = -1;
    for (int i = 0; i < PLACES && h->part; i++)
        CLT_TRY(clt_buffer_create(clt_ops_device(e->ops), (uint64_t)h->levels * h->part * sizeof(float),
                                  "sums of gradients", &h->place[i].buffer));
    return CLT_OK;
}

clt_status clt_engine_host_parts_create(clt_engine *e, clt_engine_host_parts **out) {
    clt_engine_host_parts *h = clt_calloc(1, sizeof *h);
    const size_t most = (size_t)(2 * (e->units.n + e->shards.buckets) + 1) * 2;
    uint64_t *start = clt_calloc(most, sizeof *start);
    h->own = clt_calloc(most, sizeof *h->own);
    h->levels = e->plan->memory.gradient_sums;
    const int pieces = find_pieces(e, start, h->own);
    for (int l = 0; l < h->levels; l++)
        h->level[l] = clt_slab_create_holes(&e->table, start, pieces, sizeof(float));
    clt_free(start);
    const clt_status st = create_places(e, h);
    if (st == CLT_OK)
        *out = h;
    else
        clt_engine_host_parts_destroy(h);
    return st;
}

void clt_engine_host_parts_destroy(clt_engine_host_parts *h) {
    if (!h) return;
    clt_mark_release(h->left);
    for (int i = 0; i < PLACES; i++) clt_buffer_destroy(h->place[i].buffer);
    for (int l = 0; l < h->levels; l++) clt_slab_destroy(h->level[l]);
    clt_free(h->own);
    clt_free(h);
}

/* --- places --- */

/* The next piece of the unit that this rank owns, from piece *i on; false: there are no more. */
static bool next_piece(const clt_engine *e, int unit, int *i) {
    const clt_slab *s = e->host_parts->level[0];
    for (; *i < s->n && s->start[*i] < e->units.start[unit + 1]; ++*i)
        if (s->start[*i] >= e->units.start[unit] && e->host_parts->own[*i]) return true;
    return false;
}

/* The pieces of the unit lie in the place, one behind the other, or are holes again. */
static void put(clt_engine *e, part_place *p, int unit, bool there) {
    clt_engine_host_parts *h = e->host_parts;
    uint64_t at = 0;
    p->unit = there ? unit : -1;
    for (int i = 0; unit >= 0 && next_piece(e, unit, &i); i++) {
        for (int l = 0; l < h->levels; l++) {
            h->level[l]->piece[i] = there ? p->buffer : NULL;
            h->level[l]->origin[i] = there ? (uint64_t)l * h->part + at : 0;
        }
        at += h->level[0]->start[i + 1] - h->level[0]->start[i];
    }
}

/* Queues the copies of levels between the place and the host, in the queue in use. */
static clt_status copy_unit(const clt_engine *e, int unit, int levels, bool to_host) {
    for (int i = 0; next_piece(e, unit, &i); i++)
        for (int l = 0; l < levels; l++) {
            const clt_slab *s = e->host_parts->level[l];
            const clt_slab_range x = {s->start[i], s->start[i + 1] - s->start[i]};
            CLT_TRY(clt_engine_copy_away(e, e->level[l], x, clt_slab_part(s, i), !to_host));
        }
    return CLT_OK;
}

/* What is in the place leaves for the host once the additions to it are done; the place is empty after it. */
static clt_status leave(clt_engine *e, part_place *p) {
    clt_engine_host_parts *h = e->host_parts;
    clt_device *dev = clt_ops_device(e->ops);
    if (p->unit < 0) return CLT_OK;
    CLT_TRY(clt_device_use(dev, CLT_QUEUE_OUT));
    CLT_TRY(clt_exchange_join(e->reduce, p->op));
    CLT_TRY(copy_unit(e, p->unit, p->kept, true));
    clt_mark_release(h->left);
    h->left = NULL;
    CLT_TRY(clt_device_mark(dev, &h->left));
    put(e, p, p->unit, false);
    return clt_device_use(dev, CLT_QUEUE_COMPUTE);
}

static part_place *place_with(clt_engine_host_parts *h, int unit) {
    for (int i = 0; i < PLACES; i++)
        if (h->place[i].unit == unit) return &h->place[i];
    return NULL;
}

/* --- rounds --- */

/* After a batch that was given up sums of it may be left. */
static clt_status forget_all(clt_engine *e) {
    clt_engine_host_parts *h = e->host_parts;
    for (int i = 0; i < PLACES; i++) {
        CLT_TRY(clt_exchange_join(e->reduce, h->place[i].unit < 0 ? 0 : h->place[i].op));
        put(e, &h->place[i], h->place[i].unit, false);
    }
    return CLT_OK;
}

clt_status clt_engine_host_parts_open(clt_engine *e, int round) {
    clt_engine_host_parts *h = e->host_parts;
    if (!h) return CLT_OK;
    if (round == 0) CLT_TRY(forget_all(e));
    h->before = clt_reduce_kept(&e->split, round);
    h->after = clt_reduce_kept(&e->split, round + 1);
    return CLT_OK;
}

clt_status clt_engine_host_parts_bring(clt_engine *e, int unit, clt_slab *const **level) {
    clt_engine_host_parts *h = e->host_parts;
    clt_device *dev = clt_ops_device(e->ops);
    part_place *p = place_with(h, unit);
    *level = h->level;
    if (!p) {
        p = &h->place[h->turn++ % PLACES];
        CLT_TRY(leave(e, p));
        put(e, p, unit, true);
        CLT_TRY(clt_device_use(dev, CLT_QUEUE_IN));
        CLT_TRY(clt_device_after(dev, h->left));
        CLT_TRY(copy_unit(e, unit, h->before, false));
        CLT_TRY(clt_device_use(dev, CLT_QUEUE_COMPUTE));
    }
    p->kept = h->after;
    return CLT_OK;
}

void clt_engine_host_parts_began(clt_engine *e, int unit, int64_t op) {
    place_with(e->host_parts, unit)->op = op;
}

clt_status clt_engine_host_parts_close(clt_engine *e) {
    clt_engine_host_parts *h = e->host_parts;
    clt_device *dev = clt_ops_device(e->ops);
    if (!h) return CLT_OK;
    for (int i = 0; i < PLACES; i++) CLT_TRY(leave(e, &h->place[h->turn++ % PLACES]));
    /* What follows brings the total. */
    CLT_TRY(clt_device_use(dev, CLT_QUEUE_OUT));
    CLT_TRY(clt_device_hand_over(dev, CLT_QUEUE_IN));
    return clt_device_use(dev, CLT_QUEUE_COMPUTE);
}
