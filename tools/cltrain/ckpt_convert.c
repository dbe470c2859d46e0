/* cltrain ckpt import, export. */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_log.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/model/clt_model.h"

/* --- weights in the model's order --- */

static clt_status read_weights(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    const ckpt_weights *w = ctx;
    return clt_weight_source_read(w->source,
                                  clt_weight_source_find(w->source, "weight", w->table.entry[entry].name),
                                  first, dst, count);
}

/* The table of the source's model configuration, and that configuration in the form of checkpoints. */
static clt_status model_table(const clt_weight_source *s, ckpt_weights *w) {
    CLT_TRY(clt_model_config_parse(clt_weight_source_model(s), true, clt_weight_source_path(s), &w->config));
    CLT_TRY(clt_model_table(w->config, &w->table));
    json_t *model = clt_model_config_to_json(w->config);
    char *dump = json_dumps(model, JSON_COMPACT);
    w->model = clt_strdup(dump ? dump : "{}");
    clt_free(dump);
    json_decref(model);
    return CLT_OK;
}

static void plain_table(const clt_weight_source *s, clt_slab_table *table) {
    for (int i = 0; i < clt_weight_source_count(s); i++) {
        clt_ckpt_tensor t;
        clt_weight_source_at(s, i, &t);
        if (!strcmp(t.role, "weight")) clt_slab_table_add(table, t.name, t.dims, t.shape);
    }
    clt_slab_table_finish(table);
}

clt_status ckpt_weights_open(clt_weight_source *source, ckpt_weights *out) {
    *out = (ckpt_weights){.source = source};
    clt_status st = CLT_OK;
    if (clt_weight_source_model(source))
        st = model_table(source, out);
    else
        plain_table(source, &out->table);
    if (st == CLT_OK && out->config)
        clt_weight_source_use_names(source, &out->table, clt_model_hf_name, out->config);
    /* The checks of a load, without data. */
    if (st == CLT_OK) st = clt_weight_source_check(source, &out->table, "weight", NULL);
    out->part = (clt_ckpt_part){.role = "weight", .read = read_weights, .ctx = out};
    if (st != CLT_OK) ckpt_weights_close(out);
    return st;
}

void ckpt_weights_close(ckpt_weights *w) {
    clt_slab_table_free(&w->table);
    clt_model_config_free(w->config);
    clt_free(w->model);
    *w = (ckpt_weights){0};
}

/* --- import --- */

static clt_status write_checkpoint(ckpt_weights *w, const char *out, bool overwrite) {
    char *folder = clt_path_dir(out), id[CLT_RUN_ID_BYTES];
    clt_ckpt_writer *writer = NULL;
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
    if (st == CLT_OK) st = clt_ckpt_writer_create(&p, &writer);
    if (st == CLT_OK) st = clt_ckpt_save(writer, clt_path_base(out), &state);
    clt_ckpt_writer_destroy(writer);
    clt_free(folder);
    return st;
}

int ckpt_import(int argc, char **argv) {
    bool overwrite = false;
    clt_option options[] = {{"overwrite", 0, CLT_OPT_FLAG, &overwrite, NULL, "replace OUT if it exists"}};
    clt_command c = {
        "cltrain ckpt import",
        "HF_FOLDER OUT",
        "Makes a checkpoint (weights and model configuration, batch 0) from a folder with config.json and\n"
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
        if (st == CLT_OK) printf("%s: %d tensors from %s\n", rest.v[1], w.table.n, rest.v[0]);
        ckpt_weights_close(&w);
    }
    clt_weight_source_close(s);
    clt_strv_free(&rest);
    return clt_status_exit_code(st);
}

/* --- export --- */

static clt_status write_config(const ckpt_weights *w, const char *path, bool bf16) {
    json_t *o = clt_model_hf_config(w->config, bf16 ? "bfloat16" : "float32");
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    clt_status st =
        text ? clt_io_write_atomic(path, text, strlen(text)) : clt_error(CLT_FAIL, "cannot write %s", path);
    const char *differs = clt_model_hf_differs(w->config);
    if (st == CLT_OK && differs)
        clt_warn("the transformers package computes something else from the export of %s: %s",
                 clt_weight_source_path(w->source), differs);
    clt_free(text);
    json_decref(o);
    return st;
}

static clt_status write_weights(ckpt_weights *w, const char *path, bool bf16) {
    static const char *const meta[] = {"format", "pt"};
    clt_st_spec *spec = clt_try_calloc((size_t)w->table.n, sizeof *spec);
    if (!spec) return clt_no_memory("the list of tensors to write", (size_t)w->table.n * sizeof *spec);
    for (int i = 0; i < w->table.n; i++) {
        const clt_slab_entry *e = &w->table.entry[i];
        spec[i] = (clt_st_spec){.name = clt_model_hf_name(w->config, e->name),
                                .dtype = bf16 ? CLT_ST_BF16 : CLT_ST_F32,
                                .dims = e->dims};
        for (int d = 0; d < e->dims; d++) spec[i].shape[d] = (uint64_t)e->shape[d];
    }
    clt_status st = clt_safetensors_write(path, spec, w->table.n, meta, 1, read_weights, w);
    clt_free(spec);
    return st;
}

/* What an export replaces may be a user's only copy of a model. */
static clt_status check_free(const char *out) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < CLT_COUNT_OF(files); i++) {
        char *path = clt_path_join(out, files[i]);
        clt_status st = !clt_io_is_file(path) ? CLT_OK
                                              : clt_error(CLT_IO,
                                                          "%s exists already and is not overwritten; choose "
                                                          "another folder, or allow it (--overwrite)",
                                                          path);
        clt_free(path);
        CLT_TRY(st);
    }
    return CLT_OK;
}

static clt_status export_to(clt_weight_source *s, const char *out, bool bf16, bool overwrite) {
    ckpt_weights w;
    if (!overwrite) CLT_TRY(check_free(out));
    if (!clt_weight_source_model(s))
        return clt_error(CLT_BAD_DATA, "%s has no model configuration", clt_weight_source_path(s));
    CLT_TRY(ckpt_weights_open(s, &w));
    char *config = clt_path_join(out, "config.json"), *weights = clt_path_join(out, "model.safetensors");
    clt_status st = clt_io_mkdirs(out);
    if (st == CLT_OK) st = write_weights(&w, weights, bf16);
    if (st == CLT_OK) st = write_config(&w, config, bf16);
    if (st == CLT_OK) printf("%s: %d tensors from %s\n", out, w.table.n, clt_weight_source_path(s));
    clt_free(config);
    clt_free(weights);
    ckpt_weights_close(&w);
    return st;
}

int ckpt_export(int argc, char **argv) {
    const char *dtype = "f32";
    bool overwrite = false;
    clt_option options[] = {
        {"dtype", 0, CLT_OPT_STR, &dtype, "T", "f32 (default) or bf16"},
        {"overwrite", 0, CLT_OPT_FLAG, &overwrite, NULL, "replace a model that is in OUT_FOLDER"}};
    clt_command c = {"cltrain ckpt export",
                     "CHECKPOINT OUT_FOLDER",
                     "Writes config.json and model.safetensors, as the Hugging Face libraries read them.",
                     "cltrain ckpt export runs/my-run export/\n",
                     options,
                     CLT_COUNT_OF(options),
                     false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 2, &rest);
    if (code >= 0) return code;
    if (strcmp(dtype, "f32") && strcmp(dtype, "bf16")) {
        clt_strv_free(&rest);
        return clt_options_fail(&c, "--dtype is f32 or bf16, not '%s'", dtype);
    }
    clt_weight_source *s = NULL;
    clt_status st = clt_weight_source_open(rest.v[0], &s);
    if (st == CLT_OK) st = export_to(s, rest.v[1], !strcmp(dtype, "bf16"), overwrite);
    clt_weight_source_close(s);
    clt_strv_free(&rest);
    return clt_status_exit_code(st);
}
