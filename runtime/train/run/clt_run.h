/* clt_run: a run on this rank: what it is made of, grouped by what it is for, and the parts of it that the
 * files of this folder implement. Shared by training, evaluation and the library; not for other folders.
 *
 * A run is opened by a list of named phases (clt_run_start.c), trains in a loop (clt_run_loop.c) whose steps
 * are queued and collected (clt_run_step.c), and is closed in reverse order (clt_run.c). */
#ifndef CLT_RUN_H
#define CLT_RUN_H

#include "runtime/data/clt_loader.h"
#include "runtime/train/engine/clt_engine.h"
#include "runtime/train/run/clt_guard.h"
#include "runtime/train/run/clt_run_leg.h"
#include "runtime/train/run/clt_sink.h"
#include "runtime/train/run/clt_trace.h"
#include "runtime/train/run/clt_trainer.h"

enum {
    CLT_RUN_AHEAD = 2,  /* steps that may be queued */
    CLT_RUN_CHECKS = 8, /* batches that are evaluated again at most */
    CLT_HOST_BYTES = 64
};

/* --- state, by what it is for --- */

/* The run's folder, and what is written there while it runs. */
typedef struct {
    char *folder;
    clt_file *log;
    clt_run_lock *lock;
    char run_id[CLT_RUN_ID_BYTES];
    clt_file *samples; /* train --log-samples */
} clt_run_files;

/* What is done so far, and what decides when something is due. */
typedef struct {
    clt_timestamp now;
    int64_t optimizer_step, first_step; /* the last one done; the first one of this process */
    int64_t last_samples, last_tokens;  /* of the batch before `now` */
    int64_t start_batch;
    bool begun;        /* the first step was asked for */
    int64_t evaluated; /* batch that was evaluated last, -1: none */
    double loss;       /* of the last finished step; NaN: none */
    int64_t batches_per_epoch;
    clt_schedule schedule;
    clt_time eval_every, save_every; /* resolved */
} clt_run_progress;

/* A step that was queued and not looked at yet. */
typedef struct {
    clt_timestamp before, after;
    double lr;
    int64_t tokens, step;
    clt_batch batch;
    void *arrays; /* what batch points into while steps are queued ahead */
} clt_run_step;

/* Steps under way. */
typedef struct {
    bool ahead;                       /* steps are queued before the one before was looked at */
    clt_run_step step[CLT_RUN_AHEAD]; /* oldest first; progress.now is the time after the last of them */
    int n;
    double mark; /* clt_now() when the last step was collected, or the first one queued */
} clt_run_queue;

/* Speed. */
typedef struct {
    double eval_seconds, step_seconds;
    double peak_flops;
    bool matrix_peak; /* peak_flops is of matrix units */
    struct {
        double flops, seconds;
        int steps;
    } worked; /* since peak_flops was looked at */
} clt_run_pace;

/* Who trains, or has written a checkpoint. Texts are owned; variants and config may be NULL. */
typedef struct {
    char *device, *driver, *version, *numerics, *variants;
    char *config; /* the writer's, as text */
    int64_t ranks;
    int checks; /* losses that the checkpoint has, of batches of check_samples samples */
    int64_t check_samples;
    double loss[CLT_RUN_CHECKS];
} clt_run_place;

/* Where the run came from. */
typedef struct {
    clt_run_place here, writer; /* this job; who wrote the checkpoint that it resumes from */
    char *path;                 /* what it starts from, NULL: initial weights */
    bool resumed;               /* the whole state comes from a checkpoint */
    bool autoresumed;           /* the start was found in save_folder, not named by load_path */
    clt_loss_scale scale;       /* where amp_fp16 starts */
} clt_run_origin;

/* A checkpoint that is being written while training goes on. */
typedef struct {
    bool active;
    char *name;
    int64_t batch;
    double start, stall; /* stall: seconds that training has waited for it */
} clt_run_saving;

/* Checkpoints that this run writes. */
typedef struct {
    clt_ckpt_writer *writer; /* NULL: it writes none */
    clt_run_saving pending;
    int64_t newest; /* batch of the newest checkpoint that is whole, -1: none */
    int64_t failures;
    bool failed; /* the last one */
} clt_run_saves;

/* When a run must have stopped, and what it has measured for that; seconds. */
typedef struct {
    double end;       /* since 1970; 0: never */
    const char *from; /* who says so */
    double slack;     /* what is left over on purpose */
    double step, save;
    bool begun;
} clt_run_time;

/* Effective training time. */
typedef struct {
    double first_start;    /* seconds since 1970: of the run, in whichever process */
    double useful_seconds; /* of the steps that are part of the state */
    double first_seconds;  /* of the first step of this process */
    int64_t steps_counted; /* by clt_run_count_step */
} clt_run_effective;

/* train --trace and --record. */
typedef struct {
    bool on;            /* up to step `last`, on all ranks */
    bool met, recorded; /* a step of what was asked for was met */
    int64_t last;
    clt_trace *trace; /* rank 0's */
} clt_run_tracing;

/* State of a run's guards. What decides about updates is part of a checkpoint: the windows, the consecutive
 * bad steps, the roll-backs. So a resumed run skips the steps that one that never stopped skips. */
typedef struct {
    clt_spike loss, norm;
    double loss_z, norm_z; /* of the last step that was looked at; NaN: there is none */
    int64_t bad_in_a_row, left_out, rollbacks;
    int64_t equal_at; /* batch at which the replicas were equal last */
    clt_straggler straggler;
    double exchanged, waited; /* clt_now() and clt_group_waited() at the last exchange */
    double seconds;           /* that comparing replicas and looking at steps took in this process */
    bool disturbed;           /* something else than a step happened since then */
    char *hosts;              /* [ranks][CLT_HOST_BYTES] */
    struct {                  /* tests: $CLTRAIN_INJECT */
        int64_t flip_rank, flip_batch, flip_bit, nan_first, nan_last;
    } inject;
} clt_run_guards;

struct clt_run {
    const clt_config *cfg; /* borrowed, as opt is */
    const clt_run_options *opt;
    clt_group *group;
    clt_device *dev;
    clt_ops *ops;
    clt_plan plan;
    clt_loader *train;
    clt_loader **evals;
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
    clt_run_guards guards;
};

/* --- clt_run.c: opening and closing what training and evaluation share --- */

/* Joins the ranks. What is set before: cfg and opt. */
clt_status clt_run_join(clt_run *r);
/* The device, checked for the numerics asked for; then the operations on it. */
clt_status clt_run_open_device(clt_run *r);
clt_status clt_run_open_ops(clt_run *r);
/* Closes everything that is open, in reverse order. */
void clt_run_close(clt_run *r);

/* Whether a position inside an epoch leaves no batch of it. Samples decide, not a count of batches: the run
 * may have come here with another batch size. */
bool clt_run_epoch_over(const clt_run *r, int64_t sample_in_epoch, int64_t batch_in_epoch);

clt_status clt_run_open_loader(clt_run *r, const clt_loader_config *l, bool eval, int64_t max_rows,
                               clt_loader **out);

/* --- clt_run_split.c: who owns how many lanes --- */

/* Before the engine, once a microbatch was chosen for an even division: where ranks have different devices
 * and the configuration does not say, lanes are given out by measured speed (r->plan). *divided: they were.
 * Collective. */
clt_status clt_run_divide_lanes(clt_run *r, bool *divided);
/* "\"lanes\":[6,2]" for an event; the caller frees it. */
char *clt_run_lanes_text(const clt_run *r);

/* --- clt_run_samples.c: train --log-samples --- */

/* Appends the batch that comes next, of which b has this rank's samples. */
clt_status clt_run_log_samples(clt_run *r, const clt_batch *b);

/* --- clt_run_start.c, clt_run_step.c, clt_run_loop.c --- */

/* All phases of a start, until the first step can be queued. CLT_STOPPED: a signal came. */
clt_status clt_run_start(clt_run *r);

/* Queues the step that is next and moves the clock, unless the step is given up: then progress.now stays, and
 * the next exchange says why. Earlier steps are waited for only as far as the engine's queue asks for it. */
clt_status clt_run_next_step(clt_run *r);
/* Waits for all queued steps: before anything that looks at the weights. */
clt_status clt_run_collect_all(clt_run *r);

/* Trains until max_duration, the end of the leg, or `steps` more steps (0: no limit). CLT_OK: max_duration or
 * the limit is reached (*done says which: true for max_duration), every step collected. CLT_AGAIN and the
 * like as clt_train. */
clt_status clt_run_loop(clt_run *r, int64_t steps, bool *done);
/* After max_duration: the last evaluation and the last save. */
clt_status clt_run_finish(clt_run *r);

/* --- clt_run_tracing.c: train --trace, --record and --profile --- */

/* Before and after step s is queued. */
clt_status clt_run_record_begin(clt_run *r, int64_t s, bool *recording);
clt_status clt_run_trace_begin(clt_run *r, int64_t s);
clt_status clt_run_trace_end(clt_run *r);
/* At the end of the run: a trace that is not whole is written; what was asked for and not met is told.
 * Returns st, or why the trace could not be written. */
clt_status clt_run_tracing_end(clt_run *r, clt_status st);
void clt_run_print_profile(clt_run *r);

/* --- clt_run_check.c: who wrote a checkpoint, who goes on, and whether the losses come out again --- */

/* Fills r->origin.here. Collective. */
clt_status clt_run_describe(clt_run *r);
/* Fills r->origin.writer. */
void clt_run_remember_writer(clt_run *r, const clt_checkpoint_state *s);
void clt_run_place_free(clt_run_place *p);
/* Batches to evaluate for a checkpoint: cltrain.resume_check.batches. */
int clt_run_checks(const clt_config *c);
/* Evaluates them; the numbers for the manifest, how many. None when a signal has come and steps are slow.
 * Collective. */
int clt_run_check_numbers(clt_run *r, clt_ckpt_number out[1 + CLT_RUN_CHECKS]);
/* After a resumed state was loaded: prints and logs who wrote it and who goes on, and evaluates again what
 * the checkpoint has losses of. CLT_FAIL if they differ by more than the limit, unless told to warn.
 * Collective. */
clt_status clt_run_check_resume(clt_run *r);
/* After the first step, when this run's kernel variants are known: logs them (event "variants") if they are
 * not those of the writer, and with numerics fast prints them. */
void clt_run_compare_variants(clt_run *r);

/* --- clt_resume.c: state from and to checkpoints --- */

/* Decides where the run starts (autoresume, load_path, initial weights) and reads what shapes it: seed,
 * lanes, data order. Before the engine exists. Sets origin.path, resumed, autoresumed. */
clt_status clt_run_find_start(clt_run *r);
/* Fills the engine's slabs. resume: the whole state, not the weights only. own: one of this run's
 * checkpoints, taken whole; load_ignore_keys and load_strict_model_weights say how load_path is read. */
clt_status clt_run_load(clt_run *r, const char *path, bool resume, bool own);
/* Saves the state of the last finished step; a failure is remembered in r->saves.failed and training goes on.
 */
void clt_run_save(clt_run *r);
/* The same in two parts: after begin training may go on, finish waits and tells what came of it
 * (r->saves.newest). begin finishes one that is under way; its status is every rank's. poll finishes it once
 * no rank would wait: collective. */
clt_status clt_run_save_begin(clt_run *r);
clt_status clt_run_save_poll(clt_run *r);
void clt_run_save_finish(clt_run *r);
/* Before the run ends: waits for the save under way, and saves the last finished step if it is not there yet,
 * unless the replicas differ (CLT_AGAIN). Collective. */
clt_status clt_run_save_last(clt_run *r);
clt_status clt_run_create_writer(clt_run *r);

/* --- clt_run_stop.c --- */

/* The time that cltrain.stop_before, CLTRAIN_STOP_BEFORE or the scheduler gives, the earliest of them. Asks
 * to stop (clt_signal_at) early enough before it. */
clt_status clt_run_time_open(clt_run *r);
/* After a step of `seconds`, and before the next one: asks to stop if the time is too short for that step and
 * a save. */
void clt_run_time_step(clt_run *r, double seconds);
void clt_run_time_look(clt_run *r);
/* Something asks to stop, and all ranks have come here for it: saves the last finished step together and
 * tells how the run can go on. CLT_AGAIN, or without a save CLT_INTERRUPTED or CLT_TERMINATED. */
clt_status clt_run_stop(clt_run *r);

/* --- clt_run_guard.c: what a run does about what its guards see (cltrain.guards) --- */

/* Everything is said once, on the console and as an event in metrics.jsonl. Collective, unless said
 * otherwise.
 *
 * Whether a step has to be looked at before the next one is queued; not collective. */
bool clt_run_guard_each_step(const clt_config *c);
/* Before anything is loaded, and after the state is there: learns the ranks' hosts, builds the hash's kernel,
 * compares the replicas for the first time. */
clt_status clt_run_guard_create(clt_run *r);
clt_status clt_run_guard_begin(clt_run *r);
void clt_run_guard_destroy(clt_run *r);
/* What came of a step. CLT_OK: go on; *left_out: it has changed nothing. Otherwise the run ends and has said
 * why. */
clt_status clt_run_guard_step(clt_run *r, const clt_run_step *q, const clt_engine_result *res,
                              bool *left_out);
/* Whether the replicas are to be compared after this batch; not collective. */
bool clt_run_replicas_due(const clt_run *r);
/* Compares them now; every step must have been collected. CLT_AGAIN: they differ, the ranks were named, and
 * this state must not be saved. */
clt_status clt_run_check_replicas(clt_run *r);
/* Microseconds of this rank's own work since the last call, for the exchange of every step; -1 where that
 * says nothing about a step. Then everybody's: warns of a rank that holds the others up. Not collective. */
int64_t clt_run_own_time(clt_run *r);
void clt_run_own_times(clt_run *r, const int64_t *microseconds);

/* --- clt_run_state.c: what of a run is kept as named numbers in its checkpoints --- */

/* Loss scale, guards' windows and counts, times, the hop, losses to check a resume by (clt_run_check_numbers:
 * collective). The caller frees *numbers and the strings of *names. */
int clt_run_numbers(clt_run *r, clt_ckpt_number **numbers, clt_strv *names);
/* What a checkpoint has of them. */
void clt_run_take_numbers(clt_run *r, const clt_checkpoint_state *s);
/* The loss scale to go on with; the default's, where none was saved. */
clt_loss_scale clt_run_scale_of(const clt_checkpoint_state *s);
/* Seconds of the steps that led to a checkpoint. */
double clt_run_useful_of(const clt_checkpoint_state *s);
/* Notes in metrics.jsonl that this process starts, and finds out when the run's first one did: from the
 * checkpoint, else from metrics.jsonl. */
void clt_run_note_start(clt_run *r);
/* Whether a run that goes on has still to evaluate the state that it begins with: a signal or a kill came
 * before the end of an evaluation that was due there (every: how often), says metrics.jsonl. Collective. */
clt_status clt_run_owes_eval(clt_run *r, clt_time every, bool *owes);
/* A step that has become part of the state, and how long it took. */
void clt_run_count_step(clt_run *r, double seconds);
/* The end of this process: effective training time so far, on the console and as an event. `why`: "done",
 * "stopped". */
void clt_run_note_end(clt_run *r, const char *why);

/* --- clt_evaluator.c --- */

/* All eval loaders, at r->progress.now. json: also one line a loader on stdout. Breaks off, without a result,
 * once clt_group_stop says that the run is to stop. */
clt_status clt_run_eval(clt_run *r, bool json);

/* One of them. CLT_STOPPED, without a result: the run is to stop. */
clt_status clt_run_eval_loader(clt_run *r, int index, clt_eval_row *row);

/* `samples` samples from place `first` of an epoch on, added to *sums. Once clt_group_stop says that the run
 * is to stop it does nothing, unless `anyway`. */
clt_status clt_run_eval_batch(clt_run *r, clt_loader *l, int64_t epoch, int64_t first, int64_t samples,
                              bool anyway, clt_engine_sums *sums);

#endif
