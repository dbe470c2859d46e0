/* cltrain data tokenize: one JSON string a line in, one JSON list of ids a line out, or the other way round.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/data_commands.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_options.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/clt_utf8.h"

static clt_status encode_line(const clt_tokenizer *t, json_t *line, long number, clt_str *out) {
    if (!json_is_string(line)) return clt_error(CLT_BAD_DATA, "line %ld is not a JSON string", number);
    size_t bytes = json_string_length(line), max = clt_tokenizer_max_ids(t, bytes), n;
    int32_t *ids = clt_calloc(max + 1, sizeof *ids);
    clt_status st = clt_tokenizer_encode(t, json_string_value(line), bytes, false, ids, max, &n);
    clt_str_add(out, "[");
    for (size_t i = 0; i < n && st == CLT_OK; i++) clt_str_addf(out, i ? ",%d" : "%d", ids[i]);
    clt_str_add(out, "]");
    clt_free(ids);
    return st;
}

static clt_status decode_line(const clt_tokenizer *t, json_t *line, long number, clt_str *out) {
    clt_str raw = {0}, text = {0};
    size_t n = json_array_size(line);
    int32_t *ids = clt_calloc(n + 1, sizeof *ids);
    clt_status st =
        json_is_array(line) ? CLT_OK : clt_error(CLT_BAD_DATA, "line %ld is not a JSON list of ids", number);
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        json_t *v = json_array_get(line, i);
        int64_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            st = clt_error(CLT_BAD_DATA, "line %ld holds no token id at position %zu", number, i);
        ids[i] = (int32_t)id;
    }
    if (st == CLT_OK) st = clt_tokenizer_decode(t, ids, n, &raw);
    clt_free(ids);
    clt_utf8_repair(raw.s, raw.len, &text);
    json_t *s = st == CLT_OK ? json_stringn(text.s ? text.s : "", text.len) : NULL;
    char *quoted = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    if (quoted) clt_str_add(out, quoted);
    free(quoted);
    json_decref(s);
    clt_str_free(&raw);
    clt_str_free(&text);
    return st;
}

static clt_status each_line(const clt_tokenizer *t, bool decode) {
    char *line = NULL;
    size_t cap = 0;
    clt_str out = {0};
    clt_status st = CLT_OK;
    long number = 0;
    for (ssize_t n; st == CLT_OK && (n = getline(&line, &cap, stdin)) > 0;) {
        json_error_t e;
        json_t *j = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        number++;
        out.len = 0;
        if (!j)
            st = clt_error(CLT_BAD_DATA, "line %ld is not JSON: %s", number, e.text);
        else
            st = decode ? decode_line(t, j, number, &out) : encode_line(t, j, number, &out);
        if (st == CLT_OK) puts(out.s);
        json_decref(j);
    }
    free(line);
    clt_str_free(&out);
    return st;
}

int data_tokenize(int argc, char **argv) {
    const char *name = "bytes";
    bool decode = false;
    const clt_option options[] = {
        {"tokenizer", 0, CLT_OPT_STR, &name, "NAME", "bytes (default)"},
        {"decode", 'd', CLT_OPT_FLAG, &decode, NULL, "lists of ids in, strings out"},
    };
    const clt_command command = {.name = "cltrain data tokenize",
                                 .usage = "[--tokenizer NAME] [--decode] < LINES",
                                 .summary =
                                     "reads one JSON string a line, prints one list of token ids a line",
                                 .examples = "  echo '\"Hello\"' | cltrain data tokenize\n"
                                             "  echo '[72, 105, 256]' | cltrain data tokenize --decode\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    clt_tokenizer *t = NULL;
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n > 0) code = clt_options_fail(&command, "'%s' is not expected", rest.v[0]);
    if (code < 0) {
        clt_status st = clt_tokenizer_open(name, &t);
        if (st == CLT_OK) st = each_line(t, decode);
        clt_tokenizer_close(t);
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    return code;
}
