/* clt_tokenizer_component: what a kind of tokenizer provides. `bytes` (clt_tokenizer_bytes.c) is the example
 * to copy; a new kind is a row in the list of clt_tokenizer.c. Not for other folders. */
#ifndef CLT_TOKENIZER_COMPONENT_H
#define CLT_TOKENIZER_COMPONENT_H

#include "runtime/data/clt_tokenizer.h"

typedef struct {
    const char *name;
    /* Whether `source` names a tokenizer of this kind. */
    bool (*is)(const char *source);
    /* NULL: the kind is recognised and not supported yet. */
    clt_status (*open)(const char *source, clt_tokenizer **out);
    void (*close)(clt_tokenizer *t);
    /* clt_tokenizer_encode, clt_tokenizer_max_ids. */
    clt_status (*encode)(const clt_tokenizer *t, const char *text, size_t bytes, bool allow_special,
                         int32_t *ids, size_t max, size_t *n);
    size_t (*max_ids)(const clt_tokenizer *t, size_t bytes);
    /* The length of the longest known prefix such that the ids of the text, however it continues, are the ids
     * of the prefix followed by the ids of the rest. */
    size_t (*cut)(const clt_tokenizer *t, const char *text, size_t bytes, bool allow_special);
    /* The bytes that an id of the vocabulary stands for; borrowed. */
    const char *(*piece)(const clt_tokenizer *t, int32_t id, size_t *bytes);
} clt_tokenizer_ops;

/* Begins the struct of every tokenizer. */
struct clt_tokenizer {
    const clt_tokenizer_ops *ops;
    int64_t vocab_size, bos_id, eos_id, pad_id; /* ids: -1 for none */
};

extern const clt_tokenizer_ops clt_tokenizer_bytes;

#endif
