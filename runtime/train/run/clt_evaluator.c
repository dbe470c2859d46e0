#include <math.h>

#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/train/run/clt_run.h"

clt_status clt_run_eval_batch(clt_run *r, clt_loader *l, int64_t epoch, int64_t first, int64_t samples,
                              bool anyway, clt_engine_sums *sums) {
    int64_t mine, last;
    clt_batch b;
    clt_engine_share(r->engine, samples, &mine, &last);
    clt_status st = clt_loader_get(l, epoch, first + mine, last - mine, &b);
    CLT_TRY(clt_run_note_data(r, clt_group_agree(r->group, st)));
    if (clt_group_stop(r->group) && !anyway) return CLT_OK;
    b.first = mine;
    b.global_samples = samples;
    b.global_targets = b.targets;
    CLT_TRY(clt_group_sum_i64(r->group, &b.global_targets, 1));
    return clt_engine_eval(r->engine, &b, sums);
}

clt_status clt_run_eval_loader(clt_run *r, int index, clt_eval_row *row) {
    const clt_loader_config *lc = &r->cfg->evals[index];
    clt_loader *l = r->evals[index];
    int64_t B = r->cfg->device_eval_batch_size * clt_group_size(r->group), N = clt_loader_rows_of(l, 0);
    int64_t batches = clt_loader_batches(l, B, lc->drop_last), limit = r->cfg->eval_subset_num_batches;
    if (limit >= 0) batches = CLT_MIN(batches, limit);
    clt_engine_sums sums = {0};
    double start = clt_now();
    for (int64_t i = 0; i < batches; i++) {
        CLT_TRY(clt_run_eval_batch(r, l, 0, i * B, CLT_MIN(B, N - i * B), false, &sums));
        if (clt_group_stop(r->group)) return CLT_STOPPED;
        clt_sinks_eval_progress(r->sinks, lc->label, i + 1, batches);
    }
    double n = (double)CLT_MAX(sums.targets, 1), loss = sums.loss / n;
    *row = (clt_eval_row){.batch = r->progress.now.batch,
                          .label = lc->label,
                          .loss = loss,
                          .perplexity = exp(loss),
                          .accuracy = (double)sums.correct.top1 / n,
                          .accuracy5 = (double)sums.correct.top5 / n,
                          .samples = CLT_MIN(N, batches * B),
                          .seconds = clt_now() - start};
    clt_progress_end();
    clt_sinks_eval(r->sinks, row);
    clt_run_early_look(r, row);
    return CLT_OK;
}

static void print_json(const clt_model_terms *terms, const clt_eval_row *row) {
    clt_str b = {0};
    clt_str_add(&b, "{\"label\":");
    clt_json_escape(&b, row->label);
    clt_str_addf(&b, ",\"batch\":%lld", (long long)row->batch);
    clt_json_add_number(&b, "eval_loss", row->loss, "%.9g");
    if (terms->perplexity) clt_json_add_number(&b, "eval_perplexity", row->perplexity, "%.9g");
    clt_json_add_number(&b, "eval_accuracy", row->accuracy, "%.9g");
    if (terms->accuracy5) clt_json_add_number(&b, "eval_accuracy_top5", row->accuracy5, "%.9g");
    printf("%s,\"samples\":%lld}\n", b.s, (long long)row->samples);
    clt_str_free(&b);
}

bool clt_run_evaluates(const clt_config *c) {
    return c->n_evals > 0 || c->icl.n > 0;
}

clt_status clt_run_eval(clt_run *r, bool json) {
    double start = clt_now();
    clt_group_note(r->group, r->progress.now.batch, "evaluation");
    for (int i = 0; i < r->cfg->n_evals; i++) {
        clt_eval_row row;
        clt_status st = clt_run_eval_loader(r, i, &row);
        if (st == CLT_STOPPED) break; /* the caller checks clt_group_stop */
        CLT_TRY(st);
        if (json && clt_group_rank(r->group) == 0) print_json(clt_model_get_terms(r->cfg->model), &row);
    }
    clt_status st = r->files.local && !clt_group_stop(r->group) ? clt_run_predictions(r) : CLT_OK;
    if (st != CLT_STOPPED) CLT_TRY(st);
    const bool stopped = clt_group_stop(r->group);
    st = stopped ? CLT_OK : clt_run_icl_eval(r, json && (!r->opt->eval || r->opt->eval->json));
    if (st != CLT_STOPPED) CLT_TRY(st);
    r->pace.eval_seconds += clt_now() - start;
    return CLT_OK;
}

/* Sets the batch of the evaluated checkpoint for the results; it stays 0 for weights of other programs. */
static clt_status note_batch(clt_run *r, const char *path) {
    clt_weight_source *source;
    CLT_TRY(clt_weight_source_open(path, &source));
    const clt_ckpt_reader *checkpoint = clt_weight_source_checkpoint(source);
    if (checkpoint) r->progress.now.batch = clt_ckpt_state(checkpoint)->batch;
    clt_weight_source_close(source);
    return CLT_OK;
}

static const char *evaluated_path(const clt_config *c) {
    return c->load_path ? c->load_path : clt_model_pretrained(c->model);
}

/* Opens what evaluation needs: data, an engine without training, the weights. */
static clt_status open_evaluation(clt_run *r) {
    const clt_config *c = r->cfg;
    const int64_t B = c->device_eval_batch_size;
    r->evals = clt_calloc((size_t)c->n_evals, sizeof *r->evals);
    for (int i = 0; i < c->n_evals; i++)
        CLT_TRY(clt_run_open_loader(r, &c->evals[i], true, B * clt_group_size(r->group), &r->evals[i]));
    CLT_TRY(clt_ckpt_resolve(r->group, evaluated_path(c), &r->origin.path));
    clt_plan_divide_evenly(&r->plan); /* the result does not depend on which rank evaluates a sample */
    r->plan.microbatch = c->icl.n ? B : CLT_MIN(B, 4);
    const clt_engine_params p = {.cfg = c, .group = r->group, .ops = r->ops, .plan = &r->plan};
    CLT_TRY(clt_group_agree(r->group, clt_engine_create(&p, &r->engine)));
    CLT_TRY(clt_run_load(r, r->origin.path, false, false));
    CLT_TRY(note_batch(r, r->origin.path));
    CLT_TRY(clt_engine_weights_changed(r->engine));
    CLT_TRY(clt_group_agree(r->group, clt_run_icl_open(r)));
    const clt_sinks_params s = {.cfg = c, .main_rank = clt_group_rank(r->group) == 0};
    return clt_sinks_create(&s, &r->sinks);
}

static clt_status check_evaluation(const clt_run *r) {
    const clt_config *c = r->cfg;
    if (!clt_run_evaluates(c))
        return clt_error(CLT_BAD_CONFIG, "%s has no eval_loader and no icl_tasks", c->path);
    if (r->opt->eval && r->opt->eval->items && clt_group_size(r->group) > 1)
        return clt_error(CLT_BAD_CONFIG, "--items needs a single rank");
    return clt_config_check_weights(c);
}

static clt_status evaluate(clt_run *r) {
    CLT_TRY(clt_run_join(r, "eval"));
    CLT_TRY(clt_run_open_device(r));
    CLT_TRY(clt_run_open_ops(r));
    CLT_TRY(clt_group_agree(r->group, check_evaluation(r)));
    CLT_TRY(clt_group_agree(r->group, open_evaluation(r)));
    return clt_run_eval(r, true);
}

clt_status clt_evaluate(const clt_config *cfg, const clt_run_options *opt) {
    clt_run r = {.cfg = cfg, .opt = opt};
    clt_status st = evaluate(&r);
    if (st != CLT_OK && r.group) clt_group_give_up(r.group, st);
    clt_run_close(&r);
    return st;
}
