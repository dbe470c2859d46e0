/* GPT-2: learned positions, layer norms, biases everywhere, matrices stored as [in, out] (Conv1D). */
#include "runtime/base/clt_dmath.h"
#include "runtime/model/hf/clt_hf.h"

#define CLASSIFIER "it belongs to a classification head"

static const clt_key keys[] = {
    CLT_HF_COMMON_KEYS("50257"),
    CLT_HF_NO_PADDING_KEY,
    CLT_HF_IGNORED("n_special", CLT_HF_TRAINING),
    CLT_HF_IGNORED("predict_special_tokens", CLT_HF_TRAINING),
    CLT_HF_IGNORED("output_past", CLT_HF_GENERATION),
    CLT_HF_KEY("n_embd", hidden_size, "768", "width"),
    CLT_HF_KEY("n_inner", intermediate_size, "null", "width of the MLP; default: 4 n_embd", .nullable = true),
    CLT_HF_KEY("n_layer", layers, "12", "blocks"),
    CLT_HF_KEY("n_head", heads, "12", "heads"),
    CLT_HF_KEY("n_positions", positions, "1024", "longest sample; rows of wpe"),
    CLT_HF_ACT("activation_function", "\"gelu_new\""),
    CLT_HF_KEY("layer_norm_epsilon", norm_eps, "1e-05", "inside the norm's square root"),
    CLT_HF_KEY("attn_pdrop", attention_dropout, "0.1", "dropout of attention weights"),
    CLT_HF_KEY("resid_pdrop", hidden_dropout, "0.1", "dropout of both branches of a block"),
    CLT_HF_KEY("embd_pdrop", embedding_dropout, "0.1", "dropout after the embedding"),
    CLT_HF_KEY("scale_attn_weights", scale_weights, "true", "scores are divided by sqrt(head size)"),
    CLT_HF_KEY("tie_word_embeddings", tied, "true", "the head is the embedding"),
    CLT_KEY_REFUSE("scale_attn_by_inverse_layer_idx", "false", "a scale of scores by layer is not supported"),
    CLT_HF_IGNORED("reorder_and_upcast_attn", CLT_KEY_OF_PYTORCH),
    CLT_HF_IGNORED("n_ctx", "n_positions says it"),
    CLT_HF_IGNORED("summary_activation", CLASSIFIER),
    CLT_HF_IGNORED("summary_first_dropout", CLASSIFIER),
    CLT_HF_IGNORED("summary_proj_to_labels", CLASSIFIER),
    CLT_HF_IGNORED("summary_type", CLASSIFIER),
    CLT_HF_IGNORED("summary_use_proj", CLASSIFIER),
};

static clt_status decode(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, clt_mpt_config *c) {
    (void)r;
    (void)o;
    c->learned_pos_emb = true;
    c->norm_bias = c->attention_bias = c->out_bias = c->mlp_bias = true;
    c->init_div_is_residual = clt_dsqrt(2 * (double)c->n_layers);
    if (!raw->scale_weights) c->softmax_scale = 1;
    return CLT_OK;
}

static const clt_hf_tensor tensors[] = {
    {"transformer.wte", "transformer.wte", CLT_HF_SAME},
    {"transformer.wpe", "transformer.wpe", CLT_HF_SAME},
    {"transformer.blocks.*.norm_1", "transformer.h.*.ln_1", CLT_HF_SAME},
    {"transformer.blocks.*.attn.Wqkv", "transformer.h.*.attn.c_attn", CLT_HF_TRANSPOSED},
    {"transformer.blocks.*.attn.out_proj", "transformer.h.*.attn.c_proj", CLT_HF_TRANSPOSED},
    {"transformer.blocks.*.norm_2", "transformer.h.*.ln_2", CLT_HF_SAME},
    {"transformer.blocks.*.ffn.up_proj", "transformer.h.*.mlp.c_fc", CLT_HF_TRANSPOSED},
    {"transformer.blocks.*.ffn.down_proj", "transformer.h.*.mlp.c_proj", CLT_HF_TRANSPOSED},
    {"transformer.norm_f", "transformer.ln_f", CLT_HF_SAME},
    {"lm_head", "lm_head", CLT_HF_SAME},
};
/* The causal mask, which old files hold. */
static const char *const ignored[] = {"*h.*.attn.bias", "*h.*.attn.masked_bias", NULL};

const clt_hf_family clt_hf_gpt2 = {.model_type = "gpt2",
                                   .keys = CLT_SCHEMA(keys),
                                   .decode = decode,
                                   .tensors = tensors,
                                   .n_tensors = CLT_COUNT_OF(tensors),
                                   .prefix = "transformer.",
                                   .ignored = ignored,
                                   .head = "lm_head.weight"};
