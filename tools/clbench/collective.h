/* collective: the parts of clbench allreduce, reduce-scatter and all-gather. bench_collectives.c measures two
 * sides that have the same functions: `device`, slabs of a device and the exchanges of collectives/
 * (collective_device.c), and `host`, host memory and MPI's own collectives (collective_host.c). Both put in
 * the numbers of collective_data.c and are checked against them. */
#ifndef CLBENCH_COLLECTIVE_H
#define CLBENCH_COLLECTIVE_H

#include "collectives/clt_mpi_anchor.h"
#include "collectives/clt_reduce.h"
#include "runtime/ops/clt_ops.h"

/* What one row measures. */
typedef struct {
    clt_group *group;
    clt_ops *ops;
    clt_mpi_collective what;
    clt_dtype type; /* fp32 or bf16: of what travels */
    uint64_t count; /* elements of the whole buffer, a multiple of the number of ranks */
    int calls;      /* of a timed block; each has a buffer to itself */
} collective_row;

/* One side, made by all ranks together. Calls are numbered through all blocks of a row; `first` is the number
 * of a block's first call. */
typedef struct {
    /* Writes the inputs of a block. On return nothing is queued. */
    clt_status (*fill)(void *side, uint32_t first);
    /* Makes the calls of a block; the results are complete on return. This is timed. */
    clt_status (*run)(void *side);
    /* Compares every element of this rank's results of the block and adds the number of wrong ones. */
    clt_status (*check)(void *side, uint32_t first, int64_t *wrong);
    void (*destroy)(void *side); /* NULL is allowed */
} collective_side;
extern const collective_side collective_device, collective_host;

clt_status collective_device_create(const collective_row *r, void **out);
clt_status collective_host_create(const collective_row *r, void **out);
/* The exchange that moves the slabs of a device side. */
const char *collective_device_exchange(const void *side);
/* Flips a bit of the result of a block's call i, for tests of the check. */
clt_status collective_device_flip(void *side, int i, uint64_t bit);

/* --- the numbers --- */

/* What `rank` puts in at `element` in a call: a random number of 11 bits between 1 and 2, times a power of
 * two that is the same on all ranks and differs by 4 or more between any 5 consecutive calls. So a result
 * that is stale or lacks a rank is wrong, also within the bound of bf16. fp32 sums are exact in every order.
 */
float collective_number(uint64_t element, int rank, uint32_t call);
/* The same for 16-bit elements that travel as they are. */
uint16_t collective_word(uint64_t element, int rank, uint32_t call);
/* n numbers of `type` from element `first` on: fp32, or 16-bit words. */
void collective_fill(clt_dtype type, int rank, uint32_t call, uint64_t first, uint64_t n, void *out);

/* Wrong ones among n sums over all ranks: those that differ from the exact sum by more than `bound` of it. */
uint64_t collective_wrong_sums(int ranks, uint32_t call, double bound, uint64_t first, uint64_t n,
                               const float *got);
/* Wrong ones among n elements of `type` that `owner` has put in. */
uint64_t collective_wrong_copies(clt_dtype type, int owner, uint32_t call, uint64_t first, uint64_t n,
                                 const void *got);
/* The bound for sums that travel as `type`: 0 for fp32. For bf16 every rank rounds its number, fp32 adds
 * them, and the sum is rounded: 2 u (1 + u) for the roundings to bf16 with u = 2^-8, ranks * 2^-23 for the
 * additions. */
double collective_bound(clt_dtype type, int ranks);

#endif
