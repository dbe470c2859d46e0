/* Patches of images and tokens of them: every variant on every device gives the oracle's words; the patches
 * times a weight are the convolution that they stand for. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/clt_op_image.h"
#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t images, height, width, p, cols;
} shape;

static const shape tiny[] = {{1, 4, 4, 4, 3}, {2, 5, 7, 2, 5}};
static const shape small[] = {
    {1, 16, 16, 16, 1}, {3, 33, 47, 8, 65}, {2, 56, 56, 14, 160}, {5, 8, 8, 1, 7}, {2, 64, 48, 16, 768}};

static int64_t tokens_of(const shape *s) {
    return (s->height / s->p) * (s->width / s->p) + 1;
}

static void unfold(int d, const shape *s, clt_dtype type) {
    const int64_t patch = 3 * s->p * s->p + s->cols % 8;
    const size_t pixels = (size_t)(s->images * 3 * s->height * s->width),
                 n = (size_t)(s->images * tokens_of(s) * patch);
    float *x = tu_random(pixels, 1, 2.0f), *blank = clt_calloc(n, 4), *want = clt_malloc(n * 4);
    const clt_unfold_params p = {s->images,
                                 s->height,
                                 s->width,
                                 s->p,
                                 tu_upload(d, x, pixels),
                                 clt_tensor_of(tu_upload_as(d, type, blank, n), patch, type)};
    tu_assert_ok(clt_op_unfold_patches(tu_ops(d), &p), "patches");
    clt_ref_unfold_patches(s->images, s->height, s->width, s->p, patch, x, want);
    clt_ref_round(type, want, n);
    tu_assert_words("patches", tu_download_as(p.out.ref, type, n), want, n);
    clt_free(x), clt_free(blank), clt_free(want);
    tu_release();
}

static void tokens(int d, const shape *s) {
    const int64_t T = tokens_of(s);
    const size_t n = (size_t)(s->images * T * s->cols), cols = (size_t)s->cols,
                 means = (size_t)s->images * cols;
    float *x = tu_random(n, 2, 1.0f), *first = tu_random(cols, 3, 1.0f), *mean = clt_malloc(means * 4);
    float *position = tu_random((size_t)T * cols, 4, 1.0f);
    const clt_place_tokens_params p = {s->images,
                                       T,
                                       s->cols,
                                       tu_upload(d, x, n),
                                       tu_upload(d, first, cols),
                                       tu_upload(d, position, (size_t)T * cols)};
    const clt_mean_tokens_params m = {s->images, T, s->cols, p.x, tu_blank(d, means)},
                                 g = {s->images, T, s->cols, tu_blank(d, n), m.y};
    tu_assert_ok(clt_op_place_tokens(tu_ops(d), &p), "tokens");
    tu_assert_ok(clt_op_mean_tokens(tu_ops(d), &m), "mean");
    tu_assert_ok(clt_op_mean_tokens_backward(tu_ops(d), &g), "gradient");
    clt_ref_place_tokens(s->images, T, s->cols, first, position, x);
    tu_assert_words("tokens", tu_download(p.x, n), x, n);
    clt_ref_mean_tokens(s->images, T, s->cols, x, mean);
    tu_assert_words("mean", tu_download(m.y, means), mean, means);
    clt_ref_mean_tokens_backward(s->images, T, s->cols, mean, x);
    tu_assert_words("gradient", tu_download(g.x, n), x, n);
    clt_free(x), clt_free(first), clt_free(mean), clt_free(position);
    tu_release();
}

static void each(int d, const char *id) {
    (void)id;
    for (size_t i = 0; i < (tu_tiny() ? CLT_COUNT_OF(tiny) : CLT_COUNT_OF(small)); i++) {
        const shape *s = tu_tiny() ? &tiny[i] : &small[i];
        for (clt_dtype type = CLT_F32; type <= CLT_F16; type++) unfold(d, s, type);
        tokens(d, s);
    }
}

static void operations_give_the_oracles_words(void **state) {
    (void)state;
    tu_each_variant("image", each);
}

/* The convolution as loops over an image's pixels: output (y, x) of one filter [3, p, p]. */
static double convolved(const shape *s, const float *image, const float *filter, int64_t y, int64_t x) {
    double sum = 0;
    for (int64_t c = 0; c < 3; c++)
        for (int64_t i = 0; i < s->p; i++)
            for (int64_t j = 0; j < s->p; j++)
                sum += (double)image[(c * s->height + y * s->p + i) * s->width + x * s->p + j] *
                       (double)filter[(c * s->p + i) * s->p + j];
    return sum;
}

static void patches_stand_for_a_convolution(void **state) {
    (void)state;
    const shape s = {2, 11, 14, 3, 0};
    const int64_t across = s.width / s.p, T = tokens_of(&s), patch = 3 * s.p * s.p,
                  pixels = 3 * s.height * s.width;
    float *x = tu_random((size_t)(s.images * pixels), 1, 1.0f), *filter = tu_random((size_t)patch, 2, 1.0f);
    float *rows = clt_malloc((size_t)(s.images * T * patch) * sizeof *rows);
    clt_ref_unfold_patches(s.images, s.height, s.width, s.p, patch, x, rows);
    for (int64_t r = 0; r < s.images * T; r++) {
        double got = 0;
        for (int64_t k = 0; k < patch; k++) got += (double)rows[r * patch + k] * (double)filter[k];
        const int64_t t = r % T - 1;
        const double want = t < 0 ? 0 : convolved(&s, x + r / T * pixels, filter, t / across, t % across);
        assert_true(fabs(got - want) < 1e-12);
    }
    clt_free(x), clt_free(filter), clt_free(rows);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(patches_stand_for_a_convolution),
                                       cmocka_unit_test(operations_give_the_oracles_words)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
