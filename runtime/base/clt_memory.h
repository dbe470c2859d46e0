/* clt_memory: host memory. There are two kinds of requests.
 *
 * Small ones, of a fixed or bounded size (a struct, a message, a list of names), never fail: when the system
 * has no memory they are served from a reserve of 4 MiB, which is part of the library, and the context
 * (clt_context.h) records it. The function that owns the work calls clt_memory_check where the work is in a
 * consistent state (a phase of the start, a step of training) and returns that function's CLT_NO_MEMORY. So
 * code between two such points handles no failure. If the reserve is used up, too, the process aborts with a
 * message. The reserve is one static array for all threads of the process; a freed block is used again.
 *
 * Requests whose size follows from a file, a model or a batch use clt_try_*: they return NULL and the caller
 * reports clt_no_memory. */
#ifndef CLT_MEMORY_H
#define CLT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/clt_status.h"

/* Small requests; never NULL. The process aborts if neither the system nor the reserve can serve one, or if
 * the product of clt_calloc exceeds SIZE_MAX. */
void *clt_malloc(size_t bytes);
void *clt_calloc(size_t count, size_t size);
void *clt_realloc(void *p, size_t bytes); /* an aligned block loses its alignment */
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

/* CLT_NO_MEMORY with a message that names the last refused size, if the system refused a small request of
 * this context (of any of its threads) since the last call; else CLT_OK. The next call starts from none.
 * Memory from the reserve stays valid. */
clt_status clt_memory_check(void);

/* Calls of the allocating functions so far in this process, on all threads, failed ones included; a test
 * proves that a training step makes none. */
uint64_t clt_alloc_count(void);

#endif
