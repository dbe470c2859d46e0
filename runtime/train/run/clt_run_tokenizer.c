#include "runtime/train/run/clt_run_tokenizer.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_yaml_tree.h"

static const char main_file[] = "tokenizer.json", sub_folder[] = "tokenizer";

/* --- keeping --- */

/* Copies FROM/name to TO/name as `as`, if it exists. */
static clt_status copy_file(const char *from, const char *name, const char *to, const char *as) {
    enum { MOST = 256 << 20 };
    char *in = clt_path_join(from, name), *out = clt_path_join(to, as), *data = NULL;
    size_t bytes = 0;
    clt_status st = CLT_OK;
    if (clt_io_is_file(in)) {
        st = clt_io_read_all(in, MOST, &data, &bytes);
        if (st == CLT_OK) st = clt_io_write_atomic(out, data, bytes);
    }
    clt_free(data);
    clt_free(in);
    clt_free(out);
    return st;
}

clt_status clt_run_tokenizer_keep(const char *source, const char *folder) {
    static const char *const beside[] = {"tokenizer_config.json", "special_tokens_map.json",
                                         "chat_template.jinja"};
    if (!source || !clt_tokenizer_known(source) || !strcmp(source, "bytes")) return CLT_OK;
    const bool is_folder = clt_io_is_dir(source);
    char *from = is_folder ? clt_strdup(source) : clt_path_dir(source),
         *to = clt_path_join(folder, sub_folder);
    clt_status st = clt_io_mkdirs(to);
    if (st == CLT_OK) st = copy_file(from, is_folder ? main_file : clt_path_base(source), to, main_file);
    for (size_t i = 0; i < CLT_COUNT_OF(beside) && st == CLT_OK; i++)
        st = copy_file(from, beside[i], to, beside[i]);
    clt_free(from);
    clt_free(to);
    return st;
}

/* --- finding --- */

/* `folder` if it has a tokenizer.json, else NULL; takes over folder. */
static char *with_file(char *folder) {
    char *file = clt_path_join(folder, main_file);
    const bool there = clt_io_is_file(file);
    clt_free(file);
    if (there) return folder;
    clt_free(folder);
    return NULL;
}

/* The folder with the tokenizer of what was opened; NULL: there is none. The caller frees it. */
static char *beside_weights(const clt_weight_source *src) {
    const char *path = clt_weight_source_path(src);
    char *folder = clt_io_is_dir(path) ? clt_strdup(path) : clt_path_dir(path), *run = clt_path_dir(folder);
    char *found = with_file(clt_strdup(folder));
    if (!found) found = with_file(clt_path_join(folder, sub_folder));
    if (!found && clt_weight_source_kind(src) == CLT_SOURCE_CHECKPOINT)
        found = with_file(clt_path_join(run, sub_folder));
    clt_free(folder);
    clt_free(run);
    return found;
}

/* tokenizer.name of the configuration that a checkpoint has; NULL: none. The caller frees it. */
static char *configured(const clt_weight_source *src) {
    const clt_ckpt_reader *checkpoint = clt_weight_source_checkpoint(src);
    const char *config = checkpoint ? clt_ckpt_state(checkpoint)->config : NULL;
    char *name = NULL;
    clt_yaml *y = NULL;
    if (!config) return NULL;
    clt_error_quiet(true);
    if (clt_yaml_parse(config, strlen(config), clt_weight_source_path(src), &y) == CLT_OK) {
        const clt_yaml_node *node = clt_yaml_node_find(y, "tokenizer.name", NULL);
        if (node && node->kind == CLT_YAML_SCALAR) name = clt_strdup(node->text);
    }
    clt_error_quiet(false);
    clt_yaml_free(y);
    return name;
}

char *clt_run_tokenizer_of(const clt_weight_source *src) {
    char *source = beside_weights(src);
    if (!source) source = configured(src);
    if (source) return source;
    clt_warn("%s comes without a tokenizer: text is read as bytes (--tokenizer names another one)",
             clt_weight_source_path(src));
    return clt_strdup("bytes");
}

clt_status clt_run_tokenizer_open(const char *name, clt_tokenizer **out) {
    if (!clt_tokenizer_known(name))
        return clt_error(
            CLT_BAD_CONFIG,
            "the model was trained with the tokenizer '%s', which is not on this machine: give the "
            "folder of its tokenizer.json (--tokenizer)",
            name);
    return clt_tokenizer_open(name, out);
}
