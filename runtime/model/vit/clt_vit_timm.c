/* The config.json that timm writes beside weights: it has no model_type and, but for what differs from the
 * named architecture (model_args), no sizes. */
#include <stdio.h>
#include <string.h>

#include "runtime/model/vit/clt_vit_internal.h"

/* --- architectures --- */

typedef struct {
    int64_t width, depth, heads;
    double mlp_ratio;
} sizes;

static const struct {
    const char *prefix; /* PREFIX_patchP_S, patches of P x P, images of S x S */
    sizes sizes;
} architectures[] = {
    {"vit_tiny", {192, 12, 3, 4}},
    {"vit_small", {384, 12, 6, 4}},
    {"vit_base", {768, 12, 12, 4}},
    {"vit_large", {1024, 24, 16, 4}},
    {"vit_huge", {1280, 32, 16, 4}},
    {"vit_giant", {1408, 40, 16, 48.0 / 11}},
    {"vit_gigantic", {1664, 48, 16, 64.0 / 13}},
    {"deit_tiny", {192, 12, 3, 4}},
    {"deit_small", {384, 12, 6, 4}},
    {"deit_base", {768, 12, 12, 4}},
};

/* False: the name is none of these. */
static bool look_up(const char *name, sizes *out, int64_t *patch, int64_t *image) {
    int p, s, end = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(architectures); i++) {
        const size_t n = strlen(architectures[i].prefix);
        if (strncmp(name, architectures[i].prefix, n) != 0) continue;
        if (sscanf(name + n, "_patch%4d_%5d%n", &p, &s, &end) != 2 || name[n + (size_t)end]) continue;
        *out = architectures[i].sizes;
        *patch = p;
        *image = s;
        return true;
    }
    return false;
}

/* --- the file --- */

typedef struct {
    const char *architecture, *pool;
    int64_t classes, features;
    json_t *pretrained, *args; /* borrowed */
} timm_file;

typedef struct {
    json_t *image; /* borrowed; NULL: not given */
    int64_t patch, classes;
    sizes sizes;
    double drop_path, pos_dropout, attn_dropout;
    bool qkv_bias;
    const char *pool;
} timm_args;

#define FILE_KEY(name, field) CLT_KEY(timm_file, name, field, NULL, "")
static const clt_key file_keys[] = {
    CLT_KEY(timm_file, "architecture", architecture, CLT_KEY_REQUIRED, ""),
    FILE_KEY("global_pool", pool),
    FILE_KEY("num_classes", classes),
    FILE_KEY("num_features", features),
    CLT_KEY_OF(&clt_kind_map, timm_file, "pretrained_cfg", pretrained, "null", "", .nullable = true),
    CLT_KEY_OF(&clt_kind_map, timm_file, "model_args", args, "null", "", .nullable = true),
};
static const clt_schema file_schema = CLT_SCHEMA(file_keys);

#define ARG(name, field) CLT_KEY(timm_args, name, field, NULL, "", .nullable = true)
#define NOT_COMPUTED(name, same) CLT_KEY_REFUSE(name, same, "such a model is not computed here")
static const clt_key arg_keys[] = {
    CLT_KEY_OF(&clt_kind_any, timm_args, "img_size", image, "null", "", .nullable = true),
    ARG("patch_size", patch),
    ARG("embed_dim", sizes.width),
    ARG("depth", sizes.depth),
    ARG("num_heads", sizes.heads),
    ARG("mlp_ratio", sizes.mlp_ratio),
    ARG("num_classes", classes),
    ARG("global_pool", pool),
    ARG("qkv_bias", qkv_bias),
    ARG("drop_path_rate", drop_path),
    ARG("pos_drop_rate", pos_dropout),
    ARG("attn_drop_rate", attn_dropout),
    NOT_COMPUTED("in_chans", "3"),
    NOT_COMPUTED("class_token", "true"),
    NOT_COMPUTED("pos_embed", "\"learn\""),
    NOT_COMPUTED("no_embed_class", "false"),
    NOT_COMPUTED("reg_tokens", "0"),
    NOT_COMPUTED("qk_norm", "false"),
    NOT_COMPUTED("proj_bias", "true"),
    NOT_COMPUTED("pre_norm", "false"),
    NOT_COMPUTED("final_norm", "true"),
    NOT_COMPUTED("fc_norm", "null"),
    NOT_COMPUTED("pool_include_prefix", "false"),
    NOT_COMPUTED("init_values", "null"),
    NOT_COMPUTED("dynamic_img_size", "false"),
    NOT_COMPUTED("dynamic_img_pad", "false"),
    NOT_COMPUTED("drop_rate", "0.0"),
    NOT_COMPUTED("patch_drop_rate", "0.0"),
    NOT_COMPUTED("proj_drop_rate", "0.0"),
};
static const clt_schema arg_schema = CLT_SCHEMA(arg_keys);

bool clt_vit_recognises(const json_t *o) {
    return json_is_string(json_object_get(o, "architecture"));
}

/* A number, or a list that ends with height and width. */
static clt_status square(clt_schema_reader *r, const char *path, const json_t *v, int64_t *side) {
    const size_t n = json_array_size(v);
    const json_t *height = n >= 2 ? json_array_get(v, n - 2) : v,
                 *width = n >= 2 ? json_array_get(v, n - 1) : v;
    *side = json_integer_value(height);
    if (json_is_integer(height) && json_is_integer(width) && json_equal(height, width)) return CLT_OK;
    return clt_schema_fail(r, path, "must be the side of square images");
}

/* What the architecture's name says, which the file's other keys can change. */
static clt_status begin(clt_schema_reader *r, const timm_file *f, timm_args *a, int64_t *image) {
    if (!look_up(f->architecture, &a->sizes, &a->patch, image))
        return clt_schema_fail(
            r, "architecture",
            "is '%.80s', an unknown model of timm (known: vit_SIZE_patchP_S and "
            "deit_SIZE_patchP_S with nothing behind S; SIZE is tiny, small or base, in vit "
            "also large, huge, giant or gigantic)",
            f->architecture);
    a->qkv_bias = true;
    a->classes = f->classes < 0 ? 1000 : f->classes;
    a->pool = f->pool ? f->pool : "token";
    return CLT_OK;
}

static clt_status read_args(clt_schema_reader *r, const timm_file *f, const json_t *pretrained, timm_args *a,
                            int64_t *image) {
    clt_schema_reader strict = *r;
    strict.ignore_unknown = false;
    CLT_TRY(clt_schema_read(&strict, &arg_schema, "model_args", f->args, a));
    const json_t *input = json_object_get(pretrained, "input_size");
    if (input) CLT_TRY(square(r, "pretrained_cfg.input_size", input, image));
    if (a->image) CLT_TRY(square(r, "model_args.img_size", a->image, image));
    if (f->features >= 0 && f->features != a->sizes.width)
        return clt_schema_fail(r, "num_features", "is %lld, but tokens of this architecture have %lld",
                               (long long)f->features, (long long)a->sizes.width);
    return CLT_OK;
}

clt_status clt_vit_from_timm(clt_schema_reader *r, json_t *o, json_t **keys) {
    timm_file f = {.classes = -1, .features = -1};
    timm_args a = {0};
    int64_t image;
    CLT_TRY(clt_schema_read(r, &file_schema, "", o, &f));
    CLT_TRY(begin(r, &f, &a, &image));
    CLT_TRY(read_args(r, &f, f.pretrained ? f.pretrained : o, &a, &image));
    *keys = json_pack("{s:I s:I s:I s:I s:I s:f s:I s:s s:b s:f s:f s:f}", "image_size", (json_int_t)image,
                      "patch_size", (json_int_t)a.patch, "width", (json_int_t)a.sizes.width, "depth",
                      (json_int_t)a.sizes.depth, "heads", (json_int_t)a.sizes.heads, "mlp_ratio",
                      a.sizes.mlp_ratio, "classes", (json_int_t)a.classes, "pooling", a.pool, "qkv_bias",
                      (int)a.qkv_bias, "drop_path", a.drop_path, "pos_dropout", a.pos_dropout, "attn_dropout",
                      a.attn_dropout);
    return CLT_OK;
}
