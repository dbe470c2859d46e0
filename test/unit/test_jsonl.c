/* The JSONL reader: lines, limits, messages; and its fuzz target over the seeds and mutations of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define FUZZ_ALPHABET "{}[]\",:\\u0 \n\r\t\xff"
#define main replay_main
#include "runtime/base/clt_json.h"
#include "test/fuzz/fuzz_jsonl.c"
#include "test/fuzz/replay.h"
#undef main

static char *dir, *path;

static int setup(void **state) {
    (void)state;
    dir = clt_strdup("/tmp/clt_test_jsonl_XXXXXX");
    assert_non_null(mkdtemp(dir));
    path = clt_path_join(dir, "in.jsonl");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
    clt_free(dir);
    return 0;
}

/* Reads the string `text` of the only line. */
static clt_status read_one(const char *contents, size_t bytes, char *out) {
    clt_jsonl *r;
    clt_jsonl_line line;
    json_t *o;
    const char *text;
    assert_int_equal(clt_io_write_atomic(path, contents, bytes), CLT_OK);
    assert_int_equal(clt_jsonl_open(path, 100, &r), CLT_OK);
    clt_status st = clt_jsonl_next(r, &line, &o);
    if (st == CLT_OK) st = clt_jsonl_get_str(&line, o, "text", &text, NULL);
    if (st == CLT_OK) strcpy(out, text);
    if (o) json_decref(o);
    clt_jsonl_close(r);
    return st;
}

static void test_messages(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"{\"text\": \"cut", "in.jsonl:1:13: not valid JSON: premature end of input"},
        {"{}", "in.jsonl:1: field 'text' is missing; the line has no fields"},
        {"{\"a\": 1, \"b\": 2}", "field 'text' is missing; the line has 'a', 'b'"},
        {"\n{\"text\": 5}", "in.jsonl:2: field 'text' must be a string"},
        {"{\"text\": \"\xff\"}", "in.jsonl:1:10: not valid JSON: unable to decode byte 0xff"},
        {"{\"text\": \"\", \"text\": \"\"}", "duplicate object key"},
        {"{\"text\": \"\"} {}", "end of file expected"},
        {"[\"text\"]", "in.jsonl:1: the line is a list; every line must be one JSON object (jq -c '.[]'"},
        {"\"text\"", "'[' or '{' expected"},
        {"\n\xef\xbb\xbf{\"text\": \"\"}", "in.jsonl:2:1: not valid JSON"},
    };
    char text[101];
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        assert_int_equal(read_one(cases[i].line, strlen(cases[i].line), text), CLT_BAD_DATA);
        if (!strstr(clt_last_error(), cases[i].message))
            fail_msg("'%s' does not contain '%s'", clt_last_error(), cases[i].message);
    }
    assert_int_equal(read_one("{\"text\": \"a\0b\"}", 15, text), CLT_BAD_DATA);
    assert_int_equal(read_one("\r\n \t\n{\"text\": \"\\u00e9\"}\r\n", 25, text), CLT_OK);
    assert_string_equal(text, "\xc3\xa9");
    assert_int_equal(read_one("\xef\xbb\xbf{\"text\": \"b\"}", 16, text), CLT_OK);
    assert_string_equal(text, "b");
}

static void test_nul(void **state) {
    static const char file[] = "{\"text\": \"a\\u0000b\"}";
    clt_jsonl *r;
    clt_jsonl_line line;
    json_t *o;
    const char *text;
    size_t bytes;
    (void)state;
    assert_int_equal(clt_io_write_atomic(path, file, strlen(file)), CLT_OK);
    assert_int_equal(clt_jsonl_open(path, 100, &r), CLT_OK);
    assert_int_equal(clt_jsonl_next(r, &line, &o), CLT_OK);
    assert_int_equal(clt_jsonl_get_str(&line, o, "text", &text, &bytes), CLT_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "a\0b", 3);
    json_decref(o);
    clt_jsonl_close(r);
}

/* A line of the limit is read, a longer one is an error that the next line survives. */
static void test_limit(void **state) {
    (void)state;
    enum { LIMIT = 100 };
    clt_str b = {0};
    clt_str_addf(&b, "{\"text\": \"%088d\"}\n", 1);
    assert_int_equal(b.len, LIMIT + 1);
    clt_str_addf(&b, "{\"text\": \"%089d\"}\n{\"text\": \"last\"}", 2);
    assert_int_equal(clt_io_write_atomic(path, b.s, b.len), CLT_OK);
    clt_jsonl *r;
    clt_jsonl_line line;
    json_t *o;
    assert_int_equal(clt_jsonl_open(path, LIMIT, &r), CLT_OK);
    assert_int_equal(clt_jsonl_next(r, &line, &o), CLT_OK);
    assert_int_equal(line.bytes, LIMIT);
    json_decref(o);
    assert_int_equal(clt_jsonl_next(r, &line, &o), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "in.jsonl:2: the line has more than 100 bytes"));
    assert_int_equal(clt_jsonl_next(r, &line, &o), CLT_OK);
    assert_int_equal(line.number, 3);
    assert_string_equal(json_string_value(json_object_get(o, "text")), "last");
    json_decref(o);
    assert_int_equal(clt_jsonl_next(r, &line, &o), CLT_OK);
    assert_null(o);
    clt_jsonl_close(r);
    clt_str_free(&b);
}

/* JSON has no numbers that are not finite. */
static void test_numbers(void **state) {
    clt_str b = {0};
    (void)state;
    clt_json_add_number(&b, "a", 0.5, "%.3g");
    clt_json_add_number(&b, "b", HUGE_VAL, "%.3g");
    clt_json_add_number(&b, "c", NAN, "%.3g");
    assert_string_equal(b.s, ",\"a\":0.5,\"b\":null,\"c\":null");
    clt_str_free(&b);
}

static void test_fuzz_seeds(void **state) {
    (void)state;
    char *args[] = {"fuzz_jsonl", "-n", "2000", "test/fuzz/seeds/fuzz_jsonl/lines",
                    "test/fuzz/seeds/fuzz_jsonl/bad"};
    assert_int_equal(replay_main(CLT_COUNT_OF(args), args), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages), cmocka_unit_test(test_nul),        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_numbers),  cmocka_unit_test(test_fuzz_seeds),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
