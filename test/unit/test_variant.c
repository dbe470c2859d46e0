/* The variant tables: reading, filtering, probes of kernel files, keys, forcing. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "test/variant_util.h"

/* --- reading --- */

static void rows_are_filtered_and_ordered(void **state) {
    (void)state;
    clt_ops *ops = vu_ops(false);
    const char *text = "# a comment\n\n"
                       "never     a/b.cl  body  vendor=NoSuchVendor      -   # of nobody\n"
                       "big       a/b.cl  body  local_mem>=999999999999  X=1\n"
                       "fast      a/b.cl  body  numerics=fast            -\n"
                       "tuned     a/b.cl  tile  work_group>=1,local_mem>=1  MR=8,NR=0x20,MODE=-3\r\n"
                       "portable  a/b.cl  body  -                        -";
    tu_assert_ok(clt_variant_add_table(ops, "fake", text), "a good table");
    int n = 0;
    const clt_variant *v = clt_ops_variants(ops, "fake", &n);
    assert_int_equal(n, 2);
    assert_string_equal(v[0].id, "tuned");
    assert_string_equal(v[0].body, "tile");
    assert_string_equal(v[0].options, " -DMR=8 -DNR=0x20 -DMODE=-3");
    assert_int_equal(clt_variant_param(&v[0], "MR", 0), 8);
    assert_int_equal(clt_variant_param(&v[0], "NR", 0), 32);
    assert_int_equal(clt_variant_param(&v[0], "MODE", 0), -3);
    assert_int_equal(clt_variant_param(&v[0], "R", 7), 7);
    assert_int_equal(clt_variant_param(&v[0], "M", 7), 7);
    assert_string_equal(v[1].id, "portable");
    assert_string_equal(v[1].options, "");
    assert_null(clt_ops_variants(ops, "unheard", &n));
    assert_int_equal(n, 0);
    clt_ops_destroy(ops);
}

static void damaged_tables_are_refused(void **state) {
    (void)state;
    char wide[400];
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = 0;
    char *long_id = clt_format("%.60s f b - -", wide), *long_params = clt_format("a f b - %s", wide);
    const struct {
        const char *text, *message;
    } bad[] = {{"a b c -", "line 1: expected id, file, body"},
               {"\n\na b c - - extra", "line 3: expected id, file, body"},
               {"a f b ptx,warp_speed -", "unknown requirement 'warp_speed'"},
               {"a f b local_mem>=many -", "unknown requirement 'local_mem>=many'"},
               {"a f b - -\nc f b - -\na f b - -", "line 3: variant a occurs twice"},
               {"a f b - MR=eight", "line 1: the param 'MR=eight' of variant a is not NAME=INTEGER"},
               {"a f b - MR=8,NR", "line 1: the param 'NR' of variant a is not NAME=INTEGER"},
               {"a f b - MR=8;NR=4", "line 1: the param 'MR=8;NR=4' of variant a is not NAME=INTEGER"},
               {"a f b - AMR=1,MR=8,MR=8", "line 1: variant a has the param MR twice"},
               {long_id, "line 1: id is too long"},
               {long_params, "line 1: params is too long"}};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_ops *ops = vu_ops(false);
        assert_int_equal(clt_variant_add_table(ops, "fake", bad[i].text), CLT_FAIL);
        vu_assert_says(bad[i].message);
        clt_ops_destroy(ops);
    }
    clt_free(long_id);
    clt_free(long_params);
}

static void params_that_nobody_reads_are_refused(void **state) {
    (void)state;
    const struct {
        const char *text, *message;
    } bad[] = {{"a gemm/gemm_portable.cl b - BM=8,TYPS=7", "the param TYPS of variant a has no effect"},
               {"a gemm/gemm_portable.cl b - B=8", "the param B of variant a has no effect"}};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_ops *ops = vu_ops(false);
        tu_assert_ok(clt_variant_add_table(ops, "fake", bad[i].text), "a table");
        assert_int_equal(clt_variant_params_are_read(&ops->table[ops->tables - 1]), CLT_FAIL);
        vu_assert_says(bad[i].message);
        clt_ops_destroy(ops);
    }
}

/* Operations that callers replace by others where no row is usable (clt_variant_pick_optional). */
static bool is_optional(const char *op) {
    return !strcmp(op, "linear") || !strcmp(op, "attention_step") || !strcmp(op, "block_step");
}

/* uses= names another kernel file, and asks nothing of a device. */
static bool asks_nothing(const clt_variant *row) {
    return !strcmp(row->requires, "-") ||
           (!strncmp(row->requires, "uses=", 5) && !strchr(row->requires, ','));
}

/* Every table in the program: each kernel file is there, all params are read, and the last row asks for
 * nothing. */
static void built_in_tables_are_complete(void **state) {
    (void)state;
    clt_ops *ops = vu_ops(false);
    assert_true(ops->tables > 0);
    for (int i = 0; i < ops->tables; i++) {
        const clt_variant_table *t = &ops->table[i];
        int portable = 0;
        tu_assert_ok(clt_variant_params_are_read(t), t->op);
        for (int r = 0; r < t->rows; r++) {
            if (!clt_kernel_text(t->row[r].file))
                fail_msg("%s=%s: no file %s", t->op, t->row[r].id, t->row[r].file);
            portable += asks_nothing(&t->row[r]);
        }
        if (is_optional(t->op)) continue;
        if (portable == 0) fail_msg("%s: no row without requirements", t->op);
        if (!asks_nothing(&t->row[t->usable - 1])) fail_msg("%s: the portable row is not last", t->op);
    }
    clt_ops_destroy(ops);
}

/* clt_variant_rows is the same table, read without a device. */
static void rows_without_a_device_are_all_rows(void **state) {
    (void)state;
    clt_ops *ops = vu_ops(true);
    for (int i = 0; i < ops->tables; i++) {
        clt_variant *row;
        const int n = clt_variant_rows(ops->table[i].op, &row);
        assert_int_equal(n, ops->table[i].rows);
        if (!is_optional(ops->table[i].op))
            assert_string_equal(row[n - 1].id, ops->table[i].row[ops->table[i].usable - 1].id);
        clt_free(row);
    }
    clt_variant *none;
    assert_int_equal(clt_variant_rows("gem", &none), 0);
    assert_null(none);
    clt_ops_destroy(ops);
}

/* --- probes of kernel files --- */

static void probes_of_kernel_files_decide(void **state) {
    (void)state;
    clt_ops *ops = vu_ops(false);
    vu_put_kernel("yes.cl", VU_PROBE "{ out[get_global_id(0)] = in[get_global_id(0)]; }\n#endif\n");
    vu_put_kernel("sized.cl",
                  "#ifdef PROBE\n__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void "
                  "probe(__global const uint *in, __global uint *out) "
                  "{ out[get_local_id(0)] = get_local_size(0) == 8 ? in[get_local_id(0)] : 9; }\n#endif\n");
    vu_put_kernel("wrong.cl", VU_PROBE
                  "{ out[get_global_id(0)] = get_global_id(0) == 63 ? 0 : in[get_global_id(0)]; }\n#endif\n");
    vu_put_kernel("idle.cl", VU_PROBE "{ }\n#endif\n");
    vu_put_kernel("refused.cl", VU_PROBE "{ nonsense(); }\n#endif\n");
    vu_put_kernel("absent.cl", "__kernel void other(__global uint *x) { *x = 0; }\n");
    setenv("CLTRAIN_KERNEL_PATH", clt_device_cache_dir(vu_dev), 1);
    const char *text = "a f b probe=wrong.cl -\nb f b probe=idle.cl -\nc f b probe=refused.cl -\n"
                       "d f b probe=absent.cl -\ne f b vendor=NoSuchVendor,probe=yes.cl -\n"
                       "f f b probe=yes.cl -\ng f b work_group>=8,probe=sized.cl -\nh f b - -\n";
    tu_assert_ok(clt_variant_add_table(ops, "fake", text), "a table with probes");
    int n = 0;
    const clt_variant *v = clt_ops_variants(ops, "fake", &n);
    assert_int_equal(n, 3);
    assert_string_equal(v[0].id, "f");
    assert_string_equal(v[1].id, "g");
    assert_int_equal(clt_variant_add_table(ops, "other", "a f b probe=nowhere.cl -"), CLT_FAIL);
    vu_assert_says("requires 'probe=nowhere.cl', but that kernel file does not exist");
    clt_ops_destroy(ops);
    unsetenv("CLTRAIN_KERNEL_PATH");
}

/* --- keys --- */

static void key_of(const char *requires, char key[33]) {
    clt_ops *ops = vu_ops(false);
    char *text = clt_format("row own.cl b %s -\n", requires);
    int n = 0;
    tu_assert_ok(clt_variant_add_table(ops, "fake", text), requires);
    const clt_variant *v = clt_ops_variants(ops, "fake", &n);
    assert_int_equal(n, 1);
    clt_variant_key(ops, v, key);
    clt_free(text);
    clt_ops_destroy(ops);
}

static void keys_cover_all_kernels_of_a_row(void **state) {
    (void)state;
    char alone[33], one[33], same[33], other[33];
    vu_put_kernel("own.cl", "own\n");
    vu_put_kernel("one.cl", "one\n");
    vu_put_kernel("same.cl", "one\n");
    vu_put_kernel("other.cl", "other\n");
    setenv("CLTRAIN_KERNEL_PATH", clt_device_cache_dir(vu_dev), 1);
    key_of("-", alone);
    key_of("uses=one.cl", one);
    key_of("work_group>=1,uses=same.cl", same);
    key_of("uses=other.cl,work_group>=1", other);
    assert_string_not_equal(alone, one);
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    clt_ops *ops = vu_ops(false);
    assert_int_equal(clt_variant_add_table(ops, "fake", "a f b uses=nowhere.cl -"), CLT_FAIL);
    vu_assert_says("requires 'uses=nowhere.cl', but that kernel file does not exist");
    clt_ops_destroy(ops);
    unsetenv("CLTRAIN_KERNEL_PATH");
}

/* The library of this test is a copy of libm: m.so in the folder libfake. */
static void keys_cover_the_library_of_a_row(void **state) {
    (void)state;
    char key[33], again[33], newer[33], *here = getcwd(NULL, 0);
    assert_int_equal(chdir(clt_device_cache_dir(vu_dev)), 0);
    if (system("mkdir libfake && cp \"$(ldconfig -p | sed -n 's/.*libm\\.so\\.6.*=> //p' | head -n 1)\" "
               "libfake/m.so") != 0)
        skip();
    key_of("lib=fake/m", key);
    key_of("lib=fake/m", again);
    assert_string_equal(key, again);
    assert_int_equal(system("touch -d 2001-01-01 libfake/m.so"), 0);
    key_of("lib=fake/m", newer);
    assert_string_not_equal(key, newer);
    assert_int_equal(chdir(here), 0);
    free(here);
}

/* --- forcing --- */

static const char three[] =
    "first f.cl b - -\nsecond f.cl b - -\nnever f.cl b work_group>=1,vendor=NoSuchVendor -\n";

static void forcing_names_what_there_is(void **state) {
    (void)state;
    clt_ops *ops = vu_ops(false);
    tu_assert_ok(clt_variant_add_table(ops, "fake", three), "table");
    assert_null(clt_variant_forced(ops, "fake"));
    assert_int_equal(clt_variant_force(ops, "fake", "third"), CLT_USAGE);
    vu_assert_says("fake has no variant 'third'; it has: first second never (not on this device)");
    assert_int_equal(clt_variant_force(ops, "fake", "never"), CLT_USAGE);
    vu_assert_says("cannot run on this device: it requires work_group>=1,vendor=NoSuchVendor; unmet: "
                   "vendor=NoSuchVendor");
    assert_int_equal(clt_variant_force(ops, "flake", "first"), CLT_USAGE);
    vu_assert_says("unknown operation 'flake'");
    vu_assert_says("fake");
    assert_null(clt_variant_forced(ops, "fake"));
    tu_assert_ok(clt_variant_force(ops, "fake", "second"), "force");
    assert_string_equal(clt_variant_forced(ops, "fake"), "second");
    tu_assert_ok(clt_variant_force(ops, "fake", NULL), "free again");
    assert_null(clt_variant_forced(ops, "fake"));
    clt_ops_destroy(ops);
}

static bool takes_none(const clt_variant *v, const void *call) {
    (void)v, (void)call;
    return false;
}

static void describe(const void *call, char *out, size_t size) {
    snprintf(out, size, "%s", (const char *)call);
}

static void unsupported_calls_are_named(void **state) {
    (void)state;
    const clt_variant_question q = {
        .op = "fake", .options = "", .takes = takes_none, .call = "3 x 4", .describe = describe};
    clt_ops *ops = vu_ops(true);
    const clt_variant *v = NULL;
    tu_assert_ok(clt_variant_add_table(ops, "fake", "first f.cl b - TYPES=6\n"), "table");
    tu_assert_ok(clt_variant_force(ops, "fake", "first"), "force");
    assert_int_equal(clt_variant_pick_for(ops, &q, &v), CLT_FAIL);
    vu_assert_says("the forced variant first does not support a call of 3 x 4: its params (TYPES=6)");
    tu_assert_ok(clt_variant_force(ops, "fake", NULL), "force");
    assert_int_equal(clt_variant_pick_for(ops, &q, &v), CLT_FAIL);
    vu_assert_says("supports a call of 3 x 4; choose another device");
    clt_ops_destroy(ops);
}

static void environment_forces(void **state) {
    (void)state;
    clt_ops *ops = NULL;
    setenv("CLTRAIN_VARIANT", "norm=portable,loss=group64", 1);
    tu_assert_ok(clt_ops_create(vu_dev, NULL, &ops), "known ids");
    assert_string_equal(clt_variant_forced(ops, "norm"), "portable");
    assert_string_equal(clt_variant_forced(ops, "loss"), "group64");
    assert_null(clt_variant_forced(ops, "embedding"));
    clt_ops_destroy(ops);
    setenv("CLTRAIN_VARIANT", "norm=portable,norm=best", 1);
    assert_int_equal(clt_ops_create(vu_dev, NULL, &ops), CLT_USAGE);
    vu_assert_says("norm has no variant 'best'");
    setenv("CLTRAIN_VARIANT", "portable", 1);
    assert_int_equal(clt_ops_create(vu_dev, NULL, &ops), CLT_USAGE);
    vu_assert_says("'portable' is not op=id");
    unsetenv("CLTRAIN_VARIANT");
}

/* The ids of the rows that can run here, in order, after one space each; to be freed. */
static char *usable(clt_ops *ops, const char *op) {
    int n = 0;
    clt_str b = {0};
    const clt_variant *v = clt_ops_variants(ops, op, &n);
    clt_str_add(&b, "");
    for (int i = 0; i < n; i++) clt_str_addf(&b, " %s", v[i].id);
    return b.s;
}

static void environment_leaves_rows_out(void **state) {
    (void)state;
    const char *table = "big a/b.cl body work_group>=1,local_mem>=1 -\nwide a/b.cl body work_group>=1 -\n"
                        "portable a/b.cl body - -\n";
    const struct {
        const char *list, *left;
    } cases[] = {{"fake=wide", " big portable"},
                 {"f*=*i*", " portable"},
                 {"local_mem>=?", " wide portable"},
                 {"fake=big,norm=wide,work_group*", " portable"},
                 {"norm=wide", " big wide portable"}};
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        clt_ops *ops = NULL;
        char *left, *why;
        /* The table is added later, so the list has one word for a built-in one. */
        char *list = clt_format("norm=wide,%s", cases[i].list);
        setenv("CLTRAIN_DISABLE_ROW", "norm=wide", 1);
        tu_assert_ok(clt_ops_create(vu_dev, NULL, &ops), "one row left out");
        clt_variant_free_disabled(ops);
        setenv("CLTRAIN_DISABLE_ROW", list, 1);
        clt_variant_read_disabled(ops);
        tu_assert_ok(clt_variant_add_table(ops, "fake", table), "a good table");
        left = usable(ops, "fake");
        assert_string_equal(left, cases[i].left);
        clt_free(left);
        left = usable(ops, "norm");
        assert_null(strstr(left, " wide"));
        assert_non_null(strstr(left, " portable"));
        clt_free(left);
        int n;
        const clt_variant *v = clt_variant_all(ops, "fake", &n);
        assert_int_equal(n, 3);
        for (int j = 0; j < n; j++) {
            why = clt_variant_why_not(ops, &v[j]);
            assert_true(v[j].usable ? !why : !strcmp(why, " not_disabled"));
            if (!v[j].usable) {
                assert_int_equal(clt_variant_force(ops, "fake", v[j].id), CLT_USAGE);
                vu_assert_says("both forced and left out");
            }
            clt_free(why);
        }
        clt_free(list);
        clt_ops_destroy(ops);
    }
    clt_ops *ops = NULL;
    setenv("CLTRAIN_DISABLE_ROW", "norm=wide,norm=best", 1);
    assert_int_equal(clt_ops_create(vu_dev, NULL, &ops), CLT_USAGE);
    vu_assert_says("no kernel variant is named by 'norm=best'");
    unsetenv("CLTRAIN_DISABLE_ROW");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_filtered_and_ordered),
        cmocka_unit_test(damaged_tables_are_refused),
        cmocka_unit_test(params_that_nobody_reads_are_refused),
        cmocka_unit_test(built_in_tables_are_complete),
        cmocka_unit_test(rows_without_a_device_are_all_rows),
        cmocka_unit_test(probes_of_kernel_files_decide),
        cmocka_unit_test(keys_cover_all_kernels_of_a_row),
        cmocka_unit_test(keys_cover_the_library_of_a_row),
        cmocka_unit_test(forcing_names_what_there_is),
        cmocka_unit_test(unsupported_calls_are_named),
        cmocka_unit_test(environment_forces),
        cmocka_unit_test(environment_leaves_rows_out),
    };
    return cmocka_run_group_tests(tests, vu_open, vu_close);
}
