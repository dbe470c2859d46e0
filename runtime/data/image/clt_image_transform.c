#include "runtime/data/image/clt_image_transform.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/base/clt_philox.h"

/* The counter's last value: which of a sample's choices. Two numbers each. */
enum {
    CHOICE_CROP = 0, /* two for each of the tries */
    TRIES = 10,
    CHOICE_FLIP = 2 * TRIES,
    CHOICE_AUGMENT /* one for each operation */
};

void clt_image_transform_default(clt_image_transform *t) {
    *t = (clt_image_transform){.size = 224,
                               .crop_pct = 0.875,
                               .mean = {0.485f, 0.456f, 0.406f},
                               .std = {0.229f, 0.224f, 0.225f},
                               .scale = {0.08, 1},
                               .ratio = {3.0 / 4, 4.0 / 3}};
}

void clt_image_work_free(clt_image_work *w) {
    clt_image_scratch_free(&w->scratch);
    clt_free(w->rgb);
    *w = (clt_image_work){0};
}

/* --- random choices --- */

/* Two uniform numbers in [0, 1). */
static void draw(const clt_image_transform *t, int64_t epoch, int64_t sample, uint32_t choice, double u[2]) {
    uint32_t key[2], r[4];
    const uint32_t counter[4] = {(uint32_t)sample, (uint32_t)((uint64_t)sample >> 32), (uint32_t)epoch,
                                 choice};
    clt_philox_key(t->seed, CLT_RNG_AUGMENT, key);
    clt_philox4x32(counter, key, r);
    u[0] = clt_philox_double(r[1], r[0]);
    u[1] = clt_philox_double(r[3], r[2]);
}

static int64_t below(double u, int64_t n) {
    return CLT_MIN((int64_t)(u * (double)n), n - 1);
}

/* Where no try fits: the largest part in the middle with an allowed ratio. */
static void crop_middle(const clt_image_transform *t, int64_t width, int64_t height, clt_image_plan *p) {
    const double ratio = (double)width / (double)height;
    p->width = width;
    p->height = height;
    if (ratio < t->ratio[0])
        p->height = CLT_MIN((int64_t)rint((double)width / t->ratio[0]), height);
    else if (ratio > t->ratio[1])
        p->width = CLT_MIN((int64_t)rint((double)height * t->ratio[1]), width);
    p->left = (width - p->width) / 2;
    p->top = (height - p->height) / 2;
}

static void crop_at_random(const clt_image_transform *t, int64_t width, int64_t height, int64_t epoch,
                           int64_t sample, clt_image_plan *p) {
    const double least = clt_dlog(t->ratio[0]), most = clt_dlog(t->ratio[1]);
    for (uint32_t k = 0; k < TRIES; k++) {
        double u[2];
        draw(t, epoch, sample, CHOICE_CROP + 2 * k, u);
        const double area =
            (double)width * (double)height * (t->scale[0] + u[0] * (t->scale[1] - t->scale[0]));
        const double ratio = clt_dexp(least + u[1] * (most - least));
        p->width = (int64_t)rint(clt_dsqrt(area * ratio));
        p->height = (int64_t)rint(clt_dsqrt(area / ratio));
        if (p->width < 1 || p->width > width || p->height < 1 || p->height > height) continue;
        draw(t, epoch, sample, CHOICE_CROP + 2 * k + 1, u);
        p->top = below(u[0], height - p->height + 1);
        p->left = below(u[1], width - p->width + 1);
        return;
    }
    crop_middle(t, width, height, p);
}

/* The whole picture, of whose resized form the middle is taken. */
static void take_centre(const clt_image_transform *t, int64_t width, int64_t height, clt_image_plan *p) {
    const int64_t side = (int64_t)floor((double)t->size / t->crop_pct), shorter = CLT_MIN(width, height),
                  longer = CLT_MAX(width, height);
    const int64_t other = side * longer / shorter; /* below 2^53: pixels are limited */
    p->left = p->top = 0;
    p->width = width;
    p->height = height;
    p->to_width = width <= height ? side : other;
    p->to_height = width <= height ? other : side;
    /* rint: halves to even, as Python's round */
    p->window = (clt_image_window){(int64_t)rint((double)(p->to_width - t->size) / 2),
                                   (int64_t)rint((double)(p->to_height - t->size) / 2), t->size, t->size};
}

clt_image_plan clt_image_plan_of(const clt_image_transform *t, int64_t width, int64_t height, int64_t epoch,
                                 int64_t sample) {
    clt_image_plan p = {0};
    double u[2];
    if (t->random_crop) {
        crop_at_random(t, width, height, epoch, sample, &p);
        p.to_width = p.to_height = t->size;
        p.window = (clt_image_window){0, 0, t->size, t->size};
    } else {
        take_centre(t, width, height, &p);
    }
    if (t->flip > 0) {
        draw(t, epoch, sample, CHOICE_FLIP, u);
        p.flip = u[0] < t->flip;
    }
    for (int k = 0; k < t->augment; k++) {
        draw(t, epoch, sample, CHOICE_AUGMENT + (uint32_t)k, u);
        p.step[k] = (clt_augment_step){(clt_augment)below(u[0], CLT_AUGMENTS), t->augment_level, u[1] < 0.5};
    }
    return p;
}

/* --- pixels --- */

/* RGB bytes [n, n, 3] to fp32 [3, n, n]: (v / 255 - mean) / std, as torchvision rounds it. */
static void normalise(const clt_image_transform *t, const uint8_t *rgb, bool flip, float *out) {
    const int64_t n = t->size;
    for (int c = 0; c < 3; c++) {
        float value[256];
        for (int v = 0; v < 256; v++) value[v] = ((float)v / 255.0f - t->mean[c]) / t->std[c];
        for (int64_t y = 0; y < n; y++) {
            const uint8_t *row = rgb + 3 * y * n + c;
            float *to = out + (c * n + y) * n;
            for (int64_t x = 0; x < n; x++) to[flip ? n - 1 - x : x] = value[row[3 * x]];
        }
    }
}

/* Exchanges left and right. */
static void mirror(int64_t n, uint8_t *rgb) {
    for (int64_t y = 0; y < n; y++)
        for (int64_t x = 0; x < n / 2; x++) {
            uint8_t swap[3], *a = rgb + 3 * (y * n + x), *b = rgb + 3 * (y * n + n - 1 - x);
            memcpy(swap, a, 3);
            memcpy(a, b, 3);
            memcpy(b, swap, 3);
        }
}

static void augment(const clt_image_transform *t, const clt_image_plan *p, clt_image_work *w) {
    const int64_t n = t->size;
    if (p->flip) mirror(n, w->rgb);
    for (int k = 0; k < t->augment; k++) clt_image_augment(&p->step[k], n, n, w->rgb, w->rgb + 3 * n * n);
}

clt_status clt_image_apply(const clt_image_transform *t, const clt_image *in, int64_t epoch, int64_t sample,
                           clt_image_work *w, float *out) {
    const clt_image_plan p = clt_image_plan_of(t, in->width, in->height, epoch, sample);
    const clt_image_view part = {.rgb = in->rgb + 3 * (size_t)(p.top * in->width + p.left),
                                 .stride = 3 * (size_t)in->width,
                                 .width = p.width,
                                 .height = p.height};
    const size_t need = 2 * 3 * (size_t)t->size * (size_t)t->size;
    if (need > w->bytes) {
        clt_free(w->rgb);
        w->bytes = 0;
        w->rgb = clt_try_malloc(need);
        if (!w->rgb) return clt_no_memory("a resized picture", need);
        w->bytes = need;
    }
    CLT_TRY(clt_image_resize(&part, p.to_width, p.to_height, p.window, &w->scratch, w->rgb));
    if (t->augment > 0) augment(t, &p, w);
    normalise(t, w->rgb, p.flip && t->augment == 0, out);
    return CLT_OK;
}
