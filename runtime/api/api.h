/* api.h: statuses, messages and the run object of the public library, for the files of this folder only. */
#ifndef CLT_API_H
#define CLT_API_H

#include <stdbool.h>

#define CLTRAIN_EXPERIMENTAL
#include "runtime/include/cltrain/cltrain.h"
#include "runtime/base/clt_context.h"
#include "runtime/train/run/clt_generate.h"
#include "runtime/train/run/clt_run.h"

/* Converts st to the public status and sets this thread's message: the last clt_error's, or for a stop a
 * fixed one. */
cltrain_status api_status(clt_status st);
/* Sets this thread's message; returns CLTRAIN_NO_MEMORY. */
cltrain_status api_no_memory(void);
/* The result of a call before the run has a context: CLTRAIN_OK, or CLTRAIN_NO_MEMORY (clt_memory_check). */
cltrain_status api_prepared(void);
/* Sets this thread's message (printf format); returns CLTRAIN_BAD_ARGUMENT. */
cltrain_status api_misuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

clt_generate_params api_generate_params(const char *prompt, const cltrain_generation *options);

typedef enum { API_PREPARING, API_OPEN, API_ENDED } api_state;

struct cltrain_run {
    api_state state;
    clt_context *context;
    /* settings, until the run is opened */
    char *path, *text, *device, *cache;
    clt_strv settings;
    cltrain_log_fn log;
    cltrain_log_level level;
    void *log_ctx;
    bool environment;
    /* the open run */
    clt_config *config;
    clt_run_options options;
    bool finished;
    clt_run run;
};

#endif
