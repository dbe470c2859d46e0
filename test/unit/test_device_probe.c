/* Probes: every row has its file, its check accepts the right answer alone, and stored facts belong to what
 * was asked. The right answers are computed here from what the kernel files say, so the checks of questions
 * that no device here is asked (PTX, wgmma, AMD's tiles) are tested too. */
#include "test/device_util.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_probe.h"

static char folder[64]; /* files of this run */

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_probe.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(folder) == CLT_OK ? 0 : -1;
}

/* --- facts --- */

static void facts_are_probed(void **state) {
    (void)state;
    clt_device_facts *list;
    int n;
    assert_int_equal(clt_device_list(true, &list, &n), CLT_OK);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        const clt_device_facts *f = &list[i];
        assert_true(f->probed && f->global_mem > 0 && f->max_alloc > 0 && f->compute_units > 0);
        assert_true(f->local_mem >= 16384);
        assert_int_equal(f->exact, f->exact_reason[0] == 0);
        if (f->exact) assert_true(f->exact_div && f->exact_sqrt && f->exact_fma && f->denormals);
        assert_int_equal(f->subgroups, f->subgroup_size > 0);
        assert_true(f->says_subgroups || !f->block_reads);
    }
    clt_free(list);
}

static void facts_are_read_as_they_were_written(void **state) {
    (void)state;
    static const double value[] = {0, 1, 64, 227 << 10, 52.375};
    char text[32], again[32];
    for (int i = 1; i < CLT_FACTS; i++)
        for (size_t v = 0; v < CLT_COUNT_OF(value); v++) {
            clt_device_facts f = {0}, g = {0};
            clt_fact_set(&f, i, value[v]);
            assert_true(clt_fact_parse(&g, i, clt_fact_text(&f, i, text)));
            assert_string_equal(clt_fact_text(&g, i, again), text);
            assert_memory_equal(&f, &g, sizeof f);
        }
    clt_device_facts f = {0};
    assert_false(clt_fact_parse(&f, CLT_FACT_wgmma, "1"));
    assert_false(clt_fact_parse(&f, CLT_FACT_local_mem, "true"));
    assert_false(clt_fact_parse(&f, CLT_FACT_local_mem, "-1"));
    assert_false(clt_fact_parse(&f, CLT_FACT_copy_gbps, "nan"));
    assert_false(clt_fact_parse(&f, CLT_FACT_copy_gbps, ""));
    assert_string_equal(clt_fact_name(CLT_FACT_wgmma), "wgmma");
}

/* --- the table --- */

static void every_row_has_its_file(void **state) {
    (void)state;
    int files = 0;
    for (int i = 0; i < clt_probe_rows_count; i++) {
        const clt_probe_row *row = &clt_probe_rows[i];
        assert_true(row->fact > CLT_FACT_NONE && row->fact < CLT_FACTS);
        for (int other = 0; other < i; other++) assert_int_not_equal(row->fact, clt_probe_rows[other].fact);
        assert_true(row->ask || (row->check && row->file && row->options[0]));
        if (!row->file) continue;
        char *want = clt_format("probe/%s.cl", clt_fact_name(row->fact)), *text = clt_source_probe(row->file);
        char *sets = clt_format(" * Sets       %s", clt_fact_name(row->fact));
        assert_string_equal(row->file, want);
        assert_non_null(text);
        if (!strstr(text, sets)) fail_msg("%s does not say that it sets %s", want, clt_fact_name(row->fact));
        assert_non_null(strstr(text, "probe(__global const "));
        clt_free(sets);
        clt_free(text);
        clt_free(want);
        files++;
    }
    for (int i = 0; i < clt_kernel_file_count(); i++) files -= !strncmp(clt_kernel_file_name(i), "probe/", 6);
    assert_int_equal(files, -1); /* address.cl belongs to tensor maps */
    assert_null(clt_source_probe("probe/no_such.cl"));
}

/* --- right and wrong answers --- */

/* The right answer of each row, by the words of its kernel file. */
static void answer_half(const uint32_t *in, uint32_t *out) {
    for (int i = 0; i < 64; i++) out[i] = (uint32_t)(0.5 * in[i] + 1);
}
static void answer_same(const uint32_t *in, uint32_t *out) {
    memcpy(out, in, 64 * sizeof *in);
}
static void answer_subgroups(const uint32_t *in, uint32_t *out) {
    (void)in;
    for (int i = 0; i < 64; i++) out[i] = 16;
}
static void answer_vector_bits(const uint32_t *in, uint32_t *out) {
    for (int i = 0; i < 64; i++) out[i] = in[i] + 256;
}
static void answer_block_reads(const uint32_t *in, uint32_t *out) {
    for (int s = 0; s < 4; s++) {
        uint16_t half_word[32]; /* of the block, as it lies in memory */
        memcpy(half_word, in + 16 * s, sizeof half_word);
        for (int l = 0; l < 16; l++)
            out[16 * s + l] = in[16 * s + l] + ((uint32_t)half_word[l] << 8) + (in[16 * s + 5] << 16);
    }
}
/* c = a b with a[m][k] = m + k and b the unit matrix of 8 columns. */
static void times_unit(int rows, float *c) {
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < 8; n++) {
            c[m * 8 + n] = 0;
            for (int k = 0; k < 16; k++) c[m * 8 + n] += (float)(m + k) * (k == n ? 1.0f : 0.0f);
        }
}
static void answer_mma(const uint32_t *in, uint32_t *out) {
    (void)in;
    times_unit(16, (float *)out);
}
static void answer_mma_f16(const uint32_t *in, uint32_t *out) {
    (void)in;
    times_unit(16, (float *)out);
    times_unit(16, (float *)out + 16 * 8);
}
static void answer_wgmma(const uint32_t *in, uint32_t *out) {
    (void)in;
    times_unit(64, (float *)out);
}
static void answer_tile16(const uint32_t *in, uint32_t *out) {
    (void)in;
    float *c = (float *)out;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            c[16 * i + j] = 1;
            for (int k = 0; k < 16; k++) c[16 * i + j] += (float)((i - k) * (j + 2 * k));
        }
    c[256] = 32;
}
static void answer_exact(const uint32_t *in, uint32_t *out) {
    const float *x = (const float *)in;
    float *y = (float *)out;
    for (int i = 0; i < 4096; i++, x += 3, y += 5) {
        y[0] = x[0] / x[1];
        y[1] = sqrtf(x[0]);
        y[2] = fmaf(x[0], x[1], x[2]);
        y[3] = x[0] * x[1];
        y[4] = x[0] + x[1];
    }
}

static const struct {
    clt_fact fact;
    void (*answer)(const uint32_t *in, uint32_t *out);
    double value;
    uint32_t in, out, step; /* words; every step-th word of out is falsified */
} answers[] = {
    {CLT_FACT_half_arithmetic, answer_half, 1, 64, 64, 1},
    {CLT_FACT_fp64, answer_same, 1, 64, 64, 1},
    {CLT_FACT_subgroup_size, answer_subgroups, 16, 64, 64, 1},
    {CLT_FACT_vector_bits, answer_vector_bits, 256, 64, 64, 1},
    {CLT_FACT_block_reads, answer_block_reads, 1, 64, 64, 1},
    {CLT_FACT_inline_ptx, answer_same, 1, 64, 64, 1},
    {CLT_FACT_mma_f16, answer_mma_f16, 1, 64, 2 * 16 * 8, 1},
    {CLT_FACT_mma_bf16, answer_mma, 1, 64, 16 * 8, 1},
    {CLT_FACT_wgmma, answer_wgmma, 1, 64, 64 * 8, 1},
    {CLT_FACT_tile16_wave, answer_tile16, 32, 64, 257, 1},
    {CLT_FACT_exact, answer_exact, 1, 3 * 4096, 5 * 4096, 97},
};

static const clt_probe_row *row_of(clt_fact fact) {
    for (int i = 0; i < clt_probe_rows_count; i++)
        if (clt_probe_rows[i].fact == fact) return &clt_probe_rows[i];
    fail_msg("no probe sets %s", clt_fact_name(fact));
    return NULL;
}

static bool has_answer(clt_fact fact) {
    for (size_t i = 0; i < CLT_COUNT_OF(answers); i++)
        if (answers[i].fact == fact) return true;
    return false;
}

static uint32_t size_or_64(uint32_t n) {
    return n ? n : 64;
}

static void checks_accept_the_right_answer_alone(void **state) {
    (void)state;
    for (size_t a = 0; a < CLT_COUNT_OF(answers); a++) {
        const clt_probe_row *row = row_of(answers[a].fact);
        const uint32_t n = answers[a].out;
        assert_int_equal(size_or_64(row->in), answers[a].in);
        assert_int_equal(size_or_64(row->out), n);
        uint32_t *in = clt_calloc(answers[a].in, 4), *out = clt_calloc(n, 4), *none = clt_malloc(4 * n);
        for (uint32_t i = 0; i < answers[a].in; i++) in[i] = i;
        if (row->fill) row->fill(in);
        answers[a].answer(in, out);
        clt_device_facts f = {0};
        assert_true(row->check(&(clt_probe_answer){in, out}, &f) == answers[a].value);
        for (uint32_t i = 0; i < n; i += answers[a].step) {
            float was;
            memcpy(&was, &out[i], 4);
            if (row->fill && was != was) continue; /* any NaN is right */
            out[i] ^= 1;
            if (row->check(&(clt_probe_answer){in, out}, &f) == answers[a].value)
                fail_msg("the check of %s accepts a wrong word %u", row->file, i);
            out[i] ^= 1;
        }
        memset(none, 0xff, 4 * n); /* of a launch that did nothing */
        assert_true(row->check(&(clt_probe_answer){in, none}, &f) != answers[a].value);
        clt_free(in);
        clt_free(out);
        clt_free(none);
    }
    for (int i = 0; i < clt_probe_rows_count; i++) {
        const clt_probe_row *row = &clt_probe_rows[i];
        if (row->check && !has_answer(row->fact))
            fail_msg("`answers` lacks the right answer of %s", clt_fact_name(row->fact));
    }
}

/* The facts of arithmetic are found apart, and the reason names the first operation that is wrong. */
static void wrong_arithmetic_is_named(void **state) {
    (void)state;
    static const char *const name[] = {"division", "sqrt", "fma", "multiplication", "addition"};
    const clt_probe_row *row = row_of(CLT_FACT_exact);
    uint32_t *in = clt_calloc(3 * 4096, 4), *out = clt_calloc(5 * 4096, 4);
    row->fill(in);
    answer_exact(in, out);
    for (int op = 0; op < 5; op++)
        for (int flush = 0; flush < 2; flush++) {
            int at = -1;
            for (int i = 0; i < 4096 && at < 0; i++) {
                float x, y, r;
                memcpy(&x, &in[3 * i], 4), memcpy(&y, &in[3 * i + 1], 4), memcpy(&r, &out[5 * i + op], 4);
                const bool ordinary = isnormal(x) && isnormal(y) && isnormal(r);
                if (flush ? fpclassify(r) == FP_SUBNORMAL : ordinary && op != 2) at = 5 * i + op;
                if (!flush && op == 2 && ordinary && (in[3 * i + 2] & 0x7f800000u)) at = 5 * i + op;
            }
            if (at < 0) continue; /* a square root is never denormal */
            clt_device_facts f = {0};
            const uint32_t was = out[at];
            out[at] = flush ? was & 0x80000000u : was ^ 1;
            assert_true(row->check(&(clt_probe_answer){in, out}, &f) == 0);
            out[at] = was;
            assert_int_equal(f.exact_div, op != 0);
            assert_int_equal(f.exact_sqrt, op != 1);
            assert_int_equal(f.exact_fma, op != 2);
            assert_int_equal(f.denormals, !flush);
            char *want = clt_format("%s is not correctly rounded (1 of 4096 results differ)%s", name[op],
                                    flush ? ", denormals are flushed" : "");
            assert_string_equal(f.exact_reason, want);
            clt_free(want);
        }
    clt_free(in);
    clt_free(out);
}

/* --- how a row is asked --- */

static double first_word(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    return ((const uint32_t *)a->out)[0];
}

static bool never(const clt_device *dev) {
    (void)dev;
    return false;
}

/* ANSWER: what it writes; without it the build fails. GROUP: a size other than 64 makes the launch fail. */
static const char *const fake = "#ifndef GROUP\n#define GROUP 64\n#endif\n"
                                "__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))\n"
                                "void probe(__global const uint *in, __global uint *out) {\n"
                                "    out[get_global_id(0)] = ANSWER + 0 * in[0];\n}\n";

static void option_sets_decide_as_the_row_says(void **state) {
    (void)state;
    static const struct {
        clt_probe_sets sets;
        const char *options[CLT_PROBE_SETS];
        double value;
        bool built;
    } ask[] = {
        {CLT_ASK_FIRST_BUILT, {"-DANSWER=5", "-DANSWER=6"}, 5, true},
        {CLT_ASK_FIRST_BUILT, {"-DX", "-DANSWER=6"}, 6, false},
        {CLT_ASK_FIRST_BUILT, {"-DANSWER=5 -DGROUP=7", "-DANSWER=6"}, 0, true},
        {CLT_ASK_FIRST_RUN, {"-DANSWER=5 -DGROUP=7", "-DX", "-DANSWER=6", "-DANSWER=7"}, 6, true},
        {CLT_ASK_FIRST_RUN, {"-DANSWER=0", "-DANSWER=6"}, 0, true},
        {CLT_ASK_ALL, {"-DANSWER=5", "-DANSWER=6"}, 6, true},
        {CLT_ASK_ALL, {"-DANSWER=5", "-DX"}, 0, true},
        {CLT_ASK_ALL, {"-DX", "-DANSWER=6"}, 0, false},
    };
    clt_device *dev = du_open(clt_device_params_default());
    du_put_text(folder, "sets/probe/fake.cl", fake);
    char *path = clt_path_join(folder, "sets");
    setenv("CLTRAIN_KERNEL_PATH", path, 1);
    const uint64_t before = dev->counters.shortages;
    for (size_t i = 0; i < CLT_COUNT_OF(ask); i++) {
        clt_probe_row row = {.file = "probe/fake.cl",
                             .sets = ask[i].sets,
                             .check = first_word,
                             .built = CLT_FACT_correct_rounding_option};
        memcpy(row.options, ask[i].options, sizeof row.options);
        if (clt_probe_ask(dev, &row) != ask[i].value) fail_msg("case %zu is not %g", i, ask[i].value);
        assert_int_equal(dev->facts.correct_rounding_option, ask[i].built);
        row.applies = never;
        assert_true(clt_probe_ask(dev, &row) == 0);
    }
    assert_int_equal(dev->counters.shortages, before); /* none of them is a shortage */
    unsetenv("CLTRAIN_KERNEL_PATH");
    clt_free(path);
    clt_device_close(dev);
}

/* --- stored facts --- */

/* Replaces the driver's function: counts the programs that are built. */
static int builds;

cl_int clBuildProgram(cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
                      void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
    static cl_int (*next)(cl_program, cl_uint, const cl_device_id *, const char *,
                          void(CL_CALLBACK *)(cl_program, void *), void *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clBuildProgram");
    builds++;
    return next(program, n, devices, options, notify, data);
}

/* Opens the device with facts from dir; returns how many programs that built. */
static int open_in(const char *dir, clt_device_facts *f, char id[33]) {
    clt_device_params p = clt_device_params_default();
    p.cache_dir = dir;
    builds = 0;
    clt_device *dev = du_open(p);
    const int built = builds;
    *f = *clt_device_get_facts(dev);
    snprintf(id, 33, "%s", clt_device_id(dev));
    clt_device_close(dev);
    return built;
}

static void facts_belong_to_what_was_asked(void **state) {
    (void)state;
    char *dir = clt_path_join(folder, "facts"), *path = clt_path_join(folder, "changed"), id[33];
    clt_device_facts first, changed, f;
    assert_true(open_in(dir, &first, id) > 0);
    assert_int_equal(open_in(dir, &f, id), 0);
    assert_int_equal(f.half_arithmetic, first.half_arithmetic);
    assert_int_equal(f.fp64, first.fp64);
    /* A folder without probes changes nothing; one with another text of a probe is asked, and then asked no
     * more. */
    assert_int_equal(clt_io_mkdirs(path), CLT_OK);
    setenv("CLTRAIN_KERNEL_PATH", path, 1);
    assert_int_equal(open_in(dir, &f, id), 0);
    du_put_text(path, "probe/fp64.cl",
                first.fp64 ? "__kernel void probe(__global const uint *in, __global uint *out) "
                             "{ out[get_global_id(0)] = 0; }\n"
                           : "__kernel void probe(__global const uint *in, __global uint *out) "
                             "{ out[get_global_id(0)] = in[get_global_id(0)]; }\n");
    assert_true(open_in(dir, &changed, id) > 0);
    assert_int_equal(changed.fp64, !first.fp64);
    assert_int_equal(changed.local_mem, first.local_mem);
    assert_int_equal(open_in(dir, &changed, id), 0);
    unsetenv("CLTRAIN_KERNEL_PATH");
    assert_true(open_in(dir, &f, id) > 0);
    assert_int_equal(f.fp64, first.fp64);
    clt_free(path);
    clt_free(dir);
}

static void entries_of_another_version_are_asked_again(void **state) {
    (void)state;
    char *dir = clt_path_join(folder, "entries"), *name, *text, id[33];
    clt_device_facts first, f;
    size_t bytes;
    assert_true(open_in(dir, &first, id) > 0);
    name = clt_format("%s.facts", id);
    assert_true(clt_cache_get(dir, name, &text, &bytes));
    char *fp64 = strstr(text, "\nfp64 ");
    assert_non_null(fp64);
    /* a fact with another name, a value of another kind, a part of the entry, the entry of a program that had
     * none */
    static const char *const bad[] = {"\nfp65 ", "\nfp64 maybe", "\n", ""};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_str entry = {0};
        clt_str_addn(&entry, text, i < 3 ? (size_t)(fp64 - text) : 0);
        clt_str_add(&entry, bad[i]);
        if (i < 2) clt_str_add(&entry, strchr(fp64 + 1, i == 0 ? ' ' : '\n') + (i == 0));
        clt_cache_put(dir, name, entry.s, entry.len);
        clt_str_free(&entry);
        assert_true(open_in(dir, &f, id) > 0);
        assert_int_equal(f.fp64, first.fp64);
        assert_int_equal(f.exact, first.exact);
        assert_int_equal(open_in(dir, &f, id), 0);
    }
    clt_free(text);
    clt_free(name);
    clt_free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_are_probed),
        cmocka_unit_test(facts_are_read_as_they_were_written),
        cmocka_unit_test(every_row_has_its_file),
        cmocka_unit_test(checks_accept_the_right_answer_alone),
        cmocka_unit_test(wrong_arithmetic_is_named),
        cmocka_unit_test(option_sets_decide_as_the_row_says),
        cmocka_unit_test(facts_belong_to_what_was_asked),
        cmocka_unit_test(entries_of_another_version_are_asked_again),
    };
    return cmocka_run_group_tests_name("device probes", tests, set_up, tear_down);
}
