/* Types of plain scalars, jansson values, and printing. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/config/clt_yaml_tree.h"

static bool is_one_of(const char *s, const char *const *words) {
    for (; *words; words++)
        if (strcmp(s, *words) == 0) return true;
    return false;
}

/* [-+]? (digits [. digits?] | . digits) ([eE][-+]?digits)?; *whole: neither dot nor exponent. */
static bool looks_like_number(const char *s, bool *whole) {
    s += *s == '-' || *s == '+';
    size_t before = strspn(s, "0123456789"), after = 0;
    s += before;
    *whole = true;
    if (*s == '.') {
        after = strspn(++s, "0123456789");
        s += after;
        *whole = false;
    }
    if (before + after == 0) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        size_t digits = strspn(s, "0123456789");
        if (digits == 0) return false;
        s += digits;
        *whole = false;
    }
    return !*s;
}

static json_t *number_value(const char *s, bool whole, const char **why) {
    int64_t i;
    double d;
    const char *digits = s + (*s == '+');
    if (whole && clt_parse_i64(digits, &i)) return json_integer(i);
    if (clt_parse_f64(digits, &d) && isfinite(d)) return json_real(d);
    *why = "is a number out of range";
    return NULL;
}

json_t *clt_yaml_scalar_value(const clt_yaml_node *n, const char **why) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const trues[] = {"true", "True", "TRUE", NULL};
    static const char *const falses[] = {"false", "False", "FALSE", NULL};
    static const char *const bad[] = {".inf",  ".Inf",  ".INF", "-.inf", "-.Inf", "-.INF", "+.inf",
                                      "+.Inf", "+.INF", ".nan", ".NaN",  ".NAN",  NULL};
    const char *s = n->text;
    bool whole;
    if (n->quoted) return json_string(s);
    if (is_one_of(s, nulls)) return json_null();
    if (is_one_of(s, trues)) return json_true();
    if (is_one_of(s, falses)) return json_false();
    if (is_one_of(s, bad)) {
        *why = "is not a finite number";
        return NULL;
    }
    if (looks_like_number(s, &whole)) return number_value(s, whole, why);
    return json_string(s);
}

static clt_status node_to_json(const clt_yaml_node *n, json_t **out) {
    if (n->kind == CLT_YAML_SCALAR) {
        const char *why = "is not valid text";
        json_t *v = clt_yaml_scalar_value(n, &why);
        if (!v) return clt_yaml_node_fail(n, "'%.60s' %s", n->text, why);
        *out = v;
        return CLT_OK;
    }
    json_t *v = n->kind == CLT_YAML_MAP ? json_object() : json_array();
    for (size_t i = 0; i < n->n; i++) {
        json_t *child;
        clt_status st = node_to_json(n->child[i], &child);
        if (st == CLT_OK && (n->kind == CLT_YAML_MAP ? json_object_set_new(v, n->keys[i], child)
                                                     : json_array_append_new(v, child)))
            st = clt_yaml_node_fail(n->child[i], "is not valid text");
        if (st != CLT_OK) {
            json_decref(v);
            return st;
        }
    }
    *out = v;
    return CLT_OK;
}

clt_status clt_yaml_to_json(const clt_yaml *y, json_t **out) {
    return node_to_json(y->root, out);
}

/* --- printing --- */

/* The character at s, when YAML cannot hold it as it is or takes it for the end of a line; 0: any other. */
static unsigned odd_character(const char *s, size_t *bytes) {
    static const struct {
        const char *text;
        unsigned code;
    } odd[] = {{"\xe2\x80\xa8", 0x2028},
               {"\xe2\x80\xa9", 0x2029},
               {"\xef\xbb\xbf", 0xfeff},
               {"\xef\xbf\xbe", 0xfffe},
               {"\xef\xbf\xbf", 0xffff}};
    const unsigned char *c = (const unsigned char *)s;
    *bytes = 1;
    if (c[0] < 0x20 || c[0] == 0x7f) return c[0];
    *bytes = 2;
    if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) return c[1];
    *bytes = 3;
    for (size_t i = 0; i < CLT_COUNT_OF(odd); i++)
        if (strncmp(s, odd[i].text, 3) == 0) return odd[i].code;
    *bytes = 1;
    return 0;
}

static void dump_quoted(const char *s, clt_str *out) {
    clt_str_add(out, "\"");
    for (size_t n; *s; s += n) {
        unsigned odd = odd_character(s, &n);
        if (odd)
            clt_str_addf(out, "\\u%04x", odd);
        else if (*s == '"' || *s == '\\')
            clt_str_addf(out, "\\%c", *s);
        else
            clt_str_addn(out, s, 1);
    }
    clt_str_add(out, "\"");
}

/* Text that would be read as something else, or not at all, without quotes. */
static bool needs_quotes(const char *s) {
    const char *why;
    clt_yaml_node n = {.kind = CLT_YAML_SCALAR, .text = (char *)s};
    json_t *v = clt_yaml_scalar_value(&n, &why);
    bool text = json_is_string(v);
    json_decref(v);
    size_t len = strlen(s), bytes;
    if (!strcmp(s, "<<")) return true; /* as a key it would merge */
    if (!text || strchr("-?:,[]{}#&*!|>'\"%@` \t", s[0]) || s[len - 1] == ' ' || s[len - 1] == ':')
        return true;
    for (const char *c = s; *c; c++)
        if (odd_character(c, &bytes)) return true;
    return strstr(s, ": ") || strstr(s, " #");
}

static void dump_text(const char *s, clt_str *out) {
    if (needs_quotes(s))
        dump_quoted(s, out);
    else
        clt_str_add(out, s);
}

/* A comment ends with its line. */
static void dump_comment(const char *s, clt_str *out) {
    clt_str_add(out, "  # ");
    for (size_t n; *s; s += n)
        if (odd_character(s, &n))
            clt_str_add(out, " ");
        else
            clt_str_addn(out, s, 1);
}

/* A value whose references are resolved: a "${" in it is text. */
static void dump_string(const char *s, clt_str *out) {
    clt_str escaped = {0};
    clt_str_add(&escaped, "");
    for (const char *at; (at = strstr(s, "${")); s = at + 2) {
        clt_str_addn(&escaped, s, (size_t)(at - s));
        clt_str_add(&escaped, "\\${");
    }
    clt_str_add(&escaped, s);
    dump_text(escaped.s, out);
    clt_str_free(&escaped);
}

static void dump_scalar(const json_t *v, clt_str *out) {
    char number[32];
    switch (json_typeof(v)) {
    case JSON_STRING:
        dump_string(json_string_value(v), out);
        break;
    case JSON_INTEGER:
        clt_str_addf(out, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        clt_str_add(out, clt_json_real_text(json_real_value(v), number));
        break;
    case JSON_TRUE:
        clt_str_add(out, "true");
        break;
    case JSON_FALSE:
        clt_str_add(out, "false");
        break;
    case JSON_OBJECT:
        clt_str_add(out, "{}");
        break;
    case JSON_ARRAY:
        clt_str_add(out, "[]");
        break;
    default:
        clt_str_add(out, "null");
        break;
    }
}

static bool is_block(const json_t *v) {
    return json_object_size(v) > 0 || json_array_size(v) > 0;
}

static void dump(const json_t *v, const clt_yaml_style *style, const char *path, int indent,
                 bool inline_first, clt_str *out);

/* What follows "key:" or "-": a scalar on the same line, or a block. */
static void dump_child(const json_t *v, const clt_yaml_style *style, const char *path, int indent,
                       bool in_list, clt_str *out) {
    if (is_block(v)) {
        bool same_line = in_list && json_is_object(v);
        clt_str_add(out, same_line ? " " : "\n");
        dump(v, style, path, in_list || json_is_object(v) ? indent + 2 : indent, same_line, out);
        return;
    }
    clt_str_add(out, " ");
    dump_scalar(v, out);
    char *comment = style->comment ? style->comment(style->ctx, path) : NULL;
    if (comment) dump_comment(comment, out);
    clt_free(comment);
    clt_str_add(out, "\n");
}

static void dump(const json_t *v, const clt_yaml_style *style, const char *path, int indent,
                 bool inline_first, clt_str *out) {
    clt_strv keys = {0};
    const char *name;
    json_t *child;
    json_object_foreach((json_t *)v, name, child) clt_strv_add(&keys, name);
    if (style->sort) clt_strv_sort(&keys);
    for (size_t i = 0; i < keys.n; i++) {
        char *sub = *path ? clt_format("%s.%s", path, keys.v[i]) : clt_strdup(keys.v[i]);
        clt_str_addf(out, "%*s", inline_first && i == 0 ? 0 : indent, "");
        dump_text(keys.v[i], out);
        clt_str_add(out, ":");
        dump_child(json_object_get(v, keys.v[i]), style, sub, indent, false, out);
        clt_free(sub);
    }
    clt_strv_free(&keys);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char *sub = clt_format("%s.%zu", path, i);
        clt_str_addf(out, "%*s-", indent, "");
        dump_child(json_array_get(v, i), style, sub, indent, true, out);
        clt_free(sub);
    }
}

void clt_yaml_dump(const json_t *value, const clt_yaml_style *style, clt_str *out) {
    clt_str_add(out, "");
    if (is_block(value))
        dump(value, style, "", 0, false, out);
    else
        dump_child(value, style, "", 0, false, out);
}
