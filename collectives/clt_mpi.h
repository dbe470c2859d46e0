/* clt_mpi: the component for several ranks. Host data goes through MPI; gradients go through shared memory
 * where all ranks are on one host ("shm"), else through MPI ("mpi"). Not for other folders. */
#ifndef CLT_MPI_H
#define CLT_MPI_H

#include <mpi.h>

#include "collectives/clt_group_internal.h"
#include "collectives/clt_shm.h"

extern const clt_group_ops clt_group_mpi, clt_group_shm;

typedef struct clt_watcher clt_watcher; /* clt_watch.c */

typedef struct {
    MPI_Comm world, local;
    clt_shm_page *page; /* of this host; NULL until the group is joined */
    size_t page_bytes;
    bool see_processes; /* the ranks of this host can see each other's process numbers */
    clt_watcher *watcher;
} clt_mpi_state;

/* Waits for `n` requests with the group's deadline. When it passes, or a rank of this host is gone, the rank
 * that is missing is named with what it was doing, and the whole job ends: never returns then. */
clt_status clt_mpi_wait(clt_group *g, int n, MPI_Request *req, const char *what);
/* All ranks of this host (shm: all ranks). */
clt_status clt_shm_barrier(clt_group *g);

/* clt_watch.c: what a rank does while it waits for others. */
typedef struct {
    double waited, looked;
    unsigned spins;
} clt_watch;
clt_watch clt_watch_begin(clt_group *g, const char *what);
/* Pauses a moment; ends the job once the deadline has passed. `what` is waited for. */
void clt_watch_pause(clt_group *g, clt_watch *w, const char *what);
/* A thread that looks for ranks of this host that are gone or have ended the job, whatever this one does
 * meanwhile. stop: before the page goes. */
clt_status clt_watch_start(clt_group *g);
void clt_watch_stop(clt_group *g);
/* Ends the job with `code`: the first rank of a host says why (what the log holds), the others follow. */
void clt_watch_end_job(clt_group *g, int code) __attribute__((noreturn));

/* clt_reduce.c */
clt_status clt_blocks_plan(clt_reduce_plan *p);
void clt_blocks_unplan(clt_reduce_plan *p);
clt_status clt_blocks_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);

#endif
