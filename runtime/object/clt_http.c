#include "runtime/object/clt_http.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/clt_context.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"

enum {
    MAX_TEXT = 16 << 20,
    MAX_CONNECTIONS = 64,
    RECEIVE_BYTES = 512 << 10,
    SEND_BYTES = 2 << 20,
    CONNECT_SECONDS = 10,
    SLOW_BYTES = 1024, /* fewer bytes per second than this for SLOW_SECONDS end a request */
    SLOW_SECONDS = 30
};
/* How often a caller whose thread heeds requests to stop looks for one. */
static const double look_seconds = 0.2;

/* One request in progress. Its caller waits for `done`; the thread writes to everything else until then. */
typedef struct transfer {
    const clt_http_request *request;
    clt_http_response *out;
    CURL *easy;
    struct curl_slist *headers;
    char text[CURL_ERROR_SIZE];
    size_t sent, text_cap;
    int sendings;          /* how often libcurl began to send it */
    int error;             /* decided in a callback: more exact than libcurl's code */
    bool cancelled, done;  /* under the lock */
    struct transfer *next; /* in `queue` or `active` */
} transfer;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    pthread_t thread;
    CURLM *multi;
    transfer *queue, *active; /* not begun yet; known to the thread */
    bool running, stop, ended;
} http = {.lock = PTHREAD_MUTEX_INITIALIZER, .finished = PTHREAD_COND_INITIALIZER};

static struct { atomic_ullong requests, connections, up, down; } totals;

clt_http_totals clt_http_counted(void) {
    return (clt_http_totals){totals.requests, totals.connections, totals.up, totals.down};
}

void clt_http_response_free(clt_http_response *r) {
    clt_free(r->text);
    r->text = NULL;
    r->text_bytes = 0;
}

double clt_http_date(const char *text) {
    time_t t = *text ? curl_getdate(text, NULL) : -1;
    return t > 0 ? (double)t : 0;
}

/* --- callbacks of libcurl, in the thread --- */

static size_t send_body(char *to, size_t size, size_t n, void *ctx) {
    transfer *t = ctx;
    size_t bytes = CLT_MIN(size * n, t->request->body_bytes - t->sent);
    memcpy(to, (const char *)t->request->body + t->sent, bytes);
    t->sent += bytes;
    return bytes;
}

/* libcurl begins again when a connection that it kept turns out to be closed. */
static int seek_body(void *ctx, curl_off_t offset, int origin) {
    transfer *t = ctx;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->request->body_bytes)
        return CURL_SEEKFUNC_FAIL;
    t->sent = (size_t)offset;
#if LIBCURL_VERSION_NUM < 0x075000
    t->sendings = 2;
#endif
    return CURL_SEEKFUNC_OK;
}

#if LIBCURL_VERSION_NUM >= 0x075000
static int before_sending(void *ctx, char *to, char *from, int to_port, int from_port) {
    (void)to;
    (void)from;
    (void)to_port;
    (void)from_port;
    transfer *t = ctx;
    t->sendings++;
    return CURL_PREREQFUNC_OK;
}
#endif

static bool add_text(transfer *t, const char *data, size_t bytes) {
    clt_http_response *out = t->out;
    if (bytes > MAX_TEXT - out->text_bytes) {
        t->error = EMSGSIZE;
        return false;
    }
    if (out->text_bytes + bytes >= t->text_cap) {
        size_t cap = CLT_MAX(t->text_cap * 2, out->text_bytes + bytes + 1024);
        char *text = clt_try_realloc(out->text, cap);
        if (!text) {
            t->error = ENOMEM;
            return false;
        }
        out->text = text;
        t->text_cap = cap;
    }
    memcpy(out->text + out->text_bytes, data, bytes);
    out->text_bytes += bytes;
    out->text[out->text_bytes] = 0;
    return true;
}

static size_t get_body(char *data, size_t size, size_t n, void *ctx) {
    transfer *t = ctx;
    const clt_http_request *r = t->request;
    const size_t bytes = size * n;
    if (!r->into || t->out->status / 100 != 2) return add_text(t, data, bytes) ? bytes : 0;
    size_t fits = CLT_MIN(bytes, r->into_bytes - t->out->bytes);
    memcpy((char *)r->into + t->out->bytes, data, fits);
    t->out->bytes += fits;
    if (fits < bytes) t->error = EMSGSIZE;
    return fits;
}

/* Copies the value of a header that fits and is plain text; others count as not given. */
static void take(char *to, size_t cap, const char *value, size_t n) {
    *to = 0;
    if (n >= cap) return;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)value[i] < ' ' || value[i] == 127) return;
    memcpy(to, value, n);
    to[n] = 0;
}

static void begin_response(clt_http_response *out, const char *line, size_t n) {
    clt_http_response fresh = {.content_length = UINT64_MAX, .text = out->text};
    char copy[64];
    *out = fresh;
    snprintf(copy, sizeof copy, "%.*s", (int)CLT_MIN(n, sizeof copy - 1), line);
    const char *space = strchr(copy, ' ');
    if (space) out->status = atoi(space + 1);
}

static void take_header(clt_http_response *out, const char *name, size_t len, const char *value, size_t n) {
    const struct {
        const char *name;
        char *to;
        size_t cap;
    } wanted[] = {{"etag", out->etag, sizeof out->etag},
                  {"x-amz-request-id", out->request_id, sizeof out->request_id},
                  {"content-range", out->range, sizeof out->range},
                  {"date", out->date, sizeof out->date},
                  {"last-modified", out->modified, sizeof out->modified},
                  {"x-amz-bucket-region", out->region, sizeof out->region},
                  {"retry-after", out->retry_after, sizeof out->retry_after},
                  {"x-amz-meta-cltrain-writer", out->writer, sizeof out->writer}};
    for (size_t i = 0; i < CLT_COUNT_OF(wanted); i++)
        if (strlen(wanted[i].name) == len && !strncasecmp(name, wanted[i].name, len))
            take(wanted[i].to, wanted[i].cap, value, n);
    if (len == 14 && !strncasecmp(name, "content-length", len)) {
        char number[32];
        int64_t bytes;
        take(number, sizeof number, value, n);
        if (clt_parse_i64(number, &bytes) && bytes >= 0) out->content_length = (uint64_t)bytes;
    }
}

static size_t get_header(char *line, size_t size, size_t count, void *ctx) {
    transfer *t = ctx;
    size_t n = size * count;
    if (n > 5 && !strncmp(line, "HTTP/", 5)) { /* also after "100 Continue" */
        begin_response(t->out, line, n);
        return n;
    }
    const char *colon = memchr(line, ':', n);
    if (!colon) return n;
    const char *value = colon + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    while (end > value && strchr(" \t\r\n", end[-1])) end--;
    take_header(t->out, line, (size_t)(colon - line), value, (size_t)(end - value));
    return n;
}

/* Programs that this process starts must not inherit connections. */
static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *a) {
    (void)ctx;
    (void)purpose;
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

/* --- making a request --- */

/* Loopback, and the link-local addresses of metadata services. */
static bool is_near(const char *url) {
    CURLU *u = curl_url();
    char *host = NULL;
    bool is = u && !curl_url_set(u, CURLUPART_URL, url, 0) && !curl_url_get(u, CURLUPART_HOST, &host, 0) &&
              (!strcasecmp(host, "localhost") || !strncmp(host, "127.", 4) || !strncmp(host, "169.254.", 8) ||
               !strcmp(host, "[::1]"));
    curl_free(host);
    curl_url_cleanup(u);
    return is;
}

static bool add_header(transfer *t, const char *line) {
    struct curl_slist *more = curl_slist_append(t->headers, line);
    if (more) t->headers = more;
    return more;
}

static void set_transport(transfer *t) {
    CURL *e = t->easy;
    const clt_http_request *r = t->request;
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)CLT_MAX(CLT_MIN(r->seconds, 1e6) * 1000, 1));
    if (!r->patient) {
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES);
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)SLOW_SECONDS);
    }
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, (long)(r->into_bytes > 65536 ? RECEIVE_BYTES : 65536));
    curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->text);
    if (is_near(r->url)) curl_easy_setopt(e, CURLOPT_PROXY, "");
    const char *authorities = clt_env(CLT_ENV_AWS_CA_BUNDLE);
    if (authorities && *authorities) curl_easy_setopt(e, CURLOPT_CAINFO, authorities);
    char *agent = clt_format("cltrain/%s", clt_version());
    curl_easy_setopt(e, CURLOPT_USERAGENT, agent);
    clt_free(agent);
}

static bool set_request(transfer *t) {
    CURL *e = t->easy;
    const clt_http_request *r = t->request;
    curl_easy_setopt(e, CURLOPT_URL, r->url);
    curl_easy_setopt(e, CURLOPT_PRIVATE, t);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, get_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, get_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
#if LIBCURL_VERSION_NUM >= 0x075000
    curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, before_sending);
    curl_easy_setopt(e, CURLOPT_PREREQDATA, t);
#endif
    bool ok = true;
    if (!strcmp(r->method, "HEAD")) {
        curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    } else if (!strcmp(r->method, "PUT") || !strcmp(r->method, "POST")) {
        curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, r->method);
        curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->body_bytes);
        curl_easy_setopt(e, CURLOPT_READFUNCTION, send_body);
        curl_easy_setopt(e, CURLOPT_READDATA, t);
        curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, seek_body);
        curl_easy_setopt(e, CURLOPT_SEEKDATA, t);
        curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, (long)(r->body_bytes > 65536 ? SEND_BYTES : 65536));
        /* Not signed, so it may be there or not. */
        ok = add_header(t, r->ask_first ? "Expect: 100-continue" : "Expect:");
    } else if (strcmp(r->method, "GET")) {
        curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, r->method);
    }
    for (size_t i = 0; i < r->n_headers && ok; i++) ok = add_header(t, r->headers[i]);
    if (ok) ok = curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->headers) == CURLE_OK;
    return ok;
}

/* --- the end of a request --- */

static int connect_error(CURL *easy) {
    long e = 0;
    curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &e);
    return e == ECONNREFUSED || e == 0 ? ECONNREFUSED : e == ETIMEDOUT ? ETIMEDOUT : EHOSTUNREACH;
}

static int error_of(const transfer *t, CURLcode code) {
    if (t->error) return t->error;
    long e = 0;
    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_OPERATION_TIMEDOUT:
        return ETIMEDOUT;
    case CURLE_COULDNT_CONNECT:
        return connect_error(t->easy);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_INTERFACE_FAILED:
        return EHOSTUNREACH;
    case CURLE_SSL_CONNECT_ERROR: /* also a connection that breaks during the handshake */
        curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &e);
        return e == ECONNRESET || e == EPIPE ? ECONNRESET : EPROTO;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return EPROTO;
    case CURLE_URL_MALFORMAT:
        return EINVAL;
    case CURLE_OUT_OF_MEMORY:
        return ENOMEM;
    default:
        return ECONNRESET;
    }
}

static void unlink_transfer(transfer **list, transfer *t) {
    while (*list && *list != t) list = &(*list)->next;
    if (*list) *list = t->next;
}

/* Lock held. */
static void finish(transfer *t, int error) {
    unlink_transfer(&http.active, t);
    t->error = error;
    t->done = true;
    pthread_cond_broadcast(&http.finished);
}

/* In the thread: what is counted and said about a request that libcurl has ended. */
static int end_request(transfer *t, CURLcode code) {
    curl_off_t up = 0, down = 0;
    long fresh = 0;
    int e = error_of(t, code);
    curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &up);
    curl_easy_getinfo(t->easy, CURLINFO_SIZE_DOWNLOAD_T, &down);
    curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &fresh);
    totals.up += (unsigned long long)up;
    totals.down += (unsigned long long)down;
    totals.connections += (unsigned long long)fresh;
    t->out->resent = t->sendings > 1;
    if (e) snprintf(t->out->error, sizeof t->out->error, "%s", *t->text ? t->text : curl_easy_strerror(code));
    for (char *s = t->out->error; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127) *s = '?';
    return e;
}

/* --- the thread --- */

/* Takes over new requests and ends cancelled ones. Lock held. */
static void take_over(CURLM *multi) {
    while (http.queue) {
        transfer *t = http.queue;
        http.queue = t->next;
        t->next = http.active;
        http.active = t;
        if (!t->cancelled && curl_multi_add_handle(multi, t->easy) != CURLM_OK) finish(t, ENOMEM);
    }
    for (transfer *t = http.active, *next; t; t = next) {
        next = t->next;
        if (!t->cancelled && !http.stop) continue;
        curl_multi_remove_handle(multi, t->easy);
        snprintf(t->out->error, sizeof t->out->error, "cancelled");
        finish(t, ECANCELED);
    }
}

static void collect(CURLM *multi) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(multi, &left));) {
        if (m->msg != CURLMSG_DONE) continue;
        transfer *t;
        CURL *easy = m->easy_handle;
        CURLcode code = m->data.result;
        curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&t);
        int e = end_request(t, code);
        curl_multi_remove_handle(multi, easy);
        pthread_mutex_lock(&http.lock);
        finish(t, e);
        pthread_mutex_unlock(&http.lock);
    }
}

static void *serve(void *arg) {
    CURLM *multi = arg;
    clt_context_enter(NULL); /* it outlives the context of the first request */
    for (int running;;) {
        pthread_mutex_lock(&http.lock);
        take_over(multi);
        bool stop = http.stop;
        pthread_mutex_unlock(&http.lock);
        if (stop) return NULL;
        curl_multi_perform(multi, &running);
        collect(multi);
        curl_multi_poll(multi, NULL, 0, 1000, NULL);
    }
}

static void before_fork(void) {
    pthread_mutex_lock(&http.lock);
}
static void after_fork(void) {
    pthread_mutex_unlock(&http.lock);
}
/* The child has neither the thread nor its callers. It leaves the parent's connections alone. */
static void in_child(void) {
    http.running = false;
    http.multi = NULL;
    http.queue = http.active = NULL;
    pthread_mutex_init(&http.lock, NULL);
    pthread_cond_init(&http.finished, NULL);
}

static void stop_thread(bool for_ever) {
    pthread_mutex_lock(&http.lock);
    http.ended |= for_ever;
    bool running = http.running && !http.stop;
    if (running) {
        http.stop = true;
        curl_multi_wakeup(http.multi);
    }
    pthread_mutex_unlock(&http.lock);
    if (!running) return;
    pthread_join(http.thread, NULL);
    pthread_mutex_lock(&http.lock);
    curl_multi_cleanup(http.multi);
    http.multi = NULL;
    http.running = http.stop = false;
    pthread_cond_broadcast(&http.finished);
    pthread_mutex_unlock(&http.lock);
}

void clt_http_cancel_all(void) {
    stop_thread(false);
}

static void at_exit(void) {
    stop_thread(true);
}

static void begin_process(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    pthread_atfork(before_fork, after_fork, in_child);
    atexit(at_exit); /* after libcurl's and OpenSSL's own, so it runs before them */
}

/* 0, or an errno value. Lock held. */
static int start_thread(void) {
    while (http.stop) pthread_cond_wait(&http.finished, &http.lock);
    if (http.ended) return ECANCELED;
    if (http.running) return 0;
    http.multi = curl_multi_init();
    if (!http.multi) return ENOMEM;
    curl_multi_setopt(http.multi, CURLMOPT_MAXCONNECTS, (long)MAX_CONNECTIONS);
    curl_multi_setopt(http.multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)MAX_CONNECTIONS);
    int e = clt_thread_start(&http.thread, serve, http.multi);
    if (e) {
        curl_multi_cleanup(http.multi);
        http.multi = NULL;
    }
    http.running = !e;
    return e;
}

/* --- callers --- */

/* Lock held. */
static void wait_for(transfer *t) {
    while (!t->done) {
        if (!clt_io_stop_heeded()) {
            pthread_cond_wait(&http.finished, &http.lock);
            continue;
        }
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += (long)(look_seconds * 1e9);
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&http.finished, &http.lock, &at);
        if (t->done || t->cancelled || !clt_io_stop_requested()) continue;
        t->cancelled = true;
        curl_multi_wakeup(http.multi);
    }
}

static int submit(transfer *t) {
    pthread_mutex_lock(&http.lock);
    int e = start_thread();
    if (!e) {
        t->next = http.queue;
        http.queue = t;
        curl_multi_wakeup(http.multi);
        wait_for(t);
        e = t->error;
    }
    pthread_mutex_unlock(&http.lock);
    return e;
}

int clt_http_perform(const clt_http_request *r, clt_http_response *out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_process);
    const double begun = clt_now();
    transfer t = {.request = r, .out = out};
    *out = (clt_http_response){.content_length = UINT64_MAX};
    t.easy = curl_easy_init();
    int e = t.easy ? 0 : ENOMEM;
    if (!e) {
        set_transport(&t);
        e = set_request(&t) ? submit(&t) : ENOMEM;
        totals.requests++;
    }
    if (t.easy) curl_easy_cleanup(t.easy);
    curl_slist_free_all(t.headers);
    out->seconds = clt_now() - begun;
    return e;
}
