/* Hostile ds_config.json files: any bytes on the whole way from hjson to clt_config. What is accepted must
 * print as a configuration that means the same without the file, and has a summary.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_deepspeed.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_deepspeed FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/train/config/clt_deepspeed.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* With and without what the file may leave to the YAML. */
static const char *const bases[] = {
    "model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, max_seq_len: 64, vocab_size: 512}\n"
    "tokenizer: {name: bytes}\ntrain_loader: {name: text, dataset: {local: data}}\n"
    "max_seq_len: 64\nmax_duration: 30ba\n",
    "model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, max_seq_len: 64, vocab_size: 512}\n"
    "tokenizer: {name: bytes}\ntrain_loader: {name: text, dataset: {local: data}}\n"
    "max_seq_len: 64\nmax_duration: 30ba\nglobal_train_batch_size: 8\noptimizer: {name: adamw}\n"
    "scheduler: {name: constant_with_warmup, t_warmup: 0ba}\n"};
static char path[] = "/tmp/fuzz_deepspeed_XXXXXX";

static void must(bool holds, const char *condition) {
    if (holds) return;
    fprintf(stderr, "does not hold: %s (%s)\n", condition, clt_last_error());
    abort();
}

static void remove_file(void) {
    unlink(path);
}

static void check_config(clt_config *c) {
    clt_str text = {0};
    clt_config *again;
    json_t *summary = clt_config_summary(c, 1);
    must(json_is_object(summary), "a summary");
    json_decref(summary);
    clt_config_print(c, false, &text);
    if (text.len <= CLT_YAML_MAX_BYTES) {
        must(clt_config_parse(text.s, text.len, "printed", NULL, 0, &again) == CLT_OK,
             "the printed configuration");
        clt_config_free(again);
    }
    clt_str_free(&text);
    clt_config_free(c);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    clt_log_set_level(CLT_LOG_ERROR);
    clt_error_quiet(true);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made;
    if (!made) {
        const int fd = mkstemp(path);
        must(fd >= 0 && close(fd) == 0 && atexit(remove_file) == 0, "a temporary file");
        made = true;
    }
    FILE *f = fopen(path, "wb");
    must(f && fwrite(data, 1, size, f) == size && fclose(f) == 0, "the file is written");
    char *over = clt_format("deepspeed=%s", path);
    for (size_t i = 0; i < CLT_COUNT_OF(bases); i++) {
        clt_config *c = NULL;
        if (clt_config_parse(bases[i], strlen(bases[i]), "base", (const char *const *)&over, 1, &c) == CLT_OK)
            check_config(c);
    }
    clt_free(over);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "{}[]:,\"#/*\\-.0e9\n \ttfn"
#include "test/fuzz/replay.h"
#endif
