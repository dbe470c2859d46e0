/* clt_io: all writing and reading of files goes through one table of functions, so that an object store can
 * stand behind it later and tests can record, fail or cut every operation. The default table is the local
 * file system: it loops over short reads and writes, retries EINTR, never retries a failed fsync, and checks
 * close. Every function prints path and reason (clt_error, CLT_IO) and returns the status. */
#ifndef CLT_IO_H
#define CLT_IO_H

#include "runtime/base/clt_base.h"

typedef struct clt_file clt_file;

typedef enum {
    CLT_IO_READ,
    CLT_IO_CREATE /* new or truncated */,
    CLT_IO_APPEND,
    CLT_IO_READ_PLAIN /* like READ, but the file may not be a symbolic link: it lies in the folder that names
                         it */
} clt_io_mode;

/* The seam. Each returns 0 or an errno value; `handle` belongs to the implementation. */
typedef struct {
    const char *name;
    int (*open)(const char *path, clt_io_mode mode, void **handle);
    int (*pread)(void *handle, void *dst, size_t bytes, uint64_t offset, size_t *done);
    int (*pwrite)(void *handle, const void *src, size_t bytes, uint64_t offset, size_t *done);
    int (*append)(void *handle, const void *src, size_t bytes, size_t *done);
    int (*size)(void *handle, uint64_t *bytes);
    int (*datasync)(void *handle);
    int (*sync)(void *handle);
    int (*close)(void *handle);
    int (*rename)(const char *from, const char *to);
    int (*exchange)(const char *a, const char *b); /* swap two names atomically */
    int (*unlink)(const char *path);
    int (*rmdir)(const char *path);
    int (*mkdir)(const char *path);
    int (*sync_dir)(const char *path);
    int (*list)(const char *path, clt_strv *names);            /* without . and .., unsorted */
    int (*kind)(const char *path, int *kind, uint64_t *bytes); /* kind: 0 absent, 1 file, 2 folder, 3 other */
} clt_io_ops;

extern const clt_io_ops clt_io_local;
/* The table in use (default clt_io_local); tests set another. */
const clt_io_ops *clt_io_get(void);
void clt_io_set(const clt_io_ops *ops);

clt_status clt_file_open(const char *path, clt_io_mode mode, clt_file **out);
/* Exactly `bytes`, or CLT_BAD_DATA "ends early" (pread past the end), or CLT_IO. */
clt_status clt_file_pread(clt_file *f, void *dst, size_t bytes, uint64_t offset);
clt_status clt_file_pwrite(clt_file *f, const void *src, size_t bytes, uint64_t offset);
clt_status clt_file_append(clt_file *f, const void *src,
                           size_t bytes); /* one write call if the OS takes it whole */
clt_status clt_file_size(clt_file *f, uint64_t *bytes);
clt_status clt_file_datasync(clt_file *f);
clt_status clt_file_sync(clt_file *f);
/* Closes in any case; reports a failing close. NULL is allowed. */
clt_status clt_file_close(clt_file *f);

clt_status clt_io_rename(const char *from, const char *to);
clt_status clt_io_unlink(const char *path);
clt_status clt_io_sync_dir(const char *path);
/* Like mkdir -p; each new folder's parent is synced, so that what is made durable inside stays reachable. */
clt_status clt_io_mkdirs(const char *path);
clt_status clt_io_mkdir(const char *path); /* one folder, which must not be there; not synced */
/* The same without a message, for folders that may as well be absent: 0 or an errno value. */
int clt_io_try_mkdirs(const char *path);
clt_status clt_io_remove_tree(const char *path);           /* like rm -r; absent is success */
clt_status clt_io_list(const char *path, clt_strv *names); /* sorted */
bool clt_io_is_file(const char *path);
bool clt_io_is_dir(const char *path);

/* Whole files. read: refuses files above `limit` bytes (CLT_BAD_DATA); adds a 0 after the data.
 * write_atomic: temporary name in the same folder, fsync, rename, fsync of the folder. */
clt_status clt_io_read_all(const char *path, size_t limit, char **data, size_t *bytes);
clt_status clt_io_write_atomic(const char *path, const void *data, size_t bytes);

/* Paths: malloc'ed results. */
char *clt_path_join(const char *a, const char *b);
char *clt_path_dir(const char *path);
const char *clt_path_base(const char *path);
/* True if `name` is relative and stays inside its folder: no leading '/', no empty, '.' or '..' component. */
bool clt_path_is_safe(const char *name);

#endif
