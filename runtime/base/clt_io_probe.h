/* clt_io_probe: a storage component for tests of what goes wrong. It stands before another component (the
 * local file system, or a file system in memory), passes every operation on, and does two things on the way:
 *
 * - the fault injector lets the N-th operation of a kind fail, take half of its bytes, or end the process;
 * - the recorder writes every operation that changes or syncs something to a log, with its data, so that a
 *   test can build every state that a loss of power may leave.
 *
 * A test creates a probe and registers it under a scheme; several probes work side by side. A whole program
 * takes the one before its local files from the environment:
 *
 *     CLTRAIN_IO_FAULT="pwrite:data.*:3:ENOSPC"   the third write to a file named data.* finds the disk full
 *     CLTRAIN_IO_FAULT="any:*:40-:EIO"            from the 40th operation on every one fails
 *     CLTRAIN_IO_FAULT="rename:*:1:kill"          SIGKILL instead of the first rename
 *     CLTRAIN_IO_RECORD=file                      append the log to a file; several processes may share it
 *
 * Operations are counted per probe, over all threads. */
#ifndef CLT_IO_PROBE_H
#define CLT_IO_PROBE_H

#include "runtime/base/clt_io_component.h"

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
    CLT_IO_STAT,
    CLT_IO_LOCK,
    CLT_IO_OPS /* how many; as an operation of a fault: any of them */
} clt_io_op;
const char *clt_io_op_name(clt_io_op op); /* "open", "pread", ... "any" */

typedef enum {
    CLT_IO_FAIL,  /* return `error` */
    CLT_IO_SHORT, /* a write takes half of its bytes and the rest of it fails with `error` (0: succeeds); a
                   * read returns half; other operations fail with `error` */
    CLT_IO_KILL   /* SIGKILL to this process before the operation */
} clt_io_fault_kind;

typedef struct {
    clt_io_op op;
    char name[64];    /* shell pattern of the last component of the path; "" : any */
    long first, last; /* which of the operations that match, from 1; first 0: none */
    clt_io_fault_kind kind;
    int error; /* errno value */
} clt_io_fault;

typedef struct clt_io_probe clt_io_probe;

/* A probe before `under` (borrowed), with its capabilities. No fault is armed, nothing is recorded. */
clt_io_probe *clt_io_probe_create(clt_io_component *under);
/* The probe as a component, to be registered. Valid until destroy. */
clt_io_component *clt_io_probe_component(clt_io_probe *p);
/* After its last file was closed and it is no longer registered. NULL is allowed. */
void clt_io_probe_destroy(clt_io_probe *p);

/* From now on; operations are counted from 0 again. NULL: no fault. */
void clt_io_fault_arm(clt_io_probe *p, const clt_io_fault *f);
bool clt_io_fault_fired(const clt_io_probe *p);
long clt_io_fault_seen(const clt_io_probe *p); /* operations that matched since arm */
/* "OP:NAME:N[-[M]]:WHAT"; WHAT: ENOSPC, EIO, EINTR, EACCES, EROFS, EMFILE, short, kill. CLT_USAGE says what
 * is wrong. */
clt_status clt_io_fault_parse(const char *text, clt_io_fault *out);

/* Records operations into a local file (appended to) until called with NULL. */
clt_status clt_io_record(clt_io_probe *p, const char *file);

/* One recorded operation. `data` and `bytes`: of a write; `mode`: of an open; `to`: the second name of rename
 * and exchange. Names are those of the component (clt_io_find). */
typedef struct {
    clt_io_op op;
    clt_io_mode mode;
    char *path, *to;
    uint64_t offset;
    size_t bytes;
    unsigned char *data;
} clt_io_entry;
/* Reads a log. CLT_BAD_DATA: the file is none. */
clt_status clt_io_record_read(const char *file, clt_io_entry **list, size_t *n);
void clt_io_record_free(clt_io_entry *list, size_t n);

/* Registers a probe before the local file system if CLTRAIN_IO_FAULT or CLTRAIN_IO_RECORD is set. For the
 * start of a program, before files are opened. */
clt_status clt_io_probe_from_env(void);

#endif
