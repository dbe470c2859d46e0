#include "runtime/base/clt_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"

typedef struct {
    atomic_size_t next;
    size_t n;
    clt_parallel_fn fn;
    void *ctx;
} parallel_job;

static void *work(void *p) {
    parallel_job *job = p;
    for (size_t i; (i = atomic_fetch_add(&job->next, 1)) < job->n;) job->fn(job->ctx, i);
    return NULL;
}

int clt_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CLT_MAX(CPU_COUNT(&set), 1);
    return CLT_MAX((int)sysconf(_SC_NPROCESSORS_ONLN), 1);
}

void clt_parallel_for(size_t n, int threads, clt_parallel_fn fn, void *ctx) {
    enum { MOST = 16 };
    parallel_job job = {.n = n, .fn = fn, .ctx = ctx};
    pthread_t id[MOST];
    int want = CLT_MIN(threads > 0 ? threads : clt_cpu_count(), MOST), started = 0;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    while (started < want - 1 && (size_t)started + 1 < n &&
           pthread_create(&id[started], NULL, work, &job) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    work(&job);
    for (int i = 0; i < started; i++) pthread_join(id[i], NULL);
}
