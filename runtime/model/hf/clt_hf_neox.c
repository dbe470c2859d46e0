/* GPT-NeoX: parallel residual, positions in a part of each head, q|k|v fused head by head. */
#include <math.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/model/hf/clt_hf.h"

static const clt_key keys[] = {
    CLT_HF_COMMON_KEYS("50432"),
    CLT_HF_NO_PADDING_KEY,
    CLT_HF_IGNORED("attention_probs_dropout_prob", "attention_dropout is what counts"),
    CLT_HF_IGNORED("hidden_dropout_prob", "hidden_dropout is what counts"),
    CLT_HF_KEY("hidden_size", hidden_size, "6144", "width"),
    CLT_HF_KEY("intermediate_size", intermediate_size, "24576", "width of the MLP"),
    CLT_HF_KEY("num_hidden_layers", layers, "44", "blocks"),
    CLT_HF_KEY("num_attention_heads", heads, "64", "heads"),
    CLT_HF_KEY("max_position_embeddings", positions, "2048", "longest sample"),
    CLT_HF_ACT("hidden_act", "\"gelu\""),
    CLT_HF_KEY("layer_norm_eps", norm_eps, "1e-05", "inside the norm's square root"),
    CLT_HF_KEY("rotary_pct", rotary_fraction, "0.25", "the part of each head that rotates"),
    CLT_HF_KEY("rotary_emb_base", rope_theta, "10000.0", "base of the rotary frequencies"),
    CLT_HF_ROPE_SCALING,
    CLT_HF_KEY("attention_bias", attention_bias, "true", "biases of q, k, v and the output"),
    CLT_HF_KEY("attention_dropout", attention_dropout, "0.0", "dropout of attention weights"),
    CLT_HF_KEY("hidden_dropout", hidden_dropout, "0.0",
               "dropout after the embedding and of both branches of a block"),
    CLT_HF_KEY("use_parallel_residual", parallel_residual, "true",
               "both branches start from a block's input"),
    CLT_HF_KEY("tie_word_embeddings", tied, "false", "the head is the embedding"),
    CLT_HF_IGNORED("partial_rotary_factor", "rotary_pct says it"),
    CLT_HF_IGNORED("rope_theta", "rotary_emb_base says it"),
    CLT_HF_IGNORED("classifier_dropout", "it belongs to a classification head"),
};

/* transformers writes these twice, and reads the older name. */
static clt_status check_equal(clt_schema_reader *r, const json_t *o, const char *key, double value) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v) || json_number_value(v) == value) return CLT_OK;
    return clt_schema_fail(r, key, "is %g, and the key of the same meaning %g", json_number_value(v), value);
}

/* The first dimensions of a head rotate. The package completes the last pair of an odd number, and its
 * exponents are 2i / dims as before: as 2i / (dims + 1) with another base. */
static clt_status rotate_part(clt_schema_reader *r, double fraction, clt_mpt_config *c) {
    const int64_t dims = (int64_t)floor((double)c->head_dim * fraction);
    c->rope_dims = dims + dims % 2;
    if (dims < 1 || c->rope_dims > c->head_dim)
        return clt_schema_fail(r, "rotary_pct", "is %g, which rotates %lld of the %lld dimensions of a head",
                               fraction, (long long)c->rope_dims, (long long)c->head_dim);
    if (dims % 2 != 0) c->rope_theta = clt_dpow(c->rope_theta, (double)c->rope_dims / (double)dims);
    return CLT_OK;
}

static clt_status decode(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, clt_mpt_config *c) {
    CLT_TRY(check_equal(r, o, "partial_rotary_factor", raw->rotary_fraction));
    CLT_TRY(check_equal(r, o, "rope_theta", raw->rope_theta));
    c->norm_bias = c->mlp_bias = true;
    c->attention_bias = c->out_bias = raw->attention_bias;
    c->parallel_residual = raw->parallel_residual;
    c->emb_pdrop = raw->hidden_dropout;
    if (!(raw->rotary_fraction > 0 && raw->rotary_fraction <= 1))
        return clt_schema_fail(r, "rotary_pct", "is %g: it must be above 0 and at most 1",
                               raw->rotary_fraction);
    c->rope_fraction = raw->rotary_fraction;
    CLT_TRY(rotate_part(r, raw->rotary_fraction, c));
    return clt_hf_decode_rope(r, raw, c);
}

static const clt_hf_tensor tensors[] = {
    {"transformer.wte", "gpt_neox.embed_in", CLT_HF_SAME},
    {"transformer.blocks.*.norm_1", "gpt_neox.layers.*.input_layernorm", CLT_HF_SAME},
    {"transformer.blocks.*.attn.Wqkv", "gpt_neox.layers.*.attention.query_key_value", CLT_HF_BY_HEAD},
    {"transformer.blocks.*.attn.out_proj", "gpt_neox.layers.*.attention.dense", CLT_HF_SAME},
    {"transformer.blocks.*.norm_2", "gpt_neox.layers.*.post_attention_layernorm", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.up_proj", "gpt_neox.layers.*.mlp.dense_h_to_4h", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.down_proj", "gpt_neox.layers.*.mlp.dense_4h_to_h", CLT_HF_SAME},
    {"transformer.norm_f", "gpt_neox.final_layer_norm", CLT_HF_SAME},
    {"lm_head", "embed_out", CLT_HF_SAME},
};
/* The causal masks and frequencies, which old files hold. */
static const char *const ignored[] = {"*.attention.bias", "*.attention.masked_bias", "*rotary_emb.inv_freq",
                                      NULL};

const clt_hf_family clt_hf_neox = {.model_type = "gpt_neox",
                                   .keys = CLT_SCHEMA(keys),
                                   .decode = decode,
                                   .tensors = tensors,
                                   .n_tensors = CLT_COUNT_OF(tensors),
                                   .prefix = "gpt_neox.",
                                   .ignored = ignored,
                                   .head = "embed_out.weight"};
