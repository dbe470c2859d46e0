/* Measured choices of products in 8 bits: rows compared with the oracle, and measured where there is a
 * choice. */
#include "runtime/ops/clt_op_gemm8_internal.h"
#include "runtime/ops/clt_op_gemm_fp8_internal.h"
#include "test/ops/tune_frame.h"

/* --- products of 8-bit blocks --- */

static clt_gemm8_params gemm8_call(clt_gemm8_form form, int32_t block) {
    clt_gemm8_params p = {.form = form, .m = 20, .n = 36, .k = 4 * block, .k_group = 2 * block};
    p.a = (clt_blocks8){.ld = p.k, .ld_scale = 20, .block = block, .tile = 1};
    p.b = (clt_blocks8){.ld = p.k, .ld_scale = 36, .block = block, .tile = 1};
    if (form == CLT_GEMM8_PRODUCT) p.b.tile = block, p.b.ld_scale = 1;
    p.a.q.buf = buffer((size_t)(p.m * p.k / 4)), p.b.q.buf = buffer((size_t)(p.n * p.k / 4));
    p.a.scale.buf = buffer(4 * 20), p.b.scale.buf = buffer(4 * 36);
    p.c = (clt_tensor){.ref.buf = buffer((size_t)(p.m * p.n)), .ld = p.n};
    return p;
}

static void free_gemm8(const clt_gemm8_params *p) {
    const clt_ref all[] = {p->a.q, p->b.q, p->a.scale, p->b.scale, p->c.ref};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_buffer_destroy(all[i].buf);
}

/* A row has the oracle's bits; one that was built for other blocks has not. That one runs on CPUs only: on a
 * GPU the groups of a kernel that waits for its loads might wait for ever. */
static void products_of_blocks_are_compared_with_the_oracle(void **state) {
    (void)state;
    clt_ops *ops = open_ops(CLT_TUNE_OFF);
    int n, compared = 0;
    const clt_variant *row = clt_ops_variants(ops, "gemm8", &n);
    for (int i = 0; i < n; i++) {
        if (left_out(i, n, CLT_F32)) continue;
        for (int form = 0; form <= CLT_GEMM8_CHAIN; form++) {
            const clt_gemm8_params p = gemm8_call((clt_gemm8_form)form, 128);
            void *tensors;
            double right = -1, wrong = 0;
            clt_variant other = row[i];
            if (!clt_gemm8_takes(&row[i], &p)) {
                free_gemm8(&p);
                continue;
            }
            tu_assert_ok(clt_gemm8_tune.make(ops, &p, &tensors), "make");
            tu_assert_ok(clt_gemm8_tune.error(ops, &row[i], tensors, &right), row[i].id);
            assert_true(right == 0);
            if (on_cpu()) {
                const size_t used = strlen(other.options);
                snprintf(other.options + used, sizeof other.options - used, " -DBLOCK=64");
                tu_assert_ok(clt_gemm8_tune.error(ops, &other, tensors, &wrong), row[i].id);
                assert_true(wrong > 1);
            }
            clt_gemm8_tune.drop(tensors);
            free_gemm8(&p);
            compared++;
        }
    }
    assert_true(compared > 0);
    clt_ops_destroy(ops);
}

static void products_of_blocks_are_measured_where_there_is_a_choice(void **state) {
    (void)state;
    char *path = csv();
    remove(path);
    clt_free(path);
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    const clt_gemm8_params p = gemm8_call(CLT_GEMM8_SAMPLES, 64);
    const clt_tuned *t;
    int n, choices = 0;
    const clt_variant *row = clt_ops_variants(ops, "gemm8", &n);
    for (int i = 0; i < n; i++) choices += clt_gemm8_tune.worth(ops, &row[i]) && clt_gemm8_takes(&row[i], &p);
    tu_assert_ok(clt_op_gemm8(ops, &p), "gemm8");
    assert_int_equal(measured(ops, &t, 1), choices > 1);
    if (choices > 1) {
        assert_string_equal(t->shape, "samples 20x36x256/128 blocks 64 tiles 1/1 fp32 exact");
        assert_string_equal(clt_op_gemm8_variant(ops, &p), t->variant);
        assert_true(t->seconds > 0 && t->error == 0);
    }
    free_gemm8(&p);
    clt_ops_destroy(ops);
}

/* --- products in 8-bit floating point --- */

static clt_gemm_fp8_params fp8_call(bool split) {
    clt_gemm_fp8_params p = {.split = split, .to = {.m = 20, .n = 36, .k = 160, .k_group = 160}};
    p.a = (clt_codes8){.ld = p.to.k, .format = CLT_FP8_E4M3};
    p.b = (clt_codes8){.ld = p.to.k, .format = split ? CLT_FP8_E5M2 : CLT_FP8_E4M3};
    p.a.q.buf = buffer((size_t)(p.to.m * p.to.k / 4)), p.b.q.buf = buffer((size_t)(p.to.n * p.to.k / 4));
    p.a.inverse.buf = buffer(4), p.b.inverse.buf = buffer(4);
    p.to.c = (clt_tensor){.ref.buf = buffer((size_t)(p.to.m * p.to.n)), .ld = p.to.n};
    return p;
}

static void free_fp8(const clt_gemm_fp8_params *p) {
    const clt_ref all[] = {p->a.q, p->b.q, p->a.inverse, p->b.inverse, p->to.c.ref};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_buffer_destroy(all[i].buf);
}

/* A row has the oracle's bits, with numerics fast its bound; one that writes outputs of another type has not.
 */
static void fp8_products_are_compared_with_the_oracle(void **state) {
    (void)state;
    for (int fast = 0; fast < 2; fast++) {
        clt_ops *ops = open_with(CLT_TUNE_OFF, fast ? CLT_FAST : CLT_EXACT);
        int n, compared = 0;
        const clt_variant *row = clt_ops_variants(ops, "gemm_fp8", &n);
        for (int i = 0; i < n; i++) {
            const clt_gemm_fp8_params p = fp8_call(fast);
            void *tensors;
            double right = -1, wrong = 0;
            clt_variant other = row[i];
            if (clt_gemm_fp8_takes(&row[i], &p)) {
                tu_assert_ok(clt_gemm_fp8_tune.make(ops, &p, &tensors), "make");
                tu_assert_ok(clt_gemm_fp8_tune.error(ops, &row[i], tensors, &right), row[i].id);
                print_message("gemm_fp8=%s: error %g\n", row[i].id, right);
                assert_true(right >= 0 && right <= (fast ? 1 : 0));
                if (!strcmp(row[i].body, "group")) {
                    const size_t used = strlen(other.options);
                    snprintf(other.options + used, sizeof other.options - used, " -DC_TYPE=1");
                    tu_assert_ok(clt_gemm_fp8_tune.error(ops, &other, tensors, &wrong), row[i].id);
                    assert_true(wrong > 1);
                }
                clt_gemm_fp8_tune.drop(tensors);
                compared++;
            }
            free_fp8(&p);
        }
        assert_true(compared > 0);
        clt_ops_destroy(ops);
    }
}

static void fp8_products_are_measured_where_there_is_a_choice(void **state) {
    (void)state;
    char *path = csv();
    remove(path);
    clt_free(path);
    clt_ops *ops = open_ops(CLT_TUNE_FILL);
    const clt_gemm_fp8_params p = fp8_call(true);
    const clt_tuned *t;
    int n, choices = 0;
    const clt_variant *row = clt_ops_variants(ops, "gemm_fp8", &n);
    for (int i = 0; i < n; i++) choices += clt_gemm_fp8_takes(&row[i], &p);
    tu_assert_ok(clt_op_gemm_fp8(ops, &p), "gemm_fp8");
    assert_int_equal(measured(ops, &t, 1), choices > 1);
    if (choices > 1) {
        assert_string_equal(t->shape, "20x36x160 e4m3 e5m2 split fp32 exact");
        assert_string_equal(clt_op_gemm_fp8_variant(ops, &p), t->variant);
        assert_true(t->seconds > 0 && t->error == 0);
    }
    free_fp8(&p);
    clt_ops_destroy(ops);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_blocks_are_compared_with_the_oracle),
        cmocka_unit_test(products_of_blocks_are_measured_where_there_is_a_choice),
        cmocka_unit_test(fp8_products_are_compared_with_the_oracle),
        cmocka_unit_test(fp8_products_are_measured_where_there_is_a_choice),
    };
    return cmocka_run_group_tests_name("tune of products", tests, set_up, tear_down);
}
