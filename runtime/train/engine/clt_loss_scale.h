/* clt_loss_scale: the loss scale of precision amp_fp16, with the rule of PyTorch's GradScaler or of DeepSpeed
 * 0.19.8. The loss is multiplied by the scale before the backward pass, so that small gradients do not
 * underflow in 16 bits; gradients are divided by it before the optimizer. If a gradient is not finite, the
 * scale was too large: the step is skipped. Scales are powers of two unless the configuration says otherwise,
 * so scaling is exact. The scale changes, from its initial value and never above FLT_MAX, by the rule
 *   pytorch      an overflow halves it; `window` consecutive good steps double it
 *   deepspeed    an overflow halves it, but not below min, after hysteresis - 1 ones that only count; with
 *                consecutive_hysteresis any good step sets the count back. With k good steps since the start
 *                or the last overflow, the next good step doubles it and sets the count back if k is a
 *                positive multiple of `window`. hysteresis 0: no overflow changes it
 *   deepspeed_0  the same without hysteresis, and an overflow at min is no failure
 *   static       never */
#ifndef CLT_LOSS_SCALE_H
#define CLT_LOSS_SCALE_H

#include "runtime/train/config/clt_config.h"

#define CLT_LOSS_SCALE_LEAST 0x1p-16 /* of any rule */

typedef struct {
    double scale;
    int64_t good_steps; /* pytorch: since the last change of the scale; deepspeed: since the last overflow */
    int64_t hysteresis; /* deepspeed: what is left of it */
} clt_loss_scale;

/* Before the first step. */
clt_loss_scale clt_loss_scale_start(const clt_loss_scale_config *c);
/* Where a resumed run starts that `saved` is the state of. `rule` is the clt_loss_scale_kind that saved it;
 * -1: the same. The scale keeps its value (static: takes the configuration's), whatever `initial` and `min`
 * are now. With the same rule the counts keep theirs, and another window or hysteresis applies to them: a
 * count of good steps above pytorch's new window doubles the scale after the next good step, and what is left
 * of the hysteresis is at most the new one. With another rule the counts start at 0. */
clt_loss_scale clt_loss_scale_resume(const clt_loss_scale_config *c, int rule, clt_loss_scale saved);
/* Updates the scale after a step whose gradients were finite, or not. CLT_FAIL, without a message, if they
 * were not although the scale is at its least value: then the scale is not the reason, and it stays. */
clt_status clt_loss_scale_update(const clt_loss_scale_config *c, clt_loss_scale *s, bool finite);

#endif
