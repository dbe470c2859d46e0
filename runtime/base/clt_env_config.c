#include "runtime/base/clt_base.h"
#include "runtime/base/clt_context_internal.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

static const struct {
    const char *name, *help;
} env_table[] = {
#define CLT_ENV(id, name, help) {name, help},
#include "runtime/base/clt_env.def"
#undef CLT_ENV
};

const char *clt_env(clt_env_id id) {
    const clt_context *c = clt_context_current();
    const char *v = c->env[id] ? c->env[id] : c->environment ? getenv(env_table[id].name) : NULL;
    return v && *v ? v : NULL;
}

long clt_env_long(clt_env_id id, long fallback) {
    int64_t n;
    const char *v = clt_env(id);
    return v && clt_parse_i64(v, &n) ? (long)n : fallback;
}

const char *clt_env_name(clt_env_id id) {
    return env_table[id].name;
}
const char *clt_env_help(clt_env_id id) {
    return env_table[id].help;
}

void clt_env_warn_unknown(void) {
    const char *known[CLT_ENV_COUNT];
    for (int i = 0; i < CLT_ENV_COUNT; i++) known[i] = env_table[i].name;
    for (char **e = environ; *e; e++) {
        if (strncmp(*e, "CLTRAIN_", 8) != 0) continue;
        char name[64];
        size_t n = CLT_MIN(strcspn(*e, "="), sizeof name - 1);
        memcpy(name, *e, n);
        name[n] = 0;
        bool found = false;
        for (int i = 0; i < CLT_ENV_COUNT; i++) found |= strcmp(known[i], name) == 0;
        if (found) continue;
        const char *near = clt_nearest(name, known, CLT_ENV_COUNT);
        clt_warn("unknown environment variable %s is ignored%s%s%s", name, near ? "; did you mean " : "",
                 near ? near : "", near ? "?" : "");
    }
}
