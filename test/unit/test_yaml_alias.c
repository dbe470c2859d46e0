/* Anchors, aliases and merge keys of the YAML reader: what they stand for, where values were written, and
 * that a small document cannot ask for much memory or time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/config/clt_config.h"
#include "runtime/train/config/clt_yaml.h"

static clt_yaml *parse(const char *text) {
    clt_yaml *y = NULL;
    if (clt_yaml_parse(text, strlen(text), "t.yaml", &y) != CLT_OK) fail_msg("%s", clt_last_error());
    return y;
}

static char *json_of(clt_yaml *y) {
    json_t *v;
    assert_int_equal(clt_yaml_to_json(y, &v), CLT_OK);
    char *s = json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
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

static void aliases_stand_for_values(void **state) {
    (void)state;
    gives("a: &x 1\nb: *x\n", "{\"a\":1,\"b\":1}");
    gives("a: &x '1'\nb: [*x, *x]\n", "{\"a\":\"1\",\"b\":[\"1\",\"1\"]}");
    gives("a: &x {b: &y [1, 2], c: *y}\nd: *x\ne: *y\n",
          "{\"a\":{\"b\":[1,2],\"c\":[1,2]},\"d\":{\"b\":[1,2],\"c\":[1,2]},\"e\":[1,2]}");
    gives("a: &x 1\nb: &x 2\nc: *x\n", "{\"a\":1,\"b\":2,\"c\":2}"); /* the newest of a name */
    gives("- &x a\n- *x\n", "[\"a\",\"a\"]");
    gives("a: &x\nb: *x\n", "{\"a\":null,\"b\":null}");
}

/* YAML 1.1's merge type: keys of the map win, then the maps of a list in their order. */
static void merge_keys_fill_maps(void **state) {
    (void)state;
    gives("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\n", "{\"a\":{\"p\":1,\"q\":2},\"b\":{\"p\":1,\"q\":3}}");
    gives("a: &x {p: 1, q: 2}\nb: {q: 3, <<: *x}\n", "{\"a\":{\"p\":1,\"q\":2},\"b\":{\"p\":1,\"q\":3}}");
    gives("a: &x {p: 1}\nb: &y {p: 2, q: 3}\nc:\n  <<: [*x, *y]\n",
          "{\"a\":{\"p\":1},\"b\":{\"p\":2,\"q\":3},\"c\":{\"p\":1,\"q\":3}}");
    gives("a: &x {p: 1}\nb: &y {<<: *x, q: 2}\nc: {<<: *y, q: 3}\n",
          "{\"a\":{\"p\":1},\"b\":{\"p\":1,\"q\":2},\"c\":{\"p\":1,\"q\":3}}");
    gives("a:\n  <<: {p: 1, q: {r: 2}}\n  q: {s: 3}\n", "{\"a\":{\"p\":1,\"q\":{\"s\":3}}}"); /* not deep */
    gives("a: {<<: []}\n", "{\"a\":{}}");
    gives("<<: {a: 1}\nb: 2\n", "{\"a\":1,\"b\":2}");
    gives("a: {'<<': 1}\n", "{\"a\":{\"<<\":1}}"); /* quoted, it is a key like others */
    /* An anchor inside a map that is merged stays what it was. */
    gives("a: {<<: {p: &x {q: 1}}, p: 2}\nb: *x\n", "{\"a\":{\"p\":2},\"b\":{\"q\":1}}");
    gives("a: &m {<<: &x {p: 1}}\nb: *x\nc: *m\n", "{\"a\":{\"p\":1},\"b\":{\"p\":1},\"c\":{\"p\":1}}");
}

/* The form of Foundry's 1b_local_data_sft.yaml. */
static void a_loader_can_be_merged_into_another(void **state) {
    (void)state;
    gives("dataset: &data\n  hf_name: json\n  hf_kwargs: {data_dir: /d}\n"
          "train: &train\n  name: f\n  dataset:\n    <<: *data\n    split: train\n  n: 8\n"
          "eval:\n  <<: *train\n  dataset:\n    <<: *data\n    split: validation\n",
          "{\"dataset\":{\"hf_kwargs\":{\"data_dir\":\"/d\"},\"hf_name\":\"json\"},"
          "\"eval\":{\"dataset\":{\"hf_kwargs\":{\"data_dir\":\"/d\"},\"hf_name\":\"json\",\"split\":"
          "\"validation\"},\"n\":8,\"name\":\"f\"},"
          "\"train\":{\"dataset\":{\"hf_kwargs\":{\"data_dir\":\"/d\"},\"hf_name\":\"json\",\"split\":"
          "\"train\"},\"n\":8,\"name\":\"f\"}}");
}

static void places_are_those_where_values_were_written(void **state) {
    (void)state;
    clt_yaml *y = parse("a: &x\n  p: 1\n  q: 2\nb:\n  <<: *x\n  r: 3\nc: *x\n");
    static const struct {
        const char *path, *place, *key_place;
    } all[] = {{"b.p", "t.yaml:2:6", "t.yaml:2:3"},
               {"b.r", "t.yaml:6:6", "t.yaml:6:3"},
               {"c.q", "t.yaml:3:6", "t.yaml:3:3"},
               {"c", "t.yaml:1:4", "t.yaml:7:1"},
               {"b", "t.yaml:5:3", "t.yaml:4:1"}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        char *place = clt_yaml_place(y, all[i].path), *key = clt_yaml_key_place(y, all[i].path);
        assert_string_equal(place, all[i].place);
        assert_string_equal(key, all[i].key_place);
        clt_free(place);
        clt_free(key);
    }
    clt_yaml_free(y);
}

/* Each place of an alias has values of its own. */
static void overrides_and_references_work_on_merged_maps(void **state) {
    (void)state;
    clt_yaml *y = parse("v: {n: 7}\na: &x {p: 1, q: {r: '${v.n}'}}\nb: {<<: *x}\nc: *x\nd: '${b.q}'\n");
    assert_int_equal(clt_yaml_override(y, "b.p=2"), CLT_OK);
    assert_int_equal(clt_yaml_override(y, "b.q.s=3"), CLT_OK);
    assert_int_equal(clt_yaml_override(y, "v.n=8"), CLT_OK);
    assert_int_equal(clt_yaml_interpolate(y), CLT_OK);
    char *s = json_of(y);
    assert_string_equal(s, "{\"a\":{\"p\":1,\"q\":{\"r\":8}},\"b\":{\"p\":2,\"q\":{\"r\":8,\"s\":3}},"
                           "\"c\":{\"p\":1,\"q\":{\"r\":8}},\"d\":{\"r\":8,\"s\":3},\"v\":{\"n\":8}}");
    free(s);
    clt_yaml_free(y);
}

static void refuse(const char *text, clt_status want, const char *place, const char *word) {
    clt_yaml *y;
    assert_int_equal(clt_yaml_parse(text, strlen(text), "t.yaml", &y), want);
    if (!strstr(clt_last_error(), place) || !strstr(clt_last_error(), word))
        fail_msg("'%s' does not say %s and %s", clt_last_error(), place, word);
}

static void wrong_aliases_are_refused(void **state) {
    (void)state;
    refuse("a: *x\n", CLT_BAD_CONFIG, "t.yaml:1:4", "no anchor '&x' before it");
    refuse("a: *x\nb: &x 1\n", CLT_BAD_CONFIG, "t.yaml:1:4", "no anchor");
    refuse("a: &x [1, *x]\n", CLT_BAD_CONFIG, "t.yaml:1:11", "itself");
    refuse("a: &x {b: {c: *x}}\n", CLT_BAD_CONFIG, "t.yaml:1:15", "itself");
    refuse("a: &x {<<: *x}\n", CLT_BAD_CONFIG, "t.yaml:1:12", "itself");
    refuse("a: &x 1\nb: &x {c: *x}\n", CLT_BAD_CONFIG, "t.yaml:2:11", "itself");
    refuse("&k a: 1\n", CLT_BAD_CONFIG, "t.yaml:1:1", "key");
    refuse("a: &x b\n*x : 1\n", CLT_BAD_CONFIG, "t.yaml:2:1", "key");
    refuse("a: {<<: 3}\n", CLT_BAD_CONFIG, "t.yaml:1:9", "a map or a list of maps");
    refuse("a: {<<: [{}, 3]}\n", CLT_BAD_CONFIG, "t.yaml:1:14", "a map or a list of maps");
    refuse("a: {<<: {}, <<: {}}\n", CLT_BAD_CONFIG, "t.yaml:1:13", "twice");
}

/* --- small documents that would be large --- */

/* "a0: &a0 [1, 1, ...]", and each next one a list of ten aliases of the one before. */
static char *laughs(int levels, const char *leaf) {
    clt_str t = {0};
    clt_str_addf(&t, "a0: &a0 [%s]\n", leaf);
    for (int i = 1; i < levels; i++) {
        clt_str_addf(&t, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++) clt_str_addf(&t, "%s*a%d", k ? ", " : "", i - 1);
        clt_str_add(&t, "]\n");
    }
    return t.s;
}

static void exploding_aliases_are_refused(void **state) {
    (void)state;
    char *many = laughs(12, "1, 1, 1, 1, 1, 1, 1, 1, 1, 1");
    double start = clt_now();
    refuse(many, CLT_BAD_DATA, "t.yaml:", "65,536 values");
    assert_true(clt_now() - start < 10);
    clt_free(many);
    char *few = laughs(4, "1");
    clt_yaml_free(parse(few));
    clt_free(few);
}

/* A long text has few values; what counts is its bytes. */
static void exploding_texts_are_refused(void **state) {
    (void)state;
    enum { LONG = 100000 };
    char *text = clt_calloc(LONG + 1, 1);
    memset(text, 'x', LONG);
    char *many = laughs(6, text);
    refuse(many, CLT_BAD_DATA, "t.yaml:", "4 MiB");
    clt_free(many);
    char *refs[] = {clt_format("v: %s\na: [", text), clt_format("v: %s\na: [", text)};
    static const char *const each[] = {"'${v}', ", "'-${v}', "};
    for (int i = 0; i < 2; i++) {
        clt_str t = {0};
        clt_str_add(&t, refs[i]);
        for (int k = 0; k < 1000; k++) clt_str_add(&t, each[i]);
        clt_str_add(&t, "1]\n");
        clt_yaml *y = parse(t.s);
        assert_int_equal(clt_yaml_interpolate(y), CLT_BAD_DATA);
        assert_non_null(strstr(clt_last_error(), "4 MiB"));
        clt_yaml_free(y);
        clt_str_free(&t);
        clt_free(refs[i]);
    }
    clt_free(text);
}

/* Merging a map whose keys are all there already makes no value, but takes time. */
static void merges_without_effect_count(void **state) {
    (void)state;
    clt_str t = {0};
    clt_str_add(&t, "a: &a {");
    for (int i = 0; i < 4000; i++) clt_str_addf(&t, "k%d: 1, ", i);
    clt_str_add(&t, "}\nb: {<<: [");
    for (int i = 0; i < 100000; i++) clt_str_add(&t, "*a, ");
    clt_str_add(&t, "]}\n");
    double start = clt_now();
    refuse(t.s, CLT_BAD_DATA, "t.yaml:", "65,536 values");
    assert_true(clt_now() - start < 10);
    clt_str_free(&t);
    clt_str_add(&t, "a: {");
    for (int i = 0; i < 5000; i++) clt_str_addf(&t, "k%d: 1, ", i);
    clt_str_add(&t, "}\n");
    refuse(t.s, CLT_BAD_CONFIG, "t.yaml:1:", "4,096 keys");
    clt_str_free(&t);
}

/* Aliases and references cannot nest deeper than what is written out. */
static void depth_is_bounded(void **state) {
    (void)state;
    refuse("a: &a [[[[[[[[[[1]]]]]]]]]]\nb: &b [[[[[[[[[*a]]]]]]]]]\nc: &c [[[[[[[[[*b]]]]]]]]]\nd: "
           "[[[[[[*c]]]]]]\n",
           CLT_BAD_CONFIG, "t.yaml:", "32 deep");
    clt_yaml *y = parse("a: [[[[[[[[[[1]]]]]]]]]]\nb: [[[[[[[[['${a}']]]]]]]]]\nc: [[[[[[[[['${b}']]]]]]]]]\n"
                        "d: [[[[[['${c}']]]]]]\n");
    assert_int_equal(clt_yaml_interpolate(y), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "32 deep"));
    clt_yaml_free(y);
}

/* --- in a configuration --- */

static void a_configuration_may_hold_what_is_only_referred_to(void **state) {
    (void)state;
    static const char text[] =
        "global_seed: 3\nshared: &loader {name: text, dataset: {max_seq_len: 64}}\n"
        "seed: ${global_seed}\nmodel: {}\ntokenizer: {name: bytes}\noptimizer: {name: decoupled_adamw}\n"
        "scheduler: {name: cosine_with_warmup, t_warmup: 2ba}\ntrain_loader: *loader\n"
        "eval_loader: {<<: *loader, label: x}\nmax_seq_len: 64\nmax_duration: 3ba\nglobal_train_batch_size: "
        "8\n";
    clt_config *c;
    if (clt_config_parse(text, strlen(text), "t.yaml", NULL, 0, &c) != CLT_OK)
        fail_msg("%s", clt_last_error());
    assert_int_equal(c->seed, 3);
    assert_string_equal(c->evals[0].label, "x");
    assert_int_equal(c->notices.n, 2);
    assert_string_equal(c->notices.v[0].path, "global_seed");
    assert_string_equal(c->notices.v[1].path, "shared");
    clt_str printed = {0};
    clt_config_print(c, false, &printed);
    clt_config_free(c);
    assert_int_equal(clt_config_parse(printed.s, printed.len, "printed", NULL, 0, &c), CLT_OK);
    assert_int_equal(c->seed, 3);
    assert_int_equal(c->notices.n, 0);
    clt_str_free(&printed);
    clt_config_free(c);
    /* Nothing refers to it: a mistake. */
    static const char *const wrong[] = {"seed=1", "sed=${global_seed}"};
    static const char *const words[] = {"'global_seed' is unknown", "'sed' is unknown; did you mean 'seed'"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(clt_config_parse(text, strlen(text), "t.yaml", &wrong[i], 1, &c), CLT_BAD_CONFIG);
        if (!strstr(clt_last_error(), words[i])) fail_msg("'%s'", clt_last_error());
    }
    static const char *const deep[] = {"model.d_modle=3", "variables={x: '${model.d_modle}'}"};
    assert_int_equal(clt_config_parse(text, strlen(text), "t.yaml", deep, 2, &c), CLT_BAD_CONFIG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aliases_stand_for_values),
        cmocka_unit_test(merge_keys_fill_maps),
        cmocka_unit_test(a_loader_can_be_merged_into_another),
        cmocka_unit_test(places_are_those_where_values_were_written),
        cmocka_unit_test(overrides_and_references_work_on_merged_maps),
        cmocka_unit_test(wrong_aliases_are_refused),
        cmocka_unit_test(exploding_aliases_are_refused),
        cmocka_unit_test(exploding_texts_are_refused),
        cmocka_unit_test(merges_without_effect_count),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(a_configuration_may_hold_what_is_only_referred_to),
    };
    clt_error_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
