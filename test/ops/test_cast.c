/* Casts: all 65,536 patterns of both 16-bit formats, rounding ties and their neighbours, and a stride over
 * all fp32 patterns; the oracle is compared with the definition of rounding in double. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The tie between every two 16-bit values and its neighbours, both signs, and a stride over the rest. */
static uint32_t *make_patterns(size_t *n) {
    size_t cap = tu_tiny() ? 4096 : 1u << 20, count = 0;
    uint32_t *u = clt_malloc(cap * sizeof *u);
    for (uint32_t b = 0; count + 6 < cap && b < 0x10000; b += tu_tiny() ? 997 : 1) {
        uint32_t tie = b << 16 | 0x8000;
        u[count++] = tie - 1, u[count++] = tie, u[count++] = tie + 1;
        /* ties of fp16 are at bit 12 for normal halves, elsewhere for denormal ones: step through both */
        uint32_t h = 0x33000000u + b * 0x1000u % 0x14800000u;
        u[count++] = h - 1, u[count++] = h, u[count++] = h + 1;
    }
    for (uint64_t i = 0; count < cap; i++) u[count++] = tu_random_word(3, i);
    *n = count;
    return u;
}

static void run_narrow(int d, clt_dtype to, uint16_t (*ref)(float)) {
    size_t n;
    uint32_t *u = make_patterns(&n);
    if (!tu_wide()) n -= 3; /* a size that is no multiple of any vector length */
    uint16_t *want = clt_calloc(n + 3, sizeof *want);
    for (size_t i = 0; i < n; i++) want[i] = ref(float_of(u[i]));
    clt_ref src = tu_upload(d, (float *)u, n), dst = tu_blank(d, (n + 1) / 2 + 1);
    clt_ref half = {dst.buf, dst.off * 2};
    tu_assert_ok(clt_op_cast(tu_ops(d), clt_tensor_vector(src, CLT_F32), clt_tensor_vector(half, to), n),
                 "cast");
    const uint16_t *got = (const uint16_t *)tu_download(dst, (n + 1) / 2 + 1);
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("cast of %08x gives %04x, the oracle %04x", u[i], got[i], want[i]);
    tu_release();
    clt_free(u);
    clt_free(want);
}

static void run_widen(int d, clt_dtype from, float (*ref)(uint16_t)) {
    enum { N = 65536 };
    uint16_t *h = clt_malloc(N * sizeof *h);
    float *want = clt_malloc(N * sizeof *want);
    for (int i = 0; i < N; i++) {
        h[i] = (uint16_t)i;
        want[i] = ref(h[i]);
    }
    const size_t first = tu_wide() ? 0 : 1;
    clt_ref src = tu_upload(d, (const float *)h, N / 2), dst = tu_blank(d, N - first);
    const clt_tensor half = clt_tensor_vector((clt_ref){src.buf, src.off * 2 + first}, from);
    tu_assert_ok(clt_op_cast(tu_ops(d), half, clt_tensor_vector(dst, CLT_F32), N - first), "cast");
    const float *got = tu_download(dst, N - first);
    assert_memory_equal(got, want + first, (N - first) * sizeof *want); /* NaN patterns too */
    tu_release();
    clt_free(h);
    clt_free(want);
}

static void run_variant(int d, const char *id) {
    (void)id;
    run_narrow(d, CLT_BF16, clt_ref_f32_to_bf16);
    run_narrow(d, CLT_F16, clt_ref_f32_to_f16);
    run_widen(d, CLT_BF16, clt_ref_bf16_to_f32);
    run_widen(d, CLT_F16, clt_ref_f16_to_f32);
}

static void casts_match(void **state) {
    (void)state;
    tu_each_variant("cast", run_variant);
}

/* The oracle: the result is the nearest 16-bit value, and for a tie the even one. */
static void check_nearest(uint32_t u, uint16_t got, float (*back)(uint16_t), double largest) {
    double x = float_of(u), v = back(got);
    if (isnan(x)) {
        assert_true(isnan(v));
        return;
    }
    assert_int_equal(signbit(x) != 0, got >> 15);
    if (isinf(v)) {
        assert_true(fabs(x) >= largest);
        return;
    }
    double error = fabs(v - x);
    uint16_t lower = (got & 0x7fff) ? got - 1 : got, upper = got + 1;
    double below = fabs(back(lower) - x), above = fabs(back(upper) - x);
    assert_true(error <= below && (isinf(above) || isnan(above) || error <= above));
    if ((error == above || (error == below && lower != got))) assert_int_equal(got & 1, 0);
}

static void oracle_rounds_to_nearest_even(void **state) {
    (void)state;
    size_t n;
    uint32_t *u = make_patterns(&n);
    for (size_t i = 0; i < n; i++) {
        float x = float_of(u[i]);
        check_nearest(u[i], clt_ref_f32_to_bf16(x), clt_ref_bf16_to_f32, 0x1.ffp127);
        check_nearest(u[i], clt_ref_f32_to_f16(x), clt_ref_f16_to_f32, 65520.0);
    }
    clt_free(u);
    for (uint32_t h = 0; h < 0x10000; h++) { /* both casts in sequence are the identity; NaN becomes quiet */
        uint16_t b = (uint16_t)h;
        assert_int_equal(clt_ref_f32_to_bf16(clt_ref_bf16_to_f32(b)), (b & 0x7fff) > 0x7f80 ? b | 0x40 : b);
        assert_int_equal(clt_ref_f32_to_f16(clt_ref_f16_to_f32(b)), (b & 0x7fff) > 0x7c00 ? b | 0x200 : b);
    }
}

static void unknown_cast_is_refused(void **state) {
    (void)state;
    clt_ref x = tu_blank(0, 4);
    const clt_tensor from = clt_tensor_vector(x, CLT_BF16);
    assert_int_equal(clt_op_cast(tu_ops(0), from, clt_tensor_vector(x, CLT_F16), 4), CLT_FAIL);
    assert_string_equal(clt_last_error(), "cast: dst is of type fp16; supported: fp32");
    assert_int_equal(clt_op_cast(tu_ops(0), clt_tensor_vector(x, CLT_F32), clt_tensor_vector(x, CLT_F32), 4),
                     CLT_FAIL);
    tu_release();
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_rounds_to_nearest_even),
        cmocka_unit_test(casts_match),
        cmocka_unit_test(unknown_cast_is_refused),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
