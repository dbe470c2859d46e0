#include "test/thread_group.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/clt_group_internal.h"

enum { SLOT = 1 << 20 };

typedef struct {
    pthread_barrier_t barrier;
    char slot[TG_MAX_RANKS][SLOT];
} meeting;

static clt_status barrier(clt_group *g) {
    pthread_barrier_wait(&((meeting *)g->state)->barrier);
    return CLT_OK;
}

static clt_status all_gather(clt_group *g, const void *mine, size_t bytes, void *out) {
    meeting *m = g->state;
    if (bytes > SLOT) abort();
    if (bytes) memcpy(m->slot[g->rank], mine, bytes);
    barrier(g);
    for (int r = 0; r < g->size && bytes; r++) memcpy((char *)out + (size_t)r * bytes, m->slot[r], bytes);
    return barrier(g);
}

static clt_status broadcast(clt_group *g, int root, void *data, size_t bytes) {
    meeting *m = g->state;
    if (bytes > SLOT) abort();
    if (g->rank == root) memcpy(m->slot[root], data, bytes);
    barrier(g);
    if (g->rank != root) memcpy(data, m->slot[root], bytes);
    return barrier(g);
}

static const clt_group_ops ops = {
    .name = "threads", .barrier = barrier, .broadcast = broadcast, .all_gather = all_gather};

typedef struct {
    clt_group group;
    clt_group_run place;
    void (*run)(clt_group *g, void *ctx);
    void *ctx;
} rank_arg;

static void *rank_main(void *arg) {
    rank_arg *a = arg;
    a->run(&a->group, a->ctx);
    return NULL;
}

void tg_run(int n, void (*run)(clt_group *g, void *ctx), void *ctx) {
    pthread_t thread[TG_MAX_RANKS];
    rank_arg arg[TG_MAX_RANKS];
    meeting *m = clt_calloc(1, sizeof *m);
    pthread_barrier_init(&m->barrier, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        arg[r] = (rank_arg){
            .group = {&ops, &arg[r].place, r, n, r, n, .state = m},
            .place = {.rank = r, .size = n, .local_rank = r, .local_size = n, .timeout = 60},
            .run = run,
            .ctx = ctx,
        };
        if (pthread_create(&thread[r], NULL, rank_main, &arg[r]) != 0) abort();
    }
    for (int r = 0; r < n; r++) pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&m->barrier);
    clt_free(m);
}
