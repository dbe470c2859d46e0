/* Hostile pictures: any bytes as JPEG or PNG, as they are and with the checksums of PNG chunks corrected, and
 * as raw pixels of Streaming's `pil`. What is decoded is within the limit of pixels, and all of its bytes are
 * there; a transform of it gives finite numbers.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_image.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_image FILE ... feeds each file, and then `-n N` mutations of each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime/data/image/clt_image_transform.h"

enum { FUZZ_PIXELS = 1 << 18, FUZZ_SIZE = 9 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_must(bool holds) {
    if (!holds) abort();
}

static void fuzz_transform(const clt_image *m) {
    clt_image_transform t;
    clt_image_work w = {0};
    float out[3 * FUZZ_SIZE * FUZZ_SIZE];
    clt_image_transform_default(&t);
    t.size = FUZZ_SIZE;
    t.random_crop = m->width % 2;
    fuzz_must(clt_image_apply(&t, m, 0, m->height, &w, out) == CLT_OK);
    for (int i = 0; i < 3 * FUZZ_SIZE * FUZZ_SIZE; i++) fuzz_must(isfinite(out[i]));
    clt_image_work_free(&w);
}

static void fuzz_decode(clt_image_form form, const uint8_t *data, size_t size) {
    clt_image m = {0};
    const clt_status st = clt_image_decode("input", form, data, size, FUZZ_PIXELS, &m);
    fuzz_must(st == CLT_OK || st == CLT_BAD_DATA || st == CLT_NO_MEMORY);
    if (st == CLT_OK) {
        const size_t bytes = 3 * (size_t)(m.width * m.height);
        fuzz_must(m.width > 0 && m.height > 0 && m.width * m.height <= FUZZ_PIXELS && m.bytes >= bytes);
        fuzz_transform(&m);
    }
    clt_image_free(&m);
}

static uint32_t fuzz_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Makes the checksums of a PNG's chunks right, so that mutations get past them. */
static void fuzz_correct(uint8_t *data, size_t size) {
    enum { SIGNATURE = 8, AROUND = 12 };
    for (size_t at = SIGNATURE; at + AROUND <= size;) {
        const size_t n = fuzz_u32(data + at);
        if (n > size - at - AROUND) return;
        const uint32_t crc = (uint32_t)crc32(0, data + at + 4, (uInt)n + 4);
        for (int i = 0; i < 4; i++) data[at + 8 + n + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
        at += AROUND + n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_error_quiet(true);
    fuzz_decode(CLT_IMAGE_FILE, data, size);
    fuzz_decode(CLT_IMAGE_PIL, data, size);
    if (size > 8 && data[0] == 0x89) {
        uint8_t *copy = clt_memdup(data, size);
        fuzz_correct(copy, size);
        fuzz_decode(CLT_IMAGE_FILE, copy, size);
        clt_free(copy);
    }
    clt_error_quiet(false);
    return 0;
}

#ifdef FUZZ_REPLAY
/* Markers of JPEG, then lengths and flags. */
#define FUZZ_ALPHABET "\xff\xd8\xda\xc0\xc2\xc4\xdb\xdd\xd0\xd9\x01\x02\x7f\x80\x10\x03"
#include "test/fuzz/replay.h"
#endif
