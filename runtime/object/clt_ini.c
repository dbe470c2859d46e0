/* INI files of the AWS tools: sections, keys, comments, and indented lines that belong to the key above. */
#include <string.h>

#include "runtime/object/clt_s3_config.h"

enum { MAX_LINE = 16384, MAX_INI = 1 << 20 };

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts spaces at both ends, in place. */
static char *trimmed(char *s) {
    while (is_space(*s)) s++;
    size_t n = strlen(s);
    while (n && is_space(s[n - 1])) n--;
    s[n] = 0;
    return s;
}

typedef struct {
    const char *file;
    clt_ini_fn each;
    void *ctx;
    char section[256];
    bool nested; /* the key above has no value: indented lines belong to it */
    int line;
} parse;

static clt_status bad(const parse *p, const char *what) {
    return clt_error(CLT_BAD_CONFIG, "%s:%d: %s", p->file, p->line, what);
}

static clt_status take_section(parse *p, char *s) {
    char *end = strchr(s, ']');
    if (!end) return bad(p, "a section name ends with ']'");
    *end = 0;
    s = trimmed(s + 1);
    if (strlen(s) >= sizeof p->section) return bad(p, "the section's name is too long");
    strcpy(p->section, s);
    p->nested = false;
    return CLT_OK;
}

/* The line is not shown: it may hold a secret. */
static clt_status take_line(parse *p, char *s) {
    const bool indented = is_space(*s);
    s = trimmed(s);
    if (!*s || *s == '#' || *s == ';') return CLT_OK;
    if (*s == '[') return take_section(p, s);
    if (indented && p->nested) return CLT_OK;
    char *equals = strchr(s, '=');
    if (!equals) return bad(p, "expected KEY = VALUE or [SECTION]");
    *equals = 0;
    char *key = trimmed(s), *value = trimmed(equals + 1);
    if (!*key) return bad(p, "there is no key in front of '='");
    p->nested = !*value;
    return p->each(p->ctx, p->section, key, value, p->line);
}

clt_status clt_ini_parse(const char *file, const char *text, size_t bytes, clt_ini_fn each, void *ctx) {
    parse p = {.file = file, .each = each, .ctx = ctx};
    char line[MAX_LINE];
    if (bytes > MAX_INI)
        return clt_error(CLT_BAD_CONFIG, "%s has %zu bytes, at most 1 MiB is allowed", file, bytes);
    clt_status st = CLT_OK;
    for (size_t at = 0; at < bytes && st == CLT_OK;) {
        const char *start = text + at, *end = memchr(start, '\n', bytes - at);
        const size_t n = end ? (size_t)(end - start) : bytes - at;
        p.line++;
        at += n + 1;
        if (n >= sizeof line || memchr(start, 0, n)) {
            st = bad(&p, n >= sizeof line ? "the line is too long" : "the line holds a NUL byte");
            break;
        }
        memcpy(line, start, n);
        line[n] = 0;
        st = take_line(&p, line);
    }
    explicit_bzero(line, sizeof line);
    return st;
}
