/* clbench tokenize: how fast one thread encodes the documents of a text file. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_tokenizer.h"
#include "tools/clbench/bench.h"

enum { MAX_FILE = 1 << 30 };

typedef struct {
    clt_tokenizer *t;
    char *text;
    size_t bytes;
    int64_t document; /* a document ends at the first line end after so many bytes; 0: the file is one */
    int32_t *ids;
    size_t max, n;
} tokenize_work;

static size_t document_end(const tokenize_work *w, size_t from) {
    if (w->document <= 0 || w->bytes - from <= (size_t)w->document) return w->bytes;
    const char *end = memchr(w->text + from + w->document, '\n', w->bytes - from - (size_t)w->document);
    return end ? (size_t)(end - w->text) + 1 : w->bytes;
}

static clt_status encode_file(tokenize_work *w) {
    w->n = 0;
    for (size_t at = 0, end, n; at < w->bytes; at = end) {
        end = document_end(w, at);
        CLT_TRY(clt_tokenizer_encode(w->t, w->text + at, end - at, CLT_TOKEN_SPECIAL, w->ids + w->n,
                                     w->max - w->n, &n));
        w->n += n;
    }
    return CLT_OK;
}

/* Prints the time of each pass, so that a slow first one (an empty cache) is seen. */
static clt_status measure(tokenize_work *w, int64_t passes) {
    for (int64_t i = 0; i < passes; i++) {
        const double start = clt_now();
        CLT_TRY(encode_file(w));
        const double seconds = clt_now() - start;
        printf("{\"bytes\": %zu, \"ids\": %zu, \"seconds\": %.4f, \"mb_per_s\": %.2f}\n", w->bytes, w->n,
               seconds, (double)w->bytes / seconds / 1e6);
    }
    return CLT_OK;
}

static clt_status run(tokenize_work *w, const char *file, const char *tokenizer, int64_t passes,
                      const char *out) {
    CLT_TRY(clt_tokenizer_open(tokenizer, &w->t));
    CLT_TRY(clt_io_read_all(file, MAX_FILE, &w->text, &w->bytes));
    w->max = clt_tokenizer_max_ids(w->t, w->bytes);
    w->ids = clt_try_malloc((w->max + 1) * sizeof *w->ids);
    if (!w->ids) return clt_no_memory("the token ids of a file", w->max * sizeof *w->ids);
    CLT_TRY(measure(w, passes));
    return out ? clt_io_write_atomic(out, w->ids, w->n * sizeof *w->ids) : CLT_OK;
}

int bench_tokenize(int argc, char **argv) {
    const char *tokenizer = "bytes", *out = NULL;
    int64_t passes = 3;
    tokenize_work w = {.document = 8192};
    const clt_option options[] = {
        {"tokenizer", 0, CLT_OPT_STR, &tokenizer, "NAME", "a tokenizer.json, its folder, or bytes (default)"},
        {"document", 0, CLT_OPT_INT, &w.document, "BYTES", "length of a document; 0: the file is one (8192)"},
        {"passes", 0, CLT_OPT_INT, &passes, "N", "encode the file so many times (3)"},
        {"ids", 0, CLT_OPT_STR, &out, "FILE", "write the ids as int32"},
    };
    const clt_command command = {.name = "clbench tokenize",
                                 .usage = "FILE [options]",
                                 .summary = "measures how fast one thread encodes a text file",
                                 .examples = "  clbench tokenize book.txt --tokenizer gpt2/tokenizer.json\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv files = {0};
    int code = clt_options_parse(&command, argc, argv, &files);
    if (code < 0 && files.n != 1) code = clt_options_fail(&command, "name one file");
    if (code < 0) code = clt_status_exit_code(run(&w, files.v[0], tokenizer, passes, out));
    clt_tokenizer_close(w.t);
    clt_free(w.text);
    clt_free(w.ids);
    clt_strv_free(&files);
    return code;
}
