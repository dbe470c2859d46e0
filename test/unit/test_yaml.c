/* The YAML reader: types of scalars, places, what is refused, overrides, references, printing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/config/clt_yaml.h"

static clt_yaml *parse(const char *text) {
    clt_yaml *y = NULL;
    assert_int_equal(clt_yaml_parse(text, strlen(text), "t.yaml", &y), CLT_OK);
    return y;
}

/* The whole document as compact JSON with sorted keys. */
static char *json_of(clt_yaml *y) {
    json_t *v;
    assert_int_equal(clt_yaml_to_json(y, &v), CLT_OK);
    char *s = json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    json_decref(v);
    return s;
}

static void gives(const char *text, const char *json) {
    clt_yaml *y = parse(text);
    char *s = json_of(y);
    assert_string_equal(s, json);
    free(s);
    clt_yaml_free(y);
}

static void scalars_have_the_expected_types(void **state) {
    (void)state;
    gives("a: 1\nb: 1.0e-08\nc: 1e-3\nd: -7\ne: +3\nf: .5\ng: 6.\n",
          "{\"a\":1,\"b\":1e-8,\"c\":0.001,\"d\":-7,\"e\":3,\"f\":0.5,\"g\":6.0}");
    gives("a: true\nb: False\nc: null\nd: ~\ne:\n",
          "{\"a\":true,\"b\":false,\"c\":null,\"d\":null,\"e\":null}");
    gives("a: no\nb: on\nc: yes\nd: off\n", "{\"a\":\"no\",\"b\":\"on\",\"c\":\"yes\",\"d\":\"off\"}");
    gives("a: '1'\nb: \"true\"\nc: 10ba\nd: 1_000\ne: 0x10\nf: 1e\n",
          "{\"a\":\"1\",\"b\":\"true\",\"c\":\"10ba\",\"d\":\"1_000\",\"e\":\"0x10\",\"f\":\"1e\"}");
    gives("a: [1, {b: 2}, []]\nc: {}\n", "{\"a\":[1,{\"b\":2},[]],\"c\":{}}");
    gives("a: 99999999999999999999\n", "{\"a\":1e20}");
    gives("", "{}");
    gives("# only a comment\n", "{}");
}

static void refuse(const char *text, const char *place, const char *word) {
    clt_yaml *y;
    assert_int_equal(clt_yaml_parse(text, strlen(text), "t.yaml", &y), CLT_BAD_CONFIG);
    if (!strstr(clt_last_error(), place) || !strstr(clt_last_error(), word))
        fail_msg("'%s' does not say %s and %s", clt_last_error(), place, word);
}

static void what_is_refused_names_its_place(void **state) {
    (void)state;
    refuse("a: !!python/object 1\n", "t.yaml:1:4", "tags");
    refuse("a:\n  b: 1\n  b: 2\n", "t.yaml:3:3", "twice");
    refuse("? [1, 2]\n: 3\n", "t.yaml:1:3", "key");
    refuse("a: 1\n---\nb: 2\n", "t.yaml:2:1", "second document");
    refuse("12345678901234567890123456789012345678901234567890123456789012345678901234567890"
           "1234567890123456789012345678901234567890123456789: 1\n",
           "t.yaml:1:1", "128 bytes");
    refuse("a: [1\n", "t.yaml:2:1", "not valid YAML");
    refuse("a: \"x\\0y\"\n", "t.yaml:1:4", "zero byte");
    refuse("a: b: c\n", "t.yaml:1:", "not valid YAML");
    refuse("a: \xff\xfe\n", "t.yaml", "not valid YAML");
    clt_str deep = {0};
    for (int i = 0; i < 40; i++) clt_str_add(&deep, "[");
    refuse(deep.s, "t.yaml:1:34", "32 deep");
    clt_str_free(&deep);
    char *big = clt_calloc(CLT_YAML_MAX_BYTES + 2, 1);
    memset(big, ' ', CLT_YAML_MAX_BYTES + 1);
    refuse(big, "t.yaml", "1 MiB");
    clt_free(big);
}

static void numbers_that_are_none_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"a: .inf\n", "a: -.Inf\n", "a: .nan\n", "a: 1e999\n"};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_yaml *y = parse(bad[i]);
        json_t *v;
        assert_int_equal(clt_yaml_to_json(y, &v), CLT_BAD_CONFIG);
        assert_non_null(strstr(clt_last_error(), "t.yaml:1:4"));
        clt_yaml_free(y);
    }
}

static void overrides_replace_merge_and_create(void **state) {
    (void)state;
    clt_yaml *y = parse("a: {b: 1, c: [5, 6]}\nd: null\n");
    static const char *const all[] = {"a.b=2",    "a.b=3e-1",   "a.c.1=7", "d.e.f=hello world",
                                      "g={h: 1}", "g={i: [x]}", "j=",      "k=a=b",
                                      "l='8'",    "g.h=null"};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) assert_int_equal(clt_yaml_override(y, all[i]), CLT_OK);
    char *s = json_of(y);
    assert_string_equal(
        s, "{\"a\":{\"b\":0.3,\"c\":[5,7]},\"d\":{\"e\":{\"f\":\"hello world\"}},\"g\":{\"h\":null,"
           "\"i\":[\"x\"]},\"j\":null,\"k\":\"a=b\",\"l\":\"8\"}");
    free(s);
    char *place = clt_yaml_place(y, "a.b");
    assert_string_equal(place, "command line (a.b=3e-1)");
    clt_free(place);
    place = clt_yaml_place(y, "a.c.0");
    assert_string_equal(place, "t.yaml:1:15");
    clt_free(place);
    assert_int_equal(clt_yaml_override(y, "nothing"), CLT_USAGE);
    assert_int_equal(clt_yaml_override(y, "=1"), CLT_USAGE);
    assert_int_equal(clt_yaml_override(y, "a..b=1"), CLT_BAD_CONFIG);
    assert_int_equal(clt_yaml_override(y, "a.=1"), CLT_BAD_CONFIG);
    assert_int_equal(clt_yaml_override(y, "a.c.9=1"), CLT_BAD_CONFIG);
    assert_int_equal(clt_yaml_override(y, "l.m=1"), CLT_BAD_CONFIG);
    assert_int_equal(clt_yaml_override(y, "a.b=[1"), CLT_BAD_CONFIG);
    clt_yaml_free(y);
}

static void references_are_replaced(void **state) {
    (void)state;
    clt_yaml *y = parse(
        "v: {n: 128, name: run, sub: {p: [1, 2]}, key: n}\na: ${v.n}\nb: ${v.name}-${v.n}\nc: ${v.sub}\n"
        "d: ${a}\ne: ${v.${v.key}}\nf: '\\${v.n}'\ng: ${c.p.1}\nh: ${v.name}\n");
    assert_int_equal(clt_yaml_override(y, "v.n=64"), CLT_OK);
    assert_int_equal(clt_yaml_interpolate(y), CLT_OK);
    char *s = json_of(y);
    assert_string_equal(
        s, "{\"a\":64,\"b\":\"run-64\",\"c\":{\"p\":[1,2]},\"d\":64,\"e\":64,\"f\":\"${v.n}\",\"g\":2,"
           "\"h\":\"run\",\"v\":{\"key\":\"n\",\"n\":64,\"name\":\"run\",\"sub\":{\"p\":[1,2]}}}");
    free(s);
    clt_yaml_free(y);
}

static void wrong_references_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *place, *word;
    } bad[] = {{"a: ${b}\n", "t.yaml:1:4", "missing"},
               {"a: ${b}\nb: ${a}\n", "t.yaml:", "circle"},
               {"a: ${a}\n", "t.yaml:1:4", "circle"},
               {"a: {b: 1, c: \"x${a.c}\"}\n", "t.yaml:1:14", "circle"},
               {"a: {b: \"${a}\"}\n", "t.yaml:", "circle"},
               {"a: ${oc.env:HOME}\n", "t.yaml:1:4", "oc.env"},
               {"a: ${.b}\nb: 1\n", "t.yaml:1:4", "whole path"},
               {"a: ${b\nb: 1\n", "t.yaml:1:4", "closing"},
               {"a: x${b}\nb: {c: 1}\n", "t.yaml:1:4", "map or a list"},
               {"a: ${}\n", "t.yaml:1:4", "whole path"}};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_yaml *y = parse(bad[i].text);
        assert_int_equal(clt_yaml_interpolate(y), CLT_BAD_CONFIG);
        if (!strstr(clt_last_error(), bad[i].place) || !strstr(clt_last_error(), bad[i].word))
            fail_msg("'%s' does not say %s and %s", clt_last_error(), bad[i].place, bad[i].word);
        clt_yaml_free(y);
    }
}

/* Ten references to ten references ...: refused instead of filling the memory. */
static void exploding_references_are_refused(void **state) {
    (void)state;
    clt_str t = {0};
    clt_str_add(&t, "a0: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n");
    for (int i = 1; i < 12; i++) {
        clt_str_addf(&t, "a%d: [", i);
        for (int k = 0; k < 10; k++) clt_str_addf(&t, "%s\"${a%d}\"", k ? ", " : "", i - 1);
        clt_str_add(&t, "]\n");
    }
    clt_yaml *y = parse(t.s);
    assert_int_equal(clt_yaml_interpolate(y), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "65,536 values"));
    clt_yaml_free(y);
    clt_str_free(&t);
}

/* What is printed reads back as the same values, sorted or not. */
static void printing_reads_back(void **state) {
    (void)state;
    static const char text[] =
        "z: 1.0e-08\na:\n  l: [1, {x: 2, y: [3, {q: 4}]}, [5, 6], {}]\n  s: 'no'\n  t: \"10\"\n"
        "  u: 'a: b #c'\n  '<<': 1\n  br: \"a\\u2028b\\u0085c\\ufeffd\"\n  v: \"line\\nbreak\"\n  w: null\n  "
        "e: []\n  '1': -x\nm: 600.0\nb: "
        "true\n";
    clt_yaml *y = parse(text);
    json_t *v, *w;
    assert_int_equal(clt_yaml_to_json(y, &v), CLT_OK);
    for (int sort = 0; sort < 2; sort++) {
        clt_yaml_style style = {.sort = sort};
        clt_str out = {0};
        clt_yaml_dump(v, &style, &out);
        clt_yaml *again = parse(out.s);
        assert_int_equal(clt_yaml_to_json(again, &w), CLT_OK);
        assert_true(json_equal(v, w));
        assert_true(sort == (strncmp(out.s, "a:\n", 3) == 0));
        json_decref(w);
        clt_yaml_free(again);
        clt_str_free(&out);
    }
    json_decref(v);
    clt_yaml_free(y);
}

static void a_missing_file_is_named(void **state) {
    (void)state;
    clt_yaml *y;
    assert_int_equal(clt_yaml_load("test/golden/no-such.yaml", &y), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "test/golden/no-such.yaml"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scalars_have_the_expected_types),
                                       cmocka_unit_test(what_is_refused_names_its_place),
                                       cmocka_unit_test(numbers_that_are_none_are_refused),
                                       cmocka_unit_test(overrides_replace_merge_and_create),
                                       cmocka_unit_test(references_are_replaced),
                                       cmocka_unit_test(wrong_references_are_refused),
                                       cmocka_unit_test(exploding_references_are_refused),
                                       cmocka_unit_test(printing_reads_back),
                                       cmocka_unit_test(a_missing_file_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
