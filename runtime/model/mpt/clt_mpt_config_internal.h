/* What the files that read model configurations share: clt_mpt_config_keys.c has the table of keys,
 * clt_mpt_config.c turns what was read into a model, clt_mpt_config_blocks.c its per-layer overrides, and
 * clt_mpt_config_json.c writes it back. Not for other folders. */
#ifndef CLT_MPT_CONFIG_INTERNAL_H
#define CLT_MPT_CONFIG_INTERNAL_H

#include "runtime/model/mpt/clt_mpt_config.h"

typedef struct {
    bool inv_sqrt_d_model;
    double number; /* NaN: not given */
} clt_mpt_logit_scale;

typedef struct {
    bool given;
    double low, high;
} clt_mpt_limits;

/* The section as it is written. NaN in what is optional: not given. */
typedef struct {
    int64_t d_model, n_heads, n_layers, head_dim, max_seq_len, vocab_size, kv_n_heads, ffn_hidden, window;
    double expansion_ratio, resid_pdrop, emb_pdrop, attn_pdrop;
    bool learned_pos_emb, no_bias, tie_word_embeddings, post_norms, parallel_residual;
    int attention_bias; /* -1: not given */
    int norm;
    double norm_eps, norm_offset, embedding_scale, embedding_fraction, final_logit_softcapping;
    clt_mpt_logit_scale logit_scale;
    int attn_type;
    bool fused_qkv, qk_ln, qk_gn, attn_uses_sequence_id, alibi, rope;
    double clip_qkv, softmax_scale, attn_logit_softcapping, alibi_bias_max, rope_theta, rope_fraction;
    int rope_impl, rope_hf_type;
    double rope_factor, rope_low, rope_high;
    int64_t rope_original;
    double temperature_floor, temperature_scale;
    int glu; /* 0: mptmlp, 1: mptglu */
    clt_activation activation;
    int init, nonlinearity;
    int fan_out;
    double div_residual; /* -1: true, 0: false, else the number */
    double emb_init_std, init_std, init_gain;
    clt_mpt_limits emb_limits;
    json_t *block_overrides; /* borrowed */
} clt_mpt_config_raw;

/* Fills cfg->layer from block_overrides (NULL: none) and the model-wide values; window is
 * sliding_window_size. */
clt_status clt_mpt_config_blocks(clt_schema_reader *r, const char *path, json_t *block_overrides,
                                 int64_t window, clt_mpt_config *cfg);

#endif
