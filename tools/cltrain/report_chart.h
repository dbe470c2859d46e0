/* report_chart: line charts as SVG text, for the report. */
#ifndef CLTRAIN_REPORT_CHART_H
#define CLTRAIN_REPORT_CHART_H

#include "runtime/base/clt_base.h"

typedef struct {
    const char *label, *color;
    const double *x, *y; /* NaN in y: a gap */
    size_t n;
    bool dots; /* points instead of a line */
} chart_series;

/* Appends one chart with axes, grid and a legend. Both axes are linear; log_y for rates of change over
 * decades. */
void chart_add(clt_str *out, const char *title, const char *x_label, const chart_series *series, size_t n,
               bool log_y);

#endif
