/* Copies of checkpoints from a file system to an object store and to a file system: what is there afterwards,
 * also after a failure or the end of the process at any operation. */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io_probe.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

#define FROM "disk:///run"
#define TO "mem:///copies"
#define RUN_ID "0123456789abcdef"

static memfs *disk, *fs;
static clt_io_probe *probe;
static cu_state one, two;

static int begin(bool store) {
    disk = mem_mount("disk");
    fs = mem_create();
    if (store) mem_become_object_store(fs);
    probe = clt_io_probe_create(mem_component(fs));
    cu_state_create(&one, false, 1);
    cu_state_create(&two, false, 2);
    return clt_io_register("mem", clt_io_probe_component(probe)) == CLT_OK ? 0 : -1;
}
static int on_store(void **state) {
    (void)state;
    return begin(true);
}
static int on_disk(void **state) {
    (void)state;
    return begin(false);
}

static int end(void **state) {
    (void)state;
    clt_io_unregister("mem");
    clt_io_unregister("disk");
    clt_io_probe_destroy(probe);
    mem_destroy(fs);
    mem_destroy(disk);
    cu_state_free(&one);
    cu_state_free(&two);
    return 0;
}

/* A run of its own saves `s` as baBATCH. */
static void save(cu_state *s, int64_t batch) {
    static unsigned runs;
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(s, FROM);
    clt_checkpoint_state n = cu_numbers(batch);
    char *name = clt_format("ba%lld", (long long)batch);
    char *run_id = clt_format("%016x", ++runs);
    p.run_id = run_id;
    p.overwrite = true;
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, name, &n), CLT_OK);
    clt_ckpt_writer_destroy(w);
    clt_free(name);
    clt_free(run_id);
}

static clt_ckpt_copy_params params(void) {
    static unsigned copies;
    return (clt_ckpt_copy_params){
        .folder = TO, .run_id = RUN_ID, .number = ++copies, .latest = "newest", .keep = 2};
}

/* Copies baBATCH as a mirror does. */
static clt_status copy(int64_t batch, bool *copied) {
    const clt_ckpt_copy_params p = params();
    char *from = clt_format(FROM "/ba%lld", (long long)batch);
    clt_status st = clt_ckpt_copy_prepare(&p, batch);
    if (st == CLT_OK) st = clt_ckpt_copy(from, &p, copied);
    clt_free(from);
    return st;
}

static void copy_well(int64_t batch, bool want) {
    bool copied = !want;
    assert_int_equal(copy(batch, &copied), CLT_OK);
    assert_int_equal(copied, want);
}

/* How many checkpoints are listed; all of them verify to the last chunk. */
static int all_verify(void) {
    clt_ckpt_info *list;
    int n;
    if (!clt_io_is_dir(TO)) return 0;
    assert_int_equal(clt_ckpt_scan(TO, &list, &n), CLT_OK);
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

/* Data files of TO/NAME. */
static int data_of(const char *name) {
    char *path = clt_path_join(TO, name);
    clt_strv names = {0};
    int n = 0;
    assert_int_equal(clt_io_list(path, &names), CLT_OK);
    for (size_t i = 0; i < names.n; i++) n += !strncmp(names.v[i], "data.", 5);
    clt_strv_free(&names);
    clt_free(path);
    return n;
}

static void test_copies(void **state) {
    (void)state;
    char *newest, *hint;
    save(&one, 1);
    copy_well(1, true);
    copy_well(1, false);
    assert_int_equal(cu_check(TO "/ba1", &one), CLT_OK);
    save(&two, 2);
    save(&one, 3);
    copy_well(2, true);
    copy_well(3, true); /* two are kept */
    assert_false(clt_io_is_dir(TO "/ba1"));
    assert_int_equal(all_verify(), 2);
    assert_int_equal(cu_check(TO "/ba2", &two), CLT_OK);
    assert_int_equal(clt_ckpt_find_newest(NULL, TO, &newest), CLT_OK);
    assert_string_equal(newest, TO "/ba3");
    clt_free(newest);
    assert_int_equal(clt_io_read_all(TO "/newest", 100, &hint, NULL), CLT_OK);
    assert_string_equal(hint, "ba3\n");
    clt_free(hint);
}

/* A checkpoint of this name that another process saved is replaced, and nothing of it is left. */
static void test_replaces(void **state) {
    (void)state;
    save(&one, 1);
    copy_well(1, true);
    save(&two, 1);
    copy_well(1, true);
    assert_int_equal(cu_check(TO "/ba1", &two), CLT_OK);
    assert_int_equal(data_of("ba1"), 1);
}

/* What is later than the batch at which a run begins is set aside. */
static void test_later_ones(void **state) {
    (void)state;
    const clt_ckpt_copy_params p = params();
    save(&one, 1);
    save(&one, 2);
    copy_well(1, true);
    copy_well(2, true);
    assert_int_equal(clt_ckpt_copy_prepare(&p, 1), CLT_OK);
    assert_int_equal(all_verify(), 1);
    assert_int_equal(cu_check(TO "/ba1", &one), CLT_OK);
}

static void test_source_is_bad(void **state) {
    (void)state;
    bool copied;
    save(&one, 1);
    save(&two, 2);
    copy_well(1, true);
    clt_error_quiet(true);
    assert_int_equal(copy(7, &copied), CLT_IO); /* not there */
    assert_int_equal(clt_io_write_atomic(FROM "/ba2/data.00000.bin", "short", 5), CLT_OK);
    assert_int_equal(copy(2, &copied), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_int_equal(all_verify(), 1);
}

/* Copies ba1 with a fault at operation n of the storage (die: and at all later ones), then looks at what is
 * left and copies again, as the next attempt does. Returns whether the fault took effect. */
static bool fault_at(const mem_state *before, long n, bool die) {
    bool copied = false;
    mem_restore(fs, before);
    clt_error_quiet(true);
    clt_io_fault_arm(
        probe,
        &(clt_io_fault){
            .op = CLT_IO_OPS, .first = n, .last = die ? LONG_MAX : n, .kind = CLT_IO_FAIL, .error = EIO});
    clt_status st = copy(1, &copied);
    const bool fired = clt_io_fault_fired(probe);
    clt_io_fault_arm(probe, NULL);
    clt_error_quiet(false);
    const int listed = all_verify();
    if (copied && cu_check(TO "/ba1", &two) != CLT_OK) fail_msg("operation %ld: the copy is not there", n);
    if (copied != (st == CLT_OK)) fail_msg("operation %ld: status %d", n, st);
    assert_true(listed <= 1);
    assert_int_equal(copy(1, &copied), CLT_OK);
    assert_int_equal(all_verify(), 1);
    assert_int_equal(cu_check(TO "/ba1", &two), CLT_OK);
    assert_int_equal(data_of("ba1"), 1);
    return fired;
}

static void every_fault(void) {
    mem_state *before = mem_save(fs);
    save(&two, 1);
    for (int die = 0; die <= 1; die++) {
        long n = 1;
        while (fault_at(before, n, die)) n++;
        assert_true(n > 12);
    }
    mem_free(before);
}
static void test_faults(void **state) {
    (void)state;
    every_fault();
}
static void test_faults_replacing(void **state) {
    (void)state;
    save(&one, 1);
    copy_well(1, true);
    every_fault();
}

/* A request to stop ends a copy; nothing is published. */
static void test_stop(void **state) {
    (void)state;
    const atomic_bool stop = true;
    bool copied = false;
    save(&one, 1);
    const clt_ckpt_copy_params p = params();
    assert_int_equal(clt_ckpt_copy_prepare(&p, 1), CLT_OK);
    clt_io_heed_flag(&stop);
    assert_int_equal(clt_ckpt_copy(FROM "/ba1", &p, &copied), CLT_STOPPED);
    clt_io_heed_flag(NULL);
    assert_false(copied);
    assert_int_equal(all_verify(), 0);
}

int main(void) {
#define BOTH(test)                                                                                           \
    {"store: " #test, test, on_store, end, NULL}, {                                                          \
        "disk: " #test, test, on_disk, end, NULL                                                             \
    }
    const struct CMUnitTest tests[] = {
        BOTH(test_copies), BOTH(test_replaces),         BOTH(test_later_ones), BOTH(test_source_is_bad),
        BOTH(test_faults), BOTH(test_faults_replacing), BOTH(test_stop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
