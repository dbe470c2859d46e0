/* clt_clblast: the fp32 matrix product of the CLBlast library, if it is installed. It is loaded when it is
 * first asked for and never needed: one more row of the GEMM variant table for `numerics: fast`, and
 * clbench's yardstick. It compiles its kernels at the first call of a process and allocates scratch buffers
 * of its own. */
#ifndef CLT_CLBLAST_H
#define CLT_CLBLAST_H

#include "runtime/device/clt_device.h"

/* Whether libclblast.so.1 can be loaded. */
bool clt_clblast_available(void);

/* Row-major c[m,n] = alpha * op(a) * op(b) + beta * c. op(a) is [m,k]: a is [m,k], or [k,m] with trans_a;
 * op(b) is [k,n]: b is [k,n], or [n,k] with trans_b. ld*: elements between rows. Queued, in an order of sums
 * of its own. CLT_FAIL if the library is absent or refuses; with beta 0 the old contents of c have no effect
 * unless they are NaN or infinite, so start from a c that was written once. */
clt_status clt_clblast_sgemm(clt_device *dev, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                             float alpha, clt_ref a, int64_t lda, clt_ref b, int64_t ldb, float beta,
                             clt_ref c, int64_t ldc);

#endif
