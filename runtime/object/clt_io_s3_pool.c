#include <string.h>

#include "runtime/base/clt_context.h"
#include "runtime/base/clt_thread.h"
#include "runtime/object/clt_io_s3_internal.h"

enum { MAX_SPARE = 4 };
/* A part for each thread, and the one that is being filled. */
static const size_t max_bytes = (size_t)(CLT_S3_THREADS + 1) * CLT_S3_PART_BYTES;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, space;
    clt_s3_job *first, **last;
    pthread_t thread[CLT_S3_THREADS];
    int threads, idle, queued, files;
    size_t used;
    void *spare[MAX_SPARE]; /* of CLT_S3_PART_BYTES: their pages are there already */
    int spares;
    bool stop;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .space = PTHREAD_COND_INITIALIZER,
          .last = &pool.first};

/* --- threads --- */

static void *work(void *arg) {
    (void)arg;
    clt_context_enter(NULL); /* it outlives the context of the first file */
    pthread_mutex_lock(&pool.lock);
    while (!pool.stop) {
        clt_s3_job *job = pool.first;
        if (!job) {
            pool.idle++;
            pthread_cond_wait(&pool.work, &pool.lock);
            pool.idle--;
            continue;
        }
        pool.first = job->next;
        if (!pool.first) pool.last = &pool.first;
        pool.queued--;
        pthread_mutex_unlock(&pool.lock);
        job->run(job);
        pthread_mutex_lock(&pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* A child of fork has no threads, and its parent's files are not its own. */
static void in_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.space, NULL);
    pool.first = NULL;
    pool.last = &pool.first;
    pool.threads = pool.idle = pool.queued = pool.files = 0;
    pool.used = 0;
}
static void before_fork(void) {
    pthread_mutex_lock(&pool.lock);
}
static void after_fork(void) {
    pthread_mutex_unlock(&pool.lock);
}
static void heed_forks(void) {
    pthread_atfork(before_fork, after_fork, in_child);
}

void clt_s3_pool_run(clt_s3_job *job) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, heed_forks);
    job->next = NULL;
    pthread_mutex_lock(&pool.lock);
    if (pool.queued >= pool.idle && pool.threads < CLT_S3_THREADS &&
        clt_thread_start(&pool.thread[pool.threads], work, NULL) == 0)
        pool.threads++;
    bool here = !pool.threads;
    if (!here) {
        *pool.last = job;
        pool.last = &job->next;
        pool.queued++;
        pthread_cond_signal(&pool.work);
    }
    pthread_mutex_unlock(&pool.lock);
    if (here) job->run(job);
}

void clt_s3_pool_end(void) {
    pthread_mutex_lock(&pool.lock);
    pool.stop = true;
    int n = pool.threads;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < n; i++) pthread_join(pool.thread[i], NULL);
    pool.threads = 0;
    pool.stop = false;
}

/* --- memory --- */

void *clt_s3_pool_take(size_t bytes, const atomic_int *pending) {
    void *buffer = NULL;
    pthread_mutex_lock(&pool.lock);
    while (pool.used + bytes > max_bytes && *pending > 0) pthread_cond_wait(&pool.space, &pool.lock);
    pool.used += bytes;
    if (bytes == CLT_S3_PART_BYTES && pool.spares) buffer = pool.spare[--pool.spares];
    if (!buffer) /* spare buffers count, too: a larger part takes their place */
        while (pool.spares) clt_free(pool.spare[--pool.spares]);
    pthread_mutex_unlock(&pool.lock);
    if (buffer || (buffer = clt_try_malloc(bytes))) return buffer;
    clt_s3_pool_give(NULL, bytes);
    return NULL;
}

void clt_s3_pool_give(void *buffer, size_t bytes) {
    pthread_mutex_lock(&pool.lock);
    pool.used -= bytes;
    if (buffer && bytes == CLT_S3_PART_BYTES && pool.spares < MAX_SPARE) {
        pool.spare[pool.spares++] = buffer;
        buffer = NULL;
    }
    pthread_cond_broadcast(&pool.space);
    pthread_mutex_unlock(&pool.lock);
    clt_free(buffer);
}

void clt_s3_pool_wake(void) {
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.space);
    pthread_mutex_unlock(&pool.lock);
}

void clt_s3_pool_enter(void) {
    pthread_mutex_lock(&pool.lock);
    pool.files++;
    pthread_mutex_unlock(&pool.lock);
}

void clt_s3_pool_leave(void) {
    pthread_mutex_lock(&pool.lock);
    if (--pool.files == 0)
        while (pool.spares) clt_free(pool.spare[--pool.spares]);
    pthread_mutex_unlock(&pool.lock);
}
