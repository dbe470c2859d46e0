#include "clt_loss_scale.h"

#include <float.h>

clt_loss_scale clt_loss_scale_default(void) {
    return (clt_loss_scale){.scale = 65536};
}

clt_status clt_loss_scale_update(clt_loss_scale *s, bool finite) {
    if (!finite) {
        s->scale *= 0.5;
        s->good_steps = 0;
        return s->scale < 0x1p-16 ? CLT_FAIL : CLT_OK;
    }
    if (++s->good_steps < CLT_LOSS_SCALE_GROWTH_INTERVAL) return CLT_OK;
    s->good_steps = 0;
    if (2 * s->scale <= (double)FLT_MAX) s->scale *= 2;
    return CLT_OK;
}
