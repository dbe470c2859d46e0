#include "runtime/base/clt_dmath.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Bits are defined because only + - * / sqrt, fma, comparisons and integers are used. fma is correctly
 * rounded, whether the C library or the CPU computes it. */

static double from_bits(uint64_t u) {
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static uint64_t to_bits(double d) {
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

static double pow2i(int n) {
    return from_bits((uint64_t)(n + 1023) << 52);
} /* -1022 <= n <= 1023 */

static const double LN2_HI = 0x1.62e42fefa0000p-1, LN2_LO = 0x1.cf79abc9e3b3ap-40;

double clt_dexp(double x) {
    double k = floor(fma(x, 0x1.71547652b82fep+0, 0.5));
    double r = fma(-k, LN2_LO, fma(-k, LN2_HI, x));
    /* Taylor series to r^14/14!: |r| <= 0.347, the remainder is below 2e-19 */
    double p = 1.0;
    for (int i = 14; i >= 1; i--) p = fma(p * r, 1.0 / i, 1.0);
    int n = (int)k, half = n / 2;
    return p * pow2i(half) * pow2i(n - half);
}

CLT_WITH_FMA double clt_dlog(double x) {
    uint64_t u = to_bits(x);
    int e = (int)(u >> 52) - 1023;
    double m = from_bits((u & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    /* log m = 2 atanh(s), s = (m-1)/(m+1), |s| <= 0.1716 */
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.0;
    for (int i = 23; i >= 3; i -= 2) p = fma(p, z, 1.0 / i);
    double r = fma(2.0 * s * z, p, 2.0 * s);
    return fma((double)e, LN2_HI, fma((double)e, LN2_LO, r));
}

double clt_dpowi(double x, long n) {
    double r = 1.0;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) r *= x;
    return r;
}

double clt_dpow(double x, double y) {
    if (y == floor(y) && y >= 0 && y <= 64) return clt_dpowi(x, (long)y);
    if (y == floor(y) && y < 0 && y >= -64) return 1.0 / clt_dpowi(x, (long)-y);
    return clt_dexp(y * clt_dlog(x));
}

/* x = quadrant * pi/2 + r with r in [-pi/4, pi/4]. */
static void reduce(double x, double *r, int *quadrant) {
    static const double P1 = 0x1.921fb54400000p+0, P2 = 0x1.0b4611a600000p-34, P3 = 0x1.3198a2e037073p-69;
    double k = floor(fma(x, 0x1.45f306dc9c883p-1, 0.5));
    *r = fma(-k, P3, fma(-k, P2, fma(-k, P1, x)));
    *quadrant = (int)((int64_t)k & 3);
}

static double sin_series(double r) {
    double z = r * r, p = 1.0;
    for (int i = 20; i >= 2; i -= 2) p = fma(-p * z, 1.0 / (i * (i + 1)), 1.0);
    return r * p;
}

static double cos_series(double r) {
    double z = r * r, p = 1.0;
    for (int i = 20; i >= 2; i -= 2) p = fma(-p * z, 1.0 / (i * (i - 1)), 1.0);
    return p;
}

double clt_dsin(double x) {
    double r;
    int q;
    reduce(x, &r, &q);
    double v = q & 1 ? cos_series(r) : sin_series(r);
    return q & 2 ? -v : v;
}

double clt_dcos(double x) {
    double r;
    int q;
    reduce(x, &r, &q);
    double v = q & 1 ? sin_series(r) : cos_series(r);
    return q == 1 || q == 2 ? -v : v;
}

double clt_dsqrt(double x) {
    return sqrt(x);
}
