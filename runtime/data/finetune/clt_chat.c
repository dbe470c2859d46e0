#include "runtime/data/finetune/clt_chat.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/data/finetune/clt_chat_templates.h"

enum { MOST_BYTES = 64 << 20, MOST_DEPTH = 32 };

struct clt_chat {
    const clt_chat_template *t;
    char *bos, *eos;
    bool assumed;
};

/* --- tokenizer_config.json --- */

/* The text of a token: a string, or an object with it. The caller frees it; NULL: none. */
static char *token_text(const json_t *config, const char *key) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? clt_strdup(json_string_value(v)) : NULL;
}

/* chat_template: a text, or a list of named ones of which `default` is meant. */
static const char *template_text(const json_t *config) {
    const json_t *v = json_object_get(config, "chat_template"), *one;
    size_t i;
    if (!json_is_array(v)) return json_string_value(v);
    json_array_foreach(v, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(one, "template"));
    }
    return NULL;
}

/* A file beside tokenizer.json, to be freed; NULL: there is none. */
static char *file_beside(const char *tokenizer, const char *name) {
    if (!tokenizer) return NULL;
    char *folder = clt_io_is_dir(tokenizer)    ? clt_strdup(tokenizer)
                   : clt_io_is_file(tokenizer) ? clt_path_dir(tokenizer)
                                               : NULL;
    char *path = folder ? clt_path_join(folder, name) : NULL;
    if (path && !clt_io_is_file(path)) {
        clt_free(path);
        path = NULL;
    }
    clt_free(folder);
    return path;
}

/* --- choosing --- */

static clt_status unknown_template(const char *where) {
    clt_str names = {0};
    clt_chat_template_names(&names);
    clt_status st = clt_error(
        CLT_BAD_CONFIG,
        "%s is none of the chat templates that are built in (%s). A template is a program, and it is not "
        "executed. Set tokenizer.kwargs.chat_template to the name of one that writes the same text, or "
        "convert "
        "the conversations to lines with prompt and response",
        where, names.s);
    clt_str_free(&names);
    return st;
}

static clt_status choose(clt_chat *c, const char *text, const char *where) {
    c->t = clt_chat_template_named(text);
    if (!c->t) c->t = clt_chat_template_like(text);
    return c->t ? CLT_OK : unknown_template(where);
}

static clt_status choose_of_tokenizer(clt_chat *c, const char *tokenizer, const json_t *config,
                                      const char *config_path) {
    char *file = file_beside(tokenizer, "chat_template.jinja"), *text = NULL;
    clt_status st = CLT_OK;
    if (file) {
        size_t bytes;
        st = clt_io_read_all(file, MOST_BYTES, &text, &bytes);
        if (st == CLT_OK) st = choose(c, text, file);
    } else if (template_text(config)) {
        char *where = clt_format("chat_template of %s", config_path);
        st = choose(c, template_text(config), where);
        clt_free(where);
    } else {
        c->t = clt_chat_template_named("chatml");
        c->assumed = true;
    }
    clt_free(text);
    clt_free(file);
    return st;
}

static clt_status check_tokens(const clt_chat *c, const char *tokenizer) {
    const char *missing = c->t->needs_bos && !c->bos   ? "bos_token"
                          : c->t->needs_eos && !c->eos ? "eos_token"
                                                       : NULL;
    if (!missing) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG,
                     "the chat template '%s' writes %s, which tokenizer '%.200s' does not name in "
                     "tokenizer_config.json",
                     c->t->name, missing, tokenizer ? tokenizer : "");
}

clt_status clt_chat_open(const char *tokenizer, const char *text, clt_chat **out) {
    char *path = file_beside(tokenizer, "tokenizer_config.json");
    json_t *config = NULL;
    clt_chat *c = clt_calloc(1, sizeof *c);
    clt_status st = path ? clt_json_load_reals(path, MOST_BYTES, MOST_DEPTH, &config) : CLT_OK;
    if (st == CLT_OK) {
        c->bos = token_text(config, "bos_token");
        c->eos = token_text(config, "eos_token");
        st = text ? choose(c, text, "tokenizer.kwargs.chat_template")
                  : choose_of_tokenizer(c, tokenizer, config, path);
    }
    if (st == CLT_OK) st = check_tokens(c, tokenizer);
    json_decref(config);
    clt_free(path);
    if (st == CLT_OK)
        *out = c;
    else
        clt_chat_close(c);
    return st;
}

void clt_chat_close(clt_chat *c) {
    if (!c) return;
    clt_free(c->bos);
    clt_free(c->eos);
    clt_free(c);
}

const char *clt_chat_name(const clt_chat *c) {
    return c->t->name;
}

bool clt_chat_is_assumed(const clt_chat *c) {
    return c->assumed;
}

void clt_chat_render(const clt_chat *c, const clt_chat_message *m, size_t n, bool prompt, clt_str *out) {
    const clt_chat_tokens tokens = {c->bos, c->eos};
    c->t->render(&tokens, m, n, prompt, out);
}
