#include "runtime/train/config/clt_schedule_deepspeed.h"

#include <math.h>

#include "runtime/base/clt_dmath.h"

static const double pi = 3.14159265358979323846;

static double warmup_gamma(const clt_deepspeed_rate *p, int64_t i, int64_t n) {
    if (i >= n) return 1.0;
    return p->linear ? (double)i / (double)n : 1.0 / clt_dlog((double)n) * clt_dlog((double)(i + 1));
}

static double warmup_rate(const clt_deepspeed_rate *p, bool decays, int64_t i, int64_t n) {
    double gamma = warmup_gamma(p, i, n);
    if (decays && i >= n) {
        const double left = (double)(p->total_steps - i) / (double)CLT_MAX(p->total_steps - n, (int64_t)1);
        gamma = CLT_MAX(left, 0.0);
    }
    return p->min_lr + (p->max_lr - p->min_lr) * gamma;
}

static double cosine_ratio(const clt_deepspeed_rate *p, int64_t i, int64_t n) {
    if (i < n) return p->warmup_min_ratio + (1.0 - p->warmup_min_ratio) * warmup_gamma(p, i, n);
    const double x = (double)(i - n + 1) / (double)CLT_MAX(p->total_steps - n, (int64_t)1);
    const double wave = (1.0 + clt_dcos(pi * CLT_MIN(x, 1.0))) / 2.0;
    const double ratio = p->cos_min_ratio + (1.0 - p->cos_min_ratio) * wave;
    return CLT_MAX(ratio, 0.0);
}

/* (u/steps), with stairs rounded down to a multiple of 1/stairs. */
static double climb(int64_t u, int64_t steps, int64_t stairs) {
    if (stairs <= 0) return (double)u / (double)steps;
    return floor((double)u * (double)stairs / (double)steps) / (double)stairs;
}

/* Decay intervals since the end of the cycle; 0 within it. */
static double intervals(const clt_deepspeed_rate *p, int64_t u) {
    const int64_t total = p->first_steps + p->second_steps;
    return u > total && p->decay_steps ? (double)(u - total) / (double)p->decay_steps : 0.0;
}

/* 0 at both ends of the cycle and after it, 1 at its top. */
static double height(const clt_deepspeed_rate *p, int64_t u) {
    const int64_t total = p->first_steps + p->second_steps;
    if (u >= total) return 0.0;
    return u <= p->first_steps ? climb(u, p->first_steps, p->first_stairs)
                               : climb(total - u, p->second_steps, p->second_stairs);
}

static double cycle_rate(const clt_deepspeed_rate *p, int64_t u) {
    if (u > p->first_steps + p->second_steps) return p->min_lr / (1.0 + p->decay_rate * intervals(p, u));
    return p->min_lr + (p->max_lr - p->min_lr) * height(p, u);
}

void clt_deepspeed_betas_at(const clt_deepspeed_rate *p, int64_t updates, double betas[2]) {
    const double most = CLT_MAX(p->max_mom, CLT_DEEPSPEED_MOST_MOM),
                 fallen = p->max_mom - (p->max_mom - p->min_mom) * height(p, updates),
                 grown = p->max_mom * (1.0 + p->mom_rate * intervals(p, updates));
    const bool over = updates > p->first_steps + p->second_steps;
    betas[0] = updates == 0 ? p->min_mom : over ? CLT_MIN(grown, most) : fallen;
    betas[1] = 0.99;
}

static double range_rate(const clt_deepspeed_rate *p, int64_t u) {
    const double steps = (double)u / (double)p->range_steps;
    return p->min_lr * (1.0 + p->range_rate * (p->staircase ? floor(steps) : steps));
}

double clt_deepspeed_rate_at(clt_deepspeed_rate_kind kind, const clt_deepspeed_rate *p, double lr,
                             int64_t updates) {
    const int64_t i = updates - 1, n = CLT_MAX(p->warmup_steps, (int64_t)2);
    switch (kind) {
    case CLT_DEEPSPEED_ONE_CYCLE:
        return cycle_rate(p, updates);
    case CLT_DEEPSPEED_RANGE_TEST:
        return range_rate(p, updates);
    case CLT_DEEPSPEED_WARMUP_COSINE:
        return updates == 0 ? 0.0 : lr * cosine_ratio(p, i, n);
    default:
        return updates == 0 ? p->min_lr : warmup_rate(p, kind == CLT_DEEPSPEED_WARMUP_DECAY, i, n);
    }
}
