/* Lines with other columns than prompt and response: the results of LLM Foundry's functions, the columns of a
 * map, and lines that a function cannot read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/data/clt_jsonl.h"
#include "runtime/data/finetune/clt_finetune_format.h"

static void check_golden_line(json_t *o) {
    json_t *out;
    const clt_finetune_format f = {.function = json_string_value(json_object_get(o, "function"))};
    assert_true(clt_finetune_function_exists(f.function));
    assert_int_equal(clt_finetune_reformat(&f, json_object_get(o, "line"), "golden", &out), CLT_OK);
    if (!json_equal(out, json_object_get(o, "example")))
        fail_msg("%s makes %s", f.function, json_dumps(out, 0));
    json_decref(out);
}

static void functions_equal_llm_foundrys(void **state) {
    clt_jsonl *file;
    clt_jsonl_line line;
    json_t *o;
    int n = 0;
    (void)state;
    assert_int_equal(clt_jsonl_open("test/golden/finetune/formats.jsonl", 0, &file), CLT_OK);
    while (clt_jsonl_next(file, &line, &o) == CLT_OK && o) {
        check_golden_line(o);
        json_decref(o);
        n++;
    }
    assert_int_equal(n, 11);
    clt_jsonl_close(file);
}

static void columns_are_renamed(void **state) {
    const clt_finetune_format names = {.prompt_column = "text", .response_column = "summary"}, none = {0};
    json_t *line = json_pack("{s:s, s:s, s:i}", "text", "a", "summary", "b", "id", 3), *out;
    json_t *want = json_pack("{s:s, s:s}", "prompt", "a", "response", "b");
    (void)state;
    assert_int_equal(clt_finetune_reformat(&names, line, "x", &out), CLT_OK);
    assert_true(json_equal(out, want));
    json_decref(out);
    assert_int_equal(clt_finetune_reformat(&none, line, "x", &out), CLT_OK);
    assert_ptr_equal(out, line);
    json_decref(out);
    json_decref(line);
    json_decref(want);
}

static void bad_lines_name_the_column(void **state) {
    static const struct {
        const char *function, *line, *word;
    } bad[] = {
        {"tatsu-lab/alpaca", "{\"prompt\": \"a\"}", "'text' is missing"},
        {"tatsu-lab/alpaca", "{\"text\": \"a\"}", "'### Response:' once"},
        {"tatsu-lab/alpaca", "{\"text\": \"### Response: ### Response:\"}", "once"},
        {"HuggingFaceH4/databricks_dolly_15k", "{\"input\": null}", "must be a string"},
        {"bigscience/P3", "{\"inputs\": \"a\", \"targets\": [\"b\"]}", "'targets' must be a string"},
        {"Muennighoff/P3", "{\"inputs\": \"a\"}", "'targets' is missing"},
        {"teknium/OpenHermes-2.5", "{\"conversations\": 1}", "must be a list"},
        {"teknium/OpenHermes-2.5", "{\"conversations\": [3]}", "'from' is missing"},
        {"math-ai/StackMathQA", "{\"Q\": \"q\"}", "'A' is missing"},
        {"AI-MO/NuminaMath-CoT", "{}", "'messages' is missing"},
        {"finetune_example.preprocessing:multiple_choice",
         "{\"query\": \"q\", \"choices\": [\"x\"], \"gold\": 1}", "there are 1 choices"},
        {"finetune_example.preprocessing:multiple_choice",
         "{\"query\": \"q\", \"choices\": [\"x\", 2], \"gold\": 0}", "a list of strings"},
        {"finetune_example.preprocessing:multiple_choice",
         "{\"query\": \"q\", \"choices\": [\"x\"], \"gold\": -1}", "'gold' is -1"},
    };
    (void)state;
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        json_t *line = json_loads(bad[i].line, 0, NULL), *out = NULL;
        const clt_finetune_format f = {.function = bad[i].function};
        assert_int_equal(clt_finetune_reformat(&f, line, "a.jsonl:7", &out), CLT_BAD_DATA);
        if (!strstr(clt_last_error(), "a.jsonl:7") || !strstr(clt_last_error(), bad[i].word))
            fail_msg("'%s' does not say '%s'", clt_last_error(), bad[i].word);
        json_decref(line);
    }
    clt_error_quiet(false);
}

static void other_names_are_unknown(void **state) {
    char *names = clt_finetune_function_names();
    (void)state;
    assert_false(clt_finetune_function_exists(NULL));
    assert_false(clt_finetune_function_exists(""));
    assert_false(clt_finetune_function_exists("my.import.path:my_preprocessing_fn"));
    assert_non_null(strstr(names, "tatsu-lab/alpaca"));
    clt_free(names);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_equal_llm_foundrys),
        cmocka_unit_test(columns_are_renamed),
        cmocka_unit_test(bad_lines_name_the_column),
        cmocka_unit_test(other_names_are_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
