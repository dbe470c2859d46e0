/* cltrain report: one self-contained HTML file about a run, from its metrics.jsonl, config.yaml and log.txt.
 */
#include <math.h>
#include <string.h>
#include <stdlib.h>
#include <time.h>

#include "commands.h"
#include "report_chart.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"

enum { FIELDS = 7 };
static const char *const field_name[FIELDS] = {"loss",           "lr",  "grad_norm",          "step_seconds",
                                               "tokens_per_sec", "mfu", "device_memory_bytes"};
enum { LOSS, LR, GRAD_NORM, SECONDS, RATE, MFU, MEMORY };

/* A growing table of doubles: column 0 is the batch. */
typedef struct {
    double *v[FIELDS + 1];
    size_t n, cap;
} columns;

typedef struct {
    columns train, eval; /* eval: column LOSS + 1 is the loss */
    clt_str events;      /* table rows */
    double ettr;         /* of the newest end; 0: the run has not ended yet */
    int starts, saves;
    double stall; /* seconds that training waited for all `saves` */
    size_t bad_lines;
} metrics;

static void push(columns *c, const double *row) {
    if (c->n == c->cap) {
        c->cap = CLT_MAX(256, 2 * c->cap);
        for (int i = 0; i <= FIELDS; i++) c->v[i] = clt_realloc(c->v[i], c->cap * sizeof(double));
    }
    for (int i = 0; i <= FIELDS; i++) c->v[i][c->n] = row[i];
    c->n++;
}

static void free_columns(columns *c) {
    for (int i = 0; i <= FIELDS; i++) clt_free(c->v[i]);
}

static void html(clt_str *out, const char *s, size_t n) {
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

static double number(json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void count_event(metrics *m, json_t *o, const char *event) {
    if (!strcmp(event, "start")) m->starts++;
    if (!strcmp(event, "end")) m->ettr = number(o, "ettr");
    if (!strcmp(event, "checkpoint") && json_object_get(o, "stall_seconds")) {
        m->stall += number(o, "stall_seconds");
        m->saves++;
    }
}

/* After a fall-back a batch number comes again: the last row of a number is the valid one. */
static void take_row(metrics *m, json_t *o) {
    double row[FIELDS + 1];
    row[0] = number(o, "batch");
    const char *event = json_string_value(json_object_get(o, "event"));
    if (event) {
        char *text = json_dumps(o, JSON_COMPACT);
        count_event(m, o, event);
        clt_str_add(&m->events, "<tr><td>");
        html(&m->events, event, strlen(event));
        clt_str_addf(&m->events, "</td><td>%g</td><td><code>", row[0]);
        html(&m->events, text, strlen(text));
        clt_str_add(&m->events, "</code></td></tr>\n");
        free(text);
        return;
    }
    bool eval = json_object_get(o, "eval_loss") != NULL;
    columns *c = eval ? &m->eval : &m->train;
    for (int i = 0; i < FIELDS; i++) row[i + 1] = number(o, eval && i == LOSS ? "eval_loss" : field_name[i]);
    while (!eval && c->n > 0 && c->v[0][c->n - 1] >= row[0]) c->n--;
    push(c, row);
}

static clt_status read_metrics(const char *folder, metrics *m) {
    char *path = clt_path_join(folder, "metrics.jsonl"), *text = NULL;
    size_t bytes = 0;
    clt_status st = clt_io_read_all(path, (size_t)1 << 30, &text, &bytes);
    for (char *at = text; st == CLT_OK && at < text + bytes;) {
        size_t n = strcspn(at, "\n");
        json_t *o = json_loadb(at, n, 0, NULL);
        if (json_is_object(o))
            take_row(m, o);
        else if (n > 0)
            m->bad_lines++; /* a line cut by a kill */
        json_decref(o);
        at += n + 1;
    }
    if (st == CLT_OK && m->train.n == 0 && m->eval.n == 0)
        st = clt_error(CLT_BAD_DATA, "%s has no rows: has the run made a step?", path);
    clt_free(text);
    clt_free(path);
    return st;
}

static double median(const double *v, size_t n) {
    double *copy = clt_memdup(v, n * sizeof *v), result;
    for (size_t i = 1; i < n; i++) /* insertion sort: a report is made once */
        for (size_t k = i; k > 0 && copy[k] < copy[k - 1]; k--) {
            double t = copy[k];
            copy[k] = copy[k - 1];
            copy[k - 1] = t;
        }
    result = n ? copy[n / 2] : NAN;
    clt_free(copy);
    return result;
}

static void fact(clt_str *out, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fact(clt_str *out, const char *name, const char *fmt, ...) {
    char value[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    clt_str_add(out, "<div class='f'><b>");
    html(out, value, strlen(value));
    clt_str_addf(out, "</b><span>%s</span></div>", name);
}

static void summary(clt_str *out, const metrics *m) {
    const columns *t = &m->train;
    char b[32];
    clt_str_add(out, "<div class='facts'>");
    if (t->n > 0) {
        double seconds = 0;
        size_t last = t->n - 1;
        for (size_t i = 0; i < t->n; i++)
            seconds += isfinite(t->v[SECONDS + 1][i]) ? t->v[SECONDS + 1][i] : 0;
        /* The median of the newest rows at most: sorting stays quick for long runs. */
        size_t tail = CLT_MIN(t->n, 2000), from = t->n - tail;
        fact(out, "batches", "%.0f", t->v[0][last]);
        fact(out, "training loss", "%.4f", t->v[LOSS + 1][last]);
        fact(out, "tokens a second (median)", "%.0f", median(t->v[RATE + 1] + from, tail));
        if (isfinite(t->v[MFU + 1][last]))
            fact(out, "of the measured fp32 peak", "%.1f %%", 100 * median(t->v[MFU + 1] + from, tail));
        fact(out, "in training steps", "%s", clt_human_seconds(seconds, b));
        fact(out, "device memory", "%s", clt_human_bytes(t->v[MEMORY + 1][last], b));
    }
    if (m->ettr > 0) fact(out, "effective training time", "%.1f %%", floor(1000 * m->ettr) / 10);
    if (m->starts > 1) fact(out, "starts", "%d", m->starts);
    if (m->eval.n > 0) fact(out, "evaluation loss", "%.4f", m->eval.v[LOSS + 1][m->eval.n - 1]);
    clt_str_add(out, "</div>\n");
}

/* Young's interval (docs/guards.md) from what the run's checkpoints have cost. */
static void save_interval(clt_str *out, const metrics *m) {
    static const struct {
        const char *name;
        double seconds;
    } mttf[] = {{"an hour", 3600}, {"a day", 86400}, {"a week", 604800}};
    const columns *t = &m->train;
    size_t tail = CLT_MIN(t->n, 2000);
    double step = median(t->v[SECONDS + 1] + (t->n - tail), tail), stall = m->saves ? m->stall / m->saves : 0;
    char b[32];
    if (!(stall > 0) || !(step > 0)) return;
    clt_str_addf(
        out, "<h2>How often to save</h2><p>A checkpoint kept training waiting for %s, the mean of %d.</p>\n",
        clt_human_seconds(stall, b), m->saves);
    clt_str_add(out, "<table><tr><th>a failure every</th><th>save every</th><th>in batches</th></tr>");
    for (size_t i = 0; i < CLT_COUNT_OF(mttf); i++) {
        double every = sqrt(2 * mttf[i].seconds * stall);
        clt_str_addf(out, "<tr><td>%s</td><td>%s</td><td>%.0f</td></tr>\n", mttf[i].name,
                     clt_human_seconds(every, b), fmax(1, every / step));
    }
    clt_str_add(out, "</table>\n");
}

static void charts(clt_str *out, const metrics *m) {
    const columns *t = &m->train;
    chart_series loss[] = {{"training", "#2563eb", t->v[0], t->v[LOSS + 1], t->n, false},
                           {"evaluation", "#dc2626", m->eval.v[0], m->eval.v[LOSS + 1], m->eval.n, true}};
    chart_add(out, "Loss (cross-entropy, nats a token)", "batch", loss, m->eval.n ? 2 : 1, false);
    const struct {
        const char *title, *color;
        int field;
        bool log_y;
    } rest[] = {{"Tokens a second", "#059669", RATE, false},
                {"Gradient norm before clipping", "#7c3aed", GRAD_NORM, true},
                {"Learning rate", "#b45309", LR, false},
                {"Seconds a step", "#475569", SECONDS, false}};
    for (size_t i = 0; i < CLT_COUNT_OF(rest); i++) {
        chart_series s = {"", rest[i].color, t->v[0], t->v[rest[i].field + 1], t->n, false};
        chart_add(out, rest[i].title, "batch", &s, 1, rest[i].log_y);
    }
}

/* A text file of the run's folder in a foldable box; absent files are left out. */
static void text_file(clt_str *out, const char *folder, const char *name, const char *title) {
    char *path = clt_path_join(folder, name), *text;
    size_t n;
    if (clt_io_is_file(path) && clt_io_read_all(path, (size_t)64 << 20, &text, &n) == CLT_OK) {
        enum { MOST = 200000 };
        size_t from = n > MOST ? n - MOST : 0;
        clt_str_addf(out, "<details><summary>%s</summary><pre>%s", title, from ? "...\n" : "");
        html(out, text + from, n - from);
        clt_str_add(out, "</pre></details>\n");
        clt_free(text);
    }
    clt_free(path);
}

static const char head[] =
    "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' "
    "content='width=device-width'>\n"
    "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 "
    "1em;color:#1e293b}"
    "svg{width:100%;height:auto;margin:.6em "
    "0;background:#f8fafc;border-radius:6px}.t{font-size:11px;fill:#64748b}"
    ".h{font-size:14px;font-weight:600;fill:#1e293b}.g{stroke:#e2e8f0}.facts{display:flex;flex-wrap:wrap;gap:"
    "10px}"
    ".f{background:#f1f5f9;border-radius:6px;padding:8px 14px}.f b{display:block;font-size:20px}.f "
    "span{color:#64748b}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:3px 8px;border-bottom:1px solid "
    "#e2e8f0;"
    "vertical-align:top}code,pre{font-size:12px;white-space:pre-wrap;word-break:break-word}"
    "@media(prefers-color-scheme:dark){body{background:#0f172a;color:#e2e8f0}svg,.f{background:#1e293b}"
    ".h{fill:#e2e8f0}.g{stroke:#334155}td,th{border-color:#334155}}</style>\n";

static clt_status write_report(const char *folder, const char *out_path) {
    metrics m = {0};
    clt_str out = {0};
    clt_status st = read_metrics(folder, &m);
    if (st == CLT_OK) {
        char when[64];
        time_t now = time(NULL);
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime(&now));
        clt_str_add(&out, head);
        clt_str_add(&out, "<title>cltrain report</title><h1>");
        html(&out, folder, strlen(folder));
        clt_str_addf(&out, "</h1><p>Made by cltrain %s on %s.%s</p>", clt_version(), when,
                     m.bad_lines ? " Some lines of metrics.jsonl were cut and are left out." : "");
        summary(&out, &m);
        charts(&out, &m);
        save_interval(&out, &m);
        if (m.events.len)
            clt_str_addf(&out,
                         "<h2>Events</h2><table><tr><th>event</th><th>batch</th><th>data</th></tr>%s</table>",
                         m.events.s);
        clt_str_add(&out, "<h2>Files</h2>");
        text_file(&out, folder, "config.yaml", "Configuration");
        text_file(&out, folder, "log.txt", "Log (the end of it)");
        clt_str_add(&out, "</html>\n");
        st = clt_io_write_atomic(out_path, out.s, out.len);
    }
    free_columns(&m.train);
    free_columns(&m.eval);
    clt_str_free(&m.events);
    clt_str_free(&out);
    return st;
}

int cmd_report(int argc, char **argv) {
    const char *out = NULL;
    const clt_option options[] = {
        {"out", 'o', CLT_OPT_STR, &out, "FILE", "where to write (default RUN_DIR/report.html)"},
    };
    const clt_command command = {
        .name = "cltrain report",
        .usage = "RUN_DIR",
        .summary =
            "Writes one self-contained HTML file about a run: curves, throughput, events, configuration.",
        .examples = "  cltrain report runs/a\n  cltrain report runs/a --out a.html\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 1) code = clt_options_fail(&command, "one RUN_DIR is needed");
    if (code < 0) {
        char *path = out ? clt_strdup(out) : clt_path_join(rest.v[0], "report.html");
        clt_status st = write_report(rest.v[0], path);
        if (st == CLT_OK) printf("%s\n", path);
        clt_free(path);
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    return code;
}
