/* 8-bit blocks: the oracle against the definition in double, every variant of every device against the
 * oracle, byte for byte, and what is refused. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t rows, cols, sample; /* rows per sample of the transposed blocks */
    int32_t block;
    bool tile;
    int outputs; /* 1 along, 2 across, 3 both */
    clt_dtype type;
    int kind; /* of numbers: make_numbers */
    clt_activation act, grad_act;
    enum { NO_Y, OTHER_Y, X_AS_Y } y;
} quantize_case;

enum { FIRST = 40 /* words before the numbers in their buffer: a multiple of 16 bytes */ };

/* --- numbers that are hard to quantise --- */

static float power(int e) {
    return (float)ldexp(1.0, e);
}

/* Kind 0: ordinary numbers; 1: all sizes, zeros, denormals; 2: a largest magnitude at the border between two
 * scales, or one unit off, and ties; 3: the largest finite numbers, an infinity and a NaN; 4: every number of
 * a 16-bit type in turn; 5: the arguments at which activations bend. */
static float *make_numbers(int kind, size_t n, clt_dtype type) {
    float *x = kind == 1 ? tu_extreme(n, 7) : tu_random(n, 8, 1.0f);
    for (size_t i = 0; kind == 2 && i < n; i++) {
        const float unit = power((int)(i / 500 % 200) - 100);
        const float border =
            i % 3 == 0 ? 127.0f * unit : nextafterf(127.0f * unit, i % 3 == 1 ? INFINITY : 0.0f);
        x[i] = i % 97 == 0 ? border : (floorf(x[i] * 120.0f) + 0.5f) * unit;
    }
    for (size_t i = 0; kind == 3 && i < n; i++) {
        if (i % 7 == 0) x[i] *= 0x1p127f;
        if (i % 401 == 0) x[i] = i % 2 ? 0x1.fffffep127f : -0x1.fffffep127f;
        if (i % 1009 == 5) x[i] = INFINITY;
        if (i % 1511 == 3) x[i] = NAN;
    }
    for (size_t i = 0; kind == 4 && i < n; i++) {
        const uint16_t u = (uint16_t)(i * 40503); /* an odd factor: neighbours differ in size */
        x[i] = type == CLT_F16 ? clt_ref_f16_to_f32(u) : clt_ref_bf16_to_f32(u);
    }
    for (size_t i = 0; kind == 5 && i < n; i++) x[i] *= i % 3 ? 6.0f : i % 7 ? 24.0f : 0.0f;
    for (size_t i = 0; kind == 1 && i < n; i++)
        if (i / 150 % 3 == 0) x[i] = i % 2 ? 0.0f : -0.0f;
    clt_ref_round(type, x, n);
    return x;
}

/* --- the oracle against the definition --- */

/* s is the least of 8 significant bits that is not below amax / 127, up to the rounding of one product. */
static void scale_is_defined(float amax) {
    const double a = (double)amax, s = (double)clt_ref_scale8(amax), slack = 0x1p-23;
    int e;
    if (amax == 0.0f) {
        assert_true(s == 0.0 && !signbit(s));
        return;
    }
    const double eight = frexp(s, &e) * 256.0, unit = ldexp(1.0, e - 8);
    assert_true(floor(eight) == eight && s >= 0x1p-126 && s <= 0x1.04p121);
    assert_true(a <= 127.0 * s * (1 + slack));
    assert_true(s == 0x1p-126 || a > 127.0 * (s - unit) * (1 - slack));
}

static void oracle_scales(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 1u << 16; i++) {
        float x;
        uint32_t u = tu_random_word(5, i) & 0x7fffffff;
        if (u >= 0x7f800000) u -= 0x00800000;
        memcpy(&x, &u, sizeof x);
        scale_is_defined(x);
    }
    for (int e = -149; e < 122; e++) {
        const float x = (float)ldexp(127.0, e - 6);
        if (x == 0.0f) continue;
        scale_is_defined(x), scale_is_defined(nextafterf(x, INFINITY)), scale_is_defined(nextafterf(x, 0.0f));
    }
    scale_is_defined(0.0f);
    assert_true(clt_ref_scale8(0x1.fffffep127f) == 0x1.04p121f && clt_ref_scale8(127.0f) == 1.0f);
    assert_true(clt_ref_scale8(127.25f) == 0x1.02p0f && clt_ref_scale8(0x1p-149f) == 0x1p-126f);
    assert_true(isnan(clt_ref_scale8(INFINITY)) && isnan(clt_ref_scale8(NAN)));
}

/* q is nearest to x * (1 / s), half is rounded to an even q, and |q s - x| is about s / 2 at most. */
static void oracle_rounds_to_nearest_even(void **state) {
    (void)state;
    enum { ROWS = 24, COLS = 512 };
    int8_t q[ROWS * COLS];
    float scale[COLS / 64 * ROWS];
    for (int kind = 0; kind < 3; kind++) {
        float *x = make_numbers(kind, ROWS * COLS, CLT_F32);
        clt_ref_quantize(&(clt_ref_quantize_params){.rows = ROWS,
                                                    .cols = COLS,
                                                    .rows_per_sample = ROWS,
                                                    .x = x,
                                                    .ldx = COLS,
                                                    .along = {q, COLS, scale, ROWS, 64, 1}});
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                const float s = scale[c / 64 * ROWS + r], inverse = s > 0.0f ? 1.0f / s : 0.0f;
                const double v = (double)q[r * COLS + c], e = (double)x[r * COLS + c];
                const double off = fabs(v - e * (double)inverse);
                assert_true(off < 0.5 || (off == 0.5 && q[r * COLS + c] % 2 == 0));
                assert_true(fabs(v * (double)s - e) <= (double)s * (0.5 + 127 * 0x1p-23));
                assert_true(v >= -127 && v <= 127);
            }
        clt_free(x);
    }
}

/* --- every variant against the oracle --- */

typedef struct { /* an output on both sides, with a gap after each row */
    clt_blocks8 device;
    clt_ref_blocks8 host;
    clt_ref words;
    size_t n_words, n_scales;
} output;

static output make_output(int d, const quantize_case *t, bool across) {
    const int64_t lines = across ? t->cols : t->rows, b = t->block;
    const int64_t k =
        across ? clt_blocks8_across_k(t->rows, t->sample, t->block) : clt_blocks8_along_k(t->cols, t->block);
    const int64_t ld = k + 16, ld_scale = (t->tile ? CLT_CEIL_DIV(lines, b) : lines) + 1;
    const int32_t tile = t->tile ? t->block : 1;
    output o = {.n_words = (size_t)(lines * ld / 4), .n_scales = (size_t)(k / b * ld_scale)};
    o.host = (clt_ref_blocks8){
        clt_malloc(o.n_words * 4), ld, clt_malloc(o.n_scales * 4), ld_scale, t->block, tile};
    memset(o.host.q, 0x5a, o.n_words * 4);
    memset(o.host.scale, 0x5a, o.n_scales * 4);
    o.words = tu_upload_at(d, o.host.q, o.n_words, FIRST);
    o.device = (clt_blocks8){
        {o.words.buf, o.words.off * 4}, ld, tu_upload(d, o.host.scale, o.n_scales), ld_scale, t->block, tile};
    return o;
}

static void check_output(const char *what, output *o) {
    tu_assert_i32(what, tu_download_i32(o->words, o->n_words), (const int32_t *)o->host.q, o->n_words);
    tu_assert_words(what, tu_download(o->device.scale, o->n_scales), o->host.scale, o->n_scales);
    clt_free(o->host.q);
    clt_free(o->host.scale);
}

/* The tensors of a case on both sides. */
typedef struct {
    int64_t ld;
    size_t n;
    float *x, *g, *y; /* y: what lies there before the call */
    clt_quantize_params p;
    clt_ref_quantize_params r;
    output along, across;
} quantize_data;

static quantize_data make_data(int d, const quantize_case *t) {
    quantize_data a = {.ld = t->cols + (t->kind ? tu_wide() ? 8 : 3 : 0)};
    a.n = (size_t)(t->rows * a.ld);
    a.x = make_numbers(t->kind == 4 && t->grad_act ? 5 : t->kind, a.n, t->type);
    a.g = make_numbers(t->kind < 3 ? 5 : t->kind, a.n, t->type);
    a.y = make_numbers(0, a.n, t->type);
    if (t->outputs & 1) a.along = make_output(d, t, false);
    if (t->outputs & 2) a.across = make_output(d, t, true);
    const clt_tensor x = clt_tensor_of(tu_upload_as(d, t->type, a.x, a.n), a.ld, t->type);
    a.p = (clt_quantize_params){.rows = t->rows,
                                .cols = t->cols,
                                .rows_per_sample = t->sample,
                                .x = x,
                                .along = a.along.device,
                                .across = a.across.device,
                                .act = t->act,
                                .grad_act = t->grad_act};
    a.r = (clt_ref_quantize_params){t->rows, t->cols,     t->sample, a.x,  a.ld, a.along.host, a.across.host,
                                    t->act,  t->grad_act, a.g,       a.ld, NULL, a.ld,         t->type};
    if (t->grad_act) a.p.grad_pre = clt_tensor_of(tu_upload_as(d, t->type, a.g, a.n), a.ld, t->type);
    if (t->y == OTHER_Y)
        a.p.y = clt_tensor_of(tu_upload_as(d, t->type, a.y, a.n), a.ld, t->type), a.r.y = a.y;
    if (t->y == X_AS_Y) a.p.y = x, a.r.y = a.x;
    return a;
}

/* Rows with the body `wide` take multiples of 8 only. */
static void run_case(int d, const char *id, const quantize_case *original) {
    quantize_case rounded = *original;
    const quantize_case *t = &rounded;
    if (tu_left_out()) return;
    if (tu_wide()) rounded.cols = CLT_ROUND_UP(rounded.cols, 8);
    quantize_data a = make_data(d, t);
    char what[200];
    snprintf(what, sizeof what,
             "%s %lldx%lld/%lld blocks of %d, %s, outputs %d, %s, numbers %d, act %d, derivative %d, y %d",
             id, (long long)t->rows, (long long)t->cols, (long long)t->sample, (int)t->block,
             t->tile ? "tiles" : "rows", t->outputs, clt_dtype_name(t->type), t->kind, (int)t->act,
             (int)t->grad_act, (int)t->y);
    tu_assert_ok(clt_op_quantize(tu_ops(d), &a.p), what);
    clt_ref_quantize(&a.r);
    if (t->outputs & 1) check_output(what, &a.along);
    if (t->outputs & 2) check_output(what, &a.across);
    if (t->y) tu_assert_words(what, tu_download_as(a.p.y.ref, t->type, a.n), a.r.y, a.n);
    if (t->y != X_AS_Y) tu_assert_words(what, tu_download_as(a.p.x.ref, t->type, a.n), a.x, a.n);
    tu_release();
    clt_free(a.x), clt_free(a.g), clt_free(a.y);
}

static void ragged(int d, const char *id) {
    static const int64_t size[] = {1, 15, 17, 63, 64, 65, 127, 128, 129, 300};
    const size_t n = CLT_COUNT_OF(size);
    for (size_t i = 0; i < n; i += tu_brief() ? 3 : 1)
        for (int kind = 0; kind < 4; kind++) {
            quantize_case t = {size[i],
                               size[(i * 7 + (size_t)kind * 3) % n],
                               size[i],
                               kind % 2 ? 64 : 128,
                               i % 3 == 2,
                               3 - (int)(i % 4 == 3) * (1 + kind % 2),
                               (clt_dtype)(i % 3),
                               kind};
            run_case(d, id, &t);
            t.tile = !t.tile;
            t.type = (clt_dtype)((i + (size_t)kind) % 3);
            run_case(d, id, &t);
        }
}

/* Samples that are no whole blocks, shorter than a block, of one row. */
static void samples(int d, const char *id) {
    static const quantize_case t[] = {
        {400, 70, 100, 64, false, 3, CLT_F32, 0},   {390, 130, 130, 128, false, 3, CLT_BF16, 2},
        {60, 33, 20, 128, false, 2, CLT_F16, 1},    {5, 200, 1, 64, false, 3, CLT_F32, 2},
        {256, 256, 128, 128, false, 3, CLT_F32, 3}, {512, 64, 256, 64, false, 2, CLT_F32, 1}};
    for (size_t i = 0; i < CLT_COUNT_OF(t); i += tu_brief() ? 2 : 1) run_case(d, id, &t[i]);
}

/* Activations whose value at 0, in the padding, is not 0; what they make of infinities, NaN and denormals; y
 * in each place. Few forms, because each is a program. */
static void values(int d, const char *id) {
    static const quantize_case t[] = {{300, 203, 150, 128, false, 3, CLT_BF16, 5, CLT_ACT_GELU, 0, NO_Y},
                                      {129, 256, 129, 128, true, 3, CLT_BF16, 1, CLT_ACT_GELU, 0, NO_Y},
                                      {64, 77, 64, 128, false, 1, CLT_BF16, 3, CLT_ACT_GELU, 0, NO_Y},
                                      {260, 133, 130, 128, false, 3, CLT_BF16, 5, 0, CLT_ACT_GELU, X_AS_Y},
                                      {128, 256, 128, 128, false, 2, CLT_BF16, 1, 0, CLT_ACT_GELU, X_AS_Y},
                                      {70, 99, 70, 128, false, 3, CLT_BF16, 3, 0, CLT_ACT_GELU, X_AS_Y},
                                      {70, 99, 70, 128, false, 3, CLT_BF16, 3, 0, CLT_ACT_GELU, OTHER_Y},
                                      {135, 90, 45, 64, false, 3, CLT_F32, 5, CLT_ACT_SOFTPLUS, 0, OTHER_Y},
                                      {135, 90, 45, 64, false, 3, CLT_F32, 5, CLT_ACT_SOFTPLUS, 0, X_AS_Y},
                                      {128, 64, 128, 64, true, 3, CLT_F32, 3, CLT_ACT_SOFTPLUS, 0, OTHER_Y},
                                      {150, 131, 150, 128, true, 3, CLT_F16, 5, 0, CLT_ACT_SIGMOID, NO_Y},
                                      {100, 150, 50, 128, false, 3, CLT_BF16, 1, 0, 0, OTHER_Y}};
    for (size_t i = 0; i < CLT_COUNT_OF(t); i += tu_brief() ? 3 : 1) run_case(d, id, &t[i]);
}

/* Every 16-bit number as x of an activation, and as grad_pre of a derivative. */
static void all_numbers(int d, const char *id) {
    static const quantize_case t[] = {{512, 128, 512, 128, false, 1, CLT_BF16, 4, CLT_ACT_GELU, 0, OTHER_Y},
                                      {512, 128, 512, 128, false, 1, CLT_BF16, 4, 0, CLT_ACT_GELU, OTHER_Y},
                                      {512, 128, 512, 128, false, 1, CLT_F16, 4, CLT_ACT_GELU, 0, OTHER_Y}};
    for (size_t i = 0; !tu_brief() && i < CLT_COUNT_OF(t); i++) run_case(d, id, &t[i]);
}

static void model(int d, const char *id) {
    static const quantize_case t[] = {{768, 3072, 768, 128, true, 3, CLT_F32, 0},
                                      {1024, 768, 512, 128, false, 3, CLT_BF16, 0},
                                      {2047, 769, 2047, 128, false, 3, CLT_F32, 2}};
    for (size_t i = 0; !tu_brief() && i < CLT_COUNT_OF(t); i++) run_case(d, id, &t[i]);
}

static void ragged_shapes_match(void **state) {
    (void)state;
    tu_each_variant("quantize", ragged);
}
static void samples_match(void **state) {
    (void)state;
    tu_each_variant("quantize", samples);
}
static void values_match(void **state) {
    (void)state;
    tu_each_variant("quantize", values);
}
static void all_numbers_match(void **state) {
    (void)state;
    tu_each_variant("quantize", all_numbers);
}
static void model_shapes_match(void **state) {
    (void)state;
    tu_each_variant("quantize", model);
}

/* With tiles the transposed matrix has the same numbers and scales. */
static void tiles_are_the_same_both_ways(void **state) {
    (void)state;
    enum { ROWS = 200, COLS = 333, B = 64 };
    const quantize_case t = {ROWS, COLS, ROWS, B, true, 3, CLT_F32, 0};
    for (int d = 0; d < tu_device_count(); d++) {
        float *x = make_numbers(1, ROWS * COLS, CLT_F32);
        output a = make_output(d, &t, false), b = make_output(d, &t, true);
        const clt_quantize_params p = {
            ROWS, COLS, ROWS, clt_tensor_of(tu_upload(d, x, ROWS * COLS), COLS, CLT_F32), a.device, b.device};
        tu_assert_ok(clt_op_quantize(tu_ops(d), &p), "quantize");
        const int8_t *q = (const int8_t *)tu_download_i32(a.words, a.n_words),
                     *qt = (const int8_t *)tu_download_i32(b.words, b.n_words);
        const float *s = tu_download(a.device.scale, a.n_scales),
                    *st = tu_download(b.device.scale, b.n_scales);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t c = 0; c < COLS; c++) {
                assert_int_equal(q[r * a.host.ld + c], qt[c * b.host.ld + r]);
                assert_true(s[c / B * a.host.ld_scale + r / B] == st[r / B * b.host.ld_scale + c / B]);
            }
        tu_release();
        clt_free(x), clt_free(a.host.q), clt_free(a.host.scale), clt_free(b.host.q), clt_free(b.host.scale);
    }
}

/* --- what is refused --- */

static void refuse(const clt_quantize_params *p, const char *message) {
    assert_int_equal(clt_op_quantize(tu_ops(0), p), CLT_FAIL);
    if (!strstr(clt_last_error(), message)) fail_msg("'%s' does not contain '%s'", clt_last_error(), message);
}

static void bad_calls_are_refused(void **state) {
    (void)state;
    const quantize_case t = {64, 128, 64, 64, false, 3, CLT_F32, 0};
    output a = make_output(0, &t, false), b = make_output(0, &t, true);
    const clt_quantize_params good = {
        64, 128, 64, clt_tensor_of(tu_blank(0, 64 * 128), 128, CLT_F32), a.device, b.device};
    tu_assert_ok(clt_op_quantize(tu_ops(0), &good), "quantize");
    clt_quantize_params p;
#define REFUSE(change, message) p = good, change, refuse(&p, message)
    REFUSE(p.rows = 0, "sizes 0 x 128");
    REFUSE(p.rows_per_sample = 5, "samples of 5 rows do not divide 64 rows");
    REFUSE(p.rows_per_sample = 0, "samples of 0 rows");
    REFUSE(p.x.ref.buf = NULL, "x is missing");
    REFUSE(p.x.ld = 127, "rows of x are 127 apart");
    REFUSE(p.along.block = 96, "along has blocks of 96; supported: 64, 128");
    REFUSE(p.along.tile = 2, "a scale of along is for 2 rows");
    REFUSE(p.along.tile = p.across.tile = 64; p.rows_per_sample = 32, "tiles need rows_per_sample 64");
    REFUSE(p.across.tile = 64, "along has blocks of 64 and tiles of 1");
    REFUSE(p.along.q.off++, "must be multiples of 16");
    REFUSE(p.along.ld += 8, "must be multiples of 16");
    REFUSE(p.along.ld = 64, "overlaps itself");
    REFUSE(p.across.q.off += 1 << 20, "exceeds its buffer");
    REFUSE(p.across.scale.off += 1 << 20, "scales of across");
    REFUSE(p.across.scale.buf = NULL, "missing");
    REFUSE(p.along.q.buf = p.across.q.buf = NULL, "no output");
    clt_free(a.host.q), clt_free(a.host.scale), clt_free(b.host.q), clt_free(b.host.scale);
    tu_release();
}

static void bad_values_are_refused(void **state) {
    (void)state;
    const quantize_case t = {64, 128, 64, 64, false, 1, CLT_F32, 0};
    output a = make_output(0, &t, false);
    const clt_ref room = tu_blank(0, 3 * 64 * 256);
    const clt_tensor x = clt_tensor_of(room, 256, CLT_F32), beside = clt_tensor_at(x, 0, 128);
    const clt_tensor below = clt_tensor_at(x, 64, 0);
    const clt_quantize_params good = {.rows = 64, .cols = 128, .x = x, .along = a.device};
    clt_quantize_params p = good;
    p.act = CLT_ACT_RELU, p.y = beside; /* between the rows of x */
    tu_assert_ok(clt_op_quantize(tu_ops(0), &p), "quantize");
    REFUSE(p.act = CLT_ACT_COUNT, "unknown activation 13");
    REFUSE(p.act = p.grad_act = CLT_ACT_RELU; p.grad_pre = beside, "both given");
    REFUSE(p.grad_act = CLT_ACT_RELU, "must be given together");
    REFUSE(p.grad_pre = beside, "must be given together");
    REFUSE(p.grad_act = CLT_ACT_RELU; p.grad_pre = p.y = beside, "y overlaps grad_pre");
    REFUSE(p.grad_act = CLT_ACT_RELU; p.grad_pre = beside; p.grad_pre.type = CLT_BF16, "must have one type");
    REFUSE(p.grad_act = CLT_ACT_RELU; p.grad_pre = clt_tensor_at(x, 150, 0), "grad_pre [64, 128]");
    REFUSE(p.y = clt_tensor_at(x, 150, 0), "y [64, 128]");
    REFUSE(p.y = below; p.y.ld = 64, "rows of y are 64 apart");
    REFUSE(p.y = below; p.y.type = CLT_F16, "must have one type");
    REFUSE(p.y = clt_tensor_at(x, 0, 64), "y overlaps x");
    REFUSE(p.y = clt_tensor_at(x, 1, 0), "y overlaps x");
    REFUSE(p.y = x; p.y.ld = 128, "y overlaps x");
    REFUSE(p.x = beside; p.y = x; p.y.ref.off += 1, "y overlaps x");
    clt_free(a.host.q), clt_free(a.host.scale);
    tu_release();
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_scales),         cmocka_unit_test(oracle_rounds_to_nearest_even),
        cmocka_unit_test(ragged_shapes_match),   cmocka_unit_test(samples_match),
        cmocka_unit_test(values_match),          cmocka_unit_test(all_numbers_match),
        cmocka_unit_test(model_shapes_match),    cmocka_unit_test(tiles_are_the_same_both_ways),
        cmocka_unit_test(bad_calls_are_refused), cmocka_unit_test(bad_values_are_refused),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
