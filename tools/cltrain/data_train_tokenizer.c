/* cltrain data train-tokenizer: makes a byte-level BPE tokenizer.json from text or JSONL files. */
#include <string.h>

#include "tools/cltrain/data_commands.h"
#include "tools/cltrain/data_inputs.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_tokenizer_train.h"

enum { MAX_VOCABULARY = 1 << 24 };

typedef struct {
    const char *out, *format;
    int64_t threads;
    bool overwrite;
    clt_tokenizer_train_params p;
    data_inputs inputs;
    double start;
} train_options;

static void show_progress(void *ctx, uint64_t bytes) {
    const train_options *o = ctx;
    char speed[32];
    clt_human_bytes((double)bytes / CLT_MAX(clt_now() - o->start, 1e-3), speed);
    clt_progress(false, "counting words  %3.0f%%  %s/s",
                 o->inputs.bytes ? 100 * (double)bytes / (double)o->inputs.bytes : 100.0, speed);
    if (o->inputs.bytes && bytes == o->inputs.bytes) clt_progress(true, "merging pairs");
}

static bool is_json(const char *path) {
    const size_t n = strlen(path);
    return n >= 5 && !strcmp(path + n - 5, ".json");
}

/* The first special token ends texts, for programs that read the folder. */
static clt_status write_config(const train_options *o, const char *folder) {
    if (o->p.special.n == 0) return CLT_OK;
    char *path = clt_path_join(folder, "tokenizer_config.json"), *text = NULL;
    json_t *config =
        json_pack("{ss ss}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token", o->p.special.v[0]);
    clt_status st = clt_json_dump(config, path, &text);
    if (st == CLT_OK) st = clt_io_write_atomic(path, text, strlen(text));
    json_decref(config);
    clt_free(text);
    clt_free(path);
    return st;
}

/* The ids of data and models that were made with a tokenizer mean nothing with another one in its place. */
static clt_status check_free(const train_options *o) {
    char *path = is_json(o->out) ? clt_strdup(o->out) : clt_path_join(o->out, "tokenizer.json");
    clt_status st = CLT_OK;
    if (!o->overwrite && clt_io_is_file(path))
        st = clt_error(CLT_IO,
                       "%s exists already and is not overwritten; choose another name, or allow it "
                       "(--overwrite)",
                       path);
    clt_free(path);
    return st;
}

static clt_status write_files(const train_options *o, const clt_str *json) {
    if (is_json(o->out)) return clt_io_write_atomic(o->out, json->s, json->len);
    char *path = clt_path_join(o->out, "tokenizer.json");
    clt_status st = clt_io_mkdirs(o->out);
    if (st == CLT_OK) st = clt_io_write_atomic(path, json->s, json->len);
    if (st == CLT_OK) st = write_config(o, o->out);
    clt_free(path);
    return st;
}

static void report(const train_options *o, const clt_tokenizer_train_counts *counts) {
    const double seconds = CLT_MAX(clt_now() - o->start, 1e-3);
    char speed[32];
    clt_human_bytes((double)counts->bytes / seconds, speed);
    printf("%s: %lld tokens, from %lld different words, in %.1f s (%s/s)\n", o->out,
           (long long)counts->tokens, (long long)counts->words, seconds, speed);
    if (counts->skipped) clt_warn("%lld bad lines skipped", (long long)counts->skipped);
    if (counts->tokens < o->p.vocab_size)
        clt_warn("the texts have no more pairs to merge: the vocabulary has %lld tokens instead of %lld",
                 (long long)counts->tokens, (long long)o->p.vocab_size);
}

static clt_status train(train_options *o, const clt_strv *inputs) {
    const clt_docs_kind kind = strcmp(o->format, "jsonl") ? CLT_DOCS_TEXT : CLT_DOCS_JSONL;
    clt_tokenizer_train_counts counts;
    clt_str json = {0};
    CLT_TRY(check_free(o));
    o->start = clt_now();
    clt_status st = data_inputs_collect(inputs, kind, !strcmp(o->format, "auto"), &o->inputs);
    if (st == CLT_OK) st = clt_tokenizer_train(o->inputs.files, o->inputs.paths.n, &o->p, &json, &counts);
    clt_progress_end();
    if (st == CLT_OK) st = write_files(o, &json);
    if (st == CLT_OK) report(o, &counts);
    clt_str_free(&json);
    data_inputs_free(&o->inputs);
    return st;
}

static int check(const clt_command *command, const train_options *o, const clt_strv *inputs) {
    if (inputs->n == 0) return clt_options_fail(command, "name the files or folders to learn from");
    if (!o->out) return clt_options_fail(command, "--out PATH is missing");
    if (o->p.vocab_size < 256 || o->p.vocab_size > MAX_VOCABULARY)
        return clt_options_fail(command, "--vocab-size must be 256 to %d", MAX_VOCABULARY);
    if (o->p.min_frequency < 0 || o->threads < 0 || o->threads > INT32_MAX)
        return clt_options_fail(command, "--min-frequency and --threads must not be negative");
    if (strcmp(o->format, "auto") && strcmp(o->format, "text") && strcmp(o->format, "jsonl"))
        return clt_options_fail(command, "--format must be auto, text or jsonl");
    for (size_t i = 0; i < o->p.special.n; i++)
        if (!*o->p.special.v[i]) return clt_options_fail(command, "--special needs a text");
    return -1;
}

int data_train_tokenizer(int argc, char **argv) {
    train_options o = {.format = "auto", .p = {.vocab_size = -1, .progress = show_progress}};
    const clt_option options[] = {
        {"vocab-size", 'V', CLT_OPT_INT, &o.p.vocab_size, "N",
         "tokens of the vocabulary, with the special ones"},
        {"out", 'o', CLT_OPT_STR, &o.out, "PATH",
         "a file that ends in .json, or a folder, which also gets a tokenizer_config.json"},
        {"special", 0, CLT_OPT_LIST, &o.p.special, "TEXT",
         "a special token, may be repeated; the first one ends texts (default <|endoftext|>)"},
        {"pattern", 0, CLT_OPT_STR, &o.p.pattern, "NAME",
         "what divides texts into words: gpt2 (default), llama3, qwen2 or o200k"},
        {"nfc", 0, CLT_OPT_FLAG, &o.p.nfc, NULL, "normalize texts to Unicode's form C, as GPT-NeoX does"},
        {"min-frequency", 0, CLT_OPT_INT, &o.p.min_frequency, "N",
         "do not merge pairs that occur less often (default 0)"},
        {"format", 0, CLT_OPT_STR, &o.format, "NAME",
         "text (a text per line), jsonl (an object per line); auto (default): by the name"},
        {"field", 0, CLT_OPT_STR, &o.p.field, "NAME",
         "field of a JSONL line that is its text (default text)"},
        {"skip-bad", 0, CLT_OPT_FLAG, &o.p.skip_bad, NULL, "leave out bad JSONL lines and count them"},
        {"overwrite", 0, CLT_OPT_FLAG, &o.overwrite, NULL, "replace an existing tokenizer"},
        {"threads", 0, CLT_OPT_INT, &o.threads, "N", "threads (default: all CPUs, at most 16)"},
    };
    const clt_command command = {
        .name = "cltrain data train-tokenizer",
        .usage = "INPUT... --vocab-size N --out PATH [options]",
        .summary = "makes a byte-level BPE tokenizer from text or JSONL files",
        .examples = "  cltrain data train-tokenizer texts/ --vocab-size 4096 --out tokenizer\n"
                    "  cltrain data train-tokenizer docs.jsonl -V 32000 --pattern llama3 -o tokenizer.json\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    o.p.ctx = &o;
    o.p.threads = (int)o.threads;
    if (code < 0 && o.p.special.n == 0) clt_strv_add(&o.p.special, "<|endoftext|>");
    if (code < 0) code = check(&command, &o, &rest);
    if (code < 0) code = clt_status_exit_code(train(&o, &rest));
    clt_strv_free(&o.p.special);
    clt_strv_free(&rest);
    return code;
}
