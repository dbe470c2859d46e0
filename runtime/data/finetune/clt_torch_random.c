#include "runtime/data/finetune/clt_torch_random.h"

enum { WORDS = 624, MIDDLE = 397 };

typedef struct {
    uint32_t word[WORDS];
    int next;
} mt19937;

static void seed_state(mt19937 *m, uint32_t seed) {
    m->word[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++)
        m->word[i] = 1812433253u * (m->word[i - 1] ^ (m->word[i - 1] >> 30)) + i;
    m->next = WORDS;
}

static void next_state(mt19937 *m) {
    for (int i = 0; i < WORDS; i++) {
        const uint32_t y = (m->word[i] & 0x80000000u) | (m->word[(i + 1) % WORDS] & 0x7fffffffu);
        m->word[i] = m->word[(i + MIDDLE) % WORDS] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    m->next = 0;
}

static uint32_t draw32(mt19937 *m) {
    if (m->next == WORDS) next_state(m);
    uint32_t y = m->word[m->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static uint64_t draw64(mt19937 *m) {
    const uint64_t high = draw32(m);
    return high << 32 | draw32(m);
}

void clt_torch_randperm(uint64_t seed, int64_t *out, size_t n) {
    const size_t wide = UINT32_MAX / 20; /* from here on torch draws 64 bits, so that `%` stays nearly even */
    mt19937 m;
    seed_state(&m, (uint32_t)seed);
    for (size_t i = 0; i < n; i++) out[i] = (int64_t)i;
    for (size_t i = 0; i + 1 < n; i++) {
        const size_t other = i + (size_t)((n < wide ? draw32(&m) : draw64(&m)) % (n - i));
        const int64_t kept = out[i];
        out[i] = out[other];
        out[other] = kept;
    }
}
