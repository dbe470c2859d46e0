#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_signal.h"
#include "runtime/checkpoint/clt_ckpt_internal.h"

struct clt_run_lock {
    clt_io_lock *lock; /* NULL on ranks other than 0, and where the storage cannot lock */
    atomic_bool ends;  /* clt_run_lock_ending was called */
};

static const char ending[] = ", ending";

/* An errno value, or 0. What is left of a run whose launcher was killed, or that was told to stop, still
 * saves: it is waited for, for CLTRAIN_LOCK_WAIT seconds, and as long as it says that it is ending. The lease
 * of a run that was killed ends by itself after about a minute: that is waited for, too. */
static int lock_or_wait(const char *path, clt_io_lock **out, char holder[CLT_IO_OWNER_BYTES], bool *stopped) {
    enum { WAIT = 5, LEASE = 80, MOST = 300 };
    const long usual = clt_io_can(path, CLT_IO_HAS_FOLDERS) ? WAIT : LEASE;
    double wait = (double)clt_env_long(CLT_ENV_LOCK_WAIT, usual), start = clt_now();
    char owner[CLT_IO_OWNER_BYTES];
    clt_io_describe_owner("", owner);
    for (bool told = false;; clt_sleep(clt_io_lock_retry(path))) {
        int e = clt_io_lock_try(path, owner, out, holder);
        double limit = strstr(holder, ending) ? MOST : wait;
        if (e != EWOULDBLOCK || clt_now() - start >= limit) return e;
        *stopped = clt_signal_received() != 0;
        if (*stopped) return e;
        if (!told) clt_info("another run is writing to this folder (%s): waiting for it to end", holder);
        told = true;
    }
}

static clt_status take(const char *folder, clt_io_lock **out) {
    CLT_TRY(clt_io_mkdirs(folder));
    char *path = clt_path_join(folder, "run.lock"), holder[CLT_IO_OWNER_BYTES];
    clt_status st = CLT_OK;
    bool stopped = false;
    int e = lock_or_wait(path, out, holder, &stopped);
    if (e == EWOULDBLOCK)
        st = stopped ? CLT_STOPPED
                     : clt_error(CLT_IO,
                                 "another run is writing to this folder (%s: %s); wait for it to end or use "
                                 "another save_folder",
                                 path, *holder ? holder : "holder unknown");
    else if (e == ENOLCK || e == ENOTSUP || e == ENOSYS || e == EINVAL)
        clt_warn("%s: this storage has no locks (%s); make sure that no second run uses the folder", path,
                 clt_io_explain(path, e));
    else if (e)
        st = clt_error(e == ENOKEY ? CLT_BAD_CONFIG : CLT_IO, "cannot create %s: %s%s", path,
                       clt_io_explain(path, e),
                       e == ELOOP                             ? "; a symbolic link is not followed here"
                       : clt_io_can(path, CLT_IO_HAS_FOLDERS) ? "; check the permissions of the folder"
                                                              : "");
    clt_free(path);
    return st;
}

static clt_run_lock *new_lock(clt_io_lock *lock) {
    clt_run_lock *l = clt_calloc(1, sizeof *l);
    l->lock = lock;
    return l;
}

clt_status clt_run_lock_take(clt_group *group, const char *folder, clt_run_lock **out) {
    clt_io_lock *lock = NULL;
    clt_status st = clt_ckpt_rank(group) == 0 ? take(folder, &lock) : CLT_OK;
    st = clt_ckpt_agree(group, st);
    if (st != CLT_OK) {
        clt_io_lock_release(lock);
        return st;
    }
    *out = new_lock(lock);
    return CLT_OK;
}

int clt_run_lock_try(const char *folder, clt_run_lock **out, char holder[CLT_IO_OWNER_BYTES]) {
    char *path = clt_path_join(folder, "run.lock"), owner[CLT_IO_OWNER_BYTES];
    clt_io_lock *lock;
    clt_io_describe_owner("", owner);
    int e = clt_io_lock_try(path, owner, &lock, holder);
    if (!e) *out = new_lock(lock);
    clt_free(path);
    return e;
}

static int sign(const clt_run_lock *l) {
    char owner[CLT_IO_OWNER_BYTES];
    clt_io_describe_owner(l->ends ? ending : "", owner);
    return clt_io_lock_sign(l->lock, owner);
}

void clt_run_lock_ending(clt_run_lock *l) {
    if (!l || !l->lock) return;
    l->ends = true;
    if (sign(l) != 0) clt_debug("the lock file could not be signed");
}

bool clt_run_lock_is_held(const clt_run_lock *l) {
    if (!l || !l->lock || clt_io_lock_is_held(l->lock)) return true;
    return sign(l) == 0 && clt_io_lock_is_held(l->lock);
}

bool clt_run_lock_is_lost(const clt_run_lock *l) {
    return l && l->lock && !clt_io_lock_is_held(l->lock) && sign(l) == ESTALE;
}

void clt_run_lock_release(clt_run_lock *l) {
    if (!l) return;
    clt_io_lock_release(l->lock);
    clt_free(l);
}
