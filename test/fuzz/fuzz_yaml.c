/* Hostile configurations: any bytes on the whole way from text to clt_config, as a document and, line by
 * line, as overrides of a document that has every section; and back, through printing and freeing. What is
 * accepted must print as a configuration that means the same.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_yaml.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_yaml FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>

#include "runtime/train/config/clt_config.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char base[] =
    "model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, max_seq_len: 64, vocab_size: 512,\n"
    "  attn_config: {rope: true, rope_impl: hf, rope_hf_config: {}}, ffn_config: {}, init_config: {}}\n"
    "tokenizer: {name: bytes, kwargs: {}}\n"
    "optimizer: {name: decoupled_adamw, param_groups: [{param_str_match: bias}]}\n"
    "scheduler: {name: cosine_with_warmup, t_warmup: 2ba}\n"
    "train_loader: &loader {name: text, dataset: {local: data}}\n"
    "eval_loader: [{<<: *loader, label: a}, {<<: *loader, label: b}]\n"
    "max_seq_len: 64\nmax_duration: 30ba\nglobal_train_batch_size: 8\n"
    "algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}\n"
    "callbacks: {speed_monitor: {}, kill_loss_spike: {}}\nfsdp_config: {}\nloggers: {wandb: {}}\n"
    "cltrain: {guards: {}, resume_check: {}}\nvariables: {a: 1, b: {c: x}}\n";

/* What must hold whatever the input is. */
#define MUST(condition) must(condition, #condition)
static void must(bool holds, const char *condition) {
    if (holds) return;
    fprintf(stderr, "does not hold: %s (%s)\n", condition, clt_last_error());
    abort();
}

/* The document prints as itself. */
static void check_yaml(const char *text, size_t size) {
    clt_yaml *y;
    if (clt_yaml_parse(text, size, "fuzz", &y) != CLT_OK) return;
    json_t *v = NULL, *again = NULL;
    if (clt_yaml_interpolate(y) == CLT_OK && clt_yaml_to_json(y, &v) == CLT_OK) {
        static const clt_yaml_style style = {.sort = true};
        clt_str out = {0};
        clt_yaml *z;
        clt_yaml_dump(v, &style, &out);
        if (out.len <= CLT_YAML_MAX_BYTES) {
            MUST(clt_yaml_parse(out.s, out.len, "printed", &z) == CLT_OK);
            MUST(clt_yaml_interpolate(z) == CLT_OK);
            MUST(clt_yaml_to_json(z, &again) == CLT_OK && json_equal(v, again));
            clt_yaml_free(z);
        }
        clt_str_free(&out);
        json_decref(again);
        json_decref(v);
    }
    clt_yaml_free(y);
}

static void check_config(clt_config *c) {
    clt_str text = {0}, origins = {0};
    clt_strv lines = {0};
    clt_config *again;
    clt_config_print(c, false, &text);
    clt_config_print(c, true, &origins);
    if (text.len <= CLT_YAML_MAX_BYTES) {
        json_t *differences = clt_config_differences(c, text.s);
        MUST(differences && json_object_size(differences) == 0);
        json_decref(differences);
        MUST(clt_config_parse(text.s, text.len, "printed", NULL, 0, &again) == CLT_OK);
        clt_config_free(again);
    }
    if (origins.len <= CLT_YAML_MAX_BYTES) {
        MUST(clt_config_parse(origins.s, origins.len, "with origins", NULL, 0, &again) == CLT_OK);
        clt_config_free(again);
    }
    clt_notices_lines(&c->notices, &lines);
    json_t *model = clt_model_config_to_json(c->model);
    clt_model_config *read;
    MUST(clt_model_config_from_json(model, false, "written back", &read) == CLT_OK);
    clt_model_config_free(read);
    json_decref(model);
    clt_free(clt_config_expand(c, c->save_filename, &(clt_timestamp){.epoch = 1}));
    clt_strv_free(&lines);
    clt_str_free(&origins);
    clt_str_free(&text);
    clt_config_free(c);
}

static void check_overrides(const char *text, size_t size) {
    enum { MOST = 32 };
    char *copy = clt_strndup(text, size), *rest = copy, *line;
    const char *over[MOST];
    size_t n = 0;
    clt_config *c;
    while (n < MOST && (line = strsep(&rest, "\n")))
        if (*line && *line != '#') over[n++] = line;
    if (clt_config_parse(base, strlen(base), "base", over, n, &c) == CLT_OK) check_config(c);
    clt_free(copy);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    clt_log_set_level(CLT_LOG_ERROR);
    clt_error_quiet(true);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_config *c;
    const char *text = (const char *)data;
    check_yaml(text, size);
    if (clt_config_parse(text, size, "fuzz", NULL, 0, &c) == CLT_OK) check_config(c);
    check_overrides(text, size);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "${}[]:,#&*!-'\"\\.0e9\n \t~<>|%@`="
#include "test/fuzz/replay.h"
#endif
