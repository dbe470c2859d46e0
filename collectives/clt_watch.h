/* clt_watch: how the ranks of a host watch each other, and how a job ends when one of them dies or does not
 * respond. Every wait for another rank is a clt_watch, except calls of MPI that block (clt_end_after limits
 * those). Each process of a run of several ranks has a thread, the watcher, that checks the other processes
 * of its host 20 times a second, whatever the rank itself does. Not for other folders. */
#ifndef CLT_WATCH_H
#define CLT_WATCH_H

#include "collectives/clt_flight.h"

/* In memory that the ranks of a host share, zeroed when it is created. */
typedef struct {
    _Atomic int32_t stop;    /* request to stop that a rank of this host received (clt_signal.h); 0: none */
    _Atomic int32_t ended;   /* 0, or 1 + exit code of the job once a rank of this host has ended it */
    _Atomic uint64_t said;   /* hash of the last line printed by the first rank that ended the job; 0: none */
    _Atomic int32_t spoken;  /* 1 once a rank that ends the job has printed all of its lines */
    clt_flight_log flight[]; /* [ranks of the host], by local rank */
} clt_host_page;

typedef struct clt_watcher clt_watcher;
/* Starts this process's watcher and sets run->watcher. run->page must be set. The watcher ends this process
 * in two cases: another rank of this host has ended the job (with that rank's exit code; prints no reason of
 * its own), or a process of this host is gone (with the exit code of CLT_FAIL and a message that names the
 * rank; only if run->sees_processes). CLT_FAIL if the thread cannot be started. */
clt_status clt_watch_start(clt_group_run *run);
/* Ends the watcher and sets run->watcher to NULL; does nothing if there is none. Must be called before the
 * page is unmapped. */
void clt_watch_stop(clt_group_run *run);

/* One wait for other ranks. Times are seconds. */
typedef struct {
    const clt_group *group; /* borrowed */
    char what[CLT_FLIGHT_TEXT];
    /* start and looked: when the wait began and when clt_watch_pause last checked the deadline (clt_now).
     * waited: what counts towards the deadline, without time in which the process was stopped. */
    double start, waited, looked;
    unsigned spins; /* of clt_wait_pause */
} clt_watch;
/* Starts a wait. `what` names what is waited for ("a barrier"); it is copied, cut to CLT_FLIGHT_TEXT - 1
 * bytes, and recorded as an event of this rank. */
clt_watch clt_watch_begin(const clt_group *g, const char *what);
/* Pauses for about 1 ms at most; to be called in the loop that waits. Once the wait has taken longer than
 * run->timeout, it prints which rank is missing, as far as this host can tell, ends the job with the exit
 * code of CLT_AGAIN, and does not return. */
void clt_watch_pause(clt_watch *w);
/* Adds the time since clt_watch_begin to run->waited. */
void clt_watch_end(clt_watch *w);

/* Ends the job with exit code `code`. Prints this rank's held messages (clt_log_hold), but none that another
 * rank of this host has already printed for the end of the job; then ends the other ranks of the job and this
 * process. */
void clt_watch_end_job(clt_group_run *run, int code) __attribute__((noreturn));

#endif
