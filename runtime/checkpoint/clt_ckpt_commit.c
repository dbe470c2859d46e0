#include "runtime/checkpoint/clt_ckpt_commit.h"

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
static clt_status check_overwritable(const char *path) {
    clt_strv names = {0};
    clt_status st = clt_io_list(path, &names);
    bool usable = names.n == 0;
    for (size_t i = 0; i < names.n; i++)
        usable |= !strcmp(names.v[i], CLT_MANIFEST) || !strncmp(names.v[i], "data.", 5);
    clt_strv_free(&names);
    if (st != CLT_OK || usable) return st;
    return clt_error(
        CLT_IO, "%s is a folder but not a checkpoint, and is not overwritten; choose another name", path);
}

clt_status clt_ckpt_check_name(const char *path, bool exists, bool overwrite) {
    if (exists && !overwrite)
        return clt_error(CLT_IO,
                         "%s exists already and is not overwritten; choose another name or folder, or allow "
                         "it (save_overwrite: true, ckpt import --overwrite)",
                         path);
    return clt_io_is_dir(path) ? check_overwritable(path) : CLT_OK;
}
