/* 8-bit floating point in plain C: from fp32 to a code and back. */
#include <math.h>

#include "runtime/ops/ref/clt_ref.h"

enum { SIGN = 0x80, E5M2_INFINITY = 0x7c };

/* The code of a NaN, without sign for the OCP formats: what the package ml_dtypes writes. */
static int nan_code(clt_fp8 format) {
    return clt_fp8_table[format].fnuz ? SIGN : format == CLT_FP8_E5M2 ? 0x7e : 0x7f;
}

/* The value in units of the last place of a code of its magnitude; nearbyint rounds ties to even. */
uint8_t clt_ref_f32_to_fp8(clt_fp8 format, float x) {
    const clt_fp8_row *f = &clt_fp8_table[format];
    const int sign = signbit(x) ? SIGN : 0;
    if (isnan(x)) return (uint8_t)(f->fnuz ? SIGN : sign | nan_code(format));
    const double a = fmin(fabs((double)x), (double)f->largest);
    const int least = 1 - f->bias; /* the exponent of the smallest normal code, and of denormal ones */
    const int e = a < ldexp(1.0, least) ? least : ilogb(a);
    const int units = (int)nearbyint(ldexp(a, f->mantissa - e));
    /* denormal codes count units; each further exponent adds 2^mantissa codes */
    const int code = units + ((e - least) << f->mantissa);
    return (uint8_t)(f->fnuz && code == 0 ? 0 : sign | code);
}

float clt_ref_fp8_to_f32(clt_fp8 format, uint8_t code) {
    const clt_fp8_row *f = &clt_fp8_table[format];
    const int a = code & 0x7f, e = a >> f->mantissa, m = a & ((1 << f->mantissa) - 1);
    const float sign = code & SIGN ? -1.0f : 1.0f;
    if (f->fnuz ? code == SIGN : a > (format == CLT_FP8_E5M2 ? E5M2_INFINITY : 0x7e))
        return copysignf(NAN, sign);
    if (format == CLT_FP8_E5M2 && a == E5M2_INFINITY) return sign * INFINITY;
    const int whole = e ? (1 << f->mantissa) + m : m;
    return sign * (float)ldexp(whole, (e ? e : 1) - f->bias - f->mantissa);
}
