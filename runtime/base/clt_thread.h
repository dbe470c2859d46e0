/* clt_thread: host work over a few threads. Results never depend on how many there are: each index is
 * computed by itself and written to its own place. */
#ifndef CLT_THREAD_H
#define CLT_THREAD_H

#include <stddef.h>

typedef void (*clt_parallel_fn)(void *ctx, size_t index);

/* fn(ctx, 0) ... fn(ctx, n - 1), each once, on up to `threads` threads (0: the number of cores, at most 16).
 * Signals stay with the calling thread. */
void clt_parallel_for(size_t n, int threads, clt_parallel_fn fn, void *ctx);

/* Cores that this process may use. */
int clt_cpu_count(void);

#endif
