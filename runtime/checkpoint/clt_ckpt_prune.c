/* Removing what is of no use from a folder of checkpoints. */
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"

clt_ckpt_prune_params clt_ckpt_prune_params_default(void) {
    return (clt_ckpt_prune_params){.keep = -1, .uploads_age = CLT_CKPT_UPLOADS_AGE};
}

typedef struct {
    const clt_ckpt_prune_params *p;
    const char *folder;
    const clt_ckpt_commit_ops *how;
    const clt_run_lock *lock; /* NULL: a dry run */
    char run_id[CLT_RUN_ID_BYTES];
} pruning;

static void warn_kept(void *ctx, const char *path, const char *why) {
    (void)ctx;
    clt_warn("%s: its data are kept, because its manifest cannot be read: %s", path, why);
}

static clt_status clean(const pruning *q) {
    const clt_ckpt_cleaning c = {.latest = "latest-rank0", /* the default of save_latest_filename */
                                 .uploads_age = q->p->uploads_age,
                                 .dry_run = q->p->dry_run,
                                 .removed = q->p->each,
                                 .kept = warn_kept,
                                 .ctx = q->p->ctx};
    return q->how->clean(q->folder, &c);
}

static clt_status remove_one(const pruning *q, const clt_ckpt_info *c) {
    const clt_ckpt_waste w = {c->path, "checkpoint", c->bytes};
    if (!clt_run_lock_is_held(q->lock))
        return clt_error(CLT_IO,
                         "%s: the lock of the folder was lost, because the storage was not reachable "
                         "in time; rerun the command",
                         q->folder);
    if (!q->p->dry_run) CLT_TRY(q->how->remove(q->folder, c->name, q->run_id));
    if (q->p->each) q->p->each(q->p->ctx, &w);
    return CLT_OK;
}

static clt_status remove_old(const pruning *q) {
    clt_ckpt_info *list = NULL;
    int n = 0, valid = 0;
    if (q->p->keep < 0) return CLT_OK;
    CLT_TRY(clt_ckpt_scan(q->folder, &list, &n));
    clt_status st = CLT_OK;
    while (valid < n && list[valid].valid) valid++;
    for (int i = valid; i < n; i++)
        clt_warn("%s is not valid and is kept: %s; remove it yourself if it is of no use", list[i].path,
                 list[i].why);
    for (int i = valid - 1; i >= q->p->keep && st == CLT_OK; i--) st = remove_one(q, &list[i]);
    clt_ckpt_scan_free(list, n);
    return st;
}

/* A prefix of which nothing is listed may have uploads. */
static clt_status check_folder(const pruning *q) {
    char *manifest = clt_path_join(q->folder, CLT_MANIFEST);
    clt_io_info folder, file = {.kind = CLT_IO_ABSENT};
    int uploads = 0;
    clt_status st = clt_io_stat(q->folder, &folder);
    if (st == CLT_OK) st = clt_io_stat(manifest, &file);
    if (st == CLT_OK && folder.kind == CLT_IO_ABSENT)
        st = clt_io_clean(q->folder, q->p->uploads_age, true, NULL, NULL, &uploads);
    if (st == CLT_OK && file.kind == CLT_IO_FILE)
        st = clt_error(CLT_BAD_DATA, "%s is a checkpoint: name the folder that holds it", q->folder);
    else if (st == CLT_OK && folder.kind != CLT_IO_FOLDER && !uploads)
        st = clt_error(CLT_IO, folder.kind == CLT_IO_ABSENT ? "%s does not exist" : "%s is not a folder",
                       q->folder);
    clt_free(manifest);
    return st;
}

clt_status clt_ckpt_prune(const char *folder, const clt_ckpt_prune_params *p) {
    pruning q = {.p = p, .folder = folder};
    clt_run_lock *lock = NULL;
    if (p->keep == 0) return clt_error(CLT_BAD_CONFIG, "at least one checkpoint has to be kept");
    CLT_TRY(clt_ckpt_commit_of(folder, &q.how));
    CLT_TRY(check_folder(&q));
    CLT_TRY(clt_run_id(NULL, q.run_id));
    if (!p->dry_run) CLT_TRY(clt_run_lock_take(NULL, folder, &lock));
    q.lock = lock;
    clt_status st = p->dry_run ? CLT_OK : q.how->recover(folder);
    if (st == CLT_OK) st = clean(&q);
    if (st == CLT_OK) st = remove_old(&q);
    clt_run_lock_release(lock);
    return st;
}
