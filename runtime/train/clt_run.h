/* clt_run: the parts of a run on this rank, opened in order and closed in reverse: group, device, operations,
 * data, engine, sinks. Shared by training and evaluation; not for other folders. */
#ifndef CLT_RUN_H
#define CLT_RUN_H

#include "../data/clt_loader.h"
#include "clt_engine.h"
#include "clt_run_leg.h"
#include "clt_sink.h"
#include "clt_trace.h"
#include "clt_trainer.h"

enum { CLT_RUN_AHEAD = 2 }; /* steps that may be queued */

/* A step that was queued and not looked at yet. */
typedef struct {
    clt_timestamp before, after;
    double lr;
    int64_t tokens, step;
    clt_engine_batch batch;
    int32_t *arrays; /* what batch points into while steps are queued ahead */
} clt_run_step;

/* A checkpoint that is being written while training goes on. */
typedef struct {
    bool active;
    char *name;
    int64_t batch;
    double start;
} clt_run_saving;

/* When a run must have stopped, and what it has measured for that; seconds. */
typedef struct {
    double end;       /* since 1970; 0: never */
    const char *from; /* who says so */
    double slack;     /* what is left over on purpose */
    double step, save;
} clt_run_time;

typedef struct {
    clt_config *cfg; /* a copy whose exact_lanes, seed and data-set state may come from a checkpoint */
    const clt_run_options *opt;
    clt_group *group;
    clt_device *dev;
    clt_ops *ops;
    clt_loader *train;
    clt_loader **evals;
    clt_engine *engine;
    clt_sinks *sinks;
    clt_run_memory memory;
    char *folder; /* the run's folder */
    FILE *log;
    clt_run_lock *lock;
    clt_ckpt_writer *writer;
    char run_id[CLT_RUN_ID_BYTES];

    clt_timestamp now;
    int64_t optimizer_step, first_step; /* the last one done; the first one of this process */
    int64_t batches_per_epoch;
    clt_time max; /* max_duration in what a timestamp counts */
    clt_schedule schedule;
    bool ahead;                         /* steps are queued before the one before was looked at */
    clt_run_step queued[CLT_RUN_AHEAD]; /* oldest first; `now` is the time after the last of them */
    int n_queued;
    double mark;      /* clt_now() when the last step was collected, or the first one queued */
    clt_trace *trace; /* while one is made, up to step trace_last */
    int64_t trace_last;
    clt_loss_scale scale; /* where amp_fp16 starts */
    double eval_seconds, peak_flops, last_loss;
    clt_run_leg leg;
    int *lanes_per_rank; /* what cfg->lanes_per_rank points to, if it was measured */
    bool resumed;        /* the whole state came from a checkpoint */
    bool save_failed;
    clt_run_saving save;
    int64_t saved; /* batch of the newest checkpoint that is whole, -1: none */
    int64_t start_batch;
    clt_run_time stop;
} clt_run;

/* Group, device (checked for the numerics asked for) and operations. */
clt_status clt_run_open(clt_run *r, const clt_config *cfg, const clt_run_options *opt);
void clt_run_close(clt_run *r);

clt_status clt_run_open_loader(clt_run *r, const clt_loader_config *l, bool eval, int64_t max_rows,
                               clt_loader **out);

/* --- clt_run_split.c: who owns how many lanes
 * ------------------------------------------------------------------------------ */

/* Before the engine, once a microbatch was chosen for an even division: where ranks have different devices
 * and the configuration does not say, lanes are given out by measured speed (r->cfg->lanes_per_rank).
 * Collective. */
clt_status clt_run_divide_lanes(clt_run *r);
/* "\"lanes\":[6,2]" for an event; the caller frees it. */
char *clt_run_lanes_text(const clt_run *r);

/* --- clt_resume.c: state from and to checkpoints
 * ------------------------------------------------------------------ */

/* Decides where the run starts (autoresume, load_path, initial weights) and reads what shapes it: seed,
 * lanes, data order. Before the engine exists. *path (the caller frees) is NULL for a fresh start; *resume
 * tells whether the whole state is taken or the weights only. */
clt_status clt_run_find_start(clt_run *r, char **path, bool *resume);
/* Fills the engine's slabs. */
clt_status clt_run_load(clt_run *r, const char *path, bool resume);
/* Saves the state of the last finished step; a failure is remembered in r->save_failed and training goes on.
 */
void clt_run_save(clt_run *r);
/* The same in two parts: after begin training may go on, finish waits and tells what came of it (r->saved).
 * begin finishes one that is under way; its status is every rank's. poll finishes it once no rank would wait:
 * collective. */
clt_status clt_run_save_begin(clt_run *r);
clt_status clt_run_save_poll(clt_run *r);
void clt_run_save_finish(clt_run *r);
clt_status clt_run_create_writer(clt_run *r);

/* --- clt_run_stop.c
 * ----------------------------------------------------------------------------------------------- */

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

/* --- clt_evaluator.c
 * --------------------------------------------------------------------------------------------- */

/* All eval loaders, at r->now. json: also one line a loader on stdout. Breaks off, without a result, once
 * clt_group_stop says that the run is to stop. */
clt_status clt_run_eval(clt_run *r, bool json);

#endif
