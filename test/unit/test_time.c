/* Time strings and timestamps: by hand from Composer's rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/config/clt_time.h"

static void times_are_read(void **state) {
    (void)state;
    const struct {
        const char *text;
        clt_time_unit unit;
        int64_t value;
        double fraction;
    } good[] = {{"4800ba", CLT_TIME_BATCH, 4800, 0}, {"1ep", CLT_TIME_EPOCH, 1, 0},
                {"3", CLT_TIME_EPOCH, 3, 0},         {"20TOK", CLT_TIME_TOKEN, 20, 0},
                {"7sp", CLT_TIME_SAMPLE, 7, 0},      {"0.25dur", CLT_TIME_DURATION, 0, 0.25},
                {"1dur", CLT_TIME_DURATION, 0, 1},   {"2iter", CLT_TIME_ITERATION, 2, 0},
                {"60sec", CLT_TIME_SECOND, 60, 0},   {"1.0ba", CLT_TIME_BATCH, 1, 0},
                {"0ba", CLT_TIME_BATCH, 0, 0},       {"3e4tok", CLT_TIME_TOKEN, 30000, 0},
                {"1.5E2ba", CLT_TIME_BATCH, 150, 0}, {"1e-1dur", CLT_TIME_DURATION, 0, 0.1},
                {"1e1ep", CLT_TIME_EPOCH, 10, 0},    {"20e-1ba", CLT_TIME_BATCH, 2, 0}};
    for (size_t i = 0; i < CLT_COUNT_OF(good); i++) {
        clt_time t;
        assert_true(clt_time_parse(good[i].text, &t));
        assert_int_equal(t.unit, good[i].unit);
        assert_int_equal(t.value, good[i].value);
        assert_true(t.fraction == good[i].fraction);
    }
}

static void what_is_no_time_is_refused(void **state) {
    (void)state;
    const char *bad[] = {"",       "ba",
                         "-1ba",   "1.5ba",
                         "1 ba",   "ba1",
                         "1bax",   "1e-3ba",
                         "1eba",   "1e300tok",
                         "nandur", "1..2dur",
                         ".",      "99999999999999999999ba",
                         "1ba ",   "0x10ba",
                         "+1ba",   "1000000000000000000000000000dur"};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_time t;
        if (clt_time_parse(bad[i], &t)) fail_msg("'%s' was taken for a time", bad[i]);
    }
}

static void text_reads_back(void **state) {
    (void)state;
    const char *all[] = {"4800ba", "1ep", "20tok", "7sp", "0.25dur", "60sec"};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_time t;
        char buf[40];
        assert_true(clt_time_parse(all[i], &t));
        assert_string_equal(clt_time_text(t, buf), all[i]);
    }
}

static void durations_and_epochs_become_counts(void **state) {
    (void)state;
    const clt_time max_ba = CLT_BATCHES(999), max_ep = {.unit = CLT_TIME_EPOCH, .value = 3};
    const clt_time tenth = {.unit = CLT_TIME_DURATION, .fraction = 0.1};
    clt_time t;
    assert_int_equal(clt_time_resolve(tenth, max_ba, 0, "x", &t), CLT_OK);
    assert_int_equal(t.unit, CLT_TIME_BATCH);
    assert_int_equal(t.value, 99); /* int(99.9) */
    assert_int_equal(clt_time_resolve(tenth, max_ep, 50, "x", &t), CLT_OK);
    assert_int_equal(t.unit, CLT_TIME_BATCH);
    assert_int_equal(t.value, 15);
    assert_int_equal(clt_time_resolve(max_ep, max_ep, 50, "x", &t), CLT_OK);
    assert_int_equal(t.value, 150);
    assert_int_equal(clt_time_resolve(tenth, max_ep, 0, "x", &t), CLT_BAD_CONFIG);
    const clt_time huge = {.unit = CLT_TIME_EPOCH, .value = 1000000000000000000};
    assert_int_equal(clt_time_resolve(huge, huge, 1000, "x", &t), CLT_BAD_CONFIG);
}

/* Composer: int(0.03 * 90 * 10) batches of warm-up, but an evaluation every ceil(10 * 0.03 * 90). */
static void intervals_are_rounded_up(void **state) {
    (void)state;
    const clt_time max_ep = {.unit = CLT_TIME_EPOCH, .value = 10},
                   epoch = {.unit = CLT_TIME_EPOCH, .value = 2};
    clt_time t, part = {.unit = CLT_TIME_DURATION, .fraction = 0.03};
    assert_int_equal(clt_time_resolve(part, max_ep, 90, "x", &t), CLT_OK);
    assert_int_equal(t.value, 26);
    assert_int_equal(clt_time_resolve_interval(part, max_ep, 90, "x", &t), CLT_OK);
    assert_int_equal(t.unit, CLT_TIME_BATCH);
    assert_int_equal(t.value, 27);
    part.fraction = 0.4;
    assert_int_equal(clt_time_resolve_interval(part, CLT_BATCHES(6), 0, "x", &t), CLT_OK);
    assert_int_equal(t.value, 3);
    part.fraction = 0.001;
    assert_int_equal(clt_time_resolve_interval(part, CLT_BATCHES(6), 0, "x", &t), CLT_OK);
    assert_int_equal(t.value, 1);
    assert_int_equal(clt_time_resolve_interval(epoch, CLT_BATCHES(6), 90, "x", &t), CLT_OK);
    assert_int_equal(t.unit, CLT_TIME_EPOCH);
    assert_int_equal(t.value, 2);
}

static void timestamps_count_and_cross(void **state) {
    (void)state;
    clt_timestamp t = {0};
    int crossed_ba = 0, crossed_ep = 0, crossed_tok = 0;
    const clt_time every3 = CLT_BATCHES(3), epoch = {.unit = CLT_TIME_EPOCH, .value = 1},
                   every100 = {.unit = CLT_TIME_TOKEN, .value = 100}, never = CLT_BATCHES(0);
    for (int i = 0; i < 10; i++) {
        clt_timestamp before = t;
        clt_timestamp_next_batch(&t, 8, 64, i % 4 == 3);
        crossed_ba += clt_timestamp_crossed(&before, &t, every3);
        crossed_ep += clt_timestamp_crossed(&before, &t, epoch);
        crossed_tok += clt_timestamp_crossed(&before, &t, every100);
        assert_false(clt_timestamp_crossed(&before, &t, never));
    }
    assert_int_equal(t.batch, 10);
    assert_int_equal(t.sample, 80);
    assert_int_equal(t.token, 640);
    assert_int_equal(t.epoch, 2);
    assert_int_equal(t.batch_in_epoch, 2);
    assert_int_equal(t.sample_in_epoch, 16);
    assert_int_equal(t.token_in_epoch, 128);
    assert_int_equal(crossed_ba, 3);  /* after batches 3, 6, 9 */
    assert_int_equal(crossed_ep, 2);  /* after batches 4, 8 */
    assert_int_equal(crossed_tok, 6); /* 100 ... 600 */
    assert_true(clt_timestamp_reached(&t, CLT_BATCHES(10)));
    assert_false(clt_timestamp_reached(&t, CLT_BATCHES(11)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_read),           cmocka_unit_test(what_is_no_time_is_refused),
        cmocka_unit_test(text_reads_back),          cmocka_unit_test(durations_and_epochs_become_counts),
        cmocka_unit_test(intervals_are_rounded_up), cmocka_unit_test(timestamps_count_and_cross)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
