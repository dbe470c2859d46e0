/* clt_throughput: what a run does in a second, over its last steps, as Composer's speed_monitor tells it. One
 * step alone says little: the host looks at a step when it has queued the next one, and one that it looked at
 * late makes the next look short. */
#ifndef CLT_THROUGHPUT_H
#define CLT_THROUGHPUT_H

#include <stdint.h>

typedef struct clt_throughput clt_throughput;

typedef struct { /* in a second, of all ranks together */
    double batches, samples, tokens, flops;
} clt_rates;

/* Over the last `window` steps, at least 1. */
clt_throughput *clt_throughput_create(int64_t window);
void clt_throughput_destroy(clt_throughput *t);

/* A step took `seconds` (above 0) with so many samples, tokens and FLOP. The first one, in which kernels are
 * compiled, counts until there is another. */
void clt_throughput_step(clt_throughput *t, double seconds, int64_t samples, int64_t tokens, double flops);

/* Over the steps that there are, at most the window; zeros before the first. */
clt_rates clt_throughput_rates(const clt_throughput *t);

#endif
