/* Softmax cross-entropy with probabilities as targets: every variant on every device gives the oracle's
 * words; a single target of 1 gives those of the plain loss; the oracle is compared with the formula in
 * double. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

enum { ONE_HOT, SMOOTHED, MIXED };

typedef struct {
    int64_t rows, vocab, gap;
    float spread;
    int kind;
} shape;

static const shape tiny[] = {{3, 7, 1, 4.0f, SMOOTHED}, {2, 64, 0, 4.0f, ONE_HOT}};
static const shape small[] = {{1, 1, 0, 3.0f, ONE_HOT},     {64, 1000, 0, 6.0f, SMOOTHED},
                              {7, 331, 5, 8.0f, MIXED},     {5, 21841, 3, 20.0f, SMOOTHED},
                              {16, 65, 0, 200.0f, ONE_HOT}, {3, 4096, 0, 0.0f, MIXED}};

static int32_t *make_labels(const shape *s) {
    int32_t *label = clt_malloc((size_t)s->rows * 4);
    for (int64_t r = 0; r < s->rows; r++)
        label[r] = r % 5 == 4 ? -100 : (int32_t)tu_random_below(2, (uint64_t)r, s->vocab);
    return label;
}

static float *make_targets(const shape *s, const int32_t *label) {
    float *t = clt_calloc((size_t)(s->rows * s->vocab), sizeof *t);
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t a = CLT_MAX(label[r], 0), b = tu_random_below(3, (uint64_t)r, s->vocab);
        t[r * s->vocab + a] += s->kind == ONE_HOT ? 1.0f : 0.6f;
        if (s->kind == MIXED) t[r * s->vocab + b] += 0.4f;
        for (int64_t v = 0; s->kind == SMOOTHED && v < s->vocab; v++)
            t[r * s->vocab + v] += 0.4f / (float)s->vocab;
    }
    return t;
}

static void run_shape(int d, const shape *s, clt_dtype type, bool grad, bool weights, bool ranks) {
    const int64_t ld = s->vocab + s->gap;
    const size_t n = (size_t)(s->rows * ld), rows = (size_t)s->rows;
    float *x = tu_random(n, 1, s->spread), *loss = clt_calloc(rows, 4), *w = tu_random(rows, 3, 1.0f);
    for (size_t i = 0; i < n; i += 3) x[i] = floorf(x[i]); /* ties */
    int32_t *label = make_labels(s), *rank = clt_calloc(rows, 4);
    float *t = make_targets(s, label);
    const clt_loss_soft_params p = {.rows = s->rows,
                                    .vocab = s->vocab,
                                    .logits = clt_tensor_of(tu_upload_rounded(d, type, x, n), ld, type),
                                    .targets = tu_upload(d, t, (size_t)(s->rows * s->vocab)),
                                    .label = tu_upload_i32(d, label, rows),
                                    .row_loss = tu_blank(d, rows),
                                    .rank = ranks ? tu_blank(d, rows) : clt_ref_none(),
                                    .grad = grad,
                                    .weight = 1.0f / 37.0f,
                                    .row_weight = weights ? tu_upload(d, w, rows) : clt_ref_none()};
    tu_assert_ok(clt_op_loss_soft(tu_ops(d), &p), "loss");
    clt_ref_loss_soft(s->rows, s->vocab, ld, x, t, label, grad, p.weight, weights ? w : NULL, loss,
                      ranks ? rank : NULL);
    tu_assert_words("losses", tu_download(p.row_loss, rows), loss, rows);
    clt_ref_round(type, x, n);
    tu_assert_words(grad ? "gradients" : "logits", tu_download_as(p.logits.ref, type, n), x, n);
    if (ranks) tu_assert_i32("ranks", tu_download_i32(p.rank, rows), rank, rows);
    clt_free(x), clt_free(loss), clt_free(w), clt_free(label), clt_free(rank), clt_free(t);
    tu_release();
}

static void each_shape(int d, const char *id) {
    (void)id;
    for (size_t i = 0; i < (tu_tiny() ? CLT_COUNT_OF(tiny) : CLT_COUNT_OF(small)); i++)
        for (clt_dtype type = CLT_F32; type <= CLT_F16; type++) {
            const shape *s = tu_tiny() ? &tiny[i] : &small[i];
            run_shape(d, s, type, true, i % 2, i % 2);
            if (i % 3 == (size_t)type) run_shape(d, s, type, false, false, true);
        }
}

static void soft_loss_gives_the_oracles_words(void **state) {
    (void)state;
    tu_each_variant("loss_soft", each_shape);
}

static void one_target_is_the_plain_loss(void **state) {
    (void)state;
    enum { ROWS = 9, VOCAB = 331, N = ROWS * VOCAB };
    const shape s = {ROWS, VOCAB, 0, 8.0f, ONE_HOT};
    float *x = tu_random(N, 1, s.spread), *y = clt_memdup(x, N * sizeof *x), a[ROWS], b[ROWS];
    int32_t label[ROWS], rank[ROWS], hit[ROWS];
    for (int r = 0; r < ROWS; r++) label[r] = (int32_t)tu_random_below(2, (uint64_t)r, VOCAB);
    float *t = make_targets(&s, label);
    clt_ref_loss_soft(ROWS, VOCAB, VOCAB, x, t, label, true, 0.125f, NULL, a, rank);
    clt_ref_loss(ROWS, VOCAB, VOCAB, y, label, 1, 0, true, false, 0.125f, NULL, b, hit);
    tu_assert_words("losses", a, b, ROWS);
    tu_assert_words("gradients", x, y, N);
    for (int r = 0; r < ROWS; r++) assert_int_equal(rank[r] == 0, hit[r]);
    clt_free(x), clt_free(y), clt_free(t);
}

/* --- the oracle against the formula in double --- */

static double loss_of(const double *x, const float *t, int64_t n) {
    double m = -INFINITY, sum = 0, loss = 0;
    for (int64_t v = 0; v < n; v++) m = fmax(m, x[v]);
    for (int64_t v = 0; v < n; v++) sum += exp(x[v] - m);
    for (int64_t v = 0; v < n; v++) loss += (double)t[v] * (log(sum) + m - x[v]);
    return loss;
}

static void oracle_follows_the_formula(void **state) {
    (void)state;
    enum { ROWS = 6, VOCAB = 83, N = ROWS * VOCAB };
    for (int kind = ONE_HOT; kind <= MIXED; kind++) {
        const shape s = {ROWS, VOCAB, 0, 6.0f, kind};
        float *x = tu_random(N, 1, s.spread), loss[ROWS];
        int32_t *label = make_labels(&s), rank[ROWS];
        float *t = make_targets(&s, label);
        double wide[N], want[ROWS], slope[N];
        for (int k = 0; k < N; k++) wide[k] = (double)x[k];
        for (int k = 0; k < N; k++) {
            double *row = wide + k / VOCAB * VOCAB;
            const float *target = t + k / VOCAB * VOCAB;
            const double keep = wide[k], h = 1e-5;
            want[k / VOCAB] = loss_of(row, target, VOCAB);
            wide[k] = keep + h;
            const double up = loss_of(row, target, VOCAB);
            wide[k] = keep - h;
            slope[k] = 0.75 * (up - loss_of(row, target, VOCAB)) / (2 * h);
            wide[k] = keep;
        }
        clt_ref_loss_soft(ROWS, VOCAB, VOCAB, x, t, label, true, 0.75f, NULL, loss, rank);
        tu_assert_close("loss", loss, want, ROWS, 5e-7);
        tu_assert_close("gradient", x, slope, N, 5e-7);
        for (int r = 0; r < ROWS; r++) {
            int before = label[r] < 0 ? VOCAB : 0;
            for (int v = 0; label[r] >= 0 && v < VOCAB; v++)
                before += wide[r * VOCAB + v] > wide[r * VOCAB + label[r]];
            assert_int_equal(rank[r], before);
        }
        clt_free(x), clt_free(label), clt_free(t);
    }
}

static void impossible_shapes_are_refused(void **state) {
    (void)state;
    const clt_loss_soft_params p = {.rows = 2, .vocab = 1 << 24, .logits = {.ld = 1 << 24}};
    clt_error_quiet(true);
    assert_int_equal(clt_op_loss_soft(tu_ops(0), &p), CLT_FAIL);
    clt_error_quiet(false);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_follows_the_formula), cmocka_unit_test(one_target_is_the_plain_loss),
        cmocka_unit_test(soft_loss_gives_the_oracles_words), cmocka_unit_test(impossible_shapes_are_refused)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
