/* In-context-learning tasks in a run: opened at its start, evaluated with the eval loaders. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/train/run/clt_run.h"

/* --- opening --- */

/* Rows of the largest batch that generates text, at most as many as gain from reading the weights together;
 * 0: none does. */
static int64_t generated_rows(const clt_icl_sets *sets) {
    enum { MOST = 8 };
    size_t rows = 0;
    for (size_t i = 0; i < sets->n; i++)
        if (sets->set[i].task->kind == CLT_ICL_GENERATION)
            rows = CLT_MAX(rows, CLT_MIN(sets->set[i].batch_items, sets->set[i].n));
    return (int64_t)CLT_MIN(rows, (size_t)MOST);
}

/* Keys and values of every place take device memory. Fewer places give the same texts later. */
static clt_status open_text_model(clt_run *r) {
    clt_run_icl *x = &r->icl;
    for (x->places = generated_rows(&x->sets); x->places > 1; x->places /= 2) {
        clt_error_quiet(true);
        clt_status st = clt_engine_text_model(r->engine, x->places, &x->text);
        clt_error_quiet(false);
        if (st == CLT_OK) return st;
    }
    return x->places ? clt_engine_text_model(r->engine, x->places, &x->text) : CLT_OK;
}

clt_status clt_run_icl_open(clt_run *r) {
    const clt_config *c = r->cfg;
    const clt_model_facts facts = clt_model_get_facts(c->model);
    if (c->icl.n == 0) return CLT_OK;
    CLT_TRY(clt_tokenizer_open(c->tokenizer, &r->icl.tok));
    if (clt_tokenizer_vocab_size(r->icl.tok) > facts.vocab_size)
        clt_warn("tokenizer.name has %lld tokens, model.vocab_size is %lld: an item with a token outside the "
                 "model's vocabulary is an error",
                 (long long)clt_tokenizer_vocab_size(r->icl.tok), (long long)facts.vocab_size);
    for (size_t i = 0; i < c->icl.n; i++)
        CLT_TRY(clt_icl_sets_add(&r->icl.sets, &c->icl.task[i], r->icl.tok));
    return open_text_model(r);
}

void clt_run_icl_close(clt_run *r) {
    clt_model_destroy(r->icl.text);
    clt_icl_sets_free(&r->icl.sets);
    clt_tokenizer_close(r->icl.tok);
    r->icl = (clt_run_icl){0};
}

/* --- items as JSON --- */

static json_t *ids_json(const int32_t *ids, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *row_json(const clt_icl_row *row, const clt_icl_score *score) {
    json_t *o = json_object();
    json_object_set_new(o, "input_ids", ids_json(row->ids, row->n));
    if (!score) return o;
    json_object_set_new(o, "continuation", json_pack("[I,I]", (json_int_t)row->first, (json_int_t)row->n));
    json_object_set_new(o, "logprob", json_real(score->logprob));
    json_object_set_new(o, "greedy", json_boolean(score->greedy));
    return o;
}

static json_t *strings_json(const clt_strv *v) {
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++) json_array_append_new(list, json_string(v->v[i]));
    return list;
}

static json_t *choices_json(const clt_icl_item *item, const clt_icl_outcome *x) {
    json_t *o = json_object(), *list = json_array();
    for (size_t i = 0; i < item->n_rows; i++)
        json_array_append_new(list, row_json(&item->row[i], &x->score[i]));
    json_object_set_new(o, "choices", list);
    json_object_set_new(o, "gold", json_integer(item->gold));
    json_object_set_new(o, "chosen", json_integer(x->chosen));
    return o;
}

static json_t *generation_json(const clt_icl_item *item, const clt_icl_outcome *x) {
    json_t *o = row_json(&item->row[0], NULL);
    json_object_set_new(o, "pad_left", json_integer(item->pad_left));
    json_object_set_new(o, "output", json_string(x->output));
    json_object_set_new(o, "labels", strings_json(&item->labels));
    return o;
}

/* clt_icl_item_fn: appends the item to a JSON list. */
static void add_item(void *ctx, const clt_icl_set *s, size_t i, const clt_icl_item *item,
                     const clt_icl_outcome *x) {
    const int kind = s->task->kind;
    json_t *o = kind == CLT_ICL_GENERATION ? generation_json(item, x)
                : kind == CLT_ICL_LM       ? row_json(&item->row[0], &x->score[0])
                                           : choices_json(item, x),
           *fewshot = json_array();
    for (size_t k = 0; k < s->n_fewshot; k++)
        json_array_append_new(fewshot, json_integer(s->fewshot[i * s->n_fewshot + k]));
    json_object_set_new(o, "fewshot", fewshot);
    json_object_set_new(o, "prompt", json_string(item->prompt));
    json_object_set_new(o, "context",
                        kind == CLT_ICL_SCHEMA ? strings_json(&item->context)
                                               : json_string(item->context.v[0]));
    json_object_set_new(o, "correct", json_boolean(x->correct));
    json_array_append_new(ctx, o);
}

/* --- results --- */

/* Rows of each batch, as Foundry makes them on one rank: an item has one, or one for each of its choices. */
static json_t *batch_rows(const clt_icl_set *s, const json_t *items) {
    json_t *list = json_array(), *item;
    size_t i, rows = 0;
    json_array_foreach(items, i, item) {
        const json_t *choices = json_object_get(item, "choices");
        rows += choices ? json_array_size(choices) : 1;
        if ((i + 1) % s->batch_items && i + 1 < json_array_size(items)) continue;
        json_array_append_new(list, json_integer((json_int_t)rows));
        rows = 0;
    }
    return list;
}

static clt_status print_document(json_t *o) {
    char *text;
    clt_status st = clt_json_dump(o, "a result", &text);
    json_decref(o);
    CLT_TRY(st);
    printf("%s\n", text);
    clt_free(text);
    return CLT_OK;
}

static clt_status print_set(const clt_run *r, const clt_icl_set *s, const clt_icl_result *x, json_t *items) {
    json_t *o = json_object(), *metrics = json_object();
    for (int m = 0; m < s->task->n_metrics; m++)
        json_object_set_new(metrics, clt_icl_metric_name(s->task->order[m]),
                            json_real(x->value[s->task->order[m]]));
    if (r->cfg->model_name) json_object_set_new(o, "model", json_string(r->cfg->model_name));
    json_object_set_new(o, "label", json_string(s->label));
    json_object_set_new(o, "batch", json_integer(r->progress.now.batch));
    json_object_set_new(o, "metrics", metrics);
    json_object_set_new(o, "samples", json_integer(x->samples));
    if (items) json_object_set_new(o, "batch_rows", batch_rows(s, items));
    if (items) json_object_set(o, "items", items);
    return print_document(o);
}

static const char *category_of(const clt_config *c, const clt_icl_task *t) {
    const char *found = "";
    for (size_t i = 0; c->gauntlet && i < c->gauntlet->n; i++)
        for (size_t k = 0; k < c->gauntlet->category[i].n; k++)
            if (strcmp(c->gauntlet->category[i].benchmark[k].name, t->label) == 0)
                found = c->gauntlet->category[i].name;
    return found;
}

static void tell_accuracies(const clt_run *r, const clt_icl_set *s, const clt_icl_result *x) {
    const clt_eval_report *report = clt_group_rank(r->group) == 0 ? r->opt->eval : NULL;
    for (int m = 0; report && report->accuracy && m < s->task->n_metrics; m++) {
        const clt_icl_metric metric = s->task->order[m];
        if (!clt_icl_metric_is_accuracy(metric)) continue;
        const clt_eval_accuracy row = {.model = r->cfg->model_name ? r->cfg->model_name : r->cfg->run_name,
                                       .category = category_of(r->cfg, s->task),
                                       .benchmark = s->task->label,
                                       .subtask = s->category,
                                       .shots = s->shots,
                                       .accuracy = x->value[metric]};
        report->accuracy(report->ctx, &row);
    }
}

static void log_set(clt_run *r, const clt_icl_set *s, const clt_icl_result *x) {
    const char *name[CLT_ICL_METRICS];
    double value[CLT_ICL_METRICS];
    for (int m = 0; m < s->task->n_metrics; m++) {
        name[m] = clt_icl_metric_name(s->task->order[m]);
        value[m] = x->value[s->task->order[m]];
    }
    clt_sinks_metrics(r->sinks, &(clt_metrics_row){.batch = r->progress.now.batch,
                                                   .label = s->label,
                                                   .n = s->task->n_metrics,
                                                   .name = name,
                                                   .value = value,
                                                   .samples = x->samples,
                                                   .seconds = x->seconds});
}

static clt_status run_set(clt_run *r, clt_icl_run *run, const clt_icl_set *s, bool json,
                          clt_icl_result *out) {
    const bool items = json && r->opt->eval && r->opt->eval->items;
    json_t *list = items ? json_array() : NULL;
    run->item = items ? add_item : NULL;
    run->ctx = list;
    clt_status st = clt_icl_run_set(run, s, out);
    if (st == CLT_OK) log_set(r, s, out);
    if (st == CLT_OK) tell_accuracies(r, s, out);
    if (st == CLT_OK && json && clt_group_rank(r->group) == 0) st = print_set(r, s, out, list);
    json_decref(list);
    return st;
}

/* --- averages --- */

/* The mean of the accuracies of a set; a set without one is not part of the gauntlet. */
static bool accuracy_of(const clt_icl_set *s, const clt_icl_result *x, double *out) {
    int n = 0;
    *out = 0;
    for (int m = 0; m < s->task->n_metrics; m++) {
        if (!clt_icl_metric_is_accuracy(s->task->order[m])) continue;
        *out += x->value[s->task->order[m]];
        n++;
    }
    if (n) *out /= n;
    return n > 0;
}

static clt_status report_scores(clt_run *r, const char **name, double *score, size_t n, bool json) {
    const clt_eval_report *report = clt_group_rank(r->group) == 0 ? r->opt->eval : NULL;
    clt_sinks_metrics(r->sinks, &(clt_metrics_row){.batch = r->progress.now.batch,
                                                   .label = "eval_gauntlet",
                                                   .prefix = "icl/",
                                                   .n = (int)n,
                                                   .name = name,
                                                   .value = score});
    for (size_t i = 0; report && report->score && i < n; i++)
        report->score(report->ctx, r->cfg->model_name ? r->cfg->model_name : r->cfg->run_name, name[i],
                      score[i]);
    if (!json || clt_group_rank(r->group) != 0) return CLT_OK;
    json_t *o = json_object(), *scores = json_object();
    for (size_t i = 0; i < n; i++) json_object_set_new(scores, name[i], json_real(score[i]));
    if (r->cfg->model_name) json_object_set_new(o, "model", json_string(r->cfg->model_name));
    json_object_set_new(o, "batch", json_integer(r->progress.now.batch));
    json_object_set_new(o, "eval_gauntlet", scores);
    return print_document(o);
}

static clt_status run_gauntlet(clt_run *r, const clt_icl_result *result, bool json) {
    const clt_icl_sets *all = &r->icl.sets;
    clt_gauntlet_result *of = clt_calloc(all->n + 1, sizeof *of);
    const char **name;
    double *score;
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) {
        of[n] = (clt_gauntlet_result){.label = all->set[i].label, .samples = (int64_t)all->set[i].n};
        n += accuracy_of(&all->set[i], &result[i], &of[n].accuracy);
    }
    n = clt_gauntlet_scores(r->cfg->gauntlet, of, n, &name, &score);
    clt_status st = report_scores(r, name, score, n, json);
    clt_free(of);
    clt_free(name);
    clt_free(score);
    return st;
}

/* The text model keeps keys and values of its last texts, which other weights may have made: texts of one
 * token replace them. */
static clt_status forget_last_texts(const clt_run *r, int64_t vocab) {
    const clt_run_icl *x = &r->icl;
    const int32_t id = 0;
    if (!x->text) return CLT_OK;
    const size_t bytes = (size_t)(x->places * vocab) * sizeof(float);
    clt_model_text *text = clt_calloc((size_t)x->places, sizeof *text);
    float *logits = clt_try_malloc(bytes);
    for (int64_t i = 0; i < x->places; i++) text[i] = (clt_model_text){i, &id, 1};
    clt_status st = logits ? clt_engine_settle(r->engine) : clt_no_memory("logits", bytes);
    if (st == CLT_OK) st = clt_model_next(x->text, text, x->places, logits);
    clt_free(logits);
    clt_free(text);
    return st;
}

clt_status clt_run_icl_eval(clt_run *r, bool json) {
    clt_icl_run run = {.engine = r->engine,
                       .group = r->group,
                       .facts = clt_model_get_facts(r->cfg->model),
                       .text = r->icl.text,
                       .places = r->icl.places,
                       .subset = r->cfg->icl_subset_num_batches};
    const size_t n = r->icl.sets.n;
    clt_icl_result *result = clt_calloc(n + 1, sizeof *result);
    clt_status st = clt_group_agree(r->group, forget_last_texts(r, run.facts.vocab_size));
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        st = run_set(r, &run, &r->icl.sets.set[i], json, &result[i]);
        if (st == CLT_OK && clt_group_stop(r->group)) st = CLT_STOPPED;
    }
    if (st == CLT_OK && r->cfg->gauntlet) st = run_gauntlet(r, result, json);
    clt_free(result);
    return st;
}
