/* The fast GELU of clkernels/include/clt_act_fast.clh compared with its formula, for every number of bf16 and
 * fp16. NVIDIA's instructions that it needs are replaced, so that every device can run it. The exponential
 * gets the error that NVIDIA's may have, in both directions. */
#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

enum { WORDS = 1 << 16 };

static const char kernel_text[] =
    "#define CLT_PTX_CLH\n"
    "#include \"../include/clt_math.clh\"\n"
    "static inline float clt_ptx_exp2(float x) {\n"
    "    return x < -126.0f ? 0.0f : clt_exp(x * 0.69314718f) * (1.0f + OFF);\n"
    "}\n"
    "static inline float clt_ptx_positive(float x) { return x < 0.0f ? 0.0f : x; }\n"
    "static inline float clt_ptx_at_most(float x, float y) { return x > y ? y : x; }\n"
    "#include \"../include/clt_act_fast.clh\"\n"
    "__kernel void act_fast(__global const float *x, ulong x_off, __global float *y, ulong y_off,\n"
    "                       __global float *dy, ulong dy_off, __global float *again, ulong again_off,\n"
    "                       __global float *beside, ulong beside_off) {\n"
    "    const size_t i = get_global_id(0) * 8;\n"
    "    float in[8], out[8], slope[8], both[8], other[8];\n"
    "    for (int e = 0; e < 8; e++) in[e] = x[x_off + i + e];\n"
    "    clt_fast_gelus(in, 8, out);\n"
    "    clt_fast_gelu_grads(in, 8, slope, 0);\n"
    "    clt_fast_gelu_grads(in, 8, other, both);\n"
    "    for (int e = 0; e < 8; e++) {\n"
    "        y[y_off + i + e] = out[e];\n"
    "        dy[dy_off + i + e] = slope[e];\n"
    "        again[again_off + i + e] = both[e];\n"
    "        beside[beside_off + i + e] = other[e];\n"
    "    }\n"
    "}\n";

/* The allowed error of a value: absolute and, where the value is `above`, as a part of the error of rounding
 * to the type. */
typedef struct {
    double off, above, part;
} act_bound;

/* Slightly more than measured. For small values only `off` counts, as the derivative passes through 0. */
static const struct {
    act_bound gelu, small_gelu, slope, slope_beside;
} bounds[] = {
    [CLT_BF16] = {{7.5e-6, 0x1p-10, 0.016},
                  {7.5e-6, 0x1p-14, 0.23},
                  {8.2e-5, 0x1p-8, 0.084},
                  {1.7e-5, 0x1p-4, 0.034}},
    [CLT_F16] = {{5e-7, 0x1p-10, 0.29}, {5e-7, 0x1p-12, 1.6}, {5e-7, 0x1p-8, 0.16}, {5e-7, 0x1p-8, 0.16}},
};

/* Half the distance between neighbours of a number of this type. */
static double half_step(clt_dtype type, double x) {
    return ldexp(1.0, ilogb(x) - (type == CLT_BF16 ? 8 : 11));
}

static void assert_near(const char *what, clt_dtype type, act_bound b, const float *x, const float *got,
                        const double *want) {
    for (int i = 0; i < WORDS; i++) {
        const double off = fabs((double)got[i] - want[i]);
        if (isnan(want[i]) ? !isnan(got[i]) : isinf(want[i]) ? (double)got[i] != want[i] : !(off < b.off))
            fail_msg("%s of %.9g is %.9g, the exact value is %.9g", what, (double)x[i], (double)got[i],
                     want[i]);
        if (isfinite(want[i]) && fabs(want[i]) >= b.above && !(off < b.part * half_step(type, want[i])))
            fail_msg("%s of %.9g is %.9g, the exact value is %.9g: an error of %.3f roundings", what,
                     (double)x[i], (double)got[i], want[i], off / half_step(type, want[i]));
    }
}

static void each_number(int d, clt_dtype type, const char *options) {
    const size_t items = WORDS / 8;
    uint16_t *word = clt_malloc(WORDS * sizeof *word);
    float *x = clt_malloc(WORDS * sizeof *x);
    double *y = clt_malloc(WORDS * sizeof *y), *dy = clt_malloc(WORDS * sizeof *dy);
    clt_kernel *k;
    for (int i = 0; i < WORDS; i++) word[i] = (uint16_t)i;
    clt_ref_widen(type, word, WORDS, x);
    for (int i = 0; i < WORDS; i++) {
        const double v = (double)x[i], below = erfc(-v / sqrt(2)) / 2;
        y[i] = isinf(x[i]) ? (x[i] > 0 ? v : 0) : v * below;
        dy[i] = isinf(x[i]) ? x[i] > 0 : below + v * exp(-v * v / 2) / sqrt(2 * acos(-1));
    }
    tu_assert_ok(clt_kernel_from_text(tu_device(d), "test/act_fast.cl", kernel_text, "act_fast", options, &k),
                 options);
    clt_ref in = tu_upload(d, x, WORDS), out = tu_blank(d, WORDS), slope = tu_blank(d, WORDS),
            again = tu_blank(d, WORDS), beside = tu_blank(d, WORDS);
    const clt_arg args[] = {CLT_REF(in), CLT_REF(out), CLT_REF(slope), CLT_REF(again), CLT_REF(beside)};
    tu_assert_ok(clt_launch(k, 1, &items, NULL, args, CLT_COUNT_OF(args)), "launch");
    const float *got = tu_download(out, WORDS);
    assert_near("gelu", type, bounds[type].gelu, x, got, y);
    assert_near("small gelu", type, bounds[type].small_gelu, x, got, y);
    assert_near("its derivative", type, bounds[type].slope, x, tu_download(slope, WORDS), dy);
    assert_near("its derivative beside it", type, bounds[type].slope_beside, x, tu_download(beside, WORDS),
                dy);
    tu_assert_words("gelu beside its derivative", tu_download(again, WORDS), got, WORDS);
    tu_release();
    clt_free(word);
    clt_free(x);
    clt_free(y);
    clt_free(dy);
}

static void fast_gelu_is_close(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (int sign = -1; sign <= 1; sign += 2) {
            each_number(d, CLT_BF16,
                        sign < 0 ? "-DACT_FAST_BF16=1 -DOFF=-2.4e-7f" : "-DACT_FAST_BF16=1 -DOFF=2.4e-7f");
            each_number(d, CLT_F16, sign < 0 ? "-DOFF=-2.4e-7f" : "-DOFF=2.4e-7f");
        }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_gelu_is_close)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
