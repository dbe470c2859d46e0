/* Batches of pictures: what the loader `image` makes of MDS shards and folders does not depend on threads, on
 * how a batch is divided, or on where reading begins; mixup and cutmix follow timm's formulas; damage names
 * file and sample. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/data/clt_loader.h"
#include "test/golden_util.h"

#define DIR "test/golden/vit/images/"

enum { SIZE = 32, CLASSES = 10, PIXELS = 3 * SIZE * SIZE, MOST = 64 };

static clt_loader_params params(const char *local) {
    clt_loader_params p;
    clt_loader_params_default(&p);
    p.local = local;
    p.images = true;
    p.max_rows = MOST;
    p.global_batch = 6;
    p.shuffle = true;
    p.image.transform.size = SIZE;
    p.image.classes = CLASSES;
    return p;
}

static clt_loader_params augmented(const char *local) {
    clt_loader_params p = params(local);
    p.image.transform.random_crop = true;
    p.image.transform.flip = 0.5;
    p.image.transform.augment = 2;
    p.image.transform.augment_level = 9;
    p.shuffle_seed = p.image.mix.seed = 3;
    p.image.mix.mixup = 0.8;
    p.image.mix.cutmix = 1;
    p.image.smoothing = 0.1;
    return p;
}

static clt_loader *open_loader(const clt_loader_params *p) {
    clt_loader *l;
    assert_int_equal(clt_loader_open(p, &l), CLT_OK);
    return l;
}

/* The rows of an epoch, one behind the other. */
typedef struct {
    float pixels[MOST][PIXELS], targets[MOST][CLASSES];
    int32_t label[MOST];
    int64_t sample[MOST], n;
} rows;

static void add_rows(rows *r, const clt_batch *b) {
    memcpy(r->pixels[r->n], b->field[CLT_IMAGE_PIXELS], (size_t)b->samples * sizeof r->pixels[0]);
    memcpy(r->targets[r->n], b->field[CLT_IMAGE_TARGETS], (size_t)b->samples * sizeof r->targets[0]);
    memcpy(r->label + r->n, b->field[CLT_IMAGE_LABEL], (size_t)b->samples * sizeof r->label[0]);
    memcpy(r->sample + r->n, b->sample_ids, (size_t)b->samples * sizeof r->sample[0]);
    r->n += b->samples;
}

/* An epoch in requests of `step` samples, the next one announced. */
static rows *read_epoch(const clt_loader_params *p, int64_t epoch, int64_t step) {
    rows *r = clt_calloc(1, sizeof *r);
    clt_loader *l = open_loader(p);
    const int64_t n = clt_loader_num_samples(l);
    for (int64_t at = 0; at < n; at += step) {
        clt_batch b;
        const int64_t count = CLT_MIN(step, n - at);
        assert_int_equal(clt_loader_get(l, epoch, at, count, &b), CLT_OK);
        if (at + step < n) clt_loader_prefetch(l, epoch, at + step, CLT_MIN(step, n - at - step));
        assert_int_equal(b.tokens, count);
        assert_int_equal(b.targets, count);
        add_rows(r, &b);
    }
    clt_loader_close(l);
    return r;
}

static void same_rows(const char *what, const rows *a, const rows *b) {
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++)
        if (memcmp(a->pixels[i], b->pixels[i], sizeof a->pixels[i]) ||
            memcmp(a->targets[i], b->targets[i], sizeof a->targets[i]) || a->label[i] != b->label[i] ||
            a->sample[i] != b->sample[i])
            fail_msg("%s: row %lld differs", what, (long long)i);
}

static const char *const sources[] = {DIR "mds/jpeg", DIR "mds/png", DIR "mds/pil", DIR "imagefolder/train"};

/* Parts of 1, 2 and 5 samples cut pairs of partners apart; 7 goes over the ends of batches. */
static void rows_do_not_depend_on_threads_or_division(void **state) {
    (void)state;
    static const int64_t steps[] = {1, 2, 5, 7};
    for (size_t s = 0; s < CLT_COUNT_OF(sources); s++) {
        clt_loader_params p = augmented(sources[s]);
        p.image.threads = 1;
        rows *want = read_epoch(&p, 1, MOST);
        p.image.threads = 5;
        for (size_t k = 0; k < CLT_COUNT_OF(steps); k++) {
            rows *got = read_epoch(&p, 1, steps[k]);
            same_rows(sources[s], got, want);
            clt_free(got);
        }
        rows *other = read_epoch(&p, 2, MOST);
        assert_memory_not_equal(other->pixels, want->pixels, sizeof want->pixels);
        clt_free(other);
        clt_free(want);
    }
}

/* Shards come from `remote` as those of text do. */
static void remote_shards_give_the_same_rows(void **state) {
    (void)state;
    char local[] = "/tmp/clt_image_XXXXXX";
    assert_non_null(mkdtemp(local));
    clt_loader_params p = augmented(DIR "mds/png"), far = p;
    far.remote = p.local;
    far.local = local;
    rows *want = read_epoch(&p, 0, 4), *got = read_epoch(&far, 0, 4);
    same_rows("remote", got, want);
    clt_free(want);
    clt_free(got);
    assert_int_equal(clt_io_remove_tree(local), CLT_OK);
}

/* --- evaluation --- */

static void evaluations_have_torchvisions_words(void **state) {
    (void)state;
    clt_loader_params p = augmented(DIR "mds/jpeg");
    p.eval = true;
    p.image.transform.random_crop = false;
    p.image.transform.flip = 0;
    p.image.transform.augment = 0;
    p.image.smoothing = 0;
    json_t *all = golden_load(DIR "mds/jpeg/samples.json"), *list = json_object_get(all, "list");
    rows *r = read_epoch(&p, 0, 4);
    clt_safetensors *s;
    float want[PIXELS];
    assert_int_equal(clt_safetensors_open(DIR "transformed.safetensors", &s), CLT_OK);
    assert_int_equal(r->n, json_array_size(list));
    for (int64_t i = 0; i < r->n; i++) {
        assert_int_equal(r->sample[i], i);
        assert_int_equal(r->label[i], golden_int(json_array_get(list, (size_t)i), "label"));
        for (int64_t c = 0; c < CLASSES; c++) assert_true(r->targets[i][c] == (c == r->label[i]));
    }
    /* Sample 0 is cmyk.jpg. */
    assert_int_equal(
        clt_safetensors_read(s, clt_safetensors_find(s, "tensor.cmyk.jpg"), 0, want, sizeof want), CLT_OK);
    assert_memory_equal(r->pixels[0], want, sizeof want);
    clt_safetensors_close(s);
    clt_free(r);
    json_decref(all);
}

/* --- mixing --- */

static void check_row(const clt_image_mix *m, const rows *plain, const rows *mixed, int64_t i, int64_t j) {
    for (int64_t k = 0; k < PIXELS; k++) {
        const int64_t y = k / SIZE % SIZE, x = k % SIZE;
        const bool in = y >= m->top && y < m->bottom && x >= m->left && x < m->right;
        const float a = plain->pixels[i][k], b = plain->pixels[j][k],
                    want = m->cut ? (in ? b : a) : a * (float)m->lam + b * (float)(1 - m->lam);
        if (mixed->pixels[i][k] != want) fail_msg("row %lld, pixel %lld", (long long)i, (long long)k);
    }
    double sum = 0;
    for (int64_t c = 0; c < CLASSES; c++) {
        const double want =
            0.01 + 0.9 * m->lam * (c == plain->label[i]) + 0.9 * (1 - m->lam) * (c == plain->label[j]);
        assert_true(fabs(mixed->targets[i][c] - want) < 1e-6);
        sum += mixed->targets[i][c];
    }
    assert_true(fabs(sum - 1) < 1e-6);
    assert_int_equal(mixed->label[i], m->lam >= 0.5 ? plain->label[i] : plain->label[j]);
}

/* 14 samples in batches of 6, 6 and 2, and of 5, 5 and 4: a fifth has no partner. */
static void mixtures_follow_timms_formulas(void **state) {
    (void)state;
    int cuts = 0, mixups = 0;
    for (int64_t batch = 5; batch <= 6; batch++) {
        for (int64_t epoch = 0; epoch < 6; epoch++) {
            clt_loader_params p = augmented(DIR "mds/jpeg"), without = p;
            p.global_batch = without.global_batch = batch;
            without.image.mix.prob = 0;
            rows *plain = read_epoch(&without, epoch, MOST), *mixed = read_epoch(&p, epoch, MOST);
            for (int64_t i = 0; i < plain->n; i++) {
                const clt_image_mix m = clt_image_mix_of(&p.image.mix, epoch, i / batch, SIZE);
                const int64_t first = i / batch * batch, end = CLT_MIN(first + batch, plain->n),
                              other = first + ((i - first) ^ 1), j = other < end ? other : i;
                cuts += m.cut;
                mixups += !m.cut;
                const clt_image_mix none = {.lam = 1};
                check_row(j == i ? &none : &m, plain, mixed, i, j);
            }
            clt_free(plain);
            clt_free(mixed);
        }
    }
    assert_true(cuts > 30 && mixups > 30); /* of 168 */
}

/* Mean 1/2 and variance 1 / (4 (2 alpha + 1)) of Beta(alpha, alpha). */
static void lambdas_have_the_distribution(void **state) {
    (void)state;
    enum { N = 20000 };
    static const double alphas[] = {0.001, 0.2, 0.8, 1, 2.5, 20};
    const clt_image_mix_params p = {.prob = 1, .switch_prob = 0.5, .seed = 9};
    for (size_t k = 0; k < CLT_COUNT_OF(alphas); k++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < N; i++) {
            const double x = clt_image_beta(&p, 0, i, alphas[k]);
            assert_true(x >= 0 && x <= 1);
            sum += x - 0.5;
            squares += (x - 0.5) * (x - 0.5);
        }
        const double variance = 1 / (4 * (2 * alphas[k] + 1));
        if (fabs(sum / N) > 4 * sqrt(variance / N) || fabs(squares / N / variance - 1) > 0.05)
            fail_msg("alpha %g: mean %g, variance %g instead of %g", alphas[k], 0.5 + sum / N, squares / N,
                     variance);
    }
}

/* --- failures --- */

static void refuse(const clt_loader_params *p, bool opens, const char *text) {
    clt_loader *l = NULL;
    clt_batch b;
    clt_error_quiet(true);
    clt_status st = clt_loader_open(p, &l);
    if (opens) assert_int_equal(st, CLT_OK);
    if (st == CLT_OK) st = clt_loader_get(l, 0, 0, clt_loader_num_samples(l), &b);
    assert_true(st == CLT_BAD_DATA || st == CLT_BAD_CONFIG);
    if (!strstr(clt_last_error(), text)) fail_msg("\"%s\" is not in: %s", text, clt_last_error());
    clt_error_quiet(false);
    clt_loader_close(l);
}

static void copy(const char *from, const char *root, const char *to) {
    char *path = clt_path_join(root, to), *dir = clt_path_dir(path), *data;
    size_t n;
    assert_int_equal(clt_io_read_all(from, 1 << 20, &data, &n), CLT_OK);
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, data, n), CLT_OK);
    clt_free(data);
    clt_free(dir);
    clt_free(path);
}

static void damage_names_file_and_sample(void **state) {
    (void)state;
    char root[] = "/tmp/clt_image_XXXXXX";
    assert_non_null(mkdtemp(root));
    copy(DIR "files/rgb.png", root, "a/1.png");
    copy(DIR "bad/truncated.jpg", root, "b/2.jpg");
    copy(DIR "bad/truncated.png", root, "b/3.png");
    clt_loader_params p = params(root);
    p.eval = true; /* in index order: the first of the damaged ones is reported */
    p.image.threads = 4;
    refuse(&p, true, "b/2.jpg [sample 1]: the JPEG data end early");
    p.image.classes = 1;
    refuse(&p, false, "has 2 classes, and dataset.classes is 1");
    assert_int_equal(clt_io_remove_tree(root), CLT_OK);
    p = params(DIR "mds/jpeg");
    p.image.classes = 5;
    refuse(&p, true, "and there are 5 classes");
    p = params(DIR "mds/jpeg");
    p.image.max_pixels = 100;
    refuse(&p, true, "above the limit of 100 pixels");
    p = params("test/golden/mds/tokens_i32_zstd");
    refuse(&p, false, "has no column of pictures");
    p = params(DIR "mds/jpeg");
    p.images = false;
    p.max_seq_len = 8;
    p.tokenizer = "bytes";
    refuse(&p, true, "use the loader image");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_depend_on_threads_or_division),
        cmocka_unit_test(remote_shards_give_the_same_rows),
        cmocka_unit_test(evaluations_have_torchvisions_words),
        cmocka_unit_test(mixtures_follow_timms_formulas),
        cmocka_unit_test(lambdas_have_the_distribution),
        cmocka_unit_test(damage_names_file_and_sample),
    };
    clt_log_set_level(CLT_LOG_ERROR);
    if (clt_image_check_build() != CLT_OK) return 0; /* built with IMAGES=0 */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
