#include "runtime/base/clt_notice.h"

#include <string.h>

void clt_notices_add(clt_notices *l, const char *path, const char *why) {
    if (l->n == l->cap) {
        l->cap = CLT_MAX(2 * l->cap, (size_t)8);
        l->v = clt_realloc(l->v, l->cap * sizeof *l->v);
    }
    l->v[l->n++] = (clt_notice){clt_strdup(path), clt_strdup(why)};
}

void clt_notices_free(clt_notices *l) {
    for (size_t i = 0; i < l->n; i++) {
        clt_free(l->v[i].path);
        clt_free(l->v[i].why);
    }
    clt_free(l->v);
    *l = (clt_notices){0};
}

void clt_notices_lines(const clt_notices *l, clt_strv *lines) {
    bool *done = clt_calloc(l->n, sizeof *done);
    for (size_t i = 0; i < l->n; i++) {
        if (done[i]) continue;
        clt_str keys = {0};
        int count = 0;
        for (size_t j = i; j < l->n; j++) {
            if (strcmp(l->v[j].why, l->v[i].why) != 0) continue;
            done[j] = true;
            clt_str_addf(&keys, "%s%s", count++ ? ", " : "", l->v[j].path);
        }
        clt_strv_add_owned(lines, clt_format("key%s %s %s no effect here: %s", count > 1 ? "s" : "", keys.s,
                                             count > 1 ? "have" : "has", l->v[i].why));
        clt_str_free(&keys);
    }
    clt_free(done);
}
