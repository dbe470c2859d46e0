/* clt_mpi_anchor: MPI's own collectives on host memory, which clbench measures beside the exchanges of
 * clt_reduce.h. No run uses them: MPI adds in an order of its own. It is here because only this folder
 * includes mpi.h. */
#ifndef CLT_MPI_ANCHOR_H
#define CLT_MPI_ANCHOR_H

#include "collectives/clt_group.h"

typedef enum { CLT_MPI_ALLREDUCE, CLT_MPI_REDUCE_SCATTER, CLT_MPI_ALL_GATHER } clt_mpi_collective;

/* `calls` blocking calls in place, one after the other, of MPI_Allreduce (sums), MPI_Reduce_scatter_block
 * (sums) or MPI_Allgather. data[i], borrowed: `count` fp32 elements, the input and the result of call i.
 * Reduce-scatter leaves this rank's part, of count / size elements, at the start of data[i]; all-gather
 * expects it at its place, part number `rank`. All ranks of the run call it together, with the same arguments
 * but data. They have the deadline of the group for all calls; when it passes, the process ends.
 *
 * CLT_USAGE if g is not the group of all ranks of a run of several. CLT_BAD_CONFIG if count exceeds
 * INT_MAX or, except for MPI_Allreduce, is not a multiple of the number of ranks. CLT_FAIL if MPI reports an
 * error. */
clt_status clt_mpi_anchor(clt_group *g, clt_mpi_collective what, float *const *data, int calls,
                          uint64_t count);

#endif
