/* What a run chooses by the memory that it has: recomputation, groups of logits, the microbatch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/train/engine/clt_engine.h"
#include "test/config_util.h"

/* With room of four times what keeping everything takes, and a byte less than that. */
static void recomputation_follows_the_memory_where_it_is_open(void **state) {
    (void)state;
    static const struct {
        const char *over;
        clt_device_type type;
        clt_recompute roomy, tight;
    } all[] = {{"precision=amp_bf16", CLT_DEVICE_GPU, CLT_RECOMPUTE_NONE, CLT_RECOMPUTE_NORMS},
               {"precision=amp_bf16", CLT_DEVICE_CPU, CLT_RECOMPUTE_NORMS, CLT_RECOMPUTE_NORMS},
               {"cltrain={recompute: norms, numerics: fast}", CLT_DEVICE_GPU, CLT_RECOMPUTE_NORMS,
                CLT_RECOMPUTE_NORMS},
               {"precision=fp32", CLT_DEVICE_GPU, CLT_RECOMPUTE_NONE, CLT_RECOMPUTE_NONE}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = cu_load_with(all[i].over);
        clt_config everything = *c;
        clt_run_memory need, m;
        everything.recompute = CLT_RECOMPUTE_NONE;
        assert_int_equal(clt_run_memory_plan(&everything, all[i].type, 1, 1, &need), CLT_OK);
        c->device_train_microbatch_size = 1;
        for (int tight = 1; tight >= 0; tight--) {
            const clt_recompute want = tight ? all[i].tight : all[i].roomy;
            const uint64_t room = 4 * need.total - (uint64_t)(4 * tight);
            assert_int_equal(clt_run_choose_microbatch(c, all[i].type, 1, room, UINT64_MAX, &m), CLT_OK);
            assert_int_equal(c->recompute, want);
            if (want == CLT_RECOMPUTE_NONE) assert_int_equal(m.total, need.total);
        }
        clt_config_free(c);
    }
}

/* With room for the large logits buffer of small models, and a byte less. */
static void logits_groups_give_way_to_memory(void **state) {
    (void)state;
    clt_config *c = cu_load_with("precision=amp_bf16");
    clt_run_memory large, m;
    c->model.vocab_size = 1 << 20;
    c->global_train_batch_size = c->device_train_microbatch_size = 16;
    assert_int_equal(clt_run_memory_plan(c, CLT_DEVICE_GPU, 1, 16, &large), CLT_OK);
    assert_int_equal(clt_run_choose_microbatch(c, CLT_DEVICE_GPU, 1, large.total, UINT64_MAX, &m), CLT_OK);
    assert_int_equal(m.total, large.total);
    assert_int_equal(clt_run_choose_microbatch(c, CLT_DEVICE_GPU, 1, large.total - 1, UINT64_MAX, &m),
                     CLT_OK);
    assert_int_equal(m.microbatch, 16);
    assert_in_range(large.total - m.total, 1ull << 30, 3ull << 29);
    clt_config_free(c);
}

/* The largest that fits, as trying each of them finds it, and not by trying a billion of them. */
static void microbatch_is_the_largest_that_fits(void **state) {
    (void)state;
    clt_config *c = cu_load_with("precision=fp32");
    clt_run_memory fits, more, m;
    int less = 0;
    c->recompute = CLT_RECOMPUTE_BLOCKS;
    c->exact_lanes = 1;
    c->model.vocab_size = 1 << 18; /* logits in groups of a few samples */
    c->global_train_batch_size = 1000000000;
    for (int64_t samples = 3; samples <= 5; samples++) {
        assert_int_equal(clt_run_memory_plan(c, CLT_DEVICE_GPU, 1, samples, &fits), CLT_OK);
        int64_t largest = samples;
        for (int64_t s = samples + 1; s < 64; s++) {
            assert_int_equal(clt_run_memory_plan(c, CLT_DEVICE_GPU, 1, s, &more), CLT_OK);
            if (more.total <= fits.total) largest = s;
        }
        less += largest > samples;
        c->device_train_microbatch_size = 0; /* auto */
        assert_int_equal(clt_run_choose_microbatch(c, CLT_DEVICE_GPU, 1, fits.total, UINT64_MAX, &m), CLT_OK);
        assert_int_equal(m.microbatch, largest);
        c->device_train_microbatch_size = 900000000;
        assert_int_equal(clt_run_choose_microbatch(c, CLT_DEVICE_GPU, 1, fits.total, UINT64_MAX, &m),
                         CLT_NO_MEMORY);
        char *advice = clt_format("what would fit: device_train_microbatch_size: %d (", (int)largest);
        assert_non_null(strstr(clt_last_error(), advice));
        clt_free(advice);
    }
    assert_true(less > 0); /* more samples do need less at times */
    clt_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputation_follows_the_memory_where_it_is_open),
        cmocka_unit_test(logits_groups_give_way_to_memory),
        cmocka_unit_test(microbatch_is_the_largest_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
