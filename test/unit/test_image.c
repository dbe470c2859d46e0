/* Pictures: every file of test/golden/vit/images decodes to Pillow's bytes, damaged and hostile ones get
 * their verdicts, and libraries neither print nor end the process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/data/image/clt_image.h"
#include "test/golden_util.h"

#define DIR "test/golden/vit/images/"

static char *read_file(const char *folder, const char *name, size_t *n) {
    char *path = clt_format(DIR "%s/%s", folder, name), *data;
    assert_int_equal(clt_io_read_all(path, 1 << 20, &data, n), CLT_OK);
    clt_free(path);
    return data;
}

/* In memory of exactly this size, so that a sanitizer sees what is read behind it. */
static clt_status decode(const char *name, const char *data, size_t n, int64_t most, clt_image *m) {
    char *exact = clt_malloc(n ? n : 1);
    memcpy(exact, data, n);
    const clt_status st = clt_image_decode(name, CLT_IMAGE_FILE, exact, n, most, m);
    clt_free(exact);
    return st;
}

/* --- good files --- */

static void compare(clt_safetensors *all, const char *name, const clt_image *m) {
    const int i = clt_safetensors_find(all, name);
    if (i < 0) fail_msg("decoded.safetensors has no %s", name);
    const clt_st_tensor *t = clt_safetensors_at(all, i);
    const size_t bytes = 3 * (size_t)m->width * (size_t)m->height;
    if (t->dims != 3 || t->shape[0] != (uint64_t)m->height || t->shape[1] != (uint64_t)m->width)
        fail_msg("%s: wrong size %lld x %lld", name, (long long)m->width, (long long)m->height);
    uint8_t *want = clt_malloc(bytes);
    assert_int_equal(clt_safetensors_read(all, i, 0, want, bytes), CLT_OK);
    for (size_t k = 0; k < bytes; k++)
        if (want[k] != m->rgb[k]) fail_msg("%s: byte %zu is %d, Pillow's is %d", name, k, m->rgb[k], want[k]);
    clt_free(want);
}

static void good_files_decode_to_pillows_bytes(void **state) {
    (void)state;
    json_t *all = golden_load(DIR "images.json"), *files = json_object_get(all, "files");
    clt_safetensors *s;
    clt_image m = {0};
    assert_int_equal(clt_safetensors_open(DIR "decoded.safetensors", &s), CLT_OK);
    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *name = golden_str(json_array_get(files, i), "file");
        size_t n;
        char *data = read_file("files", name, &n);
        assert_int_equal(decode(name, data, n, CLT_IMAGE_PIXELS_MOST, &m), CLT_OK);
        compare(s, name, &m);
        clt_free(data);
    }
    assert_true(json_array_size(files) >= 25);
    clt_image_free(&m);
    clt_safetensors_close(s);
    json_decref(all);
}

/* --- bad files --- */

/* What the message must have, beside the file's name. */
static const struct {
    const char *file, *text;
} reasons[] = {
    {"truncated.jpg", "JPEG data end early"},
    {"truncated_header.jpg", "JPEG header ends early"},
    {"truncated_progressive.jpg", "JPEG data end early"},
    {"truncated.png", "PNG data end early"},
    {"bomb_65500.jpg", "width 65500 and height 65500 are above the limit"},
    {"bomb_12000.jpg", "width 12000 and height 12000 are above the limit"},
    {"bomb_50000.png", "width 50000 and height 50000 are above the limit"},
    {"bomb_max.png", "above the limit"},
    {"zero_width.png", "width is zero"},
    {"zero_height.jpg", "Empty JPEG image"},
    {"crc.png", "CRC error"},
    {"short_idat.png", "Not enough image data"},
    {"palette_missing.png", "Missing PLTE"},
    {"no_quant.jpg", "Quantization table"},
    {"empty.jpg", "is empty"},
    {"text.jpg", "neither a JPEG nor a PNG"},
};

static void check_reason(const char *name) {
    const char *said = clt_last_error();
    if (!strstr(said, name)) fail_msg("the message does not name %s: %s", name, said);
    for (size_t i = 0; i < CLT_COUNT_OF(reasons); i++)
        if (strcmp(reasons[i].file, name) == 0 && !strcasestr(said, reasons[i].text))
            fail_msg("%s: \"%s\" is not in: %s", name, reasons[i].text, said);
}

static void bad_files_get_their_verdicts(void **state) {
    (void)state;
    json_t *all = golden_load(DIR "images.json"), *bad = json_object_get(all, "bad");
    clt_image m = {0};
    clt_error_quiet(true);
    for (size_t i = 0; i < json_array_size(bad); i++) {
        json_t *o = json_array_get(bad, i);
        const char *name = golden_str(o, "file"), *verdict = golden_str(o, "verdict"),
                   *sum = golden_str(o, "sha256_rgb");
        size_t n;
        char *data = read_file("bad", name, &n), hex[65];
        const clt_status st = decode(name, data, n, CLT_IMAGE_PIXELS_MOST, &m);
        if (strcmp(verdict, "reject") == 0 && st == CLT_OK) fail_msg("%s was read", name);
        if (strcmp(verdict, "accept") == 0 && st != CLT_OK) fail_msg("%s: %s", name, clt_last_error());
        if (st != CLT_OK) {
            assert_int_equal(st, CLT_BAD_DATA);
            check_reason(name);
        } else if (sum) {
            golden_sha256(m.rgb, 3 * (size_t)(m.width * m.height), hex);
            if (strcmp(hex, sum) != 0) fail_msg("%s: read, but not as Pillow reads it", name);
        }
        print_message("%s: %s\n", name, st == CLT_OK ? "read" : "refused");
        clt_free(data);
    }
    assert_true(json_array_size(bad) >= 26);
    clt_error_quiet(false);
    clt_image_free(&m);
    json_decref(all);
}

/* Refused before anything of its size is allocated; the limit itself is allowed. */
static void limit_of_pixels_is_the_callers(void **state) {
    (void)state;
    static const char *const names[] = {"rgb_420.jpeg", "rgb.png"};
    clt_image m = {0};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        size_t n;
        char *data = read_file("files", names[i], &n);
        assert_int_equal(decode(names[i], data, n, CLT_IMAGE_PIXELS_MOST, &m), CLT_OK);
        const int64_t pixels = m.width * m.height;
        clt_image_free(&m);
        clt_error_quiet(true);
        assert_int_equal(decode(names[i], data, n, pixels - 1, &m), CLT_BAD_DATA);
        clt_error_quiet(false);
        assert_null(m.rgb);
        assert_int_equal(decode(names[i], data, n, pixels, &m), CLT_OK);
        clt_image_free(&m);
        clt_free(data);
    }
}

/* No prefix of a good file is read as a whole picture, but for those that lack only what follows the pixels.
 */
static void every_prefix_is_refused_or_whole(void **state) {
    (void)state;
    static const char *const names[] = {"rgb_420_odd.jpg", "progressive_420.jpg", "palette_trns.png",
                                        "interlaced.png", "cmyk.jpg"};
    clt_image m = {0}, whole = {0};
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        size_t n, read = 0;
        char *data = read_file("files", names[i], &n);
        assert_int_equal(decode(names[i], data, n, CLT_IMAGE_PIXELS_MOST, &whole), CLT_OK);
        for (size_t k = 0; k < n; k += 1 + (n - k > 200) * 6) {
            if (decode(names[i], data, k, CLT_IMAGE_PIXELS_MOST, &m) != CLT_OK) continue;
            read++;
            assert_memory_equal(m.rgb, whole.rgb, 3 * (size_t)(m.width * m.height));
        }
        if (read > 80) fail_msg("%s: %zu prefixes were read", names[i], read);
        clt_free(data);
    }
    clt_error_quiet(false);
    clt_image_free(&m);
    clt_image_free(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files_decode_to_pillows_bytes),
        cmocka_unit_test(bad_files_get_their_verdicts),
        cmocka_unit_test(limit_of_pixels_is_the_callers),
        cmocka_unit_test(every_prefix_is_refused_or_whole),
    };
    if (clt_image_check_build() != CLT_OK) return 0; /* built with IMAGES=0 */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
