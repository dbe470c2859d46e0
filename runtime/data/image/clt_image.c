#include "runtime/data/image/clt_image.h"

#include <string.h>

clt_status clt_image_set_size(clt_image *m, const char *what, int64_t width, int64_t height,
                              int64_t max_pixels) {
    if (width < 1 || height < 1)
        return clt_error(CLT_BAD_DATA, "%s: a picture of width %lld and height %lld", what, (long long)width,
                         (long long)height);
    if (width > max_pixels / height)
        return clt_error(
            CLT_BAD_DATA,
            "%s: width %lld and height %lld are above the limit of %lld pixels; if such pictures "
            "are meant to be read, raise dataset.max_image_pixels",
            what, (long long)width, (long long)height, (long long)max_pixels);
    const size_t need = 3 * (size_t)width * (size_t)height;
    if (need > m->bytes) {
        clt_image_free(m);
        m->rgb = clt_try_malloc(need);
        if (!m->rgb) return clt_no_memory(what, need);
        m->bytes = need;
    }
    m->width = width;
    m->height = height;
    return CLT_OK;
}

void clt_image_free(clt_image *m) {
    clt_free(m->rgb);
    *m = (clt_image){0};
}

void clt_image_spread_grey(uint8_t *row, int64_t n) {
    for (int64_t i = n - 1; i >= 0; i--) {
        const uint8_t v = row[i];
        row[3 * i] = row[3 * i + 1] = row[3 * i + 2] = v;
    }
}

void clt_image_cmyk(const uint8_t cmyk[4], uint8_t rgb[3]) {
    const unsigned light = 255u - cmyk[3];
    for (int c = 0; c < 3; c++) {
        const unsigned t = light * cmyk[c] + 128;
        rgb[c] = (uint8_t)(light - ((t + (t >> 8)) >> 8)); /* light * (255 - cmyk[c]) / 255, rounded */
    }
}

/* --- raw pixels --- */

static void read_packed(const uint8_t *in, int64_t n, uint8_t *row) {
    for (int64_t i = 0; i < n; i++)
        row[3 * i] = row[3 * i + 1] = row[3 * i + 2] = in[i / 8] & (0x80 >> (i % 8)) ? 255 : 0;
}
static void read_grey(const uint8_t *in, int64_t n, uint8_t *row) {
    memcpy(row, in, (size_t)n);
    clt_image_spread_grey(row, n);
}
static void read_grey_alpha(const uint8_t *in, int64_t n, uint8_t *row) {
    for (int64_t i = 0; i < n; i++) row[3 * i] = row[3 * i + 1] = row[3 * i + 2] = in[2 * i];
}
static void read_rgb(const uint8_t *in, int64_t n, uint8_t *row) {
    memcpy(row, in, 3 * (size_t)n);
}
static void read_rgb_alpha(const uint8_t *in, int64_t n, uint8_t *row) {
    for (int64_t i = 0; i < n; i++) memcpy(row + 3 * i, in + 4 * i, 3);
}
static void read_cmyk(const uint8_t *in, int64_t n, uint8_t *row) {
    for (int64_t i = 0; i < n; i++) clt_image_cmyk(in + 4 * i, row + 3 * i);
}

/* Pillow's modes whose pixels say everything; P needs a palette, which the encoding does not keep. */
static const struct {
    const char *name;
    int bits; /* of a pixel */
    void (*read)(const uint8_t *in, int64_t n, uint8_t *row);
} modes[] = {{"1", 1, read_packed},  {"L", 8, read_grey},          {"LA", 16, read_grey_alpha},
             {"RGB", 24, read_rgb},  {"RGBA", 32, read_rgb_alpha}, {"RGBX", 32, read_rgb_alpha},
             {"CMYK", 32, read_cmyk}};

clt_status clt_image_pil(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                         clt_image *out) {
    uint32_t head[3]; /* little-endian, like the host */
    const uint8_t *in = data;
    if (bytes < sizeof head) return clt_error(CLT_BAD_DATA, "%s: the header of the pixels ends early", what);
    memcpy(head, in, sizeof head);
    in += sizeof head;
    bytes -= sizeof head;
    if (head[2] > bytes) return clt_error(CLT_BAD_DATA, "%s: the header of the pixels ends early", what);
    size_t k = 0;
    while (k < CLT_COUNT_OF(modes) &&
           !(strlen(modes[k].name) == head[2] && memcmp(modes[k].name, in, head[2]) == 0))
        k++;
    if (k == CLT_COUNT_OF(modes))
        return clt_error(CLT_BAD_DATA,
                         "%s: pixels of Pillow's mode '%.*s' cannot be read; known are 1, L, LA, RGB, RGBA, "
                         "RGBX and CMYK",
                         what, (int)CLT_MIN(head[2], 16), (const char *)in);
    in += head[2];
    bytes -= head[2];
    CLT_TRY(clt_image_set_size(out, what, head[0], head[1], max_pixels));
    const size_t row = ((size_t)head[0] * (size_t)modes[k].bits + 7) / 8;
    if (bytes != row * head[1])
        return clt_error(CLT_BAD_DATA, "%s: %zu bytes of pixels, %u x %u of mode %s need %zu", what, bytes,
                         head[0], head[1], modes[k].name, row * head[1]);
    for (int64_t y = 0; y < out->height; y++)
        modes[k].read(in + (size_t)y * row, out->width, out->rgb + 3 * (size_t)(y * out->width));
    return CLT_OK;
}

clt_status clt_image_decode(const char *what, clt_image_form form, const void *data, size_t bytes,
                            int64_t max_pixels, clt_image *out) {
    static const uint8_t jpeg[] = {0xff, 0xd8}, png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (form == CLT_IMAGE_PIL) return clt_image_pil(what, data, bytes, max_pixels, out);
    if (bytes == 0) return clt_error(CLT_BAD_DATA, "%s is empty, not a picture", what);
    if (bytes >= sizeof jpeg && memcmp(data, jpeg, sizeof jpeg) == 0)
        return clt_image_jpeg(what, data, bytes, max_pixels, out);
    if (bytes >= sizeof png && memcmp(data, png, sizeof png) == 0)
        return clt_image_png(what, data, bytes, max_pixels, out);
    return clt_error(CLT_BAD_DATA, "%s is neither a JPEG nor a PNG", what);
}
