/* clt_image_resize: Pillow's bicubic resize with antialiasing, the same bytes. Only the part of the result
 * that is wanted is computed: the pixels of a crop do not depend on those around it.
 *
 * The rule (docs/data.md): a = -0.5, support 2 * max(scale, 1); first along x, then along y, each pass
 * rounded to 8 bits; weights in double, divided by their sum, rounded to 22 bits of fraction. */
#ifndef CLT_IMAGE_RESIZE_H
#define CLT_IMAGE_RESIZE_H

#include "runtime/base/clt_base.h"

/* A rectangle of RGB pixels that something else owns. */
typedef struct {
    const uint8_t *rgb; /* the first pixel */
    size_t stride;      /* bytes from a row to the next */
    int64_t width, height;
} clt_image_view;

/* The pixels [x, x + width) times [y, y + height) of the resized picture. */
typedef struct {
    int64_t x, y, width, height;
} clt_image_window;

/* Memory that is reused. Start from {0}; clt_image_scratch_free frees it. One thread at a time. */
typedef struct {
    void *block[3];
    size_t bytes[3];
} clt_image_scratch;
void clt_image_scratch_free(clt_image_scratch *s);

/* Resizes `in` to width x height and writes the window, which lies inside, to out [w.height, w.width, 3].
 * CLT_NO_MEMORY. */
clt_status clt_image_resize(const clt_image_view *in, int64_t width, int64_t height, clt_image_window w,
                            clt_image_scratch *s, uint8_t *out);

#endif
