#include "test/config_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

clt_config *cu_load(const char *path) {
    clt_config *c = NULL;
    if (clt_config_load(path, NULL, 0, &c) != CLT_OK)
        fail_msg("%s does not load: %s", path, clt_last_error());
    return c;
}

clt_config *cu_load_with(const char *override) {
    clt_config *c = NULL;
    if (clt_config_load(CU_BASE, &override, 1, &c) != CLT_OK) fail_msg("%s: %s", override, clt_last_error());
    return c;
}

bool cu_has_notice(const clt_config *c, const char *path) {
    for (size_t i = 0; i < c->notices.n; i++)
        if (strcmp(c->notices.v[i].path, path) == 0) return true;
    return false;
}
