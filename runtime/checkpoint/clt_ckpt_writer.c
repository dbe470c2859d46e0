#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_thread.h"

/* A chunk of the whole checkpoint; the list is the same on every rank. */
typedef struct {
    int part, entry;
    int owner; /* the rank that writes it */
    uint32_t count;
    uint64_t first;
} plan_item;

struct clt_ckpt_writer {
    clt_ckpt_writer_params p;
    clt_ckpt_part *parts;
    const clt_ckpt_commit_ops *how;
    char *folder, *latest;
    char run_id[CLT_RUN_ID_BYTES];

    plan_item *plan;
    size_t plan_count;
    size_t mine;          /* items of this rank */
    clt_ckpt_stored *row; /* of this rank's items, in the plan's order */
    clt_pipe *pipe;
    float *arena; /* snapshot: this rank's share */

    /* the save in progress */
    bool active;
    bool skip;               /* this run has saved this batch under this name before */
    clt_ckpt_commit *commit; /* on every rank; the strategy's functions run on rank 0 */
    int64_t batch;
    clt_str head; /* rank 0: the manifest's text up to the lists */

    /* rank 0: what follows a commit, while training continues */
    bool tidying;
    pthread_t tidier;
    clt_ckpt_commit *tidied;
};

clt_ckpt_writer_params clt_ckpt_writer_params_default(void) {
    return (clt_ckpt_writer_params){.keep = -1, .threads = -1};
}

/* --- the plan: which rank writes what --- */

/* Counts chunks, and the elements that are on every rank, and allocates the plan. */
static clt_status allocate_plan(clt_ckpt_writer *w, uint64_t *elements) {
    const clt_slab_table *t = w->p.table;
    *elements = 0;
    for (int part = 0; part < w->p.part_count; part++)
        for (int e = 0; e < t->n; e++) {
            if (!w->parts[part].shards) *elements += t->entry[e].count;
            w->plan_count += CLT_CEIL_DIV(t->entry[e].count, (uint64_t)CLT_CKPT_CHUNK);
        }
    w->plan = clt_try_calloc(w->plan_count, sizeof *w->plan);
    return w->plan ? CLT_OK : clt_no_memory("the plan of a checkpoint", w->plan_count * sizeof *w->plan);
}

/* Parts that are on every rank are divided into even shares of elements, in the order of the plan: a chunk
 * belongs to the rank in whose share it begins. A chunk of a sharded part belongs to its owner. */
static clt_status make_plan(clt_ckpt_writer *w) {
    const clt_slab_table *t = w->p.table;
    const uint64_t size = (uint64_t)clt_ckpt_size(w->p.group);
    uint64_t elements, seen = 0, even = 0;
    size_t n = 0;
    CLT_TRY(clt_ckpt_check_shards(w->p.group, w->parts, w->p.part_count));
    CLT_TRY(allocate_plan(w, &elements));
    for (int part = 0; part < w->p.part_count; part++)
        for (int e = 0; e < t->n; e++)
            for (uint64_t first = 0; first < t->entry[e].count; first += CLT_CKPT_CHUNK) {
                const uint64_t count = CLT_MIN((uint64_t)CLT_CKPT_CHUNK, t->entry[e].count - first);
                const clt_shards *s = w->parts[part].shards;
                while (!s && even + 1 < size && seen >= elements / size * (even + 1)) even++;
                const int owner = s ? clt_shards_owner(s, t->entry[e].offset + first) : (int)even;
                w->plan[n++] = (plan_item){part, e, owner, (uint32_t)count, first};
                w->mine += owner == clt_ckpt_rank(w->p.group);
                if (!s) seen += count;
            }
    return CLT_OK;
}

/* --- creation --- */

static int default_threads(const clt_group *g) {
    int here = g ? clt_group_local_size(g) : 1;
    return CLT_MIN(CLT_MAX(clt_cpu_count() / CLT_MAX(here, 1), 1), 4);
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
        if (st == CLT_OK && !w->p.single) clt_ckpt_commit_clean(w->how, w->folder, w->latest);
    }
    CLT_TRY(clt_ckpt_agree(w->p.group, st));
    return clt_ckpt_agree(w->p.group, probe(w));
}

/* This rank's rows, its copy of its share, and the pipe. */
static clt_status allocate_buffers(clt_ckpt_writer *w) {
    int threads = w->p.threads < 0 ? default_threads(w->p.group) : w->p.threads;
    uint64_t share = 0, largest = 1;
    CLT_TRY(make_plan(w));
    for (size_t i = 0; i < w->plan_count; i++) {
        if (w->plan[i].owner != clt_ckpt_rank(w->p.group)) continue;
        share += w->plan[i].count;
        largest = CLT_MAX(largest, w->plan[i].count);
    }
    w->row = clt_try_calloc(w->mine, sizeof *w->row);
    if (!w->row) return clt_no_memory("the list of a checkpoint's chunks", w->mine * sizeof *w->row);
    if (w->p.snapshot) {
        w->arena = clt_try_aligned_alloc((size_t)share * sizeof *w->arena);
        if (!w->arena)
            return clt_no_memory("the copy of the state from which a checkpoint is written",
                                 share * sizeof *w->arena);
    }
    return clt_pipe_create(threads, w->p.snapshot ? 0 : threads + 2, w->mine, (size_t)largest, &w->pipe);
}

clt_status clt_ckpt_writer_create(const clt_ckpt_writer_params *p, clt_ckpt_writer **out) {
    clt_ckpt_writer *w = clt_calloc(1, sizeof *w);
    w->p = *p;
    w->parts = clt_memdup(p->parts, (size_t)p->part_count * sizeof *p->parts);
    w->folder = clt_strdup(p->folder);
    w->latest = clt_strdup(p->latest ? p->latest : CLT_CKPT_LATEST);
    snprintf(w->run_id, sizeof w->run_id, "%s", p->run_id);
    clt_status st = clt_ckpt_commit_of(w->folder, &w->how);
    if (st == CLT_OK) st = prepare_folder(w);
    if (st == CLT_OK) st = clt_ckpt_agree(p->group, allocate_buffers(w));
    if (st != CLT_OK) {
        clt_ckpt_writer_destroy(w);
        return st;
    }
    *out = w;
    return CLT_OK;
}

static void forget_save(clt_ckpt_writer *w) {
    clt_ckpt_commit_destroy(w->commit);
    clt_str_free(&w->head);
    w->commit = NULL;
    w->active = w->skip = false;
}

static void end_tidying(clt_ckpt_writer *w) {
    if (!w->tidying) return;
    pthread_join(w->tidier, NULL);
    clt_ckpt_commit_destroy(w->tidied);
    w->tidied = NULL;
    w->tidying = false;
}

void clt_ckpt_writer_destroy(clt_ckpt_writer *w) {
    if (!w) return;
    end_tidying(w);
    clt_pipe_destroy(w->pipe);
    if (w->active && !w->skip && clt_ckpt_rank(w->p.group) == 0) w->how->discard(w->commit);
    forget_save(w);
    clt_free(w->parts);
    clt_free(w->folder);
    clt_free(w->latest);
    clt_free(w->plan);
    clt_free(w->row);
    clt_free(w->arena);
    clt_free(w);
}

/* --- begin --- */

/* Whether NAME is this run's own checkpoint of the same batch. */
static clt_status saved_before(clt_ckpt_writer *w) {
    clt_manifest *m = NULL;
    if (!clt_io_is_dir(w->commit->final)) return CLT_OK;
    CLT_TRY(clt_ckpt_try_manifest(w->commit->final, &m));
    w->skip = m && m->state.batch == w->batch && !strcmp(m->run_id, w->run_id);
    clt_manifest_free(m);
    return CLT_OK;
}

/* Rank 0: checks the name, makes the place to write to, and writes the manifest's head. */
static clt_status open_save(clt_ckpt_writer *w, const clt_checkpoint_state *state) {
    const char *name = w->commit->name;
    if (!clt_path_is_safe(name) || strchr(name, '/') || clt_ckpt_name_is_special(name))
        return clt_error(CLT_BAD_CONFIG,
                         "'%s' is not a usable name for a checkpoint (save_filename): it must be one path "
                         "component without '.tmp.' and '.superseded.'",
                         name);
    CLT_TRY(saved_before(w));
    if (w->skip) return CLT_OK;
    CLT_TRY(clt_manifest_head(name, w->run_id, clt_wall(), state, &w->head));
    return w->how->begin(w->commit);
}

/* Passes this rank's chunks to the pipe, which keeps a failure for finish. */
static void feed(clt_ckpt_writer *w) {
    float *at = w->arena;
    for (size_t i = 0; i < w->plan_count; i++) {
        const plan_item *c = &w->plan[i];
        if (c->owner != clt_ckpt_rank(w->p.group)) continue;
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
    static atomic_uint saves; /* of this process: rank 0 stays in one */
    struct {
        clt_status st;
        bool skip;
        unsigned save;
    } first = {CLT_OK, false, 0};
    int rank = clt_ckpt_rank(w->p.group);
    if (w->active) return clt_error(CLT_FAIL, "a save is already in progress");
    end_tidying(w);
    w->commit = clt_ckpt_commit_create(w->how, w->folder, name, w->run_id, w->p.overwrite);
    w->batch = state->batch;
    if (rank == 0) {
        first.st = open_save(w, state);
        first.skip = w->skip;
        first.save = w->commit->save = 1 + atomic_fetch_add(&saves, 1);
    }
    clt_status st = clt_ckpt_broadcast(w->p.group, &first, sizeof first);
    if (st == CLT_OK) st = first.st;
    if (st != CLT_OK) {
        if (rank == 0) clt_warn("checkpoint %s was not saved", w->commit->final);
        forget_save(w);
        return st;
    }
    w->active = true;
    w->skip = first.skip;
    w->commit->save = first.save;
    if (w->skip) return CLT_OK;
    char *file = w->how->file(w->commit, rank), *path = clt_path_join(w->commit->path, file);
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

/* Every rank's rows: those of rank 0, then those of rank 1, and so on; a rank's in the order of the plan. */
static clt_status gather_rows(clt_ckpt_writer *w, clt_ckpt_stored **rows) {
    size_t bytes = w->mine * sizeof *w->row;
    if (!w->p.group) {
        *rows = clt_try_malloc(bytes);
        if (!*rows) return clt_no_memory("the list of a checkpoint's chunks", bytes);
        if (bytes) memcpy(*rows, w->row, bytes);
        return CLT_OK;
    }
    size_t *lens = clt_calloc((size_t)clt_group_size(w->p.group), sizeof *lens);
    void *all = NULL;
    clt_status st = clt_group_all_gatherv(w->p.group, w->row, bytes, lens, &all);
    clt_free(lens);
    if (st == CLT_OK) *rows = all;
    return st;
}

/* What the manifest lists. */
typedef struct {
    clt_man_tensor *tensor;
    clt_man_file *file;
    clt_man_chunk *chunk;
    size_t tensors, files;
} lists;

static void free_lists(lists *l) {
    for (size_t f = 0; f < l->files; f++) clt_free(l->file[f].name);
    clt_free(l->tensor);
    clt_free(l->file);
    clt_free(l->chunk);
}

static clt_status allocate_lists(const clt_ckpt_writer *w, lists *l) {
    size_t ranks = (size_t)clt_ckpt_size(w->p.group);
    l->tensors = (size_t)w->p.part_count * (size_t)w->p.table->n;
    l->tensor = clt_try_calloc(l->tensors, sizeof *l->tensor);
    l->file = clt_try_calloc(ranks, sizeof *l->file);
    l->chunk = clt_try_calloc(w->plan_count, sizeof *l->chunk);
    if (l->tensor && l->file && l->chunk) return CLT_OK;
    return clt_no_memory("the lists of a checkpoint's manifest", l->tensors * sizeof *l->tensor +
                                                                     ranks * sizeof *l->file +
                                                                     w->plan_count * sizeof *l->chunk);
}

static void fill_lists(const clt_ckpt_writer *w, const clt_ckpt_stored *rows, lists *l) {
    const clt_slab_table *t = w->p.table;
    for (size_t i = 0; i < l->tensors; i++) {
        const clt_slab_entry *e = &t->entry[i % (size_t)t->n];
        l->tensor[i] = (clt_man_tensor){
            .role = (char *)w->parts[i / (size_t)t->n].role, .name = e->name, .dims = e->dims};
        memcpy(l->tensor[i].shape, e->shape, sizeof e->shape);
    }
    const size_t ranks = (size_t)clt_ckpt_size(w->p.group);
    size_t *chunks = clt_calloc(ranks, sizeof *chunks), *row = clt_calloc(ranks, sizeof *row);
    uint32_t *file = clt_calloc(ranks, sizeof *file);
    for (size_t i = 0; i < w->plan_count; i++) chunks[w->plan[i].owner]++;
    for (size_t r = 0, rows_before = 0; r < ranks; rows_before += chunks[r++]) {
        row[r] = rows_before;
        file[r] = (uint32_t)l->files;
        if (chunks[r]) l->file[l->files++].name = w->how->file(w->commit, (int)r);
    }
    for (size_t i = 0; i < w->plan_count; i++) {
        const plan_item *c = &w->plan[i];
        l->chunk[i] = (clt_man_chunk){.tensor = (uint32_t)(c->part * t->n + c->entry),
                                      .file = file[c->owner],
                                      .count = c->count,
                                      .first = c->first,
                                      .at = rows[row[c->owner]++]};
        l->file[file[c->owner]].bytes += l->chunk[i].at.stored;
    }
    clt_free(file);
    clt_free(row);
    clt_free(chunks);
}

/* Appends the lists of tensors, files and chunks to the head. */
static clt_status complete_manifest(clt_ckpt_writer *w, const clt_ckpt_stored *rows) {
    lists l = {0};
    clt_status st = allocate_lists(w, &l);
    if (st == CLT_OK) {
        fill_lists(w, rows, &l);
        st = clt_manifest_lists(l.tensor, l.tensors, l.file, l.files, l.chunk, w->plan_count, &w->head);
    }
    if (st == CLT_OK) clt_manifest_seal(&w->head);
    free_lists(&l);
    return st;
}

static clt_status commit(clt_ckpt_writer *w, const clt_ckpt_stored *rows) {
    CLT_TRY(complete_manifest(w, rows));
    /* The ranks read back the data files that they wrote. */
    return clt_ckpt_commit_publish(w->commit, w->p.lock, w->head.s, w->head.len);
}

static void after_commit(const clt_ckpt_writer *w, clt_ckpt_commit *c) {
    if (w->how->finish(c) != CLT_OK) clt_warn("%s could not be removed", c->path);
    if (w->p.single || !clt_run_lock_is_held(w->p.lock)) return;
    clt_ckpt_commit_hint(c, w->latest);
    clt_ckpt_commit_prune(c, w->p.keep);
}

static void *tidy(void *arg) {
    clt_ckpt_writer *w = arg;
    after_commit(w, w->tidied);
    return NULL;
}

/* Each file costs remote storage a request or two, one after the other: training does not wait for them. */
static void begin_tidying(clt_ckpt_writer *w) {
    w->tidied = w->commit;
    w->commit = NULL;
    w->tidying = !clt_io_can(w->folder, CLT_IO_HAS_FOLDERS) && clt_thread_start(&w->tidier, tidy, w) == 0;
    if (w->tidying) return;
    after_commit(w, w->tidied);
    clt_ckpt_commit_destroy(w->tidied);
    w->tidied = NULL;
}

static void after_failure(const clt_ckpt_writer *w) {
    w->how->discard(w->commit);
    if (w->commit->moved)
        clt_warn("checkpoint %s was not saved safely; the one before it is %s now", w->commit->final,
                 w->commit->moved);
    else
        clt_warn("checkpoint %s was not saved; the checkpoints before it are untouched", w->commit->final);
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
    if (!w->active) return clt_error(CLT_FAIL, "no save is in progress");
    clt_status st = w->skip ? CLT_OK : finish(w);
    if (!w->skip && clt_ckpt_rank(w->p.group) == 0) {
        if (st == CLT_OK)
            begin_tidying(w);
        else
            after_failure(w);
    }
    forget_save(w);
    return st;
}

clt_status clt_ckpt_save(clt_ckpt_writer *w, const char *name, const clt_checkpoint_state *state) {
    CLT_TRY(clt_ckpt_save_begin(w, name, state));
    clt_status st = clt_ckpt_save_finish(w);
    end_tidying(w);
    return st;
}
