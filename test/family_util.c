#include "test/family_util.h"

#include <math.h>
#include <string.h>

#include "test/test_util.h"

enum { HEADS = 2, HEAD = 16 }; /* of the one family whose heads are interleaved */

/* --- the families --- */

static const fu_names neox_outer[] = {{"transformer.wte.weight", "gpt_neox.embed_in.weight"},
                                      {"transformer.norm_f.weight", "gpt_neox.final_layer_norm.weight"},
                                      {"transformer.norm_f.bias", "gpt_neox.final_layer_norm.bias"},
                                      {"lm_head.weight", "embed_out.weight"},
                                      {NULL, NULL}};
static const fu_names neox_inner[] = {{"norm_1.", "input_layernorm."},
                                      {"norm_2.", "post_attention_layernorm."},
                                      {"attn.Wqkv.", "attention.query_key_value."},
                                      {"attn.out_proj.", "attention.dense."},
                                      {"ffn.up_proj.", "mlp.dense_h_to_4h."},
                                      {"ffn.down_proj.", "mlp.dense_4h_to_h."},
                                      {NULL, NULL}};
static const fu_names gemma_outer[] = {{"transformer.wte.weight", "model.embed_tokens.weight"},
                                       {"transformer.norm_f.weight", "model.norm.weight"},
                                       {NULL, NULL}};
static const fu_names gemma_inner[] = {
    {"norm_1.", "input_layernorm."},           {"post_norm_1.", "post_attention_layernorm."},
    {"norm_2.", "pre_feedforward_layernorm."}, {"post_norm_2.", "post_feedforward_layernorm."},
    {"attn.Wq.", "self_attn.q_proj."},         {"attn.Wk.", "self_attn.k_proj."},
    {"attn.Wv.", "self_attn.v_proj."},         {"attn.out_proj.", "self_attn.o_proj."},
    {"ffn.gate_proj.", "mlp.gate_proj."},      {"ffn.up_proj.", "mlp.up_proj."},
    {"ffn.down_proj.", "mlp.down_proj."},      {NULL, NULL}};

const fu_family fu_families[FU_FAMILIES] = {
    {"gpt-neox",
     "{\"d_model\": 32, \"n_heads\": 2, \"n_layers\": 2, \"expansion_ratio\": 3, \"max_seq_len\": 64,"
     " \"vocab_size\": 288, \"norm_type\": \"layernorm\", \"tie_word_embeddings\": false,"
     " \"learned_pos_emb\": false, \"parallel_residual\": true,"
     " \"attn_config\": {\"rope\": true, \"rope_impl\": \"hf\", \"rope_fraction\": 0.25}}",
     "gpt_neox.layers.", neox_outer, neox_inner, true},
    {"gemma2",
     "{\"d_model\": 32, \"n_heads\": 2, \"head_dim\": 16, \"n_layers\": 2, \"max_seq_len\": 64,"
     " \"vocab_size\": 288, \"norm_type\": \"rmsnorm\", \"norm_eps\": 1e-6, \"no_bias\": true,"
     " \"learned_pos_emb\": false, \"norm_offset\": 1, \"post_norms\": true,"
     " \"embedding_scale\": 5.656854249492381, \"final_logit_softcapping\": 3.0,"
     " \"attn_config\": {\"attn_type\": \"grouped_query_attention\", \"kv_n_heads\": 1,"
     "   \"fused_qkv\": false, \"softmax_scale\": 0.22360679774997896,"
     "   \"attn_logit_softcapping\": 2.0, \"rope\": true, \"rope_impl\": \"hf\"},"
     " \"ffn_config\": {\"ffn_type\": \"mptglu\", \"ffn_hidden_size\": 64,"
     "   \"ffn_act_fn\": {\"name\": \"gelu\", \"approximate\": \"tanh\"}},"
     " \"block_overrides\": {\"order\": [{\"name\": \"local\"}, {\"name\": \"default\"}],"
     "   \"overrides\": {\"local\": {\"attn_config\": {\"sliding_window_size\": 8}}}}}",
     "model.layers.", gemma_outer, gemma_inner, false}};

char *fu_path(const fu_family *f, const char *file) {
    return clt_format("test/golden/families/%s/%s", f->folder, file);
}

/* The package's name of one of our tensors; the caller frees it. */
char *fu_their_name(const fu_family *f, const char *ours) {
    static const char block[] = "transformer.blocks.";
    for (const fu_names *p = f->outer; p->ours; p++)
        if (strcmp(p->ours, ours) == 0) return clt_strdup(p->theirs);
    if (strncmp(ours, block, sizeof block - 1) == 0) {
        const char *layer = ours + sizeof block - 1, *rest = strchr(layer, '.') + 1;
        for (const fu_names *p = f->inner; p->ours; p++)
            if (strncmp(p->ours, rest, strlen(p->ours)) == 0)
                return clt_format("%s%.*s.%s%s", f->block, (int)(rest - 1 - layer), layer, p->theirs,
                                  rest + strlen(p->ours));
    }
    fail_msg("%s: no name for %s", f->folder, ours);
    return NULL;
}

/* Where element i of one of our tensors lies in the package's. */
size_t fu_their_place(const fu_family *f, const char *ours, size_t count, size_t i) {
    if (!f->per_head || !strstr(ours, ".Wqkv.")) return i;
    const size_t cols = count / (3 * HEADS * HEAD), row = i / cols;
    const size_t part = row / (HEADS * HEAD), head = row / HEAD % HEADS;
    return ((head * 3 + part) * HEAD + row % HEAD) * cols + i % cols;
}

clt_safetensors *fu_open(const fu_family *f, const char *file) {
    clt_safetensors *s;
    char *path = fu_path(f, file);
    tu_assert_ok(clt_safetensors_open(path, &s), path);
    clt_free(path);
    return s;
}

/* A tensor of the package; NULL: the file does not have it. */
float *fu_their_tensor(clt_safetensors *s, const char *name, size_t *count) {
    int i = clt_safetensors_find(s, name);
    if (i < 0) return NULL;
    *count = clt_safetensors_at(s, i)->count;
    float *x = clt_malloc(*count * sizeof *x);
    tu_assert_ok(clt_safetensors_read_f32(s, i, 0, x, *count), name);
    return x;
}

/* The package's weight of one of our tensors, in our order. */
float *fu_weight(const fu_family *f, clt_safetensors *s, const char *ours, size_t want) {
    size_t n = 0;
    char *name = fu_their_name(f, ours);
    float *x = fu_their_tensor(s, name, &n), *y = clt_malloc(want * sizeof *y);
    if (!x || n != want) fail_msg("%s has no tensor %s of %zu elements", f->folder, name, want);
    for (size_t i = 0; i < n; i++) y[i] = x[fu_their_place(f, ours, n, i)];
    clt_free(name);
    clt_free(x);
    return y;
}

double fu_largest(const float *x, size_t n) {
    double m = 0;
    for (size_t i = 0; i < n; i++) m = fmax(m, fabs((double)x[i]));
    return m;
}

double fu_l2(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

double fu_number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    if (!json_is_number(v)) fail_msg("a row has no number %s", key);
    return json_number_value(v);
}

clt_model_config *fu_config(const fu_family *f) {
    clt_model_config *cfg;
    json_t *o = json_loads(f->config, 0, NULL);
    assert_non_null(o);
    tu_assert_ok(clt_model_config_from_json(o, true, f->folder, &cfg), f->folder);
    json_decref(o);
    return cfg;
}
