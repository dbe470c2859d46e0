/* Measured choices: made, saved, found again, and ignored if their key is not current. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_cache.h"
#include "runtime/ops/clt_op_attention8_internal.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/ops/tune_frame.h"

enum { M = 40, N = 24, K = 36 };
static clt_gemm_params make_call(void) {
    return (clt_gemm_params){.form = CLT_GEMM_NT,
                             .m = M,
                             .n = N,
                             .k = K,
                             .a = {.ref.buf = buffer((size_t)M * K), .ld = K},
                             .b = {.ref.buf = buffer((size_t)N * K), .ld = K},
                             .c = {.ref.buf = buffer((size_t)M * N), .ld = N}};
}

static void free_call(const clt_gemm_params *p) {
    clt_buffer_destroy(p->a.ref.buf);
    clt_buffer_destroy(p->b.ref.buf);
    clt_buffer_destroy(p->c.ref.buf);
}

static void a_shape_is_measured_once(void **state) {
    (void)state;
    clt_gemm_params p = make_call();
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    const clt_tuned *t;
    char *other =
        clt_format("gemm,NT 1x2x3 fp32>fp32 exact,portable,1e-6,0,-,%s,1\n", clt_device_get_facts(dev)->name);
    assert_int_equal(clt_tune_add_known(ops, other), 1); /* as a device of tuned.csv has them */
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm");
    assert_int_equal(measured(ops, &t, 1), 1);
    assert_string_equal(t->shape, "NT 40x24x36 fp32>fp32 exact");
    assert_true(t->seconds > 0 && t->error == 0);
    char *variant = clt_strdup(t->variant), *path = csv();
    assert_string_equal(clt_op_gemm_variant(ops, &p), variant);
    clt_ops_destroy(ops);
    assert_true(clt_io_is_file(path));

    ops = open_ops(CLT_TUNE_CACHE);
    assert_string_equal(clt_op_gemm_variant(ops, &p), variant);
    p.m = M - 1; /* unknown: the table's order applies, and nothing is measured */
    assert_true(*clt_op_gemm_variant(ops, &p) != 0);
    assert_int_equal(measured(ops, &t, 1), 1);
    p.m = M;
    clt_ops_destroy(ops);
    clt_free(other);
    clt_free(variant);
    clt_free(path);
    free_call(&p);
}

/* Replaces the driver's function: this many buffers from here on are refused. Declared here, because only
 * runtime/device includes OpenCL's headers. */
static int refused;

void *clCreateBuffer(void *context, unsigned long flags, size_t bytes, void *host, int *error) {
    static void *(*next)(void *, unsigned long, size_t, void *, int *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clCreateBuffer");
    if (refused <= 0) return next(context, flags, bytes, host, error);
    refused--;
    *error = -4; /* CL_MEM_OBJECT_ALLOCATION_FAILURE */
    return NULL;
}

/* A run may need all of the device's memory except a rest that is too small for measuring. */
static void a_full_device_is_not_tuned_and_runs(void **state) {
    (void)state;
    clt_gemm_params p = make_call();
    const clt_tuned *t;
    p.m = M - 2;
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    refused = 1;
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm");
    assert_int_equal(refused, 0);
    const int lines = measured(ops, &t, 0);
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm again"); /* is not measured again in this run */
    assert_int_equal(measured(ops, &t, 0), lines);
    clt_ops_destroy(ops);
    ops = open_ops(CLT_TUNE_FILL);
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm with room"); /* but in the next one */
    const clt_tuned *at[8];
    int n = CLT_MIN(measured(ops, at, 8), 8), there = 0;
    for (int i = 0; i < n; i++) there += !strncmp(at[i]->shape, "NT 38x24x36 ", 12) && at[i]->seconds > 0;
    assert_int_equal(there, 1);
    clt_ops_destroy(ops);
    free_call(&p);
}

static void *close_ops(void *ops) {
    clt_ops_destroy(ops);
    return NULL;
}

static char *written(void) {
    char *text, *path = csv();
    tu_assert_ok(clt_io_read_all(path, 1 << 20, &text, NULL), path);
    clt_free(path);
    return text;
}

/* Another process is between reading and renaming: the lines of both stay. */
static void lines_of_two_writers_stay(void **state) {
    (void)state;
    const char *head = "op,shape,variant,seconds,error,key,device,driver";
    clt_gemm_params p = make_call();
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    pthread_t other;
    p.m = M - 3;
    tu_assert_ok(clt_op_gemm(ops, &p), "gemm");
    const int lock = clt_cache_lock(folder, clt_hash(head, strlen(head)), 1);
    assert_true(lock >= 0);
    assert_int_equal(pthread_create(&other, NULL, close_ops, ops), 0);
    clt_sleep(0.1);
    char *before = written(), *path = csv();
    assert_null(strstr(before, "NT 37x24x36"));
    char *more = clt_format("%sgemm,another shape,portable,1,0,k,device,driver\n", before);
    tu_assert_ok(clt_io_write_atomic(path, more, strlen(more)), path);
    clt_cache_unlock(lock);
    pthread_join(other, NULL);
    char *after = written();
    assert_non_null(strstr(after, "NT 37x24x36"));
    assert_non_null(strstr(after, "another shape"));
    char *all[] = {before, path, more, after};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_free(all[i]);
    p.m = M;
    free_call(&p);
}

/* Writes a line that makes `id` the fastest, with the current key of its row or another one. */
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

/* Every line of clkernels/tuned.csv is complete, and its row exists. */
static void checked_in_lines_name_rows(void **state) {
    (void)state;
    const char *text = clt_kernel_text("tuned.csv");
    clt_ops *ops = open_ops(CLT_TUNE_OFF);
    int lines = 0;
    assert_non_null(text);
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1) {
        char op[32], shape[96], variant[48];
        if (*at == '#' || !strncmp(at, "op,", 3)) continue;
        assert_int_equal(sscanf(at, "%31[^,],%95[^,],%47[^,],", op, shape, variant), 3);
        clt_variant *row;
        bool there = false;
        const int n = clt_variant_rows(op, &row);
        for (int i = 0; i < n; i++) there |= !strcmp(row[i].id, variant);
        clt_free(row);
        assert_true(there);
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

/* --- attention --- */

enum { H = 4, KV = 2 };
static int batch = 2, seq = 70; /* main reduces them under an interpreter */
static const char *const passes[] = {"attention", "attention_backward"};
static const clt_tune_kind *const kinds[] = {&clt_attention_tune_forward, &clt_attention_tune_backward};

/* A call whose tensors lie in one buffer of random numbers; log-sum-exps of 4. */
static clt_attention_grad_params attention_call(int D, clt_dtype type) {
    const uint64_t wide = (uint64_t)(batch * seq * H * D), narrow = (uint64_t)(batch * seq * KV * D);
    clt_buffer *data = buffer(4 * wide + 4 * narrow), *stat = buffer((size_t)(batch * H * seq));
    tu_assert_ok(clt_buffer_fill32(stat, 0, 0x40800000u, (uint64_t)(batch * H * seq) * 4), "fill");
    clt_attention_grad_params g = {0};
    g.fwd = (clt_attention_params){.batch = batch, .seq = seq, .heads = H, .kv_heads = KV, .head_dim = D};
    clt_attention_params *p = &g.fwd;
    clt_tensor *const q[] = {&p->q, &p->o, &g.dout, &g.dq}, *const k[] = {&p->k, &p->v, &g.dk, &g.dv};
    p->scale = 0.25f, p->window = -1;
    for (uint64_t i = 0; i < 4; i++) {
        *q[i] = clt_tensor_of((clt_ref){data, i * wide}, H * D, type);
        *k[i] = clt_tensor_of((clt_ref){data, 4 * wide + i * narrow}, KV * D, type);
    }
    p->lse = (clt_ref){stat, 0};
    return g;
}

static void free_attention(const clt_attention_grad_params *g) {
    clt_buffer_destroy(g->fwd.q.ref.buf);
    clt_buffer_destroy(g->fwd.lse.buf);
}

static void only_options(const clt_ops *ops, const clt_attention_params *p, char out[CLT_ATTENTION_OPTIONS]) {
    (void)ops;
    clt_attention_options(p, out);
}

/* A row with the options of a call, as the operation builds it. */
static clt_variant row_for(const clt_variant *v, const clt_attention_params *p) {
    char options[CLT_ATTENTION_OPTIONS];
    clt_variant r = *v;
    const size_t n = strlen(r.options);
    clt_attention_options(p, options);
    snprintf(r.options + n, sizeof r.options - n, "%s -DSPLIT=0", options);
    return r;
}

/* The error of every row that supports the call: 0 if bits count, else within the bound. A program that was
 * built with a cap that the call does not have is wrong. */
static void errors_of_rows(clt_numerics numerics, int D, clt_dtype type, clt_attention_mask mask) {
    clt_ops *ops = open_with(CLT_TUNE_OFF, numerics);
    clt_attention_grad_params g = attention_call(D, type);
    g.fwd.mask = mask;
    const void *const call[] = {&g.fwd, &g};
    for (int pass = 0; pass < 2; pass++) {
        int n;
        void *tensors;
        const clt_variant *row = clt_ops_variants(ops, passes[pass], &n);
        tu_assert_ok(kinds[pass]->make(ops, call[pass], &tensors), "make");
        int first = n;
        for (int i = n - 1; i >= 0; i--) {
            double error = -1;
            const clt_variant right = row_for(&row[i], &g.fwd);
            if (pass == 0 ? !clt_attention_takes_forward(&right, &g.fwd)
                          : !clt_attention_takes_backward(&right, &g))
                continue;
            first = i;
            if (left_out(i, n, type)) continue;
            tu_assert_ok(kinds[pass]->error(ops, &right, tensors, &error), right.id);
            print_message("%s=%s: error %g\n", passes[pass], right.id, error);
            assert_true(error >= 0 && error <= (numerics == CLT_EXACT ? 0 : 1));
        }
        if (type == CLT_F32) {
            clt_variant wrong = row_for(&row[first], &g.fwd);
            double error = 0;
            memcpy(strstr(wrong.options, "-DSOFTCAP=0"), "-DSOFTCAP=1", 11);
            tu_assert_ok(kinds[pass]->error(ops, &wrong, tensors, &error), "wrong");
            assert_true(error > 1);
        }
        kinds[pass]->drop(tensors);
    }
    free_attention(&g);
    clt_ops_destroy(ops);
}

static void attention_is_compared_with_the_oracle(void **state) {
    (void)state;
    errors_of_rows(CLT_EXACT, 16, CLT_F32, CLT_MASK_CAUSAL);
    errors_of_rows(CLT_EXACT, 16, CLT_F32, CLT_MASK_NONE);
    errors_of_rows(CLT_FAST, 16, CLT_F32, CLT_MASK_CAUSAL);
    errors_of_rows(CLT_FAST, on_cpu() ? 4 : 16, CLT_BF16,
                   CLT_MASK_CAUSAL); /* CPUs: programs that other tests also use */
}

/* Any row that is said to be the fastest gives the words of the table's choice. */
static void no_choice_changes_a_bit(void **state) {
    (void)state;
    const size_t words = (size_t)(batch * seq * (4 * H + 4 * KV) * 16);
    char shape[2][80];
    float *want = clt_malloc(words * sizeof *want), *got = clt_malloc(words * sizeof *got);
    clt_ops *off = open_ops(CLT_TUNE_OFF);
    int n;
    const clt_variant *row = clt_ops_variants(off, "attention", &n);
    for (int i = -1; i < n; i++) {
        if (i >= 0 && clt_variant_param(&row[i], "MIN_D", 1) > 16) continue;
        if (left_out(i, n, CLT_F32)) continue;
        clt_attention_grad_params g = attention_call(16, CLT_F32);
        for (int a = 0; a < 2; a++) clt_attention_shape(&g.fwd, false, shape[a], sizeof shape[a]);
        clt_ops *ops = i < 0 ? off : open_ops(CLT_TUNE_CACHE);
        if (i >= 0) { /* as it is checked in: without a key */
            const clt_device_facts *f = clt_device_get_facts(dev);
            char *text = clt_format(
                "attention,%s exact,%s,1e-6,0,-,%s,1\nattention_backward,%s exact,%s,1e-6,0,-,%s,1\n",
                shape[0], row[i].id, f->name, shape[1], row[i].id, f->name);
            assert_int_equal(clt_tune_add_known(ops, text), 2);
            clt_free(text);
            assert_string_equal(clt_op_attention_variant(ops, &g.fwd), row[i].id);
            assert_string_equal(clt_op_attention_backward_variant(ops, &g), row[i].id);
        }
        tu_assert_ok(clt_op_attention_forward(ops, &g.fwd), "forward");
        tu_assert_ok(clt_op_attention_backward(ops, &g), "backward");
        tu_assert_ok(clt_ref_read_f32((clt_ref){g.fwd.q.ref.buf, 0}, i < 0 ? want : got, words), "read");
        if (i >= 0) tu_assert_words(row[i].id, got, want, words);
        if (i >= 0) clt_ops_destroy(ops);
        free_attention(&g);
    }
    clt_ops_destroy(off);
    clt_free(want);
    clt_free(got);
}

/* The shape contains every feature that time depends on; causal calls keep their lines. */
static void shapes_name_the_mask(void **state) {
    (void)state;
    clt_attention_grad_params g = attention_call(16, CLT_BF16);
    g.fwd.batch = 2, g.fwd.seq = 70;
    char shape[80];
    clt_attention_shape(&g.fwd, false, shape, sizeof shape);
    assert_string_equal(shape, "B2 T70 H4/2 D16 bf16");
    g.fwd.mask = CLT_MASK_NONE, g.fwd.window = 5;
    clt_attention_shape(&g.fwd, true, shape, sizeof shape);
    assert_string_equal(shape, "B2 T70 H4/2 D16 bf16 unmasked window5 added");
    free_attention(&g);
}

/* The same of attention in 8-bit blocks, whose rows all have the oracle's bits; on CPUs the row for them and
 * the one for every device. */
static void attention_in_blocks_is_compared_with_the_oracle(void **state) {
    (void)state;
    static const char *const op[] = {"attention8", "attention8_backward"};
    static const clt_tune_kind *const kind[] = {&clt_attention8_tune_forward, &clt_attention8_tune_backward};
    clt_ops *ops = open_ops(CLT_TUNE_OFF);
    clt_attention_grad_params g = attention_call(16, CLT_BF16);
    const void *const call[] = {&g.fwd, &g};
    for (int pass = 0; pass < 2; pass++) {
        int n, compared = 0;
        void *tensors;
        double error = 0;
        char options[CLT_ATTENTION_OPTIONS];
        const clt_variant *row = clt_ops_variants(ops, op[pass], &n);
        (on_cpu() ? clt_attention_cpu_options : only_options)(ops, &g.fwd, options);
        tu_assert_ok(kind[pass]->make(ops, call[pass], &tensors), "make");
        for (int i = 0; i < n; i++) {
            clt_variant v = row[i];
            const size_t used = strlen(v.options);
            snprintf(v.options + used, sizeof v.options - used, "%s", options);
            if (pass == 0 ? !clt_attention8_takes_forward(&v, &g.fwd)
                          : !clt_attention8_takes_backward(&v, &g))
                continue;
            if ((on_cpu() || tu_tiny()) && i < n - 1 && strcmp(v.body, "cpu") != 0) continue;
            tu_assert_ok(kind[pass]->error(ops, &v, tensors, &error), v.id);
            print_message("%s=%s: error %g\n", op[pass], v.id, error);
            assert_true(error == 0);
            compared++;
            if (i < n - 1) continue;
            memcpy(strstr(v.options, "-DSOFTCAP=0"), "-DSOFTCAP=1", 11);
            tu_assert_ok(kind[pass]->error(ops, &v, tensors, &error), "wrong");
            assert_true(error > 1);
        }
        assert_true(compared > 0);
        kind[pass]->drop(tensors);
    }
    free_attention(&g);
    clt_ops_destroy(ops);
}

/* On a CPU one row takes part, so there is nothing to measure; on a GPU several do. */
static void attention_is_measured_where_there_is_a_choice(void **state) {
    (void)state;
    char *path = csv();
    remove(path);
    clt_free(path);
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    clt_attention_grad_params g = attention_call(16, CLT_F32);
    const clt_tuned *t[2];
    assert_true(*clt_op_attention_variant(ops, &g.fwd) && *clt_op_attention_backward_variant(ops, &g));
    const int n = measured(ops, t, 2);
    char shape[80];
    snprintf(shape, sizeof shape, "B%d T%d H4/2 D16 fp32 exact", batch, seq);
    assert_int_equal(n, on_cpu() ? 0 : 2);
    for (int i = 0; i < n; i++) {
        assert_string_equal(t[i]->op, passes[i]);
        assert_string_equal(t[i]->shape, shape);
        assert_true(t[i]->seconds > 0 && t[i]->error == 0);
    }
    free_attention(&g);
    clt_ops_destroy(ops);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    if (tu_tiny()) batch = 1, seq = 18; /* two blocks of the smallest rows */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_measured_once),
        cmocka_unit_test(a_full_device_is_not_tuned_and_runs),
        cmocka_unit_test(lines_of_two_writers_stay),
        cmocka_unit_test(order_is_forced_then_measured_then_the_table),
        cmocka_unit_test(checked_in_lines_stand_behind_measured_ones),
        cmocka_unit_test(checked_in_lines_name_rows),
        cmocka_unit_test(nothing_is_measured_once_steady),
        cmocka_unit_test(attention_is_compared_with_the_oracle),
        cmocka_unit_test(attention_in_blocks_is_compared_with_the_oracle),
        cmocka_unit_test(no_choice_changes_a_bit),
        cmocka_unit_test(shapes_name_the_mask),
        cmocka_unit_test(attention_is_measured_where_there_is_a_choice),
    };
    return cmocka_run_group_tests_name("tune", tests, set_up, tear_down);
}
