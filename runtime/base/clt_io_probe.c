#include "runtime/base/clt_io_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_env.h"

static const char *const op_names[CLT_IO_OPS + 1] = {
    "open",   "pread", "pwrite", "append",   "size", "datasync", "sync", "close",   "rename",  "exchange",
    "unlink", "rmdir", "mkdir",  "sync_dir", "list", "stat",     "lock", "replace", "version", "any"};

const char *clt_io_op_name(clt_io_op op) {
    return op_names[op];
}

/* --- the injector --- */

struct clt_io_probe {
    clt_io_component base;
    clt_io_component *under;
    pthread_mutex_t lock;
    clt_io_fault fault;
    long seen;
    bool fired, cut; /* cut: the rest of a write that was cut short comes next */
    int record_fd;   /* -1: nothing is recorded */
};

void clt_io_fault_arm(clt_io_probe *p, const clt_io_fault *f) {
    pthread_mutex_lock(&p->lock);
    p->fault = f ? *f : (clt_io_fault){.first = 0};
    p->seen = 0;
    p->fired = p->cut = false;
    pthread_mutex_unlock(&p->lock);
}

bool clt_io_fault_fired(const clt_io_probe *p) {
    return p->fired;
}
long clt_io_fault_seen(const clt_io_probe *p) {
    return p->seen;
}

/* What the armed fault does to an operation that matches it. Lock held. */
static int apply_fault(clt_io_probe *p, bool writes, size_t *bytes) {
    const clt_io_fault *f = &p->fault;
    p->seen++;
    if (!f->first || p->seen < f->first || p->seen > f->last) return 0;
    p->fired = true;
    if (f->kind == CLT_IO_KILL) kill(getpid(), SIGKILL);
    if (f->kind != CLT_IO_SHORT || !bytes || *bytes <= 1) return f->error;
    *bytes /= 2;
    p->cut = writes && f->error;
    return 0;
}

/* 0, or the error that the operation returns. A read or write that is to be short has its *bytes halved. */
static int hit(clt_io_probe *p, clt_io_op op, const char *path, size_t *bytes) {
    int e = 0;
    bool writes = op == CLT_IO_PWRITE || op == CLT_IO_APPENDS;
    pthread_mutex_lock(&p->lock);
    const clt_io_fault *f = &p->fault;
    if (p->cut && writes) {
        p->cut = false;
        e = f->error;
    } else if ((f->op == CLT_IO_OPS || f->op == op) &&
               (!*f->name || fnmatch(f->name, clt_path_base(path), 0) == 0)) {
        e = apply_fault(p, writes, bytes);
    }
    pthread_mutex_unlock(&p->lock);
    return e;
}

static bool parse_error(const char *word, clt_io_fault *f) {
    static const struct {
        const char *name;
        int error;
    } errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},     {"EINTR", EINTR},
                  {"EACCES", EACCES}, {"EROFS", EROFS}, {"EMFILE", EMFILE}};
    f->kind = strcmp(word, "short") == 0  ? CLT_IO_SHORT
              : strcmp(word, "kill") == 0 ? CLT_IO_KILL
                                          : CLT_IO_FAIL;
    for (size_t i = 0; i < CLT_COUNT_OF(errors); i++)
        if (strcmp(word, errors[i].name) == 0) f->error = errors[i].error;
    return f->kind != CLT_IO_FAIL || f->error;
}

static bool parse_range(char *word, clt_io_fault *f) {
    char *dash = strchr(word, '-');
    int64_t first = 0, last = LONG_MAX;
    if (dash) *dash = 0;
    if (!clt_parse_i64(word, &first) || first < 1) return false;
    if (!dash) last = first;
    if (dash && dash[1] && !clt_parse_i64(dash + 1, &last)) return false;
    f->first = first;
    f->last = last;
    return last >= first;
}

clt_status clt_io_fault_parse(const char *text, clt_io_fault *out) {
    char *copy = clt_strdup(text), *part[4] = {0}, *at = copy;
    *out = (clt_io_fault){.op = CLT_IO_OPS};
    for (int i = 0; i < 4 && at; i++) part[i] = strsep(&at, ":");
    bool ok = part[3] && !at && strlen(part[1]) < sizeof out->name;
    if (ok) {
        clt_io_op op = 0;
        while (op < CLT_IO_OPS && strcmp(part[0], op_names[op]) != 0) op++;
        ok = op < CLT_IO_OPS || strcmp(part[0], op_names[CLT_IO_OPS]) == 0;
        out->op = op;
        snprintf(out->name, sizeof out->name, "%s", part[1]);
        ok = ok && parse_range(part[2], out) && parse_error(part[3], out);
    }
    clt_free(copy);
    if (ok) return CLT_OK;
    return clt_error(CLT_USAGE,
                     "fault '%s' is malformed: use OPERATION:NAME:N[-[M]]:WHAT, e.g. pwrite:data.*:3:ENOSPC",
                     text);
}

/* --- the recorder --- */

/* One entry of the log: this, the two names (without a 0), the data. It is written with one append, so that
 * threads and processes that share a log do not tear each other's entries. */
typedef struct {
    char magic[4];
    uint32_t op, mode, path_bytes, to_bytes;
    uint64_t offset, bytes;
} entry_head;
static const char magic[4] = {'c', 'i', 'o', '1'};

static void record(clt_io_probe *p, clt_io_op op, clt_io_mode mode, const char *path, const char *to,
                   uint64_t offset, const void *data, size_t bytes) {
    if (p->record_fd < 0) return;
    entry_head h = {.op = op, .mode = mode, .offset = offset, .bytes = bytes};
    memcpy(h.magic, magic, sizeof magic);
    h.path_bytes = (uint32_t)strlen(path);
    h.to_bytes = to ? (uint32_t)strlen(to) : 0;
    clt_str b = {0};
    clt_str_addn(&b, (const char *)&h, sizeof h);
    clt_str_add(&b, path);
    if (to) clt_str_add(&b, to);
    if (bytes) clt_str_addn(&b, data, bytes);
    pthread_mutex_lock(&p->lock);
    if (p->record_fd >= 0 && write(p->record_fd, b.s, b.len) != (ssize_t)b.len) {
        clt_warn("the record of file operations is incomplete");
        close(p->record_fd);
        p->record_fd = -1;
    }
    pthread_mutex_unlock(&p->lock);
    clt_str_free(&b);
}

clt_status clt_io_record(clt_io_probe *p, const char *file) {
    if (p->record_fd >= 0) close(p->record_fd);
    p->record_fd = -1;
    if (!file) return CLT_OK;
    p->record_fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (p->record_fd < 0) return clt_error(CLT_IO, "cannot create %s: %s", file, strerror(errno));
    return CLT_OK;
}

static clt_status read_entry(const char *file, const char *text, size_t size, size_t *at, clt_io_entry *e) {
    entry_head h;
    bool ok = size - *at >= sizeof h;
    if (ok) memcpy(&h, text + *at, sizeof h);
    ok = ok && !memcmp(h.magic, magic, sizeof magic) && h.op < CLT_IO_OPS;
    size_t left = size - *at - (ok ? sizeof h : 0);
    ok = ok && h.path_bytes <= left && h.to_bytes <= left - h.path_bytes &&
         h.bytes <= left - h.path_bytes - h.to_bytes;
    if (!ok) return clt_error(CLT_BAD_DATA, "%s is not a record of file operations (byte %zu)", file, *at);
    const char *p = text + *at + sizeof h;
    *e = (clt_io_entry){
        .op = (clt_io_op)h.op, .mode = (clt_io_mode)h.mode, .offset = h.offset, .bytes = h.bytes};
    e->path = clt_strndup(p, h.path_bytes);
    e->to = h.to_bytes ? clt_strndup(p + h.path_bytes, h.to_bytes) : NULL;
    e->data = h.bytes ? clt_memdup(p + h.path_bytes + h.to_bytes, h.bytes) : NULL;
    *at += sizeof h + h.path_bytes + h.to_bytes + h.bytes;
    return CLT_OK;
}

clt_status clt_io_record_read(const char *file, clt_io_entry **list, size_t *n) {
    enum { LIMIT = 1 << 30 };
    char *text;
    size_t size, at = 0, cap = 0;
    CLT_TRY(clt_io_read_all(file, LIMIT, &text, &size));
    clt_status st = CLT_OK;
    *list = NULL;
    *n = 0;
    while (st == CLT_OK && at < size) {
        if (*n == cap) *list = clt_realloc(*list, (cap = cap * 2 + 64) * sizeof **list);
        st = read_entry(file, text, size, &at, &(*list)[*n]);
        if (st == CLT_OK) ++*n;
    }
    clt_free(text);
    if (st != CLT_OK) clt_io_record_free(*list, *n);
    return st;
}

void clt_io_record_free(clt_io_entry *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        clt_free(list[i].path);
        clt_free(list[i].to);
        clt_free(list[i].data);
    }
    clt_free(list);
}

/* --- the component --- */

typedef struct {
    void *under;
    char path[];
} probe_file;

static clt_io_probe *probe_of(clt_io_component *c) {
    return (clt_io_probe *)c;
}

static int probe_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle) {
    clt_io_probe *p = probe_of(c);
    void *h;
    int e = hit(p, CLT_IO_OPEN, path, NULL);
    if (!e) e = p->under->ops->open(p->under, path, mode, &h);
    if (e) return e;
    probe_file *f = clt_malloc(sizeof *f + strlen(path) + 1);
    f->under = h;
    strcpy(f->path, path);
    *handle = f;
    if (mode != CLT_IO_READ && mode != CLT_IO_READ_PLAIN)
        record(p, CLT_IO_OPEN, mode, path, NULL, 0, NULL, 0);
    return 0;
}

static int probe_pread(clt_io_component *c, void *h, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    clt_io_probe *p = probe_of(c);
    probe_file *f = h;
    int e = hit(p, CLT_IO_PREAD, f->path, &bytes);
    *done = 0;
    return e ? e : p->under->ops->pread(p->under, f->under, dst, bytes, offset, done);
}

static int probe_pwrite(clt_io_component *c, void *h, const void *src, size_t bytes, uint64_t offset,
                        size_t *done) {
    clt_io_probe *p = probe_of(c);
    probe_file *f = h;
    int e = hit(p, CLT_IO_PWRITE, f->path, &bytes);
    *done = 0;
    if (!e) e = p->under->ops->pwrite(p->under, f->under, src, bytes, offset, done);
    if (!e) record(p, CLT_IO_PWRITE, 0, f->path, NULL, offset, src, *done);
    return e;
}

static int probe_append(clt_io_component *c, void *h, const void *src, size_t bytes, size_t *done) {
    clt_io_probe *p = probe_of(c);
    probe_file *f = h;
    int e = hit(p, CLT_IO_APPENDS, f->path, &bytes);
    *done = 0;
    if (!e) e = p->under->ops->append(p->under, f->under, src, bytes, done);
    if (!e) record(p, CLT_IO_APPENDS, 0, f->path, NULL, 0, src, *done);
    return e;
}

static int probe_size(clt_io_component *c, void *h, uint64_t *bytes) {
    clt_io_probe *p = probe_of(c);
    probe_file *f = h;
    int e = hit(p, CLT_IO_SIZE, f->path, NULL);
    return e ? e : p->under->ops->size(p->under, f->under, bytes);
}

static int sync_with(clt_io_probe *p, clt_io_op op, int (*sync)(clt_io_component *, void *), probe_file *f) {
    int e = hit(p, op, f->path, NULL);
    if (!e) e = sync(p->under, f->under);
    if (!e) record(p, op, 0, f->path, NULL, 0, NULL, 0);
    return e;
}
static int probe_datasync(clt_io_component *c, void *h) {
    return sync_with(probe_of(c), CLT_IO_DATASYNC, probe_of(c)->under->ops->datasync, h);
}
static int probe_sync(clt_io_component *c, void *h) {
    return sync_with(probe_of(c), CLT_IO_SYNC, probe_of(c)->under->ops->sync, h);
}

/* The file is closed in any case, as the system does it; a fault leaves a name that close would give as it
 * was. */
static int probe_close(clt_io_component *c, void *h) {
    clt_io_probe *p = probe_of(c);
    probe_file *f = h;
    int e = hit(p, CLT_IO_CLOSE, f->path, NULL), closed = 0;
    if (e && p->under->ops->abandon)
        p->under->ops->abandon(p->under, f->under);
    else
        closed = p->under->ops->close(p->under, f->under);
    clt_free(f);
    return e ? e : closed;
}

static void probe_abandon(clt_io_component *c, void *h) {
    clt_io_component *under = probe_of(c)->under;
    probe_file *f = h;
    if (under->ops->abandon)
        under->ops->abandon(under, f->under);
    else
        under->ops->close(under, f->under);
    clt_free(f);
}

static int with_path(clt_io_probe *p, clt_io_op op, int (*call)(clt_io_component *, const char *),
                     const char *path) {
    int e = hit(p, op, path, NULL);
    if (!e) e = call(p->under, path);
    if (!e) record(p, op, 0, path, NULL, 0, NULL, 0);
    return e;
}
static int probe_unlink(clt_io_component *c, const char *path) {
    return with_path(probe_of(c), CLT_IO_UNLINK, probe_of(c)->under->ops->unlink, path);
}
static int probe_rmdir(clt_io_component *c, const char *path) {
    return with_path(probe_of(c), CLT_IO_RMDIR, probe_of(c)->under->ops->rmdir, path);
}
static int probe_mkdir(clt_io_component *c, const char *path) {
    return with_path(probe_of(c), CLT_IO_MKDIR, probe_of(c)->under->ops->mkdir, path);
}
static int probe_sync_dir(clt_io_component *c, const char *path) {
    return with_path(probe_of(c), CLT_IO_SYNC_DIR, probe_of(c)->under->ops->sync_dir, path);
}

static int with_two(clt_io_probe *p, clt_io_op op,
                    int (*call)(clt_io_component *, const char *, const char *), const char *a,
                    const char *b) {
    int e = hit(p, op, b, NULL);
    if (!e) e = call(p->under, a, b);
    if (!e) record(p, op, 0, a, b, 0, NULL, 0);
    return e;
}
static int probe_rename(clt_io_component *c, const char *from, const char *to) {
    return with_two(probe_of(c), CLT_IO_RENAME, probe_of(c)->under->ops->rename, from, to);
}
static int probe_exchange(clt_io_component *c, const char *a, const char *b) {
    return with_two(probe_of(c), CLT_IO_EXCHANGE, probe_of(c)->under->ops->exchange, a, b);
}

static int probe_list(clt_io_component *c, const char *path, clt_strv *names) {
    clt_io_probe *p = probe_of(c);
    int e = hit(p, CLT_IO_LIST, path, NULL);
    return e ? e : p->under->ops->list(p->under, path, names);
}

static int probe_stat(clt_io_component *c, const char *path, clt_io_info *out) {
    clt_io_probe *p = probe_of(c);
    int e = hit(p, CLT_IO_STAT, path, NULL);
    return e ? e : p->under->ops->stat(p->under, path, out);
}

static int probe_lock(clt_io_component *c, const char *path, const char *owner, void **lock,
                      char holder[CLT_IO_OWNER_BYTES]) {
    clt_io_probe *p = probe_of(c);
    int e = hit(p, CLT_IO_LOCK, path, NULL);
    return e ? e : p->under->ops->lock(p->under, path, owner, lock, holder);
}

static int probe_sign(clt_io_component *c, void *lock, const char *owner) {
    return probe_of(c)->under->ops->sign(probe_of(c)->under, lock, owner);
}

static void probe_unlock(clt_io_component *c, void *lock) {
    probe_of(c)->under->ops->unlock(probe_of(c)->under, lock);
}

static bool probe_is_held(clt_io_component *c, void *lock) {
    clt_io_component *under = probe_of(c)->under;
    return !under->ops->is_held || under->ops->is_held(under, lock);
}

static int probe_replace(clt_io_component *c, const char *path, const void *data, size_t bytes,
                         const char *expected, char version[CLT_IO_VERSION_BYTES]) {
    clt_io_probe *p = probe_of(c);
    int e = hit(p, CLT_IO_REPLACE, path, NULL);
    if (!e) e = p->under->ops->replace(p->under, path, data, bytes, expected, version);
    if (!e) record(p, CLT_IO_REPLACE, 0, path, NULL, 0, data, bytes);
    return e;
}
static int probe_version(clt_io_component *c, const char *path, char version[CLT_IO_VERSION_BYTES]) {
    clt_io_probe *p = probe_of(c);
    int e = hit(p, CLT_IO_VERSION, path, NULL);
    return e ? e : p->under->ops->version(p->under, path, version);
}

static int probe_clean(clt_io_component *c, const char *path, double age, bool dry_run,
                       clt_io_unfinished_fn each, void *ctx, int *n) {
    clt_io_component *under = probe_of(c)->under;
    return under->ops->clean ? under->ops->clean(under, path, age, dry_run, each, ctx, n) : 0;
}

static const char *probe_explain(clt_io_component *c) {
    clt_io_component *under = probe_of(c)->under;
    return under->ops->explain ? under->ops->explain(under) : NULL;
}

clt_io_probe *clt_io_probe_create(clt_io_component *under) {
    static const clt_io_ops ops = {
        .name = "probe",
        .open = probe_open,
        .pread = probe_pread,
        .pwrite = probe_pwrite,
        .append = probe_append,
        .size = probe_size,
        .datasync = probe_datasync,
        .sync = probe_sync,
        .close = probe_close,
        .rename = probe_rename,
        .exchange = probe_exchange,
        .unlink = probe_unlink,
        .rmdir = probe_rmdir,
        .mkdir = probe_mkdir,
        .sync_dir = probe_sync_dir,
        .list = probe_list,
        .stat = probe_stat,
        .lock = probe_lock,
        .sign = probe_sign,
        .unlock = probe_unlock,
        .abandon = probe_abandon,
        .is_held = probe_is_held,
        .replace = probe_replace,
        .version = probe_version,
        .clean = probe_clean,
        .explain = probe_explain,
    };
    clt_io_probe *p = clt_calloc(1, sizeof *p);
    p->base = (clt_io_component){&ops, under->caps, under->lock_retry};
    p->under = under;
    p->record_fd = -1;
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

clt_io_component *clt_io_probe_component(clt_io_probe *p) {
    return &p->base;
}

void clt_io_probe_destroy(clt_io_probe *p) {
    if (!p) return;
    if (p->record_fd >= 0) close(p->record_fd);
    pthread_mutex_destroy(&p->lock);
    clt_free(p);
}

clt_status clt_io_probe_from_env(void) {
    const char *text = clt_env(CLT_ENV_IO_FAULT), *file = clt_env(CLT_ENV_IO_RECORD);
    clt_io_fault f;
    if (!text && !file) return CLT_OK;
    if (text) CLT_TRY(clt_io_fault_parse(text, &f));
    clt_io_probe *p = clt_io_probe_create(clt_io_local()); /* for the life of the program */
    CLT_TRY(clt_io_record(p, file));
    clt_io_fault_arm(p, text ? &f : NULL);
    return clt_io_register("file", &p->base);
}
