/* clt_context_internal: the members of a context, for clt_context.c, clt_log.c, clt_env_config.c and
 * clt_signal.c only. */
#ifndef CLT_CONTEXT_INTERNAL_H
#define CLT_CONTEXT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "runtime/base/clt_context.h"

/* The log of a context. */
typedef struct {
    pthread_mutex_t lock;
    clt_log_level level;
    bool level_set; /* false: CLTRAIN_LOG sets the level at the first message */
    int rank, size;
    clt_log_sink sink; /* fn NULL: stderr in the process's context, nowhere in others */
    struct clt_file *file;
    double start; /* clt_now() at the first debug line; 0: none yet */
    bool hold;
    struct {
        clt_log_level level;
        char *text;
    } held[CLT_LOG_HELD];
    int n_held;
} clt_logger;

struct clt_context {
    bool process; /* it is the process's context */
    clt_logger log;
    bool environment;
    char *env[CLT_ENV_COUNT];
    _Atomic size_t short_of; /* bytes that the system last refused (clt_memory.h); 0: none */
    /* asking to stop */
    atomic_int received;     /* what clt_signal_received returns; 0: no request to stop */
    _Atomic double stop_at;  /* time of clt_signal_at; 0: none */
    _Atomic int32_t *shared; /* word of clt_signal_share, or NULL */
};

#endif
