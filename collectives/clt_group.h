/* clt_group: the ranks of a run, and the few things they do together. This folder is the only place that
 * includes mpi.h.
 *
 * A component is a table of functions: `loopback` (one rank, the example to copy), `shm` (all ranks on one
 * host: shared memory windows that each rank's device maps), `mpi` (anything MPI reaches; moves bytes, never
 * does arithmetic). Sums run on the devices in the order that docs/numerics.md fixes, so the component never
 * changes a bit. Every wait has a deadline; a rank that is lost or stuck ends the job with one line and
 * CLT_AGAIN or CLT_FAIL on every rank, promptly. */
#ifndef CLT_GROUP_H
#define CLT_GROUP_H

#include "runtime/device/clt_slab.h"

typedef struct clt_group clt_group;

enum { CLT_GROUP_MAX_RANKS = 1024 };

/* What the launcher says, without MPI_Init: rank 0 of 1 when there is no launcher. */
typedef struct {
    int rank, size, local_rank, local_size;
    const char *launcher; /* "none", "Open MPI", "Slurm", "PMI" */
} clt_launch_info;
clt_launch_info clt_launch_detect(void);

/* Joins the group (MPI_Init only under a launcher). A launcher's size above 1 with an MPI size of 1 is
 * CLT_BAD_CONFIG (wrong mpirun). timeout in seconds, 0: 600; $CLTRAIN_COMM_TIMEOUT wins. Fails on every rank
 * with the status of a rank that called clt_group_refuse instead. */
clt_status clt_group_create(double timeout, clt_group **out);
void clt_group_destroy(clt_group *g);
/* For a rank that cannot take part, because of `why`, before it has joined: joins only so that the others end
 * too. Returns why. Without a launcher it does nothing else. */
clt_status clt_group_refuse(clt_status why);
/* For a rank whose run has failed with st, before it cleans up: returns if the last clt_group_agree failed,
 * so that every rank knows; otherwise ends the job with st's exit code, as clt_group_abort does. */
void clt_group_give_up(clt_group *g, clt_status st);
/* Ends the whole job at once: prints one line naming rank and reason, tells the launcher, exits with `code`.
 * Never returns; no atexit handlers, no waiting on devices. */
void clt_group_abort(clt_group *g, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));

int clt_group_rank(const clt_group *g);
int clt_group_size(const clt_group *g);
int clt_group_local_rank(const clt_group *g);
int clt_group_local_size(const clt_group *g);
const char *clt_group_component(const clt_group *g); /* "loopback", "shm", "mpi" */

/* Seconds that this rank has spent waiting for other ranks so far. */
double clt_group_waited(const clt_group *g);

/* What the rank is doing, for what is told when a rank is stuck or gone: its step and phase, and the last
 * events of every rank in a file in `folder` (until then, or NULL: nowhere). */
void clt_group_note(clt_group *g, int64_t step, const char *phase);
const char *clt_group_phase(const clt_group *g); /* of the last note */
void clt_group_set_folder(clt_group *g, const char *folder);
/* Ends the job with 75 because this rank's device does not answer, which has been said: no waiting on it, not
 * even to leave in order. */
void clt_group_end_hung(clt_group *g) __attribute__((noreturn));

/* Host data. All ranks call the same function in the same order. */
clt_status clt_group_barrier(clt_group *g);
clt_status clt_group_broadcast(clt_group *g, int root, void *data, size_t bytes);
/* Every rank's `bytes` bytes, in rank order, into out[size * bytes] on every rank. */
clt_status clt_group_all_gather(clt_group *g, const void *mine, size_t bytes, void *out);
/* Different lengths: lens[size] and *out (caller frees) are set on every rank. */
clt_status clt_group_all_gatherv(clt_group *g, const void *mine, size_t bytes, size_t *lens, void **out);
clt_status clt_group_sum_i64(clt_group *g, int64_t *v, int n); /* exact */
clt_status clt_group_max_i64(clt_group *g, int64_t *v, int n);
/* CLT_OK everywhere, or on every rank the status of the lowest rank that failed. Messages that several ranks
 * hold (clt_log_hold) are printed by the lowest of them. */
clt_status clt_group_agree(clt_group *g, clt_status mine);

/* What asked some rank to stop (clt_signal_received) before the last clt_group_agree, the same on every rank;
 * 0: nothing. */
int clt_group_stop(const clt_group *g);
/* Whether this rank, or as far as is known another, was asked to stop by now. Ranks see it at different
 * times: for giving up work early, not for decisions. */
bool clt_group_stop_asked(clt_group *g);

/* --- gradient reduction over lanes (docs/numerics.md, lanes) --- */

/* A global batch has `lanes` (a power of two) lanes; each rank owns whole neighbouring ones, at least one, in
 * the order of the ranks. Which rank owns which changes no bit. */
typedef struct {
    int lanes, ranks;
    const int *count; /* [ranks] how many each owns, `lanes` in all; NULL: evenly, floor(lanes * rank / ranks)
                         is a rank's first one. Borrowed */
} clt_lane_split;
int clt_lane_begin(const clt_lane_split *s, int rank); /* the rank's first lane; of rank `ranks`: lanes */
/* Lanes by speed (in any unit, all above 0): the division whose slowest rank is done first, that is with the
 * smallest largest count / speed. ranks <= lanes. */
void clt_lane_counts_by_speed(int lanes, int ranks, const double *speed, int *count);
/* Samples of lane i of a global batch of `samples`: [floor(i*samples/lanes), floor((i+1)*samples/lanes)). */
int64_t clt_lane_sample_begin(int64_t samples, int lanes, int lane);

/* A sum over the lanes of one whole subtree: lanes [first, first + width), width a power of two dividing
 * first. slab NULL or empty true: all its lanes were empty, there is nothing to add. */
typedef struct {
    int first, width;
    bool empty;
    clt_slab *slab;
} clt_lane_sum;

/* Lanes of one rank in order: hands out a slab for each lane's gradients, and adds whole neighbouring
 * subtrees together as they become complete, like a binary counter, so that few slabs are enough. */
typedef clt_status (*clt_add_fn)(void *ctx, clt_ref dst, clt_ref src,
                                 uint64_t count); /* dst += src, queued */
typedef struct clt_lane_stack clt_lane_stack;
/* Slabs that lanes [first, last) of global batches of at most `samples` need at the same time, at least 1. */
int clt_lane_slabs_needed(int lanes, int first, int last, int64_t samples);
/* `slabs` (n >= clt_lane_slabs_needed) are borrowed. */
clt_lane_stack *clt_lane_stack_create(int first, int last, clt_slab **slabs, int n, clt_add_fn add,
                                      void *add_ctx);
void clt_lane_stack_destroy(clt_lane_stack *s);
void clt_lane_stack_begin(clt_lane_stack *s);     /* a new global batch */
clt_slab *clt_lane_stack_slab(clt_lane_stack *s); /* for the next lane's gradients; contents undefined */
clt_status clt_lane_stack_push(clt_lane_stack *s, bool empty); /* the next lane is done (or has no sample) */
/* After the last lane: the maximal whole subtrees, ascending, for clt_group_reduce. Borrowed until begin. */
const clt_lane_sum *clt_lane_stack_sums(clt_lane_stack *s, int *n);
/* The slab that takes the total: the first non-empty sum's, or a free one. */
clt_slab *clt_lane_stack_total(clt_lane_stack *s);

/* dst = src in the other type, queued: to bf16 rounded to nearest even, to fp32 as it is. */
typedef clt_status (*clt_cast_fn)(void *ctx, clt_ref dst, clt_ref src, uint64_t count);
/* What the reduction computes with on the device. With both casts gradients travel as bf16: every rank rounds
 * its subtree sums, which are added in fp32 as ever, and the total is rounded once more; so half the bytes
 * travel, and who owns which lanes changes bits. One rank rounds nothing. */
typedef struct {
    clt_add_fn add;
    clt_cast_fn to_bf16, to_f32; /* NULL: gradients travel as fp32 */
    void *ctx;
} clt_reduce_math;

/* Prepares what clt_group_reduce needs for slabs of this table (windows, buffers): all allocation happens
 * here. The ranks' sums are those of `split`, the same on every rank, as is whether `math` has casts. */
typedef struct clt_reduce_plan clt_reduce_plan;
clt_status clt_reduce_plan_create(clt_group *g, clt_device *dev, const clt_slab_table *t,
                                  const clt_lane_split *split, const clt_reduce_math *math,
                                  clt_reduce_plan **out);
void clt_reduce_plan_destroy(clt_reduce_plan *p);
/* Device bytes that the plan holds, for the memory plan (also before any device is there). */
uint64_t clt_reduce_plan_bytes(const clt_slab_table *t, const clt_lane_split *split, bool bf16);
/* The total over all lanes, the binary tree over lane numbers with empty subtrees skipped, into `total` on
 * every rank (which may be sums[0].slab). `sums`: this rank's maximal whole subtrees, ascending. n < 0: this
 * rank gives the step up; then no rank gets a total and all return CLT_STOPPED, without a message. */
clt_status clt_group_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total);

#endif
