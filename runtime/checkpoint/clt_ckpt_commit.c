#include "runtime/checkpoint/clt_ckpt_commit.h"

#include <string.h>

#include "runtime/base/clt_io.h"

clt_status clt_ckpt_commit_of(const char *folder, const clt_ckpt_commit_ops **out) {
    static const clt_ckpt_commit_ops *const strategies[] = {&clt_ckpt_rename};
    for (size_t i = 0; i < CLT_COUNT_OF(strategies); i++)
        if (clt_io_can(folder, strategies[i]->needs)) {
            *out = strategies[i];
            return CLT_OK;
        }
    return clt_io_require(folder, clt_ckpt_rename.needs, "a folder of checkpoints");
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
    clt_free(c);
}

bool clt_ckpt_name_is_special(const char *name) {
    return strstr(name, ".tmp.") || strstr(name, ".superseded.");
}
