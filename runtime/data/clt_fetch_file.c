/* The download of one shard. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_digest.h"
#include "runtime/data/clt_fetch_internal.h"

typedef struct {
    fetch_item *it;
    char *from, *part, *journal; /* paths */
    char *head;                  /* what the journal must begin with */
    char version[CLT_IO_VERSION_BYTES];
    bool has_version;
} download;

char *fetch_path(const fetch_item *it) {
    return clt_path_join(it->set->local, it->keep.name);
}

static bool has_size(const char *path, uint64_t bytes) {
    clt_io_info info;
    return clt_io_try_stat(path, &info) == 0 && info.kind == CLT_IO_FILE && info.bytes == bytes;
}

bool fetch_is_there(const fetch_item *it) {
    char *path = fetch_path(it);
    const bool there = has_size(path, it->keep.bytes);
    clt_free(path);
    return there;
}

/* A file of this shard in the cache's own folder. */
static char *work_path(const fetch_item *it, const char *what) {
    char *name = clt_format("%zu.%s", it->index, what), *path = clt_path_join(it->set->work, name);
    clt_free(name);
    return path;
}

/* --- the journal: how much of which version has arrived safely --- */

static clt_status read_version(download *d) {
    const int e = clt_io_version(d->from, d->version);
    d->has_version = e == 0;
    if (e == ENOTSUP) snprintf(d->version, sizeof d->version, "-"); /* then the size alone is compared */
    if (e == ECANCELED && clt_io_stop_requested()) return CLT_STOPPED;
    if (e && e != ENOTSUP)
        return clt_error(CLT_IO, "cannot read %s: %s", d->from, clt_io_explain(d->from, e));
    d->head = clt_format("cltrain fetch 1\n%s\n%s\n%" PRIu64 "\n", d->from, d->version, d->it->get.bytes);
    return CLT_OK;
}

static uint64_t resume_at(const download *d) {
    enum { MOST = 1 << 14 };
    char *text, *end;
    uint64_t done = 0;
    clt_io_info info;
    if (!clt_io_is_file(d->journal)) return 0;
    clt_error_quiet(true);
    clt_status st = clt_io_read_all(d->journal, MOST, &text, NULL);
    clt_error_quiet(false);
    if (st != CLT_OK) return 0;
    if (strncmp(text, d->head, strlen(d->head)) == 0) {
        errno = 0;
        done = strtoull(text + strlen(d->head), &end, 10);
        if (errno || *end != '\n' || done % FETCH_PIECE != 0 || done > d->it->get.bytes) done = 0;
    }
    clt_free(text);
    if (done && (clt_io_try_stat(d->part, &info) != 0 || info.kind != CLT_IO_FILE || info.bytes < done))
        done = 0;
    return done;
}

static clt_status write_journal(const download *d, clt_file *part, uint64_t done) {
    CLT_TRY(clt_file_datasync(part));
    char *text = clt_format("%s%" PRIu64 "\n", d->head, done);
    clt_status st = clt_io_write_atomic(d->journal, text, strlen(text));
    clt_free(text);
    return st;
}

/* --- the bytes --- */

static clt_status check_size(const download *d, clt_file *from) {
    uint64_t bytes;
    CLT_TRY(clt_file_size(from, &bytes));
    if (bytes == d->it->get.bytes) return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s has %" PRIu64 " bytes and index.json says %" PRIu64
                     ": write the data set there again, or remove %s if its index.json is an old one",
                     d->from, bytes, d->it->get.bytes, d->it->set->local);
}

static clt_status copy(clt_fetch *f, const download *d, clt_file *from, clt_file *part, uint64_t at,
                       char *buffer) {
    const uint64_t all = d->it->get.bytes;
    while (at < all) {
        const size_t n = (size_t)CLT_MIN(all - at, (uint64_t)FETCH_PIECE);
        if (atomic_load(&f->stop)) return CLT_STOPPED;
        CLT_TRY(clt_file_pread(from, buffer, n, at));
        CLT_TRY(clt_file_pwrite(part, buffer, n, at));
        atomic_fetch_add(&f->received, n);
        at += n;
        if (at < all) CLT_TRY(write_journal(d, part, at));
    }
    return clt_file_datasync(part);
}

static clt_status check_hash(const download *d, char *buffer) {
    const fetch_file *g = &d->it->get;
    if (g->algo < 0) return CLT_OK;
    clt_digest *h;
    clt_file *part;
    char hex[CLT_DIGEST_MAX_HEX];
    CLT_TRY(clt_file_open(d->part, CLT_IO_READ, &part));
    clt_status st = clt_digest_begin(g->algo, &h);
    if (st == CLT_OK) {
        for (uint64_t at = 0; at < g->bytes && st == CLT_OK; at += FETCH_PIECE) {
            const size_t n = (size_t)CLT_MIN(g->bytes - at, (uint64_t)FETCH_PIECE);
            st = clt_file_pread(part, buffer, n, at);
            if (st == CLT_OK) clt_digest_add(h, buffer, n);
        }
        clt_digest_end(h, hex);
    }
    clt_file_close(part);
    CLT_TRY(st);
    if (strcmp(hex, g->hex) == 0) return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s: %s checksum mismatch: index.json says %s, what arrived has %s; write the data set "
                     "there again",
                     d->from, clt_digest_name(g->algo), g->hex, hex);
}

/* One attempt, from where the journal ends. */
static clt_status attempt(clt_fetch *f, download *d, char *buffer) {
    clt_file *from, *part;
    uint64_t at = 0;
    const bool pieces = d->it->get.bytes > FETCH_PIECE;
    clt_free(d->head);
    d->head = NULL;
    if (pieces) CLT_TRY(read_version(d));
    if (pieces) at = resume_at(d);
    CLT_TRY(clt_file_open(d->from, CLT_IO_READ, &from));
    clt_status st = check_size(d, from);
    if (st == CLT_OK) st = clt_file_open(d->part, at ? CLT_IO_UPDATE : CLT_IO_CREATE, &part);
    if (st == CLT_OK) {
        st = copy(f, d, from, part, at, buffer);
        const clt_status closed = clt_file_close(part);
        if (st == CLT_OK) st = closed;
    }
    clt_file_close(from);
    char version[CLT_IO_VERSION_BYTES];
    if (st == CLT_OK && pieces && d->has_version &&
        (clt_io_version(d->from, version) != 0 || strcmp(version, d->version) != 0))
        st = clt_error(CLT_IO, "%s changed while it was read", d->from);
    else if (st == CLT_OK)
        st = check_hash(d, buffer);
    else
        return st; /* the journal counts */
    if (st != CLT_OK) clt_io_try_unlink(d->journal);
    return st;
}

static clt_status get(clt_fetch *f, download *d, char *buffer) {
    clt_status st = CLT_OK;
    for (int i = 0; i <= d->it->set->retries; i++) {
        st = attempt(f, d, buffer);
        if (st != CLT_IO && st != CLT_BAD_DATA) break;
    }
    return st;
}

/* --- its place --- */

static clt_status decompress(const download *d, const char *to) {
    const fetch_item *it = d->it;
    const size_t zip_bytes = it->get.bytes, raw_bytes = it->keep.bytes;
    clt_file *out;
    char *zip = clt_try_malloc(zip_bytes + 1), *raw = clt_try_malloc(raw_bytes + 1);
    clt_status st =
        zip && raw ? CLT_OK : clt_no_memory("a shard and its compressed file", zip_bytes + raw_bytes);
    clt_file *part = NULL;
    if (st == CLT_OK) st = clt_file_open(d->part, CLT_IO_READ, &part);
    if (st == CLT_OK) st = clt_file_pread(part, zip, zip_bytes, 0);
    clt_file_close(part);
    if (st == CLT_OK) st = clt_codec_decompress(it->codec, d->from, zip, zip_bytes, raw, raw_bytes);
    if (st == CLT_OK) st = clt_file_open(to, CLT_IO_CREATE, &out);
    if (st == CLT_OK) {
        st = clt_file_pwrite(out, raw, raw_bytes, 0);
        if (st == CLT_OK) st = clt_file_datasync(out);
        const clt_status closed = clt_file_close(out);
        if (st == CLT_OK) st = closed;
    }
    clt_free(raw);
    clt_free(zip);
    return st;
}

static clt_status put_in_place(const download *d) {
    char *to = fetch_path(d->it), *folder = clt_path_dir(to), *raw = work_path(d->it, "raw");
    clt_status st = strchr(d->it->keep.name, '/') ? clt_io_mkdirs(folder) : CLT_OK;
    if (st == CLT_OK && d->it->codec) st = decompress(d, raw);
    if (st == CLT_OK) st = clt_io_rename(d->it->codec ? raw : d->part, to);
    if (st == CLT_OK && d->it->codec) clt_io_try_unlink(d->part);
    clt_io_try_unlink(d->journal);
    clt_free(raw);
    clt_free(folder);
    clt_free(to);
    return st;
}

static clt_status bring_locked(clt_fetch *f, fetch_item *it, bool needed, char *buffer, bool *later) {
    if (fetch_is_there(it)) return CLT_OK;
    if (f->p.cache_limit) CLT_TRY(fetch_make_room(f, it, needed, later));
    if (*later) return CLT_OK;
    download d = {.it = it,
                  .from = clt_path_join(it->set->remote, it->get.name),
                  .part = work_path(it, "part"),
                  .journal = work_path(it, "journal")};
    clt_status st = get(f, &d, buffer);
    if (st == CLT_OK) st = put_in_place(&d);
    fetch_stamp(it, st == CLT_OK ? fetch_clock() : 0);
    clt_free(d.head);
    clt_free(d.journal);
    clt_free(d.part);
    clt_free(d.from);
    return st;
}

clt_status fetch_bring(clt_fetch *f, fetch_item *it, bool needed, char *buffer, bool *later) {
    char holder[CLT_IO_OWNER_BYTES];
    clt_io_lock *lock;
    *later = false;
    if (fetch_is_there(it)) return CLT_OK;
    char *path = work_path(it, "lock");
    const int e = clt_io_lock_try(path, "downloads this shard", &lock, holder);
    clt_status st = CLT_OK;
    *later = e == EWOULDBLOCK;
    if (e == 0) {
        st = bring_locked(f, it, needed, buffer, later);
        clt_io_lock_release(lock);
    } else if (!*later) {
        st = clt_error(CLT_IO, "cannot lock %s: %s; the local folder must be on storage that has locks", path,
                       clt_io_explain(path, e));
    }
    clt_free(path);
    return st;
}
