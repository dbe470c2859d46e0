#include "test/group_data.h"

clt_group *group;
int rank, size;

void enter(clt_group *g) {
    group = g;
    rank = clt_group_rank(g);
    size = clt_group_size(g);
}

void check(bool ok, const char *what, int64_t a, int64_t b, int64_t c) {
    if (!ok)
        clt_group_abort(group, 1, "%s is wrong (%lld, %lld, %lld)", what, (long long)a, (long long)b,
                        (long long)c);
}

void ok(clt_status st, const char *what) {
    if (st != CLT_OK) clt_group_abort(group, clt_status_exit_code(st), "%s failed (%d)", what, (int)st);
}

static unsigned char byte_of(int r, size_t i) {
    return (unsigned char)(r * 37 + (int)(i * 11) + (int)(i >> 8));
}

static void test_gather(size_t bytes) {
    unsigned char *mine = clt_malloc(bytes), *all = clt_malloc(bytes * (size_t)size);
    for (size_t i = 0; i < bytes; i++) mine[i] = byte_of(rank, i);
    ok(clt_group_all_gather(group, mine, bytes, all), "all_gather");
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < bytes; i++)
            CHECK(all[(size_t)r * bytes + i] == byte_of(r, i), r, (int64_t)i, (int64_t)bytes);
    clt_free(mine);
    clt_free(all);
}

/* Lengths differ, some are 0; `scale` 0: all are. */
static size_t length_of(int r, size_t scale) {
    return (size_t)(r * 7 % 5) * scale;
}

static void test_gatherv(size_t scale) {
    size_t n = length_of(rank, scale), *lens = clt_calloc((size_t)size, sizeof *lens), at = 0;
    unsigned char *mine = clt_malloc(n);
    void *out = NULL;
    for (size_t i = 0; i < n; i++) mine[i] = byte_of(rank, i);
    ok(clt_group_all_gatherv(group, mine, n, lens, &out), "all_gatherv");
    for (int r = 0; r < size; r++) {
        CHECK(lens[r] == length_of(r, scale), r, (int64_t)lens[r], (int64_t)scale);
        for (size_t i = 0; i < lens[r]; i++)
            CHECK(((unsigned char *)out)[at + i] == byte_of(r, i), r, (int64_t)i, (int64_t)scale);
        at += lens[r];
    }
    clt_free(mine);
    clt_free(lens);
    clt_free(out);
}

static void test_broadcast(int root, size_t bytes) {
    unsigned char *data = clt_calloc(bytes, 1);
    for (size_t i = 0; i < bytes && rank == root; i++) data[i] = byte_of(root, i);
    ok(clt_group_broadcast(group, root, data, bytes), "broadcast");
    for (size_t i = 0; i < bytes; i++) CHECK(data[i] == byte_of(root, i), root, (int64_t)i, (int64_t)bytes);
    clt_free(data);
}

/* Sums are exact beyond a double's 53 bits, and negative numbers take part in the maximum. */
static void test_numbers(void) {
    const int64_t big = (int64_t)1 << 58;
    int64_t v[3] = {big + rank, -rank, rank * rank}, want[3] = {0};
    int64_t m[2] = {-100 - rank, rank == size / 2 ? big + 1 : big};
    for (int r = 0; r < size; r++) {
        want[0] += big + r;
        want[1] -= r;
        want[2] += r * r;
    }
    ok(clt_group_sum_i64(group, v, 3), "sum");
    for (int i = 0; i < 3; i++) CHECK(v[i] == want[i], i, v[i], want[i]);
    ok(clt_group_max_i64(group, m, 2), "max");
    CHECK(m[0] == -100 && m[1] == big + 1, m[0], m[1], 0);
}

/* The status of the lowest rank that failed, on every rank. */
static void test_agree(void) {
    ok(clt_group_agree(group, CLT_OK), "agree");
    for (int r = 0; r < size; r++) {
        clt_status mine = rank == r ? CLT_BAD_DATA : rank > r ? CLT_IO : CLT_OK;
        clt_status st = clt_group_agree(group, mine);
        CHECK(st == CLT_BAD_DATA, r, st, 0);
    }
    ok(clt_group_agree(group, CLT_OK), "agree");
    CHECK(clt_group_stop(group) == 0 && !clt_group_stop_asked(group), 0, 0, 0);
}

/* Nobody leaves the barrier before the last one has come to it. */
static void test_barrier(void) {
    double times[2], *all = clt_calloc((size_t)size, sizeof times);
    for (int late = 0; late < CLT_MIN(size, 3); late++) {
        if (rank == late) clt_sleep(20e-3);
        times[0] = clt_now();
        ok(clt_group_barrier(group), "barrier");
        times[1] = clt_now();
        ok(clt_group_all_gather(group, times, sizeof times, all), "all_gather");
        for (int r = 0; r < size; r++) CHECK(all[2 * r] <= times[1], late, r, 0);
    }
    clt_free(all);
}

void test_host_data(void) {
    CHECK(rank >= 0 && rank < size && clt_group_local_rank(group) < clt_group_local_size(group), rank, size,
          0);
    static const size_t bytes[] = {0, 1, 4, 1000, 100003};
    for (size_t i = 0; i < CLT_COUNT_OF(bytes); i++) {
        test_gather(bytes[i]);
        test_gatherv(bytes[i] / 4);
        for (int r = 0; r < size; r++) test_broadcast(r, bytes[i]);
    }
    test_numbers();
    test_agree();
    test_barrier();
}
