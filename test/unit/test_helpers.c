/* Helper processes: the programs that they build are used, and where they fail the process builds them
 * itself. This program is its own helper; a file in the cache folder says how the helper fails. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_cache.h"
#include "runtime/device/clt_device.h"

static char folder[64];
static const char *const add_n = "__kernel void add_n(__global uint *x) { x[get_global_id(0)] += N; }\n";
enum { PROGRAMS = 3 };

typedef struct {
    const char *cache;  /* below the test's folder, or an absolute path */
    const char *helper; /* NULL: a good one */
    const char *count;  /* $CLTRAIN_BUILD_HELPERS */
    double timeout;
    int turn;
    double wait; /* seconds between rehearsal and work */
} how;

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_helpers.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(folder) == CLT_OK ? 0 : -1;
}

/* A device whose driver has no program cache (*own), otherwise any: then the driver caches what a helper
 * built, and this process builds it again from there. */
static const char *pattern(bool *own) {
    static char found[32];
    clt_device_facts *list;
    int n;
    assert_int_equal(clt_device_list(false, &list, &n), CLT_OK);
    snprintf(found, sizeof found, "%d:%d", list[0].platform_index, list[0].device_index);
    *own = false;
    for (int i = 0; i < n; i++)
        if (strstr(list[i].platform, "Intel") || strstr(list[i].platform, "NVIDIA")) {
            snprintf(found, sizeof found, "%d:%d", list[i].platform_index, list[i].device_index);
            *own = true;
        }
    clt_free(list);
    return found;
}

/* Program i of the three adds i + 1; another `turn` is another program. */
static clt_status get(clt_device *dev, int turn, int i, clt_kernel **k) {
    char options[48];
    snprintf(options, sizeof options, "-DN=%du -DTURN=%d", i + 1, turn);
    return clt_kernel_from_text(dev, "add_n.cl", add_n, "add_n", options, k);
}

static clt_status run_all(clt_device *dev, int turn, clt_buffer *b) {
    for (int i = 0; i < PROGRAMS; i++) {
        clt_kernel *k;
        CLT_TRY(get(dev, turn, i, &k));
        CLT_TRY(clt_launch(k, 1, (size_t[]){1}, NULL, (clt_arg[]){CLT_BUF(b)}, 1));
    }
    return CLT_OK;
}

/* Helpers have the environment of this program's start, so a file says how they fail. */
static void say_how(const char *text) {
    char *dir = clt_path_join(folder, "good"), *path = clt_path_join(dir, "how");
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_true(clt_cache_write_file(path, text, strlen(text)));
    clt_free(path);
    clt_free(dir);
}

/* What the file says, if argv is that of a helper; otherwise "". */
static const char *told(int argc, char **argv) {
    static char text[32];
    char path[256];
    if (argc != 7 || strcmp(argv[1], "--build-helper") != 0) return "";
    snprintf(path, sizeof path, "%s/how", argv[6]);
    FILE *f = fopen(path, "r");
    if (f && !fgets(text, sizeof text, f)) text[0] = 0;
    if (f) fclose(f);
    return text;
}

static double latest; /* seconds of the last `use` without its wait: how slow and busy this machine is */

/* Rehearses and runs the three programs on a word that is 10. */
static void use(const how *h, clt_device_counters *c, bool *own, bool *rehearsed) {
    const double start = clt_now();
    char *cache = *h->cache == '/' ? clt_strdup(h->cache) : clt_path_join(folder, h->cache);
    clt_device_params p = {
        .pattern = pattern(own), .local_size = 1, .cache_dir = cache, .timeout = h->timeout, .helpers = true};
    clt_device *dev;
    clt_buffer *b;
    uint32_t x = 10;
    setenv("CLTRAIN_BUILD_HELPERS", h->count, 1);
    if (*h->cache != '/') say_how(h->helper ? h->helper : "");
    assert_int_equal(clt_device_open(&p, &dev), CLT_OK);
    assert_int_equal(clt_buffer_create(dev, sizeof x, "x", &b), CLT_OK);
    assert_int_equal(clt_buffer_write(b, 0, &x, sizeof x), CLT_OK);
    *rehearsed = clt_device_rehearse(dev);
    assert_int_equal(clt_device_rehearses(dev), *rehearsed);
    if (*rehearsed) {
        assert_int_equal(run_all(dev, h->turn, b), CLT_OK);
        assert_int_equal(clt_buffer_read(b, 0, &x, sizeof x), CLT_OK);
        assert_int_equal(x, 0); /* a read returns zeros */
        clt_device_get_counters(dev, c);
        assert_int_equal(c->launches, 0);
        assert_int_equal(c->programs_built + c->programs_loaded, 0);
        clt_device_rehearsed(dev);
        clt_sleep(h->wait); /* time for the helpers: this process builds what none has begun with */
        assert_int_equal(clt_buffer_read(b, 0, &x, sizeof x), CLT_OK);
        assert_int_equal(x, 10); /* nothing was launched */
    }
    assert_int_equal(run_all(dev, h->turn, b), CLT_OK);
    assert_int_equal(clt_buffer_read(b, 0, &x, sizeof x), CLT_OK);
    assert_int_equal(x, 10 + 1 + 2 + 3);
    clt_device_get_counters(dev, c);
    assert_int_equal(c->programs_built + c->programs_loaded, PROGRAMS);
    clt_buffer_destroy(b);
    clt_device_close(dev);
    clt_free(cache);
    latest = clt_now() - start - h->wait;
}

/* Waits until helpers have built some programs: on a busy machine they may need longer, with other programs.
 * Returns the last turn; *own: whether a driver returns binaries. */
static int helped(const char *cache, bool *own) {
    static int turn = 100;
    double wait = 0.5;
    clt_device_counters c;
    bool rehearsed;
    for (;; wait *= 4) {
        use(&(how){.cache = cache, .count = "2", .turn = ++turn, .wait = wait}, &c, own, &rehearsed);
        assert_true(rehearsed);
        if (!*own || c.programs_loaded > 0) return turn;
        if (wait > 30) fail_msg("no helper built a program in %.0f s", wait);
    }
}

static void helpers_build_what_was_rehearsed(void **state) {
    (void)state;
    clt_device_counters c;
    bool own, rehearsed;
    const int turn = helped("good", &own);
    if (!own) print_message("no driver here returns binaries: this process builds from the driver's cache\n");
    use(&(how){.cache = "good", .count = "2", .turn = turn, .wait = 0.5}, &c, &own, &rehearsed);
    if (own) assert_int_equal(c.programs_built, 0); /* from the cache, whoever wrote it */
}

static void a_folder_that_cannot_be_written_does_not_matter(void **state) {
    (void)state;
    bool own;
    helped("/proc/none", &own);
}

static void none_are_wanted(void **state) {
    (void)state;
    clt_device_counters c;
    bool own, rehearsed;
    use(&(how){.cache = "good", .count = "0", .turn = -1}, &c, &own, &rehearsed);
    assert_false(rehearsed);
    assert_int_equal(c.programs_built, PROGRAMS);
}

/* Helpers that die at once, die during a build, hang, send an invalid answer, say that nothing builds, and
 * send an invalid binary. */
static void bad_helpers_cost_only_time(void **state) {
    (void)state;
    static const char *const bad[] = {"gone", "dies", "hangs", "babbles", "refuses", "lies"};
    const double timeout = CLT_MAX(1.0, 4 * latest); /* also the device's, which must not look hung */
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_device_counters c;
        bool own, rehearsed;
        use(&(how){.cache = "good",
                   .helper = bad[i],
                   .count = "2",
                   .timeout = timeout,
                   .turn = (int)i + 1,
                   .wait = 0.2},
            &c, &own, &rehearsed);
        assert_true(rehearsed);
        assert_int_equal(c.programs_built, PROGRAMS);
    }
}

/* A device with good helpers, in a rehearsal. */
static clt_device *open_rehearsing(void) {
    bool own;
    char *cache = clt_path_join(folder, "good");
    clt_device_params p = {.pattern = pattern(&own), .local_size = 1, .cache_dir = cache, .helpers = true};
    clt_device *dev;
    setenv("CLTRAIN_BUILD_HELPERS", "2", 1);
    say_how("");
    assert_int_equal(clt_device_open(&p, &dev), CLT_OK);
    assert_true(clt_device_rehearse(dev));
    clt_free(cache);
    return dev;
}

static void a_program_that_does_not_build_says_why(void **state) {
    (void)state;
    clt_device *dev = open_rehearsing();
    clt_kernel *k;
    assert_int_equal(clt_kernel_from_text(dev, "wrong.cl", "__kernel void wrong(", "wrong", "", &k), CLT_OK);
    assert_int_equal(clt_kernel_from_text(dev, "wrong.cl", "__kernel void worse(", "worse", "", &k), CLT_OK);
    clt_device_rehearsed(dev);
    assert_int_equal(clt_kernel_from_text(dev, "wrong.cl", "__kernel void wrong(", "wrong", "", &k),
                     CLT_FAIL);
    assert_non_null(strstr(clt_last_error(), "wrong.cl does not build"));
    clt_device_close(dev);
}

/* A failure is printed once: by the work, not by its rehearsal. */
static void a_rehearsal_prints_no_errors(void **state) {
    (void)state;
    clt_device *dev = open_rehearsing();
    clt_kernel *k;
    char path[] = "/tmp/clt_helpers_XXXXXX";
    const int fd = mkstemp(path);
    clt_file *printed = NULL;
    assert_true(fd >= 0);
    assert_int_equal(clt_file_open(path, CLT_IO_APPEND, &printed), CLT_OK);
    clt_log_set_file(printed);
    assert_int_equal(clt_kernel_get(dev, "no/such.cl", "none", "", &k), CLT_FAIL);
    assert_non_null(strstr(clt_last_error(), "kernel file no/such.cl does not exist"));
    assert_int_equal(lseek(fd, 0, SEEK_END), 0);
    clt_device_rehearsed(dev);
    assert_int_equal(clt_kernel_get(dev, "no/such.cl", "none", "", &k), CLT_FAIL);
    clt_log_set_file(NULL);
    char text[128] = "";
    assert_true(pread(fd, text, sizeof text - 1, 0) > 0);
    assert_string_equal(text, "error: kernel file no/such.cl does not exist\n");
    assert_int_equal(clt_file_close(printed), CLT_OK);
    close(fd);
    unlink(path);
    clt_device_close(dev);
}

/* A helper that fails in this way. What it receives is read and dropped. */
static int misbehave(const char *how) {
    char sink[4096];
    const uint64_t answer[] = {1, 13}, no[] = {0, 0}, babble[] = {1, UINT64_MAX};
    if (!strcmp(how, "gone")) return 1;
    while (recv(STDIN_FILENO, sink, sizeof sink, 0) > 0) {
        if (!strcmp(how, "dies")) raise(SIGKILL);
        if (!strcmp(how, "hangs")) sleep(3600);
        if (!strcmp(how, "babbles")) send(STDIN_FILENO, babble, sizeof babble, MSG_NOSIGNAL);
        if (!strcmp(how, "refuses")) send(STDIN_FILENO, no, sizeof no, MSG_NOSIGNAL);
        if (strcmp(how, "lies") != 0) continue;
        send(STDIN_FILENO, answer, sizeof answer, MSG_NOSIGNAL);
        send(STDIN_FILENO, "not a program", 13, MSG_NOSIGNAL);
    }
    return 0;
}

int main(int argc, char **argv) {
    int code;
    const char *how = told(argc, argv);
    if (*how) return misbehave(how);
    if (clt_device_helper_main(argc, argv, &code)) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(helpers_build_what_was_rehearsed),
        cmocka_unit_test(a_folder_that_cannot_be_written_does_not_matter),
        cmocka_unit_test(none_are_wanted),
        cmocka_unit_test(bad_helpers_cost_only_time),
        cmocka_unit_test(a_program_that_does_not_build_says_why),
        cmocka_unit_test(a_rehearsal_prints_no_errors),
    };
    return cmocka_run_group_tests_name("helpers", tests, set_up, tear_down);
}
