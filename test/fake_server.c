#include "test/fake_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clt_base.h"

enum { MAX_REQUESTS = 4096, MAX_CONNECTIONS = 256 };

typedef struct {
    char *text;
    size_t head, bytes;
} request;

struct fake_server {
    const fake_step *steps;
    size_t n_steps;
    int listener;
    char url[64];
    pthread_t acceptor, connection[MAX_CONNECTIONS];
    pthread_mutex_t lock; /* for what follows */
    int fd[MAX_CONNECTIONS];
    size_t n_connections, n_requests;
    request requests[MAX_REQUESTS];
    bool stop;
};

typedef struct {
    fake_server *server;
    size_t index;
} served;

static void reset(int fd) {
    const struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

static void send_all(int fd, const char *data, size_t n) {
    for (ssize_t k; n && (k = send(fd, data, n, MSG_NOSIGNAL)) > 0; data += k, n -= (size_t)k) {
    }
}

/* More bytes to `b`; false: the connection ended. */
static bool receive(int fd, clt_str *b) {
    static _Thread_local char chunk[1 << 16];
    ssize_t n = recv(fd, chunk, sizeof chunk, 0);
    if (n <= 0) return false;
    clt_str_addn(b, chunk, (size_t)n);
    return true;
}

static size_t length_of(const char *head) {
    for (const char *line = head; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncasecmp(line, "content-length:", 15)) return (size_t)strtoull(line + 15, NULL, 10);
    }
    return 0;
}

/* The next request of a connection; `rest` keeps what follows it. */
static bool read_request(int fd, clt_str *rest, size_t *head) {
    const char *end = NULL;
    while (!rest->s || !(end = strstr(rest->s, "\r\n\r\n")))
        if (!receive(fd, rest)) return false;
    *head = (size_t)(end - rest->s) + 4;
    return true;
}

static bool read_body(int fd, clt_str *rest, size_t head, bool go_on) {
    char *text = clt_strndup(rest->s, head);
    size_t bytes = length_of(text);
    if (go_on && strstr(text, "100-continue")) send_all(fd, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    clt_free(text);
    while (rest->len < head + bytes)
        if (!receive(fd, rest)) return false;
    return true;
}

static void add_date(clt_str *b, int skew) {
    char date[64];
    time_t t = time(NULL) + skew;
    struct tm tm;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&t, &tm));
    clt_str_add(b, date);
}

static void add_writer(clt_str *b, fake_server *s) {
    static const char name[] = "x-amz-meta-cltrain-writer: ";
    pthread_mutex_lock(&s->lock);
    for (size_t i = s->n_requests; i-- > 0;) {
        const char *at = strstr(s->requests[i].text, name);
        if (!at) continue;
        at += sizeof name - 1;
        clt_str_addn(b, at, strcspn(at, "\r"));
        break;
    }
    pthread_mutex_unlock(&s->lock);
}

static clt_str expand(fake_server *s, const fake_step *step) {
    clt_str b = {0};
    clt_str_add(&b, "");
    if (step->bytes) {
        clt_str_addn(&b, step->reply, step->bytes);
        return b;
    }
    for (const char *at = step->reply; *at;) {
        size_t n = strcspn(at, "%");
        clt_str_addn(&b, at, n);
        at += n;
        if (!*at) break;
        if (at[1] == 'D')
            add_date(&b, step->skew);
        else if (at[1] == 'W')
            add_writer(&b, s);
        else
            clt_str_addn(&b, at, 1);
        at += at[1] == 'D' || at[1] == 'W' ? 2 : 1;
    }
    return b;
}

/* false: the connection is to end. */
static bool answer(fake_server *s, int fd, const fake_step *step) {
    if (!step || !step->reply) {
        reset(fd);
        return false;
    }
    clt_str text = expand(s, step);
    clt_sleep(step->delay);
    send_all(fd, text.s, step->cut ? CLT_MIN(step->cut, text.len) : text.len);
    clt_str_free(&text);
    if (step->cut) clt_sleep(0.05); /* a reset drops what the other side has not read */
    if (step->cut || step->early) reset(fd);
    return !step->cut && !step->ends && !step->early;
}

static const fake_step *take_step(fake_server *s, const clt_str *rest, size_t head, size_t *index) {
    pthread_mutex_lock(&s->lock);
    size_t i = *index = s->n_requests++;
    if (i >= MAX_REQUESTS) abort();
    s->requests[i] = (request){clt_strndup(rest->s, head), head, 0};
    pthread_mutex_unlock(&s->lock);
    return i < s->n_steps ? &s->steps[i] : NULL;
}

static void keep_body(fake_server *s, size_t i, const clt_str *rest, size_t bytes) {
    pthread_mutex_lock(&s->lock);
    request *r = &s->requests[i];
    clt_free(r->text);
    r->text = clt_memdup(rest->s, bytes + 1);
    r->text[bytes] = 0;
    r->bytes = bytes - r->head;
    pthread_mutex_unlock(&s->lock);
}

static void *serve(void *arg) {
    served v = *(served *)arg;
    clt_free(arg);
    fake_server *s = v.server;
    clt_str rest = {0};
    int fd = s->fd[v.index];
    for (size_t head, index; read_request(fd, &rest, &head);) {
        const fake_step *step = take_step(s, &rest, head, &index);
        bool early = step && step->early;
        if (!early && !read_body(fd, &rest, head, step && step->reply)) break;
        char *text = clt_strndup(rest.s, head);
        size_t bytes = early ? head : head + length_of(text);
        clt_free(text);
        keep_body(s, index, &rest, bytes);
        memmove(rest.s, rest.s + bytes, rest.len - bytes + 1);
        rest.len -= bytes;
        if (!answer(s, fd, step)) break;
    }
    clt_str_free(&rest);
    pthread_mutex_lock(&s->lock);
    s->fd[v.index] = -1;
    pthread_mutex_unlock(&s->lock);
    close(fd);
    return NULL;
}

static void *accept_all(void *arg) {
    fake_server *s = arg;
    for (;;) {
        int fd = accept(s->listener, NULL, NULL);
        pthread_mutex_lock(&s->lock);
        bool stop = s->stop || fd < 0 || s->n_connections == MAX_CONNECTIONS;
        if (!stop) {
            served *v = clt_malloc(sizeof *v);
            *v = (served){s, s->n_connections};
            s->fd[s->n_connections] = fd;
            if (pthread_create(&s->connection[s->n_connections++], NULL, serve, v)) abort();
        }
        pthread_mutex_unlock(&s->lock);
        if (stop) {
            if (fd >= 0) close(fd);
            return NULL;
        }
    }
}

fake_server *fake_start(const fake_step *steps, size_t n) {
    fake_server *s = clt_calloc(1, sizeof *s);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    s->steps = steps;
    s->n_steps = n;
    pthread_mutex_init(&s->lock, NULL);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(s->listener, (struct sockaddr *)&a, sizeof a) || listen(s->listener, 64) ||
        getsockname(s->listener, (struct sockaddr *)&a, &size) ||
        pthread_create(&s->acceptor, NULL, accept_all, s))
        abort();
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", ntohs(a.sin_port));
    return s;
}

const char *fake_url(const fake_server *s) {
    return s->url;
}

const char *fake_request(fake_server *s, size_t i) {
    pthread_mutex_lock(&s->lock);
    const char *text = i < s->n_requests ? s->requests[i].text : NULL;
    pthread_mutex_unlock(&s->lock);
    return text;
}

size_t fake_body(fake_server *s, size_t i, const char **body) {
    *body = s->requests[i].text + s->requests[i].head;
    return s->requests[i].bytes;
}

size_t fake_requests(fake_server *s) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->n_requests;
    pthread_mutex_unlock(&s->lock);
    return n;
}

size_t fake_connections(fake_server *s) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->n_connections;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void fake_stop(fake_server *s) {
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    for (size_t i = 0; i < s->n_connections; i++)
        if (s->fd[i] >= 0) shutdown(s->fd[i], SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->acceptor, NULL);
    close(s->listener);
    for (size_t i = 0; i < s->n_connections; i++) pthread_join(s->connection[i], NULL);
    for (size_t i = 0; i < s->n_requests; i++) clt_free(s->requests[i].text);
    pthread_mutex_destroy(&s->lock);
    clt_free(s);
}
