/* clt_dmath: the double functions whose results become part of the state of a run (schedule, beta^t, ALiBi
 * slopes, rope tables, initial weights). The last bit of libm's results depends on the CPU. These functions
 * use only + - * / sqrt, fma and integers, so they give the same bits everywhere (docs/numerics.md). Callers
 * round the final result to fp32 once. Arguments must be in the ranges beside the functions; they are not
 * checked. Relative errors are below 1e-15, those of clt_dpow below 1e-15 (1 + |y log x|), and those of
 * clt_dpowi below 1e-15 (1 + n). */
#ifndef CLT_DMATH_H
#define CLT_DMATH_H

/* Marks a function whose time is spent in fma. On x86-64 such a function is compiled twice, with and without
 * the FMA instruction, and the dynamic loader selects one. Without the instruction fma is a call of the C
 * library. Both forms round once, so the bits are the same. clang and the sanitizers get one version without
 * the instruction: clang 14 makes no symbol that other files can call. */
#if defined(__x86_64__) && defined(__has_attribute) && !defined(__clang__) &&                                \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __has_attribute(target_clones)
#define CLT_WITH_FMA __attribute__((target_clones("fma", "default")))
#endif
#endif
#ifndef CLT_WITH_FMA
#define CLT_WITH_FMA
#endif

double clt_dexp(double x);           /* |x| < 700 */
double clt_dlog(double x);           /* natural logarithm; x > 0 and not denormal */
double clt_dpow(double x, double y); /* x^y, |y log x| < 700; any x for whole |y| <= 64 (clt_dpowi) */
double clt_dpowi(double x, long n);  /* x^n by repeated squaring, n >= 0 */
double clt_dsin(double x);           /* radians, |x| < 1e6 */
double clt_dcos(double x);           /* radians, |x| < 1e6 */
double clt_dsqrt(double x);          /* correctly rounded (IEEE 754) */
/* The inverse of the standard normal distribution function, 0 < u < 1 (relative error below 1e-14). */
double clt_dnormal_quantile(double u);

#endif
