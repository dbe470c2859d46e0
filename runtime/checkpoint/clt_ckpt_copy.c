/* Copies of checkpoints in another folder. */
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"

enum { PIECE = 1 << 20 };

/* The checkpoint that is copied: its manifest and its data files, open. */
typedef struct {
    clt_manifest *m;
    clt_file **file; /* [m->files] */
} source;

static void close_source(source *s) {
    for (size_t i = 0; s->file && i < s->m->files; i++) clt_file_close(s->file[i]);
    clt_free(s->file);
    clt_manifest_free(s->m);
    *s = (source){0};
}

static clt_status open_source(const char *from, source *s) {
    CLT_TRY(clt_manifest_load(from, true, &s->m));
    s->file = clt_calloc(s->m->files, sizeof(clt_file *));
    clt_status st = CLT_OK;
    for (size_t i = 0; i < s->m->files && st == CLT_OK; i++) {
        char *path = clt_path_join(from, s->m->file[i].name);
        st = clt_file_open(path, CLT_IO_READ_PLAIN, &s->file[i]);
        clt_free(path);
    }
    if (st != CLT_OK) close_source(s);
    return st;
}

/* Whether the checkpoint at `path` is a copy of this one: the manifest keeps who saved it and when. */
static clt_status is_copy(const char *path, const clt_manifest *m, bool *yes) {
    clt_manifest *have = NULL;
    *yes = false;
    if (!clt_io_is_dir(path)) return CLT_OK;
    CLT_TRY(clt_ckpt_try_manifest(path, &have));
    *yes = have && !strcmp(have->run_id, m->run_id) && have->state.batch == m->state.batch &&
           have->saved == m->saved;
    clt_manifest_free(have);
    return CLT_OK;
}

static clt_status copy_pieces(clt_file *from, uint64_t bytes, clt_file *to, char *piece) {
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        const size_t n = (size_t)CLT_MIN(bytes - at, (uint64_t)PIECE);
        if (clt_io_stop_requested()) return CLT_STOPPED;
        CLT_TRY(clt_file_pread(from, piece, n, at));
        CLT_TRY(clt_file_pwrite(to, piece, n, at));
    }
    return clt_file_sync(to);
}

static clt_status copy_file(clt_file *from, uint64_t bytes, const char *path) {
    clt_file *to;
    char *piece = clt_try_malloc(PIECE);
    if (!piece) return clt_no_memory("copying a checkpoint", PIECE);
    clt_status st = clt_file_open(path, CLT_IO_CREATE, &to);
    if (st == CLT_OK) {
        st = copy_pieces(from, bytes, to, piece);
        if (st == CLT_OK)
            st = clt_file_close(to);
        else
            clt_file_abandon(to);
    }
    clt_free(piece);
    return st;
}

/* The data files under their new names, which the manifest then has. */
static clt_status copy_files(source *s, const clt_ckpt_commit *c) {
    clt_status st = CLT_OK;
    for (size_t i = 0; i < s->m->files && st == CLT_OK; i++) {
        clt_man_file *f = &s->m->file[i];
        clt_free(f->name);
        f->name = c->ops->file(c, (int)i);
        char *path = clt_path_join(c->path, f->name);
        st = copy_file(s->file[i], f->bytes, path);
        clt_free(path);
    }
    return st;
}

static clt_status write_manifest(const clt_manifest *m, const char *name, clt_str *text) {
    CLT_TRY(clt_manifest_head(name, m->run_id, m->saved, &m->state, text));
    CLT_TRY(clt_manifest_lists(m->tensor, m->tensors, m->file, m->files, m->chunk, m->chunks, text));
    clt_manifest_seal(text);
    return CLT_OK;
}

static clt_status commit_copy(source *s, clt_ckpt_commit *c, const clt_run_lock *lock) {
    clt_str text = {0};
    CLT_TRY(c->ops->begin(c));
    clt_status st = copy_files(s, c);
    if (st == CLT_OK) st = write_manifest(s->m, c->name, &text);
    if (st == CLT_OK) st = clt_ckpt_commit_publish(c, lock, text.s, text.len);
    clt_str_free(&text);
    if (st != CLT_OK) c->ops->discard(c);
    if (st != CLT_OK && c->moved) clt_warn("the checkpoint before it is %s now", c->moved);
    return st;
}

static clt_status copy(source *s, const char *name, const clt_ckpt_copy_params *p, bool *copied) {
    const clt_ckpt_commit_ops *how;
    bool there;
    CLT_TRY(clt_ckpt_commit_of(p->folder, &how));
    clt_ckpt_commit *c = clt_ckpt_commit_create(how, p->folder, name, p->run_id, true);
    c->save = p->number;
    clt_status st = is_copy(c->final, s->m, &there);
    if (st == CLT_OK && !there) st = commit_copy(s, c, p->lock);
    if (st == CLT_OK && !there && how->finish(c) != CLT_OK) clt_warn("%s could not be removed", c->path);
    if (st == CLT_OK && clt_run_lock_is_held(p->lock)) {
        clt_ckpt_commit_hint(c, p->latest);
        clt_ckpt_commit_prune(c, p->keep);
    }
    *copied = st == CLT_OK && !there;
    clt_ckpt_commit_destroy(c);
    return st;
}

clt_status clt_ckpt_copy(const char *from, const clt_ckpt_copy_params *p, bool *copied) {
    source s = {0};
    CLT_TRY(open_source(from, &s));
    clt_status st = copy(&s, clt_path_base(from), p, copied);
    close_source(&s);
    return st;
}

/* Unlike a folder that a run begins in, what is not usable keeps its name: it may only have been unreadable
 * for a moment, and nothing is resumed from here now. */
static clt_status set_later_aside(const clt_ckpt_commit_ops *how, const clt_ckpt_copy_params *p,
                                  int64_t batch) {
    clt_ckpt_info *list;
    int n;
    CLT_TRY(clt_ckpt_scan(p->folder, &list, &n));
    clt_status st = CLT_OK;
    for (int i = 0; i < n && st == CLT_OK; i++) {
        char *to;
        if (!list[i].valid || list[i].batch <= batch) continue;
        st = how->set_aside(p->folder, list[i].name, p->run_id, &to);
        if (st != CLT_OK) break;
        clt_info("%s (later than batch %lld, at which this run begins) is now %s", list[i].path,
                 (long long)batch, to);
        clt_free(to);
    }
    clt_ckpt_scan_free(list, n);
    return st == CLT_OK ? clt_io_sync_dir(p->folder) : st;
}

clt_status clt_ckpt_copy_prepare(const clt_ckpt_copy_params *p, int64_t batch) {
    const clt_ckpt_commit_ops *how;
    CLT_TRY(clt_ckpt_commit_of(p->folder, &how));
    CLT_TRY(clt_io_mkdirs(p->folder));
    CLT_TRY(clt_ckpt_recover(NULL, p->folder));
    clt_ckpt_commit_clean(how, p->folder, p->latest);
    return set_later_aside(how, p, batch);
}
