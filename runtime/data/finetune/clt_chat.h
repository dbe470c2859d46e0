/* clt_chat: the text of a conversation as a chat model reads it. Tokenizers carry a template for it, a
 * program in the language Jinja. Such programs are never executed: the templates known here are written in C,
 * and a tokenizer's template is compared with theirs after white space and quotes that make no difference are
 * removed. Any other template is refused. */
#ifndef CLT_CHAT_H
#define CLT_CHAT_H

#include "runtime/base/clt_base.h"

typedef struct {
    const char *role; /* "system", "user", "assistant", "tool" */
    const char *content;
    size_t bytes; /* of content */
} clt_chat_message;

typedef struct clt_chat clt_chat;

/* template_text: the name of a built-in template ("chatml", "llama3", ...) or the text of a template; NULL:
 * that of the tokenizer `tokenizer` (a folder, a file in it, or a name such as "bytes"), else "chatml", which
 * is LLM Foundry's default. CLT_BAD_CONFIG: an unknown template, or one that needs a token that
 * tokenizer_config.json lacks; CLT_BAD_DATA: tokenizer_config.json is damaged; CLT_IO. */
clt_status clt_chat_open(const char *tokenizer, const char *template_text, clt_chat **out);
void clt_chat_close(clt_chat *c); /* NULL is allowed */
/* The name of its built-in template. */
const char *clt_chat_name(const clt_chat *c);
/* Whether it is chatml only because neither the tokenizer nor the caller has a template. */
bool clt_chat_is_assumed(const clt_chat *c);

/* Appends the text of n messages; with `prompt` also the beginning of the assistant's answer. */
void clt_chat_render(const clt_chat *c, const clt_chat_message *m, size_t n, bool prompt, clt_str *out);

#endif
