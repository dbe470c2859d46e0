/* Hostile files of the AWS tools: any bytes. Keys and values that are given are trimmed, and errors name a
 * line.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_s3_ini.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_s3_ini FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>

#include "runtime/object/clt_s3_config.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    clt_error_quiet(true);
    return 0;
}

static void must(bool holds) {
    if (!holds) abort();
}

static clt_status take(void *ctx, const char *section, const char *key, const char *value, int line) {
    int *last = ctx;
    must(*key && *key != ' ' && *value != ' ' && strlen(section) < 256 && line > *last);
    *last = line;
    return CLT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int last = 0;
    if (clt_ini_parse("file", (const char *)data, size, take, &last) != CLT_OK)
        must(strncmp(clt_last_error(), "file:", 5) == 0 || size > 1 << 20);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "[]=#; \t\r\n\nprofile default aws_"
#include "test/fuzz/replay.h"
#endif
