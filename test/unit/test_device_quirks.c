/* The table of quirks: rows match the devices that they name and no others. */
#include "test/device_util.h"

#include <string.h>

#include "runtime/device/clt_quirks.h"

static clt_device_facts device(const char *platform, const char *vendor, const char *name,
                               clt_device_type type, const char *driver) {
    clt_device_facts f = {.type = type};
    snprintf(f.platform, sizeof f.platform, "%s", platform);
    snprintf(f.vendor, sizeof f.vendor, "%s", vendor);
    snprintf(f.name, sizeof f.name, "%s", name);
    snprintf(f.driver, sizeof f.driver, "%s", driver);
    return f;
}

static void versions_are_compared_as_numbers(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        int sign;
    } pair[] = {
        {"3.1+debian", "3.1", 0},
        {"3.10", "3.9", 1},
        {"3.1", "3.1.1", -1},
        {"570.86.15", "570.124", -1},
        {"580.159.04", "580.159", 1},
        {"2026.22.10.0.01_160000", "2026.22.10", 1},
        {"2.1.0", "2.1", 0},
        {"PoCL 6.0-pre", "6", 0},
        {"", "1", -1},
        {"no number", "", 0},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(pair); i++) {
        const int got = clt_driver_compare(pair[i].a, pair[i].b),
                  back = clt_driver_compare(pair[i].b, pair[i].a);
        if (got != pair[i].sign || back != -got)
            fail_msg("'%s' and '%s' compare as %d and %d, not %d", pair[i].a, pair[i].b, got, back,
                     pair[i].sign);
    }
}

/* The row of the example in clt_quirks.c and docs/how-to-add-a-device.md. */
static const clt_quirk_row example = {
    .platform = "Example OpenCL",
    .vendor = "Example Inc",
    .device = "X100",
    .types = CLT_TYPE_GPU,
    .driver_from = "2.1",
    .driver_before = "2.4.1",
    .quirk = CLT_QUIRK_KEEPS_PROGRAMS,
    .why = "2.1 to 2.4: a second build of a program returned in 1 ms, also in a new process"};

static void every_member_of_a_row_decides(void **state) {
    (void)state;
    const clt_device_facts f =
        device("example opencl 3.0", "The Example Inc.", "X1000", CLT_DEVICE_GPU, "2.4");
    assert_true(clt_quirk_matches(&example, &f));
    clt_device_facts other[] = {f, f, f, f, f, f};
    snprintf(other[0].platform, sizeof other[0].platform, "Example");
    snprintf(other[1].vendor, sizeof other[1].vendor, "Another");
    snprintf(other[2].name, sizeof other[2].name, "X200");
    other[3].type = CLT_DEVICE_CPU;
    snprintf(other[4].driver, sizeof other[4].driver, "2.0.9");
    snprintf(other[5].driver, sizeof other[5].driver, "2.4.1");
    for (size_t i = 0; i < CLT_COUNT_OF(other); i++) assert_false(clt_quirk_matches(&example, &other[i]));
    const clt_quirk_row any = {.quirk = CLT_QUIRK_KEEPS_PROGRAMS, .why = "all devices"};
    for (size_t i = 0; i < CLT_COUNT_OF(other); i++) assert_true(clt_quirk_matches(&any, &other[i]));
    const clt_quirk_row two = {.types = CLT_TYPE_CPU | CLT_TYPE_OTHER};
    assert_false(clt_quirk_matches(&two, &f));
    assert_true(clt_quirk_matches(&two, &other[3]));
}

static void assert_quirks(const clt_device_facts *f, const char *want) {
    clt_str got = {0};
    clt_str_add(&got, "");
    for (int q = 0; q < CLT_QUIRKS; q++)
        if (clt_quirk_of(f, q)) clt_str_addf(&got, "%s%s", got.len ? " " : "", clt_quirk_name(q));
    if (strcmp(got.s, want) != 0)
        fail_msg("%s / %s has the quirks '%s', not '%s'", f->platform, f->name, got.s, want);
    clt_str_free(&got);
}

/* Names as the drivers report them. */
static void known_drivers_have_their_quirks(void **state) {
    (void)state;
    const clt_device_facts f[] = {
        device("Portable Computing Language", "AuthenticAMD", "pthread-EPYC", CLT_DEVICE_CPU, "3.1+debian"),
        device("Intel(R) OpenCL", "Intel(R) Corporation", "AMD EPYC", CLT_DEVICE_CPU,
               "2026.22.10.0.01_160000"),
        device("Intel(R) OpenCL Graphics", "Intel(R) Corporation", "Intel(R) UHD Graphics", CLT_DEVICE_GPU,
               "23.22"),
        device("NVIDIA CUDA", "NVIDIA Corporation", "NVIDIA H200", CLT_DEVICE_GPU, "580.159.04"),
        device("AMD Accelerated Parallel Processing", "Advanced Micro Devices, Inc.", "gfx942",
               CLT_DEVICE_GPU, "3635.0 (HSA1.1,LC)"),
        device("Oclgrind", "University of Bristol", "Oclgrind Simulator", CLT_DEVICE_CPU, "Oclgrind 21.10"),
        device("Portable Computing Language", "AuthenticAMD", "cpu-znver4", CLT_DEVICE_CPU, "5.0+debian"),
        device("Portable Computing Language", "AuthenticAMD", "cpu-znver4", CLT_DEVICE_CPU, "6.0+debian"),
        device("Portable Computing Language", "AuthenticAMD", "cpu-znver4", CLT_DEVICE_CPU, "7.0"),
        /* PoCL on NVIDIA's GPU: its compiler is not NVIDIA's front end, but its vendor is. */
        device("Portable Computing Language", "NVIDIA Corporation", "CUDA-H200", CLT_DEVICE_GPU, "6.0")};
    static const char *const want[] = {
        "keeps_programs compiles_at_launch slow_declarations",
        "uses_waiting_thread",
        "",
        "takes_inline_asm",
        "",
        "keeps_programs",
        "keeps_programs compiles_at_launch slow_declarations dies_of_inline_asm",
        "keeps_programs compiles_at_launch slow_declarations dies_of_inline_asm",
        "keeps_programs compiles_at_launch slow_declarations",
        "keeps_programs compiles_at_launch slow_declarations takes_inline_asm"};
    for (size_t i = 0; i < CLT_COUNT_OF(f); i++) assert_quirks(&f[i], want[i]);
}

static void rows_are_whole(void **state) {
    (void)state;
    for (int i = 0; i < clt_quirk_rows_count; i++) {
        const clt_quirk_row *row = &clt_quirk_rows[i];
        assert_true(row->platform || row->vendor || row->device);
        assert_true(row->quirk >= 0 && row->quirk < CLT_QUIRKS);
        assert_true(row->why && strlen(row->why) > 20);
        if (row->driver_from && row->driver_before)
            assert_true(clt_driver_compare(row->driver_from, row->driver_before) < 0);
    }
    for (int q = 0; q < CLT_QUIRKS; q++) {
        assert_non_null(clt_quirk_name(q));
        assert_true(*clt_quirk_name(q) && *clt_quirk_effect(q));
        assert_null(strpbrk(clt_quirk_name(q), " -\""));
        for (int other = 0; other < q; other++)
            assert_string_not_equal(clt_quirk_name(q), clt_quirk_name(other));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_are_compared_as_numbers),
        cmocka_unit_test(every_member_of_a_row_decides),
        cmocka_unit_test(known_drivers_have_their_quirks),
        cmocka_unit_test(rows_are_whole),
    };
    return cmocka_run_group_tests_name("device quirks", tests, NULL, NULL);
}
