/* cltrain ckpt export: a Hugging Face folder with weights, config.json and the model's other files. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "tools/cltrain/ckpt_tool.h"

static const char weights_name[] = "model.safetensors", index_name[] = "model.safetensors.index.json";

typedef struct {
    const char *dtype; /* f32, bf16 or f16; NULL: that of the source */
    const char *files; /* folder of the other files; NULL: the noted one */
    const char *prefix;
    bool universal;
    int64_t shard_bytes;
    bool overwrite;
} export_options;

typedef struct {
    ckpt_weights w;
    const char *out;
    clt_st_dtype dtype;
    clt_st_spec *spec; /* [n], in the order of the files */
    int n;
    int *first; /* [shards + 1]: shard i has specs first[i] ... first[i + 1] - 1 */
    int shards;
    clt_weight_mapper mapper;
    int at; /* the first spec of the shard that is being written */
} job;

/* --- types --- */

static const struct {
    const char *option, *torch;
    clt_st_dtype type;
} dtypes[] = {
    {"f32", "float32", CLT_ST_F32}, {"bf16", "bfloat16", CLT_ST_BF16}, {"f16", "float16", CLT_ST_F16}};

static const char *torch_name(clt_st_dtype type) {
    for (size_t i = 0; i < CLT_COUNT_OF(dtypes); i++)
        if (dtypes[i].type == type) return dtypes[i].torch;
    return "float32";
}

/* The type asked for, or that of weights that nothing has trained since their import; else fp32. */
static clt_st_dtype choose_dtype(const ckpt_weights *w, const char *option) {
    const char *noted = clt_model_source_dtype(w->config);
    for (size_t i = 0; i < CLT_COUNT_OF(dtypes); i++)
        if (option ? !strcmp(option, dtypes[i].option) : noted && !strcmp(noted, dtypes[i].torch))
            return dtypes[i].type;
    return CLT_ST_F32;
}

/* --- weights --- */

static void list_tensors(job *j) {
    const ckpt_weights *w = &j->w;
    j->n = w->map ? w->map->files : w->table.n;
    j->spec = clt_calloc((size_t)j->n, sizeof *j->spec);
    for (int i = 0; i < j->n; i++) {
        const clt_slab_entry *e = w->map ? NULL : &w->table.entry[i];
        const clt_map_file *f = w->map ? &w->map->file[i] : NULL;
        clt_st_spec *s = &j->spec[i];
        *s = (clt_st_spec){.name = e ? e->name : f->name, .dtype = j->dtype, .dims = e ? e->dims : f->dims};
        for (int d = 0; d < s->dims; d++) s->shape[d] = (uint64_t)(e ? e->shape[d] : f->shape[d]);
    }
}

static uint64_t bytes_of(const clt_st_spec *s) {
    uint64_t n = (uint64_t)clt_st_dtype_bits(s->dtype) / 8;
    for (int d = 0; d < s->dims; d++) n *= s->shape[d];
    return n;
}

/* Consecutive tensors of at most `most` bytes, or one larger tensor, are a shard. */
static void divide(job *j, uint64_t most) {
    uint64_t size = 0;
    j->first = clt_calloc((size_t)j->n + 1, sizeof *j->first);
    j->shards = 1;
    for (int i = 0; i < j->n; i++) {
        const uint64_t bytes = bytes_of(&j->spec[i]);
        if (size > 0 && size + bytes > most) {
            j->first[j->shards++] = i;
            size = 0;
        }
        size += bytes;
    }
    j->first[j->shards] = j->n;
}

static clt_status fill(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    job *j = ctx;
    if (!j->w.map) return ckpt_role_read(&j->w.role[0], j->at + index, first, dst, count);
    return clt_weight_mapper_read(&j->mapper, j->at + index, first, dst, count);
}

static char *shard_name(const job *j, int shard) {
    return j->shards == 1 ? clt_strdup(weights_name)
                          : clt_format("model-%05d-of-%05d.safetensors", shard + 1, j->shards);
}

static clt_status write_index(const job *j) {
    json_t *map = json_object();
    uint64_t total = 0;
    for (int s = 0; s < j->shards; s++) {
        char *name = shard_name(j, s);
        for (int i = j->first[s]; i < j->first[s + 1]; i++) {
            json_object_set_new(map, j->spec[i].name, json_string(name));
            total += bytes_of(&j->spec[i]);
        }
        clt_free(name);
    }
    json_t *o = json_pack("{s:{s:I} s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *path = clt_path_join(j->out, index_name), *text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    clt_status st = text ? clt_io_write_atomic(path, text, strlen(text)) : clt_no_memory(path, 1 << 20);
    clt_free(text);
    clt_free(path);
    json_decref(o);
    return st;
}

static clt_status write_weights(job *j) {
    static const char *const meta[] = {"format", "pt"};
    j->mapper =
        (clt_weight_mapper){.map = j->w.map, .to_file = true, .read = ckpt_role_read, .ctx = &j->w.role[0]};
    clt_status st = CLT_OK;
    for (int s = 0; s < j->shards && st == CLT_OK; s++) {
        char *name = shard_name(j, s), *path = clt_path_join(j->out, name);
        j->at = j->first[s];
        st = clt_safetensors_write(path, j->spec + j->at, j->first[s + 1] - j->at, meta, 1, fill, j);
        clt_free(path);
        clt_free(name);
    }
    clt_weight_mapper_free(&j->mapper);
    if (st == CLT_OK && j->shards > 1) st = write_index(j);
    return st;
}

/* --- the other files --- */

static clt_status write_config(const job *j) {
    json_t *o = clt_model_hf_config(j->w.config, torch_name(j->dtype));
    char *path = clt_path_join(j->out, "config.json");
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    clt_status st = text ? clt_io_write_atomic(path, text, strlen(text)) : clt_no_memory(path, 1 << 20);
    const char *differs = clt_model_hf_differs(j->w.config);
    if (st == CLT_OK && differs)
        clt_warn("the transformers package computes something else from the export of %s: %s",
                 clt_weight_source_path(j->w.source), differs);
    clt_free(text);
    clt_free(path);
    json_decref(o);
    return st;
}

static clt_status copy_file(const char *from, const char *to) {
    enum { MOST = 256 << 20 };
    char *data;
    size_t bytes;
    CLT_TRY(clt_io_read_all(from, MOST, &data, &bytes));
    clt_status st = clt_io_write_atomic(to, data, bytes);
    clt_free(data);
    return st;
}

static clt_status copy_files(const job *j, const char *folder) {
    static const char *const names[] = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        char *from = clt_path_join(folder, names[i]), *to = clt_path_join(j->out, names[i]);
        clt_status st = clt_io_is_file(from) ? copy_file(from, to) : CLT_OK;
        clt_free(from);
        clt_free(to);
        CLT_TRY(st);
    }
    return CLT_OK;
}

/* A run keeps the tokenizer that it trained with in its folder, beside the checkpoints. */
static clt_status copy_from_run(const job *j, bool *found) {
    char *run = clt_path_dir(clt_weight_source_path(j->w.source)), *kept = clt_path_join(run, "tokenizer");
    *found = clt_weight_source_checkpoint(j->w.source) && clt_io_is_dir(kept);
    clt_status st = *found ? copy_files(j, kept) : CLT_OK;
    clt_free(kept);
    clt_free(run);
    return st;
}

static clt_status write_other_files(const job *j, const char *given) {
    const clt_weight_source *s = j->w.source;
    const char *noted = clt_weight_source_kind(s) == CLT_SOURCE_HF ? clt_weight_source_path(s)
                                                                   : clt_model_source_folder(j->w.config);
    bool found;
    if (given && !clt_io_is_dir(given)) return clt_error(CLT_IO, "--files: %s is not a folder", given);
    if (given) return copy_files(j, given);
    if (noted && clt_io_is_dir(noted)) CLT_TRY(copy_files(j, noted));
    CLT_TRY(copy_from_run(j, &found));
    if (noted && !found && !clt_io_is_dir(noted))
        clt_warn("the folder %s with the tokenizer of this model no longer exists: the export has none; give "
                 "a folder that has the files with --files",
                 noted);
    return CLT_OK;
}

/* --- the command --- */

/* What an export replaces may be a user's only copy of a model. */
static clt_status check_free(const char *out) {
    static const char *const files[] = {"config.json", weights_name, index_name};
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

/* Whether this export writes a file of this name. */
static bool is_own_shard(const job *j, const char *name) {
    bool own = false;
    for (int s = 0; s < j->shards && !own; s++) {
        char *mine = shard_name(j, s);
        own = !strcmp(mine, name);
        clt_free(mine);
    }
    return own;
}

/* Shards of an earlier export: nothing reads them any more. */
static void remove_other_shards(const job *j, bool universal) {
    clt_strv names = {0};
    if (clt_io_list(j->out, &names) != CLT_OK) names.n = 0;
    for (size_t i = 0; i < names.n; i++) {
        int shard, of, end = 0;
        const char *name = names.v[i];
        if (sscanf(name, "model-%5d-of-%5d.safetensors%n", &shard, &of, &end) != 2 || !end || name[end])
            continue;
        char *path = universal || !is_own_shard(j, name) ? clt_path_join(j->out, name) : NULL;
        if (path) clt_io_try_unlink(path);
        clt_free(path);
    }
    clt_strv_free(&names);
}

/* Of an earlier export, the forms of weights that this one does not write: readers would take them. */
static void remove_other_forms(const job *j, bool universal) {
    const char *const forms[] = {j->shards > 1 || universal ? weights_name : NULL,
                                 j->shards == 1 || universal ? index_name : NULL};
    for (size_t i = 0; i < CLT_COUNT_OF(forms); i++) {
        char *path = forms[i] ? clt_path_join(j->out, forms[i]) : NULL;
        if (path && clt_io_is_file(path)) clt_io_try_unlink(path);
        clt_free(path);
    }
}

static clt_status export_to(clt_weight_source *s, const char *out, const export_options *opt) {
    job j = {.out = out};
    if (!opt->overwrite) CLT_TRY(check_free(out));
    if (!clt_weight_source_model(s))
        return clt_error(CLT_BAD_DATA, "%s has no model configuration", clt_weight_source_path(s));
    CLT_TRY(ckpt_weights_open(s, NULL, &j.w));
    j.dtype = opt->universal ? CLT_ST_F32 : choose_dtype(&j.w, opt->dtype);
    list_tensors(&j);
    divide(&j, (uint64_t)opt->shard_bytes);
    clt_status st = clt_io_mkdirs(out);
    if (st == CLT_OK)
        st = opt->universal ? ckpt_export_universal(&j.w, out, opt->prefix, opt->overwrite)
                            : write_weights(&j);
    if (st == CLT_OK) remove_other_forms(&j, opt->universal);
    if (st == CLT_OK && opt->overwrite) remove_other_shards(&j, opt->universal);
    if (st == CLT_OK) st = write_config(&j);
    if (st == CLT_OK) st = write_other_files(&j, opt->files);
    if (st == CLT_OK)
        printf("%s: %d tensors (%s) from %s\n", out, j.n, torch_name(j.dtype), clt_weight_source_path(s));
    clt_free(j.spec);
    clt_free(j.first);
    ckpt_weights_close(&j.w);
    return st;
}

static bool is_dtype(const char *option) {
    for (size_t i = 0; i < CLT_COUNT_OF(dtypes); i++)
        if (!strcmp(option, dtypes[i].option)) return true;
    return false;
}

int ckpt_export(int argc, char **argv) {
    export_options opt = {.shard_bytes = 5000000000};
    clt_option options[] = {
        {"dtype", 0, CLT_OPT_STR, &opt.dtype, "T",
         "f32, bf16 or f16; default: the type of imported weights that were not trained since, else f32"},
        {"files", 0, CLT_OPT_STR, &opt.files, "FOLDER",
         "folder with tokenizer and generation_config.json; default: the one that the model came from"},
        {"shard-bytes", 0, CLT_OPT_INT, &opt.shard_bytes, "N",
         "largest weight file (default 5000000000); more weights are several files with an index"},
        {"deepspeed-universal", 0, CLT_OPT_FLAG, &opt.universal, NULL,
         "write a universal checkpoint of DeepSpeed, with moments and steps, in place of model.safetensors"},
        {"prefix", 0, CLT_OPT_STR, &opt.prefix, "TEXT",
         "with it: in front of the parameters' names; LLM Foundry's begin with \"model.\""},
        {"overwrite", 0, CLT_OPT_FLAG, &opt.overwrite, NULL, "replace a model that is in OUT_FOLDER"}};
    clt_command c = {
        "cltrain ckpt export",
        "CHECKPOINT OUT_FOLDER",
        "Writes config.json and model.safetensors, as the Hugging Face libraries read them, and\n"
        "copies the tokenizer's files and generation_config.json; or a universal checkpoint of DeepSpeed.",
        "cltrain ckpt export runs/my-run export/\n"
        "cltrain ckpt export runs/my-run universal/ --deepspeed-universal --prefix model.\n",
        options,
        CLT_COUNT_OF(options),
        false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 2, &rest);
    if (code >= 0) return code;
    if (opt.dtype && !is_dtype(opt.dtype))
        code = clt_options_fail(&c, "--dtype is f32, bf16 or f16, not '%s'", opt.dtype);
    else if (opt.shard_bytes < 1)
        code = clt_options_fail(&c, "--shard-bytes must be above 0");
    else if (opt.universal && opt.dtype)
        code = clt_options_fail(&c, "--dtype has no meaning with --deepspeed-universal, which is fp32");
    else if (opt.prefix && !opt.universal)
        code = clt_options_fail(&c, "--prefix needs --deepspeed-universal");
    clt_weight_source *s = NULL;
    if (code < 0) {
        clt_status st = clt_weight_source_open(rest.v[0], &s);
        if (st == CLT_OK) st = export_to(s, rest.v[1], &opt);
        code = clt_status_exit_code(st);
    }
    clt_weight_source_close(s);
    clt_strv_free(&rest);
    return code;
}
