/* Splitting groups: who is in which child, in which order, against a plain sort; what children share with the
 * run and what they do not. Ranks are threads on simulated hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "test/thread_group.h"

/* Threads cannot leave by cmocka's asserts: the first check that fails is kept, with its rank. */
static atomic_int failed_line, failed_rank;

static void check(bool ok, int line, int rank) {
    int none = 0;
    if (!ok && atomic_compare_exchange_strong(&failed_line, &none, line)) atomic_store(&failed_rank, rank);
}
#define CHECK(cond) check(cond, __LINE__, clt_group_rank(g))

static void assert_no_failure(void) {
    if (failed_line) print_error("line %d, rank %d\n", (int)failed_line, (int)failed_rank);
    assert_int_equal(failed_line, 0);
}

/* --- who is in which child --- */

typedef struct {
    int ranks;
    const int *color, *key, *host; /* [ranks] of the parent */
} division;

typedef struct {
    int key, rank;
} place;

static int by_key(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->rank - y->rank;
}

/* The child of `rank`: its members' ranks in the parent, in order. Returns how many. */
static int members(const division *d, int rank, int *member) {
    place list[TG_MAX_RANKS];
    int n = 0;
    for (int r = 0; r < d->ranks; r++)
        if (d->color[r] == d->color[rank]) list[n++] = (place){d->key[r], r};
    qsort(list, (size_t)n, sizeof *list, by_key);
    for (int i = 0; i < n; i++) member[i] = list[i].rank;
    return n;
}

/* Every rank of the child sends its rank in the run: gathers, broadcasts and sums reach the child's ranks
 * only. */
static void check_host_data(clt_group *g, clt_group *child, const int *member, int n) {
    int64_t mine = member[clt_group_rank(child)], all[TG_MAX_RANKS], word = mine, sum = mine, want = 0;
    CHECK(clt_group_all_gather(child, &mine, sizeof mine, all) == CLT_OK);
    for (int i = 0; i < n; i++) {
        CHECK(all[i] == member[i]);
        want += member[i];
    }
    CHECK(clt_group_broadcast(child, n - 1, &word, sizeof word) == CLT_OK && word == member[n - 1]);
    CHECK(clt_group_sum_i64(child, &sum, 1) == CLT_OK && sum == want);
    CHECK(clt_group_barrier(child) == CLT_OK);
}

static void check_division(clt_group *g, void *ctx) {
    const division *d = ctx;
    const int rank = clt_group_rank(g);
    int member[TG_MAX_RANKS], local_rank = 0, local_size = 0;
    clt_group *child = g; /* must be set */
    CHECK(clt_group_split(g, d->color[rank], d->key[rank], &child) == CLT_OK);
    if (d->color[rank] < 0) {
        CHECK(child == NULL);
        return;
    }
    const int n = members(d, rank, member);
    CHECK(clt_group_size(child) == n && member[clt_group_rank(child)] == rank);
    for (int i = 0; i < n; i++) {
        CHECK(clt_group_rank_in_run(child, i) == member[i]);
        if (d->host[member[i]] != d->host[rank]) continue;
        local_size++;
        local_rank += i < clt_group_rank(child);
    }
    CHECK(clt_group_local_size(child) == local_size && clt_group_local_rank(child) == local_rank);
    CHECK(clt_group_host(child) == clt_group_host(g));
    check_host_data(g, child, member, n);
    clt_group_destroy(child);
}

/* Colors, keys and hosts are digits of a counter: all divisions of 1 to 4 ranks among three colors, one of
 * them none, and many of larger groups. */
static void members_are_sorted_by_key(void **state) {
    (void)state;
    uint32_t x = 1;
    for (int ranks = 1; ranks <= TG_MAX_RANKS; ranks++)
        for (int k = 0; k < (ranks <= 4 ? 81 : 30); k++) {
            int color[TG_MAX_RANKS], key[TG_MAX_RANKS], host[TG_MAX_RANKS];
            for (int r = 0, digits = k; r < ranks; r++, digits /= 3) {
                x = x * 1664525 + 1013904223;
                color[r] = r < 4 ? digits % 3 - 1 : (int)(x >> 8) % 3 - 1;
                key[r] = (int)(x >> 16) % 4 - 2;
                host[r] = (int)(x >> 24) % 3;
            }
            division d = {ranks, color, key, host};
            tg_run_on_hosts(ranks, host, check_division, &d);
            assert_no_failure();
        }
}

/* --- children of children --- */

/* Halves until each rank is alone; then every level works, the lowest first. */
static void halve(clt_group *g, int depth) {
    const int size = clt_group_size(g), rank = clt_group_rank(g);
    clt_group *half = NULL;
    int64_t n = 1;
    if (size > 1) {
        CHECK(clt_group_split(g, rank * 2 >= size, 0, &half) == CLT_OK);
        halve(half, depth + 1);
        clt_group_destroy(half);
    }
    CHECK(clt_group_sum_i64(g, &n, 1) == CLT_OK && n == size);
    CHECK(depth < 4);
}

static void halve_all(clt_group *g, void *ctx) {
    (void)ctx;
    halve(g, 0);
}

static void children_can_be_split(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= TG_MAX_RANKS; ranks++) {
        tg_run(ranks, halve_all, NULL);
        assert_no_failure();
    }
}

/* One group for each host, and one of the ranks that have the same place on their hosts, as a reduction in
 * two levels needs them. */
static void two_levels(clt_group *g, void *ctx) {
    const int *host = ctx;
    clt_group *here = NULL, *across = NULL;
    const int rank = clt_group_rank(g);
    CHECK(clt_group_split(g, clt_group_host(g), rank, &here) == CLT_OK);
    CHECK(clt_group_split(g, clt_group_local_rank(g), rank, &across) == CLT_OK);
    CHECK(clt_group_local_size(here) == clt_group_size(here));
    CHECK(clt_group_rank(here) == clt_group_local_rank(g));
    for (int i = 0; i < clt_group_size(here); i++) CHECK(host[clt_group_rank_in_run(here, i)] == host[rank]);
    CHECK(clt_group_local_size(across) == 1);
    int64_t sum = rank + 1, total = 0;
    CHECK(clt_group_sum_i64(here, &sum, 1) == CLT_OK && clt_group_sum_i64(across, &sum, 1) == CLT_OK);
    for (int r = 0; r < clt_group_size(g); r++) total += r + 1;
    CHECK(sum == total);
    clt_group_destroy(across);
    clt_group_destroy(here);
}

static void hosts_make_two_levels(void **state) {
    (void)state;
    static const int hosts[][8] = {
        {0, 0, 1, 1, 2, 2, 3, 3}, {2, 1, 0, 2, 1, 0, 2, 1}, {5, 5, 5, 5, 4, 4, 4, 4}};
    static const int ranks[] = {8, 6, 8}; /* as many on each host */
    for (int i = 0; i < 3; i++) {
        tg_run_on_hosts(ranks[i], hosts[i], two_levels, (void *)hosts[i]);
        assert_no_failure();
    }
}

/* --- status --- */

/* A child agrees among its ranks. What it agreed on is not what the run agreed on. */
static void agree_in_child(clt_group *g, void *ctx) {
    (void)ctx;
    clt_group *child = NULL;
    const int rank = clt_group_rank(g);
    CHECK(clt_group_split(g, rank % 2, -rank, &child) == CLT_OK);
    clt_status st = clt_group_agree(child, rank == 1 ? CLT_IO : rank == 3 ? CLT_BAD_DATA : CLT_OK);
    CHECK(st ==
          (rank % 2 ? CLT_BAD_DATA : CLT_OK)); /* of the child's lowest rank, which is the run's highest */
    CHECK(clt_group_agree(g, rank == 2 ? CLT_IO : CLT_OK) == CLT_IO);
    CHECK(clt_group_agree(child, CLT_OK) == CLT_OK);
    clt_group_give_up(child, CLT_IO); /* returns: every rank of the run knows of the failure */
    clt_group_destroy(child);
}

static void children_agree_among_themselves(void **state) {
    (void)state;
    tg_run(4, agree_in_child, NULL);
    assert_no_failure();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_sorted_by_key),
        cmocka_unit_test(children_can_be_split),
        cmocka_unit_test(hosts_make_two_levels),
        cmocka_unit_test(children_agree_among_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
