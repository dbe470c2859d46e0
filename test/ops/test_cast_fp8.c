/* Casts to 8-bit floating point that apply an activation, or the factor of its derivative, to what they read:
 * every variant on every device against the oracle, word for word, and against the operations that they
 * replace; rows of numerics fast against the latter; what is refused. Plain casts: test_gemm_fp8.c. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/clt_op_fp8.h"
#include "runtime/ops/ref/clt_ref.h"

enum { PAD = 32, FIRST = 64 };
typedef enum { ABSENT, BESIDE, IN_X, IN_PRE } place; /* of y */

typedef struct {
    int64_t rows, cols;
    clt_dtype type;
    clt_fp8 format;
    clt_activation act, grad_act;
    place y;
    int outputs; /* 1 along, 2 across */
    bool with_nan;
} cast_case;

/* What one side makes: codes with gaps, y with those of x, amax. */
typedef struct {
    size_t n, along, across;
    float *y, amax;
    uint8_t *codes[2];
} results;

/* n elements on the device: fast rows take only places at multiples of 8 elements. */
static clt_ref upload(int d, clt_dtype type, float *data, size_t n, bool in_eights) {
    clt_ref_round(type, data, n);
    if (!in_eights) return tu_upload_as(d, type, data, n);
    const uint64_t in_word = 4 / clt_dtype_bytes(type);
    uint32_t *words = clt_calloc(n, sizeof *words);
    clt_ref_narrow(type, data, n, words);
    const clt_ref r = tu_upload_at(d, words, CLT_CEIL_DIV(n, in_word), FIRST);
    clt_free(words);
    return (clt_ref){r.buf, r.off * in_word};
}

static clt_codes8 blank_codes(int d, int64_t rows, int64_t k, clt_fp8 format) {
    const size_t n = (size_t)(rows * (k + PAD));
    void *blank = clt_malloc(n);
    memset(blank, 0x55, n);
    const clt_ref r = tu_upload_at(d, blank, n / 4, FIRST);
    clt_free(blank);
    return (clt_codes8){.q = {r.buf, r.off * 4}, .ld = k + PAD, .format = format};
}

static int64_t ld_of(const cast_case *t, bool in_eights) {
    return t->cols + (in_eights ? 8 : 3);
}

static results make_results(const cast_case *t, int64_t ld) {
    results r = {.n = (size_t)(t->rows * ld), .amax = 0.01f};
    r.along = (size_t)(t->rows * (clt_codes8_k(t->cols) + PAD));
    r.across = (size_t)(t->cols * (clt_codes8_k(t->rows) + PAD));
    r.y = clt_calloc(r.n, sizeof *r.y);
    r.codes[0] = clt_malloc(r.along), r.codes[1] = clt_malloc(r.across);
    memset(r.codes[0], 0x55, r.along), memset(r.codes[1], 0x55, r.across);
    return r;
}
static void free_results(results *r) {
    clt_free(r->y), clt_free(r->codes[0]), clt_free(r->codes[1]);
}

/* The inputs: x, the activation's input, and what lies in y before. */
typedef struct {
    int64_t ld;
    float *x, *g, *y;
} inputs;

static inputs make_inputs(const cast_case *t, bool in_eights) {
    inputs in = {.ld = ld_of(t, in_eights)};
    const size_t n = (size_t)(t->rows * in.ld);
    in.x = tu_random(n, 1, 9.0f), in.g = tu_random(n, 2, 6.0f), in.y = tu_random(n, 3, 1.0f);
    if (t->with_nan) in.x[n / 3] = NAN, in.x[n / 2] = -INFINITY, in.g[n / 4] = -NAN;
    clt_ref_round(t->type, in.x, n), clt_ref_round(t->type, in.g, n), clt_ref_round(t->type, in.y, n);
    return in;
}
static void free_inputs(inputs *in) {
    clt_free(in->x), clt_free(in->g), clt_free(in->y);
}

static clt_cast_fp8_params call_of(int d, const cast_case *t, const inputs *in, bool in_eights) {
    const size_t n = (size_t)(t->rows * in->ld);
    const float scale = 3.3f, amax = 0.01f;
    clt_cast_fp8_params p = {.rows = t->rows, .cols = t->cols, .act = t->act, .grad_act = t->grad_act};
    p.x = clt_tensor_of(upload(d, t->type, in->x, n, in_eights), in->ld, t->type);
    p.grad_pre = clt_tensor_of(upload(d, t->type, in->g, n, in_eights), in->ld, t->type);
    p.scale = tu_upload(d, &scale, 1), p.amax = tu_upload(d, &amax, 1);
    if (t->outputs & 1) p.along = blank_codes(d, t->rows, clt_codes8_k(t->cols), t->format);
    if (t->outputs & 2) p.across = blank_codes(d, t->cols, clt_codes8_k(t->rows), t->format);
    if (t->y == BESIDE) p.y = clt_tensor_of(upload(d, t->type, in->y, n, in_eights), in->ld, t->type);
    if (t->y == IN_X) p.y = p.x;
    if (t->y == IN_PRE) p.y = p.grad_pre;
    return p;
}

static void read_codes(const clt_codes8 *m, uint8_t *out, size_t n) {
    if (m->q.buf) memcpy(out, tu_download((clt_ref){m->q.buf, m->q.off / 4}, n / 4), n);
}

static results read_results(const cast_case *t, const clt_cast_fp8_params *p, int64_t ld) {
    results r = make_results(t, ld);
    if (clt_tensor_present(p->y)) tu_assert_ok(clt_ref_read_as(p->y.ref, t->type, r.y, r.n), "y");
    read_codes(&p->along, r.codes[0], r.along);
    read_codes(&p->across, r.codes[1], r.across);
    r.amax = *tu_download(p->amax, 1);
    return r;
}

static results from_oracle(const cast_case *t, const inputs *in) {
    results r = make_results(t, in->ld);
    const float *before = t->y == IN_X ? in->x : t->y == IN_PRE ? in->g : in->y;
    if (t->y != ABSENT) memcpy(r.y, before, r.n * sizeof *r.y);
    clt_ref_cast_fp8_params p = {.rows = t->rows, .cols = t->cols, .x = in->x, .ldx = in->ld};
    p.scale = 3.3f, p.amax = &r.amax, p.format = t->format, p.type = t->type;
    p.act = t->act, p.grad_act = t->grad_act, p.grad_pre = in->g, p.ld_grad = in->ld;
    if (t->y != ABSENT) p.y = r.y, p.ldy = in->ld;
    if (t->outputs & 1) p.along = (clt_ref_codes8){r.codes[0], clt_codes8_k(t->cols) + PAD, t->format, 1.0f};
    if (t->outputs & 2) p.across = (clt_ref_codes8){r.codes[1], clt_codes8_k(t->rows) + PAD, t->format, 1.0f};
    clt_ref_cast_fp8(&p);
    return r;
}

/* Two launches: the activation, then the cast of its result. */
static results from_two_calls(int d, clt_ops *ops, const cast_case *t, const inputs *in, bool in_eights) {
    clt_cast_fp8_params p = call_of(d, t, in, in_eights);
    const clt_tensor y = clt_tensor_present(p.y)
                             ? p.y
                             : clt_tensor_of(upload(d, t->type, in->y, (size_t)(t->rows * in->ld), in_eights),
                                             in->ld, t->type);
    const clt_activation_params forward = {t->act, t->rows, t->cols, p.x, y};
    const clt_activation_grad_params backward = {t->grad_act, t->rows, t->cols, p.grad_pre, p.x, y};
    tu_assert_ok(t->grad_act ? clt_op_activation_backward(ops, &backward)
                             : clt_op_activation_forward(ops, &forward),
                 "activation");
    clt_cast_fp8_params cast = p;
    cast.x = y, cast.y = clt_tensor_none(), cast.act = cast.grad_act = CLT_ACT_NONE;
    tu_assert_ok(clt_op_cast_fp8(ops, &cast), "cast");
    return read_results(t, &p, in->ld);
}

/* Words; the sign of a NaN's code is free. */
static void compare(const char *what, const cast_case *t, const results *got, const results *want) {
    const size_t n[2] = {got->along, got->across};
    if (t->y != ABSENT) tu_assert_words(what, got->y, want->y, got->n);
    if (!(isnan(got->amax) && isnan(want->amax))) tu_assert_words(what, &got->amax, &want->amax, 1);
    for (int o = 0; o < 2; o++)
        for (size_t i = 0; i < n[o]; i++) {
            const uint8_t a = got->codes[o][i], b = want->codes[o][i];
            if (a != b && !(t->with_nan && isnan(clt_ref_fp8_to_f32(t->format, a)) &&
                            isnan(clt_ref_fp8_to_f32(t->format, b))))
                fail_msg("%s: byte %zu of output %d is %02x, expected %02x", what, i, o, a, b);
        }
}

static void name_of(const cast_case *t, const char *id, char out[128]) {
    snprintf(out, 128, "%s %ldx%ld %s to %s, act %d, grad %d, outputs %d, y %d", id, (long)t->rows,
             (long)t->cols, clt_dtype_name(t->type), clt_fp8_table[t->format].name, (int)t->act,
             (int)t->grad_act, t->outputs, (int)t->y);
}

static void run_case(int d, const char *id, const cast_case *t) {
    char what[128];
    name_of(t, id, what);
    inputs in = make_inputs(t, tu_wide());
    clt_cast_fp8_params p = call_of(d, t, &in, tu_wide());
    tu_assert_ok(clt_op_cast_fp8(tu_ops(d), &p), what);
    results got = read_results(t, &p, in.ld), want = from_oracle(t, &in),
            two = from_two_calls(d, tu_ops(d), t, &in, tu_wide());
    compare(what, t, &got, &want);
    strcat(what, ", two calls");
    compare(what, t, &got, &two);
    tu_release();
    free_results(&got), free_results(&want), free_results(&two);
    free_inputs(&in);
}

static long formats_of(int d, const char *id) {
    int n;
    const clt_variant *row = clt_ops_variants(tu_ops(d), "cast_fp8", &n);
    while (n > 0 && strcmp(row->id, id)) row++, n--;
    assert_true(n > 0);
    return clt_variant_param(row, "FORMATS", -1);
}

/* GELU in every type and at every kind of border; then others, some of which are not 0 at 0. */
static void run_variant(int d, const char *id) {
    static const int64_t shape[][2] = {{129, 136}, {16, 24}, {127, 257}, {1, 8}, {130, 5}, {260, 128}};
    static const clt_activation others[] = {CLT_ACT_SIGMOID, CLT_ACT_LEAKY_RELU, CLT_ACT_SOFTPLUS};
    for (int i = 0; i < (tu_brief() ? 2 : 6) * 2; i++) {
        cast_case t = {.rows = shape[i / 2][0], .cols = shape[i / 2][1], .outputs = (i + 2) % 3 + 1};
        t.type = (clt_dtype)((i / 2 + i) % CLT_DTYPE_COUNT), t.with_nan = i % 4 == 3;
        if (tu_wide()) t.cols = CLT_ROUND_UP(t.cols, 8);
        t.format = (clt_fp8)(i % CLT_FP8_COUNT);
        if (!(formats_of(d, id) >> t.format & 1)) t.format = (clt_fp8)(i % 2);
        t.act = i % 2 ? CLT_ACT_NONE : CLT_ACT_GELU, t.grad_act = i % 2 ? CLT_ACT_GELU : CLT_ACT_NONE;
        t.y = (place)(i % 2 ? (i / 2 + 1) % 4 : i / 2 % 3);
        run_case(d, id, &t);
    }
    for (size_t a = 0; a < (tu_brief() ? 1 : CLT_COUNT_OF(others)); a++) {
        cast_case t = {.rows = 20, .cols = 24, .outputs = 3, .act = others[a], .y = BESIDE};
        t.type = (clt_dtype)(a % CLT_DTYPE_COUNT);
        run_case(d, id, &t);
        t.act = CLT_ACT_NONE, t.grad_act = others[a];
        run_case(d, id, &t);
    }
    run_case(d, id, &(cast_case){.rows = 130, .cols = 136, .type = CLT_BF16, .y = BESIDE, .outputs = 3});
    run_case(d, id, &(cast_case){.rows = 20, .cols = 136, .type = CLT_F16, .y = IN_X, .outputs = 1});
}

static void casts_match(void **state) {
    (void)state;
    tu_each_variant("cast_fp8", run_variant);
}

/* --- numerics fast --- */

static void run_fast(int d, clt_ops *ops, const char *id, const cast_case *t) {
    char what[128];
    name_of(t, id, what);
    inputs in = make_inputs(t, true);
    clt_cast_fp8_params p = call_of(d, t, &in, true);
    tu_assert_ok(clt_variant_force(ops, "cast_fp8", id), what);
    tu_assert_ok(clt_op_cast_fp8(ops, &p), what);
    tu_assert_ok(clt_variant_force(ops, "cast_fp8", NULL), what);
    results got = read_results(t, &p, in.ld), two = from_two_calls(d, ops, t, &in, true);
    compare(what, t, &got, &two);
    tu_release();
    free_results(&got), free_results(&two);
    free_inputs(&in);
}

static void fast_rows_equal_two_calls(void **state) {
    (void)state;
    int rows = 0;
    for (int d = 0; d < tu_device_count(); d++) {
        clt_ops *ops = tu_fast_ops(d);
        int n;
        const clt_variant *v = clt_ops_variants(ops, "cast_fp8", &n);
        for (int i = 0; i < n; i++) {
            if (!strstr(v[i].requires, "numerics=fast")) continue;
            for (int c = 0; c < 8; c++, rows++)
                run_fast(d, ops, v[i].id,
                         &(cast_case){.rows = c < 4 ? 300 : 77,
                                      .cols = c < 4 ? 264 : 1032,
                                      .type = c / 2 % 2 ? CLT_BF16 : CLT_F16,
                                      .format = (clt_fp8)(c % 2),
                                      .act = c % 2 ? CLT_ACT_NONE : CLT_ACT_GELU,
                                      .grad_act = c % 2 ? CLT_ACT_GELU : CLT_ACT_NONE,
                                      .y = (place)(c % 3),
                                      .outputs = c == 4   ? 1
                                                 : c == 5 ? 2
                                                          : 3,
                                      .with_nan = c > 5});
        }
        clt_ops_destroy(ops);
    }
    if (!rows) printf("skip: no device has a fast row of cast_fp8\n");
}

/* --- what is refused --- */

static void expect(const clt_cast_fp8_params *p, const char *text) {
    assert_int_equal(clt_op_cast_fp8(tu_ops(0), p), CLT_FAIL);
    if (!strstr(clt_last_error(), text)) fail_msg("'%s' does not say '%s'", clt_last_error(), text);
}

static void bad_calls_are_refused(void **state) {
    (void)state;
    const cast_case t = {.rows = 20, .cols = 24, .grad_act = CLT_ACT_GELU, .y = BESIDE, .outputs = 3};
    inputs in = make_inputs(&t, false);
    const clt_cast_fp8_params ok = call_of(0, &t, &in, false);
    clt_cast_fp8_params p = ok;
    tu_assert_ok(clt_op_cast_fp8(tu_ops(0), &p), "cast");
    p.act = CLT_ACT_GELU;
    expect(&p, "act and grad_act are both given");
    p = ok, p.grad_act = CLT_ACT_COUNT;
    expect(&p, "unknown activation");
    p = ok, p.grad_pre = clt_tensor_none();
    expect(&p, "grad_pre is missing");
    p = ok, p.grad_pre.type = CLT_BF16;
    expect(&p, "grad_pre");
    p = ok, p.y.type = CLT_F16;
    expect(&p, "y");
    p = ok, p.y.ld = 100000;
    expect(&p, "does not fit its buffer");
    p = ok, p.y = p.x, p.y.ref.off++;
    p.rows--;
    expect(&p, "y overlaps x without being the same place");
    p = ok, p.y = p.grad_pre, p.y.ld++, p.rows = 10;
    expect(&p, "y overlaps grad_pre without being the same place");
    p = ok, p.y.ref.buf = p.along.q.buf, p.y.ref.off = FIRST, p.rows = 1;
    expect(&p, "y overlaps along");
    p = ok, p.across.q = p.along.q, p.across.ld = 32, p.rows = 10, p.cols = 10;
    expect(&p, "along overlaps across");
    p = ok, p.cols = 10, p.y = clt_tensor_at(p.x, 0, 12); /* columns of one matrix */
    tu_assert_ok(clt_op_cast_fp8(tu_ops(0), &p), "columns");
    p.y = clt_tensor_at(p.x, 0, 9);
    expect(&p, "y overlaps x");
    p = ok, p.cols = 10, p.x = clt_tensor_at(p.y, 0, 20), p.rows = 19;
    expect(&p, "y overlaps x"); /* a row of x reaches into the next row of y */
    tu_release();
    free_inputs(&in);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_match),
        cmocka_unit_test(fast_rows_equal_two_calls),
        cmocka_unit_test(bad_calls_are_refused),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
