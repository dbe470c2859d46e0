/* clt_shm_sweep: of the files in a folder like /dev/shm exactly those go that a dead job of this user left.
 */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "collectives/clt_shm.h"

static char folder[] = "/tmp/test_shm.XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static const char *path_of(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, double age) {
    const struct timespec t = {.tv_sec = (time_t)(clt_wall() - age)};
    const int fd = open(path_of(name), O_CREAT | O_EXCL | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(futimens(fd, (const struct timespec[2]){t, t}), 0);
    close(fd);
}

/* The number of a process that has ended. */
static int dead_process(void) {
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    waitpid(pid, NULL, 0);
    return (int)pid;
}

/* Names in which %d is a process number. */
typedef struct {
    const char *form;
    bool dead;
    double age; /* seconds */
    bool goes;
} leftover;

static void name_of(const leftover *l, int dead, char name[100]) {
    const int pid = l->dead ? dead : (int)getpid();
    snprintf(name, 100, l->form, pid);
}

static void only_what_a_dead_job_left_goes(void **state) {
    (void)state;
    static const leftover all[] = {{"cltrain.page.%d.1000", true, 3600, true},
                                   {"cltrain.window.%d.123456789012345", true, 20, true},
                                   {"cltrain.page.%d.1001", false, 3600, false},
                                   {"cltrain.page.%d.1002", true, 0, false},
                                   {"cltrain.page.%d", true, 3600, false},
                                   {"cltrain.%d.1000", true, 3600, false},
                                   {"cltrain.page.%d.1000.tmp", true, 3600, false},
                                   {"cltrain.page.-%d.1000", true, 3600, false},
                                   {"cltrain.page.0.%d", true, 3600, false},
                                   {"mine.cltrain.page.%d.1000", true, 3600, false},
                                   {"sem.%d", true, 3600, false}};
    const int dead = dead_process();
    char name[100];
    int goes = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        name_of(&all[i], dead, name);
        put(name, all[i].age);
        goes += all[i].goes;
    }
    assert_int_equal(clt_shm_sweep(folder, 10), goes);
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        name_of(&all[i], dead, name);
        if (all[i].goes)
            assert_int_equal(access(path_of(name), F_OK), -1);
        else
            assert_int_equal(unlink(path_of(name)), 0);
    }
}

/* Nothing but files goes, and no file of another user. */
static void files_of_others_stay(void **state) {
    (void)state;
    char name[100];
    snprintf(name, sizeof name, "cltrain.page.%d.1", dead_process());
    assert_int_equal(mkdir(path_of(name), 0700), 0);
    assert_int_equal(clt_shm_sweep(folder, -1), 0);
    assert_int_equal(rmdir(path_of(name)), 0);
    put(name, 3600);
    if (geteuid() == 0) { /* only root can make such a file */
        assert_int_equal(chown(path_of(name), 12345, 12345), 0);
        assert_int_equal(clt_shm_sweep(folder, 10), 0);
        assert_int_equal(chown(path_of(name), 0, 0), 0);
    }
    assert_int_equal(clt_shm_sweep(folder, 10), 1);
}

/* What clt_shm_new_name makes is what a sweep removes. */
static void new_names_are_swept(void **state) {
    (void)state;
    char name[CLT_SHM_NAME];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        clt_shm_new_name("window", name);
        _exit(write(ends[1], name, sizeof name) != sizeof name);
    }
    assert_int_equal(read(ends[0], name, sizeof name), sizeof name);
    put(name + 1, 3600);
    waitpid(pid, NULL, 0);
    assert_int_equal(clt_shm_sweep(folder, 10), 1);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(clt_shm_sweep("/tmp/no such folder", 10), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_a_dead_job_left_goes),
        cmocka_unit_test(files_of_others_stay),
        cmocka_unit_test(new_names_are_swept),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
