/* clt_image_augment: the operations of torchvision's RandAugment on pictures of Pillow, to the same bytes:
 * nearest neighbours, black where nothing was, magnitudes of 31 levels. */
#ifndef CLT_IMAGE_AUGMENT_H
#define CLT_IMAGE_AUGMENT_H

#include "runtime/base/clt_base.h"

/* In torchvision's order. */
typedef enum {
    CLT_AUGMENT_IDENTITY,
    CLT_AUGMENT_SHEAR_X,
    CLT_AUGMENT_SHEAR_Y,
    CLT_AUGMENT_TRANSLATE_X,
    CLT_AUGMENT_TRANSLATE_Y,
    CLT_AUGMENT_ROTATE,
    CLT_AUGMENT_BRIGHTNESS,
    CLT_AUGMENT_COLOR,
    CLT_AUGMENT_CONTRAST,
    CLT_AUGMENT_SHARPNESS,
    CLT_AUGMENT_POSTERIZE,
    CLT_AUGMENT_SOLARIZE,
    CLT_AUGMENT_AUTOCONTRAST,
    CLT_AUGMENT_EQUALIZE,
    CLT_AUGMENTS
} clt_augment;

/* An operation as it is applied; level: 0 to 30. Without a sign (posterize and below, identity) `negative` is
 * ignored. */
typedef struct {
    clt_augment op;
    int level;
    bool negative;
} clt_augment_step;
enum { CLT_AUGMENT_MOST_LEVEL = 30, CLT_AUGMENT_MOST_STEPS = 16 };

/* Its name in torchvision: "ShearX". */
const char *clt_augment_name(clt_augment op);

/* Applies a step to rgb [height, width, 3], sides from 1 to 16384. `other` is memory of the same size, whose
 * bytes are undefined afterwards. */
void clt_image_augment(const clt_augment_step *s, int64_t width, int64_t height, uint8_t *rgb,
                       uint8_t *other);

#endif
