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

#include "runtime/base/clt_base.h"

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

#endif
