/* Files of a run that follow it to a store: which of two hosts' files a start takes, and what is copied. Two
 * folders stand for the host and the store. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/run/clt_follow.h"

static char *root, *local, *store;

static int set_up(void **state) {
    (void)state;
    root = clt_strdup("/tmp/clt_test_follow_XXXXXX");
    if (!mkdtemp(root)) return -1;
    local = clt_path_join(root, "local");
    store = clt_path_join(root, "store");
    return clt_io_mkdirs(local) == CLT_OK && clt_io_mkdirs(store) == CLT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    clt_status st = clt_io_remove_tree(root);
    clt_free(root);
    clt_free(local);
    clt_free(store);
    return st == CLT_OK ? 0 : -1;
}

static void write(const char *folder, const char *name, const char *text) {
    char *path = clt_path_join(folder, name);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(path);
}

/* text NULL: there is no such file. */
static void expect(const char *folder, const char *name, const char *text) {
    char *path = clt_path_join(folder, name), *have = NULL;
    if (!text) {
        assert_false(clt_io_is_file(path));
    } else {
        assert_int_equal(clt_io_read_all(path, 1 << 20, &have, NULL), CLT_OK);
        assert_string_equal(have, text);
    }
    clt_free(have);
    clt_free(path);
}

static void test_fetch(void **state) {
    (void)state;
    static const struct {
        const char *here, *there, *want, *aside;
    } cases[] = {
        {NULL, NULL, NULL, NULL},
        {NULL, "1\n2\n", "1\n2\n", NULL},
        {"1\n", "1\n2\n", "1\n2\n", NULL},                          /* another host went on */
        {"1\n2\n3\n", "1\n2\n", "1\n2\n3\n", NULL},                 /* this host ended before the last copy */
        {"1\n2\n3\n4\n", "1\n2\nb\n", "1\n2\nb\n", "1\n2\n3\n4\n"}, /* longer, and not what continued */
        {"a\n", "1\n2\n", "1\n2\n", "a\n"},                         /* another run of this name */
        {"a\n", NULL, NULL, "a\n"},
        {"", "1\n", "1\n", NULL},
        {"1\n", "", "1\n", NULL},
    };
    static const char *const names[] = {"metrics.jsonl"};
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        assert_int_equal(clt_io_remove_tree(local), CLT_OK);
        assert_int_equal(clt_io_remove_tree(store), CLT_OK);
        assert_int_equal(clt_io_mkdirs(store), CLT_OK);
        assert_int_equal(clt_io_mkdirs(local), CLT_OK);
        if (cases[i].here) write(local, names[0], cases[i].here);
        if (cases[i].there) write(store, names[0], cases[i].there);
        assert_int_equal(clt_follow_fetch(store, local, "run", names, 1), CLT_OK);
        expect(local, names[0], cases[i].want);
        expect(local, "metrics.jsonl.superseded.run", cases[i].aside);
        expect(store, names[0], cases[i].there);
    }
}

static void test_what_follows(void **state) {
    (void)state;
    const clt_follow_params p = {.local = local, .store = store, .seconds = 1000, .hint = "latest"};
    static const char *const others[] = {"run.lock", "latest", "x.tmp.1.2", "metrics.jsonl.superseded.run",
                                         ".write-test.run.0"};
    for (size_t i = 0; i < CLT_COUNT_OF(others); i++) write(local, others[i], "no");
    clt_follow *f = clt_follow_start(&p);
    write(local, "metrics.jsonl", "1\n");
    clt_follow_end(f, 10);
    expect(store, "metrics.jsonl", "1\n");
    for (size_t i = 0; i < CLT_COUNT_OF(others); i++) expect(store, others[i], NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fetch, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_follows, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
