/* clt_trace: a timeline of all ranks during some steps, as one file for chrome://tracing and Perfetto. Each
 * rank is a process of the timeline, named "rank 3 (host, device)", with one row for the phases of the host
 * and the rows of its device and its exchanges (clt_trace_rows.h). Times are in microseconds since the first
 * event of any rank, on rank 0's clock.
 *
 *     clt_trace *t = clt_trace_create(group, "trace.json", dev);
 *     clt_trace_span(t, start, clt_now(), "queue step %d", 3);
 *     clt_trace_finish(t, dev, true); // rank 0 writes the file; frees t */
#ifndef CLT_TRACE_H
#define CLT_TRACE_H

#include "collectives/clt_group.h"
#include "runtime/device/clt_device.h"

typedef struct clt_trace clt_trace;

/* Starts recording the commands of dev, which must be open with profiling, and the operations of exchanges.
 * path is copied, g borrowed. */
clt_trace *clt_trace_create(clt_group *g, const char *path, clt_device *dev);
/* Adds a phase of the host, in seconds of clt_now. Does nothing if t is NULL. */
void clt_trace_span(clt_trace *t, double start, double end, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Waits for the device and frees t. With `all`, which is collective, rank 0 writes the rows of all ranks;
 * otherwise it writes its own rows and no rank communicates. Rank 0 prints the share of time in which its
 * kernels ran and, with several hosts, how exactly their clocks are aligned. With `all`, a failure on a rank
 * is one on all ranks. */
clt_status clt_trace_finish(clt_trace *t, clt_device *dev, bool all);
void clt_trace_destroy(clt_trace *t); /* without writing the file; NULL is allowed */

#endif
