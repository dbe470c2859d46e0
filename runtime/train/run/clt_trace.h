/* clt_trace: what host and device did during some steps, as a file that chrome://tracing and Perfetto show: a
 * row of the host's phases, a row of kernels. Times are in microseconds from the first event.
 *
 *     clt_trace *t = clt_trace_create("trace.json");
 *     clt_trace_span(t, "queue step 3", start, clt_now());
 *     clt_trace_finish(t, dev); // writes the file, frees t */
#ifndef CLT_TRACE_H
#define CLT_TRACE_H

#include "runtime/device/clt_device.h"

typedef struct clt_trace clt_trace;

/* Starts keeping `dev`'s launches (opened with profile). path is copied. */
clt_trace *clt_trace_create(const char *path, clt_device *dev);
/* A phase of the host, on clt_now's clock. t NULL: nothing. */
void clt_trace_span(clt_trace *t, double start, double end, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Waits for the device, writes the file and frees t. One info line says how much of the time between the
 * first and the last kernel the device computed. */
clt_status clt_trace_finish(clt_trace *t, clt_device *dev);
void clt_trace_destroy(clt_trace *t); /* without writing; NULL is allowed */

#endif
