/* The oracle of the hash over a tensor's bits: one word after the other. */
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

uint64_t clt_ref_hash(const float *x, uint64_t count, uint64_t first) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i += 2) {
        uint32_t low, high;
        memcpy(&low, &x[i], sizeof low);
        memcpy(&high, &x[i + 1], sizeof high);
        uint64_t z = (uint64_t)high << 32 | low;
        z += ((first + i) / 2 + 1) * 0x9e3779b97f4a7c15u;
        z ^= z >> 30;
        z *= 0xbf58476d1ce4e5b9u;
        z ^= z >> 27;
        z *= 0x94d049bb133111ebu;
        z ^= z >> 31;
        sum += z;
    }
    return sum;
}
