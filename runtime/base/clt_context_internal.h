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
    pthread_mutex_t lock; /* for the members from `sink` on, and while a line is printed */
    clt_log_level level;
    bool level_set;        /* false: CLTRAIN_LOG sets the level when it is first needed */
    int rank, size;        /* clt_log_set_rank */
    clt_log_sink sink;     /* fn NULL: stderr in the process's context, nowhere in others */
    struct clt_file *file; /* gets a copy of every line; borrowed; NULL: none */
    double start;          /* clt_now() at the first debug line; 0: no debug line yet */
    bool hold;             /* clt_log_hold */
    struct {               /* errors and warnings since the last release; rank 0 has printed them already */
        clt_log_level level;
        char *text;
    } held[CLT_LOG_HELD];
    int n_held;
} clt_logger;

struct clt_context {
    bool process; /* this is the process's context, which is static */
    clt_logger log;
    bool environment;         /* clt_env also reads the process's environment */
    char *env[CLT_ENV_COUNT]; /* values of clt_context_set_env, owned; NULL: not set */
    _Atomic size_t short_of;  /* bytes that the system last refused (clt_memory.h); 0: none */
    /* requests to stop */
    atomic_int received;     /* what clt_signal_received returns; 0: no request */
    _Atomic double stop_at;  /* time of clt_signal_at, seconds since 1970; 0: no time */
    _Atomic int32_t *shared; /* of clt_signal_share, borrowed; NULL: not shared. The pointer is not atomic */
};

#endif
