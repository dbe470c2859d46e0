#include "runtime/base/clt_aio_internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clt_thread.h"

enum { THREADS = 4 };

struct clt_aio {
    clt_aio_engine *engine;
    int in_progress;
    char text[128];
};

bool clt_aio_take(clt_aio_op *op, long result) {
    if (result == -EINTR || result == -EAGAIN) return true;
    /* With O_DIRECT the rest behind the end of a file cannot even be asked for. */
    if (!op->write && (result == 0 || (result == -EINVAL && op->moved > 0))) result = -ENODATA;
    if (op->write && result == 0) result = -ENOSPC;
    if (result < 0) {
        op->error = (int)-result;
        return false;
    }
    op->moved += (size_t)result;
    return clt_aio_left(op) > 0;
}

/* --- threads --- */

/* Operations go from `first` through a thread to `ended`. */
typedef struct {
    clt_aio_engine base;
    pthread_mutex_t lock;
    pthread_cond_t begun, done;
    clt_aio_op *first, *last, *ended;
    bool stop;
    pthread_t thread[THREADS];
    int n;
} pool;

static void transfer(clt_aio_op *op) {
    long n;
    do {
        char *memory = (char *)op->memory + op->moved;
        const off_t offset = (off_t)(op->offset + op->moved);
        n = op->write ? pwrite(op->fd, memory, clt_aio_left(op), offset)
                      : pread(op->fd, memory, clt_aio_left(op), offset);
    } while (clt_aio_take(op, n < 0 ? -errno : n));
}

static void *work(void *arg) {
    pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (true) {
        while (!p->first && !p->stop) pthread_cond_wait(&p->begun, &p->lock);
        clt_aio_op *op = p->first;
        if (!op) break;
        p->first = op->next;
        pthread_mutex_unlock(&p->lock);
        transfer(op);
        pthread_mutex_lock(&p->lock);
        op->next = p->ended;
        p->ended = op;
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_submit(clt_aio_engine *e, clt_aio_op *op) {
    pool *p = (pool *)e;
    op->next = NULL;
    pthread_mutex_lock(&p->lock);
    if (p->first)
        p->last->next = op;
    else
        p->first = op;
    p->last = op;
    pthread_cond_signal(&p->begun);
    pthread_mutex_unlock(&p->lock);
}

static int pool_reap(clt_aio_engine *e, double seconds) {
    pool *p = (pool *)e;
    struct timespec until;
    int n = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const double at = (double)until.tv_nsec * 1e-9 + CLT_MAX(seconds, 0);
    until.tv_sec += (time_t)at;
    until.tv_nsec = (long)((at - (double)(time_t)at) * 1e9);
    pthread_mutex_lock(&p->lock);
    for (int late = 0; !p->ended && seconds != 0 && late != ETIMEDOUT;)
        late = seconds < 0 ? pthread_cond_wait(&p->done, &p->lock)
                           : pthread_cond_timedwait(&p->done, &p->lock, &until);
    for (; p->ended; n++) {
        p->ended->busy = false;
        p->ended = p->ended->next;
    }
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void pool_destroy(clt_aio_engine *e) {
    pool *p = (pool *)e;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->begun);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->begun);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    clt_free(p);
}

/* 0 or an errno value. */
static int pool_create(clt_aio_engine **out) {
    static const clt_aio_engine_ops ops = {pool_submit, pool_reap, pool_destroy};
    pool *p = clt_calloc(1, sizeof *p);
    pthread_condattr_t monotonic;
    int error = 0;
    p->base.ops = &ops;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->begun, NULL);
    pthread_cond_init(&p->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    while (p->n < THREADS && !(error = clt_thread_start(&p->thread[p->n], work, p))) p->n++;
    if (p->n == 0) {
        pool_destroy(&p->base);
        return error;
    }
    *out = &p->base;
    return 0;
}

/* --- all --- */

static const char *why_not(bool threads, int error) {
    return threads ? "by CLTRAIN_URING=0" : error == ENOSYS ? "not supported" : strerror(error);
}

clt_status clt_aio_create(bool threads, clt_aio **out) {
    clt_aio *a = clt_calloc(1, sizeof *a);
    const int no_uring = threads ? EPERM : clt_aio_uring_create(&a->engine);
    const int no_pool = no_uring ? pool_create(&a->engine) : 0;
    if (no_pool) {
        clt_free(a);
        return clt_error(CLT_FAIL, "no thread for reads and writes of files can be started: %s",
                         strerror(no_pool));
    }
    if (no_uring)
        snprintf(a->text, sizeof a->text, "%d threads (no io_uring: %s)", THREADS,
                 why_not(threads, no_uring));
    else
        snprintf(a->text, sizeof a->text, "io_uring");
    *out = a;
    return CLT_OK;
}

static void reap(clt_aio *a, double seconds) {
    if (a->in_progress) a->in_progress -= a->engine->ops->reap(a->engine, seconds);
}

void clt_aio_destroy(clt_aio *a) {
    if (!a) return;
    while (a->in_progress) reap(a, -1);
    a->engine->ops->destroy(a->engine);
    clt_free(a);
}

const char *clt_aio_text(const clt_aio *a) {
    return a->text;
}

void clt_aio_submit(clt_aio *a, clt_aio_op *op) {
    while (a->in_progress == CLT_AIO_MOST) reap(a, -1);
    op->error = 0;
    op->moved = 0;
    op->busy = op->bytes > 0;
    if (!op->busy) return;
    a->in_progress++;
    a->engine->ops->submit(a->engine, op);
}

bool clt_aio_done(clt_aio *a, const clt_aio_op *op) {
    if (op->busy) reap(a, 0);
    return !op->busy;
}

void clt_aio_wait(clt_aio *a, const clt_aio_op *op) {
    while (op->busy) reap(a, -1);
}

void clt_aio_wait_any(clt_aio *a, double seconds) {
    reap(a, CLT_MAX(seconds, 0));
}
