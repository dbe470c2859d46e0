#include "runtime/base/clt_scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"

enum { BLOCK = CLT_SCRATCH_BLOCK, MOST = CLT_SCRATCH_MOST };

typedef struct {
    clt_hash128 hash;
    bool stored; /* false: zeros, whatever the file has */
} block;

struct clt_scratch {
    clt_aio *aio;
    int fd; /* -1: not open */
    char *path, *lock_path, *text;
    clt_io_lock *lock;
    block *block;
    uint64_t blocks;
    clt_scratch_op *open;         /* in progress, newest first */
    char *bounce_memory, *bounce; /* MOST aligned bytes for clt_scratch_read and the like */
    clt_scratch_counters count;
};

/* --- the lock --- */

/* Whether the name still belongs to the lock: its holder removes the file at the end, and another process may
 * have opened it before. */
static bool owns_name(const char *path, const char *owner) {
    char *text;
    clt_error_quiet(true);
    const clt_status st = clt_io_read_all(path, CLT_IO_OWNER_BYTES, &text, NULL);
    clt_error_quiet(false);
    if (st != CLT_OK) return false;
    const bool same = !strncmp(text, owner, strlen(owner));
    clt_free(text);
    return same;
}

static clt_status take_lock(clt_scratch *s, const char *folder) {
    char owner[CLT_IO_OWNER_BYTES], holder[CLT_IO_OWNER_BYTES];
    const double start = clt_now(), wait = (double)clt_env_long(CLT_ENV_LOCK_WAIT, 5);
    clt_io_describe_owner("", owner);
    while (!s->lock) {
        const int e = clt_io_lock_try(s->lock_path, owner, &s->lock, holder);
        if (e && e != EWOULDBLOCK)
            return clt_error(CLT_IO, "cannot create %s: %s; check the permissions of the folder",
                             s->lock_path, clt_io_explain(s->lock_path, e));
        if (e && clt_now() - start >= wait)
            return clt_error(CLT_IO,
                             "another run keeps its files in %s (%s: %s): wait for it to end, or use another "
                             "folder",
                             folder, s->lock_path, *holder ? holder : "holder unknown");
        if (!e && owns_name(s->lock_path, owner)) break;
        clt_io_lock_release(s->lock);
        s->lock = NULL;
        clt_sleep(clt_io_lock_retry(s->lock_path));
    }
    return CLT_OK;
}

/* --- the file --- */

/* Whether transfers with this memory work with O_DIRECT: 0 or an errno value. */
static int try_direct(const clt_scratch *s, void *memory) {
    memset(memory, 0, CLT_SCRATCH_ALIGN);
    if (pwrite(s->fd, memory, CLT_SCRATCH_ALIGN, 0) < 0) return errno;
    return pread(s->fd, memory, CLT_SCRATCH_ALIGN, 0) < 0 ? errno : 0;
}

/* Sets the text. no_direct: why the file goes through the page cache; 0: it does not. */
static void describe(clt_scratch *s, int no_direct) {
    struct statfs fs;
    const bool in_memory = fstatfs(s->fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
    char *cache = no_direct ? clt_format("through the page cache (no O_DIRECT: %s)", strerror(no_direct))
                            : clt_strdup("past the page cache");
    clt_free(s->text);
    s->text = clt_format("%s, %s%s", clt_aio_text(s->aio), cache,
                         in_memory ? ", on a file system in the host's memory" : "");
    clt_free(cache);
}

static clt_status use_page_cache(clt_scratch *s, int why) {
    const int flags = fcntl(s->fd, F_GETFL);
    if (flags < 0 || fcntl(s->fd, F_SETFL, flags & ~O_DIRECT))
        return clt_error(CLT_IO, "cannot set up %s: %s", s->path, strerror(errno));
    describe(s, why);
    return CLT_OK;
}

/* What a killed process left under the name is removed; the name of the new file, too. */
static clt_status create_file(clt_scratch *s) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    unlink(s->path);
    s->fd = open(s->path, flags | O_DIRECT, 0600);
    int no_direct = s->fd < 0 ? errno : try_direct(s, s->bounce);
    if (s->fd < 0 && no_direct == EINVAL) {
        unlink(s->path); /* some file systems have made it already */
        s->fd = open(s->path, flags, 0600);
    }
    if (s->fd < 0) return clt_error(CLT_IO, "cannot create %s: %s", s->path, strerror(errno));
    unlink(s->path);
    if (ftruncate(s->fd, 0)) return clt_error(CLT_IO, "cannot set up %s: %s", s->path, strerror(errno));
    if (no_direct) return use_page_cache(s, no_direct);
    describe(s, 0);
    return CLT_OK;
}

clt_status clt_scratch_try(clt_scratch *s, void *memory) {
    const int flags = fcntl(s->fd, F_GETFL), why = flags & O_DIRECT ? try_direct(s, memory) : 0;
    return why ? use_page_cache(s, why) : CLT_OK;
}

static clt_status open_all(clt_scratch *s, const char *folder) {
    clt_io_info info;
    CLT_TRY(clt_io_stat(folder, &info));
    if (info.kind == CLT_IO_ABSENT) CLT_TRY(clt_io_mkdirs(folder));
    s->bounce_memory = clt_try_malloc(MOST + CLT_SCRATCH_ALIGN);
    if (!s->bounce_memory) return clt_no_memory("the buffer of a scratch file", MOST);
    s->bounce = (char *)CLT_ROUND_UP((uintptr_t)s->bounce_memory, (uintptr_t)CLT_SCRATCH_ALIGN);
    CLT_TRY(take_lock(s, folder));
    CLT_TRY(clt_aio_create(!clt_env_long(CLT_ENV_URING, 1), &s->aio));
    return create_file(s);
}

clt_status clt_scratch_open(const char *folder, const char *name, clt_scratch **out) {
    CLT_TRY(clt_io_require(folder, CLT_IO_CAN_WRITE_RANGES | CLT_IO_CAN_LOCK | CLT_IO_HAS_FOLDERS,
                           "a scratch file"));
    const char *local = folder + clt_path_scheme(folder);
    clt_scratch *s = clt_calloc(1, sizeof *s);
    s->fd = -1;
    char *base = clt_path_join(local, name);
    s->path = clt_format("%s.data", base);
    s->lock_path = clt_format("%s.lock", base);
    clt_free(base);
    const clt_status st = open_all(s, local);
    if (st != CLT_OK) {
        clt_scratch_close(s);
        return st;
    }
    *out = s;
    return CLT_OK;
}

void clt_scratch_close(clt_scratch *s) {
    if (!s) return;
    clt_aio_destroy(s->aio);
    if (s->fd >= 0) close(s->fd);
    if (s->lock) clt_io_try_unlink(s->lock_path);
    clt_io_lock_release(s->lock);
    clt_free(s->block);
    clt_free(s->bounce_memory);
    clt_free(s->path);
    clt_free(s->lock_path);
    clt_free(s->text);
    clt_free(s);
}

const char *clt_scratch_text(const clt_scratch *s) {
    return s->text;
}

clt_scratch_counters clt_scratch_count(const clt_scratch *s) {
    return s->count;
}

/* --- room --- */

static clt_status no_room(const clt_scratch *s, uint64_t bytes, int e) {
    struct statvfs fs;
    char need[32], have[32] = "unknown";
    if (fstatvfs(s->fd, &fs) == 0) clt_human_bytes((double)fs.f_bavail * (double)fs.f_frsize, have);
    return clt_error(CLT_IO, "%s needs %s more, %s are free there (%s): make room, or use another folder",
                     s->path, clt_human_bytes((double)bytes, need), have, strerror(e));
}

/* 0 or an errno value. A file system that is too full is not filled up first. */
static int allocate(const clt_scratch *s, uint64_t at, uint64_t bytes) {
    struct statvfs fs;
    int e;
    if (fstatvfs(s->fd, &fs) == 0 && bytes / fs.f_frsize > fs.f_bavail) return ENOSPC;
    do e = fallocate(s->fd, 0, (off_t)at, (off_t)bytes) ? errno : 0;
    while (e == EINTR);
    /* Without allocation a disk that fills up later is an error of a write. */
    if (e == EOPNOTSUPP || e == ENOSYS) e = ftruncate(s->fd, (off_t)(at + bytes)) ? errno : 0;
    return e;
}

clt_status clt_scratch_grow(clt_scratch *s, uint64_t bytes, uint64_t *offset) {
    const uint64_t at = s->blocks * BLOCK, more = CLT_CEIL_DIV(bytes, (uint64_t)BLOCK);
    const int e = allocate(s, at, more * BLOCK);
    if (e) return no_room(s, more * BLOCK, e);
    block *b = clt_try_realloc(s->block, (s->blocks + more) * sizeof *b);
    if (!b) return clt_no_memory("the hashes of a scratch file", (s->blocks + more) * sizeof *b);
    memset(b + s->blocks, 0, more * sizeof *b);
    s->block = b;
    s->blocks += more;
    *offset = at;
    return CLT_OK;
}

/* --- operations --- */

static clt_status transfer_failed(const clt_scratch *s, const clt_aio_op *io) {
    const unsigned long long at = io->offset + io->moved;
    if (io->error == ENODATA)
        return clt_error(CLT_IO,
                         "%s ends before offset %llu: it was made shorter while the run used it; rerun the "
                         "same command to resume from the last checkpoint",
                         s->path, at);
    return clt_error(CLT_IO,
                     "cannot %s %s at offset %llu: %s; rerun the same command to resume from the last "
                     "checkpoint, with another folder if the disk fails",
                     io->write ? "write" : "read", s->path, at, strerror(io->error));
}

static clt_status verify(const clt_scratch *s, const clt_scratch_op *op) {
    char *at = op->memory;
    for (uint64_t i = op->offset / BLOCK; at < (char *)op->memory + op->bytes; i++, at += BLOCK) {
        if (!s->block[i].stored) {
            memset(at, 0, BLOCK);
            continue;
        }
        const clt_hash128 got = clt_hash(at, BLOCK), want = s->block[i].hash;
        if (got.hi != want.hi || got.lo != want.lo)
            return clt_error(CLT_IO,
                             "%s: the %d bytes at offset %llu are not those that were written there: the "
                             "disk damages data; rerun the same command with another folder to resume from "
                             "the last checkpoint",
                             s->path, BLOCK, (unsigned long long)i * BLOCK);
    }
    return CLT_OK;
}

/* After its transfer. */
static void finish(clt_scratch *s, clt_scratch_op *op) {
    if (op->io.error) op->result = transfer_failed(s, &op->io);
    if (op->result == CLT_OK && !op->write) op->result = verify(s, op);
    if (op->prev)
        op->prev->next = op->next;
    else
        s->open = op->next;
    if (op->next) op->next->prev = op->prev;
    op->open = false;
}

clt_status clt_scratch_done(clt_scratch *s, clt_scratch_op *op, bool *done) {
    *done = true;
    if (!op->open) return op->result;
    *done = clt_aio_done(s->aio, &op->io);
    if (*done) finish(s, op);
    return *done ? op->result : CLT_OK;
}

clt_status clt_scratch_wait(clt_scratch *s, clt_scratch_op *op) {
    if (!op->open) return op->result;
    clt_aio_wait(s->aio, &op->io);
    finish(s, op);
    return op->result;
}

void clt_scratch_pause(clt_scratch *s, double seconds) {
    if (s->open)
        clt_aio_wait_any(s->aio, seconds);
    else
        clt_sleep(seconds);
}

static clt_status check(const clt_scratch *s, uint64_t offset, uint64_t bytes) {
    const uint64_t all = s->blocks * BLOCK;
    if (offset <= all && bytes <= all - offset) return CLT_OK;
    return clt_error(CLT_FAIL, "%llu bytes at %llu of %s, which has %llu; this is a bug",
                     (unsigned long long)bytes, (unsigned long long)offset, s->path, (unsigned long long)all);
}

/* Operations in progress that must end before one on these bytes begins. */
static clt_status settle(clt_scratch *s, uint64_t offset, uint64_t bytes, bool write) {
    for (clt_scratch_op *o = s->open, *next; o; o = next) {
        next = o->next;
        const bool apart = o->offset >= offset + bytes || offset >= o->offset + o->bytes;
        if (!apart && (write || o->write)) CLT_TRY(clt_scratch_wait(s, o));
    }
    return CLT_OK;
}

static void set_hashes(clt_scratch *s, const clt_scratch_op *op) {
    for (size_t at = 0; at < op->bytes; at += BLOCK)
        s->block[(op->offset + at) / BLOCK] = (block){clt_hash((char *)op->memory + at, BLOCK), true};
}

static bool any_stored(const clt_scratch *s, uint64_t offset, size_t bytes) {
    bool any = false;
    for (size_t at = 0; at < bytes; at += BLOCK) any = any || s->block[(offset + at) / BLOCK].stored;
    return any;
}

clt_status clt_scratch_begin(clt_scratch *s, clt_scratch_op *op) {
    op->open = false;
    op->result = CLT_OK;
    CLT_TRY(check(s, op->offset, op->bytes));
    if (op->offset % BLOCK || op->bytes % BLOCK || op->bytes > MOST ||
        (uintptr_t)op->memory % CLT_SCRATCH_ALIGN)
        return clt_error(CLT_FAIL, "%zu bytes at %llu of %s are not whole blocks, or too many; this is a bug",
                         op->bytes, (unsigned long long)op->offset, s->path);
    CLT_TRY(settle(s, op->offset, op->bytes, op->write));
    if (op->write) set_hashes(s, op);
    op->open = true;
    op->prev = NULL;
    op->next = s->open;
    if (s->open) s->open->prev = op;
    s->open = op;
    const bool moves = op->write || any_stored(s, op->offset, op->bytes);
    op->io = (clt_aio_op){.fd = s->fd,
                          .write = op->write,
                          .memory = op->memory,
                          .bytes = moves ? op->bytes : 0,
                          .offset = op->offset};
    *(op->write ? &s->count.written : &s->count.read) += op->io.bytes;
    clt_aio_submit(s->aio, &op->io);
    return CLT_OK;
}

/* --- any bytes --- */

/* The whole blocks around some bytes, as many as the bounce buffer holds. */
typedef struct {
    uint64_t first; /* byte of the first block */
    size_t bytes;   /* of the blocks */
    size_t at, n;   /* the wanted bytes in them */
} window;

static window window_of(uint64_t offset, uint64_t bytes) {
    window w = {.first = offset / BLOCK * BLOCK};
    w.at = (size_t)(offset - w.first);
    w.n = (size_t)CLT_MIN(bytes, (uint64_t)MOST - w.at);
    w.bytes = CLT_ROUND_UP(w.at + w.n, (size_t)BLOCK);
    return w;
}

/* Blocks of the bounce buffer, from byte `at` of it on. */
static clt_status move_blocks(clt_scratch *s, const window *w, size_t at, size_t bytes, bool write) {
    clt_scratch_op op = {.memory = s->bounce + at, .offset = w->first + at, .bytes = bytes, .write = write};
    CLT_TRY(clt_scratch_begin(s, &op));
    return clt_scratch_wait(s, &op);
}

clt_status clt_scratch_read(clt_scratch *s, uint64_t offset, void *dst, size_t bytes) {
    CLT_TRY(check(s, offset, bytes));
    for (size_t done = 0; done < bytes;) {
        const window w = window_of(offset + done, bytes - done);
        CLT_TRY(move_blocks(s, &w, 0, w.bytes, false));
        memcpy((char *)dst + done, s->bounce + w.at, w.n);
        done += w.n;
    }
    return CLT_OK;
}

/* Blocks of which only a part is written are read before. */
static clt_status read_ends(clt_scratch *s, const window *w) {
    const size_t end = w->at + w->n, last = w->bytes - BLOCK;
    if (w->at > 0 || end < BLOCK) CLT_TRY(move_blocks(s, w, 0, BLOCK, false));
    return end < w->bytes && last > 0 ? move_blocks(s, w, last, BLOCK, false) : CLT_OK;
}

clt_status clt_scratch_write(clt_scratch *s, uint64_t offset, const void *src, size_t bytes) {
    CLT_TRY(check(s, offset, bytes));
    for (size_t done = 0; done < bytes;) {
        const window w = window_of(offset + done, bytes - done);
        CLT_TRY(read_ends(s, &w));
        memcpy(s->bounce + w.at, (const char *)src + done, w.n);
        CLT_TRY(move_blocks(s, &w, 0, w.bytes, true));
        done += w.n;
    }
    return CLT_OK;
}

static clt_status fill_window(clt_scratch *s, const window *w, uint32_t word) {
    if (word == 0 && w->at == 0 && w->n == w->bytes) {
        CLT_TRY(settle(s, w->first, w->bytes, true));
        for (uint64_t i = 0; i < w->bytes / BLOCK; i++) s->block[w->first / BLOCK + i].stored = false;
        return CLT_OK;
    }
    CLT_TRY(read_ends(s, w));
    for (size_t at = 0; at < w->n; at += sizeof word) memcpy(s->bounce + w->at + at, &word, sizeof word);
    return move_blocks(s, w, 0, w->bytes, true);
}

clt_status clt_scratch_fill(clt_scratch *s, uint64_t offset, uint32_t word, uint64_t bytes) {
    CLT_TRY(check(s, offset, bytes));
    for (uint64_t done = 0; done < bytes;) {
        const window w = window_of(offset + done, bytes - done);
        CLT_TRY(fill_window(s, &w, word));
        done += w.n;
    }
    return CLT_OK;
}
