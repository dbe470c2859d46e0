/* Names of runs, folders and checkpoints. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_config_internal.h"

static const char *own(clt_config *c, char *s) {
    clt_strv_add_owned(&c->strings, s);
    return s;
}

/* {rank} and {local_rank} are 0 and a trailing .pt is gone: checkpoints belong to no rank. */
static const char *checkpoint_name(clt_config *c, const char *s) {
    clt_str out = {0};
    clt_str_add(&out, "");
    while (*s) {
        size_t n = !strncmp(s, "{rank}", 6) ? 6 : !strncmp(s, "{local_rank}", 12) ? 12 : 0;
        clt_str_addn(&out, n ? "0" : s, 1);
        s += n ? n : 1;
    }
    if (out.len > 3 && strcmp(out.s + out.len - 3, ".pt") == 0) out.s[out.len - 3] = 0;
    return own(c, out.s);
}

static const char *with_run_name(clt_config *c, const char *s) {
    clt_str out = {0};
    clt_str_add(&out, "");
    while (*s) {
        bool here = !strncmp(s, "{run_name}", 10);
        if (here)
            clt_str_add(&out, c->run_name);
        else
            clt_str_addn(&out, s, 1);
        s += here ? 10 : 1;
    }
    return own(c, out.s);
}

static clt_status check_paths(clt_schema_reader *r, const clt_config *c) {
    const struct {
        const char *key, *path;
    } paths[] = {{"save_folder", c->save_folder}, {"load_path", c->load_path}};
    for (size_t i = 0; i < CLT_COUNT_OF(paths); i++) {
        char *why = paths[i].path ? clt_io_unsupported(paths[i].path) : NULL;
        if (!why) continue;
        clt_status st = clt_schema_fail(r, paths[i].key, "is '%.80s': %s", paths[i].path, why);
        clt_free(why);
        return st;
    }
    const struct {
        const char *key, *name;
    } names[] = {{"save_filename", c->save_filename}, {"save_latest_filename", c->save_latest_filename}};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        if (!*names[i].name || strchr(names[i].name, '/') || names[i].name[0] == '.')
            return clt_schema_fail(r, names[i].key, "is '%.80s': it must be a plain name inside save_folder",
                                   names[i].name);
    return CLT_OK;
}

/* Nothing is overwritten: with a name that repeats the second checkpoint of a run would fail. */
static clt_status check_filename(clt_schema_reader *r, const clt_config *c) {
    const char *s = c->save_filename;
    bool counts =
        strstr(s, "{batch}") || strstr(s, "{sample}") || strstr(s, "{token}") || strstr(s, "{total_wct}");
    bool epoch = strstr(s, "{epoch}") != NULL;
    if (!c->save_folder || c->save_overwrite || counts ||
        (epoch && (c->save_interval.unit == CLT_TIME_EPOCH || strstr(s, "_in_epoch}"))))
        return CLT_OK;
    return clt_schema_fail(
        r, "save_filename",
        "is '%.80s', the same for several checkpoints: add {batch}, or set save_overwrite: true", s);
}

clt_status clt_config_resolve_names(clt_schema_reader *r, clt_config_builder *b) {
    enum { LONGEST = 200 };
    clt_config *c = &b->c;
    if (!c->run_name || !*c->run_name) {
        const char *env = clt_env(CLT_ENV_RUN_NAME);
        c->run_name = own(c, clt_strdup(env ? env : "llm"));
    }
    if (strchr(c->run_name, '/') || c->run_name[0] == '.')
        return clt_schema_fail(
            r, "run_name", "is '%.80s': it names a folder, so it has no '/' and no leading dot", c->run_name);
    if (strlen(c->run_name) > LONGEST)
        return clt_schema_fail(r, "run_name", "has more than %d characters: it names a folder", LONGEST);
    if (c->save_folder) c->save_folder = with_run_name(c, c->save_folder);
    if (c->load_path) c->load_path = checkpoint_name(c, with_run_name(c, c->load_path));
    c->save_filename = checkpoint_name(c, with_run_name(c, c->save_filename));
    c->save_latest_filename = checkpoint_name(c, with_run_name(c, c->save_latest_filename));
    bool resume = c->save_folder && !c->save_overwrite && !c->save_weights_only;
    c->autoresume = b->autoresume < 0 ? resume : b->autoresume;
    if (b->autoresume == 1 && !c->save_folder) return clt_schema_fail(r, "autoresume", "needs a save_folder");
    CLT_TRY(check_paths(r, c));
    return check_filename(r, c);
}
