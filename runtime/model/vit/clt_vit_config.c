/* The configuration of a Vision Transformer: its keys, and the blocks that they describe. */
#include <math.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/model/vit/clt_vit_internal.h"

typedef struct {
    int64_t image_size, patch_size, width, depth, heads, classes;
    double mlp_ratio, drop_path, pos_dropout, attn_dropout;
    bool qkv_bias;
    int pooling;
} raw_config;

#define KEY(name, field, def, help, ...) CLT_KEY(raw_config, name, field, def, help, __VA_ARGS__)

static const char *const names[] = {"vit", NULL}, *const types[] = {"timm_vit", NULL};
static const char *const poolings[] = {"token", "avg", NULL};

static const clt_key keys[] = {
    CLT_KEY_CHECKED(&clt_kind_choice, "name", "\"vit\"", "the Vision Transformer of timm", .choices = names),
    CLT_KEY_CHECKED(&clt_kind_choice, "model_type", "\"timm_vit\"", "as checkpoints name it",
                    .choices = types),
    KEY("image_size", image_size, "224", "height and width of an image in pixels"),
    KEY("patch_size", patch_size, "16", "height and width of a patch in pixels"),
    KEY("width", width, "768", "width of a token"),
    KEY("depth", depth, "12", "blocks"),
    KEY("heads", heads, "12", "attention heads; they divide width"),
    KEY("mlp_ratio", mlp_ratio, "4.0", "width of the MLP divided by width, rounded down"),
    KEY("classes", classes, "1000", "classes of the head"),
    KEY("pooling", pooling, "\"token\"",
        "what the head reads: the class token, or the mean of the other tokens, with the norm behind it "
        "(fc_norm)",
        .choices = poolings),
    KEY("qkv_bias", qkv_bias, "true", "bias of q, k and v"),
    KEY("drop_path", drop_path, "0.0",
        "probability that a branch of the last block is left out for an image; it grows linearly from 0 in "
        "the first block"),
    KEY("pos_dropout", pos_dropout, "0.0", "dropout after the position embedding (timm: pos_drop_rate)"),
    KEY("attn_dropout", attn_dropout, "0.0", "dropout of attention's weights (timm: attn_drop_rate)"),
};
const clt_schema clt_vit_schema = CLT_SCHEMA(keys);

static clt_status fail(clt_schema_reader *r, const char *path, const char *key, const char *why, double v) {
    char *full = clt_format("%s%s%s", path, *path ? "." : "", key);
    clt_status st = clt_schema_fail(r, full, "is %g: %s", v, why);
    clt_free(full);
    return st;
}

static clt_status check_sizes(clt_schema_reader *r, const char *path, const raw_config *c) {
    const struct {
        const char *key;
        int64_t v, most;
    } size[] = {{"image_size", c->image_size, 1 << 14}, {"patch_size", c->patch_size, c->image_size},
                {"width", c->width, 1 << 20},           {"depth", c->depth, CLT_MPT_MAX_LAYERS},
                {"heads", c->heads, c->width},          {"classes", c->classes, (1 << 24) - 1}};
    for (size_t i = 0; i < CLT_COUNT_OF(size); i++) {
        char why[64];
        snprintf(why, sizeof why, "it must be between 1 and %lld", (long long)size[i].most);
        if (size[i].v < 1 || size[i].v > size[i].most)
            return fail(r, path, size[i].key, why, (double)size[i].v);
    }
    if (c->width % c->heads) return fail(r, path, "heads", "it must divide width", (double)c->heads);
    const double hidden = floor((double)c->width * c->mlp_ratio);
    if (!(hidden >= 1 && hidden <= 1 << 24))
        return fail(r, path, "mlp_ratio", "the MLP's width must be between 1 and 16777216", c->mlp_ratio);
    return CLT_OK;
}

static clt_status check_rates(clt_schema_reader *r, const char *path, const raw_config *c) {
    const struct {
        const char *key;
        double v;
    } rate[] = {
        {"drop_path", c->drop_path}, {"pos_dropout", c->pos_dropout}, {"attn_dropout", c->attn_dropout}};
    for (size_t i = 0; i < CLT_COUNT_OF(rate); i++)
        if (!(rate[i].v >= 0 && rate[i].v < 1))
            return fail(r, path, rate[i].key, "a probability is at least 0 and below 1", rate[i].v);
    return CLT_OK;
}

static void set_blocks(const raw_config *raw, clt_vit_config *v) {
    clt_mpt_config *c = &v->block;
    c->d_model = raw->width;
    c->n_heads = c->kv_n_heads = raw->heads;
    c->head_dim = raw->width / raw->heads;
    c->n_layers = raw->depth;
    c->ffn_hidden = (int64_t)((double)raw->width * raw->mlp_ratio);
    c->max_seq_len = v->grid * v->grid + 1;
    c->vocab_size = raw->classes;
    c->emb_pdrop = raw->pos_dropout;
    c->attn_pdrop = raw->attn_dropout;
    c->drop_path = raw->drop_path;
    c->fused_qkv = c->bidirectional = true;
    c->attention_bias = raw->qkv_bias;
    c->out_bias = c->mlp_bias = c->norm_bias = true;
    c->norm_eps = 1e-6;
    c->embedding_scale = c->embedding_fraction = c->logit_scale = 1;
    c->padding_id = -1;
    c->softmax_scale = 1 / clt_dsqrt((double)c->head_dim);
    c->activation = CLT_ACT_GELU;
    for (int i = 0; i < CLT_MPT_MAX_LAYERS; i++)
        c->layer[i] = (clt_mpt_layer_config){.window = -1, .reuse_kv = -1};
}

static clt_status read_keys(clt_schema_reader *r, const char *path, json_t *o, clt_vit_config *c) {
    raw_config raw = {0};
    CLT_TRY(clt_schema_read(r, &clt_vit_schema, path, o, &raw));
    CLT_TRY(check_sizes(r, path, &raw));
    CLT_TRY(check_rates(r, path, &raw));
    c->image_size = raw.image_size;
    c->patch_size = raw.patch_size;
    c->grid = raw.image_size / raw.patch_size;
    c->patch = 3 * raw.patch_size * raw.patch_size;
    c->mlp_ratio = raw.mlp_ratio;
    c->average = raw.pooling == 1;
    set_blocks(&raw, c);
    return CLT_OK;
}

clt_status clt_vit_read(clt_schema_reader *r, const char *path, json_t *o, clt_model_config *out) {
    clt_vit_config *c = (clt_vit_config *)out;
    json_t *keys;
    if (!r->ignore_unknown || json_object_get(o, "model_type") || json_object_get(o, "name"))
        return read_keys(r, path, o, c);
    CLT_TRY(clt_vit_from_timm(r, o, &keys));
    clt_status st = read_keys(r, path, keys, c);
    json_decref(keys);
    return st;
}

json_t *clt_vit_to_json(const clt_model_config *config) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const clt_mpt_config *c = &v->block;
    return json_pack("{s:I s:I s:I s:I s:I s:f s:I s:s s:b s:f s:f s:f}", "image_size",
                     (json_int_t)v->image_size, "patch_size", (json_int_t)v->patch_size, "width",
                     (json_int_t)c->d_model, "depth", (json_int_t)c->n_layers, "heads",
                     (json_int_t)c->n_heads, "mlp_ratio", v->mlp_ratio, "classes", (json_int_t)c->vocab_size,
                     "pooling", poolings[v->average], "qkv_bias", c->attention_bias, "drop_path",
                     c->drop_path, "pos_dropout", c->emb_pdrop, "attn_dropout", c->attn_pdrop);
}
