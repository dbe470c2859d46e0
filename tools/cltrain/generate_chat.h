/* generate_chat: `cltrain generate --chat`: a conversation with a model on the terminal. */
#ifndef CLTRAIN_GENERATE_CHAT_H
#define CLTRAIN_GENERATE_CHAT_H

#include "runtime/train/run/clt_generate.h"

/* Answers p->prompt, or, if it is empty, every line of stdin until it ends. The texts of all turns are the
 * context. template_text: as clt_chat_open takes it; NULL: the tokenizer's. system: NULL: no system message.
 */
clt_status generate_chat(clt_generate_params *p, const char *template_text, const char *system);

#endif
