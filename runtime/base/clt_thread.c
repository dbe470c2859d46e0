#include "runtime/base/clt_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_context.h"

typedef struct {
    atomic_size_t next;
    size_t n;
    clt_parallel_fn fn;
    void *ctx;
    clt_context *context;
} parallel_job;

static void *work(void *p) {
    parallel_job *job = p;
    clt_context_enter(job->context);
    for (size_t i; (i = atomic_fetch_add(&job->next, 1)) < job->n;) job->fn(job->ctx, i);
    return NULL;
}

int clt_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CLT_MAX(CPU_COUNT(&set), 1);
    return CLT_MAX((int)sysconf(_SC_NPROCESSORS_ONLN), 1);
}

/* pthread_create with all signals blocked in the new thread. */
static int create(pthread_t *thread, void *(*fn)(void *), void *arg) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    const int e = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e;
}

typedef struct {
    clt_context *context;
    void *(*fn)(void *);
    void *arg;
} beginning;

static void *begin(void *p) {
    const beginning b = *(beginning *)p;
    clt_free(p);
    clt_context_enter(b.context);
    return b.fn(b.arg);
}

int clt_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg) {
    beginning *b = clt_malloc(sizeof *b);
    *b = (beginning){clt_context_current(), fn, arg};
    const int e = create(thread, begin, b);
    if (e) clt_free(b);
    return e;
}

void clt_parallel_for(size_t n, int threads, clt_parallel_fn fn, void *ctx) {
    enum { MOST = 16 };
    parallel_job job = {.n = n, .fn = fn, .ctx = ctx, .context = clt_context_current()};
    pthread_t id[MOST];
    int want = CLT_MIN(threads > 0 ? threads : clt_cpu_count(), MOST), started = 0;
    while (started < want - 1 && (size_t)started + 1 < n && create(&id[started], work, &job) == 0) started++;
    work(&job);
    for (int i = 0; i < started; i++) pthread_join(id[i], NULL);
}
