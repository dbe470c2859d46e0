/* Transforms of pictures: resize, centre crop and normalisation give the bytes and words of torchvision with
 * Pillow (test/golden/vit/images); random crops, flips and RandAugment follow their rules and depend on
 * seed, epoch and sample alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/data/image/clt_image_transform.h"
#include "runtime/data/image/clt_image_write.h"
#include "test/golden_util.h"

#define DIR "test/golden/vit/images/"

/* --- evaluation --- */

static void read_picture(const char *name, clt_image *m) {
    char *path = clt_format(DIR "files/%s", name), *data;
    size_t n;
    assert_int_equal(clt_io_read_all(path, 1 << 20, &data, &n), CLT_OK);
    assert_int_equal(clt_image_decode(path, CLT_IMAGE_FILE, data, n, CLT_IMAGE_PIXELS_MOST, m), CLT_OK);
    clt_free(data);
    clt_free(path);
}

/* The tensor `name` of the golden file; NULL: there is none. */
static void *read_golden(clt_safetensors *s, const char *name, size_t bytes) {
    const int i = clt_safetensors_find(s, name);
    if (i < 0) return NULL;
    const clt_st_tensor *t = clt_safetensors_at(s, i);
    assert_int_equal(t->end - t->begin, bytes);
    void *data = clt_malloc(bytes);
    assert_int_equal(clt_safetensors_read(s, i, 0, data, bytes), CLT_OK);
    return data;
}

/* Returns how many tensors were compared. */
static int compare(clt_safetensors *s, const char *prefix, const char *name, const clt_image_transform *t) {
    const size_t n = 3 * (size_t)t->size * (size_t)t->size;
    char *crop = clt_format("%s.%s", prefix, name), *tensor = clt_format("tensor.%s", name);
    uint8_t *bytes = read_golden(s, crop, n);
    float *words = strcmp(prefix, "crop") == 0 ? read_golden(s, tensor, n * sizeof(float)) : NULL,
          *out = clt_malloc(n * sizeof(float));
    clt_image m = {0};
    clt_image_work w = {0};
    read_picture(name, &m);
    assert_int_equal(clt_image_apply(t, &m, 0, 0, &w, out), CLT_OK);
    for (size_t i = 0; bytes && i < n; i++)
        if (bytes[i] != w.rgb[i]) fail_msg("%s: byte %zu is %d, not %d", crop, i, w.rgb[i], bytes[i]);
    if (words) assert_memory_equal(out, words, n * sizeof(float));
    const int compared = (bytes != NULL) + (words != NULL);
    clt_image_work_free(&w);
    clt_image_free(&m);
    clt_free(bytes);
    clt_free(words);
    clt_free(out);
    clt_free(crop);
    clt_free(tensor);
    return compared;
}

static void evaluation_gives_the_bytes_of_torchvision(void **state) {
    (void)state;
    clt_image_transform small, large;
    clt_safetensors *s;
    clt_image_transform_default(&small);
    small.size = 32;
    large = small;
    large.size = 80;
    large.crop_pct = 0.9;
    json_t *all = golden_load(DIR "images.json"), *files = json_object_get(all, "files");
    assert_int_equal(clt_safetensors_open(DIR "transformed.safetensors", &s), CLT_OK);
    int compared = 0;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *name = golden_str(json_array_get(files, i), "file");
        compared += compare(s, "crop", name, &small);
        compared += compare(s, "upscale80", name, &large);
    }
    assert_int_equal(compared, clt_safetensors_count(s)); /* none was overlooked */
    clt_safetensors_close(s);
    json_decref(all);
}

/* --- training --- */

static clt_image_transform training(void) {
    clt_image_transform t;
    clt_image_transform_default(&t);
    t.size = 16;
    t.random_crop = true;
    t.flip = 0.5;
    t.seed = 17;
    return t;
}

static void random_parts_follow_their_ranges(void **state) {
    (void)state;
    enum { N = 4000, W = 500, H = 375 };
    const clt_image_transform t = training();
    int flips = 0, tall = 0;
    double area = 0;
    for (int64_t i = 0; i < N; i++) {
        const clt_image_plan p = clt_image_plan_of(&t, W, H, 0, i);
        const double part = (double)(p.width * p.height) / (W * H),
                     ratio = (double)p.width / (double)p.height;
        assert_true(p.left >= 0 && p.left + p.width <= W && p.top >= 0 && p.top + p.height <= H);
        assert_true(part > 0.078 && part <= 1 && ratio > 0.73 && ratio < 1.37);
        area += part;
        flips += p.flip;
        tall += ratio < 1;
    }
    /* Uniform in [0.08, 1] but for tries that do not fit, which are the large ones. */
    assert_true(area / N > 0.42 && area / N < 0.54);
    assert_true(abs(flips - N / 2) < 4 * sqrt(N) / 2);
    assert_true(tall > 0.4 * N && tall < 0.6 * N);
}

/* No part of the allowed ratio and area fits: torchvision takes the middle. */
static void thin_pictures_give_the_middle(void **state) {
    (void)state;
    const clt_image_transform t = training();
    clt_image_plan p = clt_image_plan_of(&t, 4000, 8, 0, 3);
    assert_int_equal(p.height, 8);
    assert_int_equal(p.width, 11); /* round(8 * 4 / 3) */
    assert_int_equal(p.left, (4000 - 11) / 2);
    p = clt_image_plan_of(&t, 8, 4000, 0, 3);
    assert_int_equal(p.width, 8);
    assert_int_equal(p.height, 11); /* round(8 / (3 / 4)) */
    assert_int_equal(p.top, (4000 - 11) / 2);
}

static bool same_part(clt_image_plan a, clt_image_plan b) {
    return a.left == b.left && a.top == b.top && a.width == b.width && a.height == b.height;
}

static void choices_depend_on_seed_epoch_and_sample(void **state) {
    (void)state;
    clt_image_transform t = training();
    const int64_t large = ((int64_t)1 << 32) + 5;
    const clt_image_plan a = clt_image_plan_of(&t, 500, 375, 1, 5), b = clt_image_plan_of(&t, 500, 375, 1, 5),
                         c = clt_image_plan_of(&t, 500, 375, 2, 5), d = clt_image_plan_of(&t, 500, 375, 1, 6),
                         e = clt_image_plan_of(&t, 500, 375, 1, large);
    t.seed++;
    const clt_image_plan f = clt_image_plan_of(&t, 500, 375, 1, 5);
    assert_true(same_part(a, b));
    assert_false(same_part(a, c));
    assert_false(same_part(a, d));
    assert_false(same_part(a, e));
    assert_false(same_part(a, f));
}

/* The part that is resized is the picture that was cropped: nothing outside it is read, and a flip mirrors.
 */
static void crops_are_cut_before_they_are_resized(void **state) {
    (void)state;
    clt_image_transform t = training();
    clt_image m = {0}, part = {0};
    clt_image_work w = {0}, v = {0};
    enum { N = 3 * 16 * 16 };
    float out[N], again[N];
    read_picture("rgb_444.jpg", &m);
    for (int64_t i = 0; i < 20; i++) {
        const clt_image_plan p = clt_image_plan_of(&t, m.width, m.height, 0, i);
        assert_int_equal(clt_image_apply(&t, &m, 0, i, &w, out), CLT_OK);
        assert_int_equal(clt_image_set_size(&part, "part", p.width, p.height, 1 << 20), CLT_OK);
        for (int64_t y = 0; y < p.height; y++)
            memcpy(part.rgb + 3 * y * p.width, m.rgb + 3 * ((p.top + y) * m.width + p.left),
                   3 * (size_t)p.width);
        const clt_image_view all = {part.rgb, 3 * (size_t)p.width, p.width, p.height};
        uint8_t rgb[N];
        assert_int_equal(clt_image_resize(&all, 16, 16, p.window, &v.scratch, rgb), CLT_OK);
        assert_memory_equal(rgb, w.rgb, N);
        t.flip = p.flip ? 0 : 1;
        assert_int_equal(clt_image_apply(&t, &m, 0, i, &v, again), CLT_OK);
        for (int k = 0; k < N; k++) assert_true(out[k] == again[k / 16 * 16 + 15 - k % 16]);
        t.flip = 0.5;
    }
    clt_image_work_free(&w);
    clt_image_work_free(&v);
    clt_image_free(&m);
    clt_image_free(&part);
}

/* --- back to a file --- */

/* A model's pixels give the bytes that they were made of, and a PNG of these decodes to them. */
static void pixels_become_a_png_again(void **state) {
    (void)state;
    enum { SIZE = 50, BLOCK = 4, SIDE = SIZE / BLOCK, PIXELS = 3 * SIZE * SIZE };
    clt_image in = {0}, out = {0};
    clt_image_work w = {0};
    clt_image_transform t;
    clt_str png = {0};
    float pixels[PIXELS];
    uint8_t rgb[PIXELS], small[3 * SIDE * SIDE];
    clt_image_transform_default(&t);
    t.size = SIZE;
    const double mean[3] = {0.485, 0.456, 0.406}, std[3] = {0.229, 0.224, 0.225};
    read_picture("rgb.png", &in);
    assert_int_equal(clt_image_apply(&t, &in, 0, 0, &w, pixels), CLT_OK);
    clt_image_to_rgb(pixels, SIZE, 1, mean, std, rgb);
    assert_memory_equal(rgb, w.rgb, sizeof rgb);
    assert_int_equal(clt_image_write_png(rgb, SIZE, SIZE, &png), CLT_OK);
    assert_int_equal(clt_image_decode("png", CLT_IMAGE_FILE, png.s, png.len, SIZE * SIZE, &out), CLT_OK);
    assert_true(out.width == SIZE && out.height == SIZE);
    assert_memory_equal(out.rgb, rgb, sizeof rgb);
    clt_image_to_rgb(pixels, SIZE, BLOCK, mean, std, small);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int c = 0; c < 3; c++) {
                double sum = 0;
                for (int k = 0; k < BLOCK * BLOCK; k++)
                    sum += rgb[3 * ((y * BLOCK + k / BLOCK) * SIZE + x * BLOCK + k % BLOCK) + c];
                assert_true(fabs(small[3 * (y * SIDE + x) + c] - sum / (BLOCK * BLOCK)) <= 0.51);
            }
    clt_str_free(&png);
    clt_image_free(&in);
    clt_image_free(&out);
    clt_image_work_free(&w);
}

/* --- RandAugment --- */

/* The operations of a sample are applied to the mirrored bytes, one behind the other. */
static void operations_follow_the_flip(void **state) {
    (void)state;
    enum { SIDE = 16, N = 3 * SIDE * SIDE };
    clt_image_transform plain = training(), t = plain;
    clt_image m = {0};
    clt_image_work w = {0}, v = {0};
    float out[N];
    uint8_t want[N], other[N];
    int changed = 0, mirrored = 0;
    t.augment = 3;
    t.augment_level = 15;
    read_picture("rgb_444.jpg", &m);
    for (int64_t i = 0; i < 40; i++) {
        const clt_image_plan p = clt_image_plan_of(&t, m.width, m.height, 2, i);
        assert_int_equal(clt_image_apply(&plain, &m, 2, i, &w, out), CLT_OK);
        for (int k = 0; k < N; k++) {
            const int x = k / 3 % SIDE;
            want[k] = w.rgb[p.flip ? k + 3 * (SIDE - 1 - 2 * x) : k];
        }
        for (int k = 0; k < t.augment; k++) clt_image_augment(&p.step[k], SIDE, SIDE, want, other);
        assert_int_equal(clt_image_apply(&t, &m, 2, i, &v, out), CLT_OK);
        assert_memory_equal(v.rgb, want, N);
        for (int k = 0; k < N; k++) {
            const int c = k / (SIDE * SIDE), at = k % (SIDE * SIDE);
            assert_true(out[k] == ((float)want[3 * at + c] / 255.0f - t.mean[c]) / t.std[c]);
        }
        changed += memcmp(w.rgb, v.rgb, N) != 0;
        mirrored += p.flip;
    }
    assert_true(changed > 30 && mirrored > 10 && mirrored < 30);
    clt_image_work_free(&w);
    clt_image_work_free(&v);
    clt_image_free(&m);
}

/* Each operation and both signs are about equally frequent, and steps do not depend on each other. */
static void operations_are_drawn_evenly(void **state) {
    (void)state;
    enum { N = 14000 };
    clt_image_transform t = training();
    int of[CLT_AUGMENTS] = {0}, negative = 0, equal = 0;
    t.augment = 2;
    t.augment_level = 9;
    for (int64_t i = 0; i < N; i++) {
        const clt_image_plan p = clt_image_plan_of(&t, 64, 48, 0, i);
        assert_int_equal(p.step[1].level, 9);
        of[p.step[1].op]++;
        negative += p.step[1].negative;
        equal += p.step[0].op == p.step[1].op;
    }
    const double expected = (double)N / CLT_AUGMENTS, bound = 5 * sqrt(expected);
    for (int i = 0; i < CLT_AUGMENTS; i++) assert_true(fabs(of[i] - expected) < bound);
    assert_true(fabs(equal - expected) < bound && fabs(negative - N / 2.0) < 5 * sqrt(N) / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_gives_the_bytes_of_torchvision),
        cmocka_unit_test(random_parts_follow_their_ranges),
        cmocka_unit_test(thin_pictures_give_the_middle),
        cmocka_unit_test(choices_depend_on_seed_epoch_and_sample),
        cmocka_unit_test(crops_are_cut_before_they_are_resized),
        cmocka_unit_test(pixels_become_a_png_again),
        cmocka_unit_test(operations_follow_the_flip),
        cmocka_unit_test(operations_are_drawn_evenly),
    };
    if (clt_image_check_build() != CLT_OK) return 0; /* built with IMAGES=0 */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
