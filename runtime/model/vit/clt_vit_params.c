/* The parameter table of a Vision Transformer under timm's names, initial values, and units. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/model/vit/clt_vit_internal.h"

/* --- table --- */

/* PREFIX.weight [rows, cols], or [rows] with cols 0, and PREFIX.bias [rows]. */
static void add(clt_slab_table *t, const char *prefix, int64_t rows, int64_t cols, bool bias) {
    char *weight = clt_format("%s.weight", prefix), *b = clt_format("%s.bias", prefix);
    clt_slab_table_add(t, weight, cols ? 2 : 1, (int64_t[]){rows, cols});
    if (bias) clt_slab_table_add(t, b, 1, &rows);
    clt_free(weight);
    clt_free(b);
}

static void add_block(const clt_mpt_config *c, int layer, clt_slab_table *t) {
    const int64_t C = c->d_model, F = c->ffn_hidden;
    const struct {
        const char *name;
        int64_t rows, cols;
        bool bias;
    } part[] = {{"norm1", C, 0, true},     {"attn.qkv", 3 * C, C, c->attention_bias},
                {"attn.proj", C, C, true}, {"norm2", C, 0, true},
                {"mlp.fc1", F, C, true},   {"mlp.fc2", C, F, true}};
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++) {
        char *prefix = clt_format("blocks.%d.%s", layer, part[i].name);
        add(t, prefix, part[i].rows, part[i].cols, part[i].bias);
        clt_free(prefix);
    }
}

static const char *final_norm(const clt_vit_config *v) {
    return v->average ? "fc_norm" : "norm";
}

clt_status clt_vit_table(const clt_model_config *config, clt_slab_table *t) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const clt_mpt_config *c = &v->block;
    const int64_t C = c->d_model, p = v->patch_size;
    clt_slab_table_add(t, "cls_token", 3, (int64_t[]){1, 1, C});
    clt_slab_table_add(t, "pos_embed", 3, (int64_t[]){1, c->max_seq_len, C});
    clt_slab_table_add(t, "patch_embed.proj.weight", 4, (int64_t[]){C, 3, p, p});
    clt_slab_table_add(t, "patch_embed.proj.bias", 1, &C);
    for (int i = 0; i < c->n_layers; i++) add_block(c, i, t);
    add(t, final_norm(v), C, 0, true);
    add(t, "head", c->vocab_size, C, true);
    clt_slab_table_finish(t);
    return CLT_OK;
}

/* 3 times the forward pass of an image: of blocks, attention, patches and head. */
double clt_vit_train_flops(const clt_model_config *config, int64_t seq) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const clt_mpt_config *c = &v->block;
    const double d = (double)c->d_model, N = (double)c->max_seq_len, L = (double)c->n_layers;
    (void)seq;
    return 3 * (2 * N * L * (4 * d * d + 2 * d * (double)c->ffn_hidden) + 4 * L * N * N * d +
                2 * (N - 1) * (double)v->patch * d + 2 * d * (double)c->vocab_size);
}

/* --- initial values --- */

static bool ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* timm's weight_init ''. Its truncation at -2 and 2 is a hundred standard deviations away. */
void clt_vit_init_range(const clt_model_config *config, const clt_slab_table *t, int entry, uint64_t seed,
                        uint64_t first, uint64_t count, float *out) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const char *name = t->entry[entry].name;
    const double bound = 1 / clt_dsqrt((double)v->patch);
    clt_mpt_init_rule r = {CLT_MPT_INIT_NORMAL, 0.02, 0, 1};
    if (entry == CLT_VIT_CLASS) r.a = 1e-6;
    if (entry == CLT_VIT_PATCH_WEIGHT || entry == CLT_VIT_PATCH_BIAS)
        r = (clt_mpt_init_rule){CLT_MPT_INIT_UNIFORM, -bound, bound, 1};
    else if (t->entry[entry].dims == 1)
        r = (clt_mpt_init_rule){CLT_MPT_INIT_CONSTANT, ends_with(name, ".weight"), 0, 1};
    clt_mpt_init_fill(&r, entry, seed, first, count, out);
}

/* --- units --- */

int clt_vit_units(const clt_model_config *config, const clt_slab_table *t, clt_model_unit **units) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    char *head = clt_format("%s.weight", final_norm(v));
    const int n = clt_mpt_units_of(t, v->block.n_layers, "blocks.", "norm1.weight", head, units);
    clt_free(head);
    return n;
}

/* timm's group_matcher: the norm behind the blocks goes with the last block, fc_norm with the head. */
int clt_vit_layer_of(const clt_model_config *config, const clt_slab_table *t, int entry, int *layers) {
    const int depth = (int)((const clt_vit_config *)config)->block.n_layers;
    const char *name = t->entry[entry].name;
    static const char block[] = "blocks.", norm[] = "norm.";
    *layers = depth + 2;
    if (entry <= CLT_VIT_PATCH_BIAS) return 0;
    if (strncmp(name, block, sizeof block - 1) == 0) return atoi(name + sizeof block - 1) + 1;
    return strncmp(name, norm, sizeof norm - 1) == 0 ? depth : depth + 1;
}

bool clt_vit_reads_wide(const clt_model_config *config, const clt_model_shape *shape, const clt_slab_table *t,
                        int entry) {
    (void)config, (void)shape;
    return entry <= CLT_VIT_POSITIONS || t->entry[entry].dims == 1;
}
