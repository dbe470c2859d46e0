#include "runtime/train/run/clt_trace_rows.h"

#include <math.h>

#include "runtime/base/clt_timeline.h"
#include "runtime/device/clt_mark.h"

/* Rows of a rank; clt_trace.c has the one before them. Exchange i has rows from EXCHANGE + i * MOST_AT_ONCE
 * on. An operation that is filling has a slot, so there are fewer at once. */
enum { COMPUTE = 2, OUT, IN, ADDITIONS, EXCHANGE = 10, MOST_AT_ONCE = 16 };

typedef struct {
    clt_str *part;
    int rank;
    double zero;
} timeline;

static void row(const timeline *t, int number, const char *name) {
    clt_timeline_row(t->part, t->rank, number, name);
}

static void event(const timeline *t, int number, const char *name, double start, double end,
                  const char *args) {
    clt_timeline_event(t->part, t->rank, number, name, start - t->zero, end - t->zero, args);
}

/* --- the device --- */

static int row_of(const clt_command_time *c) {
    if (c->queue == CLT_QUEUE_COMPUTE) return COMPUTE;
    if (c->queue == CLT_QUEUE_OUT) return OUT;
    return c->bytes ? IN : ADDITIONS;
}

static void add_command(const timeline *t, const clt_trace_events *e, const clt_command_time *c) {
    clt_str args = {0};
    clt_exchange_part part;
    const int operation = clt_exchange_times_row(c->tag, &part);
    clt_str_addf(&args, "\"queued_us\":%.3f", (c->queued - t->zero) * 1e6);
    if (c->bytes) clt_str_addf(&args, ",\"bytes\":%llu", (unsigned long long)c->bytes);
    if (c->bytes && c->end > c->start)
        clt_str_addf(&args, ",\"GB/s\":%.4g", 1e-9 * (double)c->bytes / (c->end - c->start));
    if (operation >= 0)
        clt_str_addf(&args, ",\"exchange\":%d,\"operation\":%lld", e->operation[operation].plan + 1,
                     (long long)e->operation[operation].number);
    event(t, row_of(c), c->name, c->start, c->end, args.s);
    clt_str_free(&args);
}

static void add_device(const timeline *t, const clt_trace_events *e) {
    static const struct {
        int number;
        const char *name;
    } all[] = {
        {COMPUTE, "device: compute"}, {OUT, "copies out"}, {IN, "copies in"}, {ADDITIONS, "additions"}};
    bool used[ADDITIONS + 1] = {[COMPUTE] = true};
    for (int i = 0; i < e->commands; i++) used[row_of(&e->command[i])] = true;
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++)
        if (used[all[i].number]) row(t, all[i].number, all[i].name);
    for (int i = 0; i < e->commands; i++) add_command(t, e, &e->command[i]);
}

/* --- exchanges --- */

/* When the device worked on a part of an operation. */
typedef struct {
    double first, end; /* first infinity: it had nothing to do */
} work;

/* [operations][CLT_PARTS]; the caller frees it. */
static work *work_of_operations(const clt_trace_events *e) {
    work *all = clt_calloc((size_t)e->operations * CLT_PARTS + 1, sizeof *all);
    for (int i = 0; i < e->operations * CLT_PARTS; i++) all[i].first = INFINITY;
    for (int i = 0; i < e->commands; i++) {
        clt_exchange_part part;
        const clt_command_time *c = &e->command[i];
        const int op = clt_exchange_times_row(c->tag, &part);
        if (op < 0) continue;
        work *w = &all[op * CLT_PARTS + (int)part];
        w->first = fmin(w->first, c->start);
        w->end = fmax(w->end, c->end);
    }
    return all;
}

/* What an operation does one after the other; ends at `end`. */
typedef struct {
    const timeline *t;
    int number; /* of the row */
    double at, end;
} chain;

/* The clocks of host and device differ by some microseconds, so what comes later may seem to be earlier. */
static void until(chain *c, double time, const char *what) {
    time = fmin(fmax(time, c->at), c->end);
    if (time > c->at) event(c->t, c->number, what, c->at, time, NULL);
    c->at = time;
}

static double end_of(const clt_operation_time *o, const work *w) {
    if (o->at[CLT_AT_FINISHED] > 0) return o->at[CLT_AT_FINISHED];
    /* The device is done, and the host has not looked since. */
    return fmax(o->at[CLT_AT_FETCHING], fmax(w[CLT_PART_IN].end, w[CLT_PART_ADD].end));
}

static void add_work(chain *c, const work *w, const char *what) {
    if (!isfinite(w->first)) return;
    until(c, w->first, "wait for this device");
    until(c, w->end, what);
}

/* Until the host has seen at `seen` that the device was done. Without work there is a mark to be reached. */
static void add_rest(chain *c, bool worked, double seen) {
    until(c, seen, worked ? "wait for the host" : "wait for this device");
}

static void add_stations(chain *c, const clt_operation_time *o, const work *w) {
    const double *at = o->at;
    if (o->by_host) {
        until(c, at[CLT_AT_POSTED], "copy out by the host");
        until(c, at[CLT_AT_FETCHING], "wait for other ranks");
        until(c, c->end, "copy in and add by the host");
        return;
    }
    add_work(c, &w[CLT_PART_OUT], "copy out");
    add_rest(c, isfinite(w[CLT_PART_OUT].first), at[CLT_AT_POSTED]);
    until(c, at[CLT_AT_FETCHING], "wait for other ranks");
    add_work(c, &w[CLT_PART_IN], "copy in");
    add_work(c, &w[CLT_PART_ADD], "add");
    add_rest(c, isfinite(fmin(w[CLT_PART_IN].first, w[CLT_PART_ADD].first)), c->end);
}

static void add_operation(const timeline *t, const clt_operation_time *o, const work *w, int number) {
    const double start = o->at[CLT_AT_FILLING], end = end_of(o, w);
    char name[80], args[200];
    int n = snprintf(name, sizeof name, "%s %lld: bucket %d", o->what, (long long)o->number, o->bucket);
    if (o->end > o->bucket + 1) snprintf(name + n, sizeof name - (size_t)n, " to %d", o->end - 1);
    snprintf(args, sizeof args,
             "\"operation\":%lld,\"bytes_out\":%llu,\"bytes_in\":%llu,\"slot_wait_us\":%.3f",
             (long long)o->number, (unsigned long long)o->out, (unsigned long long)o->in,
             (start - o->at[CLT_AT_BEGUN]) * 1e6);
    event(t, number, name, start, end, args);
    add_stations(&(chain){t, number, start, end}, o, w);
}

/* The operations of one plan, each in the first row that is free when it starts. Returns whether there are
 * any. */
static bool add_exchange(const timeline *t, const clt_trace_events *e, const work *w, int plan) {
    double taken[MOST_AT_ONCE] = {0}; /* until when */
    const clt_operation_time *some = NULL;
    int rows = 0;
    for (int i = 0; i < e->operations; i++) {
        const clt_operation_time *o = &e->operation[i];
        if (o->plan != plan) continue;
        some = o;
        if (o->at[CLT_AT_FETCHING] <= 0) continue; /* the trace ended before */
        int at = 0;
        while (at < rows && at + 1 < MOST_AT_ONCE && taken[at] > o->at[CLT_AT_FILLING]) at++;
        if (at == rows) {
            char name[80];
            snprintf(name, sizeof name, "exchange %d.%d: %s, %d ranks", plan + 1, ++rows, o->wire, o->ranks);
            row(t, EXCHANGE + plan * MOST_AT_ONCE + at, name);
        }
        taken[at] = end_of(o, &w[i * CLT_PARTS]);
        add_operation(t, o, &w[i * CLT_PARTS], EXCHANGE + plan * MOST_AT_ONCE + at);
    }
    return some;
}

/* --- both --- */

void clt_trace_rows_add(const clt_trace_events *e, int rank, double zero, clt_str *part) {
    const timeline t = {part, rank, zero};
    work *w = work_of_operations(e);
    add_device(&t, e);
    for (int plan = 0; add_exchange(&t, e, w, plan); plan++) continue;
    clt_free(w);
}

double clt_trace_rows_first(const clt_trace_events *e) {
    double first = INFINITY;
    for (int i = 0; i < e->commands; i++) first = fmin(first, e->command[i].start);
    for (int i = 0; i < e->operations; i++) first = fmin(first, e->operation[i].at[CLT_AT_BEGUN]);
    return first;
}
