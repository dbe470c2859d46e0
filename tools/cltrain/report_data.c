#include "tools/cltrain/report_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

static const char *const field_name[FIELDS] = {
    "loss",
    "lr",
    "grad_norm",
    "step_seconds",
    "tokens_per_sec",
    "mfu",
    "device_memory_bytes",
    "epoch",
    "token",
    "data_stall_seconds",
    "eval_accuracy",
    "eval_accuracy_top5",
};
/* Instead, in runs that count samples; NULL: none. */
static const char *const sample_name[FIELDS] = {[RATE] = "samples_per_sec", [COUNT] = "sample"};

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

/* Lower-case letters only: the unit becomes a part of the page. */
static void take_unit(metrics *m, const char *unit) {
    const size_t n = strspn(unit, "abcdefghijklmnopqrstuvwxyz");
    if (n > 0 && unit[n] == 0 && n < sizeof m->unit) memcpy(m->unit, unit, n + 1);
}

static void count_event(metrics *m, json_t *o, const char *event) {
    json_t *lanes = json_object_get(o, "lanes");
    if (!strcmp(event, "start")) {
        m->starts++;
        m->ranks = 1; /* unless the lanes of several ranks follow */
        m->ettr = 0;
        if (json_is_string(json_object_get(o, "unit")))
            take_unit(m, json_string_value(json_object_get(o, "unit")));
    }
    if (json_is_array(lanes)) m->ranks = (int)json_array_size(lanes);
    if (!strcmp(event, "end")) m->ettr = number(o, "ettr");
    if (!strcmp(event, "checkpoint") && json_object_get(o, "stall_seconds")) {
        m->stall += number(o, "stall_seconds");
        m->saves++;
    }
}

static void add_event(metrics *m, json_t *o, const char *event) {
    enum { PRECISION = 15 }; /* prints numbers as they were written */
    m->event = clt_realloc(m->event, (m->events + 1) * sizeof *m->event);
    m->event[m->events++] = (run_event){
        clt_strdup(event), json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(PRECISION)), number(o, "batch")};
    count_event(m, o, event);
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
        add_event(m, o, event);
        return;
    }
    if (json_object_get(o, "metrics")) return; /* of in-context-learning tasks */
    bool eval = json_object_get(o, "eval_loss") != NULL;
    columns *c = eval ? eval_rows(m, o) : &m->train;
    for (int i = 0; i < FIELDS; i++) {
        row[i + 1] = number(o, eval && i == LOSS ? "eval_loss" : field_name[i]);
        if (sample_name[i] && isnan(row[i + 1])) row[i + 1] = number(o, sample_name[i]);
    }
    while (c->n > 0 && c->v[0][c->n - 1] >= row[0]) c->n--;
    push(c, row);
}

static void take_lines(metrics *m, const char *at, const char *end) {
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((newline ? newline : end) - at);
        json_t *o = json_loadb(at, n, 0, NULL);
        if (json_is_object(o))
            take_row(m, o);
        else if (n > 0)
            m->bad_lines++; /* a line cut by a kill */
        json_decref(o);
        at += n + 1;
    }
}

clt_status metrics_read(const char *folder, metrics *m) {
    char *path = clt_path_join(folder, "metrics.jsonl"), *text = NULL;
    size_t bytes = 0;
    clt_status st = clt_io_is_file(path)
                        ? clt_io_read_all(path, (size_t)1 << 30, &text, &bytes)
                        : clt_error(CLT_IO, "%s does not exist: is this the folder of a run?", path);
    if (st == CLT_OK) take_lines(m, text, text + bytes);
    if (st == CLT_OK && m->train.n == 0 && m->evals == 0)
        st = clt_error(CLT_BAD_DATA, "%s has no rows: the run has not finished a step", path);
    clt_free(text);
    clt_free(path);
    return st;
}

clt_status metrics_follow(const char *path, metrics *m) {
    enum { CHUNK = 16 << 20 }; /* more than a line */
    clt_file *f;
    uint64_t bytes;
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &f));
    clt_status st = clt_file_size(f, &bytes);
    if (st == CLT_OK && bytes < m->offset) {
        metrics_free(m);
        *m = (metrics){0};
    }
    while (st == CLT_OK && m->offset < bytes) {
        size_t n = (size_t)CLT_MIN(bytes - m->offset, (uint64_t)CHUNK);
        char *text = clt_calloc(1, n);
        st = clt_file_pread(f, text, n, m->offset);
        while (st == CLT_OK && n > 0 && text[n - 1] != '\n') n--;
        if (st == CLT_OK) take_lines(m, text, text + n);
        m->offset += n;
        clt_free(text);
        if (n == 0) break;
    }
    clt_file_close(f);
    return st;
}

double *metrics_x(const metrics *m, x_axis axis) {
    const columns *t = &m->train;
    double *x = clt_calloc(t->n + 1, sizeof *x), sum = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (isfinite(t->v[SECONDS + 1][i])) sum += t->v[SECONDS + 1][i];
        x[i] = axis == X_BATCH ? t->v[0][i] : axis == X_UNITS ? t->v[COUNT + 1][i] : sum;
    }
    return x;
}

char *metrics_x_label(const metrics *m, x_axis axis) {
    if (axis == X_UNITS) return metrics_unit(m, true);
    return clt_strdup(axis == X_BATCH ? "batches" : "time in training steps");
}

char *metrics_unit(const metrics *m, bool plural) {
    return clt_format("%s%s", *m->unit ? m->unit : "token", plural ? "s" : "");
}

double metrics_x_at(const metrics *m, const double *x, double batch) {
    const columns *t = &m->train;
    size_t low = 0, high = t->n; /* rows before low are at batches up to `batch` */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (t->v[0][middle] <= batch)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? x[low - 1] : 0;
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
    for (size_t i = 0; i < m->events; i++) {
        clt_free(m->event[i].name);
        clt_free(m->event[i].json);
    }
    clt_free(m->event);
}
