/* clt_loss_scale: the dynamic loss scale of precision amp_fp16, with the rule of PyTorch's GradScaler. The
 * loss is multiplied by the scale before the backward pass, so that small gradients do not underflow in 16
 * bits; gradients are divided by it before the optimizer. If a gradient is not finite, the scale was too
 * large: the step is skipped and the scale is halved. After 2,000 consecutive good steps it is doubled.
 * Scales are powers of two, so scaling is exact. */
#ifndef CLT_LOSS_SCALE_H
#define CLT_LOSS_SCALE_H

#include "runtime/base/clt_base.h"

enum { CLT_LOSS_SCALE_GROWTH_INTERVAL = 2000 };
#define CLT_LOSS_SCALE_LEAST 0x1p-16

typedef struct {
    double scale;
    int64_t good_steps; /* since the last change of the scale */
} clt_loss_scale;

/* Scale 65,536, no good steps. */
clt_loss_scale clt_loss_scale_default(void);
/* Updates the scale after a step whose gradients were finite, or not. CLT_FAIL, without a message, if they
 * were not although the scale is CLT_LOSS_SCALE_LEAST: then the scale is not the reason, and it stays. */
clt_status clt_loss_scale_update(clt_loss_scale *s, bool finite);

#endif
