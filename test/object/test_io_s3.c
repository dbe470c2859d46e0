/* clt_io on a real object store: files, names, versions, locks, unfinished uploads. Needs AWS_ENDPOINT_URL,
 * credentials and TEST_BUCKET in the environment (test/object/io_s3.sh).
 *   test_io_s3                runs the tests
 *   test_io_s3 copy FROM TO   copies a file; either may be s3://
 *   test_io_s3 hold LOCK      waits for a lock and keeps it until it is killed; prints whether it is held, at
 * every change */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"
#include "runtime/object/clt_object.h"
#include "runtime/object/clt_s3.h"

static char *root;

static char *at(const char *name) {
    return clt_path_join(root, name);
}

/* The same bytes for the same seed. */
static unsigned char *noise(size_t n, uint64_t seed) {
    unsigned char *p = malloc(n + 8);
    assert_non_null(p);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = seed + i;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        memcpy(p + i, &x, 8);
    }
    return p;
}

static void expect_text(const char *path, const char *want) {
    char *text;
    size_t n;
    assert_int_equal(clt_io_read_all(path, 1 << 20, &text, &n), CLT_OK);
    assert_int_equal(n, strlen(want));
    assert_string_equal(text, want);
    clt_free(text);
}

static uint64_t requests_since(uint64_t *before) {
    uint64_t now = clt_object_counted().requests, n = now - *before;
    *before = now;
    return n;
}

/* --- small files and names --- */

static void test_small_files(void **state) {
    (void)state;
    char *a = at("dir/a.json"), *empty = at("dir/empty"), *dir = at("dir"),
         *odd = at("dir/a b+c%&=?#\xc3\xa4~'()*.bin");
    clt_io_info info;
    clt_strv names = {0};
    uint64_t count = clt_object_counted().requests;
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_int_equal(requests_since(&count), 0);
    assert_int_equal(clt_io_write_atomic(a, "one", 3), CLT_OK);
    assert_int_equal(requests_since(&count), 1);
    expect_text(a, "one");
    assert_int_equal(requests_since(&count), 1);
    assert_int_equal(clt_io_write_atomic(a, "two", 3), CLT_OK);
    assert_int_equal(clt_io_write_atomic(empty, "", 0), CLT_OK);
    assert_int_equal(clt_io_write_atomic(odd, "odd", 3), CLT_OK);
    expect_text(a, "two");
    expect_text(empty, "");
    expect_text(odd, "odd");
    assert_int_equal(clt_io_stat(a, &info), CLT_OK);
    assert_int_equal(info.kind, CLT_IO_FILE);
    assert_int_equal(info.bytes, 3);
    assert_true(clt_io_is_dir(dir) && clt_io_is_dir(root) && !clt_io_is_file(dir) && !clt_io_is_dir(a));
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    assert_int_equal(names.n, 3);
    assert_string_equal(names.v[0], clt_path_base(odd));
    assert_string_equal(names.v[1], "a.json");
    assert_string_equal(names.v[2], "empty");
    clt_strv_free(&names);
    assert_int_equal(clt_io_list(root, &names), CLT_OK);
    assert_int_equal(names.n, 1);
    assert_string_equal(names.v[0], "dir");
    clt_strv_free(&names);
    assert_int_equal(clt_io_unlink(a), CLT_OK);
    assert_int_equal(clt_io_try_unlink(a), ENOENT);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    assert_false(clt_io_is_dir(dir));
    assert_int_equal(clt_io_list(dir, &names), CLT_OK);
    assert_int_equal(names.n, 0);
    clt_free(a);
    clt_free(empty);
    clt_free(dir);
    clt_free(odd);
}

static void says(const char *text) {
    if (!strstr(clt_last_error(), text)) fail_msg("'%s' does not say '%s'", clt_last_error(), text);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"a/../b", "a//b", "./a", "a\nb", "a\x7f"};
    clt_file *f;
    char *absent = at("absent"), *text, *long_name = clt_format("%s/%01100d", root, 0);
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        char *path = at(bad[i]);
        assert_int_equal(clt_io_write_atomic(path, "x", 1), CLT_IO);
        assert_int_equal(clt_io_try_unlink(path), EINVAL);
        clt_free(path);
    }
    assert_int_equal(clt_io_try_unlink(long_name), ENAMETOOLONG);
    assert_int_equal(clt_io_read_all(absent, 100, &text, NULL), CLT_IO);
    says("404 NoSuchKey");
    says(absent);
    assert_int_equal(clt_file_open(root, CLT_IO_READ, &f), CLT_IO);
    assert_int_equal(clt_file_open("s3://no-such-bucket-of-ours/a", CLT_IO_READ, &f), CLT_IO);
    says("there is no bucket no-such-bucket-of-ours");
    assert_int_equal(clt_file_open(absent, CLT_IO_APPEND, &f), CLT_BAD_CONFIG);
    assert_int_equal(clt_io_try_rename(absent, root), ENOTSUP);
    clt_error_quiet(false);
    clt_free(absent);
    clt_free(long_name);
}

/* --- large files --- */

/* Writes in pieces of uneven sizes. */
static clt_status write_pieces(clt_file *f, const unsigned char *p, size_t n) {
    size_t piece = 1000003;
    for (size_t i = 0; i < n; i += piece) CLT_TRY(clt_file_pwrite(f, p + i, CLT_MIN(piece, n - i), i));
    return CLT_OK;
}

static void check_reads(const char *path, const unsigned char *p, size_t n) {
    clt_file *f;
    uint64_t size;
    unsigned char *got = malloc(n);
    assert_int_equal(clt_file_open(path, CLT_IO_READ, &f), CLT_OK);
    assert_int_equal(clt_file_size(f, &size), CLT_OK);
    assert_int_equal(size, n);
    assert_int_equal(clt_file_pread(f, got, n, 0), CLT_OK);
    assert_memory_equal(got, p, n);
    uint64_t count = clt_object_counted().requests;
    for (size_t i = 0; i < 100; i++) { /* consecutive small reads */
        assert_int_equal(clt_file_pread(f, got, 5000, 5000000 + i * 5000), CLT_OK);
        assert_memory_equal(got, p + 5000000 + i * 5000, 5000);
    }
    assert_true(requests_since(&count) <= 3);
    for (size_t i = 0; i < 10; i++) {
        size_t from = i * 2654435761u % (n - 70000);
        assert_int_equal(clt_file_pread(f, got, 70000, from), CLT_OK);
        assert_memory_equal(got, p + from, 70000);
    }
    clt_error_quiet(true);
    assert_int_equal(clt_file_pread(f, got, 2, n - 1), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_int_equal(clt_file_close(f), CLT_OK);
    free(got);
}

static void test_large_file(void **state) {
    (void)state;
    const size_t sizes[] = {16 << 20, (16 << 20) + 1, 50000017};
    char *path = at("large/x");
    for (size_t i = 0; i < CLT_COUNT_OF(sizes); i++) {
        unsigned char *p = noise(sizes[i], i);
        clt_file *f;
        assert_int_equal(clt_file_open(path, CLT_IO_CREATE, &f), CLT_OK);
        assert_int_equal(write_pieces(f, p, sizes[i]), CLT_OK);
        assert_int_equal(clt_file_sync(f), CLT_OK);
        if (i == 0) assert_false(clt_io_is_file(path)); /* appears when it is closed */
        assert_int_equal(clt_file_close(f), CLT_OK);
        check_reads(path, p, sizes[i]);
        free(p);
    }
    clt_free(path);
}

/* Neither a failed write nor an abandoned file changes the name, and no upload is left. */
static void test_not_published(void **state) {
    (void)state;
    char *path = at("kept/x");
    clt_file *f;
    char text[16] = "text";
    int n;
    unsigned char *p = noise(40 << 20, 1);
    assert_int_equal(clt_io_write_atomic(path, "kept", 4), CLT_OK);
    clt_error_quiet(true);
    for (int i = 0; i < 4; i++) {
        size_t size = i & 1 ? 40 << 20 : 1000;
        assert_int_equal(clt_file_open(path, CLT_IO_CREATE, &f), CLT_OK);
        assert_int_equal(write_pieces(f, p, size), CLT_OK);
        assert_int_equal(clt_file_pread(f, text, 4, 0), CLT_IO);
        if (i < 2) {
            assert_int_equal(clt_file_pwrite(f, p, 10, size + 1), CLT_IO);
            says("from its beginning to its end");
            assert_int_equal(clt_file_close(f), CLT_OK);
        } else {
            clt_file_abandon(f);
        }
        expect_text(path, "kept");
    }
    clt_error_quiet(false);
    assert_int_equal(clt_io_clean(root, -1, false, NULL, NULL, &n), CLT_OK);
    assert_int_equal(n, 0);
    free(p);
    clt_free(path);
}

static void test_create_new(void **state) {
    (void)state;
    const size_t sizes[] = {100, 20 << 20};
    unsigned char *p = noise(20 << 20, 2);
    for (size_t i = 0; i < CLT_COUNT_OF(sizes); i++) {
        char *name = clt_format("new/%zu", i), *path = at(name);
        clt_file *a, *b, *c;
        assert_int_equal(clt_file_open(path, CLT_IO_CREATE_NEW, &a), CLT_OK);
        assert_int_equal(clt_file_open(path, CLT_IO_CREATE_NEW, &b), CLT_OK);
        assert_int_equal(write_pieces(a, p, sizes[i]), CLT_OK);
        assert_int_equal(write_pieces(b, p + 1, sizes[i] - 1), CLT_OK);
        assert_int_equal(clt_file_close(a), CLT_OK);
        clt_error_quiet(true);
        assert_int_equal(clt_file_close(b), CLT_IO);
        says("exists already");
        assert_int_equal(clt_file_open(path, CLT_IO_CREATE_NEW, &c), CLT_IO);
        clt_error_quiet(false);
        clt_io_info info;
        assert_int_equal(clt_io_stat(path, &info), CLT_OK);
        assert_int_equal(info.bytes, sizes[i]);
        clt_free(path);
        clt_free(name);
    }
    free(p);
}

/* 12 files at once from one thread have more than all buffers: none may wait for another. */
static void test_many_files(void **state) {
    (void)state;
    enum { FILES = 14, BYTES = (16 << 20) + 4096 };
    unsigned char *p = noise(BYTES, 3);
    clt_file *f[FILES];
    char *path[FILES];
    for (int i = 0; i < FILES; i++) {
        char *name = clt_format("many/%d", i);
        path[i] = at(name);
        clt_free(name);
        assert_int_equal(clt_file_open(path[i], CLT_IO_CREATE, &f[i]), CLT_OK);
        assert_int_equal(clt_file_pwrite(f[i], p, 1 << 20, 0), CLT_OK);
    }
    for (int i = 0; i < FILES; i++)
        assert_int_equal(clt_file_pwrite(f[i], p + (1 << 20), BYTES - (1 << 20), 1 << 20), CLT_OK);
    for (int i = 0; i < FILES; i++) assert_int_equal(clt_file_close(f[i]), CLT_OK);
    check_reads(path[5], p, BYTES);
    for (int i = 0; i < FILES; i++) clt_free(path[i]);
    free(p);
}

/* --- versions --- */

static void test_versions(void **state) {
    (void)state;
    char *path = at("versions/x"), one[CLT_IO_VERSION_BYTES], two[CLT_IO_VERSION_BYTES];
    assert_int_equal(clt_io_version(path, one), ENOENT);
    assert_int_equal(clt_io_replace(path, "0", 1, "\"00000000000000000000000000000000\"", one), ESTALE);
    assert_int_equal(clt_io_replace(path, "1", 1, "", one), 0);
    assert_int_equal(clt_io_replace(path, "2", 1, "", two), EEXIST);
    assert_int_equal(clt_io_version(path, two), 0);
    assert_string_equal(one, two);
    assert_int_equal(clt_io_replace(path, "3", 1, two, two), 0);
    assert_string_not_equal(one, two);
    assert_int_equal(clt_io_replace(path, "4", 1, one, one), ESTALE);
    expect_text(path, "3");
    assert_int_equal(clt_io_replace(path, "5", 1, NULL, NULL), 0);
    expect_text(path, "5");
    clt_free(path);
}

/* A file that is replaced while it is read. */
static void test_stale(void **state) {
    (void)state;
    char *path = at("stale/x"), byte;
    unsigned char *p = noise(3 << 20, 4);
    clt_file *f;
    assert_int_equal(clt_io_write_atomic(path, p, 3 << 20), CLT_OK);
    assert_int_equal(clt_file_open(path, CLT_IO_READ, &f), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, p + 8, (3 << 20) - 8), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_file_pread(f, &byte, 1, 2 << 20), CLT_IO);
    says("changed while it was read");
    clt_error_quiet(false);
    clt_file_close(f);
    free(p);
    clt_free(path);
}

/* --- locks, uploads --- */

static void test_locks(void **state) {
    (void)state;
    char *path = at("lock/run.lock"), holder[CLT_IO_OWNER_BYTES];
    clt_io_lock *a, *b;
    assert_int_equal(clt_io_lock_try(path, "first \"host\"", &a, holder), 0);
    assert_true(clt_io_lock_is_held(a));
    assert_int_equal(clt_io_lock_try(path, "second", &b, holder), EWOULDBLOCK);
    assert_string_equal(holder, "first \"host\"");
    assert_int_equal(clt_io_lock_sign(a, "renamed"), 0);
    assert_int_equal(clt_io_lock_try(path, "second", &b, holder), EWOULDBLOCK);
    assert_string_equal(holder, "renamed");
    clt_io_lock_release(a);
    assert_int_equal(clt_io_lock_try(path, "second", &b, holder), 0);
    clt_io_lock_release(b);
    clt_free(path);
}

static const char other[] = "{\"owner\": \"other\", \"token\": \"t\", \"expires_in\": 1}";

/* Somebody takes the lock over: the holder sees that when it renews, and leaves alone what is not its own. */
static void test_lost_lock(void **state) {
    (void)state;
    char *path = at("lock/lost.lock"), holder[CLT_IO_OWNER_BYTES];
    clt_io_lock *a;
    assert_int_equal(clt_io_lock_try(path, "first", &a, holder), 0);
    assert_int_equal(clt_io_replace(path, other, sizeof other - 1, NULL, NULL), 0);
    assert_int_equal(clt_io_lock_sign(a, "first"), ESTALE);
    assert_false(clt_io_lock_is_held(a));
    clt_io_lock_release(a);
    expect_text(path, other);
    assert_int_equal(clt_io_lock_try(path, "second", &a, holder), EWOULDBLOCK);
    assert_string_equal(holder, "other");
    clt_free(path);
}

/* The lock of test_lost_lock expires after 1 s, and 5 s that others wait longer. Runs last. */
static void test_expired_lock(void **state) {
    (void)state;
    char *path = at("lock/lost.lock"), holder[CLT_IO_OWNER_BYTES];
    clt_io_lock *a;
    int e = EWOULDBLOCK;
    for (int i = 0; i < 50 && (e = clt_io_lock_try(path, "third", &a, holder)) == EWOULDBLOCK; i++)
        clt_sleep(0.2);
    assert_int_equal(e, 0);
    assert_true(clt_io_lock_is_held(a));
    clt_io_lock_release(a);
    clt_free(path);
}

static void found_upload(void *ctx, const clt_io_unfinished *u) {
    assert_string_equal(u->name, "a+b%41 c");
    assert_true(u->age < 600 && u->began > 1e9);
    *(uint64_t *)ctx = u->bytes;
}

/* What a writer that was killed leaves. */
static void test_clean(void **state) {
    (void)state;
    char *path = at("killed/a+b%41 c"), *dir = at("killed"); /* a name that changes when it is decoded */
    unsigned char *p = noise(20 << 20, 5);
    uint64_t bytes = 0;
    int n;
    clt_file *f;
    assert_int_equal(clt_file_open(path, CLT_IO_CREATE, &f), CLT_OK);
    assert_int_equal(clt_file_pwrite(f, p, 20 << 20, 0), CLT_OK);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(clt_io_clean(dir, 3600, false, NULL, NULL, &n), CLT_OK);
        assert_int_equal(n, 0);
        assert_int_equal(clt_io_clean(dir, -60, true, found_upload, &bytes, &n), CLT_OK);
        if (n && bytes) break;
        clt_sleep(0.05);
    }
    assert_int_equal(bytes, 16 << 20);
    bytes = 0;
    assert_int_equal(clt_io_clean(dir, -60, false, found_upload, &bytes, &n), CLT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(bytes, 16 << 20);
    assert_int_equal(clt_io_clean(dir, -60, false, NULL, NULL, &n), CLT_OK);
    assert_int_equal(n, 0);
    clt_error_quiet(true);
    assert_int_equal(clt_file_close(f), CLT_IO);
    says("NoSuchUpload");
    clt_error_quiet(false);
    assert_false(clt_io_is_file(path));
    free(p);
    clt_free(path);
    clt_free(dir);
}

/* Copies a file of any storage to any other: for comparisons with other programs. */
static int copy(const char *from, const char *to) {
    enum { PIECE = 1 << 20 };
    static char piece[PIECE];
    clt_file *a, *b;
    uint64_t bytes;
    CLT_TRY(clt_file_open(from, CLT_IO_READ, &a));
    CLT_TRY(clt_file_open(to, CLT_IO_CREATE, &b));
    CLT_TRY(clt_file_size(a, &bytes));
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        size_t n = (size_t)CLT_MIN(bytes - at, PIECE);
        CLT_TRY(clt_file_pread(a, piece, n, at));
        CLT_TRY(clt_file_pwrite(b, piece, n, at));
    }
    CLT_TRY(clt_file_close(a));
    return clt_file_close(b);
}

static _Noreturn void hold(const char *path) {
    char holder[CLT_IO_OWNER_BYTES];
    clt_io_lock *lock;
    while (clt_io_lock_try(path, "holder", &lock, holder) != 0) clt_sleep(0.05);
    for (bool held = false;; clt_sleep(0.02)) {
        if (clt_io_lock_is_held(lock) == held) continue;
        held = !held;
        puts(held ? "held" : "not held");
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_files),   cmocka_unit_test(test_lost_lock),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_large_file),
        cmocka_unit_test(test_not_published), cmocka_unit_test(test_create_new),
        cmocka_unit_test(test_many_files),    cmocka_unit_test(test_versions),
        cmocka_unit_test(test_stale),         cmocka_unit_test(test_locks),
        cmocka_unit_test(test_clean),         cmocka_unit_test(test_expired_lock),
    };
    if (!getenv("TEST_BUCKET")) {
        puts("test/object/io_s3.sh runs this program");
        return 0;
    }
    if (clt_object_register() != CLT_OK) return 1;
    if (argc == 4 && !strcmp(argv[1], "copy")) return copy(argv[2], argv[3]);
    if (argc == 3 && !strcmp(argv[1], "hold")) hold(argv[2]);
    root = clt_format("s3://%s/test-%ld", getenv("TEST_BUCKET"), (long)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (clt_io_remove_tree(root) != CLT_OK) failed++;
    clt_object_unregister();
    clt_free(root);
    return failed;
}
