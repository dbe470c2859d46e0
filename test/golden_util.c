#include "golden_util.h"

#include <openssl/evp.h>
#include <stdlib.h>

#include "runtime/base/clt_base.h"

json_t *golden_load(const char *path) {
    json_error_t e;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!j) {
        fprintf(stderr, "%s:%d: %s\n", path, e.line, e.text);
        exit(1);
    }
    return j;
}

int64_t golden_int(json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

int64_t golden_int_or(json_t *o, const char *key, int64_t fallback) {
    json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : fallback;
}

const char *golden_str(json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

int64_t *golden_ints(json_t *list, size_t *n) {
    *n = json_array_size(list);
    int64_t *v = clt_calloc(*n + 1, sizeof *v);
    for (size_t i = 0; i < *n; i++) v[i] = json_integer_value(json_array_get(list, i));
    return v;
}

void golden_sha256(const void *data, size_t bytes, char hex[65]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_Digest(data, bytes, digest, &n, EVP_sha256(), NULL);
    for (unsigned i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}
