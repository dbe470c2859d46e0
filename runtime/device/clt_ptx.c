#include "runtime/device/clt_ptx.h"

#include <stdlib.h>
#include <string.h>

static const char TARGET[] = ".target sm_", ENTRY[] = ".entry ", ENTRY_MARK[] = CLT_PTX_MARK "entry ";

bool clt_ptx_is_marked(const char *text) {
    return strstr(text, CLT_PTX_MARK) != NULL;
}

bool clt_ptx_is_whole(const char *text) {
    return strstr(text, TARGET) && !clt_ptx_is_marked(text);
}

/* Inserts `text` and a newline at offset `at`. */
static void insert(clt_str *out, size_t at, const char *text, size_t n) {
    char *tail = clt_strndup(out->s + at, out->len - at);
    out->len = at;
    clt_str_addn(out, text, n);
    clt_str_add(out, "\n");
    clt_str_add(out, tail);
    clt_free(tail);
}

/* Adds one line of n bytes. *body: offset in `out` of the body of the entry that the line belongs to;
 * SIZE_MAX before its brace. */
static void add_line(clt_str *out, const char *line, size_t n, size_t *body) {
    const char *mark;
    if (memmem(line, n, ENTRY, sizeof ENTRY - 1)) *body = SIZE_MAX;
    if (n > 0 && line[0] == '{' && *body == SIZE_MAX) *body = out->len;
    if ((mark = memmem(line, n, ENTRY_MARK, sizeof ENTRY_MARK - 1)) && *body != SIZE_MAX) {
        const char *text = mark + sizeof ENTRY_MARK - 1;
        const size_t bytes = (size_t)(line + n - text);
        insert(out, *body, text, bytes);
        *body += bytes + 1;
        return;
    }
    while ((mark = memmem(line, n, CLT_PTX_MARK, sizeof CLT_PTX_MARK - 1))) {
        clt_str_addn(out, line, (size_t)(mark - line));
        n -= (size_t)(mark - line) + sizeof CLT_PTX_MARK - 1;
        line = mark + sizeof CLT_PTX_MARK - 1;
    }
    clt_str_addn(out, line, n);
    clt_str_add(out, "\n");
}

char *clt_ptx_rewrite(const char *ptx, const char **why) {
    const char *target = strstr(ptx, TARGET);
    if (!target) {
        *why = "the binary of the first pass is no PTX text";
        return NULL;
    }
    char *digits_end;
    const long arch = strtol(target + sizeof TARGET - 1, &digits_end, 10);
    if (arch < 90) {
        *why = "the device's architecture is older than sm_90";
        return NULL;
    }
    clt_str out = {0};
    size_t body = 0;
    for (const char *s = ptx; *s;) {
        const size_t n = strcspn(s, "\n");
        if (target >= s && target < s + n) {
            clt_str_addn(&out, s, (size_t)(digits_end - s));
            clt_str_add(&out, *digits_end == 'a' ? "" : "a");
            clt_str_addn(&out, digits_end, (size_t)(s + n - digits_end));
            clt_str_add(&out, "\n");
        } else {
            add_line(&out, s, n, &body);
        }
        s += n + (s[n] == '\n');
    }
    return out.s;
}
