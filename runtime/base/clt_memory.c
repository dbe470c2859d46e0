#include "runtime/base/clt_memory.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_context_internal.h"

static atomic_uint_fast64_t alloc_count;

/* --- the reserve --- */

enum { RESERVE = 4 << 20, ALIGN = 64 };

/* Precedes each block; as long as the alignment of blocks. */
typedef union {
    struct {
        size_t room; /* of the block without this, a multiple of ALIGN; 0: the rest of the reserve */
        bool used;
    };
    char align[ALIGN];
} header;

/* Blocks follow each other from the start. Zero pages of the program's image: they cost nothing until they
 * are written. */
static struct {
    _Alignas(ALIGN) char bytes[RESERVE];
    pthread_mutex_t lock;
} reserve = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool in_reserve(const void *p) {
    return (uintptr_t)p - (uintptr_t)reserve.bytes < RESERVE;
}

static header *header_of(void *p) {
    return (header *)p - 1;
}

static header *after(header *h) {
    return h + 1 + h->room / ALIGN;
}

/* Room from h to the end of the reserve. */
static size_t rest(const header *h) {
    return RESERVE - (size_t)((const char *)(h + 1) - reserve.bytes);
}

/* Leaves `room` to h and makes the rest a free block. */
static void split(header *h, size_t room) {
    const size_t left = h->room - room;
    if (left < 2 * ALIGN) return;
    h->room = room;
    after(h)->room = left - ALIGN;
    after(h)->used = false;
}

/* The first free block that is large enough; free ones behind a free one are joined to it on the way. With
 * the lock held; few blocks are there. */
static void *take(size_t bytes) {
    const size_t room = CLT_ROUND_UP(CLT_MAX(bytes, 1), (size_t)ALIGN);
    header *h = (header *)(void *)reserve.bytes;
    if (bytes > RESERVE) return NULL;
    for (; h->room; h = after(h)) {
        if (h->used) continue;
        for (header *next = after(h); next->room && !next->used; next = after(h))
            h->room += ALIGN + next->room;
        if (h->room >= room) break;
    }
    if (h->room == 0) {
        if (rest(h) < room + ALIGN) return NULL; /* ALIGN: the header of the rest behind it */
        h->room = room;
        after(h)->room = 0;
    }
    split(h, room);
    h->used = true;
    return h + 1;
}

/* A small request that the system refused. */
static void *from_reserve(size_t bytes) {
    pthread_mutex_lock(&reserve.lock);
    void *p = take(bytes);
    pthread_mutex_unlock(&reserve.lock);
    if (!p) {
        fputs("error: out of host memory, and cltrain's reserve is used up\n", stderr); /* as malloc does */
        abort();
    }
    atomic_store_explicit(&clt_context_current()->short_of, bytes, memory_order_relaxed);
    return p;
}

/* p, a block of the reserve, with room for `bytes`; may move into ordinary memory. NULL: there is no room. */
static void *resize(void *p, size_t bytes) {
    const size_t room = header_of(p)->room;
    if (bytes <= room) return p;
    void *q = malloc(bytes);
    if (!q) {
        pthread_mutex_lock(&reserve.lock);
        q = take(bytes);
        pthread_mutex_unlock(&reserve.lock);
    }
    if (!q) return NULL;
    memcpy(q, p, room);
    clt_free(p);
    return q;
}

/* --- requests that may fail --- */

static void *counted(void *p) {
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    return p;
}

void *clt_try_malloc(size_t bytes) {
    return counted(malloc(bytes ? bytes : 1));
}

void *clt_try_calloc(size_t count, size_t size) {
    return counted(count && size ? calloc(count, size) : calloc(1, 1));
}

void *clt_try_realloc(void *p, size_t bytes) {
    bytes = bytes ? bytes : 1;
    return counted(in_reserve(p) ? resize(p, bytes) : realloc(p, bytes));
}

void *clt_try_aligned_alloc(size_t bytes) {
    if (bytes > SIZE_MAX - ALIGN) return counted(NULL);
    const size_t n = CLT_ROUND_UP(bytes ? bytes : 1, (size_t)ALIGN);
    void *p = counted(aligned_alloc(ALIGN, n));
    return p ? memset(p, 0, n) : NULL;
}

clt_status clt_no_memory(const char *what, uint64_t bytes) {
    char text[32];
    clt_human_bytes((double)bytes, text);
    return clt_error(CLT_NO_MEMORY, "out of host memory: %s%s%s; free memory or use a larger machine", what,
                     bytes ? " takes " : "", bytes ? text : "");
}

/* --- small requests --- */

void *clt_malloc(size_t bytes) {
    void *p = clt_try_malloc(bytes);
    return p ? p : from_reserve(bytes);
}

void *clt_calloc(size_t count, size_t size) {
    void *p = clt_try_calloc(count, size);
    if (p) return p;
    const size_t bytes = size && count > SIZE_MAX / size ? SIZE_MAX : count * size;
    return memset(from_reserve(bytes), 0, bytes);
}

void *clt_realloc(void *p, size_t bytes) {
    void *q = clt_try_realloc(p, bytes);
    if (q) return q;
    q = from_reserve(bytes); /* p is ordinary memory: a block of the reserve was tried there */
    if (p) memcpy(q, p, CLT_MIN(malloc_usable_size(p), bytes));
    clt_free(p);
    return q;
}

void *clt_memdup(const void *p, size_t bytes) {
    void *q = clt_malloc(bytes);
    if (bytes) memcpy(q, p, bytes);
    return q;
}

char *clt_strdup(const char *s) {
    return clt_memdup(s, strlen(s) + 1);
}

char *clt_strndup(const char *s, size_t n) {
    n = strnlen(s, n);
    char *q = clt_malloc(n + 1);
    memcpy(q, s, n);
    q[n] = 0;
    return q;
}

void *clt_aligned_alloc(size_t bytes) {
    void *p = clt_try_aligned_alloc(bytes);
    return p ? p : memset(from_reserve(bytes), 0, bytes);
}

void clt_free(void *p) {
    if (!in_reserve(p)) {
        free(p);
        return;
    }
    pthread_mutex_lock(&reserve.lock);
    header_of(p)->used = false;
    pthread_mutex_unlock(&reserve.lock);
}

/* --- what was noted --- */

clt_status clt_memory_check(void) {
    const size_t bytes = atomic_exchange_explicit(&clt_context_current()->short_of, 0, memory_order_relaxed);
    if (!bytes) return CLT_OK;
    return clt_error(
        CLT_NO_MEMORY,
        "out of host memory: a request for %zu bytes was refused; free memory or use a larger machine",
        bytes);
}

uint64_t clt_alloc_count(void) {
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}
