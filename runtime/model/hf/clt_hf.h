/* clt_hf: the model families of the transformers package (Llama, Mistral, Qwen2, GPT-2, ...), mapped onto the
 * decoder in runtime/model/mpt. Each family is one table (clt_hf_family): the keys of its config.json, a
 * function that turns them into the decoder's configuration, and the names of its tensors. clt_hf_model.c
 * makes one model family of them all. For the files of this folder. */
#ifndef CLT_HF_H
#define CLT_HF_H

#include <string.h>

#include "runtime/model/mpt/clt_mpt_config.h"

/* --- config.json --- */

typedef struct {
    int type, old_type; /* indices of clt_hf_rope_types; -1: not given. old_type: the key `type` */
    double factor, low_freq_factor, high_freq_factor;
    int64_t original;
} clt_hf_rope_scaling;

/* What config.json says, under the names of Llama; 0 in an optional number: not given. */
typedef struct {
    int64_t hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, positions, vocab_size;
    int64_t sliding_window; /* 0: none */
    int64_t padding_id;     /* meaningful if config.json has an integer there */
    int act;                /* index of clt_hf_acts */
    double initializer_range, norm_eps, rope_theta;
    double attention_dropout, hidden_dropout, embedding_dropout;
    double rotary_fraction, query_scalar, attention_softcap, final_softcap;
    bool attention_bias, mlp_bias, tied, scale_weights, parallel_residual;
    clt_hf_rope_scaling rope;
    json_t *layer_types; /* borrowed; NULL: not given */
} clt_hf_raw;

extern const char *const clt_hf_acts[]; /* values of hidden_act; ended by NULL */
extern const char *const clt_hf_rope_types[];
extern const clt_refusal clt_hf_refused_rope_types[];
extern const clt_schema clt_hf_rope_schema, clt_hf_rope_parameters_schema;

/* Rows of the families' tables of keys. */
#define CLT_HF_KEY(name, field, def, help, ...) CLT_KEY(clt_hf_raw, name, field, def, help, __VA_ARGS__)
#define CLT_HF_IGNORED(name, why) CLT_KEY_IGNORED(&clt_kind_any, name, NULL, NULL, why)
#define CLT_HF_ACT(name, def) CLT_HF_KEY(name, act, def, "activation of the MLP", .choices = clt_hf_acts)
#define CLT_HF_ROPE_SCALING                                                                                  \
    CLT_KEY_SECTION("rope_scaling", "null", "scaling of rotary frequencies", 0, &clt_hf_rope_schema),        \
        CLT_KEY_SECTION("rope_parameters", "null", "its newer name, with rope_theta", 0,                     \
                        &clt_hf_rope_parameters_schema)
/* The newer form of a window. */
#define CLT_HF_LAYER_TYPES                                                                                   \
    CLT_KEY_OF(&clt_kind_list, clt_hf_raw, "layer_types", layer_types, "null",                               \
               "full_attention or sliding_attention for each block; wins over other keys", .nullable = true)

/* The families whose embedding has a padding row. Absent is not null: see clt_hf_decode_padding. */
#define CLT_HF_PADDING_KEY(def)                                                                              \
    CLT_HF_KEY("pad_token_id", padding_id, "null",                                                           \
               "the embedding of this id is not trained; -1: that of the last id; default: " def,            \
               .nullable = true)
#define CLT_HF_NO_PADDING_KEY                                                                                \
    CLT_HF_IGNORED("pad_token_id", "the embedding of a padding id is trained like all others")

#define CLT_HF_GENERATION "a setting of text generation"
#define CLT_HF_TRAINING "it does not change what the model computes"
#define CLT_HF_NO_EXPERTS "mixture of experts is not supported"
/* The keys that every config.json may have, beside those of clt_hf_package_key. vocab: the default. */
#define CLT_HF_COMMON_KEYS(vocab)                                                                            \
    CLT_KEY_CHECKED(&clt_kind_str, "model_type", CLT_KEY_REQUIRED, "the family"),                            \
        CLT_HF_KEY("vocab_size", vocab_size, vocab, "rows of the embedding"),                                \
        CLT_HF_KEY("initializer_range", initializer_range, "0.02",                                           \
                   "standard deviation of initial weights, without pretrained ones"),                        \
        CLT_HF_IGNORED("auto_map", "code of the folder is never run"),                                       \
        CLT_HF_IGNORED("torch_dtype", "weights are read as fp32 and trained as `precision` says"),           \
        CLT_HF_IGNORED("dtype", "weights are read as fp32 and trained as `precision` says"),                 \
        CLT_HF_IGNORED("attn_implementation", CLT_KEY_OF_PYTORCH),                                           \
        CLT_HF_IGNORED("use_cache", CLT_HF_GENERATION),                                                      \
        CLT_HF_IGNORED("cache_implementation", CLT_HF_GENERATION),                                           \
        CLT_HF_IGNORED("bos_token_id", "the tokenizer has it"),                                              \
        CLT_HF_IGNORED("eos_token_id", "the tokenizer has it"),                                              \
        CLT_HF_IGNORED("tokenizer_class", "the tokenizer's files have it"),                                  \
        CLT_HF_IGNORED("gradient_checkpointing", "cltrain.recompute says what is recomputed"),               \
        CLT_KEY_REFUSE("pruned_heads", "{}", "models without some of their heads are not supported"),        \
        CLT_KEY_REFUSE("is_encoder_decoder", "false", "encoder-decoder models are not supported"),           \
        CLT_KEY_REFUSE("add_cross_attention", "false", "a causal language model has no cross-attention"),    \
        CLT_KEY_REFUSE("num_experts", "null", CLT_HF_NO_EXPERTS),                                            \
        CLT_KEY_REFUSE("num_local_experts", "null", CLT_HF_NO_EXPERTS),                                      \
        CLT_KEY_REFUSE("quantization_config", "null", "quantized weights are not supported")

/* --- families --- */

/* How a tensor of the decoder is made of tensors of files. */
typedef enum {
    CLT_HF_SAME,
    CLT_HF_TRANSPOSED, /* Conv1D: [in, out] */
    CLT_HF_QUERIES,    /* the rows of q, k or v of the fused Wqkv */
    CLT_HF_KEYS,
    CLT_HF_VALUES,
    CLT_HF_BY_HEAD /* fused q|k|v of each head, head after head */
} clt_hf_layout;

/* A layer's weight and bias (or only that which the model has). '*' stands for the number of the block. */
typedef struct {
    const char *tensor; /* the decoder's: "transformer.blocks.*.norm_1" */
    const char *file;   /* in files: "model.layers.*.input_layernorm" */
    clt_hf_layout layout;
} clt_hf_tensor;

typedef struct {
    const char *model_type;
    clt_schema keys;  /* of a clt_hf_raw */
    int64_t kv_heads; /* num_key_value_heads where config.json lacks it; 0: as where it is null, the number of
                         query heads */
    /* Checks what concerns several keys, and fills *out, which has the values of clt_hf_decode. o: the
     * config.json, for defaults that null does not have. */
    clt_status (*decode)(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, clt_mpt_config *out);
    const clt_hf_tensor *tensors;
    int n_tensors;
    const char *prefix; /* as in clt_weight_map */
    const char *const *ignored;
    const char *head;
    /* Changes an exported config.json so that every version of the package computes what decode read from it;
     * NULL: they agree. */
    void (*export_keys)(const clt_mpt_config *c, json_t *o);
} clt_hf_family;

extern const clt_hf_family clt_hf_gpt2, clt_hf_llama, clt_hf_mistral, clt_hf_qwen2, clt_hf_neox,
    clt_hf_gemma2;

/* Why this key of config.json, which the package writes for models of every kind, has no effect; NULL: it is
 * none of them. */
const char *clt_hf_package_key(const char *key);
/* Reads config.json's object: keys, ranges, the decoder's configuration (without out->base). */
clt_status clt_hf_decode(const clt_hf_family *f, clt_schema_reader *r, json_t *o, clt_mpt_config *out);
/* For decode: a key whose absence has a meaning of its own is null or above 0 where it is given. */
clt_status clt_hf_check_given(clt_schema_reader *r, const json_t *o, const char *key);
/* For decode: rotary positions of the first rope_dims of each head, from rope_theta and rope_scaling. */
clt_status clt_hf_decode_rope(clt_schema_reader *r, const clt_hf_raw *raw, clt_mpt_config *out);
/* For decode: blocks `first`, first + step, ... see sliding_window keys, their own included (0: all); the
 * others see all keys. */
void clt_hf_set_window(clt_mpt_config *out, int64_t sliding_window, int64_t first, int64_t step);
/* For decode: the padding row of pad_token_id; `absent`: the default of the family's class, -1: none. */
clt_status clt_hf_decode_padding(clt_schema_reader *r, const clt_hf_raw *raw, const json_t *o, int64_t absent,
                                 clt_mpt_config *out);
/* For decode: the windows of layer_types, where it is given. */
clt_status clt_hf_decode_layer_types(clt_schema_reader *r, const clt_hf_raw *raw, int64_t sliding_window,
                                     clt_mpt_config *out);

#endif
