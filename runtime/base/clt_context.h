/* clt_context: state that belongs to one run instead of to the process: the destination of messages, the
 * visible environment variables, and the request to stop.
 *
 * The cltrain program uses the process's context: messages go to stderr, the environment is read, and signals
 * request a stop. Each run of the public library (cltrain.h) has its own context, so that several runs in one
 * process do not affect each other. A thread works in one context at a time, at first in the process's.
 * clt_thread_start starts a thread in the context of its creator. */
#ifndef CLT_CONTEXT_H
#define CLT_CONTEXT_H

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_log.h"

typedef struct clt_context clt_context;

typedef struct {
    clt_log_sink log;    /* receives every message that `level` lets through; fn NULL: nothing does */
    clt_log_level level; /* the most detailed level that is shown; CLTRAIN_LOG does not change it */
    bool
        environment; /* also read the process's environment; false: only clt_context_set_env's values exist */
} clt_context_params;

/* The caller owns the result, which is never NULL. A context may be destroyed only after every thread has
 * left it (clt_context_enter). Its log file stays open: the caller closes it. */
clt_context *clt_context_create(const clt_context_params *p);
void clt_context_destroy(clt_context *c); /* NULL is allowed */

/* Makes c (NULL: the process's context) the context of the calling thread. Returns the thread's previous
 * context in the same form, for a later clt_context_enter. */
clt_context *clt_context_enter(clt_context *c);
/* The context of the calling thread; never NULL. */
clt_context *clt_context_current(void);

/* Sets the value that clt_env returns in context c, which must not be NULL. The value is copied and takes
 * precedence over the environment; "" hides the environment's variable, and NULL removes the setting. Must be
 * called before other threads use the context. */
void clt_context_set_env(clt_context *c, clt_env_id id, const char *value);

/* Requests that the run of context c stop. `why` is the value that clt_signal_received then returns: a signal
 * number or CLT_SIGNAL_*, not 0. Requests after the first one have no effect. Callable from any thread. */
void clt_context_ask_stop(clt_context *c, int why);

#endif
