/* clt_group_check_same: ranks that differ are refused on all ranks, with one message about the lowest rank
 * and its first line that differs. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_context.h"
#include "test/thread_group.h"

typedef struct {
    const char *text[3];
    const char *message; /* part of it; NULL: the ranks are taken as equal */
} problem;

typedef struct {
    const problem *p;
    int printed[3];
    bool right[3];
} outcome;

static void count(void *ctx, clt_log_level level, const char *text) {
    (void)level;
    (void)text;
    ++*(int *)ctx;
}

static void check(clt_group *g, void *ctx) {
    outcome *o = ctx;
    const int rank = clt_group_rank(g);
    const clt_context_params quiet = {.log = {count, &o->printed[rank]}, .level = CLT_LOG_ERROR};
    clt_context *c = clt_context_create(&quiet);
    clt_context_enter(c);
    const clt_status st = clt_group_check_same(g, "configuration", o->p->text[rank], "make them equal");
    o->right[rank] = o->p->message
                         ? st == CLT_BAD_CONFIG && strstr(clt_last_error(), o->p->message) != NULL &&
                               strstr(clt_last_error(), "; make them equal") != NULL
                         : st == CLT_OK;
    if (!o->right[rank]) fprintf(stderr, "rank %d: status %d, %s\n", rank, (int)st, clt_last_error());
    clt_context_enter(NULL);
    clt_context_destroy(c);
}

static void the_first_difference_is_named(void **state) {
    (void)state;
    static const problem all[] = {
        {{"a: 1\nb: 2\n", "a: 1\nb: 2\n", "a: 1\nb: 2\n"}, NULL},
        {{"", "", ""}, NULL},
        {{"a: 1\nb: 2\n", "b: 2\na: 1\n", "a: 1\nb: 2"}, NULL},
        {{"a: 1\nb: 2\n", "a: 1\nb: 2\n", "a: 1\nb: 3\n"}, "rank 2's configuration (host "},
        {{"a: 1\nb: 2\n", "a: 1\nb: 2\n", "a: 1\nb: 3\n"}, ") differs from rank 0's (host "},
        {{"a: 1\nb: 2\n", "a: 1\nb: 2\n", "a: 1\nb: 3\n"}, "): b is 3, not 2; "},
        {{"a: 1\nb: 2\n", "a: 1\nb: 4\n", "a: 7\nb: 3\n"}, "rank 1's "},
        {{"a: 1\nb: 2\n", "a: 5\nb: 4\n", "a: 1\nb: 2\n"}, ": a is 5, not 1; "},
        {{"a: 1\nb: 2\n", "a: 1\n", "a: 1\nb: 2\n"}, ": b is not set, not 2; "},
        {{"a: 1\n", "a: 1\n", "a: 1\nbb: x y: z\n"}, "): bb is x y: z, there it is not set; "},
        {{"a: 12\n", "a: 1\n", "a: 12\n"}, ": a is 1, not 12; "},
        {{"aa: 1\na: 2\n", "a: 2\naa: 1\n", "aa: 1\na: 1\n"}, "rank 2's configuration"},
        {{"a: 1\nb\n", "a: 1\nb\n", "a: 1\nb: \n"}, NULL}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        outcome o = {.p = &all[i]};
        tg_run(3, check, &o);
        for (int r = 0; r < 3; r++) {
            assert_true(o.right[r]);
            assert_int_equal(o.printed[r], all[i].message && r == 0);
        }
    }
}

/* What does not fit is cut, and still differs. */
static void long_lines_are_cut(void **state) {
    (void)state;
    char one[2000], other[2000];
    memset(one, 'x', sizeof one);
    memcpy(one + 900, ": ", 2);
    one[sizeof one - 1] = 0;
    memcpy(other, one, sizeof one);
    other[1990] = 'y';
    const problem p = {{one, one, other}, "xxx... is xxx"};
    outcome o = {.p = &p};
    tg_run(3, check, &o);
    for (int r = 0; r < 3; r++) assert_true(o.right[r]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_difference_is_named),
        cmocka_unit_test(long_lines_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
