/* golden_util: reading of the golden data under test/golden (tests run from the repository's root). */
#ifndef CLT_TEST_GOLDEN_UTIL_H
#define CLT_TEST_GOLDEN_UTIL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* The parsed file; ends the test with a message if it is absent or not JSON. The caller owns it. */
json_t *golden_load(const char *path);
int64_t golden_int(json_t *o, const char *key);
/* `fallback` where the key is absent or null. */
int64_t golden_int_or(json_t *o, const char *key, int64_t fallback);
const char *golden_str(json_t *o, const char *key); /* NULL if absent or null */
/* A list of integers as int64 (clt_free). */
int64_t *golden_ints(json_t *list, size_t *n);
/* Lower-case hex of the SHA-256 of some bytes. */
void golden_sha256(const void *data, size_t bytes, char hex[65]);

#endif
