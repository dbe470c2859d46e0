/* clt_scratch: a file for what a run keeps on a disk instead of in memory. Nobody needs it after the run: its
 * name is removed as soon as it is open, so nothing is left of it, however the run ends.
 *
 * Bytes are read and written in blocks of 128 KiB, past the page cache (O_DIRECT) where the file system can,
 * by a clt_aio. The hash of each block is kept in memory and compared at each read: what comes back is what
 * was written, or an error. A block that was never written, or was filled with zeros, is zeros without a
 * read.
 *
 *     clt_scratch_op op = {.memory = aligned, .offset = at, .bytes = n, .write = false};
 *     CLT_TRY(clt_scratch_begin(s, &op));
 *     ... anything else ...
 *     CLT_TRY(clt_scratch_wait(s, &op));
 *
 * Operations on the same bytes take effect in the order in which they were begun. Errors are CLT_IO with the
 * file, the offset and the reason. A scratch is used by one thread. */
#ifndef CLT_SCRATCH_H
#define CLT_SCRATCH_H

#include "runtime/base/clt_aio.h"

enum {
    CLT_SCRATCH_BLOCK = 128 << 10,
    CLT_SCRATCH_MOST = 8 << 20, /* bytes of an operation */
    CLT_SCRATCH_ALIGN = 4096    /* of memory */
};

typedef struct clt_scratch clt_scratch;

/* Takes the lock FOLDER/NAME.lock, which at most one process has, and opens a file beside it. The folder is
 * made if it is missing. A process that is ending is waited for, $CLTRAIN_LOCK_WAIT seconds. What a process
 * that was killed left under these names is replaced. CLT_IO if another process has the lock (the message
 * says which) or the file cannot be made; CLT_BAD_CONFIG if the folder is not on a local file system. */
clt_status clt_scratch_open(const char *folder, const char *name, clt_scratch **out);
/* Waits for all operations; their memory must still exist. Removes the lock file. NULL is allowed. */
void clt_scratch_close(clt_scratch *s);
/* How the file is read and written, for messages: "io_uring, past the page cache". Valid until close. */
const char *clt_scratch_text(const clt_scratch *s);

/* Makes the file longer by `bytes`, rounded up to whole blocks, and allocates them on the disk; *offset is
 * where they begin. They are zeros. CLT_IO if the disk has not enough room: the message has the file, the
 * size and what is free. */
clt_status clt_scratch_grow(clt_scratch *s, uint64_t bytes, uint64_t *offset);

/* Before the first operation: tries transfers with this memory, CLT_SCRATCH_ALIGN aligned bytes, which it
 * overwrites. Memory that a device's driver has mapped may be unfit for O_DIRECT; then the file goes through
 * the page cache from here on, and clt_scratch_text says so. The file must have a block. */
clt_status clt_scratch_try(clt_scratch *s, void *memory);

/* --- whole blocks, while the caller does something else --- */

typedef struct clt_scratch_op {
    /* Set by the caller: offset and bytes are whole blocks, bytes at most CLT_SCRATCH_MOST; memory is
     * aligned, and is left alone until the operation is done. */
    void *memory;
    uint64_t offset;
    size_t bytes;
    bool write;
    /* The module's. */
    bool open;
    clt_status result;
    clt_aio_op io;
    struct clt_scratch_op *next, *prev;
} clt_scratch_op;

clt_status clt_scratch_begin(clt_scratch *s, clt_scratch_op *op);
/* *done: whether it has ended; the status is that of the operation then. Does not wait. */
clt_status clt_scratch_done(clt_scratch *s, clt_scratch_op *op, bool *done);
/* Waits for it and returns its status. One that was never begun, or is known to be done, is CLT_OK. */
clt_status clt_scratch_wait(clt_scratch *s, clt_scratch_op *op);
/* Waits until a transfer ends, at most this long. */
void clt_scratch_pause(clt_scratch *s, double seconds);

/* --- any bytes, at once --- */

clt_status clt_scratch_read(clt_scratch *s, uint64_t offset, void *dst, size_t bytes);
clt_status clt_scratch_write(clt_scratch *s, uint64_t offset, const void *src, size_t bytes);
/* offset and bytes are multiples of 4. */
clt_status clt_scratch_fill(clt_scratch *s, uint64_t offset, uint32_t word, uint64_t bytes);

typedef struct {
    uint64_t read, written; /* bytes moved from and to the file */
} clt_scratch_counters;
clt_scratch_counters clt_scratch_count(const clt_scratch *s);

/* --- how fast a disk is --- */

/* Rates of a folder in bytes per second. */
typedef struct {
    double read, write,
        both; /* both: bytes of the two directions together while both go on, as in an update */
} clt_scratch_rates;
/* Writes `bytes` to a scratch, reads them back, then does both at once; each part ends after `seconds` at the
 * latest and then counts what it has moved; only what was written is read. Errors of clt_scratch_open and
 * clt_scratch_grow. */
clt_status clt_scratch_measure(const char *folder, uint64_t bytes, double seconds, clt_scratch_rates *out);

#endif
