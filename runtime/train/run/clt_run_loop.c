/* The loop over steps, evaluations and checkpoints between steps, and the end of a run. */
#include <string.h>

#include "runtime/ops/clt_variant.h"
#include "runtime/train/run/clt_run.h"

/* --stop-after is reached: saves the state for the next process. */
static clt_status end_leg(clt_run *r) {
    char length[40];
    clt_progress_end();
    CLT_TRY(clt_run_collect_all(r));
    CLT_TRY(clt_run_save_last(r));
    clt_run_note_end(r, "stopped");
    if (r->saves.failed)
        return clt_group_agree(r->group, clt_error(CLT_IO, "the state at batch %lld could not be saved in %s",
                                                   (long long)r->progress.now.batch, r->files.folder));
    clt_info("stopped at batch %lld after %s (--stop-after) and saved; rerun the same command to resume",
             (long long)r->progress.now.batch, clt_time_text(r->leg.length, length));
    char *fields =
        clt_format("\"from_batch\":%lld,\"leg\":%lld", (long long)r->leg.begun.batch, (long long)r->leg.leg);
    if (!r->leg.hop) *strchr(fields, ',') = 0;
    clt_sinks_event(r->sinks, r->leg.hop ? "hop" : "stop", r->progress.now.batch, fields);
    clt_free(fields);
    return clt_group_agree(r->group, CLT_AGAIN);
}

/* Reports the start-up time, and after a slow cold start the reason. With a driver that has its own cache
 * every start builds every program, which is fast if they are cached: so the build time decides, not the
 * number of builds. */
static void first_step_done(clt_run *r) {
    enum { WORTH_SAYING = 2 };
    char s[32];
    double took = clt_now() - r->opt->started;
    clt_device_counters c;
    clt_device_get_counters(r->dev, &c);
    clt_device_set_steady(r->dev, true);
    clt_run_compare_variants(r);
    bool cold = clt_variants_checked(r->ops) > 0 || c.build_seconds > took / 2;
    clt_info("first step done %s after the start%s", clt_human_seconds(took, s),
             took > WORTH_SAYING && cold
                 ? " (kernels were compiled and checked for this device; the next start is faster)"
                 : "");
}

/* Before the first step: runs an evaluation if one is due. */
static clt_status begin(clt_run *r) {
    bool owes;
    r->progress.begun = true;
    CLT_TRY(clt_run_owes_eval(r, r->progress.eval_every, &owes));
    if (!owes && !(r->cfg->eval_first && r->progress.now.batch == 0)) return CLT_OK;
    CLT_TRY(clt_run_eval(r, false));
    return owes && clt_group_stop(r->group) ? clt_run_stop(r) : CLT_OK;
}

/* After a step: evaluation, comparison of replicas and checkpoint, if they are due. */
static clt_status between_steps(clt_run *r, const clt_timestamp *before) {
    const clt_timestamp *now = &r->progress.now;
    const bool first = before->batch == r->progress.start_batch;
    bool eval = clt_run_evaluates(r->cfg) && clt_timestamp_crossed(before, now, r->progress.eval_every);
    bool save = r->saves.writer && clt_timestamp_crossed(before, now, r->progress.save_every);
    bool compare = save || clt_run_replicas_due(r);
    if (eval || compare || first) {
        CLT_TRY(clt_run_collect_all(r));
        r->guards.disturbed = true;
    }
    if (first) first_step_done(r);
    if (compare) CLT_TRY(clt_run_check_replicas(r));
    if (eval) {
        CLT_TRY(clt_run_eval(r, false));
        if (clt_group_stop(r->group)) return clt_run_stop(r);
        r->progress.evaluated = now->batch;
    }
    /* During consecutive steps that are not finite nothing is saved: a roll-back needs a checkpoint from
     * before them. */
    if (save && !(r->guards.bad_in_a_row && r->cfg->guards.nonfinite == CLT_NONFINITE_ROLLBACK))
        clt_run_save_begin(r); /* finished during later steps, which report a failure */
    return CLT_OK;
}

clt_status clt_run_loop(clt_run *r, int64_t steps, bool *done) {
    const int64_t until = steps > 0 ? r->progress.now.batch + steps : INT64_MAX;
    if (!r->progress.begun) CLT_TRY(begin(r));
    while (
        !(*done = clt_timestamp_reached(&r->progress.now, r->cfg->max_duration) || clt_run_early_over(r))) {
        const clt_timestamp before = r->progress.now;
        if (clt_run_leg_over(&r->leg, &before)) return end_leg(r);
        if (before.batch >= until) break;
        clt_status st = clt_run_next_step(r);
        if (st == CLT_STOPPED) {
            CLT_TRY(clt_run_collect_all(r));
            return clt_run_stop(r);
        }
        CLT_TRY(st);
        if (before.batch < r->progress.now.batch) CLT_TRY(between_steps(r, &before));
        CLT_TRY(clt_memory_check());
    }
    return clt_run_collect_all(r);
}

clt_status clt_run_finish(clt_run *r) {
    if (clt_run_evaluates(r->cfg) && r->progress.eval_every.value > 0 &&
        r->progress.evaluated != r->progress.now.batch) {
        CLT_TRY(clt_run_eval(r, false));
        if (clt_group_stop(r->group)) return clt_run_stop(r);
    }
    return clt_run_save_last(r);
}
