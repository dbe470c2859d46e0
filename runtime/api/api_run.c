/* The run object of the public library: a clt_run in a context of its own. */
#include <math.h>
#include <string.h>

#include "runtime/api/api.h"
#include "runtime/base/clt_signal.h"
#include "runtime/object/clt_object.h"

/* --- preparing --- */

cltrain_status cltrain_run_create(cltrain_run **run) {
    if (!run) return api_misuse("cltrain_run_create: run is NULL");
    *run = clt_try_calloc(1, sizeof **run);
    return *run ? CLTRAIN_OK : api_no_memory();
}

/* Checks that the arguments are not NULL and that the run is not open yet. `call` is for the message. */
static cltrain_status check_preparing(const cltrain_run *run, const void *argument, const char *call) {
    if (!run || !argument) return api_misuse("%s: an argument is NULL", call);
    return run->state == API_PREPARING ? CLTRAIN_OK : api_misuse("%s: call it before cltrain_run_open", call);
}

#define TRY_PREPARING(run, argument)                                                                         \
    do {                                                                                                     \
        const cltrain_status st_ = check_preparing(run, argument, __func__);                                 \
        if (st_ != CLTRAIN_OK) return st_;                                                                   \
    } while (0)

static void replace(char **text, const char *with) {
    clt_free(*text);
    *text = clt_strdup(with);
}

cltrain_status cltrain_run_config_file(cltrain_run *run, const char *path) {
    TRY_PREPARING(run, path);
    if (run->path || run->text) return api_misuse("%s: the run already has a configuration", __func__);
    replace(&run->path, path);
    return api_prepared();
}

cltrain_status cltrain_run_config_text(cltrain_run *run, const char *yaml) {
    TRY_PREPARING(run, yaml);
    if (run->path || run->text) return api_misuse("%s: the run already has a configuration", __func__);
    replace(&run->text, yaml);
    return api_prepared();
}

cltrain_status cltrain_run_set(cltrain_run *run, const char *setting) {
    TRY_PREPARING(run, setting);
    if (!strchr(setting, '='))
        return api_misuse("%s: '%.80s' has no '='; use key.sub=value", __func__, setting);
    clt_strv_add(&run->settings, setting);
    return api_prepared();
}

cltrain_status cltrain_run_on_log(cltrain_run *run, cltrain_log_level level, cltrain_log_fn fn,
                                  void *context) {
    TRY_PREPARING(run, run);
    run->log = fn;
    run->level = level;
    run->log_ctx = context;
    return api_prepared();
}

cltrain_status cltrain_run_on_metrics(cltrain_run *run, cltrain_metrics_fn fn, void *context) {
    TRY_PREPARING(run, run);
    run->options.row = fn;
    run->options.row_ctx = context;
    return api_prepared();
}

cltrain_status cltrain_run_device(cltrain_run *run, const char *pattern) {
    TRY_PREPARING(run, pattern);
    replace(&run->device, pattern);
    return api_prepared();
}

cltrain_status cltrain_run_cache(cltrain_run *run, const char *folder) {
    TRY_PREPARING(run, folder);
    replace(&run->cache, folder);
    return api_prepared();
}

cltrain_status cltrain_run_use_environment(cltrain_run *run) {
    TRY_PREPARING(run, run);
    run->environment = true;
    return api_prepared();
}

/* --- opening and closing --- */

static void pass_log(void *ctx, clt_log_level level, const char *text) {
    const cltrain_run *run = ctx;
    run->log(run->log_ctx, (cltrain_log_level)level, text);
}

static void make_context(cltrain_run *run) {
    const clt_context_params p = {.log = {run->log ? pass_log : NULL, run},
                                  .level = (clt_log_level)run->level,
                                  .environment = run->environment};
    run->context = clt_context_create(&p);
    if (run->cache)
        clt_context_set_env(run->context, CLT_ENV_CACHE_DIR, run->cache);
    else if (!run->environment)
        clt_context_set_env(run->context, CLT_ENV_NO_CACHE, "1");
}

static clt_status open_run(cltrain_run *run) {
    const char *const *settings = (const char *const *)run->settings.v;
    const size_t n = run->settings.n;
    CLT_TRY(clt_object_register());
    CLT_TRY(run->text
                ? clt_config_parse(run->text, strlen(run->text), "configuration", settings, n, &run->config)
                : clt_config_load(run->path, settings, n, &run->config));
    run->options.device = run->device;
    run->options.started = clt_now();
    run->run = (clt_run){.cfg = run->config, .opt = &run->options};
    clt_status st = clt_run_start(&run->run);
    return clt_run_ended(&run->run, st);
}

/* Returns to the caller's context, `before`. */
static cltrain_status leave(clt_context *before, clt_status st) {
    if (st == CLT_OK) st = clt_memory_check();
    clt_context_enter(before);
    return api_status(st);
}

/* leave() after work whose failure ends the run: then it can only be closed. With several ranks the others
 * are told, so that they do not wait. */
static cltrain_status leave_or_end(cltrain_run *run, clt_context *before, clt_status st) {
    if (st == CLT_OK) st = clt_memory_check();
    if (st != CLT_OK) {
        run->state = API_ENDED;
        if (run->run.group && clt_group_size(run->run.group) > 1) clt_group_give_up(run->run.group, st);
    }
    return leave(before, st);
}

cltrain_status cltrain_run_open(cltrain_run *run) {
    TRY_PREPARING(run, run);
    if (!run->path && !run->text)
        return api_misuse(
            "%s: the run has no configuration; call cltrain_run_config_file or cltrain_run_config_text",
            __func__);
    make_context(run);
    clt_context *before = clt_context_enter(run->context);
    run->state = API_OPEN;
    return leave_or_end(run, before, open_run(run));
}

void cltrain_run_close(cltrain_run *run) {
    if (!run) return;
    clt_context *before = clt_context_enter(run->context);
    if (run->run.cfg) clt_run_close(&run->run);
    clt_config_free(run->config);
    clt_context_enter(before);
    clt_context_destroy(run->context);
    clt_strv_free(&run->settings);
    clt_free(run->path);
    clt_free(run->text);
    clt_free(run->device);
    clt_free(run->cache);
    clt_free(run);
}

/* --- running --- */

static cltrain_status check_open(const cltrain_run *run, const void *argument, const char *call) {
    if (!run || !argument) return api_misuse("%s: an argument is NULL", call);
    if (run->state == API_PREPARING) return api_misuse("%s: call it after cltrain_run_open", call);
    return run->state == API_OPEN ? CLTRAIN_OK
                                  : api_misuse("%s: the run has ended and can only be closed", call);
}

#define TRY_OPEN(run, argument)                                                                              \
    do {                                                                                                     \
        const cltrain_status st_ = check_open(run, argument, __func__);                                      \
        if (st_ != CLTRAIN_OK) return st_;                                                                   \
    } while (0)

/* At max_duration: the last evaluation, the last save and the event "end". */
static clt_status finish(cltrain_run *run) {
    clt_run *r = &run->run;
    CLT_TRY(clt_run_finish(r));
    clt_run_note_end(r, "done");
    run->finished = true;
    return r->saves.failed
               ? clt_error(CLT_IO, "the last checkpoint could not be saved in %s", r->files.folder)
               : CLT_OK;
}

static clt_status train(cltrain_run *run, int64_t steps) {
    bool done;
    clt_status st = clt_run_loop(&run->run, steps, &done);
    if (st == CLT_OK && done) st = finish(run);
    return clt_run_ended(&run->run, st);
}

cltrain_status cltrain_run_train(cltrain_run *run, int64_t steps) {
    TRY_OPEN(run, run);
    if (steps < 0) return api_misuse("%s: steps is %lld, it must be at least 0", __func__, (long long)steps);
    if (run->finished) return CLTRAIN_OK;
    clt_context *before = clt_context_enter(run->context);
    return leave_or_end(run, before, train(run, steps));
}

void cltrain_run_stop(cltrain_run *run) {
    if (run && run->context) clt_context_ask_stop(run->context, CLT_SIGNAL_CALLER);
}

cltrain_status cltrain_run_position(cltrain_run *run, cltrain_position *position) {
    TRY_OPEN(run, position);
    const clt_run_progress *p = &run->run.progress;
    *position = (cltrain_position){.epoch = p->now.epoch,
                                   .batch = p->now.batch,
                                   .sample = p->now.sample,
                                   .token = p->now.token,
                                   .loss = p->loss,
                                   .train_seconds = p->now.wall_seconds,
                                   .finished = run->finished,
                                   .resumed = run->run.origin.resumed};
    return CLTRAIN_OK;
}

static int find_loader(const clt_config *c, const char *label) {
    for (int i = 0; i < c->n_evals; i++)
        if (!label || strcmp(c->evals[i].label, label) == 0) return i;
    return -1;
}

cltrain_status cltrain_run_evaluate(cltrain_run *run, const char *label, cltrain_evaluation *result) {
    TRY_OPEN(run, result);
    const int i = find_loader(run->config, label);
    if (i < 0)
        return api_misuse("%s: the run has no evaluation data%s%s", __func__, label ? " with label " : "",
                          label ? label : "");
    clt_context *before = clt_context_enter(run->context);
    clt_eval_row row = {0};
    const clt_status st = clt_run_eval_loader(&run->run, i, &row);
    if (st == CLT_OK)
        *result = (cltrain_evaluation){
            .loss = row.loss, .perplexity = row.perplexity, .accuracy = row.accuracy, .samples = row.samples};
    return st == CLT_STOPPED ? leave(before, st) : leave_or_end(run, before, st);
}

static clt_status save(clt_run *r) {
    if (!r->saves.writer) return clt_error(CLT_BAD_CONFIG, "the run cannot save: set save_folder");
    CLT_TRY(clt_run_save_last(r));
    return r->saves.failed ? clt_error(CLT_IO, "the state at batch %lld could not be saved in %s",
                                       (long long)r->progress.now.batch, r->files.folder)
                           : CLT_OK;
}

cltrain_status cltrain_run_save(cltrain_run *run) {
    TRY_OPEN(run, run);
    clt_context *before = clt_context_enter(run->context);
    return leave(before, save(&run->run)); /* after a failed save the run stays open */
}

cltrain_status cltrain_run_hash(cltrain_run *run, cltrain_hash *hash) {
    TRY_OPEN(run, hash);
    int n;
    clt_state_hash h;
    clt_engine *e = run->run.engine;
    clt_context *before = clt_context_enter(run->context);
    const clt_ckpt_part *parts = clt_engine_parts(e, &n);
    clt_status st = clt_engine_settle(e);
    if (st == CLT_OK) st = clt_ckpt_hash_parts(run->run.group, clt_engine_table(e), parts, n, &h);
    if (st == CLT_OK) {
        clt_hash_hex(h.weights, hash->weights);
        clt_hash_hex(h.optimizer, hash->optimizer);
    }
    return leave_or_end(run, before, st);
}

/* --- text --- */

static clt_status generate(cltrain_run *run, const clt_generate_params *p, cltrain_text_fn text,
                           void *context) {
    clt_generator *g;
    CLT_TRY(clt_generator_of_engine(run->run.engine, run->config, &g));
    clt_status st = clt_generator_run(g, p, text, context);
    clt_generator_close(g);
    return st;
}

cltrain_status cltrain_run_generate(cltrain_run *run, const char *prompt, const cltrain_generation *options,
                                    cltrain_text_fn text, void *context) {
    TRY_OPEN(run, text);
    if (!prompt) return api_misuse("%s: prompt is NULL", __func__);
    const clt_generate_params p = api_generate_params(prompt, options);
    clt_context *before = clt_context_enter(run->context);
    return leave(before, generate(run, &p, text, context));
}

/* --- experimental --- */

cltrain_status cltrain_run_tensor_count(cltrain_run *run, int *count) {
    TRY_OPEN(run, count);
    *count = clt_engine_table(run->run.engine)->n;
    return CLTRAIN_OK;
}

cltrain_status cltrain_run_tensor(cltrain_run *run, int i, const char **name, uint64_t *elements,
                                  int64_t shape[4], int *dims) {
    TRY_OPEN(run, name);
    const clt_slab_table *t = clt_engine_table(run->run.engine);
    if (i < 0 || i >= t->n) return api_misuse("%s: the model has no tensor %d", __func__, i);
    const clt_slab_entry *e = &t->entry[i];
    *name = e->name;
    if (elements) *elements = e->count;
    for (int d = 0; shape && d < e->dims; d++) shape[d] = e->shape[d];
    if (dims) *dims = e->dims;
    return CLTRAIN_OK;
}

cltrain_status cltrain_run_read_tensor(cltrain_run *run, int i, float *values) {
    TRY_OPEN(run, values);
    const clt_slab_table *t = clt_engine_table(run->run.engine);
    if (i < 0 || i >= t->n) return api_misuse("%s: the model has no tensor %d", __func__, i);
    clt_context *before = clt_context_enter(run->context);
    const clt_ckpt_part *weights = &clt_engine_parts(run->run.engine, &(int){0})[0];
    return leave_or_end(run, before, clt_ckpt_gather(run->run.group, t, weights, i, values));
}
