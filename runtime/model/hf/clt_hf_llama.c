/* Llama 2 and 3, and the families that differ from it by a window (Mistral) or biases (Qwen2). */
#include "runtime/model/hf/clt_hf.h"

/* --- keys --- */

/* The defaults that the families' classes do not share. kv_heads: a text. */
#define LLAMA_KEYS(vocab, width, mlp, kv_heads_, max_positions)                                              \
    CLT_HF_COMMON_KEYS(vocab), CLT_HF_PADDING_KEY("null"),                                                   \
        CLT_HF_KEY("hidden_size", hidden_size, width, "width"),                                              \
        CLT_HF_KEY("intermediate_size", intermediate_size, mlp, "width of the MLP"),                         \
        CLT_HF_KEY("num_hidden_layers", layers, "32", "blocks"),                                             \
        CLT_HF_KEY("num_attention_heads", heads, "32", "query heads"),                                       \
        CLT_HF_KEY("num_key_value_heads", kv_heads, "null",                                                  \
                   "heads of keys and values; null: num_attention_heads; default: " kv_heads_,               \
                   .nullable = true),                                                                        \
        CLT_HF_KEY("head_dim", head_dim, "null",                                                             \
                   "width of a head; default: hidden_size / num_attention_heads", .nullable = true),         \
        CLT_HF_KEY("max_position_embeddings", positions, max_positions, "longest sample"),                   \
        CLT_HF_ACT("hidden_act", "\"silu\""),                                                                \
        CLT_HF_KEY("rms_norm_eps", norm_eps, "1e-06", "inside the norm's square root"),                      \
        CLT_HF_KEY("rope_theta", rope_theta, "10000.0", "base of the rotary frequencies"),                   \
        CLT_HF_ROPE_SCALING,                                                                                 \
        CLT_HF_KEY("attention_dropout", attention_dropout, "0.0", "dropout of attention weights"),           \
        CLT_HF_KEY("tie_word_embeddings", tied, "false", "the head is the embedding"),                       \
        CLT_KEY_REFUSE("partial_rotary_factor", "1.0", "heads that rotate in part are not supported here")

static const clt_key llama_keys[] = {
    LLAMA_KEYS("32000", "4096", "11008", "null", "2048"),
    CLT_HF_KEY("attention_bias", attention_bias, "false", "biases of q, k, v and o"),
    CLT_HF_IGNORED("is_llama_config", CLT_HF_TRAINING),
    CLT_KEY_REFUSE("rope_interleaved", "false", "interleaved rotary positions are not supported"),
    CLT_HF_KEY("mlp_bias", mlp_bias, "false", "biases of the MLP"),
    CLT_HF_IGNORED("pretraining_tp", "it splits matrix products of a former training"),
};

#define WINDOW_KEY                                                                                           \
    CLT_HF_KEY("sliding_window", sliding_window, "null",                                                     \
               "keys that a query sees, its own included; null: all; default: 4096", .nullable = true)

static const clt_key mistral_keys[] = {
    LLAMA_KEYS("32000", "4096", "14336", "8", "131072"),
    WINDOW_KEY,
};

/* transformers 4.51 limits every block to sliding_window whatever these two say, unless attention is that of
 * the package flash-attn. */
#define ALL_BLOCKS "sliding_window alone decides, for all blocks; null: none"
static const clt_key qwen2_keys[] = {
    LLAMA_KEYS("151936", "4096", "22016", "32", "32768"),
    WINDOW_KEY,
    CLT_HF_IGNORED("use_sliding_window", ALL_BLOCKS),
    CLT_KEY_REFUSE("use_mrope", "false", "rotary positions of images are not supported"),
    CLT_HF_IGNORED("max_window_layers", ALL_BLOCKS),
    CLT_HF_LAYER_TYPES,
};

/* --- the decoder --- */

static clt_status llama_block(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o,
                              clt_mpt_config *c) {
    c->rms_norm = true;
    c->glu = true;
    return clt_hf_decode_padding(r, raw, o, -1, c);
}

static clt_status llama(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, clt_mpt_config *c) {
    CLT_TRY(llama_block(r, raw, o, c));
    c->attention_bias = c->out_bias = raw->attention_bias;
    c->mlp_bias = raw->mlp_bias;
    return clt_hf_decode_rope(r, raw, c);
}

/* null and an absent key differ. */
static clt_status set_window(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o,
                             clt_mpt_config *c) {
    CLT_TRY(clt_hf_check_given(r, o, "sliding_window"));
    clt_hf_set_window(c, json_object_get(o, "sliding_window") ? raw->sliding_window : 4096, 0, 1);
    return CLT_OK;
}

static clt_status mistral(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, clt_mpt_config *c) {
    CLT_TRY(llama_block(r, raw, o, c));
    CLT_TRY(set_window(r, raw, o, c));
    return clt_hf_decode_rope(r, raw, c);
}

static clt_status qwen2(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, clt_mpt_config *c) {
    CLT_TRY(llama_block(r, raw, o, c));
    c->attention_bias = true;
    CLT_TRY(set_window(r, raw, o, c));
    CLT_TRY(clt_hf_decode_layer_types(r, raw, raw->sliding_window, c));
    return clt_hf_decode_rope(r, raw, c);
}

/* transformers from 4.52 on ignores sliding_window where use_sliding_window is false, and limits the blocks
 * from max_window_layers on. Keys that say the same to both are exported where the window excludes anything.
 */
static void qwen2_export(const clt_mpt_config *c, json_t *o) {
    const int64_t window = c->layer[0].window;
    if (json_is_array(json_object_get(o, "layer_types")) || window < 0 || window + 1 >= c->max_seq_len)
        return;
    json_object_set_new(o, "use_sliding_window", json_true());
    json_object_set_new(o, "max_window_layers", json_integer(0));
}

/* --- tensors --- */

static const clt_hf_tensor tensors[] = {
    {"transformer.wte", "model.embed_tokens", CLT_HF_SAME},
    {"transformer.blocks.*.norm_1", "model.layers.*.input_layernorm", CLT_HF_SAME},
    {"transformer.blocks.*.attn.Wqkv", "model.layers.*.self_attn.q_proj", CLT_HF_QUERIES},
    {"transformer.blocks.*.attn.Wqkv", "model.layers.*.self_attn.k_proj", CLT_HF_KEYS},
    {"transformer.blocks.*.attn.Wqkv", "model.layers.*.self_attn.v_proj", CLT_HF_VALUES},
    {"transformer.blocks.*.attn.out_proj", "model.layers.*.self_attn.o_proj", CLT_HF_SAME},
    {"transformer.blocks.*.norm_2", "model.layers.*.post_attention_layernorm", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.gate_proj", "model.layers.*.mlp.gate_proj", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.up_proj", "model.layers.*.mlp.up_proj", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.down_proj", "model.layers.*.mlp.down_proj", CLT_HF_SAME},
    {"transformer.norm_f", "model.norm", CLT_HF_SAME},
    {"lm_head", "lm_head", CLT_HF_SAME},
};
static const char *const ignored[] = {"*rotary_emb.inv_freq", NULL};

#define FAMILY(type, keys_, kv_heads_, decode_, export_)                                                     \
    {                                                                                                        \
        .model_type = type, .keys = CLT_SCHEMA(keys_), .kv_heads = kv_heads_, .decode = decode_,             \
        .tensors = tensors, .n_tensors = CLT_COUNT_OF(tensors), .prefix = "model.", .ignored = ignored,      \
        .head = "lm_head.weight", .export_keys = export_                                                     \
    }
const clt_hf_family clt_hf_llama = FAMILY("llama", llama_keys, 0, llama, NULL),
                    clt_hf_mistral = FAMILY("mistral", mistral_keys, 8, mistral, NULL),
                    clt_hf_qwen2 = FAMILY("qwen2", qwen2_keys, 32, qwen2, qwen2_export);
