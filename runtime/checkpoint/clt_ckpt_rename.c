/* The commit on a file system: a save is written below NAME.tmp.RUNID, made durable, and renamed to NAME. A
 * name without ".tmp." is a whole checkpoint or one that was damaged later. */
#include <errno.h>
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"

#define TEMPORARY ".tmp."
#define SUPERSEDED ".superseded."

static const char hex_digits[] = "0123456789abcdef";

static char *temporary_path(const char *final, const char *run_id) {
    return clt_format("%s" TEMPORARY "%s", final, run_id);
}

static char *file_name(const clt_ckpt_commit *c, int rank) {
    (void)c; /* the folder's name has the run's id */
    return clt_format("data.%05d.bin", rank);
}

/* --- begin --- */

static clt_status begin(clt_ckpt_commit *c) {
    clt_io_info info;
    if (clt_io_try_stat(c->final, &info) == 0 && info.kind != CLT_IO_ABSENT)
        CLT_TRY(clt_ckpt_check_name(c->final, true, c->overwrite, NULL));
    CLT_TRY(clt_io_remove_tree(c->path));
    return clt_io_mkdir(c->path); /* the rename and the sync after it make it durable */
}

/* --- publish --- */

static clt_status write_manifest(const clt_ckpt_commit *c, const char *text, size_t bytes) {
    clt_file *f = NULL;
    char *path = clt_path_join(c->path, CLT_MANIFEST);
    clt_status st = clt_file_open(path, CLT_IO_CREATE_NEW, &f);
    if (st == CLT_OK) st = clt_file_pwrite(f, text, bytes, 0);
    if (st == CLT_OK) st = clt_file_sync(f);
    clt_status closed = clt_file_close(f);
    clt_free(path);
    CLT_TRY(st);
    CLT_TRY(closed);
    return clt_io_sync_dir(c->path);
}

static char *aside_path(const clt_ckpt_commit *c) {
    return clt_format("%s" SUPERSEDED "%s", c->final, c->run_id);
}

/* For file systems that cannot exchange names: the old checkpoint is renamed first. Each step is durable
 * before the next one, so that a crash leaves NAME or what recover makes NAME of. */
static clt_status swap_by_renames(clt_ckpt_commit *c) {
    char *aside = aside_path(c);
    bool lost = false;
    clt_status st = clt_io_sync_dir(c->folder);
    if (st == CLT_OK) st = clt_io_rename(c->final, aside);
    if (st == CLT_OK) {
        st = clt_io_sync_dir(c->folder);
        if (st == CLT_OK) st = clt_io_rename(c->path, c->final);
        if (st != CLT_OK) lost = clt_io_rename(aside, c->final) != CLT_OK;
    }
    if (st == CLT_OK) {
        st = clt_io_sync_dir(c->folder);
        /* Where this fails, both checkpoints keep the names that they have now. */
        c->placed = c->replaced = clt_io_rename(aside, c->path) == CLT_OK;
        lost = !c->replaced;
    }
    if (lost)
        c->moved = aside;
    else
        clt_free(aside);
    return st;
}

static clt_status exchange_names(clt_ckpt_commit *c) {
    int e = clt_io_try_exchange(c->path, c->final);
    if (e == EINVAL || e == ENOSYS || e == EOPNOTSUPP) return swap_by_renames(c);
    if (e) return clt_error(CLT_IO, "cannot exchange %s and %s: %s", c->path, c->final, strerror(e));
    c->placed = c->replaced = true;
    return CLT_OK;
}

/* The commit: from here on NAME is the new checkpoint. */
static clt_status rename_into_place(clt_ckpt_commit *c) {
    if (!clt_io_is_dir(c->final)) {
        CLT_TRY(clt_io_rename(c->path, c->final));
        c->placed = true;
    } else if (c->overwrite) {
        CLT_TRY(exchange_names(c));
    } else {
        return clt_error(CLT_IO, "%s appeared during the save and is not overwritten", c->final);
    }
    return clt_io_sync_dir(c->folder);
}

static clt_status publish(clt_ckpt_commit *c, const char *manifest, size_t bytes) {
    CLT_TRY(write_manifest(c, manifest, bytes));
    return rename_into_place(c);
}

/* --- retract, discard, finish --- */

/* The old checkpoint has the temporary name and gets NAME again. A crash in between leaves NAME, or the old
 * one as what recover makes NAME of. */
static int swap_back_by_renames(clt_ckpt_commit *c) {
    char *aside = aside_path(c);
    int e = clt_io_try_rename(c->final, aside);
    if (e == 0 && (e = clt_io_try_rename(c->path, c->final)) != 0) clt_io_try_rename(aside, c->final);
    if (e == 0) {
        /* Where this fails, the new checkpoint keeps a name that nobody reads. */
        clt_io_try_rename(aside, c->path);
        clt_free(aside);
    } else {
        clt_io_try_rename(c->path, aside); /* the next run would delete it under its temporary name */
        c->moved = aside;
    }
    return e;
}

static void retract(clt_ckpt_commit *c) {
    int e = 0;
    if (c->replaced && clt_io_try_exchange(c->path, c->final) != 0)
        e = swap_back_by_renames(c);
    else if (c->placed && !c->replaced)
        e = clt_io_try_rename(c->final, c->path);
    if (e) clt_warn("%s: the failed save could not be withdrawn: %s", c->final, strerror(e));
}

static void discard(clt_ckpt_commit *c) {
    if (c->moved) return; /* the temporary name may hold the only other copy */
    clt_error_quiet(true);
    clt_io_remove_tree(c->path);
    clt_error_quiet(false);
}

/* After an exchange the temporary name holds what was there before. */
static clt_status finish(clt_ckpt_commit *c) {
    return c->overwrite ? clt_io_remove_tree(c->path) : CLT_OK;
}

/* --- a folder --- */

/* What cannot be examined counts as present: a checkpoint must not be skipped because of a transient error.
 */
static bool may_have(const char *folder, const char *name) {
    char *path = clt_path_join(folder, name);
    clt_io_info info;
    int e = clt_io_try_stat(path, &info);
    clt_free(path);
    return e != 0 || info.kind == CLT_IO_FILE;
}

static clt_status list(const char *folder, clt_strv *names) {
    clt_strv all = {0};
    CLT_TRY(clt_io_list(folder, &all));
    for (size_t i = 0; i < all.n; i++) {
        /* lost+found is at the root of a disk, and only root can examine it. */
        if (clt_ckpt_name_is_special(all.v[i]) || !strcmp(all.v[i], "lost+found")) continue;
        char *path = clt_path_join(folder, all.v[i]), *first = file_name(NULL, 0);
        if (may_have(path, CLT_MANIFEST) || may_have(path, first)) clt_strv_add(names, all.v[i]);
        clt_free(first);
        clt_free(path);
    }
    clt_strv_free(&all);
    return CLT_OK;
}

/* `aside` is NAME.superseded.RUNID. If the run ended between the renames of an overwriting save, NAME is
 * absent, and NAME.tmp.RUNID is the new checkpoint, whole and durable. */
static clt_status finish_swap(const char *folder, const char *aside, bool *done) {
    const char *mark = strstr(aside, SUPERSEDED);
    char *name = clt_strndup(aside, (size_t)(mark - aside));
    char *final = clt_path_join(folder, name);
    char *tmp = temporary_path(final, mark + strlen(SUPERSEDED));
    clt_manifest *m = NULL;
    clt_status st = CLT_OK;
    if (!clt_io_is_dir(final) && clt_io_is_dir(tmp)) st = clt_ckpt_try_manifest(tmp, &m);
    if (m) {
        st = clt_io_rename(tmp, final);
        *done |= st == CLT_OK;
        if (st == CLT_OK) clt_info("%s: completed a save that was interrupted at its last step", final);
    }
    clt_manifest_free(m);
    clt_free(tmp);
    clt_free(final);
    clt_free(name);
    return st;
}

static clt_status recover(const char *folder) {
    clt_strv names = {0};
    bool done = false;
    clt_status st = clt_io_list(folder, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++)
        if (strstr(names.v[i], SUPERSEDED)) st = finish_swap(folder, names.v[i], &done);
    clt_strv_free(&names);
    return st == CLT_OK && done ? clt_io_sync_dir(folder) : st;
}

/* NAME.tmp.RUNID, or a half-written hint: what a save that was killed leaves. */
static bool is_leftover(const char *name, const char *latest) {
    const char *at = strstr(name, TEMPORARY);
    size_t n = strlen(latest);
    if (!at) return false;
    if ((size_t)(at - name) == n && !strncmp(name, latest, n)) return true;
    const char *id = at + strlen(TEMPORARY);
    return strlen(id) == CLT_RUN_ID_BYTES - 1 && strspn(id, hex_digits) == CLT_RUN_ID_BYTES - 1;
}

/* The bytes of a file, or of the files in a folder. */
static uint64_t size_of(const char *path) {
    clt_io_info info;
    clt_strv names = {0};
    if (clt_io_try_stat(path, &info) != 0) return UINT64_MAX;
    if (info.kind != CLT_IO_FOLDER) return info.bytes;
    clt_error_quiet(true);
    uint64_t sum = clt_io_list(path, &names) == CLT_OK ? 0 : UINT64_MAX;
    clt_error_quiet(false);
    for (size_t i = 0; i < names.n && sum != UINT64_MAX; i++) {
        char *file = clt_path_join(path, names.v[i]);
        if (clt_io_try_stat(file, &info) == 0 && info.kind == CLT_IO_FILE) sum += info.bytes;
        clt_free(file);
    }
    clt_strv_free(&names);
    return sum;
}

static clt_status clean_leftover(const char *path, const clt_ckpt_cleaning *c) {
    const bool folder = clt_io_is_dir(path);
    const clt_ckpt_waste w = {path, folder ? "temporary folder" : "temporary file", size_of(path)};
    if (!c->dry_run) CLT_TRY(clt_io_remove_tree(path));
    if (c->removed) c->removed(c->ctx, &w);
    return CLT_OK;
}

static clt_status clean(const char *folder, const clt_ckpt_cleaning *c) {
    clt_strv names = {0};
    clt_status st = clt_io_list(folder, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        char *path = clt_path_join(folder, names.v[i]);
        if (is_leftover(names.v[i], c->latest)) st = clean_leftover(path, c);
        clt_free(path);
    }
    clt_strv_free(&names);
    return st;
}

/* The new name is durable before the first file is deleted. */
static clt_status remove_checkpoint(const char *folder, const char *name, const char *run_id) {
    char *path = clt_path_join(folder, name), *tmp = temporary_path(path, run_id);
    clt_status st = clt_io_rename(path, tmp);
    if (st == CLT_OK) st = clt_io_sync_dir(folder);
    if (st == CLT_OK) st = clt_io_remove_tree(tmp);
    clt_free(tmp);
    clt_free(path);
    return st;
}

static clt_status set_aside(const char *folder, const char *name, const char *run_id, char **to) {
    char *path = clt_path_join(folder, name), *aside = clt_format("%s" SUPERSEDED "%s", path, run_id);
    clt_io_info info;
    for (int i = 2; clt_io_try_stat(aside, &info) == 0 && info.kind != CLT_IO_ABSENT; i++) {
        clt_free(aside);
        aside = clt_format("%s" SUPERSEDED "%s-%d", path, run_id, i);
    }
    clt_status st = clt_io_rename(path, aside);
    clt_free(path);
    if (st == CLT_OK)
        *to = aside;
    else
        clt_free(aside);
    return st;
}

const clt_ckpt_commit_ops clt_ckpt_rename = {
    .name = "rename",
    .needs = CLT_IO_CAN_RENAME | CLT_IO_CAN_CREATE_NEW | CLT_IO_CAN_WRITE_RANGES | CLT_IO_HAS_FOLDERS,
    .path = temporary_path,
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
