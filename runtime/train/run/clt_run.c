#include "runtime/train/run/clt_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_options.h"

/* --device, or the configuration's list with one entry per node-local rank, or NULL: the device layer
 * chooses. */
static char *device_pattern(const clt_config *c, const clt_run_options *opt) {
    if (opt->device) return clt_strdup(opt->device);
    clt_str b = {0};
    for (size_t i = 0; i < c->devices.n; i++) clt_str_addf(&b, "%s%s", i ? "," : "", c->devices.v[i]);
    return b.s;
}

/* "1 rank", "4 ranks" or "4 ranks on 2 hosts" in *out, which the caller frees. */
static clt_status count_ranks(clt_group *g, char **out) {
    const int ranks = clt_group_size(g);
    int64_t hosts = clt_group_local_rank(g) == 0;
    CLT_TRY(clt_group_sum_i64(g, &hosts, 1));
    *out = hosts > 1 ? clt_format("%d ranks on %lld hosts", ranks, (long long)hosts)
                     : clt_format("%d rank%s", ranks, ranks == 1 ? "" : "s");
    return CLT_OK;
}

/* The slots of this host's ranks, which follow each other; NULL: cltrain launch gave none. The caller frees
 * them. */
static int *slots_of(clt_group *g) {
    const int first = clt_group_rank(g) - clt_group_local_rank(g), n = clt_group_local_size(g);
    const char *at = clt_env(CLT_ENV_SLOTS);
    int *slots = at ? clt_calloc((size_t)n, sizeof *slots) : NULL;
    for (int r = 0; at && r < first + n; r++) {
        if (r >= first) slots[r - first] = CLT_MAX(atoi(at), 0);
        at = strchr(at, ',');
        if (at) at++;
    }
    return slots;
}

clt_status clt_run_open_device(clt_run *r) {
    char *pattern = device_pattern(r->cfg, r->opt);
    int *slots = slots_of(r->group);
    clt_device_params p = clt_device_params_default();
    p.pattern = pattern;
    p.local_rank = clt_group_local_rank(r->group);
    p.local_size = clt_group_local_size(r->group);
    p.slots = slots;
    p.profile = r->opt->profile || r->opt->trace || clt_env_long(CLT_ENV_PROFILE, 0);
    p.helpers = true;
    /* The cores of all nodes compute the steps of a rank that is alone. */
    p.bind = clt_group_local_size(r->group) > 1 || !r->cfg->shard.host_update;
    p.need_exact = r->cfg->numerics == CLT_EXACT;
    clt_status st = clt_device_open(&p, &r->dev);
    clt_free(pattern);
    clt_free(slots);
    CLT_TRY(clt_group_agree(r->group, st));
    const clt_device_facts *f = clt_device_get_facts(r->dev);
    char *ranks = NULL;
    CLT_TRY(count_ranks(r->group, &ranks));
    if (clt_group_size(r->group) > 1)
        clt_debug("device %d:%d %s (%s)", f->platform_index, f->device_index, f->name, f->platform);
    clt_info("device: %s (%s, driver %s), %s, %s numerics", f->name, f->platform, f->driver, ranks,
             r->cfg->numerics == CLT_EXACT ? "exact" : "fast");
    clt_free(ranks);
    return CLT_OK;
}

clt_status clt_run_open_ops(clt_run *r) {
    clt_ops_params p = clt_ops_params_default();
    p.numerics = r->cfg->numerics;
    p.tune = r->cfg->tune;
    return clt_group_agree(r->group, clt_ops_create(r->dev, &p, &r->ops));
}

/* All ranks do the same work and decide alike, so what decides must be equal: the command, the environment
 * and options that say where the run goes, and the configuration. Other variables may differ: they change a
 * rank's speed, or the ranks agree on what they do. */
static clt_status check_same(const clt_run *r, const char *command) {
    static const clt_env_id common[] = {CLT_ENV_TRANSPORT, CLT_ENV_HOP, CLT_ENV_KERNEL_PATH,
                                        CLT_ENV_RUN_NAME};
    const clt_time stop = r->opt->stop_after;
    char length[40];
    clt_str b = {0};
    clt_str_addf(&b, "command: %s\n", command);
    for (size_t i = 0; i < CLT_COUNT_OF(common); i++)
        if (clt_env(common[i])) clt_str_addf(&b, "%s: %s\n", clt_env_name(common[i]), clt_env(common[i]));
    if (stop.value > 0 || stop.fraction > 0)
        clt_str_addf(&b, "--stop-after: %s\n", clt_time_text(stop, length));
    clt_config_lines(r->cfg, &b);
    const clt_status st =
        clt_group_check_same(r->group, "configuration", b.s,
                             "all ranks need the same configuration, CLTRAIN_ variables and --stop-after");
    clt_str_free(&b);
    return st;
}

clt_status clt_run_join(clt_run *r, const char *command) {
    r->progress.loss = NAN;
    r->origin.scale = clt_loss_scale_start(&r->cfg->loss_scale);
    CLT_TRY(clt_group_create(r->cfg->dist_timeout, &r->group));
    const int ranks = clt_group_size(r->group);
    const bool writes = clt_group_rank(r->group) == 0; /* this rank writes the trace */
    r->plan = clt_plan_begin(r->cfg, ranks);
    r->plan.per_host = clt_group_local_size(r->group);
    CLT_TRY(clt_group_agree(r->group, check_same(r, command)));
    CLT_TRY(clt_group_agree(r->group, clt_config_check_run(r->cfg, ranks)));
    CLT_TRY(clt_group_agree(r->group, writes ? clt_options_look_at_file("--trace", r->opt->trace) : CLT_OK));
    return clt_run_id(r->group, r->files.run_id);
}

/* Of all ranks, as the last step knew. A fast store can have delivered everything while kernels were
 * compiled. */
static void say_stalls(const clt_run *r) {
    char seconds[32], waited[64] = "did not wait";
    if (!r->train || !(r->pace.fetched > 0 || r->pace.stall_seconds > 0)) return;
    const bool stalled = r->pace.stall_seconds > 0;
    if (stalled)
        snprintf(waited, sizeof waited, "waited %s", clt_human_seconds(r->pace.stall_seconds, seconds));
    clt_info("data: %.1f MiB fetched; training %s for them%s", (double)r->pace.fetched / (1 << 20), waited,
             stalled && clt_group_size(r->group) > 1 ? " on the rank that waited longest" : "");
}

static void say_traffic(const clt_run *r) {
    const clt_offload_traffic t =
        r->engine ? clt_engine_offload_traffic(r->engine) : (clt_offload_traffic){0};
    const double passes = r->engine ? clt_engine_file_wait(r->engine) : 0;
    char read[32], written[32], waited[32], more[64] = "", passes_waited[32];
    if (!(t.seconds > 0)) return;
    if (passes > 0)
        snprintf(more, sizeof more, ", passes waited %s", clt_human_seconds(passes, passes_waited));
    clt_info("offload: rank %d read %s and wrote %s in %.3g s of updates: %.3g GB/s; it waited %s for the "
             "files%s",
             clt_group_rank(r->group), clt_human_bytes((double)t.read, read),
             clt_human_bytes((double)t.written, written), t.seconds,
             (double)(t.read + t.written) / t.seconds * 1e-9, clt_human_seconds(t.waited, waited), more);
}

/* How long the mirror may take at the end: as long as an operation on an object store, and no longer than the
 * job's time. */
static double mirror_seconds(const clt_run *r) {
    static const double usual = 600, reserve = 5;
    const char *text = clt_env(CLT_ENV_S3_TIMEOUT);
    double seconds;
    if (!text || !clt_parse_f64(text, &seconds) || !(seconds > 0)) seconds = usual;
    if (r->stop.end > 0) seconds = CLT_MIN(seconds, r->stop.end - clt_wall() - reserve);
    return CLT_MAX(seconds, 0.0);
}

void clt_run_close(clt_run *r) {
    clt_ckpt_writer_destroy(r->saves.writer);
    clt_free(r->saves.pending.name);
    clt_trace_destroy(r->tracing.trace);
    clt_run_guard_destroy(r);
    clt_sinks_destroy(r->sinks);
    clt_run_icl_close(r);
    say_traffic(r);
    clt_engine_destroy(r->engine);
    say_stalls(r);
    clt_loader_close(r->train);
    clt_free(r->parts);
    for (int i = 0; r->evals && i < r->cfg->n_evals; i++) clt_loader_close(r->evals[i]);
    clt_free(r->evals);
    clt_ops_destroy(r->ops);
    clt_device_close(r->dev);
    clt_follow_end(r->files.follow, -1);
    clt_mirror_end(r->files.mirror, mirror_seconds(r));
    clt_run_lock_release(r->files.mirror_lock);
    clt_run_lock_release(r->files.lock);
    clt_group_destroy(r->group);
    clt_log_set_file(NULL);
    clt_file_close(r->files.log);
    for (int i = 0; i < CLT_RUN_AHEAD; i++) clt_free(r->queue.step[i].arrays);
    clt_free(r->files.folder);
    clt_free(r->files.local);
    clt_file_close(r->files.samples);
    clt_plan_free(&r->plan);
    clt_run_place_free(&r->origin.here);
    clt_run_place_free(&r->origin.writer);
    clt_free(r->origin.path);
    clt_run_fp8_forget(r);
}

bool clt_run_epoch_over(const clt_run *r, int64_t epoch, int64_t sample_in_epoch, int64_t batch_in_epoch) {
    int64_t least = r->cfg->train.drop_last ? r->cfg->global_train_batch_size : 1;
    int64_t subset = r->cfg->train_subset_num_batches;
    return clt_loader_rows_of(r->train, epoch) - sample_in_epoch < least ||
           (subset > 0 && batch_in_epoch >= subset);
}

static clt_status check_padding(const clt_config *c, const clt_loader_config *l) {
    if (l->kind != CLT_LOADER_FINETUNING || !c->padding_side || strcmp(c->padding_side, "left") != 0)
        return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "tokenizer.kwargs.padding_side is left, and models are trained with "
                                     "padding on the right alone: set it to right");
}

/* A model of pictures gets pictures; the reverse is refused with the configuration. */
static clt_status check_kind(const clt_config *c, const clt_loader_config *l) {
    const clt_batch_layout text = clt_text_layout(1, false),
                           reads = clt_model_layout(c->model, c->max_seq_len);
    if (l->kind == CLT_LOADER_IMAGE || strcmp(reads.field[0].name, text.field[0].name) == 0) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "the model reads %s, and %s.name is %s: set it to image",
                     reads.field[0].name, l == &c->train ? "train_loader" : "eval_loader",
                     l->kind == CLT_LOADER_TEXT ? "text" : "finetuning");
}

/* A model must not read past a loader's arrays. */
static clt_status check_layout(const clt_config *c, const clt_loader_config *l, const clt_loader *loader) {
    const clt_batch_layout need = clt_model_layout(c->model, c->max_seq_len),
                           *have = clt_loader_layout(loader);
    const clt_batch_field *lacks = clt_batch_layout_lacks(have, &need);
    if (!lacks) return CLT_OK;
    return clt_error(
        CLT_BAD_CONFIG,
        "the model reads '%s' of %zu bytes per sample, which the data of '%s' do not have: they are %s; "
        "choose a loader of the model's kind",
        lacks->name, lacks->bytes, l->label ? l->label : "train_loader", have->field[0].name);
}

clt_status clt_run_open_loader(clt_run *r, const clt_loader_config *l, bool eval, int64_t max_rows,
                               clt_loader **out) {
    const clt_model_facts model = clt_model_get_facts(r->cfg->model);
    clt_loader_params p;
    clt_config_loader_params(r->cfg, l, clt_group_size(r->group), &p);
    if (!eval) { /* a checkpoint may have set these two */
        p.shuffle_seed = (uint64_t)r->plan.shuffle_seed;
        p.num_canonical_nodes = r->plan.canonical_nodes;
    }
    p.max_rows = max_rows;
    clt_status st = check_padding(r->cfg, l);
    if (st == CLT_OK) st = check_kind(r->cfg, l);
    if (st == CLT_OK) st = clt_loader_open(&p, out);
    st = clt_group_agree(r->group, st);
    if (st == CLT_OK && eval && clt_loader_batches(*out, max_rows, l->drop_last) == 0)
        return clt_error(CLT_BAD_CONFIG,
                         "the evaluation data '%s' has %lld samples, less than a batch of %lld, and "
                         "drop_last skips incomplete batches: set drop_last: false",
                         l->label, (long long)clt_loader_num_samples(*out), (long long)max_rows);
    if (st == CLT_OK && !model.seq_ids) st = check_layout(r->cfg, l, *out);
    if (st == CLT_OK && model.seq_ids && !clt_loader_layout(*out)->field[CLT_TEXT_SEQ_IDS].bytes)
        return clt_error(CLT_BAD_CONFIG, "model.attn_config.attn_uses_sequence_id needs eos_token_id or "
                                         "bos_token_id in the loader's dataset section");
    return st;
}
