/* clt_nprng: NumPy's default random generator, bit for bit, because StreamingDataset draws its sample order
 * from it: SeedSequence (O'Neill's seed_seq design), PCG64 (XSL-RR, 128-bit state), masked rejection for
 * shuffles, Lemire's method for bounded integers. Only the sample order uses it; everything else uses
 * clt_philox. */
#ifndef CLT_NPRNG_H
#define CLT_NPRNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned __int128 clt_u128;

typedef struct {
    clt_u128 state, inc;
    bool has32; /* next32 is the high half of the last 64-bit draw, for the next 32-bit request */
    uint32_t next32;
} clt_nprng;

/* default_rng(s) where s = sum of words[i] * 2^(32 i); n >= 1, and
 * words[n - 1] must not be 0 unless n is 1. */
void clt_nprng_seed_words(clt_nprng *r, const uint32_t *words, size_t n);
/* default_rng(seed + add); the sum may exceed 64 bits. */
void clt_nprng_seed(clt_nprng *r, uint64_t seed, uint64_t add);

/* Inline, because the order of an epoch draws billions. */
static inline uint64_t clt_nprng_u64(clt_nprng *r) {
    const clt_u128 m = (clt_u128)2549297995355413924u << 64 | 4865540595714422341u;
    r->state = r->state * m + r->inc;
    const uint64_t x = (uint64_t)(r->state >> 64) ^ (uint64_t)r->state;
    const unsigned rot = (unsigned)(r->state >> 122);
    return x >> rot | x << (-rot & 63);
}
static inline uint32_t clt_nprng_u32(clt_nprng *r) {
    if (r->has32) {
        r->has32 = false;
        return r->next32;
    }
    const uint64_t x = clt_nprng_u64(r);
    r->has32 = true;
    r->next32 = (uint32_t)(x >> 32);
    return (uint32_t)x;
}
static inline double clt_nprng_double(clt_nprng *r) { /* [0, 1), 53 bits */
    return (double)(clt_nprng_u64(r) >> 11) * (1.0 / 9007199254740992.0);
}

/* integers(lo, hi): lo <= result < hi; requires lo < hi. hi = lo + 1 draws nothing. */
int64_t clt_nprng_integer(clt_nprng *r, int64_t lo, int64_t hi);
/* uniform(a, b) = a + (b - a) * double */
static inline double clt_nprng_uniform(clt_nprng *r, double a, double b) {
    return a + (b - a) * clt_nprng_double(r);
}

/* shuffle of n items of `size` bytes (at most 64). NumPy draws alike for lists and for arrays; so do this
 * function and clt_nprng_shuffle_i64. */
void clt_nprng_shuffle(clt_nprng *r, void *items, size_t n, size_t size);
/* shuffle of n values. */
void clt_nprng_shuffle_i64(clt_nprng *r, int64_t *v, size_t n);
void clt_nprng_shuffle_u32(clt_nprng *r, uint32_t *v, size_t n);

/* choice(n, k, replace=False), shuffled as NumPy does: k different values of 0 ... n - 1; 0 <= k <= n. False:
 * no memory (8 n bytes where k is more than a fiftieth of n > 10,000, else about 20 k). */
bool clt_nprng_choice(clt_nprng *r, int64_t n, int64_t k, int64_t *out);

#endif
