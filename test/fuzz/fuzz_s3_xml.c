/* Hostile responses of an object store: any bytes as the body. What is accepted is complete and within its
 * limits.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_s3_xml.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_s3_xml FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>

#include "runtime/object/clt_s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds) {
    if (!holds) abort();
}

static void check_listing(const char *text, size_t size) {
    clt_s3_listing l = {0};
    if (clt_s3_xml_listing(text, size, &l) == 0) {
        for (size_t i = 0; i < l.n; i++) must(l.objects[i].key && strlen(l.objects[i].key) <= 8192);
        must(!l.truncated || l.next);
    }
    clt_s3_listing_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    clt_s3_error e = {0};
    char *value = NULL;
    check_listing(text, size);
    if (clt_s3_xml_error(text, size, &e))
        for (const char *s = e.message; *s; s++) must((unsigned char)*s >= 0x20);
    if (clt_s3_xml_upload(text, size, &value) == 0) must(*value);
    clt_free(value);
    value = NULL;
    clt_s3_part_sum sum = {0};
    if (clt_s3_xml_part_sum(text, size, &sum) == 0) must(sum.bytes <= INT64_MAX && sum.last >= 0);
    if (clt_s3_xml_complete(text, size, &value, &e) == 0) must(*value);
    clt_free(value);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "<>/&;\"=! %0KeyErorContsLit"
#include "test/fuzz/replay.h"
#endif
