/* Training a tokenizer: vocabularies and merges that the package `tokenizers` learned from the same texts
 * (test/golden/tokenizer/train_mini), on any number of threads, and inputs that cannot be used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_tokenizer_train.h"
#include "test/golden_util.h"
#include "test/memfs.h"

#define SET "test/golden/tokenizer/train_mini/"

static void write_file(const char *path, const char *text, size_t bytes) {
    char *folder = clt_path_dir(path);
    assert_int_equal(clt_io_mkdirs(folder), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, text, bytes), CLT_OK);
    clt_free(folder);
}

static clt_status train(const char *path, clt_docs_kind kind, const clt_tokenizer_train_params *p,
                        clt_str *json, clt_tokenizer_train_counts *counts) {
    const clt_docs_file file = {path, kind};
    return clt_tokenizer_train(&file, 1, p, json, counts);
}

static json_t *parse(const clt_str *json) {
    json_t *o = json_loadb(json->s, json->len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    return o;
}

static clt_tokenizer_train_params params_of(json_t *c, int threads) {
    json_t *special = json_object_get(c, "special");
    clt_tokenizer_train_params p = {.vocab_size = golden_int(c, "vocab_size"),
                                    .min_frequency = golden_int(c, "min_frequency"),
                                    .pattern = golden_str(c, "pattern"),
                                    .nfc = json_is_true(json_object_get(c, "nfc")),
                                    .threads = threads};
    for (size_t i = 0; i < json_array_size(special); i++)
        clt_strv_add(&p.special, json_string_value(json_array_get(special, i)));
    return p;
}

static void compare(json_t *c, json_t *made) {
    json_t *model = json_object_get(made, "model"), *vocab = json_object_get(model, "vocab");
    json_t *lists[] = {json_object_get(c, "first"), json_object_get(c, "vocab")};
    int64_t id = 0;
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < json_array_size(lists[l]); i++, id++) {
            const char *text = json_string_value(json_array_get(lists[l], i));
            json_t *got = json_object_get(vocab, text);
            if (!got || json_integer_value(got) != id)
                fail_msg("%s: token %lld must be \"%s\"", golden_str(c, "name"), (long long)id, text);
        }
    assert_int_equal(json_object_size(vocab), id);
    json_t *want = json_object_get(c, "merges"), *got = json_object_get(model, "merges");
    assert_int_equal(json_array_size(got), json_array_size(want));
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!json_equal(json_array_get(got, i), json_array_get(want, i)))
            fail_msg("%s: merge %zu differs", golden_str(c, "name"), i);
}

static void the_package_learns_the_same(void **state) {
    (void)state;
    json_t *cases = golden_load(SET "cases.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(cases, "cases"), i, c) {
        clt_str first = {0};
        for (int threads = 1; threads <= 3; threads += 2) {
            clt_tokenizer_train_params p = params_of(c, threads);
            clt_tokenizer_train_counts counts;
            clt_str json = {0};
            assert_int_equal(train(SET "corpus.txt", CLT_DOCS_TEXT, &p, &json, &counts), CLT_OK);
            json_t *made = parse(&json);
            compare(c, made);
            json_decref(made);
            if (first.s) assert_string_equal(json.s, first.s);
            if (!first.s) clt_str_addn(&first, json.s, json.len);
            clt_str_free(&json);
            clt_strv_free(&p.special);
        }
        clt_str_free(&first);
    }
    json_decref(cases);
}

/* A text longer than the chunks in which files are read, on several threads. */
static void long_files_are_counted_whole(void **state) {
    (void)state;
    char *text;
    size_t bytes;
    clt_str large = {0}, one = {0}, many = {0};
    clt_tokenizer_train_counts counts;
    assert_int_equal(clt_io_read_all(SET "corpus.txt", 1 << 20, &text, &bytes), CLT_OK);
    for (int i = 0; i < 170; i++) clt_str_addn(&large, text, bytes);
    write_file("mem:///large.txt", large.s, large.len);
    write_file("mem:///one.txt", text, bytes);
    clt_tokenizer_train_params p = {.vocab_size = 500, .threads = 3};
    /* The file has no line end at its end, so one line differs at each seam: the word "end" is followed by
     * the first word. Frequent pairs are the same. */
    assert_int_equal(train("mem:///large.txt", CLT_DOCS_TEXT, &p, &many, &counts), CLT_OK);
    assert_int_equal(counts.bytes, large.len);
    assert_int_equal(train("mem:///one.txt", CLT_DOCS_TEXT, &p, &one, &counts), CLT_OK);
    assert_string_equal(many.s, one.s);
    clt_free(text);
    clt_str_free(&large);
    clt_str_free(&one);
    clt_str_free(&many);
}

static void jsonl_is_read(void **state) {
    (void)state;
    static const char lines[] = "{\"text\": \"low lower\"}\n\n{\"text\": \"lowest \\u00e9\"}\nnot json\n";
    clt_tokenizer_train_params p = {.vocab_size = 258, .threads = 1};
    clt_tokenizer_train_counts counts;
    clt_str json = {0};
    write_file("mem:///a.jsonl", lines, sizeof lines - 1);
    assert_int_equal(train("mem:///a.jsonl", CLT_DOCS_JSONL, &p, &json, &counts), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "mem:///a.jsonl:4"));
    p.skip_bad = true;
    assert_int_equal(train("mem:///a.jsonl", CLT_DOCS_JSONL, &p, &json, &counts), CLT_OK);
    assert_int_equal(counts.skipped, 1);
    json_t *o = parse(&json), *merges = json_object_get(json_object_get(o, "model"), "merges");
    assert_int_equal(json_array_size(merges), 2);
    assert_string_equal(json_string_value(json_array_get(json_array_get(merges, 0), 0)), "l");
    assert_string_equal(json_string_value(json_array_get(json_array_get(merges, 1), 0)), "lo");
    json_decref(o);
    clt_str_free(&json);
    p.field = "body";
    p.skip_bad = false;
    assert_int_equal(train("mem:///a.jsonl", CLT_DOCS_JSONL, &p, &json, &counts), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "'body'"));
}

static void the_result_can_be_used(void **state) {
    (void)state;
    clt_tokenizer_train_params p = {.vocab_size = 600, .pattern = "llama3"};
    clt_tokenizer_train_counts counts;
    clt_tokenizer *t;
    clt_str json = {0}, text = {0};
    int32_t ids[64];
    size_t n;
    clt_strv_add(&p.special, "<|endoftext|>");
    assert_int_equal(train(SET "corpus.txt", CLT_DOCS_TEXT, &p, &json, &counts), CLT_OK);
    write_file("mem:///made/tokenizer.json", json.s, json.len);
    assert_int_equal(clt_tokenizer_open("mem:///made/tokenizer.json", &t), CLT_OK);
    assert_int_equal(clt_tokenizer_vocab_size(t), counts.tokens);
    assert_int_equal(clt_tokenizer_eos_id(t), 0);
    static const char say[] = "It is a truth universally acknowledged<|endoftext|>";
    assert_int_equal(clt_tokenizer_encode(t, say, sizeof say - 1, CLT_TOKEN_SPECIAL, ids, 64, &n), CLT_OK);
    assert_true(n < 38 && ids[n - 1] == 0);
    assert_int_equal(clt_tokenizer_decode(t, ids, n, false, &text), CLT_OK);
    assert_string_equal(text.s, say);
    clt_tokenizer_close(t);
    clt_strv_free(&p.special);
    clt_str_free(&json);
    clt_str_free(&text);
}

static void refused(const char *path, const clt_tokenizer_train_params *p, clt_status want,
                    const char *says) {
    clt_tokenizer_train_counts counts;
    clt_str json = {0};
    assert_int_equal(train(path, CLT_DOCS_TEXT, p, &json, &counts), want);
    if (!strstr(clt_last_error(), says)) fail_msg("'%s' does not say '%s'", clt_last_error(), says);
    assert_null(json.s);
}

static void unusable_inputs_are_named(void **state) {
    (void)state;
    clt_tokenizer_train_params p = {.vocab_size = 300, .threads = 2};
    write_file("mem:///bad.txt", "one\ntwo\nthr\xff\xff\nfour", 18);
    refused("mem:///bad.txt", &p, CLT_BAD_DATA, "mem:///bad.txt:3: the text is not UTF-8");
    refused("mem:///absent.txt", &p, CLT_IO, "mem:///absent.txt");
    p.vocab_size = 256;
    clt_strv_add(&p.special, "<a>");
    refused(SET "corpus.txt", &p, CLT_BAD_CONFIG, "1 special tokens and 256 bytes");
    clt_strv_add(&p.special, "<a>");
    refused(SET "corpus.txt", &p, CLT_BAD_CONFIG, "'<a>' is given twice");
    p.pattern = "gpt5";
    refused(SET "corpus.txt", &p, CLT_BAD_CONFIG, "unknown pattern 'gpt5'");
    clt_strv_free(&p.special);
}

int main(void) {
    mem_mount("mem");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_package_learns_the_same), cmocka_unit_test(long_files_are_counted_whole),
        cmocka_unit_test(jsonl_is_read), cmocka_unit_test(the_result_can_be_used),
        cmocka_unit_test(unusable_inputs_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
