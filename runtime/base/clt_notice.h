/* clt_notice: the list of configuration keys that were accepted and have no effect, each with the reason. */
#ifndef CLT_NOTICE_H
#define CLT_NOTICE_H

#include "runtime/base/clt_base.h"

typedef struct {
    char *path; /* dotted path of the key */
    char *why;  /* the reason */
} clt_notice;

/* Start from {0}; free with clt_notices_free. */
typedef struct {
    clt_notice *v;
    size_t n, cap;
} clt_notices;

/* Copies both. */
void clt_notices_add(clt_notices *l, const char *path, const char *why);
void clt_notices_free(clt_notices *l);

/* Adds to `lines` one text for each different reason, in the order in which the reasons were first added:
 *     key a.b has no effect here: WHY
 *     keys a.b, c have no effect here: WHY */
void clt_notices_lines(const clt_notices *l, clt_strv *lines);

#endif
