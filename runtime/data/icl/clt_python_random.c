#include "runtime/data/icl/clt_python_random.h"

#include <string.h>

/* --- MT19937 --- */

enum { N = CLT_PYTHON_RANDOM_WORDS, M = 397 };

static void seed_word(clt_python_random *r, uint32_t seed) {
    r->word[0] = seed;
    for (int i = 1; i < N; i++)
        r->word[i] = 1812433253u * (r->word[i - 1] ^ (r->word[i - 1] >> 30)) + (uint32_t)i;
}

static uint32_t mixed(const uint32_t *w, int i, uint32_t factor) {
    return w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * factor);
}

void clt_python_random_seed(clt_python_random *r, int64_t seed) {
    const uint64_t size = seed < 0 ? 0 - (uint64_t)seed : (uint64_t)seed;
    const uint32_t key[2] = {(uint32_t)size, (uint32_t)(size >> 32)};
    const int n = key[1] ? 2 : 1;
    uint32_t *w = r->word;
    int i = 1;
    seed_word(r, 19650218u);
    for (int k = 0; k < N; k++) {
        w[i] = mixed(w, i, 1664525u) + key[k % n] + (uint32_t)(k % n);
        if (++i == N) {
            w[0] = w[N - 1];
            i = 1;
        }
    }
    for (int k = 1; k < N; k++) {
        w[i] = mixed(w, i, 1566083941u) - (uint32_t)i;
        if (++i == N) {
            w[0] = w[N - 1];
            i = 1;
        }
    }
    w[0] = 0x80000000u;
    r->next = N;
}

static void refill(clt_python_random *r) {
    uint32_t *w = r->word;
    for (int i = 0; i < N; i++) {
        const uint32_t y = (w[i] & 0x80000000u) | (w[(i + 1) % N] & 0x7fffffffu);
        w[i] = w[(i + M) % N] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->next = 0;
}

static uint32_t next_word(clt_python_random *r) {
    if (r->next == N) refill(r);
    uint32_t y = r->word[r->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

double clt_python_random_double(clt_python_random *r) {
    const uint32_t a = next_word(r) >> 5, b = next_word(r) >> 6;
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
}

/* --- what is drawn from it --- */

/* getrandbits(bits), 1 to 64; the first word has the low bits. */
static uint64_t next_bits(clt_python_random *r, int bits) {
    if (bits <= 32) return next_word(r) >> (32 - bits);
    const uint64_t low = next_word(r);
    return low | (uint64_t)(next_word(r) >> (64 - bits)) << 32;
}

int64_t clt_python_random_choice(clt_python_random *r, int64_t n) {
    int bits = 0;
    while (bits < 63 && n >> bits) bits++;
    uint64_t v;
    do v = next_bits(r, bits);
    while (v >= (uint64_t)n);
    return (int64_t)v;
}

/* Python keeps a list of all candidates if that takes less memory than a set of those drawn. */
static int64_t set_size(int64_t k) {
    int64_t size = 21, power = 1;
    if (k <= 5) return size;
    while (power < 3 * k) power *= 4;
    return size + power;
}

static clt_status sample_from_list(clt_python_random *r, int64_t n, int64_t k, int64_t *out) {
    int64_t *left = clt_try_malloc((size_t)CLT_MAX(n, 1) * sizeof *left);
    if (!left) return clt_no_memory("a sample of integers", (uint64_t)n * sizeof *left);
    for (int64_t i = 0; i < n; i++) left[i] = i;
    for (int64_t i = 0; i < k; i++) {
        const int64_t at = clt_python_random_choice(r, n - i);
        out[i] = left[at];
        left[at] = left[n - i - 1];
    }
    clt_free(left);
    return CLT_OK;
}

clt_status clt_python_random_sample(clt_python_random *r, int64_t n, int64_t k, int64_t *out) {
    if (n <= set_size(k)) return sample_from_list(r, n, k, out);
    clt_python_set drawn = {0};
    for (int64_t i = 0; i < k; i++) {
        do out[i] = clt_python_random_choice(r, n);
        while (clt_python_set_has(&drawn, out[i]));
        clt_python_set_add(&drawn, out[i]);
    }
    clt_python_set_free(&drawn);
    return CLT_OK;
}

/* --- sets --- */

enum { EMPTY = -1, REMOVED = -2, FIRST_SLOTS = 8, LINEAR_PROBES = 9, PERTURB_SHIFT = 5, MANY = 50000 };

/* The slot that has v, or the empty one where the search for it ends. *free_slot, if it is given, receives
 * the slot for v if it is no member: the last one of a removed member on the way, else the empty one. */
static size_t find_slot(const clt_python_set *s, int64_t v, size_t *free_slot) {
    size_t perturb = (size_t)v, at = (size_t)v & s->mask, removed = SIZE_MAX;
    for (;;) {
        const size_t last = at + LINEAR_PROBES <= s->mask ? at + LINEAR_PROBES : at;
        for (size_t i = at; i <= last; i++) {
            if (s->slot[i] == EMPTY && free_slot) *free_slot = removed < SIZE_MAX ? removed : i;
            if (s->slot[i] == EMPTY || s->slot[i] == v) return i;
            if (s->slot[i] == REMOVED) removed = i;
        }
        perturb >>= PERTURB_SHIFT;
        at = (at * 5 + 1 + perturb) & s->mask;
    }
}

static void allocate(clt_python_set *s, size_t slots) {
    s->slot = clt_malloc(slots * sizeof *s->slot);
    s->mask = slots - 1;
    s->filled = s->used = 0;
    for (size_t i = 0; i < slots; i++) s->slot[i] = EMPTY;
}

static void grow(clt_python_set *s) {
    clt_python_set old = *s;
    const size_t least = old.used > MANY ? old.used * 2 : old.used * 4;
    size_t slots = FIRST_SLOTS;
    while (slots <= least) slots <<= 1;
    allocate(s, slots);
    for (size_t i = 0; i <= old.mask; i++)
        if (old.slot[i] >= 0) {
            s->slot[find_slot(s, old.slot[i], NULL)] = old.slot[i];
            s->filled = ++s->used;
        }
    clt_python_set_free(&old);
}

void clt_python_set_add(clt_python_set *s, int64_t v) {
    if (!s->slot) allocate(s, FIRST_SLOTS);
    size_t i = 0;
    if (s->slot[find_slot(s, v, &i)] == v) return;
    s->used++;
    const bool reused = s->slot[i] == REMOVED;
    s->slot[i] = v;
    if (reused) return;
    s->filled++;
    if (s->filled * 5 >= s->mask * 3) grow(s);
}

bool clt_python_set_has(const clt_python_set *s, int64_t v) {
    return s->slot && s->slot[find_slot(s, v, NULL)] == v;
}

void clt_python_set_remove(clt_python_set *s, int64_t v) {
    if (!clt_python_set_has(s, v)) return;
    s->slot[find_slot(s, v, NULL)] = REMOVED;
    s->used--;
}

void clt_python_set_list(const clt_python_set *s, int64_t *out) {
    for (size_t i = 0; s->slot && i <= s->mask; i++)
        if (s->slot[i] >= 0) *out++ = s->slot[i];
}

void clt_python_set_free(clt_python_set *s) {
    clt_free(s->slot);
    *s = (clt_python_set){0};
}
