/* Training configurations: Foundry's files load, every key of Foundry's is known, and what is wrong is
 * refused with its place and the right words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_config.h"
#include "runtime/model/clt_model.h"

#define BASE "test/golden/mpt-learned/train.yaml"

static clt_config *load(const char *path) {
    clt_config *c = NULL;
    if (clt_config_load(path, NULL, 0, &c) != CLT_OK)
        fail_msg("%s does not load: %s", path, clt_last_error());
    return c;
}

static clt_config *load_with(const char *override) {
    clt_config *c = NULL;
    if (clt_config_load(BASE, &override, 1, &c) != CLT_OK) fail_msg("%s: %s", override, clt_last_error());
    return c;
}

/* What BASE with an override says else than BASE. */
static void differs(const char *override, const char *want) {
    clt_config *base = load(BASE), *c = load_with(override);
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
    differs("cltrain.exact_lanes=8", "{}");
    differs("optimizer.lr=4e-3", "{}");
    clt_config *c = load(BASE);
    assert_null(clt_config_differences(c, "a: [1"));
    assert_null(clt_config_differences(c, "17"));
    clt_config_free(c);
}

static void golden_runs_load(void **state) {
    (void)state;
    clt_config *c = load("test/golden/e2e/train.yaml");
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

    c = load("test/golden/mpt-variants/train.yaml");
    assert_string_equal(c->load_path, "./hf");
    assert_string_equal(c->save_folder, "./run");
    assert_true(c->autoresume);
    assert_int_equal(c->schedule.t_max.value, 30);
    clt_config_free(c);

    c = load("test/golden/mpt-alibi/train.yaml");
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
        clt_config *c = load(path);
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
static void every_key_of_foundry_is_known(void **state) {
    (void)state;
    static const char keys[] =
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
    char *copy = clt_strdup(keys);
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

/* One wrong override each: the message names the key (or place) and the reason; the exit code is 78. */
static void wrong_values_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *override, *word, *word2;
    } bad[] = {
        {"optimzer.lr=1", "'optimzer' is not known", "did you mean 'optimizer'"},
        {"model.d_modle=3", "model.d_modle", "did you mean 'd_model'"},
        {"train_loader.dataset.shufle=true", "shufle", "did you mean 'shuffle'"},
        {"callbacks.lr_montor={}", "lr_montor", "did you mean 'lr_monitor'"},
        {"cltrain.numeric=fast", "cltrain.numeric", "did you mean 'numerics'"},
        {"model.attn_config=3", "must be a map", "a whole number"},
        {"model=3", "model", "must be a map"},
        {"optimizer.lr=abc", "must be a number", "abc"},
        {"eval_first=no", "must be true or false", "no"},
        {"seed=1.5", "seed", "a whole number"},
        {"max_duration=", "max_duration", "must be"},
        {"scheduler=", "scheduler", "must be"},
        {"max_duration=10xx", "max_duration", "must be a time"},
        {"max_duration=0ba", "max_duration", "above 0"},
        {"max_duration=0.5dur", "max_duration", "epochs"},
        {"precision=amp_fp8", "not supported", "amp_bf16"},
        {"cltrain.recompute=all", "'all'", "not known"},
        {"precision=fp64", "fp64", "known are"},
        {"device_train_microbatch_size=0", "device_train_microbatch_size", "from 1 to"},
        {"device_train_microbatch_size=1000000000000", "device_train_microbatch_size",
         "is 1000000000000: it must be a whole number from 1 to 1000000000"},
        {"device_train_microbatch_size=0.5", "device_train_microbatch_size", "whole number"},
        {"device_train_microbatch_size=big", "device_train_microbatch_size", "auto"},
        {"global_train_batch_size=0", "global_train_batch_size", "at least 1"},
        {"device_train_batch_size=4", "device_train_batch_size", "must not be set"},
        {"model.n_heads=5", "model.d_model", "n_heads 5"},
        {"model.n_layers=0", "n_layers", "from 1"},
        {"model.n_layers=100000", "n_layers", "from 1 to 512"},
        {"model.vocab_size=-1", "vocab_size", "from 1"},
        {"model.expansion_ratio=1.01", "expansion_ratio", "no whole number"},
        {"model.expansion_ratio=1e300", "expansion_ratio", "wide"},
        {"model.max_seq_len=32", "train_loader.dataset.max_seq_len", "more than model.max_seq_len 32"},
        {"train_loader.dataset.max_seq_len=32", "train_loader.dataset.max_seq_len", "max_seq_len is 64"},
        {"train_loader.dataset.eos_token_id=4294967296", "eos_token_id", "outside model.vocab_size"},
        {"train_loader.dataset.bos_token_id=-2", "bos_token_id", "outside model.vocab_size"},
        {"eval_subset_num_batches=0", "eval_subset_num_batches", "at least one batch"},
        {"model.resid_pdrop=1", "resid_pdrop", "below 1"},
        {"model.attn_config.attn_pdrop=-0.1", "attn_pdrop", "at least 0"},
        {"model.embedding_fraction=0", "embedding_fraction", "above 0"},
        {"model.norm_type=batchnorm", "norm_type", "known are"},
        {"model.fc_type=te", "fc_type", "Transformer Engine"},
        {"model.ffn_config.ffn_type=te_ln_mlp", "ffn_type", "refused"},
        {"model.ffn_config.moe_num_experts=8", "moe_num_experts", "mixture-of-experts"},
        {"model.ffn_config.ffn_act_fn={name: gelluu}", "gelluu", "did you mean"},
        {"model.ffn_config.ffn_act_fn={name: gelu, approximate: fast}", "approximate", "tanh"},
        {"model.ffn_config.ffn_act_fn={name: elu, alpha: 2}", "alpha", "not supported"},
        {"model.attn_config.attn_impl=triton", "attn_impl", "known are: flash, torch"},
        {"model.attn_config.attn_type=grouped_query_attention", "attn_type", "needs kv_n_heads"},
        {"model.attn_config={attn_type: grouped_query_attention, kv_n_heads: 3}", "kv_n_heads", "divide"},
        {"model.attn_config.kv_n_heads=2", "kv_n_heads", "multihead"},
        {"model.attn_config={qk_ln: true, qk_gn: true}", "qk_gn", "both"},
        {"model.attn_config.clip_qkv=0", "clip_qkv", "above 0"},
        {"model.attn_config.attn_logit_softcapping=-1", "attn_logit_softcapping", "above 0"},
        {"model.attn_config.sliding_window_size=-2", "sliding_window_size", "-1"},
        {"model.attn_config.rope_dail_config.type=xpos", "rope_dail_config.type", "decay"},
        {"model.attn_config={rope: true, rope_impl: hf, rope_hf_config: {type: yarn}}", "yarn", "known are"},
        {"model.attn_config.nope=true", "nope", "block_overrides"},
        {"model.attn_config.kv_dim=64", "kv_dim", "refused"},
        {"model={d_model: 18, n_heads: 6, attn_config: {rope: true}}", "rope", "even head size"},
        {"model.logit_scale=big", "logit_scale", "inv_sqrt_d_model"},
        {"model.init_config.name=baseline_", "init_std", "baseline_"},
        {"model.init_config.init_div_is_residual=-1", "init_div_is_residual", "above 0"},
        {"model.loss_fn=mse", "loss_fn", "known are"},
        {"optimizer.name=adamw", "optimizer.name", "known are"},
        {"optimizer.name=no_op", "no_op", "not supported"},
        {"optimizer.betas=[0.9]", "betas", "two numbers"},
        {"optimizer.betas=[0.9, 1]", "betas", "below 1"},
        {"optimizer.lr=-1", "learning rate", "below 0"},
        {"optimizer.param_groups=[{lr: 1}]", "param_str_match", "missing"},
        {"optimizer.param_groups=[{param_str_match: '[a'}]", "[a", "cannot be used"},
        {"optimizer.param_groups=[{param_str_match: '(?!a)'}]", "(?!a)", "not supported"},
        {"optimizer.param_groups=[{param_str_match: a, lrr: 1}]", "optimizer.param_groups.0.lrr",
         "did you mean 'lr'"},
        {"optimizer.disable_grad={}", "disable_grad", "list of strings"},
        {"scheduler.alpha=1", "scheduler.alpha", "does not belong to cosine_with_warmup"},
        {"scheduler={name: inv_sqrt_with_warmup, t_max: 30ba}", "scheduler", "alpha_f"},
        {"scheduler.t_warmup=soon", "t_warmup", "must be a time"},
        {"scheduler.t_warmup=100", "scheduler.t_warmup", "has no unit"},
        {"scheduler.t_warmup='100'", "scheduler.t_warmup", "has no unit"},
        {"scheduler.t_max=1e3", "scheduler.t_max", "has no unit"},
        {"scheduler={name: inv_sqrt_with_warmup, t_scale: 5, t_cooldown: 1ba}", "scheduler.t_scale",
         "has no unit"},
        {"algorithms.gradient_clipping.clipping_type=adaptive", "adaptive", "not supported"},
        {"algorithms.gradient_clipping.clipping_threshold=0", "clipping_threshold", "above 0"},
        {"algorithms.alibi={}", "algorithms.alibi", "model.attn_config.alibi"},
        {"callbacks.early_stopper={}", "early_stopper", "refused"},
        {"callbacks.speed_monitor.window_size=0", "callbacks.speed_monitor.window_size", "at least 1"},
        {"callbacks.speed_monitor={windowsize: 0}", "callbacks.speed_monitor.windowsize",
         "did you mean 'window_size'"},
        {"tp_config={strategy: ffn}", "tp_config", "tensor parallelism"},
        {"icl_tasks=[]", "icl_tasks", "refused"},
        {"code_paths=[x.py]", "code_paths", "Python"},
        {"train_loader.name=finetuning", "finetuning", "token samples"},
        {"train_loader.name=other", "train_loader.name", "must be text"},
        {"train_loader.dataset.replication=2", "replication", "refused"},
        {"train_loader.dataset.streams={a: {}}", "streams", "refused"},
        {"train_loader.dataset.shuffle_algo=py2x", "py2x", "not known"},
        {"train_loader.dataset.num_canonical_nodes=-2", "num_canonical_nodes", "above 0"},
        {"train_loader.dataset.shuffle_seed=-1", "train_loader.dataset.shuffle_seed", "cannot be below 0"},
        {"eval_loader={name: text, dataset: {local: a, shuffle_seed: -1}}",
         "eval_loader.dataset.shuffle_seed", "cannot be below 0"},
        {"eval_loader=[{name: text, dataset: {local: a}}, {name: text, dataset: {local: b}}]",
         "eval_loader.0", "label"},
        {"eval_loaders=[3]", "eval_loaders.0", "must be a map"},
        {"save_folder=s3://bucket/x", "save_folder", "object stores"},
        {"load_path=s3://bucket/x", "load_path", "object stores"},
        {"save_filename=../x", "save_filename", "plain name"},
        {"run_name=../../x", "run_name", "folder"},
        {"console_log_interval=10tok", "console_log_interval", "batches"},
        {"cltrain.exact_lanes=6", "exact_lanes", "power of two"},
        {"cltrain.exact_lanes=0", "exact_lanes", "at least 1"},
        {"cltrain.numerics=exakt", "exakt", "known are: exact, fast"},
        {"cltrain.guards.nonfinite=ignore", "nonfinite", "known are: stop"},
        {"seed=${oc.env:SEED}", "oc.env", "refused"},
        {"seed=-1", "seed", "negative"},
        {"dist_timeout=0", "dist_timeout", "above 0"},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_config *c;
        if (clt_config_load(BASE, &bad[i].override, 1, &c) != CLT_BAD_CONFIG)
            fail_msg("%s was not refused as a configuration error", bad[i].override);
        const char *e = clt_last_error();
        if (!strstr(e, bad[i].word) || !strstr(e, bad[i].word2))
            fail_msg("%s: '%s' does not say '%s' and '%s'", bad[i].override, e, bad[i].word, bad[i].word2);
    }
}

/* The same through a file: line and column. */
static void wrong_keys_in_a_file_are_placed(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *place;
    } edits[] = {{"  n_heads: 4", "  n_haeds: 4", ":6:"},
                 {"  lr: 0.004", "  lr: fast", ":36:7"},
                 {"max_duration: 30ba\n", "", "max_duration"},
                 {"seed: 17", "seed: [17]", ":3:7"}};
    char *text;
    size_t n;
    assert_int_equal(clt_io_read_all(BASE, 1 << 20, &text, &n), CLT_OK);
    char *dir = clt_strdup("/tmp/clt_test_config_XXXXXX");
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "run.yaml");
    for (size_t i = 0; i < CLT_COUNT_OF(edits); i++) {
        char *at = strstr(text, edits[i].from);
        if (!at) fail_msg("'%s' is not in " BASE, edits[i].from);
        char *edited =
            clt_format("%.*s%s%s", (int)(at - text), text, edits[i].to, at + strlen(edits[i].from));
        clt_config *c;
        assert_int_equal(clt_io_write_atomic(path, edited, strlen(edited)), CLT_OK);
        assert_int_equal(clt_config_load(path, NULL, 0, &c), CLT_BAD_CONFIG);
        if (!strstr(clt_last_error(), "run.yaml") || !strstr(clt_last_error(), edits[i].place))
            fail_msg("'%s' does not name %s", clt_last_error(), edits[i].place);
        clt_free(edited);
    }
    clt_io_remove_tree(dir);
    clt_free(path);
    clt_free(dir);
    clt_free(text);
}

static void keys_without_effect_say_so(void **state) {
    (void)state;
    clt_config *c =
        load_with("fsdp_config={sharding_strategy: SHARD_GRAD_OP, activation_checkpointing: true}");
    assert_int_equal(c->notices.n, 1);
    assert_non_null(strstr(c->notices.v[0], "key fsdp_config.sharding_strategy has no effect here: "));
    assert_int_equal(c->recompute, CLT_RECOMPUTE_BLOCKS);
    clt_config_free(c);
    c = load_with("loggers={wandb: }");
    assert_int_equal(c->notices.n, 1);
    clt_config_free(c);
    c = load_with("spin_dataloaders=true"); /* its default: nothing to say */
    assert_int_equal(c->notices.n, 0);
    clt_config_free(c);
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
               {"cltrain={recompute: norms}", CLT_F32, CLT_EXACT, CLT_RECOMPUTE_NORMS},
               {"cltrain={recompute: true, numerics: fast}", CLT_F32, CLT_FAST, CLT_RECOMPUTE_BLOCKS}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        clt_config *c = load_with(all[i].over);
        assert_int_equal(c->precision, all[i].precision);
        assert_int_equal(c->numerics, all[i].numerics);
        assert_int_equal(c->recompute, all[i].recompute);
        clt_config_free(c);
    }
}

static void ranks_are_checked(void **state) {
    (void)state;
    clt_config *c = load(BASE);
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
    assert_int_equal(clt_config_load(BASE, over, CLT_COUNT_OF(over), &c), CLT_OK);
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
        load_with("optimizer={param_groups: [{param_str_match: 'norm_\\d', lr: 1e-4, betas: [0.8, 0.9]}, "
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
    c = load_with("optimizer={name: decoupled_lionw, weight_decay: 0, betas: [0.9, 0.99]}");
    assert_int_equal(c->optimizer.kind, CLT_OPTIMIZER_LIONW);
    clt_config_free(c);
}

static void patterns_without_a_tensor_are_told(void **state) {
    (void)state;
    clt_config *c =
        load_with("optimizer={param_groups: [{param_str_match: bias$}, {param_str_match: 'norm3'}], "
                  "disable_grad: ['wte', '^transformer\\.wqe', 'model\\.wte$']}");
    assert_int_equal(c->warnings.n, 3);
    assert_string_equal(c->warnings.v[0],
                        "optimizer.disable_grad: '^transformer\\.wqe' matches no tensor of this model");
    assert_non_null(strstr(c->warnings.v[1], "optimizer.disable_grad: 'model\\.wte$' "));
    assert_non_null(strstr(c->warnings.v[2], "optimizer.param_groups.1.param_str_match: 'norm3' "));
    clt_config_free(c);
}

/* The printed configuration is a configuration that means the same. */
static void printing_reads_back(void **state) {
    (void)state;
    clt_config *c = load("tools/presets/mpt-7b.yaml"), *d;
    for (int origin = 0; origin < 2; origin++) {
        clt_str text = {0};
        clt_config_print(c, origin, &text);
        char path[] = "/tmp/clt_test_print_XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        FILE *f = fdopen(fd, "w");
        fputs(text.s, f);
        fclose(f);
        d = load(path);
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
        cmocka_unit_test(differences_are_named),         cmocka_unit_test(golden_runs_load),
        cmocka_unit_test(presets_have_foundrys_sizes),   cmocka_unit_test(every_key_of_foundry_is_known),
        cmocka_unit_test(wrong_values_are_refused),      cmocka_unit_test(wrong_keys_in_a_file_are_placed),
        cmocka_unit_test(keys_without_effect_say_so),    cmocka_unit_test(ranks_are_checked),
        cmocka_unit_test(precision_decides_defaults),    cmocka_unit_test(names_are_normalised),
        cmocka_unit_test(groups_claim_tensors_in_order), cmocka_unit_test(patterns_without_a_tensor_are_told),
        cmocka_unit_test(printing_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
