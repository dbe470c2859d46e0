/* Scores of eval_gauntlet against values that LLM Foundry's EvalGauntlet (0.22) gives for the same results.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/config/clt_gauntlet.h"

static const clt_gauntlet_result results[] = {{"lm/0-shot", 0.5, 16},
                                              {"mc/2-shot/even", 0.25, 5},
                                              {"mc/2-shot/odd", 0.75, 12},
                                              {"gen/3-shot", 0.9, 100},
                                              {"mc/22-shot", 0.1, 7}};

#define CATEGORIES                                                                                           \
    "\"categories\": [{\"name\": \"a\", \"benchmarks\": [{\"name\": \"lm\", \"num_fewshot\": 0, "            \
    "\"random_baseline\": 0}, {\"name\": \"mc\", \"num_fewshot\": 2, \"random_baseline\": 0.25}]}, "         \
    "{\"name\": \"b\", \"benchmarks\": [{\"name\": \"gen\", \"num_fewshot\": 3, \"random_baseline\": "       \
    "0.1}]}, {\"name\": \"c\", \"benchmarks\": [{\"name\": \"gen\", \"num_fewshot\": 3, "                    \
    "\"random_baseline\": 0.1}, {\"name\": \"none\", \"num_fewshot\": 3, \"random_baseline\": 0.1}]}]"

static clt_status read(const char *fields, clt_gauntlet *g, json_t **o, clt_strv *strings) {
    char *text = clt_format("{%s}", fields);
    clt_schema_reader r = {.what = "test", .status = CLT_BAD_CONFIG, .strings = strings};
    assert_int_equal(clt_json_parse(text, strlen(text), 8, "test", o), CLT_OK);
    clt_free(text);
    return clt_gauntlet_read(&r, "eval_gauntlet", *o, g);
}

static void release(clt_gauntlet *g, json_t *o, clt_strv *strings) {
    clt_gauntlet_free(g);
    json_decref(o);
    clt_strv_free(strings);
}

static void check(const char *fields, size_t n, const char *const *want_name, const double *want) {
    clt_gauntlet g;
    json_t *o;
    clt_strv strings = {0};
    const char **name;
    double *score;
    assert_int_equal(read(fields, &g, &o, &strings), CLT_OK);
    assert_int_equal(clt_gauntlet_scores(&g, results, CLT_COUNT_OF(results), &name, &score), n);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(name[i], want_name[i]);
        assert_true(fabs(score[i] - want[i]) < 1e-9);
    }
    clt_free(name);
    clt_free(score);
    release(&g, o, &strings);
}

static void test_weightings(void **state) {
    (void)state;
    static const char *const names[] = {"all", "only_b", "nothing", "a", "b"};
    static const struct {
        const char *fields;
        double all, b, a;
    } want[] = {
        {"", 0.652777778, 0.888888889, 0.416666667},
        {"\"rescale_accuracy\": false,", 0.5875, 0.8, 0.375},
        {"\"rescale_accuracy\": false, \"subtract_random_baseline\": false,", 0.7, 0.9, 0.5},
        {"\"weighting\": \"SAMPLE_SZ\",", 0.651515152, 0.888888889, 0.414141414},
        {"\"weighting\": \"LOG_SAMPLE_SZ\",", 0.652327169, 0.888888889, 0.415765448},
        {"\"weighting\": \"LOG_SAMPLE_SZ\", \"rescale_accuracy\": false,", 0.586824086, 0.8, 0.373648172}};
    for (size_t i = 0; i < CLT_COUNT_OF(want); i++) {
        char *fields = clt_format("%s \"averages\": {\"all\": [\"a\", \"b\", \"c\"], \"only_b\": [\"b\"], "
                                  "\"nothing\": [\"x\"]}, " CATEGORIES,
                                  want[i].fields);
        check(fields, 5, names, (double[]){want[i].all, want[i].b, 0, want[i].a, want[i].b});
        clt_free(fields);
    }
    check(CATEGORIES, 3, (const char *const[]){"default_average", "a", "b"},
          (double[]){0.652777778, 0.416666667, 0.888888889});
}

static void check_refused(const char *fields) {
    clt_gauntlet g;
    json_t *o;
    clt_strv strings = {0};
    assert_int_equal(read(fields, &g, &o, &strings), CLT_BAD_CONFIG);
    release(&g, o, &strings);
}

static void test_refused(void **state) {
    (void)state;
    check_refused("\"weighting\": \"OTHER\", " CATEGORIES);
    check_refused("\"subtract_random_baseline\": false, " CATEGORIES);
    check_refused("\"averages\": {\"a\": [\"b\"]}, " CATEGORIES);
    check_refused("\"averages\": {\"x\": 1}, " CATEGORIES);
    check_refused("\"categories\": [{\"name\": \"a\", \"benchmarks\": []}]");
    check_refused("\"categories\": [{\"name\": \"a\", \"benchmarks\": [{\"name\": \"b\", \"num_fewshot\": 1, "
                  "\"random_baseline\": 1}]}]");
    check_refused("\"categories\": [3]");
    check_refused("\"averages\": null");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weightings), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
