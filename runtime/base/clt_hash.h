/* clt_hash: XXH3-128, the hash of caches, checkpoints and `ckpt hash`. It detects damage, not tampering. */
#ifndef CLT_HASH_H
#define CLT_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t hi, lo;
} clt_hash128;

clt_hash128 clt_hash(const void *data, size_t bytes);

typedef struct clt_hash_state clt_hash_state;
clt_hash_state *clt_hash_begin(void);
void clt_hash_add(clt_hash_state *s, const void *data, size_t bytes);
clt_hash128 clt_hash_end(clt_hash_state *s); /* frees s */

/* Writes 32 lower-case hex digits, hi first, and a terminating 0. */
void clt_hash_hex(clt_hash128 h, char out[33]);
/* Parses such a text; returns 0, or -1 if it is not one. */
int clt_hash_parse(const char *hex, clt_hash128 *out);

#endif
