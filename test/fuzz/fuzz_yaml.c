/* Hostile configurations: any bytes through the YAML reader, the references, the key tables and the printer.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_yaml.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_yaml FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_philox.h"
#include "runtime/train/clt_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_yaml *y;
    if (clt_yaml_parse((const char *)data, size, "fuzz", &y) != CLT_OK) return 0;
    json_t *v = NULL;
    if (clt_yaml_interpolate(y) == CLT_OK && clt_yaml_to_json(y, &v) == CLT_OK) {
        clt_str out = {0};
        clt_yaml_dump(v, &(clt_yaml_style){.sort = true}, &out);
        clt_str_free(&out);
        clt_mpt_config *m = clt_malloc(sizeof *m);
        if (clt_mpt_config_from_json(json_object_get(v, "model"), false, NULL, NULL, m) == CLT_OK)
            json_decref(clt_mpt_config_to_json(m));
        clt_free(m);
        json_decref(v);
    }
    clt_yaml_free(y);
    static char path[] = "/tmp/clt_fuzz_yaml_XXXXXX";
    int fd = mkstemp(path);
    clt_config *c;
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0) abort();
    if (clt_config_load(path, NULL, 0, &c) == CLT_OK) clt_config_free(c);
    unlink(path);
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    return 0;
}

#ifdef FUZZ_REPLAY
/* Mutation k of a text: a few bytes replaced, cut out or doubled, decided by counter-based random numbers. */
static size_t mutate(char *buf, size_t n, size_t cap, uint32_t k) {
    static const char interesting[] = "${}[]:,#&*!-'\"\\.0e9\n \t~<>|%@`";
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
    if (!freopen("/dev/null", "w", stderr)) return 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            if (!clt_parse_i64(argv[++i], &mutations)) return 2;
            continue;
        }
        char *text;
        size_t n;
        if (clt_io_read_all(argv[i], 1 << 20, &text, &n) != CLT_OK) return 1;
        char *buf = clt_malloc(2 * n + 4096);
        for (int64_t k = 0; k <= mutations; k++, done++) {
            memcpy(buf, text, n);
            size_t size = k ? mutate(buf, n, 2 * n + 4096, (uint32_t)k) : n;
            LLVMFuzzerTestOneInput((const uint8_t *)buf, size);
        }
        clt_free(buf);
        clt_free(text);
    }
    printf("%lld inputs\n", (long long)done);
    return done > 0 ? 0 : 1;
}
#endif
