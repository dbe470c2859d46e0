/* clt_aio: reads and writes of local files that go on while the caller does something else.
 *
 *     clt_aio_op op = {.fd = fd, .write = false, .memory = p, .bytes = n, .offset = at};
 *     clt_aio_submit(a, &op);
 *     ... anything else ...
 *     clt_aio_wait(a, &op);
 *     if (op.error) ...
 *
 * io_uring does them where the program has it (make URING=0 builds without it) and the kernel permits it;
 * containers often do not. Otherwise threads call pread and pwrite. Which one is chosen changes no result. An
 * operation transfers all of its bytes or has an error: transfers that end early are continued.
 *
 * A clt_aio and its operations are used by one thread. Nothing here prints. */
#ifndef CLT_AIO_H
#define CLT_AIO_H

#include "runtime/base/clt_base.h"

typedef struct clt_aio clt_aio;

typedef struct clt_aio_op {
    /* Set by the caller; unchanged until the operation is done, and so is the memory of a write. With a file
     * that is open with O_DIRECT memory, bytes and offset are multiples of 4096. */
    int fd;
    bool write;
    void *memory;
    size_t bytes;
    uint64_t offset;
    /* The result: 0 or an errno value. ENODATA: the file ends before the last byte of a read. */
    int error;
    /* The module's. */
    size_t moved;
    bool busy;
    struct clt_aio_op *next;
} clt_aio_op;

/* threads: io_uring is not tried. CLT_FAIL, with a message: neither io_uring nor a thread can be had. */
clt_status clt_aio_create(bool threads, clt_aio **out);
void clt_aio_destroy(clt_aio *a); /* waits for all operations; NULL is allowed */
/* "io_uring", or "4 threads (no io_uring: Operation not permitted)". Valid until destroy. */
const char *clt_aio_text(const clt_aio *a);

/* Begins the operation, which must not be in progress. Waits while 64 others are. */
void clt_aio_submit(clt_aio *a, clt_aio_op *op);
/* Whether the operation has ended, or was never begun; does not wait. */
bool clt_aio_done(clt_aio *a, const clt_aio_op *op);
void clt_aio_wait(clt_aio *a, const clt_aio_op *op);
/* Waits until an operation ends, at most this long; returns at once if none is in progress. */
void clt_aio_wait_any(clt_aio *a, double seconds);

#endif
