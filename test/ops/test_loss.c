/* Softmax cross-entropy: every variant on every device gives the oracle's words; the oracle is compared with
 * the formula in double. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t rows, vocab, gap;
    float spread, scale, softcap;
    enum { PLAIN, IGNORED, ALL_IGNORED, TIES, EXTREME } kind;
} shape;

static const shape tiny[] = {{3, 7, 1, 4.0f, 1.0f, 0.0f, IGNORED},
                             {2, 64, 0, 4.0f, 0.5f, 0.0f, TIES},
                             {2, 70, 0, 4.0f, 1.0f, 3.0f, PLAIN}};
static const shape small[] = {
    {1, 1, 0, 3.0f, 1.0f, 0.0f, PLAIN},         {4, 50368, 0, 6.0f, 1.0f, 0.0f, IGNORED},
    {3, 50257, 11, 3.0f, 0.25f, 0.0f, PLAIN},   {2, 50368, 0, 60.0f, 1.0f, 30.0f, PLAIN},
    {7, 331, 5, 8.0f, 1.0f, 0.0f, TIES},        {5, 1021, 3, 20.0f, 2.0f, 5.0f, TIES},
    {6, 128, 0, 5.0f, 1.0f, 0.0f, ALL_IGNORED}, {16, 65, 0, 200.0f, 1.0f, 0.0f, PLAIN},
    {9, 257, 2, 1.0f, 1.0f, 0.0f, EXTREME},     {9, 63, 0, 1.0f, 1.0f, 4.0f, EXTREME},
    {3, 4096, 0, 0.0f, 1.0f, 0.0f, PLAIN},
};

/* For wide rows: multiples of 8, without a softcap. */
static const shape wide_tiny[] = {{3, 8, 8, 4.0f, 1.0f, 0.0f, IGNORED}, {2, 64, 0, 4.0f, 0.5f, 0.0f, TIES}};
static const shape wide[] = {
    {1, 8, 0, 3.0f, 1.0f, 0.0f, PLAIN},         {4, 50368, 0, 6.0f, 1.0f, 0.0f, IGNORED},
    {3, 50256, 8, 3.0f, 0.25f, 0.0f, TIES},     {7, 336, 8, 8.0f, 1.0f, 0.0f, TIES},
    {6, 128, 0, 5.0f, 1.0f, 0.0f, ALL_IGNORED}, {16, 72, 0, 200.0f, 1.0f, 0.0f, PLAIN},
    {9, 2056, 16, 1.0f, 1.0f, 0.0f, EXTREME},   {3, 4096, 0, 0.0f, 1.0f, 0.0f, PLAIN},
};
static size_t shapes_for(const shape **s) {
    const bool few = tu_tiny();
    if (tu_wide()) {
        *s = few ? wide_tiny : wide;
        return few ? CLT_COUNT_OF(wide_tiny) : CLT_COUNT_OF(wide);
    }
    *s = few ? tiny : small;
    return few ? CLT_COUNT_OF(tiny) : CLT_COUNT_OF(small);
}

static float *make_logits(const shape *s) {
    size_t n = (size_t)(s->rows * (s->vocab + s->gap));
    float *x = s->kind == EXTREME ? tu_extreme(n, 1) : tu_random(n, 1, s->spread);
    for (size_t i = 0; s->kind == TIES && i < n; i++) x[i] = floorf(x[i]); /* few different values */
    return x;
}

static int32_t *make_targets(const shape *s, const float *x) {
    int32_t *t = clt_malloc((size_t)s->rows * 4);
    for (int64_t r = 0; r < s->rows; r++) {
        t[r] = (int32_t)tu_random_below(2, (uint64_t)r, s->vocab);
        if (s->kind == ALL_IGNORED || (s->kind == IGNORED && r % 2)) t[r] = r % 3 ? -100 : -1;
        if (s->kind != TIES) continue;
        /* alternating: the first of the largest, the last of them, any */
        const float *row = x + r * (s->vocab + s->gap);
        int32_t first = 0, last = 0;
        for (int32_t v = 1; v < s->vocab; v++) {
            if (row[v] > row[first]) first = v;
            if (row[v] >= row[last]) last = v;
        }
        if (r % 3 < 2) t[r] = r % 3 ? last : first;
    }
    return t;
}

static void run_shape(int d, const shape *s, clt_dtype type, bool grad, bool apart, bool weights,
                      bool correct) {
    const int64_t ld = s->vocab + s->gap;
    const size_t n = (size_t)(s->rows * ld), rows = (size_t)s->rows;
    float *x = make_logits(s), *loss = clt_calloc(rows, 4), *w = tu_random(rows, 3, 1.0f);
    clt_ref_round(type, x, n);
    int32_t *targets = make_targets(s, x), *hit = clt_calloc(rows, 4);
    clt_loss_params p = {.rows = s->rows,
                         .vocab = s->vocab,
                         .logits = clt_tensor_of(tu_upload_rounded(d, type, x, n), ld, type),
                         .targets = tu_upload_i32(d, targets, rows),
                         .token_loss = tu_blank(d, rows),
                         .correct = correct ? tu_blank(d, rows) : clt_ref_none(),
                         .scale = s->scale,
                         .softcap = s->softcap,
                         .grad = grad,
                         .apart = apart,
                         .weight = 1.0f / 37.0f,
                         .row_weight = weights ? tu_upload(d, w, rows) : clt_ref_none()};
    tu_assert_ok(clt_op_loss(tu_ops(d), &p), "loss");
    clt_ref_loss(s->rows, s->vocab, ld, x, targets, s->scale, s->softcap, grad, apart, p.weight,
                 weights ? w : NULL, loss, correct ? hit : NULL);
    tu_assert_words("token losses", tu_download(p.token_loss, rows), loss, rows);
    clt_ref_round(type, x, n);
    const float *got = tu_download_as(p.logits.ref, type, n);
    tu_assert_matrix(grad ? "gradients" : "logits", got, x, s->rows, s->vocab, ld);
    for (int64_t r = 0; r < s->rows; r++) /* gaps between rows do not change */
        tu_assert_words("gap", got + r * ld + s->vocab, x + r * ld + s->vocab, (size_t)s->gap);
    if (correct) tu_assert_i32("correct", tu_download_i32(p.correct, rows), hit, rows);
    clt_free(x), clt_free(loss), clt_free(w), clt_free(targets), clt_free(hit);
    tu_release();
}

static void each_shape(int d, const char *id) {
    (void)id;
    const shape *s = NULL;
    const size_t n = shapes_for(&s);
    const clt_dtype first = tu_wide() ? CLT_BF16 : CLT_F32, types = CLT_F16 - first + 1;
    for (size_t i = 0; i < n; i++) {
        const clt_dtype one = first + (clt_dtype)i % types;
        for (clt_dtype type = first; type <= CLT_F16; type++)
            run_shape(d, &s[i], type, true, false, i % 2, true);
        run_shape(d, &s[i], one, true, true, i / 3 % 2, true);
        run_shape(d, &s[i], one, false, i % 2, false, i % 2);
    }
}

static void loss_gives_the_oracles_words(void **state) {
    (void)state;
    tu_each_variant("loss", each_shape);
}

/* Damaged rows: targets outside, NaN and infinite logits. */
static void each_hostile(int d, const char *id) {
    (void)id;
    enum { V = 104, R = 6 };
    const clt_dtype type = tu_wide() ? CLT_BF16 : CLT_F32;
    float *x = tu_random(R * V, 1, 4.0f), loss[R];
    const int32_t targets[R] = {V, INT32_MAX, 5, 6, 7, INT32_MIN};
    int32_t hit[R];
    x[2 * V + 50] = NAN;
    x[3 * V + 50] = INFINITY;
    for (int v = 0; v < V; v++) x[4 * V + v] = -INFINITY;
    clt_loss_params p = {.rows = R,
                         .vocab = V,
                         .logits = clt_tensor_of(tu_upload_rounded(d, type, x, R * V), V, type),
                         .targets = tu_upload_i32(d, targets, R),
                         .token_loss = tu_blank(d, R),
                         .correct = tu_blank(d, R),
                         .scale = 1.0f,
                         .grad = true,
                         .weight = 1.0f};
    tu_assert_ok(clt_op_loss(tu_ops(d), &p), "loss");
    clt_ref_loss(R, V, V, x, targets, 1.0f, 0.0f, true, false, 1.0f, NULL, loss, hit);
    clt_ref_round(type, x, R * V);
    const float *got = tu_download(p.token_loss, R);
    for (int r = 0; r < 5; r++) assert_true(isnan(got[r]));
    tu_assert_words("token losses", got, loss, R);
    tu_assert_words("gradients", tu_download_as(p.logits.ref, type, R * V), x, R * V);
    tu_assert_i32("correct", tu_download_i32(p.correct, R), hit, R);
    clt_free(x);
}

static void damaged_rows_are_loud_and_safe(void **state) {
    (void)state;
    tu_each_variant("loss", each_hostile);
}

/* --- loss_stream.cl without NVIDIA's instructions, compared with the formula --- */

/* Rows of eight logits for one work-item. */

static const char stream_text[] =
    "#define CLT_PTX_CLH\n"
    "#include \"../include/clt_store.clh\"\n"
    "#undef HALF_PTX\n"
    "#include \"../include/clt_math.clh\"\n"
    "static inline float clt_ptx_exp2(float x) { return x < -126.0f ? 0.0f : clt_exp(x * 0.69314718f); }\n"
    "#define clt_ptx_swap(x, d) (sum ? 0.0f : -INFINITY)\n"
    "#define CLT_COPY_PLACE(to) to\n"
    "#define CLT_COPY8_OF(type, to, from) *to = CLT_FETCH8(type, from)\n"
    "#define CLT_COPY_COMMIT()\n"
    "#define CLT_COPY_WAIT(left)\n"
    "#include \"../loss/loss_stream.cl\"\n";

/* Logits near each other and far from 0: the largest is subtracted inside an exponent. */
static void large_logits_keep_the_bound(void **state) {
    (void)state;
    enum { V = 8, ROWS = 24 };
    const float scale = 0.75f, weight = 0.125f;
    float *x = tu_random(ROWS * V, 1, 4.0f);
    int32_t targets[ROWS];
    for (int r = 0; r < ROWS; r++) {
        targets[r] = r * 5 % V;
        for (int v = 0; v < V; v++)
            x[r * V + v] = roundf(x[r * V + v]) + ldexpf(r % 2 ? -1.0f : 1.0f, r) + (float)r;
    }
    for (int d = 0; d < tu_device_count(); d++) {
        const clt_ref logits = tu_upload_at(d, x, ROWS * V, 64), loss = tu_blank(d, ROWS),
                      none = clt_ref_none();
        const clt_ref ids = tu_upload_i32(d, targets, ROWS);
        const clt_arg args[] = {CLT_REF(logits), CLT_REF(ids),    CLT_REF(loss), CLT_REF(none),
                                CLT_REF(none),   CLT_U64(V),      CLT_U64(V),    CLT_F32(scale),
                                CLT_F32(0),      CLT_F32(weight), CLT_U32(ROWS)};
        const size_t group = 64, groups = 2 * group;
        clt_kernel *k;
        tu_assert_ok(clt_kernel_from_text(tu_device(d), "test/loss_stream.cl", stream_text, "loss",
                                          "-DWG=64 -DCOLS=8 -DTYPE=0", &k),
                     "loss_stream.cl");
        tu_assert_ok(clt_launch(k, 1, &groups, &group, args, CLT_COUNT_OF(args)), "launch");
        const float *got = tu_download(loss, ROWS), *grad = tu_download(logits, ROWS * V);
        for (int r = 0; r < ROWS; r++) {
            double m = -INFINITY, sum = 0, z[V];
            for (int v = 0; v < V; v++) m = fmax(m, z[v] = (double)x[r * V + v] * (double)scale);
            for (int v = 0; v < V; v++) sum += exp(z[v] - m);
            const double want = log(sum) + m - z[targets[r]];
            assert_true(fabs((double)got[r] - want) <= 0x1p-16 * fabs(want) + 0x1p-16);
            for (int v = 0; v < V; v++) {
                const double p = exp(z[v] - m) / sum, factor = (double)weight * (double)scale;
                const double g = (v == targets[r] ? p - 1 : p) * factor;
                assert_true(fabs((double)grad[r * V + v] - g) <=
                            0x1p-16 * (v == targets[r] ? factor : fabs(g)));
            }
        }
        tu_release();
    }
    clt_free(x);
}

/* --- the oracle against the formula in double --- */

static double z_of(double x, const shape *s) {
    double z = x * (double)s->scale;
    return s->softcap > 0 ? (double)s->softcap * tanh(z / (double)s->softcap) : z;
}

static double loss_of(const double *x, const shape *s, int32_t target) {
    double m = -INFINITY, sum = 0;
    for (int64_t v = 0; v < s->vocab; v++) m = fmax(m, z_of(x[v], s));
    for (int64_t v = 0; v < s->vocab; v++) sum += exp(z_of(x[v], s) - m);
    return log(sum) + m - z_of(x[target], s);
}

/* What the gradient is the slope of: the loss, without the target's z with `apart`. */
static double sloped(const double *x, const shape *s, int32_t target, bool apart) {
    return loss_of(x, s, target) + (apart ? z_of(x[target], s) : 0.0);
}

/* The loss compared with its formula, each gradient with that formula's slope (central differences). */
static void oracle_follows_the_formula(void **state) {
    (void)state;
    const shape shapes[] = {{6, 83, 0, 6.0f, 1.0f, 0.0f, PLAIN},
                            {6, 83, 0, 6.0f, 0.5f, 0.0f, PLAIN},
                            {6, 83, 0, 9.0f, 1.0f, 5.0f, PLAIN},
                            {6, 83, 0, 9.0f, 0.5f, 3.0f, PLAIN}};
    for (size_t i = 0; i < 2 * CLT_COUNT_OF(shapes); i++) {
        const shape *s = &shapes[i / 2];
        const bool apart = i % 2;
        enum { N = 6 * 83 };
        float *x = make_logits(s), loss[6];
        double wide[N], want[6], slope[N];
        int32_t *targets = make_targets(s, x), hit[6];
        for (int k = 0; k < N; k++) wide[k] = (double)x[k];
        for (int r = 0; r < 6; r++) {
            double *row = wide + r * 83;
            want[r] = loss_of(row, s, targets[r]);
            for (int v = 0; v < 83; v++) {
                const double keep = row[v], h = 1e-5;
                row[v] = keep + h;
                double up = sloped(row, s, targets[r], apart);
                row[v] = keep - h;
                slope[r * 83 + v] = 0.75 * (up - sloped(row, s, targets[r], apart)) / (2 * h);
                row[v] = keep;
            }
        }
        clt_ref_loss(6, 83, 83, x, targets, s->scale, s->softcap, true, apart, 0.75f, NULL, loss, hit);
        tu_assert_close("loss", loss, want, 6, 5e-7);
        tu_assert_close("gradient", x, slope, N, 5e-7);
        for (int r = 0; r < 6; r++) {
            int best = 0;
            for (int v = 1; v < 83; v++)
                if (wide[r * 83 + v] > wide[r * 83 + best]) best = v;
            assert_int_equal(hit[r], best == targets[r]);
        }
        clt_free(x), clt_free(targets);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_follows_the_formula), cmocka_unit_test(loss_gives_the_oracles_words),
        cmocka_unit_test(damaged_rows_are_loud_and_safe), cmocka_unit_test(large_logits_keep_the_bound)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
