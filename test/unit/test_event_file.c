/* TensorBoard's records, byte for byte, against files of its own writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/sink/clt_event_file.h"
#include "test/test_util.h"

static void checksums_are_castagnoli(void **state) {
    (void)state;
    static const uint8_t zeros[32];
    assert_int_equal(clt_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(clt_crc32c("", 0), 0);
    assert_int_equal(clt_crc32c(zeros, sizeof zeros), 0x8a9136aa); /* RFC 3720 B.4 */
}

static void assert_bytes(const clt_str *b, const char *hex) {
    clt_str text = {0};
    for (size_t i = 0; i < b->len; i++) clt_str_addf(&text, "%02x", (uint8_t)b->s[i]);
    assert_string_equal(text.s, hex);
    clt_str_free(&text);
}

static void records_are_those_of_tensorboard(void **state) {
    (void)state;
    clt_str b = {0};
    clt_metrics m = {0};
    clt_event_add_version(&b, 1.0);
    assert_bytes(&b, "1800000000000000a37f4b22"
                     "09000000000000f03f1a0d627261696e2e4576656e743a32"
                     "86bf577a");
    clt_str_free(&b);
    clt_metrics_add(&m, "%g", 1.5, "loss");
    clt_event_add_scalars(&b, 2.0, 7, &m);
    assert_bytes(&b, "1a00000000000000129bd82d"
                     "09000000000000004010072a0d0a0b0a046c6f7373150000c03f"
                     "1b484874");
    clt_str_free(&b);
    clt_metrics_free(&m);
}

/* Steps above 127 and texts above 127 bytes have lengths of several bytes. */
static void long_numbers_are_varints(void **state) {
    (void)state;
    clt_str b = {0};
    clt_metrics m = {0};
    char name[201];
    memset(name, 'n', 200);
    name[200] = 0;
    clt_metrics_add(&m, "%g", 0, "%s", name);
    clt_event_add_scalars(&b, 0, 300, &m);
    const uint8_t *event = (const uint8_t *)b.s + 12;
    assert_memory_equal(event + 9, ((uint8_t[]){0x10, 0xac, 0x02, 0x2a, 0xd3, 0x01, 0x0a, 0xd0, 0x01}), 9);
    assert_memory_equal(event + 18, ((uint8_t[]){0x0a, 0xc8, 0x01, 'n'}), 4);
    clt_str_free(&b);
    clt_metrics_free(&m);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_castagnoli),
        cmocka_unit_test(records_are_those_of_tensorboard),
        cmocka_unit_test(long_numbers_are_varints),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
