#include "runtime/base/clt_context.h"

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_context_internal.h"

static clt_context process = {.process = true,
                              .environment = true,
                              .log = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = CLT_LOG_INFO, .size = 1}};

static _Thread_local clt_context *current; /* NULL: the process's */

clt_context *clt_context_create(const clt_context_params *p) {
    clt_context *c = clt_calloc(1, sizeof *c);
    c->environment = p->environment;
    c->log.level = p->level;
    c->log.level_set = true;
    c->log.size = 1;
    c->log.sink = p->log;
    pthread_mutex_init(&c->log.lock, NULL);
    return c;
}

void clt_context_destroy(clt_context *c) {
    if (!c) return;
    for (int i = 0; i < c->log.n_held; i++) clt_free(c->log.held[i].text);
    for (int i = 0; i < CLT_ENV_COUNT; i++) clt_free(c->env[i]);
    pthread_mutex_destroy(&c->log.lock);
    clt_free(c);
}

clt_context *clt_context_enter(clt_context *c) {
    clt_context *before = current;
    current = c;
    return before;
}

clt_context *clt_context_current(void) {
    return current ? current : &process;
}

void clt_context_set_env(clt_context *c, clt_env_id id, const char *value) {
    clt_free(c->env[id]);
    c->env[id] = value ? clt_strdup(value) : NULL;
}

void clt_context_ask_stop(clt_context *c, int why) {
    int none = 0;
    atomic_compare_exchange_strong(&c->received, &none, why);
}
