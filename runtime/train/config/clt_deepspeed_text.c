/* The liberties of hjson. */
#include <string.h>

#include "runtime/train/config/clt_deepspeed.h"

typedef struct {
    const char *at, *end;
    clt_str out;
    size_t last;   /* length of `out` behind the last character that is neither blank nor comment */
    bool new_line; /* a line has ended since that character */
    int depth;
} tidier;

static char peek(const tidier *t, size_t ahead) {
    return t->at + ahead < t->end ? t->at[ahead] : 0;
}

/* Members of an object or list may be divided by line ends alone: adds the comma. */
static void divide(tidier *t) {
    const char last = t->last ? t->out.s[t->last - 1] : 0;
    if (!t->new_line || t->depth == 0 || !last || strchr("{[,:", last) || strchr("}],:", *t->at)) return;
    char *blanks = clt_strdup(t->out.s + t->last);
    t->out.len = t->last;
    clt_str_addf(&t->out, ",%s", blanks);
    clt_free(blanks);
}

static void keep(tidier *t) {
    const bool blank = *t->at && strchr(" \t\r\n", *t->at);
    if (!blank) {
        divide(t);
        t->new_line = false;
    }
    t->new_line |= *t->at == '\n';
    clt_str_addn(&t->out, t->at++, 1);
    if (!blank) t->last = t->out.len;
}

static void copy_string(tidier *t) {
    const char quote = *t->at;
    keep(t);
    while (t->at < t->end && *t->at != quote && *t->at != '\n') {
        if (*t->at == '\\' && t->at + 1 < t->end) keep(t);
        keep(t);
    }
    if (t->at < t->end && *t->at == quote) keep(t);
}

/* Whether a comment starts here, which it does only behind a blank or punctuation: http://x is none. */
static bool at_comment(const tidier *t) {
    const char before = t->out.len ? t->out.s[t->out.len - 1] : '\n';
    if (!strchr(" \t\r\n{}[],\"", before)) return false;
    return *t->at == '#' || (*t->at == '/' && (peek(t, 1) == '/' || peek(t, 1) == '*'));
}

/* The line ends of a comment stay. */
static void skip_comment(tidier *t) {
    const bool block = *t->at == '/' && peek(t, 1) == '*';
    if (!block) {
        while (t->at < t->end && *t->at != '\n') t->at++;
        return;
    }
    for (t->at += 2; t->at < t->end && !(*t->at == '*' && peek(t, 1) == '/'); t->at++)
        if (*t->at == '\n') {
            clt_str_add(&t->out, "\n");
            t->new_line = true;
        }
    t->at = t->at < t->end ? t->at + 2 : t->end;
    clt_str_add(&t->out, " ");
}

clt_str clt_deepspeed_tidy(const char *text, size_t bytes) {
    tidier t = {.at = text, .end = text + bytes};
    clt_str_add(&t.out, "");
    while (t.at < t.end) {
        if (at_comment(&t)) {
            skip_comment(&t);
        } else if (*t.at == '"') {
            copy_string(&t);
        } else {
            const char c = *t.at;
            keep(&t);
            t.depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        }
    }
    return t.out;
}
