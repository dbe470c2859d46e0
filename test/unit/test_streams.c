/* The order over several streams against the real StreamingDataset (test/golden/streams and
 * test/golden/order/streams.json), through `cltrain data order --spec`, and what training needs of it: one
 * sequence that ranks only divide. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_streams.h"
#include "test/golden_util.h"

static char *cltrain; /* the program beside this test: BUILD/test/unit/X -> BUILD/cltrain */

/* --- cases of the reference --- */

static json_t *run_spec(const char *path, int *code) {
    char *command = clt_format("%s data order --spec %s 2>/dev/null", cltrain, path);
    FILE *f = popen(command, "r");
    json_error_t e;
    assert_non_null(f);
    json_t *got = json_loadf(f, 0, &e);
    int status = pclose(f);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    clt_free(command);
    if (!got) fail_msg("no JSON: %s", e.text);
    return got;
}

static void check_list(json_t *want, json_t *got, size_t skip, const char *name) {
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!json_equal(json_array_get(want, i), json_array_get(got, i + skip)))
            fail_msg("%s: batch %zu of a rank differs", name, i + skip);
}

static void check_rank(json_t *want, json_t *got, const char *name) {
    const char *key;
    json_t *v, *batches = json_object_get(got, "batches");
    assert_non_null(got);
    json_object_foreach(want, key, v) {
        if (strcmp(key, "first_batches") == 0)
            check_list(v, batches, 0, name);
        else if (strcmp(key, "last_batches") == 0)
            check_list(v, batches, json_array_size(batches) - json_array_size(v), name);
        else if (!json_equal(v, json_object_get(got, key)))
            fail_msg("%s: '%s' of a rank differs", name, key);
    }
}

/* What a case does not say is not compared. */
static void check_effect(json_t *want, json_t *got, const char *name) {
    static const char *const keys[] = {"num_canonical_nodes", "seed",         "block_size", "epoch",
                                       "sample_in_epoch",     "epoch_size",   "choose",     "proportion",
                                       "world_of_samples",    "shuffle_units"};
    for (size_t i = 0; i < CLT_COUNT_OF(keys); i++)
        if (json_object_get(want, keys[i]) &&
            !json_equal(json_object_get(want, keys[i]), json_object_get(got, keys[i])))
            fail_msg("%s: '%s' differs", name, keys[i]);
}

/* Only what a user gives. In the cases of `order` all of it is in effect as it was given. */
static json_t *question(json_t *c) {
    static const char *const given[] = {"streams",         "epoch_size_given",
                                        "sampling_method", "sampling_granularity",
                                        "replication",     "batching_method",
                                        "partition_algo",  "num_canonical_nodes_given",
                                        "physical_nodes",  "ranks_per_node",
                                        "workers",         "batch_size",
                                        "shuffle",         "algo",
                                        "seed_given",      "block_size_given",
                                        "epoch",           "resume"};
    json_t *q = json_object();
    static const char *const as_given[] = {"num_canonical_nodes", "seed", "block_size"};
    for (size_t i = 0; i < CLT_COUNT_OF(given); i++)
        json_object_set(q, given[i], json_object_get(c, given[i]));
    for (size_t i = 0; i < CLT_COUNT_OF(as_given); i++) {
        char *key = clt_format("%s_given", as_given[i]);
        if (!json_object_get(c, key)) json_object_set(q, key, json_object_get(c, as_given[i]));
        clt_free(key);
    }
    return q;
}

static void check_case(json_t *c, const char *path) {
    const char *name = golden_str(c, "name");
    json_t *q = question(c), *ranks = json_object_get(c, "ranks");
    int code;
    assert_int_equal(json_dump_file(q, path, 0), 0);
    json_t *got = run_spec(path, &code);
    if (golden_str(c, "error")) {
        if (code != 65 || !golden_str(got, "error")) fail_msg("%s: exit %d, must be refused", name, code);
    } else {
        if (code != 0) fail_msg("%s: exit %d: %s", name, code, golden_str(got, "error"));
        check_effect(c, got, name);
        assert_int_equal(json_array_size(json_object_get(got, "ranks")), json_array_size(ranks));
        for (size_t i = 0; i < json_array_size(ranks); i++)
            check_rank(json_array_get(ranks, i), json_array_get(json_object_get(got, "ranks"), i), name);
    }
    json_decref(got);
    json_decref(q);
}

static void check_file(const char *file, size_t n) {
    json_t *all = golden_load(file), *cases = json_object_get(all, "cases");
    char dir[] = "/tmp/clt_test_streams_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "case.json");
    assert_int_equal(json_array_size(cases), n);
    for (size_t i = 0; i < json_array_size(cases); i++) check_case(json_array_get(cases, i), path);
    clt_io_remove_tree(dir);
    clt_free(path);
    json_decref(all);
}

static void test_cases(void **state) {
    (void)state;
    check_file("test/golden/streams/streams.json", 95);
    check_file("test/golden/order/streams.json", 28);
}

static void test_sizes(void **state) {
    (void)state;
    json_t *all = golden_load("test/golden/streams/streams.json");
    json_t *texts = json_object_get(all, "epoch_size_texts");
    assert_int_equal(json_array_size(texts), 18);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        json_t *t = json_array_get(texts, i);
        const char *text = golden_str(t, "text");
        int64_t v = -1;
        if (!text) continue;
        clt_status st = clt_streams_parse_size(text, &v);
        if (golden_str(t, "error") ? st != CLT_BAD_CONFIG : st != CLT_OK || v != golden_int(t, "value"))
            fail_msg("epoch size '%s' gives %lld", text, (long long)v);
    }
    json_decref(all);
    static const char *const bad[] = {"-5k", "inft", "nank", "0x10k", "1e30k", "2t k"};
    int64_t v;
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++)
        assert_int_equal(clt_streams_parse_size(bad[i], &v), CLT_BAD_CONFIG);
}

/* --- training --- */

static const int64_t first_shards[] = {13, 0, 40, 8}, second_shards[] = {31, 21}, third_shards[] = {64};

static void three_streams(clt_stream out[3]) {
    out[0] = (clt_stream){"web", first_shards, 4, 0.5, NAN, NAN};
    out[1] = (clt_stream){"code", second_shards, 2, 0.3, NAN, NAN};
    out[2] = (clt_stream){"prose", third_shards, 1, 0.2, NAN, NAN};
}

static clt_streams *open_three(const clt_stream streams[3], const char *batching, int64_t ranks) {
    clt_streams_params p;
    clt_streams *s;
    clt_streams_params_default(&p);
    p.stream = streams;
    p.n = 3;
    p.epoch_size = 160; /* multiples of four for every stream: no rank gets repeated samples */
    p.batching_method = batching;
    p.order.canonical_nodes = 2;
    p.ranks_per_node = ranks;
    p.batch_size = 12 / ranks;
    assert_int_equal(clt_streams_create(&p, &s), CLT_OK);
    return s;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Every global batch of the sequence that training takes has the samples of the reference's batch on several
 * ranks, for every method whose batches do not depend on ranks. */
static void test_global_batches(void **state) {
    (void)state;
    static const char *const methods[] = {"random", "stratified", "per_stream"};
    clt_stream streams[3];
    three_streams(streams);
    for (size_t m = 0; m < CLT_COUNT_OF(methods); m++) {
        clt_streams *one = open_three(streams, methods[m], 1), *four = open_three(streams, methods[m], 4);
        for (int64_t epoch = 0; epoch < 2; epoch++)
            for (int64_t g = 0; g < clt_streams_num_samples(one) / 12; g++) {
                int64_t a[12], b[12], count, *ids;
                assert_int_equal(clt_streams_batch(one, epoch, g * 12, 12, a), CLT_OK);
                for (int64_t r = 0; r < 4; r++) {
                    assert_int_equal(clt_streams_rank(four, epoch, 0, 0, r, &ids, &count), CLT_OK);
                    memcpy(b + 3 * r, ids + 3 * g, 3 * sizeof *b);
                    clt_free(ids);
                }
                qsort(a, 12, sizeof *a, by_value);
                qsort(b, 12, sizeof *b, by_value);
                assert_memory_equal(a, b, sizeof a);
            }
        clt_streams_destroy(one);
        clt_streams_destroy(four);
    }
}

/* A position can be read alone, in any order of epochs: a resume replays nothing. */
static void test_positions(void **state) {
    (void)state;
    static const char *const methods[] = {"random", "stratified", "per_stream", "device_per_stream"};
    clt_stream streams[3];
    three_streams(streams);
    for (size_t m = 0; m < CLT_COUNT_OF(methods); m++) {
        clt_streams *a = open_three(streams, methods[m], 2), *b = open_three(streams, methods[m], 2);
        int64_t n = clt_streams_num_samples(a), *whole = clt_calloc((size_t)n, sizeof *whole), one;
        assert_true(n > 100 && n <= 160);
        assert_int_equal(clt_streams_batch(a, 3, 0, n, whole), CLT_OK);
        for (int64_t i = n - 1; i >= 0; i -= 7) {
            assert_int_equal(clt_streams_batch(b, i % 3, i, 1, &one), CLT_OK);
            assert_int_equal(clt_streams_batch(b, 3, i, 1, &one), CLT_OK);
            assert_int_equal(one, whole[i]);
            assert_true(one >= 0);
        }
        assert_int_equal(clt_streams_batch(a, 3, n, 1, &one), CLT_BAD_CONFIG);
        clt_free(whole);
        clt_streams_destroy(a);
        clt_streams_destroy(b);
    }
}

/* Streams with 60, 61 or 62 samples in turn share a batch; `more` have two samples of it, as NumPy 2.1.3's
 * argsort chooses among equal remainders. */
static void check_remainders(size_t n, int64_t batch, const char *more) {
    static const int64_t sizes[] = {60, 61, 62};
    clt_stream streams[33];
    clt_streams_params p;
    clt_streams *s;
    int64_t ids[64], drawn[33] = {0};
    clt_streams_params_default(&p);
    for (size_t i = 0; i < n; i++) streams[i] = (clt_stream){"x", &sizes[i % 3], 1, NAN, NAN, NAN};
    p.stream = streams;
    p.n = n;
    p.batching_method = "stratified";
    p.batch_size = batch;
    assert_int_equal(clt_streams_create(&p, &s), CLT_OK);
    assert_int_equal(clt_streams_batch(s, 0, 0, batch, ids), CLT_OK);
    for (int64_t i = 0; i < batch; i++) {
        size_t of = 0;
        for (int64_t end = sizes[0]; ids[i] >= end; end += sizes[++of % 3]) {
        }
        drawn[of]++;
    }
    for (size_t i = 0; i < n; i++) assert_int_equal(drawn[i], more[i] - '0');
    clt_streams_destroy(s);
}

static void test_equal_remainders(void **state) {
    (void)state;
    check_remainders(12, 15, "112111112112");
    check_remainders(33, 37, "111111111111111111112111112112112");
}

/* More than any shard has: one pick for each shard. */
static void test_granularity(void **state) {
    (void)state;
    const int64_t granularity[] = {1000, INT64_MAX};
    int64_t ids[2][160];
    clt_stream streams[3];
    three_streams(streams);
    for (int i = 0; i < 2; i++) {
        clt_streams_params p;
        clt_streams *s;
        clt_streams_params_default(&p);
        p.stream = streams;
        p.n = 3;
        p.epoch_size = 160;
        p.sampling_granularity = granularity[i];
        assert_int_equal(clt_streams_create(&p, &s), CLT_OK);
        assert_int_equal(clt_streams_batch(s, 1, 0, 160, ids[i]), CLT_OK);
        clt_streams_destroy(s);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
}

/* --- refusals --- */

static void refused(const clt_streams_params *p, const char *fact) {
    clt_streams *s;
    assert_int_not_equal(clt_streams_create(p, &s), CLT_OK);
    if (!strstr(clt_last_error(), fact)) fail_msg("the message is: %s", clt_last_error());
}

static void test_refusals(void **state) {
    (void)state;
    static const int64_t nothing[] = {0, 0};
    clt_stream streams[3];
    clt_streams_params p;
    three_streams(streams);
    clt_streams_params_default(&p);
    p.stream = streams;
    refused(&p, "no streams");
    p.n = 3;
    streams[1].proportion = NAN;
    streams[1].repeat = 2;
    refused(&p, "stream 'web' has a proportion and stream 'code' has none");
    three_streams(streams);
    streams[2].choose = 5;
    refused(&p, "stream 'prose' has both proportion and choose");
    three_streams(streams);
    streams[1].shard_samples = nothing;
    refused(&p, "stream 'code' has no samples");
    three_streams(streams);
    for (size_t i = 0; i < 3; i++) streams[i].proportion = 0;
    refused(&p, "all 0");
    three_streams(streams);
    streams[0].proportion = INFINITY;
    refused(&p, "stream 'web'");
    three_streams(streams);
    p.batching_method = "stratified";
    p.batch_size = 2;
    refused(&p, "stream 'prose'");
    p.batching_method = "per_stream";
    p.batch_size = 1 << 19;
    refused(&p, "too few for a global batch");
}

int main(int argc, char **argv) {
    (void)argc;
    char *here = clt_path_dir(argv[0]);
    cltrain = clt_path_join(here, "../../cltrain");
    clt_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),          cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_global_batches), cmocka_unit_test(test_positions),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_equal_remainders),
        cmocka_unit_test(test_granularity),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clt_free(cltrain);
    return failed;
}
