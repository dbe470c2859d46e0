/* clt_timeline: writes timelines in Chrome's trace-event format, for chrome://tracing and Perfetto. A
 * timeline has processes, a process has rows, and a row has events with a start and an end.
 *
 * Parts of a timeline are texts that can be made on different ranks and joined:
 *
 *     clt_str part = {0};
 *     clt_timeline_process(&part, 0, "rank 0");
 *     clt_timeline_row(&part, 0, 1, "host");
 *     clt_timeline_event(&part, 0, 1, "queue step 3", 0.5, 0.75, NULL);
 *     clt_timeline_join(&all, part.s);
 *     clt_timeline_write("trace.json", &all); */
#ifndef CLT_TIMELINE_H
#define CLT_TIMELINE_H

#include "runtime/base/clt_base.h"

/* These append to a part, which starts from {0}. Names are UTF-8. Processes and rows are shown in the order
 * of their numbers. */
void clt_timeline_process(clt_str *part, int process, const char *name);
void clt_timeline_row(clt_str *part, int process, int row, const char *name);
/* start, end: seconds since the zero of the timeline; kept to a nanosecond, so that events that share a
 * border or lie in each other do so in the viewer, too. Other events of a row must not overlap. args: members
 * of a JSON object, without braces, which the viewer shows with the event; NULL: none. */
void clt_timeline_event(clt_str *part, int process, int row, const char *name, double start, double end,
                        const char *args);

/* Appends a whole part to another one. part NULL or "": nothing. */
void clt_timeline_join(clt_str *all, const char *part);
/* Writes the file atomically; errors of clt_io_write_atomic. */
clt_status clt_timeline_write(const char *path, const clt_str *all);

#endif
