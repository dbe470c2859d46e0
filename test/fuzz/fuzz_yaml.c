/* Hostile configurations: any bytes through the YAML reader, the references, the key tables and the printer.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_yaml.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_yaml FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_yaml *y;
    if (clt_yaml_parse((const char *)data, size, "fuzz", &y) != CLT_OK) return 0;
    json_t *v = NULL;
    if (clt_yaml_interpolate(y) == CLT_OK && clt_yaml_to_json(y, &v) == CLT_OK) {
        clt_str out = {0};
        clt_yaml_dump(v, &(clt_yaml_style){.sort = true}, &out);
        clt_str_free(&out);
        clt_model_config *m = NULL;
        if (clt_model_config_from_json(json_object_get(v, "model"), false, "fuzz", &m) == CLT_OK)
            json_decref(clt_model_config_to_json(m));
        clt_model_config_free(m);
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
#define FUZZ_ALPHABET "${}[]:,#&*!-'\"\\.0e9\n \t~<>|%@`"
#include "test/fuzz/replay.h"
#endif
