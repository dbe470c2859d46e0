#include "tools/cltrain/top_view.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* What fits 24 rows; a taller screen has a taller chart and more events. */
enum { ROWS = 24, CHART_ROWS = 6, MOST_CHART_ROWS = 16, EVENTS = 6, LEAST_COLUMNS = 40, LABEL = 9 };
#define GAP "   " /* between facts */

/* --- charts --- */

/* The mean of the finite values of each of `columns` equal parts of v; NaN: a part has none. */
static double *part_means(const double *v, size_t n, int columns) {
    double *mean = clt_calloc((size_t)columns, sizeof *mean);
    for (int c = 0; c < columns; c++) {
        const size_t from = n * (size_t)c / (size_t)columns, to = n * (size_t)(c + 1) / (size_t)columns;
        double sum = 0, count = 0;
        for (size_t i = from; i < CLT_MAX(to, from + 1) && i < n; i++)
            if (isfinite(v[i])) sum += v[i], count++;
        mean[c] = count > 0 ? sum / count : NAN;
    }
    return mean;
}

static void range(const double *v, int n, double *low, double *high) {
    *low = INFINITY;
    *high = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (!isfinite(v[i])) continue;
        *low = fmin(*low, v[i]);
        *high = fmax(*high, v[i]);
    }
}

/* One cell of a column that is filled up to `level` eighths of a cell. */
static const char *cell(int level, bool utf8) {
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {" ", ".", ".", "-", "-", "=", "=", "#", "#"};
    const int i = CLT_MAX(0, CLT_MIN(level, 8));
    return (utf8 ? blocks : ascii)[i];
}

static void name_value(char label[32], double v, bool count) {
    if (count)
        clt_human_count(v, label);
    else
        snprintf(label, 32, "%.4f", v);
}

/* `rows` lines with the newest values at the right; the highest and the lowest value stand at the left. */
static void chart(clt_str *out, const double *v, size_t n, const top_screen *s, int rows, bool counts) {
    const int width = (int)CLT_MIN((size_t)(s->columns - LABEL - 1), n);
    double *mean = part_means(v, n, width), low, high;
    range(mean, width, &low, &high);
    for (int r = rows; r-- > 0;) {
        char label[32] = "";
        if (isfinite(high) && r == rows - 1) name_value(label, high, counts);
        if (isfinite(low) && r == 0 && rows > 1) name_value(label, low, counts);
        clt_str_addf(out, "%*.*s ", LABEL - 1, LABEL - 1, label);
        for (int c = 0; c < width; c++) {
            const double part = high > low ? (mean[c] - low) / (high - low) : 0.5;
            const int level = isfinite(mean[c]) ? 1 + (int)lround(part * (8 * rows - 1)) : 0;
            clt_str_add(out, cell(level - 8 * r, s->utf8));
        }
        clt_str_add(out, "\n");
    }
    clt_free(mean);
}

/* --- lines --- */

/* The value of a field in the newest training row. */
static double newest(const metrics *m, int field) {
    return m->train.n ? m->train.v[field + 1][m->train.n - 1] : NAN;
}

/* The part of max_duration that is done; NaN: unknown. In epochs the batches of the finished ones say how
 * many an epoch has. */
static double share_done(const top_run *run) {
    const metrics *m = run->m;
    const columns *t = &m->train;
    const clt_time max = run->max_duration;
    if (t->n == 0 || max.value <= 0) return NAN;
    const double batch = t->v[0][t->n - 1], epochs = newest(m, EPOCH);
    if (max.unit == CLT_TIME_BATCH) return fmin(1, batch / (double)max.value);
    if (max.unit == CLT_TIME_TOKEN) return fmin(1, newest(m, COUNT) / (double)max.value);
    if (max.unit != CLT_TIME_EPOCH || !(epochs > 0)) return NAN;
    size_t i = t->n - 1;
    while (i > 0 && t->v[EPOCH + 1][i - 1] == epochs) i--;
    const double in_epoch = batch - t->v[0][i], length = t->v[0][i] / epochs;
    return fmin(1, (epochs + fmin(1, in_epoch / length)) / (double)max.value);
}

/* Text at the left and at the right end of a line. What a terminal would execute, or show in other than one
 * column, becomes a question mark: names are in the files of the run. */
static void spread(clt_str *out, const top_screen *s, const char *left, const char *right) {
    const int room = s->columns - (int)strlen(right) - (*right ? 1 : 0);
    const size_t from = out->len;
    if (*right)
        clt_str_addf(out, "%-*.*s %s", room, room, left, right);
    else
        clt_str_addf(out, "%.*s", room, left);
    for (size_t i = from; i < out->len; i++)
        if (out->s[i] < ' ' || out->s[i] > '~') out->s[i] = '?';
    clt_str_add(out, "\n");
}

static const char *state(const top_run *run, char *buf, size_t bytes) {
    enum { PATIENCE = 10 }; /* steps */
    const metrics *m = run->m;
    const run_event *last = m->events ? &m->event[m->events - 1] : NULL;
    char age[32];
    if (last && strcmp(last->name, "end") == 0)
        return strstr(last->json, "\"why\":\"done\"") ? "done" : "stopped";
    if (last && (strcmp(last->name, "hop") == 0 || strcmp(last->name, "stop") == 0)) return "stopped";
    if (run->age < 0) return "";
    const bool late = run->age > 5 && run->age > PATIENCE * metrics_median(m, SECONDS);
    snprintf(buf, bytes, late ? "no row for %s" : "running", clt_human_seconds(run->age, age));
    return buf;
}

static void progress(clt_str *out, const top_run *run, const top_screen *s) {
    const metrics *m = run->m;
    const double done = share_done(run), step = metrics_median(m, SECONDS);
    const double batch = m->train.n ? m->train.v[0][m->train.n - 1] : 0;
    char count[32], left[32], eta[48] = "", until[40], line[160], *units = metrics_unit(m, true);
    if (isfinite(done) && done > 0 && done < 1 && isfinite(step))
        snprintf(eta, sizeof eta, "%s left", clt_human_seconds(batch * (1 - done) / done * step, left));
    int n = snprintf(line, sizeof line, "batch %.0f", batch);
    if (run->max_duration.value > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, " of %s", clt_time_text(run->max_duration, until));
    if (isfinite(done)) n += snprintf(line + n, sizeof line - (size_t)n, " (%.1f %%)", 100 * done);
    if (isfinite(newest(m, COUNT)))
        snprintf(line + n, sizeof line - (size_t)n, "   epoch %.0f   %s %s", newest(m, EPOCH),
                 clt_human_count(newest(m, COUNT), count), units);
    clt_free(units);
    spread(out, s, line, eta);
    for (int c = 0; c < s->columns && isfinite(done); c++)
        clt_str_add(out, c < (int)(done * s->columns) ? (s->utf8 ? "█" : "#") : (s->utf8 ? "░" : "."));
    if (isfinite(done)) clt_str_add(out, "\n");
}

/* A line of facts; those at its end that do not fit are left out. */
static void add_facts(clt_str *out, const top_screen *s, clt_str *line) {
    while (line->len > (size_t)s->columns) {
        size_t n = line->len;
        while (n > 0 && strncmp(line->s + n, GAP, strlen(GAP)) != 0) n--;
        if (n == 0) break;
        line->len = n;
        line->s[n] = 0;
    }
    spread(out, s, line->s, "");
}

/* "name value" pairs of what is known. */
static void add_fact(clt_str *line, const char *format, double v) {
    if (!isfinite(v)) return;
    if (line->len) clt_str_add(line, GAP);
    clt_str_addf(line, format, v);
}

static void loss_line(clt_str *out, const metrics *m, const top_screen *s) {
    clt_str line = {0};
    add_fact(&line, "loss %.4f", newest(m, LOSS));
    for (size_t i = 0; i < m->evals; i++) {
        const columns *e = &m->eval[i].rows;
        if (line.len) clt_str_add(&line, GAP);
        clt_str_addf(&line, "%s %.4f", m->eval[i].label, e->v[LOSS + 1][e->n - 1]);
        if (isfinite(e->v[ACCURACY5 + 1][e->n - 1]))
            clt_str_addf(&line, ", accuracy %.2f %%", 100 * e->v[ACCURACY + 1][e->n - 1]);
        clt_str_addf(&line, " (batch %.0f)", e->v[0][e->n - 1]);
    }
    add_fact(&line, "lr %.3g", newest(m, LR));
    add_fact(&line, "gradient norm %.3g", newest(m, GRAD_NORM));
    if (line.len)
        add_facts(out, s, &line);
    else
        spread(out, s, "no step yet", "");
    clt_str_free(&line);
}

static void speed_line(clt_str *out, const metrics *m, const top_screen *s) {
    clt_str line = {0};
    char text[32];
    if (m->train.n == 0) return;
    char *units = metrics_unit(m, true);
    clt_str_addf(&line, "%s %s/s", clt_human_count(metrics_median(m, RATE), text), units);
    clt_free(units);
    clt_str_addf(&line, GAP "step %s", clt_human_seconds(metrics_median(m, SECONDS), text));
    if (isfinite(newest(m, MFU))) clt_str_addf(&line, GAP "MFU %.1f %%", 100 * metrics_median(m, MFU));
    clt_str_addf(&line, GAP "memory %s", clt_human_bytes(newest(m, MEMORY), text));
    if (m->ranks > 0) clt_str_addf(&line, GAP "%d rank%s", m->ranks, m->ranks == 1 ? "" : "s");
    if (m->starts > 1) clt_str_addf(&line, GAP "%d starts", m->starts);
    if (m->ettr > 0) clt_str_addf(&line, GAP "ettr %.1f %%", 100 * m->ettr);
    add_facts(out, s, &line);
    clt_str_free(&line);
}

/* What is worth a line of an event: its name and numbers, without the JSON around them. */
static void event_line(clt_str *out, const run_event *e, const top_screen *s) {
    clt_str line = {0};
    const char *key;
    json_t *v, *o = json_loads(e->json, 0, NULL);
    clt_str_addf(&line, "  %10.0f  %-16s", e->batch, e->name);
    json_object_foreach(o, key, v) {
        if (strcmp(key, "event") == 0 || strcmp(key, "batch") == 0 || strcmp(key, "time") == 0) continue;
        if (json_is_string(v)) clt_str_addf(&line, " %s", json_string_value(v));
        if (json_is_number(v)) clt_str_addf(&line, " %s %.5g", key, json_number_value(v));
        if (json_is_boolean(v)) clt_str_addf(&line, " %s %s", key, json_is_true(v) ? "true" : "false");
        for (size_t i = 0; i < json_array_size(v); i++)
            clt_str_addf(&line, "%s%.5g", i ? " " : " [", json_number_value(json_array_get(v, i)));
        if (json_array_size(v)) clt_str_add(&line, "]");
    }
    spread(out, s, line.s, "");
    json_decref(o);
    clt_str_free(&line);
}

void top_draw(const top_run *run, const top_screen *screen, clt_str *out) {
    const metrics *m = run->m;
    top_screen s = *screen;
    char buf[64];
    const int more = CLT_MAX(s.rows - ROWS, 0), charts = CLT_MIN(more / 2, MOST_CHART_ROWS - CHART_ROWS);
    const size_t events = (size_t)(EVENTS + more - charts);
    s.columns = CLT_MAX(s.columns, LEAST_COLUMNS);
    spread(out, &s, run->name, state(run, buf, sizeof buf));
    progress(out, run, &s);
    clt_str_add(out, "\n");
    loss_line(out, m, &s);
    if (m->train.n > 0) chart(out, m->train.v[LOSS + 1], m->train.n, &s, CHART_ROWS + charts, false);
    clt_str_add(out, "\n");
    speed_line(out, m, &s);
    if (m->train.n > 0) chart(out, m->train.v[RATE + 1], m->train.n, &s, 2, true);
    if (m->events > 0) clt_str_add(out, "\n       batch  event\n");
    for (size_t i = m->events > events ? m->events - events : 0; i < m->events; i++)
        event_line(out, &m->event[i], &s);
    if (s.live) clt_str_add(out, "q: quit\n");
}
