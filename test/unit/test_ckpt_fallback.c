/* Folders in a bad state: damaged chunks, missing manifests, stale hints, links out of the folder; and what
 * load_ignore_keys and a loose load do not change. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io_probe.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

static memfs *fs; /* mem:/// */

static void save(cu_state *s, const char *folder, int64_t batch) {
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(s, folder);
    clt_checkpoint_state n = cu_numbers(batch);
    char *name = clt_format("ba%lld", (long long)batch);
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, name, &n), CLT_OK);
    clt_ckpt_writer_destroy(w);
    clt_free(name);
}

static void set_up(cu_state *s) {
    fs = mem_mount("mem");
    cu_state_create(s, false, 1);
    for (int b = 1; b <= 3; b++) save(s, "mem:///run", b);
}

static void tear_down(cu_state *s) {
    cu_state_free(s);
    clt_io_unregister("mem");
    mem_destroy(fs);
}

static void expect_newest(const char *want) {
    char *path = NULL;
    assert_int_equal(clt_ckpt_find_newest(NULL, "mem:///run", &path), CLT_OK);
    assert_non_null(path);
    assert_string_equal(path, want);
    clt_free(path);
}

/* The C library's, until a listing is to fail. */
static bool lists_break;
struct dirent *readdir(DIR *d) {
    static struct dirent *(*next)(DIR *);
    if (!next) *(void **)(void *)&next = dlsym(RTLD_NEXT, "readdir");
    errno = lists_break ? EIO : errno;
    return lists_break ? NULL : next(d);
}

/* An incomplete listing must not pass for a folder without checkpoints. */
static void test_broken_list(void **state) {
    (void)state;
    char folder[] = "/tmp/clt_list_XXXXXX", *path = NULL;
    clt_strv names = {0};
    assert_non_null(mkdtemp(folder));
    assert_int_equal(clt_io_list(folder, &names), CLT_OK);
    lists_break = true;
    clt_error_quiet(true);
    assert_int_equal(clt_io_list(folder, &names), CLT_IO);
    assert_int_equal(clt_ckpt_find_newest(NULL, folder, &path), CLT_IO);
    clt_error_quiet(false);
    lists_break = false;
    assert_null(path);
    assert_int_equal(rmdir(folder), 0);
    clt_strv_free(&names);
}

/* A flipped bit in a data file is found only by reading. */
static void test_damaged_chunk(void **state) {
    (void)state;
    cu_state s;
    size_t n;
    char *path = NULL;
    set_up(&s);
    expect_newest("mem:///run/ba3");
    mem_file(fs, "mem:///run/ba3/data.00000.bin", &n)[n / 2] ^= 4;
    expect_newest("mem:///run/ba2");
    mem_file(fs, "mem:///run/ba2/data.00000.bin", &n)[n - 1] ^= 1;
    expect_newest("mem:///run/ba1");
    mem_file(fs, "mem:///run/ba1/data.00000.bin", &n)[0] ^= 128;
    /* None is left: never a silent new start. */
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_find_newest(NULL, "mem:///run", &path), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_non_null(strstr(clt_last_error(), "none is usable"));
    /* For a checkpoint that is requested by name, an error says where the damage is. */
    clt_ckpt_reader *r;
    assert_int_equal(clt_ckpt_open("mem:///run/ba2", &r), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_verify(r), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_non_null(strstr(clt_last_error(),
                           "data.00000.bin is damaged: tensor 'transformer.norm_f.weight' (exp_avg_sq)"));
    clt_ckpt_close(r);
    tear_down(&s);
}

/* A folder without its manifest takes the name of a checkpoint: it is superseded. */
static void test_missing_manifest(void **state) {
    (void)state;
    cu_state s;
    set_up(&s);
    assert_int_equal(clt_io_unlink("mem:///run/ba3/manifest.json"), CLT_OK);
    expect_newest("mem:///run/ba2");
    assert_int_equal(clt_ckpt_supersede(NULL, "mem:///run", 2, "00000000000000cc"), CLT_OK);
    assert_true(clt_io_is_dir("mem:///run/ba3.superseded.00000000000000cc"));
    save(&s, "mem:///run", 3);
    /* The same name is taken again, and gets another name. */
    assert_int_equal(clt_io_unlink("mem:///run/ba3/manifest.json"), CLT_OK);
    assert_int_equal(clt_ckpt_supersede(NULL, "mem:///run", 2, "00000000000000cc"), CLT_OK);
    assert_true(clt_io_is_dir("mem:///run/ba3.superseded.00000000000000cc-2"));
    save(&s, "mem:///run", 3);
    expect_newest("mem:///run/ba3");
    tear_down(&s);
}

static void test_stale_hint(void **state) {
    (void)state;
    cu_state s;
    char *path = NULL;
    set_up(&s);
    assert_int_equal(clt_ckpt_resolve(NULL, "mem:///run/latest", &path), CLT_OK);
    assert_string_equal(path, "mem:///run/ba3");
    clt_free(path);
    assert_int_equal(clt_ckpt_supersede(NULL, "mem:///run", 2, "00000000000000cc"), CLT_OK);
    assert_int_equal(clt_ckpt_resolve(NULL, "mem:///run/latest", &path), CLT_OK);
    assert_string_equal(path, "mem:///run/ba2");
    clt_free(path);
    /* A hint must not point outside its folder. */
    assert_int_equal(clt_io_write_atomic("mem:///run/latest", "../run/ba1\n", 11), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_resolve(NULL, "mem:///run/latest", &path), CLT_BAD_DATA);
    clt_error_quiet(false);
    tear_down(&s);
}

/* Any operation on files fails once while the newest checkpoint is searched: it is found, or an older one is
 * (a warning says why), or there is an error. "There is none" would be a silent new start. */
static void test_errors(void **state) {
    (void)state;
    cu_state s;
    long n = 1, same = 0, older = 0, errors = 0;
    set_up(&s);
    clt_io_probe *probe = clt_io_probe_create(mem_component(fs));
    assert_int_equal(clt_io_register("mem", clt_io_probe_component(probe)), CLT_OK);
    clt_error_quiet(true);
    for (bool fired = true; fired; n++) {
        char *path = NULL;
        clt_io_fault_arm(probe, &(clt_io_fault){.op = CLT_IO_OPS, .first = n, .last = n, .error = EIO});
        clt_status st = clt_ckpt_find_newest(NULL, "mem:///run", &path);
        fired = clt_io_fault_fired(probe);
        if (st == CLT_OK && !path) fail_msg("operation %ld: no checkpoint is found, and no error", n);
        if (st != CLT_OK)
            errors++;
        else
            *(strcmp(path, "mem:///run/ba3") ? &older : &same) += 1;
        clt_free(path);
    }
    clt_error_quiet(false);
    clt_io_fault_arm(probe, NULL);
    print_message("%ld operations fail: newest %ld, an older one %ld, error %ld\n", n - 2, same, older,
                  errors);
    assert_true(n > 20 && errors < 4);
    tear_down(&s);
    clt_io_probe_destroy(probe);
}

static void test_link(void **state) {
    (void)state;
    cu_state s;
    char dir[] = "/tmp/clt_link_XXXXXX", *from, *to, *ckpt;
    clt_ckpt_info *list;
    int n;
    assert_non_null(mkdtemp(dir));
    cu_state_create(&s, false, 1);
    save(&s, dir, 1);
    ckpt = clt_format("%s/ba1", dir);
    from = clt_format("%s/ba1/data.00000.bin", dir);
    to = clt_format("%s/elsewhere", dir);
    assert_int_equal(cu_check(ckpt, &s), CLT_OK);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(symlink("../elsewhere", from), 0);
    clt_error_quiet(true);
    assert_int_equal(cu_check(ckpt, &s), CLT_IO);
    clt_error_quiet(false);
    assert_non_null(strstr(clt_last_error(), "symbolic link"));
    /* It does not count as one of the two valid checkpoints that are kept. */
    assert_int_equal(clt_ckpt_scan(dir, &list, &n), CLT_OK);
    assert_int_equal(n, 1);
    assert_false(list[0].valid);
    assert_non_null(strstr(list[0].why, "symbolic link"));
    clt_ckpt_scan_free(list, n);
    clt_io_remove_tree(dir);
    clt_free(ckpt);
    clt_free(from);
    clt_free(to);
    cu_state_free(&s);
}

/* Loads ba1 into a state of other values; returns which of {wte, norm_1, norm_f} x parts were replaced, as
 * text. */
static char *loaded(const cu_state *saved, const char *pattern) {
    cu_state got, before;
    clt_ckpt_reader *r;
    clt_str text = {0};
    cu_state_create(&got, false, 7);
    cu_state_create(&before, false, 7);
    clt_load_options opt = {.ignore = &pattern, .ignore_count = 1};
    assert_int_equal(clt_ckpt_open("mem:///run/ba1", &r), CLT_OK);
    assert_int_equal(clt_ckpt_load(r, &got.table, got.part, CU_PARTS, &opt), CLT_OK);
    for (int p = 0; p < CU_PARTS; p++)
        for (int e = 0; e < got.table.n; e++) {
            const clt_slab_entry *t = &got.table.entry[e];
            size_t bytes = t->count * sizeof(float);
            bool new = !memcmp(got.host[p] + t->offset, saved->host[p] + t->offset, bytes);
            bool kept = !memcmp(got.host[p] + t->offset, before.host[p] + t->offset, bytes);
            assert_true(new != kept);
            clt_str_add(&text, new ? "+" : "-");
        }
    clt_ckpt_close(r);
    cu_state_free(&got);
    cu_state_free(&before);
    return text.s;
}

static void test_ignore_keys(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *want; /* wte, norm_1, norm_f of weight, exp_avg, exp_avg_sq */
    } cases[] = {
        {"transformer.wte.weight", "-++-++-++"},
        {"*norm*", "+--+--+--"},
        {"state/model/*norm_f*", "++-++++++"},
        {"state/model/model.transformer.wte.weight", "-++++++++"},
        {"state/model", "---++++++"},
        {"state/optimizers*", "+++------"},
        {"state/optimizers/DecoupledAdamW/state/model.transformer.norm_f.weight", "+++++-++-"},
        {"state/optimizers/*/exp_avg_sq", "++++++---"},
        {"state/optimizers/*/exp_avg", "+++---+++"},
        {"state/schedulers", "+++++++++"},
        {"wte", "+++++++++"},
    };
    cu_state s;
    set_up(&s);
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        char *got = loaded(&s, cases[i].pattern);
        if (strcmp(got, cases[i].want)) fail_msg("%s: %s, not %s", cases[i].pattern, got, cases[i].want);
        clt_free(got);
    }
    tear_down(&s);
}

/* A model with a tensor more than the checkpoint, and one less. */
static void test_loose(void **state) {
    (void)state;
    cu_state s, big;
    clt_ckpt_reader *r;
    set_up(&s);
    cu_state_create(&big, true, 9);
    clt_load_options loose = {.loose = true};
    assert_int_equal(clt_ckpt_open("mem:///run/ba1", &r), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_ckpt_load(r, &big.table, big.part, CU_PARTS, NULL), CLT_BAD_DATA);
    clt_error_quiet(false);
    float kept = big.host[0][big.table.entry[2].offset];
    assert_int_equal(clt_ckpt_load(r, &big.table, big.part, CU_PARTS, &loose), CLT_OK);
    assert_true(big.host[0][big.table.entry[2].offset] == kept);
    assert_memory_equal(big.host[0], s.host[0], 37 * 8 * sizeof(float));
    clt_ckpt_close(r);
    cu_state_free(&big);
    tear_down(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_list),
        cmocka_unit_test(test_damaged_chunk),
        cmocka_unit_test(test_missing_manifest),
        cmocka_unit_test(test_stale_hint),
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_ignore_keys),
        cmocka_unit_test(test_loose),
    };
    clt_log_set_level(CLT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
