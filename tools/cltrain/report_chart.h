/* report_chart: line charts as SVG text for the report, and escaping of text for HTML and SVG. */
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

/* Appends n bytes of s, escaped for HTML and SVG. */
void html_text(clt_str *out, const char *s, size_t n);

/* The CSS rules of the charts' classes. */
extern const char chart_style[];

/* Appends a chart with axes, grid and legend. The x axis is linear; log_y makes the y axis logarithmic. */
void chart_add(clt_str *out, const char *title, const char *x_label, const chart_series *series, size_t n,
               bool log_y);

#endif
