/* clt_group_internal: the seam between clt_group.h and the components that serve groups. Not for other
 * folders.
 *
 * A component fills clt_group_ops. `loopback` is the example to copy: it does everything that one rank needs.
 * What a component cannot do is NULL in its table. How gradients travel is a seam of its own: clt_exchange.h.
 */
#ifndef CLT_GROUP_INTERNAL_H
#define CLT_GROUP_INTERNAL_H

#include "collectives/clt_exchange_times.h"
#include "collectives/clt_flight.h"
#include "collectives/clt_group.h"
#include "collectives/clt_watch.h"

/* This process in the run. All groups of the process share it, so that deadlines, events and errors are about
 * ranks of the run in every group. `join` sets all but timeout. */
struct clt_group_run {
    int rank, size, local_rank, local_size; /* local: of the ranks on this host */
    int host;                               /* the lowest rank on this host */
    double timeout;                         /* seconds that a wait may take */
    double waited;                          /* seconds spent in waits so far */
    bool failed;                            /* the run's last clt_group_agree failed, on all ranks */
    char *folder;                           /* for clt_flight_dump, or NULL */
    clt_flight_log *flight;                 /* [local_size]; NULL until the rank has joined */
    void (*end_others)(int code);           /* ends the other ranks of the job; may return */
    /* Called in every wait for other ranks, so that exchanges move on: another rank may wait for this one's
     * part of them. NULL: nothing is on its way. */
    void (*idle)(void *ctx);
    void *idle_ctx;
    struct clt_reduce_plan *plans; /* of this process that have begun operations (clt_exchange.c) */
    clt_exchange_times *times;     /* NULL: they are not kept */
    /* clt_watch.h; NULL where nobody is to be watched. */
    clt_host_page *page;
    clt_watcher *watcher;
    bool sees_processes; /* process numbers of this host's ranks mean something here */
};

/* Host memory to or from another rank of the group. */
typedef struct {
    int rank;
    bool send;  /* to that rank; otherwise from it */
    int tag;    /* >= 0: tells messages between the same two ranks apart */
    void *data; /* borrowed until the message is through; sending does not write it */
    size_t bytes;
} clt_message;

/* A message on its way; the component's. */
typedef struct {
    uint64_t word[2];
} clt_request;

typedef struct {
    const char *name;
    /* Whether it can join under this launcher. */
    bool (*serves)(const clt_launch_info *l);
    /* Joins the run: sets *g->run and g's rank, size, local_rank, local_size and state. After a failure leave
     * is called, too. */
    clt_status (*join)(clt_group *g);
    void (*leave)(clt_group *g);
    /* Makes `child` of ranks of g; all but its state is set already. All ranks of g call it at the same time;
     * `child` is NULL on a rank that is in no child. Ranks with the same color are in the same child. */
    clt_status (*split)(clt_group *g, int color, clt_group *child);
    void (*unsplit)(clt_group *child);
    /* Ends the job; prints what the log holds, unless another rank has printed it. */
    void (*abort)(clt_group *g, int code) __attribute__((noreturn));
    clt_status (*barrier)(clt_group *g);
    clt_status (*broadcast)(clt_group *g, int root, void *data, size_t bytes);
    /* `mine` may be its own place in `out`. */
    clt_status (*all_gather)(clt_group *g, const void *mine, size_t bytes, void *out);
    /* Starts a message, and tells whether it is through (then the request is gone). May be NULL, both. */
    clt_status (*start)(clt_group *g, const clt_message *m, clt_request *r);
    clt_status (*test)(clt_group *g, clt_request *r, bool *done);
} clt_group_ops;

extern const clt_group_ops clt_group_loopback, clt_group_mpi;

struct clt_group {
    const clt_group_ops *ops;
    clt_group_run *run;
    int rank, size, local_rank, local_size;
    int *member; /* [size] ranks in the run, of a child; NULL in the group of all ranks */
    int stop;    /* as of the last clt_group_agree */
    void *state; /* the component's */
};

#endif
