/* metrics.jsonl in the run's folder, and the callback of a program that embeds the library: one JSON object
 * for each step, evaluation and event. */
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/sink/clt_sink_kind.h"
#include "runtime/train/sink/clt_sink_lines.h"

typedef struct {
    const clt_sinks_params *p;
    const clt_model_terms *terms;
    clt_sink_lines *file; /* NULL: only the callback gets the rows */
} jsonl;

static clt_status jsonl_open(const clt_sinks_params *p, void **state) {
    clt_sink_lines *file = NULL;
    if (!p->folder && !p->row) return CLT_OK;
    if (p->folder) {
        char *path = clt_path_join(p->folder, "metrics.jsonl");
        const clt_status st = clt_sink_lines_open(path, &file, NULL);
        clt_free(path);
        CLT_TRY(st);
    }
    *state = clt_memdup(&(jsonl){p, clt_model_get_terms(p->cfg->model), file}, sizeof(jsonl));
    return CLT_OK;
}

static clt_status jsonl_close(void *state) {
    jsonl *j = state;
    const clt_status st = clt_sink_lines_close(j->file);
    clt_free(j);
    return st;
}

/* Closes the row's JSON object, passes it to callback and file, and frees it. */
static clt_status write_row(const jsonl *j, clt_str *row) {
    clt_status st = CLT_OK;
    clt_str_add(row, "}");
    if (j->p->row) j->p->row(j->p->row_ctx, row->s);
    clt_str_add(row, "\n");
    if (j->file) st = clt_sink_lines_append(j->file, row->s, row->len);
    clt_str_free(row);
    return st;
}

static clt_status jsonl_step(void *state, const clt_sink_step *s) {
    const bool by_sample = ((const jsonl *)state)->terms->by_sample;
    const clt_step_row *r = s->row;
    clt_str b = {0};
    clt_str_addf(&b, "{\"batch\":%lld,\"epoch\":%lld,\"sample\":%lld", (long long)r->after.batch,
                 (long long)r->after.epoch, (long long)r->after.sample);
    if (!by_sample) clt_str_addf(&b, ",\"token\":%lld", (long long)r->after.token);
    clt_json_add_number(&b, "loss", r->loss, "%.9g");
    clt_json_add_number(&b, "lr", r->lr, "%.9g");
    clt_json_add_number(&b, "grad_norm", (double)r->grad_norm, "%.9g");
    if (r->loss_scale > 0) clt_json_add_number(&b, "loss_scale", r->loss_scale, "%.9g");
    clt_json_add_number(&b, "step_seconds", r->step_seconds, "%.6f");
    clt_json_add_number(&b, by_sample ? "samples_per_sec" : "tokens_per_sec", r->units_per_second, "%.2f");
    clt_json_add_number(&b, "flops_per_sec", r->flops_per_second, "%.6g");
    if (r->mfu > 0) clt_json_add_number(&b, "mfu", r->mfu, "%.5f");
    if (r->stall_seconds >= 0) clt_json_add_number(&b, "data_stall_seconds", r->stall_seconds, "%.3f");
    clt_str_addf(&b, ",\"device_memory_bytes\":%llu", (unsigned long long)r->device_memory);
    return write_row(state, &b);
}

static clt_status jsonl_eval(void *state, const clt_sink_eval *e) {
    const clt_model_terms *terms = ((const jsonl *)state)->terms;
    const clt_eval_row *r = e->row;
    clt_str b = {0};
    clt_str_addf(&b, "{\"batch\":%lld", (long long)r->batch);
    if (strcmp(r->label, "eval") != 0) {
        clt_str_add(&b, ",\"label\":");
        clt_json_escape(&b, r->label);
    }
    clt_json_add_number(&b, "eval_loss", r->loss, "%.9g");
    if (terms->perplexity) clt_json_add_number(&b, "eval_perplexity", r->perplexity, "%.9g");
    clt_json_add_number(&b, "eval_accuracy", r->accuracy, "%.9g");
    if (terms->accuracy5) clt_json_add_number(&b, "eval_accuracy_top5", r->accuracy5, "%.9g");
    clt_json_add_number(&b, "eval_seconds", r->seconds, "%.3f");
    return write_row(state, &b);
}

static clt_status jsonl_named(void *state, const clt_sink_named *n) {
    const clt_metrics_row *r = n->row;
    clt_str b = {0};
    clt_str_addf(&b, "{\"batch\":%lld,\"label\":", (long long)r->batch);
    clt_json_escape(&b, r->label);
    clt_str_add(&b, ",\"metrics\":{");
    for (int i = 0; i < r->n; i++) {
        if (i) clt_str_add(&b, ",");
        clt_json_escape(&b, r->name[i]);
        clt_str_addf(&b, ":%.9g", r->value[i]);
    }
    clt_str_add(&b, "}");
    if (r->samples) clt_str_addf(&b, ",\"samples\":%lld", (long long)r->samples);
    if (r->samples) clt_json_add_number(&b, "eval_seconds", r->seconds, "%.3f");
    return write_row(state, &b);
}

static clt_status jsonl_event(void *state, const clt_sink_event *e) {
    clt_str b = {0};
    clt_str_addf(&b, "{\"event\":\"%s\",\"batch\":%lld%s%s", e->name, (long long)e->batch,
                 e->fields ? "," : "", e->fields ? e->fields : "");
    return write_row(state, &b);
}

const clt_sink_kind clt_sink_jsonl = {.name = "metrics.jsonl",
                                      .essential = true,
                                      .open = jsonl_open,
                                      .step = jsonl_step,
                                      .eval = jsonl_eval,
                                      .named = jsonl_named,
                                      .event = jsonl_event,
                                      .close = jsonl_close};
