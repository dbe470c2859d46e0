/* Activations, gated MLPs, clamps, rotary positions, row factors, dropout, sums and copies: every variant on
 * every device against the oracle, word for word. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t rows, cols, ld;
} shape;

/* One element; one row; odd and prime sizes; rows with gaps; more than one segment of the CPU body. */
static const shape shapes[] = {{1, 1, 1},   {1, 7, 7},     {3, 16, 16},
                               {5, 31, 47}, {2, 127, 130}, {3, 4099, 4099}};
static const shape tiny_shapes[] = {{1, 1, 1}, {3, 16, 16}, {2, 19, 23}};

/* For wide rows: multiples of 8. */
static const shape wide_shapes[] = {{1, 8, 8}, {3, 16, 16}, {5, 32, 48}, {2, 128, 136}, {3, 4104, 4104}};

static size_t shape_count(void) {
    if (tu_wide()) return tu_tiny() ? 2 : CLT_COUNT_OF(wide_shapes);
    return tu_tiny() ? CLT_COUNT_OF(tiny_shapes) : CLT_COUNT_OF(shapes);
}
static const shape *shape_at(size_t i) {
    return tu_wide() ? &wide_shapes[i] : tu_tiny() ? &tiny_shapes[i] : &shapes[i];
}
static size_t elements(const shape *s) {
    return (size_t)(s->rows * s->ld);
}

/* Calls fn for each element inside the rows; the others keep their values. */
#define FOR_ELEMENTS(s, i)                                                                                   \
    for (size_t i = 0; i < elements(s); i++)                                                                 \
        if ((int64_t)i % (s)->ld < (s)->cols)

/* Ordinary values for even seeds; extreme ones, infinities and NaN for odd ones. */
static float *make(size_t n, uint64_t seed) {
    if (seed % 2 == 0) return tu_random(n, seed, 8.0f);
    float *x = tu_extreme(n, seed);
    if (n > 20) {
        x[3] = INFINITY;
        x[11] = -INFINITY;
        x[17] = NAN;
    }
    return x;
}

/* The oracle's values, rounded, equal those on the device. */
static void assert_stored(const char *what, clt_dtype type, clt_ref got, float *want, size_t n) {
    clt_ref_round(type, want, n);
    tu_assert_words(what, tu_download_as(got, type, n), want, n);
}

static clt_tensor rows_of(const shape *s, clt_ref r, clt_dtype type) {
    return clt_tensor_of(r, s->ld, type);
}

static void activation_case(int d, clt_dtype type, clt_activation act, const shape *s, uint64_t seed) {
    size_t n = elements(s);
    float *x = make(n, seed), *dy = make(n, seed + 2), *want = clt_malloc(n * sizeof *dy);
    clt_ref rx = tu_upload_rounded(d, type, x, n), ry = tu_upload_rounded(d, type, dy, n),
            rdy = tu_upload_rounded(d, type, dy, n);
    memcpy(want, dy, n * sizeof *dy);
    const clt_tensor x_ = rows_of(s, rx, type), y_ = rows_of(s, ry, type), dy_ = rows_of(s, rdy, type);
    tu_assert_ok(
        clt_op_activation_forward(tu_ops(d), &(clt_activation_params){act, s->rows, s->cols, x_, y_}),
        "forward");
    FOR_ELEMENTS(s, i) want[i] = clt_ref_act(act, x[i]);
    assert_stored("activation forward", type, ry, want, n);
    tu_assert_ok(clt_op_activation_backward(
                     tu_ops(d), &(clt_activation_grad_params){act, s->rows, s->cols, x_, dy_, dy_}),
                 "backward");
    memcpy(want, dy, n * sizeof *dy);
    FOR_ELEMENTS(s, i) want[i] = dy[i] * clt_ref_act_grad(act, x[i]);
    assert_stored("activation backward", type, rdy, want, n);
    tu_release();
    clt_free(x);
    clt_free(dy);
    clt_free(want);
}

static void glu_case(int d, clt_dtype type, clt_activation act, const shape *s, uint64_t seed) {
    size_t n = elements(s);
    float *gate = make(n, seed), *up = make(n, seed + 2), *dy = make(n, seed + 4);
    clt_ref rg = tu_upload_rounded(d, type, gate, n), ru = tu_upload_rounded(d, type, up, n),
            rdy = tu_upload_rounded(d, type, dy, n), ry = tu_upload_rounded(d, type, dy, n);
    float *y = clt_memdup(dy, n * sizeof *dy), *dgate = clt_memdup(gate, n * sizeof *gate),
          *dup = clt_memdup(up, n * sizeof *up);
    const clt_tensor g = rows_of(s, rg, type), u = rows_of(s, ru, type);
    tu_assert_ok(
        clt_op_glu_forward(tu_ops(d), &(clt_glu_params){act, s->rows, s->cols, g, u, rows_of(s, ry, type)}),
        "glu");
    FOR_ELEMENTS(s, i) {
        y[i] = clt_ref_act(act, gate[i]) * up[i];
        dgate[i] = dy[i] * up[i] * clt_ref_act_grad(act, gate[i]);
        dup[i] = dy[i] * clt_ref_act(act, gate[i]);
    }
    assert_stored("glu forward", type, ry, y, n);
    /* the gradients overwrite the inputs */
    tu_assert_ok(clt_op_glu_backward(tu_ops(d), &(clt_glu_grad_params){act, s->rows, s->cols, g, u,
                                                                       rows_of(s, rdy, type), g, u}),
                 "glu backward");
    assert_stored("glu dgate", type, rg, dgate, n);
    assert_stored("glu dup", type, ru, dup, n);
    tu_release();
    float *all[] = {gate, up, dy, y, dgate, dup};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_free(all[i]);
}

static void run_activations(int d, const char *id) {
    (void)id;
    for (clt_activation act = CLT_ACT_NONE; act < CLT_ACT_COUNT; act++)
        for (uint64_t seed = 0; seed < 2; seed++)
            activation_case(d, (clt_dtype)((act + seed) % 3), act, shape_at(shape_count() - 2 + seed), seed);
    for (size_t i = 0; i < shape_count(); i++)
        for (uint64_t seed = 0; seed < 2; seed++) {
            for (clt_dtype type = CLT_F32; type <= CLT_F16; type++) {
                activation_case(d, type, CLT_ACT_GELU, shape_at(i), seed);
                glu_case(d, type, CLT_ACT_SILU, shape_at(i), seed);
            }
        }
}

static void activations_match(void **state) {
    (void)state;
    tu_each_variant("activation", run_activations);
}

static float clamp(float x, float limit) {
    return x > limit ? limit : x < -limit ? -limit : x;
}

static void simple_case(int d, clt_dtype type, const shape *s, uint64_t seed) {
    const float limit = 1.25f;
    size_t n = elements(s);
    float *a = make(n, seed), *b = make(n, seed + 2), *want = clt_malloc(n * sizeof *b);
    clt_ref ra = tu_upload_rounded(d, type, a, n), rb = tu_upload_rounded(d, type, b, n),
            rc = tu_upload_rounded(d, type, b, n);
    memcpy(want, b, n * sizeof *b);
    clt_ops *ops = tu_ops(d);

    const clt_tensor x = rows_of(s, ra, type), dy = rows_of(s, rb, type), y = rows_of(s, rc, type);
    tu_assert_ok(clt_op_clip_forward(ops, &(clt_clip_params){limit, s->rows, s->cols, x, y}), "clip");
    FOR_ELEMENTS(s, i) want[i] = clamp(a[i], limit);
    assert_stored("clip forward", type, rc, want, n);

    tu_assert_ok(clt_op_clip_backward(ops, &(clt_clip_grad_params){limit, s->rows, s->cols, x, dy, y}),
                 "clip");
    FOR_ELEMENTS(s, i) want[i] = fabsf(a[i]) <= limit ? b[i] : 0.0f;
    assert_stored("clip backward", type, rc, want, n);

    tu_assert_ok(clt_op_copy_rows(ops, s->rows, s->cols, x, y), "copy");
    FOR_ELEMENTS(s, i) want[i] = a[i];
    assert_stored("copy rows", type, rc, want, n);

    float factor[2] = {0.3f, -1.7f};
    tu_assert_ok(
        clt_op_scale_rows(ops, &(clt_scale_rows_params){s->rows, 2, s->cols, x, tu_upload(d, factor, 2)}),
        "scale rows");
    FOR_ELEMENTS(s, i) a[i] *= factor[(int64_t)i / s->ld % 2];
    assert_stored("scale rows", type, ra, a, n);

    int32_t count = 5;
    clt_ref counter = tu_upload_i32(d, &count, 1);
    for (size_t i = 0; i < n; i++) count += !isfinite(a[i]);
    tu_assert_ok(clt_op_count_nonfinite(ops, x, n, counter), "count");
    assert_int_equal(*tu_download_i32(counter, 1), count);
    tu_release();
    clt_free(a);
    clt_free(b);
    clt_free(want);
}

/* Operations that support only fp32. */
static void slab_case(int d, const shape *s, uint64_t seed) {
    const float limit = 1.25f;
    size_t n = elements(s);
    float *want = make(n, seed), *b = make(n, seed + 2);
    clt_ref x = tu_upload(d, want, n), y = tu_upload(d, b, n);
    clt_ops *ops = tu_ops(d);

    tu_assert_ok(clt_op_add(ops, x, y, n), "add");
    for (size_t i = 0; i < n; i++) want[i] += b[i];
    tu_assert_words("add", tu_download(x, n), want, n);

    tu_assert_ok(clt_op_clip_values(ops, x, n, limit), "clip values");
    for (size_t i = 0; i < n; i++) want[i] = clamp(want[i], limit);
    tu_assert_words("clip values", tu_download(x, n), want, n);

    tu_assert_ok(clt_op_offset(ops, x, y, n, 1.1f), "offset");
    clt_ref_offset(n, want, b, 1.1f);
    tu_assert_words("offset", tu_download(y, n), b, n);
    tu_assert_words("offset's input", tu_download(x, n), want, n);

    tu_release();
    clt_free(want);
    clt_free(b);
}

static void run_simple(int d, const char *id) {
    (void)id;
    for (size_t i = 0; i < shape_count(); i++)
        for (uint64_t seed = 0; seed < 2; seed++) {
            for (clt_dtype type = CLT_F32; type <= CLT_F16; type++) simple_case(d, type, shape_at(i), seed);
            slab_case(d, shape_at(i), seed);
        }
}

static void simple_operations_match(void **state) {
    (void)state;
    tu_each_variant("elementwise", run_simple);
}

static void rope_case(int d, clt_dtype type, const int64_t s[6], uint64_t seed) {
    const int64_t rows = s[0], seq = s[1], heads = s[2], head = s[3], dims = s[4], ld = s[5];
    size_t n = (size_t)(rows * ld), table = (size_t)(seq * dims);
    float *x = make(n, seed), *cs = tu_random(table, seed + 2, 1.0f);
    clt_ref rx = tu_upload_rounded(d, type, x, n), rc = tu_upload(d, cs, table);
    for (int inverse = 0; inverse < 2; inverse++) {
        const clt_rope_params p = {rows, seq, heads, head, clt_tensor_of(rx, ld, type), rc, inverse, dims};
        tu_assert_ok(clt_op_rope(tu_ops(d), &p), "rope");
        clt_ref_rope(rows, seq, heads, head, dims, x, ld, cs, inverse);
        assert_stored("rope", type, rx, x, n);
    }
    tu_release();
    clt_free(x);
    clt_free(cs);
}

static void run_rope(int d, const char *id) {
    static const int64_t cases[][6] = {/* rows, positions, heads, head_dim, dims, ld */
                                       {1, 1, 1, 2, 2, 2}, {7, 3, 2, 38, 38, 81}, {8, 4, 3, 64, 64, 192},
                                       {1, 1, 1, 3, 2, 3}, {7, 3, 2, 41, 34, 85}, {8, 4, 3, 64, 16, 192}};
    (void)id;
    for (uint64_t seed = 0; seed < 6; seed++)
        for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) rope_case(d, (clt_dtype)(seed / 2), cases[i], seed);
}

static void rope_matches(void **state) {
    (void)state;
    tu_each_variant("rope", run_rope);
}

static void bad_rope_is_refused(void **state) {
    (void)state;
    static const int64_t bad[][2] = {{6, 3}, {6, 8}, {6, -2}, {5, 0}};
    const clt_ref r = tu_blank(0, 16);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        const clt_rope_params p = {1, 1, 1, bad[i][0], clt_tensor_of(r, 8, CLT_F32), r, false, bad[i][1]};
        assert_int_equal(clt_op_rope(tu_ops(0), &p), CLT_FAIL);
    }
    tu_release();
}

/* The definition: a pair rotated by +-angle, in double. */
static void rope_turns_pairs(void **state) {
    (void)state;
    float x[4] = {1.0f, 2.0f, 3.0f, 4.0f},
          cs[4] = {(float)cos(0.3), (float)sin(0.3), (float)cos(0.7), (float)sin(0.7)};
    clt_ref_rope(1, 1, 1, 4, 4, x, 4, cs, false);
    double want[4] = {cos(0.3) - 3 * sin(0.3), 2 * cos(0.7) - 4 * sin(0.7), 3 * cos(0.3) + sin(0.3),
                      4 * cos(0.7) + 2 * sin(0.7)};
    tu_assert_close("rope", x, want, 4, 1e-6);
    clt_ref_rope(1, 1, 1, 4, 4, x, 4, cs, true);
    tu_assert_close("rope and back", x, (double[]){1, 2, 3, 4}, 4, 1e-6);
}

static void dropout_case(int d, clt_dropout_params p, bool residual) {
    size_t n = (size_t)(p.rows * p.cols);
    float *x = tu_random(n, 4, 3.0f), *r = tu_random(n, 6, 3.0f), *want = clt_malloc(n * sizeof *want);
    p.x = clt_tensor_of(tu_upload_rounded(d, p.x.type, x, n), p.cols, p.x.type);
    p.y = residual || p.x.type != p.y.type
              ? clt_tensor_of(tu_upload_rounded(d, p.y.type, r, n), p.cols, p.y.type)
              : p.x;
    if (residual) p.residual = clt_tensor_of(tu_upload_rounded(d, p.y.type, r, n), p.cols, p.y.type);
    tu_assert_ok(clt_op_dropout(tu_ops(d), &p), "dropout");
    clt_ref_dropout(p.rows, p.seq, p.cols, x, residual ? r : NULL, p.p, p.seed, p.step, p.first_sample,
                    p.layer, p.site, p.whole_samples, want);
    assert_stored("dropout", p.y.type, p.y.ref, want, n);
    tu_release();
    clt_free(x);
    clt_free(r);
    clt_free(want);
}

static void run_dropout(int d, const char *id) {
    (void)id;
    static const int64_t size[][3] = {{1, 1, 1}, {3, 1, 5}, {8, 4, 7}, {6, 3, 64}, {4, 2, 2053}};
    static const clt_dtype types[][2] = {
        {CLT_F32, CLT_F32}, {CLT_BF16, CLT_F32}, {CLT_BF16, CLT_BF16}, {CLT_F16, CLT_F16}};
    for (size_t i = 0; i < (tu_tiny() ? 4 : CLT_COUNT_OF(size)); i++)
        for (size_t form = 0; form < 4 * CLT_COUNT_OF(types); form++)
            dropout_case(d,
                         (clt_dropout_params){.rows = size[i][0],
                                              .seq = size[i][1],
                                              .cols = size[i][2],
                                              .p = 0.1f + 0.2f * (float)i,
                                              .seed = 0x123456789abcdefull,
                                              .step = 1000 + i,
                                              .first_sample = (int64_t)i * 100,
                                              .layer = (int32_t)i,
                                              .site = CLT_SITE_ATTENTION_OUT,
                                              .whole_samples = form / 2 % 2,
                                              .x = {.type = types[form / 4][0]},
                                              .y = {.type = types[form / 4][1]}},
                         form % 2);
}

static void dropout_matches(void **state) {
    (void)state;
    tu_each_variant("dropout", run_dropout);
}

/* The fraction of dropped elements, the factor of the kept ones, and that all of the counter matters. */
static void dropout_factors(void **state) {
    (void)state;
    enum { N = 20000 };
    int dropped = 0, differs[5] = {0};
    for (uint64_t e = 0; e < N; e++) {
        float f = clt_ref_dropout_factor(0.25f, 7, 1, 2, 3, 1, e);
        if (f != 0.0f) assert_true(f == (float)(1.0 / 0.75));
        dropped += f == 0.0f;
        differs[0] += f != clt_ref_dropout_factor(0.25f, 8, 1, 2, 3, 1, e);
        differs[1] += f != clt_ref_dropout_factor(0.25f, 7, 2, 2, 3, 1, e);
        differs[2] += f != clt_ref_dropout_factor(0.25f, 7, 1, 3, 3, 1, e);
        differs[3] += f != clt_ref_dropout_factor(0.25f, 7, 1, 2, 4, 1, e);
        differs[4] += f != clt_ref_dropout_factor(0.25f, 7, 1, 2, 3, 2, e);
    }
    assert_in_range(dropped, (int)(0.24 * N), (int)(0.26 * N));
    for (size_t i = 0; i < CLT_COUNT_OF(differs); i++)
        assert_in_range(differs[i], (int)(0.35 * N), (int)(0.40 * N));
    assert_true(clt_ref_dropout_factor(0.0f, 7, 1, 2, 3, 1, 5) == 1.0f);
}

static uint64_t launches(int d) {
    clt_device_counters c;
    clt_device_get_counters(tu_device(d), &c);
    return c.launches;
}

/* NVIDIA's devices take at most 65,535 work-groups along the second dimension of a launch: further rows are
 * another launch, which must know their numbers. */
static void many_rows_are_several_launches(void **state) {
    (void)state;
    enum { ROWS = CLT_LAUNCH_MOST_ROWS + 5, SEQ = 11, COLS = 8, LD = 9, N = ROWS * LD };
    if (tu_tiny()) return;
    float *x = tu_random(N, 1, 1.0f), *want = clt_malloc(N * sizeof *want),
          *table = tu_random(SEQ * COLS, 2, 1.0f);
    for (int d = 0; d < tu_device_count(); d++) {
        clt_ops *ops = tu_ops(d);
        const clt_ref rx = tu_upload(d, x, N), rt = tu_upload(d, table, SEQ * COLS);
        const clt_tensor rows = clt_tensor_of(rx, LD, CLT_F32);
        memcpy(want, x, N * sizeof *want);
        for (int pass = 0; pass < 2; pass++) { /* the first one also checks rows */
            const uint64_t before = launches(d);
            tu_assert_ok(clt_op_scale_rows(ops, &(clt_scale_rows_params){ROWS, SEQ, COLS, rows, rt}),
                         "scale rows");
            if (pass == 1) assert_int_equal(launches(d) - before, 2);
            for (int i = 0; i < N; i++)
                if (i % LD < COLS) want[i] *= table[i / LD % SEQ];
        }
        tu_assert_words("scaled rows", tu_download(rx, N), want, N);
        tu_assert_ok(clt_variant_force(ops, "rope", "portable"), "clt_variant_force");
        for (int pass = 0; pass < 2; pass++) {
            const uint64_t before = launches(d);
            tu_assert_ok(clt_op_rope(ops, &(clt_rope_params){ROWS, SEQ, 1, COLS, rows, rt, false}), "rope");
            if (pass == 1) assert_int_equal(launches(d) - before, 2);
            clt_ref_rope(ROWS, SEQ, 1, COLS, COLS, want, LD, table, false);
        }
        tu_assert_ok(clt_variant_force(ops, "rope", NULL), "clt_variant_force");
        tu_assert_words("turned rows", tu_download(rx, N), want, N);
        tu_release();
    }
    clt_free(x), clt_free(want), clt_free(table);
}

static void bad_dropout_is_refused(void **state) {
    (void)state;
    clt_dropout_params p = {.rows = 1, .seq = 1, .cols = 1, .p = 1.0f};
    assert_int_equal(clt_op_dropout(tu_ops(0), &p), CLT_BAD_CONFIG);
    p.p = NAN;
    assert_int_equal(clt_op_dropout(tu_ops(0), &p), CLT_BAD_CONFIG);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_match),
        cmocka_unit_test(simple_operations_match),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(rope_matches),
        cmocka_unit_test(dropout_factors),
        cmocka_unit_test(dropout_matches),
        cmocka_unit_test(bad_rope_is_refused),
        cmocka_unit_test(bad_dropout_is_refused),
        cmocka_unit_test(many_rows_are_several_launches),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
