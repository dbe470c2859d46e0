/* Storage behind clt_io: which component serves a path or URL, what is refused and how, paths of URLs, and
 * that code asks for capabilities: the same calls work on a file system and on storage without folders and
 * renames. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io_probe.h"
#include "test/memfs.h"

static char *scratch(void) {
    char path[] = "/tmp/clt_io_XXXXXX";
    assert_non_null(mkdtemp(path));
    return clt_strdup(path);
}

/* --- paths --- */

static void test_paths(void **state) {
    (void)state;
    static const struct {
        const char *path, *dir, *base;
        size_t scheme;
    } cases[] = {
        {"a", ".", "a", 0},
        {"/a", "/", "a", 0},
        {"/a/b", "/a", "b", 0},
        {"a/b/", "a/b", "", 0},
        {"s3://bucket", "s3://bucket", "", 5},
        {"s3://bucket/", "s3://bucket", "", 5},
        {"s3://bucket/a/b", "s3://bucket/a", "b", 5},
        {"file:///", "file:///", "", 7},
        {"file:///a", "file:///", "a", 7},
        {"x-y+z.1://h/a", "x-y+z.1://h", "a", 10},
        {"1s://a", "1s:/", "a", 0}, /* a scheme begins with a letter */
        {"C:/a", "C:", "a", 0},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        char *dir = clt_path_dir(cases[i].path);
        assert_string_equal(dir, cases[i].dir);
        assert_string_equal(clt_path_base(cases[i].path), cases[i].base);
        assert_int_equal(clt_path_scheme(cases[i].path), cases[i].scheme);
        clt_free(dir);
    }
    static const char *const joins[][3] = {{"a", "b", "a/b"},
                                           {"/", "b", "/b"},
                                           {"", "b", "b"},
                                           {"a", "/b", "/b"},
                                           {"s3://b", "c/d", "s3://b/c/d"},
                                           {"file:///", "a", "file:///a"},
                                           {"a", "s3://b/c", "s3://b/c"}};
    for (size_t i = 0; i < CLT_COUNT_OF(joins); i++) {
        char *joined = clt_path_join(joins[i][0], joins[i][1]);
        assert_string_equal(joined, joins[i][2]);
        clt_free(joined);
    }
    static const char *const unsafe[] = {
        "", "/a", "a//b", "./a", "a/..", "s3://bucket/key", "file:///etc/passwd"};
    for (size_t i = 0; i < CLT_COUNT_OF(unsafe); i++) assert_false(clt_path_is_safe(unsafe[i]));
    assert_true(clt_path_is_safe("a/b.c"));
}

/* --- which component --- */

static void refused(const char *path, const char *says) {
    clt_file *f;
    char *data, *why = clt_io_unsupported(path);
    clt_strv names = {0};
    assert_non_null(why);
    if (!strstr(why, says)) fail_msg("'%s' does not say '%s'", why, says);
    clt_free(why);
    assert_int_equal(clt_file_open(path, CLT_IO_READ, &f), CLT_BAD_CONFIG);
    if (!strstr(clt_last_error(), says)) fail_msg("'%s' does not say '%s'", clt_last_error(), says);
    assert_int_equal(clt_io_mkdirs(path), CLT_BAD_CONFIG);
    assert_int_equal(clt_io_list(path, &names), CLT_BAD_CONFIG);
    assert_int_equal(clt_io_read_all(path, 100, &data, NULL), CLT_BAD_CONFIG);
    assert_int_equal(clt_io_write_atomic(path, "x", 1), CLT_BAD_CONFIG);
    assert_int_equal(clt_io_try_unlink(path), EPROTONOSUPPORT);
    assert_false(clt_io_is_file(path) || clt_io_is_dir(path) || clt_io_can(path, 0));
    assert_int_equal(clt_status_exit_code(CLT_BAD_CONFIG), 78);
}

static void test_unknown_schemes(void **state) {
    (void)state;
    memfs *fs = mem_mount("mem");
    clt_error_quiet(true);
    refused("s3://bucket/key", "built without network access (CURL=0)"); /* no component is registered */
    refused("gs://bucket/key", "S3-compatible endpoint");
    refused("gopher://host/key", "no storage serves gopher://; known are plain paths and file:///, mem://");
    refused("file://host/key", "file:///FOLDER/NAME");
    assert_int_equal(clt_io_register("not a scheme", mem_component(fs)), CLT_FAIL);
    assert_int_equal(clt_io_register("mem://a/b", mem_component(fs)), CLT_FAIL);
    assert_int_equal(clt_io_register("", mem_component(fs)), CLT_FAIL);
    clt_error_quiet(false);
    clt_io_unregister("mem");
    mem_destroy(fs);
}

static void expect_text(const char *path, const char *want) {
    char *text;
    assert_int_equal(clt_io_read_all(path, 100, &text, NULL), CLT_OK);
    assert_string_equal(text, want);
    clt_free(text);
}

/* A pipe stays a pipe, and its reader gets the contents; a link to it, too. */
static void test_no_file(void **state) {
    (void)state;
    char *dir = scratch(), *pipe = clt_path_join(dir, "pipe"), *link = clt_path_join(dir, "link"),
         got[4] = "";
    clt_io_info info;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("pipe", link), 0);
    const int fd = open(pipe, O_RDWR | O_CLOEXEC);
    assert_int_equal(clt_io_write_atomic(pipe, "ab", 2), CLT_OK);
    assert_int_equal(clt_io_write_atomic(link, "c", 1), CLT_OK);
    assert_int_equal(read(fd, got, 3), 3);
    assert_string_equal(got, "abc");
    assert_int_equal(clt_io_stat(link, &info), CLT_OK);
    assert_int_equal(info.kind, CLT_IO_OTHER);
    close(fd);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(dir), clt_free(pipe), clt_free(link);
}

/* A plain path and its file:// URL are one file; several storages of one kind do not know each other. */
static void test_components(void **state) {
    (void)state;
    char *dir = scratch(), *plain = clt_path_join(dir, "x/y"), *url = clt_format("FILE://%s", plain);
    memfs *all = mem_mount("mem"), *a = mem_mount("mem://a");
    char *folder = clt_path_dir(url);
    assert_int_equal(clt_io_mkdirs(folder), CLT_OK);
    assert_int_equal(clt_io_write_atomic(url, "disk", 4), CLT_OK);
    expect_text(plain, "disk");
    assert_int_equal(clt_io_write_atomic("mem:///x", "all", 3), CLT_OK);
    assert_int_equal(clt_io_write_atomic("mem://b/y", "b", 1), CLT_OK); /* the scheme's */
    assert_int_equal(clt_io_write_atomic("mem://a/x", "a", 1), CLT_OK); /* the authority's own */
    expect_text("mem:///x", "all");
    expect_text("mem://a/x", "a");
    assert_false(clt_io_is_file("mem://a/y"));
    assert_int_equal(clt_io_try_rename("mem:///x", "mem://a/z"), EXDEV);
    clt_io_unregister("mem");
    assert_int_equal(clt_io_try_unlink("mem:///x"), EPROTONOSUPPORT);
    expect_text("mem://a/x", "a");
    clt_io_unregister("mem://a");
    mem_destroy(all);
    mem_destroy(a);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(folder);
    clt_free(url);
    clt_free(plain);
    clt_free(dir);
}

/* A file of a run is not inherited by what the process starts, and lines of several writers stay whole. */
static void *append_lines(void *arg) {
    char line[64];
    for (int i = 0; i < 200; i++) {
        memset(line, 'a' + i % 26, sizeof line);
        line[sizeof line - 1] = '\n';
        if (clt_file_try_append(arg, line, sizeof line) != 0) return arg;
    }
    return NULL;
}

static void test_log_file(void **state) {
    (void)state;
    enum { WRITERS = 4, LINE = 64 };
    char *dir = scratch(), *path = clt_path_join(dir, "log.txt"), *text;
    clt_file *f[WRITERS];
    pthread_t thread[WRITERS];
    struct stat want, is;
    size_t n;
    for (int i = 0; i < WRITERS; i++) assert_int_equal(clt_file_open(path, CLT_IO_APPEND, &f[i]), CLT_OK);
    assert_int_equal(stat(path, &want), 0);
    for (int fd = 3, found = 0; found < WRITERS; fd++) {
        if (fstat(fd, &is) != 0 || is.st_ino != want.st_ino) continue;
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        found++;
    }
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, append_lines, f[i]), 0);
    for (int i = 0; i < WRITERS; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
        clt_file_close(f[i]);
    }
    assert_int_equal(clt_io_read_all(path, 1 << 20, &text, &n), CLT_OK);
    assert_int_equal(n, WRITERS * 200 * LINE);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(text[i], i % LINE == LINE - 1 ? '\n' : text[i / LINE * LINE]);
    clt_free(text);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
    clt_free(dir);
}

/* --- capabilities --- */

static void test_create_new(void **state) {
    (void)state;
    char *dir = scratch(), *path = clt_path_join(dir, "x");
    memfs *fs = mem_mount("mem");
    const char *const places[] = {path, "mem:///x"};
    clt_file *f;
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(places); i++) {
        assert_int_equal(clt_file_open(places[i], CLT_IO_CREATE_NEW, &f), CLT_OK);
        assert_int_equal(clt_file_pwrite(f, "1", 1, 0), CLT_OK);
        clt_file_close(f);
        assert_int_equal(clt_file_open(places[i], CLT_IO_CREATE_NEW, &f), CLT_IO);
        expect_text(places[i], "1");
    }
    mem_component(fs)->caps &= ~(unsigned)CLT_IO_CAN_CREATE_NEW;
    assert_int_equal(clt_file_open("mem:///y", CLT_IO_CREATE_NEW, &f), CLT_BAD_CONFIG);
    clt_error_quiet(false);
    clt_io_unregister("mem");
    mem_destroy(fs);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
    clt_free(dir);
}

/* Storage as an object store has it: no folders, no renames, no appending; a file appears when it is closed.
 */
static void test_without_folders(void **state) {
    (void)state;
    memfs *fs = mem_mount("mem");
    clt_file *f;
    clt_strv names = {0};
    mem_component(fs)->caps = CLT_IO_CAN_CREATE_NEW | CLT_IO_CAN_READ_RANGES | CLT_IO_APPEARS_WHOLE;
    assert_int_equal(clt_io_mkdirs("mem:///a/b"), CLT_OK);
    assert_false(clt_io_is_dir("mem:///a/b")); /* nothing is below it */
    assert_int_equal(clt_io_write_atomic("mem:///a/b/x", "1", 1), CLT_OK);
    assert_int_equal(clt_io_write_atomic("mem:///a/b/x", "2", 1), CLT_OK);
    assert_true(clt_io_is_dir("mem:///a/b"));
    expect_text("mem:///a/b/x", "2");
    assert_int_equal(clt_io_list("mem:///a/b", &names), CLT_OK);
    assert_int_equal(names.n, 1); /* no temporary name */
    clt_strv_free(&names);
    clt_error_quiet(true);
    assert_int_equal(clt_file_open("mem:///a/log", CLT_IO_APPEND, &f), CLT_BAD_CONFIG);
    assert_int_equal(clt_io_rename("mem:///a/b/x", "mem:///a/b/y"), CLT_IO);
    assert_int_equal(clt_io_try_exchange("mem:///a/b/x", "mem:///a/b/y"), ENOTSUP);
    assert_int_equal(clt_io_require("mem:///a", CLT_IO_CAN_READ_RANGES, "reading"), CLT_OK);
    assert_int_equal(clt_io_require("mem:///a", CLT_IO_CAN_READ_RANGES | CLT_IO_CAN_RENAME, "saving"),
                     CLT_BAD_CONFIG);
    clt_error_quiet(false);
    assert_string_equal(clt_last_error(),
                        "mem:///a: saving needs storage that can rename; storage 'memory' cannot");
    assert_int_equal(clt_io_sync_dir("mem:///a"), CLT_OK);
    assert_int_equal(clt_io_remove_tree("mem:///a"), CLT_OK);
    assert_false(clt_io_is_dir("mem:///a"));
    clt_io_unregister("mem");
    mem_destroy(fs);
}

/* --- probes --- */

/* Two probes count and fail apart from each other, and one may stand before another. */
static void test_probes(void **state) {
    (void)state;
    memfs *fs = mem_create();
    clt_io_probe *a = clt_io_probe_create(mem_component(fs)),
                 *b = clt_io_probe_create(clt_io_probe_component(a));
    assert_int_equal(clt_io_register("a", clt_io_probe_component(a)), CLT_OK);
    assert_int_equal(clt_io_register("b", clt_io_probe_component(b)), CLT_OK);
    clt_io_fault_arm(b, &(clt_io_fault){CLT_IO_PWRITE, "x", 1, 1, CLT_IO_FAIL, ENOSPC});
    clt_io_fault_arm(a, &(clt_io_fault){CLT_IO_PWRITE, "", 2, 2, CLT_IO_FAIL, EIO});
    assert_int_equal(clt_io_write_atomic("a:///y", "1", 1), CLT_OK);
    clt_error_quiet(true);
    clt_file *f;
    assert_int_equal(clt_file_open("b:///x", CLT_IO_CREATE, &f), CLT_OK);
    assert_int_equal(clt_file_pwrite(f, "1", 1, 0), CLT_IO); /* b's fault: a never sees the write */
    assert_non_null(strstr(clt_last_error(), strerror(ENOSPC)));
    assert_int_equal(clt_io_fault_seen(a), 1);
    assert_int_equal(clt_file_pwrite(f, "1", 1, 0), CLT_IO); /* a's */
    assert_non_null(strstr(clt_last_error(), strerror(EIO)));
    clt_error_quiet(false);
    assert_int_equal(clt_file_pwrite(f, "1", 1, 0), CLT_OK);
    clt_file_close(f);
    expect_text("a:///x", "1");
    clt_io_unregister("a");
    clt_io_unregister("b");
    clt_io_probe_destroy(b);
    clt_io_probe_destroy(a);
    mem_destroy(fs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),           cmocka_unit_test(test_unknown_schemes),
        cmocka_unit_test(test_no_file),         cmocka_unit_test(test_components),
        cmocka_unit_test(test_log_file),        cmocka_unit_test(test_create_new),
        cmocka_unit_test(test_without_folders), cmocka_unit_test(test_probes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
