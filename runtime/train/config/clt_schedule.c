#include "runtime/train/config/clt_schedule.h"

#include "runtime/base/clt_dmath.h"

static const double pi = 3.14159265358979323846;

static clt_status resolve_one(clt_time t, clt_time max_duration, int64_t batches_per_epoch, const char *what,
                              clt_time_unit unit, int64_t *out) {
    clt_time r;
    CLT_TRY(clt_time_resolve(t, max_duration, batches_per_epoch, what, &r));
    if (r.unit != unit)
        return clt_error(
            CLT_BAD_CONFIG,
            "%s is counted in %s and scheduler.t_max in %s: give both in the same unit, or in dur", what,
            clt_time_unit_name(r.unit), clt_time_unit_name(unit));
    *out = r.value;
    return CLT_OK;
}

static clt_status check_inv_sqrt(const clt_schedule_config *c, clt_time max_duration) {
    const struct {
        clt_time t;
        const char *name;
    } own[] = {{c->t_warmup, "t_warmup"}, {c->t_scale, "t_scale"}, {c->t_cooldown, "t_cooldown"}};
    for (size_t i = 0; i < CLT_COUNT_OF(own); i++) {
        if (own[i].t.unit == CLT_TIME_DURATION)
            return clt_error(CLT_BAD_CONFIG,
                             "scheduler.%s cannot be given in dur with inv_sqrt_with_warmup: use the unit of "
                             "max_duration (%s)",
                             own[i].name, clt_time_unit_name(max_duration.unit));
        if (own[i].t.unit != max_duration.unit)
            return clt_error(
                CLT_BAD_CONFIG,
                "scheduler.%s is in %s, but inv_sqrt_with_warmup needs the unit of max_duration (%s)",
                own[i].name, clt_time_unit_name(own[i].t.unit), clt_time_unit_name(max_duration.unit));
    }
    if (c->alpha_f_decay < c->alpha_f_cooldown)
        return clt_error(CLT_BAD_CONFIG,
                         "scheduler.alpha_f_decay %g must not be below scheduler.alpha_f_cooldown %g",
                         c->alpha_f_decay, c->alpha_f_cooldown);
    if (c->t_scale.value <= 0) return clt_error(CLT_BAD_CONFIG, "scheduler.t_scale must be above 0");
    return CLT_OK;
}

/* t_max in the unit of max_duration must not end before it. */
static clt_status check_end(const clt_schedule *s, clt_time max_duration, int64_t batches_per_epoch) {
    clt_time end = max_duration;
    if (end.unit == CLT_TIME_EPOCH)
        CLT_TRY(clt_time_resolve(end, max_duration, batches_per_epoch, "max_duration", &end));
    if (end.unit == s->unit && s->t_max < end.value)
        return clt_error(
            CLT_BAD_CONFIG,
            "scheduler.t_max (%lld %s) ends before max_duration (%lld %s): raise or remove t_max",
            (long long)s->t_max, clt_time_unit_name(s->unit), (long long)end.value,
            clt_time_unit_name(s->unit));
    return CLT_OK;
}

clt_status clt_schedule_resolve(const clt_schedule_config *c, clt_time max_duration,
                                int64_t batches_per_epoch, clt_schedule *out) {
    clt_schedule s = {.kind = c->kind,
                      .alpha = c->alpha,
                      .alpha_i = c->alpha_i,
                      .alpha_f = c->alpha_f,
                      .alpha_f_decay = c->alpha_f_decay,
                      .alpha_f_cooldown = c->alpha_f_cooldown,
                      .deepspeed = c->deepspeed,
                      .lr = c->lr};
    if (c->kind >= CLT_SCHEDULE_DEEPSPEED) { /* counts updates, whatever max_duration is */
        *out = s;
        return CLT_OK;
    }
    if (c->kind == CLT_SCHEDULE_INV_SQRT) CLT_TRY(check_inv_sqrt(c, max_duration));
    clt_time end;
    CLT_TRY(clt_time_resolve(c->t_max, max_duration, batches_per_epoch, "scheduler.t_max", &end));
    if (end.unit == CLT_TIME_ITERATION || end.unit == CLT_TIME_SECOND)
        return clt_error(CLT_BAD_CONFIG,
                         "scheduler.t_max in %s: a schedule follows batches, samples, tokens or epochs",
                         clt_time_unit_name(end.unit));
    s.unit = end.unit;
    s.t_max = end.value;
    CLT_TRY(
        resolve_one(c->t_warmup, max_duration, batches_per_epoch, "scheduler.t_warmup", s.unit, &s.t_warmup));
    if (c->kind == CLT_SCHEDULE_INV_SQRT) {
        CLT_TRY(resolve_one(c->t_scale, max_duration, batches_per_epoch, "scheduler.t_scale", s.unit,
                            &s.t_scale));
        CLT_TRY(resolve_one(c->t_cooldown, max_duration, batches_per_epoch, "scheduler.t_cooldown", s.unit,
                            &s.t_cooldown));
    }
    CLT_TRY(check_end(&s, max_duration, batches_per_epoch));
    *out = s;
    return CLT_OK;
}

/* As in Composer nothing has passed of a span that is empty (a warm-up up to t_max or beyond it). */
static double fraction(int64_t t, int64_t from, int64_t to) {
    if (to <= from) return 0.0;
    double x = (double)(t - from) / (double)(to - from);
    return CLT_MIN(x, 1.0);
}

static double inv_sqrt_decay(const clt_schedule *s, int64_t t) {
    double tau = (double)(t + s->t_scale - s->t_warmup) / (double)s->t_scale;
    return s->alpha_f_decay + 1.0 / clt_dsqrt(tau) * (1.0 - s->alpha_f_decay);
}

static double inv_sqrt_alpha(const clt_schedule *s, int64_t t) {
    int64_t cooldown_start = CLT_MAX(s->t_warmup, s->t_max - s->t_cooldown);
    if (t < cooldown_start) return inv_sqrt_decay(s, t);
    double a = inv_sqrt_decay(s, cooldown_start);
    if (s->t_cooldown == 0) return a;
    return a + fraction(t, cooldown_start, cooldown_start + s->t_cooldown) * (s->alpha_f_cooldown - a);
}

static double timm_alpha(const clt_schedule *s, int64_t t) {
    if (t < s->t_warmup) return s->alpha_i + (1.0 - s->alpha_i) * fraction(t, 0, s->t_warmup);
    return s->alpha_f + (1.0 - s->alpha_f) * ((1.0 + clt_dcos(pi * fraction(t, 0, s->t_max))) / 2.0);
}

double clt_schedule_alpha(const clt_schedule *s, int64_t t) {
    if (s->kind == CLT_SCHEDULE_TIMM) return timm_alpha(s, t);
    if (t < s->t_warmup) {
        double peak = s->kind == CLT_SCHEDULE_CONSTANT ? s->alpha
                      : s->kind == CLT_SCHEDULE_LINEAR ? s->alpha_i
                                                       : 1.0;
        return fraction(t, 0, s->t_warmup) * peak;
    }
    switch (s->kind) {
    case CLT_SCHEDULE_COSINE:
        return s->alpha_f +
               (1.0 - s->alpha_f) * ((1.0 + clt_dcos(pi * fraction(t, s->t_warmup, s->t_max))) / 2.0);
    case CLT_SCHEDULE_LINEAR:
        return s->alpha_i + fraction(t, s->t_warmup, s->t_max) * (s->alpha_f - s->alpha_i);
    case CLT_SCHEDULE_INV_SQRT:
        return inv_sqrt_alpha(s, t);
    default:
        return s->alpha;
    }
}

double clt_schedule_next_alpha(const clt_schedule *s, const clt_timestamp *now, int64_t last_samples,
                               int64_t last_tokens, int64_t updates) {
    if (s->kind >= CLT_SCHEDULE_DEEPSPEED)
        return clt_deepspeed_rate_at((clt_deepspeed_rate_kind)(s->kind - CLT_SCHEDULE_DEEPSPEED),
                                     &s->deepspeed, s->lr, updates) /
               s->lr;
    if (s->kind == CLT_SCHEDULE_TIMM) return clt_schedule_alpha(s, clt_timestamp_get(now, s->unit));
    const clt_timestamp before = {.batch = CLT_MAX(now->batch - 1, (int64_t)0),
                                  .sample = now->sample - last_samples,
                                  .token = now->token - last_tokens};
    return clt_schedule_alpha(s, clt_timestamp_get(&before, s->unit));
}

bool clt_schedule_betas(const clt_schedule *s, int64_t updates, double betas[2]) {
    if (s->kind != CLT_SCHEDULE_DEEPSPEED + CLT_DEEPSPEED_ONE_CYCLE || !s->deepspeed.cycle_momentum)
        return false;
    clt_deepspeed_betas_at(&s->deepspeed, updates, betas);
    return true;
}
