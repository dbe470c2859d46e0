/* Sums of gradients in the host's memory or a file (cltrain.offload_gradients), on one rank.
 *
 * The gradients of a unit leave for the host as soon as a lane's pass has made them. Where a lane completes
 * subtrees of the tree over lanes (clt_lanes.h), their sums are added first, and what leaves is the sum: the
 * additions of the tree, so the same bits. Complete subtrees are a stack, like the carries of a binary
 * counter; the full ones among them are in level[0], level[1], ... from the bottom of the stack on, and the
 * total is in level[0].
 *
 * The sums that a lane adds first are known before its pass: those of the next two units are on their way to
 * the device, in the queue IN, while the pass is still busy with the units before them: a unit has the place
 * of its number's parity. Additions are in the compute queue: in the queue IN, stretch by stretch beside the
 * products, the passes of MPT-7B took 17.9 s instead of 12.3 on an H200. */
#include "runtime/train/engine/clt_engine_internal.h"
#include "runtime/train/engine/clt_plan_memory.h"

enum { PLACES = CLT_PLAN_SUM_PLACES };

typedef struct {
    int first, width;
    bool full; /* it has samples */
} subtree;

typedef struct {
    subtree s[CLT_LANE_LEVELS + 1];
    int n;
} stack;

/* Of the device, for a sum of a unit. */
typedef struct {
    clt_buffer *buffer;
    int unit;        /* whose first sum to add is there, or on its way; -1: none */
    clt_mark *there; /* behind the copies to it */
    clt_mark *used;  /* behind what reads it */
} sum_place;

struct clt_engine_host_sums {
    sum_place place[PLACES];
    stack before, after; /* complete subtrees without and with the lane of this round */
    subtree lane;        /* of this round */
    bool last;           /* the batch's last round: all that is left is joined */
    int first;           /* the level whose sum the lane adds first; -1: it adds none */
    clt_mark *left;      /* behind what has left in this round; */
    clt_mark *settled;   /* in earlier rounds. NULL: nothing has */
};

/* --- the stack --- */

static bool are_halves(const clt_engine *e, const stack *t) {
    const subtree *s = t->s + t->n - 2;
    if (t->n < 2) return false;
    if (e->split.chain || e->host_sums->last) return true;
    return s[0].width == s[1].width && s[0].first % (2 * s[0].width) == 0;
}

/* The level where the sum of the stack's subtree i is, or would be. */
static int level_of(const stack *t, int i) {
    int level = 0;
    for (int k = 0; k < i; k++) level += t->s[k].full;
    return level;
}

/* Whether both of the topmost subtrees have sums. */
static bool both_full(const stack *t) {
    return t->s[t->n - 2].full && t->s[t->n - 1].full;
}

static void join(stack *t) {
    subtree *left = &t->s[t->n - 2], *right = &t->s[t->n - 1];
    left->width += right->width;
    left->full |= right->full;
    t->n--;
}

/* --- copies --- */

static clt_status set_mark(clt_engine *e, clt_mark **m) {
    clt_mark_release(*m);
    *m = NULL;
    return clt_device_mark(clt_ops_device(e->ops), m);
}

/* Elements x of a level begin to come to a place. */
static clt_status bring(clt_engine *e, int level, clt_slab_range x, sum_place *to) {
    clt_device *dev = clt_ops_device(e->ops);
    CLT_TRY(clt_device_use(dev, CLT_QUEUE_IN));
    CLT_TRY(clt_device_after(dev, to->used));
    CLT_TRY(clt_device_after(dev, e->host_sums->settled));
    CLT_TRY(clt_engine_copy_away(e, e->level[level], x, (clt_ref){to->buffer, 0}, true));
    CLT_TRY(set_mark(e, &to->there));
    return clt_device_use(dev, CLT_QUEUE_COMPUTE);
}

static sum_place *place_of(clt_engine *e, int unit) {
    return &e->host_sums->place[unit % PLACES];
}

/* The sum that a unit's lane adds first, ahead of its use. */
static clt_status bring_ahead(clt_engine *e, int unit) {
    clt_engine_host_sums *h = e->host_sums;
    clt_slab_range x;
    if (unit < 0 || h->first < 0 || !h->lane.full) return CLT_OK;
    clt_engine_gradient_place(e, unit, &x);
    place_of(e, unit)->unit = unit;
    return bring(e, h->first, x, place_of(e, unit));
}

/* sum += element x.first and so on of a level, which may be in the unit's place already. */
static clt_status add(clt_engine *e, int unit, int level, clt_slab_range x, clt_ref sum) {
    clt_device *dev = clt_ops_device(e->ops);
    sum_place *p = place_of(e, unit);
    if (p->unit != unit) CLT_TRY(bring(e, level, x, p));
    p->unit = -1;
    CLT_TRY(clt_device_after(dev, p->there));
    CLT_TRY(clt_op_add(e->ops, sum, (clt_ref){p->buffer, 0}, x.count));
    return set_mark(e, &p->used);
}

/* --- rounds --- */

clt_status clt_engine_host_sums_create(clt_engine *e, clt_engine_host_sums **out) {
    clt_engine_host_sums *h = clt_calloc(1, sizeof *h);
    clt_status st = CLT_OK;
    for (int i = 0; i < PLACES && st == CLT_OK; i++) {
        h->place[i].unit = -1;
        st = clt_buffer_create(clt_ops_device(e->ops), clt_engine_largest_unit(e) * sizeof(float),
                               "sums of gradients", &h->place[i].buffer);
    }
    if (st == CLT_OK)
        *out = h;
    else
        clt_engine_host_sums_destroy(h);
    return st;
}

void clt_engine_host_sums_destroy(clt_engine_host_sums *h) {
    if (!h) return;
    clt_mark_release(h->left);
    clt_mark_release(h->settled);
    for (int i = 0; i < PLACES; i++) {
        clt_mark_release(h->place[i].there);
        clt_mark_release(h->place[i].used);
        clt_buffer_destroy(h->place[i].buffer);
    }
    clt_free(h);
}

/* What has left belongs to earlier rounds now; from a round with an empty lane nothing may have left. */
static void settle(clt_engine_host_sums *h) {
    if (!h->left) return;
    clt_mark_release(h->settled);
    h->settled = h->left;
    h->left = NULL;
}

clt_status clt_engine_host_sums_open(clt_engine *e, int round, int rounds, bool empty) {
    clt_engine_host_sums *h = e->host_sums;
    if (!h) return CLT_OK;
    if (round == 0) h->before.n = 0;
    h->last = round + 1 == rounds;
    h->first = -1;
    h->lane = (subtree){clt_lane_at(&e->split, clt_group_rank(e->group), round), 1, !empty};
    h->after = h->before;
    h->after.s[h->after.n++] = h->lane;
    for (; are_halves(e, &h->after); join(&h->after))
        if (h->first < 0 && both_full(&h->after)) h->first = level_of(&h->after, h->after.n - 2);
    settle(h);
    for (int i = 0; i < PLACES; i++) h->place[i].unit = -1;
    for (int i = 1; i <= PLACES; i++) CLT_TRY(bring_ahead(e, e->units.n - i));
    return CLT_OK;
}

/* The sum of the unit's subtree leaves for its level. `from` is where it is, p where the lane's gradients
 * are; of an empty lane the sum is in a place for sums. */
static clt_status leave(clt_engine *e, int level, clt_slab_range x, clt_ref from, clt_unit_place *p) {
    clt_engine_host_sums *h = e->host_sums;
    clt_device *dev = clt_ops_device(e->ops);
    CLT_TRY(clt_device_hand_over(dev, CLT_QUEUE_OUT));
    CLT_TRY(clt_engine_copy_away(e, e->level[level], x, from, false));
    CLT_TRY(set_mark(e, &h->left));
    if (h->lane.full) CLT_TRY(set_mark(e, &p->there));
    for (int i = 0; i < PLACES; i++)
        if (h->place[i].buffer == from.buf) CLT_TRY(set_mark(e, &h->place[i].used));
    return clt_device_use(dev, CLT_QUEUE_COMPUTE);
}

/* Of the total while it is on the device: of the chunks that are the unit's alone. */
static clt_status sum_squares(clt_engine *e, clt_slab_range x, clt_ref total) {
    const uint64_t first = CLT_CEIL_DIV(x.first, (uint64_t)CLT_CHUNK), end = (x.first + x.count) / CLT_CHUNK;
    if (end <= first || !clt_engine_needs_norm(e->cfg)) return CLT_OK;
    return clt_op_chunk_sumsq(e->ops, clt_ref_at(total, first * CLT_CHUNK - x.first), end - first,
                              (clt_ref){e->chunk_sums, first});
}

clt_status clt_engine_host_sums_keep(clt_engine *e, int unit) {
    clt_engine_host_sums *h = e->host_sums;
    clt_slab_range x;
    clt_unit_place *p = clt_engine_gradient_place(e, unit, &x);
    clt_ref sum = h->lane.full ? (clt_ref){p->buffer, 0} : clt_ref_none();
    stack t = h->before;
    t.s[t.n++] = h->lane;
    for (; are_halves(e, &t); join(&t)) {
        if (!both_full(&t)) continue;
        if (!sum.buf) { /* of an empty lane: a sum and what comes to it take both places */
            sum_place *other = place_of(e, unit + 1);
            sum = (clt_ref){other->buffer, 0};
            CLT_TRY(bring(e, level_of(&t, t.n - 1), x, other));
            CLT_TRY(clt_device_after(clt_ops_device(e->ops), other->there));
        }
        CLT_TRY(add(e, unit, level_of(&t, t.n - 2), x, sum));
    }
    if (h->last) CLT_TRY(sum_squares(e, x, sum));
    if (sum.buf) CLT_TRY(leave(e, level_of(&t, t.n - 1), x, sum, p));
    return bring_ahead(e, unit - PLACES);
}

clt_status clt_engine_host_sums_close(clt_engine *e) {
    clt_engine_host_sums *h = e->host_sums;
    clt_device *dev = clt_ops_device(e->ops);
    if (!h) return CLT_OK;
    h->before = h->after;
    if (!h->last) return CLT_OK;
    /* What follows brings the total. */
    CLT_TRY(clt_device_use(dev, CLT_QUEUE_OUT));
    CLT_TRY(clt_device_hand_over(dev, CLT_QUEUE_IN));
    return clt_device_use(dev, CLT_QUEUE_COMPUTE);
}
