#include "runtime/data/finetune/clt_finetune_files.h"

#include <string.h>

#include "runtime/base/clt_io.h"

enum { WORDS = 5, MOST_DEPTH = 16 };

/* The words that name a split; those of one row mean the same. */
static const char *const split_words[][WORDS] = {
    {"train", "training"}, {"validation", "valid", "dev", "val"}, {"test", "testing", "eval", "evaluation"}};

/* --- names --- */

static bool ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static bool is_json_name(const char *name) {
    static const char *const others[] = {"config.json", "dataset_info.json", "dataset_infos.json",
                                         "dataset_dict.json"};
    for (size_t i = 0; i < CLT_COUNT_OF(others); i++)
        if (strcmp(name, others[i]) == 0) return false;
    return ends_with(name, ".jsonl") || ends_with(name, ".json");
}

/* What may stand beside the word for a split. */
static bool is_separator(char c) {
    return (c && strchr("-._ ", c)) || (c >= '0' && c <= '9');
}

/* How a name has a word, in the order in which files are taken. */
typedef enum { EQUAL, FIRST, LAST, INSIDE } word_place;

static bool has_word(const char *name, size_t n, const char *word, word_place place) {
    const size_t k = strlen(word);
    if (n < k) return false;
    if (place == EQUAL) return n == k && memcmp(name, word, k) == 0;
    if (place == FIRST) return n > k && memcmp(name, word, k) == 0 && is_separator(name[k]);
    if (place == LAST) return n > k && memcmp(name + n - k, word, k) == 0 && is_separator(name[n - k - 1]);
    for (size_t i = 1; i + k < n; i++)
        if (memcmp(name + i, word, k) == 0 && is_separator(name[i - 1]) && is_separator(name[i + k]))
            return true;
    return false;
}

/* Whether a folder of the path has the word, or with in_file its last part. */
static bool path_has_word(const char *path, const char *word, word_place place, bool in_file) {
    for (const char *end; (end = strchr(path, '/')); path = end + 1)
        if (!in_file && has_word(path, (size_t)(end - path), word, place)) return true;
    return in_file && has_word(path, strlen(path), word, place);
}

/* data/SPLIT-00000-of-00001.jsonl */
static bool is_part_of(const char *path, const char *split) {
    static const char form[] = "-#####-of-#####";
    const size_t n = strlen(split);
    if (strncmp(path, "data/", 5) != 0 || strncmp(path + 5, split, n) != 0) return false;
    const char *at = path + 5 + n;
    for (const char *f = form; *f; f++, at++)
        if (*f == '#' ? *at < '0' || *at > '9' : *at != *f) return false;
    return !strchr(at, '/');
}

/* --- folders --- */

/* The JSON files below folder/sub, as paths in the folder. */
static clt_status list_files(const char *folder, const char *sub, int depth, clt_strv *out) {
    clt_strv names = {0};
    char *here = *sub ? clt_path_join(folder, sub) : clt_strdup(folder);
    clt_status st = clt_io_list(here, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        const char *name = names.v[i];
        char *path = *sub ? clt_path_join(sub, name) : clt_strdup(name), *full = clt_path_join(folder, path);
        const bool hidden = name[0] == '.' || strncmp(name, "__", 2) == 0;
        if (!hidden && clt_io_is_dir(full)) {
            if (depth < MOST_DEPTH) st = list_files(folder, path, depth + 1, out);
        } else if (name[0] != '.' && is_json_name(name)) {
            clt_strv_add(out, path);
        }
        clt_free(path);
        clt_free(full);
    }
    clt_strv_free(&names);
    clt_free(here);
    return st;
}

static void add_once(clt_strv *paths, const char *folder, const char *file) {
    char *path = clt_path_join(folder, file);
    for (size_t i = 0; i < paths->n && path; i++)
        if (strcmp(paths->v[i], path) == 0) {
            clt_free(path);
            return;
        }
    clt_strv_add_owned(paths, path);
}

/* The files with one of the words, in their folders' names or in their own: word after word, place after
 * place, as the package datasets takes them. */
static void take_with_words(const clt_strv *files, const char *folder, const char *const *words, bool in_file,
                            clt_strv *paths) {
    static const word_place of_folder[] = {EQUAL, FIRST, LAST, INSIDE}, of_file[] = {FIRST, INSIDE};
    const word_place *places = in_file ? of_file : of_folder;
    const size_t n = in_file ? CLT_COUNT_OF(of_file) : CLT_COUNT_OF(of_folder);
    for (size_t w = 0; w < WORDS && words[w]; w++)
        for (size_t k = 0; k < n; k++)
            for (size_t i = 0; i < files->n; i++)
                if (path_has_word(files->v[i], words[w], places[k], in_file))
                    add_once(paths, folder, files->v[i]);
}

static bool have_split(const clt_strv *files, const char *folder) {
    clt_strv found = {0};
    for (size_t row = 0; row < CLT_COUNT_OF(split_words); row++)
        for (int in_file = 0; in_file < 2; in_file++)
            take_with_words(files, folder, split_words[row], in_file, &found);
    const bool any = found.n > 0;
    clt_strv_free(&found);
    return any;
}

static void choose_files(const clt_strv *files, const char *folder, const char *split, clt_strv *paths) {
    const char *const own[WORDS] = {split}, *const *words = own;
    for (size_t row = 0; row < CLT_COUNT_OF(split_words); row++)
        for (size_t k = 0; k < WORDS && split_words[row][k]; k++)
            if (strcmp(split, split_words[row][k]) == 0) words = split_words[row];
    for (size_t i = 0; i < files->n; i++)
        if (is_part_of(files->v[i], split)) add_once(paths, folder, files->v[i]);
    for (int in_file = 0; in_file < 2 && paths->n == 0; in_file++)
        take_with_words(files, folder, words, in_file, paths);
    if (paths->n || strcmp(split, "train") != 0 || have_split(files, folder)) return;
    for (size_t i = 0; i < files->n; i++) add_once(paths, folder, files->v[i]);
}

static clt_status find_in_folder(const char *folder, const char *split, clt_strv *paths) {
    clt_strv files = {0};
    if (!clt_io_is_dir(folder))
        return clt_error(CLT_BAD_CONFIG, "dataset.hf_kwargs.data_dir: there is no folder %s", folder);
    clt_status st = list_files(folder, "", 0, &files);
    clt_strv_sort(&files);
    if (st == CLT_OK) choose_files(&files, folder, split, paths);
    clt_strv_free(&files);
    if (st != CLT_OK || paths->n) return st;
    return clt_error(CLT_BAD_CONFIG,
                     "%s has no .jsonl or .json file of split '%s': put the split into the file's name "
                     "(%s.jsonl), or set dataset.split",
                     folder, split, split);
}

/* --- data sets --- */

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
