#include "tools/cltrain/report_chart.h"

#include <math.h>
#include <string.h>

enum { LEFT = 70, RIGHT = 16, TOP = 34, BOTTOM = 40, TICKS = 5 };

typedef struct {
    double x0, x1, y0, y1;
    bool log_y;
} frame;

const char *const chart_color[CHART_COLORS] = {"var(--s1)", "var(--s2)", "var(--s3)",
                                               "var(--s4)", "var(--s5)", "var(--s6)"};
const char chart_style[] =
    ":root{color-scheme:light dark;--ink:#1e293b;--mute:#64748b;--grid:#e2e8f0;--back:#f8fafc;--s1:#2563eb;"
    "--s2:#dc2626;--s3:#059669;--s4:#b45309;--s5:#7c3aed;--s6:#475569}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--mute:#94a3b8;--grid:#334155;--back:#1e293b;"
    "--s1:#60a5fa;--s2:#f87171;--s3:#34d399;--s4:#fbbf24;--s5:#a78bfa;--s6:#cbd5e1}}"
    ".t{font-size:11px;fill:var(--mute)}.h{font-size:14px;font-weight:600;fill:var(--ink)}"
    ".g{stroke:var(--grid)}.m{stroke:var(--mute);stroke-dasharray:4 3}.c{fill:var(--mute)}"
    ".bad{stroke:var(--s2);fill:var(--s2)}";

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

/* A point without a number in one direction is a gap. */
static bool is_drawn(const chart_series *s, size_t i) {
    return isfinite(s->x[i]) && isfinite(s->y[i]);
}

static frame fit(const chart_series *s, size_t n, bool log_y) {
    frame f = {INFINITY, -INFINITY, INFINITY, -INFINITY, log_y};
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < s[k].n; i++) {
            if (!is_drawn(&s[k], i)) continue;
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

/* Text at the x axis. */
static void x_value(const chart *c, double x, char *buf, size_t bytes) {
    enum { EXACT = 100000 };
    if (c->x == CHART_SECONDS && x > 0)
        clt_human_seconds(x, buf);
    else if (c->x != CHART_TOKENS || fabs(x) < EXACT)
        snprintf(buf, bytes, "%.9g", x);
    else
        clt_human_count(x, buf);
}

/* Seconds are divided at whole minutes or hours if there are several. */
static double x_step(const chart *c, double range) {
    const double minute = 60, hour = 3600, several = 4;
    double unit = 1;
    if (c->x == CHART_SECONDS && range > several * minute) unit = range > several * hour ? hour : minute;
    return round_step(range / unit) * unit;
}

static void axes(clt_str *out, const frame *f, const chart *c) {
    const double step = x_step(c, f->x1 - f->x0);
    char value[32];
    for (double x = ceil(f->x0 / step) * step; x <= f->x1 + step * 1e-6; x += step) {
        x_value(c, x, value, sizeof value);
        clt_str_addf(out, "<text x='%.1f' y='%d' class='t' text-anchor='middle'>%s</text>", px(f, x),
                     CHART_HEIGHT - BOTTOM + 16, value);
    }
    if (!f->log_y)
        even_ticks(out, f, f->y0, f->y1);
    else if (f->y1 - f->y0 < 1)
        even_ticks(out, f, pow(10, f->y0), pow(10, f->y1));
    else
        log_ticks(out, f);
    clt_str_addf(out, "<text x='%d' y='%d' class='t' text-anchor='middle'>%s</text>",
                 (LEFT + CHART_WIDTH - RIGHT) / 2, CHART_HEIGHT - 6, c->x_label);
}

/* --- series --- */

static void point(clt_str *out, const frame *f, bool *pen, double x, double y) {
    clt_str_addf(out, "%c%.1f %.1f", *pen ? 'L' : 'M', px(f, x), py(f, y));
    *pen = true;
}

/* The lowest and the highest of the points from..to, in their order. */
static void column(clt_str *out, const frame *f, const chart_series *s, size_t from, size_t to, bool *pen) {
    size_t low = from, high = from;
    for (size_t i = from; i < to; i++) {
        if (s->y[i] < s->y[low]) low = i;
        if (s->y[i] > s->y[high]) high = i;
    }
    const size_t first = CLT_MIN(low, high), second = CLT_MAX(low, high);
    point(out, f, pen, s->x[first], s->y[first]);
    if (second != first) point(out, f, pen, s->x[second], s->y[second]);
}

static void line(clt_str *out, const frame *f, const chart_series *s) {
    const bool dense = s->n > 4 * (size_t)CHART_WIDTH;
    bool pen = false;
    clt_str_addf(out, "<path fill='none' style='stroke:%s' stroke-width='1.6' d='", s->color);
    for (size_t i = 0, to; i < s->n; i = to) {
        to = i + 1;
        if (!is_drawn(s, i)) {
            pen = false;
            continue;
        }
        while (dense && to < s->n && is_drawn(s, to) && (int)px(f, s->x[to]) == (int)px(f, s->x[i])) to++;
        column(out, f, s, i, to, &pen);
    }
    clt_str_add(out, "'/>");
}

static void dots(clt_str *out, const frame *f, const chart_series *s) {
    for (size_t i = 0; i < s->n; i++)
        if (is_drawn(s, i))
            clt_str_addf(
                out, "<circle r='3.5' style='fill:%s' cx='%.1f' cy='%.1f'><title>%.9g: %g</title></circle>",
                s->color, px(f, s->x[i]), py(f, s->y[i]), s->x[i], s->y[i]);
}

/* --- marks --- */

static void add_mark(clt_str *out, const frame *f, const chart_mark *m, bool named) {
    const double x = px(f, m->x), bottom = CHART_HEIGHT - BOTTOM;
    if (m->small)
        clt_str_addf(out, "<path class='%s' d='M%.1f %.1fl4 7h-8z'>", m->bad ? "bad" : "c", x, bottom - 7);
    else
        clt_str_addf(out, "<path class='m%s' d='M%.1f %dV%.1f'>", m->bad ? " bad" : "", x, TOP, bottom);
    clt_str_add(out, "<title>");
    html_text(out, m->text, strlen(m->text));
    clt_str_add(out, "</title></path>");
    if (m->small || !named) return;
    clt_str_addf(out, "<text x='%.1f' y='%d' class='t'>", x + 3, TOP + 10);
    html_text(out, m->name, strlen(m->name));
    clt_str_add(out, "</text>");
}

/* Names have no room beside a neighbour's. */
static void add_marks(clt_str *out, const frame *f, const chart *c) {
    enum { NAME_WIDTH = 60 };
    double last = -INFINITY;
    for (size_t i = 0; i < c->n_marks; i++) {
        const chart_mark *m = &c->marks[i];
        const double x = px(f, m->x);
        if (!(m->x >= f->x0 && m->x <= f->x1)) continue;
        const bool named = !m->small && x - last > NAME_WIDTH && x + NAME_WIDTH < CHART_WIDTH;
        add_mark(out, f, m, named);
        if (named) last = x;
    }
}

void chart_add(clt_str *out, const chart *c) {
    frame f = fit(c->series, c->n, c->log_y);
    clt_str_addf(out, "<svg viewBox='0 0 %d %d' role='img' aria-label='%s'>", CHART_WIDTH, CHART_HEIGHT,
                 c->title);
    clt_str_addf(out, "<text x='%d' y='20' class='h'>%s</text>", LEFT, c->title);
    axes(out, &f, c);
    add_marks(out, &f, c);
    int legend = CHART_WIDTH - RIGHT;
    for (size_t i = c->n; i-- > 0 && c->n > 1;) {
        clt_str_addf(out, "<text x='%d' y='20' text-anchor='end' class='t' style='fill:%s'>", legend,
                     c->series[i].color);
        html_text(out, c->series[i].label, strlen(c->series[i].label));
        clt_str_add(out, "</text>");
        legend -= 100;
    }
    for (size_t i = 0; i < c->n; i++) (c->series[i].dots ? dots : line)(out, &f, &c->series[i]);
    clt_str_add(out, "</svg>\n");
}
