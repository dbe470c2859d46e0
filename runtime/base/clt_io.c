#include "runtime/base/clt_io.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clt_io_component.h"
#include "runtime/base/clt_signal.h"

const char *clt_io_explain(const char *path, int e) {
    clt_io_component *c;
    const char *name, *why = NULL;
    if (!clt_io_find(path, &c, &name) && c->ops->explain) why = c->ops->explain(c);
    return why && *why ? why : strerror(e);
}

static _Thread_local int last_errno;
static _Thread_local double deadline;
static _Thread_local bool heeds_stop;
static _Thread_local const atomic_bool *heeded_flag;

bool clt_io_heed_stop(bool heed) {
    bool before = heeds_stop;
    heeds_stop = heed;
    return before;
}
void clt_io_heed_flag(const atomic_bool *stop) {
    heeded_flag = stop;
}
double clt_io_set_deadline(double at) {
    double before = deadline;
    deadline = at;
    return before;
}
double clt_io_deadline(void) {
    return deadline;
}
int clt_io_last_errno(void) {
    return last_errno;
}
bool clt_io_may_pass(int e) {
    static const int passing[] = {ETIMEDOUT, ECONNREFUSED, ECONNRESET,   EHOSTUNREACH,
                                  EHOSTDOWN, ENETUNREACH,  ECONNABORTED, ENETDOWN};
    for (size_t i = 0; i < CLT_COUNT_OF(passing); i++)
        if (e == passing[i]) return true;
    return false;
}
bool clt_io_stop_heeded(void) {
    return heeds_stop || heeded_flag;
}
bool clt_io_stop_requested(void) {
    return (heeded_flag && atomic_load(heeded_flag)) || (heeds_stop && clt_signal_received() != 0);
}
const atomic_bool *clt_io_heeded_flag(void) {
    return heeded_flag;
}

static clt_status failed(const char *verb, const char *path, int e) {
    if (e == ECANCELED && clt_io_stop_requested()) return CLT_STOPPED;
    const char *hint = e == ENOSPC   ? "; free some space or choose another folder"
                       : e == EACCES ? "; check the permissions"
                       : e == EROFS  ? "; the file system is read-only"
                       : e == ELOOP  ? "; a symbolic link is not followed here"
                                     : "";
    if (e == EPROTONOSUPPORT) return clt_io_require(path, 0, verb);
    const clt_status st = e == ENOMEM ? CLT_NO_MEMORY : e == ENOKEY ? CLT_BAD_CONFIG : CLT_IO;
    last_errno = e;
    return clt_error(st, "cannot %s %s: %s%s", verb, path, clt_io_explain(path, e), hint);
}

/* --- files --- */

struct clt_file {
    clt_io_component *c;
    void *handle;
    atomic_bool broken; /* a write or a sync failed: close must not publish the file */
    char path[];
};

static clt_status broke(clt_file *f, const char *verb, int e) {
    f->broken = true;
    return failed(verb, f->path, e);
}

static bool reads(clt_io_mode mode) {
    return mode == CLT_IO_READ || mode == CLT_IO_READ_PLAIN;
}

static int try_open(clt_io_component *c, const char *name, clt_io_mode mode, void **handle) {
    int e;
    do e = c->ops->open(c, name, mode, handle);
    while (e == EINTR);
    return e;
}

clt_status clt_file_open(const char *path, clt_io_mode mode, clt_file **out) {
    static const unsigned needs[] = {[CLT_IO_CREATE_NEW] = CLT_IO_CAN_CREATE_NEW,
                                     [CLT_IO_APPEND] = CLT_IO_CAN_APPEND,
                                     [CLT_IO_UPDATE] = CLT_IO_CAN_WRITE_RANGES};
    clt_io_component *c;
    const char *name;
    void *handle;
    CLT_TRY(clt_io_require(path, needs[mode], "opening this file"));
    int e = clt_io_find(path, &c, &name);
    if (!e) e = try_open(c, name, mode, &handle);
    if (e) return failed(reads(mode) ? "open" : "create", path, e);
    clt_file *f = clt_malloc(sizeof *f + strlen(path) + 1);
    f->c = c;
    f->handle = handle;
    f->broken = false;
    strcpy(f->path, path);
    *out = f;
    return CLT_OK;
}

clt_status clt_file_pread(clt_file *f, void *dst, size_t bytes, uint64_t offset) {
    for (size_t at = 0; at < bytes;) {
        size_t n;
        int e = f->c->ops->pread(f->c, f->handle, (char *)dst + at, bytes - at, offset + at, &n);
        if (e == EINTR) continue;
        if (e) return failed("read", f->path, e);
        if (n == 0)
            return clt_error(CLT_BAD_DATA, "%s ends early: %zu bytes wanted at offset %llu, %zu found",
                             f->path, bytes, (unsigned long long)offset, at);
        at += n;
    }
    return CLT_OK;
}

clt_status clt_file_pwrite(clt_file *f, const void *src, size_t bytes, uint64_t offset) {
    for (size_t at = 0; at < bytes;) {
        size_t n;
        int e = f->c->ops->pwrite(f->c, f->handle, (const char *)src + at, bytes - at, offset + at, &n);
        if (e == EINTR) continue;
        if (e) return broke(f, "write", e);
        if (n == 0) return broke(f, "write", ENOSPC);
        at += n;
    }
    return CLT_OK;
}

int clt_file_try_append(clt_file *f, const void *src, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t n;
        int e = f->c->ops->append(f->c, f->handle, (const char *)src + at, bytes - at, &n);
        if (e == EINTR) continue;
        if (e) return e;
        if (n == 0) return ENOSPC;
        at += n;
    }
    return 0;
}

clt_status clt_file_append(clt_file *f, const void *src, size_t bytes) {
    int e = clt_file_try_append(f, src, bytes);
    return e ? failed("append to", f->path, e) : CLT_OK;
}

clt_status clt_file_size(clt_file *f, uint64_t *bytes) {
    int e = f->c->ops->size(f->c, f->handle, bytes);
    return e ? failed("stat", f->path, e) : CLT_OK;
}

clt_status clt_file_datasync(clt_file *f) {
    int e = f->c->ops->datasync(f->c, f->handle);
    return e ? broke(f, "sync", e) : CLT_OK;
}

clt_status clt_file_sync(clt_file *f) {
    int e = f->c->ops->sync(f->c, f->handle);
    return e ? broke(f, "sync", e) : CLT_OK;
}

void clt_file_abandon(clt_file *f) {
    if (!f) return;
    if (f->c->ops->abandon)
        f->c->ops->abandon(f->c, f->handle);
    else
        f->c->ops->close(f->c, f->handle);
    clt_free(f);
}

clt_status clt_file_close(clt_file *f) {
    if (!f) return CLT_OK;
    if (f->broken && f->c->ops->abandon) {
        clt_file_abandon(f); /* its failure was reported */
        return CLT_OK;
    }
    int e = f->c->ops->close(f->c, f->handle);
    clt_status st = e && e != EINTR ? failed("close", f->path, e) : CLT_OK;
    clt_free(f);
    return st;
}

const char *clt_file_path(const clt_file *f) {
    return f->path;
}

/* --- names --- */

int clt_io_try_stat(const char *path, clt_io_info *out) {
    clt_io_component *c;
    const char *name;
    int e = clt_io_find(path, &c, &name);
    return e ? e : c->ops->stat(c, name, out);
}

clt_status clt_io_stat(const char *path, clt_io_info *out) {
    int e = clt_io_try_stat(path, out);
    return e ? failed("stat", path, e) : CLT_OK;
}

static clt_io_kind kind_of(const char *path) {
    clt_io_info info;
    return clt_io_try_stat(path, &info) ? CLT_IO_ABSENT : info.kind;
}

bool clt_io_is_file(const char *path) {
    return kind_of(path) == CLT_IO_FILE;
}
bool clt_io_is_dir(const char *path) {
    return kind_of(path) == CLT_IO_FOLDER;
}

/* The one component of both names, and its names for them. */
static int find_two(const char *a, const char *b, unsigned cap, clt_io_component **c, const char *name[2]) {
    clt_io_component *other;
    int e = clt_io_find(a, c, &name[0]);
    if (!e) e = clt_io_find(b, &other, &name[1]);
    if (e) return e;
    return *c != other ? EXDEV : (*c)->caps & cap ? 0 : ENOTSUP;
}

int clt_io_try_rename(const char *from, const char *to) {
    clt_io_component *c;
    const char *name[2];
    int e = find_two(from, to, CLT_IO_CAN_RENAME, &c, name);
    return e ? e : c->ops->rename(c, name[0], name[1]);
}

clt_status clt_io_rename(const char *from, const char *to) {
    int e = clt_io_try_rename(from, to);
    return e ? clt_error(CLT_IO, "cannot rename %s to %s: %s", from, to, strerror(e)) : CLT_OK;
}

int clt_io_try_exchange(const char *a, const char *b) {
    clt_io_component *c;
    const char *name[2];
    int e = find_two(a, b, CLT_IO_CAN_EXCHANGE, &c, name);
    return e ? e : c->ops->exchange(c, name[0], name[1]);
}

int clt_io_try_unlink(const char *path) {
    clt_io_component *c;
    const char *name;
    int e = clt_io_find(path, &c, &name);
    return e ? e : c->ops->unlink(c, name);
}

clt_status clt_io_unlink(const char *path) {
    int e = clt_io_try_unlink(path);
    return e ? failed("remove", path, e) : CLT_OK;
}

static int try_sync_dir(const char *path) {
    clt_io_component *c;
    const char *name;
    int e = clt_io_find(path, &c, &name);
    return e || !(c->caps & CLT_IO_HAS_FOLDERS) ? e : c->ops->sync_dir(c, name);
}

clt_status clt_io_sync_dir(const char *path) {
    int e = try_sync_dir(path);
    return e ? failed("sync", path, e) : CLT_OK;
}

static int try_mkdir(const char *path) {
    clt_io_component *c;
    const char *name;
    int e = clt_io_find(path, &c, &name);
    return e || !(c->caps & CLT_IO_HAS_FOLDERS) ? e : c->ops->mkdir(c, name);
}

clt_status clt_io_mkdir(const char *path) {
    int e = try_mkdir(path);
    return e ? failed("create folder", path, e) : CLT_OK;
}

/* With `durable`, the names of the new folders survive a loss of power. */
static int make_folder(const char *path, bool durable) {
    if (clt_io_is_dir(path)) return 0;
    char *parent = clt_path_dir(path);
    int e = try_mkdir(path);
    if (e == EEXIST && clt_io_is_dir(path)) e = 0;
    if (e == 0 && durable && (e = try_sync_dir(parent)) == EACCES)
        e = 0; /* a parent that may not be read cannot be synced */
    clt_free(parent);
    return e;
}

static int make_folders(const char *path, bool durable) {
    size_t root = clt_path_scheme(path);
    clt_io_component *c;
    const char *name;
    int found = clt_io_find(path, &c, &name);
    if (found || !(c->caps & CLT_IO_HAS_FOLDERS)) return found;
    char *p = clt_strdup(path);
    int e = 0;
    if (root) root += strcspn(p + root, "/"); /* the authority is not a folder */
    for (char *s = p + root + (p[root] != 0); e == 0; s++) {
        if (*s != '/' && *s) continue;
        char keep = *s;
        *s = 0;
        e = make_folder(p, durable);
        *s = keep;
        if (!keep) break;
    }
    clt_free(p);
    return e;
}

int clt_io_try_mkdirs(const char *path) {
    return make_folders(path, false);
}

clt_status clt_io_mkdirs(const char *path) {
    int e = make_folders(path, true);
    return e ? failed("create folder", path, e) : CLT_OK;
}

static int try_list(const char *path, clt_strv *names) {
    clt_io_component *c;
    const char *name;
    int e = clt_io_find(path, &c, &name);
    return e ? e : c->ops->list(c, name, names);
}

clt_status clt_io_list(const char *path, clt_strv *names) {
    int e = try_list(path, names);
    if (e) return failed("list", path, e);
    clt_strv_sort(names);
    return CLT_OK;
}

static int remove_folder(const char *path) {
    clt_io_component *c;
    const char *name;
    int e = clt_io_find(path, &c, &name);
    return e || !(c->caps & CLT_IO_HAS_FOLDERS) ? e : c->ops->rmdir(c, name);
}

clt_status clt_io_remove_tree(const char *path) {
    int e = clt_io_try_unlink(path); /* first, so that a link is removed and not what it leads to */
    if (e == 0) return CLT_OK;
    if (!clt_io_is_dir(path)) return e == ENOENT ? CLT_OK : failed("remove", path, e);
    clt_strv names = {0};
    e = try_list(path, &names);
    clt_status st = e ? failed("list", path, e) : CLT_OK;
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        char *child = clt_path_join(path, names.v[i]);
        st = clt_io_remove_tree(child);
        clt_free(child);
    }
    clt_strv_free(&names);
    if (st == CLT_OK && (e = remove_folder(path)) != 0) st = failed("remove", path, e);
    return st;
}

/* --- whole files --- */

clt_status clt_io_read_all(const char *path, size_t limit, char **data, size_t *bytes) {
    clt_file *f;
    uint64_t n = 0;
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &f));
    char *p = NULL;
    clt_status st = clt_file_size(f, &n);
    if (st == CLT_OK && n > limit)
        st = clt_error(CLT_BAD_DATA, "%s has %llu bytes, at most %zu are allowed", path,
                       (unsigned long long)n, limit);
    if (st == CLT_OK && !(p = clt_try_malloc((size_t)n + 1))) st = clt_no_memory(path, n);
    if (st == CLT_OK) st = clt_file_pread(f, p, (size_t)n, 0);
    clt_file_close(f);
    if (st != CLT_OK) {
        clt_free(p);
        return st;
    }
    p[n] = 0;
    *data = p;
    if (bytes) *bytes = (size_t)n;
    return CLT_OK;
}

char *clt_io_temporary(const char *path) {
    static atomic_uint count;
    return clt_format("%s.tmp.%ld.%u", path, (long)getpid(), atomic_fetch_add(&count, 1));
}

static clt_status write_file(const char *path, const void *data, size_t bytes) {
    clt_file *f;
    CLT_TRY(clt_file_open(path, CLT_IO_CREATE, &f));
    clt_status st = clt_file_pwrite(f, data, bytes, 0);
    if (st == CLT_OK) st = clt_file_sync(f);
    clt_status closed = clt_file_close(f);
    return st == CLT_OK ? closed : st;
}

static clt_status write_and_rename(const char *path, const void *data, size_t bytes) {
    char *tmp = clt_io_temporary(path), *dir = clt_path_dir(path);
    clt_status st = write_file(tmp, data, bytes);
    if (st == CLT_OK) st = clt_io_rename(tmp, path);
    if (st == CLT_OK)
        st = clt_io_sync_dir(dir);
    else
        clt_io_try_unlink(tmp);
    clt_free(tmp);
    clt_free(dir);
    return st;
}

/* A device, a pipe, or a name of an open file like /dev/stdout: a rename would replace the name by a file. */
static bool is_no_file(const char *path) {
    static const char *const open_files[] = {"/dev/std", "/dev/fd/", "/proc/self/fd/"};
    clt_io_info info;
    for (size_t i = 0; i < CLT_COUNT_OF(open_files); i++)
        if (!strncmp(path, open_files[i], strlen(open_files[i]))) return true;
    return !clt_io_try_stat(path, &info) && info.kind == CLT_IO_OTHER;
}

static clt_status write_through(const char *path, const void *data, size_t bytes) {
    clt_file *f;
    CLT_TRY(clt_file_open(path, CLT_IO_APPEND, &f));
    clt_status st = clt_file_append(f, data, bytes), closed = clt_file_close(f);
    return st == CLT_OK ? closed : st;
}

clt_status clt_io_write_atomic(const char *path, const void *data, size_t bytes) {
    if (clt_io_can(path, CLT_IO_APPEARS_WHOLE)) return write_file(path, data, bytes);
    if (is_no_file(path)) return write_through(path, data, bytes);
    CLT_TRY(clt_io_require(path, CLT_IO_CAN_RENAME, "replacing a file"));
    return write_and_rename(path, data, bytes);
}

/* --- versions, and what was not finished --- */

int clt_io_replace(const char *path, const void *data, size_t bytes, const char *expected,
                   char version[CLT_IO_VERSION_BYTES]) {
    clt_io_component *c;
    const char *name;
    char unused[CLT_IO_VERSION_BYTES];
    int e = clt_io_find(path, &c, &name);
    if (!e && !(c->caps & CLT_IO_HAS_VERSIONS)) e = ENOTSUP;
    return e ? e : c->ops->replace(c, name, data, bytes, expected, version ? version : unused);
}

int clt_io_version(const char *path, char version[CLT_IO_VERSION_BYTES]) {
    clt_io_component *c;
    const char *name;
    int e = clt_io_find(path, &c, &name);
    if (!e && !(c->caps & CLT_IO_HAS_VERSIONS)) e = ENOTSUP;
    return e ? e : c->ops->version(c, name, version);
}

clt_status clt_io_clean(const char *path, double age, bool dry_run, clt_io_unfinished_fn each, void *ctx,
                        int *n) {
    clt_io_component *c;
    const char *name;
    *n = 0;
    int e = clt_io_find(path, &c, &name);
    if (!e && c->ops->clean) e = c->ops->clean(c, name, age, dry_run, each, ctx, n);
    return e ? failed("clean", path, e) : CLT_OK;
}

/* --- locks --- */

struct clt_io_lock {
    clt_io_component *c;
    void *lock;
};

int clt_io_lock_try(const char *path, const char *owner, clt_io_lock **out, char holder[CLT_IO_OWNER_BYTES]) {
    clt_io_component *c;
    const char *name;
    void *lock;
    *holder = 0;
    int e = clt_io_find(path, &c, &name);
    if (!e) e = c->caps & CLT_IO_CAN_LOCK ? c->ops->lock(c, name, owner, &lock, holder) : ENOTSUP;
    if (e) return e;
    clt_io_lock *l = clt_malloc(sizeof *l);
    *l = (clt_io_lock){c, lock};
    *out = l;
    return 0;
}

void clt_io_describe_owner(const char *more, char owner[CLT_IO_OWNER_BYTES]) {
    char host[256] = "", when[64];
    time_t now = time(NULL);
    struct tm tm;
    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
    snprintf(owner, CLT_IO_OWNER_BYTES, "host %s, process %ld, since %s%s", host, (long)getpid(), when, more);
}

double clt_io_lock_retry(const char *path) {
    clt_io_component *c;
    const char *name;
    return clt_io_find(path, &c, &name) ? 1 : c->lock_retry;
}

bool clt_io_lock_is_held(const clt_io_lock *l) {
    return !l->c->ops->is_held || l->c->ops->is_held(l->c, l->lock);
}

int clt_io_lock_sign(clt_io_lock *l, const char *owner) {
    return l->c->ops->sign(l->c, l->lock, owner);
}

void clt_io_lock_release(clt_io_lock *l) {
    if (!l) return;
    l->c->ops->unlock(l->c, l->lock);
    clt_free(l);
}
