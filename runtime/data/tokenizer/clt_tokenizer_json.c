/* Encoding and decoding with a tokenizer.json. A text is divided by its added tokens, first by those that are
 * searched in the raw text, then, in the normalized parts between them, by the others. What is left is
 * divided by the pre-tokenizer, and each piece goes through the model. */
#include "runtime/data/tokenizer/clt_tokenizer_json.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_utf8.h"
#include "runtime/data/tokenizer/clt_codepoint.h"
#include "runtime/data/tokenizer/clt_nfc.h"

/* --- work of a thread --- */

struct clt_encode_work {
    clt_encode_work *next;
    clt_bpe_work *bpe;
    clt_split_work *split[CLT_MAX_STEPS]; /* as many as there are steps */
    clt_str normal[2], step[CLT_MAX_STEPS];
};

static void destroy_work(clt_encode_work *w) {
    clt_bpe_work_destroy(w->bpe);
    for (size_t i = 0; i < CLT_MAX_STEPS; i++) {
        clt_split_work_destroy(w->split[i]);
        clt_str_free(&w->step[i]);
    }
    clt_str_free(&w->normal[0]);
    clt_str_free(&w->normal[1]);
    clt_free(w);
}

static clt_encode_work *create_work(const clt_json_tokenizer *t) {
    clt_encode_work *w = clt_calloc(1, sizeof *w);
    bool ok = (w->bpe = clt_bpe_work_create()) != NULL;
    for (size_t i = 0; ok && i < t->n_pre; i++) ok = (w->split[i] = clt_split_work_create()) != NULL;
    if (ok) return w;
    destroy_work(w);
    return NULL;
}

static clt_status take_work(const clt_json_tokenizer *t, clt_encode_work **out) {
    clt_json_tokenizer *owner = (clt_json_tokenizer *)t; /* the list is guarded by its lock */
    pthread_mutex_lock(&owner->lock);
    *out = owner->idle;
    if (*out) owner->idle = (*out)->next;
    pthread_mutex_unlock(&owner->lock);
    if (!*out) *out = create_work(t);
    return *out ? CLT_OK : clt_no_memory("the work space of a tokenizer", 0);
}

static void give_work(const clt_json_tokenizer *t, clt_encode_work *w) {
    clt_json_tokenizer *owner = (clt_json_tokenizer *)t;
    pthread_mutex_lock(&owner->lock);
    w->next = owner->idle;
    owner->idle = w;
    pthread_mutex_unlock(&owner->lock);
}

/* --- normalizer --- */

static clt_status append(clt_str *out, const char *text, size_t bytes) {
    if (!clt_str_try_reserve(out, bytes)) return clt_no_memory("a text in tokens", out->len + bytes);
    clt_str_addn(out, text, bytes);
    return CLT_OK;
}

/* Appends the text with every `from` replaced. */
static clt_status replace_all(const char *text, size_t bytes, const char *from, const char *to,
                              clt_str *out) {
    const size_t n = strlen(from), m = strlen(to);
    for (const char *end = text + bytes;;) {
        const char *at = memmem(text, (size_t)(end - text), from, n);
        CLT_TRY(append(out, text, (size_t)((at ? at : end) - text)));
        if (!at) return CLT_OK;
        CLT_TRY(append(out, to, m));
        text = at + n;
    }
}

clt_status clt_tokenizer_normalize(const clt_json_tokenizer *t, bool prepends, const char **text,
                                   size_t *bytes, clt_str buffers[2]) {
    for (size_t i = 0; i<t->n_normalize && * bytes> 0; i++) {
        const clt_normalize_step *s = &t->normalize[i];
        clt_str *out = &buffers[i % 2];
        if (s->kind == CLT_NORMALIZE_PREPEND && !prepends) continue;
        if (s->kind == CLT_NORMALIZE_NFC && clt_nfc_quick_check(*text, *bytes)) continue;
        if (*text == out->s) out = &buffers[(i + 1) % 2];
        out->len = 0;
        if (s->kind == CLT_NORMALIZE_NFC) {
            CLT_TRY(clt_nfc_normalize(*text, *bytes, out));
        } else if (s->kind == CLT_NORMALIZE_REPLACE) {
            CLT_TRY(replace_all(*text, *bytes, s->from, s->to, out));
        } else {
            CLT_TRY(append(out, s->to, strlen(s->to)));
            CLT_TRY(append(out, *text, *bytes));
        }
        *text = out->s;
        *bytes = out->len;
    }
    return CLT_OK;
}

/* --- pre-tokenizer --- */

typedef struct {
    const clt_json_tokenizer *t;
    clt_encode_work *work;
    unsigned flags;
    clt_id_list out;
} encoding;

static clt_status encode_piece(encoding *e, size_t step, const char *text, size_t bytes, bool first);

static clt_status encode_split(encoding *e, size_t step, const char *text, size_t bytes, bool first) {
    clt_split s = clt_split_begin(e->t->pre[step].splitter, e->work->split[step], text, bytes);
    while (e->out.n < e->out.max) {
        size_t start, end;
        CLT_TRY(clt_split_next(&s, &start, &end));
        if (start == end) return CLT_OK;
        CLT_TRY(encode_piece(e, step + 1, text + start, end - start, first && start == 0));
    }
    return CLT_OK;
}

static clt_status encode_with_space(encoding *e, size_t step, const char *text, size_t bytes, bool first) {
    clt_str *spaced = &e->work->step[step];
    if (*text == ' ') return encode_piece(e, step + 1, text, bytes, first);
    spaced->len = 0;
    CLT_TRY(append(spaced, " ", 1));
    CLT_TRY(append(spaced, text, bytes));
    return encode_piece(e, step + 1, spaced->s, spaced->len, first);
}

static clt_status encode_with_marks(encoding *e, size_t step, const char *text, size_t bytes, bool first) {
    const clt_pre_step *s = &e->t->pre[step];
    clt_str *marked = &e->work->step[step];
    const size_t mark = strlen(s->mark);
    const bool begins = *text == ' ' || (bytes >= mark && memcmp(text, s->mark, mark) == 0),
               continued = first && e->flags & CLT_TOKEN_CONTINUED;
    marked->len = 0;
    if (!begins && !continued &&
        (s->prepend == CLT_PREPEND_ALWAYS || (s->prepend == CLT_PREPEND_FIRST && first)))
        CLT_TRY(append(marked, s->mark, mark));
    CLT_TRY(replace_all(text, bytes, " ", s->mark, marked));
    return encode_piece(e, step + 1, marked->s, marked->len, first);
}

/* The ids of a piece that the steps before `step` made; it is not empty. `first`: it begins the text. */
static clt_status encode_piece(encoding *e, size_t step, const char *text, size_t bytes, bool first) {
    if (step == e->t->n_pre) return clt_bpe_encode(&e->t->bpe, e->work->bpe, text, bytes, &e->out);
    switch (e->t->pre[step].kind) {
    case CLT_PRE_SPLIT:
        return encode_split(e, step, text, bytes, first);
    case CLT_PRE_SPACE:
        return encode_with_space(e, step, text, bytes, first);
    default:
        return encode_with_marks(e, step, text, bytes, first);
    }
}

/* --- added tokens --- */

static bool is_word_before(const char *text, size_t at) {
    size_t length;
    return at > 0 && clt_codepoint_is_word(clt_codepoint_at(text + clt_codepoint_before(text, at), &length));
}

static bool is_word_at(const char *text, size_t bytes, size_t at) {
    size_t length;
    return at < bytes && clt_codepoint_is_word(clt_codepoint_at(text + at, &length));
}

/* Whether the match counts; it is extended over the spaces that the token takes. A token with lstrip begins
 * at `done` or after it, so spaces that the token before it took leave nothing of it. */
static bool accept(const encoding *e, const clt_added_token *a, const char *text, size_t bytes, size_t done,
                   size_t *start, size_t *end) {
    size_t length;
    if (a->special && !(e->flags & CLT_TOKEN_SPECIAL)) return false;
    if (a->single_word && (is_word_before(text, *start) || is_word_at(text, bytes, *end))) return false;
    while (a->lstrip && *start > done) {
        const size_t before = clt_codepoint_before(text, *start);
        if (!clt_codepoint_is_space(clt_codepoint_at(text + before, &length))) break;
        *start = before;
    }
    if (a->lstrip) *start = CLT_MAX(*start, done);
    while (a->rstrip && *end < bytes && clt_codepoint_is_space(clt_codepoint_at(text + *end, &length)))
        *end += length;
    return *start < *end;
}

typedef clt_status (*gap_fn)(encoding *e, const char *text, size_t bytes, bool first);

/* Divides the text by the tokens of the trie; `gap` encodes what is between them. As in the package, a match
 * of a token without lstrip inside of spaces that the token before it took gives its id, too. */
static clt_status divide(encoding *e, const clt_token_trie *trie, const char *text, size_t bytes, bool first,
                         gap_fn gap) {
    size_t done = 0, start, end;
    for (size_t from = 0; e->out.n < e->out.max;) {
        const int32_t found = clt_token_trie_find(trie, text, bytes, from, &start, &end);
        if (found < 0) break;
        from = end;
        const clt_added_token *a = &e->t->added[found];
        if (!accept(e, a, text, bytes, done, &start, &end)) continue;
        if (done < start) CLT_TRY(gap(e, text + done, start - done, first && done == 0));
        if (e->out.n < e->out.max) e->out.ids[e->out.n++] = a->id;
        done = end;
    }
    return done < bytes ? gap(e, text + done, bytes - done, first && done == 0) : CLT_OK;
}

static clt_status encode_normalized(encoding *e, const char *text, size_t bytes, bool first) {
    return encode_piece(e, 0, text, bytes, first);
}

static clt_status encode_raw(encoding *e, const char *text, size_t bytes, bool first) {
    const bool prepends = !(first && e->flags & CLT_TOKEN_CONTINUED);
    CLT_TRY(clt_tokenizer_normalize(e->t, prepends, &text, &bytes, e->work->normal));
    return divide(e, &e->t->in_normalized, text, bytes, first, encode_normalized);
}

static clt_status json_encode(const clt_tokenizer *base, const char *text, size_t bytes, unsigned flags,
                              int32_t *ids, size_t max, size_t *n) {
    const clt_json_tokenizer *t = (const clt_json_tokenizer *)base;
    encoding e = {.t = t, .flags = flags, .out = {ids, 0, max}};
    *n = 0;
    if (bytes == 0) return CLT_OK;
    if (!clt_utf8_valid(text, bytes))
        return clt_error(CLT_BAD_DATA, "a text is not UTF-8, which tokenizer %s needs", t->path);
    CLT_TRY(take_work(t, &e.work));
    clt_status st = divide(&e, &t->in_raw, text, bytes, true, encode_raw);
    give_work(t, e.work);
    *n = e.out.n;
    return st;
}

/* A byte of text becomes at most so many of normalized text; each of these is at most one id. */
static size_t expansion(const clt_json_tokenizer *t) {
    size_t factor = 1;
    for (size_t i = 0; i < t->n_normalize; i++) {
        const clt_normalize_step *s = &t->normalize[i];
        if (s->kind == CLT_NORMALIZE_NFC) factor *= 3;
        if (s->kind == CLT_NORMALIZE_REPLACE)
            factor *= CLT_MAX(CLT_CEIL_DIV(strlen(s->to), strlen(s->from)), 1);
    }
    for (size_t i = 0; i < t->n_pre; i++)
        if (t->pre[i].kind == CLT_PRE_MARKS) factor *= strlen(t->pre[i].mark);
    return factor;
}

/* What comes before a text between two added tokens, or before each piece. */
static size_t prefix(const clt_json_tokenizer *t) {
    size_t bytes = 0;
    for (size_t i = 0; i < t->n_normalize; i++)
        if (t->normalize[i].kind == CLT_NORMALIZE_PREPEND) bytes += strlen(t->normalize[i].to);
    for (size_t i = 0; i < t->n_pre; i++) {
        if (t->pre[i].kind == CLT_PRE_SPACE) bytes++;
        if (t->pre[i].kind == CLT_PRE_MARKS) bytes += strlen(t->pre[i].mark);
    }
    return bytes;
}

static size_t json_max_ids(const clt_tokenizer *base, size_t bytes) {
    const clt_json_tokenizer *t = (const clt_json_tokenizer *)base;
    const size_t factor = expansion(t) * (1 + prefix(t));
    return bytes < SIZE_MAX / 8 / factor ? (bytes + 1) * factor : SIZE_MAX / 8;
}

static size_t json_cut(const clt_tokenizer *base, const char *text, size_t from, size_t bytes,
                       unsigned flags) {
    const clt_json_tokenizer *t = (const clt_json_tokenizer *)base;
    (void)flags;
    for (size_t i = bytes; t->cuts && i-- > CLT_MAX(from, 1);) {
        const char c = text[i - 1];
        if (text[i] == ' ' && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')))
            return i;
    }
    return 0;
}

/* --- decoding --- */

static const char *json_piece(const clt_tokenizer *base, int32_t id, size_t *bytes) {
    const clt_json_tokenizer *t = (const clt_json_tokenizer *)base;
    *bytes = t->pieces[id].bytes;
    return t->piece_arena.s + t->pieces[id].at;
}

/* A run of byte tokens that is not UTF-8 as a whole becomes one U+FFFD for each byte, as in the package. */
static clt_status end_run(clt_str *out, size_t run) {
    const size_t n = out->len - run;
    if (n == 0 || clt_utf8_valid(out->s + run, n)) return CLT_OK;
    out->len = run;
    for (size_t i = 0; i < n; i++) CLT_TRY(append(out, "\xef\xbf\xbd", 3));
    return CLT_OK;
}

static clt_status decode_raw(const clt_json_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                             clt_str *out) {
    size_t run = out->len; /* where the bytes of byte tokens begin */
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        if (skip_special && t->special[ids[i]]) continue;
        const char *piece = json_piece(&t->base, ids[i], &bytes);
        if (!t->is_byte[ids[i]]) CLT_TRY(end_run(out, run));
        CLT_TRY(append(out, piece, bytes));
        if (!t->is_byte[ids[i]]) run = out->len;
    }
    return end_run(out, run);
}

static clt_status json_decode(const clt_tokenizer *base, const int32_t *ids, size_t n, bool skip_special,
                              clt_str *out) {
    clt_str text = {0};
    size_t strip = 0;
    clt_status st = decode_raw((const clt_json_tokenizer *)base, ids, n, skip_special, &text);
    while (strip < base->strip && strip < text.len && text.s[strip] == ' ') strip++;
    /* A byte becomes at most three when it is repaired. */
    if (st == CLT_OK && !clt_str_try_reserve(out, 3 * text.len))
        st = clt_no_memory("the text of token ids", 3 * text.len);
    if (st == CLT_OK && text.len > strip) clt_utf8_repair(text.s + strip, text.len - strip, out);
    clt_str_free(&text);
    return st;
}

/* --- tokens --- */

static const char *json_text(const clt_tokenizer *base, int32_t id) {
    const clt_json_tokenizer *t = (const clt_json_tokenizer *)base;
    size_t bytes;
    const char *text = clt_vocab_get(&t->tokens, id, &bytes);
    return text || (size_t)id >= t->vocab.n ? text : clt_vocab_get(&t->vocab, id, &bytes);
}

int64_t clt_tokenizer_json_id(const clt_tokenizer *base, const char *text) {
    const clt_json_tokenizer *t = (const clt_json_tokenizer *)base;
    const int64_t id = clt_vocab_find(&t->tokens, text, strlen(text));
    return id >= 0 ? id : clt_vocab_find(&t->vocab, text, strlen(text));
}

static bool json_is_special(const clt_tokenizer *base, int32_t id) {
    return ((const clt_json_tokenizer *)base)->special[id];
}

/* --- opening --- */

static const char file_name[] = "tokenizer.json";

static bool json_is(const char *source) {
    const size_t n = strlen(source);
    if (n > 5 && strcmp(source + n - 5, ".json") == 0) return true;
    char *inside = clt_path_join(source, file_name);
    const bool yes = clt_io_is_file(inside);
    clt_free(inside);
    return yes || clt_io_is_dir(source);
}

static void free_steps(clt_json_tokenizer *t) {
    for (size_t i = 0; i < t->n_normalize; i++) {
        clt_free(t->normalize[i].from);
        clt_free(t->normalize[i].to);
    }
    for (size_t i = 0; i < t->n_pre; i++) {
        clt_splitter_destroy(t->pre[i].splitter);
        clt_free(t->pre[i].mark);
    }
}

static void json_close(clt_tokenizer *base) {
    clt_json_tokenizer *t = (clt_json_tokenizer *)base;
    for (clt_encode_work *w = t->idle, *next; w; w = next) {
        next = w->next;
        destroy_work(w);
    }
    free_steps(t);
    clt_bpe_free(&t->bpe);
    clt_vocab_free(&t->vocab);
    clt_vocab_free(&t->tokens);
    clt_token_trie_free(&t->in_raw);
    clt_token_trie_free(&t->in_normalized);
    clt_str_free(&t->piece_arena);
    clt_free(t->pieces);
    clt_free(t->decode_from);
    clt_free(t->decode_to);
    clt_free(t->special);
    clt_free(t->is_byte);
    clt_free(t->added);
    clt_free(t->base.before.ids);
    clt_free(t->base.after.ids);
    clt_free(t->path);
    pthread_mutex_destroy(&t->lock);
    clt_free(t);
}

static clt_status no_file(const char *folder) {
    return clt_error(
        CLT_IO,
        "%s has no tokenizer.json; the transformers package makes one of other files: python3 -c "
        "\"from transformers import AutoTokenizer as T; "
        "T.from_pretrained('FOLDER').save_pretrained('NEW')\"",
        folder);
}

static clt_status json_open(const char *source, clt_tokenizer **out) {
    char *inside = clt_path_join(source, file_name);
    const bool missing = clt_io_is_dir(source) && !clt_io_is_file(inside);
    clt_free(inside);
    if (missing) return no_file(source);
    clt_json_tokenizer *t = clt_calloc(1, sizeof *t);
    t->base.ops = &clt_tokenizer_json;
    t->path = clt_io_is_dir(source) ? clt_path_join(source, file_name) : clt_strdup(source);
    pthread_mutex_init(&t->lock, NULL);
    clt_status st = clt_tokenizer_read(t);
    if (st == CLT_OK) st = clt_tokenizer_read_names(t);
    if (st == CLT_OK)
        *out = &t->base;
    else
        json_close(&t->base);
    return st;
}

const clt_tokenizer_ops clt_tokenizer_json = {
    .name = file_name,
    .is = json_is,
    .open = json_open,
    .close = json_close,
    .encode = json_encode,
    .max_ids = json_max_ids,
    .cut = json_cut,
    .decode = json_decode,
    .piece = json_piece,
    .text = json_text,
    .id = clt_tokenizer_json_id,
    .is_special = json_is_special,
};
