/* Compares the table of element types with the oracle's conversions; parts of tensors; and calls that the
 * checks of operations refuse. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

static void refused(clt_status st, const char *message) {
    assert_int_equal(st, CLT_FAIL);
    if (strcmp(clt_last_error(), message) != 0)
        fail_msg("the message is '%s', not '%s'", clt_last_error(), message);
}

static void types_are_found_by_name(void **state) {
    (void)state;
    clt_dtype type;
    for (int i = 0; i < CLT_DTYPE_COUNT; i++) {
        assert_true(clt_dtype_find(clt_dtype_name((clt_dtype)i), &type));
        assert_int_equal(type, i);
    }
    assert_false(clt_dtype_find("fp17", &type));
    assert_string_equal(clt_dtype_name((clt_dtype)CLT_DTYPE_COUNT), "unknown");
    char names[CLT_DTYPE_NAMES];
    assert_string_equal(clt_dtype_names(clt_dtype_bit(CLT_F32) | clt_dtype_bit(CLT_F16), names),
                        "fp32, fp16");
    assert_string_equal(clt_dtype_names(0, names), "");
}

/* bytes, unit and least are those of the oracle's rounding: no error is larger, and some are as large. */
static void table_holds_what_rounding_does(void **state) {
    (void)state;
    enum { N = 20000 };
    for (clt_dtype type = 0; type < CLT_DTYPE_COUNT; type++) {
        const clt_dtype_row *t = &clt_dtype_table[type];
        float stored[2] = {NAN, NAN};
        clt_ref_narrow(type, (const float[]){1.0f}, 1, stored);
        uint8_t *end = (uint8_t *)stored + t->bytes, untouched[sizeof stored];
        memcpy(untouched, (const float[]){NAN, NAN}, sizeof untouched);
        assert_memory_equal(end, untouched + t->bytes, sizeof stored - t->bytes);
        double worst = 0;
        for (uint64_t i = 0; i < N; i++) {
            const double x = ldexp(1.0 + (double)tu_random_word(1, i) * 0x1p-32, (int)(i % 28) - 14);
            const double off = fabs((double)clt_ref_rounded(type, (float)x) - (double)(float)x);
            assert_true(off <= t->unit * x);
            worst = fmax(worst, off / x);
        }
        if (type != CLT_F32) assert_true(worst > 0.9 * t->unit);
        /* A tie between 0 and the smallest number goes to 0; a larger value does not. */
        if (type != CLT_F32) assert_true(clt_ref_rounded(type, (float)t->least) == 0);
        if (type != CLT_F32)
            assert_true((double)clt_ref_rounded(type, (float)(1.01 * t->least)) == 2 * t->least);
        assert_false(t->scaled);
    }
    assert_int_equal(CLT_DTYPE_PLAIN, 7);
}

static void parts_keep_row_distance_type_and_scales(void **state) {
    (void)state;
    const clt_scale scale = {.rows = 128, .cols = 128, .origin = 5};
    clt_tensor t = clt_tensor_of(tu_blank(0, 64), 10, CLT_BF16);
    t.scale = &scale;
    const clt_tensor part = clt_tensor_at(t, 3, 4);
    assert_int_equal(part.ref.off, t.ref.off + 34);
    assert_true(part.ref.buf == t.ref.buf && part.ld == 10 && part.type == CLT_BF16 && part.scale == &scale);
    const clt_tensor absent = clt_tensor_at(clt_tensor_of(clt_ref_none(), 10, CLT_F16), 3, 4);
    assert_false(clt_tensor_present(absent));
    assert_int_equal(absent.ref.off, 0);
    assert_int_equal(absent.type, CLT_F16);
    assert_int_equal(clt_tensor_vector(t.ref, CLT_F32).ld, 0);
    tu_release();
}

static void checks_name_what_they_refuse(void **state) {
    (void)state;
    const clt_scale scale = {.cols = 128};
    const clt_tensor wide = clt_tensor_of(tu_blank(0, 64), 8, CLT_F32), narrow = {wide.ref, 8, CLT_BF16};
    clt_tensor scaled = wide;
    scaled.scale = &scale;
    const clt_tensor_named list[] = {
        {"x", wide}, {"none", clt_tensor_of(clt_ref_none(), 3, CLT_F16)}, {"y", narrow}};
    tu_assert_ok(clt_tensor_check_types("op", CLT_DTYPE_PLAIN, list, 3), "types");
    refused(clt_tensor_check_types("op", clt_dtype_bit(CLT_F32), list, 3),
            "op: y is of type bf16; supported: fp32");
    tu_assert_ok(clt_tensor_check_one_type("op", CLT_DTYPE_PLAIN, list, 2), "an absent one has no say");
    refused(clt_tensor_check_one_type("op", CLT_DTYPE_PLAIN, list, 3),
            "op: x is of type fp32, but y of type bf16; they must have one type");
    refused(clt_tensor_check_types("op", CLT_DTYPE_PLAIN, (clt_tensor_named[]){{"x", scaled}}, 1),
            "op: x is of type fp32, which has no scales, and comes with some");
    tu_assert_ok(clt_tensor_check_dense("op", 8, list, 3), "dense");
    refused(clt_tensor_check_dense("op", 7, list, 1),
            "op: rows of x are 8 apart but 7 long; gaps are not supported");
    tu_assert_ok(clt_tensor_check_fits("op", "x", &wide, 8, 8), "fits");
    tu_release();
}

/* The last row ends with its columns: the gap after it need not exist. */
static void a_tensor_fits_its_buffer(void **state) {
    (void)state;
    clt_buffer *b;
    tu_assert_ok(clt_buffer_create(tu_device(0), 4096, "test", &b), "buffer");
    clt_tensor t = clt_tensor_of((clt_ref){b, 1024 - (9 * 100 + 70)}, 100, CLT_F32);
    tu_assert_ok(clt_tensor_check_fits("op", "x", &t, 10, 70), "up to the last element");
    t.ref.off++;
    refused(clt_tensor_check_fits("op", "x", &t, 10, 70),
            "op: x [10, 70] from element 55 on does not fit its buffer of 1024 elements");
    t.type = CLT_BF16;
    tu_assert_ok(clt_tensor_check_fits("op", "x", &t, 10, 70), "in smaller elements");
    refused(clt_tensor_check_fits("op", "x", &t, 10, 101), "op: rows of x are 100 apart but 101 long");
    t.ref.off = UINT64_MAX;
    assert_int_equal(clt_tensor_check_fits("op", "x", &t, 1, 1), CLT_FAIL);
    t = clt_tensor_none();
    refused(clt_tensor_check_fits("op", "x", &t, 1, 1), "op: x is missing");
    clt_buffer_destroy(b);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_found_by_name),
        cmocka_unit_test(table_holds_what_rounding_does),
        cmocka_unit_test(parts_keep_row_distance_type_and_scales),
        cmocka_unit_test(checks_name_what_they_refuse),
        cmocka_unit_test(a_tensor_fits_its_buffer),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
