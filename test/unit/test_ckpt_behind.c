/* Saves that a run continues beside: which calls make requests of remote storage, and what a folder holds
 * when the save was refused, failed, or was discarded in any phase. The storage has a gate: while it is
 * closed, the operations of other threads wait, and those of the main thread are counted. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io_probe.h"
#include "runtime/checkpoint/clt_ckpt_commit.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

#define RUN "mem:///run"
#define FIRST "0123456789abcdef"
#define SECOND "fedcba9876543210"

static memfs *fs;
static clt_io_probe *probe;
static cu_state one, two;

/* --- the gate --- */

static struct {
    pthread_mutex_t lock; /* of the file system, too, which is for one thread at a time */
    pthread_cond_t opened;
    bool closed;
    pthread_t main;
    int by_main; /* operations while it was closed */
    const clt_io_ops *real;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

static void enter(void) {
    pthread_mutex_lock(&gate.lock);
    if (pthread_equal(gate.main, pthread_self()))
        gate.by_main += gate.closed;
    else
        while (gate.closed) pthread_cond_wait(&gate.opened, &gate.lock);
}

static void set_gate(bool closed) {
    pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
}

#define GATED(name, parameters, ...)                                                                         \
    static int gated_##name parameters {                                                                     \
        enter();                                                                                             \
        int e = gate.real->name(__VA_ARGS__);                                                                \
        pthread_mutex_unlock(&gate.lock);                                                                    \
        return e;                                                                                            \
    }
GATED(open, (clt_io_component * c, const char *path, clt_io_mode mode, void **h), c, path, mode, h)
GATED(pread, (clt_io_component * c, void *h, void *dst, size_t n, uint64_t at, size_t *done), c, h, dst, n,
      at, done)
GATED(pwrite, (clt_io_component * c, void *h, const void *src, size_t n, uint64_t at, size_t *done), c, h,
      src, n, at, done)
GATED(size, (clt_io_component * c, void *h, uint64_t *n), c, h, n)
GATED(datasync, (clt_io_component * c, void *h), c, h)
GATED(sync, (clt_io_component * c, void *h), c, h)
GATED(close, (clt_io_component * c, void *h), c, h)
GATED(unlink, (clt_io_component * c, const char *path), c, path)
GATED(list, (clt_io_component * c, const char *path, clt_strv *names), c, path, names)
GATED(stat, (clt_io_component * c, const char *path, clt_io_info *out), c, path, out)
GATED(replace,
      (clt_io_component * c, const char *path, const void *data, size_t n, const char *expected,
       char *version),
      c, path, data, n, expected, version)
GATED(version, (clt_io_component * c, const char *path, char *version), c, path, version)

static void gated_abandon(clt_io_component *c, void *h) {
    enter();
    gate.real->abandon(c, h);
    pthread_mutex_unlock(&gate.lock);
}

static int set_up(void **state) {
    (void)state;
    static clt_io_ops gated;
    fs = mem_create();
    mem_become_object_store(fs);
    clt_io_component *c = mem_component(fs);
    gate.real = c->ops;
    gate.main = pthread_self();
    gate.by_main = 0;
    gated = *c->ops;
    gated.open = gated_open, gated.pread = gated_pread, gated.pwrite = gated_pwrite, gated.size = gated_size;
    gated.datasync = gated_datasync, gated.sync = gated_sync, gated.close = gated_close;
    if (gated.abandon) gated.abandon = gated_abandon;
    gated.unlink = gated_unlink, gated.list = gated_list, gated.stat = gated_stat;
    gated.replace = gated_replace, gated.version = gated_version;
    c->ops = &gated;
    probe = clt_io_probe_create(c);
    cu_state_create(&one, false, 1);
    cu_state_create(&two, false, 2);
    return clt_io_register("mem", clt_io_probe_component(probe)) == CLT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    set_gate(false); /* after a failure, too */
    clt_io_unregister("mem");
    clt_io_probe_destroy(probe);
    mem_component(fs)->ops = gate.real;
    mem_destroy(fs);
    cu_state_free(&one);
    cu_state_free(&two);
    return 0;
}

/* --- saves --- */

static clt_ckpt_writer *writer(cu_state *s, const char *run_id, bool overwrite) {
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(s, RUN);
    p.run_id = run_id;
    p.overwrite = overwrite;
    p.keep = 2;
    p.snapshot = true;
    p.threads = 2;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    return w;
}

static void begin(clt_ckpt_writer *w, const char *name, int64_t batch) {
    clt_checkpoint_state n = cu_numbers(batch);
    assert_int_equal(clt_ckpt_save_begin(w, name, &n), CLT_OK);
}

static void wait_ready(clt_ckpt_writer *w) {
    while (!clt_ckpt_save_ready(w)) clt_sleep(1e-4);
}

/* As a run does it: a look between two steps. */
static clt_status end(clt_ckpt_writer *w) {
    do wait_ready(w);
    while (!clt_ckpt_save_next(w));
    return clt_ckpt_save_finish(w);
}

static clt_status save(cu_state *s, const char *run_id, const char *name, int64_t batch, bool overwrite) {
    clt_ckpt_writer *w = writer(s, run_id, overwrite);
    begin(w, name, batch);
    const clt_status st = end(w);
    clt_ckpt_writer_destroy(w);
    return st;
}

static int count(const char *folder, const char *prefix) {
    clt_strv names = {0};
    int n = 0;
    assert_int_equal(clt_io_list(folder, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++) n += !strncmp(names.v[i], prefix, strlen(prefix));
    clt_strv_free(&names);
    return n;
}

static void put(const char *path) {
    assert_int_equal(clt_io_write_atomic(path, "x", 1), CLT_OK);
}

/* The calls that training makes return although the storage does not respond, and what they save is what the
 * state was at begin. */
static void test_training_makes_no_request(void **state) {
    (void)state;
    clt_ckpt_writer *w = writer(&one, FIRST, false);
    set_gate(true);
    begin(w, "ba1", 1);
    cu_state_fill(&one, 3);
    assert_false(clt_ckpt_save_ready(w));
    set_gate(false);
    wait_ready(w);
    set_gate(true);
    assert_false(clt_ckpt_save_next(w)); /* the commit begins */
    assert_false(clt_ckpt_save_ready(w));
    set_gate(false);
    wait_ready(w);
    set_gate(true);
    assert_true(clt_ckpt_save_next(w));
    assert_int_equal(clt_ckpt_save_finish(w), CLT_OK);
    assert_int_equal(gate.by_main, 0);
    set_gate(false);
    clt_ckpt_writer_destroy(w);
    cu_state_fill(&one, 1);
    assert_int_equal(cu_check(RUN "/ba1", &one), CLT_OK);
    assert_int_equal(count(RUN, "latest"), 1);
}

/* finish without looks between steps does the same. */
static void test_finish_waits(void **state) {
    (void)state;
    clt_ckpt_writer *w = writer(&one, FIRST, false);
    for (int next = 0; next <= 2; next++) { /* from each phase */
        char *name = clt_format("ba%d", next + 1), *path = clt_path_join(RUN, name);
        begin(w, name, next + 1);
        for (int i = 0; i < next; i++) {
            wait_ready(w);
            assert_int_equal(clt_ckpt_save_next(w), i == 1);
        }
        assert_int_equal(clt_ckpt_save_finish(w), CLT_OK);
        assert_int_equal(cu_check(path, &one), CLT_OK);
        clt_free(path);
        clt_free(name);
    }
    clt_ckpt_writer_destroy(w);
    assert_int_equal(count(RUN "/ba1", ""), 0); /* two are kept */
}

static void test_refused(void **state) {
    (void)state;
    assert_int_equal(save(&one, FIRST, "ba1", 1, false), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(save(&two, SECOND, "ba1", 1, false), CLT_IO);
    assert_int_equal(cu_check(RUN "/ba1", &one), CLT_OK);
    assert_int_equal(count(RUN "/ba1", "data."), 1);
    /* Not a checkpoint's folder; the data of the save itself do not make it one. */
    put(RUN "/notes/today.txt");
    for (int i = 0; i < 20; i++) {
        assert_int_equal(save(&two, SECOND, "notes", 2, true), CLT_IO);
        assert_int_equal(count(RUN "/notes", ""), 1);
    }
    clt_error_quiet(false);
    /* The writer can go on. */
    clt_ckpt_writer *w = writer(&two, SECOND, false);
    begin(w, "ba1", 1);
    clt_error_quiet(true);
    assert_int_equal(end(w), CLT_IO);
    clt_error_quiet(false);
    begin(w, "ba2", 2);
    assert_int_equal(end(w), CLT_OK);
    clt_ckpt_writer_destroy(w);
    assert_int_equal(cu_check(RUN "/ba2", &two), CLT_OK);
}

/* The examination of the name comes behind the data: it must not take them for a checkpoint. */
static void test_own_data(void **state) {
    (void)state;
    put(RUN "/notes/today.txt");
    clt_ckpt_commit *c = clt_ckpt_commit_create(&clt_ckpt_object, RUN, "notes", FIRST, true);
    c->save = 7;
    char *file = c->ops->file(c, 0), *path = clt_path_join(c->path, file);
    put(path);
    clt_error_quiet(true);
    assert_int_equal(c->ops->begin(c), CLT_IO);
    clt_error_quiet(false);
    c->ops->discard(c);
    assert_int_equal(count(RUN "/notes", ""), 1);
    clt_free(path);
    clt_free(file);
    clt_ckpt_commit_destroy(c);
}

/* This run's own checkpoint of the same batch: nothing changes. */
static void test_saved_before(void **state) {
    (void)state;
    clt_ckpt_writer *w = writer(&one, FIRST, true);
    for (int i = 0; i < 3; i++) {
        begin(w, "ba1", 1);
        assert_int_equal(end(w), CLT_OK);
        cu_state_fill(&one, 9);
    }
    clt_ckpt_writer_destroy(w);
    cu_state_fill(&one, 1);
    assert_int_equal(cu_check(RUN "/ba1", &one), CLT_OK);
    assert_int_equal(count(RUN "/ba1", ""), 2);
}

/* A writer is destroyed in any phase: there is a whole checkpoint or none, and no data without one. */
static void test_discarded(void **state) {
    (void)state;
    for (int next = 0; next <= 2; next++) {
        char *name = clt_format("ba%d", next + 1), *path = clt_path_join(RUN, name);
        clt_ckpt_writer *w = writer(&one, FIRST, false);
        begin(w, name, next + 1);
        for (int i = 0; i < next; i++) {
            wait_ready(w);
            clt_ckpt_save_next(w);
        }
        clt_ckpt_writer_destroy(w);
        if (next)
            assert_int_equal(cu_check(path, &one), CLT_OK);
        else
            assert_int_equal(count(path, ""), 0);
        clt_free(path);
        clt_free(name);
    }
}

/* --- failures --- */

static bool fault_at(const mem_state *before, const char *name, long n, bool die) {
    mem_restore(fs, before);
    clt_error_quiet(true);
    clt_ckpt_writer *w = writer(&two, SECOND, true);
    clt_io_fault_arm(
        probe,
        &(clt_io_fault){
            .op = CLT_IO_OPS, .first = n, .last = die ? LONG_MAX : n, .kind = CLT_IO_FAIL, .error = EIO});
    begin(w, name, 3);
    const clt_status st = end(w);
    clt_ckpt_writer_destroy(w);
    const bool fired = clt_io_fault_fired(probe);
    clt_io_fault_arm(probe, NULL);
    char *path = clt_path_join(RUN, name);
    const bool is_new = cu_check(path, &two) == CLT_OK;
    clt_error_quiet(false);
    if (st == CLT_OK && !is_new) fail_msg("operation %ld: the save is said to be there and is not", n);
    if (!die && st != CLT_OK && is_new) fail_msg("operation %ld: a save that failed is there", n);
    if (!is_new && !strcmp(name, "ba1")) assert_int_equal(cu_check(path, &one), CLT_OK);
    if (strcmp(name, "ba1") != 0) assert_int_equal(cu_check(RUN "/ba1", &one), CLT_OK);
    /* The next run removes what is left. */
    assert_int_equal(save(&one, FIRST, "ba4", 4, false), CLT_OK);
    assert_true(count(path, "data.") <= 1);
    clt_free(path);
    return fired;
}

static void every_fault(const char *name) {
    clt_log_set_level(CLT_LOG_ERROR);
    assert_int_equal(save(&one, FIRST, "ba1", 1, false), CLT_OK);
    mem_state *before = mem_save(fs);
    for (int die = 0; die <= 1; die++) {
        long n = 1;
        while (fault_at(before, name, n, die)) n++;
        assert_true(n > 15);
    }
    mem_free(before);
    clt_log_set_level(CLT_LOG_WARN);
}

static void test_fault_new(void **state) {
    (void)state;
    every_fault("ba3");
}
static void test_fault_overwrite(void **state) {
    (void)state;
    every_fault("ba1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_training_makes_no_request, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_finish_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_data, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_saved_before, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_discarded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fault_new, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fault_overwrite, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
