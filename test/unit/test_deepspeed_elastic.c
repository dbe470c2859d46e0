/* elasticity of ds_config.json: the batches and numbers of ranks that DeepSpeed 0.16.4 itself computed
 * (test/golden/deepspeed/elasticity.json), through the configuration and without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/config/clt_deepspeed.h"
#include "test/config_util.h"
#include "test/golden_util.h"

#define GOLDEN "test/golden/deepspeed/elasticity.json"
#define OLD "0.16.4"

static const char base[] =
    "model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, max_seq_len: 64,\n"
    "  vocab_size: 512}\n"
    "tokenizer: {name: bytes}\n"
    "train_loader: {name: text, dataset: {local: x}}\n"
    "scheduler: {name: constant_with_warmup, t_warmup: 0ba}\n"
    "max_seq_len: 64\n"
    "max_duration: 30ba\n";

/* Loads the case's file for a run of so many ranks. */
static clt_status load(const json_t *one, int64_t ranks, clt_config **out) {
    char path[] = "/tmp/test_elastic_XXXXXX", size[24];
    json_t *file = json_deep_copy(json_object_get(one, "other"));
    json_object_set(file, "elasticity", json_object_get(one, "elasticity"));
    json_object_set_new(file, "optimizer", json_pack("{ss}", "type", "AdamW"));
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(json_dumpfd(file, fd, 0), 0);
    close(fd);
    json_decref(file);
    char *over = clt_format("deepspeed=%s", path);
    snprintf(size, sizeof size, "%lld", (long long)ranks);
    setenv("OMPI_COMM_WORLD_SIZE", size, 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    *out = NULL;
    clt_status st = clt_config_parse(base, strlen(base), "base.yaml", (const char *const *)&over, 1, out);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
    clt_free(over);
    unlink(path);
    return st;
}

static bool has_text(const json_t *want, const char *text) {
    const char *message = json_string_value(json_object_get(want, "message"));
    return message && strstr(message, text);
}

static void check_values(size_t i, const clt_config *c, const json_t *want, int64_t ranks, bool given) {
    const json_t *valid = json_object_get(want, "valid_gpus"), *triple = json_object_get(want, "config");
    assert_int_equal(c->global_train_batch_size,
                     json_integer_value(json_object_get(want, "final_batch_size")));
    assert_int_equal(c->n_elastic, json_array_size(valid));
    for (int k = 0; k < c->n_elastic; k++)
        assert_int_equal(c->elastic[k][0], json_integer_value(json_array_get(valid, (size_t)k)));
    if (!given) return;
    const int64_t micro = c->device_train_microbatch_size,
                  got[] = {c->global_train_batch_size, micro, c->global_train_batch_size / micro / ranks};
    assert_int_equal(micro, json_integer_value(json_object_get(want, "micro_batch_size")));
    for (size_t k = 0; k < 3; k++)
        if (got[k] != json_integer_value(json_array_get(triple, k))) fail_msg("case %zu, %zu", i, k);
}

static void files_are_deepspeeds(void **state) {
    (void)state;
    json_t *all = golden_load(GOLDEN), *one;
    size_t i, good = 0, bad = 0;
    json_array_foreach(json_object_get(all, "cases"), i, one) {
        const json_t *want = json_object_get(one, OLD), *section = json_object_get(one, "elasticity"),
                     *config = json_object_get(want, "config");
        const int64_t world = json_integer_value(json_object_get(one, "world_size")),
                      first = json_integer_value(json_array_get(json_object_get(want, "valid_gpus"), 0)),
                      ranks = world ? world : CLT_MAX(first, (int64_t)1);
        /* Off, or asked without a number of ranks, which a run always has. */
        if (!json_is_true(json_object_get(section, "enabled")) || has_text(want, "WORLD_SIZE") ||
            has_text(want, "division"))
            continue;
        /* Ranks that share a sample do not exist here; the values are compared below. */
        const bool error = json_object_get(want, "error") || json_object_get(config, "error") ||
                           json_integer_value(json_object_get(section, "model_parallel_size")) > 1;
        clt_config *c;
        clt_status st = load(one, ranks, &c);
        if (st != (error ? CLT_BAD_CONFIG : CLT_OK)) fail_msg("case %zu: %s", i, clt_last_error());
        if (!error) check_values(i, c, want, ranks, world > 0);
        good += !error;
        bad += error;
        clt_config_free(c);
    }
    assert_true(good >= 7 && bad >= 14);
    json_decref(all);
}

static void model_parallel_is_deepspeeds(void **state) {
    (void)state;
    static const int64_t want[] = {4,  8,  12, 16,  20,  24,  32,  40,  48,  60,
                                   64, 80, 96, 120, 160, 192, 240, 320, 480, 960};
    const clt_deepspeed_elastic e = {.version = 2,
                                     .max_batch = 2000,
                                     .micro = {2, 4, 6},
                                     .n_micro = 3,
                                     .min_gpus = 1,
                                     .max_gpus = 10000,
                                     .gpus_per_node = 8,
                                     .model_parallel = 2,
                                     .prefer_larger = true};
    clt_deepspeed_elastic_plan p;
    assert_null(clt_deepspeed_elastic_compute(&e, 16, &p));
    assert_true(p.batch == 1920 && p.micro == 6 && p.n == (int)CLT_COUNT_OF(want));
    assert_memory_equal(p.ranks, want, sizeof want);
    clt_free(p.ranks);
}

/* Version 0.2 with a number of ranks that no batch of all has: the batch for it alone. */
static void other_numbers_have_their_own_batch(void **state) {
    (void)state;
    json_t *one = json_pack("{s{} s{sb si s[iii] sf}}", "other", "elasticity", "enabled", 1,
                            "max_train_batch_size", 2000, "micro_batch_sizes", 2, 4, 6, "version", 0.2);
    clt_config *c;
    assert_int_equal(load(one, 11, &c), CLT_OK);
    assert_int_equal(c->global_train_batch_size, 1980); /* 6 * 11 * 30 */
    assert_int_equal(c->device_train_microbatch_size, 6);
    clt_config_free(c);
    json_decref(one);
}

/* A number of ranks that is not valid is refused with those near it; every valid one keeps the batch. */
static void valid_numbers_keep_the_batch(void **state) {
    (void)state;
    json_t *one = json_pack("{s{} s{sb si s[ii] sf}}", "other", "elasticity", "enabled", 1,
                            "max_train_batch_size", 500, "micro_batch_sizes", 3, 5, "version", 0.1);
    clt_config *c;
    assert_int_equal(load(one, 7, &c), CLT_BAD_CONFIG);
    if (!strstr(clt_last_error(), "valid numbers near it are 4, 5, 6, 8, 9, 10"))
        fail_msg("%s", clt_last_error());
    for (int64_t ranks = 1; ranks <= 5; ranks += 2) {
        assert_int_equal(load(one, ranks, &c), CLT_OK);
        assert_int_equal(c->global_train_batch_size, 360);
        assert_int_equal(360 / ranks % c->device_train_microbatch_size, 0);
        clt_config_free(c);
    }
    json_decref(one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_deepspeeds), cmocka_unit_test(model_parallel_is_deepspeeds),
        cmocka_unit_test(other_numbers_have_their_own_batch), cmocka_unit_test(valid_numbers_keep_the_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
