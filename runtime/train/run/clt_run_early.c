/* callbacks.early_stopper: ends a run when an evaluation metric no longer improves. Rules of Composer's
 * EarlyStopper (composer/callbacks/early_stopper.py), except that a smaller cross-entropy is better. */
#include <math.h>
#include <string.h>

#include "runtime/train/run/clt_run.h"

static bool is(const char *name, const char *monitor) {
    return name && strcmp(name, monitor) == 0;
}

/* The monitored value of an evaluation; *larger: a larger one is better. */
static double monitored(const clt_run *r, const clt_eval_row *row, bool *larger) {
    const clt_model_terms *terms = clt_model_get_terms(r->cfg->model);
    const char *name = r->cfg->callbacks.early_stop.monitor;
    *larger = is(terms->accuracy, name) || is(terms->accuracy5, name);
    if (is(terms->perplexity, name)) return row->perplexity;
    if (is(terms->accuracy5, name)) return row->accuracy5;
    return *larger ? row->accuracy : row->loss;
}

static bool better(double min_delta, bool larger, double value, double best) {
    return (larger ? value > best : value < best) && fabs(value - best) > min_delta;
}

/* What decides is the same on all ranks. */
static void check(clt_run *r) {
    const clt_early_stop_config *c = &r->cfg->callbacks.early_stop;
    clt_run_early *e = &r->early;
    const bool epochs = c->patience.unit == CLT_TIME_EPOCH;
    const int64_t since = epochs ? r->progress.now.epoch - e->epoch : r->progress.now.batch - e->batch;
    if (!e->known || e->over || since <= c->patience.value) return;
    e->over = true;
    clt_progress_end();
    clt_info("early_stopper: the best %s of %s data is %.4f, of batch %lld: the run ends at batch %lld",
             c->monitor, c->label, e->best, (long long)e->batch, (long long)r->progress.now.batch);
    clt_sinks_event(r->sinks, "early_stop", r->progress.now.batch, NULL);
}

void clt_run_early_look(clt_run *r, const clt_eval_row *row) {
    const clt_early_stop_config *c = &r->cfg->callbacks.early_stop;
    clt_run_early *e = &r->early;
    if (!c->on || strcmp(row->label, c->label) != 0) return;
    bool larger;
    const double value = monitored(r, row, &larger);
    if (!isnan(value) && (!e->known || better(c->min_delta, larger, value, e->best)))
        *e = (clt_run_early){
            .known = true, .best = value, .epoch = r->progress.now.epoch, .batch = r->progress.now.batch};
    check(r);
}

bool clt_run_early_over(clt_run *r) {
    const clt_early_stop_config *c = &r->cfg->callbacks.early_stop;
    if (c->on && c->patience.unit == CLT_TIME_BATCH) check(r);
    return r->early.over;
}
