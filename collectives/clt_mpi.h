/* clt_mpi: the component for several ranks. Host data goes through MPI; gradients go through shared memory
 * where all ranks are on one host ("shm"), else through MPI ("mpi"). Not for other folders. */
#ifndef CLT_MPI_H
#define CLT_MPI_H

#include <mpi.h>

#include "clt_group_internal.h"
#include "clt_shm.h"

extern const clt_group_ops clt_group_mpi, clt_group_shm;

typedef struct {
    MPI_Comm world, local;
    clt_shm_page *page; /* of this host */
    size_t page_bytes;
    int64_t step;
    const char *phase;
    int collectives; /* made so far */
} clt_mpi_state;

/* Waits for `n` requests with the group's deadline. When it passes, the ranks of this host and what they were
 * doing are printed and the whole job ends (exit 75): never returns then. */
clt_status clt_mpi_wait(clt_group *g, int n, MPI_Request *req, const char *what);
/* All ranks of this host (shm: all ranks). */
clt_status clt_shm_barrier(clt_group *g);

/* clt_reduce.c */
clt_status clt_blocks_plan(clt_reduce_plan *p);
void clt_blocks_unplan(clt_reduce_plan *p);
clt_status clt_blocks_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);

#endif
