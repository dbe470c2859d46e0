/* cltrain.csv: a table with one line for each step and each evaluation; what a line does not have is empty.
 * The smallest sink with a file. */
#include <math.h>

#include "runtime/train/sink/clt_sink_kind.h"
#include "runtime/train/sink/clt_sink_lines.h"

static const char heading[] =
    "batch,epoch,sample,token,loss,lr,grad_norm,step_seconds,tokens_per_sec,flops_per_sec,mfu,"
    "device_memory_bytes,eval_label,eval_loss,eval_perplexity,eval_accuracy\n";
enum { STEP_NUMBERS = 7, EVAL_NUMBERS = 3 }; /* columns from loss to mfu, and after eval_label */

static clt_status csv_open(const clt_sinks_params *p, void **state) {
    clt_sink_lines *file;
    bool empty;
    if (!p->folder || !p->cfg->loggers.csv) return CLT_OK;
    CLT_TRY(clt_sink_lines_open(p->cfg->loggers.csv, &file, &empty));
    *state = file;
    return empty ? clt_sink_lines_append(file, heading, sizeof heading - 1) : CLT_OK;
}

static clt_status csv_close(void *state) {
    return clt_sink_lines_close(state);
}

static clt_status append(void *state, clt_str *line) {
    clt_status st = clt_sink_lines_append(state, line->s, line->len);
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
    const clt_step_row *r = s->row;
    const double v[STEP_NUMBERS] = {r->loss,
                                    r->lr,
                                    (double)r->grad_norm,
                                    r->step_seconds,
                                    r->tokens_per_second,
                                    r->flops_per_second,
                                    r->mfu > 0 ? r->mfu : NAN};
    clt_str b = {0};
    clt_str_addf(&b, "%lld,%lld,%lld,%lld", (long long)r->after.batch, (long long)r->after.epoch,
                 (long long)r->after.sample, (long long)r->after.token);
    add_numbers(&b, v, STEP_NUMBERS);
    clt_str_addf(&b, ",%llu,,,,\n", (unsigned long long)r->device_memory);
    return append(state, &b);
}

/* In quotes, inside which a quote is written twice (RFC 4180). */
static void add_text(clt_str *b, const char *text) {
    clt_str_add(b, ",\"");
    for (; *text; text++) clt_str_addn(b, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1);
    clt_str_add(b, "\"");
}

static clt_status csv_eval(void *state, const clt_sink_eval *e) {
    const clt_eval_row *r = e->row;
    const double v[EVAL_NUMBERS] = {r->loss, r->perplexity, r->accuracy};
    clt_str b = {0};
    clt_str_addf(&b, "%lld,,,,,,,,,,,", (long long)r->batch);
    add_text(&b, r->label);
    add_numbers(&b, v, EVAL_NUMBERS);
    clt_str_add(&b, "\n");
    return append(state, &b);
}

const clt_sink_kind clt_sink_csv = {
    .name = "cltrain.csv", .open = csv_open, .step = csv_step, .eval = csv_eval, .close = csv_close};
