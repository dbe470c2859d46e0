#include "runtime/data/clt_tokenizer_train.h"

#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/data/tokenizer/clt_bpe.h"
#include "runtime/data/tokenizer/clt_bpe_train.h"
#include "runtime/data/tokenizer/clt_corpus.h"

/* gpt2 is what the pre-tokenizer ByteLevel does without a Split before it. */
static const struct {
    const char *name, *pattern;
    bool split;
} patterns[] = {{"gpt2", clt_pattern_gpt2, false},
                {"llama3", clt_pattern_llama3, true},
                {"qwen2", clt_pattern_qwen2, true},
                {"o200k", clt_pattern_o200k, true}};

static clt_status find_pattern(const char *name, size_t *index) {
    for (size_t i = 0; i < CLT_COUNT_OF(patterns); i++)
        if (!strcmp(patterns[i].name, name ? name : "gpt2")) {
            *index = i;
            return CLT_OK;
        }
    return clt_error(CLT_BAD_CONFIG, "unknown pattern '%s'; known are gpt2, llama3, qwen2 and o200k", name);
}

/* --- the first tokens --- */

static unsigned char_of(const char *text, size_t bytes) {
    return bytes == 1 ? (unsigned char)text[0]
                      : ((unsigned)text[0] & 0x1fu) << 6 | ((unsigned)text[1] & 0x3fu);
}

/* The bytes in the order of the characters that stand for them. */
static void order_bytes(unsigned char order[256]) {
    size_t n = 0;
    for (unsigned c = 0; c < 0x200; c++)
        for (unsigned b = 0; b < 256; b++) {
            char text[2];
            if (char_of(text, clt_byte_char((unsigned char)b, text)) == c) order[n++] = (unsigned char)b;
        }
}

/* Adds a special token as the bytes that its characters stand for, because a merge that makes the same text
 * is the same token. A token with other characters gets bytes that no UTF-8 text has, so that no merge makes
 * it. */
static clt_status add_special(clt_bpe_trained *t, const char *text) {
    const size_t n = t->tokens.n, bytes = strlen(text);
    clt_str b = {0};
    size_t made = 0;
    if (!clt_str_try_reserve(&b, bytes + 2)) return clt_no_memory("a special token", bytes);
    if (clt_byte_chars_decode(text, bytes, b.s, &made))
        b.len = made;
    else
        clt_str_addf(&b, "%s\xff\xff", text);
    clt_status st = clt_word_count_add(&t->tokens, b.s, b.len, 0);
    clt_str_free(&b);
    if (st == CLT_OK && t->tokens.n == n)
        st = clt_error(CLT_BAD_CONFIG, "the special token '%s' is given twice", text);
    return st;
}

static clt_status add_first_tokens(const clt_tokenizer_train_params *p, clt_bpe_train_params *bpe,
                                   clt_bpe_trained *t) {
    unsigned char order[256];
    for (size_t i = 0; i < p->special.n; i++) CLT_TRY(add_special(t, p->special.v[i]));
    order_bytes(order);
    for (size_t i = 0; i < 256; i++) {
        const char text = (char)order[i];
        CLT_TRY(clt_word_count_add(&t->tokens, &text, 1, 0));
        bpe->byte_id[order[i]] = (int32_t)clt_word_count_find(&t->tokens, &text, 1);
    }
    if ((int64_t)t->tokens.n <= p->vocab_size) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "a vocabulary of %lld has no room for %zu special tokens and 256 bytes",
                     (long long)p->vocab_size, p->special.n);
}

/* --- tokenizer.json --- */

/* The text of a token: special ones as they are, others with a character for each byte. */
static json_t *token_text(const clt_tokenizer_train_params *p, const clt_bpe_trained *t, size_t id) {
    if (id < p->special.n) return json_string(p->special.v[id]);
    const clt_word *w = &t->tokens.words[id];
    clt_str text = {0};
    for (uint32_t i = 0; i < w->bytes; i++) {
        char out[2];
        clt_str_addn(&text, out, clt_byte_char((unsigned char)t->tokens.arena[w->at + i], out));
    }
    json_t *s = json_stringn(text.s, text.len);
    clt_str_free(&text);
    return s;
}

static json_t *byte_level(bool prefix, bool trim, bool regex) {
    return json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", trim,
                     "use_regex", regex);
}

static json_t *pre_tokenizer(size_t pattern) {
    if (!patterns[pattern].split) return byte_level(false, true, true);
    return json_pack("{ss s[{ss s{ss} ss sb} o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                     "pattern", "Regex", patterns[pattern].pattern, "behavior", "Isolated", "invert", false,
                     byte_level(false, true, false));
}

static json_t *added_tokens(const clt_tokenizer_train_params *p) {
    json_t *all = json_array();
    for (size_t i = 0; i < p->special.n; i++)
        json_array_append_new(all, json_pack("{sI ss sb sb sb sb sb}", "id", (json_int_t)i, "content",
                                             p->special.v[i], "single_word", false, "lstrip", false, "rstrip",
                                             false, "normalized", false, "special", true));
    return all;
}

/* Whether a later merge is of the same pair; then only that one counts. */
static clt_status repeated(const clt_bpe_trained *t, bool **out) {
    clt_word_count last = {0};
    bool *again = clt_try_calloc(t->n + 1, sizeof *again);
    clt_status st = again ? CLT_OK : clt_no_memory("the merges of a tokenizer", t->n);
    for (size_t i = t->n; i-- > 0 && st == CLT_OK;) {
        const size_t n = last.n;
        st = clt_word_count_add(&last, (const char *)&t->merges[i], sizeof t->merges[i], 1);
        again[i] = last.n == n;
    }
    clt_word_count_free(&last);
    *out = again;
    return st;
}

static json_t *model(const clt_tokenizer_train_params *p, const clt_bpe_trained *t, const bool *again) {
    json_t *vocab = json_object(), *merges = json_array();
    for (size_t id = 0; id < t->tokens.n; id++) {
        json_t *text = token_text(p, t, id);
        json_object_set_new(vocab, json_string_value(text), json_integer((json_int_t)id));
        json_decref(text);
    }
    for (size_t i = 0; i < t->n; i++)
        if (!again[i])
            json_array_append_new(merges, json_pack("[oo]", token_text(p, t, (size_t)t->merges[i].left),
                                                    token_text(p, t, (size_t)t->merges[i].right)));
    return json_pack("{ss sn sn sn sn sb sb sb so so}", "type", "BPE", "dropout", "unk_token",
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", false, "byte_fallback",
                     false, "ignore_merges", false, "vocab", vocab, "merges", merges);
}

/* A json_dump_callback_t. */
static int append(const char *text, size_t bytes, void *ctx) {
    clt_str *out = ctx;
    if (!clt_str_try_reserve(out, bytes)) return -1;
    clt_str_addn(out, text, bytes);
    return 0;
}

static clt_status write_json(const clt_tokenizer_train_params *p, size_t pattern, const clt_bpe_trained *t,
                             clt_str *out) {
    bool *again = NULL;
    clt_status st = repeated(t, &again);
    if (st != CLT_OK) {
        clt_free(again);
        return st;
    }
    json_t *o =
        json_pack("{ss sn sn so so so sn so so}", "version", "1.0", "truncation", "padding", "added_tokens",
                  added_tokens(p), "normalizer", p->nfc ? json_pack("{ss}", "type", "NFC") : json_null(),
                  "pre_tokenizer", pre_tokenizer(pattern), "post_processor", "decoder",
                  byte_level(true, true, true), "model", model(p, t, again));
    const bool whole = o && json_dump_callback(o, append, out, JSON_INDENT(2)) == 0;
    json_decref(o);
    clt_free(again);
    if (!whole) return clt_no_memory("the text of a tokenizer", out->len);
    clt_str_add(out, "\n");
    return CLT_OK;
}

/* --- all of it --- */

clt_status clt_tokenizer_train(const clt_docs_file *files, size_t n, const clt_tokenizer_train_params *p,
                               clt_str *json, clt_tokenizer_train_counts *counts) {
    clt_bpe_train_params bpe = {.vocab_size = p->vocab_size, .min_frequency = p->min_frequency};
    clt_bpe_trained trained = {0};
    clt_word_count words = {0};
    clt_splitter *splitter = NULL;
    size_t pattern = 0;
    *counts = (clt_tokenizer_train_counts){0};
    CLT_TRY(find_pattern(p->pattern, &pattern));
    clt_status st = add_first_tokens(p, &bpe, &trained);
    if (st == CLT_OK)
        st = clt_splitter_create(patterns[pattern].pattern, CLT_SPLIT_ISOLATED, patterns[pattern].name,
                                 &splitter);
    if (st == CLT_OK) st = clt_corpus_count(files, n, p, splitter, &words, counts);
    if (st == CLT_OK) st = clt_bpe_train(&words, &bpe, &trained);
    if (st == CLT_OK) st = write_json(p, pattern, &trained, json);
    counts->words = (int64_t)words.n;
    counts->tokens = (int64_t)trained.tokens.n;
    clt_splitter_destroy(splitter);
    clt_word_count_free(&words);
    clt_bpe_trained_free(&trained);
    return st;
}
