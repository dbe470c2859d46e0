#include "runtime/data/icl/clt_icl_set.h"

#include <string.h>

#include "runtime/data/icl/clt_icl_internal.h"
#include "runtime/data/icl/clt_python_random.h"

/* --- examples --- */

/* Foundry keeps the examples in a set, draws a new one for the item itself, and writes them in the set's
 * order. */
static clt_status draw_examples(clt_python_random *r, size_t n, size_t k, size_t item, int64_t *out) {
    clt_python_set drawn = {0};
    CLT_TRY(clt_python_random_sample(r, (int64_t)n, (int64_t)k, out));
    for (size_t i = 0; i < k; i++) clt_python_set_add(&drawn, out[i]);
    if (clt_python_set_has(&drawn, (int64_t)item)) {
        int64_t other;
        clt_python_set_remove(&drawn, (int64_t)item);
        do other = clt_python_random_choice(r, (int64_t)n);
        while (other == (int64_t)item || clt_python_set_has(&drawn, other));
        clt_python_set_add(&drawn, other);
    }
    clt_python_set_list(&drawn, out);
    clt_python_set_free(&drawn);
    return CLT_OK;
}

static clt_status draw_all(clt_icl_set *s) {
    clt_python_random r;
    s->n_fewshot = CLT_MIN((size_t)s->shots, s->n - 1);
    s->fewshot = clt_try_malloc((s->n * s->n_fewshot + 1) * sizeof *s->fewshot);
    if (!s->fewshot) return clt_no_memory("the examples of a task", s->n * s->n_fewshot * 8);
    clt_python_random_seed(&r, s->task->fewshot_random_seed);
    for (size_t i = 0; i < s->n && s->shots > 0; i++)
        CLT_TRY(draw_examples(&r, s->n, s->n_fewshot, i, s->fewshot + i * s->n_fewshot));
    return CLT_OK;
}

/* --- what follows from all items --- */

static json_t *object_at(const clt_icl_set *s, size_t i) {
    return s->file->object[s->line[i]];
}

static clt_status count_tokens(const clt_icl_set *s, const char *cot, const char *answer, int64_t *most) {
    int32_t *ids;
    size_t n;
    char *text = s->has_cot ? clt_format("%s%s%s", cot, s->task->cot_delimiter, answer) : clt_strdup(answer);
    clt_status st = clt_icl_encode(s->tok, text, clt_tokenizer_default_flags(s->tok), &ids, &n);
    clt_free(text);
    CLT_TRY(st);
    clt_free(ids);
    *most = CLT_MAX(*most, (int64_t)n);
    return CLT_OK;
}

/* The longest answer, in tokens with those of the template, over all aliases. The strings are not stripped
 * yet when Foundry measures them. */
static clt_status measure_answers(clt_icl_set *s) {
    enum { COT_ROOM = 10 };
    for (size_t i = 0; i < s->n; i++) {
        json_t *o = object_at(s, i), *v;
        size_t k;
        const char *cot = json_string_value(json_object_get(o, "chain_of_thought"));
        CLT_TRY(count_tokens(s, cot ? cot : "",
                             json_string_value(json_object_get(o, clt_icl_answer_key(s->task))),
                             &s->longest));
        json_array_foreach(json_object_get(o, "aliases"), k, v)
            CLT_TRY(count_tokens(s, cot ? cot : "", json_string_value(v), &s->longest));
    }
    if (*s->task->cot_delimiter) s->longest += COT_ROOM;
    s->width = s->task->max_seq_len - s->longest;
    if (s->width < 1)
        return clt_error(CLT_BAD_CONFIG,
                         "%s: the longest answer has %lld tokens, which leaves no room for a context in "
                         "max_seq_len %lld",
                         s->label, (long long)s->longest, (long long)s->task->max_seq_len);
    return CLT_OK;
}

static clt_status measure(clt_icl_set *s) {
    int32_t *blank;
    size_t n;
    CLT_TRY(clt_icl_encode(s->tok, " a", 0, &blank, &n));
    clt_free(blank);
    s->prefix_space = n == 1;
    s->width = s->task->max_seq_len;
    s->choices = 1;
    if (s->task->kind == CLT_ICL_CHOICE || s->task->kind == CLT_ICL_SCHEMA)
        s->choices = json_array_size(json_object_get(object_at(s, 0), clt_icl_choices_key(s->task)));
    s->batch_items = CLT_MAX((size_t)s->task->batch_size / s->choices, (size_t)1);
    for (size_t i = 0; i < s->file->n; i++)
        s->has_cot = s->has_cot || json_object_get(s->file->object[i], "chain_of_thought");
    s->has_cot = s->has_cot && s->task->kind == CLT_ICL_GENERATION;
    return s->task->kind == CLT_ICL_GENERATION ? measure_answers(s) : CLT_OK;
}

/* --- sets --- */

static const char *category_of(const json_t *o) {
    return json_string_value(json_object_get(o, "category"));
}

static clt_status choose_lines(clt_icl_set *s) {
    s->line = clt_try_malloc(s->file->n * sizeof *s->line);
    if (!s->line) return clt_no_memory("the items of a task", s->file->n * sizeof *s->line);
    for (size_t i = 0; i < s->file->n; i++)
        if (!s->category || strcmp(s->category, category_of(s->file->object[i])) == 0) s->line[s->n++] = i;
    return CLT_OK;
}

static void free_set(clt_icl_set *s) {
    clt_icl_file_release(s->file);
    clt_free(s->line);
    clt_free(s->fewshot);
    clt_free(s->label);
}

static clt_status add_set(clt_icl_sets *out, const clt_icl_task *t, const clt_tokenizer *tok, clt_icl_file *f,
                          int64_t shots, const char *category) {
    out->set = clt_realloc(out->set, (out->n + 1) * sizeof *out->set);
    clt_icl_set *s = &out->set[out->n++];
    *s = (clt_icl_set){.task = t, .tok = tok, .shots = shots, .category = category, .file = f};
    f->users++;
    s->label = category ? clt_format("%s/%lld-shot/%s", t->label, (long long)shots, category)
                        : clt_format("%s/%lld-shot", t->label, (long long)shots);
    CLT_TRY(choose_lines(s));
    CLT_TRY(measure(s));
    return draw_all(s);
}

/* The different categories in byte order. */
static void list_categories(const clt_icl_file *f, clt_strv *out) {
    for (size_t i = 0; i < f->n; i++) {
        const char *name = category_of(f->object[i]);
        size_t k = 0;
        while (k < out->n && strcmp(out->v[k], name) != 0) k++;
        if (k == out->n) clt_strv_add(out, name);
    }
    clt_strv_sort(out);
}

/* A category's name as the file has it, which lives as long as the file. */
static const char *kept_name(const clt_icl_file *f, const char *name) {
    size_t i = 0;
    while (strcmp(category_of(f->object[i]), name) != 0) i++;
    return category_of(f->object[i]);
}

static clt_status add_sets(clt_icl_sets *out, const clt_icl_task *t, const clt_tokenizer *tok,
                           clt_icl_file *f) {
    clt_strv names = {0};
    clt_status st = CLT_OK;
    json_t *shots;
    size_t i;
    if (t->has_categories) list_categories(f, &names);
    json_array_foreach(t->num_fewshot, i, shots) {
        const int64_t k = json_integer_value(shots);
        if (!t->has_categories && st == CLT_OK) st = add_set(out, t, tok, f, k, NULL);
        for (size_t c = 0; c < names.n && st == CLT_OK; c++)
            st = add_set(out, t, tok, f, k, kept_name(f, names.v[c]));
    }
    clt_strv_free(&names);
    return st;
}

clt_status clt_icl_sets_add(clt_icl_sets *out, const clt_icl_task *task, const clt_tokenizer *tok) {
    clt_icl_file *f;
    if (task->kind == CLT_ICL_GENERATION && clt_tokenizer_eos_id(tok) < 0)
        return clt_error(CLT_BAD_CONFIG, "%s: generation needs a tokenizer with an end-of-text token",
                         task->label);
    CLT_TRY(clt_icl_file_open(task, &f));
    clt_status st = add_sets(out, task, tok, f);
    clt_icl_file_release(f);
    return st;
}

void clt_icl_sets_free(clt_icl_sets *s) {
    for (size_t i = 0; i < s->n; i++) free_set(&s->set[i]);
    clt_free(s->set);
    *s = (clt_icl_sets){0};
}

clt_status clt_icl_set_fail(const clt_icl_set *s, size_t i, const char *text) {
    return clt_error(CLT_BAD_DATA, "%s:%lld: %s", s->file->path, (long long)s->file->number[s->line[i]],
                     text);
}

int64_t clt_icl_set_max_new(const clt_icl_set *s) {
    return s->task->max_new_tokens ? s->task->max_new_tokens : CLT_MAX(s->longest, (int64_t)1);
}
