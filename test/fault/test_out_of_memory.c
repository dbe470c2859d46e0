/* Host memory runs out: the N-th allocation fails, for N = 1, 2, ... until none fails, while a configuration
 * is read, a checkpoint is saved and one is loaded. Allocations of libraries count. Each time the process
 * ends with the message of clt_malloc, or the function returns an error and leaks nothing; and existing
 * checkpoints stay whole. Each attempt runs in a process of its own. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_config.h"
#include "test/ckpt_util.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
    puts("skip: a sanitizer has its own allocator");
    return 0;
}
#else

/* --- the allocator: glibc's, except that one call fails --- */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static atomic_long countdown, live; /* countdown 0: no failure */
static atomic_bool failed;

static bool fails(void) {
    if (atomic_load(&countdown) == 0 || atomic_fetch_sub(&countdown, 1) != 1) return false;
    atomic_store(&failed, true);
    errno = ENOMEM;
    return true;
}
static void *count(void *p) {
    if (p) atomic_fetch_add(&live, 1);
    return p;
}
void *malloc(size_t n) {
    return fails() ? NULL : count(__libc_malloc(n));
}
void *calloc(size_t n, size_t size) {
    return fails() ? NULL : count(__libc_calloc(n, size));
}
void *realloc(void *p, size_t n) {
    if (fails()) return NULL;
    return p ? __libc_realloc(p, n) : count(__libc_malloc(n));
}
void *aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : count(__libc_memalign(align, n));
}
int posix_memalign(void **out, size_t align, size_t n) {
    *out = fails() ? NULL : count(__libc_memalign(align, n));
    return *out ? 0 : 12;
}
void free(void *p) {
    if (p) atomic_fetch_sub(&live, 1);
    __libc_free(p);
}

/* --- the operations --- */

static char dir[] = "/tmp/clt_oom_XXXXXX";
static cu_state state_a;

static clt_status load_config(void) {
    clt_config *c = NULL;
    clt_status st = clt_config_load("test/golden/mpt-learned/train.yaml", NULL, 0, &c);
    if (st == CLT_OK) clt_config_free(c);
    return st;
}

static clt_status save(int64_t batch) {
    clt_ckpt_writer *w = NULL;
    clt_ckpt_writer_params p = cu_params(&state_a, dir);
    clt_checkpoint_state n = cu_numbers(batch);
    p.overwrite = true;
    CLT_TRY(clt_ckpt_writer_create(&p, &w));
    clt_status st = clt_ckpt_save(w, batch == 1 ? "ba1" : "ba2", &n);
    clt_ckpt_writer_destroy(w);
    return st;
}
static clt_status save_again(void) {
    return save(2);
}

static clt_status load(void) {
    char *path = NULL;
    clt_ckpt_reader *r = NULL;
    CLT_TRY(clt_ckpt_find_newest(NULL, dir, &path));
    clt_status st = path ? clt_ckpt_open(path, &r) : CLT_FAIL;
    if (st == CLT_OK) st = clt_ckpt_load(r, &state_a.table, state_a.part, CU_PARTS, NULL);
    clt_ckpt_close(r);
    clt_free(path);
    return st;
}

/* --- one attempt --- */

enum { SURVIVED = 40, NOT_REACHED = 41, LEAK = 42, WRONG = 43, RETURNED = 44 };

static void child(clt_status (*run)(void), long n, int out) {
    dup2(out, 2);
    long before = atomic_load(&live);
    atomic_store(&countdown, n);
    clt_status st = run();
    atomic_store(&countdown, 0);
    if (!atomic_load(&failed)) _exit(st == CLT_OK ? NOT_REACHED : WRONG);
    long after = atomic_load(&live);
    if (after > before) dprintf(2, "%ld blocks are left\n", after - before);
    _exit(after > before ? LEAK : st == CLT_OK ? SURVIVED : RETURNED);
}

static int attempt(clt_status (*run)(void), long n, char *said, size_t bytes) {
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) child(run, n, pipes[1]);
    close(pipes[1]);
    size_t got = 0;
    for (ssize_t k; (k = read(pipes[0], said + got, bytes - 1 - got)) > 0;) got += (size_t)k;
    said[got] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status)) fail_msg("allocation %ld: signal %d: %s", n, WTERMSIG(status), said);
    return WEXITSTATUS(status);
}

static void every_allocation(const char *what, clt_status (*run)(void)) {
    static char said[1 << 16];
    long n = 1, ended = 0, returned = 0, survived = 0;
    assert_int_equal(run(), CLT_OK); /* libraries have allocated what they never free */
    for (;; n++) {
        int code = attempt(run, n, said, sizeof said);
        if (code == NOT_REACHED) break;
        if (code == 1 && strstr(said, "out of host memory"))
            ended++;
        else if (code == RETURNED && *said)
            returned++;
        else if (code == SURVIVED)
            survived++;
        else
            fail_msg("%s: allocation %ld: code %d: %s", what, n, code, said);
        clt_status st = cu_check(clt_path_join(dir, "ba1"), &state_a);
        if (st != CLT_OK) fail_msg("%s: allocation %ld: the existing checkpoint is damaged", what, n);
    }
    print_message(
        "%s: %ld allocations failed: %ld ended the process, %ld returned an error, %ld had no effect\n", what,
        n - 1, ended, returned, survived);
    assert_true(n > 20);
}

static void test_out_of_memory(void **state) {
    (void)state;
    assert_non_null(mkdtemp(dir));
    cu_state_create(&state_a, false, 1);
    assert_int_equal(save(1), CLT_OK);
    every_allocation("reading a configuration", load_config);
    every_allocation("saving a checkpoint", save_again);
    every_allocation("loading a checkpoint", load);
    clt_io_remove_tree(dir);
    cu_state_free(&state_a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_out_of_memory)};
    clt_log_set_level(CLT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
