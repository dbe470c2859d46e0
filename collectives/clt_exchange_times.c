#include "collectives/clt_exchange_times.h"

#include "collectives/clt_exchange.h"

struct clt_exchange_times {
    const clt_reduce_plan **plan; /* [plans] */
    clt_operation_time *row;
    int plans, n, cap;
};

void clt_exchange_times_start(clt_group *g) {
    clt_exchange_times_free(g->run);
    g->run->times = clt_calloc(1, sizeof *g->run->times);
}

void clt_exchange_times_take(clt_group *g, clt_operation_time **rows, int *count) {
    clt_exchange_times *t = g->run->times;
    *rows = t ? t->row : NULL;
    *count = t ? t->n : 0;
    if (t) t->row = NULL;
    clt_exchange_times_free(g->run);
}

void clt_exchange_times_free(clt_group_run *run) {
    clt_exchange_times *t = run->times;
    if (t) {
        clt_free(t->plan);
        clt_free(t->row);
    }
    clt_free(t);
    run->times = NULL;
}

/* --- notes --- */

static int number_of(clt_exchange_times *t, const clt_reduce_plan *p) {
    for (int i = 0; i < t->plans; i++)
        if (t->plan[i] == p) return i;
    t->plan = clt_realloc(t->plan, (size_t)(t->plans + 1) * sizeof *t->plan);
    t->plan[t->plans] = p;
    return t->plans++;
}

/* What a rank hands out in an operation; to: one other rank, or -1: all of them. What is gathered is handed
 * out once, whoever takes it. */
static uint64_t bytes_out(const clt_reduce_plan *p, const clt_op *op, int from, int to) {
    uint64_t bytes = 0;
    if (op->kind != CLT_OP_REDUCE) return clt_exchange_bytes(p, op, from, from);
    for (int r = 0; r < p->group->size; r++)
        if (r != from && (to < 0 || r == to)) bytes += clt_exchange_bytes(p, op, from, r);
    return bytes * (uint64_t)op->round->sums_of[from];
}

void clt_exchange_times_begin(clt_reduce_plan *p, int64_t k) {
    static const char *const what[] = {"reduce-scatter", "all-gather", "all-gather of numbers"};
    clt_exchange_times *t = p->group->run->times;
    clt_op *op = clt_exchange_op(p, k);
    const int me = p->group->rank;
    op->row = -1;
    if (!t) return;
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->row = clt_realloc(t->row, (size_t)t->cap * sizeof *t->row);
    }
    op->row = t->n++;
    clt_operation_time *row = &t->row[op->row];
    *row = (clt_operation_time){.wire = p->wire->name,
                                .what = what[op->kind],
                                .plan = number_of(t, p),
                                .ranks = p->group->size,
                                .number = k,
                                .bucket = op->bucket,
                                .end = CLT_MAX(op->end, op->bucket + 1),
                                .out = bytes_out(p, op, me, -1),
                                .by_host = op->by_host};
    for (int r = 0; r < p->group->size; r++)
        if (r != me) row->in += bytes_out(p, op, r, me);
    row->at[CLT_AT_BEGUN] = clt_now();
}

/* The row of operation k; NULL: it began before the rows did. */
static clt_operation_time *row_of(const clt_exchange_times *t, clt_reduce_plan *p, int64_t k) {
    const int i = clt_exchange_op(p, k)->row;
    if (i < 0 || i >= t->n) return NULL;
    clt_operation_time *row = &t->row[i];
    return row->number == k && t->plan[row->plan] == p ? row : NULL;
}

void clt_exchange_times_note(clt_reduce_plan *p, int64_t k, clt_station station) {
    const clt_exchange_times *t = p->group->run->times;
    clt_operation_time *row = t ? row_of(t, p, k) : NULL;
    if (row) row->at[station] = clt_now();
}

void clt_exchange_times_tag(clt_reduce_plan *p, int64_t k, clt_exchange_part part) {
    const clt_exchange_times *t = p->group->run->times;
    const clt_operation_time *row = t ? row_of(t, p, k) : NULL;
    if (row && !p->by_host) clt_device_trace_tag(p->dev, CLT_PARTS * (row - t->row) + (int)part + 1);
}

int clt_exchange_times_row(int64_t tag, clt_exchange_part *part) {
    *part = tag > 0 ? (clt_exchange_part)((tag - 1) % CLT_PARTS) : CLT_PART_OUT;
    return tag > 0 ? (int)((tag - 1) / CLT_PARTS) : -1;
}
