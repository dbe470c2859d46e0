#include "runtime/data/clt_digest.h"

#include <openssl/evp.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the size of the states */
#include <xxhash.h>

/* Sorted by name, as index files want their lists. `speed`: rough relative speed, to choose the fastest. */
static const struct {
    const char *name, *evp;
    int hex, speed;
} algos[] = {
    {"blake2b", "blake2b512", 128, 10}, {"blake2s", "blake2s256", 64, 6}, {"md5", "md5", 32, 7},
    {"sha1", "sha1", 40, 12},           {"sha224", "sha224", 56, 8},      {"sha256", "sha256", 64, 8},
    {"sha384", "sha384", 96, 6},        {"sha3_224", "sha3-224", 56, 4},  {"sha3_256", "sha3-256", 64, 4},
    {"sha3_384", "sha3-384", 96, 3},    {"sha3_512", "sha3-512", 128, 2}, {"sha512", "sha512", 128, 6},
    {"xxh128", NULL, 32, 90},           {"xxh32", NULL, 8, 40},           {"xxh3_128", NULL, 32, 90},
    {"xxh3_64", NULL, 16, 100},         {"xxh64", NULL, 16, 80},
};

typedef enum { EVP, XXH_32, XXH_64, XXH3_64, XXH3_128 } kind;

struct clt_digest {
    kind kind;
    union {
        EVP_MD_CTX *evp;
        XXH32_state_t x32;
        XXH64_state_t x64;
        XXH3_state_t x3;
    };
};

int clt_digest_find(const char *name) {
    for (size_t i = 0; i < CLT_COUNT_OF(algos); i++)
        if (strcmp(name, algos[i].name) == 0) return (int)i;
    return -1;
}

const char *clt_digest_name(int algo) {
    return algos[algo].name;
}

clt_status clt_digest_parse(const char *what, const char *name, int *algo) {
    clt_str known = {0};
    *algo = clt_digest_find(name);
    if (*algo >= 0) return CLT_OK;
    for (size_t i = 0; i < CLT_COUNT_OF(algos); i++)
        clt_str_addf(&known, "%s%s", i ? ", " : "", algos[i].name);
    clt_error(CLT_BAD_CONFIG, "%s: unknown checksum '%s'; known are %s", what, name, known.s);
    clt_str_free(&known);
    return CLT_BAD_CONFIG;
}

size_t clt_digest_hex_size(int algo) {
    return (size_t)algos[algo].hex;
}

int clt_digest_fastest(const int *list, size_t n) {
    int best = -1;
    for (size_t i = 0; i < n; i++)
        if (best < 0 || algos[list[i]].speed > algos[best].speed) best = list[i];
    return best;
}

static kind kind_of(int algo) {
    static const struct {
        const char *name;
        kind kind;
    } of[] = {{"xxh32", XXH_32}, {"xxh64", XXH_64}, {"xxh3_64", XXH3_64}};
    if (algos[algo].evp) return EVP;
    for (size_t i = 0; i < CLT_COUNT_OF(of); i++)
        if (strcmp(algos[algo].name, of[i].name) == 0) return of[i].kind;
    return XXH3_128;
}

static bool begin_evp(clt_digest *d, const char *name) {
    d->evp = EVP_MD_CTX_new();
    if (d->evp && EVP_DigestInit_ex(d->evp, EVP_get_digestbyname(name), NULL) == 1) return true;
    EVP_MD_CTX_free(d->evp);
    return false;
}

clt_status clt_digest_begin(int algo, clt_digest **out) {
    clt_digest *d = clt_aligned_alloc(sizeof *d);
    d->kind = kind_of(algo);
    switch (d->kind) {
    case EVP:
        if (begin_evp(d, algos[algo].evp)) break;
        clt_free(d);
        return clt_error(CLT_FAIL, "libcrypto cannot compute %s checksums here; use another algorithm",
                         algos[algo].name);
    case XXH_32:
        XXH32_reset(&d->x32, 0);
        break;
    case XXH_64:
        XXH64_reset(&d->x64, 0);
        break;
    case XXH3_64:
        XXH3_64bits_reset(&d->x3);
        break;
    case XXH3_128:
        XXH3_128bits_reset(&d->x3);
        break;
    }
    *out = d;
    return CLT_OK;
}

void clt_digest_add(clt_digest *d, const void *data, size_t bytes) {
    switch (d->kind) {
    case EVP:
        EVP_DigestUpdate(d->evp, data, bytes);
        break;
    case XXH_32:
        XXH32_update(&d->x32, data, bytes);
        break;
    case XXH_64:
        XXH64_update(&d->x64, data, bytes);
        break;
    case XXH3_64:
        XXH3_64bits_update(&d->x3, data, bytes);
        break;
    case XXH3_128:
        XXH3_128bits_update(&d->x3, data, bytes);
        break;
    }
}

static void end_evp(clt_digest *d, char *hex) {
    unsigned char value[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_DigestFinal_ex(d->evp, value, &n);
    for (unsigned i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", value[i]);
    EVP_MD_CTX_free(d->evp);
}

void clt_digest_end(clt_digest *d, char hex[CLT_DIGEST_MAX_HEX]) {
    switch (d->kind) {
    case EVP:
        end_evp(d, hex);
        break;
    case XXH_32:
        snprintf(hex, 9, "%08x", (unsigned)XXH32_digest(&d->x32));
        break;
    case XXH_64:
        snprintf(hex, 17, "%016llx", (unsigned long long)XXH64_digest(&d->x64));
        break;
    case XXH3_64:
        snprintf(hex, 17, "%016llx", (unsigned long long)XXH3_64bits_digest(&d->x3));
        break;
    case XXH3_128: {
        const XXH128_hash_t h = XXH3_128bits_digest(&d->x3);
        snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    }
    }
    clt_free(d);
}

clt_status clt_digest_of(int algo, const void *data, size_t bytes, char hex[CLT_DIGEST_MAX_HEX]) {
    clt_digest *d;
    CLT_TRY(clt_digest_begin(algo, &d));
    clt_digest_add(d, data, bytes);
    clt_digest_end(d, hex);
    return CLT_OK;
}
