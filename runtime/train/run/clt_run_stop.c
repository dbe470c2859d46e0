/* Stopping early: after a signal, before the allotted time is over, or without data. */
#include <math.h>
#include <signal.h>
#include <time.h>

#include "runtime/base/clt_signal.h"
#include "runtime/train/run/clt_run.h"

/* --- the allotted time --- */

/* Small values are minutes from the start of this process; large ones seconds since 1970. */
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
        return clt_error(
            CLT_BAD_CONFIG,
            "CLTRAIN_STOP_BEFORE is '%s', it must be minutes from the start or a time in seconds since 1970",
            hand);
    earlier(r, hand ? time_of(r, v) : 0, "CLTRAIN_STOP_BEFORE");
    if (r->cfg->stop_before > 0) earlier(r, time_of(r, r->cfg->stop_before), "cltrain.stop_before");
    if (r->stop.end > 0 && r->stop.end <= now)
        return clt_error(CLT_BAD_CONFIG, "%s: this time has passed; set a later one or unset it",
                         r->stop.from);
    /* A time in the past is ignored: a shell may still have the variable of an earlier job. */
    if (slurm && clt_parse_f64(slurm, &v) && v > now) earlier(r, v, "SLURM_JOB_END_TIME");
    if (r->stop.end == 0) return CLT_OK;
    if (!r->cfg->save_folder) {
        clt_warn("%s is ignored: without save_folder nothing can be saved", r->stop.from);
        r->stop.end = 0;
        return CLT_OK;
    }
    enum { LEAST_SLACK = 2, MOST_SLACK = 30 }; /* seconds; the ranks need one or two to exit */
    static const double slack_part = 0.05;
    char left[32];
    r->stop.slack = CLT_MAX(LEAST_SLACK, CLT_MIN(MOST_SLACK, slack_part * (r->stop.end - now)));
    clt_signal_at(r->stop.end - r->stop.slack);
    clt_info("time limit: %s left (%s); the run saves and exits with code 75 before that",
             clt_human_seconds(r->stop.end - now, left), r->stop.from);
    return CLT_OK;
}

/* Expected seconds for a save: the longest so far; before the first one the size of the state at 100 MB/s. */
static double save_seconds(const clt_run *r) {
    static const double guess = 100e6;
    int parts;
    clt_engine_parts(r->engine, &parts);
    return r->stop.save > 0 ? r->stop.save : (double)clt_engine_table(r->engine)->total * 4.0 * parts / guess;
}

void clt_run_time_step(clt_run *r, double seconds) {
    static const double fade = 0.95;
    if (r->stop.begun) r->stop.step = CLT_MAX(seconds, fade * r->stop.step);
    r->stop.begun = true; /* the first step compiles and is not counted */
}

void clt_run_time_look(clt_run *r) {
    static const double margin = 1.25;
    if (r->stop.end == 0) return;
    /* A save in progress must be finished first. */
    double saves = r->saves.pending.active ? 2 : 1;
    double last = r->stop.end - r->stop.slack - margin * saves * save_seconds(r);
    bool fits = clt_wall() + margin * r->stop.step * (r->queue.n + 1) <= last;
    clt_signal_at(fits ? last : clt_wall());
}

/* --- stopping --- */

static clt_status after_save(clt_run *r) {
    char left[32] = "", *when = NULL;
    if (clt_group_stop(r->group) == CLT_SIGNAL_TIME)
        when = clt_format(", %s before the end of the time (%s)",
                          clt_human_seconds(CLT_MAX(r->stop.end - clt_wall(), 0.0), left), r->stop.from);
    clt_info("stopped at batch %lld after a save%s; rerun the same command to resume",
             (long long)r->progress.now.batch, when ? when : "");
    clt_free(when);
    return clt_group_agree(r->group, CLT_AGAIN);
}

/* No step was finished since the start, so there is nothing new to save. */
static clt_status nothing_done(clt_run *r) {
    if (r->progress.now.batch > 0)
        clt_info("stopped before a step was finished (%s); rerun the same command to resume from the "
                 "checkpoint of batch %lld",
                 clt_group_phase(r->group), (long long)r->progress.now.batch);
    else
        clt_info("stopped before a step was finished (%s), nothing to save; rerun the same command",
                 clt_group_phase(r->group));
    if (clt_group_stop(r->group) == CLT_SIGNAL_TIME)
        clt_warn("the allotted time (%s) is too short for a step and a save", r->stop.from);
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

/* --- data that cannot be read --- */

clt_status clt_run_note_data(clt_run *r, clt_status st) {
    r->no_data = st == CLT_AGAIN || st == CLT_IO || st == CLT_BAD_DATA;
    return st;
}

static clt_status stop_without_data(clt_run *r, clt_status why) {
    const char *next =
        why == CLT_AGAIN ? "rerun the same command to resume" : "fix the error above and rerun to resume";
    bool saved = false, nothing = false;
    clt_progress_end();
    clt_run_lock_ending(r->files.lock);
    if (r->engine) CLT_TRY(clt_run_collect_all(r));
    nothing = r->progress.now.batch == r->progress.start_batch;
    if (r->saves.writer && !nothing) {
        CLT_TRY(clt_run_save_last(r));
        clt_run_note_end(r, "stopped");
        saved = !r->saves.failed;
    }
    if (saved || (nothing && r->cfg->save_folder))
        clt_info("stopped at batch %lld %s, because data could not be read; %s",
                 (long long)r->progress.now.batch, saved ? "after a save" : "with nothing new to save", next);
    else
        clt_warn("stopped at batch %lld without a checkpoint%s, because data could not be read; %s",
                 (long long)r->progress.now.batch, r->cfg->save_folder ? "" : " (no save_folder)", next);
    return clt_group_agree(r->group, why);
}

clt_status clt_run_ended(clt_run *r, clt_status st) {
    if (st == CLT_STOPPED) return clt_run_stop(r);
    return st != CLT_OK && r->no_data ? stop_without_data(r, st) : st;
}
