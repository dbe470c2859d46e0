/* The cache folder: damaged entries, facts, program binaries, one build per host; and stderr while drivers
 * compile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_cache.h"
#include "runtime/device/clt_device.h"

static char folder[64];
static const char *self;

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_cache.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(folder) == CLT_OK ? 0 : -1;
}

/* Changes the byte at offset `at` of a file, or with at < 0 removes its last byte. */
static void damage(const char *path, long at) {
    char *data;
    size_t n;
    assert_int_equal(clt_io_read_all(path, 1 << 26, &data, &n), CLT_OK);
    assert_true((long)n > at);
    if (at >= 0) data[at] ^= 1;
    assert_true(clt_cache_write_file(path, data, at < 0 ? n - 1 : n));
    clt_free(data);
}

static void damaged_entries_are_dropped(void **state) {
    (void)state;
    const char text[] = "some \0 data";
    char *path = clt_path_join(folder, "entry"), *data;
    size_t n;
    /* A byte of the magic, the version, the length, the hash, the data; a lost byte; a file shorter than a
     * header. */
    static const long at[] = {0, 8, 16, 24, 44, -1};
    for (size_t i = 0; i < CLT_COUNT_OF(at); i++) {
        clt_cache_put(folder, "entry", text, sizeof text);
        assert_true(clt_cache_get(folder, "entry", &data, &n));
        assert_int_equal(n, sizeof text);
        assert_memory_equal(data, text, n);
        clt_free(data);
        damage(path, at[i]);
        assert_false(clt_cache_get(folder, "entry", &data, &n));
        assert_false(clt_io_is_file(path)); /* dropped */
    }
    assert_true(clt_cache_write_file(path, "x", 1));
    assert_false(clt_cache_get(folder, "entry", &data, &n));
    assert_false(clt_cache_get(folder, "entry", &data, &n));
    assert_false(clt_cache_get(NULL, "entry", &data, &n));
    clt_cache_put(NULL, "entry", text, sizeof text);
    assert_int_equal(mkdir(path, 0777), 0); /* the entry cannot be renamed to this */
    clt_cache_put(folder, "entry", text, sizeof text);
    assert_int_equal(rmdir(path), 0);
    clt_strv names = {0};
    assert_int_equal(clt_io_list(folder, &names), CLT_OK);
    assert_int_equal(names.n, 0); /* no temporary file is left */
    clt_strv_free(&names);
    clt_free(path);
}

static void unusable_folder_is_quiet(void **state) {
    (void)state;
    char *file = clt_path_join(folder, "file"), *data;
    size_t n;
    assert_true(clt_cache_write_file(file, "x", 1));
    char *below = clt_path_join(file, "cache");
    clt_cache_put(below, "entry", "x", 1);
    assert_false(clt_cache_get(below, "entry", &data, &n));
    assert_int_equal(clt_cache_lock(below, (clt_hash128){1, 1}, 0.1), -1);
    clt_device_params p = clt_device_params_default();
    p.cache_dir = below;
    clt_device *dev;
    assert_int_equal(clt_device_open(&p, &dev), CLT_OK);
    assert_null(clt_device_cache_dir(dev));
    clt_device_close(dev);
    assert_int_equal(clt_io_unlink(file), CLT_OK);
    clt_free(below);
    clt_free(file);
}

static void locks_exclude_and_time_out(void **state) {
    (void)state;
    clt_hash128 key = {7, 7}, other = {7, 7 + 64};
    int a = clt_cache_lock(folder, key, 1);
    assert_true(a >= 0);
    double start = clt_now();
    assert_int_equal(clt_cache_lock(folder, key, 0.2),
                     -1); /* another open file excludes as another process does */
    assert_true(clt_now() - start >= 0.2);
    int b = clt_cache_lock(folder, other, 1);
    assert_true(b >= 0);
    clt_cache_unlock(a);
    a = clt_cache_lock(folder, key, 1);
    assert_true(a >= 0);
    clt_cache_unlock(a);
    clt_cache_unlock(b);
    clt_cache_unlock(-1);
}

static void facts_are_kept(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    char *dir = clt_path_join(folder, "facts");
    p.cache_dir = dir;
    clt_device_facts seen[3];
    for (int i = 0; i < 3; i++) {
        clt_device *dev;
        double start = clt_now();
        assert_int_equal(clt_device_open(&p, &dev), CLT_OK);
        double took = clt_now() - start;
        if (i > 0) print_message("opening with kept facts: %.3f s\n", took);
        seen[i] = *clt_device_get_facts(dev);
        char *name = clt_format("%s.facts", clt_device_id(dev)), *path = clt_path_join(dir, name);
        assert_true(clt_io_is_file(path));
        if (i == 1) damage(path, 60);
        clt_free(path);
        clt_free(name);
        clt_device_close(dev);
    }
    for (int i = 1; i < 3; i++) {
        assert_true(seen[i].probed);
        assert_int_equal(seen[i].local_mem, seen[0].local_mem);
        assert_int_equal(seen[i].half_arithmetic, seen[0].half_arithmetic);
        assert_int_equal(seen[i].fp64, seen[0].fp64);
        assert_int_equal(seen[i].subgroup_size, seen[0].subgroup_size);
        assert_int_equal(seen[i].block_reads, seen[0].block_reads);
        assert_int_equal(seen[i].exact, seen[0].exact);
        assert_int_equal(seen[i].correct_rounding_option, seen[0].correct_rounding_option);
        assert_string_equal(seen[i].exact_reason, seen[0].exact_reason);
    }
    assert_true(seen[1].copy_gbps > seen[0].copy_gbps - 0.001 &&
                seen[1].copy_gbps < seen[0].copy_gbps + 0.001);
    clt_free(dir);
}

/* --- stderr while a driver compiles --- */

/* Replaces the driver's function. Declared here, because only runtime/device includes OpenCL's headers. */
static void (*during_build)(void);

int clBuildProgram(void *program, unsigned n, void *const *devices, const char *options,
                   void (*notify)(void *, void *), void *data) {
    static int (*next)(void *, unsigned, void *const *, const char *, void (*)(void *, void *), void *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clBuildProgram");
    if (during_build) during_build();
    return next(program, n, devices, options, notify, data);
}

static void end_the_program(void) {
    fprintf(stderr, "some words\nLLVM ERROR: no space left\n");
    exit(1);
}

static void *end_from_another_thread(void *p) {
    (void)p;
    fprintf(stderr, "another thread ends the process\n");
    exit(1);
}

static void wait_for_the_end(void) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, end_from_another_thread, NULL), 0);
    for (;;) pause();
}

/* The first of two builds waits half a second for the other to begin, and ends before it. */
static void overlap(void) {
    static atomic_int count;
    const int mine = atomic_fetch_add(&count, 1);
    const double start = clt_now();
    while (mine == 0 && atomic_load(&count) < 2 && clt_now() - start < 0.5) clt_sleep(0.001);
    if (mine == 1) clt_sleep(0.2);
}

static void *open_one(void *dir) {
    const clt_device_params p = {.cache_dir = dir, .local_size = 1};
    clt_device *dev;
    if (clt_device_open(&p, &dev) == CLT_OK) clt_device_close(dev);
    return NULL;
}

/* The child of `said_by`: opens a device in an empty cache, so that probes are built, in one thread or in
 * two. */
static int probe_as(const char *how, char *dir) {
    char *argv[] = {(char *)self, NULL};
    int code;
    pthread_t thread;
    char *other = clt_path_join(dir, "other");
    if (strcmp(how, "host") != 0) clt_device_helper_main(1, argv, &code);
    during_build = !strcmp(how, "thread") ? wait_for_the_end
                   : !strcmp(how, "two")  ? overlap
                                          : end_the_program;
    if (!strcmp(how, "two")) assert_int_equal(pthread_create(&thread, NULL, open_one, other), 0);
    open_one(dir);
    if (!strcmp(how, "two")) pthread_join(thread, NULL);
    clt_free(other);
    fprintf(stderr, "stderr is back\n");
    return 0;
}

/* What a child that probes in the given way wrote to stderr. LLVM replaces the signal stack of a thread in
 * which it compiles, which AddressSanitizer does not survive if it has one there. */
static void said_by(const char *how, char said[4096]) {
    char *dir = clt_path_join(folder, how);
    char *command =
        clt_format("ASAN_OPTIONS=\"$ASAN_OPTIONS:use_sigaltstack=0\" %s probe %s %s 2>&1", self, how, dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    said[fread(said, 1, 4095, f)] = 0;
    const int status = pclose(f);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == (strcmp(how, "two") != 0));
    clt_free(command);
    clt_free(dir);
}

/* A compiler's output is dropped, but not the last line of one that ends the process. */
static void a_driver_that_ends_the_program_is_named(void **state) {
    (void)state;
    char said[4096];
    said_by("end", said);
    assert_non_null(strstr(said, "ended the program while it compiled: LLVM ERROR: no space left\n"));
    assert_null(strstr(said, "some words"));
}

static void last_message_of_another_thread_is_kept(void **state) {
    (void)state;
    char said[4096];
    said_by("thread", said);
    assert_non_null(strstr(said, "another thread ends the process\n"));
    assert_null(strstr(said, "ended the program"));
}

/* A program that embeds the library keeps its stderr. */
static void a_host_keeps_its_stderr(void **state) {
    (void)state;
    char said[4096];
    said_by("host", said);
    assert_non_null(strstr(said, "some words\nLLVM ERROR: no space left\n"));
    assert_null(strstr(said, "ended the program"));
}

static void builds_of_two_threads_give_stderr_back(void **state) {
    (void)state;
    char said[4096];
    said_by("two", said);
    assert_non_null(strstr(said, "stderr is back\n"));
}

/* --- shortages --- */

/* Replaces the driver's function: buffers number refused_from to refused_to are refused. */
static int refused_from = -1, refused_to, buffers;

void *clCreateBuffer(void *context, unsigned long flags, size_t bytes, void *host, int *error) {
    static void *(*next)(void *, unsigned long, size_t, void *, int *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clCreateBuffer");
    const int n = buffers++;
    if (refused_from < 0 || n < refused_from || n >= refused_to)
        return next(context, flags, bytes, host, error);
    *error = -6; /* CL_OUT_OF_HOST_MEMORY */
    return NULL;
}

/* A start at which memory runs out for a moment finds fewer features; the next start finds all. */
static void facts_found_while_short_are_not_kept(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    clt_device_facts seen;
    const int from[] = {0, 0, 1}, to[] = {0, 1 << 30, 2};
    bool exact = false;
    for (int i = 0; i < 3; i++) {
        char *name = clt_format("short%d", i), *dir = clt_path_join(folder, name);
        p.cache_dir = dir;
        for (int start = 0; start < 2; start++) {
            clt_device *dev;
            buffers = 0, refused_from = start == 0 ? from[i] : -1, refused_to = to[i];
            assert_int_equal(clt_device_open(&p, &dev), CLT_OK);
            seen = *clt_device_get_facts(dev);
            refused_from = -1;
            char *file = clt_format("%s.facts", clt_device_id(dev)), *path = clt_path_join(dir, file);
            assert_int_equal(clt_io_is_file(path), i == 0 || start == 1);
            if (i == 1 && start == 0) assert_false(seen.exact || seen.local_mem);
            clt_free(path);
            clt_free(file);
            clt_device_close(dev);
        }
        if (i == 0) exact = seen.exact;
        assert_int_equal(seen.exact, exact);
        assert_true(seen.local_mem > 0);
        clt_free(dir);
        clt_free(name);
    }
}

/* --- program binaries, where the driver has no cache of its own --- */

static const char *const twice = "__kernel void twice(__global uint *x) { x[get_global_id(0)] *= FACTOR; }\n";

/* Opens the device of `pattern`, builds and runs the program, and returns the counters. */
static clt_status use(const char *pattern, const char *dir, uint32_t factor, clt_device_counters *c) {
    clt_device_params p = clt_device_params_default();
    p.pattern = pattern;
    p.cache_dir = dir;
    clt_device *dev;
    clt_kernel *k;
    clt_buffer *b;
    char options[32];
    uint32_t x[4] = {1, 2, 3, 4};
    snprintf(options, sizeof options, "-DFACTOR=%uu", factor);
    CLT_TRY(clt_device_open(&p, &dev));
    CLT_TRY(clt_kernel_from_text(dev, "twice.cl", twice, "twice", options, &k));
    CLT_TRY(clt_buffer_create(dev, sizeof x, "x", &b));
    CLT_TRY(clt_buffer_write(b, 0, x, sizeof x));
    CLT_TRY(clt_launch(k, 1, (size_t[]){4}, NULL, (clt_arg[]){CLT_BUF(b)}, 1));
    CLT_TRY(clt_buffer_read(b, 0, x, sizeof x));
    clt_device_get_counters(dev, c);
    clt_buffer_destroy(b);
    clt_device_close(dev);
    for (uint32_t i = 0; i < 4; i++)
        if (x[i] != (i + 1) * factor) return CLT_FAIL;
    return CLT_OK;
}

/* A platform whose driver has no program cache; without one the test is skipped. */
static const char *caching_platform(void) {
    static char pattern[32];
    clt_device_facts *list;
    int n;
    pattern[0] = 0;
    assert_int_equal(clt_device_list(false, &list, &n), CLT_OK);
    for (int i = 0; i < n; i++)
        if (strstr(list[i].platform, "Intel"))
            snprintf(pattern, sizeof pattern, "%d:%d", list[i].platform_index, list[i].device_index);
    clt_free(list);
    if (!pattern[0]) {
        print_message("skipped: needs Intel's CPU runtime (OCL_ICD_VENDORS)\n");
        skip();
    }
    return pattern;
}

static void warm_start_builds_nothing(void **state) {
    (void)state;
    const char *pattern = caching_platform();
    char *dir = clt_path_join(folder, "programs");
    clt_device_counters c;
    assert_int_equal(use(pattern, dir, 2, &c), CLT_OK);
    assert_int_equal(c.programs_built, 1);
    assert_int_equal(c.programs_loaded, 0);
    assert_int_equal(use(pattern, dir, 2, &c), CLT_OK);
    assert_int_equal(c.programs_built, 0);
    assert_int_equal(c.programs_loaded, 1);
    assert_int_equal(use(pattern, dir, 3, &c), CLT_OK); /* other options, another program */
    assert_int_equal(c.programs_built, 1);
    clt_strv names = {0};
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    int entries = 0;
    for (size_t i = 0; i < names.n; i++) {
        if (!strstr(names.v[i], ".bin")) continue;
        char *path = clt_path_join(dir, names.v[i]);
        damage(path, 2000);
        clt_free(path);
        entries++;
    }
    assert_int_equal(entries, 2);
    clt_strv_free(&names);
    assert_int_equal(use(pattern, dir, 2, &c), CLT_OK);
    assert_int_equal(c.programs_built, 1);
    assert_int_equal(c.programs_loaded, 0);
    assert_int_equal(use(pattern, dir, 2, &c), CLT_OK);
    assert_int_equal(c.programs_loaded, 1);
    clt_free(dir);
}

/* An entry that is whole but that the driver refuses is dropped and built again. */
static void strange_binary_is_rebuilt(void **state) {
    (void)state;
    const char *pattern = caching_platform();
    char *dir = clt_path_join(folder, "programs");
    clt_device_counters c;
    assert_int_equal(use(pattern, dir, 5, &c), CLT_OK);
    clt_strv names = {0};
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++)
        if (strstr(names.v[i], ".bin")) clt_cache_put(dir, names.v[i], "not a program", 13);
    clt_strv_free(&names);
    assert_int_equal(use(pattern, dir, 5, &c), CLT_OK);
    assert_int_equal(c.programs_built, 1);
    assert_int_equal(use(pattern, dir, 5, &c), CLT_OK);
    assert_int_equal(c.programs_loaded, 1);
    clt_free(dir);
}

/* Processes that start together: one builds, the others load its binary. */
static void one_process_builds(void **state) {
    (void)state;
    const char *pattern = caching_platform();
    enum { PROCESSES = 3 };
    char *dir = clt_path_join(folder, "together");
    FILE *f[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        char *command = clt_format("%s use %s %s", self, pattern, dir);
        f[i] = popen(command, "r");
        assert_non_null(f[i]);
        clt_free(command);
    }
    int built = 0, loaded = 0;
    for (int i = 0; i < PROCESSES; i++) {
        int b = -1, l = -1;
        assert_int_equal(fscanf(f[i], "%d %d", &b, &l), 2);
        assert_int_equal(pclose(f[i]), 0);
        built += b;
        loaded += l;
    }
    assert_int_equal(built, 1);
    assert_int_equal(loaded, PROCESSES - 1);
    clt_free(dir);
}

/* A kernel may use built-in functions that include/clt_builtins.clh does not declare; later ones may, too. */
static void any_builtin_function_builds(void **state) {
    (void)state;
    const char *text =
        "__kernel void bits(__global uint *x) { x[get_global_id(0)] = BITS(x[get_global_id(0)]); }";
    const char *bits[] = {"-DBITS(v)=min(v,7u)", "-DBITS(v)=(popcount(v)+hadd(v,v))", "-DBITS(v)=max(v,9u)"};
    const uint32_t want[] = {7, 259 + 3, 259 + 3};
    clt_device *d;
    clt_device_params p = {.pattern = "portable", .cache_dir = folder, .local_size = 1};
    assert_int_equal(clt_device_open(&p, &d), CLT_OK);
    for (int i = 0; i < 3; i++) {
        uint32_t x = i < 2 ? 259 : 262;
        clt_buffer *b;
        clt_kernel *k;
        assert_int_equal(clt_buffer_create(d, sizeof x, "x", &b), CLT_OK);
        assert_int_equal(clt_buffer_write(b, 0, &x, sizeof x), CLT_OK);
        assert_int_equal(clt_kernel_from_text(d, "bits.cl", text, "bits", bits[i], &k), CLT_OK);
        assert_int_equal(clt_launch(k, 1, (size_t[]){1}, NULL, (clt_arg[]){CLT_BUF(b)}, 1), CLT_OK);
        assert_int_equal(clt_buffer_read(b, 0, &x, sizeof x), CLT_OK);
        assert_int_equal(x, want[i]);
        clt_buffer_destroy(b);
    }
    clt_device_close(d);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 4 && !strcmp(argv[1], "probe")) return probe_as(argv[2], argv[3]);
    if (argc == 4) { /* the child of one_process_builds: "use", pattern, folder */
        clt_device_counters c;
        clt_status st = use(argv[2], argv[3], 9, &c);
        if (st == CLT_OK) printf("%d %d\n", (int)c.programs_built, (int)c.programs_loaded);
        return clt_status_exit_code(st);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_entries_are_dropped),
        cmocka_unit_test(unusable_folder_is_quiet),
        cmocka_unit_test(locks_exclude_and_time_out),
        cmocka_unit_test(facts_are_kept),
        cmocka_unit_test(facts_found_while_short_are_not_kept),
        cmocka_unit_test(a_driver_that_ends_the_program_is_named),
        cmocka_unit_test(last_message_of_another_thread_is_kept),
        cmocka_unit_test(a_host_keeps_its_stderr),
        cmocka_unit_test(builds_of_two_threads_give_stderr_back),
        cmocka_unit_test(warm_start_builds_nothing),
        cmocka_unit_test(strange_binary_is_rebuilt),
        cmocka_unit_test(one_process_builds),
        cmocka_unit_test(any_builtin_function_builds),
    };
    return cmocka_run_group_tests_name("device cache", tests, set_up, tear_down);
}
