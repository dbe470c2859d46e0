/* Checkpoints written and read by several ranks (test/thread_group.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "test/ckpt_util.h"
#include "test/thread_group.h"

enum { MAX_RANKS = 5 };

/* --- one rank: without cmocka's asserts, which leave the thread by longjmp --- */

typedef struct {
    const char *dir;
    cu_state *state; /* the same on every rank, as in data-parallel training */
    int broken_rank; /* -1: none */
    bool snapshot;
    clt_status status[MAX_RANKS], locked[MAX_RANKS];
    char *newest[MAX_RANKS];
} job;

static clt_status broken_read(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    (void)ctx, (void)entry, (void)first;
    memset(dst, 0, count * sizeof *dst);
    return clt_error(CLT_FAIL, "this rank's device is broken");
}

static void save_and_look(clt_group *g, void *ctx) {
    job *j = ctx;
    int r = clt_group_rank(g);
    char id[CLT_RUN_ID_BYTES];
    clt_run_lock *lock = NULL;
    clt_ckpt_writer *w = NULL;
    clt_checkpoint_state numbers = cu_numbers(7);
    clt_ckpt_part part[CU_PARTS];
    memcpy(part, j->state->part, sizeof part);
    clt_error_quiet(true);
    j->locked[r] = clt_run_lock_take(g, j->dir, &lock);
    clt_status st = clt_run_id(g, id);
    clt_ckpt_writer_params p = cu_params(j->state, j->dir);
    p.group = g;
    p.run_id = id;
    p.threads = r % 3;
    p.snapshot = j->snapshot;
    p.overwrite = true;
    if (r == j->broken_rank)
        for (int i = 0; i < CU_PARTS; i++)
            part[i] = (clt_ckpt_part){.role = part[i].role, .read = broken_read};
    p.parts = part;
    if (st == CLT_OK) st = clt_ckpt_writer_create(&p, &w);
    if (st == CLT_OK) st = clt_ckpt_save(w, "ba7", &numbers);
    clt_ckpt_writer_destroy(w);
    j->status[r] = st;
    if (clt_ckpt_find_newest(g, j->dir, &j->newest[r]) != CLT_OK) j->newest[r] = NULL;
    clt_run_lock_release(lock);
    clt_error_quiet(false);
}

static void check(job *j, int ranks, clt_status want) {
    char *path = clt_path_join(j->dir, "ba7");
    tg_run(ranks, save_and_look, j);
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(j->locked[r], CLT_OK);
        assert_int_equal(j->status[r], want);
        assert_non_null(j->newest[r]);
        assert_string_equal(j->newest[r], path);
        clt_free(j->newest[r]);
    }
    clt_free(path);
}

static void test_ranks(void **state) {
    (void)state;
    char dir[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "ba7");
    cu_state s;
    clt_state_hash live, stored;
    cu_state_create(&s, true, 3);
    assert_int_equal(clt_ckpt_hash_parts(NULL, &s.table, s.part, CU_PARTS, &live), CLT_OK);
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        job j = {.dir = dir, .state = &s, .broken_rank = -1, .snapshot = ranks % 2};
        check(&j, ranks, CLT_OK);
        assert_int_equal(cu_check(path, &s), CLT_OK); /* read by one rank */
        clt_ckpt_reader *r;
        assert_int_equal(clt_ckpt_open(path, &r), CLT_OK);
        assert_int_equal(clt_ckpt_hash(r, &stored), CLT_OK);
        assert_memory_equal(&stored.weights, &live.weights, sizeof live.weights);
        assert_memory_equal(&stored.optimizer, &live.optimizer, sizeof live.optimizer);
        clt_ckpt_close(r);
        clt_strv names = {0}; /* a data file per rank */
        assert_int_equal(clt_io_list(path, &names), CLT_OK);
        assert_int_equal(names.n, ranks + 1);
        clt_strv_free(&names);
    }
    /* One rank fails: every rank gets its status, no new checkpoint exists, the old one is whole. */
    cu_state other;
    cu_state_create(&other, true, 4);
    for (int broken = 0; broken < 3; broken++) {
        job j = {.dir = dir, .state = &other, .broken_rank = broken};
        check(&j, 3, CLT_FAIL);
        assert_int_equal(cu_check(path, &s), CLT_OK);
        clt_strv names = {0};
        assert_int_equal(clt_io_list(dir, &names), CLT_OK);
        assert_int_equal(names.n, 3); /* ba7, latest, run.lock */
        clt_strv_free(&names);
    }
    cu_state_free(&other);
    cu_state_free(&s);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
}

/* More ranks than chunks: some write nothing. */
static void test_few_chunks(void **state) {
    (void)state;
    char dir[] = "/tmp/clt_ckpt_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "ba7");
    cu_state s;
    cu_state_create(&s, false, 3);
    s.table.n = 1; /* one tensor, three roles: three chunks */
    job j = {.dir = dir, .state = &s, .broken_rank = -1};
    check(&j, MAX_RANKS, CLT_OK);
    clt_ckpt_reader *r;
    float *w = clt_calloc(s.table.total, sizeof *w);
    assert_int_equal(clt_ckpt_open(path, &r), CLT_OK);
    assert_int_equal(clt_ckpt_verify(r), CLT_OK);
    assert_int_equal(clt_ckpt_load(r, &s.table, &(clt_ckpt_part){.role = "exp_avg", .host = w}, 1, NULL),
                     CLT_OK);
    assert_memory_equal(w, s.host[1], s.table.entry[0].count * sizeof *w);
    clt_ckpt_close(r);
    clt_free(w);
    s.table.n = 3;
    cu_state_free(&s);
    assert_int_equal(clt_io_remove_tree(dir), CLT_OK);
    clt_free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranks), cmocka_unit_test(test_few_chunks)};
    clt_log_set_level(CLT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
