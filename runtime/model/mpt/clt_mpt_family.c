/* The MPT as a model family, and what transformers' class of it has and lacks. */
#include <math.h>

#include "runtime/model/mpt/clt_mpt_internal.h"

static clt_model_facts facts(const clt_model_config *config) {
    const clt_mpt_config *c = (const clt_mpt_config *)config;
    return (clt_model_facts){.vocab_size = c->vocab_size,
                             .max_seq_len = c->max_seq_len,
                             .layers = c->n_layers,
                             .layers_key = "n_layers",
                             .tied = c->tie_word_embeddings,
                             .seq_ids = c->attn_uses_sequence_id};
}

static char *describe(const clt_model_config *config) {
    const clt_mpt_config *c = (const clt_mpt_config *)config;
    return clt_format("d_model %lld, %lld layers, %lld heads, vocabulary %lld", (long long)c->d_model,
                      (long long)c->n_layers, (long long)c->n_heads, (long long)c->vocab_size);
}

static void set_layers(clt_model_config *config, int64_t layers) {
    ((clt_mpt_config *)config)->n_layers = layers;
}

/* --- files of other programs --- */

/* The MptConfig of transformers calls norm_eps layer_norm_epsilon, and takes no 0.0 where it says int. */
static json_t *hf_config(const clt_model_config *config) {
    static const char *const whole[] = {"attn_pdrop", "alibi_bias_max"};
    json_t *o = clt_mpt_config_to_json(config), *attn = json_object_get(o, "attn_config");
    for (size_t i = 0; i < CLT_COUNT_OF(whole); i++) {
        double v = json_number_value(json_object_get(attn, whole[i]));
        if (v == floor(v)) json_object_set_new(attn, whole[i], json_integer((json_int_t)v));
    }
    json_object_set(o, "layer_norm_epsilon", json_object_get(o, "norm_eps"));
    json_object_set_new(o, "architectures", json_pack("[s]", "MPTForCausalLM"));
    return o;
}

static bool layers_differ(const clt_mpt_config *c) {
    for (int64_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].window != -1 || c->layer[i].reuse_kv >= 0) return true;
    return false;
}

/* The MptForCausalLM of transformers has, mostly whatever config.json says: ALiBi down to 2^-8, layer norms,
 * exact GELU, 4 d_model, and no biases. */
#define LACKS(what) "its MptForCausalLM lacks " what "; LLM Foundry's code computes the same"
#define ONLY_HERE(what) "neither its MptForCausalLM nor LLM Foundry's code has " what
/* The first feature of the model that MPTConfig has no key for. */
static const char *extension(const clt_mpt_config *c) {
    if (c->parallel_residual) return ONLY_HERE("parallel_residual");
    if (c->post_norms) return ONLY_HERE("post_norms");
    if (c->norm_offset != 0) return ONLY_HERE("norm_offset");
    if (c->embedding_scale != 1) return ONLY_HERE("embedding_scale");
    return c->rope != CLT_ROPE_NONE && c->rope_dims != c->head_dim ? ONLY_HERE("rope_fraction") : NULL;
}

static const char *hf_differs(const clt_model_config *config) {
    const clt_mpt_config *c = (const clt_mpt_config *)config;
    if (extension(c)) return extension(c);
    if (!c->alibi)
        return c->rope != CLT_ROPE_NONE ? LACKS("rotary positions") : LACKS("positions without ALiBi");
    if (c->alibi_bias_max != 8) return LACKS("alibi_bias_max");
    if (!c->no_bias || c->attention_bias) return LACKS("biases");
    if (c->rms_norm) return LACKS("RMS norms");
    if (c->qk_ln || c->qk_gn) return LACKS("norms of q and k");
    if (c->kv_n_heads != c->n_heads) return LACKS("shared heads of keys and values");
    if (c->head_dim * c->n_heads != c->d_model) return LACKS("head_dim");
    if (!c->fused_qkv) return LACKS("separate Wq, Wk and Wv");
    if (c->glu || c->activation != CLT_ACT_GELU || c->ffn_hidden != 4 * c->d_model) return LACKS("this MLP");
    if (layers_differ(c)) return LACKS("sliding windows and block_overrides");
    if (c->logit_scale != 1) return LACKS("logit_scale");
    if (c->attn_logit_softcapping > 0 || c->final_logit_softcapping > 0) return LACKS("softcapping");
    return c->temperature_attn_scale != 0 ? LACKS("attn_temperature_tuning") : NULL;
}

/* --- the table --- */

static const char *const yaml_names[] = {"mpt_causal_lm", NULL}, *const hf_types[] = {"mpt", NULL};

const clt_model_family clt_mpt_family = {
    .name = "mpt",
    .yaml_names = yaml_names,
    .hf_types = hf_types,
    .config_bytes = sizeof(clt_mpt_config),
    .schema = &clt_mpt_config_model_schema,
    .read = clt_mpt_config_read,
    .to_json = clt_mpt_config_to_json,
    .facts = facts,
    .describe = describe,
    .set_layers = set_layers,
    .table = clt_mpt_table,
    .init_range = clt_mpt_init_range,
    .train_flops_per_token = clt_mpt_train_flops_per_token,
    .units = clt_mpt_units,
    .order = clt_mpt_order,
    .reads_wide = clt_mpt_reads_wide,
    .hf_config = hf_config,
    .hf_differs = hf_differs,
    .plan = clt_mpt_plan,
    .create = clt_mpt_create,
    .destroy = clt_mpt_destroy,
    .train = clt_mpt_train,
    .eval = clt_mpt_eval,
    .logits = clt_mpt_logits,
    .next = clt_mpt_next,
    .next_greedy = clt_mpt_next_greedy,
    .span_logits = clt_mpt_span_logits,
    .fp8_formats = clt_mpt_fp8_formats,
    .fp8_amax = clt_mpt_fp8_amax,
    .fp8_set_scales = clt_mpt_fp8_set_scales,
    .activation = clt_mpt_activation,
};
