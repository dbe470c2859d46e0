/* Files that are written: uploaded in parts while the caller goes on writing, published by close. */
#include <errno.h>
#include <string.h>

#include "runtime/object/clt_io_s3_internal.h"

enum { MAX_PARTS = 10000, GROWTH = 1500 };

struct clt_s3_writing {
    clt_s3_place place;
    bool only_new;
    char *buffer; /* the part that is being filled; NULL: none */
    size_t fill, cap;
    uint64_t written;
    int parts;               /* handed to the pool */
    const atomic_bool *flag; /* of the thread that opened the file, which ends uploads of parts, too */

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    clt_s3_upload upload;
    bool beginning;
    char **etags;
    size_t etags_cap;
    atomic_int pending;
    atomic_int error; /* the first one */
    char *why;
};

typedef struct {
    clt_s3_job job;
    clt_s3_writing *w;
    int number;
    char *data;
    size_t bytes, cap;
} part_job;

/* A part of 16 MiB, later 1/1500 of what was written before: 10,000 parts are enough for 5 TiB, and up to
 * 24 GiB all of them have 16 MiB. */
static size_t part_bytes(uint64_t written) {
    return CLT_MAX((size_t)CLT_S3_PART_BYTES, CLT_ROUND_UP((size_t)(written / GROWTH), 1u << 20));
}

int clt_s3_writing_open(clt_s3_place *p, bool only_new, clt_s3_writing **out) {
    clt_s3_info info;
    int e = only_new ? clt_s3_head(p->store, p->bucket, p->key, &info) : ENOENT;
    if (!e) return clt_s3_fail(EEXIST, "it exists already");
    if (e != ENOENT) return e;
    clt_s3_forget();
    clt_s3_writing *w = clt_calloc(1, sizeof *w);
    w->place = *p;
    *p = (clt_s3_place){0};
    w->only_new = only_new;
    w->flag = clt_io_heeded_flag();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    clt_s3_pool_enter();
    *out = w;
    return 0;
}

uint64_t clt_s3_writing_size(const clt_s3_writing *w) {
    return w->written;
}

/* Keeps the calling thread's failure as the file's, if it is the first one. Lock held. */
static void keep_failure(clt_s3_writing *w, int e) {
    if (!e || w->error) return;
    w->error = e;
    w->why = clt_strdup(clt_s3_reason());
}

/* Makes the file's failure the calling thread's. */
static int failed(const clt_s3_writing *w) {
    return w->why && *w->why ? clt_s3_fail(w->error, "%s", w->why) : w->error;
}

/* --- parts, in the threads of the pool --- */

/* Lock held. */
static void begin_upload(clt_s3_writing *w) {
    while (w->beginning) pthread_cond_wait(&w->changed, &w->lock);
    if (w->upload.id || w->error) return;
    w->beginning = true;
    pthread_mutex_unlock(&w->lock);
    clt_s3_upload u;
    int e = clt_s3_upload_begin(w->place.store, w->place.bucket, w->place.key, &u);
    pthread_mutex_lock(&w->lock);
    w->beginning = false;
    if (!e) w->upload = u;
    keep_failure(w, e);
    pthread_cond_broadcast(&w->changed);
}

static void run_part(clt_s3_job *job) {
    part_job *p = (part_job *)job;
    clt_s3_writing *w = p->w;
    char etag[256];
    const atomic_bool *before = clt_io_heeded_flag();
    clt_io_heed_flag(w->flag);
    pthread_mutex_lock(&w->lock);
    begin_upload(w);
    bool skip = w->error;
    pthread_mutex_unlock(&w->lock);
    int e = skip ? 0
                 : clt_s3_upload_part(w->place.store, w->place.bucket, w->place.key, &w->upload, p->number,
                                      p->data, p->bytes, etag);
    clt_io_heed_flag(before);
    pthread_mutex_lock(&w->lock);
    if (!skip && !e) w->etags[p->number - 1] = clt_strdup(etag);
    keep_failure(w, e);
    pthread_mutex_unlock(&w->lock);
    clt_s3_pool_give(p->data, p->cap);
    clt_free(p);
    pthread_mutex_lock(&w->lock);
    w->pending--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock); /* from now on close may free w */
    clt_s3_pool_wake();
}

static void submit(clt_s3_writing *w) {
    part_job *p = clt_malloc(sizeof *p);
    *p = (part_job){{run_part, NULL}, w, ++w->parts, w->buffer, w->fill, w->cap};
    w->buffer = NULL;
    w->fill = 0;
    pthread_mutex_lock(&w->lock);
    if ((size_t)w->parts > w->etags_cap) {
        size_t cap = w->etags_cap * 2 + 64;
        w->etags = clt_realloc(w->etags, cap * sizeof *w->etags);
        memset(w->etags + w->etags_cap, 0, (cap - w->etags_cap) * sizeof *w->etags);
        w->etags_cap = cap;
    }
    w->pending++;
    pthread_mutex_unlock(&w->lock);
    clt_s3_pool_run(&p->job);
}

/* --- writing --- */

static int fail_here(clt_s3_writing *w, int e) {
    pthread_mutex_lock(&w->lock);
    keep_failure(w, e);
    pthread_mutex_unlock(&w->lock);
    return e;
}

int clt_s3_writing_pwrite(clt_s3_writing *w, const void *src, size_t bytes, uint64_t offset, size_t *done) {
    *done = 0;
    if (w->error) return failed(w);
    if (offset != w->written)
        return fail_here(w, clt_s3_fail(ENOTSUP,
                                        "an object is written from its beginning to its end: offset "
                                        "%llu follows %llu bytes",
                                        (unsigned long long)offset, (unsigned long long)w->written));
    if (!w->buffer) {
        if (w->parts == MAX_PARTS)
            return fail_here(w, clt_s3_fail(EFBIG, "an object has at most %d parts", MAX_PARTS));
        w->cap = part_bytes(w->written);
        w->buffer = clt_s3_pool_take(w->cap, &w->pending);
        if (!w->buffer) return fail_here(w, clt_s3_fail(ENOMEM, "no memory for a part of %zu bytes", w->cap));
    }
    size_t n = CLT_MIN(bytes, w->cap - w->fill);
    memcpy(w->buffer + w->fill, src, n);
    w->fill += n;
    w->written += n;
    *done = n;
    if (w->fill == w->cap) submit(w);
    return 0;
}

/* --- the end --- */

static int complete(clt_s3_writing *w) {
    char etag[256] = "";
    return clt_s3_upload_complete(w->place.store, w->place.bucket, w->place.key, &w->upload,
                                  (const char *const *)w->etags, (size_t)w->parts,
                                  w->only_new ? CLT_S3_IF_ABSENT : CLT_S3_ANY, etag);
}

static int put_whole(clt_s3_writing *w) {
    char etag[256] = "";
    return clt_s3_put(w->place.store, w->place.bucket, w->place.key, w->buffer ? w->buffer : "", w->fill,
                      w->only_new ? CLT_S3_IF_ABSENT : CLT_S3_ANY, etag);
}

static void free_writing(clt_s3_writing *w) {
    if (w->buffer) clt_s3_pool_give(w->buffer, w->cap);
    clt_s3_pool_leave();
    for (int i = 0; i < w->parts; i++) clt_free(w->etags[i]);
    clt_free(w->etags);
    clt_s3_upload_free(&w->upload);
    clt_s3_place_free(&w->place);
    clt_free(w->why);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    clt_free(w);
}

int clt_s3_writing_close(clt_s3_writing *w, bool publish) {
    static const double abort_seconds = 30;
    if (!publish) fail_here(w, clt_s3_fail(ECANCELED, "abandoned"));
    if (!w->error && w->parts && w->fill) submit(w);
    pthread_mutex_lock(&w->lock);
    while (w->pending) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    if (!w->error) fail_here(w, w->parts ? complete(w) : put_whole(w));
    if (w->error && w->upload.id) {
        double before = clt_s3_limit(abort_seconds);
        clt_s3_upload_abort(w->place.store, w->place.bucket, w->place.key, w->upload.id);
        clt_s3_limit(before);
    }
    int e = w->error ? failed(w) : 0;
    free_writing(w);
    return e;
}
