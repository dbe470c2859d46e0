/* clt_memory: host memory. There are two kinds of requests.
 *
 * Small ones, of a fixed or bounded size (a struct, a message, a list of names), never fail: when the system
 * has no memory they are served from a reserve of 4 MiB, which is part of the library, and the context
 * (clt_context.h) records it. The function that owns the work calls clt_memory_check where the work is in a
 * consistent state (a phase of the start, a step of training) and returns its CLT_NO_MEMORY. So no code
 * between two such points handles a failure, and no process ends: only if the reserve itself is used up is
 * there nothing left to return to, and the process aborts with a message.
 *
 * Requests whose size follows from a file, a model or a batch use clt_try_*: they return NULL and the caller
 * reports clt_no_memory. */
#ifndef CLT_MEMORY_H
#define CLT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/clt_status.h"

/* Small requests; never NULL. clt_calloc checks the product for overflow. */
void *clt_malloc(size_t bytes);
void *clt_calloc(size_t count, size_t size);
void *clt_realloc(void *p, size_t bytes);
void *clt_memdup(const void *p, size_t bytes);
char *clt_strdup(const char *s);
char *clt_strndup(const char *s, size_t n);
void *clt_aligned_alloc(size_t bytes); /* 64-byte aligned, zeroed */

/* Requests that may fail: NULL. A size that is read from a file must be checked against the file before. */
void *clt_try_malloc(size_t bytes);
void *clt_try_calloc(size_t count, size_t size);
void *clt_try_realloc(void *p, size_t bytes); /* NULL: p is unchanged */
void *clt_try_aligned_alloc(size_t bytes);    /* 64-byte aligned, zeroed */

/* Frees what any of the above returned; NULL is allowed. */
void clt_free(void *p);

/* The error of a failed clt_try_*: "out of host memory: WHAT takes 1.50 GiB; ...". bytes 0: unknown. Returns
 * CLT_NO_MEMORY. */
clt_status clt_no_memory(const char *what, uint64_t bytes);

/* CLT_NO_MEMORY with a message if this thread's context used the reserve since the last call, else CLT_OK.
 * What was allocated stays valid. */
clt_status clt_memory_check(void);

/* Number of requests so far in this process; a test proves that a training step makes none. */
uint64_t clt_alloc_count(void);

#endif
