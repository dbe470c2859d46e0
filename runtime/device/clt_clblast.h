/* clt_clblast: the fp32 matrix product of the CLBlast library, if it is installed. The library is optional
 * and loaded at the first use: a row of the GEMM variant table for `numerics: fast`, and a comparison in
 * clbench. It compiles its kernels at the first call of a process and may allocate scratch buffers. */
#ifndef CLT_CLBLAST_H
#define CLT_CLBLAST_H

#include "runtime/device/clt_device.h"

/* Whether libclblast.so.1 can be loaded. */
bool clt_clblast_available(void);

/* Row-major c = alpha * op(a) * op(b) + beta * c, c [m,n], all fp32. op(a) is [m,k]: a is [m,k], or with
 * trans_a [k,m] and transposed. op(b) is [k,n]: b is [k,n], or with trans_b [n,k] and transposed. ld*:
 * distance from a row of the stored matrix to the next, in elements. The call is queued on dev; the order of
 * sums is the library's. CLT_FAIL: the library is absent or refuses the call, a size is below 1, an ld is
 * below the row's length, or a matrix exceeds its buffer. With beta 0 a NaN or infinity in c can still reach
 * the result, so c must have been written before. */
clt_status clt_clblast_sgemm(clt_device *dev, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                             float alpha, clt_ref a, int64_t lda, clt_ref b, int64_t ldb, float beta,
                             clt_ref c, int64_t ldc);

#endif
