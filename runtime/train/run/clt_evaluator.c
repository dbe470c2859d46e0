#include <math.h>

#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/train/run/clt_run.h"

/* Targets of the whole global batch. */
static clt_status global_targets(clt_run *r, int64_t mine, int64_t *all) {
    *all = mine;
    return clt_group_sum_i64(r->group, all, 1);
}

clt_status clt_run_eval_batch(clt_run *r, clt_loader *l, int64_t epoch, int64_t first, int64_t samples,
                              bool anyway, clt_engine_sums *sums) {
    int64_t mine, last;
    clt_loader_batch rows;
    clt_engine_share(r->engine, samples, &mine, &last);
    clt_status st = clt_loader_get(l, epoch, first + mine, last - mine, &rows);
    CLT_TRY(clt_group_agree(r->group, st));
    if (clt_group_stop(r->group) && !anyway) return CLT_OK;
    clt_engine_batch b = {
        .samples = samples, .tokens = rows.tokens, .labels = rows.targets, .seq_ids = rows.seq_ids};
    CLT_TRY(global_targets(r, rows.loss_tokens, &b.targets));
    return clt_engine_eval(r->engine, &b, sums);
}

static clt_status eval_loader(clt_run *r, int index, bool json) {
    const clt_loader_config *lc = &r->cfg->evals[index];
    clt_loader *l = r->evals[index];
    int64_t B = r->cfg->device_eval_batch_size * clt_group_size(r->group), N = clt_loader_num_samples(l);
    int64_t batches = clt_loader_batches(l, B, lc->drop_last), limit = r->cfg->eval_subset_num_batches;
    if (limit >= 0) batches = CLT_MIN(batches, limit);
    clt_engine_sums sums = {0};
    double start = clt_now();
    for (int64_t i = 0; i < batches; i++) {
        CLT_TRY(clt_run_eval_batch(r, l, 0, i * B, CLT_MIN(B, N - i * B), false, &sums));
        if (clt_group_stop(r->group)) return CLT_OK;
        clt_sinks_eval_progress(r->sinks, lc->label, i + 1, batches);
    }
    double n = (double)CLT_MAX(sums.targets, 1), loss = sums.loss / n;
    clt_eval_row row = {.batch = r->now.batch,
                        .label = lc->label,
                        .loss = loss,
                        .perplexity = exp(loss),
                        .accuracy = (double)sums.correct / n,
                        .samples = CLT_MIN(N, batches * B),
                        .seconds = clt_now() - start};
    clt_progress_end();
    clt_sinks_eval(r->sinks, &row);
    if (json && clt_group_rank(r->group) == 0) {
        clt_str b = {0};
        clt_json_escape(&b, lc->label);
        printf(
            "{\"label\":%s,\"batch\":%lld,\"eval_loss\":%.9g,\"eval_perplexity\":%.9g,\"eval_accuracy\":%.9g,"
            "\"samples\":%lld}\n",
            b.s, (long long)row.batch, row.loss, row.perplexity, row.accuracy, (long long)row.samples);
        clt_str_free(&b);
    }
    return CLT_OK;
}

clt_status clt_run_eval(clt_run *r, bool json) {
    double start = clt_now();
    clt_group_note(r->group, r->now.batch, "evaluation");
    for (int i = 0; i < r->cfg->n_evals; i++) CLT_TRY(eval_loader(r, i, json));
    r->eval_seconds += clt_now() - start;
    return CLT_OK;
}

/* The batch at which a checkpoint was written, 0 where weights do not say: which one was evaluated. */
static clt_status note_batch(clt_run *r, const char *path) {
    clt_weight_source *source;
    CLT_TRY(clt_weight_source_open(path, &source));
    const clt_ckpt_reader *checkpoint = clt_weight_source_checkpoint(source);
    if (checkpoint) r->now.batch = clt_ckpt_state(checkpoint)->batch;
    clt_weight_source_close(source);
    return CLT_OK;
}

clt_status clt_evaluate(const clt_config *cfg, const clt_run_options *opt) {
    clt_run r = {0};
    char *path = NULL;
    clt_status st = clt_run_open(&r, cfg, opt);
    bool opened = st == CLT_OK;
    if (opened) r.cfg->n_lanes_per_rank = 0; /* which samples a rank evaluates changes nothing */
    if (st == CLT_OK && cfg->n_evals == 0) st = clt_error(CLT_BAD_CONFIG, "%s has no eval_loader", cfg->path);
    if (st == CLT_OK && !cfg->load_path)
        st = clt_error(CLT_BAD_CONFIG,
                       "nothing to evaluate: set load_path to a checkpoint or a Hugging Face folder");
    if (opened) st = clt_group_agree(r.group, st);
    int64_t B = cfg->device_eval_batch_size;
    r.evals = clt_calloc((size_t)cfg->n_evals, sizeof *r.evals);
    for (int i = 0; st == CLT_OK && i < cfg->n_evals; i++)
        st = clt_run_open_loader(&r, &cfg->evals[i], true, B * clt_group_size(r.group), &r.evals[i]);
    if (st == CLT_OK) st = clt_ckpt_resolve(r.group, cfg->load_path, &path);
    int ranks = st == CLT_OK ? clt_group_size(r.group) : 1;
    clt_engine_params p = {.cfg = r.cfg,
                           .group = r.group,
                           .ops = r.ops,
                           .microbatch = CLT_MIN(B, 4),
                           .lanes = CLT_MAX(clt_run_lanes(cfg, ranks), ranks)};
    if (st == CLT_OK) st = clt_group_agree(r.group, clt_engine_create(&p, &r.engine));
    if (st == CLT_OK) st = clt_run_load(&r, path, false, false);
    if (st == CLT_OK) st = note_batch(&r, path);
    if (st == CLT_OK) st = clt_engine_weights_changed(r.engine);
    if (st == CLT_OK) st = clt_sinks_create(cfg, NULL, clt_group_rank(r.group) == 0, 0, &r.sinks);
    if (st == CLT_OK) st = clt_run_eval(&r, true);
    if (st != CLT_OK && r.group) clt_group_give_up(r.group, st);
    clt_free(path);
    clt_run_close(&r);
    return st;
}
