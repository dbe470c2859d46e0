/* Checkpoints on storage that behaves like an object store: what a folder holds after saves, after a failure
 * or the end of the process at any operation, after the lock was lost, and after two runs met. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io_probe.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

#define RUN "mem:///run"
#define FIRST "0123456789abcdef"
#define SECOND "fedcba9876543210"

static memfs *fs;
static clt_io_probe *probe;
static cu_state one, two;

static int set_up(void **state) {
    (void)state;
    fs = mem_create();
    mem_become_object_store(fs);
    probe = clt_io_probe_create(mem_component(fs));
    cu_state_create(&one, false, 1);
    cu_state_create(&two, false, 2);
    return clt_io_register("mem", clt_io_probe_component(probe)) == CLT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    clt_io_unregister("mem");
    clt_io_probe_destroy(probe);
    mem_destroy(fs);
    cu_state_free(&one);
    cu_state_free(&two);
    return 0;
}

static clt_ckpt_writer *writer(cu_state *s, const char *run_id, bool overwrite) {
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(s, RUN);
    p.run_id = run_id;
    p.overwrite = overwrite;
    p.keep = 2;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    return w;
}

static clt_status save_with(clt_ckpt_writer *w, const char *name, int64_t batch) {
    clt_checkpoint_state n = cu_numbers(batch);
    return clt_ckpt_save(w, name, &n);
}

static void save(cu_state *s, const char *run_id, const char *name, int64_t batch) {
    clt_ckpt_writer *w = writer(s, run_id, true);
    assert_int_equal(save_with(w, name, batch), CLT_OK);
    clt_ckpt_writer_destroy(w);
}

static int count(const char *folder, const char *prefix) {
    clt_strv names = {0};
    int n = 0;
    assert_int_equal(clt_io_list(folder, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++) n += !strncmp(names.v[i], prefix, strlen(prefix));
    clt_strv_free(&names);
    return n;
}

static void expect(clt_status st, clt_status want, const char *says) {
    assert_int_equal(st, want);
    if (!strstr(clt_last_error(), says)) fail_msg("'%s' does not say '%s'", clt_last_error(), says);
}

/* Every checkpoint of the folder that is listed can be read to its last chunk. Returns how many. */
static int all_verify(void) {
    clt_ckpt_info *list;
    int n;
    assert_int_equal(clt_ckpt_scan(RUN, &list, &n), CLT_OK);
    for (int i = 0; i < n; i++) {
        clt_ckpt_reader *r;
        if (!list[i].valid) fail_msg("%s is listed and not valid: %s", list[i].name, list[i].why);
        assert_int_equal(clt_ckpt_open(list[i].path, &r), CLT_OK);
        assert_int_equal(clt_ckpt_verify(r), CLT_OK);
        clt_ckpt_close(r);
    }
    clt_ckpt_scan_free(list, n);
    return n;
}

/* --- without failures --- */

static void expect_resolved(const char *path, const char *want) {
    char *found;
    assert_int_equal(clt_ckpt_resolve(NULL, path, &found), CLT_OK);
    assert_string_equal(found, want);
    clt_free(found);
}

static void test_saves(void **state) {
    (void)state;
    char *newest;
    clt_ckpt_writer *w = writer(&one, FIRST, false);
    assert_int_equal(save_with(w, "ba1", 1), CLT_OK);
    assert_int_equal(save_with(w, "ba2", 2), CLT_OK);
    cu_state_fill(&one, 3);
    assert_int_equal(save_with(w, "ba3", 3), CLT_OK);
    assert_int_equal(save_with(w, "ba3", 3), CLT_OK); /* this run's own: nothing to do */
    assert_int_equal(all_verify(), 2);
    assert_int_equal(count(RUN "/ba1", ""), 0); /* two are kept */
    assert_int_equal(count(RUN "/ba3", ""), 2); /* data and manifest */
    assert_int_equal(clt_ckpt_find_newest(NULL, RUN, &newest), CLT_OK);
    assert_string_equal(newest, RUN "/ba3");
    assert_int_equal(cu_check(newest, &one), CLT_OK);
    clt_free(newest);
    expect_resolved(RUN, RUN "/ba3");
    expect_resolved(RUN "/latest", RUN "/ba3");
    clt_error_quiet(true);
    expect(save_with(w, "ba2", 9), CLT_IO, "exists already");
    clt_error_quiet(false);
    clt_ckpt_writer_destroy(w);
}

static void test_overwrite(void **state) {
    (void)state;
    clt_ckpt_writer *w = writer(&one, FIRST, true);
    assert_int_equal(save_with(w, "last", 1), CLT_OK);
    cu_state_fill(&one, 7);
    assert_int_equal(save_with(w, "last", 2), CLT_OK); /* the same run: its data get another name */
    assert_int_equal(cu_check(RUN "/last", &one), CLT_OK);
    assert_int_equal(count(RUN "/last", "data."), 1);
    assert_int_equal(clt_io_write_atomic(RUN "/notes/a.txt", "x", 1), CLT_OK);
    clt_error_quiet(true);
    expect(save_with(w, "notes", 3), CLT_IO, "not a checkpoint");
    clt_error_quiet(false);
    clt_ckpt_writer_destroy(w);
}

/* Threads compress; the file is still written in order. */
static void test_threads(void **state) {
    (void)state;
    cu_state big;
    clt_ckpt_writer *w;
    cu_state_create(&big, true, 5);
    clt_ckpt_writer_params p = cu_params(&big, RUN);
    p.threads = 3;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(save_with(w, "ba1", 1), CLT_OK);
    clt_ckpt_writer_destroy(w);
    assert_int_equal(cu_check(RUN "/ba1", &big), CLT_OK);
    cu_state_free(&big);
}

static void test_supersede(void **state) {
    (void)state;
    char *text;
    size_t bytes;
    save(&one, FIRST, "ba1", 1);
    save(&one, FIRST, "ba2", 2);
    assert_int_equal(clt_ckpt_supersede(NULL, RUN, 1, SECOND), CLT_OK);
    assert_int_equal(all_verify(), 1);
    save(&two, SECOND, "ba2", 2); /* cleans the folder first */
    assert_int_equal(cu_check(RUN "/ba2", &two), CLT_OK);
    assert_int_equal(count(RUN "/ba2", "data."), 2);
    /* Again; the superseded checkpoint is read under its old name. */
    assert_int_equal(clt_ckpt_supersede(NULL, RUN, 1, SECOND), CLT_OK);
    assert_int_equal(clt_ckpt_supersede(NULL, RUN, 1, SECOND), CLT_OK);
    assert_int_equal(count(RUN, "ba2.superseded."), 2);
    assert_int_equal(clt_io_read_all(RUN "/ba2.superseded." SECOND, 1 << 20, &text, &bytes), CLT_OK);
    assert_int_equal(clt_io_write_atomic(RUN "/ba2/manifest.json", text, bytes), CLT_OK);
    clt_free(text);
    assert_int_equal(cu_check(RUN "/ba2", &one), CLT_OK);
    save(&two, FIRST, "ba2", 3); /* replaces it; its data are the superseded one's, too */
    assert_int_equal(count(RUN "/ba2", "data."), 3);
}

/* --- failures --- */

static void arm(long n, bool die) {
    clt_io_fault_arm(
        probe,
        &(clt_io_fault){
            .op = CLT_IO_OPS, .first = n, .last = die ? LONG_MAX : n, .kind = CLT_IO_FAIL, .error = EIO});
}

/* Saves `two` as NAME with a fault at operation n, then looks at what is left, as the next run does. Returns
 * whether the fault took effect. */
static bool fault_at(const mem_state *before, const char *name, long n, bool die) {
    mem_restore(fs, before);
    clt_error_quiet(true);
    clt_ckpt_writer *w = writer(&two, SECOND, true);
    arm(n, die);
    clt_status st = save_with(w, name, 3);
    bool fired = clt_io_fault_fired(probe);
    clt_ckpt_writer_destroy(w);
    clt_io_fault_arm(probe, NULL);
    clt_error_quiet(false);
    int listed = all_verify();
    char *path = clt_path_join(RUN, name);
    clt_io_info info;
    char *manifest = clt_path_join(path, "manifest.json");
    assert_int_equal(clt_io_stat(manifest, &info), CLT_OK);
    bool is_new = info.kind == CLT_IO_FILE && cu_check(path, &two) == CLT_OK;
    if (st == CLT_OK && !is_new) fail_msg("operation %ld: the save is said to be there and is not", n);
    if (!die && st != CLT_OK && is_new) fail_msg("operation %ld: a save that failed is there", n);
    if (!is_new && !strcmp(name, "ba1")) assert_int_equal(cu_check(path, &one), CLT_OK);
    assert_true(listed >= 1);
    clt_free(manifest);
    /* The next run removes what is left, and saves. */
    save(&one, FIRST, "ba4", 4);
    all_verify();
    assert_true(count(path, "data.") <= 1);
    clt_free(path);
    return fired;
}

static void every_fault(const char *name) {
    save(&one, FIRST, "ba1", 1);
    mem_state *before = mem_save(fs);
    for (int die = 0; die <= 1; die++) {
        long n = 1;
        while (fault_at(before, name, n, die)) n++;
        assert_true(n > 15);
    }
    mem_free(before);
}

static void test_fault_new(void **state) {
    (void)state;
    every_fault("ba3");
}
static void test_fault_overwrite(void **state) {
    (void)state;
    every_fault("ba1");
}

/* The store did what was asked, and the answer was lost. */
static const clt_io_ops *real;
static int replace_without_answer(clt_io_component *c, const char *path, const void *data, size_t bytes,
                                  const char *expected, char version[CLT_IO_VERSION_BYTES]) {
    int e = real->replace(c, path, data, bytes, expected, version);
    return e ? e : ETIMEDOUT;
}

static void test_lost_answer(void **state) {
    (void)state;
    clt_io_component *c = mem_component(fs);
    real = c->ops;
    clt_io_ops lossy = *real;
    lossy.replace = replace_without_answer;
    clt_ckpt_writer *w = writer(&one, FIRST, false);
    c->ops = &lossy;
    clt_status st = save_with(w, "ba1", 1);
    c->ops = real;
    assert_int_equal(st, CLT_OK);
    clt_ckpt_writer_destroy(w);
    assert_int_equal(cu_check(RUN "/ba1", &one), CLT_OK);
}

static clt_status no_data(void *ctx, int entry, uint64_t first, float *dst, uint64_t n) {
    (void)ctx, (void)entry, (void)first, (void)dst, (void)n;
    return clt_error(CLT_FAIL, "the device is gone");
}

static void test_device_fails(void **state) {
    (void)state;
    cu_state broken;
    cu_state_create(&broken, false, 1);
    broken.part[1] = (clt_ckpt_part){.role = "exp_avg", .read = no_data};
    clt_error_quiet(true);
    clt_ckpt_writer *w = writer(&broken, FIRST, false);
    assert_int_equal(save_with(w, "ba1", 1), CLT_FAIL);
    clt_error_quiet(false);
    clt_ckpt_writer_destroy(w);
    assert_int_equal(count(RUN "/ba1", ""), 0);
    cu_state_free(&broken);
}

/* --- two runs --- */

static void test_lock_lost(void **state) {
    (void)state;
    clt_run_lock *lock, *other;
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(&one, RUN);
    clt_checkpoint_state n = cu_numbers(1);
    assert_int_equal(clt_run_lock_take(NULL, RUN, &lock), CLT_OK);
    p.lock = lock;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, "ba1", &n), CLT_OK);
    n = cu_numbers(2);
    assert_int_equal(clt_ckpt_save_begin(w, "ba2", &n), CLT_OK);
    mem_lose_lock(fs, RUN "/run.lock");
    assert_int_equal(clt_run_lock_take(NULL, RUN, &other), CLT_OK);
    clt_error_quiet(true);
    expect(clt_ckpt_save_finish(w), CLT_IO, "lost the lock");
    clt_error_quiet(false);
    assert_int_equal(count(RUN "/ba2", ""), 0);
    assert_int_equal(all_verify(), 1);
    clt_ckpt_writer_destroy(w);
    clt_run_lock_release(other);
    clt_run_lock_release(lock);
}

/* Two runs that both believe to be alone save under one name. */
static void race(int64_t batch, bool overwrite) {
    clt_checkpoint_state n = cu_numbers(batch);
    clt_ckpt_writer *a = writer(&one, FIRST, overwrite), *b = writer(&two, SECOND, overwrite);
    assert_int_equal(clt_ckpt_save_begin(a, "ba5", &n), CLT_OK);
    assert_int_equal(clt_ckpt_save_begin(b, "ba5", &n), CLT_OK);
    assert_int_equal(clt_ckpt_save_finish(b), CLT_OK);
    clt_ckpt_writer_destroy(b); /* waits for what follows its commit */
    clt_error_quiet(true);
    expect(clt_ckpt_save_finish(a), CLT_IO, "another run");
    clt_error_quiet(false);
    assert_int_equal(cu_check(RUN "/ba5", &two), CLT_OK);
    assert_int_equal(count(RUN "/ba5", "data."), 1);
    clt_ckpt_writer_destroy(a);
}

static void test_two_writers(void **state) {
    (void)state;
    race(5, false);
    race(6, true);
}

/* --- what follows a commit --- */

static pthread_t unlinked_by;
static int note_unlink(clt_io_component *c, const char *path) {
    unlinked_by = pthread_self();
    clt_sleep(0.05);
    return real->unlink(c, path);
}

/* Old checkpoints are removed while training continues; the next save and the end wait for it. */
static void test_tidies_behind(void **state) {
    (void)state;
    clt_io_component *c = mem_component(fs);
    clt_ckpt_writer *w = writer(&one, FIRST, false);
    real = c->ops;
    clt_io_ops slow = *real;
    slow.unlink = note_unlink;
    c->ops = &slow;
    unlinked_by = pthread_self();
    for (int i = 1; i <= 4; i++) {
        char *name = clt_format("ba%d", i);
        clt_checkpoint_state n = cu_numbers(i);
        assert_int_equal(clt_ckpt_save_begin(w, name, &n), CLT_OK);
        assert_int_equal(clt_ckpt_save_finish(w), CLT_OK);
        clt_free(name);
    }
    clt_ckpt_writer_destroy(w);
    c->ops = real;
    assert_false(pthread_equal(unlinked_by, pthread_self()));
    assert_int_equal(all_verify(), 2);
    assert_int_equal(count(RUN "/ba1", "") + count(RUN "/ba2", ""), 0);
    expect_resolved(RUN "/latest", RUN "/ba4");
}

/* --- prune --- */

typedef struct {
    clt_str paths;
    uint64_t bytes;
} waste;

static void add_waste(void *ctx, const clt_ckpt_waste *w) {
    waste *all = ctx;
    clt_str_addf(&all->paths, "%s%s", all->paths.len ? " " : "", w->path + strlen(RUN "/"));
    all->bytes += w->bytes;
}

static void put(const char *path, const char *text) {
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
}

/* Prunes; what was removed, or would be, has these paths and so many bytes. */
static void prune(int64_t keep, bool dry_run, const char *paths, uint64_t bytes) {
    waste all = {{0}, 0};
    clt_ckpt_prune_params p = clt_ckpt_prune_params_default();
    p.keep = keep;
    p.dry_run = dry_run;
    p.each = add_waste;
    p.ctx = &all;
    assert_int_equal(clt_ckpt_prune(RUN, &p), CLT_OK);
    assert_string_equal(all.paths.s ? all.paths.s : "", paths);
    if (bytes) assert_int_equal(all.bytes, bytes);
    clt_str_free(&all.paths);
}

#define KILLED "ba2/data." SECOND ".7.00000.bin"
#define ALONE "ba9/data." SECOND ".8.00003.bin"

static void test_prune(void **state) {
    (void)state;
    save(&one, FIRST, "ba1", 1);
    save(&one, FIRST, "ba2", 2);
    prune(-1, false, "", 0);
    put(RUN "/" KILLED, "12345");
    put(RUN "/" ALONE, "678");
    put(RUN "/ba9/data.00000.bin", "not ours");
    put(RUN "/set/data.parquet", "not ours");
    put(RUN "/notes.txt", "not ours");
    prune(-1, true, KILLED " " ALONE, 8);
    mem_state *before = mem_save(fs);
    prune(-1, false, KILLED " " ALONE, 8);
    prune(-1, false, "", 0);
    assert_int_equal(count(RUN "/ba9", "data."), 1);
    assert_int_equal(count(RUN "/set", "data."), 1);
    assert_int_equal(all_verify(), 2);

    /* What cannot be removed is an error, and the first one. */
    mem_restore(fs, before);
    clt_io_fault_arm(probe, &(clt_io_fault){.op = CLT_IO_UNLINK, .first = 1, .last = 1, .error = EACCES});
    clt_ckpt_prune_params p = clt_ckpt_prune_params_default();
    clt_error_quiet(true);
    expect(clt_ckpt_prune(RUN, &p), CLT_IO, KILLED);
    clt_error_quiet(false);
    clt_io_fault_arm(probe, NULL);
    assert_int_equal(count(RUN "/ba2", "data."), 2);
    mem_free(before);
}

static void test_prune_keep(void **state) {
    (void)state;
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(&one, RUN);
    clt_ckpt_info *list;
    int n;
    p.run_id = FIRST;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    for (int i = 1; i <= 4; i++) {
        char *name = clt_format("ba%d", i);
        assert_int_equal(save_with(w, name, i), CLT_OK);
        clt_free(name);
    }
    clt_ckpt_writer_destroy(w);
    assert_int_equal(clt_ckpt_supersede(NULL, RUN, 3, SECOND), CLT_OK); /* ba4: its data stay */
    size_t bytes;
    mem_file(fs, RUN "/ba3/manifest.json", &bytes)[50] ^= 1; /* ba3 is not valid, and its data stay */
    put(RUN "/ba3/data." SECOND ".1.00000.bin", "may be named by the manifest");
    put(RUN "/ba4/data." SECOND ".1.00000.bin", "killed");
    prune(1, true, "ba4/data." SECOND ".1.00000.bin ba1", 0);
    prune(1, false, "ba4/data." SECOND ".1.00000.bin ba1", 0);
    assert_int_equal(count(RUN "/ba1", ""), 0);
    assert_int_equal(count(RUN "/ba2", ""), 2);
    assert_int_equal(count(RUN "/ba3", ""), 3);
    assert_int_equal(count(RUN "/ba4", ""), 1);
    assert_int_equal(clt_ckpt_scan(RUN, &list, &n), CLT_OK);
    assert_int_equal(n, 2);
    assert_true(list[0].valid && !strcmp(list[0].name, "ba2"));
    clt_ckpt_scan_free(list, n);
    assert_int_equal(cu_check(RUN "/ba2", &one), CLT_OK);
}

static void test_prune_refused(void **state) {
    (void)state;
    clt_run_lock *lock;
    clt_ckpt_prune_params p = clt_ckpt_prune_params_default();
    clt_error_quiet(true);
    expect(clt_ckpt_prune(RUN, &p), CLT_IO, "does not exist");
    assert_int_equal(count(RUN, ""), 0); /* nor was it created */
    save(&one, FIRST, "ba1", 1);
    put(RUN "/" ALONE, "678");
    expect(clt_ckpt_prune(RUN "/ba1", &p), CLT_BAD_DATA, "name the folder that holds it");
    assert_int_equal(setenv("CLTRAIN_LOCK_WAIT", "0", 1), 0);
    assert_int_equal(clt_run_lock_take(NULL, RUN, &lock), CLT_OK);
    expect(clt_ckpt_prune(RUN, &p), CLT_IO, ", process ");
    assert_int_equal(count(RUN "/ba9", ""), 1);
    prune(-1, true, ALONE, 3);
    clt_run_lock_release(lock);
    unsetenv("CLTRAIN_LOCK_WAIT");
    p.keep = 0;
    expect(clt_ckpt_prune(RUN, &p), CLT_BAD_CONFIG, "at least one");
    clt_error_quiet(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_saves, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_overwrite, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_supersede, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fault_new, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fault_overwrite, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lost_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_device_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lock_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_writers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tidies_behind, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prune, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prune_keep, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prune_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
