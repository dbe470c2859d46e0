/* clt_ckpt_commit: how a save becomes a checkpoint, in one step that a crash cannot tear. Writer, reader and
 * store call a strategy through this table and do not know which one they have; clt_ckpt_commit_of picks it
 * by what the storage of the folder can do.
 *
 * `rename` (clt_ckpt_rename.c), for file systems: the files are written below NAME.tmp.RUNID and made
 * durable; renaming that folder to NAME is the commit.
 *
 * A strategy for object stores, which cannot rename, has to provide the following.
 * - path: FOLDER/NAME. file: a name that holds RUNID, so that no save writes over the data of another one.
 * - begin: makes nothing. It remembers the ETag of NAME/manifest.json when NAME is overwritten.
 * - publish: puts manifest.json last and in one conditional PUT: If-None-Match: * for a new name, If-Match
 * with the ETag of begin to overwrite. What began without the run's lock, or lost it, fails. A condition that
 *   fails is CLT_IO, and the checkpoint that is there stays as it is.
 * - retract: puts the old manifest back, or deletes the new one, on condition of the ETag that publish got.
 * - discard: deletes what this save wrote and no manifest names. finish: deletes what the replaced checkpoint
 *   had. remove: deletes the manifest first, then the data.
 * - list: the names below FOLDER that hold a manifest.json; data without one is a save under way.
 * - clean: aborts multipart uploads and deletes data that no manifest names, of runs that ended.
 * - recover: nothing; a PUT is whole or absent. set_aside: copies the manifest to NAME.superseded.RUNID and
 *   deletes NAME/manifest.json; the data stays.
 * The pipe writes a data file in any order and reads it back before it is closed, which such storage cannot
 * (CLT_IO_CAN_WRITE_RANGES): its files have to be written in order and read back after they are closed. */
#ifndef CLT_CKPT_COMMIT_H
#define CLT_CKPT_COMMIT_H

#include "runtime/base/clt_base.h"

#define CLT_MANIFEST "manifest.json"

typedef struct clt_ckpt_commit clt_ckpt_commit;

typedef struct {
    const char *name;
    unsigned needs; /* clt_io_capability of the folder's storage, or'ed */

    /* --- one save: path and file on every rank, the others on rank 0, in this order --- */

    /* Below which path the ranks write, and under which name each; to be freed. */
    char *(*path)(const char *final, const char *run_id);
    char *(*file)(int rank, const char *run_id);
    /* Makes c->path ready to be written to, without anything in it. CLT_IO when NAME is taken and may not be
     * overwritten. */
    clt_status (*begin)(clt_ckpt_commit *c);
    /* All data files are durable. Makes the manifest durable, then NAME the new checkpoint. */
    clt_status (*publish)(clt_ckpt_commit *c, const char *manifest, size_t bytes);
    /* After publish failed, or what it published cannot be read: NAME is again what it was before. What
     * cannot be restored is named in a warning, and in c->moved when the old checkpoint has another name now.
     */
    void (*retract)(clt_ckpt_commit *c);
    /* Ends a save that was not published, or was retracted: removes what it wrote. Prints nothing. */
    void (*discard)(clt_ckpt_commit *c);
    /* Ends a save that was published and read back: removes what NAME was before. */
    clt_status (*finish)(clt_ckpt_commit *c);

    /* --- a folder of checkpoints: rank 0, while the run holds the folder's lock (list: always) --- */

    /* Names of what was published here, whole or damaged since; nothing temporary or superseded. */
    clt_status (*list)(const char *folder, clt_strv *names);
    /* Ends what a crash interrupted half-way, so that every name is a checkpoint or none. */
    clt_status (*recover)(const char *folder);
    /* Removes what killed saves left; `latest` is the name of the hint file. */
    void (*clean)(const char *folder, const char *latest);
    /* Deletes a checkpoint so that a crash in between leaves nothing that looks like a damaged one. */
    clt_status (*remove)(const char *folder, const char *name, const char *run_id);
    /* Renames a checkpoint to one that is never read (NAME.superseded.RUNID); *to is its new path, to be
     * freed. Durable after the caller synced the folder. */
    clt_status (*set_aside)(const char *folder, const char *name, const char *run_id, char **to);
} clt_ckpt_commit_ops;

/* A save on rank 0. */
struct clt_ckpt_commit {
    const clt_ckpt_commit_ops *ops;
    const char *folder, *run_id; /* borrowed */
    bool overwrite;
    char *name, *final, *path; /* FOLDER/NAME and ops->path */
    /* the strategy's */
    bool placed;   /* NAME is the new checkpoint */
    bool replaced; /* and what was NAME before is at `path` */
    char *moved;   /* where what was NAME before is now, if it could get neither NAME nor be removed */
};

/* The strategy for a folder. CLT_BAD_CONFIG: its storage can do none. */
clt_status clt_ckpt_commit_of(const char *folder, const clt_ckpt_commit_ops **out);
clt_ckpt_commit *clt_ckpt_commit_create(const clt_ckpt_commit_ops *ops, const char *folder, const char *name,
                                        const char *run_id, bool overwrite);
void clt_ckpt_commit_destroy(clt_ckpt_commit *c); /* NULL is allowed */

/* Names with ".tmp." or ".superseded." are not checkpoints, whatever the strategy. */
bool clt_ckpt_name_is_special(const char *name);

extern const clt_ckpt_commit_ops clt_ckpt_rename;

#endif
