#include "collectives/clt_mpi_anchor.h"

#include <limits.h>
#include <mpi.h>

#include "collectives/clt_end.h"
#include "collectives/clt_group_internal.h"

static int call_once(clt_mpi_collective what, float *data, int count, int part) {
    switch (what) {
    case CLT_MPI_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(MPI_IN_PLACE, data, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case CLT_MPI_ALL_GATHER:
        return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, part, MPI_FLOAT, MPI_COMM_WORLD);
    default:
        return MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
}

clt_status clt_mpi_anchor(clt_group *g, clt_mpi_collective what, float *const *data, int calls,
                          uint64_t count) {
    int code = MPI_SUCCESS;
    if (g->size == 1 || g->size != g->run->size)
        return clt_error(CLT_USAGE, "MPI's collectives need all ranks of a run of several");
    if (count > INT_MAX || (what != CLT_MPI_ALLREDUCE && count % (uint64_t)g->size))
        return clt_error(
            CLT_BAD_CONFIG,
            "%llu elements for a collective of MPI: they must be at most %d and make equal parts for "
            "%d ranks",
            (unsigned long long)count, INT_MAX, g->size);
    clt_end_after(g->run->timeout, clt_status_exit_code(CLT_AGAIN),
                  "error: MPI does not respond in a collective on host memory; rerun the same command\n");
    for (int i = 0; i < calls && code == MPI_SUCCESS; i++)
        code = call_once(what, data[i], (int)count, (int)count / g->size);
    clt_end_cancel();
    if (code == MPI_SUCCESS) return CLT_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    return clt_error(CLT_FAIL, "MPI failed in a collective on host memory: %s", text);
}
