/* clt_context: what belongs to one user of the library instead of to the process: where messages go, which
 * environment variables are seen, and whether somebody asks the run to stop.
 *
 * The program works in the process's context: messages go to stderr, the environment is read, signals ask to
 * stop. Each run of the public library (cltrain.h) has a context of its own, so several runs in one process
 * do not mix. A thread works in one context at a time; clt_thread_start gives a new thread the context of the
 * thread that starts it. */
#ifndef CLT_CONTEXT_H
#define CLT_CONTEXT_H

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_log.h"

typedef struct clt_context clt_context;

typedef struct {
    clt_log_sink log; /* gets every line; fn NULL: messages are dropped */
    clt_log_level level;
    bool environment; /* the environment is read; otherwise only what clt_context_set_env sets is seen */
} clt_context_params;

/* Destroy it when no thread works in it any more. */
clt_context *clt_context_create(const clt_context_params *p);
void clt_context_destroy(clt_context *c); /* NULL is allowed */

/* This thread works in c from now on; NULL: in the process's context. Returns the context before. */
clt_context *clt_context_enter(clt_context *c);
/* The one that this thread works in; never NULL. */
clt_context *clt_context_current(void);

/* What clt_env gives in this context, whatever the environment says; value NULL: as if never set. Before
 * threads work in it. */
void clt_context_set_env(clt_context *c, clt_env_id id, const char *value);

/* Asks the run of this context to stop (clt_signal_received); why as there, not 0. The first one counts. From
 * any thread. */
void clt_context_ask_stop(clt_context *c, int why);

#endif
