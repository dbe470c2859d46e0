#include "collectives/clt_shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "collectives/clt_launch.h"

static clt_status open_named(const char *name, size_t bytes, bool create, int *out) {
    int fd = shm_open(name, O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd >= 0 && (!create || ftruncate(fd, (off_t)bytes) == 0)) {
        *out = fd;
        return CLT_OK;
    }
    const int e = errno;
    if (fd >= 0) {
        close(fd);
        shm_unlink(name);
    }
    return clt_error(CLT_IO, "cannot %s shared memory %s: %s", create ? "create" : "open", name, strerror(e));
}

/* posix_fallocate reports a /dev/shm that is too small here, instead of a bus error in the middle of a step.
 * Stopping and continuing the process interrupts it on some systems. */
static int reserve(int fd, clt_shm_part part) {
    int e;
    if (part.bytes == 0) return 0;
    do e = posix_fallocate(fd, (off_t)part.begin, (off_t)part.bytes);
    while (e == EINTR);
    return e;
}

static clt_status map(int fd, size_t bytes, clt_shm_part own, void **out) {
    int e = reserve(fd, own);
    void *p = e ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED && !e) e = errno;
    close(fd);
    if (e) {
        char size[32];
        return clt_error(
            CLT_NO_MEMORY,
            "cannot map %s of shared memory: %s; enlarge /dev/shm (in a container: --shm-size) or set "
            "CLTRAIN_TRANSPORT=mpi",
            clt_human_bytes((double)bytes, size), strerror(e));
    }
    *out = p;
    return CLT_OK;
}

clt_status clt_shm_share(clt_group *g, clt_shm_agree agree, const char *name, size_t bytes, bool first,
                         clt_shm_part own, void **out) {
    int fd = -1;
    *out = NULL;
    clt_status st = agree(g, first ? open_named(name, bytes, true, &fd) : CLT_OK);
    if (st == CLT_OK) st = agree(g, first ? CLT_OK : open_named(name, bytes, false, &fd));
    if (first && fd >= 0) shm_unlink(name);
    if (st != CLT_OK) {
        if (fd >= 0) close(fd);
        return st;
    }
    st = agree(g, map(fd, bytes, own, out));
    if (st != CLT_OK) clt_shm_unmap(*out, bytes);
    if (st != CLT_OK) *out = NULL;
    return st;
}

/* --- names --- */

static const char prefix[] = "cltrain.";

void clt_shm_new_name(const char *what, char name[CLT_SHM_NAME]) {
    snprintf(name, CLT_SHM_NAME, "/%s%s.%ld.%.0f", prefix, what, (long)getpid(), clt_now() * 1e6);
}

/* The process in a name "cltrain.WHAT.PID.TIME"; 0 if the name has another form. */
static pid_t creator(const char *name) {
    char number[10];
    int used = 0;
    if (strncmp(name, prefix, strlen(prefix)) != 0) return 0;
    const int found = sscanf(name + strlen(prefix), "%*16[a-z].%9[0-9].%*[0-9]%n", number, &used);
    return found == 1 && used && !name[strlen(prefix) + (size_t)used] ? atoi(number) : 0;
}

/* Process numbers mean nothing between containers that share /dev/shm: to this process, a rank in another
 * one does not exist. A name lives for the moment in which ranks open it, so a rank whose process is only
 * out of sight has no name of that age. */
static bool is_left(int folder, const char *name, double age) {
    struct stat s;
    const pid_t pid = creator(name);
    return pid > 0 && clt_process_gone(pid) && fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(s.st_mode) && s.st_uid == geteuid() && clt_wall() - (double)s.st_mtime > age;
}

int clt_shm_sweep(const char *folder, double age) {
    DIR *d = opendir(folder);
    int removed = 0;
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d));)
        if (is_left(dirfd(d), e->d_name, age)) removed += unlinkat(dirfd(d), e->d_name, 0) == 0;
    closedir(d);
    return removed;
}

/* --- mappings --- */

void clt_shm_unmap(void *p, size_t bytes) {
    if (p) munmap(p, bytes);
}

uint64_t clt_shm_free(void) {
    struct statvfs v;
    return statvfs("/dev/shm", &v) == 0 ? (uint64_t)v.f_bavail * v.f_frsize : UINT64_MAX;
}

void clt_wait_pause(unsigned *spins) {
    enum { YIELDS = 200, SHORT = 2000 };
    if (++*spins < YIELDS)
        sched_yield();
    else
        clt_sleep(*spins < SHORT ? 50e-6 : 1e-3);
}
