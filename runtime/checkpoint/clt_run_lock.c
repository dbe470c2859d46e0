#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_signal.h"

/* The lock belongs to the open file of this process, so the system drops it when the process ends, however it
 * ends. It goes past clt_io: it protects the folder, it is no data in it. */
struct clt_run_lock {
    int fd; /* -1 on ranks that do not hold it */
};

enum { WHO_BYTES = 512 };
static const char ending[] = ", ending";

static void read_holder(int fd, char who[WHO_BYTES]) {
    ssize_t n = pread(fd, who, WHO_BYTES - 1, 0);
    who[n > 0 ? n : 0] = 0;
    who[strcspn(who, "\n")] = 0;
}

static clt_status held_elsewhere(int fd, const char *path) {
    char who[WHO_BYTES];
    read_holder(fd, who);
    return clt_error(CLT_IO,
                     "another run is writing in this folder (%s: %s); wait for it or use another save_folder",
                     path, *who ? who : "holder unknown");
}

static void sign(int fd, const char *more) {
    char host[256] = "", text[WHO_BYTES], when[64];
    time_t now = time(NULL);
    struct tm tm;
    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
    int n =
        snprintf(text, sizeof text, "host %s, process %ld, since %s%s\n", host, (long)getpid(), when, more);
    /* Only a help for people: a lock without this text still locks. */
    if (pwrite(fd, text, (size_t)n, 0) != n || ftruncate(fd, n) != 0)
        clt_debug("the lock file could not be signed");
}

/* flock's errno, or 0. What is left of a run whose launcher was killed, or that was told to stop, still
 * saves: it is waited for, for CLTRAIN_LOCK_WAIT seconds, and as long as it says that it is ending. */
static int lock_or_wait(int fd, bool *stopped) {
    enum { WAIT = 5, MOST = 300 };
    static const double look_again = 0.1;
    double wait = (double)clt_env_long(CLT_ENV_LOCK_WAIT, WAIT), start = clt_now();
    char who[WHO_BYTES];
    for (bool told = false;; clt_sleep(look_again)) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
        int e = errno;
        read_holder(fd, who);
        double limit = strstr(who, ending) ? MOST : wait;
        if (e != EWOULDBLOCK || clt_now() - start >= limit) return e;
        *stopped = clt_signal_received() != 0;
        if (*stopped) return e;
        if (!told) clt_info("another run is writing in this folder (%s): waiting for its end", who);
        told = true;
    }
}

static clt_status take(const char *folder, int *out) {
    CLT_TRY(clt_io_mkdirs(folder));
    char *path = clt_path_join(folder, "run.lock");
    /* It is written to: a link must not lead that to another file. */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    clt_status st = CLT_OK;
    bool stopped = false;
    int e = fd >= 0 ? lock_or_wait(fd, &stopped) : errno;
    if (fd < 0) {
        st = clt_error(CLT_IO, "cannot create %s: %s; %s", path, strerror(e),
                       e == ELOOP ? "a symbolic link is not followed here"
                                  : "check the permissions of the folder");
    } else if (e == EWOULDBLOCK) {
        st = stopped ? CLT_STOPPED : held_elsewhere(fd, path);
        close(fd);
    } else if (e != 0) {
        clt_warn("%s: this file system has no locks (%s); take care that no second run uses the folder", path,
                 strerror(e));
    }
    clt_free(path);
    if (st != CLT_OK) return st;
    sign(fd, "");
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

void clt_run_lock_ending(clt_run_lock *l) {
    if (l && l->fd >= 0) sign(l->fd, ending);
}

void clt_run_lock_release(clt_run_lock *l) {
    if (!l) return;
    if (l->fd >= 0) {
        if (ftruncate(l->fd, 0) != 0) clt_debug("the lock file could not be emptied");
        close(l->fd);
    }
    clt_free(l);
}
