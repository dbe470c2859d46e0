/* JPEG through libjpeg-turbo. Its error handler is replaced: a fatal error jumps back to the caller, with the
 * library's text; warnings print nothing. Files with warnings are read as Pillow reads them, except where
 * data are missing. */
#include <setjmp.h>
#include <string.h>

#include "runtime/data/image/clt_image.h"

#include <jerror.h>
#include <jpeglib.h>

/* More scans than this take time and improve nothing; encoders write about ten. */
enum { MOST_SCANS = 256 };

typedef struct {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    clt_status st; /* what was reported */
    const char *what;
    bool header; /* has been read */
    JSAMPLE *wide;
} decoder;

static decoder *of(void *common) {
    return ((j_common_ptr)common)->client_data;
}

/* --- callbacks --- */

/* Does not return. */
static void fail(j_common_ptr c) {
    decoder *j = of(c);
    if (j->st == CLT_OK) {
        char text[JMSG_LENGTH_MAX];
        c->err->format_message(c, text);
        j->st = c->err->msg_code == JERR_OUT_OF_MEMORY
                    ? clt_no_memory(j->what, 0)
                    : clt_error(CLT_BAD_DATA, "%s: invalid or unsupported JPEG: %s", j->what, text);
    }
    longjmp(j->failed, 1);
}

static void fail_early(j_common_ptr c) {
    decoder *j = of(c);
    j->st = clt_error(CLT_BAD_DATA, "%s: the JPEG %s early", j->what, j->header ? "data end" : "header ends");
    longjmp(j->failed, 1);
}

static void take_message(j_common_ptr c, int level) {
    if (level < 0 && c->err->msg_code == JWRN_HIT_MARKER) fail_early(c);
}
static void print_nothing(j_common_ptr c) {
    (void)c;
}
static boolean no_more(j_decompress_ptr d) {
    fail_early((j_common_ptr)d);
    return FALSE;
}
static void source_nothing(j_decompress_ptr d) {
    (void)d;
}
static void skip(j_decompress_ptr d, long n) {
    if (n <= 0) return;
    if ((size_t)n > d->src->bytes_in_buffer) fail_early((j_common_ptr)d);
    d->src->next_input_byte += n;
    d->src->bytes_in_buffer -= (size_t)n;
}
static void count_scans(j_common_ptr c) {
    decoder *j = of(c);
    if (j->d.input_scan_number <= MOST_SCANS) return;
    j->st = clt_error(CLT_BAD_DATA, "%s: the JPEG has more than %d scans", j->what, MOST_SCANS);
    longjmp(j->failed, 1);
}

/* --- pixels --- */

/* Photoshop stores inverted values, which all readers expect. */
static void read_cmyk_row(decoder *j, uint8_t *row) {
    JSAMPROW wide = j->wide;
    jpeg_read_scanlines(&j->d, &wide, 1);
    for (JDIMENSION x = 0; x < j->d.output_width; x++) {
        uint8_t cmyk[4];
        for (int c = 0; c < 4; c++) cmyk[c] = (uint8_t)(255 - wide[4 * x + (JDIMENSION)c]);
        clt_image_cmyk(cmyk, row + 3 * x);
    }
}

static void decode(decoder *j, const void *data, size_t bytes, int64_t max_pixels, clt_image *out) {
    struct jpeg_decompress_struct *d = &j->d;
    jpeg_create_decompress(d);
    j->source = (struct jpeg_source_mgr){.next_input_byte = data,
                                         .bytes_in_buffer = bytes,
                                         .init_source = source_nothing,
                                         .fill_input_buffer = no_more,
                                         .skip_input_data = skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = source_nothing};
    j->progress.progress_monitor = count_scans;
    d->src = &j->source;
    d->progress = &j->progress;
    jpeg_read_header(d, TRUE);
    j->header = true;
    const bool cmyk = d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK;
    j->st = clt_image_set_size(out, j->what, d->image_width, d->image_height, max_pixels);
    if (j->st != CLT_OK) longjmp(j->failed, 1);
    d->out_color_space = cmyk ? JCS_CMYK : d->num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    d->dct_method = JDCT_ISLOW;
    d->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(d);
    if (cmyk) j->wide = d->mem->alloc_large((j_common_ptr)d, JPOOL_IMAGE, 4 * (size_t)d->output_width);
    while (d->output_scanline < d->output_height) {
        JSAMPROW row = out->rgb + 3 * (size_t)d->output_scanline * d->output_width;
        if (cmyk)
            read_cmyk_row(j, row);
        else
            jpeg_read_scanlines(d, &row, 1);
        if (d->out_color_space == JCS_GRAYSCALE) clt_image_spread_grey(row, d->output_width);
    }
}

/* The decoder is not this function's, whose own objects a jump may leave undefined. */
static void decode_or_jump(decoder *j, const void *data, size_t bytes, int64_t max_pixels, clt_image *out) {
    if (setjmp(j->failed) == 0) decode(j, data, bytes, max_pixels, out);
}

clt_status clt_image_check_build(void) {
    return CLT_OK;
}

clt_status clt_image_jpeg(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                          clt_image *out) {
    decoder j = {.what = what};
    j.d.err = jpeg_std_error(&j.errors);
    j.d.client_data = &j;
    j.errors.error_exit = fail;
    j.errors.emit_message = take_message;
    j.errors.output_message = print_nothing;
    decode_or_jump(&j, data, bytes, max_pixels, out);
    jpeg_destroy_decompress(&j.d);
    return j.st;
}
