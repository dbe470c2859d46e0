#include "test/thread_group.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/clt_group_internal.h"

enum { SLOT = 1 << 20 };

typedef struct {
    pthread_barrier_t barrier;
    atomic_int left; /* ranks that need it no more */
    char slot[TG_MAX_RANKS][SLOT];
} meeting;

static meeting *new_meeting(int ranks) {
    meeting *m = clt_calloc(1, sizeof *m);
    pthread_barrier_init(&m->barrier, NULL, (unsigned)ranks);
    return m;
}

static void end_meeting(meeting *m) {
    pthread_barrier_destroy(&m->barrier);
    clt_free(m);
}

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

/* Rank 0 of each child makes its meeting; the others learn of it through the parent. */
static clt_status split(clt_group *g, int color, clt_group *child) {
    struct {
        meeting *m;
        int color;
    } mine = {NULL, color}, all[TG_MAX_RANKS];
    memset(all, 0, sizeof all);
    if (child && child->rank == 0) mine.m = new_meeting(child->size);
    all_gather(g, &mine, sizeof mine, all);
    for (int r = 0; child && r < g->size; r++)
        if (all[r].m && all[r].color == color) child->state = all[r].m;
    return CLT_OK;
}

static void unsplit(clt_group *child) {
    meeting *m = child->state;
    if (atomic_fetch_add(&m->left, 1) + 1 == child->size) end_meeting(m);
}

static const clt_group_ops ops = {.name = "threads",
                                  .split = split,
                                  .unsplit = unsplit,
                                  .barrier = barrier,
                                  .broadcast = broadcast,
                                  .all_gather = all_gather};

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

/* Joins rank r, as a component's join does. */
static void join(rank_arg *a, int r, int n, const int *host, meeting *m) {
    clt_group_run *run = &a->place;
    *run = (clt_group_run){.rank = r, .size = n, .host = n, .timeout = 60};
    for (int q = 0; q < n; q++) {
        if (host[q] != host[r]) continue;
        run->host = CLT_MIN(run->host, q);
        run->local_size++;
        run->local_rank += q < r;
    }
    a->group = (clt_group){.ops = &ops,
                           .run = run,
                           .rank = r,
                           .size = n,
                           .local_rank = run->local_rank,
                           .local_size = run->local_size,
                           .state = m};
}

void tg_run_on_hosts(int n, const int *host, void (*run)(clt_group *g, void *ctx), void *ctx) {
    pthread_t thread[TG_MAX_RANKS];
    rank_arg arg[TG_MAX_RANKS];
    meeting *m = new_meeting(n);
    for (int r = 0; r < n; r++) {
        join(&arg[r], r, n, host, m);
        arg[r].run = run;
        arg[r].ctx = ctx;
        if (pthread_create(&thread[r], NULL, rank_main, &arg[r]) != 0) abort();
    }
    for (int r = 0; r < n; r++) pthread_join(thread[r], NULL);
    end_meeting(m);
}

void tg_run(int n, void (*run)(clt_group *g, void *ctx), void *ctx) {
    static const int one_host[TG_MAX_RANKS];
    tg_run_on_hosts(n, one_host, run, ctx);
}
