/* Schedules against Composer's own learning rates (the lr columns of the golden runs) and against the
 * formulas written out with libm. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/config/clt_config.h"

static clt_schedule resolve(clt_schedule_config c, const char *max_duration, int64_t per_epoch) {
    clt_time max;
    clt_schedule s;
    assert_true(clt_time_parse(max_duration, &max));
    assert_int_equal(clt_schedule_resolve(&c, max, per_epoch, &s), CLT_OK);
    return s;
}

static clt_time at(const char *text) {
    clt_time t;
    assert_true(clt_time_parse(text, &t));
    return t;
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-14 * fmax(1, fabs(want)))) fail_msg("%.17g, not %.17g", got, want);
}

/* The multiplier of optimizer step `step` (from 1) where all batches are alike. */
static double alpha_of_step(const clt_schedule *s, int64_t step, int64_t samples, int64_t tokens) {
    const int64_t done = step - 1, any = done > 0;
    const clt_timestamp now = {.batch = done, .sample = done * samples, .token = done * tokens};
    return clt_schedule_next_alpha(s, &now, any * samples, any * tokens, done);
}

/* Composer's run of the same configuration: lr of every step, the lag of one step included. */
static void golden_learning_rates(void **state) {
    (void)state;
    static const char *const sets[] = {"mpt-alibi", "mpt-learned", "mpt-rope", "mpt-variants", "e2e"};
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        char *yaml = clt_format("test/golden/%s/train.yaml", sets[i]);
        char *json = clt_format("test/golden/%s/train.json", sets[i]);
        clt_config *c;
        json_t *run;
        clt_schedule s;
        assert_int_equal(clt_config_load(yaml, NULL, 0, &c), CLT_OK);
        assert_int_equal(clt_json_load(json, 1 << 24, 16, &run), CLT_OK);
        assert_int_equal(clt_schedule_resolve(&c->schedule, c->max_duration, 8, &s), CLT_OK);
        json_t *steps = json_object_get(run, "steps");
        assert_true(json_array_size(steps) >= 30);
        for (size_t k = 0; k < json_array_size(steps); k++) {
            double want = json_number_value(json_object_get(json_array_get(steps, k), "lr"));
            near(c->optimizer.groups[0].lr * alpha_of_step(&s, (int64_t)k + 1, 8, 512), want);
        }
        json_decref(run);
        clt_config_free(c);
        clt_free(yaml);
        clt_free(json);
    }
}

static void cosine(void **state) {
    (void)state;
    clt_schedule s = resolve(
        (clt_schedule_config){
            .kind = CLT_SCHEDULE_COSINE, .t_warmup = at("100ba"), .t_max = at("1dur"), .alpha_f = 0.1},
        "4800ba", 0);
    near(clt_schedule_alpha(&s, 0), 0);
    near(clt_schedule_alpha(&s, 50), 0.5);
    near(clt_schedule_alpha(&s, 100), 1);
    for (int64_t t = 100; t <= 4800; t += 47)
        near(clt_schedule_alpha(&s, t), 0.1 + 0.9 * (1 + cos(M_PI * (double)(t - 100) / 4700)) / 2);
    near(clt_schedule_alpha(&s, 4800), 0.1);
    near(clt_schedule_alpha(&s, 10000), 0.1);
}

static void linear_and_constant(void **state) {
    (void)state;
    clt_schedule s = resolve((clt_schedule_config){.kind = CLT_SCHEDULE_LINEAR,
                                                   .t_warmup = at("10ba"),
                                                   .t_max = at("110ba"),
                                                   .alpha_i = 0.8,
                                                   .alpha_f = 0.2},
                             "110ba", 0);
    near(clt_schedule_alpha(&s, 5), 0.4);
    near(clt_schedule_alpha(&s, 10), 0.8);
    near(clt_schedule_alpha(&s, 60), 0.5);
    near(clt_schedule_alpha(&s, 110), 0.2);
    near(clt_schedule_alpha(&s, 500), 0.2);
    s = resolve(
        (clt_schedule_config){
            .kind = CLT_SCHEDULE_CONSTANT, .t_warmup = at("4ba"), .t_max = at("1dur"), .alpha = 0.5},
        "10ba", 0);
    near(clt_schedule_alpha(&s, 2), 0.25);
    near(clt_schedule_alpha(&s, 4), 0.5);
    near(clt_schedule_alpha(&s, 9), 0.5);
}

static void inverse_square_root(void **state) {
    (void)state;
    clt_schedule s = resolve((clt_schedule_config){.kind = CLT_SCHEDULE_INV_SQRT,
                                                   .t_warmup = at("10ba"),
                                                   .t_scale = at("20ba"),
                                                   .t_cooldown = at("50ba"),
                                                   .t_max = at("1dur"),
                                                   .alpha_f_decay = 0.1,
                                                   .alpha_f_cooldown = 0.02},
                             "200ba", 0);
    near(clt_schedule_alpha(&s, 5), 0.5);
    near(clt_schedule_alpha(&s, 10), 1);
    near(clt_schedule_alpha(&s, 70), 0.1 + 0.9 / sqrt(80.0 / 20));
    double a = 0.1 + 0.9 / sqrt((150.0 + 20 - 10) / 20);
    near(clt_schedule_alpha(&s, 150), a);
    near(clt_schedule_alpha(&s, 175), a + 0.5 * (0.02 - a));
    near(clt_schedule_alpha(&s, 200), 0.02);
    s.t_cooldown = 0;
    near(clt_schedule_alpha(&s, 200), 0.1 + 0.9 / sqrt(210.0 / 20));
}

static void units_and_the_lag(void **state) {
    (void)state;
    clt_schedule_config c = {
        .kind = CLT_SCHEDULE_LINEAR, .t_warmup = at("640tok"), .t_max = at("1dur"), .alpha_i = 1};
    clt_schedule s = resolve(c, "6400tok", 0);
    near(alpha_of_step(&s, 1, 4, 64), 0);
    near(alpha_of_step(&s, 2, 4, 64), 0);
    near(alpha_of_step(&s, 3, 4, 64), 0.1);
    near(alpha_of_step(&s, 12, 4, 64), 1);
    c.t_warmup = at("1ep"); /* epochs become batches, so do durations of a run in epochs */
    s = resolve(c, "4ep", 25);
    assert_int_equal(s.unit, CLT_TIME_BATCH);
    assert_int_equal(s.t_warmup, 25);
    assert_int_equal(s.t_max, 100);
    c.t_warmup =
        at("20tok"); /* t_max, in another unit than max_duration, may end inside the warm-up: no decay then */
    c.t_max = at("10tok");
    s = resolve(c, "10ba", 0);
    near(clt_schedule_alpha(&s, 10), 0.5);
    near(clt_schedule_alpha(&s, 20), 1);
    near(clt_schedule_alpha(&s, 500), 1);
    c.t_max = at("1dur");
    c.t_warmup = at("100ba"); /* a warm-up longer than the run is a run inside the warm-up */
    s = resolve(c, "10ba", 0);
    near(clt_schedule_alpha(&s, 9), 0.09);
}

static void refuse(clt_schedule_config c, const char *max_duration, const char *word) {
    clt_time max = at(max_duration);
    clt_schedule s;
    assert_int_equal(clt_schedule_resolve(&c, max, 10, &s), CLT_BAD_CONFIG);
    if (!strstr(clt_last_error(), word)) fail_msg("'%s' does not name %s", clt_last_error(), word);
}

static void wrong_units_are_refused(void **state) {
    (void)state;
    clt_schedule_config cosine = {.kind = CLT_SCHEDULE_COSINE, .t_warmup = at("10ba"), .t_max = at("1dur")};
    refuse(cosine, "6400tok", "t_warmup");
    cosine.t_max = at("50ba");
    refuse(cosine, "100ba", "t_max");
    refuse(cosine, "100ep", "t_max");
    cosine.t_max = at("100sec");
    refuse(cosine, "100ba", "sec");
    clt_schedule_config inv = {.kind = CLT_SCHEDULE_INV_SQRT,
                               .t_warmup = at("10ba"),
                               .t_scale = at("10ba"),
                               .t_cooldown = at("0.1dur"),
                               .t_max = at("1dur")};
    refuse(inv, "100ba", "t_cooldown");
    inv.t_cooldown = at("10tok");
    refuse(inv, "100ba", "t_cooldown");
    inv.t_cooldown = at("10ba");
    inv.alpha_f_cooldown = 0.5;
    refuse(inv, "100ba", "alpha_f_decay");
    inv.alpha_f_cooldown = 0;
    inv.t_scale = at("0ba");
    refuse(inv, "100ba", "t_scale");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_learning_rates), cmocka_unit_test(cosine),
        cmocka_unit_test(linear_and_constant),   cmocka_unit_test(inverse_square_root),
        cmocka_unit_test(units_and_the_lag),     cmocka_unit_test(wrong_units_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
