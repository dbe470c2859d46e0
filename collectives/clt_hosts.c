/* The wire "hosts". Its table moves no slots: the plans of the two hops do. */
#include "collectives/clt_hosts.h"

enum { BUCKETS = 3 /* whose sums may be on their way between the hops */ };

/* The operations of one kind. */
typedef struct {
    clt_reduce_plan *hop[2];
    int hops;
    int64_t begun[2]; /* all of this kind up to this operation of the outer plan have begun this hop */
} way;

/* The sums over the lanes of this rank's host, of one bucket, for the owners with this rank's j. */
typedef struct {
    clt_slab **slab; /* [most of the second hop]; their pieces are set for each bucket */
    int64_t until;   /* the operation of the second hop that reads them last; INT64_MAX: not known yet */
} sums_set;

typedef struct clt_hosts {
    clt_group *inside, *between[2]; /* one for each way: their messages have equal tags */
    int hosts, each, host, turn;    /* this rank is host * each + turn */
    clt_shards parts;               /* inside a host; bucket b * hosts + h */
    way reduce, gather;
    sums_set set[BUCKETS];
    int64_t sets_used[2]; /* reductions that have begun each hop */
} clt_hosts;

/* --- where ranks are --- */

/* How many ranks each host has, if ranks of a host are neighbours and all hosts have as many; otherwise 0. */
static int ranks_per_host(const int32_t *host, int ranks) {
    int each = 1;
    while (each < ranks && host[each] == host[0]) each++;
    for (int r = 0; r < ranks; r++)
        if (host[r] != host[r / each * each]) return 0;
    for (int a = 0; a < ranks; a += each)
        for (int b = a + each; b < ranks; b += each)
            if (host[a] == host[b]) return 0;
    return ranks % each == 0 ? each : 0;
}

clt_status clt_hosts_look(clt_reduce_plan *p) {
    const int32_t mine = p->group->run->host;
    int32_t *all = clt_calloc((size_t)p->group->size, sizeof *all);
    const clt_status st = clt_group_all_gather(p->group, &mine, sizeof mine, all);
    if (st == CLT_OK) p->per_host = ranks_per_host(all, p->group->size);
    clt_free(all);
    return st;
}

static const char *refusal(const clt_reduce_plan *p) {
    if (p->group->local_size == p->group->size) return "the ranks are on one host";
    if (p->per_host == 1) return "each host has one rank";
    if (p->per_host == 0)
        return "hosts have different numbers of ranks, or the ranks of a host are not neighbours";
    if (!p->math.add) return "the plan only gathers";
    return p->group->ops->start ? NULL : "the group sends no messages";
}

/* --- the sums between the hops --- */

/* The most elements that rank `turn` of all hosts together owns in a bucket. */
static uint64_t most_of_turn(const clt_shards *shards, int each, int turn) {
    uint64_t most = 0;
    for (int b = 0; b < shards->buckets; b++) {
        uint64_t n = 0;
        for (int r = turn; r < shards->ranks; r += each) n += clt_shards_range(shards, b, r).count;
        most = CLT_MAX(most, n);
    }
    return most;
}

/* A slab of one buffer, without pieces yet. */
static clt_status make_slab(clt_reduce_plan *p, uint64_t elements, clt_slab **out) {
    const size_t most = 2 * (size_t)p->hosts->hosts;
    clt_slab *s = clt_calloc(1, sizeof *s);
    *out = s;
    s->element_bytes = sizeof(float);
    s->start = clt_calloc(most + 1, sizeof *s->start);
    s->origin = clt_calloc(most, sizeof *s->origin);
    s->piece = clt_calloc(most, sizeof(clt_buffer *));
    s->buffer = clt_calloc(1, sizeof(clt_buffer *));
    CLT_TRY(clt_buffer_create(p->dev, elements * sizeof(float), "exchange", &s->buffer[0]));
    s->buffers = 1;
    return CLT_OK;
}

static void add_piece(clt_slab *s, clt_buffer *buffer, uint64_t origin, uint64_t end) {
    s->piece[s->n] = buffer;
    s->origin[s->n] = origin;
    s->start[++s->n] = end;
}

/* Lets a slab hold the ranges of a part of a bucket that ranks with this rank's j own. */
static void set_pieces(const clt_reduce_plan *p, clt_bucket_part part, clt_slab *s) {
    const clt_hosts *h = p->hosts;
    uint64_t packed = 0;
    s->n = 0;
    for (int r = h->turn; r < p->shards->ranks; r += h->each) {
        const clt_slab_range x =
            clt_slab_range_common(clt_shards_range(p->shards, part.bucket, r), part.within);
        if (!x.count) continue;
        if (x.first > s->start[s->n]) add_piece(s, NULL, 0, x.first);
        add_piece(s, s->buffer[0], packed, x.first + x.count);
        packed += x.count;
    }
}

static clt_status make_sums(clt_reduce_plan *p) {
    clt_hosts *s = p->hosts;
    if (s->reduce.hops == 1) return CLT_OK;
    const int most = s->reduce.hop[1]->most;
    const uint64_t elements = CLT_MAX(most_of_turn(p->shards, s->each, s->turn), (uint64_t)1);
    for (int i = 0; i < BUCKETS; i++) {
        s->set[i].slab = clt_calloc((size_t)most, sizeof *s->set[i].slab);
        for (int k = 0; k < most; k++) CLT_TRY(make_slab(p, elements, &s->set[i].slab[k]));
    }
    return CLT_OK;
}

/* --- plans --- */

/* The next hop of the way. */
static clt_status open_hop(clt_reduce_plan *p, way *w, clt_group *g) {
    clt_hosts *s = p->hosts;
    const bool inside = g == s->inside;
    clt_reduce_plan *q = clt_calloc(1, sizeof *q);
    *q = (clt_reduce_plan){.wire = inside ? &clt_wire_shm : &clt_wire_mpi,
                           .group = g,
                           .dev = p->dev,
                           .shards = inside ? &s->parts : p->shards,
                           .split = p->split,
                           .math = p->math};
    q->view = inside          ? (clt_exchange_view){s->host * s->each, s->each, 1, 0}
              : g == p->group ? p->view
                              : (clt_exchange_view){0, s->hosts, s->each, s->turn};
    if (w == &s->gather) q->math.add = NULL;
    w->hop[w->hops++] = q;
    return clt_group_agree(p->group, clt_exchange_open(q));
}

static clt_status open_ways(clt_reduce_plan *p) {
    clt_hosts *s = p->hosts;
    if (p->split.chain) {
        CLT_TRY(open_hop(p, &s->reduce, p->group));
    } else {
        CLT_TRY(clt_group_split(p->group, s->turn, 0, &s->between[0]));
        CLT_TRY(open_hop(p, &s->reduce, s->inside));
        CLT_TRY(open_hop(p, &s->reduce, s->between[0]));
    }
    CLT_TRY(clt_group_split(p->group, s->turn, 0, &s->between[1]));
    CLT_TRY(open_hop(p, &s->gather, s->between[1]));
    return open_hop(p, &s->gather, s->inside);
}

static clt_status open_hosts(clt_reduce_plan *p) {
    clt_group *g = p->group;
    clt_hosts *s = clt_calloc(1, sizeof *s);
    p->hosts = s;
    s->each = p->per_host;
    s->hosts = g->size / s->each;
    s->host = g->rank / s->each;
    s->turn = g->rank % s->each;
    s->parts = clt_shards_of_group(p->shards, s->each);
    CLT_TRY(clt_group_split(g, s->host, 0, &s->inside));
    CLT_TRY(open_ways(p));
    return clt_group_agree(g, make_sums(p));
}

static void close_way(way *w) {
    for (int i = 0; i < w->hops; i++) {
        clt_exchange_close(w->hop[i]);
        clt_free(w->hop[i]);
    }
}

static void close_hosts(clt_reduce_plan *p) {
    clt_hosts *s = p->hosts;
    if (!s) return;
    for (int i = 0; i < BUCKETS; i++) {
        for (int k = 0; s->set[i].slab && k < s->reduce.hop[1]->most; k++)
            clt_slab_destroy(s->set[i].slab[k]);
        clt_free(s->set[i].slab);
    }
    close_way(&s->reduce);
    close_way(&s->gather);
    for (int i = 0; i < 2; i++) clt_group_destroy(s->between[i]);
    clt_group_destroy(s->inside);
    clt_free(s);
}

/* What reductions in two hops hold. */
static uint64_t two_hops_bytes(const clt_shards *shards, const clt_lane_split *split, int each, bool bf16,
                               bool shares_host) {
    const int hosts = split->ranks / each;
    const clt_exchange_view between = {0, hosts, each, 0};
    const uint64_t strip = clt_exchange_longest(shards);
    const int sums = clt_exchange_most_sums(split, &between);
    int inside = 1;
    uint64_t turn = 0;
    for (int h = 0; h < hosts; h++) {
        const clt_exchange_view v = {h * each, each, 1, 0};
        inside = CLT_MAX(inside, clt_exchange_most_sums(split, &v));
    }
    for (int j = 0; j < each; j++) turn = CLT_MAX(turn, most_of_turn(shards, each, j));
    return clt_exchange_device_bytes((uint64_t)(each * inside), strip, bf16, shares_host) +
           clt_exchange_device_bytes((uint64_t)(hosts * sums), strip, bf16, shares_host) +
           (uint64_t)(BUCKETS * sums) * turn * sizeof(float);
}

uint64_t clt_hosts_bytes(const clt_shards *shards, const clt_lane_split *split, int each, bool bf16,
                         bool shares_host) {
    const uint64_t strip = clt_exchange_longest(shards);
    const clt_exchange_view all = {0, split->ranks, 1, 0};
    const uint64_t places = (uint64_t)split->ranks * (uint64_t)clt_exchange_most_sums(split, &all);
    return 2 * clt_exchange_device_bytes(0, strip, bf16, shares_host) +
           (split->chain ? clt_exchange_device_bytes(places, strip, bf16, shares_host)
                         : two_hops_bytes(shards, split, each, bf16, shares_host));
}

/* The plan of a kind's hop that sends messages. */
static clt_reduce_plan *sender(const way *w) {
    return w->hop[0]->wire == &clt_wire_mpi ? w->hop[0] : w->hop[1];
}

uint64_t clt_hosts_sent(const clt_reduce_plan *p) {
    return sender(&p->hosts->reduce)->sent_bytes + sender(&p->hosts->gather)->sent_bytes;
}

/* --- beginning a hop --- */

void clt_hosts_list(clt_reduce_plan *p, const clt_exchange_round *before, const clt_exchange_round *now) {
    for (int i = 0; i < p->hosts->reduce.hops; i++) {
        clt_reduce_plan *q = p->hosts->reduce.hop[i];
        clt_exchange_list(&q->split, &q->view, p->samples, p->number,
                          before ? &q->round[before - p->round] : NULL, &q->round[now - p->round]);
    }
}

static way *way_of(clt_hosts *s, const clt_op *op) {
    return op->kind == CLT_OP_REDUCE ? &s->reduce : &s->gather;
}

/* How many buckets of a hop's plan are one of the outer plan. */
static int parts_of(const clt_hosts *s, const clt_reduce_plan *q) {
    return q->group == s->inside ? s->hosts : 1;
}

/* The buckets [*first, *end) of a hop's plan. */
static void buckets_of(const clt_hosts *s, const clt_reduce_plan *q, const clt_op *op, int *first, int *end) {
    *first = op->bucket * parts_of(s, q);
    *end = (op->kind == CLT_OP_CHUNKS ? op->end : op->bucket + 1) * parts_of(s, q);
}

/* Whether the hop's plan takes the operation without waiting: waiting there would stop the other plans. */
static bool has_room(const clt_hosts *s, const clt_reduce_plan *q, const clt_op *op) {
    int first, end;
    int64_t need = 0;
    buckets_of(s, q, op, &first, &end);
    for (int b = first; b < end; b++)
        need += op->kind == CLT_OP_CHUNKS ? 1 : clt_exchange_strips(q, (clt_bucket_part){b, op->within});
    return need <= clt_exchange_room(q);
}

static sums_set *set_of(clt_hosts *s, int hop) {
    return &s->set[s->sets_used[hop] % BUCKETS];
}

static bool is_ready(clt_hosts *s, const way *w, int hop, const clt_op *op) {
    if (!has_room(s, w->hop[hop], op)) return false;
    if (hop == 1) return w->hop[0]->fetched >= op->hop_end[0];
    return op->kind != CLT_OP_REDUCE || w->hops == 1 || w->hop[1]->finished >= set_of(s, 0)->until;
}

/* A first hop of two ends in the sums of a set. */
static void end_in_set(clt_reduce_plan *p, clt_op *op) {
    clt_hosts *s = p->hosts;
    sums_set *set = set_of(s, 0);
    op->levels = s->reduce.hop[1]->most;
    op->level = set->slab;
    for (int i = 0; i < op->levels; i++)
        set_pieces(p, (clt_bucket_part){op->bucket, op->within}, set->slab[i]);
    set->until = INT64_MAX;
    s->sets_used[0]++;
}

/* The second hop begins with the sums of the set that are not empty. */
static void begin_with_set(clt_hosts *s, clt_op *op, clt_slab **sum) {
    const sums_set *set = set_of(s, 1);
    op->sums = 0;
    for (int i = 0, n = 0; i < op->round->n_entries; i++) {
        const clt_exchange_entry *e = &op->round->entry[i];
        if (e->rank != s->host) continue;
        if (e->slot >= 0) sum[op->sums++] = set->slab[n];
        n++;
    }
}

static void route_sums(clt_reduce_plan *p, int hop, const clt_op *outer, clt_op *op, clt_slab **sum) {
    clt_hosts *s = p->hosts;
    op->round = &s->reduce.hop[hop]->round[outer->round - p->round];
    if (hop == 1) {
        begin_with_set(s, op, sum);
        return;
    }
    for (int i = 0; i < op->sums; i++) sum[i] = outer->sum[i];
    if (s->reduce.hops == 2) end_in_set(p, op);
}

/* Behind what hops have queued so far. */
static clt_status mark_hops(clt_reduce_plan *p, clt_mark **out) {
    CLT_TRY(clt_device_use(p->dev, CLT_QUEUE_IN));
    CLT_TRY(clt_device_mark(p->dev, out));
    return clt_device_use(p->dev, CLT_QUEUE_COMPUTE);
}

static clt_status cut(const clt_hosts *s, clt_reduce_plan *q, clt_op *op, clt_slab *const *sum) {
    int first, end;
    buckets_of(s, q, op, &first, &end);
    op->bucket = first;
    op->end = end;
    if (op->kind == CLT_OP_CHUNKS) return clt_exchange_cut_chunks(q, op, false);
    for (; op->bucket < end; op->bucket++) CLT_TRY(clt_exchange_cut(q, op, sum, false));
    return CLT_OK;
}

static clt_status begin_hop(clt_reduce_plan *p, way *w, int hop, clt_op *outer) {
    clt_hosts *s = p->hosts;
    clt_reduce_plan *q = w->hop[hop];
    clt_slab *sum[CLT_EXCHANGE_MOST_SUMS];
    clt_op op = *outer;
    op.sent = op.read = NULL;
    /* The second hop reads what the first has queued, if this rank takes part in that. */
    if (hop == 1 && outer->hop_end[0] > 0) {
        if (w->hop[0]->finished < outer->hop_end[0]) CLT_TRY(mark_hops(p, &outer->sent));
        op.made = outer->sent;
    }
    if (op.kind == CLT_OP_REDUCE) route_sums(p, hop, outer, &op, sum);
    if (op.kind == CLT_OP_GATHER && hop == 1) op.from = op.to;
    const int64_t before = q->begun;
    CLT_TRY(cut(s, q, &op, sum));
    outer->hop_end[hop] = q->begun > before ? q->begun : 0;
    if (op.kind == CLT_OP_REDUCE && hop == 1) {
        set_of(s, 1)->until = q->begun;
        s->sets_used[1]++;
    }
    return CLT_OK;
}

/* --- moving on --- */

/* Begins a hop of all operations of a kind that are ready, in their order. */
static clt_status begin_ready(clt_reduce_plan *p, way *w, int hop) {
    const int64_t last = hop == 1 ? w->begun[0] : p->begun;
    /* What is finished has begun its hops, and its place may be another operation's. */
    for (int64_t k = CLT_MAX(w->begun[hop], p->finished) + 1; k <= last; k++) {
        clt_op *op = clt_exchange_op(p, k);
        if (way_of(p->hosts, op) != w) continue;
        if (!is_ready(p->hosts, w, hop, op)) break;
        CLT_TRY(begin_hop(p, w, hop, op));
        w->begun[hop] = k;
    }
    return CLT_OK;
}

static clt_status move_on(clt_reduce_plan *p, way *w) {
    for (int i = 0; i < w->hops; i++) {
        CLT_TRY(begin_ready(p, w, i));
        CLT_TRY(clt_exchange_pump(w->hop[i]));
    }
    return CLT_OK;
}

/* Of an operation that has begun its hops. */
static bool is_done(clt_hosts *s, const clt_op *op) {
    const way *w = way_of(s, op);
    bool done = true;
    for (int i = 0; i < w->hops; i++) done &= w->hop[i]->finished >= op->hop_end[i];
    return done;
}

static void finish(clt_reduce_plan *p) {
    for (; p->finished < p->fetched; p->finished++) {
        clt_op *op = clt_exchange_op(p, p->finished + 1);
        if (!is_done(p->hosts, op)) break;
        clt_exchange_release(op);
    }
}

clt_status clt_hosts_advance(clt_reduce_plan *p) {
    clt_hosts *s = p->hosts;
    CLT_TRY(move_on(p, &s->reduce));
    CLT_TRY(move_on(p, &s->gather));
    for (finish(p); p->fetched < p->begun; finish(p)) {
        clt_op *op = clt_exchange_op(p, p->fetched + 1);
        const way *w = way_of(s, op);
        const int last = w->hops - 1;
        if (w->begun[last] <= p->fetched || w->hop[last]->fetched < op->hop_end[last]) break;
        /* The mark stands for all operations before it, too; none is needed if all of them are done. */
        if (p->finished < p->fetched || !is_done(s, op)) CLT_TRY(mark_hops(p, &op->read));
        p->fetched++;
    }
    return CLT_OK;
}

clt_mark *clt_hosts_own_work(const clt_reduce_plan *p) {
    const way *const ways[] = {&p->hosts->reduce, &p->hosts->gather};
    clt_mark *mine = NULL;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ways[k]->hops && !mine; i++) mine = clt_exchange_own_work(ways[k]->hop[i]);
    return mine;
}

static clt_status flushed(clt_reduce_plan *p, bool *all) {
    clt_reduce_plan *const sends[] = {sender(&p->hosts->reduce), sender(&p->hosts->gather)};
    *all = true;
    for (int i = 0; i < 2 && *all; i++) CLT_TRY(sends[i]->wire->flushed(sends[i], all));
    return CLT_OK;
}

const clt_wire clt_wire_hosts = {
    .name = "hosts",
    .refusal = refusal,
    .open = open_hosts,
    .close = close_hosts,
    .flushed = flushed,
};
