/* Python's random numbers and the order of its sets against values of CPython 3.11 (test/golden/icl). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "runtime/data/icl/clt_python_random.h"
#include "test/golden_util.h"

#define GOLDEN "test/golden/icl/python_random.json"
enum { MOST = 64 };

static void check_sample(clt_python_random *r, json_t *call) {
    size_t n;
    int64_t got[MOST], *want = golden_ints(json_object_get(call, "sample"), &n);
    assert_int_equal(clt_python_random_sample(r, golden_int(call, "n"), golden_int(call, "k"), got), CLT_OK);
    assert_memory_equal(got, want, n * sizeof *got);
    clt_free(want);
}

static void test_random(void **state) {
    (void)state;
    json_t *all = golden_load(GOLDEN), *seed, *v;
    size_t i, k;
    json_array_foreach(json_object_get(all, "random"), i, seed) {
        clt_python_random r;
        clt_python_random_seed(&r, golden_int(seed, "seed"));
        json_array_foreach(json_object_get(seed, "calls"), k, v) check_sample(&r, v);
        json_array_foreach(json_object_get(seed, "then_choice_of_17"), k, v)
            assert_int_equal(clt_python_random_choice(&r, 17), json_integer_value(v));
        json_array_foreach(json_object_get(seed, "then_random"), k, v)
            assert_true(clt_python_random_double(&r) == json_real_value(v));
    }
    assert_int_equal(i, 4);
    json_decref(all);
}

/* random.Random(-5).choice(range(2 ** 40)) is that of Random(5). */
static void test_wide(void **state) {
    (void)state;
    clt_python_random a, b;
    clt_python_random_seed(&a, 5);
    clt_python_random_seed(&b, -5);
    const int64_t v = clt_python_random_choice(&a, 1ll << 40);
    assert_int_equal(v, 561021090885);
    assert_int_equal(clt_python_random_choice(&b, 1ll << 40), v);
    assert_int_equal(clt_python_random_choice(&a, 1), 0);
}

static void check_set(json_t *added, json_t *walked, int64_t removed) {
    size_t n, m;
    int64_t *in = golden_ints(added, &n), *want = golden_ints(walked, &m), got[MOST];
    clt_python_set s = {0};
    for (size_t i = 0; i < n; i++) clt_python_set_add(&s, in[i]);
    clt_python_set_add(&s, in[0]);
    assert_int_equal(s.used, n);
    clt_python_set_remove(&s, removed);
    clt_python_set_list(&s, got);
    assert_int_equal(s.used, m);
    assert_memory_equal(got, want, m * sizeof *got);
    clt_python_set_free(&s);
    clt_free(in);
    clt_free(want);
}

static void test_sets(void **state) {
    (void)state;
    json_t *all = golden_load(GOLDEN), *set;
    size_t i;
    json_array_foreach(json_object_get(all, "sets"), i, set)
        check_set(json_object_get(set, "added"), json_object_get(set, "iteration"), 1000);
    assert_int_equal(i, 11);
    json_decref(all);
}

/* s = {8, 0}; s.remove(8); s.add(16): 16 takes the slot of 8. */
static void test_removed_slot(void **state) {
    (void)state;
    int64_t got[2];
    clt_python_set s = {0};
    clt_python_set_add(&s, 8);
    clt_python_set_add(&s, 0);
    clt_python_set_remove(&s, 8);
    assert_false(clt_python_set_has(&s, 8));
    clt_python_set_add(&s, 16);
    clt_python_set_list(&s, got);
    assert_int_equal(got[0], 16);
    assert_int_equal(got[1], 0);
    clt_python_set_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_removed_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
