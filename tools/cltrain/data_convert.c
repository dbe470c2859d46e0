/* cltrain data convert: makes an MDS dataset of text, JSONL or token files in the layouts of LLM Foundry's
 * conversion scripts: the tokens of all documents, concatenated and cut every N tokens, or one text per
 * sample. */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/data_commands.h"
#include "tools/cltrain/data_inputs.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_convert.h"
#include "runtime/data/clt_mds.h"

enum { MAX_CONCAT = 1 << 26, DEFAULT_CONCAT = 2048, ABSENT = -1 };

typedef struct {
    const char *out, *split, *tokenizer, *tokens, *format, *field, *bos_text, *eos_text;
    int64_t concat, eos_id, bos_id, threads;
    double val_fraction;
    bool eos, no_wrap, skip_bad;
    clt_mds_writer_params writer;
} convert_options;

typedef struct {
    const convert_options *opt;
    clt_tokenizer *tokenizer; /* NULL with token files and text samples */
    data_inputs inputs;
    clt_mds_writer *train, *val;
    int64_t samples;
    clt_convert_counts counts;
    double start, spoke; /* clt_now */
} converter;

/* --- samples -> shards --- */

/* Samples of the validation split are spread evenly over the data. */
static clt_mds_writer *writer_of_next(converter *c) {
    const double k = (double)c->samples++, f = c->opt->val_fraction;
    return (int64_t)((k + 1) * f) > (int64_t)(k * f) ? c->val : c->train;
}

static clt_status write_tokens(void *ctx, const int32_t *tokens, size_t n) {
    return clt_mds_writer_add(writer_of_next(ctx), tokens, n);
}

static clt_status write_text(void *ctx, const char *text, size_t bytes) {
    return clt_mds_writer_add_text(writer_of_next(ctx), text, bytes);
}

/* A line on the terminal, or in a log every half minute. */
static void show_progress(void *ctx, const clt_convert_counts *now) {
    static const double interval = 30;
    converter *c = ctx;
    const double t = clt_now(), done = (double)now->bytes, rate = done / CLT_MAX(t - c->start, 1e-3),
                 all = (double)c->inputs.bytes;
    char speed[32], left[32];
    clt_human_bytes(rate, speed);
    clt_human_seconds(CLT_MAX(all - done, 0) / CLT_MAX(rate, 1), left);
    clt_progress(false, "converting  %3.0f%%  %lld samples  %s/s  %s left",
                 all > 0 ? 100 * done / all : 100.0, (long long)now->samples, speed, left);
    if (clt_progress_active() || t - c->spoke < interval) return;
    c->spoke = t;
    clt_info("converting: %.0f%%, %lld samples, %s/s, %s left", all > 0 ? 100 * done / all : 100.0,
             (long long)now->samples, speed, left);
}

/* --- splits --- */

static clt_status open_writer(const convert_options *opt, const char *split, clt_mds_writer **out) {
    char *dir = clt_path_join(opt->out, split);
    clt_status st = clt_mds_writer_create(dir, &opt->writer, out);
    clt_free(dir);
    return st;
}

/* One line about a split whose last shard is still open. */
static char *describe(const convert_options *opt, const char *split, const clt_mds_writer *w) {
    const size_t shards = clt_mds_writer_shards(w) + 1;
    const long long samples = (long long)clt_mds_writer_samples(w);
    const char *s = shards == 1 ? "" : "s";
    if (opt->writer.text)
        return clt_format("%s/%s: %lld texts in %zu shard%s\n", opt->out, split, samples, shards, s);
    return clt_format("%s/%s: %lld samples of %lld tokens in %zu shard%s\n", opt->out, split, samples,
                      (long long)opt->concat, shards, s);
}

/* Withdraws a published split: without index.json nothing reads its shards, and the next convert writes over
 * them. */
static void withdraw(const convert_options *opt, const char *split) {
    char *dir = clt_path_join(opt->out, split), *index = clt_path_join(dir, "index.json");
    clt_io_try_unlink(index);
    clt_free(index);
    clt_free(dir);
}

static clt_status too_few(const converter *c) {
    const char *both = c->val ? " for both splits" : "";
    if (c->opt->writer.text)
        return clt_error(CLT_BAD_DATA, "the input gives only %lld texts, too few%s", (long long)c->samples,
                         both);
    return clt_error(CLT_BAD_DATA,
                     "the input gives only %lld samples of %lld tokens, too few%s; give more text or a "
                     "smaller --concat-tokens",
                     (long long)c->samples, (long long)c->opt->concat, both);
}

static void print_summary(const converter *c, const char *train, const char *val) {
    char took[32], size[32], skipped[64] = "";
    const clt_convert_counts *n = &c->counts;
    const size_t files = c->inputs.paths.n;
    if (n->skipped)
        snprintf(skipped, sizeof skipped, "; %lld bad line%s skipped", (long long)n->skipped,
                 n->skipped == 1 ? "" : "s");
    printf("%s%s%zu file%s, %lld document%s, %s read in %s", train, val, files, files == 1 ? "" : "s",
           (long long)n->documents, n->documents == 1 ? "" : "s", clt_human_bytes((double)n->bytes, size),
           clt_human_seconds(clt_now() - c->start, took));
    if (!c->opt->writer.text) printf("; %lld tokens filled no sample", (long long)n->left_over);
    printf("%s%s\n", skipped, c->inputs.skipped ? "; files that are not text were skipped" : "");
}

/* Publishes both splits, or none; takes the writers. */
static clt_status finish(converter *c) {
    const convert_options *opt = c->opt;
    if (clt_mds_writer_samples(c->train) == 0 || (c->val && clt_mds_writer_samples(c->val) == 0))
        return too_few(c);
    char *train_line = describe(opt, opt->split, c->train),
         *val_line = c->val ? describe(opt, "val", c->val) : clt_strdup("");
    clt_mds_writer *train = c->train, *val = c->val;
    c->train = c->val = NULL;
    clt_status st = val ? clt_mds_writer_finish(val) : CLT_OK;
    if (st == CLT_OK)
        st = clt_mds_writer_finish(train);
    else
        clt_mds_writer_abort(train);
    if (val && st != CLT_OK) withdraw(opt, "val");
    if (st == CLT_OK) print_summary(c, train_line, val_line);
    clt_free(train_line);
    clt_free(val_line);
    return st;
}

/* --- bos and eos --- */

/* Ids that stand before or after every document. */
typedef struct {
    int32_t *ids;
    size_t n;
} separator;

/* Of `text` as LLM Foundry tokenizes --bos_text: special tokens, no template. NULL: of `id`, -1: none. */
static clt_status make_separator(const converter *c, const char *option, const char *text, int64_t id,
                                 separator *s) {
    const size_t bytes = text ? strlen(text) : 0,
                 max = bytes ? clt_tokenizer_max_ids(c->tokenizer, bytes) : 1;
    s->ids = clt_try_calloc(max, sizeof *s->ids);
    if (!s->ids) return clt_no_memory(option, max * sizeof *s->ids);
    if (text && bytes)
        CLT_TRY(clt_tokenizer_encode(c->tokenizer, text, bytes, CLT_TOKEN_SPECIAL, s->ids, max, &s->n));
    if (s->n > 1)
        clt_warn("%s '%s' is %zu tokens, not one; stop here if that is not intended", option, text, s->n);
    if (!text && id >= 0) s->ids[s->n++] = (int32_t)id;
    return CLT_OK;
}

/* Whether something stands between two documents. */
static bool separated(const converter *c, const clt_convert_params *p) {
    size_t before = 0, after = 0;
    if (c->tokenizer && (clt_tokenizer_default_flags(c->tokenizer) & CLT_TOKEN_TEMPLATE)) {
        clt_tokenizer_template(c->tokenizer, false, &before);
        clt_tokenizer_template(c->tokenizer, true, &after);
    }
    return p->num_bos + p->num_eos + before + after > 0;
}

/* --- conversion --- */

static clt_status convert_inputs(converter *c, const separator *bos, const separator *eos) {
    const convert_options *opt = c->opt;
    const clt_convert_params p = {.tokenizer = c->tokenizer,
                                  .field = opt->field,
                                  .length = opt->writer.text ? 0 : (size_t)opt->concat,
                                  .bos = bos->ids,
                                  .num_bos = bos->n,
                                  .eos = eos->ids,
                                  .num_eos = eos->n,
                                  .no_wrap = opt->no_wrap,
                                  .skip_bad = opt->skip_bad,
                                  .threads = (int)opt->threads,
                                  .tokens = write_tokens,
                                  .text = write_text,
                                  .progress = show_progress,
                                  .ctx = c};
    clt_status st = clt_convert(c->inputs.files, c->inputs.paths.n, &p, &c->counts);
    clt_progress_end();
    CLT_TRY(st);
    if (c->counts.skipped)
        clt_warn("%lld bad line%s skipped, the first one is %s", (long long)c->counts.skipped,
                 c->counts.skipped == 1 ? "" : "s", c->counts.first_skipped);
    if (p.length && !opt->tokens && c->counts.documents > 1 && !separated(c, &p))
        clt_warn("documents follow each other without a token between them; --eos or --eos-text adds one");
    if (c->tokenizer && !opt->tokenizer)
        clt_info("tokens are bytes (vocabulary 257); --tokenizer FOLDER makes those of a tokenizer");
    return CLT_OK;
}

static clt_status convert(converter *c, const clt_strv *inputs) {
    const convert_options *opt = c->opt;
    const bool guess = !opt->tokens && strcmp(opt->format, "auto") == 0;
    const clt_docs_kind kind = opt->tokens ? strcmp(opt->tokens, "int32") ? CLT_DOCS_UINT16 : CLT_DOCS_INT32
                               : strcmp(opt->format, "jsonl") == 0 ? CLT_DOCS_JSONL
                                                                   : CLT_DOCS_TEXT;
    separator bos = {0}, eos = {0};
    c->start = c->spoke = clt_now();
    clt_status st = data_inputs_collect(inputs, kind, guess, &c->inputs);
    if (st == CLT_OK) st = make_separator(c, "--bos-text", opt->bos_text, opt->bos_id, &bos);
    if (st == CLT_OK) st = make_separator(c, "--eos-text", opt->eos_text, opt->eos_id, &eos);
    if (st == CLT_OK) st = open_writer(opt, opt->split, &c->train);
    if (st == CLT_OK && opt->val_fraction > 0) st = open_writer(opt, "val", &c->val);
    if (st == CLT_OK) st = convert_inputs(c, &bos, &eos);
    if (st == CLT_OK) st = finish(c);
    clt_mds_writer_abort(c->train);
    clt_mds_writer_abort(c->val);
    clt_free(bos.ids);
    clt_free(eos.ids);
    data_inputs_free(&c->inputs);
    return st;
}

/* Whether a split's folder is below DIR. */
static bool stays_inside(const char *split) {
    for (const char *s = split; *s; s += strcspn(s, "/"), s += *s == '/')
        if (!strncmp(s, "..", 2) && (!s[2] || s[2] == '/')) return false;
    return *split && *split != '/';
}

/* What only packed samples have; NULL: none is given. */
static const char *packing_option(const convert_options *opt) {
    return opt->tokenizer          ? "--tokenizer"
           : opt->eos              ? "--eos"
           : opt->eos_text         ? "--eos-text"
           : opt->bos_text         ? "--bos-text"
           : opt->eos_id != ABSENT ? "--eos-id"
           : opt->bos_id != ABSENT ? "--bos-id"
           : opt->no_wrap          ? "--no-wrap"
                                   : NULL;
}

static int check_separators(const clt_command *cmd, const convert_options *opt) {
    if (opt->tokens && (opt->eos || opt->eos_text || opt->bos_text))
        return clt_options_fail(cmd, "%s needs a tokenizer; use --eos-id N and --bos-id N with --tokens",
                                opt->eos        ? "--eos"
                                : opt->eos_text ? "--eos-text"
                                                : "--bos-text");
    if (opt->eos + (opt->eos_text != NULL) + (opt->eos_id != ABSENT) > 1)
        return clt_options_fail(cmd, "give one of --eos, --eos-text and --eos-id");
    if (opt->bos_text && opt->bos_id != ABSENT)
        return clt_options_fail(cmd, "give one of --bos-text and --bos-id");
    if (opt->eos_id < ABSENT || opt->bos_id < ABSENT || opt->eos_id > INT32_MAX || opt->bos_id > INT32_MAX)
        return clt_options_fail(cmd, "a token id must be 0 to 2^31 - 1");
    return -1;
}

static int check_options(const clt_command *cmd, const convert_options *opt, const clt_strv *inputs) {
    if (inputs->n == 0) return clt_options_fail(cmd, "name the files or folders to convert");
    if (!opt->out) return clt_options_fail(cmd, "--out DIR is missing");
    if (opt->writer.text && packing_option(opt))
        return clt_options_fail(cmd, "%s needs --concat-tokens N; without it every text is one sample",
                                packing_option(opt));
    if (!opt->writer.text && (opt->concat < 2 || opt->concat > MAX_CONCAT))
        return clt_options_fail(cmd, "--concat-tokens must be 2 to %d", MAX_CONCAT);
    if (!(opt->val_fraction >= 0 && opt->val_fraction < 1))
        return clt_options_fail(cmd, "--val-fraction must be at least 0 and below 1");
    if (!stays_inside(opt->split))
        return clt_options_fail(cmd, "--split '%s' is not the name of a folder in DIR", opt->split);
    if (opt->val_fraction > 0 && strcmp(opt->split, "val") == 0)
        return clt_options_fail(cmd, "--split val and --val-fraction would write the same folder");
    if (opt->tokens && strcmp(opt->tokens, "uint16") != 0 && strcmp(opt->tokens, "int32") != 0)
        return clt_options_fail(cmd, "--tokens must be uint16 or int32");
    if (strcmp(opt->format, "auto") && strcmp(opt->format, "text") && strcmp(opt->format, "jsonl"))
        return clt_options_fail(cmd, "--format must be auto, text or jsonl");
    if (opt->threads < 0 || opt->threads > INT32_MAX)
        return clt_options_fail(cmd, "--threads must be at least 1");
    return check_separators(cmd, opt);
}

static int run(const clt_command *cmd, convert_options *opt, const clt_strv *inputs) {
    converter c = {.opt = opt};
    opt->writer.text = !opt->tokens && opt->concat == ABSENT;
    if (opt->tokens && opt->concat == ABSENT) opt->concat = DEFAULT_CONCAT;
    const int code = check_options(cmd, opt, inputs);
    if (code >= 0) return code;
    clt_status st = CLT_OK;
    if (!opt->tokens && !opt->writer.text)
        st = clt_tokenizer_open(opt->tokenizer ? opt->tokenizer : "bytes", &c.tokenizer);
    if (st == CLT_OK && opt->eos) {
        opt->eos_id = clt_tokenizer_eos_id(c.tokenizer);
        if (opt->eos_id < 0)
            st = clt_error(CLT_BAD_CONFIG,
                           "tokenizer '%s' names no end of text; use --eos-text or --eos-id instead of --eos",
                           opt->tokenizer);
    }
    if (st == CLT_OK) st = convert(&c, inputs);
    clt_tokenizer_close(c.tokenizer);
    return clt_status_exit_code(st);
}

int data_convert(int argc, char **argv) {
    convert_options opt = {
        .split = "train", .format = "auto", .concat = ABSENT, .eos_id = ABSENT, .bos_id = ABSENT};
    clt_mds_writer_params_default(&opt.writer);
    const clt_option options[] = {
        {"out", 'o', CLT_OPT_STR, &opt.out, "DIR", "folder of the dataset; the split is a folder in it"},
        {"split", 0, CLT_OPT_STR, &opt.split, "NAME", "name of the split (default train)"},
        {"val-fraction", 0, CLT_OPT_FLOAT, &opt.val_fraction, "F",
         "write this part of the samples, evenly spread, to split val"},
        {"concat-tokens", 'n', CLT_OPT_INT, &opt.concat, "N",
         "pack samples of N tokens (without it: one sample of text per document)"},
        {"tokenizer", 0, CLT_OPT_STR, &opt.tokenizer, "NAME",
         "bytes (default), or a tokenizer.json or its folder"},
        {"format", 0, CLT_OPT_STR, &opt.format, "NAME",
         "text (a document per file), jsonl (one per line); auto (default): by the name"},
        {"field", 0, CLT_OPT_STR, &opt.field, "NAME",
         "field of a JSONL line that is its text (default text)"},
        {"skip-bad", 0, CLT_OPT_FLAG, &opt.skip_bad, NULL, "leave out bad JSONL lines and count them"},
        {"tokens", 0, CLT_OPT_STR, &opt.tokens, "TYPE", "inputs are token ids, uint16 or int32, not text"},
        {"bos-text", 0, CLT_OPT_STR, &opt.bos_text, "TEXT", "the tokens of TEXT before every document"},
        {"eos-text", 0, CLT_OPT_STR, &opt.eos_text, "TEXT", "the tokens of TEXT after every document"},
        {"eos", 0, CLT_OPT_FLAG, &opt.eos, NULL, "the tokenizer's end of text after every document"},
        {"eos-id", 0, CLT_OPT_INT, &opt.eos_id, "N", "this token after every document"},
        {"bos-id", 0, CLT_OPT_INT, &opt.bos_id, "N", "this token before every document"},
        {"no-wrap", 0, CLT_OPT_FLAG, &opt.no_wrap, NULL, "drop the rest of a document that fills a sample"},
        {"compression", 0, CLT_OPT_STR, &opt.writer.compression, "NAME",
         "zstd, gz, bz2, br or snappy; zstd:LEVEL (default: none)"},
        {"hashes", 0, CLT_OPT_STR, &opt.writer.hashes, "LIST", "checksums, like sha1,xxh64"},
        {"size-limit", 0, CLT_OPT_INT, &opt.writer.size_limit, "BYTES",
         "largest raw shard (default 67108864)"},
        {"threads", 0, CLT_OPT_INT, &opt.threads, "N",
         "threads, of about 25 MiB each (default: all CPUs, at most 16)"},
    };
    const clt_command command = {
        .name = "cltrain data convert",
        .usage = "INPUT... --out DIR [options]",
        .summary = "makes an MDS dataset of text, JSONL or token files, as LLM Foundry's scripts do",
        .examples = "  cltrain data convert texts/ --out data --concat-tokens 256 --eos --val-fraction 0.05\n"
                    "  cltrain data convert docs.jsonl --out data -n 2048 --tokenizer gpt2/tokenizer.json "
                    "--eos-text '<|endoftext|>'\n"
                    "  cltrain data convert ids.bin --tokens uint16 --eos-id 0 --out data --compression zstd "
                    "--hashes xxh64\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0) code = run(&command, &opt, &rest);
    clt_strv_free(&rest);
    return code;
}
