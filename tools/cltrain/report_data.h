/* report_data: what `cltrain report` and `plan` read of a run: metrics.jsonl as columns of numbers and a
 * table of events. */
#ifndef CLTRAIN_REPORT_DATA_H
#define CLTRAIN_REPORT_DATA_H

#include "runtime/base/clt_base.h"

enum { LOSS, LR, GRAD_NORM, SECONDS, RATE, MFU, MEMORY, FIELDS };

/* A growing table of doubles: column 0 is the batch, column LOSS + 1 the loss, and so on; NaN: not there. */
typedef struct {
    double *v[FIELDS + 1];
    size_t n, cap;
} columns;

/* The rows of one evaluation data set: only the batch and column LOSS + 1. */
typedef struct {
    char *label; /* "eval" for one that is alone */
    columns rows;
} eval_columns;

typedef struct {
    columns train;
    eval_columns *eval; /* in the order in which they come first */
    size_t evals;
    clt_str events; /* table rows */
    double ettr;    /* of the newest end; 0: the run has not ended yet */
    int starts, saves;
    double stall; /* seconds that training waited for all `saves` */
    size_t bad_lines;
} metrics;

/* Reads FOLDER/metrics.jsonl; lines that a kill has cut are counted. CLT_BAD_DATA if there is no row. *m is
 * zero before, and to be freed in any case. */
clt_status metrics_read(const char *folder, metrics *m);
void metrics_free(metrics *m);

/* Of a field of the newest training rows; NaN: there is none. */
double metrics_median(const metrics *m, int field);

/* How often to save, in seconds, where a checkpoint keeps training waiting for `stall` seconds and failures
 * come every `mttf` seconds on average: Young's formula (docs/guards.md). */
double young_interval(double mttf, double stall);

#endif
