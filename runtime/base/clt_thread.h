/* clt_thread: host work on several threads. Results do not depend on the number of threads if fn computes
 * each index independently and writes it to its own place. */
#ifndef CLT_THREAD_H
#define CLT_THREAD_H

#include <pthread.h>
#include <stddef.h>

typedef void (*clt_parallel_fn)(void *ctx, size_t index);

/* Calls fn(ctx, 0) ... fn(ctx, n - 1), each once and in any order, on at most `threads` threads including the
 * calling one (0: clt_cpu_count), never more than 16; on fewer if threads cannot be created. Returns when all
 * calls have returned. New threads work in the caller's context (clt_context.h) and block all signals. */
void clt_parallel_for(size_t n, int threads, clt_parallel_fn fn, void *ctx);

/* pthread_create; the new thread works in the caller's context (clt_context.h) and blocks all signals. The
 * caller joins or detaches it. Returns 0 or an errno value, without a message. */
int clt_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Number of logical CPUs on which the calling thread may run (its affinity mask), at least 1. Limits on CPU
 * time, as containers have, are not taken into account. */
int clt_cpu_count(void);

#endif
