/* tokenizer.json: ids and texts that the package `tokenizers` computed (test/golden/tokenizer), text and ids
 * in pieces, special tokens by their role, and files that are damaged or use what is not supported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/clt_utf8.h"
#include "test/golden_util.h"
#include "test/memfs.h"

#define SETS "test/golden/tokenizer/"

static clt_tokenizer *open_or_fail(const char *path) {
    clt_tokenizer *t;
    if (clt_tokenizer_open(path, &t) != CLT_OK) fail_msg("%s: %s", path, clt_last_error());
    return t;
}

/* --- whole texts --- */

static int32_t *ids_of(json_t *list, size_t *n) {
    *n = json_array_size(list);
    int32_t *ids = clt_calloc(*n + 1, sizeof *ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static void check_ids(const char *what, json_t *c, const int32_t *got, size_t n, json_t *list) {
    size_t m;
    int32_t *want = ids_of(list, &m);
    if (n != m || memcmp(got, want, n * sizeof *got) != 0)
        fail_msg("%s of \"%s\" (group %s): %zu ids, not the %zu that are right", what,
                 json_string_value(json_object_get(c, "text")), golden_str(c, "group"), n, m);
    clt_free(want);
}

static void check_encode(const clt_tokenizer *t, json_t *c, unsigned flags, const char *key) {
    json_t *text = json_object_get(c, "text"), *list = json_object_get(c, key);
    const size_t bytes = json_string_length(text), max = clt_tokenizer_max_ids(t, bytes);
    int32_t *ids = clt_calloc(max + 1, sizeof *ids);
    size_t n;
    if (!list) list = json_object_get(c, "ids");
    assert_int_equal(clt_tokenizer_encode(t, json_string_value(text), bytes, flags, ids, max, &n), CLT_OK);
    check_ids(key, c, ids, n, list);
    /* At most as many as there is room for. */
    const size_t few = n / 2;
    memset(ids, 0xff, (max + 1) * sizeof *ids);
    assert_int_equal(
        clt_tokenizer_encode(t, json_string_value(text), bytes, flags & CLT_TOKEN_SPECIAL, ids, few, &n),
        CLT_OK);
    assert_true(n <= few);
    assert_int_equal(ids[few], -1);
    clt_free(ids);
}

static void check_text(const clt_str *got, json_t *want, const char *what) {
    const size_t bytes = json_string_length(want);
    if (got->len != bytes || (bytes && memcmp(got->s, json_string_value(want), bytes) != 0))
        fail_msg("%s: '%.*s' is not '%s'", what, (int)got->len, got->s ? got->s : "",
                 json_string_value(want));
}

/* Decoded at once and id by id. */
static void check_decode(const clt_tokenizer *t, json_t *c, bool skip, json_t *want) {
    size_t n;
    int32_t *ids = ids_of(json_object_get(c, "ids"), &n);
    clt_str whole = {0}, parts = {0};
    clt_token_decoder d = clt_token_decoder_begin(t, skip);
    assert_int_equal(clt_tokenizer_decode(t, ids, n, skip, &whole), CLT_OK);
    check_text(&whole, want, "decoded");
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(clt_token_decoder_add(&d, ids[i], &parts), CLT_OK);
        assert_true(clt_utf8_valid(parts.s ? parts.s : "", parts.len));
    }
    clt_token_decoder_end(&d, &parts);
    check_text(&parts, want, "decoded id by id");
    clt_str_free(&whole);
    clt_str_free(&parts);
    clt_free(ids);
}

static void check_decodes(const clt_tokenizer *t, json_t *c) {
    json_t *text = json_object_get(c, "decoded"), *skipped = json_object_get(c, "decoded_skip_special");
    if (!text) text = json_object_get(c, "text");
    check_decode(t, c, false, text);
    check_decode(t, c, true, skipped ? skipped : text);
}

/* --- text in pieces --- */

typedef struct {
    int32_t *ids;
    size_t n, max;
} collected;

static clt_status collect(void *ctx, const int32_t *ids, size_t n) {
    collected *c = ctx;
    assert_true(c->n + n <= c->max);
    memcpy(c->ids + c->n, ids, n * sizeof *ids);
    c->n += n;
    return CLT_OK;
}

static uint32_t seed = 1;
static uint32_t next_random(uint32_t below) {
    return (seed = seed * 1664525u + 1013904223u) / 65536 % below;
}

/* All texts of a set as one, cut anywhere: the ids are those of the whole text. */
static void check_stream(const clt_tokenizer *t, json_t *cases, unsigned flags) {
    clt_str text = {0};
    json_t *c;
    size_t i, n;
    json_array_foreach(cases, i, c) {
        json_t *s = json_object_get(c, "text");
        clt_str_addn(&text, json_string_value(s), json_string_length(s));
    }
    const size_t max = clt_tokenizer_max_ids(t, text.len);
    int32_t *want = clt_calloc(max, sizeof *want);
    collected got = {clt_calloc(max, sizeof(int32_t)), 0, max};
    clt_token_encoder *e = clt_token_encoder_create(t, flags, collect, &got);
    assert_int_equal(clt_tokenizer_encode(t, text.s, text.len, flags, want, max, &n), CLT_OK);
    for (int twice = 0; twice < 2; twice++) {
        got.n = 0;
        for (size_t at = 0, step; at < text.len; at += step) {
            step = 1 + next_random(twice ? 3 : 200);
            step = CLT_MIN(step, text.len - at);
            assert_int_equal(clt_token_encoder_add(e, text.s + at, step), CLT_OK);
        }
        assert_true(got.n > n / 2); /* most of it did not wait for the end */
        assert_int_equal(clt_token_encoder_end(e), CLT_OK);
        assert_int_equal(got.n, n);
        assert_memory_equal(got.ids, want, n * sizeof *want);
    }
    clt_token_encoder_destroy(e);
    clt_free(want);
    clt_free(got.ids);
    clt_str_free(&text);
}

/* Text without a place to cut, in small pieces: each piece is searched once. Minutes pass if everything that
 * is held back is searched again for every piece. */
static void test_held_text(void **state) {
    (void)state;
    enum { PIECE = 64, PIECES = 1 << 17 };
    clt_tokenizer *t = open_or_fail(SETS "llama3_mini");
    const size_t most = (size_t)PIECE * PIECES + 2;
    collected got = {clt_malloc(most * sizeof(int32_t)), 0, most};
    clt_token_encoder *e = clt_token_encoder_create(t, 0, collect, &got);
    char piece[PIECE];
    memset(piece, 'x', sizeof piece);
    const double start = clt_now();
    for (int i = 0; i < PIECES; i++) assert_int_equal(clt_token_encoder_add(e, piece, sizeof piece), CLT_OK);
    assert_int_equal(got.n, 0);
    assert_true(clt_now() - start < 20);
    assert_int_equal(clt_token_encoder_add(e, " x", 2), CLT_OK);
    assert_true(got.n > 0);
    assert_int_equal(clt_token_encoder_end(e), CLT_OK);
    clt_token_encoder_destroy(e);
    clt_free(got.ids);
    clt_tokenizer_close(t);
}

static void check_set(const char *set, const char *file) {
    char *path = clt_format(SETS "%s/%s", set, file), *cases = clt_format(SETS "%s/encodings.json", set);
    clt_tokenizer *t = open_or_fail(path);
    json_t *all = golden_load(cases), *c;
    size_t i;
    assert_int_equal(clt_tokenizer_vocab_size(t), golden_int(all, "vocab_size_with_added"));
    json_array_foreach(json_object_get(all, "encode"), i, c) {
        check_encode(t, c, CLT_TOKEN_SPECIAL, "ids");
        check_encode(t, c, CLT_TOKEN_SPECIAL | CLT_TOKEN_TEMPLATE, "ids_with_special");
        check_decodes(t, c);
    }
    assert_true(i > 100);
    json_array_foreach(json_object_get(all, "decode"), i, c) check_decodes(t, c);
    assert_true(i > 10);
    check_stream(t, json_object_get(all, "encode"), CLT_TOKEN_SPECIAL | CLT_TOKEN_TEMPLATE);
    check_stream(t, json_object_get(all, "encode"), 0);
    json_decref(all);
    clt_tokenizer_close(t);
    clt_free(path);
    clt_free(cases);
}

static void test_neox(void **state) {
    (void)state;
    check_set("neox_mini", "tokenizer.json");
    check_set("neox_mini", "tokenizer.legacy_merges.json");
}

static void test_llama3(void **state) {
    (void)state;
    check_set("llama3_mini", "tokenizer.json");
}

static void test_flags(void **state) {
    (void)state;
    check_set("flags_mini", "tokenizer.json");
}

static void test_qwen2(void **state) {
    (void)state;
    check_set("qwen2_mini", "tokenizer.json");
}

static void test_sentencepiece(void **state) {
    (void)state;
    check_set("sp_mini", "tokenizer.json");
    check_set("sp_metaspace", "tokenizer.json");
}

/* Ids in any order, half of them those of bytes: id by id, the text is that of all ids; before each id, what
 * was passed on and what is held back are the text so far. */
static void check_random_ids(const clt_tokenizer *t, int64_t first_byte, size_t n) {
    const uint32_t ids = (uint32_t)clt_tokenizer_vocab_size(t);
    clt_str whole = {0}, parts = {0}, peek = {0};
    clt_token_decoder d = clt_token_decoder_begin(t, n % 2 == 0);
    int32_t id[64];
    for (size_t i = 0; i < n; i++) {
        const bool byte = next_random(2);
        id[i] = (int32_t)(byte ? first_byte + next_random(256) : next_random(ids));
        if (byte && next_random(2)) id[i] = (int32_t)(first_byte + 0x80 + next_random(0x60));
        whole.len = peek.len = 0;
        assert_int_equal(clt_token_decoder_add(&d, id[i], &parts), CLT_OK);
        assert_int_equal(clt_tokenizer_decode(t, id, i + 1, n % 2 == 0, &whole), CLT_OK);
        clt_str_addn(&peek, parts.s ? parts.s : "", parts.len);
        clt_token_decoder_peek(&d, &peek);
        assert_int_equal(peek.len, whole.len);
        assert_memory_equal(peek.s, whole.s ? whole.s : "", whole.len);
    }
    clt_token_decoder_end(&d, &parts);
    assert_int_equal(parts.len, whole.len);
    assert_memory_equal(parts.s, whole.s, whole.len);
    clt_str_free(&whole);
    clt_str_free(&parts);
    clt_str_free(&peek);
}

static void test_random_ids(void **state) {
    (void)state;
    static const char *const sets[] = {SETS "sp_mini", SETS "sp_metaspace"};
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        clt_tokenizer *t = open_or_fail(sets[i]);
        const int64_t first = clt_tokenizer_id(t, "<0x00>");
        assert_true(first >= 0 && clt_tokenizer_id(t, "<0xFF>") == first + 255);
        for (int turn = 0; turn < 3000; turn++) check_random_ids(t, first, 1 + next_random(32));
        clt_tokenizer_close(t);
    }
}

/* A run of byte tokens that is longer than what is held back, with an invalid byte near its beginning: its
 * end is not lost. */
static void test_long_run(void **state) {
    (void)state;
    clt_tokenizer *t = open_or_fail(SETS "sp_mini");
    const int32_t first = (int32_t)clt_tokenizer_id(t, "<0x00>");
    clt_str text = {0};
    clt_token_decoder d = clt_token_decoder_begin(t, false);
    assert_int_equal(clt_token_decoder_add(&d, first + 0xff, &text), CLT_OK);
    for (int i = 0; i < CLT_TOKEN_RUN; i++)
        for (int k = 0; k < 3; k++)
            assert_int_equal(clt_token_decoder_add(&d, first + (unsigned char)"\xe2\x82\xac"[k], &text),
                             CLT_OK);
    clt_token_decoder_end(&d, &text);
    assert_int_equal(text.len, 3 + 3 * CLT_TOKEN_RUN);
    assert_memory_equal(text.s + text.len - 3, "\xe2\x82\xac", 3);
    clt_str_free(&text);
    clt_tokenizer_close(t);
}

/* --- tokens --- */

static void test_tokens(void **state) {
    (void)state;
    clt_tokenizer *t = open_or_fail(SETS "llama3_mini");
    int32_t ids[8];
    size_t n;
    assert_int_equal(clt_tokenizer_id(t, "<|begin_of_text|>"), 1979);
    assert_int_equal(clt_tokenizer_bos_id(t), 1979); /* a well-known name */
    assert_int_equal(clt_tokenizer_eos_id(t), 1980);
    assert_int_equal(clt_tokenizer_pad_id(t), -1);
    assert_string_equal(clt_tokenizer_text(t, 1980), "<|end_of_text|>");
    assert_true(clt_tokenizer_is_special(t, 1980));
    const int64_t the = clt_tokenizer_id(t, "\xc4\xa0the"); /* G with a dot stands for the space */
    assert_true(the >= 0);
    assert_false(clt_tokenizer_is_special(t, the));
    assert_memory_equal(clt_tokenizer_piece(t, (int32_t)the, &n), " the", 4);
    assert_int_equal(n, 4);
    assert_int_equal(clt_tokenizer_default_flags(t), CLT_TOKEN_SPECIAL | CLT_TOKEN_TEMPLATE);
    assert_int_equal(*clt_tokenizer_template(t, false, &n), 1979);
    assert_int_equal(n, 1);
    clt_tokenizer_template(t, true, &n);
    assert_int_equal(n, 0);
    /* The text of a special token is text unless asked for otherwise. */
    assert_int_equal(clt_tokenizer_encode(t, "<|end_of_text|>", 15, CLT_TOKEN_SPECIAL, ids, 8, &n), CLT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(clt_tokenizer_encode(t, "<|end_of_text|>", 15, 0, ids, 8, &n), CLT_OK);
    assert_true(n > 1);
    clt_error_quiet(true);
    assert_int_equal(clt_tokenizer_encode(t, "a\xff", 2, 0, ids, 8, &n), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "not UTF-8"));
    clt_error_quiet(false);
    clt_tokenizer_close(t);
}

/* --- files --- */

#define ADDED(id, text)                                                                                      \
    "{\"id\":" #id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"      \
    "\"normalized\":false,\"special\":true}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"
#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define STEPS "\"pre_tokenizer\":" BYTE_LEVEL ",\"decoder\":" BYTE_LEVEL
#define FOLDER "mem:///t"

static void write_file(const char *name, const char *text) {
    char *path = clt_path_join(FOLDER, name);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(path);
}

static void refused(const char *file, clt_status want, const char *says) {
    clt_tokenizer *t;
    write_file("tokenizer.json", file);
    clt_error_quiet(true);
    const clt_status got = clt_tokenizer_open(FOLDER, &t);
    clt_error_quiet(false);
    if (got != want || !strstr(clt_last_error(), says) || !strstr(clt_last_error(), "tokenizer.json"))
        fail_msg("status %d, '%s' does not say '%s'", got, clt_last_error(), says);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *file, *says;
        clt_status want;
    } cases[] = {
        {"{\"model\": {", "not valid JSON", CLT_BAD_DATA},
        {"[]", "is not a JSON object", CLT_BAD_DATA},
        {"{}", "key 'model' is missing", CLT_BAD_DATA},
        {"{" MODEL "," STEPS ",\"extra\":1}", "key 'extra' is unknown", CLT_BAD_DATA},
        {"{" MODEL "," STEPS ",\"version\":\"2.0\"}", "version is not \"1.0\"", CLT_BAD_DATA},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "model type 'WordPiece'", CLT_BAD_CONFIG},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "vocabulary is empty", CLT_BAD_DATA},
        {"{\"model\":{\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", "dropout", CLT_BAD_CONFIG},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
         "end_of_word_suffix", CLT_BAD_CONFIG},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "id -1 of token 'a' is out of range",
         CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":2000000000},\"merges\":[]}}", "out of range", CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", "not an integer", CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "also that of another", CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a c\"]}}", "merge 0 needs token 'c'", CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "needs token 'aa'", CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "merge 0 is not two texts", CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\",[\"a\",\"b\"]]}}",
         "merge 1 is not", CLT_BAD_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"<unk>\"}}", "unk_token '<unk>'",
         CLT_BAD_DATA},
        {"{" MODEL ",\"pre_tokenizer\":" BYTE_LEVEL "}", "without a decoder", CLT_BAD_CONFIG},
        {"{" MODEL "," STEPS ",\"normalizer\":{\"type\":\"NFKC\"}}", "normalizer 'NFKC'", CLT_BAD_CONFIG},
        {"{" MODEL
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}}",
         "'(a' is not a regular expression", CLT_BAD_DATA},
        {"{" MODEL
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}}",
         "behavior 'Odd' is unknown", CLT_BAD_DATA},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}", "'add_prefix_space' is missing",
         CLT_BAD_DATA},
        {"{" MODEL "," STEPS ",\"added_tokens\":[{\"id\":3,\"content\":\"x\"}]}", "'single_word' is missing",
         CLT_BAD_DATA},
        {"{" MODEL "," STEPS ",\"added_tokens\":[" ADDED(2, "x") "]}", "contradicts the vocabulary",
         CLT_BAD_DATA},
        {"{" MODEL "," STEPS ",\"added_tokens\":[" ADDED(3, "x") "," ADDED(3, "y") "]}", "occurs twice",
         CLT_BAD_DATA},
        {"{" MODEL "," STEPS ",\"added_tokens\":[" ADDED(900000000, "x") "]}", "out of range", CLT_BAD_DATA},
        {"{" MODEL "," STEPS ",\"post_processor\":{\"type\":\"BertProcessing\"}}", "'BertProcessing'",
         CLT_BAD_CONFIG},
        {"{" MODEL "," STEPS ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}",
         "the template has no Sequence", CLT_BAD_DATA},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) refused(cases[i].file, cases[i].want, cases[i].says);
    clt_tokenizer *t;
    assert_int_equal(clt_io_unlink(FOLDER "/tokenizer.json"), CLT_OK);
    clt_error_quiet(true);
    assert_int_not_equal(clt_tokenizer_open(FOLDER, &t), CLT_OK);
    assert_non_null(strstr(clt_last_error(), FOLDER " has no tokenizer.json"));
    clt_error_quiet(false);
}

/* Roles of tokens: the files beside tokenizer.json come before the well-known names. */
static void test_roles(void **state) {
    (void)state;
    write_file("tokenizer.json", "{" MODEL "," STEPS ",\"added_tokens\":[" ADDED(3, "<s>") "," ADDED(
                                     4, "</s>") "," ADDED(5, "<x>") "]}");
    clt_tokenizer *t = open_or_fail(FOLDER "/tokenizer.json");
    assert_int_equal(clt_tokenizer_bos_id(t), 3);
    assert_int_equal(clt_tokenizer_eos_id(t), 4);
    clt_tokenizer_close(t);
    write_file("tokenizer_config.json",
               "{\"eos_token\":{\"content\":\"<x>\"},\"bos_token\":null,\"chat\":[[[]]]}");
    write_file("special_tokens_map.json", "{\"eos_token\":\"<s>\",\"pad_token\":\"</s>\"}");
    t = open_or_fail(FOLDER);
    assert_int_equal(clt_tokenizer_bos_id(t), -1);
    assert_int_equal(clt_tokenizer_eos_id(t), 5);
    assert_int_equal(clt_tokenizer_pad_id(t), 4);
    assert_false(clt_tokenizer_pads_left(t));
    clt_tokenizer_close(t);
    /* This class makes its own template and pads on the left. */
    size_t n;
    write_file("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizer\",\"add_eos_token\":true}");
    t = open_or_fail(FOLDER);
    assert_int_equal(*clt_tokenizer_template(t, false, &n), 3);
    assert_int_equal(*clt_tokenizer_template(t, true, &n), 3); /* special_tokens_map.json names it */
    assert_true(clt_tokenizer_pads_left(t));
    int32_t ids[4];
    assert_int_equal(clt_tokenizer_encode(t, "ababab", 6, CLT_TOKEN_TEMPLATE, ids, 4, &n), CLT_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(ids, ((int32_t[]){3, 2, 2, 3}), sizeof ids); /* cut so that the template remains */
    clt_tokenizer_close(t);
    write_file("tokenizer_config.json", "{\"eos_token\":\"<y>\"}");
    clt_error_quiet(true);
    assert_int_equal(clt_tokenizer_open(FOLDER, &t), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "eos_token '<y>'"));
    clt_error_quiet(false);
}

/* The ids of "a" are those of " a" where a space comes first. */
static void check_prefix_space(const char *pre, const char *config, bool want) {
    int32_t ids[4];
    size_t n;
    char *file = clt_format("{\"model\":{\"vocab\":{\"a\":0,\"\xc4\xa0\":1},\"merges\":[]},"
                            "\"pre_tokenizer\":%s,\"decoder\":" BYTE_LEVEL "}",
                            pre);
    clt_error_quiet(true); /* they may not be there */
    clt_io_unlink(FOLDER "/tokenizer_config.json");
    clt_io_unlink(FOLDER "/special_tokens_map.json");
    clt_error_quiet(false);
    write_file("tokenizer.json", file);
    if (config) write_file("tokenizer_config.json", config);
    clt_tokenizer *t = open_or_fail(FOLDER);
    assert_int_equal(clt_tokenizer_encode(t, "a", 1, 0, ids, 4, &n), CLT_OK);
    if (n != (want ? 2 : 1)) fail_msg("%s with %s: %zu ids", pre, config ? config : "no file", n);
    clt_tokenizer_close(t);
    clt_free(file);
}

/* The ids of text with the vocabulary a, b, ab, <bytes of U+180E> by a Split that removes what `regex`
 * matches. */
static void check_class(const char *regex, const char *text, const char *left) {
    static const char vocab[] = "{\"a\":0,\"b\":1,\" \":2,\"\\u180e\":3,\"\\u0301\":4,\"\\u2460\":5,"
                                "\"\\u24b6\":6,\"\\u3000\":7,\"-\":8}";
    int32_t ids[32];
    size_t n;
    clt_str back = {0};
    char *file = clt_format("{\"model\":{\"vocab\":%s,\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
                            "\"behavior\":\"Removed\",\"pattern\":{\"Regex\":\"%s\"}},"
                            "\"decoder\":{\"type\":\"Fuse\"}}",
                            vocab, regex);
    write_file("tokenizer.json", file);
    clt_tokenizer *t = open_or_fail(FOLDER "/tokenizer.json");
    assert_int_equal(clt_tokenizer_encode(t, text, strlen(text), 0, ids, CLT_COUNT_OF(ids), &n), CLT_OK);
    assert_int_equal(clt_tokenizer_decode(t, ids, n, false, &back), CLT_OK);
    if (strcmp(back.s ? back.s : "", left) != 0)
        fail_msg("%s leaves '%s', not '%s'", regex, back.s ? back.s : "", left);
    clt_str_free(&back);
    clt_tokenizer_close(t);
    clt_free(file);
}

static void refused_class(const char *regex, const char *says) {
    char *file = clt_format("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\","
                            "\"pattern\":{\"Regex\":\"%s\"}}}",
                            regex);
    refused(file, CLT_BAD_CONFIG, says);
    clt_free(file);
}

/* Classes of characters as the package has them: U+180E is no space, a circled number is no character of a
 * word, a mark and a circled letter are. */
static void test_classes(void **state) {
    (void)state;
#define MONGOLIAN "\xe1\xa0\x8e"
#define ACUTE "\xcc\x81"
#define ONE "\xe2\x91\xa0"
#define CIRCLED_A "\xe2\x92\xb6"
#define WIDE "\xe3\x80\x80"
    static const char text[] = "a -" MONGOLIAN ACUTE ONE CIRCLED_A WIDE "b";
    check_class("\\\\s+", text, "a-" MONGOLIAN ACUTE ONE CIRCLED_A "b");
    check_class("\\\\S+", text, " " WIDE);
    check_class("[^\\\\s]", text, " " WIDE);
    check_class("[\\\\S]", text, " " WIDE);
    check_class("[^\\\\S]", text, "a-" MONGOLIAN ACUTE ONE CIRCLED_A "b");
    check_class("[\\\\s-]", text, "a" MONGOLIAN ACUTE ONE CIRCLED_A "b");
    check_class("\\\\w", text, " -" MONGOLIAN ONE WIDE);
    check_class("\\\\W", text, "a" ACUTE CIRCLED_A "b");
    check_class("[^]\\\\w]", text, "a" ACUTE CIRCLED_A "b");
    check_class("[[:digit:]\\\\s]", text, "a-" MONGOLIAN ACUTE ONE CIRCLED_A "b");
    refused_class("[^\\\\W]", "\\W inside of [...] is not supported");
    refused_class("[a[b]]", "a class inside of [...] is not supported");
    refused_class("[a&&b]", "&& inside of [...] is not supported");
    check_class("[[:alpha:]a]\\\\s", text, "-" MONGOLIAN ACUTE ONE CIRCLED_A WIDE "b");
}

/* add_prefix_space of tokenizer_config.json, as transformers 4.51 reads it. */
static void test_prefix_space(void **state) {
    (void)state;
#define PREFIXED "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}"
    check_prefix_space(BYTE_LEVEL, NULL, false);
    check_prefix_space(BYTE_LEVEL, "{\"add_prefix_space\":true}", true);
    check_prefix_space(BYTE_LEVEL, "{\"add_prefix_space\":1}", false);
    check_prefix_space(PREFIXED, NULL, true);
    check_prefix_space(PREFIXED, "{}", false);
    check_prefix_space(PREFIXED, "{\"add_prefix_space\":false}", false);
    check_prefix_space(PREFIXED, "{\"add_prefix_space\":null}", true);
    check_prefix_space(PREFIXED, "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"add_bos_token\":false}",
                       true);
    check_prefix_space("{\"type\":\"Sequence\",\"pretokenizers\":[" PREFIXED "]}", "{}", true);
}

/* Matches inside of spaces that the token before them took. The ids are those of the package 0.22.2. */
static void test_stripped_spaces(void **state) {
    (void)state;
#define STRIPS(id, text, left, right)                                                                        \
    "{\"id\":" #id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":" #left ",\"rstrip\":" #right \
    ",\"normalized\":false,\"special\":false}"
    static const struct {
        const char *added, *text;
        int32_t ids[8];
        size_t n;
    } cases[] = {
        {STRIPS(3, "_", false, true) "," STRIPS(4, "\\n", false, false), "a_\n\nb", {0, 3, 4, 4, 1}, 5},
        {STRIPS(3, "_", false, true) "," STRIPS(4, "\\n", true, true), "a_\n\nb", {0, 3, 1}, 3},
        {STRIPS(3, "\\n", true, true), "a\n \n\nb", {0, 3, 1}, 3},
        {STRIPS(3, "\\n", false, true), "a\n\n\nb", {0, 3, 3, 3, 1}, 5},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        int32_t ids[8];
        size_t n;
        clt_str file = {0};
        clt_str_addf(&file, "{" MODEL "," STEPS ",\"added_tokens\":[%s]}", cases[i].added);
        write_file("tokenizer.json", file.s);
        clt_tokenizer *t = open_or_fail(FOLDER);
        const char *text = cases[i].text;
        assert_int_equal(clt_tokenizer_encode(t, text, strlen(text), CLT_TOKEN_SPECIAL, ids, 8, &n), CLT_OK);
        assert_int_equal(n, cases[i].n);
        assert_memory_equal(ids, cases[i].ids, n * sizeof *ids);
        clt_tokenizer_close(t);
        clt_str_free(&file);
    }
}

static memfs *fs;

static int mount(void **state) {
    (void)state;
    fs = mem_mount("mem");
    return clt_io_mkdirs(FOLDER) == CLT_OK ? 0 : -1;
}

static int unmount(void **state) {
    (void)state;
    clt_io_unregister("mem");
    mem_destroy(fs);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neox),          cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_flags),         cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_sentencepiece), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_roles),
        cmocka_unit_test(test_prefix_space),  cmocka_unit_test(test_held_text),
        cmocka_unit_test(test_random_ids),    cmocka_unit_test(test_long_run),
        cmocka_unit_test(test_classes),       cmocka_unit_test(test_stripped_spaces),
    };
    return cmocka_run_group_tests(tests, mount, unmount);
}
