/* A model configuration written back with MPTConfig's keys. Values that were resolved are written as numbers,
 * so that reading them again gives the same model. */
#include "runtime/model/mpt/clt_mpt_config_internal.h"

static json_t *number_or_null(double v, double none) {
    return v == none ? json_null() : json_real(v);
}

/* The inverse of the name tables in clt_mpt_config_keys.c. */
static json_t *activation_to_json(clt_activation a) {
    static const char *const names[CLT_ACT_COUNT] = {
        "gelu",    "gelu",  "gelu", "quick_gelu", "relu",     "silu", "tanh",
        "sigmoid", "relu2", "elu",  "leaky_relu", "softplus", "mish"};
    json_t *o = json_pack("{s:s}", "name", names[a]);
    if (a == CLT_ACT_GELU) json_object_set_new(o, "approximate", json_string("none"));
    if (a == CLT_ACT_GELU_TANH) json_object_set_new(o, "approximate", json_string("tanh"));
    return o;
}

static json_t *attention_to_json(const clt_mpt_config *c) {
    static const char *const types[] = {"no_scaling", "no_scaling", "linear", "dynamic", "llama3"};
    bool grouped = c->kv_n_heads != c->n_heads;
    json_t *a = json_pack(
        "{s:s s:f s:s s:b s:b s:b s:o s:f s:b s:I s:o s:b s:f s:b s:f s:s}", "attn_type",
        grouped ? "grouped_query_attention" : "multihead_attention", "attn_pdrop", c->attn_pdrop, "attn_impl",
        "torch", "qk_ln", c->qk_ln, "qk_gn", c->qk_gn, "fused_qkv", c->fused_qkv, "clip_qkv",
        number_or_null(c->clip_qkv, 0), "softmax_scale", c->softmax_scale, "attn_uses_sequence_id",
        c->attn_uses_sequence_id, "sliding_window_size", (json_int_t)-1, "attn_logit_softcapping",
        number_or_null(c->attn_logit_softcapping, 0), "alibi", c->alibi, "alibi_bias_max", c->alibi_bias_max,
        "rope", c->rope != CLT_ROPE_NONE, "rope_theta", c->rope_theta, "rope_impl", "hf");
    if (grouped) json_object_set_new(a, "kv_n_heads", json_integer(c->kv_n_heads));
    json_t *hf = json_pack("{s:s s:f}", "type", types[c->rope], "factor", c->rope_factor);
    if (c->rope == CLT_ROPE_LLAMA3) {
        json_object_set_new(hf, "low_freq_factor", json_real(c->rope_low_freq_factor));
        json_object_set_new(hf, "high_freq_factor", json_real(c->rope_high_freq_factor));
        json_object_set_new(hf, "original_max_position_embeddings",
                            json_integer(c->rope_original_max_positions));
    }
    json_object_set_new(a, "rope_hf_config", hf);
    json_object_set_new(a, "attn_temperature_tuning",
                        json_pack("{s:f s:f}", "floor_scale", c->temperature_floor_scale, "attn_scale",
                                  c->temperature_attn_scale));
    if (c->rope_fraction != 1) json_object_set_new(a, "rope_fraction", json_real(c->rope_fraction));
    return a;
}

static const char *nonlinearity_name(double gain) {
    if (gain == 1) return "linear";
    if (gain == 5.0 / 3) return "tanh";
    if (gain == 0.75) return "selu";
    return gain * gain > 1.99999999 && gain * gain < 2.00000001 ? "relu" : "leaky_relu";
}

static json_t *init_to_json(const clt_mpt_config *c) {
    static const char *const names[] = {"kaiming_normal_", "kaiming_uniform_", "xavier_normal_",
                                        "xavier_uniform_", "baseline_",        "small_init_",
                                        "neox_init_",      "default_"};
    json_t *o =
        json_pack("{s:s s:s s:s s:f s:o s:o}", "name", names[c->init], "init_nonlinearity",
                  nonlinearity_name(c->init_nonlinearity_gain), "fan_mode",
                  c->init_fan_out ? "fan_out" : "fan_in", "init_gain", c->init_gain, "init_std",
                  number_or_null(c->init_std, 0), "emb_init_std", number_or_null(c->emb_init_std, -1));
    json_object_set_new(o, "init_div_is_residual",
                        c->init_div_is_residual > 0 ? json_real(c->init_div_is_residual) : json_false());
    if (c->emb_init_uniform)
        json_object_set_new(o, "emb_init_uniform_lim", json_pack("[f,f]", c->emb_init_low, c->emb_init_high));
    return o;
}

/* Each distinct layer becomes an override of its own; a model without overrides writes null. */
static json_t *blocks_to_json(const clt_mpt_config *c) {
    json_t *order = json_array(), *overrides = json_object();
    for (int64_t i = 0; i < c->n_layers; i++) {
        const clt_mpt_layer_config *l = &c->layer[i];
        if (l->window == -1 && l->reuse_kv < 0 && !l->nope) {
            json_array_append_new(order, json_pack("{s:s}", "name", "default"));
            continue;
        }
        json_t *attn = json_pack("{s:I}", "sliding_window_size", (json_int_t)l->window);
        if (l->nope) json_object_set_new(attn, "nope", json_true());
        if (l->reuse_kv >= 0) json_object_set_new(attn, "reuse_kv_layer_idx", json_integer(l->reuse_kv - i));
        char *name = clt_format("layer_%lld", (long long)i);
        json_object_set_new(overrides, name, json_pack("{s:o}", "attn_config", attn));
        json_array_append_new(order, json_pack("{s:s}", "name", name));
        clt_free(name);
    }
    if (json_object_size(overrides) > 0)
        return json_pack("{s:o s:o}", "order", order, "overrides", overrides);
    json_decref(order);
    json_decref(overrides);
    return json_null();
}

/* Keys that LLM Foundry's MPTConfig lacks are written only where they change the model. */
static void extensions_to_json(const clt_mpt_config *c, json_t *o) {
    if (c->norm_offset != 0) json_object_set_new(o, "norm_offset", json_real(c->norm_offset));
    if (c->post_norms) json_object_set_new(o, "post_norms", json_true());
    if (c->parallel_residual) json_object_set_new(o, "parallel_residual", json_true());
    if (c->embedding_scale != 1) json_object_set_new(o, "embedding_scale", json_real(c->embedding_scale));
}

json_t *clt_mpt_config_to_json(const clt_model_config *config) {
    const clt_mpt_config *c = (const clt_mpt_config *)config;
    json_t *o = json_pack("{s:I s:I s:I s:I s:I s:I}", "d_model", (json_int_t)c->d_model, "n_heads",
                          (json_int_t)c->n_heads, "n_layers", (json_int_t)c->n_layers, "head_dim",
                          (json_int_t)c->head_dim, "max_seq_len", (json_int_t)c->max_seq_len, "vocab_size",
                          (json_int_t)c->vocab_size);
    double ratio = (double)c->ffn_hidden / (double)c->d_model;
    json_t *ffn = json_pack("{s:s s:o}", "ffn_type", c->glu ? "mptglu" : "mptmlp", "ffn_act_fn",
                            activation_to_json(c->activation));
    if (ratio * (double)c->d_model != (double)c->ffn_hidden) {
        json_object_set_new(ffn, "ffn_hidden_size", json_integer(c->ffn_hidden));
        ratio = 4;
    }
    json_object_set_new(o, "expansion_ratio",
                        ratio == (double)(int64_t)ratio ? json_integer((json_int_t)ratio) : json_real(ratio));
    json_t *rest = json_pack(
        "{s:f s:f s:b s:b s:b s:b s:s s:f s:f s:f s:o s:o s:o s:o s:o}", "resid_pdrop", c->resid_pdrop,
        "emb_pdrop", c->emb_pdrop, "learned_pos_emb", c->learned_pos_emb, "no_bias", c->no_bias,
        "attention_bias", c->attention_bias, "tie_word_embeddings", c->tie_word_embeddings, "norm_type",
        c->rms_norm ? "rmsnorm" : "layernorm", "norm_eps", c->norm_eps, "embedding_fraction",
        c->embedding_fraction, "logit_scale", c->logit_scale, "final_logit_softcapping",
        number_or_null(c->final_logit_softcapping, 0), "attn_config", attention_to_json(c), "ffn_config", ffn,
        "init_config", init_to_json(c), "block_overrides", blocks_to_json(c));
    json_object_update(o, rest);
    json_decref(rest);
    extensions_to_json(c, o);
    return o;
}
