/* Prompts, examples, tokens and answers of evaluation tasks against LLM Foundry's (test/golden/icl). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/data/icl/clt_icl_set.h"
#include "runtime/data/icl/clt_icl_text.h"
#include "runtime/train/config/clt_yaml.h"
#include "test/golden_util.h"

/* --- reading --- */

typedef struct {
    clt_yaml *yaml;
    json_t *document;
    clt_strv strings;
    clt_icl_tasks tasks;
    clt_icl_sets sets;
    clt_tokenizer *tok;
} suite;

/* The tasks of a YAML text or file, relative to the golden folder. */
static clt_status read_tasks(suite *s, const char *text) {
    *s = (suite){0};
    assert_int_equal(text ? clt_yaml_parse(text, strlen(text), "test", &s->yaml)
                          : clt_yaml_load("eval.yaml", &s->yaml),
                     CLT_OK);
    assert_int_equal(clt_yaml_to_json(s->yaml, &s->document), CLT_OK);
    clt_schema_reader r = {.what = "test", .status = CLT_BAD_CONFIG, .strings = &s->strings};
    return clt_icl_tasks_read(&r, "icl_tasks", json_object_get(s->document, "icl_tasks"), 96, 5, &s->tasks);
}

static clt_status open_sets(suite *s, const char *tokenizer) {
    clt_status st = CLT_OK;
    assert_int_equal(clt_tokenizer_open(tokenizer, &s->tok), CLT_OK);
    for (size_t i = 0; i < s->tasks.n && st == CLT_OK; i++)
        st = clt_icl_sets_add(&s->sets, &s->tasks.task[i], s->tok);
    return st;
}

static void close_suite(suite *s) {
    clt_icl_sets_free(&s->sets);
    clt_icl_tasks_free(&s->tasks);
    clt_tokenizer_close(s->tok);
    clt_strv_free(&s->strings);
    json_decref(s->document);
    clt_yaml_free(s->yaml);
}

/* --- comparison --- */

static json_t *items_of(json_t *golden, const clt_icl_set *s) {
    json_t *e = json_object_get(json_object_get(golden, "evaluations"), s->label);
    assert_non_null(e);
    return json_object_get(e, "items");
}

static void check_texts(const clt_icl_set *s, size_t i, const clt_icl_item *got, json_t *want) {
    json_t *fewshot = json_object_get(want, "fewshot"), *context = json_object_get(want, "context");
    assert_int_equal(json_array_size(fewshot), s->n_fewshot);
    for (size_t k = 0; k < s->n_fewshot; k++)
        assert_int_equal(s->fewshot[i * s->n_fewshot + k], json_integer_value(json_array_get(fewshot, k)));
    assert_string_equal(got->prompt, golden_str(want, "prompt"));
    for (size_t k = 0; k < got->context.n; k++)
        assert_string_equal(got->context.v[k],
                            json_string_value(json_is_array(context) ? json_array_get(context, k) : context));
}

static void check_row(const clt_icl_row *got, json_t *want) {
    json_t *ids = json_object_get(want, "input_ids"), *span = json_object_get(want, "continuation");
    assert_int_equal(got->n, json_array_size(ids));
    for (size_t k = 0; k < got->n; k++)
        assert_int_equal(got->ids[k], json_integer_value(json_array_get(ids, k)));
    if (!span) return;
    assert_int_equal(got->first, json_integer_value(json_array_get(span, 0)));
    assert_int_equal(got->n, json_integer_value(json_array_get(span, 1)));
}

static void check_tokens(const clt_icl_item *got, json_t *want) {
    json_t *choices = json_object_get(want, "choices"), *labels = json_object_get(want, "labels");
    for (size_t k = 0; k < got->n_rows; k++)
        check_row(&got->row[k], choices ? json_array_get(choices, k) : want);
    if (choices) assert_int_equal(got->gold, golden_int(want, "gold"));
    if (!labels) return;
    assert_int_equal(got->pad_left, golden_int(want, "pad_left"));
    assert_int_equal(got->labels.n, json_array_size(labels));
    for (size_t k = 0; k < got->labels.n; k++)
        assert_string_equal(got->labels.v[k], json_string_value(json_array_get(labels, k)));
}

static void check_set(const clt_icl_set *s, json_t *golden, bool tokens) {
    json_t *items = items_of(golden, s);
    assert_int_equal(s->n, json_array_size(items));
    for (size_t i = 0; i < s->n; i++) {
        clt_icl_item item;
        assert_int_equal(clt_icl_set_item(s, i, &item), CLT_OK);
        check_texts(s, i, &item, json_array_get(items, i));
        if (tokens) check_tokens(&item, json_array_get(items, i));
        clt_icl_item_free(&item);
    }
}

static void check_all(const char *tokenizer, bool tokens) {
    suite s;
    json_t *golden = golden_load("items.json");
    assert_int_equal(read_tasks(&s, NULL), CLT_OK);
    /* A byte takes a token: the answers need more room than in the golden data. */
    for (size_t i = 0; i < s.tasks.n && !tokens; i++) s.tasks.task[i].max_seq_len = 1000;
    assert_int_equal(open_sets(&s, tokenizer), CLT_OK);
    assert_int_equal(s.sets.n, 18);
    for (size_t i = 0; i < s.sets.n; i++) check_set(&s.sets.set[i], golden, tokens);
    json_decref(golden);
    close_suite(&s);
}

static void test_texts(void **state) {
    (void)state;
    check_all("bytes", false);
}

static void test_tokens(void **state) {
    (void)state;
    check_all("tokenizer", true);
}

/* --- answers --- */

static void check_answer(const char *text, const char *stop, const char *delimiter, bool normalize,
                         const char *want) {
    clt_str got = {0};
    clt_icl_stops *stops;
    size_t bytes;
    assert_int_equal(clt_icl_stops_create(&stop, stop ? 1 : 0, &stops), CLT_OK);
    assert_int_equal(clt_icl_stops_find(stops, text, &bytes), CLT_OK);
    clt_icl_answer(text, bytes, delimiter, normalize, &got);
    assert_string_equal(got.s, want);
    clt_str_free(&got);
    clt_icl_stops_destroy(stops);
}

/* Expected values computed with the function of Foundry's metric in Python 3.11. */
static void test_answers(void **state) {
    (void)state;
    check_answer(" The Big_Fox, an animal!\n", NULL, "", true, "big fox animal");
    check_answer("a\xC3\xA9 THE\xE2\x80\x99s", NULL, "", true, "a\xC3\xA9 s");
    check_answer("\xC3\x84pfel\xC2\xA0 and a \xC2\xA3"
                 "a b",
                 NULL, "", true, "\xC3\xA4pfel and \xC2\xA3 b");
    check_answer("the", NULL, "", true, "");
    check_answer("one\n\nand two", "\n\n", "", true, "one");
    check_answer("x and y and z", NULL, " and ", true, "z");
    check_answer("x and y\n\n and z", "\n\n", " and ", false, "y");
    check_answer("  The A. \t", NULL, "", false, "The A.");
    check_answer("x \xFF y", NULL, "", true, "x \xFF y");
    check_answer("\u0130!", NULL, "", true, "i\u0307");
    check_answer("\u03a3\u0391\u03a3. \u03a3 a\u03a3'\u00ad! \u03a3\u0301x A\u03a3.B", NULL, "", true,
                 "\u03c3\u03b1\u03c2 \u03c3 a\u03c2 \u00ad \u03c3\u0301x a\u03c3 b");
}

static void test_clean_up(void **state) {
    clt_str text = {0};
    (void)state;
    clt_str_add(&text, "do n't , it 's  . I 'm ' a '");
    clt_icl_clean_up(&text);
    assert_string_equal(text.s, "don't, it's . I'm'a '");
    assert_int_equal(text.len, strlen(text.s));
    clt_str_free(&text);
}

/* The strings together are a regular expression, as in re.split("|".join(stops), text)[0]. */
static void test_stops(void **state) {
    static const char *const lines[] = {"Q:", "\n\n"}, *const bad[] = {"a", "("};
    clt_icl_stops *stops;
    size_t bytes;
    (void)state;
    check_answer("one. two", ".", "", false, "");
    check_answer("one. two", "[.]", "", false, "one");
    check_answer("\n one?", "[?]|.", "", false, "");
    check_answer("abxb", "b$", "", false, "abx");
    check_answer("one", "x*", "", false, "");
    check_answer("\xff x. y", "\\.", "", false, "\xff x");
    assert_int_equal(clt_icl_stops_create(lines, 2, &stops), CLT_OK);
    assert_int_equal(clt_icl_stops_find(stops, "a Q:\n\n", &bytes), CLT_OK);
    assert_int_equal(bytes, 2);
    assert_int_equal(clt_icl_stops_find(stops, "a\n", &bytes), CLT_OK);
    assert_int_equal(bytes, 2);
    clt_icl_stops_destroy(stops);
    assert_int_equal(clt_icl_stops_create(bad, 2, &stops), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "a|("));
}

/* --- refusals --- */

static void check_refused(const char *entry) {
    suite s;
    char *text = clt_format("icl_tasks:\n- {label: a, dataset_uri: data/lm.jsonl, icl_task_type: "
                            "language_modeling, num_fewshot: [0], %s}\n",
                            entry);
    assert_int_equal(read_tasks(&s, text), CLT_BAD_CONFIG);
    close_suite(&s);
    clt_free(text);
}

static void test_refused(void **state) {
    (void)state;
    check_refused("metric_names: [InContextLearningMultipleChoiceAccuracy]");
    check_refused("metric_names: [Accuracy]");
    check_refused("prelimiter: a, question_prelimiter: b");
    check_refused("batch_size: 0.5");
    check_refused("num_beams: 2");
    check_refused("generation_kwargs: {do_sample: true}");
    check_refused("generation_kwargs: {max_new_tokens: 0}");
    check_refused("early_stopping_criteria: ['']");
    check_refused("early_stopping_criteria: ['(']");
    check_refused("hf_loading_vars: {name: x}");
    check_refused("unknown: 1");
}

static void check_bad_file(const char *kind, const char *lines) {
    suite s;
    char *text = clt_format("icl_tasks:\n- {label: a, dataset_uri: /tmp/clt_icl_%d.jsonl, icl_task_type: %s, "
                            "num_fewshot: [0]}\n",
                            (int)getpid(), kind);
    assert_int_equal(read_tasks(&s, text), CLT_OK);
    FILE *f = fopen(s.tasks.task[0].dataset_uri, "w");
    assert_non_null(f);
    fputs(lines, f);
    fclose(f);
    assert_int_equal(open_sets(&s, "bytes"), CLT_BAD_DATA);
    remove(s.tasks.task[0].dataset_uri);
    close_suite(&s);
    clt_free(text);
}

static void test_bad_files(void **state) {
    (void)state;
    check_bad_file("language_modeling", "");
    check_bad_file("language_modeling", "{\"context\": \"a\"}\n");
    check_bad_file("language_modeling", "{\"context\": \"a\", \"continuation\": 5}\n");
    check_bad_file("multiple_choice", "{\"query\": \"a\", \"choices\": [\"b\"], \"gold\": 1}\n");
    check_bad_file("multiple_choice", "{\"query\": \"a\", \"choices\": [], \"gold\": 0}\n");
    check_bad_file("multiple_choice", "{\"query\": \"a\\u0000\", \"choices\": [\"b\"], \"gold\": 0}\n");
    check_bad_file("multiple_choice", "{\"query\": \"a\", \"choices\": [\"\\u0000b\"], \"gold\": 0}\n");
    check_bad_file("schema", "{\"context_options\": [\"a\", 1], \"gold\": 0, \"continuation\": \"c\"}\n");
    check_bad_file("generation_task_with_answers",
                   "{\"context\": \"a\", \"answer\": \"b\", \"aliases\": 1}\n");
}

/* --- long rows --- */

/* With k tokens free the last k of the context stay; with none, all of them. */
static void test_cut(void **state) {
    (void)state;
    suite s;
    clt_icl_item item;
    assert_int_equal(read_tasks(&s, NULL), CLT_OK);
    const size_t tasks = s.tasks.n;
    s.tasks.n = 1;                   /* the others are not opened */
    s.tasks.task[0].max_seq_len = 6; /* "grey" takes 4 bytes */
    assert_int_equal(open_sets(&s, "bytes"), CLT_OK);
    assert_int_equal(clt_icl_set_item(&s.sets.set[0], 0, &item), CLT_OK);
    assert_int_equal(item.row[0].n, 6);
    assert_int_equal(item.row[0].first, 2);
    assert_int_equal(item.row[0].ids[0], 'n');
    clt_icl_item_free(&item);
    s.sets.set[0].width = 4;
    assert_int_equal(clt_icl_set_item(&s.sets.set[0], 0, &item), CLT_OK);
    assert_int_equal(item.row[0].n, strlen("The fox is big andgrey"));
    clt_icl_item_free(&item);
    s.sets.set[0].width = 3;
    assert_int_equal(clt_icl_set_item(&s.sets.set[0], 0, &item), CLT_BAD_DATA);
    clt_icl_item_free(&item);
    s.tasks.n = tasks;
    close_suite(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_tokens),   cmocka_unit_test(test_answers),
        cmocka_unit_test(test_stops),     cmocka_unit_test(test_clean_up), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bad_files), cmocka_unit_test(test_cut),
    };
    if (chdir("test/golden/icl") != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
