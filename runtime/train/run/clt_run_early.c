/* callbacks.early_stopper: ends a run when an evaluation metric no longer improves. Rules of Composer's
 * EarlyStopper (composer/callbacks/early_stopper.py), except that a smaller cross-entropy is better. */
#include <math.h>
#include <string.h>

#include "runtime/train/run/clt_run.h"

static bool better(const clt_early_stop_config *c, double value, double best) {
    const bool larger = c->monitor == CLT_STOP_ACCURACY;
    return (larger ? value > best : value < best) && fabs(value - best) > c->min_delta;
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
             c->monitor == CLT_STOP_LOSS         ? "loss"
             : c->monitor == CLT_STOP_PERPLEXITY ? "perplexity"
                                                 : "accuracy",
             c->label, e->best, (long long)e->batch, (long long)r->progress.now.batch);
    clt_sinks_event(r->sinks, "early_stop", r->progress.now.batch, NULL);
}

void clt_run_early_look(clt_run *r, const clt_eval_row *row) {
    const clt_early_stop_config *c = &r->cfg->callbacks.early_stop;
    clt_run_early *e = &r->early;
    if (!c->on || strcmp(row->label, c->label) != 0) return;
    const double value = c->monitor == CLT_STOP_LOSS         ? row->loss
                         : c->monitor == CLT_STOP_PERPLEXITY ? row->perplexity
                                                             : row->accuracy;
    if (!isnan(value) && (!e->known || better(c, value, e->best)))
        *e = (clt_run_early){
            .known = true, .best = value, .epoch = r->progress.now.epoch, .batch = r->progress.now.batch};
    check(r);
}

bool clt_run_early_over(clt_run *r) {
    const clt_early_stop_config *c = &r->cfg->callbacks.early_stop;
    if (c->on && c->patience.unit == CLT_TIME_BATCH) check(r);
    return r->early.over;
}
