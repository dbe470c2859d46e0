/* clt_env: every environment variable that cltrain reads, in one table (clt_env.def). No other module calls
 * getenv, so `cltrain --help-env` lists all of them and mistyped CLTRAIN_* variables get a warning. */
#ifndef CLT_ENV_H
#define CLT_ENV_H

typedef enum {
#define CLT_ENV(id, name, help) CLT_ENV_##id,
#include "runtime/base/clt_env.def"
#undef CLT_ENV
    CLT_ENV_COUNT
} clt_env_id;

/* The value in the current context (clt_context.h), or NULL if unset or empty. A run of the library sees the
 * environment only if the program allows it (cltrain_run_use_environment). */
const char *clt_env(clt_env_id id);
/* The value as an integer, or `fallback` if it is unset or no integer. */
long clt_env_long(clt_env_id id, long fallback);
const char *clt_env_name(clt_env_id id);
const char *clt_env_help(clt_env_id id);
/* Prints one warning for each CLTRAIN_* variable of the environment that is not in the table. */
void clt_env_warn_unknown(void);

#endif
