/* clt_ckpt_commit: how a save becomes a checkpoint, in one step that a crash cannot tear. Writer, reader and
 * store call a strategy through this table and do not know which one they have; clt_ckpt_commit_of picks it
 * by what the storage of the folder can do.
 *
 * `rename` (clt_ckpt_rename.c), for file systems: the files are written below NAME.tmp.RUNID and made
 * durable; renaming that folder to NAME is the commit.
 *
 * `object` (clt_ckpt_object.c), for object stores, which cannot rename: data files are written below NAME
 * under names that no other save uses; writing NAME/manifest.json, on condition of what was there before, is
 * the commit. Data that no manifest names belong to a save under way, or to one that ended.
 *
 * Whatever the strategy, a save whose run has lost the lock of the folder is not published
 * (clt_ckpt_writer.c).
 */
#ifndef CLT_CKPT_COMMIT_H
#define CLT_CKPT_COMMIT_H

#include "runtime/checkpoint/clt_checkpoint.h"

#define CLT_MANIFEST "manifest.json"

typedef struct clt_ckpt_commit clt_ckpt_commit;

/* How a folder is cleaned. */
typedef struct {
    const char *latest; /* name of the hint file */
    double uploads_age; /* seconds; younger uploads may be in progress, and stay */
    bool dry_run;       /* nothing is removed; `removed` is called for what would be */
    void (*removed)(void *ctx, const clt_ckpt_waste *w); /* after each removal; NULL is allowed */
    /* Data below `path` stay, because a manifest that is unreadable may name them. NULL is allowed. */
    void (*kept)(void *ctx, const char *path, const char *why);
    void *ctx;
} clt_ckpt_cleaning;

typedef struct {
    const char *name;
    unsigned needs; /* clt_io_capability of the folder's storage, or'ed */

    /* --- one save: path and file on every rank, the others on rank 0, in this order --- */

    /* Below which path the ranks write, and under which name each; to be freed. `file` is called after
     * c->save is set. */
    char *(*path)(const char *final, const char *run_id);
    char *(*file)(const clt_ckpt_commit *c, int rank);
    /* Makes c->path ready to be written to, without anything in it. CLT_IO: NAME exists and overwrite is off,
     * or NAME is a folder but no checkpoint. Where storage has no folders (CLT_IO_HAS_FOLDERS) the ranks may
     * be writing their files already. */
    clt_status (*begin)(clt_ckpt_commit *c);
    /* The caller has made all data files durable. Writes the manifest durably, then gives NAME to the new
     * checkpoint, durably. CLT_IO also if NAME appeared since begin. */
    clt_status (*publish)(clt_ckpt_commit *c, const char *manifest, size_t bytes);
    /* After publish failed, or what it published cannot be read: gives NAME back what it was before. Where
     * that fails, a warning says so, or c->moved names the old checkpoint. */
    void (*retract)(clt_ckpt_commit *c);
    /* Ends a save that was refused, not published, or retracted: removes what it wrote, unless c->moved is
     * set: `path` may be the only other copy. Prints nothing. */
    void (*discard)(clt_ckpt_commit *c);
    /* Ends a save that was published and read back: removes what NAME was before. */
    clt_status (*finish)(clt_ckpt_commit *c);

    /* --- a folder of checkpoints: rank 0, while the run holds the folder's lock (list: always) --- */

    /* Names of what was published here, whole or damaged since; nothing temporary or superseded. */
    clt_status (*list)(const char *folder, clt_strv *names);
    /* Completes what a crash interrupted. Then each name is a checkpoint or does not exist. */
    clt_status (*recover)(const char *folder);
    /* Removes what killed saves left, whether or not a checkpoint has its name; nothing that a manifest
     * names, be it a checkpoint's or a superseded one's. The first file that cannot be removed ends it. */
    clt_status (*clean)(const char *folder, const clt_ckpt_cleaning *c);
    /* Deletes a checkpoint so that a crash in between leaves nothing that looks like a damaged one. */
    clt_status (*remove)(const char *folder, const char *name, const char *run_id);
    /* Gives a checkpoint a name that is never read: NAME.superseded.RUNID, with -2, -3, ... if that exists.
     * *to is its new path, to be freed. The caller syncs the folder. */
    clt_status (*set_aside)(const char *folder, const char *name, const char *run_id, char **to);
} clt_ckpt_commit_ops;

/* A save: created on every rank, for its paths. The functions of `ops` for a save run on rank 0. */
struct clt_ckpt_commit {
    const clt_ckpt_commit_ops *ops;
    const char *folder, *run_id; /* borrowed */
    bool overwrite;
    char *name, *final, *path; /* FOLDER/NAME and ops->path */
    unsigned save; /* the number of this save, the same on every rank: no other save of the run has it */
    /* the strategy's */
    bool placed;   /* NAME is the new checkpoint, and retract can undo that */
    bool replaced; /* and the old checkpoint is at `path` */
    bool open;     /* the manifest was sent, and whether it arrived is unknown */
    char *moved;   /* where the old checkpoint is if it has neither NAME nor `path`; else NULL */
    void *old;     /* what it keeps of the old checkpoint; freed with clt_free */
    size_t old_bytes;
    char version[256]; /* of the manifest: the old one, then the published one; "": there is none */
};

/* The strategy for a folder. CLT_BAD_CONFIG: the folder's storage supports no strategy. */
clt_status clt_ckpt_commit_of(const char *folder, const clt_ckpt_commit_ops **out);
clt_ckpt_commit *clt_ckpt_commit_create(const clt_ckpt_commit_ops *ops, const char *folder, const char *name,
                                        const char *run_id, bool overwrite);
void clt_ckpt_commit_destroy(clt_ckpt_commit *c); /* NULL is allowed */

/* publish, unless the lock (NULL: not checked) is lost; reads the manifest back and checks the data files'
 * sizes; retract where that fails. */
clt_status clt_ckpt_commit_publish(clt_ckpt_commit *c, const clt_run_lock *lock, const char *manifest,
                                   size_t bytes);
/* Removes what killed saves left in the folder, and says so. What cannot be removed now is tried again by the
 * next run. */
void clt_ckpt_commit_clean(const clt_ckpt_commit_ops *how, const char *folder, const char *latest);
/* After a save was published: writes the folder's hint file; removes valid checkpoints but for the `keep`
 * newest (negative: all stay; the two newest and this one always do), the oldest by batch first. Failing does
 * not harm the checkpoint: a warning. */
void clt_ckpt_commit_hint(const clt_ckpt_commit *c, const char *latest);
void clt_ckpt_commit_prune(const clt_ckpt_commit *c, int64_t keep);

/* For begin: CLT_IO with a message if `path` exists and `overwrite` is off, or if it is a folder with other
 * files than a checkpoint's: a run or what a user keeps there. Files that begin with `own` (NULL: none) are
 * this save's and do not count. */
clt_status clt_ckpt_check_name(const char *path, bool exists, bool overwrite, const char *own);

/* Names with ".tmp." or ".superseded." are not checkpoints, whatever the strategy. */
bool clt_ckpt_name_is_special(const char *name);

extern const clt_ckpt_commit_ops clt_ckpt_rename, clt_ckpt_object;

#endif
