/* gemm_finish: the epilogue for products that another library left in memory. For numerics fast: those
 * products add in another order.
 *
 *   gemm_clear   c[m,n] = +0, for a library that reads c although beta is 0
 *   gemm_finish  c = epilogue(product[m,n]); product may be c
 *
 *   -DACT -DGRAD_ACT   gemm_epilogue.clh
 *
 * Launch: global {n, m}. Requires: nothing. */
#include "gemm_epilogue.clh"

/* Tensors are fp32. */
__kernel void gemm_clear(__global float *c, ulong c_off, ulong ldc) {
    c[c_off + get_global_id(1) * ldc + get_global_id(0)] = 0.0f;
}

__kernel void gemm_finish(__global const float *product, ulong product_off, ulong ldproduct, CLT_EP_ARGS) {
    const clt_gemm_ep ep = CLT_EP_INIT;
    const size_t i = get_global_id(1), j = get_global_id(0);
    clt_ep_scalar(&ep, product[product_off + i * ldproduct + j], i, j);
}
