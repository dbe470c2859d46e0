/* What a configuration asks for and does not get has a notice: one line for each reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test/config_util.h"

static void keys_without_effect_have_notices(void **state) {
    (void)state;
    clt_config *c =
        cu_load_with("fsdp_config={backward_prefetch: BACKWARD_PRE, activation_checkpointing: true}");
    assert_true(cu_has_notice(c, "fsdp_config.backward_prefetch"));
    assert_false(cu_has_notice(c, "fsdp_config.activation_checkpointing"));
    assert_int_equal(c->recompute, CLT_RECOMPUTE_BLOCKS);
    clt_config_free(c);
    c = cu_load_with("loggers={wandb: }");
    assert_true(cu_has_notice(c, "loggers.wandb"));
    clt_config_free(c);
}

/* A key needs no notice when its value is what is done here; that it is Foundry's default does not count. */
static void notices_follow_what_is_done(void **state) {
    (void)state;
    static const struct {
        const char *override, *path;
        bool notice;
    } all[] = {
        {"fsdp_config={sharding_strategy: FULL_SHARD}", "fsdp_config.sharding_strategy", false},
        {"fsdp_config={forward_prefetch: true}", "fsdp_config.forward_prefetch", true},
        {"fsdp_config={keep_low_precision_grads: false}", "fsdp_config.keep_low_precision_grads", false},
        {"fsdp_config={keep_low_precision_grads: true}", "fsdp_config.keep_low_precision_grads", true},
        {"fsdp_config={state_dict_type: sharded}", "fsdp_config.state_dict_type", true},
        {"train_loader.dataset.sampling_method=fixed", "train_loader.dataset.sampling_method", false},
        {"eval_loader={name: text, dataset: {batching_method: random}}",
         "eval_loader.dataset.batching_method", true},
        {"train_loader.dataset.remote=s3://b/x", "train_loader.dataset.remote", false},
        {"train_loader.dataset.remote=null", "train_loader.dataset.remote", false},
        {"train_loader.dataset.shuffle_seed=3", "train_loader.dataset.shuffle_seed", false},
        {"eval_loader={name: text, dataset: {shuffle: true}}", "eval_loader.dataset.shuffle", true},
        {"eval_loader={name: text, dataset: {shuffle: false, shuffle_seed: 1}}",
         "eval_loader.dataset.shuffle_seed", false},
        {"eval_loader=[{name: text, dataset: {shuffle: true, shuffle_seed: 1}}]",
         "eval_loader.0.dataset.shuffle_seed", true},
        {"tokenizer.kwargs={model_max_length: 64}", "tokenizer.kwargs.model_max_length", false},
        {"tokenizer.kwargs={model_max_length: 65}", "tokenizer.kwargs.model_max_length", true},
        {"tokenizer.kwargs={add_eos: true}", "tokenizer.kwargs.add_eos", true},
        {"callbacks={memory_monitor: {memory_keys: {a: b}}}", "callbacks.memory_monitor.memory_keys", true},
        {"model={attn_config: {alibi: true}, learned_pos_emb: true}", "model.learned_pos_emb", true},
        {"model={attn_config: {alibi: true}}", "model.learned_pos_emb", false},
        {"model.use_pad_tok_in_ffn=true", "model.use_pad_tok_in_ffn", false},
        {"model.use_pad_tok_in_ffn=false", "model.use_pad_tok_in_ffn", true},
        {"optimizer={name: decoupled_lionw, eps: 1e-8}", "optimizer.eps", true},
        {"optimizer={name: decoupled_adamw, eps: 1e-8}", "optimizer.eps", false},
        {"optimizer={name: decoupled_adamw, momentum: 0.9}", "optimizer.momentum", true},
        {"optimizer={name: decoupled_adamw, nesterov: true}", "optimizer.nesterov", true},
        {"optimizer={name: sgd, betas: [0.9, 0.95]}", "optimizer.betas", true},
        {"optimizer={name: adagrad, betas: [0.9, 0.95]}", "optimizer.betas", true},
        {"optimizer={name: lamb, adam_w_mode: false}", "optimizer.adam_w_mode", true},
        {"optimizer={name: decoupled_adamw, bias_correction: false}", "optimizer.bias_correction", true},
        {"optimizer={name: lamb, bias_correction: false}", "optimizer.bias_correction", false},
        {"optimizer={name: adamw, max_coeff: 2}", "optimizer.max_coeff", true},
        {"optimizer={name: lamb, min_coeff: 0.5}", "optimizer.min_coeff", true},
        {"optimizer={name: sgd, momentum: 0.9}", "optimizer.momentum", false}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = cu_load_with(all[i].override);
        if (cu_has_notice(c, all[i].path) != all[i].notice)
            fail_msg("%s: %s has %s notice", all[i].override, all[i].path, all[i].notice ? "no" : "a");
        clt_config_free(c);
    }
}

/* The reason is made from the rule's name. */
static void an_unused_value_is_told_with_its_reason(void **state) {
    (void)state;
    clt_config *c = cu_load_with("optimizer={name: decoupled_lionw, eps: 1e-8}");
    clt_strv lines = {0};
    bool told = false;
    clt_notices_lines(&c->notices, &lines);
    for (size_t i = 0; i < lines.n; i++)
        told |= !strcmp(lines.v[i], "key optimizer.eps has no effect here: decoupled_lionw has no eps");
    assert_true(told);
    clt_strv_free(&lines);
    clt_config_free(c);
}

/* One line for each reason, whatever the number of keys. */
static void keys_with_one_reason_share_a_line(void **state) {
    (void)state;
    clt_config *c = cu_load("tools/presets/mpt-125m.yaml");
    clt_strv lines = {0};
    clt_notices_lines(&c->notices, &lines);
    assert_int_equal(lines.n, 2);
    assert_string_equal(
        lines.v[0], "keys train_loader.num_workers, eval_loader.num_workers have no effect here: each rank "
                    "reads ahead in one thread of its own, and the sample order does not depend on workers");
    assert_string_equal(lines.v[1],
                        "keys fsdp_config.activation_checkpointing_reentrant, model.attn_config.attn_impl, "
                        "model.init_device have no effect here: a setting of PyTorch, which is not used "
                        "here; the result is the same");
    assert_int_equal(c->remarks.n, 1);
    assert_non_null(strstr(c->remarks.v[0], "tokenizer.name 'EleutherAI/gpt-neox-20b' is not loaded"));
    clt_strv_free(&lines);
    clt_config_free(c);
}

static void mixed_precision_without_effect_has_a_notice(void **state) {
    (void)state;
    static const struct {
        const char *override;
        bool bf16, notice;
    } all[] = {{"{precision: amp_bf16, fsdp_config: {mixed_precision: PURE}}", true, false},
               {"{precision: amp_bf16, fsdp_config: {mixed_precision: DEFAULT}}", false, false},
               {"{precision: amp_bf16, fsdp_config: {mixed_precision: FULL}}", false, true},
               {"{precision: amp_fp16, fsdp_config: {mixed_precision: PURE}}", false, true},
               {"{precision: fp32, fsdp_config: {mixed_precision: PURE}}", false, false},
               {"{precision: amp_bf16, cltrain: {numerics: exact}, fsdp_config: {mixed_precision: PURE}}",
                false, true},
               {"{precision: amp_bf16, fsdp_config: {mixed_precision: {reduce_dtype: bf16}}}", true, false},
               {"{precision: amp_bf16, fsdp_config: {mixed_precision: {param_dtype: fp32}}}", false, true}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_yaml *y;
        json_t *v;
        clt_str text = {0};
        clt_config *base = cu_load(CU_BASE), *c = NULL;
        assert_int_equal(clt_yaml_parse(all[i].override, strlen(all[i].override), "t", &y), CLT_OK);
        assert_int_equal(clt_yaml_to_json(y, &v), CLT_OK);
        json_object_update(base->merged, v);
        clt_config_print(base, false, &text);
        assert_int_equal(clt_config_parse(text.s, text.len, "t", NULL, 0, &c), CLT_OK);
        assert_int_equal(c->reduce_bf16, all[i].bf16);
        if (cu_has_notice(c, "fsdp_config.mixed_precision") != all[i].notice) fail_msg("%s", all[i].override);
        json_decref(v);
        clt_yaml_free(y);
        clt_str_free(&text);
        clt_config_free(base);
        clt_config_free(c);
    }
}

/* --- callbacks that have a counterpart --- */

static void kill_loss_spike_sets_the_guard(void **state) {
    (void)state;
    static const struct {
        const char *callback;
        int loss_spike;
        int64_t window;
    } all[] = {
        {"{}", CLT_SPIKE_WARN, 128},
        {"{log_only: true}", CLT_SPIKE_WARN, 128},
        {"{log_only: false}", CLT_SPIKE_STOP, 128},
        {"{log_only: false, window_size: 200}", CLT_SPIKE_STOP, 200},
        {"{window_size: 10}", CLT_SPIKE_WARN, 38}, /* a window of fewer has no value 6 deviations away */
        {"{window_size: 100000}", CLT_SPIKE_WARN, CLT_SPIKE_MAX}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        char *over = clt_format("callbacks={kill_loss_spike: %s}", all[i].callback);
        clt_config *c = cu_load_with(over);
        assert_int_equal(c->guards.loss_spike, all[i].loss_spike);
        assert_int_equal(c->guards.spike_window, all[i].window);
        assert_int_equal(c->remarks.n, 1);
        assert_non_null(
            strstr(c->remarks.v[0], "callbacks.kill_loss_spike is done by cltrain.guards.loss_spike"));
        clt_config_free(c);
        clt_free(over);
    }
    clt_config *c =
        cu_load_with("callbacks={kill_loss_spike: {patience: 2, outlier_multiplier: 3, loss_cap: 9}}");
    assert_true(cu_has_notice(c, "callbacks.kill_loss_spike.patience"));
    assert_true(cu_has_notice(c, "callbacks.kill_loss_spike.outlier_multiplier"));
    assert_true(cu_has_notice(c, "callbacks.kill_loss_spike.loss_cap"));
    clt_config_free(c);
}

static void a_timeout_after_the_end_has_a_notice(void **state) {
    (void)state;
    clt_config *c = cu_load_with("callbacks={run_timeout: {timeout: 60}}");
    assert_true(cu_has_notice(c, "callbacks.run_timeout"));
    assert_true(c->stop_before == 0);
    clt_config_free(c);
}

/* --- contradictions --- */

static void contradictions_name_both_places(void **state) {
    (void)state;
    static const struct {
        const char *over[2], *words[3];
    } bad[] = {
        {{"callbacks={kill_loss_spike: {log_only: false}}", "cltrain={guards: {loss_spike: warn}}"},
         {"callbacks.kill_loss_spike", "command line (callbacks=", "command line (cltrain="}},
        {{"callbacks={kill_loss_spike: {}}", "cltrain={guards: {loss_spike: off}}"},
         {"cltrain.guards.loss_spike", "command line (callbacks=", "command line (cltrain="}},
        {{"callbacks={kill_loss_spike: {window_size: 200}}", "cltrain={guards: {spike_window: 300}}"},
         {"callbacks.kill_loss_spike.window_size", "cltrain.guards.spike_window", "command line (cltrain="}},
        {{"cltrain={recompute: norms}", "fsdp_config={activation_checkpointing: true}"},
         {"cltrain.recompute", "fsdp_config.activation_checkpointing", "command line (fsdp_config="}},
        {{"cltrain={recompute: none}", "fsdp_config={activation_cpu_offload: true}"},
         {"cltrain.recompute", "fsdp_config.activation_cpu_offload", "command line (fsdp_config="}},
        {{"cltrain={offload_activations: none}", "fsdp_config={activation_cpu_offload: true}"},
         {"cltrain.offload_activations", "fsdp_config.activation_cpu_offload", "command line (fsdp_config="}},
        {{"cltrain.recompute=norms", "cltrain.offload_activations=host"},
         {"cltrain.recompute", "cltrain.offload_activations", "recompute: blocks"}},
        {{"cltrain={zero_stage: 1}", "fsdp_config={sharding_strategy: SHARD_GRAD_OP}"},
         {"cltrain.zero_stage", "fsdp_config.sharding_strategy", "command line (fsdp_config="}},
        {{"cltrain={zero_stage: 3}", "fsdp_config={reshard_after_forward: false}"},
         {"cltrain.zero_stage", "fsdp_config.reshard_after_forward", "command line (fsdp_config="}},
        {{"cltrain={offload: none}", "fsdp_config={cpu_offload: true}"},
         {"cltrain.offload", "fsdp_config.cpu_offload", "command line (fsdp_config="}},
        {{"cltrain.offload=host", "cltrain.offload_folder=x"},
         {"cltrain.offload", "cltrain.offload_folder", "the folder is for what is in files"}},
        {{"cltrain={zero_stage: 0}", "fsdp_config={data_parallel_shard_degree: 2}"},
         {"cltrain.zero_stage", "fsdp_config.data_parallel_shard_degree", "command line (cltrain="}},
        {{"fsdp_config={sharding_strategy: FULL_SHARD}", "fsdp_config={data_parallel_replicate_degree: 2}"},
         {"fsdp_config.sharding_strategy", "fsdp_config.data_parallel_replicate_degree", "HYBRID_SHARD"}},
        {{"fsdp_config={data_parallel_shard_degree: -1}", "fsdp_config={data_parallel_replicate_degree: -1}"},
         {"fsdp_config.data_parallel_shard_degree", "fsdp_config.data_parallel_replicate_degree",
          "only one of them"}},
        {{"eval_loader={name: text, dataset: {}}", "eval_loaders=[{name: text, dataset: {}}]"},
         {"eval_loader", "eval_loaders", "command line (eval_loaders="}},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_config *c;
        assert_int_equal(clt_config_load(CU_BASE, bad[i].over, 2, &c), CLT_BAD_CONFIG);
        for (int k = 0; k < 3; k++)
            if (!strstr(clt_last_error(), bad[i].words[k]))
                fail_msg("'%s' does not say %s", clt_last_error(), bad[i].words[k]);
    }
    static const char *const same[] = {"callbacks={kill_loss_spike: {log_only: false, window_size: 200}}",
                                       "cltrain={guards: {loss_spike: stop, spike_window: 200}}"};
    clt_config *c = NULL;
    assert_int_equal(clt_config_load(CU_BASE, same, 2, &c), CLT_OK);
    clt_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_without_effect_have_notices),
        cmocka_unit_test(notices_follow_what_is_done),
        cmocka_unit_test(an_unused_value_is_told_with_its_reason),
        cmocka_unit_test(keys_with_one_reason_share_a_line),
        cmocka_unit_test(mixed_precision_without_effect_has_a_notice),
        cmocka_unit_test(kill_loss_spike_sets_the_guard),
        cmocka_unit_test(a_timeout_after_the_end_has_a_notice),
        cmocka_unit_test(contradictions_name_both_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
