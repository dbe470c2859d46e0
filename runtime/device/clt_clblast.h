/* clt_clblast: the fp32 matrix product of the CLBlast library, if it is installed. The library is optional
 * and loaded at the first use: a row of the GEMM variant table for `numerics: fast`, and a comparison in
 * clbench. It compiles its kernels at the first call of a process and allocates scratch buffers. */
#ifndef CLT_CLBLAST_H
#define CLT_CLBLAST_H

#include "runtime/device/clt_device.h"

/* Whether libclblast.so.1 can be loaded. */
bool clt_clblast_available(void);

/* Row-major c[m,n] = alpha * op(a) * op(b) + beta * c. op(a) is [m,k]: a is [m,k], or [k,m] with trans_a;
 * op(b) is [k,n]: b is [k,n], or [n,k] with trans_b. ld*: elements between rows. The call is queued; the
 * order of sums is the library's. CLT_FAIL if the library is absent or refuses the call. With beta 0 old
 * contents of c matter only if they are NaN or infinite, so c must have been written before. */
clt_status clt_clblast_sgemm(clt_device *dev, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                             float alpha, clt_ref a, int64_t lda, clt_ref b, int64_t ldb, float beta,
                             clt_ref c, int64_t ldc);

#endif
