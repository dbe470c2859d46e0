#include "tools/cltrain/report_chart.h"

#include <math.h>
#include <string.h>

enum { LEFT = 70, RIGHT = 16, TOP = 34, BOTTOM = 40, TICKS = 5 };

typedef struct {
    double x0, x1, y0, y1;
    bool log_y;
} frame;

const char chart_style[] =
    ".t{font-size:11px;fill:#64748b}.h{font-size:14px;font-weight:600;fill:#1e293b}.g{stroke:#e2e8f0}";

void html_text(clt_str *out, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) switch (s[i]) {
        case '<':
            clt_str_add(out, "&lt;");
            break;
        case '>':
            clt_str_add(out, "&gt;");
            break;
        case '&':
            clt_str_add(out, "&amp;");
            break;
        default:
            clt_str_addn(out, s + i, 1);
        }
}

static double place_y_value(const frame *f, double y) {
    return f->log_y ? log10(fmax(y, 1e-30)) : y;
}

static double px(const frame *f, double x) {
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (CHART_WIDTH - LEFT - RIGHT);
}

static double py(const frame *f, double y) {
    return CHART_HEIGHT - BOTTOM -
           (place_y_value(f, y) - f->y0) / (f->y1 - f->y0) * (CHART_HEIGHT - TOP - BOTTOM);
}

/* A round step such that about TICKS of them cover the range. */
static double round_step(double range) {
    double raw = range / TICKS, power = pow(10, floor(log10(raw))), m = raw / power;
    return (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10) * power;
}

static frame fit(const chart_series *s, size_t n, bool log_y) {
    frame f = {INFINITY, -INFINITY, INFINITY, -INFINITY, log_y};
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < s[k].n; i++) {
            if (!isfinite(s[k].y[i])) continue;
            double y = place_y_value(&f, s[k].y[i]);
            f.x0 = fmin(f.x0, s[k].x[i]);
            f.x1 = fmax(f.x1, s[k].x[i]);
            f.y0 = fmin(f.y0, y);
            f.y1 = fmax(f.y1, y);
        }
    if (!isfinite(f.x0)) f = (frame){0, 1, 0, 1, log_y};
    if (f.x1 <= f.x0) f.x1 = f.x0 + 1;
    double room = (f.y1 - f.y0) * 0.06;
    if (room <= 0) room = fmax(fabs(f.y1) * 0.1, 1e-9);
    f.y0 -= room;
    f.y1 += room;
    return f;
}

static void tick(clt_str *out, const frame *f, double y) {
    clt_str_addf(out, "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' class='g'/>", LEFT, CHART_WIDTH - RIGHT,
                 py(f, y), py(f, y));
    clt_str_addf(out, "<text x='%d' y='%.1f' class='t' text-anchor='end'>%.7g</text>", LEFT - 6, py(f, y) + 4,
                 y);
}

static void even_ticks(clt_str *out, const frame *f, double first, double last) {
    double step = round_step(last - first);
    for (double v = ceil(first / step) * step; v <= last + step * 1e-6; v += step)
        tick(out, f, fabs(v) < step * 1e-6 ? 0 : v);
}

/* Grid lines at 1, 2 and 5 times powers of ten; fewer if the axis covers many powers. */
static void log_ticks(clt_str *out, const frame *f) {
    static const int digit[] = {1, 2, 5};
    double powers = f->y1 - f->y0, step = fmax(1, round_step(powers));
    size_t digits = powers < 3 ? CLT_COUNT_OF(digit) : 1;
    for (double p = floor(f->y0 / step) * step; p <= f->y1; p += step)
        for (size_t i = 0; i < digits; i++) {
            double at = p + log10(digit[i]);
            if (at >= f->y0 && at <= f->y1) tick(out, f, digit[i] * pow(10, p));
        }
}

static void axes(clt_str *out, const frame *f, const char *x_label) {
    double step = round_step(f->x1 - f->x0);
    for (double x = ceil(f->x0 / step) * step; x <= f->x1 + step * 1e-6; x += step)
        clt_str_addf(out, "<text x='%.1f' y='%d' class='t' text-anchor='middle'>%.9g</text>", px(f, x),
                     CHART_HEIGHT - BOTTOM + 16, x);
    if (!f->log_y)
        even_ticks(out, f, f->y0, f->y1);
    else if (f->y1 - f->y0 < 1)
        even_ticks(out, f, pow(10, f->y0), pow(10, f->y1));
    else
        log_ticks(out, f);
    clt_str_addf(out, "<text x='%d' y='%d' class='t' text-anchor='middle'>%s</text>",
                 (LEFT + CHART_WIDTH - RIGHT) / 2, CHART_HEIGHT - 6, x_label);
}

static void line(clt_str *out, const frame *f, const chart_series *s) {
    bool pen = false;
    clt_str_addf(out, "<path fill='none' stroke='%s' stroke-width='1.6' d='", s->color);
    for (size_t i = 0; i < s->n; i++) {
        if (!isfinite(s->y[i])) {
            pen = false;
            continue;
        }
        clt_str_addf(out, "%c%.1f %.1f", pen ? 'L' : 'M', px(f, s->x[i]), py(f, s->y[i]));
        pen = true;
    }
    clt_str_add(out, "'/>");
}

static void dots(clt_str *out, const frame *f, const chart_series *s) {
    for (size_t i = 0; i < s->n; i++)
        if (isfinite(s->y[i]))
            clt_str_addf(out,
                         "<circle r='3.5' fill='%s' cx='%.1f' cy='%.1f'><title>%.9g: %g</title></circle>",
                         s->color, px(f, s->x[i]), py(f, s->y[i]), s->x[i], s->y[i]);
}

void chart_add(clt_str *out, const char *title, const char *x_label, const chart_series *series, size_t n,
               bool log_y) {
    frame f = fit(series, n, log_y);
    clt_str_addf(out, "<svg viewBox='0 0 %d %d' role='img' aria-label='%s'>", CHART_WIDTH, CHART_HEIGHT,
                 title);
    clt_str_addf(out, "<text x='%d' y='20' class='h'>%s</text>", LEFT, title);
    axes(out, &f, x_label);
    int legend = CHART_WIDTH - RIGHT;
    for (size_t i = n; i-- > 0 && n > 1;) {
        clt_str_addf(out, "<text x='%d' y='20' text-anchor='end' class='t' style='fill:%s'>", legend,
                     series[i].color);
        html_text(out, series[i].label, strlen(series[i].label));
        clt_str_add(out, "</text>");
        legend -= 100;
    }
    for (size_t i = 0; i < n; i++) (series[i].dots ? dots : line)(out, &f, &series[i]);
    clt_str_add(out, "</svg>\n");
}
