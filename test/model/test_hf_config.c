/* config.json of the transformers package: what is read from it, the defaults that an absent key has, and the
 * message for what is wrong or not supported, which names the key. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/model/mpt/clt_mpt_config.h"
#include "runtime/train/config/clt_config.h"
#include "test/golden_util.h"
#include "test/test_util.h"

#define LLAMA                                                                                                \
    "'model_type': 'llama', 'vocab_size': 288, 'hidden_size': 32, 'intermediate_size': 72, "                 \
    "'num_hidden_layers': 2, 'num_attention_heads': 4, 'max_position_embeddings': 64"
#define MISTRAL                                                                                              \
    "'model_type': 'mistral', 'vocab_size': 288, 'hidden_size': 32, 'intermediate_size': 72, "               \
    "'num_hidden_layers': 3, 'num_attention_heads': 16, 'max_position_embeddings': 64"
#define GEMMA2 "'model_type': 'gemma2', 'vocab_size': 288, 'num_hidden_layers': 3"

/* The keys of `base`, which those of `change` replace; both with single quotes for double ones. */
static clt_status read(const char *base, const char *change, clt_mpt_config **out) {
    char *text = clt_format("{%s%s%s}", base, *change ? ", " : "", change);
    for (char *c = text; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *o = json_loads(text, 0, NULL); /* the last of equal keys counts */
    assert_non_null(o);
    clt_status st = clt_model_config_from_json(o, true, "config.json", (clt_model_config **)out);
    json_decref(o);
    clt_free(text);
    return st;
}

/* --- what is read --- */

static clt_mpt_config *config(const char *base, const char *change) {
    clt_mpt_config *c;
    tu_assert_ok(read(base, change, &c), change);
    return c;
}

static void release(clt_mpt_config *c) {
    clt_model_config_free(&c->base);
}

static void absent_keys_have_defaults(void **state) {
    (void)state;
    clt_mpt_config *c = config(LLAMA, "");
    assert_true(c->kv_n_heads == 4 && c->head_dim == 8 && c->norm_eps == 1e-6 && c->rope_theta == 10000);
    assert_true(c->rope == CLT_ROPE_PLAIN && !c->tie_word_embeddings && !c->attention_bias && !c->mlp_bias);
    assert_true(c->rms_norm && c->glu && c->activation == CLT_ACT_SILU && c->layer[1].window == -1);
    release(c);
    c = config(MISTRAL, "");
    assert_true(c->layer[0].window == 4095);
    release(c);
    c = config(MISTRAL, "'sliding_window': null");
    assert_true(c->layer[0].window == -1 && c->kv_n_heads == 8);
    release(c);
    c = config(MISTRAL, "'num_key_value_heads': null");
    assert_true(c->kv_n_heads == 16);
    release(c);
    c = config("'model_type': 'qwen2', 'num_attention_heads': 64", "");
    assert_true(c->d_model == 4096 && c->ffn_hidden == 22016 && c->n_layers == 32 && c->kv_n_heads == 32);
    assert_true(c->vocab_size == 151936 && c->max_seq_len == 32768 && c->layer[31].window == 4095);
    release(c);
    c = config("'model_type': 'llama'", "");
    assert_true(c->vocab_size == 32000 && c->ffn_hidden == 11008 && c->kv_n_heads == 32 &&
                c->max_seq_len == 2048);
    release(c);
    c = config(GEMMA2, "");
    assert_true(c->attn_logit_softcapping == 50 && c->final_logit_softcapping == 30 &&
                c->tie_word_embeddings);
    assert_true(c->layer[0].window == 4095 && c->layer[1].window == -1 && c->layer[2].window == 4095);
    release(c);
    c = config("'model_type': 'gpt2', 'vocab_size': 288", "");
    assert_true(c->d_model == 768 && c->ffn_hidden == 3072 && c->resid_pdrop == 0.1 &&
                c->max_seq_len == 1024);
    assert_true(c->tie_word_embeddings && c->activation == CLT_ACT_GELU_TANH && c->norm_bias);
    release(c);
}

static void keys_are_read(void **state) {
    (void)state;
    clt_mpt_config *c = config(LLAMA, "'attention_bias': true, 'num_key_value_heads': 2, 'head_dim': 16, "
                                      "'hidden_act': 'gelu', 'tie_word_embeddings': true");
    assert_true(c->attention_bias && c->out_bias && !c->mlp_bias && c->kv_n_heads == 2 && c->head_dim == 16);
    assert_true(c->activation == CLT_ACT_GELU && c->tie_word_embeddings && c->softmax_scale == 0.25);
    release(c);
    c = config(LLAMA, "'rope_scaling': {'type': 'linear', 'factor': 4.0}, '_name_or_path': 'x', "
                      "'rope_theta': 5e5");
    assert_true(c->rope == CLT_ROPE_LINEAR && c->rope_factor == 4 && c->rope_theta == 5e5);
    release(c);
    c = config(LLAMA, "'rope_parameters': {'rope_type': 'default', 'rope_theta': 7e5}");
    assert_true(c->rope == CLT_ROPE_PLAIN && c->rope_theta == 7e5);
    release(c);
    c = config(LLAMA,
               "'hidden_act': 'gelu_python', 'num_beams': 4, 'pruned_heads': {}, 'partial_rotary_factor': 1, "
               "'rope_scaling': {'rope_type': 'linear', 'type': 'linear', 'factor': 2}");
    assert_true(c->activation == CLT_ACT_GELU && c->rope == CLT_ROPE_LINEAR);
    release(c);
    c = config("'model_type': 'gpt_neox', 'hidden_size': 64, 'num_attention_heads': 4", "'rotary_pct': 0.33");
    assert_true(c->rope_dims == 6 && fabs(c->rope_theta / pow(10000, 6.0 / 5) - 1) < 1e-12);
    release(c);
    c = config(GEMMA2, "'sliding_window': 9, 'attn_logit_softcapping': null, 'layer_types': "
                       "['full_attention', 'sliding_attention', 'full_attention']");
    assert_true(c->layer[0].window == -1 && c->layer[1].window == 8 && c->attn_logit_softcapping == 0);
    release(c);
}

/* The classes of Llama and Gemma 2 give torch's Embedding a padding_idx; those of GPT-2 and GPT-NeoX do not.
 */
static void padding_is_read(void **state) {
    (void)state;
    static const struct {
        const char *base, *key;
        int64_t id;
    } cases[] = {
        {LLAMA, "", -1},
        {LLAMA, "'pad_token_id': 0", 0},
        {LLAMA, "'vocab_size': 90, 'pad_token_id': -1", 89},
        {MISTRAL, "'pad_token_id': 2", 2},
        {MISTRAL, "'pad_token_id': null", -1},
        {"'model_type': 'qwen2', 'num_attention_heads': 64", "'pad_token_id': 3", 3},
        {GEMMA2, "", 0},
        {GEMMA2, "'pad_token_id': null", -1},
        {GEMMA2, "'pad_token_id': 7", 7},
        {"'model_type': 'gpt2', 'vocab_size': 288", "'pad_token_id': 5", -1},
        {"'model_type': 'gpt_neox', 'hidden_size': 64, 'num_attention_heads': 4", "'pad_token_id': 5", -1},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        clt_mpt_config *c = config(cases[i].base, cases[i].key);
        assert_int_equal(c->padding_id, cases[i].id);
        release(c);
    }
}

/* --- what is wrong --- */

static const struct {
    const char *base, *change, *says;
} bad_keys[] = {
    {LLAMA, "'rope_scaling': {'rope_type': 'yarn', 'factor': 2}",
     "'rope_scaling.rope_type' is yarn, which is refused"},
    {LLAMA, "'rope_scaling': {'rope_type': 'spiral'}", "rope_scaling.rope_type"},
    {LLAMA, "'rope_scaling': {'factor': 2}", "'rope_scaling' has no rope_type"},
    {LLAMA, "'rope_scaling': {'rope_type': 'linear'}", "rope_scaling.factor"},
    {LLAMA, "'rope_scaling': {'rope_type': 'llama3', 'factor': 8}", "low_freq_factor"},
    {LLAMA, "'rope_scaling': 3", "rope_scaling"},
    {LLAMA, "'hidden_act': 'gelu2'", "hidden_act"},
    {LLAMA, "'wings': 2", "key 'wings' is unknown"},
    {LLAMA, "'hiden_size': 2", "did you mean 'hidden_size'"},
    {LLAMA, "'hidden_size': 33", "num_attention_heads 4 does not divide"},
    {LLAMA, "'hidden_size': -1", "hidden_size"},
    {LLAMA, "'hidden_size': 1e30", "hidden_size"},
    {LLAMA, "'num_hidden_layers': 100000", "num_hidden_layers"},
    {LLAMA, "'num_key_value_heads': 3", "num_key_value_heads"},
    {LLAMA, "'head_dim': 7", "head_dim"},
    {LLAMA, "'rms_norm_eps': 0", "rms_norm_eps"},
    {LLAMA, "'vocab_size': null", "vocab_size"},
    {LLAMA, "'quantization_config': {'bits': 4}", "quantized weights are not supported"},
    {LLAMA, "'model_type': 'falcon'", "'falcon', an unknown model"},
    {MISTRAL, "'sliding_window': -3", "sliding_window"},
    {GEMMA2, "'layer_types': ['full_attention']", "1 entries for 3 blocks"},
    {GEMMA2, "'layer_types': ['full_attention', 'x', 3]", "layer_types"},
    {GEMMA2, "'query_pre_attn_scalar': 0", "query_pre_attn_scalar"},
    {"'model_type': 'gpt2', 'vocab_size': 288", "'scale_attn_by_inverse_layer_idx': true",
     "scale_attn_by_inverse_layer_idx"},
    {"'model_type': 'gpt2', 'vocab_size': 288", "'attn_pdrop': 1.5", "attn_pdrop"},
    {"'model_type': 'gpt_neox', 'vocab_size': 288", "'rotary_pct': 0", "rotary_pct"},
    {"'model_type': 'gpt_neox', 'hidden_size': 36", "'num_attention_heads': 4, 'rotary_pct': 1",
     "10 of the 9"},
    {"'model_type': 'gpt_neox', 'vocab_size': 288", "'rotary_pct': 0.001", "rotates 0 of the 96"},
    {"'model_type': 'gpt_neox', 'vocab_size': 288", "'rotary_pct': 0.5, 'partial_rotary_factor': 0.25",
     "partial_rotary_factor"},
    {MISTRAL, "'num_attention_heads': 4", "num_key_value_heads' is 8: it must divide num_attention_heads 4"},
    {LLAMA, "'rope_scaling': {'rope_type': 'linear', 'type': 'dynamic', 'factor': 2}",
     "'rope_scaling' has rope_type linear and type dynamic"},
    {LLAMA, "'num_key_value_heads': 0", "num_key_value_heads' is 0: it must be null or above 0"},
    {LLAMA, "'intermediate_size': 0", "intermediate_size"},
    {LLAMA, "'num_experts': 8", "'num_experts' is refused: mixture of experts"},
    {GEMMA2, "'sliding_window': 0", "'sliding_window' is 0: it must be null or above 0"},
    {GEMMA2, "'final_logit_softcapping': 0", "final_logit_softcapping"},
    {GEMMA2, "'attn_logit_softcapping': -1", "attn_logit_softcapping"},
    {"'hidden_size': 32", "", "'model_type' is missing"},
    {LLAMA, "'partial_rotary_factor': 0.5", "partial_rotary_factor"},
    {LLAMA, "'pad_token_id': 288", "'pad_token_id' is 288: the vocabulary has 288 ids"},
    {LLAMA, "'pruned_heads': {'0': [1]}", "pruned_heads"},
};

static void wrong_keys_are_named(void **state) {
    (void)state;
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(bad_keys); i++) {
        clt_mpt_config *c;
        if (read(bad_keys[i].base, bad_keys[i].change, &c) == CLT_OK)
            fail_msg("accepted: %s", bad_keys[i].change);
        if (!strstr(clt_last_error(), bad_keys[i].says))
            fail_msg("%s: the message is '%s'", bad_keys[i].change, clt_last_error());
    }
    clt_error_quiet(false);
}

/* --- model.name hf_causal_lm --- */

static clt_status load(const char *model, clt_config **out) {
    char *text = clt_format("model: {name: hf_causal_lm, %s}\n"
                            "tokenizer: {name: bytes, kwargs: {}}\n"
                            "optimizer: {name: decoupled_adamw}\n"
                            "scheduler: {name: cosine_with_warmup, t_warmup: 2ba}\n"
                            "train_loader: {name: text, dataset: {}}\n"
                            "max_seq_len: 40\nmax_duration: 30ba\nglobal_train_batch_size: 8\n",
                            model);
    *out = NULL;
    clt_status st = clt_config_parse(text, strlen(text), "run.yaml", NULL, 0, out);
    clt_free(text);
    return st;
}

#define GOLDEN "pretrained_model_name_or_path: test/golden/families/"

static void folders_are_read(void **state) {
    clt_config *c;
    (void)state;
    tu_assert_ok(
        load(GOLDEN "llama3/hf, config_overrides: {rope_scaling: {factor: 2.0}, rms_norm_eps: 0.5}", &c),
        "llama3");
    const clt_mpt_config *m = (const clt_mpt_config *)c->model;
    assert_true(m->rope == CLT_ROPE_LLAMA3 && m->rope_factor == 2 && m->rope_original_max_positions == 64);
    assert_true(m->norm_eps == 0.5);
    assert_string_equal(clt_model_pretrained(c->model), "test/golden/families/llama3/hf");
    assert_non_null(strstr(clt_model_source_folder(c->model), "/test/golden/families/llama3/hf"));
    clt_config_free(c);
    tu_assert_ok(load(GOLDEN "gpt2/hf, pretrained: false", &c), "gpt2");
    assert_null(clt_model_pretrained(c->model));
    clt_config_free(c);
    tu_assert_ok(load("pretrained_model_name_or_path: test/golden/mpt-alibi/hf", &c), "mpt");
    assert_true(((const clt_mpt_config *)c->model)->alibi);
    assert_non_null(clt_model_pretrained(c->model));
    assert_non_null(strstr(clt_model_source_folder(c->model), "/test/golden/mpt-alibi/hf"));
    clt_config_free(c);
}

static void wrong_sections_are_named(void **state) {
    static const struct {
        const char *model, *says;
    } bad[] = {
        {"pretrained: true", "model.pretrained_model_name_or_path"},
        {"pretrained_model_name_or_path: meta-llama/Llama-3.1-8B", "models are not downloaded"},
        {"pretrained_model_name_or_path: ./absent", "no folder here: name the folder of a model"},
        {"pretrained_model_name_or_path: test/golden", "config.json"},
        {GOLDEN "llama3/hf, config_overrides: {wings: 2}", "model.config_overrides: key 'wings' is unknown"},
        {GOLDEN "llama3/hf, config_overrides: {max_position_embeddings: 16}", "max_seq_len"},
        {GOLDEN "llama3/hf, peft_config: {r: 8}", "adapters (PEFT) are not supported"},
        {GOLDEN "llama3/hf, load_in_8bit: true", "8-bit weights"},
        {GOLDEN "llama3/hf, d_model: 3", "model.d_model"},
    };
    (void)state;
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        clt_config *c;
        if (load(bad[i].model, &c) == CLT_OK) fail_msg("accepted: %s", bad[i].model);
        if (!strstr(clt_last_error(), bad[i].says))
            fail_msg("%s: the message is '%s'", bad[i].model, clt_last_error());
    }
    clt_error_quiet(false);
}

/* A family that keeps no config.json notes the folder too, and does not export the note. */
static void mpt_keeps_its_source(void **state) {
    static const char path[] = "test/golden/mpt-alibi/hf/config.json";
    json_t *o = golden_load(path);
    clt_model_config *a, *b;
    (void)state;
    tu_assert_ok(clt_model_config_from_json(o, true, path, &a), path);
    clt_model_config_note_source(a, "test", "float16");
    json_t *written = clt_model_config_to_json(a), *exported = clt_model_hf_config(a, "float16");
    tu_assert_ok(clt_model_config_from_json(written, false, path, &b), path);
    assert_string_equal(clt_model_source_dtype(b), "float16");
    assert_string_equal(clt_model_source_folder(b), clt_model_source_folder(a));
    assert_null(json_object_get(exported, "_cltrain"));
    json_decref(written);
    json_decref(exported);
    json_decref(o);
    clt_model_config_free(a);
    clt_model_config_free(b);
}

/* What a checkpoint stores makes the same model again, with the noted folder. */
static void checkpoints_keep_the_configuration(void **state) {
    static const char *const sets[] = {"gpt2",       "llama3",   "llama-tied", "mistral",
                                       "qwen2-bf16", "gpt-neox", "gemma2"};
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        char *path = clt_format("test/golden/families/%s/hf/config.json", sets[i]);
        json_t *o = golden_load(path), *written, *exported;
        clt_model_config *a, *b;
        tu_assert_ok(clt_model_config_from_json(o, true, path, &a), path);
        clt_model_config_note_source(a, "test", "bfloat16");
        clt_model_config *copy = clt_model_config_copy(a);
        written = clt_model_config_to_json(copy);
        tu_assert_ok(clt_model_config_from_json(written, true, path, &b), path);
        const size_t from = offsetof(clt_mpt_config, d_model);
        assert_memory_equal((char *)a + from, (char *)b + from, sizeof(clt_mpt_config) - from);
        assert_string_equal(clt_model_source_dtype(b), "bfloat16");
        if (strcmp(sets[i], "qwen2-bf16") == 0) { /* its window is that of old versions of transformers */
            json_object_set_new(o, "use_sliding_window", json_true());
            json_object_set_new(o, "max_window_layers", json_integer(0));
        }
        exported = clt_model_hf_config(b, json_string_value(json_object_get(o, "torch_dtype")));
        assert_true(json_equal(exported, o));
        json_decref(written);
        json_decref(exported);
        json_decref(o);
        clt_model_config_free(a);
        clt_model_config_free(b);
        clt_model_config_free(copy);
        clt_free(path);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_have_defaults),
        cmocka_unit_test(keys_are_read),
        cmocka_unit_test(padding_is_read),
        cmocka_unit_test(wrong_keys_are_named),
        cmocka_unit_test(folders_are_read),
        cmocka_unit_test(wrong_sections_are_named),
        cmocka_unit_test(checkpoints_keep_the_configuration),
        cmocka_unit_test(mpt_keeps_its_source),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
