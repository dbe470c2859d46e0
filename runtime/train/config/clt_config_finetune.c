/* The keys of fine-tuning data. */
#include "runtime/train/config/clt_config_finetune.h"

#include <string.h>

#include "runtime/data/finetune/clt_finetune_format.h"

const char *const clt_config_responses[] = {"last", "all", "none", NULL};

static const clt_key hf_keys[] = {
    CLT_KEY(clt_loader_config, "data_dir", finetune.data_dir, "null", "a folder of JSONL files",
            .nullable = true),
    CLT_KEY_OF(&clt_kind_strings, clt_loader_config, "data_files", finetune.data_files, "null",
               "a JSONL file or a list of them", .nullable = true),
};
const clt_schema clt_config_hf_schema = CLT_SCHEMA(hf_keys);

/* --- kinds --- */

static bool is_word(const json_t *v, const char *word) {
    return json_is_string(v) && strcmp(json_string_value(v), word) == 0;
}

static clt_status check_ratio(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    const double most = 1e6;
    (void)k;
    if (is_word(v, "auto")) return CLT_OK;
    if (json_is_number(v) && json_number_value(v) >= 1 && json_number_value(v) <= most) return CLT_OK;
    return clt_schema_fail(r, path, "must be a number of samples per row, at least 1, or auto");
}

static void store_ratio(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(double *)field = is_word(v, "auto") ? 0 : json_number_value(v);
}
const clt_kind clt_kind_packing_ratio = {"a number or auto", sizeof(double), check_ratio, store_ratio};

static bool read_prompts(const json_t *v, int64_t *least) {
    static const char length[] = "length>=";
    *least = is_word(v, "none") ? -1 : 0;
    if (is_word(v, "none") || is_word(v, "all")) return true;
    const char *s = json_string_value(v);
    return s && strncmp(s, length, strlen(length)) == 0 && clt_parse_i64(s + strlen(length), least) &&
           *least >= 0;
}

static clt_status check_prompts(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    int64_t least;
    (void)k;
    return read_prompts(v, &least)
               ? CLT_OK
               : clt_schema_fail(r, path, "must be none, all, or length>=N with N tokens");
}

static void store_prompts(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    read_prompts(v, field);
}
const clt_kind clt_kind_target_prompts = {"none, all or length>=N", sizeof(int64_t), check_prompts,
                                          store_prompts};

static clt_status check_preprocessing(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    (void)k;
    if (json_is_string(json_object_get(v, "prompt")) && json_is_string(json_object_get(v, "response")) &&
        json_object_size(v) == 2)
        return CLT_OK;
    if (!json_is_string(v))
        return clt_schema_fail(r, path, "must be {prompt: COLUMN, response: COLUMN}, or a function's name");
    if (clt_finetune_function_exists(json_string_value(v))) return CLT_OK;
    char *names = clt_finetune_function_names();
    clt_status st = clt_schema_fail(
        r, path,
        "is '%s': Python code cannot be loaded. Write the lines with prompt and response, or with messages, "
        "before the run and remove this key; name the columns, as {prompt: COLUMN, response: COLUMN}; or use "
        "a function of LLM Foundry itself: %s",
        json_string_value(v), names);
    clt_free(names);
    return st;
}

static void store_preprocessing(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(json_t **)field = v;
}
const clt_kind clt_kind_preprocessing = {"a map or a name", sizeof(json_t *), check_preprocessing,
                                         store_preprocessing, true};

/* --- checks --- */

/* What is given and belongs to the other kind of loader has no effect; one line says so. */
static void remark_keys(clt_config *c, const char *path, const char *names, const char *of) {
    clt_strv_add_owned(
        &c->remarks,
        clt_format("%s.dataset has keys of the loader %s, which have no effect (%s)", path, of, names));
}

static bool has_finetune_keys(const clt_finetune_config *f) {
    return f->hf_name || f->data_dir || f->data_files.n || f->preprocessing || f->packing_ratio != 1 ||
           f->max_leftover >= 0 || f->target_prompts >= 0 || f->target_responses != CLT_TARGET_LAST;
}

static clt_status check_place(clt_schema_reader *r, const char *path, const clt_loader_config *l) {
    clt_status st = CLT_OK;
    char *name = clt_format("%s.dataset.hf_name", path), *local = clt_format("%s.dataset.local", path),
         *method = clt_format("%s.dataset.batching_method", path);
    if (l->finetune.hf_name && (l->local || l->remote || l->streams_map))
        st = clt_config_fail_both(r, name, local, "the data are either JSONL files or MDS shards");
    else if (l->batching_method && strcmp(l->batching_method, "device_per_stream") == 0)
        st = clt_schema_fail(r, method,
                             "is device_per_stream, which divides a batch by ranks; rows of fine-tuning data "
                             "do not depend on ranks: use per_stream or another one");
    clt_free(name);
    clt_free(local);
    clt_free(method);
    return st;
}

static clt_status check_values(clt_schema_reader *r, const char *path, const clt_loader_config *l) {
    char *key = clt_format("%s.dataset.max_leftover_bins_to_keep", path),
         *responses = clt_format("%s.dataset.target_responses", path);
    clt_status st = CLT_OK;
    if (l->finetune.max_leftover < -1)
        st = clt_schema_fail(r, key, "is %lld: it must not be negative", (long long)l->finetune.max_leftover);
    else if (l->finetune.target_responses == CLT_TARGET_NONE && l->finetune.target_prompts < 0)
        st = clt_schema_fail(r, responses, "is none, as are target_prompts: then nothing is trained on");
    clt_free(key);
    clt_free(responses);
    return st;
}

clt_status clt_config_check_finetune(clt_schema_reader *r, clt_config *c, const char *path, bool eval,
                                     clt_loader_config *l) {
    const bool files = l->kind == CLT_LOADER_FINETUNING && l->finetune.hf_name;
    if (!eval && l->shuffle_seed == CLT_SEED_NOT_GIVEN)
        l->shuffle_seed = files ? 0 : 9176; /* those of torch's sampler and of StreamingDataset */
    if (l->kind != CLT_LOADER_FINETUNING) {
        if (l->kind == CLT_LOADER_TEXT && has_finetune_keys(&l->finetune))
            remark_keys(c, path, "hf_name, packing_ratio, target_prompts and others", "finetuning");
        return CLT_OK;
    }
    if (l->eos_token_id >= 0 || l->bos_token_id >= 0 || (files && l->epoch_size) || l->replication > 1)
        remark_keys(c, path, "eos_token_id, bos_token_id, epoch_size, replication", "text");
    if (l->finetune.preprocessing && !files)
        remark_keys(c, path, "preprocessing_fn", "finetuning with hf_name");
    CLT_TRY(check_place(r, path, l));
    return check_values(r, path, l);
}

/* LLM Foundry also uses the function that is registered under the name of the data set. */
static clt_finetune_format format_of(const clt_finetune_config *f) {
    const char *named = json_string_value(f->preprocessing);
    if (!f->preprocessing && clt_finetune_function_exists(f->hf_name)) named = f->hf_name;
    return (clt_finetune_format){
        .function = named,
        .prompt_column = json_string_value(json_object_get(f->preprocessing, "prompt")),
        .response_column = json_string_value(json_object_get(f->preprocessing, "response"))};
}

clt_finetune_params clt_config_finetune_params(const clt_config *c, const clt_loader_config *l) {
    const clt_finetune_config *f = &l->finetune;
    const bool eval = l != &c->train;
    return (clt_finetune_params){.loader = eval ? "eval_loader" : "train_loader",
                                 .hf_name = f->hf_name,
                                 .data_dir = f->data_dir,
                                 .data_files = &f->data_files,
                                 .format = format_of(f),
                                 .target_prompts = f->target_prompts,
                                 .target_responses = (clt_target_responses)f->target_responses,
                                 .padding_side = c->padding_side,
                                 .chat_template = c->chat_template,
                                 /* Packed rows depend on the batch, which must not depend on the ranks. */
                                 .batch = eval ? c->device_eval_batch_size : c->global_train_batch_size,
                                 .drop_last = l->drop_last,
                                 .most_batches = eval ? 0 : CLT_MAX(c->train_subset_num_batches, 0),
                                 .packing_ratio = f->packing_ratio,
                                 .most_leftover = f->max_leftover};
}
