/* clt_io_component: what stands behind clt_io. A component serves one kind of storage: the local file system
 * (clt_io_local.c, the example to copy; runtime/object/clt_io_s3.c); clt_io_probe stands before another
 * component, and test/memfs is a file system in memory. A component is a struct that begins with a
 * clt_io_component; the rest is its state (credentials, region, connections), which its own create function
 * makes from its configuration. Every function gets it, so several components of one kind work side by side.
 *
 * Components are registered under a scheme ("s3") or under a scheme and an authority ("s3://bucket"), which
 * has precedence: two buckets may have different credentials. Plain paths and file:///... belong to the
 * scheme "file", where the local file system is registered from the start. A program registers its components
 * when it starts; a run registers nothing. */
#ifndef CLT_IO_COMPONENT_H
#define CLT_IO_COMPONENT_H

#include "runtime/base/clt_io.h"

typedef struct clt_io_component clt_io_component;

/* Each function returns 0 or an errno value and prints nothing (ENOKEY: the storage's configuration,
 * as credentials, is invalid, and `explain` says how; ECANCELED: clt_io_stop_requested); `explain` tells more
 * about the calling thread's last failure. `path` is what follows SCHEME:// in a URL
 * ("bucket/key"), or the plain path. `handle` and `lock` are the component's values; it may choose NULL. All
 * functions may be called from several threads at once, also for one handle. Concurrent writes to one handle
 * have different ranges. NULL is allowed for rename, exchange and append without the capability of that name,
 * for lock, sign and unlock without CLT_IO_CAN_LOCK, and for rmdir, mkdir and sync_dir without
 * CLT_IO_HAS_FOLDERS. */
typedef struct {
    const char *name; /* "local", for messages */

    /* --- files --- */
    int (*open)(clt_io_component *c, const char *path, clt_io_mode mode, void **handle);
    /* pread, pwrite and append are one attempt: *done may be less than `bytes`. A read of 0 bytes is the end
     * of the file; a write of 0 bytes counts as ENOSPC. open and these three are called again after EINTR;
     * close is not: its EINTR counts as success. */
    int (*pread)(clt_io_component *c, void *handle, void *dst, size_t bytes, uint64_t offset, size_t *done);
    int (*pwrite)(clt_io_component *c, void *handle, const void *src, size_t bytes, uint64_t offset,
                  size_t *done);
    int (*append)(clt_io_component *c, void *handle, const void *src, size_t bytes, size_t *done);
    int (*size)(clt_io_component *c, void *handle, uint64_t *bytes);
    /* After datasync the written data survive a loss of power; after sync the attributes, too. */
    int (*datasync)(clt_io_component *c, void *handle);
    int (*sync)(clt_io_component *c, void *handle);
    /* Closes in any case. With CLT_IO_APPEARS_WHOLE close publishes the file; after an error the name is
     * unchanged. */
    int (*close)(clt_io_component *c, void *handle);
    /* Closes a file that must not be published. NULL: like close. */
    void (*abandon)(clt_io_component *c, void *handle);

    /* --- names --- */
    int (*rename)(clt_io_component *c, const char *from, const char *to);
    int (*exchange)(clt_io_component *c, const char *a, const char *b);
    int (*unlink)(clt_io_component *c, const char *path); /* ENOENT when there is no such file */
    int (*rmdir)(clt_io_component *c, const char *path);
    int (*mkdir)(clt_io_component *c, const char *path); /* EEXIST when the name is taken */
    int (*sync_dir)(clt_io_component *c, const char *path);
    /* Names in a folder, each once, in any order, without "." and "..". A list that breaks off is an error.
     */
    int (*list)(clt_io_component *c, const char *path, clt_strv *names);
    int (*stat)(clt_io_component *c, const char *path, clt_io_info *out); /* absent is no error */

    /* --- locks: see clt_io_lock in clt_io.h for the contract --- */
    /* One attempt, without waiting. EWOULDBLOCK: somebody else has it, and `holder` says who. */
    int (*lock)(clt_io_component *c, const char *path, const char *owner, void **lock,
                char holder[CLT_IO_OWNER_BYTES]);
    int (*sign)(clt_io_component *c, void *lock, const char *owner);
    void (*unlock)(clt_io_component *c, void *lock);
    bool (*is_held)(clt_io_component *c, void *lock); /* NULL: always */

    /* --- versions: see clt_io_replace; NULL without CLT_IO_HAS_VERSIONS --- */
    int (*replace)(clt_io_component *c, const char *path, const void *data, size_t bytes,
                   const char *expected, char version[CLT_IO_VERSION_BYTES]);
    int (*version)(clt_io_component *c, const char *path, char version[CLT_IO_VERSION_BYTES]);

    /* See clt_io_clean. NULL: nothing is ever unfinished. */
    int (*clean)(clt_io_component *c, const char *path, double age, bool dry_run, clt_io_unfinished_fn each,
                 void *ctx, int *n);

    /* What a message says instead of strerror about this thread's last failure here: "503 SlowDown after 8
     * attempts (request id ...)". NULL, as a function or a result: strerror. Valid until the thread's next
     * call. */
    const char *(*explain)(clt_io_component *c);
} clt_io_ops;

/* Begins the struct of every component. */
struct clt_io_component {
    const clt_io_ops *ops;
    unsigned caps;     /* clt_io_capability, or'ed */
    double lock_retry; /* seconds between two attempts at a lock that somebody else has */
};

/* The local file system. It has no state and lives for ever. */
clt_io_component *clt_io_local(void);

/* From now on `c` serves URLs that begin with `key`: "SCHEME" or "SCHEME://AUTHORITY". Replaces what was
 * registered under the same key. `key` (at most 255 bytes, in any case of letters) is copied. `c` is borrowed
 * until it is unregistered or replaced and its last file and lock are closed. CLT_FAIL: the key is malformed,
 * or 32 keys are registered. */
clt_status clt_io_register(const char *key, clt_io_component *c);
/* "file" gets the local file system back. Unknown keys are ignored. */
void clt_io_unregister(const char *key);

/* The component of `path` and the component's own name of it (points into `path`). 0, or EPROTONOSUPPORT: no
 * component serves the scheme, or the URL is file://HOST/...; clt_io_unsupported says why. */
int clt_io_find(const char *path, clt_io_component **c, const char **name);

#endif
