/* Measured choices: made, kept, found again, and dropped when they are not today's. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/ops/clt_tune.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

enum { M = 40, N = 24, K = 36 };
static char folder[] = "/tmp/clt-tune-XXXXXX";
static clt_device *dev;

static int set_up(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    p.pattern = clt_env(CLT_ENV_DEVICE);
    if (!mkdtemp(folder)) return -1;
    p.cache_dir = folder;
    if (clt_device_open(&p, &dev) != CLT_OK) return -1;
    const clt_device_facts *f = clt_device_get_facts(dev);
    print_message("[  device  ] %s / %s\n", f->platform, f->name);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    clt_device_close(dev);
    char *command = clt_format("rm -rf '%s'", folder);
    const int rc = system(command);
    clt_free(command);
    return rc;
}

static clt_ops *open_ops(clt_tune_mode mode) {
    clt_ops_params p = clt_ops_params_default();
    clt_ops *ops;
    p.tune = mode;
    p.tune_seconds = 600;
    p.skip_check = true; /* checks have tests of their own */
    tu_assert_ok(clt_ops_create(dev, &p, &ops), "ops");
    return ops;
}

static clt_buffer *buffer(size_t floats) {
    clt_buffer *b;
    float *x = tu_random(floats, floats, 1);
    tu_assert_ok(clt_buffer_create(dev, floats * 4, "test", &b), "buffer");
    tu_assert_ok(clt_buffer_write(b, 0, x, floats * 4), "write");
    clt_free(x);
    return b;
}

static clt_gemm_params make_call(void) {
    return (clt_gemm_params){.form = CLT_GEMM_NT,
                             .m = M,
                             .n = N,
                             .k = K,
                             .a = {buffer((size_t)M * K), 0},
                             .b = {buffer((size_t)N * K), 0},
                             .c = {buffer((size_t)M * N), 0},
                             .lda = K,
                             .ldb = K,
                             .ldc = N};
}

static void free_call(const clt_gemm_params *p) {
    clt_buffer_destroy(p->a.buf);
    clt_buffer_destroy(p->b.buf);
    clt_buffer_destroy(p->c.buf);
}

static char *csv(void) {
    return clt_format("%s/tune.csv", folder);
}

static void a_shape_is_measured_once(void **state) {
    (void)state;
    clt_gemm_params p = make_call();
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    int n;
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm");
    const clt_tuned *t = clt_ops_tuned(ops, &n);
    assert_int_equal(n, 1);
    assert_string_equal(t->shape, "NT 40x24x36 fp32>fp32 exact");
    assert_true(t->seconds > 0 && t->error == 0);
    char *variant = clt_strdup(t->variant), *path = csv();
    assert_string_equal(clt_op_gemm_variant(ops, &p), variant);
    clt_ops_destroy(ops);
    assert_true(clt_io_is_file(path));

    ops = open_ops(CLT_TUNE_CACHE);
    assert_string_equal(clt_op_gemm_variant(ops, &p), variant);
    p.m = M - 1; /* unknown: the table's order, and nothing is measured */
    assert_true(*clt_op_gemm_variant(ops, &p) != 0);
    clt_ops_tuned(ops, &n);
    assert_int_equal(n, 1);
    p.m = M;
    clt_ops_destroy(ops);
    clt_free(variant);
    clt_free(path);
    free_call(&p);
}

/* Writes a line that says that `id` is the fastest; with the key that its row has, or another. */
static void claim(clt_ops *ops, const char *id, bool right) {
    int n;
    char key[33] = "00000000000000000000000000000000", *path = csv();
    const clt_variant *row = clt_ops_variants(ops, "gemm", &n);
    for (int i = 0; i < n && right; i++)
        if (!strcmp(row[i].id, id)) clt_variant_key(ops, &row[i], key);
    const clt_device_facts *f = clt_device_get_facts(dev);
    char *text = clt_format("half a line,\ngemm,NT 40x24x36 fp32>fp32 exact,%s,1e-6,0,%s,%s,%s\n", id, key,
                            f->name, f->driver);
    tu_assert_ok(clt_io_write_atomic(path, text, strlen(text)), path);
    clt_free(text);
    clt_free(path);
}

static void order_is_forced_then_measured_then_the_table(void **state) {
    (void)state;
    clt_gemm_params p = make_call();
    clt_ops *off = open_ops(CLT_TUNE_OFF);
    int n;
    const clt_variant *row = clt_ops_variants(off, "gemm", &n);
    assert_true(n > 1);
    char *first = clt_strdup(clt_op_gemm_variant(off, &p)), *last = clt_strdup(row[n - 1].id);
    assert_string_not_equal(first, last);

    claim(off, last, true);
    clt_ops *ops = open_ops(CLT_TUNE_CACHE);
    assert_string_equal(clt_op_gemm_variant(ops, &p), last);
    tu_assert_ok(clt_variant_force(ops, "gemm", first), "force");
    assert_string_equal(clt_op_gemm_variant(ops, &p), first);
    clt_ops_destroy(ops);

    claim(off, last, false); /* measured with another kernel text or driver */
    ops = open_ops(CLT_TUNE_CACHE);
    assert_string_equal(clt_op_gemm_variant(ops, &p), first);
    clt_ops_destroy(ops);
    clt_ops_destroy(off);
    clt_free(first);
    clt_free(last);
    free_call(&p);
}

static void checked_in_lines_stand_behind_measured_ones(void **state) {
    (void)state;
    clt_gemm_params p = make_call();
    clt_ops *off = open_ops(CLT_TUNE_OFF);
    const clt_device_facts *f = clt_device_get_facts(dev);
    int n;
    const clt_variant *row = clt_ops_variants(off, "gemm", &n);
    char *first = clt_strdup(clt_op_gemm_variant(off, &p)), *last = clt_strdup(row[n - 1].id);
    char *text = clt_format("# comment\nhalf a line,\n"
                            "gemm,NT 40x24x36 fp32>fp32 exact,%s,1e-6,0,-,another device,1\n"
                            "gemm,NT 40x24x36 fp32>fp32 exact,%s,1e-6,0,-,%s,another driver\n"
                            "gemm,NT 40x24x36 fp32>fp32 exact,%s,1e-6,0,with a key,%s,1\n",
                            first, last, f->name, first, f->name);
    char *path = csv();
    remove(path);
    clt_ops *ops = open_ops(CLT_TUNE_CACHE);
    assert_string_equal(clt_op_gemm_variant(ops, &p), first);
    assert_int_equal(clt_tune_add_known(ops, text), 2);
    assert_string_equal(clt_op_gemm_variant(ops, &p), last);
    tu_assert_ok(clt_variant_force(ops, "gemm", first), "force");
    assert_string_equal(clt_op_gemm_variant(ops, &p), first);
    clt_ops_destroy(ops);
    assert_false(clt_io_is_file(path)); /* they are not the device's own */

    claim(off, first, true);
    ops = open_ops(CLT_TUNE_CACHE);
    clt_tune_add_known(ops, text);
    assert_string_equal(clt_op_gemm_variant(ops, &p), first);
    clt_ops_destroy(ops);
    clt_ops_destroy(off);
    clt_free(text);
    clt_free(path);
    clt_free(first);
    clt_free(last);
    free_call(&p);
}

/* Every line of clkernels/tuned.csv is whole, and its row exists. */
static void checked_in_lines_name_rows(void **state) {
    (void)state;
    const char *text = clt_kernel_text("tuned.csv"), *table = clt_kernel_text("gemm/gemm.vt");
    clt_ops *ops = open_ops(CLT_TUNE_OFF);
    int lines = 0;
    assert_non_null(text);
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1) {
        char op[32], shape[96], variant[48];
        if (*at == '#' || !strncmp(at, "op,", 3)) continue;
        assert_int_equal(sscanf(at, "%31[^,],%95[^,],%47[^,],", op, shape, variant), 3);
        assert_string_equal(op, "gemm");
        char *row = clt_format("\n%s ", variant);
        assert_non_null(strstr(table, row));
        clt_free(row);
        lines++;
    }
    assert_true(lines > 0);
    assert_int_equal(clt_tune_add_known(ops, text), lines);
    clt_ops_destroy(ops);
}

static void nothing_is_measured_once_steady(void **state) {
    (void)state;
    clt_gemm_params p = make_call();
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    int before, after;
    p.m = M - 2;
    clt_ops_tuned(ops, &before);
    clt_device_set_steady(dev, true);
    assert_true(*clt_op_gemm_variant(ops, &p) != 0);
    clt_device_set_steady(dev, false);
    clt_ops_tuned(ops, &after);
    assert_int_equal(before, after);
    clt_ops_destroy(ops);
    p.m = M;
    free_call(&p);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_measured_once),
        cmocka_unit_test(order_is_forced_then_measured_then_the_table),
        cmocka_unit_test(checked_in_lines_stand_behind_measured_ones),
        cmocka_unit_test(checked_in_lines_name_rows),
        cmocka_unit_test(nothing_is_measured_once_steady),
    };
    return cmocka_run_group_tests_name("tune", tests, set_up, tear_down);
}
