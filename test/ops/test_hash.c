/* The hash of a tensor's bits: every variant on every device compared with the oracle, and the oracle's
 * guarantees. */
#include "runtime/device/clt_shards.h"
#include "test/test_util.h"

#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

enum { SUMS = 2 * CLT_HASH_SUMS }; /* in words of 4 bytes */

static uint64_t on_device(int d, clt_ref x, uint64_t count, uint64_t first) {
    uint64_t sums[CLT_HASH_SUMS];
    uint32_t *blank = clt_calloc(SUMS, sizeof *blank);
    clt_ref place = tu_upload_at(d, blank, SUMS, 38);
    clt_ref numbers = {place.buf, place.off / 2};
    tu_assert_ok(clt_op_hash(tu_ops(d), x, count, first, numbers), "hash");
    memcpy(sums, tu_download(place, SUMS), sizeof sums);
    clt_free(blank);
    return clt_hash_total(sums, CLT_HASH_SUMS);
}

static void hash_case(int d, size_t n, uint64_t first) {
    float *x = tu_extreme(CLT_MAX(n, (size_t)1), n + first);
    clt_ref place = tu_upload(d, x, CLT_MAX(n, (size_t)1));
    assert_true(on_device(d, place, n, first) == clt_ref_hash(x, n, first));
    tu_release();
    clt_free(x);
}

static void variant(int d, const char *id) {
    static const size_t size[] = {0, 2, 4, 14, 16, 18, 510, 2046, 2048, 2050, 16384, 16390, 50006};
    (void)id;
    for (size_t i = 0; i < CLT_COUNT_OF(size); i++) {
        if (tu_tiny() && size[i] != 18 && size[i] != 510) continue;
        hash_case(d, size[i], 0);
        if (tu_tiny()) continue;
        hash_case(d, size[i], 268435456);
        hash_case(d, size[i], (uint64_t)1 << 40);
    }
    if (tu_tiny()) return;
    hash_case(d, 1 << 20, 64);
}

static void hashes_match(void **state) {
    (void)state;
    tu_each_variant("hash", variant);
}

/* The hashes of all ranks' shards add up to that of the whole slab. */
static void shards_add_up(void **state) {
    (void)state;
    enum { RANKS = 3 };
    const int64_t chunks = tu_tiny() ? 4 : 100;
    clt_slab_table t = {0};
    clt_shards shards;
    uint64_t sum = 0;
    clt_slab_table_add(&t, "w", 1, &(int64_t){chunks * CLT_CHUNK - 3});
    clt_slab_table_finish(&t);
    tu_assert_ok(clt_shards_create(&t, RANKS, NULL, &shards), "shards");
    float *x = tu_random(t.total, 5, 1.0f);
    for (int rank = 0; rank < RANKS; rank++) {
        clt_slab *s;
        tu_assert_ok(clt_slab_create_shard(tu_device(0), &t, &shards, rank, 4, "shard", &s), "slab");
        tu_assert_ok(clt_slab_write(s, 0, x, t.total), "write");
        for (int i = 0; i < s->n; i++)
            if (s->piece[i])
                sum += on_device(0, clt_slab_part(s, i), s->start[i + 1] - s->start[i], s->start[i]);
        clt_slab_destroy(s);
    }
    assert_true(sum == clt_ref_hash(x, t.total, 0));
    tu_release();
    clt_free(x);
    clt_shards_free(&shards);
    clt_slab_table_free(&t);
}

/* Each word passes through invertible steps: every flip of one bit changes the hash, at any place. */
static void every_flipped_bit_shows(void **state) {
    (void)state;
    enum { N = 128 };
    float *x = tu_random(N, 3, 1.0f);
    uint64_t good = clt_ref_hash(x, N, 0), seen[32 * N];
    for (int i = 0; i < 32 * N; i++) {
        uint32_t w;
        memcpy(&w, &x[i / 32], sizeof w);
        w ^= 1u << i % 32;
        memcpy(&x[i / 32], &w, sizeof w);
        seen[i] = clt_ref_hash(x, N, 0);
        assert_true(seen[i] != good);
        for (int k = 0; k < i; k++) assert_true(seen[k] != seen[i]);
        w ^= 1u << i % 32;
        memcpy(&x[i / 32], &w, sizeof w);
    }
    clt_free(x);
}

/* Known numbers, by hand: SplitMix64's first outputs from state 0 are the terms of a tensor of zeros. */
static void the_terms_are_splitmix64(void **state) {
    (void)state;
    static const uint64_t out[] = {0xe220a8397b1dcdafu, 0x6e789e6aa1b965f4u, 0x06c45d188009454fu};
    float zeros[6] = {0}, one[2] = {0, 0};
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 3; i++) {
        sum += out[i];
        assert_true(clt_ref_hash(zeros, 2 * (i + 1), 0) == sum);
        assert_true(clt_ref_hash(one, 2, 2 * i) == out[i]);
    }
}

/* Parts of a tensor add up to the whole; swapping two elements changes the hash. */
static void parts_add_up(void **state) {
    (void)state;
    enum { N = 1000 };
    float *x = tu_extreme(N, 5), t;
    uint64_t whole = clt_ref_hash(x, N, 0);
    assert_true(clt_ref_hash(x, 400, 0) + clt_ref_hash(x + 400, 600, 400) == whole);
    t = x[10], x[10] = x[500], x[500] = t;
    assert_true(clt_ref_hash(x, N, 0) != whole);
    clt_free(x);
}

static void odd_counts_are_refused(void **state) {
    (void)state;
    clt_ref x = tu_blank(0, 8), sums = tu_blank(0, SUMS);
    assert_true(clt_op_hash(tu_ops(0), x, 7, 0, sums) == CLT_FAIL);
    assert_true(clt_op_hash(tu_ops(0), x, 8, 1, sums) == CLT_FAIL);
    tu_release();
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_add_up),
        cmocka_unit_test(every_flipped_bit_shows),
        cmocka_unit_test(the_terms_are_splitmix64),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(hashes_match),
        cmocka_unit_test(odd_counts_are_refused),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
