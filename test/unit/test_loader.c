/* Batches for the trainer: the ids that the real DataLoader delivered (test/golden/e2e), labels, sequence
 * ids, padding, reading ahead, and what a loader refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_loader.h"
#include "runtime/data/clt_mds.h"
#include "test/golden_util.h"

enum { E2E_T = 128, E2E_N = 300, E2E_VAL = 36, E2E_B = 16, T = 6 };

static clt_loader_params e2e_params(const char *local) {
    clt_loader_params p;
    clt_loader_params_default(&p);
    p.local = local;
    p.split = "train";
    p.max_seq_len = E2E_T;
    p.vocab_size = 512;
    p.shuffle = true;
    p.shuffle_seed = 17;
    p.num_canonical_nodes = 2;
    p.pad_token_id = 1;
    p.max_rows = E2E_B;
    return p;
}

static const int32_t *field(const clt_batch *b, int which) {
    return b->field[which];
}

static void check_batch(clt_mds *m, json_t *want, const clt_batch *b) {
    size_t n;
    int64_t *ids = golden_ints(json_object_get(want, "sample_ids"), &n);
    assert_int_equal(b->samples, n);
    assert_memory_equal(b->sample_ids, ids, n * sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        int32_t tokens[E2E_T];
        int64_t got;
        const int32_t *row = field(b, CLT_TEXT_TOKENS) + i * E2E_T,
                      *targets = field(b, CLT_TEXT_TARGETS) + i * E2E_T;
        assert_int_equal(clt_mds_get_tokens(m, ids[i], E2E_T, 512, tokens, &got, NULL), CLT_OK);
        assert_int_equal(got, E2E_T);
        assert_memory_equal(row, tokens, sizeof tokens);
        assert_memory_equal(targets, tokens + 1, (E2E_T - 1) * sizeof *tokens);
        assert_int_equal(targets[E2E_T - 1], CLT_LABEL_IGNORE);
        assert_int_equal(b->sample_targets[i], E2E_T - 1);
    }
    assert_int_equal(b->tokens, (int64_t)n * E2E_T);
    assert_int_equal(b->targets, (int64_t)n * (E2E_T - 1));
    assert_null(field(b, CLT_TEXT_SEQ_IDS));
    clt_free(ids);
}

/* Both epochs, read ahead or not, plain or zstd, from the start or from the middle. */
static void run_epochs(const char *local, bool ahead, size_t from) {
    json_t *all = golden_load("test/golden/e2e/order.json"), *batches = json_object_get(all, "batches");
    clt_loader_params p = e2e_params(local);
    clt_loader *l;
    clt_mds *m;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(clt_mds_open("test/golden/e2e/mds/train", NULL, &m), CLT_OK);
    assert_int_equal(clt_loader_num_samples(l), E2E_N);
    assert_int_equal(clt_loader_canonical_nodes(l), 2);
    assert_int_equal(clt_loader_batches(l, E2E_B, true), golden_int(all, "batches_per_epoch_in_training"));
    assert_int_equal(json_array_size(batches), 38);
    for (size_t i = from; i < json_array_size(batches); i++) {
        json_t *want = json_array_get(batches, i), *next = json_array_get(batches, i + 1);
        int64_t count = (int64_t)json_array_size(json_object_get(want, "sample_ids"));
        clt_batch b;
        assert_int_equal(
            clt_loader_get(l, golden_int(want, "epoch"), golden_int(want, "batch") * E2E_B, count, &b),
            CLT_OK);
        if (ahead && next)
            clt_loader_prefetch(l, golden_int(next, "epoch"), golden_int(next, "batch") * E2E_B,
                                (int64_t)json_array_size(json_object_get(next, "sample_ids")));
        check_batch(m, want, &b);
    }
    clt_mds_close(m);
    clt_loader_close(l);
    json_decref(all);
}

static void test_e2e_epochs(void **state) {
    (void)state;
    run_epochs("test/golden/e2e/mds", false, 0);
    run_epochs("test/golden/e2e/mds", true, 0);
    run_epochs("test/golden/e2e/mds-zstd", true, 0);
    run_epochs("test/golden/e2e/mds", true, 25);
}

/* A rank that owns part of the global batch gets exactly that part. */
static void test_parts(void **state) {
    (void)state;
    clt_loader_params p = e2e_params("test/golden/e2e/mds");
    clt_loader *whole, *part;
    clt_batch a, b;
    assert_int_equal(clt_loader_open(&p, &whole), CLT_OK);
    assert_int_equal(clt_loader_open(&p, &part), CLT_OK);
    for (int64_t g = 0; g < 3; g++) {
        assert_int_equal(clt_loader_get(whole, 0, g * E2E_B, E2E_B, &a), CLT_OK);
        assert_int_equal(clt_loader_get(part, 0, g * E2E_B + 5, 7, &b), CLT_OK);
        clt_loader_prefetch(part, 3, 9, 4); /* a wrong guess has no effect */
        assert_memory_equal(field(&a, CLT_TEXT_TOKENS) + 5 * E2E_T, field(&b, CLT_TEXT_TOKENS),
                            7 * E2E_T * sizeof(int32_t));
    }
    assert_int_equal(clt_loader_get(part, 0, 0, 0, &b), CLT_OK);
    assert_int_equal(b.samples, 0);
    assert_int_equal(b.targets, 0);
    assert_int_equal(clt_loader_get(part, 0, E2E_N - 1, 2, &b), CLT_BAD_CONFIG); /* past the end */
    assert_int_equal(clt_loader_get(part, 0, 0, E2E_B + 1, &b), CLT_FAIL);
    clt_loader_close(whole);
    clt_loader_close(part);
}

/* Evaluation: every sample once, in index order, in 5 batches of 8, with any order options. */
static void test_eval(void **state) {
    (void)state;
    clt_loader_params p = e2e_params("test/golden/e2e/mds");
    clt_loader *l;
    clt_batch b;
    p.split = "val";
    p.eval = true;
    p.max_rows = 8;
    p.num_canonical_nodes = 7;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(clt_loader_num_samples(l), E2E_VAL);
    assert_int_equal(clt_loader_batches(l, 8, false), 5);
    int64_t seen = 0;
    for (int64_t g = 0; g < 5; g++) {
        assert_int_equal(clt_loader_get(l, 0, g * 8, CLT_MIN(8, E2E_VAL - g * 8), &b), CLT_OK);
        for (int64_t i = 0; i < b.samples; i++) assert_int_equal(b.sample_ids[i], seen++);
    }
    assert_int_equal(seen, E2E_VAL);
    clt_loader_close(l);
}

/* Nothing is allocated from the second step on, also across the end of an epoch. */
static void test_steady(void **state) {
    (void)state;
    static const char *const sets[] = {"test/golden/e2e/mds", "test/golden/e2e/mds-zstd"};
    for (size_t k = 0; k < CLT_COUNT_OF(sets); k++) {
        clt_loader_params p = e2e_params(sets[k]);
        clt_loader *l;
        clt_batch b;
        uint64_t before = 0;
        assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
        for (int64_t g = 0; g < 40; g++) {
            if (g == 1) before = clt_alloc_count();
            assert_int_equal(clt_loader_get(l, g / 18, g % 18 * E2E_B, E2E_B, &b), CLT_OK);
            clt_loader_prefetch(l, (g + 1) / 18, (g + 1) % 18 * E2E_B, E2E_B);
        }
        assert_true(clt_alloc_count() == before);
        clt_loader_close(l);
    }
}

/* --- small sets --- */

static char *scratch_dir(void) {
    char *dir = clt_strdup("/tmp/clt_test_loader_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static char *write_rows(const int32_t rows[][8], const size_t *lengths, size_t n) {
    char *dir = scratch_dir();
    clt_mds_writer_params wp;
    clt_mds_writer *w;
    clt_mds_writer_params_default(&wp);
    assert_int_equal(clt_mds_writer_create(dir, &wp, &w), CLT_OK);
    for (size_t i = 0; i < n; i++) assert_int_equal(clt_mds_writer_add(w, rows[i], lengths[i]), CLT_OK);
    assert_int_equal(clt_mds_writer_finish(w), CLT_OK);
    return dir;
}

static clt_loader_params small_params(const char *local) {
    clt_loader_params p;
    clt_loader_params_default(&p);
    p.local = local;
    p.max_seq_len = T;
    p.vocab_size = 20;
    p.max_rows = 3;
    return p;
}

static void discard(char *dir) {
    clt_io_remove_tree(dir);
    clt_free(dir);
}

/* A short sample, one of the right length, one that is cut; 9 is the padding id, 7 ends a sequence. */
static const int32_t three_rows[][8] = {{5, 7, 3}, {1, 9, 7, 7, 9, 4}, {7, 1, 2, 3, 4, 5, 6, 7}};
static const size_t three_lengths[] = {3, 6, 8};

static void test_labels(void **state) {
    (void)state;
    enum { X = CLT_LABEL_IGNORE };
    static const int32_t tokens[] = {5, 7, 3, 9, 9, 9, 1, 9, 7, 7, 9, 4, 7, 1, 2, 3, 4, 5};
    static const int32_t targets[] = {7, 3, X, X, X, X, X, 7, 7, X, 4, X, 1, 2, 3, 4, 5, X};
    static const int32_t unpadded[] = {7, 3, X, X, X, X, 9, 7, 7, 9, 4, X, 1, 2, 3, 4, 5, X};
    static const int32_t eos_ids[] = {0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 2, 2, 0, 1, 1, 1, 1, 1};
    static const int32_t bos_ids[] = {0, 1, 1, 1, 1, 1, 0, 0, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1};
    char *dir = write_rows(three_rows, three_lengths, 3);
    clt_loader_params p = small_params(dir);
    clt_loader *l;
    clt_batch b;
    p.pad_token_id = 9;
    p.eos_token_id = 7;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(clt_loader_layout(l)->field[CLT_TEXT_SEQ_IDS].bytes, T * sizeof(int32_t));
    assert_int_equal(clt_loader_get(l, 0, 0, 3, &b), CLT_OK);
    assert_memory_equal(field(&b, CLT_TEXT_TOKENS), tokens, sizeof tokens);
    assert_memory_equal(field(&b, CLT_TEXT_TARGETS), targets, sizeof targets);
    assert_memory_equal(field(&b, CLT_TEXT_SEQ_IDS), eos_ids, sizeof eos_ids);
    assert_int_equal(b.targets, 10);
    assert_int_equal(b.tokens, 15);
    assert_int_equal(b.sample_targets[0], 2);
    clt_loader_close(l);
    p.pad_token_id = p.eos_token_id = -1;
    p.bos_token_id = 7;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(clt_loader_get(l, 0, 0, 3, &b), CLT_OK);
    assert_memory_equal(field(&b, CLT_TEXT_TARGETS), unpadded, sizeof unpadded);
    assert_memory_equal(field(&b, CLT_TEXT_SEQ_IDS), bos_ids, sizeof bos_ids);
    assert_int_equal(field(&b, CLT_TEXT_TOKENS)[3], 0);
    assert_int_equal(b.targets, 12);
    clt_loader_close(l);
    discard(dir);
}

/* An id that the model does not have: sample and position are named; if it was read ahead, only when it is
 * used. */
static void test_vocabulary(void **state) {
    (void)state;
    static const int32_t rows[][8] = {{1, 2}, {3, 4, 20}, {5, 19}};
    static const size_t lengths[] = {2, 3, 2};
    char *dir = write_rows(rows, lengths, 3);
    clt_loader_params p = small_params(dir);
    p.shuffle = false;
    clt_loader *l;
    clt_batch b;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    clt_loader_prefetch(l, 0, 1, 1);
    assert_int_equal(clt_loader_get(l, 0, 0, 1, &b), CLT_OK);
    clt_loader_prefetch(l, 0, 1, 1);
    assert_int_equal(clt_loader_get(l, 0, 1, 1, &b), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "token id 20 is outside the vocabulary of 20, at position 2"));
    assert_non_null(strstr(clt_last_error(), "[sample 1 of the dataset]"));
    assert_int_equal(clt_loader_get(l, 0, 2, 1, &b), CLT_OK);
    assert_int_equal(field(&b, CLT_TEXT_TOKENS)[1], 19);
    clt_loader_close(l);
    discard(dir);
}

static void test_text(void **state) {
    (void)state;
    clt_loader_params p = small_params("test/golden/mds/text_str");
    clt_loader *l;
    clt_batch b;
    p.shuffle = false;
    p.vocab_size = 257;
    p.tokenizer = "EleutherAI/gpt-neox-20b";
    assert_int_equal(clt_loader_open(&p, &l), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "tokenizer 'EleutherAI/gpt-neox-20b' cannot be loaded"));
    p.tokenizer = "bytes";
    p.vocab_size = 256;
    assert_int_equal(clt_loader_open(&p, &l), CLT_BAD_CONFIG);
    p.vocab_size = 257;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(clt_loader_get(l, 0, 0, 2, &b), CLT_OK); /* "Hello world" and "" */
    static const int32_t want[] = {'H', 'e', 'l', 'l', 'o', ' ', 0, 0, 0, 0, 0, 0};
    assert_memory_equal(field(&b, CLT_TEXT_TOKENS), want, sizeof want);
    assert_int_equal(b.targets, T - 1);
    assert_int_equal(b.sample_targets[1], 0);
    clt_loader_close(l);
}

/* --- several streams --- */

static const clt_loader_stream two_streams[] = {
    {"train", "test/golden/e2e/mds", NULL, "train", NULL, 3, NAN, NAN},
    {"val", "test/golden/e2e/mds", NULL, "val", NULL, 1, NAN, NAN}};

static clt_loader_params streams_params(const char *batching) {
    clt_loader_params p = e2e_params(NULL);
    p.split = NULL;
    p.streams = two_streams;
    p.n_streams = 2;
    p.epoch_size = 100;
    p.batching_method = batching;
    p.global_batch = E2E_B;
    return p;
}

/* Ids of the second stream follow those of the first; tokens come from the stream's folder. */
static void test_streams(void **state) {
    (void)state;
    clt_loader_params p = streams_params("stratified");
    clt_loader *l;
    clt_mds *m[2];
    clt_batch b;
    assert_int_equal(clt_mds_open("test/golden/e2e/mds/train", NULL, &m[0]), CLT_OK);
    assert_int_equal(clt_mds_open("test/golden/e2e/mds/val", NULL, &m[1]), CLT_OK);
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(clt_loader_num_samples(l), 6 * E2E_B);
    for (int64_t g = 0; g < 8; g++) {
        assert_int_equal(clt_loader_get(l, g / 6, g % 6 * E2E_B, E2E_B, &b), CLT_OK);
        clt_loader_prefetch(l, (g + 1) / 6, (g + 1) % 6 * E2E_B, E2E_B);
        for (int64_t i = 0; i < E2E_B; i++) {
            const int k = i >= E2E_B * 3 / 4;
            int32_t tokens[E2E_T];
            int64_t id = b.sample_ids[i] - k * E2E_N, n;
            assert_true(id >= 0 && id < (k ? E2E_VAL : E2E_N));
            assert_int_equal(clt_mds_get_tokens(m[k], id, E2E_T, 512, tokens, &n, NULL), CLT_OK);
            assert_memory_equal(field(&b, CLT_TEXT_TOKENS) + i * E2E_T, tokens, sizeof tokens);
        }
    }
    clt_loader_close(l);
    p.eval = true;
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    assert_int_equal(clt_loader_num_samples(l), E2E_N + E2E_VAL);
    assert_int_equal(clt_loader_get(l, 0, E2E_N - 1, 2, &b), CLT_OK);
    assert_int_equal(b.sample_ids[1], E2E_N);
    clt_loader_close(l);
    clt_mds_close(m[0]);
    clt_mds_close(m[1]);
}

/* Neighbouring devices get the same samples; a global batch has each distinct one `replication` times. */
static void test_replication(void **state) {
    (void)state;
    static const char *const methods[] = {"random", "stratified", "per_stream", "device_per_stream"};
    enum { DEVICES = 4, COPIES = 2, PART = E2E_B / DEVICES };
    for (size_t k = 0; k < CLT_COUNT_OF(methods); k++) {
        clt_loader_params p = streams_params(methods[k]);
        clt_loader *l;
        clt_batch b;
        p.devices = DEVICES;
        p.replication = COPIES;
        assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
        const int64_t n = clt_loader_num_samples(l);
        assert_true(n > 10 * E2E_B && n <= COPIES * 112);
        for (int64_t at = 0; at + E2E_B <= n; at += E2E_B) {
            assert_int_equal(clt_loader_get(l, 1, at, E2E_B, &b), CLT_OK);
            for (int64_t d = 0; d < DEVICES; d += COPIES)
                assert_memory_equal(b.sample_ids + d * PART, b.sample_ids + (d + 1) * PART,
                                    PART * sizeof *b.sample_ids);
            assert_true(b.sample_ids[0] != b.sample_ids[COPIES * PART]);
        }
        if (n % E2E_B) assert_int_equal(clt_loader_get(l, 1, n - n % E2E_B, n % E2E_B, &b), CLT_OK);
        clt_loader_close(l);
    }
}

static void refused(const clt_loader_params *p, clt_status want, const char *fact) {
    clt_loader *l;
    assert_int_equal(clt_loader_open(p, &l), want);
    if (!strstr(clt_last_error(), fact)) fail_msg("the message is: %s", clt_last_error());
}

static void test_refusals(void **state) {
    (void)state;
    char *empty = scratch_dir();
    clt_loader_params p = small_params(empty);
    refused(&p, CLT_BAD_DATA, "no index.json");
    p.split = "train";
    refused(&p, CLT_BAD_DATA, "does not exist");
    p.remote = "gs://bucket/c4";
    p.local = "/tmp/cltrain-test-loader.none";
    refused(&p, CLT_BAD_CONFIG, "gs:// is not supported");
    assert_int_equal(clt_io_remove_tree(p.local), CLT_OK);
    p = small_params("test/golden/e2e/mds/val");
    p.shuffle = true;
    p.shuffle_algo = "py1x";
    refused(&p, CLT_BAD_CONFIG, "unknown shuffle_algo 'py1x'");
    p.shuffle_algo = NULL;
    p.eos_token_id = p.bos_token_id = 0;
    refused(&p, CLT_BAD_CONFIG, "eos_token_id and bos_token_id");
    p = streams_params("random");
    p.replication = 3;
    p.devices = 4;
    refused(&p, CLT_BAD_CONFIG, "replication 3 must divide the number of ranks, 4");
    p = streams_params("device_per_stream");
    p.devices = 3;
    refused(&p, CLT_BAD_CONFIG, "3 ranks do not divide");
    clt_loader_stream gone[] = {two_streams[0], {"prose", empty, NULL, "no", NULL, 1, NAN, NAN}};
    p = streams_params("random");
    p.streams = gone;
    refused(&p, CLT_BAD_DATA, "stream 'prose'");
    p = small_params("test/golden/e2e/mds/val");
    p.max_seq_len = 0;
    refused(&p, CLT_BAD_CONFIG, "max_seq_len");
    p = small_params(NULL);
    refused(&p, CLT_BAD_CONFIG, "local is missing");
    p = small_params("test/golden/mds/corrupt/offset_past_end");
    refused(&p, CLT_BAD_DATA, "past the end");
    discard(empty);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e2e_epochs), cmocka_unit_test(test_parts),   cmocka_unit_test(test_eval),
        cmocka_unit_test(test_steady),     cmocka_unit_test(test_labels),  cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_text),       cmocka_unit_test(test_streams), cmocka_unit_test(test_replication),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
