#include "tools/cltrain/serve_connections.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "runtime/base/clt_thread.h"

/* Seconds: after which a connection gives way, for which one that is half closed is answered, and for which
 * answers are sent when the server ends. */
enum { PATIENCE = 1, HALF_CLOSED = 5, DRAIN = 1 };
static const double tick = 0.05;

struct serve_connection {
    serve_connection *next, **back;
    int socket;
    serve_phase phase;
    double since;  /* clt_now, of the phase */
    double closed; /* when the client's end of data was seen; 0: not yet */
    bool ended;
};

struct serve_connections {
    pthread_mutex_t lock;
    pthread_cond_t stopping;
    pthread_t watcher;
    serve_connection *first;
    int64_t n, limit;
    double seconds;
    bool stop;
};

/* --- slow clients --- */

/* The thread that owns the socket sees its end. A client that is sending is told why. */
static void end_connection(serve_connection *c) {
    static const char why[] =
        "{\"error\":{\"message\":\"the request was sent too slowly\",\"type\":\"invalid_request_error\"}}";
    char late[256];
    const int n = snprintf(late, sizeof late,
                           "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                           "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                           strlen(why), why);
    if (c->phase == SERVE_READING) send(c->socket, late, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(c->socket, SHUT_RDWR);
    c->ended = true;
}

static void end_slow(serve_connections *all) {
    const double now = clt_now();
    serve_connection *slowest = NULL;
    for (serve_connection *c = all->first; c; c = c->next) {
        if (c->phase == SERVE_ANSWERING || c->ended) continue;
        if (now - c->since > all->seconds)
            end_connection(c);
        else if (!slowest || c->since < slowest->since)
            slowest = c;
    }
    if (all->n > all->limit && slowest && now - slowest->since > PATIENCE) end_connection(slowest);
}

/* Unlocks for `seconds`, or until `stopping`. */
static void pause_for(serve_connections *all, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(seconds * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&all->stopping, &all->lock, &until);
}

static void *watch(void *arg) {
    serve_connections *all = arg;
    pthread_mutex_lock(&all->lock);
    while (!all->stop) {
        end_slow(all);
        pause_for(all, tick);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* --- all connections --- */

clt_status serve_connections_start(int64_t limit, double seconds, serve_connections **out) {
    serve_connections *all = clt_calloc(1, sizeof *all);
    *all = (serve_connections){.lock = PTHREAD_MUTEX_INITIALIZER,
                               .stopping = PTHREAD_COND_INITIALIZER,
                               .limit = limit,
                               .seconds = seconds};
    const int failed = clt_thread_start(&all->watcher, watch, all);
    if (failed) {
        clt_free(all);
        return clt_error(CLT_FAIL, "the server cannot start a thread: %s", strerror(failed));
    }
    *out = all;
    return CLT_OK;
}

void serve_connections_drain(serve_connections *all) {
    const double end = clt_now() + DRAIN;
    pthread_mutex_lock(&all->lock);
    for (bool busy = true; busy && clt_now() < end;) {
        busy = false;
        for (const serve_connection *c = all->first; c; c = c->next) busy |= c->phase != SERVE_READING;
        if (busy) pause_for(all, tick);
    }
    pthread_mutex_unlock(&all->lock);
}

void serve_connections_stop(serve_connections *all) {
    if (!all) return;
    pthread_mutex_lock(&all->lock);
    all->stop = true;
    pthread_cond_signal(&all->stopping);
    pthread_mutex_unlock(&all->lock);
    pthread_join(all->watcher, NULL);
    clt_free(all);
}

/* --- one connection --- */

serve_connection *serve_connection_add(serve_connections *all, int socket) {
    serve_connection *c = clt_calloc(1, sizeof *c);
    pthread_mutex_lock(&all->lock);
    *c = (serve_connection){.next = all->first, .back = &all->first, .socket = socket, .since = clt_now()};
    if (c->next) c->next->back = &c->next;
    all->first = c;
    all->n++;
    pthread_mutex_unlock(&all->lock);
    return c;
}

void serve_connection_remove(serve_connections *all, serve_connection *c) {
    pthread_mutex_lock(&all->lock);
    *c->back = c->next;
    if (c->next) c->next->back = c->back;
    all->n--;
    pthread_mutex_unlock(&all->lock);
    clt_free(c);
}

void serve_connection_enter(serve_connections *all, serve_connection *c, serve_phase phase) {
    pthread_mutex_lock(&all->lock);
    c->phase = phase;
    c->since = clt_now();
    c->closed = 0;
    pthread_mutex_unlock(&all->lock);
}

bool serve_connection_is_gone(serve_connection *c) {
    struct pollfd p = {.fd = c->socket, .events = POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return false;
    if (p.revents & (POLLERR | POLLHUP)) return true;
    if (c->closed == 0) c->closed = clt_now();
    return clt_now() - c->closed > HALF_CLOSED;
}
