#include "clt_ckpt_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* The lock belongs to the open file of this process, so the system drops it when the process ends, however it
 * ends. It goes past clt_io: it protects the folder, it is no data in it. */
struct clt_run_lock {
    int fd; /* -1 on ranks that do not hold it */
};

static clt_status held_elsewhere(int fd, const char *path) {
    char who[512] = "";
    ssize_t n = pread(fd, who, sizeof who - 1, 0);
    who[n > 0 ? strcspn(who, "\n") : 0] = 0;
    return clt_error(CLT_IO,
                     "another run is writing in this folder (%s: %s); wait for it or use another save_folder",
                     path, *who ? who : "holder unknown");
}

static void sign(int fd) {
    char host[256] = "", text[512], when[64];
    time_t now = time(NULL);
    struct tm tm;
    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
    int n = snprintf(text, sizeof text, "host %s, process %ld, since %s\n", host, (long)getpid(), when);
    /* Only a help for people: a lock without this text still locks. */
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        clt_debug("the lock file could not be signed");
}

static clt_status take(const char *folder, int *out) {
    CLT_TRY(clt_io_mkdirs(folder));
    char *path = clt_path_join(folder, "run.lock");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    clt_status st = CLT_OK;
    if (fd < 0) {
        st = clt_error(CLT_IO, "cannot create %s: %s; check the permissions of the folder", path,
                       strerror(errno));
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            st = held_elsewhere(fd, path);
            close(fd);
        } else {
            clt_warn("%s: this file system has no locks (%s); take care that no second run uses the folder",
                     path, strerror(errno));
        }
    }
    clt_free(path);
    if (st != CLT_OK) return st;
    sign(fd);
    *out = fd;
    return CLT_OK;
}

clt_status clt_run_lock_take(clt_group *group, const char *folder, clt_run_lock **out) {
    int fd = -1;
    clt_status st = clt_ckpt_rank(group) == 0 ? take(folder, &fd) : CLT_OK;
    st = clt_ckpt_agree(group, st);
    if (st != CLT_OK) {
        if (fd >= 0) close(fd);
        return st;
    }
    clt_run_lock *l = clt_malloc(sizeof *l);
    l->fd = fd;
    *out = l;
    return CLT_OK;
}

void clt_run_lock_release(clt_run_lock *l) {
    if (!l) return;
    if (l->fd >= 0) {
        if (ftruncate(l->fd, 0) != 0) clt_debug("the lock file could not be emptied");
        close(l->fd);
    }
    clt_free(l);
}
