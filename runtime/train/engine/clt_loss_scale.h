/* clt_loss_scale: the dynamic loss scale of precision amp_fp16, by the rule of torch's GradScaler. The loss
 * is multiplied by the scale before backward, so that small gradients do not vanish in 16 bits, and gradients
 * are divided by it before the optimizer. A gradient that is not finite means that the scale was too large:
 * the step is left out and the scale halved; after 2,000 good steps in a row it is doubled. Every scale is a
 * power of two, so scaling rounds nothing. */
#ifndef CLT_LOSS_SCALE_H
#define CLT_LOSS_SCALE_H

#include "runtime/base/clt_base.h"

enum { CLT_LOSS_SCALE_GROWTH_INTERVAL = 2000 };
#define CLT_LOSS_SCALE_LEAST 0x1p-16

typedef struct {
    double scale;
    int64_t good_steps; /* since the scale changed last */
} clt_loss_scale;

/* 65,536, no good step yet. */
clt_loss_scale clt_loss_scale_default(void);
/* After a step whose gradients were finite, or were not. CLT_FAIL, without a message, when the scale was so
 * low (CLT_LOSS_SCALE_LEAST) that it cannot be the reason: it stays there. */
clt_status clt_loss_scale_update(clt_loss_scale *s, bool finite);

#endif
