/* report_curves: the curves of a run, in the report three times: over batches, tokens and time. */
#ifndef CLTRAIN_REPORT_CURVES_H
#define CLTRAIN_REPORT_CURVES_H

#include "tools/cltrain/report_compare.h"

/* The CSS rules of the switch between the axes, which needs no script. */
extern const char curves_style[];

/* Appends the switch and the curves of the first run, with the losses of all `n` runs in one chart before
 * them if there are several. */
void curves_add(clt_str *out, const compared_run *run, int n);

/* Whether this is the only, unlabelled evaluation data set of a run. */
bool curves_is_plain(const eval_columns *e);

#endif
