/* The fast GELU of clkernels/include/clt_act_fast.clh beside its formula, for every number of bf16 and fp16.
 * The instructions of NVIDIA's that it stands on are replaced, so that every device can tell; the exponential
 * is made wrong by what theirs may be off, each way. */
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
    "                       __global float *dy, ulong dy_off, __global float *again, ulong again_off) {\n"
    "    const size_t i = get_global_id(0) * 8;\n"
    "    float in[8], out[8], slope[8], both[8];\n"
    "    for (int e = 0; e < 8; e++) in[e] = x[x_off + i + e];\n"
    "    clt_fast_gelus(in, 8, out);\n"
    "    clt_fast_gelu_grads(in, 8, slope, both);\n"
    "    for (int e = 0; e < 8; e++) {\n"
    "        y[y_off + i + e] = out[e];\n"
    "        dy[dy_off + i + e] = slope[e];\n"
    "        again[again_off + i + e] = both[e];\n"
    "    }\n"
    "}\n";

static void assert_near(const char *what, const float *x, const float *got, const float *want) {
    for (int i = 0; i < WORDS; i++) {
        const double off = fabs((double)got[i] - (double)want[i]);
        if (isnan(want[i]) ? !isnan(got[i]) : isinf(want[i]) ? got[i] != want[i] : !(off < 5e-7))
            fail_msg("%s of %.9g is %.9g, exactly %.9g", what, (double)x[i], (double)got[i], (double)want[i]);
    }
}

static void each_number(int d, clt_dtype type, const char *options) {
    const size_t items = WORDS / 8;
    uint16_t *word = clt_malloc(WORDS * sizeof *word);
    float *x = clt_malloc(WORDS * sizeof *x), *y = clt_malloc(WORDS * sizeof *y),
          *dy = clt_malloc(WORDS * sizeof *dy);
    clt_kernel *k;
    for (int i = 0; i < WORDS; i++) word[i] = (uint16_t)i;
    clt_ref_widen(type, word, WORDS, x);
    for (int i = 0; i < WORDS; i++) {
        const double v = (double)x[i], below = erfc(-v / sqrt(2)) / 2;
        y[i] = isinf(x[i]) ? (x[i] > 0 ? x[i] : 0) : (float)(v * below);
        dy[i] = isinf(x[i]) ? (float)(x[i] > 0) : (float)(below + v * exp(-v * v / 2) / sqrt(2 * acos(-1)));
    }
    tu_assert_ok(clt_kernel_from_text(tu_device(d), "test/act_fast.cl", kernel_text, "act_fast", options, &k),
                 options);
    clt_ref in = tu_upload(d, x, WORDS), out = tu_blank(d, WORDS), slope = tu_blank(d, WORDS),
            again = tu_blank(d, WORDS);
    const clt_arg args[] = {CLT_REF(in), CLT_REF(out), CLT_REF(slope), CLT_REF(again)};
    tu_assert_ok(clt_launch(k, 1, &items, NULL, args, CLT_COUNT_OF(args)), "launch");
    const float *got = tu_download(out, WORDS);
    assert_near("gelu", x, got, y);
    assert_near("its derivative", x, tu_download(slope, WORDS), dy);
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
        for (clt_dtype type = CLT_BF16; type <= CLT_F16; type++) {
            each_number(d, type, "-DOFF=2.4e-7f");
            each_number(d, type, "-DOFF=-2.4e-7f");
        }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(fast_gelu_is_close)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
