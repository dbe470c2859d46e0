/* clt_io: files, names and locks on any storage. Every function takes a path or a URL (SCHEME://...) and
 * finds the component that serves it (clt_io_component.h); plain paths and file:///... are the local file
 * system. Nothing else in the program opens, lists or renames files of a run, so that an object store can be
 * added and tests can record, fail or cut every operation.
 *
 * Open, read and write are repeated after EINTR and until all bytes are transferred. A failed sync is never
 * repeated. Functions that return clt_status print path and reason (clt_error): CLT_IO, CLT_NO_MEMORY, or
 * CLT_BAD_CONFIG if no component serves the scheme; other statuses stand at the function. Functions that
 * return int print nothing and return 0 or an errno value: EPROTONOSUPPORT if no component serves the scheme,
 * ENOTSUP if the storage lacks the capability.
 *
 * All functions may be called from several threads. Several threads may use one clt_file at once if they
 * write different ranges, and none of them closes it. */
#ifndef CLT_IO_H
#define CLT_IO_H

#include <stdatomic.h>

#include "runtime/base/clt_base.h"

/* --- what a storage can do --- */

/* What file systems and object stores may lack. Code asks for these and never for a component's name. */
typedef enum {
    CLT_IO_CAN_RENAME = 1 << 0,     /* a file or a folder gets another name in one step */
    CLT_IO_CAN_EXCHANGE = 1 << 1,   /* two names are exchanged in one step (some file systems refuse) */
    CLT_IO_CAN_APPEND = 1 << 2,     /* CLT_IO_APPEND */
    CLT_IO_CAN_CREATE_NEW = 1 << 3, /* CLT_IO_CREATE_NEW: of several writers one succeeds (conditional PUT) */
    CLT_IO_CAN_LOCK = 1 << 4,       /* clt_io_lock */
    CLT_IO_CAN_READ_RANGES = 1 << 5,  /* pread costs the time of the bytes that it reads, not of the file */
    CLT_IO_CAN_WRITE_RANGES = 1 << 6, /* pwrite at any offset and in any order, and pread of what was written;
                                       * otherwise a file is written from its beginning to its end, once */
    CLT_IO_HAS_FOLDERS = 1 << 7,      /* folders exist by themselves; otherwise a folder is a common prefix of
                                       * names: it is listed while something is below it, and mkdir does nothing */
    CLT_IO_APPEARS_WHOLE = 1 << 8,    /* a new file gets its name when it is closed, with all its contents */
    CLT_IO_HAS_VERSIONS = 1 << 9      /* clt_io_replace, clt_io_version */
} clt_io_capability;

/* Whether a component serves `path` and has all these capabilities (clt_io_capability, or'ed). */
bool clt_io_can(const char *path, unsigned caps);
/* CLT_BAD_CONFIG if clt_io_can is false; the message is "PATH: WHAT needs storage that can ...". */
clt_status clt_io_require(const char *path, unsigned caps, const char *what);
/* Why no component serves `path` ("no storage serves gs://; S3-compatible endpoints are s3:// with
 * AWS_ENDPOINT_URL; known are ..."), to be freed with clt_free; NULL: a component does. */
char *clt_io_unsupported(const char *path);

/* --- files --- */

typedef struct clt_file clt_file;

typedef enum {
    CLT_IO_READ,       /* reads an existing file */
    CLT_IO_READ_PLAIN, /* like READ; CLT_IO if the name is a symbolic link, which may leave its folder */
    CLT_IO_CREATE,     /* reads and writes; a file of this name is truncated */
    CLT_IO_CREATE_NEW, /* reads and writes; CLT_IO if the name exists */
    CLT_IO_APPEND,     /* appends only, to the end also when several processes append; creates the file */
    CLT_IO_UPDATE /* reads and writes; keeps what the file has; creates it. Needs CLT_IO_CAN_WRITE_RANGES */
} clt_io_mode;

/* Opens a file; *out is freed by clt_file_close. Programs that this process starts do not inherit it.
 * CLT_BAD_CONFIG also if the storage lacks the capability for the mode. */
clt_status clt_file_open(const char *path, clt_io_mode mode, clt_file **out);
/* Reads exactly `bytes` bytes; CLT_BAD_DATA "ends early" if the file has fewer from `offset` on. */
clt_status clt_file_pread(clt_file *f, void *dst, size_t bytes, uint64_t offset);
/* Writes exactly `bytes` bytes. Without CLT_IO_CAN_WRITE_RANGES writes must be consecutive and begin at 0. */
clt_status clt_file_pwrite(clt_file *f, const void *src, size_t bytes, uint64_t offset);
/* Appends with a single write if the system accepts all bytes at once, so that lines of several writers do
 * not mix. The file must be open with CLT_IO_APPEND. */
clt_status clt_file_append(clt_file *f, const void *src, size_t bytes);
/* clt_file_append without a message or an allocation: for the log, which cannot report its own failure. */
int clt_file_try_append(clt_file *f, const void *src, size_t bytes);
clt_status clt_file_size(clt_file *f, uint64_t *bytes);
/* After success, what was written survives a loss of power: the contents; the contents and the attributes. */
clt_status clt_file_datasync(clt_file *f);
clt_status clt_file_sync(clt_file *f);
/* Closes and frees f also when it fails: then the contents may not have been written. NULL is allowed. */
clt_status clt_file_close(clt_file *f);
/* Closes and frees a file whose contents are of no use, without a message. With CLT_IO_APPEARS_WHOLE the name
 * is unchanged; otherwise it is clt_file_close. clt_file_close does the same after a write or a sync of f
 * that failed. NULL is allowed. */
void clt_file_abandon(clt_file *f);
const char *clt_file_path(const clt_file *f); /* as given to open; valid until close */

/* --- names --- */

typedef enum { CLT_IO_ABSENT, CLT_IO_FILE, CLT_IO_FOLDER, CLT_IO_OTHER } clt_io_kind;

typedef struct {
    clt_io_kind kind;
    uint64_t bytes; /* the size of a file */
    uint64_t id[2]; /* names with equal ids are one file or folder (links); {0, 0}: unknown */
} clt_io_info;

/* Follows symbolic links. A name that does not exist is CLT_OK with kind CLT_IO_ABSENT. */
clt_status clt_io_stat(const char *path, clt_io_info *out);
int clt_io_try_stat(const char *path, clt_io_info *out);
/* Whether the name is a file, a folder; false also if stat fails. */
bool clt_io_is_file(const char *path);
bool clt_io_is_dir(const char *path);

/* Needs CLT_IO_CAN_RENAME. A file `to` is replaced. Both names must be on one storage (EXDEV otherwise). A
 * failure of clt_io_rename is always CLT_IO. */
clt_status clt_io_rename(const char *from, const char *to);
int clt_io_try_rename(const char *from, const char *to);
/* Exchanges two names of one storage (EXDEV otherwise) that has CLT_IO_CAN_EXCHANGE (ENOTSUP otherwise).
 * EINVAL or ENOSYS: this file system cannot do it. */
int clt_io_try_exchange(const char *a, const char *b);
/* Removes a file or a symbolic link; CLT_IO, ENOENT if it does not exist. */
clt_status clt_io_unlink(const char *path);
int clt_io_try_unlink(const char *path);
/* After success, what changed in the folder's list of names survives a loss of power. Without
 * CLT_IO_HAS_FOLDERS this and the mkdir functions succeed and do nothing. */
clt_status clt_io_sync_dir(const char *path);
/* Like mkdir -p. clt_io_mkdirs also syncs the parent of each new folder, so that the folder survives a loss
 * of power; clt_io_try_mkdirs does not. */
clt_status clt_io_mkdirs(const char *path);
int clt_io_try_mkdirs(const char *path);
/* Makes one folder, without a sync; CLT_IO if the name exists. */
clt_status clt_io_mkdir(const char *path);
/* Like rm -r: links are removed, not followed. CLT_OK if `path` does not exist. The first failure ends it. */
clt_status clt_io_remove_tree(const char *path);
/* Adds the names in a folder to `names`, without "." and "..", and sorts the whole list. After a failure
 * `names` may hold some of them; the caller frees it in any case. Without CLT_IO_HAS_FOLDERS a folder that
 * nothing is below has no names, and that is no error. */
clt_status clt_io_list(const char *path, clt_strv *names);

/* --- whole files --- */

/* Reads a file of at most `limit` bytes; a larger one is CLT_BAD_DATA. *data is to be freed with clt_free; a
 * NUL byte follows the contents, which *bytes does not count. bytes may be NULL. */
clt_status clt_io_read_all(const char *path, size_t limit, char **data, size_t *bytes);
/* Replaces or creates a file in one step: at any time, also after a failure or a loss of power, `path` has
 * all of its old contents or all of the new ones. After success the new ones survive a loss of power. A
 * symbolic link is replaced. What is no file (a device, a pipe, /dev/stdout) is written to instead.
 * CLT_BAD_CONFIG also if the storage has neither CLT_IO_CAN_RENAME nor CLT_IO_APPEARS_WHOLE. */
clt_status clt_io_write_atomic(const char *path, const void *data, size_t bytes);
/* A name beside `path` that no other process or thread of this host uses: PATH.tmp.PID.N. To be freed with
 * clt_free. */
char *clt_io_temporary(const char *path);

/* --- versions --- */

/* A version names the contents of a file: an object's ETag. */
enum { CLT_IO_VERSION_BYTES = 256 };

/* Writes a whole file in one step if its version is the expected one: NULL, any; "", the file does not exist;
 * otherwise what clt_io_version or an earlier clt_io_replace gave. `version` (NULL is allowed) receives the
 * new one. EEXIST, ESTALE: the file exists, is another version or gone; nothing changed. ENOTSUP: the storage
 * has no versions. `version` may be the array of `expected`. */
int clt_io_replace(const char *path, const void *data, size_t bytes, const char *expected,
                   char version[CLT_IO_VERSION_BYTES]);
/* ENOENT: the file does not exist. */
int clt_io_version(const char *path, char version[CLT_IO_VERSION_BYTES]);

/* --- what was not finished --- */

/* An upload that was not finished. */
typedef struct {
    const char *name; /* of the file that it would become, below the path that is cleaned */
    double began;     /* seconds since 1970 by the storage's clock */
    double age;       /* seconds since then by the same clock */
    uint64_t bytes;   /* that it holds; UINT64_MAX: the storage does not tell */
} clt_io_unfinished;
typedef void (*clt_io_unfinished_fn)(void *ctx, const clt_io_unfinished *u);

/* Removes what writers that ended left below a path and no list shows: uploads that began more than `age`
 * seconds ago by the storage's clock (their parts cost money). An upload in progress that is older fails.
 * *n: how many. Other storage: *n = 0. `each` (NULL is allowed) is called for each one that was removed; its
 * size costs another request. With `dry_run` nothing is removed, and *n and `each` have what would be. */
clt_status clt_io_clean(const char *path, double age, bool dry_run, clt_io_unfinished_fn each, void *ctx,
                        int *n);

/* The errno value of the calling thread's last operation that failed with CLT_IO and a message; 0: none did.
 */
int clt_io_last_errno(void);
/* Whether this errno value says that a storage could not be reached, or did not respond in time: the same
 * operation may succeed later without anybody's doing. */
bool clt_io_may_pass(int e);
/* Why the calling thread's last operation on the storage of `path` failed with `e`: the storage's own words,
 * or strerror. Valid until its next operation. */
const char *clt_io_explain(const char *path, int e);

/* --- requests to stop --- */

/* With `heed`, operations of this thread on remote storage end with ECANCELED soon after a request to stop
 * (clt_signal.h); functions that return clt_status then return CLT_STOPPED. At first a thread does not heed
 * them, because a run that stops still saves. Only for threads that may call clt_signal_received. Returns the
 * previous value. */
bool clt_io_heed_stop(bool heed);
/* Such operations of this thread also end when *stop becomes true: for threads that may not ask
 * clt_signal_received and are stopped by another one. `stop` is borrowed until the next call; NULL: none. */
void clt_io_heed_flag(const atomic_bool *stop);
/* Operations of this thread on remote storage end with ETIMEDOUT soon after this time (clt_now), also if the
 * storage's own limit is later; 0, as at first: only that one counts. Returns the previous value. */
double clt_io_set_deadline(double at);
/* For components: the deadline of this thread, 0: none. */
double clt_io_deadline(void);
/* For components: whether this thread heeds requests; whether it does and there is one. */
bool clt_io_stop_heeded(void);
bool clt_io_stop_requested(void);
/* The flag of clt_io_heed_flag, for other threads that work for this one; NULL: none. */
const atomic_bool *clt_io_heeded_flag(void);

/* --- locks --- */

/* At most one holder at a time, over all processes that reach the storage. The lock belongs to this process
 * and is released when the process ends in any way. `owner` is one line of text for those who wait: it is cut
 * after CLT_IO_OWNER_BYTES - 2 bytes.
 *
 * File system: flock on the file `path`, which is created, holds the text and stays when the lock is
 * released. If `path` is a symbolic link: ELOOP. Object store: a lease. The object `path` is created with a
 * conditional PUT and holds the text, a random token and a duration of 60 s. A thread of the component renews
 * it every 15 s, conditional on the ETag that it wrote. A lease that was not renewed for 60 s by the server's
 * clock may be taken over, with a conditional PUT on the ETag that was seen; so a lock whose process died is
 * free after a minute. A holder that cannot renew in time does not hold the lock (clt_io_lock_is_held): its
 * commit has to wait or fail (clt_ckpt_commit.h), because somebody else may be writing. It keeps trying: if
 * nobody took the lease over or removed it, the object has not changed and the next renewal regains the lock;
 * otherwise the lock is lost for good. The object stays when the lock is released and says that it is free.
 */
typedef struct clt_io_lock clt_io_lock;
enum { CLT_IO_OWNER_BYTES = 512 };

/* Tries once to take the lock, without waiting. 0: *out is the lock. EWOULDBLOCK: somebody else holds it, and
 * `holder` is the text of its owner, "" if unknown. Any other errno value: the storage cannot lock (ENOTSUP,
 * ENOLCK, ...) or the file cannot be created. */
int clt_io_lock_try(const char *path, const char *owner, clt_io_lock **out, char holder[CLT_IO_OWNER_BYTES]);
/* The owner's text of this process: "host H, process P, since T" and then `more`. */
void clt_io_describe_owner(const char *more, char owner[CLT_IO_OWNER_BYTES]);
/* Seconds to wait between two attempts at a lock of this storage. */
double clt_io_lock_retry(const char *path);
/* Whether the lock is held now: false while a lease could not be renewed in time, and for good after somebody
 * else took it over. Asks nobody: what it says was true at the last renewal and holds for the lease. */
bool clt_io_lock_is_held(const clt_io_lock *l);
/* Replaces the owner's text, and renews a lease. 0 or an errno value; ESTALE: the lock is lost for good. */
int clt_io_lock_sign(clt_io_lock *l, const char *owner);
/* Releases the lock and frees l; NULL is allowed. */
void clt_io_lock_release(clt_io_lock *l);

/* --- paths and URLs, as text --- */

/* A/B; `b` alone if it is absolute or a URL, or if `a` is "". To be freed with clt_free. */
char *clt_path_join(const char *a, const char *b);
/* What stands before the last '/' of `path`, to be freed with clt_free; "." if there is no '/'. The folder of
 * "/" and of SCHEME://AUTHORITY is itself. */
char *clt_path_dir(const char *path);
/* What stands after the last '/' of `path`: a pointer into `path`. "" for SCHEME://AUTHORITY. */
const char *clt_path_base(const char *path);
/* Whether `name` is relative and stays inside its folder: no leading '/', no empty, '.' or '..' component (so
 * no URL either). */
bool clt_path_is_safe(const char *name);
/* Length of "SCHEME://" at the beginning of `path`, 0 for a plain path. */
size_t clt_path_scheme(const char *path);

#endif
