/* clt_schedule: the learning rate as a pure function of the step, so that a resumed run needs no scheduler
 * state.
 *
 * The formulas are those of Composer's constant, cosine and linear schedulers with warm-up, of LLM Foundry's
 * inverse square root scheduler, and of timm's CosineLRScheduler with one update per step. They are computed
 * in double with clt_dmath only, so every machine gives the same bits. */
#ifndef CLT_SCHEDULE_H
#define CLT_SCHEDULE_H

#include "runtime/train/config/clt_schedule_deepspeed.h"
#include "runtime/train/config/clt_time.h"

typedef enum {
    CLT_SCHEDULE_CONSTANT, /* constant_with_warmup */
    CLT_SCHEDULE_COSINE,   /* cosine_with_warmup */
    CLT_SCHEDULE_LINEAR,   /* linear_decay_with_warmup */
    CLT_SCHEDULE_INV_SQRT, /* inv_sqrt_with_warmup */
    CLT_SCHEDULE_TIMM,     /* timm_cosine */
    CLT_SCHEDULE_DEEPSPEED /* and above: clt_deepspeed_rate_kind: warmup_lr, ... */
} clt_schedule_kind;

/* As the configuration says it. */
typedef struct {
    clt_schedule_kind kind;
    clt_time t_warmup, t_max;
    clt_time t_scale, t_cooldown;           /* inverse square root */
    double alpha;                           /* constant */
    double alpha_i, alpha_f;                /* linear, timm: both; cosine: alpha_f */
    double alpha_f_decay, alpha_f_cooldown; /* inverse square root */
    clt_deepspeed_rate deepspeed;
    double lr; /* DeepSpeed's: the optimizer's, above 0 */
} clt_schedule_config;

/* Resolved: all times are whole numbers of one unit (batches, samples or tokens). */
typedef struct {
    clt_schedule_kind kind;
    clt_time_unit unit;
    int64_t t_warmup, t_max, t_scale, t_cooldown;
    double alpha, alpha_i, alpha_f, alpha_f_decay, alpha_f_cooldown;
    clt_deepspeed_rate deepspeed;
    double lr;
} clt_schedule;

/* Turns times into one unit: "dur" into max_duration's, epochs into batches (batches_per_epoch).
 * CLT_BAD_CONFIG when units differ after that, when t_max ends before max_duration, when a unit is one that
 * no schedule can follow (iter, sec), and for inv_sqrt when a time is given in "dur" or alpha_f_decay <
 * alpha_f_cooldown. */
clt_status clt_schedule_resolve(const clt_schedule_config *c, clt_time max_duration,
                                int64_t batches_per_epoch, clt_schedule *out);

/* The multiplier of the learning rate at time t (in the schedule's unit):
 *   constant  t < tw: alpha * t/tw, then alpha
 *   cosine    t < tw: t/tw, then af + (1 - af) * (1 + cos(pi x))/2 with x = min(1, (t - tw)/(tmax - tw))
 *   linear    t < tw: ai * t/tw, then ai + (af - ai) * x
 *   inv_sqrt  t < tw: t/tw, then, with tcs = max(tw, tmax - tcd) and
 *             d(t) = afd + (1 - afd)/sqrt((t + ts - tw)/ts):
 *             t < tcs: d(t), then a + min(1, (t - tcs)/tcd) * (afc - a) with a = d(tcs), or a when tcd is 0
 *   timm      t < tw: ai + (1 - ai) * t/tw, then af + (1 - af) * (1 + cos(pi x))/2 with x = min(1, t/tmax):
 * the cosine has run since t = 0 when warm-up ends
 */
double clt_schedule_alpha(const clt_schedule *s, int64_t t);

/* The multiplier of the step after `now`. Composer steps its schedulers before it advances its batch counter,
 * so the learning rate lags one step: the time is that before the last batch, which had last_samples and
 * last_tokens (0 before the first one), and steps 1 and 2 both use t = 0 (with warm-up: learning rate 0).
 * Counted, not computed, since batches need not be alike: the last one of an epoch may be short, and a run
 * may resume with another batch size. timm's has no lag: its time is `now`. DeepSpeed's depend on `updates`
 * alone, the number of optimizer steps so far that were not skipped: clt_deepspeed_rate_at divided by lr. */
double clt_schedule_next_alpha(const clt_schedule *s, const clt_timestamp *now, int64_t last_samples,
                               int64_t last_tokens, int64_t updates);

/* The decay rates of Adam's moments for the update after `updates` ones, if the schedule sets them
 * (cycle_momentum of one_cycle); false: it does not. */
bool clt_schedule_betas(const clt_schedule *s, int64_t updates, double betas[2]);

#endif
