#include "runtime/train/engine/clt_loss_scale.h"

#include <float.h>

clt_loss_scale clt_loss_scale_default(void) {
    return (clt_loss_scale){.scale = 65536};
}

clt_status clt_loss_scale_update(clt_loss_scale *s, bool finite) {
    if (!finite) {
        s->good_steps = 0;
        if (s->scale <= CLT_LOSS_SCALE_LEAST) return CLT_FAIL;
        s->scale *= 0.5;
        return CLT_OK;
    }
    if (++s->good_steps < CLT_LOSS_SCALE_GROWTH_INTERVAL) return CLT_OK;
    s->good_steps = 0;
    if (2 * s->scale <= (double)FLT_MAX) s->scale *= 2;
    return CLT_OK;
}
