#include "tools/cltrain/serve_http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_signal.h"
#include "runtime/train/run/clt_completion.h"
#include "tools/cltrain/serve_connections.h"

#define COMPLETIONS "/v1/completions"
#define MODELS "/v1/models"
#define HEALTH "/health"
#define TOO_LARGE "the request's body is too large; --max-bytes sets the limit"

/* A request for the model, while its connection's thread waits. */
struct serve_job {
    serve_job *next;
    serve_connection *connection;
    const char *body;
    size_t bytes;
    clt_status status;
    char *answer;    /* JSON text, also of an error */
    double deadline; /* clt_now; waiting for other requests counts */
    bool done;
};

typedef struct {
    const serve_http_options *o;
    serve_answer_fn answer;
    void *ctx;
    struct MHD_Daemon *daemon;
    serve_connections *connections;
    pthread_mutex_t lock;
    pthread_cond_t added, finished;
    serve_job *first, **last;
    int64_t jobs;
    bool ended; /* no more jobs are taken */
} server;

/* A request while it is read. */
typedef struct {
    clt_str body;
    bool too_large;
} upload;

/* --- jobs --- */

bool serve_job_is_over(const serve_job *j) {
    return clt_signal_received() || clt_now() > j->deadline || serve_connection_is_gone(j->connection);
}

/* Connections that wait for the model, or are slow; the others remain for quick clients. */
static int64_t usual_connections(const serve_http_options *o) {
    enum { SHARE = 8 };
    return o->connections - CLT_CEIL_DIV(o->connections, SHARE);
}

/* Called in a connection's thread: waits for the answer. */
static void wait_for(server *s, serve_job *j) {
    const char *why = "the server is shutting down";
    pthread_mutex_lock(&s->lock);
    if (!s->ended && s->jobs >= CLT_MAX(usual_connections(s->o), 1)) {
        why = "too many requests are waiting; send this one later";
    } else if (!s->ended) {
        *s->last = j;
        s->last = &j->next;
        s->jobs++;
        pthread_cond_signal(&s->added);
        while (!j->done) pthread_cond_wait(&s->finished, &s->lock);
        s->jobs--;
    }
    pthread_mutex_unlock(&s->lock);
    if (j->done) return;
    j->status = CLT_STOPPED;
    j->answer = clt_completion_error(why, "server_error");
}

static serve_job *take_job(server *s) {
    serve_job *j = s->first;
    if (j) s->first = j->next;
    if (!s->first) s->last = &s->first;
    return j;
}

static void finish_job(server *s, serve_job *j) {
    pthread_mutex_lock(&s->lock);
    j->done = true;
    pthread_cond_broadcast(&s->finished);
    pthread_mutex_unlock(&s->lock);
}

static void run_job(server *s, serve_job *j) {
    clt_error_quiet(true);
    j->status = serve_job_is_over(j) ? CLT_STOPPED : s->answer(s->ctx, j, j->body, j->bytes, &j->answer);
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
        serve_job *j = take_job(s);
        pthread_mutex_unlock(&s->lock);
        if (!j) continue;
        run_job(s, j);
        finish_job(s, j);
    }
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    for (serve_job *j; (j = take_job(s));) {
        j->status = CLT_STOPPED;
        j->answer = clt_completion_error("the server is shutting down", "server_error");
        j->done = true;
    }
    pthread_cond_broadcast(&s->finished);
    pthread_mutex_unlock(&s->lock);
}

/* --- requests --- */

static serve_connection *connection_of(struct MHD_Connection *c) {
    return MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* Takes over `text`. */
static enum MHD_Result respond(server *s, struct MHD_Connection *c, unsigned code, const char *allow,
                               char *text) {
    serve_connection_enter(s->connections, connection_of(c), SERVE_SENDING);
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

static enum MHD_Result refuse(server *s, struct MHD_Connection *c, unsigned code, const char *allow,
                              const char *message) {
    return respond(s, c, code, allow, clt_completion_error(message, "invalid_request_error"));
}

/* Whether the request announces a body that is too large. */
static bool announces_too_much(const server *s, struct MHD_Connection *c) {
    const char *text = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    int64_t bytes;
    return text && (!clt_parse_i64(text, &bytes) || bytes > s->o->max_bytes);
}

/* What needs no model. */
static enum MHD_Result answer_at_once(server *s, struct MHD_Connection *c, const char *url,
                                      const char *method) {
    const bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (strcmp(url, HEALTH) == 0 || strcmp(url, MODELS) == 0) {
        if (!get) return refuse(s, c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET, HEAD", "use GET");
        return respond(s, c, MHD_HTTP_OK, NULL,
                       strcmp(url, HEALTH) == 0 ? clt_strdup("{\"status\":\"ok\"}")
                                                : clt_completion_models(s->o->name));
    }
    if (strcmp(url, COMPLETIONS) == 0) return refuse(s, c, MHD_HTTP_METHOD_NOT_ALLOWED, "POST", "use POST");
    return refuse(s, c, MHD_HTTP_NOT_FOUND, NULL,
                  "unknown path: there are " COMPLETIONS ", " MODELS " and " HEALTH);
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

/* Adds to the body. What exceeds the limit is read and dropped, so that the client gets its answer. */
static void take_body(const server *s, upload *u, const char *data, size_t bytes) {
    u->too_large = u->too_large || u->body.len + bytes > (size_t)s->o->max_bytes ||
                   !clt_str_try_reserve(&u->body, bytes);
    if (u->too_large)
        clt_str_free(&u->body);
    else
        clt_str_addn(&u->body, data, bytes);
}

/* Waits for the model. */
static enum MHD_Result answer_completion(server *s, struct MHD_Connection *c, const upload *u) {
    serve_job j = {.connection = connection_of(c),
                   .body = u->body.s ? u->body.s : "",
                   .bytes = u->body.len,
                   .deadline = clt_now() + s->o->seconds};
    serve_connection_enter(s->connections, j.connection, SERVE_ANSWERING);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0U); /* nothing is sent meanwhile */
    wait_for(s, &j);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, idle_seconds(s));
    return respond(s, c, code_of(j.status), NULL, j.answer);
}

/* MHD_AccessHandlerCallback: called once when the headers are known, for each part of the body, and at its
 * end. An answer before the end closes the connection. */
static enum MHD_Result handle(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *bytes, void **state) {
    server *s = ctx;
    upload *u = *state;
    (void)version;
    if (!u) {
        if (announces_too_much(s, c)) return refuse(s, c, MHD_HTTP_CONTENT_TOO_LARGE, NULL, TOO_LARGE);
        *state = clt_calloc(1, sizeof *u);
        return MHD_YES;
    }
    if (*bytes > 0) {
        take_body(s, u, data, *bytes);
        *bytes = 0;
        return MHD_YES;
    }
    if (u->too_large) return refuse(s, c, MHD_HTTP_CONTENT_TOO_LARGE, NULL, TOO_LARGE);
    if (strcmp(url, COMPLETIONS) != 0 || strcmp(method, "POST") != 0)
        return answer_at_once(s, c, url, method);
    return answer_completion(s, c, u);
}

/* MHD_RequestCompletedCallback */
static void end_request(void *ctx, struct MHD_Connection *c, void **state,
                        enum MHD_RequestTerminationCode why) {
    server *s = ctx;
    upload *u = *state;
    (void)why;
    serve_connection_enter(s->connections, connection_of(c), SERVE_READING);
    if (!u) return;
    clt_str_free(&u->body);
    clt_free(u);
    *state = NULL;
}

/* MHD_NotifyConnectionCallback */
static void notice_connection(void *ctx, struct MHD_Connection *c, void **state,
                              enum MHD_ConnectionNotificationCode what) {
    server *s = ctx;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *state = serve_connection_add(
            s->connections, MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    else
        serve_connection_remove(s->connections, *state);
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
    s->daemon =
        MHD_start_daemon(flags, (uint16_t)s->o->port, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR,
                         at->ai_addr, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o->connections,
                         MHD_OPTION_CONNECTION_TIMEOUT, idle_seconds(s), MHD_OPTION_NOTIFY_COMPLETED,
                         end_request, s, MHD_OPTION_NOTIFY_CONNECTION, notice_connection, s, MHD_OPTION_END);
    freeaddrinfo(at);
    return s->daemon ? CLT_OK
                     : clt_error(CLT_IO, "cannot listen on %s port %lld: %s; choose another --port or --host",
                                 s->o->host, (long long)s->o->port,
                                 errno ? strerror(errno) : "the server cannot start");
}

/* Announces the port, and answers until a signal. */
static void serve(server *s) {
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    const int port = info && info->port ? info->port : (int)s->o->port;
    clt_info("listening on %s port %d; Ctrl-C ends the server", s->o->host, port);
    printf("{\"host\":\"%s\",\"port\":%d}\n", s->o->host, port);
    fflush(stdout);
    work(s);
    const MHD_socket listening = MHD_quiesce_daemon(s->daemon);
    if (listening != MHD_INVALID_SOCKET) close(listening);
    serve_connections_drain(s->connections);
    MHD_stop_daemon(s->daemon);
}

clt_status serve_http_run(const serve_http_options *o, serve_answer_fn answer, void *ctx) {
    server s = {.o = o,
                .answer = answer,
                .ctx = ctx,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .added = PTHREAD_COND_INITIALIZER,
                .finished = PTHREAD_COND_INITIALIZER};
    s.last = &s.first;
    CLT_TRY(serve_connections_start(usual_connections(o), o->seconds, &s.connections));
    clt_status st = start(&s);
    if (st == CLT_OK) serve(&s);
    serve_connections_stop(s.connections);
    return st;
}
