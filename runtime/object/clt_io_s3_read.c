/* Files that are read: ranged GETs of one version of an object. */
#include <errno.h>
#include <string.h>

#include "runtime/base/clt_thread.h"
#include "runtime/object/clt_io_s3_internal.h"

enum {
    FIRST_BYTES = 256 << 10, /* come with the request that opens the file */
    AHEAD_BYTES = 1 << 20,   /* of a reader that goes on where it ended */
    NEAR_BYTES = 64 << 10,   /* of a reader that does not */
    LARGE_BYTES = 1 << 20,   /* a read from this on goes straight into the caller's memory */
    PIECE_BYTES = 8 << 20,   /* a larger read is divided, at most among PIECES connections */
    PIECES = 4
};

struct clt_s3_reader {
    clt_s3_place place;
    uint64_t bytes;
    char etag[256];
    pthread_mutex_t lock; /* for what follows */
    char *ahead;          /* bytes [at, at + n) */
    uint64_t at, next;    /* next: where the last small read ended */
    size_t n, cap;
};

int clt_s3_reader_open(clt_s3_place *p, clt_s3_reader **out) {
    clt_s3_info info;
    char *first = clt_try_malloc(FIRST_BYTES);
    size_t got = 0;
    if (!first) return ENOMEM;
    int e = clt_s3_get(p->store, p->bucket, p->key, NULL, first, FIRST_BYTES, 0, &got, &info);
    if (e) {
        clt_free(first);
        return e;
    }
    clt_s3_reader *r = clt_calloc(1, sizeof *r);
    r->place = *p;
    *p = (clt_s3_place){0};
    r->bytes = info.bytes;
    memcpy(r->etag, info.etag, sizeof r->etag);
    char *fits = clt_try_realloc(first, CLT_MAX(got, 1));
    r->ahead = fits ? fits : first;
    r->n = r->cap = got;
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return 0;
}

void clt_s3_reader_close(clt_s3_reader *r) {
    clt_s3_place_free(&r->place);
    pthread_mutex_destroy(&r->lock);
    clt_free(r->ahead);
    clt_free(r);
}

uint64_t clt_s3_reader_size(const clt_s3_reader *r) {
    return r->bytes;
}

static int get(clt_s3_reader *r, void *dst, size_t bytes, uint64_t offset) {
    size_t got;
    int e =
        clt_s3_get(r->place.store, r->place.bucket, r->place.key, r->etag, dst, bytes, offset, &got, NULL);
    if (!e && got < bytes)
        e = clt_s3_fail(EIO, "s3://%s/%s ends at %llu of %llu bytes", r->place.bucket, r->place.key,
                        (unsigned long long)(offset + got), (unsigned long long)r->bytes);
    return e;
}

/* --- large reads --- */

typedef struct {
    clt_s3_reader *r;
    char *dst;
    size_t bytes, piece;
    uint64_t offset;
    double limit, deadline; /* of the calling thread */
    pthread_mutex_t lock;
    int error;
    char *text;
} division;

static void get_piece(void *ctx, size_t i) {
    division *d = ctx;
    size_t from = i * d->piece;
    const double limit = clt_s3_limit(d->limit), deadline = clt_io_set_deadline(d->deadline);
    int e = get(d->r, d->dst + from, CLT_MIN(d->piece, d->bytes - from), d->offset + from);
    clt_s3_limit(limit);
    clt_io_set_deadline(deadline);
    if (!e) return;
    pthread_mutex_lock(&d->lock);
    if (!d->error) {
        d->error = e;
        d->text = clt_strdup(clt_s3_reason());
    }
    pthread_mutex_unlock(&d->lock);
}

static int get_large(clt_s3_reader *r, void *dst, size_t bytes, uint64_t offset) {
    size_t n = CLT_MIN(bytes / PIECE_BYTES, PIECES);
    /* Other threads cannot look for requests to stop. */
    if (n < 2 || clt_io_stop_heeded()) return get(r, dst, bytes, offset);
    division d = {.r = r, .dst = dst, .bytes = bytes, .piece = CLT_CEIL_DIV(bytes, n), .offset = offset};
    d.limit = clt_s3_limit(0);
    clt_s3_limit(d.limit);
    d.deadline = clt_io_deadline();
    pthread_mutex_init(&d.lock, NULL);
    clt_parallel_for(n, (int)n, get_piece, &d);
    pthread_mutex_destroy(&d.lock);
    if (d.error) clt_s3_fail(d.error, "%s", d.text);
    clt_free(d.text);
    return d.error;
}

/* --- small reads --- */

/* Lock held. */
static int fill(clt_s3_reader *r, size_t bytes, uint64_t offset) {
    size_t want = offset == r->next ? AHEAD_BYTES : CLT_MAX(bytes, NEAR_BYTES);
    want = (size_t)CLT_MIN(want, r->bytes - offset);
    r->n = 0;
    if (want > r->cap) {
        clt_free(r->ahead);
        r->ahead = clt_try_malloc(want);
        r->cap = r->ahead ? want : 0;
        if (!r->ahead) return ENOMEM;
    }
    int e = get(r, r->ahead, want, offset);
    if (!e) {
        r->at = offset;
        r->n = want;
    }
    return e;
}

/* Lock held. */
static size_t copy_ahead(clt_s3_reader *r, void *dst, size_t bytes, uint64_t offset) {
    if (offset < r->at || offset - r->at >= r->n) return 0;
    size_t n = CLT_MIN(bytes, r->n - (size_t)(offset - r->at));
    memcpy(dst, r->ahead + (offset - r->at), n);
    r->next = offset + n;
    return n;
}

int clt_s3_reader_pread(clt_s3_reader *r, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    *done = 0;
    if (offset >= r->bytes) return 0;
    bytes = (size_t)CLT_MIN(bytes, r->bytes - offset);
    int e = 0;
    pthread_mutex_lock(&r->lock);
    *done = copy_ahead(r, dst, bytes, offset);
    bool large = bytes >= LARGE_BYTES;
    if (!*done && !large) {
        e = fill(r, bytes, offset);
        if (!e) *done = copy_ahead(r, dst, bytes, offset);
    }
    pthread_mutex_unlock(&r->lock);
    if (*done || !large) return e;
    e = get_large(r, dst, bytes, offset);
    if (!e) *done = bytes;
    return e;
}
