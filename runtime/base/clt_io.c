#include "runtime/base/clt_io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- the local file system --- */

static int fd_of(void *h) {
    return (int)(intptr_t)h - 1;
}

static int local_open(const char *path, clt_io_mode mode, void **handle) {
    /* O_NONBLOCK: opening a pipe in the place of a file must not wait for a writer. Reading it is an error.
     */
    static const int flags[] = {[CLT_IO_READ] = O_RDONLY | O_NONBLOCK,
                                [CLT_IO_CREATE] = O_RDWR | O_CREAT | O_TRUNC,
                                [CLT_IO_APPEND] = O_WRONLY | O_CREAT | O_APPEND,
                                [CLT_IO_READ_PLAIN] = O_RDONLY | O_NONBLOCK | O_NOFOLLOW};
    int fd = open(path, flags[mode] | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    *handle = (void *)(intptr_t)(fd + 1);
    return 0;
}

static int finish_io(ssize_t n, size_t *done) {
    *done = n < 0 ? 0 : (size_t)n;
    return n < 0 ? errno : 0;
}

static int local_pread(void *h, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    return finish_io(pread(fd_of(h), dst, bytes, (off_t)offset), done);
}
static int local_pwrite(void *h, const void *src, size_t bytes, uint64_t offset, size_t *done) {
    return finish_io(pwrite(fd_of(h), src, bytes, (off_t)offset), done);
}
static int local_append(void *h, const void *src, size_t bytes, size_t *done) {
    return finish_io(write(fd_of(h), src, bytes), done);
}
static int local_size(void *h, uint64_t *bytes) {
    struct stat s;
    if (fstat(fd_of(h), &s) != 0) return errno;
    *bytes = (uint64_t)s.st_size;
    return 0;
}
static int local_datasync(void *h) {
    return fdatasync(fd_of(h)) ? errno : 0;
}
static int local_sync(void *h) {
    return fsync(fd_of(h)) ? errno : 0;
}
static int local_close(void *h) {
    return close(fd_of(h)) ? errno : 0;
}
static int local_rename(const char *from, const char *to) {
    return rename(from, to) ? errno : 0;
}
static int local_exchange(const char *a, const char *b) {
    return syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */) ? errno : 0;
}
static int local_unlink(const char *path) {
    return unlink(path) ? errno : 0;
}
static int local_rmdir(const char *path) {
    return rmdir(path) ? errno : 0;
}
static int local_mkdir(const char *path) {
    return mkdir(path, 0777) ? errno : 0;
}

static int local_sync_dir(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int e = fsync(fd) ? errno : 0;
    close(fd);
    return e == EINVAL ? 0 : e; /* some file systems cannot sync a folder, and need not */
}

static int local_list(const char *path, clt_strv *names) {
    DIR *d = opendir(path);
    if (!d) return errno;
    /* A list that breaks off is an error: what is not in it would be taken for absent. */
    errno = 0;
    for (struct dirent *e; (e = readdir(d)); errno = 0)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) clt_strv_add(names, e->d_name);
    int error = errno;
    closedir(d);
    return error;
}

static int local_kind(const char *path, int *kind, uint64_t *bytes) {
    struct stat s;
    *kind = 0;
    if (bytes) *bytes = 0;
    if (stat(path, &s) != 0) return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    *kind = S_ISREG(s.st_mode) ? 1 : S_ISDIR(s.st_mode) ? 2 : 3;
    if (bytes) *bytes = (uint64_t)s.st_size;
    return 0;
}

const clt_io_ops clt_io_local = {
    "local",        local_open,  local_pread,    local_pwrite, local_append,   local_size,
    local_datasync, local_sync,  local_close,    local_rename, local_exchange, local_unlink,
    local_rmdir,    local_mkdir, local_sync_dir, local_list,   local_kind,
};

static const clt_io_ops *io = &clt_io_local;
const clt_io_ops *clt_io_get(void) {
    return io;
}
void clt_io_set(const clt_io_ops *ops) {
    io = ops;
}

/* --- files --- */

struct clt_file {
    void *handle;
    char path[];
};

static clt_status failed(const char *verb, const char *path, int e) {
    const char *hint = e == ENOSPC   ? "; free some space or choose another folder"
                       : e == EACCES ? "; check the permissions"
                       : e == EROFS  ? "; the file system is read-only"
                       : e == ELOOP  ? "; a symbolic link is not followed here"
                                     : "";
    return clt_error(CLT_IO, "cannot %s %s: %s%s", verb, path, strerror(e), hint);
}

clt_status clt_file_open(const char *path, clt_io_mode mode, clt_file **out) {
    void *handle;
    int e;
    do e = io->open(path, mode, &handle);
    while (e == EINTR);
    bool reads = mode == CLT_IO_READ || mode == CLT_IO_READ_PLAIN;
    if (e) return failed(reads ? "open" : "create", path, e);
    clt_file *f = clt_malloc(sizeof *f + strlen(path) + 1);
    f->handle = handle;
    strcpy(f->path, path);
    *out = f;
    return CLT_OK;
}

clt_status clt_file_pread(clt_file *f, void *dst, size_t bytes, uint64_t offset) {
    for (size_t at = 0; at < bytes;) {
        size_t n;
        int e = io->pread(f->handle, (char *)dst + at, bytes - at, offset + at, &n);
        if (e == EINTR) continue;
        if (e) return failed("read", f->path, e);
        if (n == 0)
            return clt_error(CLT_BAD_DATA, "%s ends early: %zu bytes wanted at offset %llu, %zu there",
                             f->path, bytes, (unsigned long long)offset, at);
        at += n;
    }
    return CLT_OK;
}

clt_status clt_file_pwrite(clt_file *f, const void *src, size_t bytes, uint64_t offset) {
    for (size_t at = 0; at < bytes;) {
        size_t n;
        int e = io->pwrite(f->handle, (const char *)src + at, bytes - at, offset + at, &n);
        if (e == EINTR) continue;
        if (e) return failed("write", f->path, e);
        if (n == 0) return failed("write", f->path, ENOSPC);
        at += n;
    }
    return CLT_OK;
}

clt_status clt_file_append(clt_file *f, const void *src, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t n;
        int e = io->append(f->handle, (const char *)src + at, bytes - at, &n);
        if (e == EINTR) continue;
        if (e) return failed("append to", f->path, e);
        if (n == 0) return failed("append to", f->path, ENOSPC);
        at += n;
    }
    return CLT_OK;
}

clt_status clt_file_size(clt_file *f, uint64_t *bytes) {
    int e = io->size(f->handle, bytes);
    return e ? failed("look at", f->path, e) : CLT_OK;
}

clt_status clt_file_datasync(clt_file *f) {
    int e = io->datasync(f->handle);
    return e ? failed("make durable", f->path, e) : CLT_OK;
}

clt_status clt_file_sync(clt_file *f) {
    int e = io->sync(f->handle);
    return e ? failed("make durable", f->path, e) : CLT_OK;
}

clt_status clt_file_close(clt_file *f) {
    if (!f) return CLT_OK;
    int e = io->close(f->handle);
    clt_status st = e && e != EINTR ? failed("close", f->path, e) : CLT_OK;
    clt_free(f);
    return st;
}

clt_status clt_io_rename(const char *from, const char *to) {
    int e = io->rename(from, to);
    return e ? clt_error(CLT_IO, "cannot rename %s to %s: %s", from, to, strerror(e)) : CLT_OK;
}

clt_status clt_io_unlink(const char *path) {
    int e = io->unlink(path);
    return e ? failed("remove", path, e) : CLT_OK;
}

clt_status clt_io_sync_dir(const char *path) {
    int e = io->sync_dir(path);
    return e ? failed("make durable", path, e) : CLT_OK;
}

static int kind_of(const char *path) {
    int kind = 0;
    return io->kind(path, &kind, NULL) ? 0 : kind;
}

bool clt_io_is_file(const char *path) {
    return kind_of(path) == 1;
}
bool clt_io_is_dir(const char *path) {
    return kind_of(path) == 2;
}

/* With `durable`, the names of the new folders survive a loss of power. */
static int make_folders(const char *path, bool durable) {
    char *p = clt_strdup(path);
    int e = 0;
    for (char *s = p + 1; e == 0; s++) {
        if (*s != '/' && *s) continue;
        char keep = *s;
        *s = 0;
        if (!clt_io_is_dir(p)) {
            char *parent = clt_path_dir(p);
            e = io->mkdir(p);
            if (e == EEXIST && clt_io_is_dir(p)) e = 0;
            if (e == 0 && durable && (e = io->sync_dir(parent)) == EACCES)
                e = 0; /* a parent that may not be read cannot be synced */
            clt_free(parent);
        }
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

clt_status clt_io_mkdir(const char *path) {
    int e = io->mkdir(path);
    return e ? failed("create folder", path, e) : CLT_OK;
}

clt_status clt_io_remove_tree(const char *path) {
    int e = io->unlink(path);
    if (e == 0 || e == ENOENT) return CLT_OK;
    if (!clt_io_is_dir(path)) return failed("remove", path, e);
    clt_strv names = {0};
    e = io->list(path, &names);
    clt_status st = e ? failed("list", path, e) : CLT_OK;
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        char *child = clt_path_join(path, names.v[i]);
        st = clt_io_remove_tree(child);
        clt_free(child);
    }
    clt_strv_free(&names);
    if (st == CLT_OK && (e = io->rmdir(path)) != 0) st = failed("remove", path, e);
    return st;
}

clt_status clt_io_list(const char *path, clt_strv *names) {
    int e = io->list(path, names);
    if (e) return failed("list", path, e);
    clt_strv_sort(names);
    return CLT_OK;
}

clt_status clt_io_read_all(const char *path, size_t limit, char **data, size_t *bytes) {
    clt_file *f;
    uint64_t n = 0;
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &f));
    char *p = NULL;
    clt_status st = clt_file_size(f, &n);
    if (st == CLT_OK && n > limit)
        st = clt_error(CLT_BAD_DATA, "%s has %llu bytes, at most %zu are allowed", path,
                       (unsigned long long)n, limit);
    if (st == CLT_OK) {
        p = clt_malloc((size_t)n + 1);
        st = clt_file_pread(f, p, (size_t)n, 0);
    }
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

clt_status clt_io_write_atomic(const char *path, const void *data, size_t bytes) {
    char *tmp = clt_format("%s.tmp.%ld", path, (long)getpid()), *dir = clt_path_dir(path);
    clt_file *f = NULL;
    clt_status st = clt_file_open(tmp, CLT_IO_CREATE, &f);
    if (st == CLT_OK) {
        st = clt_file_pwrite(f, data, bytes, 0);
        if (st == CLT_OK) st = clt_file_sync(f);
        clt_status closed = clt_file_close(f);
        if (st == CLT_OK) st = closed;
        if (st == CLT_OK) st = clt_io_rename(tmp, path);
        if (st == CLT_OK)
            st = clt_io_sync_dir(dir);
        else
            io->unlink(tmp);
    }
    clt_free(tmp);
    clt_free(dir);
    return st;
}

/* --- paths --- */

char *clt_path_join(const char *a, const char *b) {
    size_t n = strlen(a);
    if (n == 0 || b[0] == '/') return clt_strdup(b);
    return clt_format(a[n - 1] == '/' ? "%s%s" : "%s/%s", a, b);
}

char *clt_path_dir(const char *path) {
    const char *s = strrchr(path, '/');
    if (!s) return clt_strdup(".");
    return s == path ? clt_strdup("/") : clt_strndup(path, (size_t)(s - path));
}

const char *clt_path_base(const char *path) {
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

bool clt_path_is_safe(const char *name) {
    if (!*name || *name == '/') return false;
    for (const char *s = name;;) {
        size_t n = strcspn(s, "/");
        if (n == 0 || (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.')) return false;
        if (!s[n]) return true;
        s += n + 1;
    }
}
