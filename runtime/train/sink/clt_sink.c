/* Passes rows to the sinks. What a sink does with them is in its file. */
#include "runtime/train/sink/clt_sink.h"

#include <math.h>

#include "runtime/train/sink/clt_sink_kind.h"

/* In the order in which they receive a row. */
static const clt_sink_kind *const kinds[] = {
    &clt_sink_jsonl,       &clt_sink_console, &clt_sink_csv,  &clt_sink_prometheus,
    &clt_sink_tensorboard, &clt_sink_mlflow,  &clt_sink_text,
};
enum { KINDS = CLT_COUNT_OF(kinds) };

struct clt_sinks {
    clt_sinks_params p;
    void *state[KINDS]; /* NULL: the run does not have this sink */
    bool warned[KINDS];
    clt_throughput *speed;
    clt_metrics_before before;
};

/* Around a call of a sink: only its first failure is reported. */
static void enter(const clt_sinks *s, int i) {
    if (s->warned[i]) clt_error_quiet(true);
}
static void leave(clt_sinks *s, int i, clt_status st) {
    if (s->warned[i]) clt_error_quiet(false);
    if (st == CLT_OK || s->warned[i]) return;
    s->warned[i] = true;
    clt_warn("%s is incomplete from here on; training continues", kinds[i]->name);
}

clt_status clt_sinks_create(const clt_sinks_params *p, clt_sinks **out) {
    clt_sinks *s = clt_calloc(1, sizeof *s);
    s->p = *p;
    s->before = (clt_metrics_before){NAN, NAN, NAN};
    s->speed = clt_throughput_create(p->cfg->callbacks.speed_window);
    for (int i = 0; i < KINDS && p->main_rank; i++) {
        const clt_status st = kinds[i]->open(&s->p, &s->state[i]);
        if (st == CLT_OK) continue;
        if (kinds[i]->essential) {
            clt_sinks_destroy(s);
            return st;
        }
        clt_warn("%s is not written; training continues", kinds[i]->name);
    }
    *out = s;
    return CLT_OK;
}

void clt_sinks_destroy(clt_sinks *s) {
    if (!s) return;
    for (int i = KINDS; i-- > 0;) {
        if (!s->state[i] || !kinds[i]->close) continue;
        enter(s, i);
        leave(s, i, kinds[i]->close(s->state[i]));
    }
    clt_throughput_destroy(s->speed);
    clt_free(s);
}

/* The part of max_duration, from 0 to 1, that is done at t. */
static double share_done(const clt_sinks *s, const clt_timestamp *t) {
    clt_time max = s->p.cfg->max_duration;
    double count = (double)clt_timestamp_get(t, max.unit);
    if (max.unit == CLT_TIME_EPOCH && s->p.batches_per_epoch > 0)
        count += (double)t->batch_in_epoch / (double)s->p.batches_per_epoch;
    return CLT_MIN(1.0, count / (double)max.value);
}

/* Seconds until max_duration at this speed, 0: unknown. */
static double seconds_left(double done, const clt_step_row *r, const clt_rates *rate) {
    return done > 0 && rate->batches > 0 ? (double)r->after.batch / rate->batches * (1 - done) / done : 0;
}

void clt_sinks_step(clt_sinks *s, const clt_step_row *r) {
    clt_metrics metrics = {0};
    if (!s->p.main_rank) return;
    clt_throughput_step(s->speed, r->step_seconds, r->after.sample - r->before.sample,
                        r->after.token - r->before.token, r->flops_per_second * r->step_seconds);
    clt_sink_step step = {.row = r, .rate = clt_throughput_rates(s->speed), .metrics = &metrics};
    step.done = share_done(s, &r->after);
    step.seconds_left = seconds_left(step.done, r, &step.rate);
    clt_metrics_of_step(s->p.cfg, r, &step.rate, step.seconds_left, &s->before, &metrics);
    for (int i = 0; i < KINDS; i++) {
        if (!s->state[i] || !kinds[i]->step) continue;
        enter(s, i);
        leave(s, i, kinds[i]->step(s->state[i], &step));
    }
    clt_metrics_free(&metrics);
}

void clt_sinks_eval_progress(clt_sinks *s, const char *label, int64_t i, int64_t n) {
    for (int k = 0; k < KINDS; k++)
        if (s->state[k] && kinds[k]->progress) kinds[k]->progress(s->state[k], label, i, n);
}

void clt_sinks_eval(clt_sinks *s, const clt_eval_row *r) {
    clt_metrics metrics = {0};
    if (!s->p.main_rank) return;
    clt_metrics_of_eval(s->p.cfg, r, &metrics);
    const clt_sink_eval eval = {.row = r, .metrics = &metrics};
    for (int i = 0; i < KINDS; i++) {
        if (!s->state[i] || !kinds[i]->eval) continue;
        enter(s, i);
        leave(s, i, kinds[i]->eval(s->state[i], &eval));
    }
    clt_metrics_free(&metrics);
}

void clt_sinks_metrics(clt_sinks *s, const clt_metrics_row *r) {
    clt_metrics metrics = {0};
    if (!s->p.main_rank) return;
    clt_metrics_of_row(r, &metrics);
    const clt_sink_named named = {.row = r, .metrics = &metrics};
    for (int i = 0; i < KINDS; i++) {
        if (!s->state[i] || !kinds[i]->named) continue;
        enter(s, i);
        leave(s, i, kinds[i]->named(s->state[i], &named));
    }
    clt_metrics_free(&metrics);
}

void clt_sinks_event(clt_sinks *s, const char *event, int64_t batch, const char *fields) {
    const clt_sink_event e = {.name = event, .fields = fields, .batch = batch};
    for (int i = 0; i < KINDS; i++) {
        if (!s->state[i] || !kinds[i]->event) continue;
        enter(s, i);
        leave(s, i, kinds[i]->event(s->state[i], &e));
    }
}
