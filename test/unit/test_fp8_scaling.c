/* Delayed scaling against steps computed in plain Python (test/golden/fp8). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "runtime/base/clt_memory.h"
#include "runtime/ops/clt_fp8.h"
#include "test/golden_util.h"

static float float_of(int64_t bits) {
    const uint32_t u = (uint32_t)bits;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static clt_fp8 format_with(int64_t largest) {
    return largest == 448 ? CLT_FP8_E4M3 : largest == 240 ? CLT_FP8_E4M3FNUZ : CLT_FP8_E5M2;
}

/* Tensor 1 of 3 has the case's amax; the others never record any and must stay as they are. */
static void check_case(json_t *c) {
    const clt_fp8_recipe recipe = {(int)golden_int(c, "length"), (int)golden_int(c, "margin"),
                                   json_is_true(json_object_get(c, "most_recent"))};
    const clt_fp8 f = format_with(golden_int(c, "top"));
    clt_fp8_scaling s;
    assert_int_equal(clt_fp8_scaling_create(&s, recipe, (clt_fp8[]){f, f, f}, 3), CLT_OK);
    json_t *step;
    size_t i, n;
    json_array_foreach(json_object_get(c, "steps"), i, step) {
        int64_t *want = golden_ints(step, &n);
        assert_int_equal(n, 2 + recipe.history);
        clt_fp8_scaling_record(&s, 1, 0.0f);
        clt_fp8_scaling_record(&s, 1, float_of(want[0]));
        clt_fp8_scaling_record(&s, 1, 0.25f * float_of(want[0]));
        clt_fp8_scaling_update(&s);
        assert_true(s.scale[1] == float_of(want[1]));
        for (int h = 0; h < recipe.history; h++) assert_true(s.amax[h * 3 + 1] == float_of(want[2 + h]));
        assert_true(s.scale[0] == 1.0f && s.scale[2] == 1.0f && s.amax[0] == 0.0f && s.amax[2] == 0.0f);
        clt_free(want);
    }
    clt_fp8_scaling_destroy(&s);
}

static void steps_equal_python(void **state) {
    (void)state;
    json_t *all = golden_load("test/golden/fp8/delayed.json"), *c;
    size_t i;
    json_array_foreach(all, i, c) check_case(c);
    assert_int_equal(i, 6);
    json_decref(all);
}

/* A NaN keeps the scale until it leaves the history. */
static void nan_keeps_the_scale(void **state) {
    (void)state;
    clt_fp8_scaling s;
    assert_int_equal(clt_fp8_scaling_create(&s, (clt_fp8_recipe){.history = 3}, (clt_fp8[]){CLT_FP8_E4M3}, 1),
                     CLT_OK);
    const float amax[] = {7.0f, NAN, 14.0f, 14.0f, 14.0f}, want[] = {64.0f, 64.0f, 64.0f, 64.0f, 32.0f};
    for (int i = 0; i < 5; i++) {
        clt_fp8_scaling_record(&s, 0, amax[i]);
        clt_fp8_scaling_record(&s, 0, 1.0f);
        clt_fp8_scaling_update(&s);
        assert_true(s.scale[0] == want[i]);
    }
    clt_fp8_scaling_destroy(&s);
}

static void invalid_recipes_are_refused(void **state) {
    (void)state;
    const clt_fp8 f = CLT_FP8_E4M3;
    clt_fp8_scaling s;
    assert_int_equal(clt_fp8_scaling_create(&s, (clt_fp8_recipe){.history = 0}, &f, 1), CLT_FAIL);
    assert_string_equal(clt_last_error(),
                        "delayed scaling: history 0 and margin 0 are invalid; a history has at least "
                        "1 step, a margin is 0 to 30");
    assert_int_equal(clt_fp8_scaling_create(&s, (clt_fp8_recipe){.history = 1, .margin = 31}, &f, 1),
                     CLT_FAIL);
    assert_null(s.scale);
    clt_fp8_scaling_destroy(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_python),
        cmocka_unit_test(nan_keeps_the_scale),
        cmocka_unit_test(invalid_recipes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
