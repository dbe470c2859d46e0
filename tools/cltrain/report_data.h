/* report_data: reads metrics.jsonl of a run as columns of numbers and a list of events, for `cltrain report`,
 * `cltrain top` and `cltrain plan`. */
#ifndef CLTRAIN_REPORT_DATA_H
#define CLTRAIN_REPORT_DATA_H

#include "runtime/base/clt_base.h"

/* RATE and COUNT are in the run's unit: tokens_per_sec and token, or samples_per_sec and sample. ACCURACY and
 * ACCURACY5 (of the five most likely classes) are of evaluations. */
enum {
    LOSS,
    LR,
    GRAD_NORM,
    SECONDS,
    RATE,
    MFU,
    MEMORY,
    EPOCH,
    COUNT,
    DATA_STALL,
    ACCURACY,
    ACCURACY5,
    FIELDS
};

/* A growing table: column 0 is the batch, column LOSS + 1 the loss, and so on; NaN: missing. */
typedef struct {
    double *v[FIELDS + 1];
    size_t n, cap;
} columns;

/* The rows of one evaluation data set; only the batch, the loss and the accuracies are used. */
typedef struct {
    char *label; /* "eval" if the data set has no label */
    columns rows;
} eval_columns;

typedef struct {
    char *name, *json; /* json: the whole row, as it was written */
    double batch;
} run_event;

typedef struct {
    columns train;
    eval_columns *eval; /* in the order of their first rows */
    size_t evals;
    run_event *event; /* in the order of the file */
    size_t events;
    double ettr; /* of the newest event "end"; 0: none */
    int starts, saves, ranks;
    char unit[16];    /* what the run counts: "token", or what its newest start says ("image") */
    double stall;     /* seconds that training waited for saves, sum */
    size_t bad_lines; /* lines that are not JSON objects, skipped */
    uint64_t offset;  /* bytes of the file that were read */
} metrics;

/* Reads FOLDER/metrics.jsonl into *m, which must be zero. Skips and counts incomplete lines. CLT_BAD_DATA if
 * it has no rows. Call metrics_free in any case. */
clt_status metrics_read(const char *folder, metrics *m);
/* Adds the lines that were appended to `path` since the last call; the last one only when it has its newline.
 * A file that became shorter is read from its beginning. */
clt_status metrics_follow(const char *path, metrics *m);
void metrics_free(metrics *m);

/* Each training row's x value: the batch, the units so far, or the seconds in training steps so far. The
 * caller frees it. Evaluations and events have a batch only: metrics_x_at gives their x. */
typedef enum { X_BATCH, X_UNITS, X_SECONDS, X_AXES } x_axis; /* in the order of chart_x */
double *metrics_x(const metrics *m, x_axis axis);
/* The caller frees it. */
char *metrics_x_label(const metrics *m, x_axis axis);
/* The run's unit, with a plural s if `plural`; "token" also for a zeroed *m. The caller frees it. */
char *metrics_unit(const metrics *m, bool plural);
/* x at a batch: that of the last training row up to it, x being of metrics_x; 0 before the first one. */
double metrics_x_at(const metrics *m, const double *x, double batch);

/* The median of a field over the newest training rows; NaN if it has no values. */
double metrics_median(const metrics *m, int field);

/* The best save interval in seconds if training waits `stall` seconds for a checkpoint and the mean time
 * between failures is `mttf` seconds: Young's formula (docs/guards.md). */
double young_interval(double mttf, double stall);

#endif
