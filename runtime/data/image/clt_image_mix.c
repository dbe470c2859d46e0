#include "runtime/data/image/clt_image_mix.h"

#include "runtime/base/clt_dmath.h"
#include "runtime/base/clt_philox.h"

/* The counter's last value; two numbers each. The tries of Beta follow. */
enum { CHOICE_KIND, CHOICE_BOX, CHOICE_BETA };

static void draw(const clt_image_mix_params *p, int64_t epoch, int64_t batch, uint32_t choice, double u[2]) {
    uint32_t key[2], r[4];
    const uint32_t counter[4] = {(uint32_t)batch, (uint32_t)((uint64_t)batch >> 32), (uint32_t)epoch, choice};
    clt_philox_key(p->seed, CLT_RNG_MIX, key);
    clt_philox4x32(counter, key, r);
    u[0] = clt_philox_double(r[1], r[0]);
    u[1] = clt_philox_double(r[3], r[2]);
}

/* --- Beta --- */

static double open_interval(double u) {
    return u + 0x1p-54; /* in (0, 1) */
}

static double exp_or_0(double x) {
    const double least = -600;
    return x < least ? 0 : clt_dexp(x);
}

/* Joehnk's method, for alpha <= 1: x = u^(1/alpha) and y likewise with x + y <= 1 give x / (x + y). By
 * logarithms, because both may be too small for a double. */
static bool try_small(double alpha, const double u[2], double *out) {
    const double x = clt_dlog(open_interval(u[0])) / alpha, y = clt_dlog(open_interval(u[1])) / alpha;
    if (exp_or_0(x) + exp_or_0(y) > 1) return false;
    *out = x >= y ? 1 / (1 + exp_or_0(y - x)) : exp_or_0(x - y) / (1 + exp_or_0(x - y));
    return true;
}

/* Marsaglia and Tsang's method for Gamma(alpha), alpha > 1. */
static bool try_gamma(double alpha, const double u[2], double *out) {
    const double d = alpha - 1.0 / 3, c = 1 / clt_dsqrt(9 * d), x = clt_dnormal_quantile(open_interval(u[0])),
                 v = 1 + c * x;
    if (v <= 0) return false;
    const double v3 = v * v * v;
    *out = d * v3;
    return clt_dlog(open_interval(u[1])) < x * x / 2 + d - d * v3 + d * clt_dlog(v3);
}

double clt_image_beta(const clt_image_mix_params *p, int64_t epoch, int64_t batch, double alpha) {
    enum { TRIES = 1000 }; /* of which a few are needed */
    double u[2], gamma[2] = {1, 1};
    int have = 0;
    for (uint32_t k = 0; k < TRIES && have < 2; k++) {
        draw(p, epoch, batch, CHOICE_BETA + k, u);
        if (alpha > 1) {
            have += try_gamma(alpha, u, &gamma[have]);
        } else {
            double lam;
            if (try_small(alpha, u, &lam)) return lam;
        }
    }
    return gamma[0] / (gamma[0] + gamma[1]);
}

/* --- decisions --- */

bool clt_image_mixes(const clt_image_mix_params *p) {
    return p->prob > 0 && (p->mixup > 0 || p->cutmix > 0);
}

/* A box of side size * sqrt(1 - lam) around a random centre, clipped; lam becomes what it leaves. */
static void choose_box(clt_image_mix *m, int64_t size, const double u[2]) {
    const int64_t half = (int64_t)((double)size * clt_dsqrt(1 - m->lam)) / 2;
    const int64_t y = (int64_t)(u[0] * (double)size), x = (int64_t)(u[1] * (double)size);
    m->top = CLT_MAX(y - half, 0);
    m->bottom = CLT_MIN(y + half, size);
    m->left = CLT_MAX(x - half, 0);
    m->right = CLT_MIN(x + half, size);
    const int64_t area = (m->bottom - m->top) * (m->right - m->left);
    m->lam = 1 - (double)area / (double)(size * size);
}

clt_image_mix clt_image_mix_of(const clt_image_mix_params *p, int64_t epoch, int64_t batch, int64_t size) {
    clt_image_mix m = {.lam = 1};
    double u[2];
    if (!clt_image_mixes(p)) return m;
    draw(p, epoch, batch, CHOICE_KIND, u);
    if (u[0] >= p->prob) return m;
    m.cut = p->cutmix > 0 && (p->mixup <= 0 || u[1] < p->switch_prob);
    m.lam = clt_image_beta(p, epoch, batch, m.cut ? p->cutmix : p->mixup);
    if (!m.cut) return m;
    draw(p, epoch, batch, CHOICE_BOX, u);
    choose_box(&m, size, u);
    return m;
}

/* --- pixels and labels --- */

static void swap_box(const clt_image_mix *m, int64_t size, float *x, float *y, bool only_x) {
    for (int64_t c = 0; c < 3; c++)
        for (int64_t i = m->top; i < m->bottom; i++)
            for (int64_t k = m->left; k < m->right; k++) {
                const int64_t at = (c * size + i) * size + k;
                const float v = x[at];
                x[at] = y[at];
                if (!only_x) y[at] = v;
            }
}

void clt_image_mix_pixels(const clt_image_mix *m, int64_t size, float *x, float *y, bool only_x) {
    const float lam = (float)m->lam, rest = (float)(1 - m->lam);
    if (m->cut) {
        swap_box(m, size, x, y, only_x);
        return;
    }
    for (int64_t i = 0; i < 3 * size * size; i++) {
        const float a = x[i], b = y[i];
        x[i] = a * lam + b * rest;
        if (!only_x) y[i] = b * lam + a * rest;
    }
}

void clt_image_targets(double lam, double smoothing, int64_t classes, int64_t a, int64_t b, float *out) {
    const float low = (float)(smoothing / (double)classes),
                high = (float)(1 - smoothing + smoothing / (double)classes), own = (float)lam,
                rest = (float)(1 - lam);
    for (int64_t i = 0; i < classes; i++) {
        const float x = i == a ? high : low, y = i == b ? high : low;
        out[i] = lam == 1 ? x : x * own + y * rest;
    }
}
