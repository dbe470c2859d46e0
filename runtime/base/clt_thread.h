/* clt_thread: host work on several threads. Results do not depend on the number of threads if fn computes
 * each index independently and writes it to its own place. */
#ifndef CLT_THREAD_H
#define CLT_THREAD_H

#include <pthread.h>
#include <stddef.h>

typedef void (*clt_parallel_fn)(void *ctx, size_t index);

/* Calls fn(ctx, 0) ... fn(ctx, n - 1), each once, on up to `threads` threads (0: one per core), at most 16.
 * Returns when all are done. The new threads block all signals. */
void clt_parallel_for(size_t n, int threads, clt_parallel_fn fn, void *ctx);

/* pthread_create with the caller's context (clt_context.h) and all signals blocked in the new thread. Returns
 * 0 or an errno value. */
int clt_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Number of cores that this process may use. */
int clt_cpu_count(void);

#endif
