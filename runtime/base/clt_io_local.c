/* The local file system: the component of plain paths and file:///... URLs, and the example to copy. It has
 * no state, so every function ignores its component. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/clt_io_component.h"

/* A handle or a lock is a descriptor + 1, so that it is never NULL. */
static int fd_of(void *h) {
    return (int)(intptr_t)h - 1;
}
static void *handle_of(int fd) {
    return (void *)(intptr_t)(fd + 1);
}

/* --- files --- */

static int local_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle) {
    /* O_NONBLOCK: opening a pipe in the place of a file must not wait for a writer. Reading it is an error.
     */
    static const int flags[] = {[CLT_IO_READ] = O_RDONLY | O_NONBLOCK,
                                [CLT_IO_READ_PLAIN] = O_RDONLY | O_NONBLOCK | O_NOFOLLOW,
                                [CLT_IO_CREATE] = O_RDWR | O_CREAT | O_TRUNC,
                                [CLT_IO_CREATE_NEW] = O_RDWR | O_CREAT | O_EXCL,
                                [CLT_IO_APPEND] = O_WRONLY | O_CREAT | O_APPEND,
                                [CLT_IO_UPDATE] = O_RDWR | O_CREAT};
    (void)c;
    int fd = open(path, flags[mode] | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    *handle = handle_of(fd);
    return 0;
}

static int finish_io(ssize_t n, size_t *done) {
    *done = n < 0 ? 0 : (size_t)n;
    return n < 0 ? errno : 0;
}

static int local_pread(clt_io_component *c, void *h, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    (void)c;
    return finish_io(pread(fd_of(h), dst, bytes, (off_t)offset), done);
}

static int local_pwrite(clt_io_component *c, void *h, const void *src, size_t bytes, uint64_t offset,
                        size_t *done) {
    (void)c;
    return finish_io(pwrite(fd_of(h), src, bytes, (off_t)offset), done);
}

static int local_append(clt_io_component *c, void *h, const void *src, size_t bytes, size_t *done) {
    (void)c;
    return finish_io(write(fd_of(h), src, bytes), done);
}

static int local_size(clt_io_component *c, void *h, uint64_t *bytes) {
    struct stat s;
    (void)c;
    if (fstat(fd_of(h), &s) != 0) return errno;
    *bytes = (uint64_t)s.st_size;
    return 0;
}

static int local_datasync(clt_io_component *c, void *h) {
    (void)c;
    return fdatasync(fd_of(h)) ? errno : 0;
}

static int local_sync(clt_io_component *c, void *h) {
    (void)c;
    return fsync(fd_of(h)) ? errno : 0;
}

static int local_close(clt_io_component *c, void *h) {
    (void)c;
    return close(fd_of(h)) ? errno : 0;
}

/* --- names --- */

static int local_rename(clt_io_component *c, const char *from, const char *to) {
    (void)c;
    return rename(from, to) ? errno : 0;
}

static int local_exchange(clt_io_component *c, const char *a, const char *b) {
    (void)c;
    return syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */) ? errno : 0;
}

static int local_unlink(clt_io_component *c, const char *path) {
    (void)c;
    return unlink(path) ? errno : 0;
}

static int local_rmdir(clt_io_component *c, const char *path) {
    (void)c;
    return rmdir(path) ? errno : 0;
}

static int local_mkdir(clt_io_component *c, const char *path) {
    (void)c;
    return mkdir(path, 0777) ? errno : 0;
}

static int local_sync_dir(clt_io_component *c, const char *path) {
    (void)c;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int e = fsync(fd) ? errno : 0;
    close(fd);
    return e == EINVAL ? 0 : e; /* some file systems cannot sync a folder, and need not */
}

static int local_list(clt_io_component *c, const char *path, clt_strv *names) {
    (void)c;
    DIR *d = opendir(path);
    if (!d) return errno;
    errno = 0;
    for (struct dirent *e; (e = readdir(d)); errno = 0)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) clt_strv_add(names, e->d_name);
    int error = errno;
    closedir(d);
    return error;
}

static int local_stat(clt_io_component *c, const char *path, clt_io_info *out) {
    struct stat s;
    (void)c;
    *out = (clt_io_info){.kind = CLT_IO_ABSENT};
    if (stat(path, &s) != 0) return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    *out = (clt_io_info){.kind = S_ISREG(s.st_mode)   ? CLT_IO_FILE
                                 : S_ISDIR(s.st_mode) ? CLT_IO_FOLDER
                                                      : CLT_IO_OTHER,
                         .bytes = (uint64_t)s.st_size,
                         .id = {(uint64_t)s.st_dev, (uint64_t)s.st_ino}};
    return 0;
}

/* --- locks: flock belongs to the open file, so the kernel drops it when the process ends --- */

static void read_owner(int fd, char owner[CLT_IO_OWNER_BYTES]) {
    ssize_t n = pread(fd, owner, CLT_IO_OWNER_BYTES - 1, 0);
    owner[n > 0 ? n : 0] = 0;
    owner[strcspn(owner, "\n")] = 0;
}

static int local_sign(clt_io_component *c, void *lock, const char *owner) {
    char line[CLT_IO_OWNER_BYTES];
    (void)c;
    int fd = fd_of(lock),
        n = *owner ? snprintf(line, sizeof line, "%.*s\n", CLT_IO_OWNER_BYTES - 2, owner) : 0;
    errno = 0;
    if (pwrite(fd, line, (size_t)n, 0) == n && ftruncate(fd, n) == 0) return 0;
    return errno ? errno : EIO;
}

static int local_lock(clt_io_component *c, const char *path, const char *owner, void **lock,
                      char holder[CLT_IO_OWNER_BYTES]) {
    *holder = 0;
    /* The file is written to: a link must not lead that to another file. */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) return errno;
    int e = flock(fd, LOCK_EX | LOCK_NB) ? errno : 0;
    if (e) {
        if (e == EWOULDBLOCK) read_owner(fd, holder);
        close(fd);
        return e;
    }
    *lock = handle_of(fd);
    local_sign(c, *lock, owner); /* only a help for people: a lock without this text still locks */
    return 0;
}

static void local_unlock(clt_io_component *c, void *lock) {
    local_sign(c, lock, "");
    close(fd_of(lock));
}

clt_io_component *clt_io_local(void) {
    static const clt_io_ops ops = {
        .name = "local",
        .open = local_open,
        .pread = local_pread,
        .pwrite = local_pwrite,
        .append = local_append,
        .size = local_size,
        .datasync = local_datasync,
        .sync = local_sync,
        .close = local_close,
        .rename = local_rename,
        .exchange = local_exchange,
        .unlink = local_unlink,
        .rmdir = local_rmdir,
        .mkdir = local_mkdir,
        .sync_dir = local_sync_dir,
        .list = local_list,
        .stat = local_stat,
        .lock = local_lock,
        .sign = local_sign,
        .unlock = local_unlock,
    };
    static clt_io_component local = {&ops,
                                     CLT_IO_CAN_RENAME | CLT_IO_CAN_EXCHANGE | CLT_IO_CAN_APPEND |
                                         CLT_IO_CAN_CREATE_NEW | CLT_IO_CAN_LOCK | CLT_IO_CAN_READ_RANGES |
                                         CLT_IO_CAN_WRITE_RANGES | CLT_IO_HAS_FOLDERS,
                                     .lock_retry = 0.1};
    return &local;
}
