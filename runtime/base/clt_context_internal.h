/* What clt_context.c, clt_log.c, clt_env_config.c and clt_signal.c share. Not for other folders. */
#ifndef CLT_CONTEXT_INTERNAL_H
#define CLT_CONTEXT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "runtime/base/clt_context.h"

/* A context's messages. */
typedef struct {
    pthread_mutex_t lock;
    clt_log_level level;
    bool level_set; /* false: from the environment, at the first message */
    int rank, size;
    clt_log_sink sink; /* fn NULL: stderr in the process's context, nowhere in others */
    struct clt_file *file;
    double start; /* of debug lines: clt_now() at the first one; 0: none yet */
    bool hold;
    struct {
        clt_log_level level;
        char *text;
    } held[CLT_LOG_HELD];
    int n_held;
} clt_logger;

struct clt_context {
    bool process; /* the process's own */
    clt_logger log;
    bool environment;
    char *env[CLT_ENV_COUNT];
    _Atomic size_t short_of; /* bytes that the system last refused (clt_memory.h); 0: none */
    /* asking to stop */
    atomic_int received;
    _Atomic double stop_at; /* 0: no time */
    _Atomic int32_t *shared;
};

#endif
