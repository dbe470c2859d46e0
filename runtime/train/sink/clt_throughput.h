/* clt_throughput: throughput over the last steps of a run, as Composer's speed_monitor reports it. The time
 * of a single step is unreliable, because the host collects a step after it has queued the next one: a step
 * collected late makes the next one look short. */
#ifndef CLT_THROUGHPUT_H
#define CLT_THROUGHPUT_H

#include <stdint.h>

typedef struct clt_throughput clt_throughput;

typedef struct { /* per second, sum over all ranks */
    double batches, samples, tokens, flops;
} clt_rates;

/* Averages over the last `window` (at least 1) steps. */
clt_throughput *clt_throughput_create(int64_t window);
void clt_throughput_destroy(clt_throughput *t);

/* Adds a step of `seconds` (above 0). The first step, in which kernels are compiled, is dropped as soon as
 * there is another one. */
void clt_throughput_step(clt_throughput *t, double seconds, int64_t samples, int64_t tokens, double flops);

/* Averages over the steps so far, at most the window; zeros before the first step. */
clt_rates clt_throughput_rates(const clt_throughput *t);

#endif
