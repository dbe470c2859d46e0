/* clt_env: every environment variable that cltrain reads, in one table. Nothing else calls getenv, so
 * `cltrain --help-env` can list them all, and a mistyped CLTRAIN_* variable can be named in a warning. */
#ifndef CLT_ENV_H
#define CLT_ENV_H

typedef enum {
#define CLT_ENV(id, name, help) CLT_ENV_##id,
#include "runtime/base/clt_env.def"
#undef CLT_ENV
    CLT_ENV_COUNT
} clt_env_id;

/* The value, or NULL if unset or empty. A run of the library sees only what it was told, unless it was
 * allowed to read the environment (clt_context.h). */
const char *clt_env(clt_env_id id);
/* The value as an integer, or `fallback` if unset or not a number. */
long clt_env_long(clt_env_id id, long fallback);
const char *clt_env_name(clt_env_id id);
const char *clt_env_help(clt_env_id id);
/* One warning for every CLTRAIN_* variable in the environment that the table does not know. */
void clt_env_warn_unknown(void);

#endif
