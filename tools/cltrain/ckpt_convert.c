/* cltrain ckpt import, and the weights that import, export and hash read. */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/model/clt_model.h"
#include "runtime/train/run/clt_run_tokenizer.h"

/* --- weights in the model's order --- */

clt_status ckpt_weights_read(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    const ckpt_weights *w = ctx;
    return clt_weight_source_read(w->source,
                                  clt_weight_source_find(w->source, "weight", w->table.entry[entry].name),
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
    CLT_TRY(clt_model_config_parse(clt_weight_source_model(s), true, clt_weight_source_path(s), &w->config));
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

clt_status ckpt_weights_open(clt_weight_source *source, ckpt_weights *out) {
    *out = (ckpt_weights){.source = source};
    clt_status st = CLT_OK;
    if (clt_weight_source_model(source))
        st = model_table(out);
    else
        plain_table(source, &out->table);
    /* The checks of a load, without data. */
    if (st == CLT_OK) st = clt_weight_source_check(source, &out->table, "weight", NULL);
    out->part = (clt_ckpt_part){.role = "weight", .read = ckpt_weights_read, .ctx = out};
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

static clt_status write_checkpoint(ckpt_weights *w, const char *out, bool overwrite) {
    char *folder = clt_path_dir(out), id[CLT_RUN_ID_BYTES];
    clt_ckpt_writer *writer = NULL;
    clt_run_lock *lock = NULL;
    clt_ckpt_writer_params p = clt_ckpt_writer_params_default();
    clt_checkpoint_state state = clt_checkpoint_state_default();
    state.model = w->model;
    state.ranks = 1;
    clt_status st = clt_run_id(NULL, id);
    p.folder = folder;
    p.run_id = id;
    p.table = &w->table;
    p.parts = &w->part;
    p.part_count = 1;
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

int ckpt_import(int argc, char **argv) {
    bool overwrite = false;
    clt_option options[] = {{"overwrite", 0, CLT_OPT_FLAG, &overwrite, NULL, "replace OUT if it exists"}};
    clt_command c = {
        "cltrain ckpt import",
        "HF_FOLDER OUT",
        "Makes a checkpoint (weights, model configuration and tokenizer) of a folder with config.json and\n"
        "model.safetensors. train, eval and generate also read such a folder directly.",
        "cltrain ckpt import mpt-7b/ start/ep0-ba0\n",
        options,
        CLT_COUNT_OF(options),
        false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 2, &rest);
    if (code >= 0) return code;
    clt_weight_source *s = NULL;
    ckpt_weights w;
    size_t n = strlen(rest.v[1]);
    while (n > 1 && rest.v[1][n - 1] == '/') rest.v[1][--n] = 0;
    clt_status st = clt_weight_source_open(rest.v[0], &s);
    if (st == CLT_OK && !clt_weight_source_model(s))
        st = clt_error(CLT_BAD_DATA, "%s has no model configuration (config.json)", rest.v[0]);
    if (st == CLT_OK) st = ckpt_weights_open(s, &w);
    if (st == CLT_OK) {
        st = write_checkpoint(&w, rest.v[1], overwrite);
        if (st == CLT_OK) st = keep_tokenizer(rest.v[0], rest.v[1]);
        if (st == CLT_OK) printf("%s: %d tensors from %s\n", rest.v[1], w.table.n, rest.v[0]);
        ckpt_weights_close(&w);
    }
    clt_weight_source_close(s);
    clt_strv_free(&rest);
    return clt_status_exit_code(st);
}
