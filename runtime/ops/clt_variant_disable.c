/* Rows that CLTRAIN_DISABLE_ROW leaves out, as if the device could not run them. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ops/clt_ops_state.h"

static bool names_a_requirement(const char *pattern, const clt_variant *v) {
    char *copy = clt_strdup(v->requires), *at = NULL;
    bool found = false;
    for (char *w = strtok_r(copy, ",", &at); w && !found; w = strtok_r(NULL, ",", &at))
        found = fnmatch(pattern, w, 0) == 0;
    clt_free(copy);
    return found;
}

static bool names_row(const char *word, const clt_variant *v) {
    const char *eq = strchr(word, '='); /* which requirements may have, too */
    if (names_a_requirement(word, v)) return true;
    if (!eq) return false;
    char *op = clt_strndup(word, (size_t)(eq - word));
    const bool found = fnmatch(op, v->op, 0) == 0 && fnmatch(eq + 1, v->id, 0) == 0;
    clt_free(op);
    return found;
}

void clt_variant_read_disabled(clt_ops *ops) {
    const char *list = clt_env(CLT_ENV_DISABLE_ROW);
    if (!list) return;
    char *copy = clt_strdup(list), *at = NULL;
    for (char *w = strtok_r(copy, ",", &at); w; w = strtok_r(NULL, ",", &at)) clt_strv_add(&ops->disabled, w);
    clt_free(copy);
    ops->disabled_rows = clt_calloc(CLT_MAX(ops->disabled.n, 1), sizeof *ops->disabled_rows);
}

bool clt_variant_is_disabled(clt_ops *ops, const clt_variant *v) {
    bool found = false;
    for (size_t i = 0; i < ops->disabled.n; i++)
        if (names_row(ops->disabled.v[i], v)) {
            ops->disabled_rows[i]++;
            found = true;
        }
    return found;
}

clt_status clt_variant_look_at_disabled(const clt_ops *ops) {
    for (size_t i = 0; i < ops->disabled.n; i++)
        if (!ops->disabled_rows[i])
            return clt_error(
                CLT_USAGE,
                "CLTRAIN_DISABLE_ROW: no kernel variant is named by '%s': write OP=ID (gemm=cpu_8x32) "
                "or a word that variants require (wgmma); cltrain devices --rows lists both",
                ops->disabled.v[i]);
    return CLT_OK;
}

void clt_variant_free_disabled(clt_ops *ops) {
    clt_strv_free(&ops->disabled);
    clt_free(ops->disabled_rows);
    ops->disabled_rows = NULL;
}
