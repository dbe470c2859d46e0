/* `cltrain serve`: completions, log-probabilities of a prompt as in test/golden/icl, and requests that are
 * malformed, too large, too slow or too many. */
#include <arpa/inet.h>
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
enum { LIMIT = 4096, SECONDS = 2, CONNECTIONS = 6 };

static pid_t server;
static int port;

/* --- the server --- */

static int begin(void **state) {
    (void)state;
    int out[2];
    assert_int_equal(pipe(out), 0);
    server = fork();
    if (server == 0) {
        char *program = realpath("build/cltrain", NULL), number[4][16];
        const int values[] = {0, LIMIT, SECONDS, CONNECTIONS};
        if (getenv("BUILD")) {
            char *path = clt_format("%s/cltrain", getenv("BUILD"));
            program = realpath(path, NULL);
        }
        for (int i = 0; i < 4; i++) snprintf(number[i], sizeof number[i], "%d", values[i]);
        dup2(out[1], 1);
        if (!program || chdir(GOLDEN) != 0) _exit(1);
        execl(program, "cltrain", "serve", "-q", "hf", "--tokenizer", "tokenizer", "--name", "mini", "--port",
              number[0], "--max-bytes", number[1], "--timeout", number[2], "--connections", number[3], NULL);
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

static int end(void **state) {
    (void)state;
    int status = 0;
    kill(server, SIGTERM);
    assert_int_equal(waitpid(server, &status, 0), server);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
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

/* Sends bytes as they are; returns the status code of the answer, 0 for none, and its body. */
static int exchange(const char *bytes, size_t n, clt_str *body) {
    char part[4096];
    clt_str all = {0};
    const int s = open_connection();
    ssize_t got;
    if (send(s, bytes, n, MSG_NOSIGNAL) < 0) got = 0;
    shutdown(s, SHUT_WR);
    while ((got = recv(s, part, sizeof part, 0)) > 0) clt_str_addn(&all, part, (size_t)got);
    close(s);
    const int code = all.len > 12 ? atoi(all.s + 9) : 0;
    const char *at = all.s ? strstr(all.s, "\r\n\r\n") : NULL;
    if (body) clt_str_add(body, at ? at + 4 : "");
    clt_str_free(&all);
    return code;
}

static int ask(const char *method, const char *path, const char *text, clt_str *body) {
    char *all = clt_format("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                           method, path, strlen(text), text);
    const int code = exchange(all, strlen(all), body);
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
                                      "{\"prompt\": \"a\\u0000b\"}"};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_str body = {0};
        assert_int_equal(ask("POST", "/v1/completions", bad[i], &body), 400);
        assert_non_null(strstr(body.s, "\"error\":{\"message\":\""));
        clt_str_free(&body);
    }
    assert_int_equal(ask("GET", "/v1/completions", "", NULL), 405);
    assert_int_equal(ask("POST", "/health", "", NULL), 405);
    assert_int_equal(ask("GET", "/other", "", NULL), 404);
    assert_int_equal(ask("GET", "/health", "", NULL), 200);
    assert_int_equal(ask("GET", "/v1/models", "", NULL), 200);
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
    assert_int_equal(exchange(large.s, large.len, NULL), 0);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),    cmocka_unit_test(test_texts), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_transport), cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
