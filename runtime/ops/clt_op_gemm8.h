/* clt_op_gemm8: products of 8-bit blocks (clt_blocks8) with the fused epilogues of clt_op_gemm
 * (clkernels/gemm8). Sums inside a block are integers, so every device gives the same bits, also with matrix
 * units. docs/numerics.md, "Eight-bit blocks", defines them. */
#ifndef CLT_OP_GEMM8_H
#define CLT_OP_GEMM8_H

#include "runtime/ops/clt_activation.h"
#include "runtime/ops/clt_op_quantize.h"

/* What becomes of a chain: where it starts and where it ends. */
typedef enum {
    CLT_GEMM8_PRODUCT, /* one chain from +0 over all of k, then the epilogue: forward, data gradient */
    CLT_GEMM8_SAMPLES, /* weight gradient: a chain from +0 for each k_group; the results are added ascending
                        */
    CLT_GEMM8_CHAIN    /* weight gradient: one chain over all of k that starts from c with accumulate */
} clt_gemm8_form;

/* c[m,n] = a[m,k] * b[n,k]^T. For output element (i, j), with i' = i / a.tile and j' = j / b.tile, a chain
 * goes through the blocks t of k in ascending order:
 *     sum = the exact integer sum over the block of a[i,k] * b[j,k]
 *     acc = fma((float)sum, a.scale[t,i'] * b.scale[t,j'], acc)
 * PRODUCT: v = acc, then the epilogue of clt_op_gemm with the members of the same names, without a_sum.
 * SAMPLES: v = +0, or c[i,j] with accumulate; then v = v + acc for each group of k_group elements; c = v.
 * CHAIN: acc starts from +0, or from c[i,j] with accumulate; c = acc.
 * The last two take an fp32 c and nothing of the epilogue but accumulate.
 *
 * Types and memory of c, bias, pre, grad_pre, again and residual: as clt_op_gemm.
 *
 * CLT_FAIL: a size outside 1 ... INT_MAX, k or k_group is not a multiple of the block, k_group does not
 * divide k, a and b have different blocks, a rule of clt_blocks8 or of clt_op_gemm's epilogue is broken. */
typedef struct {
    clt_gemm8_form form;
    int64_t m, n, k; /* k: with padding */
    int64_t k_group; /* SAMPLES: elements of k per sample, with padding; the other forms ignore it */
    clt_blocks8 a, b;
    clt_tensor c;
    bool accumulate;
    clt_tensor bias, pre, grad_pre, again, residual;
    clt_activation act, grad_act;
} clt_gemm8_params;

clt_status clt_op_gemm8(clt_ops *ops, const clt_gemm8_params *p);
/* As clt_op_gemm_prepare, clt_op_gemm_variant and clt_op_gemm_workspace. */
clt_status clt_op_gemm8_prepare(clt_ops *ops, const clt_gemm8_params *p);
const char *clt_op_gemm8_variant(clt_ops *ops, const clt_gemm8_params *p);
uint64_t clt_op_gemm8_workspace(clt_device_type type, const clt_gemm8_params *p);

#endif
