/* clt_mpt_config: what an MPT model is, as plain numbers: the `model:` section of a training configuration
 * and the config.json of a Hugging Face folder, with all defaults applied, every value checked, and per-layer
 * overrides resolved. What a key means follows LLM Foundry's MPTConfig; what this program does not compute is
 * refused with the reason. */
#ifndef CLT_MPT_CONFIG_H
#define CLT_MPT_CONFIG_H

#include "../base/clt_schema.h"
#include "../ops/clt_ops.h"

typedef enum { CLT_MPT_LAYERNORM, CLT_MPT_RMSNORM } clt_mpt_norm;
typedef enum {
    CLT_MPT_ROPE_PLAIN,
    CLT_MPT_ROPE_LINEAR,
    CLT_MPT_ROPE_DYNAMIC,
    CLT_MPT_ROPE_LLAMA3
} clt_mpt_rope_type;
typedef enum {
    CLT_MPT_INIT_KAIMING_NORMAL,
    CLT_MPT_INIT_KAIMING_UNIFORM,
    CLT_MPT_INIT_XAVIER_NORMAL,
    CLT_MPT_INIT_XAVIER_UNIFORM,
    CLT_MPT_INIT_BASELINE, /* N(0, init_std^2) */
    CLT_MPT_INIT_SMALL,    /* N(0, 2/(5 d_model)) */
    CLT_MPT_INIT_NEOX,     /* small, residual outputs divided by n_layers / sqrt(10) */
    CLT_MPT_INIT_DEFAULT   /* torch's reset_parameters */
} clt_mpt_init;

/* One block, after its overrides. */
typedef struct {
    int64_t window;  /* query i sees keys i - window .. i; -1: all */
    int64_t kv_from; /* the layer whose keys and values this one uses: its own index, or an earlier one,
                        in which case it has Wq alone instead of Wqkv and no k_ln */
    bool nope;       /* neither rope nor ALiBi in this block */
    double temperature_scale; /* 0: off; query of position p (from 0) times log(floor((p+1)/floor) + 1) *
                                 scale + 1 */
    double temperature_floor;
} clt_mpt_layer;

typedef struct {
    int64_t d_model, n_heads, n_layers, max_seq_len, vocab_size;
    int64_t head_dim;   /* d_model / n_heads unless given */
    int64_t kv_heads;   /* n_heads; 1 with multiquery_attention; kv_n_heads with grouped_query_attention */
    int64_t ffn_hidden; /* expansion_ratio * d_model unless ffn_config.ffn_hidden_size is given */
    double expansion_ratio;
    double resid_pdrop, emb_pdrop, attn_pdrop;
    bool learned_pos_emb; /* already false under alibi or rope */
    bool no_bias;         /* no bias in Linear layers and norms; qkv_bias decides about Wqkv alone */
    bool qkv_bias;
    bool tie_word_embeddings;
    clt_mpt_norm norm;
    double norm_eps;
    double embedding_fraction;
    double logit_scale;         /* 1: none */
    double final_logit_softcap; /* 0: none */

    bool fused_qkv, qk_ln, qk_gn;
    double clip_qkv;      /* 0: none */
    double softmax_scale; /* 1/sqrt(d_model / n_heads) unless given */
    double attn_softcap;  /* 0: none */
    bool attn_uses_sequence_id;
    bool alibi;
    double alibi_bias_max;
    bool rope;
    double rope_theta;
    clt_mpt_rope_type rope_type;
    double rope_factor;                                 /* linear, dynamic, llama3 */
    double rope_low_freq_factor, rope_high_freq_factor; /* llama3 */
    int64_t rope_original_max_positions;                /* llama3 */

    bool ffn_gated; /* mptglu: down(act(gate(x)) * up(x)) */
    clt_activation ffn_act;

    clt_mpt_init init;
    bool init_fan_out;        /* init_config.fan_mode */
    double init_gain;         /* xavier: gain; kaiming: already sqrt(2) for relu, 1 for linear ... */
    double init_std;          /* baseline */
    double init_div_residual; /* out_proj and down_proj weights are divided by it; 1: not */
    double emb_init_std;      /* -1: none */
    bool emb_init_uniform;    /* U(low, high) for the embeddings */
    double emb_init_low, emb_init_high;

    clt_mpt_layer *layers; /* n_layers, owned */
} clt_mpt_config;

/* From the merged `model:` section or a config.json; r says how errors look (clt_schema.h), path is "model"
 * or "". r->ignore_unknown is set for files that carry keys of others (transformers_version ...). On failure
 * nothing is owned by *out. */
clt_status clt_mpt_config_read(clt_schema_reader *r, const char *path, json_t *object, clt_mpt_config *out);
/* The config.json of an HF folder. */
clt_status clt_mpt_config_from_json(json_t *object, const char *what, clt_mpt_config *out);
clt_status clt_mpt_config_load_hf(const char *path, clt_mpt_config *out);
void clt_mpt_config_clear(clt_mpt_config *c);
/* Deep copy. */
void clt_mpt_config_copy(const clt_mpt_config *from, clt_mpt_config *to);

/* config.json text of this model (caller owns): what HF's remote code and this program read back. */
json_t *clt_mpt_config_to_json(const clt_mpt_config *c);

/* The first difference that makes weights of one unusable for the other ("d_model is 64 there and 96 here"),
 * or NULL; malloc'ed. */
char *clt_mpt_config_difference(const clt_mpt_config *there, const clt_mpt_config *here);

/* The table of keys below `model`. */
const clt_schema *clt_mpt_config_schema(void);

#endif
