/* clt_sink_lines: a file to which whole lines are appended. What a killed process or a full disk left
 * incomplete is ended with a newline first, so that it costs one line and not two. */
#ifndef CLT_SINK_LINES_H
#define CLT_SINK_LINES_H

#include "runtime/base/clt_base.h"

typedef struct clt_sink_lines clt_sink_lines;

/* Opens or creates the file and the folders above it. *empty (may be NULL): it has no lines yet. */
clt_status clt_sink_lines_open(const char *path, clt_sink_lines **out, bool *empty);
/* Appends text of `bytes` bytes that ends with a newline. */
clt_status clt_sink_lines_append(clt_sink_lines *l, const char *text, size_t bytes);
/* NULL is allowed. */
clt_status clt_sink_lines_close(clt_sink_lines *l);

/* Creates the folders above `path`. */
clt_status clt_sink_make_room(const char *path);

#endif
