/* clt_clc: the part of OpenCL C that clkernels/include uses, as C11, so that the oracle compiles the same
 * text as the kernels. Include it before a .clh file and after any header that uses fma, sqrt or clt_log in
 * their C meaning: macros below replace these names. The file that includes it must be compiled with
 * -ffp-contract=off. */
#ifndef CLT_CLC_H
#define CLT_CLC_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h> /* uint, ulong */

static inline float as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* In OpenCL C these are overloaded; here they are the fp32 functions. They are defined after <math.h>, whose
 * declarations need the original names. */
#define fma(a, b, c) fmaf(a, b, c)
#define sqrt(x) sqrtf(x)
/* The logarithm of clt_math.clh, not the message log of clt_log.h (included before, if at all). */
#define clt_log clt_log_f32

#endif
