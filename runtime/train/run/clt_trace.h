/* clt_trace: a timeline of host and device during some steps, as a file for chrome://tracing and Perfetto:
 * one row with phases of the host, one row with kernels. Times are in microseconds since the first event.
 *
 *     clt_trace *t = clt_trace_create("trace.json", dev);
 *     clt_trace_span(t, "queue step 3", start, clt_now());
 *     clt_trace_finish(t, dev); // writes the file, frees t */
#ifndef CLT_TRACE_H
#define CLT_TRACE_H

#include "runtime/device/clt_device.h"

typedef struct clt_trace clt_trace;

/* Starts recording the launches of dev, which must be open with profiling. path is copied. */
clt_trace *clt_trace_create(const char *path, clt_device *dev);
/* Adds a phase of the host, in seconds of clt_now. Does nothing if t is NULL. */
void clt_trace_span(clt_trace *t, double start, double end, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Waits for the device, writes the file, prints the share of time in which kernels ran, and frees t. */
clt_status clt_trace_finish(clt_trace *t, clt_device *dev);
void clt_trace_destroy(clt_trace *t); /* without writing the file; NULL is allowed */

#endif
