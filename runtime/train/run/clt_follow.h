/* clt_follow: keeps copies of a run's small files (metrics.jsonl, log.txt, config.yaml, what sinks write) in
 * an object store, behind the run. Such a store cannot append to a file, so the run writes in a local folder,
 * and a thread copies every file that changed, whole. A copy that fails is repeated with the next round; it
 * is counted, the first failure in a row is a warning, and the run does not fail. Files in sub-folders are
 * not copied. */
#ifndef CLT_FOLLOW_H
#define CLT_FOLLOW_H

#include "runtime/base/clt_base.h"

typedef struct clt_follow clt_follow;

/* Before the files are opened: gets from `store` (a path or a URL) the files named in `names` that are longer
 * there than in `local` (created when absent) or absent here: an earlier part of the run wrote them on
 * another host. CLT_IO. */
clt_status clt_follow_fetch(const char *store, const char *local, const char *const *names, size_t n);

/* Copies from `local` to `store` every `seconds`; a file of N MiB at most every N seconds. */
clt_follow *clt_follow_start(const char *local, const char *store, double seconds);
/* Starts a round now, without waiting for it. NULL is allowed. */
void clt_follow_now(clt_follow *f);
/* A last round of every file that changed, then the end. NULL is allowed. */
void clt_follow_end(clt_follow *f);

#endif
