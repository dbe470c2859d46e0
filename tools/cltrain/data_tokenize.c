/* cltrain data tokenize: one JSON string per line in, one JSON list of ids per line out, or the reverse. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_tokenizer.h"
#include "tools/cltrain/data_commands.h"

enum { MAX_DEPTH = 8 };

typedef struct {
    clt_tokenizer *t;
    bool decode, skip_special;
    unsigned flags; /* CLT_TOKEN_* */
} conversion;

static clt_status encode_line(const conversion *c, json_t *line, long number, clt_str *out) {
    if (!json_is_string(line)) return clt_error(CLT_BAD_DATA, "line %ld is not a JSON string", number);
    size_t bytes = json_string_length(line), max = clt_tokenizer_max_ids(c->t, bytes), n;
    int32_t *ids = clt_try_calloc(max + 1, sizeof *ids);
    if (!ids || !clt_str_try_reserve(out, 12 * max + 2)) { /* an id takes at most 11 bytes and a comma */
        clt_free(ids);
        return clt_no_memory("the token ids of a line", max * sizeof *ids);
    }
    clt_status st = clt_tokenizer_encode(c->t, json_string_value(line), bytes, c->flags, ids, max, &n);
    clt_str_add(out, "[");
    for (size_t i = 0; i < n && st == CLT_OK; i++) clt_str_addf(out, i ? ",%d" : "%d", ids[i]);
    clt_str_add(out, "]");
    clt_free(ids);
    return st;
}

/* The ids of a line; *ids is to be freed in any case. */
static clt_status read_ids(json_t *line, long number, int32_t **ids, size_t *n) {
    if (!json_is_array(line)) return clt_error(CLT_BAD_DATA, "line %ld is not a JSON list of ids", number);
    *n = json_array_size(line);
    *ids = clt_try_calloc(*n + 1, sizeof **ids);
    if (!*ids) return clt_no_memory("the token ids of a line", *n * sizeof **ids);
    for (size_t i = 0; i < *n; i++) {
        json_t *v = json_array_get(line, i);
        int64_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return clt_error(CLT_BAD_DATA, "line %ld holds no token id at position %zu", number, i);
        (*ids)[i] = (int32_t)id;
    }
    return CLT_OK;
}

static clt_status decode_line(const conversion *c, json_t *line, long number, clt_str *out) {
    clt_str text = {0};
    int32_t *ids = NULL;
    char *quoted = NULL;
    size_t n = 0;
    clt_status st = read_ids(line, number, &ids, &n);
    if (st == CLT_OK) st = clt_tokenizer_decode(c->t, ids, n, c->skip_special, &text);
    if (st == CLT_OK) st = clt_json_quote(text.s ? text.s : "", text.len, "the text of a line", &quoted);
    if (st == CLT_OK && !clt_str_try_reserve(out, strlen(quoted)))
        st = clt_no_memory("the text of a line", strlen(quoted));
    if (st == CLT_OK) clt_str_add(out, quoted);
    clt_free(quoted);
    clt_free(ids);
    clt_str_free(&text);
    return st;
}

static clt_status convert_line(const conversion *c, const char *text, size_t bytes, long number,
                               clt_str *out) {
    char what[32];
    json_t *line;
    snprintf(what, sizeof what, "line %ld", number);
    CLT_TRY(clt_json_parse_any(text, bytes, MAX_DEPTH, what, &line));
    clt_status st = c->decode ? decode_line(c, line, number, out) : encode_line(c, line, number, out);
    json_decref(line);
    return st;
}

static clt_status each_line(const conversion *c) {
    char *line = NULL;
    size_t cap = 0;
    clt_str out = {0};
    clt_status st = CLT_OK;
    long number = 0;
    for (ssize_t n; st == CLT_OK && (n = getline(&line, &cap, stdin)) > 0;) {
        out.len = 0;
        st = convert_line(c, line, (size_t)n, ++number, &out);
        if (st == CLT_OK) puts(out.s);
    }
    if (st == CLT_OK && !feof(stdin))
        st = clt_error(errno == ENOMEM ? CLT_NO_MEMORY : CLT_IO, "cannot read line %ld: %s", number + 1,
                       strerror(errno));
    clt_free(line);
    clt_str_free(&out);
    return st;
}

int data_tokenize(int argc, char **argv) {
    const char *name = "bytes";
    bool template = false, plain = false;
    conversion c = {0};
    const clt_option options[] = {
        {"tokenizer", 0, CLT_OPT_STR, &name, "NAME", "a tokenizer.json, its folder, or bytes (default)"},
        {"template", 0, CLT_OPT_FLAG, &template, NULL, "add what the tokenizer's template adds, such as bos"},
        {"plain", 0, CLT_OPT_FLAG, &plain, NULL, "the text of special tokens is text like any other"},
        {"decode", 'd', CLT_OPT_FLAG, &c.decode, NULL, "lists of ids in, strings out"},
        {"skip-special", 0, CLT_OPT_FLAG, &c.skip_special, NULL, "with --decode: without special tokens"},
    };
    const clt_command command = {
        .name = "cltrain data tokenize",
        .usage = "[--tokenizer NAME] [--template] [--plain] < LINES\n"
                 "[--tokenizer NAME] --decode [--skip-special] < LINES",
        .summary = "reads one JSON string per line, prints one list of token ids per line",
        .examples = "  echo '\"Hello\"' | cltrain data tokenize\n"
                    "  echo '\"Hello\"' | cltrain data tokenize --tokenizer llama/tokenizer.json --template\n"
                    "  echo '[72, 105, 256]' | cltrain data tokenize --decode\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n > 0) code = clt_options_fail(&command, "'%s' is not expected", rest.v[0]);
    if (code < 0) {
        clt_status st = clt_tokenizer_open(name, &c.t);
        if (st == CLT_OK) {
            c.flags = plain ? 0 : clt_tokenizer_default_flags(c.t) & CLT_TOKEN_SPECIAL;
            if (template) c.flags |= CLT_TOKEN_TEMPLATE;
            st = each_line(&c);
        }
        clt_tokenizer_close(c.t);
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    return code;
}
