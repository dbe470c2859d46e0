/* The distance between the clocks of hosts: bounds by hand, and ranks on simulated hosts, which read one
 * clock. Timelines: the parts of two ranks joined in one file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "runtime/base/clt_timeline.h"
#include "runtime/train/run/clt_clock.h"
#include "test/thread_group.h"

/* The other clock is 100 s ahead. In the first barrier the other rank enters last, and the own rank leaves
 * 0.25 s after that; in the second one it is the other way round. */
static void barriers_bound_the_distance(void **state) {
    (void)state;
    const clt_clock_barrier own[] = {{1, 3.25}, {8, 8.5}}, other[] = {{103, 103.5}, {105, 108.125}};
    clt_clock_bounds b = clt_clock_bounds_of(own, other, 1);
    assert_true(b.low == 99.75 && b.high == 102.5);
    b = clt_clock_bounds_of(own, other, 2);
    assert_true(b.low == 99.75 && b.high == 100.125);
}

typedef struct {
    const int *host;
    clt_status st[TG_MAX_RANKS];
    double shift[TG_MAX_RANKS], error[TG_MAX_RANKS];
} alignment;

static void align(clt_group *g, void *ctx) {
    alignment *a = ctx;
    const int rank = clt_group_rank(g);
    a->st[rank] = clt_clock_align(g, &a->shift[rank], &a->error[rank]);
}

/* The true distance is 0, so the error must be at least the shift. */
static void ranks_align_their_clocks(void **state) {
    (void)state;
    enum { RANKS = 5 };
    static const int host[RANKS] = {0, 1, 0, 2, 1};
    alignment a = {.host = host};
    tg_run_on_hosts(RANKS, host, align, &a);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(a.st[r], CLT_OK);
        assert_true(a.error[r] > 0 && a.error[r] < 10 && a.error[r] == a.error[0]);
        assert_true(fabs(a.shift[r]) <= a.error[r]);
    }
    assert_true(a.shift[0] == 0 && a.shift[2] == 0 && a.shift[1] == a.shift[4]);
}

static void one_host_has_one_clock(void **state) {
    (void)state;
    alignment a = {0};
    tg_run(3, align, &a);
    for (int r = 0; r < 3; r++) assert_true(a.st[r] == CLT_OK && a.shift[r] == 0 && a.error[r] == 0);
}

static void parts_are_joined(void **state) {
    (void)state;
    char path[] = "/tmp/test_clock.XXXXXX";
    clt_str part[2] = {{0}}, all = {0};
    json_t *file, *list;
    close(mkstemp(path));
    for (int r = 0; r < 2; r++) {
        clt_timeline_process(&part[r], r, r ? "rank \"1\"" : "rank 0");
        clt_timeline_row(&part[r], r, 7, "row");
        clt_timeline_event(&part[r], r, 7, "work", 0.5 + r, 0.75 + r, r ? "\"bytes\":5" : NULL);
        clt_timeline_join(&all, part[r].s);
        clt_str_free(&part[r]);
    }
    clt_timeline_join(&all, "");
    assert_int_equal(clt_timeline_write(path, &all), CLT_OK);
    assert_int_equal(clt_json_load(path, 1 << 20, 8, &file), CLT_OK);
    assert_int_equal(clt_json_get_arr(file, "traceEvents", path, &list), CLT_OK);
    assert_int_equal(json_array_size(list), 10);
    json_t *event = json_array_get(list, 9), *name = json_object_get(json_array_get(list, 5), "args");
    assert_string_equal(json_string_value(json_object_get(name, "name")), "rank \"1\"");
    assert_int_equal(json_integer_value(json_object_get(event, "pid")), 1);
    /* In whole nanoseconds, as Perfetto reads them. */
    assert_true(floor(json_real_value(json_object_get(event, "ts")) * 1000.0) == 1.5e9);
    assert_true(floor(json_real_value(json_object_get(event, "dur")) * 1000.0) == 0.25e9);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(event, "args"), "bytes")), 5);
    json_decref(file);
    clt_str_free(&all);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_bound_the_distance), cmocka_unit_test(ranks_align_their_clocks),
        cmocka_unit_test(one_host_has_one_clock), cmocka_unit_test(parts_are_joined)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
