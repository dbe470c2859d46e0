/* clt_aio_internal: what does the transfers of a clt_aio, for the files of this module only. */
#ifndef CLT_AIO_INTERNAL_H
#define CLT_AIO_INTERNAL_H

#include "runtime/base/clt_aio.h"

enum { CLT_AIO_MOST = 64 /* operations in progress */ };

typedef struct clt_aio_engine clt_aio_engine;

/* Every function is called by the thread that uses the clt_aio. */
typedef struct {
    /* Begins an operation; fewer than CLT_AIO_MOST are in progress. */
    void (*submit)(clt_aio_engine *e, clt_aio_op *op);
    /* Ends the operations whose transfers have ended (busy becomes false) and returns how many; waits for the
     * first one at most `seconds`, negative: without a limit. At least one is in progress. */
    int (*reap)(clt_aio_engine *e, double seconds);
    void (*destroy)(clt_aio_engine *e); /* nothing is in progress */
} clt_aio_engine_ops;

struct clt_aio_engine {
    const clt_aio_engine_ops *ops;
};

/* 0, or an errno value: the kernel does not permit it. ENOSYS also in a program without io_uring. */
int clt_aio_uring_create(clt_aio_engine **out);

/* What is left of an operation. */
static inline size_t clt_aio_left(const clt_aio_op *op) {
    return op->bytes - op->moved;
}
/* Takes the result of one transfer: bytes, or a negative errno value. Returns whether the rest must be
 * transferred, too. */
bool clt_aio_take(clt_aio_op *op, long result);

#endif
