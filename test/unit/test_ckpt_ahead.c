/* Chunks that are read ahead: loads, hashes and verifications get the right bytes, read what they need and
 * nothing else, once, on several threads; and damage is reported as without it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_philox.h"
#include "runtime/checkpoint/clt_ckpt_internal.h"
#include "test/ckpt_util.h"
#include "test/memfs.h"

#define RUN "mem:///run"
#define BIG "transformer.blocks.0.ffn.up_proj.weight"

static memfs *fs;
static cu_state big;
static const clt_io_ops *real;
static clt_io_ops watched;
static _Atomic uint64_t bytes_read;
static atomic_int reading, most;
static atomic_bool slow, broken;

static int watch_pread(clt_io_component *c, void *h, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    const int now = 1 + atomic_fetch_add(&reading, 1);
    for (int seen = most; now > seen && !atomic_compare_exchange_weak(&most, &seen, now);) continue;
    if (slow) clt_sleep(0.03);
    int e = broken ? EIO : real->pread(c, h, dst, bytes, offset, done);
    if (!e) bytes_read += *done;
    reading--;
    return e;
}

static int set_up(void **state) {
    (void)state;
    fs = mem_create();
    mem_become_object_store(fs);
    clt_io_component *c = mem_component(fs);
    real = c->ops;
    watched = *real;
    watched.pread = watch_pread;
    c->ops = &watched;
    cu_state_create(&big, true, 5);
    clt_ckpt_writer *w;
    clt_ckpt_writer_params p = cu_params(&big, RUN);
    clt_checkpoint_state n = cu_numbers(1);
    if (clt_io_register("mem", c) != CLT_OK || clt_ckpt_writer_create(&p, &w) != CLT_OK) return -1;
    clt_status st = clt_ckpt_save(w, "ba1", &n);
    clt_ckpt_writer_destroy(w);
    return st == CLT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    clt_io_unregister("mem");
    mem_destroy(fs);
    cu_state_free(&big);
    slow = broken = false;
    return 0;
}

static clt_ckpt_reader *open_it(const char *path) {
    clt_ckpt_reader *r;
    assert_int_equal(clt_ckpt_open(path, &r), CLT_OK);
    bytes_read = 0;
    most = 0;
    return r;
}

/* Stored bytes of the tensors but for `without` in the role `role`. */
static uint64_t stored(const clt_ckpt_reader *r, const char *role, const char *without) {
    uint64_t sum = 0;
    for (int i = 0; i < clt_ckpt_count(r); i++) {
        clt_ckpt_tensor t;
        clt_ckpt_at(r, i, &t);
        if (strcmp(t.role, role) != 0 || strcmp(t.name, without) != 0) sum += t.stored;
    }
    return sum;
}

/* --- what is read --- */

static void test_reads_once(void **state) {
    (void)state;
    clt_ckpt_reader *r = open_it(RUN "/ba1");
    slow = true;
    assert_int_equal(clt_ckpt_verify(r), CLT_OK);
    assert_int_equal(bytes_read, stored(r, "", ""));
    assert_true(most > 1);
    slow = false;
    bytes_read = 0;
    clt_state_hash a, b;
    assert_int_equal(clt_ckpt_hash(r, &a), CLT_OK);
    assert_int_equal(bytes_read, stored(r, "", ""));
    assert_int_equal(clt_ckpt_hash_parts(NULL, &big.table, big.part, CU_PARTS, &b), CLT_OK);
    assert_memory_equal(&a.weights, &b.weights, sizeof a.weights);
    assert_memory_equal(&a.optimizer, &b.optimizer, sizeof a.optimizer);
    clt_ckpt_close(r);
}

static void test_only_wanted(void **state) {
    (void)state;
    clt_ckpt_reader *r = open_it(RUN "/ba1");
    cu_state other;
    cu_state_create(&other, true, 6);
    const char *ignore[] = {"state/optimizers/DecoupledAdamW/state/" BIG "/exp_avg"};
    const clt_load_options opt = {.ignore = ignore, .ignore_count = 1};
    assert_int_equal(clt_ckpt_load(r, &other.table, other.part, CU_PARTS, &opt), CLT_OK);
    assert_int_equal(bytes_read, stored(r, "exp_avg", BIG));
    const size_t all = big.table.total * sizeof(float);
    assert_memory_equal(other.host[0], big.host[0], all);
    assert_memory_equal(other.host[2], big.host[2], all);
    assert_true(memcmp(other.host[1], big.host[1], all) != 0); /* kept its values */
    clt_ckpt_close(r);
    cu_state_free(&other);
}

/* --- what goes wrong --- */

static void expect_error(clt_status st, clt_status want, const char *says) {
    assert_int_equal(st, want);
    if (!strstr(clt_last_error(), says)) fail_msg("'%s' does not say '%s'", clt_last_error(), says);
}

static void test_damage(void **state) {
    (void)state;
    clt_manifest *m;
    size_t bytes;
    assert_int_equal(clt_manifest_load(RUN "/ba1", true, &m), CLT_OK);
    char *path = clt_format(RUN "/ba1/%s", m->file[0].name);
    unsigned char *data = mem_file(fs, path, &bytes);
    for (size_t i = 0; i < m->chunks; i++) {
        const clt_man_chunk *c = &m->chunk[i];
        char *where = clt_format("tensor '%s' (%s), chunk %zu of", m->tensor[c->tensor].name,
                                 m->tensor[c->tensor].role, i - m->tensor[c->tensor].first_chunk);
        data[c->at.offset + c->at.stored / 2] ^= 1;
        clt_ckpt_reader *r = open_it(RUN "/ba1");
        clt_error_quiet(true);
        expect_error(clt_ckpt_verify(r), CLT_BAD_DATA, where);
        cu_state other;
        cu_state_create(&other, true, 6);
        expect_error(clt_ckpt_load(r, &other.table, other.part, CU_PARTS, NULL), CLT_BAD_DATA, where);
        clt_error_quiet(false);
        cu_state_free(&other);
        clt_ckpt_close(r);
        data[c->at.offset + c->at.stored / 2] ^= 1;
        clt_free(where);
    }
    assert_int_equal(cu_check(RUN "/ba1", &big), CLT_OK);
    clt_free(path);
    clt_manifest_free(m);
}

static void test_unreadable(void **state) {
    (void)state;
    clt_ckpt_reader *r = open_it(RUN "/ba1");
    broken = true;
    clt_error_quiet(true);
    expect_error(clt_ckpt_verify(r), CLT_IO, "Input/output error");
    broken = false;
    clt_error_quiet(false);
    assert_int_equal(clt_ckpt_verify(r), CLT_OK); /* nothing of the failure stays */
    clt_ckpt_close(r);
}

/* --- two readers: one reads ahead, the other reads by itself --- */

static clt_status verify_other(void *ctx, int entry, uint64_t first, const float *src, uint64_t count) {
    (void)entry, (void)first, (void)src, (void)count;
    return clt_ckpt_verify(ctx);
}

static void test_two_readers(void **state) {
    (void)state;
    clt_ckpt_reader *a = open_it(RUN "/ba1"), *b = open_it(RUN "/ba1");
    clt_ckpt_part part = {.role = "exp_avg", .write = verify_other, .ctx = b};
    assert_int_equal(clt_ckpt_load(a, &big.table, &part, 1, NULL), CLT_OK);
    assert_int_equal(cu_check(RUN "/ba1", &big), CLT_OK);
    clt_ckpt_close(a);
    clt_ckpt_close(b);
}

/* --- many files --- */

enum { FILES = 40 };

static void write_file(const char *folder, const char *name, const void *data, size_t bytes) {
    char *path = clt_path_join(folder, name);
    assert_int_equal(clt_io_write_atomic(path, data, bytes), CLT_OK);
    clt_free(path);
}

/* Writes the checkpoint `from` to `to`, its chunks dealt to many files, so that neighbours are in different
 * ones and no two chunks of a file in the order of the manifest. */
static void deal(const char *from, const char *to) {
    clt_manifest *m;
    clt_str out[FILES] = {0}, text = {0};
    clt_man_file files[FILES];
    char *data, *path;
    assert_int_equal(clt_manifest_load(from, true, &m), CLT_OK);
    path = clt_path_join(from, m->file[0].name);
    assert_int_equal(clt_io_read_all(path, SIZE_MAX / 2, &data, NULL), CLT_OK);
    for (size_t k = m->chunks; k-- > 0;) {
        clt_man_chunk *c = &m->chunk[k];
        c->file = (uint32_t)(k * 7 % FILES);
        const uint64_t at = out[c->file].len;
        clt_str_addn(&out[c->file], data + c->at.offset, (size_t)c->at.stored);
        c->at.offset = at;
    }
    assert_int_equal(clt_io_mkdirs(to), CLT_OK);
    for (int i = 0; i < FILES; i++) {
        files[i] = (clt_man_file){clt_format("data.%05d.bin", i), out[i].len};
        write_file(to, files[i].name, out[i].s, out[i].len);
    }
    assert_int_equal(clt_manifest_head("dealt", m->run_id, 1, &m->state, &text), CLT_OK);
    assert_int_equal(clt_manifest_lists(m->tensor, m->tensors, files, FILES, m->chunk, m->chunks, &text),
                     CLT_OK);
    clt_manifest_seal(&text);
    write_file(to, CLT_MANIFEST, text.s, text.len);
    for (int i = 0; i < FILES; i++) {
        clt_free(files[i].name);
        clt_str_free(&out[i]);
    }
    clt_str_free(&text);
    clt_free(data);
    clt_free(path);
    clt_manifest_free(m);
}

/* 120 tensors of one chunk each. */
static void many_tensors(cu_state *s) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < FILES; i++) {
        char *name = clt_format("transformer.blocks.%d.norm_1.weight", i);
        clt_slab_table_add(&s->table, name, 1, (int64_t[]){60000 + i});
        clt_free(name);
    }
    clt_slab_table_finish(&s->table);
    static const char *const roles[] = {"weight", "exp_avg", "exp_avg_sq"};
    for (int p = 0; p < CU_PARTS; p++) {
        s->host[p] = clt_calloc(s->table.total, sizeof(float));
        s->part[p] = (clt_ckpt_part){.role = roles[p], .host = s->host[p]};
    }
}

static void test_many_files(void **state) {
    (void)state;
    char dir[] = "/tmp/clt_ahead_XXXXXX";
    cu_state s, copy;
    clt_ckpt_writer *w;
    clt_ckpt_reader *r;
    clt_checkpoint_state n = cu_numbers(1);
    assert_non_null(mkdtemp(dir));
    many_tensors(&s);
    many_tensors(&copy);
    cu_state_fill(&s, 9);
    clt_ckpt_writer_params p = cu_params(&s, dir);
    assert_int_equal(clt_ckpt_writer_create(&p, &w), CLT_OK);
    assert_int_equal(clt_ckpt_save(w, "ba1", &n), CLT_OK);
    clt_ckpt_writer_destroy(w);
    char *from = clt_path_join(dir, "ba1"), *to = clt_path_join(dir, "dealt");
    deal(from, to);
    assert_int_equal(clt_ckpt_open(to, &r), CLT_OK);
    assert_int_equal(clt_ckpt_verify(r), CLT_OK);
    assert_int_equal(clt_ckpt_load(r, &copy.table, copy.part, CU_PARTS, NULL), CLT_OK);
    assert_true(cu_state_equal(&s, &copy));
    char *gone = clt_path_join(to, "data.00007.bin");
    assert_int_equal(clt_io_unlink(gone), CLT_OK);
    clt_error_quiet(true);
    expect_error(clt_ckpt_verify(r), CLT_IO, "data.00007.bin");
    clt_error_quiet(false);
    clt_ckpt_close(r);
    clt_io_remove_tree(dir);
    clt_free(gone);
    clt_free(from);
    clt_free(to);
    cu_state_free(&s);
    cu_state_free(&copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_only_wanted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_unreadable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_readers, set_up, tear_down),
        cmocka_unit_test(test_many_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
