/* clt_trainer: a whole run from a configuration: device, data, model, checkpoints, the loop, evaluation,
 * logs. What `cltrain train` and `cltrain eval` do; the tools only parse the command line.
 *
 * Composer's semantics: time strings and the timestamp, token-weighted accumulation over any microbatch,
 * schedules that lag one step, evaluation and checkpoint intervals, automatic resumption. */
#ifndef CLT_TRAINER_H
#define CLT_TRAINER_H

#include "runtime/train/config/clt_config.h"

/* Gets a row of metrics.jsonl: the text of one JSON object. */
typedef void (*clt_row_fn)(void *ctx, const char *json);

typedef struct {
    const char *device; /* --device, over the configuration's; NULL: not given */
    bool profile;       /* print device time by kernel at the end */
    const char *record; /* write the launches of some steps to this folder (clt_record.h); NULL: none */
    int64_t record_first, record_last; /* optimizer steps, from 1; 0, 0: the first step of this run */
    const char
        *trace; /* write times of host and kernels during some steps to this file (clt_trace.h); NULL: none */
    int64_t trace_first, trace_last; /* optimizer steps, from 1; 0, 0: the third to the fifth of this run */
    const char *log_samples;         /* append the samples of each batch to files in this folder; NULL: no */
    double started;                  /* clt_now() at program start, for the start-up time */
    clt_time stop_after; /* train this long, save and return CLT_AGAIN; 0: until max_duration. In a hop the
                            leg that a checkpoint was written in goes on: clt_run_leg.h */
    clt_row_fn row;      /* gets every row of metrics.jsonl (rank 0); NULL: nobody */
    void *row_ctx;
} clt_run_options;

typedef struct clt_run clt_run; /* clt_run.h */

/* Trains until max_duration. CLT_OK: done. CLT_AGAIN: stopped by a signal after a save. CLT_INTERRUPTED or
 * CLT_TERMINATED: stopped without one. CLT_IO at the end if the last save failed. */
clt_status clt_train(const clt_config *cfg, const clt_run_options *opt);

/* Loads load_path and evaluates on every eval loader; prints one JSON line a loader to stdout. */
clt_status clt_evaluate(const clt_config *cfg, const clt_run_options *opt);

#endif
