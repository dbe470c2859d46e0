/* Reads a tokenizer.json: the model and the added tokens. clt_tokenizer_steps.c reads the steps around the
 * model. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/data/tokenizer/clt_tokenizer_steps.h"

enum { MAX_FILE = 256 << 20, MAX_DEPTH = 16 };

/* --- flags and texts of an object --- */

bool clt_tokenizer_flag(const json_t *o, const char *key, bool missing) {
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : missing;
}

static bool is_set(const json_t *v) {
    return v && !json_is_null(v);
}

static bool is_empty_text(const json_t *v) {
    return json_is_string(v) && json_string_length(v) == 0;
}

/* --- vocabulary --- */

/* Ids may have gaps, but not so large that a small file takes much memory. */
static size_t max_ids(size_t tokens) {
    return 2 * tokens + 65536;
}

static clt_status check_id(const clt_json_tokenizer *t, const json_t *id, const char *token, size_t tokens) {
    if (!json_is_integer(id))
        return clt_error(CLT_BAD_DATA, "%s: the id of token '%.80s' is not an integer", t->path, token);
    if (json_integer_value(id) < 0 || (uint64_t)json_integer_value(id) >= max_ids(tokens))
        return clt_error(CLT_BAD_DATA, "%s: id %lld of token '%.80s' is out of range for %zu tokens", t->path,
                         (long long)json_integer_value(id), token, tokens);
    return CLT_OK;
}

/* The number of ids and the bytes of the texts. */
static clt_status measure(const clt_json_tokenizer *t, json_t *vocab, size_t *ids, size_t *bytes) {
    const char *token;
    size_t length;
    json_t *id;
    *ids = *bytes = 0;
    json_object_keylen_foreach(vocab, token, length, id) {
        CLT_TRY(check_id(t, id, token, json_object_size(vocab)));
        *ids = CLT_MAX(*ids, (size_t)json_integer_value(id) + 1);
        *bytes += length;
    }
    return CLT_OK;
}

static clt_status read_vocab(clt_json_tokenizer *t, json_t *model) {
    size_t ids, bytes, length;
    const char *token;
    json_t *vocab, *id;
    CLT_TRY(clt_json_get_obj(model, "vocab", t->path, &vocab));
    if (json_object_size(vocab) == 0) return clt_error(CLT_BAD_DATA, "%s: the vocabulary is empty", t->path);
    CLT_TRY(measure(t, vocab, &ids, &bytes));
    CLT_TRY(clt_vocab_create(&t->vocab, ids, bytes));
    json_object_keylen_foreach(vocab, token, length, id) {
        if (!clt_vocab_add(&t->vocab, (int32_t)json_integer_value(id), token, length))
            return clt_error(CLT_BAD_DATA, "%s: id %lld of token '%.80s' is also that of another token",
                             t->path, (long long)json_integer_value(id), token);
    }
    return CLT_OK;
}

/* --- merges --- */

typedef struct {
    const char *text;
    size_t bytes;
} part;

static part part_of(const json_t *s) {
    return (part){json_string_value(s), json_string_length(s)};
}

/* A merge is "a b" or ["a", "b"]; all of a file are of one kind. */
static clt_status read_pair(const clt_json_tokenizer *t, const json_t *m, bool pairs, size_t number,
                            part out[2]) {
    if (pairs && json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) &&
        json_is_string(json_array_get(m, 1))) {
        out[0] = part_of(json_array_get(m, 0));
        out[1] = part_of(json_array_get(m, 1));
        return CLT_OK;
    }
    if (!pairs && json_is_string(m)) {
        const part all = part_of(m);
        const char *space = memchr(all.text, ' ', all.bytes);
        if (space && !memchr(space + 1, ' ', all.bytes - (size_t)(space + 1 - all.text))) {
            out[0] = (part){all.text, (size_t)(space - all.text)};
            out[1] = (part){space + 1, all.bytes - out[0].bytes - 1};
            return CLT_OK;
        }
    }
    return clt_error(CLT_BAD_DATA, "%s: merge %zu is not two texts in the form of the first merge", t->path,
                     number);
}

static clt_status missing(const clt_json_tokenizer *t, size_t number, part p) {
    return clt_error(CLT_BAD_DATA, "%s: merge %zu needs token '%.*s', which is not in the vocabulary",
                     t->path, number, (int)CLT_MIN(p.bytes, 80), p.text);
}

static clt_status read_merge(clt_json_tokenizer *t, const json_t *m, bool pairs, size_t number,
                             clt_str *joined) {
    part p[2];
    int32_t id[2];
    CLT_TRY(read_pair(t, m, pairs, number, p));
    joined->len = 0;
    for (int i = 0; i < 2; i++) {
        id[i] = clt_vocab_find(&t->vocab, p[i].text, p[i].bytes);
        if (id[i] < 0) return missing(t, number, p[i]);
        clt_str_addn(joined, p[i].text, p[i].bytes);
    }
    const int32_t merged = clt_vocab_find(&t->vocab, joined->s, joined->len);
    if (merged < 0) return missing(t, number, (part){joined->s, joined->len});
    clt_bpe_add_merge(&t->bpe, id[0], id[1], merged);
    return CLT_OK;
}

static clt_status read_merges(clt_json_tokenizer *t, json_t *model) {
    json_t *merges;
    clt_str joined = {0};
    CLT_TRY(clt_json_get_arr(model, "merges", t->path, &merges));
    const size_t n = json_array_size(merges);
    const bool pairs = json_is_array(json_array_get(merges, 0));
    CLT_TRY(clt_bpe_reserve(&t->bpe, n));
    clt_status st = CLT_OK;
    for (size_t i = 0; i < n && st == CLT_OK; i++)
        st = read_merge(t, json_array_get(merges, i), pairs, i, &joined);
    clt_str_free(&joined);
    return st;
}

/* --- model --- */

static clt_status check_model(const clt_json_tokenizer *t, json_t *model) {
    static const char *const unsupported[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");
    if (is_set(type) && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return clt_error(CLT_BAD_CONFIG, "%s: model type '%.40s' is not supported; only BPE is", t->path,
                         json_is_string(type) ? json_string_value(type) : "?");
    if (is_set(dropout) && (!json_is_number(dropout) || json_number_value(dropout) != 0))
        return clt_error(CLT_BAD_CONFIG, "%s: model.dropout makes random ids; set it to null", t->path);
    for (size_t i = 0; i < CLT_COUNT_OF(unsupported); i++) {
        const json_t *v = json_object_get(model, unsupported[i]);
        if (is_set(v) && !is_empty_text(v))
            return clt_error(CLT_BAD_CONFIG, "%s: model.%s is not supported", t->path, unsupported[i]);
    }
    return CLT_OK;
}

static clt_status read_unk(clt_json_tokenizer *t, json_t *model) {
    const json_t *unk = json_object_get(model, "unk_token");
    t->bpe.unk = -1;
    if (!is_set(unk)) return CLT_OK;
    if (!json_is_string(unk)) return clt_error(CLT_BAD_DATA, "%s: model.unk_token is not a string", t->path);
    t->bpe.unk = clt_vocab_find(&t->vocab, json_string_value(unk), json_string_length(unk));
    if (t->bpe.unk < 0 && !t->bpe.byte_level)
        return clt_error(CLT_BAD_DATA, "%s: unk_token '%.80s' is not in the vocabulary", t->path,
                         json_string_value(unk));
    return CLT_OK;
}

static clt_status read_model(clt_json_tokenizer *t, json_t *root) {
    json_t *model;
    CLT_TRY(clt_json_get_obj(root, "model", t->path, &model));
    CLT_TRY(check_model(t, model));
    CLT_TRY(read_vocab(t, model));
    CLT_TRY(read_merges(t, model));
    t->bpe.vocab = &t->vocab;
    t->bpe.ignore_merges = clt_tokenizer_flag(model, "ignore_merges", false);
    t->bpe.byte_fallback = clt_tokenizer_flag(model, "byte_fallback", false);
    t->bpe.fuse_unk = clt_tokenizer_flag(model, "fuse_unk", false);
    CLT_TRY(read_unk(t, model));
    return clt_bpe_prepare(&t->bpe);
}

/* --- added tokens --- */

static clt_status read_added(const clt_json_tokenizer *t, json_t *o, size_t tokens, clt_added_token *a,
                             const char **content) {
    static const char *const keys[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    bool *const flags[] = {&a->single_word, &a->lstrip, &a->rstrip, &a->normalized, &a->special};
    if (!json_is_object(o)) return clt_error(CLT_BAD_DATA, "%s: an added token is not an object", t->path);
    CLT_TRY(clt_json_get_str(o, "content", t->path, content));
    CLT_TRY(check_id(t, json_object_get(o, "id"), *content, tokens));
    a->id = (int32_t)json_integer_value(json_object_get(o, "id"));
    for (size_t i = 0; i < CLT_COUNT_OF(keys); i++) {
        const json_t *v = json_object_get(o, keys[i]);
        if (!json_is_boolean(v))
            return clt_error(CLT_BAD_DATA, "%s: added token '%.80s': key '%s' is missing or not a boolean",
                             t->path, *content, keys[i]);
        *flags[i] = json_is_true(v);
    }
    if (strlen(*content) > CLT_TOKEN_TRIE_BYTES)
        return clt_error(CLT_BAD_CONFIG, "%s: added token %d has %zu bytes; at most %d are supported",
                         t->path, a->id, strlen(*content), CLT_TOKEN_TRIE_BYTES);
    return CLT_OK;
}

/* The same text has the same id in the model's vocabulary; an id has one text. */
static clt_status add_token(clt_json_tokenizer *t, const clt_added_token *a, const char *content) {
    const size_t bytes = strlen(content);
    const int32_t known = clt_vocab_find(&t->vocab, content, bytes);
    size_t length;
    const char *other = (size_t)a->id < t->vocab.n ? clt_vocab_get(&t->vocab, a->id, &length) : NULL;
    if (known >= 0 ? known != a->id : other != NULL)
        return clt_error(CLT_BAD_DATA, "%s: added token '%.80s' has id %d, which contradicts the vocabulary",
                         t->path, content, a->id);
    if (clt_vocab_add(&t->tokens, a->id, content, bytes)) return CLT_OK;
    if (clt_vocab_find(&t->tokens, content, bytes) == a->id) return CLT_OK; /* given twice */
    return clt_error(CLT_BAD_DATA, "%s: added token '%.80s': its id %d or its text occurs twice", t->path,
                     content, a->id);
}

static clt_status index_token(clt_json_tokenizer *t, size_t number, const char *content) {
    const bool normalized = t->added[number].normalized;
    clt_str buffers[2] = {{0}, {0}};
    size_t bytes = strlen(content);
    clt_status st = normalized ? clt_tokenizer_normalize(t, true, &content, &bytes, buffers) : CLT_OK;
    if (st == CLT_OK && bytes > 0)
        st = clt_token_trie_add(normalized ? &t->in_normalized : &t->in_raw, content, bytes, (int32_t)number);
    clt_str_free(&buffers[0]);
    clt_str_free(&buffers[1]);
    return st;
}

/* Special tokens come first: where two tokens have one text after normalization, the first counts. */
static clt_status index_tokens(clt_json_tokenizer *t) {
    size_t bytes;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < t->n_added; i++) {
            const char *content = clt_vocab_get(&t->tokens, t->added[i].id, &bytes);
            if (content && t->added[i].special == (pass == 0)) CLT_TRY(index_token(t, i, content));
        }
    return CLT_OK;
}

/* The bytes of the texts and one more than the largest id. */
static clt_status read_added_list(clt_json_tokenizer *t, json_t *list, size_t *ids, size_t *bytes) {
    const char *content;
    *ids = t->vocab.n;
    *bytes = 0;
    for (size_t i = 0; i < t->n_added; i++) {
        clt_added_token *a = &t->added[i];
        CLT_TRY(read_added(t, json_array_get(list, i), t->vocab.n + t->n_added, a, &content));
        *ids = CLT_MAX(*ids, (size_t)a->id + 1);
        *bytes += strlen(content);
    }
    return CLT_OK;
}

static clt_status read_added_tokens(clt_json_tokenizer *t, json_t *root) {
    json_t *list = json_object_get(root, "added_tokens");
    size_t ids, bytes;
    if (is_set(list) && !json_is_array(list))
        return clt_error(CLT_BAD_DATA, "%s: added_tokens is not a list", t->path);
    t->n_added = json_array_size(list);
    t->added = clt_try_calloc(t->n_added + 1, sizeof *t->added);
    if (!t->added) return clt_no_memory("the added tokens of a tokenizer", t->n_added * sizeof *t->added);
    CLT_TRY(read_added_list(t, list, &ids, &bytes));
    CLT_TRY(clt_vocab_create(&t->tokens, ids, bytes));
    t->base.vocab_size = (int64_t)ids;
    t->special = clt_try_calloc(ids, sizeof *t->special);
    if (!t->special) return clt_no_memory("the tokens of a tokenizer", ids);
    for (size_t i = 0; i < t->n_added; i++) {
        const char *content = json_string_value(json_object_get(json_array_get(list, i), "content"));
        if (!*content) continue;
        CLT_TRY(add_token(t, &t->added[i], content));
        t->special[t->added[i].id] |= t->added[i].special;
    }
    return CLT_OK;
}

/* --- the file --- */

static clt_status check_keys(const clt_json_tokenizer *t, json_t *root) {
    static const char *const keys[] = {"version",        "truncation", "padding",
                                       "added_tokens",   "normalizer", "pre_tokenizer",
                                       "post_processor", "decoder",    "model"};
    const json_t *version = json_object_get(root, "version");
    const char *key;
    json_t *v;
    if (!json_is_object(root)) return clt_error(CLT_BAD_DATA, "%s is not a JSON object", t->path);
    json_object_foreach(root, key, v) {
        size_t i = 0;
        while (i < CLT_COUNT_OF(keys) && strcmp(key, keys[i]) != 0) i++;
        if (i == CLT_COUNT_OF(keys))
            return clt_error(CLT_BAD_DATA,
                             "%s: key '%.80s' is unknown; is this the tokenizer.json of a fast "
                             "tokenizer?",
                             t->path, key);
    }
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return clt_error(CLT_BAD_DATA, "%s: version is not \"1.0\"", t->path);
    return CLT_OK;
}

static clt_status read_root(clt_json_tokenizer *t, json_t *root) {
    CLT_TRY(check_keys(t, root));
    CLT_TRY(clt_tokenizer_read_steps(t, root));
    CLT_TRY(read_model(t, root));
    CLT_TRY(read_added_tokens(t, root));
    CLT_TRY(index_tokens(t));
    CLT_TRY(clt_tokenizer_read_post_processor(t, root));
    return clt_tokenizer_read_decoder(t, root);
}

clt_status clt_tokenizer_read(clt_json_tokenizer *t) {
    json_t *root;
    CLT_TRY(clt_json_load(t->path, MAX_FILE, MAX_DEPTH, &root));
    clt_status st = read_root(t, root);
    json_decref(root);
    return st;
}
