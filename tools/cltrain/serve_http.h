/* serve_http: the HTTP server of `cltrain serve`, on libmicrohttpd. Each connection has a thread that reads
 * its request; requests are answered one after the other in the thread that called serve_http_run, because
 * the model works on one text at a time. Size and duration of a request, the number of connections and the
 * number of requests that wait are limited. */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include "runtime/base/clt_base.h"

typedef struct {
    const char *host;    /* address to bind to, without a look-up: "127.0.0.1", "::1" */
    int64_t port;        /* 0: any free one */
    int64_t max_bytes;   /* of a request's body */
    int64_t connections; /* at most */
    double seconds;      /* for reading a request, for answering it, and for sending the answer */
    const char *name;    /* of the model */
} serve_http_options;

typedef struct serve_job serve_job;
/* Whether to give the request up: its deadline has passed, its client is gone, or the server ends. Called in
 * the thread of serve_http_run. */
bool serve_job_is_over(const serve_job *job);

/* Answers the body of POST /v1/completions; *out is JSON text to be freed with clt_free. CLT_BAD_DATA: the
 * request is invalid (clt_last_error says why); CLT_STOPPED: it is over. */
typedef clt_status (*serve_answer_fn)(void *ctx, serve_job *job, const char *body, size_t bytes, char **out);

/* Serves until clt_signal_received. CLT_BAD_CONFIG: the host is no address; CLT_IO: the port cannot be bound.
 * Prints {"host": H, "port": P} to stdout when requests are accepted. */
clt_status serve_http_run(const serve_http_options *o, serve_answer_fn answer, void *ctx);

#endif
