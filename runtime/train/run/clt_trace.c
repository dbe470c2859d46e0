#include "runtime/train/run/clt_trace.h"

#include <math.h>
#include <unistd.h>

#include "runtime/base/clt_timeline.h"
#include "runtime/device/clt_mark.h"
#include "runtime/train/run/clt_clock.h"
#include "runtime/train/run/clt_trace_rows.h"

typedef struct {
    char name[64];
    double start, end;
} span;

struct clt_trace {
    clt_group *group;
    char *path;
    span *spans;
    int n, cap;
    clt_trace_events events; /* of the device and of exchanges, from clt_trace_finish on */
};

enum { HOST = 1 }; /* the row of a rank before those of clt_trace_rows.h */

clt_trace *clt_trace_create(clt_group *g, const char *path, clt_device *dev) {
    clt_trace *t = clt_calloc(1, sizeof *t);
    t->group = g;
    t->path = clt_strdup(path);
    clt_device_trace_start(dev);
    clt_exchange_times_start(g);
    return t;
}

void clt_trace_destroy(clt_trace *t) {
    if (!t) return;
    clt_free(t->events.command);
    clt_free(t->events.operation);
    clt_free(t->spans);
    clt_free(t->path);
    clt_free(t);
}

void clt_trace_span(clt_trace *t, double start, double end, const char *fmt, ...) {
    if (!t) return;
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        t->spans = clt_realloc(t->spans, (size_t)t->cap * sizeof *t->spans);
    }
    span *s = &t->spans[t->n++];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->name, sizeof s->name, fmt, ap);
    va_end(ap);
    s->start = start;
    s->end = end;
}

/* --- this rank's rows --- */

/* The first event, on this rank's clock; infinity: there is none. */
static double first_event(const clt_trace *t) {
    double first = clt_trace_rows_first(&t->events);
    for (int i = 0; i < t->n; i++) first = fmin(first, t->spans[i].start);
    return first;
}

static void describe_rank(const clt_trace *t, clt_device *dev, clt_str *part) {
    char host[256] = "";
    const int rank = clt_group_rank(t->group);
    gethostname(host, sizeof host - 1);
    char *name = clt_format("rank %d (%s, %s)", rank, host, clt_device_get_facts(dev)->name);
    clt_timeline_process(part, rank, name);
    clt_timeline_row(part, rank, HOST, "host");
    clt_free(name);
}

/* zero: the zero of the timeline on this rank's clock. */
static void add_rows(const clt_trace *t, clt_device *dev, double zero, clt_str *part) {
    const int rank = clt_group_rank(t->group);
    describe_rank(t, dev, part);
    for (int i = 0; i < t->n; i++) {
        const span *s = &t->spans[i];
        clt_timeline_event(part, rank, HOST, s->name, s->start - zero, s->end - zero, NULL);
    }
    clt_trace_rows_add(&t->events, rank, zero, part);
}

/* --- all ranks --- */

/* Sets *zero, the first event of any rank, on this rank's clock. */
static clt_status agree_on_zero(const clt_trace *t, double shift, double *zero) {
    const int ranks = clt_group_size(t->group);
    const double mine = first_event(t) + shift;
    double *all = clt_calloc((size_t)ranks, sizeof *all);
    clt_status st = clt_group_all_gather(t->group, &mine, sizeof mine, all);
    double first = INFINITY;
    for (int r = 0; st == CLT_OK && r < ranks; r++) first = fmin(first, all[r]);
    clt_free(all);
    *zero = first - shift;
    return st;
}

/* Appends the parts of the other ranks on rank 0. The others hold one part of another rank at a time, so that
 * memory does not grow with the number of ranks. */
static clt_status gather(const clt_trace *t, const clt_str *part, clt_str *all) {
    const int ranks = clt_group_size(t->group), rank = clt_group_rank(t->group);
    const uint64_t mine = part->len;
    uint64_t *length = clt_calloc((size_t)ranks, sizeof *length);
    clt_status st = clt_group_all_gather(t->group, &mine, sizeof mine, length);
    for (int r = 0; r < ranks && st == CLT_OK; r++) {
        char *text = r == rank ? clt_strndup(part->s, part->len) : clt_calloc(1, length[r] + 1);
        if (r > 0) st = clt_group_broadcast(t->group, r, text, length[r]);
        if (st == CLT_OK && rank == 0) clt_timeline_join(all, text);
        clt_free(text);
    }
    clt_free(length);
    return st;
}

/* Rank 0's *all has the timeline of all ranks. */
static clt_status collect_all(const clt_trace *t, clt_device *dev, clt_str *all, double *error) {
    double shift, zero;
    clt_str part = {0};
    CLT_TRY(clt_clock_align(t->group, &shift, error));
    CLT_TRY(agree_on_zero(t, shift, &zero));
    add_rows(t, dev, zero, &part);
    clt_status st = gather(t, &part, all);
    clt_str_free(&part);
    return st;
}

/* --- the end --- */

/* Kernels in the compute queue: how many, the seconds they ran, and from the first one to the last one's end.
 */
static int kernels_of(const clt_trace_events *e, double *busy, double *all) {
    double first = INFINITY, last = 0;
    int n = 0;
    *busy = 0;
    for (int i = 0; i < e->commands; i++) {
        const clt_command_time *k = &e->command[i];
        if (k->queue != CLT_QUEUE_COMPUTE || k->bytes) continue;
        *busy += k->end - k->start;
        first = fmin(first, k->start);
        last = fmax(last, k->end);
        n++;
    }
    *all = n ? last - first : 0;
    return n;
}

static void report(const clt_trace *t, int ranks, double error) {
    double busy, all;
    const int n = kernels_of(&t->events, &busy, &all);
    clt_info("trace: %s: %d rank%s; on rank 0 %d launches, kernels %.3f ms of %.3f ms (%.1f %%)", t->path,
             ranks, ranks == 1 ? "" : "s", n, busy * 1e3, all * 1e3, all > 0 ? 100 * busy / all : 0.0);
    if (error > 0) clt_info("trace: the clocks of the hosts are aligned to %.0f us", error * 1e6);
}

static clt_status write_all(const clt_trace *t, clt_device *dev) {
    clt_str all = {0};
    double error = 0;
    clt_status st = collect_all(t, dev, &all, &error);
    const bool writes = clt_group_rank(t->group) == 0;
    if (st == CLT_OK) st = clt_group_agree(t->group, writes ? clt_timeline_write(t->path, &all) : CLT_OK);
    if (st == CLT_OK && writes) report(t, clt_group_size(t->group), error);
    clt_str_free(&all);
    return st;
}

static clt_status write_own(const clt_trace *t, clt_device *dev) {
    clt_str all = {0};
    if (clt_group_rank(t->group) != 0) return CLT_OK;
    add_rows(t, dev, first_event(t), &all);
    clt_status st = clt_timeline_write(t->path, &all);
    if (st == CLT_OK) report(t, 1, 0);
    clt_str_free(&all);
    return st;
}

clt_status clt_trace_finish(clt_trace *t, clt_device *dev, bool all) {
    clt_status st = clt_device_trace_take(dev, &t->events.command, &t->events.commands);
    clt_exchange_times_take(t->group, &t->events.operation, &t->events.operations);
    if (all) st = clt_group_agree(t->group, st);
    if (st == CLT_OK) st = all ? write_all(t, dev) : write_own(t, dev);
    clt_trace_destroy(t);
    return st;
}
