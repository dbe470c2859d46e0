#include "runtime/data/clt_tokenizer.h"

#include <string.h>

#include "runtime/data/clt_utf8.h"
#include "runtime/data/tokenizer/clt_tokenizer_component.h"

/* --- kinds --- */

static const clt_tokenizer_ops *kind_of(const char *source) {
    static const clt_tokenizer_ops *const kinds[] = {&clt_tokenizer_bytes, &clt_tokenizer_json};
    for (size_t i = 0; i < CLT_COUNT_OF(kinds) && source && *source; i++)
        if (kinds[i]->is(source)) return kinds[i];
    return NULL;
}

bool clt_tokenizer_known(const char *source) {
    return kind_of(source) != NULL;
}

clt_status clt_tokenizer_open(const char *source, clt_tokenizer **out) {
    const clt_tokenizer_ops *kind = kind_of(source);
    if (kind) return kind->open(source, out);
    return clt_error(CLT_BAD_CONFIG,
                     "tokenizer '%s' cannot be loaded: a tokenizer of a hub is not fetched, and is only "
                     "needed when text is tokenized; name a folder with its tokenizer.json, or use 'bytes'",
                     source ? source : "");
}

void clt_tokenizer_close(clt_tokenizer *t) {
    if (t) t->ops->close(t);
}

/* --- tokens --- */

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
int64_t clt_tokenizer_unk_id(const clt_tokenizer *t) {
    return t->unk_id;
}
bool clt_tokenizer_pads_left(const clt_tokenizer *t) {
    return t->pads_left;
}
bool clt_tokenizer_cleans_up(const clt_tokenizer *t) {
    return t->cleans_up;
}
unsigned clt_tokenizer_default_flags(const clt_tokenizer *t) {
    return t->default_flags;
}

int64_t clt_tokenizer_id(const clt_tokenizer *t, const char *text) {
    return t->ops->id(t, text);
}

const char *clt_tokenizer_text(const clt_tokenizer *t, int64_t id) {
    return id >= 0 && id < t->vocab_size ? t->ops->text(t, (int32_t)id) : NULL;
}

const char *clt_tokenizer_piece(const clt_tokenizer *t, int32_t id, size_t *bytes) {
    return t->ops->piece(t, id, bytes);
}

bool clt_tokenizer_is_special(const clt_tokenizer *t, int64_t id) {
    return id >= 0 && id < t->vocab_size && t->ops->is_special(t, (int32_t)id);
}

const int32_t *clt_tokenizer_template(const clt_tokenizer *t, bool after, size_t *n) {
    *n = after ? t->after.n : t->before.n;
    return after ? t->after.ids : t->before.ids;
}

/* --- whole texts --- */

static void copy_ids(int32_t *to, const int32_t *from, size_t n) {
    if (n) memcpy(to, from, n * sizeof *to);
}

clt_status clt_tokenizer_encode(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                                int32_t *ids, size_t max, size_t *n) {
    const size_t before = flags & CLT_TOKEN_TEMPLATE ? CLT_MIN(t->before.n, max) : 0,
                 after = flags & CLT_TOKEN_TEMPLATE ? CLT_MIN(t->after.n, max - before) : 0;
    copy_ids(ids, t->before.ids, before);
    CLT_TRY(t->ops->encode(t, text, bytes, flags, ids + before, max - before - after, n));
    copy_ids(ids + before + *n, t->after.ids, after);
    *n += before + after;
    return CLT_OK;
}

size_t clt_tokenizer_max_ids(const clt_tokenizer *t, size_t bytes) {
    return t->ops->max_ids(t, bytes) + t->before.n + t->after.n;
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

/* Whether the id has text, and then its bytes. */
static bool piece_of(const clt_tokenizer *t, int32_t id, bool skip_special, const char **piece,
                     size_t *bytes) {
    if (skip_special && t->ops->is_special(t, id)) return false;
    *piece = t->ops->piece(t, id, bytes);
    return *bytes > 0;
}

static clt_status join_pieces(const clt_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              clt_str *out) {
    size_t bytes = 0, length;
    const char *piece;
    for (size_t i = 0; i < n; i++)
        if (piece_of(t, ids[i], skip_special, &piece, &length)) bytes += length;
    if (!clt_str_try_reserve(out, bytes)) return clt_no_memory("the text of token ids", bytes);
    for (size_t i = 0; i < n; i++)
        if (piece_of(t, ids[i], skip_special, &piece, &length)) clt_str_addn(out, piece, length);
    return CLT_OK;
}

clt_status clt_tokenizer_decode(const clt_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                clt_str *out) {
    clt_str raw = {0};
    CLT_TRY(check_ids(t, ids, n));
    if (t->ops->decode) return t->ops->decode(t, ids, n, skip_special, out);
    clt_status st = join_pieces(t, ids, n, skip_special, &raw);
    /* A byte becomes at most three when it is repaired. */
    if (st == CLT_OK && !clt_str_try_reserve(out, 3 * raw.len))
        st = clt_no_memory("the text of token ids", 3 * raw.len);
    if (st == CLT_OK) clt_utf8_repair(raw.s, raw.len, out);
    clt_str_free(&raw);
    return st;
}

/* --- text in pieces --- */

size_t clt_tokenizer_cut(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags) {
    return t->ops->cut(t, text, 0, bytes, flags);
}

struct clt_token_encoder {
    const clt_tokenizer *t;
    unsigned flags; /* of the text that comes next */
    bool begun;     /* the template's first ids were emitted */
    clt_token_fn emit;
    void *ctx;
    clt_str rest; /* text that is held back */
    int32_t *ids;
    size_t cap;
};

clt_token_encoder *clt_token_encoder_create(const clt_tokenizer *t, unsigned flags, clt_token_fn emit,
                                            void *ctx) {
    clt_token_encoder *e = clt_calloc(1, sizeof *e);
    *e = (clt_token_encoder){.t = t, .flags = flags, .emit = emit, .ctx = ctx};
    return e;
}

void clt_token_encoder_destroy(clt_token_encoder *e) {
    if (!e) return;
    clt_str_free(&e->rest);
    clt_free(e->ids);
    clt_free(e);
}

static clt_status emit_template(clt_token_encoder *e, bool after) {
    size_t n;
    const int32_t *ids = clt_tokenizer_template(e->t, after, &n);
    return n && (e->flags & CLT_TOKEN_TEMPLATE) ? e->emit(e->ctx, ids, n) : CLT_OK;
}

static clt_status begin(clt_token_encoder *e) {
    if (e->begun) return CLT_OK;
    e->begun = true;
    return emit_template(e, false);
}

static clt_status encode_and_emit(clt_token_encoder *e, const char *text, size_t bytes) {
    size_t n, max = e->t->ops->max_ids(e->t, bytes);
    if (bytes == 0) return CLT_OK;
    if (max > e->cap) {
        int32_t *ids = max <= SIZE_MAX / sizeof *ids ? clt_try_realloc(e->ids, max * sizeof *ids) : NULL;
        if (!ids) return clt_no_memory("the token ids of a text", (uint64_t)max * sizeof *ids);
        e->ids = ids;
        e->cap = max;
    }
    CLT_TRY(e->t->ops->encode(e->t, text, bytes, e->flags, e->ids, max, &n));
    e->flags |= CLT_TOKEN_CONTINUED;
    return n ? e->emit(e->ctx, e->ids, n) : CLT_OK;
}

/* Adds to the text that is held back. */
static clt_status hold_back(clt_token_encoder *e, const char *text, size_t bytes) {
    if (!clt_str_try_reserve(&e->rest, bytes)) return clt_no_memory("a piece of text", e->rest.len + bytes);
    clt_str_addn(&e->rest, text, bytes);
    return CLT_OK;
}

clt_status clt_token_encoder_add(clt_token_encoder *e, const char *text, size_t bytes) {
    const size_t searched = e->rest.len; /* no cut is in there, or its beginning would not be held back */
    CLT_TRY(begin(e));
    if (searched > 0) {
        CLT_TRY(hold_back(e, text, bytes));
        text = e->rest.s;
        bytes = e->rest.len;
    }
    const size_t n = e->t->ops->cut(e->t, text, searched, bytes, e->flags);
    CLT_TRY(encode_and_emit(e, text, n));
    if (searched == 0) return n < bytes ? hold_back(e, text + n, bytes - n) : CLT_OK;
    if (n > 0) memmove(e->rest.s, e->rest.s + n, bytes - n);
    e->rest.len = bytes - n;
    return CLT_OK;
}

clt_status clt_token_encoder_end(clt_token_encoder *e) {
    clt_status st = begin(e);
    if (st == CLT_OK) st = encode_and_emit(e, e->rest.s, e->rest.len);
    if (st == CLT_OK) st = emit_template(e, true);
    e->rest.len = 0;
    e->begun = false;
    e->flags &= ~(unsigned)CLT_TOKEN_CONTINUED;
    return st;
}

/* --- ids in pieces --- */

clt_token_decoder clt_token_decoder_begin(const clt_tokenizer *t, bool skip_special) {
    return (clt_token_decoder){.t = t, .skip_special = skip_special, .strip = t->strip};
}

/* How many spaces are to be removed before these bytes, which come next. */
static size_t strip(clt_token_decoder *d, const char *text, size_t bytes) {
    size_t n = 0;
    while (n < d->strip && n < bytes && text[n] == ' ') n++;
    d->strip = n < bytes ? 0 : d->strip - n;
    return n;
}

/* Bytes of any kind. */
static void add_bytes(clt_token_decoder *d, const char *piece, size_t bytes, clt_str *out) {
    for (size_t i = strip(d, piece, bytes); i < bytes; i++) {
        d->held[d->n_held++] = piece[i];
        size_t used = clt_utf8_repair_part(d->held, d->n_held, out);
        d->n_held -= used;
        memmove(d->held, d->held + used, d->n_held);
    }
}

static void end_run(clt_token_decoder *d, clt_str *out) {
    if (clt_utf8_valid(d->held, d->n_held)) {
        const size_t from = strip(d, d->held, d->n_held);
        clt_str_addn(out, d->held + from, d->n_held - from);
    } else {
        for (size_t i = 0; i < d->n_held; i++) clt_str_add(out, "\xef\xbf\xbd");
        d->strip = 0;
    }
    d->n_held = 0;
}

static void add_to_run(clt_token_decoder *d, char byte, clt_str *out) {
    if (d->n_held == CLT_TOKEN_RUN) {
        const size_t from = strip(d, d->held, d->n_held),
                     used = from + clt_utf8_repair_part(d->held + from, d->n_held - from, out);
        d->n_held -= used;
        memmove(d->held, d->held + used, d->n_held);
    }
    d->held[d->n_held++] = byte;
}

clt_status clt_token_decoder_add(clt_token_decoder *d, int32_t id, clt_str *out) {
    size_t bytes;
    const char *piece;
    CLT_TRY(check_ids(d->t, &id, 1));
    if (!piece_of(d->t, id, d->skip_special, &piece, &bytes)) return CLT_OK;
    if (!d->t->in_run) {
        add_bytes(d, piece, bytes, out);
    } else if (d->t->in_run[id]) {
        add_to_run(d, *piece, out);
    } else {
        end_run(d, out);
        const size_t from = strip(d, piece, bytes);
        clt_str_addn(out, piece + from, bytes - from);
    }
    return CLT_OK;
}

void clt_token_decoder_peek(const clt_token_decoder *d, clt_str *out) {
    clt_token_decoder now = *d;
    clt_token_decoder_end(&now, out);
}

void clt_token_decoder_end(clt_token_decoder *d, clt_str *out) {
    if (d->t->in_run)
        end_run(d, out);
    else
        clt_utf8_repair(d->held, d->n_held, out);
    d->n_held = 0;
}
