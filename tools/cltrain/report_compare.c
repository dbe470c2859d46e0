#include "tools/cltrain/report_compare.h"

#include <math.h>
#include <string.h>

#include "tools/cltrain/report_chart.h"
#include "runtime/base/clt_io.h"

/* A run's loss minus base's, at the common batches where both are finite. */
typedef struct {
    double *batch, *difference;
    size_t n;
} differences;

/* Both lists are sorted by batch. */
static differences subtract(const columns *run, const columns *base) {
    differences d = {clt_calloc(run->n + 1, sizeof(double)), clt_calloc(run->n + 1, sizeof(double)), 0};
    for (size_t i = 0, k = 0; i < run->n; i++) {
        while (k < base->n && base->v[0][k] < run->v[0][i]) k++;
        if (k == base->n || base->v[0][k] != run->v[0][i]) continue;
        double by = run->v[LOSS + 1][i] - base->v[LOSS + 1][k];
        if (!isfinite(by)) continue;
        d.batch[d.n] = run->v[0][i];
        d.difference[d.n++] = by;
    }
    return d;
}

static void row(clt_str *out, const char *name, const differences *d) {
    double sum = 0, late = 0, worst = 0, at = 0;
    size_t tail = CLT_MAX(d->n / 10, (size_t)1);
    for (size_t i = 0; i < d->n; i++) {
        sum += d->difference[i];
        if (i >= d->n - tail) late += d->difference[i];
        if (fabs(d->difference[i]) > fabs(worst)) {
            worst = d->difference[i];
            at = d->batch[i];
        }
    }
    clt_str_add(out, "<tr><td>");
    html_text(out, name, strlen(name));
    clt_str_addf(out, "</td><td>%zu</td>", d->n);
    if (d->n == 0)
        clt_str_add(out, "<td>-</td><td>-</td><td>-</td></tr>\n");
    else if (worst == 0)
        clt_str_add(out, "<td>0: the same losses</td><td>0</td><td>0</td></tr>\n");
    else
        clt_str_addf(out, "<td>%.3g, at batch %.0f</td><td>%.3g</td><td>%.3g</td></tr>\n", worst, at,
                     sum / (double)d->n, late / (double)tail);
}

void compare_losses(clt_str *out, const compared_run *run, int n, x_axis axis) {
    chart_series s[COMPARE_MOST];
    double *x[COMPARE_MOST];
    for (int i = 0; i < n; i++) {
        const columns *t = &run[i].m.train;
        x[i] = metrics_x(&run[i].m, axis);
        s[i] = (chart_series){clt_path_base(run[i].name), chart_color[i], x[i], t->v[LOSS + 1], t->n, false};
    }
    char *unit = metrics_unit(&run[0].m, false), *title = clt_format("Training loss (nats per %s)", unit),
         *label = metrics_x_label(&run[0].m, axis);
    chart_add(out,
              &(chart){.title = title, .x_label = label, .x = (chart_x)axis, .series = s, .n = (size_t)n});
    clt_free(unit);
    clt_free(title);
    clt_free(label);
    for (int i = 0; i < n; i++) clt_free(x[i]);
}

void compare_add(clt_str *out, const compared_run *run, int n) {
    differences d[COMPARE_MOST];
    chart_series s[COMPARE_MOST];
    clt_str_add(out, "<h2>Comparison with other runs</h2>\n");
    for (int i = 1; i < n; i++) {
        d[i] = subtract(&run[i].m.train, &run[0].m.train);
        s[i] = (chart_series){
            clt_path_base(run[i].name), chart_color[i], d[i].batch, d[i].difference, d[i].n, false};
    }
    chart_add(out, &(chart){.title = "Training loss minus the first run&#39;s",
                            .x_label = "batches",
                            .series = s + 1,
                            .n = (size_t)n - 1});
    clt_str_add(out, "<table><tr><th>run</th><th>batches in common</th><th>largest "
                     "difference</th><th>mean</th><th>mean of the last tenth</th></tr>\n");
    for (int i = 1; i < n; i++) {
        row(out, run[i].name, &d[i]);
        clt_free(d[i].batch);
        clt_free(d[i].difference);
    }
    clt_str_add(out, "</table>\n");
}
