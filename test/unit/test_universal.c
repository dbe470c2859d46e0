/* Universal checkpoints of DeepSpeed: those of the package itself (test/golden/deepspeed/universal) against
 * the tensors of the running engine, the writer against the reader, and damaged files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_torch_file.h"
#include "runtime/checkpoint/clt_torch_zip.h"
#include "runtime/checkpoint/clt_universal.h"
#include "runtime/checkpoint/clt_weight_source.h"

#define GOLDEN "test/golden/deepspeed/universal/"

static char dir[64];

static int set_up(void **state) {
    (void)state;
    strcpy(dir, "/tmp/clt_ds_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(dir) == CLT_OK ? 0 : -1;
}

/* --- DeepSpeed's own --- */

static clt_universal *open_golden(const char *name) {
    char *path = clt_format(GOLDEN "%s", name), *folder = NULL;
    clt_universal *u = NULL;
    assert_int_equal(clt_universal_find(path, &folder), CLT_OK);
    assert_non_null(folder);
    assert_int_equal(clt_universal_open(folder, &u), CLT_OK);
    clt_free(folder);
    clt_free(path);
    return u;
}

static void compare(clt_universal *u, int i, clt_universal_state s, clt_safetensors *want) {
    static const char *const keys[] = {"fp32", "exp_avg", "exp_avg_sq"};
    const clt_universal_param *p = clt_universal_at(u, i);
    char *key = clt_format("%s/%s", p->name, keys[s]);
    const int at = clt_safetensors_find(want, key);
    assert_true(at >= 0);
    const clt_st_tensor *t = clt_safetensors_at(want, at);
    float *a = clt_malloc(p->count * sizeof *a), *b = clt_malloc(p->count * sizeof *b);
    assert_int_equal(t->count, p->count);
    if (!p->flat) {
        assert_int_equal(t->dims, p->dims);
        for (int d = 0; d < p->dims; d++) assert_int_equal(t->shape[d], p->shape[d]);
    }
    assert_int_equal(clt_universal_read(u, i, s, 0, a, 1), CLT_OK); /* in two reads */
    assert_int_equal(clt_universal_read(u, i, s, 1, a + 1, p->count - 1), CLT_OK);
    assert_int_equal(clt_safetensors_read_f32(want, at, 0, b, p->count), CLT_OK);
    assert_memory_equal(a, b, p->count * sizeof *a);
    clt_free(a);
    clt_free(b);
    clt_free(key);
}

static void check_golden(const char *name, bool flat, int64_t steps, int64_t samples) {
    char *path = clt_format(GOLDEN "%s/expected.safetensors", name);
    clt_universal *u = open_golden(name);
    clt_safetensors *want;
    assert_int_equal(clt_safetensors_open(path, &want), CLT_OK);
    assert_int_equal(clt_universal_count(u), 6);
    assert_int_equal(clt_universal_steps(u), steps);
    assert_int_equal(clt_universal_samples(u), samples);
    for (int i = 0; i < clt_universal_count(u); i++) {
        assert_true(clt_universal_at(u, i)->flat == flat);
        for (int s = 0; s < CLT_UNIVERSAL_STATES; s++) compare(u, i, (clt_universal_state)s, want);
    }
    assert_int_equal(clt_universal_verify(u), CLT_OK);
    clt_safetensors_close(want);
    clt_universal_close(u);
    clt_free(path);
}

static void test_golden(void **state) {
    (void)state;
    check_golden("zero1-fp32", false, 6, 36);
    check_golden("zero2-bf16", false, 6, 36);
    check_golden("zero3-fp32", true, 4, 24);
}

/* Vectors of ZeRO 3 become tensors of a table; another number of elements is an error. */
static void test_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int dims;
        int64_t shape[2];
    } t[] = {{"emb.weight", 2, {9, 6}}, {"fc1.weight", 2, {5, 6}}, {"fc1.bias", 1, {5}},
             {"norm.weight", 1, {5}},   {"norm.bias", 1, {5}},     {"fc2.weight", 2, {3, 5}}};
    for (int wrong = 0; wrong < 2; wrong++) {
        clt_weight_source *s;
        clt_slab_table table = {0};
        for (size_t i = 0; i < CLT_COUNT_OF(t); i++) {
            int64_t shape[2] = {t[i].shape[0] + (wrong && i == 3), t[i].shape[1]};
            clt_slab_table_add(&table, t[i].name, t[i].dims, shape);
        }
        clt_slab_table_finish(&table);
        assert_int_equal(clt_weight_source_open(GOLDEN "zero3-fp32", &s), CLT_OK);
        assert_int_equal(clt_weight_source_kind(s), CLT_SOURCE_UNIVERSAL);
        assert_int_equal(clt_weight_source_count(s), 18);
        assert_int_equal(clt_weight_source_use_map(s, &table, NULL, NULL), CLT_OK);
        clt_error_quiet(true);
        for (int r = 0; r < CLT_UNIVERSAL_STATES; r++)
            assert_int_equal(
                clt_weight_source_check(s, &table, clt_universal_role((clt_universal_state)r), NULL),
                wrong ? CLT_BAD_DATA : CLT_OK);
        clt_error_quiet(false);
        if (wrong) assert_non_null(strstr(clt_last_error(), "'norm.weight' (exp_avg_sq) has shape [5]"));
        clt_weight_source_close(s);
        clt_slab_table_free(&table);
    }
}

/* --- writing and reading --- */

static float value(int i, clt_universal_state s, uint64_t at) {
    return (float)(i * 100 + (int)s * 1000) + (float)at / 64.0f;
}

static clt_status fill(void *ctx, int i, clt_universal_state s, uint64_t first, float *dst, uint64_t count) {
    (void)ctx;
    for (uint64_t k = 0; k < count; k++) dst[k] = value(i, s, first + k);
    return CLT_OK;
}

static char a_name[] = "model.transformer.wte.weight", b_name[] = "module.model.transformer.norm_f.weight";

static void write_two(int moments, int64_t steps) {
    /* More elements than a block of the writer. */
    const clt_universal_param param[] = {{.name = a_name, .dims = 2, .shape = {700, 401}, .count = 280700},
                                         {.name = b_name, .dims = 1, .shape = {5}, .count = 5}};
    clt_universal_spec spec = {
        .folder = dir, .param = param, .n = 2, .steps = steps, .samples = 77, .fill = fill};
    for (int s = 1; s <= moments; s++) spec.moments[s] = true;
    assert_int_equal(clt_universal_write(&spec), CLT_OK);
}

static void check_two(int moments, int64_t steps) {
    char *folder;
    clt_universal *u;
    assert_int_equal(clt_universal_find(dir, &folder), CLT_OK);
    assert_int_equal(clt_universal_open(folder, &u), CLT_OK);
    assert_int_equal(clt_universal_count(u), 2);
    assert_int_equal(clt_universal_steps(u), steps);
    assert_int_equal(clt_universal_samples(u), 77);
    assert_string_equal(clt_universal_at(u, 0)->name, a_name);
    assert_string_equal(clt_universal_at(u, 1)->name, "model.transformer.norm_f.weight");
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < CLT_UNIVERSAL_STATES; s++) {
            const uint64_t n = clt_universal_at(u, i)->count;
            float *x = clt_malloc(n * sizeof *x);
            assert_int_equal(clt_universal_has(u, (clt_universal_state)s), s <= moments);
            if (s > moments) {
                clt_free(x);
                continue;
            }
            assert_int_equal(clt_universal_read(u, i, (clt_universal_state)s, 0, x, n), CLT_OK);
            for (uint64_t k = 0; k < n; k++) assert_true(x[k] == value(i, (clt_universal_state)s, k));
            clt_free(x);
        }
    clt_universal_close(u);
    clt_free(folder);
}

static void test_round_trip(void **state) {
    (void)state;
    for (int moments = 0; moments < CLT_UNIVERSAL_STATES; moments++) {
        write_two(moments, 10 + moments);
        check_two(moments, 10 + moments);
    }
}

static void test_names(void **state) {
    (void)state;
    static char bad[] = "../up";
    const clt_universal_param param = {.name = bad, .dims = 1, .shape = {1}, .count = 1};
    const clt_universal_spec spec = {.folder = dir, .param = &param, .n = 1, .steps = 1, .fill = fill};
    clt_error_quiet(true);
    assert_int_equal(clt_universal_write(&spec), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_non_null(strstr(clt_last_error(), "cannot be the name of a folder"));
    char *up = clt_path_join(dir, "global_step1_universal/up");
    assert_false(clt_io_is_dir(up));
    clt_free(up);
}

/* --- damage --- */

static char *file_path;

/* In memory: thousands of files are read here. */
static int file_fd;

static void put_file(const char *data, size_t n) {
    assert_int_equal(ftruncate(file_fd, 0), 0);
    assert_int_equal(pwrite(file_fd, data, n, 0), n);
}

/* Whether the file can be opened, verified and read; then the values are those of the undamaged file. */
static bool reads(const float *want, uint64_t count) {
    clt_torch_file *f;
    float x[64];
    if (clt_torch_open(file_path, 0, &f) != CLT_OK) return false;
    const clt_pickle_value *t = clt_pickle_get(clt_torch_root(f), "param");
    const bool ok = t && t->kind == CLT_PICKLE_TENSOR && t->tensor.count == count &&
                    clt_torch_verify(f, t) == CLT_OK && clt_torch_read_f32(f, t, 0, x, count) == CLT_OK;
    if (ok && want) assert_memory_equal(x, want, count * sizeof *x);
    clt_torch_close(f);
    return ok;
}

static bool is_in(clt_zip *z, const char *name, size_t at) {
    const clt_zip_entry *e = clt_zip_find(z, name);
    assert_non_null(e);
    return at >= e->offset && at < e->offset + e->bytes;
}

/* A file cut at every length, and with every byte changed: refused in pickle and data, elsewhere refused or
 * of no effect (times, padding). */
static void test_damage(void **state) {
    (void)state;
    static const char golden[] = GOLDEN "zero1-fp32/global_step6_universal/zero/fc1.weight/fp32.pt";
    char *data;
    size_t n, refused = 0;
    float want[30];
    clt_torch_file *f;
    clt_zip *z;
    file_fd = memfd_create("fp32.pt", 0);
    file_path = clt_format("/proc/self/fd/%d", file_fd);
    assert_int_equal(clt_io_read_all(golden, 1 << 20, &data, &n), CLT_OK);
    assert_int_equal(clt_zip_open(golden, &z), CLT_OK);
    assert_int_equal(clt_torch_open(golden, 0, &f), CLT_OK);
    assert_int_equal(clt_torch_read_f32(f, clt_pickle_get(clt_torch_root(f), "param"), 0, want, 30), CLT_OK);
    clt_torch_close(f);
    clt_error_quiet(true);
    for (size_t cut = 0; cut < n; cut++) {
        put_file(data, cut);
        assert_false(reads(NULL, 30));
    }
    for (size_t at = 0; at < n; at++) {
        data[at] ^= 0x41;
        put_file(data, n);
        const bool read = reads(want, 30);
        assert_false(read && (is_in(z, "fp32/data.pkl", at) || is_in(z, "fp32/data/0", at)));
        refused += !read;
        data[at] ^= 0x41;
    }
    clt_error_quiet(false);
    assert_true(refused > 187 + 120);
    put_file(data, n);
    assert_true(reads(want, 30));
    clt_zip_close(z);
    clt_free(data);
    clt_free(file_path);
    close(file_fd);
}

/* Archives with entries that torch.save does not write. */
static void write_zip(const char *const *names, int n) {
    clt_zip_writer w = {0};
    assert_int_equal(clt_file_open(file_path, CLT_IO_CREATE, &w.file), CLT_OK);
    for (int i = 0; i < n; i++) assert_int_equal(clt_zip_put(&w, names[i], "\x80\x02N.", 4), CLT_OK);
    assert_int_equal(clt_zip_finish(&w), CLT_OK);
    assert_int_equal(clt_file_close(w.file), CLT_OK);
    clt_zip_writer_free(&w);
}

static void test_archives(void **state) {
    (void)state;
    static const struct {
        const char *names[3];
        int n;
        const char *message;
    } zips[] = {{{"fp32/data.pkl", "../escaped"}, 2, "leads out of its folder"},
                {{"/fp32/data.pkl"}, 1, "leads out of its folder"},
                {{"a/data.pkl", "a/data.pkl"}, 2, "two entries have one name"},
                {{"a/data.pkl", "b/data.pkl"}, 2, "two pickles"},
                {{"a/b/data.pkl"}, 1, "no data.pkl"},
                {{"a/data.pkl", "a/byteorder"}, 2, "byte order"}};
    file_path = clt_path_join(dir, "zip.pt");
    for (size_t i = 0; i < CLT_COUNT_OF(zips); i++) {
        clt_torch_file *f;
        write_zip(zips[i].names, zips[i].n);
        clt_error_quiet(true);
        assert_int_equal(clt_torch_open(file_path, 0, &f), CLT_BAD_DATA);
        clt_error_quiet(false);
        if (!strstr(clt_last_error(), zips[i].message)) fail_msg("%zu: %s", i, clt_last_error());
    }
    clt_free(file_path);
}

/* A parameter whose moment has another shape, and one without a moment. */
static void test_inconsistent(void **state) {
    (void)state;
    clt_universal *u;
    write_two(2, 50);
    char *folder = clt_path_join(dir, "global_step50_universal");
    char *moment = clt_format("%s/zero/%s/exp_avg_sq.pt", folder, a_name);
    char *other = clt_format("%s/zero/%s/exp_avg_sq.pt", folder, b_name), *data;
    size_t n;
    assert_int_equal(clt_io_read_all(other, 1 << 20, &data, &n), CLT_OK);
    assert_int_equal(clt_io_write_atomic(moment, data, n), CLT_OK);
    clt_error_quiet(true);
    assert_int_equal(clt_universal_open(folder, &u), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "another shape than that of fp32.pt"));
    assert_int_equal(clt_io_unlink(moment), CLT_OK);
    assert_int_equal(clt_universal_open(folder, &u), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "some parameters have exp_avg_sq.pt"));
    clt_error_quiet(false);
    clt_free(data);
    clt_free(other);
    clt_free(moment);
    clt_free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),      cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_damage),      cmocka_unit_test(test_archives),
                                       cmocka_unit_test(test_inconsistent)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
