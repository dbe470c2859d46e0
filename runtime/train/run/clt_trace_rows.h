/* clt_trace_rows: the rows of a rank in a timeline that come from its device and its exchanges: one for each
 * queue of the device, one for the additions if they have a queue of their own, and for each exchange as many
 * as it has operations at once. Rows without events are left out. */
#ifndef CLT_TRACE_ROWS_H
#define CLT_TRACE_ROWS_H

#include "collectives/clt_exchange_times.h"
#include "runtime/device/clt_device.h"

typedef struct {
    clt_command_time *command; /* by clt_device_trace_take */
    clt_operation_time *operation;
    int commands, operations;
} clt_trace_events;

/* Appends the rows of process `rank`. zero: the zero of the timeline, in seconds of clt_now. */
void clt_trace_rows_add(const clt_trace_events *e, int rank, double zero, clt_str *part);
/* The first event; infinity: there is none. */
double clt_trace_rows_first(const clt_trace_events *e);

#endif
