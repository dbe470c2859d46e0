/* clt_schedule_deepspeed: DeepSpeed's learning rates as a pure function of the number of updates made so far.
 * A step that was skipped because a gradient was not finite is no update, as in DeepSpeed. The formulas are
 * those of DeepSpeed 0.19.8. They are computed in double with clt_dmath only, so every machine gives the same
 * bits. */
#ifndef CLT_SCHEDULE_DEEPSPEED_H
#define CLT_SCHEDULE_DEEPSPEED_H

#include "runtime/base/clt_base.h"

typedef enum {
    CLT_DEEPSPEED_WARMUP,        /* WarmupLR */
    CLT_DEEPSPEED_WARMUP_DECAY,  /* WarmupDecayLR */
    CLT_DEEPSPEED_WARMUP_COSINE, /* WarmupCosineLR */
    CLT_DEEPSPEED_ONE_CYCLE,     /* OneCycle */
    CLT_DEEPSPEED_RANGE_TEST     /* LRRangeTest */
} clt_deepspeed_rate_kind;

typedef struct {
    double min_lr, max_lr;                  /* warm-up, cycle; range test: min_lr */
    int64_t warmup_steps, total_steps;      /* at least 1; total_steps: decay and cosine */
    bool linear;                            /* warm-up; false: logarithmic */
    double warmup_min_ratio, cos_min_ratio; /* cosine: of lr */
    int64_t first_steps, second_steps;      /* cycle: up, down; at least 1 */
    int64_t first_stairs, second_stairs;    /* cycle: 0: none */
    int64_t decay_steps;                    /* after the cycle; 0: no decay */
    double decay_rate;
    bool cycle_momentum; /* cycle: it also sets the decay rates of the moments */
    double min_mom, max_mom, mom_rate;
    int64_t range_steps; /* range test; at least 1 */
    double range_rate;
    bool staircase;
} clt_deepspeed_rate;

/* The learning rate of the update after `updates` ones; lr: the optimizer's. Warm-up starts with one more
 * update at the minimum (cosine: at 0), as in DeepSpeed; with i = updates - 1, n = max(2, warmup_steps):
 *   gamma   ln(i + 1)/ln(n), or i/n if linear, for i < n, then 1; lr = min + (max - min) gamma
 *   decay   after warm-up gamma = max(0, (T - i)/max(1, T - n))
 *   cosine  lr times wmin + (1 - wmin) gamma, after warm-up times cmin + (1 - cmin)(1 + cos(pi x))/2 with
 *           x = min(1, (i - n + 1)/max(1, T - n))
 * With u = updates:
 *   cycle   up from min to max in first_steps, down in second_steps, then min/(1 + rate k/decay_steps), k
 *           counted from the end of the cycle; stairs round the way down to a multiple of 1/stairs
 *   range   min (1 + rate u/range_steps), with staircase of whole u/range_steps */
double clt_deepspeed_rate_at(clt_deepspeed_rate_kind kind, const clt_deepspeed_rate *p, double lr,
                             int64_t updates);

/* The betas of that update with cycle_momentum: beta2 is 0.99, beta1 min_mom in the first update, then it
 * goes down from max_mom to min_mom and up again as the learning rate goes up and down, and after the cycle
 * grows as max_mom (1 + mom_rate k/decay_steps) (it stays with decay_steps 0). In DeepSpeed it passes 1,
 * where Adam's correction 1 - beta1^t changes its sign; here it ends at CLT_DEEPSPEED_MOST_MOM, or at max_mom
 * if that is larger. */
#define CLT_DEEPSPEED_MOST_MOM 0.999
void clt_deepspeed_betas_at(const clt_deepspeed_rate *p, int64_t updates, double betas[2]);

#endif
