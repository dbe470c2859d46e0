/* clt_image_transform: from a decoded picture to the pixels that a model reads: fp32 [3, size, size],
 * normalised. Evaluation resizes and takes the centre; training may take a random part, mirror it and apply
 * RandAugment, as torchvision and timm do.
 *
 * Every random choice is a function of (seed, epoch, sample): docs/numerics.md, rule 14. Neither ranks nor
 * threads nor a resume change it. */
#ifndef CLT_IMAGE_TRANSFORM_H
#define CLT_IMAGE_TRANSFORM_H

#include "runtime/data/image/clt_image.h"
#include "runtime/data/image/clt_image_augment.h"
#include "runtime/data/image/clt_image_resize.h"

typedef struct {
    int64_t size;    /* height and width of the result, >= 1 */
    double crop_pct; /* the shorter side is resized to floor(size / crop_pct); in (0, 1] */
    float mean[3], std[3];
    /* Training. Evaluation has random_crop false and flip 0. */
    bool random_crop;  /* a part of random area and shape instead of the centre: RandomResizedCrop */
    double scale[2];   /* its area as a part of the picture's; 0 < scale[0] <= scale[1] <= 1 */
    double ratio[2];   /* its width by its height; 0 < ratio[0] <= ratio[1] */
    double flip;       /* probability of mirroring left and right */
    int augment;       /* RandAugment: operations for each picture, up to CLT_AUGMENT_MOST_STEPS */
    int augment_level; /* their magnitude, 0 to CLT_AUGMENT_MOST_LEVEL */
    uint64_t seed;
} clt_image_transform;

/* ImageNet's mean and standard deviation, size 224, crop_pct 0.875; scale 0.08 to 1, ratio 3/4 to 4/3. */
void clt_image_transform_default(clt_image_transform *t);

/* Which part of a picture is resized, to which size, and which window of that is the result. */
typedef struct {
    int64_t left, top, width, height; /* the part */
    int64_t to_width, to_height;
    clt_image_window window;
    bool flip;
    clt_augment_step step[CLT_AUGMENT_MOST_STEPS]; /* [t->augment], behind the flip */
} clt_image_plan;
clt_image_plan clt_image_plan_of(const clt_image_transform *t, int64_t width, int64_t height, int64_t epoch,
                                 int64_t sample);

/* What a thread needs. Start from {0}. */
typedef struct {
    clt_image_scratch scratch;
    uint8_t *rgb; /* [size, size, 3], twice */
    size_t bytes;
} clt_image_work;
void clt_image_work_free(clt_image_work *w);

/* The pixels of a sample, out [3, size, size]. w->rgb keeps the bytes before the flip, with
 * RandAugment those behind it, before the normalisation. CLT_NO_MEMORY. */
clt_status clt_image_apply(const clt_image_transform *t, const clt_image *in, int64_t epoch, int64_t sample,
                           clt_image_work *w, float *out);

#endif
