/* The numbers that ranks put into a collective, and the check of what comes out, in plain C. */
#include <math.h>

#include "tools/clbench/collective.h"

static uint32_t mixed(uint64_t element, int rank, uint32_t call) {
    uint32_t x = (uint32_t)element * 0x9e3779b1u + (uint32_t)(element >> 32);
    x ^= (uint32_t)(rank + 1) * 0x85ebca77u + call * 0xc2b2ae3du;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    return (x ^ x >> 12) * 0x297a2d39u >> 8;
}

float collective_number(uint64_t element, int rank, uint32_t call) {
    static const float scale[] = {0x1p-10f, 0x1p-8f, 0x1p-6f, 0x1p-4f, 0x1p-2f};
    return (float)(1024 + mixed(element, rank, call) % 1024) * scale[call % CLT_COUNT_OF(scale)];
}

uint16_t collective_word(uint64_t element, int rank, uint32_t call) {
    return (uint16_t)mixed(element, rank, call);
}

void collective_fill(clt_dtype type, int rank, uint32_t call, uint64_t first, uint64_t n, void *out) {
    float *number = out;
    uint16_t *word = out;
    if (type == CLT_F32)
        for (uint64_t i = 0; i < n; i++) number[i] = collective_number(first + i, rank, call);
    else
        for (uint64_t i = 0; i < n; i++) word[i] = collective_word(first + i, rank, call);
}

uint64_t collective_wrong_sums(int ranks, uint32_t call, double bound, uint64_t first, uint64_t n,
                               const float *got) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int r = 0; r < ranks; r++) sum += (double)collective_number(first + i, r, call);
        wrong += !(fabs((double)got[i] - sum) <= bound * sum); /* NaN is wrong */
    }
    return wrong;
}

uint64_t collective_wrong_copies(clt_dtype type, int owner, uint32_t call, uint64_t first, uint64_t n,
                                 const void *got) {
    const float *number = got;
    const uint16_t *word = got;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++)
        wrong += type == CLT_F32 ? number[i] != collective_number(first + i, owner, call)
                                 : word[i] != collective_word(first + i, owner, call);
    return wrong;
}

double collective_bound(clt_dtype type, int ranks) {
    const double u = clt_dtype_table[type].unit;
    return type == CLT_F32 ? 0 : 2 * u * (1 + u) + ranks * 0x1p-23;
}
