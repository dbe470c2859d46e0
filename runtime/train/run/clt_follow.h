/* clt_follow: keeps copies of a run's small files (metrics.jsonl, log.txt, config.yaml, what sinks write) in
 * an object store, behind the run. Such a store cannot append to a file, so the run writes in a local folder,
 * and a thread copies every file that changed, whole. A copy that fails is repeated with the next round; it
 * is counted, the first failure in a row is a warning, and the run does not fail. Files in sub-folders are
 * not copied. */
#ifndef CLT_FOLLOW_H
#define CLT_FOLLOW_H

#include "runtime/checkpoint/clt_checkpoint.h"

typedef struct clt_follow clt_follow;

/* Before the files named in `names` are opened: makes those in `local` (created when absent) the ones of the
 * run whose checkpoints are in `store` (a path or a URL). A file that begins with the store's stays:
 * this host wrote it, and ended before the last copy. Otherwise the store's file is taken: another host has
 * continued the run. A file that is no earlier part of it, or that the store does not have, belongs to
 * something else and becomes NAME.superseded.RUNID. CLT_IO. */
clt_status clt_follow_fetch(const char *store, const char *local, const char *run_id,
                            const char *const *names, size_t n);

typedef struct {
    const char *local, *store;
    double seconds;           /* between two rounds; a file of N MiB is copied at most every N seconds */
    const char *hint;         /* name of the folder's hint file, which is not copied; NULL: none */
    const clt_run_lock *lock; /* of `store`, borrowed: a round without it copies nothing. NULL: not checked */
} clt_follow_params;

/* Copies from `local` to `store`: names of checkpoints, of temporary files and of locks are left out. */
clt_follow *clt_follow_start(const clt_follow_params *p);
/* Starts a round now, without waiting for it. NULL is allowed. */
void clt_follow_now(clt_follow *f);
/* A last round of every file that changed, then the end. After `seconds` the copy in progress is given up;
 * negative: never. NULL is allowed. */
void clt_follow_end(clt_follow *f, double seconds);

#endif
