/* clt_watch: how the ranks of a host watch each other, and how a job ends when one of them dies or does not
 * respond. Every wait for another rank is a clt_watch; a thread looks at the other processes of the host
 * whatever the rank itself does. Not for other folders. */
#ifndef CLT_WATCH_H
#define CLT_WATCH_H

#include "collectives/clt_flight.h"

/* In memory that the ranks of a host share. Zero at first. */
typedef struct {
    _Atomic int32_t stop;    /* a signal that some rank received */
    _Atomic int32_t ended;   /* 1 + exit code once a rank has ended the job */
    _Atomic uint64_t said;   /* hash of the message that it printed */
    _Atomic int32_t spoken;  /* 1 once a rank that ends the job has printed all that it has to say */
    clt_flight_log flight[]; /* [ranks of the host] */
} clt_host_page;

typedef struct clt_watcher clt_watcher;
/* Starts the thread, with run->page set. It follows a rank of this host that ends the job, and ends the job
 * itself when a process of this host is gone. */
clt_status clt_watch_start(clt_group_run *run);
/* Before the page is unmapped. */
void clt_watch_stop(clt_group_run *run);

/* One wait for other ranks. */
typedef struct {
    const clt_group *group;
    char what[CLT_FLIGHT_TEXT];
    double start, waited, looked;
    unsigned spins;
} clt_watch;
/* `what` is waited for: "a barrier". It becomes an event of this rank. */
clt_watch clt_watch_begin(const clt_group *g, const char *what);
/* Pauses a moment. Once the group's deadline has passed, names the rank that is missing and ends the job. */
void clt_watch_pause(clt_watch *w);
void clt_watch_end(clt_watch *w);

/* Ends the job with `code`: the first rank of a host prints why (what the log holds), the others follow. */
void clt_watch_end_job(clt_group_run *run, int code) __attribute__((noreturn));

#endif
