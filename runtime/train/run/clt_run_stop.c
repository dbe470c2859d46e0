/* Stopping before the end: at a signal, or before the time that the run was given is over. */
#include <math.h>
#include <signal.h>
#include <time.h>

#include "runtime/base/clt_signal.h"
#include "runtime/train/run/clt_run.h"

/* --- the time that is given --- */

/* Minutes from the start of this process, or seconds since 1970, which are far larger. */
static double time_of(const clt_run *r, double given) {
    static const double minutes_end = 1e7;
    return given < minutes_end ? clt_wall() - (clt_now() - r->opt->started) + 60 * given : given;
}

static bool earlier(clt_run *r, double at, const char *from) {
    if (!(at > 0) || (r->stop.end > 0 && r->stop.end <= at)) return false;
    r->stop.end = at;
    r->stop.from = from;
    return true;
}

clt_status clt_run_time_open(clt_run *r) {
    const char *hand = clt_env(CLT_ENV_STOP_BEFORE), *slurm = clt_env(CLT_ENV_SLURM_JOB_END_TIME);
    double v = 0, now = clt_wall();
    if (hand && (!clt_parse_f64(hand, &v) || !(v > 0) || !isfinite(v)))
        return clt_error(CLT_BAD_CONFIG,
                         "CLTRAIN_STOP_BEFORE is '%s', it must be minutes from now or a time in seconds "
                         "since 1970",
                         hand);
    earlier(r, hand ? time_of(r, v) : 0, "CLTRAIN_STOP_BEFORE");
    if (r->cfg->stop_before > 0) earlier(r, time_of(r, r->cfg->stop_before), "cltrain.stop_before");
    if (r->stop.end > 0 && r->stop.end <= now)
        return clt_error(CLT_BAD_CONFIG, "%s: that time is over", r->stop.from);
    /* A job's variable may outlive the job in a shell. */
    if (slurm && clt_parse_f64(slurm, &v) && v > now) earlier(r, v, "SLURM_JOB_END_TIME");
    if (r->stop.end == 0) return CLT_OK;
    if (!r->cfg->save_folder) {
        clt_warn("%s is not heeded: without save_folder there is nothing to save", r->stop.from);
        r->stop.end = 0;
        return CLT_OK;
    }
    enum { LEAST_SLACK = 2, MOST_SLACK = 30 }; /* seconds; ranks take one or two to end */
    static const double slack_part = 0.05;
    char left[32];
    r->stop.slack = CLT_MAX(LEAST_SLACK, CLT_MIN(MOST_SLACK, slack_part * (r->stop.end - now)));
    clt_signal_at(r->stop.end - r->stop.slack);
    clt_info("time: %s are left (%s); the run saves and ends with 75 before that",
             clt_human_seconds(r->stop.end - now, left), r->stop.from);
    return CLT_OK;
}

/* What a save takes: the longest so far; before the first one, the state's size at 100 MB/s. */
static double save_seconds(const clt_run *r) {
    static const double guess = 100e6;
    int parts;
    clt_engine_parts(r->engine, &parts);
    return r->stop.save > 0 ? r->stop.save : (double)clt_engine_table(r->engine)->total * 4.0 * parts / guess;
}

void clt_run_time_step(clt_run *r, double seconds) {
    static const double fade = 0.95;
    if (r->stop.begun) r->stop.step = CLT_MAX(seconds, fade * r->stop.step);
    r->stop.begun = true; /* the first one compiles */
}

void clt_run_time_look(clt_run *r) {
    static const double margin = 1.25;
    if (r->stop.end == 0) return;
    /* A checkpoint that is under way is finished first. */
    double saves = r->saves.pending.active ? 2 : 1;
    double last = r->stop.end - r->stop.slack - margin * saves * save_seconds(r);
    bool fits = clt_wall() + margin * r->stop.step * (r->queue.n + 1) <= last;
    clt_signal_at(fits ? last : clt_wall());
}

/* --- stopping --- */

static clt_status after_save(clt_run *r) {
    char left[32] = "", *when = NULL;
    if (clt_group_stop(r->group) == CLT_SIGNAL_TIME)
        when = clt_format(", %s before the time is over (%s)",
                          clt_human_seconds(CLT_MAX(r->stop.end - clt_wall(), 0.0), left), r->stop.from);
    clt_info("stopped at batch %lld after a save%s; the same command goes on from there",
             (long long)r->progress.now.batch, when ? when : "");
    clt_free(when);
    return clt_group_agree(r->group, CLT_AGAIN);
}

/* No step was finished since the start: what is on disk is all there is. */
static clt_status nothing_done(clt_run *r) {
    if (r->progress.now.batch > 0)
        clt_info("stopped before a step was finished (%s); the same command goes on from the checkpoint of "
                 "batch %lld",
                 clt_group_phase(r->group), (long long)r->progress.now.batch);
    else
        clt_info("stopped before a step was finished (%s): there is nothing to save; run the same "
                 "command again",
                 clt_group_phase(r->group));
    if (clt_group_stop(r->group) == CLT_SIGNAL_TIME)
        clt_warn("the time that is given (%s) is too short for a step and a save", r->stop.from);
    return clt_group_agree(r->group, CLT_AGAIN);
}

clt_status clt_run_stop(clt_run *r) {
    clt_progress_end();
    clt_run_lock_ending(r->files.lock);
    if (r->cfg->save_folder && r->progress.now.batch == r->progress.start_batch) return nothing_done(r);
    if (r->saves.writer) {
        CLT_TRY(clt_run_save_last(r));
        clt_run_note_end(r, "stopped");
        if (!r->saves.failed) return after_save(r);
    }
    clt_warn("stopped at batch %lld without a checkpoint%s", (long long)r->progress.now.batch,
             r->cfg->save_folder ? "" : " (no save_folder)");
    bool interrupted = clt_group_stop(r->group) == SIGINT;
    return clt_group_agree(r->group, interrupted ? CLT_INTERRUPTED : CLT_TERMINATED);
}
