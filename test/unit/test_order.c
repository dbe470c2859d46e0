/* The sample order against the vectors of the real StreamingDataset and NumPy (test/golden/order). */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_nprng.h"
#include "runtime/data/clt_order.h"
#include "test/golden_util.h"

/* --- numpy's generator --- */

static void seed_from_decimal(clt_nprng *r, const char *text) {
    uint32_t words[16] = {0};
    size_t n = 1;
    for (; *text; text++) {
        uint64_t carry = (uint64_t)(*text - '0');
        for (size_t i = 0; i < n; i++) {
            carry += (uint64_t)words[i] * 10;
            words[i] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry) words[n++] = (uint32_t)carry;
    }
    clt_nprng_seed_words(r, words, n);
}

static void check_hex128(clt_u128 v, const char *text) {
    char hex[40];
    if (v >> 64)
        snprintf(hex, sizeof hex, "0x%llx%016llx", (unsigned long long)(v >> 64), (unsigned long long)v);
    else
        snprintf(hex, sizeof hex, "0x%llx", (unsigned long long)v);
    assert_string_equal(hex, text);
}

static void check_shuffle(const char *seed, json_t *want) {
    size_t n;
    int64_t *ids = golden_ints(want, &n);
    int64_t *got = clt_calloc(n, sizeof *got);
    for (size_t i = 0; i < n; i++) got[i] = (int64_t)i;
    clt_nprng r;
    seed_from_decimal(&r, seed);
    clt_nprng_shuffle_i64(&r, got, n);
    assert_memory_equal(got, ids, n * sizeof *ids);
    for (size_t i = 0; i < n; i++) got[i] = (int64_t)i;
    seed_from_decimal(&r, seed);
    clt_nprng_shuffle(&r, got, n, sizeof *got);
    assert_memory_equal(got, ids, n * sizeof *ids);
    clt_free(ids);
    clt_free(got);
}

static void check_integers(clt_nprng *r, json_t *list, int64_t lo, int64_t hi) {
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_int_equal(clt_nprng_integer(r, lo, hi), json_integer_value(json_array_get(list, i)));
}

static void check_choice(const char *seed, int64_t n, int64_t k, json_t *want) {
    int64_t *got = clt_calloc((size_t)k, sizeof *got);
    clt_nprng r;
    seed_from_decimal(&r, seed);
    assert_true(clt_nprng_choice(&r, n, k, got));
    assert_true(json_array_size(want) > 0);
    for (size_t i = 0; i < json_array_size(want); i++)
        assert_int_equal(got[i], json_integer_value(json_array_get(want, i)));
    clt_free(got);
}

static void check_generator(json_t *g) {
    const char *seed = golden_str(g, "seed");
    clt_nprng r;
    seed_from_decimal(&r, seed);
    check_hex128(r.state, golden_str(g, "state"));
    check_hex128(r.inc, golden_str(g, "inc"));
    json_t *list = json_object_get(g, "u64");
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_true(clt_nprng_u64(&r) == strtoull(json_string_value(json_array_get(list, i)), NULL, 10));
    seed_from_decimal(&r, seed);
    list = json_object_get(g, "doubles");
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_true(clt_nprng_double(&r) == json_real_value(json_array_get(list, i)));
    seed_from_decimal(&r, seed);
    list = json_object_get(g, "uniform_-3_7.5");
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_true(clt_nprng_uniform(&r, -3, 7.5) == json_real_value(json_array_get(list, i)));
    seed_from_decimal(&r, seed);
    check_integers(&r, json_object_get(g, "integers_0_10"), 0, 10);
    assert_true(clt_nprng_double(&r) == json_real_value(json_object_get(g, "then_double")));
    check_integers(&r, json_object_get(g, "then_integers_5_1000003"), 5, 1000003);
    seed_from_decimal(&r, seed);
    check_integers(&r, json_object_get(g, "scalar_integers_hi"), 0, 3ll << 30);
    check_shuffle(seed, json_object_get(g, "permutation_13"));
    check_shuffle(seed, json_object_get(g, "list_shuffle_9"));
    check_shuffle(seed, json_object_get(g, "array_shuffle_300"));
    check_choice(seed, 100, 7, json_object_get(g, "choice_100_7"));
    check_choice(seed, 20000, 5, json_object_get(g, "choice_20000_5"));
    check_choice(seed, 10007, 300, json_object_get(g, "choice_10007_300_first"));
}

static void test_generator(void **state) {
    (void)state;
    json_t *all = golden_load("test/golden/order/rng.json"), *list = json_object_get(all, "generators");
    assert_int_equal(json_array_size(list), 10);
    for (size_t i = 0; i < json_array_size(list); i++) check_generator(json_array_get(list, i));
    json_decref(all);
    clt_nprng a, b; /* seed + epoch beyond 64 bits */
    clt_nprng_seed(&a, UINT64_MAX, 6);
    seed_from_decimal(&b, "18446744073709551621");
    assert_true(a.state == b.state && a.inc == b.inc);
}

/* --- shuffles --- */

static void test_shuffles(void **state) {
    (void)state;
    json_t *all = golden_load("test/golden/order/shuffle.json"), *cases = json_object_get(all, "cases");
    assert_int_equal(json_array_size(cases), 60);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i);
        size_t shards, n;
        int64_t *sizes = golden_ints(json_object_get(c, "shard_sizes"), &shards);
        int64_t *ids = golden_ints(json_object_get(c, "ids"), &n);
        clt_shuffle_algo algo;
        clt_shuffle *s;
        assert_int_equal(clt_shuffle_parse(golden_str(c, "algo"), &algo), CLT_OK);
        assert_int_equal(clt_shuffle_create(algo, sizes, shards, golden_int(c, "num_canonical_nodes"),
                                            (uint64_t)golden_int(c, "seed"), golden_int(c, "block_size"),
                                            false, &s),
                         CLT_OK);
        clt_shuffle_epoch(s, golden_int(c, "epoch") + 1); /* an epoch does not depend on the one before */
        clt_shuffle_epoch(s, golden_int(c, "epoch"));
        for (size_t k = 0; k < n; k++)
            if (clt_shuffle_id(s, (int64_t)k) != ids[k])
                fail_msg("shuffle case %zu (%s) differs", i, golden_str(c, "algo"));
        clt_shuffle_destroy(s);
        clt_free(sizes);
        clt_free(ids);
    }
    json_decref(all);
}

/* --- py1e beside a plain sort of all positions --- */

typedef struct {
    double pos;
    int64_t place, id;
} moved;

static int by_position(const void *a, const void *b) {
    const moved *x = a, *y = b;
    if (x->pos != y->pos) return x->pos < y->pos ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* One canonical node: v[] gets the shuffled samples of `shards` equal shards with their positions, sorted. */
static void plain_expand(moved *v, int64_t shards, int64_t size, int64_t block, uint64_t seed,
                         int64_t epoch) {
    int64_t *shard = clt_calloc((size_t)shards, sizeof *shard), *ids = clt_calloc((size_t)size, sizeof *ids);
    const int64_t n = shards * size;
    clt_nprng run, r;
    clt_nprng_seed(&run, seed, 0);
    clt_nprng_seed(&r, seed, (uint64_t)epoch);
    for (int64_t i = 0; i < shards; i++) shard[i] = i;
    clt_nprng_shuffle_i64(&run, shard, (size_t)shards);
    clt_nprng_shuffle_i64(&r, shard, (size_t)shards);
    for (int64_t i = 0; i < shards; i++) {
        for (int64_t k = 0; k < size; k++) ids[k] = shard[i] * size + k;
        clt_nprng_shuffle_i64(&r, ids, (size_t)size);
        for (int64_t k = 0; k < size; k++) v[i * size + k].id = ids[k];
    }
    for (int64_t off = 0; off < n; off += size) {
        double cut =
            (double)(clt_nprng_integer(&r, (int64_t)(0.75 * (double)block), (int64_t)(1.25 * (double)block)) -
                     size) /
            2;
        cut = CLT_MAX(cut, 0);
        const double lo = CLT_MAX(-cut, -(double)off), hi = CLT_MIN(cut, (double)(n - off - size));
        for (int64_t k = off; k < off + size; k++) {
            v[k].place = k;
            v[k].pos = (double)k + clt_nprng_uniform(&r, lo, hi);
        }
    }
    qsort(v, (size_t)n, sizeof *v, by_position);
    clt_free(shard);
    clt_free(ids);
}

/* Blocks smaller than a shard, of several shards, and larger than the node. */
static void test_expand(void **state) {
    (void)state;
    static const struct {
        int64_t shards, size, block;
    } cases[] = {{100, 997, 3000}, {100, 997, 400}, {60, 1500, 1600}, {7, 9001, 200000}, {20000, 3, 9000}};
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        const int64_t shards = cases[i].shards, size = cases[i].size, n = shards * size;
        int64_t *sizes = clt_calloc((size_t)shards, sizeof *sizes);
        moved *want = clt_calloc((size_t)n, sizeof *want);
        clt_shuffle *s;
        for (int64_t k = 0; k < shards; k++) sizes[k] = size;
        assert_int_equal(
            clt_shuffle_create(CLT_SHUFFLE_PY1E, sizes, (size_t)shards, 1, 17, cases[i].block, false, &s),
            CLT_OK);
        for (int64_t epoch = 0; epoch < 2; epoch++) {
            plain_expand(want, shards, size, cases[i].block, 17, epoch);
            clt_shuffle_epoch(s, epoch);
            for (int64_t k = 0; k < n; k++)
                if (clt_shuffle_id(s, k) != want[k].id)
                    fail_msg("case %zu: sample %lld differs", i, (long long)k);
        }
        clt_shuffle_destroy(s);
        clt_free(sizes);
        clt_free(want);
    }
}

/* --- one order for the processes of a host --- */

/* The shared file that this process has mapped; "" for none. */
static void find_mapped(char path[256]) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    assert_non_null(f);
    *path = 0;
    while (fgets(line, sizeof line, f)) {
        char *at = strstr(line, "/dev/shm/cltrain-order.");
        if (at && !strstr(line, "(deleted)")) snprintf(path, 256, "%.*s", (int)strcspn(at, "\n"), at);
    }
    fclose(f);
}

static clt_shuffle *open_shared(bool share) {
    static const int64_t sizes[] = {900, 37, 501};
    clt_shuffle *s;
    /* The seed keeps apart test programs that run at the same time. */
    static uint64_t seed;
    if (seed == 0) seed = (uint64_t)getpid();
    assert_int_equal(clt_shuffle_create(CLT_SHUFFLE_PY1E, sizes, 3, 2, seed, 200, share, &s), CLT_OK);
    return s;
}

/* The order of an epoch that a process shares; false: it differs from `want`. */
static bool shares(const clt_shuffle *want, int64_t n, int64_t epoch) {
    clt_shuffle *s = open_shared(true);
    bool same = true;
    clt_shuffle_epoch(s, epoch);
    for (int64_t i = 0; i < n && same; i++) same = clt_shuffle_id(s, i) == clt_shuffle_id(want, i);
    clt_shuffle_destroy(s);
    return same;
}

/* Eight processes at once, one of which is killed in between; nothing is left in /dev/shm. */
static void test_share(void **state) {
    (void)state;
    enum { PROCESSES = 8, N = 900 + 37 + 501 };
    clt_shuffle *want = open_shared(false), *held = open_shared(true);
    pid_t child[PROCESSES];
    char path[256];
    clt_shuffle_epoch(want, 5);
    for (int i = 0; i < PROCESSES; i++)
        if ((child[i] = fork()) == 0) {
            for (int64_t k = 0; k < 50; k++)
                if (!shares(want, N, 5)) _exit(1);
            while (i == 0) clt_shuffle_epoch(held, 6); /* until it is killed */
            _exit(0);
        }
    clt_shuffle_epoch(held, 5);
    for (int i = 1; i < PROCESSES; i++) {
        int status = -1;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    kill(child[0], SIGKILL);
    assert_int_equal(waitpid(child[0], NULL, 0), child[0]);
    clt_shuffle_epoch(want, 6);
    assert_true(shares(want, N, 6));
    clt_shuffle_epoch(held, 6);
    for (int64_t i = 0; i < N; i++) assert_int_equal(clt_shuffle_id(held, i), clt_shuffle_id(want, i));
    find_mapped(path);
    assert_true(clt_io_is_file(path));
    clt_shuffle_destroy(held);
    assert_false(clt_io_is_file(path));
    clt_shuffle_destroy(want);
}

/* Empty shards have no effect on the order of shards or their division among nodes. */
static void test_empty_shards(void **state) {
    (void)state;
    static const int64_t with[] = {0, 5, 0, 4, 6, 0, 3, 0}, without[] = {5, 4, 6, 3};
    for (clt_shuffle_algo algo = CLT_SHUFFLE_NAIVE; algo <= CLT_SHUFFLE_PY2S; algo++)
        for (int64_t nodes = 1; nodes < 5; nodes++) {
            clt_shuffle *a, *b;
            assert_int_equal(clt_shuffle_create(algo, with, CLT_COUNT_OF(with), nodes, 17, 8, false, &a),
                             CLT_OK);
            assert_int_equal(
                clt_shuffle_create(algo, without, CLT_COUNT_OF(without), nodes, 17, 8, false, &b), CLT_OK);
            clt_shuffle_epoch(a, 1);
            clt_shuffle_epoch(b, 1);
            for (int64_t k = 0; k < 18; k++) assert_int_equal(clt_shuffle_id(a, k), clt_shuffle_id(b, k));
            clt_shuffle_destroy(a);
            clt_shuffle_destroy(b);
        }
}

/* --- whole orders --- */

static void case_params(json_t *c, int64_t *sizes, size_t shards, clt_order_params *p, clt_order_world *w) {
    json_t *resume = json_object_get(c, "resume");
    clt_order_params_default(p);
    p->shard_samples = sizes;
    p->num_shards = shards;
    p->physical_nodes = golden_int(c, "physical_nodes");
    p->canonical_nodes = golden_int_or(c, "num_canonical_nodes_given", 0);
    p->block_size = golden_int_or(c, "block_size_given", 0);
    p->seed = (uint64_t)golden_int(c, "seed");
    p->shuffle = json_is_true(json_object_get(c, "shuffle"));
    p->algo = golden_str(c, "algo");
    p->partition_algo = golden_str(c, "partition_algo");
    if (json_is_object(resume)) {
        p->canonical_nodes = golden_int(resume, "num_canonical_nodes");
        p->initial_nodes = golden_int_or(resume, "initial_physical_nodes", 0);
    }
    *w = (clt_order_world){golden_int(c, "ranks_per_node"), golden_int(c, "batch_size"),
                           golden_int(c, "epoch"), golden_int(c, "sample_in_epoch")};
}

/* Padding (-1) may be anywhere in the last batch. */
static void check_batches(json_t *want, const int64_t *batch, int64_t size, const char *name) {
    size_t n, at = 0;
    int64_t *ids = golden_ints(want, &n);
    for (int64_t s = 0; s < size; s++)
        if (batch[s] >= 0 && (at >= n || batch[s] != ids[at++])) fail_msg("%s: a batch differs", name);
    if (at != n) fail_msg("%s: a batch is too short", name);
    clt_free(ids);
}

/* Compacts the batches to their real ids; returns how many batches have any. */
static int64_t count_batches(int64_t *ids, int64_t count, int64_t b, int64_t *samples) {
    int64_t batches = 0;
    *samples = 0;
    for (int64_t g = 0; g * b < count; g++) {
        int64_t before = *samples;
        for (int64_t s = 0; s < b; s++)
            if (ids[g * b + s] >= 0) ids[(*samples)++] = ids[g * b + s];
        batches += *samples > before;
    }
    return batches;
}

static void check_rank(clt_order *o, const clt_order_world *w, json_t *r, const char *name) {
    int64_t *ids, count, samples, b = w->batch_size;
    assert_int_equal(clt_order_rank(o, w, golden_int(r, "node"), golden_int(r, "rank_of_node"), &ids, &count),
                     CLT_OK);
    json_t *first = json_object_get(r, "batches");
    if (!first) first = json_object_get(r, "first_batches");
    for (size_t i = 0; i < json_array_size(first); i++)
        check_batches(json_array_get(first, i), ids + (int64_t)i * b, b, name);
    int64_t batches = count_batches(ids, count, b, &samples);
    if (samples != golden_int(r, "num_samples") || batches != golden_int(r, "num_batches"))
        fail_msg("%s: %lld samples in %lld batches", name, (long long)samples, (long long)batches);
    char hex[65];
    golden_sha256(ids, (size_t)samples * sizeof *ids, hex);
    if (strcmp(hex, golden_str(r, "sha256_int64_le"))) fail_msg("%s: the ids of a rank differ", name);
    clt_free(ids);
}

/* The global view of a run's position gives the same ids as the views of all ranks together. */
static void check_global(clt_order *o, const clt_order_params *p, const clt_order_world *w) {
    int64_t world = p->physical_nodes * w->ranks_per_node, gbs = world * w->batch_size;
    int64_t from = w->from / p->physical_nodes * p->physical_nodes;
    if (from + gbs > clt_order_length(o)) return;
    int64_t *global = clt_calloc((size_t)gbs, sizeof *global);
    assert_int_equal(clt_order_batch(o, w->epoch, from, gbs, global), CLT_OK);
    for (int64_t x = 0; x < gbs; x++) {
        int64_t *ids, count, node = x % p->physical_nodes, rank = x / p->physical_nodes % w->ranks_per_node;
        assert_int_equal(clt_order_rank(o, w, node, rank, &ids, &count), CLT_OK);
        assert_int_equal(ids[x / world], global[x]);
        clt_free(ids);
    }
    clt_free(global);
}

static void check_case(json_t *c) {
    size_t shards;
    int64_t *sizes = golden_ints(json_object_get(c, "shard_sizes"), &shards);
    clt_order_params p;
    clt_order_world w;
    case_params(c, sizes, shards, &p, &w);
    clt_order *o = NULL;
    int64_t *ids = NULL, count;
    clt_status st = clt_order_create(&p, &o);
    if (golden_str(c, "error")) {
        if (st == CLT_OK) st = clt_order_rank(o, &w, 0, 0, &ids, &count);
        if (st == CLT_OK) fail_msg("%s: must be refused", golden_str(c, "name"));
    } else {
        assert_int_equal(st, CLT_OK);
        assert_int_equal(clt_order_canonical_nodes(o), golden_int(c, "num_canonical_nodes"));
        assert_int_equal(clt_order_block_size(o), golden_int(c, "block_size"));
        json_t *ranks = json_object_get(c, "ranks");
        for (size_t i = 0; i < json_array_size(ranks); i++)
            check_rank(o, &w, json_array_get(ranks, i), golden_str(c, "name"));
        bool moved =
            p.initial_nodes && p.canonical_nodes % p.physical_nodes && p.physical_nodes % p.canonical_nodes;
        if (!moved) check_global(o, &p, &w);
    }
    clt_order_destroy(o);
    clt_free(sizes);
}

static void test_orders(void **state) {
    (void)state;
    json_t *all = golden_load("test/golden/order/order.json"), *cases = json_object_get(all, "cases");
    assert_int_equal(json_array_size(cases), 82);
    for (size_t i = 0; i < json_array_size(cases); i++) check_case(json_array_get(cases, i));
    json_decref(all);
}

static void test_small_table(void **state) {
    (void)state;
    static const int64_t fifteen = 15, want[] = {0, 7, 1, 8, 2, 9, 3, 10, 4, 11, 5, 12, 6, 13, 6, 14};
    clt_order_params p;
    clt_order_params_default(&p);
    p.shard_samples = &fifteen;
    p.num_shards = 1;
    p.canonical_nodes = 2;
    p.shuffle = false;
    clt_order *o;
    int64_t ids[16];
    assert_int_equal(clt_order_create(&p, &o), CLT_OK);
    assert_int_equal(clt_order_length(o), 16);
    assert_int_equal(clt_order_batch(o, 0, 0, 16, ids), CLT_OK);
    assert_memory_equal(ids, want, sizeof want);
    assert_int_equal(clt_order_batch(o, 0, 15, 1, ids), CLT_OK);
    assert_int_equal(clt_order_batch(o, 0, 15, 2, ids), CLT_BAD_CONFIG);
    assert_int_equal(clt_order_batch(o, 0, -1, 2, ids), CLT_BAD_CONFIG);
    clt_order_destroy(o);
}

static void test_refusals(void **state) {
    (void)state;
    static const int64_t three = 3;
    clt_order_params p;
    clt_order *o;
    clt_order_params_default(&p);
    p.shard_samples = &three;
    p.num_shards = 1;
    p.algo = "py1ee";
    assert_int_equal(clt_order_create(&p, &o), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "did you mean 'py1e'"));
    p.algo = "py1e";
    p.partition_algo = "none";
    assert_int_equal(clt_order_create(&p, &o), CLT_BAD_CONFIG);
    p.partition_algo = "orig";
    p.canonical_nodes = 8;
    assert_int_equal(clt_order_create(&p, &o), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "canonical nodes"));
    p.num_shards = 0;
    assert_int_equal(clt_order_create(&p, &o), CLT_BAD_DATA);
    static const int64_t two = 2;
    p.shard_samples = &two;
    p.num_shards = 1;
    p.canonical_nodes = 1;
    p.physical_nodes = 4; /* the copied tail would start before the row */
    assert_int_equal(clt_order_create(&p, &o), CLT_BAD_CONFIG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generator),    cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_expand),       cmocka_unit_test(test_share),
        cmocka_unit_test(test_empty_shards), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_small_table),  cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
