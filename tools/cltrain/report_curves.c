#include "tools/cltrain/report_curves.h"

#include <math.h>
#include <string.h>

#include "tools/cltrain/report_chart.h"

const char curves_style[] =
    ".x{display:none}#x0:checked~.x0,#x1:checked~.x1,#x2:checked~.x2{display:block}"
    "input.ax{position:absolute;opacity:0}label.ax{display:inline-block;margin:1.2em .4em 0 0;padding:2px "
    "12px;border-radius:6px;background:var(--back);color:var(--mute);cursor:pointer}"
    "#x0:checked~[for=x0],#x1:checked~[for=x1],#x2:checked~[for=x2]{background:var(--s1);color:#fff}"
    "input.ax:focus-visible+label{outline:2px solid var(--ink)}.note{font-size:12px;color:var(--mute)}";

bool curves_is_plain(const eval_columns *e) {
    return strcmp(e->label, "eval") == 0;
}

/* --- marks --- */

/* How an event is drawn; NULL: it has only a row in the table of events. */
static const struct {
    const char *event, *name;
    bool small, bad;
} kinds[] = {{"checkpoint", "checkpoint", true, false},
             {"checkpoint_failed", "failed save", true, true},
             {"hop", "hop", false, false},
             {"stop", "stop", false, false},
             {"resume", "resume", false, false},
             {"early_stop", "early stop", false, false},
             {"rollback", "roll-back", false, true},
             {"nonfinite", "not finite", false, true},
             {"replicas_differ", "replicas differ", false, true},
             {"spike", "spike", false, true}};

static chart_mark *marks_of(const metrics *m, const double *x, size_t *n) {
    chart_mark *mark = clt_calloc(m->events + 1, sizeof *mark);
    *n = 0;
    for (size_t i = 0; i < m->events; i++)
        for (size_t k = 0; k < CLT_COUNT_OF(kinds); k++) {
            const run_event *e = &m->event[i];
            if (strcmp(e->name, kinds[k].event) != 0 || !isfinite(e->batch)) continue;
            mark[(*n)++] = (chart_mark){metrics_x_at(m, x, e->batch), kinds[k].name, e->json, kinds[k].small,
                                        kinds[k].bad};
        }
    return mark;
}

/* --- curves --- */

typedef struct {
    const metrics *m;
    x_axis axis;
    const double *x; /* of the training rows */
    const chart_mark *mark;
    size_t marks;
} curves;

static void add_chart(clt_str *out, const curves *c, const char *title, const chart_series *s, size_t n,
                      bool log_y) {
    char *label = metrics_x_label(c->m, c->axis);
    chart_add(out, &(chart){.title = title,
                            .x_label = label,
                            .series = s,
                            .n = n,
                            .marks = c->mark,
                            .n_marks = c->marks,
                            .x = (chart_x)c->axis,
                            .log_y = log_y});
    clt_free(label);
}

/* The x values of an evaluation data set's rows; the caller frees them. */
static double *eval_x(const curves *c, const eval_columns *e) {
    double *x = clt_calloc(e->rows.n, sizeof *x);
    for (size_t k = 0; k < e->rows.n; k++)
        x[k] = c->axis == X_BATCH ? e->rows.v[0][k] : metrics_x_at(c->m, c->x, e->rows.v[0][k]);
    return x;
}

/* The losses of training and of every evaluation data set. The legend has room for the first names only. */
static void loss_chart(clt_str *out, const curves *c) {
    const metrics *m = c->m;
    const columns *t = &m->train;
    chart_series *s = clt_calloc(m->evals + 1, sizeof *s);
    double **x = clt_calloc(m->evals + 1, sizeof *x);
    s[0] = (chart_series){"training", chart_color[0], c->x, t->v[LOSS + 1], t->n, false};
    for (size_t i = 0; i < m->evals; i++) {
        const eval_columns *e = &m->eval[i];
        const char *label = curves_is_plain(e) ? "evaluation" : i < CHART_COLORS - 1 ? e->label : "";
        x[i] = eval_x(c, e);
        s[i + 1] = (chart_series){
            label, chart_color[1 + i % (CHART_COLORS - 1)], x[i], e->rows.v[LOSS + 1], e->rows.n, true};
    }
    char *unit = metrics_unit(m, false), *title = clt_format("Loss (cross-entropy, nats per %s)", unit);
    add_chart(out, c, title, s, m->evals + 1, false);
    clt_free(unit);
    clt_free(title);
    for (size_t i = 0; i < m->evals; i++) clt_free(x[i]);
    clt_free(x);
    clt_free(s);
}

/* The accuracies of a classifier's evaluation data set. */
static void accuracy_chart(clt_str *out, const curves *c, const eval_columns *e) {
    double *x = eval_x(c, e);
    const chart_series s[] = {{"top 1", chart_color[1], x, e->rows.v[ACCURACY + 1], e->rows.n, true},
                              {"top 5", chart_color[2], x, e->rows.v[ACCURACY5 + 1], e->rows.n, true}};
    char *title = clt_format("Evaluation accuracy%s%s", curves_is_plain(e) ? "" : ": ",
                             curves_is_plain(e) ? "" : e->label);
    if (isfinite(e->rows.v[ACCURACY5 + 1][e->rows.n - 1]))
        add_chart(out, c, title, s, CLT_COUNT_OF(s), false);
    clt_free(title);
    clt_free(x);
}

/* Seconds that each step waited for data. The rows have what their process has waited so far; nothing is
 * drawn for a run that never waited. */
static void stall_chart(clt_str *out, const curves *c) {
    const columns *t = &c->m->train;
    const double *all = t->v[DATA_STALL + 1];
    double *step = clt_calloc(t->n + 1, sizeof *step), before = 0, sum = 0;
    for (size_t i = 0; i < t->n; i++) {
        const double now = isfinite(all[i]) ? all[i] : 0;
        step[i] = now < before ? now : now - before; /* another process begins at 0 */
        before = now;
        sum += step[i];
    }
    const chart_series s = {"", chart_color[5], c->x, step, t->n, false};
    if (sum > 0) add_chart(out, c, "Seconds per step that training waited for data", &s, 1, false);
    clt_free(step);
}

static void add_all(clt_str *out, const curves *c) {
    const columns *t = &c->m->train;
    char *unit = metrics_unit(c->m, true), *rate = clt_format("%s per second", unit);
    if (*rate) *rate = (char)(*rate - 'a' + 'A');
    const struct {
        const char *title;
        int color, field;
        bool log_y;
    } rest[] = {{rate, 2, RATE, false},
                {"Gradient norm before clipping", 4, GRAD_NORM, true},
                {"Learning rate", 3, LR, false},
                {"Seconds per step", 5, SECONDS, false}};
    loss_chart(out, c);
    for (size_t i = 0; i < c->m->evals; i++) accuracy_chart(out, c, &c->m->eval[i]);
    for (size_t i = 0; i < CLT_COUNT_OF(rest); i++) {
        const chart_series s = {"", chart_color[rest[i].color], c->x, t->v[rest[i].field + 1], t->n, false};
        add_chart(out, c, rest[i].title, &s, 1, rest[i].log_y);
    }
    stall_chart(out, c);
    clt_free(unit);
    clt_free(rate);
}

void curves_add(clt_str *out, const compared_run *run, int n) {
    const metrics *m = &run[0].m;
    char *units = metrics_unit(m, true);
    const char *const name[X_AXES] = {"batches", units, "time"};
    for (int a = 0; a < X_AXES; a++)
        clt_str_addf(
            out, "<input type='radio' class='ax' name='ax' id='x%d'%s><label class='ax' for='x%d'>%s</label>",
            a, a == 0 ? " checked" : "", a, name[a]);
    clt_free(units);
    for (int a = 0; a < X_AXES; a++) {
        size_t marks;
        double *x = metrics_x(m, (x_axis)a);
        chart_mark *mark = marks_of(m, x, &marks);
        clt_str_addf(out, "<div class='x x%d'>\n", a);
        if (n > 1) compare_losses(out, run, n, (x_axis)a);
        add_all(out, &(curves){m, (x_axis)a, x, mark, marks});
        clt_str_add(out, "</div>\n");
        clt_free(mark);
        clt_free(x);
    }
    clt_str_add(out, "<p class='note'>Triangles are checkpoints; dashed lines are hops, resumes and what the "
                     "guards found.</p>\n");
}
