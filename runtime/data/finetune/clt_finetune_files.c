#include "runtime/data/finetune/clt_finetune_files.h"

#include <ctype.h>
#include <string.h>

#include "runtime/base/clt_io.h"

/* The words that name a split; those of one row mean the same. */
static const char *const split_words[][5] = {
    {"train", "training"}, {"validation", "valid", "val", "dev"}, {"test", "testing", "eval", "evaluation"}};

static bool ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static bool is_json_name(const char *name) {
    return ends_with(name, ".jsonl") || ends_with(name, ".json");
}

/* Whether `word` is in the name between characters that are not letters. */
static bool has_word(const char *name, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = strstr(name, word); at; at = strstr(at + 1, word))
        if ((at == name || !isalpha((unsigned char)at[-1])) && !isalpha((unsigned char)at[n])) return true;
    return false;
}

static bool has_word_of(const char *name, size_t row) {
    for (size_t k = 0; k < CLT_COUNT_OF(split_words[row]) && split_words[row][k]; k++)
        if (has_word(name, split_words[row][k])) return true;
    return false;
}

static bool is_of_split(const char *name, const char *split) {
    for (size_t row = 0; row < CLT_COUNT_OF(split_words); row++)
        for (size_t k = 0; k < CLT_COUNT_OF(split_words[row]) && split_words[row][k]; k++)
            if (strcmp(split, split_words[row][k]) == 0) return has_word_of(name, row);
    return has_word(name, split);
}

static bool is_of_any_split(const clt_strv *names) {
    for (size_t i = 0; i < names->n; i++)
        for (size_t row = 0; row < CLT_COUNT_OF(split_words); row++)
            if (is_json_name(names->v[i]) && has_word_of(names->v[i], row)) return true;
    return false;
}

static clt_status search_folder(const char *folder, const char *split, clt_strv *paths) {
    clt_strv names = {0};
    clt_status st = clt_io_list(folder, &names);
    clt_strv_sort(&names);
    const bool all = !is_of_any_split(&names) && strcmp(split, "train") == 0;
    for (size_t i = 0; i < names.n; i++)
        if (is_json_name(names.v[i]) && (all || is_of_split(names.v[i], split)))
            clt_strv_add_owned(paths, clt_path_join(folder, names.v[i]));
    clt_strv_free(&names);
    return st;
}

static clt_status find_in_folder(const char *folder, const char *split, clt_strv *paths) {
    if (!clt_io_is_dir(folder))
        return clt_error(CLT_BAD_CONFIG, "dataset.hf_kwargs.data_dir: there is no folder %s", folder);
    CLT_TRY(search_folder(folder, split, paths));
    if (paths->n) return CLT_OK;
    char *sub = clt_path_join(folder, split);
    clt_status st = CLT_OK;
    if (clt_io_is_dir(sub)) st = search_folder(sub, split, paths);
    if (st == CLT_OK && paths->n == 0 && clt_io_is_dir(sub)) st = search_folder(sub, "train", paths);
    clt_free(sub);
    if (st != CLT_OK || paths->n) return st;
    return clt_error(CLT_BAD_CONFIG,
                     "%s has no .jsonl or .json file of split '%s': put the split into the file's name "
                     "(%s.jsonl), or set dataset.split",
                     folder, split, split);
}

static clt_status take_files(const clt_strv *files, clt_strv *paths) {
    for (size_t i = 0; i < files->n; i++) {
        if (!clt_io_is_file(files->v[i]))
            return clt_error(CLT_BAD_CONFIG, "dataset.hf_kwargs.data_files: there is no file %s",
                             files->v[i]);
        clt_strv_add(paths, files->v[i]);
    }
    return CLT_OK;
}

static clt_status find_json(const clt_finetune_params *p, const char *split, clt_strv *paths) {
    if (p->data_files && p->data_files->n) return take_files(p->data_files, paths);
    if (p->data_dir) return find_in_folder(p->data_dir, split, paths);
    return clt_error(CLT_BAD_CONFIG,
                     "dataset.hf_name is json: name the files in dataset.hf_kwargs.data_dir or "
                     "dataset.hf_kwargs.data_files");
}

static clt_status find(const clt_finetune_params *p, const char *split, clt_strv *paths) {
    if (!split || !*split) split = "train";
    if (strpbrk(split, "[+"))
        return clt_error(CLT_BAD_CONFIG,
                         "dataset.split '%s' selects a part of a split, which is not supported: write the "
                         "lines to a file of their own",
                         split);
    if (clt_io_is_dir(p->hf_name)) return find_in_folder(p->hf_name, split, paths);
    if (clt_io_is_file(p->hf_name)) {
        clt_strv_add(paths, p->hf_name);
        return CLT_OK;
    }
    if (strcmp(p->hf_name, "json") == 0) return find_json(p, split, paths);
    return clt_error(
        CLT_BAD_CONFIG,
        "dataset.hf_name '%s' is no folder or file here, and data sets of a hub are not "
        "downloaded: save it as JSONL (one object with prompt and response, or with messages, on "
        "each line) and name the file or its folder",
        p->hf_name);
}

clt_status clt_finetune_find_files(const clt_finetune_params *p, const char *split, clt_strv *paths) {
    if (!p->loader) return find(p, split, paths);
    clt_error_quiet(true);
    clt_status st = find(p, split, paths);
    clt_error_quiet(false);
    if (st == CLT_OK) return CLT_OK;
    char *why = clt_strdup(clt_last_error());
    clt_error(st, "%s: %s", p->loader, why);
    clt_free(why);
    return st;
}
