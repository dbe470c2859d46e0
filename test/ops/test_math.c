/* The exact math functions: on every device, scalar and with 16 lanes, the same words as the same text
 * compiled as C; and their error against libm in double. `test_math --all` runs all 2^32 inputs through the C
 * form and prints the table of docs/numerics.md (takes minutes; needs no device). */
#include "test/test_util.h"

#include <math.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

/* libm in double, under names that the kernels' header below does not redefine. */
static double ref_exp(double x) {
    return exp(x);
}
static double ref_expm1(double x) {
    return expm1(x);
}
static double ref_log(double x) {
    return log(x);
}
static double ref_log1p(double x) {
    return log1p(x);
}
static double ref_erf(double x) {
    return erf(x);
}
static double ref_tanh(double x) {
    return tanh(x);
}
static double ref_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

#include "runtime/ops/ref/clt_clc.h"
#include "clkernels/include/clt_math.clh"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    const char *name;
    float (*fn)(float);
    double (*ref)(double);
    float lowest, highest; /* outside them inputs are undefined, or the result is +0 by definition */
    double bound;          /* ulp; the table of docs/numerics.md rounded up */
} function;

static const function functions[] = {
    {"exp", clt_exp, ref_exp, -0x1.5d589ep+6f, INFINITY, 1.03},
    {"expm1", clt_expm1, ref_expm1, -INFINITY, 0.0f, 0.95},
    {"log", clt_log, ref_log, -INFINITY, INFINITY, 0.93},
    {"log1p", clt_log1p, ref_log1p, 0.0f, INFINITY, 1.35},
    {"erf", clt_erf, ref_erf, -INFINITY, INFINITY, 1.16},
    {"tanh", clt_tanh, ref_tanh, -INFINITY, INFINITY, 1.34},
    {"sigmoid", clt_sigmoid, ref_sigmoid, -0x1.62e42ep+6f, INFINITY, 2.49},
};

/* Distance in units of the last place of the exact result (of 2^-126 below that). */
static double ulp_error(float got, double want) {
    if (isnan(want)) return isnan(got) ? 0.0 : INFINITY;
    if (isinf(got) || isinf(want) || fabs(want) > FLT_MAX) return got == (float)want ? 0.0 : INFINITY;
    int e;
    frexp(fmax(fabs(want), 0x1p-126), &e);
    return fabs((double)got - want) / ldexp(1.0, e - 24);
}

static bool defined(const function *f, float x) {
    return !(x < f->lowest) && !(x > f->highest);
}

static int run_all(void) {
    printf("largest error over all 2^32 inputs\n");
    for (size_t k = 0; k < CLT_COUNT_OF(functions); k++) {
        const function *f = &functions[k];
        double worst = 0;
        float at = 0;
        for (uint64_t u = 0; u < 1ull << 32; u++) {
            float x = as_float((uint32_t)u);
            if (!defined(f, x)) continue;
            double e = ulp_error(f->fn(x), f->ref((double)x));
            if (e > worst) {
                worst = e;
                at = x;
            }
        }
        printf("| %s | %.3f | %a |\n", f->name, worst, (double)at);
        fflush(stdout);
    }
    return 0;
}

/* Every input of a stride over all bit patterns, and the places where a function changes its form. */
static float *make_inputs(size_t *n) {
    static const float special[] = {0.0f,           1.0f,
                                    INFINITY,       NAN,
                                    0x1p-149f,      0x1.fffffcp-127f,
                                    0x1p-126f,      FLT_MAX,
                                    0x1.5d589cp+6f, 0x1.5d589ep+6f,
                                    0x1.5d58a0p+6f, 0x1.62e42ep+6f,
                                    0x1.62e430p+6f, 0.85f,
                                    0x1.b33332p-1f, 0.6f,
                                    0x1.333332p-1f, 4.0f,
                                    10.0f,          20.0f,
                                    64.0f,          0x1.6a09e6p-1f,
                                    0x1.6a09e8p-1f, 0x1.6a09e6p+0f,
                                    0x1p24f};
    uint64_t stride = tu_tiny() ? 2097143 : 1021;
    size_t count = (size_t)((1ull << 32) / stride) + 1, extra = 2 * CLT_COUNT_OF(special);
    float *x = clt_malloc((count + extra) * sizeof *x);
    *n = count + extra;
    for (size_t i = 0; i < count; i++) x[i] = as_float((uint32_t)(i * stride));
    for (size_t i = 0; i < extra; i++) x[count + i] = i % 2 ? -special[i / 2] : special[i / 2];
    return x;
}

static const char kernel_text[] =
    "#include \"../include/clt_math.clh\"\n"
    "__kernel void scalar(ulong n, __global const float *x, ulong x_off, __global float *y, ulong y_off) {\n"
    "    size_t i = get_global_id(0);\n"
    "    y[y_off + i] = FUNCTION(x[x_off + i]);\n"
    "}\n"
    "__kernel void wide(ulong n, __global const float *x, ulong x_off, __global float *y, ulong y_off) {\n"
    "    size_t i = get_global_id(0) * 16, left = n - i;\n"
    "    clt_store16(CLT_PASTE(FUNCTION, 16)(clt_load16(x + x_off + i, left)), y + y_off + i, left);\n"
    "}\n";

static void run_form(int d, const function *f, const char *form, size_t items, clt_ref x, const float *want,
                     size_t n) {
    char option[64], what[128];
    snprintf(option, sizeof option, "-DFUNCTION=clt_%s", f->name);
    snprintf(what, sizeof what, "%s (%s)", f->name, form);
    clt_kernel *k;
    tu_assert_ok(clt_kernel_from_text(tu_device(d), "test/math.cl", kernel_text, form, option, &k), what);
    clt_ref y = tu_blank(d, n);
    tu_assert_ok(clt_launch(k, 1, &items, NULL, (clt_arg[]){CLT_U64(n), CLT_REF(x), CLT_REF(y)}, 5), what);
    tu_assert_words(what, tu_download(y, n), want, n);
}

static void devices_give_the_words_of_c(void **state) {
    (void)state;
    size_t n;
    float *x = make_inputs(&n), *want = clt_malloc(n * sizeof *want);
    for (size_t k = 0; k < CLT_COUNT_OF(functions); k++) {
        const function *f = &functions[k];
        /* undefined inputs are replaced */
        float *in = clt_memdup(x, n * sizeof *x);
        for (size_t i = 0; i < n; i++) {
            if (f->fn != clt_exp && f->fn != clt_sigmoid && !defined(f, in[i])) in[i] = 0.0f;
            want[i] = f->fn(in[i]);
        }
        for (int d = 0; d < tu_device_count(); d++) {
            clt_ref ref = tu_upload(d, in, n);
            run_form(d, f, "scalar", n, ref, want, n);
            run_form(d, f, "wide", (n + 15) / 16, ref, want, n);
            tu_release();
        }
        clt_free(in);
    }
    clt_free(x);
    clt_free(want);
}

static void errors_are_below_their_bounds(void **state) {
    (void)state;
    size_t n;
    float *x = make_inputs(&n);
    for (size_t k = 0; k < CLT_COUNT_OF(functions); k++) {
        const function *f = &functions[k];
        for (size_t i = 0; i < n; i++) {
            if (!defined(f, x[i])) continue;
            double e = ulp_error(f->fn(x[i]), f->ref((double)x[i]));
            if (e > f->bound)
                fail_msg("clt_%s(%a) is %g ulp off, the bound is %g", f->name, (double)x[i], e, f->bound);
        }
    }
    clt_free(x);
}

static void special_values(void **state) {
    (void)state;
    assert_true(clt_exp(-INFINITY) == 0.0f && !signbit(clt_exp(-1000.0f)));
    assert_true(clt_exp(-0x1.5d58a0p+6f) == 0.0f && clt_exp(-0x1.5d589ep+6f) >= 0x1.fffffcp-127f);
    assert_true(isinf(clt_exp(0x1.62e430p+6f)) && clt_exp(0x1.62e42ep+6f) < INFINITY);
    assert_true(clt_exp(0.0f) == 1.0f && clt_exp(-0.0f) == 1.0f && isnan(clt_exp(NAN)));
    assert_true(isnan(clt_log(-1.0f)) && clt_log(0.0f) == -INFINITY && clt_log(INFINITY) == INFINITY);
    assert_true(clt_log(1.0f) == 0.0f && isnan(clt_log(NAN)));
    assert_true(clt_tanh(INFINITY) == 1.0f && clt_tanh(-100.0f) == -1.0f && signbit(clt_tanh(-0.0f)));
    assert_true(clt_erf(INFINITY) == 1.0f && clt_erf(-4.0f) == -1.0f && signbit(clt_erf(-0.0f)));
    assert_true(isnan(clt_tanh(NAN)) && isnan(clt_erf(NAN)) && isnan(clt_sigmoid(NAN)));
    assert_true(clt_sigmoid(-100.0f) == 0.0f && clt_sigmoid(100.0f) == 1.0f && clt_sigmoid(0.0f) == 0.5f);
    assert_true(clt_expm1(-INFINITY) == -1.0f && clt_expm1(0.0f) == 0.0f);
}

/* --- the activations against their formulas in double --- */

static double act_in_double(clt_activation act, double x) {
    double softplus = x > 20.0 ? x : ref_log1p(ref_exp(x)), cube = x + 0.044715 * x * x * x;
    switch (act) {
    case CLT_ACT_NONE:
        return x;
    case CLT_ACT_GELU:
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    case CLT_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + ref_tanh(M_2_SQRTPI * M_SQRT1_2 * cube));
    case CLT_ACT_QUICK_GELU:
        return x * ref_sigmoid(1.702 * x);
    case CLT_ACT_RELU:
        return x > 0 ? x : 0;
    case CLT_ACT_SILU:
        return x * ref_sigmoid(x);
    case CLT_ACT_TANH:
        return ref_tanh(x);
    case CLT_ACT_SIGMOID:
        return ref_sigmoid(x);
    case CLT_ACT_RELU2:
        return x > 0 ? x * x : 0;
    case CLT_ACT_ELU:
        return x > 0 ? x : ref_expm1(x);
    case CLT_ACT_LEAKY_RELU:
        return x > 0 ? x : 0.01 * x;
    case CLT_ACT_SOFTPLUS:
        return softplus;
    case CLT_ACT_MISH:
        return x * ref_tanh(softplus);
    default:
        fail_msg("activation %d has no formula here", (int)act);
        return 0;
    }
}

static void activations_follow_their_formulas(void **state) {
    (void)state;
    for (clt_activation act = CLT_ACT_NONE; act < CLT_ACT_COUNT; act++)
        for (double t = -30.0; t < 30.0; t += 0.013) { /* never 0 or 20, where some functions have a kink */
            float x = (float)t, got = clt_ref_act(act, x), grad = clt_ref_act_grad(act, x);
            double want = act_in_double(act, (double)x), h = 1e-5;
            double slope = (act_in_double(act, (double)x + h) - act_in_double(act, (double)x - h)) / (2 * h);
            if (fabs((double)got - want) > 4e-7 * fmax(1.0, fabs(want)))
                fail_msg("activation %d at %g is %.9g, not %.9g", (int)act, t, (double)got, want);
            if (fabs((double)grad - slope) > 1e-6 * fmax(1.0, fabs(slope)))
                fail_msg("derivative of activation %d at %g is %.9g, not %.9g", (int)act, t, (double)grad,
                         slope);
        }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--all")) return run_all();
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_values),
        cmocka_unit_test(errors_are_below_their_bounds),
        cmocka_unit_test(activations_follow_their_formulas),
        cmocka_unit_test(devices_give_the_words_of_c),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
