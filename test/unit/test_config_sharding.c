/* Which stage and which groups of ranks follow from cltrain.zero_stage and from fsdp_config as Composer
 * writes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "test/config_util.h"

/* CU_BASE has no fsdp_config. */
static void stages(void **state) {
    (void)state;
    static const struct {
        const char *over;
        int stage;
    } all[] = {{"seed=17", CLT_STAGE_AUTO},
               {"cltrain={zero_stage: auto}", CLT_STAGE_AUTO},
               {"cltrain={zero_stage: null}", CLT_STAGE_AUTO},
               {"cltrain={zero_stage: 0}", 0},
               {"cltrain={zero_stage: 1}", 1},
               {"cltrain={zero_stage: 3}", 3},
               {"fsdp_config=null", CLT_STAGE_AUTO},
               {"fsdp_config={}", 3}, /* Composer's default */
               {"fsdp_config={activation_checkpointing: true}", 3},
               {"fsdp_config={sharding_strategy: FULL_SHARD}", 3},
               {"fsdp_config={sharding_strategy: SHARD_GRAD_OP}", 2},
               {"fsdp_config={sharding_strategy: NO_SHARD}", 0},
               {"fsdp_config={sharding_strategy: HYBRID_SHARD, data_parallel_shard_degree: 2}", 3},
               {"fsdp_config={sharding_strategy: _HYBRID_SHARD_ZERO2, data_parallel_shard_degree: 2}", 2},
               {"fsdp_config={reshard_after_forward: true}", 3},
               {"fsdp_config={reshard_after_forward: false}", 2},
               {"fsdp_config={sharding_strategy: SHARD_GRAD_OP, reshard_after_forward: true}", 2},
               {"fsdp_config={sharding_strategy: NO_SHARD, reshard_after_forward: false}", 0}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = cu_load_with(all[i].over);
        if (c->shard.zero_stage != all[i].stage)
            fail_msg("%s: stage %d, not %d", all[i].over, c->shard.zero_stage, all[i].stage);
        clt_config_free(c);
    }
}

/* Both given and not in contradiction. */
static void both_keys_may_agree(void **state) {
    (void)state;
    static const struct {
        const char *over[2];
        int stage;
    } all[] = {{{"cltrain={zero_stage: auto}", "fsdp_config={sharding_strategy: SHARD_GRAD_OP}"}, 2},
               {{"cltrain={zero_stage: 2}", "fsdp_config={sharding_strategy: SHARD_GRAD_OP}"}, 2},
               {{"cltrain={zero_stage: 2}",
                 "fsdp_config={sharding_strategy: FULL_SHARD, reshard_after_forward: false}"},
                2},
               {{"cltrain={zero_stage: 1}", "fsdp_config={mixed_precision: PURE}"}, 1}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = NULL;
        if (clt_config_load(CU_BASE, all[i].over, 2, &c) != CLT_OK) fail_msg("%s", clt_last_error());
        assert_int_equal(c->shard.zero_stage, all[i].stage);
        clt_config_free(c);
    }
}

static void offload_and_gathers(void **state) {
    (void)state;
    static const struct {
        const char *over;
        clt_offload offload;
        bool limit;
    } all[] = {{"seed=17", CLT_OFFLOAD_NONE, true},
               {"cltrain={offload: host}", CLT_OFFLOAD_HOST, true},
               {"cltrain={offload: none}", CLT_OFFLOAD_NONE, true},
               {"fsdp_config={cpu_offload: true}", CLT_OFFLOAD_HOST, true},
               {"fsdp_config={cpu_offload: false, limit_all_gathers: false}", CLT_OFFLOAD_NONE, false}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = cu_load_with(all[i].over);
        assert_int_equal(c->shard.offload, all[i].offload);
        assert_int_equal(c->shard.limit_gathers, all[i].limit);
        clt_config_free(c);
    }
}

static void weights_in_host_memory_need_stage_3(void **state) {
    (void)state;
    static const struct {
        const char *over;
        bool loads, host;
    } all[] = {{"cltrain={zero_stage: 3, offload_parameters: host}", true, true},
               {"cltrain={zero_stage: 3, offload_parameters: none}", true, false},
               {"cltrain={offload_parameters: none}", true, false},
               {"cltrain={offload_parameters: host}", false, false}, /* auto may take a lower one */
               {"cltrain={zero_stage: 2, offload_parameters: host}", false, false},
               {"cltrain={zero_stage: 3, offload_parameters: file}", false, false}};
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c;
        const clt_status st = clt_config_load(CU_BASE, &all[i].over, 1, &c);
        if (st != (all[i].loads ? CLT_OK : CLT_BAD_CONFIG)) fail_msg("%s: status %d", all[i].over, st);
        if (st != CLT_OK) {
            assert_non_null(strstr(clt_last_error(), "cltrain.offload_parameters"));
            continue;
        }
        assert_int_equal(c->shard.parameters != CLT_OFFLOAD_NONE, all[i].host);
        clt_config_free(c);
    }
    static const char *const low[] = {"cltrain={zero_stage: 2, offload_parameters: host}"};
    clt_config *c;
    assert_int_equal(clt_config_load(CU_BASE, low, 1, &c), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "set cltrain.zero_stage: 3"));
    clt_error_quiet(false);
    static const char *const both[] = {"cltrain={offload_parameters: host}",
                                       "fsdp_config={sharding_strategy: FULL_SHARD}"};
    assert_int_equal(clt_config_load(CU_BASE, both, 2, &c), CLT_OK);
    assert_int_equal(c->shard.parameters, CLT_OFFLOAD_HOST);
    clt_config_free(c);
}

static void sums_of_gradients_in_host_memory_need_stage_2(void **state) {
    (void)state;
    static const struct {
        const char *over;
        bool loads, host;
    } all[] = {{"cltrain={zero_stage: 2, offload_gradients: host}", true, true},
               {"cltrain={zero_stage: 3, offload_gradients: host}", true, true},
               {"cltrain={zero_stage: 2, offload_gradients: none}", true, false},
               {"cltrain={offload_gradients: host}", false, false}, /* auto may take a lower one */
               {"cltrain={zero_stage: 1, offload_gradients: host}", false, false}};
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c;
        const clt_status st = clt_config_load(CU_BASE, &all[i].over, 1, &c);
        if (st != (all[i].loads ? CLT_OK : CLT_BAD_CONFIG)) fail_msg("%s: status %d", all[i].over, st);
        if (st != CLT_OK) {
            assert_non_null(strstr(clt_last_error(), "cltrain.offload_gradients"));
            continue;
        }
        assert_int_equal(c->shard.gradients != CLT_OFFLOAD_NONE, all[i].host);
        clt_config_free(c);
    }
    clt_error_quiet(false);
}

static void steps_of_the_host_need_its_state(void **state) {
    (void)state;
    static const struct {
        const char *over;
        const char *refused; /* a part of the message; NULL: it loads */
        bool host;
    } all[] = {{"cltrain={offload: host, offload_update: host}", NULL, true},
               {"cltrain={offload: host, offload_update: device}", NULL, false},
               {"cltrain={offload: host}", NULL, false},
               {"cltrain={offload_update: host}", "set cltrain.offload: host", false},
               {"cltrain={offload: file, offload_folder: x, offload_update: host}",
                "set cltrain.offload: host", false},
               {"cltrain={offload: host, offload_update: file}", "device, host", false}};
    static const char *const lamb[] = {"optimizer={name: lamb, lr: 0.01}", "cltrain.offload=host",
                                       "cltrain.offload_update=host"};
    clt_config *c;
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        const clt_status st = clt_config_load(CU_BASE, &all[i].over, 1, &c);
        if (st != (all[i].refused ? CLT_BAD_CONFIG : CLT_OK)) fail_msg("%s: status %d", all[i].over, st);
        if (all[i].refused) {
            assert_non_null(strstr(clt_last_error(), "cltrain.offload_update"));
            if (!strstr(clt_last_error(), all[i].refused)) fail_msg("%s", clt_last_error());
            continue;
        }
        assert_int_equal(c->shard.host_update, all[i].host);
        clt_config_free(c);
    }
    assert_int_equal(clt_config_load(CU_BASE, lamb, CLT_COUNT_OF(lamb), &c), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "optimizer.name"));
    clt_error_quiet(false);
}

/* degree 0: refused. */
static void groups_multiply_to_the_ranks(void **state) {
    (void)state;
    static const struct {
        const char *fsdp;
        int ranks, degree, replicas;
    } all[] = {{"{}", 8, 8, 1},
               {"{}", 1, 1, 1},
               {"{sharding_strategy: NO_SHARD}", 8, 1, 8},
               {"{sharding_strategy: NO_SHARD, data_parallel_replicate_degree: 8}", 8, 1, 8},
               {"{sharding_strategy: NO_SHARD, data_parallel_replicate_degree: 4}", 8, 0, 0},
               {"{data_parallel_shard_degree: 8}", 8, 8, 1},
               {"{data_parallel_shard_degree: 8}", 1, 1, 1}, /* nothing to divide */
               {"{data_parallel_shard_degree: 4}", 8, 0, 0}, /* no replicas unless they are asked for */
               {"{data_parallel_shard_degree: 16}", 8, 0, 0},
               {"{data_parallel_shard_degree: 4, data_parallel_replicate_degree: 2}", 8, 4, 2},
               {"{data_parallel_shard_degree: 4, data_parallel_replicate_degree: 3}", 8, 0, 0},
               {"{data_parallel_shard_degree: 4, data_parallel_replicate_degree: -1}", 8, 4, 2},
               {"{data_parallel_shard_degree: -1, data_parallel_replicate_degree: 4}", 8, 2, 4},
               {"{data_parallel_replicate_degree: 3}", 8, 0, 0},
               {"{data_parallel_replicate_degree: 16}", 8, 0, 0},
               {"{sharding_strategy: HYBRID_SHARD, data_parallel_shard_degree: 4}", 8, 4, 2},
               {"{sharding_strategy: HYBRID_SHARD, data_parallel_shard_degree: 3}", 8, 0, 0},
               {"{sharding_strategy: HYBRID_SHARD, data_parallel_replicate_degree: 4}", 8, 2, 4},
               {"{sharding_strategy: FULL_SHARD, data_parallel_replicate_degree: 1}", 8, 8, 1}};
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        int degree = 0, replicas = 0;
        char *over = clt_format("fsdp_config=%s", all[i].fsdp);
        clt_config *c = cu_load_with(over);
        const clt_status st = clt_config_shard_groups(c, all[i].ranks, &degree, &replicas);
        assert_int_equal(clt_config_check_ranks(c, 8, all[i].ranks), st);
        if (st != (all[i].degree ? CLT_OK : CLT_BAD_CONFIG)) fail_msg("%s: status %d", over, st);
        if (st != CLT_OK) {
            assert_non_null(strstr(clt_last_error(), "data_parallel_shard_degree"));
            assert_non_null(strstr(clt_last_error(), "data_parallel_replicate_degree"));
        } else if (degree != all[i].degree || replicas != all[i].replicas) {
            fail_msg("%s: %d x %d", over, degree, replicas);
        }
        clt_config_free(c);
        clt_free(over);
    }
    clt_error_quiet(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages),
        cmocka_unit_test(both_keys_may_agree),
        cmocka_unit_test(offload_and_gathers),
        cmocka_unit_test(weights_in_host_memory_need_stage_3),
        cmocka_unit_test(steps_of_the_host_need_its_state),
        cmocka_unit_test(sums_of_gradients_in_host_memory_need_stage_2),
        cmocka_unit_test(groups_multiply_to_the_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
