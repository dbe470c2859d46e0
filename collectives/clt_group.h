/* clt_group: the ranks of a run, and what they do together: host data, agreement on a status, the end of a
 * job. Gradients are in clt_reduce.h.
 *
 * clt_group_create joins the group of all ranks of the run, clt_group_split makes smaller groups of it. Every
 * function works in every group; ranks are those of the group unless a comment says otherwise. Every wait for
 * other ranks has a deadline. A rank that dies or does not respond ends the job: one message names it, and
 * all ranks exit with the code of CLT_FAIL or CLT_AGAIN. Groups are for the thread that created the first
 * one. */
#ifndef CLT_GROUP_H
#define CLT_GROUP_H

#include "runtime/base/clt_base.h"

typedef struct clt_group clt_group;

enum { CLT_GROUP_MAX_RANKS = 1024 };

/* --- joining and leaving --- */

/* What the launcher says, without MPI_Init: rank 0 of 1 when there is no launcher. */
typedef struct {
    int rank, size, local_rank, local_size;
    const char *launcher; /* "none", "Open MPI", "Slurm", "PMI" */
} clt_launch_info;
clt_launch_info clt_launch_detect(void);

/* Joins the group of all ranks; MPI_Init is called only under a launcher of several ranks. timeout: the
 * deadline of every wait in seconds, 0: 600; $CLTRAIN_COMM_TIMEOUT wins. CLT_BAD_CONFIG if the launcher says
 * several ranks and MPI says one (wrong mpirun). If a rank called clt_group_refuse instead, fails on every
 * rank with its status. */
clt_status clt_group_create(double timeout, clt_group **out);
/* All ranks of the group destroy it. NULL: nothing. */
void clt_group_destroy(clt_group *g);
/* For a rank that cannot take part, because of `why`, and has not joined: joins only so that the others fail,
 * too. Returns why. Without a launcher it does nothing else. */
clt_status clt_group_refuse(clt_status why);

/* Makes groups of the ranks of g that give the same color (>= 0). Ranks of a child are ordered by key, and by
 * their rank in g where keys are equal. All ranks of g call it; one with CLT_GROUP_NO_COLOR is in no child,
 * and its *child is set to NULL. A child borrows g: destroy it first. Nothing is set after a failure, which
 * is one on all ranks. */
enum { CLT_GROUP_NO_COLOR = -1 };
clt_status clt_group_split(clt_group *g, int color, int key, clt_group **child);

/* --- the end of a job, for all ranks of the run --- */

/* Both of these end the process and do not return: no atexit handlers, no destructors, no waiting for
 * devices. */

/* Prints one line with the reason, and the rank in the run in front, and ends the job with `code`. */
void clt_group_abort(clt_group *g, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));
/* Ends the job with CLT_AGAIN's code, for a device that does not respond and whose message has been printed.
 */
void clt_group_end_hung(clt_group *g) __attribute__((noreturn));
/* For a rank whose run has failed with st, before it cleans up. Returns if the last clt_group_agree of all
 * ranks of the run failed, because then every rank knows; otherwise ends the job with st's exit code, as
 * clt_group_abort does. */
void clt_group_give_up(clt_group *g, clt_status st);

/* --- who is who --- */

int clt_group_rank(const clt_group *g);
int clt_group_size(const clt_group *g);
int clt_group_local_rank(const clt_group *g); /* among the ranks of g on this host */
int clt_group_local_size(const clt_group *g);
/* The rank in the run of a rank of g; messages name this one. */
int clt_group_rank_in_run(const clt_group *g, int rank);
/* This rank's host: the lowest rank of the run there. As a color it makes one group for each host. */
int clt_group_host(const clt_group *g);

/* --- what this rank is doing; one note for all of its groups --- */

/* For the message when a rank dies or does not respond. */
void clt_group_note(clt_group *g, int64_t step, const char *phase);
const char *clt_group_phase(const clt_group *g); /* of the last note */
/* Where the last events of all ranks are written in that case; NULL, as at first: nowhere. */
void clt_group_set_folder(clt_group *g, const char *folder);
/* Seconds that this rank has spent waiting for other ranks so far. */
double clt_group_waited(const clt_group *g);

/* --- host data: all ranks of the group call the same function in the same order --- */

clt_status clt_group_barrier(clt_group *g);
clt_status clt_group_broadcast(clt_group *g, int root, void *data, size_t bytes);
/* Every rank's `bytes` bytes, in rank order, into out[size * bytes] on every rank. `mine` may be its place in
 * out. */
clt_status clt_group_all_gather(clt_group *g, const void *mine, size_t bytes, void *out);
/* Different lengths: lens[size] and *out (caller frees) are set on every rank. */
clt_status clt_group_all_gatherv(clt_group *g, const void *mine, size_t bytes, size_t *lens, void **out);
clt_status clt_group_sum_i64(clt_group *g, int64_t *v, int n); /* exact */
clt_status clt_group_max_i64(clt_group *g, int64_t *v, int n);
/* CLT_OK on every rank, or on every rank the status of the lowest rank that failed. Of the messages that
 * ranks hold (clt_log_hold) each is printed by the rank that is lowest in the run. */
clt_status clt_group_agree(clt_group *g, clt_status mine);

/* Compares `text`, lines "KEY: VALUE" in any order with distinct keys, with rank 0's. CLT_OK on every rank if
 * all have the same lines. Otherwise CLT_BAD_CONFIG on every rank, and rank 0 prints one message: "rank 2's
 * WHAT (host b) differs from rank 0's (host a): KEY is X, not Y; ADVICE", about the lowest rank that differs
 * and its first line that does. A rank has no line, or one without a value, where "KEY is not set". Long keys
 * and values are cut. */
clt_status clt_group_check_same(clt_group *g, const char *what, const char *text, const char *advice);

/* What asked a rank of the group to stop (clt_signal_received) before the group's last clt_group_agree, the
 * same on every rank of it; 0: nothing. */
int clt_group_stop(const clt_group *g);
/* Whether this rank, or another as far as is known, was asked to stop. Ranks see it at different times: use
 * it to give up work early, not for decisions. */
bool clt_group_stop_asked(clt_group *g);

#endif
