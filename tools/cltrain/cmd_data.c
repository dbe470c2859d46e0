/* cltrain data: make, inspect and check MDS datasets (docs/data.md). */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/clt_utf8.h"
#include "runtime/data/image/clt_image.h"
#include "tools/cltrain/commands.h"
#include "tools/cltrain/data_commands.h"

enum { SHOWN_SHARDS = 20, SHOWN_TOKENS = 32 };

/* --- datasets of a folder --- */

static bool is_dataset(const char *dir) {
    char *index = clt_path_join(dir, "index.json");
    bool yes = clt_io_is_file(index);
    clt_free(index);
    return yes;
}

/* The folder itself, or those of its sub-folders that are datasets (splits); the folder itself when there are
 * none, so that opening it says what is missing. */
static clt_status find_datasets(const char *dir, clt_strv *found) {
    clt_strv names = {0};
    clt_status st = CLT_OK;
    if (!is_dataset(dir) && clt_io_is_dir(dir)) st = clt_io_list(dir, &names);
    for (size_t i = 0; i < names.n; i++) {
        char *sub = clt_path_join(dir, names.v[i]);
        if (is_dataset(sub)) clt_strv_add(found, sub);
        clt_free(sub);
    }
    clt_strv_free(&names);
    if (st == CLT_OK && found->n == 0) clt_strv_add(found, dir);
    return st;
}

/* --- show --- */

static void print_columns(const clt_mds *m, size_t shard, clt_str *out, bool json) {
    clt_mds_shard s;
    clt_mds_shard_info(m, shard, &s);
    for (size_t i = 0; i < s.num_columns; i++) {
        const char *name, *encoding;
        int64_t size;
        clt_mds_column_info(m, shard, i, &name, &encoding, &size);
        if (!json) {
            clt_str_addf(out, "%s%s %s", i ? ", " : "", name, encoding);
            continue;
        }
        clt_str_add(out, i ? ",{\"name\":" : "{\"name\":");
        clt_json_escape(out, name);
        clt_str_add(out, ",\"encoding\":");
        clt_json_escape(out, encoding);
        clt_str_addf(out, size < 0 ? ",\"size\":null}" : ",\"size\":%lld}", (long long)size);
    }
}

static void print_hashes(const clt_mds *m, clt_str *out, const char *quote) {
    const char *names[32];
    size_t n = CLT_MIN(clt_mds_hash_names(m, 0, names, CLT_COUNT_OF(names)), CLT_COUNT_OF(names));
    for (size_t i = 0; i < n; i++)
        clt_str_addf(out, "%s%s%s%s", i ? (*quote ? "," : ", ") : "", quote, names[i], quote);
}

static void show_dataset_json(const clt_mds *m) {
    clt_str b = {0};
    clt_str_add(&b, "{\"folder\":");
    clt_json_escape(&b, clt_mds_dir(m));
    clt_str_addf(&b, ",\"samples\":%lld,\"columns\":[", (long long)clt_mds_num_samples(m));
    print_columns(m, 0, &b, true);
    clt_str_add(&b, "],\"hashes\":[");
    print_hashes(m, &b, "\"");
    printf("%s],\"shards\":[", b.s);
    for (size_t i = 0; i < clt_mds_num_shards(m); i++) {
        clt_mds_shard s;
        clt_mds_shard_info(m, i, &s);
        b.len = 0;
        clt_json_escape(&b, s.file);
        printf("%s%s,\"compression\":\"%s\",\"first\":%lld,\"samples\":%lld,\"raw_bytes\":%llu,"
               "\"file_bytes\":%llu}",
               i ? ",\n {\"file\":" : "{\"file\":", b.s, s.compression, (long long)s.first,
               (long long)s.samples, (unsigned long long)s.raw_bytes, (unsigned long long)s.file_bytes);
    }
    puts("]}");
    clt_str_free(&b);
}

static void show_dataset(const clt_mds *m) {
    clt_str columns = {0}, hashes = {0};
    uint64_t raw = 0, files = 0;
    char a[32], b[32];
    clt_mds_shard s;
    size_t n = clt_mds_num_shards(m);
    for (size_t i = 0; i < n; i++) {
        clt_mds_shard_info(m, i, &s);
        raw += s.raw_bytes;
        files += s.file_bytes;
    }
    clt_mds_shard_info(m, 0, &s);
    print_columns(m, 0, &columns, false);
    print_hashes(m, &hashes, "");
    printf("%s\n  samples      %lld in %zu shard%s\n  columns      %s\n", clt_mds_dir(m),
           (long long)clt_mds_num_samples(m), n, n == 1 ? "" : "s", columns.s ? columns.s : "none");
    printf("  compression  %s, %s in files, %s raw\n  hashes       %s\n", s.compression,
           clt_human_bytes((double)files, a), clt_human_bytes((double)raw, b), hashes.s ? hashes.s : "none");
    for (size_t i = 0; i < CLT_MIN(n, SHOWN_SHARDS); i++) {
        clt_mds_shard_info(m, i, &s);
        printf("  %-24s samples %lld to %lld, %s\n", s.file, (long long)s.first,
               (long long)(s.first + s.samples - 1), clt_human_bytes((double)s.file_bytes, a));
    }
    if (n > SHOWN_SHARDS) printf("  ... and %zu more (--json lists all)\n", n - SHOWN_SHARDS);
    clt_str_free(&columns);
    clt_str_free(&hashes);
}

/* Bytes as a JSON string, to be freed; what is not UTF-8 is repaired. */
static clt_status quote(const char *s, size_t n, char **out) {
    clt_str text = {0};
    if (!clt_str_try_reserve(&text, 3 * n)) return clt_no_memory("the text of a sample", 3 * n);
    clt_utf8_repair(s, n, &text); /* a byte becomes at most three */
    clt_status st = clt_json_quote(text.s, text.len, "the text of a sample", out);
    clt_str_free(&text);
    return st;
}

/* Prints the tokens as text if they may come from the byte tokenizer. */
static clt_status print_as_bytes(const int32_t *tokens, int64_t n) {
    clt_tokenizer *t;
    clt_str text = {0};
    char *quoted = NULL;
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] > 256) return CLT_OK;
    CLT_TRY(clt_tokenizer_open("bytes", &t));
    clt_status st = clt_tokenizer_decode(t, tokens, (size_t)n, false, &text);
    if (st == CLT_OK && text.s) st = clt_json_quote(text.s, text.len, "the text of a sample", &quoted);
    if (quoted) printf("  as bytes  %s\n", quoted);
    clt_free(quoted);
    clt_tokenizer_close(t);
    clt_str_free(&text);
    return st;
}

static clt_status show_tokens(clt_mds *m, int64_t sample, bool json) {
    int64_t full, n;
    CLT_TRY(clt_mds_get_tokens(m, sample, 0, 0, NULL, &n, &full));
    int32_t *tokens = clt_try_calloc((size_t)full + 1, sizeof *tokens);
    if (!tokens) return clt_no_memory("the tokens of a sample", (uint64_t)full * sizeof *tokens);
    clt_status st = clt_mds_get_tokens(m, sample, full, 0, tokens, &n, NULL);
    int64_t shown = json ? n : CLT_MIN(n, SHOWN_TOKENS);
    if (st == CLT_OK) {
        printf(json ? "{\"sample\":%lld,\"num_tokens\":%lld,\"tokens\":["
                    : "sample %lld\n  length    %lld tokens\n  tokens    ",
               (long long)sample, (long long)n);
        for (int64_t i = 0; i < shown; i++) printf(i ? json ? ",%d" : " %d" : "%d", tokens[i]);
        puts(json ? "]}" : shown < n ? " ... (--json lists all)" : "");
        if (!json) st = print_as_bytes(tokens, n);
    }
    clt_free(tokens);
    return st;
}

static clt_status show_text(clt_mds *m, int64_t sample, bool json) {
    clt_str text = {0};
    char *quoted;
    clt_status st = clt_mds_get_text(m, sample, &text);
    if (st == CLT_OK) st = quote(text.s, text.len, &quoted);
    if (st == CLT_OK) {
        printf(json ? "{\"sample\":%lld,\"text\":%s}\n" : "sample %lld\n  text  %s\n", (long long)sample,
               quoted);
        clt_free(quoted);
    }
    clt_str_free(&text);
    return st;
}

static clt_status show_one(const char *dir, int64_t sample, bool json) {
    clt_mds *m;
    clt_status st = CLT_OK;
    CLT_TRY(clt_mds_open(dir, NULL, &m));
    if (sample >= 0)
        st = clt_mds_has_tokens(m) ? show_tokens(m, sample, json) : show_text(m, sample, json);
    else if (json)
        show_dataset_json(m);
    else
        show_dataset(m);
    clt_mds_close(m);
    return st;
}

static int data_show(int argc, char **argv) {
    int64_t sample = INT64_MIN; /* not given */
    bool json = false;
    const clt_option options[] = {
        {"sample", 's', CLT_OPT_INT, &sample, "I", "show this sample instead of the dataset"},
        {"json", 0, CLT_OPT_FLAG, &json, NULL, "as JSON, with everything"},
    };
    const clt_command command = {.name = "cltrain data show",
                                 .usage = "DIR [--sample I] [--json]",
                                 .summary = "shows the contents of an MDS dataset or of one sample",
                                 .examples = "  cltrain data show data/train\n"
                                             "  cltrain data show data/train --sample 0\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0}, dirs = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 1) code = clt_options_fail(&command, "name one dataset folder");
    if (code < 0 && sample < 0 && sample != INT64_MIN)
        code = clt_options_fail(&command, "--sample must be at least 0");
    if (code < 0) {
        clt_status st = find_datasets(rest.v[0], &dirs);
        for (size_t i = 0; i < dirs.n && st == CLT_OK; i++) st = show_one(dirs.v[i], sample, json);
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    clt_strv_free(&dirs);
    return code;
}

/* --- verify --- */

typedef struct {
    clt_mds *m;
    int64_t max_pixels;
    clt_mds_picture taken;
    clt_image decoded;
} verifying;

static void verify_progress(void *user, size_t shards, int64_t samples) {
    const clt_mds *m = ((verifying *)user)->m;
    clt_progress(false, "%s: shard %zu of %zu, sample %lld of %lld", clt_mds_dir(m), shards,
                 clt_mds_num_shards(m), (long long)samples, (long long)clt_mds_num_samples(m));
}

/* Decodes a picture as training does. */
static clt_status verify_picture(void *user, int64_t sample) {
    verifying *v = user;
    const clt_mds_picture *p = &v->taken;
    CLT_TRY(clt_mds_get_picture(v->m, sample, &v->taken));
    if (p->label < 0) return clt_error(CLT_BAD_DATA, "%s has the label %lld", p->what, (long long)p->label);
    return clt_image_decode(p->what, p->pil ? CLT_IMAGE_PIL : CLT_IMAGE_FILE, p->bytes.s, p->bytes.len,
                            v->max_pixels, &v->decoded);
}

static bool can_decode(const char *dir) {
    clt_error_quiet(true);
    const bool can = clt_image_check_build() == CLT_OK;
    clt_error_quiet(false);
    if (!can) clt_warn("%s: pictures are not decoded: %s", dir, clt_last_error());
    return can;
}

static clt_status verify_one(const char *dir, int64_t vocab_size, int64_t max_pixels,
                             const clt_mds_params *p) {
    clt_mds *m;
    clt_str hashes = {0};
    size_t bad;
    CLT_TRY(clt_mds_open(dir, p, &m));
    verifying v = {.m = m, .max_pixels = max_pixels};
    const bool pictures = clt_mds_has_pictures(m) && can_decode(dir);
    const clt_mds_watch watch = {verify_progress, pictures ? verify_picture : NULL, &v};
    clt_status st = clt_mds_verify(m, vocab_size, &watch, &bad);
    clt_str_free(&v.taken.bytes);
    clt_image_free(&v.decoded);
    clt_progress_end();
    print_hashes(m, &hashes, "");
    if (st == CLT_OK)
        printf("%s: good: %zu shard%s, %lld samples, checksums %s\n", dir, clt_mds_num_shards(m),
               clt_mds_num_shards(m) == 1 ? "" : "s", (long long)clt_mds_num_samples(m),
               hashes.s ? hashes.s : "none");
    else
        printf("%s: bad: %zu of %zu shards are damaged\n", dir, bad, clt_mds_num_shards(m));
    clt_str_free(&hashes);
    clt_mds_close(m);
    return st;
}

static int data_verify(int argc, char **argv) {
    const int64_t none = INT64_MIN;
    int64_t vocab_size = none, max_pixels = CLT_IMAGE_PIXELS_MOST;
    clt_mds_params p = {0};
    const clt_option options[] = {
        {"vocab-size", 0, CLT_OPT_INT, &vocab_size, "N", "every token id must be below N"},
        {"max-image-pixels", 0, CLT_OPT_INT, &max_pixels, "N",
         "of a picture, as dataset.max_image_pixels (default 67108864)"},
        {"token-encoding-type", 0, CLT_OPT_STR, &p.token_encoding_type, "TYPE",
         "element type of 'bytes' columns (default int64)"},
    };
    const clt_command command = {.name = "cltrain data verify",
                                 .usage = "DIR... [--vocab-size N]",
                                 .summary = "verifies every shard, offset, checksum and sample, and decodes "
                                            "pictures; exit code 65 if one is wrong",
                                 .examples = "  cltrain data verify data\n"
                                             "  cltrain data verify data/train --vocab-size 50368\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0}, dirs = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0) code = clt_options_fail(&command, "name a dataset folder");
    if (code < 0 && vocab_size != none && vocab_size < 1)
        code = clt_options_fail(&command, "--vocab-size must be at least 1");
    if (code < 0 && max_pixels < 1)
        code = clt_options_fail(&command, "--max-image-pixels must be at least 1");
    if (code < 0) {
        clt_status st = CLT_OK;
        for (size_t i = 0; i < rest.n && st == CLT_OK; i++) st = find_datasets(rest.v[i], &dirs);
        for (size_t i = 0; i < dirs.n; i++) {
            clt_status one = verify_one(dirs.v[i], CLT_MAX(vocab_size, 0), max_pixels, &p);
            if (st == CLT_OK) st = one;
        }
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    clt_strv_free(&dirs);
    return code;
}

/* --- data --- */

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} actions[] = {
    {"convert", "text, JSONL or token files to an MDS dataset", data_convert},
    {"show", "the contents of a dataset or a sample", data_show},
    {"verify", "verify every shard, offset, checksum and sample", data_verify},
    {"fetch", "copy a dataset from a store, with checks", data_fetch},
    {"order", "which rank gets which samples", data_order},
    {"batches", "what training sees: tokens, labels, masks", data_batches},
    {"tokenize", "strings to token ids and back", data_tokenize},
    {"train-tokenizer", "make a byte-level BPE tokenizer from texts", data_train_tokenizer},
};

static void print_help(void) {
    puts("cltrain data: make, inspect and check MDS datasets\n\n"
         "  cltrain data convert texts/ --out data --concat-tokens 256 --eos --val-fraction 0.05\n"
         "  cltrain data verify data\n\n"
         "Actions (cltrain data ACTION --help says more)");
    for (size_t i = 0; i < CLT_COUNT_OF(actions); i++)
        printf("  %-15s %s\n", actions[i].name, actions[i].summary);
}

int cmd_data(int argc, char **argv) {
    const char *names[CLT_COUNT_OF(actions)], *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        print_help();
        return 0;
    }
    for (size_t i = 0; i < CLT_COUNT_OF(actions); i++) {
        names[i] = actions[i].name;
        if (!strcmp(word, names[i])) return actions[i].run(argc - 1, argv + 1);
    }
    const char *near = clt_nearest(word, names, CLT_COUNT_OF(names));
    if (*word)
        clt_error(CLT_USAGE, "cltrain data: unknown action '%s'%s%s (see cltrain data --help)", word,
                  near ? "; did you mean " : "", near ? near : "");
    else
        print_help();
    return clt_status_exit_code(CLT_USAGE);
}
