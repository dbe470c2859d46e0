/* Row sums, chunk sums of squares and the norm's status: every variant on every device against the oracle. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/device/clt_slab.h"
#include "runtime/ops/ref/clt_ref.h"

static void row_sum_case(int d, int64_t rows, int64_t cols, int64_t ld, bool extreme) {
    size_t n = (size_t)(rows * ld);
    float *x = extreme ? tu_extreme(n, 3) : tu_random(n, 2, 1.0f),
          *want = clt_malloc((size_t)rows * sizeof *want);
    clt_ref out = tu_blank(d, (size_t)rows);
    tu_assert_ok(clt_op_row_sum(tu_ops(d), rows, cols, clt_tensor_of(tu_upload(d, x, n), ld, CLT_F32), out),
                 "row sum");
    for (int64_t r = 0; r < rows; r++) want[r] = clt_ref_row_sum(x + r * ld, cols);
    tu_assert_words("row sum", tu_download(out, (size_t)rows), want, (size_t)rows);
    tu_release();
    clt_free(x);
    clt_free(want);
}

static void chunks_case(int d, uint64_t chunks, float scale) {
    size_t n = chunks * CLT_CHUNK;
    float *x = tu_random(n, 5, scale), *want = clt_malloc(chunks * sizeof *want);
    clt_ref sums = tu_blank(d, chunks), status = tu_blank(d, 3);
    tu_assert_ok(clt_op_chunk_sumsq(tu_ops(d), tu_upload(d, x, n), chunks, sums), "chunk sums");
    for (uint64_t c = 0; c < chunks; c++) want[c] = clt_ref_chunk_sumsq(x + c * CLT_CHUNK);
    tu_assert_words("chunk sums", tu_download(sums, chunks), want, chunks);
    static const float thresholds[] = {0.0f, 1.0f, 1e30f, -1.0f},
                       inv_scales[] = {1.0f, 1.0f, 0x1p-16f, 0x1p-3f};
    for (size_t i = 0; i < CLT_COUNT_OF(thresholds); i++) {
        float expected[3];
        tu_assert_ok(clt_op_norm_status(tu_ops(d), &(clt_norm_status_params){sums, chunks, thresholds[i],
                                                                             inv_scales[i], status}),
                     "status");
        clt_ref_norm_status(want, chunks, thresholds[i], inv_scales[i], expected);
        tu_assert_words("status", tu_download(status, 3), expected, 3);
    }
    tu_release();
    clt_free(x);
    clt_free(want);
}

static void guard_case(int d, size_t n, size_t bad, float value, float flag) {
    float *x = tu_random(n, 7, 1.0f), g[2] = {-0.0f, 3.0f}, want[2] = {-0.0f, 3.0f};
    if (bad < n) x[bad] = value;
    clt_ref place = tu_upload(d, g, 2);
    tu_assert_ok(clt_op_guard(tu_ops(d), tu_upload(d, x, n), n, tu_upload(d, &flag, 1), place), "guard");
    clt_ref_guard(n, x, flag, want);
    tu_assert_words("guard", tu_download(place, 2), want, 2);
    tu_release();
    clt_free(x);
}

static void guard_variant(int d, const char *id) {
    (void)id;
    static const size_t size[] = {1, 63, 64, 65, 1000};
    for (size_t i = 0; i < CLT_COUNT_OF(size); i++) {
        guard_case(d, size[i], size[i], 0.0f, 1.0f);
        guard_case(d, size[i], size[i] - 1, NAN, 1.0f);
        guard_case(d, size[i], 0, -HUGE_VALF, 1.0f);
        guard_case(d, size[i], 0, 1e38f, 0.0f);
        guard_case(d, size[i], size[i] / 2, 1e38f, 1.0f);
    }
}

static void guards_match(void **state) {
    (void)state;
    tu_each_variant("guard", guard_variant);
}

static void run_variant(int d, const char *id) {
    (void)id;
    static const int64_t size[][3] = {{1, 1, 1},   {2, 63, 63},   {3, 64, 70},
                                      {5, 65, 65}, {4, 131, 137}, {2, 1021, 1021}};
    for (size_t i = 0; i < CLT_COUNT_OF(size); i++)
        for (int extreme = 0; extreme < 2; extreme++)
            row_sum_case(d, size[i][0], size[i][1], size[i][2], extreme);
    chunks_case(d, 1, 0.5f);
    if (tu_tiny()) return;
    chunks_case(d, 67, 1e-3f);
    chunks_case(d, 2, 1e25f); /* the norm overflows: the step must not be applied */
}

static void reductions_match(void **state) {
    (void)state;
    tu_each_variant("reduce", run_variant);
}

/* Every number of parts as a chain and as the tree of pairs, with parts of both types at uneven places. */
static void parts_case(int d, int n, bool chain, bool round, size_t count, uint64_t at) {
    clt_sum_parts s = {.count = count, .n = n, .round = round};
    float *x[CLT_PARTS_MOST], *want = clt_malloc(count * sizeof *want);
    int left = 0;
    for (int i = 0; i < n; i++) {
        s.part[i].narrow = i % 3 == 1;
        for (int m = i + 1; !chain && m % 2 == 0; m /= 2) s.part[i].joins++;
        if (chain) s.part[i].joins = i > 0;
        left += 1 - s.part[i].joins;
        x[i] = i == 2 ? tu_extreme(count + at, 40) : tu_random(count + at, 40 + (uint32_t)i, 3.0f);
        s.part[i].at = tu_upload_rounded(d, s.part[i].narrow ? CLT_BF16 : CLT_F32, x[i], count + at);
        s.part[i].at.off += at;
    }
    s.part[n - 1].joins += left - 1;
    s.dst = tu_blank(d, count + at);
    s.dst.off += at;
    tu_assert_ok(clt_op_sum_parts(tu_ops(d), &s), "sum of parts");
    const float *in[CLT_PARTS_MOST];
    for (int i = 0; i < n; i++) in[i] = x[i] + at;
    clt_ref_sum_parts(&s, in, want);
    tu_assert_words("sum of parts", tu_download(s.dst, count), want, count);
    tu_release();
    for (int i = 0; i < n; i++) clt_free(x[i]);
    clt_free(want);
}

static void parts_variant(int d, const char *id) {
    const bool wide = !strcmp(id, "wide");
    for (int n = 1; n <= CLT_PARTS_MOST; n++)
        for (int form = 0; form < 4; form++)
            parts_case(d, n, form % 2, form / 2, wide ? 1024 : 1013, wide ? 8 : 3);
    parts_case(d, 8, false, true, 8 * 4099, 0);
    parts_case(d, 2, false, true, 16, 0);
}

static void parts_match(void **state) {
    (void)state;
    tu_each_variant("parts", parts_variant);
}

/* ((1 + 2^-24) + 2^-24) is 1, 1 + (2^-24 + 2^-24) is not; what does not fit into bf16 is rounded away. */
static void parts_are_a_tree(void **state) {
    (void)state;
    clt_sum_parts s = {.count = 1, .n = 3};
    const float x[] = {1.0f, 0x1p-24f, 0x1p-24f}, *const in[] = {x, x + 1, x + 2};
    float sum;
    s.part[1].joins = s.part[2].joins = 1;
    clt_ref_sum_parts(&s, in, &sum);
    assert_true(sum == 1.0f);
    s.part[1].joins = 0, s.part[2].joins = 2;
    clt_ref_sum_parts(&s, in, &sum);
    assert_true(sum == 1.0f + 0x1p-23f);
    s.round = true;
    clt_ref_sum_parts(&s, in, &sum);
    assert_true(sum == 1.0f);
    for (int d = 0; d < tu_device_count(); d++) {
        s.n = CLT_PARTS_MOST + 1;
        assert_int_equal(clt_op_sum_parts(tu_ops(d), &s), CLT_FAIL);
    }
}

static void status_sees_bad_sums(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        static const float bad[] = {NAN, INFINITY};
        for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
            float sums[70] = {0};
            sums[66] = bad[i];
            clt_ref status = tu_blank(d, 3);
            tu_assert_ok(clt_op_norm_status(tu_ops(d), &(clt_norm_status_params){tu_upload(d, sums, 70), 70,
                                                                                 1.0f, 1.0f, status}),
                         "status");
            assert_true(tu_download(status, 3)[2] == 0.0f);
            tu_release();
        }
    }
}

/* The order, by an example whose sum depends on it: lane 0 takes 0 and 64, the tree pairs lanes 0 and 32. */
static void the_order_is_the_row_rule(void **state) {
    (void)state;
    float x[128] = {0};
    x[0] = 1.0f, x[64] = 0x1p-24f, x[1] = -1.0f, x[33] = 0x1p-24f;
    /* lane 0: 1 + 2^-24 = 1 (tie to even); lane 1: -1 + 2^-24 (from lane 33), exact; their sum is 2^-24 */
    assert_true(clt_ref_row_sum(x, 128) == 0x1p-24f);
    double sum = 0;
    float *r = tu_random(5000, 9, 1.0f);
    for (int i = 0; i < 5000; i++) sum += (double)r[i];
    float got = clt_ref_row_sum(r, 5000);
    tu_assert_close("row sum", &got, &sum, 1, 1e-5);
    clt_free(r);
}

/* The coefficient by its formula; a power of two as a factor of the gradients changes no bit of norm and
 * update. */
static void status_follows_its_formula(void **state) {
    (void)state;
    float status[3], scaled[3], sum = 9.0f, small = 0.25f, large = 9.0f * 0x1p32f;
    clt_ref_norm_status(&sum, 1, 1.0f, 1.0f, status);
    assert_true(status[0] == 3.0f && status[1] == 1.0f / (3.0f + 1e-6f) && status[2] == 1.0f);
    clt_ref_norm_status(&large, 1, 1.0f, 0x1p-16f, scaled);
    assert_true(scaled[0] == status[0] && scaled[1] == status[1] * 0x1p-16f && scaled[2] == 1.0f);
    clt_ref_norm_status(&small, 1, 1.0f, 1.0f, status);
    assert_true(status[1] == 1.0f);
    clt_ref_norm_status(&sum, 1, 0.0f, 0.5f, status);
    assert_true(status[0] == 1.5f && status[1] == 0.5f);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_is_the_row_rule), cmocka_unit_test(status_follows_its_formula),
        cmocka_unit_test(reductions_match),          cmocka_unit_test(parts_match),
        cmocka_unit_test(parts_are_a_tree),          cmocka_unit_test(guards_match),
        cmocka_unit_test(status_sees_bad_sums),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
