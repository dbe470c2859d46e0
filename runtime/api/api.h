/* What the files of the public library share: statuses and messages at its border, and the run object. Not
 * for other folders. */
#ifndef CLT_API_H
#define CLT_API_H

#include <stdbool.h>

#define CLTRAIN_EXPERIMENTAL
#include "runtime/include/cltrain/cltrain.h"
#include "runtime/base/clt_context.h"
#include "runtime/train/run/clt_generate.h"
#include "runtime/train/run/clt_run.h"

/* The public status, and this thread's message for it: the last clt_error's, or one of its own. */
cltrain_status api_status(clt_status st);
/* CLTRAIN_NO_MEMORY with a message. */
cltrain_status api_no_memory(void);
/* The end of a call before the run has a context: CLTRAIN_OK, or CLTRAIN_NO_MEMORY (clt_memory_check). */
cltrain_status api_prepared(void);
/* CLTRAIN_BAD_ARGUMENT with this message. */
cltrain_status api_misuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

clt_generate_params api_generate_params(const char *prompt, const cltrain_generation *options);

typedef enum { API_PREPARING, API_OPEN, API_ENDED } api_state;

struct cltrain_run {
    api_state state;
    clt_context *context;
    /* as it was told */
    char *path, *text, *device, *cache;
    clt_strv settings;
    cltrain_log_fn log;
    cltrain_log_level level;
    void *log_ctx;
    bool environment;
    /* as it runs */
    clt_config *config;
    clt_run_options options;
    bool finished;
    clt_run run;
};

#endif
