/* clt_io_probe: two storage backends for tests of what goes wrong. Both are one table that stands before
 * another one (the local file system, or a file system in memory) and hands every operation on:
 *
 * - the fault injector lets the N-th operation of a kind fail, take half of its bytes, or end the process;
 * - the recorder writes every operation that changes or syncs something to a log, with its data, so that a
 * test can build every state that a loss of power may leave.
 *
 * A test calls the functions below. A whole program takes them from its environment:
 *
 *     CLTRAIN_IO_FAULT="pwrite:data.*:3:ENOSPC"   the third write to a file named data.* finds the disk full
 *     CLTRAIN_IO_FAULT="any:*:40-:EIO"            from the 40th operation on nothing works
 *     CLTRAIN_IO_FAULT="rename:*:1:kill"          SIGKILL instead of the first rename
 *     CLTRAIN_IO_RECORD=file                      append the log to a file; several processes may share it
 *
 * Operations are counted in the process, over all threads. */
#ifndef CLT_IO_PROBE_H
#define CLT_IO_PROBE_H

#include "runtime/base/clt_io.h"

typedef enum {
    CLT_IO_OPEN,
    CLT_IO_PREAD,
    CLT_IO_PWRITE,
    CLT_IO_APPENDS,
    CLT_IO_SIZE,
    CLT_IO_DATASYNC,
    CLT_IO_SYNC,
    CLT_IO_CLOSE,
    CLT_IO_RENAME,
    CLT_IO_EXCHANGE,
    CLT_IO_UNLINK,
    CLT_IO_RMDIR,
    CLT_IO_MKDIR,
    CLT_IO_SYNC_DIR,
    CLT_IO_LIST,
    CLT_IO_KIND,
    CLT_IO_OPS /* how many; as an operation of a fault: any of them */
} clt_io_op;
const char *clt_io_op_name(clt_io_op op); /* "open", "pread", ... "any" */

typedef enum {
    CLT_IO_FAIL,  /* give `error` */
    CLT_IO_SHORT, /* a write takes half of its bytes and the rest of it fails with `error` (0: goes on); a
                   * read gives half; other operations fail with `error` */
    CLT_IO_KILL   /* SIGKILL to this process before the operation */
} clt_io_fault_kind;

typedef struct {
    clt_io_op op;
    char name[64];    /* shell pattern of the last component of the path; "" : any */
    long first, last; /* which of the operations that fit, from 1; first 0: none */
    clt_io_fault_kind kind;
    int error; /* errno value */
} clt_io_fault;

/* The table that stands before `under`; there is one. Put it in place with clt_io_set. Handles that are open
 * stay with the table that opened them: switch between operations on files. */
const clt_io_ops *clt_io_probe(const clt_io_ops *under);

/* From now on; operations are counted anew. NULL: none. */
void clt_io_fault_arm(const clt_io_fault *f);
bool clt_io_fault_fired(void);
long clt_io_fault_seen(void); /* operations that fitted since arm */
/* "OP:NAME:N[-[M]]:WHAT"; WHAT: ENOSPC, EIO, EINTR, EACCES, EROFS, EMFILE, short, kill. CLT_USAGE says what
 * is wrong. */
clt_status clt_io_fault_parse(const char *text, clt_io_fault *out);

/* Records operations into a file (appended to) until called with NULL. */
clt_status clt_io_record(const char *file);

/* One recorded operation. Data of a write; `mode` of an open; to: the second name of rename and exchange. */
typedef struct {
    clt_io_op op;
    clt_io_mode mode;
    char *path, *to;
    uint64_t offset;
    size_t bytes;
    unsigned char *data;
} clt_io_entry;
/* Reads a log. CLT_BAD_DATA: it is none. */
clt_status clt_io_record_read(const char *file, clt_io_entry **list, size_t *n);
void clt_io_record_free(clt_io_entry *list, size_t n);

/* Puts the probe before the table in use if CLTRAIN_IO_FAULT or CLTRAIN_IO_RECORD is set. */
clt_status clt_io_probe_from_env(void);

#endif
