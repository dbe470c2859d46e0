/* cltrain.prometheus: a file in Prometheus's text format 0.0.4, for the textfile collector of node_exporter.
 * The file is replaced in one step, so that the collector never reads half of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/sink/clt_sink_kind.h"
#include "runtime/train/sink/clt_sink_lines.h"

/* Upper ends of the histogram of step times, in seconds. */
static const double bound[] = {0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};
enum { BOUNDS = CLT_COUNT_OF(bound) };

typedef struct {
    char *label;
    double loss;
} eval_loss;

typedef struct {
    const char *path;
    const clt_model_terms *terms;
    char *run;                      /* run="NAME" */
    double written;                 /* clt_now() */
    clt_step_row row;               /* the newest */
    uint64_t within[BOUNDS], steps; /* steps of this process that took at most bound[i]; all */
    double seconds;
    double save_seconds; /* of the newest checkpoint, NaN: none */
    uint64_t saves, failures;
    eval_loss *eval;
    size_t evals;
} prometheus;

static clt_status prometheus_open(const clt_sinks_params *p, void **state) {
    if (!p->folder || !p->cfg->loggers.prometheus) return CLT_OK;
    CLT_TRY(clt_sink_make_room(p->cfg->loggers.prometheus));
    clt_str run = {0};
    clt_str_add(&run, "run=");
    clt_json_escape(&run, p->cfg->run_name); /* escapes as the format asks: quote, backslash, newline */
    prometheus *m = clt_calloc(1, sizeof *m);
    *m = (prometheus){.path = p->cfg->loggers.prometheus,
                      .terms = clt_model_get_terms(p->cfg->model),
                      .run = run.s,
                      .save_seconds = NAN};
    m->row.loss = m->row.lr = NAN;
    m->row.grad_norm = NAN;
    *state = m;
    return CLT_OK;
}

/* --- the text --- */

static void head(clt_str *b, const char *name, const char *type, const char *help) {
    clt_str_addf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A metric without further labels; NaN: it is left out. */
static void add(const prometheus *m, clt_str *b, const char *name, const char *type, const char *help,
                double v) {
    if (isnan(v)) return;
    head(b, name, type, help);
    clt_str_addf(b, "%s{%s} ", name, m->run);
    clt_str_addf(b, isinf(v) ? (v > 0 ? "+Inf\n" : "-Inf\n") : "%.9g\n", v);
}

static void add_histogram(const prometheus *m, clt_str *b) {
    static const char name[] = "cltrain_step_seconds";
    head(b, name, "histogram", "Seconds per step of this process.");
    for (int i = 0; i < BOUNDS; i++)
        clt_str_addf(b, "%s_bucket{%s,le=\"%g\"} %llu\n", name, m->run, bound[i],
                     (unsigned long long)m->within[i]);
    clt_str_addf(b, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, m->run, (unsigned long long)m->steps);
    clt_str_addf(b, "%s_sum{%s} %.9g\n%s_count{%s} %llu\n", name, m->run, m->seconds, name, m->run,
                 (unsigned long long)m->steps);
}

static void add_evals(const prometheus *m, clt_str *b) {
    if (m->evals > 0) head(b, "cltrain_eval_loss", "gauge", "Loss of the newest evaluation.");
    for (size_t i = 0; i < m->evals; i++) {
        if (!isfinite(m->eval[i].loss)) continue; /* readers refuse a file with "-nan" */
        clt_str_addf(b, "cltrain_eval_loss{%s,data=", m->run);
        clt_json_escape(b, m->eval[i].label);
        clt_str_addf(b, "} %.9g\n", m->eval[i].loss);
    }
}

/* Progress, loss and speed in the model's unit. */
static void add_units(const prometheus *m, clt_str *b) {
    const clt_step_row *r = &m->row;
    const bool by_sample = m->terms->by_sample;
    char *loss = clt_format("Training loss, nats per %s.", m->terms->unit);
    if (by_sample)
        add(m, b, "cltrain_samples_total", "counter", "Samples that the run has trained on.",
            (double)r->after.sample);
    else
        add(m, b, "cltrain_tokens_total", "counter", "Tokens that the run has trained on.",
            (double)r->after.token);
    add(m, b, "cltrain_loss", "gauge", loss, r->loss);
    add(m, b, by_sample ? "cltrain_samples_per_second" : "cltrain_tokens_per_second", "gauge",
        "Of the newest step, all ranks.", r->units_per_second);
    clt_free(loss);
}

static void add_all(const prometheus *m, clt_str *b) {
    const clt_step_row *r = &m->row;
    add(m, b, "cltrain_step", "gauge", "Batches that the run has finished.", (double)r->after.batch);
    add_units(m, b);
    add(m, b, "cltrain_learning_rate", "gauge", "Learning rate.", r->lr);
    add(m, b, "cltrain_gradient_norm", "gauge", "Gradient norm before clipping.", (double)r->grad_norm);
    add(m, b, "cltrain_mfu", "gauge", "Part of the measured peak.", r->mfu > 0 ? r->mfu : NAN);
    add(m, b, "cltrain_device_memory_bytes", "gauge", "Memory of rank 0 on its device.",
        (double)r->device_memory);
    add(m, b, "cltrain_ranks", "gauge", "Ranks of the run.", (double)r->ranks);
    add(m, b, "cltrain_checkpoints_total", "counter", "Checkpoints of this process.", (double)m->saves);
    add(m, b, "cltrain_checkpoint_failures_total", "counter", "Failed saves of this process.",
        (double)m->failures);
    add(m, b, "cltrain_checkpoint_seconds", "gauge", "Duration of the newest save.", m->save_seconds);
    add_evals(m, b);
    add_histogram(m, b);
}

/* Without a sync: after a loss of power the file is not worth the wait of a step. */
static clt_status write_file(prometheus *m) {
    clt_str b = {0};
    clt_file *f;
    char *temporary = clt_io_temporary(m->path);
    add_all(m, &b);
    m->written = clt_now();
    clt_status st = clt_file_open(temporary, CLT_IO_CREATE, &f), closed;
    if (st == CLT_OK) {
        st = clt_file_pwrite(f, b.s, b.len, 0);
        closed = clt_file_close(f);
        if (st == CLT_OK) st = closed;
        if (st == CLT_OK) st = clt_io_rename(temporary, m->path);
        if (st != CLT_OK) clt_io_try_unlink(temporary);
    }
    clt_free(temporary);
    clt_str_free(&b);
    return st;
}

/* --- rows --- */

static clt_status prometheus_step(void *state, const clt_sink_step *s) {
    enum { SECONDS_BETWEEN = 1 };
    prometheus *m = state;
    m->row = *s->row;
    m->steps++;
    m->seconds += s->row->step_seconds;
    for (int i = 0; i < BOUNDS; i++) m->within[i] += s->row->step_seconds <= bound[i];
    return m->steps == 1 || clt_now() - m->written >= SECONDS_BETWEEN ? write_file(m) : CLT_OK;
}

static clt_status prometheus_eval(void *state, const clt_sink_eval *e) {
    prometheus *m = state;
    size_t i = 0;
    while (i < m->evals && strcmp(m->eval[i].label, e->row->label) != 0) i++;
    if (i == m->evals) {
        m->eval = clt_realloc(m->eval, ++m->evals * sizeof *m->eval);
        m->eval[i].label = clt_strdup(e->row->label);
    }
    m->eval[i].loss = e->row->loss;
    return m->steps > 0 ? write_file(m) : CLT_OK;
}

static clt_status prometheus_event(void *state, const clt_sink_event *e) {
    prometheus *m = state;
    const char *seconds = e->fields ? strstr(e->fields, "\"seconds\":") : NULL;
    const bool saved = strcmp(e->name, "checkpoint") == 0, failed = strcmp(e->name, "checkpoint_failed") == 0;
    if (!saved && !failed) return CLT_OK;
    m->saves += saved;
    m->failures += failed;
    if (saved && seconds) m->save_seconds = strtod(seconds + strlen("\"seconds\":"), NULL);
    return m->steps > 0 ? write_file(m) : CLT_OK;
}

static clt_status prometheus_close(void *state) {
    prometheus *m = state;
    clt_status st = m->steps > 0 ? write_file(m) : CLT_OK;
    for (size_t i = 0; i < m->evals; i++) clt_free(m->eval[i].label);
    clt_free(m->eval);
    clt_free(m->run);
    clt_free(m);
    return st;
}

const clt_sink_kind clt_sink_prometheus = {.name = "cltrain.prometheus",
                                           .open = prometheus_open,
                                           .step = prometheus_step,
                                           .eval = prometheus_eval,
                                           .event = prometheus_event,
                                           .close = prometheus_close};
