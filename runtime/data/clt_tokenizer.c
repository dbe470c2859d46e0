#include "runtime/data/clt_tokenizer.h"

#include <string.h>

enum { BYTES_EOS = 256, BYTES_VOCAB = 257 };

/* The functions of one kind of tokenizer. */
typedef struct {
    const char *name;
    int64_t vocab_size, eos_id, pad_id;
    size_t (*max_ids)(size_t bytes);
    clt_status (*encode)(const char *text, size_t bytes, int32_t *ids, size_t max, size_t *n);
    clt_status (*decode)(const int32_t *ids, size_t n, clt_str *out);
} tokenizer_kind;

struct clt_tokenizer {
    const tokenizer_kind *kind;
};

static size_t bytes_max_ids(size_t bytes) {
    return bytes;
}

static clt_status bytes_encode(const char *text, size_t bytes, int32_t *ids, size_t max, size_t *n) {
    *n = CLT_MIN(bytes, max);
    for (size_t i = 0; i < *n; i++) ids[i] = (unsigned char)text[i];
    return CLT_OK;
}

static clt_status bytes_decode(const int32_t *ids, size_t n, clt_str *out) {
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= BYTES_VOCAB)
            return clt_error(CLT_BAD_DATA,
                             "token id %d at position %zu is outside the byte tokenizer's vocabulary of %d",
                             ids[i], i, BYTES_VOCAB);
        char c = (char)ids[i];
        if (ids[i] == BYTES_EOS)
            clt_str_add(out, "<|endoftext|>");
        else
            clt_str_addn(out, &c, 1);
    }
    return CLT_OK;
}

static const tokenizer_kind bytes_kind = {"bytes",       BYTES_VOCAB,  BYTES_EOS,   -1,
                                          bytes_max_ids, bytes_encode, bytes_decode};

bool clt_tokenizer_known(const char *name) {
    return name && strcmp(name, bytes_kind.name) == 0;
}

clt_status clt_tokenizer_open(const char *name, clt_tokenizer **out) {
    if (!clt_tokenizer_known(name))
        return clt_error(CLT_BAD_CONFIG,
                         "tokenizer '%s' cannot be loaded, only 'bytes' is built in: use that, or tokenize "
                         "elsewhere and bring token ids (cltrain data convert --tokens, or an MDS dataset "
                         "with a token column)",
                         name ? name : "(none)");
    clt_tokenizer *t = clt_calloc(1, sizeof *t);
    t->kind = &bytes_kind;
    *out = t;
    return CLT_OK;
}

void clt_tokenizer_close(clt_tokenizer *t) {
    clt_free(t);
}

int64_t clt_tokenizer_vocab_size(const clt_tokenizer *t) {
    return t->kind->vocab_size;
}
int64_t clt_tokenizer_eos_id(const clt_tokenizer *t) {
    return t->kind->eos_id;
}
int64_t clt_tokenizer_pad_id(const clt_tokenizer *t) {
    return t->kind->pad_id;
}

clt_status clt_tokenizer_encode(const clt_tokenizer *t, const char *text, size_t bytes, int32_t *ids,
                                size_t max, size_t *n) {
    return t->kind->encode(text, bytes, ids, max, n);
}

size_t clt_tokenizer_max_ids(const clt_tokenizer *t, size_t bytes) {
    return t->kind->max_ids(bytes);
}

clt_status clt_tokenizer_decode(const clt_tokenizer *t, const int32_t *ids, size_t n, clt_str *out) {
    return t->kind->decode(ids, n, out);
}
