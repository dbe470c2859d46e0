/* clt_mpt_config: what defines an MPT model, with LLM Foundry's names and defaults (its MPTConfig), checked
 * and with per-layer overrides resolved. Read from the `model` section of a run's YAML or from a Hugging Face
 * config.json. */
#ifndef CLT_MPT_CONFIG_H
#define CLT_MPT_CONFIG_H

#include "runtime/model/clt_model_family.h"

enum { CLT_MPT_MAX_LAYERS = 512 };

typedef enum {
    CLT_ROPE_NONE,
    CLT_ROPE_PLAIN,
    CLT_ROPE_LINEAR,
    CLT_ROPE_DYNAMIC,
    CLT_ROPE_LLAMA3
} clt_rope_kind;

typedef enum {
    CLT_INIT_KAIMING_NORMAL,
    CLT_INIT_KAIMING_UNIFORM,
    CLT_INIT_XAVIER_NORMAL,
    CLT_INIT_XAVIER_UNIFORM,
    CLT_INIT_BASELINE, /* normal, standard deviation init_std */
    CLT_INIT_SMALL,    /* normal, standard deviation sqrt(2 / (5 d_model)) */
    CLT_INIT_NEOX,     /* small; init_div_is_residual is always n_layers / sqrt(10) */
    CLT_INIT_DEFAULT   /* torch's reset_parameters */
} clt_init_kind;

typedef struct {
    int64_t window;   /* sliding_window_size: keys before the query's own that it sees; -1: all */
    int64_t reuse_kv; /* layer whose keys and values are used, -1: its own (always an earlier layer with its
                         own) */
    bool nope;        /* no rotary positions in this layer */
} clt_mpt_layer_config;

typedef struct {
    clt_model_config base;
    int64_t d_model, n_heads, kv_n_heads, head_dim, n_layers, ffn_hidden, max_seq_len, vocab_size;
    double resid_pdrop, emb_pdrop, attn_pdrop;
    bool learned_pos_emb, tie_word_embeddings, fused_qkv;
    bool no_bias; /* MPTConfig's key, which sets these: biases of q, k and v; of out_proj; of the MLP; of
                     layer norms */
    bool attention_bias, out_bias, mlp_bias, norm_bias;
    bool rms_norm; /* norm_type is an rmsnorm */
    double norm_eps;
    double norm_offset;     /* norms multiply by weight + this: 0 or 1; the qk norms always by weight */
    bool post_norms;        /* a norm of each branch's output before the residual addition */
    bool parallel_residual; /* both branches of a block start from its input */
    bool bidirectional;     /* a query sees the keys behind it, too; no key of MPT's sets it */
    double drop_path;       /* probability that a branch of the last block is dropped for a sample; it grows
                               linearly from 0 in the first block; no key of MPT's sets it */
    double embedding_scale; /* factor of the embedding; 1: none */
    int64_t padding_id; /* lookups of this id give no gradient, as with torch's padding_idx; -1: none; no key
                           of MPT's sets it */
    double embedding_fraction;      /* factor of the embedding's gradient */
    double logit_scale;             /* 1: none */
    double final_logit_softcapping; /* 0: off */
    bool qk_ln, qk_gn;
    double clip_qkv;               /* 0: off */
    double softmax_scale;          /* resolved, never 0; the default is 1 / sqrt(d_model / n_heads) */
    double attn_logit_softcapping; /* 0: off */
    bool attn_uses_sequence_id;
    bool alibi;
    double alibi_bias_max;
    clt_rope_kind rope;
    int64_t rope_dims; /* of each head, the first ones: these rotate; even */
    double rope_fraction, rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_original_max_positions;
    /* q at position p is multiplied by log(floor((p + 1) / floor_scale) + 1) * attn_scale + 1; attn_scale 0:
     * off */
    double temperature_floor_scale, temperature_attn_scale;
    bool glu; /* ffn_type mptglu */
    clt_activation activation;
    clt_init_kind init;
    bool init_fan_out;             /* fan_mode fan_out */
    double init_gain, init_std;    /* init_std 0: unset */
    double init_nonlinearity_gain; /* sqrt(2) for relu, 1 for linear ... */
    double init_div_is_residual;   /* divisor for out_proj and down_proj: 0 none, else the number (true:
                                      sqrt(2 n_layers)) */
    double emb_init_std;           /* < 0: unset */
    bool emb_init_uniform;         /* emb_init_uniform_lim is set */
    double emb_init_low, emb_init_high;
    clt_mpt_layer_config layer[CLT_MPT_MAX_LAYERS];
} clt_mpt_config;

/* As the members of clt_model_family. In a config.json without norm_eps, layer_norm_epsilon is norm_eps.
 * alibi and rope turn learned_pos_emb off, as in Foundry. */
clt_status clt_mpt_config_read(clt_schema_reader *r, const char *path, json_t *o, clt_model_config *out);
json_t *clt_mpt_config_to_json(const clt_model_config *config);

/* The table of keys below `model`. */
extern const clt_schema clt_mpt_config_model_schema;

#endif
