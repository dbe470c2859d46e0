/* clt_notice: keys of a configuration that were accepted and have no effect, each with the reason. Keys with
 * the same reason make one line. */
#ifndef CLT_NOTICE_H
#define CLT_NOTICE_H

#include "runtime/base/clt_base.h"

typedef struct {
    char *path;      /* dotted path of the key */
    const char *why; /* lives at least as long as the list */
} clt_notice;

/* Start from {0}; free with clt_notices_free. */
typedef struct {
    clt_notice *v;
    size_t n, cap;
} clt_notices;

void clt_notices_add(clt_notices *l, const char *path, const char *why);
void clt_notices_free(clt_notices *l);

/* Adds one line for each reason, in the order in which the reasons came:
 *     key a.b has no effect here: WHY
 *     keys a.b, c have no effect here: WHY */
void clt_notices_lines(const clt_notices *l, clt_strv *lines);

#endif
