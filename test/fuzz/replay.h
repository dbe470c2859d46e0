/* The main of a fuzz target that is built without a fuzzer (-DFUZZ_REPLAY):
 *     fuzz_X [-n N] FILE ...
 * passes each file to LLVMFuzzerTestOneInput, and then N mutations of it, which are the same in every run.
 * Define FUZZ_ALPHABET before the include: bytes with a meaning in the format. */
#ifndef FUZZ_REPLAY_H
#define FUZZ_REPLAY_H

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_philox.h"

/* Mutation k of a text: a few bytes are replaced, removed or doubled, by counter-based random numbers. */
static size_t fuzz_mutate(char *buf, size_t n, size_t cap, uint32_t k) {
    static const char interesting[] = FUZZ_ALPHABET;
    uint32_t r[4];
    for (uint32_t i = 0; i < 1 + k % 4 && n > 0; i++) {
        clt_philox4x32((uint32_t[4]){k, i, 0, 0}, (uint32_t[2]){17, 0}, r);
        size_t at = r[0] % n, len = 1 + r[1] % 40;
        len = CLT_MIN(len, n - at);
        if (r[2] % 3 == 0) {
            buf[at] = r[3] % 4 ? interesting[r[3] / 4 % (sizeof interesting - 1)] : (char)(r[3] >> 8);
        } else if (r[2] % 3 == 1) {
            memmove(buf + at, buf + at + len, n - at - len);
            n -= len;
        } else if (n + len <= cap) {
            memmove(buf + at + len, buf + at, n - at);
            n += len;
        }
    }
    return n;
}

int main(int argc, char **argv) {
    int64_t mutations = 0, done = 0;
    clt_log_set_level(CLT_LOG_ERROR);
    clt_error_quiet(true);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            if (!clt_parse_i64(argv[++i], &mutations)) return 2;
            continue;
        }
        char *text;
        size_t n;
        if (clt_io_read_all(argv[i], 1 << 22, &text, &n) != CLT_OK) return 1;
        for (int64_t k = 0; k <= mutations; k++, done++) {
            /* A block of the exact size, so that a sanitizer sees a read past its end. */
            size_t cap = 2 * n + 4096, size = n;
            char *buf = clt_malloc(cap);
            memcpy(buf, text, n);
            if (k) size = fuzz_mutate(buf, n, cap, (uint32_t)k);
            buf = clt_realloc(buf, size);
            LLVMFuzzerTestOneInput((const uint8_t *)buf, size);
            clt_free(buf);
        }
        clt_free(text);
    }
    printf("%lld inputs\n", (long long)done);
    return done > 0 ? 0 : 1;
}

#endif
