/* Contexts: messages, environment and requests to stop of one user of the library do not reach another. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_base.h"
#include "runtime/base/clt_context.h"
#include "runtime/base/clt_signal.h"
#include "runtime/base/clt_thread.h"

/* What a context's sink got, one line behind the other. */
static void collect(void *ctx, clt_log_level level, const char *text) {
    clt_str *b = ctx;
    clt_str_addf(b, "%d:%s\n", (int)level, text);
}

static clt_context *create(clt_str *lines, bool environment) {
    const clt_context_params p = {.log = {collect, lines}, .level = CLT_LOG_INFO, .environment = environment};
    return clt_context_create(&p);
}

static void messages_stay_apart(void **state) {
    (void)state;
    clt_str one = {0}, two = {0};
    clt_context *a = create(&one, false), *b = create(&two, false);
    clt_context *before = clt_context_enter(a);
    clt_info("first");
    clt_debug("above its level");
    clt_context_enter(b);
    clt_warn("second");
    clt_log_set_level(CLT_LOG_ERROR);
    clt_info("above its level now");
    clt_context_enter(a);
    clt_error(CLT_FAIL, "third");
    clt_context_enter(before);
    assert_string_equal(one.s, "2:first\n0:third\n");
    assert_string_equal(two.s, "1:second\n");
    clt_context_destroy(a);
    clt_context_destroy(b);
    clt_str_free(&one);
    clt_str_free(&two);
}

static void environment_is_seen_where_allowed(void **state) {
    (void)state;
    clt_str lines = {0};
    setenv("CLTRAIN_DEVICE", "from outside", 1);
    clt_context *closed = create(&lines, false), *open = create(&lines, true);
    clt_context_set_env(open, CLT_ENV_CACHE_DIR, "/set");
    clt_context *before = clt_context_enter(closed);
    assert_null(clt_env(CLT_ENV_DEVICE));
    clt_context_set_env(closed, CLT_ENV_DEVICE, "set");
    assert_string_equal(clt_env(CLT_ENV_DEVICE), "set");
    clt_context_enter(open);
    assert_string_equal(clt_env(CLT_ENV_DEVICE), "from outside");
    assert_string_equal(clt_env(CLT_ENV_CACHE_DIR), "/set");
    clt_context_enter(before);
    assert_string_equal(clt_env(CLT_ENV_DEVICE), "from outside");
    unsetenv("CLTRAIN_DEVICE");
    clt_context_destroy(closed);
    clt_context_destroy(open);
}

static void stopping_one_stops_no_other(void **state) {
    (void)state;
    clt_str lines = {0};
    clt_context *a = create(&lines, false), *b = create(&lines, false);
    clt_context_ask_stop(a, SIGTERM);
    clt_context_ask_stop(a, SIGINT); /* the first one counts */
    clt_context *before = clt_context_enter(a);
    assert_int_equal(clt_signal_received(), SIGTERM);
    clt_context_enter(b);
    assert_int_equal(clt_signal_received(), 0);
    clt_signal_at(1); /* long ago */
    assert_int_equal(clt_signal_received(), CLT_SIGNAL_TIME);
    clt_context_enter(before);
    assert_int_equal(clt_signal_received(), 0);
    clt_context_destroy(a);
    clt_context_destroy(b);
}

static void *speak(void *arg) {
    clt_info("%s", (const char *)arg);
    return NULL;
}

static void speak_index(void *ctx, size_t index) {
    (void)ctx;
    clt_info("part %zu", index);
}

static void threads_inherit_their_context(void **state) {
    (void)state;
    clt_str lines = {0};
    clt_context *a = create(&lines, false), *before = clt_context_enter(a);
    pthread_t t;
    assert_int_equal(clt_thread_start(&t, speak, "from a thread"), 0);
    pthread_join(t, NULL);
    clt_parallel_for(8, 4, speak_index, NULL);
    clt_context_enter(before);
    assert_non_null(strstr(lines.s, "2:from a thread\n"));
    for (int i = 0; i < 8; i++) {
        char line[16];
        snprintf(line, sizeof line, "2:part %d\n", i);
        assert_non_null(strstr(lines.s, line));
    }
    clt_context_destroy(a);
    clt_str_free(&lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_stay_apart),
        cmocka_unit_test(environment_is_seen_where_allowed),
        cmocka_unit_test(stopping_one_stops_no_other),
        cmocka_unit_test(threads_inherit_their_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
