/* loggers.tensorboard: event files in LOG_DIR/RUN_NAME. Every process of a run writes a file of its own, as
 * Composer does; readers merge them by step. */
#include <unistd.h>

#include "runtime/train/sink/clt_event_file.h"
#include "runtime/train/sink/clt_sink_kind.h"

typedef struct {
    char *folder;
    clt_file *file; /* NULL: the next write makes one */
    clt_str pending;
    int64_t interval, batches; /* between two writes; since the last one */
    int64_t next;              /* the batch that is expected next */
    int files;
} board;

/* A number after the process, because a file that may end in the middle of a record is not continued. */
static clt_status new_file(board *b) {
    char host[256] = "";
    clt_str first = {0};
    gethostname(host, sizeof host - 1);
    char *name = clt_format("events.out.tfevents.%010lld.%s.%ld.%d", (long long)clt_wall(), host,
                            (long)getpid(), b->files++),
         *path = clt_path_join(b->folder, name);
    clt_event_add_version(&first, clt_wall());
    clt_event_add_start(&first, clt_wall(), b->next);
    clt_status st = clt_file_open(path, CLT_IO_APPEND, &b->file);
    if (st == CLT_OK) st = clt_file_append(b->file, first.s, first.len);
    clt_free(name);
    clt_free(path);
    clt_str_free(&first);
    return st;
}

static clt_status flush(board *b) {
    clt_status st = CLT_OK;
    b->batches = 0;
    if (b->pending.len == 0) return CLT_OK;
    if (!b->file) st = new_file(b);
    if (st == CLT_OK) st = clt_file_append(b->file, b->pending.s, b->pending.len);
    clt_str_free(&b->pending);
    if (st == CLT_OK) return CLT_OK;
    clt_file_close(b->file);
    b->file = NULL;
    return st;
}

static clt_status board_open(const clt_sinks_params *p, void **state) {
    const clt_tensorboard_config *c = &p->cfg->loggers.tensorboard;
    if (!p->folder || !c->on) return CLT_OK;
    board b = {.folder = clt_path_join(c->log_dir, p->cfg->run_name),
               .interval = c->flush_interval,
               .next = p->start_batch + 1};
    clt_status st = clt_io_mkdirs(b.folder);
    if (st != CLT_OK) {
        clt_free(b.folder);
        return st;
    }
    *state = clt_memdup(&b, sizeof b);
    return CLT_OK;
}

static clt_status board_step(void *state, const clt_sink_step *s) {
    board *b = state;
    const int64_t batch = s->row->after.batch;
    /* After a roll-back steps repeat: readers must drop the earlier ones. */
    if (batch < b->next) clt_event_add_start(&b->pending, clt_wall(), batch);
    clt_event_add_scalars(&b->pending, clt_wall(), batch, s->metrics);
    b->next = batch + 1;
    return ++b->batches >= b->interval ? flush(b) : CLT_OK;
}

static clt_status board_eval(void *state, const clt_sink_eval *e) {
    board *b = state;
    clt_event_add_scalars(&b->pending, clt_wall(), e->row->batch, e->metrics);
    return flush(b);
}

static clt_status board_named(void *state, const clt_sink_named *n) {
    board *b = state;
    clt_event_add_scalars(&b->pending, clt_wall(), n->row->batch, n->metrics);
    return flush(b);
}

static clt_status board_close(void *state) {
    board *b = state;
    clt_status st = flush(b), closed = clt_file_close(b->file);
    clt_free(b->folder);
    clt_free(b);
    return st != CLT_OK ? st : closed;
}

const clt_sink_kind clt_sink_tensorboard = {.name = "loggers.tensorboard",
                                            .open = board_open,
                                            .step = board_step,
                                            .eval = board_eval,
                                            .named = board_named,
                                            .close = board_close};
