/* clt_torch_random: torch.randperm on the CPU, bit for bit, because DistributedSampler draws the order of
 * fine-tuning samples from it: MT19937 (Matsumoto and Nishimura) and the swaps of ATen's randperm_cpu. Only
 * that order uses it; everything else uses clt_philox. */
#ifndef CLT_TORCH_RANDOM_H
#define CLT_TORCH_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Writes torch.randperm(n) of a generator that was seeded with `seed`, of which MT19937 uses the low 32
 * bits. */
void clt_torch_randperm(uint64_t seed, int64_t *out, size_t n);

#endif
