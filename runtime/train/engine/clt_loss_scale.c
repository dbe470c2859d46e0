#include "runtime/train/engine/clt_loss_scale.h"

#include <float.h>

clt_loss_scale clt_loss_scale_start(const clt_loss_scale_config *c) {
    return (clt_loss_scale){.scale = c->initial, .hysteresis = c->hysteresis};
}

clt_loss_scale clt_loss_scale_resume(const clt_loss_scale_config *c, int rule, clt_loss_scale saved) {
    clt_loss_scale s = clt_loss_scale_start(c);
    if (c->kind == CLT_SCALE_STATIC) return s;
    s.scale = saved.scale;
    if (rule >= 0 && rule != c->kind) return s;
    s.good_steps = saved.good_steps;
    /* Below 1 it has come from a hysteresis of 0, and would never reach 1. */
    const bool fits = saved.hysteresis <= c->hysteresis && (saved.hysteresis >= 1 || c->hysteresis == 0);
    if (fits) s.hysteresis = saved.hysteresis;
    return s;
}

static void grow(clt_loss_scale *s) {
    if (2 * s->scale <= (double)FLT_MAX) s->scale *= 2;
}

static clt_status follow_pytorch(const clt_loss_scale_config *c, clt_loss_scale *s, bool finite) {
    if (!finite) {
        s->good_steps = 0;
        if (s->scale <= c->min) return CLT_FAIL;
        s->scale *= 0.5;
        return CLT_OK;
    }
    if (++s->good_steps < c->window) return CLT_OK;
    s->good_steps = 0;
    grow(s);
    return CLT_OK;
}

static clt_status follow_deepspeed(const clt_loss_scale_config *c, clt_loss_scale *s, bool finite) {
    const bool zero = c->kind == CLT_SCALE_DEEPSPEED;
    if (!finite) {
        s->good_steps = 0;
        if (zero && c->hysteresis != 1 && s->hysteresis != 1) {
            s->hysteresis--;
            return CLT_OK;
        }
        if (zero && s->scale == c->min) return CLT_FAIL;
        s->scale = CLT_MAX(s->scale / 2, c->min);
        return CLT_OK;
    }
    const bool due = s->good_steps > 0 && s->good_steps % c->window == 0;
    if (c->consecutive_hysteresis || due) s->hysteresis = c->hysteresis;
    if (due) grow(s);
    s->good_steps++;
    return CLT_OK;
}

clt_status clt_loss_scale_update(const clt_loss_scale_config *c, clt_loss_scale *s, bool finite) {
    if (c->kind == CLT_SCALE_STATIC) return CLT_OK;
    return c->kind == CLT_SCALE_PYTORCH ? follow_pytorch(c, s, finite) : follow_deepspeed(c, s, finite);
}
