/* What is wrong in a configuration is refused with its place and the right words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "test/config_util.h"

/* One wrong override each: words of the message, the key (or place) and the reason among them. */
static const struct {
    const char *override, *word, *word2;
} bad[] = {
    {"optimizer.learning_rate=1", "'optimizer.learning_rate' is unknown", "known are name, lr, betas"},
    {"optimzer.lr=1", "'optimzer' is unknown", "did you mean 'optimizer'"},
    {"train_loader.name=image", "train_loader.name", "the model reads tokens"},
    {"train_loader.dataset.scale=[0.5, 0.1]", "train_loader.dataset.scale", "not above the second"},
    {"train_loader.dataset.mean=[0.5, 0.5]", "train_loader.dataset.mean", "a list of 3 numbers"},
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
    {"precision=amp_int8", "amp_int8", "ust be one of: fp32, amp_fp16"},
    {"cltrain.recompute=all", "'all'", "one of: none, norms, blocks"},
    {"precision=fp64", "fp64", "ust be one of: fp32, amp_fp16"},
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
    {"model.expansion_ratio=1.01", "expansion_ratio", "not a whole number"},
    {"model.expansion_ratio=1e300", "expansion_ratio", "wide"},
    {"model.max_seq_len=32", "train_loader.dataset.max_seq_len", "more than model.max_seq_len 32"},
    {"train_loader.dataset.max_seq_len=32", "train_loader.dataset.max_seq_len", "max_seq_len is 64"},
    {"train_loader.dataset.eos_token_id=4294967296", "eos_token_id", "outside model.vocab_size"},
    {"train_loader.dataset.bos_token_id=-2", "bos_token_id", "outside model.vocab_size"},
    {"train_subset_num_batches=0", "train_subset_num_batches", "at least one batch"},
    {"train_loader.dataset={eos_token_id: 1, bos_token_id: 2}", "train_loader.dataset.eos_token_id",
     "contradicts key 'train_loader.dataset.bos_token_id'"},
    {"optimizer.disable_grad='((a{99}){99}){99}'", "disable_grad", "repeats more than 1,000 times"},
    {"optimizer.disable_grad='(.*)\\1'", "disable_grad", "back-references"},
    {"eval_subset_num_batches=0", "eval_subset_num_batches", "at least one batch"},
    {"model.resid_pdrop=1", "resid_pdrop", "below 1"},
    {"model.attn_config.attn_pdrop=-0.1", "attn_pdrop", "at least 0"},
    {"model.embedding_fraction=0", "embedding_fraction", "above 0"},
    {"model.embedding_scale=0", "embedding_scale", "above 0"},
    {"model.norm_offset=0.5", "norm_offset", "must be 0 or 1"},
    {"model={post_norms: true, resid_pdrop: 0.1}", "post_norms", "set resid_pdrop to 0"},
    {"model.attn_config={rope: true, rope_fraction: 1.5}", "rope_fraction", "at most 1"},
    {"model.attn_config={rope: true, rope_fraction: 0.01}", "rope_fraction", "must be even and above 0"},
    {"model.norm_type=batchnorm", "norm_type", "ust be one of"},
    {"model.fc_type=te", "fc_type", "Transformer Engine"},
    {"model.ffn_config.ffn_type=te_ln_mlp", "ffn_type", "refused"},
    {"model.ffn_config.moe_num_experts=8", "moe_num_experts", "mixture-of-experts"},
    {"model.ffn_config.ffn_act_fn={name: gelluu}", "gelluu", "did you mean"},
    {"model.ffn_config.ffn_act_fn={name: gelu, approximate: fast}", "approximate", "tanh"},
    {"model.ffn_config.ffn_act_fn={name: elu, alpha: 2}", "alpha", "not supported"},
    {"model.attn_config.attn_impl=triton", "attn_impl", "one of: flash, torch"},
    {"model.attn_config.attn_type=grouped_query_attention", "attn_type", "needs kv_n_heads"},
    {"model.attn_config={attn_type: grouped_query_attention, kv_n_heads: 3}", "kv_n_heads", "divide"},
    {"model.attn_config.kv_n_heads=2", "kv_n_heads", "multihead"},
    {"model.attn_config={qk_ln: true, qk_gn: true}", "qk_gn", "both"},
    {"model.attn_config.clip_qkv=0", "clip_qkv", "above 0"},
    {"model.attn_config.attn_logit_softcapping=-1", "attn_logit_softcapping", "above 0"},
    {"model.attn_config.sliding_window_size=-2", "sliding_window_size", "-1"},
    {"model.attn_config.rope_dail_config.type=xpos", "rope_dail_config.type", "decay"},
    {"model.attn_config={rope: true, rope_impl: hf, rope_hf_config: {type: yarn}}", "yarn", "ust be one of"},
    {"model.attn_config.nope=true", "nope", "block_overrides"},
    {"model.attn_config.kv_dim=64", "kv_dim", "refused"},
    {"model={d_model: 18, n_heads: 6, attn_config: {rope: true}}", "rope", "even head size"},
    {"model.logit_scale=big", "logit_scale", "inv_sqrt_d_model"},
    {"model.init_config.name=baseline_", "init_std", "baseline_"},
    {"model.init_config.init_div_is_residual=-1", "init_div_is_residual", "above 0"},
    {"model.loss_fn=mse", "loss_fn", "ust be one of"},
    {"optimizer.name=adam", "optimizer.name", "ust be one of"},
    {"optimizer={name: lamb, max_coeff: 0}", "optimizer.max_coeff", "must be above 0"},
    {"optimizer={name: lamb, max_coeff: 1, min_coeff: 2}", "optimizer.min_coeff", "must be 0 to max_coeff"},
    {"optimizer.layer_decay=0", "layer_decay", "must be above 0 and at most 1"},
    {"optimizer.layer_decay=1.25", "layer_decay", "must be above 0 and at most 1"},
    {"optimizer.layer_decay=0.75", "layer_decay", "only models of the family vit"},
    {"optimizer={name: sgd, nesterov: true}", "nesterov", "needs a momentum"},
    {"optimizer={name: sgd, momentum: -1}", "momentum", "below 0"},
    {"optimizer.name=clip_lion", "clip_lion", "not computed here"},
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
    {"algorithms.gradient_clipping.clipping_type=adaptive", "adaptive", "is refused"},
    {"algorithms.gradient_clipping.clipping_threshold=0", "clipping_threshold", "above 0"},
    {"algorithms.alibi={}", "algorithms.alibi", "model.attn_config.alibi"},
    {"callbacks.early_stopper={}", "early_stopper", "is missing"},
    {"callbacks.speed_monitor.window_size=0", "callbacks.speed_monitor.window_size", "at least 1"},
    {"callbacks.speed_monitor={windowsize: 0}", "callbacks.speed_monitor.windowsize",
     "did you mean 'window_size'"},
    {"icl_tasks=[{label: a}]", "icl_tasks.0.dataset_uri", "missing"},
    {"icl_tasks=3", "icl_tasks", "must be a list"},
    {"icl_tasks=none.yaml", "none.yaml", "no such file"},
    {"eval_gauntlet={categories: []}", "eval_gauntlet", "needs icl_tasks"},
    {"icl_seq_len=1000000", "icl_seq_len", "more than max_seq_len"},
    {"code_paths=[x.py]", "code_paths", "Python"},
    {"train_loader.name=contrastive_pairs", "contrastive_pairs", "not supported"},
    {"train_loader.dataset.preprocessing_fn=a:b", "preprocessing_fn", "Python code"},
    {"train_loader.dataset.preprocessing_fn={prompt: a}", "preprocessing_fn", "response: COLUMN"},
    {"train_loader.dataset.preprocessing_fn={prompt: a, response: 3}", "preprocessing_fn", "must be"},
    {"train_loader.dataset.decoder_only_format=false", "decoder_only_format", "encoder-decoder"},
    {"train_loader.dataset.packing_ratio=0.5", "packing_ratio", "at least 1"},
    {"train_loader.dataset.target_prompts=length>3", "target_prompts", "length>=N"},
    {"train_loader={name: finetuning, dataset: {streams: {a: {local: x}}, batching_method: "
     "device_per_stream}}",
     "batching_method", "do not depend on ranks"},
    {"train_loader.name=other", "train_loader.name", "it must be one of: text, finetuning"},
    {"train_loader.dataset.replication=-2", "replication", "negative"},
    {"eval_loader={name: text, dataset: {replication: 2}}", "replication", "refused"},
    {"train_loader.dataset={local: null, streams: {a: {}}}", "streams.a", "has no local"},
    {"train_loader.dataset={local: x, streams: {a: {local: y}}}", "train_loader.dataset.streams",
     "give one folder as local"},
    {"train_loader.dataset={local: null, streams: {a: {local: y, weight: 1}}}", "streams.a.weight",
     "unknown"},
    {"train_loader.dataset={local: null, streams: {a: {local: x, repeat: 1, choose: 2}}}", "streams.a",
     "2 weights"},
    {"train_loader.dataset={local: null, streams: {a: {local: x, choose: 1.5}}}", "streams.a",
     "whole number"},
    {"train_loader.dataset={local: null, streams: {a: {local: x}, b: {local: y, proportion: 1}}}",
     "streams.b", "has a proportion and 'a' has none"},
    {"train_loader.dataset.epoch_size=10kb", "epoch_size", "10k"},
    {"train_loader.dataset.shuffle_algo=py2x", "py2x", "did you mean 'py2s'"},
    {"train_loader.dataset.shuffle_algo=py1b", "py1b", "py1br or py1e"},
    {"train_loader.dataset.num_canonical_nodes=-2", "num_canonical_nodes", "negative"},
    {"train_loader.dataset.shuffle_seed=-1", "train_loader.dataset.shuffle_seed", "negative"},
    {"eval_loader=[{name: text, dataset: {local: a}}, {name: text, dataset: {local: b}}]", "eval_loader.0",
     "label"},
    {"eval_loaders=[3]", "eval_loaders.0", "must be a map"},
    {"save_folder=gs://bucket/x", "save_folder", "S3-compatible"},
    {"load_path=gs://bucket/x", "load_path", "S3-compatible"},
    {"save_filename=../x", "save_filename", "plain name"},
    {"save_latest_filename=metrics.jsonl", "save_latest_filename", "a file of its own with this name"},
    {"run_name=../../x", "run_name", "folder"},
    {"console_log_interval=10tok", "console_log_interval", "batches"},
    {"cltrain.zero_stage=4", "cltrain.zero_stage", "auto, 0, 1, 2 or 3"},
    {"cltrain.zero_stage=-1", "cltrain.zero_stage", "auto, 0, 1, 2 or 3"},
    {"fsdp_config={sharding_strategy: HYBRID_SHARD}", "fsdp_config.sharding_strategy",
     "set fsdp_config.data_parallel_shard_degree"},
    {"fsdp_config={data_parallel_shard_degree: 0}", "fsdp_config.data_parallel_shard_degree", "is 0"},
    {"fsdp_config={data_parallel_replicate_degree: -2}", "fsdp_config.data_parallel_replicate_degree",
     "is -2"},
    {"fsdp_config={device_mesh: [2, 4]}", "fsdp_config.device_mesh", "data_parallel_shard_degree"},
    {"cltrain.exact_lanes=6", "exact_lanes", "power of two"},
    {"cltrain.exact_lanes=0", "exact_lanes", "at least 1"},
    {"cltrain.numerics=exakt", "did you mean 'exact'", "one of: exact, fast"},
    {"cltrain.guards.nonfinite=ignore", "nonfinite", "one of: stop"},
    {"seed=${oc.env:SEED}", "oc.env", "refused"},
    {"seed=-1", "seed", "at least 0"},
    {"dist_timeout=0", "dist_timeout", "above 0"},
};

/* The exit code is 78. */
static void wrong_values_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_config *c;
        if (clt_config_load(CU_BASE, &bad[i].override, 1, &c) != CLT_BAD_CONFIG)
            fail_msg("%s was not refused as a configuration error", bad[i].override);
        const char *e = clt_last_error();
        if (!strstr(e, bad[i].word) || !strstr(e, bad[i].word2))
            fail_msg("%s: '%s' does not say '%s' and '%s'", bad[i].override, e, bad[i].word, bad[i].word2);
    }
}

/* Each has the secret word S3CRET; the message must not. */
static void secrets_in_urls_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *override, *key;
    } urls[] = {{"save_folder=s3://AKIA:S3CRET@bucket/run", "save_folder"},
                {"save_folder=s3://AKIA:S3/CRET/S3CRET@bucket/run", "save_folder"},
                {"save_folder=s3://S3CRET@bucket/run", "save_folder"},
                {"load_path='https://host/x?X-Amz-Signature=S3CRET'", "load_path"},
                {"load_path='https://host/x?a=1&X-Amz-Security-Token=S3CRET'", "load_path"},
                {"load_path='https://host/x?AWSAccessKeyId=S3CRET'", "load_path"},
                {"load_path='https://host/x?sv=1&sig=S3CRET'", "load_path"},
                {"cltrain.mirror=s3://a:S3CRET@bucket/run", "cltrain.mirror"},
                {"train_loader.dataset.remote=s3://a:S3CRET@bucket", "train_loader.dataset.remote"},
                {"eval_loaders=[{label: a, dataset: {remote: 's3://a:S3CRET@b/c'}}]",
                 "eval_loaders.0.dataset.remote"},
                {"loggers.mlflow.tracking_uri=https://me:S3CRET@host", "loggers.mlflow.tracking_uri"},
                {"variables.url=s3://a:S3CRET@b", "variables.url"}};
    static const char *const harmless[] = {"metadata.a=https://host:9000/a@b", "metadata.a=s3://bucket/a:b@c",
                                           "metadata.a='https://host/x?version=3&max_tokens'",
                                           "metadata.a='me:password@host is no URL: s3://a:b@c'"};
    clt_config *c;
    for (size_t i = 0; i < CLT_COUNT_OF(urls); i++) {
        assert_int_equal(clt_config_load(CU_BASE, &urls[i].override, 1, &c), CLT_BAD_CONFIG);
        const char *e = clt_last_error();
        if (!strstr(e, urls[i].key) || !strstr(e, "AWS_ACCESS_KEY_ID") || strstr(e, "S3CRET"))
            fail_msg("%s: '%s' does not name the key, or shows the secret", urls[i].override, e);
    }
    for (size_t i = 0; i < CLT_COUNT_OF(harmless); i++) {
        assert_int_equal(clt_config_load(CU_BASE, &harmless[i], 1, &c), CLT_OK);
        clt_config_free(c);
    }
}

static void mirrors_that_are_no_second_place_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *overrides[2], *word;
    } mirrors[] = {{{"save_folder=", "cltrain.mirror=/b/run"}, "needs a save_folder"},
                   {{"save_folder=/a/run", "cltrain.mirror=/a/run/"}, "below"},
                   {{"save_folder=/a/run", "cltrain.mirror=file:///a/run"}, "below"},
                   {{"save_folder=runs/{run_name}", "cltrain.mirror=./runs/{run_name}/mirror"}, "below"},
                   {{"save_folder=/a/run", "cltrain.mirror=/a"}, "below"},
                   {{"save_folder=/a/run", "cltrain.mirror=gs://a/run"}, "S3-compatible"}};
    const char *good[] = {"save_folder=/a/run", "cltrain.mirror=/a/run2/{run_name}", "run_name=x"};
    clt_config *c;
    for (size_t i = 0; i < CLT_COUNT_OF(mirrors); i++) {
        assert_int_equal(clt_config_load(CU_BASE, mirrors[i].overrides, 2, &c), CLT_BAD_CONFIG);
        const char *e = clt_last_error();
        if (!strstr(e, "cltrain.mirror") || !strstr(e, mirrors[i].word))
            fail_msg("%zu: '%s' does not name the key and '%s'", i, e, mirrors[i].word);
    }
    assert_int_equal(clt_config_load(CU_BASE, good, 3, &c), CLT_OK);
    assert_string_equal(c->mirror, "/a/run2/x");
    clt_config_free(c);
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
    assert_int_equal(clt_io_read_all(CU_BASE, 1 << 20, &text, &n), CLT_OK);
    char *dir = clt_strdup("/tmp/clt_test_config_XXXXXX");
    assert_non_null(mkdtemp(dir));
    char *path = clt_path_join(dir, "run.yaml");
    for (size_t i = 0; i < CLT_COUNT_OF(edits); i++) {
        char *at = strstr(text, edits[i].from);
        if (!at) fail_msg("'%s' is not in " CU_BASE, edits[i].from);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(wrong_keys_in_a_file_are_placed),
        cmocka_unit_test(secrets_in_urls_are_refused),
        cmocka_unit_test(mirrors_that_are_no_second_place_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
