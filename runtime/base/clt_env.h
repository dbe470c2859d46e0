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

/* The value in the calling thread's context (clt_context.h), or NULL if unset or empty. Borrowed, valid until
 * clt_context_set_env or the environment changes it. A run of the library sees the environment only if the
 * program allows that (cltrain_run_use_environment). */
const char *clt_env(clt_env_id id);
/* The value as a decimal integer; `fallback` if the variable is unset, empty or not an integer. */
long clt_env_long(clt_env_id id, long fallback);
/* The variable's name and what it does: constants from the table. */
const char *clt_env_name(clt_env_id id);
const char *clt_env_help(clt_env_id id);
/* Prints one warning for each CLTRAIN_* variable of the process's environment that is not in the table,
 * whether or not the context reads the environment. */
void clt_env_warn_unknown(void);

#endif
