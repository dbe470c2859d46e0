/* clt_dmath: the few double functions whose results reach the state of a run (schedule, beta^t, ALiBi slopes,
 * rope tables, initial weights). libm's change their last bit with the CPU's features, so these are written
 * out from + - * / sqrt and integers only, and give the same bits everywhere (docs/numerics.md). Results are
 * rounded to fp32 once at the place of use. Relative error below 1e-14 for the stated ranges. */
#ifndef CLT_DMATH_H
#define CLT_DMATH_H

/* Before a function that lives on fma: on x86-64 it is compiled with the processor's instruction for fma,
 * too, and the program's loader picks. Elsewhere, and on old processors, fma is a call of the C library. Both
 * round once. Not with clang: clang 14 makes no symbol that other files can call. */
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
double clt_dlog(double x);           /* x > 0, normal */
double clt_dpow(double x, double y); /* x > 0; exact for integral y up to 64 by repeated products */
double clt_dpowi(double x, long n);  /* x^n by binary powering, n >= 0 */
double clt_dsin(double x);           /* |x| < 1e6 */
double clt_dcos(double x);
double clt_dsqrt(double x); /* IEEE */

#endif
