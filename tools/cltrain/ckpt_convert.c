/* cltrain ckpt import, export. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_log.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/model/clt_mpt.h"

enum { MAX_DEPTH = 32 };

/* --- weights in the model's order --- */

static clt_status read_weights(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    const ckpt_weights *w = ctx;
    return clt_weight_source_read(w->source,
                                  clt_weight_source_find(w->source, "weight", w->table.entry[entry].name),
                                  first, dst, count);
}

/* The table of the source's model configuration, and that configuration in the form that checkpoints carry.
 */
static clt_status model_table(const clt_weight_source *s, ckpt_weights *w) {
    const char *text = clt_weight_source_model(s);
    json_t *o;
    CLT_TRY(clt_json_parse(text, strlen(text), MAX_DEPTH, clt_weight_source_path(s), &o));
    clt_mpt_config *cfg = clt_calloc(1, sizeof *cfg);
    clt_status st = clt_mpt_config_from_json(o, true, NULL, NULL, cfg);
    if (st == CLT_OK) st = clt_mpt_table(cfg, &w->table);
    if (st == CLT_OK) {
        json_t *model = clt_mpt_config_to_json(cfg);
        char *dump = json_dumps(model, JSON_COMPACT);
        w->model = clt_strdup(dump ? dump : "{}");
        free(dump);
        json_decref(model);
    }
    json_decref(o);
    clt_free(cfg);
    return st;
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
    /* Only the checks of a load: no part, no data. */
    if (st == CLT_OK) st = clt_weight_source_check(source, &out->table, "weight", NULL);
    out->part = (clt_ckpt_part){.role = "weight", .read = read_weights, .ctx = out};
    if (st != CLT_OK) ckpt_weights_close(out);
    return st;
}

void ckpt_weights_close(ckpt_weights *w) {
    clt_slab_table_free(&w->table);
    clt_free(w->model);
    w->model = NULL;
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

/* The MptConfig of transformers calls norm_eps layer_norm_epsilon, and takes no 0.0 where it says int. */
static void add_transformers_words(json_t *o) {
    static const char *const whole[] = {"attn_pdrop", "alibi_bias_max"};
    json_t *attn = json_object_get(o, "attn_config");
    for (size_t i = 0; i < CLT_COUNT_OF(whole); i++) {
        double v = json_number_value(json_object_get(attn, whole[i]));
        if (v == floor(v)) json_object_set_new(attn, whole[i], json_integer((json_int_t)v));
    }
    json_object_set(o, "layer_norm_epsilon", json_object_get(o, "norm_eps"));
}

static bool own_layers(const clt_mpt_config *c) {
    for (int64_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].window != -1 || c->layer[i].reuse_kv >= 0) return true;
    return false;
}

/* What the MptForCausalLM of transformers lacks, mostly without an error: whatever config.json says, it has
 * ALiBi down to 2^-8, layer norms, exact GELU, 4 d_model, and no biases. NULL: nothing. */
static const char *lacking(const clt_mpt_config *c) {
    if (!c->alibi) return c->rope != CLT_ROPE_NONE ? "rotary positions" : "positions without ALiBi";
    if (c->alibi_bias_max != 8) return "alibi_bias_max";
    if (!c->no_bias || c->attention_bias) return "biases";
    if (c->rms_norm) return "RMS norms";
    if (c->qk_ln || c->qk_gn) return "norms of q and k";
    if (c->kv_n_heads != c->n_heads) return "shared heads of keys and values";
    if (c->head_dim * c->n_heads != c->d_model) return "head_dim";
    if (!c->fused_qkv) return "separate Wq, Wk and Wv";
    if (c->glu || c->activation != CLT_ACT_GELU || c->ffn_hidden != 4 * c->d_model) return "this MLP";
    if (own_layers(c)) return "sliding windows and block_overrides";
    if (c->logit_scale != 1) return "logit_scale";
    if (c->attn_logit_softcapping > 0 || c->final_logit_softcapping > 0) return "softcapping";
    return c->temperature_attn_scale != 0 ? "attn_temperature_tuning" : NULL;
}

static clt_status say_what_is_lacking(const ckpt_weights *w, json_t *model) {
    clt_mpt_config *c = clt_calloc(1, sizeof *c);
    clt_status st = clt_mpt_config_from_json(model, true, NULL, NULL, c);
    const char *what = st == CLT_OK ? lacking(c) : NULL;
    if (what)
        clt_warn(
            "%s has %s, which the MptForCausalLM of transformers does not have: only LLM Foundry's model "
            "code computes the same from the export",
            clt_weight_source_path(w->source), what);
    clt_free(c);
    return st;
}

static clt_status write_config(const ckpt_weights *w, const char *path, bool bf16) {
    json_t *o;
    CLT_TRY(clt_json_parse(w->model, strlen(w->model), MAX_DEPTH, "model configuration", &o));
    add_transformers_words(o);
    json_object_set_new(o, "model_type", json_string("mpt"));
    json_object_set_new(o, "architectures", json_pack("[s]", "MPTForCausalLM"));
    json_object_set_new(o, "torch_dtype", json_string(bf16 ? "bfloat16" : "float32"));
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    clt_status st =
        text ? clt_io_write_atomic(path, text, strlen(text)) : clt_error(CLT_FAIL, "cannot write %s", path);
    if (st == CLT_OK) st = say_what_is_lacking(w, o);
    free(text);
    json_decref(o);
    return st;
}

static clt_status write_weights(ckpt_weights *w, const char *path, bool bf16) {
    static const char *const meta[] = {"format", "pt"};
    clt_st_spec *spec = clt_calloc((size_t)w->table.n, sizeof *spec);
    for (int i = 0; i < w->table.n; i++) {
        const clt_slab_entry *e = &w->table.entry[i];
        spec[i] = (clt_st_spec){.name = e->name, .dtype = bf16 ? CLT_ST_BF16 : CLT_ST_F32, .dims = e->dims};
        for (int d = 0; d < e->dims; d++) spec[i].shape[d] = (uint64_t)e->shape[d];
    }
    clt_status st = clt_safetensors_write(path, spec, w->table.n, meta, 1, read_weights, w);
    clt_free(spec);
    return st;
}

/* What an export would replace may be the only copy of somebody's model. */
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
