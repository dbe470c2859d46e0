#include "tools/clbench/sim.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    double key;
    int op;
} heap_entry;

/* The smallest key comes first, of equal ones the lowest operation. */
typedef struct {
    heap_entry *v;
    int n, cap;
} heap;

/* Which queues ran from `start` to the next segment. */
typedef struct {
    double start;
    unsigned busy;
} segment;

struct sim {
    int queues;
    double host;
    sim_op *ops;
    int n, cap;
    struct {
        int before, op;
    } * edges;
    int n_edges, cap_edges;
    /* while it runs */
    double now;
    int *first_edge;              /* [n + 1], after sorting by `before` */
    int *waits;                   /* [n] operations that it still waits for */
    int running[SIM_MOST_QUEUES]; /* -1: none */
    double left[SIM_MOST_QUEUES]; /* seconds alone that the running operation still needs */
    heap ready[SIM_MOST_QUEUES];  /* by the time since which it is ready */
    heap delays;                  /* by their end */
    segment *segments;
    int n_segments, cap_segments, done;
};

/* --- heaps --- */

static bool comes_before(heap_entry a, heap_entry b) {
    return a.key != b.key ? a.key < b.key : a.op < b.op;
}

static void heap_push(heap *h, double key, int op) {
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 64;
        h->v = clt_realloc(h->v, (size_t)h->cap * sizeof *h->v);
    }
    const heap_entry e = {key, op};
    int i = h->n++;
    for (; i > 0 && comes_before(e, h->v[(i - 1) / 2]); i = (i - 1) / 2) h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = e;
}

static int heap_pop(heap *h) {
    const int top = h->v[0].op;
    const heap_entry e = h->v[--h->n];
    int i = 0;
    for (int child = 1; child < h->n; child = 2 * i + 1) {
        if (child + 1 < h->n && comes_before(h->v[child + 1], h->v[child])) child++;
        if (!comes_before(h->v[child], e)) break;
        h->v[i] = h->v[child];
        i = child;
    }
    h->v[i] = e;
    return top;
}

/* --- building --- */

sim *sim_create(int queues, double host) {
    sim *s = clt_calloc(1, sizeof *s);
    s->queues = queues;
    s->host = host;
    return s;
}

void sim_destroy(sim *s) {
    if (!s) return;
    for (int q = 0; q < s->queues; q++) clt_free(s->ready[q].v);
    clt_free(s->delays.v);
    clt_free(s->segments);
    clt_free(s->waits);
    clt_free(s->first_edge);
    clt_free(s->edges);
    clt_free(s->ops);
    clt_free(s);
}

int sim_add(sim *s, int queue, double seconds, double bytes, const char *fmt, ...) {
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->ops = clt_realloc(s->ops, (size_t)s->cap * sizeof *s->ops);
    }
    sim_op *o = &s->ops[s->n];
    *o = (sim_op){.queue = queue, .seconds = seconds, .bytes = bytes};
    if (s->host > 0) o->seconds = fmax(o->seconds, bytes / s->host);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(o->name, sizeof o->name, fmt, ap);
    va_end(ap);
    return s->n++;
}

void sim_after(sim *s, int op, int before) {
    if (before < 0) return;
    if (s->n_edges == s->cap_edges) {
        s->cap_edges = s->cap_edges ? 2 * s->cap_edges : 1024;
        s->edges = clt_realloc(s->edges, (size_t)s->cap_edges * sizeof *s->edges);
    }
    s->edges[s->n_edges].before = before;
    s->edges[s->n_edges++].op = op;
}

/* --- running --- */

static int by_before(const void *a, const void *b) {
    const int *x = a, *y = b; /* `before` is the first member */
    return (*x > *y) - (*x < *y);
}

static void sort_edges(sim *s) {
    s->first_edge = clt_calloc((size_t)s->n + 1, sizeof *s->first_edge);
    s->waits = clt_calloc((size_t)s->n + 1, sizeof *s->waits);
    if (s->n_edges) qsort(s->edges, (size_t)s->n_edges, sizeof *s->edges, by_before);
    for (int i = 0; i < s->n_edges; i++) {
        s->first_edge[s->edges[i].before + 1]++;
        s->waits[s->edges[i].op]++;
    }
    for (int i = 0; i < s->n; i++) s->first_edge[i + 1] += s->first_edge[i];
}

static void make_ready(sim *s, int op) {
    sim_op *o = &s->ops[op];
    if (o->queue != SIM_DELAY) {
        heap_push(&s->ready[o->queue], s->now, op);
        return;
    }
    o->start = s->now;
    heap_push(&s->delays, s->now + o->seconds, op);
}

static void complete(sim *s, int op) {
    s->ops[op].end = s->now;
    s->done++;
    for (int i = s->first_edge[op]; i < s->first_edge[op + 1]; i++)
        if (--s->waits[s->edges[i].op] == 0) make_ready(s, s->edges[i].op);
}

static void start_next(sim *s) {
    for (int q = 0; q < s->queues; q++) {
        if (s->running[q] >= 0 || s->ready[q].n == 0) continue;
        const int op = heap_pop(&s->ready[q]);
        s->running[q] = op;
        s->left[q] = s->ops[op].seconds;
        s->ops[op].start = s->now;
    }
}

/* The factor by which operations that use the host's memory are slowed down, at most 1. */
static double memory_share(const sim *s) {
    double load = 0;
    for (int q = 0; q < s->queues && s->host > 0; q++) {
        if (s->running[q] < 0) continue;
        const sim_op *o = &s->ops[s->running[q]];
        if (o->bytes > 0) load += o->bytes / o->seconds;
    }
    return s->host > 0 && load > s->host ? s->host / load : 1;
}

static void note_segment(sim *s) {
    unsigned busy = 0;
    for (int q = 0; q < s->queues; q++)
        if (s->running[q] >= 0) busy |= 1u << q;
    if (s->n_segments == s->cap_segments) {
        s->cap_segments = s->cap_segments ? 2 * s->cap_segments : 1024;
        s->segments = clt_realloc(s->segments, (size_t)s->cap_segments * sizeof *s->segments);
    }
    s->segments[s->n_segments++] = (segment){s->now, busy};
}

/* Advances to the next end of an operation. false: nothing runs. */
static bool advance(sim *s) {
    double rate[SIM_MOST_QUEUES], step = INFINITY;
    const double share = memory_share(s);
    for (int q = 0; q < s->queues; q++) {
        if (s->running[q] < 0) continue;
        rate[q] = s->ops[s->running[q]].bytes > 0 ? share : 1;
        step = fmin(step, s->left[q] / rate[q]);
    }
    if (s->delays.n) step = fmin(step, s->delays.v[0].key - s->now);
    if (isinf(step)) return false;
    note_segment(s);
    s->now += step;
    for (int q = 0; q < s->queues; q++) {
        if (s->running[q] < 0) continue;
        const double before = s->left[q] / rate[q];
        s->left[q] -= step * rate[q];
        if (before > step * (1 + 1e-12)) continue;
        const int op = s->running[q];
        s->running[q] = -1;
        complete(s, op);
    }
    while (s->delays.n && s->delays.v[0].key <= s->now) complete(s, heap_pop(&s->delays));
    return true;
}

int sim_run(sim *s) {
    sort_edges(s);
    for (int q = 0; q < s->queues; q++) s->running[q] = -1;
    for (int i = 0; i < s->n; i++)
        if (s->waits[i] == 0) make_ready(s, i);
    do start_next(s);
    while (advance(s));
    note_segment(s);
    return s->n - s->done;
}

const sim_op *sim_ops(const sim *s, int *n) {
    *n = s->n;
    return s->ops;
}

double sim_time(const sim *s, double from, double to, unsigned busy, unsigned idle) {
    double sum = 0;
    for (int i = 0; i + 1 < s->n_segments; i++) {
        const segment *g = &s->segments[i];
        if ((g->busy & busy) != busy || (g->busy & idle)) continue;
        sum += fmax(0, fmin(to, g[1].start) - fmax(from, g->start));
    }
    return sum;
}
