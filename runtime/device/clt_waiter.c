#include "runtime/device/clt_waiter.h"

#include <pthread.h>

#include "runtime/base/clt_thread.h"

struct clt_waiter {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    cl_event next; /* NULL: none */
    bool end;
};

static void *run(void *p) {
    clt_waiter *w = p;
    pthread_mutex_lock(&w->lock);
    while (!w->end) {
        cl_event event = w->next;
        if (!event) {
            pthread_cond_wait(&w->news, &w->lock);
            continue;
        }
        w->next = NULL;
        pthread_mutex_unlock(&w->lock);
        clWaitForEvents(1, &event); /* the host's thread polls for its status */
        clReleaseEvent(event);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

clt_waiter *clt_waiter_create(void) {
    clt_waiter *w = clt_calloc(1, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, NULL);
    if (clt_thread_start(&w->thread, run, w) == 0) return w;
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
    clt_free(w);
    return NULL;
}

void clt_waiter_give(clt_waiter *w, cl_event event) {
    if (clRetainEvent(event) != CL_SUCCESS) return;
    pthread_mutex_lock(&w->lock);
    cl_event before = w->next;
    w->next = event;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
    if (before) clReleaseEvent(before);
}

void clt_waiter_destroy(clt_waiter *w, bool hung) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->end = true;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
    if (hung) {
        pthread_detach(w->thread);
        return;
    }
    pthread_join(w->thread, NULL);
    if (w->next) clReleaseEvent(w->next);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
    clt_free(w);
}
