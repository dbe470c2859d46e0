/* clt_image: pictures in memory to RGB bytes, the same bytes as Pillow's Image.convert('RGB') gives
 * (docs/data.md lists the rules): JPEG by libjpeg-turbo with its accurate integer transform and smooth
 * upsampling of chroma, PNG by libpng, and the raw pixels of Streaming's column encoding `pil`.
 *
 * Files are hostile. Width and height are compared with a limit of pixels before anything of their size is
 * allocated, text and profiles in a file are skipped without being decompressed, and data that end early are
 * refused. Nothing is printed by the libraries, and none of their failures ends the process.
 *
 * A program that was built without the libraries (IMAGES=0) refuses JPEG and PNG with CLT_BAD_CONFIG. All
 * functions may be called from several threads, each with its own clt_image. */
#ifndef CLT_IMAGE_H
#define CLT_IMAGE_H

#include "runtime/base/clt_base.h"

/* The default of the largest width times height. The largest picture of ImageNet has 61 million pixels;
 * Pillow refuses above 179 million. A thread that decodes holds up to 3 bytes for each pixel, and 6 more for
 * a progressive JPEG. */
enum { CLT_IMAGE_PIXELS_MOST = 1 << 26 };

/* Start from {0}; clt_image_free frees it. A function that fills one reuses its memory. */
typedef struct {
    int64_t width, height;
    uint8_t *rgb; /* [height, width, 3], owned */
    size_t bytes; /* allocated */
} clt_image;

/* How the bytes of a sample hold a picture. */
typedef enum {
    CLT_IMAGE_FILE, /* a JPEG or a PNG, whichever it begins as: names are not trusted */
    CLT_IMAGE_PIL   /* width, height and length of a mode's name (u32 each), the name, rows of pixels */
} clt_image_form;

/* Whether JPEG and PNG can be read: CLT_BAD_CONFIG with the reason. */
clt_status clt_image_check_build(void);

/* Decodes `bytes` bytes. `what` names file and sample in messages. CLT_BAD_DATA: damaged, of an unsupported
 * kind, or of more than max_pixels pixels (>= 1); CLT_NO_MEMORY. */
clt_status clt_image_decode(const char *what, clt_image_form form, const void *data, size_t bytes,
                            int64_t max_pixels, clt_image *out);
void clt_image_free(clt_image *m);

/* --- for the decoders --- */

/* Sets the size and makes room; the pixels are undefined. CLT_BAD_DATA: a side of 0, or above max_pixels. */
clt_status clt_image_set_size(clt_image *m, const char *what, int64_t width, int64_t height,
                              int64_t max_pixels);
/* n grey values of a row, at the beginning of the row's 3 n bytes, to RGB in place. */
void clt_image_spread_grey(uint8_t *row, int64_t n);
/* A pixel of cyan, magenta, yellow and black (0: none) to RGB. */
void clt_image_cmyk(const uint8_t cmyk[4], uint8_t rgb[3]);

clt_status clt_image_jpeg(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                          clt_image *out);
clt_status clt_image_png(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                         clt_image *out);
clt_status clt_image_pil(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                         clt_image *out);

#endif
