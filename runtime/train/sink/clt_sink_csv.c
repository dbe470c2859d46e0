/* cltrain.csv: a table with one line for each step and each evaluation; what a line does not have is empty.
 * The smallest sink with a file. The columns are those of the model's metrics. */
#include <math.h>
#include <string.h>

#include "runtime/train/sink/clt_sink_kind.h"
#include "runtime/train/sink/clt_sink_lines.h"

enum { STEP_NUMBERS = 7, EVAL_NUMBERS = 4 }; /* columns from loss to mfu, and at most after eval_label */

typedef struct {
    clt_sink_lines *file;
    const clt_model_terms *terms;
} csv;

static clt_status add_heading(const csv *t) {
    const clt_model_terms *terms = t->terms;
    char *line = clt_format(
        "batch,epoch,sample%s,loss,lr,grad_norm,step_seconds,%s,flops_per_sec,mfu,device_memory_bytes,"
        "eval_label,eval_loss%s,eval_accuracy%s\n",
        terms->by_sample ? "" : ",token", terms->by_sample ? "samples_per_sec" : "tokens_per_sec",
        terms->perplexity ? ",eval_perplexity" : "", terms->accuracy5 ? ",eval_accuracy_top5" : "");
    clt_status st = clt_sink_lines_append(t->file, line, strlen(line));
    clt_free(line);
    return st;
}

static clt_status csv_open(const clt_sinks_params *p, void **state) {
    csv t = {.terms = clt_model_get_terms(p->cfg->model)};
    bool empty;
    if (!p->folder || !p->cfg->loggers.csv) return CLT_OK;
    CLT_TRY(clt_sink_lines_open(p->cfg->loggers.csv, &t.file, &empty));
    *state = clt_memdup(&t, sizeof t);
    return empty ? add_heading(*state) : CLT_OK;
}

static clt_status csv_close(void *state) {
    csv *t = state;
    clt_status st = clt_sink_lines_close(t->file);
    clt_free(t);
    return st;
}

static clt_status append(const csv *t, clt_str *line) {
    clt_status st = clt_sink_lines_append(t->file, line->s, line->len);
    clt_str_free(line);
    return st;
}

/* Each with a comma before it; NaN and infinity are empty cells. */
static void add_numbers(clt_str *b, const double *v, int n) {
    for (int i = 0; i < n; i++) {
        clt_str_add(b, ",");
        if (isfinite(v[i])) clt_str_addf(b, "%.9g", v[i]);
    }
}

static clt_status csv_step(void *state, const clt_sink_step *s) {
    const clt_model_terms *terms = ((const csv *)state)->terms;
    const clt_step_row *r = s->row;
    const double v[STEP_NUMBERS] = {r->loss,
                                    r->lr,
                                    (double)r->grad_norm,
                                    r->step_seconds,
                                    r->units_per_second,
                                    r->flops_per_second,
                                    r->mfu > 0 ? r->mfu : NAN};
    clt_str b = {0};
    clt_str_addf(&b, "%lld,%lld,%lld", (long long)r->after.batch, (long long)r->after.epoch,
                 (long long)r->after.sample);
    if (!terms->by_sample) clt_str_addf(&b, ",%lld", (long long)r->after.token);
    add_numbers(&b, v, STEP_NUMBERS);
    clt_str_addf(&b, ",%llu,,,", (unsigned long long)r->device_memory);
    if (terms->perplexity) clt_str_add(&b, ",");
    if (terms->accuracy5) clt_str_add(&b, ",");
    clt_str_add(&b, "\n");
    return append(state, &b);
}

/* In quotes, inside which a quote is written twice (RFC 4180). */
static void add_text(clt_str *b, const char *text) {
    clt_str_add(b, ",\"");
    for (; *text; text++) clt_str_addn(b, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1);
    clt_str_add(b, "\"");
}

static clt_status csv_eval(void *state, const clt_sink_eval *e) {
    const clt_model_terms *terms = ((const csv *)state)->terms;
    const clt_eval_row *r = e->row;
    double v[EVAL_NUMBERS] = {r->loss};
    int n = 1;
    clt_str b = {0};
    if (terms->perplexity) v[n++] = r->perplexity;
    v[n++] = r->accuracy;
    if (terms->accuracy5) v[n++] = r->accuracy5;
    clt_str_addf(&b, "%lld,,,,,,,,,,%s", (long long)r->batch, terms->by_sample ? "" : ",");
    add_text(&b, r->label);
    add_numbers(&b, v, n);
    clt_str_add(&b, "\n");
    return append(state, &b);
}

const clt_sink_kind clt_sink_csv = {
    .name = "cltrain.csv", .open = csv_open, .step = csv_step, .eval = csv_eval, .close = csv_close};
