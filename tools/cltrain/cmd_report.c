/* cltrain report: one self-contained HTML file about a run, from its metrics.jsonl, predictions.json,
 * config.yaml and log.txt, optionally with the losses of other runs for comparison. */
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <stdlib.h>
#include <time.h>

#include "tools/cltrain/commands.h"
#include "tools/cltrain/report_chart.h"
#include "tools/cltrain/report_curves.h"
#include "tools/cltrain/report_pictures.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"

static void fact(clt_str *out, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fact(clt_str *out, const char *name, const char *fmt, ...) {
    char value[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    clt_str_add(out, "<div class='f'><b>");
    html_text(out, value, strlen(value));
    clt_str_add(out, "</b><span>");
    html_text(out, name, strlen(name));
    clt_str_add(out, "</span></div>");
}

/* The newest results of an evaluation data set; the accuracy is that of a classifier alone. */
static void evaluation(clt_str *out, const eval_columns *e) {
    const char *colon = curves_is_plain(e) ? "" : ": ", *label = curves_is_plain(e) ? "" : e->label;
    const size_t last = e->rows.n - 1;
    char *loss = clt_format("evaluation loss%s%s", colon, label),
         *accuracy = clt_format("evaluation accuracy%s%s", colon, label);
    fact(out, loss, "%.4f", e->rows.v[LOSS + 1][last]);
    if (isfinite(e->rows.v[ACCURACY5 + 1][last]))
        fact(out, accuracy, "%.2f %%", 100 * e->rows.v[ACCURACY + 1][last]);
    clt_free(loss);
    clt_free(accuracy);
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
        fact(out, "batches", "%.0f", t->v[0][last]);
        fact(out, "training loss", "%.4f", t->v[LOSS + 1][last]);
        char *unit = metrics_unit(m, true), *name = clt_format("%s per second (median)", unit);
        fact(out, name, "%.0f", metrics_median(m, RATE));
        clt_free(unit);
        clt_free(name);
        if (isfinite(t->v[MFU + 1][last]))
            fact(out, "of the measured peak", "%.1f %%", 100 * metrics_median(m, MFU));
        fact(out, "time in training steps", "%s", clt_human_seconds(seconds, b));
        if (isfinite(t->v[MEMORY + 1][last]))
            fact(out, "device memory", "%s", clt_human_bytes(t->v[MEMORY + 1][last], b));
    }
    if (m->ettr > 0) fact(out, "effective training time", "%.1f %%", floor(1000 * m->ettr) / 10);
    if (m->starts > 1) fact(out, "starts", "%d", m->starts);
    for (size_t i = 0; i < m->evals; i++) evaluation(out, &m->eval[i]);
    clt_str_add(out, "</div>\n");
}

/* Young's interval (docs/guards.md) from the time that training waited for checkpoints. */
static void save_interval(clt_str *out, const metrics *m) {
    static const struct {
        const char *name;
        double seconds;
    } mttf[] = {{"hour", 3600}, {"day", 86400}, {"week", 604800}};
    double step = metrics_median(m, SECONDS), stall = m->saves ? m->stall / m->saves : 0;
    char b[32];
    if (!(stall > 0) || !(step > 0)) return;
    clt_str_addf(out, "<h2>How often to save</h2><p>Training waited %s for a checkpoint (mean of %d).</p>\n",
                 clt_human_seconds(stall, b), m->saves);
    clt_str_add(out, "<table><tr><th>a failure every</th><th>save every</th><th>in batches</th></tr>");
    for (size_t i = 0; i < CLT_COUNT_OF(mttf); i++) {
        double every = young_interval(mttf[i].seconds, stall);
        clt_str_addf(out, "<tr><td>%s</td><td>%s</td><td>%.0f</td></tr>\n", mttf[i].name,
                     clt_human_seconds(every, b), fmax(1, every / step));
    }
    clt_str_add(out, "</table>\n");
}

/* Adds a text file of the run's folder as a foldable box; skips files that do not exist. */
static void text_file(clt_str *out, const char *folder, const char *name, const char *title) {
    char *path = clt_path_join(folder, name), *text;
    size_t n;
    if (clt_io_is_file(path) && clt_io_read_all(path, (size_t)64 << 20, &text, &n) == CLT_OK) {
        enum { MOST = 200000 };
        size_t from = n > MOST ? n - MOST : 0;
        clt_str_addf(out, "<details><summary>%s</summary><pre>%s", title, from ? "...\n" : "");
        html_text(out, text + from, n - from);
        clt_str_add(out, "</pre></details>\n");
        clt_free(text);
    }
    clt_free(path);
}

static const char head[] = "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' "
                           "content='width=device-width'>\n<style>";
static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 "
    "1em;background:#fff;color:var(--ink)}svg{width:100%;height:auto;margin:.6em 0;background:var(--back);"
    "border-radius:6px}.facts{display:flex;flex-wrap:wrap;gap:10px}.f{background:var(--back);border-radius:"
    "6px;"
    "padding:8px 14px}.f b{display:block;font-size:20px}.f span{color:var(--mute)}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:3px 8px;border-bottom:1px solid "
    "var(--grid);vertical-align:top}code,pre{font-size:12px;white-space:pre-wrap;word-break:break-word}"
    "@media(prefers-color-scheme:dark){body{background:#0f172a}}</style>\n";

static void event_value(clt_str *out, const char *key, const json_t *v);

/* "key value" pairs; the names of event and batch have columns of their own. */
static void event_pairs(clt_str *out, json_t *o) {
    const char *key, *between = "";
    json_t *v;
    json_object_foreach(o, key, v) {
        if (strcmp(key, "event") == 0 || strcmp(key, "batch") == 0) continue;
        clt_str_add(out, between);
        html_text(out, key, strlen(key));
        clt_str_add(out, " ");
        event_value(out, key, v);
        between = ", ";
    }
}

static void event_list(clt_str *out, const char *key, const json_t *list) {
    clt_str_add(out, "[");
    for (size_t i = 0; i < json_array_size(list); i++) {
        clt_str_add(out, i ? ", " : "");
        event_value(out, key, json_array_get(list, i));
    }
    clt_str_add(out, "]");
}

static void event_value(clt_str *out, const char *key, const json_t *v) {
    if (json_is_number(v) && strcmp(key, "time") == 0) {
        const time_t at = (time_t)json_number_value(v);
        char when[64];
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime(&at));
        clt_str_add(out, when);
    } else if (json_is_number(v)) {
        clt_str_addf(out, "%.10g", json_number_value(v));
    } else if (json_is_string(v)) {
        html_text(out, json_string_value(v), json_string_length(v));
    } else if (json_is_object(v)) {
        clt_str_add(out, "(");
        event_pairs(out, (json_t *)v);
        clt_str_add(out, ")");
    } else if (json_is_array(v)) {
        event_list(out, key, v);
    } else {
        clt_str_add(out, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
    }
}

static void event_table(clt_str *out, const metrics *m) {
    if (m->events == 0) return;
    clt_str_add(out, "<h2>Events</h2><table><tr><th>event</th><th>batch</th><th>data</th></tr>");
    for (size_t i = 0; i < m->events; i++) {
        const run_event *e = &m->event[i];
        clt_str_add(out, "<tr><td>");
        html_text(out, e->name, strlen(e->name));
        clt_str_addf(out, "</td><td>%.0f</td><td>", e->batch);
        json_t *o = json_loads(e->json, 0, NULL);
        event_pairs(out, o);
        json_decref(o);
        clt_str_add(out, "</td></tr>\n");
    }
    clt_str_add(out, "</table>");
}

static void write_page(clt_str *out, const compared_run *run, int n) {
    const metrics *m = &run[0].m;
    char when[64];
    time_t now = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime(&now));
    clt_str_addf(out, "%s%s%s%s%s", head, chart_style, curves_style, pictures_style, style);
    clt_str_add(out, "<title>cltrain report</title><h1>");
    html_text(out, run[0].name, strlen(run[0].name));
    clt_str_addf(out, "</h1><p>Made by cltrain %s on %s.%s</p>", clt_version(), when,
                 m->bad_lines ? " Incomplete lines of metrics.jsonl were skipped." : "");
    summary(out, m);
    curves_add(out, run, n);
    if (n > 1) compare_add(out, run, n);
    pictures_add(out, run[0].name);
    save_interval(out, m);
    event_table(out, m);
    clt_str_add(out, "<h2>Files</h2>");
    text_file(out, run[0].name, "config.yaml", "Configuration");
    text_file(out, run[0].name, "log.txt", "Log (the end of it)");
    clt_str_add(out, "</html>\n");
}

/* The chart as a file: wrapped into an SVG that has the namespace and the styles, which the page defines
 * elsewhere. */
static void write_svg(clt_str *out, const compared_run *run, int n) {
    clt_str_addf(out,
                 "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' "
                 "font-family='sans-serif'><style>%s</style><rect width='100%%' height='100%%' "
                 "style='fill:var(--back)'/>",
                 CHART_WIDTH, CHART_HEIGHT, chart_style);
    compare_losses(out, run, n, X_BATCH);
    clt_str_add(out, "</svg>\n");
}

static clt_status write_report(const clt_strv *folders, const char *page, const char *svg) {
    compared_run run[COMPARE_MOST] = {0};
    clt_str out = {0};
    clt_status st = CLT_OK;
    int n = (int)folders->n;
    for (int i = 0; i < n && st == CLT_OK; i++) {
        run[i].name = folders->v[i];
        st = metrics_read(run[i].name, &run[i].m);
    }
    if (st == CLT_OK) {
        write_page(&out, run, n);
        st = clt_io_write_atomic(page, out.s, out.len);
    }
    if (st == CLT_OK && svg) {
        clt_str_free(&out);
        out = (clt_str){0};
        write_svg(&out, run, n);
        st = clt_io_write_atomic(svg, out.s, out.len);
    }
    for (int i = 0; i < n; i++) metrics_free(&run[i].m);
    clt_str_free(&out);
    return st;
}

int cmd_report(int argc, char **argv) {
    const char *out = NULL, *svg = NULL;
    const clt_option options[] = {
        {"out", 'o', CLT_OPT_STR, &out, "FILE", "output file (default RUN_DIR/report.html)"},
        {"svg", 0, CLT_OPT_STR, &svg, "FILE", "also write the loss chart as an SVG picture"},
    };
    const clt_command command = {
        .name = "cltrain report",
        .usage = "RUN_DIR [OTHER_RUN_DIR ...]",
        .summary = "Writes one self-contained HTML file about a run: curves, throughput, events, "
                   "configuration. With other runs it also compares their losses with the first run's.",
        .examples = "  cltrain report runs/a\n  cltrain report runs/a --out a.html\n"
                    "  cltrain report runs/fp32 runs/bf16 --svg losses.svg\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && (rest.n < 1 || rest.n > COMPARE_MOST))
        code = clt_options_fail(&command, "1 to %d run folders are required", COMPARE_MOST);
    if (code < 0) {
        char *path = out ? clt_strdup(out) : clt_path_join(rest.v[0], "report.html");
        clt_status st = write_report(&rest, path, svg);
        if (st == CLT_OK) printf("%s\n", path);
        if (st == CLT_OK && svg) printf("%s\n", svg);
        clt_free(path);
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    return code;
}
