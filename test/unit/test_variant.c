/* The variant tables: reading, filtering, forcing, checks, verdicts in memory and on disk, scratch. */
#include "test/test_util.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/ops/clt_ops_state.h"

static char cache[] = "/tmp/clt_variant_XXXXXX";
static clt_device *dev;

static clt_ops *new_ops(bool skip_check) {
    clt_ops *ops = NULL;
    clt_ops_params p = clt_ops_params_default();
    p.skip_check = skip_check;
    tu_assert_ok(clt_ops_create(dev, &p, &ops), "clt_ops_create");
    return ops;
}

static int open_device(void **state) {
    (void)state;
    if (!mkdtemp(cache)) return -1;
    clt_device_params p = clt_device_params_default();
    p.cache_dir = cache;
    tu_assert_ok(clt_device_open(&p, &dev), "clt_device_open");
    return 0;
}

static int close_device(void **state) {
    (void)state;
    clt_device_close(dev);
    return clt_io_remove_tree(cache) == CLT_OK ? 0 : -1;
}

static void says(const char *what) {
    if (!strstr(clt_last_error(), what))
        fail_msg("the message '%s' does not say '%s'", clt_last_error(), what);
}

/* --- reading --- */

static void rows_are_filtered_and_ordered(void **state) {
    (void)state;
    clt_ops *ops = new_ops(false);
    const char *text = "# a comment\n\n"
                       "never     a/b.cl  body  vendor=NoSuchVendor      -   # of nobody\n"
                       "big       a/b.cl  body  local_mem>=999999999999  X=1\n"
                       "fast      a/b.cl  body  numerics=fast            -\n"
                       "tuned     a/b.cl  tile  work_group>=1,local_mem>=1  MR=8,NR=0x20,MODE=-3\r\n"
                       "portable  a/b.cl  body  -                        -";
    tu_assert_ok(clt_variant_add_table(ops, "fake", text), "a good table");
    int n = 0;
    const clt_variant *v = clt_ops_variants(ops, "fake", &n);
    assert_int_equal(n, 2);
    assert_string_equal(v[0].id, "tuned");
    assert_string_equal(v[0].body, "tile");
    assert_string_equal(v[0].options, " -DMR=8 -DNR=0x20 -DMODE=-3");
    assert_int_equal(clt_variant_param(&v[0], "MR", 0), 8);
    assert_int_equal(clt_variant_param(&v[0], "NR", 0), 32);
    assert_int_equal(clt_variant_param(&v[0], "MODE", 0), -3);
    assert_int_equal(clt_variant_param(&v[0], "R", 7), 7);
    assert_int_equal(clt_variant_param(&v[0], "M", 7), 7);
    assert_string_equal(v[1].id, "portable");
    assert_string_equal(v[1].options, "");
    assert_null(clt_ops_variants(ops, "unheard", &n));
    assert_int_equal(n, 0);
    clt_ops_destroy(ops);
}

static void damaged_tables_are_refused(void **state) {
    (void)state;
    char wide[400];
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = 0;
    char *long_id = clt_format("%.60s f b - -", wide), *long_params = clt_format("a f b - %s", wide);
    const struct {
        const char *text, *message;
    } bad[] = {{"a b c -", "line 1: expected id, file, body"},
               {"\n\na b c - - extra", "line 3: expected id, file, body"},
               {"a f b ptx,warp_speed -", "unknown requirement 'warp_speed'"},
               {"a f b local_mem>=many -", "unknown requirement 'local_mem>=many'"},
               {"a f b - -\nc f b - -\na f b - -", "line 3: variant a occurs twice"},
               {"a f b - MR=eight", "line 1: the param 'MR=eight' of variant a is not NAME=INTEGER"},
               {"a f b - MR=8,NR", "line 1: the param 'NR' of variant a is not NAME=INTEGER"},
               {"a f b - MR=8;NR=4", "line 1: the param 'MR=8;NR=4' of variant a is not NAME=INTEGER"},
               {"a f b - AMR=1,MR=8,MR=8", "line 1: variant a has the param MR twice"},
               {long_id, "line 1: id is too long"},
               {long_params, "line 1: params is too long"}};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_ops *ops = new_ops(false);
        assert_int_equal(clt_variant_add_table(ops, "fake", bad[i].text), CLT_FAIL);
        says(bad[i].message);
        clt_ops_destroy(ops);
    }
    clt_free(long_id);
    clt_free(long_params);
}

static void params_that_nobody_reads_are_refused(void **state) {
    (void)state;
    const struct {
        const char *text, *message;
    } bad[] = {{"a gemm/gemm_portable.cl b - BM=8,TYPS=7", "the param TYPS of variant a has no effect"},
               {"a gemm/gemm_portable.cl b - B=8", "the param B of variant a has no effect"}};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_ops *ops = new_ops(false);
        tu_assert_ok(clt_variant_add_table(ops, "fake", bad[i].text), "a table");
        assert_int_equal(clt_variant_params_are_read(&ops->table[ops->tables - 1]), CLT_FAIL);
        says(bad[i].message);
        clt_ops_destroy(ops);
    }
}

/* Every table in the program: each kernel file is there, all params are read, and the last row asks for
 * nothing. */
static void built_in_tables_are_complete(void **state) {
    (void)state;
    clt_ops *ops = new_ops(false);
    assert_true(ops->tables > 0);
    for (int i = 0; i < ops->tables; i++) {
        const clt_variant_table *t = &ops->table[i];
        int portable = 0;
        tu_assert_ok(clt_variant_params_are_read(t), t->op);
        for (int r = 0; r < t->rows; r++) {
            if (!clt_kernel_text(t->row[r].file))
                fail_msg("%s=%s: no file %s", t->op, t->row[r].id, t->row[r].file);
            portable += !strcmp(t->row[r].requires, "-");
        }
        if (portable == 0) fail_msg("%s: no row without requirements", t->op);
        if (strcmp(t->row[t->usable - 1].requires, "-")) fail_msg("%s: the portable row is not last", t->op);
    }
    clt_ops_destroy(ops);
}

/* clt_variant_rows is the same table, read without a device. */
static void rows_without_a_device_are_all_rows(void **state) {
    (void)state;
    clt_ops *ops = new_ops(true);
    for (int i = 0; i < ops->tables; i++) {
        clt_variant *row;
        const int n = clt_variant_rows(ops->table[i].op, &row);
        assert_int_equal(n, ops->table[i].rows);
        assert_string_equal(row[n - 1].id, ops->table[i].row[ops->table[i].usable - 1].id);
        clt_free(row);
    }
    clt_variant *none;
    assert_int_equal(clt_variant_rows("gem", &none), 0);
    assert_null(none);
    clt_ops_destroy(ops);
}

/* --- probes of kernel files --- */

#define PROBE "#ifdef PROBE\n__kernel void probe(__global const uint *in, __global uint *out) "

static void put_kernel(const char *name, const char *text) {
    char *path = clt_path_join(cache, name);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(path);
}

static void probes_of_kernel_files_decide(void **state) {
    (void)state;
    clt_ops *ops = new_ops(false);
    put_kernel("yes.cl", PROBE "{ out[get_global_id(0)] = in[get_global_id(0)]; }\n#endif\n");
    put_kernel("sized.cl",
               "#ifdef PROBE\n__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void "
               "probe(__global const uint *in, __global uint *out) "
               "{ out[get_local_id(0)] = get_local_size(0) == 8 ? in[get_local_id(0)] : 9; }\n#endif\n");
    put_kernel("wrong.cl", PROBE
               "{ out[get_global_id(0)] = get_global_id(0) == 63 ? 0 : in[get_global_id(0)]; }\n#endif\n");
    put_kernel("idle.cl", PROBE "{ }\n#endif\n");
    put_kernel("refused.cl", PROBE "{ nonsense(); }\n#endif\n");
    put_kernel("absent.cl", "__kernel void other(__global uint *x) { *x = 0; }\n");
    setenv("CLTRAIN_KERNEL_PATH", cache, 1);
    const char *text = "a f b probe=wrong.cl -\nb f b probe=idle.cl -\nc f b probe=refused.cl -\n"
                       "d f b probe=absent.cl -\ne f b vendor=NoSuchVendor,probe=yes.cl -\n"
                       "f f b probe=yes.cl -\ng f b work_group>=8,probe=sized.cl -\nh f b - -\n";
    tu_assert_ok(clt_variant_add_table(ops, "fake", text), "a table with probes");
    int n = 0;
    const clt_variant *v = clt_ops_variants(ops, "fake", &n);
    assert_int_equal(n, 3);
    assert_string_equal(v[0].id, "f");
    assert_string_equal(v[1].id, "g");
    assert_int_equal(clt_variant_add_table(ops, "other", "a f b probe=nowhere.cl -"), CLT_FAIL);
    says("requires 'probe=nowhere.cl', but that kernel file does not exist");
    clt_ops_destroy(ops);
    unsetenv("CLTRAIN_KERNEL_PATH");
}

/* --- keys --- */

static void key_of(const char *requires, char key[33]) {
    clt_ops *ops = new_ops(false);
    char *text = clt_format("row own.cl b %s -\n", requires);
    int n = 0;
    tu_assert_ok(clt_variant_add_table(ops, "fake", text), requires);
    const clt_variant *v = clt_ops_variants(ops, "fake", &n);
    assert_int_equal(n, 1);
    clt_variant_key(ops, v, key);
    clt_free(text);
    clt_ops_destroy(ops);
}

static void keys_cover_all_kernels_of_a_row(void **state) {
    (void)state;
    char alone[33], one[33], same[33], other[33];
    put_kernel("own.cl", "own\n");
    put_kernel("one.cl", "one\n");
    put_kernel("same.cl", "one\n");
    put_kernel("other.cl", "other\n");
    setenv("CLTRAIN_KERNEL_PATH", cache, 1);
    key_of("-", alone);
    key_of("uses=one.cl", one);
    key_of("work_group>=1,uses=same.cl", same);
    key_of("uses=other.cl,work_group>=1", other);
    assert_string_not_equal(alone, one);
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    clt_ops *ops = new_ops(false);
    assert_int_equal(clt_variant_add_table(ops, "fake", "a f b uses=nowhere.cl -"), CLT_FAIL);
    says("requires 'uses=nowhere.cl', but that kernel file does not exist");
    clt_ops_destroy(ops);
    unsetenv("CLTRAIN_KERNEL_PATH");
}

/* The library of this test is a copy of libm: m.so in the folder libfake. */
static void keys_cover_the_library_of_a_row(void **state) {
    (void)state;
    char key[33], again[33], newer[33], *here = getcwd(NULL, 0);
    assert_int_equal(chdir(cache), 0);
    if (system("mkdir libfake && cp \"$(ldconfig -p | sed -n 's/.*libm\\.so\\.6.*=> //p' | head -n 1)\" "
               "libfake/m.so") != 0)
        skip();
    key_of("lib=fake/m", key);
    key_of("lib=fake/m", again);
    assert_string_equal(key, again);
    assert_int_equal(system("touch -d 2001-01-01 libfake/m.so"), 0);
    key_of("lib=fake/m", newer);
    assert_string_not_equal(key, newer);
    assert_int_equal(chdir(here), 0);
    free(here);
}

/* --- forcing --- */

static const char three[] =
    "first f.cl b - -\nsecond f.cl b - -\nnever f.cl b work_group>=1,vendor=NoSuchVendor -\n";

static void forcing_names_what_there_is(void **state) {
    (void)state;
    clt_ops *ops = new_ops(false);
    tu_assert_ok(clt_variant_add_table(ops, "fake", three), "table");
    assert_null(clt_variant_forced(ops, "fake"));
    assert_int_equal(clt_variant_force(ops, "fake", "third"), CLT_USAGE);
    says("fake has no variant 'third'; it has: first second never (not on this device)");
    assert_int_equal(clt_variant_force(ops, "fake", "never"), CLT_USAGE);
    says("cannot run on this device: it requires work_group>=1,vendor=NoSuchVendor; unmet: "
         "vendor=NoSuchVendor");
    assert_int_equal(clt_variant_force(ops, "flake", "first"), CLT_USAGE);
    says("unknown operation 'flake'");
    says("fake");
    assert_null(clt_variant_forced(ops, "fake"));
    tu_assert_ok(clt_variant_force(ops, "fake", "second"), "force");
    assert_string_equal(clt_variant_forced(ops, "fake"), "second");
    tu_assert_ok(clt_variant_force(ops, "fake", NULL), "free again");
    assert_null(clt_variant_forced(ops, "fake"));
    clt_ops_destroy(ops);
}

static bool takes_none(const clt_variant *v, const void *call) {
    (void)v, (void)call;
    return false;
}

static void describe(const void *call, char *out, size_t size) {
    snprintf(out, size, "%s", (const char *)call);
}

static void unsupported_calls_are_named(void **state) {
    (void)state;
    const clt_variant_question q = {
        .op = "fake", .options = "", .takes = takes_none, .call = "3 x 4", .describe = describe};
    clt_ops *ops = new_ops(true);
    const clt_variant *v = NULL;
    tu_assert_ok(clt_variant_add_table(ops, "fake", "first f.cl b - TYPES=6\n"), "table");
    tu_assert_ok(clt_variant_force(ops, "fake", "first"), "force");
    assert_int_equal(clt_variant_pick_for(ops, &q, &v), CLT_FAIL);
    says("the forced variant first does not support a call of 3 x 4: its params (TYPES=6)");
    tu_assert_ok(clt_variant_force(ops, "fake", NULL), "force");
    assert_int_equal(clt_variant_pick_for(ops, &q, &v), CLT_FAIL);
    says("supports a call of 3 x 4; choose another device");
    clt_ops_destroy(ops);
}

static void environment_forces(void **state) {
    (void)state;
    clt_ops *ops = NULL;
    setenv("CLTRAIN_VARIANT", "norm=portable,loss=group64", 1);
    tu_assert_ok(clt_ops_create(dev, NULL, &ops), "known ids");
    assert_string_equal(clt_variant_forced(ops, "norm"), "portable");
    assert_string_equal(clt_variant_forced(ops, "loss"), "group64");
    assert_null(clt_variant_forced(ops, "embedding"));
    clt_ops_destroy(ops);
    setenv("CLTRAIN_VARIANT", "norm=portable,norm=best", 1);
    assert_int_equal(clt_ops_create(dev, NULL, &ops), CLT_USAGE);
    says("norm has no variant 'best'");
    setenv("CLTRAIN_VARIANT", "portable", 1);
    assert_int_equal(clt_ops_create(dev, NULL, &ops), CLT_USAGE);
    says("'portable' is not op=id");
    unsetenv("CLTRAIN_VARIANT");
}

/* --- checks and verdicts --- */

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
    clt_ops *ops = new_ops(skip_check);
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
    says("the forced variant first fails its check");
    says("element 7 is wrong");
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
    clt_ops *ops = new_ops(false);
    tu_assert_ok(clt_variant_add_table(ops, "alone", "only reduce/reduce.cl b - -"), "table");
    assert_int_equal(clt_variant_pick(ops, "alone", scripted_check, &s, &v), CLT_FAIL);
    says("no kernel variant gives correct results");
    says("element 7 is wrong");
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
    const char *dir = clt_device_cache_dir(dev);
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
    return launch_error ? launch_error : next(queue, kernel, dims, offset, global, local, waits, wait, event);
}

int clEnqueueMarkerWithWaitList(void *queue, unsigned waits, void *const *wait, void **event) {
    static int (*next)(void *, unsigned, void *const *, void **);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clEnqueueMarkerWithWaitList");
    return answers_no_more && launch_error ? launch_error : next(queue, waits, wait, event);
}

static clt_status launching_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const size_t one = 1;
    clt_kernel *k;
    (void)ctx;
    if (clt_kernel_try(clt_ops_device(ops), v->file, "nothing", v->options, &k) != CLT_OK)
        return clt_variant_fail(ops, "does not build");
    return clt_launch(k, 1, &one, &one, NULL, 0);
}

/* The first time with an error, later without. */
static clt_status pick_twice(const char *op, int at_build, int at_launch) {
    const clt_variant *v = NULL;
    clt_status st[2];
    for (int i = 0; i < 2; i++) {
        clt_ops *ops = new_ops(false);
        char *row = clt_format("only nothing.cl b - WG=%d\n", 1000 * at_build + at_launch);
        tu_assert_ok(clt_variant_add_table(ops, op, row), "table");
        build_error = i ? 0 : at_build, launch_error = i ? 0 : at_launch;
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
    put_kernel("nothing.cl", "__kernel void nothing(void) { }\n");
    setenv("CLTRAIN_KERNEL_PATH", cache, 1);
    assert_int_equal(pick_twice("short_build", OUT_OF_HOST_MEMORY, 0), CLT_OK);
    assert_int_equal(pick_twice("short_launch", 0, OUT_OF_RESOURCES), CLT_OK);
    assert_int_equal(pick_twice("bad_build", BUILD_PROGRAM_FAILURE, 0), CLT_FAIL);
    answers_no_more = true; /* the kernel broke the device, or somebody took it away */
    assert_int_equal(pick_twice("broken", 0, OUT_OF_RESOURCES), CLT_FAIL);
    assert_int_equal(pick_twice("away", 0, DEVICE_NOT_AVAILABLE), CLT_OK);
    answers_no_more = false;
    unsetenv("CLTRAIN_KERNEL_PATH");
}

/* Whether a row that asks the probe of a file of its own is usable: first with an error, then without. */
static bool probe_twice(const char *name, int at_build, int at_launch) {
    bool usable[2];
    char *file = clt_format("%s.cl", name), *row = clt_format("only f b probe=%s -\n", file),
         *text =
             clt_format(PROBE "{ out[get_global_id(0)] = in[get_global_id(0)]; }\n#endif\n/* %s */\n", name);
    put_kernel(file, text);
    for (int i = 0; i < 2; i++) {
        int n = 0;
        clt_ops *ops = new_ops(false);
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
    setenv("CLTRAIN_KERNEL_PATH", cache, 1);
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
    clt_ops *ops = new_ops(false);
    float x[100], y[100];
    clt_buffer *b = NULL;
    for (int i = 0; i < 100; i++) x[i] = y[i] = (float)i;
    x[3] = __builtin_nanf("1"), y[3] = -__builtin_nanf("2");
    tu_assert_ok(clt_buffer_create(dev, sizeof x, "test", &b), "buffer");
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
    clt_ops *ops = new_ops(false);
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
        cmocka_unit_test(rows_are_filtered_and_ordered),
        cmocka_unit_test(damaged_tables_are_refused),
        cmocka_unit_test(params_that_nobody_reads_are_refused),
        cmocka_unit_test(built_in_tables_are_complete),
        cmocka_unit_test(rows_without_a_device_are_all_rows),
        cmocka_unit_test(probes_of_kernel_files_decide),
        cmocka_unit_test(keys_cover_all_kernels_of_a_row),
        cmocka_unit_test(keys_cover_the_library_of_a_row),
        cmocka_unit_test(forcing_names_what_there_is),
        cmocka_unit_test(unsupported_calls_are_named),
        cmocka_unit_test(environment_forces),
        cmocka_unit_test(failing_rows_are_passed_over_and_remembered),
        cmocka_unit_test(no_good_row_is_an_error),
        cmocka_unit_test(a_full_device_is_no_verdict),
        cmocka_unit_test(what_ran_out_for_a_moment_is_no_verdict),
        cmocka_unit_test(what_ran_out_for_a_moment_is_no_answer_of_a_probe),
        cmocka_unit_test(damaged_verdicts_are_made_again),
        cmocka_unit_test(compare_finds_the_first_difference),
        cmocka_unit_test(scratch_grows_and_is_counted),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
