/* 8-bit floating point: the oracle against tables of the package ml_dtypes (test/golden/fp8), the text of
 * clkernels/include/clt_fp8.clh compiled as C against the oracle, and the same text on every device. */
#include "test/test_util.h"

#include <jansson.h>
#include <string.h>

#include "runtime/ops/ref/clt_clc.h"
#include "clkernels/include/clt_fp8.clh"
#include "runtime/ops/ref/clt_ref.h"
#include "test/golden_util.h"

enum { AROUND = 600, BORDERS = 128, INFINITE = 0x7f800000 };

#define ROW(id, name, ...) {clt_f32_to_##name, clt_##name##_to_f32},
static const struct {
    uint (*narrow)(float);
    float (*widen)(uint);
} text[CLT_FP8_COUNT] = {CLT_FP8_FORMATS(ROW)};
#undef ROW

/* --- the oracle against ml_dtypes --- */

static json_t *table_of(json_t *all, clt_fp8 f) {
    return json_object_get(all, clt_fp8_table[f].name);
}

/* The patterns around every border, in the order of the golden hash. Returns how many. */
static size_t near_borders(const int64_t *border, size_t n, uint32_t *out) {
    size_t count = 0;
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (size_t i = 0; i < n; i++) {
            for (int64_t u = border[i] - AROUND; u <= border[i] + AROUND; u++) {
                const int64_t inside = u < 0 ? 0 : u > INFINITE ? INFINITE : u;
                out[count++] = (uint32_t)inside | sign << 31;
            }
        }
    }
    return count;
}

static void check_codes(json_t *table, const char *hash, const uint8_t *codes, size_t n) {
    char hex[65];
    golden_sha256(codes, n, hex);
    assert_string_equal(hex, golden_str(table, hash));
}

static void check_sixteen_bits(json_t *table, clt_fp8 f) {
    static uint8_t codes[65536];
    for (uint32_t u = 0; u < 65536; u++) codes[u] = clt_ref_f32_to_fp8(f, clt_ref_bf16_to_f32((uint16_t)u));
    check_codes(table, "sha256_of_bf16", codes, sizeof codes);
    for (uint32_t u = 0; u < 65536; u++) codes[u] = clt_ref_f32_to_fp8(f, clt_ref_f16_to_f32((uint16_t)u));
    check_codes(table, "sha256_of_fp16", codes, sizeof codes);
}

static void check_borders(json_t *table, clt_fp8 f) {
    size_t n;
    int64_t *border = golden_ints(json_object_get(table, "border"), &n);
    uint32_t *u = clt_malloc(2 * BORDERS * (2 * AROUND + 1) * sizeof *u);
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = (uint32_t)border[i];
        assert_int_equal(clt_ref_f32_to_fp8(f, as_float(at)), i);
        if (i > 0) assert_int_equal(clt_ref_f32_to_fp8(f, as_float(at - 1)), i - 1);
    }
    const size_t count = near_borders(border, n, u);
    uint8_t *codes = clt_malloc(count);
    for (size_t i = 0; i < count; i++) codes[i] = clt_ref_f32_to_fp8(f, as_float(u[i]));
    check_codes(table, "sha256_near_borders", codes, count);
    clt_free(border);
    clt_free(codes);
    clt_free(u);
}

static void oracle_equals_ml_dtypes(void **state) {
    (void)state;
    json_t *all = golden_load("test/golden/fp8/casts.json");
    for (clt_fp8 f = 0; f < CLT_FP8_COUNT; f++) {
        size_t n;
        json_t *table = table_of(all, f);
        int64_t *decode = golden_ints(json_object_get(table, "decode"), &n);
        assert_int_equal(n, 256);
        for (uint32_t c = 0; c < 256; c++) {
            if (as_uint(clt_ref_fp8_to_f32(f, (uint8_t)c)) != (uint32_t)decode[c])
                fail_msg("%s %02x gives %a, ml_dtypes %a", clt_fp8_table[f].name, c,
                         (double)clt_ref_fp8_to_f32(f, (uint8_t)c), (double)as_float((uint32_t)decode[c]));
        }
        clt_free(decode);
        int64_t *nan = golden_ints(json_object_get(table, "nan"), &n);
        assert_int_equal(clt_ref_f32_to_fp8(f, as_float(0x7fc00000)), nan[0]);
        assert_int_equal(clt_ref_f32_to_fp8(f, as_float(0xffffffff)), nan[1]);
        clt_free(nan);
        check_sixteen_bits(table, f);
        check_borders(table, f);
    }
    json_decref(all);
}

/* --- the text of the kernels --- */

/* All patterns of bf16, those around each border of f, and a stride over all of fp32. */
static uint32_t *make_inputs(clt_fp8 f, size_t *n) {
    enum { NEAR = 3, STRIDE = 1 << 16, RANDOM = 1 << 17 };
    const size_t random = tu_tiny() ? 512 : RANDOM, stride = tu_tiny() ? 512 : 65536;
    uint32_t *u = clt_malloc((stride + BORDERS * 2 * (2 * NEAR + 1) + random) * sizeof *u);
    size_t count = 0;
    for (size_t i = 0; i < stride; i++) u[count++] = (uint32_t)(i * (65536 / stride)) << 16;
    for (uint32_t c = 0; c < BORDERS - 1; c++) { /* the middle of two codes has an exact fp32 value */
        const float low = clt_ref_fp8_to_f32(f, (uint8_t)c), high = clt_ref_fp8_to_f32(f, (uint8_t)(c + 1));
        const uint32_t middle = as_uint((low + high) * 0.5f);
        for (uint32_t d = 0; d <= 2 * NEAR; d++) {
            u[count++] = middle - NEAR + d;
            u[count++] = (middle - NEAR + d) | 0x80000000u;
        }
    }
    for (size_t i = 0; i < random; i++) u[count++] = tu_random_word(5, i);
    *n = count;
    return u;
}

static void text_equals_the_oracle(void **state) {
    (void)state;
    for (clt_fp8 f = 0; f < CLT_FP8_COUNT; f++) {
        size_t n;
        uint32_t *u = make_inputs(f, &n);
        for (size_t i = 0; i < n; i++) {
            const uint32_t got = text[f].narrow(as_float(u[i])), want = clt_ref_f32_to_fp8(f, as_float(u[i]));
            if (got != want)
                fail_msg("%s of %08x gives %02x, the oracle %02x", clt_fp8_table[f].name, u[i], got, want);
        }
        for (uint32_t c = 0; c < 256; c++)
            assert_int_equal(as_uint(text[f].widen(c)), as_uint(clt_ref_fp8_to_f32(f, (uint8_t)c)));
        clt_free(u);
    }
}

static const char kernel_text[] =
    "#include \"../include/clt_fp8.clh\"\n"
    "#define NARROW CLT_PASTE(clt_f32_to_, FORMAT)\n"
    "#define WIDEN CLT_PASTE(CLT_PASTE(clt_, FORMAT), _to_f32)\n"
    "#define ARGS ulong n, __global const uint *x, ulong x_off, __global uint *y, ulong y_off\n"
    "__kernel void narrow(ARGS) {\n"
    "    size_t i = get_global_id(0);\n"
    "    y[y_off + i] = NARROW(as_float(x[x_off + i]));\n"
    "}\n"
    "__kernel void narrow16(ARGS) {\n"
    "    size_t i = get_global_id(0);\n"
    "    vstore16(CLT_PASTE(NARROW, 16)(as_float16(vload16(i, x + x_off))), i, y + y_off);\n"
    "}\n"
    "__kernel void widen(ARGS) {\n"
    "    size_t i = get_global_id(0);\n"
    "    y[y_off + i] = as_uint(WIDEN(x[x_off + i]));\n"
    "}\n"
    "__kernel void widen16(ARGS) {\n"
    "    size_t i = get_global_id(0);\n"
    "    vstore16(as_uint16(CLT_PASTE(WIDEN, 16)(vload16(i, x + x_off))), i, y + y_off);\n"
    "}\n";

/* Runs one kernel over n patterns, a multiple of 16, and compares words. */
static void run_form(int d, clt_fp8 f, const char *form, size_t lanes, const uint32_t *in,
                     const uint32_t *want, size_t n) {
    char option[64], what[64];
    snprintf(option, sizeof option, "-DFORMAT=%s", clt_fp8_table[f].name);
    snprintf(what, sizeof what, "%s %s", clt_fp8_table[f].name, form);
    clt_kernel *k;
    tu_assert_ok(clt_kernel_from_text(tu_device(d), "test/fp8.cl", kernel_text, form, option, &k), what);
    const size_t items = n / lanes;
    clt_ref x = tu_upload(d, (const float *)in, n), y = tu_blank(d, n);
    tu_assert_ok(clt_launch(k, 1, &items, NULL, (clt_arg[]){CLT_U64(n), CLT_REF(x), CLT_REF(y)}, 5), what);
    const uint32_t *got = (const uint32_t *)tu_download(y, n);
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("%s: %08x gives %08x, the oracle %08x", what, in[i], got[i], want[i]);
    tu_release();
}

static void devices_equal_the_oracle(void **state) {
    (void)state;
    for (clt_fp8 f = 0; f < CLT_FP8_COUNT; f++) {
        size_t n;
        uint32_t *u = make_inputs(f, &n), code[256], value[256];
        n -= n % 16;
        uint32_t *want = clt_malloc(n * sizeof *want);
        for (size_t i = 0; i < n; i++) want[i] = clt_ref_f32_to_fp8(f, as_float(u[i]));
        for (uint32_t c = 0; c < 256; c++) {
            code[c] = c;
            value[c] = as_uint(clt_ref_fp8_to_f32(f, (uint8_t)c));
        }
        for (int d = 0; d < tu_device_count(); d++) {
            run_form(d, f, "narrow", 1, u, want, n);
            run_form(d, f, "narrow16", 16, u, want, n);
            run_form(d, f, "widen", 1, code, value, 256);
            run_form(d, f, "widen16", 16, code, value, 256);
        }
        clt_free(want);
        clt_free(u);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_equals_ml_dtypes),
        cmocka_unit_test(text_equals_the_oracle),
        cmocka_unit_test(devices_equal_the_oracle),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
