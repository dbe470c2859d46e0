/* clt_context: state that belongs to one run instead of to the process: the destination of messages, the
 * visible environment variables, and the request to stop.
 *
 * The cltrain program uses the process's context: messages go to stderr, the environment is read, and signals
 * request a stop. Each run of the public library (cltrain.h) has its own context, so that several runs in one
 * process do not affect each other. A thread works in one context at a time; clt_thread_start gives a new
 * thread the context of its creator. */
#ifndef CLT_CONTEXT_H
#define CLT_CONTEXT_H

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_log.h"

typedef struct clt_context clt_context;

typedef struct {
    clt_log_sink log; /* receives every line; fn NULL: messages are dropped */
    clt_log_level level;
    bool environment; /* true: the environment is read; false: only values of clt_context_set_env are visible
                       */
} clt_context_params;

/* Destroy a context only after all threads have left it. */
clt_context *clt_context_create(const clt_context_params *p);
void clt_context_destroy(clt_context *c); /* NULL is allowed */

/* Makes c (NULL: the process's context) the context of the calling thread. Returns the previous one. */
clt_context *clt_context_enter(clt_context *c);
/* The context of the calling thread; never NULL. */
clt_context *clt_context_current(void);

/* Sets the value that clt_env returns in this context; it takes precedence over the environment. value NULL
 * removes the setting. Call it before other threads use the context. */
void clt_context_set_env(clt_context *c, clt_env_id id, const char *value);

/* Requests that the run of this context stop. `why` is a value of clt_signal_received other than 0; the first
 * request decides. Callable from any thread. */
void clt_context_ask_stop(clt_context *c, int why);

#endif
