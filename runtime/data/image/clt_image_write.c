#include "runtime/data/image/clt_image_write.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

static void put_be32(uint8_t *to, uint32_t v) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* A chunk: length, kind, data, and the checksum of kind and data. */
static void add_chunk(clt_str *out, const char *kind, const uint8_t *data, size_t bytes) {
    uint8_t head[8], tail[4];
    put_be32(head, (uint32_t)bytes);
    memcpy(head + 4, kind, 4);
    uLong crc = crc32(crc32(0, NULL, 0), head + 4, 4);
    if (bytes) crc = crc32(crc, data, (uInt)bytes);
    put_be32(tail, (uint32_t)crc);
    clt_str_addn(out, (const char *)head, sizeof head);
    if (bytes) clt_str_addn(out, (const char *)data, bytes);
    clt_str_addn(out, (const char *)tail, sizeof tail);
}

clt_status clt_image_write_png(const uint8_t *rgb, int64_t width, int64_t height, clt_str *out) {
    enum { HEAD = 13, CHUNKS = 3 * 12 + 8 };
    const size_t row = 3 * (size_t)width, bytes = (row + 1) * (size_t)height;
    uLong packed = compressBound((uLong)bytes);
    uint8_t *lines = clt_try_malloc(bytes), *data = clt_try_malloc(packed);
    bool ok = lines && data && clt_str_try_reserve(out, packed + HEAD + CHUNKS);
    for (int64_t y = 0; y < height && ok; y++) {
        uint8_t *line = lines + (row + 1) * (size_t)y;
        const uint8_t *from = rgb + row * (size_t)y;
        *line = 1; /* filter Sub: differences to the pixel at the left */
        for (size_t i = 0; i < row; i++) line[1 + i] = (uint8_t)(from[i] - (i < 3 ? 0 : from[i - 3]));
    }
    ok = ok && compress2(data, &packed, lines, (uLong)bytes, Z_BEST_COMPRESSION) == Z_OK;
    if (!ok) { /* zlib has room: it lacks memory */
        clt_free(lines);
        clt_free(data);
        return clt_no_memory("a PNG", bytes + packed);
    }
    uint8_t head[HEAD] = {0};
    put_be32(head, (uint32_t)width);
    put_be32(head + 4, (uint32_t)height);
    head[8] = 8; /* bits */
    head[9] = 2; /* RGB */
    clt_str_addn(out, "\x89PNG\r\n\x1a\n", 8);
    add_chunk(out, "IHDR", head, HEAD);
    add_chunk(out, "IDAT", data, packed);
    add_chunk(out, "IEND", NULL, 0);
    clt_free(lines);
    clt_free(data);
    return CLT_OK;
}

void clt_image_to_rgb(const float *pixels, int64_t size, int64_t block, const double mean[3],
                      const double std[3], uint8_t *rgb) {
    const int64_t side = size / block;
    for (int64_t i = 0; i < 3 * side * side; i++) {
        const int64_t c = i % 3, x = i / 3 % side * block, y = i / 3 / side * block;
        double sum = 0;
        for (int64_t k = 0; k < block * block; k++)
            sum += (double)pixels[(c * size + y + k / block) * size + x + k % block];
        const double v = 255 * (sum / (double)(block * block) * std[c] + mean[c]);
        rgb[i] = (uint8_t)lround(fmin(fmax(v, 0), 255));
    }
}
