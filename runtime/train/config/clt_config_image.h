/* Rows of train_loader.dataset and eval_loader.dataset for the loader `image`. Internal. */
#ifndef CLT_CONFIG_IMAGE_H
#define CLT_CONFIG_IMAGE_H

#include "runtime/train/config/clt_config_internal.h"

extern const clt_kind clt_kind_rgb, /* double[3] */
    clt_kind_span;                  /* double[2], from the smaller to the larger one, above 0 */

#define CLT_IMAGE_KEY(name, field, def, help, ...)                                                           \
    CLT_KEY(clt_loader_config, name, image.field, def, "image: " help, __VA_ARGS__)
#define CLT_IMAGE_KEY_OF(kind, name, field, def, help)                                                       \
    CLT_KEY_OF(&clt_kind_##kind, clt_loader_config, name, image.field, def, "image: " help)
/* What training and evaluation have. */
#define CLT_CONFIG_IMAGE_ROWS                                                                                \
    CLT_IMAGE_KEY("image_size", size, "null", "height and width that a model reads; default: the model's",   \
                  .nullable = true),                                                                         \
        CLT_IMAGE_KEY("classes", classes, "null", "labels are below this; default: the model's",             \
                      .nullable = true),                                                                     \
        CLT_IMAGE_KEY_OF(rgb, "mean", mean, "[0.485, 0.456, 0.406]",                                         \
                         "subtracted from red, green and blue, which lie between 0 and 1"),                  \
        CLT_IMAGE_KEY_OF(rgb, "std", std, "[0.229, 0.224, 0.225]", "that the differences are divided by"),   \
        CLT_IMAGE_KEY(                                                                                       \
            "crop_pct", crop_pct, "0.875",                                                                   \
            "the shorter side is resized to image_size divided by this, then the centre is taken"),          \
        CLT_IMAGE_KEY("max_image_pixels", max_pixels, "67108864",                                            \
                      "width times height above which a picture is refused"),                                \
        CLT_IMAGE_KEY("decode_threads", threads, "0",                                                        \
                      "threads of a rank that decode pictures, at most 16; 0: one for each CPU")
/* What training has, too. */
#define CLT_CONFIG_AUGMENT_ROWS                                                                              \
    CLT_IMAGE_KEY("random_resized_crop", random_crop, "false",                                               \
                  "a random part is resized to image_size, instead of crop_pct"),                            \
        CLT_IMAGE_KEY_OF(span, "scale", scale, "[0.08, 1.0]", "random part: its area, of the picture's"),    \
        CLT_IMAGE_KEY_OF(span, "ratio", ratio, "[0.75, 1.3333333333333333]",                                 \
                         "random part: its width divided by its height"),                                    \
        CLT_IMAGE_KEY("hflip", flip, "0.0", "probability that left and right are exchanged"),                \
        CLT_IMAGE_KEY("randaugment", augment, "0",                                                           \
                      "operations of torchvision's RandAugment for each picture, at most 16 (num_ops)"),     \
        CLT_IMAGE_KEY("randaugment_magnitude", augment_level, "9",                                           \
                      "their magnitude, 0 to 30 (magnitude, of 31 bins)"),                                   \
        CLT_IMAGE_KEY("label_smoothing", smoothing, "0.0",                                                   \
                      "part of a label that is spread over all classes"),                                    \
        CLT_IMAGE_KEY("mixup", mixup, "0.0",                                                                 \
                      "alpha of mixup: pairs of pictures and labels are mixed by Beta(alpha, alpha)"),       \
        CLT_IMAGE_KEY("cutmix", cutmix, "0.0", "alpha of cutmix: a box of each picture is its partner's"),   \
        CLT_IMAGE_KEY("mixup_prob", mix_prob, "1.0", "probability that mixup or cutmix change a batch"),     \
        CLT_IMAGE_KEY("mixup_switch_prob", switch_prob, "0.5",                                               \
                      "probability of cutmix where mixup is on, too")

/* What a loader says beyond its table, once the model and max_seq_len are known: ranges, keys of the other
 * kind of loader, and the defaults that the model has. `path` is the loader's. */
clt_status clt_config_check_image(clt_schema_reader *r, clt_config *c, const char *path, bool eval,
                                  clt_loader_config *l);

/* The part of clt_config_loader_params that is about this loader. */
clt_image_params clt_config_image_params(const clt_loader_config *l);

#endif
