/* One run per folder: who holds run.lock is known, waited for, and never overtaken. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_checkpoint.h"
#include "test/memfs.h"

static char *dir;
static int ready[2]; /* a child writes a byte when it has the lock */

static int set_up(void **state) {
    (void)state;
    char path[] = "/tmp/clt_lock_XXXXXX";
    if (!mkdtemp(path) || pipe(ready) != 0) return -1;
    dir = clt_strdup(path);
    setenv("CLTRAIN_LOCK_WAIT", "0", 1);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    close(ready[0]);
    close(ready[1]);
    unsetenv("CLTRAIN_LOCK_WAIT");
    clt_status st = clt_io_remove_tree(dir);
    clt_free(dir);
    return st == CLT_OK ? 0 : -1;
}

static void refused(const char *folder, const char *says) {
    clt_run_lock *lock;
    clt_error_quiet(true);
    assert_int_equal(clt_run_lock_take(NULL, folder, &lock), CLT_IO);
    clt_error_quiet(false);
    if (!strstr(clt_last_error(), says)) fail_msg("'%s' does not say '%s'", clt_last_error(), says);
}

/* Takes the lock, says so, and keeps it for `seconds` (negative: until it is killed). */
static pid_t holder_process(bool says_ending, double seconds) {
    clt_run_lock *lock;
    char c;
    pid_t child = fork();
    if (child == 0) {
        if (clt_run_lock_take(NULL, dir, &lock) != CLT_OK) _exit(1);
        if (says_ending) clt_run_lock_ending(lock);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        if (seconds < 0) pause();
        clt_sleep(seconds);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    return child;
}

static void test_second_run(void **state) {
    (void)state;
    clt_run_lock *lock;
    char *pid = clt_format("process %ld", (long)getpid());
    assert_int_equal(clt_run_lock_take(NULL, dir, &lock), CLT_OK);
    refused(dir, pid); /* names the holder */
    clt_run_lock_release(lock);
    assert_int_equal(clt_run_lock_take(NULL, dir, &lock), CLT_OK);
    clt_run_lock_release(lock);
    clt_free(pid);
}

static void test_killed_holder(void **state) {
    (void)state;
    clt_run_lock *lock;
    pid_t child = holder_process(false, -1);
    refused(dir, "another run is writing");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(clt_run_lock_take(NULL, dir, &lock), CLT_OK);
    clt_run_lock_release(lock);
}

/* A run that ends soon is waited for: for a while, and as long as it says that it is ending. */
static void test_waiting(void **state) {
    (void)state;
    clt_run_lock *lock;
    for (int says_ending = 0; says_ending <= 1; says_ending++) {
        setenv("CLTRAIN_LOCK_WAIT", says_ending ? "0" : "20", 1);
        pid_t child = holder_process(says_ending, 0.3);
        assert_int_equal(clt_run_lock_take(NULL, dir, &lock), CLT_OK);
        clt_run_lock_release(lock);
        waitpid(child, NULL, 0);
    }
}

/* The owner's text never goes into another file. */
static void test_link(void **state) {
    (void)state;
    char *at = clt_path_join(dir, "run.lock"), *other = clt_path_join(dir, "other"), *text;
    assert_int_equal(clt_io_write_atomic(other, "kept", 4), CLT_OK);
    assert_int_equal(symlink("other", at), 0);
    refused(dir, "symbolic link");
    assert_int_equal(clt_io_read_all(other, 100, &text, NULL), CLT_OK);
    assert_string_equal(text, "kept");
    clt_free(text);
    clt_free(other);
    clt_free(at);
}

/* Any storage that can lock will do, and each has its own locks. */
static void test_other_storage(void **state) {
    (void)state;
    memfs *a = mem_mount("mem://a"), *b = mem_mount("mem://b");
    clt_run_lock *lock, *other;
    assert_int_equal(clt_run_lock_take(NULL, "mem://a/run", &lock), CLT_OK);
    refused("mem://a/run", "another run is writing");
    assert_int_equal(clt_run_lock_take(NULL, "mem://b/run", &other), CLT_OK);
    clt_run_lock_release(lock);
    clt_run_lock_release(other);
    assert_int_equal(clt_run_lock_take(NULL, "mem://a/run", &lock), CLT_OK);
    clt_run_lock_release(lock);
    /* Without locks a run starts, with a warning. */
    mem_component(a)->caps &= ~(unsigned)CLT_IO_CAN_LOCK;
    clt_log_set_level(CLT_LOG_ERROR);
    assert_int_equal(clt_run_lock_take(NULL, "mem://a/run", &lock), CLT_OK);
    clt_log_set_level(CLT_LOG_WARN);
    clt_run_lock_ending(lock);
    clt_run_lock_release(lock);
    clt_io_unregister("mem://a");
    clt_io_unregister("mem://b");
    mem_destroy(a);
    mem_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_second_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_killed_holder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_waiting, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_link, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_storage, set_up, tear_down),
    };
    clt_log_set_level(CLT_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
