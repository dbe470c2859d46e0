/* Host memory runs out while a program uses the library: requests of cltrain from the n-th on are refused,
 * one or all of them, for n spread over the whole life of a run. Each call must return, with
 * CLTRAIN_NO_MEMORY or a result; the process must live; and the next run in it must train as ever.
 * The linker routes the allocations of cltrain's own code to the functions here (--wrap in the Makefile);
 * those of drivers and other libraries are left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/include/cltrain/cltrain.h"
#include "test/run_util.h"

/* --- the allocator: requests first .. first + refusals - 1 are refused --- */

static atomic_long requests, first, refusals;

static bool refused(void) {
    const long n = atomic_fetch_add(&requests, 1), from = atomic_load(&first);
    return from >= 0 && n >= from && n - from < atomic_load(&refusals);
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);

void *__wrap_malloc(size_t bytes) {
    return refused() ? NULL : __real_malloc(bytes);
}
void *__wrap_calloc(size_t count, size_t size) {
    return refused() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *p, size_t bytes) {
    return refused() ? NULL : __real_realloc(p, bytes);
}
void *__wrap_aligned_alloc(size_t align, size_t bytes) {
    return refused() ? NULL : __real_aligned_alloc(align, bytes);
}

/* --- one run --- */

static const char *folder, *cache;

static void drop_text(void *context, const char *text, size_t bytes) {
    (void)context;
    (void)text;
    (void)bytes;
}

typedef enum { CREATE, CONFIG, CACHE, OPEN, TRAIN, EVALUATE, SAVE, GENERATE, HASH, CALLS } call;

static cltrain_status make(call c, cltrain_run **run, const char *text, cltrain_hash *hash) {
    cltrain_evaluation e;
    cltrain_generation g = cltrain_generation_default();
    g.max_new_tokens = 3;
    switch (c) {
    case CREATE:
        return cltrain_run_create(run);
    case CONFIG:
        return cltrain_run_config_text(*run, text);
    case CACHE:
        return cltrain_run_cache(*run, cache);
    case OPEN:
        return cltrain_run_open(*run);
    case TRAIN:
        return cltrain_run_train(*run, 2);
    case EVALUATE:
        return cltrain_run_evaluate(*run, NULL, &e);
    case SAVE:
        return cltrain_run_save(*run);
    case GENERATE:
        return cltrain_run_generate(*run, "a", &g, drop_text, NULL);
    case HASH:
        return cltrain_run_hash(*run, hash);
    case CALLS:
        break;
    }
    return CLTRAIN_FAILED;
}

static long begins[CALLS + 1]; /* the number of the first request of each call of the last run */

/* All calls up to the first that fails; returns that one, or CALLS. */
static call run_once(const char *text, cltrain_status *st, cltrain_hash *hash) {
    cltrain_run *run = NULL;
    call c = CREATE;
    atomic_store(&requests, 0);
    for (; c < CALLS; c++) {
        begins[c] = atomic_load(&requests);
        if ((*st = make(c, &run, text, hash)) != CLTRAIN_OK) break;
    }
    if (c == CALLS) begins[CALLS] = atomic_load(&requests);
    cltrain_run_close(run);
    return c;
}

/* --- the test --- */

static char *run_text(void) {
    return clt_format(
        "run_name: memory\nmax_seq_len: 128\n"
        "model: {name: mpt_causal_lm, d_model: 32, n_heads: 2, n_layers: 2, max_seq_len: 128, vocab_size: "
        "512}\n"
        "tokenizer: {name: bytes}\n"
        "train_loader: {name: text, dataset: {local: test/golden/e2e/mds, split: train, max_seq_len: 128}}\n"
        "eval_loader: {name: text, dataset: {local: test/golden/e2e/mds, split: val, max_seq_len: 128}, "
        "drop_last: false}\n"
        "optimizer: {name: decoupled_adamw, lr: 1.0e-3}\n"
        "scheduler: {name: constant_with_warmup, t_warmup: 2ba}\n"
        "max_duration: 8ba\neval_interval: 0\nglobal_train_batch_size: 8\ndevice_eval_batch_size: 8\n"
        "precision: fp32\nsave_folder: %s\nsave_interval: 100ba\n",
        folder);
}

/* Returns whether some call failed. */
static bool refuse(long from, long count, const char *text) {
    cltrain_status st = CLTRAIN_OK;
    cltrain_hash hash;
    clt_io_remove_tree(folder);
    atomic_store(&refusals, count);
    atomic_store(&first, from);
    const call c = run_once(text, &st, &hash);
    atomic_store(&first, -1);
    if (c == CALLS) return false;
    /* Saving keeps the run and its reason. */
    if (st != CLTRAIN_NO_MEMORY && !(c == SAVE && st == CLTRAIN_IO))
        fail_msg("request %ld refused, call %d: %s: %s", from, c, cltrain_status_name(st),
                 cltrain_error_message());
    if (!*cltrain_error_message()) fail_msg("request %ld refused: no message", from);
    return true;
}

static cltrain_hash undisturbed(const char *text) {
    cltrain_status st = CLTRAIN_OK;
    cltrain_hash h;
    clt_io_remove_tree(folder);
    if (run_once(text, &st, &h) != CALLS) fail_msg("an undisturbed run: %s", cltrain_error_message());
    return h;
}

static void no_request_ends_the_process(void **state) {
    static const char *const names[] = {"create",   "config", "cache",    "open", "train",
                                        "evaluate", "save",   "generate", "hash"};
    enum { ATTEMPTS = 8 }; /* in each call */
    (void)state;
    char *text = run_text();
    long start[CALLS + 1], failed = 0, attempts = 0;
    atomic_store(&first, -1);
    undisturbed(text); /* kernels are in the cache now */
    const cltrain_hash want = undisturbed(text);
    memcpy(start, begins, sizeof start);
    for (call c = CREATE; c < CALLS; c++) {
        const long n = start[c + 1] - start[c], step = CLT_MAX(n / ATTEMPTS, 1);
        print_message("%s: %ld requests\n", names[c], n);
        for (long i = start[c]; i < start[c + 1]; i += step, attempts += 2)
            failed += refuse(i, 1, text) + refuse(i, start[CALLS], text);
    }
    print_message("%ld of %ld attempts ended with an error\n", failed, attempts);
    assert_true(failed > attempts / 2);
    const cltrain_hash got = undisturbed(text);
    assert_string_equal(got.weights, want.weights);
    assert_string_equal(got.optimizer, want.optimizer);
    clt_free(text);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_request_ends_the_process)};
    ru_begin(argv[0]);
    folder = ru_path("run");
    cache = ru_path("cache");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ru_end();
    return failed;
}
