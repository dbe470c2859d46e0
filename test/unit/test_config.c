/* Training configurations: files of Foundry's form load, every key of Foundry's is known, and values mean
 * what they should. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test/config_util.h"

/* What CU_BASE with an override says else than CU_BASE. */
static void differs(const char *override, const char *want) {
    clt_config *base = cu_load(CU_BASE), *c = cu_load_with(override);
    clt_str text = {0};
    clt_config_print(base, false, &text);
    json_t *d = clt_config_differences(c, text.s);
    assert_non_null(d);
    char *got = json_dumps(d, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    assert_string_equal(got, want);
    free(got);
    json_decref(d);
    clt_str_free(&text);
    clt_config_free(base);
    clt_config_free(c);
}

static void differences_are_named(void **state) {
    (void)state;
    differs("max_duration=7ba", "{\"max_duration\":[\"30ba\",\"7ba\"]}");
    differs("optimizer.lr=0.5", "{\"optimizer.lr\":[0.004,0.5]}");
    differs("save_interval=3ba", "{\"save_interval\":[\"1000ba\",\"3ba\"]}");
    differs("algorithms=null", "{\"algorithms\":[{\"gradient_clipping\":{\"clipping_threshold\":1.0,"
                               "\"clipping_type\":\"norm\"}},null]}");
    /* What was not given is what it is by default; a number is the same with and without a point. */
    differs("dist_timeout=600", "{}");
    differs("optimizer.lr=4e-3", "{}");
    clt_config *c = cu_load(CU_BASE);
    assert_null(clt_config_differences(c, "a: [1"));
    assert_null(clt_config_differences(c, "17"));
    clt_config_free(c);
}

static void golden_runs_load(void **state) {
    (void)state;
    clt_config *c = cu_load("test/golden/e2e/train.yaml");
    assert_string_equal(c->run_name, "golden-e2e");
    assert_int_equal(c->max_seq_len, 128);
    assert_int_equal(c->max_duration.value, 40);
    assert_int_equal(c->train.num_canonical_nodes, 2);
    assert_true(c->train.shuffle);
    assert_int_equal(c->n_evals, 1);
    assert_string_equal(c->evals[0].label, "eval");
    assert_string_equal(c->evals[0].split, "val");
    assert_int_equal(c->eval_interval.value, 20);
    assert_int_equal(c->device_train_microbatch_size, 4);
    assert_true(c->optimizer.groups[0].lr == 4.0e-3 && c->optimizer.groups[0].eps == 1e-8);
    assert_int_equal(c->clip_type, CLT_CLIP_NORM);
    assert_true(c->callbacks.lr_monitor && c->callbacks.speed_monitor && !c->callbacks.memory_monitor);
    assert_int_equal(c->callbacks.speed_window, 10);
    assert_null(c->save_folder);
    assert_false(c->autoresume);
    clt_config_free(c);

    c = cu_load("test/golden/mpt-variants/train.yaml");
    assert_string_equal(c->load_path, "./hf");
    assert_string_equal(c->save_folder, "./run");
    assert_true(c->autoresume);
    assert_int_equal(c->schedule.t_max.value, 30);
    clt_config_free(c);

    c = cu_load("test/golden/mpt-alibi/train.yaml");
    assert_int_equal(c->train.max_seq_len, 48);
    clt_config_free(c);
}

static void presets_have_foundrys_sizes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t params;
        int64_t batch, duration, microbatch;
        double lr;
        clt_recompute recompute;
    } all[] = {{"small-cpu", 823200, 256, 10, 16, 6e-4, CLT_RECOMPUTE_NONE},
               {"125m", 125311488, 256, 4800, 16, 6e-4, CLT_RECOMPUTE_NORMS},
               {"350m", 355985408, 256, 13400, 8, 3e-4, CLT_RECOMPUTE_NORMS},
               {"760m", 760470528, 256, 29000, 4, 2.5e-4, CLT_RECOMPUTE_NORMS},
               {"1b", 1315950592, 512, 24800, 4, 2e-4, CLT_RECOMPUTE_NORMS},
               {"3b", 2651837440, 512, 51500, 8, 1.6e-4, CLT_RECOMPUTE_BLOCKS},
               {"7b", 6658859008, 1024, 63900, 8, 1.2e-4, CLT_RECOMPUTE_BLOCKS},
               {"13b", 12853954560, 1024, 124000, 8, 1e-4, CLT_RECOMPUTE_BLOCKS},
               {"30b", 29975214080, 2048, 143100, 8, 1e-4, CLT_RECOMPUTE_BLOCKS},
               {"70b", 64862437376, 2048, 333800, 4, 8e-5, CLT_RECOMPUTE_BLOCKS}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        char *path = clt_format("tools/presets/mpt-%s.yaml", all[i].name);
        clt_config *c = cu_load(path);
        clt_schedule s;
        assert_int_equal(clt_model_param_count(c->model), all[i].params);
        assert_int_equal(c->global_train_batch_size, all[i].batch);
        assert_int_equal(c->max_duration.value, all[i].duration);
        assert_int_equal(c->device_train_microbatch_size, all[i].microbatch);
        assert_true(c->optimizer.groups[0].lr == all[i].lr);
        assert_int_equal(c->recompute, all[i].recompute);
        assert_int_equal(clt_schedule_resolve(&c->schedule, c->max_duration, 1000, &s), CLT_OK);
        clt_config_free(c);
        clt_free(path);
    }
}

/* Every key of Foundry's training configuration, written out here a second time. */
static const char foundry_keys[] =
    "model tokenizer tokenizer.name tokenizer.kwargs tokenizer.kwargs.model_max_length optimizer "
    "scheduler "
    "train_loader device_eval_batch_size max_duration max_seq_len global_train_batch_size "
    "device_train_batch_size seed precision code_paths max_split_size_mb expandable_segments "
    "cuda_load_lazy "
    "dist_timeout fsdp_config tp_config accumulate_train_batch_on_tokens eval_interval eval_loader "
    "eval_loaders "
    "icl_tasks icl_tasks_str eval_gauntlet eval_gauntlet_str icl_subset_num_batches icl_seq_len "
    "eval_first "
    "eval_subset_num_batches train_subset_num_batches loggers progress_bar log_to_console "
    "python_log_level "
    "console_log_interval log_config callbacks algorithms save_folder save_latest_filename "
    "save_overwrite "
    "save_weights_only save_filename save_interval save_num_checkpoints_to_keep load_path "
    "load_weights_only "
    "load_strict_model_weights load_ignore_keys save_ignore_keys only_hf_checkpoint "
    "only_composer_checkpoint "
    "autoresume device_train_microbatch_size spin_dataloaders compile_config metadata flatten_metadata "
    "run_name "
    "profiler variables n_gpus device_train_grad_accum "
    "train_loader.name train_loader.dataset train_loader.drop_last train_loader.num_workers "
    "train_loader.pin_memory train_loader.prefetch_factor train_loader.persistent_workers "
    "train_loader.timeout "
    "train_loader.dataset.local train_loader.dataset.remote train_loader.dataset.split "
    "train_loader.dataset.shuffle train_loader.dataset.max_seq_len train_loader.dataset.shuffle_seed "
    "train_loader.dataset.streams train_loader.dataset.predownload train_loader.dataset.cache_limit "
    "train_loader.dataset.num_canonical_nodes train_loader.dataset.shuffle_algo "
    "train_loader.dataset.shuffle_block_size train_loader.dataset.partition_algo "
    "train_loader.dataset.sampling_method train_loader.dataset.batching_method "
    "train_loader.dataset.token_encoding_type train_loader.dataset.eos_token_id "
    "train_loader.dataset.bos_token_id train_loader.dataset.replication "
    "optimizer.name optimizer.lr optimizer.betas optimizer.eps optimizer.weight_decay "
    "optimizer.disable_grad "
    "optimizer.param_groups scheduler.name scheduler.t_warmup scheduler.alpha_f scheduler.t_max "
    "scheduler.alpha "
    "scheduler.alpha_i scheduler.t_scale scheduler.t_cooldown scheduler.alpha_f_decay "
    "scheduler.alpha_f_cooldown "
    "scheduler.scale_warmup algorithms.gradient_clipping.clipping_type "
    "algorithms.gradient_clipping.clipping_threshold algorithms.alibi algorithms.gated_linear_units "
    "algorithms.low_precision_layernorm callbacks.speed_monitor.window_size callbacks.lr_monitor "
    "callbacks.memory_monitor callbacks.memory_snapshot callbacks.oom_observer "
    "callbacks.runtime_estimator "
    "callbacks.optimizer_monitor callbacks.system_metrics_monitor callbacks.nan_monitor "
    "callbacks.kill_loss_spike "
    "callbacks.early_stopper callbacks.scheduled_gc callbacks.run_timeout callbacks.env_logging "
    "callbacks.generate_callback callbacks.hf_checkpointer callbacks.mono_checkpoint_saver "
    "callbacks.load_checkpoint callbacks.layer_freezing callbacks.global_lr_scaling "
    "callbacks.fdiff_metrics "
    "callbacks.eval_output_logging callbacks.loss_perp_v_len callbacks.async_eval "
    "callbacks.curriculum_learning "
    "callbacks.dataset_swap loggers.wandb loggers.tensorboard loggers.mlflow loggers.inmemory "
    "loggers.mosaicml "
    "loggers.file_logger loggers.neptune loggers.cometml loggers.slack "
    "fsdp_config.sharding_strategy fsdp_config.mixed_precision fsdp_config.activation_checkpointing "
    "fsdp_config.activation_checkpointing_reentrant fsdp_config.activation_cpu_offload "
    "fsdp_config.limit_all_gathers fsdp_config.backward_prefetch fsdp_config.forward_prefetch "
    "fsdp_config.cpu_offload fsdp_config.data_parallel_shard_degree "
    "fsdp_config.data_parallel_replicate_degree "
    "fsdp_config.state_dict_type fsdp_config.sharded_ckpt_prefix_dir "
    "fsdp_config.load_monolith_rank0_only "
    "fsdp_config.sync_module_states fsdp_config.use_orig_params fsdp_config.keep_low_precision_grads "
    "fsdp_config.te_checkpoint_wrapper fsdp_config.te_shard_fp8_weight fsdp_config.verbose "
    "model.name model.d_model model.n_heads model.n_layers model.head_dim model.expansion_ratio "
    "model.max_seq_len "
    "model.vocab_size model.resid_pdrop model.emb_pdrop model.learned_pos_emb model.attn_config "
    "model.ffn_config "
    "model.init_device model.logit_scale model.no_bias model.attention_bias model.embedding_fraction "
    "model.norm_type model.norm_eps model.use_cache model.init_config model.fc_type "
    "model.tie_word_embeddings "
    "model.use_pad_tok_in_ffn model.block_overrides model.final_logit_softcapping model.loss_fn "
    "model.attn_config.attn_type model.attn_config.attn_pdrop model.attn_config.attn_impl "
    "model.attn_config.qk_ln "
    "model.attn_config.qk_gn model.attn_config.fused_qkv model.attn_config.clip_qkv "
    "model.attn_config.softmax_scale model.attn_config.attn_uses_sequence_id "
    "model.attn_config.sliding_window_size model.attn_config.attn_logit_softcapping "
    "model.attn_config.alibi "
    "model.attn_config.alibi_bias_max model.attn_config.rope model.attn_config.nope "
    "model.attn_config.rope_theta "
    "model.attn_config.rope_impl model.attn_config.rope_dail_config.type "
    "model.attn_config.rope_dail_config.pos_idx_in_fp32 "
    "model.attn_config.rope_dail_config.xpos_scale_base "
    "model.attn_config.rope_hf_config.type model.attn_config.rope_hf_config.factor "
    "model.attn_config.kv_n_heads "
    "model.attn_config.attn_temperature_tuning.floor_scale "
    "model.attn_config.attn_temperature_tuning.attn_scale "
    "model.attn_config.kv_dim model.ffn_config.ffn_type model.ffn_config.ffn_act_fn "
    "model.ffn_config.ffn_hidden_size model.init_config.name model.init_config.fan_mode "
    "model.init_config.init_nonlinearity model.init_config.init_div_is_residual "
    "model.init_config.emb_init_std "
    "model.init_config.emb_init_uniform_lim model.init_config.init_std model.init_config.init_gain";

static void every_key_of_foundry_is_known(void **state) {
    (void)state;
    char *copy = clt_strdup(foundry_keys);
    int n = 0;
    for (char *save, *k = strtok_r(copy, " ", &save); k; k = strtok_r(NULL, " ", &save), n++)
        if (!clt_config_knows(k)) fail_msg("key %s is not in the table", k);
    clt_free(copy);
    assert_true(n > 200);
    assert_false(clt_config_knows("optimzer"));
    assert_false(clt_config_knows("model.attn_config.nonsense"));
    clt_str rows = {0};
    clt_config_list_keys(&rows);
    assert_non_null(strstr(rows.s, "`model.attn_config.rope_hf_config.factor`"));
    clt_str_free(&rows);
}

static void precision_decides_defaults(void **state) {
    (void)state;
    static const struct {
        const char *over;
        clt_dtype precision;
        clt_numerics numerics;
        clt_recompute recompute;
    } all[] = {{"precision=fp32", CLT_F32, CLT_EXACT, CLT_RECOMPUTE_NONE},
               {"precision=amp_bf16", CLT_BF16, CLT_FAST, CLT_RECOMPUTE_NORMS},
               {"precision=amp_fp16", CLT_F16, CLT_FAST, CLT_RECOMPUTE_NORMS},
               {"precision=exact8", CLT_BF16, CLT_EXACT, CLT_RECOMPUTE_NORMS},
               {"precision=amp_fp8", CLT_BF16, CLT_FAST, CLT_RECOMPUTE_NORMS},
               {"cltrain={recompute: norms}", CLT_F32, CLT_EXACT, CLT_RECOMPUTE_NORMS},
               {"cltrain={recompute: true, numerics: fast}", CLT_F32, CLT_FAST, CLT_RECOMPUTE_BLOCKS}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = cu_load_with(all[i].over);
        assert_int_equal(c->precision, all[i].precision);
        assert_int_equal(c->numerics, all[i].numerics);
        assert_int_equal(c->recompute, all[i].recompute);
        assert_int_equal(c->eight_bits, strstr(all[i].over, "exact8") != NULL);
        assert_int_equal(c->fp8, strstr(all[i].over, "amp_fp8") != NULL);
        clt_config_free(c);
    }
    static const char *const over[] = {"precision=exact8", "cltrain.numerics=fast"};
    clt_config *c;
    assert_int_equal(clt_config_load(CU_BASE, over, CLT_COUNT_OF(over), &c), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "exact8 has numerics exact"));
    static const char *const odd[] = {"precision=amp_fp8", "max_seq_len=40"};
    assert_int_equal(clt_config_load(CU_BASE, odd, CLT_COUNT_OF(odd), &c), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "amp_fp8 needs a multiple of 16"));
    static const struct {
        const char *precision, *bits, *message;
    } refused[] = {{"precision=amp_bf16", "cltrain.attention_bits=8", "8 needs exact8"},
                   {"precision=exact8", "cltrain.attention_bits=4", "it must be 8 or 16"}};
    for (size_t i = 0; i < CLT_COUNT_OF(refused); i++) {
        const char *const both[] = {refused[i].precision, refused[i].bits};
        assert_int_equal(clt_config_load(CU_BASE, both, 2, &c), CLT_BAD_CONFIG);
        assert_non_null(strstr(clt_last_error(), refused[i].message));
    }
    static const char *const eight[] = {"precision=exact8", "cltrain.attention_bits=8"};
    assert_int_equal(clt_config_load(CU_BASE, eight, 2, &c), CLT_OK);
    assert_int_equal(c->attention_bits, 8);
    clt_config_free(c);
}

/* The default follows from the configuration alone: batch, numerics and the size of the model. */
static void lanes_follow_the_job(void **state) {
    (void)state;
    static const struct {
        const char *base, *over[3];
        int64_t lanes;
    } row[] = {{CU_BASE, {"global_train_batch_size=8"}, 8},
               {CU_BASE, {"global_train_batch_size=511"}, 8},
               {CU_BASE, {"global_train_batch_size=512"}, 16},
               {CU_BASE, {"global_train_batch_size=1023"}, 16},
               {CU_BASE, {"global_train_batch_size=1024"}, 32},
               {CU_BASE, {"global_train_batch_size=2048"}, 64},
               {CU_BASE, {"global_train_batch_size=1000000"}, 64},
               {CU_BASE, {"global_train_batch_size=2048", "cltrain.numerics=fast"}, 8},
               {CU_BASE, {"global_train_batch_size=2048", "precision=exact8"}, 64},
               {CU_BASE, {"global_train_batch_size=2048", "cltrain.exact_lanes=8"}, 8},
               {CU_BASE, {"global_train_batch_size=2048", "cltrain.lanes_per_rank=[7, 1]"}, 8},
               /* 1.3 and 2.7 thousand million parameters: a gradient of 5.3 and 10.6 GB */
               {"tools/presets/mpt-1b.yaml", {"precision=fp32", "global_train_batch_size=2048"}, 16},
               {"tools/presets/mpt-3b.yaml", {"precision=fp32", "global_train_batch_size=2048"}, 8}};
    for (size_t i = 0; i < CLT_COUNT_OF(row); i++) {
        clt_config *c = NULL;
        size_t n = 0;
        while (n < CLT_COUNT_OF(row[i].over) && row[i].over[n]) n++;
        assert_int_equal(clt_config_load(row[i].base, row[i].over, n, &c), CLT_OK);
        assert_int_equal(c->exact_lanes, row[i].lanes);
        clt_str text = {0};
        char *line = clt_format("exact_lanes: %lld  #", (long long)row[i].lanes);
        clt_config_print(c, true, &text);
        assert_non_null(strstr(text.s, line));
        clt_free(line);
        clt_str_free(&text);
        clt_config_free(c);
    }
}

static void ranks_are_checked(void **state) {
    (void)state;
    clt_config *c = cu_load(CU_BASE);
    assert_int_equal(clt_config_check_run(c, 8), CLT_OK);
    assert_int_equal(clt_config_check_run(c, 3), CLT_OK);
    assert_int_equal(clt_config_check_run(c, 9), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "exact_lanes"));
    c->numerics = CLT_FAST;
    assert_int_equal(clt_config_check_run(c, 3), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "global_train_batch_size"));
    assert_int_equal(clt_config_check_run(c, 4), CLT_OK);
    clt_config_free(c);
}

static void names_are_normalised(void **state) {
    (void)state;
    static const char *const over[] = {"save_filename=ep{epoch}-ba{batch}-rank{rank}.pt", "run_name=r1",
                                       "save_folder=out/{run_name}/c", "load_path=a/latest-rank{rank}.pt"};
    clt_config *c;
    assert_int_equal(clt_config_load(CU_BASE, over, CLT_COUNT_OF(over), &c), CLT_OK);
    assert_string_equal(c->save_filename, "ep{epoch}-ba{batch}-rank0");
    assert_string_equal(c->save_latest_filename, "latest-rank0");
    assert_string_equal(c->save_folder, "out/r1/c");
    assert_string_equal(c->load_path, "a/latest-rank0");
    const clt_timestamp t = {.epoch = 2, .batch = 30, .sample = 240, .token = 9};
    char *name = clt_config_expand(c, "{run_name}-ep{epoch}-ba{batch}-{sample}-{nothing}-{token", &t);
    assert_string_equal(name, "r1-ep2-ba30-240-{nothing}-{token");
    clt_free(name);
    clt_config_free(c);
}

static void groups_claim_tensors_in_order(void **state) {
    (void)state;
    clt_config *c =
        cu_load_with("optimizer={param_groups: [{param_str_match: 'norm_\\d', lr: 1e-4, betas: [0.8, 0.9]}, "
                     "{param_str_match: bias$, weight_decay: 0.0}], "
                     "disable_grad: ['^model\\.transformer\\.wpe', '^transformer\\.wte']}");
    const clt_optimizer_config *o = &c->optimizer;
    static const char *const names[] = {"transformer.wte.weight",
                                        "transformer.wpe.weight",
                                        "transformer.blocks.0.norm_1.bias",
                                        "transformer.blocks.0.attn.Wqkv.bias",
                                        "transformer.blocks.0.attn.Wqkv.weight",
                                        "transformer.norm_f.bias"};
    static const uint8_t want[] = {0, 0, 1, 2, 0, 2};
    static const bool want_frozen[] = {true, true, false, false, false, false};
    uint8_t group[6];
    bool frozen[6];
    assert_int_equal(o->n_groups, 3);
    assert_true(o->groups[1].lr == 1e-4 && o->groups[1].beta1 == 0.8 && o->groups[1].weight_decay == 0.0001);
    assert_true(o->groups[2].lr == 0.004 && o->groups[2].weight_decay == 0);
    assert_int_equal(clt_optimizer_groups(o, names, 6, group, frozen), CLT_OK);
    assert_memory_equal(group, want, sizeof want);
    assert_memory_equal(frozen, want_frozen, sizeof want_frozen);
    assert_int_equal(c->warnings.n, 0);
    clt_config_free(c);
    c = cu_load_with("optimizer={name: decoupled_lionw, weight_decay: 0, betas: [0.9, 0.99]}");
    assert_int_equal(c->optimizer.kind, CLT_OPTIMIZER_LIONW);
    clt_config_free(c);
}

static void optimizers_of_pytorch(void **state) {
    (void)state;
    clt_config *c = cu_load_with("optimizer={name: adamw, weight_decay: 0.01}");
    assert_int_equal(c->optimizer.kind, CLT_OPTIMIZER_TORCH_ADAMW);
    assert_int_equal(clt_optimizer_of(c->optimizer.kind)->moments, 2);
    clt_config_free(c);
    c = cu_load_with("optimizer={name: sgd, momentum: 0.9, weight_decay: 0, nesterov: true, param_groups: "
                     "[{param_str_match: bias$, momentum: 0.5, weight_decay: 0.1}]}");
    const clt_param_group *g = c->optimizer.groups;
    assert_true(c->optimizer.kind == CLT_OPTIMIZER_SGD && c->optimizer.nesterov);
    assert_true(g[0].beta1 == 0.9 && g[0].weight_decay == 0 && g[1].beta1 == 0.5 && g[1].weight_decay == 0.1);
    clt_config_free(c);
    c = cu_load_with("optimizer={name: lamb, betas: [0.8, 0.9], eps: 1.0e-06}");
    assert_int_equal(c->optimizer.kind, CLT_OPTIMIZER_LAMB);
    assert_int_equal(clt_optimizer_of(c->optimizer.kind)->moments, 2);
    assert_true(c->optimizer.groups[0].beta1 == 0.8 && c->optimizer.groups[0].eps == 1e-6);
    clt_config_free(c);
    c = cu_load_with("optimizer.name=sgd");
    assert_true(c->optimizer.groups[0].beta1 == 0 && !c->optimizer.nesterov);
    clt_config_free(c);
}

static void patterns_without_a_tensor_are_named(void **state) {
    (void)state;
    clt_config *c =
        cu_load_with("optimizer={param_groups: [{param_str_match: bias$}, {param_str_match: 'norm3'}], "
                     "disable_grad: ['wte', '^transformer\\.wqe', 'model\\.wte$']}");
    assert_int_equal(c->warnings.n, 3);
    assert_string_equal(c->warnings.v[0],
                        "optimizer.disable_grad: '^transformer\\.wqe' matches no tensor of this model");
    assert_non_null(strstr(c->warnings.v[1], "optimizer.disable_grad: 'model\\.wte$' "));
    assert_non_null(strstr(c->warnings.v[2], "optimizer.param_groups.1.param_str_match: 'norm3' "));
    clt_config_free(c);
}

/* An escaped reference is printed as one. */
static void escaped_references_read_back(void **state) {
    (void)state;
    clt_config *c = cu_load_with("metadata={a: 'x\\${y}', b: '\\\\${z}', '${k}': 1}"), *again;
    clt_str text = {0};
    clt_config_print(c, false, &text);
    assert_int_equal(clt_config_parse(text.s, text.len, "printed", NULL, 0, &again), CLT_OK);
    json_t *metadata = json_object_get(again->merged, "metadata"), *d = clt_config_differences(c, text.s);
    assert_string_equal(json_string_value(json_object_get(metadata, "a")), "x${y}");
    assert_string_equal(json_string_value(json_object_get(metadata, "b")), "\\${z}");
    assert_non_null(json_object_get(metadata, "${k}"));
    assert_int_equal(json_object_size(d), 0);
    json_decref(d);
    clt_str_free(&text);
    clt_config_free(again);
    clt_config_free(c);
}

/* A line break in an override does not end the comment that names the override. */
static void origins_stay_in_their_line(void **state) {
    (void)state;
    clt_config *c = cu_load_with("metadata={a: \"x\ny\", b:\n 1}"), *again;
    clt_str text = {0};
    clt_config_print(c, true, &text);
    assert_int_equal(clt_config_parse(text.s, text.len, "printed", NULL, 0, &again), CLT_OK);
    clt_config_free(again);
    clt_config_free(c);
    clt_str_free(&text);
}

/* The printed configuration is a configuration that means the same. */
static void printing_reads_back(void **state) {
    (void)state;
    clt_config *c = cu_load("tools/presets/mpt-7b.yaml"), *d;
    for (int origin = 0; origin < 2; origin++) {
        clt_str text = {0};
        clt_config_print(c, origin, &text);
        char path[] = "/tmp/clt_test_print_XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        FILE *f = fdopen(fd, "w");
        fputs(text.s, f);
        fclose(f);
        d = cu_load(path);
        remove(path);
        json_t *a = clt_model_config_to_json(c->model), *b = clt_model_config_to_json(d->model);
        assert_true(json_equal(a, b));
        json_decref(a);
        json_decref(b);
        assert_true(c->optimizer.groups[0].eps == d->optimizer.groups[0].eps);
        assert_true(c->dist_timeout == d->dist_timeout);
        if (origin) assert_non_null(strstr(text.s, "seed: 17  # tools/presets/mpt-7b.yaml:"));
        if (origin) assert_non_null(strstr(text.s, "exact_lanes: 8  # default"));
        clt_config_free(d);
        clt_str_free(&text);
    }
    clt_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_are_named),
        cmocka_unit_test(golden_runs_load),
        cmocka_unit_test(presets_have_foundrys_sizes),
        cmocka_unit_test(every_key_of_foundry_is_known),
        cmocka_unit_test(lanes_follow_the_job),
        cmocka_unit_test(ranks_are_checked),
        cmocka_unit_test(precision_decides_defaults),
        cmocka_unit_test(names_are_normalised),
        cmocka_unit_test(groups_claim_tensors_in_order),
        cmocka_unit_test(optimizers_of_pytorch),
        cmocka_unit_test(patterns_without_a_tensor_are_named),
        cmocka_unit_test(printing_reads_back),
        cmocka_unit_test(escaped_references_read_back),
        cmocka_unit_test(origins_stay_in_their_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
