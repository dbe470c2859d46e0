/* clt_digest: checksums of files, by the names of MDS index files: blake2b, blake2s, md5, sha1, sha224,
 * sha256, sha384, sha512, sha3_224, sha3_256, sha3_384, sha3_512 (libcrypto) and xxh32, xxh64, xxh128,
 * xxh3_64, xxh3_128 (libxxhash). They find damage, not tampering. */
#ifndef CLT_DIGEST_H
#define CLT_DIGEST_H

#include <stddef.h>

#include "runtime/base/clt_base.h"

enum { CLT_DIGEST_MAX_HEX = 129 };

/* Number of the algorithm, or -1 for an unknown name. */
int clt_digest_find(const char *name);
/* The same for a user's option `what`: CLT_BAD_CONFIG with the known names for an unknown one. */
clt_status clt_digest_parse(const char *what, const char *name, int *algo);
const char *clt_digest_name(int algo);
/* Hex digits of its value. */
size_t clt_digest_hex_size(int algo);
/* The fastest of a list of algorithm numbers; -1 for an empty list. */
int clt_digest_fastest(const int *algos, size_t n);

typedef struct clt_digest clt_digest;
/* CLT_FAIL: libcrypto has no memory, or its configuration forbids the algorithm (FIPS). */
clt_status clt_digest_begin(int algo, clt_digest **d);
void clt_digest_add(clt_digest *d, const void *data, size_t bytes);
void clt_digest_end(clt_digest *d, char hex[CLT_DIGEST_MAX_HEX]); /* lower case; frees d */

/* Of one block of memory; errors as clt_digest_begin. */
clt_status clt_digest_of(int algo, const void *data, size_t bytes, char hex[CLT_DIGEST_MAX_HEX]);

#endif
