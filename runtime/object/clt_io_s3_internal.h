/* clt_io_s3_internal: the component of clt_io on object stores, for clt_io_s3*.c only. */
#ifndef CLT_IO_S3_INTERNAL_H
#define CLT_IO_S3_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/base/clt_io_component.h"
#include "runtime/object/clt_s3.h"

typedef struct {
    clt_io_component base;
    pthread_mutex_t lock;
    clt_s3 *store; /* NULL before the first operation */
} clt_io_s3;

/* A path: the store, the bucket, and the key without slashes at its end ("": the bucket itself). */
typedef struct {
    clt_s3 *store;
    char *bucket, *key;
} clt_s3_place;

/* Begins an operation on "bucket/key": reads the configuration if it is the first one. EINVAL: no name of an
 * object that clt_io can have (empty, "." or ".." components, control characters); ENAMETOOLONG; ENOKEY: the
 * configuration. To be freed with clt_s3_place_free in any case. */
int clt_s3_place_of(clt_io_component *c, const char *path, clt_s3_place *out);
void clt_s3_place_free(clt_s3_place *p);

/* --- clt_io_s3_file.c; see clt_io_ops --- */
int clt_io_s3_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle);
int clt_io_s3_pread(clt_io_component *c, void *handle, void *dst, size_t bytes, uint64_t offset,
                    size_t *done);
int clt_io_s3_pwrite(clt_io_component *c, void *handle, const void *src, size_t bytes, uint64_t offset,
                     size_t *done);
int clt_io_s3_size(clt_io_component *c, void *handle, uint64_t *bytes);
int clt_io_s3_sync(clt_io_component *c, void *handle);
int clt_io_s3_close(clt_io_component *c, void *handle);
void clt_io_s3_abandon(clt_io_component *c, void *handle);

/* --- clt_io_s3_read.c, clt_io_s3_write.c: the two kinds of files; the place is taken over --- */
typedef struct clt_s3_reader clt_s3_reader;
int clt_s3_reader_open(clt_s3_place *p, clt_s3_reader **out);
int clt_s3_reader_pread(clt_s3_reader *r, void *dst, size_t bytes, uint64_t offset, size_t *done);
uint64_t clt_s3_reader_size(const clt_s3_reader *r);
void clt_s3_reader_close(clt_s3_reader *r);

typedef struct clt_s3_writing clt_s3_writing;
int clt_s3_writing_open(clt_s3_place *p, bool only_new, clt_s3_writing **out);
int clt_s3_writing_pwrite(clt_s3_writing *w, const void *src, size_t bytes, uint64_t offset, size_t *done);
uint64_t clt_s3_writing_size(const clt_s3_writing *w);
int clt_s3_writing_close(clt_s3_writing *w, bool publish);

/* --- clt_io_s3_lock.c; see clt_io_ops --- */
int clt_io_s3_lock(clt_io_component *c, const char *path, const char *owner, void **lock,
                   char holder[CLT_IO_OWNER_BYTES]);
int clt_io_s3_sign(clt_io_component *c, void *lock, const char *owner);
void clt_io_s3_unlock(clt_io_component *c, void *lock);
bool clt_io_s3_is_held(clt_io_component *c, void *lock);

/* --- clt_io_s3_pool.c: threads and memory that all files share --- */

typedef struct clt_s3_job {
    void (*run)(struct clt_s3_job *); /* frees the job */
    struct clt_s3_job *next;
} clt_s3_job;

enum { CLT_S3_PART_BYTES = 16 << 20, CLT_S3_THREADS = 8 };

/* Runs the job on one of CLT_S3_THREADS threads; here if none can be created. */
void clt_s3_pool_run(clt_s3_job *job);
/* A buffer. Waits while all buffers have more than CLT_S3_THREADS + 1 parts of 16 MiB, as long as *pending >
 * 0: jobs of the caller are in progress and will give buffers back. So a file always has one. NULL: no
 * memory.
 */
void *clt_s3_pool_take(size_t bytes, const atomic_int *pending);
void clt_s3_pool_give(void *buffer, size_t bytes);
void clt_s3_pool_wake(void); /* *pending changed */
/* The files that are being written; with the last one the buffers are freed. */
void clt_s3_pool_enter(void);
void clt_s3_pool_leave(void);
void clt_s3_pool_end(void); /* ends the threads; no job may be in progress */

#endif
