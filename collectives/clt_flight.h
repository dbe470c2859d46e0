/* clt_flight: the last events of each rank of this host, for the message when a rank dies or does not
 * respond. A rank's log lies in memory that the ranks of a host share (in a run of one rank: in its own
 * memory), so that other ranks can read it when the rank itself cannot print it. Not for other folders.
 *
 * "Exchange" here means every wait for other ranks that clt_watch_begin starts: a barrier, a gather, a
 * broadcast, messages, or a barrier of a gradient reduction. Ranks are ranks of the run. Only the thread that
 * owns the rank's groups writes its log. Other threads and processes read it at any time; a text or an event
 * that is being written may then be read in part. */
#ifndef CLT_FLIGHT_H
#define CLT_FLIGHT_H

#include <stdatomic.h>
#include <stdint.h>

#include "collectives/clt_group.h"

typedef struct clt_group_run clt_group_run; /* clt_group_internal.h */

enum { CLT_FLIGHT_EVENTS = 32, CLT_FLIGHT_TEXT = 48 };

/* A phase began, or an exchange began on this rank. */
typedef struct {
    int64_t ms, step;           /* when, as clt_flight_now; the step of the last clt_flight_phase */
    uint64_t met;               /* the exchange's number on this rank, from 1; 0: a phase began */
    char what[CLT_FLIGHT_TEXT]; /* the phase, or what the exchange waits for */
} clt_flight_event;

/* One rank's log. All bytes must be zero before clt_flight_begin. Times are those of clt_flight_now. */
typedef struct {
    _Atomic int32_t pid, rank; /* process number, 0: the rank has not called clt_flight_begin */
    _Atomic int32_t left;      /* 1: the rank has left the run in order, so its end is no failure */
    _Atomic uint64_t met;      /* exchanges that the rank has begun so far, in all of its groups */
    _Atomic int64_t step;      /* of the last clt_flight_phase */
    _Atomic int64_t since_ms;  /* when the phase began; before the first phase: clt_flight_begin */
    _Atomic int64_t seen_ms;   /* last sign of life: the rank began an exchange, or waited in one */
    char phase[CLT_FLIGHT_TEXT];
    _Atomic uint32_t n; /* events so far; event i is in event[i % CLT_FLIGHT_EVENTS], older ones are lost */
    clt_flight_event event[CLT_FLIGHT_EVENTS];
} clt_flight_log;

/* Milliseconds of the monotonic clock, which all processes of a host share. */
int64_t clt_flight_now(void);
/* Writes this process's number, the rank and the time into *l. */
void clt_flight_begin(clt_flight_log *l, int rank);
/* A phase of step `step` begins. `phase` is copied and cut to CLT_FLIGHT_TEXT - 1 bytes. */
void clt_flight_phase(clt_flight_log *l, int64_t step, const char *phase);
/* An exchange begins. `what` names what is waited for; it is copied and cut as a phase is. */
void clt_flight_meet(clt_flight_log *l, const char *what);
/* The current phase, "start" before the first one. Points into *l or is static. */
const char *clt_flight_phase_of(const clt_flight_log *l);

/* Appends to *out one line for each rank of this host, each after "\n  ": "rank 1 (host a, process 12): step
 * 7, gradient reduction for 3.0 s, exchange 41". Appends nothing if this host has more than 16 ranks. */
void clt_flight_table(const clt_group_run *run, clt_str *out);
/* Time limit for clt_flight_dump in seconds, except after a rank's death, when mpirun leaves less time. */
#define CLT_FLIGHT_PATIENCE 1.5
/* Writes `why` and the kept events of all ranks of this host to a new file events-*.txt in the run's folder
 * (clt_group_set_folder) and appends "\n  last events: FILE" to *out. Appends nothing if there is no folder,
 * if writing fails, or if it takes longer than `at_most` seconds, so that the caller's message is not
 * delayed. After a timeout a thread may still write the file: call it only in a process that is about to
 * end. */
void clt_flight_dump(const clt_group_run *run, const char *why, double at_most, clt_str *out);

#endif
