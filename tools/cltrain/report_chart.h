/* report_chart: line charts as SVG text for the report, and escaping of text for HTML and SVG. */
#ifndef CLTRAIN_REPORT_CHART_H
#define CLTRAIN_REPORT_CHART_H

#include "runtime/base/clt_base.h"

enum { CHART_WIDTH = 760, CHART_HEIGHT = 260 };

typedef struct {
    const char *label, *color;
    const double *x, *y; /* NaN: a gap */
    size_t n;
    bool dots; /* points instead of a line */
} chart_series;

/* Something that happened at x: a vertical line with a name, or a small triangle at the axis. */
typedef struct {
    double x;
    const char *name, *text; /* text: shown under the pointer */
    bool small, bad;         /* a triangle; in red */
} chart_mark;

typedef enum {
    CHART_BATCHES,
    CHART_TOKENS,
    CHART_SECONDS
} chart_x; /* how numbers at the x axis are written */

typedef struct {
    const char *title, *x_label;
    const chart_series *series;
    size_t n;
    const chart_mark *marks;
    size_t n_marks;
    chart_x x;
    bool log_y; /* the x axis is always linear */
} chart;

/* Colours of series, which follow the reader's light or dark mode. */
enum { CHART_COLORS = 6 };
extern const char *const chart_color[CHART_COLORS];

/* Appends n bytes of s, escaped for HTML and SVG. */
void html_text(clt_str *out, const char *s, size_t n);

/* The CSS rules of the charts' classes and colours. */
extern const char chart_style[];

/* Appends a chart with axes, grid, legend and marks. Of a series with many more points than the picture has
 * columns, each column gets its lowest and its highest value. */
void chart_add(clt_str *out, const chart *c);

#endif
