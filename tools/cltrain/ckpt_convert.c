/* cltrain ckpt import, and the weights that import, export and hash read. */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/model/clt_model.h"
#include "runtime/train/run/clt_run_tokenizer.h"

/* --- weights in the model's order --- */

clt_status ckpt_role_read(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    const ckpt_role *r = ctx;
    return clt_weight_source_read(r->source,
                                  clt_weight_source_find(r->source, r->role, r->table->entry[entry].name),
                                  first, dst, count);
}

static void plain_table(const clt_weight_source *s, clt_slab_table *table) {
    for (int i = 0; i < clt_weight_source_count(s); i++) {
        clt_ckpt_tensor t;
        clt_weight_source_at(s, i, &t);
        if (!strcmp(t.role, "weight")) clt_slab_table_add(table, t.name, t.dims, t.shape);
    }
    clt_slab_table_finish(table);
}

/* The files' tensors in the layout of the model; a second map serves the export. */
static clt_status use_layout(ckpt_weights *w) {
    clt_weight_map *map;
    CLT_TRY(clt_model_weight_map(w->config, &w->table, &w->map));
    CLT_TRY(clt_model_weight_map(w->config, &w->table, &map));
    return clt_weight_source_use_map(w->source, &w->table, map, NULL);
}

/* The table of the source's model configuration, and that configuration in the form of checkpoints, with the
 * type of the weights, which the layout tells from other tensors. */
static clt_status model_table(ckpt_weights *w) {
    const clt_weight_source *s = w->source;
    if (!w->config)
        CLT_TRY(
            clt_model_config_parse(clt_weight_source_model(s), true, clt_weight_source_path(s), &w->config));
    CLT_TRY(clt_model_table(w->config, &w->table));
    CLT_TRY(use_layout(w));
    if (clt_weight_source_kind(s) == CLT_SOURCE_HF)
        clt_model_config_note_source(w->config, clt_weight_source_path(s), clt_weight_source_dtype(s));
    json_t *model = clt_model_config_to_json(w->config);
    char *dump = json_dumps(model, JSON_COMPACT);
    w->model = clt_strdup(dump ? dump : "{}");
    clt_free(dump);
    json_decref(model);
    return CLT_OK;
}

/* The parts of the roles that the source has, after the checks of a load, without data. */
static clt_status find_parts(ckpt_weights *w) {
    static const char *const roles[CKPT_ROLES] = {"weight", "exp_avg", "exp_avg_sq"};
    for (int i = 0; i < CKPT_ROLES; i++) {
        const bool has =
            w->table.n && clt_weight_source_find(w->source, roles[i], w->table.entry[0].name) >= 0;
        if (i > 0 && !has) break;
        CLT_TRY(clt_weight_source_check(w->source, &w->table, roles[i], NULL));
        w->role[i] = (ckpt_role){.source = w->source, .table = &w->table, .role = roles[i]};
        w->part[i] = (clt_ckpt_part){.role = roles[i], .read = ckpt_role_read, .ctx = &w->role[i]};
        w->parts = i + 1;
    }
    return CLT_OK;
}

clt_status ckpt_weights_open(clt_weight_source *source, clt_model_config *config, ckpt_weights *out) {
    *out = (ckpt_weights){.source = source, .config = config};
    clt_status st = CLT_OK;
    if (config || clt_weight_source_model(source))
        st = model_table(out);
    else
        plain_table(source, &out->table);
    if (st == CLT_OK) st = find_parts(out);
    if (st != CLT_OK) ckpt_weights_close(out);
    return st;
}

void ckpt_weights_close(ckpt_weights *w) {
    clt_weight_map_free(w->map);
    clt_slab_table_free(&w->table);
    clt_model_config_free(w->config);
    clt_free(w->model);
    *w = (ckpt_weights){0};
}

/* --- import --- */

static clt_status write_checkpoint(ckpt_weights *w, const char *out, const ckpt_import_options *opt,
                                   bool overwrite) {
    char *folder = clt_path_dir(out), id[CLT_RUN_ID_BYTES];
    clt_ckpt_writer *writer = NULL;
    clt_run_lock *lock = NULL;
    clt_ckpt_writer_params p = clt_ckpt_writer_params_default();
    clt_checkpoint_state state = clt_checkpoint_state_default();
    clt_status st = ckpt_import_state(w, opt, &state, &p.part_count);
    if (st == CLT_OK) st = clt_run_id(NULL, id);
    p.folder = folder;
    p.run_id = id;
    p.table = &w->table;
    p.parts = w->part;
    p.overwrite = overwrite;
    p.single = true;
    /* A run that starts here would take the data for those of a killed save. */
    if (st == CLT_OK) st = clt_run_lock_take(NULL, folder, &lock);
    p.lock = lock;
    if (st == CLT_OK) st = clt_ckpt_writer_create(&p, &writer);
    if (st == CLT_OK) st = clt_ckpt_save(writer, clt_path_base(out), &state);
    clt_ckpt_writer_destroy(writer);
    clt_run_lock_release(lock);
    clt_free(folder);
    return st;
}

/* Beside the weights, where cltrain generate finds it. */
static clt_status keep_tokenizer(const char *from, const char *out) {
    char *file = clt_path_join(from, "tokenizer.json");
    clt_status st = clt_io_is_file(file) ? clt_run_tokenizer_keep(from, out) : CLT_OK;
    clt_free(file);
    return st;
}

static clt_status import(const char *from, const char *out, const ckpt_import_options *opt, bool overwrite) {
    clt_weight_source *s = NULL;
    clt_model_config *config = NULL;
    ckpt_weights w;
    clt_status st = clt_weight_source_open(from, &s);
    if (st == CLT_OK) st = ckpt_import_config(opt, &config);
    if (st == CLT_OK && !config && !clt_weight_source_model(s))
        st = clt_error(CLT_BAD_DATA,
                       "%s has no model configuration (config.json); name a config.json or the YAML of a run "
                       "with --config",
                       from);
    if (st == CLT_OK) st = ckpt_weights_open(s, config, &w);
    if (st == CLT_OK) {
        st = write_checkpoint(&w, out, opt, overwrite);
        if (st == CLT_OK) st = keep_tokenizer(from, out);
        if (st == CLT_OK) printf("%s: %d tensors from %s\n", out, w.table.n, from);
        ckpt_weights_close(&w);
    }
    clt_weight_source_close(s);
    return st;
}

int ckpt_import(int argc, char **argv) {
    bool overwrite = false;
    ckpt_import_options opt = {.steps = -1, .samples = -1, .tokens = -1};
    clt_option options[] = {
        {"config", 0, CLT_OPT_STR, &opt.config, "FILE",
         "the model: a config.json, or the YAML of a run; default: config.json in FOLDER"},
        {"optimizer", 0, CLT_OPT_STR, &opt.optimizer, "NAME",
         "DeepSpeed: optimizer.name of the moments; default: adamw, or decoupled_lionw without exp_avg_sq"},
        {"steps", 0, CLT_OPT_INT, &opt.steps, "N",
         "DeepSpeed: optimizer steps made; default: from the files"},
        {"samples", 0, CLT_OPT_INT, &opt.samples, "N",
         "DeepSpeed: samples trained on, for times in samples; default: from the files"},
        {"tokens", 0, CLT_OPT_INT, &opt.tokens, "N",
         "DeepSpeed: tokens trained on, for times in tokens; default: 0"},
        {"weights-only", 0, CLT_OPT_FLAG, &opt.weights_only, NULL, "DeepSpeed: no moments and no steps"},
        {"overwrite", 0, CLT_OPT_FLAG, &overwrite, NULL, "replace OUT if it exists"}};
    clt_command c = {
        "cltrain ckpt import",
        "FOLDER OUT",
        "Makes a checkpoint (weights, model configuration and tokenizer) of a Hugging Face folder "
        "(config.json\n"
        "and model.safetensors), or of a universal checkpoint of DeepSpeed, with moments and steps: a run\n"
        "resumes from it. train, eval and generate also read such folders directly, for their weights.",
        "cltrain ckpt import mpt-7b/ start/ep0-ba0\n"
        "cltrain ckpt import universal/ runs/my-run/ep0-ba500 --config run.yaml\n",
        options,
        CLT_COUNT_OF(options),
        false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 2, &rest);
    if (code >= 0) return code;
    size_t n = strlen(rest.v[1]);
    while (n > 1 && rest.v[1][n - 1] == '/') rest.v[1][--n] = 0;
    code = clt_status_exit_code(import(rest.v[0], rest.v[1], &opt, overwrite));
    clt_strv_free(&rest);
    return code;
}
