/* The table of every key of a model configuration, and the kinds of values with a form of their own. */
#include <string.h>

#include "runtime/model/mpt/clt_mpt_config_internal.h"

#define KEY(name, field, def, help, ...) CLT_KEY(clt_mpt_config_raw, name, field, def, help, __VA_ARGS__)
#define KEY_OF(kind, name, field, def, help, ...)                                                            \
    CLT_KEY_OF(&kind, clt_mpt_config_raw, name, field, def, help, __VA_ARGS__)
#define CHECKED(kind, name, def, help, ...) CLT_KEY_CHECKED(&kind, name, def, help, __VA_ARGS__)
/* All sections fill the same clt_mpt_config_raw. */
#define SECTION(name, help, schema) CLT_KEY_SECTION(name, NULL, help, 0, &schema)
#define IGNORED(kind, name, def, same, why, ...)                                                             \
    CLT_KEY_IGNORED(&clt_kind_##kind, name, def, same, why, __VA_ARGS__)
#define REFUSE(name, def, why) CLT_KEY_REFUSE(name, def, why)

/* --- kinds --- */

static clt_status check_switch(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    return json_is_boolean(v) ? CLT_OK : clt_schema_fail_kind(r, k, path, v);
}
static void store_switch(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    *(int *)field = json_is_true(v);
}
static const clt_kind kind_switch = {"true or false", sizeof(int), check_switch, store_switch, false};

static clt_status check_logit_scale(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    (void)k;
    if (json_is_number(v)) return CLT_OK;
    if (json_is_string(v) && strcmp(json_string_value(v), "inv_sqrt_d_model") == 0) return CLT_OK;
    return clt_schema_fail(r, path, "must be a number or inv_sqrt_d_model");
}
static void store_logit_scale(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    clt_mpt_logit_scale *out = field;
    (void)r;
    (void)k;
    out->inv_sqrt_d_model = json_is_string(v);
    if (json_is_number(v)) out->number = json_number_value(v);
}
static const clt_kind kind_logit_scale = {"a number or a name", sizeof(clt_mpt_logit_scale),
                                          check_logit_scale, store_logit_scale, false};

/* "torch", or a map with that name. */
static clt_status check_fc_type(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    (void)k;
    const char *name = json_string_value(json_is_object(v) ? json_object_get(v, "name") : v);
    if (!name) return clt_schema_fail(r, path, "must be torch, or a map with name: torch");
    if (strcmp(name, "torch") == 0) return CLT_OK;
    return clt_schema_fail(
        r, path, "is '%.40s': only torch is supported (te is Transformer Engine, which needs CUDA)", name);
}
static const clt_kind kind_fc_type = {"a name or a map", 0, check_fc_type, NULL, false};

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
                                     const char *key, json_t *v) {
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
        if (strcmp(a, "tanh") == 0 || strcmp(a, "none") == 0) return CLT_OK;
        return clt_schema_fail(r, path, "has approximate '%.40s': it must be none or tanh", a);
    }
    for (size_t i = 0; i < CLT_COUNT_OF(fixed); i++)
        if (!strcmp(fixed[i].act, name) && !strcmp(fixed[i].key, key)) {
            if (json_is_number(v) && json_number_value(v) == fixed[i].value) return CLT_OK;
            return clt_schema_fail(r, path, "has a %s other than %g, which is not supported", key,
                                   fixed[i].value);
        }
    return clt_schema_fail(r, path, "has the argument '%.40s', which %s does not take here", key, name);
}

static const char *act_name(const json_t *v) {
    return json_string_value(json_is_object(v) ? json_object_get(v, "name") : v);
}

static clt_status check_act(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    const char *known[CLT_COUNT_OF(activations)], *key, *name = act_name(v);
    json_t *arg;
    (void)k;
    if (!name) return clt_schema_fail(r, path, "must be a map such as {name: gelu, approximate: none}");
    for (size_t i = 0; i < CLT_COUNT_OF(activations); i++) {
        known[i] = activations[i].name;
        if (strcmp(known[i], name) != 0) continue;
        json_object_foreach(v, key, arg) {
            if (strcmp(key, "name") != 0) CLT_TRY(check_act_argument(r, path, name, key, arg));
        }
        return CLT_OK;
    }
    const char *near = clt_nearest(name, known, CLT_COUNT_OF(activations));
    return clt_schema_fail(r, path, "names the activation '%.40s', which is unknown%s%s", name,
                           near ? "; did you mean " : "", near ? near : "");
}

static void store_act(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    const char *approximate = json_string_value(json_object_get(v, "approximate"));
    (void)r;
    (void)k;
    for (size_t i = 0; i < CLT_COUNT_OF(activations); i++)
        if (strcmp(activations[i].name, act_name(v)) == 0) *(clt_activation *)field = activations[i].act;
    if (approximate && strcmp(approximate, "tanh") == 0) *(clt_activation *)field = CLT_ACT_GELU_TANH;
}
static const clt_kind kind_act = {"a name or a map", sizeof(clt_activation), check_act, store_act, false};

/* true: -1, false: 0, otherwise the number, which may be written as a text. */
static bool read_divisor(const json_t *v, double *out) {
    *out = json_is_boolean(v) ? -json_is_true(v) : json_number_value(v);
    if (json_is_string(v) && !clt_parse_f64(json_string_value(v), out)) *out = 0;
    return json_is_boolean(v) || *out > 0;
}
static clt_status check_divisor(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    double d;
    (void)k;
    return read_divisor(v, &d) ? CLT_OK : clt_schema_fail(r, path, "must be true, false or a number above 0");
}
static void store_divisor(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    read_divisor(v, field);
}
static const clt_kind kind_divisor = {"true, false or a number", sizeof(double), check_divisor, store_divisor,
                                      false};

static bool is_pair(const json_t *v) {
    return json_array_size(v) == 2 && json_is_number(json_array_get(v, 0)) &&
           json_is_number(json_array_get(v, 1));
}
static clt_status check_limits(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    (void)k;
    return json_is_number(v) || is_pair(v)
               ? CLT_OK
               : clt_schema_fail(r, path, "must be a number or a list of two numbers");
}
static void store_limits(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    clt_mpt_limits *out = field;
    (void)r;
    (void)k;
    *out = json_is_number(v) ? (clt_mpt_limits){true, -json_number_value(v), json_number_value(v)}
                             : (clt_mpt_limits){true, json_number_value(json_array_get(v, 0)),
                                                json_number_value(json_array_get(v, 1))};
}
static const clt_kind kind_limits = {"a number or a list of two numbers", sizeof(clt_mpt_limits),
                                     check_limits, store_limits, false};

/* --- attention --- */

#define SAME_RESULT CLT_KEY_OF_PYTORCH

static const char *const attn_types[] = {"multihead_attention", "multiquery_attention",
                                         "grouped_query_attention", NULL};
static const char *const attn_impls[] = {"flash", "torch", NULL};
static const char *const rope_impls[] = {"dail", "hf", NULL};
static const char *const rope_dail_types[] = {"original", NULL};
static const clt_refusal refused_rope_types[] = {{"xpos", "its decay of keys is not computed here"},
                                                 {NULL, NULL}};
static const char *const rope_hf_types[] = {"no_scaling", "linear", "dynamic", "llama3", NULL};

static const clt_key rope_dail_keys[] = {
    CHECKED(clt_kind_choice, "type", "\"original\"", "rotary positions", .choices = rope_dail_types,
            .refused = refused_rope_types),
    IGNORED(bool, "pos_idx_in_fp32", "true", NULL, "positions are computed in double"),
    IGNORED(float, "xpos_scale_base", "512", NULL, "only xpos uses it"),
};
static const clt_key rope_hf_keys[] = {
    KEY("type", rope_hf_type, "\"no_scaling\"", "scaling of rotary frequencies", .choices = rope_hf_types),
    KEY("factor", rope_factor, "1.0", "scaling factor of linear, dynamic and llama3"),
    KEY("low_freq_factor", rope_low, "1.0",
        "llama3: frequencies of wavelengths above original positions / this are divided by factor"),
    KEY("high_freq_factor", rope_high, "4.0",
        "llama3: frequencies of wavelengths below original positions / this stay; those between are mixed"),
    KEY("original_max_position_embeddings", rope_original, "8192", "llama3: the original positions"),
};
static const clt_key temperature_keys[] = {
    KEY("floor_scale", temperature_floor, "8192", "positions per step of the factor"),
    KEY("attn_scale", temperature_scale, "0.0",
        "queries are multiplied by log(floor((p+1)/floor_scale)+1)*attn_scale+1, p: the position in the "
        "document with attn_uses_sequence_id, otherwise in the sample; 0: off"),
};
static const clt_schema rope_dail_schema = CLT_SCHEMA(rope_dail_keys),
                        rope_hf_schema = CLT_SCHEMA(rope_hf_keys),
                        temperature_schema = CLT_SCHEMA(temperature_keys);

static const clt_key attn_keys[] = {
    KEY("attn_type", attn_type, "\"multihead_attention\"", "how heads share keys and values",
        .choices = attn_types),
    KEY("kv_n_heads", kv_n_heads, "null", "heads of keys and values with grouped_query_attention",
        .nullable = true),
    KEY("attn_pdrop", attn_pdrop, "0.0", "dropout of attention weights"),
    IGNORED(choice, "attn_impl", "\"flash\"", NULL, SAME_RESULT, .choices = attn_impls),
    KEY("qk_ln", qk_ln, "false", "layernorm over all of q and all of k"),
    KEY("qk_gn", qk_gn, "false", "layernorm of each head of q and k"),
    KEY("fused_qkv", fused_qkv, "true", "one tensor Wqkv; false: Wq, Wk and Wv"),
    KEY("clip_qkv", clip_qkv, "null", "clamps q, k and v to +-this", .nullable = true),
    KEY("softmax_scale", softmax_scale, "null", "default: 1/sqrt(d_model / n_heads)", .nullable = true),
    KEY("attn_uses_sequence_id", attn_uses_sequence_id, "false",
        "tokens attend to their own document only; needs eos_token_id or bos_token_id in the data set"),
    KEY("sliding_window_size", window, "-1",
        "a query attends to this many keys before it, and to its own; "
        "-1: to all"),
    KEY("attn_logit_softcapping", attn_logit_softcapping, "null", "c * tanh(s / c) on attention scores",
        .nullable = true),
    KEY("alibi", alibi, "false", "linear position biases"),
    KEY("alibi_bias_max", alibi_bias_max, "8", "slopes end at 2^-this"),
    KEY("rope", rope, "false", "rotary positions"),
    KEY("rope_theta", rope_theta, "10000", "base of the rotary frequencies"),
    KEY("rope_fraction", rope_fraction, "1.0",
        "extension: the first rope_fraction * head_dim dimensions of a head rotate, the others do not"),
    KEY("rope_impl", rope_impl, "\"dail\"", "which of the next two sections applies", .choices = rope_impls),
    SECTION("rope_dail_config", "rope_impl dail", rope_dail_schema),
    SECTION("rope_hf_config", "rope_impl hf", rope_hf_schema),
    SECTION("attn_temperature_tuning", "scaling of queries by position", temperature_schema),
    REFUSE("nope", "false", "layers without positions are named in block_overrides, not for the whole model"),
    REFUSE("kv_dim", "null", "a causal language model has no cross-attention"),
    REFUSE("seq_parallel_world_size", "1", "sequence parallelism is not supported"),
};

/* --- MLP --- */

#define NO_EXPERTS "mixture-of-experts layers are not supported"
static const char *const ffn_types[] = {"mptmlp", "mptglu", NULL};
static const clt_refusal refused_ffn_types[] = {{"te_ln_mlp", "it is a layer of Transformer Engine"},
                                                {"torch_dmoe", NO_EXPERTS},
                                                {"mb_moe", NO_EXPERTS},
                                                {"mb_dmoe", NO_EXPERTS},
                                                {NULL, NULL}};
#define MOE(name) REFUSE(name, NULL, NO_EXPERTS)
static const clt_key ffn_keys[] = {
    KEY("ffn_type", glu, "\"mptmlp\"", "mptglu is gated", .choices = ffn_types, .refused = refused_ffn_types),
    KEY_OF(kind_act, "ffn_act_fn", activation, "{\"name\": \"gelu\", \"approximate\": \"none\"}",
           "gelu (none, tanh), quick_gelu, relu, relu2, silu, tanh, sigmoid, elu, leaky_relu, softplus, mish",
           .nullable = true),
    KEY("ffn_hidden_size", ffn_hidden, "null", "width of the MLP; default: expansion_ratio * d_model",
        .nullable = true),
    CHECKED(kind_fc_type, "fc_type", "\"torch\"", "as model.fc_type", .nullable = true),
    MOE("moe_world_size"),
    MOE("moe_num_experts"),
    MOE("moe_top_k"),
    MOE("moe_loss_weight"),
    MOE("moe_jitter_eps"),
    MOE("moe_lbl_in_fp32"),
    MOE("moe_weight_parallelism"),
    MOE("moe_normalize_expert_weights"),
    MOE("uniform_expert_assignment"),
    MOE("memory_optimized_mlp"),
    MOE("mlp_type"),
    MOE("mlp_impl"),
};

/* --- initial weights --- */

static const char *const init_names[] = {"kaiming_normal_", "kaiming_uniform_", "xavier_normal_",
                                         "xavier_uniform_", "baseline_",        "small_init_",
                                         "neox_init_",      "default_",         NULL};
static const char *const fan_modes[] = {"fan_in", "fan_out", NULL};
static const char *const nonlinearities[] = {"relu", "linear", "sigmoid", "tanh", "leaky_relu", "selu", NULL};

static const clt_key init_keys[] = {
    KEY("name", init, "\"kaiming_normal_\"", "scheme of the initial weights", .choices = init_names),
    KEY("fan_mode", fan_out, "\"fan_in\"", "kaiming_*: which size of a matrix counts", .choices = fan_modes),
    KEY("init_nonlinearity", nonlinearity, "\"relu\"", "kaiming_*: whose gain applies",
        .choices = nonlinearities),
    KEY_OF(kind_divisor, "init_div_is_residual", div_residual, "true",
           "out_proj and down_proj are divided by sqrt(2 n_layers), by this number, or not"),
    KEY("emb_init_std", emb_init_std, "null", "standard deviation of normal embeddings", .nullable = true),
    KEY_OF(kind_limits, "emb_init_uniform_lim", emb_limits, "null",
           "uniform embeddings between -x and x, or between two numbers; emb_init_std wins",
           .nullable = true),
    KEY("init_std", init_std, "null", "baseline_: standard deviation; must be given", .nullable = true),
    KEY("init_gain", init_gain, "0.0", "xavier_*: gain; kaiming_* with leaky_relu: its slope"),
    IGNORED(any, "verbose", "0", "0", "initialization prints nothing"),
};
static const clt_schema attn_schema = CLT_SCHEMA(attn_keys), ffn_schema = CLT_SCHEMA(ffn_keys),
                        init_schema = CLT_SCHEMA(init_keys);

/* --- the model --- */

static const char *const model_names[] = {"mpt_causal_lm", NULL};
static const char *const model_types[] = {"mpt", NULL};
static const char *const init_devices[] = {"cpu", "meta", "mixed", NULL};
static const char *const loss_fns[] = {"fused_crossentropy", "torch_crossentropy", NULL};
static const char *const norm_types[] = {
    "layernorm", "low_precision_layernorm", "rmsnorm", "low_precision_rmsnorm", "triton_rmsnorm", NULL};

static const clt_key model_keys[] = {
    CHECKED(clt_kind_choice, "name", "\"mpt_causal_lm\"", "the model", .choices = model_names,
            .refused = clt_model_refused),
    CHECKED(clt_kind_choice, "model_type", "\"mpt\"", "as in a config.json", .choices = model_types),
    KEY("d_model", d_model, "2048", "width"),
    KEY("n_heads", n_heads, "16", "query heads"),
    KEY("n_layers", n_layers, "24", "blocks"),
    KEY("head_dim", head_dim, "null", "width of a head; default: d_model / n_heads", .nullable = true),
    KEY("expansion_ratio", expansion_ratio, "4", "width of the MLP divided by d_model"),
    KEY("max_seq_len", max_seq_len, "2048", "longest sample; rows of wpe"),
    KEY("vocab_size", vocab_size, "50368", "rows of wte"),
    KEY("resid_pdrop", resid_pdrop, "0.0", "dropout of both branches of a block"),
    KEY("emb_pdrop", emb_pdrop, "0.0", "dropout after the embedding"),
    KEY("learned_pos_emb", learned_pos_emb, "true", "learned positions wpe; off with alibi or rope"),
    SECTION("attn_config", "attention", attn_schema),
    SECTION("ffn_config", "MLP", ffn_schema),
    SECTION("init_config", "initial weights", init_schema),
    IGNORED(choice, "init_device", "\"cpu\"", NULL, SAME_RESULT, .choices = init_devices),
    KEY_OF(kind_logit_scale, "logit_scale", logit_scale, "null",
           "factor of the logits: a number or inv_sqrt_d_model", .nullable = true),
    KEY("no_bias", no_bias, "false", "true: no biases, also none in norms"),
    KEY_OF(kind_switch, "attention_bias", attention_bias, "null",
           "bias of Wqkv; default: the opposite of no_bias", .nullable = true),
    KEY("embedding_fraction", embedding_fraction, "1.0", "factor of the embedding's gradient"),
    KEY("norm_type", norm, "\"low_precision_layernorm\"",
        "layernorm or rmsnorm; the low_precision_ and triton_ forms compute the same in fp32",
        .choices = norm_types),
    KEY("norm_eps", norm_eps, "1e-05", "inside the norm's square root"),
    KEY("norm_offset", norm_offset, "0.0",
        "extension: norms multiply by weight + this, 0 or 1; qk norms always by weight"),
    KEY("post_norms", post_norms, "false",
        "extension: a norm of each branch's output before the residual addition"),
    KEY("parallel_residual", parallel_residual, "false",
        "extension: x + attention(norm_1(x)) + mlp(norm_2(x))"),
    KEY("embedding_scale", embedding_scale, "1.0", "extension: factor of the embedding"),
    CHECKED(kind_fc_type, "fc_type", "\"torch\"", "te (Transformer Engine) is refused", .nullable = true),
    KEY("tie_word_embeddings", tie_word_embeddings, "true", "false: lm_head has weights of its own"),
    IGNORED(bool, "use_pad_tok_in_ffn", "true", "true",
            "padded positions are computed like all others and have no loss"),
    IGNORED(bool, "use_cache", "false", "false", "training keeps no cache of keys and values"),
    KEY_OF(clt_kind_map, "block_overrides", block_overrides, "null",
           "order, overrides and repeat: sliding_window_size, reuse_kv_layer_idx and nope of single layers",
           .nullable = true),
    KEY("final_logit_softcapping", final_logit_softcapping, "null", "c * tanh(z / c) on the logits",
        .nullable = true),
    IGNORED(choice, "loss_fn", "\"fused_crossentropy\"", NULL, SAME_RESULT, .choices = loss_fns),
    REFUSE("load_in_8bit", "false", "8-bit weights are not supported"),
    IGNORED(int, "pad_token_id", "null", NULL, "the embedding of a padding id is trained like all others"),
};
const clt_schema clt_mpt_config_model_schema = CLT_SCHEMA(model_keys);
