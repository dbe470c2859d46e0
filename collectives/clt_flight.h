/* clt_flight: what each rank of this host has done last, for the message when one of them is stuck or gone. A
 * rank's log lies in memory that the ranks of a host share (one rank: its own), so that the others can read
 * it when it cannot speak. Not for other folders. */
#ifndef CLT_FLIGHT_H
#define CLT_FLIGHT_H

#include <stdatomic.h>
#include <stdint.h>

#include "collectives/clt_group.h"

enum { CLT_FLIGHT_EVENTS = 32, CLT_FLIGHT_TEXT = 48 };

/* A phase that began, or an exchange that the rank came to. */
typedef struct {
    int64_t ms, step;
    uint64_t met; /* the exchange's number; 0: a phase began */
    char what[CLT_FLIGHT_TEXT];
} clt_flight_event;

/* Times are on the monotonic clock in milliseconds, which all processes of a host share. Zero at first. */
typedef struct {
    _Atomic int32_t pid, rank;
    _Atomic int32_t left; /* 1: it has ended in order */
    _Atomic uint64_t met; /* exchanges that it has come to */
    _Atomic int64_t step;
    _Atomic int64_t since_ms; /* when the phase began */
    _Atomic int64_t seen_ms;  /* last sign of life while it waits for others */
    char phase[CLT_FLIGHT_TEXT];
    _Atomic uint32_t n; /* events so far; the last CLT_FLIGHT_EVENTS are there */
    clt_flight_event event[CLT_FLIGHT_EVENTS];
} clt_flight_log;

int64_t clt_flight_now(void);
void clt_flight_begin(clt_flight_log *l, int rank);
void clt_flight_phase(clt_flight_log *l, int64_t step, const char *phase);
/* The rank comes to an exchange. */
void clt_flight_meet(clt_flight_log *l, const char *what);
const char *clt_flight_phase_of(const clt_flight_log *l); /* "start" before the first one */

/* "rank 1 (host a, process 12): step 7, gradient reduction for 3 s, exchange 41", one line for each rank of
 * this host, each after "\n  "; nothing where there are more than a screen holds. */
void clt_flight_table(const clt_group *g, clt_str *out);
/* Seconds for that file where nobody but the file system is waited for. */
#define CLT_FLIGHT_PATIENCE 1.5
/* Writes all events of the ranks of this host to a new file in the group's folder (clt_group_set_folder) and
 * adds "\n  last events: FILE"; nothing without a folder, or where the file system takes longer than
 * `at_most` seconds: what this is part of has still to be said. For a process that ends. */
void clt_flight_dump(const clt_group *g, const char *why, double at_most, clt_str *out);

#endif
