/* Failing saves: every single operation fails once, a write is cut, the process dies at any operation, and
 * the machine loses power. In every case a folder that had a valid checkpoint still has one, and a save that
 * returned CLT_OK exists. */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io_probe.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

#define RUN "mem:///run"

static memfs *fs;
static clt_io_probe *probe; /* before fs, as mem:/// */

/* The state of the older checkpoint and of the one that is saved. */
typedef struct {
    cu_state old, new;
    mem_state
        *before; /* the folder with ba1 and ba2 (durable), and perhaps the name that will be overwritten */
    const char *name; /* what is saved */
    bool overwrite;
} scene;

static clt_ckpt_writer_params params(scene *c, cu_state *s) {
    clt_ckpt_writer_params p = cu_params(s, RUN);
    p.keep = 2;
    p.overwrite = c->overwrite;
    p.run_id = s == &c->old ? "00000000000000aa" : "00000000000000bb";
    return p;
}

static void set_up(scene *c, bool overwrite) {
    clt_ckpt_writer *w;
    *c = (scene){.overwrite = overwrite, .name = overwrite ? "ba2" : "ba3"};
    cu_state_create(&c->old, false, 1);
    cu_state_create(&c->new, false, 2);
    fs = mem_create();
    probe = clt_io_probe_create(mem_component(fs));
    assert_int_equal(clt_io_register("mem", clt_io_probe_component(probe)), CLT_OK);
    clt_ckpt_writer_params p = params(c, &c->old);
    p.overwrite = false;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    for (int b = 1; b <= 2; b++) {
        char name[8];
        clt_checkpoint_state n = cu_numbers(b);
        snprintf(name, sizeof name, "ba%d", b);
        assert_int_equal(clt_ckpt_save(w, name, &n), CLT_OK);
    }
    clt_ckpt_writer_destroy(w);
    assert_int_equal(clt_io_sync_dir("mem:///"), CLT_OK);
    mem_crash(fs, 1);
    c->before = mem_save(fs);
}

static void tear_down(scene *c) {
    mem_free(c->before);
    clt_io_unregister("mem");
    clt_io_probe_destroy(probe);
    mem_destroy(fs);
    cu_state_free(&c->old);
    cu_state_free(&c->new);
}

/* FAIL and SHORT affect operation n alone; with DIE, it and all later ones fail, as if the process had ended.
 */
typedef enum { FAIL, SHORT, DIE } fault_kind;

static void arm(long n, fault_kind fault, int error) {
    clt_io_fault_arm(probe, &(clt_io_fault){.op = CLT_IO_OPS,
                                            .first = n,
                                            .last = fault == DIE ? LONG_MAX : n,
                                            .kind = fault == SHORT ? CLT_IO_SHORT : CLT_IO_FAIL,
                                            .error = error});
}

/* One save of the new state with a fault at operation n. */
static clt_status save_with_fault(scene *c, long n, fault_kind fault, int error, bool *fired,
                                  clt_ckpt_writer **w) {
    clt_ckpt_writer_params p = params(c, &c->new);
    clt_checkpoint_state numbers = cu_numbers(3);
    mem_restore(fs, c->before);
    assert_int_equal(clt_ckpt_writer_create(&p, w), CLT_OK);
    arm(n, fault, error);
    clt_status st = clt_ckpt_save(*w, c->name, &numbers);
    *fired = clt_io_fault_fired(probe);
    return st;
}

/* The newest valid checkpoint is whole and is one of the two states; returns whether it is the new one. */
static bool check_newest(scene *c, const char *when, long n) {
    char *path = NULL;
    if (clt_ckpt_find_newest(NULL, RUN, &path) != CLT_OK || !path)
        fail_msg("%s %ld: no checkpoint is left", when, n);
    bool is_new = cu_check(path, &c->new) == CLT_OK;
    if (!is_new && cu_check(path, &c->old) != CLT_OK) fail_msg("%s %ld: %s is damaged", when, n, path);
    clt_free(path);
    return is_new;
}

static bool any_temporary(void) {
    clt_strv names = {0};
    bool found = false;
    assert_int_equal(clt_io_list(RUN, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++) found |= strstr(names.v[i], ".tmp.") != NULL;
    clt_strv_free(&names);
    return found;
}

/* A failed save leaves every name as it was. */
static void check_names(scene *c, long n) {
    if (cu_check(RUN "/ba2", &c->old) != CLT_OK)
        fail_msg("operation %ld: the save failed and ba2 is not what it was", n);
    if (!c->overwrite && clt_io_is_dir(RUN "/ba3")) fail_msg("operation %ld: ba3 is there", n);
}

static long every_operation(scene *c, fault_kind fault, int error) {
    clt_checkpoint_state numbers = cu_numbers(4);
    long n = 1;
    for (;; n++) {
        bool fired;
        clt_ckpt_writer *w;
        clt_status st = save_with_fault(c, n, fault, error, &fired, &w);
        clt_io_fault_arm(probe, NULL);
        if (st != CLT_OK && st != CLT_IO) fail_msg("operation %ld: the status is %s", n, clt_status_name(st));
        if (!fired && st != CLT_OK) fail_msg("without a fault the save fails: %s", clt_last_error());
        bool is_new = check_newest(c, "operation", n);
        if (st == CLT_OK && !is_new)
            fail_msg("operation %ld: the save returned CLT_OK and does not exist", n);
        if (st != CLT_OK && any_temporary()) fail_msg("operation %ld: a temporary folder is left", n);
        if (st != CLT_OK) check_names(c, n);
        /* Training continues, and the next save works. */
        if (clt_ckpt_save(w, "ba4", &numbers) != CLT_OK) fail_msg("operation %ld: the next save fails", n);
        assert_true(check_newest(c, "the save after operation", n));
        clt_ckpt_writer_destroy(w);
        if (!fired) break;
    }
    return n - 1;
}

static void test_every_operation_fails(void **state) {
    (void)state;
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        scene c;
        set_up(&c, overwrite);
        clt_error_quiet(true);
        long n = every_operation(&c, FAIL, ENOSPC);
        assert_int_equal(every_operation(&c, FAIL, EIO), n);
        assert_int_equal(every_operation(&c, SHORT, ENOSPC), n);
        long interrupted = every_operation(&c, FAIL, EINTR);
        long cut = every_operation(&c, SHORT, 0); /* short reads and writes that continue are not failures */
        print_message("%s: %ld operations; with EINTR %ld, with short reads and writes %ld\n", c.name, n,
                      interrupted, cut);
        clt_error_quiet(false);
        assert_true(n > 40); /* a save is many operations */
        tear_down(&c);
    }
}

static int no_exchange(clt_io_component *c, const char *a, const char *b) {
    (void)c, (void)a, (void)b;
    return EINVAL;
}

/* A file system that cannot exchange two names: the slower way also works, and undoes any failure. */
static void overwrite_without_exchange(const char *how) {
    scene c;
    set_up(&c, true);
    clt_io_ops without = *mem_component(fs)->ops;
    clt_ckpt_writer_params p = params(&c, &c.new);
    clt_checkpoint_state numbers = cu_numbers(3);
    clt_ckpt_writer *w;
    without.exchange = no_exchange;
    if (strcmp(how, "refused") == 0)
        mem_component(fs)->ops = &without;
    else
        clt_io_probe_component(probe)->caps &= ~(unsigned)CLT_IO_CAN_EXCHANGE;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, "ba2", &numbers), CLT_OK);
    clt_ckpt_writer_destroy(w);
    assert_true(check_newest(&c, "without exchange", 0));
    assert_false(any_temporary());
    clt_error_quiet(true);
    long n = every_operation(&c, FAIL, EIO);
    clt_error_quiet(false);
    print_message("%s, exchange %s: %ld operations\n", c.name, how, n);
    tear_down(&c);
}

static void test_no_exchange(void **state) {
    (void)state;
    overwrite_without_exchange("refused");
    overwrite_without_exchange("unknown to the storage");
}

/* Storage that cannot rename needs another strategy, which does not exist yet: nothing is written to it. */
static void test_no_rename(void **state) {
    (void)state;
    scene c;
    set_up(&c, false);
    clt_ckpt_writer_params p = params(&c, &c.new);
    clt_ckpt_writer *w;
    clt_ckpt_info *list;
    int n;
    clt_io_probe_component(probe)->caps &= ~(unsigned)CLT_IO_CAN_RENAME;
    clt_io_fault_arm(probe, NULL);
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "a folder of checkpoints needs storage that can rename"));
    assert_int_equal(clt_ckpt_scan(RUN, &list, &n), CLT_BAD_CONFIG);
    clt_error_quiet(false);
    assert_int_equal(clt_io_fault_seen(probe), 0);
    tear_down(&c);
}

/* The process dies at operation n; then the machine loses power in several ways. */
static void test_crash(void **state) {
    (void)state;
    enum { WAYS = 24 };
    long states = 0;
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        scene c;
        bool fired = true;
        set_up(&c, overwrite);
        clt_error_quiet(true);
        for (long n = 1; fired; n++) {
            clt_ckpt_writer *w;
            clt_status st = save_with_fault(&c, n, DIE, EIO, &fired, &w);
            clt_ckpt_writer_destroy(w);
            clt_io_fault_arm(probe, NULL);
            mem_state *after = mem_save(fs);
            for (uint64_t seed = 0; seed < WAYS; seed++, states++) {
                mem_restore(fs, after);
                mem_crash(fs, seed < 2 ? seed : seed * 1000003 + (uint64_t)n);
                bool is_new = check_newest(&c, "crash at operation", n);
                if (st == CLT_OK && !is_new) fail_msg("crash after operation %ld: what was saved is lost", n);
                /* The next run cleans up and saves. */
                clt_ckpt_writer_params p = params(&c, &c.new);
                clt_checkpoint_state numbers = cu_numbers(4);
                p.run_id = "00000000000000cc";
                assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
                assert_false(any_temporary());
                if (clt_ckpt_save(w, "ba4", &numbers) != CLT_OK)
                    fail_msg("crash at %ld: the next save fails", n);
                clt_ckpt_writer_destroy(w);
            }
            mem_free(after);
        }
        clt_error_quiet(false);
        tear_down(&c);
    }
    print_message("%ld crash states\n", states);
    assert_true(states > 2000);
}

/* A device that cannot be read during a save: nothing of the save remains. */
static clt_status broken_read(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    (void)ctx, (void)first;
    memset(dst, 0, count * sizeof *dst);
    return entry < 2 ? CLT_OK : clt_error(CLT_AGAIN, "device is hung");
}

static void test_broken_device(void **state) {
    (void)state;
    for (int threads = 0; threads < 3; threads += 2) {
        scene c;
        set_up(&c, false);
        clt_ckpt_writer_params p = params(&c, &c.new);
        clt_checkpoint_state numbers = cu_numbers(3);
        clt_ckpt_part part = {.role = "weight", .read = broken_read};
        clt_ckpt_writer *w;
        p.threads = threads;
        p.parts = &part;
        p.part_count = 1;
        clt_error_quiet(true);
        assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
        assert_int_equal(clt_ckpt_save(w, "ba3", &numbers), CLT_AGAIN);
        clt_error_quiet(false);
        assert_false(any_temporary());
        assert_false(check_newest(&c, "broken device", threads));
        clt_ckpt_writer_destroy(w);
        tear_down(&c);
    }
}

/* A disk that is full when a run begins. */
static void test_not_writable(void **state) {
    (void)state;
    scene c;
    set_up(&c, false);
    clt_error_quiet(true);
    for (long n = 1;; n++) {
        clt_ckpt_writer *w = NULL;
        clt_ckpt_writer_params p = params(&c, &c.new);
        mem_restore(fs, c.before);
        arm(n, FAIL, ENOSPC);
        clt_status st = clt_ckpt_writer_create(&p, &w);
        bool fired = clt_io_fault_fired(probe);
        clt_io_fault_arm(probe, NULL);
        assert_true(st == CLT_OK || (st == CLT_IO && !w));
        assert_false(check_newest(&c, "start", n));
        clt_ckpt_writer_destroy(w);
        if (!fired) break;
    }
    clt_error_quiet(false);
    tear_down(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_fails),
        cmocka_unit_test(test_no_exchange),
        cmocka_unit_test(test_no_rename),
        cmocka_unit_test(test_crash),
        cmocka_unit_test(test_broken_device),
        cmocka_unit_test(test_not_writable),
    };
    clt_log_set_level(CLT_LOG_ERROR); /* thousands of warnings are expected */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
