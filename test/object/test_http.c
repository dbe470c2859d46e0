/* HTTP over libcurl, against a server that is scripted byte by byte. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_context.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_signal.h"
#include "runtime/object/clt_http.h"
#include "test/fake_server.h"

#define OK(length, body) "HTTP/1.1 200 OK\r\nContent-Length: " #length "\r\n\r\n" body

static char into[1 << 20];

static int ask(fake_server *s, const char *method, const void *body, size_t bytes, clt_http_response *out) {
    char *url = clt_format("%s/a/../b", fake_url(s));
    const clt_http_request r = {
        .method = method, .url = url, .body = body, .body_bytes = bytes, .seconds = 10};
    int e = clt_http_perform(&r, out);
    clt_free(url);
    return e;
}

static int get(fake_server *s, size_t bytes, double seconds, clt_http_response *out) {
    const clt_http_request r = {
        .method = "GET", .url = fake_url(s), .into = into, .into_bytes = bytes, .seconds = seconds};
    memset(into, 0, sizeof into);
    return clt_http_perform(&r, out);
}

static void test_exchange(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: \"x\"\r\nx-amz-request-id: id 1\r\n"
                  "X-AMZ-Bucket-Region: eu-west-1\r\nLast-Modified: Fri, 24 May 2013 00:00:00 GMT\r\n"
                  "Date: Fri, 24 May 2013 00:00:01 GMT\r\nRetry-After: bad\x01value\r\n\r\nabc"},
        {.reply = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"},
        {.reply = "HTTP/1.1 307 Elsewhere\r\nLocation: /c\r\nContent-Length: 0\r\n\r\n"},
        {.reply = "HTTP/1.1 200 OK\r\nContent-Length: 12345678901\r\n\r\n"}, /* of HEAD */
        {.reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"},
        {.reply = "HTTP/1.1 204 No Content\r\n\r\n"},
    };
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    clt_http_response r;
    assert_int_equal(ask(s, "GET", NULL, 0, &r), 0);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.text, "abc");
    assert_string_equal(r.etag, "\"x\"");
    assert_string_equal(r.request_id, "id 1");
    assert_string_equal(r.region, "eu-west-1");
    assert_string_equal(r.retry_after, "");
    assert_int_equal(clt_http_date(r.modified), 1369353600);
    assert_int_equal(clt_http_date(r.date), 1369353601);
    assert_int_equal(r.content_length, 3);
    clt_http_response_free(&r);
    assert_non_null(strstr(fake_request(s, 0), "GET /a/../b HTTP/1.1\r\n")); /* as it was signed */
    assert_int_equal(ask(s, "POST", "body", 4, &r), 0);
    assert_int_equal(r.status, 404);
    assert_string_equal(r.text, "gone");
    clt_http_response_free(&r);
    const char *body;
    assert_int_equal(fake_body(s, 1, &body), 4);
    assert_memory_equal(body, "body", 4);
    assert_null(strstr(fake_request(s, 1), "Expect"));
    assert_null(strstr(fake_request(s, 1), "Content-Type"));
    assert_int_equal(ask(s, "PUT", "", 0, &r), 0);
    assert_int_equal(r.status, 307);
    assert_int_equal(ask(s, "HEAD", NULL, 0, &r), 0);
    assert_true(r.content_length == 12345678901u);
    assert_int_equal(get(s, 3, 10, &r), 0);
    assert_int_equal(r.bytes, 3);
    assert_memory_equal(into, "abc", 4);
    assert_int_equal(ask(s, "DELETE", NULL, 0, &r), 0);
    assert_int_equal(r.status, 204);
    clt_http_response_free(&r);
    assert_int_equal(fake_connections(s), 1); /* kept */
    fake_stop(s);
}

static void test_faults(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = OK(5, "abcde"), .cut = 41}, /* three bytes of five */
        {.reply = OK(5, "abc"), .ends = true},
        {.reply = OK(5, "abcde")}, /* more than there is room for */
        {.reply = NULL},
        {.reply = "this is no HTTP\r\n\r\n", .ends = true},
        {.reply = OK(1, "a"), .delay = 1.5},
    };
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    clt_http_response r;
    assert_int_equal(get(s, 5, 10, &r), ECONNRESET);
    assert_int_equal(r.bytes, 3);
    assert_memory_equal(into, "abc", 4);
    assert_int_equal(get(s, 5, 10, &r), ECONNRESET);
    assert_int_equal(r.bytes, 3);
    assert_true(*r.error);
    assert_int_equal(get(s, 4, 10, &r), EMSGSIZE);
    assert_memory_equal(into, "abcd", 5);
    assert_int_equal(get(s, 4, 10, &r), ECONNRESET);
    assert_int_equal(r.status, 0);
    assert_int_equal(get(s, 4, 10, &r), EPROTO);
    double begun = clt_now();
    assert_int_equal(get(s, 4, 0.3, &r), ETIMEDOUT);
    assert_true(clt_now() - begun < 1);
    clt_http_response_free(&r);
    fake_stop(s);
    const clt_http_request nobody = {.method = "GET", .url = "http://127.0.0.1:1/", .seconds = 10},
                           nowhere = {.method = "GET", .url = "http://name.invalid/", .seconds = 10},
                           file = {.method = "GET", .url = "file:///etc/passwd", .seconds = 10};
    assert_int_equal(clt_http_perform(&nobody, &r), ECONNREFUSED);
    assert_int_equal(clt_http_perform(&nowhere, &r), EHOSTUNREACH);
    assert_int_equal(clt_http_perform(&file, &r), EPROTO);
}

/* A server that refuses with its body unread resets the connection: asking first gets the refusal. */
static void test_ask_first(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", .early = true},
        {.reply = OK(0, "")},
    };
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    clt_http_response r;
    size_t bytes = 32 << 20;
    char *body = calloc(1, bytes);
    clt_http_request q = {
        .method = "PUT", .url = fake_url(s), .body = body, .body_bytes = bytes, .seconds = 10};
    q.ask_first = true;
    assert_int_equal(clt_http_perform(&q, &r), 0);
    assert_int_equal(r.status, 403);
    assert_int_equal(clt_http_perform(&q, &r), 0);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(fake_request(s, 1), "Expect: 100-continue"));
    const char *got;
    assert_int_equal(fake_body(s, 1, &got), bytes);
    free(body);
    clt_http_response_free(&r);
    fake_stop(s);
}

static void *get_slowly(void *arg) {
    const clt_http_request r = {.method = "GET", .url = fake_url(arg), .seconds = 20};
    clt_http_response out;
    int e = clt_http_perform(&r, &out);
    clt_http_response_free(&out);
    return (void *)(intptr_t)e;
}

static void test_cancel(void **state) {
    (void)state;
    const fake_step steps[] = {
        {.reply = OK(0, ""), .delay = 2}, {.reply = OK(0, ""), .delay = 2}, {.reply = OK(0, "")}};
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    pthread_t t;
    void *e;
    assert_int_equal(pthread_create(&t, NULL, get_slowly, s), 0);
    while (fake_requests(s) < 1) clt_sleep(0.01);
    clt_http_cancel_all();
    pthread_join(t, &e);
    assert_int_equal((intptr_t)e, ECANCELED);
    /* A request to stop ends only the requests of a thread that heeds it. */
    clt_context *c = clt_context_create(&(clt_context_params){0}), *before = clt_context_enter(c);
    clt_http_response r;
    clt_context_ask_stop(c, CLT_SIGNAL_CALLER);
    double begun = clt_now();
    assert_false(clt_io_heed_stop(true));
    assert_int_equal(get(s, 4, 10, &r), ECANCELED);
    assert_true(clt_now() - begun < 1.5);
    assert_true(clt_io_heed_stop(false));
    assert_int_equal(get(s, 4, 10, &r), 0);
    clt_context_enter(before);
    clt_context_destroy(c);
    fake_stop(s);
}

/* The thread does not exist in a child, and the child must not use the parent's connections. */
static void test_fork(void **state) {
    (void)state;
    const fake_step steps[] = {{.reply = OK(1, "a")}, {.reply = OK(1, "b")}, {.reply = OK(1, "c")}};
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    clt_http_response r;
    int status;
    assert_int_equal(get(s, 1, 10, &r), 0);
    pid_t child = fork();
    if (!child) _exit(get(s, 1, 10, &r) == 0 && *into == 'b' ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(get(s, 1, 10, &r), 0);
    assert_int_equal(*into, 'c');
    assert_int_equal(fake_connections(s), 2);
    fake_stop(s);
}

/* 8 threads at once, each byte where it belongs. */
static void *get_many(void *arg) {
    char got[8];
    for (int i = 0; i < 20; i++) {
        const clt_http_request r = {
            .method = "GET", .url = fake_url(arg), .into = got, .into_bytes = sizeof got, .seconds = 20};
        clt_http_response out;
        if (clt_http_perform(&r, &out) || out.bytes != 8 || memcmp(got, "abcdefgh", 8)) return arg;
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    fake_step steps[160];
    for (size_t i = 0; i < CLT_COUNT_OF(steps); i++) steps[i] = (fake_step){.reply = OK(8, "abcdefgh")};
    fake_server *s = fake_start(steps, CLT_COUNT_OF(steps));
    pthread_t t[8];
    for (int i = 0; i < 8; i++) assert_int_equal(pthread_create(&t[i], NULL, get_many, s), 0);
    for (int i = 0; i < 8; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
    assert_true(fake_connections(s) <= 8);
    fake_stop(s);
}

/* --- TLS: a server of OpenSSL, whose certificate only a bundle that is named knows --- */

static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &size)) abort();
    close(fd);
    return ntohs(a.sin_port);
}

static pid_t start_tls(const char *dir, int port) {
    char *make =
             clt_format("cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 "
                        "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 2>/dev/null",
                        dir),
         *serve = clt_format("cd %s && exec openssl s_server -quiet -www -accept 127.0.0.1:%d -cert cert "
                             "-key key >/dev/null 2>&1",
                             dir, port);
    pid_t pid = -1;
    if (system(make) == 0 && (pid = fork()) == 0) {
        execl("/bin/sh", "sh", "-c", serve, (char *)NULL);
        _exit(127);
    }
    clt_free(make);
    clt_free(serve);
    return pid;
}

static int get_url(const char *format, int port) {
    char *url = clt_format(format, port);
    const clt_http_request r = {.method = "GET", .url = url, .seconds = 10};
    clt_http_response out;
    int e = clt_http_perform(&r, &out);
    for (int i = 0; i < 100 && e == ECONNREFUSED; i++) { /* it begins to listen */
        clt_sleep(0.05);
        e = clt_http_perform(&r, &out);
    }
    clt_http_response_free(&out);
    clt_free(url);
    return e;
}

static void test_tls(void **state) {
    (void)state;
    char dir[] = "/tmp/clt_tls_XXXXXX", *before = getenv("AWS_CA_BUNDLE");
    before = before ? clt_strdup(before) : NULL;
    assert_non_null(mkdtemp(dir));
    const int port = free_port();
    pid_t pid = start_tls(dir, port);
    if (pid < 0) {
        puts("skip: openssl is not installed, TLS was not tested");
        return;
    }
    char *cert = clt_path_join(dir, "cert");
    unsetenv("AWS_CA_BUNDLE");
    assert_int_equal(get_url("https://127.0.0.1:%d/", port), EPROTO);
    setenv("AWS_CA_BUNDLE", cert, 1);
    assert_int_equal(get_url("https://127.0.0.1:%d/", port), 0);
    assert_int_equal(get_url("https://localhost:%d/", port), EPROTO); /* not in the certificate */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    unsetenv("AWS_CA_BUNDLE");
    if (before) setenv("AWS_CA_BUNDLE", before, 1);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(cert);
    clt_free(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange), cmocka_unit_test(test_faults), cmocka_unit_test(test_ask_first),
        cmocka_unit_test(test_cancel),   cmocka_unit_test(test_fork),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
