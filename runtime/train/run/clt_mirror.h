/* clt_mirror: keeps copies of a run's checkpoints in a second place (cltrain.mirror), behind training. A
 * thread copies each checkpoint that was saved, piece by piece, and prunes as the run does in save_folder;
 * while it holds the lock of the place, metrics.jsonl, log.txt and config.yaml follow, too (clt_follow.h). A
 * copy is committed like a save (clt_ckpt_copy): it can be resumed, or is not there.
 *
 * Training never waits for it. When it falls behind it skips to the newest checkpoint and says so. Whatever
 * fails (the place is not reachable, full, used by another run) is tried again and is a warning, every half a
 * minute, and never an error of the run. */
#ifndef CLT_MIRROR_H
#define CLT_MIRROR_H

#include "runtime/checkpoint/clt_checkpoint.h"

typedef struct clt_mirror clt_mirror;

/* Texts are copied. */
typedef struct {
    const char *folder; /* save_folder */
    const char *to;     /* the mirror, a path or a URL */
    const char *latest; /* name of the hint file */
    const char *run_id;
    const char *tokenizer; /* whose files are kept there, too; NULL: none */
    int64_t keep;          /* as in clt_ckpt_writer_params */
    int64_t batch;         /* at which the run begins: later checkpoints in the mirror are set aside */
    clt_run_lock *lock;    /* of `to`, if the run has taken it already; taken over. NULL: not yet */
} clt_mirror_params;

/* Starts the thread. NULL, with a warning: none can be created. */
clt_mirror *clt_mirror_start(const clt_mirror_params *p);
/* The checkpoint FOLDER/NAME, of this batch, is to be copied. Returns at once. NULL is allowed. */
void clt_mirror_saved(clt_mirror *m, const char *name, int64_t batch);
/* Waits up to `seconds` until the newest checkpoint and the last metrics are there, and ends the thread; says
 * so when it takes long. false, with a warning: they are not. NULL is allowed. */
bool clt_mirror_end(clt_mirror *m, double seconds);

#endif
