#include "runtime/data/clt_shared_ids.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_log.h"

#define FOLDER "/dev/shm"
static const char prefix[] = "cltrain-order.";
enum { HEADER = 4096 /* one page in front of the ids */, WAIT_SECONDS = 600 };
static const uint64_t complete_mark = 0x6f72646572303176u;

static int lock(int fd, int how) {
    int e;
    do e = flock(fd, how);
    while (e != 0 && errno == EINTR);
    return e;
}

/* A regular file of this user, which the path still names. */
static bool is_ours(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && S_ISREG(a.st_mode) && a.st_uid == geteuid() &&
           a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* Removes the file if no other process has a lock on it. */
static void remove_unused(int fd, const char *path) {
    if (lock(fd, LOCK_EX | LOCK_NB) == 0 && is_ours(fd, path)) unlink(path);
}

/* Files without a user: what processes that were killed leave. */
static void sweep(const char *own) {
    DIR *d = opendir(FOLDER);
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
        char *path = clt_path_join(FOLDER, e->d_name);
        int fd = strcmp(path, own) == 0 ? -1 : open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            remove_unused(fd, path);
            close(fd);
        }
        clt_free(path);
    }
    closedir(d);
}

/* Opens the file with a lock: shared if it is complete, else exclusive. -1 with errno. */
static int open_locked(const char *path, size_t bytes, bool *complete) {
    const double deadline = clt_now() + WAIT_SECONDS;
    for (;;) {
        struct stat s;
        uint64_t mark = 0;
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0) return -1;
        const bool shared = lock(fd, LOCK_SH | LOCK_NB) == 0 && is_ours(fd, path);
        *complete = shared && fstat(fd, &s) == 0 && s.st_size == (off_t)(HEADER + bytes) &&
                    pread(fd, &mark, sizeof mark, 0) == sizeof mark && mark == complete_mark;
        if (*complete || (shared && lock(fd, LOCK_EX | LOCK_NB) == 0 && is_ours(fd, path))) return fd;
        if (fstat(fd, &s) == 0 && s.st_uid != geteuid()) {
            close(fd);
            errno = EACCES;
            return -1;
        }
        close(fd); /* another process computes the ids, was faster, or removed the file */
        if (clt_now() > deadline) {
            errno = ETIMEDOUT;
            return -1;
        }
        clt_sleep(1e-3);
    }
}

static int reserve(int fd, size_t bytes) {
    int e;
    if (ftruncate(fd, 0) != 0) return errno; /* also what an interrupted process wrote */
    do e = posix_fallocate(fd, 0, (off_t)bytes);
    while (e == EINTR);
    return e;
}

bool clt_shared_ids_open(clt_hash128 key, size_t bytes, clt_shared_ids *out, bool *compute) {
    char hex[33], size[32];
    bool complete;
    *out = (clt_shared_ids){.bytes = bytes, .fd = -1};
    clt_hash_hex(key, hex);
    snprintf(out->path, sizeof out->path, FOLDER "/%s%lu.%s", prefix, (unsigned long)geteuid(), hex);
    sweep(out->path);
    out->fd = open_locked(out->path, bytes, &complete);
    int e = out->fd < 0 ? errno : complete ? 0 : reserve(out->fd, HEADER + bytes);
    void *p = MAP_FAILED;
    if (e == 0) {
        p = mmap(NULL, HEADER + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, out->fd, 0);
        if (p == MAP_FAILED) e = errno;
    }
    if (e != 0) {
        if (out->fd >= 0) {
            remove_unused(out->fd, out->path);
            close(out->fd);
        }
        *out = (clt_shared_ids){.fd = -1};
        clt_warn("cannot share the sample order, %s, in " FOLDER
                 ": %s; every rank computes its own (in a container, --shm-size gives more room)",
                 clt_human_bytes((double)bytes, size), strerror(e));
        return false;
    }
    out->ids = (char *)p + HEADER;
    *compute = !complete;
    return true;
}

void clt_shared_ids_publish(clt_shared_ids *s) {
    atomic_thread_fence(memory_order_release);
    memcpy((char *)s->ids - HEADER, &complete_mark, sizeof complete_mark);
    lock(s->fd, LOCK_SH);
}

void clt_shared_ids_close(clt_shared_ids *s) {
    if (!s->ids) return;
    munmap((char *)s->ids - HEADER, HEADER + s->bytes);
    remove_unused(s->fd, s->path);
    close(s->fd);
    *s = (clt_shared_ids){.fd = -1};
}
