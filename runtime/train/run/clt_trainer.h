/* clt_trainer: a whole run from a configuration: device, data, model, checkpoints, loop, evaluation, logs. It
 * implements `cltrain train` and `cltrain eval`; the tools only parse the command line.
 *
 * Semantics are those of MosaicML Composer: time strings and the timestamp, token-weighted accumulation over
 * microbatches, schedules that lag one step, evaluation and checkpoint intervals, automatic resumption. */
#ifndef CLT_TRAINER_H
#define CLT_TRAINER_H

#include "runtime/train/config/clt_config.h"
#include "runtime/train/sink/clt_sink.h"

/* The accuracy of an in-context-learning task in an evaluation. */
typedef struct {
    const char *model, *benchmark;
    const char *category; /* of eval_gauntlet; "": none */
    const char *subtask;  /* the items' category; NULL: the task has none */
    int64_t shots;
    double accuracy;
} clt_eval_accuracy;

/* What `cltrain eval` makes of results beside the lines of eval loaders. */
typedef struct {
    bool json;  /* print a JSON document per set of items to stdout */
    bool items; /* with the items; one rank only */
    /* Called on rank 0; may be NULL. score: of eval_gauntlet. */
    void (*accuracy)(void *ctx, const clt_eval_accuracy *row);
    void (*score)(void *ctx, const char *model, const char *name, double value);
    void *ctx;
} clt_eval_report;

typedef struct {
    const clt_eval_report *eval; /* clt_evaluate; NULL: JSON without items */
    const char *device;          /* --device; overrides the configuration's. NULL: not given */
    bool profile;                /* print the device time of each kernel at the end */
    /* Folder for the launches of steps record_first to record_last (clt_record.h); NULL: none. Steps count
     * from 1; 0, 0: the first step of this process. */
    const char *record;
    int64_t record_first, record_last;
    /* File for the times of host and kernels on all ranks during steps trace_first to trace_last
     * (clt_trace.h); NULL: none. 0, 0: the third to the fifth step of this process. */
    const char *trace;
    int64_t trace_first, trace_last;
    const char *log_samples; /* folder for files with the samples of each batch; NULL: none */
    double started;          /* clt_now() at program start, for the start-up time */
    /* Train this long, save and return CLT_AGAIN; 0: until max_duration. In a hop an interrupted leg is
     * completed (clt_run_leg.h). */
    clt_time stop_after;
    clt_row_fn row; /* receives every row of metrics.jsonl (rank 0); NULL: none */
    void *row_ctx;
} clt_run_options;

typedef struct clt_run clt_run; /* clt_run.h */

/* Trains until max_duration. CLT_OK: done. CLT_AGAIN: stopped early after a save (or before the first step).
 * CLT_INTERRUPTED or CLT_TERMINATED: stopped without a save. CLT_IO: trained, but the last save failed. */
clt_status clt_train(const clt_config *cfg, const clt_run_options *opt);

/* Loads load_path and evaluates every eval loader and task; prints one JSON line per loader and, if asked to,
 * per task to stdout. */
clt_status clt_evaluate(const clt_config *cfg, const clt_run_options *opt);

#endif
