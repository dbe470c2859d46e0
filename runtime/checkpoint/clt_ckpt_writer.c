#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_bind.h"
#include "runtime/base/clt_thread.h"

/* Work on rank 0 in a thread, while training continues. The thread prints its own messages. */
typedef struct {
    pthread_t thread;
    bool running;     /* to be joined */
    atomic_bool done; /* st is set; the thread may continue with what nobody waits for */
    clt_status st;
} background;

typedef enum {
    WRITING,    /* the ranks write their chunks, and rank 0 examines the name */
    COMMITTING, /* rank 0 commits */
    ENDED
} save_phase;

struct clt_ckpt_writer {
    clt_ckpt_writer_params p;
    const clt_ckpt_commit_ops *how;
    char *folder, *latest;
    char run_id[CLT_RUN_ID_BYTES];

    clt_ckpt_plan plan;
    clt_ckpt_stored *row; /* of this rank's chunks, in the plan's order */
    clt_pipe *pipe;
    float *arena; /* snapshot: this rank's share */

    /* the save in progress */
    bool active;
    save_phase phase;
    clt_status st;           /* of ENDED */
    bool skip;               /* this run has saved this batch under this name before */
    clt_ckpt_commit *commit; /* on every rank; the strategy's functions run on rank 0 */
    int64_t batch;
    clt_str head;          /* rank 0: the manifest's text up to the lists */
    clt_ckpt_stored *rows; /* rank 0, of COMMITTING: every rank's */

    /* rank 0 */
    background opening;      /* examines the name */
    background closing;      /* commits, then does what follows a commit */
    clt_ckpt_commit *tidied; /* what `closing` still needs of the last save */
};

clt_ckpt_writer_params clt_ckpt_writer_params_default(void) {
    return (clt_ckpt_writer_params){.keep = -1, .threads = -1};
}

static bool is_remote(const clt_ckpt_writer *w) {
    return !clt_io_can(w->folder, CLT_IO_HAS_FOLDERS);
}

/* --- threads of rank 0 --- */

/* Without a thread fn is called here. */
static void start(background *b, void *(*fn)(void *), clt_ckpt_writer *w) {
    b->st = CLT_OK;
    atomic_store(&b->done, false);
    b->running = clt_thread_start(&b->thread, fn, w) == 0;
    if (!b->running) fn(w);
}

static void decide(background *b, clt_status st) {
    b->st = st;
    atomic_store(&b->done, true);
}

static void join(background *b) {
    if (b->running) pthread_join(b->thread, NULL);
    b->running = false;
}

/* --- creation --- */

static int default_threads(const clt_group *g) {
    int here = g ? clt_group_local_size(g) : 1;
    return CLT_MIN(clt_bind_cpus_each(here), 4);
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
    CLT_TRY(clt_ckpt_plan_make(&w->p, &w->plan));
    for (size_t i = 0; i < w->plan.n; i++) {
        if (w->plan.item[i].owner != clt_ckpt_rank(w->p.group)) continue;
        share += w->plan.item[i].count;
        largest = CLT_MAX(largest, w->plan.item[i].count);
    }
    w->row = clt_try_calloc(w->plan.mine, sizeof *w->row);
    if (!w->row) return clt_no_memory("the list of a checkpoint's chunks", w->plan.mine * sizeof *w->row);
    if (w->p.snapshot) {
        w->arena = clt_try_aligned_alloc((size_t)share * sizeof *w->arena);
        if (!w->arena)
            return clt_no_memory("the copy of the state from which a checkpoint is written",
                                 share * sizeof *w->arena);
    }
    return clt_pipe_create(threads, w->p.snapshot ? 0 : threads + 2, w->plan.mine, (size_t)largest, &w->pipe);
}

clt_status clt_ckpt_writer_create(const clt_ckpt_writer_params *p, clt_ckpt_writer **out) {
    clt_ckpt_writer *w = clt_calloc(1, sizeof *w);
    w->p = *p;
    w->p.parts = clt_memdup(p->parts, (size_t)p->part_count * sizeof *p->parts);
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
    clt_free(w->rows);
    w->commit = NULL;
    w->rows = NULL;
    w->active = w->skip = false;
}

static void end_tidying(clt_ckpt_writer *w) {
    join(&w->closing);
    clt_ckpt_commit_destroy(w->tidied);
    w->tidied = NULL;
}

void clt_ckpt_writer_destroy(clt_ckpt_writer *w) {
    if (!w) return;
    join(&w->opening);
    join(&w->closing);
    if (w->tidied == w->commit) w->tidied = NULL;
    end_tidying(w);
    clt_pipe_destroy(w->pipe);
    const bool committed =
        w->phase == COMMITTING ? w->closing.st == CLT_OK : w->phase == ENDED && w->st == CLT_OK;
    if (w->active && !w->skip && !committed && clt_ckpt_rank(w->p.group) == 0) w->how->discard(w->commit);
    forget_save(w);
    clt_free((void *)w->p.parts);
    clt_free(w->folder);
    clt_free(w->latest);
    clt_free(w->plan.item);
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

/* Rank 0: examines what has the name, and makes the place to write to. */
static clt_status open_save(clt_ckpt_writer *w) {
    CLT_TRY(saved_before(w));
    return w->skip ? CLT_OK : w->how->begin(w->commit);
}

static void *open_behind(void *arg) {
    clt_ckpt_writer *w = arg;
    const clt_status st = open_save(w);
    if (st != CLT_OK || w->skip)
        clt_pipe_cancel(w->pipe, CLT_IO); /* what is still to be written is not needed */
    decide(&w->opening, st);
    return NULL;
}

/* Each request costs remote storage some of a step's time, so a copy of the state is taken first, and the
 * requests are made while it is written: no other save has its data files. A save without a copy waits for
 * the storage anyway, and a file system needs a folder for the files. */
static bool opens_behind(const clt_ckpt_writer *w) {
    return w->arena && is_remote(w);
}

/* Rank 0: what can be refused without reading this rank's share. */
static clt_status prepare_save(clt_ckpt_writer *w, const clt_checkpoint_state *state) {
    const char *name = w->commit->name;
    if (!clt_path_is_safe(name) || strchr(name, '/') || clt_ckpt_name_is_special(name))
        return clt_error(CLT_BAD_CONFIG,
                         "'%s' is not a usable name for a checkpoint (save_filename): it must be one path "
                         "component without '.tmp.' and '.superseded.'",
                         name);
    if (!opens_behind(w)) CLT_TRY(open_save(w));
    return w->skip ? CLT_OK : clt_manifest_head(name, w->run_id, clt_wall(), state, &w->head);
}

/* Passes this rank's chunks to the pipe as they are read. */
static clt_status feed(clt_ckpt_writer *w) {
    for (size_t i = 0; i < w->plan.n; i++) {
        const clt_ckpt_plan_item *c = &w->plan.item[i];
        if (c->owner != clt_ckpt_rank(w->p.group)) continue;
        float *to = clt_pipe_buffer(w->pipe);
        if (!to) return CLT_IO;
        CLT_TRY(clt_ckpt_part_read(&w->p.parts[c->part], w->p.table, c->entry, c->first, to, c->count));
        clt_pipe_submit(w->pipe, to, c->count, true);
    }
    return CLT_OK;
}

/* Copies this rank's share; consecutive chunks of a tensor at once. */
static clt_status take_copy(clt_ckpt_writer *w) {
    const int rank = clt_ckpt_rank(w->p.group);
    float *to = w->arena;
    for (size_t i = 0; i < w->plan.n;) {
        const clt_ckpt_plan_item *c = &w->plan.item[i];
        uint64_t count = 0;
        for (; i < w->plan.n; i++) {
            const clt_ckpt_plan_item *next = &w->plan.item[i];
            if (next->owner != c->owner || next->part != c->part || next->entry != c->entry) break;
            count += next->count;
        }
        if (c->owner != rank) continue;
        CLT_TRY(clt_ckpt_part_read(&w->p.parts[c->part], w->p.table, c->entry, c->first, to, count));
        to += count;
    }
    return CLT_OK;
}

static void submit_copy(clt_ckpt_writer *w) {
    float *at = w->arena;
    for (size_t i = 0; i < w->plan.n; i++) {
        if (w->plan.item[i].owner != clt_ckpt_rank(w->p.group)) continue;
        clt_pipe_submit(w->pipe, at, w->plan.item[i].count, false);
        at += w->plan.item[i].count;
    }
}

/* The pipe keeps a failure for finish. */
static void begin_writing(clt_ckpt_writer *w) {
    char *file = w->how->file(w->commit, clt_ckpt_rank(w->p.group));
    char *path = clt_path_join(w->commit->path, file);
    /* The pipe's threads start behind the copy: they would take memory bandwidth and CPU time from it. */
    clt_status st = w->arena ? take_copy(w) : CLT_OK;
    clt_pipe_start(w->pipe, path, w->plan.mine, w->row);
    if (st == CLT_OK && w->arena)
        submit_copy(w);
    else if (st == CLT_OK)
        st = feed(w);
    if (st != CLT_OK) clt_pipe_cancel(w->pipe, st);
    clt_free(path);
    clt_free(file);
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
        first.st = prepare_save(w, state);
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
    w->phase = w->skip ? ENDED : WRITING;
    w->st = CLT_OK;
    if (w->skip) return CLT_OK;
    begin_writing(w);
    if (rank == 0 && opens_behind(w))
        start(&w->opening, open_behind, w);
    else
        decide(&w->opening, CLT_OK);
    return CLT_OK;
}

bool clt_ckpt_save_ready(clt_ckpt_writer *w) {
    if (!w->active || w->phase == ENDED) return true;
    if (w->phase == COMMITTING) return atomic_load(&w->closing.done);
    return clt_pipe_ready(w->pipe) && atomic_load(&w->opening.done);
}

/* --- finish --- */

/* Every rank's rows: those of rank 0, then those of rank 1, and so on; a rank's in the order of the plan. */
static clt_status gather_rows(clt_ckpt_writer *w, clt_ckpt_stored **rows) {
    size_t bytes = w->plan.mine * sizeof *w->row;
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

/* In the calling thread. */
static void commit(clt_ckpt_writer *w) {
    clt_status st = clt_ckpt_plan_manifest(&w->plan, &w->p, w->commit, w->rows, &w->head);
    /* The ranks read back the data files that they wrote. */
    if (st == CLT_OK) st = clt_ckpt_commit_publish(w->commit, w->p.lock, w->head.s, w->head.len);
    decide(&w->closing, st);
}

static void after_commit(const clt_ckpt_writer *w, clt_ckpt_commit *c) {
    if (w->how->finish(c) != CLT_OK) clt_warn("%s could not be removed", c->path);
    if (w->p.single || !clt_run_lock_is_held(w->p.lock)) return;
    clt_ckpt_commit_hint(c, w->latest);
    clt_ckpt_commit_prune(c, w->p.keep);
}

static void *tidy(void *arg) {
    const clt_ckpt_writer *w = arg;
    after_commit(w, w->tidied);
    return NULL;
}

/* From `done` on w->commit is the main thread's. */
static void *close_behind(void *arg) {
    clt_ckpt_writer *w = arg;
    clt_ckpt_commit *c = w->tidied = w->commit;
    commit(w);
    if (w->closing.st == CLT_OK) after_commit(w, c);
    return NULL;
}

/* Each file costs remote storage a request or two, one after the other: training does not wait for them. */
static void begin_tidying(clt_ckpt_writer *w) {
    const bool begun = w->tidied; /* by close_behind */
    w->tidied = w->commit;
    w->commit = NULL;
    if (begun) return;
    if (is_remote(w)) {
        start(&w->closing, tidy, w);
    } else {
        tidy(w);
        end_tidying(w);
    }
}

static void after_failure(clt_ckpt_writer *w) {
    join(&w->closing);
    w->tidied = NULL;
    w->how->discard(w->commit);
    if (w->commit->moved)
        clt_warn("checkpoint %s was not saved safely; the one before it is %s now", w->commit->final,
                 w->commit->moved);
    else
        clt_warn("checkpoint %s was not saved; the checkpoints before it are untouched", w->commit->final);
}

/* Waits for this rank's chunks and, on rank 0, the examination of the name. */
static clt_status end_writing(clt_ckpt_writer *w) {
    clt_group *g = w->p.group;
    const clt_status written = clt_pipe_finish(w->pipe);
    join(&w->opening);
    struct {
        clt_status st;
        bool skip;
    } opened = {w->opening.st, w->skip};
    CLT_TRY(clt_ckpt_broadcast(g, &opened, sizeof opened));
    w->skip = opened.skip;
    if (opened.st != CLT_OK || w->skip) return opened.st;
    CLT_TRY(clt_ckpt_agree(g, written));
    return gather_rows(w, &w->rows);
}

/* The next phase. behind: rank 0 commits in a thread. */
static void advance(clt_ckpt_writer *w, bool behind) {
    if (w->phase == COMMITTING) {
        if (!atomic_load(&w->closing.done)) join(&w->closing);
        w->st = clt_ckpt_agree(w->p.group, w->closing.st);
        w->phase = ENDED;
        return;
    }
    w->st = end_writing(w);
    w->phase = w->st != CLT_OK || w->skip ? ENDED : COMMITTING;
    if (w->phase == ENDED) return;
    if (clt_ckpt_rank(w->p.group) != 0)
        decide(&w->closing, CLT_OK);
    else if (behind)
        start(&w->closing, close_behind, w);
    else
        commit(w);
}

bool clt_ckpt_save_next(clt_ckpt_writer *w) {
    if (w->active && w->phase != ENDED) advance(w, true);
    return !w->active || w->phase == ENDED;
}

clt_status clt_ckpt_save_finish(clt_ckpt_writer *w) {
    if (!w->active) return clt_error(CLT_FAIL, "no save is in progress");
    while (w->phase != ENDED) advance(w, false);
    const clt_status st = w->st;
    if (clt_ckpt_rank(w->p.group) == 0) {
        if (w->skip && opens_behind(w))
            w->how->discard(w->commit);
        else if (!w->skip && st == CLT_OK)
            begin_tidying(w);
        else if (!w->skip)
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
