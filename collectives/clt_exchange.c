/* The way of an operation from begin to finished. */
#include "collectives/clt_exchange.h"
#include "collectives/clt_hosts.h"

#include <string.h>

clt_op *clt_exchange_op(clt_reduce_plan *p, int64_t op) {
    return &p->op[op % p->cap];
}

void clt_exchange_set_strip(clt_reduce_plan *p, uint64_t strip) {
    const uint64_t ranks = (uint64_t)p->group->size, widest = sizeof(float);
    p->strip = strip;
    const uint64_t sums = p->math.add ? (uint64_t)p->most * ranks : 0;
    p->slot_bytes = CLT_MAX(sums * strip * p->bytes, strip * widest);
    p->slot_bytes = CLT_ROUND_UP(p->slot_bytes, (uint64_t)4096);
}

clt_slab_range clt_exchange_owned(const clt_reduce_plan *p, int bucket, int owner) {
    return clt_shards_range(p->shards, bucket, owner * p->view.each + p->view.turn);
}

clt_slab_range clt_exchange_range(const clt_reduce_plan *p, const clt_op *op, int owner) {
    const clt_slab_range all = clt_slab_range_common(clt_exchange_owned(p, op->bucket, owner), op->within);
    const uint64_t skip = CLT_MIN(op->skip, all.count);
    return (clt_slab_range){all.first + skip, CLT_MIN(p->strip, all.count - skip)};
}

/* --- stations --- */

/* On queue `queue`, behind what operation k reads. An operation that queues nothing there waits for nothing:
 * its mark is that of the operation before it. */
static clt_status enter_queue(clt_reduce_plan *p, int64_t k, clt_queue queue) {
    const clt_op *op = clt_exchange_op(p, k);
    const bool in = queue == CLT_QUEUE_IN;
    clt_exchange_times_tag(p, k, in ? CLT_PART_IN : CLT_PART_OUT);
    CLT_TRY(clt_device_use(p->dev, queue));
    return clt_exchange_is_empty(p, op, in) ? CLT_OK : clt_device_after(p->dev, op->made);
}

static clt_status leave_queue(clt_reduce_plan *p, clt_mark **behind) {
    clt_device_trace_tag(p->dev, 0);
    CLT_TRY(clt_device_mark(p->dev, behind));
    return clt_device_use(p->dev, CLT_QUEUE_COMPUTE);
}

/* A step of a small operation: it is complete on return. */
static clt_status by_host(clt_reduce_plan *p, int64_t k, clt_status (*step)(clt_reduce_plan *, int64_t)) {
    p->by_host = true;
    const clt_status st = step(p, k);
    p->by_host = false;
    return st;
}

static clt_status fill(clt_reduce_plan *p, int64_t k) {
    clt_op *op = clt_exchange_op(p, k);
    clt_exchange_times_note(p, k, CLT_AT_FILLING);
    if (op->by_host) return by_host(p, k, clt_exchange_fill);
    CLT_TRY(enter_queue(p, k, CLT_QUEUE_OUT));
    CLT_TRY(clt_exchange_fill(p, k));
    return leave_queue(p, &op->sent);
}

static clt_status take(clt_reduce_plan *p, int64_t k) {
    CLT_TRY(clt_exchange_fetch(p, k));
    clt_exchange_times_tag(p, k, CLT_PART_ADD);
    return clt_exchange_op(p, k)->kind == CLT_OP_REDUCE ? clt_exchange_add(p, k) : CLT_OK;
}

static clt_status fetch(clt_reduce_plan *p, int64_t k) {
    clt_op *op = clt_exchange_op(p, k);
    clt_exchange_times_note(p, k, CLT_AT_FETCHING);
    if (op->by_host) return by_host(p, k, take);
    CLT_TRY(enter_queue(p, k, CLT_QUEUE_IN));
    CLT_TRY(take(p, k));
    return leave_queue(p, &op->read);
}

void clt_exchange_release(clt_op *op) {
    if (op->last) clt_mark_release(op->made);
    clt_mark_release(op->sent);
    clt_mark_release(op->read);
    op->made = op->sent = op->read = NULL;
}

static clt_status fill_free(clt_reduce_plan *p) {
    for (; p->filled < p->begun && p->wire->is_free(p, p->filled + 1); p->filled++) {
        const clt_op *op = clt_exchange_op(p, p->filled + 1);
        bool made = true;
        if (op->by_host) CLT_TRY(clt_mark_reached(op->made, &made));
        if (!made) break;
        CLT_TRY(fill(p, p->filled + 1));
    }
    return CLT_OK;
}

static clt_status finish(clt_reduce_plan *p) {
    for (; p->finished < p->fetched; p->finished++) {
        bool there;
        CLT_TRY(clt_mark_reached(clt_exchange_op(p, p->finished + 1)->read, &there));
        if (!there) break;
        CLT_TRY(p->wire->finished(p, p->finished + 1));
        clt_exchange_times_note(p, p->finished + 1, CLT_AT_FINISHED);
        clt_exchange_release(clt_exchange_op(p, p->finished + 1));
    }
    return CLT_OK;
}

static clt_status advance(clt_reduce_plan *p) {
    const clt_wire *w = p->wire;
    bool there = true;
    CLT_TRY(fill_free(p));
    for (; p->posted < p->filled; p->posted++) {
        CLT_TRY(clt_mark_reached(clt_exchange_op(p, p->posted + 1)->sent, &there));
        if (!there) break;
        CLT_TRY(w->post(p, p->posted + 1));
        clt_exchange_times_note(p, p->posted + 1, CLT_AT_POSTED);
    }
    for (; p->expected < p->begun && p->expected < p->finished + CLT_SLOTS; p->expected++)
        if (w->expect) CLT_TRY(w->expect(p, p->expected + 1));
    for (; p->fetched < CLT_MIN(p->expected, p->posted); p->fetched++) {
        CLT_TRY(w->arrived(p, p->fetched + 1, &there));
        if (!there) break;
        CLT_TRY(finish(p));
        if (clt_exchange_op(p, p->fetched + 1)->by_host && p->finished < p->fetched) break;
        CLT_TRY(fetch(p, p->fetched + 1));
    }
    return finish(p);
}

/* Other ranks may wait for the last messages of this one, which only calls of MPI move on. */
static clt_status send_rest(clt_reduce_plan *p) {
    bool all;
    return p->wire->flushed ? p->wire->flushed(p, &all) : CLT_OK;
}

clt_status clt_exchange_pump(clt_reduce_plan *p) {
    /* What is queued may wait itself, at its first use, and waits pump. */
    const clt_queue used = clt_device_queue(p->dev);
    if (p->pumps || p->failed != CLT_OK) return p->failed;
    p->pumps = true;
    if (p->finished == p->begun)
        p->failed = send_rest(p);
    else
        p->failed = p->hosts ? clt_hosts_advance(p) : advance(p);
    p->pumps = false;
    if (p->failed == CLT_OK) p->failed = clt_device_use(p->dev, used);
    return p->failed;
}

static void pump_in_wait(void *run) {
    for (clt_reduce_plan *p = ((clt_group_run *)run)->plans; p; p = p->next) clt_exchange_pump(p);
}

/* The place in the list of plans that points to p, or the end of the list. */
static clt_reduce_plan **find_plan(clt_group_run *run, const clt_reduce_plan *p) {
    clt_reduce_plan **at = &run->plans;
    while (*at && *at != p) at = &(*at)->next;
    return at;
}

void clt_exchange_set_idle(clt_reduce_plan *p, bool on) {
    clt_group_run *run = p->group->run;
    clt_reduce_plan **at = find_plan(run, p);
    bool used = on;
    if (on && !*at) *at = p;
    if (!on && *at) *at = p->next;
    for (const clt_reduce_plan *q = run->plans; q; q = q->next) used |= q->dev == p->dev;
    clt_device_set_idle(p->dev, used ? pump_in_wait : NULL, run);
    run->idle = run->plans ? pump_in_wait : NULL;
    run->idle_ctx = run;
}

/* After a failure of another plan, other ranks may never come to what p waits for. */
static clt_status failure_of_all(const clt_reduce_plan *p) {
    for (const clt_reduce_plan *q = p->group->run->plans; q; q = q->next) CLT_TRY(q->failed);
    return p->failed;
}

/* --- waiting --- */

clt_mark *clt_exchange_own_work(clt_reduce_plan *p) {
    if (p->hosts) return clt_hosts_own_work(p);
    if (p->posted < p->filled) return clt_exchange_op(p, p->posted + 1)->sent;
    if (p->finished < p->fetched) return clt_exchange_op(p, p->finished + 1)->read;
    if (p->filled == p->begun || !p->wire->is_free(p, p->filled + 1)) return NULL;
    return clt_exchange_op(p, p->filled + 1)->made;
}

/* Until operation k has come to a station. */
static clt_status wait_for(clt_reduce_plan *p, const int64_t *station, int64_t k) {
    clt_watch watch;
    bool watching = false;
    while (clt_exchange_pump(p) == CLT_OK && *station < k && failure_of_all(p) == CLT_OK) {
        clt_mark *mine = clt_exchange_own_work(p);
        if (mine) {
            CLT_TRY(clt_mark_wait(p->dev, mine));
            continue;
        }
        if (!watching) watch = clt_watch_begin(p->group, "an exchange of gradients");
        watching = true;
        clt_watch_pause(&watch);
    }
    if (watching) clt_watch_end(&watch);
    return *station < k ? failure_of_all(p) : p->failed;
}

clt_status clt_exchange_join(clt_reduce_plan *p, int64_t op) {
    if (op <= 0) return p->failed;
    CLT_TRY(wait_for(p, &p->fetched, op));
    /* A finished operation has no marks any more: the device has done it. The queue IN is in order, so the
     * last one's mark stands for all before it. */
    return op > p->finished ? clt_device_after(p->dev, clt_exchange_op(p, op)->read) : CLT_OK;
}

clt_status clt_exchange_drain(clt_reduce_plan *p) {
    bool flushed = !p->wire->flushed;
    CLT_TRY(wait_for(p, &p->finished, p->begun));
    if (flushed) return CLT_OK;
    clt_watch watch = clt_watch_begin(p->group, "the end of an exchange");
    for (;;) {
        CLT_TRY(p->wire->flushed(p, &flushed));
        if (flushed) break;
        clt_watch_pause(&watch);
    }
    clt_watch_end(&watch);
    return CLT_OK;
}

/* --- the ring of operations --- */

clt_status clt_exchange_make_ring(clt_reduce_plan *p) {
    /* The reductions and gathers of a step, if strips are whole ranges. */
    const int64_t strips = (int64_t)CLT_CEIL_DIV(p->shards->border[p->shards->ranks], p->strip);
    p->cap = (int64_t)4 * p->shards->buckets + strips + CLT_SLOTS;
    p->op = clt_calloc((size_t)p->cap, sizeof *p->op);
    p->sums_of_ops = clt_calloc((size_t)(p->cap * p->most), sizeof *p->sums_of_ops);
    for (int64_t i = 0; i < p->cap; i++) p->op[i].sum = p->sums_of_ops + i * p->most;
    return CLT_OK;
}

void clt_exchange_free_ring(clt_reduce_plan *p) {
    for (int64_t k = p->finished + 1; k <= p->begun; k++) clt_exchange_release(clt_exchange_op(p, k));
    clt_free(p->op);
    clt_free(p->sums_of_ops);
}

/* --- beginning --- */

/* The next operation; waits while the ring of operations is full. */
static clt_status next(clt_reduce_plan *p, const clt_op *like, clt_slab *const *sum) {
    if (p->begun - p->finished >= p->cap) CLT_TRY(wait_for(p, &p->finished, p->begun + 1 - p->cap));
    clt_op *op = clt_exchange_op(p, p->begun + 1);
    clt_slab **sums = op->sum;
    *op = *like;
    op->sum = sums;
    for (int i = 0; i < like->sums; i++) op->sum[i] = sum[i];
    p->begun++;
    clt_exchange_times_begin(p, p->begun);
    return CLT_OK;
}

/* What has been begun moves on from here on, in every wait, too. */
static clt_status go(clt_reduce_plan *p) {
    clt_exchange_set_idle(p, true);
    return clt_exchange_pump(p);
}

static uint64_t longest_range(const clt_reduce_plan *p, clt_bucket_part part) {
    uint64_t most = 0;
    for (int r = 0; r < p->group->size; r++) {
        const clt_slab_range x = clt_exchange_owned(p, part.bucket, r);
        most = CLT_MAX(most, clt_slab_range_common(x, part.within).count);
    }
    return most;
}

int64_t clt_exchange_room(const clt_reduce_plan *p) {
    return p->cap - (p->begun - p->finished);
}

int64_t clt_exchange_strips(const clt_reduce_plan *p, clt_bucket_part part) {
    return (int64_t)CLT_CEIL_DIV(longest_range(p, part), p->strip);
}

clt_status clt_exchange_cut(clt_reduce_plan *p, clt_op *op, clt_slab *const *sum, bool owned) {
    const uint64_t all = longest_range(p, (clt_bucket_part){op->bucket, op->within});
    CLT_TRY(clt_exchange_choose_host(p, op, sum, all * (uint64_t)(p->most * p->group->size) * sizeof(float)));
    for (op->skip = 0; op->skip < all; op->skip += p->strip) {
        op->last = owned && op->skip + p->strip >= all;
        CLT_TRY(next(p, op, sum));
    }
    return CLT_OK;
}

/* All strips of a bucket. */
static clt_status begin(clt_reduce_plan *p, clt_op *op, clt_slab *const *sum, int64_t *number) {
    *number = p->begun;
    if (!longest_range(p, (clt_bucket_part){op->bucket, op->within})) return CLT_OK;
    CLT_TRY(clt_device_mark(p->dev, &op->made));
    CLT_TRY(clt_exchange_cut(p, op, sum, true));
    *number = p->begun;
    return go(p);
}

/* --- rounds --- */

clt_exchange_round *clt_exchange_round_now(clt_reduce_plan *p) {
    return &p->round[(p->rounds + CLT_EXCHANGE_ROUNDS - 1) % CLT_EXCHANGE_ROUNDS];
}

static clt_status next_round(clt_reduce_plan *p, bool first) {
    const clt_exchange_round *before = first ? NULL : clt_exchange_round_now(p);
    p->number = first ? 0 : p->number + 1;
    p->rounds++;
    clt_exchange_round *now = clt_exchange_round_now(p);
    CLT_TRY(wait_for(p, &p->fetched, now->ends)); /* additions of the round whose place it takes */
    clt_exchange_list(&p->split, &p->view, p->samples, p->number, before, now);
    if (p->hosts) clt_hosts_list(p, before, now);
    return CLT_OK;
}

clt_status clt_reduce_batch(clt_reduce_plan *p, int64_t samples) {
    p->samples = samples;
    return next_round(p, true);
}

clt_status clt_reduce_next_round(clt_reduce_plan *p) {
    return next_round(p, false);
}

/* --- reductions and gathers --- */

/* One rank has made the one sum over all lanes already. */
static clt_status reduce_alone(clt_reduce_plan *p, clt_bucket_part part, const clt_lane_sum *sums, int n,
                               clt_slab *total) {
    const clt_slab_range x = clt_slab_range_common(clt_shards_bucket(p->shards, part.bucket), part.within);
    if (n != 1 || sums[0].width != p->split.lanes)
        return clt_error(CLT_FAIL, "one rank must bring one sum over all %d lanes; this is a bug",
                         p->split.lanes);
    if (sums[0].empty) return clt_slab_zero_range(total, x);
    return sums[0].slab == total ? CLT_OK : clt_slab_copy_range(total, sums[0].slab, x);
}

clt_status clt_reduce_begin(clt_reduce_plan *p, clt_bucket_part part, const clt_lane_sum *sums, int n,
                            clt_slab *const *level, int64_t *op) {
    clt_slab *filled[CLT_EXCHANGE_MOST_SUMS];
    clt_exchange_round *round = clt_exchange_round_now(p);
    clt_op o = {.kind = CLT_OP_REDUCE,
                .bucket = part.bucket,
                .within = part.within,
                .level = level,
                .levels = p->levels,
                .round = round,
                .narrow = p->math.to_bf16 != NULL};
    *op = 0;
    if (p->group->size == 1) return reduce_alone(p, part, sums, n, level[0]);
    for (int i = 0; i < n; i++)
        if (!sums[i].empty) filled[o.sums++] = sums[i].slab;
    if (o.sums != round->sums_of[p->group->rank])
        return clt_error(CLT_FAIL, "this rank brings %d sums to a reduction, not %d; this is a bug", o.sums,
                         round->sums_of[p->group->rank]);
    CLT_TRY(begin(p, &o, filled, op));
    round->ends = *op;
    return CLT_OK;
}

clt_status clt_gather_begin(clt_reduce_plan *p, clt_bucket_part part, clt_slab *from, clt_slab *to,
                            clt_gather_kind kind, const clt_slab_range *only, int n, int64_t *op) {
    clt_op o = {.kind = CLT_OP_GATHER,
                .bucket = part.bucket,
                .within = part.within,
                .from = from,
                .to = to,
                .narrow = kind == CLT_GATHER_TOTALS && p->math.to_bf16,
                .only = only,
                .n_only = only ? n : -1};
    *op = 0;
    return p->group->size == 1 ? CLT_OK : begin(p, &o, NULL, op);
}

/* Buckets of [first, last) from `first` on whose numbers fit into one operation. */
static int end_of_chunks(const clt_reduce_plan *p, int first, int last) {
    int end = first;
    uint64_t most = 0;
    for (; end < last; end++) {
        /* at least what any one rank has */
        most += CLT_CEIL_DIV(longest_range(p, clt_whole_bucket(end)), (uint64_t)CLT_CHUNK);
        if (most > p->strip && end > first) break;
    }
    return end;
}

clt_status clt_exchange_cut_chunks(clt_reduce_plan *p, const clt_op *op, bool owned) {
    clt_op o = *op;
    for (o.bucket = op->bucket; o.bucket < op->end; o.bucket = o.end) {
        o.end = end_of_chunks(p, o.bucket, op->end);
        o.last = owned && o.end == op->end;
        CLT_TRY(clt_exchange_choose_host(p, &o, NULL, clt_buffer_bytes(op->numbers)));
        CLT_TRY(next(p, &o, NULL));
    }
    return CLT_OK;
}

clt_status clt_gather_chunks_begin(clt_reduce_plan *p, clt_buffer *numbers, int64_t *op) {
    clt_op o = {.kind = CLT_OP_CHUNKS, .end = p->shards->buckets, .numbers = numbers};
    *op = 0;
    if (p->group->size == 1) return CLT_OK;
    CLT_TRY(clt_device_mark(p->dev, &o.made));
    CLT_TRY(clt_exchange_cut_chunks(p, &o, true));
    *op = p->begun;
    return go(p);
}
