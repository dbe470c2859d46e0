/* clt_hash: XXH3-128, the hash of caches, checkpoints and `ckpt hash`. It detects damage, not tampering. */
#ifndef CLT_HASH_H
#define CLT_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t hi, lo;
} clt_hash128;

clt_hash128 clt_hash(const void *data, size_t bytes);

/* The hash of data that comes in pieces: equal to clt_hash of all bytes added between begin and end, however
 * they are divided. The state is freed by clt_hash_end alone. */
typedef struct clt_hash_state clt_hash_state;
clt_hash_state *clt_hash_begin(void); /* never NULL */
void clt_hash_add(clt_hash_state *s, const void *data, size_t bytes);
clt_hash128 clt_hash_end(clt_hash_state *s); /* frees s */

/* Writes 32 lower-case hex digits, hi first, and a terminating 0. */
void clt_hash_hex(clt_hash128 h, char out[33]);
/* Parses the text that clt_hash_hex writes: exactly 32 lower-case hex digits. Returns 0, or -1 with *out
 * unchanged for any other text. */
int clt_hash_parse(const char *hex, clt_hash128 *out);

#endif
