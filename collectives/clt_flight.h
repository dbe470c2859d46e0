/* clt_flight: what each rank of this host has done last, for the message when one of them dies or does not
 * respond. A rank's log lies in memory that the ranks of a host share (a single rank: in its own), so that
 * the others can read it when the rank itself cannot print it. Not for other folders. */
#ifndef CLT_FLIGHT_H
#define CLT_FLIGHT_H

#include <stdatomic.h>
#include <stdint.h>

#include "collectives/clt_group.h"

typedef struct clt_group_run clt_group_run; /* clt_group_internal.h */

enum { CLT_FLIGHT_EVENTS = 32, CLT_FLIGHT_TEXT = 48 };

/* A phase that began, or an exchange that the rank came to. */
typedef struct {
    int64_t ms, step;
    uint64_t met; /* the exchange's number on this rank; 0: a phase began */
    char what[CLT_FLIGHT_TEXT];
} clt_flight_event;

/* Ranks are those of the run. Times are milliseconds of the monotonic clock, which all processes of a host
 * share. Zero at first. */
typedef struct {
    _Atomic int32_t pid, rank;
    _Atomic int32_t left; /* 1: it has left the run in order */
    _Atomic uint64_t met; /* exchanges that it has come to, of all its groups */
    _Atomic int64_t step;
    _Atomic int64_t since_ms; /* when the phase began */
    _Atomic int64_t seen_ms;  /* last sign of life: it came to an exchange, or waits in one */
    char phase[CLT_FLIGHT_TEXT];
    _Atomic uint32_t n; /* events so far; the last CLT_FLIGHT_EVENTS are kept */
    clt_flight_event event[CLT_FLIGHT_EVENTS];
} clt_flight_log;

int64_t clt_flight_now(void);
void clt_flight_begin(clt_flight_log *l, int rank);
void clt_flight_phase(clt_flight_log *l, int64_t step, const char *phase);
/* The rank comes to an exchange. */
void clt_flight_meet(clt_flight_log *l, const char *what);
const char *clt_flight_phase_of(const clt_flight_log *l); /* "start" before the first one */

/* "rank 1 (host a, process 12): step 7, gradient reduction for 3 s, exchange 41", one line for each rank of
 * this host, each after "\n  "; nothing where the lines would fill a screen. */
void clt_flight_table(const clt_group_run *run, clt_str *out);
/* Seconds for clt_flight_dump where only the file system is waited for. */
#define CLT_FLIGHT_PATIENCE 1.5
/* Writes all events of the ranks of this host to a new file in the run's folder (clt_group_set_folder) and
 * adds "\n  last events: FILE". Adds nothing without a folder, or where the file system takes longer than
 * `at_most` seconds: the message that this belongs to must not be held up. For a process that ends. */
void clt_flight_dump(const clt_group_run *run, const char *why, double at_most, clt_str *out);

#endif
