#include "runtime/data/clt_tokenizer.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_tokenizer_component.h"
#include "runtime/data/clt_utf8.h"

/* --- kinds --- */

static const char file_name[] = "tokenizer.json";

static bool names_file(const char *source) {
    if (strcmp(clt_path_base(source), file_name) == 0) return true;
    char *inside = clt_path_join(source, file_name);
    bool yes = clt_io_is_file(inside);
    clt_free(inside);
    return yes;
}

static const clt_tokenizer_ops *kind_of(const char *source) {
    static const clt_tokenizer_ops file = {.name = file_name, .is = names_file};
    static const clt_tokenizer_ops *const kinds[] = {&clt_tokenizer_bytes, &file};
    for (size_t i = 0; i < CLT_COUNT_OF(kinds) && source && *source; i++)
        if (kinds[i]->is(source)) return kinds[i];
    return NULL;
}

bool clt_tokenizer_known(const char *source) {
    const clt_tokenizer_ops *kind = kind_of(source);
    return kind && kind->open;
}

clt_status clt_tokenizer_open(const char *source, clt_tokenizer **out) {
    static const char instead[] = "use tokenizer 'bytes', or tokenize elsewhere and bring token ids (cltrain "
                                  "data convert --tokens, or an MDS dataset with a token column)";
    const clt_tokenizer_ops *kind = kind_of(source);
    if (kind && kind->open) return kind->open(source, out);
    if (kind)
        return clt_error(CLT_BAD_CONFIG, "tokenizer '%s': tokenizers from a %s are not supported yet; %s",
                         source, kind->name, instead);
    return clt_error(CLT_BAD_CONFIG,
                     "tokenizer '%s' cannot be loaded: a tokenizer of a hub is not fetched, and is only "
                     "needed when text is tokenized; %s",
                     source ? source : "", instead);
}

void clt_tokenizer_close(clt_tokenizer *t) {
    if (t) t->ops->close(t);
}

int64_t clt_tokenizer_vocab_size(const clt_tokenizer *t) {
    return t->vocab_size;
}
int64_t clt_tokenizer_bos_id(const clt_tokenizer *t) {
    return t->bos_id;
}
int64_t clt_tokenizer_eos_id(const clt_tokenizer *t) {
    return t->eos_id;
}
int64_t clt_tokenizer_pad_id(const clt_tokenizer *t) {
    return t->pad_id;
}

/* --- whole texts --- */

clt_status clt_tokenizer_encode(const clt_tokenizer *t, const char *text, size_t bytes, bool allow_special,
                                int32_t *ids, size_t max, size_t *n) {
    return t->ops->encode(t, text, bytes, allow_special, ids, max, n);
}

size_t clt_tokenizer_max_ids(const clt_tokenizer *t, size_t bytes) {
    return t->ops->max_ids(t, bytes);
}

/* CLT_BAD_DATA names the first id that is not in the vocabulary. */
static clt_status check_ids(const clt_tokenizer *t, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab_size)
            return clt_error(CLT_BAD_DATA,
                             "token id %d at position %zu is outside the vocabulary of tokenizer '%s', "
                             "which has %lld ids",
                             ids[i], i, t->ops->name, (long long)t->vocab_size);
    return CLT_OK;
}

clt_status clt_tokenizer_decode(const clt_tokenizer *t, const int32_t *ids, size_t n, clt_str *out) {
    size_t bytes = 0, length;
    CLT_TRY(check_ids(t, ids, n));
    for (size_t i = 0; i < n; i++) {
        t->ops->piece(t, ids[i], &length);
        bytes += length;
    }
    if (!clt_str_try_reserve(out, bytes)) return clt_no_memory("the text of token ids", bytes);
    for (size_t i = 0; i < n; i++) {
        const char *piece = t->ops->piece(t, ids[i], &length);
        clt_str_addn(out, piece, length);
    }
    return CLT_OK;
}

/* --- text in pieces --- */

struct clt_token_encoder {
    const clt_tokenizer *t;
    bool allow_special;
    clt_token_fn emit;
    void *ctx;
    clt_str rest; /* text that is held back */
    int32_t *ids;
    size_t cap;
};

clt_token_encoder *clt_token_encoder_create(const clt_tokenizer *t, bool allow_special, clt_token_fn emit,
                                            void *ctx) {
    clt_token_encoder *e = clt_calloc(1, sizeof *e);
    *e = (clt_token_encoder){.t = t, .allow_special = allow_special, .emit = emit, .ctx = ctx};
    return e;
}

void clt_token_encoder_destroy(clt_token_encoder *e) {
    if (!e) return;
    clt_str_free(&e->rest);
    clt_free(e->ids);
    clt_free(e);
}

static clt_status encode_and_emit(clt_token_encoder *e, const char *text, size_t bytes) {
    size_t n, max = clt_tokenizer_max_ids(e->t, bytes);
    if (bytes == 0) return CLT_OK;
    if (max > e->cap) {
        int32_t *ids = max <= SIZE_MAX / sizeof *ids ? clt_try_realloc(e->ids, max * sizeof *ids) : NULL;
        if (!ids) return clt_no_memory("the token ids of a text", (uint64_t)max * sizeof *ids);
        e->ids = ids;
        e->cap = max;
    }
    CLT_TRY(clt_tokenizer_encode(e->t, text, bytes, e->allow_special, e->ids, max, &n));
    return n ? e->emit(e->ctx, e->ids, n) : CLT_OK;
}

/* Adds to the text that is held back. */
static clt_status hold_back(clt_token_encoder *e, const char *text, size_t bytes) {
    if (!clt_str_try_reserve(&e->rest, bytes)) return clt_no_memory("a piece of text", e->rest.len + bytes);
    clt_str_addn(&e->rest, text, bytes);
    return CLT_OK;
}

clt_status clt_token_encoder_add(clt_token_encoder *e, const char *text, size_t bytes) {
    const bool joined = e->rest.len > 0;
    if (joined) {
        CLT_TRY(hold_back(e, text, bytes));
        text = e->rest.s;
        bytes = e->rest.len;
    }
    size_t n = e->t->ops->cut(e->t, text, bytes, e->allow_special);
    CLT_TRY(encode_and_emit(e, text, n));
    if (!joined) return n < bytes ? hold_back(e, text + n, bytes - n) : CLT_OK;
    memmove(e->rest.s, e->rest.s + n, bytes - n);
    e->rest.len = bytes - n;
    return CLT_OK;
}

clt_status clt_token_encoder_end(clt_token_encoder *e) {
    clt_status st = encode_and_emit(e, e->rest.s, e->rest.len);
    e->rest.len = 0;
    return st;
}

/* --- ids in pieces --- */

clt_token_decoder clt_token_decoder_begin(const clt_tokenizer *t) {
    return (clt_token_decoder){.t = t};
}

clt_status clt_token_decoder_add(clt_token_decoder *d, int32_t id, clt_str *out) {
    size_t bytes;
    CLT_TRY(check_ids(d->t, &id, 1));
    const char *piece = d->t->ops->piece(d->t, id, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        d->held[d->n_held++] = piece[i];
        size_t used = clt_utf8_repair_part(d->held, d->n_held, out);
        d->n_held -= used;
        memmove(d->held, d->held + used, d->n_held);
    }
    return CLT_OK;
}

void clt_token_decoder_end(clt_token_decoder *d, clt_str *out) {
    clt_utf8_repair(d->held, d->n_held, out);
    d->n_held = 0;
}
