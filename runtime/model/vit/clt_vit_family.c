/* The Vision Transformer as a model family. */
#include <string.h>

#include "runtime/model/vit/clt_vit_internal.h"

static clt_model_facts facts(const clt_model_config *config) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    return (clt_model_facts){
        .max_seq_len = v->block.max_seq_len, .layers = v->block.n_layers, .layers_key = "depth"};
}

/* Of Composer's ComposerClassifier; it has no name of its own for the five most likely classes. */
static const clt_model_terms terms = {.unit = "image",
                                      .rate = "img/s",
                                      .by_sample = true,
                                      .cross_entropy = "CrossEntropy",
                                      .accuracy = "MulticlassAccuracy",
                                      .accuracy5 = "MulticlassAccuracyTop5"};

static char *describe(const clt_model_config *config) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const clt_mpt_config *c = &v->block;
    return clt_format(
        "width %lld, %lld blocks, %lld heads, images of %lld x %lld in patches of %lld, %lld classes",
        (long long)c->d_model, (long long)c->n_layers, (long long)c->n_heads, (long long)v->image_size,
        (long long)v->image_size, (long long)v->patch_size, (long long)c->vocab_size);
}

static void set_layers(clt_model_config *config, int64_t layers) {
    ((clt_vit_config *)config)->block.n_layers = layers;
}

static clt_batch_layout layout(const clt_model_config *config, int64_t seq) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    (void)seq;
    return clt_image_layout(v->image_size, v->image_size, v->block.vocab_size);
}

/* Pixels in [-1, 1) and the classes in turn. */
static void example(const clt_model_config *config, int64_t seq, int64_t samples, void *const field[],
                    int32_t *sample_targets) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const int64_t pixels = 3 * v->image_size * v->image_size, classes = v->block.vocab_size;
    float *pixel = field[CLT_IMAGE_PIXELS], *target = field[CLT_IMAGE_TARGETS];
    uint32_t x = 1;
    (void)seq;
    for (int64_t i = 0; i < samples * pixels; i++) {
        x = x * 1664525u + 1013904223u;
        pixel[i] = (float)(x >> 8) * 0x1p-23f - 1.0f;
    }
    for (int64_t s = 0; s < samples; s++) {
        ((int32_t *)field[CLT_IMAGE_LABEL])[s] = (int32_t)(s % classes);
        target[s * classes + s % classes] = 1;
        sample_targets[s] = 1;
    }
}

/* The config.json of timm's models on a hub, beside cltrain's keys. timm builds the model of model_args
 * alone, and takes the whole file for pretrained_cfg if that is missing. */
static json_t *hf_config(const clt_model_config *config) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const clt_mpt_config *c = &v->block;
    const char *pool = v->average ? "avg" : "token";
    const json_int_t side = v->image_size, classes = c->vocab_size, width = c->d_model;
    json_t *o = clt_vit_to_json(config);
    json_t *args = json_pack("{s:I s:I s:I s:I s:I s:f s:b s:s s:f s:f s:f}", "img_size", side, "patch_size",
                             (json_int_t)v->patch_size, "embed_dim", width, "depth", (json_int_t)c->n_layers,
                             "num_heads", (json_int_t)c->n_heads, "mlp_ratio", v->mlp_ratio, "qkv_bias",
                             c->attention_bias, "global_pool", pool, "drop_path_rate", c->drop_path,
                             "pos_drop_rate", c->emb_pdrop, "attn_drop_rate", c->attn_pdrop);
    json_t *timm = json_pack("{s:s s:I s:I s:s s:o s:{s:[i,I,I] s:b s:I s:n s:s s:s}}", "architecture",
                             "vit_base_patch16_224", "num_classes", classes, "num_features", width,
                             "global_pool", pool, "model_args", args, "pretrained_cfg", "input_size", 3, side,
                             side, "fixed_input_size", 1, "num_classes", classes, "pool_size", "first_conv",
                             "patch_embed.proj", "classifier", "head");
    json_object_update(o, timm);
    json_decref(timm);
    return o;
}

static const char *hf_differs(const clt_model_config *config) {
    (void)config;
    return NULL;
}

static clt_status plan(const clt_model_config *config, const clt_model_shape *shape, clt_device_type type,
                       clt_model_memory *memory) {
    return clt_mpt_plan_as(&clt_vit_ends, config, shape, type, memory);
}

static clt_status create(const clt_model_config *config, const clt_model_shape *shape, clt_ops *ops,
                         clt_slab *weights, clt_slab *narrow, clt_model **out) {
    return clt_mpt_create_as(&clt_vit_ends, config, shape, ops, weights, narrow, out);
}

static const char *const yaml_names[] = {"vit", NULL}, *const hf_types[] = {"timm_vit", NULL};

const clt_model_family clt_vit_family = {
    .name = "vit",
    .yaml_names = yaml_names,
    .hf_types = hf_types,
    .config_bytes = sizeof(clt_vit_config),
    .schema = &clt_vit_schema,
    .recognises = clt_vit_recognises,
    .read = clt_vit_read,
    .to_json = clt_vit_to_json,
    .facts = facts,
    .terms = &terms,
    .describe = describe,
    .set_layers = set_layers,
    .table = clt_vit_table,
    .init_range = clt_vit_init_range,
    .train_flops_per_token = clt_vit_train_flops,
    .units = clt_vit_units,
    .order = clt_mpt_order,
    .reads_wide = clt_vit_reads_wide,
    .layer_of = clt_vit_layer_of,
    .resample = clt_vit_resample,
    .hf_config = hf_config,
    .hf_differs = hf_differs,
    .layout = layout,
    .example = example,
    .plan = plan,
    .create = create,
    .destroy = clt_mpt_destroy,
    .train = clt_mpt_train,
    .eval = clt_mpt_eval,
    .predictions = clt_vit_predictions,
    .fp8_formats = clt_mpt_fp8_formats,
    .fp8_amax = clt_mpt_fp8_amax,
    .fp8_set_scales = clt_mpt_fp8_set_scales,
    .activation = clt_mpt_activation,
};
