#include "runtime/device/clt_ptx.h"

#include <stdlib.h>
#include <string.h>

static const char TARGET[] = ".target sm_", ENTRY[] = ".entry ", ENTRY_MARK[] = CLT_PTX_MARK "entry ",
                  LESS_FIRST_MARK[] = CLT_PTX_MARK "less first", LESS_FIRST[] = "// less first";

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
    if (memmem(line, n, LESS_FIRST_MARK, sizeof LESS_FIRST_MARK - 1)) {
        clt_str_add(out, LESS_FIRST);
        clt_str_add(out, "\n");
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

/* --- the order of roles --- */

/* The kernel's text from its entry to the next one. */
typedef struct {
    const char *begin, *end;
} text;

static const char *find(text t, const char *word) {
    return memmem(t.begin, (size_t)(t.end - t.begin), word, strlen(word));
}

static const char *line_of(const char *begin, const char *at) {
    while (at > begin && at[-1] != '\n') at--;
    return at;
}

/* The line of `label:`. */
static const char *find_label(text t, const char *label) {
    char *line = clt_format("\n%s:", label);
    const char *at = find(t, line);
    clt_free(line);
    return at ? at + 1 : NULL;
}

enum { NAME = 80 };
/* The two branches of the roles: `@predicate bra label`, the branch with setmaxnreg.inc, `label:`, and the
 * branch with setmaxnreg.dec, up to the kernel's brace. */
typedef struct {
    const char *jump, *more, *less, *end;
    char predicate[NAME];
} roles;

/* The last conditional jump before `at`. */
static bool find_jump(text t, const char *at, roles *r, char label[NAME]) {
    for (r->jump = line_of(t.begin, at); r->jump > t.begin;) {
        r->jump = line_of(t.begin, r->jump - 1);
        if (sscanf(r->jump, " @%79s bra %79[^; \t\n]", r->predicate, label) == 2) return true;
    }
    return false;
}

/* Whether control never reaches the end of these lines: the last instruction is ret or an unconditional jump.
 */
static bool never_ends(text t) {
    const char *line = t.end;
    char word[NAME] = "";
    do line = line_of(t.begin, line - 1);
    while (line > t.begin &&
           (sscanf(line + strspn(line, " \t"), "%79[^ \t\n]", word) != 1 || !strncmp(word, "//", 2)));
    return !strcmp(word, "ret;") || !strncmp(word, "bra", 3);
}

static bool find_roles(text t, const char *inc, const char *dec, roles *r) {
    char label[NAME];
    if (!find_jump(t, inc, r, label)) return false;
    r->more = strchr(r->jump, '\n') + 1;
    r->less = find_label((text){inc, t.end}, label);
    r->end = find((text){dec, t.end}, "\n}");
    if (!r->less || r->less > dec || !r->end) return false;
    r->end++;
    return never_ends((text){r->more, r->less}) && never_ends((text){r->less, r->end});
}

/* Appends the kernel. If setmaxnreg.inc comes first, its branch moves to the end. */
static bool add_ordered(clt_str *out, text t) {
    static const char MORE[] = "$clt_more";
    const char *inc = find(t, "setmaxnreg.inc"), *dec = find(t, "setmaxnreg.dec");
    roles r;
    if (!inc || !dec || (inc < dec && !find_roles(t, inc, dec, &r))) return false;
    if (dec < inc) {
        clt_str_addn(out, t.begin, (size_t)(t.end - t.begin));
        return true;
    }
    const bool negated = r.predicate[0] == '!';
    clt_str_addn(out, t.begin, (size_t)(r.jump - t.begin));
    clt_str_addf(out, "\t@%s%s bra %s;\n", negated ? "" : "!", r.predicate + negated, MORE);
    clt_str_addn(out, r.less, (size_t)(r.end - r.less));
    clt_str_addf(out, "%s:\n", MORE);
    clt_str_addn(out, r.more, (size_t)(r.less - r.more));
    clt_str_addn(out, r.end, (size_t)(t.end - r.end));
    return true;
}

/* Puts the roles of all kernels with the mark into order. */
static bool order_roles(clt_str *ptx) {
    clt_str out = {0};
    bool found = true;
    for (text t = {ptx->s, NULL}; found && *t.begin; t.begin = t.end) {
        const char *entry = strstr(t.begin, ENTRY), *next = entry ? strstr(entry + 1, ENTRY) : NULL;
        t.end = next ? line_of(t.begin, next) : ptx->s + ptx->len;
        if (find(t, LESS_FIRST))
            found = add_ordered(&out, t);
        else
            clt_str_addn(&out, t.begin, (size_t)(t.end - t.begin));
    }
    clt_str_free(ptx);
    *ptx = out;
    return found;
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
    if (!order_roles(&out)) {
        *why = "a kernel's branches with setmaxnreg are not where they are expected";
        clt_str_free(&out);
        return NULL;
    }
    return out.s;
}
