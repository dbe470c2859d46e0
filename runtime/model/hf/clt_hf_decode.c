/* From the keys of a config.json to the decoder's configuration: what all families share. */
#include "runtime/base/clt_dmath.h"
#include "runtime/model/hf/clt_hf.h"

/* --- values --- */

const char *const clt_hf_acts[] = {
    "gelu",          "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh",
    "gelu_accurate", "quick_gelu",  "relu",     "relu2",     "silu",
    "swish",         "tanh",        "sigmoid",  "mish",      NULL};
static const clt_activation activations[] = {
    CLT_ACT_GELU,      CLT_ACT_GELU,       CLT_ACT_GELU_TANH, CLT_ACT_GELU_TANH, CLT_ACT_GELU_TANH,
    CLT_ACT_GELU_TANH, CLT_ACT_QUICK_GELU, CLT_ACT_RELU,      CLT_ACT_RELU2,     CLT_ACT_SILU,
    CLT_ACT_SILU,      CLT_ACT_TANH,       CLT_ACT_SIGMOID,   CLT_ACT_MISH};

const char *const clt_hf_rope_types[] = {"default", "linear", "dynamic", "llama3", NULL};
#define NO_SCALING "this scaling of rotary frequencies is not supported"
const clt_refusal clt_hf_refused_rope_types[] = {
    {"yarn", NO_SCALING}, {"longrope", NO_SCALING}, {"su", NO_SCALING}, {"mrope", NO_SCALING}, {NULL, NULL}};

#define ROPE_KEY(name, field, def, help, ...)                                                                \
    CLT_HF_KEY(name, rope.field, def, help, .nullable = true, __VA_ARGS__)
#define ROPE_KEYS                                                                                            \
    ROPE_KEY("rope_type", type, NULL, "scaling of rotary frequencies", .choices = clt_hf_rope_types,         \
             .refused = clt_hf_refused_rope_types),                                                          \
        ROPE_KEY("type", old_type, NULL, "the older name of rope_type", .choices = clt_hf_rope_types,        \
                 .refused = clt_hf_refused_rope_types),                                                      \
        ROPE_KEY("factor", factor, "0.0", "linear, dynamic, llama3: the factor; must be given"),             \
        ROPE_KEY("low_freq_factor", low_freq_factor, "0.0", "llama3: must be given"),                        \
        ROPE_KEY("high_freq_factor", high_freq_factor, "0.0", "llama3: must be given"),                      \
        ROPE_KEY("original_max_position_embeddings", original, "0", "llama3: must be given")
static const clt_key rope_keys[] = {ROPE_KEYS};
static const clt_key rope_parameter_keys[] = {
    ROPE_KEYS,
    CLT_HF_KEY("rope_theta", rope_theta, NULL, "base of the rotary frequencies"),
};
const clt_schema clt_hf_rope_schema = CLT_SCHEMA(rope_keys),
                 clt_hf_rope_parameters_schema = CLT_SCHEMA(rope_parameter_keys);

static bool is_one_of(const char *const *names, const char *key) {
    while (*names && strcmp(*names, key) != 0) names++;
    return *names != NULL;
}

/* Keys of the class PretrainedConfig, and notes of a program that many have tuned models with. */
const char *clt_hf_package_key(const char *key) {
    static const char *const generation[] = {"max_length",
                                             "min_length",
                                             "do_sample",
                                             "early_stopping",
                                             "num_beams",
                                             "num_beam_groups",
                                             "diversity_penalty",
                                             "temperature",
                                             "top_k",
                                             "top_p",
                                             "typical_p",
                                             "repetition_penalty",
                                             "length_penalty",
                                             "no_repeat_ngram_size",
                                             "encoder_no_repeat_ngram_size",
                                             "bad_words_ids",
                                             "num_return_sequences",
                                             "output_scores",
                                             "return_dict_in_generate",
                                             "forced_bos_token_id",
                                             "forced_eos_token_id",
                                             "remove_invalid_values",
                                             "exponential_decay_length_penalty",
                                             "suppress_tokens",
                                             "begin_suppress_tokens",
                                             "prefix",
                                             "sep_token_id",
                                             "decoder_start_token_id",
                                             "task_specific_params",
                                             NULL};
    static const char *const notes[] = {"architectures",
                                        "transformers_version",
                                        "return_dict",
                                        "output_hidden_states",
                                        "output_attentions",
                                        "torchscript",
                                        "use_bfloat16",
                                        "tf_legacy_loss",
                                        "chunk_size_feed_forward",
                                        "is_decoder",
                                        "cross_attention_hidden_size",
                                        "tie_encoder_decoder",
                                        "finetuning_task",
                                        "id2label",
                                        "label2id",
                                        "problem_type",
                                        "unsloth_version",
                                        "unsloth_fixed",
                                        NULL};
    if (is_one_of(generation, key)) return CLT_HF_GENERATION;
    return is_one_of(notes, key) ? CLT_HF_TRAINING : NULL;
}

/* --- checks --- */

/* The family's name of a field. */
static const char *name_of(const clt_hf_family *f, size_t offset) {
    for (size_t i = 0; i < f->keys.n; i++)
        if (f->keys.keys[i].at.size > 0 && f->keys.keys[i].at.offset == offset) return f->keys.keys[i].name;
    return "model_type";
}
#define NAME_OF(field) name_of(f, offsetof(clt_hf_raw, field))

static clt_status check_sizes(const clt_hf_family *f, clt_schema_reader *r, const clt_hf_raw *raw) {
    const struct {
        const char *key;
        int64_t v, most;
    } sizes[] = {{NAME_OF(hidden_size), raw->hidden_size, 1 << 20},
                 {NAME_OF(layers), raw->layers, CLT_MPT_MAX_LAYERS},
                 {NAME_OF(heads), raw->heads, 1 << 16},
                 {NAME_OF(positions), raw->positions, 1 << 24},
                 {NAME_OF(vocab_size), raw->vocab_size, 1 << 30},
                 {NAME_OF(intermediate_size), raw->intermediate_size, 1 << 24}};
    for (size_t i = 0; i < CLT_COUNT_OF(sizes); i++)
        if (sizes[i].v < 1 || sizes[i].v > sizes[i].most)
            return clt_schema_fail(r, sizes[i].key, "is %lld: it must be from 1 to %lld",
                                   (long long)sizes[i].v, (long long)sizes[i].most);
    const struct {
        const char *key;
        double v;
    } positive[] = {{NAME_OF(norm_eps), raw->norm_eps}, {NAME_OF(rope_theta), raw->rope_theta}};
    for (size_t i = 0; i < CLT_COUNT_OF(positive); i++)
        if (!(positive[i].v > 0))
            return clt_schema_fail(r, positive[i].key, "is %g: it must be above 0", positive[i].v);
    const struct {
        const char *key;
        double v;
    } drop[] = {{NAME_OF(attention_dropout), raw->attention_dropout},
                {NAME_OF(hidden_dropout), raw->hidden_dropout},
                {NAME_OF(embedding_dropout), raw->embedding_dropout}};
    for (size_t i = 0; i < CLT_COUNT_OF(drop); i++)
        if (!(drop[i].v >= 0 && drop[i].v < 1))
            return clt_schema_fail(r, drop[i].key,
                                   "is %g: a probability of dropping is at least 0 and below 1", drop[i].v);
    if (!(raw->initializer_range >= 0))
        return clt_schema_fail(r, "initializer_range", "must not be negative");
    return CLT_OK;
}

clt_status clt_hf_check_given(clt_schema_reader *r, const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v) || json_number_value(v) > 0) return CLT_OK;
    return clt_schema_fail(r, key, "is %g: it must be null or above 0", json_number_value(v));
}

static clt_status resolve_heads(const clt_hf_family *f, clt_schema_reader *r, const clt_hf_raw *raw,
                                clt_mpt_config *c) {
    if (raw->head_dim == 0 && raw->hidden_size % raw->heads != 0)
        return clt_schema_fail(r, NAME_OF(hidden_size), "is %lld, which %s %lld does not divide",
                               (long long)raw->hidden_size, NAME_OF(heads), (long long)raw->heads);
    c->head_dim = raw->head_dim ? raw->head_dim : raw->hidden_size / raw->heads;
    if (c->head_dim < 1 || c->head_dim > 1 << 16)
        return clt_schema_fail(r, NAME_OF(head_dim), "must be from 1 to 65536");
    c->kv_n_heads = raw->kv_heads ? raw->kv_heads : raw->heads;
    if (c->kv_n_heads < 1 || c->kv_n_heads > raw->heads || raw->heads % c->kv_n_heads != 0)
        return clt_schema_fail(r, NAME_OF(kv_heads), "is %lld: it must divide %s %lld",
                               (long long)c->kv_n_heads, NAME_OF(heads), (long long)raw->heads);
    c->n_heads = raw->heads;
    c->softmax_scale = 1 / clt_dsqrt((double)c->head_dim);
    return CLT_OK;
}

/* --- the decoder --- */

static void resolve_plain(const clt_hf_raw *raw, clt_mpt_config *c) {
    c->d_model = raw->hidden_size;
    c->n_layers = raw->layers;
    c->ffn_hidden = raw->intermediate_size;
    c->max_seq_len = raw->positions;
    c->vocab_size = raw->vocab_size;
    c->attn_pdrop = raw->attention_dropout;
    c->resid_pdrop = raw->hidden_dropout;
    c->emb_pdrop = raw->embedding_dropout;
    c->tie_word_embeddings = raw->tied;
    c->fused_qkv = true;
    c->norm_eps = raw->norm_eps;
    c->activation = activations[raw->act];
    c->embedding_fraction = c->embedding_scale = c->logit_scale = c->temperature_floor_scale = 1;
    c->alibi_bias_max = 8;
    c->padding_id = -1;
    c->rope_theta = raw->rope_theta;
    c->rope_factor = c->rope_fraction = 1;
    c->rope_dims = c->head_dim;
    c->init = CLT_INIT_BASELINE;
    c->init_std = c->emb_init_std = raw->initializer_range;
    c->init_nonlinearity_gain = 1;
    clt_hf_set_window(c, 0, 0, 1);
}

clt_status clt_hf_decode_rope(clt_schema_reader *r, const clt_hf_raw *raw, clt_mpt_config *c) {
    static const clt_rope_kind kinds[] = {CLT_ROPE_PLAIN, CLT_ROPE_LINEAR, CLT_ROPE_DYNAMIC, CLT_ROPE_LLAMA3};
    const clt_hf_rope_scaling *s = &raw->rope;
    const int type = s->type >= 0 ? s->type : s->old_type;
    c->rope = kinds[CLT_MAX(type, 0)];
    if (c->rope_dims % 2 != 0 || c->rope_dims > c->head_dim)
        return clt_schema_fail(r, "head_dim", "is %lld: rotary positions need an even number",
                               (long long)c->head_dim);
    if (c->rope == CLT_ROPE_PLAIN) return CLT_OK;
    if (!(s->factor > 0))
        return clt_schema_fail(r, "rope_scaling.factor", "is %g: a number above 0 must be given", s->factor);
    c->rope_factor = s->factor;
    if (c->rope != CLT_ROPE_LLAMA3) return CLT_OK;
    if (!(s->low_freq_factor > 0 && s->high_freq_factor > s->low_freq_factor) || s->original < 1)
        return clt_schema_fail(
            r, "rope_scaling",
            "needs 0 < low_freq_factor < high_freq_factor and original_max_position_embeddings above 0");
    c->rope_low_freq_factor = s->low_freq_factor;
    c->rope_high_freq_factor = s->high_freq_factor;
    c->rope_original_max_positions = s->original;
    return CLT_OK;
}

void clt_hf_set_window(clt_mpt_config *c, int64_t sliding_window, int64_t first, int64_t step) {
    for (int64_t i = 0; i < c->n_layers; i++) {
        const bool limited = sliding_window > 0 && i >= first && (i - first) % step == 0;
        c->layer[i] = (clt_mpt_layer_config){.window = limited ? sliding_window - 1 : -1, .reuse_kv = -1};
    }
}

clt_status clt_hf_decode_padding(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, int64_t absent,
                                 clt_mpt_config *c) {
    const json_t *given = json_object_get(o, "pad_token_id");
    c->padding_id = json_is_integer(given) ? raw->padding_id : given ? -1 : absent;
    if (!json_is_integer(given)) return CLT_OK;
    if (raw->padding_id < -c->vocab_size || raw->padding_id >= c->vocab_size)
        return clt_schema_fail(r, "pad_token_id", "is %lld: the vocabulary has %lld ids",
                               (long long)raw->padding_id, (long long)c->vocab_size);
    if (raw->padding_id < 0) c->padding_id += c->vocab_size; /* as torch counts it */
    return CLT_OK;
}

clt_status clt_hf_decode_layer_types(clt_schema_reader *r, const clt_hf_raw *raw, int64_t sliding_window,
                                     clt_mpt_config *c) {
    if (!raw->layer_types) return CLT_OK;
    if ((int64_t)json_array_size(raw->layer_types) != c->n_layers)
        return clt_schema_fail(r, "layer_types", "has %zu entries for %lld blocks",
                               json_array_size(raw->layer_types), (long long)c->n_layers);
    for (int64_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(raw->layer_types, (size_t)i));
        const bool sliding = type && strcmp(type, "sliding_attention") == 0;
        if (!sliding && !(type && strcmp(type, "full_attention") == 0))
            return clt_schema_fail(r, "layer_types",
                                   "has an entry that is neither full_attention nor "
                                   "sliding_attention: '%.40s'",
                                   type ? type : "");
        if (sliding && sliding_window < 1)
            return clt_schema_fail(r, "sliding_window", "is missing, and layer_types needs it");
        c->layer[i].window = sliding ? sliding_window - 1 : -1;
    }
    return CLT_OK;
}

/* Scaling without its type would be read as none at all. Of two different types the classes of the package
 * read one or the other. */
static clt_status check_rope_type(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o) {
    static const char *const sections[] = {"rope_scaling", "rope_parameters"};
    const int type = raw->rope.type, old = raw->rope.old_type;
    if (type >= 0 && old >= 0 && type != old)
        return clt_schema_fail(r, "rope_scaling", "has rope_type %s and type %s: they must be equal",
                               clt_hf_rope_types[type], clt_hf_rope_types[old]);
    if (type >= 0 || old >= 0) return CLT_OK;
    for (size_t i = 0; i < CLT_COUNT_OF(sections); i++)
        if (json_is_object(json_object_get(o, sections[i])))
            return clt_schema_fail(r, sections[i], "has no rope_type: it must be given");
    return CLT_OK;
}

clt_status clt_hf_decode(const clt_hf_family *f, clt_schema_reader *r, json_t *o, clt_mpt_config *out) {
    clt_hf_raw raw = {.rope = {.type = -1, .old_type = -1}, .norm_eps = 1e-5, .rope_theta = 10000};
    CLT_TRY(clt_schema_read(r, &f->keys, "", o, &raw));
    CLT_TRY(clt_hf_check_given(r, o, NAME_OF(intermediate_size)));
    CLT_TRY(clt_hf_check_given(r, o, "num_key_value_heads"));
    if (!json_object_get(o, "num_key_value_heads") && raw.kv_heads == 0) raw.kv_heads = f->kv_heads;
    if (raw.intermediate_size == 0) raw.intermediate_size = 4 * raw.hidden_size;
    CLT_TRY(check_sizes(f, r, &raw));
    CLT_TRY(check_rope_type(r, &raw, o));
    CLT_TRY(resolve_heads(f, r, &raw, out));
    resolve_plain(&raw, out);
    return f->decode(r, &raw, o, out);
}
