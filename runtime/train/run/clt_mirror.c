#include "runtime/train/run/clt_mirror.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"
#include "runtime/train/run/clt_follow.h"
#include "runtime/train/run/clt_run_tokenizer.h"

enum { AGAIN = 30, AGAIN_AT_THE_END = 2, ROUND = 60, SAY_AFTER = 2 }; /* seconds */

struct clt_mirror {
    char *folder, *to, *latest, *tokenizer;
    char run_id[CLT_RUN_ID_BYTES];
    int64_t keep, batch;
    atomic_bool cancel; /* ends the operation in progress */
    pthread_t thread;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t wake, over;
    char *wanted; /* the newest checkpoint that is not there yet; NULL: none, or it is being copied */
    int64_t wanted_batch;
    bool end, done;
    double deadline; /* clt_now, after `end` */

    /* the thread's; after it, of clt_mirror_end */
    clt_run_lock *owned;
    clt_follow *follow; /* NULL: the place is not ready */
    char *newest;       /* the last checkpoint that is there; NULL: none of this process */
    char *missing;      /* what could not be copied until the end */
    unsigned number;    /* of the last copy */
    double told;        /* when a failure was reported */
    bool ready;         /* the place was, at the end */
};

/* --- waiting, with m->lock held --- */

static double seconds_left(const clt_mirror *m) {
    return CLT_MAX(m->deadline - clt_now(), 0.0);
}

/* Until the thread is woken or the time is over, which this returns. */
static bool wait_for(clt_mirror *m, pthread_cond_t *what, double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const double at = (double)t.tv_sec + (double)t.tv_nsec * 1e-9 + seconds;
    t.tv_sec = (time_t)at;
    t.tv_nsec = (long)((at - (double)t.tv_sec) * 1e9);
    return pthread_cond_timedwait(what, &m->lock, &t) != 0;
}

/* After a failure: until the next attempt, or the request to end. */
static void wait_after_failure(clt_mirror *m) {
    const bool ending = m->end;
    const double until = clt_now() + (ending ? AGAIN_AT_THE_END : AGAIN);
    while (m->end == ending && !m->cancel && clt_now() < until) wait_for(m, &m->wake, until - clt_now());
}

/* --- one attempt --- */

static clt_status tell(clt_mirror *m, const char *name, const char *why) {
    if (m->cancel || (m->told > 0 && clt_now() - m->told < AGAIN)) return CLT_IO;
    m->told = clt_now();
    if (name)
        clt_warn("mirror %s: %s could not be copied: %s; it is tried again", m->to, name, why);
    else
        clt_warn("mirror %s: %s; it is tried again", m->to, why);
    return CLT_IO;
}

static clt_status take_lock(clt_mirror *m) {
    char holder[CLT_IO_OWNER_BYTES] = "", *path = clt_path_join(m->to, "run.lock");
    int e = clt_io_try_mkdirs(m->to);
    if (!e) e = clt_run_lock_try(m->to, &m->owned, holder);
    const bool none = e == ENOLCK || e == ENOTSUP || e == ENOSYS || e == EINVAL;
    char *why =
        e == EWOULDBLOCK
            ? clt_format("another run has its lock (%s), and keeps it for a minute after it was killed",
                         *holder ? holder : "holder unknown")
        : e ? clt_format("%s: %s", path, clt_io_explain(path, e))
            : NULL;
    if (none)
        clt_warn("mirror %s; this storage has no locks: make sure that no second run uses the mirror", why);
    else if (e)
        tell(m, NULL, why);
    clt_free(why);
    clt_free(path);
    return e && !none ? CLT_IO : CLT_OK;
}

static clt_ckpt_copy_params copy_params(const clt_mirror *m) {
    return (clt_ckpt_copy_params){.folder = m->to,
                                  .run_id = m->run_id,
                                  .number = m->number,
                                  .latest = m->latest,
                                  .keep = m->keep,
                                  .lock = m->owned};
}

/* Takes the lock and makes the place ready, unless it is. */
static clt_status prepare(clt_mirror *m) {
    if (m->follow) return CLT_OK;
    if (!m->owned) CLT_TRY(take_lock(m));
    const clt_ckpt_copy_params p = copy_params(m);
    clt_error_quiet(true);
    clt_status st = clt_ckpt_copy_prepare(&p, m->batch);
    if (st == CLT_OK) st = clt_run_tokenizer_keep(m->tokenizer, m->to);
    clt_error_quiet(false);
    if (st != CLT_OK) return tell(m, NULL, clt_last_error());
    const clt_follow_params f = {
        .local = m->folder, .store = m->to, .seconds = ROUND, .hint = m->latest, .lock = m->owned};
    m->follow = clt_follow_start(&f);
    clt_follow_now(m->follow);
    return CLT_OK;
}

static void give_up_lock(clt_mirror *m) {
    clt_follow_end(m->follow, 0);
    clt_run_lock_release(m->owned);
    m->follow = NULL;
    m->owned = NULL;
}

static bool still_saved(const char *path) {
    char *manifest = clt_path_join(path, "manifest.json");
    const bool yes = clt_io_is_file(manifest);
    clt_free(manifest);
    return yes;
}

/* CLT_OK also if the run has pruned the checkpoint before it could be copied. */
static clt_status copy(clt_mirror *m, const char *name, int64_t batch) {
    char *path = clt_path_join(m->folder, name), seconds[32];
    bool copied = false;
    const double start = clt_now();
    m->number++;
    const clt_ckpt_copy_params p = copy_params(m);
    clt_error_quiet(true);
    clt_status st = clt_ckpt_copy(path, &p, &copied);
    clt_error_quiet(false);
    if (copied)
        clt_info("mirror: %s copied to %s (%s)", name, m->to, clt_human_seconds(clt_now() - start, seconds));
    if (st == CLT_OK) {
        m->batch = batch;
        clt_free(m->newest);
        m->newest = clt_strdup(name);
        clt_follow_now(m->follow);
    } else if (st != CLT_STOPPED && !still_saved(path)) {
        clt_warn("mirror %s: %s is skipped: it was removed from %s before it could be copied", m->to, name,
                 m->folder);
        st = CLT_OK;
    } else {
        char *why = clt_strdup(clt_last_error());
        st = tell(m, name, st == CLT_STOPPED ? "the run ended" : why);
        clt_free(why);
        if (clt_run_lock_is_lost(m->owned)) give_up_lock(m);
    }
    clt_free(path);
    return st;
}

/* --- the thread --- */

/* With the lock held, which is released meanwhile. What could not be copied is wanted again, unless there is
 * something newer. */
static void attempt(clt_mirror *m) {
    char *name = m->wanted;
    const int64_t batch = m->wanted_batch;
    m->wanted = NULL;
    pthread_mutex_unlock(&m->lock);
    clt_status st = prepare(m);
    if (st == CLT_OK && name) st = copy(m, name, batch);
    pthread_mutex_lock(&m->lock);
    if (st == CLT_OK || m->wanted) {
        if (st != CLT_OK && name)
            clt_warn("mirror %s: skips %s, because %s is newer", m->to, name, m->wanted);
        clt_free(name);
    } else {
        m->wanted = name;
        m->wanted_batch = batch;
    }
    if (st != CLT_OK) wait_after_failure(m);
}

static void *work(void *arg) {
    clt_mirror *m = arg;
    clt_io_heed_flag(&m->cancel);
    pthread_mutex_lock(&m->lock);
    while (!m->cancel && (m->wanted || !m->follow || !m->end)) {
        if (m->wanted || !m->follow)
            attempt(m);
        else
            pthread_cond_wait(&m->wake, &m->lock);
    }
    const double left = seconds_left(m);
    m->ready = m->follow != NULL;
    pthread_mutex_unlock(&m->lock);
    clt_follow_end(m->follow, left);
    clt_io_heed_flag(NULL);
    clt_run_lock_release(m->owned);
    pthread_mutex_lock(&m->lock);
    m->missing = m->wanted;
    m->wanted = NULL;
    m->done = true;
    pthread_cond_signal(&m->over);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* --- the run's side --- */

static void free_mirror(clt_mirror *m) {
    clt_free(m->folder);
    clt_free(m->to);
    clt_free(m->latest);
    clt_free(m->tokenizer);
    clt_free(m->wanted);
    clt_free(m->newest);
    clt_free(m->missing);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->wake);
    pthread_cond_destroy(&m->over);
    clt_free(m);
}

clt_mirror *clt_mirror_start(const clt_mirror_params *p) {
    clt_mirror *m = clt_calloc(1, sizeof *m);
    m->folder = clt_strdup(p->folder);
    m->to = clt_strdup(p->to);
    m->latest = clt_strdup(p->latest);
    m->tokenizer = p->tokenizer ? clt_strdup(p->tokenizer) : NULL;
    snprintf(m->run_id, sizeof m->run_id, "%s", p->run_id);
    m->keep = p->keep;
    m->batch = p->batch;
    m->owned = p->lock;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    pthread_cond_init(&m->over, NULL);
    int e = clt_thread_start(&m->thread, work, m);
    if (!e) return m;
    clt_warn("mirror %s: no checkpoint is copied: no thread can be created: %s", m->to, strerror(e));
    clt_run_lock_release(m->owned);
    free_mirror(m);
    return NULL;
}

void clt_mirror_saved(clt_mirror *m, const char *name, int64_t batch) {
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    if (m->wanted) clt_warn("mirror %s is behind: skips %s, because %s is newer", m->to, m->wanted, name);
    clt_free(m->wanted);
    m->wanted = clt_strdup(name);
    m->wanted_batch = batch;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

/* With the lock held: until the thread is done or the deadline is over. */
static void wait_for_end(clt_mirror *m, double seconds) {
    bool told = false;
    while (!m->done && seconds_left(m) > 0) {
        wait_for(m, &m->over, CLT_MIN(seconds_left(m), (double)SAY_AFTER));
        if (m->done || told || seconds_left(m) <= 0) continue;
        told = true;
        clt_info("mirror: waiting up to %.0f s (CLTRAIN_S3_TIMEOUT) until %s has the newest checkpoint",
                 seconds, m->to);
    }
}

bool clt_mirror_end(clt_mirror *m, double seconds) {
    if (!m) return true;
    pthread_mutex_lock(&m->lock);
    m->deadline = clt_now() + seconds;
    m->end = true;
    pthread_cond_signal(&m->wake);
    wait_for_end(m, seconds);
    m->cancel = !m->done;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    const bool good = !m->missing && m->ready;
    if (!good && m->missing)
        clt_warn("mirror %s does not have %s, the newest checkpoint%s%s; it is in %s: the next run with this "
                 "configuration copies it",
                 m->to, m->missing, m->newest ? ", but " : "", m->newest ? m->newest : "", m->folder);
    else if (!good)
        clt_warn("mirror %s could not be written to until the end of the run", m->to);
    free_mirror(m);
    return good;
}
