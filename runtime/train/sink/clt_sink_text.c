/* loggers.file_logger: Composer's text file, one line for each metric. */
#include "runtime/train/sink/clt_sink_kind.h"
#include "runtime/train/sink/clt_sink_lines.h"

typedef struct {
    clt_sink_lines *file;
    clt_str pending;
    int64_t interval, batches; /* between two writes; since the last one */
} text;

static clt_status text_open(const clt_sinks_params *p, void **state) {
    const clt_file_logger_config *c = &p->cfg->loggers.file;
    clt_sink_lines *file;
    if (!p->folder || !c->on) return CLT_OK;
    char *path = clt_config_expand(p->cfg, c->filename, &(clt_timestamp){0});
    clt_status st = clt_sink_lines_open(path, &file, NULL);
    clt_free(path);
    CLT_TRY(st);
    *state = clt_memdup(&(text){.file = file, .interval = c->flush_interval}, sizeof(text));
    return CLT_OK;
}

static clt_status flush(text *t) {
    clt_status st = t->pending.len ? clt_sink_lines_append(t->file, t->pending.s, t->pending.len) : CLT_OK;
    clt_str_free(&t->pending);
    t->batches = 0;
    return st;
}

static void add(text *t, int64_t batch, const clt_metrics *m) {
    for (size_t i = 0; i < m->n; i++) {
        clt_str_addf(&t->pending, "[metric][batch=%lld]: %s: ", (long long)batch, m->v[i].name);
        clt_str_addf(&t->pending, m->v[i].format, m->v[i].value);
        clt_str_add(&t->pending, "\n");
    }
}

static clt_status text_step(void *state, const clt_sink_step *s) {
    text *t = state;
    add(t, s->row->after.batch, s->metrics);
    return ++t->batches >= t->interval ? flush(t) : CLT_OK;
}

static clt_status text_eval(void *state, const clt_sink_eval *e) {
    add(state, e->row->batch, e->metrics);
    return flush(state);
}

static clt_status text_named(void *state, const clt_sink_named *n) {
    add(state, n->row->batch, n->metrics);
    return flush(state);
}

static clt_status text_close(void *state) {
    text *t = state;
    clt_status st = flush(t), closed = clt_sink_lines_close(t->file);
    clt_free(t);
    return st != CLT_OK ? st : closed;
}

const clt_sink_kind clt_sink_text = {.name = "the file of loggers.file_logger",
                                     .open = text_open,
                                     .step = text_step,
                                     .eval = text_eval,
                                     .named = text_named,
                                     .close = text_close};
