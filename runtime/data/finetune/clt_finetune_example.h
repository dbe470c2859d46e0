/* clt_finetune_example: one line of fine-tuning data to token ids. A line is a prompt with a response (or
 * completion), or the messages of a chat, and becomes one turn or several: pairs of a prompt and the response
 * that follows it. */
#ifndef CLT_FINETUNE_EXAMPLE_H
#define CLT_FINETUNE_EXAMPLE_H

#include <jansson.h>

#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/finetune/clt_chat.h"

/* How text becomes ids. Shared by threads; borrowed. */
typedef struct {
    const clt_tokenizer *tokenizer;
    const clt_chat *chat;   /* NULL: chats are refused */
    const char *chat_error; /* why there is no chat template; used only then */
} clt_finetune_text;

typedef struct {
    int32_t prompt, response; /* ids of each */
} clt_finetune_turn;

/* The ids of all turns, prompts and responses one behind the other. Start from {0}; reused by later calls. */
typedef struct {
    int32_t *ids;
    size_t n, cap;
    clt_finetune_turn *turn;
    size_t turns, turn_cap;
} clt_finetune_turns;

void clt_finetune_turns_free(clt_finetune_turns *t);

/* A prompt and its response, each with what the tokenizer's template adds; if both begin with bos, the
 * response's is removed. CLT_BAD_DATA, CLT_NO_MEMORY. `where` names the example in messages. */
clt_status clt_finetune_encode_pair(const clt_finetune_text *text, const char *prompt, size_t prompt_bytes,
                                    const char *response, size_t response_bytes, const char *where,
                                    clt_finetune_turns *out);
/* The messages of a chat; one turn for each of the assistant's. */
clt_status clt_finetune_encode_chat(const clt_finetune_text *text, const json_t *messages, const char *where,
                                    clt_finetune_turns *out);
/* Turns that are ids already: a list of objects whose `input_ids` is the prompt and whose `labels` is the
 * response, as LLM Foundry's convert_finetuning_dataset writes them. CLT_BAD_DATA, CLT_NO_MEMORY. */
clt_status clt_finetune_read_turns(const json_t *turns, const char *where, clt_finetune_turns *out);
/* The object of a line; one turn for each assistant message of a chat. CLT_BAD_DATA if it has other keys or
 * types, or its roles are not in order; CLT_BAD_CONFIG: its chat template is unknown; CLT_NO_MEMORY. */
clt_status clt_finetune_encode(const clt_finetune_text *text, const json_t *example, const char *where,
                               clt_finetune_turns *out);

#endif
