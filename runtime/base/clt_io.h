/* clt_io: files, names and locks on any storage. Every function takes a path or a URL (SCHEME://...) and
 * finds the component that serves it (clt_io_component.h); plain paths and file:///... are the local file
 * system. Nothing else in the program opens, lists or renames files of a run, so that an object store can be
 * added and tests can record, fail or cut every operation.
 *
 * The functions loop over short reads and writes, retry EINTR, never retry a failed sync, and check close.
 * Those that return clt_status print path and reason (clt_error): CLT_IO, CLT_NO_MEMORY, or CLT_BAD_CONFIG
 * when no component serves the scheme. Those named try_ print nothing and return 0 or an errno value. */
#ifndef CLT_IO_H
#define CLT_IO_H

#include "runtime/base/clt_base.h"

/* --- what a storage can do --- */

/* File systems and object stores differ in these; code asks for them and never for a component's name. */
typedef enum {
    CLT_IO_CAN_RENAME = 1 << 0,     /* a file or a folder gets another name in one step */
    CLT_IO_CAN_EXCHANGE = 1 << 1,   /* two names are exchanged in one step (a file system may still refuse) */
    CLT_IO_CAN_APPEND = 1 << 2,     /* CLT_IO_APPEND */
    CLT_IO_CAN_CREATE_NEW = 1 << 3, /* CLT_IO_CREATE_NEW: of several writers one succeeds (conditional PUT) */
    CLT_IO_CAN_LOCK = 1 << 4,       /* clt_io_lock */
    CLT_IO_CAN_READ_RANGES = 1 << 5,  /* pread at any offset costs what it reads, not the whole file */
    CLT_IO_CAN_WRITE_RANGES = 1 << 6, /* pwrite at any offset and in any order, and pread of what was written;
                                       * otherwise a file is written from its beginning to its end, once */
    CLT_IO_HAS_FOLDERS = 1 << 7,      /* folders exist by themselves; otherwise a folder is a common prefix of
                                       * names: it is listed while something is below it, and mkdir does nothing */
    CLT_IO_APPEARS_WHOLE = 1 << 8     /* a file has its name when it is closed, whole, or never */
} clt_io_capability;

/* Whether the storage of `path` has all these capabilities. */
bool clt_io_can(const char *path, unsigned caps);
/* The same as a status: "PATH: WHAT needs storage that can ...", CLT_BAD_CONFIG. */
clt_status clt_io_require(const char *path, unsigned caps, const char *what);
/* Why no component serves `path` ("object stores (s3://) are not supported yet ..."), to be freed; NULL: one
 * does. */
char *clt_io_unsupported(const char *path);

/* --- files --- */

typedef struct clt_file clt_file;

typedef enum {
    CLT_IO_READ,
    CLT_IO_READ_PLAIN, /* like READ, but the file may not be a symbolic link: it is in the folder that names
                          it */
    CLT_IO_CREATE,     /* new or truncated; can be read, too */
    CLT_IO_CREATE_NEW, /* like CREATE, but EEXIST when the name is taken */
    CLT_IO_APPEND      /* every append goes to the end, also when several processes append */
} clt_io_mode;

/* A file is never inherited by the programs that this process starts. CLT_BAD_CONFIG: the storage lacks the
 * capability for the mode. */
clt_status clt_file_open(const char *path, clt_io_mode mode, clt_file **out);
/* Exactly `bytes`; past the end CLT_BAD_DATA "ends early". */
clt_status clt_file_pread(clt_file *f, void *dst, size_t bytes, uint64_t offset);
clt_status clt_file_pwrite(clt_file *f, const void *src, size_t bytes, uint64_t offset);
/* One write call if the system takes it whole, so that lines of several writers do not mix. */
clt_status clt_file_append(clt_file *f, const void *src, size_t bytes);
/* For a log, which cannot report through itself: no message, no allocation, any thread. */
int clt_file_try_append(clt_file *f, const void *src, size_t bytes);
clt_status clt_file_size(clt_file *f, uint64_t *bytes);
clt_status clt_file_datasync(clt_file *f);
clt_status clt_file_sync(clt_file *f);
/* Closes in any case; reports a failing close. NULL is allowed. */
clt_status clt_file_close(clt_file *f);
const char *clt_file_path(const clt_file *f);

/* --- names --- */

typedef enum { CLT_IO_ABSENT, CLT_IO_FILE, CLT_IO_FOLDER, CLT_IO_OTHER } clt_io_kind;

typedef struct {
    clt_io_kind kind;
    uint64_t bytes;
    uint64_t id[2]; /* equal: one file or folder under two names (links); 0, 0: unknown */
} clt_io_info;

/* Symbolic links are followed. What is absent is CLT_IO_ABSENT, not an error. */
clt_status clt_io_stat(const char *path, clt_io_info *out);
int clt_io_try_stat(const char *path, clt_io_info *out);
bool clt_io_is_file(const char *path); /* false also when it cannot be told */
bool clt_io_is_dir(const char *path);

/* Both names belong to one storage (EXDEV otherwise). */
clt_status clt_io_rename(const char *from, const char *to);
int clt_io_try_rename(const char *from, const char *to);
/* EINVAL, ENOSYS or EOPNOTSUPP: not possible here. */
int clt_io_try_exchange(const char *a, const char *b);
clt_status clt_io_unlink(const char *path);
int clt_io_try_unlink(const char *path);
clt_status clt_io_sync_dir(const char *path);
/* Like mkdir -p; each new folder's parent is synced, so that what becomes durable inside stays reachable. */
clt_status clt_io_mkdirs(const char *path);
int clt_io_try_mkdirs(const char *path);                   /* not synced */
clt_status clt_io_mkdir(const char *path);                 /* one folder, which must be absent; not synced */
clt_status clt_io_remove_tree(const char *path);           /* like rm -r; absent is success */
clt_status clt_io_list(const char *path, clt_strv *names); /* sorted */

/* --- whole files --- */

/* Files above `limit` bytes are CLT_BAD_DATA; a 0 follows the data. The caller frees *data. */
clt_status clt_io_read_all(const char *path, size_t limit, char **data, size_t *bytes);
/* Durable, and under `path` there is the old content or the new one, whole. */
clt_status clt_io_write_atomic(const char *path, const void *data, size_t bytes);
/* A name beside `path` that no other process or thread uses: PATH.tmp.PID.N. The caller frees it. */
char *clt_io_temporary(const char *path);

/* --- locks --- */

/* At most one holder at a time, over all processes that reach the storage. The lock belongs to this process
 * and is lost with it, however it ends. `owner` is a line of text that others see while they wait.
 *
 * File system: flock on the file `path`, which holds the text; the kernel drops it. A symbolic link in its
 * place is refused (ELOOP).
 * Object store: the object `path` is created with a conditional PUT and holds the text and an expiry time;
 * the component renews it from a thread of its own (conditional on the ETag that it wrote) several times
 * before it expires, by the server's clock. A lock that expired may be taken over with a conditional PUT on
 * the ETag that was seen. A holder that cannot renew in time has lost the lock: its commit has to fail
 * (clt_ckpt_commit.h), because somebody else may be writing. */
typedef struct clt_io_lock clt_io_lock;
enum { CLT_IO_OWNER_BYTES = 512 };

/* One attempt, without waiting. 0; EWOULDBLOCK: somebody else has it, and `holder` says who ("" unknown);
 * another errno value: the storage cannot lock (ENOTSUP, ENOLCK, ...) or the file cannot be made. */
int clt_io_lock_try(const char *path, const char *owner, clt_io_lock **out, char holder[CLT_IO_OWNER_BYTES]);
/* Seconds to wait before the next attempt. */
double clt_io_lock_retry(const char *path);
/* Replaces the owner's text. */
int clt_io_lock_sign(clt_io_lock *l, const char *owner);
void clt_io_lock_release(clt_io_lock *l); /* NULL is allowed */

/* --- paths and URLs: results are to be freed --- */

/* `b` below `a`; `b` itself when it is absolute or a URL, or `a` is empty. */
char *clt_path_join(const char *a, const char *b);
/* The folder of `path`: "." for a name alone, "/" and SCHEME://AUTHORITY stay what they are. */
char *clt_path_dir(const char *path);
/* The last component, which points into `path`; "" for SCHEME://AUTHORITY and after a final '/'. */
const char *clt_path_base(const char *path);
/* Whether `name` is relative and stays inside its folder: no leading '/', no empty, '.' or '..' component (so
 * no URL either). */
bool clt_path_is_safe(const char *name);
/* Length of "SCHEME://" at the beginning of `path`, 0 for a plain path. */
size_t clt_path_scheme(const char *path);

#endif
