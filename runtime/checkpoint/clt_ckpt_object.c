/* The commit on an object store, which has no renames: a name is a checkpoint when NAME/manifest.json exists.
 * The data files lie beside it under names that belong to one save. What is written is never changed, only
 * the manifest is replaced, in one step, on condition that nobody else has replaced it. Data that no manifest
 * names are nobody's checkpoint. A superseded checkpoint is its manifest, kept as NAME.superseded.RUNID; its
 * data stay below NAME. */
#include <errno.h>
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"

#define DATA "data."
#define SUPERSEDED ".superseded."

static char *path_of(const char *final, const char *run_id) {
    (void)run_id; /* the files' names have it */
    return clt_strdup(final);
}

static char *file_prefix(const clt_ckpt_commit *c) {
    return clt_format(DATA "%s.%u.", c->run_id, c->save);
}

static char *file_name(const clt_ckpt_commit *c, int rank) {
    return clt_format(DATA "%s.%u.%05d.bin", c->run_id, c->save, rank);
}

static char *manifest_of(const char *path) {
    return clt_path_join(path, CLT_MANIFEST);
}

/* --- data that no manifest names --- */

static bool has(const clt_strv *names, const char *name) {
    for (size_t i = 0; i < names->n; i++)
        if (!strcmp(names->v[i], name)) return true;
    return false;
}

static clt_status add_files(const char *text, size_t bytes, const char *path, clt_strv *files) {
    clt_manifest *m;
    CLT_TRY(clt_manifest_parse(text, bytes, path, &m));
    for (size_t i = 0; i < m->files; i++) clt_strv_add(files, m->file[i].name);
    clt_manifest_free(m);
    return CLT_OK;
}

/* The data files that the manifest at `path` names, if it exists. */
static clt_status add_named(const char *path, clt_strv *files) {
    clt_io_info info;
    char *text;
    size_t bytes;
    CLT_TRY(clt_io_stat(path, &info));
    if (info.kind != CLT_IO_FILE) return CLT_OK;
    CLT_TRY(clt_io_read_all(path, CLT_MANIFEST_LIMIT, &text, &bytes));
    clt_status st = add_files(text, bytes, path, files);
    clt_free(text);
    return st;
}

static bool is_superseded(const char *entry, const char *name) {
    size_t n = strlen(name);
    return !strncmp(entry, name, n) && !strncmp(entry + n, SUPERSEDED, strlen(SUPERSEDED));
}

/* What the manifest of NAME and the superseded ones name. */
static clt_status named_files(const char *folder, const char *name, clt_strv *files) {
    char *final = clt_path_join(folder, name), *manifest = manifest_of(final);
    clt_strv all = {0};
    clt_status st = add_named(manifest, files);
    if (st == CLT_OK) st = clt_io_list(folder, &all);
    for (size_t i = 0; i < all.n && st == CLT_OK; i++) {
        if (!is_superseded(all.v[i], name)) continue;
        char *path = clt_path_join(folder, all.v[i]);
        st = add_named(path, files);
        clt_free(path);
    }
    clt_strv_free(&all);
    clt_free(manifest);
    clt_free(final);
    return st;
}

static clt_status delete_file(const char *path) {
    int e = clt_io_try_unlink(path);
    if (!e || e == ENOENT) return CLT_OK;
    return clt_error(CLT_IO, "cannot remove %s: %s", path, clt_io_explain(path, e));
}

/* Deletes those of `files` that no manifest of NAME names. A manifest that cannot be read, or is of a later
 * format, protects all of them. */
static clt_status sweep(const char *folder, const char *name, const clt_strv *files) {
    clt_strv named = {0};
    clt_status st = named_files(folder, name, &named);
    for (size_t i = 0; i < files->n && st == CLT_OK; i++) {
        if (has(&named, files->v[i])) continue;
        char *file = clt_format("%s/%s", name, files->v[i]), *path = clt_path_join(folder, file);
        st = delete_file(path);
        clt_free(path);
        clt_free(file);
    }
    clt_strv_free(&named);
    return st;
}

/* The files below `path` whose names begin with `prefix`. */
static clt_status list_data(const char *path, const char *prefix, clt_strv *files) {
    clt_strv all = {0};
    clt_status st = clt_io_list(path, &all);
    for (size_t i = 0; i < all.n && st == CLT_OK; i++)
        if (!strncmp(all.v[i], prefix, strlen(prefix))) clt_strv_add(files, all.v[i]);
    clt_strv_free(&all);
    return st;
}

/* --- a save --- */

static clt_status keep_old(clt_ckpt_commit *c, const char *manifest) {
    char *text;
    CLT_TRY(clt_io_read_all(manifest, CLT_MANIFEST_LIMIT, &text, &c->old_bytes));
    c->old = text;
    return CLT_OK;
}

static clt_status begin(clt_ckpt_commit *c) {
    char *manifest = manifest_of(c->final), *own = file_prefix(c);
    int e = clt_io_version(manifest, c->version);
    clt_status st = CLT_OK;
    if (e && e != ENOENT)
        st = clt_error(CLT_IO, "cannot stat %s: %s", manifest, clt_io_explain(manifest, e));
    else
        st = clt_ckpt_check_name(c->final, !e || clt_io_is_file(c->final), c->overwrite, own);
    if (e) c->version[0] = 0;
    if (st == CLT_OK && !e) st = keep_old(c, manifest);
    clt_free(own);
    clt_free(manifest);
    return st;
}

/* Whether the manifest is the one that was sent, although the answer was a failure: the answer was lost, or a
 * repeated request met what the first one had done. */
static bool arrived(clt_ckpt_commit *c, const char *path, const char *manifest, size_t bytes) {
    char version[sizeof c->version], *text = NULL;
    size_t have = 0;
    clt_error_quiet(true);
    bool yes = !clt_io_version(path, version) &&
               clt_io_read_all(path, CLT_MANIFEST_LIMIT, &text, &have) == CLT_OK && have == bytes &&
               !memcmp(text, manifest, bytes);
    clt_error_quiet(false);
    clt_free(text);
    if (yes) memcpy(c->version, version, sizeof version);
    return yes;
}

static clt_status publish(clt_ckpt_commit *c, const char *manifest, size_t bytes) {
    char *path = manifest_of(c->final);
    int e = clt_io_replace(path, manifest, bytes, c->version, c->version);
    char *why = e ? clt_strdup(clt_io_explain(path, e)) : NULL;
    clt_status st = CLT_OK;
    c->placed = !e || arrived(c, path, manifest, bytes);
    c->open = !c->placed && e != EEXIST && e != ESTALE;
    if (c->open)
        st = clt_error(CLT_IO, "cannot write %s: %s", path, why);
    else if (!c->placed)
        st = clt_error(CLT_IO,
                       "%s appeared or changed during the save and is not overwritten: another run "
                       "writes to this folder",
                       path);
    clt_free(why);
    clt_free(path);
    return st;
}

/* Only the manifest that publish wrote is withdrawn. */
static int remove_published(clt_ckpt_commit *c, const char *path) {
    char now[sizeof c->version];
    int e = clt_io_version(path, now);
    if (!e && strcmp(now, c->version) != 0) e = ESTALE;
    return e ? e : clt_io_try_unlink(path);
}

static void retract(clt_ckpt_commit *c) {
    if (!c->placed) return;
    char *path = manifest_of(c->final);
    int e = c->old ? clt_io_replace(path, c->old, c->old_bytes, c->version, NULL) : remove_published(c, path);
    if (e) clt_warn("%s: the failed save could not be withdrawn: %s", c->final, clt_io_explain(path, e));
    clt_free(path);
}

/* Where the manifest may still arrive, its data stay for the next run's clean. */
static void discard(clt_ckpt_commit *c) {
    if (c->open) return;
    char *prefix = file_prefix(c);
    clt_strv files = {0};
    clt_error_quiet(true);
    if (list_data(c->final, prefix, &files) == CLT_OK && files.n) sweep(c->folder, c->name, &files);
    clt_error_quiet(false);
    clt_strv_free(&files);
    clt_free(prefix);
}

static clt_status finish(clt_ckpt_commit *c) {
    clt_strv files = {0};
    if (!c->old) return CLT_OK;
    clt_status st = add_files(c->old, c->old_bytes, c->final, &files);
    if (st == CLT_OK) st = sweep(c->folder, c->name, &files);
    clt_strv_free(&files);
    return st;
}

/* --- a folder --- */

/* What cannot be examined counts as present: a checkpoint must not be skipped because of a transient error.
 */
static bool may_be_checkpoint(const char *folder, const char *name) {
    char *path = clt_path_join(folder, name), *manifest = manifest_of(path);
    clt_io_info info;
    int e = clt_io_try_stat(manifest, &info);
    clt_free(manifest);
    clt_free(path);
    return e != 0 || info.kind == CLT_IO_FILE;
}

static clt_status list(const char *folder, clt_strv *names) {
    clt_strv all = {0};
    clt_status st = clt_io_list(folder, &all);
    for (size_t i = 0; i < all.n && st == CLT_OK; i++)
        if (!clt_ckpt_name_is_special(all.v[i]) && may_be_checkpoint(folder, all.v[i]))
            clt_strv_add(names, all.v[i]);
    clt_strv_free(&all);
    return st;
}

static clt_status recover(const char *folder) {
    (void)folder; /* a manifest is there with all its contents or not at all */
    return CLT_OK;
}

/* What a save writes: data.RUNID.SAVE.RANK.bin. Other files may be anybody's. */
static bool is_data(const char *name) {
    static const char digits[] = "0123456789", hex[] = "0123456789abcdef", end[] = ".bin";
    enum { ID = CLT_RUN_ID_BYTES - 1 };
    if (strncmp(name, DATA, strlen(DATA)) != 0) return false;
    name += strlen(DATA);
    if (strspn(name, hex) != ID || name[ID] != '.') return false;
    name += ID + 1;
    const size_t save = strspn(name, digits);
    if (!save || name[save] != '.') return false;
    name += save + 1;
    const size_t rank = strspn(name, digits);
    return rank && !strcmp(name + rank, end);
}

static clt_status list_saved(const char *path, clt_strv *files) {
    clt_strv all = {0};
    clt_status st = list_data(path, DATA, &all);
    for (size_t i = 0; i < all.n && st == CLT_OK; i++)
        if (is_data(all.v[i])) clt_strv_add(files, all.v[i]);
    clt_strv_free(&all);
    return st;
}

/* Whether all are of one save: as far as the run's id and the number, names are equal. */
static bool of_one_save(const clt_strv *files) {
    for (size_t i = 1; i < files->n; i++) {
        const char *a = files->v[0], *b = files->v[i], *end = strrchr(a, '.');
        while (*--end != '.') continue; /* before the rank */
        if (strncmp(a, b, (size_t)(end + 1 - a)) != 0) return false;
    }
    return true;
}

static clt_status clean_file(const char *path, const clt_ckpt_cleaning *c) {
    clt_io_info info = {.kind = CLT_IO_ABSENT};
    if (c->removed) CLT_TRY(clt_io_stat(path, &info));
    if (!c->dry_run) CLT_TRY(delete_file(path));
    const clt_ckpt_waste w = {path, "data without a manifest", info.bytes};
    if (c->removed) c->removed(c->ctx, &w);
    return CLT_OK;
}

/* Removes those of `files` that no manifest of NAME names. */
static clt_status clean_files(const char *folder, const char *name, const clt_strv *files,
                              const clt_ckpt_cleaning *c) {
    clt_strv named = {0};
    char *path = clt_path_join(folder, name);
    clt_error_quiet(true); /* a checkpoint that is not usable is named when it is looked for */
    clt_status st = named_files(folder, name, &named);
    clt_error_quiet(false);
    const bool readable = st == CLT_OK;
    if (st == CLT_BAD_DATA || st == CLT_IO) {
        if (c->kept) c->kept(c->ctx, path, clt_last_error());
        st = CLT_OK;
    }
    for (size_t i = 0; i < files->n && readable && st == CLT_OK; i++) {
        char *file = clt_path_join(path, files->v[i]);
        if (!has(&named, files->v[i])) st = clean_file(file, c);
        clt_free(file);
    }
    clt_strv_free(&named);
    clt_free(path);
    return st;
}

static clt_status clean_name(const char *folder, const char *name, const clt_ckpt_cleaning *c) {
    char *path = clt_path_join(folder, name), *manifest = manifest_of(path);
    clt_strv files = {0};
    clt_status st = list_saved(path, &files);
    /* The usual checkpoint is left alone without reading its manifest, which may be large. */
    if (st == CLT_OK && files.n && !(of_one_save(&files) && clt_io_is_file(manifest)))
        st = clean_files(folder, name, &files, c);
    clt_strv_free(&files);
    clt_free(manifest);
    clt_free(path);
    return st;
}

typedef struct {
    const char *folder;
    const clt_ckpt_cleaning *c;
} upload_report;

static void report_upload(void *ctx, const clt_io_unfinished *u) {
    const upload_report *r = ctx;
    char age[32], *path = clt_path_join(r->folder, u->name);
    char *what = clt_format("upload, begun %s ago", clt_human_seconds(u->age, age));
    const clt_ckpt_waste w = {path, what, u->bytes};
    r->c->removed(r->c->ctx, &w);
    clt_free(what);
    clt_free(path);
}

static clt_status clean(const char *folder, const clt_ckpt_cleaning *c) {
    clt_strv names = {0};
    upload_report r = {folder, c};
    int uploads;
    clt_status cleaned =
        clt_io_clean(folder, c->uploads_age, c->dry_run, c->removed ? report_upload : NULL, &r, &uploads);
    clt_status st = clt_io_list(folder, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++)
        if (!clt_ckpt_name_is_special(names.v[i]) && strcmp(names.v[i], c->latest) != 0)
            st = clean_name(folder, names.v[i], c);
    clt_strv_free(&names);
    return st == CLT_OK ? cleaned : st; /* who may not list uploads may still delete objects */
}

static clt_status remove_checkpoint(const char *folder, const char *name, const char *run_id) {
    char *path = clt_path_join(folder, name), *manifest = manifest_of(path);
    clt_strv files = {0};
    (void)run_id;
    clt_status st = add_named(manifest, &files);
    if (st == CLT_OK) st = clt_io_unlink(manifest);
    if (st == CLT_OK) st = sweep(folder, name, &files);
    clt_strv_free(&files);
    clt_free(manifest);
    clt_free(path);
    return st;
}

/* Under the first name that is free; *to is it. */
static clt_status copy_aside(const char *path, const char *run_id, const char *text, size_t bytes,
                             char **to) {
    char *aside = clt_format("%s" SUPERSEDED "%s", path, run_id);
    int e;
    for (int i = 2; (e = clt_io_replace(aside, text, bytes, "", NULL)) == EEXIST; i++) {
        clt_free(aside);
        aside = clt_format("%s" SUPERSEDED "%s-%d", path, run_id, i);
    }
    *to = aside;
    return e ? clt_error(CLT_IO, "cannot write %s: %s", aside, clt_io_explain(aside, e)) : CLT_OK;
}

static clt_status set_aside(const char *folder, const char *name, const char *run_id, char **to) {
    char *path = clt_path_join(folder, name), *manifest = manifest_of(path), *text = NULL, *aside = NULL;
    size_t bytes;
    clt_status st = clt_io_read_all(manifest, CLT_MANIFEST_LIMIT, &text, &bytes);
    if (st == CLT_OK) st = copy_aside(path, run_id, text, bytes, &aside);
    if (st == CLT_OK) st = clt_io_unlink(manifest);
    if (st == CLT_OK)
        *to = aside;
    else
        clt_free(aside);
    clt_free(text);
    clt_free(manifest);
    clt_free(path);
    return st;
}

const clt_ckpt_commit_ops clt_ckpt_object = {
    .name = "object",
    .needs = CLT_IO_CAN_READ_RANGES | CLT_IO_CAN_CREATE_NEW | CLT_IO_APPEARS_WHOLE | CLT_IO_HAS_VERSIONS,
    .path = path_of,
    .file = file_name,
    .begin = begin,
    .publish = publish,
    .retract = retract,
    .discard = discard,
    .finish = finish,
    .list = list,
    .recover = recover,
    .clean = clean,
    .remove = remove_checkpoint,
    .set_aside = set_aside,
};
