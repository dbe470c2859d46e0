/* The special tokens of a tokenizer.json by their role, and what else transformers keeps in
 * tokenizer_config.json and special_tokens_map.json beside it. Without these files the well-known names of
 * tokens decide. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/data/tokenizer/clt_tokenizer_json.h"

enum { MAX_FILE = 64 << 20, MAX_DEPTH = 64, ROLES = 4, NAMES = 5 };

/* What transformers' tokenizer classes assume for keys that the files do not have; and whether the class
 * replaces the template of tokenizer.json by bos and eos as add_bos_token and add_eos_token say. */
static const struct {
    const char *name, *of[ROLES]; /* bos, eos, pad, unk */
    bool makes_template, adds_bos, pads_left, keeps_prefix;
} classes[] = {
    {"Llama", {"<s>", "</s>", NULL, "<unk>"}, true, true, true, true},
    {"CodeLlama", {"<s>", "</s>", NULL, "<unk>"}, true, true, true, false},
    {"Gemma", {"<bos>", "<eos>", "<pad>", "<unk>"}, true, true, true, false},
    {"GPTNeoX", {"<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>"}, true, false, false, false},
    {"GPT2", {"<|endoftext|>", "<|endoftext|>", NULL, "<|endoftext|>"}, false, false, false, false},
    {"Qwen2", {NULL, "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"}, false, false, false, false},
};

static const char *const well_known[ROLES][NAMES] = {
    {"<s>", "<|begin_of_text|>", "<bos>"},
    {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>"},
    {"<pad>", "<|padding|>", "<|pad|>", "[PAD]"},
    {NULL},
};
static const char *const keys[ROLES] = {"bos_token", "eos_token", "pad_token", "unk_token"};

static clt_status load(const clt_json_tokenizer *t, const char *name, json_t **out) {
    char *dir = clt_path_dir(t->path), *path = clt_path_join(dir, name);
    clt_status st = CLT_OK;
    *out = NULL;
    /* model_max_length may be 10^30. */
    if (clt_io_is_file(path)) st = clt_json_load_reals(path, MAX_FILE, MAX_DEPTH, out);
    if (st == CLT_OK && *out && !json_is_object(*out))
        st = clt_error(CLT_BAD_DATA, "%s is not a JSON object", path);
    clt_free(path);
    clt_free(dir);
    return st;
}

/* The id of {"content": TEXT} or TEXT. */
static clt_status id_of(const clt_json_tokenizer *t, const json_t *v, const char *key, int64_t *out) {
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    *out = -1;
    if (!v || json_is_null(v)) return CLT_OK;
    if (!text) return clt_error(CLT_BAD_DATA, "%s: %s in the files beside it is no token", t->path, key);
    *out = clt_tokenizer_json_id(&t->base, text);
    if (*out < 0)
        return clt_error(
            CLT_BAD_DATA,
            "%s: %s '%.80s' of the files beside it is not in the vocabulary; add it to added_tokens", t->path,
            key, text);
    return CLT_OK;
}

/* The row of a class with or without "TokenizerFast" or "Tokenizer" behind its name; -1: another one. */
static int class_of(json_t *config) {
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    for (size_t i = 0; name && i < CLT_COUNT_OF(classes); i++) {
        const size_t n = strlen(classes[i].name);
        if (strncmp(name, classes[i].name, n) == 0 &&
            (strcmp(name + n, "Tokenizer") == 0 || strcmp(name + n, "TokenizerFast") == 0))
            return (int)i;
    }
    return -1;
}

static int64_t well_known_id(const clt_json_tokenizer *t, int role) {
    for (int i = 0; i < NAMES && well_known[role][i]; i++) {
        const int64_t id = clt_tokenizer_json_id(&t->base, well_known[role][i]);
        if (id >= 0 && t->special[id]) return id;
    }
    return -1;
}

static clt_status read_role(clt_json_tokenizer *t, json_t *config, json_t *map, int role, int64_t *out) {
    const json_t *v = json_object_get(config, keys[role]);
    const int class = class_of(config);
    if (!v) v = json_object_get(map, keys[role]);
    if (v) return id_of(t, v, keys[role], out);
    if (class >= 0) {
        const char *name = classes[class].of[role];
        *out = name ? clt_tokenizer_json_id(&t->base, name) : -1;
    } else {
        *out = config || map ? -1 : well_known_id(t, role);
    }
    return CLT_OK;
}

static bool flag(json_t *config, const char *key, bool missing) {
    const json_t *v = json_object_get(config, key);
    return json_is_boolean(v) ? json_is_true(v) : missing;
}

static clt_status make_template(clt_json_tokenizer *t, json_t *config) {
    const int class = class_of(config);
    if (class < 0 || !classes[class].makes_template) return CLT_OK;
    const bool bos = flag(config, "add_bos_token", classes[class].adds_bos),
               eos = flag(config, "add_eos_token", false);
    if ((bos && t->base.bos_id < 0) || (eos && t->base.eos_id < 0))
        return clt_error(CLT_BAD_DATA, "%s: tokenizer_config.json adds %s, which it does not name", t->path,
                         bos && t->base.bos_id < 0 ? "bos_token" : "eos_token");
    clt_tokenizer_set_template(t, bos ? t->base.bos_id : -1, eos ? t->base.eos_id : -1);
    return CLT_OK;
}

static void set_prefix_space(clt_json_tokenizer *t, bool on) {
    const bool is_on = t->n_pre > 0 && t->pre[0].kind == CLT_PRE_SPACE;
    if (on == is_on) return;
    if (on)
        memmove(t->pre + 1, t->pre, t->n_pre * sizeof *t->pre);
    else
        memmove(t->pre, t->pre + 1, (t->n_pre - 1) * sizeof *t->pre);
    if (on) t->pre[0] = (clt_pre_step){.kind = CLT_PRE_SPACE};
    t->n_pre = on ? t->n_pre + 1 : t->n_pre - 1;
}

/* As transformers, where tokenizer_config.json decides for a pre-tokenizer that is ByteLevel alone, and a
 * missing key is false; one with a value that is no boolean has no effect. */
static void read_prefix_space(clt_json_tokenizer *t, json_t *config) {
    const json_t *v = json_object_get(config, "add_prefix_space");
    const int class = class_of(config);
    const bool kept = v ? !json_is_boolean(v) : class >= 0 && classes[class].keeps_prefix;
    if (config && t->byte_level_alone && !kept) set_prefix_space(t, json_is_true(v));
}

static clt_status read_config(clt_json_tokenizer *t, json_t *config, json_t *map) {
    int64_t *const ids[ROLES] = {&t->base.bos_id, &t->base.eos_id, &t->base.pad_id, &t->base.unk_id};
    const char *side = json_string_value(json_object_get(config, "padding_side"));
    for (int role = 0; role < ROLES; role++) CLT_TRY(read_role(t, config, map, role, ids[role]));
    if (t->base.unk_id < 0 && !config) t->base.unk_id = t->bpe.unk;
    const int class = class_of(config);
    read_prefix_space(t, config);
    t->base.pads_left = side ? strcmp(side, "left") == 0 : class >= 0 && classes[class].pads_left;
    t->base.cleans_up = flag(config, "clean_up_tokenization_spaces", false);
    return make_template(t, config);
}

clt_status clt_tokenizer_read_names(clt_json_tokenizer *t) {
    json_t *config = NULL, *map = NULL;
    clt_status st = load(t, "tokenizer_config.json", &config);
    if (st == CLT_OK) st = load(t, "special_tokens_map.json", &map);
    if (st == CLT_OK) st = read_config(t, config, map);
    json_decref(config);
    json_decref(map);
    return st;
}
