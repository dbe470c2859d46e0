/* report_data: reads metrics.jsonl of a run as columns of numbers and a table of events, for `cltrain report`
 * and `cltrain plan`. */
#ifndef CLTRAIN_REPORT_DATA_H
#define CLTRAIN_REPORT_DATA_H

#include "runtime/base/clt_base.h"

enum { LOSS, LR, GRAD_NORM, SECONDS, RATE, MFU, MEMORY, FIELDS };

/* A growing table: column 0 is the batch, column LOSS + 1 the loss, and so on; NaN: missing. */
typedef struct {
    double *v[FIELDS + 1];
    size_t n, cap;
} columns;

/* The rows of one evaluation data set; only column 0 and column LOSS + 1 are used. */
typedef struct {
    char *label; /* "eval" if the data set has no label */
    columns rows;
} eval_columns;

typedef struct {
    columns train;
    eval_columns *eval; /* in the order of their first rows */
    size_t evals;
    clt_str events; /* rows of an HTML table */
    double ettr;    /* of the newest event "end"; 0: none */
    int starts, saves;
    double stall;     /* seconds that training waited for saves, sum */
    size_t bad_lines; /* incomplete lines, skipped */
} metrics;

/* Reads FOLDER/metrics.jsonl into *m, which must be zero. Skips and counts incomplete lines. CLT_BAD_DATA if
 * it has no rows. Call metrics_free in any case. */
clt_status metrics_read(const char *folder, metrics *m);
void metrics_free(metrics *m);

/* The median of a field over the newest training rows; NaN if it has no values. */
double metrics_median(const metrics *m, int field);

/* The best save interval in seconds if training waits `stall` seconds for a checkpoint and the mean time
 * between failures is `mttf` seconds: Young's formula (docs/guards.md). */
double young_interval(double mttf, double stall);

#endif
