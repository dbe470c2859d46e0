/* report_chart: line charts as SVG text, for the report, and what text needs to be part of it. */
#ifndef CLTRAIN_REPORT_CHART_H
#define CLTRAIN_REPORT_CHART_H

#include "runtime/base/clt_base.h"

enum { CHART_WIDTH = 760, CHART_HEIGHT = 260 };

typedef struct {
    const char *label, *color;
    const double *x, *y; /* NaN in y: a gap */
    size_t n;
    bool dots; /* points instead of a line */
} chart_series;

/* Appends n bytes of s as text of an HTML or SVG file. */
void html_text(clt_str *out, const char *s, size_t n);

/* The rules of a style sheet that the charts' classes need. */
extern const char chart_style[];

/* Appends one chart with axes, grid and a legend. Both axes are linear; log_y for rates of change over
 * decades. */
void chart_add(clt_str *out, const char *title, const char *x_label, const chart_series *series, size_t n,
               bool log_y);

#endif
