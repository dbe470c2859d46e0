#include "clt_mpt_config.h"

#include <math.h>
#include <string.h>

#include "../base/clt_dmath.h"
#include "../base/clt_json.h"
#include "clt_mpt_config_internal.h"

/* The section as it is written; resolve() turns it into a clt_mpt_config. */
typedef struct {
    int64_t d_model, n_heads, n_layers, head_dim, max_seq_len, vocab_size, kv_n_heads, ffn_hidden, window;
    double expansion_ratio, resid_pdrop, emb_pdrop, attn_pdrop;
    bool learned_pos_emb, no_bias, tie_word_embeddings;
    int attention_bias; /* -1: not given */
    int norm;
    double norm_eps, embedding_fraction, logit_scale, final_logit_softcapping;
    bool logit_scale_inv_sqrt;
    int attn_type;
    bool fused_qkv, qk_ln, qk_gn, attn_uses_sequence_id, alibi, rope;
    double clip_qkv, softmax_scale, attn_logit_softcapping, alibi_bias_max, rope_theta;
    int rope_impl, rope_hf_type;
    double rope_factor, rope_low, rope_high;
    int64_t rope_original;
    double temperature_floor, temperature_scale;
    int glu; /* 0: mptmlp, 1: mptglu */
    clt_activation activation;
    int init, nonlinearity;
    int fan_out;
    double div_residual; /* -1: true, 0: false, else the number */
    double emb_init_std, emb_low, emb_high, init_std, init_gain;
    bool emb_uniform;
    json_t *block_overrides; /* borrowed */
} raw_config;

#define AT(field) offsetof(raw_config, field)
#define NOWHERE CLT_KEY_NOWHERE

/* --- values with a form of their own
 * ------------------------------------------------------------------------ */

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
    raw_config *raw = (raw_config *)((char *)field - AT(logit_scale));
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
    raw_config *raw = (raw_config *)((char *)field - AT(emb_uniform));
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

/* --- the tables
 * ------------------------------------------------------------------------------------------------- */

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
     "queries are scaled by log(floor((p+1)/floor_scale)+1)*attn_scale+1; 0: off", AT(temperature_scale),
     NULL, NULL, NULL},
};
static const clt_schema rope_dail_schema = CLT_SCHEMA(rope_dail_keys),
                        rope_hf_schema = CLT_SCHEMA(rope_hf_keys),
                        temperature_schema = CLT_SCHEMA(temperature_keys);

#define SECTION_IN_RAW 0 /* all sections write into the same raw_config */

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
     "gelu (none, tanh), quick_gelu, relu, silu, tanh, sigmoid, elu, leaky_relu, softplus, mish",
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
static const clt_schema model_schema = CLT_SCHEMA(model_keys);

const clt_schema *clt_mpt_config_schema(void) {
    return &model_schema;
}

/* --- from what is written to what is meant
 * -------------------------------------------------------------------- */

static clt_status fail(clt_schema_reader *r, const char *path, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static clt_status fail(clt_schema_reader *r, const char *path, const char *key, const char *fmt, ...) {
    char *full = *path ? clt_format("%s.%s", path, key) : clt_strdup(key), *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) text = NULL;
    va_end(ap);
    clt_status st = clt_schema_fail(r, full, "%s", text ? text : fmt);
    clt_free(text);
    clt_free(full);
    return st;
}

static clt_status check_ranges(clt_schema_reader *r, const char *path, const raw_config *raw) {
    const struct {
        const char *key;
        int64_t v, most;
    } whole[] = {{"d_model", raw->d_model, 1 << 20},
                 {"n_heads", raw->n_heads, 1 << 16},
                 {"n_layers", raw->n_layers, CLT_MPT_MAX_LAYERS},
                 {"max_seq_len", raw->max_seq_len, 1 << 24},
                 {"vocab_size", raw->vocab_size, 1 << 30}};
    for (size_t i = 0; i < CLT_COUNT_OF(whole); i++)
        if (whole[i].v < 1 || whole[i].v > whole[i].most)
            return fail(r, path, whole[i].key, "is %lld: it must be from 1 to %lld", (long long)whole[i].v,
                        (long long)whole[i].most);
    const struct {
        const char *key;
        double v;
    } drop[] = {{"resid_pdrop", raw->resid_pdrop},
                {"emb_pdrop", raw->emb_pdrop},
                {"attn_config.attn_pdrop", raw->attn_pdrop}};
    for (size_t i = 0; i < CLT_COUNT_OF(drop); i++)
        if (!(drop[i].v >= 0 && drop[i].v < 1))
            return fail(r, path, drop[i].key, "is %g: a probability of dropping is at least 0 and below 1",
                        drop[i].v);
    const struct {
        const char *key;
        double v;
    } positive[] = {{"norm_eps", raw->norm_eps},
                    {"attn_config.rope_theta", raw->rope_theta},
                    {"attn_config.alibi_bias_max", raw->alibi_bias_max},
                    {"attn_config.rope_hf_config.factor", raw->rope_factor},
                    {"attn_config.attn_temperature_tuning.floor_scale", raw->temperature_floor}};
    for (size_t i = 0; i < CLT_COUNT_OF(positive); i++)
        if (!(positive[i].v > 0))
            return fail(r, path, positive[i].key, "is %g: it must be above 0", positive[i].v);
    if (!(raw->embedding_fraction > 0 && raw->embedding_fraction <= 1))
        return fail(r, path, "embedding_fraction", "is %g: it must be above 0 and at most 1",
                    raw->embedding_fraction);
    if (raw->window < -1)
        return fail(r, path, "attn_config.sliding_window_size", "must be -1 (off) or at least 0");
    return CLT_OK;
}

/* Optional numbers were preset to NaN, so that "not given" and 0 differ. */
static double or_else(double v, double fallback) {
    return isnan(v) ? fallback : v;
}

static clt_status check_optional_positive(clt_schema_reader *r, const char *path, const raw_config *raw) {
    const struct {
        const char *key;
        double v;
    } opt[] = {{"attn_config.clip_qkv", raw->clip_qkv},
               {"attn_config.softmax_scale", raw->softmax_scale},
               {"attn_config.attn_logit_softcapping", raw->attn_logit_softcapping},
               {"final_logit_softcapping", raw->final_logit_softcapping}};
    for (size_t i = 0; i < CLT_COUNT_OF(opt); i++)
        if (!isnan(opt[i].v) && !(opt[i].v > 0))
            return fail(r, path, opt[i].key, "is %g: it must be above 0", opt[i].v);
    return CLT_OK;
}

static clt_status resolve_heads(clt_schema_reader *r, const char *path, const raw_config *raw,
                                clt_mpt_config *c) {
    static const char *const types[] = {"multihead", "multiquery", "grouped_query"};
    int64_t H = raw->n_heads;
    if (raw->d_model % H != 0)
        return fail(r, path, "d_model", "is %lld, which n_heads %lld does not divide",
                    (long long)raw->d_model, (long long)H);
    c->head_dim = raw->head_dim ? raw->head_dim : raw->d_model / H;
    if (c->head_dim < 1 || c->head_dim > 1 << 16) return fail(r, path, "head_dim", "must be from 1 to 65536");
    int64_t kv = raw->attn_type == 0 ? H : raw->attn_type == 1 ? 1 : raw->kv_n_heads;
    if (raw->attn_type == 2 && raw->kv_n_heads == 0)
        return fail(r, path, "attn_config.attn_type", "grouped_query_attention needs kv_n_heads beside it");
    if (raw->kv_n_heads && raw->kv_n_heads != kv)
        return fail(r, path, "attn_config.kv_n_heads", "is %lld, but %s attention has %lld",
                    (long long)raw->kv_n_heads, types[raw->attn_type], (long long)kv);
    if (kv < 1 || kv > H || H % kv != 0)
        return fail(r, path, "attn_config.kv_n_heads", "is %lld: it must divide n_heads %lld", (long long)kv,
                    (long long)H);
    c->kv_n_heads = kv;
    if (raw->qk_ln && raw->qk_gn) return fail(r, path, "attn_config.qk_gn", "and qk_ln cannot both be true");
    if (raw->rope && c->head_dim % 2 != 0)
        return fail(r, path, "attn_config.rope", "needs an even head size, not %lld", (long long)c->head_dim);
    return CLT_OK;
}

static clt_status resolve_ffn(clt_schema_reader *r, const char *path, const raw_config *raw,
                              clt_mpt_config *c) {
    double hidden = raw->ffn_hidden ? (double)raw->ffn_hidden : (double)raw->d_model * raw->expansion_ratio;
    if (!(hidden >= 1 && hidden <= 1 << 24))
        return fail(r, path, raw->ffn_hidden ? "ffn_config.ffn_hidden_size" : "expansion_ratio",
                    "makes the MLP %g wide: it must be from 1 to %d", hidden, 1 << 24);
    if (hidden != floor(hidden))
        return fail(r, path, "expansion_ratio", "times d_model is %.10g, which is no whole number", hidden);
    c->ffn_hidden = (int64_t)hidden;
    c->glu = raw->glu;
    c->activation = raw->activation;
    return CLT_OK;
}

static clt_status resolve_init(clt_schema_reader *r, const char *path, const raw_config *raw,
                               clt_mpt_config *c) {
    double a = raw->init_gain;
    const double gains[] = {clt_dsqrt(2), 1, 1, 5.0 / 3, clt_dsqrt(2 / (1 + a * a)), 0.75};
    c->init = (clt_init_kind)raw->init;
    c->init_fan_out = raw->fan_out;
    c->init_gain = raw->init_gain;
    c->init_nonlinearity_gain = gains[raw->nonlinearity];
    c->init_std = or_else(raw->init_std, 0);
    if (c->init == CLT_INIT_BASELINE && isnan(raw->init_std))
        return fail(r, path, "init_config.init_std", "must be given with baseline_");
    if (c->init_std < 0) return fail(r, path, "init_config.init_std", "must not be negative");
    double L = (double)raw->n_layers;
    c->init_div_is_residual = raw->div_residual == -1 ? clt_dsqrt(2 * L) : raw->div_residual;
    if (c->init == CLT_INIT_NEOX) c->init_div_is_residual = L / clt_dsqrt(10);
    c->emb_init_std = or_else(raw->emb_init_std, -1);
    if (!isnan(raw->emb_init_std) && raw->emb_init_std < 0)
        return fail(r, path, "init_config.emb_init_std", "must not be negative");
    c->emb_init_uniform = raw->emb_uniform && c->emb_init_std < 0;
    c->emb_init_low = raw->emb_low;
    c->emb_init_high = raw->emb_high;
    if (c->emb_init_uniform && c->emb_init_low > c->emb_init_high)
        return fail(r, path, "init_config.emb_init_uniform_lim", "has its lower limit above the upper one");
    return CLT_OK;
}

static clt_status resolve_rope(clt_schema_reader *r, const char *path, const raw_config *raw,
                               clt_mpt_config *c) {
    static const clt_rope_kind kinds[] = {CLT_ROPE_PLAIN, CLT_ROPE_LINEAR, CLT_ROPE_DYNAMIC, CLT_ROPE_LLAMA3};
    c->rope = !raw->rope ? CLT_ROPE_NONE : raw->rope_impl == 0 ? CLT_ROPE_PLAIN : kinds[raw->rope_hf_type];
    c->rope_theta = raw->rope_theta;
    c->rope_factor = raw->rope_factor;
    c->rope_low_freq_factor = raw->rope_low;
    c->rope_high_freq_factor = raw->rope_high;
    c->rope_original_max_positions = raw->rope_original;
    if (c->rope != CLT_ROPE_LLAMA3) return CLT_OK;
    if (!(raw->rope_low > 0 && raw->rope_high > raw->rope_low) || raw->rope_original < 1)
        return fail(
            r, path, "attn_config.rope_hf_config",
            "needs 0 < low_freq_factor < high_freq_factor and original_max_position_embeddings above 0");
    return CLT_OK;
}

static void resolve_plain(const raw_config *raw, clt_mpt_config *c) {
    c->d_model = raw->d_model;
    c->n_heads = raw->n_heads;
    c->n_layers = raw->n_layers;
    c->max_seq_len = raw->max_seq_len;
    c->vocab_size = raw->vocab_size;
    c->resid_pdrop = raw->resid_pdrop;
    c->emb_pdrop = raw->emb_pdrop;
    c->attn_pdrop = raw->attn_pdrop;
    c->learned_pos_emb = raw->learned_pos_emb && !raw->alibi && !raw->rope;
    c->no_bias = raw->no_bias;
    c->attention_bias = raw->attention_bias < 0 ? !raw->no_bias : raw->attention_bias;
    c->tie_word_embeddings = raw->tie_word_embeddings;
    c->fused_qkv = raw->fused_qkv;
    c->rms_norm = raw->norm >= 2;
    c->norm_eps = raw->norm_eps;
    c->embedding_fraction = raw->embedding_fraction;
    c->logit_scale =
        raw->logit_scale_inv_sqrt ? 1 / clt_dsqrt((double)raw->d_model) : or_else(raw->logit_scale, 1);
    c->final_logit_softcapping = or_else(raw->final_logit_softcapping, 0);
    c->qk_ln = raw->qk_ln;
    c->qk_gn = raw->qk_gn;
    c->clip_qkv = or_else(raw->clip_qkv, 0);
    c->softmax_scale =
        or_else(raw->softmax_scale, 1 / clt_dsqrt((double)raw->d_model / (double)raw->n_heads));
    c->attn_logit_softcapping = or_else(raw->attn_logit_softcapping, 0);
    c->attn_uses_sequence_id = raw->attn_uses_sequence_id;
    c->alibi = raw->alibi;
    c->alibi_bias_max = raw->alibi_bias_max;
    c->temperature_floor_scale = raw->temperature_floor;
    c->temperature_attn_scale = raw->temperature_scale;
}

static clt_status resolve(clt_schema_reader *r, const char *path, const raw_config *raw, clt_mpt_config *c) {
    CLT_TRY(check_ranges(r, path, raw));
    CLT_TRY(check_optional_positive(r, path, raw));
    CLT_TRY(resolve_heads(r, path, raw, c));
    CLT_TRY(resolve_ffn(r, path, raw, c));
    CLT_TRY(resolve_rope(r, path, raw, c));
    CLT_TRY(resolve_init(r, path, raw, c));
    resolve_plain(raw, c);
    return clt_mpt_config_blocks(r, path, raw->block_overrides, raw->window, c);
}

clt_status clt_mpt_config_read(clt_schema_reader *r, const char *path, json_t *o, clt_mpt_config *out) {
    raw_config raw = {.attention_bias = -1};
    raw.clip_qkv = raw.softmax_scale = raw.attn_logit_softcapping = raw.final_logit_softcapping = NAN;
    raw.logit_scale = raw.emb_init_std = raw.init_std = NAN;
    CLT_TRY(clt_schema_read(r, &model_schema, path, o, &raw));
    clt_mpt_config *c = clt_calloc(1, sizeof *c);
    clt_status st = resolve(r, path, &raw, c);
    if (st == CLT_OK) *out = *c;
    clt_free(c);
    return st;
}

typedef struct {
    clt_where_fn where;
    void *ctx;
} where_context;

static char *place_of(void *ctx, const char *path) {
    where_context *w = ctx;
    const char *place = w->where ? w->where(w->ctx, path) : NULL;
    return clt_strdup(place ? place : "model configuration");
}

clt_status clt_mpt_config_from_json(json_t *o, bool hf, clt_where_fn where, void *ctx, clt_mpt_config *out) {
    clt_strv strings = {0};
    where_context w = {where, ctx};
    clt_schema_reader r = {.what = "model configuration",
                           .place = place_of,
                           .ctx = &w,
                           .status = CLT_BAD_CONFIG,
                           .ignore_unknown = hf,
                           .strings = &strings};
    clt_status st = clt_mpt_config_read(&r, "", o, out);
    clt_strv_free(&strings);
    return st;
}

clt_status clt_mpt_config_load_hf(const char *path, clt_mpt_config *out) {
    json_t *o;
    CLT_TRY(clt_json_load(path, 1 << 20, 32, &o));
    clt_strv strings = {0};
    clt_schema_reader r = {
        .what = path, .status = CLT_BAD_CONFIG, .ignore_unknown = true, .strings = &strings};
    clt_status st = json_is_object(o) ? clt_mpt_config_read(&r, "", o, out)
                                      : clt_error(CLT_BAD_CONFIG, "%s: not a JSON object", path);
    clt_strv_free(&strings);
    json_decref(o);
    return st;
}

void clt_mpt_config_default(clt_mpt_config *cfg) {
    if (clt_mpt_config_from_json(NULL, false, NULL, NULL, cfg) != CLT_OK) *cfg = (clt_mpt_config){0};
}
