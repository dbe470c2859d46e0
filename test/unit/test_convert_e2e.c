/* Text to MDS as the reference made it: the texts of the end-to-end run's dataset, which are its tokens
 * decoded and split at the end of text, are converted again with the run's tokenizer, from text files and
 * from JSONL, and must give the same files, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_tokenizer.h"

#define E2E "test/golden/e2e/"

enum { T = 128, EOS = 0 };

static char *cltrain, *dir;

static int setup(void **state) {
    (void)state;
    dir = clt_strdup("/tmp/clt_test_convert_e2e_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    clt_io_remove_tree(dir);
    clt_free(dir);
    return 0;
}

/* All tokens of a split in order. */
static int32_t *read_tokens(const char *split, size_t *n) {
    char *from = clt_path_join(E2E "mds", split);
    clt_mds *m;
    int64_t got;
    assert_int_equal(clt_mds_open(from, NULL, &m), CLT_OK);
    const int64_t samples = clt_mds_num_samples(m);
    int32_t *all = clt_calloc((size_t)samples * T, sizeof *all);
    for (int64_t i = 0; i < samples; i++) {
        assert_int_equal(clt_mds_get_tokens(m, i, T, 0, all + i * T, &got, NULL), CLT_OK);
        assert_int_equal(got, T);
    }
    *n = (size_t)samples * T;
    clt_mds_close(m);
    clt_free(from);
    return all;
}

/* Writes a text as a file of its own, and as a line of `lines`. */
static void write_document(const char *split, size_t number, const clt_str *text, clt_str *lines) {
    char *path = clt_format("%s/%s/text/%02zu.txt", dir, split, number), *folder = clt_path_dir(path),
         *quoted;
    assert_int_equal(clt_io_mkdirs(folder), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, text->s, text->len), CLT_OK);
    assert_int_equal(clt_json_quote(text->s, text->len, path, &quoted), CLT_OK);
    clt_str_addf(lines, "{\"text\": %s}\n", quoted);
    clt_free(quoted);
    clt_free(folder);
    clt_free(path);
}

static size_t write_texts(const char *split) {
    clt_tokenizer *t;
    clt_str lines = {0};
    size_t n, documents = 0;
    int32_t *all = read_tokens(split, &n);
    assert_int_equal(clt_tokenizer_open(E2E "tokenizer", &t), CLT_OK);
    for (size_t begin = 0, end; begin < n; begin = end + 1) {
        clt_str text = {0};
        for (end = begin; end < n && all[end] != EOS;) end++;
        assert_int_equal(clt_tokenizer_decode(t, all + begin, end - begin, false, &text), CLT_OK);
        write_document(split, documents++, &text, &lines);
        clt_str_free(&text);
    }
    char *path = clt_format("%s/%s/all.jsonl", dir, split);
    assert_int_equal(clt_io_write_atomic(path, lines.s, lines.len), CLT_OK);
    clt_tokenizer_close(t);
    clt_str_free(&lines);
    clt_free(path);
    clt_free(all);
    return documents;
}

static void assert_same_file(const char *a, const char *b, const char *name) {
    char *path_a = clt_path_join(a, name), *path_b = clt_path_join(b, name), *data_a, *data_b;
    size_t n, k;
    assert_int_equal(clt_io_read_all(path_a, 1 << 20, &data_a, &n), CLT_OK);
    assert_int_equal(clt_io_read_all(path_b, 1 << 20, &data_b, &k), CLT_OK);
    if (n != k || memcmp(data_a, data_b, n)) fail_msg("%s and %s differ", path_a, path_b);
    clt_free(data_a);
    clt_free(data_b);
    clt_free(path_a);
    clt_free(path_b);
}

static void check_convert(const char *split, const char *input, const char *end, int threads) {
    char *from = clt_path_join(E2E "mds", split), *out = clt_path_join(dir, "out"),
         *to = clt_path_join(out, split);
    char *command =
        clt_format("%s -q data convert %s/%s/%s --out %s --split %s --concat-tokens %d --tokenizer " E2E
                   "tokenizer %s --size-limit 32768 --threads %d >/dev/null",
                   cltrain, dir, split, input, out, split, T, end, threads);
    clt_strv names = {0}, made = {0};
    if (system(command) != 0) fail_msg("failed: %s", command);
    assert_int_equal(clt_io_list(from, &names), CLT_OK);
    assert_int_equal(clt_io_list(to, &made), CLT_OK);
    assert_int_equal(names.n, made.n);
    for (size_t i = 0; i < names.n; i++) assert_same_file(from, to, names.v[i]);
    clt_io_remove_tree(out);
    clt_strv_free(&names);
    clt_strv_free(&made);
    clt_free(from);
    clt_free(out);
    clt_free(to);
    clt_free(command);
}

static void test_same_bytes(void **state) {
    (void)state;
    assert_int_equal(write_texts("train"), 6);
    assert_int_equal(write_texts("val"), 1);
    check_convert("train", "text", "--eos", 1);
    check_convert("train", "text", "--eos-text '<|endoftext|>'", 3);
    check_convert("train", "all.jsonl", "--eos", 2);
    check_convert("val", "all.jsonl", "--eos-id 0", 1);
}

int main(int argc, char **argv) {
    (void)argc;
    char *unit = clt_path_dir(argv[0]);
    cltrain = clt_path_join(unit, "../../cltrain");
    clt_free(unit);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bytes)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
