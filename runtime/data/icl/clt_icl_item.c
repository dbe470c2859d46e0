/* Texts and tokens of one item. */
#include <string.h>

#include "runtime/data/icl/clt_icl_internal.h"
#include "runtime/data/icl/clt_icl_text.h"

/* --- texts --- */

/* A string of the file, stripped unless the task keeps white space. Strings inside lists are never
 * stripped. */
static char *text_of(const clt_icl_set *s, json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    size_t bytes;
    if (!text) return clt_strdup("");
    if (!s->task->strip_dataset) return clt_strdup(text);
    clt_icl_strip(text, &text, &bytes);
    return clt_strndup(text, bytes);
}

static const char *choice_at(const clt_icl_set *s, json_t *o, size_t i) {
    return json_string_value(json_array_get(json_object_get(o, clt_icl_choices_key(s->task)), i));
}

static size_t gold_of(json_t *o) {
    return (size_t)json_integer_value(json_object_get(o, "gold"));
}

char *clt_icl_answer_text(const clt_icl_set *s, json_t *o) {
    if (s->task->kind == CLT_ICL_CHOICE) return clt_strdup(choice_at(s, o, gold_of(o)));
    char *answer = text_of(s, o, clt_icl_answer_key(s->task));
    if (!s->has_cot) return answer;
    char *cot = text_of(s, o, "chain_of_thought");
    char *both = clt_format("%s%s%s", cot, s->task->cot_delimiter, answer);
    clt_free(cot);
    clt_free(answer);
    return both;
}

/* Appends an example with its answer to the prompt. */
static void add_example(const clt_icl_set *s, json_t *o, clt_str *prompt) {
    const clt_icl_task *t = s->task;
    const char *delimiter = prompt->len ? t->example_delimiter : "";
    const bool schema = t->kind == CLT_ICL_SCHEMA;
    char *context = schema ? clt_strdup(choice_at(s, o, gold_of(o))) : text_of(s, o, clt_icl_context_key(t)),
         *answer = clt_icl_answer_text(s, o);
    clt_str_addf(prompt, "%s%s%s%s%s", schema ? t->prelimiter : delimiter, schema ? delimiter : t->prelimiter,
                 context, t->continuation_delimiter, answer);
    clt_free(context);
    clt_free(answer);
}

static char *make_prompt(const clt_icl_set *s, size_t i) {
    clt_str prompt = {0};
    clt_str_add(&prompt, s->task->prompt_string);
    for (size_t k = 0; k < s->n_fewshot; k++)
        add_example(s, s->file->object[s->line[s->fewshot[i * s->n_fewshot + k]]], &prompt);
    return prompt.s;
}

/* A schema's contexts: the delimiters stand in another order than in other tasks, and the one before the
 * continuation is absent from a text with nothing before it. */
static void add_schema_contexts(const clt_icl_set *s, json_t *o, clt_icl_item *item) {
    const clt_icl_task *t = s->task;
    const size_t n = json_array_size(json_object_get(o, clt_icl_choices_key(t)));
    const size_t all = strlen(t->continuation_delimiter),
                 kept = t->strip_dataset ? clt_icl_rstrip(t->continuation_delimiter) : all;
    for (size_t i = 0; i < n; i++)
        clt_strv_add_owned(&item->context,
                           *item->prompt
                               ? clt_format("%s%s%s%.*s", t->prelimiter, t->example_delimiter,
                                            choice_at(s, o, i), (int)kept, t->continuation_delimiter)
                               : clt_format("%s%s", t->prelimiter, choice_at(s, o, i)));
}

static void add_contexts(const clt_icl_set *s, json_t *o, clt_icl_item *item) {
    const clt_icl_task *t = s->task;
    if (t->kind == CLT_ICL_SCHEMA) {
        add_schema_contexts(s, o, item);
        return;
    }
    char *context = text_of(s, o, clt_icl_context_key(t));
    clt_strv_add_owned(&item->context, clt_format("%s%s%s%s", *item->prompt ? t->example_delimiter : "",
                                                  t->prelimiter, context, t->continuation_delimiter));
    clt_free(context);
}

/* --- tokens --- */

clt_status clt_icl_encode(const clt_tokenizer *tok, const char *text, unsigned flags, int32_t **ids,
                          size_t *n) {
    const size_t bytes = strlen(text), most = clt_tokenizer_max_ids(tok, bytes) + 1;
    *ids = clt_try_malloc(most * sizeof **ids);
    if (!*ids) return clt_no_memory("the tokens of a text", most * sizeof **ids);
    clt_status st = clt_tokenizer_encode(tok, text, bytes, flags, *ids, most, n);
    if (st != CLT_OK) clt_free(*ids);
    return st;
}

typedef struct {
    int32_t *ids;
    size_t n;
} tokens;

/* Flags for a text that is not the first one of its row. */
static unsigned later_flags(const clt_icl_set *s) {
    return clt_tokenizer_default_flags(s->tok) & ~(unsigned)CLT_TOKEN_TEMPLATE;
}

/* Tokens of the prompt with the template's, but without an end of text, and of a context behind it. */
static clt_status encode_context(const clt_icl_set *s, const char *prompt, const char *context, tokens *out) {
    tokens first, rest;
    char *text = clt_strdup(context);
    const int64_t eos = clt_tokenizer_eos_id(s->tok);
    *out = (tokens){NULL, 0};
    if (s->task->strip_dataset && s->task->kind != CLT_ICL_SCHEMA) text[clt_icl_rstrip(text)] = 0;
    clt_status st = clt_icl_encode(s->tok, text, later_flags(s), &rest.ids, &rest.n);
    clt_free(text);
    CLT_TRY(st);
    st = clt_icl_encode(s->tok, prompt, clt_tokenizer_default_flags(s->tok), &first.ids, &first.n);
    if (st == CLT_OK) {
        if (first.n > 1 && first.ids[first.n - 1] == eos) first.n--;
        out->n = first.n + rest.n;
        out->ids = clt_try_malloc((out->n + 1) * sizeof *out->ids);
        if (out->ids) {
            memcpy(out->ids, first.ids, first.n * sizeof *out->ids);
            memcpy(out->ids + first.n, rest.ids, rest.n * sizeof *out->ids);
        } else {
            st = clt_no_memory("the tokens of a context", out->n * sizeof *out->ids);
        }
        clt_free(first.ids);
    }
    clt_free(rest.ids);
    return st;
}

/* The row of a context and a continuation, cut on the left to the set's width. Like Foundry, a context with
 * no room at all is not cut. */
static clt_status make_row(const clt_icl_set *s, size_t i, tokens context, tokens end, clt_icl_row *row) {
    const size_t width = (size_t)s->width;
    if (end.n > width) return clt_icl_set_fail(s, i, "the continuation has more tokens than max_seq_len");
    const size_t room = width - end.n;
    const size_t kept = context.n <= room || room == 0 ? context.n : room;
    row->ids = clt_try_malloc((kept + end.n + 1) * sizeof *row->ids);
    if (!row->ids) return clt_no_memory("the tokens of a row", (kept + end.n) * sizeof *row->ids);
    if (kept) memcpy(row->ids, context.ids + (context.n - kept), kept * sizeof *row->ids);
    if (end.n) memcpy(row->ids + kept, end.ids, end.n * sizeof *row->ids);
    row->first = kept;
    row->n = kept + end.n;
    return CLT_OK;
}

static clt_status check_row(const clt_icl_set *s, size_t i, const clt_icl_row *row) {
    if (row->n == row->first) return clt_icl_set_fail(s, i, "the continuation has no tokens");
    if (row->first == 0) return clt_icl_set_fail(s, i, "nothing stands before the continuation");
    return CLT_OK;
}

/* Row k of the item: its context is the k-th one, or the only one. */
static clt_status add_row(const clt_icl_set *s, size_t i, clt_icl_item *item, size_t k, const char *answer) {
    const bool blank = s->prefix_space && answer[0] != ' ';
    tokens context, end = {NULL, 0};
    char *text = clt_format("%s%s", blank ? " " : "", answer);
    clt_status st = clt_icl_encode(s->tok, text, later_flags(s), &end.ids, &end.n);
    clt_free(text);
    CLT_TRY(st);
    st = encode_context(s, item->prompt, item->context.v[item->context.n > 1 ? k : 0], &context);
    if (st == CLT_OK) st = make_row(s, i, context, end, &item->row[k]);
    if (st == CLT_OK) st = check_row(s, i, &item->row[k]);
    clt_free(context.ids);
    clt_free(end.ids);
    return st;
}

static clt_status make_choices(const clt_icl_set *s, size_t i, json_t *o, clt_icl_item *item) {
    const bool schema = s->task->kind == CLT_ICL_SCHEMA;
    char *same = schema ? clt_icl_answer_text(s, o) : NULL;
    clt_status st = CLT_OK;
    item->gold = (int64_t)gold_of(o);
    for (size_t k = 0; k < item->n_rows && st == CLT_OK; k++)
        st = add_row(s, i, item, k, schema ? same : choice_at(s, o, k));
    clt_free(same);
    return st;
}

/* --- generation --- */

static void add_label(clt_strv *labels, const char *text) {
    for (size_t i = 0; i < labels->n; i++)
        if (strcmp(labels->v[i], text) == 0) return;
    clt_strv_add(labels, text);
}

static clt_status make_generation(const clt_icl_set *s, size_t i, json_t *o, clt_icl_item *item) {
    tokens context;
    json_t *v;
    size_t k;
    add_label(&item->labels, json_string_value(json_object_get(o, clt_icl_answer_key(s->task))));
    json_array_foreach(json_object_get(o, "aliases"), k, v) add_label(&item->labels, json_string_value(v));
    clt_strv_sort(&item->labels);
    clt_status st = encode_context(s, item->prompt, item->context.v[0], &context);
    if (st == CLT_OK) st = make_row(s, i, context, (tokens){NULL, 0}, &item->row[0]);
    clt_free(context.ids);
    CLT_TRY(st);
    item->pad_left = s->width - (int64_t)item->row[0].n;
    return item->row[0].n ? CLT_OK : clt_icl_set_fail(s, i, "the context has no tokens");
}

/* --- items --- */

clt_status clt_icl_set_item(const clt_icl_set *s, size_t i, clt_icl_item *out) {
    json_t *o = s->file->object[s->line[i]];
    const bool choices = s->task->kind == CLT_ICL_CHOICE || s->task->kind == CLT_ICL_SCHEMA;
    *out = (clt_icl_item){.prompt = make_prompt(s, i)};
    out->n_rows = choices ? json_array_size(json_object_get(o, clt_icl_choices_key(s->task))) : 1;
    out->row = clt_calloc(out->n_rows, sizeof *out->row);
    add_contexts(s, o, out);
    if (choices) return make_choices(s, i, o, out);
    if (s->task->kind == CLT_ICL_GENERATION) return make_generation(s, i, o, out);
    char *answer = clt_icl_answer_text(s, o);
    clt_status st = add_row(s, i, out, 0, answer);
    clt_free(answer);
    return st;
}

void clt_icl_item_free(clt_icl_item *item) {
    for (size_t i = 0; i < item->n_rows; i++) clt_free(item->row[i].ids);
    clt_free(item->row);
    clt_free(item->prompt);
    clt_strv_free(&item->context);
    clt_strv_free(&item->labels);
    *item = (clt_icl_item){0};
}
