/* `cltrain serve`: completions, log-probabilities of a prompt as in test/golden/icl, and requests that are
 * malformed, too large, too slow or too many.
 * Runs alone: requests have time limits. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "test/golden_util.h"
#include "test/run_util.h"

#define GOLDEN "test/golden/icl"
enum { LIMIT = 4096, SECONDS = 2, CONNECTIONS = 8, ENTRIES = 30000 };

static pid_t server;
static int port;

/* --- the server --- */

static int begin(void **state) {
    (void)state;
    int out[2];
    assert_int_equal(pipe(out), 0);
    server = fork();
    if (server == 0) {
        char *program = realpath("build/cltrain", NULL), number[5][16];
        const int values[] = {0, LIMIT, SECONDS, CONNECTIONS, ENTRIES};
        if (getenv("BUILD")) {
            char *path = clt_format("%s/cltrain", getenv("BUILD"));
            program = realpath(path, NULL);
        }
        for (int i = 0; i < 5; i++) snprintf(number[i], sizeof number[i], "%d", values[i]);
        dup2(out[1], 1);
        if (!program || chdir(GOLDEN) != 0) _exit(1);
        execl(program, "cltrain", "serve", "-q", "hf", "--tokenizer", "tokenizer", "--name", "mini", "--port",
              number[0], "--max-bytes", number[1], "--timeout", number[2], "--connections", number[3],
              "--max-entries", number[4], NULL);
        _exit(1);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    char line[256];
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    json_t *o;
    assert_int_equal(clt_json_parse(line, strlen(line), 4, "serve", &o), CLT_OK);
    assert_string_equal(golden_str(o, "host"), "127.0.0.1");
    port = (int)golden_int(o, "port");
    json_decref(o);
    return 0;
}

/* --- requests --- */

static int open_connection(void) {
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(s, (const struct sockaddr *)&at, sizeof at), 0);
    return s;
}

/* The answer until the server closes the connection: its status code, 0 for none, and its body. */
static int receive(int s, clt_str *body) {
    char part[4096];
    clt_str all = {0};
    ssize_t got;
    while ((got = recv(s, part, sizeof part, 0)) > 0) clt_str_addn(&all, part, (size_t)got);
    close(s);
    const int code = all.len > 12 ? atoi(all.s + 9) : 0;
    const char *at = all.s ? strstr(all.s, "\r\n\r\n") : NULL;
    if (body) clt_str_add(body, at ? at + 4 : "");
    clt_str_free(&all);
    return code;
}

/* Sends bytes as they are. */
static int exchange(const char *bytes, size_t n, clt_str *body) {
    const int s = open_connection();
    (void)!send(s, bytes, n, MSG_NOSIGNAL);
    shutdown(s, SHUT_WR);
    return receive(s, body);
}

static int ask(const char *method, const char *path, const char *text, clt_str *body) {
    char *all = clt_format("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                           method, path, strlen(text), text);
    int code = exchange(all, strlen(all), body);
    /* Connections of the test before may not be closed yet, and the server has few. */
    for (int i = 0; i < 40 && code == 0; i++) {
        usleep(25000);
        code = exchange(all, strlen(all), body);
    }
    clt_free(all);
    return code;
}

/* The answer of a completion that is valid. */
static json_t *complete(const char *request) {
    clt_str body = {0};
    json_t *o;
    const int code = ask("POST", "/v1/completions", request, &body);
    if (code != 200) fail_msg("%d: %s", code, body.s);
    assert_int_equal(clt_json_parse(body.s, body.len, 16, "answer", &o), CLT_OK);
    clt_str_free(&body);
    return o;
}

static json_t *choice_of(json_t *answer, size_t i) {
    return json_array_get(json_object_get(answer, "choices"), i);
}

/* --- answers --- */

/* Sum of the continuation's log-probabilities, and whether each of its tokens is the most likely one, as
 * evaluation programs compute them: the last token is the one that was generated. */
static double score(json_t *choice, size_t first, bool *greedy) {
    json_t *l = json_object_get(choice, "logprobs"), *values = json_object_get(l, "token_logprobs");
    double sum = 0;
    *greedy = true;
    for (size_t i = first; i + 1 < json_array_size(values); i++) {
        const char *token = json_string_value(json_array_get(json_object_get(l, "tokens"), i));
        json_t *top = json_array_get(json_object_get(l, "top_logprobs"), i);
        assert_int_equal(json_object_size(top), 1);
        sum += json_real_value(json_array_get(values, i));
        *greedy = *greedy && json_object_get(top, token);
    }
    return sum;
}

static void test_scores(void **state) {
    (void)state;
    json_t *golden = golden_load(GOLDEN "/items.json"), *item;
    json_t *items = json_object_get(
        json_object_get(json_object_get(golden, "evaluations"), "lm_strings/3-shot"), "items");
    size_t i;
    json_array_foreach(items, i, item) {
        bool greedy;
        char *ids = json_dumps(json_object_get(item, "input_ids"), JSON_COMPACT);
        char *request = clt_format("{\"model\": \"mini\", \"prompt\": [%s], \"temperature\": 0, "
                                   "\"max_tokens\": 1, \"logprobs\": 1, \"seed\": 1234, \"echo\": true}",
                                   ids);
        json_t *o = complete(request);
        const size_t first =
            (size_t)json_integer_value(json_array_get(json_object_get(item, "continuation"), 0));
        const double got = score(choice_of(o, 0), first, &greedy);
        assert_true(fabs(got - json_number_value(json_object_get(item, "logprob"))) < 2e-5);
        assert_int_equal(greedy, json_is_true(json_object_get(item, "greedy")));
        json_decref(o);
        clt_free(request);
        clt_free(ids);
    }
    json_decref(golden);
}

static void check_text(const char *request, size_t i, const char *text, const char *reason) {
    json_t *o = complete(request), *c = choice_of(o, i);
    assert_string_equal(golden_str(c, "text"), text);
    assert_string_equal(golden_str(c, "finish_reason"), reason);
    json_decref(o);
}

static void test_texts(void **state) {
    (void)state;
    check_text("{\"prompt\": \"the fox is\", \"temperature\": 0, \"max_tokens\": 3}", 0, " big\n\n\n",
               "length");
    check_text("{\"prompt\": [\"the fox is\", \"the door is\"], \"temperature\": 0, \"stop\": \"\\n\"}", 1,
               " tiny", "stop");
    check_text("{\"prompt\": \"the fox is\", \"temperature\": 0, \"stop\": [\"x\", \"ig\"]}", 0, " b",
               "stop");
    check_text("{\"prompt\": \"the fox\", \"max_tokens\": 0, \"echo\": true}", 0, "the fox", "length");
    json_t *a = complete("{\"prompt\": \"the\", \"seed\": 5, \"max_tokens\": 9}"),
           *b = complete("{\"prompt\": \"the\", \"seed\": 5, \"max_tokens\": 9}");
    assert_string_equal(golden_str(choice_of(a, 0), "text"), golden_str(choice_of(b, 0), "text"));
    json_decref(a);
    json_decref(b);
}

/* The place of a character of a text. */
static const char *at_character(const char *s, json_int_t n) {
    for (; n > 0 && *s; n--)
        for (s++; ((unsigned char)*s & 0xc0) == 0x80;) s++;
    return s;
}

/* Each token stands in the text at its offset, in characters; of a character of several tokens the later ones
 * stand at it, too. */
static void test_offsets(void **state) {
    (void)state;
    json_t *o = complete("{\"prompt\": \"the f\u00f6x is\", \"temperature\": 0, \"max_tokens\": 3, "
                         "\"logprobs\": 0, \"echo\": true}");
    json_t *c = choice_of(o, 0), *l = json_object_get(c, "logprobs"), *token;
    size_t i, pieces = 0;
    json_array_foreach(json_object_get(l, "tokens"), i, token) {
        const char *text = json_string_value(token);
        const json_int_t at = json_integer_value(json_array_get(json_object_get(l, "text_offset"), i));
        const bool piece = strncmp(text, "bytes:", 6) == 0;
        pieces += piece;
        text = piece ? "\xc3\xb6" : text;
        assert_memory_equal(at_character(golden_str(c, "text"), at), text, strlen(text));
    }
    assert_int_equal(pieces, 2);
    json_decref(o);
}

/* --- refusals --- */

static void test_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "{}",
                                      "{\"prompt\": 5}",
                                      "{\"prompt\": []}",
                                      "{\"prompt\": [1, \"a\"]}",
                                      "{\"prompt\": [[1], \"a\"]}",
                                      "{\"prompt\": [-1]}",
                                      "{\"prompt\": [99999]}",
                                      "{\"prompt\": \"a\", \"n\": 2}",
                                      "{\"prompt\": \"a\", \"stream\": true}",
                                      "{\"prompt\": \"a\", \"max_tokens\": -1}",
                                      "{\"prompt\": \"a\", \"max_tokens\": 97}",
                                      "{\"prompt\": \"a\", \"temperature\": -1}",
                                      "{\"prompt\": \"a\", \"logprobs\": 21}",
                                      "{\"prompt\": \"a\", \"stop\": [\"\"]}",
                                      "{\"prompt\": \"a\", \"unknown\": 1}",
                                      "{\"prompt\": \"\xff\"}",
                                      "{\"prompt\": \"a\\u0000b\"}",
                                      "{\"prompt\": 1e999}",
                                      "{\"prompt\": \"a\", \"max_tokens\": 99999999999999999999}",
                                      "{\"prompt\": \"a\", \"best_of\": 2}",
                                      "{\"prompt\": \"a\", \"suffix\": \"b\"}",
                                      "{\"prompt\": [[[[[[[[[[1]]]]]]]]]]}"};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_str body = {0};
        assert_int_equal(ask("POST", "/v1/completions", bad[i], &body), 400);
        assert_non_null(strstr(body.s, "\"error\":{\"message\":\""));
        clt_str_free(&body);
    }
    assert_int_equal(ask("GET", "/v1/completions", "", NULL), 405);
    assert_int_equal(ask("OPTIONS", "/v1/completions", "", NULL), 405);
    assert_int_equal(ask("POST", "/health", "", NULL), 405);
    assert_int_equal(ask("HEAD", "/health", "", NULL), 200);
    assert_int_equal(ask("GET", "/other", "", NULL), 404);
    assert_int_equal(ask("GET", "/health", "", NULL), 200);
    assert_int_equal(ask("GET", "/v1/models", "", NULL), 200);
}

/* Sends all, and closes the connection when the first answer is complete. */
static int ask_raw(const char *text) {
    const int s = open_connection();
    char answer[4096];
    size_t n = 0;
    assert_int_equal(send(s, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    for (ssize_t got; (got = recv(s, answer + n, sizeof answer - 1 - n, 0)) > 0;) {
        n += (size_t)got;
        answer[n] = 0;
        if (strstr(answer, "\r\n\r\n")) break;
    }
    close(s);
    return n > 12 ? atoi(answer + 9) : 0;
}

static void test_transport(void **state) {
    (void)state;
    static const char *const raw[] = {
        "GARBAGE\r\n\r\n", "\r\n\r\n", "POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
    for (size_t i = 0; i < CLT_COUNT_OF(raw); i++) {
        const int code = exchange(raw[i], strlen(raw[i]), NULL);
        assert_true(code == 0 || code == 400);
    }
    clt_str large = {0};
    for (int i = 0; i < LIMIT; i++) clt_str_add(&large, " ");
    clt_str_add(&large, "{}");
    assert_int_equal(ask("POST", "/v1/completions", large.s, NULL), 413);
    clt_str_free(&large);
    clt_str_add(&large, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 8; i++) clt_str_addf(&large, "400\r\n%1024s\r\n", "");
    assert_int_equal(exchange(large.s, large.len, NULL), 0); /* it does not end */
    clt_str_add(&large, "0\r\n\r\n");
    assert_int_equal(ask_raw(large.s), 413);
    clt_str_free(&large);
    assert_int_equal(ask("GET", "/health", "", NULL), 200);
}

/* Connections that send nothing are closed in time, and meanwhile no more than the limit are served. */
static void test_idle(void **state) {
    (void)state;
    static const char begun[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    int idle[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        idle[i] = open_connection();
        assert_true(send(idle[i], begun, strlen(begun), MSG_NOSIGNAL) > 0);
    }
    const double start = clt_now();
    for (int i = 0; i < CONNECTIONS; i++) {
        char byte;
        while (recv(idle[i], &byte, 1, 0) > 0) continue;
        close(idle[i]);
    }
    assert_true(clt_now() - start < 4 * SECONDS);
    assert_int_equal(ask("GET", "/health", "", NULL), 200);
}

/* Whether the server has closed the connection, perhaps with an answer. */
static bool has_ended(int s) {
    char byte;
    return recv(s, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

/* Clients that send their headers byte by byte: each is ended in time, and others are answered meanwhile. */
static void test_slow(void **state) {
    (void)state;
    int slow[CONNECTIONS / 2], left = CONNECTIONS / 2;
    for (int i = 0; i < left; i++) slow[i] = open_connection();
    const double start = clt_now();
    for (int turn = 0; left > 0; turn++) {
        assert_true(clt_now() - start < 3 * SECONDS);
        for (int i = 0; i < left; i++) {
            if (send(slow[i], "G", 1, MSG_NOSIGNAL) == 1 && !has_ended(slow[i])) continue;
            close(slow[i]);
            slow[i] = slow[--left];
        }
        if (turn % 10 == 0) assert_int_equal(ask("GET", "/health", "", NULL), 200);
        usleep(50000);
    }
    assert_true(clt_now() - start > SECONDS);
}

/* Slow clients on all connections: one gives way before the time of all is over. */
static void test_full(void **state) {
    (void)state;
    int slow[CONNECTIONS], ended = 0;
    for (int i = 0; i < CONNECTIONS; i++) slow[i] = open_connection();
    usleep(1000000);
    assert_int_equal(ask("GET", "/health", "", NULL), 200);
    for (int i = 0; i < CONNECTIONS; i++) {
        ended += has_ended(slow[i]);
        close(slow[i]);
    }
    assert_true(ended < CONNECTIONS);
}

static void test_many(void **state) {
    (void)state;
    enum { MANY = 500 };
    int s[MANY];
    for (int i = 0; i < MANY; i++) s[i] = open_connection();
    for (int i = 0; i < MANY; i++) close(s[i]);
    assert_int_equal(ask("GET", "/health", "", NULL), 200);
}

static void test_pipelined(void **state) {
    (void)state;
    enum { REQUESTS = 9 };
    clt_str all = {0}, rest = {0};
    for (int i = 0; i < REQUESTS; i++)
        clt_str_addf(&all, "GET /health HTTP/1.1\r\nHost: x\r\n%s\r\n",
                     i == REQUESTS - 1 ? "Connection: close\r\n" : "");
    const int s = open_connection();
    assert_int_equal(send(s, all.s, all.len, MSG_NOSIGNAL), all.len);
    assert_int_equal(receive(s, &rest), 200);
    int n = 1;
    for (const char *at = rest.s; (at = strstr(at, "HTTP/1.1 200")); at++) n++;
    assert_int_equal(n, REQUESTS);
    clt_str_free(&all);
    clt_str_free(&rest);
}

/* --- large responses, ends --- */

/* Opens a connection and sends a request for 90 tokens for each of n prompts. */
static int request_many(int n, int logprobs) {
    clt_str body = {0};
    assert_int_equal(ask("GET", "/health", "", NULL), 200); /* a connection is free */
    const int s = open_connection();
    for (int i = 0; i < n; i++) clt_str_addf(&body, "%s\"the fox\"", i ? ", " : "");
    char *all = clt_format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                           "Content-Length: %zu\r\n\r\n{\"prompt\": [%s], \"max_tokens\": 90, "
                           "\"logprobs\": %2d}",
                           body.len + 48, body.s, logprobs);
    assert_int_equal(send(s, all, strlen(all), MSG_NOSIGNAL), strlen(all));
    clt_free(all);
    clt_str_free(&body);
    return s;
}

/* A response that would be too large is refused before anything is computed. */
static void test_large_response(void **state) {
    (void)state;
    clt_str body = {0};
    assert_int_equal(receive(request_many(200, 20), &body), 400);
    assert_non_null(strstr(body.s, "378000 tokens and alternatives, at most 30000"));
    clt_str_free(&body);
}

/* The answer of a client that closes its socket is given up. */
static void test_gone(void **state) {
    (void)state;
    const struct linger at_once = {.l_onoff = 1};
    const int s = request_many(256, 0);
    usleep(200000);
    assert_int_equal(setsockopt(s, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close(s);
    const double start = clt_now();
    json_decref(complete("{\"prompt\": \"the\", \"max_tokens\": 1}"));
    assert_true(clt_now() - start < SECONDS / 2.0);
}

/* A signal during an answer, as the last test: the request is given up, and the server ends. */
static void test_stop(void **state) {
    (void)state;
    int status = 0;
    clt_str body = {0};
    const int s = request_many(256, 0);
    usleep(200000);
    kill(server, SIGTERM);
    assert_int_equal(receive(s, &body), 503);
    assert_non_null(strstr(body.s, "shutting down"));
    clt_str_free(&body);
    assert_int_equal(waitpid(server, &status, 0), server);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),         cmocka_unit_test(test_texts),
        cmocka_unit_test(test_offsets),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_transport),      cmocka_unit_test(test_idle),
        cmocka_unit_test(test_slow),           cmocka_unit_test(test_full),
        cmocka_unit_test(test_many),           cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_large_response), cmocka_unit_test(test_gone),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
