/* The start of a run: a list of named phases. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "runtime/base/clt_host.h"
#include "runtime/train/run/clt_run.h"
#include "runtime/train/run/clt_run_tokenizer.h"

/* --- configuration and folder --- */

static void print_config(clt_run *r) {
    static const char stars[] = "******************************";
    if (!r->cfg->log_config) return;
    clt_str b = {0};
    clt_config_print(r->cfg, false, &b);
    clt_info("%s\nConfig:\n%s%s", stars, b.s, stars);
    clt_str_free(&b);
}

static const char *const earlier[] = {"metrics.jsonl", "log.txt"};

static clt_status count_checkpoints(const char *folder, int *n) {
    clt_ckpt_info *list;
    CLT_TRY(clt_ckpt_scan(folder, &list, n));
    clt_ckpt_scan_free(list, *n);
    return CLT_OK;
}

/* Rank 0: whether the mirror may have checkpoints to resume from that save_folder does not have. */
static clt_status needs_mirror(const clt_run *r, int64_t *yes) {
    const char *mirror = r->cfg->mirror;
    clt_io_info info;
    int n;
    CLT_TRY(count_checkpoints(r->files.folder, &n));
    if (n > 0) return CLT_OK;
    int e = clt_io_try_stat(mirror, &info);
    if (e)
        clt_warn("mirror %s: %s; the run starts without asking it for checkpoints to resume from", mirror,
                 clt_io_explain(mirror, e));
    *yes = !e && info.kind == CLT_IO_FOLDER;
    return CLT_OK;
}

/* What an earlier part of the run wrote comes with its checkpoints. */
static clt_status fetch_from_mirror(const clt_run *r) {
    int n;
    CLT_TRY(count_checkpoints(r->cfg->mirror, &n));
    if (n == 0) return CLT_OK;
    return clt_follow_fetch(r->cfg->mirror, r->files.local, r->files.run_id, earlier, CLT_COUNT_OF(earlier));
}

/* A save_folder without checkpoints, as on another cluster: the run resumes from the mirror. Its lock is
 * taken for that, because the run that writes there may not have ended. */
static clt_status look_at_mirror(clt_run *r) {
    const clt_config *c = r->cfg;
    const bool first = clt_group_rank(r->group) == 0;
    int64_t look = 0;
    if (!c->mirror || !c->autoresume) return CLT_OK;
    CLT_TRY(clt_group_agree(r->group, first ? needs_mirror(r, &look) : CLT_OK));
    CLT_TRY(clt_group_max_i64(r->group, &look, 1));
    if (!look) return CLT_OK;
    CLT_TRY(clt_run_lock_take(r->group, c->mirror, &r->files.mirror_lock));
    CLT_TRY(clt_ckpt_recover(r->group, c->mirror));
    return first ? fetch_from_mirror(r) : CLT_OK;
}

/* Chooses the folders; from an object store comes what an earlier part of the run wrote. */
static clt_status choose_folders(clt_run *r) {
    const clt_config *c = r->cfg;
    char *runs = clt_path_join("runs", c->run_name);
    r->files.folder = clt_strdup(c->save_folder ? c->save_folder : runs);
    const bool appends = clt_io_can(r->files.folder, CLT_IO_CAN_APPEND);
    r->files.local = appends ? clt_strdup(r->files.folder) : clt_strdup(runs);
    clt_free(runs);
    CLT_TRY(clt_run_lock_take(r->group, r->files.folder, &r->files.lock));
    CLT_TRY(clt_ckpt_recover(r->group, r->files.folder));
    if (appends) return look_at_mirror(r);
    CLT_TRY(clt_io_mkdirs(r->files.local)); /* on every host: ranks write there when they end in an error */
    if (clt_group_rank(r->group) != 0) return CLT_OK;
    clt_info("metrics and logs are written in %s and copied to %s", r->files.local, r->files.folder);
    CLT_TRY(
        clt_follow_fetch(r->files.folder, r->files.local, r->files.run_id, earlier, CLT_COUNT_OF(earlier)));
    const clt_follow_params p = {
        .local = r->files.local, .store = r->files.folder, .seconds = 60, .lock = r->files.lock};
    r->files.follow = clt_follow_start(&p);
    return CLT_OK;
}

/* Opens the run's folder: lock, log.txt, config.yaml with the merged configuration, the tokenizer's files. */
static clt_status open_folder(clt_run *r) {
    const clt_config *c = r->cfg;
    CLT_TRY(clt_group_agree(r->group, choose_folders(r)));
    if (clt_group_rank(r->group) != 0) return CLT_OK;
    char *log = clt_path_join(r->files.local, "log.txt"),
         *config = clt_path_join(r->files.local, "config.yaml");
    clt_str text = {0};
    clt_config_print(c, false, &text);
    clt_status st = clt_io_write_atomic(config, text.s, text.len);
    if (st == CLT_OK) st = clt_run_tokenizer_keep(c->tokenizer, r->files.folder);
    if (st == CLT_OK) st = clt_file_open(log, CLT_IO_APPEND, &r->files.log);
    clt_log_set_file(r->files.log);
    clt_str_free(&text);
    clt_free(log);
    clt_free(config);
    return st;
}

/* --- data --- */

static clt_status open_data(clt_run *r) {
    const clt_config *c = r->cfg;
    int64_t G = c->global_train_batch_size;
    CLT_TRY(clt_run_open_loader(r, &c->train, false, G, &r->train));
    r->evals = clt_calloc((size_t)c->n_evals, sizeof *r->evals);
    for (int i = 0; i < c->n_evals; i++)
        CLT_TRY(clt_run_open_loader(r, &c->evals[i], true,
                                    c->device_eval_batch_size * clt_group_size(r->group), &r->evals[i]));
    r->progress.batches_per_epoch = clt_loader_batches(r->train, G, c->train.drop_last);
    if (c->train_subset_num_batches > 0)
        r->progress.batches_per_epoch = CLT_MIN(r->progress.batches_per_epoch, c->train_subset_num_batches);
    CLT_TRY(clt_config_check_batches(c, clt_loader_num_samples(r->train), r->progress.batches_per_epoch));
    if (clt_run_epoch_over(r, r->progress.now.epoch, r->progress.now.sample_in_epoch,
                           r->progress.now.batch_in_epoch))
        clt_timestamp_end_epoch(&r->progress.now);
    clt_time length = {0};
    CLT_TRY(clt_time_resolve(r->opt->stop_after, c->max_duration, r->progress.batches_per_epoch,
                             "--stop-after", &length));
    /* A fraction of the run below one batch becomes one batch: 0 would mean no limit. */
    if (r->opt->stop_after.fraction > 0) length.value = CLT_MAX(length.value, 1);
    clt_run_leg_start(&r->leg, &r->progress.now, length);
    return clt_schedule_resolve(&c->schedule, c->max_duration, r->progress.batches_per_epoch,
                                &r->progress.schedule);
}

/* --- plan and engine --- */

static clt_status fit(clt_run *r) {
    const clt_device_facts *f = clt_device_get_facts(r->dev);
    /* Ranks on a CPU share the host's memory. On other devices each rank is assumed to have its own
     * device. */
    const int sharing = f->type == CLT_DEVICE_CPU ? clt_group_local_size(r->group) : 1;
    const clt_plan_room room = clt_plan_room_of(f, sharing);
    CLT_TRY(clt_group_agree(r->group, clt_plan_fit(r->cfg, &room, &r->plan)));
    return clt_plan_agree(r->group, r->cfg, &room, &r->plan);
}

/* What is offloaded beside what a CPU device takes. A tenth is left for everything else. */
static clt_status check_host_memory(const clt_run *r) {
    const clt_plan_memory *m = &r->plan.memory;
    const int local = clt_group_local_size(r->group);
    const uint64_t have = clt_host_memory() / 10 * 9, device = r->plan.type == CLT_DEVICE_CPU ? m->total : 0,
                   each = clt_plan_pinned_bytes(m), need = (each + device) * (uint64_t)local;
    char need_text[32], each_text[32], have_text[32], ranks[32] = "", keys[160];
    if (!each || need <= have) return CLT_OK;
    if (local > 1) snprintf(ranks, sizeof ranks, " of each of %d ranks", local);
    snprintf(keys, sizeof keys, "%s%s%s%s", m->host + m->file ? ", cltrain.offload" : "",
             m->host_weights ? ", cltrain.offload_parameters" : "",
             m->host_gradients || m->file_gradients ? ", cltrain.offload_gradients" : "",
             m->model.host ? ", cltrain.offload_activations" : "");
    return clt_error(
        CLT_NO_MEMORY,
        "the run needs %s of host memory (%s%s for %s), %s are available: use ranks on more hosts, or %s",
        clt_human_bytes((double)need, need_text), clt_human_bytes((double)each, each_text), ranks, keys + 2,
        clt_human_bytes((double)have, have_text),
        m->model.host       ? "a smaller microbatch"
        : m->host_weights   ? "cltrain.offload_parameters: none"
        : m->host_gradients ? "cltrain.offload_gradients: none"
        : m->file           ? "cltrain.offload: none"
                            : "cltrain.offload: file or none");
}

static clt_status make_plan(clt_run *r) {
    bool divided;
    CLT_TRY(fit(r));
    CLT_TRY(clt_run_divide_lanes(r, &divided));
    if (divided) CLT_TRY(fit(r));
    return clt_group_agree(r->group, check_host_memory(r));
}

static bool run_evaluates(const clt_run *r) {
    return clt_run_evaluates(r->cfg) || clt_run_checks(r->cfg) > 0;
}

/* No queueing ahead on a CPU device, which computes on the cores that would prepare the next step, and with
 * amp_fp16, amp_fp8 and guards that may skip a step, which need the result of every step first. All ranks
 * must do the same, because collecting a step exchanges results. */
static clt_status choose_queue(clt_run *r) {
    const bool cpu = clt_device_get_facts(r->dev)->type == CLT_DEVICE_CPU;
    int64_t waits = !clt_env_long(CLT_ENV_AHEAD, !cpu) || r->cfg->precision == CLT_F16 || r->cfg->fp8 ||
                    clt_run_guard_each_step(r->cfg);
    CLT_TRY(clt_group_max_i64(r->group, &waits, 1));
    r->queue.ahead = !waits;
    return CLT_OK;
}

/* For a message: what offload puts there, or nothing. The caller frees it. */
static char *host_memory_text(const clt_plan_memory *m) {
    char bytes[32], file[32];
    if (!clt_plan_pinned_bytes(m)) return clt_strdup("");
    clt_human_bytes((double)clt_plan_pinned_bytes(m), bytes);
    if (!clt_plan_files_bytes(m)) return clt_format(", %s of host memory", bytes);
    return clt_format(", %s of host memory, %s in files", bytes,
                      clt_human_bytes((double)clt_plan_files_bytes(m), file));
}

static clt_status open_engine(clt_run *r) {
    const clt_config *c = r->cfg;
    const clt_engine_params p = {
        .cfg = c, .group = r->group, .ops = r->ops, .plan = &r->plan, .training = true};
    CLT_TRY(make_plan(r));
    clt_plan_say_notes(r->cfg, &r->plan);
    CLT_TRY(clt_group_agree(r->group, clt_engine_create(&p, &r->engine)));
    clt_engine_rehearse(r->engine, run_evaluates(r));
    *clt_engine_loss_scale(r->engine) = r->origin.scale;
    CLT_TRY(clt_run_fp8_take(r, r->origin.fp8, r->origin.n_fp8));
    CLT_TRY(choose_queue(r));
    char total[32], params[32], *host = host_memory_text(&r->plan.memory);
    clt_info("model: %s parameters, microbatch %lld%s, %s of device memory%s%s",
             clt_human_count((double)clt_model_param_count(c->model), params), (long long)r->plan.microbatch,
             c->device_train_microbatch_size ? "" : " (auto)",
             clt_human_bytes((double)r->plan.memory.total, total), host, clt_recompute_text(&r->plan));
    clt_free(host);
    return CLT_OK;
}

/* --- phases --- */

static clt_status open_device(clt_run *r) {
    CLT_TRY(clt_run_open_device(r));
    CLT_TRY(clt_run_open_ops(r));
    clt_ops_let_stop(r->ops, true);
    return clt_run_describe(r);
}

static clt_status check_options(clt_run *r) {
    CLT_TRY(clt_run_time_open(r));
    print_config(r);
    clt_config_notices(r->cfg);
    CLT_TRY(clt_run_leg_from_env(&r->leg));
    const bool stops = r->opt->stop_after.value > 0 || r->opt->stop_after.fraction > 0;
    if (stops && !r->cfg->save_folder)
        return clt_error(CLT_BAD_CONFIG, "--stop-after saves a checkpoint: set save_folder");
    return CLT_OK;
}

static clt_status find_start(clt_run *r) {
    CLT_TRY(clt_run_guard_create(r));
    clt_group_set_folder(r->group, r->files.local);
    CLT_TRY(clt_run_find_start(r));
    r->progress.start_batch = r->progress.now.batch;
    return CLT_OK;
}

static clt_status open_sinks(clt_run *r) {
    const clt_sinks_params p = {.cfg = r->cfg,
                                .folder = r->files.local,
                                .main_rank = clt_group_rank(r->group) == 0,
                                .batches_per_epoch = r->progress.batches_per_epoch,
                                .start_batch = r->progress.start_batch,
                                .row = r->opt->row,
                                .row_ctx = r->opt->row_ctx};
    return clt_sinks_create(&p, &r->sinks);
}

static clt_status load_weights(clt_run *r) {
    const clt_slab_table *table = clt_engine_table(r->engine);
    clt_slab *weights = clt_engine_parts(r->engine, &(int){0})[0].slab;
    if (r->origin.path)
        CLT_TRY(clt_run_load(r, r->origin.path, r->origin.resumed, r->origin.autoresumed));
    else
        CLT_TRY(clt_model_init_weights(r->cfg->model, table, (uint64_t)r->plan.seed, weights));
    return clt_engine_weights_changed(r->engine);
}

static clt_status prepare_eval(clt_run *r) {
    CLT_TRY(clt_run_icl_open(r));
    return run_evaluates(r) ? clt_engine_prepare_eval(r->engine) : CLT_OK;
}

static clt_status begin_guards(clt_run *r) {
    clt_run_note_start(r);
    CLT_TRY(clt_run_guard_begin(r));
    return r->origin.resumed ? clt_run_check_resume(r) : CLT_OK;
}

static void start_mirror(clt_run *r) {
    const clt_config *c = r->cfg;
    const clt_mirror_params p = {.folder = r->files.folder,
                                 .to = c->mirror,
                                 .latest = c->save_latest_filename,
                                 .run_id = r->files.run_id,
                                 .tokenizer = c->tokenizer,
                                 .keep = c->save_num_checkpoints_to_keep,
                                 .batch = r->progress.now.batch,
                                 .lock = r->files.mirror_lock};
    if (!c->mirror || clt_group_rank(r->group) != 0) return;
    r->files.mirror = clt_mirror_start(&p);
    r->files.mirror_lock = NULL;
    /* An earlier process may have ended before its last checkpoint was there. */
    if (r->origin.autoresumed && !r->origin.from_mirror)
        clt_mirror_saved(r->files.mirror, clt_path_base(r->origin.path), r->progress.now.batch);
}

static clt_status begin_saves(clt_run *r) {
    /* A resumed state is saved and evaluated already; a new run's is not. */
    r->saves.newest = r->progress.evaluated = r->origin.resumed ? r->progress.now.batch : -1;
    if (!r->cfg->save_folder) return CLT_OK;
    CLT_TRY(clt_ckpt_supersede(r->group, r->files.folder, r->progress.now.batch, r->files.run_id));
    CLT_TRY(clt_run_create_writer(r));
    start_mirror(r);
    return CLT_OK;
}

static clt_status begin_steps(clt_run *r) {
    const clt_config *c = r->cfg;
    const int64_t batches = r->progress.batches_per_epoch;
    double rate, copy;
    if (clt_group_size(r->group) > 1) {
        char *lanes = clt_run_lanes_text(r);
        clt_sinks_event(r->sinks, "lanes", r->progress.now.batch, lanes);
        clt_free(lanes);
    }
    if (clt_device_peak(r->dev, &rate, &copy) == CLT_OK) r->pace.peak_flops = rate;
    if (c->precision != CLT_F32 && clt_device_matrix_peak(r->dev, &rate) == CLT_OK && rate > 0) {
        r->pace.peak_flops = rate;
        r->pace.matrix_peak = true;
    }
    r->progress.first_step = r->progress.optimizer_step + 1;
    clt_follow_now(r->files.follow); /* the files of this part of the run exist */
    clt_ops_let_stop(r->ops, false); /* from here on the ranks decide together */
    CLT_TRY(clt_time_resolve_interval(c->eval_interval, c->max_duration, batches, "eval_interval",
                                      &r->progress.eval_every));
    return clt_time_resolve_interval(c->save_interval, c->max_duration, batches, "save_interval",
                                     &r->progress.save_every);
}

/* In this order. A request to stop takes effect before each phase. After each phase the ranks agree on its
 * status, so a phase may fail on a single rank at a point after which it does no collective calls. */
static const struct {
    const char *name; /* for messages about a rank that does not respond */
    clt_status (*run)(clt_run *r);
} phases[] = {
    {"opening the device", open_device},
    {"checking options", check_options},
    {"opening the run's folder", open_folder},
    {"looking for checkpoints", find_start},
    {"opening data", open_data},
    {"preparing the model", open_engine},
    {"opening metrics", open_sinks},
    {"loading weights", load_weights},
    {"preparing evaluation", prepare_eval},
    {"checking the state", begin_guards},
    {"preparing checkpoints", begin_saves},
    {"preparing steps", begin_steps},
};

clt_status clt_run_start(clt_run *r) {
    CLT_TRY(clt_run_join(r, "train"));
    for (size_t i = 0; i < CLT_COUNT_OF(phases); i++) {
        if (clt_group_stop(r->group)) return CLT_STOPPED;
        clt_group_note(r->group, r->progress.now.batch, phases[i].name);
        clt_status st = phases[i].run(r);
        if (st == CLT_OK) st = clt_memory_check();
        CLT_TRY(clt_group_agree(r->group, st));
    }
    return CLT_OK;
}
