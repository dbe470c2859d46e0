/* clt_image_write: a picture as a PNG, for reports. Needs zlib and no libpng. */
#ifndef CLT_IMAGE_WRITE_H
#define CLT_IMAGE_WRITE_H

#include "runtime/base/clt_base.h"

/* Appends rgb [height, width, 3] as a PNG file, at most 2^16 pixels high and wide. CLT_NO_MEMORY. */
clt_status clt_image_write_png(const uint8_t *rgb, int64_t width, int64_t height, clt_str *out);
/* The pixels of a model's input, fp32 [3, size, size], back to rgb [side, side, 3], side = size / block: each
 * the mean of block * block of them (what fills no block is cut off). The inverse of rule 4 of docs/data.md,
 * rounded to the nearest byte. */
void clt_image_to_rgb(const float *pixels, int64_t size, int64_t block, const double mean[3],
                      const double std[3], uint8_t *rgb);

#endif
