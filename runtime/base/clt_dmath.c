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

/* Wichura, algorithm AS 241 (PPND16), Applied Statistics 37 (1988). */
static double horner(const double *c, int n, double x) {
    double p = c[n - 1];
    for (int i = n - 2; i >= 0; i--) p = fma(p, x, c[i]);
    return p;
}

CLT_WITH_FMA double clt_dnormal_quantile(double u) {
    static const double a[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                               1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                               3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double b[] = {1.0,
                               4.2313330701600911252e+1,
                               6.8718700749205790830e+2,
                               5.3941960214247511077e+3,
                               2.1213794301586595867e+4,
                               3.9307895800092710610e+4,
                               2.8729085735721942674e+4,
                               5.2264952788528545610e+3};
    static const double c[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                               3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                               2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[] = {1.0,
                               2.05319162663775882187e0,
                               1.67638483018380384940e0,
                               6.89767334985100004550e-1,
                               1.48103976427480074590e-1,
                               1.51986665636164571966e-2,
                               5.47593808499534494600e-4,
                               1.05075007164441684324e-9};
    static const double e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                               1.78482653991729133580e0,  2.96560571828504891230e-1,
                               2.65321895265761230930e-2, 1.24266094738807843860e-3,
                               2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[] = {1.0,
                               5.99832206555887937690e-1,
                               1.36929880922735805310e-1,
                               1.48753612908506148525e-2,
                               7.86869131145613259100e-4,
                               1.84631831751005468180e-5,
                               1.42151175831644588870e-7,
                               2.04426310338993978564e-15};
    double q = u - 0.5;
    if (fabs(q) <= 0.425) {
        double r = 0.180625 - q * q;
        return q * horner(a, 8, r) / horner(b, 8, r);
    }
    double r = clt_dsqrt(-clt_dlog(q < 0 ? u : 1.0 - u)), x;
    if (r <= 5.0)
        x = horner(c, 8, r - 1.6) / horner(d, 8, r - 1.6);
    else
        x = horner(e, 8, r - 5.0) / horner(f, 8, r - 5.0);
    return q < 0 ? -x : x;
}
