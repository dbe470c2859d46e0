/* clt_run: the state of a run on this rank, grouped by purpose, and the functions by which the files of this
 * folder work on it. For training, evaluation and the library only (runtime/train/run, runtime/api).
 *
 * A start is a list of named phases (clt_run_start.c). Training is a loop (clt_run_loop.c) that queues and
 * collects steps (clt_run_step.c). clt_run_close (clt_run.c) closes everything in reverse order. */
#ifndef CLT_RUN_H
#define CLT_RUN_H

#include "runtime/data/clt_loader.h"
#include "runtime/train/run/clt_icl_run.h"
#include "runtime/train/engine/clt_engine.h"
#include "runtime/train/run/clt_follow.h"
#include "runtime/train/run/clt_guard.h"
#include "runtime/train/run/clt_mirror.h"
#include "runtime/train/run/clt_run_leg.h"
#include "runtime/train/sink/clt_sink.h"
#include "runtime/train/run/clt_trace.h"
#include "runtime/train/run/clt_trainer.h"

enum {
    CLT_RUN_AHEAD = 2,  /* largest number of queued steps */
    CLT_RUN_CHECKS = 8, /* largest number of batches that a resume check evaluates */
    CLT_HOST_BYTES = 64
};

/* --- state, by purpose --- */

/* The run's folder and its open files. Checkpoints and the lock are in `folder`, everything that the run
 * appends to in `local`. Both are the same unless `folder` is storage that cannot append: then `follow`
 * copies. */
typedef struct {
    char *folder, *local;
    clt_follow *follow;
    clt_mirror *mirror; /* cltrain.mirror, rank 0 */
    clt_file *log;
    clt_run_lock *lock,
        *mirror_lock; /* of `folder`; of the mirror, if it was taken before r->files.mirror exists */
    char run_id[CLT_RUN_ID_BYTES];
    clt_file *samples; /* train --log-samples */
} clt_run_files;

/* Progress, and what decides when an evaluation or a checkpoint is due. */
typedef struct {
    clt_timestamp now;
    int64_t optimizer_step, first_step; /* the last one; the first one of this process */
    int64_t last_samples, last_tokens;  /* of the last batch before `now` */
    int64_t start_batch;
    bool begun;        /* clt_run_loop was called */
    int64_t evaluated; /* batch of the last evaluation, -1: none */
    double loss;       /* of the last collected finite step; NaN: none */
    int64_t batches_per_epoch;
    clt_schedule schedule;
    clt_time eval_every, save_every; /* resolved */
} clt_run_progress;

/* A step that is queued and not collected. */
typedef struct {
    clt_timestamp before, after;
    double lr;
    int64_t tokens, step;
    clt_batch batch;
    void *arrays; /* memory of batch's arrays while steps are queued ahead */
} clt_run_step;

/* The queued steps. */
typedef struct {
    bool ahead;                       /* a step is queued before the previous one is collected */
    clt_run_step step[CLT_RUN_AHEAD]; /* oldest first; progress.now is the position after the last one */
    int n;
    double mark; /* clt_now() when the last step was collected, or the first one was queued */
} clt_run_queue;

/* Speed. */
typedef struct {
    double eval_seconds, step_seconds;
    double
        stall_seconds; /* of the rank that waited longest for data to be fetched; up to the last exchange */
    int64_t fetched;   /* bytes, all ranks together; likewise */
    double peak_flops;
    bool matrix_peak; /* peak_flops is the peak of matrix units */
    struct {
        double flops, seconds;
        int steps;
    } worked; /* since the last comparison with peak_flops */
} clt_run_pace;

/* The job that trains, or that wrote a checkpoint: devices, software, numerics. Strings are owned; variants
 * and config may be NULL. */
typedef struct {
    char *device, *driver, *version, *numerics, *variants;
    char *config; /* YAML text */
    int64_t ranks;
    int checks; /* number of losses in the checkpoint, each of a batch of check_samples samples */
    int64_t check_samples;
    double loss[CLT_RUN_CHECKS];
} clt_run_place;

/* Where the run starts. */
typedef struct {
    clt_run_place here, writer; /* this job; the writer of the checkpoint that it resumes */
    char *path;                 /* checkpoint or weights to start from, NULL: initial weights */
    bool resumed;               /* the whole state comes from a checkpoint */
    bool autoresumed;           /* path was found in save_folder or the mirror, not given by load_path */
    bool from_mirror;
    clt_loss_scale scale; /* initial loss scale of amp_fp16 */
    clt_ckpt_number *fp8; /* [n_fp8] owned: the delayed scaling of amp_fp8 to begin with */
    int n_fp8;
} clt_run_origin;

/* A checkpoint that is written while training continues. */
typedef struct {
    bool active;
    char *name;
    int64_t batch;
    double start, stall; /* clt_now() at its start; seconds that training waited for it */
} clt_run_saving;

/* Checkpoints that this run writes. */
typedef struct {
    clt_ckpt_writer *writer; /* NULL: the run writes none */
    clt_run_saving pending;
    int64_t newest; /* batch of the newest complete checkpoint, -1: none */
    int64_t failures;
    bool failed; /* the last save failed */
} clt_run_saves;

/* The time at which a run must have ended, and measurements to end before it; seconds. */
typedef struct {
    double end;        /* since 1970; 0: never */
    const char *from;  /* name of the variable or key that set it */
    double slack;      /* safety margin before `end` */
    double step, save; /* duration of a step (recent maximum) and of a save (maximum) */
    bool begun;        /* the first step, which compiles, is over */
} clt_run_time;

/* Effective training time (docs/guards.md). */
typedef struct {
    double first_start;    /* of the run, over all its processes; seconds since 1970 */
    double useful_seconds; /* sum over the steps that are part of the state */
    double first_seconds;  /* of the first step of this process */
    int64_t steps_counted; /* calls of clt_run_count_step */
} clt_run_effective;

/* train --trace and --record. */
typedef struct {
    bool on;            /* a trace is active, up to step `last`, on all ranks */
    bool met, recorded; /* at least one of the requested steps was traced; recorded */
    int64_t last;
    clt_trace *trace;
} clt_run_tracing;

/* cltrain.phase_times and cltrain.flops_profile. */
typedef struct {
    bool on; /* the step that is being queued is timed */
    clt_phase_times times;
} clt_run_phases;

/* State of a run's guards. The windows and the counts of consecutive bad steps and roll-backs are part of a
 * checkpoint, because they decide about updates: a resumed run skips the same steps as an uninterrupted
 * one. */
typedef struct {
    clt_spike loss, norm;
    double loss_z, norm_z; /* z-scores of the last collected step; NaN: none */
    int64_t bad_in_a_row, left_out, rollbacks;
    int64_t equal_at; /* last batch at which the replicas were equal, -1: none */
    clt_straggler straggler;
    double exchanged, waited; /* clt_now() and clt_group_waited() at the last exchange */
    double seconds;           /* spent in this process on comparing replicas and checking steps */
    bool disturbed;           /* something other than a step happened since the last exchange */
    char *hosts;              /* [ranks][CLT_HOST_BYTES] */
    struct {                  /* tests: $CLTRAIN_INJECT */
        int64_t flip_rank, flip_batch, flip_bit, nan_first, nan_last;
    } inject;
} clt_run_guards;

/* callbacks.early_stopper: the best value so far and where it was measured. Part of a checkpoint. */
typedef struct {
    bool known, over; /* there is a best value; the run ends */
    double best;
    int64_t epoch, batch;
} clt_run_early;

/* icl_tasks. */
typedef struct {
    clt_tokenizer *tok;
    clt_icl_sets sets;
    clt_model *text; /* for generation; NULL: no task generates */
    int64_t places;  /* texts that it continues together */
} clt_run_icl;

struct clt_run {
    const clt_config *cfg; /* borrowed, as opt is */
    const clt_run_options *opt;
    clt_group *group;
    clt_device *dev;
    clt_ops *ops;
    clt_plan plan;
    clt_loader *train;
    bool no_data;           /* a batch could not be read; the same on all ranks */
    clt_loader_rows *parts; /* this rank's part of a batch; NULL: not asked for yet */
    clt_loader **evals;
    clt_run_icl icl;
    clt_engine *engine;
    clt_sinks *sinks;

    clt_run_files files;
    clt_run_progress progress;
    clt_run_queue queue;
    clt_run_pace pace;
    clt_run_origin origin;
    clt_run_saves saves;
    clt_run_leg leg;
    clt_run_time stop;
    clt_run_effective effective;
    clt_run_tracing tracing;
    clt_run_phases phases;
    clt_run_guards guards;
    clt_run_early early;
};

/* --- clt_run.c: opening and closing, for training and evaluation --- */

/* Joins the ranks, which must all run `command` ("train", "eval") with the same configuration, CLTRAIN_
 * variables and --stop-after; otherwise CLT_BAD_CONFIG on all of them. Needs cfg and opt. */
clt_status clt_run_join(clt_run *r, const char *command);
/* Opens the device, which must support the configured numerics; creates the operations on it. */
clt_status clt_run_open_device(clt_run *r);
clt_status clt_run_open_ops(clt_run *r);
/* Closes everything that is open. */
void clt_run_close(clt_run *r);

/* Whether the epoch has no batch left after this position. Samples decide, not batches: the batch size may
 * have changed within the epoch. */
bool clt_run_epoch_over(const clt_run *r, int64_t epoch, int64_t sample_in_epoch, int64_t batch_in_epoch);

clt_status clt_run_open_loader(clt_run *r, const clt_loader_config *l, bool eval, int64_t max_rows,
                               clt_loader **out);

/* --- clt_run_split.c: how many lanes each rank owns --- */

/* Divides the lanes in r->plan by measured speed if the ranks have different devices and the configuration
 * does not set cltrain.lanes_per_rank. Call it before the engine is created, with the microbatch of an even
 * division in the plan. *divided: the plan was changed. Collective. */
clt_status clt_run_divide_lanes(clt_run *r, bool *divided);
/* Lanes per rank for an event: "\"lanes\":[6,2]"; the caller frees it. */
char *clt_run_lanes_text(const clt_run *r);

/* --- clt_run_samples.c: train --log-samples --- */

/* Appends a line about the next batch; b has this rank's samples of it. */
clt_status clt_run_log_samples(clt_run *r, const clt_batch *b);

/* --- clt_run_start.c, clt_run_step.c, clt_run_loop.c --- */

/* Runs all phases of a start; then the first step can be queued. CLT_STOPPED: a stop was requested. */
clt_status clt_run_start(clt_run *r);

/* Makes the loader read this rank's samples of the global batch at position `at` of an epoch in the
 * background. */
void clt_run_prefetch(clt_run *r, int64_t epoch, int64_t at);
/* Queues the next step and advances progress.now. If a rank was asked to stop during the step, progress.now
 * stays and the next call returns CLT_STOPPED. Waits for earlier steps only if the queue is full. */
clt_status clt_run_next_step(clt_run *r);
/* Waits for all queued steps. Required before the weights are read. */
clt_status clt_run_collect_all(clt_run *r);

/* Trains until max_duration, the end of the leg, or `steps` more steps (0: no limit). CLT_OK: every step is
 * collected, and max_duration (*done true) or the limit (*done false) is reached. Other values as
 * clt_train. */
clt_status clt_run_loop(clt_run *r, int64_t steps, bool *done);
/* After max_duration: the last evaluation and the last save. */
clt_status clt_run_finish(clt_run *r);

/* --- clt_run_tracing.c: train --trace, --record and --profile --- */

/* Before and after step s is queued. */
clt_status clt_run_record_begin(clt_run *r, int64_t s, bool *recording);
clt_status clt_run_trace_begin(clt_run *r, int64_t s);
clt_status clt_run_trace_end(clt_run *r);
/* At the end of the run: writes an incomplete trace, of all ranks if st is CLT_OK or CLT_AGAIN and else of
 * rank 0 alone, and warns if no requested step was traced or recorded. Returns st, or if that is CLT_OK the
 * status of writing the trace. */
clt_status clt_run_tracing_end(clt_run *r, clt_status st);
void clt_run_print_profile(clt_run *r);

/* --- clt_run_phases.c: cltrain.phase_times and cltrain.flops_profile --- */

/* Before the step of number `batch` is queued: begins to time it, if it is due. After it is queued, with
 * r->phases.on: waits for it and prints the times on rank 0. own: this rank's samples; tokens: of the global
 * batch. Collective. */
clt_status clt_run_phases_begin(clt_run *r, int64_t batch);
clt_status clt_run_phases_end(clt_run *r, int64_t batch, const clt_batch *own, int64_t tokens);

/* --- clt_run_check.c: compares a resumed run with the writer of its checkpoint --- */

/* Fills r->origin.here. Collective. */
clt_status clt_run_describe(clt_run *r);
/* Fills r->origin.writer. */
void clt_run_remember_writer(clt_run *r, const clt_checkpoint_state *s);
void clt_run_place_free(clt_run_place *p);
/* Number of batches to evaluate for a checkpoint: cltrain.resume_check.batches. */
int clt_run_checks(const clt_config *c);
/* Evaluates them and writes the numbers for the manifest to `out`; returns how many. 0 if data cannot be read
 * (r->no_data), or if a stop was requested and the evaluation would take too long. Collective. */
int clt_run_check_numbers(clt_run *r, clt_ckpt_number out[1 + CLT_RUN_CHECKS]);
/* After a resumed state was loaded: prints and logs what wrote it and what resumes it, and evaluates the
 * batches whose losses the checkpoint has. CLT_FAIL if a loss differs by more than the limit, unless
 * cltrain.resume_check.action is warn. Collective. */
clt_status clt_run_check_resume(clt_run *r);
/* After the first step, when the kernel variants are known: if they differ from the writer's, logs them
 * (event "variants") and with numerics fast prints them. */
void clt_run_compare_variants(clt_run *r);

/* --- clt_resume.c: loading and saving checkpoints --- */

/* Decides where the run starts (autoresume: save_folder, then the mirror; load_path, initial weights), and on
 * resume takes position, seed, lanes and data order from the checkpoint. Call it before the engine exists.
 * Sets origin.path, resumed, autoresumed. */
clt_status clt_run_find_start(clt_run *r);
/* Fills the engine's slabs. resume: the whole state; otherwise only the weights. own: a checkpoint of this
 * run, which must be complete; otherwise load_ignore_keys and load_strict_model_weights apply, and weights
 * that they leave out have their initial values. */
clt_status clt_run_load(clt_run *r, const char *path, bool resume, bool own);
/* Saves the state of the last finished step and waits. A failure sets r->saves.failed; training continues. */
void clt_run_save(clt_run *r);
/* The same in two parts: training may continue after begin; finish waits and reports the result
 * (r->saves.newest). begin first finishes a save in progress; it returns the same status on every rank. poll
 * calls finish if no rank would have to wait; collective. */
clt_status clt_run_save_begin(clt_run *r);
clt_status clt_run_save_poll(clt_run *r);
void clt_run_save_finish(clt_run *r);
/* Before the run ends: waits for a save in progress, then saves the last finished step if it is not saved
 * yet. CLT_AGAIN without a save if the replicas differ. Collective. */
clt_status clt_run_save_last(clt_run *r);
clt_status clt_run_create_writer(clt_run *r);

/* --- clt_run_stop.c --- */

/* Takes the earliest end time of cltrain.stop_before, CLTRAIN_STOP_BEFORE and the job scheduler, and requests
 * a stop (clt_signal_at) in time before it. */
clt_status clt_run_time_open(clt_run *r);
/* clt_run_time_step records the duration of a step. clt_run_time_look, before each step, requests a stop if
 * the time is too short for another step and a save. */
void clt_run_time_step(clt_run *r, double seconds);
void clt_run_time_look(clt_run *r);
/* After a request to stop, on all ranks: saves the last finished step and prints how to resume. CLT_AGAIN, or
 * without a save CLT_INTERRUPTED or CLT_TERMINATED. Collective. */
clt_status clt_run_stop(clt_run *r);
/* For a run that ended with st: after a request to stop (CLT_STOPPED) as clt_run_stop. If a batch could not
 * be read (r->no_data), saves the last finished step, prints what to do, and returns st. Otherwise returns st
 * and does nothing. Collective. */
clt_status clt_run_ended(clt_run *r, clt_status st);
/* Takes the agreed status of reading a batch, sets r->no_data and returns the status. */
clt_status clt_run_note_data(clt_run *r, clt_status st);

/* --- clt_run_guard.c: reactions of a run to its guards (cltrain.guards) --- */

/* Each finding is reported once, on the console and as an event in metrics.jsonl. The functions are
 * collective unless their comment says otherwise.
 *
 * Whether every step must be collected before the next one is queued. Not collective. */
bool clt_run_guard_each_step(const clt_config *c);
/* create, before anything is loaded: collects the ranks' host names. begin, after the state was loaded:
 * compares the replicas for the first time, which also builds the hash kernel. */
clt_status clt_run_guard_create(clt_run *r);
clt_status clt_run_guard_begin(clt_run *r);
void clt_run_guard_destroy(clt_run *r);
/* Handles the result of a step. CLT_OK: continue; *left_out: the step was skipped and changed nothing.
 * Otherwise the run ends, and the reason is printed. */
clt_status clt_run_guard_step(clt_run *r, const clt_run_step *q, const clt_engine_result *res,
                              bool *left_out);
/* Whether the replicas must be compared after this batch. Not collective. */
bool clt_run_replicas_due(const clt_run *r);
/* Compares them now; every step must be collected. CLT_AGAIN: they differ, the message names the ranks, and
 * this state must not be saved. */
clt_status clt_run_check_replicas(clt_run *r);
/* own_time: microseconds of this rank's own work since the last exchange; -1 if something other than a step
 * happened. own_times: takes the times of all ranks and warns about a rank that delays the others. Not
 * collective. */
int64_t clt_run_own_time(clt_run *r);
void clt_run_own_times(clt_run *r, const int64_t *microseconds);

/* --- clt_run_state.c: the named numbers of a checkpoint; effective training time --- */

/* The numbers to save: loss scale, windows and counts of the guards, times, the hop, losses for the resume
 * check (clt_run_check_numbers, so collective). The caller frees *numbers and *names, which owns the strings.
 */
int clt_run_numbers(clt_run *r, clt_ckpt_number **numbers, clt_strv *names);
/* Takes them from a checkpoint. */
void clt_run_take_numbers(clt_run *r, const clt_checkpoint_state *s);
/* clt_run_fp8.c: those of amp_fp8: their largest count, and they themselves (names: their strings). take:
 * sets the engine's state to what `numbers` say, or to that of a new run; keep: remembers a checkpoint's in
 * r->origin until the engine exists; forget: frees these. */
int clt_run_fp8_most(clt_run *r);
int clt_run_fp8_numbers(clt_run *r, clt_ckpt_number *out, clt_strv *names);
clt_status clt_run_fp8_take(clt_run *r, const clt_ckpt_number *numbers, int n);
void clt_run_fp8_keep(clt_run *r, const clt_checkpoint_state *s);
void clt_run_fp8_forget(clt_run *r);
/* The loss scale to resume with (clt_loss_scale_resume), or the first one if none was saved. */
clt_loss_scale clt_run_scale_of(const clt_config *c, const clt_checkpoint_state *s);
/* Seconds spent in the steps that led to a checkpoint. */
double clt_run_useful_of(const clt_checkpoint_state *s);
/* Writes the event "start" to metrics.jsonl and determines when the run's first process started: from the
 * checkpoint, else from metrics.jsonl. */
void clt_run_note_start(clt_run *r);
/* Whether a resumed run must first repeat an evaluation that was due at its start position and that
 * metrics.jsonl shows was not completed. `every` is the evaluation interval. Collective. */
clt_status clt_run_owes_eval(clt_run *r, clt_time every, bool *owes);
/* Counts a step that became part of the state, with its duration. */
void clt_run_count_step(clt_run *r, double seconds);
/* At the end of this process: reports the effective training time on the console and as the event "end".
 * `why`: "done", "stopped". */
void clt_run_note_end(clt_run *r, const char *why);

/* --- clt_run_early.c: callbacks.early_stopper --- */

/* Takes the result of an evaluation. */
void clt_run_early_look(clt_run *r, const clt_eval_row *row);
/* Whether the run has ended early, checked before each step. */
bool clt_run_early_over(clt_run *r);

/* --- clt_run_icl.c: icl_tasks --- */

/* Opens tokenizer, tasks and, if one generates text, a model for that; needs the engine. close: before the
 * engine is destroyed. */
clt_status clt_run_icl_open(clt_run *r);
void clt_run_icl_close(clt_run *r);
/* Evaluates all tasks and eval_gauntlet. json: prints a document per set of items. CLT_STOPPED: a stop is
 * requested. Collective. */
clt_status clt_run_icl_eval(clt_run *r, bool json);

/* --- clt_evaluator.c --- */

/* Whether the configuration has anything to evaluate. */
bool clt_run_evaluates(const clt_config *c);
/* Evaluates all eval loaders and tasks at r->progress.now. json: also prints JSON lines to stdout. If a stop
 * is requested, returns CLT_OK early; the caller checks clt_group_stop. */
clt_status clt_run_eval(clt_run *r, bool json);

/* clt_run_predictions.c: after an evaluation of a training run whose model classifies pictures: writes
 * predictions.json into the run's folder, for cltrain report: some pictures of the first eval loader, spread
 * evenly over its samples, with label and prediction. They do not depend on the ranks. A file that cannot be
 * written costs a warning. CLT_STOPPED: a stop is requested. Collective. */
clt_status clt_run_predictions(clt_run *r);

/* Evaluates one of them. CLT_STOPPED, without a result: a stop is requested. */
clt_status clt_run_eval_loader(clt_run *r, int index, clt_eval_row *row);

/* Evaluates samples [first, first + samples) of an epoch and adds to *sums. Does nothing if a stop is
 * requested, unless `anyway`. */
clt_status clt_run_eval_batch(clt_run *r, clt_loader *l, int64_t epoch, int64_t first, int64_t samples,
                              bool anyway, clt_engine_sums *sums);

#endif
