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

/* Whether a run writes this file of its save_folder itself. */
static bool is_of_the_run(const char *name) {
    static const char *const files[] = {"metrics.jsonl", "log.txt", "config.yaml", "run.lock",
                                        "predictions.json"};
    for (size_t i = 0; i < CLT_COUNT_OF(files); i++)
        if (!strcmp(name, files[i])) return true;
    return false;
}

static clt_status check_paths(clt_schema_reader *r, const clt_config *c) {
    const struct {
        const char *key, *path;
    } paths[] = {{"save_folder", c->save_folder}, {"load_path", c->load_path}, {"cltrain.mirror", c->mirror}};
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
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        if (!*names[i].name || strchr(names[i].name, '/') || names[i].name[0] == '.')
            return clt_schema_fail(r, names[i].key, "is '%.80s': it must be a plain name inside save_folder",
                                   names[i].name);
        if (is_of_the_run(names[i].name))
            return clt_schema_fail(r, names[i].key,
                                   "is '%s': a run has a file of its own with this name in save_folder",
                                   names[i].name);
    }
    return CLT_OK;
}

/* A path without what changes nothing: file://, ./ before it. *n: its length without slashes at the end. */
static const char *plain_path(const char *path, size_t *n) {
    if (!strncmp(path, "file:///", 8)) path += 7;
    while (!strncmp(path, "./", 2)) path += 2;
    for (*n = strlen(path); *n > 1 && path[*n - 1] == '/';) --*n;
    return path;
}

/* Whether `path` is the folder or something below it, as far as their texts tell. */
static bool is_below(const char *path, const char *folder) {
    size_t n, m;
    const char *a = plain_path(path, &n), *b = plain_path(folder, &m);
    return n >= m && !strncmp(a, b, m) && (n == m || a[m] == '/');
}

/* A mirror is a second place: on storage of its own, or in another folder. */
static clt_status check_mirror(clt_schema_reader *r, const clt_config *c) {
    static const char key[] = "cltrain.mirror";
    if (!c->mirror) return CLT_OK;
    if (!c->save_folder)
        return clt_schema_fail(r, key, "needs a save_folder: checkpoints are saved there first");
    if (!clt_io_can(c->save_folder, CLT_IO_CAN_APPEND))
        return clt_config_fail_both(r, key, "save_folder",
                                    "a mirror follows a save_folder on a file system; this one is in an "
                                    "object store already");
    if (is_below(c->mirror, c->save_folder) || is_below(c->save_folder, c->mirror))
        return clt_config_fail_both(r, key, "save_folder",
                                    "neither may be the other one or below it: name another place");
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
    if (c->mirror) c->mirror = with_run_name(c, c->mirror);
    if (c->load_path) c->load_path = checkpoint_name(c, with_run_name(c, c->load_path));
    c->save_filename = checkpoint_name(c, with_run_name(c, c->save_filename));
    c->save_latest_filename = checkpoint_name(c, with_run_name(c, c->save_latest_filename));
    bool resume = c->save_folder && !c->save_overwrite && !c->save_weights_only;
    c->autoresume = b->autoresume < 0 ? resume : b->autoresume;
    if (b->autoresume == 1 && !c->save_folder) return clt_schema_fail(r, "autoresume", "needs a save_folder");
    CLT_TRY(check_paths(r, c));
    CLT_TRY(check_mirror(r, c));
    return check_filename(r, c);
}
