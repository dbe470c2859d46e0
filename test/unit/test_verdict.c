/* Checks of variants: verdicts in memory and on disk, shortages, comparing, scratch memory. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "test/variant_util.h"

typedef struct {
    int calls;
    const char *bad;   /* the id whose check fails */
    clt_status status; /* what it returns */
} script;

static clt_status scripted_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    script *s = ctx;
    s->calls++;
    if (!s->bad || strcmp(v->id, s->bad)) return CLT_OK;
    return s->status == CLT_FAIL ? clt_variant_fail(ops, "element 7 is wrong") : s->status;
}

/* A table whose rows no other test uses: verdicts on disk have the operation's name in their key. */
static clt_ops *ops_with(const char *op, bool skip_check) {
    clt_ops *ops = vu_ops(skip_check);
    tu_assert_ok(
        clt_variant_add_table(ops, op, "first reduce/reduce.cl b - WG=1\nsecond reduce/reduce.cl b - -\n"),
        "table");
    return ops;
}

static void failing_rows_are_passed_over_and_remembered(void **state) {
    (void)state;
    script s = {.bad = "first", .status = CLT_FAIL};
    const clt_variant *v = NULL;
    clt_ops *ops = ops_with("quarantine", false);
    tu_assert_ok(clt_variant_pick(ops, "quarantine", scripted_check, &s, &v), "pick");
    assert_string_equal(v->id, "second");
    assert_int_equal(s.calls, 2);
    tu_assert_ok(clt_variant_pick(ops, "quarantine", scripted_check, &s, &v), "pick again");
    assert_int_equal(s.calls, 2);
    /* forced, the failing row is refused with the reason */
    tu_assert_ok(clt_variant_force(ops, "quarantine", "first"), "force");
    assert_int_equal(clt_variant_pick(ops, "quarantine", scripted_check, &s, &v), CLT_FAIL);
    vu_assert_says("the forced variant first fails its check");
    vu_assert_says("element 7 is wrong");
    clt_ops_destroy(ops);
    /* another start reads both verdicts from the cache */
    ops = ops_with("quarantine", false);
    tu_assert_ok(clt_variant_pick(ops, "quarantine", scripted_check, &s, &v), "warm pick");
    assert_string_equal(v->id, "second");
    assert_int_equal(s.calls, 2);
    int n = 0;
    assert_string_equal(clt_ops_variants(ops, "quarantine", &n)[0].reason, "element 7 is wrong");
    clt_ops_destroy(ops);
    /* without checks (tests of the checker) the row is used */
    ops = ops_with("quarantine", true);
    tu_assert_ok(clt_variant_pick(ops, "quarantine", scripted_check, &s, &v), "unchecked pick");
    assert_string_equal(v->id, "first");
    clt_ops_destroy(ops);
}

static void no_good_row_is_an_error(void **state) {
    (void)state;
    script s = {.bad = "only", .status = CLT_FAIL};
    const clt_variant *v = NULL;
    clt_ops *ops = vu_ops(false);
    tu_assert_ok(clt_variant_add_table(ops, "alone", "only reduce/reduce.cl b - -"), "table");
    assert_int_equal(clt_variant_pick(ops, "alone", scripted_check, &s, &v), CLT_FAIL);
    vu_assert_says("no kernel variant gives correct results");
    vu_assert_says("element 7 is wrong");
    assert_null(v);
    assert_int_equal(clt_variant_pick(ops, "nothing", scripted_check, &s, &v), CLT_USAGE);
    clt_ops_destroy(ops);
}

/* What says nothing about the kernel is forwarded and not remembered. */
static void a_full_device_is_no_verdict(void **state) {
    (void)state;
    script s = {.bad = "first", .status = CLT_NO_MEMORY};
    const clt_variant *v = NULL;
    clt_ops *ops = ops_with("full", false);
    assert_int_equal(clt_variant_pick(ops, "full", scripted_check, &s, &v), CLT_NO_MEMORY);
    s.bad = NULL;
    tu_assert_ok(clt_variant_pick(ops, "full", scripted_check, &s, &v), "pick");
    assert_string_equal(v->id, "first");
    assert_int_equal(s.calls, 2);
    clt_ops_destroy(ops);
}

static int for_each_verdict(const char *op, const char *text) {
    clt_strv names = {0};
    const char *dir = clt_device_cache_dir(vu_dev);
    int found = 0;
    tu_assert_ok(clt_io_list(dir, &names), "list");
    for (size_t i = 0; i < names.n; i++) {
        char *path = clt_path_join(dir, names.v[i]), *data = NULL;
        if (!strncmp(names.v[i], "variant-", 8) && clt_io_read_all(path, 4096, &data, NULL) == CLT_OK &&
            strstr(data, op)) {
            found++;
            if (text) tu_assert_ok(clt_io_write_atomic(path, text, strlen(text)), "damage");
        }
        clt_free(data);
        clt_free(path);
    }
    clt_strv_free(&names);
    return found;
}

/* Stand before the driver's: errors that are set here come instead. Declared here, because only
 * runtime/device includes OpenCL's headers. */
enum {
    DEVICE_NOT_AVAILABLE = -2,
    OUT_OF_RESOURCES = -5,
    OUT_OF_HOST_MEMORY = -6,
    BUILD_PROGRAM_FAILURE = -11
};
static int build_error, launch_error;
static bool answers_no_more; /* after a launch_error */
static bool launched;        /* a launch had that error */

int clBuildProgram(void *program, unsigned n, void *const *devices, const char *options,
                   void (*notify)(void *, void *), void *data) {
    static int (*next)(void *, unsigned, void *const *, const char *, void (*)(void *, void *), void *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clBuildProgram");
    return build_error ? build_error : next(program, n, devices, options, notify, data);
}

int clEnqueueNDRangeKernel(void *queue, void *kernel, unsigned dims, const size_t *offset,
                           const size_t *global, const size_t *local, unsigned waits, void *const *wait,
                           void **event) {
    static int (*next)(void *, void *, unsigned, const size_t *, const size_t *, const size_t *, unsigned,
                       void *const *, void **);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clEnqueueNDRangeKernel");
    launched |= launch_error != 0;
    return launch_error ? launch_error : next(queue, kernel, dims, offset, global, local, waits, wait, event);
}

int clEnqueueMarkerWithWaitList(void *queue, unsigned waits, void *const *wait, void **event) {
    static int (*next)(void *, unsigned, void *const *, void **);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clEnqueueMarkerWithWaitList");
    return answers_no_more && launched && launch_error ? launch_error : next(queue, waits, wait, event);
}

static clt_status launching_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const size_t one = 1;
    clt_kernel *k;
    (void)ctx;
    if (clt_kernel_try(clt_ops_device(ops), v->file, "nothing", v->options, &k) != CLT_OK)
        return clt_variant_fail(ops, "does not build");
    return clt_launch(k, 1, &one, &one, NULL, 0);
}

static bool broken_before; /* something else broke the device before the check */

/* The first time with an error, later without. */
static clt_status pick_twice(const char *op, int at_build, int at_launch) {
    const clt_variant *v = NULL;
    clt_status st[2];
    for (int i = 0; i < 2; i++) {
        clt_ops *ops = vu_ops(false);
        char *row = clt_format("only nothing.cl b - WG=%d\n", 1000 * at_build + at_launch);
        tu_assert_ok(clt_variant_add_table(ops, op, row), "table");
        build_error = i ? 0 : at_build, launch_error = i ? 0 : at_launch;
        launched = broken_before;
        st[i] = clt_variant_pick(ops, op, launching_check, NULL, &v);
        build_error = launch_error = 0;
        clt_free(row);
        clt_ops_destroy(ops);
    }
    assert_int_equal(st[0], CLT_FAIL);
    return st[1];
}

static void what_ran_out_for_a_moment_is_no_verdict(void **state) {
    (void)state;
    vu_put_kernel("nothing.cl", "__kernel void nothing(void) { }\n");
    setenv("CLTRAIN_KERNEL_PATH", clt_device_cache_dir(vu_dev), 1);
    assert_int_equal(pick_twice("short_build", OUT_OF_HOST_MEMORY, 0), CLT_OK);
    assert_int_equal(pick_twice("short_launch", 0, OUT_OF_RESOURCES), CLT_OK);
    assert_int_equal(pick_twice("bad_build", BUILD_PROGRAM_FAILURE, 0), CLT_FAIL);
    answers_no_more = true; /* the kernel broke the device, or somebody took it away */
    assert_int_equal(pick_twice("broken", 0, OUT_OF_RESOURCES), CLT_FAIL);
    assert_int_equal(pick_twice("away", 0, DEVICE_NOT_AVAILABLE), CLT_OK);
    broken_before = true;
    assert_int_equal(pick_twice("broken_before", 0, OUT_OF_RESOURCES), CLT_OK);
    broken_before = false;
    answers_no_more = false;
    unsetenv("CLTRAIN_KERNEL_PATH");
}

/* Whether a row that asks the probe of a file of its own is usable: first with an error, then without. */
static bool probe_twice(const char *name, int at_build, int at_launch) {
    bool usable[2];
    char *file = clt_format("%s.cl", name), *row = clt_format("only f b probe=%s -\n", file),
         *text = clt_format(VU_PROBE "{ out[get_global_id(0)] = in[get_global_id(0)]; }\n#endif\n/* %s */\n",
                            name);
    vu_put_kernel(file, text);
    for (int i = 0; i < 2; i++) {
        int n = 0;
        clt_ops *ops = vu_ops(false);
        build_error = i ? 0 : at_build, launch_error = i ? 0 : at_launch;
        tu_assert_ok(clt_variant_add_table(ops, name, row), "table");
        build_error = launch_error = 0;
        clt_ops_variants(ops, name, &n);
        usable[i] = n == 1;
        clt_ops_destroy(ops);
    }
    clt_free(file);
    clt_free(row);
    clt_free(text);
    assert_false(usable[0]);
    return usable[1];
}

static void what_ran_out_for_a_moment_is_no_answer_of_a_probe(void **state) {
    (void)state;
    setenv("CLTRAIN_KERNEL_PATH", clt_device_cache_dir(vu_dev), 1);
    assert_true(probe_twice("probe_build", OUT_OF_HOST_MEMORY, 0));
    assert_true(probe_twice("probe_launch", 0, OUT_OF_RESOURCES));
    assert_false(probe_twice("probe_refused", BUILD_PROGRAM_FAILURE, 0));
    unsetenv("CLTRAIN_KERNEL_PATH");
}

static void damaged_verdicts_are_made_again(void **state) {
    (void)state;
    static char long_text[5000];
    const char *const damage[] = {
        "", "passed", "passed damaged firs", "maybe damaged first\n", "passed other first\n", long_text};
    memset(long_text, 'x', sizeof long_text - 1);
    char *said = clt_strdup(clt_last_error());
    script s = {0};
    const clt_variant *v = NULL;
    for (size_t i = 0; i < CLT_COUNT_OF(damage); i++) {
        s.calls = 0;
        char *op = clt_format("damaged%zu", i);
        for (int round = 0; round < 3; round++) { /* cold, warm, damaged */
            if (round == 2) assert_int_equal(for_each_verdict(op, damage[i]), 1);
            clt_ops *ops = ops_with(op, false);
            tu_assert_ok(clt_variant_pick(ops, op, scripted_check, &s, &v), "pick");
            assert_int_equal(s.calls, round == 2 ? 2 : 1);
            clt_ops_destroy(ops);
        }
        clt_free(op);
    }
    assert_string_equal(clt_last_error(), said); /* a cache is no error */
    clt_free(said);
}

static void compare_finds_the_first_difference(void **state) {
    (void)state;
    clt_ops *ops = vu_ops(false);
    float x[100], y[100];
    clt_buffer *b = NULL;
    for (int i = 0; i < 100; i++) x[i] = y[i] = (float)i;
    x[3] = __builtin_nanf("1"), y[3] = -__builtin_nanf("2");
    tu_assert_ok(clt_buffer_create(vu_dev, sizeof x, "test", &b), "buffer");
    tu_assert_ok(clt_buffer_write(b, 0, x, sizeof x), "write");
    tu_assert_ok(clt_variant_compare(ops, "x", (clt_ref){b, 0}, y, 100), "the same words, and any NaN");
    y[0] = -0.0f;
    assert_int_equal(clt_variant_compare(ops, "x", (clt_ref){b, 0}, y, 100), CLT_FAIL);
    assert_non_null(strstr(ops->reason, "x: element 0 of 100 is 0 (00000000), the oracle has -0 (80000000)"));
    tu_assert_ok(clt_variant_compare(ops, "x", (clt_ref){b, 1}, y + 1, 99), "the rest");
    clt_buffer_destroy(b);
    clt_ops_destroy(ops);
}

static void scratch_grows_and_is_counted(void **state) {
    (void)state;
    clt_ops *ops = vu_ops(false);
    clt_buffer *a = NULL, *b = NULL, *again = NULL;
    assert_int_equal(clt_ops_workspace_bytes(ops), 0);
    tu_assert_ok(clt_ops_scratch(ops, 0, 100, &a), "slot 0");
    tu_assert_ok(clt_ops_scratch(ops, 3, 100, &b), "slot 3");
    assert_true(a != b);
    tu_assert_ok(clt_ops_scratch(ops, 0, 50, &again), "smaller");
    assert_ptr_equal(a, again);
    tu_assert_ok(clt_ops_scratch(ops, 0, 1 << 20, &again), "larger");
    assert_true(clt_buffer_bytes(again) >= 1 << 20);
    assert_int_equal(clt_ops_workspace_bytes(ops), clt_buffer_bytes(again) + clt_buffer_bytes(b));
    assert_int_equal(clt_ops_scratch(ops, CLT_SCRATCH_SLOTS, 1, &a), CLT_FAIL);
    assert_int_equal(clt_ops_scratch(ops, 1, UINT64_C(1) << 60, &a), CLT_NO_MEMORY);
    clt_ops_destroy(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_rows_are_passed_over_and_remembered),
        cmocka_unit_test(no_good_row_is_an_error),
        cmocka_unit_test(a_full_device_is_no_verdict),
        cmocka_unit_test(what_ran_out_for_a_moment_is_no_verdict),
        cmocka_unit_test(what_ran_out_for_a_moment_is_no_answer_of_a_probe),
        cmocka_unit_test(damaged_verdicts_are_made_again),
        cmocka_unit_test(compare_finds_the_first_difference),
        cmocka_unit_test(scratch_grows_and_is_counted),
    };
    return cmocka_run_group_tests(tests, vu_open, vu_close);
}
