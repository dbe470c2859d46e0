/* A handle of clt_io: a file that is read, or one that is written. */
#include <errno.h>

#include "runtime/object/clt_io_s3_internal.h"

typedef struct {
    clt_s3_reader *reader; /* one of them is NULL */
    clt_s3_writing *writing;
} s3_file;

int clt_io_s3_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle) {
    clt_s3_place p;
    s3_file f = {0};
    int e = clt_s3_place_of(c, path, &p);
    if (!e && !*p.key) e = clt_s3_fail(EISDIR, "a bucket is no file");
    if (!e && (mode == CLT_IO_APPEND || mode == CLT_IO_UPDATE)) e = ENOTSUP;
    if (!e && (mode == CLT_IO_READ || mode == CLT_IO_READ_PLAIN))
        e = clt_s3_reader_open(&p, &f.reader);
    else if (!e)
        e = clt_s3_writing_open(&p, mode == CLT_IO_CREATE_NEW, &f.writing);
    clt_s3_place_free(&p);
    if (!e) *handle = clt_memdup(&f, sizeof f);
    return e;
}

int clt_io_s3_pread(clt_io_component *c, void *handle, void *dst, size_t bytes, uint64_t offset,
                    size_t *done) {
    (void)c;
    s3_file *f = handle;
    clt_s3_forget();
    *done = 0;
    if (!f->reader) return clt_s3_fail(ENOTSUP, "an object cannot be read before it is closed");
    return clt_s3_reader_pread(f->reader, dst, bytes, offset, done);
}

int clt_io_s3_pwrite(clt_io_component *c, void *handle, const void *src, size_t bytes, uint64_t offset,
                     size_t *done) {
    (void)c;
    s3_file *f = handle;
    clt_s3_forget();
    *done = 0;
    return f->writing ? clt_s3_writing_pwrite(f->writing, src, bytes, offset, done) : EBADF;
}

int clt_io_s3_size(clt_io_component *c, void *handle, uint64_t *bytes) {
    (void)c;
    s3_file *f = handle;
    *bytes = f->reader ? clt_s3_reader_size(f->reader) : clt_s3_writing_size(f->writing);
    return 0;
}

/* What was written survives once close has published it, and not before. */
int clt_io_s3_sync(clt_io_component *c, void *handle) {
    (void)c;
    (void)handle;
    return 0;
}

static int end(s3_file *f, bool publish) {
    int e = 0;
    clt_s3_forget();
    if (f->reader)
        clt_s3_reader_close(f->reader);
    else
        e = clt_s3_writing_close(f->writing, publish);
    clt_free(f);
    return e;
}

int clt_io_s3_close(clt_io_component *c, void *handle) {
    (void)c;
    return end(handle, true);
}

void clt_io_s3_abandon(clt_io_component *c, void *handle) {
    (void)c;
    end(handle, false);
}
