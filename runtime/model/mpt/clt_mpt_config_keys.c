/* The table of every key of a model configuration, and the readers of those with a form of their own. */
#include <string.h>

#include "runtime/model/mpt/clt_mpt_config_internal.h"

#define AT(field) offsetof(clt_mpt_config_raw, field)
#define NOWHERE CLT_KEY_NOWHERE

/* --- values with a form of their own --- */

static clt_status read_tristate(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                void *field) {
    (void)k;
    if (!json_is_boolean(v)) return clt_schema_fail(r, path, "must be true or false");
    *(int *)field = json_is_true(v);
    return CLT_OK;
}

static clt_status read_logit_scale(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                   void *field) {
    (void)k;
    clt_mpt_config_raw *raw = (clt_mpt_config_raw *)((char *)field - AT(logit_scale));
    if (json_is_string(v) && strcmp(json_string_value(v), "inv_sqrt_d_model") == 0)
        raw->logit_scale_inv_sqrt = true;
    else if (json_is_number(v))
        raw->logit_scale = json_number_value(v);
    else
        return clt_schema_fail(r, path, "must be a number or inv_sqrt_d_model");
    return CLT_OK;
}

/* "torch", or a map with that name. */
static clt_status read_fc_type(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                               void *field) {
    (void)k;
    (void)field;
    const char *name = json_string_value(json_is_object(v) ? json_object_get(v, "name") : v);
    if (!name) return clt_schema_fail(r, path, "must be torch, or a map with name: torch");
    if (strcmp(name, "torch") != 0)
        return clt_schema_fail(
            r, path, "is '%.40s': only torch is supported (te is Transformer Engine, CUDA only)", name);
    return CLT_OK;
}

static const struct {
    const char *name;
    clt_activation act;
} activations[] = {{"gelu", CLT_ACT_GELU},         {"quick_gelu", CLT_ACT_QUICK_GELU},
                   {"relu", CLT_ACT_RELU},         {"silu", CLT_ACT_SILU},
                   {"tanh", CLT_ACT_TANH},         {"sigmoid", CLT_ACT_SIGMOID},
                   {"elu", CLT_ACT_ELU},           {"leaky_relu", CLT_ACT_LEAKY_RELU},
                   {"softplus", CLT_ACT_SOFTPLUS}, {"mish", CLT_ACT_MISH},
                   {"relu2", CLT_ACT_RELU2}};

/* Arguments of an activation: only those that say what the kernels compute anyway. */
static clt_status check_act_argument(clt_schema_reader *r, const char *path, const char *name,
                                     const char *key, json_t *v, clt_activation *act) {
    static const struct {
        const char *act, *key;
        double value;
    } fixed[] = {{"elu", "alpha", 1},
                 {"leaky_relu", "negative_slope", 0.01},
                 {"softplus", "beta", 1},
                 {"softplus", "threshold", 20}};
    if (strcmp(key, "inplace") == 0) return CLT_OK;
    if (strcmp(name, "gelu") == 0 && strcmp(key, "approximate") == 0 && json_is_string(v)) {
        const char *a = json_string_value(v);
        if (strcmp(a, "tanh") == 0) *act = CLT_ACT_GELU_TANH;
        if (strcmp(a, "tanh") == 0 || strcmp(a, "none") == 0) return CLT_OK;
        return clt_schema_fail(r, path, "has approximate '%.40s': known are none and tanh", a);
    }
    for (size_t i = 0; i < CLT_COUNT_OF(fixed); i++)
        if (!strcmp(fixed[i].act, name) && !strcmp(fixed[i].key, key)) {
            if (json_is_number(v) && json_number_value(v) == fixed[i].value) return CLT_OK;
            return clt_schema_fail(r, path, "has a %s other than %g, which is not supported", key,
                                   fixed[i].value);
        }
    return clt_schema_fail(r, path, "has the argument '%.40s', which %s does not take here", key, name);
}

static clt_status read_act(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v, void *field) {
    (void)k;
    const char *known[CLT_COUNT_OF(activations)], *key;
    const char *name = json_string_value(json_is_object(v) ? json_object_get(v, "name") : v);
    if (!name) return clt_schema_fail(r, path, "must be a map such as {name: gelu, approximate: none}");
    for (size_t i = 0; i < CLT_COUNT_OF(activations); i++) {
        known[i] = activations[i].name;
        if (strcmp(known[i], name) != 0) continue;
        clt_activation act = activations[i].act;
        json_t *arg;
        json_object_foreach(v, key, arg) {
            if (strcmp(key, "name") != 0) CLT_TRY(check_act_argument(r, path, name, key, arg, &act));
        }
        *(clt_activation *)field = act;
        return CLT_OK;
    }
    const char *near = clt_nearest(name, known, CLT_COUNT_OF(activations));
    return clt_schema_fail(r, path, "names the activation '%.40s', which is not known%s%s", name,
                           near ? "; did you mean " : "", near ? near : "");
}

static clt_status read_div_residual(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                    void *field) {
    (void)k;
    double *out = field;
    if (json_is_boolean(v)) {
        *out = json_is_true(v) ? -1 : 0;
        return CLT_OK;
    }
    double d = json_number_value(v);
    if (json_is_string(v) && !clt_parse_f64(json_string_value(v), &d)) d = 0;
    if (!(d > 0)) return clt_schema_fail(r, path, "must be true, false or a number above 0");
    *out = d;
    return CLT_OK;
}

static clt_status read_uniform_limits(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                      void *field) {
    (void)k;
    clt_mpt_config_raw *raw = (clt_mpt_config_raw *)((char *)field - AT(emb_uniform));
    json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    if (json_is_number(v)) {
        raw->emb_low = -json_number_value(v);
        raw->emb_high = json_number_value(v);
    } else if (json_array_size(v) == 2 && json_is_number(a) && json_is_number(b)) {
        raw->emb_low = json_number_value(a);
        raw->emb_high = json_number_value(b);
    } else {
        return clt_schema_fail(r, path, "must be a number or a list of two numbers");
    }
    raw->emb_uniform = true;
    return CLT_OK;
}

static clt_status keep_json(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                            void *field) {
    (void)k;
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map with order and overrides");
    *(json_t **)field = v;
    return CLT_OK;
}

/* --- the tables --- */

static const char *const attn_types[] = {"multihead_attention", "multiquery_attention",
                                         "grouped_query_attention", NULL};
static const char *const attn_impls[] = {"flash", "torch", NULL};
static const char *const loss_fns[] = {"fused_crossentropy", "torch_crossentropy", NULL};
static const char *const model_names[] = {"mpt_causal_lm", NULL};
static const char *const model_types[] = {"mpt", NULL};
static const char *const init_devices[] = {"cpu", "meta", "mixed", NULL};
static const char *const norm_types[] = {
    "layernorm", "low_precision_layernorm", "rmsnorm", "low_precision_rmsnorm", "triton_rmsnorm", NULL};
static const char *const rope_impls[] = {"dail", "hf", NULL};
static const char *const rope_dail_types[] = {"original", NULL};
static const char *const rope_hf_types[] = {"no_scaling", "linear", "dynamic", "llama3", NULL};
static const char *const ffn_types[] = {"mptmlp", "mptglu", NULL};
static const char *const init_names[] = {"kaiming_normal_", "kaiming_uniform_", "xavier_normal_",
                                         "xavier_uniform_", "baseline_",        "small_init_",
                                         "neox_init_",      "default_",         NULL};
static const char *const fan_modes[] = {"fan_in", "fan_out", NULL};
static const char *const nonlinearities[] = {"relu", "linear", "sigmoid", "tanh", "leaky_relu", "selu", NULL};

static const clt_key rope_dail_keys[] = {
    {"type", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"original\"",
     "rotary positions; xpos is refused: its decay of keys is not computed here", NOWHERE, rope_dail_types,
     NULL, NULL},
    {"pos_idx_in_fp32", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "true",
     "positions are always computed in double", NOWHERE, NULL, NULL, NULL},
    {"xpos_scale_base", CLT_KEY_FLOAT, CLT_KEY_ACCEPTED, false, "512", "only xpos uses it", NOWHERE, NULL,
     NULL, NULL},
};
static const clt_key rope_hf_keys[] = {
    {"type", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"no_scaling\"", "scaling of rotary frequencies",
     AT(rope_hf_type), rope_hf_types, NULL, NULL},
    {"factor", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "1.0", "scaling factor of linear, dynamic and llama3",
     AT(rope_factor), NULL, NULL, NULL},
    {"low_freq_factor", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "1.0", "llama3", AT(rope_low), NULL, NULL,
     NULL},
    {"high_freq_factor", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "4.0", "llama3", AT(rope_high), NULL, NULL,
     NULL},
    {"original_max_position_embeddings", CLT_KEY_INT, CLT_KEY_HONOURED, false, "8192", "llama3",
     AT(rope_original), NULL, NULL, NULL},
};
static const clt_key temperature_keys[] = {
    {"floor_scale", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "8192", "positions per step of the factor",
     AT(temperature_floor), NULL, NULL, NULL},
    {"attn_scale", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "0.0",
     "queries are scaled by log(floor((p+1)/floor_scale)+1)*attn_scale+1, p the place in the document with "
     "attn_uses_sequence_id; 0: off",
     AT(temperature_scale), NULL, NULL, NULL},
};
static const clt_schema rope_dail_schema = CLT_SCHEMA(rope_dail_keys),
                        rope_hf_schema = CLT_SCHEMA(rope_hf_keys),
                        temperature_schema = CLT_SCHEMA(temperature_keys);

#define SECTION_IN_RAW 0 /* all sections write into the same clt_mpt_config_raw */

static const clt_key attn_keys[] = {
    {"attn_type", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"multihead_attention\"",
     "how heads share keys and values", AT(attn_type), attn_types, NULL, NULL},
    {"kv_n_heads", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null",
     "heads of keys and values, grouped_query_attention", AT(kv_n_heads), NULL, NULL, NULL},
    {"attn_pdrop", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "0.0", "dropout of attention weights",
     AT(attn_pdrop), NULL, NULL, NULL},
    {"attn_impl", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"flash\"", "both name the same computation here",
     NOWHERE, attn_impls, NULL, NULL},
    {"qk_ln", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false", "layernorm over all of q and all of k",
     AT(qk_ln), NULL, NULL, NULL},
    {"qk_gn", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false", "layernorm per head of q and k", AT(qk_gn),
     NULL, NULL, NULL},
    {"fused_qkv", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "true", "one Wqkv tensor, or Wq, Wk and Wv",
     AT(fused_qkv), NULL, NULL, NULL},
    {"clip_qkv", CLT_KEY_FLOAT, CLT_KEY_HONOURED, true, "null", "clamps q, k and v", AT(clip_qkv), NULL, NULL,
     NULL},
    {"softmax_scale", CLT_KEY_FLOAT, CLT_KEY_HONOURED, true, "null", "1/sqrt(d_model / n_heads) unless given",
     AT(softmax_scale), NULL, NULL, NULL},
    {"attn_uses_sequence_id", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false",
     "tokens see only their own document (needs eos_token_id or bos_token_id in the data set)",
     AT(attn_uses_sequence_id), NULL, NULL, NULL},
    {"sliding_window_size", CLT_KEY_INT, CLT_KEY_HONOURED, false, "-1",
     "a query sees this many keys before it, and itself", AT(window), NULL, NULL, NULL},
    {"attn_logit_softcapping", CLT_KEY_FLOAT, CLT_KEY_HONOURED, true, "null",
     "c * tanh(s / c) on attention scores", AT(attn_logit_softcapping), NULL, NULL, NULL},
    {"alibi", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false", "linear position biases", AT(alibi), NULL, NULL,
     NULL},
    {"alibi_bias_max", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "8", "slopes end at 2^-this",
     AT(alibi_bias_max), NULL, NULL, NULL},
    {"rope", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false", "rotary positions", AT(rope), NULL, NULL, NULL},
    {"rope_theta", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "10000", "base of the rotary frequencies",
     AT(rope_theta), NULL, NULL, NULL},
    {"rope_impl", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"dail\"",
     "which of the two configurations below applies", AT(rope_impl), rope_impls, NULL, NULL},
    {"rope_dail_config", CLT_KEY_SECTION, CLT_KEY_HONOURED, false, NULL, "rope_impl dail", SECTION_IN_RAW,
     NULL, &rope_dail_schema, NULL},
    {"rope_hf_config", CLT_KEY_SECTION, CLT_KEY_HONOURED, false, NULL, "rope_impl hf", SECTION_IN_RAW, NULL,
     &rope_hf_schema, NULL},
    {"attn_temperature_tuning", CLT_KEY_SECTION, CLT_KEY_HONOURED, false, NULL,
     "scaling of queries by position", SECTION_IN_RAW, NULL, &temperature_schema, NULL},
    {"nope", CLT_KEY_BOOL, CLT_KEY_REFUSED, false, "false",
     "layers without positions are named in block_overrides, not for the whole model", NOWHERE, NULL, NULL,
     NULL},
    {"kv_dim", CLT_KEY_INT, CLT_KEY_REFUSED, true, "null",
     "cross-attention is not part of a causal language model", NOWHERE, NULL, NULL, NULL},
    {"seq_parallel_world_size", CLT_KEY_INT, CLT_KEY_REFUSED, true, "1",
     "sequence parallelism is not supported", NOWHERE, NULL, NULL, NULL},
};

#define MOE_KEY(name)                                                                                        \
    {                                                                                                        \
        name, CLT_KEY_ANY, CLT_KEY_REFUSED, true, NULL, "mixture-of-experts layers are not supported",       \
            NOWHERE, NULL, NULL, NULL                                                                        \
    }
static const clt_key ffn_keys[] = {
    {"ffn_type", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"mptmlp\"",
     "mptglu is gated; te_ln_mlp (Transformer Engine) and mixture-of-experts types are refused", AT(glu),
     ffn_types, NULL, NULL},
    {"ffn_act_fn", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "{\"name\": \"gelu\", \"approximate\": \"none\"}",
     "gelu (none, tanh), quick_gelu, relu, relu2, silu, tanh, sigmoid, elu, leaky_relu, softplus, mish",
     AT(activation), NULL, NULL, read_act},
    {"ffn_hidden_size", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null", "instead of expansion_ratio * d_model",
     AT(ffn_hidden), NULL, NULL, NULL},
    {"fc_type", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "\"torch\"", "as model.fc_type", NOWHERE, NULL, NULL,
     read_fc_type},
    MOE_KEY("moe_world_size"),
    MOE_KEY("moe_num_experts"),
    MOE_KEY("moe_top_k"),
    MOE_KEY("moe_loss_weight"),
    MOE_KEY("moe_jitter_eps"),
    MOE_KEY("moe_weight_parallelism"),
    MOE_KEY("moe_normalize_expert_weights"),
    MOE_KEY("uniform_expert_assignment"),
    MOE_KEY("mlp_type"),
    MOE_KEY("mlp_impl"),
};
static const clt_key init_keys[] = {
    {"name", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"kaiming_normal_\"", "scheme of the initial weights",
     AT(init), init_names, NULL, NULL},
    {"fan_mode", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"fan_in\"", "kaiming", AT(fan_out), fan_modes,
     NULL, NULL},
    {"init_nonlinearity", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"relu\"", "kaiming: its gain",
     AT(nonlinearity), nonlinearities, NULL, NULL},
    {"init_div_is_residual", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, "true",
     "out_proj and down_proj are divided by sqrt(2 n_layers), by this number, or not", AT(div_residual), NULL,
     NULL, read_div_residual},
    {"emb_init_std", CLT_KEY_FLOAT, CLT_KEY_HONOURED, true, "null", "normal embeddings with this deviation",
     AT(emb_init_std), NULL, NULL, NULL},
    {"emb_init_uniform_lim", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null",
     "uniform embeddings between -x and x, or between two numbers", AT(emb_uniform), NULL, NULL,
     read_uniform_limits},
    {"init_std", CLT_KEY_FLOAT, CLT_KEY_HONOURED, true, "null", "baseline_", AT(init_std), NULL, NULL, NULL},
    {"init_gain", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "0.0",
     "xavier_*, and leaky_relu's slope in kaiming", AT(init_gain), NULL, NULL, NULL},
    {"verbose", CLT_KEY_ANY, CLT_KEY_ACCEPTED, true, "0", "initialization prints nothing", NOWHERE, NULL,
     NULL, NULL},
};
static const clt_schema attn_schema = CLT_SCHEMA(attn_keys), ffn_schema = CLT_SCHEMA(ffn_keys),
                        init_schema = CLT_SCHEMA(init_keys);

static const clt_key model_keys[] = {
    {"name", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"mpt_causal_lm\"", "the model", NOWHERE, model_names,
     NULL, NULL},
    {"d_model", CLT_KEY_INT, CLT_KEY_HONOURED, false, "2048", "width", AT(d_model), NULL, NULL, NULL},
    {"n_heads", CLT_KEY_INT, CLT_KEY_HONOURED, false, "16", "query heads", AT(n_heads), NULL, NULL, NULL},
    {"n_layers", CLT_KEY_INT, CLT_KEY_HONOURED, false, "24", "blocks", AT(n_layers), NULL, NULL, NULL},
    {"head_dim", CLT_KEY_INT, CLT_KEY_HONOURED, true, "null", "d_model / n_heads unless given", AT(head_dim),
     NULL, NULL, NULL},
    {"expansion_ratio", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "4", "hidden width of the MLP over d_model",
     AT(expansion_ratio), NULL, NULL, NULL},
    {"max_seq_len", CLT_KEY_INT, CLT_KEY_HONOURED, false, "2048", "longest sample; rows of wpe",
     AT(max_seq_len), NULL, NULL, NULL},
    {"vocab_size", CLT_KEY_INT, CLT_KEY_HONOURED, false, "50368", "rows of wte", AT(vocab_size), NULL, NULL,
     NULL},
    {"resid_pdrop", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "0.0", "dropout of both branches of a block",
     AT(resid_pdrop), NULL, NULL, NULL},
    {"emb_pdrop", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "0.0", "dropout after the embedding", AT(emb_pdrop),
     NULL, NULL, NULL},
    {"learned_pos_emb", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "true", "wpe; off under alibi or rope",
     AT(learned_pos_emb), NULL, NULL, NULL},
    {"attn_config", CLT_KEY_SECTION, CLT_KEY_HONOURED, true, NULL, "attention", SECTION_IN_RAW, NULL,
     &attn_schema, NULL},
    {"ffn_config", CLT_KEY_SECTION, CLT_KEY_HONOURED, true, NULL, "MLP", SECTION_IN_RAW, NULL, &ffn_schema,
     NULL},
    {"init_config", CLT_KEY_SECTION, CLT_KEY_HONOURED, true, NULL, "initial weights", SECTION_IN_RAW, NULL,
     &init_schema, NULL},
    {"init_device", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"cpu\"",
     "all mean the same: weights are made where they are needed", NOWHERE, init_devices, NULL, NULL},
    {"logit_scale", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null", "number or inv_sqrt_d_model",
     AT(logit_scale), NULL, NULL, read_logit_scale},
    {"no_bias", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "false", "no biases anywhere, norms included",
     AT(no_bias), NULL, NULL, NULL},
    {"attention_bias", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null",
     "bias of Wqkv; not no_bias unless given", AT(attention_bias), NULL, NULL, read_tristate},
    {"embedding_fraction", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "1.0", "scales the embedding gradient",
     AT(embedding_fraction), NULL, NULL, NULL},
    {"norm_type", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"low_precision_layernorm\"",
     "low_precision_ and triton_ forms compute the same in fp32", AT(norm), norm_types, NULL, NULL},
    {"norm_eps", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, "1e-05", "inside the norm's square root",
     AT(norm_eps), NULL, NULL, NULL},
    {"fc_type", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "\"torch\"", "te (Transformer Engine) is refused",
     NOWHERE, NULL, NULL, read_fc_type},
    {"tie_word_embeddings", CLT_KEY_BOOL, CLT_KEY_HONOURED, false, "true",
     "false: lm_head has its own weights", AT(tie_word_embeddings), NULL, NULL, NULL},
    {"use_pad_tok_in_ffn", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "true", "samples are never padded here",
     NOWHERE, NULL, NULL, NULL},
    {"use_cache", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "false", "training keeps no key-value cache",
     NOWHERE, NULL, NULL, NULL},
    {"block_overrides", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null",
     "order, overrides and repeat: sliding_window_size, reuse_kv_layer_idx and nope of single layers",
     AT(block_overrides), NULL, NULL, keep_json},
    {"final_logit_softcapping", CLT_KEY_FLOAT, CLT_KEY_HONOURED, true, "null",
     "c * tanh(z / c) on the logits", AT(final_logit_softcapping), NULL, NULL, NULL},
    {"loss_fn", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"fused_crossentropy\"",
     "both name the same loss here", NOWHERE, loss_fns, NULL, NULL},
    {"model_type", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, "\"mpt\"", "of a config.json", NOWHERE,
     model_types, NULL, NULL},
    {"load_in_8bit", CLT_KEY_BOOL, CLT_KEY_REFUSED, false, "false", "8-bit weights are not supported",
     NOWHERE, NULL, NULL, NULL},
    {"pad_token_id", CLT_KEY_INT, CLT_KEY_ACCEPTED, true, "null",
     "the row of a padding id is trained like the others", NOWHERE, NULL, NULL, NULL},
};
const clt_schema clt_mpt_config_model_schema = CLT_SCHEMA(model_keys);
