/* report_compare: compares the losses of several runs for the report, for example of the same run on another
 * device, in another precision, or with hops. */
#ifndef CLTRAIN_REPORT_COMPARE_H
#define CLTRAIN_REPORT_COMPARE_H

#include "tools/cltrain/report_data.h"

enum { COMPARE_MOST = 5 };

typedef struct {
    const char *name; /* the folder as given */
    metrics m;
} compared_run;

/* Appends the chart of each run's loss minus the first run's, and a table with the number of common batches,
 * the largest difference and its batch, and the mean difference of all batches and of the last tenth. n: 2 to
 * COMPARE_MOST. */
void compare_add(clt_str *out, const compared_run *run, int n);
/* Appends the chart of the training losses. n: 1 to COMPARE_MOST. */
void compare_losses(clt_str *out, const compared_run *run, int n, x_axis axis);

#endif
