/* clt_plan_memory: the device memory of a run by use, as sums of named terms. Each use is one small function
 * of a few sizes (clt_plan_sizes), so that a term that differs from what the engine allocates is corrected in
 * one place. clt_plan.h applies them to a configuration.
 *
 * Stages (cltrain.zero_stage) say what a rank holds only its part of: 1 moments, in 16-bit runs also the fp32
 * weights; 2 gradients, too; 3 the weights that the model reads, too. Weights are gathered and gradients
 * reduced by units of the model (clt_model_units). */
#ifndef CLT_PLAN_MEMORY_H
#define CLT_PLAN_MEMORY_H

#include "collectives/clt_lanes.h"
#include "runtime/device/clt_shards.h"

/* Numbers of elements, unless noted. */
typedef struct {
    int stage, moments;   /* moments: tensors of optimizer state, 1 or 2 */
    bool ratios;          /* lamb: a number of each tensor, which blocks name by two more bytes */
    bool narrow, offload; /* narrow: a 16-bit run; offload: cltrain.offload: host or file */
    bool files;           /* cltrain.offload: file */
    bool host_weights;    /* cltrain.offload_parameters: host or file, at stage 3 */
    bool file_weights;    /* file */
    bool host_update;     /* cltrain.offload_update: host */
    bool host_gradients;  /* cltrain.offload_gradients: host or file, where no whole gradients are kept */
    bool file_gradients;  /* file */
    uint64_t total;       /* the whole slab */
    uint64_t owned;       /* of the rank that owns most (clt_shards.h); `total` at stage 0 */
    uint64_t inputs;      /* bytes of host memory that the model takes */
    uint64_t file_input;  /* bytes of a block's input that waits in a file; 0: none does */
    uint64_t resident;    /* with offload: of these, what stays on the device; whole chunks */
    uint64_t kept;        /* stage 3: weights of the rank that keeps most; more than owned, where groups of
                           * ranks are replicas */
    uint64_t wide;        /* tensors that the model reads in fp32 although the run is narrow */
    uint64_t unit;        /* the largest unit */
    uint64_t edges;       /* chunks that two units share, whose sums stay in memory with file_gradients */
    uint64_t part;        /* the most that a rank of several owns of a unit; 0 on one rank */
    uint64_t ring;        /* places of units' gradients */
    uint64_t gathered;    /* places of units' weights, in the type that the model reads */
    int gradient_slabs;   /* whole gradients at once; 0: each rank keeps the sums of its part only */
    int gradient_sums;    /* sums of a rank's part that are kept at once, with gradient_slabs 0 */
} clt_plan_sizes;

enum {
    CLT_PLAN_GRADIENT_RING = 3,   /* blocks: a pass writes to two, while one before them is reduced */
    CLT_PLAN_GATHER_AHEAD = 2,    /* units gathered ahead with limit_all_gathers: true */
    CLT_PLAN_GATHER_FAR = 4,      /* with false */
    CLT_PLAN_GATHER_USED = 2,     /* blocks that have a place besides those gathered ahead */
    CLT_PLAN_OFFLOAD_PLACES = 4,  /* of offloaded state: one comes in, one is updated, one leaves, and one for
                                   * what queues learn late of each other */
    CLT_PLAN_OFFLOAD_CHUNKS = 32, /* of a place: 8 MiB of each state are copied at full speed */
    CLT_PLAN_UPDATE_PLACES = 4,   /* of pinned memory, between the device and a host that updates: as above */
    CLT_PLAN_UPDATE_CHUNKS = 64,  /* of a stretch that the host updates */
    CLT_PLAN_PART_PLACES = 4,     /* on the device, for sums of a rank's parts of units: one comes in, the
                                   * additions to others wait for ranks, one leaves */
    CLT_PLAN_SUM_PLACES = 2,      /* on the device, for sums of units from the host's memory */
    CLT_PLAN_FILE_SLOTS = 6,  /* of pinned memory between files and the device: two are read, two written */
    CLT_PLAN_SPOOL_INPUTS = 2 /* inputs of blocks that a spool has room for: one leaves, one is written */
};

/* Elements of each state in a place, if `owned` elements of it are offloaded. */
uint64_t clt_plan_offload_stretch(uint64_t owned);
/* The same of what the host updates. */
uint64_t clt_plan_update_stretch(uint64_t owned);

/* --- the terms: device bytes of one rank --- */

uint64_t clt_plan_weights_bytes(const clt_plan_sizes *s);   /* fp32 weights */
uint64_t clt_plan_copy_bytes(const clt_plan_sizes *s);      /* weights that products read in 16 bits */
uint64_t clt_plan_gradients_bytes(const clt_plan_sizes *s); /* sums and what a pass writes to */
/* Moments, or with offload those that stay; what passes through from and to the host's memory; the groups of
 * tensors. */
uint64_t clt_plan_optimizer_bytes(const clt_plan_sizes *s);
/* Host bytes of one rank of offloaded state; 0: there is none, or it is in files. */
uint64_t clt_plan_host_bytes(const clt_plan_sizes *s);
/* Host bytes that updates' state, weights and gradients pass through between files and the device
 * (clt_engine_file_ring.h); 0: none of them is in files. */
uint64_t clt_plan_slots_bytes(const clt_plan_sizes *s);
/* Host bytes of one rank with host_weights, with host_gradients, else 0; bytes in files of the same. */
uint64_t clt_plan_host_weights_bytes(const clt_plan_sizes *s);
uint64_t clt_plan_host_gradients_bytes(const clt_plan_sizes *s);
uint64_t clt_plan_file_weights_bytes(const clt_plan_sizes *s);
uint64_t clt_plan_file_gradients_bytes(const clt_plan_sizes *s);
/* The same of passes' weights, gradients and inputs of blocks (clt_spool.h). */
uint64_t clt_plan_spool_bytes(const clt_plan_sizes *s);
/* Bytes that an update moves to the device, or out of files, and back. */
typedef struct {
    uint64_t in, out;
} clt_plan_update_bytes;
clt_plan_update_bytes clt_plan_update_link(const clt_plan_sizes *s);
/* Bytes that the host's cores read and write in an update; 0 without host_update. */
uint64_t clt_plan_host_update_bytes(const clt_plan_sizes *s);
/* Device bytes of offloaded kinds of state, of what stays. They are in the terms above. */
uint64_t clt_plan_resident_bytes(const clt_plan_sizes *s);
/* Bytes of state in files of one rank, 0 without; bytes that an update reads from files and writes there, of
 * state, weights and gradients. */
uint64_t clt_plan_file_bytes(const clt_plan_sizes *s);
clt_plan_update_bytes clt_plan_update_files(const clt_plan_sizes *s);

/* --- the sizes --- */

/* Elements of the places that n units of size[n] take turns in: the first and the last unit have places of
 * their own, those between them have up to `blocks` places of the largest one's size. */
uint64_t clt_plan_places(const uint64_t *size, int n, int blocks);
/* The most elements that a rank owns of one of n units; unit u has elements start[u] ... start[u + 1] - 1. */
uint64_t clt_plan_largest_part(const clt_shards *s, int rank, const uint64_t *start, int n);

#endif
