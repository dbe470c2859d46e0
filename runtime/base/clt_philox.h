/* clt_philox: the counter-based random numbers of Salmon et al., "Parallel random numbers: as easy as 1, 2,
 * 3" (SC 2011), Philox4x32-10. A number is a pure function of (key, counter): there is no state to save, and
 * neither the order of calls nor the rank matters. The device version is clkernels/include/clt_philox.clh;
 * tests compare both with the published vectors. docs/numerics.md, rules 14 and 15, defines key and counter
 * of dropout and initial weights. All functions are safe in any thread. */
#ifndef CLT_PHILOX_H
#define CLT_PHILOX_H

#include <stdint.h>

/* What numbers are for, with the counter's four 32-bit values. */
typedef enum {
    CLT_RNG_INIT = 1,    /* initial weights: {low and high half of element / 4, tensor index, 0} */
    CLT_RNG_DROPOUT = 2, /* dropout: {low half of the step, sample, layer and site, element / 4} */
    CLT_RNG_SAMPLE = 3,  /* generated tokens: {low and high half of the token's position, 0, 0} */
    CLT_RNG_AUGMENT = 4, /* a picture of training: {low and high half of the sample, epoch, choice} */
    CLT_RNG_MIX = 5 /* mixing of pictures: {low and high half of the batch in its epoch, epoch, choice} */
} clt_rng_purpose;

/* out[0..3] = philox4x32-10(counter, key) */
void clt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* The key of a purpose under a seed: {low half of seed, high half of seed ^ (purpose * 0x9E3779B9)}, halves
 * of 32 bits. */
void clt_philox_key(uint64_t seed, clt_rng_purpose purpose, uint32_t key[2]);

/* Uniform double in [0, 1): the upper 53 bits of the 64-bit number with the halves hi and lo, times 2^-53. */
double clt_philox_double(uint32_t hi, uint32_t lo);

#endif
