#include "runtime/base/clt_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"

/* Jansson reports a lack of memory as NULL in every function. Small requests come from clt_malloc, which does
 * not return NULL. While a text of any size is parsed or made they may fail: those calls check the one NULL
 * that they get. */
static _Thread_local bool may_fail, has_failed;

static void *json_memory(size_t bytes) {
    if (!may_fail) return clt_malloc(bytes);
    void *p = clt_try_malloc(bytes);
    has_failed |= !p;
    return p;
}

__attribute__((constructor)) static void set_json_memory(void) {
    json_set_alloc_funcs(json_memory, clt_free);
}

static void begin_large(void) {
    may_fail = true;
    has_failed = false;
}

/* Deepest nesting of a JSON text, counted without recursion, so that a hostile file cannot exhaust the
 * stack. */
static int json_depth(const char *s, size_t n) {
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
            deepest = CLT_MAX(deepest, depth);
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return deepest;
}

static clt_status parse(const char *text, size_t bytes, int max_depth, size_t flags, const char *what,
                        bool one_line, json_t **out) {
    int depth = json_depth(text, bytes);
    if (depth > max_depth)
        return clt_error(CLT_BAD_DATA, "%s: JSON is nested %d deep, at most %d is allowed", what, depth,
                         max_depth);
    json_error_t e;
    begin_large();
    json_t *j = json_loadb(text, bytes, flags, &e);
    may_fail = false;
    if (!j && has_failed) return clt_no_memory(what, bytes);
    if (!j && one_line) return clt_error(CLT_BAD_DATA, "%s:%d: not valid JSON: %s", what, e.column, e.text);
    if (!j) return clt_error(CLT_BAD_DATA, "%s:%d:%d: not valid JSON: %s", what, e.line, e.column, e.text);
    *out = j;
    return CLT_OK;
}

clt_status clt_json_parse(const char *text, size_t bytes, int max_depth, const char *what, json_t **out) {
    return parse(text, bytes, max_depth, JSON_REJECT_DUPLICATES, what, false, out);
}

clt_status clt_json_parse_any(const char *text, size_t bytes, int max_depth, const char *what, json_t **out) {
    return parse(text, bytes, max_depth, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, what,
                 false, out);
}

clt_status clt_json_parse_line(const char *text, size_t bytes, int max_depth, const char *what,
                               json_t **out) {
    return parse(text, bytes, max_depth, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, what, true, out);
}

static clt_status load(const char *path, size_t limit, int max_depth, size_t flags, json_t **out) {
    char *text;
    size_t n;
    CLT_TRY(clt_io_read_all(path, limit, &text, &n));
    clt_status st = parse(text, n, max_depth, JSON_REJECT_DUPLICATES | flags, path, false, out);
    clt_free(text);
    return st;
}

clt_status clt_json_load(const char *path, size_t limit, int max_depth, json_t **out) {
    return load(path, limit, max_depth, 0, out);
}

clt_status clt_json_load_reals(const char *path, size_t limit, int max_depth, json_t **out) {
    return load(path, limit, max_depth, JSON_DECODE_INT_AS_REAL, out);
}

clt_status clt_json_dump(const json_t *o, const char *what, char **out) {
    begin_large();
    char *text = json_dumps(o, JSON_COMPACT);
    may_fail = false;
    if (!text && has_failed) return clt_no_memory(what, 0);
    if (!text) return clt_error(CLT_FAIL, "%s cannot be written as JSON", what);
    *out = text;
    return CLT_OK;
}

clt_status clt_json_quote(const char *text, size_t bytes, const char *what, char **out) {
    begin_large();
    json_t *s = json_stringn(text, bytes);
    char *quoted = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    json_decref(s);
    may_fail = false;
    if (!quoted && has_failed) return clt_no_memory(what, bytes);
    if (!quoted) return clt_error(CLT_BAD_DATA, "%s is not UTF-8", what);
    *out = quoted;
    return CLT_OK;
}

static clt_status member(json_t *o, const char *key, const char *what, const char *type,
                         bool (*is)(const json_t *), json_t **out) {
    json_t *v = json_object_get(o, key);
    if (!v) return clt_error(CLT_BAD_DATA, "%s: key '%s' is missing", what, key);
    if (!is(v)) return clt_error(CLT_BAD_DATA, "%s: key '%s' must be %s", what, key, type);
    *out = v;
    return CLT_OK;
}

static bool is_int(const json_t *v) {
    return json_is_integer(v);
}
static bool is_str(const json_t *v) {
    return json_is_string(v);
}
static bool is_obj(const json_t *v) {
    return json_is_object(v);
}
static bool is_arr(const json_t *v) {
    return json_is_array(v);
}

clt_status clt_json_get_i64(json_t *o, const char *key, const char *what, int64_t *out) {
    json_t *v = NULL;
    CLT_TRY(member(o, key, what, "an integer", is_int, &v));
    *out = json_integer_value(v);
    return CLT_OK;
}

clt_status clt_json_get_str(json_t *o, const char *key, const char *what, const char **out) {
    json_t *v = NULL;
    CLT_TRY(member(o, key, what, "a string", is_str, &v));
    *out = json_string_value(v);
    return CLT_OK;
}

clt_status clt_json_get_obj(json_t *o, const char *key, const char *what, json_t **out) {
    return member(o, key, what, "an object", is_obj, out);
}

clt_status clt_json_get_arr(json_t *o, const char *key, const char *what, json_t **out) {
    return member(o, key, what, "a list", is_arr, out);
}

void clt_json_escape(clt_str *b, const char *s) {
    clt_str_add(b, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            clt_str_addf(b, "\\%c", c);
        else if (c < 0x20)
            clt_str_addf(b, "\\u%04x", c);
        else
            clt_str_addn(b, s, 1);
    }
    clt_str_add(b, "\"");
}

void clt_json_add_number(clt_str *b, const char *key, double v, const char *format) {
    clt_str_addf(b, ",\"%s\":", key);
    if (isfinite(v))
        clt_str_addf(b, format, v);
    else
        clt_str_add(b, "null");
}

const char *clt_json_real_text(double v, char *buf) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, 32, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    char *e = strchr(buf, 'e');
    if (e && v > -1e16 && v < 1e16 && (v >= 1 || v <= -1)) /* 6e+02: a whole number */
        snprintf(buf, 32, "%.1f", v);
    else if (e && !strchr(buf, '.')) { /* 1e-08 -> 1.0e-08 */
        memmove(e + 2, e, strlen(e) + 1);
        memcpy(e, ".0", 2);
    } else if (!strpbrk(buf, ".en"))
        strcat(buf, ".0");
    return buf;
}
