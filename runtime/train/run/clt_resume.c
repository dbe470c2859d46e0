/* Where a run starts (automatic resumption, load_path), loading and saving checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_host.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/ops/clt_variant.h"
#include "runtime/train/run/clt_run.h"

/* On resume, seed, lanes and data order come from the checkpoint; a different value in the configuration gets
 * a warning. */
static void keep(const char *what, int64_t saved, int64_t *now) {
    if (saved != *now)
        clt_warn("%s: %lld from the checkpoint is used; %lld from the configuration is ignored", what,
                 (long long)saved, (long long)*now);
    *now = saved;
}

/* The moments of one optimizer are useless for another. */
static clt_status check_optimizer(const clt_config *c, const char *path, const char *saved) {
    if (!saved || strcmp(saved, clt_optimizer_of(c->optimizer.kind)->name) == 0) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG,
                     "%s was saved with optimizer %s, but optimizer.name is %s: resume with the same "
                     "optimizer, or load only the weights (load_weights_only: true, another save_folder)",
                     path, saved, clt_optimizer_of(c->optimizer.kind)->name);
}

/* The same rule as for the key cltrain.exact_lanes. */
static clt_status check_lanes(const char *path, int64_t lanes) {
    if (lanes >= 1 && lanes <= CLT_MOST_LANES && (lanes & (lanes - 1)) == 0) return CLT_OK;
    if (lanes == 0)
        return clt_error(CLT_BAD_DATA,
                         "%s was not saved by a run and cannot be resumed: load only its weights "
                         "(load_weights_only: true)",
                         path);
    return clt_error(CLT_BAD_DATA, "%s: run.lanes is %lld, it must be a power of two up to %d", path,
                     (long long)lanes, CLT_MOST_LANES);
}

/* Where the samples depend on the number of ranks (clt_sequence.h), a run keeps that number. */
static clt_status check_ranks(const clt_run *r, const char *path, int64_t saved) {
    const clt_loader_config *l = &r->cfg->train;
    const bool device = l->batching_method && strcmp(l->batching_method, "device_per_stream") == 0;
    if ((!device && l->replication <= 1) || saved == clt_group_size(r->group)) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG,
                     "%s was saved by %lld ranks, and train_loader.dataset.%s makes the samples depend on "
                     "their number: resume with as many ranks, not %d",
                     path, (long long)saved, device ? "batching_method device_per_stream" : "replication",
                     clt_group_size(r->group));
}

/* Takes what a run keeps for its lifetime from the checkpoint. */
static void keep_for_life(const clt_config *c, const clt_checkpoint_state *s, clt_plan *p) {
    keep("seed", s->seed, &p->seed);
    if (!c->lanes_given) p->exact_lanes = s->lanes; /* the default is that of a new run */
    keep("cltrain.exact_lanes", s->lanes, &p->exact_lanes);
    if (!clt_loader_config_has_data(&c->train)) return;
    if (c->train.shuffle) keep("train_loader.dataset.shuffle_seed", s->shuffle_seed, &p->shuffle_seed);
    p->canonical_nodes = s->num_canonical_nodes;
}

/* Moments of another program's run: seed, lanes and data order are those of the configuration, and the data
 * begin anew. */
static bool is_imported(const clt_checkpoint_state *s) {
    return s->lanes == 0 && s->optimizer;
}

static clt_status take_state(clt_run *r, const char *path, const clt_checkpoint_state *s) {
    CLT_TRY(check_optimizer(r->cfg, path, s->optimizer));
    if (!is_imported(s)) {
        CLT_TRY(check_lanes(path, s->lanes));
        CLT_TRY(check_ranks(r, path, s->ranks));
        keep_for_life(r->cfg, s, &r->plan);
    }
    r->progress.now = (clt_timestamp){.epoch = s->epoch,
                                      .batch = s->batch,
                                      .sample = s->sample,
                                      .token = s->token,
                                      .batch_in_epoch = s->batch_in_epoch,
                                      .sample_in_epoch = s->sample_in_epoch,
                                      .token_in_epoch = s->token_in_epoch,
                                      .wall_seconds = s->train_seconds};
    r->progress.optimizer_step = s->optimizer_step;
    r->progress.loss = s->loss;
    clt_run_leg_take(&r->leg, s);
    clt_run_take_numbers(r, s);
    clt_run_remember_writer(r, s);
    return clt_plan_divide(r->cfg, &r->plan);
}

static clt_status adopt(clt_run *r, const char *path) {
    clt_ckpt_reader *reader;
    CLT_TRY(clt_ckpt_open(path, &reader));
    clt_status st = take_state(r, path, clt_ckpt_state(reader));
    clt_ckpt_close(reader);
    return st;
}

clt_status clt_run_find_start(clt_run *r) {
    const clt_config *c = r->cfg;
    clt_run_origin *o = &r->origin;
    if (c->save_folder && c->autoresume) CLT_TRY(clt_ckpt_find_newest(r->group, c->save_folder, &o->path));
    if (!o->path && r->files.mirror_lock) {
        CLT_TRY(clt_ckpt_find_newest(r->group, c->mirror, &o->path));
        o->from_mirror = o->path != NULL;
    }
    if (o->path) {
        o->resumed = o->autoresumed = true;
    } else if (c->load_path) {
        CLT_TRY(clt_ckpt_resolve(r->group, c->load_path, &o->path));
        char *manifest = clt_path_join(o->path, "manifest.json");
        o->resumed = clt_io_is_file(manifest) && !c->load_weights_only;
        clt_free(manifest);
    } else if (clt_model_pretrained(c->model)) {
        CLT_TRY(clt_ckpt_resolve(r->group, clt_model_pretrained(c->model), &o->path));
    }
    return o->resumed ? adopt(r, o->path) : CLT_OK;
}

/* A checkpoint with only weights (save_weights_only) cannot be resumed. */
static clt_status check_complete(const clt_run *r, clt_weight_source *src, const clt_load_options *opt) {
    const char *first = clt_engine_table(r->engine)->entry[0].name;
    if (clt_load_ignores(opt, "exp_avg", first)) return CLT_OK;
    if (clt_weight_source_find(src, "weight", first) < 0 ||
        clt_weight_source_find(src, "exp_avg", first) >= 0)
        return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s has no optimizer state (exp_avg) and cannot be resumed: load only its weights "
                     "(load_weights_only: true)",
                     clt_weight_source_path(src));
}

/* Prints which settings of the checkpoint's model this one has otherwise: tensors may have the same shapes.
 */
static void tell_model(const clt_run *r, clt_weight_source *src) {
    enum { MAX_DEPTH = 32 };
    const char *text = clt_weight_source_checkpoint(src) ? clt_weight_source_model(src) : NULL, *key;
    json_t *was = NULL, *is, *value;
    if (!text || clt_json_parse(text, strlen(text), MAX_DEPTH, "the checkpoint's model", &was) != CLT_OK)
        return;
    is = clt_model_config_to_json(r->cfg->model);
    json_object_foreach(is, key, value) {
        enum { STYLE = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15) };
        json_t *old = json_object_get(was, key);
        if (!old || json_equal(old, value)) continue;
        char *a = json_dumps(value, STYLE), *b = json_dumps(old, STYLE);
        clt_info("  the weights are of a model with %s %s, this one has %s", key, b, a);
        clt_free(a);
        clt_free(b);
    }
    json_decref(was);
    json_decref(is);
}

/* Tensor i of the source, as the model needs it. */
static clt_status resample(const clt_run *r, clt_weight_source *src, int i, const clt_ckpt_tensor *t,
                           int entry) {
    const clt_slab_entry *e = &clt_engine_table(r->engine)->entry[entry];
    float *from = clt_malloc(t->count * sizeof *from), *to = clt_malloc(e->count * sizeof *to);
    clt_status st = clt_weight_source_read(src, i, 0, from, t->count);
    if (st == CLT_OK) {
        clt_model_resample(r->cfg->model, entry, t->shape, from, to);
        clt_weight_source_replace(src, i, e->shape, to);
        clt_info("%s is resampled for this model's images", e->name);
    } else {
        clt_free(to);
    }
    clt_free(from);
    return st;
}

/* Weights that depend on a size which may differ in the files. */
static clt_status resample_all(const clt_run *r, clt_weight_source *src) {
    const clt_slab_table *table = clt_engine_table(r->engine);
    for (int entry = 0; entry < table->n; entry++) {
        const clt_slab_entry *e = &table->entry[entry];
        const int i = clt_weight_source_find(src, "weight", e->name);
        clt_ckpt_tensor t;
        if (i < 0) continue;
        clt_weight_source_at(src, i, &t);
        if (t.dims != e->dims || !memcmp(t.shape, e->shape, (size_t)e->dims * sizeof *e->shape)) continue;
        if (clt_model_resample(r->cfg->model, entry, t.shape, NULL, NULL))
            CLT_TRY(resample(r, src, i, &t, entry));
    }
    return CLT_OK;
}

clt_status clt_run_load(clt_run *r, const char *path, bool resume, bool own) {
    const clt_config *c = r->cfg;
    clt_weight_source *src = NULL;
    int n;
    const clt_ckpt_part *parts = clt_engine_parts(r->engine, &n);
    clt_load_options given = {.ignore = (const char *const *)c->load_ignore_keys.v,
                              .ignore_count = (int)c->load_ignore_keys.n,
                              .loose = !c->load_strict_model_weights};
    const clt_load_options *opt = own ? NULL : &given;
    clt_weight_map *map = NULL;
    clt_status st = clt_weight_source_open(path, &src);
    if (st == CLT_OK) st = clt_model_weight_map(c->model, clt_engine_table(r->engine), &map);
    if (st == CLT_OK) st = clt_weight_source_use_map(src, clt_engine_table(r->engine), map, opt);
    if (st == CLT_OK && !resume) tell_model(r, src);
    if (st == CLT_OK && !resume) st = resample_all(r, src);
    if (st == CLT_OK && resume) st = check_complete(r, src, opt);
    if (st == CLT_OK && opt && (opt->ignore_count || opt->loose)) /* what the load may leave */
        st = clt_model_init_weights(c->model, clt_engine_table(r->engine), (uint64_t)r->plan.seed,
                                    parts[0].slab);
    if (st == CLT_OK)
        st = clt_weight_source_load(src, clt_engine_table(r->engine), parts, resume ? n : 1, opt);
    clt_weight_source_close(src);
    st = clt_group_agree(r->group, st);
    if (st == CLT_OK) clt_info("%s %s", resume ? "resumed from" : "weights loaded from", path);
    return st;
}

/* Whether the shares of this host's ranks of a checkpoint may be copied to host memory for writing: they must
 * be less than a quarter of it, and fit beside the run's own host memory: offloaded state, and on a CPU
 * device everything. */
static bool snapshot_fits(const clt_run *r, int parts) {
    static const double usable = 0.9;
    int local = clt_group_local_size(r->group);
    double share =
        (double)clt_engine_table(r->engine)->total * 4.0 * parts / clt_group_size(r->group) * local;
    double memory = (double)clt_host_memory();
    bool cpu = clt_device_get_facts(r->dev)->type == CLT_DEVICE_CPU;
    double run =
        ((cpu ? (double)r->plan.memory.total : 0) + (double)clt_plan_pinned_bytes(&r->plan.memory)) * local;
    return share < memory / 4 && share + run < usable * memory;
}

clt_status clt_run_create_writer(clt_run *r) {
    const clt_config *c = r->cfg;
    clt_ckpt_writer_params p = clt_ckpt_writer_params_default();
    p.group = r->group;
    p.folder = r->files.folder;
    p.lock = r->files.lock;
    p.run_id = r->files.run_id;
    p.table = clt_engine_table(r->engine);
    p.parts = clt_engine_parts(r->engine, &p.part_count);
    if (c->save_weights_only) p.part_count = 1;
    p.keep = c->save_num_checkpoints_to_keep;
    p.overwrite = c->save_overwrite;
    p.latest = c->save_latest_filename;
    int64_t at_once = !snapshot_fits(r, p.part_count); /* all ranks must write in the same way */
    CLT_TRY(clt_group_max_i64(r->group, &at_once, 1));
    p.snapshot = !at_once;
    return clt_ckpt_writer_create(&p, &r->saves.writer);
}

static void tell_failure(clt_run *r) {
    r->saves.failures++;
    clt_sinks_event(r->sinks, "checkpoint_failed", r->saves.pending.batch, NULL);
    clt_warn("training continues without a checkpoint of batch %lld (failed saves: %lld)",
             (long long)r->saves.pending.batch, (long long)r->saves.failures);
    clt_free(r->saves.pending.name);
    r->saves.pending.name = NULL;
    clt_group_agree(r->group, CLT_OK); /* all ranks continue; a rank that fails from now on ends the job */
}

clt_status clt_run_save_begin(clt_run *r) {
    clt_run_save_finish(r);
    const clt_config *c = r->cfg;
    clt_str config = {0};
    clt_config_print(c, false, &config);
    json_t *model = clt_model_config_to_json(c->model);
    char *model_text = json_dumps(model, JSON_SORT_KEYS | JSON_COMPACT),
         *name = clt_config_expand(c, c->save_filename, &r->progress.now);
    clt_checkpoint_state s = clt_checkpoint_state_default();
    clt_ckpt_number *numbers = NULL;
    clt_strv names = {0};
    s.number_count = clt_run_numbers(r, &numbers, &names);
    s.numbers = numbers;
    char *variants = clt_variants_used(r->ops);
    s.epoch = r->progress.now.epoch;
    s.batch = r->progress.now.batch;
    s.sample = r->progress.now.sample;
    s.token = r->progress.now.token;
    s.batch_in_epoch = r->progress.now.batch_in_epoch;
    s.sample_in_epoch = s.data_sample_in_epoch = r->progress.now.sample_in_epoch;
    s.token_in_epoch = r->progress.now.token_in_epoch;
    s.data_epoch = r->progress.now.epoch;
    s.train_seconds = r->progress.now.wall_seconds;
    s.num_canonical_nodes = clt_loader_canonical_nodes(r->train);
    s.shuffle_seed = r->plan.shuffle_seed;
    s.initial_physical_nodes = 1;
    s.seed = r->plan.seed;
    s.lanes = r->plan.exact_lanes;
    s.optimizer_step = r->progress.optimizer_step;
    s.loss = r->progress.loss;
    s.optimizer = clt_optimizer_of(c->optimizer.kind)->name;
    s.run_name = c->run_name;
    s.model = model_text;
    s.config = config.s;
    s.ranks = r->origin.here.ranks;
    s.device = r->origin.here.device;
    s.driver = r->origin.here.driver;
    s.version = r->origin.here.version;
    s.numerics = r->origin.here.numerics;
    s.variants = variants;
    clt_group_note(r->group, r->progress.now.batch, "saving a checkpoint");
    r->saves.pending = (clt_run_saving){.name = name, .batch = r->progress.now.batch, .start = clt_now()};
    clt_status st = clt_engine_settle(r->engine);
    if (st == CLT_OK) st = clt_ckpt_save_begin(r->saves.writer, name, &s);
    r->saves.pending.active = st == CLT_OK;
    r->saves.failed = st != CLT_OK;
    r->saves.pending.stall = clt_now() - r->saves.pending.start;
    clt_free(numbers);
    clt_strv_free(&names);
    json_decref(model);
    clt_free(model_text);
    clt_str_free(&config);
    clt_free(variants);
    if (st == CLT_OK) return CLT_OK;
    tell_failure(r);
    return st;
}

void clt_run_save_finish(clt_run *r) {
    char seconds[32];
    if (!r->saves.pending.active) return;
    clt_group_note(r->group, r->saves.pending.batch, "saving a checkpoint");
    double start = clt_now();
    r->guards.disturbed = true;
    clt_status st = clt_ckpt_save_finish(r->saves.writer);
    r->saves.pending.stall += clt_now() - start;
    r->saves.pending.active = false;
    r->saves.failed = st != CLT_OK;
    if (st != CLT_OK) {
        tell_failure(r);
        return;
    }
    double took = clt_now() - r->saves.pending.start;
    r->saves.newest = r->saves.pending.batch;
    r->stop.save = CLT_MAX(r->stop.save, took);
    clt_follow_now(r->files.follow);
    clt_mirror_saved(r->files.mirror, r->saves.pending.name, r->saves.pending.batch);
    clt_info("checkpoint saved: %s/%s (%s)", r->files.folder, r->saves.pending.name,
             clt_human_seconds(took, seconds));
    clt_str fields = {0};
    clt_str_add(&fields, "\"name\":");
    clt_json_escape(&fields, r->saves.pending.name);
    clt_str_addf(&fields, ",\"seconds\":%.3f,\"stall_seconds\":%.4f", took, r->saves.pending.stall);
    clt_sinks_event(r->sinks, "checkpoint", r->saves.pending.batch, fields.s);
    clt_str_free(&fields);
    clt_free(r->saves.pending.name);
    r->saves.pending.name = NULL;
}

clt_status clt_run_save_poll(clt_run *r) {
    if (!r->saves.pending.active) return CLT_OK;
    int64_t busy = !clt_ckpt_save_ready(r->saves.writer);
    CLT_TRY(clt_group_max_i64(r->group, &busy, 1));
    if (busy) return CLT_OK;
    const double start = clt_now();
    const bool ended = clt_ckpt_save_next(r->saves.writer);
    r->saves.pending.stall += clt_now() - start;
    if (ended) clt_run_save_finish(r);
    return CLT_OK;
}

void clt_run_save(clt_run *r) {
    if (clt_run_save_begin(r) == CLT_OK) clt_run_save_finish(r);
}

clt_status clt_run_save_last(clt_run *r) {
    clt_run_save_finish(r);
    if (!r->saves.writer || r->saves.newest == r->progress.now.batch) return CLT_OK;
    CLT_TRY(clt_run_check_replicas(r));
    clt_run_save(r);
    return CLT_OK;
}
