/* Gemma 2: four norms a block that multiply by 1 + weight, softcaps, a window in every other block. */
#include "runtime/base/clt_dmath.h"
#include "runtime/model/hf/clt_hf.h"

static const clt_key keys[] = {
    CLT_HF_COMMON_KEYS("256000"),
    CLT_HF_PADDING_KEY("0"),
    CLT_HF_IGNORED("sliding_window_size", "sliding_window is what counts"),
    CLT_HF_KEY("hidden_size", hidden_size, "2304", "width"),
    CLT_HF_KEY("intermediate_size", intermediate_size, "9216", "width of the MLP"),
    CLT_HF_KEY("num_hidden_layers", layers, "26", "blocks"),
    CLT_HF_KEY("num_attention_heads", heads, "8", "query heads"),
    CLT_HF_KEY("num_key_value_heads", kv_heads, "4", "heads of keys and values"),
    CLT_HF_KEY("head_dim", head_dim, "256", "width of a head"),
    CLT_HF_KEY("max_position_embeddings", positions, "8192", "longest sample"),
    CLT_HF_ACT("hidden_activation", "\"gelu_pytorch_tanh\""),
    CLT_HF_KEY("rms_norm_eps", norm_eps, "1e-06", "inside the norm's square root"),
    CLT_HF_KEY("rope_theta", rope_theta, "10000.0", "base of the rotary frequencies"),
    CLT_HF_KEY("attention_bias", attention_bias, "false", "biases of q, k, v and o"),
    CLT_HF_KEY("attention_dropout", attention_dropout, "0.0", "dropout of attention weights"),
    CLT_HF_KEY("query_pre_attn_scalar", query_scalar, "256.0", "scores are divided by its square root"),
    CLT_HF_KEY("attn_logit_softcapping", attention_softcap, "null", "c * tanh(s / c) on scores; default: 50",
               .nullable = true),
    CLT_HF_KEY("final_logit_softcapping", final_softcap, "null", "c * tanh(z / c) on logits; default: 30",
               .nullable = true),
    CLT_HF_KEY("sliding_window", sliding_window, "null",
               "keys that a query sees in blocks 0, 2, ..., its own included; null: all; default: 4096",
               .nullable = true),
    CLT_HF_KEY("tie_word_embeddings", tied, "true", "the head is the embedding"),
    CLT_HF_LAYER_TYPES,
    CLT_HF_ROPE_SCALING,
    CLT_HF_IGNORED("hidden_act", "hidden_activation says it"),
};

/* An absent key and null differ. */
static double or_default(const json_t *o, const char *key, double value, double otherwise) {
    return json_object_get(o, key) ? value : otherwise;
}

static clt_status decode(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, clt_mpt_config *c) {
    if (!(raw->query_scalar > 0))
        return clt_schema_fail(r, "query_pre_attn_scalar", "is %g: it must be above 0", raw->query_scalar);
    CLT_TRY(clt_hf_check_given(r, o, "attn_logit_softcapping"));
    CLT_TRY(clt_hf_check_given(r, o, "final_logit_softcapping"));
    CLT_TRY(clt_hf_check_given(r, o, "sliding_window"));
    CLT_TRY(clt_hf_decode_padding(r, raw, o, 0, c));
    c->rms_norm = c->glu = c->post_norms = true;
    c->norm_offset = 1;
    c->embedding_scale = clt_dsqrt((double)c->d_model);
    c->attention_bias = c->out_bias = raw->attention_bias;
    c->softmax_scale = 1 / clt_dsqrt(raw->query_scalar);
    c->attn_logit_softcapping = or_default(o, "attn_logit_softcapping", raw->attention_softcap, 50);
    c->final_logit_softcapping = or_default(o, "final_logit_softcapping", raw->final_softcap, 30);
    const int64_t window = json_object_get(o, "sliding_window") ? raw->sliding_window : 4096;
    clt_hf_set_window(c, window, 0, 2);
    CLT_TRY(clt_hf_decode_layer_types(r, raw, window, c));
    return clt_hf_decode_rope(r, raw, c);
}

static const clt_hf_tensor tensors[] = {
    {"transformer.wte", "model.embed_tokens", CLT_HF_SAME},
    {"transformer.blocks.*.norm_1", "model.layers.*.input_layernorm", CLT_HF_SAME},
    {"transformer.blocks.*.attn.Wqkv", "model.layers.*.self_attn.q_proj", CLT_HF_QUERIES},
    {"transformer.blocks.*.attn.Wqkv", "model.layers.*.self_attn.k_proj", CLT_HF_KEYS},
    {"transformer.blocks.*.attn.Wqkv", "model.layers.*.self_attn.v_proj", CLT_HF_VALUES},
    {"transformer.blocks.*.attn.out_proj", "model.layers.*.self_attn.o_proj", CLT_HF_SAME},
    {"transformer.blocks.*.post_norm_1", "model.layers.*.post_attention_layernorm", CLT_HF_SAME},
    {"transformer.blocks.*.norm_2", "model.layers.*.pre_feedforward_layernorm", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.gate_proj", "model.layers.*.mlp.gate_proj", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.up_proj", "model.layers.*.mlp.up_proj", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.down_proj", "model.layers.*.mlp.down_proj", CLT_HF_SAME},
    {"transformer.blocks.*.post_norm_2", "model.layers.*.post_feedforward_layernorm", CLT_HF_SAME},
    {"transformer.norm_f", "model.norm", CLT_HF_SAME},
    {"lm_head", "lm_head", CLT_HF_SAME},
};
static const char *const ignored[] = {"*rotary_emb.inv_freq", NULL};

const clt_hf_family clt_hf_gemma2 = {.model_type = "gemma2",
                                     .keys = CLT_SCHEMA(keys),
                                     .decode = decode,
                                     .tensors = tensors,
                                     .n_tensors = CLT_COUNT_OF(tensors),
                                     .prefix = "model.",
                                     .ignored = ignored,
                                     .head = "lm_head.weight"};
