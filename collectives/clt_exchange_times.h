/* clt_exchange_times: when operations of exchanges came to their stations (clt_exchange.h) on this rank, and
 * what they moved, for timelines. It covers all plans of the process, whatever their groups.
 *
 * The copies and kernels of an operation have a tag in the trace of the device, by which the two belong
 * together. */
#ifndef CLT_EXCHANGE_TIMES_H
#define CLT_EXCHANGE_TIMES_H

#include "collectives/clt_group.h"

typedef enum {
    CLT_AT_BEGUN,
    CLT_AT_FILLING,
    CLT_AT_POSTED,
    CLT_AT_FETCHING,
    CLT_AT_FINISHED,
    CLT_STATIONS
} clt_station;

/* What the device does for an operation: it copies out what it hands out, copies in what others have handed
 * out, and adds. */
typedef enum { CLT_PART_OUT, CLT_PART_IN, CLT_PART_ADD, CLT_PARTS } clt_exchange_part;

typedef struct {
    const char *wire, *what; /* constants: "shm"; "reduce-scatter" */
    int plan, ranks;  /* the plan's number among those with operations here, from 0; ranks of its group */
    int64_t number;   /* of the operation in its plan */
    int bucket, end;  /* it is about buckets [bucket, end) */
    uint64_t out, in; /* bytes that this rank hands out, and that it takes from all others */
    bool by_host;     /* the host copies and adds, not the device */
    double at[CLT_STATIONS]; /* in seconds of clt_now; 0: it has not come there */
} clt_operation_time;

typedef struct clt_exchange_times clt_exchange_times;

/* Keeps the times of all operations that begin from here on. */
void clt_exchange_times_start(clt_group *g);
/* Ends it, and gives those operations in the order in which they began; the caller frees *rows. */
void clt_exchange_times_take(clt_group *g, clt_operation_time **rows, int *count);

/* The row that a command of the device belongs to, by its tag; -1: none. *part: what it does for it. */
int clt_exchange_times_row(int64_t tag, clt_exchange_part *part);

#endif
