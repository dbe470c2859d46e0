/* Documents to samples: packing against LLM Foundry's rule written plainly; files, lines and threads against
 * whole texts encoded one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_philox.h"
#include "runtime/data/clt_convert.h"

static char *dir;

static int setup(void **state) {
    (void)state;
    clt_log_set_level(CLT_LOG_ERROR);
    dir = clt_strdup("/tmp/clt_test_convert_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    clt_io_remove_tree(dir);
    clt_free(dir);
    return 0;
}

static uint32_t random_of(uint32_t a, uint32_t b) {
    uint32_t r[4];
    clt_philox4x32((uint32_t[4]){a, b, 0, 0}, (uint32_t[2]){5, 0}, r);
    return r[0];
}

/* A growing list of ids. */
typedef struct {
    int32_t *v;
    size_t n;
} ids;

static void add(ids *to, const int32_t *v, size_t n) {
    to->v = clt_realloc(to->v, (to->n + n + 1) * sizeof *v);
    if (n) memcpy(to->v + to->n, v, n * sizeof *v);
    to->n += n;
}

static clt_status collect(void *ctx, const int32_t *tokens, size_t n) {
    add(ctx, tokens, n);
    return CLT_OK;
}

static void assert_same_ids(const ids *a, const ids *b) {
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        if (a->v[i] != b->v[i]) fail_msg("token %zu: %d and %d", i, a->v[i], b->v[i]);
}

/* --- packing --- */

/* ConcatTokensDataset.__iter__: buffer += document; while len(buffer) >= length: emit the first `length`,
 * keep the rest, or, with no_wrap, nothing. */
static void foundry_pack(ids *buffer, const int32_t *document, size_t n, size_t length, bool no_wrap,
                         ids *samples) {
    add(buffer, document, n);
    while (buffer->n >= length) {
        add(samples, buffer->v, length);
        memmove(buffer->v, buffer->v + length, (buffer->n - length) * sizeof *buffer->v);
        buffer->n = no_wrap ? 0 : buffer->n - length;
    }
}

static void check_pack(size_t length, bool no_wrap) {
    ids buffer = {0}, want = {0}, got = {0};
    clt_packer p;
    int64_t tokens = 0;
    assert_int_equal(clt_packer_init(&p, length, no_wrap, collect, &got), CLT_OK);
    for (uint32_t d = 0; d < 200; d++) {
        int32_t document[64];
        const size_t n = random_of(d, 0) % 64, cut = n ? random_of(d, 1) % n : 0;
        for (uint32_t i = 0; i < n; i++) document[i] = (int32_t)(d * 64 + i);
        foundry_pack(&buffer, document, n, length, no_wrap, &want);
        assert_int_equal(clt_packer_add(&p, document, cut), CLT_OK);
        assert_int_equal(clt_packer_add(&p, document + cut, n - cut), CLT_OK);
        clt_packer_end_document(&p);
        tokens += (int64_t)n;
    }
    assert_same_ids(&got, &want);
    assert_int_equal(p.have, buffer.n);
    assert_int_equal(p.dropped, tokens - (int64_t)(got.n + buffer.n));
    clt_packer_free(&p);
    clt_free(buffer.v);
    clt_free(want.v);
    clt_free(got.v);
}

static void test_packer(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 7, 20, 64, 500};
    for (size_t i = 0; i < CLT_COUNT_OF(lengths); i++) {
        check_pack(lengths[i], false);
        check_pack(lengths[i], true);
    }
}

/* --- files --- */

enum { FILES = 6, LENGTH = 1000 };

/* The files of a test, and what they must give. */
typedef struct {
    clt_docs_file files[FILES];
    char *paths[FILES];
    ids tokens; /* bos, text, eos of every document */
    int64_t documents;
} corpus;

static const int32_t bos[] = {300, 301}, eos[] = {256};

/* Words, spaces, lines and characters of more than one byte. */
static char *make_text(uint32_t seed, size_t n) {
    static const char *const words[] = {"the", " ",   "\n",           "caf\xc3\xa9", "\"x\"",
                                        "\\",  " of", "\xe2\x82\xac", "12"};
    clt_str b = {0};
    clt_str_add(&b, "");
    for (uint32_t i = 0; b.len + 6 < n; i++) clt_str_add(&b, words[random_of(seed, i) % CLT_COUNT_OF(words)]);
    return b.s;
}

static void add_document(corpus *c, const clt_tokenizer *t, const char *text) {
    const size_t bytes = strlen(text), max = clt_tokenizer_max_ids(t, bytes) + 1;
    int32_t *v = clt_calloc(max, sizeof *v);
    size_t n;
    assert_int_equal(clt_tokenizer_encode(t, text, bytes, clt_tokenizer_default_flags(t), v, max, &n),
                     CLT_OK);
    add(&c->tokens, bos, CLT_COUNT_OF(bos));
    add(&c->tokens, v, n);
    add(&c->tokens, eos, CLT_COUNT_OF(eos));
    c->documents++;
    clt_free(v);
}

static void write_file(corpus *c, size_t i, clt_docs_kind kind, const char *data, size_t n) {
    c->paths[i] = clt_format("%s/file%zu", dir, i);
    c->files[i] = (clt_docs_file){c->paths[i], kind};
    assert_int_equal(clt_io_write_atomic(c->paths[i], data, n), CLT_OK);
}

static void write_text(corpus *c, size_t i, const clt_tokenizer *t, uint32_t seed, size_t n) {
    char *text = make_text(seed, n);
    write_file(c, i, CLT_DOCS_TEXT, text, strlen(text));
    add_document(c, t, text);
    clt_free(text);
}

static void write_lines(corpus *c, size_t i, const clt_tokenizer *t, uint32_t seed, size_t lines) {
    clt_str b = {0};
    clt_str_add(&b, "");
    for (uint32_t k = 0; k < lines; k++) {
        char *text = make_text(seed + k, random_of(seed, k) % 2000), *quoted;
        assert_int_equal(clt_json_quote(text, strlen(text), "text", &quoted), CLT_OK);
        clt_str_addf(&b, "{\"n\": %u, \"text\": %s}\n%s", k, quoted, k % 7 ? "" : "\n");
        add_document(c, t, text);
        clt_free(text);
        clt_free(quoted);
    }
    write_file(c, i, CLT_DOCS_JSONL, b.s, b.len);
    clt_str_free(&b);
}

static void free_corpus(corpus *c) {
    for (size_t i = 0; i < FILES; i++) clt_free(c->paths[i]);
    clt_free(c->tokens.v);
}

static void check_corpus(const char *tokenizer) {
    clt_tokenizer *t;
    corpus c = {0};
    assert_int_equal(clt_tokenizer_open(tokenizer, &t), CLT_OK);
    write_text(&c, 0, t, 1, 5000);
    write_lines(&c, 1, t, 1000, 900);
    write_text(&c, 2, t, 2, 0);
    write_text(&c, 3, t, 3, 700000); /* several batches */
    write_lines(&c, 4, t, 5000, 3);
    write_text(&c, 5, t, 4, CLT_DOCS_BATCH);
    static const int threads[] = {1, 2, 5};
    for (size_t i = 0; i < CLT_COUNT_OF(threads); i++) {
        ids got = {0};
        clt_convert_counts counts;
        const clt_convert_params p = {.tokenizer = t,
                                      .length = LENGTH,
                                      .bos = bos,
                                      .num_bos = CLT_COUNT_OF(bos),
                                      .eos = eos,
                                      .num_eos = CLT_COUNT_OF(eos),
                                      .threads = threads[i],
                                      .tokens = collect,
                                      .ctx = &got};
        assert_int_equal(clt_convert(c.files, FILES, &p, &counts), CLT_OK);
        ids want = {c.tokens.v, c.tokens.n / LENGTH * LENGTH};
        assert_same_ids(&got, &want);
        assert_int_equal(counts.documents, c.documents);
        assert_int_equal(counts.samples, want.n / LENGTH);
        assert_int_equal(counts.left_over, c.tokens.n % LENGTH);
        clt_free(got.v);
    }
    free_corpus(&c);
    clt_tokenizer_close(t);
}

static void test_bytes(void **state) {
    (void)state;
    check_corpus("bytes");
}

/* Text that is tokenized in pieces has the ids of the whole. */
static void test_tokenizers(void **state) {
    (void)state;
    check_corpus("test/golden/tokenizer/neox_mini");
    check_corpus("test/golden/tokenizer/llama3_mini");
    check_corpus("test/golden/e2e/tokenizer");
}

/* --- bad lines --- */

static clt_status convert_lines(const char *text, size_t n, bool skip, int threads,
                                clt_convert_counts *counts) {
    clt_tokenizer *t;
    corpus c = {0};
    ids got = {0};
    assert_int_equal(clt_tokenizer_open("bytes", &t), CLT_OK);
    write_file(&c, 0, CLT_DOCS_JSONL, text, n);
    const clt_convert_params p = {.tokenizer = t,
                                  .field = "doc",
                                  .length = 4,
                                  .skip_bad = skip,
                                  .threads = threads,
                                  .tokens = collect,
                                  .ctx = &got};
    clt_status st = clt_convert(c.files, 1, &p, counts);
    if (st == CLT_OK) assert_int_equal(got.n, 4 * counts->samples);
    free_corpus(&c);
    clt_free(got.v);
    clt_tokenizer_close(t);
    return st;
}

/* The first bad line is reported, however many threads find others. */
static void test_bad_lines(void **state) {
    (void)state;
    enum { LINES = 20000, FIRST_BAD = 7777 };
    clt_str b = {0};
    clt_convert_counts counts;
    for (int i = 1; i <= LINES; i++)
        clt_str_addf(&b, i >= FIRST_BAD && i % 11 == 0 ? "{\"doc\": %d\n" : "{\"doc\": \"abcd%d\"}\n", i);
    clt_error_quiet(true);
    for (int threads = 1; threads <= 3; threads++) {
        assert_int_equal(convert_lines(b.s, b.len, false, threads, &counts), CLT_BAD_DATA);
        assert_non_null(strstr(clt_last_error(), "/file0:7777:"));
        assert_int_equal(convert_lines(b.s, b.len, true, threads, &counts), CLT_OK);
        assert_int_equal(counts.skipped, LINES / 11 - FIRST_BAD / 11 + 1);
        assert_int_equal(counts.documents, LINES - counts.skipped);
        assert_non_null(strstr(counts.first_skipped, "/file0:7777:"));
    }
    clt_error_quiet(false);
    clt_str_free(&b);
}

/* --- samples of text --- */

static clt_status collect_text(void *ctx, const char *text, size_t bytes) {
    clt_str_addf(ctx, "<%.*s>", (int)bytes, text);
    return CLT_OK;
}

static void test_texts(void **state) {
    (void)state;
    static const char lines[] =
        "{\"text\": \"one\"}\n{\"text\": 2}\n{\"text\": \"\"}\n{\"text\": \"\\u00e9\"}";
    corpus c = {0};
    clt_str got = {0};
    clt_convert_counts counts;
    write_file(&c, 0, CLT_DOCS_TEXT, "whole\nfile\n", 11);
    write_file(&c, 1, CLT_DOCS_JSONL, lines, strlen(lines));
    write_file(&c, 2, CLT_DOCS_TEXT, "", 0);
    write_file(&c, 3, CLT_DOCS_TEXT, "bad \xff", 5);
    clt_convert_params p = {.skip_bad = true, .text = collect_text, .ctx = &got};
    assert_int_equal(clt_convert(c.files, 3, &p, &counts), CLT_OK);
    assert_string_equal(got.s, "<whole\nfile\n><one><><\xc3\xa9><>");
    assert_int_equal(counts.samples, 5);
    assert_int_equal(counts.skipped, 1);
    clt_error_quiet(true);
    assert_int_equal(clt_convert(c.files, 4, &p, &counts), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "/file3: the text is not UTF-8"));
    p.skip_bad = false;
    assert_int_equal(clt_convert(c.files, 3, &p, &counts), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "/file1:2: field 'text' must be a string"));
    clt_error_quiet(false);
    clt_str_free(&got);
    free_corpus(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packer),    cmocka_unit_test(test_bytes), cmocka_unit_test(test_tokenizers),
        cmocka_unit_test(test_bad_lines), cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
