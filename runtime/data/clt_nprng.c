#include "runtime/data/clt_nprng.h"

#include <string.h>

#include "runtime/base/clt_base.h"

/* --- SeedSequence --- */

enum { POOL = 4 };

static uint32_t hashmix(uint32_t v, uint32_t *h) {
    v ^= *h;
    *h *= 0x931e8875u;
    v *= *h;
    return v ^ v >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y) {
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ r >> 16;
}

static void seed_sequence(const uint32_t *words, size_t n, uint64_t out[4]) {
    uint32_t pool[POOL], h = 0x43b0d7e5u, hb = 0x8b51f9ddu, w[8];
    for (size_t i = 0; i < POOL; i++) pool[i] = hashmix(i < n ? words[i] : 0, &h);
    for (size_t src = 0; src < POOL; src++)
        for (size_t dst = 0; dst < POOL; dst++)
            if (src != dst) pool[dst] = mix(pool[dst], hashmix(pool[src], &h));
    for (size_t src = POOL; src < n; src++)
        for (size_t dst = 0; dst < POOL; dst++) pool[dst] = mix(pool[dst], hashmix(words[src], &h));
    for (size_t i = 0; i < 8; i++) {
        uint32_t v = pool[i % POOL] ^ hb;
        hb *= 0x58f38dedu;
        v *= hb;
        w[i] = v ^ v >> 16;
    }
    for (size_t i = 0; i < 4; i++) out[i] = (uint64_t)w[2 * i + 1] << 32 | w[2 * i];
}

/* --- PCG64 --- */

void clt_nprng_seed_words(clt_nprng *r, const uint32_t *words, size_t n) {
    uint64_t q[4];
    seed_sequence(words, n, q);
    *r = (clt_nprng){0};
    r->inc = ((clt_u128)q[2] << 64 | q[3]) << 1 | 1;
    clt_nprng_u64(r);
    r->state += (clt_u128)q[0] << 64 | q[1];
    clt_nprng_u64(r);
}

void clt_nprng_seed(clt_nprng *r, uint64_t seed, uint64_t add) {
    clt_u128 s = (clt_u128)seed + add;
    uint32_t words[3];
    size_t n = 0;
    do words[n++] = (uint32_t)s;
    while ((s >>= 32) != 0);
    clt_nprng_seed_words(r, words, n);
}

/* --- bounded integers --- */

/* Uniform in [0, max] by masked rejection; mask: the smallest all-ones value that is not below max. */
static inline uint64_t interval(clt_nprng *r, uint64_t max, uint64_t mask) {
    uint64_t v;
    if (max <= UINT32_MAX) do
            v = clt_nprng_u32(r) & mask;
        while (v > max);
    else
        do v = clt_nprng_u64(r) & mask;
        while (v > max);
    return v;
}

static uint64_t mask_of(uint64_t max) {
    for (int s = 1; s < 64; s *= 2) max |= max >> s;
    return max;
}

static uint64_t lemire32(clt_nprng *r, uint32_t range) {
    uint32_t n = range + 1, threshold = (UINT32_MAX - range) % n;
    uint64_t m = (uint64_t)clt_nprng_u32(r) * n;
    while ((uint32_t)m < threshold) m = (uint64_t)clt_nprng_u32(r) * n;
    return m >> 32;
}

static uint64_t lemire64(clt_nprng *r, uint64_t range) {
    uint64_t n = range + 1, threshold = (UINT64_MAX - range) % n;
    clt_u128 m = (clt_u128)clt_nprng_u64(r) * n;
    while ((uint64_t)m < threshold) m = (clt_u128)clt_nprng_u64(r) * n;
    return (uint64_t)(m >> 64);
}

int64_t clt_nprng_integer(clt_nprng *r, int64_t lo, int64_t hi) {
    uint64_t range = (uint64_t)hi - 1 - (uint64_t)lo, v;
    if (range == 0)
        v = 0; /* no draw */
    else if (range < UINT32_MAX)
        v = lemire32(r, (uint32_t)range);
    else if (range == UINT32_MAX)
        v = clt_nprng_u32(r);
    else
        v = lemire64(r, range);
    return (int64_t)((uint64_t)lo + v);
}

/* --- shuffles --- */

void clt_nprng_shuffle(clt_nprng *r, void *items, size_t n, size_t size) {
    char *v = items, tmp[64];
    for (size_t i = n; i-- > 1;) {
        size_t j = (size_t)interval(r, i, mask_of(i));
        memcpy(tmp, v + i * size, size);
        memmove(v + i * size, v + j * size, size);
        memcpy(v + j * size, tmp, size);
    }
}

/* The generator is copied, so that it can stay in registers. */
#define SHUFFLE(r, type, v, n)                                                                               \
    do {                                                                                                     \
        clt_nprng own = *(r);                                                                                \
        uint64_t mask = (n) > 1 ? mask_of((n)-1) : 0;                                                        \
        for (size_t i = (n); i-- > 1;) {                                                                     \
            while (mask >> 1 >= i) mask >>= 1;                                                               \
            const size_t j = (size_t)interval(&own, i, mask);                                                \
            const type t = (v)[i];                                                                           \
            (v)[i] = (v)[j];                                                                                 \
            (v)[j] = t;                                                                                      \
        }                                                                                                    \
        *(r) = own;                                                                                          \
    } while (0)

void clt_nprng_shuffle_i64(clt_nprng *r, int64_t *v, size_t n) {
    SHUFFLE(r, int64_t, v, n);
}

void clt_nprng_shuffle_u32(clt_nprng *r, uint32_t *v, size_t n) {
    SHUFFLE(r, uint32_t, v, n);
}

/* --- choice without replacement --- */

/* Fisher-Yates from the end down to index `first`, with Lemire's integers (shuffle takes masked ones). */
static void shuffle_tail(clt_nprng *r, int64_t *v, int64_t n, int64_t first) {
    for (int64_t i = n - 1; i >= first; i--) {
        int64_t j = clt_nprng_integer(r, 0, i + 1), t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

static bool choose_tail(clt_nprng *r, int64_t n, int64_t k, int64_t *out) {
    int64_t *all = clt_try_calloc((size_t)n, sizeof *all);
    if (!all) return false;
    for (int64_t i = 0; i < n; i++) all[i] = i;
    shuffle_tail(r, all, n, CLT_MAX(n - k, 1));
    memcpy(out, all + (n - k), (size_t)k * sizeof *out);
    clt_free(all);
    return true;
}

/* A slot of an open-addressing set of value + 1 (0: empty): the value's own, or the first empty one. */
static uint64_t *find_slot(uint64_t *set, uint64_t mask, uint64_t value) {
    uint64_t at = value & mask;
    while (set[at] && set[at] != value + 1) at = (at + 1) & mask;
    return &set[at];
}

/* Floyd's algorithm. */
static bool choose_floyd(clt_nprng *r, int64_t n, int64_t k, int64_t *out) {
    uint64_t size = 1;
    while (size < (uint64_t)k * 2) size *= 2;
    uint64_t *set = clt_try_calloc(size, sizeof *set);
    if (!set) return false;
    for (int64_t j = n - k; j < n; j++) {
        uint64_t v = (uint64_t)clt_nprng_integer(r, 0, j + 1);
        if (*find_slot(set, size - 1, v)) v = (uint64_t)j;
        *find_slot(set, size - 1, v) = v + 1;
        *out++ = (int64_t)v;
    }
    clt_free(set);
    shuffle_tail(r, out - k, k, 1);
    return true;
}

bool clt_nprng_choice(clt_nprng *r, int64_t n, int64_t k, int64_t *out) {
    if (k == 0) return true;
    return n > 10000 && k > n / 50 ? choose_tail(r, n, k, out) : choose_floyd(r, n, k, out);
}
