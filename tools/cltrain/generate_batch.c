#include "tools/cltrain/generate_batch.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/data/clt_jsonl.h"

typedef struct {
    clt_strv prompt;
    clt_str *text; /* [prompts] */
    bool *done;    /* [prompts] */
    size_t printed;
    clt_status st; /* of printing */
} answers;

static clt_status read_prompts(const char *file, clt_strv *out) {
    clt_jsonl *r;
    clt_jsonl_line line;
    json_t *o = NULL;
    clt_status st = clt_jsonl_open(file, 0, &r);
    if (st != CLT_OK) return st;
    while ((st = clt_jsonl_next(r, &line, &o)) == CLT_OK && o) {
        const char *text;
        st = clt_jsonl_get_str(&line, o, "prompt", &text, NULL);
        if (st == CLT_OK) clt_strv_add(out, text);
        json_decref(o);
        if (st != CLT_OK) break;
    }
    clt_jsonl_close(r);
    if (st == CLT_OK && !out->n) st = clt_error(CLT_BAD_DATA, "%s has no prompts", file);
    return st;
}

static clt_status print_answer(const answers *a, size_t i) {
    const clt_str *t = &a->text[i];
    char *prompt = NULL, *text = NULL;
    clt_status st = clt_json_quote(a->prompt.v[i], strlen(a->prompt.v[i]), "a prompt", &prompt);
    if (st == CLT_OK) st = clt_json_quote(t->s ? t->s : "", t->len, "a text", &text);
    if (st == CLT_OK) printf("{\"prompt\": %s, \"text\": %s}\n", prompt, text);
    clt_free(prompt);
    clt_free(text);
    return st;
}

static void add_text(void *ctx, size_t i, const char *text, size_t bytes) {
    answers *a = ctx;
    clt_str_addn(&a->text[i], text, bytes);
}

/* Prints what is complete in the file's order. */
static void end_text(void *ctx, size_t i) {
    answers *a = ctx;
    a->done[i] = true;
    for (; a->printed < a->prompt.n && a->done[a->printed] && a->st == CLT_OK; a->printed++) {
        a->st = print_answer(a, a->printed);
        clt_str_free(&a->text[a->printed]);
    }
    fflush(stdout);
}

clt_status generate_batch(const clt_generate_params *p, const char *file) {
    answers a = {0};
    clt_generator *g = NULL;
    clt_status st = read_prompts(file, &a.prompt);
    a.text = clt_calloc(a.prompt.n + 1, sizeof *a.text);
    a.done = clt_calloc(a.prompt.n + 1, sizeof *a.done);
    if (st == CLT_OK) st = clt_generator_open(p, &g);
    if (st == CLT_OK)
        st = clt_generator_run_all(g, p, (const char *const *)a.prompt.v, a.prompt.n, add_text, end_text, &a);
    if (st == CLT_OK) st = a.st;
    clt_generator_close(g);
    for (size_t i = 0; i < a.prompt.n; i++) clt_str_free(&a.text[i]);
    clt_free(a.text);
    clt_free(a.done);
    clt_strv_free(&a.prompt);
    return st;
}
