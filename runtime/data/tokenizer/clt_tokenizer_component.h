/* clt_tokenizer_component: what a kind of tokenizer provides. `bytes` (clt_tokenizer_bytes.c) is the example
 * to copy; a new kind is a row in the list of clt_tokenizer.c. Not for other folders. */
#ifndef CLT_TOKENIZER_COMPONENT_H
#define CLT_TOKENIZER_COMPONENT_H

#include "runtime/data/clt_tokenizer.h"

typedef struct {
    const char *name;
    /* Whether `source` names a tokenizer of this kind. */
    bool (*is)(const char *source);
    clt_status (*open)(const char *source, clt_tokenizer **out);
    void (*close)(clt_tokenizer *t);
    /* clt_tokenizer_encode without the template, which is added by the caller. */
    clt_status (*encode)(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags, int32_t *ids,
                         size_t max, size_t *n);
    /* An upper bound of what `encode` gives. */
    size_t (*max_ids)(const clt_tokenizer *t, size_t bytes);
    /* clt_tokenizer_cut; 0 was the answer for the first `from` bytes of the text. */
    size_t (*cut)(const clt_tokenizer *t, const char *text, size_t from, size_t bytes, unsigned flags);
    /* clt_tokenizer_decode for ids of the vocabulary. NULL: the pieces, joined, with what is not UTF-8
     * replaced. */
    clt_status (*decode)(const clt_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                         clt_str *out);
    /* The functions of clt_tokenizer.h by these names; an id is one of the vocabulary. */
    const char *(*piece)(const clt_tokenizer *t, int32_t id, size_t *bytes);
    const char *(*text)(const clt_tokenizer *t, int32_t id);
    int64_t (*id)(const clt_tokenizer *t, const char *text);
    bool (*is_special)(const clt_tokenizer *t, int32_t id);
} clt_tokenizer_ops;

/* Begins the struct of every tokenizer. */
struct clt_tokenizer {
    const clt_tokenizer_ops *ops;
    int64_t vocab_size, bos_id, eos_id, pad_id, unk_id; /* ids: -1 for none */
    bool pads_left, cleans_up;
    unsigned default_flags;
    size_t strip; /* spaces that decoding removes at the beginning of a text */
    /* By id, whether a token is one byte of a run that is UTF-8 as a whole, or U+FFFD for each of its bytes;
     * the other tokens are UTF-8. NULL: tokens are any bytes. */
    const bool *in_run;
    struct {
        int32_t *ids;
        size_t n;
    } before, after; /* the template; owned by the kind */
};

extern const clt_tokenizer_ops clt_tokenizer_bytes, clt_tokenizer_json;

#endif
