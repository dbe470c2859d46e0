/* clt_io_probe: a storage component for tests of what goes wrong. It stands before another component (the
 * local file system, or a file system in memory), passes every operation on, and does two things on the way:
 *
 * - the fault injector makes the N-th operation of a kind fail, transfer half of its bytes, or end the
 * process;
 * - the recorder writes a log of every successful operation that changes files or names (but not of locks),
 *   with its data, and of every successful sync, so that a test can build every state that a loss of power
 *   may leave.
 *
 * A test creates a probe and registers it under a scheme; several probes work side by side. For a
 * whole program the environment puts a probe before its local files:
 *
 *     CLTRAIN_IO_FAULT="pwrite:data.*:3:ENOSPC"   the third write to a file named data.* finds the disk full
 *     CLTRAIN_IO_FAULT="any:*:40-:EIO"            the 40th operation and all later ones fail
 *     CLTRAIN_IO_FAULT="rename:*:1:kill"          SIGKILL instead of the first rename
 *     CLTRAIN_IO_RECORD=file                      append the log to a file; several processes may share it
 *
 * A probe counts the operations that match its fault, over all threads. An operation on two names matches by
 * the second one. */
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
    CLT_IO_REPLACE,
    CLT_IO_VERSION,
    CLT_IO_OPS /* how many; as an operation of a fault: any of them */
} clt_io_op;
const char *clt_io_op_name(clt_io_op op); /* "open", "pread", ... "any" */

typedef enum {
    CLT_IO_FAIL,  /* return `error` */
    CLT_IO_SHORT, /* a read or write transfers half of its bytes; after a write, the probe's next write, of
                   * whatever file, fails with `error`. Other operations, and transfers of one byte, fail with
                   * `error`. error 0: nothing fails */
    CLT_IO_KILL   /* SIGKILL to this process instead of the operation */
} clt_io_fault_kind;

typedef struct {
    clt_io_op op;
    char name[64];    /* shell pattern (fnmatch) for the last component of the path; "": any path */
    long first, last; /* the matching operations with these numbers, counted from 1; first 0: no fault */
    clt_io_fault_kind kind;
    int error; /* errno value */
} clt_io_fault;

typedef struct clt_io_probe clt_io_probe;

/* A probe before `under`, which is borrowed and whose capabilities it has. No fault is armed, nothing is
 * recorded. Never NULL. */
clt_io_probe *clt_io_probe_create(clt_io_component *under);
/* The probe as a component, to be registered. Valid until destroy. */
clt_io_component *clt_io_probe_component(clt_io_probe *p);
/* The probe must not be registered any more, and its files and locks must be closed. NULL is allowed. */
void clt_io_probe_destroy(clt_io_probe *p);

/* Arms a copy of f instead of any earlier fault and counts matching operations from 0. NULL: no fault. */
void clt_io_fault_arm(clt_io_probe *p, const clt_io_fault *f);
/* Since the fault was armed: whether it took effect; how many operations matched its `op` and `name`. Only
 * while no other thread uses the probe. */
bool clt_io_fault_fired(const clt_io_probe *p);
long clt_io_fault_seen(const clt_io_probe *p);
/* Parses "OP:NAME:N[-[M]]:WHAT": operations N, N to M, or from N on; WHAT is ENOSPC, EIO, EINTR, EACCES,
 * EROFS, EMFILE, short (with error 0) or kill. CLT_USAGE for any other text. */
clt_status clt_io_fault_parse(const char *text, clt_io_fault *out);

/* Appends the log to a local file until it is called again; NULL: ends the recording. CLT_IO if the file
 * cannot be opened. If writing the log fails later, a warning is printed and the recording ends. Call it
 * while no other thread uses the probe. */
clt_status clt_io_record(clt_io_probe *p, const char *file);

/* One recorded operation. `mode` is for CLT_IO_OPEN; `data` and `bytes` for writes, appends, replace (bytes
 * transferred), `offset` for writes; `to` is the second name of rename and exchange. Other members are 0 or
 * NULL. Names are those that clt_io_find gives. */
typedef struct {
    clt_io_op op;
    clt_io_mode mode;
    char *path, *to;
    uint64_t offset;
    size_t bytes;
    unsigned char *data;
} clt_io_entry;
/* Reads a log of at most 1 GiB; clt_io_record_free frees *list. CLT_BAD_DATA if the file is larger, damaged
 * or not such a log; CLT_IO. After a failure *list is freed already. */
clt_status clt_io_record_read(const char *file, clt_io_entry **list, size_t *n);
void clt_io_record_free(clt_io_entry *list, size_t n);

/* Registers a probe before the local file system, for the rest of the process, if CLTRAIN_IO_FAULT or
 * CLTRAIN_IO_RECORD is set. For the start of a program, before files are opened. CLT_USAGE: CLTRAIN_IO_FAULT
 * is malformed; CLT_IO: the file of CLTRAIN_IO_RECORD cannot be opened. */
clt_status clt_io_probe_from_env(void);

#endif
