/* The operations of RandAugment: for every level and sign the bytes that Pillow makes
 * (test/golden/vit/images, make_randaugment.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/data/image/clt_image_augment.h"
#include "test/golden_util.h"

typedef struct {
    const char *kind;
    int64_t width, height;
    uint8_t *rgb;
} picture;

static size_t bytes_of(const picture *p) {
    return 3 * (size_t)p->width * (size_t)p->height;
}

/* As make_randaugment.py's function of this name. */
static void make(picture *p) {
    uint32_t x = 1;
    uint8_t *out = p->rgb = clt_malloc(bytes_of(p));
    for (int64_t j = 0; j < p->height; j++)
        for (int64_t i = 0; i < p->width; i++) {
            const int64_t smooth[] = {60 + i * 120 / p->width, i * j % 251,
                                      (i * i + 3 * j * j) / p->width % 256},
                          flat[] = {77, i < 5 ? 10 : 200, i + j};
            for (int c = 0; c < 3; c++) {
                x = x * 1664525u + 1013904223u;
                *out++ = (uint8_t)(strcmp(p->kind, "noise") == 0    ? x >> 24
                                   : strcmp(p->kind, "smooth") == 0 ? smooth[c]
                                                                    : flat[c]);
            }
        }
}

/* The digest of an operation's results for all levels. */
static void digest(const picture *p, clt_augment op, char hex[65]) {
    enum { LEVELS = CLT_AUGMENT_MOST_LEVEL + 1 };
    const bool is_signed = op >= CLT_AUGMENT_SHEAR_X && op <= CLT_AUGMENT_SHARPNESS;
    const int signs = is_signed ? 2 : 1;
    const size_t n = bytes_of(p);
    uint8_t *all = clt_malloc((size_t)(LEVELS * signs) * n), *other = clt_malloc(n);
    for (int i = 0; i < LEVELS * signs; i++) {
        const clt_augment_step s = {op, i / signs, i % signs != 0};
        memcpy(all + (size_t)i * n, p->rgb, n);
        clt_image_augment(&s, p->width, p->height, all + (size_t)i * n, other);
    }
    golden_sha256(all, (size_t)(LEVELS * signs) * n, hex);
    clt_free(all);
    clt_free(other);
}

static void operations_have_pillows_bytes(void **state) {
    (void)state;
    json_t *all = golden_load("test/golden/vit/images/randaugment.json"), *row;
    size_t i;
    int compared = 0, wrong = 0;
    json_array_foreach(json_object_get(all, "pictures"), i, row) {
        picture p = {golden_str(row, "kind"), json_integer_value(json_object_get(row, "width")),
                     json_integer_value(json_object_get(row, "height")), NULL};
        json_t *want = json_object_get(row, "sha256");
        make(&p);
        for (int op = 0; op < CLT_AUGMENTS; op++) {
            char hex[65];
            const char *name = clt_augment_name((clt_augment)op), *sum = golden_str(want, name);
            digest(&p, (clt_augment)op, hex);
            if (!sum || strcmp(hex, sum) != 0) {
                print_error("%s, %s of %lld x %lld: other bytes\n", name, p.kind, (long long)p.width,
                            (long long)p.height);
                wrong++;
            }
            compared++;
        }
        clt_free(p.rgb);
    }
    json_decref(all);
    assert_int_equal(compared, 5 * CLT_AUGMENTS);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(operations_have_pillows_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
