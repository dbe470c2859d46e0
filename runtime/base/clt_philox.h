/* clt_philox: the counter-based random numbers of Salmon et al., "Parallel random numbers: as easy as 1, 2,
 * 3" (SC 2011), Philox4x32-10. A number is a pure function of (key, counter): there is no state to save, and
 * neither the order of calls nor the rank matters. The device version is clkernels/include/clt_philox.clh;
 * tests compare both with the published vectors. docs/numerics.md lists what key and counter mean for each
 * purpose. */
#ifndef CLT_PHILOX_H
#define CLT_PHILOX_H

#include <stdint.h>

typedef enum {
    CLT_RNG_INIT = 1,    /* initial weights: counter = {element / 4 (64 bits), tensor index, 0} */
    CLT_RNG_DROPOUT = 2, /* counter: see docs/numerics.md */
    CLT_RNG_SAMPLE = 3   /* generate: counter = {token position, 0, 0, 0} */
} clt_rng_purpose;

/* out[0..3] = philox4x32-10(counter, key) */
void clt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Key of a purpose under a seed: {seed low word, seed high word ^ (purpose * 0x9E3779B9)}. */
void clt_philox_key(uint64_t seed, clt_rng_purpose purpose, uint32_t key[2]);

/* Uniform double in [0, 1), from the upper 53 bits of hi:lo. */
double clt_philox_double(uint32_t hi, uint32_t lo);

#endif
