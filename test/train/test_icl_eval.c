/* `cltrain eval` with LLM Foundry's evaluation YAML: metrics, log-probabilities, choices, generated texts and
 * the table equal Foundry's (test/golden/icl). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "test/golden_util.h"
#include "test/run_util.h"

#define GOLDEN "test/golden/icl"

/* --- documents --- */

/* The lines of standard output as a list of objects. */
static json_t *documents(const clt_str *out) {
    json_t *list = json_array();
    for (char *line = strtok(out->s, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *o;
        assert_int_equal(clt_json_parse(line, strlen(line), 16, "output", &o), CLT_OK);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *evaluate(const char *options) {
    clt_str out = {0};
    ru_cltrain_ok(GOLDEN, &out, "eval -q eval.yaml %s", options);
    json_t *list = documents(&out);
    clt_str_free(&out);
    return list;
}

/* --- comparison --- */

static void check_number(json_t *got, json_t *want, double most) {
    assert_true(json_is_number(got) && json_is_number(want));
    const double d = fabs(json_number_value(got) - json_number_value(want));
    if (!(d <= most)) fail_msg("%.9g, not %.9g", json_number_value(got), json_number_value(want));
}

static void check_metrics(json_t *got, json_t *want) {
    const char *name;
    json_t *v;
    assert_int_equal(json_object_size(got), json_object_size(want));
    json_object_foreach(want, name, v) check_number(json_object_get(got, name), v, 1e-6);
}

/* Equal but for log-probabilities and keys that the golden data does not have. */
static void check_item(json_t *got, json_t *want) {
    const char *key;
    json_t *v;
    size_t i;
    if (json_is_object(want)) {
        json_object_foreach(want, key, v) {
            if (strcmp(key, "logprob") == 0)
                check_number(json_object_get(got, key), v, 1.1e-5);
            else
                check_item(json_object_get(got, key), v);
        }
    } else if (json_is_array(want)) {
        assert_int_equal(json_array_size(got), json_array_size(want));
        json_array_foreach(want, i, v) check_item(json_array_get(got, i), v);
    } else if (!json_equal(got, want)) {
        char *a = json_dumps(got, JSON_ENCODE_ANY), *b = json_dumps(want, JSON_ENCODE_ANY);
        fail_msg("%s, not %s", a ? a : "nothing", b);
    }
}

static void check_evaluation(json_t *got, json_t *all) {
    json_t *want = json_object_get(all, golden_str(got, "label"));
    assert_non_null(want);
    check_metrics(json_object_get(got, "metrics"), json_object_get(want, "metrics"));
    check_item(json_object_get(got, "batch_rows"), json_object_get(want, "batch_rows"));
    check_item(json_object_get(got, "items"), json_object_get(want, "items"));
}

static void test_items(void **state) {
    (void)state;
    json_t *golden = golden_load(GOLDEN "/items.json"), *list = evaluate("--items"), *got;
    json_t *all = json_object_get(golden, "evaluations");
    size_t i;
    assert_int_equal(json_array_size(list), json_object_size(all));
    json_array_foreach(list, i, got) check_evaluation(got, all);
    json_decref(list);
    json_decref(golden);
}

static void test_table(void **state) {
    (void)state;
    char *want;
    size_t bytes;
    clt_str out = {0};
    assert_int_equal(clt_io_read_all(GOLDEN "/table.txt", 1 << 16, &want, &bytes), CLT_OK);
    ru_cltrain_ok(GOLDEN, &out, "eval -q eval.yaml");
    assert_string_equal(out.s, want);
    clt_str_free(&out);
    clt_free(want);
}

/* The batch size changes no score: the documents of other batch sizes are equal but for batch_rows. */
static void test_batches(void **state) {
    (void)state;
    json_t *a = evaluate("--items device_eval_batch_size=1"), *b = evaluate("--items"), *x;
    size_t i;
    json_array_foreach(a, i, x) {
        json_t *y = json_array_get(b, i);
        if (strncmp(golden_str(x, "label"), "gen", 3) == 0) continue; /* a batch ends together */
        assert_true(json_equal(json_object_get(x, "items"), json_object_get(y, "items")));
    }
    json_decref(a);
    json_decref(b);
}

/* Rows that are continued together have the texts that each has alone, bit by bit: without a stop string
 * every row goes to its own end, whatever the others do. More rows than go together at once, and texts that
 * outgrow the context, are among them. */
static void test_generation_together(void **state) {
    static const char task[] = "--items max_seq_len=96 'icl_tasks=[{label: v, dataset_uri: ./data/gen.jsonl, "
                               "icl_task_type: generation_task_with_answers, num_fewshot: [0, 1], "
                               "generation_kwargs: {max_new_tokens: %d}}]' device_eval_batch_size=%d";
    (void)state;
    for (int most = 5; most <= 80; most += 75) {
        json_t *alone = NULL;
        for (int rows = 1; rows <= 12; rows = rows == 1 ? 3 : rows * 4) {
            char *options = clt_format(task, most, rows);
            json_t *list = evaluate(options);
            char *a, *b;
            if (!alone) alone = json_incref(list);
            for (size_t i = 0; i < json_array_size(alone); i++) {
                a = json_dumps(json_object_get(json_array_get(alone, i), "items"), JSON_SORT_KEYS);
                b = json_dumps(json_object_get(json_array_get(list, i), "items"), JSON_SORT_KEYS);
                assert_non_null(a);
                assert_string_equal(a, b);
                free(a);
                free(b);
            }
            json_decref(list);
            clt_free(options);
        }
        json_decref(alone);
    }
}

static void test_subset(void **state) {
    (void)state;
    json_t *list = evaluate("--json icl_subset_num_batches=2"), *got;
    size_t i;
    json_array_foreach(list, i, got) {
        const char *label = golden_str(got, "label");
        const int64_t samples = golden_int(got, "samples");
        if (strcmp(label, "lm/0-shot") == 0) assert_int_equal(samples, 10);
        if (strcmp(label, "mc_strings/5-shot") == 0) assert_int_equal(samples, 4);
        if (strncmp(label, "mc_categories", 13) == 0) assert_int_equal(samples, 5); /* no limit */
    }
    json_decref(list);
}

/* Items may have different numbers of choices: a batch has as many items as the first item's number allows,
 * and its rows are those of its items. */
static void test_rows(void **state) {
    (void)state;
    char *path = clt_format("/tmp/clt_icl_rows_%d.jsonl", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 5; i++)
        fprintf(f, "{\"query\": \"the fox is\", \"choices\": [\"big\", \"tiny\"%s], \"gold\": 0}\n",
                i % 2 ? ", \"red\"" : "");
    fclose(f);
    char *options = clt_format("--items 'icl_tasks=[{label: v, dataset_uri: %s, icl_task_type: "
                               "multiple_choice, num_fewshot: [0], batch_size: 4}]'",
                               path);
    json_t *list = evaluate(options), *want = json_pack("[iii]", 5, 5, 2);
    assert_true(json_equal(json_object_get(json_array_get(list, 0), "batch_rows"), want));
    unlink(path);
    json_decref(want);
    json_decref(list);
    clt_free(options);
    clt_free(path);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),   cmocka_unit_test(test_table),
        cmocka_unit_test(test_batches), cmocka_unit_test(test_subset),
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_generation_together),
    };
    ru_begin(argv[0]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ru_end();
    return failed;
}
