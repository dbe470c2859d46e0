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
    size_t piece;          /* of reads */
    bool passes, hopeless; /* the last attempt's failure: may pass; stays if nobody mends it */
} download;

/* Notes what the failure of an operation on the remote means; returns its status. */
static clt_status note(download *d, clt_status st, int e) {
    static const int certain[] = {ENOENT, ENODEV, EACCES, EPERM, ENOTDIR, EKEYEXPIRED};
    d->passes = st == CLT_IO && clt_io_may_pass(e);
    for (size_t i = 0; i < CLT_COUNT_OF(certain); i++) d->hopeless |= st == CLT_IO && e == certain[i];
    return st;
}
static clt_status judge(download *d, clt_status st) {
    return note(d, st, clt_io_last_errno());
}

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
        return note(d, clt_error(CLT_IO, "cannot read %s: %s", d->from, clt_io_explain(d->from, e)), e);
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
        if (errno || *end != '\n' || done % FETCH_SMALL != 0 || done > d->it->get.bytes) done = 0;
    }
    clt_free(text);
    if (done && (clt_io_try_stat(d->part, &info) != 0 || info.kind != CLT_IO_FILE || info.bytes < done))
        done = 0;
    return done;
}

/* Says that `done` bytes of the part count. The process may be killed at any time; the contents need not
 * survive a loss of power if a checksum will tell. */
static clt_status write_journal(const download *d, clt_file *journal, clt_file *part, uint64_t done) {
    const bool checked = d->it->get.algo >= 0;
    if (!checked) CLT_TRY(clt_file_datasync(part));
    char *text = clt_format("%s%020" PRIu64 "\n", d->head, done);
    const clt_status st = clt_file_pwrite(journal, text, strlen(text), 0);
    clt_free(text);
    return st == CLT_OK && !checked ? clt_file_datasync(journal) : st;
}

/* --- the bytes --- */

static clt_status check_size(download *d, clt_file *from) {
    uint64_t bytes;
    CLT_TRY(judge(d, clt_file_size(from, &bytes)));
    if (bytes == d->it->get.bytes) return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s has %" PRIu64 " bytes and index.json says %" PRIu64
                     ": write the data set there again, or remove %s if its index.json is an old one",
                     d->from, bytes, d->it->get.bytes, d->it->set->local);
}

/* The files of an attempt, and the checksum of what the part has. */
typedef struct {
    clt_file *from, *part, *journal; /* journal NULL: a single piece */
    clt_digest *hash;                /* NULL: none is compared */
} transfer;

/* Hashes and writes what has arrived, in parts that are in the core's cache when they are written: with
 * writes of 32 MiB by four threads a download of 1 GiB took 1.6 s of system time, so 0.4 s. */
static clt_status keep(const transfer *t, const char *data, size_t bytes, uint64_t at) {
    enum { CACHED = 256 << 10 };
    for (size_t i = 0; i < bytes; i += CACHED) {
        const size_t n = CLT_MIN(bytes - i, (size_t)CACHED);
        if (t->hash) clt_digest_add(t->hash, data + i, n);
        CLT_TRY(clt_file_pwrite(t->part, data + i, n, at + i));
    }
    return CLT_OK;
}

static clt_status copy(clt_fetch *f, download *d, const transfer *t, uint64_t at, char *buffer) {
    const uint64_t all = d->it->get.bytes;
    while (at < all) {
        const size_t n = (size_t)CLT_MIN(all - at, (uint64_t)d->piece);
        if (atomic_load(&f->stop)) return CLT_STOPPED;
        if (clt_now() >= clt_io_deadline()) {
            d->passes = true;
            return clt_error(CLT_IO, "%s: %" PRIu64 " of %" PRIu64 " bytes arrived in %g s", d->from, at, all,
                             d->it->set->timeout);
        }
        CLT_TRY(judge(d, clt_file_pread(t->from, buffer, n, at)));
        CLT_TRY(keep(t, buffer, n, at));
        atomic_fetch_add(&f->received, n);
        at += n;
        if (at < all) CLT_TRY(write_journal(d, t->journal, t->part, at));
    }
    return t->hash ? CLT_OK : clt_file_datasync(t->part);
}

/* What earlier attempts have brought. */
static clt_status hash_part(const transfer *t, uint64_t bytes, char *buffer, size_t size) {
    for (uint64_t at = 0; t->hash && at < bytes;) {
        const size_t n = (size_t)CLT_MIN(bytes - at, (uint64_t)size);
        CLT_TRY(clt_file_pread(t->part, buffer, n, at));
        clt_digest_add(t->hash, buffer, n);
        at += n;
    }
    return CLT_OK;
}

static clt_status check_hash(const download *d, const char *hex) {
    const fetch_file *g = &d->it->get;
    if (strcmp(hex, g->hex) == 0) return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s: %s checksum mismatch: index.json says %s, what arrived has %s; write the data set "
                     "there again",
                     d->from, clt_digest_name(g->algo), g->hex, hex);
}

static clt_status check_version(const download *d) {
    char version[CLT_IO_VERSION_BYTES];
    if (!d->has_version || (clt_io_version(d->from, version) == 0 && strcmp(version, d->version) == 0))
        return CLT_OK;
    return clt_error(CLT_IO, "%s changed while it was read", d->from);
}

static clt_status open_transfer(download *d, bool pieces, uint64_t at, transfer *t) {
    const clt_io_mode mode = at ? CLT_IO_UPDATE : CLT_IO_CREATE;
    CLT_TRY(judge(d, clt_file_open(d->from, CLT_IO_READ, &t->from)));
    CLT_TRY(check_size(d, t->from));
    CLT_TRY(clt_file_open(d->part, mode, &t->part));
    if (pieces) CLT_TRY(clt_file_open(d->journal, mode, &t->journal));
    return d->it->get.algo < 0 ? CLT_OK : clt_digest_begin(d->it->get.algo, &t->hash);
}

/* One attempt, from where the journal ends. */
static clt_status attempt(clt_fetch *f, download *d, char *buffer) {
    transfer t = {0};
    char hex[CLT_DIGEST_MAX_HEX] = "";
    uint64_t at = 0;
    const bool pieces = d->it->get.bytes > d->piece;
    clt_free(d->head);
    d->head = NULL;
    d->passes = d->hopeless = false;
    if (pieces) CLT_TRY(read_version(d));
    if (pieces) at = resume_at(d);
    clt_status st = open_transfer(d, pieces, at, &t);
    if (st == CLT_OK) st = hash_part(&t, at, buffer, f->p.piece);
    if (st == CLT_OK) st = copy(f, d, &t, at, buffer);
    if (t.hash) clt_digest_end(t.hash, hex);
    const clt_status closed = clt_file_close(t.part);
    clt_file_close(t.journal);
    clt_file_close(t.from);
    if (st == CLT_OK) st = closed;
    CLT_TRY(st); /* the journal counts */
    if (d->it->get.algo >= 0)
        st = check_hash(d, hex);
    else if (pieces)
        st = check_version(d);
    if (st != CLT_OK) clt_io_try_unlink(d->journal);
    return st;
}

/* All attempts, each with a deadline of its own. */
static clt_status get(clt_fetch *f, download *d, char *buffer) {
    clt_status st = CLT_OK;
    d->piece = f->p.piece;
    for (int i = 0; i <= d->it->set->retries; i++) {
        const double before = clt_io_set_deadline(clt_now() + d->it->set->timeout);
        st = attempt(f, d, buffer);
        clt_io_set_deadline(before);
        if ((st != CLT_IO && st != CLT_BAD_DATA) || d->hopeless) break;
        if (d->passes) d->piece = FETCH_SMALL;
    }
    return st == CLT_IO && d->passes ? CLT_AGAIN : st;
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
