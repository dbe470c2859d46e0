/* clt_thread: host work over a few threads. Results never depend on how many there are: each index is
 * computed by itself and written to its own place. */
#ifndef CLT_THREAD_H
#define CLT_THREAD_H

#include <pthread.h>
#include <stddef.h>

typedef void (*clt_parallel_fn)(void *ctx, size_t index);

/* fn(ctx, 0) ... fn(ctx, n - 1), each once, on up to `threads` threads (0: the number of cores, at most 16).
 * Signals stay with the calling thread. */
void clt_parallel_for(size_t n, int threads, clt_parallel_fn fn, void *ctx);

/* pthread_create for a thread of this context (clt_context.h): fn(arg) runs in the caller's context, with all
 * signals blocked. 0, or an errno value. */
int clt_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Cores that this process may use. */
int clt_cpu_count(void);

#endif
