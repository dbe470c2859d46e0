#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_thread.h"

/* A chunk of the whole checkpoint; the list is the same on every rank. */
typedef struct {
    int part, entry;
    uint32_t count;
    uint64_t first;
} plan_item;

struct clt_ckpt_writer {
    clt_ckpt_writer_params p;
    clt_ckpt_part *parts;
    char *folder, *latest;
    char run_id[CLT_RUN_ID_BYTES];

    plan_item *plan;
    size_t plan_count;
    size_t *owner_begin; /* ranks + 1: rank r writes plan items [owner_begin[r], owner_begin[r + 1]) */
    size_t mine, mine_begin;
    clt_ckpt_stored *row; /* of this rank's items */
    clt_pipe *pipe;
    float *arena; /* snapshot: this rank's share */

    /* the save under way */
    bool active, skip;
    bool placed, swapped; /* NAME is the new one; what was NAME before has the temporary name */
    bool aside;           /* what was NAME is NAME.superseded.RUNID, and the temporary folder is kept */
    char *name, *tmp, *final;
    int64_t batch;
    clt_str head; /* rank 0: the manifest's text up to the lists */
};

clt_ckpt_writer_params clt_ckpt_writer_params_default(void) {
    return (clt_ckpt_writer_params){.keep = -1, .threads = -1};
}

/* --- the plan: which rank writes what --- */

static void make_plan(clt_ckpt_writer *w) {
    const clt_slab_table *t = w->p.table;
    int size = clt_ckpt_size(w->p.group), rank = clt_ckpt_rank(w->p.group);
    uint64_t elements = 0, seen = 0;
    for (int e = 0; e < t->n; e++) {
        elements += t->entry[e].count;
        w->plan_count += CLT_CEIL_DIV(t->entry[e].count, (uint64_t)CLT_CKPT_CHUNK);
    }
    elements *= (uint64_t)w->p.part_count;
    w->plan_count *= (size_t)w->p.part_count;
    w->plan = clt_calloc(w->plan_count, sizeof *w->plan);
    w->owner_begin = clt_calloc((size_t)size + 1, sizeof *w->owner_begin);
    size_t n = 0;
    int owner = 0;
    for (int part = 0; part < w->p.part_count; part++)
        for (int e = 0; e < t->n; e++)
            for (uint64_t first = 0; first < t->entry[e].count; first += CLT_CKPT_CHUNK) {
                uint64_t count = CLT_MIN((uint64_t)CLT_CKPT_CHUNK, t->entry[e].count - first);
                /* Even shares of elements: a chunk belongs to the rank in whose share it begins. */
                while (owner + 1 < size && seen >= elements / (uint64_t)size * (uint64_t)(owner + 1))
                    w->owner_begin[++owner] = n;
                w->plan[n++] = (plan_item){part, e, (uint32_t)count, first};
                seen += count;
            }
    while (owner < size) w->owner_begin[++owner] = n;
    w->mine_begin = w->owner_begin[rank];
    w->mine = w->owner_begin[rank + 1] - w->mine_begin;
}

static char *data_file_name(int rank) {
    return clt_format("data.%05d.bin", rank);
}

/* --- creation --- */

static int default_threads(const clt_group *g) {
    int here = g ? clt_group_local_size(g) : 1;
    return CLT_MIN(CLT_MAX(clt_cpu_count() / CLT_MAX(here, 1), 1), 4);
}

/* NAME.tmp.RUNID, or a half-written hint: what a save that was killed leaves. */
static bool is_leftover(const clt_ckpt_writer *w, const char *name) {
    const char *at = strstr(name, ".tmp.");
    size_t n = strlen(w->latest);
    if (!at) return false;
    if ((size_t)(at - name) == n && !strncmp(name, w->latest, n)) return true;
    return strlen(at + 5) == CLT_RUN_ID_BYTES - 1 &&
           strspn(at + 5, "0123456789abcdef") == CLT_RUN_ID_BYTES - 1;
}

/* The folder's lock says that the run is not running any more. */
static void remove_leftovers(const clt_ckpt_writer *w) {
    clt_strv names = {0};
    if (clt_io_list(w->folder, &names) != CLT_OK) return;
    for (size_t i = 0; i < names.n; i++) {
        if (!is_leftover(w, names.v[i])) continue;
        char *path = clt_path_join(w->folder, names.v[i]);
        clt_info("removing %s, left by a run that was stopped during a save", path);
        clt_io_remove_tree(path);
        clt_free(path);
    }
    clt_strv_free(&names);
}

static clt_status probe(const clt_ckpt_writer *w) {
    clt_file *f;
    char *path = clt_format("%s/.write-test.%s.%d", w->folder, w->run_id, clt_ckpt_rank(w->p.group));
    clt_status st = clt_file_open(path, CLT_IO_CREATE, &f);
    if (st == CLT_OK) {
        st = clt_file_pwrite(f, "x", 1, 0);
        clt_status closed = clt_file_close(f), removed = clt_io_unlink(path);
        if (st == CLT_OK) st = closed;
        if (st == CLT_OK) st = removed;
    }
    clt_free(path);
    return st;
}

static clt_status prepare_folder(const clt_ckpt_writer *w) {
    clt_status st = CLT_OK;
    if (clt_ckpt_rank(w->p.group) == 0) {
        st = clt_io_mkdirs(w->folder);
        if (st == CLT_OK && !w->p.single) remove_leftovers(w);
    }
    CLT_TRY(clt_ckpt_agree(w->p.group, st));
    return clt_ckpt_agree(w->p.group, probe(w));
}

clt_status clt_ckpt_writer_create(const clt_ckpt_writer_params *p, clt_ckpt_writer **out) {
    clt_ckpt_writer *w = clt_calloc(1, sizeof *w);
    w->p = *p;
    w->parts = clt_memdup(p->parts, (size_t)p->part_count * sizeof *p->parts);
    w->folder = clt_strdup(p->folder);
    w->latest = clt_strdup(p->latest ? p->latest : CLT_CKPT_LATEST);
    snprintf(w->run_id, sizeof w->run_id, "%s", p->run_id);
    clt_status st = prepare_folder(w);
    if (st != CLT_OK) {
        clt_ckpt_writer_destroy(w);
        return st;
    }
    make_plan(w);
    w->row = clt_calloc(w->mine, sizeof *w->row);
    int threads = p->threads < 0 ? default_threads(p->group) : p->threads;
    uint64_t share = 0, largest = 1;
    for (size_t i = 0; i < w->mine; i++) {
        share += w->plan[w->mine_begin + i].count;
        largest = CLT_MAX(largest, w->plan[w->mine_begin + i].count);
    }
    if (p->snapshot) w->arena = clt_aligned_alloc((size_t)share * sizeof *w->arena);
    w->pipe = clt_pipe_create(threads, p->snapshot ? 0 : threads + 2, w->mine, (size_t)largest);
    *out = w;
    return CLT_OK;
}

static void forget_save(clt_ckpt_writer *w) {
    clt_free(w->name);
    clt_free(w->tmp);
    clt_free(w->final);
    clt_str_free(&w->head);
    w->name = w->tmp = w->final = NULL;
    w->active = w->skip = w->placed = w->swapped = w->aside = false;
}

void clt_ckpt_writer_destroy(clt_ckpt_writer *w) {
    if (!w) return;
    clt_pipe_destroy(w->pipe);
    if (w->active && !w->skip && clt_ckpt_rank(w->p.group) == 0) clt_io_remove_tree(w->tmp);
    forget_save(w);
    clt_free(w->parts);
    clt_free(w->folder);
    clt_free(w->latest);
    clt_free(w->plan);
    clt_free(w->owner_begin);
    clt_free(w->row);
    clt_free(w->arena);
    clt_free(w);
}

/* --- begin --- */

/* Is NAME this run's own checkpoint of this very batch? */
static bool saved_before(const clt_ckpt_writer *w) {
    clt_manifest *m = NULL;
    clt_error_quiet(true);
    bool same = clt_manifest_load(w->final, true, &m) == CLT_OK && m->state.batch == w->batch &&
                !strcmp(m->run_id, w->run_id);
    clt_error_quiet(false);
    clt_manifest_free(m);
    return same;
}

/* A folder that is none would be deleted with all that is in it, a run's with its checkpoints. */
static clt_status check_overwritable(const char *path) {
    clt_strv names = {0};
    CLT_TRY(clt_io_list(path, &names));
    bool usable = names.n == 0;
    for (size_t i = 0; i < names.n; i++)
        usable |= !strcmp(names.v[i], CLT_MANIFEST) || !strncmp(names.v[i], "data.", 5);
    clt_strv_free(&names);
    if (usable) return CLT_OK;
    return clt_error(CLT_IO, "%s is a folder, but no checkpoint: it is not overwritten; choose another name",
                     path);
}

/* Rank 0: looks what is there, makes the temporary folder, fixes the manifest's head. */
static clt_status open_temporary(clt_ckpt_writer *w, const clt_checkpoint_state *state) {
    if (!clt_path_is_safe(w->name) || strchr(w->name, '/') || clt_ckpt_name_is_special(w->name))
        return clt_error(CLT_BAD_CONFIG,
                         "'%s' is no usable name for a checkpoint (save_filename): it must be one path "
                         "component without '.tmp.' and '.superseded.'",
                         w->name);
    clt_io_info info;
    if (clt_io_try_stat(w->final, &info) == 0 && info.kind != CLT_IO_ABSENT) {
        w->skip = saved_before(w);
        if (w->skip) return CLT_OK;
        if (!w->p.overwrite)
            return clt_error(
                CLT_IO,
                "%s exists already and is not overwritten; choose another name or folder, or allow it "
                "(save_overwrite: true, ckpt import --overwrite)",
                w->final);
        if (info.kind == CLT_IO_FOLDER) CLT_TRY(check_overwritable(w->final));
    }
    CLT_TRY(clt_manifest_head(w->name, w->run_id, clt_wall(), state, &w->head));
    CLT_TRY(clt_io_remove_tree(w->tmp));
    return clt_io_mkdir(w->tmp); /* the rename and the sync after it make it durable */
}

/* Feeds this rank's chunks to the pipe. A failure is kept there for finish. */
static void feed(clt_ckpt_writer *w) {
    float *at = w->arena;
    for (size_t i = 0; i < w->mine; i++) {
        const plan_item *c = &w->plan[w->mine_begin + i];
        float *to = w->p.snapshot ? at : clt_pipe_buffer(w->pipe);
        if (!to) {
            clt_pipe_cancel(w->pipe, CLT_IO);
            return;
        }
        clt_status st = clt_ckpt_part_read(&w->parts[c->part], w->p.table, c->entry, c->first, to, c->count);
        if (st != CLT_OK) {
            clt_pipe_cancel(w->pipe, st);
            return;
        }
        clt_pipe_submit(w->pipe, to, c->count, !w->p.snapshot);
        at += c->count;
    }
}

clt_status clt_ckpt_save_begin(clt_ckpt_writer *w, const char *name, const clt_checkpoint_state *state) {
    struct {
        clt_status st;
        bool skip;
    } first = {CLT_OK, false};
    int rank = clt_ckpt_rank(w->p.group);
    if (w->active) return clt_error(CLT_FAIL, "a save is under way already");
    w->name = clt_strdup(name);
    w->final = clt_path_join(w->folder, name);
    w->tmp = clt_format("%s.tmp.%s", w->final, w->run_id);
    w->batch = state->batch;
    if (rank == 0) {
        first.st = open_temporary(w, state);
        first.skip = w->skip;
    }
    clt_status st = clt_ckpt_broadcast(w->p.group, &first, sizeof first);
    if (st == CLT_OK) st = first.st;
    if (st != CLT_OK) {
        if (rank == 0) clt_warn("checkpoint %s was not saved", w->final);
        forget_save(w);
        return st;
    }
    w->active = true;
    w->skip = first.skip;
    if (w->skip) return CLT_OK;
    char *file = data_file_name(rank), *path = clt_path_join(w->tmp, file);
    clt_pipe_start(w->pipe, path, w->mine, w->row);
    feed(w);
    clt_free(path);
    clt_free(file);
    return CLT_OK;
}

bool clt_ckpt_save_ready(clt_ckpt_writer *w) {
    return !w->active || w->skip || clt_pipe_ready(w->pipe);
}

/* --- finish --- */

/* Every rank's rows, in the order of the plan. */
static clt_status gather_rows(clt_ckpt_writer *w, clt_ckpt_stored **rows) {
    size_t bytes = w->mine * sizeof *w->row;
    if (!w->p.group) {
        *rows = clt_memdup(w->row, bytes);
        return CLT_OK;
    }
    size_t *lens = clt_calloc((size_t)clt_group_size(w->p.group), sizeof *lens);
    void *all = NULL;
    clt_status st = clt_group_all_gatherv(w->p.group, w->row, bytes, lens, &all);
    clt_free(lens);
    if (st == CLT_OK) *rows = all;
    return st;
}

/* Appends the lists of tensors, files and chunks to the head. */
static void list_chunks(clt_ckpt_writer *w, const clt_ckpt_stored *rows) {
    const clt_slab_table *t = w->p.table;
    int size = clt_ckpt_size(w->p.group);
    size_t tensors = (size_t)w->p.part_count * (size_t)t->n, files = 0;
    clt_man_tensor *tensor = clt_calloc(tensors, sizeof *tensor);
    clt_man_file *file = clt_calloc((size_t)size, sizeof *file);
    clt_man_chunk *chunk = clt_calloc(w->plan_count, sizeof *chunk);
    for (size_t i = 0; i < tensors; i++) {
        const clt_slab_entry *e = &t->entry[i % (size_t)t->n];
        tensor[i] = (clt_man_tensor){
            .role = (char *)w->parts[i / (size_t)t->n].role, .name = e->name, .dims = e->dims};
        memcpy(tensor[i].shape, e->shape, sizeof e->shape);
    }
    for (int r = 0; r < size; r++) {
        if (w->owner_begin[r] == w->owner_begin[r + 1]) continue;
        file[files].name = data_file_name(r);
        for (size_t i = w->owner_begin[r]; i < w->owner_begin[r + 1]; i++) {
            const plan_item *c = &w->plan[i];
            chunk[i] = (clt_man_chunk){.tensor = (uint32_t)(c->part * t->n + c->entry),
                                       .file = (uint32_t)files,
                                       .count = c->count,
                                       .first = c->first,
                                       .at = rows[i]};
            file[files].bytes += rows[i].stored;
        }
        files++;
    }
    clt_manifest_lists(tensor, tensors, file, files, chunk, w->plan_count, &w->head);
    clt_manifest_seal(&w->head);
    for (size_t f = 0; f < files; f++) clt_free(file[f].name);
    clt_free(tensor);
    clt_free(file);
    clt_free(chunk);
}

static clt_status write_manifest(const clt_ckpt_writer *w) {
    clt_file *f = NULL;
    char *path = clt_path_join(w->tmp, CLT_MANIFEST);
    clt_status st = clt_file_open(path, CLT_IO_CREATE, &f);
    if (st == CLT_OK) st = clt_file_pwrite(f, w->head.s, w->head.len, 0);
    if (st == CLT_OK) st = clt_file_sync(f);
    clt_status closed = clt_file_close(f);
    clt_free(path);
    CLT_TRY(st);
    CLT_TRY(closed);
    return clt_io_sync_dir(w->tmp);
}

static char *name_aside(const clt_ckpt_writer *w) {
    return clt_format("%s.superseded.%s", w->final, w->run_id);
}

/* For file systems that cannot exchange names: the old one steps aside first. Each step is durable before the
 * next one, so that a crash leaves NAME or what clt_ckpt_recover makes NAME of. */
static clt_status swap_by_renames(clt_ckpt_writer *w) {
    char *aside = name_aside(w);
    clt_status st = clt_io_sync_dir(w->folder);
    if (st == CLT_OK) st = clt_io_rename(w->final, aside);
    if (st == CLT_OK) {
        st = clt_io_sync_dir(w->folder);
        if (st == CLT_OK) st = clt_io_rename(w->tmp, w->final);
        if (st != CLT_OK) w->aside = clt_io_rename(aside, w->final) != CLT_OK;
    }
    if (st == CLT_OK) {
        st = clt_io_sync_dir(w->folder);
        /* Where this fails, both checkpoints keep the names that they have now. */
        w->placed = w->swapped = clt_io_rename(aside, w->tmp) == CLT_OK;
        w->aside = !w->swapped;
    }
    clt_free(aside);
    return st;
}

static clt_status exchange_names(clt_ckpt_writer *w) {
    int e = clt_io_try_exchange(w->tmp, w->final);
    if (e == EINVAL || e == ENOSYS || e == EOPNOTSUPP) return swap_by_renames(w);
    if (e) return clt_error(CLT_IO, "cannot exchange %s and %s: %s", w->tmp, w->final, strerror(e));
    w->placed = w->swapped = true;
    return CLT_OK;
}

/* The commit: from here on NAME is the new checkpoint. save_overwrite swaps the two names. */
static clt_status rename_into_place(clt_ckpt_writer *w) {
    if (!clt_io_is_dir(w->final)) {
        CLT_TRY(clt_io_rename(w->tmp, w->final));
        w->placed = true;
    } else if (w->p.overwrite) {
        CLT_TRY(exchange_names(w));
    } else {
        return clt_error(CLT_IO, "%s appeared during the save and is not overwritten", w->final);
    }
    return clt_io_sync_dir(w->folder);
}

/* The old checkpoint is in the temporary name and gets NAME again. A crash in between leaves NAME, or the old
 * one as what clt_ckpt_recover makes NAME of. */
static int swap_back_by_renames(clt_ckpt_writer *w) {
    char *aside = name_aside(w);
    int e = clt_io_try_rename(w->final, aside);
    if (e == 0 && (e = clt_io_try_rename(w->tmp, w->final)) != 0) clt_io_try_rename(aside, w->final);
    if (e == 0) {
        clt_io_try_rename(aside,
                          w->tmp); /* where this fails, what was not saved keeps a name that nobody reads */
    } else {
        clt_io_try_rename(w->tmp, aside); /* the next run would delete it under its temporary name */
        w->aside = true;
    }
    clt_free(aside);
    return e;
}

/* The commit could not be made durable or does not read back. The names go back to what they were, so that
 * the old checkpoint is not deleted for a new one that may not be there after a crash, and so that the new
 * one is not taken for saved. */
static void take_back(clt_ckpt_writer *w) {
    int e = 0;
    if (w->swapped && clt_io_try_exchange(w->tmp, w->final) != 0)
        e = swap_back_by_renames(w);
    else if (w->placed && !w->swapped)
        e = clt_io_try_rename(w->final, w->tmp);
    if (e) clt_warn("%s could not be taken back: %s", w->final, strerror(e));
}

static clt_status commit(clt_ckpt_writer *w, const clt_ckpt_stored *rows) {
    clt_manifest *m = NULL;
    list_chunks(w, rows);
    CLT_TRY(write_manifest(w));
    clt_status st = rename_into_place(w);
    /* The data files were read back by the ranks that wrote them; the manifest and their sizes are checked
     * here. */
    if (st == CLT_OK) st = clt_manifest_load(w->final, true, &m);
    if (st != CLT_OK) take_back(w);
    clt_manifest_free(m);
    return st;
}

/* Removes a checkpoint so that a crash in between leaves a temporary folder, never a damaged checkpoint: the
 * new name is durable before the first file goes. */
static clt_status remove_checkpoint(const clt_ckpt_writer *w, const char *path) {
    char *tmp = clt_format("%s.tmp.%s", path, w->run_id);
    clt_status st = clt_io_rename(path, tmp);
    if (st == CLT_OK) st = clt_io_sync_dir(w->folder);
    if (st == CLT_OK) st = clt_io_remove_tree(tmp);
    clt_free(tmp);
    return st;
}

/* Oldest first by number; the two newest always stay. Failing here does not harm the checkpoint just saved.
 */
static void prune(const clt_ckpt_writer *w) {
    clt_ckpt_info *list = NULL;
    int n = 0;
    if (w->p.keep < 0 || clt_ckpt_scan(w->folder, &list, &n) != CLT_OK) return;
    int valid = 0;
    while (valid < n && list[valid].valid) valid++;
    for (int i = valid - 1; i >= CLT_MAX(w->p.keep, 2); i--) {
        if (!strcmp(list[i].name, w->name)) continue;
        if (remove_checkpoint(w, list[i].path) != CLT_OK) {
            clt_warn("%s could not be removed; it is kept", list[i].path);
            break;
        }
        clt_info("removed %s", list[i].path);
    }
    clt_ckpt_scan_free(list, n);
}

static void write_hint(const clt_ckpt_writer *w) {
    char *hint = clt_path_join(w->folder, w->latest), *text = clt_format("%s\n", w->name);
    if (clt_io_write_atomic(hint, text, strlen(text)) != CLT_OK) clt_warn("%s could not be written", hint);
    clt_free(text);
    clt_free(hint);
}

/* After an exchange, the temporary name holds what was there before. */
static void after_commit(const clt_ckpt_writer *w) {
    if (w->p.overwrite && clt_io_remove_tree(w->tmp) != CLT_OK) clt_warn("%s could not be removed", w->tmp);
    if (w->p.single) return;
    write_hint(w);
    prune(w);
}

static clt_status finish(clt_ckpt_writer *w) {
    clt_group *g = w->p.group;
    clt_ckpt_stored *rows = NULL;
    CLT_TRY(clt_ckpt_agree(g, clt_pipe_finish(w->pipe)));
    CLT_TRY(gather_rows(w, &rows));
    clt_status st = clt_ckpt_rank(g) == 0 ? commit(w, rows) : CLT_OK;
    clt_free(rows);
    return clt_ckpt_agree(g, st);
}

clt_status clt_ckpt_save_finish(clt_ckpt_writer *w) {
    if (!w->active) return clt_error(CLT_FAIL, "no save is under way");
    clt_status st = w->skip ? CLT_OK : finish(w);
    if (!w->skip && clt_ckpt_rank(w->p.group) == 0) {
        if (st == CLT_OK) {
            after_commit(w);
        } else {
            clt_error_quiet(true);
            if (!w->aside) clt_io_remove_tree(w->tmp);
            clt_error_quiet(false);
            if (w->aside)
                clt_warn("checkpoint %s was not saved safely; the one before it is %s.superseded.%s now",
                         w->final, w->final, w->run_id);
            else
                clt_warn("checkpoint %s was not saved; the checkpoints before it are untouched", w->final);
        }
    }
    forget_save(w);
    return st;
}

clt_status clt_ckpt_save(clt_ckpt_writer *w, const char *name, const clt_checkpoint_state *state) {
    CLT_TRY(clt_ckpt_save_begin(w, name, state));
    return clt_ckpt_save_finish(w);
}
