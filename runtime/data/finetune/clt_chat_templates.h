/* clt_chat_templates: the chat templates that are known (clt_chat.h). A new one is a function that writes the
 * text and a row of the table with the Jinja texts that mean the same. Internal. */
#ifndef CLT_CHAT_TEMPLATES_H
#define CLT_CHAT_TEMPLATES_H

#include "runtime/data/finetune/clt_chat.h"

typedef struct {
    const char *bos, *eos; /* texts of these tokens; NULL: none */
} clt_chat_tokens;

typedef struct {
    const char *name;
    bool needs_bos, needs_eos;
    void (*render)(const clt_chat_tokens *t, const clt_chat_message *m, size_t n, bool prompt, clt_str *out);
    const char *text[3]; /* in Jinja; ended by NULL */
} clt_chat_template;

/* By name; NULL: there is none. */
const clt_chat_template *clt_chat_template_named(const char *name);
/* By text, compared in the form of clt_chat_normalise; NULL: there is none. */
const clt_chat_template *clt_chat_template_like(const char *text);
/* "chatml, llama3, ..." appended to out. */
void clt_chat_template_names(clt_str *out);

/* Appends the template in a form that two templates of the same meaning share more often: without white space
 * inside of tags, with single quotes, and without the text that Jinja removes around tags (trim_blocks and
 * lstrip_blocks, as the package transformers sets them). */
void clt_chat_normalise(const char *text, clt_str *out);

#endif
