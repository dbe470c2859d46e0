/* io_uring, through liburing. */
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "runtime/base/clt_aio_internal.h"

typedef struct {
    clt_aio_engine base;
    struct io_uring ring;
} uring;

/* Begins what is left of an operation. The queue has an entry for each operation in progress, and the kernel
 * empties it in each call; what the call can report is a lack of memory that passes. */
static void submit(clt_aio_engine *e, clt_aio_op *op) {
    uring *u = (uring *)e;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    char *memory = (char *)op->memory + op->moved;
    if (op->write)
        io_uring_prep_write(sqe, op->fd, memory, (unsigned)clt_aio_left(op), op->offset + op->moved);
    else
        io_uring_prep_read(sqe, op->fd, memory, (unsigned)clt_aio_left(op), op->offset + op->moved);
    io_uring_sqe_set_data(sqe, op);
    while (io_uring_submit(&u->ring) < 0) clt_sleep(1e-3);
}

/* Returns whether the operation has ended. */
static bool take(uring *u, struct io_uring_cqe *cqe) {
    clt_aio_op *op = io_uring_cqe_get_data(cqe);
    const int result = cqe->res;
    io_uring_cqe_seen(&u->ring, cqe);
    op->busy = clt_aio_take(op, result);
    if (op->busy) submit(&u->base, op);
    return !op->busy;
}

static int reap(clt_aio_engine *e, double seconds) {
    uring *u = (uring *)e;
    struct io_uring_cqe *cqe = NULL;
    struct __kernel_timespec limit = {.tv_sec = (long long)CLT_MAX(seconds, 0)};
    limit.tv_nsec = (long long)((CLT_MAX(seconds, 0) - (double)limit.tv_sec) * 1e9);
    int n = 0;
    if (seconds < 0)
        io_uring_wait_cqe(&u->ring, &cqe);
    else if (seconds > 0)
        io_uring_wait_cqe_timeout(&u->ring, &cqe, &limit);
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) n += take(u, cqe);
    return n;
}

static void destroy(clt_aio_engine *e) {
    io_uring_queue_exit(&((uring *)e)->ring);
    clt_free(e);
}

int clt_aio_uring_create(clt_aio_engine **out) {
    static const clt_aio_engine_ops ops = {submit, reap, destroy};
    uring *u = clt_calloc(1, sizeof *u);
    u->base.ops = &ops;
    const int error = -io_uring_queue_init(CLT_AIO_MOST, &u->ring, 0);
    if (error) {
        clt_free(u);
        return error;
    }
    *out = &u->base;
    return 0;
}
