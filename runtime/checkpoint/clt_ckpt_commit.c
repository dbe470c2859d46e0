#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <string.h>

#include "runtime/base/clt_io.h"

clt_status clt_ckpt_commit_of(const char *folder, const clt_ckpt_commit_ops **out) {
    static const clt_ckpt_commit_ops *const strategies[] = {&clt_ckpt_rename, &clt_ckpt_object};
    for (size_t i = 0; i < CLT_COUNT_OF(strategies); i++)
        if (clt_io_can(folder, strategies[i]->needs)) {
            *out = strategies[i];
            return CLT_OK;
        }
    const bool store = clt_io_can(folder, CLT_IO_APPEARS_WHOLE);
    return clt_io_require(folder, store ? clt_ckpt_object.needs : clt_ckpt_rename.needs,
                          "a folder of checkpoints");
}

clt_ckpt_commit *clt_ckpt_commit_create(const clt_ckpt_commit_ops *ops, const char *folder, const char *name,
                                        const char *run_id, bool overwrite) {
    clt_ckpt_commit *c = clt_calloc(1, sizeof *c);
    *c = (clt_ckpt_commit){.ops = ops, .folder = folder, .run_id = run_id, .overwrite = overwrite};
    c->name = clt_strdup(name);
    c->final = clt_path_join(folder, name);
    c->path = ops->path(c->final, run_id);
    return c;
}

void clt_ckpt_commit_destroy(clt_ckpt_commit *c) {
    if (!c) return;
    clt_free(c->name);
    clt_free(c->final);
    clt_free(c->path);
    clt_free(c->moved);
    clt_free(c->old);
    clt_free(c);
}

bool clt_ckpt_name_is_special(const char *name) {
    return strstr(name, ".tmp.") || strstr(name, ".superseded.");
}

/* Overwriting deletes what is there. */
static clt_status check_overwritable(const char *path, const char *own) {
    clt_strv names = {0};
    clt_status st = clt_io_list(path, &names);
    bool usable = false, others = false;
    for (size_t i = 0; i < names.n; i++) {
        if (own && !strncmp(names.v[i], own, strlen(own))) continue;
        others = true;
        usable |= !strcmp(names.v[i], CLT_MANIFEST) || !strncmp(names.v[i], "data.", 5);
    }
    clt_strv_free(&names);
    if (st != CLT_OK || usable || !others) return st;
    return clt_error(
        CLT_IO, "%s is a folder but not a checkpoint, and is not overwritten; choose another name", path);
}

clt_status clt_ckpt_check_name(const char *path, bool exists, bool overwrite, const char *own) {
    if (exists && !overwrite)
        return clt_error(CLT_IO,
                         "%s exists already and is not overwritten; choose another name or folder, or allow "
                         "it (save_overwrite: true, ckpt import --overwrite)",
                         path);
    return clt_io_is_dir(path) ? check_overwritable(path, own) : CLT_OK;
}

/* --- the end of a save --- */

static clt_status check_lock(const char *folder, const clt_run_lock *lock) {
    if (clt_run_lock_is_held(lock)) return CLT_OK;
    return clt_error(CLT_IO,
                     "%s: this run has lost the lock of the folder (run.lock), because the storage was not "
                     "reachable in time; another run may be writing there",
                     folder);
}

clt_status clt_ckpt_commit_publish(clt_ckpt_commit *c, const clt_run_lock *lock, const char *manifest,
                                   size_t bytes) {
    clt_manifest *m = NULL;
    CLT_TRY(check_lock(c->folder, lock));
    clt_status st = c->ops->publish(c, manifest, bytes);
    if (st == CLT_OK) st = clt_manifest_load(c->final, true, &m);
    if (st != CLT_OK) c->ops->retract(c);
    clt_manifest_free(m);
    return st;
}

static void tell_removed(void *ctx, const clt_ckpt_waste *waste) {
    (void)ctx;
    clt_info("removed %s (%s), left by a run that was stopped during a save", waste->path, waste->what);
}

void clt_ckpt_commit_clean(const clt_ckpt_commit_ops *how, const char *folder, const char *latest) {
    const clt_ckpt_cleaning c = {
        .latest = latest, .uploads_age = CLT_CKPT_UPLOADS_AGE, .removed = tell_removed};
    (void)how->clean(folder, &c);
}

void clt_ckpt_commit_hint(const clt_ckpt_commit *c, const char *latest) {
    char *hint = clt_path_join(c->folder, latest), *text = clt_format("%s\n", c->name);
    if (clt_io_write_atomic(hint, text, strlen(text)) != CLT_OK) clt_warn("%s could not be written", hint);
    clt_free(text);
    clt_free(hint);
}

void clt_ckpt_commit_prune(const clt_ckpt_commit *c, int64_t keep) {
    clt_ckpt_info *list = NULL;
    int n = 0;
    if (keep < 0 || clt_ckpt_scan(c->folder, &list, &n) != CLT_OK) return;
    int valid = 0;
    while (valid < n && list[valid].valid) valid++;
    for (int i = valid - 1; i >= CLT_MAX(keep, 2); i--) {
        if (!strcmp(list[i].name, c->name)) continue;
        if (c->ops->remove(c->folder, list[i].name, c->run_id) != CLT_OK) {
            clt_warn("%s could not be removed; it is kept", list[i].path);
            break;
        }
        clt_info("removed %s", list[i].path);
    }
    clt_ckpt_scan_free(list, n);
}
