/* The tokenizer `bytes`: every byte is a token, and one more ends a document. */
#include <string.h>

#include "runtime/data/tokenizer/clt_tokenizer_component.h"

enum { EOS = 256, VOCAB = 257 };

static const char eos_text[] = "<|endoftext|>";
static const size_t eos_bytes = sizeof eos_text - 1;

typedef struct {
    clt_tokenizer base;
    char byte[256][2]; /* the texts of ids 0 to 255 */
} bytes_tokenizer;

static bool bytes_is(const char *source) {
    return strcmp(source, clt_tokenizer_bytes.name) == 0;
}

static clt_status bytes_open(const char *source, clt_tokenizer **out) {
    (void)source;
    bytes_tokenizer *t = clt_malloc(sizeof *t);
    *t = (bytes_tokenizer){{&clt_tokenizer_bytes, VOCAB, .bos_id = -1, EOS, .pad_id = -1, .unk_id = -1}};
    for (int i = 0; i < 256; i++) t->byte[i][0] = (char)i;
    *out = &t->base;
    return CLT_OK;
}

static void bytes_close(clt_tokenizer *t) {
    clt_free(t);
}

static clt_status bytes_encode(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                               int32_t *ids, size_t max, size_t *n) {
    (void)t;
    *n = 0;
    for (size_t at = 0; at < bytes && *n < max;) {
        bool special =
            (flags & CLT_TOKEN_SPECIAL) && bytes - at >= eos_bytes && !memcmp(text + at, eos_text, eos_bytes);
        ids[(*n)++] = special ? EOS : (unsigned char)text[at];
        at += special ? eos_bytes : 1;
    }
    return CLT_OK;
}

static size_t bytes_max_ids(const clt_tokenizer *t, size_t bytes) {
    (void)t;
    return bytes;
}

/* The text may end in the middle of a special token. */
static size_t bytes_cut(const clt_tokenizer *t, const char *text, size_t from, size_t bytes, unsigned flags) {
    (void)t;
    (void)from;
    if (!(flags & CLT_TOKEN_SPECIAL)) return bytes;
    for (size_t n = CLT_MIN(bytes, eos_bytes - 1); n > 0; n--)
        if (!memcmp(text + bytes - n, eos_text, n)) return bytes - n;
    return bytes;
}

static const char *bytes_piece(const clt_tokenizer *t, int32_t id, size_t *bytes) {
    *bytes = id == EOS ? eos_bytes : 1;
    return id == EOS ? eos_text : ((const bytes_tokenizer *)t)->byte[id];
}

static const char *bytes_text(const clt_tokenizer *t, int32_t id) {
    size_t bytes;
    return bytes_piece(t, id, &bytes);
}

/* The token of byte 0 has no text that a C string can hold. */
static int64_t bytes_id(const clt_tokenizer *t, const char *text) {
    (void)t;
    if (strcmp(text, eos_text) == 0) return EOS;
    return text[0] && !text[1] ? (unsigned char)text[0] : -1;
}

static bool bytes_is_special(const clt_tokenizer *t, int32_t id) {
    (void)t;
    return id == EOS;
}

const clt_tokenizer_ops clt_tokenizer_bytes = {
    .name = "bytes",
    .is = bytes_is,
    .open = bytes_open,
    .close = bytes_close,
    .encode = bytes_encode,
    .max_ids = bytes_max_ids,
    .cut = bytes_cut,
    .piece = bytes_piece,
    .text = bytes_text,
    .id = bytes_id,
    .is_special = bytes_is_special,
};
