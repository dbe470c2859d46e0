#include "runtime/train/run/clt_run.h"

#include <string.h>

#include "runtime/base/clt_options.h"

/* --device, else the configuration's list with one entry per node-local rank, else the device layer's choice.
 */
static char *device_pattern(const clt_config *c, const clt_run_options *opt) {
    if (opt->device) return clt_strdup(opt->device);
    clt_str b = {0};
    for (size_t i = 0; i < c->devices.n; i++) clt_str_addf(&b, "%s%s", i ? "," : "", c->devices.v[i]);
    return b.s;
}

static clt_status open_device(clt_run *r) {
    char *pattern = device_pattern(r->cfg, r->opt);
    clt_device_params p = clt_device_params_default();
    p.pattern = pattern;
    p.local_rank = clt_group_local_rank(r->group);
    p.local_size = clt_group_local_size(r->group);
    p.profile = r->opt->profile || r->opt->trace || clt_env_long(CLT_ENV_PROFILE, 0);
    p.helpers = true;
    p.need_exact = r->cfg->numerics == CLT_EXACT;
    clt_status st = clt_device_open(&p, &r->dev);
    clt_free(pattern);
    CLT_TRY(clt_group_agree(r->group, st));
    const clt_device_facts *f = clt_device_get_facts(r->dev);
    if (clt_group_size(r->group) > 1)
        clt_debug("device %d:%d %s (%s)", f->platform_index, f->device_index, f->name, f->platform);
    clt_info("device: %s (%s, driver %s), %d rank%s, %s numerics", f->name, f->platform, f->driver,
             clt_group_size(r->group), clt_group_size(r->group) == 1 ? "" : "s",
             r->cfg->numerics == CLT_EXACT ? "exact" : "fast");
    return CLT_OK;
}

clt_status clt_run_open(clt_run *r, const clt_config *cfg, const clt_run_options *opt) {
    r->opt = opt;
    r->cfg = clt_memdup(cfg, sizeof *cfg);
    CLT_TRY(clt_group_create(cfg->dist_timeout, &r->group));
    CLT_TRY(clt_group_agree(r->group, clt_config_check_run(cfg, clt_group_size(r->group))));
    const bool writes = clt_group_rank(r->group) == 0; /* the trace */
    CLT_TRY(clt_group_agree(r->group, writes ? clt_options_look_at_file("--trace", opt->trace) : CLT_OK));
    CLT_TRY(clt_run_id(r->group, r->run_id));
    CLT_TRY(open_device(r));
    clt_ops_params p = clt_ops_params_default();
    p.numerics = cfg->numerics;
    p.tune = cfg->tune;
    return clt_group_agree(r->group, clt_ops_create(r->dev, &p, &r->ops));
}

void clt_run_close(clt_run *r) {
    clt_ckpt_writer_destroy(r->writer);
    clt_free(r->save.name);
    clt_trace_destroy(r->trace);
    clt_run_guard_destroy(r);
    clt_sinks_destroy(r->sinks);
    clt_engine_destroy(r->engine);
    clt_loader_close(r->train);
    for (int i = 0; r->evals && i < r->cfg->n_evals; i++) clt_loader_close(r->evals[i]);
    clt_free(r->evals);
    clt_ops_destroy(r->ops);
    clt_device_close(r->dev);
    clt_run_lock_release(r->lock);
    clt_group_destroy(r->group);
    clt_log_set_file(NULL);
    if (r->log) fclose(r->log);
    for (int i = 0; i < CLT_RUN_AHEAD; i++) clt_free(r->queued[i].arrays);
    clt_free(r->folder);
    clt_file_close(r->sample_log);
    clt_free(r->lanes_per_rank);
    clt_run_place_free(&r->here);
    clt_run_place_free(&r->writer_was);
    clt_free(r->cfg);
}

bool clt_run_epoch_over(const clt_run *r, int64_t sample_in_epoch, int64_t batch_in_epoch) {
    int64_t least = r->cfg->train.drop_last ? r->cfg->global_train_batch_size : 1;
    int64_t subset = r->cfg->train_subset_num_batches;
    return clt_loader_num_samples(r->train) - sample_in_epoch < least ||
           (subset > 0 && batch_in_epoch >= subset);
}

clt_status clt_run_open_loader(clt_run *r, const clt_loader_config *l, bool eval, int64_t max_rows,
                               clt_loader **out) {
    clt_loader_params p;
    clt_loader_params_default(&p);
    p.local = l->local;
    p.remote = l->remote;
    p.split = l->split;
    p.max_seq_len = r->cfg->max_seq_len;
    p.vocab_size = r->cfg->model.vocab_size;
    p.tokenizer = r->cfg->tokenizer;
    p.token_encoding_type = l->token_encoding_type;
    p.validate_hash = l->validate_hash;
    p.eval = eval;
    p.shuffle = l->shuffle;
    p.shuffle_algo = l->shuffle_algo;
    p.shuffle_seed = (uint64_t)l->shuffle_seed;
    p.num_canonical_nodes = l->num_canonical_nodes;
    p.shuffle_block_size = l->shuffle_block_size;
    p.eos_token_id = l->eos_token_id;
    p.bos_token_id = l->bos_token_id;
    p.max_rows = max_rows;
    clt_status st = clt_group_agree(r->group, clt_loader_open(&p, out));
    if (st == CLT_OK && eval && clt_loader_batches(*out, max_rows, l->drop_last) == 0)
        return clt_error(
            CLT_BAD_CONFIG,
            "the evaluation data '%s' has %lld samples, fewer than a batch of %lld, and drop_last "
            "leaves that out: set drop_last: false",
            l->label, (long long)clt_loader_num_samples(*out), (long long)max_rows);
    if (st == CLT_OK && r->cfg->model.attn_uses_sequence_id && !clt_loader_has_seq_ids(*out))
        return clt_error(CLT_BAD_CONFIG,
                         "model.attn_config.attn_uses_sequence_id needs eos_token_id or bos_token_id in "
                         "the loader's dataset section");
    return st;
}
