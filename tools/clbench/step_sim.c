#include "tools/clbench/step_sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_timeline.h"
#include "tools/clbench/sim.h"

/* Steps that are simulated; the last one is in the steady state. */
enum { STEPS = 4, ADD_BYTES = 12 /* two fp32 elements read, one written */ };

const char *const step_queue_names[STEP_QUEUES] = {"compute", "out", "in", "network"};

/* --- the model --- */

/* The unit of a tensor, by its name: blocks are numbered. */
static int unit_of(const char *name, int layers, bool *behind) {
    static const char mark[] = ".blocks.";
    const char *at = strstr(name, mark);
    if (at) {
        *behind = true;
        return 1 + atoi(at + sizeof mark - 1);
    }
    return *behind ? layers + 1 : 0;
}

/* Shares of FLOP: 6 per element of a block, its part of attention, and 6 per element of the head's matrix,
 * which is the embedding's if it is tied. An embedding only looks rows up. */
static void set_shares(step_model *m, double attention) {
    const int head = m->units - 1;
    double sum = 0;
    for (int u = 0; u < m->units; u++) {
        const double elements = u == 0      ? 0
                                : u == head ? (double)CLT_MAX(m->unit[head].count, m->unit[0].count)
                                            : (double)m->unit[u].count;
        m->unit[u].share = 6 * elements + (u == 0 || u == head ? 0 : attention);
        sum += m->unit[u].share;
    }
    for (int u = 0; u < m->units; u++) m->unit[u].share /= sum;
}

clt_status step_model_read(const clt_model_config *c, int64_t seq, step_model *out) {
    const int layers = (int)clt_model_get_facts(c).layers;
    clt_slab_table t = {0};
    bool behind = false;
    CLT_TRY(clt_model_table(c, &t));
    *out = (step_model){.units = layers + 2, .total = t.total};
    out->unit = clt_calloc((size_t)out->units, sizeof *out->unit);
    for (int i = 0; i < t.n; i++) {
        step_unit *u = &out->unit[unit_of(t.entry[i].name, layers, &behind)];
        const uint64_t end = i + 1 < t.n ? t.entry[i + 1].offset : t.total;
        if (!u->count) u->first = t.entry[i].offset;
        u->count += end - t.entry[i].offset;
    }
    out->flops_per_token = clt_model_train_flops_per_token(c, seq);
    const double products = 6 * (double)clt_model_param_count(c);
    set_shares(out, (out->flops_per_token - products) / layers);
    clt_slab_table_free(&t);
    return CLT_OK;
}

void step_model_free(step_model *m) {
    clt_free(m->unit);
    *m = (step_model){0};
}

/* --- operations --- */

typedef struct {
    const step_model *m;
    const step_plan *p;
    const step_rates *r;
    sim *s;
    int local, buckets;
    int *summed;  /* [buckets] the owner has the total of its range */
    int *reduced; /* [buckets] what its update waits for besides the norm */
    int *updated; /* [buckets] of the previous step; -1 in the first one */
    int *usable;  /* [buckets] updated, and gathered unless the stage is 3 */
    int program;  /* the last forward or backward pass of a unit; -1: none */
    int *visit;   /* their operations, in program order */
    int visits, cap;
    int *last; /* [units] the last visit of a unit in this step; -1: none */
    int *have; /* [units] the operation that gathered it last */
} builder;

static double time_of(double bytes, double rate) {
    return rate > 0 ? bytes / rate : 0;
}

/* A copy of `bytes` bytes on each rank of the host. Returns `after` if there is nothing to copy. */
static int copy(builder *b, int queue, double bytes, int after, const char *name, int k) {
    if (!(bytes > 0)) return after;
    const double rate = queue == STEP_OUT ? b->r->out : b->r->in;
    const int op = sim_add(b->s, b->p->one_queue ? STEP_COMPUTE : queue, time_of(bytes, rate),
                           bytes * b->local, "%s %d %s", name, k, step_queue_names[queue]);
    sim_after(b->s, op, after);
    return op;
}

static int host_rounds(const step_plan *p) {
    return p->halving ? (int)ceil(log2(p->hosts)) : 1;
}

static int host_messages(const step_plan *p) {
    return p->halving ? host_rounds(p) : p->hosts - 1;
}

/* Each rank sends and receives `bytes` bytes. They leave the host's memory and arrive in it. */
static int network(builder *b, double bytes, int after, const char *name, int k) {
    const double all = bytes * b->local, seconds = host_messages(b->p) * b->r->message;
    const int sent =
        sim_add(b->s, STEP_NETWORK, seconds + time_of(all, b->r->network), 2 * all, "%s %d network", name, k);
    const int there =
        sim_add(b->s, SIM_DELAY, host_rounds(b->p) * b->r->latency, 0, "%s %d latency", name, k);
    sim_after(b->s, sent, after);
    sim_after(b->s, there, sent);
    return there;
}

static int add(builder *b, double elements, const char *name, int k) {
    return sim_add(b->s, STEP_COMPUTE, time_of(elements * ADD_BYTES, b->r->add), 0, "%s %d add", name, k);
}

static uint64_t bucket_count(const builder *b, int k) {
    return CLT_MIN(b->p->bucket, b->m->total - (uint64_t)k * b->p->bucket);
}

/* The owner of each range of bucket k receives it from the other ranks of its host, then hosts exchange their
 * sums. more: the total is added to that of the microbatches before. Returns the last addition. */
static int reduce(builder *b, int k, int after, bool more) {
    const int local = b->local, hosts = b->p->hosts;
    const double bytes = b->p->gradient_bytes, part = (double)bucket_count(b, k) / local;
    int sum = after;
    if (local > 1) {
        sum = add(b, (local - 1) * part, "reduce", k);
        for (int other = 1; other < local; other++) {
            const int out = copy(b, STEP_OUT, part * bytes, after, "reduce", k);
            sim_after(b->s, sum, copy(b, STEP_IN, part * bytes, out, "reduce", k));
        }
    }
    if (hosts > 1) {
        const double foreign = part * (hosts - 1) / hosts;
        const int out = copy(b, STEP_OUT, foreign * bytes, sum, "hosts", k);
        const int there = network(b, foreign * bytes, out, "hosts", k);
        const int in = copy(b, STEP_IN, foreign * bytes, there, "hosts", k);
        sum = add(b, foreign, "hosts", k);
        sim_after(b->s, sum, in);
    }
    if (more && b->p->ranks > 1) {
        const int total = add(b, (double)bucket_count(b, k) / b->p->ranks, "accumulate", k);
        sim_after(b->s, total, sum);
        sum = total;
    }
    return sum;
}

/* Each rank publishes its part of `elements` elements and reads those of all others. */
static int gather(builder *b, double elements, double bytes, int after, const char *name, int k) {
    const int hosts = b->p->hosts, local = b->local;
    const double own = elements / b->p->ranks * bytes;
    if (b->p->ranks == 1) return after;
    const int out = copy(b, STEP_OUT, own, after, name, k);
    const int near = copy(b, STEP_IN, own * (local - 1), out, name, k);
    if (hosts == 1) return near;
    const int there = network(b, own * (hosts - 1), out, name, k);
    const int far = copy(b, STEP_IN, own * (hosts - 1) * local, there, name, k);
    const int both = sim_add(b->s, SIM_DELAY, 0, 0, "%s %d", name, k);
    sim_after(b->s, both, near);
    sim_after(b->s, both, far);
    return both;
}

/* --- passes --- */

static int first_bucket(const builder *b, int unit) {
    return (int)(b->m->unit[unit].first / b->p->bucket);
}

/* The bucket behind the last one that has elements of the unit. */
static int end_bucket(const builder *b, int unit) {
    const step_unit *u = &b->m->unit[unit];
    return u->count ? (int)((u->first + u->count - 1) / b->p->bucket) + 1 : first_bucket(b, unit);
}

static uint64_t overlap(const builder *b, int unit, int k) {
    const step_unit *u = &b->m->unit[unit];
    const uint64_t first = (uint64_t)k * b->p->bucket, end = first + bucket_count(b, k);
    return CLT_MIN(end, u->first + u->count) - CLT_MAX(first, u->first);
}

/* Stage 3: gathers the unit for the next visit, not before the visit `ahead` visits earlier begins. The
 * embedding, which the head reads too, stays for the whole step; a unit that is visited again within `ahead`
 * visits stays, too. `op` is the visit. */
static void gather_unit(builder *b, int unit, int op) {
    const int gate = b->visits - b->p->ahead - 1;
    const bool stays = b->last[unit] >= 0 && (unit == 0 || b->visits - b->last[unit] <= b->p->ahead + 1);
    if (!stays) {
        const int all = sim_add(b->s, SIM_DELAY, 0, 0, "unit %d", unit);
        for (int k = first_bucket(b, unit); k < end_bucket(b, unit); k++) {
            const int may = sim_add(b->s, SIM_DELAY, 0, 0, "gather %d", k);
            if (gate >= 0) sim_after(b->s, may, b->visit[gate]);
            sim_after(b->s, may, b->updated[k]);
            sim_after(b->s, all,
                      gather(b, (double)overlap(b, unit, k), b->p->weight_bytes, may, "gather", k));
        }
        b->have[unit] = all;
    }
    sim_after(b->s, op, b->have[unit]);
}

static void visit(builder *b, int unit, double seconds, const char *name, int microbatch) {
    const int op = sim_add(b->s, STEP_COMPUTE, seconds * b->m->unit[unit].share, 0, "%s %d of microbatch %d",
                           name, unit, microbatch);
    sim_after(b->s, op, b->program);
    if (b->p->stage == 3)
        gather_unit(b, unit, op);
    else if (b->last[unit] < 0)
        for (int k = first_bucket(b, unit); k < end_bucket(b, unit); k++) sim_after(b->s, op, b->usable[k]);
    if (b->visits == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 256;
        b->visit = clt_realloc(b->visit, (size_t)b->cap * sizeof *b->visit);
    }
    b->last[unit] = b->visits;
    b->visit[b->visits++] = b->program = op;
}

/* The gradients of a bucket are final when the lowest unit that it has elements of is done. */
static void reduce_unit(builder *b, int unit, bool more) {
    for (int k = end_bucket(b, unit) - 1; k >= first_bucket(b, unit); k--) {
        if ((uint64_t)k * b->p->bucket < b->m->unit[unit].first) continue;
        b->summed[k] = b->reduced[k] = reduce(b, k, b->program, more);
        if (b->p->stage == 0)
            b->reduced[k] =
                gather(b, (double)bucket_count(b, k), b->p->gradient_bytes, b->summed[k], "gradient", k);
    }
}

static void run_microbatch(builder *b, int i) {
    const bool last = i == b->p->microbatches - 1;
    for (int u = 0; u < b->m->units; u++) visit(b, u, b->r->forward, "forward", i);
    for (int u = b->m->units - 1; u >= 0; u--) {
        visit(b, u, b->r->backward, "backward", i);
        if (last || b->p->each) reduce_unit(b, u, b->p->each && i > 0);
    }
}

/* --- the update --- */

static double update_seconds(const step_model *m, const step_plan *p, const step_rates *r, int parts) {
    return time_of((double)m->total / parts * p->update_bytes, r->update);
}

static int norm(builder *b) {
    const step_plan *p = b->p;
    double seconds = b->local > 1 ? b->r->exchange : 0;
    if (p->hosts > 1) seconds += host_messages(p) * b->r->message + host_rounds(p) * b->r->latency;
    const int op = sim_add(b->s, SIM_DELAY, seconds, 0, "norm");
    for (int k = 0; k < b->buckets; k++) sim_after(b->s, op, b->summed[k]);
    return op;
}

static void update(builder *b) {
    const int all = b->p->clip ? norm(b) : -1;
    const double seconds = update_seconds(b->m, b->p, b->r, b->p->stage == 0 ? 1 : b->p->ranks);
    for (int k = 0; k < b->buckets; k++) {
        const double count = (double)bucket_count(b, k);
        const int op = sim_add(b->s, STEP_COMPUTE, seconds * count / (double)b->m->total, 0, "update %d", k);
        sim_after(b->s, op, all);
        sim_after(b->s, op, b->reduced[k]);
        b->updated[k] = b->usable[k] = op;
        if (b->p->stage == 1 || b->p->stage == 2)
            b->usable[k] = gather(b, count, b->p->weight_bytes, op, "gather", k);
    }
}

/* --- results --- */

static void begin(builder *b) {
    const size_t n = (size_t)b->buckets, units = (size_t)b->m->units;
    b->summed = clt_calloc(n, sizeof(int));
    b->reduced = clt_calloc(n, sizeof(int));
    b->updated = clt_calloc(n, sizeof(int));
    b->usable = clt_calloc(n, sizeof(int));
    b->last = clt_calloc(units, sizeof(int));
    b->have = clt_calloc(units, sizeof(int));
    b->program = -1;
    for (size_t k = 0; k < n; k++) b->updated[k] = b->usable[k] = -1;
}

static void end(builder *b) {
    clt_free(b->summed);
    clt_free(b->reduced);
    clt_free(b->updated);
    clt_free(b->usable);
    clt_free(b->last);
    clt_free(b->have);
    clt_free(b->visit);
    sim_destroy(b->s);
}

/* Between the ends of the last backward pass of two steps. */
static void measure(const builder *b, double from, double to, step_result *out) {
    const unsigned compute = 1u << STEP_COMPUTE;
    const double passes = b->p->microbatches * (b->r->forward + b->r->backward);
    unsigned behind = 0;
    out->step = to - from;
    out->one_rank = passes + update_seconds(b->m, b->p, b->r, 1);
    out->work = passes + update_seconds(b->m, b->p, b->r, b->p->stage == 0 ? 1 : b->p->ranks);
    out->exposed = out->step - out->work;
    for (int q = STEP_QUEUES - 1; q >= 0; q--) {
        const unsigned bit = 1u << q;
        out->busy[q] = sim_time(b->s, from, to, bit, 0);
        out->bubble[q] = sim_time(b->s, from, to, bit & ~compute, compute | behind);
        behind |= bit;
    }
}

static void draw(const builder *b, clt_str *timeline) {
    int n;
    const sim_op *ops = sim_ops(b->s, &n);
    char name[80];
    snprintf(name, sizeof name, "one of %d ranks on %d host%s, stage %d (simulated)", b->p->ranks,
             b->p->hosts, b->p->hosts == 1 ? "" : "s", b->p->stage);
    clt_timeline_process(timeline, 0, name);
    for (int q = 0; q < STEP_QUEUES; q++) clt_timeline_row(timeline, 0, q + 1, step_queue_names[q]);
    for (int i = 0; i < n; i++)
        if (ops[i].queue != SIM_DELAY && ops[i].end > ops[i].start)
            clt_timeline_event(timeline, 0, ops[i].queue + 1, ops[i].name, ops[i].start, ops[i].end, NULL);
}

void step_simulate(const step_model *m, const step_plan *p, const step_rates *r, step_result *out,
                   clt_str *timeline) {
    int mark[STEPS], n;
    builder b = {.m = m,
                 .p = p,
                 .r = r,
                 .s = sim_create(STEP_QUEUES, r->host),
                 .local = p->ranks / p->hosts,
                 .buckets = (int)CLT_CEIL_DIV(m->total, p->bucket)};
    begin(&b);
    for (int step = 0; step < STEPS; step++) {
        for (int u = 0; u < m->units; u++) b.last[u] = -1;
        for (int i = 0; i < p->microbatches; i++) run_microbatch(&b, i);
        mark[step] = b.program;
        update(&b);
    }
    sim_run(b.s);
    const sim_op *ops = sim_ops(b.s, &n);
    measure(&b, ops[mark[STEPS - 2]].end, ops[mark[STEPS - 1]].end, out);
    out->buckets = b.buckets;
    out->operations = n / STEPS;
    if (timeline) draw(&b, timeline);
    end(&b);
}
