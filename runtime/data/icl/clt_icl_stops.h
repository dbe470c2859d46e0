/* clt_icl_stops: where a generated text is cut before it is compared. LLM Foundry joins the strings of
 * early_stopping_criteria with | and cuts at the first match of this regular expression, so that "." cuts a
 * text at its first character; cltrain does the same (PCRE2 in place of Python's re). */
#ifndef CLT_ICL_STOPS_H
#define CLT_ICL_STOPS_H

#include "runtime/base/clt_base.h"

typedef struct clt_icl_stops clt_icl_stops;

/* n strings; none: nothing is cut. CLT_BAD_CONFIG, with the reason: they are no regular expression together;
 * CLT_NO_MEMORY. */
clt_status clt_icl_stops_create(const char *const *stop, size_t n, clt_icl_stops **out);
void clt_icl_stops_destroy(clt_icl_stops *s); /* NULL is allowed */

/* Whether a string means something else as a regular expression than as a text. */
bool clt_icl_stop_is_pattern(const char *stop);

/* *bytes: length of `text` (UTF-8) up to the first match. CLT_BAD_CONFIG: the expression takes too many steps
 * on it; CLT_NO_MEMORY. Any number of threads may call it. */
clt_status clt_icl_stops_find(const clt_icl_stops *s, const char *text, size_t *bytes);

#endif
