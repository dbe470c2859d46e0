#include "runtime/base/clt_hash.h"

#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the size of the state */
#include <xxhash.h>

#include "runtime/base/clt_base.h"

static clt_hash128 from_xxh(XXH128_hash_t h) {
    return (clt_hash128){h.high64, h.low64};
}

clt_hash128 clt_hash(const void *data, size_t bytes) {
    return from_xxh(XXH3_128bits(data, bytes));
}

struct clt_hash_state {
    XXH3_state_t x;
};

clt_hash_state *clt_hash_begin(void) {
    clt_hash_state *s = clt_aligned_alloc(sizeof *s);
    XXH3_128bits_reset(&s->x);
    return s;
}

void clt_hash_add(clt_hash_state *s, const void *data, size_t bytes) {
    XXH3_128bits_update(&s->x, data, bytes);
}

clt_hash128 clt_hash_end(clt_hash_state *s) {
    clt_hash128 h = from_xxh(XXH3_128bits_digest(&s->x));
    clt_free(s);
    return h;
}

void clt_hash_hex(clt_hash128 h, char out[33]) {
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}

int clt_hash_parse(const char *hex, clt_hash128 *out) {
    uint64_t w[2] = {0, 0};
    if (strlen(hex) != 32) return -1;
    for (int i = 0; i < 32; i++) {
        const char *digits = "0123456789abcdef", *d = strchr(digits, hex[i]);
        if (!d) return -1;
        w[i / 16] = w[i / 16] << 4 | (uint64_t)(d - digits);
    }
    *out = (clt_hash128){w[0], w[1]};
    return 0;
}
