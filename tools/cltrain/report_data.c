#include "tools/cltrain/report_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/report_chart.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

static const char *const field_name[FIELDS] = {"loss",           "lr",  "grad_norm",          "step_seconds",
                                               "tokens_per_sec", "mfu", "device_memory_bytes"};
static void push(columns *c, const double *row) {
    if (c->n == c->cap) {
        c->cap = CLT_MAX(256, 2 * c->cap);
        for (int i = 0; i <= FIELDS; i++) c->v[i] = clt_realloc(c->v[i], c->cap * sizeof(double));
    }
    for (int i = 0; i <= FIELDS; i++) c->v[i][c->n] = row[i];
    c->n++;
}

static void free_columns(columns *c) {
    for (int i = 0; i <= FIELDS; i++) clt_free(c->v[i]);
}

static double number(json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void count_event(metrics *m, json_t *o, const char *event) {
    if (!strcmp(event, "start")) m->starts++;
    if (!strcmp(event, "end")) m->ettr = number(o, "ettr");
    if (!strcmp(event, "checkpoint") && json_object_get(o, "stall_seconds")) {
        m->stall += number(o, "stall_seconds");
        m->saves++;
    }
}

static columns *eval_rows(metrics *m, json_t *o) {
    const char *label = json_string_value(json_object_get(o, "label"));
    if (!label) label = "eval";
    for (size_t i = 0; i < m->evals; i++)
        if (!strcmp(m->eval[i].label, label)) return &m->eval[i].rows;
    m->eval = clt_realloc(m->eval, (m->evals + 1) * sizeof *m->eval);
    m->eval[m->evals] = (eval_columns){.label = clt_strdup(label)};
    return &m->eval[m->evals++].rows;
}

/* After a fall-back batch numbers repeat: the last row of a number is the valid one. */
static void take_row(metrics *m, json_t *o) {
    double row[FIELDS + 1];
    row[0] = number(o, "batch");
    const char *event = json_string_value(json_object_get(o, "event"));
    if (event) {
        char *text =
            json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(15)); /* prints numbers as they were written */
        count_event(m, o, event);
        clt_str_add(&m->events, "<tr><td>");
        html_text(&m->events, event, strlen(event));
        clt_str_addf(&m->events, "</td><td>%.0f</td><td><code>", row[0]);
        html_text(&m->events, text, strlen(text));
        clt_str_add(&m->events, "</code></td></tr>\n");
        clt_free(text);
        return;
    }
    bool eval = json_object_get(o, "eval_loss") != NULL;
    columns *c = eval ? eval_rows(m, o) : &m->train;
    for (int i = 0; i < FIELDS; i++) row[i + 1] = number(o, eval && i == LOSS ? "eval_loss" : field_name[i]);
    while (c->n > 0 && c->v[0][c->n - 1] >= row[0]) c->n--;
    push(c, row);
}

clt_status metrics_read(const char *folder, metrics *m) {
    char *path = clt_path_join(folder, "metrics.jsonl"), *text = NULL;
    size_t bytes = 0;
    clt_status st = clt_io_read_all(path, (size_t)1 << 30, &text, &bytes);
    for (char *at = text; st == CLT_OK && at < text + bytes;) {
        size_t n = strcspn(at, "\n");
        json_t *o = json_loadb(at, n, 0, NULL);
        if (json_is_object(o))
            take_row(m, o);
        else if (n > 0)
            m->bad_lines++; /* a line cut by a kill */
        json_decref(o);
        at += n + 1;
    }
    if (st == CLT_OK && m->train.n == 0 && m->evals == 0)
        st = clt_error(CLT_BAD_DATA, "%s has no rows: the run has not finished a step", path);
    clt_free(text);
    clt_free(path);
    return st;
}

/* The median of the finite values. */
static double median(const double *v, size_t most) {
    double *copy = clt_calloc(most, sizeof *v), result;
    size_t n = 0;
    for (size_t i = 0; i < most; i++)
        if (isfinite(v[i])) copy[n++] = v[i];
    for (size_t i = 1; i < n; i++) /* insertion sort: a report is made once */
        for (size_t k = i; k > 0 && copy[k] < copy[k - 1]; k--) {
            double t = copy[k];
            copy[k] = copy[k - 1];
            copy[k - 1] = t;
        }
    result = n ? copy[n / 2] : NAN;
    clt_free(copy);
    return result;
}

double metrics_median(const metrics *m, int field) {
    enum { NEWEST = 2000 }; /* keeps sorting fast for long runs */
    const columns *t = &m->train;
    size_t tail = CLT_MIN(t->n, (size_t)NEWEST);
    return tail ? median(t->v[field + 1] + (t->n - tail), tail) : NAN;
}

double young_interval(double mttf, double stall) {
    return sqrt(2 * mttf * stall);
}

void metrics_free(metrics *m) {
    free_columns(&m->train);
    for (size_t i = 0; i < m->evals; i++) {
        free_columns(&m->eval[i].rows);
        clt_free(m->eval[i].label);
    }
    clt_free(m->eval);
    clt_str_free(&m->events);
}
