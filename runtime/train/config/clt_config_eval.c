/* LLM Foundry's evaluation YAML: the configuration of each of its models. Such a file has no optimizer and no
 * training data; the keys that only training needs get values that an evaluation does not use. */
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

/* Keys that an entry of `models` has, beside model_name. */
static const char *const model_keys[] = {"model", "tokenizer", "load_path", NULL};

static const char training[] =
    "{\"optimizer\": {\"name\": \"decoupled_adamw\", \"lr\": 1e-4},"
    " \"scheduler\": {\"name\": \"constant_with_warmup\", \"t_warmup\": \"0ba\"},"
    " \"train_loader\": {\"name\": \"text\", \"dataset\": {\"local\": \"unused\"}},"
    " \"max_duration\": \"1ba\", \"global_train_batch_size\": 5040,"
    " \"device_train_microbatch_size\": 1}";

bool clt_config_is_eval(const json_t *document) {
    return json_object_get(document, "models") ||
           (json_object_get(document, "model") && !json_object_get(document, "train_loader") &&
            !json_object_get(document, "optimizer"));
}

size_t clt_config_eval_models(const json_t *document) {
    const json_t *models = json_object_get(document, "models");
    return json_is_array(models) ? json_array_size(models) : 1;
}

/* The path in the evaluation YAML of a key that a configuration has at `path`. */
static char *written_at(const clt_config *c, const char *path) {
    const size_t n = strcspn(path, ".");
    for (size_t i = 0; model_keys[i] && clt_yaml_has(c->eval_yaml, "models"); i++)
        if (strlen(model_keys[i]) == n && strncmp(path, model_keys[i], n) == 0)
            return clt_format("models.%zu.%s", c->model_index, path);
    return clt_strdup(path);
}

char *clt_config_eval_place(const clt_config *c, const char *path, bool key) {
    char *at = written_at(c, path);
    char *place = key ? clt_yaml_key_place(c->eval_yaml, at) : clt_yaml_place(c->eval_yaml, at);
    clt_free(at);
    return place;
}

/* LLM Foundry's evaluation refuses an mpt_causal_lm without load_path, too. */
clt_status clt_config_check_weights(const clt_config *c) {
    if (c->load_path || clt_model_pretrained(c->model)) return CLT_OK;
    char *place = c->eval_yaml ? clt_config_eval_place(c, "model", true) : clt_strdup(c->path);
    char *key = c->eval_yaml ? written_at(c, "load_path") : clt_strdup("load_path");
    clt_status st = clt_error(CLT_BAD_CONFIG,
                              "%s: no weights to evaluate: set '%s' to a checkpoint or a Hugging Face folder",
                              place, key);
    clt_free(place);
    clt_free(key);
    return st;
}

static clt_status fail(const clt_config *c, const char *path, const char *text) {
    char *place = clt_yaml_place(c->yaml, path);
    clt_status st = clt_error(CLT_BAD_CONFIG, "%s: key '%s' %s", place, path, text);
    clt_free(place);
    return st;
}

static clt_status check_model(const clt_config *c, json_t *entry, size_t i) {
    const char *key;
    json_t *v;
    char *path = clt_format("models.%zu", i);
    clt_status st = json_is_object(entry) ? CLT_OK : fail(c, path, "must be a map");
    json_object_foreach(entry, key, v) {
        bool known = strcmp(key, "model_name") == 0;
        for (size_t k = 0; model_keys[k]; k++) known = known || strcmp(key, model_keys[k]) == 0;
        if (known || st != CLT_OK) continue;
        char *at = clt_format("%s.%s", path, key);
        st = fail(c, at, "is unknown");
        clt_free(at);
    }
    if (st == CLT_OK && !json_object_get(entry, "model")) st = fail(c, path, "has no model");
    if (st == CLT_OK && !json_object_get(entry, "tokenizer")) st = fail(c, path, "has no tokenizer");
    clt_free(path);
    return st;
}

static void take_name(clt_config *c, json_t *document, json_t *entry) {
    json_t *name = json_object_get(entry, "model_name");
    const char *kind = json_string_value(json_object_get(json_object_get(document, "model"), "name"));
    if (!name) name = json_object_get(document, "model_name");
    clt_strv_add(&c->strings, json_string_value(name) ? json_string_value(name) : kind ? kind : "model");
    c->model_name = c->strings.v[c->strings.n - 1];
    json_object_del(document, "model_name");
}

clt_status clt_config_eval_document(clt_config *c, size_t model) {
    json_t *entry = json_array_get(json_object_get(c->merged, "models"), model), *v;
    const char *key;
    if (json_object_get(c->merged, "models") && !json_is_array(json_object_get(c->merged, "models")))
        return fail(c, "models", "must be a list");
    if (json_object_get(c->merged, "models") && json_object_get(c->merged, "model"))
        return fail(c, "models", "and model are given: use one of them");
    if (entry) CLT_TRY(check_model(c, entry, model));
    json_t *document = json_copy(c->merged), *defaults = json_loads(training, 0, NULL);
    json_object_del(document, "models");
    for (size_t i = 0; model_keys[i]; i++)
        if (entry && json_object_get(entry, model_keys[i]))
            json_object_set(document, model_keys[i], json_object_get(entry, model_keys[i]));
    take_name(c, document, entry);
    json_object_foreach(defaults, key, v) if (!json_object_get(document, key))
        json_object_set(document, key, v);
    clt_str text = {0};
    clt_yaml_dump(document, &(clt_yaml_style){0}, &text);
    json_decref(defaults);
    c->eval_yaml = c->yaml;
    c->yaml = NULL;
    c->model_index = model;
    json_decref(c->merged);
    c->merged = document;
    clt_status st = clt_yaml_parse(text.s, text.len, c->path, &c->yaml);
    clt_str_free(&text);
    return st;
}
