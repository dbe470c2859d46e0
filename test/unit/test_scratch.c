/* Files for a run's state (clt_scratch.h) and asynchronous transfers (clt_aio.h): the same bytes with
 * io_uring and with threads, on a disk and in a file system in memory; and what goes wrong with real files: a
 * flipped bit, a file that was made shorter, a full disk, a folder in use, a kernel that refuses io_uring or
 * O_DIRECT, a process that is killed. The oracle: an array. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_scratch.h"
#include "test/device_util.h"

enum { BLOCK = CLT_SCRATCH_BLOCK, BLOCKS = 70, BYTES = BLOCKS * BLOCK };

static char *new_folder(const char *under) {
    char *path = clt_format("%s/clt_scratch_XXXXXX", under);
    assert_non_null(mkdtemp(path));
    return path;
}

static char *aligned(size_t bytes, char **memory) {
    *memory = clt_malloc(bytes + CLT_SCRATCH_ALIGN);
    return (char *)CLT_ROUND_UP((uintptr_t)*memory, (uintptr_t)CLT_SCRATCH_ALIGN);
}

static clt_scratch *open_in(const char *folder, uint64_t *offset) {
    clt_scratch *s;
    assert_int_equal(clt_scratch_open(folder, "state", &s), CLT_OK);
    assert_int_equal(clt_scratch_grow(s, BYTES, offset), CLT_OK);
    return s;
}

/* The folder is empty, and goes. */
static void close_in(clt_scratch *s, char *folder) {
    clt_scratch_close(s);
    assert_int_equal(rmdir(folder), 0);
    clt_free(folder);
}

/* --- bytes --- */

static uint64_t seed = 1;
static uint32_t draw(uint32_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static void whole_blocks(clt_scratch *s, uint64_t base, char *want) {
    enum { OPS = 5, MOST = CLT_SCRATCH_MOST };
    static clt_scratch_op op[OPS];
    char *memory, *slot = aligned((size_t)OPS * MOST, &memory);
    for (int turn = 0; turn < 60; turn++) {
        clt_scratch_op *o = &op[turn % OPS];
        char *at = slot + (size_t)(turn % OPS) * MOST;
        if (turn >= OPS) {
            assert_int_equal(clt_scratch_wait(s, o), CLT_OK);
            /* A write that was begun later does not change what this read gave. */
            if (!o->write) assert_memory_equal(at, at + o->bytes, CLT_MIN(o->bytes, (size_t)MOST / 2));
        }
        const uint32_t n = 1 + draw(16), first = draw(BLOCKS - n);
        *o = (clt_scratch_op){.memory = at,
                              .offset = base + (uint64_t)first * BLOCK,
                              .bytes = (size_t)n * BLOCK,
                              .write = draw(2)};
        if (o->write) {
            for (size_t i = 0; i < o->bytes; i += 64) at[i] = (char)draw(256);
            memcpy(want + (size_t)first * BLOCK, at, o->bytes);
        } else {
            memcpy(at + o->bytes, want + (size_t)first * BLOCK, CLT_MIN(o->bytes, (size_t)MOST / 2));
        }
        assert_int_equal(clt_scratch_begin(s, o), CLT_OK);
    }
    for (int i = 0; i < OPS; i++) assert_int_equal(clt_scratch_wait(s, &op[i]), CLT_OK);
    clt_free(memory);
}

static void any_bytes(clt_scratch *s, uint64_t base, char *want) {
    char *some = clt_malloc(BYTES);
    for (int turn = 0; turn < 60; turn++) {
        const uint32_t n = 4 * (1 + draw(turn % 4 ? 200000 : BYTES / 8)), first = 4 * draw((BYTES - n) / 4);
        const int what = (int)draw(4);
        if (what == 0) {
            for (uint32_t i = 0; i < n; i += 61) want[first + i] = (char)draw(256);
            assert_int_equal(clt_scratch_write(s, base + first, want + first, n), CLT_OK);
        } else if (what == 1) {
            const uint32_t word = draw(2) ? 0 : 0x5a5a5a5a;
            memset(want + first, (int)(word & 0xff), n);
            assert_int_equal(clt_scratch_fill(s, base + first, word, n), CLT_OK);
        } else {
            assert_int_equal(clt_scratch_read(s, base + first, some, n), CLT_OK);
            assert_memory_equal(some, want + first, n);
        }
    }
    assert_int_equal(clt_scratch_read(s, base, some, BYTES), CLT_OK);
    assert_memory_equal(some, want, BYTES);
    clt_free(some);
}

static void check_bytes(const char *under) {
    char *folder = new_folder(under), *want = clt_calloc(1, BYTES);
    uint64_t base, more;
    clt_scratch *s = open_in(folder, &base);
    print_message("%s: %s\n", under, clt_scratch_text(s));
    any_bytes(s, base, want); /* from zeros that were never written */
    assert_int_equal(clt_scratch_grow(s, 1, &more), CLT_OK);
    assert_int_equal(more, base + BYTES);
    whole_blocks(s, base, want);
    any_bytes(s, base, want);
    clt_error_quiet(true);
    assert_int_equal(clt_scratch_read(s, base + BYTES, want, BLOCK + 1), CLT_FAIL);
    clt_error_quiet(false);
    close_in(s, folder);
    clt_free(want);
}

static void bytes_come_back(void **state) {
    (void)state;
    for (int uring = 0; uring <= 1; uring++) {
        setenv("CLTRAIN_URING", uring ? "1" : "0", 1);
        check_bytes("/var/tmp");
        if (clt_io_is_dir("/dev/shm")) check_bytes("/dev/shm");
    }
}

/* --- what goes wrong --- */

static void write_all(clt_scratch *s, uint64_t base) {
    char *x = clt_malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) x[i] = (char)(i * 7 + i / BLOCK);
    assert_int_equal(clt_scratch_write(s, base, x, BYTES), CLT_OK);
    clt_free(x);
}

static void assert_read_fails(clt_scratch *s, uint64_t at, size_t bytes, const char *message) {
    char *x = clt_malloc(bytes);
    clt_error_quiet(true);
    assert_int_equal(clt_scratch_read(s, at, x, bytes), CLT_IO);
    clt_error_quiet(false);
    if (!strstr(clt_last_error(), message)) fail_msg("'%s' lacks '%s'", clt_last_error(), message);
    clt_free(x);
}

static void damage_is_found(void **state) {
    (void)state;
    char *folder = new_folder("/var/tmp"), text[64], byte, ok[16];
    uint64_t base;
    clt_scratch *s = open_in(folder, &base);
    write_all(s, base);
    const int fd = du_scratch_file(folder);
    const uint64_t at = base + 37 * (uint64_t)BLOCK;
    assert_int_equal(pread(fd, &byte, 1, (off_t)at + 12345), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at + 12345), 1);
    assert_int_equal(fsync(fd), 0);
    snprintf(text, sizeof text, "at offset %llu are not those", (unsigned long long)at);
    assert_read_fails(s, base, BYTES, text);
    assert_read_fails(s, at + 5, 3, "state.data");
    assert_int_equal(clt_scratch_read(s, at - 16, ok, 16), CLT_OK); /* blocks beside it are good */
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at + 12345), 1);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(clt_scratch_read(s, at, ok, 16), CLT_OK);

    const uint64_t end = base + 50 * (uint64_t)BLOCK + 1000;
    assert_int_equal(ftruncate(fd, (off_t)end), 0);
    assert_int_equal(fsync(fd), 0);
    snprintf(text, sizeof text, "ends before offset %llu", (unsigned long long)end);
    assert_read_fails(s, base, BYTES, text);
    close(fd);
    close_in(s, folder);
}

static void a_full_disk_is_named(void **state) {
    (void)state;
    char *folder = new_folder("/var/tmp");
    struct statvfs fs;
    uint64_t at;
    clt_scratch *s;
    assert_int_equal(statvfs(folder, &fs), 0);
    const uint64_t more = (uint64_t)fs.f_bavail * fs.f_frsize + (1ull << 40);
    assert_int_equal(clt_scratch_open(folder, "state", &s), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_scratch_grow(s, more, &at), CLT_IO);
    clt_error_quiet(false);
    assert_non_null(strstr(clt_last_error(), "state.data needs "));
    assert_non_null(strstr(clt_last_error(), "are free there (No space left on device)"));
    assert_int_equal(clt_scratch_grow(s, BLOCK, &at), CLT_OK); /* the file is as before */
    assert_int_equal(at, 0);
    close_in(s, folder);
}

static void write_file(const char *folder, const char *name, const char *text) {
    char *path = clt_path_join(folder, name);
    const int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    clt_free(path);
}

static void a_folder_has_one_user(void **state) {
    (void)state;
    char *folder = new_folder("/var/tmp"), process[64];
    clt_scratch *s, *other;
    setenv("CLTRAIN_LOCK_WAIT", "0", 1);
    /* A process that was killed left them. */
    write_file(folder, "state.lock", "host gone, process 1, since 2020-01-01 00:00:00\n");
    write_file(folder, "state.data", "something");
    assert_int_equal(clt_scratch_open(folder, "state", &s), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_scratch_open(folder, "state", &other), CLT_IO);
    clt_error_quiet(false);
    snprintf(process, sizeof process, "process %ld, since", (long)getpid());
    assert_non_null(strstr(clt_last_error(), process));
    assert_int_equal(clt_scratch_open(folder, "another", &other), CLT_OK); /* another rank */
    clt_scratch_close(other);
    unsetenv("CLTRAIN_LOCK_WAIT");
    close_in(s, folder);
    clt_error_quiet(true);
    assert_int_equal(clt_scratch_open("s3://bucket/x", "state", &s), CLT_BAD_CONFIG);
    clt_error_quiet(false);
}

/* In a child, whose exit code is the result. */
static int in_child(int (*fn)(const char *), const char *folder) {
    int status;
    const pid_t child = fork();
    if (child == 0) _exit(fn(folder));
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* A file in a process to which the kernel refuses something. 0: its bytes are right, and `told` is said. */
static int use_refused(const char *folder, const struct sock_fprog *filter, const char *told) {
    char x[5000] = "abc", y[5000];
    uint64_t at;
    clt_scratch *s;
    setenv("CLTRAIN_URING", "1", 1);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter))
        return 2;
    if (clt_scratch_open(folder, "state", &s) != CLT_OK || clt_scratch_grow(s, 1, &at) != CLT_OK) return 3;
    const bool tells = strstr(clt_scratch_text(s), told);
    if (clt_scratch_write(s, 77, x, sizeof x) != CLT_OK || clt_scratch_read(s, 77, y, sizeof y) != CLT_OK)
        return 4;
    clt_scratch_close(s);
    return memcmp(x, y, sizeof x) ? 5 : tells ? 0 : 6;
}

static int without_uring(const char *folder) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    return use_refused(folder, &(struct sock_fprog){CLT_COUNT_OF(code), code}, "4 threads (no io_uring: ");
}

static int without_direct(const char *folder) {
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
                                 BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
                                 BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    return use_refused(folder, &(struct sock_fprog){CLT_COUNT_OF(code), code},
                       "through the page cache (no O_DIRECT: Invalid argument)");
}

/* As with memory of a driver that O_DIRECT cannot use. Transfers themselves are io_uring's. */
static int with_unfit_memory(const char *folder) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EFAULT), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog filter = {CLT_COUNT_OF(code), code};
    char *memory, *at = aligned(CLT_SCRATCH_ALIGN, &memory), x[5000] = "abc", y[5000];
    uint64_t base;
    setenv("CLTRAIN_URING", "1", 1);
    clt_scratch *s = open_in(folder, &base);
    if (clt_scratch_try(s, at) != CLT_OK || !strstr(clt_scratch_text(s), ", past the page cache")) return 2;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 3;
    if (clt_scratch_try(s, at) != CLT_OK || !strstr(clt_scratch_text(s), "(no O_DIRECT: Bad address)"))
        return 4;
    const bool uring = !strncmp(clt_scratch_text(s), "io_uring", 8);
    if (uring && (clt_scratch_write(s, base + 7, x, sizeof x) || clt_scratch_read(s, base + 7, y, sizeof y)))
        return 5;
    clt_scratch_close(s);
    return uring && memcmp(x, y, sizeof x) ? 6 : 0;
}

/* A disk that fails under writes. */
static int with_failing_writes(const char *folder) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog filter = {CLT_COUNT_OF(code), code};
    char x[5000] = "abc";
    uint64_t base;
    setenv("CLTRAIN_URING", "0", 1);
    clt_scratch *s;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;
    if (clt_scratch_open(folder, "state", &s) != CLT_OK || clt_scratch_grow(s, BYTES, &base) != CLT_OK)
        return 3;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
        return 4; /* for the threads, too */
    clt_error_quiet(true);
    if (clt_scratch_write(s, base + 3 * (uint64_t)BLOCK, x, sizeof x) != CLT_IO) return 5;
    clt_error_quiet(false);
    const bool told = strstr(clt_last_error(), "cannot write ") &&
                      strstr(clt_last_error(), "Input/output error") &&
                      strstr(clt_last_error(), "state.data at offset 393216");
    clt_scratch_close(s);
    return told ? 0 : 6;
}

static void what_the_kernel_refuses_is_replaced_or_told(void **state) {
    (void)state;
    char *folder = new_folder("/var/tmp");
    assert_int_equal(in_child(without_uring, folder), 0);
    assert_int_equal(in_child(without_direct, folder), 0);
    assert_int_equal(in_child(with_unfit_memory, folder), 0);
    assert_int_equal(in_child(with_failing_writes, folder), 0);
    assert_int_equal(rmdir(folder), 0);
    clt_free(folder);
}

static int killed_in_a_write(const char *folder) {
    static clt_scratch_op op;
    char *memory, *at = aligned(CLT_SCRATCH_MOST, &memory);
    uint64_t base;
    clt_scratch *s = open_in(folder, &base);
    op = (clt_scratch_op){.memory = at, .offset = base, .bytes = CLT_SCRATCH_MOST, .write = true};
    clt_scratch_begin(s, &op);
    raise(SIGKILL);
    return 0;
}

static void a_killed_process_leaves_its_lock_alone(void **state) {
    (void)state;
    char *folder = new_folder("/var/tmp");
    clt_strv names = {0};
    uint64_t base;
    assert_int_equal(in_child(killed_in_a_write, folder), SIGKILL);
    assert_int_equal(clt_io_list(folder, &names), CLT_OK);
    assert_int_equal(names.n, 1);
    assert_string_equal(names.v[0], "state.lock");
    clt_strv_free(&names);
    close_in(open_in(folder, &base), folder);
}

static void a_disk_is_measured(void **state) {
    (void)state;
    char *folder = new_folder("/var/tmp");
    clt_scratch_rates r;
    assert_int_equal(clt_scratch_measure(folder, 40 << 20, 1, &r), CLT_OK);
    assert_true(r.read > 0 && r.write > 0 && r.both > 0);
    assert_int_equal(rmdir(folder), 0);
    clt_free(folder);
}

/* --- transfers alone --- */

static void transfers_report_errors(void **state) {
    (void)state;
    char *memory, *at = aligned(4096, &memory);
    for (int threads = 0; threads <= 1; threads++) {
        clt_aio *a;
        assert_int_equal(clt_aio_create(threads, &a), CLT_OK);
        clt_aio_op none = {0}, bad = {.fd = -1, .memory = at, .bytes = 4096}, many[200];
        assert_true(clt_aio_done(a, &none));
        clt_aio_wait_any(a, 10); /* nothing is in progress: at once */
        clt_aio_submit(a, &bad);
        clt_aio_wait(a, &bad);
        assert_int_equal(bad.error, EBADF);
        const int fd = open("/dev/zero", O_RDONLY);
        for (int i = 0; i < 200; i++) {
            many[i] = (clt_aio_op){.fd = fd, .memory = at, .bytes = 4096};
            clt_aio_submit(a, &many[i]);
        }
        clt_aio_wait(a, &many[150]);
        assert_int_equal(many[150].error, 0);
        const int null = open("/dev/null", O_RDONLY);
        clt_aio_op empty = {.fd = null, .memory = at, .bytes = 4096};
        clt_aio_submit(a, &empty);
        while (!clt_aio_done(a, &empty)) clt_aio_wait_any(a, 1);
        assert_int_equal(empty.error, ENODATA);
        clt_aio_destroy(a); /* waits for the others */
        close(fd);
        close(null);
    }
    clt_free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_report_errors),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(a_full_disk_is_named),
        cmocka_unit_test(a_folder_has_one_user),
        cmocka_unit_test(what_the_kernel_refuses_is_replaced_or_told),
        cmocka_unit_test(a_killed_process_leaves_its_lock_alone),
        cmocka_unit_test(a_disk_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
