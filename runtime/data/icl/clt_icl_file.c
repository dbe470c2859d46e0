/* The lines of a task's file, checked and stripped. */
#include <string.h>

#include "runtime/data/clt_jsonl.h"
#include "runtime/data/icl/clt_icl_internal.h"
#include "runtime/data/icl/clt_icl_text.h"

const char *clt_icl_context_key(const clt_icl_task *t) {
    return t->context_key ? t->context_key : t->kind == CLT_ICL_CHOICE ? "query" : "context";
}

const char *clt_icl_answer_key(const clt_icl_task *t) {
    if (t->kind == CLT_ICL_GENERATION && t->answer_key) return t->answer_key;
    return t->kind == CLT_ICL_GENERATION ? "answer" : "continuation";
}

const char *clt_icl_choices_key(const clt_icl_task *t) {
    return t->choices_key ? t->choices_key : t->kind == CLT_ICL_SCHEMA ? "context_options" : "choices";
}

static clt_status fail(const clt_jsonl_line *at, const char *key, const char *text) {
    return clt_error(CLT_BAD_DATA, "%s:%lld: key '%s' %s", at->path, (long long)at->number, key, text);
}

static clt_status check_string(const clt_jsonl_line *at, json_t *o, const char *key) {
    const char *text;
    size_t bytes;
    CLT_TRY(clt_jsonl_get_str(at, o, key, &text, &bytes));
    return strlen(text) == bytes ? CLT_OK : fail(at, key, "has a NUL character");
}

static clt_status check_strings(const clt_jsonl_line *at, json_t *list, const char *key, size_t least) {
    json_t *v;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) < least)
        return fail(at, key, least ? "must be a list with at least 1 string" : "must be a list of strings");
    json_array_foreach(list, i, v) {
        if (!json_is_string(v)) return fail(at, key, "must have strings only");
        if (strlen(json_string_value(v)) != json_string_length(v))
            return fail(at, key, "has a NUL character");
    }
    return CLT_OK;
}

static clt_status check_choices(const clt_jsonl_line *at, const clt_icl_task *t, json_t *o) {
    const char *key = clt_icl_choices_key(t);
    json_t *list = json_object_get(o, key), *gold = json_object_get(o, "gold");
    CLT_TRY(check_strings(at, list, key, 1));
    if (!json_is_integer(gold) || json_integer_value(gold) < 0 ||
        json_integer_value(gold) >= (json_int_t)json_array_size(list))
        return fail(at, "gold", "must be the index of one of the choices");
    return CLT_OK;
}

static clt_status check_item(const clt_jsonl_line *at, const clt_icl_task *t, json_t *o) {
    if (t->kind != CLT_ICL_SCHEMA) CLT_TRY(check_string(at, o, clt_icl_context_key(t)));
    if (t->kind != CLT_ICL_CHOICE) CLT_TRY(check_string(at, o, clt_icl_answer_key(t)));
    if (t->kind == CLT_ICL_CHOICE || t->kind == CLT_ICL_SCHEMA) CLT_TRY(check_choices(at, t, o));
    if (t->has_categories) CLT_TRY(check_string(at, o, "category"));
    if (t->kind != CLT_ICL_GENERATION) return CLT_OK;
    json_t *aliases = json_object_get(o, "aliases"), *cot = json_object_get(o, "chain_of_thought");
    if (aliases && !json_is_null(aliases)) CLT_TRY(check_strings(at, aliases, "aliases", 0));
    if (cot && !json_is_null(cot)) return check_string(at, o, "chain_of_thought");
    return CLT_OK;
}

static clt_status add_line(clt_icl_file *f, int64_t number, json_t *o) {
    if (f->n == f->cap) {
        const size_t cap = f->cap ? 2 * f->cap : 64;
        json_t **object = clt_try_realloc(f->object, cap * sizeof(json_t *));
        if (object) f->object = object;
        int64_t *numbers = clt_try_realloc(f->number, cap * sizeof *numbers);
        if (numbers) f->number = numbers;
        if (!object || !numbers) return clt_no_memory("the items of a task", cap * 16);
        f->cap = cap;
    }
    f->number[f->n] = number;
    f->object[f->n++] = json_incref(o);
    return CLT_OK;
}

static clt_status read_lines(clt_icl_file *f, clt_jsonl *in, const clt_icl_task *t) {
    for (;;) {
        clt_jsonl_line at;
        json_t *o;
        CLT_TRY(clt_jsonl_next(in, &at, &o));
        if (!o) break;
        clt_status st = check_item(&at, t, o);
        if (st == CLT_OK) st = add_line(f, at.number, o);
        json_decref(o);
        CLT_TRY(st);
    }
    return f->n > 0 ? CLT_OK : clt_error(CLT_BAD_DATA, "%s has no items", f->path);
}

clt_status clt_icl_file_open(const clt_icl_task *t, clt_icl_file **out) {
    clt_jsonl *in;
    CLT_TRY(clt_jsonl_open(t->dataset_uri, 0, &in));
    clt_icl_file *f = clt_calloc(1, sizeof *f);
    f->users = 1;
    f->path = clt_strdup(t->dataset_uri);
    clt_status st = read_lines(f, in, t);
    clt_jsonl_close(in);
    if (st == CLT_OK)
        *out = f;
    else
        clt_icl_file_release(f);
    return st;
}

void clt_icl_file_release(clt_icl_file *f) {
    if (!f || --f->users > 0) return;
    for (size_t i = 0; i < f->n; i++) json_decref(f->object[i]);
    clt_free(f->object);
    clt_free(f->number);
    clt_free(f->path);
    clt_free(f);
}
