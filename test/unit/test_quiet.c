/* Stderr while drivers compile in two threads: what they print is dropped, messages of both threads appear.
 * In a child process, whose stderr is a pipe. The end of the process during a build: test_device_cache. */
#include "test/test_util.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"
#include "runtime/device/clt_quiet.h"

/* Runs fn in a child; text: what came out of its stderr; returns its exit code. */
static int run_child(void (*fn)(void), char *text, size_t size) {
    int ends[2], status;
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        fn();
        exit(0);
    }
    close(ends[1]);
    for (ssize_t got; n + 1 < size && (got = read(ends[0], text + n, size - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void driver_says(const char *text) {
    fprintf(stderr, "%s\n", text);
}

static void *other_thread(void *arg) {
    clt_quiet_begin("another device");
    driver_says("other driver");
    clt_warn("other message");
    clt_quiet_end();
    clt_warn("later message");
    return arg;
}

static void overlapping(void) {
    pthread_t thread;
    clt_quiet_allow();
    driver_says("before");
    clt_quiet_begin("a device");
    driver_says("1 error generated.");
    clt_warn("own message");
    if (pthread_create(&thread, NULL, other_thread, NULL)) _exit(9);
    pthread_join(thread, NULL);
    driver_says("still compiling");
    clt_quiet_end();
    driver_says("after");
}

static void drops_the_drivers_text_alone(void **state) {
    (void)state;
    char text[1024];
    assert_int_equal(run_child(overlapping, text, sizeof text), 0);
    assert_string_equal(text, "before\nwarning: own message\nwarning: other message\n"
                              "warning: later message\nafter\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drops_the_drivers_text_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
