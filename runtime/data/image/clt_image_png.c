/* PNG through libpng. Errors jump back to the caller, with the library's text; warnings print nothing. Chunks
 * that do not change the pixels here (text, profiles, gamma, transparency) are skipped unread. */
#include <setjmp.h>
#include <string.h>

#include "runtime/data/image/clt_image.h"

#include <png.h>

typedef struct {
    png_structp png;
    png_infop info;
    const uint8_t *at;
    size_t left;
    clt_status st; /* what was reported */
    const char *what;
    char warning[128]; /* the last one, which says what an error in the header does not */
} decoder;

/* --- callbacks --- */

static void fail(png_structp png, png_const_charp text) {
    decoder *p = png_get_error_ptr(png);
    const char *more = p->warning[0] ? "; " : "";
    if (p->st == CLT_OK)
        p->st = clt_error(CLT_BAD_DATA, "%s: invalid or unsupported PNG: %s%s%s", p->what, text, more,
                          p->warning);
    png_longjmp(png, 1);
}

static void warn(png_structp png, png_const_charp text) {
    decoder *p = png_get_error_ptr(png);
    snprintf(p->warning, sizeof p->warning, "%s", text);
}

static void take_bytes(png_structp png, png_bytep to, size_t n) {
    decoder *p = png_get_io_ptr(png);
    if (n > p->left) {
        p->st = clt_error(CLT_BAD_DATA, "%s: the PNG data end early", p->what);
        png_longjmp(png, 1);
    }
    memcpy(to, p->at, n);
    p->at += n;
    p->left -= n;
}

/* --- pixels --- */

/* All colour types to 8-bit RGB; 16-bit grey stays as it is. */
static void ask_for_rgb(png_structp png, int depth, int type) {
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
    if (type == PNG_COLOR_TYPE_GRAY && depth == 16) return;
    if (depth == 16) png_set_strip_16(png);
    if (type & PNG_COLOR_MASK_ALPHA) png_set_strip_alpha(png);
    if (!(type & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png);
}

/* Big-endian values to bytes as Pillow does: clipped, not divided. */
static void clip_grey(uint8_t *row, int64_t n) {
    for (int64_t i = 0; i < n; i++) row[i] = row[2 * i] ? 255 : row[2 * i + 1];
    clt_image_spread_grey(row, n);
}

static void decode(decoder *p, int64_t max_pixels, clt_image *out) {
    static const png_byte skipped[] = "bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0"
                                      "sCAL\0sPLT\0sRGB\0tEXt\0tIME\0tRNS\0zTXt";
    png_structp png = p->png;
    png_set_read_fn(png, p, take_bytes);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* clt_image_set_size has the limit */
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, skipped, sizeof skipped / 5);
    png_read_info(png, p->info);
    const int depth = png_get_bit_depth(png, p->info), type = png_get_color_type(png, p->info);
    const bool wide_grey = type == PNG_COLOR_TYPE_GRAY && depth == 16;
    p->st = clt_image_set_size(out, p->what, png_get_image_width(png, p->info),
                               png_get_image_height(png, p->info), max_pixels);
    if (p->st != CLT_OK) png_longjmp(png, 1);
    ask_for_rgb(png, depth, type);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, p->info);
    const size_t stride = 3 * (size_t)out->width;
    if (png_get_rowbytes(png, p->info) != (size_t)out->width * (wide_grey ? 2 : 3))
        png_error(png, "unexpected size of a row");
    for (int k = 0; k < passes; k++)
        for (int64_t y = 0; y < out->height; y++) png_read_row(png, out->rgb + (size_t)y * stride, NULL);
    for (int64_t y = 0; y < out->height && wide_grey; y++)
        clip_grey(out->rgb + (size_t)y * stride, out->width);
}

/* The decoder is not this function's, whose own objects a jump may leave undefined. */
static void decode_or_jump(decoder *p, int64_t max_pixels, clt_image *out) {
    if (setjmp(png_jmpbuf(p->png)) == 0) decode(p, max_pixels, out);
}

clt_status clt_image_png(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                         clt_image *out) {
    decoder p = {.at = data, .left = bytes, .what = what};
    p.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &p, fail, warn);
    p.info = p.png ? png_create_info_struct(p.png) : NULL;
    if (!p.info) {
        png_destroy_read_struct(&p.png, NULL, NULL);
        return clt_no_memory(what, 0);
    }
    decode_or_jump(&p, max_pixels, out);
    png_destroy_read_struct(&p.png, &p.info, NULL);
    return p.st;
}
