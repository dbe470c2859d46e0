#include "tools/clbench/numa_host.h"

double numa_memory(const numa_host *h, int ranks) {
    if (h->nodes == 1 || ranks == h->nodes) return h->memory;
    const double away = (double)(h->nodes - 1) / h->nodes;
    return h->nodes * CLT_MIN(h->memory, h->link / away);
}

double numa_pass_bytes(uint64_t elements, double activations) {
    enum { ELEMENT = 4, WEIGHTS = 2, GRADIENT = 2, STORED = 4 };
    return (double)elements * ELEMENT * (WEIGHTS + GRADIENT) + activations * STORED;
}

step_rates numa_rates(const numa_host *h, int ranks, double flops, double bytes, double forward) {
    const double memory = numa_memory(h, ranks), cores = (double)h->cores / ranks;
    const double seconds = flops / (cores * h->core) + bytes / memory;
    const double copy = memory / 2; /* a byte is read and written */
    return (step_rates){.forward = forward * seconds,
                        .backward = (1 - forward) * seconds,
                        .out = copy,
                        .in = ranks > 1 ? CLT_MIN(copy, h->link) : copy,
                        .update = memory,
                        .add = memory};
}
