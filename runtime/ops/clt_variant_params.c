/* Params of a row: their form, the build options that they become, and whether anything reads them. */
#include <stdlib.h>
#include <string.h>

#include "runtime/ops/clt_ops_state.h"

/* The word of params that starts at `at` is NAME=INTEGER, and its name is not among those before it. */
static clt_status check_param(const clt_variant *v, int line, const char *word, size_t at) {
    const size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    char *end = NULL, *before = clt_format(",%.*s", (int)at, v->params);
    char *name = clt_format(",%.*s=", (int)n, word);
    clt_status st = CLT_OK;
    if (n && word[n] == '=') strtol(word + n + 1, &end, 0);
    if (!end || end == word + n + 1 || *end)
        st = clt_error(CLT_FAIL, "%s.vt line %d: the param '%s' of variant %s is not NAME=INTEGER", v->op,
                       line, word, v->id);
    else if (strstr(before, name))
        st = clt_error(CLT_FAIL, "%s.vt line %d: variant %s has the param %.*s twice", v->op, line, v->id,
                       (int)n, word);
    clt_free(before);
    clt_free(name);
    return st;
}

clt_status clt_variant_make_options(clt_variant *v, int line) {
    if (!strcmp(v->params, "-")) return CLT_OK;
    clt_str b = {0};
    char *copy = clt_strdup(v->params), *at = NULL;
    clt_status st = CLT_OK;
    for (char *w = strtok_r(copy, ",", &at); w && st == CLT_OK; w = strtok_r(NULL, ",", &at)) {
        st = check_param(v, line, w, (size_t)(w - copy));
        clt_str_addf(&b, " -D%s", w);
    }
    if (st == CLT_OK && b.len >= sizeof v->options)
        st = clt_error(CLT_FAIL, "%s.vt line %d: params is too long", v->op, line);
    if (st == CLT_OK) memcpy(v->options, b.s, b.len + 1);
    clt_free(copy);
    clt_str_free(&b);
    return st;
}

static bool has_word(const char *text, const char *word, size_t n) {
    static const char in_name[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    char *name = clt_strndup(word, n);
    const char *s = strstr(text, name);
    while (s && ((s > text && strchr(in_name, s[-1])) || (s[n] && strchr(in_name, s[n]))))
        s = strstr(s + n, name);
    clt_free(name);
    return s != NULL;
}

static clt_status row_is_read(const clt_variant *v) {
    static const char *const host[] = {"ALIGN",  "ALIGN_C", "ALIGN_S", "EACH",     "FORMATS", "FORMS",
                                       "SPLITS", "GROUPS",  "K",       "MASKS",    "MAX_D",   "MAX_M",
                                       "MIN_D",  "MIN_M",   "MIN_N",   "MIN_ROWS", "ONCE",    "ROWS",
                                       "SCALES", "BLOCKS",  "TM",      "TN",       "TYPES",   "WG"};
    const char *text = clt_kernel_text(v->file), *used = *v->uses ? clt_kernel_text(v->uses) : NULL;
    /* a missing file is reported with the row's requirements */
    if (!text || !strcmp(v->params, "-")) return CLT_OK;
    for (const char *p = v->params; p; p = strchr(p, ',')) {
        p += *p == ',';
        const size_t n = strcspn(p, "=");
        bool known = false;
        for (size_t i = 0; i < CLT_COUNT_OF(host); i++)
            known = known || (strlen(host[i]) == n && !strncmp(host[i], p, n));
        if (!known && !has_word(text, p, n) && !(used && has_word(used, p, n)))
            return clt_error(
                CLT_FAIL,
                "%s.vt: the param %.*s of variant %s has no effect: neither %s nor the program reads it",
                v->op, (int)n, p, v->id, v->file);
    }
    return CLT_OK;
}

clt_status clt_variant_params_are_read(const clt_variant_table *t) {
    for (int i = 0; i < t->rows; i++) CLT_TRY(row_is_read(&t->row[i]));
    return CLT_OK;
}
