#include "tools/cltrain/serve_http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_signal.h"
#include "runtime/train/run/clt_completion.h"

#define COMPLETIONS "/v1/completions"
#define MODELS "/v1/models"
#define HEALTH "/health"

/* A request for the model, while its connection's thread waits. */
typedef struct job {
    struct job *next;
    const char *body;
    size_t bytes;
    clt_status status;
    char *answer;    /* JSON text, also of an error */
    double deadline; /* clt_now; waiting for other requests counts */
    bool done;
} job;

typedef struct {
    const serve_http_options *o;
    serve_answer_fn answer;
    void *ctx;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    pthread_cond_t added, finished;
    job *first, **last;
    bool ended; /* no more jobs are taken */
} server;

/* A request while it is read. */
typedef struct {
    clt_str body;
    double start;
} upload;

/* --- jobs --- */

/* Called in a connection's thread: waits for the answer. */
static void wait_for(server *s, job *j) {
    pthread_mutex_lock(&s->lock);
    if (!s->ended) {
        *s->last = j;
        s->last = &j->next;
        pthread_cond_signal(&s->added);
        while (!j->done) pthread_cond_wait(&s->finished, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    if (j->done) return;
    j->status = CLT_STOPPED;
    j->answer = clt_completion_error("the server is shutting down", "server_error");
}

static job *take_job(server *s) {
    job *j = s->first;
    if (j) s->first = j->next;
    if (!s->first) s->last = &s->first;
    return j;
}

static void finish_job(server *s, job *j) {
    pthread_mutex_lock(&s->lock);
    j->done = true;
    pthread_cond_broadcast(&s->finished);
    pthread_mutex_unlock(&s->lock);
}

static void run_job(server *s, job *j) {
    clt_error_quiet(true);
    j->status = s->answer(s->ctx, j->body, j->bytes, j->deadline, &j->answer);
    clt_error_quiet(false);
    if (j->status == CLT_BAD_DATA)
        j->answer = clt_completion_error(clt_last_error(), "invalid_request_error");
    else if (j->status == CLT_STOPPED)
        j->answer =
            clt_completion_error("the request took too long, or the server is shutting down", "server_error");
    else if (j->status != CLT_OK)
        j->answer = clt_completion_error(clt_last_error(), "server_error");
}

/* Answers requests until a signal; waits at most a moment, so that it sees one. */
static void work(server *s) {
    while (!clt_signal_received()) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&s->lock);
        if (!s->first) pthread_cond_timedwait(&s->added, &s->lock, &until);
        job *j = take_job(s);
        pthread_mutex_unlock(&s->lock);
        if (!j) continue;
        run_job(s, j);
        finish_job(s, j);
    }
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    for (job *j; (j = take_job(s));) {
        j->status = CLT_STOPPED;
        j->answer = clt_completion_error("the server is shutting down", "server_error");
        j->done = true;
    }
    pthread_cond_broadcast(&s->finished);
    pthread_mutex_unlock(&s->lock);
}

/* --- requests --- */

/* Takes over `text`. */
static enum MHD_Result respond(struct MHD_Connection *c, unsigned code, const char *allow, char *text) {
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(strlen(text), text, clt_free);
    if (!r) {
        clt_free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", "application/json");
    if (allow) MHD_add_response_header(r, "Allow", allow);
    const enum MHD_Result result = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned code, const char *allow,
                              const char *message) {
    return respond(c, code, allow, clt_completion_error(message, "invalid_request_error"));
}

/* Whether the request announces a body that is too large. */
static bool announces_too_much(const server *s, struct MHD_Connection *c) {
    const char *text = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    int64_t bytes;
    return text && (!clt_parse_i64(text, &bytes) || bytes > s->o->max_bytes);
}

/* The first call for a request: everything but a completion is answered at once. */
static enum MHD_Result begin_request(server *s, struct MHD_Connection *c, const char *url, const char *method,
                                     void **state) {
    const bool get = strcmp(method, "GET") == 0;
    if (strcmp(url, HEALTH) == 0 || strcmp(url, MODELS) == 0) {
        if (!get) return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET", "use GET");
        return respond(c, MHD_HTTP_OK, NULL,
                       strcmp(url, HEALTH) == 0 ? clt_strdup("{\"status\":\"ok\"}")
                                                : clt_completion_models(s->o->name));
    }
    if (strcmp(url, COMPLETIONS) != 0)
        return refuse(c, MHD_HTTP_NOT_FOUND, NULL,
                      "unknown path: there are " COMPLETIONS ", " MODELS " and " HEALTH);
    if (strcmp(method, "POST") != 0) return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "POST", "use POST");
    if (announces_too_much(s, c))
        return refuse(c, MHD_HTTP_CONTENT_TOO_LARGE, NULL, "the request's body is too large");
    upload *u = clt_calloc(1, sizeof *u);
    u->start = clt_now();
    *state = u;
    return MHD_YES;
}

static unsigned code_of(clt_status st) {
    return st == CLT_OK         ? MHD_HTTP_OK
           : st == CLT_BAD_DATA ? MHD_HTTP_BAD_REQUEST
           : st == CLT_STOPPED  ? MHD_HTTP_SERVICE_UNAVAILABLE
                                : MHD_HTTP_INTERNAL_SERVER_ERROR;
}

/* Seconds after which a connection that neither sends nor receives is closed. */
static unsigned idle_seconds(const server *s) {
    enum { MOST = 30 };
    return s->o->seconds < MOST ? (unsigned)CLT_MAX(s->o->seconds, 1) : MOST;
}

/* MHD_AccessHandlerCallback. MHD_NO closes the connection without an answer: for a body that is larger than
 * announced or comes too slowly. */
static enum MHD_Result handle(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *bytes, void **state) {
    server *s = ctx;
    upload *u = *state;
    (void)version;
    if (!u) return begin_request(s, c, url, method, state);
    if (clt_now() - u->start > s->o->seconds) return MHD_NO;
    if (*bytes > 0) {
        if (u->body.len + *bytes > (size_t)s->o->max_bytes) return MHD_NO;
        if (!clt_str_try_reserve(&u->body, *bytes)) return MHD_NO;
        clt_str_addn(&u->body, data, *bytes);
        *bytes = 0;
        return MHD_YES;
    }
    job j = {.body = u->body.s ? u->body.s : "", .bytes = u->body.len, .deadline = clt_now() + s->o->seconds};
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0U); /* nothing is sent meanwhile */
    wait_for(s, &j);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, idle_seconds(s));
    return respond(c, code_of(j.status), NULL, j.answer);
}

/* MHD_RequestCompletedCallback */
static void end_request(void *ctx, struct MHD_Connection *c, void **state,
                        enum MHD_RequestTerminationCode why) {
    upload *u = *state;
    (void)ctx;
    (void)c;
    (void)why;
    if (!u) return;
    clt_str_free(&u->body);
    clt_free(u);
    *state = NULL;
}

/* --- the server --- */

static clt_status find_address(const serve_http_options *o, struct addrinfo **out) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    char *port = clt_format("%lld", (long long)o->port);
    const int failed = getaddrinfo(o->host, port, &hints, out);
    clt_free(port);
    return failed ? clt_error(CLT_BAD_CONFIG, "--host %s is no address: %s", o->host, gai_strerror(failed))
                  : CLT_OK;
}

static clt_status start(server *s) {
    struct addrinfo *at;
    CLT_TRY(find_address(s->o, &at));
    const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL |
                           (at->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    errno = 0;
    s->daemon = MHD_start_daemon(flags, (uint16_t)s->o->port, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR,
                                 at->ai_addr, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o->connections,
                                 MHD_OPTION_CONNECTION_TIMEOUT, idle_seconds(s), MHD_OPTION_NOTIFY_COMPLETED,
                                 end_request, NULL, MHD_OPTION_END);
    freeaddrinfo(at);
    return s->daemon ? CLT_OK
                     : clt_error(CLT_IO, "cannot listen on %s port %lld: %s; choose another --port or --host",
                                 s->o->host, (long long)s->o->port,
                                 errno ? strerror(errno) : "the server cannot start");
}

clt_status serve_http_run(const serve_http_options *o, serve_answer_fn answer, void *ctx) {
    server s = {.o = o,
                .answer = answer,
                .ctx = ctx,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .added = PTHREAD_COND_INITIALIZER,
                .finished = PTHREAD_COND_INITIALIZER};
    s.last = &s.first;
    CLT_TRY(start(&s));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s.daemon, MHD_DAEMON_INFO_BIND_PORT);
    const int port = info && info->port ? info->port : (int)o->port;
    clt_info("listening on %s port %d; Ctrl-C ends the server", o->host, port);
    printf("{\"host\":\"%s\",\"port\":%d}\n", o->host, port);
    fflush(stdout);
    work(&s);
    MHD_stop_daemon(s.daemon);
    return CLT_OK;
}
