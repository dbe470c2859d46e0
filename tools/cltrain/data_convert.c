/* cltrain data convert: makes an MDS dataset of text or token files in the layout of LLM Foundry's concat
 * mode: the tokens of all documents are concatenated and cut every N tokens. */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/data_commands.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_tokenizer.h"

enum { PIECE = 1 << 20, MAX_DEPTH = 64, MAX_CONCAT = 1 << 26 };

typedef struct {
    const char *out, *split, *tokenizer, *tokens;
    int64_t concat, eos_id, bos_id;
    double val_fraction;
    bool eos, no_wrap;
    clt_mds_writer_params writer;
} convert_options;

typedef struct {
    const convert_options *opt;
    clt_tokenizer *tokenizer;   /* NULL with token files */
    clt_token_encoder *encoder; /* makes samples of the documents' text */
    clt_mds_writer *train, *val;
    int32_t *sample; /* the sample that is being filled */
    size_t have;
    int64_t samples, dropped;
    /* progress */
    uint64_t bytes, done;
    size_t files;
    bool skipped; /* files of a folder that are not text */
    char *piece;  /* of a file */
    int32_t *ids; /* of a piece of a token file */
} converter;

/* --- tokens -> samples --- */

/* Samples of the validation split are spread evenly over the data. */
static bool is_val(const convert_options *opt, int64_t k) {
    return (int64_t)((double)(k + 1) * opt->val_fraction) > (int64_t)((double)k * opt->val_fraction);
}

/* A clt_token_fn. */
static clt_status add_tokens(void *ctx, const int32_t *ids, size_t n) {
    converter *c = ctx;
    size_t length = (size_t)c->opt->concat;
    while (n > 0) {
        size_t take = CLT_MIN(n, length - c->have);
        memcpy(c->sample + c->have, ids, take * sizeof *ids);
        c->have += take;
        ids += take;
        n -= take;
        if (c->have < length) break;
        CLT_TRY(clt_mds_writer_add(is_val(c->opt, c->samples++) ? c->val : c->train, c->sample, length));
        c->have = 0;
    }
    return CLT_OK;
}

static clt_status add_special(converter *c, int64_t id) {
    int32_t v = (int32_t)id;
    return id < 0 ? CLT_OK : add_tokens(c, &v, 1);
}

/* --- files -> tokens --- */

static clt_status token_values(converter *c, const char *path, size_t bytes, uint64_t offset, size_t *n) {
    bool wide = strcmp(c->opt->tokens, "int32") == 0;
    size_t width = wide ? 4 : 2;
    *n = bytes / width;
    for (size_t i = 0; i < *n; i++) {
        uint16_t narrow;
        if (wide)
            memcpy(&c->ids[i], c->piece + 4 * i, 4);
        else
            c->ids[i] = (memcpy(&narrow, c->piece + 2 * i, 2), narrow);
        if (c->ids[i] < 0)
            return clt_error(CLT_BAD_DATA, "%s: token %llu is %d; ids must not be negative", path,
                             (unsigned long long)(offset / width + i), c->ids[i]);
    }
    return CLT_OK;
}

static clt_status convert_piece(converter *c, const char *path, size_t bytes, uint64_t offset) {
    size_t n;
    if (c->encoder) {
        CLT_TRY(clt_token_encoder_add(c->encoder, c->piece, bytes));
    } else {
        CLT_TRY(token_values(c, path, bytes, offset, &n));
        CLT_TRY(add_tokens(c, c->ids, n));
    }
    c->done += bytes;
    clt_progress(false, "converting  %3.0f%%  %lld samples  %s",
                 c->bytes ? 100.0 * (double)c->done / (double)c->bytes : 100.0, (long long)c->samples,
                 clt_path_base(path));
    return CLT_OK;
}

static clt_status convert_open_file(converter *c, clt_file *f, const char *path) {
    uint64_t size;
    CLT_TRY(clt_file_size(f, &size));
    if (!c->tokenizer && size % (strcmp(c->opt->tokens, "int32") == 0 ? 4 : 2))
        return clt_error(CLT_BAD_DATA, "%s: %llu bytes are not a whole number of %s tokens", path,
                         (unsigned long long)size, c->opt->tokens);
    CLT_TRY(add_special(c, c->opt->bos_id));
    for (uint64_t at = 0; at < size;) {
        size_t n = (size_t)CLT_MIN(size - at, (uint64_t)PIECE);
        CLT_TRY(clt_file_pread(f, c->piece, n, at));
        CLT_TRY(convert_piece(c, path, n, at));
        at += n;
    }
    if (c->encoder) CLT_TRY(clt_token_encoder_end(c->encoder));
    CLT_TRY(add_special(c, c->opt->eos_id));
    if (c->opt->no_wrap) {
        c->dropped += (int64_t)c->have;
        c->have = 0;
    }
    return CLT_OK;
}

static clt_status convert_file(converter *c, const char *path) {
    clt_file *f;
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &f));
    clt_status st = convert_open_file(c, f, path), closed = clt_file_close(f);
    return st == CLT_OK ? closed : st;
}

/* --- inputs --- */

/* Files found in a folder are skipped when they are not text (a 0 byte near the beginning). */
static clt_status looks_like_text(const char *path, uint64_t size, bool *yes) {
    char head[4096];
    size_t n = (size_t)CLT_MIN(size, (uint64_t)sizeof head);
    clt_file *f;
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &f));
    clt_status st = clt_file_pread(f, head, n, 0);
    clt_file_close(f);
    *yes = st == CLT_OK && !memchr(head, 0, n);
    return st;
}

/* A folder on the path to what is being collected. */
typedef struct above {
    const struct above *next;
    uint64_t id[2]; /* clt_io_info.id */
} above;

static clt_status collect(converter *c, const char *path, const above *up, clt_strv *files);

/* Collects everything in a folder; nothing if a link leads back to a folder above, whose files are collected
 * already. */
static clt_status collect_folder(converter *c, const char *path, const clt_io_info *info, const above *up,
                                 clt_strv *files) {
    clt_strv names = {0};
    above here = {up, {info->id[0], info->id[1]}};
    int depth = 0;
    bool known = here.id[0] || here.id[1], again = false;
    for (const above *a = up; a; a = a->next, depth++)
        again |= known && a->id[0] == here.id[0] && a->id[1] == here.id[1];
    clt_status st = CLT_OK;
    if (depth > MAX_DEPTH)
        st = clt_error(CLT_BAD_DATA, "%s: folders are nested more than %d deep", path, MAX_DEPTH);
    else if (!again)
        st = clt_io_list(path, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        char *child = clt_path_join(path, names.v[i]);
        st = names.v[i][0] == '.' ? CLT_OK : collect(c, child, &here, files);
        clt_free(child);
    }
    clt_strv_free(&names);
    return st;
}

static clt_status collect(converter *c, const char *path, const above *up, clt_strv *files) {
    clt_io_info info;
    if (up && clt_io_try_stat(path, &info) != 0) return CLT_OK; /* a loop of links inside a folder */
    if (!up) CLT_TRY(clt_io_stat(path, &info));
    if (info.kind == CLT_IO_FOLDER) return collect_folder(c, path, &info, up, files);
    if (info.kind != CLT_IO_FILE) {
        if (up) return CLT_OK; /* a dangling link or a device inside a folder */
        return clt_error(CLT_IO, "%s %s", path,
                         info.kind == CLT_IO_ABSENT ? "does not exist" : "is neither a file nor a folder");
    }
    bool text = true;
    if (up && c->tokenizer) CLT_TRY(looks_like_text(path, info.bytes, &text));
    if (text) {
        clt_strv_add(files, path);
        c->bytes += info.bytes;
    } else {
        c->skipped = true;
    }
    return CLT_OK;
}

/* --- conversion --- */

static clt_status open_writer(const convert_options *opt, const char *split, clt_mds_writer **out) {
    char *dir = clt_path_join(opt->out, split);
    clt_status st = clt_mds_writer_create(dir, &opt->writer, out);
    clt_free(dir);
    return st;
}

/* One line about a split whose last shard is still open. */
static char *describe(const convert_options *opt, const char *split, const clt_mds_writer *w) {
    size_t shards = clt_mds_writer_shards(w) + 1;
    return clt_format("%s/%s: %lld samples of %lld tokens in %zu shard%s\n", opt->out, split,
                      (long long)clt_mds_writer_samples(w), (long long)opt->concat, shards,
                      shards == 1 ? "" : "s");
}

/* Withdraws a published split: without index.json nothing reads its shards, and the next convert writes over
 * them. */
static void withdraw(const convert_options *opt, const char *split) {
    char *dir = clt_path_join(opt->out, split), *index = clt_path_join(dir, "index.json");
    clt_io_try_unlink(index);
    clt_free(index);
    clt_free(dir);
}

/* Publishes both splits, or none; takes the writers. */
static clt_status finish(converter *c, double seconds) {
    char took[32], size[32];
    const convert_options *opt = c->opt;
    if (clt_mds_writer_samples(c->train) == 0 || (c->val && clt_mds_writer_samples(c->val) == 0))
        return clt_error(CLT_BAD_DATA,
                         "the input gives only %lld samples of %lld tokens, too few%s; give more text or a "
                         "smaller --concat-tokens",
                         (long long)c->samples, (long long)opt->concat, c->val ? " for both splits" : "");
    char *lines[] = {describe(opt, opt->split, c->train),
                     c->val ? describe(opt, "val", c->val) : clt_strdup("")};
    clt_mds_writer *train = c->train, *val = c->val;
    c->train = c->val = NULL;
    clt_status st = val ? clt_mds_writer_finish(val) : CLT_OK;
    if (st == CLT_OK)
        st = clt_mds_writer_finish(train);
    else
        clt_mds_writer_abort(train);
    if (val && st != CLT_OK) withdraw(opt, "val");
    if (st == CLT_OK)
        printf("%s%s%zu file%s, %s read in %s; %lld tokens filled no sample%s\n", lines[0], lines[1],
               c->files, c->files == 1 ? "" : "s", clt_human_bytes((double)c->done, size),
               clt_human_seconds(seconds, took), (long long)(c->dropped + (int64_t)c->have),
               c->skipped ? "; files that are not text were skipped" : "");
    clt_free(lines[0]);
    clt_free(lines[1]);
    return st;
}

static clt_status convert(converter *c, const clt_strv *inputs) {
    clt_strv files = {0};
    clt_status st = CLT_OK;
    double start = clt_now();
    for (size_t i = 0; i < inputs->n && st == CLT_OK; i++) st = collect(c, inputs->v[i], NULL, &files);
    if (st == CLT_OK && files.n == 0) st = clt_error(CLT_BAD_DATA, "no text file found in %s", inputs->v[0]);
    if (st == CLT_OK) st = open_writer(c->opt, c->opt->split, &c->train);
    if (st == CLT_OK && c->opt->val_fraction > 0) st = open_writer(c->opt, "val", &c->val);
    c->files = files.n;
    for (size_t i = 0; i < files.n && st == CLT_OK; i++) st = convert_file(c, files.v[i]);
    clt_progress_end();
    if (st == CLT_OK) st = finish(c, clt_now() - start);
    clt_mds_writer_abort(c->train);
    clt_mds_writer_abort(c->val);
    clt_strv_free(&files);
    return st;
}

/* Whether a split's folder is below DIR. */
static bool stays_inside(const char *split) {
    for (const char *s = split; *s; s += strcspn(s, "/"), s += *s == '/')
        if (!strncmp(s, "..", 2) && (!s[2] || s[2] == '/')) return false;
    return *split && *split != '/';
}

static int run(const clt_command *cmd, convert_options *opt, const clt_strv *inputs) {
    converter c = {.opt = opt};
    if (inputs->n == 0) return clt_options_fail(cmd, "name the files or folders to convert");
    if (!opt->out) return clt_options_fail(cmd, "--out DIR is missing");
    if (opt->concat < 2 || opt->concat > MAX_CONCAT)
        return clt_options_fail(cmd, "--concat-tokens must be 2 to %d", MAX_CONCAT);
    if (!(opt->val_fraction >= 0 && opt->val_fraction < 1))
        return clt_options_fail(cmd, "--val-fraction must be at least 0 and below 1");
    if (!stays_inside(opt->split))
        return clt_options_fail(cmd, "--split '%s' is not the name of a folder in DIR", opt->split);
    if (opt->val_fraction > 0 && strcmp(opt->split, "val") == 0)
        return clt_options_fail(cmd, "--split val and --val-fraction would write the same folder");
    if (opt->tokens && strcmp(opt->tokens, "uint16") != 0 && strcmp(opt->tokens, "int32") != 0)
        return clt_options_fail(cmd, "--tokens must be uint16 or int32");
    if (opt->tokens && opt->eos)
        return clt_options_fail(cmd, "--eos needs a tokenizer; use --eos-id N with --tokens");
    if (opt->eos_id < -1 || opt->bos_id < -1 || opt->eos_id > INT32_MAX || opt->bos_id > INT32_MAX)
        return clt_options_fail(cmd, "a token id must be 0 to 2^31 - 1");
    clt_status st = opt->tokens ? CLT_OK : clt_tokenizer_open(opt->tokenizer, &c.tokenizer);
    if (c.tokenizer) c.encoder = clt_token_encoder_create(c.tokenizer, 0, add_tokens, &c);
    if (st == CLT_OK && opt->eos) opt->eos_id = clt_tokenizer_eos_id(c.tokenizer);
    c.sample = clt_try_calloc((size_t)opt->concat, sizeof *c.sample);
    c.piece = clt_malloc(PIECE);
    c.ids = clt_calloc(PIECE, sizeof *c.ids);
    if (st == CLT_OK && !c.sample) st = clt_no_memory("a sample", (uint64_t)opt->concat * sizeof *c.sample);
    if (st == CLT_OK) st = convert(&c, inputs);
    clt_free(c.sample);
    clt_free(c.piece);
    clt_free(c.ids);
    clt_token_encoder_destroy(c.encoder);
    clt_tokenizer_close(c.tokenizer);
    return clt_status_exit_code(st);
}

int data_convert(int argc, char **argv) {
    convert_options opt = {
        .split = "train", .tokenizer = "bytes", .concat = 2048, .eos_id = -1, .bos_id = -1};
    clt_mds_writer_params_default(&opt.writer);
    const clt_option options[] = {
        {"out", 'o', CLT_OPT_STR, &opt.out, "DIR", "folder of the dataset; the split is a folder in it"},
        {"split", 0, CLT_OPT_STR, &opt.split, "NAME", "name of the split (default train)"},
        {"val-fraction", 0, CLT_OPT_FLOAT, &opt.val_fraction, "F",
         "write this part of the samples, evenly spread, to split val"},
        {"concat-tokens", 'n', CLT_OPT_INT, &opt.concat, "N", "tokens of a sample (default 2048)"},
        {"tokenizer", 0, CLT_OPT_STR, &opt.tokenizer, "NAME", "bytes (default)"},
        {"tokens", 0, CLT_OPT_STR, &opt.tokens, "TYPE", "inputs are token ids, uint16 or int32, not text"},
        {"eos", 0, CLT_OPT_FLAG, &opt.eos, NULL, "the tokenizer's end of text after every document (file)"},
        {"eos-id", 0, CLT_OPT_INT, &opt.eos_id, "N", "this token after every document"},
        {"bos-id", 0, CLT_OPT_INT, &opt.bos_id, "N", "this token before every document"},
        {"no-wrap", 0, CLT_OPT_FLAG, &opt.no_wrap, NULL, "drop the rest of a document that fills no sample"},
        {"compression", 0, CLT_OPT_STR, &opt.writer.compression, "NAME",
         "zstd, gz, bz2, br or snappy; zstd:LEVEL (default: none)"},
        {"hashes", 0, CLT_OPT_STR, &opt.writer.hashes, "LIST", "checksums, like sha1,xxh64"},
        {"size-limit", 0, CLT_OPT_INT, &opt.writer.size_limit, "BYTES",
         "largest raw shard (default 67108864)"},
    };
    const clt_command command = {
        .name = "cltrain data convert",
        .usage = "INPUT... --out DIR [options]",
        .summary = "packs text or token files into an MDS dataset, as LLM Foundry's concat mode does",
        .examples = "  cltrain data convert texts/ --out data --concat-tokens 256 --eos --val-fraction 0.05\n"
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
