/* The families of the transformers package as one model family: model.name hf_causal_lm with a local folder,
 * and config.json's model_type. */
#include "runtime/model/hf/clt_hf_model.h"

#include <stdlib.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/model/mpt/clt_mpt_internal.h"

enum { CONFIG_LIMIT = 1 << 20, MAX_DEPTH = 32 };

/* --- families --- */

static const clt_hf_family *const families[] = {&clt_hf_llama, &clt_hf_mistral, &clt_hf_qwen2,
                                                &clt_hf_gpt2,  &clt_hf_neox,    &clt_hf_gemma2};
static const char *const model_types[] = {"llama", "mistral", "qwen2", "gpt2", "gpt_neox", "gemma2", NULL};

static const clt_hf_family *find(const char *model_type) {
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++)
        if (model_type && strcmp(families[i]->model_type, model_type) == 0) return families[i];
    return NULL;
}

const clt_hf_family *clt_hf_family_of(const clt_model_config *c) {
    return find(json_string_value(json_object_get(c->hf, "model_type")));
}

/* --- config.json --- */

/* The reader of the YAML or of config.json, and the overrides, whose keys are named by their place. */
typedef struct {
    const char *what;
    const json_t *overrides;
} origin;

static char *place_of(void *ctx, const char *path) {
    const origin *o = ctx;
    char *top = clt_strndup(path, strcspn(path, "."));
    const bool overridden = json_object_get(o->overrides, top) != NULL;
    clt_free(top);
    return overridden ? clt_strdup("model.config_overrides") : clt_strdup(o->what);
}

/* Keys that begin with '_' belong to the transformers package. */
static const char *harmless(void *ctx, const char *path) {
    (void)ctx;
    return *path == '_' ? "it is a note of the program that wrote it" : clt_hf_package_key(path);
}

static clt_status unknown_type(clt_schema_reader *r, const char *type) {
    clt_str known = {0};
    for (int i = 0; model_types[i]; i++) clt_str_addf(&known, "%s%s", i ? ", " : "", model_types[i]);
    clt_status st = type ? clt_schema_fail(r, "model_type", "is '%.40s', an unknown model (known: %s, mpt)",
                                           type, known.s)
                         : clt_schema_fail(r, "model_type", "is missing (known: %s, mpt)", known.s);
    clt_str_free(&known);
    return st;
}

/* MPT's own family reads its config.json. */
static clt_status read_mpt(clt_schema_reader *r, json_t *config, clt_model_config *out) {
    r->ignore_unknown = true;
    out->family = &clt_mpt_family;
    clt_status st = clt_mpt_config_read(r, "", config, out);
    json_decref(config);
    return st;
}

/* Takes over `config`, an object. */
static clt_status read_config(const char *what, clt_status failure, const json_t *overrides, json_t *config,
                              clt_model_config *out) {
    origin from = {what, overrides};
    clt_strv strings = {0};
    clt_schema_reader r = {.what = what,
                           .place = place_of,
                           .harmless = harmless,
                           .ctx = &from,
                           .status = failure,
                           .strings = &strings};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const clt_hf_family *f = find(type);
    clt_status st;
    if (!f && type && strcmp(type, "mpt") == 0) {
        st = read_mpt(&r, config, out);
    } else {
        out->hf = config;
        st = f ? clt_hf_decode(f, &r, config, (clt_mpt_config *)out) : unknown_type(&r, type);
    }
    clt_strv_free(&strings);
    return st;
}

/* --- the section of a YAML --- */

typedef struct {
    const char *folder;
    bool pretrained;
    json_t *overrides;
} section;

#define KEY(name, field, def, help, ...) CLT_KEY(section, name, field, def, help, __VA_ARGS__)
#define IGNORED(name, def, same, why) CLT_KEY_IGNORED(&clt_kind_any, name, def, same, why)
#define METRICS "loss, perplexity and accuracy are always computed"
#define NO_PEFT "adapters (PEFT) are not supported"
#define FOLDER_KEY "pretrained_model_name_or_path"

static const char *const yaml_names[] = {"hf_causal_lm", NULL};
static const clt_key section_keys[] = {
    CLT_KEY_CHECKED(&clt_kind_choice, "name", CLT_KEY_REQUIRED, "a model of the transformers package",
                    .choices = yaml_names),
    KEY(FOLDER_KEY, folder, CLT_KEY_REQUIRED,
        "a local folder with config.json and, with pretrained, model.safetensors or its shards"),
    KEY("pretrained", pretrained, "true",
        "start from the folder's weights, unless load_path is set; false: from initial weights"),
    CLT_KEY_OF(&clt_kind_map, section, "config_overrides", overrides, "null",
               "values that replace those of config.json", .nullable = true),
    IGNORED("trust_remote_code", "true", NULL, "code of the folder is never run"),
    IGNORED("use_auth_token", "false", "false", "nothing is downloaded"),
    IGNORED("use_flash_attention_2", "false", NULL, CLT_KEY_OF_PYTORCH),
    IGNORED("attn_implementation", "null", NULL, CLT_KEY_OF_PYTORCH),
    IGNORED("init_device", "\"cpu\"", NULL, CLT_KEY_OF_PYTORCH),
    IGNORED("use_logits", "true", NULL, CLT_KEY_OF_PYTORCH),
    IGNORED("use_train_metrics", "true", NULL, METRICS),
    IGNORED("additional_train_metrics", "null", NULL, METRICS),
    IGNORED("additional_eval_metrics", "null", NULL, METRICS),
    IGNORED("should_save_peft_only", "true", NULL, NO_PEFT),
    IGNORED("allow_embedding_resizing", "false", NULL, "the embedding keeps its size"),
    CLT_KEY_REFUSE("load_in_8bit", "false", "8-bit weights are not supported"),
    CLT_KEY_REFUSE("peft_config", "null", NO_PEFT),
    CLT_KEY_REFUSE("pretrained_lora_id_or_path", "null", NO_PEFT),
};
static const clt_schema section_schema = CLT_SCHEMA(section_keys);

static clt_status not_a_folder(clt_schema_reader *r, const char *path, const char *folder) {
    char *key = clt_format("%s.%s", path, FOLDER_KEY);
    const bool is_path = strchr("./", *folder) != NULL; /* no name on a hub begins so; also an empty one */
    clt_status st =
        is_path ? clt_schema_fail(r, key, "is '%.200s', which is no folder here: name the folder of a model",
                                  folder)
                : clt_schema_fail(
                      r, key,
                      "is '%.200s', which is no folder here; models are not downloaded: get its files first "
                      "(huggingface-cli download %.200s --local-dir FOLDER) and name that folder",
                      folder, folder);
    clt_free(key);
    return st;
}

static clt_status read_section(clt_schema_reader *r, const char *path, json_t *o, clt_model_config *out) {
    section s = {0};
    json_t *config;
    CLT_TRY(clt_schema_read(r, &section_schema, path, o, &s));
    if (!clt_io_is_dir(s.folder)) return not_a_folder(r, path, s.folder);
    char *file = clt_path_join(s.folder, "config.json");
    clt_status st = clt_json_load(file, CONFIG_LIMIT, MAX_DEPTH, &config);
    if (st == CLT_OK && !json_is_object(config)) {
        json_decref(config);
        st = clt_error(r->status, "%s: not a JSON object", file);
    }
    if (st == CLT_OK) {
        if (s.overrides) json_object_update_recursive(config, s.overrides);
        st = read_config(file, r->status, s.overrides, config, out);
    }
    if (st == CLT_OK) {
        clt_model_config_note_source(out, s.folder, NULL);
        out->pretrained = s.pretrained ? json_string(s.folder) : NULL;
    }
    clt_free(file);
    return st;
}

static clt_status read_any(clt_schema_reader *r, const char *path, json_t *o, clt_model_config *out) {
    if (!json_object_get(o, "model_type")) return read_section(r, path, o, out);
    return read_config(r->what, r->status, NULL, json_deep_copy(o), out);
}

/* --- the table --- */

static json_t *to_json(const clt_model_config *c) {
    return json_deep_copy(c->hf);
}

static json_t *hf_config(const clt_model_config *c) {
    json_t *o = json_deep_copy(c->hf);
    const clt_hf_family *f = clt_hf_family_of(c);
    json_object_del(o, CLT_MODEL_SOURCE_KEY);
    if (f->export_keys) f->export_keys((const clt_mpt_config *)c, o);
    return o;
}

static const char *hf_differs(const clt_model_config *c) {
    (void)c;
    return NULL;
}

static clt_model_facts facts(const clt_model_config *c) {
    clt_model_facts f = clt_mpt_family.facts(c);
    f.layers_key = NULL;
    return f;
}

static char *describe(const clt_model_config *c) {
    char *sizes = clt_mpt_family.describe(c);
    char *text = clt_format("%s, %s", clt_hf_family_of(c)->model_type, sizes);
    clt_free(sizes);
    return text;
}

const clt_model_family clt_hf_model_family = {
    .name = "hf",
    .yaml_names = yaml_names,
    .hf_types = model_types,
    .config_bytes = sizeof(clt_mpt_config),
    .schema = &section_schema,
    .read = read_any,
    .to_json = to_json,
    .facts = facts,
    .describe = describe,
    .table = clt_mpt_table,
    .init_range = clt_mpt_init_range,
    .train_flops_per_token = clt_mpt_train_flops_per_token,
    .units = clt_mpt_units,
    .order = clt_mpt_order,
    .reads_wide = clt_mpt_reads_wide,
    .weight_map = clt_hf_weight_map,
    .hf_config = hf_config,
    .hf_differs = hf_differs,
    .plan = clt_mpt_plan,
    .create = clt_mpt_create,
    .destroy = clt_mpt_destroy,
    .train = clt_mpt_train,
    .eval = clt_mpt_eval,
    .logits = clt_mpt_logits,
    .next = clt_mpt_next,
    .next_greedy = clt_mpt_next_greedy,
    .span_logits = clt_mpt_span_logits,
    .fp8_formats = clt_mpt_fp8_formats,
    .fp8_amax = clt_mpt_fp8_amax,
    .fp8_set_scales = clt_mpt_fp8_set_scales,
    .activation = clt_mpt_activation,
};
