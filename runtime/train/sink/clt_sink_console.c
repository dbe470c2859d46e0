/* The console, in Composer's format, and the progress bar on terminals. */
#include "runtime/train/sink/clt_sink_kind.h"

static clt_status console_open(const clt_sinks_params *p, void **state) {
    *state = (void *)p; /* all that it needs */
    return CLT_OK;
}

static clt_status console_close(void *state) {
    (void)state;
    clt_progress_end();
    return CLT_OK;
}

/* Composer's header of a console block, in the unit of max_duration; if that is epochs, with the batch of
 * this epoch. */
static void header(const clt_sinks_params *p, const clt_step_row *r, clt_str *b) {
    static const char *const units[] = {"epoch", "batch", "sample", "token"};
    clt_time max = p->cfg->max_duration;
    if (max.unit == CLT_TIME_EPOCH)
        clt_str_addf(b, "[epoch=%lld][batch=%lld/%lld]:", (long long)r->before.epoch + 1,
                     (long long)r->before.batch_in_epoch + 1, (long long)p->batches_per_epoch);
    else
        clt_str_addf(b, "[%s=%lld/%lld]:", units[max.unit], (long long)clt_timestamp_get(&r->after, max.unit),
                     (long long)max.value);
}

static void print(const char *before, const clt_metrics *m, clt_str *b) {
    for (size_t i = 0; i < m->n; i++) {
        clt_str_addf(b, "\n\t %s %s: ", before, m->v[i].name);
        clt_str_addf(b, m->v[i].format, m->v[i].value);
    }
    clt_info("%s", b->s);
    clt_str_free(b);
}

static void bar(const clt_config *c, const clt_sink_step *s) {
    enum { WIDTH = 10 }; /* so that the whole line fits 80 columns */
    char cells[WIDTH + 1], eta[32], rate[32];
    const clt_model_terms *terms = clt_model_get_terms(c->model);
    for (int i = 0; i < WIDTH; i++) cells[i] = i < (int)(s->done * WIDTH) ? '#' : '.';
    cells[WIDTH] = 0;
    clt_progress(s->done >= 1.0, "train %3.0f%% |%s| batch %lld  loss %.4f  %s %s  %s left", s->done * 100,
                 cells, (long long)s->row->after.batch, s->row->loss, clt_human_count(s->rate.tokens, rate),
                 terms->rate, clt_human_seconds(s->seconds_left, eta));
}

static clt_status console_step(void *state, const clt_sink_step *s) {
    const clt_sinks_params *p = state;
    const clt_step_row *r = s->row;
    bool first = r->before.batch == 0, last = clt_timestamp_reached(&r->after, p->cfg->max_duration);
    bool due = clt_timestamp_crossed(&r->before, &r->after, p->cfg->console_log_interval);
    if (p->cfg->log_to_console && (first || last || due)) {
        clt_str b = {0};
        header(p, r, &b);
        print("Train", s->metrics, &b);
    }
    if (p->cfg->progress_bar) bar(p->cfg, s);
    return CLT_OK;
}

static void console_progress(void *state, const char *label, int64_t i, int64_t n) {
    const clt_config *c = ((const clt_sinks_params *)state)->cfg;
    if (c->progress_bar) clt_progress(false, "eval %s: batch %lld/%lld", label, (long long)i, (long long)n);
    bool decile = i == n || i * 10 / n != (i - 1) * 10 / n;
    if (c->log_to_console && decile && i < n)
        clt_info("[Eval batch=%lld/%lld] Eval on %s data", (long long)i, (long long)n, label);
}

static clt_status console_eval(void *state, const clt_sink_eval *e) {
    clt_str b = {0};
    (void)state;
    clt_str_addf(&b, "[Eval on %s data, %lld samples]:", e->row->label, (long long)e->row->samples);
    print("Eval", e->metrics, &b);
    return CLT_OK;
}

static clt_status console_named(void *state, const clt_sink_named *n) {
    clt_str b = {0};
    (void)state;
    if (n->row->samples)
        clt_str_addf(&b, "[Eval on %s, %lld samples]:", n->row->label, (long long)n->row->samples);
    else
        clt_str_addf(&b, "[%s]:", n->row->label);
    print("Eval", n->metrics, &b);
    return CLT_OK;
}

const clt_sink_kind clt_sink_console = {.name = "the console",
                                        .open = console_open,
                                        .step = console_step,
                                        .eval = console_eval,
                                        .named = console_named,
                                        .progress = console_progress,
                                        .close = console_close};
